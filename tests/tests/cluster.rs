//! Nodes, jobs and the catalog, with real driver and worker processes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, ClusterIdentity, Limits};
use odeon_artifacts::{Bundle, Footprint, Listing};
use odeon_cluster::fact::Fact;
use odeon_cluster::job::{Event, Job, JobId, JobSpec, Outcome, State};
use odeon_cluster::keeper::Rules;
use odeon_cluster::logs::LogLimits;
use odeon_cluster::{Daemon, DaemonConfig, Entry};

const PATIENCE: Duration = Duration::from_secs(30);

fn config(folder: &Path, name: &str, entry: Entry) -> DaemonConfig {
    DaemonConfig {
        folder: folder.join(name),
        name: Some(name.to_owned()),
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: None,
        entry,
        alone: false,
        devices: None,
        limits: Limits::default(),
        rules: Rules::default(),
        artifacts: Footprint {
            piece_bytes: 8 << 30,
            folder_bytes: 8 << 30,
        },
        logs: LogLimits::default(),
    }
}

async fn found(folder: &Path) -> Daemon {
    let founded = Daemon::start(config(folder, "head", Entry::Found)).await;
    founded.expect("a founded cluster")
}

/// Starts a head again in this process, where its old socket may be free a moment later.
async fn found_again(folder: &Path) -> Daemon {
    let started = async {
        loop {
            match Daemon::start(config(folder, "head", Entry::Found)).await {
                Ok(daemon) => return daemon,
                Err(_) => Clock::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let started = Clock::timeout(PATIENCE, started).await;
    started.expect("a head that is started again")
}

async fn join(folder: &Path, head: &Daemon, name: &str) -> Daemon {
    let cluster = ClusterIdentity::load(head.folder().path()).unwrap();
    let entry = Entry::Join {
        through: head.address().parse().unwrap(),
        identity: Some(cluster.issue(name).unwrap()),
    };
    Daemon::start(config(folder, name, entry))
        .await
        .expect("a node that joins")
}

/// Uploads the test program and submits a job of it.
async fn submit(daemon: &Daemon, args: &[&str]) -> JobId {
    submit_with(daemon, args, |_| {}).await
}

async fn submit_with(daemon: &Daemon, args: &[&str], change: impl FnOnce(&mut JobSpec)) -> JobId {
    let mut spec = upload(daemon, args).await;
    change(&mut spec);
    let submitted = daemon.submit(spec, "tester".to_owned(), None);
    submitted.await.unwrap()
}

/// Uploads the test program for a job of it.
async fn upload(daemon: &Daemon, args: &[&str]) -> JobSpec {
    let program = Path::new(env!("CARGO_BIN_EXE_job"));
    let bundle = Bundle::of_program(program).unwrap();
    let missing = daemon.offer(bundle.clone()).await.unwrap();
    let file = std::fs::File::open(program).unwrap();
    let listing = &bundle.file(bundle.entry()).unwrap().listing;
    for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
        if missing.contains(piece) {
            let bytes = Listing::read(&file, range, piece).unwrap();
            daemon.put(piece.digest, bytes.into()).await.unwrap();
        }
    }
    JobSpec {
        name: "test".to_owned(),
        namespace: "default".to_owned(),
        bundle: bundle.digest(),
        args: args.iter().map(|&arg| arg.to_owned()).collect(),
        env: BTreeMap::new(),
        priority: 0,
        retries: 0,
        node: None,
    }
}

/// Waits for a fact about a job.
async fn when(daemon: &Daemon, id: JobId, what: &str, fact: impl Fn(&Job) -> bool) -> Job {
    let mut changes = daemon.catalog().changes().expect("a voter");
    let waited = async {
        loop {
            changes.mark_unchanged();
            let job = daemon
                .catalog()
                .read(|tables| tables.jobs.get(&id).cloned());
            let job = job.flatten().expect("a job that was submitted");
            if fact(&job) {
                return job;
            }
            changes.changed().await.unwrap();
        }
    };
    match Clock::timeout(PATIENCE, waited).await {
        Some(job) => job,
        None => {
            let job = daemon
                .catalog()
                .read(|tables| tables.jobs.get(&id).cloned());
            panic!(
                "{what} did not happen: {job:#?}\n{}",
                printed(daemon, id).join("\n")
            );
        }
    }
}

async fn ended(daemon: &Daemon, id: JobId) -> Outcome {
    let job = when(daemon, id, "its end", Job::is_over).await;
    match job.state {
        State::Ended { outcome, .. } => outcome,
        state => panic!("{state:?}"),
    }
}

fn printed(daemon: &Daemon, id: JobId) -> Vec<String> {
    let page = daemon.logs().read(id, 0, 1 << 20).unwrap();
    page.lines.into_iter().map(|line| line.text).collect()
}

/// Waits until a job has printed a line.
async fn prints(daemon: &Daemon, id: JobId, text: &str) -> Vec<String> {
    let waited = async {
        loop {
            let lines = printed(daemon, id);
            if lines.iter().any(|line| line.contains(text)) {
                return lines;
            }
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = Clock::timeout(PATIENCE, waited).await;
    found.unwrap_or_else(|| panic!("`{text}` was not printed: {:?}", printed(daemon, id)))
}

async fn stop(daemon: &Daemon, job: JobId, in_order: bool) {
    let by = "tester".to_owned();
    let event = Event::Stop { by, in_order };
    daemon
        .catalog()
        .write_for(Fact::Job { job, event })
        .await
        .unwrap();
}

/// Waits until a node has a link to another.
async fn linked(daemon: &Daemon, node: &str) {
    let linked = async {
        while !daemon.system().links().iter().any(|link| link.node == node) {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = Clock::timeout(PATIENCE, linked).await;
    waited.unwrap_or_else(|| panic!("no link to {node}"));
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

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
    assert!(head.system().processes().is_empty());
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
    stop(&head, id, true).await;
    ended(&head, id).await;
    assert!(!pids.iter().any(|pid| is_alive(*pid)), "{pids:?}");
    for daemon in [third, second, head] {
        assert!(daemon.system().processes().is_empty());
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
