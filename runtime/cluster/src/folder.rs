//! A node's folder: everything that it keeps between two starts.
//!
//! ```text
//! lock          held by the daemon that uses it
//! node.json     the node: its name, its cluster, where it listens, whom it knows
//! ca.pem ca.key node.pem node.key   certificates; ca.key on voters, which admit nodes
//! catalog.redb  the catalog, on a voter
//! history.redb  what was seen to happen, and who has failed
//! artifacts/    files of jobs: pieces, and what is put together from them
//! jobs/         folders in which jobs work; gone when they are over
//! mounts/       files of jobs that are read while they come; what is left there is unmounted
//! drivers/      drivers that run, so that none outlives a daemon that was killed
//! logs/         what jobs have printed, on a voter
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::orphan_processes;
use crate::staging::stale;
use crate::stale_drivers::{self, Ended};

/// The open folder of a node, which is this daemon's while this lives.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held while the file about the node is changed.
    turn: Mutex<()>,
    _lock: File,
}

/// The file in which a node keeps what it knows of itself before it knows anybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// Its name.
    pub name: String,
    /// Its number, if it votes.
    #[serde(default)]
    pub votes_as: Option<u64>,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Other nodes that it knew when this was written.
    #[serde(default)]
    pub peers: Vec<SocketAddr>,
    /// The voters that it knew.
    #[serde(default)]
    pub voters: Vec<String>,
}

/// Things that a daemon which was killed had left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leavings {
    /// Drivers that still ran.
    pub drivers: usize,
    /// Mounts.
    pub mounts: usize,
}

/// Why a folder cannot be used.
#[derive(Debug, Error)]
pub enum FolderError {
    /// Another daemon uses it.
    #[error("{} is in use by another daemon: stop that first (odeon down), or take another folder (--dir)", .0.display())]
    InUse(PathBuf),
    /// It cannot be read or written.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file that is not what a daemon writes.
    #[error("{} is not what a daemon writes: {why}", .path.display())]
    Strange {
        /// Which.
        path: PathBuf,
        /// In what way.
        why: String,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FolderError {
    let path = path.to_owned();
    move |source| FolderError::Io {
        doing,
        path,
        source,
    }
}

impl Folder {
    /// Takes a folder, which is made if it is not there. Only its owner may look inside.
    ///
    /// # Errors
    /// Another daemon uses it, or it cannot be used.
    pub fn take(path: impl Into<PathBuf>) -> Result<Self, FolderError> {
        let path = path.into();
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path);
        made.map_err(failed("making", &path))?;
        // Whoever has made it may have left it open: variables of jobs and keys are in here.
        let own = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&path, own).map_err(failed("closing to others", &path))?;
        let lock = path.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock)
            .map_err(failed("opening", &lock))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(FolderError::InUse(path)),
            Err(errno) => return Err(failed("locking", &lock)(errno.into())),
        }
        // What jobs of a daemon that was killed have left.
        let jobs = path.join("jobs");
        match fs::remove_dir_all(&jobs) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("clearing", &jobs)(error));
            }
            _ => {}
        }
        Ok(Self {
            path,
            turn: Mutex::default(),
            _lock: file,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Ends what a daemon that was killed has left running here, and takes away what it has left mounted.
    ///
    /// # Errors
    /// The notes about drivers or the system's table of mounts cannot be read, or one of the folders not be removed.
    pub async fn clear(&self) -> Result<Leavings, FolderError> {
        let drivers = self.part(DRIVERS_FOLDER);
        let ended = match stale_drivers::end(&drivers, &[]) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ended::default(),
            ended => ended.map_err(failed("clearing", &drivers))?,
        };
        for mark in ended.marks {
            orphan_processes::end(mark).await;
        }
        let mounts = self.part(MOUNTS_FOLDER);
        Ok(Leavings {
            drivers: ended.drivers,
            mounts: stale::clear(&mounts).map_err(failed("clearing", &mounts))?,
        })
    }

    /// The node's file from when it last ran; `None` in a new folder.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn node(&self) -> Result<Option<NodeFile>, FolderError> {
        let path = self.part(NODE_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("reading", &path)(error)),
        };
        let parsed = serde_json::from_str(&text);
        parsed.map(Some).map_err(|error| FolderError::Strange {
            path,
            why: error.to_string(),
        })
    }

    /// Writes down what is known, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn set_node(&self, node: &NodeFile) -> Result<(), FolderError> {
        let text = serde_json::to_string_pretty(node).map_err(|error| FolderError::Strange {
            path: self.part(NODE_FILE),
            why: error.to_string(),
        })?;
        self.write(NODE_FILE, text.as_bytes(), 0o600)
    }

    /// Changes what is known; nothing is written when it stays the same.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub(crate) fn change_node(
        &self,
        change: impl FnOnce(&mut NodeFile),
    ) -> Result<(), FolderError> {
        let _turn = self.turn.lock();
        let Some(known) = self.node()? else {
            return Ok(());
        };
        let mut now = known.clone();
        change(&mut now);
        if now == known {
            return Ok(());
        }
        self.set_node(&now)
    }

    /// Returns true where a file is there and holds anything.
    pub(crate) fn holds(&self, name: &str) -> bool {
        fs::metadata(self.part(name)).is_ok_and(|file| file.len() > 0)
    }

    /// Removes a file, if it is there.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove(&self, name: &str) -> Result<(), FolderError> {
        let path = self.part(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(failed("removing", &path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Writes a file, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, name: &str, bytes: &[u8], mode: u32) -> Result<(), FolderError> {
        let (path, draft) = (self.part(name), self.part(&format!("{name}.new")));
        let written = OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(mode)
            .open(&draft)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_all()
            })
            .and_then(|()| fs::rename(&draft, &path));
        written.map_err(failed("writing", &path))
    }
}

const NODE_FILE: &str = "node.json";
/// The folder with a note of each driver that runs.
pub(crate) const DRIVERS_FOLDER: &str = "drivers";
/// The folder below which files of jobs are mounted.
pub(crate) const MOUNTS_FOLDER: &str = "mounts";
