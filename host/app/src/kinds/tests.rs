//! Through the embedded API server, with the runtime's fixture guest for a provider.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use capstan_api::Gvk;
use capstan_apiserver::{ApiServer, Options, User};
use capstan_cluster::crds;
use capstan_cluster::modules::Modules;
use capstan_cluster::runner::{self, Runner};
use capstan_cluster::wire::Wire;
use capstan_runtime::{Engine, EngineConfig};
use serde_json::json;

use super::*;
use crate::admission::CoreAdmission;
use crate::args::Controllers;
use crate::rules::CoreRules;

const GROUP: &str = "/apis/infrastructure.cluster.x-k8s.io";

/// The guest of the runtime's tests as a component file, built once, where these build it.
fn component() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(build)
}

fn build() -> PathBuf {
    let guest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtime/tests/guest");
    let target =
        std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().parent().unwrap().join("tmp/guest");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--release", "--locked", "--target", "wasm32-unknown-unknown"])
        .arg("--manifest-path")
        .arg(guest.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .status()
        .unwrap();
    assert!(status.success(), "the guest does not build (rustup target add wasm32-unknown-unknown)");
    let core = std::fs::read(target.join("wasm32-unknown-unknown/release/guest.wasm")).unwrap();
    let file = target.join("kinds-test.wasm");
    std::fs::write(&file, capstan_runtime::package::package(&core).unwrap()).unwrap();
    file
}

struct Plane {
    client: kube::Client,
    registry: Arc<Registry>,
}

impl Plane {
    fn new() -> Self {
        let kinds = ProviderKinds::default();
        let server = ApiServer::new(Options {
            admission: vec![Arc::new(CoreAdmission), Arc::new(kinds.clone())],
            conversion: vec![Arc::new(kinds.clone())],
            ..Options::default()
        })
        .unwrap();
        server.background(tokio_util::sync::CancellationToken::new());
        let registry = Registry::new(Engine::new(EngineConfig::in_process()).unwrap(), None);
        kinds.ask(&registry);
        Self { client: kube::Client::new(server.service(User::admin("test")), "default"), registry }
    }

    async fn load(&self) {
        let mut object = Object::new(&Gvk::new("capstan.dev", "v1alpha1", "ProviderModule"), "", "guest");
        object.set("/spec/source/file", component().display().to_string().into());
        let looked = self.registry.module("guest", Some(&object), &Wire::new(self.client.clone())).await;
        let status = looked.status.unwrap();
        assert_eq!(status["conditions"][0]["status"], "True", "{status}");
    }

    /// What the server answers; its message where it refuses.
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Result<Value, String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(body.map(|body| body.to_string().into_bytes()).unwrap_or_default()).unwrap();
        self.client.request::<Value>(request).await.map_err(|error| error.to_string())
    }
}

fn machine(kind: &str, version: &str, spec: Value) -> Value {
    json!({"apiVersion": format!("infrastructure.cluster.x-k8s.io/{version}"), "kind": kind,
        "metadata": {"name": "m", "namespace": "default"}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_converted_and_specs_validated_by_the_component() {
    let plane = Plane::new();
    plane.load().await;
    let at = |version: &str| format!("{GROUP}/{version}/namespaces/default/guestmachines");
    let old = machine("GuestMachine", "v1alpha1", json!({"task": ["x"]}));
    plane.send("POST", &at("v1alpha1"), Some(old)).await.unwrap();
    let stored = plane.send("GET", &format!("{}/m", at("v1")), None).await.unwrap();
    assert_eq!(stored["spec"], json!({"do": ["x"]}));
    let list = plane.send("GET", &at("v1alpha1"), None).await.unwrap();
    assert_eq!(list["items"][0]["spec"], json!({"task": ["x"]}));

    let one = format!("{}/m", at("v1"));
    let refused = plane.send("PATCH", &one, Some(json!({"spec": {"do": ["forbidden"]}}))).await.unwrap_err();
    assert!(refused.contains("spec.do[0]: Invalid value: \"forbidden\": this is not done here"), "{refused}");
    plane.send("PATCH", &one, Some(json!({"spec": {"do": ["fixed"]}}))).await.unwrap();
    let refused = plane.send("PATCH", &one, Some(json!({"spec": {"do": ["x"]}}))).await.unwrap_err();
    assert!(refused.contains("what is fixed stays"), "{refused}");
    // What the component cannot do is an error of the server, and nothing is stored.
    let broken = plane.send("PATCH", &one, Some(json!({"spec": {"do": ["fixed", "panic"]}}))).await.unwrap_err();
    assert!(broken.contains("provider guest cannot validate"), "{broken}");
    plane.send("PATCH", &one, Some(json!({"metadata": {"labels": {"a": "b"}}}))).await.unwrap();

    // In a template the spec lies deeper.
    let template = machine("GuestMachineTemplate", "v1", json!({"template": {"spec": {"do": ["forbidden"]}}}));
    let templates = format!("{GROUP}/v1/namespaces/default/guestmachinetemplates");
    let refused = plane.send("POST", &templates, Some(template)).await.unwrap_err();
    assert!(refused.contains("spec.template.spec.do[0]"), "{refused}");

    // Identities are the component's too.
    let identity = json!({"apiVersion": "infrastructure.cluster.x-k8s.io/v1alpha1", "kind": "GuestIdentity",
        "metadata": {"name": "i"}, "spec": {"task": ["x"]}});
    plane.send("POST", &format!("{GROUP}/v1alpha1/guestidentities"), Some(identity)).await.unwrap();
    let one_identity = format!("{GROUP}/v1/guestidentities/i");
    assert_eq!(plane.send("GET", &one_identity, None).await.unwrap()["spec"], json!({"do": ["x"]}));
    let refused = plane.send("PATCH", &one_identity, Some(json!({"spec": {"do": ["forbidden"]}}))).await.unwrap_err();
    assert!(refused.contains("this is not done here"), "{refused}");

    // Without the component nothing is changed in a version that it is not stored in.
    plane.registry.module("guest", None, &Wire::new(plane.client.clone())).await;
    assert!(plane.send("GET", &one, None).await.is_ok());
    let other = format!("{}/m", at("v1alpha1"));
    let lost = plane.send("GET", &other, None).await.unwrap_err();
    assert!(lost.contains("is not loaded"), "{lost}");
    let lost = plane.send("PATCH", &other, Some(json!({"spec": {"task": ["y"]}}))).await.unwrap_err();
    assert!(lost.contains("is not loaded"), "{lost}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn addresses_are_given_and_templates_told_by_a_running_plane() {
    let plane = Plane::new();
    let core: Vec<Object> = capstan_api::crds().into_iter().filter_map(Object::from_value).collect();
    crds::install(&Wire::new(plane.client.clone()), &core).await.unwrap();
    plane.load().await;
    let runner = Runner::start(runner::Options {
        client: plane.client.clone(),
        rules: Arc::new(CoreRules::new(plane.registry.clone(), [Controllers::Ipam, Controllers::Infrastructure])),
        providers: plane.registry.clone(),
        modules: None,
        lease: None,
        egress: plane.registry.endpoints(),
        concurrency: 8,
        after_effect: None,
    });
    let ipam = "/apis/ipam.cluster.x-k8s.io";
    let claims = format!("{ipam}/v1beta2/namespaces/default/ipaddressclaims");
    let pool = json!({"apiVersion": "ipam.cluster.x-k8s.io/v1alpha2", "kind": "InClusterIPPool",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"addresses": ["10.0.0.10-10.0.0.11"], "prefix": 24, "gateway": "10.0.0.1"}});
    let pools = format!("{ipam}/v1alpha2/namespaces/default/inclusterippools");
    let mut bad = pool.clone();
    bad["spec"]["addresses"] = json!(["10.0.0.10", "10.0.1.1"]);
    let refused = plane.send("POST", &pools, Some(bad)).await.unwrap_err();
    assert!(refused.contains("spec.addresses[1]"), "{refused}");
    plane.send("POST", &pools, Some(pool)).await.unwrap();
    for name in ["a", "b", "c"] {
        let claim = json!({"apiVersion": "ipam.cluster.x-k8s.io/v1beta2", "kind": "IPAddressClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"poolRef": {"apiGroup": "ipam.cluster.x-k8s.io", "kind": "InClusterIPPool", "name": "p"}}});
        plane.send("POST", &claims, Some(claim)).await.unwrap();
    }
    let mut changes = runner.changes();
    let mut wait = async |path: String, holds: &dyn Fn(&Value) -> bool| {
        let waited = tokio::time::timeout(Duration::from_secs(60), async {
            loop {
                changes.mark_unchanged();
                match plane.send("GET", &path, None).await {
                    Ok(found) if holds(&found) => return found,
                    _ => changes.changed().await.unwrap(),
                }
            }
        });
        match waited.await {
            Ok(found) => found,
            Err(_) => panic!("{path} is {:?}", plane.send("GET", &path, None).await),
        }
    };
    let addresses = format!("{ipam}/v1beta2/namespaces/default/ipaddresses");
    let exhausted = |list: &Value| {
        let reasons: Vec<&str> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|claim| {
                let all = claim["status"]["conditions"].as_array()?;
                all.iter().find(|c| c["type"] == "Ready")?["reason"].as_str()
            })
            .collect();
        reasons.len() == 3 && reasons.iter().filter(|reason| **reason == "PoolExhausted").count() == 1
    };
    let all = wait(claims.clone(), &exhausted).await;
    let items = all["items"].as_array().unwrap();
    let holder = items.iter().find(|claim| !claim["status"]["addressRef"].is_null()).unwrap();
    let name = holder["metadata"]["name"].as_str().unwrap();
    let refused = plane
        .send("PATCH", &format!("{claims}/{name}"), Some(json!({"spec": {"clusterName": "x"}})))
        .await
        .unwrap_err();
    assert!(refused.contains("cannot be changed"), "{refused}");
    plane.send("DELETE", &format!("{claims}/{name}"), None).await.unwrap();
    let waiting = items.iter().find(|claim| claim["status"]["addressRef"].is_null()).unwrap();
    let next = waiting["metadata"]["name"].as_str().unwrap();
    let given = wait(format!("{addresses}/{next}"), &|found| found["spec"]["address"].is_string()).await;
    assert_eq!((&given["spec"]["prefix"], &given["spec"]["gateway"]), (&json!(24), &json!("10.0.0.1")));
    wait(format!("{pools}/p"), &|pool| {
        pool["status"]["ipAddresses"] == json!({"total": 2, "used": 2, "free": 0, "outOfRange": 0})
    })
    .await;

    let template = machine("GuestMachineTemplate", "v1", json!({"template": {"spec": {"do": ["big"]}}}));
    let templates = format!("{GROUP}/v1/namespaces/default/guestmachinetemplates");
    plane.send("POST", &templates, Some(template)).await.unwrap();
    wait(format!("{templates}/m"), &|found| found["status"]["capacity"] == json!({"cpu": "16"})).await;
    runner.stop().await;
}

#[test]
fn pointers_become_field_paths() {
    for (pointer, path) in [
        ("/spec/network/devices/0/name", "spec.network.devices[0].name"),
        ("/metadata/labels/a~1b", "metadata.labels[a/b]"),
        ("", "<root>"),
    ] {
        assert_eq!(field_path(pointer), path);
    }
}
