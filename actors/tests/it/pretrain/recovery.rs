//! Ranks that stand still are ended, and a run goes on without being asked.

use std::collections::BTreeSet;

use odeon_actors::pretrain::rank::PretrainRank;
use odeon_actors::pretrain::report::avoided;
use odeon_diagnosis::ladder::RankFault;
use rustix::process::test_kill_process;

use super::*;

/// Ranks that may stand still for so long.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) fn of_ranks(folder: &Path, ranks: usize) -> PretrainPlan {
    let mut plan = plan(folder);
    plan.sharing.copies = ranks;
    plan.steps = 12;
    plan.recovery.patience = PATIENCE;
    plan
}

/// The process of a role, on one of these nodes.
pub(super) fn pid_of(nodes: &[&System], members: &[Member], role: &str) -> Pid {
    let process = members.iter().find(|(name, ..)| name == role).unwrap().2;
    let mut workers = nodes.iter().flat_map(|node| node.admin().workers());
    let (_, pid) = workers.find(|(id, _)| Some(*id) == process).unwrap();
    Pid::from_raw(pid as i32).unwrap()
}

/// What was done, to whom and which nodes are avoided since, with the reasons.
pub(super) fn recovered(told: &Told) -> Vec<(&str, &[u32], &[String], &str)> {
    let recovered = told.reports.iter().filter_map(|report| match report {
        Report::Recovery {
            action,
            ranks,
            avoided,
            why,
            ..
        } => Some((
            action.as_str(),
            ranks.as_slice(),
            avoided.as_slice(),
            why.as_str(),
        )),
        _ => None,
    });
    recovered.collect()
}

/// SEMANTICS 178.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_is_stopped_is_ended_and_the_run_makes_the_same_steps() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = told(&of_ranks(folder.path(), 4), |_, _, _, _| {}).await;
    assert_eq!(recovered(&undisturbed), []);

    let other = tempfile::tempdir().unwrap();
    let mut stopped = None;
    let plan = of_ranks(other.path(), 4);
    let disturbed = told(&plan, |report, system, members, _| {
        if matches!(report, Report::Step(step) if step.step >= 5) && stopped.is_none() {
            let pid = pid_of(&[system], members, "rank-2");
            kill_process(pid, Signal::STOP).unwrap();
            stopped = Some(pid);
        }
    });
    let disturbed = disturbed.await;
    assert!(test_kill_process(stopped.unwrap()).is_err(), "it is gone");
    let [(action, ranks, avoided, why)] = recovered(&disturbed)[..] else {
        panic!("{:?}", recovered(&disturbed));
    };
    assert_eq!((action, ranks, avoided), ("end_process", &[2][..], &[][..]));
    let says = ["rank 2 on node", "its process is stopped", "restart 1 of"];
    assert!(says.iter().all(|it| why.contains(it)), "{why}");
    let lives = disturbed.lives();
    assert!(lives.len() == 2 && lives[1].1 >= 3, "{lives:?}");
    assert_eq!(disturbed.made(), undisturbed.made());
}

/// The others of a group that has not begun let go of their places, which the next one needs. SEMANTICS 140.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_are_killed_as_they_begin_hold_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = told(&of_ranks(folder.path(), 3), |_, _, _, _| {}).await;

    let other = tempfile::tempdir().unwrap();
    let node = node().job(odeon_actors::job());
    let system = node.resource("rank", 3.0).unwrap().start().await.unwrap();
    let mut plan = of_ranks(other.path(), 3);
    plan.recovery.restarts = 20;
    plan.needs = Needs::new().resource("rank", 1.0);
    let (first, mut begun) = watch::channel(false);
    let running = told_on(&system, &plan, |report, system, members, _| {
        if matches!(report, Report::Step(step) if step.step >= 4) && !*first.borrow() {
            kill(system, members, "rank-1");
            first.send_replace(true);
        }
    });
    // As soon as a rank has its name again: before it has joined the others.
    let killing = async {
        begun.wait_for(|begun| *begun).await.unwrap();
        let mut known: BTreeSet<ProcessId> = BTreeSet::new();
        for _ in 0..4 {
            loop {
                let rank = system.lookup::<PretrainRank>("rank-1").await;
                let process = rank.ok().and_then(|rank| system.admin().process_of(rank));
                let workers = system.admin().workers();
                let is_there = |process: &ProcessId| workers.iter().any(|(id, _)| id == process);
                if let Some(process) = process.filter(is_there)
                    && known.insert(process)
                    && system.admin().kill_worker(process)
                {
                    break;
                }
                Clock::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let disturbed = async { tokio::join!(running, killing).0 };
    let disturbed = system.scope(disturbed).await;
    system.shutdown().await;
    assert_eq!(disturbed.made(), undisturbed.made());
}

/// SEMANTICS 178, 180.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_rank_is_stopped_again_is_left() {
    let cluster = ClusterIdentity::generate().unwrap();
    let start = async |name: &str| {
        let node = node().job(odeon_actors::job());
        let node = node.resource("rank", 2.0).unwrap();
        let identity = cluster.issue(name).unwrap();
        let node = node.listen("127.0.0.1:0".parse().unwrap(), identity);
        node.start().await.unwrap()
    };
    let (system, other) = (start("a").await, start("b").await);
    system.join(other.address().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(folder.path(), 2);
    plan.needs = Needs::new().resource("rank", 1.0);
    let mut at = vec![8, 5];
    let disturbed = told_on(&system, &plan, |report, system, members, _| {
        if matches!(report, Report::Step(step) if at.last().is_some_and(|it| step.step >= *it)) {
            at.pop();
            let pid = pid_of(&[system, &other], members, "rank-1");
            kill_process(pid, Signal::STOP).unwrap();
        }
    });
    let disturbed = disturbed.await;
    let done = recovered(&disturbed);
    let actions: Vec<_> = done.iter().map(|it| it.0).collect();
    assert_eq!(actions, ["end_process", "evict_node"], "{done:?}");
    let [left] = done[1].2 else {
        panic!("{done:?}");
    };
    let again = format!("rank 1 on node {left}");
    assert!(done.iter().all(|it| it.3.starts_with(&again)), "{done:?}");
    assert_eq!(disturbed.lives().len(), 3);
    assert_eq!(disturbed.steps, 12);
    // A later try knows it from what was told.
    plan.avoided = avoided(&disturbed.reports);
    plan.steps = 14;
    let there = if left == "a" { &other } else { &system };
    let again = told_on(&system, &plan, |report, _, members, _| {
        if matches!(report, Report::Step(_)) {
            for rank in ["rank-0", "rank-1"] {
                pid_of(&[there], members, rank);
            }
        }
    });
    assert_eq!(again.await.steps, 14);
    system.shutdown().await;
    other.shutdown().await;
}

/// SEMANTICS 185. What is done about a node is noted when it begins and when it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_goes_back_to_its_node_where_there_is_no_room_elsewhere() {
    let cluster = ClusterIdentity::generate().unwrap();
    let start = async |name: &str, ranks: Option<f64>| {
        let mut node = node().job(odeon_actors::job());
        if let Some(ranks) = ranks {
            node = node.resource("rank", ranks).unwrap();
        }
        let identity = cluster.issue(name).unwrap();
        let node = node.listen("127.0.0.1:0".parse().unwrap(), identity);
        node.start().await.unwrap()
    };
    let (system, other) = (start("a", Some(2.0)).await, start("b", None).await);
    system.join(other.address().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(folder.path(), 2);
    plan.needs = Needs::new()
        .resource("rank", 1.0)
        .wait_for_room(Duration::from_secs(1));
    let mut at = vec![8, 5];
    let disturbed = told_on(&system, &plan, |report, system, members, _| {
        if matches!(report, Report::Step(step) if at.last().is_some_and(|it| step.step >= *it)) {
            at.pop();
            kill(system, members, "rank-1");
        }
    });
    let disturbed = system.scope(disturbed).await;
    let done = recovered(&disturbed);
    let actions: Vec<_> = done.iter().map(|it| it.0).collect();
    let all = ["end_process", "evict_node", "return_node"];
    assert_eq!(actions, all, "{done:?}");
    assert!(done[2].3.contains("no room elsewhere"), "{done:?}");
    assert_eq!(disturbed.steps, 12);
    assert!(avoided(&disturbed.reports).is_empty());
    let seen = system.admin().watch().look(Duration::from_secs(60)).await;
    let points = seen.processes.iter().flat_map(|it| &it.sight.points);
    let noted: Vec<_> = points
        .filter(|it| it.name == "recovery.node_avoided")
        .map(|it| it.value)
        .collect();
    assert_eq!(noted, [1.0, 0.0]);
    system.shutdown().await;
    other.shutdown().await;
}

/// SEMANTICS 177. The only rank there is does no collectives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_is_lost_again_and_again_is_made_again_as_often_as_the_recipe_says() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(folder.path(), 1);
    plan.recovery.restarts = 5;
    let system = node().start().await.unwrap();
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, member) = watch::channel(vec![]);
    let (_halt, halt) = watch::channel(false);
    let (_ranks, ranks) = watch::channel(None);
    let desk = Desk {
        reports: report,
        members,
        halt,
        ranks,
    };
    let mut reports = vec![];
    let listening = async {
        while let Some(report) = news.recv().await {
            // Before there is a checkpoint.
            if matches!(report, Report::Resumed { .. }) {
                kill(&system, &member.borrow(), "rank-0");
            }
            reports.push(report);
        }
    };
    let (ended, ()) = tokio::join!(run(&system, &plan, desk), listening);
    let failure = ended.unwrap_err().to_string();
    assert!(failure.contains("begun again 5 times"), "{failure}");
    let told = Told { reports, steps: 0 };
    let done = recovered(&told);
    let counted = |action: &str| done.iter().filter(|it| it.0 == action).count();
    let counts = [counted("end_process"), counted("stop_for_person")];
    assert_eq!(counts, [5, 1], "{done:?}");
    assert!(done.iter().all(|it| it.1 == [0]), "{done:?}");
    system.shutdown().await;
}

/// SEMANTICS 177, 178.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losses_that_are_no_numbers_again_and_again_end_in_front_of_a_person() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(folder.path(), 2);
    // The first update throws the weights away.
    plan.train.lr = 1e15;
    plan.train.clip = None;
    plan.recovery.acts.insert(RankFault::NotFinite);
    plan.recovery.restarts = 1;
    let system = node().start().await.unwrap();
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, _member) = watch::channel(vec![]);
    let (_halt, halt) = watch::channel(false);
    let (_ranks, ranks) = watch::channel(None);
    let desk = Desk {
        reports: report,
        members,
        halt,
        ranks,
    };
    let failure = run(&system, &plan, desk).await.unwrap_err().to_string();
    assert!(failure.contains("stops for a person"), "{failure}");
    assert!(failure.contains("is not finite in step 2"), "{failure}");
    let mut actions = vec![];
    while let Ok(report) = news.try_recv() {
        if let Report::Recovery { action, .. } = report {
            actions.push(action);
        }
    }
    assert_eq!(actions, ["end_process", "stop_for_person"]);
    system.shutdown().await;
}

/// SEMANTICS 178.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_has_begun_again_too_often_stops_for_a_person() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of_ranks(folder.path(), 2);
    plan.recovery.restarts = 0;
    let system = node().start().await.unwrap();
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, member) = watch::channel(vec![]);
    let (_halt, halt) = watch::channel(false);
    let (_ranks, ranks) = watch::channel(None);
    let desk = Desk {
        reports: report,
        members,
        halt,
        ranks,
    };
    let mut stopped = None;
    let listening = async {
        while let Some(report) = news.recv().await {
            if matches!(report, Report::Step(_)) && stopped.is_none() {
                let pid = pid_of(&[&system], &member.borrow(), "rank-0");
                kill_process(pid, Signal::STOP).unwrap();
                stopped = Some(pid);
            }
        }
    };
    let (ended, ()) = tokio::join!(run(&system, &plan, desk), listening);
    let failure = ended.unwrap_err().to_string();
    assert!(failure.contains("stops for a person"), "{failure}");
    assert!(failure.contains("its process is stopped"), "{failure}");
    assert!(test_kill_process(stopped.unwrap()).is_err(), "it is gone");
    system.shutdown().await;
}
