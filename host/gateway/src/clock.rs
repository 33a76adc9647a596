//! Time as the gateway sees it: the machine's, or a test's, where minutes pass without being waited for.

use std::fmt;

use async_trait::async_trait;
use tokio::time::Instant;

/// Says what time it is, and waits.
#[async_trait]
pub trait Clock: fmt::Debug + Send + Sync {
    /// Now; never earlier than what was said before.
    fn now(&self) -> Instant;

    /// Returns when it is so late.
    async fn sleep_until(&self, at: Instant);
}

/// The machine's own clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealTime;

#[async_trait]
impl Clock for RealTime {
    fn now(&self) -> Instant {
        Instant::now()
    }

    async fn sleep_until(&self, at: Instant) {
        tokio::time::sleep_until(at).await;
    }
}
