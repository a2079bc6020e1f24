//! The node hears of threads that actors block.

use std::sync::Arc;

use super::BlockedThreads;
use super::protocol::{Blocking, BlockingReport};
use crate::actor::engine::Engine;
use crate::actor::service_row::{Asked, Serve};

impl Serve for Blocking {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, report: Vec<BlockingReport>) {
        engine
            .component::<BlockedThreads>()
            .hear(asked.from, report);
    }
}
