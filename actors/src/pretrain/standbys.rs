//! Standbys of a run: ranks without a number, each in a process of its own with all that a rank reserves and the model in
//! its memory. One takes the number of a rank that is lost, and another is begun in its place.
//!
//! They take part in no collective. A run never waits for them: they are begun while its ranks are at work, they are let
//! go where ranks find no room, and one that is lost is nobody's fault.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{join, join_all, select};
use odeon::{Clock, Failure, Needs, Ref, Restart, System, Timestamp};
use odeon_algorithms::train::Sharing;
use odeon_diagnosis::ladder::PlacedRank;
use odeon_mesh::Mesh;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, watch};

use super::plan::PretrainPlan;
use super::rank::{Present, PretrainRank, RankArgs, StandBy, TakeRank};
use super::report::{Report, StandbyState};
use super::run::{Desk, Member};
use super::seats::avoiding;
use crate::ranks::Mark;
use crate::ranks::asking::LONG;
use crate::ranks::board::RecoveryBoard;
use crate::ranks::recovery::{Recovery, record_missing};
use crate::ranks::standbys::{StandbyCount, replacements};
use crate::room::lacks_room;

/// A standby that is ready.
#[derive(Clone, Debug)]
struct Waiting {
    member: Ref<PretrainRank>,
    node: String,
}

/// Standbys that are there, and what came of the last one that was begun.
#[derive(Debug)]
struct State {
    /// The number of the next one.
    next: u32,
    ready: BTreeMap<u32, Waiting>,
    /// The way in which ranks share the model at present.
    sharing: Sharing,
    /// Others in a row that could not be begun, and when the next is.
    failures: u32,
    next_try: Timestamp,
    /// Set from when it was told that some are missing until all are there.
    told_missing: bool,
    closed: bool,
}

/// The standbys of a run.
#[derive(Debug)]
pub(super) struct Standbys<'a> {
    system: &'a System,
    plan: &'a PretrainPlan,
    board: &'a RecoveryBoard,
    reports: UnboundedSender<Report>,
    members: watch::Sender<Vec<Member>>,
    state: Mutex<State>,
    /// One was taken, or all are to end.
    news: Notify,
}

/// From one look at standbys to the next.
const PAUSE: Duration = Duration::from_secs(1);
/// Time that one may take to say that it is there when it is needed: what is stopped must not hold up a run.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Time in which nodes are asked which of them has one.
const LOOK: Duration = Duration::from_secs(15);
/// The shortest time after which one that says nothing stands still.
const STILL_MIN: Duration = Duration::from_secs(5);
/// Time that those which end with the run may take for it.
const ENDING: Duration = Duration::from_secs(10);
/// From a try to begin one to the next where there is no room, and the longest where it failed again and again.
const RETRY: Duration = Duration::from_secs(5);
const RETRY_MAX: Duration = Duration::from_mins(5);

/// The pause before another is begun where so many in a row were not: for lack of room, or since they failed.
fn pause_after(failures: u32, for_room: bool) -> Duration {
    match for_room {
        true => RETRY,
        false => (RETRY * 2_u32.saturating_pow(failures.saturating_sub(1).min(8))).min(RETRY_MAX),
    }
}

/// The name of a standby among the actors of its run.
fn name_of(standby: u32) -> String {
    format!("standby-{standby}")
}

impl<'a> Standbys<'a> {
    /// Those of a run that has not begun.
    ///
    /// # Errors
    /// Their number cannot be told.
    pub(super) fn new(
        system: &'a System,
        plan: &'a PretrainPlan,
        board: &'a RecoveryBoard,
        desk: &Desk,
    ) -> Result<Self, Failure> {
        let count = plan.standbys.of(&BTreeMap::new());
        count.map_err(|error| Failure::error(error).fatal())?;
        let state = State {
            next: 0,
            ready: BTreeMap::new(),
            sharing: plan.sharing,
            failures: 0,
            next_try: Timestamp::default(),
            told_missing: false,
            closed: false,
        };
        Ok(Self {
            system,
            plan,
            board,
            reports: desk.reports.clone(),
            members: desk.members.clone(),
            state: Mutex::new(state),
            news: Notify::new(),
        })
    }

    /// Keeps as many as there are to be, up to the end of the run.
    pub(super) async fn keep(&self) {
        if self.plan.standbys == StandbyCount::NONE {
            return;
        }
        join(self.watch_over(), self.fill()).await;
        let ready = std::mem::take(&mut self.state.lock().ready);
        self.publish();
        record_missing(0, "the run is over");
        join_all(
            ready
                .into_values()
                .map(async |it| self.end(it.member, "the run is over").await),
        )
        .await;
    }

    /// Has all end.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.news.notify_waiters();
    }

    fn is_closed(&self) -> bool {
        self.state.lock().closed
    }

    /// Waits for news, for this long at most.
    async fn rest(&self, pause: Duration) {
        let news = self.news.notified();
        if !self.is_closed() {
            // Both are reasons to look again.
            let _ = Clock::timeout(pause, news).await;
        }
    }

    /// Those of the run, as its members.
    pub(super) fn members(&self) -> Vec<Member> {
        let state = self.state.lock();
        let members = state.ready.iter().map(|(standby, it)| {
            let process = self.system.admin().process_of(it.member);
            (name_of(*standby), it.member.id(), process)
        });
        members.collect()
    }

    fn publish(&self) {
        let own = self.members();
        self.members.send_modify(|all| {
            all.retain(|(name, ..)| !name.starts_with("standby-"));
            all.extend(own);
        });
    }

    fn tell(&self, standby: u32, state: StandbyState, why: String) {
        tracing::info!(standby, "{why}");
        // A run goes on when nobody listens.
        let _ = self.reports.send(Report::Standby {
            standby,
            state,
            why,
        });
    }

    /// Asks those that wait whether they are there, again and again. What does not answer is ended, and so is what waits
    /// on a node that ranks avoid.
    async fn watch_over(&self) {
        let still = self.plan.recovery.patience.max(STILL_MIN);
        while !self.is_closed() {
            let avoided = self.board.avoided();
            let ready = self.state.lock().ready.clone();
            let asked = join_all(ready.into_iter().map(async |(standby, it)| {
                let why = match it.member.ask(Present).timeout(still).await {
                    Ok(()) if avoided.contains(&it.node) => "its node is avoided".to_owned(),
                    Ok(()) => return,
                    Err(error) => error.to_string(),
                };
                // It may have been taken meanwhile.
                if self.state.lock().ready.remove(&standby).is_some() {
                    self.lost(standby, &it, &why);
                }
            }));
            let closed = std::pin::pin!(self.closed());
            select(std::pin::pin!(asked), closed).await;
            self.rest(PAUSE).await;
        }
    }

    /// Resolves when all are to end.
    async fn closed(&self) {
        while !self.is_closed() {
            self.rest(PAUSE).await;
        }
    }

    /// One that waited is no more.
    fn lost(&self, standby: u32, it: &Waiting, why: &str) {
        self.system.admin().end_process_of(it.member.id(), why);
        self.due_at_once();
        self.publish();
        let why = format!("standby {standby} on node {} is lost: {why}", it.node);
        self.tell(standby, StandbyState::Lost, why);
    }

    /// What was in the way before may be so no more.
    fn due_at_once(&self) {
        self.state.lock().next_try = Timestamp::default();
        self.news.notify_waiters();
    }

    /// The number of the next one, where there is one to begin now.
    fn due(&self) -> Option<(u32, BTreeMap<u32, String>)> {
        // Ranks that are placed again have the first choice of what is free.
        let of_ranks = self
            .board
            .with(|state| state.at_work.then(|| state.nodes.clone()))?;
        // It was told at the beginning.
        let wanted = self.plan.standbys.of(&of_ranks).unwrap_or_default();
        let mut state = self.state.lock();
        let is_due = Clock::now() >= state.next_try && (state.ready.len() as u32) < wanted;
        is_due.then(|| {
            state.next += 1;
            (state.next - 1, of_ranks)
        })
    }

    /// Begins those that are missing.
    async fn fill(&self) {
        while !self.is_closed() {
            if let Some((standby, of_ranks)) = self.due() {
                let begun = self.begin(standby, of_ranks.into_values().collect());
                // One that is being made when all are to end ends when it is there.
                let late = async {
                    self.closed().await;
                    Clock::sleep(ENDING).await;
                };
                let begun = std::pin::pin!(begun);
                select(begun, std::pin::pin!(late)).await;
                continue;
            }
            self.rest(PAUSE).await;
        }
    }

    /// Begins one on a node without ranks, or else on any; those that ranks avoid are none.
    async fn begin(&self, standby: u32, of_ranks: BTreeSet<String>) {
        let avoided = self.board.avoided();
        let away: BTreeSet<String> = avoided.union(&of_ranks).cloned().collect();
        let mut made = self
            .spawned(standby, &avoiding(&self.plan.needs, &away))
            .await;
        let is_refused = |it: &Result<_, (bool, Failure)>| matches!(it, Err((true, _)));
        if is_refused(&made) {
            made = self
                .spawned(standby, &avoiding(&self.plan.needs, &avoided))
                .await;
        }
        let made = match made {
            Ok(member) => match self.greet(standby, member).await {
                Ok(node) => Ok(Waiting { member, node }),
                Err(failure) => {
                    self.end(member, &failure.message).await;
                    Err((false, failure))
                }
            },
            Err(error) => Err(error),
        };
        match made {
            Ok(waiting) => self.ready(standby, waiting).await,
            Err((for_room, failure)) => self.missing(standby, for_room, &failure.to_string()),
        }
    }

    /// A process for one, with its model; or why there is none, and whether that is for lack of room.
    async fn spawned(
        &self,
        standby: u32,
        needs: &Needs,
    ) -> Result<Ref<PretrainRank>, (bool, Failure)> {
        let sharing = self.state.lock().sharing;
        let args = RankArgs {
            // The first looks through files that it loads.
            rank: sharing.ranks() as u32 - 1,
            standby: Some(standby),
            ..self.plan.rank_args(sharing)
        };
        let alone = Mesh::new([("standby", 1)]);
        let alone = alone.map_err(|error| (false, Failure::error(error)))?;
        // It never waits in front of others.
        let needs = match needs.is_empty() {
            true => needs.clone(),
            false => needs.clone().wait_for_room(Duration::ZERO),
        };
        let group = self.system.spawn_group(alone, |_| args.clone());
        let group = group.restart(Restart::Temporary).isolated();
        let spawned = group.needs(|_| needs.clone()).await;
        let group = spawned.map_err(|error| {
            let why = error.error;
            (lacks_room(&why), Failure::error(why))
        })?;
        Ok(group.members()[0])
    }

    /// The node of one that has begun, which sees the checkpoints.
    async fn greet(&self, standby: u32, member: Ref<PretrainRank>) -> Result<String, Failure> {
        let mark = Mark::set(&self.plan.checkpoint)?;
        let mark = StandBy { mark: mark.name() };
        member
            .ask(mark)
            .timeout(LONG)
            .await
            .map_err(Failure::error)??;
        let admin = self.system.admin();
        let process = admin.process_of(member).into_iter().collect();
        let seen = admin.watch_ranks().look(&process, LOOK).await;
        let node = seen.into_iter().next().map(|it| it.node);
        node.ok_or_else(|| Failure::error(format!("the node of standby {standby} is not known")))
    }

    async fn ready(&self, standby: u32, waiting: Waiting) {
        let name = name_of(standby);
        // For people who look on. Nobody needs it to be found.
        if let Err(error) = self.system.register(&name, waiting.member).await {
            tracing::warn!(name, %error, "a standby has no name");
        }
        let why = format!("standby {standby} is ready on node {}", waiting.node);
        let was_missing = {
            let mut state = self.state.lock();
            state.ready.insert(standby, waiting);
            state.failures = 0;
            std::mem::take(&mut state.told_missing)
        };
        if was_missing {
            record_missing(0, &why);
        }
        self.publish();
        self.tell(standby, StandbyState::Ready, why);
    }

    /// One could not be begun: it is tried again, and told once.
    fn missing(&self, standby: u32, for_room: bool, why: &str) {
        let is_told = {
            let mut state = self.state.lock();
            // Its number is free.
            state.next = standby;
            state.failures += 1;
            state.next_try = Clock::now().after(pause_after(state.failures, for_room));
            std::mem::replace(&mut state.told_missing, true)
        };
        if is_told {
            return;
        }
        let why = match for_room {
            true => format!("standby {standby} waits for room: {why}"),
            false => format!("standby {standby} has not begun, and is tried again: {why}"),
        };
        record_missing(1, &why);
        self.tell(standby, StandbyState::Missing, why);
    }

    async fn end(&self, member: Ref<PretrainRank>, why: &str) {
        if Clock::timeout(ENDING, member.stop()).await.is_none() {
            self.system.admin().end_process_of(member.id(), why);
        }
    }

    /// Lets all go: ranks have no room.
    pub(super) fn give_way(&self) {
        let ready = std::mem::take(&mut self.state.lock().ready);
        for (standby, it) in ready {
            self.lost(standby, &it, "ranks that are lost need its room");
        }
    }

    /// Those that are begun from now on have a part of the model as ranks share it so.
    pub(super) fn follow(&self, sharing: Sharing) {
        self.state.lock().sharing = sharing;
    }

    /// Has standbys take the numbers of ranks that are not left, and answers those which did. Where one does not answer,
    /// another that is ready takes its place.
    pub(super) async fn take(
        &self,
        left: &BTreeMap<usize, Ref<PretrainRank>>,
        sharing: Sharing,
        recovery: &Recovery,
    ) -> BTreeMap<usize, Ref<PretrainRank>> {
        let nodes = self.board.with(|state| state.nodes.clone());
        let of_left = nodes.into_iter().map(|(rank, node)| (rank as usize, node));
        let mut of_left: BTreeMap<usize, String> = of_left
            .filter(|(rank, _)| left.contains_key(rank))
            .collect();
        let mut lost: BTreeSet<usize> = (0..sharing.ranks())
            .filter(|rank| !left.contains_key(rank))
            .collect();
        let mut taken = BTreeMap::new();
        loop {
            let pairs = self.paired(&lost, &of_left, sharing);
            if pairs.is_empty() {
                break;
            }
            let asked = pairs.into_iter().map(async |(rank, standby, it)| {
                self.takes(rank, standby, &it, sharing, recovery).await
            });
            for (rank, it) in join_all(asked).await.into_iter().flatten() {
                lost.remove(&rank);
                of_left.insert(rank, it.node);
                taken.insert(rank, it.member);
            }
        }
        self.publish();
        self.due_at_once();
        taken
    }

    /// Lost ranks with the standbys that are to take their numbers, which wait no more.
    fn paired(
        &self,
        lost: &BTreeSet<usize>,
        of_left: &BTreeMap<usize, String>,
        sharing: Sharing,
    ) -> Vec<(usize, u32, Waiting)> {
        let avoided = self.board.avoided();
        let mut state = self.state.lock();
        let free = state
            .ready
            .iter()
            .filter(|(_, it)| !avoided.contains(&it.node));
        let free = free
            .map(|(standby, it)| (*standby, it.node.clone()))
            .collect();
        let pairs = replacements(lost, of_left, &free, sharing).into_iter();
        let take = |(rank, standby)| Some((rank, standby, state.ready.remove(&standby)?));
        pairs.filter_map(take).collect()
    }

    /// Has one take this number. It is lost if it does not.
    async fn takes(
        &self,
        rank: usize,
        standby: u32,
        it: &Waiting,
        sharing: Sharing,
        recovery: &Recovery,
    ) -> Option<(usize, Waiting)> {
        if let Err(failure) = become_rank(it.member, rank as u32, sharing.ranks() as u32).await {
            self.lost(standby, it, &failure.message);
            return None;
        }
        if let Err(error) = self.system.unregister(&name_of(standby), it.member).await {
            tracing::debug!(standby, %error, "a standby had no name");
        }
        let placed = PlacedRank {
            rank: rank as u32,
            node: it.node.clone(),
        };
        // A run goes on when nobody listens.
        let _ = self
            .reports
            .send(Report::of_recovery(recovery.taken(&placed, standby)));
        Some((rank, it.clone()))
    }
}

/// Has a standby be this rank.
async fn become_rank(member: Ref<PretrainRank>, rank: u32, ranks: u32) -> Result<(), Failure> {
    member
        .ask(Present)
        .timeout(AT_ONCE)
        .await
        .map_err(Failure::error)?;
    let take = TakeRank { rank, ranks };
    member
        .ask(take)
        .timeout(LONG)
        .await
        .map_err(Failure::error)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standbys_that_fail_are_begun_less_and_less_often() {
        let seconds = |failures, for_room| pause_after(failures, for_room).as_secs();
        assert_eq!(
            [1, 2, 3, 7, 1000].map(|it| seconds(it, false)),
            [5, 10, 20, 300, 300]
        );
        assert_eq!(
            [1, 1000].map(|it| seconds(it, true)),
            [5, 5],
            "room may be there soon"
        );
    }
}
