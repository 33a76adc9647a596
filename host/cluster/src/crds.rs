//! Installs CRDs, and only those that differ from what is installed.

use std::collections::HashMap;

use capstan_api::Object;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::kinds::{Resource, builtin};
use crate::wire::{PatchKind, Wire, WireError};

/// Annotation with the digest of the CRD as it was handed to [`install`].
pub const DIGEST: &str = "capstan.dev/crd-digest";

/// Applies these CRDs (server-side apply), leaving out those that are installed as they are. How many were written.
///
/// # Errors
/// When the API server refuses one; the text names it.
pub async fn install(wire: &Wire, crds: &[Object]) -> Result<usize, String> {
    let resource = resource()?;
    let (installed, _) = wire.list(&resource, "").await.map_err(|error| format!("cannot list CRDs: {error}"))?;
    let installed: HashMap<&str, &str> =
        installed.iter().filter_map(|crd| Some((crd.name(), crd.annotation(DIGEST)?))).collect();
    let mut written = 0;
    for crd in crds {
        let digest = digest(crd);
        if installed.get(crd.name()) == Some(&digest.as_str()) {
            continue;
        }
        let mut crd = crd.clone();
        crd.set_annotation(DIGEST, &digest);
        apply(wire, &resource, &crd).await.map_err(|error| format!("cannot install CRD {}: {error}", crd.name()))?;
        written += 1;
    }
    Ok(written)
}

async fn apply(wire: &Wire, resource: &Resource, crd: &Object) -> Result<Object, WireError> {
    wire.patch(resource, "", crd.name(), None, PatchKind::Apply, &Value::Object(crd.0.clone())).await
}

fn resource() -> Result<Resource, String> {
    builtin("apiextensions.k8s.io", "CustomResourceDefinition")
        .ok_or_else(|| "CRDs are not in the table of kinds".into())
}

fn digest(crd: &Object) -> String {
    let bytes = serde_json::to_vec(crd).unwrap_or_default();
    let hash = Sha256::digest(&bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
