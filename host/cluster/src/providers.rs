//! What this crate asks of whoever runs provider components. The `capstan` binary wires it to the Wasm runtime;
//! tests put doubles here.

use std::collections::BTreeMap;

use async_trait::async_trait;
use capstan_core::contract::{Granted, KnownPart, Served};
use capstan_core::turn::{Call, Fence, Outcome, TurnInput};

/// The loaded provider modules.
#[async_trait]
pub trait Providers: Send + Sync {
    /// What a module serves for this kind; `None` when no loaded module does.
    fn served(&self, group: &str, kind: &str) -> Option<Served>;

    /// All kinds that loaded modules serve: `(group, kind)`, without templates.
    fn kinds(&self) -> Vec<(String, String)>;

    /// Changes whenever a module was loaded or unloaded.
    fn changes(&self) -> tokio::sync::watch::Receiver<u64>;

    /// A fresh instance for one turn about `input.subject`.
    ///
    /// # Errors
    /// When the module is not loaded (any more), its slots are taken or it cannot be instantiated; the text is for
    /// a person.
    async fn begin(&self, module: &str, input: TurnInput) -> Result<Box<dyn Turn>, String>;
}

/// One instance serving one object for one turn. Dropping it ends the turn.
#[async_trait]
pub trait Turn: Send {
    /// Calls the guest. `may_change` is asked right before a changing request is sent (the Lease check); when it says
    /// no, the request is refused and not sent. A trap, a spent budget or a forbidden answer is
    /// [`capstan_core::contract::ProviderError::Violated`]; further calls of the turn then say the same.
    async fn call(
        &mut self,
        call: Call,
        known: BTreeMap<String, KnownPart>,
        granted: Granted,
        may_change: &Fence,
    ) -> Outcome;
}
