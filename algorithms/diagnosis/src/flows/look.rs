//! Records of a process reduced to what the analysis needs: the same size however many calls there were.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use odeon_collective::{
    CallState, CollectiveCall, FlowMember, FlowPlace, FlowProgress, FlowReading, FlowRecord,
    FlowStage, LastCall, Operation,
};
use serde::{Deserialize, Serialize};

/// A rank between two looks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankLook {
    /// Its owner.
    pub member: FlowMember,
    /// The time since its process last beat, at the look.
    pub silent: Duration,
    /// Beats since the look before.
    pub beats: u32,
    /// The time since the look before in which its thread was ready to run and had no processor.
    pub starved: Duration,
    /// Records that were lost, so far.
    pub lost: u64,
    /// Its groups.
    pub groups: Vec<GroupLook>,
}

/// A rank in one of its groups between two looks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupLook {
    /// Where it is.
    pub place: FlowPlace,
    /// Calls of all ranks that it has begun, so far.
    pub launched: u64,
    /// Calls that have ended well since the look before.
    pub completed: u32,
    /// Its last call.
    pub state: CallState,
    /// The number of that.
    pub sequence: u64,
    /// The progress of that.
    pub progress: FlowProgress,
    /// The time since it began, at the look.
    pub age: Duration,
    /// Beats since the look before in which a call was under way, by stage in the order of [`FlowStage::ALL`].
    pub stages: [u32; 4],
    /// Its last calls of all ranks with their numbers, the last one last.
    pub calls: VecDeque<(u64, CollectiveCall)>,
}

/// Calls that are told of each group: of a step or so.
const CALLS: usize = 4;

/// The part of a process's records that was read, to tell what is new.
#[derive(Clone, Debug, Default)]
pub struct FlowSummary {
    beats: Option<u64>,
    groups: BTreeMap<(FlowMember, u64), Known>,
}

/// A group as it was known at the look before.
#[derive(Clone, Debug, Default)]
struct Known {
    /// The moment of the first look at which its communicator was there.
    since: u64,
    /// Its last call at the look before; nothing where its communicator was not seen yet.
    last: Option<LastCall>,
    calls: VecDeque<(u64, CollectiveCall)>,
    /// Its last call, where that has failed: its communicator may be gone.
    failed: Option<FlowRecord>,
}

impl Known {
    fn note(&mut self, record: &FlowRecord) {
        let of_pair = matches!(record.call.operation, Operation::Send | Operation::Receive);
        let newer = self
            .calls
            .back()
            .is_none_or(|(known, _)| *known < record.sequence);
        if !of_pair && newer && record.sequence > 0 {
            self.calls.push_back((record.sequence, record.call));
            if self.calls.len() > CALLS {
                self.calls.pop_front();
            }
        }
        if record.state == CallState::Failed {
            self.failed = Some(*record);
        } else if self.failed.is_some_and(|it| record.began >= it.at) {
            self.failed = None;
        }
    }
}

/// The key of the group of a record.
const fn key_of(record: &FlowRecord) -> (FlowMember, u64) {
    (record.place.member, record.place.group)
}

/// True where a call ended so long before a reading that nobody is told of it any more.
const fn is_old(record: &FlowRecord, reading: &FlowReading) -> bool {
    reading.at.saturating_sub(record.at) > WINDOW.as_nanos() as u64
}

impl FlowSummary {
    /// The ranks of the process since the reading before, in the order of their members. At the first reading there is
    /// none before, so it counts no beats, and the first look at a group counts no calls.
    pub fn look(&mut self, reading: &FlowReading) -> Vec<RankLook> {
        let before = self.beats.replace(reading.beats);
        let beats = reading.beats - before.unwrap_or(reading.beats).min(reading.beats);
        let mut stages: BTreeMap<(FlowMember, u64), [u32; 4]> = BTreeMap::new();
        for record in &reading.records {
            let key = key_of(record);
            self.groups.entry(key).or_default().note(record);
            if before.is_some() && record.state == CallState::UnderWay {
                let counts = stages.entry(key).or_default();
                counts[record.progress.stage() as usize] += 1;
            }
        }
        for LastCall { record, .. } in &reading.last {
            let known = self.groups.entry(key_of(record)).or_default();
            known.note(record);
            if known.last.is_none() {
                known.since = reading.at;
            }
        }
        let gone = self.gone(reading);
        let is_dead = |it: &LastCall| {
            it.record.state == CallState::Failed && self.has_gone_on(&it.record, reading)
        };
        let there: Vec<_> = reading.last.iter().filter(|it| !is_dead(it)).collect();
        let mut ranks: BTreeMap<FlowMember, RankLook> = BTreeMap::new();
        let since = |then: u64| Duration::from_nanos(reading.at.saturating_sub(then));
        for last in there.into_iter().chain(&gone) {
            let record = &last.record;
            let key = key_of(record);
            let known = self.groups.entry(key).or_default();
            let before = known.last.unwrap_or(*last);
            let rank = ranks.entry(key.0).or_insert_with(|| RankLook {
                member: key.0,
                silent: since(reading.beat),
                beats: beats as u32,
                starved: Duration::ZERO,
                lost: reading.lost,
                groups: vec![],
            });
            // A handler's calls are of one thread, whatever their groups.
            let starved = Duration::from_nanos(last.starved.saturating_sub(before.starved));
            if before.starved > 0 {
                rank.starved = rank.starved.max(starved);
            }
            rank.groups.push(GroupLook {
                place: record.place,
                launched: last.launched,
                completed: last.completed.saturating_sub(before.completed) as u32,
                state: record.state,
                sequence: record.sequence,
                progress: record.progress,
                age: since(record.began),
                stages: stages.get(&key).copied().unwrap_or_default(),
                calls: known.calls.clone(),
            });
            known.last = Some(*last);
        }
        self.groups.retain(|key, _| {
            let mut last = reading.last.iter().chain(&gone);
            last.any(|it| key_of(&it.record) == *key)
        });
        ranks.into_values().collect()
    }

    /// Groups whose communicators are gone after a call that has just failed, with which others may be compared.
    fn gone(&self, reading: &FlowReading) -> Vec<LastCall> {
        let gone = self.groups.iter().filter_map(|(key, known)| {
            let failed = known.failed?;
            let is_there = reading.last.iter().any(|it| key_of(&it.record) == *key);
            if is_there || is_old(&failed, reading) || self.has_gone_on(&failed, reading) {
                return None;
            }
            Some(LastCall {
                record: failed,
                launched: known.last.map_or(0, |it| it.launched).max(failed.sequence),
                completed: known.last.map_or(0, |it| it.completed),
                starved: known.last.map_or(0, |it| it.starved),
            })
        });
        gone.collect()
    }

    /// True where the member of a call that has failed has gone on without that group: in one that it has joined since,
    /// or, a while after, in any other.
    fn has_gone_on(&self, failed: &FlowRecord, reading: &FlowReading) -> bool {
        let is_old = is_old(failed, reading);
        let mut last = reading.last.iter().map(|it| &it.record);
        last.any(|it| {
            let key = key_of(it);
            let is_other = key.0 == failed.place.member && key.1 != failed.place.group;
            let known = self.groups.get(&key);
            let is_new = known.is_some_and(|known| known.since > failed.at);
            is_other && it.began >= failed.at && (is_new || is_old)
        })
    }
}

/// The looks at a rank in the last seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct RankWindow {
    member: FlowMember,
    looks: VecDeque<(Duration, RankLook)>,
    progressed: Duration,
}

/// The time for which looks are kept.
pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// A rank that was not looked at for so long is not known.
const UNKNOWN: Duration = Duration::from_secs(4);

impl RankWindow {
    /// A rank that nobody has looked at, from this moment on.
    #[must_use]
    pub const fn new(member: FlowMember, at: Duration) -> Self {
        Self {
            member,
            looks: VecDeque::new(),
            progressed: at,
        }
    }

    /// Its owner.
    #[must_use]
    pub const fn member(&self) -> FlowMember {
        self.member
    }

    /// Takes in the next look at this moment.
    pub fn push(&mut self, at: Duration, look: RankLook) {
        if look.groups.iter().any(|it| it.completed > 0) {
            self.progressed = at;
        }
        self.looks.push_back((at, look));
        while self
            .looks
            .front()
            .is_some_and(|(then, _)| at.saturating_sub(*then) > WINDOW)
        {
            self.looks.pop_front();
        }
    }

    /// When a call was last seen to have ended.
    #[must_use]
    pub const fn progressed(&self) -> Duration {
        self.progressed
    }

    /// The last look, unless that is too long ago.
    pub(super) fn latest(&self, now: Duration) -> Option<&RankLook> {
        let last = self.looks.back();
        let fresh = last.filter(|(at, _)| now.saturating_sub(*at) < UNKNOWN);
        fresh.map(|(_, look)| look)
    }

    /// The looks of so long before now, the newest first.
    pub(super) fn lately(&self, now: Duration, time: Duration) -> impl Iterator<Item = &RankLook> {
        let looks = self.looks.iter().rev();
        let looks = looks.take_while(move |(at, _)| now.saturating_sub(*at) < time);
        looks.map(|(_, look)| look)
    }
}

impl RankLook {
    /// The call that it is in.
    pub(super) fn under_way(&self) -> Option<&GroupLook> {
        let calls = self
            .groups
            .iter()
            .filter(|it| it.state == CallState::UnderWay);
        calls.min_by_key(|it| it.age)
    }
}

impl GroupLook {
    pub(super) const fn beats_of(&self, stage: FlowStage) -> u32 {
        self.stages[stage as usize]
    }
}

#[cfg(test)]
mod tests;
