//! Nodes of a cluster inside the test's process, with real driver and worker processes.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use odeon::{Clock, ClusterIdentity, Limits};
use odeon_artifacts::{Bundle, BundleFile, Footprint, Listing};
use odeon_cluster::controller::Rules;
use odeon_cluster::fact::Fact;
use odeon_cluster::job::{Event, Job, JobId, JobSpec, Outcome, State};
use odeon_cluster::logs::{Cursor, LogLimits};
use odeon_cluster::resources::JobResources;
use odeon_cluster::{Daemon, DaemonConfig, NodeEntry, OnDemand};

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn config(folder: &Path, name: &str, entry: NodeEntry) -> DaemonConfig {
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
        on_demand: OnDemand::default(),
        logs: LogLimits::default(),
        disk_alarm: odeon_cluster::DiskBound::default(),
        heritage: None,
    }
}

pub(crate) async fn found(folder: &Path) -> Daemon {
    let founded = Daemon::start(config(folder, "head", NodeEntry::Found)).await;
    founded.expect("a founded cluster")
}

/// Starts a head again in this process, where its old socket may be free a moment later.
pub(crate) async fn found_again(folder: &Path) -> Daemon {
    let started = async {
        loop {
            match Daemon::start(config(folder, "head", NodeEntry::Found)).await {
                Ok(daemon) => return daemon,
                Err(_) => Clock::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    let started = Clock::timeout(PATIENCE, started).await;
    started.expect("a head that is started again")
}

pub(crate) async fn join(folder: &Path, head: &Daemon, name: &str) -> Daemon {
    join_with(folder, head, name, |_| {}).await
}

pub(crate) async fn join_with(
    folder: &Path,
    head: &Daemon,
    name: &str,
    change: impl FnOnce(&mut DaemonConfig),
) -> Daemon {
    let cluster = ClusterIdentity::load(head.folder().path()).unwrap();
    let entry = NodeEntry::Join {
        through: head.address().parse().unwrap(),
        identity: Some(cluster.issue(name).unwrap()),
    };
    let mut config = config(folder, name, entry);
    change(&mut config);
    Daemon::start(config).await.expect("a node that joins")
}

/// Uploads the test program and submits a job of it.
pub(crate) async fn submit(daemon: &Daemon, args: &[&str]) -> JobId {
    submit_with(daemon, args, |_| {}).await
}

pub(crate) async fn submit_with(
    daemon: &Daemon,
    args: &[&str],
    change: impl FnOnce(&mut JobSpec),
) -> JobId {
    let mut spec = upload(daemon, args).await;
    change(&mut spec);
    let submitted = daemon.submit(spec, "tester".to_owned(), None);
    submitted.await.unwrap()
}

/// Uploads the test program for a job of it.
pub(crate) async fn upload(daemon: &Daemon, args: &[&str]) -> JobSpec {
    upload_of(daemon, Path::new(env!("CARGO_BIN_EXE_job")), args).await
}

/// Uploads another program.
pub(crate) async fn upload_of(daemon: &Daemon, program: &Path, args: &[&str]) -> JobSpec {
    let name = program.file_name().unwrap().to_str().unwrap();
    upload_files(daemon, &[(name, program)], args).await
}

/// Uploads a program, the first, and files that it finds in its folder.
pub(crate) async fn upload_files(
    daemon: &Daemon,
    files: &[(&str, &Path)],
    args: &[&str],
) -> JobSpec {
    let (entry, _) = files[0];
    let listed = files.iter().map(|(name, path)| {
        let file = BundleFile {
            executable: *name == entry,
            listing: Listing::of_file(path).unwrap(),
        };
        ((*name).to_owned(), file)
    });
    let bundle = Bundle::new(entry, listed).unwrap();
    let missing = daemon.offer(bundle.clone()).await.unwrap();
    for (name, path) in files {
        let file = std::fs::File::open(path).unwrap();
        let listing = &bundle.file(name).unwrap().listing;
        for (piece, range) in listing.pieces().iter().zip(listing.ranges()) {
            if missing.contains(piece) {
                let bytes = Listing::read(&file, range, piece).unwrap();
                daemon.put(piece.digest, bytes.into()).await.unwrap();
            }
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
        hosts: None,
        resources: JobResources::default(),
        time_limit_s: None,
        after: vec![],
        array: None,
        links: BTreeMap::new(),
        grace_s: None,
        idle_limit_s: None,
        environment: None,
    }
}

/// Waits for a fact about a job.
pub(crate) async fn when(
    daemon: &Daemon,
    id: JobId,
    what: &str,
    fact: impl Fn(&Job) -> bool,
) -> Job {
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

pub(crate) async fn ended(daemon: &Daemon, id: JobId) -> Outcome {
    let job = when(daemon, id, "its end", Job::is_over).await;
    match job.state {
        State::Ended { outcome, .. } => outcome,
        state => panic!("{state:?}"),
    }
}

pub(crate) fn printed(daemon: &Daemon, id: JobId) -> Vec<String> {
    let logs = daemon.archive().logs();
    let page = logs.read(id, &Cursor::default(), 1 << 20).unwrap();
    page.lines.into_iter().map(|line| line.text).collect()
}

/// Waits until a job has printed a line.
pub(crate) async fn prints(daemon: &Daemon, id: JobId, text: &str) -> Vec<String> {
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

pub(crate) async fn stop(daemon: &Daemon, job: JobId, in_order: bool) {
    let by = "tester".to_owned();
    let event = Event::Stop { by, in_order };
    daemon
        .catalog()
        .write_for(Fact::Job { job, event })
        .await
        .unwrap();
}

/// Waits until a node has a link to another.
pub(crate) async fn linked(daemon: &Daemon, node: &str) {
    let linked = async {
        while !daemon
            .system()
            .admin()
            .links()
            .iter()
            .any(|link| link.node == node)
        {
            Clock::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = Clock::timeout(PATIENCE, linked).await;
    waited.unwrap_or_else(|| panic!("no link to {node}"));
}

pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}
