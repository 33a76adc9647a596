use super::*;

fn manifest() -> Value {
    json!({"name": "simulated", "role": "infrastructure",
        "kinds": {"group": "infrastructure.cluster.x-k8s.io", "cluster": "SimCluster", "machine": "SimMachine"},
        "contractLabels": {"cluster.x-k8s.io/v1beta2": ["v1beta1"]}})
}

fn kind_of(name: &str, spec: Value) -> Value {
    json!({"kind": name, "plural": plural(name), "singular": name.to_lowercase(), "shortNames": ["sm"],
        "scope": "Namespaced", "template": true,
        "versions": [{"name": "v1beta1", "served": true, "storage": true,
            "printerColumns": [{"name": "CPUs", "type": "integer", "jsonPath": ".spec.cpus"}],
            "schema": {"type": "object", "description": "A thing.", "properties": {
                "spec": spec, "status": {"type": "object", "properties": {"own": {"type": "string"}}, "required": ["own"]}}}}]})
}

fn section() -> Value {
    let spec = json!({"type": "object", "properties": {"cpus": {"type": "integer"}}});
    json!([kind_of("SimCluster", json!({"type": "object"})), kind_of("SimMachine", spec)])
}

fn names(crds: &[Value]) -> Vec<&str> {
    crds.iter().map(|c| c["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn an_infrastructure_component_gets_the_contracts_fields_and_templates() {
    let crds = provider_crds(&manifest(), &section()).unwrap();
    assert_eq!(
        names(&crds),
        [
            "simclusters.infrastructure.cluster.x-k8s.io",
            "simclustertemplates.infrastructure.cluster.x-k8s.io",
            "simmachines.infrastructure.cluster.x-k8s.io",
            "simmachinetemplates.infrastructure.cluster.x-k8s.io"
        ]
    );
    let labels = &crds[2]["metadata"]["labels"];
    assert_eq!(labels["cluster.x-k8s.io/v1beta2"], "v1beta1");
    assert_eq!(labels["cluster.x-k8s.io/contract"], "v1beta2");
    assert_eq!(labels["cluster.x-k8s.io/provider"], "infrastructure-simulated");
    let version = &crds[2]["spec"]["versions"][0];
    let properties = &version["schema"]["openAPIV3Schema"]["properties"];
    for path in [
        "/spec/properties/cpus",
        "/spec/properties/providerID",
        "/status/properties/own",
        "/status/properties/initialization/properties/provisioned",
        "/status/properties/addresses/items",
        "/status/properties/conditions",
        "/status/properties/ready",
        "/metadata",
    ] {
        assert!(properties.pointer(path).is_some(), "{path}");
    }
    assert_eq!(properties["status"].get("required"), None, "conditions come first");
    let columns: Vec<&str> =
        version["additionalPrinterColumns"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(columns, ["Cluster", "Machine", "ProviderID", "CPUs", "Ready", "Paused", "Age"]);
    let template = &crds[3]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    let spec = &template["spec"]["properties"]["template"]["properties"]["spec"];
    assert!(spec["properties"]["cpus"].is_object() && spec["properties"].get("providerID").is_none());
    assert_eq!(spec["x-kubernetes-validations"][0]["rule"], "self == oldSelf");
    let cluster = &crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(cluster["status"]["properties"]["failureDomains"]["type"], "array");
    assert!(cluster["spec"]["properties"]["controlPlaneEndpoint"]["properties"]["port"].is_object());
}

#[test]
fn identities_are_cluster_scoped_and_as_the_component_says() {
    let mut with = manifest();
    with["kinds"]["identities"] = json!(["SimRoleIdentity"]);
    let mut all = section();
    let mut identity =
        kind_of("SimRoleIdentity", json!({"type": "object", "properties": {"roleARN": {"type": "string"}}}));
    identity["template"] = json!(false);
    all.as_array_mut().unwrap().push(identity.clone());
    let wrong = provider_crds(&with, &all).unwrap_err();
    assert!(wrong[0].to_string().contains("crds[2].scope"), "{wrong:?}");
    all[2]["scope"] = json!("Cluster");
    let crds = provider_crds(&with, &all).unwrap();
    assert_eq!(crds.len(), 5);
    assert_eq!(crds[4]["metadata"]["name"], "simroleidentities.infrastructure.cluster.x-k8s.io");
    assert_eq!(crds[4]["spec"]["scope"], "Cluster");
    assert_eq!(crds[4]["metadata"]["labels"]["cluster.x-k8s.io/v1beta2"], "v1beta1");
    let schema = &crds[4]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(schema["spec"]["properties"].as_object().unwrap().len(), 1, "the contract adds nothing");
    let mut unknown = manifest();
    unknown["kinds"]["identities"] = json!(["Other"]);
    assert!(provider_crds(&unknown, &section()).unwrap_err()[0].to_string().contains("Other"));
}

#[test]
fn the_contract_decides_the_shape_of_failure_domains() {
    let mut old = manifest();
    old["contractLabels"] = json!({"cluster.x-k8s.io/v1beta1": ["v1beta1"]});
    let crds = provider_crds(&old, &section()).unwrap();
    let cluster = &crds[0]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    assert_eq!(cluster["status"]["properties"]["failureDomains"]["type"], "object");
    assert_eq!(crds[0]["metadata"]["labels"]["cluster.x-k8s.io/contract"], "v1beta1");
}

#[test]
fn a_control_plane_can_be_scaled_and_keeps_its_own_columns() {
    let manifest = json!({"name": "kubeadm", "role": "control-plane",
        "kinds": {"group": "controlplane.cluster.x-k8s.io", "machine": "KubeadmControlPlane"},
        "contractLabels": {"cluster.x-k8s.io/v1beta2": ["v1beta1"]}});
    let spec = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    let crds = provider_crds(&manifest, &json!([kind_of("KubeadmControlPlane", spec)])).unwrap();
    let version = &crds[0]["spec"]["versions"][0];
    assert_eq!(version["subresources"]["scale"]["specReplicasPath"], ".spec.replicas");
    assert_eq!(version["additionalPrinterColumns"].as_array().unwrap().len(), 1);
    let status = &version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"];
    assert!(status["initialization"]["properties"]["controlPlaneInitialized"].is_object());
    assert!(status["upToDateReplicas"].is_object());
}

#[test]
fn what_is_wrong_is_named_with_its_path() {
    type Change = fn(&mut Value, &mut Value);
    let cases: Vec<(Change, &str)> = vec![
        (|m, _| m["role"] = "cook".into(), "manifest.role"),
        (|m, _| m["kinds"]["machine"] = Value::Null, "manifest.kinds.machine"),
        (|m, _| m["contractLabels"] = json!({}), "manifest.contractLabels"),
        (|m, _| m["contractLabels"] = json!({"x": ["v1"]}), "manifest.contractLabels.x"),
        (
            |m, _| m["contractLabels"] = json!({"cluster.x-k8s.io/v1beta2": ["v9"]}),
            "manifest.contractLabels.cluster.x-k8s.io/v1beta2",
        ),
        (|_, s| s[1]["kind"] = "Other".into(), "crds"),
        (|_, s| s[1]["plural"] = "simmachinen".into(), "crds[1].plural"),
        (|_, s| s[1]["scope"] = "Cluster".into(), "crds[1].scope"),
        (|_, s| s[1]["versions"][0]["storage"] = false.into(), "crds[1].versions"),
        (|_, s| s[1]["versions"][0]["schema"] = json!({}), "crds[1].versions[0].schema"),
        (
            |_, s| s[1]["versions"][0]["schema"]["properties"]["spec"]["properties"]["x"] = json!({"$ref": "y"}),
            "crds[1].versions[0].schema.properties.spec.properties.x.$ref",
        ),
        (|_, s| *s = json!({}), "crds"),
    ];
    for (change, want) in cases {
        let (mut manifest, mut section) = (manifest(), section());
        change(&mut manifest, &mut section);
        let errors = provider_crds(&manifest, &section).unwrap_err();
        assert_eq!(errors[0].path, want, "{errors:?}");
    }
}

#[test]
fn plurals() {
    for (kind, want) in
        [("DockerMachine", "dockermachines"), ("Proxy", "proxies"), ("Box", "boxes"), ("Gateway", "gateways")]
    {
        assert_eq!(plural(kind), want);
    }
}
