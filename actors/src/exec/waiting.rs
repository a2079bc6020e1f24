//! The main thread of a program, as the kernel shows it: whether it waits for somebody.

use std::convert::Infallible;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use odeon::Clock;

/// Looks at a thread, and those in which it waited. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitSamples(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    taken: AtomicU64,
    waiting: AtomicU64,
}

impl WaitSamples {
    /// Number of looks, and of those in which it waited.
    pub(super) fn counts(&self) -> (u64, u64) {
        let counts = &self.0;
        let waiting = counts.waiting.load(Ordering::Relaxed);
        (counts.taken.load(Ordering::Relaxed), waiting)
    }

    /// Looks at a program twenty times a second, until the future is dropped. Where the kernel does not show what a
    /// thread does, there are no looks.
    pub(super) async fn follow(self, pid: u32) -> Infallible {
        let mut part = 0.0f64;
        loop {
            // Never in time with the steps of a program: parts by the golden ratio are spread evenly.
            part = (part + GOLDEN).fract();
            Clock::sleep(PAUSE.mul_f64(0.5 + part)).await;
            if let Some(waits) = main_thread(pid) {
                self.0.taken.fetch_add(1, Ordering::Relaxed);
                self.0
                    .waiting
                    .fetch_add(u64::from(waits), Ordering::Relaxed);
            }
        }
    }
}

/// Returns true where the main thread of a program waits for data or for another thread. A shell or a launcher that
/// waits for its only child stands for that. Nothing where it is not to be seen.
fn main_thread(mut pid: u32) -> Option<bool> {
    for _ in 0..DEPTH_MAX {
        let seen = fs::read_to_string(format!("/proc/{pid}/syscall")).ok()?;
        let number: i64 = match seen.split_whitespace().next()? {
            "running" => return Some(false),
            number => number.parse().ok()?,
        };
        if !WAITS_FOR_A_CHILD.contains(&number) {
            return Some(WAITS.contains(&number));
        }
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        let mut children = children.split_whitespace();
        match (children.next()?.parse(), children.next()) {
            (Ok(child), None) => pid = child,
            _ => return Some(false),
        }
    }
    None
}

/// The mean pause between two looks: in three seconds there are enough of them that chance names nobody.
const PAUSE: Duration = Duration::from_millis(50);
/// The fractional part of the golden ratio.
const GOLDEN: f64 = 0.618_033_988_749_895;
/// Launchers that start launchers.
const DEPTH_MAX: usize = 8;

/// `read`, `poll`, `select`, `accept`, `recvfrom`, `recvmsg`, `connect`, `futex`, `epoll_wait`, `pselect6`, `ppoll`,
/// `epoll_pwait`, `accept4`, `epoll_pwait2`, as far as a processor has them.
#[cfg(target_arch = "x86_64")]
const WAITS: &[i64] = &[0, 7, 23, 42, 43, 45, 47, 202, 232, 270, 271, 281, 288, 441];
/// `wait4`, `waitid`.
#[cfg(target_arch = "x86_64")]
const WAITS_FOR_A_CHILD: &[i64] = &[61, 247];
#[cfg(target_arch = "aarch64")]
const WAITS: &[i64] = &[22, 63, 72, 73, 98, 202, 203, 207, 212, 242, 441];
#[cfg(target_arch = "aarch64")]
const WAITS_FOR_A_CHILD: &[i64] = &[95, 260];
/// Of other processors nothing is known.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const WAITS: &[i64] = &[];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const WAITS_FOR_A_CHILD: &[i64] = &[];

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    use rustix::process::{Pid, Signal};

    use super::*;

    fn run(program: &[&str]) -> Child {
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).stdin(Stdio::piped());
        command.process_group(0);
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    #[tokio::test]
    async fn who_reads_waits_and_who_sleeps_or_works_does_not() {
        let read_alone = ["cat"];
        let read = ["sh", "-c", "cat; true"];
        let sleep = ["sh", "-c", "sleep 1000; true"];
        let work = ["sh", "-c", "while :; do :; done"];
        for (program, waits) in [
            (&read_alone[..], true),
            (&read, true),
            (&sleep, false),
            (&work, false),
        ] {
            let mut child = run(program);
            let mut seen = None;
            for _ in 0..500 {
                seen = main_thread(child.id());
                if seen == Some(waits) {
                    break;
                }
                Clock::sleep(Duration::from_millis(10)).await;
            }
            // With what it has started.
            let group = Pid::from_child(&child);
            rustix::process::kill_process_group(group, Signal::KILL).unwrap();
            child.wait().unwrap();
            assert_eq!(seen, Some(waits), "{program:?}");
        }
    }
}
