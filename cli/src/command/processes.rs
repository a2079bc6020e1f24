//! The processes of a run, as its driver writes them down: `ps` lists them and `kill` takes one.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// The role of the process that runs the recipe.
pub(crate) const DRIVER: &str = "driver";

/// One process. Ids of processes are given again; with the start time they are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) role: String,
    pub(crate) actor: String,
    pub(crate) pid: i32,
    started: u64,
}

impl Process {
    /// A process that runs now; `None` when it is gone already.
    pub(crate) fn running(role: &str, actor: String, pid: u32) -> Option<Self> {
        let pid = i32::try_from(pid).ok()?;
        Some(Self {
            role: role.to_owned(),
            actor,
            pid,
            started: started(pid)?,
        })
    }

    /// Returns true if it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// SIGKILL to this process and to no other that has got its id.
    pub(crate) fn kill(&self) -> Result<()> {
        let gone = || format!("process {} of {} is gone already", self.pid, self.role);
        let target = Pid::from_raw(self.pid).with_context(gone)?;
        // The handle is of one process for good, so what is checked after it is opened stays true.
        let handle = pidfd_open(target, PidfdFlags::empty()).with_context(gone)?;
        if !self.is_alive() {
            bail!(gone());
        }
        pidfd_send_signal(handle, Signal::KILL).with_context(gone)
    }
}

/// The list in a run's folder, removed when it is dropped: after the run it would name strangers.
#[derive(Debug)]
pub(crate) struct Listing {
    path: PathBuf,
    written: Vec<Process>,
}

impl Listing {
    pub(crate) fn new(run: &Path) -> Self {
        Self {
            path: run.join(FILE),
            written: vec![],
        }
    }

    /// Writes the list when it is another than before.
    pub(crate) fn write(&mut self, processes: Vec<Process>) -> Result<()> {
        if processes == self.written {
            return Ok(());
        }
        let mut text = String::new();
        for process in &processes {
            let Process {
                role,
                actor,
                pid,
                started,
            } = process;
            let _ = writeln!(text, "{role}\t{actor}\t{pid}\t{started}");
        }
        replace(&self.path, &text)?;
        self.written = processes;
        Ok(())
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // Whoever reads it asks whether the driver lives.
        let _ = fs::remove_file(&self.path);
    }
}

/// The living processes of a run that goes on.
pub(crate) fn read(run: &Path) -> Result<Vec<Process>> {
    let path = run.join(FILE);
    if !run.is_dir() {
        bail!("{}: there is no such folder", run.display());
    }
    let Ok(text) = fs::read_to_string(&path) else {
        bail!("{}: no run is going on there", run.display());
    };
    let row = |line: &str| {
        let mut cells = line.split('\t');
        Some(Process {
            role: cells.next()?.to_owned(),
            actor: cells.next()?.to_owned(),
            pid: cells.next()?.parse().ok()?,
            started: cells.next()?.parse().ok()?,
        })
    };
    let mut processes: Vec<_> = text.lines().filter_map(row).collect();
    processes.retain(Process::is_alive);
    if !processes.iter().any(|process| process.role == DRIVER) {
        return Err(ended_without_notice(run));
    }
    Ok(processes)
}

/// Why nothing can be told of a run that has left its notes behind.
pub(crate) fn ended_without_notice(run: &Path) -> anyhow::Error {
    anyhow!(
        "{}: no run is going on there; its driver ended without notice, run the recipe again \
         to go on",
        run.display()
    )
}

/// Readers see the old text or the new one, never a part.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, text)
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| format!("writing {}", path.display()))
}

/// When a process started, in ticks since the machine did; `None` when it is gone.
fn started(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold anything, so count from its closing bracket.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    // A zombie has ended and waits for its parent only.
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Its name in the run's folder.
pub(crate) const FILE: &str = "processes.tsv";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_with_the_same_id_is_no_process_of_the_run() {
        let own = Process::running(DRIVER, "-".to_owned(), std::process::id()).unwrap();
        assert!(own.is_alive());
        let stranger = Process {
            started: own.started + 1,
            ..own
        };
        assert!(!stranger.is_alive());
        assert!(stranger.kill().is_err(), "this test still runs");
    }
}
