//! CEL: `x-kubernetes-validations`.

use super::{compiled, spec, texts};
use crate::schema::Schema;
use serde_json::{Value, json};

/// A schema with one rule on `spec`, which has `replicas`, `name`, `list` and more.
fn ruled(rule: Value) -> Result<Schema, Vec<String>> {
    Schema::compile(&json!({"type": "object", "properties": {"spec": {
        "type": "object",
        "x-kubernetes-validations": [rule],
        "properties": {
            "replicas": {"type": "integer"},
            "weight": {"type": "number"},
            "name": {"type": "string"},
            "list": {"type": "array", "items": {"type": "string"}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "some-field": {"type": "string"},
            "timeout": {"type": "string", "format": "duration"},
            "since": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
        },
    }}}))
    .map_err(|error| texts(error.errors))
}

fn outcome(rule: Value, new: Value, old: Option<Value>) -> Vec<String> {
    let schema = ruled(rule).unwrap();
    let wrap = |value: Value| json!({"spec": value});
    texts(schema.validate(&wrap(new), old.map(wrap).as_ref()))
}

#[test]
fn rules_pass_and_fail() {
    let table = [
        ("self.replicas >= 0", json!({"replicas": 1}), true),
        ("self.replicas >= 0", json!({"replicas": -1}), false),
        ("self.weight < 2.0", json!({"weight": 1}), true),
        ("has(self.name) || has(self.replicas)", json!({}), false),
        ("!has(self.name) || self.name.startsWith('a')", json!({"name": "abc"}), true),
        ("!has(self.name) || self.name.matches('^b')", json!({"name": "abc"}), false),
        ("self.list.all(x, self.list.exists_one(y, x == y))", json!({"list": ["a", "b"]}), true),
        ("self.list.all(x, self.list.exists_one(y, x == y))", json!({"list": ["a", "a"]}), false),
        ("self.list.filter(x, x != 'a').size() == 1", json!({"list": ["a", "b"]}), true),
        ("!('a.b/c' in self.labels)", json!({"labels": {"a.b/c": "x"}}), false),
        ("self.labels.all(k, self.labels[k] != '')", json!({"labels": {"x": "y"}}), true),
        ("self.some__dash__field == 'x'", json!({"some-field": "x"}), true),
        ("self.timeout > duration('1s')", json!({"timeout": "1m"}), true),
        ("self.since < timestamp('2030-01-01T00:00:00Z')", json!({"since": "2026-01-01T00:00:00Z"}), true),
        ("type(self.port) == int ? self.port < 10 : self.port == 'http'", json!({"port": 80}), false),
        ("isURL('https://' + self.name)", json!({"name": "a.example"}), true),
        ("quantity(self.name).isGreaterThan(quantity('1Gi'))", json!({"name": "2Gi"}), true),
        ("isCIDR(self.name)", json!({"name": "10.0.0.0/8"}), true),
    ];
    for (rule, value, good) in table {
        let errors = outcome(json!({"rule": rule}), value.clone(), None);
        assert_eq!(errors.is_empty(), good, "{rule} on {value}: {errors:?}");
    }
}

#[test]
fn messages_reasons_and_paths() {
    let value = json!({"replicas": -1, "name": "n"});
    let table = [
        (json!({"rule": "self.replicas >= 0"}), "spec: Invalid value: failed rule: self.replicas >= 0"),
        (
            json!({"rule": "self.replicas >= 0", "message": "must not be negative"}),
            "spec: Invalid value: must not be negative",
        ),
        (
            json!({"rule": "self.replicas >= 0", "message": "static", "messageExpression": "self.name + ' has ' + string(self.replicas)"}),
            "spec: Invalid value: n has -1",
        ),
        // A message that cannot be made falls back.
        (
            json!({"rule": "self.replicas >= 0", "message": "static", "messageExpression": "self.nothere"}),
            "spec: Invalid value: static",
        ),
        (
            json!({"rule": "self.replicas >= 0", "message": "no", "fieldPath": ".replicas"}),
            "spec.replicas: Invalid value: no",
        ),
        (
            json!({"rule": "self.replicas >= 0", "message": "no", "reason": "FieldValueForbidden"}),
            "spec: Forbidden: no",
        ),
        (
            json!({"rule": "self.replicas >= 0", "message": "no", "reason": "FieldValueRequired"}),
            "spec: Required value: no",
        ),
    ];
    for (rule, expected) in table {
        assert_eq!(outcome(rule.clone(), value.clone(), None), [expected], "{rule}");
    }
}

#[test]
fn transition_rules_look_back() {
    let immutable = json!({"rule": "self.name == oldSelf.name", "message": "name is immutable"});
    let table = [
        (json!({"name": "a"}), None, true),
        (json!({"name": "a"}), Some(json!({"name": "a"})), true),
        (json!({"name": "b"}), Some(json!({"name": "a"})), false),
    ];
    for (new, old, good) in table {
        assert_eq!(outcome(immutable.clone(), new, old).is_empty(), good);
    }
    let optional =
        json!({"rule": "!oldSelf.hasValue() || self.replicas >= oldSelf.value().replicas", "optionalOldSelf": true});
    assert!(outcome(optional.clone(), json!({"replicas": 1}), None).is_empty());
    assert!(outcome(optional.clone(), json!({"replicas": 2}), Some(json!({"replicas": 1}))).is_empty());
    assert!(!outcome(optional, json!({"replicas": 1}), Some(json!({"replicas": 2}))).is_empty());
    let creating = json!({"rule": "oldSelf.hasValue() || self.name != ''", "optionalOldSelf": true});
    assert!(!outcome(creating, json!({"name": ""}), None).is_empty());
}

#[test]
fn items_of_a_keyed_list_find_their_former_selves() {
    let item = json!({"type": "object", "required": ["k"], "properties": {
        "k": {"type": "string"},
        "v": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "immutable"}]},
    }});
    let schema = spec(json!({"keyed": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": item,
    }}));
    let object = |items: Value| json!({"spec": {"keyed": items}});
    let old = object(json!([{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]));
    let moved = object(json!([{"k": "c", "v": "9"}, {"k": "b", "v": "2"}, {"k": "a", "v": "1"}]));
    assert_eq!(texts(schema.validate(&moved, Some(&old))), Vec::<String>::new());
    let changed = object(json!([{"k": "b", "v": "3"}]));
    assert_eq!(texts(schema.validate(&changed, Some(&old))), ["spec.keyed[0].v: Invalid value: \"3\": immutable"]);
}

#[test]
fn rules_below_and_at_the_root_run() {
    let schema = compiled(json!({
        "type": "object",
        "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('a')", "message": "name"}],
        "properties": {"spec": {"type": "object", "properties": {"map": {"type": "object", "additionalProperties": {
            "type": "integer", "x-kubernetes-validations": [{"rule": "self > 0", "message": "positive"}],
        }}}}},
    }));
    assert_eq!(
        texts(schema.validate(&json!({"metadata": {"name": "b"}, "spec": {"map": {"x": 0, "y": 1}}}), None)),
        ["<nil>: Invalid value: name", "spec.map.x: Invalid value: 0: positive"]
    );
}

#[test]
fn a_rule_that_cannot_be_evaluated_fails_the_object() {
    let table = [
        (
            "self.replicas > 0",
            json!({}),
            "spec: Invalid value: \"object\": no such key: replicas evaluating rule: self.replicas > 0",
        ),
        (
            "self.list.sortBy(x, x) == []",
            json!({"list": ["a"]}),
            "spec: Invalid value: \"object\": 'sortBy' is a function or macro that this server does not have, used in rule: \
             self.list.sortBy(x, x) == []",
        ),
    ];
    for (rule, value, expected) in table {
        let errors = outcome(json!({"rule": rule}), value, None);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0], expected);
    }
}

#[test]
fn rules_wait_for_a_sound_object() {
    let rule = json!({"rule": "self.replicas > 0", "message": "positive"});
    let errors = outcome(rule, json!({"replicas": "x"}), None);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[1].starts_with("<nil>: Invalid value: null: some validation rules were not checked"), "{errors:?}");
}

#[test]
fn unchanged_values_are_not_judged_again() {
    let rule = json!({"rule": "self.replicas > 0"});
    assert!(outcome(rule.clone(), json!({"replicas": 0}), Some(json!({"replicas": 0}))).is_empty());
    assert!(!outcome(rule, json!({"replicas": 0}), Some(json!({"replicas": 1}))).is_empty());
}

#[test]
fn bad_rules_are_refused_with_their_path() {
    let table = [
        (json!({"rule": ""}), "rule: Required value: rule is not specified"),
        (json!({"rule": "self.replicas >="}), "rule: Invalid value: \"self.replicas >=\": compilation failed"),
        (
            json!({"rule": "foo > 0"}),
            "rule: Invalid value: \"foo > 0\": compilation failed: undeclared reference to 'foo'",
        ),
        (json!({"rule": "true", "messageExpression": "1 +"}), "messageExpression: Invalid value"),
        (json!({"rule": "true", "message": ""}), "message: Invalid value: \"\": must be non-empty if specified"),
        (json!({"rule": "true", "reason": "Because"}), "reason: Unsupported value: \"Because\""),
        (json!({"rule": "true", "optionalOldSelf": true}), "optionalOldSelf: Invalid value: true: may not be set"),
    ];
    for (rule, expected) in table {
        let errors = ruled(rule.clone()).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        let prefix = "openAPIV3Schema.properties[spec].x-kubernetes-validations[0].";
        assert!(errors[0].starts_with(&format!("{prefix}{expected}")), "{} for {rule}", errors[0]);
    }
}

/// Rules come with providers: none may hold up the server.
#[test]
fn loops_without_bound_are_not_run() {
    let rule = "self.list.all(x, self.list.all(y, self.list.all(z, x != y || y != z || x == z)))";
    let list: Vec<String> = (0..1000).map(|n| n.to_string()).collect();
    let errors = outcome(json!({"rule": rule}), json!({"list": list}), None);
    assert!(errors[0].contains("3 nested loops over up to 1000 items are too many steps"), "{errors:?}");
    assert!(outcome(json!({"rule": rule}), json!({"list": ["a", "b"]}), None).is_empty());
    let split = "self.name.split('').all(x, self.name.split('').all(y, self.name.split('').all(z, x == z)))";
    let errors = outcome(json!({"rule": split}), json!({"name": "x".repeat(1000)}), None);
    assert!(errors[0].contains("too many steps"), "{errors:?}");
}

#[test]
fn patterns_that_explode_are_refused() {
    let schema =
        json!({"type": "object", "properties": {"f": {"type": "string", "pattern": "((a{1000}){1000}){1000}"}}});
    assert!(Schema::compile(&schema).is_err());
}

/// None of these may take the process down, neither while it is compiled nor while it is evaluated.
#[test]
fn rules_nested_without_end_are_refused() {
    let around =
        |open: &str, n: usize, inner: &str, close: &str| format!("{}{inner}{}", open.repeat(n), close.repeat(n));
    let table = [
        (around("(", 300, "true", ")"), false),
        (around("[", 300, "1", "]"), false),
        (format!("self.replicas{} > 0", " + 1".repeat(300)), false),
        (format!("has(self{})", ".a".repeat(300)), false),
        (format!("{}true", "true ? true : ".repeat(250)), false),
        (around("[1].all(x, ", 100, "true", ")"), false),
        ("x".repeat(10_000), false),
        (around("(", 20, "self.replicas > 0", ")"), true),
        (format!("self.replicas{} > 0", " + 1".repeat(150)), true),
        (around("[1].all(x, ", 4, "self.replicas > 0", ")"), true),
    ];
    for (rule, good) in table {
        let schema = ruled(json!({"rule": rule}));
        assert_eq!(schema.is_ok(), good, "{:.40} {schema:?}", rule);
        if let Ok(schema) = schema {
            assert_eq!(
                texts(schema.validate(&json!({"spec": {"replicas": 1}}), None)),
                Vec::<String>::new(),
                "{rule:.40}"
            );
        }
    }
}
