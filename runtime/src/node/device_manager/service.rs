//! The answers to questions about devices and leases.

use std::sync::Arc;

use super::protocol::{
    ClaimRequest, Claiming, Evicting, Eviction, HandOver, HandingOver, NodeSnapshot, RoomChanged,
    Surveying, SurveyingAll,
};
use crate::actor::engine::Engine;
use crate::actor::placing::{Ask, Scheduling};
use crate::actor::service_row::{Hear, ServeLater};
use crate::base::id::ProcessId;
use crate::net::link::Link;

impl ServeLater for Scheduling {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, asks: Vec<Ask>) -> Option<Self::Answer> {
        Some(engine.schedule(&asks).await)
    }

    fn is_refusal(answer: &Self::Answer) -> bool {
        answer.is_err()
    }
}

impl ServeLater for Surveying {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, (): ()) -> Option<NodeSnapshot> {
        Some(engine.snapshot().await)
    }
}

impl ServeLater for SurveyingAll {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, (): ()) -> Option<Self::Answer> {
        Some(engine.snapshots().await)
    }
}

impl ServeLater for Claiming {
    async fn answer(
        engine: Arc<Engine>,
        _from: ProcessId,
        request: ClaimRequest,
    ) -> Option<Self::Answer> {
        match request {
            ClaimRequest::Claim { version, leases } => {
                Some(engine.claim_here(version, &leases).await)
            }
            ClaimRequest::Unclaim(leases) => {
                engine.unclaim_here(&leases).await;
                None
            }
        }
    }
}

impl ServeLater for HandingOver {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, order: HandOver) -> Option<bool> {
        Some(engine.hand_over_here(&order).await)
    }
}

impl ServeLater for Evicting {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, eviction: Eviction) -> Option<()> {
        engine.evict_here(&eviction).await;
        None
    }
}

impl Hear for RoomChanged {
    fn hear(self, engine: &Arc<Engine>, _link: &Arc<Link>) {
        engine.device_manager().stir();
    }
}
