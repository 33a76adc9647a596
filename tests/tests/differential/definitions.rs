//! CustomResourceDefinitions: what they make, what they say of themselves, what is refused.

use crate::session::{DEFINITIONS, Session, compare};
use reqwest::Method;
use serde_json::{Value, json};

/// A definition with one version, `v1`.
pub fn definition(group: &str, plural: &str, kind: &str, schema: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}})
}

/// `spec` with these properties and a `status` of anything.
pub fn object_schema(spec: Value) -> Value {
    // A definition with an empty list of properties is stored without it.
    let mut inner = json!({"type": "object"});
    if spec.as_object().is_some_and(|fields| !fields.is_empty()) {
        inner["properties"] = spec;
    }
    json!({"type": "object", "properties": {
        "spec": inner,
        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}})
}

/// A definition without its revision: how often its status was written on the way is the servers' own.
async fn settled_definition(s: &mut Session, path: &str) {
    let answer = s.request(Method::GET, path).quietly().send().await;
    let mut body = s.words.normal(&answer.body);
    body["metadata"]["resourceVersion"] = json!("any");
    s.note(path, json!([answer.code, body]));
}

#[tokio::test]
async fn from_creation_to_deletion() {
    compare(async |s: &mut Session| {
        let mut things =
            definition("born.diff.dev", "things", "Thing", object_schema(json!({"a": {"type": "string"}})));
        things["spec"]["names"]["shortNames"] = json!(["th"]);
        things["spec"]["names"]["categories"] = json!(["all"]);
        // Upstream's controllers accept the names a moment after it was answered; here that is done by then.
        s.request(Method::POST, DEFINITIONS).json(&things).quietly().send().await.expect(201);
        s.served(&things).await;
        let at = format!("{DEFINITIONS}/things.born.diff.dev");
        settled_definition(s, &at).await;
        s.get("/apis/born.diff.dev").await;
        s.get("/apis/born.diff.dev/v1").await;
        s.patch(&at, "merge", &json!({"spec": {"names": {"kind": "Other"}}})).await;
        s.patch(&at, "merge", &json!({"spec": {"scope": "Cluster"}})).await;
        s.patch(&at, "merge", &json!({"spec": {"group": "other.dev"}})).await;
        s.patching(&at, "merge", &json!({"metadata": {"labels": {"a": "b"}}})).quietly().send().await.expect(200);
        settled_definition(s, &at).await;
        s.patching(&at, "merge", &json!({"spec": {"names": {"shortNames": ["ti"]}}}))
            .quietly()
            .send()
            .await
            .expect(200);
        s.until(&at, |answer| answer.body["status"]["acceptedNames"]["shortNames"][0] == "ti").await;
        // How often the status was written on the way is the servers' own.
        let told = s.request(Method::GET, &at).quietly().send().await.body;
        s.note("status", told["status"]["acceptedNames"].clone());
        s.request(Method::DELETE, &at).quietly().send().await;
        s.gone(&at).await;
        // Upstream serves its objects a moment longer than itself.
        s.gone("/apis/born.diff.dev/v1/things").await;
        s.get("/apis/born.diff.dev/v1/things").await;
    })
    .await;
}

#[tokio::test]
async fn what_is_refused() {
    compare(async |s: &mut Session| {
        let good = definition("bad.diff.dev", "things", "Thing", object_schema(json!({})));
        let cases: Vec<(&str, Value)> = vec![
            ("/metadata/name", json!("other.bad.diff.dev")),
            ("/spec/group", json!("nodots")),
            ("/spec/group", json!("")),
            ("/spec/scope", json!("Galaxy")),
            ("/spec/scope", json!("")),
            ("/spec/names/plural", json!("Things")),
            ("/spec/names/kind", json!("")),
            ("/spec/names/listKind", json!("Thing")),
            ("/spec/versions", json!([])),
            ("/spec/versions/0/storage", json!(false)),
            ("/spec/versions/0/name", json!("V_1")),
            ("/spec/versions/0/schema", json!({})),
            ("/spec/versions/0/schema/openAPIV3Schema", json!({"type": "string"})),
            ("/spec/versions/0/schema/openAPIV3Schema", json!({"properties": {"a": {"type": "string"}}})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "array"})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "nonsense"})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "object", "properties": {"a": {"type": "string", "default": 3}}})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.("}]})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "object", "x-kubernetes-validations": [{"rule": ""}]})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"})),
            ("/spec/versions/0/schema/openAPIV3Schema/properties/spec", json!({"type": "string", "x-kubernetes-list-type": "set"})),
            ("/spec/versions/0/additionalPrinterColumns", json!([{"name": "A", "type": "nonsense", "jsonPath": ".spec.a"}])),
            ("/spec/versions/0/additionalPrinterColumns", json!([{"name": "A", "type": "string", "jsonPath": "spec..["}])),
            ("/spec/versions/0/subresources", json!({"scale": {}})),
            ("/spec/versions/0/subresources", json!({"scale": {"specReplicasPath": ".status.x", "statusReplicasPath": ".spec.y"}})),
            ("/spec/versions/0/selectableFields", json!([{"jsonPath": ".spec.none"}])),
            ("/spec/conversion", json!({"strategy": "Nonsense"})),
            ("/spec/conversion", json!({"strategy": "Webhook"})),
            ("/spec/preserveUnknownFields", json!(true)),
        ];
        for (pointer, value) in cases {
            let mut bad = good.clone();
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            match bad.pointer_mut(parent).unwrap() {
                Value::Array(items) => items[name.parse::<usize>().unwrap()] = value.clone(),
                Value::Object(fields) => drop(fields.insert(name.to_owned(), value.clone())),
                _ => unreachable!(),
            }
            s.note("case", json!([pointer, value]));
            let answer = s.request(Method::POST, &format!("{DEFINITIONS}?dryRun=All")).json(&bad).quietly().send().await;
            s.note("is refused", json!([answer.code, answer.body["reason"]]));
        }
        let accepted = s.request(Method::POST, &format!("{DEFINITIONS}?dryRun=All")).json(&good).quietly().send().await;
        s.note("the good one", json!(accepted.code));
    })
    .await;
}

#[tokio::test]
async fn names_that_are_taken() {
    compare(async |s: &mut Session| {
        s.install(&definition("taken.diff.dev", "firsts", "First", object_schema(json!({})))).await;
        let second = definition("taken.diff.dev", "seconds", "First", object_schema(json!({})));
        s.request(Method::POST, DEFINITIONS).json(&second).quietly().send().await;
        let at = format!("{DEFINITIONS}/seconds.taken.diff.dev");
        s.until(&at, |answer| answer.body["status"]["conditions"].as_array().is_some_and(|list| list.len() > 1)).await;
        let told = s.request(Method::GET, &at).quietly().send().await.body;
        let told = s.words.normal(&told);
        s.note("status", told["status"].clone());
        s.get("/apis/taken.diff.dev/v1/seconds").await;
    })
    .await;
}

fn versions() -> Value {
    let mut things = definition(
        "versions.diff.dev",
        "things",
        "Thing",
        object_schema(json!({"a": {"type": "string"}, "b": {"type": "integer", "default": 1}})),
    );
    let old = object_schema(json!({"a": {"type": "string"}, "c": {"type": "string", "default": "old"}}));
    things["spec"]["versions"].as_array_mut().unwrap().extend([
        json!({"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": old}}),
        json!({"name": "v1alpha1", "served": true, "storage": false, "deprecated": true, "deprecationWarning": "use v1 \"now\"", "schema": {"openAPIV3Schema": old}}),
        json!({"name": "v0", "served": false, "storage": false, "schema": {"openAPIV3Schema": old}}),
    ]);
    things
}

#[tokio::test]
async fn several_versions() {
    compare(async |s: &mut Session| {
        // Versions whose fields differ need a converter; upstream forgets who owns what of objects that went without one.
        s.exempt = vec!["metadata.managedFields"];
        s.namespace("versions").await;
        s.install(&versions()).await;
        s.get("/apis/versions.diff.dev").await;
        s.get("/apis/versions.diff.dev/v1beta1").await;
        s.get("/apis/versions.diff.dev/v0").await;
        let path = |version: &str| format!("/apis/versions.diff.dev/{version}/namespaces/versions/things");
        let body = |version: &str, name: &str| json!({"apiVersion": format!("versions.diff.dev/{version}"), "kind": "Thing", "metadata": {"name": name}, "spec": {"a": "x"}});
        s.post(&path("v1"), &body("v1", "one")).await;
        s.post(&path("v1beta1"), &body("v1beta1", "two")).await;
        for name in ["one", "two"] {
            for version in ["v1", "v1beta1", "v1alpha1", "v0"] {
                s.get(&format!("{}/{name}", path(version))).await;
            }
        }
        s.get(&path("v1beta1")).await;
        s.patch(&format!("{}/one", path("v1beta1")), "merge", &json!({"spec": {"c": "new"}})).await;
        s.get(&format!("{}/one", path("v1"))).await;
        s.post(&path("v1"), &body("v1beta1", "wrong")).await;
    })
    .await;
}

#[tokio::test]
async fn printer_columns_make_tables() {
    compare(async |s: &mut Session| {
        s.namespace("tables").await;
        let mut things = definition("tables.diff.dev", "things", "Thing", object_schema(json!({
            "a": {"type": "string"}, "n": {"type": "integer"}, "f": {"type": "number"}, "b": {"type": "boolean"},
            "when": {"type": "string"}, "list": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}, "on": {"type": "string"}}}}})));
        things["spec"]["versions"][0]["additionalPrinterColumns"] = json!([
            {"name": "A", "type": "string", "jsonPath": ".spec.a", "description": "What a is"},
            {"name": "N", "type": "integer", "jsonPath": ".spec.n", "priority": 1},
            {"name": "F", "type": "number", "jsonPath": ".spec.f"},
            {"name": "B", "type": "boolean", "jsonPath": ".spec.b"},
            {"name": "When", "type": "date", "jsonPath": ".spec.when"},
            {"name": "First", "type": "string", "jsonPath": ".spec.list[0].name"},
            {"name": "All", "type": "string", "jsonPath": ".spec.list[*].name"},
            {"name": "On", "type": "string", "jsonPath": ".spec.list[?(@.name=='y')].on"},
            {"name": "List", "type": "string", "jsonPath": ".spec.list"},
            {"name": "Label", "type": "string", "jsonPath": ".metadata.labels.a\\.b/c"},
            {"name": "Status", "type": "string", "jsonPath": ".status.phase"}]);
        s.install(&things).await;
        let path = "/apis/tables.diff.dev/v1/namespaces/tables/things";
        let body = |name: &str, spec: Value| json!({"apiVersion": "tables.diff.dev/v1", "kind": "Thing", "metadata": {"name": name, "labels": {"a.b/c": "lab"}}, "spec": spec, "status": {"phase": 3}});
        s.post(path, &body("empty", json!({}))).await;
        s.post(path, &body("full", json!({"a": "x", "n": 5, "f": 1.5, "b": true, "when": "2020-01-01T00:00:00Z",
            "list": [{"name": "x", "on": "1"}, {"name": "y", "on": "2"}]}))).await;
        s.post(path, &body("odd", json!({"a": "", "when": "not-a-time", "list": []}))).await;
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        // How old something is depends on when one looks.
        for query in ["", "?includeObject=None", "?includeObject=Object", "?limit=1", "?includeObject=Nonsense"] {
            let answer = s.request(Method::GET, &format!("{path}{query}")).header("accept", table).quietly().send().await;
            let mut body = s.words.normal(&answer.body);
            for row in body["rows"].as_array_mut().into_iter().flatten() {
                if row["cells"][5].is_string() && row["cells"][0] == "full" {
                    row["cells"][5] = json!("age");
                }
            }
            s.note(query, json!([answer.code, body]));
        }
        let one = s.request(Method::GET, &format!("{path}/empty")).header("accept", table).send().await;
        drop(one);
        s.request(Method::GET, &format!("{path}/none")).header("accept", table).send().await;
        s.request(Method::GET, path).header("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").send().await;
        s.request(Method::GET, &format!("{path}/full")).header("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io").send().await;
        s.request(Method::GET, path).header("accept", "application/json;as=Nonsense;v=v1;g=meta.k8s.io").send().await;
        s.request(Method::GET, path).header("accept", "text/html").send().await;
    })
    .await;
}

#[tokio::test]
async fn scale_and_selectable_fields() {
    compare(async |s: &mut Session| {
        s.namespace("scale").await;
        let mut things = definition("scale.diff.dev", "things", "Thing", json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}, "color": {"type": "string"}, "on": {"type": "boolean"}}},
            "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}}}}));
        things["spec"]["versions"][0]["subresources"] = json!({"status": {}, "scale": {
            "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}});
        things["spec"]["versions"][0]["selectableFields"] = json!([{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.on"}]);
        s.install(&things).await;
        let path = "/apis/scale.diff.dev/v1/namespaces/scale/things";
        let body = |name: &str, spec: Value| json!({"apiVersion": "scale.diff.dev/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec});
        s.post(path, &body("none", json!({}))).await;
        let made = s.post(path, &body("a", json!({"replicas": 3, "color": "red", "on": true}))).await.expect(201);
        s.get(&format!("{path}/none/scale")).await;
        let scale = s.get(&format!("{path}/a/scale")).await.expect(200);
        s.patch(&format!("{path}/a/status"), "merge", &json!({"status": {"replicas": 2, "selector": "a=b"}})).await;
        s.get(&format!("{path}/a/scale")).await;
        let mut stale = scale.clone();
        stale["spec"]["replicas"] = json!(4);
        s.put(&format!("{path}/a/scale"), &stale).await;
        stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        s.put(&format!("{path}/a/scale"), &stale).await;
        s.patch(&format!("{path}/a/scale"), "merge", &json!({"spec": {"replicas": 5}})).await;
        s.patch(&format!("{path}/a/scale"), "merge", &json!({"spec": {"replicas": -1}})).await;
        s.patch(&format!("{path}/a/scale?dryRun=All"), "merge", &json!({"spec": {"replicas": 9}})).await;
        s.get(&format!("{path}/a")).await;
        drop(made);
        for selector in ["spec.color=red", "spec.color!=red", "spec.on=true", "spec.color=", "metadata.name=a", "metadata.namespace=scale", "spec.replicas=3", "nonsense"] {
            s.get(&format!("{path}?fieldSelector={selector}")).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_cluster_scoped_kind_and_its_update() {
    compare(async |s: &mut Session| {
        let mut things = definition("cluster.diff.dev", "globals", "Global", object_schema(json!({"a": {"type": "string"}})));
        things["spec"]["scope"] = json!("Cluster");
        s.install(&things).await;
        let path = "/apis/cluster.diff.dev/v1/globals";
        let body = json!({"apiVersion": "cluster.diff.dev/v1", "kind": "Global", "metadata": {"name": "a", "namespace": "ignored"}, "spec": {"a": "x", "b": "y"}});
        s.post(path, &body).await;
        let mut body = body;
        body["metadata"].as_object_mut().unwrap().remove("namespace");
        s.post(path, &body).await;
        s.get(&format!("{path}/a")).await;
        s.get("/apis/cluster.diff.dev/v1/namespaces/default/globals/a").await;
        let at = format!("{DEFINITIONS}/globals.cluster.diff.dev");
        s.request(Method::PATCH, &at).text("application/json-patch+json", &json!([{"op": "add",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/b", "value": {"type": "string", "default": "dflt"}}]).to_string()).quietly().send().await;
        // An object from before the default shows it.
        s.until(&format!("{path}/a"), |answer| answer.body["spec"]["b"] == "dflt").await;
        s.get(&format!("{path}/a")).await;
        s.get(path).await;
        s.patch(&format!("{path}/a"), "merge", &json!({"spec": {"a": "y"}})).await;
        settled_definition(s, &at).await;
    })
    .await;
}
