//! Finding a process for an actor that lives in another than its home, for each of its lives.

use std::sync::Arc;

use super::Engine;
use super::carry_out::{Act, Rest};
use super::lives::HostOrder;
use super::members::{NewRow, Placing, Row};
use super::row::{Event, RowState};
use crate::actor::placing::{Ask, Granted, LaunchOrder, Launched, Launching, Scheduling};
use crate::base::clock::Clock;
use crate::base::failure::{Failure, FailureKind, Reason};
use crate::base::id::{ActorId, Incarnation, ProcessId};

impl Engine {
    /// Has room found for actors, all or none, by this node or the one above.
    pub(crate) async fn reserve(self: &Arc<Self>, asks: Vec<Ask>) -> Result<Vec<Granted>, Failure> {
        let answer = self.request::<Scheduling>(self.domain(), &asks, None);
        let answer = answer.await;
        answer.unwrap_or_else(|| Err(no_answer()))
    }

    /// Writes the row of a new actor that lives in another process, and places it.
    pub(crate) fn place(self: &Arc<Self>, new: &NewRow, id: ActorId, placing: Placing) {
        let state = RowState::away(new.facts(id, is_alone(&placing.launch)));
        self.enter_row(new, Row::new(state, Some(Box::new(placing))));
        let engine = Arc::clone(self);
        self.spawn_task(async move { engine.place_now(id).await });
    }

    /// Finds a process for an actor and has it hosted there.
    pub(super) async fn place_now(self: &Arc<Self>, id: ActorId) {
        let Some((placing, life)) = self.members.rows.get(&id).and_then(|row| {
            let life = row.state.life;
            row.state.is_placing(life).then_some(())?;
            Some((row.order.clone()?, life))
        }) else {
            return;
        };
        let mut launch = placing.launch.clone();
        if let Some(ask) = &mut launch.ask {
            ask.again = life > 1;
        }
        let launched = match self.launch_where_it_lived(id, life, launch).await {
            Ok(launched) => launched,
            Err(failure) if life == 1 && failure.kind == FailureKind::NotPlaced => {
                // It never lived: whoever spawned it hears why, and there is nothing to restart.
                self.leave_family(id);
                return self.dispose(id, Reason::Failed(failure)).await;
            }
            Err(failure) => return self.ended(id, life, Reason::Failed(failure)),
        };
        let Launched {
            process,
            lease,
            devices,
        } = launched;
        let host = HostOrder {
            incarnation: life,
            devices,
            ..placing.host
        };
        match self.host_at(id, process, lease, host) {
            Some(Rest::Begins(Some(answered))) => self.begun(id, life, answered.await).await,
            Some(Rest::Release { process, lease }) => self.release(process, lease).await,
            None if is_alone(&placing.launch) => self.release(process, lease).await,
            _ => {}
        }
    }

    /// Has an actor hosted in the process that was found for it, if that is wanted still; `None` when
    /// the actor is gone.
    fn host_at(
        self: &Arc<Self>,
        id: ActorId,
        process: ProcessId,
        lease: Option<Granted>,
        host: HostOrder,
    ) -> Option<Rest> {
        let life = host.incarnation;
        let act = {
            let mut row = self.members.rows.get_mut(&id)?;
            // While the row is locked: when the process ends, it looks for who is there later.
            let link = self.next_link(process);
            let way = link.is_some();
            let mut act = Act::new(link.map(|link| (host, link)));
            let placed = Event::Placed {
                life,
                process,
                lease,
                way,
            };
            self.follow(&mut row, placed, &mut act);
            act
        };
        Some(act.finish(self))
    }

    /// Launches. Who has lived on a node that is away now waits for it, as for room there: that is no
    /// failure of its own, and would soon be more of them than its supervisor bears.
    async fn launch_where_it_lived(
        self: &Arc<Self>,
        id: ActorId,
        life: Incarnation,
        order: LaunchOrder,
    ) -> Result<Launched, Failure> {
        let waits = life > 1 && order.ask.is_none() && order.node.is_some();
        let until = Clock::now().after(self.limits.placement_timeout);
        let is_wanted = || {
            let row = self.members.rows.get(&id);
            row.is_some_and(|row| row.state.is_placing(life))
        };
        loop {
            let launched = self.launch(order.clone()).await;
            let left = until.left(Clock::now());
            match launched {
                Err(failure)
                    if waits
                        && failure.kind == FailureKind::NotPlaced
                        && !left.is_zero()
                        && !self.is_closing()
                        && !self.is_held()
                        && is_wanted() =>
                {
                    tracing::debug!(actor = %id, %failure, "waiting for its node");
                    Clock::sleep(left.min(self.limits.heartbeat_interval)).await;
                }
                launched => return launched,
            }
        }
    }

    /// Has the node start a worker, or starts one when this is the node.
    async fn launch(self: &Arc<Self>, order: LaunchOrder) -> Result<Launched, Failure> {
        let answer = self.request::<Launching>(self.domain(), &order, None);
        let answer = answer.await;
        answer.unwrap_or_else(|| Err(no_answer()))
    }
}

/// Returns true if no other actor may live in the process that an order gives.
fn is_alone(launch: &LaunchOrder) -> bool {
    launch.shared.is_none()
}

/// A question that the node has left open.
fn no_answer() -> Failure {
    Failure::new(FailureKind::NodeLost, "the node did not answer")
}
