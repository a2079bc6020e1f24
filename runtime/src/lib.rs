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
//! # To begin with
//!
//! The guide leads from an empty folder to actors on several nodes: `docs/guide` in the tree that this
//! crate lies in. Its programs begin with `use odeon::prelude::*`, which has all but the last of these:
//!
//! | name | for |
//! | --- | --- |
//! | [`job!`] | listing the actors of a program; `job![..].run(..)` in `main` starts a [`System`] |
//! | [`macro@actor`] | writing an actor: a struct, one `impl` block, and a message for each `#[handler]` |
//! | [`System`] | spawning actors, finding them by name, ending all of them in order |
//! | [`Ref`] | asking, telling, stopping and watching an actor, wherever it is |
//! | [`Context`] | acting from inside of a handler: children, timers, tasks, the actor's own reference |
//! | [`Supervision`], [`Restart`] | saying what begins anew after a failure, and how often |
//! | [`Needs`] | saying which devices, processors, memory and nodes an actor needs |
//! | [`Group`], [`Mesh`], [`Rank`] | calling many actors as one |
//! | [`Blob`] | handing on bulk bytes that nobody copies |
//! | [`ReplyStream`], [`Later`] | answering many times, or later |
//! | [`Clock`] | taking the time, which a simulation drives |
//! | [`macro@test`], [`simulation`] | testing actors with their processes, and in virtual time |
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
//! its program makes ([`Admin::join_over`]).
//!
//! # Files
//!
//! Four floors lie below the calls of users; none names one above it.
//!
//! | floor | holds |
//! | --- | --- |
//! | `base` | vocabulary: ids, failures, limits, clocks, shapes, spans, verdicts |
//! | `net` | transport: frames, links, sessions, QUIC, newcomers, and questions of engines as bytes |
//! | `actor` | actors: traits, mailboxes, loops, the engine of a process, its rows and its router, names, asks and tells |
//! | `node` | what a node has beside actors: worker processes, devices, blobs, gangs, views, its passage to another program |
//!
//! | file | holds |
//! | --- | --- |
//! | `base`, `net`, `actor`, `node` | the four floors: the modules of each |
//! | `system`, `system/admin`, `system/network`, `system/signals`, `context`, `group`, `group/*` | the calls of users: the way in; its administration; a system among other nodes; signals that ask a program to end; the acts of a running actor; ranked actors on a mesh, called as one (`group/collective`: each member's seat for collectives) |
//! | `prelude` | the names that a program of actors uses |
//! | `services` | the list of services that engines have for each other, and the components of an engine |
//! | `simulation` | several engines in one thread, with faults |
//! | `testing` | a test of one's own actors, with worker processes |
//! | `base/clock`, `base/clock/offset`, `base/random` | the only sources of time and chance; the offset between the clocks of two processes, from the times in beats (pure) |
//! | `base/message`, `base/shape`, `base/answer` | values that travel, their shape on the wire; answers now or later |
//! | `base/supervise`, `base/needs` | the verdict over a failure (pure); the needs of an actor |
//! | `base/trace`, `base/trace/*` | spans and their contexts, what they are about (`label`), and which are kept, in rings that threads do not share (`tracer`) |
//! | `base/limits`, `base/failure`, `base/panic_place`, `base/error`, `base/id`, `base/id_map`, `base/journal`, `base/recent`, `base/sketch` | as their names say; events; the last things of a kind; durations |
//! | `net/wire`, `net/wire/codec`, `net/wire/draw` | frames; the byte format of messages; frames from a seed, for tests |
//! | `net/service` | questions between engines with their answers, and notices. Each is in a `protocol` (its types, for those who ask) and a `service` (the answers) of what it is about |
//! | `net/link`, `net/link/*` | frames over streams: who owns them (`owner`), one stream's queue (`pipe`), hello (`greeting`), going on over another connection (`resume`), the ends of a unix socket (`socket`), sessions over streams that somebody else makes (`stream`), passage to another program (`handoff`) |
//! | `net/session` | the state of a link's streams apart from any connection. Pure |
//! | `net/quic`, `net/quic/*`, `net/security` | connections between nodes: their sockets (`endpoint`), streams (`stream`) and ends (`end`), and their stand-in without the feature (`absent`); certificates |
//! | `net/admission`, `net/admission/*` | newcomers: the protocol, the head's side (`server`), the newcomer's, tokens and their book, limits on attempts by address (`gate`, pure) |
//! | `actor/handler`, `actor/request`, `actor/request/*`, `actor/spawn`, `actor/spawn/protocol`, `actor/company`, `actor/names` | the traits of an actor and its context; asks, tells and stops, and references that know a message alone; spawning, also in another process; near others or apart from them; names |
//! | `actor/foreign`, `actor/foreign/*` | actors written for kameo or actix, behind a reference |
//! | `actor/registry`, `actor/actor_type`, `actor/manifest` | actor types with their methods, typed and as tables; what a program's file says about them |
//! | `actor/check` | the checks that macros write, so that a mistake is one error at its place |
//! | `actor/mail`, `actor/envelope` | a message on its way, without its type (`Mail`) and with it (`Envelope`) |
//! | `actor/cell`, `actor/cell/mailbox`, `actor/stats` | the part of an actor that others reach: orders, mailbox, counters |
//! | `actor/host`, `actor/host/*` | the loop of every actor (`ActorLoop`), with its typed half behind `AnyActor`; the kameo host and the actix host around it; the watchdogs over handlers that hang |
//! | `actor/user_code`, `actor/tasks`, `actor/timers`, `actor/act` | the code of users while it runs; work of one life beside its handlers, its timers, and the calls that they make |
//! | `actor/engine`, `actor/engine/component`, `actor/engine/owner` | one process: its links, ways, cells and obituaries; what the floors above add; what links need of it |
//! | `actor/engine/router`, `actor/engine/routing`, `actor/engine/ways` | where a call goes next (pure); calls on their way; ways to processes, as neighbours tell of them |
//! | `actor/engine/row`, `actor/engine/members`, `actor/engine/carry_out` | the row of an actor at home here: what becomes of it when something happens, and what follows (pure); rows with those who wait; that carried out |
//! | `actor/engine/supervisor`, `actor/engine/place`, `actor/engine/lives`, `actor/engine/lives/service` | families and verdicts over them; processes found for actors; lives that another process begins and ends |
//! | `actor/engine/inbound`, `actor/engine/services`, `actor/engine/requests`, `actor/engine/serving`, `actor/engine/credit` | frames that came in; questions to services and the answers to theirs, those that wait, those under way; room at remote actors |
//! | `actor/service_row`, `actor/placing` | a service as an engine has it; the questions that place an actor in another process |
//! | `actor/replies`, `actor/replies/*` | streams of replies: both ends in one process, the reading end in another (`remote`), what a process writes for others (`shelf`) |
//! | `actor/console`, `actor/panic_hook` | lines on standard error for a program without a log; panics of actors, which are told there |
//! | `actor/pending`, `actor/engine/expiry`, `actor/engine/exits`, `actor/remote`, `actor/engine/crash`, `actor/waits`, `actor/waits/*` | asks that wait for an answer; those whose time is over; the last ends of other processes; the receiving end of a remote ask; the end of an engine inside another's process; waits of actors for each other, circles in them, and how processes tell of theirs |
//! | `actor/task_context`, `actor/telemetry`, `actor/io_watchdog` | the actor, engine and span of the running task; numbers and spans that programs record; a thread that keeps sockets attended when a handler blocks one |
//! | `actor/blocked`, `actor/blocked/*` | threads that code of actors blocks, which a process tells its node |
//! | `node/worker`, `node/worker/*`, `node/driver`, `node/program`, `node/printed_lines` | processes: start, reap, release; the driver of a job as its node sees it; programs that processes are started from; the lines that they print |
//! | `node/program_stack` | stacks of programs that are none of Odeon |
//! | `node/device_manager`, `node/device_manager/*` | a node's devices (`devices`), the book of its leases (`leases`, pure), the queue for room (`queue`, pure), what of a node whole jobs have reserved (`reservations`, pure), finding room (`schedule`), spares (`standby`) |
//! | `node/flows`, `node/flows/*` | records of collectives of its processes, read for those who look, and looks at the ranks of a job from whoever supervises them |
//! | `node/gang`, `node/gang/*` | ranks of other nodes: their bytes over the links |
//! | `node/blob`, `node/blob/*` | handles, leases, quotas, transfer between nodes |
//! | `node/detached`, `node/detached/*` | actors that outlive their job: the calls of users; the node, host and finder of one |
//! | `node/upgrade`, `node/handoff` | another program in the place of this one: the calls of users; the state of an engine that is handed on |
//! | `node/inspect`, `node/inspect/*` | views of a process: its actors and machine (`machine`), what the kernel counts of that (`counters`), the table of metrics (`metric`), and the part of all that which a subscriber has not seen (`watch`) |

#![forbid(unsafe_code)]

// The macros write `::odeon`, also in this crate.
extern crate self as odeon;

mod actor;
mod base;
mod context;
pub mod group;
mod net;
mod node;
pub mod prelude;
mod services;
pub mod simulation;
mod system;
#[doc(hidden)]
pub mod testing;

pub use actor::actor_type::{ActorType, ActorTypes, Method};
pub use actor::blocked::block_in_place;
pub use actor::cell::Phase;
#[doc(hidden)]
pub use actor::check;
pub use actor::foreign;
#[cfg(feature = "actix")]
pub use actor::foreign::Actix;
pub use actor::foreign::Kameo;
pub use actor::handler::{Actor, ActorArgs, Context, Handler};
pub use actor::host::Host;
#[doc(hidden)]
pub use actor::manifest;
pub use actor::placing::GrantedDevice;
pub use actor::registry::Registered;
pub use actor::replies::{NoReader, ReplySender, ReplyStream};
pub use actor::request::{Ask, HandledBy, Recipient, Stop, Tell, Telling};
pub use actor::spawn::{Spawn, Spawning};
pub use actor::tasks::ActorTask;
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
pub use group::Group;
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
pub use node::device_manager::{Devices, FakeDevices, JobReservation, Standby, Waiting};
pub use node::driver::Driver;
pub use node::flows::{NodeRanks, RankWatch};
pub use node::inspect;
pub use node::printed_lines::{PrintedLine, PrintedLines};
pub use node::program::{Output, Programs, WorkerCommand, WorkerMode};
pub use node::program_stack::{StackError, StackFrames, program_stack};
pub use node::upgrade;
pub use odeon_mesh::{At, Coordinate, Dim, Mesh, MeshError, Rank, at, mesh};
pub use system::{Admin, Job, System, SystemBuilder};

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
pub use odeon_macros::handler;
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
/// ```
/// use odeon::prelude::*;
///
/// #[odeon::test(actors(Counter))]
/// async fn counts_in_another_process(system: System) -> odeon::Result<()> {
///     let counter = system.spawn::<Counter>(40).isolated().await?;
///     assert_eq!(counter.ask(Add { n: 2 }).await?, 42);
///     Ok(())
/// }
///
/// struct Counter(u64);
///
/// #[odeon::actor(name = "demo.Counter")]
/// impl Counter {
///     fn start(first: u64) -> Self {
///         Self(first)
///     }
///
///     #[handler]
///     fn add(&mut self, n: u64) -> u64 {
///         self.0 += n;
///         self.0
///     }
/// }
/// ```
pub use odeon_macros::test;
/// ```
/// use odeon::prelude::*;
///
/// #[odeon::wire]
/// #[derive(Debug, Clone)]
/// struct Step {
///     loss: f32,
///     taken_at: std::time::SystemTime,
/// }
///
/// struct Log(Vec<Step>);
///
/// #[odeon::actor(name = "demo.Log")]
/// impl Log {
///     fn start(_: ()) -> Self {
///         Self(vec![])
///     }
///
///     /// The steps so far; the error of a file travels as a [`Failure`](crate::Failure).
///     #[handler]
///     fn add(&mut self, step: Step) -> odeon::Result<usize> {
///         if step.loss.is_nan() {
///             return Err("a loss is a number".into());
///         }
///         self.0.push(step);
///         Ok(self.0.len())
///     }
/// }
/// ```
pub use odeon_macros::wire;

/// The outcome of work whose error may be any: `?` takes it from errors of the standard library, of
/// `anyhow` and of one's own, and from a text. A handler that returns it is answered as
/// `Result<T, Failure>`.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[cfg(feature = "actix")]
pub use actix;
pub use kameo;
#[doc(hidden)]
pub use serde;
