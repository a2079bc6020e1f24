//! Odeon: an actor runtime for training large models.
//!
//! An actor is a typed struct; a [`Ref`] to it works the same from any thread, process or node; a
//! supervision tree decides what happens when it fails; every message leaves a span.
//!
//! ```text
//!  driver process                      worker process (same binary)
//!  your main + actors                  your actors, isolated from crashes
//!        |                                   |
//!      Engine ---- frames, unix socket ---- Engine
//!        |
//!        +-------- frames, QUIC ----------- Engine of another node
//! ```
//!
//! The crate knows actors, references, supervision, links and processes. It does not know models,
//! losses or HTTP.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | `quic` | links between nodes over QUIC, their certificates (`security`), newcomers (`admission`) |
//! | `gpu` | the devices of this machine, through NVIDIA's management library |
//! | `actix` | actors on an arbiter's thread (`Host::Actix`), and actix actors behind references |
//!
//! All are off unless named. Without `quic` a node has worker processes, and links over streams that
//! its program makes ([`System::join_over`]).
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `actor`, `answer`, `request`, `spawn`, `system` | the calls of users: the traits of an actor, answers now or later, asks and tells, spawning, the way in |
//! | `group`, `group/*` | ranked actors on a mesh, called as one; `group/collective` gives each member its seat for collectives |
//! | `foreign`, `foreign/*` | actors written for kameo or actix, behind a reference |
//! | `registry`, `shape` | actor types with their methods; the shape of a type on the wire |
//! | `envelope` | a message on its way: typed inside (`Envelope`), without its type outside (`Mail`) |
//! | `cell` | the part of an actor that others reach: mailbox, orders, counters |
//! | `host`, `host/*` | the loop of every actor (`ActorLoop`), with its typed half behind `AnyActor`; the kameo host and the actix host around it; the watchdog over handlers that hang |
//! | `engine` | one process: finding and sending; `engine/inbound` frames that came in, `engine/requests` questions to services of others, `engine/names` names, `engine/credit` room at remote actors |
//! | `engine/row`, `engine/carry_out` | the row of an actor at home here: what becomes of it when something happens, and what follows (pure); that carried out |
//! | `engine/family`, `engine/placing`, `engine/lives` | families and verdicts over them; processes found for actors; lives that another process begins and ends |
//! | `supervise` | the verdict over a failure. Pure |
//! | `detached`, `engine/detached` | actors that outlive their job: the calls of users; the node, host and finder of one |
//! | `pending`, `remote` | asks that wait for an answer; the receiving end of a remote ask |
//! | `wire`, `wire/codec` | frames; the byte format of messages |
//! | `service`, `service/row`, `services` | questions between engines with their answers, and notices; a service as an engine has it; the list of all. Each is in a `protocol` (its types, for those who ask) and a `service` (the answers) of what it is about |
//! | `link`, `link/*` | frames over streams: one stream's queue (`pipe`), hello (`greeting`), going on over another connection (`resume`), sessions over streams that somebody else makes (`stream`) |
//! | `session` | the state of a link's streams apart from any connection. Pure |
//! | `quic`, `security` | connections between nodes, and their stand-in without the feature (`quic/absent`); certificates |
//! | `admission`, `admission/*` | newcomers: the protocol, the head's side (`desk`), the newcomer's, tokens and their book, limits on attempts by address (`gate`, pure) |
//! | `worker`, `worker/*`, `driver`, `program`, `manifest` | processes: start, reap, release; the driver of a job as its node sees it; programs that processes are started from; what a program's file says about it |
//! | `needs` | the needs of an actor |
//! | `hardware`, `hardware/*` | a node's devices (`devices`), the book of its leases (`leases`, pure), the queue for room (`queue`, pure), finding room (`schedule`), spares (`standby`) |
//! | `gang`, `gang/*` | ranks of other nodes: their bytes over the links |
//! | `blob`, `blob/*` | handles, leases, quotas, transfer between nodes |
//! | `clock`, `clock/offset`, `random` | the only sources of time and chance; the offset between the clocks of two processes, from the times in beats (pure) |
//! | `succession`, `engine/succession`, `link/succession` | another program in the place of this one: the calls of users; the state of an engine that is handed on; a link to the byte |
//! | `pulse` | a thread that keeps sockets and timers attended when a handler blocks a thread, and looks for handlers that hang |
//! | `current` | the actor, engine and span of the running task |
//! | `trace`, `trace/*` | spans and their contexts, what they are about (`label`), and which are kept, in rings that threads do not share (`tracer`) |
//! | `telemetry` | numbers and spans that programs record about their own work |
//! | `inspect`, `inspect/*` | views of a process: counters of an actor (`stats`), durations (`sketch`), events (`journal`), its machine (`machine`), and the part of all that which an onlooker has not seen (`watch`) |
//! | `limits`, `failure`, `error`, `id` | as their names say |
//! | `simulation` | several engines in one thread, with faults |

#![forbid(unsafe_code)]

// The macros write `::odeon`, also in this crate.
extern crate self as odeon;

mod actor;
mod base;
mod context;
pub mod group;
mod net;
mod node;
mod services;
pub mod simulation;
mod system;

pub use actor::actor_type::{ActorType, ActorTypes, Method};
pub use actor::cell::Phase;
pub use actor::foreign;
#[cfg(feature = "actix")]
pub use actor::foreign::Actix;
pub use actor::foreign::Kameo;
pub use actor::handler::{Actor, Context, Handler};
pub use actor::host::Host;
#[doc(hidden)]
pub use actor::manifest;
pub use actor::placing::GrantedDevice;
pub use actor::registry::Registered;
pub use actor::request::{Ask, Recipient, Stop, Tell, Telling};
pub use actor::spawn::{Spawn, Spawning};
pub use actor::telemetry;
pub use base::answer::{Answer, Later};
pub use base::clock::{Clock, Timestamp};
pub use base::error::{
    AskError, Effect, NameError, NeedsError, SpawnError, SystemError, TellError,
};
pub use base::failure::{Down, Failure, FailureKind, ProcessExit, ProgramEnd, Reason};
pub use base::id::{ActorId, Incarnation, ProcessId, Ref};
pub use base::limits::Limits;
pub use base::message::{Message, Wire};
pub use base::needs::{Needs, gib};
pub use base::shape;
pub use base::shape::Shape;
pub use base::supervise;
pub use base::supervise::{Orphans, Restart, Supervision};
pub use base::trace;
pub use group::{Group, Mesh, Rank};
#[cfg(feature = "quic")]
pub use net::admission;
#[cfg(feature = "quic")]
pub use net::admission::{Admission, JoinError, JoinToken, Tokens};
#[cfg(feature = "quic")]
pub use net::security;
#[cfg(feature = "quic")]
pub use net::security::{ClusterIdentity, NodeIdentity};
pub use net::wire::{FrameError, codec};
pub use node::blob::{Blob, BlobError, BlobStats, BlobView, BlobWriter, Blobs};
pub use node::detached::Detached;
pub use node::detached::protocol::{DetachError, DetachedActor};
pub use node::driver::Driver;
pub use node::hardware::{Devices, FakeDevices, Standby, Waiting};
pub use node::inspect;
pub use node::program::{Output, Programs, WorkerCommand, WorkerMode};
pub use node::succession;
pub use system::{Job, System, SystemBuilder};

/// The version of what processes of a cluster say to each other. Those of different versions refuse
/// each other.
pub const WIRE_VERSION: u32 = net::wire::VERSION;

pub use odeon_collective as collective;
/// ```
/// use odeon::Shape;
///
/// #[derive(Shape)]
/// struct Step {
///     loss: f32,
///     tokens: Vec<u32>,
/// }
///
/// mod next_version {
///     #[derive(odeon::Shape)]
///     pub struct Step {
///         loss: f64,
///         tokens: Vec<u32>,
///     }
/// }
///
/// assert_ne!(Step::SHAPE, next_version::Step::SHAPE);
/// ```
pub use odeon_macros::Shape;
/// ```
/// use odeon::{Context, Failure, Ref, System};
///
/// struct Counter {
///     sum: u64,
/// }
///
/// #[odeon::actor(name = "demo.Counter")]
/// impl Counter {
///     async fn start(first: u64) -> Result<Self, Failure> {
///         Ok(Self { sum: first })
///     }
///
///     /// Adds to the sum and answers it.
///     #[handler]
///     pub async fn add(&mut self, n: u64) -> u64 {
///         self.sum += n;
///         self.sum
///     }
///
///     #[handler]
///     fn whoami(&self, cx: &mut Context<Self>) -> Ref<Self> {
///         cx.me()
///     }
/// }
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let system = System::local().await?;
/// let counter = system.spawn::<Counter>(40).await?;
/// assert_eq!(counter.ask(Add { n: 2 }).await?, 42);
/// assert_eq!(counter.ask(Whoami).await?, counter);
/// system.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use odeon_macros::actor;
pub use odeon_macros::boxed;
/// ```
/// use odeon::Message;
///
/// /// Adds to the sum.
/// #[odeon::message(reply = u64)]
/// struct Add {
///     n: u64,
/// }
///
/// #[odeon::message(name = "counter.reset")]
/// #[derive(Debug, Clone)]
/// struct Reset;
///
/// assert_eq!(Add::NAME, "Add");
/// assert_eq!(Reset::NAME, "counter.reset");
/// ```
pub use odeon_macros::message;

#[cfg(feature = "actix")]
pub use actix;
pub use kameo;
#[doc(hidden)]
pub use serde;
