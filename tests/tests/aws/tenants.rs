//! Tenants with an identity each on one AWS: neither can touch another's resources by any manifest that it can write. `blue` has
//! the keys of a user of its account, `green` a role of its own account, which is assumed by means of the operator's keys; `red` is
//! another user of blue's account, where AWS itself tells nobody from nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use capstan_tests::ec2::NETWORKS;
use capstan_tests::lab;
use capstan_tests::moto::{ACCOUNT, Asked, Moto, Users};
use capstan_tests::on_both_back_ends;
use capstan_tests::plane::{BackEnd, root};
use capstan_tests::site::{MINUTE, laps, list, merge, told};
use serde_json::{Value, json};

use crate::objects::{self, cluster, endpoint, keys, machine};
use crate::site::{Site, aws, origins, start};

/// A tenant.
struct Tenant {
    /// Its namespace; its identity is called after it.
    namespace: &'static str,
    account: &'static str,
    kind: &'static str,
    /// The addresses of its VPC: all machines are on this one computer.
    cidr: &'static str,
}

const BLUE: Tenant =
    Tenant { namespace: "blue", account: "222222222222", kind: "AWSClusterStaticIdentity", cidr: "10.0.0.0/20" };
const GREEN: Tenant =
    Tenant { namespace: "green", account: "333333333333", kind: "AWSClusterRoleIdentity", cidr: "10.0.16.0/20" };
const RED: Tenant =
    Tenant { namespace: "red", account: "222222222222", kind: "AWSClusterStaticIdentity", cidr: "10.0.32.0/20" };
const TENANTS: [&Tenant; 3] = [&BLUE, &GREEN, &RED];
const SYSTEM: &str = "capstan-system";
/// The role that green lends to the operator.
const ROLE: &str = "arn:aws:iam::333333333333:role/capstan";

impl Tenant {
    fn identity(&self) -> Value {
        json!({"kind": self.kind, "name": self.namespace})
    }

    /// Its cluster of a name, everything of it made.
    fn cluster(&self, name: &str, more: &Value) -> Vec<Value> {
        let mut spec = json!({"spec": {"identityRef": self.identity(), "network": {"vpc": {"cidrBlock": self.cidr}}}});
        merge(&mut spec, more);
        cluster(self.namespace, name, &spec)
    }

    fn machine(&self, name: &str, more: &Value) -> Vec<Value> {
        machine(self.namespace, name, more)
    }

    /// Its cluster `c` and machine `m` as they are, by kind.
    fn own(&self, site: &Site) -> Result<BTreeMap<&'static str, Value>> {
        let get = |kind: &'static str, name: &str| Ok((kind, site.plane.get(&[kind, name, "-n", self.namespace])?));
        [get("awscluster", "c"), get("awsmachine", "m")].into_iter().collect()
    }
}

fn identity(kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// What the operator sets up: accounts, Secrets and identities; and the users of the account of blue and red.
fn operators(moto: &Moto) -> Result<(Vec<Value>, Users)> {
    let (blue, _) = moto.make_account(BLUE.account)?;
    moto.make_account(GREEN.account)?;
    let policy = std::fs::read_to_string(root().join("tests/moto/policy.json"))?;
    let trust = json!({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole",
        "Principal": {"AWS": format!("arn:aws:iam::{ACCOUNT}:user/provider")}}]});
    let role = json!({"RoleName": "capstan", "AssumeRolePolicyDocument": trust.to_string()});
    moto.by_hand(GREEN.account, "iam", "create_role", &role)?;
    let rights = json!({"RoleName": "capstan", "PolicyName": "provider", "PolicyDocument": policy});
    moto.by_hand(GREEN.account, "iam", "put_role_policy", &rights)?;
    // The operator's own keys may assume the role and nothing else.
    let assume = json!({"Version": "2012-10-17", "Statement": [
        {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": ROLE}]});
    let rights = json!({"UserName": "provider", "PolicyName": "provider", "PolicyDocument": assume.to_string()});
    moto.by_hand(ACCOUNT, "iam", "put_user_policy", &rights)?;
    let allowed = |tenant: &Tenant| json!({"list": [tenant.namespace]});
    let objects = vec![
        keys(SYSTEM, "blue", &blue.key("provider")),
        keys(SYSTEM, "red", &blue.key("second")),
        keys(SYSTEM, "operator", &moto.users.key("provider")),
        identity(BLUE.kind, "blue", &json!({"secretRef": "blue", "allowedNamespaces": allowed(&BLUE)})),
        identity(RED.kind, "red", &json!({"secretRef": "red", "allowedNamespaces": allowed(&RED)})),
        identity(BLUE.kind, "operator", &json!({"secretRef": "operator", "allowedNamespaces": allowed(&GREEN)})),
        identity(
            GREEN.kind,
            "green",
            &json!({"roleARN": ROLE, "allowedNamespaces": allowed(&GREEN),
                "sourceIdentityRef": {"kind": BLUE.kind, "name": "operator"}}),
        ),
    ];
    Ok((objects, blue))
}

/// Everything that an account has, as AWS tells it, thing by thing.
fn account(moto: &Moto, account: &str) -> Result<Vec<Value>> {
    let mut answers = crate::borrowed::told(moto, account)?;
    for (service, operation) in [
        ("ec2", "describe_instances"),
        ("ec2", "describe_volumes"),
        ("ec2", "describe_nat_gateways"),
        ("ec2", "describe_addresses"),
        ("secretsmanager", "list_secrets"),
    ] {
        answers.push(moto.by_hand(account, service, operation, &json!({}))?);
    }
    let groups = moto.by_hand(account, "elbv2", "describe_target_groups", &json!({}))?;
    for group in groups["TargetGroups"].as_array().into_iter().flatten() {
        let arn = json!({"TargetGroupArn": group["TargetGroupArn"]});
        let health = moto.by_hand(account, "elbv2", "describe_target_health", &arn)?;
        answers.push(json!({"Health": [{"of": arn, "is": health}]}));
    }
    let lists = answers.iter().filter_map(Value::as_object).flat_map(|answer| answer.values());
    Ok(lists.filter_map(Value::as_array).flatten().cloned().collect())
}

/// What the accounts of all tenants have.
fn accounts(site: &Site) -> Result<Vec<Value>> {
    Ok([account(&site.server, BLUE.account)?, account(&site.server, GREEN.account)?].concat())
}

/// All that was there is there, and nobody has changed anything of it.
fn untouched(site: &Site, before: &[Value]) -> Result<()> {
    let now = accounts(site)?;
    let lost: Vec<&Value> = before.iter().filter(|thing| !now.contains(thing)).collect();
    ensure!(lost.is_empty(), "this was there: {lost:#?}");
    Ok(())
}

/// By tenant, the ids of what was made for it.
fn ids_of_tenants(site: &Site, things: &[Value]) -> Result<BTreeMap<&'static str, BTreeSet<String>>> {
    fn texts<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
        match value {
            Value::String(text) => found.push(text),
            Value::Array(all) => all.iter().for_each(|value| texts(value, found)),
            Value::Object(all) => all.values().for_each(|value| texts(value, found)),
            _ => {}
        }
    }
    let kinds = ["i-", "vpc-", "subnet-", "sg-", "rtb-", "igw-", "nat-", "eipalloc-", "vol-", "arn:aws:elasticload"];
    let mut found: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for tenant in TENANTS {
        let keys: Vec<String> = tenant
            .own(site)?
            .values()
            .map(|object| object["metadata"]["annotations"]["capstan.dev/owner-key"].as_str().unwrap_or("none").into())
            .collect();
        let mut ids = Vec::new();
        for thing in things {
            let mut own = Vec::new();
            texts(thing, &mut own);
            if own.iter().any(|text| keys.iter().any(|key| key == text)) {
                ids.extend(own);
            }
        }
        let is_id = |text: &str| {
            let rest = kinds.iter().find_map(|kind| text.strip_prefix(kind));
            rest.is_some_and(|rest| text.starts_with("arn:") || rest.chars().all(|c| c.is_ascii_hexdigit()))
        };
        let ids = ids.into_iter().filter(|text| is_id(text));
        found.insert(tenant.namespace, ids.map(str::to_owned).collect());
    }
    for (tenant, ids) in &found {
        ensure!(ids.len() > 10, "{tenant} has only {ids:?}");
        let others = found.iter().filter(|(other, _)| *other != tenant);
        ensure!(others.clone().all(|(_, others)| others.is_disjoint(ids)), "{found:?} are not apart");
    }
    Ok(found)
}

on_both_back_ends!(tenants_cannot_touch_each_other);

fn tenants_cannot_touch_each_other(back_end: BackEnd) -> Result<()> {
    if !lab::enter(back_end, "tenants::tenants_cannot_touch_each_other", &NETWORKS)? {
        return Ok(());
    }
    let (moto, hypervisor) = aws()?;
    let mut objects = vec![origins(back_end, &moto)?];
    objects.extend(objects::namespace(SYSTEM));
    let (of_operator, users) = operators(&moto)?;
    objects.extend(of_operator);
    for tenant in TENANTS {
        objects.extend(objects::namespace(tenant.namespace));
        objects.extend(tenant.cluster("c", &json!({})));
        // Its first-boot data stays in a secret, as it never becomes a Node.
        let kept = json!({"spec": {"cloudInit": {"secureSecretsBackend": "secrets-manager"}}});
        objects.extend(tenant.machine("m", &kept));
    }
    let mut site = start(back_end, moto, hypervisor, &list(&objects))?;
    let mut lap = laps();
    site.plane.wait_applied(MINUTE)?;
    for tenant in TENANTS {
        site.says(tenant.namespace, "awsmachine", "m", &["True"])?;
        site.says(tenant.namespace, "awscluster", "c", &["True"])?;
    }
    lap("a cluster of each tenant");
    // The clusters of blue and red are called the same in the same account.
    let left = || Ok::<_, anyhow::Error>([site.server.left(GREEN.account)?, site.server.left(BLUE.account)?]);
    let there = left()?;
    ensure!(there[0].len() * 2 == there[1].len(), "{there:#?}");
    let before = accounts(&site)?;
    let ids = ids_of_tenants(&site, &before)?;
    let asked = site.server.requests()?.len();

    let (mut expected, mut objects) = (Vec::new(), Vec::new());
    for (attacker, victim) in [(&BLUE, &GREEN), (&GREEN, &BLUE), (&RED, &BLUE)] {
        for (name, words, written) in tries(&site, attacker, victim)? {
            let kind = written.last().and_then(|object| object["kind"].as_str()).unwrap_or_default().to_lowercase();
            expected.push((attacker.namespace, kind, name, words));
            objects.extend(written);
        }
    }
    site.apply(&list(&objects))?;
    lap("tried");
    let unanswered = || -> Result<Vec<String>> {
        let objects = site.plane.items(&["awsmachines,awsclusters", "-A"])?;
        let lacking = expected.iter().filter_map(|(namespace, kind, name, words)| {
            let object = objects.iter().find(|object| {
                let is = |field: &str, wanted: &str| object["metadata"][field] == wanted;
                is("namespace", namespace)
                    && is("name", name)
                    && object["kind"].as_str().is_some_and(|of| of.to_lowercase() == *kind)
            });
            let told = object.map(|object| told(object, "Ready")).unwrap_or_default();
            let said = words.iter().all(|word| told.contains(word));
            (!said).then(|| format!("{namespace}/{name} is to tell {words:?} and tells {told:?}"))
        });
        Ok(lacking.collect())
    };
    let answered = site.until(2 * MINUTE, "each try is answered", || Ok(unanswered()?.is_empty()));
    answered.with_context(|| format!("{:#?}", unanswered().unwrap_or_default()))?;
    lap("answered");
    untouched(&site, &before)?;
    lent_to_nobody_else(&site)?;
    lap("lent to nobody else");

    // What was tried goes without taking anything of the other's along.
    for tenant in TENANTS {
        for (owner, of) in [("machine", "awsmachine"), ("cluster", "awscluster")] {
            let own = expected.iter().filter(|(namespace, kind, ..)| *namespace == tenant.namespace && kind == of);
            let mut delete = vec!["delete", owner, "-n", tenant.namespace, "--wait=false"];
            delete.extend(own.map(|(_, _, name, _)| *name));
            site.plane.kubectl(&delete)?;
        }
    }
    site.until(MINUTE, "only what was there first is left", || {
        Ok(site.plane.items(&["awsmachines,awsclusters", "-A"])?.len() == 2 * TENANTS.len())
    })?;
    untouched(&site, &before)?;
    ensure!(left()? == there, "{:#?} was {there:#?}", left()?);
    lap("taken back");
    // Nobody has even asked for a change of what is another's.
    let changes: Vec<Asked> = site.server.requests()?.into_iter().skip(asked).filter(changes).collect();
    ensure!(changes.len() > 100, "only {} requests have changed anything", changes.len());
    for change in &changes {
        let who = if change.key == users.key("provider").id {
            &BLUE
        } else if change.key == users.key("second").id {
            &RED
        } else {
            &GREEN
        };
        let fields = change.fields.to_string();
        let others = ids.iter().filter(|(tenant, _)| **tenant != who.namespace).flat_map(|(_, ids)| ids);
        let touched: Vec<&String> = others.filter(|id| fields.contains(&format!("\"{id}\""))).collect();
        ensure!(touched.is_empty(), "{}: {change:?} names {touched:?}", who.namespace);
    }

    for tenant in TENANTS {
        site.plane.kubectl(&["delete", "machine", "m", "-n", tenant.namespace, "--wait=false"])?;
        site.plane.kubectl(&["delete", "cluster", "c", "-n", tenant.namespace, "--wait=false"])?;
    }
    for tenant in [&BLUE, &GREEN] {
        site.until(MINUTE, "nothing is left", || Ok(site.server.left(tenant.account)?.is_empty()))?;
    }
    ensure!(site.hypervisor.problems().is_empty(), "{:?}", site.hypervisor.problems());
    lap("nothing left");
    Ok(())
}

/// Whether a request asks for a change.
fn changes(asked: &Asked) -> bool {
    let reads = ["Describe", "Get", "List", "AssumeRole", "GET ", "HEAD "];
    !reads.iter().any(|start| asked.action.starts_with(start))
}

/// What an identity lends goes nowhere that a tenant says, be it a service or where roles are assumed; nobody is even asked there.
fn lent_to_nobody_else(site: &Site) -> Result<()> {
    let trap = TcpListener::bind("127.0.0.1:0")?;
    trap.set_nonblocking(true)?;
    let url = format!("http://{}", trap.local_addr()?);
    let is_quiet = || -> Result<()> {
        ensure!(trap.accept().is_err(), "somebody has called where a tenant's Endpoint leads");
        Ok(())
    };
    let touch = |tenant: &Tenant, what: &str| {
        let touched = format!("touched={what}");
        site.plane.kubectl(&["annotate", "--overwrite", "awscluster", "c", "-n", tenant.namespace, &touched]).map(drop)
    };
    let redirected = |tenant: &Tenant, service: &str| {
        let mut endpoint = endpoint(tenant.namespace, service, Some(&url), "none");
        endpoint["spec"].as_object_mut().map(|spec| spec.remove("credential"));
        endpoint
    };
    let refused = "the operator's identity, which the object names, is not used there";
    for tenant in [&GREEN, &RED] {
        site.apply(&list(&[redirected(tenant, "ec2")]))?;
        touch(tenant, "ec2")?;
        site.says(tenant.namespace, "awscluster", "c", &["False", refused])?;
        is_quiet()?;
        // With an own credential it may lead there; another namespace's Secret is none, nor is that of an identity.
        for secret in ["boot-of-another", "green", "red"] {
            site.apply(&list(&[endpoint(tenant.namespace, "ec2", Some(&url), secret)]))?;
            let words = format!("there is no Secret {}/{secret}", tenant.namespace);
            site.says(tenant.namespace, "awscluster", "c", &["False", &words])?;
        }
        is_quiet()?;
        site.plane.kubectl(&["delete", "endpoints.capstan.dev", "ec2", "-n", tenant.namespace])?;
        site.says(tenant.namespace, "awscluster", "c", &["True"])?;
    }
    // The role is assumed anew, as its identity says something else.
    site.apply(&list(&[redirected(&GREEN, "sts")]))?;
    let other = json!({"spec": {"sessionName": "another"}}).to_string();
    site.plane.kubectl(&["patch", &GREEN.kind.to_lowercase(), "green", "--type=merge", "-p", &other])?;
    touch(&GREEN, "sts")?;
    site.says("green", "awscluster", "c", &["False", refused])?;
    is_quiet()?;
    site.plane.kubectl(&["delete", "endpoints.capstan.dev", "sts", "-n", "green"])?;
    site.says("green", "awscluster", "c", &["True"])
}

/// A name for what is tried, the words that are told of it, and the objects.
type Try = (&'static str, Vec<String>, Vec<Value>);

/// What a tenant may write to get hold of the other's resources: a name, what is told of it, and the objects, of which the last
/// one tells. Within an account AWS shows all, so there it is told whose it is; in another account there is no such thing.
fn tries(site: &Site, attacker: &Tenant, victim: &Tenant) -> Result<Vec<Try>> {
    let of_victim = victim.own(site)?;
    let text = |object: &Value, at: &str| {
        object.pointer(at).and_then(Value::as_str).map(str::to_owned).with_context(|| format!("no {at}"))
    };
    let (its_cluster, its_machine) = (&of_victim["awscluster"], &of_victim["awsmachine"]);
    let provider_id = text(its_machine, "/spec/providerID")?;
    let instance = provider_id.rsplit('/').next().unwrap_or_default().to_owned();
    let vpc = text(its_cluster, "/status/vpcID")?;
    let group = text(its_cluster, "/status/networkStatus/securityGroups/node/id")?;
    let balancer = text(its_cluster, "/status/networkStatus/apiServerElb/name")?;
    let filters = json!({"Filters": [{"Name": "vpc-id", "Values": [vpc]}]});
    let subnets = site.server.by_hand(victim.account, "ec2", "describe_subnets", &filters)?;
    let subnet = text(&subnets, "/Subnets/0/SubnetId")?;
    let secrets = site.server.by_hand(victim.account, "secretsmanager", "list_secrets", &json!({}))?;
    let key = text(its_machine, "/metadata/annotations/capstan.dev~1owner-key")?;
    let mut names = secrets["SecretList"].as_array().into_iter().flatten().filter_map(|secret| secret["Name"].as_str());
    let secret = names.find(|name| name.contains(&key)).context("the victim has no secret")?;
    let prefix = secret.strip_suffix("-0").context("a number")?.to_owned();
    let copied = |object: &Value| {
        let mut copied = json!({"metadata": {"annotations": object["metadata"]["annotations"]}});
        copied["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"] = Value::Null;
        copied
    };
    let by_vpc = json!([{"name": "vpc-id", "values": [vpc]}]);

    let same = attacker.account == victim.account;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let either = |within: &[&str], beyond: &[&str]| words(if same { within } else { beyond });
    let lent = format!("may not be used from namespace {}", attacker.namespace);
    let another = "was made for another cluster";
    let machine = |name: &'static str, words: Vec<String>, spec: Value| {
        (name, words, attacker.machine(name, &json!({"spec": spec})))
    };
    let cluster = |name: &'static str, words: Vec<String>, spec: Value| {
        (name, words, attacker.cluster(name, &json!({"spec": spec})))
    };
    let balanced = |more: Value| json!({"controlPlaneLoadBalancer": more});

    let mut all = vec![
        // Beside all that is not, what is allowed works.
        ("allowed", words(&["True"]), attacker.machine("allowed", &json!({}))),
        ("its-key", words(&["OwnerKeyNotUnique"]), attacker.machine("its-key", &copied(its_machine))),
        ("its-cluster-key", words(&["OwnerKeyNotUnique"]), attacker.cluster("its-cluster-key", &copied(its_cluster))),
        machine(
            "its-provider-id",
            either(&["InstanceForeign", &instance], &["InstanceTerminated", &instance]),
            json!({"providerID": provider_id}),
        ),
        machine(
            "its-instance-id",
            either(&["InstanceForeign", &instance], &["InstanceTerminated", &instance]),
            json!({"instanceID": instance}),
        ),
        machine(
            "its-subnet",
            either(&["SubnetForeign", &subnet], &["/spec/subnet/id", "no such subnet"]),
            json!({"subnet": {"id": subnet}}),
        ),
        machine(
            "its-subnets",
            either(&["SubnetForeign"], &["/spec/subnet/filters", "no such subnet"]),
            json!({"subnet": {"filters": by_vpc}}),
        ),
        machine(
            "its-group",
            either(&["SecurityGroupForeign", &group], &["/spec/additionalSecurityGroups", &group]),
            json!({"additionalSecurityGroups": [{"id": group}]}),
        ),
        machine(
            "its-groups",
            either(&["SecurityGroupForeign"], &["/spec/additionalSecurityGroups/0/filters", "no security group"]),
            json!({"additionalSecurityGroups": [{"filters": by_vpc}]}),
        ),
        machine(
            "its-group-as-own",
            either(&["SecurityGroupForeign", &group], &["/spec/securityGroupOverrides", &group]),
            json!({"securityGroupOverrides": {"node": group}}),
        ),
        cluster(
            "its-identity",
            words(&[&format!("{} {}", victim.kind, victim.namespace), &lent]),
            json!({"identityRef": victim.identity()}),
        ),
        cluster(
            "controllers-identity",
            words(&["False", "nothing says as whom"]),
            json!({"identityRef": {"kind": "AWSClusterControllerIdentity", "name": "default"}}),
        ),
        cluster(
            "its-vpc",
            either(&[&vpc, another], &[&vpc, "the region has no VPC"]),
            json!({"network": {"vpc": {"id": vpc, "cidrBlock": null}}}),
        ),
        cluster(
            "its-group-in-cluster",
            either(&[&group, another], &[&group, "the region has no security group"]),
            json!({"network": {"securityGroupOverrides": {"node": group}}}),
        ),
        cluster(
            "its-group-before-api",
            either(&["SecurityGroupForeign", &group], &["additionalSecurityGroups", &group]),
            balanced(json!({"additionalSecurityGroups": [group]})),
        ),
        cluster(
            "its-subnet-before-api",
            either(&["SubnetForeign", &subnet], &["/spec/controlPlaneLoadBalancer/subnets", &subnet]),
            balanced(json!({"subnets": [subnet]})),
        ),
    ];
    if attacker.namespace != GREEN.namespace {
        let operators = json!({"identityRef": {"kind": BLUE.kind, "name": "operator"}});
        let wanted = words(&[&format!("{} operator", BLUE.kind), &lent]);
        all.push(cluster("operators-identity", wanted, operators));
    }
    if same {
        let kept = json!({"cloudInit": {"secureSecretsBackend": "secrets-manager", "secretPrefix": prefix}});
        all.extend([
            machine("its-secret", words(&[secret, "which somebody else has"]), kept),
            cluster("its-load-balancer", words(&[&balancer, another]), balanced(json!({"name": balancer}))),
        ]);
        return Ok(all);
    }
    let image = site.server.by_hand(victim.account, "ec2", "describe_images", &json!({"Owners": ["819546954734"]}))?;
    let image = image["Images"].as_array().into_iter().flatten();
    let image = image.filter(|image| image["Name"].as_str().is_some_and(|name| name.contains("v1.34.1-1750000000")));
    let image = image.filter_map(|image| image["ImageId"].as_str()).next().context("no image")?.to_owned();
    all.push(machine("its-image", words(&["/spec/ami/id", &image]), json!({"ami": {"id": image}})));
    Ok(all)
}
