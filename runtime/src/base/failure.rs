//! Why an actor died, as a value: kind, message and the chain of causes below it.

use std::fmt;

use odeon_devices::fault::{GpuFault, Remedy};
use serde::{Deserialize, Serialize};

use crate::base::id::{ActorId, Incarnation, ProcessId};
use crate::base::panic_place;
use crate::base::shape::{self, Shape};

/// The kind of end that an actor met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FailureKind {
    /// A handler, `start` or `stop` panicked.
    Panic,
    /// `start` returned an error, or a handler asked to fail.
    Error,
    /// The process that ran it ended.
    ProcessLost,
    /// The node that ran it, or the link to it, is gone.
    NodeLost,
    /// It made no progress and was killed.
    Hang,
    /// A child's failure was more than this supervisor may repair.
    Escalated,
    /// The binary of the process that should run it does not know its type.
    UnknownActor,
    /// No process could be given to it.
    NotPlaced,
    /// It found what another start would find again: a damaged file, arguments that contradict
    /// each other. Its supervisor does not try.
    Fatal,
    /// A device failed under it. Its process is replaced before it starts again, since what went
    /// wrong may stay with that, and a device that needs a rest is taken out of service.
    Gpu(GpuFault),
    /// The program that it hosts ended by itself, and not with success.
    Program(ProgramEnd),
}

/// The end of a program that is none of Odeon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ProgramEnd {
    /// By itself, with this exit code.
    Code(i32),
    /// By a signal of this number.
    Signal(i32),
}

impl ProgramEnd {
    /// The exit code by which shells tell this end: 128 and the signal's number for a signal.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        let code = match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        };
        // The operating system keeps eight bits.
        (code & 0xff) as u8
    }
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status: {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}{}", signal_name(*signal)),
        }
    }
}

impl Shape for ProgramEnd {
    const SHAPE: u64 = shape::name("odeon.ProgramEnd");
}

/// The usual name of a signal, in brackets.
pub(crate) fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => " (SIGINT)",
        6 => " (SIGABRT)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

/// A typed failure with its chain of causes; the last one failed first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Chain", try_from = "Chain")]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// In words, for people.
    pub message: String,
    /// The failure that led to this one.
    pub cause: Option<Box<Self>>,
}

impl Failure {
    /// A failure without a deeper cause.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            cause: None,
        }
    }

    /// An error that `start` or a handler found.
    pub fn error(message: impl fmt::Display) -> Self {
        Self::new(FailureKind::Error, message.to_string())
    }

    /// A failure that carries the text of an error and of its causes, or that is the error itself.
    ///
    /// ```
    /// use odeon::Failure;
    ///
    /// let error = std::io::Error::other("the disk is full");
    /// let failure = Failure::carry(error);
    /// assert_eq!(failure.to_string(), "the disk is full");
    /// ```
    pub fn carry(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        let error = match error.downcast::<Self>() {
            Ok(failure) => return *failure,
            Err(error) => error,
        };
        let mut texts = vec![error.to_string()];
        let mut next = error.source();
        while let Some(cause) = next.filter(|_| texts.len() < CAUSES_MAX) {
            texts.push(cause.to_string());
            next = cause.source();
        }
        let causes = texts.into_iter().rev().fold(None, |cause, text| {
            let failure = Self::error(text);
            Some(match cause {
                Some(cause) => failure.because(cause),
                None => failure,
            })
        });
        causes.expect("an error has a text")
    }

    /// The same failure, as one that no restart mends: see [`FailureKind::Fatal`].
    #[must_use]
    pub fn fatal(mut self) -> Self {
        self.kind = FailureKind::Fatal;
        self
    }

    /// The fault for which the process that it came from must not be used again, if there is one.
    pub(crate) fn replaces_process(&self) -> Option<GpuFault> {
        match self.kind {
            FailureKind::Gpu(fault) if fault.remedy() != Remedy::FreeMemory => Some(fault),
            _ => None,
        }
    }

    /// The same failure, as the consequence of `cause`.
    #[must_use]
    pub fn because(mut self, cause: Self) -> Self {
        self.cause = Some(Box::new(cause));
        self
    }

    /// The failure that happened first.
    #[must_use]
    pub fn root_cause(&self) -> &Self {
        let mut failure = self;
        while let Some(cause) = &failure.cause {
            failure = cause;
        }
        failure
    }

    /// Unwinds the running handler with this failure, as a panic would but without its noise: the
    /// life ends with it, and the caller learns why.
    pub(crate) fn unwind(self) -> ! {
        std::panic::resume_unwind(Box::new(self))
    }

    pub(crate) fn from_panic(payload: &(dyn std::any::Any + Send), place: &str) -> Self {
        let noted = panic_place::take();
        if let Some(failure) = payload.downcast_ref::<Self>() {
            return failure.clone();
        }
        if let Some(fault) = payload.downcast_ref::<GpuFault>() {
            return (*fault).into();
        }
        let text = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "a panic without a message".to_owned());
        let noted = noted.map_or_else(String::new, |noted| format!(" ({noted})"));
        Self::new(FailureKind::Panic, format!("{place}: {text}{noted}"))
    }
}

/// `Err(fault)?` in an actor that computes on a device.
impl From<GpuFault> for Failure {
    fn from(fault: GpuFault) -> Self {
        Self::new(FailureKind::Gpu(fault), fault.to_string())
    }
}

/// A failure as it travels: in a row rather than nested, since a reader of nested values from a
/// hostile peer would run out of stack.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct Chain(Vec<(FailureKind, String)>);

/// Causes that are kept of a failure that comes from elsewhere; those in the middle go first.
const CAUSES_MAX: usize = 64;

impl From<Failure> for Chain {
    fn from(failure: Failure) -> Self {
        let mut links = vec![];
        let mut next = Some(failure);
        while let Some(Failure {
            kind,
            message,
            cause,
        }) = next
        {
            links.push((kind, message));
            next = cause.map(|cause| *cause);
        }
        Self(links)
    }
}

impl TryFrom<Chain> for Failure {
    type Error = &'static str;

    fn try_from(Chain(mut links): Chain) -> Result<Self, Self::Error> {
        if links.len() > CAUSES_MAX {
            links.drain(CAUSES_MAX / 2..links.len() - CAUSES_MAX / 2);
        }
        links
            .into_iter()
            .rev()
            .fold(None, |cause: Option<Self>, (kind, message)| {
                Some(Self {
                    kind,
                    message,
                    cause: cause.map(Box::new),
                })
            })
            .ok_or("a failure without a kind")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        let mut cause = &self.cause;
        while let Some(failure) = cause {
            write!(f, ", because {}", failure.message)?;
            cause = &failure.cause;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

impl Shape for Failure {
    const SHAPE: u64 = shape::name("odeon.Failure");
}

/// Why an incarnation ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reason {
    /// It was asked to stop, or stopped itself, and finished in order.
    Stopped,
    /// Its supervisor stopped it together with a sibling or parent that failed.
    Sibling,
    /// It failed.
    Failed(Failure),
    /// Nobody knows an actor with this id (any more).
    Unknown,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("it was stopped"),
            Self::Sibling => f.write_str("it was stopped with its supervisor's other children"),
            Self::Failed(failure) => failure.fmt(f),
            Self::Unknown => f.write_str("no such actor is known"),
        }
    }
}

/// Notice that an incarnation of an actor ended. The message of a death watch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    /// Which actor.
    pub id: ActorId,
    /// Which life of it; 0 when not known.
    pub incarnation: Incarnation,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "actor {} (incarnation {}): {}",
            self.id, self.incarnation, self.reason
        )
    }
}

impl Shape for Down {
    const SHAPE: u64 = shape::name("odeon.Down");
}

/// The end of a process, as its parent saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessExit {
    /// The process that ended.
    pub process: ProcessId,
    /// Its exit status in words: `exit status 1`, `signal 9 (SIGKILL)`.
    pub status: String,
    /// Its exit code, when it ended by itself.
    pub code: Option<i32>,
    /// The node that was lost with it; `None` when the process alone has ended.
    pub node: Option<String>,
    /// The fault of a device for which its node ended it.
    pub fault: Option<GpuFault>,
}

impl ProcessExit {
    /// The end of a process alone.
    pub(crate) fn new(process: ProcessId, status: impl Into<String>) -> Self {
        Self {
            process,
            status: status.into(),
            code: None,
            node: None,
            fault: None,
        }
    }
}

impl From<ProcessExit> for Failure {
    fn from(exit: ProcessExit) -> Self {
        let ProcessExit {
            process,
            status,
            code: _,
            node,
            fault,
        } = exit;
        match node {
            None => Self::new(
                fault.map_or(FailureKind::ProcessLost, FailureKind::Gpu),
                format!("its process {process} ended: {status}"),
            ),
            Some(node) => Self::new(
                FailureKind::NodeLost,
                format!("node `{node}` with its process {process} is lost: {status}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use thiserror::Error;

    use super::*;

    #[derive(Debug, Error)]
    #[error("the shard cannot be read")]
    struct Unread(#[source] std::io::Error);

    #[test]
    fn an_error_is_carried_with_its_causes_and_a_failure_as_it_is() {
        let error = Unread(std::io::Error::other("the disk is gone"));
        let carried = Failure::carry(error);
        let text = "the shard cannot be read, because the disk is gone";
        assert_eq!(carried.to_string(), text);
        assert_eq!(carried.kind, FailureKind::Error);
        let fatal = Failure::error("damaged").fatal().because(carried);
        assert_eq!(Failure::carry(fatal.clone()), fatal);
        assert_eq!(Failure::carry("a text").to_string(), "a text");
    }
}
