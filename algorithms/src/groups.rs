//! From single trajectories to training batches of complete groups.
//!
//! Group-relative advantages need all replies to a prompt. A [`GroupBuffer`] collects replies as
//! they come, in any order, and deals complete groups first come, first served, as soon as there
//! are enough for an update. It is a pure state machine: it holds no clock and waits for nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::staleness::{Admission, StalenessBound};

/// Settings of a [`GroupBuffer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupBufferConfig {
    /// Replies to a prompt; at least 1.
    pub group_size: usize,
    /// The most groups held, complete or not; at least 1.
    pub groups_max: usize,
    /// How old a group's oldest reply may be when the group is dealt.
    pub staleness: StalenessBound,
}

/// Replies waiting for their group, and groups waiting for their batch.
#[derive(Clone, Debug)]
pub struct GroupBuffer<T> {
    config: GroupBufferConfig,
    open: BTreeMap<u64, OpenGroup<T>>,
    complete: VecDeque<Group<T>>,
}

/// All replies to one prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<T> {
    /// The prompt's number.
    pub id: u64,
    /// The oldest version of weights among the replies.
    pub version: u64,
    /// The replies in the order of their numbers.
    pub members: Vec<T>,
}

/// What a reply did to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// More replies are needed.
    Waiting {
        /// How many.
        missing: usize,
    },
    /// The group is complete.
    Complete,
}

/// Why a reply was not taken. It comes back, and the buffer is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PushError<T> {
    /// This reply is here already, or its group is complete: it was sent twice. Drop it.
    #[error("reply {member} of group {group} was sent twice")]
    Duplicate {
        /// The group.
        group: u64,
        /// The reply's number in it.
        member: usize,
        /// The reply.
        item: T,
    },
    /// The reply's number is not below the group size.
    #[error("group {group} has no reply {member}")]
    NoSuchMember {
        /// The group.
        group: u64,
        /// The reply's number.
        member: usize,
        /// The reply.
        item: T,
    },
    /// The buffer holds as many groups as it may. Deal a batch first; then try again.
    #[error("the buffer is full; group {group} must wait")]
    Full {
        /// The group.
        group: u64,
        /// The reply.
        item: T,
    },
}

/// The outcome of asking for a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly<T> {
    /// As many groups as were asked for, or `None` while there are fewer.
    pub batch: Option<Vec<Group<T>>>,
    /// Complete groups that have grown too old and left the buffer. Sample their prompts again.
    pub stale: Vec<Group<T>>,
}

#[derive(Clone, Debug)]
struct OpenGroup<T> {
    version: u64,
    missing: usize,
    members: Vec<Option<T>>,
}

impl<T> GroupBuffer<T> {
    /// Makes an empty buffer.
    ///
    /// # Panics
    /// When `group_size` or `groups_max` is 0.
    #[must_use]
    pub fn new(config: GroupBufferConfig) -> Self {
        assert!(
            config.group_size > 0 && config.groups_max > 0,
            "an empty group or buffer"
        );
        Self {
            config,
            open: BTreeMap::new(),
            complete: VecDeque::new(),
        }
    }

    /// Takes reply number `member` of a group, sampled by weights of this version.
    ///
    /// # Errors
    /// [`PushError`] gives the reply back.
    pub fn push(
        &mut self,
        group: u64,
        member: usize,
        version: u64,
        item: T,
    ) -> Result<Pushed, PushError<T>> {
        let size = self.config.group_size;
        if member >= size {
            return Err(PushError::NoSuchMember {
                group,
                member,
                item,
            });
        }
        if self.complete.iter().any(|complete| complete.id == group) {
            return Err(PushError::Duplicate {
                group,
                member,
                item,
            });
        }
        if !self.open.contains_key(&group) && self.groups() == self.config.groups_max {
            return Err(PushError::Full { group, item });
        }
        let open = self.open.entry(group).or_insert_with(|| OpenGroup {
            version,
            missing: size,
            members: std::iter::repeat_with(|| None).take(size).collect(),
        });
        if open.members[member].is_some() {
            return Err(PushError::Duplicate {
                group,
                member,
                item,
            });
        }
        open.members[member] = Some(item);
        open.version = open.version.min(version);
        open.missing -= 1;
        if open.missing > 0 {
            return Ok(Pushed::Waiting {
                missing: open.missing,
            });
        }
        if let Some(OpenGroup {
            version, members, ..
        }) = self.open.remove(&group)
        {
            let members = members.into_iter().flatten().collect();
            self.complete.push_back(Group {
                id: group,
                version,
                members,
            });
        }
        Ok(Pushed::Complete)
    }

    /// Deals a batch of `groups` groups for an update from `trainer_version`, oldest first, if
    /// there are as many that are fresh enough.
    pub fn assemble(&mut self, trainer_version: u64, groups: usize) -> Assembly<T> {
        let bound = self.config.staleness;
        let fresh = |group: &Group<T>| {
            matches!(
                bound.admit(trainer_version, group.version),
                Admission::Fresh { .. }
            )
        };
        let (fresh, stale): (Vec<_>, Vec<_>) = std::mem::take(&mut self.complete)
            .into_iter()
            .partition(fresh);
        self.complete = fresh.into();
        let batch =
            (self.complete.len() >= groups).then(|| self.complete.drain(..groups).collect());
        Assembly { batch, stale }
    }

    /// Gives up a group that is not complete, and returns the replies that it has: its prompt was
    /// withdrawn, or nobody works on it any more.
    pub fn withdraw(&mut self, group: u64) -> Vec<T> {
        let members = self
            .open
            .remove(&group)
            .map(|open| open.members)
            .unwrap_or_default();
        members.into_iter().flatten().collect()
    }

    /// How many groups are complete.
    #[must_use]
    pub fn complete(&self) -> usize {
        self.complete.len()
    }

    /// How many groups are held, complete or not.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.complete.len() + self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn buffer(group_size: usize, staleness: StalenessBound) -> GroupBuffer<(u64, usize)> {
        GroupBuffer::new(GroupBufferConfig {
            group_size,
            groups_max: 64,
            staleness,
        })
    }

    proptest! {
        #[test]
        fn every_reply_leaves_once_in_a_whole_and_fresh_group(
            group_size in 1_usize..5,
            bound in 0_u64..3,
            asked in 1_usize..4,
            pushes in prop::collection::vec((0_u64..12, 0_usize..5, any::<bool>()), 0..200),
        ) {
            let staleness = StalenessBound::AtMost(bound);
            let mut buffer = buffer(group_size, staleness);
            let (mut trainer, mut accepted, mut left) = (0, HashSet::new(), HashSet::new());
            // A group comes back under a new number after it has left, as its prompt would.
            let mut generation = [0_u64; 12];
            for (slot, member, train) in pushes {
                let group = slot + 12 * generation[slot as usize];
                match buffer.push(group, member, trainer, (group, member)) {
                    Ok(_) => prop_assert!(accepted.insert((group, member))),
                    Err(PushError::Duplicate { item, .. }) => prop_assert!(accepted.contains(&item)),
                    Err(PushError::NoSuchMember { .. }) => prop_assert!(member >= group_size),
                    Err(PushError::Full { .. }) => prop_assert_eq!(buffer.groups(), 64),
                }
                if !train {
                    continue;
                }
                let Assembly { batch, stale } = buffer.assemble(trainer, asked);
                for group in batch.iter().flatten() {
                    prop_assert!(staleness.admit(trainer, group.version).is_fresh());
                }
                for group in &stale {
                    prop_assert!(!staleness.admit(trainer, group.version).is_fresh());
                }
                if let Some(batch) = &batch {
                    prop_assert_eq!(batch.len(), asked);
                    trainer += 1;
                }
                for group in batch.into_iter().flatten().chain(stale) {
                    generation[(group.id % 12) as usize] += 1;
                    let expected: Vec<_> = (0..group_size).map(|m| (group.id, m)).collect();
                    prop_assert_eq!(&group.members, &expected);
                    for member in group.members {
                        prop_assert!(left.insert(member));
                    }
                }
            }
            prop_assert!(left.is_subset(&accepted));
        }
    }

    #[test]
    fn groups_are_dealt_in_the_order_of_their_completion() {
        let mut buffer = buffer(2, StalenessBound::Unbounded);
        assert_eq!(
            buffer.push(1, 0, 0, (1, 0)),
            Ok(Pushed::Waiting { missing: 1 })
        );
        assert_eq!(
            buffer.push(2, 1, 0, (2, 1)),
            Ok(Pushed::Waiting { missing: 1 })
        );
        assert_eq!(buffer.push(2, 0, 5, (2, 0)), Ok(Pushed::Complete));
        assert_eq!(
            buffer.assemble(9, 2),
            Assembly {
                batch: None,
                stale: vec![]
            }
        );
        assert_eq!(buffer.push(1, 1, 0, (1, 1)), Ok(Pushed::Complete));
        let batch = buffer.assemble(9, 2).batch.unwrap();
        assert_eq!(
            batch.iter().map(|group| group.id).collect::<Vec<_>>(),
            [2, 1]
        );
        assert_eq!(batch[0].version, 0, "the oldest reply counts");
        assert_eq!(buffer.groups(), 0);
    }

    #[test]
    fn a_full_buffer_gives_the_reply_back_but_still_completes_groups() {
        let mut buffer = GroupBuffer::new(GroupBufferConfig {
            group_size: 2,
            groups_max: 1,
            staleness: StalenessBound::Unbounded,
        });
        buffer.push(1, 0, 0, "a").unwrap();
        assert_eq!(
            buffer.push(2, 0, 0, "b"),
            Err(PushError::Full {
                group: 2,
                item: "b"
            })
        );
        assert_eq!(buffer.withdraw(1), ["a"]);
        assert_eq!(
            buffer.push(2, 0, 0, "b"),
            Ok(Pushed::Waiting { missing: 1 })
        );
        assert_eq!(buffer.push(2, 1, 0, "c"), Ok(Pushed::Complete));
        assert!(matches!(
            buffer.push(2, 1, 0, "c"),
            Err(PushError::Duplicate { .. })
        ));
    }
}
