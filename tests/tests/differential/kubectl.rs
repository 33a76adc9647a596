//! The same sessions of a real kubectl with both servers: what it prints, what it complains of and how it ends must be the
//! same. Ages, uids, revisions, times and the names of its temporary files are made equal.

use crate::session::{Session, compare};
use capstan_tests::authority::kubeconfig;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

const GROUP: &str = "kubectl.diff.dev";

/// A kubectl with a home and a kubeconfig of its own.
pub struct Kubectl {
    home: tempfile::TempDir,
    name: &'static str,
}

impl Kubectl {
    /// In this namespace, which is made.
    pub async fn start(s: &mut Session, namespace: &str) -> Kubectl {
        s.namespace(namespace).await;
        let home = tempfile::tempdir().expect("a directory");
        let (authority, signed) = s.server.credentials();
        let mut config: Value = serde_json::from_str(&kubeconfig(&s.server.url, authority, &signed)).expect("JSON");
        config["contexts"][0]["context"]["namespace"] = namespace.into();
        std::fs::write(home.path().join("kubeconfig"), config.to_string()).expect("a file");
        s.words.private.push((s.server.url.clone(), "server".to_owned()));
        Kubectl { home, name: s.server.name }
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KUBECONFIG", self.home.path().join("kubeconfig"))
            .env("HOME", self.home.path())
            .env("TMPDIR", self.home.path())
            .env("TZ", "UTC")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub async fn output(&self, mut command: Command, input: &str) -> Output {
        let mut child = command.spawn().expect("kubectl is not on the PATH");
        let mut stdin = child.stdin.take().expect("an input");
        stdin.write_all(input.as_bytes()).await.expect("kubectl reads");
        drop(stdin);
        let output = tokio::time::timeout(Duration::from_secs(90), child.wait_with_output()).await;
        output.unwrap_or_else(|_| panic!("{}: kubectl hangs", self.name)).expect("kubectl's output")
    }

    /// Runs a line of words, and puts down what came.
    pub async fn run(&self, s: &mut Session, line: &str) -> String {
        self.with(s, line, "").await
    }

    async fn with(&self, s: &mut Session, line: &str, input: &str) -> String {
        let words = words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = self.output(self.command(&words), input).await;
        self.keep(s, line, &output)
    }

    pub fn keep(&self, s: &mut Session, line: &str, output: &Output) -> String {
        let text = |bytes: &[u8]| self.normal(s, &String::from_utf8_lossy(bytes));
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        s.note(
            &format!("kubectl {line}"),
            json!({"status": output.status.code(), "out": lines(&out), "err": lines(&err)}),
        );
        out
    }

    fn normal(&self, s: &Session, text: &str) -> String {
        let home = self.home.path().to_string_lossy().into_owned();
        let text = s.words.text("", &text.replace(&home, "HOME"));
        let mut out: Vec<String> = text.lines().map(normal_line).collect();
        out.push(String::new());
        out.join("\n")
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.home.path().join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// `kubectl edit` with an editor that is a sed command.
    async fn edit(&self, s: &mut Session, line: &str, sed: &str) {
        let editor = self.file("editor.sh", &format!("#!/bin/sh\nexec sed -i '{sed}' \"$1\"\n"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&editor, mode).expect("permissions");
        let words = words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.command(&words);
        command.env("KUBE_EDITOR", &editor);
        let output = self.output(command, "").await;
        self.keep(s, &format!("{line} # {sed}"), &output);
    }

    /// Begins a command that goes on, and returns the lines it prints.
    fn follow(&self, line: &str) -> Follow {
        let words = words(line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut child = self.command(&words).spawn().expect("kubectl is not on the PATH");
        let lines = BufReader::new(child.stdout.take().expect("an output")).lines();
        Follow { _child: child, lines, line: line.to_owned(), seen: Vec::new() }
    }
}

/// A kubectl that goes on.
struct Follow {
    _child: tokio::process::Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
    line: String,
    seen: Vec<String>,
}

impl Follow {
    /// Waits for the next lines.
    async fn next(&mut self, count: usize) {
        for _ in 0..count {
            let line = tokio::time::timeout(Duration::from_secs(30), self.lines.next_line()).await;
            let line = line.unwrap_or_else(|_| panic!("kubectl {}: no line came after {:?}", self.line, self.seen));
            self.seen.push(normal_line(&line.expect("a line").unwrap_or_default()));
        }
    }

    fn end(self, s: &mut Session) {
        s.note(&format!("kubectl {}", self.line), json!(self.seen));
    }
}

/// Words of a line; what is between single quotes is one.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// A line without what is another one each time. Columns are as wide as their ages are long, so blanks are made one width.
fn normal_line(line: &str) -> String {
    let line = line.trim_end();
    // What diff is given, and when its files were written.
    for mark in ["diff ", "--- ", "+++ "] {
        if line.starts_with(mark) {
            return mark.to_owned();
        }
    }
    // The patched object is quoted as Go writes it, or as it is.
    let quoted = line.strip_prefix("The request is invalid: patch: Invalid value: ");
    if let Some((_, why)) = quoted.and_then(|rest| rest.split_once(": strict decoding error: ")) {
        return format!("The request is invalid: patch: strict decoding error: {why}");
    }
    let indent = line.len() - line.trim_start().len();
    let (indent, rest) = line.split_at(indent);
    let mut out: Vec<String> = Vec::new();
    let mut gap = false;
    for word in rest.split(' ') {
        if word.is_empty() {
            if !gap {
                out.push(String::new());
            }
            gap = true;
            continue;
        }
        gap = false;
        out.push(normal_word(word));
    }
    let mut out = out.join(" ");
    for (mark, end) in [
        ("resourceVersion: \"", '"'),
        ("Resource Version: ", '\n'),
        ("uid: ", '\n'),
        ("UID: ", '\n'),
        ("resourceVersion\": \"", '"'),
    ] {
        if let Some(at) = out.find(mark) {
            let from = at + mark.len();
            let to = out[from..].find(end).map_or(out.len(), |length| from + length);
            out.replace_range(from..to, "N");
        }
    }
    format!("{indent}{out}")
}

fn normal_word(word: &str) -> String {
    let core = word.trim_matches(['"', ',', '(', ')']);
    let is_age = !core.is_empty()
        && core.len() < 9
        && core.starts_with(|c: char| c.is_ascii_digit())
        && core.chars().all(|c| c.is_ascii_digit() || "dhms".contains(c))
        && core.ends_with(['d', 'h', 'm', 's']);
    let bytes = core.as_bytes();
    let is_time = core.len() >= 20 && core.ends_with('Z') && bytes[4] == b'-' && bytes[10] == b'T';
    let is_clock = core.len() == 8 && bytes[2] == b':' && bytes[5] == b':';
    let is_uid = core.len() == 36 && core.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    match () {
        () if is_age => word.replace(core, "AGE"),
        () if is_time || is_clock => word.replace(core, "TIME"),
        () if is_uid => word.replace(core, "UID"),
        () => word.to_owned(),
    }
}

#[test]
fn lines_are_the_same_for_the_same() {
    assert_eq!(normal_line("w      2   Up      12s"), normal_line("w      2   Up    1m3s"));
    assert_eq!(normal_line("  resourceVersion: \"12\""), "  resourceVersion: \"N\"");
    assert_eq!(normal_line("  creationTimestamp: \"2026-01-02T03:04:05Z\""), "  creationTimestamp: \"TIME\"");
    assert_ne!(normal_line("w 2 Up"), normal_line("w 3 Up"));
    assert_eq!(words("a 'b c' d"), ["a", "b c", "d"]);
}

fn widgets() -> Value {
    let schema = json!({"type": "object", "description": "A widget is a thing.", "properties": {
        "spec": {"type": "object", "description": "What is wanted.", "required": ["size"], "properties": {
            "size": {"type": "integer", "minimum": 0, "maximum": 100, "description": "How large."},
            "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
            "replicas": {"type": "integer"},
            "parts": {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}},
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}}},
        "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}, "selector": {"type": "string"},
            "conditions": {"type": "array", "items": {"type": "object", "properties": {"type": {"type": "string"}, "status": {"type": "string"}}}}}}}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("widgets.{GROUP}")}, "spec": {
        "group": GROUP, "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["kdthings"]},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}},
            "selectableFields": [{"jsonPath": ".spec.color"}],
            "additionalPrinterColumns": [
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "description": "How large"},
                {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                {"name": "Color", "type": "string", "jsonPath": ".spec.color", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}]}]}})
}

fn widget(name: &str, size: usize) -> String {
    format!("apiVersion: {GROUP}/v1\nkind: Widget\nmetadata:\n  name: {name}\nspec:\n  size: {size}\n")
}

/// Waits until kubectl finds the kind: it reads discovery and the description of the API anew.
async fn install(s: &mut Session) {
    s.install(&widgets()).await;
    let path = format!("/openapi/v3/apis/{GROUP}/v1");
    s.until(&path, |answer| answer.code == 200 && answer.body.to_string().contains("How large.")).await;
    let definition = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{GROUP}");
    s.until(&definition, |answer| answer.body["status"]["conditions"].to_string().contains("Established")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_with_kubectl() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubectl-custom").await;
        install(s).await;
        let w = &widget("w", 1);
        for line in ["api-resources --api-group=kubectl.diff.dev", "api-resources --api-group=kubectl.diff.dev -o wide", "get widgets",
            "explain widget", "explain widget.spec", "explain widget.spec.parts", "explain widgets --recursive",
            "explain widget.spec.nothing", "wait --for=condition=Established crd/widgets.kubectl.diff.dev --timeout=10s"] {
            k.run(s, line).await;
        }
        k.with(s, "diff -f -", w).await;
        k.with(s, "create -f - --dry-run=server -o yaml", w).await;
        k.with(s, "apply -f -", w).await;
        k.with(s, "apply -f -", w).await;
        k.with(s, "diff -f -", w).await;
        k.with(s, "diff -f -", &widget("w", 2)).await;
        k.with(s, "diff --server-side -f -", &widget("w", 2)).await;
        k.with(s, "apply -f - --dry-run=server", &widget("w", 2)).await;
        k.with(s, "apply -f -", &widget("w", 2)).await;
        k.with(s, "create -f -", w).await;
        for line in ["get widgets", "get wd -o wide", "get kdthings", "get widget w -o yaml", "get widget w -o yaml --show-managed-fields", "get widget/w -o json",
            "get widgets -A", "get widgets.v1.kubectl.diff.dev", "get widgets --show-labels", "get widget w -o name",
            "get widget none", "get widgets,configmaps", "describe widget w", "describe widgets none",
            "get widget w -o jsonpath={.spec.color}", "get widgets -o custom-columns=N:.metadata.name,S:.spec.size",
            "get widgets --field-selector spec.color=red", "get widgets --field-selector spec.color=blue", "get widgets --field-selector spec.size=2", "get widgets -l a=b", "get widgets -l 'a in (b'"] {
            k.run(s, line).await;
        }
        // What is wrong is told in the same words.
        k.with(s, "apply -f -", &w.replace("size: 1", "size: 1\n  sice: 2")).await;
        k.with(s, "apply -f - --validate=warn", &w.replace("size: 1", "size: 3\n  sice: 2")).await;
        k.with(s, "apply -f - --validate=strict", &w.replace("size: 1", "size: 1\n  sice: 2")).await;
        k.with(s, "apply -f - --validate=ignore", &w.replace("size: 1", "size: 1\n  sice: 2")).await;
        k.with(s, "apply -f -", &w.replace("size: 1", "size: 1000")).await;
        k.with(s, "apply -f -", &w.replace("kind: Widget", "kind: Gadget")).await;
        k.with(s, "create -f -", &w.replace("name: w", "name: Not_A_Name")).await;
        for (kind, patch) in [("merge", "{\"spec\":{\"size\":5}}"), ("json", "[{\"op\":\"add\",\"path\":\"/spec/replicas\",\"value\":1}]"),
            ("strategic", "{\"spec\":{\"size\":6}}"), ("merge", "{\"spec\":{\"size\":\"x\"}}"), ("json", "[{\"op\":\"test\",\"path\":\"/spec/size\",\"value\":9}]"), ("json", "[{\"op\":\"remove\",\"path\":\"/spec/nothing\"}]")] {
            k.run(s, &format!("patch widget w --type={kind} -p '{patch}'")).await;
        }
        for line in ["patch widget w --subresource=status --type=merge -p '{\"status\":{\"phase\":\"Up\",\"conditions\":[{\"type\":\"Ready\",\"status\":\"True\"}]}}'",
            "get widget w", "wait --for=jsonpath={.status.phase}=Up widget/w --timeout=10s", "wait --for=condition=Ready widget/w --timeout=10s",
            "wait --for=condition=Never widget/w --timeout=1s", "wait --for=delete widget/none --timeout=1s",
            "scale widget w --replicas=3", "scale widget w --replicas=9 --current-replicas=1", "get widget w --subresource=scale -o yaml",
            "label widget w a=b", "label widget w a=c", "label widget w a=c --overwrite", "label widget w a-", "label widgets --all t=u", "label widget w 'b=not a value'",
            "annotate widget w c=d", "annotate widget w c=e", "annotate widget w c-", "get widgets -l t=u --show-labels"] {
            k.run(s, line).await;
        }
        k.edit(s, "edit widget w", "s/size: 5/size: 8/").await;
        k.edit(s, "edit widget w", "s/nothing/nothing/").await;
        k.edit(s, "edit widget w -o json", "s/\"size\": 8/\"size\": 9/").await;
        k.run(s, "get widget w -o jsonpath={.spec}").await;
        let server_side = &widget("s", 1);
        k.with(s, "apply --server-side -f -", server_side).await;
        k.with(s, "apply --server-side --field-manager=other -f -", server_side).await;
        k.with(s, "apply --server-side --field-manager=third -f -", &widget("s", 4)).await;
        k.with(s, "apply --server-side --field-manager=third --force-conflicts -f -", &widget("s", 4)).await;
        k.with(s, "apply --server-side --field-manager=third -f -", &w.replace("size: 1", "size: 4\n  sice: 2")).await;
        k.with(s, "apply --server-side --dry-run=server -o yaml -f -", &widget("never", 4)).await;
        k.run(s, "apply view-last-applied widget w").await;
        k.with(s, "replace -f -", &widget("w", 10)).await;
        k.with(s, "replace -f -", &widget("nobody", 10)).await;
        k.with(s, "apply -f - --prune -l t=u", &format!("{}---\n{}", widget("x", 1), widget("y", 30)).replace("spec:", "  labels: {t: u}\nspec:")).await;
        for line in ["get widgets --sort-by=.spec.size", "get widgets --sort-by=.metadata.name", "get widgets --sort-by={.nothing}", "get widgets --chunk-size=1",
            "delete widget w --dry-run=server", "delete widget w", "get widget w", "delete widget w", "delete widget w --ignore-not-found", "delete widgets --all", "get widgets",
            "delete crd widgets.kubectl.diff.dev"] {
            k.run(s, line).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watching_with_kubectl() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubectl-watch").await;
        k.run(s, "create configmap a --from-literal=x=1").await;
        let mut all = k.follow("get configmaps -w");
        let mut changes = k.follow("get configmaps --watch-only --output-watch-events");
        let mut json = k.follow("get configmap a -w -o jsonpath={.data.x}{\"\\n\"}");
        let mut labelled = k.follow("get configmaps -w -l b=c --show-labels");
        all.next(2).await;
        json.next(1).await;
        // A watch without a beginning says nothing when it is there: it is until one change arrives.
        let until_told = async {
            changes.next(2).await;
            changes
        };
        let changing = async {
            loop {
                let output = k.output(k.command(&["label", "configmap", "a", "round=x", "--overwrite"]), "").await;
                assert!(output.status.success());
                let output = k.output(k.command(&["label", "configmap", "a", "round-"]), "").await;
                assert!(output.status.success());
            }
        };
        let changes = tokio::select! { changes = until_told => changes, () = changing => unreachable!() };
        drop(changes);
        let mut from_here = k.follow("get configmaps -w --output-watch-events");
        from_here.next(2).await;
        for line in [
            "create configmap b --from-literal=x=1",
            "label configmap b b=c",
            "patch configmap a --type=merge -p '{\"data\":{\"x\":\"2\",\"y\":\"3\"}}'",
            "label configmap b b-",
            "delete configmap b",
        ] {
            k.run(s, line).await;
        }
        from_here.next(5).await;
        labelled.next(3).await;
        from_here.end(s);
        labelled.end(s);
        let waiting = k.follow("wait --for=jsonpath={.data.x}=3 configmap/a --timeout=30s");
        let deleted = k.follow("wait --for=delete configmap/a --timeout=30s");
        let made = k.follow("wait --for=create configmap/later --timeout=30s");
        k.run(s, "patch configmap a --type=merge -p '{\"data\":{\"x\":\"3\"}}'").await;
        k.run(s, "create configmap later").await;
        for mut one in [waiting, made] {
            one.next(1).await;
            one.end(s);
        }
        k.run(s, "delete configmap a").await;
        let mut deleted = deleted;
        deleted.next(1).await;
        deleted.end(s);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleting_with_kubectl() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubectl-delete").await;
        for cascade in ["background", "foreground", "orphan"] {
            k.run(s, "create configmap owner").await;
            let uid = s.get("/api/v1/namespaces/kubectl-delete/configmaps/owner").await.body["metadata"]["uid"].clone();
            let owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid, "blockOwnerDeletion": true}]}});
            k.with(s, "create -f -", &owned.to_string()).await;
            // Upstream's collector must know of the owner before it is gone.
            tokio::time::sleep(Duration::from_secs(1)).await;
            k.run(s, &format!("delete configmap owner --cascade={cascade} --timeout=60s")).await;
            k.run(s, "get configmap owner").await;
            if cascade == "orphan" {
                k.run(s, "get configmap owned -o jsonpath={.metadata.ownerReferences}").await;
                k.run(s, "delete configmap owned").await;
            } else {
                s.gone("/api/v1/namespaces/kubectl-delete/configmaps/owned").await;
            }
        }
        k.run(s, "create configmap held").await;
        k.run(s, "patch configmap held --type=merge -p '{\"metadata\":{\"finalizers\":[\"diff.dev/hold\"]}}'").await;
        for line in ["delete configmap held --wait=false", "delete configmap held --timeout=1s", "get configmap held -o jsonpath={.metadata.finalizers}", "label configmap held a=b",
            "patch configmap held --type=json -p '[{\"op\":\"remove\",\"path\":\"/metadata/finalizers\"}]'", "get configmap held", "delete configmap held --now", "delete configmaps --all",
            "create configmap one", "create configmap two", "delete configmaps one two three", "delete configmap/one secret/one", "delete namespace kubectl-delete --timeout=60s", "get namespace kubectl-delete"] {
            k.run(s, line).await;
        }
    })
    .await;
}

const DEPLOYMENT: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\nspec:\n  replicas: 2\n  selector:\n    matchLabels: {app: d}\n  template:\n    metadata:\n      labels: {app: d}\n    spec:\n      containers:\n      - name: a\n        image: ex\n      - name: b\n        image: why\n";

#[tokio::test(flavor = "multi_thread")]
async fn built_in_kinds_with_kubectl() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubectl-builtin").await;
        for line in ["create secret generic s --from-literal=a=b", "create configmap c --from-literal=a=b", "get secrets", "get configmaps", "get secret s -o yaml", "get configmap c -o wide",
            "describe secret s", "describe configmap c", "create serviceaccount sa", "get serviceaccount sa", "describe serviceaccount sa", "patch configmap c -p '{\"data\":{\"b\":\"c\"}}'",
            "get configmap c -o json", "create role r --verb=get --resource=pods", "create rolebinding rb --role=r --user=u", "get roles,rolebindings", "describe role r", "describe rolebinding rb",
            "create clusterrole kdcr --verb=get,list --resource=nodes", "create clusterrolebinding kdcrb --clusterrole=kdcr --group=g", "get clusterrole kdcr", "describe clusterrole kdcr", "get clusterrolebinding kdcrb -o wide",
            "create service clusterip svc --tcp=80:8080 --clusterip=None", "create poddisruptionbudget pdb --selector=app=d --min-available=50%", "get pdb", "describe pdb pdb", "create quota q --hard=pods=1 --dry-run=client -o name",
            "create priorityclass kdpc --value=100", "get priorityclass kdpc", "delete priorityclass kdpc", "get storageclasses", "get validatingwebhookconfigurations kdnone", "get networkpolicies"] {
            k.run(s, line).await;
        }
        k.with(s, "apply -f -", DEPLOYMENT).await;
        k.with(s, "apply -f -", DEPLOYMENT).await;
        k.with(s, "diff -f -", &DEPLOYMENT.replace("image: why", "image: zed")).await;
        k.with(s, "apply -f -", &DEPLOYMENT.replace("image: why", "image: zed")).await;
        k.with(s, "apply -f -", &DEPLOYMENT.replace("replicas: 2", "replicaz: 2")).await;
        k.with(s, "apply --server-side -f -", &DEPLOYMENT.replace("image: why", "image: zed")).await;
        k.with(s, "apply --server-side --force-conflicts -f -", DEPLOYMENT).await;
        for line in ["get deployments", "get deployment d -o wide", "describe deployment d", "scale deployment d --replicas=5", "set image deployment/d a=new", "set env deployment/d X=y", "get deployment d -o jsonpath={.spec.template.spec.containers}",
            "patch deployment d -p '{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"b\",\"image\":\"patched\"}]}}}}'", "patch deployment d --type=merge -p '{\"spec\":{\"replicas\":1}}'", "patch deployment d --type=json -p '[{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":4}]'",
            "get deployment d -o jsonpath={.spec.template.spec.containers[*].image}", "label deployment d tier=front", "annotate deployment d note=x", "rollout pause deployment d", "rollout resume deployment d", "get deployments -l tier=front -o name",
            "explain deployment.spec.replicas", "explain secret", "explain configmap.data", "explain node.spec.podCIDR", "explain lease.spec", "explain event.involvedObject", "explain serviceaccount --recursive", "explain pods.spec.nothing", "explain crd.spec.names",
            "delete deployment d"] {
            k.run(s, line).await;
        }
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "kubectl-node", "labels": {"node-role.kubernetes.io/control-plane": ""}}});
        k.with(s, "create -f -", &node.to_string()).await;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "R", "message": "m"}], "nodeInfo": {"machineID": "m", "systemUUID": "u", "bootID": "b", "kernelVersion": "6", "osImage": "os",
            "containerRuntimeVersion": "c://1", "kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"}, "addresses": [{"type": "InternalIP", "address": "10.9.0.1"}, {"type": "Hostname", "address": "h"}]}});
        k.run(s, &format!("patch node kubectl-node --subresource=status --type=merge -p '{status}'")).await;
        // Upstream's admission marks every new Node.
        let untaint = ["taint", "node", "kubectl-node", "node.kubernetes.io/not-ready:NoSchedule-"];
        let _ = k.output(k.command(&untaint), "").await;
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"app": "p"}}, "spec": {"terminationGracePeriodSeconds": 0, "nodeName": "kubectl-node", "automountServiceAccountToken": false, "containers": [{"name": "c", "image": "i"}]}});
        k.with(s, "create -f -", &pod.to_string()).await;
        for line in ["get node kubectl-node", "get node kubectl-node -o wide", "cordon kubectl-node", "get node kubectl-node", "taint node kubectl-node a=b:NoSchedule", "taint node kubectl-node a=b:NoSchedule", "taint node kubectl-node a-",
            "get pods", "get pods -o wide", "get pods --field-selector spec.nodeName=kubectl-node -o name", "drain kubectl-node --force --timeout=30s --pod-selector=app=p", "uncordon kubectl-node", "get pods", "delete node kubectl-node",
            "delete clusterrole kdcr", "delete clusterrolebinding kdcrb"] {
            k.run(s, line).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_and_rights_with_kubectl() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubectl-rights").await;
        k.run(s, "create configmap c").await;
        let uid = s.get("/api/v1/namespaces/kubectl-rights/configmaps/c").await.body["metadata"]["uid"].clone();
        for (name, kind, reason, minutes) in [("e1", "Normal", "Made", 3), ("e2", "Warning", "Broken", 2)] {
            let at = format!("2026-01-02T03:0{minutes}:05Z");
            let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "type": kind, "reason": reason, "message": format!("it was {reason}"), "count": 2,
                "source": {"component": "tester"}, "firstTimestamp": at, "lastTimestamp": at,
                "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "namespace": "kubectl-rights", "uid": uid}});
            k.with(s, "create -f -", &event.to_string()).await;
        }
        for line in ["get events", "get events --sort-by=.lastTimestamp", "get events -o wide", "get events --field-selector type=Warning", "get events --field-selector involvedObject.name=c,reason=Made", "events", "events --types=Warning", "events --for configmap/c",
            "get events.v1.events.k8s.io", "describe configmap c",
            "create serviceaccount sa", "create role reader --verb=get,list --resource=configmaps", "create rolebinding readers --role=reader --serviceaccount=kubectl-rights:sa",
            "auth can-i delete nodes", "auth can-i '*' '*'", "auth can-i get configmaps --as=system:serviceaccount:kubectl-rights:sa", "auth can-i delete configmaps --as=system:serviceaccount:kubectl-rights:sa", "auth can-i get configmaps/c --as=somebody",
            "auth can-i get pods --subresource=log --as=somebody", "auth can-i get /healthz --as=somebody", "auth can-i nothing nothings", "auth can-i list configmaps -A --as=system:serviceaccount:kubectl-rights:sa", "auth can-i --list --as=somebody", "auth whoami --as=somebody --as-group=them",
            "get configmaps --as=somebody", "get configmap c --as=system:serviceaccount:kubectl-rights:sa -o name", "delete configmap c --as=system:serviceaccount:kubectl-rights:sa", "create configmap x --as=system:serviceaccount:kubectl-rights:sa",
            "get nodes --as=somebody", "api-resources --api-group=rbac.authorization.k8s.io", "api-resources --api-group=apiextensions.k8s.io", "api-resources --api-group=events.k8s.io", "api-resources --api-group=policy", "api-resources --api-group=apps",
            "api-resources --api-group=coordination.k8s.io -o wide", "get --raw /healthz", "get --raw /readyz", "get --raw /livez", "get --raw /nothing", "cluster-info"] {
            k.run(s, line).await;
        }
    })
    .await;
}

/// It has Secrets as parameters because nobody else has: kube-apiserver follows a built-in kind no more once the last policy that
/// had it as parameters is gone, and would not see those of `policies::parameters`. It is asked about nobody's objects.
const POLICY: &str = "\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: kdpolicy
spec:
  paramKind:
    apiVersion: v1
    kind: Secret
  matchConstraints:
    objectSelector:
      matchLabels: {asked: kdpolicy}
    resourceRules:
    - apiGroups: [\"\"]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [nodes]
  validations:
  - expression: object.metadata.name != 'a'
    message: not a
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: kdbinding
spec:
  policyName: kdpolicy
  validationActions: [Warn, Audit]
  paramRef:
    name: x
    namespace: default
    parameterNotFoundAction: Allow
";

#[tokio::test(flavor = "multi_thread")]
async fn policies() {
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "kubectl-policies").await;
        k.with(s, "apply -f -", POLICY).await;
        k.with(s, "apply -f -", POLICY).await;
        k.with(s, "diff -f -", &POLICY.replace("not a", "never a")).await;
        k.with(s, "apply --server-side --force-conflicts -f -", &POLICY.replace("not a", "never a")).await;
        k.with(s, "apply -f -", &POLICY.replace("[Warn, Audit]", "[Warn, Deny]")).await;
        k.with(s, "apply -f -", &POLICY.replace("    name: x\n    namespace: default\n", "    selector:\n      matchLabels: {b: c, a: d}\n      matchExpressions: [{key: e, operator: In, values: [f, g]}]\n")).await;
        for line in ["get validatingadmissionpolicies kdpolicy", "get validatingadmissionpolicybindings kdbinding", "get validatingadmissionpolicybindings kdbinding -o yaml",
            "describe validatingadmissionpolicy kdpolicy", "describe validatingadmissionpolicybinding kdbinding",
            "delete validatingadmissionpolicybinding kdbinding", "delete validatingadmissionpolicy kdpolicy"] {
            k.run(s, line).await;
        }
    })
    .await;
}
