//! Bytes that are no pictures, or more than anybody wants.

use std::panic::catch_unwind;

use odeon_media::{
    Bound, MediaError, MediaPlace, PictureInfo, PictureLimits, Transparency, decode_frames, probe,
};
use proptest::prelude::*;

use crate::extracts::{picture, pictures};

fn read(bytes: &[u8], limits: &PictureLimits) -> Result<usize, MediaError> {
    decode_frames(bytes, limits, Transparency::White).map(|frames| frames.len())
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let chunk = |kind: &[u8; 4], data: &[u8]| {
        let mut chunk = (data.len() as u32).to_be_bytes().to_vec();
        chunk.extend(kind);
        chunk.extend(data);
        chunk.extend([0; 4]);
        chunk
    };
    let mut header = width.to_be_bytes().to_vec();
    header.extend(height.to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", &header[..]), (b"IDAT", &[0; 20]), (b"IEND", &[])] {
        file.extend(chunk(kind, data));
    }
    file
}

/// A GIF of these sides with frames of these.
fn gif(width: u16, height: u16, frames: u32, side: u16) -> Vec<u8> {
    let mut file = b"GIF89a".to_vec();
    file.extend(width.to_le_bytes());
    file.extend(height.to_le_bytes());
    file.extend([0x80, 0, 0, 0, 0, 0, 255, 255, 255]);
    for _ in 0..frames {
        file.extend([0x2c, 0, 0, 0, 0]);
        file.extend(side.to_le_bytes());
        file.extend(side.to_le_bytes());
        // Clear, one number, end.
        file.extend([0, 2, 2, 0x44, 0x01, 0]);
    }
    file.push(0x3b);
    file
}

fn webp(width: u32, height: u32, inside: (u16, u16)) -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0".to_vec();
    file.extend(&(width - 1).to_le_bytes()[..3]);
    file.extend(&(height - 1).to_le_bytes()[..3]);
    file.extend(b"VP8 \x0a\0\0\0\0\0\0\x9d\x01\x2a");
    file.extend(inside.0.to_le_bytes());
    file.extend(inside.1.to_le_bytes());
    let length = file.len() as u32 - 8;
    file[4..8].copy_from_slice(&length.to_le_bytes());
    file
}

fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let mut file = b"\xff\xd8\xff\xc2\0\x11\x08".to_vec();
    file.extend(height.to_be_bytes());
    file.extend(width.to_be_bytes());
    file.extend(b"\x03\x01\x11\0\x02\x11\0\x03\x11\0");
    file.extend(b"\xff\xda\0\x0c\x03\x01\0\x02\0\x03\0\0\x3f\0\xff\xd9");
    file
}

// SEMANTICS 223.
#[test]
fn what_is_too_large_is_refused_by_its_headers() {
    let limits = PictureLimits::default();
    let check = |file: &[u8], bound, has, may| {
        let expect = Err((bound, has, may));
        let refused = read(file, &limits).map_err(|error| match error {
            MediaError::TooLarge {
                bound, has, may, ..
            } => (bound, has, may),
            other => panic!("{other}"),
        });
        assert_eq!(refused, expect);
    };
    let pixels = limits.pixels_max;
    check(
        &png(100_000, 100_000),
        Bound::Pixels,
        10_000_000_000,
        pixels,
    );
    let largest = i32::MAX as u32;
    check(
        &png(largest, largest),
        Bound::Pixels,
        u64::from(largest).pow(2),
        pixels,
    );
    check(
        &jpeg(65_535, 65_535),
        Bound::Pixels,
        65_535 * 65_535,
        pixels,
    );
    check(
        &gif(65_535, 65_535, 1, 1),
        Bound::Pixels,
        65_535 * 65_535,
        pixels,
    );
    check(
        &webp(1 << 24, 1 << 24, (8, 8)),
        Bound::Pixels,
        1 << 48,
        pixels,
    );
    check(&gif(1, 1, 100_000, 1), Bound::Frames, 100_000, 4096);
    // A small canvas with a frame that is larger than memory.
    let huge = probe(&gif(8, 8, 1, 65_535)).unwrap().decode_bytes;
    check(&gif(8, 8, 1, 65_535), Bound::Bytes, huge, limits.bytes_max);
    assert!(huge > 65_535 * 65_535);
    // All coefficients of a progressive picture, which its pixels do not tell.
    let large = probe(&jpeg(8192, 8192)).unwrap().decode_bytes;
    check(&jpeg(8192, 8192), Bound::Bytes, large, limits.bytes_max);
    // Each frame fits, and all do not.
    let many = gif(4000, 4000, 30, 1);
    assert!(probe(&many).unwrap().check(&limits).is_ok());
    let refused = read(&many, &limits).unwrap_err();
    assert!(matches!(
        refused,
        MediaError::TooLarge {
            bound: Bound::Bytes,
            ..
        }
    ));
    let said = read(&png(100_000, 100_000), &limits)
        .unwrap_err()
        .to_string();
    assert_eq!(
        said,
        "the PNG has 10000000000 pixels, and the limit is 67108864: raise `pixels_max`, or make it smaller"
    );
}

// SEMANTICS 223.
#[test]
fn a_picture_within_is_no_larger_than_its_header_says() {
    let refused = read(&webp(8, 8, (16_383, 16_383)), &PictureLimits::default());
    let said = refused.unwrap_err().to_string();
    assert!(said.contains("larger than its header says"), "{said}");
}

// SEMANTICS 223.
#[test]
fn what_a_jpeg_hides_between_its_segments_is_refused() {
    let limits = PictureLimits::default();
    let plain = picture("progressive.jpg");
    let scans: Vec<_> = memchr::memmem::find_iter(&plain, b"\xff\xda").collect();
    let said = |at: usize, bytes: &[u8]| {
        let file = [&plain[..at], bytes, &plain[at..]].concat();
        read(&file, &limits).map_err(|error| error.to_string())
    };
    let note = b"\xff\xe2\0\x06MPF\0";
    // Notes are left out, wherever segments may be.
    assert_eq!(said(2, note), Ok(1));
    assert_eq!(said(scans[2], note), Ok(1));
    let between = said(scans[0], b"odd").unwrap_err();
    assert!(
        between.contains("bytes stand between its segments"),
        "{between}"
    );
    // A note in the middle of compressed data.
    let within = said(scans[1] + 20, note).unwrap_err();
    assert!(within.contains("goes on behind a segment"), "{within}");
}

// SEMANTICS 223.
#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let limits = PictureLimits::default();
    for name in pictures() {
        let whole = picture(&name);
        for length in 0..whole.len() {
            let cut = read(&whole[..length], &limits);
            assert!(cut.is_err(), "{name} cut at {length} of {}", whole.len());
        }
    }
}

// SEMANTICS 223.
#[test]
fn what_is_no_picture_is_named() {
    let said = |bytes: &[u8]| probe(bytes).unwrap_err().to_string();
    assert_eq!(
        said(b""),
        "this is no JPEG, PNG, WebP or GIF: it has no bytes"
    );
    let heic = b"\0\0\0\x18ftypheic\0\0\0\0";
    assert!(said(heic).ends_with("it is HEIC: convert it to one of these"));
    assert!(said(b"<!DOCTYPE html><title>404").contains("a page of HTML"));
    assert!(said(b"version https://git-lfs.github.com/spec/v1").contains("Git LFS"));
    assert!(said(b"\x01\x02\x03").ends_with("it begins with 01 02 03"));
    // What has a format's beginning and is not read is named with what to do.
    let mut arithmetic = jpeg(8, 8);
    arithmetic[3] = 0xc9;
    assert_eq!(
        said(&arithmetic),
        "the JPEG has arithmetic codes, which is not read: convert it to a JPEG of eight bits with Huffman codes"
    );
    let mut deep = jpeg(8, 8);
    deep[6] = 12;
    assert!(said(&deep).contains("12 bits a colour"));
    let mut alien = gif(4, 4, 1, 4);
    alien[19] = 0x77;
    let MediaError::Broken { place, .. } = probe(&alien).unwrap_err() else {
        panic!("{}", said(&alien));
    };
    assert_eq!(place, MediaPlace::Byte(19));
}

/// A few kinds of damage: bytes that are others, a stretch that is missing or twice.
fn damage(file: &mut Vec<u8>, kind: u8, at: usize, length: usize, with: &[u8]) {
    if file.is_empty() {
        return;
    }
    let at = at % file.len();
    let end = (at + length).min(file.len());
    match kind % 4 {
        0 => drop(file.drain(at..end)),
        1 => {
            let again = file[at..end].to_vec();
            file.splice(at..at, again);
        }
        _ => {
            let length = file.len();
            for (place, byte) in with.iter().enumerate() {
                let place = if kind % 4 == 2 {
                    at + place
                } else {
                    at + place * 97
                };
                file[place % length] = *byte;
            }
        }
    }
}

fn small() -> PictureLimits {
    PictureLimits {
        pixels_max: 1 << 20,
        bytes_max: 32 << 20,
        frames_max: 64,
    }
}

/// Reads within limits; a panic is the only failure.
fn survives(bytes: &[u8]) -> Result<PictureInfo, MediaError> {
    let read = catch_unwind(|| {
        let info = probe(bytes)?;
        read(bytes, &small())?;
        Ok(info)
    });
    read.expect("no bytes panic")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    // SEMANTICS 223.
    #[test]
    fn damaged_pictures_never_panic(
        which: prop::sample::Index, kind: u8, at: usize, length in 0_usize..400,
        with in prop::collection::vec(any::<u8>(), 1..9), early: bool,
    ) {
        let names = pictures();
        let name: &String = which.get(&names);
        let mut file = picture(name);
        // Headers are the most interesting.
        let at = if early { at % 120 } else { at };
        damage(&mut file, kind, at, length, &with);
        let _ = survives(&file);
    }

    // SEMANTICS 223.
    #[test]
    fn any_bytes_never_panic(
        start in prop::sample::select(vec![
            &b""[..], b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\x40\0\0\0WEBPVP8L", b"RIFF\x40\0\0\0WEBPVP8X",
            b"RIFF\x40\0\0\0WEBPVP8 ",
        ]),
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut file = start.to_vec();
        file.extend(rest);
        let _ = survives(&file);
    }
}
