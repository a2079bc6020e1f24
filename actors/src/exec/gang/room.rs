//! Room for the ranks of a gang: all of them, or of an elastic gang as many as there is room for.

use std::time::Duration;

use odeon::{
    Clock, Context, Failure, Group, Needs, Ref, Restart, SpawnError, Timestamp,
    group::GroupSpawnError, mesh,
};

use super::{Gang, GangSpec};
use crate::exec::rank::DEFAULTS;
use crate::exec::{Exec, ExecSpec};
use crate::room::{WaitForRoom, lacks_room, lost_a_process};

/// The ranks that a life is to begin with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    /// Where there is room for so many, it begins at once.
    ranks: u32,
    /// The last call: after that, it begins with as many as there is room for.
    until: Timestamp,
    /// Set where there was room before, and will be again.
    waits: bool,
}

impl Goal {
    /// For a gang that begins for the first time, or anew.
    pub(super) fn of(spec: &GangSpec, waits: bool) -> Self {
        Self {
            ranks: spec.ranks,
            until: Clock::now().after(spec.last_call),
            waits,
        }
    }

    /// For one that was seen to have room for so many.
    pub(super) fn seen(spec: &GangSpec, ranks: u32) -> Self {
        Self {
            ranks,
            ..Self::of(spec, true)
        }
    }
}

/// The ranks in their places, before their programs begin.
pub(super) async fn place(
    spec: &GangSpec,
    goal: Goal,
    cx: &Context<Gang>,
) -> Result<Group<Exec>, Failure> {
    let wait = || WaitForRoom::new(spec.needs.clone()).outlast_processes();
    let tell = |why: &str| {
        let ranks = spec.ranks_min;
        tracing::warn!("the {ranks} ranks wait for their places: {why}");
    };
    let all = |needs| spawn(spec, spec.ranks, needs, cx);
    let placed = match (spec.is_elastic(), goal.waits) {
        (false, false) => all(spec.needs.clone()).await,
        (false, true) => wait().place(all, tell).await,
        (true, waits) => {
            let some = |least| move |_: Needs| largest(spec, least, cx);
            let called = wait().until(goal.until);
            match called.place(some(goal.ranks), |_| ()).await {
                Err(error) if !lacks_a_place(&error.error) => Err(error),
                Err(_) if waits => wait().place(some(spec.ranks_min), tell).await,
                Err(_) => match largest(spec, spec.ranks_min, cx).await {
                    // With the patience that any gang has.
                    Err(error) if lacks_a_place(&error.error) => {
                        spawn(spec, spec.ranks_min, spec.needs.clone(), cx).await
                    }
                    placed => placed,
                },
                placed => placed,
            }
        }
    };
    placed.map_err(Failure::error)
}

/// As many ranks as there is room for now, so many at least.
async fn largest(
    spec: &GangSpec,
    least: u32,
    cx: &Context<Gang>,
) -> Result<Group<Exec>, GroupSpawnError> {
    let mut ranks = spec.ranks;
    loop {
        let needs = spec.needs.clone().wait_for_room(Duration::ZERO);
        match spawn(spec, ranks, needs, cx).await {
            Err(error) if ranks > least && lacks_a_place(&error.error) => ranks -= 1,
            placed => return placed,
        }
    }
}

async fn spawn(
    spec: &GangSpec,
    ranks: u32,
    needs: Needs,
    cx: &Context<Gang>,
) -> Result<Group<Exec>, GroupSpawnError> {
    cx.spawn_group::<Exec>(mesh! { rank: ranks as usize }, |rank| {
        program(spec, ranks, rank.index())
    })
    .needs(|_| needs.clone())
    .isolated()
    .restart(Restart::Temporary)
    .await
}

/// A place for one rank more, held by a program that does not begin; none where there is no room.
pub(super) async fn one_more(spec: &GangSpec, cx: &Context<Gang>) -> Option<Ref<Exec>> {
    let needs = spec.needs.clone().wait_for_room(Duration::ZERO);
    let one = cx
        .spawn::<Exec>(program(spec, 1, 0))
        .needs(|_| needs)
        .isolated()
        .restart(Restart::Temporary);
    one.await.ok()
}

fn program(spec: &GangSpec, ranks: u32, rank: usize) -> ExecSpec {
    let program = DEFAULTS
        .iter()
        .fold(spec.program.clone(), |spec, (name, value)| {
            spec.default_env(*name, *value)
        });
    match spec.ranks.max(ranks) {
        1 => program.held(),
        _ => program.held().prefix(format!("[rank {rank}] ")),
    }
}

/// Returns true where a group may have its places a while later.
fn lacks_a_place(error: &SpawnError) -> bool {
    lacks_room(error) || lost_a_process(error)
}
