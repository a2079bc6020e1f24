//! The look at the ranks of a gang now and then: those that hold up the others become numbers that observers know, and
//! news for the gang.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use odeon::{Clock, Group, telemetry};
use odeon_diagnosis::gang::{OddNumber, RankDetectors, RankLook, RankTrouble, StillRanks};
use odeon_diagnosis::{Detector, Finding};

use crate::exec::{Activity, Exec, StandsAt, Work};

/// The times after which ranks are named, and ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Who stands still or is slow for so long is named.
    pub(super) named_after: Duration,
    /// Who stands still for so long has failed.
    pub(super) hang_after: Option<Duration>,
}

/// A rank that is in trouble, as those who look on hear of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trouble {
    pub(super) rank: usize,
    pub(super) pid: u32,
    /// What it is, behind the name of the rank.
    pub(super) what: String,
    /// Set where it stands still for longer than it may.
    pub(super) hangs: bool,
}

/// Watches the ranks of one life.
#[derive(Debug)]
pub(super) struct ProgressWatch {
    members: Group<Exec>,
    nodes: Vec<String>,
    pause: Duration,
    /// Time that ranks may take to say where their programs stand.
    stack_patience: Duration,
    found: RankDetectors,
    hangs: Option<StillRanks>,
    /// What was told of ranks, and goes on.
    told: BTreeMap<(usize, &'static str), Told>,
}

#[derive(Clone, Debug)]
struct Told {
    pid: u32,
    since: Duration,
    /// The words of the first time, without how long it lasts.
    what: String,
    /// Where it stood then, behind these words.
    stands: String,
}

impl ProgressWatch {
    pub(super) fn new(members: Group<Exec>, nodes: Vec<String>, patience: Patience) -> Self {
        let (ranks, now) = (nodes.len(), now());
        let shortest = patience.hang_after.map_or(patience.named_after, |limit| {
            limit.min(patience.named_after)
        });
        let hangs = patience
            .hang_after
            .map(|limit| StillRanks::new(ranks, limit, now).always_names());
        Self {
            members,
            nodes,
            pause: PAUSE_MAX.min(shortest / 8),
            stack_patience: patience.hang_after.map_or(STACK_PATIENCE, |limit| {
                STACK_PATIENCE.min((limit / 4).max(STACK_PATIENCE_MIN))
            }),
            found: RankDetectors::new(ranks, patience.named_after, now),
            hangs,
            told: BTreeMap::new(),
        }
    }

    /// Waits until the next look.
    pub(super) async fn pause(&self) {
        Clock::sleep(self.pause).await;
    }

    /// Looks at all ranks, records those in trouble, and answers the news.
    pub(super) async fn look(&mut self) -> Vec<Trouble> {
        let asked = self.members.members().iter().map(|member| {
            let work = member.ask(Work).timeout(PATIENCE);
            async { work.await.ok().flatten().map(seen) }
        });
        let seen: Vec<Option<RankLook>> = join_all(asked).await;
        let at = now();
        let mut news = vec![];
        let found = self.found.observe(&seen, at);
        let hung = self.hangs.as_mut().map(|it| it.observe(&seen, at));
        let hung = hung.unwrap_or_default();
        let is_new = |it: &&Finding<_>| !self.told.contains_key(&(it.who[0], series(&it.cause)));
        let new = found.iter().chain(&hung).filter(is_new);
        let new: BTreeMap<usize, &RankTrouble> = new.map(|it| (it.who[0], &it.cause)).collect();
        let stands = new.into_iter().map(async |(rank, trouble)| {
            let stands = self.stands_at(rank, trouble).await;
            (rank, stands)
        });
        // All at once, as the next look waits for them.
        let stands: BTreeMap<usize, String> = join_all(stands).await.into_iter().collect();
        let stands = |rank: usize| stands.get(&rank).cloned().unwrap_or_default();
        let pid = |rank: usize| seen[rank].as_ref().map_or(0, |it| it.pid);
        let mut told = BTreeMap::new();
        for Finding { who, cause, since } in found {
            let (rank, name) = (who[0], series(&cause));
            let it = match self.told.remove(&(rank, name)) {
                Some(known) => known,
                None => {
                    let stands = stands(rank);
                    news.push(Trouble {
                        rank,
                        pid: pid(rank),
                        what: format!("{cause}{stands}"),
                        hangs: false,
                    });
                    let what = match &cause {
                        RankTrouble::Still { others, .. } => others.to_string(),
                        cause => cause.to_string(),
                    };
                    Told {
                        pid: pid(rank),
                        since,
                        what,
                        stands,
                    }
                }
            };
            it.record(rank, name, &self.nodes[rank], at.saturating_sub(it.since));
            told.insert((rank, name), it);
        }
        for ((rank, name), over) in std::mem::replace(&mut self.told, told) {
            over.record(rank, name, &self.nodes[rank], Duration::ZERO);
        }
        for Finding { who, cause, .. } in hung {
            let told = self.told.get(&(who[0], series(&cause)));
            let stands = told.map_or_else(|| stands(who[0]), |it| it.stands.clone());
            news.push(Trouble {
                rank: who[0],
                pid: pid(who[0]),
                what: format!("{cause}{stands}"),
                hangs: true,
            });
        }
        news
    }

    /// Where a rank stands, behind what is wrong with it; empty where that says nothing.
    async fn stands_at(&self, rank: usize, trouble: &RankTrouble) -> String {
        let (RankTrouble::Still { .. } | RankTrouble::Slow { .. }, Some(member)) =
            (trouble, self.members.member(rank))
        else {
            return String::new();
        };
        match member.ask(StandsAt).timeout(self.stack_patience).await {
            Ok(Ok(Some(stack))) => format!("; it stands at {stack}"),
            Ok(Err(why)) => format!("; where it stands is not known: {why}"),
            Ok(Ok(None)) | Err(_) => String::new(),
        }
    }
}

impl Told {
    /// Notes for how long a rank has been in trouble; zero when it is no more.
    fn record(&self, rank: usize, name: &'static str, node: &str, lasts: Duration) {
        telemetry::gauge(name, lasts.as_secs_f64())
            .with("rank", rank as u64)
            .with("node", node.to_owned())
            .with("pid", u64::from(self.pid))
            .with("what", format!("{}{}", self.what, self.stands))
            .record();
    }
}

/// The number by which observers know of a kind of trouble.
const fn series(trouble: &RankTrouble) -> &'static str {
    match trouble {
        RankTrouble::Still { .. } => "gang.rank_still_s",
        RankTrouble::Slow { .. } => "gang.rank_slow_s",
        RankTrouble::NotFinite { .. } => "gang.rank_not_finite_s",
    }
}

fn seen(work: Activity) -> RankLook {
    let (samples, waiting) = work.samples;
    let odd_number = work
        .odd_number
        .map(|(name, step, at_us)| OddNumber { name, step, at_us });
    RankLook {
        pid: work.pid,
        cpu_ms: work.cpu_ms,
        lines: work.lines,
        step: work.step,
        samples,
        waiting,
        odd_number,
    }
}

/// The time since the clock began.
fn now() -> Duration {
    Duration::from_nanos(Clock::now().0)
}

/// The longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_millis(2_500);
/// Time that a rank may take to say where its program stands; less where ranks that stand still are soon ended, at least
/// this much.
const STACK_PATIENCE: Duration = Duration::from_secs(16);
const STACK_PATIENCE_MIN: Duration = Duration::from_secs(1);
/// Time that a rank may take to say what it has done.
const PATIENCE: Duration = Duration::from_secs(1);
