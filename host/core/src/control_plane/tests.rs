use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capstan_api::well_known::{
    CLONED_FROM_GROUP_KIND, CLONED_FROM_NAME, CONTROL_PLANE, CONTROL_PLANE_NAME, MACHINE_FINALIZER,
};

use super::*;
use crate::certificate::tests::CA;
use crate::contract::*;
use crate::plan::WorkloadWrite;
use crate::script::drive::drive;
use crate::testing::{World, workload};
use crate::turn::{Call, Outcome, Reply};
use crate::view::Connection;

const GROUP: &str = "controlplane.cluster.x-k8s.io";
const INFRA: &str = "infrastructure.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";

fn served() -> Served {
    let config = WorkloadObject {
        group: String::new(),
        version: "v1".into(),
        kind: "ConfigMap".into(),
        namespace: "kube-system".into(),
        name: "kubeadm-config".into(),
    };
    Served {
        module: "kubeadm-control-plane".into(),
        duty: Duty::ControlPlane,
        group: GROUP.into(),
        cluster_kind: None,
        machine_kind: Some("KubeadmControlPlane".into()),
        consistency_window: 0,
        request_timeout: 0,
        workload_objects: BTreeMap::from([("config".to_owned(), config)]),
        object_references: Vec::new(),
        endpoints: Vec::new(),
        credentials: Vec::new(),
    }
}

fn key() -> ObjectKey {
    ObjectKey::new(GROUP, "KubeadmControlPlane", "n", "cp")
}

fn cluster_key() -> ObjectKey {
    ObjectKey::new(CLUSTER_GROUP, "Cluster", "n", "c")
}

fn secret_key(name: &str) -> ObjectKey {
    ObjectKey::new("", "Secret", "n", name)
}

fn world() -> World {
    let mut world = World::new();
    let cluster = world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {"controlPlaneEndpoint": {"host": "10.0.0.1", "port": 6443}},
        "status": {"initialization": {"infrastructureProvisioned": true},
            "failureDomains": [{"name": "a", "controlPlane": true}, {"name": "b", "controlPlane": false}]}}));
    world.put(json!({"apiVersion": format!("{INFRA}/v1"), "kind": "ImaginaryMachineTemplate",
        "metadata": {"name": "t", "namespace": "n"},
        "spec": {"template": {"metadata": {"labels": {"tier": "x"}}, "spec": {"size": 2}}}}));
    world.put(json!({"apiVersion": format!("{GROUP}/v1beta2"), "kind": "KubeadmControlPlane",
        "metadata": {"name": "cp", "namespace": "n", "ownerReferences": [cluster.as_owner(false)]},
        "spec": {"replicas": 1, "version": "v1.34.0", "machineTemplate": {
            "metadata": {"labels": {"team": "red"}, "annotations": {"note": "y"}},
            "spec": {"infrastructureRef": {"apiGroup": INFRA, "kind": "ImaginaryMachineTemplate", "name": "t"},
                "deletion": {"nodeDrainTimeoutSeconds": 5}}}}}));
    world
}

fn decision(step: ControlPlaneStep) -> ControlPlaneDecision {
    ControlPlaneDecision {
        step,
        look_again_after: None,
        conditions: Vec::new(),
        status: json!({}),
        memory: Value::Null,
    }
}

fn create() -> ControlPlaneStep {
    ControlPlaneStep::CreateMachine {
        failure_domain: Some("a".into()),
        kubernetes_version: "v1.34.0".into(),
        bootstrap: json!({"verbosity": 3}),
    }
}

/// A planner that needs an authority and decides this.
fn planner(decision: ControlPlaneDecision) -> impl FnMut(&Call, &Granted) -> Outcome {
    let authority = Need::KeyPair(KeyPair {
        algorithm: Algorithm::EcdsaP256,
        purpose: KeyUse::CertificateAuthority,
        common_name: "kubernetes".into(),
        validity_days: 3650,
    });
    move |call, _| Outcome {
        reply: Ok(match call {
            Call::Needs => Reply::Needs(vec![("ca".into(), authority.clone())]),
            _ => Reply::Decision(decision.clone()),
        }),
        effect: Effect::NotSent,
    }
}

/// Decides, applies, and takes the turn if there is one.
fn once(world: &mut World, decision: ControlPlaneDecision) -> (Vec<Call>, Plan) {
    let mut plan = super::decide(&key(), &served(), world, world.now).unwrap();
    world.apply(&plan);
    match plan.turn.take() {
        Some(turn) => drive(world, turn, planner(decision)),
        None => (Vec::new(), plan),
    }
}

fn condition(world: &World, kind: &str) -> Condition {
    Condition::of(&world.find(&key()).unwrap(), kind).unwrap()
}

fn with_machine(world: &mut World) -> ObjectKey {
    once(world, decision(create()));
    world.all("Machine")[0].key()
}

#[test]
fn a_machine_is_made_whole_and_everything_is_owned() {
    let mut world = world();
    let (calls, _) = once(&mut world, decision(create()));
    assert_eq!(calls, [Call::Needs, Call::PlanControlPlane]);
    let object = world.find(&key()).unwrap();
    assert_eq!(object.finalizers(), ["kubeadm.controlplane.cluster.x-k8s.io"]);

    let machine = world.all("Machine")[0].clone();
    assert!(machine.name().starts_with("cp-") && machine.name().len() == 8, "{}", machine.name());
    assert_eq!(machine.controller().unwrap().uid, object.uid());
    assert_eq!(machine.finalizers(), [MACHINE_FINALIZER]);
    let labels = [(CONTROL_PLANE, ""), (CONTROL_PLANE_NAME, "cp"), (CLUSTER_NAME, "c"), ("team", "red")];
    let name = machine.name();
    assert_eq!(
        machine.at("/spec"),
        Some(&json!({"clusterName": "c", "version": "v1.34.0",
            "bootstrap": {"configRef": {"apiGroup": BOOTSTRAP, "kind": "KubeadmConfig", "name": name}},
            "infrastructureRef": {"apiGroup": INFRA, "kind": "ImaginaryMachine", "name": name},
            "failureDomain": "a", "deletion": {"nodeDrainTimeoutSeconds": 5}}))
    );
    let infra = world.find(&ObjectKey::new(INFRA, "ImaginaryMachine", "n", name)).unwrap();
    assert_eq!(infra.at("/spec"), Some(&json!({"size": 2})));
    assert_eq!(infra.annotation(CLONED_FROM_NAME), Some("t"));
    let from = "ImaginaryMachineTemplate.infrastructure.cluster.x-k8s.io";
    assert_eq!(infra.annotation(CLONED_FROM_GROUP_KIND), Some(from));
    assert_eq!(infra.label("tier"), Some("x"));
    let config = world.find(&ObjectKey::new(BOOTSTRAP, "KubeadmConfig", "n", name)).unwrap();
    assert_eq!(config.api_version(), "bootstrap.cluster.x-k8s.io/v1beta2");
    assert_eq!(config.at("/spec"), Some(&json!({"verbosity": 3})));
    for made in [&machine, &infra, &config] {
        for (label, value) in labels {
            assert_eq!(made.label(label), Some(value), "{label} of {}", made.kind());
        }
        assert_eq!(made.annotation("note"), Some("y"));
    }
    for made in [&infra, &config] {
        assert_eq!(made.controller().unwrap().uid, machine.uid());
    }
    // The template goes with the cluster.
    let template = world.find(&ObjectKey::new(INFRA, "ImaginaryMachineTemplate", "n", "t")).unwrap();
    assert_eq!(template.owner_references()[0].kind, "Cluster");
    assert_eq!(template.owner_references()[0].controller, None);
}

#[test]
fn the_planner_is_shown_its_members() {
    let mut world = world();
    let machine = with_machine(&mut world);
    world.edit(&machine, |m| {
        m.set("/status/nodeRef/name", "node".into());
        m.set("/status/conditions", json!([{"type": "Ready", "status": "True", "reason": "Ready"}]));
    });
    world.now += 5_000;
    let plan = super::decide(&key(), &served(), &world, world.now).unwrap();
    let shown = plan.turn.unwrap().input.control_plane.unwrap();
    assert_eq!((shown.replicas, shown.initialized, shown.failure_domains), (1, false, vec!["a".to_owned()]));
    let [member] = shown.members.as_slice() else { panic!("{:?}", shown.members) };
    assert_eq!(member.name, machine.name);
    assert!(member.ready && !member.deleting && member.age >= 5_000);
    assert_eq!(member.cloned_from.as_deref(), Some("t"));
    assert_eq!(member.bootstrap, Some(json!({"verbosity": 3})));
}

#[test]
fn a_member_is_healthy_once_its_node_runs_what_the_others_run() {
    let mut world = world();
    with_machine(&mut world);
    world.now += 1_000;
    with_machine(&mut world);
    for (at, machine) in world.all("Machine").iter().enumerate() {
        world.edit(&machine.key(), |m| {
            m.set("/status/nodeRef/name", format!("node-{at}").into());
            m.set("/status/conditions", json!([{"type": "Ready", "status": "True", "reason": "Ready"}]));
        });
    }
    let pod = |component: &str, node: &str, ready: &str| {
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{component}-{node}"), "namespace": "kube-system",
                "labels": {"tier": "control-plane", "component": component},
                "annotations": {"kubernetes.io/config.mirror": "x"}},
            "spec": {"nodeName": node}, "status": {"conditions": [{"type": "Ready", "status": ready}]}})
    };
    let told = |world: &World| -> Vec<String> {
        let plan = super::decide(&key(), &served(), world, world.now).unwrap();
        let members = plan.turn.unwrap().input.control_plane.unwrap().members;
        members.into_iter().map(|m| m.unhealthy.iter().map(|r| r.code.as_str()).collect::<String>()).collect()
    };
    assert_eq!(told(&world), ["ComponentsUnknown", "ComponentsUnknown"]);
    world.connect("n", "c", Connection::Up);
    assert_eq!(told(&world), ["", ""], "nothing is expected where nobody runs anything");
    let place = workload("n", "c");
    world.put_in(&place, pod("etcd", "node-0", "True"));
    world.put_in(&place, pod("kube-apiserver", "node-0", "True"));
    assert_eq!(told(&world), ["", "ComponentMissingComponentMissing"]);
    world.put_in(&place, pod("etcd", "node-1", "True"));
    world.put_in(&place, pod("kube-apiserver", "node-1", "False"));
    assert_eq!(told(&world), ["", "ComponentNotReady"]);
    world.put_in(&place, pod("kube-apiserver", "node-1", "True"));
    assert_eq!(told(&world), ["", ""]);
}

#[test]
fn certificates_come_first_and_then_the_kubeconfig() {
    let mut world = world();
    world.edit(&cluster_key(), |c| c.set("/status/initialization/infrastructureProvisioned", false.into()));
    // Before there is infrastructure, certificates are made and nothing is planned.
    let (calls, _) = once(&mut world, decision(create()));
    assert_eq!(calls, [Call::Needs]);
    let ca = world.find(&secret_key("c-ca")).unwrap();
    assert_eq!(ca.controller().unwrap().kind, "KubeadmControlPlane");
    assert!(world.find(&secret_key("c-kubeconfig")).is_none() && world.all("Machine").is_empty());
    world.edit(&cluster_key(), |c| c.set("/status/initialization/infrastructureProvisioned", true.into()));
    let plan = super::decide(&key(), &served(), &world, world.now).unwrap();
    let minted = plan.writes.iter().find_map(|w| if let Write::MintKubeconfig(k) = w { Some(k) } else { None });
    let minted = minted.unwrap();
    assert_eq!((minted.server.as_str(), minted.ca_secret.as_str()), ("https://10.0.0.1:6443", "c-ca"));
    assert_eq!((minted.secret.name(), minted.secret.str_at("/type")), ("c-kubeconfig", Some(SECRET_TYPE)));
}

/// Field case A6.
#[test]
fn a_kubeconfig_is_renewed_at_half_life_and_a_users_is_left_alone() {
    let from = crate::certificate::validity(CA.as_bytes()).unwrap().0;
    let day = 86_400_000;
    for (ours, age, renewed) in [(true, 30, false), (true, 210, true), (false, 210, false)] {
        let mut world = world();
        once(&mut world, decision(ControlPlaneStep::Settled));
        let object = world.find(&key()).unwrap();
        let mut secret = json!({"apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "c-kubeconfig", "namespace": "n", "labels": {CLUSTER_NAME: "c"}},
            "data": {"value": STANDARD.encode(format!("client-certificate-data: {}\n", STANDARD.encode(CA)))}});
        if ours {
            secret["metadata"]["ownerReferences"] = json!([object.as_owner(true)]);
        }
        world.put(secret);
        let plan = super::decide(&key(), &served(), &world, from + age * day).unwrap();
        let minted = plan.writes.iter().any(|write| matches!(write, Write::MintKubeconfig(_)));
        assert_eq!(minted, renewed, "ours: {ours}, {age} days");
    }
}

#[test]
fn it_is_initialized_once_kubeadm_has_left_its_configuration() {
    let mut world = world();
    let machine = with_machine(&mut world);
    once(&mut world, decision(ControlPlaneStep::Settled));
    assert!(!world.find(&key()).unwrap().bool_at("/status/initialization/controlPlaneInitialized"));
    world.connect("n", "c", Connection::Up);
    world.put_in(
        &workload("n", "c"),
        json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "kubeadm-config", "namespace": "kube-system"}, "data": {"x": "y"}}),
    );
    once(&mut world, decision(ControlPlaneStep::Settled));
    let object = world.find(&key()).unwrap();
    assert!(object.bool_at("/status/initialization/controlPlaneInitialized"));
    assert_eq!(object.int_at("/status/replicas"), Some(1));
    assert_eq!(condition(&world, "Available").reason, "NotAvailable");
    // It stays so when the workload cluster cannot be asked, and is available with a ready machine.
    world.connect("n", "c", Connection::Down { since: 0, reason: "x".into() });
    world.edit(&machine, |m| {
        m.set("/status/nodeRef/name", "node".into());
        m.set(
            "/status/conditions",
            json!([{"type": "Ready", "status": "True", "reason": "Ready"},
            {"type": "Available", "status": "True", "reason": "Available"}]),
        );
    });
    once(&mut world, decision(ControlPlaneStep::Settled));
    let object = world.find(&key()).unwrap();
    assert!(object.bool_at("/status/initialization/controlPlaneInitialized"));
    assert_eq!(condition(&world, "Available"), Condition::yes("Available", "Available"));
    assert_eq!(
        (object.int_at("/status/readyReplicas"), object.int_at("/status/availableReplicas")),
        (Some(1), Some(1))
    );
    assert_eq!(object.int_at("/status/upToDateReplicas"), Some(1));
    assert_eq!(object.at("/status/versions"), Some(&json!([{"version": "v1.34.0", "replicas": 1}])));
    world.writes.clear();
    once(&mut world, decision(ControlPlaneStep::Settled));
    assert_eq!(world.writes, []);
}

#[test]
fn the_planners_memory_is_shown_again() {
    let mut world = world();
    let remembered = ControlPlaneDecision { memory: json!({"round": 2}), ..decision(ControlPlaneStep::Settled) };
    once(&mut world, remembered.clone());
    once(&mut world, remembered.clone());
    let plan = super::decide(&key(), &served(), &world, world.now).unwrap();
    assert_eq!(plan.turn.unwrap().input.control_plane.unwrap().memory, json!({"round": 2}));
    world.writes.clear();
    once(&mut world, remembered);
    assert_eq!(world.writes, []);
}

#[test]
fn machines_are_deleted_by_a_step_and_only_members() {
    let mut world = world();
    let machine = with_machine(&mut world);
    let delete = |name: &str| ControlPlaneStep::DeleteMachine {
        machine: name.into(),
        reason: Reason { code: "Outdated".into(), message: "is old".into() },
    };
    once(&mut world, decision(delete("somebody-elses")));
    assert_eq!(condition(&world, "Available").reason, "ContractViolated");
    once(&mut world, decision(delete(&machine.name)));
    assert!(world.find(&machine).unwrap().is_deleting());
}

#[test]
fn only_declared_workload_objects_are_applied() {
    let mut world = world();
    with_machine(&mut world);
    let apply = |label: &str, name: &str| {
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "kube-system"}, "data": {"a": "b"}});
        decision(ControlPlaneStep::ApplyWorkload(label.into(), value))
    };
    for (label, name) in [("other", "kubeadm-config"), ("config", "other")] {
        let (_, plan) = once(&mut world, apply(label, name));
        assert!(!plan.writes.iter().any(|w| matches!(w, Write::Workload { .. })), "{label} {name}");
        assert_eq!(condition(&world, "Available").reason, "ContractViolated");
    }
    let (_, plan) = once(&mut world, apply("config", "kubeadm-config"));
    let applied = plan.writes.iter().find_map(|write| match write {
        Write::Workload { write, .. } => Some(write.as_ref().clone()),
        _ => None,
    });
    assert!(matches!(applied, Some(WorkloadWrite::Apply(_))), "{plan:?}");
}

#[test]
fn etcd_steps_are_refused_by_name_and_errors_are_told() {
    let mut world = world();
    once(&mut world, decision(ControlPlaneStep::RemoveEtcdMember("1".into())));
    assert_eq!(condition(&world, "Available").reason, "StepNotSupported");
    world.unserve(INFRA, "ImaginaryMachineTemplate");
    once(&mut world, decision(create()));
    assert_eq!(condition(&world, "Available").reason, "InfrastructureTemplateMissing");
    assert!(world.all("Machine").is_empty());
}

#[test]
fn a_machine_whose_making_broke_off_is_deleted_after_a_while() {
    let mut world = world();
    let machine = with_machine(&mut world);
    world.delete(&ObjectKey::new(BOOTSTRAP, "KubeadmConfig", "n", &machine.name));
    once(&mut world, decision(ControlPlaneStep::Settled));
    assert!(!world.find(&machine).unwrap().is_deleting());
    world.now += 10_000;
    once(&mut world, decision(ControlPlaneStep::Settled));
    assert!(world.find(&machine).unwrap().is_deleting());
}

#[test]
fn workers_go_first_then_the_machines_then_the_control_plane() {
    let mut world = world();
    let machine = with_machine(&mut world);
    let worker = world.put(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
        "metadata": {"name": "w", "namespace": "n", "labels": {CLUSTER_NAME: "c"}}}));
    world.delete(&key());
    once(&mut world, decision(create()));
    assert!(!world.find(&machine).unwrap().is_deleting());
    world.now += 10_000;
    once(&mut world, decision(create()));
    assert_eq!(condition(&world, "Deleting").reason, "WaitingForWorkersDeletion");
    world.delete(&worker.key());
    once(&mut world, decision(create()));
    assert!(world.find(&machine).unwrap().is_deleting());
    world.edit(&machine, |m| m.set("/metadata/finalizers", json!([])));
    once(&mut world, decision(create()));
    assert!(world.find(&key()).is_none());
}

/// Wherever the making of a machine breaks off, there is one whole machine in the end.
#[test]
fn a_crash_while_a_machine_is_made_leaves_one_whole_machine() {
    for at in 0..8 {
        let mut world = world();
        let plan = super::decide(&key(), &served(), &world, world.now).unwrap();
        let mut course = plan.turn.unwrap().course;
        let mut told = crate::turn::Told::Begin;
        let mut guest = planner(decision(create()));
        let mut left = at;
        let one = |world: &mut World, write: &Write, left: &mut i32| -> Option<Option<Object>> {
            *left -= 1;
            (*left >= 0).then(|| world.apply_writes(std::slice::from_ref(write)).pop().flatten())
        };
        'turn: loop {
            told = match course.next(told, world.now) {
                crate::turn::Step::Call { call, granted, .. } => crate::turn::Told::Called(guest(&call, &granted)),
                crate::turn::Step::Write(writes) => {
                    let mut written = Vec::new();
                    for write in &writes {
                        let write = match write {
                            Write::MintKeyPair(wanted) => {
                                let mut secret = wanted.secret.clone();
                                secret.set("/data", json!({"tls.crt": STANDARD.encode(CA), "tls.key": "a2V5"}));
                                Write::Create(secret)
                            }
                            other => other.clone(),
                        };
                        match one(&mut world, &write, &mut left) {
                            Some(object) => written.push(object),
                            None => break 'turn,
                        }
                    }
                    crate::turn::Told::Written(written)
                }
                crate::turn::Step::Finish(plan) => {
                    for write in &plan.writes {
                        if one(&mut world, write, &mut left).is_none() {
                            break 'turn;
                        }
                    }
                    break;
                }
                other => panic!("{other:?}"),
            };
        }
        for _ in 0..10 {
            let wanted = world.all("Machine").iter().filter(|m| !m.is_deleting()).count();
            once(&mut world, decision(if wanted == 0 { create() } else { ControlPlaneStep::Settled }));
            world.now += 5_000;
            for machine in world.all("Machine") {
                if machine.is_deleting() {
                    world.edit(&machine.key(), |m| m.set("/metadata/finalizers", json!([])));
                }
            }
        }
        for kind in ["Machine", "ImaginaryMachine", "KubeadmConfig"] {
            assert_eq!(world.all(kind).len(), 1, "{kind} after a crash at {at}");
        }
    }
}
