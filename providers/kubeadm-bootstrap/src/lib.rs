//! Kubeadm bootstrap: a KubeadmConfig and a machine's role become cloud-config that runs `kubeadm init` or `join`.
//!
//! Promises: texts of the user arrive in the machine byte for byte, whatever they hold; private keys and tokens are
//! arranged and never read here; the same input gives the same data.

mod cloud_config;
mod kubeadm;
#[cfg(test)]
mod tests;
mod yaml;

use std::collections::BTreeSet;

use capstan_provider::{
    Context, Error, Kind, Need, Result, Schema, Violation,
    bootstrap::{self, BootstrapProvider, JoinRole, Rendered},
    export_bootstrap, secrets,
};
use kubeadm_types::KubeadmConfigSpec;
use serde::Deserialize;

/// What a machine does when it boots: kubeadm sets up or joins the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Kind)]
#[serde(transparent)]
#[kind(
    name = "KubeadmConfig",
    version = "v1beta2",
    column(
        "Cluster",
        "string",
        ".metadata.labels['cluster\\.x-k8s\\.io/cluster-name']",
        "Cluster that the object belongs to"
    ),
    wide_column("Paused", "string", ".status.conditions[?(@.type==\"Paused\")].status", "Whether it is left alone"),
    column(
        "Data secret created",
        "string",
        ".status.initialization.dataSecretCreated",
        "Whether the first-boot data is there"
    ),
    column("Age", "date", ".metadata.creationTimestamp", "How old it is")
)]
pub struct KubeadmConfig(KubeadmConfigSpec);

impl Schema for KubeadmConfig {
    const BODY: &'static str = KubeadmConfigSpec::BODY;
    const RULES: &'static str = KubeadmConfigSpec::RULES;
}

export_bootstrap!(KubeadmConfig, {
    "name": "kubeadm-bootstrap",
    "kinds": { "group": "bootstrap.cluster.x-k8s.io", "machine": "KubeadmConfig" },
    "contractLabels": { "cluster.x-k8s.io/v1beta2": ["v1beta2"] },
    "objectReferences": [
        "/spec/files/0/contentFrom/secret",
        "/spec/files/1/contentFrom/secret",
        "/spec/files/2/contentFrom/secret",
        "/spec/files/3/contentFrom/secret",
        "/spec/files/4/contentFrom/secret",
        "/spec/files/5/contentFrom/secret",
        "/spec/files/6/contentFrom/secret",
        "/spec/files/7/contentFrom/secret",
        "/spec/files/8/contentFrom/secret",
        "/spec/files/9/contentFrom/secret",
        "/spec/files/10/contentFrom/secret",
        "/spec/files/11/contentFrom/secret",
        "/spec/files/12/contentFrom/secret",
        "/spec/files/13/contentFrom/secret",
        "/spec/files/14/contentFrom/secret",
        "/spec/files/15/contentFrom/secret",
        "/spec/users/0/passwdFrom/secret",
        "/spec/users/1/passwdFrom/secret",
        "/spec/users/2/passwdFrom/secret",
        "/spec/users/3/passwdFrom/secret",
        "/spec/users/4/passwdFrom/secret",
        "/spec/users/5/passwdFrom/secret",
        "/spec/users/6/passwdFrom/secret",
        "/spec/users/7/passwdFrom/secret"
    ],
    "limits": { "memory": "16Mi", "cpu": "200ms" }
});

/// How many `files` and `users` may take their content from a Secret: those that the manifest lists.
const FILES_FROM_SECRETS: usize = 16;
const USERS_FROM_SECRETS: usize = 8;

impl BootstrapProvider for KubeadmConfig {
    fn needs(ctx: &Context<Self>) -> Result<Vec<(String, Need)>> {
        let spec = &ctx.spec.0;
        let role = bootstrap::role();
        let mut needs = spec.key_pairs();
        if role == JoinRole::WorkerJoin {
            needs.retain(|(label, _)| label == "ca");
        }
        if role != JoinRole::ControlPlaneInit && kubeadm::wants_token(spec) {
            needs.push(("bootstrap-token".to_owned(), Need::BootstrapToken));
        }
        for (index, file) in spec.files.iter().enumerate() {
            if file.content_from.is_some() {
                needs.push((format!("file-{index}"), Need::Secret(format!("/spec/files/{index}/contentFrom/secret"))));
            }
        }
        for (index, user) in spec.users.iter().enumerate() {
            if user.passwd_from.is_some() {
                needs.push((format!("user-{index}"), Need::Secret(format!("/spec/users/{index}/passwdFrom/secret"))));
            }
        }
        Ok(needs)
    }

    fn render(ctx: &Context<Self>) -> Result<Rendered> {
        let violations = Self::validate(None, &ctx.spec);
        if !violations.is_empty() {
            return Err(Error::Invalid(violations));
        }
        let facts = kubeadm::Facts::of(ctx)?;
        let chunks = cloud_config::render(&ctx.spec.0, &facts)?;
        Ok(Rendered { format: "cloud-config".to_owned(), content: secrets::compose(&chunks) })
    }

    fn validate(_old: Option<&Self>, new: &Self) -> Vec<Violation> {
        let mut violations = Vec::new();
        let spec = &new.0;
        if spec.format.as_deref() == Some("ignition") {
            violations.push(Violation::new("/spec/format", "Ignition is not rendered yet: use cloud-config"));
        }
        let mut paths = BTreeSet::new();
        for (index, file) in spec.files.iter().enumerate() {
            let at = format!("/spec/files/{index}");
            if file.append != Some(true) && !paths.insert(file.path.as_str()) {
                violations.push(Violation::new(format!("{at}/path"), format!("{} is written twice", file.path)));
            }
            if file.content.is_some() && file.content_from.is_some() {
                violations.push(Violation::new(at.clone(), "only one of content and contentFrom may be set"));
            }
            if file.content_format.as_deref() == Some("Template") {
                violations
                    .push(Violation::new(format!("{at}/contentFormat"), "templates are not filled in yet: use Raw"));
            }
            if file.content_from.is_some() && index >= FILES_FROM_SECRETS {
                violations.push(Violation::new(
                    format!("{at}/contentFrom"),
                    format!("only the first {FILES_FROM_SECRETS} files may come from a Secret: move it up"),
                ));
            }
        }
        for (index, user) in spec.users.iter().enumerate() {
            let at = format!("/spec/users/{index}");
            if user.passwd.is_some() && user.passwd_from.is_some() {
                violations.push(Violation::new(at.clone(), "only one of passwd and passwdFrom may be set"));
            }
            if user.passwd_from.is_some() && index >= USERS_FROM_SECRETS {
                violations.push(Violation::new(
                    format!("{at}/passwdFrom"),
                    format!("only the first {USERS_FROM_SECRETS} users may have a password from a Secret: move it up"),
                ));
            }
        }
        violations
    }
}
