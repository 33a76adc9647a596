//! Events are forgotten an hour after they were last seen.

use crate::rest::Policy;
use crate::server::ApiServer;
use crate::store::{Object, Place};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::sync::PoisonError;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long an Event is kept, as in Kubernetes.
const KEPT: SignedDuration = SignedDuration::from_hours(1);

impl ApiServer {
    /// Starts the task that waits for the oldest Event to expire, unless it runs or there is none.
    pub(super) fn wake_expiry(&self) {
        if !self.inner.options.store.any("events", "") {
            return;
        }
        let mut state = self.inner.background.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((handle, shutdown)) = state.runtime.clone() else { return };
        if state.expiring || shutdown.is_cancelled() {
            return;
        }
        state.expiring = true;
        let server = self.clone();
        handle.spawn(async move { server.expire(shutdown).await });
    }

    async fn expire(self, shutdown: CancellationToken) {
        while let Some(wait) = self.expire_now(Timestamp::now()) {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
            }
        }
        self.inner.background.state.lock().unwrap_or_else(PoisonError::into_inner).expiring = false;
        // One may have been made after the last look and before the task said that it ends.
        self.wake_expiry();
    }

    /// Deletes what is old enough; tells how long until the next is. None when there are no Events.
    pub(crate) fn expire_now(&self, now: Timestamp) -> Option<Duration> {
        let listing = self.inner.options.store.list("events", "", None, None).ok()?;
        let mut next: Option<Duration> = None;
        for event in listing.objects {
            let age = now.duration_since(last_seen(&event));
            if age >= KEPT {
                let place = Place { collection: "events".into(), key: event.key.clone() };
                self.delete_because(&place, Policy::Background, &event.meta.uid);
                continue;
            }
            let left = Duration::try_from(KEPT - age).unwrap_or(Duration::ZERO) + Duration::from_secs(1);
            next = Some(next.map_or(left, |next| next.min(left)));
        }
        next
    }
}

fn last_seen(event: &Object) -> Timestamp {
    let value = event.value_without_managed_fields();
    let text =
        |pointer: &str| value.pointer(pointer).and_then(Value::as_str).and_then(|text| text.parse::<Timestamp>().ok());
    ["/series/lastObservedTime", "/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"]
        .iter()
        .filter_map(|pointer| text(pointer))
        .max()
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::store::{Change, Draft, Key};
    use serde_json::json;

    #[tokio::test]
    async fn an_event_is_kept_for_an_hour_after_it_was_last_seen() {
        let server = ApiServer::new(Options::default()).unwrap();
        assert_eq!(server.expire_now(Timestamp::now()), None);
        let event = |name: &str, seen: &str| {
            let object = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default", "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}, "lastTimestamp": seen});
            server
                .store()
                .commit(&"events".into(), &Key::new("default", name), Change::Create(Draft::new(&object)))
                .unwrap();
        };
        event("early", "2026-01-01T00:00:00Z");
        event("late", "2026-01-01T00:30:00Z");
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(server.expire_now(at("2026-01-01T00:59:00Z")), Some(Duration::from_secs(61)));
        assert_eq!(server.expire_now(at("2026-01-01T01:00:00Z")), Some(Duration::from_secs(1801)));
        assert!(server.store().get("events", &Key::new("default", "early")).is_none());
        assert_eq!(server.expire_now(at("2026-01-01T02:00:00Z")), None);
    }
}
