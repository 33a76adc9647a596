//! The planner: machines in, one step out.

use std::collections::BTreeMap;

use capstan_provider::{
    Condition, Reason, Result,
    control_plane::{Decision, Member, Step, View},
    json, time,
};
use serde::{Deserialize, Serialize};

use crate::{
    bootstrap::Desired,
    spec::{KubeadmControlPlane, KubeadmControlPlaneStatus},
};

/// When to ask again while something outside the management cluster has to happen (ms).
const LOOK_AGAIN: u64 = 2_000;
const DAY: u64 = 24 * 3600 * 1000;

/// What is remembered between turns: a removal is several steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Memory {
    #[serde(skip_serializing_if = "Option::is_none")]
    removing: Option<Removing>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Removing {
    machine: String,
    code: String,
    message: String,
    /// Its etcd member was there; once it is gone the machine can go.
    had_etcd: bool,
}

/// A member and why it is to be replaced.
struct Judged<'a> {
    member: &'a Member,
    outdated: Vec<Reason>,
}

impl Judged<'_> {
    fn healthy(&self) -> bool {
        self.member.ready && self.member.unhealthy.is_empty()
    }
}

struct Planner<'a> {
    spec: &'a KubeadmControlPlane,
    version: &'a str,
    view: &'a View,
    desired: Desired,
    judged: Vec<Judged<'a>>,
    memory: Memory,
}

/// The next step towards `spec`.
pub fn plan(spec: &KubeadmControlPlane, version: &str, template: &str, view: &View, now: u64) -> Result<Decision> {
    let desired = Desired::of(spec, version)?;
    let judged = view
        .members
        .iter()
        .map(|member| Judged { member, outdated: outdated(spec, version, template, &desired, member, now) })
        .collect();
    let memory = serde_json::from_str::<Option<Memory>>(&view.memory).ok().flatten().unwrap_or_default();
    let mut planner = Planner { spec, version, view, desired, judged, memory };
    let step = planner.step()?;
    let look_again_after = matches!(step, Step::Wait(_)).then_some(LOOK_AGAIN);
    let up_to_date = planner.judged.iter().filter(|judged| judged.outdated.is_empty()).count();
    Ok(Decision {
        conditions: planner.conditions(&step),
        step,
        look_again_after,
        status: json::text(&KubeadmControlPlaneStatus { up_to_date_replicas: i32::try_from(up_to_date).ok() })?,
        memory: json::text(&planner.memory)?,
    })
}

/// Why a machine is not what the spec wants.
fn outdated(
    spec: &KubeadmControlPlane,
    version: &str,
    template: &str,
    desired: &Desired,
    member: &Member,
    now: u64,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut because = |code: &str, message: String| reasons.push(Reason::new(code, message));
    if member.kubernetes_version.as_deref().is_some_and(|current| current != version) {
        let current = member.kubernetes_version.clone().unwrap_or_default();
        because("VersionChanged", format!("version {current}, {version} wanted"));
    }
    if let Some(current) = member.cloned_from.as_deref().filter(|current| *current != template) {
        because("InfrastructureTemplateChanged", format!("made from template {current}, {template} wanted"));
    }
    if member.bootstrap.as_deref().is_some_and(|bootstrap| !desired.fits(bootstrap)) {
        because("KubeadmConfigChanged", "kubeadmConfigSpec has changed since it was made".to_owned());
    }
    let rollout = spec.rollout.as_ref();
    let days = rollout.and_then(|rollout| rollout.before.as_ref()?.certificates_expiry_days);
    if let (Some(days), Some(expiry)) = (days.and_then(|days| u64::try_from(days).ok()), member.certificate_expiry)
        && expiry <= now.saturating_add(days * DAY)
    {
        because("CertificatesExpireSoon", format!("its certificates expire within {days} days"));
    }
    let after = rollout.and_then(|rollout| time::milliseconds(rollout.after.as_deref()?));
    if after.is_some_and(|after| after <= now && now.saturating_sub(member.age) < after) {
        because("RolloutAfter", "it was made before spec.rollout.after".to_owned());
    }
    reasons
}

fn wait(code: &str, message: impl Into<String>) -> Step {
    Step::Wait(Reason::new(code, message))
}

impl Planner<'_> {
    fn step(&mut self) -> Result<Step> {
        let wanted = usize::try_from(self.view.replicas).unwrap_or(usize::MAX);
        if self.judged.is_empty() {
            self.memory.removing = None;
            return if wanted == 0 { Ok(Step::Settled) } else { self.create() };
        }
        if let Some(step) = self.go_on_removing() {
            return Ok(step);
        }
        if let Some(deleting) = self.judged.iter().find(|judged| judged.member.deleting) {
            return Ok(wait("MachineDeleting", format!("machine {} is being deleted", deleting.member.name)));
        }
        if !self.view.initialized {
            return Ok(self.before_initialization());
        }
        if let Some(step) = self.stray_member() {
            return Ok(step);
        }
        if let Some(step) = self.remediate() {
            return Ok(step);
        }
        let count = self.judged.len();
        let old = self.judged.iter().filter(|judged| !judged.outdated.is_empty()).count();
        let most = wanted.saturating_add(if old > 0 { self.spec.max_surge() } else { 0 });
        if count < most {
            return match self.unhealthy_except(None) {
                Some(step) => Ok(step),
                None => self.create(),
            };
        }
        if old == 0 && count == wanted {
            return Ok(self.unhealthy_except(None).unwrap_or(Step::Settled));
        }
        let Some(victim) = self.victim() else { return Ok(Step::Settled) };
        let name = victim.member.name.clone();
        let reason = match victim.outdated.first() {
            Some(reason) => reason.clone(),
            None => Reason::new("ScalingDown", format!("{count} machines, {wanted} wanted")),
        };
        Ok(self.unhealthy_except(Some(&name)).unwrap_or_else(|| self.remove(&name, reason)))
    }

    /// The first machine; one more machine.
    fn create(&self) -> Result<Step> {
        let first = self.judged.is_empty() && !self.view.initialized;
        Ok(Step::CreateMachine {
            failure_domain: self.failure_domain(),
            kubernetes_version: self.version.to_owned(),
            bootstrap: json::text(if first || self.judged.is_empty() {
                &self.desired.init
            } else {
                &self.desired.join
            })?,
        })
    }

    /// Where the fewest up-to-date machines are, then where the fewest are; the first of equals.
    fn failure_domain(&self) -> Option<String> {
        let count = |domain: &str, up_to_date: bool| {
            let there = |judged: &&Judged<'_>| judged.member.failure_domain.as_deref() == Some(domain);
            self.judged.iter().filter(there).filter(|judged| !up_to_date || judged.outdated.is_empty()).count()
        };
        let least = self.view.failure_domains.iter().min_by_key(|domain| (count(domain, true), count(domain, false)));
        least.cloned()
    }

    fn before_initialization(&mut self) -> Step {
        match self.judged.as_slice() {
            [only] if only.member.remediate => {
                let (name, reason) = (only.member.name.clone(), "a health check asked for its replacement");
                self.remove(&name, Reason::new("Remediation", reason))
            }
            [first, ..] => wait(
                "WaitingForInitialization",
                format!("machine {} has not set the control plane up yet", first.member.name),
            ),
            [] => wait("WaitingForInitialization", "there is no machine yet"),
        }
    }

    /// A machine that is not healthy, other than the one that is to go.
    fn unhealthy_except(&self, name: Option<&str>) -> Option<Step> {
        let sick: Vec<String> = self
            .judged
            .iter()
            .filter(|judged| name != Some(judged.member.name.as_str()) && !judged.healthy())
            .map(|judged| match judged.member.unhealthy.first() {
                Some(reason) => format!("{} ({})", judged.member.name, reason.message),
                None => judged.member.name.clone(),
            })
            .collect();
        (!sick.is_empty()).then(|| wait("WaitingForMachines", format!("not healthy yet: {}", sick.join(", "))))
    }

    /// Outdated and unhealthy, then outdated, then any; of those in the failure domain with the most, the oldest.
    fn victim(&self) -> Option<&Judged<'_>> {
        let group = |judged: &Judged<'_>| match (judged.outdated.is_empty(), judged.healthy()) {
            (false, false) => 0,
            (false, true) => 1,
            (true, _) => 2,
        };
        let best = self.judged.iter().map(group).min()?;
        let mut sizes: BTreeMap<Option<&str>, usize> = BTreeMap::new();
        for judged in &self.judged {
            *sizes.entry(self.known_domain(judged)).or_default() += 1;
        }
        self.judged.iter().filter(|judged| group(judged) == best).max_by_key(|judged| {
            let domain = self.known_domain(judged);
            (domain.is_none(), sizes.get(&domain).copied().unwrap_or(0), judged.member.age)
        })
    }

    fn known_domain<'b>(&self, judged: &'b Judged<'_>) -> Option<&'b str> {
        judged.member.failure_domain.as_deref().filter(|domain| self.view.failure_domains.iter().any(|d| d == domain))
    }

    /// An etcd member without a machine takes part in every quorum: it goes, once all machines are there.
    fn stray_member(&self) -> Option<Step> {
        let stray = self.view.stray_etcd_members.as_ref()?.first()?;
        let settled = self.judged.iter().all(|judged| judged.member.ready && judged.member.etcd.is_some());
        settled.then(|| Step::RemoveEtcdMember(stray.id.clone()))
    }

    /// A machine that a health check wants replaced, if etcd keeps its quorum without it.
    fn remediate(&mut self) -> Option<Step> {
        let marked = self.judged.iter().find(|judged| judged.member.remediate)?;
        let name = marked.member.name.clone();
        let blocked = |message: String| Some(wait("RemediationBlocked", message));
        if self.judged.len() < 2 {
            return blocked(format!("machine {name} is the only one: its replacement would lose the control plane"));
        }
        let others = || self.judged.iter().filter(|judged| judged.member.name != name);
        if !others().any(Judged::healthy) {
            return blocked(format!("machine {name} is not replaced while no other machine is healthy"));
        }
        let members = || others().filter_map(|judged| judged.member.etcd.as_ref()).filter(|etcd| !etcd.learner);
        let strays = self.view.stray_etcd_members.iter().flatten().filter(|etcd| !etcd.learner);
        let voting = members().count() + strays.clone().count();
        let healthy = members().filter(|etcd| etcd.healthy).count() + strays.filter(|etcd| etcd.healthy).count();
        if voting > 0 && healthy < voting / 2 + 1 {
            return blocked(format!(
                "machine {name} is not replaced: etcd would have {healthy} healthy of {voting} voting members, \
                 which is no quorum"
            ));
        }
        Some(self.remove(&name, Reason::new("Remediation", "a health check asked for its replacement")))
    }

    /// Begins a removal, which may take several steps.
    fn remove(&mut self, name: &str, reason: Reason) -> Step {
        let had_etcd = self.judged.iter().any(|judged| judged.member.name == name && judged.member.etcd.is_some());
        self.memory.removing =
            Some(Removing { machine: name.to_owned(), code: reason.code, message: reason.message, had_etcd });
        self.go_on_removing().unwrap_or_else(|| wait("MachineDeleting", format!("machine {name} is being deleted")))
    }

    /// Leadership leaves the machine, its member leaves etcd, then it is deleted. `None` where nothing is being removed.
    fn go_on_removing(&mut self) -> Option<Step> {
        let removing = self.memory.removing.clone()?;
        let going = self.judged.iter().find(|judged| judged.member.name == removing.machine && !judged.member.deleting);
        let Some(going) = going else {
            self.memory.removing = None;
            return None;
        };
        let last = self.judged.len() == 1;
        if let Some(etcd) = going.member.etcd.as_ref().filter(|_| !last) {
            let mut others = self.judged.iter().filter(|judged| judged.member.name != removing.machine);
            let heir = others.find_map(|judged| judged.member.etcd.as_ref().filter(|e| e.healthy && !e.learner));
            return Some(match heir {
                None => wait(
                    "WaitingForEtcd",
                    format!("machine {} stays until another etcd member is healthy", removing.machine),
                ),
                Some(heir) if etcd.leader => Step::MoveEtcdLeader(etcd.id.clone(), heir.id.clone()),
                Some(_) => Step::RemoveEtcdMember(etcd.id.clone()),
            });
        }
        // Whether the member is gone can only be told while etcd answers.
        let unknown = self.view.stray_etcd_members.is_none() && removing.had_etcd && !last;
        if unknown {
            let message = format!("machine {} stays until etcd says that its member is gone", removing.machine);
            return Some(wait("WaitingForEtcd", message));
        }
        // One step and nothing before it: there is nothing to remember.
        if !removing.had_etcd {
            self.memory.removing = None;
        }
        Some(Step::DeleteMachine { machine: removing.machine, reason: Reason::new(removing.code, removing.message) })
    }

    fn conditions(&self, step: &Step) -> Vec<Condition> {
        let wanted = usize::try_from(self.view.replicas).unwrap_or(usize::MAX);
        let old: Vec<&Judged<'_>> = self.judged.iter().filter(|judged| !judged.outdated.is_empty()).collect();
        let truth = |kind: &str, yes: bool, true_code: &str, false_code: &str, message: String| {
            let code = if yes { true_code } else { false_code };
            Condition::new(kind, Some(yes), code, message)
        };
        let why: Vec<String> = old
            .iter()
            .filter_map(|judged| Some(format!("{}: {}", judged.member.name, judged.outdated.first()?.message)))
            .collect();
        let waiting = match step {
            Step::Wait(reason) => reason.message.clone(),
            _ => String::new(),
        };
        let mut conditions = vec![
            truth("RollingOut", !old.is_empty(), "RollingOut", "NotRollingOut", why.join("; ")),
            truth("ScalingUp", self.judged.len() < wanted, "ScalingUp", "NotScalingUp", String::new()),
            truth("ScalingDown", self.judged.len() > wanted, "ScalingDown", "NotScalingDown", String::new()),
        ];
        let marked = self.judged.iter().any(|judged| judged.member.remediate);
        let message = if marked { waiting } else { String::new() };
        conditions.push(truth("Remediating", marked, "Remediating", "NotRemediating", message));
        if self.judged.is_empty() {
            return conditions;
        }
        let sick: Vec<String> = self
            .judged
            .iter()
            .flat_map(|judged| judged.member.unhealthy.iter().map(|r| format!("{}: {}", judged.member.name, r.message)))
            .collect();
        let all_ready = self.judged.iter().all(Judged::healthy);
        conditions.push(truth("ControlPlaneComponentsHealthy", all_ready, "Healthy", "NotHealthy", sick.join("; ")));
        if !self.spec.external_etcd() {
            conditions.push(self.etcd_condition());
        }
        conditions
    }

    fn etcd_condition(&self) -> Condition {
        let kind = "EtcdClusterHealthy";
        let seen: Vec<_> = self.judged.iter().filter_map(|j| Some((&j.member.name, j.member.etcd.as_ref()?))).collect();
        if seen.is_empty() {
            return Condition::new(kind, None, "HealthUnknown", "etcd cannot be asked yet");
        }
        let sick: Vec<String> = seen
            .iter()
            .filter(|(_, etcd)| !etcd.healthy || !etcd.alarms.is_empty())
            .map(|(name, etcd)| match etcd.alarms.is_empty() {
                true => format!("the member on {name} does not answer"),
                false => format!("the member on {name} has alarms: {}", etcd.alarms.join(", ")),
            })
            .collect();
        match sick.is_empty() {
            true => Condition::new(kind, Some(true), "Healthy", ""),
            false => Condition::new(kind, Some(false), "NotHealthy", sick.join("; ")),
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
