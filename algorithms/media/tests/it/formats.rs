//! Pictures of every kind beside Pillow.

use odeon_media::{
    PictureFormat, PictureLimits, Transparency, decode, decode_frames, frames, probe,
};

use crate::extracts::{arrays, numbers, picture, pictures};

/// The largest difference of a level, and the mean of all.
fn apart(made: &[u8], expect: &[u8]) -> (u8, f64) {
    assert_eq!(made.len(), expect.len());
    let apart = made.iter().zip(expect).map(|(a, b)| a.abs_diff(*b));
    let all: u64 = apart.clone().map(u64::from).sum();
    (apart.max().unwrap_or(0), all as f64 / made.len() as f64)
}

/// The differences that a kind of file may have. JPEG stands on another rounding of the same transform, and of colours
/// between those that are stored; all else is the same.
fn allowed(name: &str) -> (u8, f64) {
    match name {
        name if name.ends_with(".jpg") => (6, 0.6),
        _ => (0, 0.0),
    }
}

// SEMANTICS 223.
#[test]
fn pictures_are_as_pillow_decodes_them() {
    let limits = PictureLimits::default();
    let expected = arrays("pictures", 1);
    assert_eq!(pictures().len(), expected.len());
    for (name, expect) in &expected {
        let bytes = picture(name);
        let info = probe(&bytes).unwrap();
        let made = decode_frames(&bytes, &limits, Transparency::White).unwrap();
        let shape = &expect.shape;
        let (count, sides) = if shape.len() == 4 {
            (shape[0], &shape[1..3])
        } else {
            (1, &shape[..2])
        };
        assert_eq!(made.len(), count, "{name}");
        assert_eq!(info.frames as usize, count, "{name}");
        let (width, height) = info.upright();
        assert_eq!([height as usize, width as usize], *sides, "{name}");
        let mut from = 0;
        for (at, (frame, expect)) in made
            .iter()
            .zip(expect.bytes.chunks(expect.bytes.len() / count))
            .enumerate()
        {
            let seen = [
                frame.picture.height() as usize,
                frame.picture.width() as usize,
            ];
            assert_eq!(seen, *sides, "{name}");
            let (most, mean) = apart(frame.picture.pixels(), expect);
            let allowed = allowed(name);
            assert!(
                most <= allowed.0 && mean <= allowed.1,
                "{name} {at}: {most} at most, {mean} on average"
            );
            assert_eq!(frame.from_ms, from, "{name}");
            from = frame.to_ms;
        }
        if let Some(times) = expected[name].more.get("times") {
            let made: Vec<usize> = made
                .iter()
                .map(|f| (f.to_ms - f.from_ms) as usize)
                .collect();
            assert_eq!(made, numbers(times), "{name}");
            let all: usize = made.iter().sum();
            assert_eq!(info.duration_ms as usize, all, "{name}");
        }
    }
}

// SEMANTICS 223.
#[test]
fn a_format_is_told_by_its_bytes_and_sizes_without_its_pixels() {
    for name in pictures() {
        let bytes = picture(&name);
        let format = probe(&bytes).unwrap().format;
        let expect = match name.rsplit_once('.').unwrap().1 {
            "jpg" => PictureFormat::Jpeg,
            "png" => PictureFormat::Png,
            "webp" => PictureFormat::WebP,
            _ => PictureFormat::Gif,
        };
        assert_eq!(format, expect, "{name}");
    }
    let turned = probe(&picture("turned.jpg")).unwrap();
    assert_eq!((turned.width, turned.height), (45, 30));
    assert_eq!(turned.upright(), (30, 45));
}

#[test]
fn colours_stay_as_stored_where_nothing_shall_shine_through() {
    let limits = PictureLimits::default();
    let bytes = picture("alpha.png");
    let kept = decode(&bytes, &limits, Transparency::Dropped).unwrap();
    let seen = decode(&bytes, &limits, Transparency::White).unwrap();
    // The first column is nothing but white.
    assert_eq!(seen.pixels()[..3], [255; 3]);
    assert_ne!(kept.pixels()[..3], [255; 3]);
}

#[test]
fn frames_come_when_they_are_asked_for() {
    let bytes = picture("moving.gif");
    let mut some = frames(&bytes, &PictureLimits::default(), Transparency::White).unwrap();
    assert_eq!(some.info().frames, 4);
    let first = some.next().unwrap().unwrap();
    assert_eq!((first.from_ms, first.to_ms), (0, 40));
    assert_eq!(some.count(), 3);
}
