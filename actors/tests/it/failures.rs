//! Every role of a run is lost at every kind of moment: the run goes on to the same number of steps,
//! and what it trained is what it promises.
//!
//! The engines follow a script. The trainer's writes down each batch that it trains on, in the same
//! file in all of its lives, so what is checked is what was trained and not what anybody says.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::{
    ActorId, Clock, ClusterIdentity, Failure, FakeDevices, Limits, Needs, ProcessId, Supervision,
    System, SystemBuilder, WorkerMode,
};
use odeon_actors::engine::EngineSpec;
use odeon_actors::engine::scripted::{Entry, Hold, Script};
use odeon_actors::rl::chain::Forms;
use odeon_actors::rl::cost::{Cost, Harm};
use odeon_actors::rl::ledger::sampler::SamplerSpec;
use odeon_actors::rl::ledger::{Asker, Ledger, LedgerConfig};
use odeon_actors::rl::referee::ProgramSpec;
use odeon_actors::rl::relay::Latest;
use odeon_actors::rl::relays::Order;
use odeon_actors::rl::repack::RepackLimits;
use odeon_actors::rl::report::{Monitor, Report};
use odeon_actors::rl::rollout::{CountTokens, Swap};
use odeon_actors::rl::run::{Processes, Repack, RoleNeeds, Run, RunPlan};
use odeon_actors::rl::store::{Count, Counts, StoreArgs};
use odeon_actors::rl::trainer::TrainPlan;
use odeon_actors::trajectory::{Batch, Version};
use odeon_algorithms::objective::{Baseline, Gae, Lagrangian, Lambda};
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_devices::fake::{Fake, Spec};
use odeon_diagnosis::ladder::LadderPolicy;
use odeon_diagnosis::run::Watch;
use odeon_tests::again;
use odeon_topology::DeviceModel;
use rustix::process::{Pid, Signal, kill_process};

#[test]
fn worker_entry() {
    odeon_actors::rl::job().serve_if_worker();
}

const STEPS: u64 = 12;
const GROUPS: usize = 2;
const GROUP_SIZE: u32 = 4;
const STALENESS_MAX: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

/// The actor that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Rollout,
    MasterRelay,
    MiddleRelay,
    Trainer,
    Critic,
    /// Expects cost.
    CostCritic,
    Reward,
    /// Says what harm a reply does.
    Cost,
    /// Passes on what the trainer tells.
    Monitor,
    Store,
    Packer,
    /// The actor that keeps the book of the relays.
    Relays,
}

/// When.
#[derive(Clone, Copy, Debug)]
enum Moment {
    BeforeTheFirstBatch,
    /// While the trainer trains, at this step or later.
    InAStep(Version),
    /// When it writes down weights, these or later ones.
    AtAPublish(Version),
    /// And again as soon as it is back.
    TwiceInARow(Version),
}

const MOMENTS: [Moment; 4] = [
    Moment::BeforeTheFirstBatch,
    Moment::InAStep(3),
    Moment::AtAPublish(5),
    Moment::TwiceInARow(7),
];

fn script(folder: &Path) -> Script {
    Script {
        train: Duration::from_millis(8),
        token: Duration::from_millis(1),
        response: 3,
        slots: 4,
        stuck_after: None,
        pauses_at: None,
        // So that no run is over before all that is to be lost was lost.
        hold: Some(Hold {
            after: STEPS - 2,
            until: folder.join("go"),
        }),
        replies: vec![],
        journal: Some(folder.join("journal")),
    }
}

fn plan(folder: &Path) -> RunPlan {
    let engine = EngineSpec::Scripted(script(folder));
    RunPlan {
        store: StoreArgs {
            task: TaskSpec::Sums(SumsConfig::default()),
            seed: 7,
            tokenizer: Tokenizer::arithmetic(),
            ledger: LedgerConfig::new(GROUP_SIZE, GROUPS, STALENESS_MAX),
        },
        rollout_engine: engine.clone(),
        trainer_engine: engine,
        sharing: odeon_algorithms::train::Sharing::ALONE,
        recovery: LadderPolicy::default(),
        rollouts: 2,
        relays: 1,
        forms: Forms::Full,
        swap: Swap::Overlap,
        tell_every: Duration::from_millis(5),
        repack: None,
        processes: Processes::Own,
        needs: RoleNeeds::default(),
        reference: false,
        programs: ProgramSpec::default(),
        environment: None,
        learned: None,
        harm: None,
        train: TrainPlan {
            warmup: 0,
            steps: STEPS,
            value_steps: 0,
            checkpoint_every: 2,
            publish_every: 1,
            checkpoint: folder.join("checkpoint"),
            eval_problems: 1,
            eval_every: 0,
            baseline: Baseline::LeaveOneOut,
            overlong: None,
            price: None,
        },
        watch: Watch::new(STEPS),
    }
}

/// The plan of a run with this role.
fn plan_for(role: Role, folder: &Path) -> RunPlan {
    let mut plan = plan(folder);
    match role {
        Role::MasterRelay | Role::MiddleRelay | Role::Relays => plan.relays = 3,
        Role::Critic => plan.train.baseline = critic(),
        Role::Cost | Role::CostCritic => {
            plan.harm = Some(Harm::Length(HARMFUL));
            plan.train.baseline = critic();
            plan.train.price = Some(Lagrangian {
                multiplier: 0.5,
                limit: 0.5,
                rate: 0.1,
            });
        }
        Role::Packer => {
            plan.swap = Swap::Drain;
            plan.repack = Some(Repack {
                period: Duration::from_millis(10),
                limits: RepackLimits::new(4),
            });
        }
        Role::Rollout | Role::Trainer | Role::Reward | Role::Monitor | Role::Store => {}
    }
    plan
}

/// Tokens of a reply that costs 1.
const HARMFUL: usize = 8;

fn critic() -> Baseline {
    Baseline::Critic(Gae {
        gamma: 1.0,
        lambda: Lambda::Fixed(0.95),
        value_lambda: None,
    })
}

/// A node whose workers are this program.
fn node(supervision: Supervision) -> SystemBuilder {
    let worker = again::worker(module_path!());
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    System::builder()
        .limits(limits)
        .supervision(supervision)
        .workers(WorkerMode::Processes(worker))
}

/// Nodes of a cluster, with fake devices.
struct Nodes {
    cluster: ClusterIdentity,
    fake: Fake,
    /// The most restarts.
    budget: u32,
}

impl Nodes {
    fn new(budget: u32) -> Self {
        let model = DeviceModel {
            release_ms: 1,
            ..DeviceModel::default()
        };
        Self {
            cluster: ClusterIdentity::generate().unwrap(),
            fake: Fake::new(Spec::cluster(2, model)).unwrap(),
            budget,
        }
    }

    async fn start(&self, name: &str, machine: &str) -> System {
        let node = node(Supervision::one_for_one().budget(self.budget, PATIENCE))
            .job(odeon_actors::rl::job())
            .devices(FakeDevices::new(&self.fake, machine).unwrap());
        let anywhere = "127.0.0.1:0".parse().unwrap();
        let node = node.listen(anywhere, self.cluster.issue(name).unwrap());
        node.start().await.unwrap()
    }

    /// The one without a trainer.
    async fn other(&self) -> System {
        self.start("b", "node1").await
    }
}

struct World {
    system: System,
    /// Another node, where there are two.
    other: Option<System>,
    run: Run,
    folder: tempfile::TempDir,
    staleness_max: u64,
}

impl World {
    async fn start(plan: impl Fn(&Path) -> RunPlan) -> Self {
        Self::supervised(plan, Supervision::one_for_one().budget(40, PATIENCE)).await
    }

    async fn supervised(plan: impl Fn(&Path) -> RunPlan, supervision: Supervision) -> Self {
        let system = node(supervision).start().await.unwrap();
        Self::of(system, None, plan).await
    }

    /// Two nodes that have room for one rollout each, which therefore are apart.
    async fn on_two_nodes(nodes: &Nodes, plan: impl Fn(&Path) -> RunPlan) -> Self {
        let (system, other) = (nodes.start("a", "node0").await, nodes.other().await);
        system.join(other.address().unwrap()).await.unwrap();
        let plan = |folder: &Path| {
            let mut plan = plan(folder);
            plan.needs.rollout = Needs::new().gpus(8);
            plan
        };
        Self::of(system, Some(other), plan).await
    }

    async fn of(system: System, other: Option<System>, plan: impl Fn(&Path) -> RunPlan) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let plan = plan(folder.path());
        let staleness_max = plan.store.ledger.staleness_max;
        let run = Run::start(&system, plan).await.unwrap();
        Self {
            system,
            other,
            run,
            folder,
            staleness_max,
        }
    }

    fn journal(&self) -> Vec<Entry> {
        journal(&self.folder.path().join("journal"))
    }

    /// Waits for a fact.
    async fn until(&self, what: &str, fact: impl AsyncFn(&Self) -> bool) {
        let waiting = async {
            while !fact(self).await {
                Clock::sleep(Duration::from_millis(1)).await;
            }
        };
        let ended = Clock::timeout(PATIENCE, waiting).await;
        assert!(ended.is_some(), "never: {what}");
    }

    /// Steps that were trained.
    fn trained(&self) -> usize {
        trained(&self.journal()).len()
    }

    async fn comes(&self, moment: Moment) {
        let fact = async |world: &Self| {
            let journal = world.journal();
            match moment {
                Moment::BeforeTheFirstBatch => true,
                Moment::InAStep(at) | Moment::TwiceInARow(at) => match journal.last() {
                    Some(Entry::Trains(batch)) => batch.step >= at,
                    _ => false,
                },
                Moment::AtAPublish(at) => {
                    let published = |entry: &Entry| match entry {
                        Entry::Publishes(version) => *version >= at,
                        _ => false,
                    };
                    journal.iter().any(published)
                }
            }
        };
        self.until(&format!("{moment:?}"), fact).await;
    }

    async fn lose(&self, role: Role) {
        match role {
            Role::Rollout => self.kill("rollout-0").await,
            Role::MasterRelay => self.kill_relay(0).await,
            Role::MiddleRelay => self.kill_relay(1).await,
            Role::Trainer => self.kill("trainer").await,
            Role::Critic => self.kill("critic").await,
            Role::CostCritic => self.kill("cost-critic").await,
            Role::Reward => self.fail(self.run.reward.id()).await,
            Role::Cost => {
                let cost = self.system.lookup::<Cost>("cost").await;
                self.fail(cost.unwrap().id()).await;
            }
            Role::Monitor => {
                let monitor = self.system.lookup::<Monitor>("monitor").await;
                self.fail(monitor.unwrap().id()).await;
            }
            Role::Store => self.fail(self.run.store.id()).await,
            Role::Packer => self.fail(self.run.packer.unwrap().id()).await,
            Role::Relays => self.fail(self.run.chain.id()).await,
        }
    }

    fn process_of(&self, role: &str) -> Option<ProcessId> {
        let mut roles = self.run.roles();
        roles.find(|(known, ..)| known == role)?.2
    }

    /// Kills the process of a role, when it has one again.
    async fn kill(&self, role: &str) {
        let killed = async |world: &Self| {
            let process = world.process_of(role);
            process.is_some_and(|process| world.kill_worker(process))
        };
        self.until(role, killed).await;
    }

    fn kill_worker(&self, process: ProcessId) -> bool {
        let mut nodes = [Some(&self.system), self.other.as_ref()].into_iter();
        nodes.any(|node| node.is_some_and(|node| node.admin().kill_worker(process)))
    }

    /// Tells if a role is on the other node; `None` while it is nowhere.
    fn is_there(&self, role: &str) -> Option<bool> {
        let process = self.process_of(role)?;
        let hosts = |node: &System| node.admin().workers().iter().any(|(id, _)| *id == process);
        match (hosts(&self.system), self.other.as_ref().is_some_and(hosts)) {
            (false, false) => None,
            (_, there) => Some(there),
        }
    }

    /// Waits until each of two nodes has a rollout and its relay.
    async fn stands_on_both(&self) {
        let on_both = async |world: &Self| {
            let there = |nth: usize| {
                let relay = world.is_there(&format!("relay-{nth}"))?;
                let rollout = world.is_there(&format!("rollout-{nth}"))?;
                assert_eq!(relay, rollout, "a relay is where its rollouts are");
                Some(relay)
            };
            let (first, second) = (there(0), there(1));
            first.is_some() && second.is_some() && first != second
        };
        self.until("both nodes have one of each", on_both).await;
    }

    /// Waits until these weights, or later ones, are at all relays and rollouts.
    async fn is_everywhere(&self, version: Version) {
        let everywhere = async |world: &Self| {
            let mut all = true;
            for relay in &world.run.relays {
                let latest = relay.ask(Latest).await.ok().flatten();
                all &= latest.is_some_and(|it| it.edition.version() >= version);
            }
            for rollout in &world.run.rollouts {
                let counts = rollout.ask(CountTokens).await.ok();
                all &= counts.and_then(|it| it.version) >= Some(version);
            }
            all
        };
        let what = format!("version {version} is everywhere");
        self.until(&what, everywhere).await;
    }

    /// The one that stands there in the chain.
    async fn kill_relay(&self, place: usize) {
        let standing = async |world: &Self| {
            let order = world.run.chain.ask(Order).await.unwrap_or_default();
            let role = order.get(place).map(|id| format!("relay-{id}"));
            let process = role.and_then(|role| world.process_of(&role));
            process.is_some_and(|process| world.system.admin().kill_worker(process))
        };
        self.until("a relay stands there", standing).await;
    }

    /// Ends the life of an actor without a process of its own.
    async fn fail(&self, actor: ActorId) {
        let why = || Failure::error("a test wants it so");
        let failed = async |world: &Self| {
            let failed = world
                .system
                .admin()
                .fail_actor(actor, why(), PATIENCE)
                .await;
            failed.is_ok()
        };
        self.until("it is there to be lost", failed).await;
    }

    /// Waits for the end of the run.
    async fn ends(self) -> Ended {
        let Self {
            system,
            other,
            mut run,
            folder,
            staleness_max,
        } = self;
        let mut told = vec![];
        let ending = async {
            loop {
                match run.reports.recv().await.unwrap() {
                    Report::Step(step) => told.push(step.version),
                    Report::Finished(progress) => return progress.version,
                    _ => {}
                }
            }
        };
        let journal_at = folder.path().join("journal");
        std::fs::write(folder.path().join("go"), b"").unwrap();
        let ended = tokio::select! {
            ended = Clock::timeout(PATIENCE, ending) => ended,
            failure = system.failed() => panic!("the run failed: {failure}"),
        };
        let Some(ended) = ended else {
            let counts = run.store.ask(Count).await;
            let entries = journal(&journal_at);
            let last = entries.iter().rev().take(4).collect::<Vec<_>>();
            panic!("the run hangs: {counts:?}, {last:?}");
        };
        let counts = run.store.ask(Count).await.unwrap();
        system.shutdown().await;
        if let Some(other) = other {
            other.shutdown().await;
        }
        let entries = journal(&journal_at);
        let trained = trained(&entries);
        assert_eq!((trained.len() as u64, ended), (STEPS, STEPS));
        check(&trained, staleness_max);
        Ended {
            trained,
            entries,
            told,
            counts,
        }
    }
}

/// Results of a run.
struct Ended {
    /// Batches that the last weights were trained on.
    trained: Vec<Batch>,
    /// All that its trainer did.
    entries: Vec<Entry>,
    /// The steps that were told of.
    told: Vec<Version>,
    counts: Counts,
}

/// The entries that are written whole: the last may be under way.
fn journal(path: &PathBuf) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines = text.split_inclusive('\n').filter(|it| it.ends_with('\n'));
    let entries = lines.map(|line| serde_json::from_str(line.trim_end()));
    entries.collect::<Result<_, _>>().unwrap()
}

/// The batches that the last weights come from: a life that goes back to its checkpoint has lost what
/// was trained after it.
fn trained(journal: &[Entry]) -> Vec<Batch> {
    let mut trained: Vec<Batch> = vec![];
    for entry in journal {
        match entry {
            Entry::From(version) => trained.truncate(*version as usize),
            Entry::Trains(batch) => {
                assert_eq!(batch.step, trained.len() as u64 + 1);
                trained.push(batch.clone());
            }
            Entry::Publishes(version) => assert_eq!(*version, trained.len() as u64),
        }
    }
    trained
}

/// SEMANTICS 31, 32, 33.
fn check(trained: &[Batch], staleness_max: u64) {
    let mut seen = HashSet::new();
    for batch in trained {
        assert_eq!(batch.trajectories.len(), GROUPS * GROUP_SIZE as usize);
        for reply in &batch.trajectories {
            assert!(seen.insert(reply.id), "{:?} twice", reply.id);
            let stale = (batch.step - 1).checked_sub(reply.version);
            let stale = stale.unwrap_or_else(|| panic!("of weights to come: {reply:?}"));
            assert!(stale <= staleness_max, "step {}: {reply:?}", batch.step);
            let whole = vec![reply.version as u32; 3 + reply.id.sample as usize];
            assert_eq!(reply.response, whole, "of one version, and whole");
        }
    }
}

/// Each step, however often it was made, had the same batch.
fn check_repeated(journal: &[Entry]) {
    let mut batches: BTreeMap<u64, &Batch> = BTreeMap::new();
    for entry in journal {
        if let Entry::Trains(batch) = entry {
            let first = *batches.entry(batch.step).or_insert(batch);
            assert_eq!(
                first.trajectories, batch.trajectories,
                "step {}",
                batch.step
            );
        }
    }
}

/// A run in which a role is lost at each of the moments.
async fn survives(role: Role) -> Ended {
    let world = World::start(|folder| plan_for(role, folder)).await;
    for moment in MOMENTS {
        world.comes(moment).await;
        world.lose(role).await;
        if matches!(moment, Moment::TwiceInARow(_)) {
            world.lose(role).await;
        }
    }
    world.ends().await
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_rollouts() {
    let ended = survives(Role::Rollout).await;
    assert_eq!(ended.counts.lost, 0, "the book was there all the time");
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_master_relay() {
    survives(Role::MasterRelay).await;
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_a_relay_in_the_middle() {
    survives(Role::MiddleRelay).await;
}

/// SEMANTICS 34, 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_trainer() {
    let ended = survives(Role::Trainer).await;
    check_repeated(&ended.entries);
}

/// SEMANTICS 34, 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_critic() {
    let ended = survives(Role::Critic).await;
    check_repeated(&ended.entries);
}

/// SEMANTICS 34, 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_the_critic_of_its_cost() {
    let ended = survives(Role::CostCritic).await;
    check_repeated(&ended.entries);
}

/// SEMANTICS 33, 34, 38.
/// One saves after the other, and a trainer that goes back takes both along.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_both_of_its_critics() {
    let world = World::start(|folder| {
        let mut plan = plan_for(Role::CostCritic, folder);
        plan.train.checkpoint_every = 3;
        plan
    })
    .await;
    world.comes(Moment::InAStep(2)).await;
    world.lose(Role::CostCritic).await;
    world.comes(Moment::AtAPublish(5)).await;
    tokio::join!(world.lose(Role::Critic), world.lose(Role::CostCritic));
    world.comes(Moment::InAStep(6)).await;
    tokio::join!(world.lose(Role::CostCritic), world.lose(Role::Trainer));
    world.comes(Moment::InAStep(9)).await;
    world.lose(Role::Critic).await;
    let ended = world.ends().await;
    check_repeated(&ended.entries);
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_reward() {
    survives(Role::Reward).await;
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_who_says_what_harm_its_replies_do() {
    let ended = survives(Role::Cost).await;
    assert_eq!(ended.counts.lost, 0, "whoever holds a reply asks again");
    for reply in ended.trained.iter().flat_map(|batch| &batch.trajectories) {
        let cost = reply.response.len() as f32 / HARMFUL as f32;
        assert_eq!(reply.cost, cost, "{reply:?}");
    }
}

/// SEMANTICS 38.
/// Messages that are told to it while it is away meet its next life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_monitor_and_tells_of_each_step_once() {
    let ended = survives(Role::Monitor).await;
    assert!(ended.told.into_iter().eq(1..=STEPS));
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_store() {
    survives(Role::Store).await;
}

/// SEMANTICS 38, 78.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_packer() {
    survives(Role::Packer).await;
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_who_watches_its_relays() {
    survives(Role::Relays).await;
}

/// SEMANTICS 33, 38.
/// Batches that were handed out and are not durable are lost with the store. Then the trainer is lost,
/// in the same moment and later, and goes back to before them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_store_and_its_trainer() {
    let world = World::start(|folder| {
        let mut plan = plan(folder);
        plan.train.checkpoint_every = 4;
        plan
    })
    .await;
    world.comes(Moment::InAStep(3)).await;
    tokio::join!(world.lose(Role::Store), world.lose(Role::Trainer));
    // One after the other, with steps between them that no checkpoint has.
    world.comes(Moment::InAStep(6)).await;
    world.lose(Role::Store).await;
    world.comes(Moment::InAStep(7)).await;
    world.lose(Role::Trainer).await;
    world.comes(Moment::InAStep(10)).await;
    world.lose(Role::Trainer).await;
    world.lose(Role::Store).await;
    world.ends().await;
}

/// SEMANTICS 33, 38.
/// A critic has learnt what the store has forgotten, and goes back with the trainer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_store_and_its_critic() {
    let world = World::start(|folder| {
        let mut plan = plan_for(Role::Critic, folder);
        plan.train.checkpoint_every = 4;
        plan
    })
    .await;
    world.comes(Moment::InAStep(2)).await;
    world.lose(Role::Store).await;
    world.comes(Moment::InAStep(3)).await;
    world.lose(Role::Critic).await;
    world.comes(Moment::InAStep(7)).await;
    tokio::join!(world.lose(Role::Critic), world.lose(Role::Store));
    world.ends().await;
}

/// SEMANTICS 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_all_of_them_at_once() {
    let world = World::start(plan).await;
    world.comes(Moment::InAStep(4)).await;
    tokio::join!(
        world.lose(Role::Store),
        world.lose(Role::Trainer),
        world.lose(Role::Rollout),
        world.kill("rollout-1"),
        world.kill("relay"),
        world.lose(Role::Reward),
        world.lose(Role::Relays),
        world.lose(Role::Monitor),
    );
    world.ends().await;
}

/// SEMANTICS 38, 80.
/// Each node that has rollouts has a relay of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_on_two_nodes_survives_the_relays_and_rollouts_of_both() {
    let world = World::on_two_nodes(&Nodes::new(40), plan).await;
    assert_eq!(world.run.relays.len(), 2);
    world.stands_on_both().await;
    world.is_everywhere(2).await;
    world.kill("relay-1").await;
    world.is_everywhere(4).await;
    world.kill("rollout-1").await;
    world.is_everywhere(6).await;
    tokio::join!(world.kill("relay-0"), world.kill("rollout-1"));
    world.is_everywhere(8).await;
    tokio::join!(world.kill("relay-1"), world.kill("rollout-1"));
    // The trainer goes on to here by itself, and waits.
    world.is_everywhere(STEPS - 2).await;
    world.stands_on_both().await;
    world.ends().await;
}

/// SEMANTICS 38, 46, 80.
/// Relay and rollout of a node that is away wait for it, and are no losses anew meanwhile; nobody waits
/// for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_while_one_of_its_two_nodes_is_away() {
    let nodes = Nodes::new(6);
    let slow = |folder: &Path| {
        let mut script = script(folder);
        // Longer, all in all, than so many restarts of who does not wait would take.
        script.train = Duration::from_millis(80);
        let mut plan = plan(folder);
        plan.trainer_engine = EngineSpec::Scripted(script);
        plan
    };
    let mut world = World::on_two_nodes(&nodes, slow).await;
    world.is_everywhere(1).await;
    world.other.take().unwrap().shutdown().await;
    let one_is_away = async |world: &World| {
        let there = ["rollout-0", "rollout-1"].map(|role| world.process_of(role));
        there.iter().flatten().count() == 1
    };
    world.until("one is away", one_is_away).await;
    world.comes(Moment::InAStep(STEPS - 1)).await;
    assert!(one_is_away(&world).await, "and still is");
    let other = nodes.other().await;
    world.system.join(other.address().unwrap()).await.unwrap();
    world.other = Some(other);
    world.stands_on_both().await;
    world.is_everywhere(STEPS - 2).await;
    world.ends().await;
}

/// SEMANTICS 77, 38.
/// With no staleness, which samples make a batch follows from the prompts alone, also for a book that
/// begins in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronous_run_that_loses_its_store_trains_on_the_same_samples() {
    let synchronous = |folder: &Path| {
        let mut plan = plan(folder);
        plan.store.ledger.staleness_max = 0;
        plan
    };
    let undisturbed = World::start(synchronous).await;
    let undisturbed = undisturbed.ends().await;
    let world = World::start(synchronous).await;
    for moment in [
        Moment::InAStep(2),
        Moment::AtAPublish(4),
        Moment::InAStep(6),
    ] {
        world.comes(moment).await;
        world.lose(Role::Store).await;
    }
    let disturbed = world.ends().await;
    let replies = |ended: Ended| ended.trained.into_iter().map(|it| it.trajectories);
    assert!(replies(disturbed).eq(replies(undisturbed)));
}

/// SEMANTICS 38, 78.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_were_begun_go_on_when_the_store_is_lost() {
    let world = World::start(|folder| {
        let mut plan = plan(folder);
        // A second long: whoever began them anew would be seen.
        let mut script = script(folder);
        script.token = Duration::from_millis(5);
        script.replies = vec![vec![0; 200]; GROUP_SIZE as usize];
        plan.rollout_engine = EngineSpec::Scripted(script);
        plan.train.steps = 2;
        plan
    })
    .await;
    let told = |least: u64| {
        async move |world: &World| {
            let counts = world.run.store.ask(Count).await;
            counts.is_ok_and(|counts| counts.tokens_told >= least)
        }
    };
    world.until("all are in their middle", told(400)).await;
    world.lose(Role::Store).await;
    let adopted = async |world: &World| {
        let counts = world.run.store.ask(Count).await;
        counts.is_ok_and(|counts| counts.adopted == 8)
    };
    world.until("all replies are adopted", adopted).await;
    // And with what there was of them: another goes on with those of a rollout that is lost now.
    world.kill("rollout-0").await;
    let kept = async |world: &World| {
        let counts = world.run.store.ask(Count).await;
        counts.is_ok_and(|counts| counts.tokens_kept > 0)
    };
    world.until("another goes on with them", kept).await;
    world.system.shutdown().await;
}

/// SEMANTICS 38.
/// The trainer waits for no rollout that is away: its orders are given to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trainer_goes_on_while_a_rollout_is_lost_and_does_not_come_back() {
    let hour = Duration::from_hours(1);
    let never = Supervision::one_for_one().backoff(hour, hour);
    let world = World::supervised(plan, never).await;
    world.comes(Moment::InAStep(2)).await;
    world.kill("rollout-0").await;
    let gone = async |world: &World| world.process_of("rollout-0").is_none();
    world.until("it is gone", gone).await;
    world.comes(Moment::InAStep(STEPS - 1)).await;
    assert_eq!(world.process_of("rollout-0"), None, "it is still away");
    world.ends().await;
}

/// SEMANTICS 38.
/// One that stands still is not known to be lost, and what it works on waits for it; nothing else does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trainer_goes_on_while_a_rollout_stands_still() {
    let world = World::start(|folder| {
        let mut plan = plan(folder);
        plan.store.ledger.staleness_max = 1_000;
        plan
    })
    .await;
    world.comes(Moment::InAStep(2)).await;
    let process = world.process_of("rollout-0").unwrap();
    let workers = world.system.admin().workers();
    let (_, pid) = workers.iter().find(|(id, _)| *id == process).unwrap();
    let signal = |signal| {
        let pid = Pid::from_raw(*pid as i32).unwrap();
        kill_process(pid, signal).unwrap();
    };
    signal(Signal::STOP);
    let at = world.trained();
    let more = async |world: &World| world.trained() >= at + 5;
    world.until("five steps more", more).await;
    signal(Signal::CONT);
    world.ends().await;
}

/// SEMANTICS 32, 33, 38.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_keeps_its_promises_with_every_sampler() {
    for sampler in [
        SamplerSpec::Freshest,
        SamplerSpec::Oldest,
        SamplerSpec::Spread,
    ] {
        let world = World::start(|folder| {
            let mut plan = plan(folder);
            // More groups are complete than a batch takes.
            plan.store.ledger.staleness_max = 3;
            plan.store.ledger.sampler = sampler;
            plan
        })
        .await;
        world.comes(Moment::InAStep(4)).await;
        world.lose(Role::Rollout).await;
        world.comes(Moment::InAStep(6)).await;
        world.lose(Role::Store).await;
        world.ends().await;
    }
}

/// SEMANTICS 33.
/// A reply that was made with weights that the trainer has lost is nobody's: it would be waited for
/// for ever.
#[test]
fn a_reply_that_cannot_be_trained_on_is_made_again() {
    let mut ledger = Ledger::new(LedgerConfig::new(2, 1, 0));
    let order = |ledger: &mut Ledger, rollout| {
        let asker = Asker {
            rollout,
            begins_with: Some(0),
            holds: &[0],
            held: &BTreeMap::from([(0, 2)]),
            tokens_max: 64,
        };
        ledger.order(asker, 2)
    };
    let ids = order(&mut ledger, 1);
    assert_eq!(ids.len(), 2);
    ledger.refuse(2, ids[0]);
    assert_eq!(ledger.open(), 0, "it is not the other rollout's");
    ledger.refuse(1, ids[0]);
    assert_eq!(order(&mut ledger, 2), ids[..1]);
}

/// With the last weights that a step could take, what is open is left to newer ones: made with
/// these it would be too old again.
#[test]
fn what_is_open_is_begun_with_weights_that_a_step_still_takes() {
    let mut ledger = Ledger::new(LedgerConfig::new(2, 1, 0));
    let order = |ledger: &mut Ledger, version| {
        let asker = Asker {
            rollout: 1,
            begins_with: Some(version),
            holds: &[version],
            held: &BTreeMap::from([(version, 1)]),
            tokens_max: 64,
        };
        ledger.order(asker, 2)
    };
    let ids = order(&mut ledger, 0);
    ledger.trained(1);
    ledger.hand_in(1, &ids);
    assert_eq!(order(&mut ledger, 0), []);
    assert_eq!(order(&mut ledger, 1), ids);
}
