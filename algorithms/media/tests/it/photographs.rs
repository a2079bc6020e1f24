//! Real photographs, where they are found, beside Pillow and Qwen's processor.

use std::fs;
use std::path::PathBuf;

use odeon_media::{PictureLimits, PictureProcessor, Transparency, decode, probe};
use odeon_skip::{Need, skip};

use crate::extracts::{json, numbers};

/// The members of a tar file by their names.
fn members(tar: &[u8]) -> Vec<(String, &[u8])> {
    let (mut at, mut found) = (0, vec![]);
    while let Some(header) = tar.get(at..at + 512).filter(|header| header[0] != 0) {
        let text = |range: std::ops::Range<usize>| {
            let text = String::from_utf8_lossy(&header[range]).into_owned();
            text.trim_matches(['\0', ' ']).to_owned()
        };
        let size = usize::from_str_radix(&text(124..136), 8).unwrap();
        found.push((text(0..100), &tar[at + 512..at + 512 + size]));
        at += 512 + size.div_ceil(512) * 512;
    }
    found
}

// SEMANTICS 223, 224, 225.
#[test]
fn photographs_are_read_as_qwens_processor_reads_them() {
    let root = std::env::var("ODEON_ORACLES");
    let root = root.map_or_else(
        |_| {
            PathBuf::from(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../../shared/oracles"
            ))
        },
        PathBuf::from,
    );
    let tar = root.join("images/cc12m-train-0000.tar");
    let Ok(tar) = fs::read(&tar) else {
        return skip(Need::Oracles, format!("there is no {}", tar.display()));
    };
    let expected = json("photographs.json");
    let processor = PictureProcessor::qwen2_5_vl();
    let mut compared = 0;
    for (name, bytes) in members(&tar) {
        let Some(expect) = expected.get(&name) else {
            continue;
        };
        let (width, height) = probe(bytes).unwrap().upright();
        let told = ["width", "height"].map(|side| expect[side].as_u64().unwrap() as u32);
        assert_eq!([width, height], told, "{name}");
        let picture = decode(bytes, &PictureLimits::default(), Transparency::White).unwrap();
        let pixels = picture.pixels();
        for colour in 0..3 {
            let all: u64 = pixels
                .iter()
                .skip(colour)
                .step_by(3)
                .map(|level| u64::from(*level))
                .sum();
            let mean = all as f64 / (pixels.len() / 3) as f64;
            let apart = (mean - expect["levels"][colour].as_f64().unwrap()).abs();
            // `zune-jpeg` rounds colours between those that are stored up, twice; libjpeg up and down in turns.
            assert!(apart < 0.5, "{name}: {apart}");
        }
        let mut made = vec![];
        let grid = processor.append(&picture, &mut made).unwrap();
        let sides = [grid.frames, grid.rows, grid.columns].map(|side| side as usize);
        assert_eq!(sides.to_vec(), numbers(&expect["grid"]), "{name}");
        assert_eq!(grid, processor.grid(height, width).unwrap(), "{name}");
        let last = (made.len() - 1) as f64;
        let weight = |at: usize| 2.0 * at as f64 / last - 1.0;
        let weighted: f64 = made
            .iter()
            .enumerate()
            .map(|(at, number)| f64::from(*number) * weight(at))
            .sum();
        let apart = (weighted / made.len() as f64 - expect["patches"].as_f64().unwrap()).abs();
        assert!(apart < 1e-3, "{name}: {apart}");
        compared += 1;
    }
    assert_eq!(compared, 32);
}
