//! Reads that serve many objects: an answer that is young enough is shared, and reads of one kind that come at the
//! same time become one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capstan_api::ObjectKey;
use tokio::time::Instant;

use crate::Response;

/// No answer is shared for longer.
const MAX_AGE: Duration = Duration::from_secs(60);
/// No more answers are kept; those not asked for any more go first.
const MAX_ENTRIES: usize = 1024;
/// Larger answers are not kept.
const MAX_BODY: usize = 1 << 20;

/// What makes two reads the same: everything that is sent, and where to.
pub(crate) type Key = [u8; 32];

/// An answer and when its request was sent.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    asked: Instant,
    response: Response,
}

/// The place of one read; whoever holds its lock may ask.
pub(crate) type Place = Arc<tokio::sync::Mutex<Option<Answer>>>;

#[derive(Debug, Default)]
pub(crate) struct Shared {
    places: Mutex<HashMap<Key, Place>>,
    changes: Mutex<HashMap<ObjectKey, Instant>>,
}

impl Shared {
    pub(crate) fn place(&self, key: Key, now: Instant) -> Place {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= MAX_ENTRIES && !places.contains_key(&key) {
            places.retain(|_, place| {
                let free = place.try_lock().map(|answer| answer.as_ref().is_none_or(|a| now - a.asked > MAX_AGE));
                Arc::strong_count(place) > 1 || !free.unwrap_or(false)
            });
            if places.len() >= MAX_ENTRIES {
                places.clear();
            }
        }
        places.entry(key).or_default().clone()
    }

    /// An answer that serves this object: young enough, and asked for after the object's own last change.
    pub(crate) fn serves(
        &self,
        answer: &Answer,
        max_age: Duration,
        object: &ObjectKey,
        now: Instant,
    ) -> Option<Response> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = changes.get(object).is_none_or(|changed| answer.asked > *changed);
        (newer && now - answer.asked <= max_age.min(MAX_AGE)).then(|| answer.response.clone())
    }

    /// An answer worth keeping: one that says how things are.
    pub(crate) fn keep(asked: Instant, response: &Response) -> Option<Answer> {
        let says = matches!(response.status, 200..=299 | 404 | 410) && response.body.len() <= MAX_BODY;
        says.then(|| Answer { asked, response: response.clone() })
    }

    /// The object changes something outside now.
    pub(crate) fn changed(&self, object: &ObjectKey, now: Instant) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.len() >= MAX_ENTRIES {
            changes.retain(|_, at| now - *at <= MAX_AGE);
        }
        changes.insert(object.clone(), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16) -> Response {
        Response { status, status_text: String::new(), headers: vec![], body: "x".into() }
    }

    #[test]
    fn an_answer_from_before_the_object_s_own_change_does_not_serve_it() {
        let (shared, minute) = (Shared::default(), Duration::from_secs(60));
        let [me, other] = ["me", "other"].map(|name| ObjectKey::new("g", "K", "n", name));
        let old = Shared::keep(Instant::now(), &answer(200)).unwrap();
        assert!(shared.serves(&old, minute, &me, Instant::now()).is_some());
        shared.changed(&me, Instant::now());
        assert!(shared.serves(&old, minute, &me, Instant::now()).is_none());
        assert!(shared.serves(&old, minute, &other, Instant::now()).is_some());
        let new = Shared::keep(Instant::now() + Duration::from_nanos(1), &answer(200)).unwrap();
        assert!(shared.serves(&new, minute, &me, Instant::now()).is_some());
        assert!(
            shared.serves(&new, Duration::ZERO, &other, Instant::now()).is_none_or(|_| new.asked.elapsed().is_zero())
        );
    }

    #[test]
    fn failures_are_not_shared() {
        for status in [301, 400, 401, 403, 429, 500, 503] {
            assert!(Shared::keep(Instant::now(), &answer(status)).is_none(), "{status}");
        }
        assert!(Shared::keep(Instant::now(), &answer(404)).is_some());
    }

    #[test]
    fn places_are_bounded() {
        let shared = Shared::default();
        for n in 0..5_000u32 {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&n.to_be_bytes());
            shared.place(key, Instant::now());
        }
        assert!(shared.places.lock().unwrap().len() <= MAX_ENTRIES);
    }
}
