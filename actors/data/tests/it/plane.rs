//! A data plane delivers what its plan says, whoever of it is lost: the same batches to the bit, each
//! sample once.

use odeon_mesh::{CP, DP, Mesh, PP, TP};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use odeon::{
    ActorId, AskError, Clock, Failure, FailureKind, Limits, Needs, Ref, Supervision, System,
    WorkerCommand, WorkerMode,
};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_data::client::{Awaits, CountBrought, DataClient, Next, Serve};
use odeon_data::constructor::{Delivery, Fetch};
use odeon_data::loader::CountLoaded;
use odeon_data::pack::{Packed, PackedSlice};
use odeon_data::plan::{
    Ahead, AtEnd, Budget, CellName, MicrobatchSpec, MixedSource, Mixture, PlanSpec, ScalingSpec,
    Schedule, Slice,
};
use odeon_data::plane::{
    Changed, Constructors, DataPlan, DataPlane, Loaders, PlaneCounts, Processes,
};
use odeon_data::planner::{Dealt, PartOf};
use odeon_data::sample::SampleId;
use odeon_data::source::{Fields, Format, OnBad, SourceSpec};
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn worker_entry() {
    odeon_data::job().serve_if_worker();
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Sources whose records differ in length, as lines of JSON. Blocks are small, so that there are many
/// cells.
fn sources(folder: &Path) -> Vec<SourceSpec> {
    let made = [("short", 400, 20), ("middle", 150, 200), ("long", 40, 900)];
    let specs = made.map(|(name, records, length)| {
        let mut text = String::new();
        for record in 0..records {
            let words = format!("{name} {record} ").repeat(1 + (length * (record % 5 + 1)) / 40);
            writeln!(text, "{{\"text\": \"{words}\"}}").unwrap();
        }
        fs::write(folder.join(format!("{name}.jsonl")), text).unwrap();
        let path = folder.join(format!("{name}.jsonl"));
        let format = Format::Jsonl(Fields::text("text"));
        SourceSpec {
            block_bytes: 1500,
            cell_blocks: 2,
            context: 512,
            seed: 5,
            ..SourceSpec::new(name, path.to_str().unwrap(), format)
        }
    });
    specs.to_vec()
}

/// Twice through each source.
fn spec() -> PlanSpec {
    let mut mixture = Mixture::even(["short", "middle", "long"]);
    mixture.at_end = AtEnd::Others;
    for (name, weight) in [("short", 0.5), ("middle", 0.3), ("long", 0.2)] {
        let source = MixedSource {
            weight: Schedule::Constant(weight),
            epochs: Some(2),
        };
        mixture.sources.insert(name.to_owned(), source);
    }
    let mut spec = PlanSpec::mix(mixture, Budget::Tokens(8192));
    // So that there is something that nobody was asked for.
    spec.ahead = Ahead { steps: 1, cells: 2 };
    spec.microbatch = MicrobatchSpec {
        tokens: 2048,
        ..MicrobatchSpec::default()
    };
    spec
}

fn plan(folder: &Path, ranks: u32, processes: Processes) -> DataPlan {
    DataPlan {
        prefix: String::new(),
        sources: sources(folder),
        tokenizer: Tokenizer::bytes(),
        cache: folder.join("cache"),
        spec: spec(),
        mesh: Mesh::new([(DP, ranks as usize)]).unwrap(),
        state: None,
        earlier: BTreeMap::new(),
        loaders: Loaders {
            sources: Some(vec![vec![0], vec![0, 1], vec![1]]),
            scaling: None,
            step_seconds: 1.0,
            shadows: 0,
            bytes_max: 1 << 20,
            threads: 1,
            needs: Needs::new(),
        },
        constructors: Constructors {
            count: 2,
            ahead: 2,
            needs: Needs::new(),
        },
        planned_ahead: 4,
        patience: Duration::from_millis(100),
        processes,
        changed: Changed::Refuse,
    }
}

/// A node whose workers are this program.
async fn node() -> System {
    let worker = WorkerCommand::current_exe().unwrap();
    let worker = worker.arg("plane::worker_entry").arg("--exact");
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    System::builder()
        .limits(limits)
        .supervision(Supervision::one_for_one().budget(60, PATIENCE))
        .workers(WorkerMode::Processes(worker))
        .start()
        .await
        .unwrap()
}

struct World {
    system: System,
    plane: DataPlane,
    ranks: u32,
    _folder: tempfile::TempDir,
}

impl World {
    async fn start(ranks: u32, processes: Processes, change: impl FnOnce(&mut DataPlan)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self::over(folder, ranks, processes, change).await.unwrap()
    }

    async fn over(
        folder: tempfile::TempDir,
        ranks: u32,
        processes: Processes,
        change: impl FnOnce(&mut DataPlan),
    ) -> Result<Self, String> {
        let mut plan = plan(folder.path(), ranks, processes);
        change(&mut plan);
        let system = node().await;
        let plane = DataPlane::start(&system, plan).await;
        Ok(Self {
            plane: plane.map_err(|error| error.to_string())?,
            system,
            ranks,
            _folder: folder,
        })
    }

    /// The batches of all ranks for a step, or the reason why it has none.
    async fn step(&self, step: u64) -> Result<Vec<Delivery>, Failure> {
        let mut got = vec![];
        for bucket in 0..self.ranks {
            got.push(self.fetch(step, bucket).await?);
        }
        Ok(got)
    }

    async fn fetch(&self, step: u64, rank: u32) -> Result<Delivery, Failure> {
        let begun = Clock::now();
        loop {
            let constructor = self.plane.supply().constructor_of(rank).unwrap();
            let asked = constructor
                .ask(Fetch { step, rank })
                .timeout(PATIENCE)
                .await;
            match asked.map_err(Failure::error).and_then(|got| got) {
                Ok(delivery) => match delivery.open().await {
                    Ok(batches) => {
                        assert_eq!(batches.len(), delivery.microbatches.len());
                        return Ok(delivery);
                    }
                    Err(failure) => tracing::debug!(%failure, "it is gone with who made it"),
                },
                Err(failure) if failure.kind == FailureKind::Fatal => return Err(failure),
                Err(failure) => tracing::debug!(%failure, "asking again"),
            }
            assert!(
                Clock::now().since(begun) < PATIENCE,
                "step {step} never comes"
            );
            Clock::sleep(Duration::from_millis(5)).await;
        }
    }

    /// All steps that there are, as digests and samples.
    async fn all(&self) -> Vec<Got> {
        let mut all = vec![];
        while let Ok(step) = self.step(all.len() as u64).await {
            all.push(Got::of(&step));
        }
        all
    }

    /// Takes steps from this one on until the run ends, and gives the reason.
    async fn end_from(&self, first: u64) -> String {
        let ending = async {
            let mut step = first;
            loop {
                tokio::select! {
                    failure = self.system.failed() => break failure,
                    got = self.step(step) => match got {
                        Ok(_) => step += 1,
                        Err(failure) => break failure,
                    },
                }
            }
        };
        let failure = Clock::timeout(PATIENCE, ending).await;
        failure.expect("the run ends").to_string()
    }

    /// Kills the process of a role.
    fn kill(&self, role: &str) {
        self.signal(role, Signal::KILL);
    }

    /// Has the process of a role stand still. Returns when it does.
    async fn halt(&self, role: &str) {
        let pid = self.signal(role, Signal::STOP).expect("it has a process");
        let threads = format!("/proc/{}/task", pid.as_raw_nonzero());
        let stands_still = || {
            let mut threads = fs::read_dir(&threads).unwrap();
            threads.all(|thread| {
                let stat = thread.unwrap().path().join("stat");
                // A thread that has just ended has none; the others do not end any more.
                let stat = fs::read_to_string(stat).unwrap_or_default();
                // Behind the name of the program, which is in brackets.
                let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
                state.is_some_and(|state| state.starts_with('T'))
            })
        };
        let standing = async {
            while !stands_still() {
                Clock::sleep(Duration::from_millis(1)).await;
            }
        };
        let halted = Clock::timeout(PATIENCE, standing).await;
        halted.expect("a process that is told to stand still does");
    }

    /// Sends a signal to the process of a role, where it has one.
    fn signal(&self, role: &str, signal: Signal) -> Option<Pid> {
        let process = self
            .plane
            .roles()
            .find(|(name, ..)| name == role)
            .unwrap()
            .2;
        let workers = self.system.admin().workers();
        let worker = workers.iter().find(|(id, _)| Some(*id) == process);
        // One that is gone already, and not back, is lost all the same.
        let pid = Pid::from_raw(worker?.1 as i32)?;
        let _ = kill_process(pid, signal);
        Some(pid)
    }

    async fn lose_planner(&self) {
        let planner = self.plane.planner().id();
        // One that is not back yet is lost all the same.
        let failed = self
            .system
            .admin()
            .fail_actor(planner, Failure::error("lost"), PATIENCE);
        let _ = failed.await;
    }

    async fn counts(&self) -> PlaneCounts {
        self.plane.counts().await.unwrap()
    }

    async fn end(self) {
        self.plane.stop().await;
        self.system.shutdown().await;
    }
}

/// A step as it was delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Got {
    digests: Vec<[u8; 32]>,
    samples: BTreeSet<SampleId>,
}

impl Got {
    fn of(deliveries: &[Delivery]) -> Self {
        let ids = deliveries
            .iter()
            .flat_map(|it| it.microbatches.iter().flatten().copied());
        let ids: Vec<SampleId> = ids.collect();
        let samples: BTreeSet<SampleId> = ids.iter().copied().collect();
        assert_eq!(samples.len(), ids.len(), "a sample is twice in a step");
        Self {
            digests: deliveries.iter().map(|it| it.digest).collect(),
            samples,
        }
    }
}

fn samples(steps: &[Got]) -> Vec<BTreeSet<SampleId>> {
    steps.iter().map(|step| step.samples.clone()).collect()
}

async fn undisturbed() -> Vec<Got> {
    let world = World::start(2, Processes::Shared, |_| {}).await;
    let all = world.all().await;
    world.end().await;
    all
}

/// SEMANTICS 104.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_sample_of_both_epochs_is_delivered_once_and_then_the_sources_have_ended() {
    let world = World::start(2, Processes::Shared, |_| {}).await;
    let all = world.all().await;
    let mut seen: BTreeMap<SampleId, u32> = BTreeMap::new();
    for id in all.iter().flat_map(|step| &step.samples) {
        *seen.entry(*id).or_default() += 1;
    }
    assert!(seen.values().all(|times| *times == 1));
    // Records of 400, 150 and 40; each is a sample at least, and more where it is longer than 512.
    for (source, records) in [(0, 400), (1, 150), (2, 40)] {
        for epoch in 0..2 {
            let own = seen
                .keys()
                .filter(|id| id.source.0 == source && id.epoch == epoch);
            assert!(own.count() >= records, "source {source}, epoch {epoch}");
        }
    }
    let failure = world.step(all.len() as u64).await.unwrap_err();
    let told = format!("the sources ended after {} steps", all.len());
    assert!(failure.to_string().contains(&told), "{failure}");
    // A step that is over a second time is another question, and has the same answer.
    let again = world.step(3).await.unwrap();
    assert_eq!(Got::of(&again), all[3]);
    let counts = world.counts().await;
    assert!(counts.ledger.again > 0 && counts.ledger.built >= 2 * all.len() as u64);
    world.end().await;
}

/// SEMANTICS 103.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_are_the_same_to_the_bit_whoever_is_lost() {
    let expected = undisturbed().await;
    for shadows in [0, 1] {
        let world = World::start(2, Processes::Own, |plan| plan.loaders.shadows = shadows).await;
        let mut roles = vec!["loader-0", "constructor-1", "loader-1", "constructor-0"];
        roles.extend((shadows > 0).then_some("shadow-0"));
        let mut victims = roles.iter().cycle();
        let mut got = vec![];
        while got.len() < expected.len() {
            let at = got.len();
            if at % 3 == 1 {
                world.kill(victims.next().unwrap());
            }
            if at % 7 == 5 {
                world.lose_planner().await;
            }
            got.push(Got::of(&world.step(at as u64).await.unwrap()));
        }
        assert_eq!(got, expected, "with {shadows} shadows");
        world.end().await;
    }
}

/// Ranks of a mesh, each with its client in a process of its own.
struct Clients {
    clients: Vec<Ref<DataClient>>,
}

impl Clients {
    async fn start(world: &World) -> Self {
        let supply = world.plane.supply();
        let mut clients = vec![];
        for _ in 0..supply.fetch.mesh.len() {
            let client = world.system.spawn::<DataClient>(()).isolated();
            clients.push(client.await.unwrap());
        }
        for (rank, client) in (0..).zip(&clients) {
            let serve = Serve {
                rank,
                supply: supply.clone(),
                clients: clients.clone(),
            };
            client.ask(serve).await.unwrap().unwrap();
        }
        Self { clients }
    }

    async fn next(&self, step: u64, rank: u32) -> Delivery {
        let mut again = false;
        let begun = Clock::now();
        loop {
            let waited = Clock::now().since(begun);
            assert!(waited < PATIENCE, "step {step} never comes whole");
            let next = Next { step, rank, again };
            let delivery = self.clients[rank as usize].ask(next).timeout(PATIENCE);
            let delivery = delivery.await.unwrap().unwrap();
            match delivery.bytes.open().await {
                Ok(_) => return delivery,
                Err(_) => again = true,
            }
        }
    }
}

/// SEMANTICS 178.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_says_whether_its_rank_waits_for_the_batch_of_a_step() {
    let world = World::start(1, Processes::Own, |_| {}).await;
    let clients = Clients::start(&world).await;
    let awaits = async |step| clients.clients[0].ask(Awaits(step)).await.unwrap();
    clients.next(0, 0).await;
    assert!(!awaits(0).await, "it is there");
    world.halt("constructor-0").await;
    // Far behind what is built.
    let wanted = 500;
    let next = clients.next(wanted, 0);
    let judged = async {
        while !awaits(wanted).await {
            tokio::task::yield_now().await;
        }
        assert!(
            !awaits(wanted - 1).await,
            "those before are wanted by nobody"
        );
        world.signal("constructor-0", Signal::CONT);
    };
    tokio::select! {
        _ = next => panic!("it came from a constructor that is stopped"),
        () = judged => {}
    }
    world.end().await;
}

/// Sequences by what a model reads and predicts of them: of each bucket and micro-batch, by sequence
/// and position.
type Read = BTreeMap<(u32, usize, usize, u32), (u32, Option<u32>)>;

fn read_whole(bucket: u32, batches: &[Packed], read: &mut Read) {
    for (nth, packed) in batches.iter().enumerate() {
        for (sequence, it) in packed.sequences().enumerate() {
            for at in 0..(it.tokens.len() - 1).max(1) {
                let label = it.tokens.get(at + 1).filter(|_| at + 1 >= it.prompt);
                let place = (bucket, nth, sequence, at as u32);
                assert_eq!(read.insert(place, (it.tokens[at], label.copied())), None);
            }
        }
    }
}

fn read_slices(bucket: u32, batches: &[PackedSlice], read: &mut Read) {
    for (nth, slice) in batches.iter().enumerate() {
        let (positions, mask, bounds) = (slice.positions(), slice.mask(), slice.bounds());
        for (sequence, ends) in bounds.windows(2).enumerate() {
            for at in ends[0] as usize..ends[1] as usize {
                let label = mask[at].then_some(slice.labels[at]);
                let place = (bucket, nth, sequence, positions[at]);
                assert_eq!(read.insert(place, (slice.tokens[at], label)), None);
            }
        }
    }
}

/// SEMANTICS 107.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_a_mesh_have_their_slices_and_the_first_along_a_dimension_fetch_for_the_others() {
    let plain = World::start(2, Processes::Shared, |_| {}).await;
    let mut expected = vec![];
    while let Ok(deliveries) = plain.step(expected.len() as u64).await {
        let mut read = Read::new();
        for delivery in &deliveries {
            read_whole(delivery.bucket, &delivery.open().await.unwrap(), &mut read);
        }
        expected.push(read);
    }
    plain.end().await;
    let dimensions = [(PP, 2), (DP, 2), (CP, 2), (TP, 2)];
    let mesh = Mesh::new(dimensions).unwrap();
    let world = World::start(2, Processes::Own, |plan| {
        plan.mesh = mesh.clone();
        plan.spec.broadcast_at = vec![TP.to_owned(), PP.to_owned()];
    })
    .await;
    let clients = Clients::start(&world).await;
    let ranks = mesh.len() as u32;
    for (step, expected) in expected.iter().enumerate() {
        if step % 4 == 2 {
            world.kill(["constructor-0", "constructor-1", "loader-0"][step / 4 % 3]);
        }
        let asked = (0..ranks).map(|rank| clients.next(step as u64, rank));
        let deliveries = futures::future::join_all(asked).await;
        let mut read = Read::new();
        for (rank, delivery) in (0..).zip(&deliveries) {
            let place = |dimension| mesh.coordinate(rank as usize, dimension) as u32;
            assert_eq!(delivery.bucket, place(DP));
            let slice = Slice {
                part: place(CP),
                of: 2,
            };
            assert_eq!(delivery.slice, slice);
            let first = mesh.moved(rank as usize, TP, 0) as u32;
            let first = mesh.moved(first as usize, PP, 0) as u32;
            assert_eq!(delivery.digest, deliveries[first as usize].digest);
            if rank == first {
                let slices = delivery.open_slices().await.unwrap();
                read_slices(delivery.bucket, &slices, &mut read);
            }
        }
        assert_eq!(&read, expected, "step {step}");
    }
    let steps = expected.len() as u64;
    for (rank, client) in (0..).zip(&clients.clients) {
        let counts = client.ask(CountBrought).await.unwrap();
        let is_first = [TP, PP]
            .iter()
            .all(|dimension| mesh.coordinate(rank as usize, dimension) == 0);
        // What was gone with a constructor is brought again.
        match is_first {
            true => assert!(counts.fetched >= steps && counts.fed == 0, "{counts:?}"),
            false => assert!(counts.fed >= steps && counts.fetched == 0, "{counts:?}"),
        }
    }
    // Whom nobody feeds is told.
    let next = Next {
        step: 0,
        rank: 5,
        again: false,
    };
    let refused = clients.clients[0].ask(next).await.unwrap().unwrap_err();
    assert!(
        refused.to_string().contains("does not feed it"),
        "{refused}"
    );
    let fetch = Fetch { step: 0, rank: 1 };
    let constructor = world.plane.supply().constructor_of(0).unwrap();
    let refused = constructor.ask(fetch).await.unwrap().unwrap_err();
    assert!(
        refused.to_string().contains("is fed by rank 0"),
        "{refused}"
    );
    world.end().await;
}

/// SEMANTICS 104.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_ranks_go_on_with_the_same_samples() {
    let expected = undisturbed().await;
    let mut world = World::start(2, Processes::Shared, |_| {}).await;
    let mut got = vec![];
    for (until, ranks) in [(4, 2), (7, 3), (9, 1), (expected.len(), 4)] {
        if ranks != world.ranks {
            let mesh = Mesh::new([(DP, ranks as usize)]).unwrap();
            world.plane.remesh(mesh, got.len() as u64).await.unwrap();
            world.ranks = ranks;
            // The next life of the planner knows of it.
            world.lose_planner().await;
        }
        while got.len() < until {
            let step = world.step(got.len() as u64).await.unwrap();
            assert_eq!(step.len() as u32, ranks);
            got.push(Got::of(&step));
        }
    }
    assert_eq!(samples(&got), samples(&expected));
    world.end().await;
}

/// SEMANTICS 103.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_goes_on_from_what_was_saved_and_with_other_loaders() {
    let expected = undisturbed().await;
    let world = World::start(2, Processes::Shared, |_| {}).await;
    for step in 0..6 {
        world.step(step).await.unwrap();
    }
    let state = world.plane.state_before(5).await.unwrap();
    let bytes = serde_json::to_vec(&state).unwrap();
    world.end().await;
    let mut world = World::start(2, Processes::Shared, |plan| {
        plan.state = Some(serde_json::from_slice(&bytes).unwrap());
        plan.loaders.sources = Some(vec![vec![0], vec![0], vec![0]]);
    })
    .await;
    for step in 5..8 {
        assert_eq!(
            Got::of(&world.step(step).await.unwrap()),
            expected[step as usize]
        );
    }
    // More of them, in the middle.
    world
        .plane
        .redeal(vec![vec![1, 2], vec![0, 1, 2], vec![2]])
        .await
        .unwrap();
    world.lose_planner().await;
    for step in 8..expected.len() as u64 {
        assert_eq!(
            Got::of(&world.step(step).await.unwrap()),
            expected[step as usize]
        );
    }
    let counts = world.counts().await;
    assert_eq!(counts.loaders.len(), 3);
    assert!(
        counts.loaders.iter().all(|loader| loader.taken > 0),
        "{:?}",
        counts.loaders
    );
    world.end().await;
}

/// A spec in which what is measured decides how many loaders there are; here any demand is more
/// than enough for more, or less than enough for as many.
fn scaling(up: bool) -> ScalingSpec {
    let at = if up { 1e-9 } else { 1e9 };
    ScalingSpec {
        window_steps: 1,
        up_above: at,
        up_windows: 1,
        down_below: at,
        down_windows: 1,
        aim: at,
        shards_max: 3,
        ..ScalingSpec::default()
    }
}

/// SEMANTICS 108.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loaders_come_and_go_while_batches_stay_what_they_are() {
    let expected = undisturbed().await;
    // Measured, since nothing else is said.
    let mut world = World::start(2, Processes::Own, |plan| {
        plan.loaders.sources = None;
        plan.loaders.scaling = Some(scaling(true));
    })
    .await;
    assert_eq!(world.plane.loaders().len(), 1, "three light sources");
    let (mut got, mut rescaled) = (vec![], vec![]);
    while got.len() < expected.len() {
        let at = got.len();
        got.push(Got::of(&world.step(at as u64).await.unwrap()));
        rescaled.extend(world.plane.tend().await.unwrap());
        match at % 5 {
            2 => world.lose_planner().await,
            3 => world.kill(["loader-0", "loader-1", "loader-2"][at / 5 % 3]),
            _ => {}
        }
    }
    assert_eq!(got, expected);
    let all: BTreeSet<&str> = rescaled.iter().map(|it| it.source.as_str()).collect();
    assert_eq!(all, BTreeSet::from(["long", "middle", "short"]));
    assert!(
        rescaled.iter().all(|it| it.loaders.len() == 3),
        "{rescaled:?}"
    );
    assert_eq!(world.plane.loaders().len(), 3);
    world.end().await;

    let mut world = World::start(2, Processes::Own, |plan| {
        plan.loaders.sources = Some(vec![vec![0, 1, 2]; 3]);
        // Time enough for all in one.
        plan.loaders.threads = 64;
        plan.loaders.scaling = Some(scaling(false));
    })
    .await;
    let mut got = vec![];
    while got.len() < expected.len() {
        got.push(Got::of(&world.step(got.len() as u64).await.unwrap()));
        world.plane.tend().await.unwrap();
    }
    assert_eq!(got, expected);
    // Each source has one, and those that have nothing any more have ended.
    let left = world.plane.loaders().len();
    assert!(left < 3, "{left}");
    assert_eq!(world.counts().await.loaders.len(), left);
    world.end().await;
}

/// The loader that each cell of a step is with, as the planner says.
async fn holders(world: &World, step: u64) -> Option<BTreeMap<CellName, ActorId>> {
    let part = PartOf {
        step,
        first: 0,
        count: world.ranks,
    };
    let asked = world.plane.planner().ask(part).timeout(PATIENCE).await;
    match asked.unwrap().unwrap() {
        Dealt::Part(part) => {
            let holders = part.holders.into_iter();
            Some(holders.map(|(cell, it)| (cell, it.loader.id())).collect())
        }
        Dealt::Ended(_) => None,
    }
}

/// SEMANTICS 108.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_added_loader_has_what_nobody_was_asked_for_and_the_other_ends_when_it_has_given_all() {
    let expected = undisturbed().await;
    let mut world = World::start(2, Processes::Shared, |plan| {
        plan.loaders.sources = Some(vec![vec![0]; 3]);
        // Only the test changes them.
        plan.loaders.threads = 64;
        plan.loaders.scaling = Some(ScalingSpec {
            up_above: f64::INFINITY,
            down_below: 0.0,
            ..ScalingSpec::default()
        });
    })
    .await;
    let first = world.plane.loaders()[&0];
    let (mut got, mut cells) = (vec![], BTreeMap::new());
    for step in 0..3 {
        cells.extend(holders(&world, step).await.unwrap());
        got.push(Got::of(&world.step(step).await.unwrap()));
    }
    world.plane.redeal(vec![vec![1]; 3]).await.unwrap();
    let second = world.plane.loaders()[&1];
    let mut made = 0;
    while let Some(now) = holders(&world, got.len() as u64).await {
        let needed = now.values().any(|loader| *loader == first.id());
        cells.extend(now);
        if let Ok(counts) = first.ask(CountLoaded).await {
            made = counts.cells;
        }
        world.plane.tend().await.unwrap();
        let there = world.plane.loaders().contains_key(&0);
        assert!(there || !needed, "step {} needs it", got.len());
        got.push(Got::of(&world.step(got.len() as u64).await.unwrap()));
    }
    assert_eq!(got, expected);
    // It has given what it was asked for, before the other began; and is no more.
    let given = cells.values().filter(|loader| **loader == first.id());
    assert_eq!(given.count() as u64, made);
    let others = cells.values().filter(|loader| **loader == second.id());
    assert!(others.count() > 3, "{cells:?}");
    assert!(!world.plane.loaders().contains_key(&0));
    let gone = first.ask(CountLoaded).await;
    assert!(matches!(gone, Err(AskError::Dead(_))), "{gone:?}");
    world.end().await;
}

/// SEMANTICS 103.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plane_that_goes_back_delivers_the_same_and_not_behind_what_is_durable() {
    let world = World::start(2, Processes::Shared, |_| {}).await;
    let mut first = vec![];
    for step in 0..9 {
        first.push(Got::of(&world.step(step).await.unwrap()));
    }
    world.plane.commit(4).await.unwrap();
    for step in 4..9 {
        assert_eq!(
            Got::of(&world.step(step).await.unwrap()),
            first[step as usize]
        );
    }
    let failure = world.step(1).await.unwrap_err();
    assert!(failure.to_string().contains("durably done"), "{failure}");
    world.system.shutdown().await;
}

/// SEMANTICS 105.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_skipped_and_counted_or_ends_the_run_with_file_and_place() {
    for on_bad in [OnBad::Skip, OnBad::Fail] {
        let folder = tempfile::tempdir().unwrap();
        let offset = AtomicUsize::new(0);
        let world = World::over(folder, 2, Processes::Shared, |plan| {
            let path = plan.sources[1].path.clone();
            let text = fs::read_to_string(&path).unwrap();
            let mut lines: Vec<&str> = text.lines().collect();
            lines[40] = "{\"text\": \"cut";
            let before: usize = lines[..40].iter().map(|line| line.len() + 1).sum();
            offset.store(before, SeqCst);
            fs::write(&path, lines.join("\n") + "\n").unwrap();
            plan.sources[1].on_bad = on_bad;
        })
        .await;
        let place = format!("middle.jsonl, at {},", offset.load(SeqCst));
        let world = match world {
            Ok(world) => world,
            // Somebody may read that cell before all of the plane is there.
            Err(refused) if on_bad == OnBad::Fail => {
                assert!(refused.contains(&place), "{refused}");
                continue;
            }
            Err(refused) => panic!("{refused}"),
        };
        match on_bad {
            OnBad::Skip => {
                world.all().await;
                let counts = world.counts().await;
                let skipped: u64 = counts.loaders.iter().map(|loader| loader.skipped).sum();
                // Once in each epoch; a cell that is made twice is counted twice.
                assert!(skipped >= 2, "{skipped}");
                let told = counts
                    .loaders
                    .iter()
                    .flat_map(|loader| &loader.last_skipped);
                assert!(
                    told.clone().any(|it| it.contains(&place)),
                    "{:?}",
                    told.collect::<Vec<_>>()
                );
                world.end().await;
            }
            OnBad::Fail => {
                let failure = world.end_from(0).await;
                assert!(failure.contains(&place), "{failure}");
                world.system.shutdown().await;
            }
        }
    }
}

/// SEMANTICS 105.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_changes_under_its_reader_ends_the_run_and_is_named() {
    let world = World::start(2, Processes::Shared, |plan| {
        plan.loaders.bytes_max = 1;
    })
    .await;
    world.step(0).await.unwrap();
    let path = world._folder.path().join("middle.jsonl");
    fs::write(&path, "{\"text\": \"another\"}\n").unwrap();
    let failure = world.end_from(1).await;
    assert!(
        failure.contains("middle.jsonl") && failure.contains("changed since the source was opened"),
        "{failure}"
    );
    world.system.shutdown().await;
}

/// SEMANTICS 105.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_source_that_changed_ends_the_run_also_where_its_loaders_begin_anew() {
    let world = World::start(2, Processes::Own, |plan| {
        plan.loaders.bytes_max = 1;
    })
    .await;
    world.step(0).await.unwrap();
    // Those that have opened the file before read nothing of it any more.
    let loaders = ["loader-0", "loader-1"];
    for loader in loaders {
        world.halt(loader).await;
    }
    let path = world._folder.path().join("middle.jsonl");
    fs::write(&path, "{\"text\": \"another\"}\n").unwrap();
    for loader in loaders {
        world.kill(loader);
    }
    let failure = world.end_from(1).await;
    assert!(
        failure.contains("middle.jsonl has changed since the run began"),
        "{failure}"
    );
    world.system.shutdown().await;
}

/// Other bytes in the place of those that were there, which nothing but the batch tells of.
///
/// SEMANTICS 103.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_built_again_of_other_bytes_ends_the_run() {
    let world = World::start(2, Processes::Shared, |plan| {
        plan.loaders.bytes_max = 1;
    })
    .await;
    for step in 0..6 {
        world.step(step).await.unwrap();
    }
    let path = world._folder.path().join("middle.jsonl");
    let (text, modified) = (
        fs::read_to_string(&path).unwrap(),
        fs::metadata(&path).unwrap().modified().unwrap(),
    );
    // Whoever reads meanwhile has all of the one or all of the other.
    let other = path.with_extension("other");
    fs::write(&other, text.replace("middle", "muddle")).unwrap();
    let file = File::options().write(true).open(&other).unwrap();
    file.set_modified(modified).unwrap();
    fs::rename(&other, &path).unwrap();
    // Back to the first, whose cells nobody has kept.
    let failure = world.end_from(0).await;
    assert!(
        failure.contains("was built again and is not what it was"),
        "{failure}"
    );
    assert!(
        failure.contains("bucket") && failure.contains("of step"),
        "{failure}"
    );
    world.system.shutdown().await;
}
