//! `odeon replay`: a recording, shown again or written into one file.

use std::process::ExitCode;

use anyhow::{Context, Result};
use odeon_observe::recording::Head;

use super::signals::Signals;
use super::ui;
use crate::args::{PlayArgs, ReplayArgs};
use crate::inspect::{Replay, Standalone, exported};
use crate::print;
use crate::waiter::Waiter;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode> {
    let replay = Replay::open(&args.file, args.play.speed, false)?;
    let recording = replay.recording();
    let Head { name, release, .. } = recording.head();
    let long = recording.to().since(recording.from()).as_secs_f64();
    print::say(format!("{name}, {long:.0} s, recorded by odeon {release}"));
    if let Some(flaw) = replay.flaw() {
        print::say(flaw);
    }
    on_runtime(async {
        if let Some(path) = &args.html {
            let page = exported(&replay.inspect(), recording.from(), recording.to()).await?;
            std::fs::write(path, &page).with_context(|| path.display().to_string())?;
            print::say(format!(
                "{} ({} KiB) opens in a browser, without a server",
                path.display(),
                page.len().div_ceil(1024)
            ));
            return Ok(ExitCode::SUCCESS);
        }
        play(&replay, &args.play).await
    })
}

/// Serves a recording until somebody asks it to end.
pub(crate) async fn play(replay: &Replay, args: &PlayArgs) -> Result<ExitCode> {
    let mut signals = Signals::listen()?;
    let pages = Standalone::replay(replay, args.port).await?;
    if let Some(url) = pages.connection().map(ui::address_of) {
        let next = match args.open {
            true => "a browser opens this address",
            false => "open this address in a browser",
        };
        print::say(format!("{next}; Ctrl-C ends the replay:"));
        print::line(&url)?;
        if args.open {
            ui::open(&url);
        }
    }
    signals.asked().await;
    print::hush();
    Ok(ExitCode::SUCCESS)
}

/// Waits for something on a runtime of its own.
pub(crate) fn on_runtime<T>(does: impl Future<Output = Result<T>>) -> Result<T> {
    Waiter::with_threads()?.block_on(does)
}
