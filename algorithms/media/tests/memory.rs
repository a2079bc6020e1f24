//! Memory that pictures take, counted by the allocator, in a process of its own. `ODEON_CASES` says how many files are damaged.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::fs;
use std::path::Path;

use odeon_media::{
    PictureLimits, SoundLimits, Transparency, decode_frames, decode_sound, frames, probe,
    probe_sound,
};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The most bytes that were allocated at once while this ran, beyond those before.
fn most(run: impl FnOnce()) -> u64 {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    run();
    MEMORY.peak_usage().saturating_sub(before) as u64
}

fn files(folder: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(folder);
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths.filter(|path| path.is_file()).collect();
    files.sort();
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    };
    files.into_iter().map(read).collect()
}

// SEMANTICS 223. One test, so that nothing else allocates.
#[test]
fn a_picture_takes_no_more_memory_than_its_headers_tell() {
    let limits = PictureLimits::default();
    for (name, bytes) in files("large").into_iter().chain(files("pictures")) {
        let told = most(|| assert!(probe(&bytes).is_ok()));
        assert!(told < 4096, "{name}: headers take {told}");
        let info = probe(&bytes).unwrap();
        let taken = most(|| {
            for frame in frames(&bytes, &limits, Transparency::White).unwrap() {
                drop(frame.unwrap());
            }
        });
        assert!(
            taken <= info.decode_bytes,
            "{name}: {taken} of {}",
            info.decode_bytes
        );
        // Not so much more that what fits is refused.
        let pixels = info.pixels() * 3;
        assert!(
            info.decode_bytes < pixels * 8 + (4 << 20),
            "{name}: {}",
            info.decode_bytes
        );
        println!(
            "{name}: {taken} of {} bytes, {pixels} of them pixels",
            info.decode_bytes
        );
        let just = PictureLimits {
            bytes_max: info.decode_bytes - 1,
            ..limits
        };
        let refused = most(|| assert!(frames(&bytes, &just, Transparency::White).is_err()));
        assert!(refused < 4096, "{name}: a refusal takes {refused}");
    }
    sounds();
    damaged();
}

// SEMANTICS 226.
fn sounds() {
    let limits = SoundLimits::default();
    for (name, bytes) in files("sounds") {
        let info = probe_sound(&bytes).unwrap();
        let taken = most(|| drop(decode_sound(&bytes, 16_000, &limits).unwrap()));
        let told = info.decode_bytes(16_000);
        assert!(taken <= told, "{name}: {taken} of {told}");
        println!("{name}: {taken} of {told} bytes");
    }
    let hour = files("")
        .into_iter()
        .find(|(name, _)| name == "hour.flac")
        .unwrap()
        .1;
    let refused = most(|| assert!(decode_sound(&hour, 16_000, &limits).is_err()));
    assert!(refused < 1 << 20, "a refusal takes {refused}");
}

fn damaged() {
    let all: Vec<_> = files("large")
        .into_iter()
        .chain(files("pictures"))
        .collect();
    let limits = PictureLimits {
        pixels_max: 1 << 21,
        bytes_max: 24 << 20,
        frames_max: 64,
    };
    let damage = (
        any::<prop::sample::Index>(),
        prop::collection::vec((0_usize..400, any::<u8>()), 1..6),
    );
    let mut runner = TestRunner::new(ProptestConfig {
        cases: std::env::var("ODEON_CASES").map_or(1500, |cases| cases.parse().unwrap()),
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let run = runner.run(&damage, |(which, damage)| {
        let (name, bytes) = which.get(&all);
        let mut bytes = bytes.clone();
        let length = bytes.len();
        for (at, byte) in damage {
            bytes[at % length] = byte;
        }
        let Ok(info) = probe(&bytes) else {
            return Ok(());
        };
        // All frames at once are within the limit, one after the other within what headers tell.
        let taken = most(|| drop(decode_frames(&bytes, &limits, Transparency::White)));
        prop_assert!(taken <= limits.bytes_max, "{name}: {taken}");
        let taken = most(|| {
            if let Ok(frames) = frames(&bytes, &limits, Transparency::White) {
                frames.for_each(drop);
            }
        });
        prop_assert!(taken <= info.decode_bytes, "{name}: {taken}");
        Ok(())
    });
    run.unwrap();
    let all = files("sounds");
    let limits = SoundLimits {
        bytes_max: 20 << 20,
        ..SoundLimits::default()
    };
    let run = runner.run(&damage, |(which, damage)| {
        let (name, bytes) = which.get(&all);
        let mut bytes = bytes.clone();
        let length = bytes.len();
        for (at, byte) in damage {
            bytes[at % length] = byte;
        }
        let taken = most(|| drop(decode_sound(&bytes, 16_000, &limits)));
        let told = probe_sound(&bytes).map_or(limits.bytes_max, |info| info.decode_bytes(16_000));
        prop_assert!(taken <= told.min(limits.bytes_max), "{name}: {taken}");
        Ok(())
    });
    run.unwrap();
}
