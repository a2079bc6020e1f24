//! A machine that differs from those that host the same ranks, by what real processes tell of their steps.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use odeon::inspect::{NodeSight, ProcessSight, Watch};
use odeon::{Clock, ProcessId, Ref, System, WorkerMode, telemetry};
use odeon_observe::event::Subject;
use odeon_observe::{ClusterView, Date};
use odeon_tests::again;

const PATIENCE: Duration = Duration::from_secs(30);
/// Looks are dated so far apart: minutes pass in seconds.
const APART: Duration = Duration::from_secs(10);
/// The machines, one of each rank.
const MACHINES: [&str; 4] = ["a", "b", "c", "d"];

struct Rank;

#[odeon::actor(name = "odd_machine.Rank")]
impl Rank {
    fn start(_args: ()) -> Self {
        Self
    }

    /// Makes a step and tells how long it took, as ranks of a training run do.
    #[handler]
    async fn step(&mut self, rank: u32, millis: u64) {
        let began = Clock::now();
        Clock::sleep(Duration::from_millis(millis)).await;
        let took = Clock::now().since(began).as_secs_f64();
        let told = telemetry::gauge("train.stage_s", took).with("rank", rank);
        told.with("stage", "compute").record();
    }
}

fn job() -> odeon::Job {
    odeon::job![Rank]
}

#[test]
fn worker_entry() {
    job().serve_if_worker();
}

/// Ranks in processes of their own, and what is seen of them.
struct Job {
    system: System,
    ranks: Vec<Ref<Rank>>,
    watch: Watch,
    /// The machine of each process: that of its rank.
    homes: BTreeMap<ProcessId, &'static str>,
    seen: ClusterView,
    date: Date,
}

impl Job {
    async fn start() -> Self {
        let workers = WorkerMode::Processes(again::worker(module_path!()));
        let system = System::builder().job(job()).workers(workers).start();
        let system = system.await.unwrap();
        let mut ranks = vec![];
        for _ in MACHINES {
            ranks.push(system.spawn::<Rank>(()).isolated().await.unwrap());
        }
        Self {
            watch: system.admin().watch(),
            system,
            ranks,
            homes: BTreeMap::new(),
            seen: ClusterView::default(),
            date: Date(1_000_000_000_000_000),
        }
    }

    /// Each worker as if it were on a machine of its own.
    fn machines(&mut self, sight: &NodeSight) -> Vec<NodeSight> {
        for process in &sight.processes {
            for (rank, machine) in self.ranks.iter().zip(MACHINES) {
                if process.sight.actors.iter().any(|it| it.id == rank.id()) {
                    self.homes.insert(process.sight.process, machine);
                }
            }
        }
        let machine = |process: &ProcessSight| {
            let name = self.homes.get(&process.sight.process)?;
            Some(NodeSight {
                node: (*name).to_owned(),
                process: process.sight.process,
                processes: vec![process.clone()],
                links: vec![],
                hardware: None,
                names: None,
                ..sight.clone()
            })
        };
        sight.processes.iter().filter_map(machine).collect()
    }

    /// Has each rank make a step, of which one takes so long, and looks: the machines that differ now.
    async fn step(&mut self, odd: u64) -> Vec<(Subject, String)> {
        let steps = self.ranks.iter().zip(0..).map(|(rank, number)| {
            let millis = if number == 2 { odd } else { 20 };
            let step = Step {
                rank: number,
                millis,
            };
            async move { rank.ask(step).timeout(PATIENCE).await.unwrap() }
        });
        join_all(steps).await;
        let sight = self.watch.look(PATIENCE).await;
        self.date = self.date.after(APART);
        let own = (Clock::now(), self.date);
        for machine in self.machines(&sight) {
            self.seen.look(machine, own, Some((0, Duration::ZERO)));
        }
        // A metric at each tick, and less than a second in all.
        for tick in 0..20 {
            self.seen
                .tick(self.date.after(Duration::from_millis(40 * tick)));
        }
        let found = self.seen.findings().iter();
        let odd = found.filter(|it| it.cause.rule == "odd_machine");
        odd.map(|it| (it.who[0].clone(), it.cause.sentence.clone()))
            .collect()
    }

    /// Steps until something is true of the machines that differ.
    async fn until(
        &mut self,
        odd: u64,
        fact: impl Fn(&[(Subject, String)]) -> bool,
    ) -> Vec<(Subject, String)> {
        let mut last = vec![];
        for _ in 0..200 {
            last = self.step(odd).await;
            if fact(&last) {
                return last;
            }
        }
        panic!("not so after 200 steps: {last:?}");
    }
}

/// SEMANTICS 182: ranks are real processes, and machines made of them; ten seconds of theirs pass in some ms.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_machine_whose_rank_becomes_slow_is_named_until_it_is_quick_again() {
    let mut job = Job::start().await;
    for _ in 0..30 {
        assert_eq!(job.step(20).await, []);
    }
    let found = job.until(80, |found| !found.is_empty()).await;
    let [(who, said)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(*who, Subject::Node("c".to_owned()), "{said}");
    assert!(said.contains("seconds of computing in a step"), "{said}");
    job.until(20, <[_]>::is_empty).await;
    job.system.shutdown().await;
}
