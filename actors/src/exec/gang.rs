//! One program on many ranks: all begin together, and none goes on without the others.
//!
//! A gang supervises nothing: when a rank fails, it ends the others and fails itself. So its own
//! supervisor begins all of it again, placed anew, as often as its budget allows. An elastic gang
//! that loses a node, or for which there is more room, begins again by itself.

mod life;
mod progress;
mod room;

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, Context, Down, Failure, Needs, Reason, Ref, Timestamp};
use serde::{Deserialize, Serialize};

use self::life::Life;
use self::progress::Patience;
use self::room::Goal;
use super::{Exec, ExecSpec};
use crate::ranks::recovery::record_rank;

/// Settings that a gang is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[must_use]
pub struct GangSpec {
    program: ExecSpec,
    ranks: u32,
    ranks_min: u32,
    last_call: Duration,
    name_after: Duration,
    hang_after: Option<Duration>,
    needs: Needs,
    run_id: String,
    restarts_max: u32,
    grace: Duration,
}

impl GangSpec {
    /// So many ranks of a program, each in a worker process of its own.
    pub fn new(program: ExecSpec, ranks: u32) -> Self {
        Self {
            program,
            ranks,
            ranks_min: ranks,
            last_call: Duration::from_secs(30),
            name_after: NAME_AFTER,
            hang_after: None,
            needs: Needs::new(),
            run_id: "odeon".to_owned(),
            restarts_max: 0,
            grace: Duration::from_secs(5),
        }
    }

    /// Sets the resources that each rank reserves on its node; none unless told otherwise, and then
    /// all ranks are on the node of the gang. Ranks know their nodes by `ODEON_NODE` and
    /// `ODEON_NODE_ADDRESS`, which daemons set; a program that links nodes of its own sets both for
    /// their workers.
    pub fn needs(mut self, needs: Needs) -> Self {
        self.needs = needs;
        self
    }

    /// Sets the name by which ranks know this gang.
    pub fn run_id(mut self, id: impl Into<String>) -> Self {
        self.run_id = id.into();
        self
    }

    /// Sets the number of restarts that ranks are told they may have. Who starts them again is the
    /// supervisor of the gang, with the budget that it has.
    pub const fn restarts_max(mut self, restarts: u32) -> Self {
        self.restarts_max = restarts;
        self
    }

    /// Sets the longest time that a rank may take to end after SIGTERM; five seconds, unless told
    /// otherwise.
    pub const fn stop_within(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Lets it run with fewer ranks, of so many at least, where there is no room for all: it begins
    /// anew with those that are left when a node is lost, and with more when there is room for them.
    /// Neither counts as a restart.
    pub fn at_least(mut self, ranks: u32) -> Self {
        self.ranks_min = ranks.clamp(1, self.ranks);
        self
    }

    /// Sets the time for which an elastic gang that could begin waits for room for all of its ranks;
    /// thirty seconds, as under `torchrun`, unless told otherwise.
    pub const fn last_call(mut self, patience: Duration) -> Self {
        self.last_call = patience;
        self
    }

    /// Sets the time after which a rank is named, in the log and among the problems, that stands still or is slow while
    /// others are not; twenty seconds, unless told otherwise. At least a second.
    pub fn name_after(mut self, limit: Duration) -> Self {
        self.name_after = limit.max(Duration::from_secs(1));
        self
    }

    /// Has all ranks begin again when one has neither printed anything nor used a processor for so long,
    /// which counts as its failure. Unless told, nobody is ended.
    pub const fn hang_after(mut self, limit: Duration) -> Self {
        self.hang_after = Some(limit);
        self
    }

    /// Returns true for one whose ranks may be fewer.
    const fn is_elastic(&self) -> bool {
        self.ranks_min < self.ranks
    }
}

/// A program on many ranks, each of which knows the others by the variables of `torchrun`. It ends
/// in order when all ranks have ended with success. When one fails, the others are ended, and it
/// fails with what happened to that rank.
#[derive(Debug)]
pub struct Gang {
    spec: GangSpec,
    life: Life,
    /// Places for more ranks, held until all begin again.
    found: Vec<Ref<Exec>>,
    /// When the first of these was found.
    since: Timestamp,
}

#[odeon::actor(name = "exec.Gang")]
impl Gang {
    async fn start(spec: GangSpec, cx: &mut Context<Self>) -> Result<Self, Failure> {
        let goal = Goal::of(&spec, cx.incarnation() > 1);
        let life = Life::begin(&spec, goal, cx).await?;
        let gang = Self {
            spec,
            life,
            found: vec![],
            since: Clock::now(),
        };
        gang.watch(cx);
        Ok(gang)
    }

    /// Ends all ranks at once, each in its grace, and then the gang.
    #[handler]
    pub async fn disband(&mut self, cx: &mut Context<Self>) {
        self.life.halt().await;
        cx.stop();
    }

    /// Looks for room for more ranks. When there is some for all, or the last call for those that are
    /// missing is over, all begin again.
    #[handler]
    async fn look_for_room(&mut self, cx: &mut Context<Self>) {
        let most = self.spec.ranks as usize;
        if !self.life.is_whole() {
            return;
        }
        while self.life.ranks() + self.found.len() < most {
            let Some(more) = room::one_more(&self.spec, cx).await else {
                break;
            };
            if self.found.is_empty() {
                self.since = Clock::now();
            }
            self.found.push(more);
        }
        let ranks = self.life.ranks() + self.found.len();
        let called = Clock::now().since(self.since) >= self.spec.last_call;
        if self.found.is_empty() || ranks < most && !called {
            return;
        }
        let before = self.life.ranks();
        tracing::warn!("there is room for {ranks} ranks, so the {before} begin again with them");
        let goal = Goal::seen(&self.spec, ranks as u32);
        self.begin_again(goal, cx).await;
    }

    /// A rank holds up the others, or has done so for too long.
    #[handler]
    async fn rank_in_trouble(
        &mut self,
        rank: u32,
        pid: u32,
        what: String,
        hangs: bool,
        cx: &mut Context<Self>,
    ) {
        let rank = rank as usize;
        if self.life.is_over() || rank >= self.life.ranks() {
            return;
        }
        let why = format!("{} {what}", self.life.title(rank, pid));
        tracing::warn!("{why}");
        if !hangs {
            return;
        }
        let (nth, most) = (cx.incarnation(), self.spec.restarts_max);
        let does = match nth <= most {
            true => format!("all ranks begin again (restart {nth} of {most})"),
            false => format!("the gang ends, as it has begun again {most} times"),
        };
        let (place, does) = (self.life.placed(rank), format!("{why}; {does}"));
        let lasts = self.spec.hang_after.unwrap_or_default();
        record_rank("", &place, lasts, &does);
        self.fail(rank, Failure::error(why), cx).await;
        record_rank("", &place, Duration::ZERO, &does);
    }

    #[handler(message = Down)]
    async fn down(&mut self, down: Down, cx: &mut Context<Self>) {
        let Some(rank) = self.life.rank_of(down.id) else {
            return;
        };
        let is_last = self.life.ended(rank);
        let failure = match down.reason {
            Reason::Stopped if is_last => return cx.stop(),
            Reason::Stopped => return,
            Reason::Failed(failure) => failure,
            reason => Failure::error(reason),
        };
        let fallen = self.life.first_fallen(rank, failure).await;
        let rank = fallen.rank;
        let silent = self.life.silent().await;
        // What the others do from here on follows from this.
        let failed = self.life.failed(fallen);
        let failed = self.life.with_silent(failed, &silent);
        let lost: Vec<_> = self.life.lost_nodes(&silent).into_iter().collect();
        if self.spec.is_elastic() && !lost.is_empty() {
            let (ranks, lost) = (self.life.ranks(), lost.join(", "));
            tracing::warn!(
                "node {lost} is lost to the {ranks} ranks, so all begin again with those that there is room for: {failed}"
            );
            let goal = Goal::of(&self.spec, true);
            return self.begin_again(goal, cx).await;
        }
        self.fail(rank, failed, cx).await;
    }
}

impl Gang {
    /// Ends all ranks, and fails with what happened to one: its supervisor begins anew.
    async fn fail(&mut self, rank: usize, failed: Failure, cx: &mut Context<Self>) {
        let (nth, most) = (cx.incarnation(), self.spec.restarts_max);
        if nth <= most {
            let ranks = self.life.ranks();
            tracing::warn!(
                "rank {rank} of {ranks} failed, so all begin again: restart {nth} of {most}"
            );
        }
        self.life.halt().await;
        cx.fail(failed);
    }

    /// Has the present life watched, and room looked for.
    fn watch(&self, cx: &Context<Self>) {
        let patience = Patience {
            named_after: self.spec.name_after,
            hang_after: self.spec.hang_after,
        };
        self.life.watch_progress(patience, cx);
        self.look_later(cx);
    }

    /// Ends all ranks, and begins with those that there is room for. That is no restart.
    async fn begin_again(&mut self, goal: Goal, cx: &mut Context<Self>) {
        self.life.halt().await;
        let found = std::mem::take(&mut self.found);
        join_all(found.iter().map(Ref::stop)).await;
        match Life::begin(&self.spec, goal, cx).await {
            Ok(life) => {
                self.life = life;
                self.watch(cx);
            }
            Err(failure) => cx.fail(failure),
        }
    }

    /// Has this life look for more room now and then, where it has fewer ranks than it may.
    fn look_later(&self, cx: &Context<Self>) {
        if self.life.ranks() == self.spec.ranks as usize {
            return;
        }
        let (over, me) = (self.life.over(), cx.me());
        cx.spawn_task(async move {
            loop {
                Clock::sleep(ROOM_PAUSE).await;
                if over.load(Ordering::Acquire) || me.ask(LookForRoom).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// The time after which a rank that holds up the others is named.
const NAME_AFTER: Duration = Duration::from_secs(20);
/// The pause between two looks for more room.
const ROOM_PAUSE: Duration = Duration::from_secs(2);
