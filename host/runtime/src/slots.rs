//! Who may hold an instance: a bounded number of turns at the same time, shared fairly between tenants.
//!
//! A tenant first waits among its own turns, then, with at most its own share of places, among all. Both queues are
//! first come, first served, so a tenant with a thousand turns waiting holds up another's by no more than its share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) struct Slots {
    all: Arc<Semaphore>,
    per_tenant: u32,
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// A place that is free again when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _tenant: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Slots {
    pub(crate) fn new(all: u32, per_tenant: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all as usize)),
            per_tenant: per_tenant.clamp(1, all.max(1)),
            tenants: Mutex::new(HashMap::new()),
        }
    }

    /// Waits for a place. `None` when the engine is gone.
    pub(crate) async fn take(&self, tenant: &str) -> Option<Slot> {
        let own = {
            let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
            if tenants.len() > 1024 {
                tenants.retain(|_, semaphore| {
                    Arc::strong_count(semaphore) > 1 || semaphore.available_permits() < self.per_tenant as usize
                });
            }
            let new = || Arc::new(Semaphore::new(self.per_tenant as usize));
            tenants.entry(tenant.to_owned()).or_insert_with(new).clone()
        };
        let _tenant = own.acquire_owned().await.ok()?;
        let _all = self.all.clone().acquire_owned().await.ok()?;
        Some(Slot { _tenant, _all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    fn now(future: std::pin::Pin<&mut impl Future<Output = Option<Slot>>>) -> Option<Slot> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(slot) => slot,
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_busy_tenant_leaves_room_and_waits_in_its_own_queue() {
        let slots = Slots::new(3, 2);
        let take = |tenant: &'static str| Box::pin(slots.take(tenant));
        let (mut a1, mut a2, mut a3, mut a4) = (take("a"), take("a"), take("a"), take("a"));
        let first = now(a1.as_mut()).unwrap();
        let _second = now(a2.as_mut()).unwrap();
        assert!(now(a3.as_mut()).is_none() && now(a4.as_mut()).is_none(), "two is a's share");
        let mut b = take("b");
        assert!(now(b.as_mut()).is_some(), "b finds room although a waits");
        drop(first);
        assert!(now(a4.as_mut()).is_none(), "the older of a's turns comes first");
        assert!(now(a3.as_mut()).is_some());
    }
}
