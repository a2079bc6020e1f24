//! Resources that a process and all below it take, as the kernel shows it.

use std::fs;
use std::time::Duration;

/// Resources that processes take together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Number of processes and threads.
    pub(super) processes: usize,
    /// Bytes that they hold in memory. What two of them share counts twice.
    pub(super) memory_bytes: u64,
    /// Time for which they, and those of theirs that have ended, kept processors busy.
    pub(super) cpu: Duration,
}

impl Usage {
    /// Of this process and all below it. One that ends meanwhile is left out.
    pub(super) fn of(pid: i32) -> Self {
        let mut all = Self::default();
        let mut left = vec![pid];
        while let Some(pid) = left.pop() {
            all.processes += threads(pid, &mut left);
            if let Some(pages) = resident_pages(pid) {
                all.memory_bytes += pages * rustix::param::page_size() as u64;
            }
            all.cpu += busy(pid).unwrap_or_default();
            if all.processes > LOOK_MAX {
                break;
            }
        }
        all
    }
}

/// The processes that this one has started, and those it was left with.
pub(super) fn children(pid: i32) -> Vec<i32> {
    let mut found = vec![];
    threads(pid, &mut found);
    found
}

/// Counts the threads of a process; their children are added.
fn threads(pid: i32, found: &mut Vec<i32>) -> usize {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let mut count = 0;
    for thread in threads.flatten().take(LOOK_MAX) {
        count += 1;
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().flat_map(str::parse::<i32>));
    }
    count
}

fn resident_pages(pid: i32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    statm.split(' ').nth(1)?.parse().ok()
}

fn busy(pid: i32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything, the state is the first; then utime, stime and those
    // of children.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields
        .split(' ')
        .skip(11)
        .take(4)
        .flat_map(str::parse::<u64>)
        .sum();
    let per_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(ticks * 1000 / per_second.max(1)))
}

/// A program with more has more than it may.
const LOOK_MAX: usize = 4096;
