//! Pruning, defaulting and validation without CEL.

use super::{compiled, spec, texts};
use crate::schema::Schema;
use serde_json::{Value, json};

#[test]
fn unknown_fields_go_and_are_named() {
    let schema = spec(json!({
        "known": {"type": "string"},
        "nested": {"type": "object", "properties": {"a": {"type": "string"}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "shut": {"type": "object", "properties": {"a": {"type": "string"}}},
        }},
        "anything": {"x-kubernetes-preserve-unknown-fields": true},
        "resource": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
    }));
    let mut object = json!({
        "apiVersion": "a/v1", "kind": "K", "extra": 1,
        "metadata": {"name": "n", "labels": {"a": "b"}, "foo": "bar", "ownerReferences": [{"name": "x", "bar": 1}]},
        "spec": {
            "known": "x", "unknown": "y",
            "nested": {"a": "x", "b": "y"},
            "list": [{"a": "x"}, {"a": "x", "b": "y"}],
            "map": {"k": {"a": "x", "b": "y"}},
            "open": {"more": {"deep": 1}, "shut": {"a": "x", "b": "y"}},
            "anything": {"goes": [1, {"x": 2}]},
            "resource": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "foo": 1}, "spec": {"x": 1}},
        },
        "status": {"free": {"form": true}},
    });
    let removed = schema.prune(&mut object);
    assert_eq!(
        removed,
        [
            "extra",
            "metadata.foo",
            "metadata.ownerReferences[0].bar",
            "spec.unknown",
            "spec.nested.b",
            "spec.list[1].b",
            "spec.map.k.b",
            "spec.open.shut.b",
            "spec.resource.metadata.foo",
        ]
    );
    assert_eq!(object["spec"]["open"], json!({"more": {"deep": 1}, "shut": {"a": "x"}}));
    assert_eq!(object["spec"]["anything"], json!({"goes": [1, {"x": 2}]}));
    assert_eq!(object["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(schema.prune(&mut object), Vec::<String>::new());
}

#[test]
fn defaults_fill_what_is_missing() {
    let schema = spec(json!({
        "replicas": {"type": "integer", "default": 1},
        "nullable": {"type": "string", "nullable": true, "default": "x"},
        "strict": {"type": "string", "default": "x"},
        "plain": {"type": "string"},
        "nested": {"type": "object", "default": {}, "properties": {"port": {"type": "integer", "default": 6443}}},
        "absent": {"type": "object", "properties": {"port": {"type": "integer", "default": 6443}}},
        "list": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string", "default": "TCP"}}}},
        "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "integer", "default": 7}}}},
    }));
    let mut object = json!({"spec": {
        "nullable": null, "strict": null, "plain": null, "list": [{}, {"p": "UDP"}], "map": {"k": {}},
    }});
    schema.default(&mut object);
    assert_eq!(
        object,
        json!({"spec": {
            "nullable": null, "strict": "x", "replicas": 1, "nested": {"port": 6443},
            "list": [{"p": "TCP"}, {"p": "UDP"}], "map": {"k": {"a": 7}},
        }})
    );
    // Nothing is made up where the parent is missing.
    let mut empty = json!({});
    schema.default(&mut empty);
    assert_eq!(empty, json!({}));
    let mut null_time = json!({"metadata": {"name": "n", "creationTimestamp": null}});
    schema.default(&mut null_time);
    assert_eq!(null_time, json!({"metadata": {"name": "n"}}));
}

fn errors_of(property: Value, value: Value) -> Vec<String> {
    let schema = spec(json!({"f": property}));
    texts(schema.validate(&json!({"spec": {"f": value}}), None))
}

#[test]
fn values_are_validated_in_the_words_of_kubernetes() {
    let string = json!({"type": "string"});
    let table: Vec<(Value, Value, &[&str])> = vec![
        (string.clone(), json!("x"), &[]),
        (
            string.clone(),
            json!(1),
            &["spec.f: Invalid value: \"integer\": spec.f in body must be of type string: \"integer\""],
        ),
        (string, json!(null), &["spec.f: Invalid value: \"null\": spec.f in body must be of type string: \"null\""]),
        (json!({"type": "string", "nullable": true}), json!(null), &[]),
        (json!({"type": "integer"}), json!(1.0), &[]),
        (
            json!({"type": "integer"}),
            json!(1.5),
            &[
                "spec.f: Invalid value: \"number\": spec.f in body must be of type integer: \"number\"",
                "<nil>: Invalid value: \"\": Checked value must be of type integer (default format) in spec.f",
            ],
        ),
        (json!({"type": "number"}), json!(1), &[]),
        (
            json!({"type": "integer", "format": "int32"}),
            json!(3_000_000_000u64),
            &["<nil>: Invalid value: \"\": Checked value must be of type integer with format int32 in spec.f"],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"]}),
            json!("c"),
            &["spec.f: Unsupported value: \"c\": supported values: \"a\", \"b\""],
        ),
        (json!({"type": "string", "maxLength": 2}), json!("éé"), &[]),
        (json!({"type": "string", "maxLength": 2}), json!("abc"), &["spec.f: Too long: may not be more than 2 bytes"]),
        (
            json!({"type": "string", "minLength": 2}),
            json!("a"),
            &["spec.f: Invalid value: \"a\": spec.f in body should be at least 2 chars long"],
        ),
        (
            json!({"type": "string", "pattern": "^a+$"}),
            json!("b"),
            &["spec.f: Invalid value: \"b\": spec.f in body should match '^a+$'"],
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            json!("now"),
            &["spec.f: Invalid value: \"now\": spec.f in body must be of type date-time: \"now\""],
        ),
        (
            json!({"type": "integer", "minimum": 1}),
            json!(0),
            &["spec.f: Invalid value: 0: spec.f in body should be greater than or equal to 1"],
        ),
        (
            json!({"type": "integer", "maximum": 1, "exclusiveMaximum": true}),
            json!(1),
            &["spec.f: Invalid value: 1: spec.f in body should be less than 1"],
        ),
        (
            json!({"type": "integer", "multipleOf": 2}),
            json!(3),
            &["spec.f: Invalid value: 3: spec.f in body should be a multiple of 2"],
        ),
        (
            json!({"type": "array", "maxItems": 1, "items": {"type": "integer"}}),
            json!([1, 2]),
            &["spec.f: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "array", "minItems": 1, "items": {"type": "integer"}}),
            json!([]),
            &["spec.f: Invalid value: 0: spec.f in body should have at least 1 items"],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}}),
            json!([1, "x"]),
            &["spec.f[1]: Invalid value: \"string\": spec.f[1] in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "integer"}}),
            json!({"a": 1, "b": 2}),
            &["spec.f: Too many: 2: must have at most 1 item"],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            json!({"a": "x"}),
            &["spec.f.a: Invalid value: \"string\": spec.f.a in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
            json!({}),
            &["spec.f.a: Required value"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}),
            json!(["a", "b", "a", "a"]),
            &["spec.f[2]: Duplicate value: \"a\""],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}}),
            json!([{"k": "a", "v": "1"}, {"k": "a", "v": "2"}]),
            &["spec.f[1]: Duplicate value: {\"k\":\"a\"}"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
            json!({"a": "x", "b": "y"}),
            &[
                "<nil>: Invalid value: \"\": \"spec.f\" must validate one and only one schema (oneOf). Found 2 valid alternatives",
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "oneOf": [{"required": ["a"]}]}),
            json!({}),
            &[
                "<nil>: Invalid value: \"\": \"spec.f\" must validate one and only one schema (oneOf). Found none valid",
                "spec.f.a: Required value",
            ],
        ),
        (
            json!({"type": "string", "not": {"pattern": "^x"}}),
            json!("xy"),
            &["<nil>: Invalid value: \"\": \"spec.f\" must not validate the schema (not)"],
        ),
        (
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "allOf": [{"properties": {"n": {"minimum": 5}}}]}),
            json!({"n": 1}),
            &[
                "spec.f.n: Invalid value: 1: spec.f.n in body should be greater than or equal to 5",
                "<nil>: Invalid value: \"\": \"spec.f\" must validate all the schemas (allOf). None validated",
            ],
        ),
        (
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
            json!({"apiVersion": "v1", "metadata": {"name": 1}}),
            &[
                "spec.f.kind: Required value",
                "spec.f.metadata.name: Invalid value: \"integer\": spec.f.metadata.name in body must be of type string: \"integer\"",
            ],
        ),
    ];
    for (property, value, expected) in table {
        assert_eq!(errors_of(property.clone(), value.clone()), expected, "{property} {value}");
    }
}

/// kubernetes/kubernetes#78817: only whole numbers and strings pass; a pattern is for strings.
#[test]
fn int_or_string_means_what_it_says() {
    for anyof in [false, true] {
        let mut property = json!({"x-kubernetes-int-or-string": true, "pattern": "^[0-9]+%$"});
        if anyof {
            property["anyOf"] = json!([{"type": "integer"}, {"type": "string"}]);
        }
        for (value, good) in [
            (json!(7), true),
            (json!("30%"), true),
            (json!("abc"), false),
            (json!(true), false),
            (json!(1.5), false),
            (json!({}), false),
            (json!([]), false),
        ] {
            assert_eq!(errors_of(property.clone(), value.clone()).is_empty(), good, "{value}");
        }
    }
}

#[test]
fn metadata_types_are_checked() {
    let schema = spec(json!({}));
    let errors = schema.validate(&json!({"apiVersion": 1, "metadata": {"labels": {"a": 1}, "finalizers": "x"}}), None);
    let paths: Vec<String> = errors.into_iter().map(|error| error.path).collect();
    assert_eq!(paths, ["apiVersion", "metadata.labels.a", "metadata.finalizers"]);
}

#[test]
fn a_crd_may_restrict_its_names() {
    let schema = compiled(json!({"type": "object", "properties": {
        "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}},
    }}));
    assert_eq!(
        texts(schema.validate(&json!({"metadata": {"name": "abcd", "labels": {}}}), None)),
        ["metadata.name: Too long: may not be more than 3 bytes"]
    );
}

#[test]
fn what_an_update_leaves_alone_is_not_held_against_it() {
    let schema = spec(json!({
        "a": {"type": "string", "maxLength": 2},
        "b": {"type": "string"},
        "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
    }));
    let old = json!({"spec": {"a": "long", "b": "x", "keyed": [{"k": "1", "v": "long"}]}});
    let other = json!({"spec": {"a": "long", "b": "y", "keyed": [{"k": "0"}, {"k": "1", "v": "long"}]}});
    assert_eq!(texts(schema.validate(&other, Some(&old))), Vec::<String>::new());
    let worse = json!({"spec": {"a": "longer", "b": "x", "keyed": [{"k": "1", "v": "longer"}]}});
    let paths: Vec<String> = schema.validate(&worse, Some(&old)).into_iter().map(|e| e.path).collect();
    assert_eq!(paths, ["spec.a", "spec.keyed[0].v"]);
}

#[test]
fn without_a_schema_everything_stays_but_metadata_is_metadata() {
    let schema = Schema::preserve_all();
    let mut object =
        json!({"apiVersion": "a/v1", "kind": "K", "metadata": {"name": "n", "x": 1}, "any": {"thing": [1]}});
    assert_eq!(schema.prune(&mut object), ["metadata.x"]);
    assert_eq!(object["any"], json!({"thing": [1]}));
    assert_eq!(schema.validate(&object, None), vec![]);
}
