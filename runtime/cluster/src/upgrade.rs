//! A daemon's upgrade in place: another release takes over in the same process, while the processes
//! of jobs run on.
//!
//! ```text
//!  prepare: no try begins or ends, nothing is under way ── refused: all goes on
//!     │ accepted
//!     v
//!  finish: the catalog closes, the node's actors end, links stand still ── Heritage
//!     │ becomes the next program (exec), in which Daemon::start goes on with the heritage
//!     v
//!  the same node, in the same life: its tries, what they print, and every byte of their links
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use odeon::upgrade::{Busy, Inheritance, NotInherited, Succession};
use odeon_artifacts::{Executable, Manifest, Platform};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::agent::{AttemptHandoff, UpgradeAnswer};
use crate::forward::OutputHandoff;

/// Why a node is not upgraded; it goes on as it was.
#[derive(Debug, Error)]
pub enum UpgradeError {
    /// The next program is of no use.
    #[error("{} cannot take over: {why}", .program.display())]
    Program {
        /// Where it is.
        program: PathBuf,
        /// The reason why it cannot take over.
        why: String,
    },
    /// Tries that cannot be handed on.
    #[error("{0}: try again when that is over")]
    Tries(String),
    /// The engine has something under way.
    #[error("{0}: try again when that is over")]
    Busy(#[from] Busy),
}

/// Why what another program has left is of no use.
#[derive(Debug, Error)]
pub enum HeritageError {
    /// The engine's part.
    #[error(transparent)]
    Engine(#[from] NotInherited),
    /// The daemon's part.
    #[error("what the daemon before this one has left cannot be read: {0}")]
    Daemon(#[from] serde_json::Error),
    /// It is cut off.
    #[error("what the daemon before this one has left is cut off")]
    CutOff,
}

/// The state that one program of a daemon leaves to the next.
#[derive(Debug)]
pub struct Heritage {
    pub(crate) engine: Inheritance,
    pub(crate) own: Own,
}

/// The daemon's own part.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Own {
    pub(crate) tries: Vec<AttemptHandoff>,
    pub(crate) prints: OutputHandoff,
    /// Number of programs that this life of the node has had before the next one.
    pub(crate) upgrades: u32,
}

impl Heritage {
    /// As bytes.
    ///
    /// # Errors
    /// It cannot be encoded.
    pub fn encode(&self) -> Result<Vec<u8>, HeritageError> {
        let engine = self.engine.encode()?;
        let mut bytes = (engine.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(&engine);
        serde_json::to_writer(&mut bytes, &self.own)?;
        Ok(bytes)
    }

    /// Reads the state that the program before this one has left: to be called before anything
    /// looks at the clock.
    ///
    /// # Errors
    /// It cannot be read, or is of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeritageError> {
        let (length, rest) = bytes
            .split_first_chunk::<8>()
            .ok_or(HeritageError::CutOff)?;
        let length = u64::from_le_bytes(*length) as usize;
        let (engine, own) = rest.split_at_checked(length).ok_or(HeritageError::CutOff)?;
        Ok(Self {
            engine: Inheritance::decode(engine)?,
            own: serde_json::from_slice(own)?,
        })
    }

    /// Leaves open to the next program what it needs of the descriptors of this one.
    ///
    /// # Errors
    /// A descriptor is not there.
    pub fn keep_open(&self) -> io::Result<()> {
        self.engine.keep_open()?;
        let outputs = self.own.prints.descriptors();
        outputs.into_iter().try_for_each(odeon::upgrade::keep_open)
    }
}

/// Somebody has asked for an upgrade, and waits for the answer.
#[derive(Debug)]
pub struct UpgradeOrder {
    pub(crate) answer: UpgradeAnswer,
}

impl UpgradeOrder {
    /// Says that it begins, or why it does not.
    pub fn answer(self, outcome: Result<(), &UpgradeError>) {
        // Whoever asked may have stopped waiting.
        let _ = self.answer.send(outcome.map_err(ToString::to_string));
    }
}

/// A node that is ready for another program. Dropped, it goes on.
#[derive(Debug)]
#[must_use = "dropped, the node goes on"]
pub struct Upgrade {
    pub(crate) succession: Succession,
    pub(crate) hold: crate::agent::Hold,
}

/// The longest time that what is under way may take to end before an upgrade is refused.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Checks that a program can take over from this one: it runs here, and speaks to the processes of
/// jobs as this one does.
pub(crate) fn check(program: &Path) -> Result<(), UpgradeError> {
    let cannot = |why: String| UpgradeError::Program {
        program: program.to_owned(),
        why,
    };
    let executable = Executable::inspect(program).map_err(|error| cannot(error.to_string()))?;
    let fits = Platform::here().can_run(&executable);
    fits.map_err(|error| cannot(error.to_string()))?;
    let manifest = Manifest::read(program).map_err(|error| cannot(error.to_string()))?;
    if manifest.wire != odeon::WIRE_VERSION {
        return Err(cannot(format!(
            "it is of odeon {}, whose processes speak version {} to each other; those that run here \
             speak {}: end the node's jobs and start it anew",
            manifest.odeon,
            manifest.wire,
            odeon::WIRE_VERSION
        )));
    }
    Ok(())
}
