//! OpenAPI v3: the index and one document for each group and version, made when asked for.

use crate::catalog::{Catalog, Resource, Version};
use crate::request::accepted;
use crate::response::{self, ResponseBody};
use crate::status::{NO_OBJECT, Status};
use http::{HeaderMap, HeaderValue, Response, header};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// `/openapi/v2`: a document with nothing in it. Clients that know v3 look here only for what v3 does not have, and must be
/// able to read that there is nothing.
pub(crate) fn version_2(headers: &HeaderMap) -> Response<ResponseBody> {
    const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    /// Field 1, `swagger`, is "2.0".
    const EMPTY: &[u8] = b"\x0a\x032.0";
    if accepted(headers).iter().any(|entry| entry.essence.contains("proto-openapi.spec.v2")) {
        return response::typed(200, HeaderValue::from_static(PROTOBUF), EMPTY);
    }
    response::value(
        200,
        &json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1"}, "paths": {}, "definitions": {}}),
    )
}

/// `/openapi/v3`.
pub(crate) fn index(catalog: &Catalog) -> Response<ResponseBody> {
    let mut paths = Map::new();
    for group in catalog.groups() {
        for version in catalog.versions(group) {
            let path = document_path(group, version);
            let url = format!("/openapi/v3/{path}?hash={}", hash(catalog, group, version));
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    response::value(200, &json!({"paths": paths}))
}

fn document_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

/// What changes whenever the document does.
fn hash(catalog: &Catalog, group: &str, version: &str) -> String {
    let mut digest = Sha256::new();
    for resource in catalog.group(group).filter(|resource| resource.version(version).is_some()) {
        digest.update(resource.plural.as_bytes());
        digest.update([0]);
        digest.update(resource.fingerprint.as_bytes());
        digest.update([0]);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// `/openapi/v3/<path>`.
pub(crate) fn document(catalog: &Catalog, path: &str) -> Result<Response<ResponseBody>, Status> {
    let segments: Vec<&str> = path.split('/').collect();
    let (group, version) = match segments.as_slice() {
        ["api", version] => ("", *version),
        ["apis", group, version] => (*group, *version),
        _ => return Err(Status::new(404, NO_OBJECT, "")),
    };
    let resources: Vec<(&Arc<Resource>, &Arc<Version>)> =
        catalog.group(group).filter_map(|resource| Some((resource, resource.version(version)?))).collect();
    if resources.is_empty() {
        return Err(Status::new(404, NO_OBJECT, ""));
    }
    let mut schemas = Map::new();
    let mut paths = Map::new();
    for (resource, version) in resources {
        let name = component(resource, version);
        let mut components = version.schema().open_api_components(&name);
        let name = version.schema().definition().map(str::to_owned).unwrap_or(name);
        if let Some(schema) = components.get_mut(&name).and_then(Value::as_object_mut) {
            schema.insert("x-kubernetes-group-version-kind".into(), json!([gvk(resource, version)]));
        }
        schemas.extend(components);
        add_paths(&mut paths, resource, version, &name);
    }
    let document = json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1"},
        "paths": paths,
        "components": {"schemas": schemas},
    });
    let mut answer = response::value(200, &document);
    let tag = format!("\"{}\"", hash(catalog, group, version));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        answer.headers_mut().insert(header::ETAG, tag);
    }
    Ok(answer)
}

fn gvk(resource: &Resource, version: &Version) -> Value {
    json!({"group": resource.group, "kind": resource.kind, "version": version.name})
}

/// The name of a custom kind's schema: its group backwards, its version, its kind.
fn component(resource: &Resource, version: &Version) -> String {
    let group: Vec<&str> = resource.group.split('.').rev().collect();
    format!("{}.{}.{}", group.join("."), version.name, resource.kind)
}

fn parameter(name: &str, kind: &str) -> Value {
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn add_paths(paths: &mut Map<String, Value>, resource: &Resource, version: &Version, schema: &str) {
    let prefix = format!("/{}", document_path(&resource.group, &version.name));
    let collection = if resource.namespaced {
        format!("{prefix}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        format!("{prefix}/{}", resource.plural)
    };
    let reference = json!({"$ref": format!("#/components/schemas/{schema}")});
    let content = json!({"application/json": {"schema": reference}});
    let operation = |action: &str, parameters: &[&str], body: Option<&[&str]>| {
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|name| parameter(name, if *name == "limit" { "integer" } else { "string" }))
            .collect();
        let mut operation = json!({
            "tags": [resource.plural],
            "parameters": parameters,
            "responses": {"200": {"description": "OK", "content": content}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": gvk(resource, version),
        });
        if let (Some(types), Some(fields)) = (body, operation.as_object_mut()) {
            let content: Map<String, Value> =
                types.iter().map(|name| ((*name).to_owned(), json!({"schema": reference}))).collect();
            fields.insert("requestBody".into(), json!({"content": content}));
        }
        operation
    };
    const LIST: &[&str] = &[
        "allowWatchBookmarks",
        "continue",
        "fieldSelector",
        "labelSelector",
        "limit",
        "resourceVersion",
        "resourceVersionMatch",
        "sendInitialEvents",
        "timeoutSeconds",
        "watch",
    ];
    const WRITE: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];
    const PATCH: &[&str] = &["dryRun", "fieldManager", "fieldValidation", "force"];
    const DELETE: &[&str] = &[
        "dryRun",
        "gracePeriodSeconds",
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        "orphanDependents",
        "propagationPolicy",
    ];
    let patches: &[&str] = &[
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
        "application/strategic-merge-patch+json",
    ];
    let patches = patches.get(..if resource.custom { 3 } else { 4 }).unwrap_or(patches);
    let place = |name: &str| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}});
    let mut collection_parameters = Vec::new();
    if resource.namespaced {
        collection_parameters.push(place("namespace"));
    }
    let mut item_parameters = collection_parameters.clone();
    item_parameters.insert(0, place("name"));
    let json_body: &[&str] = &["application/json", "application/yaml"];
    paths.insert(
        collection.clone(),
        json!({
            "parameters": collection_parameters,
            "get": operation("list", LIST, None),
            "post": operation("post", WRITE, Some(json_body)),
            "delete": operation("deletecollection", DELETE, None),
        }),
    );
    let item = format!("{collection}/{{name}}");
    paths.insert(
        item.clone(),
        json!({
            "parameters": item_parameters,
            "get": operation("get", &["resourceVersion"], None),
            "put": operation("put", WRITE, Some(json_body)),
            "patch": operation("patch", PATCH, Some(patches)),
            "delete": operation("delete", DELETE, Some(json_body)),
        }),
    );
    if version.status {
        paths.insert(
            format!("{item}/status"),
            json!({
                "parameters": item_parameters,
                "get": operation("get", &[], None),
                "put": operation("put", WRITE, Some(json_body)),
                "patch": operation("patch", PATCH, Some(patches)),
            }),
        );
    }
    if resource.namespaced {
        paths.insert(format!("{prefix}/{}", resource.plural), json!({"get": operation("list", LIST, None)}));
    }
}
