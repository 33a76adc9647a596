//! What a life runs: a component in the host's runtime, or a double of one.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use capstan_core::contract::{Granted, KnownPart, Served};
use capstan_core::turn::{Call, Fence, Outcome, TurnInput};
use capstan_gateway::Gateway;

use crate::Testkit;

/// The name of the module in lives.
pub(super) const MODULE: &str = "conformance";

/// Something that serves kinds by the provider contract. A [`Testkit`] is one.
#[async_trait]
pub trait Component: Send + Sync {
    /// The kinds it serves, as the module `conformance`.
    fn served(&self) -> Vec<(String, Served)>;

    /// Begins a turn.
    ///
    /// # Errors
    /// When there is no instance.
    async fn begin(&self, input: TurnInput, gateway: &Arc<Gateway>) -> anyhow::Result<Box<dyn Guest>>;
}

/// One turn of a [`Component`].
#[async_trait]
pub trait Guest: Send {
    /// Carries out one call; `may_change` is asked right before a changing request is sent.
    async fn call(
        &mut self,
        call: Call,
        known: BTreeMap<String, KnownPart>,
        granted: Granted,
        may_change: &Fence,
    ) -> Outcome;
}

#[async_trait]
impl Component for Testkit {
    fn served(&self) -> Vec<(String, Served)> {
        self.module().served(MODULE)
    }

    async fn begin(&self, input: TurnInput, gateway: &Arc<Gateway>) -> anyhow::Result<Box<dyn Guest>> {
        let turn = self.module().begin(MODULE, input, gateway).await.map_err(anyhow::Error::msg)?;
        Ok(Box::new(turn))
    }
}

#[async_trait]
impl Guest for capstan_runtime::Turn {
    async fn call(
        &mut self,
        call: Call,
        known: BTreeMap<String, KnownPart>,
        granted: Granted,
        may_change: &Fence,
    ) -> Outcome {
        capstan_runtime::Turn::call(self, call, known, granted, may_change).await
    }
}
