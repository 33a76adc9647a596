//! The functions of a component that are pure over their arguments: conversion between versions, validation, what a
//! machine offers. They are asked for outside any turn, by an API server that waits for the answer, so they neither take
//! a turn's place nor wait for one; a few at a time have places of their own.

use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use capstan_api::Object;
use capstan_core::contract::{Reason, Violation};
use capstan_core::turn::TurnInput;
use serde_json::Value;
use wasmtime::{Store, UpdateDeadline};

use crate::engine::Inner;
use crate::limits::{Meter, Metered};
use crate::module::{Code, Loaded, Module};
use crate::state::State;
use crate::turn::explain;

/// Pure calls at the same time.
pub(crate) const PLACES: u32 = 4;
/// How long an answer is waited for. The limit of CPU time comes first, unless the machine is very busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest object that a guest may return, in bytes: an API server takes no larger one.
const MAX_OBJECT: usize = 3 << 20;
/// The most violations, and the longest text in one, in bytes.
const MAX_VIOLATIONS: usize = 256;
const MAX_TEXT: usize = 4 << 10;

/// What is asked.
pub(crate) enum Question {
    /// `kinds.convert`: the object and the version.
    Convert(String, String),
    /// `kinds.validate`: the object as it was, and as it is to be.
    Validate(Option<String>, String),
    /// `infra-machine.capacity`, with the template as the subject.
    Capacity,
}

/// What was answered.
pub(crate) enum Answer {
    Converted(Result<String, Reason>),
    Violations(Vec<Violation>),
    Capacity(Vec<(String, String)>),
}

/// Counts the places that are free.
pub(crate) struct Places {
    free: Mutex<u32>,
    freed: Condvar,
}

impl Places {
    pub(crate) fn new() -> Self {
        Self { free: Mutex::new(PLACES), freed: Condvar::new() }
    }

    fn take(&self) -> Option<Place<'_>> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.freed.wait_timeout_while(free, PATIENCE, |free| *free == 0);
        let (mut free, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Place(self))
    }
}

struct Place<'a>(&'a Places);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

impl Module {
    /// `kinds.convert`: an object in another version of its kind (`v1alpha2`). Blocks for a moment.
    ///
    /// # Errors
    /// Why not, for a person: what the provider says, or the rule that it broke.
    pub fn convert(&self, object: &Value, version: &str) -> Result<Value, String> {
        let question = Question::Convert(object.to_string(), version.to_owned());
        let Answer::Converted(answer) = ask(&self.inner, question, TurnInput::default())? else {
            return Err("kinds.convert answered with something else".to_owned());
        };
        let text = answer.map_err(|why| why.message)?;
        if text.len() > MAX_OBJECT {
            return Err(format!("the converted object has {} bytes; {MAX_OBJECT} are allowed", text.len()));
        }
        let converted: Value =
            serde_json::from_str(&text).map_err(|error| format!("the converted object is not JSON: {error}"))?;
        // A provider says what is in an object, and not which object it is.
        let same = |field: &str| converted.get(field) == object.get(field);
        let named = |object: &Value| object.pointer("/metadata/name").cloned();
        let group = |object: &Value| {
            let version = object.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
            version.rsplit_once('/').map(|(group, version)| (group.to_owned(), version.to_owned()))
        };
        let wanted = group(object).map(|(group, _)| (group, version.to_owned()));
        if !same("kind") || named(&converted) != named(object) || group(&converted) != wanted {
            return Err(format!("the converted object is not the same object in version {version}"));
        }
        Ok(converted)
    }

    /// `kinds.validate`: the rules that an object breaks, by JSON pointer. Blocks for a moment.
    ///
    /// # Errors
    /// The rule of the contract that the provider broke.
    pub fn validate(&self, old: Option<&Value>, new: &Value) -> Result<Vec<Violation>, String> {
        let question = Question::Validate(old.map(Value::to_string), new.to_string());
        match ask(&self.inner, question, TurnInput::default())? {
            Answer::Violations(mut all) => {
                all.truncate(MAX_VIOLATIONS);
                for violation in &mut all {
                    cut(&mut violation.path);
                    cut(&mut violation.message);
                }
                Ok(all)
            }
            _ => Err("kinds.validate answered with something else".to_owned()),
        }
    }

    /// `infra-machine.capacity`: what a machine of this template offers, as Kubernetes quantities. Blocks for a moment.
    ///
    /// # Errors
    /// The rule of the contract that the provider broke.
    pub fn capacity(&self, template: &Object) -> Result<Vec<(String, String)>, String> {
        let input = TurnInput { subject: template.clone(), ..TurnInput::default() };
        match ask(&self.inner, Question::Capacity, input)? {
            Answer::Capacity(all) => {
                let odd = |text: &str| text.is_empty() || text.len() > 253;
                match all.iter().find(|(name, value)| odd(name) || odd(value)) {
                    Some((name, value)) => {
                        Err(format!("the capacity {name:?} of {value:?} is no resource and quantity"))
                    }
                    None => Ok(all),
                }
            }
            _ => Err("infra-machine.capacity answered with something else".to_owned()),
        }
    }
}

fn cut(text: &mut String) {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}

/// Asks a fresh instance, on a thread for guests, and waits.
fn ask(module: &Arc<Loaded>, question: Question, input: TurnInput) -> Result<Answer, String> {
    let engine: &Arc<Inner> = &module.engine;
    let threads = engine.guests().ok_or("the engine is shutting down")?;
    let _place = engine.pure.take().ok_or("too many conversions and validations are under way; try again")?;
    let meter = Arc::new(Meter::new(module.limits.cpu));
    let memory = usize::try_from(module.limits.memory).unwrap_or(usize::MAX);
    let mut state = State::new(module.name().into(), Arc::new(input), memory, meter.clone());
    state.call = match question {
        Question::Convert(..) => "convert",
        Question::Validate(..) => "validate",
        Question::Capacity => "capacity",
    }
    .to_owned();
    let own = module.clone();
    let guest = async move {
        let mut store = Store::new(&own.engine.wasmtime, state);
        store.limiter(|state| &mut state.memory);
        store.set_hostcall_fuel(32 << 20);
        store.set_max_component_handles(10_000);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|context| {
            context.data().meter.check_running()?;
            Ok(UpdateDeadline::Yield(1))
        });
        let Code::V0_1(pre) = &own.code;
        let instance = pre.instantiate(&mut store).await?;
        pre.answer(&mut store, &instance, question).await
    };
    let guest = Metered { engine: engine.clone(), meter, guest: Box::pin(guest) };
    let (tell, told) = mpsc::sync_channel(1);
    let task = threads.spawn(async move {
        let _ = tell.send(guest.await);
    });
    match told.recv_timeout(PATIENCE) {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(explain(&error)),
        Err(_) => {
            task.abort();
            Err("no answer came in time".to_owned())
        }
    }
}
