//! What programs built on client-go and controller-runtime do (`tests/clients`), on both servers: informers, watch-lists,
//! protobuf, server-side apply, retries, leader election, recorders, a manager with a controller.

use crate::kubectl::Kubectl;
use crate::session::{Session, compare};
use capstan_tests::plane::{root, skip};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The program. None, and a loud line, when it is not built: `tests/setup.sh` builds it.
fn program() -> Option<PathBuf> {
    let output = Command::new(root().join("tests/clients/build.sh")).arg("--find").stderr(Stdio::inherit()).output();
    let found = output.ok().filter(|output| output.status.success());
    let path = found.and_then(|output| String::from_utf8(output.stdout).ok()).map(|path| PathBuf::from(path.trim()));
    if path.is_none() {
        skip("client-go and controller-runtime on both servers: run tests/setup.sh, which builds a program of theirs")
            .expect("the list of what was left out");
    }
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn client_go_and_controller_runtime() {
    let Some(program) = program() else { return };
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "clients").await;
        let output = tokio::process::Command::new(&program)
            .arg("clients")
            .env_clear()
            .env("KUBECONFIG", k.kubeconfig())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .output()
            .await
            .expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{}: {out}\n{err}", s.server.name);
        s.note("client-go and controller-runtime", json!(out.lines().collect::<Vec<_>>()));
    })
    .await;
}
