"""A Proxmox VE of two nodes that runs nothing, for tests: fakepve from PyPI, one token, a template, a shared storage.

Prints one line of JSON when it is up: `url`, `control`, `token` (the value of the Authorization header) and `ca` (PEM).
`control` is plain HTTP, for the test only: GET /left lists what was not there in the beginning, POST /clear takes it
away, POST /vm/{vmid}/interfaces sets what the guest agent answers.
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


def storage():
    return {'type': 'nfs', 'active': 1, 'content': 'images,iso', 'files': set(), 'shared': 1,
            'path': '/mnt/pve/shared', 'avail': 10 ** 13,
            'volumes': {BASE: {'content': 'images', 'format': 'qcow2', 'size': 4 * 1024 ** 3, 'vmid': TEMPLATE,
                               'ctime': 1}}}


def template(pve):
    pve.add_vm(TEMPLATE, 'template', node='pve1', template=True, config={
        'scsi0': 'shared:{0},size=4G'.format(BASE), 'net0': 'virtio=BC:24:11:00:00:01,bridge=vmbr0',
        'boot': 'order=scsi0', 'memory': '2048', 'cores': 2, 'sockets': 1, 'agent': '1',
        'smbios1': 'uuid=00000000-0000-0000-0000-000000000000', 'tags': 'capi', 'template': 1})


def control(pve):
    """What the test asks past the API."""
    async def left(_):
        lines = ['vm' for vm in pve.vms if vm.vmid != TEMPLATE]
        for name, store in sorted(pve.storages.items()):
            lines += ['{0} iso'.format(name) for _ in store['files']]
            lines += ['{0} disk'.format(name) for volume in store.get('volumes', {}) if volume != BASE]
        return web.json_response(lines)

    async def clear(_):
        pve.vms[:] = [vm for vm in pve.vms if vm.vmid == TEMPLATE]
        for store in pve.storages.values():
            store['files'].clear()
            volumes = store.get('volumes', {})
            for volume in [name for name in volumes if name != BASE]:
                del volumes[volume]
        return web.json_response({})

    async def interfaces(request):
        vm = next((vm for vm in pve.vms if vm.vmid == int(request.match_info['vmid'])), None)
        if vm is None:
            return web.json_response({}, status=404)
        vm.agent = {'interfaces': await request.json()}
        return web.json_response({})

    app = web.Application()
    app.router.add_get('/left', left)
    app.router.add_post('/clear', clear)
    app.router.add_post('/vm/{vmid}/interfaces', interfaces)
    return app


async def main():
    pve = FakePve(host='127.0.0.1', port=0)
    pve.time_scale = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    pve.apitokens[TOKEN[0]] = TOKEN[1]
    pve.add_node('pve2')
    pve.storages['shared'] = storage()
    template(pve)
    await start(pve)


async def start(pve):
    with tempfile.TemporaryDirectory() as directory:
        certificate, key, _ = make_cert(directory)
        await pve.start(certificate, key)
        runner = web.AppRunner(control(pve))
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
