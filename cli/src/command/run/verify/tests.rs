//! The sentences at the end, and the folder that is gone then.

use std::collections::BTreeMap;
use std::fs;

use odeon_actors::pretrain::verify::StepPair;

use super::*;

fn mismatch(tensor: Option<&str>, quantity: Quantity, relative: f64) -> Mismatch {
    Mismatch {
        step: 1,
        quantity,
        tensor: tensor.map(str::to_owned),
        index: tensor.map_or_else(Vec::new, |_| vec![3, 1]),
        ranks: tensor.map_or_else(Vec::new, |_| vec![1, 3]),
        plan: 1.5,
        one: 2.0,
        relative,
    }
}

fn verified(first: Option<Mismatch>, beyond: Option<Mismatch>) -> Verified {
    Verified {
        steps: vec![StepPair {
            step: 1,
            loss: [2.0, 2.0],
            grad_norm: [1.0, 1.0],
        }],
        tolerance: 1e-5,
        equal: first.is_none(),
        first,
        beyond,
        parts: vec![PartMismatch {
            part: "model.layers.0".to_owned(),
            largest: BTreeMap::from([(Quantity::Gradient, 0.0)]),
        }],
        parameters: 1234,
        in_doubt: 2,
    }
}

#[test]
fn the_end_is_said_in_a_sentence_for_each_kind() {
    let equal = conclusion(&verified(None, None), 4).join("\n");
    assert!(equal.starts_with("equal to the bit"), "{equal}");
    let rounded = mismatch(None, Quantity::Loss, 1.2e-7);
    let told = conclusion(&verified(Some(rounded.clone()), None), 4).join("\n");
    for said in [
        "the first that differs: step 1, loss: 1.5 with 4 ranks, 2 with one, 1.2e-7 apart",
        "but for rounding",
    ] {
        assert!(told.contains(said), "{told}");
    }
    let other = mismatch(
        Some("model.layers.3.mlp.up_proj.weight"),
        Quantity::Gradient,
        0.01,
    );
    let told = conclusion(&verified(Some(rounded), Some(other)), 4).join("\n");
    let said = "NOT THE SAME: the first that differs by more than 1.0e-5 (--tolerance): step 1, gradient of \
                model.layers.3.mlp.up_proj.weight at [3, 1] (of ranks 1 and 3): 1.5 with 4 ranks, 2 with one, 1.0e-2 of \
                the largest of its layer apart";
    assert!(told.contains(said), "{told}");
}

#[test]
fn a_folder_beside_the_run_is_gone_with_all_that_was_made_for_it() {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("a/b");
    let text = format!(
        r#"
        [run]
        name = "small"
        out = "{}"
        [model]
        [pretrain]
        steps = 1
        [plan]
        step = {{ tokens = 64 }}
        [plan.mixture.sources.a]
        weight = {{ constant = 1.0 }}
        [[source]]
        name = "a"
        path = "a.txt"
        format = {{ text = {{ document = "line" }} }}
        context = 64
        block_bytes = 512
        "#,
        out.display()
    );
    let recipe = Source::new(Path::new("r.toml"), &text)
        .pretrain_recipe()
        .unwrap();
    let beside = Beside::make(&recipe).unwrap();
    assert_eq!(beside.path().parent(), Some(&*out));
    fs::write(beside.path().join("file"), "text").unwrap();
    drop(beside);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    // What was there before stays, and so does what somebody else has put there.
    fs::create_dir(place.path().join("a")).unwrap();
    let beside = Beside::make(&recipe).unwrap();
    fs::write(out.join("other"), "text").unwrap();
    drop(beside);
    let left: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(left, ["other"]);
}
