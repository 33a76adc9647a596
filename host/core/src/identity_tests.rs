use super::*;
use crate::testing::World;

fn references() -> Vec<CredentialReference> {
    let all = json!([
        {"at": "/spec/identityRef", "kind": "Endpoint"},
        {"at": "/spec/identityRef", "kind": "CloudStaticIdentity", "aws": true, "secret": "/spec/secretRef",
         "allowedNamespaces": "/spec/allowedNamespaces"},
        {"at": "/spec/identityRef", "kind": "CloudRoleIdentity", "source": "/spec/sourceIdentityRef",
         "role": {"arn": "/spec/roleARN", "externalId": "/spec/externalID", "durationSeconds": "/spec/durationSeconds",
                  "policyARNs": "/spec/policyARNs", "endpoint": "sts"},
         "allowedNamespaces": "/spec/allowedNamespaces"},
        {"at": "/spec/identityRef", "kind": "CloudAmbientIdentity", "ambient": true},
        {"at": "/spec/credentialsRef", "kind": "Secret", "endpoint": "api", "header": {"X-Token": "{token}"}}
    ]);
    serde_json::from_value(all).unwrap()
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "g/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

fn subject(spec: Value) -> Object {
    let mut subject = object("CloudCluster", "c", spec);
    subject["metadata"]["namespace"] = json!("tenant");
    Object::from_value(subject).unwrap()
}

fn world() -> World {
    let mut world = World::new();
    let everybody = json!({});
    world.put(object("CloudStaticIdentity", "static", json!({"secretRef": "keys", "allowedNamespaces": everybody})));
    let source = |kind: &str, name: &str| json!({"kind": kind, "name": name});
    world.put(object(
        "CloudRoleIdentity",
        "role",
        json!({"roleARN": "arn:r", "externalID": "x", "durationSeconds": 900,
        "policyARNs": ["arn:p"], "sourceIdentityRef": source("CloudStaticIdentity", "static"),
        "allowedNamespaces": {"list": ["tenant"]}}),
    ));
    world.put(object(
        "CloudRoleIdentity",
        "second",
        json!({"roleARN": "arn:s",
        "sourceIdentityRef": source("CloudRoleIdentity", "role"), "allowedNamespaces": everybody}),
    ));
    world.put(object(
        "CloudRoleIdentity",
        "circle",
        json!({"roleARN": "arn:c",
        "sourceIdentityRef": source("CloudRoleIdentity", "circle"), "allowedNamespaces": everybody}),
    ));
    world.put(object(
        "CloudRoleIdentity",
        "stranger",
        json!({"roleARN": "arn:c",
        "sourceIdentityRef": source("Secret", "x"), "allowedNamespaces": everybody}),
    ));
    world.put(object(
        "CloudStaticIdentity",
        "elsewhere",
        json!({"secretRef": {"name": "keys", "namespace": "victim"}, "allowedNamespaces": everybody}),
    ));
    world
}

fn find(world: &World, endpoint: &str, subject: &Object, infrastructure: Option<&Value>) -> Result<String, String> {
    let references = references();
    let asked = Asked { endpoint, references: &references, subject, infrastructure };
    let look = |key: &ObjectKey| world.get(&Place::Management, key).map_err(|why| why.to_string());
    Ok(match named(&asked, &look)? {
        None => "nothing".into(),
        Some(Named::Endpoint(name)) => format!("Endpoint {name}"),
        Some(Named::Secret(secret)) => {
            let roles: Vec<&str> = secret.roles.iter().map(|role| role.arn.as_str()).collect();
            format!("{}/{} {}", secret.namespace, secret.name, roles.join(" ")).trim_end().to_owned()
        }
    })
}

fn by_identity(world: &World, kind: &str, name: &str) -> Result<String, String> {
    find(world, "api", &subject(json!({"identityRef": {"kind": kind, "name": name}})), None)
}

#[test]
fn what_an_object_or_its_cluster_names_is_followed_to_a_secret_or_an_endpoint() {
    let world = world();
    assert_eq!(by_identity(&world, "Endpoint", "mine").unwrap(), "Endpoint mine");
    assert_eq!(by_identity(&world, "CloudStaticIdentity", "static").unwrap(), "capstan-system/keys");
    assert_eq!(by_identity(&world, "CloudRoleIdentity", "role").unwrap(), "capstan-system/keys arn:r");
    assert_eq!(by_identity(&world, "CloudRoleIdentity", "second").unwrap(), "capstan-system/keys arn:r arn:s");
    // A machine is as its cluster; a name alone is enough where one kind can be meant.
    let cluster = json!({"identityRef": {"kind": "CloudStaticIdentity", "name": "static"}});
    let machine = subject(json!({}));
    assert_eq!(find(&world, "api", &machine, Some(&cluster)).unwrap(), "capstan-system/keys");
    assert_eq!(find(&world, "other", &machine, Some(&cluster)).unwrap(), "capstan-system/keys");
    let secret = subject(json!({"credentialsRef": "mine"}));
    assert_eq!(find(&world, "api", &secret, None).unwrap(), "tenant/mine");
    assert_eq!(find(&world, "other", &secret, None).unwrap(), "nothing", "it is about another endpoint");
    assert_eq!(find(&world, "api", &machine, None).unwrap(), "nothing");
    // Nothing is ambient here: who names such an identity has said nothing.
    assert_eq!(by_identity(&world, "CloudAmbientIdentity", "default").unwrap(), "nothing");
}

#[test]
fn what_may_not_be_named_is_told_by_name() {
    let mut world = world();
    let told = |world: &World, kind: &str, name: &str| by_identity(world, kind, name).unwrap_err();
    assert!(
        told(&world, "CloudStaticIdentity", "gone").contains("there is no CloudStaticIdentity gone, which /spec/id")
    );
    assert!(
        told(&world, "CloudControllerIdentity", "x").contains("Endpoint or CloudStaticIdentity or CloudRoleIdentity")
    );
    assert!(told(&world, "CloudRoleIdentity", "circle").contains("circle"));
    assert!(told(&world, "CloudRoleIdentity", "stranger").contains("names a Secret at /spec/sourceIdentityRef"));
    assert!(told(&world, "CloudStaticIdentity", "elsewhere").contains("victim/keys"));
    let other = subject(json!({"credentialsRef": {"name": "pve", "namespace": "victim"}}));
    assert!(find(&world, "api", &other, None).unwrap_err().contains("own namespace tenant"));
    let other = subject(json!({"identityRef": {"kind": "Endpoint", "name": "e", "namespace": "victim"}}));
    assert!(find(&world, "api", &other, None).unwrap_err().contains("Endpoint victim/e"));
    let key = ObjectKey::new("g", "CloudRoleIdentity", "", "role");
    world.edit(&key, |role| {
        role.set("/spec/sourceIdentityRef", json!({"kind": "CloudAmbientIdentity", "name": "default"}))
    });
    let why = told(&world, "CloudRoleIdentity", "role");
    assert!(why.contains("names a CloudAmbientIdentity at /spec/sourceIdentityRef, which is no identity"), "{why}");
    world.edit(&key, |role| {
        role.set("/spec/sourceIdentityRef", json!({"kind": "CloudStaticIdentity", "name": "static"}))
    });
    // A source that the namespace may not use is none by way of a role either.
    let key = ObjectKey::new("g", "CloudStaticIdentity", "", "static");
    world.edit(&key, |identity| drop(identity.remove("/spec/allowedNamespaces")));
    assert!(
        told(&world, "CloudRoleIdentity", "role").contains("CloudStaticIdentity static may not be used from namespace")
    );
}

#[test]
fn namespaces_are_allowed_as_upstream_does() {
    let mut world = World::new();
    world
        .put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant", "labels": {"team": "a"}}}));
    let look = |key: &ObjectKey| world.get(&Place::Management, key).map_err(|why| why.to_string());
    let may = |allowed: Value| may_use(Some(&allowed), "tenant", &look).unwrap();
    assert_eq!(may_use(None, "tenant", &look), Ok(false));
    let cases = [
        (Value::Null, false),
        (json!({}), true),
        (json!({"list": null, "selector": null}), true),
        (json!({"list": []}), false),
        (json!({"list": ["other"]}), false),
        (json!({"list": ["other", "tenant"]}), true),
        (json!({"selector": {}}), false),
        (json!({"selector": {"matchLabels": {"team": "a"}}}), true),
        (json!({"selector": {"matchLabels": {"team": "b"}}}), false),
        (json!({"selector": {"matchExpressions": [{"key": "team", "operator": "In", "values": ["a", "b"]}]}}), true),
        (json!({"list": ["other"], "selector": {"matchLabels": {"team": "a"}}}), true),
        (json!({"selector": "everybody"}), false),
        (json!("everybody"), false),
    ];
    for (allowed, expected) in cases {
        assert_eq!(may(allowed.clone()), expected, "{allowed}");
    }
}

#[test]
fn whatever_was_read_is_an_input() {
    let mut world = world();
    let served = Served {
        endpoints: vec!["api".into()],
        credentials: references(),
        ..crate::infrastructure::scene::served(crate::contract::Duty::InfraCluster)
    };
    let subject = subject(json!({"identityRef": {"kind": "CloudRoleIdentity", "name": "role"}}));
    let mut seen = vec![sources(&world, &served, &subject, None).unwrap()];
    let mut changed = |world: &World, what: &str| {
        let now = sources(world, &served, &subject, None).unwrap();
        assert!(!seen.contains(&now), "{what} is not noticed");
        seen.push(now);
    };
    let secret = |value: &str| {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": SYSTEM_NAMESPACE},
            "data": {"k": value}})
    };
    world.put(secret("YQ=="));
    changed(&world, "a Secret that comes");
    world.put(secret("Yg=="));
    changed(&world, "a rotated Secret");
    world.edit(&ObjectKey::new("g", "CloudRoleIdentity", "", "role"), |role| role.set("/spec/roleARN", "arn:n".into()));
    changed(&world, "an identity");
    world.edit(&ObjectKey::new("g", "CloudStaticIdentity", "", "static"), |one| one.set("/spec/secretRef", "o".into()));
    changed(&world, "the identity before it");
    let capstan = |kind: &str, spec: Value| {
        json!({"apiVersion": "capstan.dev/v1alpha1", "kind": kind,
            "metadata": {"name": "api", "namespace": if kind == ENDPOINT { "tenant" } else { "" }}, "spec": spec})
    };
    world.put(capstan(ENDPOINT, json!({"url": "http://a", "credential": {"secretName": "own"}})));
    changed(&world, "an Endpoint");
    world.put(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own", "namespace": "tenant"}}));
    changed(&world, "the Secret of an Endpoint");
    world.put(capstan("EgressPolicy", json!({"addresses": ["10.0.0.0/8"]})));
    changed(&world, "an EgressPolicy");
    let before = sources(&world, &served, &subject, None).unwrap();
    let policy = ObjectKey::new(CAPSTAN_GROUP, "EgressPolicy", "", "api");
    world.edit(&policy, |policy| policy.set("/status/observedGeneration", 1.into()));
    assert_eq!(sources(&world, &served, &subject, None).unwrap(), before, "a status says nothing new");
}
