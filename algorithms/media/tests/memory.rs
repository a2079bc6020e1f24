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
    noted_pictures();
    sounds();
    noted_sounds();
    lost_frames();
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

fn picture(name: &str) -> Vec<u8> {
    let found = files("pictures").into_iter().find(|file| file.0 == name);
    found.unwrap().1
}

fn sound(name: &str) -> Vec<u8> {
    let found = files("sounds").into_iter().find(|file| file.0 == name);
    found.unwrap().1
}

/// A segment of a JPEG.
fn segment(marker: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut segment = vec![0xff, marker];
    segment.extend((body.len() as u16 + 2).to_be_bytes());
    segment.extend(body);
    segment
}

// SEMANTICS 223. Notes of a file, of which a decoder makes copies, take nothing.
fn noted_pictures() {
    let jpeg = |notes: Vec<u8>| {
        let plain = picture("progressive.jpg");
        // The last stands between two scans.
        let scans: Vec<_> = memchr::memmem::find_iter(&plain, b"\xff\xda").collect();
        let between = scans[1];
        [
            &plain[..2],
            &notes,
            &plain[2..between],
            &notes,
            &plain[between..],
        ]
        .concat()
    };
    let profile = |part: u8| segment(0xe2, &[b"ICC_PROFILE\0", &[part, 250], &[7; 60_000]]);
    let xmp = |at: u32| {
        let name: &[u8] = b"http://ns.adobe.com/xmp/extension/\0";
        segment(
            0xe1,
            &[name, &[b'0'; 32], &[0xff; 4], &at.to_be_bytes(), b"x"],
        )
    };
    let exif = [
        &0x0140_0000_u32.to_be_bytes()[..],
        b"eXIf",
        &vec![7; 0x0140_0000],
        &[0; 4],
    ]
    .concat();
    let png = |notes: &[u8]| {
        let plain = picture("plain.png");
        [&plain[..33], notes, &plain[33..]].concat()
    };
    let gif = |name: &[u8]| {
        let plain = picture("moving.gif");
        let colours = match plain[10] & 0x80 {
            0 => 0,
            _ => 6 << (plain[10] & 7),
        };
        let mut notes = [b"\x21\xff\x0b", name].concat();
        for _ in 0..80_000 {
            notes.push(255);
            notes.extend([7; 255]);
        }
        notes.push(0);
        [&plain[..13 + colours], &notes, &plain[13 + colours..]].concat()
    };
    let noted = [
        (
            "progressive.jpg",
            "a profile",
            jpeg((1..=250).flat_map(profile).collect()),
        ),
        (
            "progressive.jpg",
            "extended XMP",
            jpeg((0..50_000).flat_map(xmp).collect()),
        ),
        ("plain.png", "EXIF", png(&exif)),
        ("moving.gif", "XMP", gif(b"XMP DataXMP")),
        ("moving.gif", "a profile", gif(b"ICCRGBG1012")),
    ];
    let limits = PictureLimits::default();
    for (name, note, bytes) in noted {
        let plain = picture(name);
        let told = probe(&plain).unwrap().decode_bytes;
        assert_eq!(
            probe(&bytes).unwrap().decode_bytes,
            told,
            "{name} with {note}"
        );
        let taken = most(|| {
            for frame in frames(&bytes, &limits, Transparency::White).unwrap() {
                drop(frame.unwrap());
            }
        });
        assert!(taken <= told, "{name} with {note}: {taken} of {told}");
        println!(
            "{name} with {} bytes of {note}: {taken} of {told}",
            bytes.len()
        );
        let read = |bytes: &[u8]| decode_frames(bytes, &limits, Transparency::White).unwrap();
        assert!(read(&bytes) == read(&plain), "{name} with {note}");
    }
}

/// As many comments as a reader makes hundreds of megabytes of.
fn comments() -> Vec<u8> {
    let mut comments = [0_u32.to_le_bytes(), 2_000_000_u32.to_le_bytes()].concat();
    for _ in 0..2_000_000 {
        comments.extend(b"\x02\0\0\0A=");
    }
    comments
}

/// A FLAC with these blocks, none of which is the last, behind the one that describes it.
fn flac(kind: u8, blocks: &[Vec<u8>]) -> Vec<u8> {
    let plain = sound("speech.flac");
    let mut file = plain[..42].to_vec();
    file[4] &= 0x7f;
    for block in blocks {
        file.push(kind);
        file.extend(&(block.len() as u32).to_be_bytes()[1..]);
        file.extend(block);
    }
    if plain[4] & 0x80 != 0 {
        file.extend([0x81, 0, 0, 0]);
    }
    file.extend(&plain[42..]);
    file
}

/// The sum of a page of Ogg.
fn checksum(page: &[u8]) -> u32 {
    let mut sum = 0_u32;
    for byte in page {
        sum ^= u32::from(*byte) << 24;
        for _ in 0..8 {
            sum = (sum << 1) ^ (0x04c1_1db7 & 0_u32.wrapping_sub(sum >> 31));
        }
    }
    sum
}

/// An Opus with these notes in the place of its own.
fn opus(comments: &[u8]) -> Vec<u8> {
    let plain = sound("speech.opus");
    let starts: Vec<_> = memchr::memmem::find_iter(&plain, b"OggS").collect();
    let mut file = plain[..starts[1]].to_vec();
    let notes = [b"OpusTags", comments].concat();
    let parts: Vec<_> = notes.chunks(255 * 255).collect();
    for (at, part) in parts.iter().enumerate() {
        let mut page = plain[starts[1]..starts[1] + 27].to_vec();
        page[5] = u8::from(at > 0);
        page[18..22].copy_from_slice(&(at as u32 + 1).to_le_bytes());
        page[22..26].fill(0);
        let mut lengths = vec![255; part.len() / 255];
        if at + 1 == parts.len() {
            lengths.push((part.len() % 255) as u8);
        }
        page[26] = lengths.len() as u8;
        page.extend(lengths);
        page.extend(*part);
        let sum = checksum(&page);
        page[22..26].copy_from_slice(&sum.to_le_bytes());
        file.extend(page);
    }
    file.extend(&plain[starts[2]..]);
    file
}

// SEMANTICS 226. Notes of a file, of which a reader makes copies, take nothing.
fn noted_sounds() {
    let wav = || {
        let plain = sound("speech.wav");
        let mut notes = b"INFO".to_vec();
        for _ in 0..1_000_000 {
            notes.extend(b"IART\x02\0\0\0A\0");
        }
        let mut file = [&plain[..12], b"LIST"].concat();
        file.extend((notes.len() as u32).to_le_bytes());
        file.extend(notes);
        file.extend(&plain[12..]);
        let length = file.len() as u32 - 8;
        file[4..8].copy_from_slice(&length.to_le_bytes());
        file
    };
    let id3 = || {
        let mut file = b"ID3\x04\0\0\x0a\0\0\0".to_vec();
        file.resize(10 + (10 << 21), 7);
        file.extend(sound("speech.mp3"));
        file
    };
    let mut painted = [3, 9].map(u32::to_be_bytes).concat();
    painted.extend(b"image/png");
    painted.extend([0; 20]);
    painted.extend((15_000_000_u32).to_be_bytes());
    painted.resize(painted.len() + 15_000_000, 7);
    let own = [b"ODEO".to_vec(), vec![7; 15_000_000]].concat();
    let noted = [
        ("speech.flac", "comments", flac(4, &[comments()])),
        (
            "speech.flac",
            "pictures",
            flac(6, &[painted.clone(), painted]),
        ),
        (
            "speech.flac",
            "an application",
            flac(2, &[own.clone(), own]),
        ),
        ("speech.opus", "comments", opus(&comments())),
        ("speech.wav", "notes", wav()),
        ("speech.mp3", "notes", id3()),
    ];
    let limits = SoundLimits::default();
    for (name, note, bytes) in noted {
        let plain = sound(name);
        let told = probe_sound(&plain).unwrap().decode_bytes(16_000);
        let probed = most(|| assert!(probe_sound(&bytes).is_ok()));
        assert!(
            probed < 1 << 20,
            "{name} with {note}: headers take {probed}"
        );
        let taken = most(|| drop(decode_sound(&bytes, 16_000, &limits).unwrap()));
        assert!(taken <= told, "{name} with {note}: {taken} of {told}");
        println!(
            "{name} with {} bytes of {note}: {taken} of {told}",
            bytes.len()
        );
        let read = |bytes: &[u8]| decode_sound(bytes, 16_000, &limits).unwrap();
        assert!(read(&bytes) == read(&plain), "{name} with {note}");
    }
}

// SEMANTICS 226. Bytes among frames, among which a reader would look for one, and collect them.
fn lost_frames() {
    let limits = SoundLimits::default();
    let plain = sound("speech.flac");
    let middle = plain.len() / 2;
    let told = probe_sound(&plain).unwrap().decode_bytes(16_000);
    for at in [middle, plain.len()] {
        let bytes = [&plain[..at], &vec![0; 15 << 20], &plain[at..]].concat();
        let taken = most(|| assert!(decode_sound(&bytes, 16_000, &limits).is_err()));
        assert!(taken <= told / 8, "{taken} of {told}");
    }
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
