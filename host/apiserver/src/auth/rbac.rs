//! RBAC: what the Roles that are bound to somebody allow, and that nobody hands out more than he has.
//!
//! ClusterRoles that aggregate others are put together when they are looked at, so nobody has to keep their rules.

use super::{Attributes, is_administrator};
use crate::options::User;
use crate::server::ApiServer;
use crate::status::Status;
use crate::store::Key;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::LazyLock;

pub(crate) const GROUP: &str = "rbac.authorization.k8s.io";
const CLUSTER_ROLES: &str = "clusterroles.rbac.authorization.k8s.io";
const ROLES: &str = "roles.rbac.authorization.k8s.io";
const CLUSTER_ROLE_BINDINGS: &str = "clusterrolebindings.rbac.authorization.k8s.io";
const ROLE_BINDINGS: &str = "rolebindings.rbac.authorization.k8s.io";

/// The roles and bindings that every cluster has, as Kubernetes has them.
static DEFAULTS: LazyLock<Vec<Value>> =
    LazyLock::new(|| serde_json::from_str(include_str!("defaults.json")).unwrap_or_default());

/// The roles and bindings that every cluster has, and the collection of each.
pub(crate) fn defaults() -> impl Iterator<Item = (&'static str, &'static Value)> {
    DEFAULTS.iter().map(|object| {
        let role = object.get("kind").and_then(Value::as_str) == Some("ClusterRole");
        (if role { CLUSTER_ROLES } else { CLUSTER_ROLE_BINDINGS }, object)
    })
}

/// A rule of a Role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    pub verbs: Vec<String>,
    pub groups: Vec<String>,
    pub resources: Vec<String>,
    pub names: Vec<String>,
    pub urls: Vec<String>,
}

fn has(list: &[String], wanted: &str) -> bool {
    list.iter().any(|own| own == "*" || own == wanted)
}

impl Rule {
    fn read(rule: &Value) -> Rule {
        let list = |name: &str| {
            let values = rule.get(name).and_then(Value::as_array).into_iter().flatten();
            values.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Rule {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        if subresource.is_empty() {
            return has(&self.resources, resource);
        }
        self.resources.iter().any(|own| {
            own == "*"
                || own.split_once('/').is_some_and(|(of, sub)| sub == subresource && (of == "*" || of == resource))
        })
    }

    fn has_url(&self, path: &str) -> bool {
        self.urls.iter().any(|own| own == path || own.strip_suffix('*').is_some_and(|start| path.starts_with(start)))
    }

    fn allows(&self, wanted: &Attributes<'_>) -> bool {
        has(&self.verbs, wanted.verb)
            && has(&self.groups, wanted.group)
            && self.has_resource(wanted.resource, wanted.subresource)
            && (self.names.is_empty() || self.names.iter().any(|own| own == wanted.name))
    }

    fn allows_path(&self, verb: &str, path: &str) -> bool {
        has(&self.verbs, verb) && self.has_url(path)
    }

    /// The rule taken apart, so that each part is about one thing.
    fn parts(&self) -> Vec<Rule> {
        let one = |text: &String| vec![text.clone()];
        let mut parts = Vec::new();
        for verb in &self.verbs {
            for (group, resource) in self.groups.iter().flat_map(|g| self.resources.iter().map(move |r| (g, r))) {
                let part = Rule { verbs: one(verb), groups: one(group), resources: one(resource), ..Rule::default() };
                match self.names.as_slice() {
                    [] => parts.push(part),
                    names => parts.extend(names.iter().map(|name| Rule { names: one(name), ..part.clone() })),
                }
            }
            parts.extend(self.urls.iter().map(|url| Rule { verbs: one(verb), urls: one(url), ..Rule::default() }));
        }
        parts
    }

    /// Whether whoever has this rule has that part of another.
    fn covers(&self, part: &Rule) -> bool {
        let all = |own: &[String], wanted: &[String]| wanted.iter().all(|one| has(own, one));
        let resource = |one: &String| match one.split_once('/') {
            Some((resource, subresource)) => self.has_resource(resource, subresource),
            None => has(&self.resources, one),
        };
        all(&self.verbs, &part.verbs)
            && all(&self.groups, &part.groups)
            && part.resources.iter().all(resource)
            && (self.names.is_empty() || (!part.names.is_empty() && part.names.iter().all(|n| self.names.contains(n))))
            && part.urls.iter().all(|url| self.has_url(url))
    }

    /// As refusals show it.
    fn describe(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.urls),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, list)| !list.is_empty())
        .map(|(name, list)| format!("{name}:{}", quoted(list)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// A list as Go quotes it.
fn quoted(list: &[String]) -> String {
    let words: Vec<String> = list.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}

/// Rules about the same things with different verbs are told as one.
fn merged(parts: Vec<Rule>) -> Vec<Rule> {
    let mut by_thing: BTreeMap<String, Rule> = BTreeMap::new();
    for part in parts {
        let thing = Rule { verbs: Vec::new(), ..part.clone() }.describe();
        match by_thing.get_mut(&thing) {
            Some(known) => known
                .verbs
                .extend(part.verbs.into_iter().filter(|verb| !known.verbs.contains(verb)).collect::<Vec<_>>()),
            None => drop(by_thing.insert(thing, part)),
        }
    }
    by_thing.into_values().collect()
}

/// Whether a subject of a binding is the user.
fn is_subject(subject: &Value, user: &User, namespace: &str) -> bool {
    let text = |name: &str| subject.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("kind") {
        "User" => user.name == text("name"),
        "Group" => user.is_in(text("name")),
        "ServiceAccount" => {
            let of = match text("namespace") {
                "" => namespace,
                own => own,
            };
            !of.is_empty() && user.name == format!("system:serviceaccount:{of}:{}", text("name"))
        }
        _ => false,
    }
}

/// How deep ClusterRoles gather others that gather others: circles end there.
const DEEPEST: u32 = 4;

/// Whether a label selector selects these labels.
pub(crate) fn selects(selector: &Value, labels: &Value) -> bool {
    let value = |key: &str| labels.get(key).and_then(Value::as_str);
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    let expressions = selector.get("matchExpressions").and_then(Value::as_array);
    wanted.into_iter().flatten().all(|(key, wanted)| value(key) == wanted.as_str())
        && expressions.into_iter().flatten().all(|expression| {
            let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
            let own = value(text("key"));
            let values = expression.get("values").and_then(Value::as_array);
            let listed = || values.into_iter().flatten().any(|one| own.is_some() && one.as_str() == own);
            match text("operator") {
                "In" => listed(),
                "NotIn" => !listed(),
                "Exists" => own.is_some(),
                "DoesNotExist" => own.is_none(),
                _ => false,
            }
        })
}

/// A binding in words, and the rules that it gives.
pub(crate) type Granted = (String, Vec<Rule>);

impl ApiServer {
    /// What is bound to the user for this namespace (empty: for the whole cluster), and by which binding.
    pub(crate) fn granted(&self, user: &User, namespace: &str) -> Vec<Granted> {
        let store = &self.inner.options.store;
        let mut granted = Vec::new();
        let mut look = |kind: &str, collection: &str, of: &str| {
            let Ok(listing) = store.list(collection, of, None, None) else { return };
            for binding in listing.objects {
                let binding = binding.value_without_managed_fields();
                self.add_granted(&mut granted, kind, &binding, user, of);
            }
        };
        look("ClusterRoleBinding", CLUSTER_ROLE_BINDINGS, "");
        if !namespace.is_empty() {
            look("RoleBinding", ROLE_BINDINGS, namespace);
        }
        granted
    }

    fn add_granted(&self, granted: &mut Vec<Granted>, kind: &str, binding: &Value, user: &User, namespace: &str) {
        let subjects = binding.get("subjects").and_then(Value::as_array);
        let Some(subject) = subjects.into_iter().flatten().find(|subject| is_subject(subject, user, namespace)) else {
            return;
        };
        let text = |value: &Value, pointer: &str| {
            value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let (role_kind, role) = (text(binding, "/roleRef/kind"), text(binding, "/roleRef/name"));
        let Some(rules) = self.rules_of(&role_kind, &role, namespace) else { return };
        let within = |name: String| if namespace.is_empty() { name } else { format!("{name}/{namespace}") };
        let who = match text(subject, "/kind").as_str() {
            "ServiceAccount" => {
                let of = text(subject, "/namespace");
                format!("{}/{}", text(subject, "/name"), if of.is_empty() { namespace.to_owned() } else { of })
            }
            _ => text(subject, "/name"),
        };
        let name = within(text(binding, "/metadata/name"));
        let source = format!("{kind} {name:?} of {role_kind} {role:?} to {} {who:?}", text(subject, "/kind"));
        granted.push((source, rules));
    }

    /// The rules of a role; none when there is no such role.
    fn rules_of(&self, kind: &str, name: &str, namespace: &str) -> Option<Vec<Rule>> {
        self.rules_of_role(kind, name, namespace, DEEPEST)
    }

    fn rules_of_role(&self, kind: &str, name: &str, namespace: &str, depth: u32) -> Option<Vec<Rule>> {
        let store = &self.inner.options.store;
        let role = match kind {
            "Role" => store.get(ROLES, &Key::new(namespace, name))?.value_without_managed_fields(),
            "ClusterRole" => match store.get(CLUSTER_ROLES, &Key::new("", name)) {
                Some(role) => role.value_without_managed_fields(),
                None => {
                    let named = |object: &Value| object.pointer("/metadata/name").and_then(Value::as_str) == Some(name);
                    defaults().find(|(kind, object)| *kind == CLUSTER_ROLES && named(object))?.1.clone()
                }
            },
            _ => return None,
        };
        let own = |role: &Value| -> Vec<Rule> {
            role.get("rules").and_then(Value::as_array).into_iter().flatten().map(Rule::read).collect()
        };
        let selectors = role.pointer("/aggregationRule/clusterRoleSelectors").and_then(Value::as_array);
        let Some(selectors) = selectors.filter(|selectors| !selectors.is_empty()) else { return Some(own(&role)) };
        let stored = store.list(CLUSTER_ROLES, "", None, None).map(|listing| listing.objects).unwrap_or_default();
        let stored: Vec<Value> = stored.iter().map(|role| role.value_without_managed_fields()).collect();
        let built_in = defaults().filter(|(kind, _)| *kind == CLUSTER_ROLES).map(|(_, role)| role);
        let mut rules = Vec::new();
        let mut seen = vec![name];
        for other in stored.iter().chain(built_in) {
            let other_name = other.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
            let labels = other.pointer("/metadata/labels").unwrap_or(&Value::Null);
            if !seen.contains(&other_name) && selectors.iter().any(|selector| selects(selector, labels)) {
                seen.push(other_name);
                // `admin` gathers `edit`, which gathers `view`.
                if depth > 0 {
                    rules.extend(self.rules_of_role("ClusterRole", other_name, "", depth - 1).unwrap_or_default());
                }
            }
        }
        Some(rules)
    }

    /// By which binding RBAC allows it.
    pub(crate) fn rbac_allows(&self, user: &User, wanted: &Attributes<'_>) -> Option<String> {
        let granted = self.granted(user, wanted.namespace);
        granted.into_iter().find(|(_, rules)| rules.iter().any(|rule| rule.allows(wanted))).map(|(source, _)| source)
    }

    /// By which binding RBAC allows to read a path that is no resource.
    pub(crate) fn rbac_allows_path(&self, user: &User, verb: &str, path: &str) -> Option<String> {
        let granted = self.granted(user, "");
        let allows = |rules: &[Rule]| rules.iter().any(|rule| rule.allows_path(verb, path));
        granted.into_iter().find(|(_, rules)| allows(rules)).map(|(source, _)| source)
    }

    /// Nobody makes or changes a role, or binds one, that allows more than he may himself.
    pub(crate) fn confirm_no_escalation(
        &self,
        user: &User,
        plural: &str,
        namespace: &str,
        old: Option<&Value>,
        object: &Value,
    ) -> Result<(), Status> {
        if is_administrator(user, self.inner.options.builtins) || !GUARDED.contains(&plural) {
            return Ok(());
        }
        let same = |field: &str| old.is_some_and(|old| old.get(field) == object.get(field));
        if ["rules", "aggregationRule", "roleRef", "subjects"].into_iter().all(same) {
            return Ok(());
        }
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let may = |verb: &str, resource: &str, name: &str| {
            let wanted = Attributes { verb, group: GROUP, resource, subresource: "", namespace, name };
            self.authorize(user, &wanted).is_ok()
        };
        let rules: Vec<Rule> = if matches!(plural, "roles" | "clusterroles") {
            if may("escalate", plural, name) {
                return Ok(());
            }
            if object.pointer("/aggregationRule/clusterRoleSelectors/0").is_some() {
                let everything =
                    Rule::read(&serde_json::json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}));
                if !self.granted(user, "").iter().any(|(_, rules)| rules.iter().any(|rule| rule.covers(&everything))) {
                    let why = "must have cluster-admin privileges to use the aggregationRule";
                    return Err(Status::forbidden(GROUP, plural, name, why));
                }
            }
            object.get("rules").and_then(Value::as_array).into_iter().flatten().map(Rule::read).collect()
        } else {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (kind, role) = (text("/roleRef/kind"), text("/roleRef/name"));
            if may("bind", if kind == "Role" { "roles" } else { "clusterroles" }, role) {
                return Ok(());
            }
            self.rules_of(kind, role, namespace)
                .ok_or_else(|| Status::not_found(GROUP, if kind == "Role" { "roles" } else { "clusterroles" }, role))?
        };
        let own: Vec<Rule> = self.granted(user, namespace).into_iter().flat_map(|(_, rules)| rules).collect();
        let parts = rules.iter().flat_map(Rule::parts);
        let missing: Vec<Rule> = parts.filter(|part| !own.iter().any(|rule| rule.covers(part))).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut told: Vec<String> = merged(missing).iter().map(Rule::describe).collect();
        told.sort();
        let why = format!(
            "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            user.name,
            quoted(&user.groups),
            told.join("\n")
        );
        Err(Status::forbidden(GROUP, plural, name, why))
    }
}

/// Kinds that say who may do what.
const GUARDED: [&str; 4] = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(value: Value) -> Rule {
        Rule::read(&value)
    }

    fn wanted<'a>(verb: &'a str, resource: &'a str, subresource: &'a str, name: &'a str) -> Attributes<'a> {
        Attributes { verb, group: "", resource, subresource, namespace: "n", name }
    }

    #[test]
    fn rules_match_as_in_kubernetes() {
        let pods = rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "*/scale"]}));
        assert!(pods.allows(&wanted("get", "pods", "", "a")));
        assert!(!pods.allows(&wanted("delete", "pods", "", "a")));
        assert!(!pods.allows(&wanted("get", "pods", "log", "a")), "a subresource is another thing");
        assert!(pods.allows(&wanted("get", "anything", "scale", "a")));
        let one = rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "resourceNames": ["a"]}));
        assert!(one.allows(&wanted("get", "pods", "log", "a")) && !one.allows(&wanted("list", "pods", "", "")));
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/metrics", "/healthz/*"]}));
        assert!(paths.allows_path("get", "/metrics") && paths.allows_path("get", "/healthz/etcd"));
        assert!(!paths.allows_path("get", "/healthz") && !paths.allows_path("post", "/metrics"));
    }

    #[test]
    fn a_part_is_covered_by_what_allows_it() {
        let own =
            rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]}));
        let part = |value: Value| rule(value).parts().iter().all(|part| own.covers(part));
        assert!(part(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]})));
        assert!(!part(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]})));
        assert!(!part(
            json!({"verbs": ["get", "*"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"]})
        ));
        let told = merged(rule(json!({"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]})).parts());
        let told: Vec<String> = told.iter().map(Rule::describe).collect();
        assert_eq!(told, [r#"{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}"#]);
    }

    #[test]
    fn the_defaults_are_read() {
        assert!(defaults().count() > 10);
        let names: Vec<&str> =
            defaults().filter_map(|(_, object)| object.pointer("/metadata/name")?.as_str()).collect();
        for name in ["cluster-admin", "admin", "edit", "view", "system:discovery"] {
            assert!(names.contains(&name), "{name}");
        }
    }
}
