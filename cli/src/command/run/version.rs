//! A run as a version of its job: it is told which it is, says when it has come to work, and asks for the one before.

use std::str::FromStr;
use std::sync::Once;
use std::time::Duration;

use odeon::Clock;
use odeon_cluster::job::version::ROLL_BACK_CODE;
use odeon_diagnosis::ladder::YoungVersion;

use crate::print;

/// The exit code by which the job goes back to the version before.
pub(super) const ROLL_BACK: u8 = ROLL_BACK_CODE as u8;

/// The version that this run is of, where its job could go back to another one.
pub(super) fn young() -> Option<YoungVersion> {
    let aged = read::<u64>("ODEON_VERSION_SINCE").map(Duration::from_millis)?;
    let aged = Clock::unix_time().saturating_sub(aged);
    let now = Duration::from_nanos(Clock::now().0);
    Some(YoungVersion {
        number: read("ODEON_VERSION")?,
        before: read("ODEON_VERSION_BEFORE")?,
        at_work: std::env::var_os(AT_WORK).is_none(),
        until: (now + YoungVersion::YOUNG).saturating_sub(aged),
    })
}

/// Tells the node of a job that its version has come to work, once, where that is of interest there.
pub(super) fn at_work() {
    static TELL: Once = Once::new();
    TELL.call_once(|| {
        let Some(file) = std::env::var_os(AT_WORK) else {
            return;
        };
        if let Err(error) = std::fs::write(&file, "") {
            // It counts as one that is not, until it has run for long.
            print::say(format!("{} cannot be written: {error}", file.display()));
        }
    });
}

fn read<T: FromStr>(variable: &str) -> Option<T> {
    std::env::var(variable).ok()?.parse().ok()
}

/// The variable that names the file which says so.
const AT_WORK: &str = "ODEON_AT_WORK";
