//! What a Machine takes from its BootstrapConfig and its InfraMachine.

use capstan_api::Object;
use capstan_api::well_known::INTERRUPTIBLE;
use serde_json::{Value, json};

use crate::conditions::Condition;
use crate::contract_read::{Duck, Found, Reference, follow};
use crate::difference::Draft;
use crate::ownership::{Inherited, claim_and_describe};
use crate::plan::Plan;
use crate::view::{NotNow, View};

const BOOTSTRAP: &str = "BootstrapConfigReady";
const INFRASTRUCTURE: &str = "InfrastructureReady";
const DATA_CREATED: &str = "/status/initialization/bootstrapDataSecretCreated";
const PROVISIONED: &str = "/status/initialization/infrastructureProvisioned";

/// What the Machine's config and infrastructure carry besides their own.
pub(super) struct Whose<'a> {
    /// Name of the Cluster.
    cluster: &'a str,
    /// From the MachineSet's template.
    inherited: Inherited,
}

impl<'a> Whose<'a> {
    /// `owner`: what controls the Machine.
    pub(super) fn of(cluster: &'a Object, owner: Option<&Object>) -> Self {
        let entries = |map: &str| -> Vec<(String, String)> {
            let template = owner.filter(|o| o.kind() == "MachineSet");
            let all =
                template.and_then(|set| set.at(&format!("/spec/template/metadata/{map}"))).and_then(Value::as_object);
            all.into_iter().flatten().filter_map(|(k, v)| Some((k.clone(), v.as_str()?.to_owned()))).collect()
        };
        let inherited = Inherited { labels: entries("labels"), annotations: entries("annotations") };
        Self { cluster: cluster.name(), inherited }
    }
}

/// `dataSecretName`, from the BootstrapConfig or from the user.
pub(super) fn bootstrap(draft: &mut Draft, plan: &mut Plan, whose: &Whose<'_>, view: &dyn View) -> Result<(), NotNow> {
    let path = "spec.bootstrap.configRef";
    let Some(reference) = Reference::at(&draft.new, "/spec/bootstrap/configRef") else {
        if draft.new.at("/spec/bootstrap/dataSecretName").is_some_and(Value::is_string) {
            draft.set(DATA_CREATED, Some(true.into()));
            draft.condition(Condition::yes(BOOTSTRAP, "DataSecretProvided"));
        } else {
            let message = "spec.bootstrap names neither a configRef nor a dataSecretName: set one";
            draft.condition(Condition::no(BOOTSTRAP, "InvalidReference", message));
        }
        return Ok(());
    };
    let done = draft.new.bool_at(DATA_CREATED);
    let Some(config) = referenced(draft, plan, whose, view, path, &reference, BOOTSTRAP, done)? else {
        return Ok(());
    };
    let mut condition = config.mirrored(BOOTSTRAP, "Ready", "dataSecretCreated", "ready");
    if config.data_secret_created() {
        match config.data_secret_name() {
            Some(name) => {
                if draft.new.str_at("/spec/bootstrap/dataSecretName") != Some(name) {
                    draft.set("/spec/bootstrap/dataSecretName", Some(name.into()));
                }
                draft.set(DATA_CREATED, Some(true.into()));
            }
            None => {
                let message = format!(
                    "contract violation: {} {} says that the data Secret was created and does not name it in \
                     status.dataSecretName",
                    reference.kind, reference.name
                );
                condition = Condition::no(BOOTSTRAP, "ContractViolation", message);
            }
        }
    }
    draft.condition(condition);
    Ok(())
}

/// `providerID`, addresses and failure domain, once the infrastructure is provisioned.
pub(super) fn infrastructure(
    draft: &mut Draft,
    plan: &mut Plan,
    whose: &Whose<'_>,
    view: &dyn View,
) -> Result<(), NotNow> {
    let path = "spec.infrastructureRef";
    let Some(reference) = Reference::at(&draft.new, "/spec/infrastructureRef") else {
        draft.condition(Condition::no(INFRASTRUCTURE, "InvalidReference", "spec.infrastructureRef is needed"));
        return Ok(());
    };
    let done = draft.new.bool_at(PROVISIONED);
    let Some(infra) = referenced(draft, plan, whose, view, path, &reference, INFRASTRUCTURE, done)? else {
        return Ok(());
    };
    let mut condition = infra.mirrored(INFRASTRUCTURE, "Ready", "provisioned", "ready");
    if infra.provisioned() {
        match (infra.provider_id(), draft.new.str_at("/spec/providerID").map(str::to_owned)) {
            (None, _) => {
                let message = format!(
                    "contract violation: {} {} says that it is provisioned and has no spec.providerID",
                    reference.kind, reference.name
                );
                condition = Condition::no(INFRASTRUCTURE, "ContractViolation", message);
            }
            (Some(now), Some(before)) if now != before => {
                let message = format!(
                    "contract violation: {} {} changed spec.providerID from {before:?} to {now:?}; a machine keeps \
                     its identity",
                    reference.kind, reference.name
                );
                condition = Condition::no(INFRASTRUCTURE, "ContractViolation", message);
            }
            (Some(id), _) => {
                if draft.new.str_at("/spec/providerID").is_none() {
                    draft.set("/spec/providerID", Some(id.into()));
                }
                take(draft, &infra);
            }
        }
    }
    draft.condition(condition);
    Ok(())
}

fn take(draft: &mut Draft, infra: &Duck) {
    draft.set(PROVISIONED, Some(true.into()));
    let addresses = infra.addresses();
    draft.set("/status/addresses", (!addresses.is_empty()).then(|| json!(addresses)));
    if let Some(domain) = infra.machine_failure_domain() {
        draft.set("/status/failureDomain", Some(domain.into()));
    }
    // v1beta1's field decides where the Machine says it is, under both contracts.
    if let Some(domain) = infra.object.str_at("/spec/failureDomain")
        && draft.new.str_at("/spec/failureDomain") != Some(domain)
    {
        draft.set("/spec/failureDomain", Some(domain.into()));
    }
    if infra.object.bool_at("/status/interruptible") && draft.new.label(INTERRUPTIBLE).is_none() {
        draft.new.set_label(INTERRUPTIBLE, "");
    }
}

/// Follows a reference of the Machine and makes the Machine the controller of what it finds. `None` when there is
/// nothing to go on with; the condition then says why.
#[allow(clippy::too_many_arguments)]
fn referenced(
    draft: &mut Draft,
    plan: &mut Plan,
    whose: &Whose<'_>,
    view: &dyn View,
    path: &str,
    reference: &Reference,
    condition: &str,
    done: bool,
) -> Result<Option<Duck>, NotNow> {
    let (kind, name) = (&reference.kind, &reference.name);
    let found = follow(view, draft.new.namespace(), path, reference)?;
    let duck = match found {
        Found::Object(duck) => duck,
        Found::Missing if done => {
            let message = format!("{kind} {name} was deleted while the Machine still exists");
            draft.condition(Condition::no(condition, "ObjectDeleted", message));
            return Ok(None);
        }
        Found::Missing => {
            let message = format!("{path} names {kind} {name}, which does not exist");
            draft.condition(Condition::no(condition, "ObjectDoesNotExist", message));
            return Ok(None);
        }
        Found::Wrong(message) => {
            draft.condition(Condition::no(condition, "InvalidReference", message));
            return Ok(None);
        }
    };
    let owner = draft.old.as_owner(true);
    if let Err(message) = claim_and_describe(plan, &duck.object, &owner, whose.cluster, &whose.inherited) {
        let message = format!("{path}: {message}; two Machines cannot share it");
        draft.condition(Condition::no(condition, "InvalidReference", message));
        return Ok(None);
    }
    Ok(Some(duck))
}
