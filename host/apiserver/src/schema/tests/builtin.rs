//! The built-in kinds.

use super::texts;
use crate::schema::node::{ListType, Node};
use crate::schema::{Schema, builtin_components, builtins};
use serde_json::{Value, json};

fn schema(kind: &str) -> Schema {
    let kind = builtins().iter().find(|k| k.kind == kind && k.group != "events.k8s.io").unwrap();
    (kind.schema)()
}

fn at<'a>(schema: &'a Schema, path: &str) -> &'a Node {
    let mut node = schema.root();
    for name in path.split('.') {
        node = match name {
            "[]" => node.items.as_deref().unwrap(),
            name => node.child(name).unwrap_or_else(|| panic!("no {name} in {path}")),
        };
    }
    node
}

#[test]
fn every_kind_compiles_and_publishes() {
    let mut seen = std::collections::HashSet::new();
    for kind in builtins() {
        assert!(seen.insert((kind.group, kind.plural)), "{} twice", kind.plural);
        let schema = (kind.schema)();
        for name in ["apiVersion", "kind", "metadata"] {
            assert!(schema.root().fields.contains_key(name), "{} has no {name}", kind.kind);
        }
        assert!(schema.root().fields.len() > 3, "{} is empty", kind.kind);
        let published = schema.open_api();
        assert_eq!(published["properties"]["kind"]["type"], "string", "{}", kind.kind);
        assert!(!published.to_string().contains("#/components"), "{}", kind.kind);
        let name = schema.definition().unwrap();
        let components = schema.open_api_components("");
        assert!(components.contains_key(name), "{name}");
    }
}

#[test]
fn the_table_speaks_of_fields_that_exist() {
    let nodes = crate::schema::definitions::nodes();
    for line in include_str!("../builtin.table").lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(' ').next().unwrap();
        let parts: Vec<&str> = name.splitn(4, '.').collect();
        let definition = format!(".{}.{}.{}", parts[0], parts[1], parts[2]);
        let node = nodes.iter().find(|(full, _)| full.ends_with(&definition)).map(|(_, node)| node);
        let node = node.unwrap_or_else(|| panic!("{line}: no type {definition}"));
        if let Some(field) = parts.get(3) {
            assert!(node.fields.contains_key(*field), "{line}: no such field");
        }
    }
}

#[test]
fn lists_have_their_keys() {
    let keyed = |keys: &[&str]| ListType::Map(keys.iter().map(|key| (*key).to_owned()).collect());
    let table = [
        ("Deployment", "spec.template.spec.containers", keyed(&["name"])),
        ("Pod", "spec.containers.[].ports", keyed(&["containerPort", "protocol"])),
        ("Pod", "spec.containers.[].env", keyed(&["name"])),
        ("Pod", "spec.tolerations", ListType::Atomic),
        ("Pod", "spec.containers.[].args", ListType::Atomic),
        ("Service", "spec.ports", keyed(&["port", "protocol"])),
        ("Node", "status.conditions", keyed(&["type"])),
        ("Node", "status.addresses", keyed(&["type"])),
        ("ConfigMap", "metadata.finalizers", ListType::Set),
        ("ConfigMap", "metadata.ownerReferences", keyed(&["uid"])),
    ];
    for (kind, path, list) in table {
        assert_eq!(at(&schema(kind), path).list, list, "{kind} {path}");
    }
    assert!(at(&schema("Deployment"), "spec.selector").atomic);
    assert!(at(&schema("Pod"), "spec.nodeSelector").atomic);
    assert!(!at(&schema("ConfigMap"), "data").atomic);
}

#[test]
fn objects_are_pruned_defaulted_and_validated() {
    let deployment = schema("Deployment");
    let mut object = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "creationTimestamp": null},
        "spec": {
            "selector": {"matchLabels": {"app": "x"}}, "unknown": 1,
            "template": {
                "metadata": {"labels": {"app": "x"}, "creationTimestamp": null},
                "spec": {"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": 0.5, "memory": "1Gi"}}}]},
            },
        },
        "status": {},
    });
    assert_eq!(deployment.prune(&mut object), ["spec.unknown"]);
    deployment.default(&mut object);
    assert_eq!(object["spec"]["replicas"], 1);
    assert_eq!(object["spec"]["strategy"]["rollingUpdate"]["maxSurge"], "25%");
    assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["ports"][0]["protocol"], "TCP");
    assert_eq!(object["spec"]["template"]["metadata"], json!({"labels": {"app": "x"}}));
    assert_eq!(texts(deployment.validate(&object, None)), Vec::<String>::new());

    object["spec"]["replicas"] = json!("three");
    object["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(true);
    object["spec"].as_object_mut().unwrap().remove("selector");
    let paths: Vec<String> = deployment.validate(&object, None).into_iter().map(|e| e.path).collect();
    assert_eq!(paths, ["spec.selector", "spec.template.spec.containers[0].resources.requests.cpu", "spec.replicas"]);
}

#[test]
fn a_secrets_texts_become_data() {
    let secret = schema("Secret");
    let mut object = json!({"metadata": {"name": "s"}, "data": {"a": "eA\n==\n"}, "stringData": {"b": "hello"}});
    secret.default(&mut object);
    assert_eq!(object, json!({"metadata": {"name": "s"}, "data": {"a": "eA==", "b": "aGVsbG8="}, "type": "Opaque"}));
    assert_eq!(
        texts(secret.validate(&json!({"metadata": {}, "data": {"a": "not base64!"}}), None)),
        ["data.a: Invalid value: \"not base64!\": data.a in body must be of type byte: \"not base64!\""]
    );
}

#[test]
fn a_secrets_number_is_no_text() {
    let secret = schema("Secret");
    let mut object = json!({"metadata": {"name": "s"}, "stringData": {"b": 1}});
    secret.default(&mut object);
    assert_eq!(
        texts(secret.validate(&object, None)),
        ["stringData.b: Invalid value: \"integer\": stringData.b in body must be of type string: \"integer\""]
    );
}

#[test]
fn schemas_inside_definitions_are_left_alone() {
    let crd = schema("CustomResourceDefinition");
    let mut object = json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": {
        "type": "object", "properties": {"x": {"type": "string", "default": null, "x-kubernetes-anything": 1}},
    }}}]}});
    let before = object.clone();
    assert_eq!(crd.prune(&mut object), Vec::<String>::new());
    crd.default(&mut object);
    let schema_of = |object: &Value| object["spec"]["versions"][0]["schema"].clone();
    assert_eq!(schema_of(&object), schema_of(&before));
}

#[test]
fn statuses_may_be_incomplete() {
    let pod = schema("Pod");
    let object = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}, "status": {
        "phase": "Running", "containerStatuses": [{"name": "c", "ready": true}],
    }});
    assert_eq!(texts(pod.validate(&object, None)), Vec::<String>::new());
}

#[test]
fn components_say_how_lists_merge() {
    let components = builtin_components("apps", "v1");
    let containers = &components["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-list-type"], "map");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(
        components["io.k8s.api.apps.v1.Deployment"]["properties"]["spec"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"
    );
    assert!(!components.contains_key("io.k8s.api.core.v1.Node"));
}
