//! Where things go: the pure decision behind every placement in the cluster.
//!
//! ```text
//!  View (nodes, devices, leases, workers, quotas) ─┐
//!                                                  ├─ solve ─> Plan (leases: node, devices, process)
//!  Demands (bundle x gang, devices, wishes) ───────┘      └──> Refusal (per node: what is in the way, whose)
//! ```
//!
//! [`solve`] has no clock, no input and no randomness: the same view and demands give the same
//! answer on any machine. It is exact for what a [`Demand`] can say: it refuses only when no
//! placement exists, and a gang is placed whole or not at all. [`preempt`] says whom to move out of
//! the way of a higher priority, [`what_if`] what a change of the cluster would do, [`fragmentation`]
//! and [`defragment`] how much room is lost between leases. [`mapping`] decides before a run which
//! models share which devices, and how they are spread. Choosing *when* to ask, queueing and granting
//! belong to the scheduler; this crate does not know actors or the network.
//!
//! # Example
//!
//! ```
//! use odeon_placement::{Demand, Node, Resources, View, solve};
//!
//! let node = |name| Node::new(name, Resources::new().cpu_milli(8_000)).gpus(2, "H200", 141 << 30);
//! let mut view = View::new([node("a"), node("b")]);
//! let critic = Demand::new("job-1", "critic", Resources::new()).gpus(1).on_node("a");
//! view.grant(&solve(&view, &[critic])?);
//!
//! let trainer = Demand::new("job-1", "trainer", Resources::new()).gpus(1);
//! let plan = solve(&view, &[trainer.clone().gang(3)])?;
//! let nodes: Vec<&str> = plan.leases.iter().map(|lease| lease.node.as_str()).collect();
//! assert_eq!(nodes, ["a", "b", "b"]);
//!
//! let refusal = solve(&view, &[trainer.on_node("a").gang(2)]).unwrap_err();
//! assert_eq!(
//!     refusal.to_string(),
//!     "no place for trainer (2 x 1 gpu, 1 would fit): \
//!      a takes 1, then has 0 of 2 gpu free (critic holds 1)"
//! );
//! # Ok::<(), odeon_placement::Refusal>(())
//! ```
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `resources`, `device`, `demand` | quantities; devices as individuals; what is asked for, and what cannot be meant |
//! | `talk` | which bundles of a gang talk to each other, and how much |
//! | `view`, `view/node` | the cluster at one moment, with what is free kept beside what is held |
//! | `solve`, `solve/*` | a demand's places: `room` counts what fits on each node and says what stops the next bundle, `arrange` chooses nodes, `near` which bundle goes where, `lay` devices and processes, `device_set` roles that take turns |
//! | `refusal` | why not, in types and in words |
//! | `preempt`, `what_if`, `fragmentation` | whom to move, the effect of a change, how much room is lost |
//! | `standby` | how many spares are enough |
//! | `mapping`, `mapping/*` | which models share which devices, priced by cost models |
//! | `described` | the view of a cluster that a file describes, and the links between its devices |

#![forbid(unsafe_code)]

mod demand;
mod described;
mod device;
mod fragmentation;
pub mod mapping;
mod preempt;
mod refusal;
mod resources;
mod solve;
mod standby;
mod talk;
mod view;
mod what_if;

pub use demand::{Affinity, Arrange, Demand, DemandError, DeviceAsk, Isolation, Share};
pub use device::{Device, Health};
pub use fragmentation::{Defragmentation, Fit, Fragmentation, defragment, fragmentation};
pub use odeon_topology::{Level, QuantityError, milli};
pub use preempt::{Preemption, preempt};
pub use refusal::{Cause, NodeRefusal, Reason, Refusal};
pub use resources::{Resource, Resources};
pub use solve::{DeviceGrant, Lease, Plan, Process, solve};
pub use standby::{SparesError, spares};
pub use talk::{Talk, TalkEnd, TalkOrder};
pub use view::{Liveness, Node, Quota, View, Worker};
pub use what_if::{Change, Outlook, UnknownTarget, WaitingDemand, WhatIf, what_if};
