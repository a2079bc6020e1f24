//! The parts of nodes that tries have to themselves: who may have which, and what becomes of them with
//! a node.

use std::collections::{BTreeMap, BTreeSet};

use super::room::NodeRoom;
use super::{NodeRow, NodeState, Tables};
use crate::job::{Job, JobId};
use crate::resources::Reservation;

impl Tables {
    /// The reservations of the present tries on nodes that live, by their tags.
    pub(crate) fn reserved(&self) -> Vec<(String, Reservation)> {
        let lives = |it: &&Reservation| is_alive(&self.nodes, it);
        let jobs = self
            .living_jobs()
            .filter_map(|job| Some((job, job.attempt()?)));
        let all = jobs.flat_map(|(job, attempt)| {
            let of = attempt.reserved.iter().filter(lives);
            let of: Vec<&Reservation> = of.filter(|it| !it.allotment.is_empty()).collect();
            of.into_iter()
                .map(|it| (job.tag(attempt.number), it.clone()))
        });
        all.collect()
    }

    /// What tries that go on elsewhere had reserved on a node is theirs again when that is started anew:
    /// nobody else got any of it meanwhile.
    pub(super) fn reserve_again(&mut self, node: &str, before: u64, boot: u64) {
        for job in self.jobs.values_mut() {
            let reserved = job.reserved_mut().into_iter().flatten();
            for it in reserved.filter(|it| it.node == node && it.boot == before) {
                it.boot = boot;
            }
        }
    }

    /// Checks that what a job is to have to itself is what it asks for, and that nobody has it.
    pub(super) fn may_reserve(
        &self,
        job: &Job,
        node: &str,
        reserved: &[Reservation],
    ) -> Result<(), String> {
        let id = job.id;
        let asked = &job.spec.resources;
        if !asked.is_met_by(reserved, node) {
            return Err(format!(
                "{id} asks for {asked}, and was to be given something else"
            ));
        }
        self.has_room(id, reserved)
    }

    /// Checks that a job may have these ranks beside those that live.
    pub(super) fn may_extend(&self, job: &Job, more: &[Reservation]) -> Result<(), String> {
        let (id, asked) = (job.id, &job.spec.resources);
        let mut ranks = self.living_ranks(job);
        let known = ranks.len();
        ranks.extend(more.iter().filter_map(|it| it.rank));
        let of_ranks = |it: &Reservation| {
            it.allotment == asked.rank && it.devices.len() == asked.rank.devices as usize
        };
        let are_new = ranks.len() == known + more.len() && ranks.len() <= asked.most() as usize;
        if !are_new || !more.iter().all(of_ranks) {
            return Err(format!(
                "{id} asks for {asked}, and was to be given something else"
            ));
        }
        self.has_room(id, more)
    }

    /// The numbers of the ranks of a job whose parts of nodes live.
    pub(crate) fn living_ranks(&self, job: &Job) -> BTreeSet<u32> {
        let reserved = job.attempt().into_iter().flat_map(|it| &it.reserved);
        let alive = reserved.filter(|it| is_alive(&self.nodes, it));
        alive.filter_map(|it| it.rank).collect()
    }

    /// A job that was given other places does not get back what it had on nodes that are gone.
    pub(super) fn drop_dead_reservations(&mut self, id: JobId) {
        let nodes = &self.nodes;
        if let Some(reserved) = self.jobs.get_mut(&id).and_then(Job::reserved_mut) {
            reserved.retain(|it| is_alive(nodes, it));
        }
    }

    /// Checks that nobody has these parts of nodes.
    fn has_room(&self, id: JobId, reserved: &[Reservation]) -> Result<(), String> {
        if reserved.is_empty() {
            return Ok(());
        }
        let mut room = NodeRoom::of(self);
        for it in reserved {
            let node = &it.node;
            let fits = room
                .get_mut(node.as_str())
                .filter(|room| room.boot == it.boot);
            let fits = fits.ok_or_else(|| format!("node `{node}` is not up any more"))?;
            if !fits.take(it) {
                return Err(format!(
                    "node `{node}` has no room for {} of {id}",
                    it.allotment
                ));
            }
        }
        Ok(())
    }
}

/// Returns true while the life of a node runs that a reservation is of.
pub(super) fn is_alive(nodes: &BTreeMap<String, NodeRow>, it: &Reservation) -> bool {
    let row = nodes.get(&it.node);
    row.is_some_and(|row| row.state == NodeState::Up && row.spec.boot == it.boot)
}
