//! Causes of stalls and slowness in collectives.

use std::fmt::{self, Display};
use std::time::Duration;

use odeon_collective::FlowPlace;
use serde::{Deserialize, Serialize};

use super::trigger::TriggerKind;
use crate::{Action, Evidence, FindingCause};

/// The kind of thing that is wrong with a rank or one of its flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum FlowFault {
    /// The rank is outside of collectives while others wait: what it has to send is not there.
    Producer,
    /// The same, and its thread is ready to run and has no processor.
    Starved,
    /// The rank has bytes to send, the other side takes all that comes, and they do not leave.
    Sender,
    /// Bytes are on their way to the rank, which waits for them: the path to it, or its end of that.
    Acknowledgement,
    /// The process of the rank does nothing at all.
    Stopped,
    /// The rank has gone on without a call that the others of its group have made.
    Skipped,
    /// The rank makes calls of two groups in another order than the others do.
    Order,
    /// The rank has made another call than the others of its group, such as one of another size.
    Mismatch,
    /// A rank of the group has never been seen.
    Absent,
}

/// A rank, or one flow of it, that others wait for.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowCause {
    /// Its effect on the job: that calls do not end, or that they end late.
    pub effect: TriggerKind,
    /// The kind of fault.
    pub fault: FlowFault,
    /// The group in which others wait, and the rank in it; nothing where it is of no group in particular.
    pub place: Option<FlowPlace>,
    /// The other end of the flow, as its rank in the group: to it, or from it for an acknowledgement.
    pub peer: Option<u32>,
    /// The number of the call.
    pub sequence: u64,
    /// The ranks that wait for it, directly or for one that does.
    pub waiting: usize,
    /// The ranks of the job.
    pub ranks: usize,
    /// The time for which this has been so, as far as is known.
    pub lasts: Duration,
    /// Numbers that it stands on.
    pub evidence: Vec<Evidence>,
}

impl Display for FlowCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            peer,
            sequence,
            waiting,
            ranks,
            ..
        } = self;
        if *waiting == 0 {
            return write!(f, "its process is stopped, one of {ranks}");
        }
        write!(f, "{waiting} of {ranks} ranks wait for ")?;
        match place {
            Some(place) => write!(f, "rank {} of a group of {}", place.rank, place.world)?,
            None => f.write_str("a rank")?,
        }
        if let Some(label) = place
            .map(|it| it.label.to_string())
            .filter(|it| !it.is_empty())
        {
            write!(f, " along {label}")?;
        }
        f.write_str(": ")?;
        let peer = peer.map_or("another".to_owned(), |peer| format!("rank {peer}"));
        match self.fault {
            FlowFault::Producer => {
                f.write_str("it is not in a call, so what it has to send is not there yet")
            }
            FlowFault::Starved => f.write_str("its thread is ready to run and gets no processor"),
            FlowFault::Sender => write!(f, "what it has for {peer} does not leave it"),
            FlowFault::Acknowledgement => {
                write!(f, "what {peer} has sent it does not arrive there")
            }
            FlowFault::Stopped => f.write_str("its process is stopped"),
            FlowFault::Skipped => write!(f, "it has gone on without call {sequence} there"),
            FlowFault::Order => write!(
                f,
                "it has called another group before call {sequence} there, which the others do after it"
            ),
            FlowFault::Mismatch => write!(f, "its call {sequence} there is not that of the others"),
            FlowFault::Absent => f.write_str("it has never called"),
        }
    }
}

impl FindingCause for FlowCause {
    /// Calls that differ fail by themselves, and of a rank that has never called nobody knows which it is.
    fn action(&self) -> Action {
        match (self.effect, self.fault) {
            (TriggerKind::Slow, _) | (_, FlowFault::Mismatch | FlowFault::Absent) => Action::Tell,
            (TriggerKind::Stalled, _) => Action::EndProcess,
        }
    }
}
