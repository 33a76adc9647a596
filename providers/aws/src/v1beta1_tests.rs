use capstan_provider::{Kind, infrastructure::dispatch, versions::CONVERSION_DATA};
use serde_json::{Map, Value, json};

use crate::{Aws, CRDS, cluster::AWSCluster, identity::StaticIdentity, machine::AWSMachine};

fn to(object: &Value, version: &str) -> Value {
    serde_json::from_str(&dispatch::convert::<Aws>(&object.to_string(), version).unwrap()).unwrap()
}

fn object(kind: &str, version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": kind,
        "metadata": {"name": "o", "namespace": "n"}, "spec": spec})
}

/// The next of a row of numbers that looks like chance and is the same in every run.
fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Something that fits a schema; about half of what may be left out is.
fn anything(schema: &Value, seed: &mut u64) -> Value {
    if let Some(values) = schema["enum"].as_array() {
        return values[next(seed) as usize % values.len()].clone();
    }
    match schema["type"].as_str() {
        Some("string") => json!(format!("s{}", next(seed) % 100)),
        Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(0).max(0) + (next(seed) % 5) as i64),
        Some("boolean") => json!(next(seed).is_multiple_of(2)),
        Some("array") => (0..next(seed) % 4).map(|_| anything(&schema["items"], seed)).collect(),
        Some("object") if schema["properties"].is_object() => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let mut fields = Map::new();
            for (name, field) in schema["properties"].as_object().unwrap() {
                if required.contains(&json!(name)) || next(seed).is_multiple_of(2) {
                    fields.insert(name.clone(), anything(field, seed));
                }
            }
            fields.into()
        }
        Some("object") => {
            (0..next(seed) % 3).map(|_| (format!("k{}", next(seed) % 9), json!("v"))).collect::<Map<_, _>>().into()
        }
        _ => json!({"unknown": [next(seed)]}),
    }
}

fn schemas() -> Vec<(String, String, Value, Value)> {
    let crds: Vec<Value> = serde_json::from_str(CRDS).unwrap();
    let mut all = Vec::new();
    for crd in crds.iter().filter(|crd| crd["scope"] == "Namespaced") {
        for version in crd["versions"].as_array().unwrap() {
            let properties = &version["schema"]["properties"];
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            all.push((
                text(&crd["kind"]),
                text(&version["name"]),
                properties["spec"].clone(),
                properties["status"].clone(),
            ));
        }
    }
    all
}

#[test]
fn nothing_is_lost_between_the_versions_whatever_a_spec_says() {
    let mut seed = 1;
    let (mut kept, mut plain) = (0, 0);
    for (kind, version, spec, status) in schemas() {
        let other = if version == "v1beta1" { "v1beta2" } else { "v1beta1" };
        for _ in 0..300 {
            let mut there = object(&kind, &version, anything(&spec, &mut seed));
            if kind == "AWSMachine" {
                there["spec"]["providerID"] = json!("aws:///a/i-1");
            } else {
                there["spec"]["controlPlaneEndpoint"] = json!({"host": "h", "port": 6443});
            }
            let back = to(&there, other);
            *if back["metadata"].get("annotations").is_some() { &mut kept } else { &mut plain } += 1;
            assert_eq!(to(&back, &version), there);
            let template = object(&format!("{kind}Template"), &version, json!({"template": {"spec": there["spec"]}}));
            assert_eq!(to(&to(&template, other), &version), template);
            // Of status both say what both can say.
            there["status"] = anything(&status, &mut seed);
            let back = to(&there, other);
            assert_eq!(back["status"]["instanceState"], there["status"]["instanceState"]);
        }
    }
    assert!(kept > 100 && plain > 20, "both ways were gone: {kept} with an annotation, {plain} without");
}

/// Every field of one version's schema, by its path.
fn paths(schema: &Value, at: &str, all: &mut Vec<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}/{name}");
        paths(field, &path, all);
        paths(&field["items"], &format!("{path}/*"), all);
        all.push(path);
    }
}

#[test]
fn an_object_has_no_field_that_its_version_does_not_know() {
    let all = schemas();
    for kind in ["AWSCluster", "AWSMachine"] {
        let of = |version: &str| {
            let (.., spec, status) = all.iter().find(|(k, v, ..)| k == kind && v == version).unwrap();
            let mut known = Vec::new();
            paths(spec, "/spec", &mut known);
            paths(status, "/status", &mut known);
            (known, json!({"properties": {"spec": spec, "status": status}}))
        };
        for (from, into) in [("v1beta1", "v1beta2"), ("v1beta2", "v1beta1")] {
            let ((_, schema), (known, _)) = (of(from), of(into));
            let mut full = object(kind, from, json!({}));
            for part in ["spec", "status"] {
                full[part] = whole(&schema["properties"][part]);
            }
            let mut there = Vec::new();
            let converted = to(&full, into);
            for part in ["spec", "status"] {
                written(&converted[part], &format!("/{part}"), &mut there);
            }
            for path in there {
                let free = known.iter().any(|known| path.starts_with(&format!("{known}/")) && !known.ends_with('*'));
                assert!(known.contains(&path) || free, "{kind} {into} has no {path}");
            }
        }
    }
}

/// What is not known here is taken out of an object without a word.
#[test]
fn every_field_of_capas_kinds_is_known_to_be_served_or_refused() {
    let crds: Vec<Value> = serde_json::from_str(CRDS).unwrap();
    let mut fields = 0;
    for line in include_str!("testdata/capa-fields.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let crd = crds.iter().find(|crd| crd["kind"] == words[0]).unwrap();
        let version = crd["versions"].as_array().unwrap().iter().find(|version| version["name"] == words[1]).unwrap();
        let mut schema = &version["schema"]["properties"]["spec"];
        for name in words[2].split('/').skip(1) {
            // The host adds these; others hold what they like.
            if matches!(name, "providerID" | "controlPlaneEndpoint")
                || schema["x-kubernetes-preserve-unknown-fields"] == true
            {
                break;
            }
            schema = if name == "*" { &schema["items"] } else { &schema["properties"][name] };
            assert!(schema.is_object(), "{line}");
        }
        fields += 1;
    }
    assert!(fields > 250, "{fields}");
}

/// An object with every field.
fn whole(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("array") => json!([whole(&schema["items"])]),
        Some("object") if schema["properties"].is_object() => {
            let fields = schema["properties"].as_object().unwrap();
            fields.iter().map(|(name, field)| (name.clone(), whole(field))).collect::<Map<_, _>>().into()
        }
        _ => anything(schema, &mut 7),
    }
}

fn written(value: &Value, at: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                all.push(format!("{at}/{name}"));
                written(field, &format!("{at}/{name}"), all);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| written(item, &format!("{at}/*"), all)),
        _ => {}
    }
}

/// A cluster as users of `v1beta1` write it.
fn cluster() -> Value {
    object(
        "AWSCluster",
        "v1beta1",
        json!({"region": "eu-west-1", "sshKeyName": "k", "bastion": {"enabled": false},
        "network": {"vpc": {"cidrBlock": "10.0.0.0/16"}, "subnets": [
            {"availabilityZone": "eu-west-1a", "cidrBlock": "10.0.0.0/24", "isPublic": true},
            {"availabilityZone": "eu-west-1a", "cidrBlock": "10.0.1.0/24"},
            {"availabilityZone": "eu-west-1a", "cidrBlock": "10.0.2.0/24"}]},
        "controlPlaneLoadBalancer": {"scheme": "Internet-facing"},
        "identityRef": {"kind": "AWSClusterStaticIdentity", "name": "i"}}),
    )
}

#[test]
fn an_old_cluster_is_what_it_means_in_the_new_words() {
    let old = cluster();
    let new = to(&old, "v1beta2");
    let names: Vec<&Value> = new["spec"]["network"]["subnets"].as_array().unwrap().iter().map(|s| &s["id"]).collect();
    assert_eq!(names, ["public-eu-west-1a", "private-eu-west-1a", "private-eu-west-1a-2"]);
    assert_eq!(new["spec"]["controlPlaneLoadBalancer"]["scheme"], "internet-facing");
    assert_eq!(new["spec"]["identityRef"], old["spec"]["identityRef"]);
    assert!(new["metadata"]["annotations"][CONVERSION_DATA].is_string(), "what was written is kept");
    assert_eq!(to(&new, "v1beta1"), old);
    // Failure domains are told as the version has them.
    let mut found = new.clone();
    found["status"] =
        json!({"failureDomains": [{"name": "a", "controlPlane": true}, {"name": "b", "controlPlane": false}]});
    let shown = to(&found, "v1beta1");
    assert_eq!(shown["status"]["failureDomains"], json!({"a": {"controlPlane": true}, "b": {"controlPlane": false}}));
    assert_eq!(to(&shown, "v1beta2")["status"], found["status"]);
    // Whoever edits the old one changes that and nothing else.
    let mut newest = new.clone();
    newest["metadata"].as_object_mut().unwrap().remove("annotations");
    newest["spec"]["controlPlaneLoadBalancer"]["loadBalancerType"] = json!("nlb");
    newest["spec"]["network"]["subnets"][0]["zoneType"] = json!("availability-zone");
    let mut edited = to(&newest, "v1beta1");
    assert_eq!(edited["spec"]["controlPlaneLoadBalancer"], json!({"scheme": "internet-facing"}));
    edited["spec"]["additionalTags"] = json!({"a": "b"});
    newest["spec"]["additionalTags"] = json!({"a": "b"});
    assert_eq!(to(&edited, "v1beta2"), newest);
}

#[test]
fn an_old_machine_is_judged_by_the_rules_of_the_new() {
    let judge = |old: Option<&Value>, new: &Value| -> Vec<String> {
        let old = old.map(Value::to_string);
        let all = dispatch::validate::<Aws>(old.as_deref(), &new.to_string());
        all.into_iter().map(|violation| violation.path).collect()
    };
    let machine = object(
        "AWSMachine",
        "v1beta1",
        json!({"instanceType": "m5.large", "failureDomain": "a", "subnet": {"id": "subnet-1", "arn": "x"},
            "additionalSecurityGroups": [{"id": "sg-1", "arn": "y"}]}),
    );
    assert_eq!(judge(None, &machine), [""; 0]);
    let read: AWSMachine = serde_json::from_value(to(&machine, "v1beta2")["spec"].clone()).unwrap();
    assert_eq!(read.subnet.unwrap().id.as_deref(), Some("subnet-1"));
    let mut other = machine.clone();
    other["spec"]["instanceType"] = json!("m5.xlarge");
    other["spec"]["subnet"]["id"] = json!("subnet-2");
    assert_eq!(
        judge(Some(&machine), &other),
        ["/spec/instanceType", "/spec/subnet"],
        "the older version is no way around"
    );
    other["spec"]["networkInterfaces"] = json!(["eni-1"]);
    assert_eq!(judge(None, &other), ["/spec/networkInterfaces"]);
    let mut moved = cluster();
    moved["spec"]["region"] = json!("eu-west-2");
    moved["spec"]["controlPlaneLoadBalancer"]["scheme"] = json!("internal");
    assert_eq!(judge(Some(&cluster()), &moved), ["/spec/region", "/spec/controlPlaneLoadBalancer/scheme"]);
    let mut same = cluster();
    same["spec"]["controlPlaneLoadBalancer"]["scheme"] = json!("internet-facing");
    assert_eq!(judge(Some(&cluster()), &same), [""; 0]);
}

#[test]
fn both_versions_are_in_every_definition() {
    for crd in [AWSMachine::CRD, AWSCluster::CRD, StaticIdentity::CRD, crate::identity::RoleIdentity::CRD] {
        let crd: Value = serde_json::from_str(crd).unwrap();
        let versions: Vec<_> =
            crd["versions"].as_array().unwrap().iter().map(|v| (&v["name"], &v["storage"])).collect();
        assert_eq!(
            versions,
            [(&json!("v1beta2"), &json!(true)), (&json!("v1beta1"), &json!(false))],
            "{}",
            crd["kind"]
        );
    }
}
