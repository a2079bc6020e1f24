//! Packing, windows and positions beside transformers, number by number.

use odeon_media::{AttentionWindows, MropePositions, PatchGrid, PatchPacking, SequencePart};
use serde_json::Value;

use crate::extracts::{json, numbers};

fn grid(value: &Value) -> PatchGrid {
    let sides = numbers(value);
    PatchGrid {
        frames: sides[0] as u32,
        rows: sides[1] as u32,
        columns: sides[2] as u32,
    }
}

fn grids(value: &Value) -> Vec<PatchGrid> {
    value.as_array().unwrap().iter().map(grid).collect()
}

fn same(made: &[u32], expect: &Value) {
    let made: Vec<usize> = made.iter().map(|number| *number as usize).collect();
    assert_eq!(made, numbers(expect));
}

// SEMANTICS 225.
#[test]
fn packed_pictures_are_where_transformers_has_them() {
    for case in json("positions.json")["packed"].as_array().unwrap() {
        let grids = grids(&case["grids"]);
        let packing = PatchPacking::new(&grids, 2).unwrap();
        same(&packing.cu_seqlens, &case["cu_seqlens"]);
        let places = case["positions"].as_array().unwrap();
        assert_eq!(packing.positions.len(), places.len());
        for (made, expect) in packing.positions.iter().zip(places) {
            same(made, expect);
        }
        // Windows of 112 pixels: 4 tokens of two patches of 14.
        let windows = AttentionWindows::new(&grids, 2, 4).unwrap();
        same(&windows.order, &case["order"]);
        same(&windows.cu_seqlens, &case["windows"]);
    }
}

// SEMANTICS 225.
#[test]
fn rotary_angles_are_those_of_the_tower() {
    let extract = &json("positions.json")["rotary"];
    let packing = PatchPacking::new(&grids(&extract["grids"]), 2).unwrap();
    let angles = packing.rotary_angles(16, 10_000.0);
    let every = extract["every"].as_u64().unwrap() as usize;
    for (name, of) in [("cos", f32::cos as fn(f32) -> f32), ("sin", f32::sin)] {
        let mut compared = 0;
        for (row, expect) in extract[name].as_array().unwrap().iter().enumerate() {
            let made = &angles[row * every * 8..][..8];
            // A head's second half is turned as its first.
            let made = made.iter().chain(made);
            for (made, expect) in made.zip(expect.as_array().unwrap()) {
                let expect = expect.as_f64().unwrap() as f32;
                assert!((of(*made) - expect).abs() < 2e-6, "{} {expect}", of(*made));
                compared += 1;
            }
        }
        assert!(compared > 400, "{compared}");
    }
}

// SEMANTICS 225.
#[test]
fn positions_in_the_language_model_are_those_of_qwen() {
    let extract = json("positions.json");
    let per_second = extract["tokens_per_second"].as_f64().unwrap() as f32;
    for case in extract["mrope"].as_array().unwrap() {
        let part = |part: &Value| match part[0].as_str().unwrap() {
            "text" => SequencePart::Text(part[1].as_u64().unwrap() as u32),
            "picture" => SequencePart::Picture(grid(&part[1])),
            _ => SequencePart::Video {
                grid: grid(&part[1]),
                seconds: part[2].as_f64().unwrap() as f32,
            },
        };
        let parts: Vec<SequencePart> = case["parts"].as_array().unwrap().iter().map(part).collect();
        let made = MropePositions::new(&parts, 2, per_second).unwrap();
        assert_eq!(Value::from(made.delta), case["delta"], "{parts:?}");
        let made: Vec<Value> = made
            .positions
            .iter()
            .map(|at| Value::from(at.to_vec()))
            .collect();
        assert_eq!(Value::from(made), case["positions"], "{parts:?}");
    }
}

#[test]
fn patches_that_are_no_whole_tokens_are_refused() {
    let odd = [PatchGrid {
        frames: 1,
        rows: 3,
        columns: 4,
    }];
    let said = PatchPacking::new(&odd, 2).unwrap_err().to_string();
    assert_eq!(
        said,
        "rows or columns of patches is 3, and must be a multiple of the patches along a token"
    );
    assert!(AttentionWindows::new(&odd, 2, 4).is_err());
    assert!(AttentionWindows::new(&[], 2, 0).is_err());
    let parts = [SequencePart::Picture(odd[0])];
    assert!(MropePositions::new(&parts, 2, 2.0).is_err());
}
