//! The answers to questions about worker processes.

use std::sync::Arc;

use super::protocol::{JobWorkers, LastWords, LeaseLaunching};
use crate::actor::engine::Engine;
use crate::actor::placing::{DismissRequest, Dismissing, LaunchOrder, Launching, LeaseId};
use crate::actor::service_row::{Asked, Hear, Serve, ServeLater};
use crate::base::id::ProcessId;
use crate::net::link::Link;

impl ServeLater for Launching {
    async fn answer(
        engine: Arc<Engine>,
        from: ProcessId,
        order: LaunchOrder,
    ) -> Option<Self::Answer> {
        let launched = engine.launch_here(order).await;
        if let Ok(launched) = &launched
            && !engine.reaches(from)
        {
            // Whoever wanted it is gone.
            engine.release_here(launched.process, launched.lease).await;
            return None;
        }
        Some(launched)
    }

    fn is_refusal(answer: &Self::Answer) -> bool {
        answer.is_err()
    }
}

impl ServeLater for LeaseLaunching {
    async fn answer(engine: Arc<Engine>, from: ProcessId, lease: LeaseId) -> Option<Self::Answer> {
        let launched = engine.launch_leased(lease).await;
        if let Ok(Some(_)) = launched
            && !engine.reaches(from)
        {
            // Whoever wanted it is gone.
            engine.release_lease(lease).await;
            return None;
        }
        Some(launched)
    }

    fn is_refusal(answer: &Self::Answer) -> bool {
        answer.is_err()
    }
}

impl ServeLater for Dismissing {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, request: DismissRequest) -> Option<()> {
        match request {
            DismissRequest::Release { process, lease } => {
                engine.release_here(process, lease).await;
            }
            DismissRequest::Retire {
                process,
                fault,
                why,
            } => engine.retire_for(process, fault, why).await,
        }
        Some(())
    }
}

impl Serve for LastWords {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, words: String) {
        engine.workers().hear_last_words(asked.from, words);
        asked.answer(engine, &());
    }
}

impl Hear for JobWorkers {
    fn hear(self, engine: &Arc<Engine>, link: &Arc<Link>) {
        // Nobody else knows.
        if engine.uplink.get() == Some(&link.peer) {
            engine.workers().hear_of_job(self.0);
        }
    }
}
