//! What makes a schema structural.

use super::texts;
use crate::schema::Schema;
use serde_json::{Value, json};

fn refused(spec: Value) -> Vec<String> {
    let schema = json!({"type": "object", "properties": {"f": spec}});
    Schema::compile(&schema).map_or_else(|error| texts(error.errors), |_| Vec::new())
}

#[test]
fn non_structural_places_are_named() {
    let at = "openAPIV3Schema.properties[f]";
    let table: Vec<(Value, &[&str])> = vec![
        (json!({"type": "string"}), &[]),
        (json!({}), &["{at}.type: Required value: must not be empty for specified object fields"]),
        (json!({"x-kubernetes-preserve-unknown-fields": true}), &[]),
        (
            json!({"type": "text"}),
            &[
                "{at}.type: Unsupported value: \"text\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        ),
        (json!({"type": "array"}), &["{at}.items: Required value: must be specified"]),
        (
            json!({"type": "array", "items": {}}),
            &["{at}.items.type: Required value: must not be empty for specified array items"],
        ),
        (
            json!({"type": "array", "items": [{"type": "string"}]}),
            &["{at}.items: Forbidden: items must be a schema object and not an array"],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            &["{at}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
        ),
        (
            json!({"type": "object", "additionalProperties": false}),
            &["{at}.additionalProperties: Forbidden: additionalProperties cannot be set to false"],
        ),
        (json!({"type": "string", "$ref": "#/x"}), &["{at}.$ref: Forbidden: $ref is not supported"]),
        (
            json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
            &[
                "{at}.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        ),
        (
            json!({"type": "object", "oneOf": [{"required": ["a"], "properties": {"a": {"minimum": 1}}}]}),
            &["{at}.properties[a]: Required value: because it is defined in {at}.oneOf[0].properties[a]"],
        ),
        (
            json!({"type": "string", "anyOf": [{"type": "string"}]}),
            &["{at}.anyOf[0].type: Forbidden: must be empty to be structural"],
        ),
        (
            json!({"type": "string", "allOf": [{"default": "x"}]}),
            &["{at}.allOf[0].default: Forbidden: must be empty to be structural"],
        ),
        (
            json!({"type": "string", "x-kubernetes-int-or-string": true}),
            &["{at}.type: Invalid value: \"string\": must be empty if x-kubernetes-int-or-string is true"],
        ),
        (
            json!({"type": "string", "pattern": "("}),
            &["{at}.pattern: Invalid value: \"(\": must be a valid regular expression"],
        ),
        (
            json!({"type": "integer", "default": "x"}),
            &["{at}.default: Invalid value: \"string\": {at}.default in body must be of type integer: \"string\""],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "default": {"b": 1}}),
            &["{at}.default.b: Invalid value: {\"b\":1}: must not have unknown fields"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}),
            &["{at}.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object"}}),
            &["{at}.x-kubernetes-list-map-keys: Invalid value: [\"k\"]: entries must all be names of item properties"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": {"type": "string"}}}}),
            &[
                "{at}.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        ),
        (
            json!({"type": "string", "x-kubernetes-list-type": "set"}),
            &["{at}.type: Invalid value: \"string\": must be array if x-kubernetes-list-type is specified"],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "bag", "items": {"type": "string"}}),
            &["{at}.x-kubernetes-list-type: Unsupported value: \"bag\""],
        ),
        (
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object", "properties": {"a": {"type": "string"}}}}),
            &[
                "{at}.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        ),
        (
            json!({"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
            &[
                "{at}.items.x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf cannot be used here",
            ],
        ),
        (json!("text"), &["{at}: Invalid value: \"text\": must be a schema object"]),
    ];
    for (schema, expected) in table {
        let found = refused(schema.clone());
        assert_eq!(found.len(), expected.len(), "{schema}: {found:?}");
        for (found, expected) in found.iter().zip(expected) {
            let expected = expected.replace("{at}", at);
            assert!(found.starts_with(&expected), "{schema}:\n  {found}\n  {expected}");
        }
    }
}

#[test]
fn the_root_is_an_object_and_metadata_is_the_servers() {
    let table = [
        (json!({}), "openAPIV3Schema.type: Required value: must not be empty at the root"),
        (json!({"type": "string"}), "openAPIV3Schema.type: Invalid value: \"string\": must be object at the root"),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            "openAPIV3Schema.properties[metadata]: Forbidden: must not specify anything other than name and generateName",
        ),
    ];
    for (schema, expected) in table {
        let error = Schema::compile(&schema).unwrap_err();
        assert!(error.errors[0].to_string().starts_with(expected), "{error}");
    }
}

#[test]
fn depth_is_bounded() {
    let mut schema = json!({"type": "string"});
    for _ in 0..120 {
        schema = json!({"type": "object", "properties": {"c": schema}});
    }
    assert!(Schema::compile(&schema).is_err());
}

#[test]
fn open_api_is_the_schema_with_what_every_object_has() {
    let schema = super::spec(json!({"list": {
        "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}, "description": "words",
    }}));
    let published = schema.open_api();
    let list = &published["properties"]["spec"]["properties"]["list"];
    assert_eq!((&list["x-kubernetes-list-type"], &list["description"]), (&json!("set"), &json!("words")));
    assert_eq!(published["properties"]["apiVersion"]["type"], "string");
    assert_eq!(published["properties"]["metadata"]["properties"]["name"]["type"], "string");
    assert!(!published.to_string().contains("$ref"));
    let components = schema.open_api_components("x.example.com.v1.Thing");
    assert_eq!(
        components["x.example.com.v1.Thing"]["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    assert!(components.contains_key("io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference"));
}
