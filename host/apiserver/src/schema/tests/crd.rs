//! CustomResourceDefinitions themselves.

use super::texts;
use crate::schema::{default_crd, validate_crd, validate_crd_update};
use serde_json::{Value, json};

fn crd() -> Value {
    let mut crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Thing", "plural": "things", "shortNames": ["th"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "replicas": {"type": "integer"},
                }}}}},
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                "additionalPrinterColumns": [{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
            }],
        },
    });
    default_crd(&mut crd);
    crd
}

#[test]
fn names_are_completed() {
    let crd = crd();
    assert_eq!(crd["spec"]["names"]["singular"], "thing");
    assert_eq!(crd["spec"]["names"]["listKind"], "ThingList");
    assert_eq!(crd["spec"]["conversion"], json!({"strategy": "None"}));
    assert_eq!(texts(validate_crd(&crd)), Vec::<String>::new());
}

#[test]
fn bad_definitions_are_named() {
    let table: Vec<(&str, Value, &str)> = vec![
        (
            "/metadata/name",
            json!("x"),
            "metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group",
        ),
        (
            "/spec/group",
            json!("example"),
            "spec.group: Invalid value: \"example\": should be a domain with at least one dot",
        ),
        (
            "/spec/scope",
            json!("Galaxy"),
            "spec.scope: Unsupported value: \"Galaxy\": supported values: \"Cluster\", \"Namespaced\"",
        ),
        ("/spec/names/kind", json!("Th ing"), "spec.names.kind: Invalid value: \"Th ing\": may have mixed case"),
        (
            "/spec/names/listKind",
            json!("Thing"),
            "spec.names.listKind: Invalid value: \"Thing\": kind and listKind may not be the same",
        ),
        ("/spec/names/shortNames/0", json!("Th"), "spec.names.shortNames[0]: Invalid value: \"Th\""),
        (
            "/spec/versions/0/storage",
            json!(false),
            "spec.versions: Invalid value: [\"v1\"]: must have exactly one version marked as storage version",
        ),
        ("/spec/versions/0/served", json!(null), "spec.versions[0].served: Required value"),
        ("/spec/versions/0/name", json!("V1"), "spec.versions[0].name: Invalid value: \"V1\""),
        (
            "/spec/versions/0/schema",
            json!({}),
            "spec.versions[0].schema.openAPIV3Schema: Required value: schemas are required",
        ),
        (
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas",
            json!({}),
            "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[replicas].type: Required value",
        ),
        (
            "/spec/versions/0/subresources/scale/specReplicasPath",
            json!(".replicas"),
            "spec.versions[0].subresources.scale.specReplicasPath: Invalid value: \".replicas\": should be a json path under .spec",
        ),
        (
            "/spec/versions/0/additionalPrinterColumns/0/type",
            json!("datum"),
            "spec.versions[0].additionalPrinterColumns[0].type: Invalid value: \"datum\": must be one of boolean,date,integer,number,string",
        ),
        ("/spec/conversion/strategy", json!("Magic"), "spec.conversion.strategy: Unsupported value: \"Magic\""),
    ];
    for (pointer, value, expected) in table {
        let mut crd = crd();
        *crd.pointer_mut(pointer).unwrap() = value;
        if pointer == "/spec/group" {
            crd["metadata"]["name"] = json!("things.example");
        }
        let errors = texts(validate_crd(&crd));
        assert_eq!(errors.len(), 1, "{pointer}: {errors:?}");
        assert!(errors[0].starts_with(expected), "{} is not {expected}", errors[0]);
    }
}

#[test]
fn updates_keep_what_cannot_change() {
    let old = crd();
    assert_eq!(texts(validate_crd_update(&old, &old)), Vec::<String>::new());
    let mut changed = crd();
    changed["spec"]["scope"] = json!("Cluster");
    assert_eq!(
        texts(validate_crd_update(&changed, &old)),
        ["spec.scope: Invalid value: \"Cluster\": field is immutable"]
    );
    let mut lost = crd();
    lost["status"] = json!({"storedVersions": ["v1alpha1", "v1"]});
    assert!(
        texts(validate_crd_update(&lost, &old))[0]
            .starts_with("status.storedVersions[0]: Invalid value: \"v1alpha1\": missing from spec.versions")
    );
}
