//! The answers to questions about records of collectives.

use std::sync::Arc;

use super::protocol::{LookingAtRanks, NamingFlowLog, NodeRanks, RanksRequest};
use crate::actor::engine::Engine;
use crate::actor::service_row::{Asked, Serve, ServeLater};
use crate::base::id::ProcessId;

impl Serve for NamingFlowLog {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, (): ()) {
        asked.answer(engine, &engine.flow_log_name());
    }
}

impl ServeLater for LookingAtRanks {
    async fn answer(
        engine: Arc<Engine>,
        _from: ProcessId,
        request: RanksRequest,
    ) -> Option<NodeRanks> {
        Some(engine.look_at_ranks(request).await)
    }
}
