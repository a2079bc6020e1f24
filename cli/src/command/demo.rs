//! `odeon demo`: recordings of real runs that went wrong, or well, and what to look at in them.

use std::process::ExitCode;

use anyhow::Result;
use odeon_observe::Recording;

use super::replay;
use crate::args::DemoArgs;
use crate::demos::{DEMOS, Demo};
use crate::inspect::Replay;
use crate::print;

pub(crate) fn run(args: &DemoArgs) -> Result<ExitCode> {
    if args.list {
        let rows: Vec<_> = DEMOS.iter().map(row).collect();
        print::table(&["name", "seconds", "what happens"], &rows)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = args.name.as_deref().unwrap_or(DEMOS[0].name);
    let demo = DEMOS.iter().find(|demo| demo.name == name);
    let demo = demo.unwrap_or(&DEMOS[0]);
    let recording = Recording::of(demo.bytes.into())?;
    let shown = Replay::of(recording, demo.name, args.play.speed, true)?;
    print::say(format!("{}: {}", demo.name, demo.about));
    for (page, why) in demo.look {
        print::say(format!("  {page}: {why}"));
    }
    if args.name.is_none() {
        print::say("others: odeon demo --list");
    }
    replay::on_runtime(replay::play(&shown, &args.play))
}

fn row(demo: &Demo) -> Vec<String> {
    let long = Recording::of(demo.bytes.into())
        .map(|it| it.to().since(it.from()).as_secs().to_string())
        .unwrap_or_default();
    vec![demo.name.to_owned(), long, demo.about.to_owned()]
}

#[cfg(test)]
mod tests {
    use odeon_observe::recording::End;

    use super::*;

    /// Bytes of all recordings in the binary.
    const BYTES_MAX: usize = 2_250_000;

    #[test]
    fn every_recording_is_whole_and_together_they_are_small() {
        for demo in DEMOS {
            let recording = Recording::of(demo.bytes.into()).unwrap();
            assert_eq!(recording.end(), End::InOrder, "{}", demo.name);
            for frame in recording.frames() {
                frame.unwrap_or_else(|error| panic!("{}: {error}", demo.name));
            }
        }
        let bytes: usize = DEMOS.iter().map(|demo| demo.bytes.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    /// Recordings are public: nothing of the machine on which they were made is in them.
    #[test]
    fn no_recording_names_a_folder_or_a_host() {
        for demo in DEMOS {
            for frame in Recording::of(demo.bytes.into()).unwrap().frames() {
                let text = format!("{:?}", frame.unwrap());
                for word in ["/tmp/", "/work/", "/home/", "/root/"] {
                    assert!(!text.contains(word), "{}: {word}", demo.name);
                }
            }
        }
    }
}
