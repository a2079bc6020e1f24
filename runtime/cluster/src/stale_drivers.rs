//! Drivers that a killed daemon has left behind: a program of Odeon ends with its daemon by itself, any
//! other is noted in the daemon's folder and ended when the daemon is started again, or told to end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use crate::orphan_processes;

/// The notes of a node.
#[derive(Clone, Debug)]
pub(crate) struct StaleDrivers {
    folder: PathBuf,
}

impl StaleDrivers {
    /// The notes in a folder. What they name and still runs is killed, with its group; but for those
    /// that this daemon goes on with.
    pub(crate) fn open(folder: PathBuf, known: &[u32]) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        for mark in end(&folder, known)?.marks {
            tokio::spawn(orphan_processes::end(mark));
        }
        Ok(Self { folder })
    }

    /// Notes a driver, and what the processes of its try are known by.
    pub(crate) fn note(&self, pid: u32, mark: &str) {
        let Some(began) = began_at(pid) else {
            return;
        };
        if let Err(error) = fs::write(self.path(pid), format!("{began} {mark}")) {
            tracing::warn!(pid, %error, "a driver is not noted");
        }
    }

    /// Forgets a driver that has ended.
    pub(crate) fn forget(&self, pid: u32) {
        // It is not there if it could not be written.
        let _ = fs::remove_file(self.path(pid));
    }

    fn path(&self, pid: u32) -> PathBuf {
        self.folder.join(pid.to_string())
    }
}

/// The drivers that a folder of notes named, but for those that a daemon goes on with.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// Those that still ran.
    pub(crate) drivers: usize,
    /// Marks of the processes of their tries, of which some may run elsewhere than in their groups.
    pub(crate) marks: Vec<String>,
}

/// Kills what the notes in a folder name and still runs, with its group, and forgets it.
pub(crate) fn end(folder: &Path, known: &[u32]) -> io::Result<Ended> {
    let mut ended = Ended::default();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let pid: Option<i32> = name.and_then(|name| name.parse().ok());
        if pid.is_some_and(|pid| known.contains(&(pid as u32))) {
            continue;
        }
        let note = fs::read_to_string(&path).unwrap_or_default();
        let (began, mark) = note.split_once(' ').unwrap_or((&note, ""));
        if let Some(pid) = pid
            && began_at(pid as u32).is_some_and(|now| now == began)
            && let Some(group) = Pid::from_raw(pid)
        {
            tracing::warn!(pid, "a driver of the daemon before this one is ended");
            // It may end by itself in this moment.
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            ended.drivers += 1;
        }
        if !mark.is_empty() {
            ended.marks.push(mark.to_owned());
        }
        fs::remove_file(path)?;
    }
    Ok(ended)
}

/// When a process began, in ticks since the machine did; numbers of processes are used again, and
/// this tells them apart.
fn began_at(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // Behind the name, which may hold anything, it is the twentieth field.
    let mut fields = stat.rsplit_once(") ")?.1.split_whitespace();
    fields.nth(19).map(str::to_owned)
}
