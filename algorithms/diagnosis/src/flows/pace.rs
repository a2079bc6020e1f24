//! The cause where calls end, and later than they used to: the rank that waits least while all others wait.

use std::collections::HashMap;
use std::time::Duration;

use odeon_collective::{FlowMember, FlowPlace, FlowStage};

use super::cause::{FlowCause, FlowFault};
use super::look::{RankLook, RankWindow};
use super::trigger::TriggerKind;

/// The time over which it is counted who waits.
const LATELY: Duration = Duration::from_secs(5);
/// Beats of a rank without which nothing is said: of half of that time.
const BEATS_MIN: u32 = 25;
/// The least part of the time for which half of all ranks wait, where one is to blame.
const WAITS_MIN: f64 = 0.4;
/// The least difference of the one to blame to the one that waits least of the others, as a part of the time.
const APART_MIN: f64 = 0.25;
/// The part of the time without a processor from which on that is the cause.
const STARVED_MIN: f64 = 0.3;

/// The time that a rank has spent of late, in beats.
#[derive(Clone, Debug, Default)]
struct Spent {
    beats: f64,
    sending: f64,
    waiting: f64,
    /// Waits for what another has sent.
    refuted: f64,
    /// By group and the rank there: in which it was seen most, with the peer.
    flow: Option<(FlowPlace, Option<u32>, Option<u32>)>,
    /// The flow whose bytes are on their way to it.
    arriving: Option<(FlowPlace, u32)>,
}

/// Beats in which a rank had sent what was not taken, and beats in which it waited, by group, rank and peer.
#[derive(Clone, Copy, Debug, Default)]
struct Pairs {
    untaken: u32,
    waiting: u32,
}

/// The cause of slowness, and who is to blame.
pub(super) fn cause(ranks: &[RankWindow], now: Duration) -> Option<(FlowCause, Vec<FlowMember>)> {
    let spent = spent(ranks, now);
    let known = spent
        .iter()
        .enumerate()
        .filter(|(_, it)| it.beats >= f64::from(BEATS_MIN));
    let mut waits: Vec<(f64, usize)> = known
        .map(|(index, it)| (((it.waiting - it.refuted) / it.beats).max(0.0), index))
        .collect();
    if waits.len() < 2 {
        return None;
    }
    waits.sort_by(|one, other| one.0.total_cmp(&other.0));
    let ((least, culprit), (second, _)) = (waits[0], waits[1]);
    let median = waits[waits.len() / 2].0;
    if median < WAITS_MIN || second - least < APART_MIN || least > median / 2.0 {
        return None;
    }
    let it = &spent[culprit];
    let outside = it.beats - it.waiting - it.sending;
    let (fault, place, peer) = match it.arriving {
        Some((place, from)) if it.refuted > outside.max(it.sending) => {
            (FlowFault::Acknowledgement, Some(place), Some(from))
        }
        _ if it.sending > outside => {
            let flow = it.flow;
            let place = flow.map(|it| it.0);
            (FlowFault::Sender, place, flow.and_then(|it| it.1))
        }
        _ => {
            let fault = if starves(&ranks[culprit], now) {
                FlowFault::Starved
            } else {
                FlowFault::Producer
            };
            (fault, it.flow.map(|it| it.0), None)
        }
    };
    let waiting = waits.iter().filter(|(part, _)| *part >= WAITS_MIN).count();
    let cause = FlowCause {
        effect: TriggerKind::Slow,
        fault,
        place,
        peer,
        sequence: 0,
        waiting,
        ranks: ranks.len(),
        lasts: LATELY,
        evidence: vec![
            ("part of the time that it waits".to_owned(), least),
            ("part of the time that others wait".to_owned(), median),
        ],
    };
    Some((cause, vec![ranks[culprit].member()]))
}

/// True where the thread of a rank was ready to run and had no processor for much of the time.
pub(super) fn starves(rank: &RankWindow, now: Duration) -> bool {
    let starved: Duration = rank.lately(now, LATELY).map(|look| look.starved).sum();
    starved.as_secs_f64() > LATELY.as_secs_f64() * STARVED_MIN
}

fn spent(ranks: &[RankWindow], now: Duration) -> Vec<Spent> {
    let mut pairs: HashMap<(u64, u32, u32), Pairs> = HashMap::new();
    let mut all: Vec<Spent> = vec![];
    for rank in ranks {
        let mut it = Spent::default();
        let mut most = 0;
        for look in rank.lately(now, LATELY) {
            it.beats += f64::from(look.beats);
            for group in &look.groups {
                let beats = |stage| group.beats_of(stage);
                let (sending, blocked) = (beats(FlowStage::Sending), beats(FlowStage::Blocked));
                let (untaken, waiting) = (beats(FlowStage::Untaken), beats(FlowStage::Waiting));
                it.sending += f64::from(sending);
                it.waiting += f64::from(blocked + untaken + waiting);
                let peers = group.progress;
                let (place, of) = (group.place, (group.place.group, group.place.rank));
                if let Some(to) = peers.to {
                    pairs.entry((of.0, of.1, to)).or_default().untaken += blocked + untaken;
                }
                if let Some(from) = peers.from {
                    pairs.entry((of.0, from, of.1)).or_default().waiting += waiting + untaken;
                }
                let beats = sending * 4 + blocked + untaken + waiting;
                if beats >= most {
                    most = beats;
                    it.flow = Some((place, peers.to, peers.from));
                }
            }
        }
        all.push(it);
    }
    for (rank, it) in ranks.iter().zip(&mut all) {
        refute(rank.lately(now, LATELY).next(), &pairs, it);
    }
    all
}

/// Counts waits of a rank for what was sent to it already.
fn refute(look: Option<&RankLook>, pairs: &HashMap<(u64, u32, u32), Pairs>, it: &mut Spent) {
    for group in look.iter().flat_map(|look| &look.groups) {
        let place = group.place;
        for from in (0..place.world).filter(|from| *from != place.rank) {
            let Some(pair) = pairs.get(&(place.group, from, place.rank)) else {
                continue;
            };
            let refuted = f64::from(pair.untaken.min(pair.waiting));
            if refuted > it.refuted {
                it.refuted = refuted;
                it.arriving = Some((place, from));
            }
        }
    }
}
