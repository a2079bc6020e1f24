//! Memory that pictures take, counted by the allocator, in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test ends where something is wrong")]
#![allow(clippy::print_stdout, reason = "a test reports what it measured")]

use std::fs;
use std::path::Path;

use odeon_media::{PictureLimits, Transparency, decode_frames, frames, probe};
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
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |path: std::path::PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    };
    files.into_iter().map(read).collect()
}

// SEMANTICS 225. One test, so that nothing else allocates.
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
    damaged();
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
        cases: 1500,
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
        let taken = most(|| drop(decode_frames(&bytes, &limits, Transparency::White)));
        prop_assert!(taken <= limits.bytes_max, "{name}: {taken}");
        Ok(())
    });
    run.unwrap();
}
