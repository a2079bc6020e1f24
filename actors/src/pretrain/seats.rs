//! The ranks of a life: those that are left of the last, and new ones in the seats of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::{join, join_all};
use odeon::group::SpawnGroup;
use odeon::{ActorId, Clock, Failure, Group, Needs, Ref, Restart, System};
use odeon_algorithms::train::Sharing;
use odeon_mesh::Mesh;
use odeon_placement::{Talk, TalkEnd};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;

use super::rank::{PretrainRank, RankArgs};
use super::report::Report;
use super::run::stop;
use crate::ranks::places::{near, refused, talks, units};
use crate::ranks::recovery::Recovery;
use crate::room::{WaitForRoom, lacks_room};

/// The needs of ranks that are not to be on these nodes. Those that reserve nothing are where the run is.
pub(super) fn avoiding(needs: &Needs, avoided: &BTreeSet<String>) -> Needs {
    let needs = needs.clone();
    match needs.is_empty() {
        true => needs,
        false => avoided
            .iter()
            .fold(needs, |needs, node| needs.not_on_node(node.clone())),
    }
}

/// The ranks that a life begins with.
pub(super) struct Seating<'a> {
    pub(super) system: &'a System,
    /// What each reserves.
    pub(super) needs: &'a Needs,
    /// Knows the nodes that none is to be on.
    pub(super) recovery: Mutex<&'a mut Recovery>,
    /// Time for which ranks wait for room on other nodes than these.
    pub(super) patience: Duration,
    /// Hears of nodes that are used again.
    pub(super) reports: &'a UnboundedSender<Report>,
    pub(super) sharing: Sharing,
    /// Those of the last life that are still there, and standbys in the places of others.
    pub(super) left: &'a BTreeMap<usize, Ref<PretrainRank>>,
    /// Set where there were ranks before: these wait for room.
    pub(super) waits: bool,
}

impl Seating<'_> {
    /// The ranks of this shape, with those that are left in their seats and new ones in all others. What tensor ranks
    /// reserve lies on one node, and what talks with each other near. `tell` hears why others wait for room.
    ///
    /// # Errors
    /// One did not start, or there is no room for all and was none before. None is left then.
    pub(super) async fn seated(
        &self,
        shape: Mesh,
        of: impl Fn(usize) -> RankArgs + Sync,
        tell: impl Fn(&str) + Sync,
    ) -> Result<Group<PretrainRank>, Failure> {
        if self.left.is_empty() {
            let talks = talks(self.sharing);
            let spawn = |needs: Needs| {
                let group = self
                    .system
                    .spawn_group(shape.clone(), |rank| of(rank.index()));
                self.with_options(group, &needs, talks.clone())
            };
            return self.placed(spawn, &tell).await;
        }
        let (beside, units) = join(self.beside(&of), self.whole_units(&of, &tell)).await;
        let mut there = self.left.clone();
        let mut failure = None;
        for (rank, member) in beside.into_iter().chain(units) {
            match member {
                Ok(member) => drop(there.insert(rank, member)),
                Err(why) => failure = failure.or(Some(why)),
            }
        }
        let members: Vec<_> = there.into_values().collect();
        match failure {
            None => Group::new(shape, members).map_err(Failure::error),
            Some(failure) => {
                if let Ok(all) = Mesh::new([("left", members.len())]) {
                    stop(&Group::new(all, members).map_err(Failure::error)?).await;
                }
                Err(failure)
            }
        }
    }

    /// The ranks of a tensor group.
    const fn unit_of(&self, rank: usize) -> std::ops::Range<usize> {
        let first = rank - rank % self.sharing.tensor;
        first..first + self.sharing.tensor
    }

    /// New ranks in seats whose tensor group has others left: they go to these.
    async fn beside(&self, of: &(impl Fn(usize) -> RankArgs + Sync)) -> Made {
        let lost = (0..self.sharing.ranks()).filter(|rank| !self.left.contains_key(rank));
        let lost = lost.filter_map(|rank| {
            let (_, near) = self.left.range(self.unit_of(rank)).next()?;
            Some((rank, *near))
        });
        let nodes = self.nodes().await;
        let made = lost.map(async |(rank, near)| {
            let member = self.system.spawn::<PretrainRank>(of(rank));
            let member = member.restart(Restart::Temporary).isolated();
            let needs = self.needs_now();
            let member = match (needs.is_empty(), nodes.get(&near.id())) {
                (true, _) => member,
                (false, Some(node)) => member.needs(|_| needs.clone()).on_node(node.clone()),
                (false, None) => member.needs(|_| needs.near(&near)),
            };
            (rank, member.await.map_err(Failure::error))
        });
        join_all(made).await
    }

    /// New ranks in the seats of tensor groups of which none is left, all at once.
    async fn whole_units(
        &self,
        of: &(impl Fn(usize) -> RankArgs + Sync),
        tell: &(impl Fn(&str) + Sync),
    ) -> Made {
        let firsts = (0..self.sharing.ranks()).step_by(self.sharing.tensor);
        let is_lost = |first: &usize| self.left.range(self.unit_of(*first)).next().is_none();
        let lost: Vec<usize> = firsts
            .filter(is_lost)
            .flat_map(|first| self.unit_of(first))
            .collect();
        if lost.is_empty() {
            return vec![];
        }
        let all = match units(lost.len() / self.sharing.tensor, self.sharing) {
            Ok(all) => all,
            Err(failure) => return vec![(lost[0], Err(failure))],
        };
        let talks = self.talks_of(&lost, &self.nodes().await);
        let spawn = |needs: Needs| {
            let group = self
                .system
                .spawn_group(all.clone(), |rank| of(lost[rank.index()]));
            self.with_options(group, &needs, talks.clone())
        };
        match self.placed(spawn, tell).await {
            Ok(group) => {
                let members = lost.iter().zip(group.members());
                members.map(|(rank, member)| (*rank, Ok(*member))).collect()
            }
            Err(failure) => vec![(lost[0], Err(failure))],
        }
    }

    /// Places ranks where there is room for all. Where ranks had places before they wait for it. Where there is none on
    /// nodes that are not avoided, those are used, too.
    async fn placed(
        &self,
        spawn: impl Fn(Needs) -> SpawnGroup<PretrainRank> + Sync,
        tell: &(impl Fn(&str) + Sync),
    ) -> Result<Group<PretrainRank>, Failure> {
        let again = |needs| spawn(needs).returning().into_future();
        loop {
            let avoids = !self.recovery.lock().avoided().is_empty() && !self.needs.is_empty();
            let needs = self.needs_now();
            let wait = WaitForRoom::new(needs.clone());
            let spawned = match (self.waits && !self.needs.is_empty(), avoids) {
                (false, _) => spawn(needs).await,
                (true, false) => wait.place(again, tell).await,
                (true, true) => {
                    let end = Clock::now().after(self.patience);
                    wait.until(end).place(again, tell).await
                }
            };
            match spawned {
                Err(error) if avoids && lacks_room(&error.error) => {
                    let why = error.error.to_string();
                    let acted = self.recovery.lock().let_back(&why);
                    match acted {
                        // A run goes on when nobody listens.
                        Some(acted) => drop(self.reports.send(Report::of_recovery(acted))),
                        // A person wants ranks to wait; those that have had no place do not.
                        None if !self.waits => return Err(refused(&error)),
                        None => {}
                    }
                }
                spawned => return spawned.map_err(|error| refused(&error)),
            }
        }
    }

    /// The needs of a rank that is on none of the nodes that are avoided.
    fn needs_now(&self) -> Needs {
        avoiding(self.needs, &self.recovery.lock().avoided())
    }

    /// The nodes of the ranks that are left.
    async fn nodes(&self) -> BTreeMap<ActorId, String> {
        if self.needs.is_empty() {
            return BTreeMap::new();
        }
        let views = self.system.nodes().await;
        let all = views.iter().flat_map(|view| {
            let of_node = view.actors.iter();
            of_node.map(|(actor, ..)| (*actor, view.node.name.clone()))
        });
        all.collect()
    }

    /// The talks of ranks that are made, by their places among these: with each other, and with the nodes of those that
    /// are left.
    fn talks_of(&self, lost: &[usize], nodes: &BTreeMap<ActorId, String>) -> Vec<Talk> {
        let bundle = |rank: u32| lost.iter().position(|it| *it == rank as usize);
        let end = |rank: u32| match bundle(rank) {
            Some(bundle) => Some(TalkEnd::Bundle(bundle as u32)),
            None => {
                let member = self.left.get(&(rank as usize))?;
                nodes.get(&member.id()).cloned().map(TalkEnd::Node)
            }
        };
        let all = talks(self.sharing).into_iter().filter_map(|talk| {
            let TalkEnd::Bundle(other) = talk.with else {
                return None;
            };
            let (own, with) = match (bundle(talk.bundle), bundle(other)) {
                (Some(own), _) => (own, end(other)?),
                (None, Some(own)) => (own, end(talk.bundle)?),
                (None, None) => return None,
            };
            Some(Talk {
                bundle: own as u32,
                with,
                weight: talk.weight,
            })
        });
        all.collect()
    }

    /// One that came back by itself would be asked as if it had the others' weights.
    fn with_options(
        &self,
        group: SpawnGroup<PretrainRank>,
        needs: &Needs,
        talks: Vec<Talk>,
    ) -> SpawnGroup<PretrainRank> {
        let group = group.restart(Restart::Temporary).isolated();
        near(group.needs(|_| needs.clone()), self.sharing, talks)
    }
}

/// New ranks by their numbers.
type Made = Vec<(usize, Result<Ref<PretrainRank>, Failure>)>;
