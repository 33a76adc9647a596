//! The rules of `core`, as the runner takes them.

use std::collections::HashSet;
use std::sync::Arc;

use capstan_api::ObjectKey;
use capstan_cluster::providers::Providers as _;
use capstan_cluster::runner::Rules;
use capstan_core::contract::Duty;
use capstan_core::plan::Plan;
use capstan_core::provider::decide_served;
use capstan_core::rules::{IPAM_RULES, RULES, Rule};
use capstan_core::view::{NotNow, Place, View};

use crate::args::Controllers;
use crate::kinds::Capacities;
use crate::modules::Registry;

/// Core kinds, and what the loaded modules serve.
pub struct CoreRules {
    providers: Arc<Registry>,
    capacities: Capacities,
    controllers: HashSet<Controllers>,
}

impl CoreRules {
    /// Of the controllers that this process runs.
    pub fn new(providers: Arc<Registry>, controllers: impl IntoIterator<Item = Controllers>) -> Self {
        Self { providers, capacities: Capacities::default(), controllers: controllers.into_iter().collect() }
    }

    /// The rules that need no provider.
    fn own_rules(&self) -> impl Iterator<Item = &'static Rule> {
        let of = |controllers: Controllers, rules: &'static [Rule]| {
            if self.controllers.contains(&controllers) { rules } else { &[] }
        };
        of(Controllers::Core, RULES).iter().chain(of(Controllers::Ipam, IPAM_RULES))
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
        kinds.extend(self.own_rules().map(|rule| (rule.group.to_owned(), rule.kind.to_owned())));
        for (group, kind) in self.providers.kinds() {
            let Some(served) = self.providers.served(&group, &kind).filter(|served| self.runs(served.duty)) else {
                continue;
            };
            if served.duty == Duty::InfraMachine && self.providers.has_template(&group, &kind) {
                kinds.push((group.clone(), format!("{kind}Template")));
            }
            kinds.push((group, kind));
        }
        kinds
    }

    fn decide(&self, key: &ObjectKey, view: &dyn View, now: u64) -> Result<Plan, NotNow> {
        if let Some(rule) = self.own_rules().find(|rule| rule.group == key.group && rule.kind == key.kind) {
            return (rule.decide)(key, view, now);
        }
        if let Some(kind) = key.kind.strip_suffix("Template")
            && view.served(&key.group, &key.kind).is_none()
        {
            let machines = view.served(&key.group, kind).filter(|served| served.duty == Duty::InfraMachine);
            return Ok(match (machines, view.get(&Place::Management, key)?) {
                (Some(served), Some(template)) if self.runs(served.duty) => {
                    self.capacities.decide(&self.providers, &template, now)
                }
                _ => Plan::nothing(),
            });
        }
        match view.served(&key.group, &key.kind) {
            Some(served) if self.runs(served.duty) => decide_served(key, &served, view, now),
            _ => Ok(Plan::nothing()),
        }
    }
}
