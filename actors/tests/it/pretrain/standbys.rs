//! Standbys take the places of ranks that are lost, and a run makes the same steps.

use odeon_actors::pretrain::report::StandbyState;
use odeon_actors::ranks::standbys::StandbyCount;

use rustix::process::test_kill_process;

use super::recovery::{of_ranks, pid_of, recovered};
use super::*;

/// A run that goes on until it is asked to halt, with so many standbys.
fn endless(folder: &Path, standbys: u32) -> PretrainPlan {
    let mut plan = of_ranks(folder, 2);
    plan.steps = 1_000_000;
    plan.memory_every = 1;
    plan.checkpoint_every = 1_000_000;
    plan.held_out = None;
    // Where machines are busy nobody who waits stands still.
    plan.recovery.patience = Duration::from_mins(2);
    plan.standbys = StandbyCount::Fixed(standbys);
    plan
}

/// Runs a plan until `on` says that it is enough.
async fn told_until(
    system: &System,
    plan: &PretrainPlan,
    mut on: impl FnMut(&[Report], &[Member]) -> bool,
) -> Told {
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, member) = watch::channel(vec![]);
    let (halt, halted) = watch::channel(false);
    let (_ranks, ranks) = watch::channel(None);
    let desk = Desk {
        reports: report,
        members,
        halt: halted,
        ranks,
    };
    let mut reports = vec![];
    let running = run(system, plan, desk);
    let listening = async {
        while let Some(report) = news.recv().await {
            reports.push(report);
            if on(&reports, &member.borrow()) {
                halt.send_replace(true);
            }
        }
    };
    let both = async { tokio::join!(running, listening).0 };
    let ended = Clock::timeout(Duration::from_secs(120), both).await;
    let steps = ended.expect("the run ends").unwrap();
    Told { reports, steps }
}

/// What became of standbys, with the sentences.
fn standbys(reports: &[Report]) -> Vec<(u32, StandbyState, &str)> {
    let told = reports.iter().filter_map(|report| match report {
        Report::Standby {
            standby,
            state,
            why,
        } => Some((*standby, *state, why.as_str())),
        _ => None,
    });
    told.collect()
}

fn is(reports: &[Report], standby: u32, state: StandbyState) -> bool {
    let told = standbys(reports);
    told.iter().any(|it| (it.0, it.1) == (standby, state))
}

fn last_step(reports: &[Report]) -> u64 {
    let steps = reports.iter().rev().find_map(|report| match report {
        Report::Step(step) => Some(step.step),
        _ => None,
    });
    steps.unwrap_or_default()
}

/// SEMANTICS 205, 206.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_takes_a_lost_rank_and_its_own_loss_touches_nobody() {
    use StandbyState::{Lost, Ready};

    let folder = tempfile::tempdir().unwrap();
    let system = node().start().await.unwrap();
    let mut victims = vec!["rank-1", "standby-0"];
    let (mut before, mut killed_at) = (None, 0);
    let plan = endless(folder.path(), 1);
    let disturbed = told_until(&system, &plan, |reports, members| {
        // As soon as there is one, and there is another in its place.
        let ready = |nth| is(reports, nth, Ready) && last_step(reports) > 2;
        if ready(0) && victims.len() == 2 || ready(1) && victims.len() == 1 {
            let victim = victims.pop().unwrap();
            kill(&system, members, victim);
            if victim == "rank-1" {
                before = Some(reports.to_vec());
            }
        }
        if let (Some(Report::Step(step)), 0, false) = (reports.last(), victims.len(), killed_at > 0)
        {
            killed_at = step.step;
        }
        ready(2) && killed_at > 0 && last_step(reports) > killed_at + 2
    });
    let disturbed = disturbed.await;
    system.shutdown().await;
    let before = Told {
        reports: before.unwrap(),
        steps: 0,
    };
    assert_eq!(
        (recovered(&before), before.lives().len()),
        (vec![], 1),
        "it was not touched"
    );
    let states: Vec<_> = standbys(&disturbed.reports)
        .into_iter()
        .map(|it| (it.0, it.1))
        .collect();
    assert_eq!(states, [(0, Ready), (0, Lost), (1, Ready), (2, Ready)]);
    let done = recovered(&disturbed);
    let [(ended, ..), (taken, ranks, _, why)] = done[..] else {
        panic!("{done:?}");
    };
    assert_eq!(
        (ended, taken, ranks),
        ("end_process", "take_standby", &[1][..])
    );
    assert!(
        why.starts_with("rank 1 is taken by standby 1 on node "),
        "{why}"
    );
    let lives = disturbed.lives();
    assert!(
        lives.len() == 2 && lives[1].2 == Origin::Memory,
        "{lives:?}"
    );

    let other = tempfile::tempdir().unwrap();
    let mut plan = endless(other.path(), 0);
    plan.steps = killed_at + 2;
    let undisturbed = told(&plan, |_, _, _, _| {}).await.made();
    let made = disturbed.made();
    assert!(made.len() >= undisturbed.len());
    assert_eq!(made[..undisturbed.len()], undisturbed);
}

/// SEMANTICS 205, 206. One of two has room on a node without ranks, and the other nowhere until a rank is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn standbys_lie_apart_from_ranks_and_wait_for_room_without_being_waited_for() {
    use StandbyState::{Missing, Ready};

    let cluster = ClusterIdentity::generate().unwrap();
    let start = async |name: &str, ranks: f64| {
        let node = node().job(odeon_actors::job());
        let node = node.resource("rank", ranks).unwrap();
        let identity = cluster.issue(name).unwrap();
        let node = node.listen("127.0.0.1:0".parse().unwrap(), identity);
        node.start().await.unwrap()
    };
    let (system, other) = (start("a", 2.0).await, start("b", 1.0).await);
    system.join(other.address().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = endless(folder.path(), 2);
    plan.needs = Needs::new().resource("rank", 1.0);
    let mut killed = false;
    let disturbed = told_until(&system, &plan, |reports, members| {
        if is(reports, 1, Missing) && !killed {
            killed = true;
            kill(&system, members, "rank-1");
        }
        is(reports, 1, Ready)
    });
    let disturbed = system.scope(disturbed).await;
    let told = standbys(&disturbed.reports);
    let states: Vec<_> = told.iter().map(|it| (it.0, it.1)).collect();
    // Where there is another look before the end the next one waits, too.
    assert_eq!(
        states[..3],
        [(0, Ready), (1, Missing), (1, Ready)],
        "{told:?}"
    );
    assert_eq!(told[0].2, "standby 0 is ready on node b");
    assert!(
        told[1].2.starts_with("standby 1 waits for room: "),
        "{told:?}"
    );
    assert_eq!(told[2].2, "standby 1 is ready on node a");
    let done = recovered(&disturbed);
    assert_eq!(done[1].3, "rank 1 is taken by standby 0 on node b");
    let first = |of: fn(&Report) -> bool| disturbed.reports.iter().position(of);
    let stepped = first(|it| matches!(it, Report::Step(_)));
    let missing = first(|it| matches!(it, Report::Standby { state: Missing, .. }));
    assert!(first(|it| matches!(it, Report::Resumed { .. })) < missing && stepped.is_some());
    system.shutdown().await;
    other.shutdown().await;
}

/// SEMANTICS 205, 206.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_stands_still_is_passed_over_for_another() {
    use StandbyState::{Lost, Ready};

    let folder = tempfile::tempdir().unwrap();
    let system = node().start().await.unwrap();
    let plan = endless(folder.path(), 2);
    let mut stopped = None;
    let disturbed = told_until(&system, &plan, |reports, members| {
        let all = is(reports, 0, Ready) && is(reports, 1, Ready);
        if all && last_step(reports) > 1 && stopped.is_none() {
            let pid = pid_of(&[&system], members, "standby-0");
            kill_process(pid, Signal::STOP).unwrap();
            kill(&system, members, "rank-1");
            stopped = Some(pid);
        }
        let resumed = reports
            .iter()
            .filter(|it| matches!(it, Report::Resumed { .. }));
        resumed.count() == 2
    });
    let disturbed = disturbed.await;
    system.shutdown().await;
    let done = recovered(&disturbed);
    assert!(
        done.iter()
            .any(|it| it.3.starts_with("rank 1 is taken by standby 1 on node ")),
        "{done:?}"
    );
    assert!(is(&disturbed.reports, 0, Lost));
    assert!(test_kill_process(stopped.unwrap()).is_err(), "it is gone");
}
