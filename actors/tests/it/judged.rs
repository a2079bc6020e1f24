//! Replies that hold programs, judged by the reward actor of a run in a process of its own: programs
//! that do their worst, that take their time, and a reward actor that is killed meanwhile.
//!
//! On a machine that does not let programs be isolated these tests are skipped.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::{Clock, System, WorkerMode};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::scripted::Script;
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::ledger::LedgerConfig;
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::report::Report;
use odeon_actors::rl::rollout::{CountTokens, Load, Look, Swap};
use odeon_actors::rl::run::{Processes, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, StoreArgs, Take, Taken};
use odeon_actors::rl::trainer::TrainPlan;
use odeon_actors::sandbox::{Isolation, Sandbox, SandboxError, SandboxSpec};
use odeon_actors::trajectory::Batch;
use odeon_algorithms::objective::{Baseline, GroupBaseline};
use odeon_algorithms::task::code::CodeConfig;
use odeon_algorithms::task::{PromptStyle, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_skip::{Need, skip};
use odeon_tests::again;

#[test]
fn worker_entry() {
    odeon_actors::rl::job().serve_if_worker();
}

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);
const SLOTS: usize = 4;
/// Replies that a rollout of so many slots holds at most.
const HELD: u32 = 16;

/// A run whose replies are these programs, in the order of the samples of a group. Its folder, and a
/// folder in it that programs see.
struct Place {
    folder: tempfile::TempDir,
    system: System,
}

impl Place {
    /// Nothing on a machine without isolation, where the test is skipped.
    async fn new() -> Option<Self> {
        let opened = Sandbox::open(SandboxSpec::default(), Isolation::Required).await;
        match opened {
            Ok(_) => {}
            Err(error @ SandboxError::NoIsolation { .. }) => {
                skip(Need::Namespaces, error);
                return None;
            }
            Err(error) => panic!("{error}"),
        }
        let worker = again::worker(module_path!());
        let builder = System::builder().workers(WorkerMode::Processes(worker));
        let place = Self {
            folder: tempfile::tempdir().unwrap(),
            system: builder.start().await.unwrap(),
        };
        fs::create_dir(place.gate().parent().unwrap()).unwrap();
        let mut problems = fs::File::create(place.problems()).unwrap();
        let row = r#"{"prompt": "Add.", "tests": [{"call": "add(1, 2)", "value": "3"}]}"#;
        writeln!(problems, "{row}\n{row}").unwrap();
        Some(place)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn problems(&self) -> PathBuf {
        self.path().join("problems.jsonl")
    }

    /// The file that programs wait for.
    fn gate(&self) -> PathBuf {
        self.path().join("shown/gate")
    }

    /// A program that is right when the gate is open, and until then has a process of this name.
    fn waits(&self, mark: &str) -> String {
        let gate = self.gate().display().to_string();
        format!(
            "import os, subprocess, time\ndef add(a, b):\n    subprocess.Popen(['sleep', '{mark}'])\n    \
             while not os.path.exists('{gate}'): time.sleep(0.01)\n    return a + b"
        )
    }

    async fn start(&self, programs: &[String], cpu: Duration, groups: usize) -> Run {
        let tokenizer = Tokenizer::text();
        let reply = |program: &String| {
            let text = format!("```python\n{program}\n```");
            tokenizer.encode(&text).unwrap()
        };
        let replies: Vec<Vec<u32>> = programs.iter().map(reply).collect();
        let group_size = replies.len() as u32;
        let engine = EngineSpec::Scripted(Script {
            train: Duration::from_millis(1),
            token: Duration::ZERO,
            response: 1,
            slots: SLOTS,
            pauses_at: None,
            stuck_after: None,
            replies,
            hold: None,
            journal: None,
        });
        let task = TaskSpec::Code(CodeConfig {
            train_count: 1,
            style: PromptStyle::Plain,
            ..CodeConfig::new(self.problems())
        });
        let plan = RunPlan {
            store: StoreArgs {
                task,
                seed: 1,
                tokenizer,
                ledger: LedgerConfig::new(group_size, groups, 1_000),
            },
            rollout_engine: engine.clone(),
            trainer_engine: engine,
            relays: 1,
            forms: Forms::Full,
            sharing: odeon_algorithms::train::Sharing::ALONE,
            recovery: LadderPolicy::default(),
            rollouts: 1,
            swap: Swap::Overlap,
            tell_every: Duration::from_secs(1),
            repack: None,
            processes: Processes::Own,
            needs: RoleNeeds::default(),
            reference: false,
            programs: ProgramSpec {
                sandbox: SandboxSpec {
                    wall: PATIENCE,
                    cpu,
                    readable: vec![self.gate().parent().unwrap().to_owned()],
                    ..SandboxSpec::default()
                },
                isolation: Isolation::Required,
                at_once: NonZeroUsize::new(2 * HELD as usize).unwrap(),
            },
            environment: None,
            learned: None,
            harm: None,
            train: TrainPlan {
                warmup: 0,
                steps: 1_000_000,
                value_steps: 0,
                checkpoint_every: 1_000_000,
                publish_every: 1,
                checkpoint: self.path().join("checkpoint"),
                eval_problems: 1,
                eval_every: 0,
                baseline: Baseline::Group(GroupBaseline::default()),
                overlong: None,
                price: None,
            },
            watch: Watch::new(1_000_000),
        };
        Run::start(&self.system, plan).await.unwrap()
    }
}

/// The batches of the first steps.
async fn batches(run: &mut Run, steps: u64) -> Vec<Batch> {
    let mut batches = vec![];
    while (batches.len() as u64) < steps {
        let report = Clock::timeout(PATIENCE, run.reports.recv()).await;
        let report = report.expect("the run goes on").expect("it has a monitor");
        if let Report::Step(step) = report
            && step.version <= steps
        {
            let take = Take {
                step: step.version,
                consumer: run.trainer.narrow(),
            };
            let Taken::Batch(packed) = run.store.ask(take).await.unwrap().unwrap() else {
                panic!("it is kept");
            };
            batches.push(packed.unpack().await.unwrap());
        }
    }
    batches
}

/// Waits until the rollout is so.
async fn load(run: &Run, is: impl Fn(Load) -> bool) -> Load {
    let looking = async {
        loop {
            let load = run.rollouts[0].ask(Look).await.unwrap();
            if is(load) {
                return load;
            }
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    Clock::timeout(PATIENCE, looking)
        .await
        .expect("it comes to that")
}

/// A rollout that waits for as many rewards as it may, and for nothing else.
fn is_full(load: Load) -> bool {
    (load.judging, load.running, load.waiting) == (HELD, 0, 0)
}

/// The processes whose command line has this text.
fn processes_with(text: &str) -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let number = entry.file_name().to_str()?.parse().ok()?;
        let has = String::from_utf8_lossy(&line).contains(text);
        has.then_some(number)
    });
    found.collect()
}

/// Waits until the processes with this text are so.
async fn processes(text: &str, are: impl Fn(&BTreeSet<u32>) -> bool) -> BTreeSet<u32> {
    let looking = async {
        loop {
            let found = processes_with(text);
            if are(&found) {
                return found;
            }
            Clock::sleep(Duration::from_millis(10)).await;
        }
    };
    Clock::timeout(PATIENCE, looking)
        .await
        .expect("it comes to that")
}

const RIGHT: &str = "def add(a, b): return a + b";

/// SEMANTICS 79.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_programs_earn_nothing_and_others_what_is_theirs() {
    let Some(place) = Place::new().await else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let network = format!(
        "import socket\ndef add(a, b):\n    try:\n        socket.create_connection(('127.0.0.1', {port}), 5)\n    \
         except OSError:\n        return 0\n    return a + b"
    );
    // It is ended, and what it has started would go on.
    let mark = format!("76543.{}3", std::process::id());
    let outlives = format!(
        "import subprocess\ndef add(a, b):\n    subprocess.Popen(['sleep', '{mark}'])\n    \
         while True: pass"
    );
    let programs = [
        RIGHT,
        "import os\ndef add(a, b):\n    while True:\n        try: os.fork()\n        except OSError: pass",
        &outlives,
        "def add(a, b):\n    while True: print('x' * 65536)",
        &network,
        "def add(a, b):\n    x = []\n    while True: x.append(bytearray(1 << 20))",
        RIGHT,
    ];
    let programs = programs.map(str::to_owned);
    let mut run = place.start(&programs, Duration::from_secs(2), 1).await;
    let reward = run.roles().find(|(role, ..)| role == "reward");
    let (_, _, process) = reward.expect("it has a process of its own");
    assert_ne!(process, Some(place.system.process()));
    let begun = processes(&mark, |found| !found.is_empty()).await;
    let batch = batches(&mut run, 1).await.remove(0);
    let rewards: Vec<f32> = batch.trajectories.iter().map(|it| it.reward).collect();
    assert_eq!(rewards, [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
    processes(&mark, |found| found.is_disjoint(&begun)).await;
    place.system.shutdown().await;
}

/// SEMANTICS 79.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reward_holds_up_no_generation_until_there_are_too_many() {
    let Some(place) = Place::new().await else {
        return;
    };
    let mark = format!("76543.{}1", std::process::id());
    let programs = [place.waits(&mark), RIGHT.to_owned()];
    let mut run = place.start(&programs, PATIENCE, 2).await;
    // Nothing lets a slow program end, and others are generated, judged and handed in meanwhile.
    processes(&mark, |found| found.len() == HELD as usize).await;
    load(&run, is_full).await;
    let counted = run.rollouts[0].ask(CountTokens).await.unwrap();
    let held = u64::from(HELD);
    assert!(counted.trajectories > held + SLOTS as u64, "{counted:?}");
    let handed_in = async {
        let others = counted.trajectories - held;
        while run.store.ask(Count).await.unwrap().accepted < others {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let handed_in = Clock::timeout(PATIENCE, handed_in).await;
    handed_in.expect("all but the slow ones");
    fs::write(place.gate(), "").unwrap();
    for batch in batches(&mut run, 4).await {
        assert!(batch.trajectories.iter().all(|it| it.correct), "{batch:?}");
    }
    assert_eq!(run.store.ask(Count).await.unwrap().duplicates, 0);
    place.system.shutdown().await;
    processes(&mark, BTreeSet::is_empty).await;
}

/// SEMANTICS 79.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_reward_actor_was_judging_is_judged_once_and_nothing_of_it_is_left() {
    let Some(place) = Place::new().await else {
        return;
    };
    let mark = format!("76543.{}2", std::process::id());
    let programs = [place.waits(&mark), place.waits(&mark)];
    let mut run = place.start(&programs, PATIENCE, 2).await;
    load(&run, is_full).await;
    let before = processes(&mark, |found| found.len() == HELD as usize).await;
    let process = run.roles().find(|(role, ..)| role == "reward").unwrap().2;
    assert!(place.system.admin().kill_worker(process.expect("it runs")));
    // None of them is left, and all are judged anew.
    let again = |found: &BTreeSet<u32>| found.is_disjoint(&before) && found.len() == HELD as usize;
    processes(&mark, again).await;
    assert!(is_full(run.rollouts[0].ask(Look).await.unwrap()));
    fs::write(place.gate(), "").unwrap();
    let mut counted = HashSet::new();
    for trajectory in batches(&mut run, 6)
        .await
        .iter()
        .flat_map(|it| &it.trajectories)
    {
        assert!(trajectory.correct, "{trajectory:?}");
        assert!(counted.insert(trajectory.id), "{trajectory:?} came twice");
    }
    assert_eq!(run.store.ask(Count).await.unwrap().duplicates, 0);
    place.system.shutdown().await;
    processes(&mark, BTreeSet::is_empty).await;
}
