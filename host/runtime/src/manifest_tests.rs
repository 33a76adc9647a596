use super::*;
use serde_json::json;

fn proxmox() -> Value {
    json!({
        "name": "proxmox", "version": "0.3.1", "contract": "0.1", "role": "infrastructure",
        "kinds": {"group": "infrastructure.cluster.x-k8s.io", "cluster": "ProxmoxCluster", "machine": "ProxmoxMachine"},
        "contractLabels": {"cluster.x-k8s.io/v1beta2": ["v1alpha2"]},
        "endpoints": [{"name": "api", "protocol": "rest", "timeout": "30s", "maxResponse": "4Mi"}],
        "credentials": [], "objectReferences": ["/spec/credentialsRef"], "workloadObjects": [],
        "consistencyWindow": "5s",
        "limits": {"memory": "16Mi", "cpu": "200ms", "requestsPerTurn": 64},
    })
}

fn read(value: &Value) -> Result<Manifest, String> {
    Manifest::read(value.to_string().as_bytes()).map_err(|e| e.to_string())
}

#[test]
fn the_example_of_the_contract_is_read() {
    let manifest = read(&proxmox()).unwrap();
    assert_eq!(manifest.limits.memory, Some(Size(16 << 20)));
    assert_eq!(manifest.declared()[0].timeout, Duration::from_secs(30));
    let served = manifest.served("m");
    assert_eq!(served.len(), 2);
    assert_eq!((served[0].0.as_str(), served[0].1.duty), ("ProxmoxCluster", Duty::InfraCluster));
    assert_eq!((served[1].1.consistency_window, served[1].1.request_timeout), (5_000, 30_000));
    let again = read(&serde_json::to_value(&manifest).unwrap()).unwrap();
    assert_eq!(again, manifest, "what inspect prints can be read again");
    let mut with_reads = proxmox();
    with_reads["endpoints"].as_array_mut().unwrap().push(json!({"name": "slow", "timeout": "10m", "readOnly": true}));
    let manifest = read(&with_reads).unwrap();
    assert!(manifest.declared()[1].read_only);
    assert_eq!(manifest.served("m")[1].1.request_timeout, 30_000, "what changes nothing is not waited for");
}

#[test]
fn what_is_wrong_is_named() {
    let cases: Vec<(&str, Value, &str)> = vec![
        ("/surprise", json!(1), "surprise"),
        ("/limits/memry", json!("1Mi"), "memry"),
        ("/limits/memory", json!("lots"), "lots"),
        ("/limits/memory", json!("99999999999999Gi"), "99999999999999Gi"),
        ("/consistencyWindow", json!("5"), "length of time"),
        ("/consistencyWindow", json!("2h"), "consistencyWindow"),
        ("/role", json!("cloud"), "cloud"),
        ("/name", json!("Not A Label"), "Not A Label"),
        ("/kinds/cluster", json!("lower"), "lower"),
        ("/kinds/group", json!("bad group"), "bad group"),
        ("/endpoints/0/timeout", json!("0s"), "endpoint api"),
        ("/endpoints/0/maxResponse", json!("1Gi"), "endpoint api"),
        ("/objectReferences/0", json!("/metadata/name"), "/metadata/name"),
        ("/contractLabels", json!({"cluster.x-k8s.io/v1beta2": []}), "contractLabels"),
    ];
    for (pointer, value, named) in cases {
        let mut manifest = proxmox();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        match manifest.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[field.parse::<usize>().unwrap()] = value,
            other => other[field] = value,
        }
        let error = read(&manifest).unwrap_err();
        assert!(error.contains(named), "{pointer}: {error}");
    }
    let mut twice = proxmox();
    twice["endpoints"] = json!([{"name": "a"}, {"name": "a"}]);
    assert!(read(&twice).unwrap_err().contains("two endpoints"));
    let mut bootstrap = proxmox();
    bootstrap["role"] = json!("bootstrap");
    assert!(read(&bootstrap).unwrap_err().contains("kinds.machine"));
    assert!(Manifest::read(&vec![b' '; MAX_MANIFEST + 1]).is_err());
}

#[test]
fn the_example_of_the_documentation_is_read() {
    let page = include_str!("../../../docs/contract.md");
    let (_, example) = page.split_once("```json\n").unwrap();
    let manifest = Manifest::read(example.split_once("```").unwrap().0.as_bytes()).unwrap();
    assert_eq!(manifest.kinds.identities.len(), 2);
    assert!(manifest.declared().iter().all(|endpoint| endpoint.credentials.len() == 4));
}

#[test]
fn credentials_say_what_they_are() {
    let with = |credential: Value| {
        let mut manifest = proxmox();
        manifest["kinds"]["identities"] = json!(["StaticIdentity"]);
        manifest["endpoints"][0]["signing"] = json!({"service": "ec2"});
        manifest["endpoints"].as_array_mut().unwrap().push(json!({"name": "plain"}));
        manifest["credentials"] = json!([credential]);
        read(&manifest).map(drop)
    };
    let merge = |all: &mut Value, fields: &Value| {
        let all = all.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        all.retain(|_, value| !value.is_null());
    };
    let merged = |fields: Value| {
        let mut credential = json!({"at": "/spec/credentialsRef", "kind": "Secret", "endpoint": "api"});
        merge(&mut credential, &fields);
        with(credential)
    };
    let identity = |fields: Value| {
        let mut all = json!({"kind": "StaticIdentity", "aws": true, "secret": "/spec/secretRef",
            "allowedNamespaces": "/spec/allowedNamespaces"});
        merge(&mut all, &fields);
        merged(all)
    };
    let role = json!({"arn": "/spec/roleARN", "endpoint": "api"});
    let sourced = json!({"secret": null, "aws": null, "source": "/spec/source", "role": role});
    for fine in [
        merged(json!({"aws": true})),
        merged(json!({"header": {"A": "{a}"}})),
        merged(json!({"kind": "Endpoint", "endpoint": null})),
        identity(json!({})),
        identity(json!({"role": role})),
        identity(sourced.clone()),
        merged(json!({"kind": "ControllerIdentity", "ambient": true})),
    ] {
        assert_eq!(fine, Ok(()));
    }
    let refused = [
        (merged(json!({})), "how it is used"),
        (merged(json!({"aws": true, "header": {"A": "a"}})), "how it is used"),
        (merged(json!({"aws": true, "endpoint": "plain"})), "no `signing`"),
        (merged(json!({"aws": true, "endpoint": "gone"})), "gone"),
        (merged(json!({"aws": true, "at": "/spec/other"})), "objectReferences"),
        (merged(json!({"aws": true, "secret": "/spec/x"})), "allowedNamespaces"),
        (merged(json!({"kind": "Endpoint", "aws": true})), "says itself"),
        (merged(json!({"kind": "Other", "aws": true})), "kinds.identities"),
        (identity(json!({"allowedNamespaces": null})), "allowedNamespaces"),
        (identity(json!({"source": "/spec/source"})), "`secret`"),
        (identity(json!({"aws": null})), "how its Secret is used"),
        (identity(json!({"secret": null, "source": "/spec/source", "aws": null})), "no role"),
        (identity(json!({"secret": "/metadata/name"})), "/metadata/name"),
        (merged(json!({"kind": "ControllerIdentity", "ambient": true, "aws": true})), "ambient"),
        (merged(json!({"kind": "Endpoint", "ambient": true})), "ambient"),
        (identity(json!({"role": {"arn": "x"}})), "\"x\""),
        (identity(json!({"role": {"arn": "/spec/a", "endpoint": "gone"}})), "gone"),
    ];
    for (result, named) in refused {
        let error = result.unwrap_err();
        assert!(error.contains(named), "{named}: {error}");
    }
}

#[test]
fn identities_are_kinds_of_the_cluster() {
    let mut manifest = proxmox();
    manifest["kinds"]["identities"] = json!(["CloudIdentity"]);
    let manifest = read(&manifest).unwrap();
    let crd = |kind: &str, scope: &str, template: bool| {
        json!({"kind": kind, "plural": kind.to_lowercase() + "s", "singular": kind.to_lowercase(), "scope": scope,
               "template": template, "versions": [{"name": "v1alpha2", "storage": true, "schema": {"type": "object"}}]})
    };
    let check = |identity: Value| {
        let crds =
            json!([crd("ProxmoxCluster", "Namespaced", true), crd("ProxmoxMachine", "Namespaced", true), identity]);
        read_crds(crds.to_string().as_bytes(), &manifest).map(|crds| crds.len()).map_err(|e| e.to_string())
    };
    assert_eq!(check(crd("CloudIdentity", "Cluster", false)), Ok(3));
    assert!(check(crd("CloudIdentity", "Namespaced", false)).unwrap_err().contains("has to be Cluster"));
    assert!(check(crd("CloudIdentity", "Cluster", true)).unwrap_err().contains("template"));
    assert!(check(crd("Other", "Cluster", false)).unwrap_err().contains("has to be Namespaced"));
    assert!(check(crd("Other", "Namespaced", false)).unwrap_err().contains("CloudIdentity"));
}

#[test]
fn crds_must_fit_the_manifest() {
    let manifest = read(&proxmox()).unwrap();
    let crd = |kind: &str| {
        json!({"kind": kind, "plural": kind.to_lowercase() + "s", "singular": kind.to_lowercase(), "template": true,
               "versions": [{"name": "v1alpha2", "storage": true, "schema": {"type": "object"}}]})
    };
    let check = |crds: &Value| read_crds(crds.to_string().as_bytes(), &manifest).map_err(|e| e.to_string());
    let mut good = json!([crd("ProxmoxCluster"), crd("ProxmoxMachine")]);
    assert_eq!(check(&good).unwrap().len(), 2);
    assert!(check(&json!([crd("ProxmoxCluster")])).unwrap_err().contains("ProxmoxMachine"));
    good[0]["versions"][0]["name"] = json!("v1");
    assert!(check(&good).unwrap_err().contains("v1alpha2"));
    good[0]["versions"][0]["storage"] = json!(false);
    assert!(check(&good).unwrap_err().contains("storage"));
    good[0]["sope"] = json!("Cluster");
    assert!(check(&good).unwrap_err().contains("sope"));
}
