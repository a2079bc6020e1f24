//! The view of a real worker process of its machine: its own devices, the processors near them, and
//! nothing that another process has left behind.

use std::path::Path;
use std::time::Duration;

use odeon::inspect::Why;
use odeon::{
    AskError, Clock, Context, FailureKind, FakeDevices, Limits, Needs, ProcessId, Reason, Ref,
    Restart, Shape, System, WorkerCommand, WorkerMode, gib,
};
use odeon_devices::fake::{Fake, Spec};
use odeon_devices::fault::FaultKind;
use odeon_tests::again;
use odeon_topology::DeviceModel;
use serde::{Deserialize, Serialize};

use crate::{eventually, found};

/// The machine as a process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Shape)]
struct Sight {
    /// `CUDA_VISIBLE_DEVICES`
    visible: Option<String>,
    /// The processors that it may run on.
    cpus: String,
    /// Numbers and memory of the granted devices.
    devices: Vec<(u32, u64)>,
    pid: u32,
}

struct Eye;

#[odeon::actor(name = "test.Eye")]
impl Eye {
    fn needs() -> Needs {
        Needs::new().gpus(2).device_memory(gib(10))
    }

    fn start() -> Self {
        Self
    }

    #[handler]
    fn wait_for_device(&mut self) {
        Self::never();
    }

    #[handler]
    fn look(&mut self, cx: &mut Context<Self>) -> Sight {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let mut lines = status.lines();
        let cpus = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let devices = cx.devices().iter();
        Sight {
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
            cpus: cpus.unwrap().trim().to_owned(),
            devices: devices
                .map(|device| (device.index, device.memory))
                .collect(),
            pid: std::process::id(),
        }
    }
}

impl Eye {
    /// A device that never answers.
    fn never() {
        loop {
            std::thread::park();
        }
    }
}

#[test]
fn worker_entry() {
    odeon::job![Eye].serve_if_worker();
}

/// A node with eight fake devices, whose memory stays held for a while after a process has ended.
async fn system(release: Duration) -> System {
    system_of(release, again::worker(module_path!())).await
}

/// Workers that a shell script starts: `$0` is the folder, `$@` the command of a real one.
fn by_script(script: &str, folder: &Path) -> WorkerCommand {
    WorkerCommand::new("/bin/sh")
        .arg("-c")
        .arg(script)
        .arg(folder)
        .arg(std::env::current_exe().unwrap())
        .arg(again::name(module_path!(), "worker_entry"))
        .arg("--exact")
}

async fn system_of(release: Duration, worker: WorkerCommand) -> System {
    system_within(Limits::default(), release, worker).await
}

async fn system_within(limits: Limits, release: Duration, worker: WorkerCommand) -> System {
    let model = DeviceModel {
        release_ms: release.as_millis() as u64,
        ..DeviceModel::default()
    };
    let fake = Fake::new(Spec::cluster(1, model)).unwrap();
    System::builder()
        .job(odeon::job![Eye])
        .node("a")
        .limits(limits)
        .workers(WorkerMode::Processes(worker))
        .devices(FakeDevices::new(&fake, "node0").unwrap())
        .start()
        .await
        .unwrap()
}

async fn sight(eye: Ref<Eye>) -> Sight {
    found("a life that looks", async || match eye.ask(Look).await {
        Ok(sight) => Some(sight),
        Err(AskError::Died(_)) => None,
        Err(error) => panic!("{error}"),
    })
    .await
}

async fn process(system: &System, eye: Ref<Eye>) -> ProcessId {
    match system.why(eye).await {
        Some(Why::Placed { process, .. }) => process,
        other => panic!("{other:?}"),
    }
}

/// SEMANTICS 45.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_sees_its_own_devices_and_runs_near_them() {
    let system = system(Duration::ZERO).await;
    let eyes = [
        system.spawn::<Eye>(()).await.unwrap(),
        system.spawn::<Eye>(()).await.unwrap(),
        system.spawn::<Eye>(()).await.unwrap(),
    ];
    let mut sights = vec![];
    for eye in eyes {
        sights.push(sight(eye).await);
    }
    let name = |gpu: u32| format!("FAKE-node0/gpu{gpu}");
    for (at, seen) in sights.iter().enumerate() {
        let first = at as u32 * 2;
        let visible = format!("{},{}", name(first), name(first + 1));
        assert_eq!(seen.visible.as_deref(), Some(visible.as_str()));
        let devices = [(first, gib(141)), (first + 1, gib(141))];
        assert_eq!(
            seen.devices, devices,
            "a whole device has all of its memory"
        );
    }
    // The fake's two sockets share this machine's processors between them.
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(sights[0].cpus, sights[1].cpus);
    assert_eq!(sights[0].cpus != sights[2].cpus, cores > 1);
    let light = system.spawn::<Eye>(()).needs(|_| Needs::new().cpus(0.5));
    let seen = sight(light.await.unwrap()).await;
    assert_eq!(seen.visible.as_deref(), Some(""), "no device is its own");
    system.shutdown().await;
}

/// SEMANTICS 47.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_killed_leaves_its_device_when_the_memory_is_free() {
    let release = Duration::from_millis(300);
    let system = system(release).await;
    let eye = system
        .spawn::<Eye>(())
        .needs(|needs| needs.gpus(8))
        .restart(Restart::Permanent)
        .await
        .unwrap();
    let before = sight(eye).await;
    let begun = Clock::now();
    assert!(system.admin().kill_worker(process(&system, eye).await));
    let after = sight(eye).await;
    assert_ne!(before.pid, after.pid);
    assert_eq!(before.devices, after.devices);
    assert!(Clock::now().since(begun) >= release);
    system.shutdown().await;
}

/// SEMANTICS 48.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_handler_hangs_is_ended_and_replaced() {
    let system = system(Duration::from_millis(100)).await;
    let limit = Duration::from_millis(200);
    let eye = system
        .spawn::<Eye>(())
        .needs(|needs| needs.hang_after(limit))
        .restart(Restart::Permanent)
        .await
        .unwrap();
    let before = sight(eye).await;
    let error = eye.ask(WaitForDevice).await.unwrap_err();
    let AskError::Died(down) = &error else {
        panic!("{error}");
    };
    let Reason::Failed(failure) = &down.reason else {
        panic!("{down}");
    };
    let hang = |kind| matches!(kind, FaultKind::Hang { predicted, .. } if predicted == limit);
    assert!(
        matches!(failure.kind, FailureKind::Gpu(fault) if hang(fault.kind)),
        "{failure}"
    );
    let after = sight(eye).await;
    assert_ne!(before.pid, after.pid);
    assert_eq!((before.devices.len(), after.devices.len()), (2, 2));
    system.shutdown().await;
}

/// SEMANTICS 47.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_killed_before_it_has_said_hello_leaves_its_devices_too() {
    let folder = std::env::temp_dir().join(format!("odeon-{:016x}", ProcessId::random().0));
    // The first two kill themselves; those after them become workers.
    let script = r#"for n in 1 2; do mkdir "$0-$n" 2>/dev/null && kill -9 $$; done; exec "$@""#;
    let worker = by_script(script, &folder);
    let system = system_of(Duration::from_millis(100), worker).await;
    let needs = |needs: Needs| needs.gpus(8);
    let once = system
        .spawn::<Eye>(())
        .needs(needs)
        .restart(Restart::Temporary);
    let error = once.await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("SIGKILL"), "{text}");
    // A second one is supervised, and gets the same devices when they are free.
    let eye = system
        .spawn::<Eye>(())
        .needs(needs)
        .restart(Restart::Permanent);
    let eye = eye.start().unwrap();
    assert_eq!(sight(eye).await.devices.len(), 8);
    eye.stop().await.unwrap();
    let free = async || system.nodes().await[0].node.free_devices() == 8;
    eventually("free devices", free).await;
    system.shutdown().await;
    for n in 1..=2 {
        let mut name = folder.clone().into_os_string();
        name.push(format!("-{n}"));
        std::fs::remove_dir(name).unwrap();
    }
}

/// SEMANTICS 46, 47.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_to_make_room_while_its_process_starts_waits_and_comes_back() {
    let folder = std::env::temp_dir().join(format!("odeon-{:016x}", ProcessId::random().0));
    // The first never says hello.
    let script = r#"mkdir "$0" 2>/dev/null && exec sleep 1000; exec "$@""#;
    let worker = by_script(script, &folder);
    let system = system_of(Duration::ZERO, worker).await;
    let needs = |needs: Needs| needs.gpus(8);
    let eye = system.spawn::<Eye>(()).needs(needs);
    let eye = eye.restart(Restart::Permanent).start().unwrap();
    let begun = async || folder.exists() && !system.admin().workers().is_empty();
    eventually("a process that begins", begun).await;
    let dear = system
        .spawn::<Eye>(())
        .needs(|needs| needs.gpus(8).priority(5));
    let dear = dear.await.unwrap();
    assert_eq!(sight(dear).await.devices.len(), 8);
    dear.stop().await.unwrap();
    assert_eq!(sight(eye).await.devices.len(), 8);
    system.shutdown().await;
    std::fs::remove_dir(folder).unwrap();
}

/// A command may give its processes longer to say hello than the limits of the node; without that they are ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_may_take_as_long_to_say_hello_as_its_command_says() {
    let folder = tempfile::tempdir().unwrap();
    // Each waits until it is told to go on.
    let script = r#"touch "$0/begun"; read go < "$0/go"; exec "$@""#;
    let mut limits = Limits::default();
    limits.worker_start_timeout = Duration::from_millis(200);
    let of = async |name: &str, within: Option<Duration>| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let go = folder.join("go");
        let made = std::process::Command::new("mkfifo").arg(&go).status();
        assert!(made.unwrap().success());
        let mut worker = by_script(script, &folder);
        if let Some(time) = within {
            worker = worker.start_within(time);
        }
        (
            system_within(limits.clone(), Duration::ZERO, worker).await,
            folder,
        )
    };
    let (patient, place) = of("patient", Some(Duration::from_secs(600))).await;
    let eye = patient.spawn::<Eye>(()).start().unwrap();
    eventually("a process that begins", async || {
        place.join("begun").exists()
    })
    .await;
    // Beside it one without that time is given up.
    let (usual, _) = of("usual", None).await;
    let error = usual.spawn::<Eye>(()).restart(Restart::Temporary).await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("did not say hello in time"), "{text}");
    usual.shutdown().await;
    tokio::fs::write(place.join("go"), "go\n").await.unwrap();
    assert_eq!(sight(eye).await.devices.len(), 2);
    patient.shutdown().await;
}
