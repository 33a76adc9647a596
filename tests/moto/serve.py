"""An AWS that runs nothing, for tests: moto from PyPI with IAM and signature checks on, users with keys, an image, a bucket.

Prints one line of JSON when it is up: `url`, `control`, `keys` (name -> access key id and secret), `image`, `bucket`, `given`
(a VPC with a subnet, a group and a target group, for machines without a cluster). `--open` leaves
the checks out, for tests that do not sign; with `--remember` nothing is asked twice (see Memory; then only /left and /clear of
`control` may be used). A user may do what `policy.json` beside this file allows: the policy of
docs/providers/aws.md; the user `nobody` may do nothing.

moto lacks what a provider's safety rests on, so a layer before it adds:
- client tokens: RunInstances, CreateNatGateway and CreateRouteTable with a token that was used give what that request made;
  with other parameters IdempotentParameterMismatch, after the instance's end IdempotentInstanceTerminated;
- user data over 16,384 bytes, duplicate listeners and load-balancer names, security groups and subnets in use: refused;
- faults that a test asks for.

`control` is plain HTTP, for the test only: GET /left lists what was not there in the beginning, POST /clear takes it away,
GET /instances tells of instances and their user data, POST /fault {"action", "status", "code", "times"} makes the next requests fail,
POST /instance/{id}/{state} changes an instance's state as AWS would by itself, POST /draining/{on|off} keeps deregistered targets in
sight.
"""

import base64
import difflib
import functools
import hashlib
import io
import json
import os
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

os.environ.update({
    'INITIAL_NO_AUTH_ACTION_COUNT': 'inf' if '--open' in sys.argv else '0',
    'MOTO_ENABLE_AMI_VALIDATION': 'true', 'MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION': 'true',
    'MOTO_ENABLE_KEYPAIR_VALIDATION': 'true', 'AWS_DEFAULT_REGION': 'us-east-1'})

from moto import backends  # noqa: E402
from moto.core import responses, utils  # noqa: E402
from moto.ec2.models import ec2_backends  # noqa: E402
from moto.elb.models import elb_backends  # noqa: E402
from moto.elbv2.models import elbv2_backends  # noqa: E402
from moto.iam.models import iam_backends  # noqa: E402
from moto.moto_api._internal import mock_random  # noqa: E402
from moto.moto_server.werkzeug_app import (  # noqa: E402
    DomainDispatcherApplication, MotoRequestHandler, create_backend_app)
from moto.s3.models import s3_backends  # noqa: E402
from moto.secretsmanager.models import secretsmanager_backends  # noqa: E402
from moto.ssm.models import ssm_backends  # noqa: E402
from werkzeug.serving import make_server  # noqa: E402

# moto looks these up anew for each request, which costs a third of its time.
backends.list_of_moto_modules = functools.lru_cache(lambda find=backends.list_of_moto_modules: frozenset(find()))
utils.method_names_from_class = functools.lru_cache(None)(utils.method_names_from_class)
responses.method_names_from_class = utils.method_names_from_class

ACCOUNT, REGION, BUCKET = '123456789012', 'us-east-1', 'capstan-test'
HERE = os.path.dirname(os.path.abspath(__file__))


def backend(of, region=REGION):
    return of[ACCOUNT][region]


class Cloud:
    """moto's own state, past its API."""

    def __init__(self):
        self.ec2, self.elb, self.nlb = backend(ec2_backends), backend(elb_backends), backend(elbv2_backends)
        self.secrets, self.ssm, self.s3 = backend(secretsmanager_backends), backend(ssm_backends), s3_backends[ACCOUNT]['aws']
        self.s3.create_bucket(BUCKET, REGION)
        self.image = self.register_image()
        self.given = self.given_network()
        self.first = set(self.listing())
        self.kept = {key for store in self.stores() for key in store}
        self.kept |= {address.allocation_id for address in self.ec2.addresses}

    def register_image(self):
        image = self.ec2.register_image(name='capa-ami-ubuntu-24.04-v1.34.1-1750000000', description='test')
        image.owner_id, image.architecture, image.virtualization_type = '819546954734', 'x86_64', 'hvm'
        image.state, image.root_device_name = 'available', '/dev/sda1'
        return image.id

    def given_network(self):
        """What machines need of a cluster, without one: a subnet, a group, a load balancer with a target group."""
        subnet = next(iter(self.ec2.subnets['us-east-1a'].values()))
        group = self.ec2.create_security_group('given', 'for tests', subnet.vpc_id)
        target = self.nlb.create_target_group(
            'given', protocol='TCP', port='6443', vpc_id=subnet.vpc_id, target_type='instance',
            healthcheck_protocol='TCP', healthcheck_port='6443', healthcheck_path=None, healthcheck_interval_seconds='5',
            healthcheck_timeout_seconds='4', healthcheck_enabled=None, healthy_threshold_count='2',
            unhealthy_threshold_count='6', matcher=None)
        return {'vpc': subnet.vpc_id, 'subnet': subnet.id, 'group': group.id, 'targetGroup': target.arn}

    def instances(self):
        return [instance for reservation in self.ec2.reservations.values() for instance in reservation.instances]

    def live(self):
        return [instance for instance in self.instances() if instance._state.name != 'terminated']

    def listing(self):
        """Every resource of every kind: kind and id to what a person calls it."""
        ec2, found = self.ec2, {}

        def add(kind, name, thing):
            tags = {}
            if hasattr(thing, 'get_tags'):
                tags = {tag['key']: tag['value'] for tag in thing.get_tags()}
            found[(kind, name)] = tags.get('Name', '')
        for instance in self.live():
            add('instance', instance.id, instance)
        for kind, things in [('vpc', ec2.vpcs), ('internet-gateway', ec2.internet_gateways),
                             ('route-table', ec2.route_tables), ('network-acl', ec2.network_acls),
                             ('key-pair', ec2.key_pairs), ('vpc-endpoint', ec2.vpc_end_points)]:
            for name, thing in things.items():
                add(kind, name, thing)
        for name, gateway in ec2.nat_gateways.items():
            if gateway.state not in ('deleted', 'deleting'):
                add('nat-gateway', name, gateway)
        for kind, nested in [('subnet', ec2.subnets), ('security-group', ec2.groups)]:
            for things in nested.values():
                for name, thing in things.items():
                    add(kind, name, thing)
        for address in ec2.addresses:
            add('address', address.allocation_id, address)
        for name, volume in ec2.volumes.items():
            add('volume', name, volume)
        owned = {nic.id for instance in self.instances() for nic in instance.nics.values()}
        owned |= {gateway._eni.id for gateway in ec2.nat_gateways.values()}
        for name, interface in ec2.enis.items():
            if name not in owned:
                add('network-interface', name, interface)
        for name in self.elb.load_balancers:
            found[('classic-load-balancer', name)] = name
        for name, balancer in self.nlb.load_balancers.items():
            found[('load-balancer', name)] = balancer.name
            for listener in balancer.listeners:
                found[('listener', listener)] = str(balancer.listeners[listener].port)
        for name, group in self.nlb.target_groups.items():
            found[('target-group', name)] = group.name
            for target in group.targets:
                found[('target', name + target)] = group.name
        for balancer in self.elb.load_balancers.values():
            for instance in balancer.instance_ids:
                found[('classic-target', balancer.name + instance)] = balancer.name
        for secret in list(dict.values(self.secrets.secrets)):
            if not secret.is_deleted():
                found[('secret', secret.arn)] = secret.name
        for name in list(self.ssm._parameters):
            if not name.startswith('/aws/'):
                found[('parameter', name)] = name
        for bucket in self.s3.buckets.values():
            for key in bucket.keys:
                found[('object', key)] = key
        return found

    def left(self):
        new = {key: name for key, name in self.listing().items() if key not in self.first}
        # What AWS makes with a VPC goes with it.
        for things in self.ec2.groups.values():
            for name, group in things.items():
                if group.name == 'default':
                    new.pop(('security-group', name), None)
        for name, table in self.ec2.route_tables.items():
            if table.main_association_id:
                new.pop(('route-table', name), None)
        for name, acl in self.ec2.network_acls.items():
            if acl.default in (True, 'true'):
                new.pop(('network-acl', name), None)
        # Owner keys in secrets' names, and hashes of them at the end of load balancers'.
        key = re.compile(r'[0-9a-f]{32}|(?<=-)[0-9a-f]{6}$')
        return sorted('{0} {1}'.format(kind, key.sub('*', name)) for (kind, _), name in new.items())

    def stores(self):
        """All that grows, by key: dicts, and dicts of dicts."""
        ec2 = self.ec2
        flat = [ec2.reservations, ec2.vpcs, ec2.internet_gateways, ec2.route_tables, ec2.network_acls, ec2.nat_gateways,
                ec2.volumes, ec2.enis, ec2.key_pairs, ec2.vpc_end_points, ec2.tags, self.nlb.load_balancers,
                self.nlb.target_groups, self.elb.load_balancers, self.ssm._parameters]
        return flat + [ec2.subnets, ec2.groups] + list(ec2.subnets.values()) + list(ec2.groups.values())

    def clear(self):
        """All is as it was in the beginning; also what is dead and only still shown is gone."""
        for store in self.stores():
            for key in [key for key in store if key not in self.kept]:
                del store[key]
        self.ec2.addresses[:] = [address for address in self.ec2.addresses if address.allocation_id in self.kept]
        for subnets in self.ec2.subnets.values():
            for subnet in subnets.values():
                subnet._unused_ips.clear()
                subnet._subnet_ips.clear()
                subnet._reserved_ips = set(subnet.aws_reserved_ips)
                # Addresses are dealt from the first again.
                type(subnet)._base_avail_ip_iterator.cache_clear()
        self.secrets.reset()
        for group in self.nlb.target_groups.values():
            group.targets.clear()
        for bucket in self.s3.buckets.values():
            for key in list(bucket.keys):
                bucket.keys.pop(key)

    def state(self, name, state):
        codes = {'pending': 0, 'running': 16, 'shutting-down': 32, 'terminated': 48, 'stopping': 64, 'stopped': 80}
        for instance in self.instances():
            if instance.id == name:
                instance._state.name, instance._state.code = state, codes[state]
                return True
        return False


def users(policy):
    """Users with keys: two that may do what the provider needs, one that may do nothing."""
    iam, keys = iam_backends[ACCOUNT]['aws'], {}
    for name in ['provider', 'second', 'nobody']:
        iam.create_user(region_name=REGION, user_name=name, path='/')
        if name != 'nobody':
            iam.put_user_policy(name, 'provider', policy)
        key = iam.create_access_key(name)
        keys[name] = {'id': key.access_key_id, 'secret': key.secret_access_key}
    return keys


def fault(status, code, message):
    text = ('<?xml version="1.0"?><Response><Errors><Error><Code>{0}</Code><Message>{1}</Message></Error></Errors>'
            '<Error><Code>{0}</Code><Message>{1}</Message></Error><RequestID>test</RequestID></Response>')
    return status, text.format(code, escape(message)).encode()


class Layer:
    """What moto lacks."""

    TOKENS = ('RunInstances', 'CreateNatGateway', 'CreateRouteTable')

    def __init__(self, app, cloud):
        self.app, self.cloud, self.lock = app, cloud, threading.Lock()
        self.tokens, self.faults, self.draining, self.keep = {}, [], {}, False

    def __call__(self, environ, start_response):
        length = int(environ.get('CONTENT_LENGTH') or 0)
        body = environ['wsgi.input'].read(length)
        fields = {}
        if 'form-urlencoded' in environ.get('CONTENT_TYPE', ''):
            fields = dict(parse_qsl(body.decode('utf-8', 'replace'), keep_blank_values=True))
        action = fields.get('Action') or environ.get('HTTP_X_AMZ_TARGET', '').rsplit('.', 1)[-1]
        environ['wsgi.input'] = io.BytesIO(body)
        with self.lock:
            refusal = self.refuse(action, fields)
            if refusal is None:
                return self.carry_out(environ, start_response, action, fields)
        status, text = refusal
        start_response('{0} Refused'.format(status), [('Content-Type', 'text/xml'), ('Content-Length', str(len(text)))])
        return [text]

    def clear(self):
        self.cloud.clear()
        self.tokens.clear()
        self.draining.clear()
        del self.faults[:]

    def refuse(self, action, fields):
        for wanted in self.faults:
            if wanted['action'] == action and wanted['times'] > 0:
                wanted['times'] -= 1
                return fault(wanted['status'], wanted['code'], 'as the test asked')
        ec2, nlb = self.cloud.ec2, self.cloud.nlb
        if action == 'RunInstances':
            size = len(base64.b64decode(fields.get('UserData', '')))
            if size > 16384:
                return fault(400, 'InvalidParameterValue', 'User data is limited to 16384 bytes')
        if action == 'DeleteSecurityGroup':
            group = fields.get('GroupId')
            for others in ec2.groups.values():
                for other in others.values():
                    rules = other.ingress_rules + other.egress_rules
                    if other.id != group and any(r.source_group.get('GroupId') == group for r in rules):
                        return fault(400, 'DependencyViolation', '{0} has a dependent object'.format(group))
            if any(g.id == group for i in self.cloud.live() for n in i.nics.values() for g in n.group_set):
                return fault(400, 'DependencyViolation', '{0} has a dependent object'.format(group))
        if action == 'DeleteSubnet':
            subnet = fields.get('SubnetId')
            used = [i.id for i in self.cloud.live() if i.subnet_id == subnet]
            used += [g.id for g in ec2.nat_gateways.values() if g.subnet_id == subnet and g.state == 'available']
            used += [b.name for b in nlb.load_balancers.values() if subnet in b.subnets]
            if used:
                return fault(400, 'DependencyViolation', 'The subnet {0} has dependencies: {1}'.format(subnet, used))
        if action == 'ReleaseAddress':
            used = {a.eni.id for a in ec2.addresses if a.eni and a.allocation_id == fields.get('AllocationId')}
            if any(g.state == 'available' and g._eni.id in used for g in ec2.nat_gateways.values()):
                return fault(400, 'InvalidIPAddress.InUse', 'the address is in use')
        if action == 'DetachInternetGateway' and any(
                g.state == 'available' and g.vpc_id == fields.get('VpcId') for g in ec2.nat_gateways.values()):
            return fault(400, 'DependencyViolation', 'the network has mapped public addresses')
        if action == 'DescribeNatGateways':
            wanted = fields.get('NatGatewayId.1')
            if wanted and wanted not in ec2.nat_gateways:
                return fault(400, 'NatGatewayNotFound', 'there is no NAT gateway {0}'.format(wanted))
        if action == 'CreateListener':
            balancer = nlb.load_balancers.get(fields.get('LoadBalancerArn'))
            if balancer and any(str(one.port) == fields.get('Port') for one in balancer.listeners.values()):
                return fault(400, 'DuplicateListener', 'a listener has this port')
        if action == 'DeleteTargetGroup':
            arn = fields.get('TargetGroupArn')
            for balancer in nlb.load_balancers.values():
                if any(arn in str(one.default_actions) for one in balancer.listeners.values()):
                    return fault(400, 'ResourceInUse', 'a listener leads to it')
        if action == 'RegisterTargets':
            state = {i.id: i._state.name for i in self.cloud.instances()}
            if state.get(fields.get('Targets.member.1.Id')) != 'running':
                return fault(400, 'InvalidTarget', 'the instance is not in a state to be registered')
        return None

    def carry_out(self, environ, start_response, action, fields):
        token = fields.get('ClientToken')
        if action not in self.TOKENS or not token:
            return self.drain(environ, start_response, action, fields)
        same = hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()
        known = self.tokens.get((action, token))
        if known is None:
            seen = {}

            def note(status, headers, exc_info=None):
                seen['status'], seen['headers'] = status, headers
                return start_response(status, headers, exc_info)
            text = b''.join(self.app(environ, note))
            if seen['status'].startswith('200'):
                self.tokens[(action, token)] = (same, seen['headers'], text)
            return [text]
        digest, headers, text = known
        if digest != same:
            status, text = fault(400, 'IdempotentParameterMismatch', 'the token was used with other parameters')
        elif action == 'RunInstances' and not any(i.id.encode() in text for i in self.cloud.live()):
            status, text = fault(400, 'IdempotentInstanceTerminated', 'the instance of this token is terminated')
        else:
            start_response('200 OK', headers)
            return [text]
        start_response('{0} Refused'.format(status), [('Content-Type', 'text/xml'), ('Content-Length', str(len(text)))])
        return [text]

    def drain(self, environ, start_response, action, fields):
        """Deregistered targets stay in sight for one more look, where a test asks for it."""
        if self.keep and action == 'DeregisterTargets':
            self.draining[(fields['TargetGroupArn'], fields['Targets.member.1.Id'], fields.get('Targets.member.1.Port'))] = 2
        chunks = self.app(environ, start_response)
        if action == 'DescribeTargetHealth' and self.draining:
            text, extra = b''.join(chunks), ''
            for (arn, target, port), looks in list(self.draining.items()):
                if arn == fields.get('TargetGroupArn') and looks > 0:
                    self.draining[(arn, target, port)] -= 1
                    extra += ('<member><Target><Id>{0}</Id><Port>{1}</Port></Target><TargetHealth><State>draining</State>'
                              '</TargetHealth></member>').format(target, port)
            text = text.replace(b'</TargetHealthDescriptions>', extra.encode() + b'</TargetHealthDescriptions>')
            text = text.replace(b'<TargetHealthDescriptions />',
                                b'<TargetHealthDescriptions>' + extra.encode() + b'</TargetHealthDescriptions>')
            return [text]
        return chunks


class Memory:
    """Answers that are known already, for tests that live the same a thousand times.

    What moto answers depends on what it was told since it was cleared, and on nothing else: ids are drawn by that. So what was
    asked after the same is not asked again, and moto hears of it only when something is asked that is new. A read is asked twice at
    first: one that is answered otherwise the second time counts as told.
    """

    READS = ('Describe', 'Get', 'List')
    # What differs although nothing is different.
    TIMES = re.compile(rb'<(requestId|RequestId)>[^<]*<|\d{4}-\d\d-\d\dT[0-9:.]+(Z|\+00:00)?|"\w*Date": ?[0-9.e+]+')

    def __init__(self, app, clear):
        self.app, self.clear_all, self.lock = app, clear, threading.Lock()
        self.known, self.told, self.behind, self.touched = {}, b'', [], False

    def __call__(self, environ, start_response):
        body = environ['wsgi.input'].read(int(environ.get('CONTENT_LENGTH') or 0))
        who = environ.get('HTTP_AUTHORIZATION', '').split(',')[0].split('/')
        asked = repr([environ['REQUEST_METHOD'], environ['PATH_INFO'], environ.get('QUERY_STRING'), body, who[:1] + who[2:],
                      environ.get('HTTP_X_AMZ_TARGET')]).encode()
        with self.lock:
            status, headers, text = self.answer(environ, body, asked)
        start_response(status, headers)
        return [text]

    def answer(self, environ, body, asked):
        key = (self.told, asked)
        if key not in self.known:
            self.catch_up()
            found = self.ask(environ, body, key)
            after = self.after(key)
            if self.is_read(environ, body) and self.same(found, self.ask(environ, body, key)):
                after = self.told
            self.known[key] = (found, after)
        elif self.known[key][1] != self.told:
            self.behind.append((environ, body, key))
        found, self.told = self.known[key]
        return found

    def after(self, key):
        return hashlib.sha256(key[0] + key[1]).digest()

    def is_read(self, environ, body):
        target = environ.get('HTTP_X_AMZ_TARGET', '').rsplit('.', 1)[-1]
        form = re.search(rb'(?:^|&)Action=(\w+)', body)
        action = target or (form.group(1).decode() if form else '')
        return action.startswith(self.READS) if action else environ['REQUEST_METHOD'] in ('GET', 'HEAD')

    def same(self, one, other):
        return one[0] == other[0] and self.TIMES.sub(b'', one[2]) == self.TIMES.sub(b'', other[2])

    def ask(self, environ, body, key):
        self.touched, seen = True, {}
        mock_random.seed(int.from_bytes(self.after(key), 'big'))

        def note(status, headers, exc_info=None):
            seen['answer'] = status, headers
        text = b''.join(self.app({**environ, 'wsgi.input': io.BytesIO(body)}, note))
        return (*seen['answer'], text)

    def catch_up(self):
        """Tells moto what was answered without it."""
        behind, self.behind = self.behind, []
        for environ, body, key in behind:
            found = self.ask(environ, body, key)
            if not self.same(found, self.known[key][0]):
                texts = [self.TIMES.sub(b'', text).decode().split('>') for text in (self.known[key][0][2], found[2])]
                print('moto is no function of what it was told', key[1], *difflib.unified_diff(*texts, n=2), sep='\n', file=sys.stderr)
                os._exit(1)

    def left(self, listing):
        with self.lock:
            key = (self.told, b'left')
            if key not in self.known:
                self.catch_up()
                self.known[key] = listing()
            return self.known[key]

    def clear(self):
        with self.lock:
            if self.touched:
                self.clear_all()
            self.told, self.behind, self.touched = b'', [], False


def control(cloud, layer, memory):
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, body, status=200):
            text = json.dumps(body).encode()
            self.send_response(status)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            if self.path == '/left':
                return self.answer(memory.left(cloud.left) if memory else cloud.left())
            if self.path == '/instances':
                return self.answer([{
                    'id': i.id, 'state': i._state.name, 'zone': i._placement.zone, 'address': i.private_ip,
                    'name': {t['key']: t['value'] for t in i.get_tags()}.get('Name'),
                    'userData': base64.b64decode(str(i.user_data or '')).decode('latin-1')} for i in cloud.instances()])
            return self.answer({}, 404)

        def do_POST(self):
            length = int(self.headers.get('Content-Length') or 0)
            body = json.loads(self.rfile.read(length) or b'{}')
            parts = self.path.strip('/').split('/')
            if memory and parts == ['clear']:
                memory.clear()
                return self.answer({})
            with layer.lock:
                if parts == ['clear']:
                    layer.clear()
                elif parts == ['fault']:
                    layer.faults.append({'status': 503, 'times': 1, **body})
                elif parts[0] == 'draining':
                    layer.keep = parts[1] == 'on'
                elif parts[0] == 'instance':
                    return self.answer({}, 200 if cloud.state(parts[1], parts[2]) else 404)
                else:
                    return self.answer({}, 404)
            return self.answer({})
    return Handler


class Quiet(MotoRequestHandler):
    def log(self, *_):
        pass


def main():
    # Ids are the same in each run, so that a test can name what is given before it has a server.
    mock_random.seed(1)
    cloud = Cloud()
    with open(os.path.join(HERE, 'policy.json'), encoding='utf-8') as policy:
        keys = users(policy.read())
    app = DomainDispatcherApplication(create_backend_app)
    layer = Layer(app, cloud)
    memory = Memory(layer, layer.clear) if '--remember' in sys.argv else None
    server = make_server('127.0.0.1', 0, memory or layer, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    side = ThreadingHTTPServer(('127.0.0.1', 0), control(cloud, layer, memory))
    threading.Thread(target=side.serve_forever, daemon=True).start()
    print(json.dumps({
        'url': 'http://127.0.0.1:{0}'.format(server.server_port),
        'control': 'http://127.0.0.1:{0}'.format(side.server_port),
        'keys': keys, 'image': cloud.image, 'bucket': BUCKET, 'given': cloud.given}), flush=True)
    # Whoever started it has ended when its pipe has.
    sys.stdin.buffer.read()


main()
