use serde_json::{Value, json};

use super::*;

fn object(value: Value) -> Object {
    Object::from_value(value).unwrap()
}

fn reference(kind: &str) -> Value {
    json!({"apiGroup": "g.cluster.x-k8s.io", "kind": kind, "name": "x"})
}

fn machine_spec() -> Value {
    json!({"clusterName": "c", "bootstrap": {"configRef": reference("B")}, "infrastructureRef": reference("I"),
        "version": "1.35.4"})
}

fn core(kind: &str, spec: Value) -> Object {
    object(json!({"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": "o", "namespace": "n"},
        "spec": spec}))
}

fn deployment() -> Object {
    core("MachineDeployment", json!({"clusterName": "c", "template": {"spec": machine_spec()}}))
}

fn paths(result: Result<(), Vec<FieldError>>) -> Vec<String> {
    result.err().unwrap_or_default().into_iter().map(|e| e.path).collect()
}

#[test]
fn a_deployment_gets_its_defaults_and_admitting_again_changes_nothing() {
    let mut new = deployment();
    admit(Operation::Create, &mut new, None).unwrap();
    assert_eq!(new.int_at("/spec/replicas"), Some(1));
    assert_eq!(
        new.at("/spec/selector/matchLabels"),
        Some(&json!({"cluster.x-k8s.io/deployment-name": "o", "cluster.x-k8s.io/cluster-name": "c"}))
    );
    assert_eq!(new.at("/spec/template/metadata/labels"), new.at("/spec/selector/matchLabels"));
    assert_eq!(
        new.at("/spec/rollout/strategy"),
        Some(&json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}))
    );
    assert_eq!(new.str_at("/spec/template/spec/version"), Some("v1.35.4"));
    assert_eq!(new.label("cluster.x-k8s.io/cluster-name"), Some("c"));
    let first = new.clone();
    admit(Operation::Update, &mut new, Some(&first)).unwrap();
    assert_eq!(new, first);
}

#[test]
fn the_autoscalers_range_decides_absent_replicas() {
    for (before, want) in [(None, 3), (Some(1), 3), (Some(4), 4), (Some(9), 5)] {
        let mut new = deployment();
        new.set_annotation("cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size", "3");
        new.set_annotation("cluster.x-k8s.io/cluster-api-autoscaler-node-group-max-size", "5");
        let old = before.map(|n| {
            let mut old = new.clone();
            old.set("/spec/replicas", json!(n));
            old
        });
        admit(Operation::Update, &mut new, old.as_ref()).unwrap();
        assert_eq!(new.int_at("/spec/replicas"), Some(want), "before: {before:?}");
    }
}

#[test]
fn what_cannot_work_is_refused_with_its_path() {
    let cases: Vec<(&str, Value, &str)> = vec![
        ("/spec/selector", json!({"matchLabels": {"a": "b"}}), "spec.template.metadata.labels"),
        ("/spec/template/spec/version", json!("1.35"), "spec.template.spec.version"),
        ("/spec/template/spec/clusterName", json!("d"), "spec.template.spec.clusterName"),
        ("/spec/template/spec/bootstrap", json!({}), "spec.template.spec.bootstrap"),
        ("/spec/machineNaming", json!({"template": "{{ .cluster.name }}-x"}), "spec.machineNaming.template"),
        ("/spec/machineNaming", json!({"template": "{{ .random }}{{ .who }}"}), "spec.machineNaming.template"),
        (
            "/spec/rollout",
            json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
            "spec.rollout.strategy.rollingUpdate",
        ),
        (
            "/spec/rollout",
            json!({"strategy": {"rollingUpdate": {"maxSurge": "30"}}}),
            "spec.rollout.strategy.rollingUpdate.maxSurge",
        ),
        ("/spec/remediation", json!({"maxInFlight": "x%"}), "spec.remediation.maxInFlight"),
        ("/spec/replicas", json!("three"), "spec"),
    ];
    for (pointer, value, want) in cases {
        let mut new = deployment();
        new.set(pointer, value.clone());
        assert_eq!(paths(admit(Operation::Create, &mut new, None)), [want], "{pointer} {value}");
    }
}

#[test]
fn clusters() {
    let good = json!({"infrastructureRef": reference("I"), "clusterNetwork": {"pods": {"cidrBlocks": ["fd00::/48"]}}});
    let mut new = core("Cluster", good.clone());
    assert_eq!(admit(Operation::Create, &mut new, None), Ok(()));
    let old = core("Cluster", json!({"infrastructureRef": reference("I"), "controlPlaneRef": reference("C")}));
    assert_eq!(paths(admit(Operation::Update, &mut new, Some(&old))), ["spec.controlPlaneRef"]);
    let mut empty = core("Cluster", json!({"paused": true}));
    assert_eq!(paths(admit(Operation::Create, &mut empty, None)), ["spec"]);
    let mut managed = core("Cluster", json!({"topology": {"classRef": {"name": "x"}}}));
    let errors = admit(Operation::Create, &mut managed, None).unwrap_err();
    assert_eq!(errors[0].path, "spec.topology");
    assert!(errors[0].message.contains("not supported yet"));
    for block in ["10.0.0.0", "10.0.0.0/33", "300.0.0.0/8", "10.0.0.0/+8", "x/8"] {
        let mut bad = core("Cluster", good.clone());
        bad.set("/spec/clusterNetwork/services", json!({"cidrBlocks": ["10.0.0.0/8", block]}));
        let want = ["spec.clusterNetwork.services.cidrBlocks[1]"];
        assert_eq!(paths(admit(Operation::Create, &mut bad, None)), want, "{block}");
    }
    for name in ["-a", "a.", &"a".repeat(64), "ä"] {
        let mut bad = core("Cluster", good.clone());
        bad.set("/metadata/name", name.into());
        assert_eq!(paths(admit(Operation::Create, &mut bad, None)), ["metadata.name"], "{name}");
    }
}

#[test]
fn machines() {
    let mut new = core("Machine", machine_spec());
    admit(Operation::Create, &mut new, None).unwrap();
    assert_eq!(new.int_at("/spec/deletion/nodeDeletionTimeoutSeconds"), Some(10));
    let old = new.clone();
    new.set("/spec/clusterName", "other".into());
    assert_eq!(paths(admit(Operation::Update, &mut new, Some(&old))), ["spec.clusterName"]);
    new.set("/metadata/deletionTimestamp", "2026-01-01T00:00:00Z".into());
    assert_eq!(admit(Operation::Update, &mut new, Some(&old)), Ok(()), "what is being deleted may always change");
}

#[test]
fn versions_are_whole_semantic_versions() {
    for good in ["v1.35.4", "1.0.0", "v1.36.0-rc.1", "v1.35.4+build.5", "v1.36.0-alpha-1.2+x.y-z"] {
        assert!(validation::is_version(good), "{good}");
    }
    for bad in ["", "v1", "v1.35", "v1.35.4.5", "v01.1.1", "v1.1.x", "v1.1.1-", "v1.1.1+", "vv1.1.1", "v1.1.1-a..b"] {
        assert!(!validation::is_version(bad), "{bad}");
    }
}

#[test]
fn long_names_become_label_values() {
    let value = defaulting::label_value(&"n".repeat(100));
    assert!(validation::is_label_value(&value) && value.len() == 23, "{value}");
    assert_eq!(defaulting::label_value("short"), "short");
}

#[test]
fn a_destination_is_one_thing() {
    let endpoint = |spec: Value| {
        object(
            json!({"apiVersion": "capstan.dev/v1alpha1", "kind": "Endpoint", "metadata": {"name": "e"}, "spec": spec}),
        )
    };
    let credential = json!({"secretName": "keys", "aws": {}});
    for fine in [json!({"url": "https://a"}), json!({"credential": credential}), json!({"caBundle": "x"})] {
        assert_eq!(admit(Operation::Create, &mut endpoint(fine), None), Ok(()));
    }
    for bad in [json!({}), json!({"url": "https://a", "unixSocket": "/b"})] {
        assert_eq!(paths(admit(Operation::Create, &mut endpoint(bad), None)), ["spec"]);
    }
}
