//! Programs that newcomers write, in three worlds: alone, as a job of a cluster of two nodes, and in a
//! simulation, where the engines are the real ones and time is virtual. What is right is the same in each;
//! the stories are in `odeon_tests::cases`. Where a test of another module says it already, there is none here.
//!
//! | program | alone | submitted | simulated |
//! | --- | --- | --- | --- |
//! | asks while their process is killed | `mishaps::asks_while_their_process_is_killed_end_with_died_alone` | `mishaps::asks_while_their_process_is_killed_end_with_died_in_a_job`; on each of two nodes `submitted::killed_on_each_node` | `simulated::killed_on_each_node` |
//! | the README's, with `workers()` and `kill_worker` | `alone::quickstart` | `submitted::quickstart` | `simulated::quickstart` |
//! | an isolated actor that is not listed | `alone::unlisted` | `submitted::unlisted` | `simulation::an_actor_that_its_process_does_not_know_is_named` |
//! | a budget that is used up | `mishaps::a_program_whose_system_fails_says_so_and_fails` | `mishaps::a_job_whose_system_fails_says_so_once_in_its_log_and_fails` | `a_budget_that_is_used_up_ends_all_and_says_so_in_a_simulation` |
//! | a ticker that restarts | `alone::ticking` | `submitted::ticking` | `timers::a_life_has_its_own_timers_and_the_next_one_no_more` |
//! | 5 MiB to an actor near and isolated | `alone::large` | `submitted::large` | `simulated::large` |
//! | tells beyond the mailbox | `alone::flood` | `submitted::flood` | `simulated::flood` |
//! | a start that panics | `mishaps::a_start_that_panics_is_said_once_for_each_try_with_its_actor` | `a_start_that_panics_is_said_once_for_each_try_in_a_job` | `a_start_that_panics_is_said_once_for_each_try_in_a_simulation` |
//! | two that ask each other | `alone::mutual` | `submitted::mutual` | `simulated::mutual` |
//! | names taken, of another type, nobody's | `semantics::a_name_belongs_to_one_living_actor` | `submitted::names` | `simulated::names` |
//! | a handler that returns `anyhow::Result` | `alone::causes` | `submitted::causes` | `simulated::causes` |
//! | a task that asks another node | `alone::task` | `submitted::task` | `timers::a_task_of_a_simulated_actor_has_the_simulated_network`, `timers::a_task_that_belongs_to_no_node_is_told_what_to_write_and_one_in_a_scope_is_carried` |

use std::time::Duration;

use odeon::simulation::{SimulationSpec, World};
use odeon::{AskError, Clock, Restart, SpawnError, System};
use odeon_cluster::job::Outcome;
use odeon_tests::cases::{Gate, Look, Pupil, Ticker, Trip, play};

use crate::daemons::{ended, found, join, linked, printed, upload_of};
use crate::mishaps::{program, run, with};
use crate::semantics::Written;

/// Seeds of each story in a simulation.
const SEEDS: u64 = 5;

/// Tells a story by the program alone.
fn alone(story: &str) {
    let (code, lines) = run(story);
    assert_eq!(code, Some(0), "{lines:#?}");
}

/// Runs the program as a job whose driver is on one of two nodes: its outcome, and the lines of its log.
async fn submit(story: &str) -> (Outcome, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let second = join(folder.path(), &head, "second").await;
    linked(&second, "head").await;
    let mut spec = upload_of(&head, program(), &[story, "2"]).await;
    spec.node = Some("head".to_owned());
    let id = head.submit(spec, "tester".to_owned(), None).await.unwrap();
    let outcome = ended(&head, id).await;
    let lines = printed(&head, id);
    for daemon in [second, head] {
        assert!(daemon.system().admin().processes().is_empty());
        daemon.shutdown().await;
    }
    (outcome, lines)
}

/// Tells a story by the program as a job.
fn submitted(story: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (outcome, lines) = runtime.block_on(submit(story));
    assert_eq!(outcome, Outcome::Succeeded, "{lines:#?}");
}

/// Simulates two nodes, and runs a story on the first.
fn on_first<F: Future<Output = ()>>(seed: u64, story: impl FnOnce(World) -> F) {
    let spec = SimulationSpec::new(odeon::job![Pupil, Gate, Ticker]);
    System::simulated(seed, spec).run(async |world: World| {
        let first = world.nodes[0].clone();
        first.scope(story(world)).await;
    });
}

/// Tells a story in simulations.
fn simulated(story: &str) {
    for seed in 1..=SEEDS {
        on_first(seed, async |world| {
            let told = play(&world.nodes, story, world.nodes.len());
            let told = Clock::timeout(Duration::from_secs(600), told).await;
            assert_eq!(told, Some(true), "seed {seed}");
        });
    }
}

/// A test for each story in a world.
macro_rules! tells {
    ($world:ident: $($story:ident),* $(,)?) => {
        mod $world {
            $(
                #[test]
                fn $story() {
                    super::$world(stringify!($story));
                }
            )*
        }
    };
}

tells!(alone: quickstart, unlisted, ticking, large, flood, mutual, causes, task);
tells!(submitted: killed_on_each_node, quickstart, unlisted, ticking, large, flood, mutual, names, causes, task);
tells!(simulated: killed_on_each_node, quickstart, large, flood, mutual, names, causes);

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_panics_is_said_once_for_each_try_in_a_job() {
    let (outcome, lines) = submit("stillborn").await;
    assert_eq!(outcome.exit_code(), 1, "{outcome}");
    for life in 1..=6 {
        let said = format!("failed in life {life}: start: it has a crack (");
        let said = with(&lines, &["mishap.Vase", &said]);
        assert_eq!(said.len(), 1, "{lines:#?}");
    }
    assert_eq!(with(&lines, &["panicked at"]).len(), 0, "{lines:#?}");
}

/// A simulation prints nothing of made-up failures, and its events say each once.
#[test]
fn a_start_that_panics_is_said_once_for_each_try_in_a_simulation() {
    let written = Written::default();
    let _here = written.take();
    on_first(1, async |world| {
        let system = &world.nodes[0];
        let error = system.spawn::<Pupil>(true).await.unwrap_err();
        let SpawnError::Failed(failure) = &error else {
            panic!("{error}");
        };
        assert!(failure.to_string().contains("it overslept"), "{failure}");
        expect_too_often(system, "it overslept").await;
    });
    let text = written.text();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let whose = ["actor=\"cases.Pupil\"", "start: it overslept"];
    let said = with(&lines, &whose).len();
    let last = with(&lines, &[&whose[..], &["life=6"]].concat()).len();
    assert_eq!((said, last), (6, 1), "{lines:#?}");
}

/// A system that fails says who failed, how often, and how at last.
async fn expect_too_often(system: &System, last: &str) {
    let failed = Clock::timeout(Duration::from_secs(60), system.failed());
    let said = failed.await.expect("the system fails").to_string();
    let parts = ["cases.Pupil", "5 restarts within 30s", last];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn a_budget_that_is_used_up_ends_all_and_says_so_in_a_simulation() {
    for seed in 1..=SEEDS {
        on_first(seed, async |world| {
            let system = &world.nodes[0];
            let sibling = system.spawn::<Ticker>(()).await.unwrap();
            let pupil = system.spawn::<Pupil>(false).restart(Restart::Permanent);
            let pupil = pupil.await.unwrap();
            let mut lives = 0;
            loop {
                match pupil.ask(Trip).await.unwrap_err() {
                    AskError::Died(_) => lives += 1,
                    AskError::Dead(_) => break,
                    error => panic!("{error:?}"),
                }
            }
            assert_eq!(lives, 6, "the first life and five restarts");
            expect_too_often(system, "it fell").await;
            sibling.down().await;
            // Another node is another system.
            let far = world.nodes[1].spawn::<Pupil>(false).await.unwrap();
            assert_eq!(far.ask(Look).await, Ok(1));
        });
    }
}
