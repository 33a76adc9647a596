//! What a Cluster takes from its InfraCluster and its control plane.

use capstan_api::Object;
use capstan_api::well_known::{CLUSTER_NAME, SECRET_TYPE};
use capstan_api::{Gvk, ObjectKey};
use serde_json::json;

use super::members::Members;
use crate::cluster_input::server_url;
use crate::conditions::Condition;
use crate::contract_read::{Duck, Found, Reference, endpoint, failure_domains_value, follow};
use crate::difference::Draft;
use crate::ownership::claim;
use crate::plan::{KubeconfigSecret, Plan, Write};
use crate::view::{NotNow, Place, View};

pub(super) const PROVISIONED: &str = "/status/initialization/infrastructureProvisioned";
pub(super) const INITIALIZED: &str = "/status/initialization/controlPlaneInitialized";

/// Validity of the kubeconfig's client certificate in days.
const KUBECONFIG_DAYS: u32 = 365;

/// Endpoint and failure domains, once the infrastructure is provisioned.
pub(super) fn infrastructure(draft: &mut Draft, plan: &mut Plan, view: &dyn View) -> Result<(), NotNow> {
    let Some(reference) = Reference::at(&draft.new, "/spec/infrastructureRef") else {
        // Nothing has to be made.
        draft.set(PROVISIONED, Some(true.into()));
        draft.condition(Condition::yes("InfrastructureReady", "Ready"));
        return Ok(());
    };
    let done = draft.new.bool_at(PROVISIONED);
    let path = "spec.infrastructureRef";
    let Some(duck) = referenced(draft, plan, view, path, &reference, "InfrastructureReady", done)? else {
        return Ok(());
    };
    if duck.provisioned() {
        draft.set(PROVISIONED, Some(true.into()));
        take_endpoint(draft, &duck);
        let domains = duck.failure_domains();
        draft.set("/status/failureDomains", (!domains.is_empty()).then(|| failure_domains_value(&domains)));
    }
    let condition = duck.mirrored("InfrastructureReady", "Ready", "provisioned", "ready");
    draft.condition(condition);
    Ok(())
}

/// Endpoint and initialization, from the control plane.
pub(super) fn control_plane(draft: &mut Draft, plan: &mut Plan, view: &dyn View) -> Result<Option<Duck>, NotNow> {
    let Some(reference) = Reference::at(&draft.new, "/spec/controlPlaneRef") else { return Ok(None) };
    let done = draft.new.bool_at(INITIALIZED);
    let path = "spec.controlPlaneRef";
    let Some(duck) = referenced(draft, plan, view, path, &reference, "ControlPlaneAvailable", done)? else {
        return Ok(None);
    };
    if duck.control_plane_initialized() {
        draft.set(INITIALIZED, Some(true.into()));
        take_endpoint(draft, &duck);
    }
    let condition = duck.mirrored("ControlPlaneAvailable", "Available", "controlPlaneInitialized", "initialized");
    draft.condition(if condition.reason == "Ready" {
        Condition { reason: "Available".into(), ..condition }
    } else if condition.reason == "NotReady" {
        Condition { reason: "NotAvailable".into(), ..condition }
    } else {
        condition
    });
    Ok(Some(duck))
}

/// The endpoint is copied only where there is no valid one yet.
fn take_endpoint(draft: &mut Draft, duck: &Duck) {
    if endpoint(&draft.new).is_none()
        && let Some(found) = duck.control_plane_endpoint()
    {
        draft.set("/spec/controlPlaneEndpoint", Some(json!({"host": found.host, "port": found.port})));
    }
}

/// Without a control-plane object, the first control-plane Node says that there is a control plane.
pub(super) fn initialized(draft: &mut Draft, control_plane: Option<&Duck>, members: &Members) {
    if draft.new.at("/spec/controlPlaneRef").is_none() {
        let bound = members.control_plane.iter().any(|m| m.at("/status/nodeRef").is_some());
        if bound {
            draft.set(INITIALIZED, Some(true.into()));
        }
    }
    draft.condition(if draft.new.bool_at(INITIALIZED) {
        Condition::yes("ControlPlaneInitialized", "Initialized")
    } else {
        let message = match control_plane {
            Some(duck) => format!("{} is not initialized yet", duck.object.kind()),
            None => "Waiting for the first control-plane Machine to have a Node".into(),
        };
        Condition::no("ControlPlaneInitialized", "NotInitialized", message)
    });
}

/// `<cluster>-kubeconfig`, where no control-plane object makes it.
pub(super) fn kubeconfig(draft: &Draft, plan: &mut Plan, view: &dyn View) -> Result<(), NotNow> {
    let cluster = &draft.old;
    if cluster.at("/spec/controlPlaneRef").is_some() {
        return Ok(());
    }
    let Some(server) = endpoint(&draft.new) else { return Ok(()) };
    let secret = |what: &str| {
        let name = format!("{}-{what}", cluster.name());
        view.get(&Place::Management, &ObjectKey::new("", "Secret", cluster.namespace(), name))
    };
    if secret("ca")?.is_none() || secret("kubeconfig")?.is_some() {
        return Ok(());
    }
    let name = format!("{}-kubeconfig", cluster.name());
    let mut made = Object::new(&Gvk::new("", "v1", "Secret"), cluster.namespace(), &name);
    made.set_label(CLUSTER_NAME, cluster.name());
    made.set("/metadata/ownerReferences", json!([cluster.as_owner(true)]));
    made.set("/type", SECRET_TYPE.into());
    plan.writes.push(Write::MintKubeconfig(KubeconfigSecret {
        secret: made,
        cluster: cluster.name().to_owned(),
        server: server_url(&server),
        ca_secret: format!("{}-ca", cluster.name()),
        validity_days: KUBECONFIG_DAYS,
    }));
    Ok(())
}

fn referenced(
    draft: &mut Draft,
    plan: &mut Plan,
    view: &dyn View,
    path: &str,
    reference: &Reference,
    condition: &str,
    done: bool,
) -> Result<Option<Duck>, NotNow> {
    let (kind, name) = (&reference.kind, &reference.name);
    let found = follow(view, draft.new.namespace(), path, reference)?;
    let (reason, message) = match found {
        Found::Object(duck) => {
            // A plain owner is never refused.
            let _ = claim(plan, &duck.object, &draft.old.as_owner(false), draft.old.name());
            return Ok(Some(duck));
        }
        Found::Missing if done => {
            ("ObjectDeleted", format!("{kind} {name} was deleted while the Cluster still exists"))
        }
        Found::Missing => ("ObjectDoesNotExist", format!("{path} names {kind} {name}, which does not exist")),
        Found::Wrong(message) => ("InvalidReference", message),
    };
    draft.condition(Condition::no(condition, reason, message));
    Ok(None)
}
