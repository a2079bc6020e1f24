//! The cause where calls do not end: who waits for whom, from any rank on to one whose state others do not explain.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use odeon_collective::{CallState, CollectiveCall, FlowLabel, FlowMember, FlowPlace, FlowStage};

use super::cause::{FlowCause, FlowFault};
use super::look::{GroupLook, RankLook, RankWindow};
use super::pace::starves;
use super::trigger::TriggerKind;

/// The time without a beat after which a process counts as stopped: many beats, since machines are busy at times.
const SILENT: Duration = Duration::from_millis(1_500);
/// The same where nobody waits for it, as between steps: so long is no matter of load.
const SILENT_ALONE: Duration = Duration::from_secs(10);

/// The cause of a stall, and who is to blame.
pub(super) fn cause(ranks: &[RankWindow], now: Duration) -> Option<(FlowCause, Vec<FlowMember>)> {
    let waits = Waits::new(ranks, now);
    let found = waits.mismatch().or_else(|| waits.blamed());
    found.or_else(|| waits.stopped())
}

/// The state of a rank that others do not explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Blamed {
    /// A rank with records, by its index.
    Rank(usize, FlowFault),
    /// A rank of a group that was never seen.
    Absent(u64, u32),
}

/// Why a rank waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    /// It does not: it is to blame.
    Blamed(Blamed),
    /// For another, by its index, in the group in which it has the call under way.
    For(usize),
    /// Nothing is known of why.
    Unknown,
}

/// Where a way from a rank to the one that it waits for, and on, ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Blamed(Blamed),
    /// In a circle, with one of its ranks.
    Circle(usize),
    Unknown,
}

/// A call of a rank, by its index, in one of its groups.
type MadeCall<'a> = (usize, &'a GroupLook, CollectiveCall);

/// All ranks with what they are in, at one moment.
struct Waits<'a> {
    looks: Vec<Option<&'a RankLook>>,
    windows: &'a [RankWindow],
    now: Duration,
    /// By group and rank in it.
    members: HashMap<(u64, u32), (usize, &'a GroupLook)>,
}

impl<'a> Waits<'a> {
    fn new(windows: &'a [RankWindow], now: Duration) -> Self {
        let looks: Vec<_> = windows.iter().map(|it| it.latest(now)).collect();
        let mut members = HashMap::new();
        for (index, look) in looks.iter().enumerate() {
            for group in look.iter().flat_map(|look| &look.groups) {
                members.insert((group.place.group, group.place.rank), (index, group));
            }
        }
        Self {
            looks,
            windows,
            now,
            members,
        }
    }

    /// Why a rank is where it is.
    fn waiting(&self, index: usize) -> Waiting {
        let Some(look) = self.looks[index] else {
            return Waiting::Unknown;
        };
        let blamed = |fault| Waiting::Blamed(Blamed::Rank(index, fault));
        if look.silent > SILENT {
            return blamed(FlowFault::Stopped);
        }
        let Some(call) = look.under_way() else {
            return blamed(if starves(&self.windows[index], self.now) {
                FlowFault::Starved
            } else {
                FlowFault::Producer
            });
        };
        match (call.progress.stage(), call.progress.to, call.progress.from) {
            (FlowStage::Sending, ..) => blamed(FlowFault::Sender),
            (FlowStage::Blocked, Some(to), _) => self.at_peer(index, call, to, false),
            (.., Some(from)) => self.at_peer(index, call, from, true),
            (_, Some(to), None) => self.at_peer(index, call, to, false),
            (_, None, None) => self.at_windows(call),
        }
    }

    /// A rank waits for another of its group: for what that sends, or for it to take what it was sent.
    fn at_peer(&self, index: usize, call: &GroupLook, peer: u32, receives: bool) -> Waiting {
        let place = call.place;
        let Some((other, theirs)) = self.members.get(&(place.group, peer)) else {
            return self.unseen(place.group, peer);
        };
        let is_there = theirs.launched >= call.launched;
        if !receives || !is_there {
            // Where it is in the call and does not take what is here, it waits for this rank as far as it knows.
            return match self.looks[*other].and_then(RankLook::under_way) {
                Some(its) if !receives && its.place.group == place.group && is_there => {
                    self.untaken(*other, its, place.rank)
                }
                _ => Waiting::For(*other),
            };
        }
        let sends_here = theirs.progress.to == Some(place.rank);
        if sends_here && theirs.progress.sent > theirs.progress.taken {
            return Waiting::Blamed(Blamed::Rank(index, FlowFault::Acknowledgement));
        }
        Waiting::For(*other)
    }

    /// A rank that does not take what another has sent it: it waits for that, or for a third one.
    fn untaken(&self, index: usize, call: &GroupLook, sender: u32) -> Waiting {
        if call.progress.from == Some(sender) {
            Waiting::Blamed(Blamed::Rank(index, FlowFault::Acknowledgement))
        } else {
            Waiting::For(index)
        }
    }

    /// A rank of a group was never seen: its process may just have started, unless all others were seen long ago.
    fn unseen(&self, group: u64, rank: u32) -> Waiting {
        Waiting::Blamed(Blamed::Absent(group, rank))
    }

    /// A rank has come to a round of windows, and some others have not.
    fn at_windows(&self, call: &GroupLook) -> Waiting {
        let place = call.place;
        let others = (0..place.world).filter(|rank| *rank != place.rank);
        let mut behind = None;
        for rank in others {
            let Some((other, theirs)) = self.members.get(&(place.group, rank)) else {
                return self.unseen(place.group, rank);
            };
            let is_in = theirs.launched == call.launched && theirs.state == CallState::UnderWay;
            let came = (
                theirs.launched,
                if is_in { theirs.progress.sent } else { 0 },
            );
            let is_behind = came.0 < call.launched || (is_in && came.1 < call.progress.sent);
            if is_behind && behind.is_none_or(|(least, _)| came < least) {
                behind = Some((came, *other));
            }
        }
        behind.map_or(Waiting::Unknown, |(_, other)| Waiting::For(other))
    }

    /// Follows every rank that waits to whoever is to blame, and takes the one that most come to. A job stands still
    /// only where half of its ranks wait, which are most of the others: where few do, the rest goes on.
    fn blamed(&self) -> Option<(FlowCause, Vec<FlowMember>)> {
        let mut votes: BTreeMap<Blamed, usize> = BTreeMap::new();
        let (mut circle, mut in_circle) = (None, 0);
        for (index, end) in self.ends().into_iter().enumerate() {
            let is_waiting = self.looks[index].is_some_and(|it| it.under_way().is_some());
            match end {
                End::Blamed(blamed) if is_waiting => *votes.entry(blamed).or_default() += 1,
                End::Circle(rank) if is_waiting => {
                    in_circle += 1;
                    circle.get_or_insert(rank);
                }
                _ => {}
            }
        }
        let most = votes.into_iter().max_by_key(|(_, count)| *count);
        let found = match (most, circle) {
            (most, Some(first)) if most.is_none_or(|(_, count)| count < in_circle) => {
                let mut circle = vec![first];
                while let Waiting::For(next) = self.waiting(circle[circle.len() - 1])
                    && next != first
                {
                    circle.push(next);
                }
                self.of_circle(&circle, in_circle)
            }
            (Some((blamed, waiting)), _) => self.told(blamed, waiting),
            (None, _) => None,
        };
        found.filter(|(cause, _)| cause.waiting * 2 >= cause.ranks)
    }

    /// Ranks whose processes have been stopped for long while those of half or more are not, whoever waits for them: outside
    /// of collectives nobody does, but whoever wants the next step.
    fn stopped(&self) -> Option<(FlowCause, Vec<FlowMember>)> {
        let known: Vec<&RankLook> = self.looks.iter().flatten().copied().collect();
        let stopped: Vec<&RankLook> = known
            .iter()
            .filter(|it| it.silent > SILENT_ALONE)
            .copied()
            .collect();
        let lasts = stopped.iter().map(|it| it.silent).min()?;
        let cause = FlowCause {
            effect: TriggerKind::Stalled,
            fault: FlowFault::Stopped,
            place: None,
            peer: None,
            sequence: 0,
            waiting: 0,
            ranks: self.looks.len(),
            lasts,
            evidence: vec![("ranks stopped".to_owned(), stopped.len() as f64)],
        };
        let few = stopped.len() * 2 <= known.len();
        few.then(|| (cause, stopped.iter().map(|it| it.member).collect()))
    }

    /// Where the way of each rank ends, from the ones that wait to the ones that these wait for.
    fn ends(&self) -> Vec<End> {
        let mut ends: Vec<Option<End>> = vec![None; self.looks.len()];
        // The walk on which a rank was met.
        let mut met = vec![usize::MAX; self.looks.len()];
        for start in 0..ends.len() {
            let (mut at, mut way) = (start, vec![]);
            let end = loop {
                if let Some(end) = ends[at] {
                    break end;
                }
                if met[at] == start {
                    break End::Circle(at);
                }
                met[at] = start;
                way.push(at);
                match self.waiting(at) {
                    Waiting::Blamed(blamed) => break End::Blamed(blamed),
                    Waiting::Unknown => break End::Unknown,
                    Waiting::For(next) => at = next,
                }
            };
            for rank in way {
                ends[rank] = Some(end);
            }
        }
        ends.into_iter()
            .map(|end| end.unwrap_or(End::Unknown))
            .collect()
    }

    /// The cause in words that others can judge.
    fn told(&self, blamed: Blamed, waiting: usize) -> Option<(FlowCause, Vec<FlowMember>)> {
        let cause = |fault, place, peer, sequence, lasts| FlowCause {
            effect: TriggerKind::Stalled,
            fault,
            place,
            peer,
            sequence,
            waiting,
            ranks: self.looks.len(),
            lasts,
            evidence: vec![("ranks waiting".to_owned(), waiting as f64)],
        };
        match blamed {
            Blamed::Rank(index, fault) => {
                let look = self.looks[index]?;
                let of_call = look
                    .under_way()
                    .filter(|_| matches!(fault, FlowFault::Sender | FlowFault::Acknowledgement));
                let (place, sequence, lasts) = match of_call {
                    Some(call) => (Some(call.place), call.sequence, call.age),
                    None => self.missed(index, look),
                };
                let peer = of_call.and_then(|call| match fault {
                    FlowFault::Sender => call.progress.to,
                    _ => call.progress.from,
                });
                let lasts = if fault == FlowFault::Stopped {
                    look.silent
                } else {
                    lasts
                };
                Some((
                    cause(fault, place, peer, sequence, lasts),
                    vec![look.member],
                ))
            }
            Blamed::Absent(group, rank) => {
                let waiter = self
                    .members
                    .values()
                    .find(|(_, it)| it.place.group == group);
                let (_, waits) = waiter?;
                let place = FlowPlace {
                    rank,
                    member: FlowMember::default(),
                    ..waits.place
                };
                let fault = FlowFault::Absent;
                let cause = cause(fault, Some(place), None, waits.sequence, waits.age);
                Some((cause, vec![]))
            }
        }
    }

    /// The call that a rank has not made, for which one of its group has waited longest.
    fn missed(&self, index: usize, look: &RankLook) -> (Option<FlowPlace>, u64, Duration) {
        let mut longest = (None, 0, Duration::ZERO);
        for group in &look.groups {
            let others = (0..group.place.world).filter_map(|rank| {
                let (other, theirs) = self.members.get(&(group.place.group, rank))?;
                (*other != index).then_some(*theirs)
            });
            for theirs in others {
                let waits = theirs.state == CallState::UnderWay && theirs.launched > group.launched;
                if waits && theirs.age >= longest.2 {
                    longest = (Some(group.place), theirs.launched, theirs.age);
                }
            }
        }
        if longest.0.is_none() {
            let last = look.groups.iter().min_by_key(|it| it.age);
            longest.0 = last.map(|it| it.place);
        }
        longest
    }

    /// Ranks that wait for each other in a circle: who of them is in a call that others make only after the one that it
    /// has not made. Where nobody else can tell, all of them are named who could be it.
    fn of_circle(&self, circle: &[usize], waiting: usize) -> Option<(FlowCause, Vec<FlowMember>)> {
        let mut odd: Vec<(usize, &GroupLook)> = vec![];
        let mut most = (false, 0);
        for (number, index) in circle.iter().enumerate() {
            let next = circle[(number + 1) % circle.len()];
            let (call, look) = (self.looks[*index]?.under_way()?, self.looks[next]?);
            let is_missing =
                |it: &&GroupLook| it.place.group == call.place.group && it.launched < call.launched;
            let Some(missing) = look.groups.iter().find(is_missing) else {
                continue;
            };
            let made = self.made(call.place.label, call.place.world, call.launched);
            let score = (self.is_odd(next, look, missing)?, made);
            if score > most {
                most = score;
                odd.clear();
            }
            if score == most {
                odd.push((next, missing));
            }
        }
        let (culprit, missing) = *odd.first()?;
        let look = self.looks[culprit]?;
        let fault = if self.ahead(culprit, look, missing) > 1 {
            FlowFault::Skipped
        } else {
            FlowFault::Order
        };
        let (_, _, lasts) = self.missed(culprit, look);
        let cause = FlowCause {
            effect: TriggerKind::Stalled,
            fault,
            place: Some(missing.place),
            peer: None,
            sequence: missing.launched + 1,
            waiting,
            ranks: self.looks.len(),
            lasts,
            evidence: vec![("ranks that made the call".to_owned(), most.1 as f64)],
        };
        let who = odd.iter().filter_map(|it| Some(self.looks[it.0]?.member));
        Some((cause, who.collect()))
    }

    /// True where a rank is in a call that others make after the one that it has not made, or that nobody else is near.
    fn is_odd(&self, index: usize, look: &RankLook, missing: &GroupLook) -> Option<bool> {
        let kind = |it: &GroupLook| (it.place.label, it.place.world);
        let call = look.under_way()?;
        let others = self.looks.iter().enumerate().filter(|(at, _)| *at != index);
        let mut others = others.filter_map(|(_, it)| *it);
        let mut is_alone = true;
        let is_later = others.any(|it| {
            let of = |like: &GroupLook| it.groups.iter().find(|it| kind(it) == kind(like));
            let (Some(same), Some(left_out)) = (of(call), of(missing)) else {
                return false;
            };
            let is_here = same.launched >= call.launched;
            is_alone &= !is_here;
            is_here && left_out.launched > missing.launched && same.age < left_out.age
        });
        Some(is_later || is_alone)
    }

    fn each_group(&self) -> impl Iterator<Item = (usize, &GroupLook)> {
        let looks = self.looks.iter().enumerate();
        looks.flat_map(|(index, look)| {
            let groups = look.iter().flat_map(|look| &look.groups);
            groups.map(move |group| (index, group))
        })
    }

    /// Ranks that have made so many calls in their group of this kind.
    fn made(&self, label: FlowLabel, world: u32, launched: u64) -> usize {
        let of_kind = self.each_group();
        let of_kind = of_kind.filter(|(_, it)| (it.place.label, it.place.world) == (label, world));
        of_kind.filter(|(_, it)| it.launched >= launched).count()
    }

    /// Calls that a rank has made and that others make only after the one that it has not.
    fn ahead(&self, culprit: usize, look: &RankLook, missing: &GroupLook) -> usize {
        let kind = |it: &GroupLook| (it.place.label, it.place.world);
        let later = look.groups.iter().filter(|group| {
            if group.place.group == missing.place.group {
                return false;
            }
            let mut others = self.looks.iter().enumerate().filter_map(|(index, it)| {
                let it = (*it).filter(|_| index != culprit)?;
                let same = it.groups.iter().find(|it| kind(it) == kind(group))?;
                let left_out = it.groups.iter().find(|it| kind(it) == kind(missing))?;
                let both = same.launched >= group.launched && left_out.launched > missing.launched;
                both.then(|| same.age < left_out.age)
            });
            let is_in = group.state == CallState::UnderWay;
            match others.next() {
                Some(first) => first || others.any(|it| it),
                // Nobody has come so far: it is a call of the next step.
                None => is_in,
            }
        });
        let later: Vec<_> = later.collect();
        let beyond = |group: &&&GroupLook| {
            let made = self.made(group.place.label, group.place.world, group.launched);
            made <= 1 && group.state == CallState::UnderWay
        };
        later.len() + later.iter().filter(beyond).count()
    }

    /// Calls of one number in one group that differ: who has made another than most, groups of the same kind counted in.
    fn mismatch(&self) -> Option<(FlowCause, Vec<FlowMember>)> {
        let mut calls: BTreeMap<(u64, u64), Vec<MadeCall<'_>>> = BTreeMap::new();
        for (index, group) in self.each_group() {
            if group.state == CallState::Completed {
                continue;
            }
            if let Some((sequence, call)) = group.calls.back() {
                let key = (group.place.group, *sequence);
                calls.entry(key).or_default().push((index, group, *call));
            }
        }
        let differing = calls.into_iter().filter(|(_, made)| {
            let first = made.first().map(|it| it.2);
            made.iter().any(|it| Some(it.2) != first)
        });
        // The one that began first: others may follow from it.
        let ((_, sequence), made) = differing.max_by_key(|(_, made)| {
            let ages = made.iter().map(|it| it.1.age);
            ages.max().unwrap_or_default()
        })?;
        let place = made.first()?.1.place;
        let votes = self.votes(place.label, place.world, sequence);
        let votes_of = |call: &CollectiveCall| votes.get(call).copied().unwrap_or(0);
        let fewest = made.iter().map(|it| votes_of(&it.2)).min()?;
        let odd: Vec<_> = made.iter().filter(|it| votes_of(&it.2) == fewest).collect();
        let (_, group, call) = odd.first()?;
        let next = self.votes(place.label, place.world, sequence + 1);
        let fault = if next.contains_key(call) && odd.len() < made.len() {
            FlowFault::Skipped
        } else {
            FlowFault::Mismatch
        };
        let cause = FlowCause {
            effect: TriggerKind::Stalled,
            fault,
            place: Some(group.place),
            peer: None,
            sequence,
            waiting: made.len() - odd.len(),
            ranks: self.looks.len(),
            lasts: group.age,
            evidence: vec![("elements".to_owned(), call.count as f64)],
        };
        let who = odd.iter().filter_map(|it| Some(self.looks[it.0]?.member));
        Some((cause, who.collect()))
    }

    /// The number of ranks that made each call of this number in groups of this kind.
    fn votes(&self, label: FlowLabel, world: u32, number: u64) -> HashMap<CollectiveCall, usize> {
        let mut votes = HashMap::new();
        for (_, group) in self.each_group() {
            if (group.place.label, group.place.world) != (label, world) {
                continue;
            }
            let call = group.calls.iter().find(|(known, _)| *known == number);
            if let Some((_, call)) = call {
                *votes.entry(*call).or_default() += 1;
            }
        }
        votes
    }
}
