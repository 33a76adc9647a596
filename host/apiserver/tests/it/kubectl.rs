//! Real kubectl over TLS. Its own messages are what users see, so they are compared.

use crate::access::Served;
use crate::support::*;
use capstan_apiserver::Builtins;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

pub struct Kubectl {
    served: Served,
    directory: tempfile::TempDir,
}

impl Kubectl {
    async fn start(builtins: Builtins) -> Kubectl {
        Kubectl::on(Served::start(builtins).await)
    }

    pub fn on(served: Served) -> Kubectl {
        let directory = tempfile::tempdir().unwrap();
        let admin = served.authority.sign("admin", "system:masters");
        let encode = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": format!("https://{}", served.address), "certificate-authority-data": encode(&served.authority.pem)}}],
            "users": [{"name": "u", "user": {"client-certificate-data": encode(&admin.certificate), "client-key-data": encode(&admin.key)}}]});
        std::fs::write(directory.path().join("kubeconfig"), config.to_string()).unwrap();
        Kubectl { served, directory }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(arguments)
            .env("KUBECONFIG", self.directory.path().join("kubeconfig"))
            .env("HOME", self.directory.path())
            .kill_on_drop(true);
        command
    }

    pub async fn stop(self) {
        self.served.stop().await;
    }

    pub async fn output(&self, arguments: &[&str], input: &str) -> (bool, String, String) {
        let mut child = self
            .command(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("kubectl is not on the PATH");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).await.unwrap();
        drop(stdin);
        let output = tokio::time::timeout(std::time::Duration::from_secs(60), child.wait_with_output())
            .await
            .expect("kubectl hangs")
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    }

    #[track_caller]
    fn ok(&self, arguments: &'static [&'static str]) -> impl Future<Output = String> + '_ {
        self.with(arguments, "")
    }

    async fn with(&self, arguments: &[&str], input: &str) -> String {
        let (success, out, error) = self.output(arguments, input).await;
        assert!(success, "kubectl {arguments:?}: {out}{error}");
        out
    }

    async fn fails(&self, arguments: &[&str], input: &str) -> String {
        let (success, out, error) = self.output(arguments, input).await;
        assert!(!success, "kubectl {arguments:?} succeeded: {out}");
        error
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

const WIDGET: &str = "apiVersion: test.dev/v1\nkind: Widget\nmetadata:\n  name: w\nspec:\n  size: 1\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_people_do_with_custom_resources() {
    let kubectl = Kubectl::start(Builtins::Management).await;
    assert_eq!(
        kubectl.with(&["apply", "-f", "-"], &widgets().to_string()).await,
        "customresourcedefinition.apiextensions.k8s.io/widgets.test.dev created\n"
    );
    kubectl.ok(&["wait", "--for=condition=Established", "crd/widgets.test.dev", "--timeout=10s"]).await;
    let resources = kubectl.ok(&["api-resources"]).await;
    assert!(
        resources.lines().any(|line| line.split_whitespace().eq(["widgets", "wd", "test.dev/v1", "true", "Widget"])),
        "{resources}"
    );
    assert!(kubectl.ok(&["api-versions"]).await.contains("test.dev/v1"));

    assert_eq!(kubectl.with(&["apply", "-f", "-"], WIDGET).await, "widget.test.dev/w created\n");
    assert_eq!(kubectl.with(&["apply", "-f", "-"], WIDGET).await, "widget.test.dev/w unchanged\n");
    assert_eq!(
        kubectl.with(&["apply", "-f", "-"], &WIDGET.replace("size: 1", "size: 2")).await,
        "widget.test.dev/w configured\n"
    );
    assert!(kubectl.with(&["diff", "-f", "-"], &WIDGET.replace("size: 1", "size: 2")).await.is_empty());
    let (_, difference, _) = kubectl.output(&["diff", "-f", "-"], WIDGET).await;
    assert!(difference.contains("-  size: 2\n+  size: 1"), "{difference}");
    let table = kubectl.ok(&["get", "widgets"]).await;
    assert!(table.starts_with("NAME   SIZE   PHASE   AGE\nw      2"), "{table}");
    assert!(kubectl.ok(&["get", "wd", "w", "-o", "wide"]).await.contains("COLOR"));
    assert_eq!(kubectl.ok(&["get", "wd", "w", "-o", "jsonpath={.spec.color}"]).await, "red");
    assert!(kubectl.ok(&["get", "wd", "-A", "-o", "yaml"]).await.contains("last-applied-configuration"));
    assert!(kubectl.ok(&["get", "things"]).await.contains("w "), "categories");
    assert!(kubectl.ok(&["get", "widgets.v1beta1.test.dev"]).await.contains("w "));
    let described = kubectl.ok(&["describe", "widget", "w"]).await;
    assert!(described.contains("Size:   2") && described.contains("Events:"), "{described}");
    let explained = kubectl.ok(&["explain", "widget.spec.parts"]).await;
    assert!(explained.contains("KIND:       Widget") && explained.contains("-required-"), "{explained}");
    assert!(kubectl.ok(&["explain", "widgets", "--recursive"]).await.contains("size"));

    let unknown = kubectl.fails(&["apply", "-f", "-"], &WIDGET.replace("size: 1", "size: 1\n  sice: 2")).await;
    assert!(unknown.contains("strict decoding error: unknown field \"spec.sice\""), "{unknown}");
    let wrong = kubectl.fails(&["apply", "-f", "-"], &WIDGET.replace("size: 1", "size: much")).await;
    assert!(wrong.contains("spec.size: Invalid value: \"string\""), "{wrong}");
    let kindless = kubectl.fails(&["apply", "-f", "-"], &WIDGET.replace("kind: Widget", "kind: Gadget")).await;
    assert!(kindless.contains("no matches for kind \"Gadget\" in version \"test.dev/v1\""), "{kindless}");
    let (_, _, warned) = kubectl
        .output(&["apply", "--validate=warn", "-f", "-"], &WIDGET.replace("size: 1", "size: 1\n  sice: 2"))
        .await;
    assert!(warned.contains("Warning: unknown field \"spec.sice\""), "{warned}");

    assert_eq!(
        kubectl.ok(&["patch", "widget", "w", "--type=merge", "-p", "{\"spec\":{\"size\":5}}"]).await,
        "widget.test.dev/w patched\n"
    );
    kubectl
        .ok(&[
            "patch",
            "widget",
            "w",
            "--type=json",
            "-p",
            "[{\"op\":\"add\",\"path\":\"/spec/replicas\",\"value\":1}]",
        ])
        .await;
    kubectl
        .ok(&["patch", "widget", "w", "--subresource=status", "--type=merge", "-p", "{\"status\":{\"phase\":\"Up\"}}"])
        .await;
    assert!(kubectl.ok(&["get", "widget", "w"]).await.contains("Up"));
    assert_eq!(kubectl.ok(&["scale", "widget", "w", "--replicas=3"]).await, "widget.test.dev/w scaled\n");
    kubectl.fails(&["scale", "widget", "w", "--current-replicas=1", "--replicas=9"], "").await;
    kubectl.ok(&["label", "widget", "w", "a=b"]).await;
    kubectl.ok(&["annotate", "widget", "w", "c=d"]).await;
    assert!(kubectl.ok(&["get", "widgets", "-l", "a in (b)", "--show-labels"]).await.contains("a=b"));
    assert!(kubectl.ok(&["get", "widgets", "--field-selector", "spec.color=blue"]).await.is_empty());

    // What an editor session does: get, change, replace or patch.
    let edited = kubectl.ok(&["get", "widget", "w", "-o", "json"]).await.replace("\"size\": 5", "\"size\": 6");
    assert_eq!(kubectl.with(&["replace", "-f", "-"], &edited).await, "widget.test.dev/w replaced\n");
    let conflict = kubectl.fails(&["replace", "-f", "-"], &edited.replace("\"size\": 6", "\"size\": 7")).await;
    assert!(
        conflict
            .contains("the object has been modified; please apply your changes to the latest version and try again"),
        "{conflict}"
    );
    let editor = kubectl.file("editor.sh", "#!/bin/sh\nsed -i 's/size: 6/size: 8/' \"$1\"\n");
    let mut permissions = std::fs::metadata(&editor).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
    std::fs::set_permissions(&editor, permissions).unwrap();
    let output = kubectl.command(&["edit", "widget", "w"]).env("KUBE_EDITOR", &editor).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(kubectl.ok(&["get", "wd", "w", "-o", "jsonpath={.spec.size}"]).await, "8");

    let applied = kubectl.with(&["apply", "--server-side", "-f", "-"], &WIDGET.replace("name: w", "name: s")).await;
    assert_eq!(applied, "widget.test.dev/s serverside-applied\n");
    kubectl
        .with(&["apply", "--server-side", "--field-manager=other", "-f", "-"], &WIDGET.replace("name: w", "name: s"))
        .await;
    let conflict = kubectl
        .fails(
            &["apply", "--server-side", "--field-manager=third", "-f", "-"],
            &WIDGET.replace("name: w", "name: s").replace("size: 1", "size: 4"),
        )
        .await;
    assert!(conflict.contains("conflicts with \"kubectl\"") && conflict.contains(".spec.size"), "{conflict}");
    kubectl.with(&["apply", "--dry-run=server", "-f", "-"], &WIDGET.replace("name: w", "name: never")).await;

    assert_eq!(kubectl.ok(&["delete", "widget", "w", "--wait=true"]).await, "widget.test.dev \"w\" deleted\n");
    assert!(
        kubectl
            .fails(&["get", "widget", "w"], "")
            .await
            .contains("Error from server (NotFound): widgets.test.dev \"w\" not found")
    );
    kubectl.ok(&["delete", "widgets", "--all"]).await;
    assert_eq!(
        kubectl.ok(&["delete", "crd", "widgets.test.dev"]).await,
        "customresourcedefinition.apiextensions.k8s.io \"widgets.test.dev\" deleted\n"
    );
    kubectl.served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_with_kubectl() {
    let kubectl = Kubectl::start(Builtins::Management).await;
    let client = &kubectl.served.client;
    client.install(&widgets()).await;
    client.post(WIDGETS, &widget("a", 1)).await.expect(201);
    let mut child = kubectl.command(&["get", "widgets", "-w"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(std::time::Duration::from_secs(20), lines.next_line())
            .await
            .expect("no line came")
            .unwrap()
            .unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(next().await[0], "NAME");
    assert_eq!(next().await[..2], ["a", "1"]);
    client.post(WIDGETS, &widget("b", 2)).await.expect(201);
    assert_eq!(next().await[..2], ["b", "2"]);
    client.patch(&format!("{WIDGETS}/b"), "merge", &json!({"spec": {"size": 3}})).await.expect(200);
    assert_eq!(next().await[..2], ["b", "3"]);
    child.kill().await.unwrap();
    let waiting = kubectl.ok(&["wait", "--for=jsonpath={.status.phase}=Up", "widget/b", "--timeout=20s"]);
    let setting = async {
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        client.patch(&format!("{WIDGETS}/b/status"), "merge", &json!({"status": {"phase": "Up"}})).await.expect(200);
    };
    assert_eq!(tokio::join!(waiting, setting).0, "widget.test.dev/b condition met\n");
}

const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\nspec:\n  replicas: 2\n  selector:\n    matchLabels: {app: d}\n  template:\n    metadata:\n      labels: {app: d}\n    spec:\n      containers:\n      - name: a\n        image: ex\n      - name: b\n        image: why\n";

#[tokio::test(flavor = "multi_thread")]
async fn what_people_do_with_a_workload_cluster() {
    let kubectl = Kubectl::start(Builtins::Workload).await;
    let client = &kubectl.served.client;
    kubectl.ok(&["create", "namespace", "ns"]).await;
    assert!(kubectl.ok(&["get", "namespaces"]).await.contains("kube-system       Active"));
    kubectl.ok(&["-n", "ns", "create", "configmap", "c", "--from-literal=a=b"]).await;
    kubectl.ok(&["-n", "ns", "create", "secret", "generic", "s", "--from-literal=a=b"]).await;
    assert!(kubectl.ok(&["-n", "ns", "get", "secrets,configmaps"]).await.contains("secret/s   Opaque   1"));
    kubectl.ok(&["-n", "ns", "describe", "secret", "s"]).await;
    assert_eq!(kubectl.with(&["apply", "-f", "-"], DEPLOYMENT).await, "deployment.apps/d created\n");
    assert_eq!(kubectl.with(&["apply", "-f", "-"], DEPLOYMENT).await, "deployment.apps/d unchanged\n");
    // A three-way strategic merge: one container is changed, the other stays.
    assert_eq!(
        kubectl.with(&["apply", "-f", "-"], &DEPLOYMENT.replace("image: why", "image: zed")).await,
        "deployment.apps/d configured\n"
    );
    let object: Value = serde_json::from_str(&kubectl.ok(&["get", "deployment", "d", "-o", "json"]).await).unwrap();
    assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["image"], "ex");
    assert_eq!(object["spec"]["template"]["spec"]["containers"][1]["image"], "zed");
    assert_eq!(object["metadata"]["generation"], 2);
    kubectl.ok(&["scale", "deployment", "d", "--replicas=5"]).await;
    kubectl.ok(&["set", "image", "deployment/d", "a=new"]).await;
    assert!(kubectl.ok(&["get", "deployments"]).await.contains("d      0/5"));
    kubectl.ok(&["describe", "deployment", "d"]).await;
    let bad = kubectl.fails(&["apply", "-f", "-"], &DEPLOYMENT.replace("replicas: 2", "replicaz: 2")).await;
    assert!(bad.contains("unknown field \"spec.replicaz\""), "{bad}");
    client
        .post(
            "/api/v1/nodes",
            &json!({"metadata": {"name": "n", "labels": {"node-role.kubernetes.io/control-plane": ""}}}),
        )
        .await
        .expect(201);
    client.patch("/api/v1/nodes/n/status", "strategic", &json!({"status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"kubeletVersion": "v1.35.0"}, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}})).await.expect(200);
    let nodes = kubectl.ok(&["get", "nodes", "-o", "wide"]).await;
    assert!(
        nodes.contains("n      Ready    control-plane") && nodes.contains("v1.35.0") && nodes.contains("10.0.0.1"),
        "{nodes}"
    );
    kubectl.ok(&["cordon", "n"]).await;
    assert!(kubectl.ok(&["get", "nodes"]).await.contains("Ready,SchedulingDisabled"));
    kubectl.ok(&["describe", "node", "n"]).await;
    client
        .post(
            "/api/v1/namespaces/default/pods",
            &json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        )
        .await
        .expect(201);
    assert!(kubectl.ok(&["get", "pods"]).await.contains("p      0/1     Pending"));
    kubectl.ok(&["describe", "pod", "p"]).await;
    client.post("/api/v1/namespaces/default/pods", &json!({"metadata": {"name": "q"}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "image": "i"}]}})).await.expect(201);
    let drained = kubectl.ok(&["drain", "n", "--force", "--timeout=30s"]).await;
    assert!(drained.contains("pod/q evicted") && drained.contains("node/n drained"), "{drained}");
    kubectl.ok(&["uncordon", "n"]).await;
    for thing in [
        &["create", "deployment", "e", "--image=i"][..],
        &["create", "serviceaccount", "sa"],
        &["create", "role", "r", "--verb=get", "--resource=pods"],
        &["create", "clusterrolebinding", "b", "--clusterrole=x", "--user=y"],
        &["create", "service", "clusterip", "svc", "--tcp=80:8080"],
        &["create", "poddisruptionbudget", "pdb", "--selector=app=d", "--min-available=50%"],
    ] {
        kubectl.with(thing, "").await;
    }
    assert_eq!(kubectl.ok(&["get", "service", "svc", "-o", "jsonpath={.spec.ports[0].targetPort}"]).await, "8080");
    assert_eq!(kubectl.ok(&["get", "pdb", "pdb", "-o", "jsonpath={.spec.minAvailable}"]).await, "50%");
    kubectl.ok(&["delete", "pod", "p"]).await;
    kubectl.ok(&["get", "events", "-A"]).await;
    kubectl.ok(&["get", "all", "-A"]).await;
    assert!(kubectl.ok(&["explain", "deployment.spec.replicas"]).await.contains("FIELD: replicas <integer>"));
    assert_eq!(kubectl.ok(&["auth", "can-i", "delete", "nodes"]).await, "yes\n");
    assert!(kubectl.ok(&["auth", "whoami"]).await.contains("system:masters"));
    kubectl.ok(&["delete", "namespace", "ns"]).await;
    assert!(kubectl.ok(&["version"]).await.contains("Server Version: v1.35.0"));
    assert!(kubectl.ok(&["cluster-info"]).await.contains("is running at"));
    kubectl.served.stop().await;
}
