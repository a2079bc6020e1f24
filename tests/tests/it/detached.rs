//! Actors that outlive the jobs that spawned them.

use std::path::Path;

use odeon::{Clock, NameError, System};
use odeon_cluster::Daemon;
use odeon_cluster::job::{Job, JobId, Outcome};

use crate::daemons::{
    PATIENCE, ended, found, found_again, is_alive, join, linked, printed, stop, submit,
    submit_with, upload_of, when,
};

/// The lines that a job that comes to its end has printed.
async fn says(daemon: &Daemon, args: &[&str]) -> Vec<String> {
    let job = submit(daemon, args).await;
    ended(daemon, job).await;
    printed(daemon, job)
}

/// The job that hosts the detached actor of a name in the default namespace, if one does.
fn host(daemon: &Daemon, name: &str) -> Option<Job> {
    let hosts = |job: &&Job| {
        let hosted = job.spec.hosts.as_ref();
        hosted.is_some_and(|hosted| hosted.name == name) && job.spec.namespace == "default"
    };
    let found = daemon
        .catalog()
        .read(|tables| tables.living_jobs().find(hosts).cloned());
    found.flatten()
}

/// Waits until the host of a name runs a later try than this.
async fn hosted_again(daemon: &Daemon, job: JobId, after: u32) -> Job {
    let again = |job: &Job| job.word() == "running" && job.tries > after;
    when(daemon, job, "another life", again).await
}

fn pid(line: &str) -> u32 {
    let pid = line.rsplit(' ').next().and_then(|pid| pid.parse().ok());
    pid.unwrap_or_else(|| panic!("no process in {line:?}"))
}

/// SEMANTICS 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_actor_outlives_its_job_and_is_found_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let second = join(folder.path(), &head, "second").await;
    linked(&second, "head").await;
    let first = submit_with(&head, &["detaches", "board"], |spec| {
        spec.node = Some("second".to_owned());
    })
    .await;
    assert_eq!(ended(&head, first).await, Outcome::Succeeded);
    assert_eq!(printed(&head, first), ["score 1"]);
    let hosted = host(&head, "board").expect("a job that hosts it");
    assert_eq!(hosted.word(), "running");
    assert_eq!(
        (hosted.by, hosted.spec.name),
        (first.to_string(), "board".to_owned())
    );
    for (node, score) in [("head", "score 2"), ("second", "score 3")] {
        let job = submit_with(&head, &["binds", "board"], |spec| {
            spec.node = Some(node.to_owned());
        })
        .await;
        ended(&head, job).await;
        assert_eq!(printed(&head, job), [score], "at {node}");
    }
    // Jobs of another namespace find it by its full name only.
    let elsewhere = async |name: &str| {
        let other = |spec: &mut odeon_cluster::job::JobSpec| spec.namespace = "other".to_owned();
        let job = submit_with(&head, &["binds", name], other).await;
        ended(&head, job).await;
        printed(&head, job)
    };
    let why = "namespace `other` has no detached actor `board`, or it is being started again";
    assert_eq!(elsewhere("board").await, [why]);
    assert_eq!(elsewhere("default/board").await, ["score 4"]);
    // It goes when it stops, and its name with it.
    assert_eq!(says(&head, &["stops", "board"]).await, ["stopped"]);
    assert_eq!(ended(&head, hosted.id).await, Outcome::Succeeded);
    let why = "namespace `default` has no detached actor `board`, or it is being started again";
    assert_eq!(says(&head, &["binds", "board"]).await, [why]);
    second.shutdown().await;
    head.shutdown().await;
}

/// SEMANTICS 63.
#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_detach_at_the_same_time_all_have_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let mut jobs = vec![];
    for _ in 0..6 {
        jobs.push(submit(&head, &["shares", "board"]).await);
    }
    let mut scores = vec![];
    for job in jobs {
        ended(&head, job).await;
        scores.extend(printed(&head, job));
    }
    scores.sort_unstable();
    let each: Vec<String> = (1..=6).map(|score| format!("score {score}")).collect();
    assert_eq!(scores, each);
    let taken = "namespace `default` has a detached actor `board` already: bind it, or take another \
                 name";
    assert_eq!(says(&head, &["detaches", "board"]).await, [taken]);
    // Somebody stops it from outside.
    let hosted = host(&head, "board").unwrap();
    let line = says(&head, &["where", "board"]).await.remove(0);
    assert!(is_alive(pid(&line)), "{line}");
    stop(&head, hosted.id, true).await;
    let by = "tester".to_owned();
    assert_eq!(ended(&head, hosted.id).await, Outcome::Stopped { by });
    assert!(!is_alive(pid(&line)));
    assert_eq!(says(&head, &["detaches", "board"]).await, ["score 1"]);
    head.shutdown().await;
}

/// SEMANTICS 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_actor_that_is_lost_begins_anew_wherever_a_node_is() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let second = join(folder.path(), &head, "second").await;
    linked(&second, "head").await;
    // It goes to the node with the fewest drivers.
    assert_eq!(says(&head, &["detaches", "board"]).await, ["score 1"]);
    let mut hosted = host(&head, "board").unwrap();
    for _ in 0..2 {
        let line = says(&head, &["where", "board"]).await.remove(0);
        let process = rustix::process::Pid::from_raw(pid(&line) as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        hosted = hosted_again(&head, hosted.id, hosted.tries).await;
        assert_eq!(says(&head, &["binds", "board"]).await, ["score 1"]);
    }
    // Its node leaves; then the whole cluster is started again.
    let job = hosted.attempt().unwrap().node.clone();
    if job == "second" {
        second.shutdown().await;
        hosted = hosted_again(&head, hosted.id, hosted.tries).await;
        assert_eq!(hosted.attempt().unwrap().node, "head");
    } else {
        second.shutdown().await;
    }
    head.shutdown().await;
    let head = found_again(folder.path()).await;
    hosted_again(&head, hosted.id, hosted.tries).await;
    assert_eq!(says(&head, &["binds", "board"]).await, ["score 1"]);
    head.shutdown().await;
}

/// SEMANTICS 64.
#[tokio::test(flavor = "multi_thread")]
async fn who_was_built_from_other_messages_is_told_when_it_binds() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    assert_eq!(says(&head, &["detaches", "board"]).await, ["score 1"]);
    let stranger = Path::new(env!("CARGO_BIN_EXE_stranger"));
    let spec = upload_of(&head, stranger, &["board"]).await;
    let job = head.submit(spec, "tester".to_owned(), None).await.unwrap();
    ended(&head, job).await;
    assert_eq!(
        printed(&head, job),
        [
            "`board` is a job.Board of another build: `Add` has other fields or another reply \
             there, `Undo` is not known there; build both programs from the same messages",
            "`board` is a job.Board, not a stranger.Chess",
            // What both know alike goes through.
            "score 1",
        ]
    );
    head.shutdown().await;
}

/// SEMANTICS 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_detached_actor_that_does_not_start_is_refused_with_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    let said = says(&head, &["dooms", "board"]).await;
    let [line] = said.as_slice() else {
        panic!("{said:?}");
    };
    let begins = "the cluster does not host `board`: failed: ";
    assert!(line.starts_with(begins), "{line}");
    assert!(line.contains("there is no chalk"), "{line}");
    assert!(host(&head, "board").is_none());
    // The name is free again.
    assert_eq!(says(&head, &["detaches", "board"]).await, ["score 1"]);
    let said = says(&head, &["detaches", "no/board"]).await;
    assert!(said[0].contains("`no/board` does not"), "{said:?}");
    let said = says(&head, &["heavy", "board-2"]).await;
    let limit = "those of a detached actor 32768 at most: put bulk data into a file";
    assert!(said[0].ends_with(limit), "{said:?}");
    head.shutdown().await;
}

/// SEMANTICS 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_its_host_can_mend_leaves_references_good() {
    let folder = tempfile::tempdir().unwrap();
    let head = found(folder.path()).await;
    // In a worker process below its host, which is killed; the reference stays.
    let said = says(&head, &["hardens", "board"]).await;
    assert_eq!(said, ["score 1", "score 1"]);
    let hosted = host(&head, "board").unwrap();
    assert_eq!((hosted.word(), hosted.tries), ("running", 1));
    head.shutdown().await;
}

struct Slate(u64);

#[odeon::actor(name = "test.Slate")]
impl Slate {
    async fn start(first: u64) -> Result<Self, odeon::Failure> {
        Ok(Self(first))
    }

    #[handler]
    pub async fn write(&mut self, n: u64) -> u64 {
        self.0 += n;
        self.0
    }
}

/// SEMANTICS 63.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_in_no_cluster_keeps_its_detached_actors_itself() {
    let job = odeon::job![Slate];
    let system = System::builder().job(job).start().await.unwrap();
    let slate = system.spawn::<Slate>(40).detached("slate").await.unwrap();
    assert_eq!(slate.ask(Write { n: 2 }).await.unwrap(), 42);
    let same = system.spawn::<Slate>(0).detached("slate").or_existing();
    assert_eq!(same.await.unwrap(), slate);
    assert_eq!(system.bind::<Slate>("slate").await.unwrap(), slate);
    let taken = system.spawn::<Slate>(0).detached("slate").await;
    assert!(
        matches!(taken, Err(odeon::DetachError::Taken { .. })),
        "{taken:?}"
    );
    // Names of the job are others.
    let none = system.lookup::<Slate>("slate").await;
    assert_eq!(none, Err(NameError::NotFound("slate".to_owned())));
    let near = system.spawn::<Slate>(0).near(&slate).detached("near").await;
    let why = near.unwrap_err().to_string();
    assert!(
        why.contains("the company of another actor, and to be detached"),
        "{why}"
    );
    slate.stop().await.unwrap();
    let gone = Clock::timeout(PATIENCE, async {
        while system.bind::<Slate>("slate").await.is_ok() {
            tokio::task::yield_now().await;
        }
    });
    gone.await.expect("its name goes with it");
    system.shutdown().await;
}
