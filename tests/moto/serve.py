"""An AWS that runs nothing, for tests: moto from PyPI with IAM and signature checks on, users with keys, an image, a bucket.

Prints one line of JSON when it is up: `url`, `control`, `keys` (name -> access key id and secret), `image`, `bucket`, `given`
(a VPC with a subnet, a group and a target group, for machines without a cluster). `--open` leaves
the checks out, for tests that do not sign; with `--remember` nothing is asked twice (see Memory; then only /left and /clear of
`control` may be used). A user may do what `policy.json` beside this file allows: the policy of
docs/providers/aws.md, and may give its instances the profiles that examples/aws.yaml names; the user `nobody` may do nothing.

moto lacks what a provider's safety rests on, so a layer before it adds:
- client tokens: RunInstances, CreateNatGateway and CreateRouteTable with a token that was used give what that request made;
  with other parameters IdempotentParameterMismatch, after the instance's end IdempotentInstanceTerminated;
- keys that are Inactive, user data over 16,384 bytes, duplicate listeners and load-balancer names, security groups that are not there,
  security groups and subnets in use: refused;
- faults that a test asks for.

`control` is plain HTTP, for the test only: GET /left lists what was not there in the beginning, POST /clear takes it away,
GET /instances tells of instances and their user data, POST /fault {"action", "status", "code", "times"} makes the next requests fail,
POST /instance/{id}/{state} changes an instance's state as AWS would by itself, POST /draining/{on|off} keeps deregistered targets in
sight. For scenarios (the account may be left out; it is the first one's then): GET /shown tells what runs and what leads to it, GET
/data/{instance} its user data, GET /made/{account} lists what is there beside the beginning with all that AWS makes, POST
/account/{id} makes another account with such users, POST /aws {"account", "user", "service", "operation", "params"} sends a request
that a user signs: `admin` may do everything, `node` what the instance profiles may. GET /requests lists actions and how they ended, POST
/end/{action}/{key} makes a key Inactive as soon as the next such request has been carried out.
"""

import base64
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

import boto3  # noqa: E402
from botocore.config import Config  # noqa: E402
from botocore.exceptions import BotoCoreError, ClientError  # noqa: E402
from moto import backends  # noqa: E402
from moto.core import responses, utils  # noqa: E402
from moto.ec2.models import ec2_backends  # noqa: E402
from moto.elb.models import elb_backends  # noqa: E402
from moto.elbv2.models import elbv2_backends  # noqa: E402
from moto.iam.models import get_account_id_from, iam_backends  # noqa: E402
from moto.moto_api._internal import mock_random  # noqa: E402
from moto.moto_server.werkzeug_app import (  # noqa: E402
    DomainDispatcherApplication, MotoRequestHandler, create_backend_app)
from moto.s3.models import s3_backends  # noqa: E402
from moto.secretsmanager.models import secretsmanager_backends  # noqa: E402
from moto.ssm.models import ssm_backends  # noqa: E402
from werkzeug.serving import make_server  # noqa: E402

from memory import Memory  # noqa: E402

# moto looks these up anew for each request, which costs a third of its time.
backends.list_of_moto_modules = functools.lru_cache(lambda find=backends.list_of_moto_modules: frozenset(find()))
utils.method_names_from_class = functools.lru_cache(None)(utils.method_names_from_class)
responses.method_names_from_class = utils.method_names_from_class

ACCOUNT, REGION, BUCKET = '123456789012', 'us-east-1', 'capstan-test'
HERE = os.path.dirname(os.path.abspath(__file__))


PROFILES = ['control-plane.cluster-api-provider-aws.sigs.k8s.io', 'nodes.cluster-api-provider-aws.sigs.k8s.io']
# What the instance profiles let a machine do: docs/providers/aws.md. moto asks for rights on everything, not on the one thing.
NODE = json.dumps({'Version': '2012-10-17', 'Statement': [
    {'Effect': 'Allow', 'Resource': '*', 'Action': ['secretsmanager:GetSecretValue', 'ssm:GetParameter', 's3:GetObject']}]})
ADMIN = json.dumps({'Version': '2012-10-17', 'Statement': [{'Effect': 'Allow', 'Action': '*', 'Resource': '*'}]})


class Cloud:
    """moto's own state of an account, past its API."""

    def __init__(self, account=ACCOUNT):
        self.account = account

        def backend(backends):
            return backends[account][REGION]
        self.ec2, self.elb, self.nlb = backend(ec2_backends), backend(elb_backends), backend(elbv2_backends)
        self.secrets, self.ssm, self.s3 = backend(secretsmanager_backends), backend(ssm_backends), s3_backends[account]['aws']
        self.iam = iam_backends[account]['aws']
        if account == ACCOUNT:
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

    def others(self):
        """What is there of the kinds of EC2 and IAM that nobody here makes: attribute and key."""
        known = {'reservations', 'tags', 'volumes', 'groups', 'vpcs', 'vpc_end_points', 'subnets', 'subnet_associations', 'enis',
                 'route_tables', 'internet_gateways', 'key_pairs', 'network_acls', 'nat_gateways', 'attachments'}
        found = set()
        for kind, things in list(vars(self.ec2).items()) + list(vars(self.iam).items()):
            if isinstance(things, dict) and kind not in known:
                found |= {(kind, str(key)) for key in list(things)}
        return found

    def made(self):
        """All that was not there in the beginning, and what AWS made with it."""
        # moto keeps the default access list of a VPC that is gone; AWS does not.
        gone = {('network-acl', name) for name, acl in self.ec2.network_acls.items()
                if acl.default in (True, 'true') and acl.vpc_id not in self.ec2.vpcs}
        new = ['{0} {1}'.format(kind, name or key) for (kind, key), name in self.listing().items()
               if (kind, key) not in self.first | gone]
        return sorted(new + ['{0} {1}'.format(*other) for other in self.others() - self.at_first])

    def shown(self):
        """What a hypervisor and the DNS see."""
        states = {i.id: i for i in self.instances()}
        instances = [{
            'id': i.id, 'state': i._state.name, 'zone': i._placement.zone, 'address': i.private_ip, 'host': i.private_dns_name,
            'type': i.instance_type, 'account': self.account} for i in states.values()]
        balancers = []
        for balancer in self.nlb.load_balancers.values():
            listeners = []
            for listener in balancer.listeners.values():
                groups = [self.nlb.target_groups.get(action.data.get('TargetGroupArn')) for action in listener.default_actions]
                listeners.append({'port': int(listener.port), 'targets': [
                    {'instance': target['Id'], 'port': int(target['Port'])}
                    for group in groups if group for target in group.targets.values()]})
            balancers.append({'name': balancer.dns_name, 'listeners': listeners})
        for balancer in self.elb.load_balancers.values():
            balancers.append({'name': balancer.dns_name, 'listeners': [
                {'port': int(listener.load_balancer_port), 'targets': [
                    {'instance': instance, 'port': int(listener.instance_port)} for instance in balancer.instance_ids]}
                for listener in balancer.listeners]})
        return {'instances': instances, 'balancers': balancers}

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


def users(cloud, policy):
    """Users with keys: two that may do what the provider needs, one that may do nothing, a machine, and somebody who may do all."""
    iam, keys = cloud.iam, {}
    for name in ['provider', 'second', 'nobody', 'node', 'admin']:
        iam.create_user(region_name=REGION, user_name=name, path='/')
        if name in ('provider', 'second'):
            iam.put_user_policy(name, 'provider', policy)
        elif name != 'nobody':
            iam.put_user_policy(name, name, NODE if name == 'node' else ADMIN)
        key = iam.create_access_key(name)
        keys[name] = {'id': key.access_key_id, 'secret': key.secret_access_key}
    for name in PROFILES:
        iam.create_role(name, '{}', '/', None, '', [], '3600')
        iam.create_instance_profile(name, '/', [name])
        pass_role = {'Effect': 'Allow', 'Action': 'iam:PassRole', 'Resource': 'arn:aws:iam::*:role/' + name}
        for user in ('provider', 'second'):
            iam.put_user_policy(user, name, json.dumps({'Version': '2012-10-17', 'Statement': [pass_role]}))
    cloud.at_first, cloud.keys = cloud.others(), keys
    return keys


def fault(status, code, message):
    text = ('<?xml version="1.0"?><Response><Errors><Error><Code>{0}</Code><Message>{1}</Message></Error></Errors>'
            '<Error><Code>{0}</Code><Message>{1}</Message></Error><RequestID>test</RequestID></Response>')
    return status, text.format(code, escape(message)).encode()


class Layer:
    """What moto lacks."""

    TOKENS = ('RunInstances', 'CreateNatGateway', 'CreateRouteTable')

    def __init__(self, app, cloud):
        self.app, self.clouds, self.lock = app, {cloud.account: cloud}, threading.Lock()
        self.tokens, self.faults, self.draining, self.keep, self.requests = {}, [], {}, False, []
        # Keys that become Inactive when such a request has been carried out.
        self.ends = {}

    def cloud_of(self, environ):
        """The account that a request is signed for."""
        key = environ.get('HTTP_AUTHORIZATION', '').partition('Credential=')[2].split('/')[0]
        return key, self.clouds.get(get_account_id_from(key), self.clouds[ACCOUNT])

    def __call__(self, environ, start_response):
        length = int(environ.get('CONTENT_LENGTH') or 0)
        body = environ['wsgi.input'].read(length)
        fields = {}
        if 'form-urlencoded' in environ.get('CONTENT_TYPE', ''):
            fields = dict(parse_qsl(body.decode('utf-8', 'replace'), keep_blank_values=True))
        action = fields.get('Action') or environ.get('HTTP_X_AMZ_TARGET', '').rsplit('.', 1)[-1]
        environ['wsgi.input'] = io.BytesIO(body)
        key, cloud = self.cloud_of(environ)
        request = {'action': action or '{0} {1}'.format(environ['REQUEST_METHOD'], environ['PATH_INFO']), 'key': key,
                   'fields': {name: value for name, value in fields.items() if name != 'UserData'}}

        def respond(status, headers, exc_info=None):
            request['status'] = int(status.split(' ')[0])
            return start_response(status, headers, exc_info)
        with self.lock:
            self.requests.append(request)
            refusal = self.inactive(cloud, key) or self.refuse(cloud, action, fields)
            if refusal is None:
                answer = self.carry_out(cloud, environ, respond, action, fields)
                if action in self.ends:
                    cloud.iam.access_keys[self.ends.pop(action)].status = 'Inactive'
                return answer
        status, text = refusal
        respond('{0} Refused'.format(status), [('Content-Type', 'text/xml'), ('Content-Length', str(len(text)))])
        return [text]

    @staticmethod
    def inactive(cloud, key):
        known = cloud.iam.access_keys.get(key)
        if known is not None and known.status == 'Inactive':
            return fault(401, 'AuthFailure', 'AWS was not able to validate the provided access credentials')
        return None

    def clear(self):
        for cloud in self.clouds.values():
            cloud.clear()
        for kept in (self.tokens, self.draining, self.faults, self.requests):
            kept.clear()

    def refuse(self, cloud, action, fields):
        for wanted in self.faults:
            if wanted['action'] == action and wanted['times'] > 0:
                wanted['times'] -= 1
                return fault(wanted['status'], wanted['code'], 'as the test asked')
        ec2, nlb = cloud.ec2, cloud.nlb
        if action == 'RunInstances':
            size = len(base64.b64decode(fields.get('UserData', '')))
            if size > 16384:
                return fault(400, 'InvalidParameterValue', 'User data is limited to 16384 bytes')
            groups = {name for groups in ec2.groups.values() for name in groups}
            lacking = [it for name, it in fields.items() if '.SecurityGroupId.' in name and it not in groups]
            if lacking:
                return fault(400, 'InvalidGroup.NotFound', 'The security group {0} does not exist'.format(lacking[0]))
        if action == 'DeleteSecurityGroup':
            group = fields.get('GroupId')
            for others in ec2.groups.values():
                for other in others.values():
                    rules = other.ingress_rules + other.egress_rules
                    if other.id != group and any(r.source_group.get('GroupId') == group for r in rules):
                        return fault(400, 'DependencyViolation', '{0} has a dependent object'.format(group))
            if any(g.id == group for i in cloud.live() for n in i.nics.values() for g in n.group_set):
                return fault(400, 'DependencyViolation', '{0} has a dependent object'.format(group))
        if action == 'DeleteSubnet':
            subnet = fields.get('SubnetId')
            used = [i.id for i in cloud.live() if i.subnet_id == subnet]
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
            state = {i.id: i._state.name for i in cloud.instances()}
            if state.get(fields.get('Targets.member.1.Id')) != 'running':
                return fault(400, 'InvalidTarget', 'the instance is not in a state to be registered')
        return None

    def carry_out(self, cloud, environ, start_response, action, fields):
        token = fields.get('ClientToken')
        if action not in self.TOKENS or not token:
            return self.drain(environ, start_response, action, fields)
        same = hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()
        known = self.tokens.get((cloud.account, action, token))
        if known is None:
            seen = {}

            def note(status, headers, exc_info=None):
                seen['status'], seen['headers'] = status, headers
                return start_response(status, headers, exc_info)
            text = b''.join(self.app(environ, note))
            if seen['status'].startswith('200'):
                self.tokens[(cloud.account, action, token)] = (same, seen['headers'], text)
            return [text]
        digest, headers, text = known
        if digest != same:
            status, text = fault(400, 'IdempotentParameterMismatch', 'the token was used with other parameters')
        elif action == 'RunInstances' and not any(i.id.encode() in text for i in cloud.live()):
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


def as_user(url, cloud, body):
    """A request as a user of the account sends it: the answer and a status."""
    keys = cloud.keys[body.get('user', 'admin')]
    client = boto3.client(
        body['service'], endpoint_url=url, region_name=REGION, aws_access_key_id=keys['id'],
        aws_secret_access_key=keys['secret'], config=Config(retries={'total_max_attempts': 1}))
    try:
        answer = getattr(client, body['operation'])(**body.get('params', {}))
    except (BotoCoreError, ClientError) as problem:
        return {'error': str(problem)}, 400
    answer.pop('ResponseMetadata', None)
    # Bytes as the AWS CLI shows them.
    return json.loads(json.dumps(
        answer, default=lambda it: base64.b64encode(it).decode() if isinstance(it, bytes) else str(it))), 200


def control(cloud, layer, memory, url, policy):
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
            parts = self.path.strip('/').split('/')
            clouds = layer.clouds
            if memory and parts == ['left']:
                return self.answer(memory.left(cloud.left))
            if parts[0] in ('left', 'made'):
                with layer.lock:
                    one = clouds[parts[1]] if len(parts) > 1 else cloud
                    return self.answer(getattr(one, parts[0])())
            if parts == ['shown']:
                with layer.lock:
                    all_shown = [one.shown() for one in clouds.values()]
                return self.answer({kind: [it for shown in all_shown for it in shown[kind]] for kind in ('instances', 'balancers')})
            if parts[0] == 'data':
                found = [i.user_data for one in clouds.values() for i in one.instances() if i.id == parts[1]]
                return self.answer(str(found[0] or ''))
            if parts == ['requests']:
                return self.answer(list(layer.requests))
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
            if parts == ['aws']:
                return self.answer(*as_user(url, layer.clouds[body.get('account', ACCOUNT)], body))
            with layer.lock:
                if parts[0] == 'account':
                    other = layer.clouds.setdefault(parts[1], Cloud(parts[1]))
                    return self.answer({'keys': users(other, policy), 'image': other.image})
                if parts == ['clear']:
                    layer.clear()
                elif parts == ['fault']:
                    layer.faults[:] = [one for one in layer.faults if body.get('times') or one['action'] != body['action']]
                    layer.faults.append({'status': 503, 'times': 1, **body})
                elif parts[0] == 'end':
                    layer.ends[parts[1]] = parts[2]
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
        policy = policy.read()
    keys = users(cloud, policy)
    app = DomainDispatcherApplication(create_backend_app)
    layer = Layer(app, cloud)
    memory = Memory(layer, layer.clear) if '--remember' in sys.argv else None
    server = make_server('127.0.0.1', 0, memory or layer, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = 'http://127.0.0.1:{0}'.format(server.server_port)
    side = ThreadingHTTPServer(('127.0.0.1', 0), control(cloud, layer, memory, url, policy))
    threading.Thread(target=side.serve_forever, daemon=True).start()
    print(json.dumps({
        'url': url,
        'control': 'http://127.0.0.1:{0}'.format(side.server_port),
        'keys': keys, 'image': cloud.image, 'bucket': BUCKET, 'given': cloud.given}), flush=True)
    # Whoever started it has ended when its pipe has.
    sys.stdin.buffer.read()


main()
