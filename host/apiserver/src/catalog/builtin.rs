//! The built-in kinds as resources. One catalog for each profile, made once for the whole process.

use super::{Catalog, Converter, LazySchema, Resource, Scale, Version};
use crate::options::Builtins;
use crate::schema::{self, BuiltinKind};
use crate::status::qualified;
use crate::table::Columns;
use serde_json::{Map, Value};
use std::sync::{Arc, LazyLock, OnceLock};

/// What a management plane serves besides CustomResourceDefinitions' kinds: (group, plural).
const MANAGEMENT: &[(&str, &str)] = &[
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("", "configmaps"),
    ("", "events"),
    ("", "namespaces"),
    ("", "secrets"),
    ("", "serviceaccounts"),
    ("", "services"),
    ("apiextensions.k8s.io", "customresourcedefinitions"),
    ("coordination.k8s.io", "leases"),
    ("events.k8s.io", "events"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "rolebindings"),
    ("rbac.authorization.k8s.io", "roles"),
];

static MANAGEMENT_CATALOG: LazyLock<Arc<Catalog>> =
    LazyLock::new(|| catalog(|kind| MANAGEMENT.contains(&(kind.group, kind.plural))));
static WORKLOAD_CATALOG: LazyLock<Arc<Catalog>> = LazyLock::new(|| catalog(|_| true));

/// The built-in kinds of a profile.
pub(crate) fn builtins(profile: Builtins) -> Arc<Catalog> {
    match profile {
        Builtins::Management => MANAGEMENT_CATALOG.clone(),
        Builtins::Workload => WORKLOAD_CATALOG.clone(),
    }
}

fn catalog(served: impl Fn(&BuiltinKind) -> bool) -> Arc<Catalog> {
    let mut catalog = Catalog::default();
    for kind in schema::builtins().iter().filter(|kind| served(kind)) {
        catalog.insert(Arc::new(resource(kind)));
    }
    Arc::new(catalog)
}

fn resource(kind: &BuiltinKind) -> Resource {
    let events = (kind.group, kind.plural) == ("events.k8s.io", "events");
    let api_version =
        if kind.group.is_empty() { kind.version.to_owned() } else { format!("{}/{}", kind.group, kind.version) };
    let scale = kind.subresources.contains(&"scale").then(|| Scale {
        spec_replicas: String::from("/spec/replicas"),
        status_replicas: String::from("/status/replicas"),
        selector: Some(String::from("/spec/selector")),
    });
    Resource {
        group: kind.group.to_owned(),
        plural: kind.plural.to_owned(),
        singular: kind.singular.to_owned(),
        kind: kind.kind.to_owned(),
        list_kind: format!("{}List", kind.kind),
        short_names: kind.short_names.iter().map(|&name| name.to_owned()).collect(),
        categories: categories(kind).iter().map(|&name| name.to_owned()).collect(),
        namespaced: kind.namespaced,
        collection: if events { "events".into() } else { qualified(kind.plural, kind.group).into() },
        stored: if events { String::from("v1") } else { api_version.clone() },
        converter: if kind.plural == "events" { Converter::Events } else { Converter::Rename },
        custom: false,
        fingerprint: String::from(env!("CARGO_PKG_VERSION")),
        unserved: Vec::new(),
        versions: vec![Arc::new(Version {
            name: kind.version.to_owned(),
            api_version,
            schema: LazySchema::BuiltIn(kind.schema, OnceLock::new()),
            status: kind.subresources.contains(&"status"),
            scale,
            subresources: kind.subresources.iter().map(|&name| name.to_owned()).collect(),
            columns: Columns::built_in(kind.group, kind.plural),
            selectable: selectable(kind).iter().map(|&field| field.to_owned()).collect(),
            deprecated: None,
        })],
    }
}

fn categories(kind: &BuiltinKind) -> &'static [&'static str] {
    match (kind.group, kind.plural) {
        ("apps", "controllerrevisions") => &[],
        ("", "pods" | "services" | "replicationcontrollers") | ("apps", _) | ("batch", _) => &["all"],
        ("apiextensions.k8s.io" | "admissionregistration.k8s.io", _) => &["api-extensions"],
        _ => &[],
    }
}

/// What the built-in kinds can be selected by, as Kubernetes has it.
fn selectable(kind: &BuiltinKind) -> &'static [&'static str] {
    match (kind.group, kind.plural) {
        ("", "pods") => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        ("", "nodes") => &["spec.unschedulable"],
        ("", "namespaces") => &["status.phase"],
        ("", "secrets") => &["type"],
        ("", "services") => &["spec.clusterIP", "spec.type"],
        ("", "events") => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        // Selectors see what is stored, so these name the fields of the core group.
        ("events.k8s.io", "events") => &["reason", "reportingComponent", "type"],
        ("apps", "replicasets") => &["status.replicas"],
        ("batch", "jobs") => &["status.successful"],
        ("certificates.k8s.io", _) => &["spec.signerName"],
        _ => &[],
    }
}

/// What an Event's fields are called: in the core group, in events.k8s.io.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

/// An Event in the words of the other group.
pub(super) fn convert_event(event: Value, api_version: &str) -> Value {
    let Value::Object(fields) = event else { return event };
    let to_core = api_version == "v1";
    let rename = |name: String| {
        let pair = EVENT_FIELDS.iter().find(|(core, new)| if to_core { *new == name } else { *core == name });
        match pair {
            Some((core, new)) => (if to_core { *core } else { *new }).to_owned(),
            None => name,
        }
    };
    let mut out: Map<String, Value> = fields.into_iter().map(|(name, value)| (rename(name), value)).collect();
    out.insert("apiVersion".into(), api_version.into());
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_have_two_names_for_their_fields() {
        let core =
            json!({"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "x"}, "message": "m", "count": 2});
        let new = convert_event(core.clone(), "events.k8s.io/v1");
        assert_eq!(
            new,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "regarding": {"name": "x"}, "note": "m", "deprecatedCount": 2})
        );
        assert_eq!(convert_event(new, "v1"), core);
    }
}
