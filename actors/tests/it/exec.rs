//! Programs that are none of Odeon as actors: ready when they say so, restarted when they fail, and
//! gone with all they have started, however their actor ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use odeon::trace::SpanContext;
use odeon::{
    Clock, FailureKind, FakeDevices, Needs, ProgramEnd, Reason, Ref, Restart, SpawnError,
    Supervision, System, SystemBuilder, WorkerMode,
};
use odeon_actors::exec::{
    Ended, Exec, ExecSpec, Gang, GangSpec, Halt, Launch, NotReady, Probe, ProgramStatus, Ready,
    ReservePort, Status, Whereabouts,
};
use odeon_devices::fake::{Fake, Spec};
use odeon_skip::{Need, skip};
use odeon_tests::again;
use odeon_topology::DeviceModel;

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn worker_entry() {
    odeon_actors::job().serve_if_worker();
}

fn builder() -> SystemBuilder {
    let worker = again::worker(module_path!()).arg("--nocapture");
    let backoff = Duration::from_millis(1);
    System::builder()
        .job(odeon_actors::job())
        .workers(WorkerMode::Processes(worker))
        .supervision(Supervision::one_for_one().backoff(backoff, backoff))
}

async fn system() -> System {
    builder().start().await.unwrap()
}

fn shell(script: &str, folder: &Path) -> ExecSpec {
    ExecSpec::new("/bin/sh")
        .args(["-c", script])
        .folder(folder)
        .stop_within(Duration::from_secs(3))
}

/// Returns true if there is a Python; tests that need one say so when there is none.
fn has_python() -> bool {
    let python = Command::new("python3").arg("--version").output();
    let there = python.is_ok_and(|output| output.status.success());
    if !there {
        skip(Need::Python, "there is no python3 here");
    }
    there
}

/// A web server that says 503 until the file `warm` is in its folder.
fn server(folder: &Path) -> ExecSpec {
    let script = "
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists('warm') else 503)
        self.end_headers()
        self.wfile.write(b'hello')
    def log_message(self, *args):
        open('asked', 'a').write('x')
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";
    fs::write(folder.join("serve.py"), script).unwrap();
    ExecSpec::new("python3")
        .args(["serve.py", "{port}"])
        .folder(folder)
        .listens(0)
}

/// The number that a script has written into a file.
async fn noted(file: PathBuf) -> u32 {
    let noted = async {
        loop {
            let text = fs::read_to_string(&file).unwrap_or_default();
            match text.strip_suffix('\n').map(str::parse) {
                Some(Ok(number)) => return number,
                _ => Clock::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    let noted = Clock::timeout(PATIENCE, noted).await;
    noted.unwrap_or_else(|| panic!("{} was not written", file.display()))
}

/// The processes of a group that run.
fn members(group: u32) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        let rest = stat.rsplit_once(") ")?.1.to_owned();
        let mut fields = rest.split(' ');
        let state = fields.next()?;
        (fields.nth(1)? == group.to_string() && state != "Z").then_some(stat)
    });
    processes.collect()
}

/// Waits until nothing of a group is left.
async fn gone(group: u32) {
    let gone = async {
        while !members(group).is_empty() {
            Clock::sleep(Duration::from_millis(2)).await;
        }
    };
    let waited = Clock::timeout(PATIENCE, gone).await;
    waited.unwrap_or_else(|| panic!("it lives: {:?}", members(group)));
}

/// Waits until an actor is in a life.
async fn reaches(exec: Ref<Exec>, life: u32) -> ProgramStatus {
    let there = async {
        loop {
            match exec.ask(Status).await {
                Ok(status) if status.life == life => return status,
                _ => Clock::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    let there = Clock::timeout(PATIENCE, there).await;
    there.unwrap_or_else(|| panic!("life {life} did not begin"))
}

async fn pid(exec: Ref<Exec>) -> u32 {
    exec.ask(Status).await.unwrap().pid.unwrap()
}

/// SEMANTICS 61.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_ready_when_it_says_so() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let script = "echo nothing yet; echo 'listening on all' >&2; echo $$ > pid; exec sleep 1000";
    let spec = shell(script, folder.path()).ready(Probe::Line("listening on".to_owned()));
    let exec = system.spawn::<Exec>(spec).await.unwrap();
    assert_eq!(exec.ask(Ready).await.unwrap(), Ok(()));
    assert_eq!(noted(folder.path().join("pid")).await, pid(exec).await);
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_ready_when_its_port_accepts() {
    if !has_python() {
        return;
    }
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let spec = server(folder.path()).ready(Probe::Port);
    let exec = system.spawn::<Exec>(spec).await.unwrap();
    let status = exec.ask(Status).await.unwrap();
    let (host, port) = status.address.unwrap();
    assert_eq!((host.as_str(), status.life), ("127.0.0.1", 1));
    std::net::TcpStream::connect((host, port)).unwrap();
    system.shutdown().await;
    gone(status.pid.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_ready_when_it_answers_with_success() {
    if !has_python() {
        return;
    }
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let spec = server(folder.path()).ready(Probe::Http("/health".to_owned()));
    let exec = system.spawn::<Exec>(spec).start().unwrap();
    let ready = tokio::spawn(exec.ask(Ready).into_future());
    // It was asked more than once, and nobody was told that it is ready.
    let asked = folder.path().join("asked");
    let twice = async {
        while fs::read(&asked).map_or(0, |asked| asked.len()) < 2 {
            Clock::sleep(Duration::from_millis(2)).await;
        }
    };
    Clock::timeout(PATIENCE, twice).await.unwrap();
    assert!(!ready.is_finished());
    fs::write(folder.path().join("warm"), "").unwrap();
    assert_eq!(ready.await.unwrap().unwrap(), Ok(()));
    system.shutdown().await;
}

/// SEMANTICS 61.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_ready_in_time_is_ended_and_says_why() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let spec = shell(
        "echo $$ > pid; echo busy >&2; exec sleep 1000",
        folder.path(),
    )
    .ready(Probe::Line("listening".to_owned()))
    .ready_within(Duration::from_millis(300));
    let spawned = system.spawn::<Exec>(spec).restart(Restart::Temporary).await;
    let Err(SpawnError::Failed(failure)) = spawned else {
        panic!("{spawned:?}");
    };
    assert_eq!(failure.kind, FailureKind::Error);
    let why = failure.to_string();
    let words = [
        "was not ready within 300ms",
        "no line has `listening`",
        "busy",
    ];
    assert!(words.iter().all(|word| why.contains(word)), "{why}");
    assert_eq!(members(noted(folder.path().join("pid")).await), [""; 0]);
    // One that ends first is not waited for.
    let spec = shell("echo no model >&2; exit 5", folder.path())
        .ready(Probe::Line("listening".to_owned()));
    let spawned = system.spawn::<Exec>(spec).restart(Restart::Temporary).await;
    let Err(SpawnError::Failed(failure)) = spawned else {
        panic!("{spawned:?}");
    };
    assert_eq!(failure.kind, FailureKind::Program(ProgramEnd::Code(5)));
    let why = failure.to_string();
    assert!(
        why.contains("before it was ready") && why.contains("no model"),
        "{why}"
    );
    system.shutdown().await;
}

/// SEMANTICS 61.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_is_started_again() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let script = "echo life >> lives; test $(wc -l < lives) -ge 3 && exec sleep 1000
        while ! test -e fail; do sleep 0.01; done; rm fail; echo out of memory >&2; exit 3";
    let exec = system
        .spawn::<Exec>(shell(script, folder.path()))
        .await
        .unwrap();
    for life in 1..=2 {
        reaches(exec, life).await;
        let waiting = tokio::spawn(Exec::wait(exec));
        fs::write(folder.path().join("fail"), "").unwrap();
        let ended = waiting.await.unwrap();
        let Ended::Program(ProgramEnd::Code(3), failure) = ended else {
            panic!("{ended:?}");
        };
        let why = failure.to_string();
        assert!(
            why.contains("exit status: 3") && why.contains("out of memory"),
            "{why}"
        );
    }
    reaches(exec, 3).await;
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_succeeds_ends_its_actor_and_a_signal_is_told() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let exec = system
        .spawn::<Exec>(shell("exit 0", folder.path()))
        .await
        .unwrap();
    assert_eq!(Exec::wait(exec).await, Ended::InOrder);
    let spec = shell("kill -9 $$", folder.path());
    let exec = system
        .spawn::<Exec>(spec)
        .restart(Restart::Temporary)
        .await
        .unwrap();
    let ended = Exec::wait(exec).await;
    let Ended::Program(ProgramEnd::Signal(9), failure) = ended else {
        panic!("{ended:?}");
    };
    assert!(failure.message.contains("SIGKILL"), "{failure}");
    system.shutdown().await;
}

/// SEMANTICS 61.
#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ignores_sigterm_is_killed_after_its_grace() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let script = "trap '' TERM; sleep 1000 & echo up; wait; sleep 1000";
    let up = Probe::Line("up".to_owned());
    let spec = shell(script, folder.path()).ready(up.clone());
    let stubborn = system.spawn::<Exec>(spec).await.unwrap();
    let group = pid(stubborn).await;
    let grace = Duration::from_millis(100);
    let end = stubborn.ask(Halt { grace }).await.unwrap();
    assert_eq!(end, Some(ProgramEnd::Signal(9)));
    assert_eq!(members(group), [""; 0]);
    assert_eq!(stubborn.down().await.reason, Reason::Stopped);
    // One that listens has its time, and so have those that it has started.
    let script = "trap 'echo bye > bye; exit 4' TERM
        (trap 'while ! test -e bye; do sleep 0.01; done; echo too > too; exit' TERM; echo up; while :; do sleep 0.01; done) &
        while :; do sleep 0.01; done";
    let spec = shell(script, folder.path()).ready(up);
    let polite = system.spawn::<Exec>(spec).await.unwrap();
    let group = pid(polite).await;
    let grace = PATIENCE;
    let end = polite.ask(Halt { grace }).timeout(PATIENCE).await.unwrap();
    assert_eq!(end, Some(ProgramEnd::Code(4)));
    assert!(folder.path().join("too").exists());
    assert_eq!(members(group), [""; 0]);
    system.shutdown().await;
}

/// SEMANTICS 61.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_program_whose_actor_or_process_ends() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let script =
        "sleep 1000 & (sleep 1000 & sleep 1000) & sh -c 'sleep 1000; true' & echo up; wait";
    let spec = shell(script, folder.path()).ready(Probe::Line("up".to_owned()));
    let exec = system.spawn::<Exec>(spec.clone()).await.unwrap();
    let group = pid(exec).await;
    assert!(members(group).len() >= 2, "{:?}", members(group));
    exec.stop().await.unwrap();
    assert_eq!(members(group), [""; 0]);
    // A program that ends by itself leaves none either.
    let script = "sleep 1000 & sleep 1000 & echo $$ > pid; echo up; exit 0";
    let exec = system
        .spawn::<Exec>(shell(script, folder.path()))
        .await
        .unwrap();
    assert_eq!(Exec::wait(exec).await, Ended::InOrder);
    assert_eq!(members(noted(folder.path().join("pid")).await), [""; 0]);
    // A worker that is killed takes it along, and the next life begins a new one.
    let exec = system.spawn::<Exec>(spec).isolated().await.unwrap();
    let group = pid(exec).await;
    let down = exec.down();
    assert!(
        system
            .admin()
            .kill_worker(system.admin().process_of(exec).unwrap())
    );
    let Reason::Failed(failure) = down.await.reason else {
        panic!("it ended in order");
    };
    assert_eq!(failure.kind, FailureKind::ProcessLost);
    gone(group).await;
    let status = reaches(exec, 2).await;
    assert_ne!(status.pid, Some(group));
    system.shutdown().await;
    gone(status.pid.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_program_begins_when_it_is_launched() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let script = "echo $NUMBER > number; echo $PRESET$$ > preset; exec sleep 1000";
    let spec = shell(script, folder.path())
        .default_env("PRESET", "")
        .held();
    let exec = system.spawn::<Exec>(spec).await.unwrap();
    assert_eq!(exec.ask(Ready).await.unwrap(), Err(NotReady::Held));
    assert_eq!(exec.ask(Status).await.unwrap().pid, None);
    assert_eq!(exec.ask(Whereabouts).await.unwrap().address, "127.0.0.1");
    let port = exec.ask(ReservePort).await.unwrap().unwrap();
    assert!(std::net::TcpListener::bind(("0.0.0.0", port)).is_err());
    let env = vec![("NUMBER".to_owned(), "42".to_owned())];
    let pid = exec
        .ask(Launch { env: env.clone() })
        .await
        .unwrap()
        .unwrap();
    std::net::TcpListener::bind(("0.0.0.0", port)).unwrap();
    assert_eq!(noted(folder.path().join("number")).await, 42);
    assert_eq!(noted(folder.path().join("preset")).await, pid);
    assert_eq!(exec.ask(Ready).await.unwrap(), Ok(()));
    assert!(exec.ask(Launch { env }).await.unwrap().is_err());
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_not_tried_again() {
    let (system, folder) = (system().await, tempfile::tempdir().unwrap());
    let spec = ExecSpec::new("no-such-program").folder(folder.path());
    let spawned = system.spawn::<Exec>(spec).restart(Restart::Temporary).await;
    let Err(SpawnError::Failed(failure)) = spawned else {
        panic!("{spawned:?}");
    };
    assert_eq!(failure.kind, FailureKind::Fatal);
    assert!(
        failure.message.contains("no program `no-such-program`"),
        "{failure}"
    );
    system.shutdown().await;
}

/// SEMANTICS 62.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_see_the_devices_of_their_node_each_its_own_at_its_local_rank() {
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let devices = FakeDevices::new(&fake, "node0").unwrap();
    let system = builder().node("a").devices(devices).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $LOCAL_RANK $CUDA_VISIBLE_DEVICES > rank-$RANK";
    let program = ExecSpec::new("/bin/sh")
        .args(["-c", script])
        .folder(folder.path());
    let spec = GangSpec::new(program, 3).needs(Needs::new().gpus(1));
    let gang = system.spawn::<Gang>(spec).await.unwrap();
    assert_eq!(gang.down().await.reason, Reason::Stopped);
    let seen = [0, 1, 2].map(|rank| {
        let seen = fs::read_to_string(folder.path().join(format!("rank-{rank}"))).unwrap();
        let (local, devices) = seen.trim().split_once(' ').unwrap();
        assert_eq!(local, rank.to_string());
        devices.to_owned()
    });
    assert!(seen.iter().all(|it| *it == seen[0]), "{seen:?}");
    let mut devices: Vec<&str> = seen[0].split(',').collect();
    devices.dedup();
    assert_eq!(devices.len(), 3, "{seen:?}");
    assert!(seen[0].starts_with("FAKE-node0/gpu"), "{seen:?}");
    system.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_told_the_span_that_it_is_started_for() {
    let folder = tempfile::tempdir().unwrap();
    let system = system().await;
    let script = "echo $TRACEPARENT > told; exec sleep 60";
    let exec = system
        .spawn::<Exec>(shell(script, folder.path()))
        .await
        .unwrap();
    let told = async {
        loop {
            let text = fs::read_to_string(folder.path().join("told")).unwrap_or_default();
            match text.strip_suffix('\n') {
                Some(text) => return text.to_owned(),
                None => Clock::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    let told = Clock::timeout(PATIENCE, told).await.expect("it is written");
    let given = SpanContext::from_traceparent(&told).unwrap_or_else(|| panic!("{told}"));
    let start = async {
        loop {
            let spans = system.admin().spans();
            let found = spans.into_iter().find(|it| it.message == "start program");
            match found {
                Some(span) => return span,
                None => Clock::sleep(Duration::from_millis(2)).await,
            }
        }
    };
    let start = Clock::timeout(PATIENCE, start)
        .await
        .expect("there is a span");
    assert_eq!((start.context, start.parent), (given, 0));
    exec.ask(Halt {
        grace: Duration::from_secs(1),
    })
    .await
    .unwrap();
    system.shutdown().await;
}
