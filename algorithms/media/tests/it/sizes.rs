//! Token arithmetic beside the processors of transformers, to the pixel.

use odeon_media::{MediaError, Sizing, patch_seconds, qwen_frames, qwen_stamp, video_size};
use serde_json::Value;

use crate::extracts::{json, numbers};

fn seen(size: Result<(u32, u32), MediaError>) -> Option<Vec<usize>> {
    let (height, width) = size.ok()?;
    Some(vec![height as usize, width as usize])
}

fn expected(value: &Value) -> Option<Vec<usize>> {
    (!value.is_null()).then(|| numbers(value))
}

fn int(value: &Value) -> u32 {
    value.as_u64().unwrap().try_into().unwrap()
}

// SEMANTICS 224.
#[test]
fn sizes_of_pictures_are_those_of_qwens_processor() {
    let (mut compared, mut refused) = (0, 0);
    for rule in json("sizes.json")["smart"].as_array().unwrap() {
        let bounds = numbers(&rule["bounds"]);
        let sizing = Sizing::Smart {
            pixels_min: bounds[0] as u64,
            pixels_max: bounds[1] as u64,
        };
        for case in rule["of"].as_array().unwrap() {
            let made = seen(sizing.size(int(&case[0]), int(&case[1]), int(&rule["unit"])));
            assert_eq!(made, expected(&case[2]), "{case} of {}", rule["bounds"]);
            compared += 1;
            refused += usize::from(made.is_none());
        }
    }
    assert!(compared > 2500 && refused > 100, "{compared} {refused}");
}

// SEMANTICS 224.
#[test]
fn sizes_of_videos_are_those_of_qwens_processor() {
    let extract = json("sizes.json");
    let cases = extract["videos"].as_array().unwrap();
    for case in cases {
        let bounds = [&case[4], &case[5]].map(|bound| bound.as_u64().unwrap());
        let [frames, height, width, unit] = [0, 1, 2, 3].map(|part| int(&case[part]));
        let made = video_size(frames, height, width, unit, 2, bounds);
        assert_eq!(seen(made), expected(&case[6]), "{case}");
    }
    assert!(cases.len() > 1000, "{}", cases.len());
}

// SEMANTICS 224.
#[test]
fn sizes_with_the_most_patches_are_those_of_siglip_2() {
    let extract = json("sizes.json");
    let cases = extract["largest"].as_array().unwrap();
    for case in cases {
        let sizing = Sizing::Largest {
            patches_max: int(&case[2]),
        };
        let made = sizing.size(int(&case[0]), int(&case[1]), 16);
        assert_eq!(seen(made), expected(&case[3]), "{case}");
    }
    assert!(cases.len() > 1000, "{}", cases.len());
}

// SEMANTICS 224.
#[test]
fn frames_and_their_times_are_those_of_qwens_processor() {
    for case in json("sampled.json").as_array().unwrap() {
        let count = u64::from(int(&case[0]));
        let [video_fps, fps] = [1, 2].map(|part| case[part].as_f64().unwrap());
        let kept = qwen_frames(count, video_fps, fps, 4, 768);
        assert_eq!(kept, u64::from(int(&case[3])), "{case}");
        let Some(frames) = expected(&case[4]) else {
            continue;
        };
        let made: Vec<u64> = odeon_media::evenly(count, kept).collect();
        let frames: Vec<u64> = frames.into_iter().map(|frame| frame as u64).collect();
        assert_eq!(made, frames, "{count} at {video_fps}");
        let stamps = patch_seconds(&made, video_fps, 2)
            .into_iter()
            .map(qwen_stamp);
        let stamps: Vec<Value> = stamps.map(Value::from).collect();
        assert_eq!(
            &stamps,
            case[5].as_array().unwrap(),
            "{count} at {video_fps}"
        );
    }
}
