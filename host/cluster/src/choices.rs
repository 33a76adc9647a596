//! Ids are chosen one after the other.
//!
//! Machines of one set are made in the same moment, and each chooses where it goes (`resources.identify`) by what the
//! remote shows and by what others have chosen ([`Call::Identify`](capstan_core::turn::Call)). If they chose side by
//! side, none would know of another. So within a cluster, one part of one kind is chosen by one object at a time, from
//! the call until the choice is on record, and each is told what was chosen just before it, which no cache shows yet.
//!
//! That is a courtesy and no lock that safety rests on: who has waited for [`PATIENCE`] goes on, so an endpoint that
//! does not answer holds up nothing for long.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capstan_core::turn::TurnInput;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;

/// How long a turn waits for the one before it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a choice is told to others; by then caches show it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What is chosen one after the other: group, kind, namespace, cluster, part.
type Line = (String, String, String, String, String);

/// An id that was chosen, by the object with this uid.
#[derive(Debug)]
struct Recent {
    uid: String,
    id: String,
    at: Instant,
}

type Shared = Arc<tokio::sync::Mutex<Vec<Recent>>>;

/// All lines.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    lines: Mutex<HashMap<Line, Shared>>,
}

/// The turn that chooses now. Dropping it lets the next one choose.
#[derive(Debug)]
pub(crate) struct Choosing {
    uid: String,
    /// `None`: it did not want to wait any longer.
    recent: Option<OwnedMutexGuard<Vec<Recent>>>,
}

impl Choices {
    /// Waits until this turn may choose the part's id, and adds to `reserved` what others have chosen just before.
    pub async fn wait(&self, turn: &Subject, part: &str, reserved: &mut Vec<String>) -> Choosing {
        let line = self.line(turn, part);
        let mut recent = tokio::time::timeout(PATIENCE, line.lock_owned()).await.ok();
        if let Some(recent) = &mut recent {
            recent.retain(|choice| choice.at.elapsed() < REMEMBERED && choice.uid != turn.uid);
            for choice in recent.iter() {
                if !reserved.contains(&choice.id) {
                    reserved.push(choice.id.clone());
                }
            }
        }
        Choosing { uid: turn.uid.clone(), recent }
    }

    fn line(&self, turn: &Subject, part: &str) -> Shared {
        let Subject { group, kind, namespace, cluster, .. } = turn.clone();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        // Lines that nobody stands in and that remember nothing are not kept.
        lines.retain(|_, line| match line.try_lock() {
            Ok(recent) => Arc::strong_count(line) > 1 || recent.iter().any(|choice| choice.at.elapsed() < REMEMBERED),
            Err(_) => true,
        });
        lines.entry((group, kind, namespace, cluster, part.to_owned())).or_default().clone()
    }
}

impl Choosing {
    /// This id was chosen.
    pub fn chose(&mut self, id: &str) {
        if let Some(recent) = &mut self.recent {
            recent.push(Recent { uid: self.uid.clone(), id: id.to_owned(), at: Instant::now() });
        }
    }
}

/// Whose turn it is.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    group: String,
    kind: String,
    namespace: String,
    cluster: String,
    uid: String,
}

impl Subject {
    /// Of a turn.
    pub fn of(input: &TurnInput) -> Self {
        let key = input.subject.key();
        Self {
            group: key.group,
            kind: key.kind,
            namespace: key.namespace,
            cluster: input.cluster.name.clone(),
            uid: input.subject.uid().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cluster: &str, uid: &str) -> Subject {
        Subject {
            group: "infrastructure.cluster.x-k8s.io".into(),
            kind: "SimulatedMachine".into(),
            namespace: "n".into(),
            cluster: cluster.into(),
            uid: uid.into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_is_told_what_was_chosen_before_it() {
        let choices = Arc::new(Choices::default());
        let mut first = choices.wait(&machine("c", "1"), "vm", &mut Vec::new()).await;
        let second = tokio::spawn({
            let choices = choices.clone();
            async move {
                let mut reserved = vec!["99".to_owned()];
                choices.wait(&machine("c", "2"), "vm", &mut reserved).await.chose("101");
                reserved
            }
        });
        tokio::task::yield_now().await;
        // Another part and another cluster do not wait.
        let begun = Instant::now();
        for (cluster, part) in [("c", "disk"), ("d", "vm")] {
            let mut reserved = Vec::new();
            drop(choices.wait(&machine(cluster, "3"), part, &mut reserved).await);
            assert!(reserved.is_empty());
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert!(!second.is_finished());
        first.chose("100");
        drop(first);
        assert_eq!(second.await.unwrap(), ["99", "100"]);
        // Its own choice is no news to an object that chooses anew; later, all is told by the caches.
        let mut reserved = Vec::new();
        drop(choices.wait(&machine("c", "1"), "vm", &mut reserved).await);
        assert_eq!(reserved, ["101"]);
        tokio::time::advance(REMEMBERED).await;
        reserved.clear();
        drop(choices.wait(&machine("c", "3"), "vm", &mut reserved).await);
        assert!(reserved.is_empty());
        assert_eq!(choices.lines.lock().unwrap().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_long() {
        let choices = Choices::default();
        let first = choices.wait(&machine("c", "1"), "vm", &mut Vec::new()).await;
        let begun = Instant::now();
        choices.wait(&machine("c", "2"), "vm", &mut Vec::new()).await.chose("100");
        assert_eq!(begun.elapsed(), PATIENCE);
        drop(first);
    }
}
