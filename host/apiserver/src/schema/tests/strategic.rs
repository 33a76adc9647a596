//! Strategic merge patch.

use crate::schema::{Schema, builtins, strategic_merge};
use serde_json::{Value, json};

fn pod() -> Schema {
    (builtins().iter().find(|kind| kind.kind == "Pod").unwrap().schema)()
}

fn merged(live: Value, patch: Value) -> Value {
    strategic_merge(&pod(), &live, &patch).unwrap()
}

#[test]
fn patches_merge_by_key() {
    let live = json!({"metadata": {"labels": {"a": "1", "b": "2"}, "finalizers": ["x/y"]}, "spec": {
        "containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "1"}],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "t"}],
        "nodeSelector": {"n": "1"},
    }});
    let table: Vec<(&str, Value, &str, Value)> = vec![
        (
            "maps merge, null removes",
            json!({"metadata": {"labels": {"a": null, "c": "3"}}}),
            "/metadata/labels",
            json!({"b": "2", "c": "3"}),
        ),
        (
            "items merge by name, scalars lists are replaced",
            json!({"spec": {"containers": [{"name": "a", "args": ["y"]}]}}),
            "/spec/containers",
            json!([{"name": "a", "image": "1", "args": ["y"]}, {"name": "b", "image": "1"}]),
        ),
        (
            "new items come first, as upstream has it",
            json!({"spec": {"containers": [{"name": "c", "image": "2"}]}}),
            "/spec/containers",
            json!([{"name": "c", "image": "2"}, {"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "1"}]),
        ),
        (
            "items are deleted",
            json!({"spec": {"containers": [{"$patch": "delete", "name": "a"}]}}),
            "/spec/containers",
            json!([{"name": "b", "image": "1"}]),
        ),
        (
            "a list is replaced when it says so",
            json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "z", "image": "9"}]}}),
            "/spec/containers",
            json!([{"name": "z", "image": "9"}]),
        ),
        (
            "lists without a key are replaced",
            json!({"spec": {"tolerations": [{"key": "u"}]}}),
            "/spec/tolerations",
            json!([{"key": "u"}]),
        ),
        (
            "sets of scalars are united",
            json!({"metadata": {"finalizers": ["x/y", "x/z"]}}),
            "/metadata/finalizers",
            json!(["x/y", "x/z"]),
        ),
        (
            "scalars are taken out of sets",
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["x/y"]}}),
            "/metadata/finalizers",
            json!([]),
        ),
        (
            "an order is kept",
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "a", "image": "2"}]}}),
            "/spec/containers",
            json!([{"name": "b", "image": "1"}, {"name": "a", "image": "2", "args": ["x"]}]),
        ),
        (
            "an order alone moves items",
            json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
            "/spec/containers",
            json!([{"name": "b", "image": "1"}, {"name": "a", "image": "1", "args": ["x"]}]),
        ),
        (
            "keys are retained",
            json!({"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}),
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/"}}]),
        ),
        (
            "a map is replaced",
            json!({"metadata": {"labels": {"$patch": "replace", "z": "1"}}}),
            "/metadata/labels",
            json!({"z": "1"}),
        ),
        (
            "a field is deleted",
            json!({"spec": {"nodeSelector": {"$patch": "delete"}}}),
            "/spec/nodeSelector",
            Value::Null,
        ),
    ];
    for (what, patch, pointer, expected) in table {
        let out = merged(live.clone(), patch);
        assert_eq!(out.pointer(pointer).cloned().unwrap_or_default(), expected, "{what}");
        assert!(!out.to_string().contains('$'), "{what}: directives stay out of the object: {out}");
    }
}

#[test]
fn new_parts_come_without_directives_and_nulls() {
    let out = merged(
        json!({}),
        json!({"spec": {
            "$setElementOrder/containers": [{"name": "a"}],
            "containers": [{"name": "a", "image": null, "$retainKeys": ["name"]}],
        }}),
    );
    assert_eq!(out, json!({"spec": {"containers": [{"name": "a"}]}}));
}

#[test]
fn nonsense_is_refused() {
    let table = [
        (json!([]), "must be an object"),
        (json!({"spec": {"$patch": "explode"}}), "unknown $patch directive"),
        (json!({"spec": {"containers": [{"image": "x"}]}}), "does not contain declared merge key: name"),
        (json!({"spec": {"containers": ["x"]}}), "must be objects"),
        (json!({"spec": {"$retainKeys": "x"}}), "must be a list"),
    ];
    for (patch, expected) in table {
        let error = strategic_merge(&pod(), &json!({"spec": {"containers": [{"name": "a"}]}}), &patch).unwrap_err();
        assert!(error.contains(expected), "{error} for {patch}");
    }
}
