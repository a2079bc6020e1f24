//! The answers to questions about blobs.

use std::sync::Arc;

use super::handle::Handle;
use super::protocol::{Bringing, LendRequest, Lending};
use super::stream;
use crate::actor::engine::Engine;
use crate::actor::service_row::{Asked, Serve, ServeLater};
use crate::base::id::ProcessId;

impl Serve for Lending {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, request: LendRequest) {
        let (store, from) = (&engine.blobs(), asked.from);
        match request {
            LendRequest::Hold { serial, ticket } => {
                asked.answer(engine, &store.hold(from, serial, ticket));
            }
            LendRequest::Arrived { ticket } => store.arrived(ticket),
            LendRequest::Release { serial } => store.release(from, serial),
            LendRequest::Pin {
                serial,
                ticket,
                arrivals,
                lasts,
            } => {
                asked.answer(engine, &store.pin(serial, ticket, arrivals, lasts));
            }
            LendRequest::Read(order) => engine.serve_read(asked, order),
            LendRequest::Fetched { transfer } => store.streams.finish(from, transfer),
        }
    }
}

impl ServeLater for Bringing {
    async fn answer(engine: Arc<Engine>, _from: ProcessId, origin: Handle) -> Option<Self::Answer> {
        Some(stream::bring_for(&engine, origin).await)
    }
}
