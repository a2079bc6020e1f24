//! Nodes, jobs and the catalog, with real driver and worker processes.

use std::time::Duration;

use odeon::Clock;
use odeon_cluster::Daemon;
use odeon_cluster::fact::{Fact, NamespaceQuota};
use odeon_cluster::job::{Job, Outcome};

use crate::daemons::{
    PATIENCE, ended, found, found_again, is_alive, join, linked, printed, prints, stop, submit,
    submit_with, upload, when,
};

/// A driver that has left may be reaped before its node has seen the end of its link.
#[tokio::test(flavor = "multi_thread")]
async fn many_short_jobs_at_once_all_come_to_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let mut ids = vec![];
    for _ in 0..16 {
        ids.push(submit(&head, &["places", "head"]).await);
    }
    for id in ids {
        assert_eq!(ended(&head, id).await, Outcome::Succeeded, "{id}");
    }
    head.shutdown().await;
}

/// SEMANTICS 66.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_become_another_program_after_all_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_job"));
    let before = submit(&head, &["places", "head", "head"]).await;
    prints(&head, before, "on head").await;
    assert_eq!(ended(&head, before).await, Outcome::Succeeded);
    let ready = head.prepare_upgrade(program).await.unwrap();
    let meanwhile = submit(&head, &["places", "head"]).await;
    when(&head, meanwhile, "a node", |job| job.attempt().is_some()).await;
    drop(ready);
    assert_eq!(ended(&head, meanwhile).await, Outcome::Succeeded);
    head.shutdown().await;
}

/// SEMANTICS 57.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_and_what_it_prints_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let id = submit_with(&head, &["echo", "hello"], |spec| {
        spec.env.insert("GREETING".to_owned(), "world".to_owned());
    })
    .await;
    assert_eq!(ended(&head, id).await, Outcome::Succeeded);
    assert_eq!(printed(&head, id), ["hello world"]);
    let mut folders = std::fs::read_dir(folder.path().join("head/jobs")).unwrap();
    assert!(folders.next().is_none(), "its folder is left");
    head.shutdown().await;
}

/// SEMANTICS 54.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_submitted_again_under_one_word_is_one_job() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let spec = upload(&head, &["echo"]).await;
    let submit = async |by: &str, word: &str| {
        let submitted = head.submit(spec.clone(), by.to_owned(), Some(word));
        submitted.await.unwrap()
    };
    let (first, again) = tokio::join!(submit("ann", "one"), submit("ann", "one"));
    assert_eq!(first, again);
    assert_ne!(submit("ann", "two").await, first);
    assert_ne!(submit("bob", "one").await, first);
    let jobs = head.catalog().read(|tables| tables.jobs.len());
    assert_eq!(jobs, Some(3));
    head.shutdown().await;
}

/// SEMANTICS 54.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_ends_as_its_driver_does() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let failed = submit(&head, &["fail", "7"]).await;
    let outcome = ended(&head, failed).await;
    assert_eq!(outcome.exit_code(), 7, "{outcome}");
    let again = submit_with(&head, &["fail", "7"], |spec| spec.retries = 2).await;
    let job = when(&head, again, "its end", Job::is_over).await;
    assert_eq!((job.tries, job.earlier.len()), (3, 2));
    head.shutdown().await;
}

/// SEMANTICS 56.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_stopped_ends_and_one_that_does_not_listen_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let polite = submit(&head, &["waits"]).await;
    let deaf = submit(&head, &["deaf"]).await;
    prints(&head, polite, "waiting").await;
    prints(&head, deaf, "waiting").await;
    stop(&head, polite, true).await;
    stop(&head, deaf, true).await;
    let by = "tester".to_owned();
    assert_eq!(
        ended(&head, polite).await,
        Outcome::Stopped { by: by.clone() }
    );
    prints(&head, deaf, "not yet").await;
    let job = when(&head, deaf, "its stop", |job| job.word() == "stopping").await;
    assert!(job.attempt().is_some());
    stop(&head, deaf, false).await;
    assert_eq!(ended(&head, deaf).await, Outcome::Stopped { by });
    assert!(head.system().admin().processes().is_empty());
    head.shutdown().await;
}

/// SEMANTICS 56.
#[tokio::test(flavor = "multi_thread")]
async fn actors_of_a_job_run_on_other_nodes_and_end_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let second = join(folder.path(), &head, "second").await;
    let third = join(folder.path(), &head, "third").await;
    linked(&second, "third").await;
    let id = submit_with(&head, &["lingers", "head", "second", "third"], |spec| {
        spec.node = Some("second".to_owned());
    })
    .await;
    let lines = prints(&head, id, "lingering").await;
    let pids: Vec<u32> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("on ")?.split(": ").nth(1)?.parse().ok())
        .collect();
    assert_eq!(pids.len(), 3, "{lines:?}");
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    let folders = |node: &str| {
        let folders = std::fs::read_dir(folder.path().join(node).join("jobs"));
        folders.into_iter().flatten().count()
    };
    let nodes = ["head", "second", "third"];
    assert_eq!(nodes.map(folders), [1; 3]);
    stop(&head, id, true).await;
    ended(&head, id).await;
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    assert_eq!(nodes.map(folders), [0; 3], "folders are left");
    for daemon in [third, second, head] {
        assert!(daemon.system().admin().processes().is_empty());
        daemon.shutdown().await;
    }
}

/// SEMANTICS 54.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_is_started_again_knows_its_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let done = submit(&head, &["lines", "100"]).await;
    ended(&head, done).await;
    let under_way = submit_with(&head, &["waits"], |spec| spec.retries = 1).await;
    prints(&head, under_way, "waiting").await;
    head.shutdown().await;
    let head = found_again(folder.path()).await;
    assert_eq!(ended(&head, done).await, Outcome::Succeeded);
    let lines = printed(&head, done);
    assert_eq!(lines.len(), 100);
    assert_eq!(lines[99], "line 99");
    let job = when(&head, under_way, "a second try", |job| job.tries == 2).await;
    assert_eq!(job.earlier.len(), 1, "{job:?}");
    head.shutdown().await;
}

/// SEMANTICS 65.
#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_of_a_namespace_hold_no_more_than_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let second = join(folder.path(), &head, "second").await;
    linked(&second, "head").await;
    let bounds = |cpu_milli| Fact::NamespaceSet {
        name: "lab".to_owned(),
        quota: Some(NamespaceQuota {
            cpu_milli: Some(cpu_milli),
            ..NamespaceQuota::default()
        }),
        by: "tester".to_owned(),
    };
    head.catalog().write_for(bounds(150)).await.unwrap();
    // Both nodes have heard of it when neither places more.
    let holds = async |node: &str, namespace: &str| {
        let job = submit_with(&head, &["holds", "0.1"], |spec| {
            spec.node = Some(node.to_owned());
            spec.namespace = namespace.to_owned();
        });
        job.await
    };
    heard(&[&head, &second], "lab/", 150).await;
    let first = holds("head", "lab").await;
    prints(&head, first, "holding").await;
    let told = "the jobs of lab together may hold 0.15 cpu, holds 0.1 and asks for 0.1 more";
    let (begun, patience) = (Clock::now(), Duration::from_secs(1));
    let impatient = submit_with(&head, &["holds", "0.1", "1"], |spec| {
        spec.node = Some("second".to_owned());
        spec.namespace = "lab".to_owned();
    });
    let Outcome::Failed { why, .. } = ended(&head, impatient.await).await else {
        panic!("there is no room for it");
    };
    assert!(why.contains("after 1 s: ") && why.contains(told), "{why}");
    assert!(Clock::now().since(begun) >= patience, "it did not wait");
    let next = holds("second", "lab").await;
    let why = waits(&second).await;
    assert!(why.contains(told), "{why}");
    // Another namespace has its own bounds, or none.
    let other = holds("second", "shop").await;
    prints(&head, other, "holding").await;
    assert!(printed(&head, next).iter().all(|line| line != "holding"));
    stop(&head, first, true).await;
    ended(&head, first).await;
    prints(&head, next, "holding").await;
    // More room is seen by who waits.
    let last = holds("head", "lab").await;
    waits(&head).await;
    head.catalog().write_for(bounds(200)).await.unwrap();
    prints(&head, last, "holding").await;
    second.shutdown().await;
    head.shutdown().await;
}

/// Waits until nodes keep to a quota.
async fn heard(nodes: &[&Daemon], of: &str, cpu_milli: u64) {
    let quota = odeon_placement::Quota {
        resources: odeon_placement::Resources::new().cpu_milli(cpu_milli),
        gpu_milli: None,
    };
    let heard = async {
        for node in nodes {
            while node.system().admin().quotas().get(of) != Some(&quota) {
                Clock::sleep(Duration::from_millis(5)).await;
            }
        }
    };
    let waited = Clock::timeout(PATIENCE, heard).await;
    waited.expect("all nodes hear of a quota");
}

/// Waits until an actor waits for room at a node. Why it does.
async fn waits(daemon: &Daemon) -> String {
    let waits = async {
        loop {
            let nodes = daemon.system().nodes().await;
            let mut waiting = nodes.iter().flat_map(|node| &node.waiting);
            if let Some(why) = waiting.find_map(|it| it.refusal.as_ref()) {
                return why.to_string();
            }
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = Clock::timeout(PATIENCE, waits).await;
    waited.expect("an actor that waits")
}
