//! What is served, for clients that find out: the legacy lists and aggregated discovery.

use crate::catalog::{Catalog, Resource, Version};
use crate::request::accepted;
use crate::response::{self, ResponseBody};
use crate::rest::REVIEWS;
use crate::status::Status;
use http::{HeaderMap, HeaderValue, Response};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];
const ACTION_VERBS: &[&str] = &["create"];

/// The order in which upstream tells the verbs of custom resources.
const CUSTOM_VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Namespaces are deleted one by one.
const NAMESPACE_VERBS: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];

fn verbs_of(resource: &Resource) -> &'static [&'static str] {
    match (resource.custom, resource.plural.as_str()) {
        (true, _) => CUSTOM_VERBS,
        (false, "namespaces") => NAMESPACE_VERBS,
        (false, _) => VERBS,
    }
}

/// Tells clients when objects are stored in another version.
fn storage_hash(resource: &Resource) -> String {
    use base64::Engine as _;
    use sha2::{Digest as _, Sha256};
    let (group, version) = resource.stored.rsplit_once('/').unwrap_or(("", &resource.stored));
    let digest = Sha256::digest(format!("{group}/{version}/{}", resource.kind));
    base64::engine::general_purpose::STANDARD.encode(digest.get(..8).unwrap_or_default())
}

/// (kind, group, version) and verbs of a subresource.
fn subresource(
    resource: &Resource,
    version: &Version,
    name: &str,
) -> (String, String, String, &'static [&'static str]) {
    let of =
        |kind: &str, group: &str, version: &str, verbs| (kind.to_owned(), group.to_owned(), version.to_owned(), verbs);
    match name {
        "scale" => of("Scale", "autoscaling", "v1", SUBRESOURCE_VERBS),
        "eviction" => of("Eviction", "policy", "v1", ACTION_VERBS),
        "binding" => of("Binding", "", "v1", ACTION_VERBS),
        "token" => of("TokenRequest", "authentication.k8s.io", "v1", ACTION_VERBS),
        "portforward" => of("PodPortForwardOptions", "", "v1", &["create", "get"]),
        "proxy" => of("NodeProxyOptions", "", "v1", &["create", "delete", "get", "patch", "update"]),
        "finalize" => of(&resource.kind, &resource.group, &version.name, &["update"]),
        _ => of(&resource.kind, &resource.group, &version.name, SUBRESOURCE_VERBS),
    }
}

/// All groups that have anything, the core group first.
fn all_groups(catalog: &Catalog) -> BTreeSet<&str> {
    catalog.groups().map(String::as_str).chain(REVIEWS.iter().map(|review| review.group)).collect()
}

/// The versions of a group, the preferred first.
fn all_versions<'a>(catalog: &'a Catalog, group: &str) -> Vec<&'a str> {
    let mut versions = catalog.versions(group);
    for review in REVIEWS.iter().filter(|review| review.group == group) {
        if !versions.contains(&review.version) {
            versions.push(review.version);
        }
    }
    versions
}

/// `/api` and `/apis`.
pub(crate) fn groups(catalog: &Catalog, legacy: bool, headers: &HeaderMap) -> Response<ResponseBody> {
    let wanted = accepted(headers).into_iter().find(|entry| {
        let plain = entry.kind.is_empty() && matches!(entry.essence.as_str(), "application/json" | "*/*");
        plain
            || (entry.group == "apidiscovery.k8s.io"
                && entry.kind == "APIGroupDiscoveryList"
                && matches!(entry.version.as_str(), "v2" | "v2beta1"))
    });
    if let Some(entry) = wanted.filter(|entry| !entry.kind.is_empty()) {
        let document = aggregated(catalog, legacy, &entry.version);
        let content_type =
            format!("application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList", entry.version);
        let content_type = HeaderValue::from_str(&content_type).unwrap_or(HeaderValue::from_static("application/json"));
        return response::typed(200, content_type, document.to_string());
    }
    if legacy {
        let document = json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []});
        return response::value(200, &document);
    }
    let groups: Vec<Value> = all_groups(catalog)
        .into_iter()
        .filter(|group| !group.is_empty())
        .filter_map(|group| group_of(catalog, group))
        .collect();
    response::value(200, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
}

fn group_of(catalog: &Catalog, group: &str) -> Option<Value> {
    let versions = all_versions(catalog, group);
    let entry = |version: &&str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let preferred = entry(versions.first()?);
    Some(
        json!({"name": group, "versions": versions.iter().map(entry).collect::<Vec<_>>(), "preferredVersion": preferred}),
    )
}

/// `/apis/<group>`.
pub(crate) fn group(catalog: &Catalog, group: &str) -> Result<Response<ResponseBody>, Status> {
    let mut document = group_of(catalog, group).ok_or_else(Status::no_such_page)?;
    if let Some(fields) = document.as_object_mut() {
        fields.insert("kind".into(), "APIGroup".into());
        fields.insert("apiVersion".into(), "v1".into());
    }
    Ok(response::value(200, &document))
}

/// `/api/v1`, `/apis/<group>/<version>`.
pub(crate) fn version(catalog: &Catalog, group: &str, name: &str) -> Result<Response<ResponseBody>, Status> {
    let mut resources = Vec::new();
    let api_version = if group.is_empty() { name.to_owned() } else { format!("{group}/{name}") };
    for resource in catalog.group(group) {
        let Some(version) = resource.version(name) else { continue };
        let mut entry = json!({
            "name": resource.plural, "singularName": resource.singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs_of(resource),
        });
        if let Some(fields) = entry.as_object_mut() {
            if !resource.short_names.is_empty() {
                fields.insert("shortNames".into(), resource.short_names.iter().map(String::as_str).collect());
            }
            if !resource.categories.is_empty() {
                fields.insert("categories".into(), resource.categories.iter().map(String::as_str).collect());
            }
            fields.insert("storageVersionHash".into(), storage_hash(resource).into());
        }
        resources.push(entry);
        for name in &version.subresources {
            let (kind, sub_group, sub_version, verbs) = subresource(resource, version, name);
            let mut entry = json!({
                "name": format!("{}/{name}", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": kind, "verbs": verbs,
            });
            if (sub_group != resource.group || sub_version != version.name)
                && let Some(fields) = entry.as_object_mut()
            {
                fields.insert("group".into(), sub_group.into());
                fields.insert("version".into(), sub_version.into());
            }
            resources.push(entry);
        }
    }
    for review in REVIEWS.iter().filter(|review| review.group == group && review.version == name) {
        resources.push(json!({
            "name": review.plural, "singularName": review.singular, "namespaced": review.namespaced, "kind": review.kind, "verbs": ACTION_VERBS,
        }));
    }
    if resources.is_empty() {
        let built_in = catalog.group(group).any(|resource| !resource.custom);
        return Err(if built_in { Status::no_such_path() } else { Status::no_such_page() });
    }
    let mut document =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources});
    if group.is_empty()
        && let Some(fields) = document.as_object_mut()
    {
        // The oldest document there is, from before all had a version.
        fields.shift_remove("apiVersion");
    }
    Ok(response::value(200, &document))
}

fn aggregated(catalog: &Catalog, legacy: bool, document_version: &str) -> Value {
    let groups = all_groups(catalog).into_iter().filter(|group| group.is_empty() == legacy);
    let items: Vec<Value> = groups
        .map(|group| {
            let versions: Vec<Value> = all_versions(catalog, group)
                .iter()
                .map(|version| aggregated_version(catalog, group, version))
                .collect();
            let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{document_version}"), "metadata": {}, "items": items})
}

fn aggregated_version(catalog: &Catalog, group: &str, name: &str) -> Value {
    let mut resources = Vec::new();
    for resource in catalog.group(group) {
        let Some(version) = resource.version(name) else { continue };
        let subresources: Vec<Value> = version
            .subresources
            .iter()
            .map(|name| {
                let (kind, group, sub_version, verbs) = subresource(resource, version, name);
                json!({"subresource": name, "responseKind": {"group": group, "version": sub_version, "kind": kind}, "verbs": verbs})
            })
            .collect();
        let mut entry = json!({
            "resource": resource.plural,
            "responseKind": {"group": group, "version": name, "kind": resource.kind},
            "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": resource.singular,
            "verbs": verbs_of(resource),
        });
        if let Some(fields) = entry.as_object_mut() {
            for (field, names) in [("shortNames", &resource.short_names), ("categories", &resource.categories)] {
                if !names.is_empty() {
                    fields.insert(field.into(), names.iter().map(String::as_str).collect());
                }
            }
            if !subresources.is_empty() {
                fields.insert("subresources".into(), subresources.into());
            }
        }
        resources.push(entry);
    }
    for review in REVIEWS.iter().filter(|review| review.group == group && review.version == name) {
        resources.push(json!({
            "resource": review.plural,
            "responseKind": {"group": group, "version": name, "kind": review.kind},
            "scope": if review.namespaced { "Namespaced" } else { "Cluster" },
            "singularResource": review.singular,
            "verbs": ACTION_VERBS,
        }));
    }
    json!({"version": name, "resources": resources, "freshness": "Current"})
}
