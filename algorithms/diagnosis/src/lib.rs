//! Diagnosis: from observations to findings, and from these to actions. Pure.
//!
//! An [`Observation`] is a look at something: at the actors of a process, the devices of a node, the
//! nodes of a cluster, the calls of a rank, the steps of a run. It says who can be to blame, how time is
//! counted, and of which kind the causes are. A [`Detector`] is one rule over such looks: it is given each
//! in the order of their time, remembers what it needs, and answers a [`Finding`]: who, since when, and the
//! [`FindingCause`], which holds the evidence and says the [`Action`]. No detector reads a clock or draws a
//! number, so that live systems, recordings and simulated clusters are judged by the same rules. Whoever
//! looks carries out the action.
//!
//! Detectors of what is seen of a whole cluster are in `odeon_observe::detectors`, beside what they look at.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `finding` | observations, detectors, findings, causes and actions |
//! | `handler` | handlers that hang |
//! | `node` | nodes that are silent |
//! | `device` | faults that befell devices between two looks |
//! | `collective`, `collective/*` | calls of ranks that do not end: the `log` of a rank, and the verdict |
//! | `flight_recorder`, `flight_recorder/*` | dumps of NCCL's flight recorder from any program: the `dump` of a rank, `pickle`s read without running them, and collectives that are `unfinished` |
//! | `gang`, `gang/*` | programs on many ranks, seen from outside: which rank failed first (`first_failure`), which stand still, are slow or print losses that are none (`progress`, by lines that `output` reads), and which stand elsewhere than most (`stacks`) |
//! | `flows`, `flows/*` | ranks that the others of a job wait for in collectives, by how far their calls have got: `trigger`, `stall`, `pace` |
//! | `ladder`, `ladder/*` | what is done about a rank that is to blame, one rung after the other, and what was tried; the `test` of nodes and the way back to another `version` before a person is asked; a person's `orders` |
//! | `machines`, `machines/*` | machines of a job whose metrics (`samples`) differ from those of the others (`odd`), and launches that drift apart (`drift`) |
//! | `standbys` | the number of warm standbys that a job keeps |
//! | `group_test`, `group_test/*` | the faulty one among many machines, by two rounds of replays on groups of them; how these are `judged` |
//! | `run`, `run/*` | runs that go wrong, from the numbers of their steps: each detector is a file, and `history` is the window that they share |

pub mod collective;
pub mod device;
mod finding;
#[cfg(feature = "flight-recorder")]
pub mod flight_recorder;
pub mod flows;
pub mod gang;
pub mod group_test;
pub mod handler;
pub mod ladder;
pub mod machines;
pub mod node;
pub mod run;
pub mod standbys;

pub use finding::{
    Action, Alert, Detector, Evidence, Finding, FindingCause, Observation, Severity,
};
