use capstan_api::time::rfc3339;
use capstan_api::well_known::{CLUSTER_NAME, CONTROL_PLANE};
use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use super::*;
use crate::certificate::public_key_hash;
use crate::certificate::tests::CA;
use crate::contract::{Algorithm, Duty, Effect, Granted, KeyPair, KeyUse, Need, ProviderError, Reason, Violation};
use crate::script::drive::drive;
use crate::testing::{World, workload};
use crate::turn::Outcome;
use crate::view::{Connection, LastTurn};

const GROUP: &str = "bootstrap.cluster.x-k8s.io";

fn served() -> Served {
    Served {
        module: "kubeadm-bootstrap".into(),
        duty: Duty::Bootstrap,
        group: GROUP.into(),
        cluster_kind: None,
        machine_kind: Some("KubeadmConfig".into()),
        consistency_window: 0,
        request_timeout: 0,
        workload_objects: BTreeMap::new(),
        object_references: vec!["/spec/files/0/contentFrom/secret".into()],
        endpoints: Vec::new(),
        credentials: Vec::new(),
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(GROUP, "KubeadmConfig", "n", name)
}

fn cluster_key() -> ObjectKey {
    ObjectKey::new(CLUSTER_GROUP, "Cluster", "n", "c")
}

fn secret_key(name: &str) -> ObjectKey {
    ObjectKey::new("", "Secret", "n", name)
}

/// A cluster with infrastructure, two control-plane machines and a worker.
fn world(initialized: bool) -> World {
    let mut world = World::new();
    world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443},
            "controlPlaneRef": {"apiGroup": "controlplane.cluster.x-k8s.io", "kind": "KubeadmControlPlane", "name": "cp"}},
        "status": {"initialization": {"infrastructureProvisioned": true, "controlPlaneInitialized": initialized}}}));
    world.put(json!({"apiVersion": "controlplane.cluster.x-k8s.io/v1beta2", "kind": "KubeadmControlPlane",
        "metadata": {"name": "cp", "namespace": "n", "uid": "cp-uid"}}));
    for (name, control_plane) in [("a", true), ("b", true), ("w", false)] {
        let mut labels = json!({CLUSTER_NAME: "c"});
        if control_plane {
            labels[CONTROL_PLANE] = "".into();
        }
        let machine = world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": name, "namespace": "n", "labels": labels}, "spec": {"clusterName": "c"}}));
        world.put(json!({"apiVersion": format!("{GROUP}/v1beta2"), "kind": "KubeadmConfig",
            "metadata": {"name": name, "namespace": "n", "ownerReferences": [machine.as_owner(true)]}, "spec": {}}));
        world.now += 1_000;
    }
    world
}

fn authority() -> Need {
    Need::KeyPair(KeyPair {
        algorithm: Algorithm::EcdsaP256,
        purpose: KeyUse::CertificateAuthority,
        common_name: "kubernetes".into(),
        validity_days: 3650,
    })
}

/// A guest that declares these needs and renders what it was granted, by name.
fn guest(needs: Vec<(&str, Need)>) -> impl FnMut(&Call, &Granted) -> Outcome {
    move |call, granted| {
        let reply = match call {
            Call::Needs => Ok(Reply::Needs(needs.iter().map(|(l, n)| ((*l).to_owned(), n.clone())).collect())),
            _ => {
                let names: Vec<&String> = granted.secrets.keys().collect();
                let content = format!("{names:?} {:?}", granted.public_key_hashes);
                Ok(Reply::Rendered(Rendered { format: "cloud-config".into(), content: content.into_bytes() }))
            }
        };
        Outcome { reply, effect: Effect::NotSent }
    }
}

fn turn(world: &mut World, name: &str) -> TurnRequest {
    let plan = decide(&key(name), &served(), world, world.now).unwrap();
    plan.turn.unwrap_or_else(|| panic!("no turn for {name}: {:?}", world.find(&key(name))))
}

fn ready(world: &World, name: &str) -> Condition {
    Condition::of(&world.find(&key(name)).unwrap(), "Ready").unwrap()
}

fn content(world: &World, name: &str) -> String {
    crate::needs::text(&world.find(&secret_key(name)).unwrap(), "value").unwrap()
}

#[test]
fn the_first_machine_initializes_with_certificates_that_belong_to_the_control_plane() {
    let mut world = world(false);
    let request = turn(&mut world, "a");
    assert_eq!(request.input.join_role, Some(JoinRole::ControlPlaneInit));
    let (calls, _) = drive(&mut world, request, guest(vec![("ca", authority())]));
    assert_eq!(calls, [Call::Needs, Call::Render]);
    let ca = world.find(&secret_key("c-ca")).unwrap();
    assert_eq!(ca.controller().unwrap().uid, "cp-uid");
    assert_eq!((ca.str_at("/type"), ca.label(CLUSTER_NAME)), (Some(SECRET_TYPE), Some("c")));
    let hash = public_key_hash(CA.as_bytes()).unwrap();
    assert_eq!(content(&world, "a"), format!("[\"ca/tls.crt\", \"ca/tls.key\"] {{\"ca\": {hash:?}}}"));

    let secret = world.find(&secret_key("a")).unwrap();
    assert_eq!((secret.str_at("/type"), secret.label(CLUSTER_NAME)), (Some(SECRET_TYPE), Some("c")));
    assert_eq!(secret.controller().unwrap().kind, "KubeadmConfig");
    let config = world.find(&key("a")).unwrap();
    assert!(config.bool_at("/status/initialization/dataSecretCreated") && config.bool_at("/status/ready"));
    assert_eq!(config.str_at("/status/dataSecretName"), Some("a"));
    assert_eq!(ready(&world, "a"), Condition::yes("Ready", "Ready"));
    // One Secret of its own and one status; nothing more is to be done.
    assert_eq!(world.writes.len(), 3);
    assert!(decide(&key("a"), &served(), &world, world.now).unwrap().is_empty());
}

#[test]
fn only_one_machine_may_initialize_and_the_others_wait() {
    let mut world = world(false);
    for name in ["b", "w"] {
        let plan = decide(&key(name), &served(), &world, world.now).unwrap();
        assert!(plan.is_empty(), "{name}");
    }
    world.now += 20_000;
    for name in ["b", "w"] {
        let plan = decide(&key(name), &served(), &world, world.now).unwrap();
        assert!(plan.turn.is_none());
        world.apply(&plan);
        assert_eq!(ready(&world, name).reason, "WaitingForControlPlaneInitialized");
    }
    // When the first is being deleted, the next one may.
    let first = ObjectKey::new(CLUSTER_GROUP, "Machine", "n", "a");
    world.edit(&first, |m| m.set("/metadata/finalizers", json!(["f"])));
    world.delete(&first);
    assert_eq!(turn(&mut world, "b").input.join_role, Some(JoinRole::ControlPlaneInit));
}

fn with_ca(world: &mut World) {
    world.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "c-ca", "namespace": "n"},
        "data": {"tls.crt": STANDARD.encode(CA), "tls.key": "a2V5"}}));
}

#[test]
fn those_who_join_get_a_token_and_workers_no_private_key() {
    let mut world = world(true);
    with_ca(&mut world);
    for (name, role, granted) in [
        ("b", JoinRole::ControlPlaneJoin, "[\"ca/tls.crt\", \"ca/tls.key\", \"token\"]"),
        ("w", JoinRole::WorkerJoin, "[\"ca/tls.crt\", \"token\"]"),
    ] {
        let request = turn(&mut world, name);
        assert_eq!(request.input.join_role, Some(role));
        drive(&mut world, request, guest(vec![("ca", authority()), ("token", Need::BootstrapToken)]));
        assert!(content(&world, name).starts_with(granted), "{}", content(&world, name));
        let secret = world.find(&secret_key(name)).unwrap();
        assert_eq!(secret.annotation(TOKEN), Some("abcdef"));
    }
}

#[test]
fn certificates_are_never_made_anew_after_initialization() {
    let mut world = world(true);
    let request = turn(&mut world, "b");
    let (calls, plan) = drive(&mut world, request, guest(vec![("ca", authority())]));
    assert_eq!(calls, [Call::Needs]);
    assert!(world.find(&secret_key("c-ca")).is_none() && world.find(&secret_key("b")).is_none());
    assert_eq!(ready(&world, "b").reason, "CertificateMissing");
    assert!(ready(&world, "b").message.contains("c-ca"));
    assert_eq!(plan.look_again, Some(Duration::from_secs(1)));
}

#[test]
fn a_secret_that_is_there_is_kept_and_a_strangers_is_not_taken() {
    let mut world = world(false);
    world.put(json!({"apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
        "metadata": {"name": "a", "namespace": "n", "labels": {CLUSTER_NAME: "c"}}, "data": {"value": "eA=="}}));
    let plan = decide(&key("a"), &served(), &world, world.now).unwrap();
    assert!(plan.turn.is_none());
    world.apply(&plan);
    assert_eq!(world.find(&key("a")).unwrap().str_at("/status/dataSecretName"), Some("a"));
    assert_eq!(content(&world, "a"), "x");

    world.put(json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": "b", "namespace": "n"}, "data": {"value": "eA=="}}));
    let plan = decide(&key("b"), &served(), &world, world.now).unwrap();
    world.apply(&plan);
    assert_eq!(ready(&world, "b").reason, "DataSecretForeign");
}

#[test]
fn a_token_is_kept_fresh_until_the_node_has_joined() {
    let mut world = world(true);
    let expires = world.now + TOKEN_TTL * 1000;
    world.put(json!({"apiVersion": "v1", "kind": "Secret", "type": SECRET_TYPE,
        "metadata": {"name": "w", "namespace": "n", "labels": {CLUSTER_NAME: "c"},
            "annotations": {TOKEN: "abcdef", TOKEN_EXPIRES: rfc3339(expires)}}, "data": {"value": "eA=="}}));
    let plan = decide(&key("w"), &served(), &world, world.now).unwrap();
    world.apply(&plan);
    assert_eq!(plan.look_again, Some(Duration::from_millis(TOKEN_TTL * 1000 * 2 / 3)));
    world.now += TOKEN_TTL * 700;
    // While the workload cluster does not answer, nothing is known and nothing is written.
    assert!(decide(&key("w"), &served(), &world, world.now).unwrap().is_empty());
    world.connect("n", "c", Connection::Up);
    world.put_in(&workload("n", "c"), token());
    let plan = decide(&key("w"), &served(), &world, world.now).unwrap();
    let [Write::Workload { write, .. }, Write::Patch { key: secret, .. }] = plan.writes.as_slice() else {
        panic!("{plan:?}")
    };
    let WorkloadWrite::Patch { key: token, patch, .. } = write.as_ref() else { panic!("{write:?}") };
    assert_eq!(token.to_string(), "Secret kube-system/bootstrap-token-abcdef");
    let expiration = patch.pointer("/data/expiration").and_then(Value::as_str).unwrap();
    let expected = rfc3339(world.now + TOKEN_TTL * 1000);
    assert_eq!(STANDARD.decode(expiration).unwrap(), expected.as_bytes());
    assert_eq!(secret, &secret_key("w"));
    world.apply(&plan);
    assert!(decide(&key("w"), &served(), &world, world.now).unwrap().is_empty());
    // One that has expired and is still there lives on.
    world.now += TOKEN_TTL * 2000;
    let plan = decide(&key("w"), &served(), &world, world.now).unwrap();
    assert!(matches!(plan.writes.as_slice(), [Write::Workload { .. }, Write::Patch { .. }]), "{plan:?}");
    world.apply(&plan);
    // Once it has joined, nothing is written any more.
    world.now += TOKEN_TTL * 700;
    world.edit(&ObjectKey::new(CLUSTER_GROUP, "Machine", "n", "w"), |m| m.set("/status/nodeRef/name", "w".into()));
    assert!(decide(&key("w"), &served(), &world, world.now).unwrap().is_empty());
}

/// The token of [`guest`] in the workload cluster.
fn token() -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"}, "data": {}})
}

#[test]
fn a_token_that_is_gone_is_made_anew_with_the_data_unless_the_machine_has_booted() {
    let machine = ObjectKey::new(CLUSTER_GROUP, "Machine", "n", "w");
    let provisioned = "/status/initialization/infrastructureProvisioned";
    for booted in [false, true] {
        let mut world = world(true);
        with_ca(&mut world);
        world.connect("n", "c", Connection::Up);
        let request = turn(&mut world, "w");
        let inputs = request.inputs.clone();
        let (_, plan) = drive(&mut world, request, guest(vec![("token", Need::BootstrapToken)]));
        let look_again = plan.look_again.map(|after| after.as_millis() as u64);
        world.last_turns.insert(key("w"), LastTurn { at: world.now, inputs, look_again });
        world.edit(&machine, |m| m.set(provisioned, booted.into()));
        let first = world.find(&secret_key("w")).unwrap();
        // Somebody has removed it, which is seen when it is to be refreshed.
        world.now += TOKEN_TTL * 700;
        let plan = decide(&key("w"), &served(), &world, world.now).unwrap();
        world.apply(&plan);
        if booted {
            assert!(plan.is_empty(), "another one would not reach the machine: {plan:?}");
            continue;
        }
        // The last turn with the same inputs does not stand in the way.
        world.last_turns.get_mut(&key("w")).unwrap().at = world.now - 6_000;
        let request = turn(&mut world, "w");
        drive(&mut world, request, guest(vec![("token", Need::BootstrapToken)]));
        let second = world.find(&secret_key("w")).unwrap();
        assert_ne!(first.uid(), second.uid());
        assert_eq!(second.annotation(TOKEN_EXPIRES), Some(rfc3339(world.now + TOKEN_TTL * 1000).as_str()));
    }
}

#[test]
fn errors_of_the_provider_become_conditions() {
    let invalid = Violation { path: "/spec/format".into(), message: "is unknown".into() };
    for (reply, reason) in [
        (Err(ProviderError::Invalid(vec![invalid])), "InvalidSpec"),
        (Err(ProviderError::Internal(Reason { code: "X".into(), message: "y".into() })), "ProviderInternalError"),
        (Err(ProviderError::Violated("it ran out of memory".into())), "ContractViolated"),
        (Ok(Reply::Parts(Vec::new())), "ContractViolated"),
        (Ok(Reply::Rendered(Rendered { format: "x".into(), content: Vec::new() })), "ContractViolated"),
    ] {
        let mut world = world(false);
        let request = turn(&mut world, "a");
        drive(&mut world, request, |call, _| Outcome {
            reply: if *call == Call::Needs { Ok(Reply::Needs(Vec::new())) } else { reply.clone() },
            effect: Effect::NotSent,
        });
        assert_eq!(ready(&world, "a").reason, reason);
        assert!(world.find(&secret_key("a")).is_none());
    }
}

#[test]
fn secrets_are_granted_only_where_the_spec_names_them_and_tokens_are_made() {
    let mut world = world(false);
    world.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "n"},
        "data": {"k": "eA=="}}));
    world.edit(&key("a"), |o| {
        o.set("/spec/files", json!([{"path": "/x", "contentFrom": {"secret": {"name": "s", "key": "k"}}}]));
    });
    let named = Need::Secret("/spec/files/0/contentFrom/secret".into());
    let other = Need::Secret("/spec/other".into());
    let request = turn(&mut world, "a");
    drive(&mut world, request, guest(vec![("file", named), ("other", other)]));
    assert!(content(&world, "a").starts_with("[\"file/k\"]"), "{}", content(&world, "a"));

    let mut world = self::world(false);
    let request = turn(&mut world, "a");
    drive(&mut world, request, guest(vec![("t", Need::ClusterToken(32))]));
    assert!(content(&world, "a").starts_with("[\"t\"]"), "{}", content(&world, "a"));
}

#[test]
fn nothing_is_rendered_before_the_cluster_has_infrastructure_and_an_endpoint() {
    let mut world = world(false);
    world.now += 20_000;
    world.edit(&cluster_key(), |c: &mut Object| {
        c.remove("/spec/controlPlaneEndpoint");
    });
    let plan = decide(&key("a"), &served(), &world, world.now).unwrap();
    world.apply(&plan);
    assert_eq!(ready(&world, "a").reason, "WaitingForControlPlaneEndpoint");
    world.edit(&cluster_key(), |c| c.set("/status/initialization/infrastructureProvisioned", false.into()));
    let plan = decide(&key("a"), &served(), &world, world.now).unwrap();
    world.apply(&plan);
    assert_eq!(ready(&world, "a").reason, "WaitingForClusterInfrastructure");
}
