"""A Proxmox VE of two nodes that runs nothing, for tests: fakepve from PyPI, one token, a template, a shared storage.

    serve.py [TIME_SCALE [HOST:PORT]]

Prints one line of JSON when it is up: `url`, `control`, `token` (the value of the Authorization header) and `ca` (PEM).
`control` is plain HTTP on loopback, for the test only (`Control` lists what it answers): what stands in for the hypervisor
sees there which machines run and with which image, and says what their guest agents answer; a test sets tokens and rights,
does things to machines by hand, and asks what is left.
"""

import asyncio
import json
import sys
import tempfile

from aiohttp import web
from fakepve import FakePve
from fakepve.certs import make_cert

TOKEN = ('capi@pve!test', '11111111-2222-3333-4444-555555555555')
TEMPLATE = 9000
BASE = '{0}/base-{0}-disk-0.qcow2'.format(TEMPLATE)


class Pve(FakePve):
    """fakepve, which knows the size of an upload only, with the bytes as well."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.images = {}

    async def _upload(self, request):
        answer = await super()._upload(request)
        fields = self.uploaded
        self.images[(request.match_info['storage'], fields['filename'])] = fields['data']
        return answer


def storage():
    return {'type': 'nfs', 'active': 1, 'content': 'images,iso', 'files': set(), 'shared': 1,
            'path': '/mnt/pve/shared', 'avail': 10 ** 13,
            'volumes': {BASE: {'content': 'images', 'format': 'qcow2', 'size': 4 * 1024 ** 3, 'vmid': TEMPLATE,
                               'ctime': 1}}}


def template(pve, vmid=TEMPLATE, pool=None):
    pve.add_vm(vmid, 'template', node='pve1', template=True, pool=pool, config={
        'scsi0': 'shared:{0},size=4G'.format(BASE), 'net0': 'virtio=BC:24:11:00:00:01,bridge=vmbr0',
        'boot': 'order=scsi0', 'memory': '2048', 'cores': 2, 'sockets': 1, 'agent': '1',
        'smbios1': 'uuid=00000000-0000-0000-0000-000000000000', 'tags': pool or 'capi', 'template': 1})


class Control:
    """What the test asks past the API."""

    def __init__(self, pve):
        self.pve = pve

    def app(self):
        app = web.Application()
        app.router.add_get('/left', self.left)
        app.router.add_post('/clear', self.clear)
        app.router.add_get('/vms', self.vms)
        app.router.add_get('/requests', self.requests)
        app.router.add_get('/iso/{storage}/{file}', self.iso)
        app.router.add_post('/vm/{vmid}/interfaces', self.interfaces)
        app.router.add_post('/vm/{vmid}/{deed:stop|start|destroy}', self.by_hand)
        app.router.add_post('/token', self.token)
        app.router.add_post('/grant', self.grant)
        app.router.add_post('/pool', self.pool)
        app.router.add_post('/template', self.template)
        app.router.add_post('/storage/{storage}', self.storage)
        return app

    async def left(self, _):
        """What was not there in the beginning."""
        lines = ['vm' for vm in self.pve.vms if not vm.template]
        for name, store in sorted(self.pve.storages.items()):
            lines += ['{0} iso'.format(name) for _ in store['files']]
            lines += ['{0} {1}'.format(name, volume) for volume in store.get('volumes', {}) if volume != BASE]
        return web.json_response(lines)

    async def clear(self, _):
        """Takes that away."""
        self.pve.vms[:] = [vm for vm in self.pve.vms if vm.template]
        for store in self.pve.storages.values():
            store['files'].clear()
            volumes = store.get('volumes', {})
            for volume in [name for name in volumes if name != BASE]:
                del volumes[volume]
        return web.json_response({})

    async def vms(self, _):
        """The machines, without templates."""
        return web.json_response([
            {'vmid': vm.vmid, 'name': vm.name, 'node': vm.node, 'status': vm.status, 'pool': vm.pool, 'config': vm.config}
            for vm in self.pve.vms if not vm.template])

    async def requests(self, _):
        """Method and path of all requests, oldest first."""
        return web.json_response([[method, path] for method, path, _ in self.pve.requests])

    async def iso(self, request):
        """The bytes of an uploaded image that is still there."""
        place = (request.match_info['storage'], request.match_info['file'])
        store = self.pve.storages.get(place[0])
        if store is None or place[1] not in store['files'] or place not in self.pve.images:
            return web.json_response({}, status=404)
        return web.Response(body=self.pve.images[place])

    def vm(self, request):
        vm = self.pve.vm(int(request.match_info['vmid']))
        if vm is None:
            raise web.HTTPNotFound()
        return vm

    async def interfaces(self, request):
        """What the guest agent answers."""
        self.vm(request).agent = {'interfaces': await request.json()}
        return web.json_response({})

    async def by_hand(self, request):
        """What a person does to a machine."""
        vm = self.vm(request)
        deed = request.match_info['deed']
        vm.status = vm.qmpstatus = 'running' if deed == 'start' else 'stopped'
        if deed == 'destroy':
            await self.pve._qm_destroy({'node': vm.node, 'vmid': vm.vmid}, 'root@pam')
        return web.json_response({})

    async def token(self, request):
        """Sets a token's secret; none takes the token away."""
        asked = await request.json()
        if asked.get('secret'):
            self.pve.apitokens[asked['id']] = asked['secret']
        else:
            self.pve.apitokens.pop(asked['id'], None)
        return web.json_response({})

    async def grant(self, request):
        """Gives rights on a path; from the first one on they are checked."""
        asked = await request.json()
        self.pve.grant(asked['user'], asked['path'], *asked['rights'])
        return web.json_response({})

    async def pool(self, request):
        """Makes a resource pool."""
        self.pve.pools.setdefault((await request.json())['name'], set())
        return web.json_response({})

    async def template(self, request):
        """Makes another template, in a pool and with the pool's name as its tag."""
        asked = await request.json()
        template(self.pve, asked['vmid'], asked['pool'])
        return web.json_response({})

    async def storage(self, request):
        """Changes a storage, such as what is available on it."""
        self.pve.storages[request.match_info['storage']].update(await request.json())
        return web.json_response({})


async def main():
    place = sys.argv[2] if len(sys.argv) > 2 else '127.0.0.1:0'
    host, _, port = place.rpartition(':')
    pve = Pve(host=host, port=int(port))
    pve.time_scale = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    pve.apitokens[TOKEN[0]] = TOKEN[1]
    pve.add_node('pve2')
    pve.storages['shared'] = storage()
    template(pve)
    await start(pve)


async def start(pve):
    with tempfile.TemporaryDirectory() as directory:
        certificate, key, _ = make_cert(directory, hosts=(pve.host,))
        await pve.start(certificate, key)
        runner = web.AppRunner(Control(pve).app())
        await runner.setup()
        site = web.TCPSite(runner, '127.0.0.1', 0)
        await site.start()
        with open(certificate, encoding='utf-8') as pem:
            ca = pem.read()
        print(json.dumps({'url': pve.url, 'control': 'http://127.0.0.1:{0}'.format(runner.addresses[0][1]),
                          'token': 'PVEAPIToken={0}={1}'.format(*TOKEN), 'ca': ca}), flush=True)
        # Whoever started it has ended when its pipe has.
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)


asyncio.run(main())
