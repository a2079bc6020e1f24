//! The life that a stream of replies belongs to, and the reading end in the process that writes it.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use crate::actor::cell::ActorCell;
use crate::base::error::AskError;
use crate::base::failure::{Down, Reason};
use crate::base::id::Incarnation;

/// The reading end of a stream whose writer is in this process.
pub(super) struct Local<T> {
    pub(super) replies: mpsc::Receiver<T>,
    pub(super) life: Arc<StreamLife>,
}

/// The writer's life as the reader of a stream has to know it.
pub(crate) struct StreamLife {
    pub(super) cell: Arc<ActorCell>,
    incarnation: Incarnation,
    end: watch::Sender<Option<Ending>>,
}

/// The end of a stream; the first one stands.
#[derive(Clone)]
pub(super) enum Ending {
    /// All was written.
    Finished,
    /// Its writer ended before.
    Died(Reason),
}

impl StreamLife {
    pub(super) fn new(cell: &Arc<ActorCell>, incarnation: Incarnation) -> Self {
        Self {
            cell: Arc::clone(cell),
            incarnation,
            end: watch::channel(None).0,
        }
    }

    pub(super) fn end(&self, ending: Ending) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(ending);
            first
        });
    }

    /// The life of its actor ends.
    pub(crate) fn life_ends(&self, reason: &Reason) {
        self.end(Ending::Died(reason.clone()));
    }

    /// Resolves to nothing when all was written, to an error when the writer has died.
    pub(super) async fn over(self: Arc<Self>) -> Option<AskError> {
        let mut end = self.end.subscribe();
        // The sender is ours, so the wait cannot fail.
        let end = end.wait_for(Option::is_some).await.ok()?.clone();
        match end? {
            Ending::Finished => None,
            Ending::Died(reason) => Some(AskError::Died(Down {
                id: self.cell.id,
                incarnation: self.incarnation,
                reason,
            })),
        }
    }
}
