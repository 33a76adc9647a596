//! One turn: an instance of a component that serves one object and is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use capstan_core::contract::{Effect, Granted, KnownPart, ProviderError};
use capstan_core::turn::{Call, Fence, Outcome, Reply, TurnInput, no_fence};
use capstan_gateway::{Declared, Gateway, Session, TurnScope};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::Instrument;
use wasmtime::component::Instance;
use wasmtime::{Store, Trap, UpdateDeadline};

use crate::check;
use crate::limits::{Broken, Meter, Metered};
use crate::module::{Code, Loaded};
use crate::recording::{RecordedCall, Recorder};
use crate::slots::Slot;
use crate::state::{Requests, Sends, State, describe};

/// One instance serving one object for one turn. Dropping it ends the turn.
pub struct Turn {
    module: Arc<Loaded>,
    input: Arc<TurnInput>,
    session: Session,
    meter: Arc<Meter>,
    /// The store and its instance; away while a call runs, and gone after a violation.
    instance: Option<(Store<State>, Instance)>,
    violated: Option<String>,
    name: Arc<str>,
    /// Where and what is recorded of the turn.
    recorder: Option<Recorder>,
    /// Dropped last: the place is free when the instance is gone.
    _slot: Slot,
}

/// A task that ends when nobody waits for it any more.
struct Guest<T>(JoinHandle<T>);

impl<T> Drop for Guest<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a guest's task leaves: the call's result, and the store where it is still of use.
type Left = (wasmtime::Result<Result<Reply, ProviderError>>, Box<(Store<State>, Instance)>);

impl Turn {
    pub(crate) async fn begin(
        module: Arc<Loaded>,
        name: &str,
        input: TurnInput,
        gateway: &Arc<Gateway>,
    ) -> Result<Self, String> {
        let recorder = Recorder::of(&module, name, &input);
        let declared = module.declared.clone();
        let mut turn = Self::begin_with(module, name, input, gateway, &declared).await?;
        if recorder.is_some() {
            turn.session.start_recording();
        }
        turn.recorder = recorder;
        Ok(turn)
    }

    pub(crate) async fn begin_with(
        module: Arc<Loaded>,
        name: &str,
        input: TurnInput,
        gateway: &Arc<Gateway>,
        declared: &[Declared],
    ) -> Result<Self, String> {
        let engine = module.engine.clone();
        let input = Arc::new(input);
        let slot = engine.slots.take(input.subject.namespace()).await.ok_or("the engine is shutting down")?;
        let limits = module.limits;
        let scope = TurnScope {
            module: name.to_owned(),
            object: input.subject.key(),
            input: Some(input.clone()),
            limits: capstan_gateway::Limits {
                requests: limits.requests,
                time: engine.config.maxima.turn,
                ..capstan_gateway::Limits::default()
            },
        };
        let session = gateway.session(scope, declared);
        let meter = Arc::new(Meter::new(limits.cpu));
        let name: Arc<str> = name.into();
        let memory = usize::try_from(limits.memory).unwrap_or(usize::MAX);
        let state = State::new(name.clone(), input.clone(), memory, meter.clone());

        let mut store = Store::new(&engine.wasmtime, state);
        store.limiter(|state| &mut state.memory);
        store.set_hostcall_fuel(32 << 20);
        store.set_max_component_handles(10_000);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|context| {
            context.data().meter.check_running()?;
            Ok(UpdateDeadline::Yield(1))
        });
        // Instantiating may run code of the guest.
        let own = module.clone();
        let guest = async move {
            let Code::V0_1(pre) = &own.code;
            let instance = pre.instantiate(&mut store).await?;
            Ok((store, instance))
        };
        let guest = Metered { engine: engine.clone(), meter: meter.clone(), guest: Box::pin(guest) };
        let threads = engine.guests().ok_or("the engine is shutting down")?;
        let mut task = Guest(threads.spawn(guest));
        let instance = match (&mut task.0).await {
            Ok(Ok(instance)) => instance,
            Ok(Err(error)) => return Err(format!("the component cannot be instantiated: {}", explain(&error))),
            Err(error) => return Err(format!("the component cannot be instantiated: {error}")),
        };
        let instance = Some(instance);
        Ok(Self { module, input, session, meter, instance, violated: None, name, recorder: None, _slot: slot })
    }

    /// Calls the guest. `may_change` is asked right before a changing request is sent; when it says no, the request is
    /// refused and not sent. A trap, a spent budget or a forbidden answer is [`ProviderError::Violated`], and the rest of
    /// the turn says the same.
    pub async fn call(
        &mut self,
        call: Call,
        known: BTreeMap<String, KnownPart>,
        granted: Granted,
        may_change: &Fence,
    ) -> Outcome {
        let subject = &self.input.subject;
        let (name, sends) = describe(&call);
        let span = tracing::debug_span!(
            "provider.call",
            provider = &*self.name,
            kind = subject.kind(),
            namespace = subject.namespace(),
            name = subject.name(),
            uid = subject.uid(),
            generation = subject.generation(),
            call = name,
        );
        let asked = self.recorder.is_some().then(|| RecordedCall::asked(&self.input, &call, &known, &granted));
        let outcome = self.call_described(call, (name, sends), known, granted, may_change).instrument(span).await;
        if let (Some(recorder), Some(asked)) = (&mut self.recorder, asked) {
            recorder.push(asked.answered(self.session.take_recorded(), &outcome));
        }
        outcome
    }

    /// One call of a recording: what is recorded of it now.
    pub(crate) async fn call_again(&mut self, recorded: &RecordedCall) -> RecordedCall {
        let RecordedCall { call, known, granted, .. } = recorded.clone();
        if let Some((store, _)) = &mut self.instance {
            store.data_mut().fingerprints.clone_from(&recorded.fingerprints);
        }
        let outcome = self.call(call, known, granted, &no_fence()).await;
        recorded.clone().answered(self.session.take_recorded(), &outcome)
    }

    pub(crate) fn start_recording(&mut self) {
        self.session.start_recording();
    }

    async fn call_described(
        &mut self,
        call: Call,
        (name, sends): (String, Sends),
        known: BTreeMap<String, KnownPart>,
        granted: Granted,
        may_change: &Fence,
    ) -> Outcome {
        self.session.begin_call();
        let Some(mut instance) = self.instance.take() else {
            let rule = self.violated.clone().unwrap_or_else(|| "an earlier call of this turn was given up".to_owned());
            return Outcome { reply: Err(ProviderError::Violated(rule)), effect: Effect::NotSent };
        };
        let began = std::time::Instant::now();
        let (http, mut asked) = mpsc::unbounded_channel();
        let state = instance.0.data_mut();
        state.known = known;
        state.granted = granted;
        state.call.clone_from(&name);
        state.sends = sends;
        state.http = Some(http);
        let module = self.module.clone();
        let guest = async move {
            let Code::V0_1(pre) = &module.code;
            let (store, handle) = &mut instance;
            let result = pre.call(store, handle, &call).await;
            // Nobody is left to ask.
            store.data_mut().http = None;
            let left: Left = (result, Box::new(instance));
            Ok(left)
        };
        let engine = self.module.engine.clone();
        let guest = Metered { engine: engine.clone(), meter: self.meter.clone(), guest: Box::pin(guest) };
        let Some(threads) = engine.guests() else {
            return self.violated(&name, "the engine is shutting down".to_owned());
        };
        let mut task = Guest(threads.spawn(guest));
        let gateway_call =
            capstan_gateway::Call { name: &name, may_change: sends == Sends::Changes, still_may_change: may_change };
        let joined = loop {
            tokio::select! {
                biased;
                Some(ask) = asked.recv() => {
                    let answers = match ask.requests {
                        Requests::One(request) => vec![self.session.send(gateway_call, *request).await],
                        Requests::Reads(requests) => self.session.read_all(gateway_call, requests).await,
                    };
                    // The guest may be gone by now: it was stopped while it waited.
                    let _ = ask.answer.send(answers);
                }
                joined = &mut task.0 => break joined,
            }
        };
        let outcome = match joined {
            Ok(Ok((Ok(reply), instance))) => {
                let checked = match &reply {
                    Ok(reply) => check::reply(reply),
                    Err(error) => check::error(error),
                };
                match checked {
                    Ok(()) => {
                        self.instance = Some(*instance);
                        Outcome { reply, effect: self.session.effect() }
                    }
                    Err(rule) => self.violated(&name, rule),
                }
            }
            Ok(Ok((Err(error), instance))) => {
                let mut rule = explain(&error);
                if let Some(words) = &instance.0.data().last_words {
                    rule = format!("{rule} (its last words: {words})");
                }
                self.violated(&name, rule)
            }
            Ok(Err(error)) => self.violated(&name, explain(&error)),
            Err(_) => self.violated(&name, "its task was stopped".to_owned()),
        };
        tracing::debug!(ok = outcome.reply.is_ok(), effect = ?outcome.effect, took = ?began.elapsed(), "returned");
        outcome
    }

    /// CPU time that the guest has used in this turn.
    pub fn cpu_time(&self) -> std::time::Duration {
        self.meter.spent()
    }

    fn violated(&mut self, call: &str, rule: String) -> Outcome {
        let rule = format!("{call}: {rule}");
        tracing::warn!(
            provider = &*self.name,
            kind = self.input.subject.kind(),
            namespace = self.input.subject.namespace(),
            name = self.input.subject.name(),
            rule,
            "a provider component broke the contract"
        );
        self.violated = Some(rule.clone());
        Outcome { reply: Err(ProviderError::Violated(rule)), effect: self.session.effect() }
    }
}

/// Why a store ended, for a person.
pub(crate) fn explain(error: &wasmtime::Error) -> String {
    if let Some(Broken(rule)) = error.downcast_ref::<Broken>() {
        return rule.clone();
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::StackOverflow) => "it trapped: its calls are nested too deeply".to_owned(),
        Some(Trap::UnreachableCodeReached) => "it trapped: it gave up (a panic, most likely)".to_owned(),
        Some(trap) => format!("it trapped: {trap}"),
        None => error.root_cause().to_string(),
    }
}
