//! The needs of an actor: devices, processor time, memory, and the company it keeps, which
//! `crate::actor::company` names.

use std::sync::LazyLock;
use std::time::Duration;

use odeon_placement::{Affinity, Arrange, Demand, Isolation, Level, Resources, milli};
use serde::{Deserialize, Serialize};

use crate::base::error::NeedsError;
use crate::base::id::{ActorId, ProcessId};

/// `n` GiB in bytes: `.device_memory(gib(40))`.
#[must_use]
pub const fn gib(n: u64) -> u64 {
    n << 30
}

/// The demands of an actor on the node that it runs on. An actor type declares them in
/// [`Actor::needs`](crate::Actor::needs); the methods of the same names on [`Spawn`](crate::Spawn)
/// add to that.
///
/// An actor that needs anything runs in a worker process. Actors of a job that see the same
/// devices share one, and so do those that see none; [`Spawn::isolated`](crate::Spawn::isolated)
/// gives one of its own.
///
/// ```
/// use odeon::{Needs, gib};
///
/// let needs = Needs::new().gpus(1).device_memory(gib(40)).cpus(2.0);
/// assert!(!needs.is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct Needs {
    /// Without job and holder, which are those of the actor.
    pub(crate) demand: Demand,
    pub(crate) company: Vec<Company>,
    pub(crate) patience: Option<Duration>,
    pub(crate) hang_after: Option<Duration>,
    /// The spares that it falls back on.
    pub(crate) pool: Option<PoolId>,
    /// The first quantity that is none.
    pub(crate) wrong: Option<NeedsError>,
}

/// The pool that an actor is placed from when it loses its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PoolId {
    pub(crate) node: ProcessId,
    pub(crate) number: u64,
}

/// A wish to be near an actor, or away from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Company {
    pub(crate) actor: ActorId,
    /// Its type, for people.
    pub(crate) name: String,
    pub(crate) level: Level,
    pub(crate) apart: bool,
    /// Set if it is nothing to wait for when that actor holds no lease at the moment.
    pub(crate) wish: bool,
}

impl Default for Needs {
    fn default() -> Self {
        Self::new()
    }
}

impl Needs {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            demand: Demand::new("", "", Resources::new()),
            company: vec![],
            patience: None,
            hang_after: None,
            pool: None,
            wrong: None,
        }
    }

    /// Returns true if it asks for nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        static NOTHING: LazyLock<Needs> = LazyLock::new(Needs::new);
        *self == *NOTHING
    }

    /// The part of it that refers to other actors of the job, in words, if anything does.
    pub(crate) const fn company_or_spares(&self) -> Option<&'static str> {
        if !self.company.is_empty() {
            Some("the company of another actor")
        } else if self.pool.is_some() {
            Some("spares")
        } else {
            None
        }
    }

    /// So many devices, alone.
    pub fn gpus(mut self, count: u32) -> Self {
        self.demand = self.demand.gpus(count);
        self
    }

    /// A part of one device's time, above 0 and below 1. Without [`device_memory`](Self::device_memory)
    /// it has the same part of its memory.
    pub fn gpu_share(mut self, share: f64) -> Self {
        match milli(share) {
            Ok(milli) => {
                let milli = u32::try_from(milli).unwrap_or(u32::MAX);
                self.demand = self.demand.gpu_milli(milli);
            }
            Err(error) => self.blame("gpu_share", error.to_string()),
        }
        self
    }

    /// One hardware slice (MIG) of this profile, such as `1g.10gb`.
    pub fn slice(mut self, profile: impl Into<String>) -> Self {
        self.demand = self.demand.slice(profile);
        self
    }

    /// Memory of each device, in bytes: see [`gib`].
    pub fn device_memory(mut self, bytes: u64) -> Self {
        self.demand = self.demand.device_memory(bytes);
        self
    }

    /// A device of this model will do, beside others that are named.
    pub fn device_model(mut self, model: impl Into<String>) -> Self {
        self.demand = self.demand.model(model);
        self
    }

    /// Shares its devices in turn with the other roles of the job that name the same set, rank by
    /// rank, and the process with them. Needs [`gpus`](Self::gpus) and
    /// [`device_memory`](Self::device_memory).
    pub fn device_set(mut self, name: impl Into<String>) -> Self {
        self.demand = self.demand.device_set(name);
        self
    }

    /// Processor time, in cores.
    pub fn cpus(mut self, cores: f64) -> Self {
        match milli(cores) {
            Ok(milli) => self.demand.bundle = self.demand.bundle.cpu_milli(milli),
            Err(error) => self.blame("cpus", error.to_string()),
        }
        self
    }

    /// Main memory, in bytes: see [`gib`].
    pub fn memory(mut self, bytes: u64) -> Self {
        if bytes == 0 {
            self.blame("memory", "0 is no quantity: leave it out");
        }
        self.demand.bundle = self.demand.bundle.memory_bytes(bytes);
        self
    }

    /// A quantity of the cluster's own, that nodes declare with
    /// [`SystemBuilder::resource`](crate::SystemBuilder::resource).
    pub fn resource(mut self, name: impl Into<String>, quantity: f64) -> Self {
        let name = name.into();
        match milli(quantity) {
            Ok(milli) => self.demand.bundle = self.demand.bundle.custom_milli(name, milli),
            Err(error) => self.blame(&name, error.to_string()),
        }
        self
    }

    /// On a node whose label has this value.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let affinity = Affinity::Label(key.into(), value.into());
        self.demand = self.demand.require(affinity);
        self
    }

    /// On a node whose label has this value, where there is a choice; wishes with more weight count
    /// more.
    pub fn prefer_label(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        weight: u32,
    ) -> Self {
        let affinity = Affinity::Label(key.into(), value.into());
        self.demand = self.demand.prefer(affinity, weight);
        self
    }

    /// On a node that has devices, where there is a choice: on processors that those who compute on
    /// these leave idle. Without it, whoever needs no device leaves such nodes to others.
    pub fn prefer_accelerated(mut self, weight: u32) -> Self {
        self.demand = self.demand.prefer(Affinity::Accelerated, weight);
        self
    }

    /// Not on this node.
    pub fn not_on_node(mut self, node: impl Into<String>) -> Self {
        self.demand = self.demand.require(Affinity::NotNode(node.into()));
        self
    }

    /// Sets the arrangement: how the members of a group lie to each other, or which node a single
    /// actor prefers.
    pub fn arrange(mut self, arrange: Arrange) -> Self {
        self.demand = self.demand.arrange(arrange);
        self
    }

    /// All members of a group inside one group of a topology level; for a single actor, its devices.
    pub fn within(mut self, level: Level) -> Self {
        self.demand = self.demand.within(level);
        self
    }

    /// Higher ones are placed first and may end lower ones to make room; others have 0.
    pub fn priority(mut self, priority: i32) -> Self {
        self.demand = self.demand.priority(priority);
        self
    }

    /// Bounds the time that it may wait for room; [`Limits::placement_timeout`](crate::Limits)
    /// unless told otherwise.
    pub fn wait_for_room(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// A handler that runs for longer than this hangs: its process is ended, its devices are given
    /// on when their memory is free, and its actors fail and are restarted as supervised: with
    /// [`FaultKind::Hang`](odeon_devices::fault::FaultKind) where the actor has devices, else as with any
    /// lost process. For operations on a device that may never end. Time that a handler waits for
    /// other actors counts too, how long `start` and `stop` take does not. It is looked every half
    /// second.
    pub fn hang_after(mut self, limit: Duration) -> Self {
        if limit.is_zero() {
            self.blame("hang_after", "0 would end every handler: leave it out");
        }
        self.hang_after = Some(limit);
        self
    }

    /// The demand that the solver gets, under these names. Company that it wishes for is not in it:
    /// that goes by actors that run.
    #[must_use]
    pub fn demand(&self, job: &str, holder: &str) -> Demand {
        Demand {
            job: job.to_owned(),
            holder: holder.to_owned(),
            ..self.demand.clone()
        }
    }

    pub(crate) fn isolated(&mut self) {
        self.demand.isolation = Isolation::Process;
    }

    pub(crate) fn on_node(&mut self, node: String) {
        self.demand.affinity.push(Affinity::Node(node));
    }

    /// For a member of a gang that is placed again alone: near its siblings or apart from them, as the
    /// gang was.
    pub(crate) fn among(&mut self, siblings: impl Iterator<Item = ActorId>, name: &str) {
        let (within, arrange) = (self.demand.within.take(), self.demand.arrange);
        let near = match arrange {
            Arrange::StrictPack => Some(within.map_or(Level::Node, |level| level.max(Level::Node))),
            _ => within,
        };
        let apart = arrange == Arrange::StrictSpread;
        for actor in siblings {
            let company = |level, apart| Company {
                actor,
                name: name.to_owned(),
                level,
                apart,
                wish: true,
            };
            self.company.extend(near.map(|level| company(level, false)));
            self.company
                .extend(apart.then(|| company(Level::Node, true)));
        }
        if arrange == Arrange::StrictPack || apart {
            self.demand.arrange = Arrange::Pack;
        }
    }

    fn blame(&mut self, what: &str, why: impl Into<String>) {
        self.wrong.get_or_insert_with(|| NeedsError {
            what: what.to_owned(),
            why: why.into(),
        });
    }
}
