//! Whether somebody wants to be asked about a request: rules, versions, selectors. And the request as they are told of it.

use super::{text, words};
use crate::auth::rbac::selects;
use crate::catalog::Resource;
use crate::options::{AdmissionRequest, Operation};
use crate::server::ApiServer;
use crate::store::Key;
use serde_json::{Map, Value, json};

impl Operation {
    pub(super) fn word(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
        }
    }
}

/// Whether a rule is about this, in this version of the group.
fn is_about(rule: &Value, request: &AdmissionRequest, version: &str, cluster_scoped: bool) -> bool {
    let has = |name: &str, wanted: &str| words(rule, name).any(|own| own == "*" || own == wanted);
    let resource = words(rule, "resources").any(|own| {
        let (of, sub) = own.split_once('/').unwrap_or((own, ""));
        (of == "*" || of == request.resource) && (sub == "*" || sub == request.subresource)
    });
    let scope = match text(rule, "/scope") {
        "Cluster" => cluster_scoped,
        "Namespaced" => !cluster_scoped,
        _ => true,
    };
    let mut names = words(rule, "resourceNames").peekable();
    has("operations", request.operation.word())
        && has("apiGroups", &request.group)
        && has("apiVersions", version)
        && resource
        && scope
        && (names.peek().is_none() || names.any(|name| name == request.name))
}

/// The version in which who has these rules wants to see the object; none when he does not.
pub(crate) fn version_for(
    rules: &[Value],
    match_policy: &str,
    resource: &Resource,
    request: &AdmissionRequest,
) -> Option<String> {
    let about = |version: &str| rules.iter().any(|rule| is_about(rule, request, version, !resource.namespaced));
    if about(&request.version) {
        return Some(request.version.clone());
    }
    if match_policy == "Exact" {
        return None;
    }
    resource.versions.iter().map(|version| version.name.clone()).find(|version| about(version))
}

/// The namespace that a request is about: of a Namespace, itself.
pub(super) fn namespace_of(request: &AdmissionRequest) -> &str {
    if request.group.is_empty() && request.resource == "namespaces" { &request.name } else { &request.namespace }
}

/// The request as webhooks and expressions see it, with the object in this version.
pub(crate) fn described(request: &AdmissionRequest, version: &str) -> Map<String, Value> {
    let of = |version: &str, name: &str, value: &str| json!({"group": request.group, "version": version, name: value});
    let mut asked = Map::new();
    let mut put = |name: &str, value: Value| drop(asked.insert(name.to_owned(), value));
    put("kind", of(version, "kind", &request.kind));
    put("resource", of(version, "resource", &request.resource));
    put("requestKind", of(&request.version, "kind", &request.kind));
    put("requestResource", of(&request.version, "resource", &request.resource));
    for (name, value) in [("subResource", &request.subresource), ("requestSubResource", &request.subresource)] {
        if !value.is_empty() {
            put(name, value.as_str().into());
        }
    }
    put("name", request.name.as_str().into());
    if !namespace_of(request).is_empty() {
        put("namespace", namespace_of(request).into());
    }
    put("operation", request.operation.word().into());
    put("userInfo", json!({"username": request.user.name, "groups": request.user.groups}));
    put("dryRun", request.dry_run.into());
    put("options", request.options.clone());
    asked
}

impl ApiServer {
    /// Whether the selectors (`objectSelector`, `namespaceSelector`) select the object and its namespace.
    pub(crate) fn is_selected(&self, selectors: &Value, request: &AdmissionRequest, object: &Value) -> bool {
        let selected = |name: &str, labels: &Value| selectors.get(name).is_none_or(|own| selects(own, labels));
        let labels = |object: Option<&Value>| object.and_then(|o| o.pointer("/metadata/labels")).cloned();
        let own = labels(Some(object)).unwrap_or_default();
        let before = labels(request.old.as_ref());
        if !selected("objectSelector", &own) && !before.is_some_and(|before| selected("objectSelector", &before)) {
            return false;
        }
        if request.namespace.is_empty() && request.resource != "namespaces" {
            return true;
        }
        if request.group.is_empty() && request.resource == "namespaces" {
            return selected("namespaceSelector", &own);
        }
        let namespace = self.inner.options.store.get("namespaces", &Key::new("", &request.namespace));
        let namespace = namespace.map(|namespace| namespace.value_without_managed_fields());
        selected("namespaceSelector", &labels(namespace.as_ref()).unwrap_or_default())
    }

    /// The version in which who has these constraints (a policy's, a binding's) wants to see the object; none when he does not.
    pub(super) fn constrained(
        &self,
        constraints: &Value,
        resource: &Resource,
        request: &AdmissionRequest,
        object: &Value,
    ) -> Option<String> {
        if !self.is_selected(constraints, request, object) {
            return None;
        }
        let policy = text(constraints, "/matchPolicy");
        let rules = |name: &str| super::list(constraints, name);
        if version_for(rules("/excludeResourceRules"), policy, resource, request).is_some() {
            return None;
        }
        match rules("/resourceRules") {
            [] => Some(request.version.clone()),
            rules => version_for(rules, policy, resource, request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::User;

    fn request(operation: Operation, resource: &str, subresource: &str) -> AdmissionRequest {
        AdmissionRequest {
            operation,
            group: "g".into(),
            version: "v1".into(),
            kind: "K".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "n".into(),
            name: "a".into(),
            old: None,
            user: User::admin("a"),
            dry_run: false,
            options: Value::Null,
        }
    }

    #[test]
    fn rules_match_as_in_kubernetes() {
        let rule = |resources: Value, operations: Value| json!({"apiGroups": ["g"], "apiVersions": ["v1"], "operations": operations, "resources": resources});
        let about = |rule: &Value, request: &AdmissionRequest| is_about(rule, request, "v1", false);
        let plain = rule(json!(["ks"]), json!(["CREATE", "UPDATE"]));
        assert!(about(&plain, &request(Operation::Create, "ks", "")));
        assert!(!about(&plain, &request(Operation::Delete, "ks", "")));
        assert!(!about(&plain, &request(Operation::Update, "ks", "status")), "a subresource is another thing");
        assert!(!is_about(&plain, &request(Operation::Create, "ks", ""), "v2", false));
        let sub = rule(json!(["ks/*"]), json!(["*"]));
        assert!(about(&sub, &request(Operation::Update, "ks", "status")));
        assert!(about(&sub, &request(Operation::Update, "ks", "")), "no subresource is one of all");
        assert!(!about(&sub, &request(Operation::Update, "others", "status")));
        assert!(about(&rule(json!(["*/*"]), json!(["*"])), &request(Operation::Delete, "ks", "")));
        assert!(about(&rule(json!(["*/scale"]), json!(["*"])), &request(Operation::Update, "ks", "scale")));
        let mut scoped = plain.clone();
        scoped["scope"] = "Cluster".into();
        assert!(!about(&scoped, &request(Operation::Create, "ks", "")));
        let mut named = plain;
        named["resourceNames"] = json!(["a", "b"]);
        assert!(about(&named, &request(Operation::Create, "ks", "")));
        named["resourceNames"] = json!(["b"]);
        assert!(!about(&named, &request(Operation::Create, "ks", "")));
    }
}
