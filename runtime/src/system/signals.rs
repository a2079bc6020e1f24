//! Signals that ask a program to end: its actors are stopped in order, and then it does.

use std::pin::Pin;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::System;
use crate::actor::console::Console;
use crate::base::failure::signal_name;

/// Listens for SIGINT and SIGTERM.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// `None` where that cannot be had: then they end the program as they do any other.
    pub(super) fn listen() -> Option<Self> {
        let listening = |kind| {
            let listening = signal(kind);
            listening.inspect_err(|error| tracing::warn!(%error, "signals are not listened to"))
        };
        Some(Self {
            interrupt: listening(SignalKind::interrupt()).ok()?,
            terminate: listening(SignalKind::terminate()).ok()?,
        })
    }

    /// Waits for one, and gives its number.
    async fn asked(&mut self) -> i32 {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt().as_raw_value(),
            _ = self.terminate.recv() => SignalKind::terminate().as_raw_value(),
        }
    }
}

/// Runs `main` to its end. A signal ends the program before: actors are stopped, `main` is dropped where it waits,
/// and the exit code is 128 and the signal's number, as shells expect it. Another one ends it at once.
pub(super) async fn heeded<T>(
    signals: Option<Signals>,
    system: &System,
    mut main: Pin<Box<dyn Future<Output = T> + '_>>,
) -> T {
    let Some(mut signals) = signals else {
        return main.await;
    };
    let number = tokio::select! {
        biased;
        outcome = &mut main => return outcome,
        number = signals.asked() => number,
    };
    let name = signal_name(number);
    let console = system.engine.component::<Console>();
    console.shout(format_args!(
        "asked to end by signal {number}{name}: actors are stopped; once more ends the program at once"
    ));
    tracing::info!(number, "a signal asks the program to end");
    let number = tokio::select! {
        () = system.clone().shutdown() => number,
        number = signals.asked() => number,
    };
    drop(main);
    std::process::exit(128 + number)
}
