//! What a structural schema accepts, prunes, fills in and refuses, CEL rules included.

use crate::definitions::{definition, object_schema};
use crate::session::{Own, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

/// Sends each spec as a new object of its own.
async fn try_all(s: &mut Session, group: &str, specs: Vec<Value>) {
    s.namespace(group.split('.').next().unwrap()).await;
    let path = format!("/apis/{group}/v1/namespaces/{}/things", group.split('.').next().unwrap());
    for (index, spec) in specs.into_iter().enumerate() {
        s.note("spec", spec.clone());
        let body = json!({"apiVersion": format!("{group}/v1"), "kind": "Thing", "metadata": {"name": format!("t{index}")}, "spec": spec});
        s.post(&path, &body).await;
    }
}

#[tokio::test]
async fn every_constraint() {
    compare(async |s: &mut Session| {
        s.install(&definition("constraints.diff.dev", "things", "Thing", object_schema(json!({
            "i": {"type": "integer", "minimum": 1, "maximum": 5}, "ix": {"type": "integer", "minimum": 1, "exclusiveMinimum": true, "maximum": 5, "exclusiveMaximum": true},
            "i32": {"type": "integer", "format": "int32"}, "n": {"type": "number", "multipleOf": 2}, "b": {"type": "boolean"},
            "s": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"}, "e": {"type": "string", "enum": ["a", "b"]},
            "date": {"type": "string", "format": "date-time"}, "ip": {"type": "string", "format": "ipv4"}, "cidr": {"type": "string", "format": "cidr"},
            "uri": {"type": "string", "format": "uri"}, "dur": {"type": "string", "format": "duration"}, "byte": {"type": "string", "format": "byte"}, "uuid": {"type": "string", "format": "uuid"},
            "arr": {"type": "array", "minItems": 1, "maxItems": 2, "items": {"type": "string"}},
            "obj": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer"}},
            "req": {"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "string"}, "y": {"type": "string"}}},
            "nul": {"type": "string", "nullable": true},
            "any": {"type": "string", "anyOf": [{"pattern": "^a"}, {"minLength": 5}]},
            "one": {"type": "string", "oneOf": [{"pattern": "^a"}, {"minLength": 5}]},
            "all": {"type": "string", "allOf": [{"pattern": "^a"}, {"minLength": 5}]},
            "not": {"type": "string", "not": {"pattern": "^a"}},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}}})))).await;
        try_all(s, "constraints.diff.dev", vec![
            json!({"i": 0}), json!({"i": 6}), json!({"i": 1.0}), json!({"i": 1.5}), json!({"i": "1"}), json!({"i": null}), json!({"i": true}),
            json!({"ix": 1}), json!({"ix": 5}), json!({"ix": 3}), json!({"i32": 2147483648_i64}), json!({"i32": -2147483649_i64}),
            json!({"n": 3}), json!({"n": 4}), json!({"n": 1.5}), json!({"b": "true"}), json!({"b": 0}), json!({"b": false}),
            json!({"s": "a"}), json!({"s": "abcde"}), json!({"s": "AB"}), json!({"s": 5}), json!({"e": "c"}), json!({"e": ""}),
            json!({"date": "2020-01-01"}), json!({"date": "2020-01-01T00:00:00Z"}), json!({"ip": "1.2.3"}), json!({"ip": "1.2.3.4"}), json!({"cidr": "10.0.0.0"}), json!({"cidr": "10.0.0.0/8"}),
            json!({"uri": "not a uri"}), json!({"uri": "https://x/y"}), json!({"dur": "5"}), json!({"dur": "5s"}), json!({"byte": "%%"}), json!({"byte": "eA=="}), json!({"uuid": "x"}),
            json!({"arr": []}), json!({"arr": ["a", "b", "c"]}), json!({"arr": [1]}), json!({"arr": "x"}), json!({"arr": {}}), json!({"arr": [null]}),
            json!({"obj": {}}), json!({"obj": {"a": 1, "b": 2, "c": 3}}), json!({"obj": {"a": "x"}}), json!({"obj": []}),
            json!({"req": {}}), json!({"req": {"x": "1"}}), json!({"req": {"x": "1", "y": null}}), json!({"nul": null}), json!({"nul": 1}),
            json!({"any": "b"}), json!({"any": "a"}), json!({"one": "abcdef"}), json!({"one": "b"}), json!({"one": "a"}), json!({"all": "b"}), json!({"not": "abc"}),
            json!({"set": ["a", "a"]}), json!({"keyed": [{"k": "a"}, {"k": "a"}]}), json!({"keyed": [{"v": "a"}]}), json!({"keyed": [{"k": "a", "v": "1"}, {"k": "b"}]}),
            json!([]), json!("x"), json!(null),
        ])
        .await;
    })
    .await;
}

#[tokio::test]
async fn fields_that_are_not_in_the_schema() {
    compare(async |s: &mut Session| {
        s.install(&definition("open.diff.dev", "things", "Thing", object_schema(json!({
            "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "object", "properties": {"a": {"type": "string", "default": "dflt"}}}}},
            "anything": {"x-kubernetes-preserve-unknown-fields": true},
            "embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
            "closed-embedded": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object", "properties": {"x": {"type": "string"}}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"a": {"type": "string", "default": "dflt"}}}},
            "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string", "default": "dflt"}}}},
            "typed": {"type": "object", "additionalProperties": {"type": "integer"}}})))).await;
        try_all(s, "open.diff.dev", vec![
            json!({"unknown": 1}),
            json!({"open": {"x": {"y": [1]}, "known": {"a": "1", "gone": 1}}}),
            json!({"open": {"known": {}}}),
            json!({"anything": [1, {"x": null}]}), json!({"anything": "text"}), json!({"anything": null}),
            json!({"embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "nope": 1}, "spec": {"any": 1}}}),
            json!({"embedded": {"kind": "Pod"}}), json!({"embedded": {}}), json!({"embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "Bad_", "labels": {"a b": "c"}}}}),
            json!({"closed-embedded": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": {"x": "1", "y": "2"}, "status": {}}}),
            json!({"map": {"k": {}, "l": {"a": "1", "b": "2"}, "n": null}}), json!({"list": [{}, {"a": "1", "b": "2"}, null]}), json!({"list": [null]}),
        ])
        .await;
    })
    .await;
}

#[tokio::test]
async fn rules() {
    compare(async |s: &mut Session| {
        s.namespace("rules").await;
        let schema = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "min": {"type": "integer"}, "max": {"type": "integer"},
                "name": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "name is immutable"}]},
                "host": {"type": "string", "x-kubernetes-validations": [{"rule": "self.endsWith('.dev')", "messageExpression": "'must end with .dev, not ' + self", "reason": "FieldValueForbidden", "fieldPath": null}]},
                "url": {"type": "string", "x-kubernetes-validations": [{"rule": "isURL(self) && url(self).getScheme() == 'https'"}]},
                "qty": {"type": "string", "x-kubernetes-validations": [{"rule": "quantity(self).isGreaterThan(quantity('1Gi'))"}]},
                "ip": {"type": "string", "x-kubernetes-validations": [{"rule": "isIP(self) && ip(self).family() == 4"}]},
                "list": {"type": "array", "maxItems": 10, "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": "self.all(x, x > 0) && self.isSorted()", "message": "sorted and positive"}]},
                "keyed": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object", "required": ["k"],
                    "properties": {"k": {"type": "string", "maxLength": 10}, "v": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "v must not shrink"}]}}}},
                "map": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 10}, "x-kubernetes-validations": [{"rule": "self.exists(k, k == 'must')", "message": "must is missing"}]},
                "opt": {"type": "string"}, "ios": {"x-kubernetes-int-or-string": true, "x-kubernetes-validations": [{"rule": "type(self) == int ? self > 0 : self.endsWith('%')", "message": "positive or a percentage"}]},
                "born": {"type": "integer", "x-kubernetes-validations": [{"rule": "oldSelf.hasValue() || self == 1", "optionalOldSelf": true, "message": "begins at 1"}]},
                "when": {"type": "string", "format": "date-time", "x-kubernetes-validations": [{"rule": "self > timestamp('2020-01-01T00:00:00Z')"}]},
                "dur": {"type": "string", "format": "duration", "x-kubernetes-validations": [{"rule": "self <= duration('1h')"}]}},
                "x-kubernetes-validations": [
                    {"rule": "!has(self.min) || !has(self.max) || self.min <= self.max", "message": "min must not be above max", "fieldPath": ".min"},
                    {"rule": "has(self.opt) == has(oldSelf.opt)", "message": "opt must not come or go", "reason": "FieldValueRequired"}]}},
            "x-kubernetes-validations": [{"rule": "self.metadata.name.startsWith('r')", "message": "names begin with r"}]});
        s.install(&definition("rules.diff.dev", "things", "Thing", schema)).await;
        let path = "/apis/rules.diff.dev/v1/namespaces/rules/things";
        let body = |name: &str, spec: &Value| json!({"apiVersion": "rules.diff.dev/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec});
        s.post(path, &body("x", &json!({}))).await;
        for (index, spec) in [
            json!({"min": 2, "max": 1}), json!({"min": 1, "max": 1}), json!({"host": "a.com"}), json!({"host": "a.dev"}), json!({"url": "http://x"}), json!({"url": "https://x"}), json!({"url": "::"}),
            json!({"qty": "2Gi"}), json!({"qty": "1Mi"}), json!({"ip": "::1"}), json!({"ip": "1.2.3.4"}), json!({"list": [3, 1]}), json!({"list": [-1, 2]}), json!({"list": [1, 2]}), json!({"list": []}),
            json!({"map": {"a": "b"}}), json!({"map": {"must": "b"}}), json!({"ios": 0}), json!({"ios": 5}), json!({"ios": "5%"}), json!({"ios": "x"}), json!({"born": 2}), json!({"born": 1}),
            json!({"when": "2019-01-01T00:00:00Z"}), json!({"when": "2021-01-01T00:00:00Z"}), json!({"dur": "2h"}), json!({"dur": "5m"}),
            json!({"min": 2, "max": 1, "host": "x", "list": [2, 1]}),
        ]
        .iter()
        .enumerate()
        {
            s.note("spec", spec.clone());
            s.post(path, &body(&format!("r{index}"), spec)).await;
        }
        s.post(path, &body("ru", &json!({"name": "n", "keyed": [{"k": "a", "v": 1}, {"k": "b", "v": 2}], "born": 1}))).await;
        for patch in [
            json!({"name": "m"}), json!({"name": null}), json!({"name": "q"}), json!({"keyed": [{"k": "b", "v": 3}, {"k": "a", "v": 1}]}), json!({"keyed": [{"k": "a", "v": 0}, {"k": "c", "v": 0}]}),
            json!({"opt": "x"}), json!({"born": 7}), json!({"min": 9, "max": 1}),
        ] {
            s.patch(&format!("{path}/ru"), "merge", &json!({"spec": patch})).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_there_is_not_held_against_an_update() {
    compare(async |s: &mut Session| {
        s.namespace("ratchet").await;
        let things = definition("ratchet.diff.dev", "things", "Thing", object_schema(json!({
            "a": {"type": "string"}, "b": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}})));
        s.install(&things).await;
        let path = "/apis/ratchet.diff.dev/v1/namespaces/ratchet/things";
        s.post(path, &json!({"apiVersion": "ratchet.diff.dev/v1", "kind": "Thing", "metadata": {"name": "t"}, "spec": {"a": "long value", "list": ["BAD", "ok"]}})).await.expect(201);
        let at = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.ratchet.diff.dev";
        s.patching(at, "json", &json!([
            {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/a/maxLength", "value": 3},
            {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/list/items/pattern", "value": "^[a-z]+$"},
            {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations", "value": [{"rule": "self.a.size() < 5", "message": "a is too long"}]}]))
            .quietly().send().await.expect(200);
        // The stricter schema is in force when a new object is held to it.
        let probe = json!({"apiVersion": "ratchet.diff.dev/v1", "kind": "Thing", "metadata": {"name": "probe"}, "spec": {"a": "also long"}});
        let mut tries = 0;
        while s.request(Method::POST, &format!("{path}?dryRun=All")).json(&probe).quietly().send().await.code == 201 {
            tries += 1;
            assert!(tries < 200, "the change of the definition never shows");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        // Upstream warns of a rule that what is left alone breaks.
        s.patching(&format!("{path}/t"), "merge", &json!({"metadata": {"labels": {"x": "y"}}})).own(Own::Warnings).send().await;
        s.patch(&format!("{path}/t"), "merge", &json!({"spec": {"b": "new"}})).await;
        s.patch(&format!("{path}/t"), "merge", &json!({"spec": {"a": "still too long"}})).await;
        s.patch(&format!("{path}/t"), "merge", &json!({"spec": {"list": ["BAD", "ok", "more"]}})).await;
        s.patch(&format!("{path}/t"), "merge", &json!({"spec": {"a": "abc", "list": ["ok"]}})).await;
    })
    .await;
}

#[tokio::test]
async fn rules_that_cost_too_much() {
    compare(async |s: &mut Session| {
        let expensive = object_schema(json!({"list": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}, "x-kubernetes-validations": [
            {"rule": "self.all(x, self.all(y, x.all(a, y.all(b, a == b))))"}]}}));
        // Upstream reckons what a rule may cost from the schema and refuses it; here each evaluation has a bound of its own.
        let definition = definition("cost.diff.dev", "things", "Thing", expensive);
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?dryRun=All";
        let answer = s.request(Method::POST, path).json(&definition).quietly().send().await;
        assert_eq!(answer.code, if s.server.is_embedded() { 201 } else { 422 }, "{:#}", answer.body);
    })
    .await;
}
