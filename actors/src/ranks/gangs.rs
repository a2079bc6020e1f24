//! The groups of a rank, once it has taken its seats in them.

use std::sync::Arc;

use odeon::group::{Communicator, Seat};
use odeon::{Actor, Context, Failure};
use odeon_algorithms::train::PipelineKind;

use super::seats::RankSeats;
use crate::engine::compute::peers::{Gang, PassGang};
use crate::engine::compute::stages::{StageGang, StageSeats};
use crate::engine::compute::step::{PassGangs, ShardGangs, StageGangs, StepGangs};

/// The ranks that a rank trains with, see [`RankSeats`].
#[derive(Debug, Default)]
pub(crate) struct Gangs {
    data: Option<Gang>,
    all: Option<Gang>,
    same_experts: Option<Gang>,
    replicas: Option<Gang>,
    pub(crate) passes: PassGangs,
}

impl Gangs {
    /// Takes the seats of an actor, whose pipeline, where it is in one, has passes in this order.
    ///
    /// # Errors
    /// A seat is of another life.
    pub(crate) fn take<A: Actor>(
        seats: RankSeats,
        schedule: PipelineKind,
        cx: &Context<A>,
    ) -> Result<Self, Failure> {
        let take = |seat: Option<Seat>| seat.map(|seat| seat.take(cx)).transpose();
        let take = |seat| take(seat).map_err(Failure::error);
        let pass = |seat| {
            let seat = take(seat)?;
            Ok::<_, Failure>(seat.map(|seat| Arc::new(PassGang::new(seat))))
        };
        let is_pipeline = seats.pipeline.all.is_some();
        let links = StageSeats {
            rows_out: take(seats.pipeline.rows_out)?,
            rows_in: take(seats.pipeline.rows_in)?,
            gradients_out: take(seats.pipeline.gradients_out)?,
            gradients_in: take(seats.pipeline.gradients_in)?,
        };
        let links = Some(links).filter(|_| is_pipeline);
        Ok(Self {
            data: take(seats.data)?.map(Gang::new),
            all: take(seats.all)?.map(Gang::new),
            same_experts: take(seats.same_experts)?.map(Gang::new),
            replicas: take(seats.replicas)?.map(Gang::new),
            passes: PassGangs {
                tensor: pass(seats.tensor)?,
                experts: pass(seats.experts)?,
                context: pass(seats.context)?,
                shards: ShardGangs {
                    everywhere: pass(seats.shards.everywhere)?,
                    data: pass(seats.shards.data)?,
                    experts: pass(seats.shards.experts)?,
                },
                stages: StageGangs {
                    all: pass(seats.pipeline.all)?,
                    tied: pass(seats.pipeline.tied)?,
                    links: links.map(|links| Arc::new(StageGang::new(links))),
                    kind: schedule,
                    recorded: None,
                },
            },
        })
    }

    /// Those of a rank with batches of its own and the whole model.
    pub(crate) fn of_data(peers: Communicator) -> Self {
        Self {
            data: Some(Gang::new(peers)),
            ..Self::default()
        }
    }

    /// True of the first of those with other samples, and of a rank that has none beside it.
    pub(crate) fn is_first_of_data(&self) -> bool {
        self.data.as_ref().is_none_or(|data| data.rank() == 0)
    }

    /// Leaves all of them.
    pub(crate) fn leave(&mut self) {
        let others = [
            &mut self.data,
            &mut self.all,
            &mut self.same_experts,
            &mut self.replicas,
        ];
        others.into_iter().flatten().for_each(Gang::leave);
        self.passes.leave();
    }

    /// Those that take part in a step.
    pub(crate) fn of_step(&mut self, learns: bool) -> StepGangs<'_> {
        StepGangs {
            // One copy of the model rates, by itself.
            data: self.data.as_mut().filter(|_| learns),
            all: self.all.as_mut().filter(|_| learns),
            same_experts: self.same_experts.as_mut().filter(|_| learns),
            replicas: self.replicas.as_mut().filter(|_| learns),
            passes: self.passes.clone(),
        }
    }
}
