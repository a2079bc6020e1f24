//! Jobs as they are seen, beside what the catalog says: their actors, what those hold, and what
//! those that have no place wait for.

use std::collections::{BTreeMap, BTreeSet};

use odeon::{ProcessId, Waiting};
use odeon_client::inspect as told;
use odeon_cluster::startup::{StartStage, Startup};
use odeon_placement::{Cause, Process, Refusal, Resources};

use super::dto::{Shown, rounded};
use super::workload::label;

/// The name under which ranks and programs record stages of their start.
const STAGE_RECORDED: &str = "start.stage_s";

/// The number of a job in the name under which its processes run: `team/j17.2` is `j17`.
pub(super) fn job_number(tag: &str) -> &str {
    let own = tag.rsplit('/').next().unwrap_or(tag);
    own.split('.').next().unwrap_or(own)
}

/// A run has the name of its job, and ends as it ends.
pub(super) fn name_run(run: &mut told::Run, jobs: &[told::Job]) {
    let number = job_number(&run.id);
    let Some(job) = jobs.iter().find(|job| job.id == number) else {
        return;
    };
    run.name = format!("{} {}", job.id, job.name);
    let state = match job.state.as_str() {
        "succeeded" => "finished",
        "stopped" => "halted",
        "failed" => "failed",
        _ => return,
    };
    state.clone_into(&mut run.state);
    run.ended = run.ended.or(Some(job.since));
}

/// The resources that the actors of a job hold.
#[derive(Default)]
struct Held {
    actors: u64,
    devices: u32,
    resources: Resources,
    nodes: BTreeSet<String>,
}

impl Held {
    fn sentence(&self) -> String {
        let mut parts = vec![];
        match self.devices {
            0 => {}
            1 => parts.push("1 device".to_owned()),
            many => parts.push(format!("{many} devices")),
        }
        if !self.resources.is_empty() {
            parts.push(self.resources.to_string());
        }
        match (parts.is_empty(), self.nodes.len()) {
            (true, _) => String::new(),
            (false, 1) => format!("holds {} on 1 node", parts.join(" + ")),
            (false, nodes) => format!("holds {} on {nodes} nodes", parts.join(" + ")),
        }
    }
}

impl Shown<'_> {
    /// The start-up of a job: what the catalog knows of it, and what its ranks and programs have recorded.
    pub(super) fn startup(&self, job: &str, mut known: Startup) -> Vec<told::StartupStage> {
        for recorded in self.seen.recorded().filter(|it| it.name == STAGE_RECORDED) {
            let stage = label(recorded, "stage").and_then(|it| StartStage::named(&it.to_string()));
            let row = self.seen.actors().get(recorded.actor);
            let host = row.map_or(recorded.actor.home, |row| row.view.process);
            let process = self.seen.process(host);
            let (Some(stage), Some(process)) = (stage, process) else {
                continue;
            };
            // What a life of a rank tells once counts as its last try does.
            let seconds = recorded.points.back().map(|(.., seconds)| *seconds);
            if let Some(seconds) = seconds.filter(|_| job_number(&process.job) == job) {
                known.tell(&process.node, [(stage, (seconds * 1000.0) as u64)]);
            }
        }
        let of_stage = |stage: StartStage| {
            let times = known.nodes.iter();
            times.filter_map(move |(node, times)| Some((node.clone(), *times.get(&stage)? as f64)))
        };
        let stages = known.stages().into_iter().map(|it| told::StartupStage {
            stage: it.stage.name().to_owned(),
            ms: it.slowest_ms as f64,
            ratio: it.ratio().map(rounded),
            median_ms: it.median_ms as f64,
            nodes: of_stage(it.stage).collect(),
            slowest: it.slowest,
        });
        stages.collect()
    }

    /// Says of each job what is seen of it.
    pub(super) fn fill_in(&self, jobs: &mut [told::Job]) {
        let mut held: BTreeMap<&str, Held> = BTreeMap::new();
        for actor in self.seen.actors().iter().filter(|it| it.ended.is_none()) {
            held.entry(job_number(&actor.job)).or_default().actors += 1;
        }
        let mut waiting: BTreeMap<&str, &Waiting> = BTreeMap::new();
        let here = self.seen.nodes().filter(|it| it.gone.is_none());
        for view in here.filter_map(|it| it.hardware.as_ref()) {
            for lease in view.node.leases() {
                let job = match lease.process {
                    Process::Existing(process) => self.seen.job_of(ProcessId(process)),
                    _ => None,
                };
                let job = job.unwrap_or(&lease.job);
                let row = held.entry(job_number(job)).or_default();
                row.devices += lease.devices.len() as u32;
                row.resources.add(&lease.resources);
                row.nodes.insert(lease.node.clone());
            }
            for it in &view.waiting {
                let job = self.seen.job_waiting(it);
                waiting.entry(job_number(job)).or_insert(it);
            }
        }
        for job in jobs {
            if let Some(held) = held.get(job.id.as_str()) {
                job.actors = held.actors;
                job.needs = held.sentence();
            }
            let waiting = waiting.get(job.id.as_str());
            if let Some(waiting) = waiting.filter(|_| job.exit.is_none()) {
                job.refusal = Some(refusal(waiting));
            }
        }
    }
}

/// Why actors of a job have no place, node by node.
fn refusal(waiting: &Waiting) -> told::Refusal {
    told::Refusal {
        sentence: format!("{} has no place yet: {waiting}", waiting.holder),
        rows: waiting.refusal.as_ref().map_or_else(Vec::new, rows),
    }
}

fn rows(refusal: &Refusal) -> Vec<told::NodeRefusal> {
    let Cause::Room { nodes, .. } = &*refusal.cause else {
        return vec![];
    };
    let row = |node: &odeon_placement::NodeRefusal| told::NodeRefusal {
        node: node.node.clone(),
        asked: refusal.asked.clone(),
        free: match node.room_for {
            0 => "room for none".to_owned(),
            1 => "room for 1".to_owned(),
            some => format!("room for {some}"),
        },
        why: format!("it {}", node.reason),
        fits: node.room_for > 0,
    };
    nodes.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_job_is_in_its_tag() {
        for (tag, number) in [("team/j17.2", "j17"), ("j3.1", "j3"), ("odeon", "odeon")] {
            assert_eq!(job_number(tag), number);
        }
    }
}
