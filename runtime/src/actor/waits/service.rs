//! A process tells for whom its actors wait.

use std::sync::Arc;

use super::Waits;
use super::protocol::{TellingWaits, WaitsQuestion};
use crate::actor::engine::Engine;
use crate::actor::service_row::ServeLater;
use crate::base::id::ProcessId;

impl ServeLater for TellingWaits {
    async fn answer(
        engine: Arc<Engine>,
        _from: ProcessId,
        question: WaitsQuestion,
    ) -> Option<Waits> {
        Some(engine.waits_from(question).await)
    }
}
