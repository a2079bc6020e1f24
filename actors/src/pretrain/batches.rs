//! Batches that ranks wait for: who waits for one holds up the others for no fault of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odeon::Ref;
use odeon_data::client::{Awaits, DataClient};

use super::rank::Joined;

/// The clients of the ranks of a life, and the step that these are at.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitedBatches {
    clients: Vec<Ref<DataClient>>,
    step: Arc<AtomicU64>,
}

/// Time that a client may take to answer: one whose process is stopped does not.
const PATIENCE: Duration = Duration::from_secs(1);

impl AwaitedBatches {
    pub(super) fn of(joined: &[Joined]) -> Self {
        Self {
            clients: joined.iter().map(|it| it.client).collect(),
            step: Arc::default(),
        }
    }

    /// The ranks are asked for this step.
    pub(super) fn begin(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    /// Returns true where a rank waits for its batch of the step under way.
    pub(super) async fn awaited_by(self, rank: u32) -> bool {
        let Some(client) = self.clients.get(rank as usize) else {
            return false;
        };
        let step = Awaits(self.step.load(Ordering::Relaxed));
        let asked = client.ask(step).timeout(PATIENCE).await;
        asked.unwrap_or(false)
    }
}
