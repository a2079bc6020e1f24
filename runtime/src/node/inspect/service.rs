//! The answers to questions about what a process has to show.

use std::sync::Arc;

use super::protocol::MethodCounts;
use super::watch::{LastSight, LookOrder, Looking};
use crate::actor::engine::Engine;
use crate::actor::service_row::{Asked, Hear, Serve};
use crate::base::id::ActorId;
use crate::net::link::Link;

impl Serve for Looking {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, order: LookOrder) {
        asked.answer(engine, &engine.subscribers().show(engine, order));
    }
}

/// A process of this node that leaves has shown what was not seen of it.
impl Hear for LastSight {
    fn hear(self, engine: &Arc<Engine>, link: &Arc<Link>) {
        let mut started = engine.workers().list().into_iter();
        if let Some(view) = started.find(|view| view.process == link.peer) {
            engine.last_sights().keep(view, &link.view(), self);
        }
    }
}

impl Serve for MethodCounts {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, actor: ActorId) {
        asked.answer(engine, &super::methods(engine, actor));
    }
}
