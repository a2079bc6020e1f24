//! Replays of both rounds, judged: which groups have failed and why, and who is to blame.
//!
//! All groups replay the same steps and are to come to the same bits. Those that most groups have come to are the right
//! ones; what a reference has come to alone counts as another group, and decides where as many have others.

use std::collections::BTreeMap;

use super::{GroupTest, ReplayRound, ReplayVerdict};

/// The end of a machine's part in the replay of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayEnd {
    /// It has come to these bits.
    Bits(String),
    /// It has come to a number that is not finite.
    NotFinite,
    /// It could not go on, for this reason.
    Failed(String),
    /// It has not answered in time.
    Silent,
}

/// A group of a round, and how its replay has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayedGroup {
    /// The round.
    pub round: ReplayRound,
    /// The number of the group in it.
    pub group: u32,
    /// The ends at its machines. Those that were not asked, since another was not there, have none.
    pub ends: Vec<(u32, ReplayEnd)>,
    /// Why its machines could not be brought together, where that is so.
    pub apart: Option<String>,
}

/// Replays of both rounds, judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JudgedReplays {
    /// The machines that are to blame.
    pub verdict: ReplayVerdict,
    /// Why each group has failed, in words; nothing of those that have not.
    pub faults: Vec<Option<String>>,
}

impl ReplayedGroup {
    /// The bits that all of its machines have come to.
    fn agreed(&self) -> Option<&str> {
        let mut all = self.ends.iter().map(|(_, end)| match end {
            ReplayEnd::Bits(bits) => Some(bits.as_str()),
            _ => None,
        });
        let first = all.next()??;
        all.all(|it| it == Some(first)).then_some(first)
    }

    /// Why it has failed, where these are the right bits. Who is silent comes before what follows from that at others.
    fn fault(&self, right: Option<&str>, names: &[String]) -> Option<String> {
        let of = |wanted: fn(&ReplayEnd) -> Option<&str>| {
            let mut told = self.ends.iter();
            told.find_map(|(machine, end)| Some((&names[*machine as usize], wanted(end)?)))
        };
        if let Some(why) = &self.apart {
            return Some(why.clone());
        }
        let is_not_finite = |(_, end): &(u32, ReplayEnd)| *end == ReplayEnd::NotFinite;
        let silent = of(|end| matches!(end, ReplayEnd::Silent).then_some(""));
        let failed = of(|end| match end {
            ReplayEnd::Failed(why) => Some(why),
            _ => None,
        });
        if let Some((name, _)) = silent {
            return Some(format!("{name} has not answered in time"));
        }
        if self.ends.iter().any(is_not_finite) {
            return Some("its nodes have come to a number that is not finite".to_owned());
        }
        if let Some((name, why)) = failed {
            return Some(format!("{name}: {why}"));
        }
        match (self.agreed(), right) {
            (None, _) => Some("its nodes have come to different bits".to_owned()),
            (Some(_), None) => Some("no bits are those of most groups".to_owned()),
            (Some(bits), Some(right)) if bits != right => {
                Some(format!("it has come to bits {bits}, and others to {right}"))
            }
            (Some(_), Some(_)) => None,
        }
    }
}

impl GroupTest {
    /// Judges the replays of both rounds. `names` are those of the machines, and `reference` the bits that one machine has
    /// come to alone, where it is of their kind.
    ///
    /// # Panics
    /// A machine has no name.
    #[must_use]
    pub fn judge(
        self,
        names: &[String],
        groups: &[ReplayedGroup],
        reference: Option<&str>,
    ) -> JudgedReplays {
        let right = right_bits(groups, reference);
        let faults: Vec<Option<String>> = groups.iter().map(|it| it.fault(right, names)).collect();
        let failed = |round| -> Vec<u32> {
            let judged = groups.iter().zip(&faults);
            let failed = judged.filter(|(it, fault)| it.round == round && fault.is_some());
            failed.map(|(it, _)| it.group).collect()
        };
        let [near, strided] = ReplayRound::ALL.map(failed);
        JudgedReplays {
            verdict: self.verdict(&near, &strided),
            faults,
        }
    }
}

/// The bits that most groups have come to, or the reference where as many have others.
fn right_bits<'a>(groups: &'a [ReplayedGroup], reference: Option<&'a str>) -> Option<&'a str> {
    let mut votes: BTreeMap<&str, u32> = BTreeMap::new();
    for bits in groups.iter().filter_map(ReplayedGroup::agreed) {
        *votes.entry(bits).or_default() += 1;
    }
    if let Some(bits) = reference {
        *votes.entry(bits).or_default() += 1;
    }
    let most = votes.values().max().copied()?;
    let mut first = votes.iter().filter(|(_, count)| **count == most);
    let (bits, _) = first.next()?;
    first.next().is_none().then_some(*bits)
}

#[cfg(test)]
mod tests;
