//! Resizing and patches beside Pillow, torchvision and the processors of transformers.

use odeon_media::{Picture, PictureProcessor, ResizeFilter, Sizing, resized};

use crate::extracts::{Array, arrays, numbers};

fn picture(array: &Array) -> Picture {
    let (height, width) = (array.shape[0] as u32, array.shape[1] as u32);
    Picture::new(width, height, array.bytes.clone()).unwrap()
}

// SEMANTICS 225.
#[test]
fn pictures_are_resized_as_pillow_and_torchvision_do() {
    let levels = arrays("levels", 1);
    let mut compared = 0;
    for (name, expect) in levels.iter().filter(|(name, _)| name.contains('/')) {
        let parts: Vec<&str> = name.split('/').collect();
        let filter = match parts[1] {
            "bicubic" => ResizeFilter::Bicubic,
            _ => ResizeFilter::Bilinear,
        };
        let (height, width) = (expect.shape[0] as u32, expect.shape[1] as u32);
        let source = picture(&levels[parts[0]]);
        let made = resized(&source, height, width, filter).unwrap();
        let apart = made.pixels().iter().zip(&expect.bytes);
        let apart: Vec<u8> = apart.map(|(a, b)| a.abs_diff(*b)).collect();
        let most = apart.iter().max().unwrap();
        let differ = apart.iter().filter(|apart| **apart > 0).count();
        let part = differ as f64 / apart.len() as f64;
        // All as torchvision has it; Pillow's weights have more bits.
        let may = if parts[2] == "pillow" {
            (1, 0.01)
        } else {
            (0, 0.0)
        };
        assert!(
            *most <= may.0 && part <= may.1,
            "{name}: {most} at most, {part} differ"
        );
        compared += 1;
    }
    assert_eq!(compared, 16);
}

/// Compares every so many patches; returns the largest difference.
fn apart(made: &[f32], expect: &Array) -> f32 {
    let every = expect.more["every"].as_u64().unwrap() as usize;
    let length = expect.shape[1];
    let rows = made.chunks(length).step_by(every);
    let numbers = expect.floats();
    assert_eq!(rows.len(), expect.shape[0]);
    let pairs = rows.flatten().zip(&numbers);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

// SEMANTICS 225.
#[test]
fn patches_are_those_of_the_processors() {
    let (levels, numbers_of) = (arrays("levels", 1), arrays("numbers", 4));
    let sized = |processor: PictureProcessor, pixels_min, pixels_max| PictureProcessor {
        sizing: Sizing::Smart {
            pixels_min,
            pixels_max,
        },
        ..processor
    };
    let second = sized(PictureProcessor::qwen2_5_vl(), 28 * 28, 28 * 28 * 12);
    let third = sized(PictureProcessor::qwen3_vl(), 32 * 32, 32 * 32 * 12);
    // Far less than a level, which is 0.004 or more.
    let cases = [
        ("qwen2_5/exact", second, 1e-6),
        ("qwen2_5/wide", second, 1e-6),
        ("qwen3/large", third, 1e-6),
        ("siglip2/high", PictureProcessor::siglip2(12), 1e-6),
    ];
    for (name, processor, most) in cases {
        let source = picture(&levels[name.split('/').nth(1).unwrap()]);
        let mut made = vec![];
        let grid = processor.append(&source, &mut made).unwrap();
        let expect = &numbers_of[name];
        assert_eq!(
            made.len() as u64,
            grid.patches() * processor.patch_numbers() as u64
        );
        if let Some(grids) = expect.more.get("image_grid_thw") {
            let sides = [grid.frames, grid.rows, grid.columns].map(|side| side as usize);
            assert_eq!(sides.to_vec(), numbers(&grids[0]), "{name}");
        } else {
            let sides = [grid.rows, grid.columns].map(|side| side as usize);
            assert_eq!(
                sides.to_vec(),
                numbers(&expect.more["spatial_shapes"][0]),
                "{name}"
            );
            // Behind its patches that processor has rows of zeros.
            made.resize(12 * processor.patch_numbers(), 0.0);
        }
        let apart = apart(&made, expect);
        assert!(apart <= most, "{name}: {apart}");
    }
}

// SEMANTICS 225.
#[test]
fn one_size_for_all_is_siglips() {
    let (levels, numbers_of) = (arrays("levels", 1), arrays("numbers", 4));
    let mut made = vec![];
    let processor = PictureProcessor::siglip(42, 14);
    let grid = processor
        .append(&picture(&levels["wide"]), &mut made)
        .unwrap();
    assert_eq!((grid.rows, grid.columns), (3, 3));
    // Its processor gives planes, which a convolution cuts into these patches.
    let planes = numbers_of["siglip/wide"].floats();
    let mut most = 0.0_f32;
    for (at, number) in made.iter().enumerate() {
        let (patch, within) = (at / 588, at % 588);
        let (colour, row, column) = (within / 196, within % 196 / 14, within % 14);
        let (y, x) = (patch / 3 * 14 + row, patch % 3 * 14 + column);
        let expect = planes[colour * 42 * 42 + y * 42 + x];
        most = most.max((number - expect).abs());
    }
    assert!(most <= 1e-6, "{most}");
}

// SEMANTICS 225.
#[test]
fn frames_of_a_video_become_the_patches_of_qwens_processor() {
    let (levels, numbers_of) = (arrays("levels", 1), arrays("numbers", 4));
    let video = &levels["video"];
    let (height, width) = (video.shape[1] as u32, video.shape[2] as u32);
    let frames = video.bytes.chunks(video.bytes.len() / video.shape[0]);
    let frames = frames.map(|frame| Picture::new(width, height, frame.to_vec()).unwrap());
    let frames: Vec<Picture> = frames.collect();
    let processor = PictureProcessor {
        mean: [0.5; 3],
        std: [0.5; 3],
        ..PictureProcessor::qwen2_5_vl()
    };
    let mut made = vec![];
    let grid = processor.append_video(&frames, (height, width), &mut made);
    let grid = grid.unwrap();
    let expect = &numbers_of["qwen3/video"];
    let sides = [grid.frames, grid.rows, grid.columns].map(|side| side as usize);
    assert_eq!(sides.to_vec(), numbers(&expect.more["image_grid_thw"][0]));
    let apart = apart(&made, expect);
    assert!(apart <= 1e-6, "{apart}");
}
