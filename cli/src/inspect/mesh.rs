//! The ranks of a workload on their mesh, from what these record: who is where, and how long each takes for what.

use std::collections::BTreeMap;

use odeon::ActorId;
use odeon_client::inspect as told;
use odeon_client::inspect::Measured;
use odeon_mesh::Mesh;
use odeon_observe::actor::State;
use odeon_observe::cluster_view::Recorded;
use odeon_observe::passes::RankPlaces;

use super::dto::Shown;
use super::workload::label;

/// Its memory in bytes, with the label `of`.
const MEMORY: &str = "train.memory_bytes";
/// The seconds of its steps.
const SECONDS: [&str; 3] = ["train.stage_s", "train.exchange_s", "train.wait_s"];
/// Steps over which means are taken.
const STEPS: usize = 8;

/// The ranks of a run, as they have told of themselves.
pub(super) struct RanksSeen<'a> {
    pub(super) places: RankPlaces,
    numbers: BTreeMap<ActorId, RankNumbers<'a>>,
}

/// The numbers of a rank.
#[derive(Default)]
struct RankNumbers<'a> {
    /// In the order of [`SECONDS`].
    seconds: [Option<&'a Recorded>; 3],
    /// By what they are of.
    memory: BTreeMap<String, u64>,
}

impl<'a> RanksSeen<'a> {
    /// Those among the numbers of a run: of the mesh that was told last.
    pub(super) fn of(recorded: &[&'a Recorded]) -> Option<Self> {
        let places = RankPlaces::of(recorded)?;
        let mut numbers: BTreeMap<ActorId, RankNumbers<'a>> = BTreeMap::new();
        for it in recorded.iter().filter(|it| it.rank().is_some()) {
            let own = numbers.entry(it.actor).or_default();
            if let Some(at) = SECONDS.iter().position(|name| *name == it.name) {
                own.seconds[at] = Some(*it);
            } else if let Some((of, (.., bytes))) = label(it, "of").zip(it.points.back())
                && it.name == MEMORY
            {
                own.memory.insert(of.to_string(), *bytes as u64);
            }
        }
        Some(Self { places, numbers })
    }

    fn numbers_of(&self, rank: usize) -> Option<&RankNumbers<'a>> {
        self.numbers.get(self.places.actors.get(&rank)?)
    }
}

impl RankNumbers<'_> {
    /// The means over so many steps, the last ones.
    fn means(&self, steps: usize) -> Option<told::RankSeconds> {
        let mean = |of: Option<&Recorded>| {
            let last = of?.points.iter().rev().take(steps);
            let (sum, count) = last.fold((0.0, 0), |(sum, count), (.., it)| (sum + it, count + 1));
            (count > 0).then(|| sum / f64::from(count))
        };
        let [compute, exchange, wait] = self.seconds.map(mean);
        Some(told::RankSeconds {
            compute: compute?,
            exchange: exchange?,
            wait: wait?,
        })
    }

    fn step(&self) -> Option<u64> {
        let (_, step, _) = self.seconds[0]?.points.back()?;
        step.map(|step| step as u64)
    }

    fn memory(&self) -> Option<told::RankMemory> {
        let of = |name: &str| self.memory.get(name).copied();
        Some(told::RankMemory {
            parameters: of("parameters")?,
            gradients: of("gradients")?,
            optimizer: of("optimizer")?,
            gathered: of("gathered")?,
            activations: of("activations"),
        })
    }
}

impl Shown<'_> {
    pub(super) fn mesh(&self, seen: &RanksSeen<'_>, job: &str) -> told::RunMesh {
        let all = 0..seen.places.mesh.len();
        let ranks: Vec<_> = all.clone().map(|rank| self.rank(seen, rank)).collect();
        let means = |rank| seen.numbers_of(rank)?.means(STEPS);
        let last: Vec<_> = ranks.iter().filter_map(|it| it.last.clone()).collect();
        told::RunMesh {
            dims: dims(&seen.places.mesh, &all.map(means).collect::<Vec<_>>()),
            median: median(&last),
            ranks,
            standbys: self.standbys(job),
        }
    }

    /// The actors of a job that stand by for its ranks, by their names.
    fn standbys(&self, job: &str) -> Vec<told::MeshStandby> {
        let own = self.seen.actors().iter().filter(|it| it.job == job);
        let waits = own.filter(|it| !matches!(it.state, State::Stopped | State::Failed));
        let standbys = waits.filter_map(|it| {
            Some(told::MeshStandby {
                standby: standby_of(it.name.as_deref()?)?,
                actor: self.actor_subject(it.view.id),
                node: it.node.clone(),
            })
        });
        let mut standbys: Vec<_> = standbys.collect();
        standbys.sort_unstable_by_key(|it| it.standby);
        standbys
    }

    fn rank(&self, seen: &RanksSeen<'_>, rank: usize) -> told::MeshRank {
        let id = seen.places.actors.get(&rank).copied();
        let actor = id.and_then(|id| self.seen.actors().get(id));
        let numbers = seen.numbers_of(rank);
        let process = actor.and_then(|it| self.seen.process(it.view.process));
        let usage = process.and_then(|it| it.usage.filter(|_| it.ended.is_none()));
        let why = match process {
            Some(process) if process.ended.is_some() => "the process is gone",
            Some(_) => "not measured yet",
            None => "it is not seen",
        };
        let dims = seen.places.mesh.dims().iter();
        let step = numbers.and_then(RankNumbers::step);
        told::MeshRank {
            rank: rank as u64,
            coordinates: dims
                .map(|dim| seen.places.mesh.coordinate(rank, &dim.name) as u64)
                .collect(),
            state: state_of(id.is_some(), actor.map(|it| it.state), step.is_some()).to_owned(),
            actor: id.map(|id| self.actor_subject(id)),
            node: actor.map_or_else(String::new, |it| it.node.clone()),
            process: actor.map_or_else(String::new, |it| it.view.process.to_string()),
            devices: actor.map_or_else(Vec::new, |it| self.devices_of(it)),
            step,
            last: numbers.and_then(|it| it.means(1)),
            memory: numbers.and_then(RankNumbers::memory),
            resident: Measured::new(usage.map(|it| it.resident as f64), why),
        }
    }
}

/// The number of a standby of this name.
fn standby_of(name: &str) -> Option<u64> {
    name.strip_prefix("standby-")?.parse().ok()
}

/// The state of a rank that has told of itself or not, by that of its actor. It is made until it has made a step.
const fn state_of(is_told: bool, actor: Option<State>, has_stepped: bool) -> &'static str {
    match actor {
        None if !is_told => "starting",
        // It is so long gone that nobody knows.
        None | Some(State::Stopped) => "stopped",
        Some(State::Failed) => "lost",
        Some(State::Starting | State::Restarting) => "starting",
        Some(_) if !has_stepped => "starting",
        Some(_) => "running",
    }
}

/// The dimensions of a mesh, with the means over those of its ranks that have told any.
fn dims(mesh: &Mesh, of_ranks: &[Option<told::RankSeconds>]) -> Vec<told::MeshDim> {
    let dim = |dim: &odeon_mesh::Dim| {
        let mut places: Vec<Vec<told::RankSeconds>> = vec![vec![]; dim.size];
        for (rank, seconds) in of_ranks.iter().enumerate() {
            places[mesh.coordinate(rank, &dim.name)].extend(seconds.clone());
        }
        told::MeshDim {
            name: dim.name.clone(),
            size: dim.size as u64,
            means: places.iter().map(|it| mean(it)).collect(),
        }
    };
    mesh.dims().iter().map(dim).collect()
}

fn mean(of: &[told::RankSeconds]) -> Option<told::RankSeconds> {
    let mean = |of_one: fn(&told::RankSeconds) -> f64| {
        of.iter().map(of_one).sum::<f64>() / of.len() as f64
    };
    (!of.is_empty()).then(|| told::RankSeconds {
        compute: mean(|it| it.compute),
        exchange: mean(|it| it.exchange),
        wait: mean(|it| it.wait),
    })
}

fn median(of: &[told::RankSeconds]) -> Option<told::RankSeconds> {
    let median = |of_one: fn(&told::RankSeconds) -> f64| {
        let mut all: Vec<f64> = of.iter().map(of_one).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    (!of.is_empty()).then(|| told::RankSeconds {
        compute: median(|it| it.compute),
        exchange: median(|it| it.exchange),
        wait: median(|it| it.wait),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use odeon::ProcessId;
    use odeon::telemetry::Label;
    use odeon_mesh::mesh;
    use odeon_observe::Date;

    use super::*;

    fn seconds(compute: f64) -> told::RankSeconds {
        told::RankSeconds {
            compute,
            exchange: 10.0 * compute,
            wait: 100.0 * compute,
        }
    }

    #[test]
    fn a_slow_tensor_group_and_a_slow_stage_are_seen_in_the_means_of_their_dimension() {
        let mesh = mesh! { dp: 2, pp: 2, tp: 2 };
        // Stage 1 takes twice, tensor rank 1 three times as long.
        let of = |rank| {
            let stage = mesh.coordinate(rank, "pp") as f64;
            let tensor = mesh.coordinate(rank, "tp") as f64;
            Some(seconds((1.0 + stage) * (1.0 + 2.0 * tensor)))
        };
        let dims = dims(&mesh, &(0..8).map(of).collect::<Vec<_>>());
        let means = |at: usize| -> Vec<f64> {
            let means = dims[at].means.iter().flatten();
            means.map(|it: &told::RankSeconds| it.compute).collect()
        };
        assert_eq!(dims[1].name, "pp");
        assert_eq!(
            [means(0), means(1), means(2)],
            [[3.0, 3.0], [2.0, 4.0], [1.5, 4.5]]
        );
        assert_eq!(dims[2].means[0].as_ref().unwrap().wait, 150.0);
    }

    #[test]
    fn ranks_that_have_told_nothing_count_for_no_mean() {
        let mesh = mesh! { dp: 3 };
        let dims = dims(&mesh, &[Some(seconds(1.0)), None, Some(seconds(3.0))]);
        assert_eq!(
            dims[0].means,
            [Some(seconds(1.0)), None, Some(seconds(3.0))]
        );
        assert_eq!(
            median(&[seconds(1.0), seconds(9.0), seconds(2.0)]),
            Some(seconds(2.0))
        );
        assert_eq!(median(&[]), None);
    }

    /// SEMANTICS 207.
    #[test]
    fn standbys_are_known_by_their_names() {
        let numbers = ["standby-0", "standby-12", "rank-3", "standby", "standby-x"].map(standby_of);
        assert_eq!(numbers, [Some(0), Some(12), None, None, None]);
    }

    #[test]
    fn a_rank_is_made_until_it_has_made_a_step_and_is_lost_when_it_has_failed() {
        assert_eq!(state_of(false, None, false), "starting");
        assert_eq!(state_of(true, Some(State::Idle), false), "starting");
        assert_eq!(state_of(true, Some(State::Busy), true), "running");
        assert_eq!(state_of(true, Some(State::Failed), true), "lost");
        assert_eq!(state_of(true, Some(State::Stopped), true), "stopped");
        assert_eq!(state_of(true, None, true), "stopped");
    }

    fn actor(serial: u64) -> ActorId {
        ActorId {
            home: ProcessId(1),
            serial,
        }
    }

    fn recorded(name: &str, by: u64, labels: &[(&'static str, Label)], points: &[f64]) -> Recorded {
        let labels = labels.iter().cloned();
        let points = points.iter().enumerate();
        Recorded {
            name: name.to_owned(),
            actor: actor(by),
            labels: labels.map(|(name, label)| (name.into(), label)).collect(),
            what: None,
            points: points
                .map(|(at, value)| (Date(by + at as u64), Some(at as f64 + 1.0), *value))
                .collect::<VecDeque<_>>(),
            told: 1,
        }
    }

    #[test]
    fn a_rank_that_is_made_again_and_a_mesh_of_before_are_those_that_were_told_last() {
        let place = |by: u64, rank: i64, mesh: &str| {
            let labels = [
                ("rank", Label::Int(rank)),
                ("mesh", Label::Text(mesh.to_owned())),
            ];
            recorded("train.rank", by, &labels, &[0.0])
        };
        let own =
            |name: &str, by, points: &[f64]| recorded(name, by, &[("rank", Label::Int(1))], points);
        let memory = |of: &str, bytes| {
            let of = ("of", Label::Text(of.to_owned()));
            let labels = [("rank", Label::Int(1)), of];
            recorded(MEMORY, 5, &labels, &[bytes])
        };
        let mut all = vec![
            place(2, 2, "{dp: 3}"),
            place(3, 0, "{dp: 2}"),
            place(4, 1, "{dp: 2}"),
            place(5, 1, "{dp: 2}"),
            own("train.stage_s", 4, &[9.0]),
            own("train.stage_s", 5, &[1.0; 20]),
            own("train.exchange_s", 5, &[2.0, 3.0]),
            own("train.wait_s", 5, &[0.5]),
            memory("parameters", 4.0),
            memory("gradients", 4.0),
            memory("optimizer", 8.0),
            memory("gathered", 0.0),
        ];
        let memory_of = |all: &[Recorded]| {
            let seen = RanksSeen::of(&all.iter().collect::<Vec<_>>()).unwrap();
            seen.numbers_of(1).unwrap().memory().unwrap()
        };
        // Activations are measured, so that they are known with the first step.
        assert_eq!(memory_of(&all).activations, None);
        all.push(memory("activations", 16.0));
        let told = memory_of(&all);
        assert_eq!((told.parameters, told.activations), (4, Some(16)));
        let seen = RanksSeen::of(&all.iter().collect::<Vec<_>>()).unwrap();
        assert_eq!(seen.places.mesh, mesh! { dp: 2 });
        assert_eq!(
            seen.places.actors,
            BTreeMap::from([(0, actor(3)), (1, actor(5))])
        );
        let numbers = seen.numbers_of(1).unwrap();
        assert_eq!(numbers.step(), Some(20));
        assert_eq!(numbers.means(1).unwrap().exchange, 3.0);
        assert_eq!(numbers.means(STEPS).unwrap().exchange, 2.5);
        assert!(seen.numbers_of(0).is_none_or(|it| it.means(1).is_none()));
        assert!(RanksSeen::of(&[]).is_none());
    }
}
