//! Whole rollouts, played: what the planner asks for is done to a small model, until it is settled.

use capstan_provider::control_plane::EtcdMember;
use serde_json::{Value, json};

use super::*;

const VERSION: &str = "v1.35.0";

fn control_plane(spec: Value) -> KubeadmControlPlane {
    serde_json::from_value(spec).unwrap()
}

fn decide(spec: &KubeadmControlPlane, version: &str, view: &View) -> Decision {
    plan(spec, version, "cp", view, 1_795_997_991_000).unwrap()
}

fn member(name: &str, version: &str, etcd: bool) -> Member {
    Member {
        name: name.to_owned(),
        kubernetes_version: Some(version.to_owned()),
        ready: true,
        cloned_from: Some("cp".to_owned()),
        etcd: etcd.then(|| EtcdMember { id: format!("id-{name}"), healthy: true, ..EtcdMember::default() }),
        ..Member::default()
    }
}

fn view(members: Vec<Member>, replicas: u32) -> View {
    View {
        members,
        replicas,
        initialized: true,
        stray_etcd_members: Some(Vec::new()),
        memory: "null".to_owned(),
        ..View::default()
    }
}

/// Carries steps out until the planner is settled; the steps in short, and the most and fewest machines there were.
fn play(spec: &KubeadmControlPlane, version: &str, mut view: View) -> (Vec<String>, usize, usize) {
    let (mut steps, mut most, mut fewest, mut made) = (Vec::new(), view.members.len(), view.members.len(), 0);
    for _ in 0..100 {
        let decision = decide(spec, version, &view);
        view.memory = decision.memory;
        match decision.step {
            Step::Settled => return (steps, most, fewest),
            Step::CreateMachine { failure_domain, kubernetes_version, bootstrap } => {
                made += 1;
                let mut new = member(&format!("new{made}"), &kubernetes_version, true);
                new.failure_domain = failure_domain;
                new.bootstrap = Some(bootstrap);
                steps.push(format!("create {}", new.name));
                view.initialized = true;
                view.members.push(new);
            }
            Step::DeleteMachine { machine, reason } => {
                steps.push(format!("delete {machine} {}", reason.code));
                view.members.retain(|member| member.name != machine);
            }
            Step::MoveEtcdLeader(from, to) => {
                steps.push(format!("lead {from} {to}"));
                for etcd in view.members.iter_mut().filter_map(|member| member.etcd.as_mut()) {
                    etcd.leader = etcd.id == to;
                }
            }
            Step::RemoveEtcdMember(id) => {
                steps.push(format!("leave {id}"));
                view.members
                    .iter_mut()
                    .filter(|m| m.etcd.as_ref().is_some_and(|e| e.id == id))
                    .for_each(|m| m.etcd = None);
            }
            other => panic!("{other:?} after {steps:?}"),
        }
        most = most.max(view.members.len());
        fewest = fewest.min(view.members.len());
    }
    panic!("never settled: {steps:?}")
}

#[test]
fn the_first_machine_comes_alone_and_is_waited_for() {
    let spec = control_plane(json!({"kubeadmConfigSpec": {"joinConfiguration": {"nodeRegistration": {"name": "j"}}}}));
    let mut early = view(Vec::new(), 3);
    early.initialized = false;
    let Step::CreateMachine { bootstrap, kubernetes_version, .. } = decide(&spec, VERSION, &early).step else {
        panic!()
    };
    assert_eq!(kubernetes_version, VERSION);
    assert!(!bootstrap.contains("joinConfiguration"), "{bootstrap}");
    early.members.push(Member { ready: false, ..member("a", VERSION, false) });
    let decision = decide(&spec, VERSION, &early);
    assert!(matches!(&decision.step, Step::Wait(reason) if reason.code == "WaitingForInitialization"));
    assert!(decision.look_again_after.is_some());
    early.members[0].remediate = true;
    assert!(matches!(decide(&spec, VERSION, &early).step, Step::DeleteMachine { .. }));
}

#[test]
fn one_replica_is_settled_once_it_is_up() {
    let spec = control_plane(json!({}));
    let decision = decide(&spec, VERSION, &view(vec![member("a", VERSION, true)], 1));
    assert_eq!(decision.step, Step::Settled);
    assert_eq!(decision.status, r#"{"upToDateReplicas":1}"#);
    assert!(decision.conditions.iter().all(|c| c.ok == Some(c.kind.ends_with("Healthy"))), "{:?}", decision.conditions);
    let mut sick = view(vec![Member { ready: false, ..member("a", VERSION, true) }], 1);
    assert!(matches!(decide(&spec, VERSION, &sick).step, Step::Wait(_)));
    sick.members.clear();
    assert!(matches!(decide(&spec, VERSION, &sick).step, Step::CreateMachine { .. }));
}

#[test]
fn a_new_version_adds_first_then_takes_away_and_moves_the_leader() {
    let mut old = member("old", "v1.34.0", true);
    old.etcd.as_mut().unwrap().leader = true;
    let (steps, most, fewest) = play(&control_plane(json!({})), VERSION, view(vec![old], 1));
    assert_eq!(steps, ["create new1", "lead id-old id-new1", "leave id-old", "delete old VersionChanged"]);
    assert_eq!((most, fewest), (2, 1));
}

#[test]
fn three_roll_one_at_a_time_and_surge_zero_never_exceeds_three() {
    let three = || view(["a", "b", "c"].map(|name| member(name, "v1.34.0", true)).into(), 3);
    let (steps, most, fewest) = play(&control_plane(json!({})), VERSION, three());
    assert_eq!((steps.len(), most, fewest), (9, 4, 3), "{steps:?}");
    let zero = control_plane(json!({"rollout": {"strategy": {"rollingUpdate": {"maxSurge": 0}}}}));
    let (steps, most, fewest) = play(&zero, VERSION, three());
    assert_eq!((steps.len(), most, fewest), (9, 3, 2), "{steps:?}");
}

#[test]
fn scaling_goes_one_by_one_and_spreads() {
    let mut view = view(vec![Member { failure_domain: Some("a".to_owned()), ..member("m", VERSION, true) }], 3);
    view.failure_domains = ["a", "b", "c"].map(ToOwned::to_owned).into();
    let Step::CreateMachine { failure_domain, bootstrap, .. } = decide(&control_plane(json!({})), VERSION, &view).step
    else {
        panic!()
    };
    assert_eq!(failure_domain.as_deref(), Some("b"));
    assert!(!bootstrap.contains("initConfiguration"));
    let (steps, ..) = play(&control_plane(json!({})), VERSION, view.clone());
    assert_eq!(steps, ["create new1", "create new2"]);
    view.members = ["x", "y", "z"]
        .map(|name| Member {
            failure_domain: Some((if name == "z" { "b" } else { "a" }).to_owned()),
            ..member(name, VERSION, true)
        })
        .into();
    view.members[1].age = 9;
    view.replicas = 1;
    let (steps, ..) = play(&control_plane(json!({})), VERSION, view);
    assert_eq!(steps[..2], ["leave id-y", "delete y ScalingDown"]);
}

#[test]
fn what_else_makes_a_machine_outdated() {
    let spec =
        control_plane(json!({"rollout": {"after": "2026-11-30T00:00:00Z", "before": {"certificatesExpiryDays": 30}}}));
    let now = 1_795_997_991_000;
    let code = |member: Member| {
        let desired = Desired::of(&spec, VERSION).unwrap();
        outdated(&spec, VERSION, "cp", &desired, &member, now).into_iter().map(|reason| reason.code).collect::<Vec<_>>()
    };
    assert!(code(member("a", VERSION, true)).is_empty());
    assert_eq!(code(Member { age: 2 * 3600 * 1000, ..member("a", VERSION, true) }), ["RolloutAfter"]);
    assert_eq!(
        code(Member { certificate_expiry: Some(now + 29 * DAY), ..member("a", VERSION, true) }),
        ["CertificatesExpireSoon"]
    );
    assert!(code(Member { certificate_expiry: Some(now + 31 * DAY), ..member("a", VERSION, true) }).is_empty());
    assert_eq!(
        code(Member { cloned_from: Some("other".to_owned()), ..member("a", VERSION, true) }),
        ["InfrastructureTemplateChanged"]
    );
    let files = json!({"files": [{"path": "/a", "content": "x"}]}).to_string();
    assert_eq!(code(Member { bootstrap: Some(files), ..member("a", VERSION, true) }), ["KubeadmConfigChanged"]);
}

/// Field case A4: quorum is counted over actual members without the one to go.
#[test]
fn remediation_keeps_the_quorum() {
    let spec = control_plane(json!({}));
    let case = |members: usize, marked_in_etcd: bool, failing: usize| {
        let mut all: Vec<Member> = (0..members).map(|i| member(&format!("m{i}"), VERSION, true)).collect();
        all[0].remediate = true;
        all[0].ready = false;
        if !marked_in_etcd {
            all[0].etcd = None;
        }
        for sick in all.iter_mut().skip(1).take(failing) {
            sick.ready = false;
            sick.etcd.as_mut().unwrap().healthy = false;
        }
        decide(&spec, VERSION, &view(all, u32::try_from(members).unwrap())).step
    };
    assert!(matches!(case(3, false, 0), Step::DeleteMachine { .. }));
    assert!(matches!(case(3, true, 1), Step::Wait(reason) if reason.message.contains("quorum")));
    assert!(matches!(case(5, true, 1), Step::RemoveEtcdMember(_)));
    assert!(matches!(case(5, true, 2), Step::Wait(reason) if reason.message.contains("quorum")));
    assert!(matches!(case(1, true, 0), Step::Wait(_)));
}

#[test]
fn strays_leave_etcd_and_an_unanswering_etcd_stops_a_removal() {
    let spec = control_plane(json!({}));
    let mut with_stray = view(vec![member("a", VERSION, true)], 1);
    with_stray.stray_etcd_members = Some(vec![EtcdMember { id: "s".to_owned(), ..EtcdMember::default() }]);
    assert_eq!(decide(&spec, VERSION, &with_stray).step, Step::RemoveEtcdMember("s".to_owned()));
    let mut blind = view(vec![member("a", VERSION, false), member("b", VERSION, false)], 1);
    blind.stray_etcd_members = None;
    blind.memory = json!({"removing": {"machine": "a", "code": "X", "message": "", "hadEtcd": true}}).to_string();
    assert!(matches!(decide(&spec, VERSION, &blind).step, Step::Wait(reason) if reason.code == "WaitingForEtcd"));
    blind.stray_etcd_members = Some(Vec::new());
    assert!(matches!(decide(&spec, VERSION, &blind).step, Step::DeleteMachine { machine, .. } if machine == "a"));
    blind.members[0].deleting = true;
    let decision = decide(&spec, VERSION, &blind);
    assert!(matches!(decision.step, Step::Wait(reason) if reason.code == "MachineDeleting"));
    assert_eq!(decision.memory, "{}");
}
