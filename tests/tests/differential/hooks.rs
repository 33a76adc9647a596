//! Webhooks of others: both servers ask the same one, and do the same with its answers.

use crate::definitions::{definition, object_schema};
use crate::objects::{map, maps};
use crate::session::{Answer, Own, Session, compare};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use capstan_tests::authority::Authority;
use reqwest::Method;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

pub const REGISTRATION: &str = "/apis/admissionregistration.k8s.io/v1";

/// A webhook that answers reviews with what `answer` makes of their requests.
struct Hook {
    url: String,
    trust: String,
}

impl Hook {
    async fn start(s: &mut Session, answer: fn(&str, &Value) -> Value) -> Hook {
        let authority = Authority::new().expect("an authority");
        let signed = authority.sign("webhook", &[]).expect("a certificate");
        let key = PrivateKeyDer::try_from(signed.key_der).expect("a key");
        let tls = rustls::ServerConfig::builder().with_no_client_auth();
        let tls = tls.with_single_cert(vec![CertificateDer::from(signed.der)], key).expect("TLS");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let mut stream = BufReader::new(stream);
                    while let Some((path, review)) = read(&mut stream).await {
                        let mut response = answer(&path, &review["request"]);
                        response["uid"] = review["request"]["uid"].clone();
                        let text =
                            json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response});
                        let text = text.to_string();
                        let head = format!(
                            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                            text.len()
                        );
                        if stream.write_all(format!("{head}{text}").as_bytes()).await.is_err() {
                            return;
                        }
                        let _ = stream.flush().await;
                    }
                });
            }
        });
        s.words.private.push((format!(":{}", address.port()), ":port".to_owned()));
        let trust = STANDARD.encode(&authority.certificate);
        s.words.private.push((trust.clone(), "trust".to_owned()));
        Hook { url: format!("https://{address}"), trust }
    }

    fn client(&self, path: &str) -> Value {
        json!({"url": format!("{}{path}", self.url), "caBundle": self.trust})
    }
}

async fn read<S: tokio::io::AsyncRead + Unpin>(stream: &mut BufReader<S>) -> Option<(String, Value)> {
    let mut length = 0;
    let mut path = String::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if path.is_empty() {
            path = line.split([' ', '?']).nth(1)?.to_owned();
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((path, serde_json::from_slice(&body).ok()?))
}

fn configuration(kind: &str, name: &str, namespace: &str, webhook: Value) -> Value {
    let mut webhook = webhook;
    webhook["name"] = format!("{name}.diff.dev").into();
    webhook["admissionReviewVersions"] = json!(["v1"]);
    webhook["namespaceSelector"] = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    if webhook["sideEffects"].is_null() {
        webhook["sideEffects"] = "None".into();
    }
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "webhooks": [webhook]})
}

fn rules(operations: &[&str]) -> Value {
    json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": operations, "resources": ["configmaps"]}])
}

/// Refuses what is named `bad…`, warns of the rest; adds a key; says what it was told.
fn judge(path: &str, request: &Value) -> Value {
    let name = request["name"].as_str().unwrap_or_default();
    match path {
        "/mutate" => {
            let told =
                json!([request["operation"], request["resource"], request["dryRun"], request["userInfo"]["username"]]);
            let patch = json!([{"op": "add", "path": "/data", "value": {"told": told.to_string()}}]);
            json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())})
        }
        // Each counts on from what the other left; what is counted twice was asked twice.
        "/count" | "/count-again" => {
            let labels = request["object"]["metadata"]["labels"].as_object().cloned().unwrap_or_default();
            let count = |name: &str| labels.get(name).and_then(Value::as_str).unwrap_or_default().len();
            let own = path.trim_start_matches('/');
            let mut labels = labels.clone();
            labels.insert(own.to_owned(), "i".repeat(count(own) + 1).into());
            let patch = json!([{"op": "add", "path": "/metadata/labels", "value": labels}]);
            json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())})
        }
        _ if name == "bad" => json!({"allowed": false}),
        _ if name == "bad-message" => json!({"allowed": false, "status": {"message": "because"}}),
        _ if name == "bad-code" => {
            json!({"allowed": false, "status": {"message": "because", "code": 422, "reason": "Invalid", "status": "Failure",
                "details": {"name": "x", "kind": "Y", "causes": [{"reason": "FieldValueInvalid", "message": "m", "field": "data"}]}}})
        }
        _ => {
            json!({"allowed": true, "warnings": [format!("{} of {name}", request["operation"].as_str().unwrap_or_default())]})
        }
    }
}

/// A configuration takes a moment until the real server's caches have it.
pub async fn in_force(s: &mut Session, path: &str, probe: &Value, in_force: impl Fn(&Answer) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = s.request(Method::POST, &format!("{path}?dryRun=All")).json(probe).quietly().send().await;
        if in_force(&answer) {
            return;
        }
        assert!(Instant::now() < deadline, "{}: what was registered is not asked: {:#}", s.server.name, answer.body);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_validating_webhook_is_asked() {
    compare(async |s: &mut Session| {
        s.namespace("hooks-validate").await;
        let hook = Hook::start(s, judge).await;
        let webhook = json!({"clientConfig": hook.client("/validate"), "rules": rules(&["*"])});
        let kind = "ValidatingWebhookConfiguration";
        let path = format!("{REGISTRATION}/validatingwebhookconfigurations");
        s.post(&path, &configuration(kind, "validate", "hooks-validate", webhook)).await;
        let maps = maps("hooks-validate");
        in_force(s, &maps, &map("bad", json!({})), |answer| answer.code == 400).await;
        for name in ["good", "bad", "bad-message", "bad-code"] {
            s.post(&maps, &map(name, json!({"a": "b"}))).await;
        }
        s.patch(&format!("{maps}/good"), "merge", &json!({"data": {"a": "c"}})).await;
        s.delete(&format!("{maps}/good")).await;
        s.get(&format!("{path}/validate")).await;
        s.delete(&format!("{path}/validate")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mutating_webhook_changes_what_is_stored() {
    compare(async |s: &mut Session| {
        s.namespace("hooks-mutate").await;
        let hook = Hook::start(s, judge).await;
        let webhook = json!({"clientConfig": hook.client("/mutate"), "rules": rules(&["CREATE", "UPDATE"]),
            "objectSelector": {"matchExpressions": [{"key": "leave", "operator": "DoesNotExist"}]}});
        let kind = "MutatingWebhookConfiguration";
        let path = format!("{REGISTRATION}/mutatingwebhookconfigurations");
        s.post(&path, &configuration(kind, "mutate", "hooks-mutate", webhook)).await;
        let maps = maps("hooks-mutate");
        in_force(s, &maps, &map("probe", json!({})), |answer| answer.body["data"]["told"].is_string()).await;
        s.post(&maps, &map("a", json!({"a": "b"}))).await;
        s.post(&format!("{maps}?dryRun=All"), &map("b", json!({"a": "b"}))).await;
        let mut left = map("left", json!({"a": "b"}));
        left["metadata"]["labels"] = json!({"leave": "me"});
        s.post(&maps, &left).await;
        s.patch(&format!("{maps}/a"), "merge", &json!({"data": {"more": "c"}})).await;
        s.get(&format!("{maps}/a")).await;
        s.delete(&format!("{path}/mutate")).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_with_conditions() {
    compare(async |s: &mut Session| {
        s.namespace("hooks-conditions").await;
        let hook = Hook::start(s, judge).await;
        let conditions = json!([
            {"name": "not-free", "expression": "!object.metadata.name.startsWith('free')"},
            {"name": "diff.dev/needed", "expression": "object.metadata.name == 'bad' || object.data.needed == 'yes'"},
            {"name": "no-update", "expression": "request.operation == 'CREATE' && oldObject == null"}]);
        let path = format!("{REGISTRATION}/validatingwebhookconfigurations");
        let maps = maps("hooks-conditions");
        for failure in ["Fail", "Ignore"] {
            let webhook = json!({"clientConfig": hook.client("/validate"), "rules": rules(&["CREATE", "UPDATE"]), "matchConditions": conditions,
                "failurePolicy": failure});
            s.post(&path, &configuration("ValidatingWebhookConfiguration", "conditions", "hooks-conditions", webhook)).await;
            in_force(s, &maps, &map("bad", json!({})), |answer| answer.code == 400).await;
            let name = |name: &str| format!("{name}-{}", failure.to_lowercase());
            s.post(&maps, &map(&name("free"), json!({"a": "b"}))).await;
            s.post(&maps, &map("bad-message", json!({"needed": "yes"}))).await;
            s.post(&maps, &map("bad-message", json!({"needed": "no"}))).await;
            s.delete(&format!("{maps}/bad-message")).await;
            // It cannot be told whether the webhook is to be asked.
            s.post(&maps, &map(&name("untold"), json!({"a": "b"}))).await;
            s.post(&maps, &map(&name("asked"), json!({"needed": "yes"}))).await;
            s.patch(&format!("{maps}/{}", name("asked")), "merge", &json!({"data": {"a": "c"}})).await;
            s.delete(&format!("{path}/conditions")).await;
            in_force(s, &maps, &map("bad", json!({})), |answer| answer.code == 201).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mutating_webhooks_are_asked_again() {
    compare(async |s: &mut Session| {
        s.namespace("hooks-again").await;
        let hook = Hook::start(s, judge).await;
        let path = format!("{REGISTRATION}/mutatingwebhookconfigurations");
        let maps = maps("hooks-again");
        let webhook = |name: &str, at: &str, policy: &str| {
            let webhook =
                json!({"clientConfig": hook.client(at), "rules": rules(&["CREATE"]), "reinvocationPolicy": policy});
            configuration("MutatingWebhookConfiguration", "again", "hooks-again", webhook)["webhooks"][0]
                .as_object()
                .map(|one| {
                    let mut one = one.clone();
                    one.insert("name".into(), format!("{name}.diff.dev").into());
                    Value::Object(one)
                })
                .expect("a webhook")
        };
        let cases = [
            [webhook("a.one", "/count-again", "IfNeeded"), webhook("b.two", "/count", "Never")],
            [webhook("a.one", "/count", "Never"), webhook("b.two", "/count-again", "IfNeeded")],
            [webhook("a.one", "/count", "IfNeeded"), webhook("b.two", "/count-again", "IfNeeded")],
            [webhook("a.one", "/count-again", "IfNeeded"), webhook("b.two", "/validate", "Never")],
        ];
        for (index, webhooks) in cases.into_iter().enumerate() {
            let mut whole = configuration("MutatingWebhookConfiguration", "again", "hooks-again", webhooks[0].clone());
            whole["webhooks"] = webhooks.to_vec().into();
            s.post(&path, &whole).await;
            in_force(s, &maps, &map("probe", json!({})), |answer| answer.body["metadata"]["labels"].is_object()).await;
            s.post(&maps, &map(&format!("a{index}"), json!({}))).await;
            s.delete(&format!("{path}/again")).await;
            in_force(s, &maps, &map("probe", json!({})), |answer| answer.body["metadata"]["labels"].is_null()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn configurations_that_are_refused() {
    compare(async |s: &mut Session| {
        for kind in ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"] {
            let path = format!("{REGISTRATION}/{}s", kind.to_lowercase());
            let good = json!({"name": "a.diff.dev", "clientConfig": {"url": "https://127.0.0.1:9/x"}, "sideEffects": "None", "admissionReviewVersions": ["v1"]});
            let but = |changes: Value| {
                let mut webhook = good.clone();
                for (name, value) in changes.as_object().into_iter().flatten() {
                    webhook[name] = value.clone();
                }
                json!([webhook])
            };
            let rule = |rule: Value| but(json!({"rules": [rule]}));
            let cases = [
                but(json!({"name": "short.dev"})),
                but(json!({"name": "Big.diff.dev"})),
                but(json!({"sideEffects": null})),
                but(json!({"sideEffects": "Some"})),
                but(json!({"admissionReviewVersions": []})),
                but(json!({"admissionReviewVersions": ["v2", "v2"]})),
                but(json!({"timeoutSeconds": 31})),
                but(json!({"failurePolicy": "Perhaps", "matchPolicy": "Perhaps"})),
                but(json!({"clientConfig": {}})),
                but(json!({"clientConfig": {"url": "http://127.0.0.1/x"}})),
                but(json!({"clientConfig": {"url": "https://u@127.0.0.1/x?y=z#f"}})),
                but(json!({"clientConfig": {"service": {"name": "", "namespace": ""}}})),
                rule(json!({})),
                rule(json!({"apiGroups": ["*", "a"], "apiVersions": ["*", "v1"], "operations": ["*", "CREATE"], "resources": ["*/*", "pods"]})),
                rule(json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["READ"], "resources": ["pods/*", "pods/status", "*/status", "nodes/status", ""], "scope": "World"})),
                but(json!({"matchConditions": [{"name": "a", "expression": ""}, {"name": "a", "expression": "true"}, {"name": "-b", "expression": "true"}]})),
                json!([good, good]),
            ];
            for webhooks in cases {
                s.note("what is sent", webhooks.clone());
                let whole = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "wrong"}, "webhooks": webhooks});
                s.post(&path, &whole).await;
            }
            for expression in ["nothing", "params == null", "variables.x", "namespaceObject.nothing == ''", "object.metadata.name", "'a' =="] {
                let webhooks = but(json!({"matchConditions": [{"name": "a", "expression": expression}]}));
                let whole = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "wrong"}, "webhooks": webhooks});
                s.request(Method::POST, &path).json(&whole).own(Own::Details).send().await;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_does_not_answer() {
    compare(async |s: &mut Session| {
        s.namespace("hooks-dead").await;
        let hook = Hook::start(s, judge).await;
        let kind = "ValidatingWebhookConfiguration";
        let path = format!("{REGISTRATION}/validatingwebhookconfigurations");
        let maps = maps("hooks-dead");
        // Nobody listens on port 9 of loopback; whom to trust does not matter then.
        let nobody = json!({"url": "https://127.0.0.1:9/x", "caBundle": hook.trust});
        let webhook =
            json!({"clientConfig": nobody, "rules": rules(&["CREATE"]), "sideEffects": "None", "timeoutSeconds": 2});
        s.post(&path, &configuration(kind, "dead", "hooks-dead", webhook.clone())).await;
        in_force(s, &maps, &map("probe", json!({})), |answer| answer.code == 500).await;
        s.request(Method::POST, &maps).json(&map("a", json!({}))).own(Own::Details).send().await;
        let mut ignored = webhook.clone();
        ignored["failurePolicy"] = "Ignore".into();
        let mut whole = configuration(kind, "dead", "hooks-dead", ignored);
        whole["webhooks"][0]["rules"][0]["operations"] = json!(["CREATE"]);
        s.delete(&format!("{path}/dead")).await;
        s.post(&path, &whole).await;
        in_force(s, &maps, &map("probe", json!({})), |answer| answer.code == 201).await;
        s.request(Method::POST, &maps).json(&map("b", json!({}))).own(Own::Warnings).send().await;
        s.delete(&format!("{path}/dead")).await;
        let mut effects = webhook;
        effects["clientConfig"] = hook.client("/validate");
        effects["sideEffects"] = "NoneOnDryRun".into();
        s.post(&path, &configuration(kind, "effects", "hooks-dead", effects)).await;
        in_force(s, &maps, &map("bad", json!({})), |answer| answer.code == 400).await;
        s.delete(&format!("{path}/effects")).await;
    })
    .await;
}

/// `v1` says `spec.size`, `v2` says `spec.extent`.
fn convert(_path: &str, request: &Value) -> Value {
    let wanted = request["desiredAPIVersion"].as_str().unwrap_or_default();
    let mut all = request["objects"].as_array().cloned().unwrap_or_default();
    for object in &mut all {
        let (from, to) = if wanted.ends_with("/v2") { ("size", "extent") } else { ("extent", "size") };
        if object["spec"][from] == "unspeakable" {
            return json!({"result": {"status": "Failure", "message": "that cannot be said"}, "convertedObjects": []});
        }
        object["apiVersion"] = wanted.into();
        if let Some(spec) = object["spec"].as_object_mut()
            && let Some(value) = spec.remove(from)
        {
            spec.insert(to.to_owned(), value);
        }
    }
    json!({"result": {"status": "Success"}, "convertedObjects": all})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversion_webhook_is_asked() {
    compare(async |s: &mut Session| {
        s.namespace("hooks-convert").await;
        let hook = Hook::start(s, convert).await;
        let mut crd = definition("convert.diff.dev", "sizes", "Size", object_schema(json!({"size": {"type": "string"}, "note": {"type": "string"}})));
        let mut second = crd["spec"]["versions"][0].clone();
        second["name"] = "v2".into();
        second["storage"] = false.into();
        second["schema"]["openAPIV3Schema"] = object_schema(json!({"extent": {"type": "string"}, "note": {"type": "string"}}));
        crd["spec"]["versions"].as_array_mut().expect("versions").push(second);
        crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {
            "conversionReviewVersions": ["v1"], "clientConfig": hook.client("/convert")}});
        s.install(&crd).await;
        let [old, new] = ["v1", "v2"].map(|v| format!("/apis/convert.diff.dev/{v}/namespaces/hooks-convert/sizes"));
        let size = |version: &str, name: &str, spec: Value| {
            json!({"apiVersion": format!("convert.diff.dev/{version}"), "kind": "Size", "metadata": {"name": name}, "spec": spec})
        };
        s.post(&old, &size("v1", "a", json!({"size": "big"}))).await;
        s.post(&new, &size("v2", "b", json!({"extent": "small"}))).await;
        for path in [&old, &new] {
            s.get(&format!("{path}/a")).await;
            s.get(&format!("{path}/b")).await;
        }
        s.patch(&format!("{new}/a"), "merge", &json!({"spec": {"extent": "bigger"}})).await;
        s.get(&format!("{old}/a")).await;
        s.request(Method::POST, &new).json(&size("v2", "c", json!({"extent": "unspeakable"}))).send().await;
        // Who applies in one version and then in another owns the same fields under other names.
        let named = |version: &str, spec: Value| size(version, "applied", spec);
        let [old_one, new_one] = [&old, &new].map(|path| format!("{path}/applied"));
        s.apply(&old_one, "first", &named("v1", json!({"size": "large", "note": "n"}))).await;
        s.apply(&new_one, "second", &named("v2", json!({"extent": "huge"}))).await;
        s.apply(&new_one, "second", &named("v2", json!({"note": "n"}))).await;
        s.apply(&new_one, "first", &named("v2", json!({"extent": "larger"}))).await;
        s.apply(&old_one, "first", &named("v1", json!({"note": "m"}))).await;
        s.applying(&new_one, "second", true, &named("v2", json!({"extent": "huge", "note": "o"}))).send().await;
        s.get(&old_one).await;
        s.patch(&old_one, "merge", &json!({"spec": {"size": "small"}})).await;
        s.get(&new_one).await;
        s.delete("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/sizes.convert.diff.dev").await;
    })
    .await;
}
