//! The answers to questions about lives of actors.

use std::sync::Arc;

use super::{HostOrder, LifeRequest, Lives, Watching};
use crate::actor::cell::Control;
use crate::actor::engine::Engine;
use crate::actor::host;
use crate::actor::service_row::{Asked, Serve};
use crate::base::failure::{Down, Failure, FailureKind, Reason};
use crate::base::id::{ActorId, Incarnation};

impl Serve for Lives {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, request: LifeRequest) {
        match request {
            LifeRequest::Host(order) => engine.host_for(asked, &order),
            LifeRequest::Start { id, incarnation } => match engine.cells.get(&id) {
                Some(cell) => {
                    engine.await_start(id, incarnation, asked);
                    cell.order(Control::Start(incarnation));
                }
                None => asked.answer(engine, &Err(Failure::error(Reason::Unknown))),
            },
            LifeRequest::Halt {
                id,
                reason,
                keep_mail,
            } => engine.halt_for(asked, id, reason, keep_mail),
            LifeRequest::Ended {
                id,
                incarnation,
                reason,
            } => engine.ended(id, incarnation, reason),
            LifeRequest::Stop(id) => {
                let stopping = Arc::clone(engine);
                engine.begin_task(async move {
                    let stopped = stopping.stop_actor(id).await;
                    asked.answer(&stopping, &stopped.map_err(Failure::error));
                });
            }
            LifeRequest::Fail { id, failure } => {
                let failing = Arc::clone(engine);
                engine.begin_task(async move {
                    let failed = failing.fail_actor(id, failure).await;
                    asked.answer(&failing, &failed.map_err(Failure::error));
                });
            }
        }
    }
}

impl Serve for Watching {
    fn serve(engine: &Arc<Engine>, asked: Asked<Self>, id: ActorId) {
        let down = engine.watch(id);
        let watching = Arc::clone(engine);
        engine.spawn_task(async move { asked.answer(&watching, &down.await) });
    }
}

impl Engine {
    fn host_for(self: &Arc<Self>, asked: Asked<Lives>, order: &HostOrder) {
        let found = self
            .types
            .iter()
            .map(|row| row())
            .find(|row| row.name == order.actor);
        let Some(actor) = found else {
            let failure = Failure::new(
                FailureKind::UnknownActor,
                format!(
                    "the program of its worker process has no actor `{}`: list its type in `odeon::job!`",
                    order.actor
                ),
            );
            // Whoever asks it here hears why.
            self.note_down(Down {
                id: order.id,
                incarnation: order.incarnation,
                reason: Reason::Failed(failure.clone()),
            });
            return asked.answer(self, &Err(failure));
        };
        self.await_start(order.id, order.incarnation, asked);
        if let Err(failure) = host::host_order(self, actor, order) {
            self.not_started(order.id, order.incarnation, failure);
        }
    }

    fn halt_for(
        self: &Arc<Self>,
        asked: Asked<Lives>,
        id: ActorId,
        reason: Reason,
        keep_mail: bool,
    ) {
        let Some(cell) = self.cells.get(&id).map(|cell| Arc::clone(&cell)) else {
            return asked.answer(self, &Ok(()));
        };
        let engine = Arc::clone(self);
        self.begin_task(async move {
            let halted = if engine.halt_here(&cell, reason, keep_mail).await {
                Ok(())
            } else {
                Err(Failure::new(FailureKind::Hang, "it blocks its thread"))
            };
            asked.answer(&engine, &halted);
        });
    }

    /// Whoever sent this request hears when this life has started, or that it will not.
    fn await_start(&self, id: ActorId, life: Incarnation, asked: Asked<Lives>) {
        if let Some((_, before)) = self.awaiting_start.insert(id, (life, asked)) {
            before.answer(self, &Err(super::halted()));
        }
    }

    /// Tells whoever waits for the start of this life of a hosted actor that it runs. Returns true
    /// if somebody does.
    pub(in crate::actor::engine) fn tell_started(&self, id: ActorId, life: Incarnation) -> bool {
        let asked = self.no_longer_awaited(id, life);
        asked.is_some_and(|asked| {
            asked.answer(self, &Ok(()));
            true
        })
    }

    /// Takes out whoever waits for the start of this life; the next one may be waited for while this
    /// one holds its thread.
    pub(in crate::actor::engine) fn no_longer_awaited(
        &self,
        id: ActorId,
        life: Incarnation,
    ) -> Option<Asked<Lives>> {
        let awaited = self.awaiting_start.remove_if(&id, |_, row| row.0 == life);
        awaited.map(|(_, (_, asked))| asked)
    }

    /// Tells whoever waits for the start of this life of a hosted actor that it will not run.
    pub(in crate::actor::engine) fn not_started(
        &self,
        id: ActorId,
        life: Incarnation,
        failure: Failure,
    ) {
        if let Some(asked) = self.no_longer_awaited(id, life) {
            asked.answer(self, &Err(failure));
        }
    }
}
