//! Version 0.1 of the contract: its bindings, and what its records mean in the host's own.

mod bindings;
mod imports;
mod outputs;

use bindings::exports::capstan::provider as exports;
use capstan_core::contract::ProviderError;
use capstan_core::turn::{Call, Reply};
use wasmtime::component::{HasSelf, Instance, InstancePre, Linker};
use wasmtime::{AsContextMut, Engine, Store};

use crate::limits::broken;
use crate::pure::{Answer, Question};
use crate::state::State;
use outputs::{IntoHost, error, reason, reason_out, violation};

/// A linker with all imports of this version; which of them a component may have is decided by its role before.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<State>> {
    let mut linker = Linker::new(engine);
    bindings::Everything::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
    Ok(linker)
}

/// A component ready to be instantiated. Each exported interface is bound by itself: one that a component lacks is an
/// error only where it is called.
#[derive(Clone)]
pub(crate) struct Pre {
    instance: InstancePre<State>,
    kinds: Option<exports::kinds::GuestIndices>,
    needs: Option<exports::needs::GuestIndices>,
    resources: Option<exports::resources::GuestIndices>,
    infra_cluster: Option<exports::infra_cluster::GuestIndices>,
    infra_machine: Option<exports::infra_machine::GuestIndices>,
    bootstrap: Option<exports::bootstrap::GuestIndices>,
    control_plane: Option<exports::control_plane::GuestIndices>,
}

impl Pre {
    pub(crate) fn new(instance: InstancePre<State>) -> Self {
        Self {
            kinds: exports::kinds::GuestIndices::new(&instance).ok(),
            needs: exports::needs::GuestIndices::new(&instance).ok(),
            resources: exports::resources::GuestIndices::new(&instance).ok(),
            infra_cluster: exports::infra_cluster::GuestIndices::new(&instance).ok(),
            infra_machine: exports::infra_machine::GuestIndices::new(&instance).ok(),
            bootstrap: exports::bootstrap::GuestIndices::new(&instance).ok(),
            control_plane: exports::control_plane::GuestIndices::new(&instance).ok(),
            instance,
        }
    }

    pub(crate) async fn instantiate(&self, store: &mut Store<State>) -> wasmtime::Result<Instance> {
        self.instance.instantiate_async(store.as_context_mut()).await
    }

    /// Answers what is asked outside a turn. A component that says nothing about its kinds finds nothing wrong.
    pub(crate) async fn answer(
        &self,
        store: &mut Store<State>,
        instance: &Instance,
        question: Question,
    ) -> wasmtime::Result<Answer> {
        Ok(match question {
            Question::Convert(object, version) => {
                let Some(indices) = &self.kinds else {
                    return Err(broken("it does not export the interface kinds"));
                };
                let guest = indices.load(store.as_context_mut(), instance)?;
                Answer::Converted(guest.call_convert(store, &object, &version).await?.map_err(reason))
            }
            Question::Validate(old, new) => {
                let Some(indices) = &self.kinds else { return Ok(Answer::Violations(Vec::new())) };
                let guest = indices.load(store.as_context_mut(), instance)?;
                let found = guest.call_validate(store, old.as_ref(), &new).await?;
                Answer::Violations(found.into_iter().map(violation).collect())
            }
            Question::Capacity => {
                let Some(indices) = &self.infra_machine else { return Ok(Answer::Capacity(Vec::new())) };
                let guest = indices.load(store.as_context_mut(), instance)?;
                Answer::Capacity(guest.call_capacity(store).await?)
            }
        })
    }

    /// Calls the guest. The outer error ends the store.
    pub(crate) async fn call(
        &self,
        store: &mut Store<State>,
        instance: &Instance,
        call: &Call,
    ) -> wasmtime::Result<Result<Reply, ProviderError>> {
        macro_rules! guest {
            ($interface:ident) => {
                match &self.$interface {
                    Some(indices) => indices.load(store.as_context_mut(), instance)?,
                    None => return Err(broken(concat!("it does not export the interface ", stringify!($interface)))),
                }
            };
        }
        Ok(match call {
            Call::Needs => match &self.needs {
                Some(indices) => {
                    let guest = indices.load(store.as_context_mut(), instance)?;
                    let needs = guest.call_declare(store).await?.map_err(error);
                    needs.map(|needs| {
                        Reply::Needs(needs.into_iter().map(|(label, need)| (label, need.into_host())).collect())
                    })
                }
                None => Ok(Reply::Needs(Vec::new())),
            },
            Call::Parts => {
                let parts = guest!(resources).call_parts(store).await?.map_err(error);
                parts.map(|parts| Reply::Parts(parts.into_iter().map(IntoHost::into_host).collect()))
            }
            Call::Identify { part, reserved } => match guest!(resources).call_identify(store, part, reserved).await? {
                Ok(choice) => Ok(Reply::Choice(choice.into_host()?)),
                Err(why) => Err(error(why)),
            },
            Call::Observe(part) => match guest!(resources).call_observe(store, part).await? {
                Ok(presence) => Ok(Reply::Presence(presence.into_host()?)),
                Err(why) => Err(error(why)),
            },
            Call::Create(part) => progress(guest!(resources).call_create(store, part).await?),
            Call::Update(part, todo) => {
                let todo: Vec<_> = todo.iter().map(reason_out).collect();
                progress(guest!(resources).call_update(store, part, &todo).await?)
            }
            Call::Delete(part) => progress(guest!(resources).call_delete(store, part).await?),
            Call::ReportCluster => match guest!(infra_cluster).call_report(store).await? {
                Ok(facts) => Ok(Reply::ClusterFacts(facts.into_host()?)),
                Err(why) => Err(error(why)),
            },
            Call::ReportMachine => match guest!(infra_machine).call_report(store).await? {
                Ok(facts) => Ok(Reply::MachineFacts(facts.into_host()?)),
                Err(why) => Err(error(why)),
            },
            Call::Render => match guest!(bootstrap).call_render(store.as_context_mut()).await? {
                Ok(rendered) => {
                    let content = store.data_mut().table.delete(rendered.content)?;
                    let content = content.bytes.to_vec();
                    Ok(Reply::Rendered(capstan_core::contract::Rendered { format: rendered.format, content }))
                }
                Err(why) => Err(error(why)),
            },
            Call::PlanControlPlane => match guest!(control_plane).call_plan(store).await? {
                Ok(decision) => Ok(Reply::Decision(decision.into_host()?)),
                Err(why) => Err(error(why)),
            },
        })
    }
}

fn progress(
    result: Result<exports::resources::Progress, bindings::capstan::provider::types::ProviderError>,
) -> Result<Reply, ProviderError> {
    result.map(|progress| Reply::Progress(progress.into_host())).map_err(error)
}
