//! Lines on standard error, for a program that has no log: what supervisors decide about failures.
//!
//! A program that has set a subscriber of `tracing` gets its events there, and no line. Simulations get
//! none, since their failures are made up.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::actor::engine::Engine;
use crate::actor::engine::component::Component;
use crate::base::clock::{Clock, Timestamp};

/// The time in which so many lines are said.
const WINDOW: Duration = Duration::from_secs(10);
/// The most lines in a window. As many as fit on a screen.
const LINES_MAX: u32 = 20;

/// The console of an engine.
pub(crate) struct Console {
    rate: Mutex<Rate>,
    is_virtual: bool,
}

impl Console {
    pub(crate) fn new() -> Self {
        Self {
            rate: Mutex::default(),
            is_virtual: Clock::is_virtual(),
        }
    }

    /// Returns true if a line would be seen.
    fn is_open(&self) -> bool {
        !self.is_virtual && !has_log()
    }

    /// Says a line, unless there were too many of late.
    pub(crate) fn say(&self, line: fmt::Arguments<'_>) {
        if !self.is_open() {
            return;
        }
        let now = Clock::now();
        let (before, admitted) = {
            let mut rate = self.rate.lock();
            (rate.turn(now), rate.admit(now))
        };
        tell_left_out(before);
        if admitted {
            print(line);
        }
    }

    /// Says a line that nobody may miss.
    pub(crate) fn shout(&self, line: fmt::Arguments<'_>) {
        if self.is_open() {
            print(line);
        }
    }
}

impl Component for Console {
    fn sweep(&self, _engine: &Arc<Engine>, now: Timestamp) {
        let left_out = self.rate.lock().turn(now);
        tell_left_out(left_out);
    }

    fn close(&self) {
        let left_out = self.rate.lock().end();
        tell_left_out(left_out);
    }
}

/// Returns true if the program has a log of its own.
pub(crate) fn has_log() -> bool {
    tracing::dispatcher::has_been_set()
}

fn tell_left_out(lines: u32) {
    if lines > 0 {
        print(format_args!(
            "{lines} more lines about failures within {WINDOW:?} were left out"
        ));
    }
}

/// Prints a line. Nobody may be there to read it, which must not end whoever says it.
#[expect(
    clippy::print_stderr,
    reason = "tests capture it, which they do not with what is written to standard error itself"
)]
fn print(line: fmt::Arguments<'_>) {
    drop(catch_unwind(AssertUnwindSafe(|| {
        eprintln!("odeon: {line}");
    })));
}

/// The number of lines in the present window. Pure.
#[derive(Debug, Default)]
struct Rate {
    /// When the window began; `None` before its first line.
    since: Option<Timestamp>,
    said: u32,
    left_out: u32,
}

impl Rate {
    /// Ends the window if it is over, and gives the lines that were left out in it.
    fn turn(&mut self, now: Timestamp) -> u32 {
        match self.since {
            Some(since) if now.since(since) >= WINDOW => self.end(),
            _ => 0,
        }
    }

    /// Ends the window, and gives the lines that were left out in it.
    fn end(&mut self) -> u32 {
        std::mem::take(self).left_out
    }

    /// Counts a line. Returns true if it may be said.
    fn admit(&mut self, now: Timestamp) -> bool {
        self.since.get_or_insert(now);
        let admitted = self.said < LINES_MAX;
        match admitted {
            true => self.said += 1,
            false => self.left_out += 1,
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_lines_is_cut_and_the_number_of_those_left_out_is_told_once() {
        let (mut rate, begin) = (Rate::default(), Timestamp::BEGIN);
        let admitted = (0..1000).filter(|_| rate.admit(begin)).count();
        assert_eq!(admitted, LINES_MAX as usize);
        assert_eq!(rate.turn(begin), 0, "the window is not over");
        let over = begin.after(WINDOW);
        assert_eq!(rate.turn(over), 1000 - LINES_MAX);
        assert_eq!(rate.turn(over), 0);
        assert!(rate.admit(over), "another window begins");
        assert_eq!(rate.end(), 0);
    }
}
