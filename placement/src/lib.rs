//! Where things go: the pure decision behind every placement in the cluster.
//!
//! ```text
//!  View (nodes, leases, workers) ─┐
//!                                 ├─ solve ─> Plan (leases: node and process of each bundle)
//!  Demand (bundle x gang, wishes)─┘      └──> Refusal (per node: the first thing in the way, whose)
//! ```
//!
//! [`solve`] has no clock, no input and no randomness: the same view and demand give the same
//! answer on any machine. It is exact for what a [`Demand`] can say: it refuses only when no
//! placement exists, and a gang is placed whole or not at all. Choosing *when* to ask, queueing and
//! granting belong to the scheduler; this crate does not know actors or the network.
//! [`mapping`] decides before a run which models share which devices, and how they are spread.
//!
//! # Example
//!
//! ```
//! use odeon_placement::{Demand, Node, Resources, View, solve};
//!
//! let node = Resources::new().cpu_milli(8_000).gpus(2);
//! let view = View::new([
//!     Node::new("a", node.clone()).held("critic", Resources::new().gpus(1)),
//!     Node::new("b", node),
//! ]);
//! let trainer = Demand::new("job-1", "trainer", Resources::new().gpus(1));
//!
//! let plan = solve(&view, &trainer.clone().gang(3))?;
//! let nodes: Vec<&str> = plan.leases.iter().map(|lease| lease.node.as_str()).collect();
//! assert_eq!(nodes, ["b", "b", "a"]);
//!
//! let refusal = solve(&view, &trainer.on_node("a").gang(2)).unwrap_err();
//! assert_eq!(
//!     refusal.to_string(),
//!     "no place for trainer (2 x 1 gpu, 1 would fit): \
//!      a takes 1, then has 0 of 2 gpu free (critic holds 1)"
//! );
//! # Ok::<(), odeon_placement::Refusal>(())
//! ```

#![forbid(unsafe_code)]

mod demand;
pub mod mapping;
mod refusal;
mod resources;
mod solve;
mod view;

pub use demand::{Affinity, Arrange, Demand, Isolation};
pub use refusal::{NodeRefusal, Reason, Refusal};
pub use resources::{Resource, Resources};
pub use solve::{Lease, Plan, Process, solve};
pub use view::{Held, Liveness, Node, View, Worker};
