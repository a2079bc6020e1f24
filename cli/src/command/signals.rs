//! Ctrl-C and its like, for commands that end in order.

use std::fs;

use anyhow::{Context, Result};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for the signals that ask a program to end: SIGINT and SIGTERM, SIGHUP of a terminal that
/// goes away, SIGUSR1 and SIGUSR2 that schedulers send some time before they kill.
#[derive(Debug)]
pub(crate) struct Signals {
    listening: Vec<(Signal, SignalKind)>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        let ignored = ignored();
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
            SignalKind::user_defined1(),
            SignalKind::user_defined2(),
        ];
        // Under `nohup` a terminal that goes away is no reason to end.
        let heard = kinds.into_iter().filter(|kind| {
            *kind != SignalKind::hangup() || ignored & (1 << (kind.as_raw_value() - 1)) == 0
        });
        let listening = heard.map(|kind| Ok((signal(kind)?, kind)));
        let listening: std::io::Result<_> = listening.collect();
        Ok(Self {
            listening: listening.context("listening for signals")?,
        })
    }

    /// Waits for one. Gives the exit code that shells expect then.
    pub(crate) async fn asked(&mut self) -> u8 {
        let waiting = self.listening.iter_mut().map(|(signal, kind)| async {
            signal.recv().await;
            128 + kind.as_raw_value() as u8
        });
        let mut waiting: FuturesUnordered<_> = waiting.collect();
        waiting.next().await.expect("some are listened for")
    }
}

/// The signals that this process was started to ignore, a bit for each.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
