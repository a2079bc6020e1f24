//! Another program in the place of this one: a node goes on under a new release while the processes
//! that it has started run on.
//!
//! ```no_run
//! # async fn f(system: odeon::System) -> Result<(), Box<dyn std::error::Error>> {
//! use std::os::unix::process::CommandExt;
//! use std::time::Duration;
//!
//! let succession = system.admin().hand_over(Duration::from_secs(10)).await?;
//! let inheritance = succession.finish().await;
//! let bytes = inheritance.encode()?;
//! inheritance.keep_open()?;
//! // Bring `bytes` to the next program, and become it.
//! # let _ = bytes;
//! let error = std::process::Command::new("/usr/bin/my_node").exec();
//! # Err(error.into())
//! # }
//! ```
//!
//! The next program gives what it gets to [`SystemBuilder::inherit`](crate::SystemBuilder::inherit). The process stays the same
//! one, so those that it has started are still its children, and their sockets stay open; what the
//! node knew of them, and every byte of their links, goes along. Actors of the node itself end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

pub use odeon_shm::{keep_open, take_open};

use crate::actor::engine::Engine;
use crate::base::clock::Clock;
use crate::net::wire::{VERSION, codec};
use crate::node::handoff::HandoffState;

/// A node that begins nothing new, so that another program can take its place. Dropping it without
/// [`Succession::finish`] has the node go on.
#[derive(Debug)]
#[must_use = "dropped, the node goes on"]
pub struct Succession {
    engine: Option<Arc<Engine>>,
}

/// Why no other program can take a node's place at the moment; it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the node is busy with what cannot be handed on: {}", .0.join(", "))]
pub struct Busy(pub Vec<String>);

/// Why what another program has left is of no use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotInherited {
    /// It is none, or damaged.
    #[error("what the program before this one has left cannot be read: {0}")]
    Unreadable(String),
    /// It was left by a release that speaks otherwise.
    #[error(
        "the program before this one speaks version {theirs} to its processes, this one {VERSION}"
    )]
    Version {
        /// The version that it speaks.
        theirs: u32,
    },
}

impl Succession {
    pub(crate) async fn begin(engine: &Arc<Engine>, patience: Duration) -> Result<Self, Busy> {
        engine.hold(patience).await.map_err(Busy)?;
        let engine = Some(Arc::clone(engine));
        Ok(Self { engine })
    }

    /// Ends the actors of the node, has it stand still, and gives what the next program needs. There
    /// is no way back: become that program.
    #[odeon_macros::boxed]
    pub async fn finish(mut self) -> Inheritance {
        let engine = self.engine.take().expect("it is finished once");
        Inheritance {
            handoff: engine.freeze().await,
        }
    }
}

impl Drop for Succession {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.go_on();
        }
    }
}

/// The state that one program leaves to the next in the same process.
#[derive(Clone, Debug, PartialEq)]
pub struct Inheritance {
    pub(crate) handoff: HandoffState,
}

impl Inheritance {
    /// As bytes, for a program of the same [`WIRE_VERSION`](crate::WIRE_VERSION).
    ///
    /// # Errors
    /// There is more of it than can be encoded.
    pub fn encode(&self) -> Result<Vec<u8>, NotInherited> {
        let body = codec::encode(&self.handoff);
        let body = body.map_err(|error| NotInherited::Unreadable(error.to_string()))?;
        let mut bytes = VERSION.to_le_bytes().to_vec();
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    /// Reads the state that another program has left. The clock of this one goes on with its times,
    /// so this comes before anything looks at it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn decode(bytes: &[u8]) -> Result<Self, NotInherited> {
        let short = || NotInherited::Unreadable("it is too short".to_owned());
        let (version, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let (crc, body) = rest.split_first_chunk::<4>().ok_or_else(short)?;
        let theirs = u32::from_le_bytes(*version);
        if theirs != VERSION {
            return Err(NotInherited::Version { theirs });
        }
        if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
            return Err(NotInherited::Unreadable("it is damaged".to_owned()));
        }
        let handoff: HandoffState =
            codec::decode(body).map_err(|error| NotInherited::Unreadable(error.to_string()))?;
        Clock::go_on(handoff.clock);
        Ok(Self { handoff })
    }

    /// Leaves open to the next program what it needs of the descriptors of this one.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub fn keep_open(&self) -> io::Result<()> {
        self.handoff.descriptors().try_for_each(keep_open)
    }
}
