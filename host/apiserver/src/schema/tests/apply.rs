//! Server-side apply and field ownership, after the scenarios of structured-merge-diff.

use super::{compiled, spec};
use crate::schema::{ApplyError, Kind, Schema, Versions, apply, builtins, differs, track_update};
use serde_json::{Value, json};

const T0: &str = "2026-01-01T00:00:00Z";
const T1: &str = "2026-01-01T00:01:00Z";
const T2: &str = "2026-01-01T00:02:00Z";

fn config_map() -> Schema {
    builtin("ConfigMap")
}

fn builtin(kind: &str) -> Schema {
    (builtins().iter().find(|k| k.kind == kind).unwrap().schema)()
}

/// A custom kind with every sort of list and map.
pub(super) fn thing() -> Schema {
    spec(json!({
        "replicas": {"type": "integer"},
        "name": {"type": "string"},
        "atomic": {"type": "array", "items": {"type": "string"}},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {
                "k": {"type": "string"}, "v": {"type": "string"}, "w": {"type": "string"},
            }}},
        "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "whole": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "nested": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
    }))
}

fn object(spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "namespace": "d"}, "spec": spec})
}

fn applied(schema: &Schema, live: Option<&Value>, spec: Value, manager: &str, now: &str) -> Value {
    apply(schema, live, &object(spec), manager, false, None, now).unwrap().object
}

fn updated(schema: &Schema, live: &Value, manager: &str, now: &str, change: impl Fn(&mut Value)) -> Value {
    let mut new = live.clone();
    change(&mut new);
    track_update(schema, Some(live), &mut new, manager, None, now);
    new
}

/// `manager/operation` to fields, for each entry.
pub(super) fn owners(object: &Value) -> Value {
    let mut out = serde_json::Map::new();
    for entry in object["metadata"]["managedFields"].as_array().into_iter().flatten() {
        let mut name = format!("{}/{}", entry["manager"].as_str().unwrap(), entry["operation"].as_str().unwrap());
        if let Some(subresource) = entry["subresource"].as_str() {
            name.push_str(&format!("/{subresource}"));
        }
        out.insert(name, entry["fieldsV1"].clone());
    }
    Value::Object(out)
}

#[test]
fn apply_creates_and_owns_what_it_says() {
    let object = apply(
        &config_map(),
        None,
        &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "d", "labels": {"l": "1"}}, "data": {"x": "1"}}),
        "kubectl",
        false,
        None,
        T0,
    )
    .unwrap()
    .object;
    assert_eq!(
        object["metadata"]["managedFields"],
        json!([{
            "manager": "kubectl", "operation": "Apply", "apiVersion": "v1", "time": T0, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {"f:x": {}}, "f:metadata": {"f:labels": {"f:l": {}}}},
        }])
    );
    let keys: Vec<&String> = object["metadata"]["managedFields"][0].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1"]);
}

#[test]
fn the_same_again_changes_nothing() {
    let schema = thing();
    let spec = json!({"replicas": 1, "set": ["a"], "keyed": [{"k": "x", "v": "1"}], "map": {"a": "b"}, "nested": {}});
    let first = applied(&schema, None, spec.clone(), "me", T0);
    assert_eq!(applied(&schema, Some(&first), spec.clone(), "me", T1), first);
    // Also with things in it that others own.
    let live = updated(&schema, &first, "other", T1, |o| o["spec"]["name"] = json!("n"));
    assert_eq!(applied(&schema, Some(&live), spec, "me", T2), live);
}

#[test]
fn what_is_not_applied_any_more_goes() {
    let schema = thing();
    let table: Vec<(&str, Value, Value, Value)> = vec![
        ("a scalar", json!({"replicas": 1, "name": "n"}), json!({"name": "n"}), json!({"name": "n"})),
        (
            "the key of a map",
            json!({"map": {"a": "1", "b": "2"}}),
            json!({"map": {"b": "2"}}),
            json!({"map": {"b": "2"}}),
        ),
        ("a whole map", json!({"name": "n", "map": {"a": "1"}}), json!({"name": "n"}), json!({"name": "n"})),
        ("the item of a set", json!({"set": ["a", "b"]}), json!({"set": ["b"]}), json!({"set": ["b"]})),
        (
            "the item of a keyed list",
            json!({"keyed": [{"k": "1", "v": "x"}, {"k": "2"}]}),
            json!({"keyed": [{"k": "2"}]}),
            json!({"keyed": [{"k": "2"}]}),
        ),
        (
            "a field of an item",
            json!({"keyed": [{"k": "1", "v": "x", "w": "y"}]}),
            json!({"keyed": [{"k": "1", "w": "y"}]}),
            json!({"keyed": [{"k": "1", "w": "y"}]}),
        ),
        (
            "an atomic list is replaced",
            json!({"atomic": ["a", "b"]}),
            json!({"atomic": ["c"]}),
            json!({"atomic": ["c"]}),
        ),
        (
            "an atomic map is replaced",
            json!({"whole": {"a": "1", "b": "2"}}),
            json!({"whole": {"b": "2"}}),
            json!({"whole": {"b": "2"}}),
        ),
        ("a struct", json!({"name": "n", "nested": {"a": "1"}}), json!({"name": "n"}), json!({"name": "n"})),
        (
            "free form",
            json!({"free": {"a": {"b": 1, "c": 2}}}),
            json!({"free": {"a": {"c": 2}}}),
            json!({"free": {"a": {"c": 2}}}),
        ),
        ("what is left empty on purpose stays", json!({"map": {"a": "1"}}), json!({"map": {}}), json!({"map": {}})),
    ];
    for (what, first, second, expected) in table {
        let live = applied(&schema, None, first, "me", T0);
        let out = applied(&schema, Some(&live), second, "me", T1);
        assert_eq!(out["spec"], expected, "{what}");
        assert_eq!(out["metadata"]["managedFields"][0]["time"], T1, "{what}");
        assert_eq!(out["metadata"]["managedFields"].as_array().unwrap().len(), 1, "{what}");
    }
}

#[test]
fn what_others_own_stays() {
    let schema = thing();
    let live =
        applied(&schema, None, json!({"replicas": 1, "map": {"a": "1"}, "keyed": [{"k": "1", "v": "x"}]}), "one", T0);
    let live = applied(
        &schema,
        Some(&live),
        json!({"replicas": 1, "map": {"a": "1", "b": "2"}, "keyed": [{"k": "1", "w": "y"}]}),
        "two",
        T1,
    );
    assert_eq!(
        owners(&live),
        json!({
            "one/Apply": {"f:spec": {"f:keyed": {"k:{\"k\":\"1\"}": {".": {}, "f:k": {}, "f:v": {}}}, "f:map": {"f:a": {}}, "f:replicas": {}}},
            "two/Apply": {"f:spec": {"f:keyed": {"k:{\"k\":\"1\"}": {".": {}, "f:k": {}, "f:w": {}}}, "f:map": {"f:a": {}, "f:b": {}}, "f:replicas": {}}},
        })
    );
    let live = applied(&schema, Some(&live), json!({"name": "n"}), "one", T2);
    assert_eq!(
        live["spec"],
        json!({"replicas": 1, "map": {"a": "1", "b": "2"}, "keyed": [{"k": "1", "w": "y"}], "name": "n"})
    );
    assert_eq!(owners(&live)["one/Apply"], json!({"f:spec": {"f:name": {}}}));
}

#[test]
fn what_nobody_owns_stays_where_it_is() {
    let schema = thing();
    let mut live = applied(&schema, None, json!({"keyed": [{"k": "1", "v": "x"}], "nested": {"a": "1"}}), "me", T0);
    // Defaults came in without an owner.
    live["spec"]["keyed"][0]["w"] = json!("default");
    live["spec"]["replicas"] = json!(1);
    let out = applied(&schema, Some(&live), json!({"keyed": [{"k": "1"}], "nested": {"a": "1"}}), "me", T1);
    assert_eq!(out["spec"], json!({"keyed": [{"k": "1", "w": "default"}], "nested": {"a": "1"}, "replicas": 1}));
    // With the item goes all of it.
    let out = applied(&schema, Some(&live), json!({"nested": {"a": "1"}}), "me", T1);
    assert_eq!(out["spec"], json!({"nested": {"a": "1"}, "replicas": 1}));
}

#[test]
fn conflicts_name_the_other_and_the_field() {
    let schema = config_map();
    let mut live =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "1", "y": "1"}});
    track_update(&schema, None, &mut live, "kubectl-client-side-apply", None, T0);
    let config =
        |data: Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data});
    let refused = |data: Value| match apply(&schema, Some(&live), &config(data), "me", false, None, T1) {
        Err(error @ ApplyError::Conflict(_)) => error,
        other => panic!("no conflict: {other:?}"),
    };
    let one = refused(json!({"x": "2", "y": "1"}));
    assert_eq!(
        one.to_string(),
        "Apply failed with 1 conflict: conflict with \"kubectl-client-side-apply\" using v1: .data.x"
    );
    let two = refused(json!({"x": "2", "y": "2"}));
    assert_eq!(
        two.to_string(),
        "Apply failed with 2 conflicts: conflicts with \"kubectl-client-side-apply\" using v1:\n- .data.x\n- .data.y"
    );
    let ApplyError::Conflict(conflicts) = one else { panic!() };
    assert_eq!(
        conflicts[0].cause(),
        (
            "FieldManagerConflict",
            "conflict with \"kubectl-client-side-apply\" using v1".to_owned(),
            ".data.x".to_owned()
        )
    );

    let forced = apply(&schema, Some(&live), &config(json!({"x": "2"})), "me", true, None, T1).unwrap().object;
    assert_eq!(forced["data"], json!({"x": "2", "y": "1"}));
    assert_eq!(
        owners(&forced),
        json!({"me/Apply": {"f:data": {"f:x": {}}}, "kubectl-client-side-apply/Update": {"f:data": {".": {}, "f:y": {}}}})
    );
}

#[test]
fn the_same_value_is_no_conflict_but_shared() {
    let schema = thing();
    let live = applied(&schema, None, json!({"replicas": 3}), "one", T0);
    let live = applied(&schema, Some(&live), json!({"replicas": 3}), "two", T1);
    assert_eq!(owners(&live).as_object().unwrap().len(), 2);
    let error = apply(&schema, Some(&live), &object(json!({"replicas": 4})), "two", false, None, T2).unwrap_err();
    assert_eq!(error.to_string(), "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
}

#[test]
fn an_update_takes_fields_over() {
    let schema = thing();
    let live = applied(&schema, None, json!({"replicas": 1, "name": "n"}), "me", T0);
    let live = updated(&schema, &live, "scaler", T1, |o| o["spec"]["replicas"] = json!(5));
    assert_eq!(
        owners(&live),
        json!({"me/Apply": {"f:spec": {"f:name": {}}}, "scaler/Update": {"f:spec": {"f:replicas": {}}}})
    );
    assert_eq!(live["metadata"]["managedFields"][0]["time"], T0);
    let error =
        apply(&schema, Some(&live), &object(json!({"replicas": 1, "name": "n"})), "me", false, None, T2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"scaler\" using example.com/v1: .spec.replicas"
    );
    // Giving the field up leaves the other's value.
    let out = applied(&schema, Some(&live), json!({"name": "n"}), "me", T2);
    assert_eq!(out["spec"], json!({"replicas": 5, "name": "n"}));
}

#[test]
fn what_an_update_removes_nobody_owns() {
    let schema = thing();
    let live = applied(&schema, None, json!({"map": {"a": "1", "b": "2"}, "set": ["x", "y"]}), "me", T0);
    let live = updated(&schema, &live, "other", T1, |o| {
        o["spec"]["map"].as_object_mut().unwrap().shift_remove("a");
        o["spec"]["set"] = json!(["y"]);
    });
    assert_eq!(owners(&live), json!({"me/Apply": {"f:spec": {"f:map": {"f:b": {}}, "f:set": {"v:\"y\"": {}}}}}));
}

#[test]
fn updates_are_shaped_as_upstream_shapes_them() {
    let schema = thing();
    let mut custom = object(
        json!({"replicas": 1, "keyed": [{"k": "1", "v": "x"}], "map": {"a": "1"}, "atomic": ["x"], "free": {"a": {"b": 1}}}),
    );
    custom["metadata"]["annotations"] = json!({"a": "b"});
    track_update(&schema, None, &mut custom, "kubectl-create", None, T0);
    assert_eq!(
        owners(&custom)["kubectl-create/Update"],
        json!({
            "f:metadata": {"f:annotations": {".": {}, "f:a": {}}},
            "f:spec": {
                ".": {}, "f:atomic": {}, "f:free": {".": {}, "f:a": {".": {}, "f:b": {}}},
                "f:keyed": {".": {}, "k:{\"k\":\"1\"}": {".": {}, "f:k": {}, "f:v": {}}},
                "f:map": {".": {}, "f:a": {}}, "f:replicas": {},
            },
        })
    );

    let deployment = builtin("Deployment");
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"app": "x"}},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "x"}}, "strategy": {"type": "Recreate"},
            "template": {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "resources": {}, "ports": [{"containerPort": 80, "protocol": "TCP"}]},
            ]}},
        },
        "status": {},
    });
    track_update(&deployment, None, &mut object, "kubectl-create", None, T0);
    assert_eq!(
        owners(&object)["kubectl-create/Update"],
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
            "f:spec": {
                "f:replicas": {}, "f:selector": {}, "f:strategy": {"f:type": {}},
                "f:template": {
                    "f:metadata": {"f:labels": {".": {}, "f:app": {}}},
                    "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
                        ".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                        "f:ports": {".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}, "f:protocol": {}}},
                    }}},
                },
            },
        })
    );
}

#[test]
fn an_update_without_a_change_keeps_everything() {
    let schema = thing();
    let live = applied(&schema, None, json!({"replicas": 1}), "me", T0);
    let live = updated(&schema, &live, "other", T1, |o| o["spec"]["name"] = json!("n"));
    assert_eq!(updated(&schema, &live, "third", T2, |_| {}), live);
    // Also when the client sends no managedFields.
    let bare = updated(&schema, &live, "third", T2, |o| {
        o["metadata"].as_object_mut().unwrap().shift_remove("managedFields");
    });
    assert_eq!(bare, live);
}

#[test]
fn clients_may_move_and_clear_ownership() {
    let schema = thing();
    let live = applied(&schema, None, json!({"replicas": 1}), "me", T0);
    let moved =
        updated(&schema, &live, "migrator", T1, |o| o["metadata"]["managedFields"][0]["manager"] = json!("new"));
    assert_eq!(owners(&moved), json!({"new/Apply": {"f:spec": {"f:replicas": {}}}}));
    let cleared = updated(&schema, &live, "migrator", T1, |o| o["metadata"]["managedFields"] = json!([{}]));
    assert_eq!(cleared["metadata"].get("managedFields"), None);
    // From then on, what was there is nobody's in particular.
    let config = object(json!({"replicas": 2}));
    let error = apply(&schema, Some(&cleared), &config, "me", false, None, T2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using example.com/v1: .spec.replicas"
    );
}

#[test]
fn status_is_a_manager_of_its_own() {
    let schema = thing();
    let live = applied(&schema, None, json!({"replicas": 1}), "me", T0);
    let mut new = live.clone();
    new["status"] = json!({"ready": 1});
    track_update(&schema, Some(&live), &mut new, "me", Some("status"), T1);
    assert_eq!(
        owners(&new),
        json!({"me/Apply": {"f:spec": {"f:replicas": {}}}, "me/Update/status": {"f:status": {".": {}, "f:ready": {}}}})
    );
    let mut config = object(json!({"replicas": 7}));
    config["status"] = json!({"phase": "Up"});
    config["metadata"]["labels"] = json!({"a": "b"});
    let out = apply(&schema, Some(&new), &config, "ctl", false, Some("status"), T2).unwrap().object;
    assert_eq!(out["spec"], json!({"replicas": 1}));
    assert_eq!(out["metadata"].get("labels"), None);
    assert_eq!(out["status"], json!({"ready": 1, "phase": "Up"}));
    assert_eq!(owners(&out)["ctl/Apply/status"], json!({"f:status": {"f:phase": {}}}));
    let last = out["metadata"]["managedFields"][1].as_object().unwrap().keys().next_back().unwrap().clone();
    assert_eq!(last, "subresource");
}

#[test]
fn lists_keep_an_order_that_makes_sense() {
    let schema = thing();
    let keys = |object: &Value| -> Vec<String> {
        object["spec"]["keyed"].as_array().unwrap().iter().map(|i| i["k"].as_str().unwrap().to_owned()).collect()
    };
    let items = |keys: &[&str]| json!({"keyed": keys.iter().map(|k| json!({"k": k})).collect::<Vec<_>>()});
    let table: Vec<(&[&str], &[&str], &[&str])> = vec![
        (&["a", "b", "c"], &["a", "b", "c"], &["a", "b", "c"]),
        (&["a", "b", "c"], &["d"], &["a", "b", "c", "d"]),
        (&["a", "b", "c"], &["b", "d"], &["a", "b", "c", "d"]),
        (&["a", "b", "c"], &["c", "a"], &["b", "c", "a"]),
        (&["a", "b"], &["x", "b"], &["a", "x", "b"]),
        (&[], &["a"], &["a"]),
    ];
    for (live, applied_keys, expected) in table {
        let first = applied(&schema, None, items(live), "one", T0);
        let out = applied(&schema, Some(&first), items(applied_keys), "two", T1);
        let mut sorted = keys(&out);
        sorted.sort();
        let mut wanted: Vec<&str> = expected.to_vec();
        wanted.sort_unstable();
        assert_eq!(sorted, wanted, "{live:?} + {applied_keys:?}");
        // Those that were applied stand in the applied order.
        let order: Vec<String> = keys(&out).into_iter().filter(|k| applied_keys.contains(&k.as_str())).collect();
        assert_eq!(order, applied_keys, "{live:?} + {applied_keys:?}");
        assert_eq!(keys(&out), expected, "{live:?} + {applied_keys:?}");
    }
}

#[test]
fn default_keys_identify() {
    let pod = builtin("Pod");
    let config = |ports: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "ports": ports}]}});
    let live = apply(&pod, None, &config(json!([{"containerPort": 80}])), "me", false, None, T0).unwrap().object;
    let fields = owners(&live)["me/Apply"].to_string();
    assert!(fields.contains(r#"k:{\"containerPort\":80,\"protocol\":\"TCP\"}"#), "{fields}");
    let mut defaulted = live.clone();
    pod.default(&mut defaulted);
    let again = apply(&pod, Some(&defaulted), &config(json!([{"containerPort": 80}])), "me", false, None, T1).unwrap();
    assert_eq!(again.object, defaulted);
    let out = apply(
        &pod,
        Some(&defaulted),
        &config(json!([{"containerPort": 80, "protocol": "UDP"}])),
        "me",
        false,
        None,
        T1,
    );
    assert_eq!(
        out.unwrap().object["spec"]["containers"][0]["ports"],
        json!([{"containerPort": 80, "protocol": "UDP"}])
    );
}

#[test]
fn nonsense_is_refused() {
    let schema = thing();
    let mut with_managed = object(json!({}));
    with_managed["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    let table = [
        (with_managed, "metadata.managedFields must be nil"),
        (
            object(json!({"keyed": [{"v": "x"}]})),
            ".spec.keyed: element 0: associative list with keys has an element that omits all key fields [\"k\"]",
        ),
        (object(json!({"keyed": [{"k": "x"}, {"k": "x"}]})), ".spec.keyed: duplicate entries for key [k=\"x\"]"),
        (json!("text"), "must be an object"),
    ];
    for (config, expected) in table {
        match apply(&schema, None, &config, "me", false, None, T0) {
            Err(ApplyError::Invalid(message)) => assert!(message.contains(expected), "{message}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn kubectl_takes_over_from_client_side_apply() {
    let schema = config_map();
    let last = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "annotations": {}}, "data": {"x": "1"}});
    let mut live = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "annotations": {
        "kubectl.kubernetes.io/last-applied-configuration": format!("{last}\n"),
    }}, "data": {"x": "1"}});
    track_update(&schema, None, &mut live, "kubectl-client-side-apply", None, T0);
    let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "2"}});
    let out = apply(&schema, Some(&live), &config, "kubectl", false, None, T1).unwrap().object;
    assert_eq!(out["data"]["x"], "2");
    let kept = out["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(kept).unwrap()["data"]["x"], "2");
    // Nobody else may.
    assert!(apply(&schema, Some(&live), &config, "somebody", false, None, T1).is_err());
    // And not where the value was changed since.
    let drifted = updated(&schema, &live, "other", T1, |o| o["data"]["x"] = json!("9"));
    assert!(apply(&schema, Some(&drifted), &config, "kubectl", false, None, T2).is_err());
}

#[test]
fn the_oldest_updaters_are_folded_into_one() {
    let schema = thing();
    let mut live = applied(&schema, None, json!({"replicas": 1}), "me", T0);
    for n in 0..14 {
        let now = format!("2026-01-01T01:{n:02}:00Z");
        live = updated(&schema, &live, &format!("m{n}"), &now, |o| o["spec"]["free"][format!("f{n}")] = json!(n));
    }
    let all = owners(&live);
    let names: Vec<&String> = all.as_object().unwrap().keys().collect();
    assert_eq!(names.len(), 11);
    assert!(names.iter().any(|name| *name == "me/Apply"), "{names:?}");
    let ancient = &all["ancient-changes/Update"]["f:spec"]["f:free"];
    assert!(ancient["f:f0"].is_object() && ancient["f:f4"].is_object() && ancient.get("f:f5").is_none(), "{ancient}");
    assert!(names.iter().any(|name| *name == "m13/Update"), "{names:?}");
}

#[test]
fn entries_are_sorted() {
    let schema = thing();
    let live = applied(&schema, None, json!({"replicas": 1}), "zed", T1);
    let live = updated(&schema, &live, "b", T0, |o| o["spec"]["name"] = json!("1"));
    let live = updated(&schema, &live, "a", T2, |o| o["spec"]["map"] = json!({"a": "1"}));
    let live = applied(&schema, Some(&live), json!({"set": ["x"]}), "abe", T2);
    let names: Vec<&str> =
        live["metadata"]["managedFields"].as_array().unwrap().iter().map(|e| e["manager"].as_str().unwrap()).collect();
    assert_eq!(names, ["zed", "abe", "b", "a"]);
}

#[test]
fn secrets_own_their_data() {
    let secret = builtin("Secret");
    let config = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"a": "x"}});
    let mut live = apply(&secret, None, &config, "me", false, None, T0).unwrap().object;
    // The text is the manager's; what is stored of it is nobody's.
    assert_eq!(owners(&live)["me/Apply"], json!({"f:stringData": {"f:a": {}}}));
    secret.default(&mut live);
    assert_eq!(live["data"], json!({"a": "eA=="}));
}

#[test]
fn times_alone_are_no_difference() {
    let schema = thing();
    let a = applied(&schema, None, json!({"replicas": 1}), "me", T0);
    let b = applied(&schema, None, json!({"replicas": 1}), "me", T1);
    assert_ne!(a, b);
    assert!(!differs(&a, &b));
    for change in [
        |o: &mut Value| o["spec"]["replicas"] = json!(2),
        |o: &mut Value| o["metadata"]["labels"] = json!({}),
        |o: &mut Value| o["metadata"]["managedFields"][0]["manager"] = json!("x"),
        |o: &mut Value| o["metadata"]["managedFields"] = json!([]),
        |o: &mut Value| o["status"] = json!({}),
    ] {
        let mut changed = a.clone();
        change(&mut changed);
        assert!(differs(&a, &changed) && differs(&changed, &a));
    }
}

#[test]
fn a_struct_that_is_a_scalar_now_is_taken_over_as_a_whole() {
    let schema =
        compiled(json!({"type": "object", "properties": {"spec": {"x-kubernetes-preserve-unknown-fields": true}}}));
    let live = applied(&schema, None, json!({"a": {"b": 1}}), "one", T0);
    let live = updated(&schema, &live, "two", T1, |o| o["spec"]["a"] = json!(1));
    assert_eq!(owners(&live), json!({"two/Update": {"f:spec": {"f:a": {}}}}));
}

/// `v1` says `size` where `v2` says `extent`.
struct Renamed {
    v1: Schema,
    v2: Schema,
}

impl Versions for Renamed {
    fn view(&self, object: &Value, api_version: &str) -> Option<(&Schema, Value)> {
        // A converter changes what is the kind's own; who owns which field stays as each has said it.
        let (schema, from, to) = match api_version {
            "example.com/v1" => (&self.v1, "extent", "size"),
            _ => (&self.v2, "size", "extent"),
        };
        let mut converted = object.clone();
        converted["apiVersion"] = api_version.into();
        if let Some(value) = converted["spec"].as_object_mut().and_then(|spec| spec.remove(from)) {
            converted["spec"][to] = value;
        }
        Some((schema, converted))
    }
}

#[test]
fn fields_are_owned_under_the_names_of_each_version() {
    let of = |name: &str| spec(json!({name: {"type": "string"}, "note": {"type": "string"}}));
    let both = Renamed { v1: of("size"), v2: of("extent") };
    let [v1, v2] = [&both.v1, &both.v2].map(|schema| Kind { schema, versions: Some(&both) });
    let first = apply(v1, None, &object(json!({"size": "a", "note": "n"})), "first", false, None, T0).unwrap().object;
    let (_, live) = both.view(&first, "example.com/v2").unwrap();
    let mut second = object(json!({"extent": "b"}));
    second["apiVersion"] = "example.com/v2".into();
    let conflict = apply(v2, Some(&live), &second, "second", false, None, T1).unwrap_err();
    assert!(
        matches!(&conflict, ApplyError::Conflict(all) if all.len() == 1 && all[0].field == ".spec.size"),
        "{conflict}"
    );
    // The first does without what it called by another name.
    let mut without = object(json!({"note": "m"}));
    without["apiVersion"] = "example.com/v2".into();
    let kept = apply(v2, Some(&live), &without, "first", false, None, T1).unwrap().object;
    assert_eq!(kept["spec"], json!({"note": "m"}));
    // An update of a field in one version takes it from whoever set it in the other.
    let mut changed = live.clone();
    changed["spec"]["extent"] = "c".into();
    track_update(v2, Some(&live), &mut changed, "third", None, T2);
    assert_eq!(owners(&changed)["first/Apply"], json!({"f:spec": {"f:note": {}}}));
}
