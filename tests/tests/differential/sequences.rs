//! Sequences of requests that nobody thought of: made by proptest, sent to both servers, compared step by step.

use crate::definitions::{definition, object_schema};
use crate::session::{Own, Session, compare};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use reqwest::Method;
use serde_json::{Map, Value, json};

/// How many sequences, of how many requests each. Every sequence has an object of its own.
const SEQUENCES: usize = 24;
const REQUESTS: usize = 8;

#[derive(Clone, Debug)]
enum Step {
    Create(Value),
    Update(Value),
    Merge(Value),
    Json(Value),
    Apply(&'static str, bool, Value),
    Delete,
}

/// A spec: some of the fields, sometimes with values that are refused.
fn spec() -> impl Strategy<Value = Value> {
    let field = prop_oneof![
        (0..8_i64).prop_map(|n| ("n", json!(n))),
        prop_oneof![Just(json!(5)), Just(json!("5%")), Just(json!("x"))].prop_map(|v| ("ios", v)),
        prop::collection::vec("[ab]", 0..3).prop_map(|v| ("plain", json!(v))),
        prop::sample::subsequence(vec!["a", "b", "c"], 0..3).prop_map(|v| ("set", json!(v))),
        prop::sample::subsequence(vec!["x", "y", "z"], 0..3).prop_map(|names| {
            ("keyed", names.into_iter().enumerate().map(|(n, name)| json!({"name": name, "n": n})).collect())
        }),
        prop::collection::btree_map("[kl]", "[uv]", 0..2).prop_map(|map| ("map", json!(map))),
        prop_oneof![Just(json!({"any": [1]})), Just(json!({"thing": {"a": "b"}}))].prop_map(|v| ("open", v)),
        prop_oneof![Just(json!({"inner": "i"})), Just(json!({"other": "o"}))].prop_map(|v| ("nested", v)),
        Just(("dflt", json!("set"))),
    ];
    prop::collection::vec(field, 1..4).prop_map(|fields| {
        let fields: Map<String, Value> = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Value::Object(fields)
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => spec().prop_map(Step::Create),
        2 => spec().prop_map(Step::Update),
        3 => spec().prop_map(|spec| Step::Merge(json!({"spec": spec}))),
        1 => prop::sample::select(vec!["n", "plain", "set", "map", "keyed"])
            .prop_map(|name| Step::Merge(json!({"spec": {name: null}}))),
        2 => (prop::sample::select(vec!["n", "plain", "nested"]), spec())
            .prop_map(|(name, spec)| Step::Json(json!([{"op": "add", "path": format!("/spec/{name}"), "value": spec.get(name)}]))),
        5 => (prop::sample::select(vec!["one", "two"]), any::<bool>(), spec())
            .prop_map(|(manager, force, spec)| Step::Apply(manager, force, spec)),
        1 => Just(Step::Delete),
    ]
}

async fn run(s: &mut Session, name: &str, steps: &[Step]) {
    let path = "/apis/sequences.diff.dev/v1/namespaces/sequences/things";
    let at = format!("{path}/{name}");
    let object = |spec: &Value| json!({"apiVersion": "sequences.diff.dev/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec});
    for step in steps {
        s.note("step", json!(format!("{step:?}")));
        // Texts of refusals are compared by the cases that know what they ask for.
        let request = match step {
            Step::Create(spec) => s.request(Method::POST, path).json(&object(spec)),
            Step::Update(spec) => {
                let mut object = object(spec);
                let current = s.request(Method::GET, &at).quietly().send().await.body;
                object["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
                s.request(Method::PUT, &at).json(&object)
            }
            Step::Merge(patch) => s.patching(&at, "merge", patch),
            Step::Json(patch) => s.patching(&at, "json", patch),
            Step::Apply(manager, force, spec) => s.applying(&at, manager, *force, &object(spec)),
            Step::Delete => s.request(Method::DELETE, &at),
        };
        request.own(Own::Details).send().await;
    }
    s.get(&at).await;
}

#[tokio::test]
async fn what_nobody_thought_of() {
    // The same sequences each time: a difference must be there again when it is looked for.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = prop::collection::vec(step(), REQUESTS);
    let sequences: Vec<Vec<Step>> =
        (0..SEQUENCES).map(|_| strategy.new_tree(&mut runner).expect("a sequence").current()).collect();
    compare(async |s: &mut Session| {
        s.namespace("sequences").await;
        let things = definition(
            "sequences.diff.dev",
            "things",
            "Thing",
            object_schema(json!({
                "n": {"type": "integer", "maximum": 6}, "ios": {"x-kubernetes-int-or-string": true},
                "plain": {"type": "array", "items": {"type": "string"}},
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "keyed": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"], "maxItems": 9,
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "nested": {"type": "object", "properties": {"inner": {"type": "string"}, "other": {"type": "string"}, "filled": {"type": "string", "default": "f"}}},
                "dflt": {"type": "string", "default": "d", "x-kubernetes-validations": [{"rule": "self != 'never'"}]}})),
        );
        s.install(&things).await;
        for (index, steps) in sequences.iter().enumerate() {
            run(s, &format!("t{index}"), steps).await;
        }
    })
    .await;
}
