//! Tests of attention whose keys and values travel.

use std::num::NonZeroU32;

use super::*;
use crate::backend::AttentionShape;
use crate::score_blocks::ScoreBlocks;

/// Attention of rows, and the gradient of these by that of what is made.
fn attended(
    shape: AttentionShape,
    [rows, dout]: [&[f32]; 2],
    attend: impl FnOnce(&mut Tape<Cpu>, Var) -> Var,
) -> [Vec<f32>; 2] {
    let (cpu, count) = (Cpu::new(1), rows.len() / shape.qkv_cols());
    let mut tape = Tape::new();
    // Rows are looked up, so that they have gradients.
    let table = Param::new(0, 0..rows.len());
    let qkv = tape.embed(table, shape.qkv_cols(), (0..count as u32).collect());
    let out = attend(&mut tape, qkv);
    let plan = tape.plan_training(&[true], &[out]);
    let mut arena = Arena::default();
    arena.prepare(&cpu, &plan);
    let rows = cpu.buffer(rows);
    tape.forward(&cpu, &mut arena, &plan, &[&rows]);
    let made = tape.read(&cpu, &arena, &plan, out);
    tape.seed(&cpu, &mut arena, &plan, out, dout);
    let mut gradients = [Some(cpu.alloc(Cpu::len(&rows)))];
    tape.backward(&cpu, &mut arena, &plan, &[&rows], &mut gradients);
    let [gradient] = gradients;
    [made, cpu.to_vec(&gradient.unwrap())]
}

/// The runs of a rank of `ranks`: a part from the begin of all rows, and as long a one from their end.
fn runs(rank: usize, ranks: usize, part: usize) -> Vec<Range<usize>> {
    let of = |number: usize| number * part..(number + 1) * part;
    vec![of(rank), of(2 * ranks - 1 - rank)]
}

fn rows_of(all: &[f32], runs: &[Range<usize>], cols: usize) -> Vec<f32> {
    let of_run = |run: &Range<usize>| all[run.start * cols..run.end * cols].to_vec();
    runs.iter().flat_map(of_run).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    /// Also of one rank, and with fewer key heads than ranks.
    #[test]
    fn rows_of_ranks_attend_around_a_ring_as_on_one_device(
        ranks in 1usize..5,
        part in 1usize..20,
        cuts in prop::collection::vec(0usize..200, 0..6),
        window in prop::option::of(1u32..30),
        (heads, kv_heads) in prop::sample::select(vec![(1, 1), (4, 1), (4, 2), (3, 3), (6, 2)]),
        seed in 0usize..1000,
    ) {
        let shape = AttentionShape { heads, kv_heads, head_dim: 4, window: window.and_then(NonZeroU32::new) };
        let rows = 2 * ranks * part;
        let mut bounds: Vec<u32> = cuts.iter().map(|cut| (cut % (rows + 1)) as u32).collect();
        bounds.extend([0, rows as u32]);
        bounds.sort_unstable();
        let spans = RowSpans::apart(bounds);
        let qkv = numbers(rows * shape.qkv_cols(), seed);
        let dout = numbers(rows * shape.out_cols(), seed + 1);
        let one = attended(shape, [&qkv, &dout], |tape, qkv| tape.attention(qkv, shape, spans.clone()));
        let threads = Met::all(ranks).into_iter().map(|met| {
            let (rank, spans) = (met.rank, spans.clone());
            let own = runs(rank, ranks, part);
            let inputs = [(&qkv, shape.qkv_cols()), (&dout, shape.out_cols())];
            let inputs = inputs.map(|(all, cols)| rows_of(all, &own, cols));
            thread::spawn(move || {
                let turns = (0..ranks).map(|turn| {
                    let keys = runs((rank + ranks - turn) % ranks, ranks, part);
                    ScoreBlocks::between(&spans, &own, &keys)
                });
                let turns = turns.collect();
                let [qkv, dout] = &inputs;
                attended(shape, [qkv, dout], |tape, qkv| tape.ring_attention(qkv, shape, turns, met))
            })
        });
        let threads: Vec<_> = threads.collect();
        let all: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
        for (rank, [made, gradient]) in all.iter().enumerate() {
            let own = runs(rank, ranks, part);
            let [expected, expected_gradient] = &one;
            prop_assert!(near(&rows_of(expected, &own, shape.out_cols()), made));
            prop_assert!(near(&rows_of(expected_gradient, &own, shape.qkv_cols()), gradient));
        }
    }
}
