//! The answers to questions about gangs.

use std::sync::Arc;

use super::protocol::{Domains, GangMemory, GangMemoryRequest, GangNews, GangRanks};
use crate::actor::engine::Engine;
use crate::actor::service_row::{Asked, Serve};

impl Serve for Domains {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, (): ()) {
        asked.answer(engine, &engine.domain());
    }
}

impl Serve for GangMemory {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, request: GangMemoryRequest) {
        let gangs = &engine.gangs();
        match request {
            GangMemoryRequest::Keep { gang, ranks } => {
                let memory = gangs.keep(gang, asked.from, ranks as usize);
                asked.answer(engine, &memory);
            }
            GangMemoryRequest::Forget(gang) => gangs.forget(gang),
        }
    }
}

impl Serve for GangRanks {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, news: GangNews) {
        engine.gangs().hear(engine, asked.from, news);
    }
}
