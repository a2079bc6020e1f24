//! Rounding is told from faults, and each difference has its place.

use proptest::prelude::*;

use super::*;

fn pair(name: &str, shape: &[usize], plan: &[f32], one: &[f32]) -> TensorPair {
    TensorPair {
        name: name.to_owned(),
        shape: shape.to_vec(),
        plan: plan.to_vec(),
        one: one.to_vec(),
    }
}

#[test]
fn parameters_are_of_layers_or_of_themselves() {
    for (name, part) in [
        ("model.layers.3.self_attn.q_proj.weight", "model.layers.3"),
        (
            "model.layers.12.mlp.experts.4.up_proj.weight",
            "model.layers.12",
        ),
        ("visual.blocks.0.norm.bias", "visual.blocks.0"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
    ] {
        assert_eq!(part_of(name), part);
    }
}

#[test]
fn rounding_is_told_apart_from_another_gradient() {
    let mut comparison = Comparison::new(1e-5);
    comparison.number(1, Quantity::Loss, 2.5, 2.5 * (1.0 + 1e-7));
    let rounded = pair("model.layers.1.a.weight", &[2], &[1.0, 1e-7], &[1.0, -1e-7]);
    comparison.layer(1, Quantity::Gradient, &[rounded], [1.0; 2]);
    assert_eq!(comparison.beyond, None);
    let other = pair(
        "model.layers.0.b.weight",
        &[2, 3],
        &[0.0; 6],
        &[0.0, 0.0, 0.0, 0.0, 0.0, 0.5],
    );
    comparison.layer(1, Quantity::Gradient, &[other], [1.0; 2]);
    let first = comparison.first.clone().unwrap();
    assert_eq!((first.quantity, first.tensor), (Quantity::Loss, None));
    let beyond = comparison.beyond.clone().unwrap();
    assert_eq!(beyond.tensor.as_deref(), Some("model.layers.0.b.weight"));
    assert_eq!(
        (beyond.index, beyond.plan, beyond.one),
        (vec![1, 2], 0.0, 0.5)
    );
    assert_eq!(beyond.relative, 1.0);
    let parts: Vec<&str> = comparison.parts.iter().map(|it| &*it.part).collect();
    assert_eq!(parts, ["model.layers.1", "model.layers.0"]);
    assert!(comparison.parts[0].largest[&Quantity::Gradient] < 1e-6);
}

/// A layer whose gradient is twice what it should be has the norm grow, by which all others are clipped: theirs are
/// compared before that.
#[test]
fn gradients_are_compared_before_they_are_clipped() {
    let mut comparison = Comparison::new(1e-5);
    let clipped = pair("model.layers.1.a.weight", &[2], &[0.25, 0.5], &[0.5, 1.0]);
    comparison.layer(1, Quantity::Gradient, &[clipped], [4.0, 2.0]);
    assert_eq!(comparison.beyond, None);
    assert!(!comparison.is_equal());
    let twice = pair("model.layers.0.a.weight", &[2], &[0.5, 0.5], &[0.5, 0.5]);
    comparison.layer(1, Quantity::Gradient, &[twice], [4.0, 2.0]);
    let beyond = comparison.beyond.unwrap();
    assert_eq!(beyond.tensor.as_deref(), Some("model.layers.0.a.weight"));
    assert_eq!((beyond.plan, beyond.one, beyond.relative), (2.0, 1.0, 1.0));
}

#[test]
fn weights_that_rounding_moves_are_not_judged_but_seen() {
    let mut comparison = Comparison::new(1e-5);
    let still = pair("a.0.still", &[1], &[0.0], &[0.0]);
    comparison.moved(&[pair("a.0.w", &[2], &[1.0, 1e-6], &[1.0, 1e-5]), still]);
    assert_eq!(comparison.in_doubt(), 1);
    let flipped = pair("a.0.w", &[2], &[1.0, 0.01], &[1.0, -0.01]);
    comparison.layer(1, Quantity::Weights, &[flipped], [1.0; 2]);
    assert_eq!(comparison.first.as_ref().unwrap().index, [1]);
    assert_eq!(comparison.beyond, None);
    let moved = pair("a.0.w", &[2], &[0.99, 0.01], &[1.0, -0.01]);
    comparison.layer(2, Quantity::Weights, &[moved], [1.0; 2]);
    assert_eq!(comparison.beyond.unwrap().index, [0]);
}

#[test]
fn what_is_no_number_differs_without_end() {
    let mut comparison = Comparison::new(1e-5);
    let same = pair("a.0.w", &[1], &[f32::NAN], &[f32::NAN]);
    comparison.layer(1, Quantity::Weights, &[same], [1.0; 2]);
    assert!(comparison.is_equal());
    comparison.number(1, Quantity::Loss, f64::NAN, 1.0);
    assert_eq!(comparison.beyond.unwrap().relative, f64::INFINITY);
}

proptest! {
    /// SEMANTICS 146. A number that is changed is found with its place, and its size as it is told is what it was
    /// changed by; none is found where none is changed.
    #[test]
    fn a_planted_difference_is_found_at_its_place(
        shape in prop::collection::vec(1_usize..5, 1..4),
        at in any::<prop::sample::Index>(),
        by in prop_oneof![Just(0.0_f32), 1e-3_f32..10.0],
        seed in 0_u32..1000,
    ) {
        let count: usize = shape.iter().product();
        let at = at.index(count);
        let one: Vec<f32> = (0..count as u32).map(|nth| 1.0 / (1 + (nth * 7 + seed) % 31) as f32).collect();
        let mut plan = one.clone();
        plan[at] += by;
        let mut comparison = Comparison::new(1e-5);
        comparison.layer(2, Quantity::Gradient, &[pair("x.0.w", &shape, &plan, &one)], [1.0; 2]);
        prop_assert_eq!(comparison.is_equal(), by == 0.0);
        prop_assert_eq!(comparison.first.is_some(), comparison.beyond.is_some());
        if let Some(beyond) = comparison.beyond {
            let flat = beyond.index.iter().zip(&shape).fold(0, |flat, (index, length)| flat * length + index);
            prop_assert_eq!(flat, at);
            let most = one.iter().fold(0.0_f32, |most, it| most.max(*it));
            let by = f64::from(plan[at]) - f64::from(one[at]);
            prop_assert!((beyond.relative - by / f64::from(most)).abs() < 1e-12);
        }
    }
}
