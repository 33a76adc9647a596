//! A server, and requests to it.

use bytes::Bytes;
use capstan_apiserver::{ApiServer, Builtins, InProcess, Options, Store, User};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use std::time::Duration;
use tower::Service;

pub struct Client {
    pub server: ApiServer,
    service: InProcess,
}

pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub body: Value,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{:#}", self.body);
        self.body
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers.get_all("warning").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }
}

pub fn management() -> Client {
    Client::new(Options::default())
}

pub fn workload() -> Client {
    Client::new(Options { builtins: Builtins::Workload, ..Options::default() })
}

pub fn on(store: Store) -> Client {
    Client::new(Options { store, ..Options::default() })
}

impl Client {
    pub fn new(options: Options) -> Client {
        Client::over(ApiServer::new(options).unwrap())
    }

    pub fn over(server: ApiServer) -> Client {
        let service = server.service(User::admin("test"));
        Client { server, service }
    }

    pub fn with_user(&self, user: User) -> Client {
        Client { server: self.server.clone(), service: self.server.service(user) }
    }

    pub async fn raw(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Response<capstan_apiserver::ResponseBody> {
        let mut request = Request::builder().method(method).uri(path).header("user-agent", "tests/1.0");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        self.service.clone().call(request).await.unwrap()
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let answer = self.raw(method, path, headers, body).await;
        let (parts, body) = answer.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned()));
        Answer { code: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        let kind = match kind {
            "merge" => "application/merge-patch+json",
            "json" => "application/json-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            "apply" => "application/apply-patch+yaml",
            other => other,
        };
        self.send(Method::PATCH, path, &[("content-type", kind)], body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], "").await
    }

    pub async fn install(&self, definition: &Value) {
        self.post(DEFINITIONS, definition).await.expect(201);
    }

    /// A watch, as a stream of its events.
    pub async fn watch(&self, path: &str) -> Events {
        let answer = self.raw(Method::GET, path, &[], "").await;
        assert_eq!(answer.status(), 200);
        Events { body: answer.into_body(), buffer: Vec::new() }
    }

    /// Waits until a path answers with this status; the collector works beside the test.
    pub async fn until(&self, path: &str, code: u16) -> Value {
        for _ in 0..500 {
            let answer = self.get(path).await;
            if answer.code == code {
                return answer.body;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{path} never answered {code}: {:#}", self.get(path).await.body);
    }
}

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub struct Events {
    body: capstan_apiserver::ResponseBody,
    buffer: Vec<u8>,
}

impl Events {
    /// The next event. None when the watch has ended.
    pub async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).unwrap();
                return Some((event["type"].as_str().unwrap().to_owned(), event["object"].take()));
            }
            let frame = tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.expect("no event came");
            self.buffer.extend_from_slice(&frame?.unwrap().into_data().unwrap());
        }
    }

    pub async fn expect(&mut self, kind: &str, name: &str) -> Value {
        let (got, object) = self.next().await.expect("the watch ended");
        assert_eq!((got.as_str(), object["metadata"]["name"].as_str().unwrap_or_default()), (kind, name), "{object:#}");
        object
    }

    /// Whether nothing has come yet.
    pub async fn quiet(&mut self) -> bool {
        tokio::time::timeout(Duration::from_millis(50), self.next()).await.is_err()
    }
}

pub fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

/// A definition of `widgets.test.dev` with everything a definition can have.
pub fn widgets() -> Value {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 0, "maximum": 100},
            "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
            "replicas": {"type": "integer"},
            "parts": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}},
            "x-kubernetes-validations": [{"rule": "self.size != 13", "message": "13 is unlucky"}]},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}, "selector": {"type": "string"}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "widgets.test.dev"}, "spec": {
        "group": "test.dev", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all", "things"]},
        "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
             "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
             "selectableFields": [{"jsonPath": ".spec.color"}],
             "additionalPrinterColumns": [
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]},
            {"name": "v1beta1", "served": true, "storage": false, "deprecated": true, "schema": {"openAPIV3Schema": schema}, "subresources": {"status": {}}}]}})
}

pub const WIDGETS: &str = "/apis/test.dev/v1/namespaces/default/widgets";

pub fn widget(name: &str, size: i64) -> Value {
    json!({"apiVersion": "test.dev/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {"size": size}})
}
