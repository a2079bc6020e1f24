//! The losses that end a run, in a system that is hosted as the command hosts it, and in one whose time
//! is virtual.

use std::path::Path;

use clap::Parser;
use futures::future::join_all;
use odeon::simulation::SimulationSpec;
use odeon::{Context, Failure, Incarnation, Ref, Restart};
use odeon_actors::recipe::Source;

use super::*;
use crate::args::{Args, Command};

/// The time that what has to happen may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The losses that a run has to bear.
const BORNE: usize = 40;

struct Role;

#[odeon::actor(name = "run.Role")]
impl Role {
    fn start(_args: ()) -> Self {
        Self
    }

    #[handler]
    fn life(&mut self, cx: &mut Context<Self>) -> Incarnation {
        cx.incarnation()
    }
}

async fn roles(system: &System, many: usize) -> Vec<Ref<Role>> {
    let spawning = (0..many).map(|_| {
        system
            .spawn::<Role>(())
            .restart(Restart::Permanent)
            .into_future()
    });
    let spawned = join_all(spawning).await;
    spawned.into_iter().map(Result::unwrap).collect()
}

/// Has these lose their lives.
async fn lose(system: &System, lost: &[Ref<Role>]) {
    let losing = lost.iter().map(|role| {
        let failure = Failure::error("lost");
        system.admin().fail_actor(role.id(), failure, PATIENCE)
    });
    for lost in join_all(losing).await {
        lost.unwrap();
    }
}

/// Checks that these live their second life: what is sent to them waits for it.
async fn come_back(lost: &[Ref<Role>]) {
    for life in join_all(lost.iter().map(|role| role.ask(Life))).await {
        assert_eq!(life.unwrap(), 2);
    }
}

/// The failure of the system.
async fn end(system: &System) -> String {
    let failure = Clock::timeout(PATIENCE, system.failed()).await;
    failure.expect("a loss too many ends the run").to_string()
}

/// SEMANTICS 38.
#[test]
fn a_run_bears_forty_losses_and_ends_at_the_next_in_words() {
    let place = tempfile::tempdir().unwrap();
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes/rl-sums.toml");
    let words = ["odeon", "run", recipe.to_str().unwrap(), "--no-ui"];
    let Command::Run(args) = Args::try_parse_from(words).unwrap().command else {
        panic!("another command");
    };
    let source = Source::read(&recipe).unwrap();
    let folder = RunFolder::take(&source, place.path().join("run"), false).unwrap();
    let main = async |system: System, _folder: RunFolder, _pages: Option<&Standalone>| {
        let roles = roles(&system, BORNE + 1).await;
        lose(&system, &roles[..BORNE]).await;
        come_back(&roles[..BORNE]).await;
        assert_eq!(roles[BORNE].ask(Life).await.unwrap(), 1);
        lose(&system, &roles[BORNE..]).await;
        let told = end(&system).await;
        assert!(told.contains("40 restarts within 600s"), "{told}");
        assert!(told.contains("lost"), "{told}");
        Ok(ExitCode::SUCCESS)
    };
    host(odeon::job![Role], &args, "run", None, folder, main).unwrap();
}

/// SEMANTICS 38.
#[test]
fn losses_count_for_ten_minutes() {
    let minutes = |many: u64| Duration::from_secs(60 * many);
    let spec = SimulationSpec::new(odeon::job![Role]).nodes(1);
    System::simulated(1, spec.supervision(losses())).run(async |world| {
        let system = &world.nodes[0];
        let roles = roles(system, 2 * BORNE + 1).await;
        let (first, later) = roles.split_at(BORNE);
        lose(system, first).await;
        Clock::sleep(minutes(10)).await;
        let (second, last) = later.split_at(BORNE);
        lose(system, second).await;
        come_back(first).await;
        come_back(second).await;
        Clock::sleep(minutes(10) - Duration::from_secs(1)).await;
        lose(system, last).await;
        end(system).await;
    });
}
