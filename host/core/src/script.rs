//! A turn written as a straight line.
//!
//! A [`Routine`] reads as if it called the provider and the API server itself. In truth it is run anew after each
//! step with all that it was told so far: what was told already is answered from memory, and the first step that was
//! not is handed out. A routine is a function of its own data and of what it was told, so running it again leads to
//! the same place; a turn has some ten steps, so running it again costs nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use capstan_api::Object;

use crate::contract::{Granted, KnownPart};
use crate::plan::{Plan, Write};
use crate::turn::{Call, Course, Mint, Outcome, Step, Told};

/// Ends a run of the routine: the step to be carried out next.
pub(crate) type Halt = Box<Step>;

/// What is done in a turn.
pub(crate) trait Routine: fmt::Debug + Send + Sync + Clone + 'static {
    /// Runs up to the first step that was not carried out yet, or to the end.
    fn run(&self, replay: &mut Replay<'_>) -> Result<Plan, Halt>;
}

/// A [`Course`] that runs a [`Routine`].
#[derive(Clone)]
pub(crate) struct Script<R> {
    routine: R,
    told: Vec<(Told, u64)>,
}

impl<R: Routine> Script<R> {
    pub(crate) fn course(routine: R) -> Box<dyn Course> {
        Box::new(Self { routine, told: Vec::new() })
    }
}

/// What was told may hold secrets, so it is counted and not shown.
impl<R: fmt::Debug> fmt::Debug for Script<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("routine", &self.routine).field("told", &self.told.len()).finish()
    }
}

impl<R: Routine> Course for Script<R> {
    fn next(&mut self, told: Told, now: u64) -> Step {
        self.told.push((told, now));
        let begun = self.told.first().map_or(now, |(_, now)| *now);
        let mut replay = Replay { told: &self.told, at: 1, now: begun };
        match self.routine.run(&mut replay) {
            Ok(plan) => Step::Finish(plan),
            Err(step) => *step,
        }
    }

    fn boxed(&self) -> Box<dyn Course> {
        Box::new(self.clone())
    }
}

/// What a routine was told so far, and the time at which it was told.
pub(crate) struct Replay<'a> {
    told: &'a [(Told, u64)],
    at: usize,
    now: u64,
}

impl<'a> Replay<'a> {
    /// Milliseconds since the Unix epoch, as of the last answer.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    fn answer(&mut self, step: impl FnOnce() -> Step) -> Result<&'a Told, Halt> {
        let Some((told, now)) = self.told.get(self.at) else { return Err(Box::new(step())) };
        self.at += 1;
        self.now = *now;
        Ok(told)
    }

    /// Calls the guest.
    pub(crate) fn call(
        &mut self,
        call: Call,
        known: impl FnOnce() -> BTreeMap<String, KnownPart>,
        granted: &Granted,
    ) -> Result<Outcome, Halt> {
        match self.answer(|| Step::Call { call, known: known(), granted: granted.clone() })? {
            Told::Called(outcome) => Ok(outcome.clone()),
            _ => Err(astray()),
        }
    }

    /// Writes to the management cluster; the objects as the server returned them.
    pub(crate) fn write(&mut self, writes: Vec<Write>) -> Result<Vec<Option<Object>>, Halt> {
        match self.answer(|| Step::Write(writes))? {
            Told::Written(objects) => Ok(objects.clone()),
            _ => Err(astray()),
        }
    }

    /// Makes something random; `Err` within says why it could not be made.
    pub(crate) fn mint(&mut self, mint: Mint) -> Result<Result<Vec<u8>, String>, Halt> {
        match self.answer(|| Step::Mint(mint))? {
            Told::Minted(bytes) => Ok(Ok(bytes.clone())),
            Told::NotMinted(why) => Ok(Err(why.clone())),
            _ => Err(astray()),
        }
    }
}

/// What was told does not answer the step that was asked for: the turn is given up, and the object decided again.
fn astray() -> Halt {
    let mut plan = Plan::nothing();
    plan.look_again_in(Duration::from_secs(1));
    Box::new(Step::Finish(plan))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Effect;
    use crate::turn::Reply;

    #[derive(Clone, Debug)]
    struct TwoCalls;

    impl Routine for TwoCalls {
        fn run(&self, replay: &mut Replay<'_>) -> Result<Plan, Halt> {
            replay.call(Call::Parts, BTreeMap::new, &Granted::default())?;
            let between = replay.now();
            replay.call(Call::ReportCluster, BTreeMap::new, &Granted::default())?;
            let mut plan = Plan::nothing();
            plan.look_again_in(Duration::from_millis(replay.now() - between));
            Ok(plan)
        }
    }

    #[test]
    fn each_step_is_handed_out_once_and_time_moves_on() {
        let told = || Told::Called(Outcome { reply: Ok(Reply::Parts(Vec::new())), effect: Effect::NotSent });
        let mut course = Script::course(TwoCalls);
        assert!(matches!(course.next(Told::Begin, 10), Step::Call { call: Call::Parts, .. }));
        let mut copy = course.clone();
        assert!(matches!(course.next(told(), 20), Step::Call { call: Call::ReportCluster, .. }));
        assert!(matches!(copy.next(told(), 20), Step::Call { call: Call::ReportCluster, .. }));
        let Step::Finish(plan) = course.next(told(), 50) else { panic!("not finished") };
        assert_eq!(plan.look_again, Some(Duration::from_millis(30)));
    }

    #[test]
    fn an_answer_to_another_question_ends_the_turn() {
        let mut course = Script::course(TwoCalls);
        course.next(Told::Begin, 1);
        let Step::Finish(plan) = course.next(Told::Minted(vec![1]), 2) else { panic!("not finished") };
        assert!(plan.is_empty());
    }
}

/// For tests: carries a turn out against a [`World`](crate::testing::World), with a closure for a guest.
#[cfg(test)]
pub(crate) mod drive {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::json;

    use super::*;
    use crate::testing::World;
    use crate::turn::TurnRequest;

    /// The calls that were made, and the plan that the turn ended with, which is applied.
    pub(crate) fn drive(
        world: &mut World,
        turn: TurnRequest,
        mut guest: impl FnMut(&Call, &Granted) -> Outcome,
    ) -> (Vec<Call>, Plan) {
        let mut course = turn.course;
        let mut told = Told::Begin;
        let mut calls = Vec::new();
        loop {
            world.now += 10;
            told = match course.next(told, world.now) {
                Step::Call { call, granted, .. } => {
                    let outcome = guest(&call, &granted);
                    calls.push(call);
                    Told::Called(outcome)
                }
                Step::Write(writes) => Told::Written(world.apply_writes(&real(writes))),
                Step::Mint(Mint::BootstrapToken { .. }) => Told::Minted(b"abcdef.0123456789abcdef".to_vec()),
                Step::Finish(plan) => {
                    world.apply(&plan);
                    return (calls, plan);
                }
            };
        }
    }

    /// Key pairs whose certificate can be read.
    pub(crate) fn real(writes: Vec<Write>) -> Vec<Write> {
        let mint = |write| match write {
            Write::MintKeyPair(wanted) => {
                let mut secret = wanted.secret;
                let certificate = STANDARD.encode(crate::certificate::tests::CA);
                secret.set("/data", json!({"tls.crt": certificate, "tls.key": "a2V5"}));
                Write::Create(secret)
            }
            other => other,
        };
        writes.into_iter().map(mint).collect()
    }
}
