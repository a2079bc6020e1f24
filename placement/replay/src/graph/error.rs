//! Graphs that cannot be, and those that cannot be replayed.

use thiserror::Error;

use super::Lane;

/// A graph that cannot be, or that cannot be replayed. Nothing was made of it.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A duration is no number of seconds.
    #[error("operation `{operation}` on {lane} lasts {seconds} s: give a finite number, 0 or more")]
    BadDuration {
        /// The operation's name.
        operation: String,
        /// Its lane.
        lane: Lane,
        /// The duration that was given, in seconds.
        seconds: f64,
    },
    /// The graph has no operation of this number.
    #[error(
        "there is no operation {operation}, the graph has {operations}: add it first, and use the number \
         that `add` returns"
    )]
    UnknownOperation {
        /// The number that was given.
        operation: usize,
        /// The number of operations in the graph.
        operations: usize,
    },
    /// Numbers of operations have 32 bits.
    #[error("the graph is full with 4,294,967,296 operations: replay parts of it")]
    TooManyOperations,
    /// Operations wait for each other.
    #[error(
        "operations wait for each other in a circle: {}: take one of these arrows out, or change the order of a \
         lane", in_words(.operations)
    )]
    Circle {
        /// The names of the operations with their lanes; each waits for the next, and the last for the first.
        operations: Vec<String>,
    },
    /// The seconds add up to more than a number holds.
    #[error(
        "operation `{operation}` on {lane} ends after more seconds than a number holds: give shorter durations"
    )]
    TooLong {
        /// The operation's name.
        operation: String,
        /// Its lane.
        lane: Lane,
    },
    /// An operation gives back what nobody took.
    #[error(
        "operation `{operation}` on {lane} gives back {frees} bytes when rank {} holds {held}: have the operations \
         before it take what it gives back", .lane.rank
    )]
    MemoryBelowZero {
        /// The operation's name.
        operation: String,
        /// Its lane.
        lane: Lane,
        /// The bytes that it gives back.
        frees: u64,
        /// The bytes that its rank holds just before.
        held: u64,
    },
    /// The bytes of a rank add up to more than a number holds.
    #[error("operation `{operation}` on {lane} takes rank {} past 2^64 bytes: give fewer", .lane.rank)]
    MemoryOverflow {
        /// The operation's name.
        operation: String,
        /// Its lane.
        lane: Lane,
    },
}

/// The most operations of a circle that a sentence names.
const NAMED_MAX: usize = 8;

fn in_words(circle: &[String]) -> String {
    let named = circle.len().min(NAMED_MAX);
    let mut words = circle[..named].join(" waits for ");
    if circle.len() > named {
        words.push_str(&format!(" (and so on over {} more)", circle.len() - named));
    }
    let first = circle.first().map_or("", String::as_str);
    format!("{words} waits for {first}")
}
