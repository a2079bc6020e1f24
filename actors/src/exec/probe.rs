//! When a program counts as ready. What an answer means and when to ask again are pure.

use std::net::Ipv4Addr;
use std::time::Duration;

use odeon::Clock;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// When a program counts as ready. Ports are those that it [listens](super::ExecSpec::listens) on,
/// at 127.0.0.1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Probe {
    /// When it has begun.
    #[default]
    None,
    /// When its port accepts a connection.
    Port,
    /// When a GET of this path is answered with a status from 200 to 299.
    Http(String),
    /// When a line that it prints contains this text.
    Line(String),
}

/// The pause after the n-th attempt that failed, from 0.
pub(super) fn pause(nth: u32) -> Duration {
    let doubled = FIRST_PAUSE.saturating_mul(1 << nth.min(10));
    doubled.min(PAUSE_MAX)
}

/// Reads the status line that an answer begins with; an error is the reason why the program is not
/// ready.
fn verdict(answer: &[u8]) -> Result<(), String> {
    let line = answer.split(|byte| *byte == b'\r' || *byte == b'\n').next();
    let line = String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
    let mut words = line.split(' ');
    let speaks = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
    let status = words.next().and_then(|word| word.parse::<u16>().ok());
    match status.filter(|_| speaks) {
        Some(200..=299) => Ok(()),
        Some(_) => Err(format!("it answers `{line}`")),
        None => Err(format!("what it answers is no HTTP: `{line}`")),
    }
}

/// Asks a port once.
///
/// # Errors
/// Why the program is not ready, in words.
pub(super) async fn attempt(probe: &Probe, port: u16) -> Result<(), String> {
    let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
    let mut stream = connected.map_err(|error| format!("port {port}: {error}"))?;
    let Probe::Http(path) = probe else {
        return Ok(());
    };
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    let broken = |error: std::io::Error| format!("port {port}: {error}");
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut answer = vec![];
    // The status line is all that counts.
    while !answer.contains(&b'\n') && answer.len() < STATUS_BYTES_MAX {
        if stream.read_buf(&mut answer).await.map_err(broken)? == 0 {
            break;
        }
    }
    // The rest is read so that the server has nobody hang up on it, and is worth no long wait.
    let rest = async {
        while answer.len() < ANSWER_BYTES_MAX
            && stream
                .read_buf(&mut answer)
                .await
                .is_ok_and(|read| read > 0)
        {}
    };
    let _ = Clock::timeout(REST_PATIENCE, rest).await;
    verdict(&answer)
}

/// The longest wait for one answer.
pub(super) const ATTEMPT_MAX: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(500);
const STATUS_BYTES_MAX: usize = 1024;
const ANSWER_BYTES_MAX: usize = 1 << 20;
const REST_PATIENCE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        let pauses: Vec<_> = (0..8).map(|nth| pause(nth).as_millis()).collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(pause(u32::MAX), PAUSE_MAX);
    }

    #[test]
    fn an_answer_is_judged_by_its_status() {
        let check = |answer: &str, why: Option<&str>| match (verdict(answer.as_bytes()), why) {
            (Ok(()), None) => {}
            (Err(said), Some(why)) => assert!(said.contains(why), "{said}"),
            (said, why) => panic!("{answer}: {said:?}, expected {why:?}"),
        };
        check("HTTP/1.1 200 OK\r\n", None);
        check("HTTP/1.0 204 No Content\r\nX: y", None);
        check("HTTP/1.1 204\r\n", None);
        check("HTTP/1.1 503 Loading\r\n", Some("503 Loading"));
        check("HTTP/1.1 302 Found\r\n", Some("302"));
        check("SSH-2.0-x 200 \r\n", Some("no HTTP"));
        check("", Some("no HTTP"));
    }
}
