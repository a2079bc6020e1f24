//! Room for the ranks of a gang: all of them, or of an elastic gang as many as there is room for.

use std::time::Duration;

use odeon::{
    Clock, Context, Failure, FailureKind, Group, Needs, Ref, Restart, SpawnError, Timestamp,
    group::GroupSpawnError, mesh,
};

use super::{Gang, GangSpec};
use crate::exec::rank::DEFAULTS;
use crate::exec::{Exec, ExecSpec};

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
    let mut told: Option<Timestamp> = None;
    loop {
        let is_late = goal.until.left(Clock::now()).is_zero();
        let refused = match spec.is_elastic() {
            false => spawn(spec, spec.ranks, spec.needs.clone(), cx).await,
            true => largest(spec, goal.ranks, is_late, cx).await,
        };
        let error = match refused {
            Ok(members) => return Ok(members),
            Err(error) if !lacks_a_place(&error.error) => return Err(Failure::error(error)),
            Err(error) => error,
        };
        if !goal.waits && !spec.is_elastic() {
            return Err(Failure::error(error));
        }
        if !goal.waits && is_late {
            // With the patience that any gang has.
            let last = spawn(spec, spec.ranks_min, spec.needs.clone(), cx).await;
            return last.map_err(Failure::error);
        }
        let now = Clock::now();
        let is_news = is_late || !spec.is_elastic();
        if is_news && told.is_none_or(|told| now.since(told) >= PLACE_NEWS) {
            let (ranks, why) = (spec.ranks_min, error.error);
            tracing::warn!("the {ranks} ranks wait for their places: {why}");
            told = Some(now);
        }
        Clock::sleep(PLACE_PAUSE).await;
    }
}

/// As many ranks as there is room for now: at least `wanted`, and when it is late the fewest that may be.
async fn largest(
    spec: &GangSpec,
    wanted: u32,
    is_late: bool,
    cx: &Context<Gang>,
) -> Result<Group<Exec>, GroupSpawnError> {
    let least = if is_late { spec.ranks_min } else { wanted };
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
    match error {
        SpawnError::NotPlaced(_) => true,
        SpawnError::Failed(failure) => {
            let root = failure.root_cause();
            let lost = FailureKind::ProcessLost;
            [FailureKind::NotPlaced, FailureKind::NodeLost, lost].contains(&root.kind)
        }
        _ => false,
    }
}

/// The pause before ranks that found no place are placed again.
const PLACE_PAUSE: Duration = Duration::from_secs(1);
/// The time after which it is told again that they wait.
const PLACE_NEWS: Duration = Duration::from_secs(60);
