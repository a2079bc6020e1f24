//! Actors on devices: granted, refused, waited for, lost, taken out of service and replaced, in
//! virtual time on fake devices. A fake device refuses a process memory that another still holds,
//! so whoever is granted a device too early does not start.

use std::time::Duration;

use odeon::simulation::{SimulationSpec, World};
use odeon::{
    Actor, AskError, Clock, Context, Down, Failure, FailureKind, Handler, Limits, Mesh, Message,
    Needs, ProcessId, Reason, Ref, Restart, Shape, SpawnError, Supervision, System, gib,
    inspect::{NodeView, Why},
};
use odeon_devices::fake::{Spec, Strike};
use odeon_devices::fault::{FaultKind, GpuFault};
use odeon_placement::{Arrange, Health, Lease, Level, Quota};
use odeon_topology::DeviceModel;
use serde::{Deserialize, Serialize};

/// The devices that an actor was granted, by their numbers on their node.
#[derive(Clone, Serialize, Deserialize)]
struct Own;
impl Shape for Own {
    const SHAPE: u64 = 1;
}
impl Message for Own {
    const NAME: &'static str = "Own";
    type Reply = Vec<u32>;
}

/// Meet with a fault of one of your devices.
#[derive(Clone, Serialize, Deserialize)]
struct Meet(GpuFault);
impl Shape for Meet {
    const SHAPE: u64 = 2;
}
impl Message for Meet {
    const NAME: &'static str = "Meet";
    type Reply = ();
}

/// Take so long.
#[derive(Clone, Serialize, Deserialize)]
struct Dwell(Duration);
impl Shape for Dwell {
    const SHAPE: u64 = 3;
}
impl Message for Dwell {
    const NAME: &'static str = "Dwell";
    type Reply = ();
}

struct Worker;
impl Actor for Worker {
    const NAME: &'static str = "test.Worker";
    type Args = Duration;

    async fn start(takes: Duration, cx: &mut Context<Self>) -> Result<Self, Failure> {
        Clock::sleep(takes).await;
        for (at, device) in cx.devices().iter().enumerate() {
            assert_eq!(device.ordinal, at as u32);
        }
        Ok(Self)
    }
}
impl Handler<Own> for Worker {
    async fn handle(&mut self, _: Own, cx: &mut Context<Self>) -> Vec<u32> {
        cx.devices().iter().map(|device| device.index).collect()
    }
}
impl Handler<Meet> for Worker {
    async fn handle(&mut self, Meet(fault): Meet, cx: &mut Context<Self>) {
        cx.fail(fault.into());
    }
}
impl Handler<Dwell> for Worker {
    async fn handle(&mut self, Dwell(long): Dwell, _: &mut Context<Self>) {
        Clock::sleep(long).await;
    }
}
odeon::register!(Worker: Own, Meet, Dwell);

/// Declares what it needs.
struct Trainer;
impl Actor for Trainer {
    const NAME: &'static str = "test.Trainer";
    type Args = ();

    fn needs() -> Needs {
        Needs::new().gpus(4).device_memory(gib(100))
    }

    async fn start((): (), _: &mut Context<Self>) -> Result<Self, Failure> {
        Ok(Self)
    }
}
impl Handler<Own> for Trainer {
    async fn handle(&mut self, _: Own, cx: &mut Context<Self>) -> Vec<u32> {
        cx.devices().iter().map(|device| device.index).collect()
    }
}
odeon::register!(Trainer: Own);

const NOW: Duration = Duration::ZERO;

fn spec(nodes: usize) -> SimulationSpec {
    let patient = Supervision::one_for_one().budget(1_000, Duration::from_secs(1_000));
    SimulationSpec::new(odeon::job![Worker, Trainer])
        .nodes(nodes)
        .devices(Spec::cluster(nodes, DeviceModel::default()))
        .supervision(patient)
}

/// A story on `nodes` nodes of eight devices, told on the first.
fn told<F: Future<Output = ()>>(nodes: usize, story: impl FnOnce(World, System) -> F) {
    System::simulated(7, spec(nodes)).run(|world| async move {
        let node = world.nodes[0].clone();
        node.clone().scope(story(world, node)).await;
    });
}

/// The devices of an actor, in its next life when the present one ends under the question.
async fn own(actor: Ref<Worker>) -> Vec<u32> {
    let (begun, patience) = (Clock::now(), Duration::from_secs(300));
    loop {
        match actor.ask(Own).timeout(patience).await {
            Ok(devices) => return devices,
            Err(error @ (AskError::Died(_) | AskError::LinkLost { .. })) => {
                let waited = Clock::now().since(begun);
                assert!(waited < patience, "{error}");
            }
            Err(error) => panic!("{error}"),
        }
        Clock::sleep(Duration::from_millis(1)).await;
    }
}

async fn placed(system: &System, actor: Ref<Worker>) -> (String, ProcessId, Vec<u32>) {
    match system.why(actor).await {
        Some(Why::Placed {
            node,
            process,
            devices,
        }) => (node, process, devices),
        other => panic!("{other:?}"),
    }
}

/// Waits until something is so, which is bound to happen.
async fn until<F: Future<Output = bool>>(mut fact: impl FnMut() -> F) {
    let begun = Clock::now();
    while !fact().await {
        Clock::sleep(Duration::from_millis(50)).await;
        let waited = Clock::now().since(begun);
        assert!(waited < Duration::from_secs(600), "it does not come about");
    }
}

fn not_placed<T: std::fmt::Debug>(outcome: Result<T, SpawnError>) -> String {
    match outcome {
        Err(SpawnError::NotPlaced(why)) => why,
        other => panic!("{other:?}"),
    }
}

/// SEMANTICS 45.
#[test]
fn actors_get_the_devices_that_they_ask_for_and_nobody_else_does() {
    told(1, async |_, node| {
        let two = node
            .spawn::<Worker>(NOW)
            .gpus(2)
            .device_memory(gib(40))
            .await
            .unwrap();
        let devices = own(two).await;
        assert_eq!(devices, [0, 1], "near each other");
        let (name, _, held) = placed(&node, two).await;
        assert_eq!((name.as_str(), held), ("node-0", devices));
        let declared = node.spawn::<Trainer>(()).await.unwrap();
        assert_eq!(declared.ask(Own).await.unwrap(), [4, 5, 6, 7], "one socket");
        let less = node.spawn::<Trainer>(()).gpus(1).await.unwrap();
        assert_eq!(less.ask(Own).await.unwrap(), [2]);
        let halves: [Ref<Worker>; 2] = [
            node.spawn(NOW)
                .needs(|needs| needs.gpu_share(0.5))
                .await
                .unwrap(),
            node.spawn(NOW)
                .needs(|needs| needs.gpu_share(0.5))
                .await
                .unwrap(),
        ];
        let processes = [
            placed(&node, halves[0]).await.1,
            placed(&node, halves[1]).await.1,
        ];
        assert_eq!(own(halves[0]).await, [3]);
        assert_eq!(own(halves[1]).await, [3]);
        assert_eq!(
            processes[0], processes[1],
            "one process for each set of devices"
        );
    });
}

/// SEMANTICS 45.
#[test]
fn members_that_belong_together_are_placed_on_one_node() {
    told(2, async |_, node| {
        for (name, taken) in [("node-0", 3), ("node-1", 1)] {
            let blocker = node.spawn::<Worker>(NOW).gpus(taken).on_node(name);
            blocker.await.unwrap();
        }
        let ranks = |copies| Mesh::new([("dp", copies), ("tp", 4)]).unwrap();
        let impatient = |needs: Needs| needs.gpus(1).wait_for_room(Duration::from_secs(2));
        let gang = |copies| {
            let gang = node.spawn_group::<Worker>(ranks(copies), |_| NOW);
            gang.needs(impatient)
        };
        // Anywhere there is room for twelve; four together fit once on five devices, and once on seven.
        let anywhere = gang(3).await.unwrap();
        anywhere.stop().await.unwrap();
        assert!(gang(3).together("tp").await.is_err());
        let copies = gang(2).together("tp").await.unwrap();
        let mut nodes = vec![];
        for member in copies.members() {
            nodes.push(placed(&node, *member).await.0);
        }
        nodes.chunks(4).for_each(|copy| {
            assert!(copy.iter().all(|name| *name == copy[0]), "{nodes:?}");
        });
        assert_ne!(nodes[0], nodes[4]);
        let error = gang(2).together("cp").await.unwrap_err();
        assert!(error.to_string().contains("cp"), "{error}");
    });
}

/// SEMANTICS 46.
#[test]
fn what_cannot_be_is_refused_at_once_with_the_reason() {
    told(1, async |_, node| {
        let begun = Clock::now();
        let refused = async |needs: Needs| {
            let spawn = node.spawn::<Worker>(NOW).needs(|_| needs);
            not_placed(spawn.await)
        };
        let why = refused(Needs::new().gpus(9)).await;
        assert!(why.contains("(9 gpu)"), "{why}");
        assert!(why.contains("node-0"), "{why}");
        let why = refused(Needs::new().gpus(0)).await;
        assert!(
            why.contains("it asks for zero devices: leave it out"),
            "{why}"
        );
        let why = refused(Needs::new().gpus(1).device_memory(gib(200))).await;
        assert!(why.contains("200 GiB"), "{why}");
        let why = refused(Needs::new().gpus(1).label("tier", "gold")).await;
        assert!(why.contains("tier"), "{why}");
        let other = node.spawn::<Worker>(NOW).await.unwrap();
        let why = refused(Needs::new().gpus(1).near(&other)).await;
        assert!(why.contains("holds no lease"), "{why}");
        for needs in [Needs::new().cpus(-1.0), Needs::new().gpu_share(f64::NAN)] {
            let error = node
                .spawn::<Worker>(NOW)
                .needs(|_| needs)
                .await
                .unwrap_err();
            assert!(matches!(error, SpawnError::Needs(_)), "{error}");
        }
        let error = node
            .spawn::<Worker>(NOW)
            .gpus(1)
            .in_worker("w")
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("leave the name of the worker out"),
            "{error}"
        );
        assert!(
            Clock::now().since(begun) < Duration::from_secs(1),
            "nobody waited"
        );
        let free = node.nodes().await[0].node.free().clone();
        assert_eq!(free, node.nodes().await[0].node.capacity, "nothing is held");
    });
}

#[test]
fn an_actor_goes_to_a_device_of_a_model_that_will_do_and_not_to_a_node_that_is_ruled_out() {
    let mut devices = Spec::cluster(2, DeviceModel::default());
    devices
        .cluster
        .devices
        .insert("other".to_owned(), DeviceModel::default());
    for element in &mut devices.cluster.elements {
        if element.model.is_some() && element.name.starts_with("node1/") {
            element.model = Some("other".to_owned());
        }
    }
    System::simulated(7, spec(2).devices(devices)).run(|world| async move {
        let node = &world.nodes[0];
        let spawn = |needs: Needs| node.spawn::<Worker>(NOW).needs(|_| needs.gpus(1));
        let story = async {
            for (model, there) in [("model", "node-0"), ("other", "node-1")] {
                let worker = spawn(Needs::new().device_model(model)).await.unwrap();
                assert_eq!(placed(node, worker).await.0, there, "{model}");
            }
            let either = Needs::new().device_model("none").device_model("other");
            let worker = spawn(either).await.unwrap();
            assert_eq!(placed(node, worker).await.0, "node-1");
            let why = not_placed(spawn(Needs::new().device_model("none")).await);
            assert!(why.contains("(none)"), "{why}");
            for (not, there) in [("node-0", "node-1"), ("node-1", "node-0")] {
                let worker = spawn(Needs::new().not_on_node(not)).await.unwrap();
                assert_eq!(placed(node, worker).await.0, there, "not on {not}");
            }
        };
        node.scope(story).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_that_is_preferred_decides_where_there_is_a_choice() {
    let start = async |name: &str, disk: &str| {
        let builder = System::builder()
            .job(odeon::job![Worker])
            .workers(odeon::WorkerMode::InProcess);
        let builder = builder.node(name).label("disk", disk);
        builder.start().await.unwrap()
    };
    let (a, b) = (start("a", "hard").await, start("b", "solid").await);
    let (near, far) = tokio::io::duplex(1 << 20);
    let ((a_in, a_out), (b_in, b_out)) = (tokio::io::split(near), tokio::io::split(far));
    let joined = tokio::join!(
        a.admin().join_stream(a_in, a_out),
        b.admin().join_stream(b_in, b_out)
    );
    joined.0.unwrap();
    joined.1.unwrap();
    let story = async {
        until(|| async { a.nodes().await.len() == 2 }).await;
        let spawn = async |prefers: Needs| {
            let spawn = a.spawn::<Worker>(NOW).needs(|_| prefers.cpus(0.1));
            placed(&a, spawn.await.unwrap()).await.0
        };
        for (disk, there) in [("hard", "a"), ("solid", "b")] {
            let prefers = Needs::new().prefer_label("disk", disk, 1);
            assert_eq!(spawn(prefers).await, there, "{disk}");
        }
        // The greater weight counts.
        for (hard, solid, there) in [(2, 1, "a"), (1, 2, "b")] {
            let prefers = Needs::new().prefer_label("disk", "hard", hard);
            let prefers = prefers.prefer_label("disk", "solid", solid);
            assert_eq!(spawn(prefers).await, there, "{hard} to {solid}");
        }
        // It is no requirement.
        spawn(Needs::new().prefer_label("disk", "tape", 1)).await;
    };
    a.scope(story).await;
    a.shutdown().await;
    b.shutdown().await;
}

/// SEMANTICS 46.
#[test]
fn an_actor_waits_for_room_and_anyone_can_see_why() {
    told(1, async |_, node| {
        let first = node.spawn::<Worker>(NOW).gpus(6).await.unwrap();
        let second = node.spawn::<Worker>(NOW).gpus(4).start().unwrap();
        until(|| async { node.why(second).await.is_some() }).await;
        let why = node.why(second).await.unwrap();
        assert!(matches!(why, Why::Waits(_)), "{why:?}");
        let why = why.to_string();
        assert!(why.contains("test.Worker"), "{why}");
        assert!(why.contains("holds 6"), "{why}");
        first.stop().await.unwrap();
        assert_eq!(own(second).await.len(), 4);

        let impatient = node
            .spawn::<Worker>(NOW)
            .needs(|needs| needs.gpus(8).wait_for_room(Duration::from_secs(3)));
        let begun = Clock::now();
        let why = not_placed(impatient.await);
        assert!(why.starts_with("after 3 s: no place for"), "{why}");
        assert!(Clock::now().since(begun) < Duration::from_secs(6));
    });
}

/// SEMANTICS 47.
#[test]
fn a_killed_process_is_replaced_when_its_memory_is_free_and_not_before() {
    told(1, async |_, node| {
        let actor = node.spawn::<Worker>(NOW).gpus(8).await.unwrap();
        own(actor).await;
        let (_, process, _) = placed(&node, actor).await;
        let begun = Clock::now();
        assert!(node.admin().kill_worker(process));
        assert_eq!(own(actor).await.len(), 8);
        let took = Clock::now().since(begun);
        assert!(
            took >= Duration::from_secs(2),
            "the driver takes 2 s, this took {took:?}"
        );
        assert!(took < Duration::from_secs(4), "{took:?}");
    });
}

/// SEMANTICS 47.
#[test]
fn a_device_whose_memory_stays_held_is_out_of_service_and_the_refusal_says_so() {
    let model = DeviceModel {
        release_ms: 3_600_000,
        ..DeviceModel::default()
    };
    let spec = spec(1).devices(Spec::cluster(1, model));
    System::simulated(3, spec).run(|world| async move {
        let node = world.nodes[0].clone();
        node.clone()
            .scope(async {
                let actor = node
                    .spawn::<Worker>(NOW)
                    .gpus(8)
                    .restart(Restart::Temporary);
                let actor = actor.await.unwrap();
                let (_, process, _) = placed(&node, actor).await;
                assert!(node.admin().kill_worker(process));
                let begun = Clock::now();
                let next = node.spawn::<Worker>(NOW).gpus(1);
                let why = not_placed(next.await);
                let expected = "has ended, but after 30s 144384 MiB of device 0 are still its own";
                assert!(why.contains(expected), "{why}");
                assert!(Clock::now().since(begun) < Duration::from_secs(70));
            })
            .await;
    });
}

/// SEMANTICS 48.
#[test]
fn a_device_that_fails_costs_its_process_and_its_place_and_a_spare_takes_over() {
    told(1, async |world, node| {
        let actor = node.spawn::<Worker>(NOW).gpus(1).await.unwrap();
        assert_eq!(own(actor).await, [0]);
        let down = node.spawn::<Watcher>(actor).await.unwrap();
        assert!(world.devices.strike("node0/gpu0", Strike::Xid(79)));
        let fault = GpuFault::new(0, FaultKind::Xid { code: 79 });
        until(|| async { !down.ask(Seen).await.unwrap().is_empty() }).await;
        assert_eq!(
            down.ask(Seen).await.unwrap()[0].kind,
            FailureKind::Gpu(fault)
        );
        assert_eq!(own(actor).await, [1], "a spare");
        let view = &node.nodes().await[0].node;
        let told = format!("{:?}", view.devices[0].health);
        assert!(told.contains("Xid 79"), "{told}");
        let why = not_placed(node.spawn::<Worker>(NOW).gpus(8).await);
        assert!(why.contains("Xid 79"), "{why}");
        assert!(world.devices.repair("node0/gpu0"));
        assert!(node.admin().repair_device(0).await);
        assert!(!node.admin().repair_device(0).await);
        actor.stop().await.unwrap();
        let all = node.spawn::<Worker>(NOW).gpus(8).await.unwrap();
        assert_eq!(own(all).await.len(), 8);
    });
}

/// SEMANTICS 48.
#[test]
fn a_fault_that_an_actor_meets_ends_its_process_and_names_the_device_of_the_node() {
    told(1, async |_, node| {
        let before = node.spawn::<Worker>(NOW).gpus(4).await.unwrap();
        let actor = node.spawn::<Worker>(NOW).gpus(1).await.unwrap();
        assert_eq!(own(actor).await, [4]);
        let (_, process, _) = placed(&node, actor).await;
        let watcher = node.spawn::<Watcher>(actor).await.unwrap();
        // Its process knows device 4 as 0. What breaks a context does not break the device.
        let sticky = GpuFault::new(0, FaultKind::Sticky);
        actor.ask(Meet(sticky)).await.unwrap();
        until(|| async { !watcher.ask(Seen).await.unwrap().is_empty() }).await;
        let failure = watcher.ask(Seen).await.unwrap().remove(0);
        let seen = GpuFault::new(4, FaultKind::Sticky);
        assert_eq!(failure.kind, FailureKind::Gpu(seen));
        assert!(
            failure.message.starts_with("device 4: "),
            "{}",
            failure.message
        );
        own(actor).await;
        assert_ne!(placed(&node, actor).await.1, process);
        // One that the hardware is to blame for takes the device out of service.
        let device = own(actor).await[0];
        actor
            .ask(Meet(GpuFault::new(0, FaultKind::Ecc)))
            .await
            .unwrap();
        until(|| async { own(actor).await[0] != device }).await;
        let view = &node.nodes().await[0].node;
        let broken = view
            .devices
            .iter()
            .find(|known| known.index == device)
            .unwrap();
        assert!(format!("{:?}", broken.health).contains("ECC"), "{broken:?}");
        assert_eq!(own(before).await, [0, 1, 2, 3], "others live on");
    });
}

/// SEMANTICS 48.
#[test]
fn a_handler_that_hangs_costs_its_process_and_the_actor_starts_again() {
    told(1, async |_, node| {
        let limit = Duration::from_secs(20);
        let watched = |needs: Needs| needs.gpus(2).hang_after(limit);
        let neighbour = node.spawn::<Worker>(NOW).gpus(1).await.unwrap();
        let actor = node
            .spawn::<Worker>(limit * 3)
            .needs(watched)
            .await
            .unwrap();
        let (_, process, devices) = placed(&node, actor).await;
        // Neither a slow start nor what takes almost as long is a hang, one after the other.
        for _ in 0..3 {
            actor
                .ask(Dwell(limit - Duration::from_secs(1)))
                .await
                .unwrap();
        }
        assert_eq!(placed(&node, actor).await.1, process);
        let watcher = node.spawn::<Watcher>(actor).await.unwrap();
        let begun = Clock::now();
        let lost = actor
            .ask(Dwell(Duration::from_secs(3_600)))
            .timeout(limit * 10);
        let error = lost.await.unwrap_err();
        assert!(matches!(&error, AskError::Died(_)), "{error}");
        let noticed = Clock::now().since(begun);
        assert!(noticed < limit + Duration::from_secs(2), "{noticed:?}");
        until(|| async { !watcher.ask(Seen).await.unwrap().is_empty() }).await;
        let failure = watcher.ask(Seen).await.unwrap().remove(0);
        let FailureKind::Gpu(fault) = failure.kind else {
            panic!("{failure}");
        };
        assert_eq!(fault.device, devices[0]);
        assert!(matches!(fault.kind, FaultKind::Hang { predicted, .. } if predicted == limit));
        // The device is sound: the actor may have it again, in another process.
        own(actor).await;
        assert_ne!(placed(&node, actor).await.1, process);
        let devices = &node.nodes().await[0].node.devices;
        assert!(devices.iter().all(|device| device.health == Health::Good));
        assert_eq!(own(neighbour).await, [0], "others live on");
    });
}

/// SEMANTICS 45.
#[test]
fn a_gang_is_placed_whole_or_not_at_all() {
    told(2, async |_, node| {
        let mesh = |n| Mesh::new([("dp", n)]).unwrap();
        let blocker = node
            .spawn::<Worker>(NOW)
            .gpus(6)
            .on_node("node-1")
            .await
            .unwrap();
        let impatient = |needs: Needs| needs.wait_for_room(Duration::from_secs(2));
        let gang = node
            .spawn_group::<Worker>(mesh(12), |_| NOW)
            .gpus(1)
            .needs(impatient);
        let error = gang.await.unwrap_err();
        assert!(
            error.to_string().contains("12 x 1 gpu, 10 would fit"),
            "{error}"
        );
        let free: u32 = node
            .nodes()
            .await
            .iter()
            .map(|view| view.node.free_devices())
            .sum();
        assert_eq!(free, 10, "none of it is left");
        blocker.stop().await.unwrap();
        let gang = node
            .spawn_group::<Worker>(mesh(12), |_| NOW)
            .gpus(1)
            .await
            .unwrap();
        let mut places = vec![];
        for member in gang.members() {
            let (name, _, devices) = placed(&node, *member).await;
            places.push((name, devices[0]));
        }
        let mut sorted = places.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), 12);
        assert_eq!(places, sorted, "ranks follow the topology");
        let near = node
            .spawn::<Worker>(NOW)
            .gpus(1)
            .near(&gang.members()[0])
            .await
            .unwrap();
        own(near).await;
        gang.stop().await.unwrap();
        let spread = node
            .spawn_group::<Worker>(mesh(2), |_| NOW)
            .needs(|needs| needs.gpus(2).arrange(Arrange::StrictSpread))
            .await
            .unwrap();
        let mut nodes = vec![];
        for member in spread.members() {
            nodes.push(placed(&node, *member).await.0);
        }
        assert_eq!(nodes, ["node-0", "node-1"]);
        // A member that is placed again stays apart from the other.
        let (_, process, _) = placed(&node, spread.members()[0]).await;
        assert!(node.admin().kill_worker(process));
        own(spread.members()[0]).await;
        assert_eq!(placed(&node, spread.members()[0]).await.0, "node-0");
        let rack = |needs: Needs| needs.gpus(1).within(Level::Node);
        let error = node
            .spawn_group::<Worker>(mesh(9), |_| NOW)
            .needs(rack)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("no place"), "{error}");
    });
}

/// SEMANTICS 46.
#[test]
fn who_matters_more_takes_the_place_of_who_matters_less() {
    told(1, async |_, node| {
        let cheap = node
            .spawn::<Worker>(NOW)
            .needs(|needs| needs.gpus(6).priority(-1))
            .await
            .unwrap();
        own(cheap).await;
        let watcher = node.spawn::<Watcher>(cheap).await.unwrap();
        let dear = node
            .spawn::<Worker>(NOW)
            .needs(|needs| needs.gpus(4).priority(1))
            .await
            .unwrap();
        assert_eq!(own(dear).await.len(), 4);
        let why = watcher.ask(Seen).await.unwrap().remove(0).message;
        assert!(
            why.contains("has a higher priority and took its place"),
            "{why}"
        );
        let waits = node.why(cheap).await.unwrap().to_string();
        assert!(waits.contains("holds 4"), "{waits}");
        dear.stop().await.unwrap();
        assert_eq!(
            own(cheap).await.len(),
            6,
            "it comes back when there is room"
        );
    });
}

/// SEMANTICS 46.
#[test]
fn a_job_holds_no_more_than_its_quota() {
    let fake = odeon_devices::fake::Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let quota = Quota {
            gpu_milli: Some(3_000),
            ..Quota::default()
        };
        let node = System::builder()
            .job(odeon::job![Worker])
            .node("a")
            .workers(odeon::WorkerMode::InProcess)
            .devices(odeon::FakeDevices::new(&fake, "node0").unwrap())
            .quota(quota)
            .start()
            .await
            .unwrap();
        node.clone()
            .scope(async {
                let two = node.spawn::<Worker>(NOW).gpus(2).await.unwrap();
                let more = |needs: Needs| needs.gpus(2).wait_for_room(Duration::from_secs(1));
                let why = not_placed(node.spawn::<Worker>(NOW).needs(more).await);
                assert!(why.contains("may hold 3 gpu"), "{why}");
                two.stop().await.unwrap();
                let two = node.spawn::<Worker>(NOW).gpus(2).await.unwrap();
                own(two).await;
            })
            .await;
        node.shutdown().await;
    });
}

/// SEMANTICS 65.
#[test]
fn nodes_that_place_at_the_same_moment_give_out_what_is_left_once_each() {
    let mut most = 0;
    for seed in 0..8 {
        let held = System::simulated(seed, spec(3)).run(|world| async move {
            let nodes = &world.nodes;
            let quota = Quota {
                gpu_milli: Some(2_000),
                ..Quota::default()
            };
            for node in nodes {
                let of = env!("CARGO_PKG_NAME").to_owned();
                node.admin().set_quotas([(of, quota.clone())].into());
            }
            let asked = |from: usize, on: usize| {
                let spawn = nodes[from].spawn::<Worker>(NOW).gpus(1);
                let spawn = spawn.on_node(format!("node-{on}"));
                spawn.needs(|needs| needs.wait_for_room(Duration::ZERO))
            };
            asked(0, 0).await.unwrap();
            // Two of each node, the first of which is on its way to another when the second has all that it
            // asks for here.
            let asks = (0..3).flat_map(|from| [asked(from, (from + 1) % 3), asked(from, from)]);
            let given = futures::future::join_all(asks.map(IntoFuture::into_future)).await;
            let by_node = given.chunks(2);
            let by_node = by_node.map(|of| of.iter().filter(|it| it.is_ok()).count());
            let by_node: Vec<usize> = by_node.collect();
            assert!(by_node.iter().all(|given| *given <= 1), "{by_node:?}");
            let held = 1 + by_node.iter().sum::<usize>();
            assert!(held >= 2, "what is left is given out");
            // From then on all of it is seen by all.
            for (from, on) in [(0, 0), (1, 1), (2, 2)] {
                let why = not_placed(asked(from, on).await);
                let told = format!("may hold 2 gpu, holds {held} and asks for 1 more");
                assert!(why.contains(&told), "{why}");
            }
            held
        });
        most = most.max(held);
    }
    assert!(most > 2, "no two placed at the same moment");
}

/// SEMANTICS 49.
#[test]
fn a_spare_takes_over_from_a_process_that_is_lost_and_the_pool_fills_up_again() {
    told(1, async |world, node| {
        let pool = node.standby(2, Needs::new().gpus(1)).unwrap();
        until(async || pool.ready() == 2).await;
        let mesh = Mesh::new([("dp", 4)]).unwrap();
        let gang = node
            .spawn_group::<Worker>(mesh, |_| NOW)
            .needs(|needs| needs.gpus(1).standby(&pool))
            .await
            .unwrap();
        let parked: Vec<u32> = node.nodes().await[0]
            .node
            .leases()
            .filter(|lease| lease.holder.starts_with("spare of pool"))
            .map(|lease| lease.devices[0].index)
            .collect();
        assert_eq!(parked, [0, 1]);
        let before = node.admin().workers().len();
        let (_, _, devices) = placed(&node, gang.members()[2]).await;
        let lost = format!("node0/gpu{}", devices[0]);
        assert!(world.devices.strike(&lost, Strike::Lost));
        until(async || own(gang.members()[2]).await == [0]).await;
        until(async || pool.ready() == 2).await;
        assert_eq!(node.admin().workers().len(), before);
        // A spare that is lost itself is replaced, too.
        assert!(world.devices.strike("node0/gpu1", Strike::Xid(79)));
        until(async || {
            let view = node.nodes().await.remove(0).node;
            // What is off the bus cannot be seen to be free.
            let parked = |lease: &&Lease| {
                lease.holder.starts_with("spare") && !lease.holder.contains("leaving")
            };
            let spares = view.leases().filter(parked);
            let devices: Vec<u32> = spares.map(|lease| lease.devices[0].index).collect();
            devices.len() == 2 && !devices.contains(&1) && pool.ready() == 2
        })
        .await;
        assert!(node.standby(1, Needs::new().cpus(0.0)).is_err());
        drop(pool);
        until(async || node.nodes().await[0].actors.len() == 4).await;
    });
}

/// A node that is cut off gives back what the other had claimed, was starting and had parked there:
/// when the two meet again, both have all of their devices.
///
/// SEMANTICS 45, 49.
#[test]
fn what_a_lost_node_held_is_given_back() {
    for after in [0, 1, 2, 5, 10, 20, 40] {
        System::simulated(after, spec(2)).run(|world| async move {
            let [here, there] = [world.nodes[0].clone(), world.nodes[1].clone()];
            here.clone()
                .scope(async {
                    let on = |needs: Needs| needs.gpus(1).label("none", "none");
                    assert!(here.spawn::<Worker>(NOW).needs(on).await.is_err());
                    let blocker = here.spawn::<Worker>(NOW).gpus(8).on_node("node-0");
                    let blocker = blocker.await.unwrap();
                    // All of these can only be on the other node.
                    let pool = here.standby(3, Needs::new().gpus(1)).unwrap();
                    let slow = Duration::from_secs(2);
                    let actor = here
                        .spawn::<Worker>(slow)
                        .gpus(2)
                        .restart(Restart::Temporary)
                        .start()
                        .unwrap();
                    Clock::sleep(Duration::from_millis(after)).await;
                    world.network.cut(0, 1);
                    let idle = async |node: &System, own: u32| {
                        let views = node.nodes().await;
                        views.len() == 1 && views[0].node.free_devices() == own
                    };
                    until(async || idle(&there, 8).await && there.admin().workers().is_empty())
                        .await;
                    drop(pool);
                    let _ = actor.stop().await;
                    blocker.stop().await.unwrap();
                    until(async || idle(&here, 8).await).await;
                })
                .await;
        });
    }
}

/// A claim whose answer is held up, for less or for longer than the claim lasts, is granted once or
/// not at all: whoever is at the devices meanwhile has them alone, and in the end all are there.
///
/// SEMANTICS 45.
#[test]
fn a_claim_that_is_held_up_is_granted_once() {
    for after in [0, 1, 2, 5, 10, 20, 40] {
        for held_up in [2, 20] {
            let mut limits = limits();
            limits.link_idle_timeout = Duration::from_secs(120);
            assert!(limits.claim_timeout > Duration::from_secs(2));
            assert!(limits.claim_timeout < Duration::from_secs(20));
            let spec = spec(2).limits(limits);
            System::simulated(after, spec).run(|world| async move {
                let [here, there] = [world.nodes[0].clone(), world.nodes[1].clone()];
                here.clone()
                    .scope(async {
                        let blocker = here.spawn::<Worker>(NOW).gpus(8).on_node("node-0");
                        let blocker = blocker.await.unwrap();
                        let actor = here.spawn::<Worker>(NOW).gpus(2).start().unwrap();
                        Clock::sleep(Duration::from_millis(after)).await;
                        world.network.part(0, 1);
                        let rival = there
                            .spawn::<Worker>(NOW)
                            .gpus(7)
                            .on_node("node-1")
                            .start()
                            .unwrap();
                        Clock::sleep(Duration::from_secs(held_up)).await;
                        world.network.heal(0, 1);
                        // One of the two is first, and the other when that is done.
                        let first = async |actor: Ref<Worker>| {
                            let devices = own(actor).await;
                            actor.stop().await.unwrap();
                            devices.len()
                        };
                        let both = futures::join!(first(actor), first(rival));
                        assert_eq!(both, (2, 7));
                        blocker.stop().await.unwrap();
                        for node in [&here, &there] {
                            until(|| async {
                                let views = node.nodes().await;
                                let free = views.iter().map(|view| view.node.free_devices());
                                free.sum::<u32>() == 16
                            })
                            .await;
                        }
                    })
                    .await;
            });
        }
    }
}

/// Light actors of a job share a process; who wants one alone gets it.
///
/// SEMANTICS 45.
#[test]
fn actors_without_devices_share_the_worker_of_their_node() {
    told(1, async |_, node| {
        let light = || node.spawn::<Worker>(NOW).cpus(0.25);
        let (a, b, alone) = (
            light().await.unwrap(),
            light().await.unwrap(),
            light().isolated().await.unwrap(),
        );
        let mut processes = vec![];
        for actor in [a, b, alone] {
            assert_eq!(own(actor).await, [0; 0]);
            processes.push(placed(&node, actor).await.1);
        }
        assert_eq!(processes[0], processes[1]);
        assert_ne!(processes[0], processes[2]);
        a.stop().await.unwrap();
        own(b).await;
        b.stop().await.unwrap();
        alone.stop().await.unwrap();
        until(|| async { node.nodes().await[0].actors.is_empty() }).await;
        assert!(node.admin().workers().is_empty());
    });
}

/// Tells how the lives of an actor ended.
struct Watcher {
    target: Ref<Worker>,
    seen: Vec<Failure>,
}
impl Actor for Watcher {
    const NAME: &'static str = "test.Watcher";
    type Args = Ref<Worker>;
    async fn start(target: Ref<Worker>, cx: &mut Context<Self>) -> Result<Self, Failure> {
        cx.watch(target);
        Ok(Self {
            target,
            seen: vec![],
        })
    }
}
impl Handler<Down> for Watcher {
    async fn handle(&mut self, down: Down, cx: &mut Context<Self>) {
        if let Reason::Failed(failure) = down.reason {
            self.seen.push(failure);
            // The next life has to begin before it can be watched.
            Clock::sleep(Duration::from_millis(1)).await;
            cx.watch(self.target);
        }
    }
}

/// The failures so far.
#[derive(Clone, Serialize, Deserialize)]
struct Seen;
impl Shape for Seen {
    const SHAPE: u64 = 4;
}
impl Message for Seen {
    const NAME: &'static str = "Seen";
    type Reply = Vec<Failure>;
}
impl Handler<Seen> for Watcher {
    async fn handle(&mut self, _: Seen, _: &mut Context<Self>) -> Vec<Failure> {
        self.seen.clone()
    }
}
odeon::register!(Watcher: Down, Seen);

/// Small and good enough to choose faults with.
struct Dice(u64);
impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Kills during the start, several faults at once, partitions and cut links: every actor comes
/// back as long as there are devices, and none is ever on a device that another holds.
///
/// SEMANTICS 45, 47, 48.
#[test]
fn whatever_fails_no_device_is_granted_twice_and_all_come_back() {
    for seed in 0..40 {
        let limits = limits();
        let spec = spec(2).limits(limits);
        System::simulated(seed, spec).run(|world| async move {
            let nodes = world.nodes.clone();
            nodes[0].clone().scope(story(world, seed)).await;
        });
    }
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.placement_timeout = Duration::from_secs(3_600);
    limits.device_release_timeout = Duration::from_secs(60);
    limits
}

async fn story(world: World, seed: u64) {
    let mut dice = Dice(seed);
    let node = world.nodes[0].clone();
    let mut actors = vec![];
    for at in 0..5 {
        let takes = Duration::from_millis(dice.roll(400));
        let gpus = 1 + (at % 2) as u32;
        actors.push(node.spawn::<Worker>(takes).gpus(gpus).start().unwrap());
    }
    let watchers: Vec<Ref<Watcher>> = {
        let mut watchers = vec![];
        for actor in &actors {
            watchers.push(node.spawn::<Watcher>(*actor).await.unwrap());
        }
        watchers
    };
    // Devices that must rest are few enough for all to find others.
    let mut lost = 0;
    for _ in 0..30 {
        for _ in 0..=dice.roll(2) {
            let machine = dice.roll(2);
            let device = format!("node{machine}/gpu{}", dice.roll(8));
            match dice.roll(7) {
                0 | 1 => {
                    let workers = world.nodes[machine as usize].admin().workers();
                    let pick = dice.roll(8) as usize;
                    if let Some((process, _)) = workers.get(pick % workers.len().max(1)) {
                        // It may be gone already.
                        let _ = world.nodes[machine as usize].admin().kill_worker(*process);
                    }
                }
                2 => assert!(world.devices.strike(&device, Strike::Xid(31))),
                3 if lost < 2 => {
                    lost += 1;
                    let strike = [Strike::Xid(79), Strike::Ecc][lost % 2];
                    assert!(world.devices.strike(&device, strike));
                }
                4 => world.network.part(0, 1),
                5 => {
                    world.network.heal(0, 1);
                    world.network.cut(0, 1);
                    world.join(0, 1).await.unwrap();
                }
                _ => world.network.heal(0, 1),
            }
        }
        Clock::sleep(Duration::from_millis(dice.roll(4_000))).await;
    }
    world.network.heal(0, 1);
    if !node
        .nodes()
        .await
        .iter()
        .any(|view| view.node.name == "node-1")
    {
        world.join(0, 1).await.unwrap();
    }
    for actor in &actors {
        let devices = own(*actor).await;
        assert!(!devices.is_empty());
    }
    let mut held = vec![];
    for actor in &actors {
        let (name, _, devices) = placed(&node, *actor).await;
        held.extend(devices.into_iter().map(|device| (name.clone(), device)));
    }
    let all = held.len();
    held.sort();
    held.dedup();
    assert_eq!(held.len(), all, "seed {seed}: {held:?}");
    for watcher in watchers {
        for failure in watcher.ask(Seen).await.unwrap() {
            // A device that is broken and not known to be yet is nobody's mistake.
            let text = failure.to_string();
            let too_early =
                text.contains("not to be had") && failure.kind == FailureKind::ProcessLost;
            assert!(!too_early, "seed {seed}: {text}");
        }
    }
    for actor in actors {
        actor.stop().await.unwrap();
    }
    until(|| async {
        let views = node.nodes().await;
        let idle = |view: &NodeView| {
            let out = view
                .node
                .devices
                .iter()
                .filter(|d| d.health != Health::Good)
                .count();
            view.actors.is_empty() && view.node.free_devices() as usize + out == 8
        };
        views.len() == 2 && views.iter().all(idle)
    })
    .await;
    assert!(
        world
            .nodes
            .iter()
            .all(|node| node.admin().workers().is_empty()),
        "seed {seed}"
    );
}
