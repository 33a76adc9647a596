//! The rules of `core`, as the runner takes them.

use std::collections::HashSet;
use std::sync::Arc;

use capstan_api::ObjectKey;
use capstan_cluster::providers::Providers;
use capstan_cluster::runner::Rules;
use capstan_core::contract::Duty;
use capstan_core::plan::Plan;
use capstan_core::provider::decide_served;
use capstan_core::rules::RULES;
use capstan_core::view::{NotNow, View};

use crate::args::Controllers;

/// Core kinds, and what the loaded modules serve.
pub struct CoreRules {
    providers: Arc<dyn Providers>,
    controllers: HashSet<Controllers>,
}

impl CoreRules {
    /// Of the controllers that this process runs.
    pub fn new(providers: Arc<dyn Providers>, controllers: impl IntoIterator<Item = Controllers>) -> Self {
        Self { providers, controllers: controllers.into_iter().collect() }
    }

    fn runs(&self, duty: Duty) -> bool {
        self.controllers.contains(&match duty {
            Duty::InfraCluster | Duty::InfraMachine => Controllers::Infrastructure,
            Duty::Bootstrap => Controllers::Bootstrap,
            Duty::ControlPlane => Controllers::ControlPlane,
        })
    }
}

impl Rules for CoreRules {
    fn kinds(&self) -> Vec<(String, String)> {
        let mut kinds = Vec::new();
        if self.controllers.contains(&Controllers::Core) {
            kinds.extend(RULES.iter().map(|rule| (rule.group.to_owned(), rule.kind.to_owned())));
        }
        kinds.extend(
            self.providers.kinds().into_iter().filter(|(group, kind)| {
                self.providers.served(group, kind).is_some_and(|served| self.runs(served.duty))
            }),
        );
        kinds
    }

    fn decide(&self, key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
        if self.controllers.contains(&Controllers::Core)
            && let Some(rule) = RULES.iter().find(|rule| rule.group == key.group && rule.kind == key.kind)
        {
            return (rule.decide)(key, view, now);
        }
        match view.served(&key.group, &key.kind) {
            Some(served) if self.runs(served.duty) => decide_served(key, &served, view, now),
            _ => Ok(Plan::nothing()),
        }
    }
}
