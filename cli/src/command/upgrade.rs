//! Upgrade of a daemon to another release: the process goes on as the program that lies where its
//! own did, and takes over what this one leaves it in a file without a name.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use odeon::Clock;
use odeon::upgrade::{keep_open, take_open};
use odeon_cluster::Daemon;
use odeon_cluster::upgrade::{Heritage, Upgrade};
use rustix::fs::MemfdFlags;

/// The variable that names what was left: the process, the descriptor, and where the API has listened.
const VARIABLE: &str = "ODEON_HERITAGE";

/// The time that the file of the next program may be open for writing.
const BUSY_PATIENCE: Duration = Duration::from_secs(3);
/// The interval between tries.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The state that the program before this one in this process has left, if there was one, and where
/// its API was.
pub(super) fn taken_over() -> Result<Option<(Heritage, SocketAddr)>> {
    let Ok(text) = std::env::var(VARIABLE) else {
        return Ok(None);
    };
    let Some((fd, api)) = parse(&text, std::process::id()) else {
        // Another process was meant.
        return Ok(None);
    };
    let doing = || format!("taking over from the program before this one ({VARIABLE}={text})");
    let mut file = File::from(take_open(fd).with_context(doing)?);
    let mut bytes = vec![];
    file.seek(SeekFrom::Start(0)).with_context(doing)?;
    file.read_to_end(&mut bytes).with_context(doing)?;
    Ok(Some((Heritage::decode(&bytes)?, api)))
}

fn parse(text: &str, own: u32) -> Option<(RawFd, SocketAddr)> {
    let mut parts = text.splitn(3, ' ');
    let process: u32 = parts.next()?.parse().ok()?;
    let fd = parts.next()?.parse().ok()?;
    let api = parts.next()?.parse().ok()?;
    (process == own).then_some((fd, api))
}

/// Becomes the program; returns only when that fails, and then nothing is left to go on with.
pub(super) async fn become_next(
    daemon: &Daemon,
    upgrade: Upgrade,
    program: &Path,
    api: SocketAddr,
) -> anyhow::Error {
    let heritage = daemon.finish_upgrade(upgrade).await;
    let left = match leave(&heritage) {
        Ok(left) => left,
        Err(error) => return error.context("leaving to the next program what it needs"),
    };
    tracing::info!(program = %program.display(), "becomes another program");
    let fd = left.as_raw_fd();
    let deadline = Clock::now().after(BUSY_PATIENCE);
    let failed = loop {
        let failed = Command::new(program)
            .args(std::env::args_os().skip(1))
            .env(VARIABLE, format!("{} {fd} {api}", std::process::id()))
            .exec();
        // Whoever wrote it may have it open for a moment yet.
        let is_busy = failed.kind() == std::io::ErrorKind::ExecutableFileBusy;
        if !is_busy || deadline.left(Clock::now()).is_zero() {
            break failed;
        }
        Clock::sleep(BUSY_PAUSE).await;
    };
    anyhow!(failed).context(format!("becoming {}", program.display()))
}

/// Writes down what the next program needs, and leaves it open.
fn leave(heritage: &Heritage) -> Result<File> {
    let bytes = heritage.encode()?;
    let file = rustix::fs::memfd_create("odeon-heritage", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(&bytes)?;
    heritage.keep_open()?;
    keep_open(file.as_raw_fd())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_is_meant_takes_over() {
        let api = SocketAddr::from(([127, 0, 0, 1], 7433));
        assert_eq!(parse("7 12 127.0.0.1:7433", 7), Some((12, api)));
        assert_eq!(parse("8 12 127.0.0.1:7433", 7), None);
        for none in ["", "7", "7 12", "7 x 127.0.0.1:7433", "7 12 here"] {
            assert_eq!(parse(none, 7), None);
        }
    }
}
