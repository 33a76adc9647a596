//! What programs built on client-go and controller-runtime do (`tests/clients`), on both servers: informers, watch-lists,
//! protobuf, server-side apply, retries, leader election, recorders, a manager with a controller.

use crate::kubectl::Kubectl;
use crate::session::{Session, compare};
use capstan_tests::clients;
use serde_json::json;
use std::process::Stdio;

#[tokio::test(flavor = "multi_thread")]
async fn client_go_and_controller_runtime() {
    let Some(programs) = clients::programs().expect("the list of what was left out") else { return };
    compare(async |s: &mut Session| {
        let k = Kubectl::start(s, "clients").await;
        let output = tokio::process::Command::new(programs.join("clients"))
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
