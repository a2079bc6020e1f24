//! Moments in tiles against plain computations.

use super::*;
use crate::train::optimizer::tiles::{CodeBook, SIGNED, UNSIGNED};

/// The numbers of a tensor of moments.
fn decoded(tiled: &TiledMoments, moment: usize) -> Vec<f32> {
    let layout = layout();
    let book = [&*SIGNED, &*UNSIGNED][moment];
    let tensors = layout.entries().iter().zip(&tiled.tensors);
    let numbers = tensors.flat_map(|(entry, tensor)| {
        let columns = entry.shape.get(1).copied().unwrap_or(1);
        let across = columns.div_ceil(32);
        let kept = &tensor.moments[moment];
        let number = move |(at, code): (usize, &u8)| {
            let (row, column) = (at / columns, at % columns);
            kept.scales[row / 32 * across + column / 32] * book.value(*code)
        };
        kept.codes.iter().enumerate().map(number)
    });
    numbers.collect()
}

/// Values that bitsandbytes' `create_dynamic_map` has, of both kinds.
#[test]
fn codes_are_those_of_dynamic_trees() {
    let all = |book: &CodeBook| (0..=255).map(|code| book.value(code)).collect::<Vec<_>>();
    let [signed, unsigned] = [all(&SIGNED), all(&UNSIGNED)];
    for values in [&signed, &unsigned] {
        assert!(values.is_sorted_by(|a, b| a < b));
        assert!(values.contains(&0.0) && values[255] == 1.0);
    }
    assert_eq!(signed.iter().filter(|it| **it < 0.0).count(), 127);
    let near = |a: f32, b: f64| (f64::from(a) / b - 1.0).abs() < 1e-6;
    // The largest below one of 64 parts, and of 128; the least of one part of the lowest order, and of two.
    assert!(near(signed[254], 0.1 + 0.9 * 63.5 / 64.0));
    assert!(near(signed[0], -(0.1 + 0.9 * 63.5 / 64.0)));
    assert!(near(unsigned[254], 0.1 + 0.9 * 127.5 / 128.0));
    assert!(near(signed[128], 0.55e-6) && near(unsigned[1], 0.325e-6));
}

/// One step of AdamW on moments of zero, and then its moments rounded to the nearest code.
#[test]
fn a_step_is_adamw_on_the_moments_that_are_kept() {
    let (layout, cpu) = (layout(), Cpu::new(1));
    let len = layout.len();
    let holding = Holding::of_part(&layout, 0..len);
    let of = |optimizer| Prepared::new(optimizer, &cpu, &holding, DECAY);
    let mut tiled = of(Optimizer::Adam8bit(Adam8bit::default()));
    let mut params = cpu.buffer(&Noise(1).vec(len));
    for step in 1..=5 {
        // AdamW from the moments that the bytes stand for.
        let mut numbers = of(Optimizer::default());
        for moment in 0..2 {
            let kept = decoded(tiled.tiled(), moment);
            numbers.kept_mut(moment).0.as_mut_slice()[..len].copy_from_slice(&kept);
        }
        let mut expected = cpu.buffer(params.as_slice());
        let grads = cpu.buffer(&Noise(step + 1).vec(len));
        let args = (step, lr_of(step), SCALE);
        tiled.step(&cpu, args, &mut params, &grads, &[None, None, None]);
        numbers.step(&cpu, args, &mut expected, &grads, &[None, None, None]);
        assert_eq!(bits(params.as_slice()), bits(expected.as_slice()));
        for (moment, book) in [&*SIGNED, &*UNSIGNED].into_iter().enumerate() {
            let (before, after) = (numbers.kept(moment).0, decoded(tiled.tiled(), moment));
            let most = before
                .as_slice()
                .iter()
                .fold(0.0f32, |most, it| most.max(it.abs()));
            let widest = (0..255).map(|code| book.value(code + 1) - book.value(code));
            let widest = widest.fold(0.0f32, f32::max);
            for (before, after) in before.as_slice().iter().zip(&after) {
                assert!((before - after).abs() <= 0.501 * widest * most);
                assert_eq!(
                    *before == 0.0,
                    *after == 0.0,
                    "of what is there is something kept"
                );
            }
        }
    }
}
