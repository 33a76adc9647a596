//! The kubeadm providers: what they plan and render, with the real host around them.

use capstan_boot::Step;
use capstan_core::contract::{ControlPlaneStep, ControlPlaneView, Effect, HostPort, JoinRole, KeyUse, Need};
use capstan_core::turn::{Call, MachineInput, Reply, TurnInput};
use capstan_testkit::{Answer, Cloud};
use serde_json::{Value, json};

use crate::provider;

fn in_cluster(mut input: TurnInput) -> TurnInput {
    input.cluster.endpoint = Some(HostPort { host: "10.0.0.1".into(), port: 6443 });
    input.cluster.pod_cidrs = vec!["192.168.0.0/16".into()];
    input.cluster.service_cidrs = vec!["10.96.0.0/12".into()];
    input.cluster.service_domain = "cluster.local".into();
    input
}

#[tokio::test]
async fn the_first_machine_s_boot_data_holds_the_keys_and_the_guest_never_did() {
    let kit = provider("kubeadm-bootstrap");
    let mut input = in_cluster(kit.input("KubeadmConfig", "m", json!({})));
    input.join_role = Some(JoinRole::ControlPlaneInit);
    input.machine = Some(MachineInput {
        name: "m".into(),
        control_plane: true,
        kubernetes_version: Some("v1.34.0".into()),
        ..MachineInput::default()
    });
    let nowhere = Cloud::new(|_| Answer::status(500));
    let mut turn = kit.turn(&nowhere, input).await.unwrap();
    let Ok(Reply::Needs(needs)) = turn.call(Call::Needs).await.reply else { panic!() };
    let pairs: Vec<_> = needs
        .iter()
        .filter_map(|(label, need)| match need {
            Need::KeyPair(pair) => Some((label.as_str(), pair.purpose)),
            _ => None,
        })
        .collect();
    assert!(
        pairs.contains(&("ca", KeyUse::CertificateAuthority)) && pairs.contains(&("sa", KeyUse::SigningOnly)),
        "{pairs:?}"
    );
    for (label, _) in &pairs {
        for key in ["tls.crt", "tls.key"] {
            let bytes = format!("-----BEGIN {label} {key}-----\n").into_bytes();
            turn.granted.secrets.insert(format!("{label}/{key}"), bytes);
        }
        turn.granted.public_key_hashes.insert((*label).to_owned(), format!("sha256:{label}"));
    }
    let rendered = turn.call(Call::Render).await;
    assert_eq!(rendered.effect, Effect::NotSent);
    let Ok(Reply::Rendered(rendered)) = rendered.reply else { panic!("{rendered:?}") };
    let boot = capstan_boot::read(&rendered.format, &rendered.content).expect("cloud-config that the host reads");
    let file = |wanted: &str| {
        boot.steps.iter().find_map(|step| match step {
            Step::WriteFile { path, content, mode, .. } if path == wanted => Some((content.clone(), *mode)),
            _ => None,
        })
    };
    let (key, mode) = file("/etc/kubernetes/pki/ca.key").expect("the CA's key");
    assert_eq!((key.as_slice(), mode), (b"-----BEGIN ca tls.key-----\n".as_slice(), 0o600));
    let runs = |word: &str| boot.steps.iter().any(|s| matches!(s, Step::Run(line) if line.contains(word)));
    assert!(runs("kubeadm init"), "{boot:?}");
}

#[tokio::test]
async fn an_empty_control_plane_wants_its_first_machine() {
    let kit = provider("kubeadm-control-plane");
    let spec = json!({"replicas": 1, "version": "v1.34.0", "kubeadmConfigSpec": {},
        "machineTemplate": {"spec": {"infrastructureRef": {"apiGroup": "g", "kind": "K", "name": "n"}}}});
    let mut input = in_cluster(kit.input("KubeadmControlPlane", "cp", spec));
    input.control_plane = Some(ControlPlaneView { replicas: 1, memory: Value::Null, ..ControlPlaneView::default() });
    let nowhere = Cloud::new(|_| Answer::status(500));
    let mut turn = kit.turn(&nowhere, input).await.unwrap();
    let planned = turn.call(Call::PlanControlPlane).await;
    let Ok(Reply::Decision(decision)) = planned.reply else { panic!("{planned:?}") };
    assert!(
        matches!(&decision.step, ControlPlaneStep::CreateMachine { kubernetes_version, .. } if kubernetes_version == "v1.34.0"),
        "{:?}",
        decision.step
    );
    assert_eq!(nowhere.asked(), []);
}
