//! Jobs as the catalog takes in what happens to them: who may say it, whether it fits, and what is told of it.

use super::reservations::is_alive;
use super::{Tables, only};
use crate::fact::{Refusal, RefusalKind, Writer};
use crate::job::array::After;
use crate::job::version::Standing;
use crate::job::{Event, Job, JobId, JobSpec, State, Unfit};
use crate::tables::{ENDED_MAX, NodeState};

impl Tables {
    /// Gives the detached actor of a job its name.
    pub(super) fn take_name(&mut self, spec: &JobSpec, id: JobId) -> Result<(), Refusal> {
        let Some(hosted) = &spec.hosts else {
            return Ok(());
        };
        let key = format!("{}/{}", spec.namespace, hosted.name);
        if let Some(known) = self.detached.get(&key) {
            let why = format!(
                "namespace `{}` has a detached actor `{}` already: job {known}",
                spec.namespace, hosted.name
            );
            return Err(Refusal::new(RefusalKind::Conflict, why));
        }
        self.detached.insert(key, id);
        Ok(())
    }

    pub(super) fn job_event(
        &mut self,
        writer: &Writer,
        id: JobId,
        event: Event,
    ) -> Result<(), Refusal> {
        let Some(job) = self.jobs.get(&id) else {
            let why = format!("there is no job {id}");
            return Err(Refusal::new(RefusalKind::Unknown, why));
        };
        let owner = match &event {
            Event::Prepared { .. }
            | Event::Started { .. }
            | Event::Over { .. }
            | Event::AtWork { .. }
            | Event::Unkept { .. } => {
                let attempt = job.attempt();
                attempt.map(|attempt| Writer::Node(attempt.node.clone()))
            }
            _ => Some(Writer::Leader),
        };
        // About a try that is over the job itself says more.
        if let Some(owner) = owner {
            only(writer, &owner)?;
        }
        if let Event::Assigned {
            node,
            boot,
            reserved,
        } = &event
        {
            let fits = self.may_assign(job, node, *boot);
            let fits = fits.and_then(|()| self.may_reserve(job, node, reserved));
            fits.map_err(|why| Refusal::new(RefusalKind::Conflict, why))?;
        }
        if let Event::Extended { more, .. } = &event {
            let fits = self.may_extend(job, more);
            fits.map_err(|why| Refusal::new(RefusalKind::Conflict, why))?;
        }
        match event {
            Event::Extended { .. } => {
                self.happened(id, event)?;
                self.drop_dead_reservations(id);
                Ok(())
            }
            Event::Retry { by } => self.run_again(id, by),
            event => self.happened(id, event),
        }
    }

    /// Checks that a job may have a node. Whoever gives it one has looked at tables that may be
    /// older.
    fn may_assign(&self, job: &Job, node: &str, boot: u64) -> Result<(), String> {
        let row = self.nodes.get(node).filter(|row| row.spec.boot == boot);
        let Some(row) = row.filter(|row| row.state == NodeState::Up) else {
            return Err(format!("node `{node}` is not up any more"));
        };
        if row.drained {
            return Err(format!("node `{node}` is drained"));
        }
        if let Some(ban) = &row.refused {
            return Err(format!("node `{node}` is refused: {}", ban.why));
        }
        if let Some(wanted) = job.spec.node.as_ref().filter(|wanted| *wanted != node) {
            let id = job.id;
            return Err(format!("{id} must run on node `{wanted}`, not on `{node}`"));
        }
        if !job.awaits.is_empty() {
            return Err(After::told(&job.awaits));
        }
        if let Some(array) = &job.array
            && let Some(most) = array.at_once
        {
            let members = self.jobs.range(array.jobs());
            let running = members.filter(|(_, it)| it.attempt().is_some()).count();
            if running >= most as usize {
                return Err(array.full(running));
            }
        }
        let namespace = &job.spec.namespace;
        let quota = self.namespaces.get(namespace);
        if let Some(most) = quota.and_then(|quota| quota.running_max) {
            let running = self.running_in(namespace);
            if running >= most as usize {
                return Err(quota_full(namespace, running));
            }
        }
        Ok(())
    }

    fn running_in(&self, namespace: &str) -> usize {
        let running = self.jobs.values().filter(|job| job.attempt().is_some());
        running
            .filter(|job| job.spec.namespace == namespace)
            .count()
    }

    pub(super) fn happened(&mut self, id: JobId, event: Event) -> Result<(), Refusal> {
        let now = self.now;
        let Some(job) = self.jobs.get_mut(&id) else {
            return Ok(());
        };
        let before = job.word();
        let reserves = |job: &Job| {
            job.attempt()
                .filter(|it| !it.reserved.is_empty())
                .map(|it| (it.number, it.reserved.len()))
        };
        let reserved = reserves(job);
        let told = match &event {
            Event::Unkept { lines, .. } => Some(format!(
                "{lines} lines of its output are not kept: make room on the disks of the voters"
            )),
            Event::Prepared {
                node,
                note: Some(note),
                ..
            } => Some(format!("on node `{node}`: {note}")),
            _ => None,
        };
        let is_end = matches!(event, Event::Over { .. });
        let standing = Standing::of(job);
        job.apply(event, now).map_err(refused)?;
        // Another version begins on the places of the last try, if they are all there.
        if let (true, State::Staging { attempt }) = (is_end, &job.state)
            && !attempt.reserved.iter().all(|it| is_alive(&self.nodes, it))
        {
            job.give_up_places(now);
        }
        let what = match &job.state {
            State::Waiting { why, .. } => format!("waits: {why}"),
            State::Staging { attempt } => {
                format!("try {} goes to node `{}`", attempt.number, attempt.node)
            }
            State::Running { attempt, .. } => format!("runs on node `{}`", attempt.node),
            State::Stopping { by, updates, .. } => match updates {
                true => "ends, and another version begins on its places".to_owned(),
                false => format!("is stopped by {by}"),
            },
            State::Ended { outcome, .. } => outcome.to_string(),
        };
        let has_ended = job.is_over();
        // Every node has to know what is not to be given to others.
        let changes = reserved != reserves(job);
        let name = job.spec.hosts.as_ref();
        let name = name.map(|hosted| format!("{}/{}", job.spec.namespace, hosted.name));
        let versions = standing.told(job);
        let is_new = job.word() != before && (versions.is_none() || job.word() != "updating");
        if let Some(versions) = versions {
            self.note(id.to_string(), versions);
        }
        if let Some(told) = told {
            self.note(id.to_string(), told);
        } else if is_new {
            self.note(id.to_string(), what);
        }
        self.nodes_version += u64::from(changes);
        if has_ended {
            if let Some(name) = name {
                self.detached.remove(&name);
            }
            self.forget_ended(id);
            self.tell_later_jobs(id);
        }
        Ok(())
    }

    /// Forgets the jobs that ended first when there are too many, but not the one that just did.
    pub(super) fn forget_ended(&mut self, last: JobId) {
        if self.jobs.len() <= ENDED_MAX || self.ended_jobs().count() <= ENDED_MAX {
            return;
        }
        let others = self.ended_jobs().filter(|(_, job)| job.id != last);
        if let Some(first) = others.map(|(at, job)| (at, job.id)).min() {
            self.jobs.remove(&first.1);
        }
    }
}

/// Why a job of a namespace waits that runs as much as it may.
pub(crate) fn quota_full(namespace: &str, running: usize) -> String {
    format!("namespace `{namespace}` runs {running} jobs, as many as it may")
}

/// What does not fit is told as a conflict, what cannot be meant as invalid, and what is not there as unknown.
fn refused(unfit: Unfit) -> Refusal {
    let kind = match unfit {
        Unfit::NoVersion { .. } => RefusalKind::Unknown,
        Unfit::Spec(_) | Unfit::Wait(_) => RefusalKind::Invalid,
        _ => RefusalKind::Conflict,
    };
    Refusal::new(kind, unfit)
}
