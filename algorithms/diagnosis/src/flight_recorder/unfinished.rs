//! Collectives that do not end, by the dumps of many ranks: who has not launched them, or launched another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::{FlightDump, FlightEntry, FlightGroup, FlightState};
use crate::{Action, Detector, Finding, FindingCause, Observation};

/// The dumps of the ranks of a job, each of another rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlightDumps {
    /// By rank.
    dumps: BTreeMap<usize, FlightDump>,
}

impl FlightDumps {
    /// Adds the dump of a rank; returns the one that was there of the same rank.
    pub fn add(&mut self, dump: FlightDump) -> Option<FlightDump> {
        self.dumps.insert(dump.rank, dump)
    }

    /// The ranks that have a dump.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + '_ {
        self.dumps.keys().copied()
    }

    /// The groups, each once.
    #[must_use]
    pub fn groups(&self) -> BTreeSet<&FlightGroup> {
        self.dumps.values().flat_map(|it| &it.groups).collect()
    }

    /// Ranks of groups that have no dump.
    #[must_use]
    pub fn lacking(&self) -> BTreeSet<usize> {
        let groups = self.groups().into_iter();
        let ranks = groups.flat_map(|it| it.ranks.iter().copied());
        ranks.filter(|it| !self.dumps.contains_key(it)).collect()
    }

    /// True if no collective is in any of them.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.dumps.values().all(|it| it.entries.is_empty())
    }

    /// The last moment that any of them has seen, in nanoseconds since 1970.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        let entries = self.dumps.values().flat_map(|it| &it.entries);
        entries.map(|it| it.launched_ns).max().unwrap_or(0)
    }
}

impl Observation for FlightDumps {
    type Subject = usize;
    type Moment = u64;
    type Cause = FlightCause;
}

/// A collective of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightCall {
    /// The group.
    pub group: FlightGroup,
    /// Its number in the group.
    pub sequence: u64,
    /// The operation with its library.
    pub operation: String,
    /// The shapes of the inputs at one of the ranks that launched it.
    pub sizes: Vec<Vec<u64>>,
}

impl fmt::Display for FlightCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(|it| shape(it)).collect();
        write!(f, "{} {}", self.operation, self.sequence)?;
        if !sizes.is_empty() {
            write!(f, " of {}", sizes.join(", "))?;
        }
        let FlightGroup {
            name,
            description,
            ranks,
        } = &self.group;
        write!(f, " in group {name} ({description}, {})", of_ranks(ranks))
    }
}

/// A cause of collectives that do not end.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FlightCause {
    /// Some ranks have not launched a collective that others of their group wait in.
    NotLaunched {
        /// The first collective that they have not launched.
        call: FlightCall,
        /// The last that each of them has launched in the group; none of one that has no entry there.
        last: Vec<(usize, Option<u64>)>,
        /// Ranks that have launched it.
        waiting: Vec<usize>,
        /// Those to blame that have no entry at all in their dumps.
        silent: Vec<usize>,
        /// Set where some of them are behind in no earlier call; else this is a consequence of that.
        is_first: bool,
    },
    /// Ranks of a group have launched different operations under one number.
    Differ {
        /// The collective, as most ranks have it.
        call: FlightCall,
        /// The operation and shapes of each rank that differs.
        others: Vec<(usize, String)>,
    },
    /// All ranks of which there is a dump have launched a collective, and some have not ended it.
    NotEnded {
        /// The collective.
        call: FlightCall,
        /// Ranks whose devices have not begun it.
        scheduled: Vec<usize>,
        /// Ranks whose devices are at it.
        started: Vec<usize>,
        /// Ranks of the group without a dump, where they are fewer than those with one. Where no device is known to hold
        /// the others up they are to blame: a rank that hangs outside of its collectives writes nothing (MegaScale,
        /// arXiv 2402.15627).
        without_dump: Vec<usize>,
    },
}

impl fmt::Display for FlightCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLaunched {
                call,
                last,
                waiting,
                silent,
                ..
            } => {
                let behind: Vec<usize> = last.iter().map(|it| it.0).collect();
                write!(
                    f,
                    "{} not launched {call}, in which {} {}",
                    has(&behind),
                    of_ranks(waiting),
                    if waiting.len() == 1 { "waits" } else { "wait" }
                )?;
                let ends: Vec<String> = (last.iter())
                    .filter_map(|(rank, last)| Some(format!("{} at rank {rank}", (*last)?)))
                    .collect();
                if !ends.is_empty() {
                    write!(f, "; the last there is {}", ends.join(", "))?;
                }
                if !silent.is_empty() {
                    write!(
                        f,
                        "; {} no entry at all: the recorder was off, or the program held its interpreter's lock, or it \
                         has launched nothing for as long as the recorder keeps",
                        has(silent)
                    )?;
                }
                Ok(())
            }
            Self::Differ { call, others } => {
                let others: Vec<String> = (others.iter())
                    .map(|(rank, what)| format!("rank {rank} has launched {what}"))
                    .collect();
                write!(
                    f,
                    "most ranks have launched {call}, but {}",
                    others.join(", ")
                )
            }
            Self::NotEnded {
                call,
                scheduled,
                started,
                without_dump,
            } => {
                let all = if without_dump.is_empty() {
                    "all ranks"
                } else {
                    "all others"
                };
                write!(f, "{all} have launched {call}, and it does not end")?;
                if !started.is_empty() {
                    write!(f, "; the devices of {} are at it", of_ranks(started))?;
                }
                if !scheduled.is_empty() {
                    write!(f, "; those of {} have not begun it", of_ranks(scheduled))?;
                }
                if !without_dump.is_empty() {
                    write!(
                        f,
                        "; {} left no dump: it is who writes nothing that hangs",
                        has(without_dump)
                    )?;
                }
                Ok(())
            }
        }
    }
}

impl FindingCause for FlightCause {
    fn action(&self) -> Action {
        Action::Tell
    }
}

/// Finds the ranks to blame for collectives that do not end.
///
/// Of each group in which one has not ended: members whose highest number is below the group's highest, or that have
/// none, have not launched what the others wait in. The finding of the earliest such collective is the first; later
/// ones of the same ranks are its consequences. Where no member is behind, calls of one number that differ are named,
/// and else calls that all have launched. Each look is judged anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnfinishedCollectives;

impl Detector<FlightDumps> for UnfinishedCollectives {
    fn observe(&mut self, seen: &FlightDumps, _at: u64) -> Vec<Finding<FlightDumps>> {
        let groups = seen.groups().into_iter();
        let mut found: Vec<Finding<FlightDumps>> = groups
            .filter_map(|group| GroupCalls::new(seen, group)?.finding())
            .collect();
        // Who is behind first, then what differs, then what merely does not end; the earliest first.
        let order = |cause: &FlightCause| match cause {
            FlightCause::NotLaunched { .. } => 0,
            FlightCause::Differ { .. } => 1,
            FlightCause::NotEnded { .. } => 2,
        };
        found.sort_by_key(|it| (order(&it.cause), it.since));
        let mut blamed: BTreeSet<usize> = BTreeSet::new();
        for finding in &mut found {
            if let FlightCause::NotLaunched { is_first, .. } = &mut finding.cause {
                *is_first = finding.who.iter().any(|it| !blamed.contains(it));
                blamed.extend(&finding.who);
            }
        }
        found
    }
}

/// The collectives of one group, by rank and number.
struct GroupCalls<'a> {
    group: &'a FlightGroup,
    seen: &'a FlightDumps,
    calls: BTreeMap<usize, BTreeMap<u64, &'a FlightEntry>>,
}

impl<'a> GroupCalls<'a> {
    /// None if no collective of the group was seen that has not ended.
    fn new(seen: &'a FlightDumps, group: &'a FlightGroup) -> Option<Self> {
        let mut calls: BTreeMap<usize, BTreeMap<u64, &FlightEntry>> = BTreeMap::new();
        for rank in &group.ranks {
            let Some(dump) = seen.dumps.get(rank) else {
                continue;
            };
            let of_group = |it: &&FlightEntry| {
                !it.is_message && it.group == group.name && dump.group(&it.group) == Some(group)
            };
            let own = dump.entries.iter().filter(of_group);
            calls.insert(*rank, own.map(|it| (it.sequence, it)).collect());
        }
        let mut all = calls.values().flat_map(BTreeMap::values);
        let is_stuck = all.any(|it| it.state != FlightState::Completed);
        is_stuck.then_some(Self { group, seen, calls })
    }

    fn finding(&self) -> Option<Finding<FlightDumps>> {
        self.not_launched()
            .or_else(|| self.differ())
            .or_else(|| self.not_ended())
    }

    /// The highest number of a rank.
    fn last(&self, rank: usize) -> Option<u64> {
        Some(*self.calls.get(&rank)?.last_key_value()?.0)
    }

    /// All calls of a number.
    fn at(&self, sequence: u64) -> impl Iterator<Item = (usize, &'a FlightEntry)> + '_ {
        let calls = self.calls.iter();
        calls.filter_map(move |(rank, own)| Some((*rank, *own.get(&sequence)?)))
    }

    fn call(&self, sequence: u64, entry: &FlightEntry) -> FlightCall {
        FlightCall {
            group: self.group.clone(),
            sequence,
            operation: entry.operation.clone(),
            sizes: entry.input_sizes.clone(),
        }
    }

    fn not_launched(&self) -> Option<Finding<FlightDumps>> {
        let highest = self
            .group
            .ranks
            .iter()
            .filter_map(|it| self.last(*it))
            .max()?;
        // Of ranks without a dump nothing is known.
        let known = self.group.ranks.iter().copied();
        let known = known.filter(|it| self.calls.contains_key(it));
        let behind = known.map(|rank| (rank, self.last(rank)));
        let behind = behind.filter(|(_, last)| last.is_none_or(|last| last < highest));
        let behind: Vec<(usize, Option<u64>)> = behind.collect();
        let least = behind.iter().filter_map(|it| it.1).min();
        // The first number above the lowest that anybody has; without any, the first that has not ended.
        let numbers: BTreeSet<u64> = (self.calls.values())
            .flat_map(|own| own.values())
            .filter(|it| least.is_some() || it.state != FlightState::Completed)
            .map(|it| it.sequence)
            .collect();
        let first = numbers
            .into_iter()
            .find(|it| least.is_none_or(|least| *it > least))?;
        let launched = self.at(first).min_by_key(|(_, it)| it.launched_ns)?.1;
        let who: Vec<usize> = behind.iter().map(|it| it.0).collect();
        if who.is_empty() {
            return None;
        }
        let is_silent = |rank: &usize| self.seen.dumps[rank].entries.is_empty();
        let cause = FlightCause::NotLaunched {
            call: self.call(first, launched),
            waiting: self.at(first).map(|it| it.0).collect(),
            silent: who.iter().copied().filter(is_silent).collect(),
            last: behind,
            is_first: true,
        };
        Some(Finding {
            who,
            cause,
            since: launched.launched_ns,
        })
    }

    /// The first number that has not ended and under which ranks have launched different things.
    fn differ(&self) -> Option<Finding<FlightDumps>> {
        let pending = self.pending();
        pending.into_iter().find_map(|sequence| {
            let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
            for (rank, entry) in self.at(sequence) {
                kinds.entry(what(entry)).or_default().push(rank);
            }
            if kinds.len() < 2 {
                return None;
            }
            let most = kinds.values().max_by_key(|it| it.len())?.clone();
            let others: Vec<(usize, String)> = (kinds.into_iter())
                .filter(|(_, ranks)| *ranks != most)
                .flat_map(|(what, ranks)| ranks.into_iter().map(move |it| (it, what.clone())))
                .collect();
            let (_, usual) = self.at(sequence).find(|(rank, _)| most.contains(rank))?;
            let first = self.at(sequence).map(|it| it.1.launched_ns).min()?;
            Some(Finding {
                who: others.iter().map(|it| it.0).collect(),
                cause: FlightCause::Differ {
                    call: self.call(sequence, usual),
                    others,
                },
                since: first,
            })
        })
    }

    fn not_ended(&self) -> Option<Finding<FlightDumps>> {
        let first = *self.pending().first()?;
        let in_state = |state| {
            let of = self.at(first).filter(move |it| it.1.state == state);
            of.map(|it| it.0).collect::<Vec<_>>()
        };
        let (scheduled, started) = (
            in_state(FlightState::Scheduled),
            in_state(FlightState::Started),
        );
        let launched = self.at(first).max_by_key(|(_, it)| it.launched_ns)?.1;
        let absent = self.group.ranks.iter().copied();
        let absent: Vec<usize> = absent.filter(|it| !self.calls.contains_key(it)).collect();
        // Who has launched it is not to blame, and where it has ended all have.
        let ended = self
            .at(first)
            .any(|it| it.1.state == FlightState::Completed);
        let without_dump = match !ended && absent.len() < self.calls.len() {
            true => absent,
            false => vec![],
        };
        // Where some devices are at it, those that have not begun hold it up.
        let who = match started.is_empty() || scheduled.is_empty() {
            true => without_dump.clone(),
            false => scheduled.clone(),
        };
        Some(Finding {
            who,
            cause: FlightCause::NotEnded {
                call: self.call(first, launched),
                scheduled,
                started,
                without_dump,
            },
            since: launched.launched_ns,
        })
    }

    /// Numbers of collectives that have not ended somewhere.
    fn pending(&self) -> Vec<u64> {
        let all = self.calls.values().flat_map(BTreeMap::values);
        let pending = all.filter(|it| it.state != FlightState::Completed);
        let pending: BTreeSet<u64> = pending.map(|it| it.sequence).collect();
        pending.into_iter().collect()
    }
}

/// The operation with all that must be the same at each rank. Ranks of an all-to-all, a gather or a scatter may have
/// shapes of their own.
fn what(entry: &FlightEntry) -> String {
    let FlightEntry {
        operation,
        input_types,
        ..
    } = entry;
    let own_shapes = [
        "all_to_all",
        "gather",
        "scatter",
        "reduce_scatter",
        "barrier",
    ];
    let base = operation.rsplit(':').next().unwrap_or(operation);
    let may_differ = own_shapes.contains(&base) || base.contains("all_to_all");
    let sizes: Vec<String> = match may_differ {
        true => vec![],
        false => entry.input_sizes.iter().map(|it| shape(it)).collect(),
    };
    let mut what = format!("{operation} of {}", input_types.join(", "));
    for size in sizes {
        what += " ";
        what += &size;
    }
    what
}

/// As `8192x1x5120`.
fn shape(sizes: &[u64]) -> String {
    let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
    sizes.join("x")
}

fn has(ranks: &[usize]) -> String {
    match ranks.len() {
        1 => format!("{} has", of_ranks(ranks)),
        _ => format!("{} have", of_ranks(ranks)),
    }
}

/// As `rank 3`, or `ranks 0 to 3, 7`.
pub(super) fn of_ranks(ranks: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = vec![];
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => runs.push((*rank, *rank)),
        }
    }
    let runs: Vec<String> = (runs.iter())
        .map(|(first, last)| match last - first {
            0 => first.to_string(),
            1 => format!("{first}, {last}"),
            _ => format!("{first} to {last}"),
        })
        .collect();
    match ranks.len() {
        1 => format!("rank {}", ranks[0]),
        _ => format!("ranks {}", runs.join(", ")),
    }
}
