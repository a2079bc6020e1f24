//! Tests of what ranks compute together, with a thread for each.

mod divided;
mod ring;

use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::Cpu;
use crate::cpu::CpuBuffer;

/// Ranks that meet in one table.
#[derive(Debug)]
struct Meeting {
    barrier: Barrier,
    table: Mutex<Vec<Vec<Vec<f32>>>>,
}

/// One of them.
#[derive(Debug)]
struct Met {
    rank: usize,
    meeting: Arc<Meeting>,
}

impl Met {
    fn all(ranks: usize) -> Vec<Arc<Self>> {
        let meeting = Arc::new(Meeting {
            barrier: Barrier::new(ranks),
            table: Mutex::new(vec![vec![]; ranks]),
        });
        let met = |rank| {
            Arc::new(Self {
                rank,
                meeting: Arc::clone(&meeting),
            })
        };
        (0..ranks).map(met).collect()
    }

    /// Gives each rank its numbers; what each has for this one.
    fn deal(&self, own: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        self.meeting.table.lock().unwrap()[self.rank] = own;
        self.meeting.barrier.wait();
        let all = self.meeting.table.lock().unwrap().clone();
        self.meeting.barrier.wait();
        all.into_iter()
            .map(|mut said| said.swap_remove(self.rank))
            .collect()
    }
}

impl PassRanks<Cpu> for Met {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.meeting.table.lock().unwrap().len()
    }

    fn sum(&self, _: &Cpu, numbers: &mut CpuBuffer, range: Range<usize>) {
        let own = &mut numbers.as_mut_slice()[range];
        let all = self.deal(vec![own.to_vec(); self.count()]);
        for (at, number) in own.iter_mut().enumerate() {
            *number = all.iter().map(|of_rank| of_rank[at]).sum();
        }
    }

    fn scatter(&self, cpu: &Cpu, numbers: &mut CpuBuffer, len: usize) {
        self.sum(cpu, numbers, 0..len);
        let share = len / self.count();
        for (at, number) in numbers.as_mut_slice()[..len].iter_mut().enumerate() {
            // Of the others' runs it has anything.
            if at / share != self.rank {
                *number = f32::NAN;
            }
        }
    }

    fn gather(&self, _: &Cpu, numbers: &mut CpuBuffer, len: usize) {
        let share = len / self.count();
        let own = numbers.as_slice()[self.rank * share..][..share].to_vec();
        let all = self.deal(vec![own; self.count()]).concat();
        numbers.as_mut_slice()[..len].copy_from_slice(&all);
    }

    fn exchange(
        &self,
        _: &Cpu,
        from: &CpuBuffer,
        sends: &[usize],
        to: &mut CpuBuffer,
        receives: &[usize],
    ) {
        let mut left = from.as_slice();
        let runs = sends.iter().map(|count| {
            let (run, rest) = left.split_at(*count);
            left = rest;
            run.to_vec()
        });
        let received = self.deal(runs.collect());
        let counts: Vec<usize> = received.iter().map(Vec::len).collect();
        assert_eq!(counts, receives, "both ranks say the same");
        let received = received.concat();
        to.as_mut_slice()[..received.len()].copy_from_slice(&received);
    }

    fn tell(&self, _: &Cpu, counts: &[u32]) -> Vec<u32> {
        let numbers: Vec<f32> = counts.iter().map(|count| *count as f32).collect();
        let each = numbers.len() / self.count();
        let heard = self.deal(numbers.chunks(each).map(<[f32]>::to_vec).collect());
        heard.concat().into_iter().map(|it| it as u32).collect()
    }
}

/// Numbers that differ.
fn numbers(len: usize, seed: usize) -> Vec<f32> {
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 1000) as f32 / 500.0 - 1.0;
    (0..len).map(number).collect()
}

/// A pass over rows by their logits, and back by the gradient of what is made: that, and the gradients of rows, logits
/// and matrices.
fn passed(
    [experts, top, cols, inner]: [usize; 4],
    [x, logits, dout]: [&[f32]; 3],
    own: &[f32],
    ranks: Option<Arc<dyn PassRanks<Cpu>>>,
) -> [Vec<f32>; 4] {
    let (cpu, rows) = (Cpu::new(1), logits.len() / experts);
    // Rows and logits are looked up, so that they have gradients.
    let inputs = [x, logits].concat();
    let (of_x, of_logits) = (
        Param::new(0, 0..x.len()),
        Param::new(0, x.len()..inputs.len()),
    );
    let mut tape = Tape::new();
    let each: Arc<[u32]> = (0..rows as u32).collect();
    let h = tape.embed(of_x, cols, Arc::clone(&each));
    let scores = tape.embed(of_logits, experts, each);
    let routed = tape.route(scores, top);
    let taken = tape.dispatch(h, &routed);
    let len = inner * cols;
    let count = own.len() / (3 * len);
    let gate_up = |expert: usize| Param::new(1, 3 * len * expert..3 * len * expert + 2 * len);
    let down = |expert: usize| Param::new(1, 3 * len * expert + 2 * len..3 * len * (expert + 1));
    let of_all = |param: &dyn Fn(usize) -> Param| (0..count).map(param).collect::<Vec<_>>();
    let made = match ranks {
        Some(ranks) => {
            let experts = OwnExperts {
                gate_up: of_all(&gate_up),
                down: of_all(&down),
                inner,
            };
            tape.experts_of_ranks(taken, &routed, experts, ranks)
        }
        None => {
            let both = tape.experts(taken, &routed, of_all(&gate_up), 2 * inner);
            let gated = tape.swiglu(both);
            tape.experts(gated, &routed, of_all(&down), cols)
        }
    };
    let out = tape.collect(made, &routed, None);
    let plan = tape.plan_training(&[true, true], &[out]);
    let mut arena = Arena::default();
    arena.prepare(&cpu, &plan);
    let (inputs, own) = (cpu.buffer(&inputs), cpu.buffer(own));
    let params = [&inputs, &own];
    tape.forward(&cpu, &mut arena, &plan, &params);
    let result = tape.read(&cpu, &arena, &plan, out);
    tape.seed(&cpu, &mut arena, &plan, out, dout);
    let mut gradients = params.map(|set| Some(cpu.alloc(Cpu::len(set))));
    tape.backward(&cpu, &mut arena, &plan, &params, &mut gradients);
    let [dinputs, down] = gradients.map(|it| it.unwrap().as_slice().to_vec());
    let (dx, dlogits) = dinputs.split_at(x.len());
    [result, dx.to_vec(), dlogits.to_vec(), down]
}

fn near(one: &[f32], other: &[f32]) -> bool {
    let pairs = one.iter().zip(other);
    one.len() == other.len()
        && pairs
            .into_iter()
            .all(|(a, b)| (a - b).abs() <= 1e-4 * a.abs().max(1.0))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Also of ranks without rows, and of experts without any.
    #[test]
    fn experts_of_ranks_make_what_experts_of_one_make(
        (ranks, each) in prop::sample::select(vec![(2usize, 1usize), (2, 2), (3, 1), (4, 2)]),
        rows in prop::collection::vec(0usize..5, 4),
        seed in 0usize..1000,
    ) {
        let (experts, top, cols, inner) = (ranks * each, 2.min(ranks * each), 6, 5);
        let shape = [experts, top, cols, inner];
        let rows = &rows[..ranks];
        prop_assume!(rows.iter().sum::<usize>() > 0);
        let all: usize = rows.iter().sum();
        let x = numbers(all * cols, seed);
        let logits = numbers(all * experts, seed + 1);
        let dout = numbers(all * cols, seed + 2);
        let weights = numbers(experts * 3 * inner * cols, seed + 3);
        let [out, dx, dlogits, dweights] = passed(shape, [&x, &logits, &dout], &weights, None);
        let mut begin = 0;
        let parts = Met::all(ranks).into_iter().map(|met| {
            let own = begin..begin + rows[met.rank];
            begin = own.end;
            let of = |numbers: &[f32], cols: usize| numbers[own.start * cols..own.end * cols].to_vec();
            let inputs = [of(&x, cols), of(&logits, experts), of(&dout, cols)];
            let len = each * 3 * inner * cols;
            let weights = weights[met.rank * len..][..len].to_vec();
            thread::spawn(move || {
                let [x, logits, dout] = &inputs;
                passed(shape, [x, logits, dout], &weights, Some(met))
            })
        });
        let parts: Vec<_> = parts.collect();
        let mut together: [Vec<f32>; 4] = Default::default();
        for part in parts {
            let part = part.join().unwrap();
            for (all, own) in together.iter_mut().zip(part) {
                all.extend(own);
            }
        }
        let names = ["made", "of rows", "of logits", "of matrices"];
        let pairs = [out, dx, dlogits, dweights].into_iter().zip(&together);
        for ((one, parts), name) in pairs.zip(names) {
            prop_assert!(near(&one, parts), "{name}: {one:?} {parts:?}");
        }
    }

    /// Pieces go to several ranks, or to none.
    #[test]
    fn gradients_of_pieces_return_to_where_they_came_from(
        ranks in 1usize..4,
        sent in prop::collection::vec(0u32..6, 1..7),
        seed in 0usize..1000,
    ) {
        // Each rank sends all others the same pieces of three rows of four numbers, and has the first of what comes.
        let (width, count) = (2, sent.len());
        let outs = Met::all(ranks).into_iter().map(|met| {
            let sent = sent.clone();
            thread::spawn(move || {
                let cpu = Cpu::new(1);
                let mut tape = Tape::new();
                let x = tape.embed(Param::new(0, 0..12), 4, [0, 1, 2].into());
                let moves = Moves {
                    width,
                    sends: vec![count; ranks],
                    sent: Some(sent.repeat(ranks).into()),
                    receives: vec![count; ranks],
                    placed: Some((0..(count * ranks) as u32).rev().collect()),
                };
                let table = numbers(12, seed + met.rank);
                let dout = numbers(count * ranks * width, seed + 7 + met.rank);
                let out = tape.exchange(x, moves, met, [count * ranks, width]);
                let plan = tape.plan_training(&[true], &[out]);
                let mut arena = Arena::default();
                arena.prepare(&cpu, &plan);
                let table = cpu.buffer(&table);
                tape.forward(&cpu, &mut arena, &plan, &[&table]);
                let made = tape.read(&cpu, &arena, &plan, out);
                tape.seed(&cpu, &mut arena, &plan, out, &dout);
                let mut gradients = [Some(cpu.alloc(12))];
                tape.backward(&cpu, &mut arena, &plan, &[&table], &mut gradients);
                (made, gradients[0].as_ref().unwrap().as_slice().to_vec())
            })
        });
        let outs: Vec<_> = outs.collect();
        let outs: Vec<_> = outs.into_iter().map(|it| it.join().unwrap()).collect();
        for (rank, (made, gradient)) in outs.iter().enumerate() {
            let mut expected = vec![0.0; 12];
            let places = (0..ranks).flat_map(|from| sent.iter().map(move |piece| (from, *piece)));
            let places: Vec<(usize, u32)> = places.collect();
            for (at, (from, piece)) in places.iter().rev().enumerate() {
                let piece = *piece as usize * width;
                let own = &numbers(12, seed + from)[piece..piece + width];
                prop_assert_eq!(&made[at * width..][..width], own);
                for to in 0..ranks {
                    let dout = numbers(count * ranks * width, seed + 7 + to);
                    for number in 0..width {
                        if *from == rank {
                            expected[piece + number] += dout[at * width + number];
                        }
                    }
                }
            }
            prop_assert!(near(&expected, gradient), "{expected:?} {gradient:?}");
        }
    }
}

/// A recording in two pieces, of which the second reads what the first has made, has the gradients of the whole.
#[test]
fn pieces_of_a_recording_have_the_gradients_of_the_whole() {
    let cpu = Cpu::new(1);
    let (rows, cols) = (3, 4);
    let values = |seed: usize, len: usize| -> Vec<f32> {
        (0..len).map(|at| ((at * 7 + seed) as f32).sin()).collect()
    };
    let (x, first, second) = (
        values(1, rows * cols),
        values(2, cols * cols),
        values(3, cols * cols),
    );
    let params = cpu.buffer(&[first, second].concat());
    let weight = |number: usize| Param::new(0, number * cols * cols..(number + 1) * cols * cols);
    let seed = values(4, rows * cols);
    // A product and, with what went into it, another one.
    let layer = |tape: &mut Tape<Cpu>, x: Var, number: usize| {
        let extras = LinearExtras {
            residual: Some(x),
            ..LinearExtras::default()
        };
        tape.linear_with(x, weight(number), cols, extras)
    };
    let run = |tape: &Tape<Cpu>,
               input: Var,
               given: &[f32],
               root: Var,
               seed: &[f32],
               gradients: &mut Vec<_>| {
        let (plan, mut arena) = (tape.plan_training(&[true], &[root]), Arena::default());
        arena.prepare(&cpu, &plan);
        tape.write(&cpu, &mut arena, &plan, input, given);
        tape.forward(&cpu, &mut arena, &plan, &[&params]);
        let made = tape.read(&cpu, &arena, &plan, root);
        tape.seed(&cpu, &mut arena, &plan, root, seed);
        tape.backward(&cpu, &mut arena, &plan, &[&params], gradients);
        (made, tape.read_gradient(&cpu, &arena, &plan, input))
    };
    let zeros = || vec![Some(cpu.buffer(&vec![0.0; 2 * cols * cols]))];
    let mut whole = Tape::new();
    let input = whole.learnt_input(rows, cols);
    let middle = layer(&mut whole, input, 0);
    let root = layer(&mut whole, middle, 1);
    let mut of_whole = zeros();
    let (made, gradient) = run(&whole, input, &x, root, &seed, &mut of_whole);

    let piece = |number| {
        let mut tape = Tape::new();
        let input = tape.learnt_input(rows, cols);
        let root = layer(&mut tape, input, number);
        (tape, input, root)
    };
    let mut of_pieces = zeros();
    let (head, head_input, head_root) = piece(0);
    let (rows_made, _) = run(
        &head,
        head_input,
        &x,
        head_root,
        &vec![0.0; rows * cols],
        &mut zeros(),
    );
    let (tail, tail_input, tail_root) = piece(1);
    let (tail_made, between) = run(
        &tail,
        tail_input,
        &rows_made,
        tail_root,
        &seed,
        &mut of_pieces,
    );
    let (_, of_input) = run(&head, head_input, &x, head_root, &between, &mut of_pieces);
    assert_eq!(tail_made, made);
    assert_eq!(of_input, gradient);
    let numbers =
        |gradients: &[Option<CpuBuffer>]| gradients[0].as_ref().unwrap().as_slice().to_vec();
    assert_eq!(numbers(&of_pieces), numbers(&of_whole));
}
