//! The turn of a control plane: what it needs, the planner's step, and its carrying out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capstan_api::{Object, ObjectKey};
use serde_json::{Value, json};

use super::machines::{NewMachine, new_name};
use super::members::MemberOf;
use super::{finalizer_of, status};
use crate::contract::{ControlPlaneDecision, ControlPlaneStep, Served};
use crate::difference::merge_patch;
use crate::needs::Offers;
use crate::plan::{EventNote, Plan, WorkloadWrite, Write};
use crate::provider::{self, Problem, code};
use crate::record::MEMORY;
use crate::script::{Halt, Replay, Routine};
use crate::turn::{Call, Reply};

/// The turn of a control plane.
#[derive(Clone, Debug)]
pub(super) struct PlanningRoutine {
    pub subject: Arc<Object>,
    pub cluster: Arc<Object>,
    pub served: Served,
    pub members: Vec<MemberOf>,
    pub template: Option<Arc<Object>>,
    pub offers: Offers,
    pub initialized: bool,
    /// There is infrastructure and an endpoint; before that only certificates are made.
    pub may_plan: bool,
    pub last_pause: Option<u64>,
}

impl Routine for PlanningRoutine {
    fn run(&self, replay: &mut Replay<'_>) -> Result<Plan, Halt> {
        let grant = match self.offers.grant(replay, BTreeMap::new)? {
            Ok(grant) => grant,
            Err(problem) => {
                let mut plan = Plan::nothing();
                self.end(&mut plan, None, Some((problem, true)), replay.now());
                return Ok(plan);
            }
        };
        let mut plan = Plan::nothing();
        if !self.may_plan {
            self.end(&mut plan, None, None, replay.now());
            return Ok(plan);
        }
        let decision = match replay.call(Call::PlanControlPlane, BTreeMap::new, &grant.granted)?.reply {
            Ok(Reply::Decision(decision)) => decision,
            other => {
                let problem = match other {
                    Err(error) => Problem::of(&error, "planning the control plane"),
                    Ok(_) => Problem::violated("control-plane.plan answered with something else"),
                };
                self.end(&mut plan, None, Some((problem, false)), replay.now());
                return Ok(plan);
            }
        };
        let problem = self.carry_out(replay, &decision, &mut plan)?;
        let now = replay.now();
        self.end(&mut plan, Some(&decision), problem.map(|problem| (problem, false)), now);
        Ok(plan)
    }
}

impl PlanningRoutine {
    /// What goes on record with a step: the finalizer before there are machines, and the planner's memory.
    fn on_record(&self, decision: &ControlPlaneDecision, machines: bool) -> Option<Write> {
        let mut new = Object::clone(&self.subject);
        let finalizer = finalizer_of(&self.subject);
        if machines && !new.has_finalizer(&finalizer) {
            let mut all: Vec<String> = new.finalizers().into_iter().map(str::to_owned).collect();
            all.push(finalizer);
            new.set("/metadata/finalizers", json!(all));
        }
        let remembered = new.annotation(MEMORY).and_then(|text| serde_json::from_str::<Value>(text).ok());
        let empty = decision.memory.is_null() || decision.memory == json!({});
        if empty {
            new.remove(&format!("/metadata/annotations/{}", MEMORY.replace('/', "~1")));
        } else if remembered.as_ref() != Some(&decision.memory) {
            new.set_annotation(MEMORY, &decision.memory.to_string());
        }
        let patch = merge_patch(self.subject.at("/metadata")?, new.at("/metadata")?)?;
        let guarded = patch.get("finalizers").is_some();
        Some(Write::Patch {
            key: self.subject.key(),
            patch: json!({ "metadata": patch }),
            resource_version: guarded.then(|| self.subject.resource_version().to_owned()),
        })
    }

    fn member(&self, name: &str) -> Result<&MemberOf, Problem> {
        let found = self.members.iter().find(|member| member.machine.name() == name);
        found.ok_or_else(|| Problem::violated(format!("the step names machine {name:?}, which is no member")))
    }

    /// Carries the step out; what keeps it from being carried out is a problem.
    fn carry_out(
        &self,
        replay: &mut Replay<'_>,
        decision: &ControlPlaneDecision,
        plan: &mut Plan,
    ) -> Result<Option<Problem>, Halt> {
        if let ControlPlaneStep::CreateMachine { failure_domain, kubernetes_version, bootstrap } = &decision.step {
            let Some(template) = &self.template else {
                let message = "the infrastructure template that spec.machineTemplate refers to is not there";
                return Ok(Some(Problem::new("InfrastructureTemplateMissing", message)));
            };
            let new = NewMachine {
                control_plane: &self.subject,
                cluster: self.cluster.name(),
                template,
                version: kubernetes_version,
                failure_domain: failure_domain.as_deref(),
                bootstrap,
            };
            return self.create(replay, decision, &new, plan);
        }
        plan.writes.extend(self.on_record(decision, !self.members.is_empty()));
        Ok(self.step(&decision.step, plan).err())
    }

    fn create(
        &self,
        replay: &mut Replay<'_>,
        decision: &ControlPlaneDecision,
        new: &NewMachine<'_>,
        plan: &mut Plan,
    ) -> Result<Option<Problem>, Halt> {
        let name = new_name(&self.subject, replay.now());
        let mut writes: Vec<Write> = self.on_record(decision, true).into_iter().collect();
        writes.push(Write::Create(new.machine(&name)));
        let written = replay.write(writes)?;
        let Some(machine) = written.into_iter().flatten().find(|object| object.kind() == "Machine") else {
            return Ok(Some(Problem::new("MachineNotSeen", format!("Machine {name} was made and is not seen yet"))));
        };
        plan.writes.push(Write::Create(new.infrastructure(&machine)));
        plan.writes.push(Write::Create(new.bootstrap(&machine)));
        plan.events.push(self.event(true, "MachineCreated", format!("created Machine {name}")));
        Ok(None)
    }

    fn step(&self, step: &ControlPlaneStep, plan: &mut Plan) -> Result<(), Problem> {
        match step {
            ControlPlaneStep::CreateMachine { .. } | ControlPlaneStep::Wait(_) | ControlPlaneStep::Settled => {}
            ControlPlaneStep::ChangeMachine { machine, bootstrap } => {
                let Some(config) = &self.member(machine)?.bootstrap else {
                    return Err(Problem::new(
                        "BootstrapConfigMissing",
                        format!("Machine {machine} has none to change"),
                    ));
                };
                let none = Value::Null;
                if let Some(patch) = merge_patch(config.at("/spec").unwrap_or(&none), bootstrap) {
                    let patch = json!({ "spec": patch });
                    plan.writes.push(Write::Patch { key: config.key(), patch, resource_version: None });
                }
            }
            ControlPlaneStep::DeleteMachine { machine, reason } => {
                let member = self.member(machine)?;
                if !member.machine.is_deleting() {
                    let uid = member.machine.uid().to_owned();
                    plan.writes.push(Write::Delete { key: member.machine.key(), uid });
                    let message = format!("deleting Machine {machine}: {}", reason.message);
                    plan.events.push(self.event(true, &code(&reason.code), message));
                }
            }
            ControlPlaneStep::ApplyWorkload(label, value) => {
                let object = self.declared(label, value)?;
                self.workload(plan, WorkloadWrite::Apply(object));
            }
            ControlPlaneStep::DeleteWorkload(label) => {
                let Some(wanted) = self.served.workload_objects.get(label) else { return Err(undeclared(label)) };
                let key = ObjectKey::new(&wanted.group, &wanted.kind, &wanted.namespace, &wanted.name);
                self.workload(plan, WorkloadWrite::Delete { version: wanted.version.clone(), key });
            }
            ControlPlaneStep::MoveEtcdLeader(..) | ControlPlaneStep::RemoveEtcdMember(_) => {
                let message = "the planner wants to change etcd's members, which this version cannot do";
                return Err(Problem::new("StepNotSupported", message));
            }
        }
        Ok(())
    }

    /// An object that the manifest declares, and no other.
    fn declared(&self, label: &str, value: &Value) -> Result<Object, Problem> {
        let Some(wanted) = self.served.workload_objects.get(label) else { return Err(undeclared(label)) };
        let object = Object::from_value(value.clone()).unwrap_or_default();
        let gvk = object.gvk();
        let same = (&gvk.group, &gvk.version, &gvk.kind) == (&wanted.group, &wanted.version, &wanted.kind)
            && (object.namespace(), object.name()) == (wanted.namespace.as_str(), wanted.name.as_str());
        if same {
            Ok(object)
        } else {
            Err(Problem::violated(format!(
                "what is to be applied as {label:?} is another object than the manifest says"
            )))
        }
    }

    fn workload(&self, plan: &mut Plan, write: WorkloadWrite) {
        plan.writes.push(Write::Workload {
            namespace: self.cluster.namespace().to_owned(),
            cluster: self.cluster.name().to_owned(),
            write: Box::new(write),
        });
    }

    fn event(&self, normal: bool, reason: &str, message: String) -> EventNote {
        EventNote { regarding: self.subject.key(), normal, reason: reason.into(), message }
    }

    /// The status, and when to look again. `problem` with `true`: it is about certificates.
    fn end(
        &self,
        plan: &mut Plan,
        decision: Option<&ControlPlaneDecision>,
        problem: Option<(Problem, bool)>,
        now: u64,
    ) {
        if let Some((problem, _)) = &problem {
            plan.events.extend(provider::warning(&self.subject, problem));
        }
        status::write(self, plan, decision, problem.as_ref(), now);
        match (&problem, decision.and_then(|decision| decision.look_again_after)) {
            (Some((problem, _)), _) => {
                let pause = provider::pause(std::slice::from_ref(problem), self.last_pause);
                if let Some(pause) = pause {
                    plan.look_again_in(Duration::from_millis(pause));
                }
            }
            (None, Some(after)) => plan.look_again_in(Duration::from_millis(after.max(100))),
            (None, None) => plan.look_again_in(Duration::from_millis(provider::resync(&self.subject.key()))),
        }
    }
}

fn undeclared(label: &str) -> Problem {
    Problem::violated(format!("workload object {label:?} is not declared in the manifest"))
}
