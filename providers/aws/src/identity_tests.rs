use capstan_provider::{Kind, infrastructure::dispatch};
use serde_json::{Value, json};

use super::{RoleIdentity, StaticIdentity};
use crate::{Aws, MANIFEST};

fn spec(crd: &str) -> Value {
    let crd: Value = serde_json::from_str(crd).unwrap();
    assert_eq!((&crd["scope"], &crd["template"]), (&json!("Cluster"), &json!(false)));
    crd["versions"][0]["schema"]["properties"]["spec"].clone()
}

/// Whether a schema has what a pointer of the manifest leads to.
fn has(spec: &Value, pointer: &str) -> bool {
    let fields = pointer.trim_start_matches("/spec/").split('/');
    fields.fold(spec, |schema, field| &schema["properties"][field]).is_object()
}

#[test]
fn the_manifest_finds_in_an_identity_what_it_looks_for() {
    let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
    let kinds = &manifest["kinds"]["identities"];
    assert_eq!(kinds, &json!([StaticIdentity::KIND, RoleIdentity::KIND]));
    let entries = manifest["credentials"].as_array().unwrap();
    let of = |kind: &str| entries.iter().find(|entry| entry["kind"] == kind).unwrap();
    let keys = of(StaticIdentity::KIND);
    for field in ["secret", "allowedNamespaces"] {
        assert!(has(&spec(StaticIdentity::CRD), keys[field].as_str().unwrap()), "{field}");
    }
    let (role, schema) = (of(RoleIdentity::KIND), spec(RoleIdentity::CRD));
    for field in ["source", "allowedNamespaces"] {
        assert!(has(&schema, role[field].as_str().unwrap()), "{field}");
    }
    let pointers = role["role"].as_object().unwrap();
    for (field, pointer) in pointers.iter().filter(|(field, _)| *field != "endpoint") {
        assert!(has(&schema, pointer.as_str().unwrap()), "{field}");
    }
    assert_eq!(pointers.len(), 7, "all that a role can be told");
    assert_eq!(schema["required"], json!(["roleARN", "sourceIdentityRef"]));
}

#[test]
fn an_identity_is_the_same_in_both_versions() {
    let identity = |version: &str| {
        json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": "AWSClusterStaticIdentity",
            "metadata": {"name": "i"}, "spec": {"secretRef": "keys", "allowedNamespaces": {}}})
    };
    let there = dispatch::convert_identity::<StaticIdentity>(&identity("v1beta1").to_string(), "v1beta2").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&there.unwrap()).unwrap(), identity("v1beta2"));
    let none = dispatch::convert_identity::<RoleIdentity>(&identity("v1beta1").to_string(), "v1beta2");
    assert!(none.is_none(), "it is of another kind");
}

#[test]
fn the_identity_of_a_controller_is_refused_unless_capa_wrote_it() {
    let told = |name: &str| -> Vec<String> {
        let reference = json!({"kind": "AWSClusterControllerIdentity", "name": name});
        let cluster = json!({"kind": "AWSCluster", "spec": {"region": "us-east-1", "identityRef": reference}});
        let all = dispatch::validate::<Aws>(None, &cluster.to_string());
        all.into_iter().map(|violation| format!("{}: {}", violation.path, violation.message)).collect()
    };
    assert_eq!(told("default"), [""; 0]);
    let refused = told("mine");
    assert!(
        refused.len() == 1
            && refused[0].starts_with("/spec/identityRef/kind")
            && refused[0].contains("AWSClusterStaticIdentity"),
        "{refused:?}"
    );
}
