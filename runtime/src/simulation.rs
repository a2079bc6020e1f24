//! Deterministic simulation: several nodes in one thread, virtual time, and a network with faults,
//! all driven by one seed.
//!
//! The engines are the real ones. Time jumps ahead when nothing can run; links go over streams
//! through a [`Network`] that delays their bytes, holds them back while a partition lasts, and breaks;
//! workers are engines of their own that can be killed. The same seed gives the same run, so a
//! failure replays.
//!
//! Known sources of chance and how they are closed: time (virtual), ids and jitter (seeded), task
//! order (one thread, first in first out), hash maps (hashed by id, ids are seeded). What user code
//! draws elsewhere stays its own.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use odeon_devices::fake::{self, Fake};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::Notify;

use crate::actor::task_context::{self, Apart};
use crate::base::clock::Clock;
use crate::base::error::SystemError;
use crate::base::limits::Limits;
use crate::base::random;
use crate::base::supervise::Supervision;
use crate::node::device_manager::FakeDevices;
use crate::node::program::WorkerMode;
use crate::system::{Job, System};

/// The size, network and bounds of a simulation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimulationSpec {
    /// Nodes, each linked to every other.
    pub nodes: usize,
    /// The shortest time that bytes take from node to node.
    pub delay_min: Duration,
    /// The longest.
    pub delay_max: Duration,
    /// The bounds of every engine.
    pub limits: Limits,
    /// The supervision at the top of each node's tree.
    pub supervision: Supervision,
    /// The actors that workers can host.
    pub job: Job,
    /// The devices of the nodes: those of its first node belong to the first one here, and so on.
    pub devices: Option<fake::Spec>,
    /// Whoever stands between the nodes and does more than carry.
    pub relays: Option<Relays>,
}

/// The bytes that go on, of those that were sent one way over a stream, which come in their order.
pub type Relay = Box<dyn FnMut(&[u8]) -> Vec<u8> + Send>;

/// A maker of relays, for each way of each stream that is opened: from one node to another.
#[derive(Clone)]
pub struct Relays(Arc<dyn Fn(usize, usize) -> Relay + Send + Sync>);

impl fmt::Debug for Relays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Relays")
    }
}

impl SimulationSpec {
    /// Two nodes, 0.1 to 5 ms apart.
    #[must_use]
    pub fn new(job: Job) -> Self {
        Self {
            nodes: 2,
            delay_min: Duration::from_micros(100),
            delay_max: Duration::from_millis(5),
            limits: Limits::default(),
            supervision: Supervision::default(),
            job,
            devices: None,
            relays: None,
        }
    }

    /// Relays between the nodes, which may damage what passes them or say something else: `make` is
    /// called for each way of each stream that is opened, first for that from the node that dials.
    #[must_use]
    pub fn relayed(mut self, make: impl Fn(usize, usize) -> Relay + Send + Sync + 'static) -> Self {
        self.relays = Some(Relays(Arc::new(make)));
        self
    }

    /// Fake devices on the nodes: `Spec::cluster(2, DeviceModel::default())` gives two nodes eight each.
    #[must_use]
    pub fn devices(mut self, devices: fake::Spec) -> Self {
        self.devices = Some(devices);
        self
    }

    /// Other bounds.
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Another number of nodes.
    #[must_use]
    pub const fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Another supervision at the top of each node's tree.
    #[must_use]
    pub const fn supervision(mut self, supervision: Supervision) -> Self {
        self.supervision = supervision;
        self
    }

    /// Other delays.
    #[must_use]
    pub const fn delays(mut self, min: Duration, max: Duration) -> Self {
        self.delay_min = min;
        self.delay_max = max;
        self
    }
}

/// A simulation that is about to run.
#[derive(Debug)]
#[must_use = "a simulation runs when `run` is called"]
pub struct Simulation {
    seed: u64,
    spec: SimulationSpec,
}

impl System {
    /// A simulation of several nodes that follows from `seed`.
    pub const fn simulated(seed: u64, spec: SimulationSpec) -> Simulation {
        Simulation { seed, spec }
    }
}

impl Simulation {
    /// Runs `story` in virtual time to its end and gives its result.
    ///
    /// # Panics
    /// When tokio cannot start, and with whatever `story` panics with.
    pub fn run<T, F: Future<Output = T>>(self, story: impl FnOnce(World) -> F) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime of one thread starts");
        let _seeded = random::seed_thread(self.seed);
        let _apart = Apart::enter();
        let outside = task_context::within(None, async {
            let _time = Clock::begin_virtual();
            let world = World::start(&self.spec)
                .await
                .expect("the devices are described rightly, and memory links do not fail to greet");
            let result = story(world.clone()).await;
            for node in &world.nodes {
                node.clone().shutdown().await;
            }
            result
        });
        runtime.block_on(outside)
    }
}

/// The nodes of a simulation and the network between them.
#[derive(Clone, Debug)]
pub struct World {
    /// The nodes.
    pub nodes: Vec<System>,
    /// The network between them.
    pub network: Network,
    /// Their devices, to let faults strike.
    pub devices: Fake,
}

impl World {
    async fn start(spec: &SimulationSpec) -> Result<Self, SystemError> {
        let mut nodes = vec![];
        let devices = spec.devices.clone().unwrap_or_default();
        let devices =
            Fake::new(devices).map_err(|error| SystemError::Refused(error.to_string()))?;
        let machines = devices.nodes();
        for index in 0..spec.nodes {
            let mut builder = System::builder()
                .job(spec.job)
                .node(format!("node-{index}"))
                .limits(spec.limits.clone())
                .supervision(spec.supervision)
                .workers(WorkerMode::InProcess);
            let machine = machines.get(index);
            if let Some(own) = machine.and_then(|name| FakeDevices::new(&devices, name)) {
                builder = builder.devices(own);
            }
            nodes.push(builder.start().await?);
        }
        let network = Network {
            shared: Arc::new(Shared {
                delays: (spec.delay_min, spec.delay_max),
                relays: spec.relays.clone(),
                cut: Mutex::default(),
                broken: Mutex::default(),
                parted: Mutex::default(),
                changed: Notify::new(),
            }),
        };
        let world = Self {
            nodes,
            network,
            devices,
        };
        for a in 0..spec.nodes {
            for b in a + 1..spec.nodes {
                world.join(a, b).await?;
            }
        }
        Ok(world)
    }

    /// Links two nodes (again). While their link lives, it only mends the network between them.
    ///
    /// # Errors
    /// The greeting did not come through.
    #[odeon_macros::boxed]
    pub async fn join(&self, a: usize, b: usize) -> Result<(), SystemError> {
        self.network.mend(a, b);
        let (network, far) = (self.network.clone(), self.nodes[b].clone());
        let dial = move || {
            let stream = network.dial(a, b, &far);
            async { stream }
        };
        self.nodes[a].admin().join_over(dial).await.map(drop)
    }
}

/// The network between simulated nodes.
#[derive(Clone, Debug)]
pub struct Network {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    delays: (Duration, Duration),
    relays: Option<Relays>,
    /// Pairs of nodes that do not reach each other.
    cut: Mutex<HashSet<(usize, usize)>>,
    /// The number of times that what was open between two nodes was broken.
    broken: Mutex<HashMap<(usize, usize), u64>>,
    /// Links whose bytes are held back.
    parted: Mutex<HashSet<(usize, usize)>>,
    changed: Notify,
}

impl Network {
    /// Breaks what is open between two nodes: what is on the way is lost. Their link goes on over
    /// another stream.
    pub fn snap(&self, a: usize, b: usize) {
        *self.shared.broken.lock().entry(pair(a, b)).or_default() += 1;
        self.shared.changed.notify_waiters();
    }

    /// Breaks what is open between two nodes, and lets nothing be opened. Their link is lost unless
    /// the network is mended within [`Limits::link_idle_timeout`].
    pub fn cut(&self, a: usize, b: usize) {
        self.shared.cut.lock().insert(pair(a, b));
        self.snap(a, b);
    }

    /// Lets streams be opened between two nodes again.
    pub fn mend(&self, a: usize, b: usize) {
        self.shared.cut.lock().remove(&pair(a, b));
    }

    /// Holds back everything between two nodes, in both directions.
    pub fn part(&self, a: usize, b: usize) {
        self.shared.parted.lock().insert(pair(a, b));
    }

    /// Lets what was held back go on.
    pub fn heal(&self, a: usize, b: usize) {
        self.shared.parted.lock().remove(&pair(a, b));
        self.shared.changed.notify_waiters();
    }

    /// Opens a stream from node `a` to node `b`.
    fn dial(&self, a: usize, b: usize, far: &System) -> std::io::Result<Halves> {
        let link = pair(a, b);
        if self.shared.cut.lock().contains(&link) {
            return Err(std::io::ErrorKind::HostUnreachable.into());
        }
        let (a_end, a_wire) = tokio::io::duplex(256 << 10);
        let (b_end, b_wire) = tokio::io::duplex(256 << 10);
        let (a_read, a_write) = tokio::io::split(a_wire);
        let (b_read, b_write) = tokio::io::split(b_wire);
        let before = self.times_broken(link);
        let relays = self.shared.relays.as_ref();
        let relay = |from, to| relays.map(|relays| (relays.0)(from, to));
        for (from, to, relay) in [
            (a_read, b_write, relay(a, b)),
            (b_read, a_write, relay(b, a)),
        ] {
            let carrying = self.clone().carry(link, before, from, to, relay);
            drop(tokio::spawn(carrying));
        }
        let far = far.clone();
        drop(tokio::spawn(async move {
            let (reader, writer) = tokio::io::split(b_end);
            if let Err(error) = far.admin().accept_stream(reader, writer).await {
                tracing::debug!(%error, "a stream was not taken in");
            }
        }));
        Ok(tokio::io::split(a_end))
    }

    fn times_broken(&self, link: (usize, usize)) -> u64 {
        self.shared
            .broken
            .lock()
            .get(&link)
            .copied()
            .unwrap_or_default()
    }

    /// Waits until what was open is broken.
    async fn wait_broken(&self, link: (usize, usize), before: u64) {
        loop {
            let changed = self.shared.changed.notified();
            if self.times_broken(link) > before {
                return;
            }
            changed.await;
        }
    }

    /// Waits until nothing holds a link's bytes back.
    async fn wait_open(&self, link: (usize, usize)) {
        loop {
            let changed = self.shared.changed.notified();
            if !self.shared.parted.lock().contains(&link) {
                return;
            }
            changed.await;
        }
    }

    /// Carries bytes one way, until the stream is broken or an end hangs up.
    async fn carry(
        self,
        link: (usize, usize),
        before: u64,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
        mut relay: Option<Relay>,
    ) {
        let carrying = async {
            let mut buffer = vec![0; 16 << 10];
            while let Ok(read @ 1..) = from.read(&mut buffer).await {
                let relayed = relay.as_mut().map(|relay| relay(&buffer[..read]));
                let (min, max) = self.shared.delays;
                Clock::sleep(min + max.saturating_sub(min).mul_f32(random::fraction())).await;
                self.wait_open(link).await;
                let bytes = relayed.as_deref().unwrap_or(&buffer[..read]);
                if to.write_all(bytes).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            biased;
            () = self.wait_broken(link, before) => {}
            () = carrying => {}
        }
        // An end may be gone already.
        let _ = to.shutdown().await;
    }
}

/// Both halves of a stream between nodes.
type Halves = (ReadHalf<DuplexStream>, WriteHalf<DuplexStream>);

const fn pair(a: usize, b: usize) -> (usize, usize) {
    if a < b { (a, b) } else { (b, a) }
}
