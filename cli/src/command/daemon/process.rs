//! The process of a daemon as its folder tells of it: whether it runs, and how it is ended.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use odeon::Clock;
use odeon_cluster::Daemon;
use rustix::process::{Pid, Signal};

use super::pause;
use crate::print;

/// The file with the number of the daemon's process.
pub(super) const PID_FILE: &str = "daemon.pid";
/// The file with the time that its jobs may take to end, while it ends.
const GRACE_FILE: &str = "daemon.grace";
/// The time that a daemon may take to end in order.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// The process of the daemon of a folder, if one runs.
pub(super) fn running(folder: &Path) -> Option<i32> {
    let text = fs::read_to_string(folder.join(PID_FILE)).ok()?;
    let pid: i32 = text.trim().parse().ok()?;
    rustix::process::test_kill_process(Pid::from_raw(pid)?).ok()?;
    // Numbers are used again: the daemon holds its folder's lock.
    let lock = OpenOptions::new()
        .write(true)
        .open(folder.join("lock"))
        .ok()?;
    let held = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockShared);
    held.is_err().then_some(pid)
}

/// Returns true if a process runs; one that has ended and that nobody has reaped does not.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Behind the name, which may hold anything, comes the state.
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}

/// Tells the daemon of a folder to end, if one runs.
pub(super) fn tell_to_end(folder: &Path) -> Result<Option<Pid>> {
    let Some(pid) = running(folder) else {
        return Ok(None);
    };
    let process = Pid::from_raw(pid).context("a process of no number")?;
    rustix::process::kill_process(process, Signal::TERM).context("ending the daemon")?;
    Ok(Some(process))
}

/// Waits until a daemon has ended, and kills it when it does not.
pub(super) fn await_end(folder: &Path, process: Pid) {
    let begun = Clock::now();
    let mut grace = None;
    while is_alive(process.as_raw_pid()) {
        if grace.is_none() {
            grace = noted_grace(folder, process);
            if let Some(grace) = grace.filter(|grace| *grace > END_PATIENCE) {
                print::say(format!(
                    "a job of the daemon in {} has {} s to end, and is waited for",
                    folder.display(),
                    grace.as_secs()
                ));
            }
        }
        let patience = END_PATIENCE + grace.unwrap_or_default();
        let deadline = begun.after(patience);
        if deadline.left(Clock::now()).is_zero() {
            print::say(format!(
                "the daemon in {} did not end in {} s and was killed",
                folder.display(),
                patience.as_secs()
            ));
            // It may have ended in this moment.
            let _ = rustix::process::kill_process(process, Signal::KILL);
            return;
        }
        pause();
    }
}

/// Writes down for whoever waits for the daemon's end how long its jobs may take to end.
pub(super) fn note_grace(daemon: &Daemon) -> Result<()> {
    let grace = daemon.longest_grace().as_secs();
    let text = format!("{} {grace}", std::process::id());
    daemon.folder().write(GRACE_FILE, text.as_bytes(), 0o600)?;
    Ok(())
}

/// The time that the jobs of a daemon which ends may take to end, once it has written that down.
fn noted_grace(folder: &Path, process: Pid) -> Option<Duration> {
    let text = fs::read_to_string(folder.join(GRACE_FILE)).ok()?;
    let (pid, grace) = text.trim().split_once(' ')?;
    let is_own = pid.parse() == Ok(process.as_raw_pid());
    let grace = grace.parse().ok().filter(|_| is_own)?;
    Some(Duration::from_secs(grace))
}

/// The daemon has ended in order: nothing tells of its process any more.
pub(super) fn forget(folder: &Path) {
    for name in [PID_FILE, GRACE_FILE] {
        // It may have been removed by hand.
        let _ = fs::remove_file(folder.join(name));
    }
}
