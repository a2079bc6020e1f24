//! Tests of backward passes in two, beside those in one.

use super::*;
use crate::backend::{AttentionShape, HeadNormShape};
use crate::dropout::{DropoutMask, DropoutRow};

const ROWS: usize = 6;
const COLS: usize = 8;
const SHAPE: AttentionShape = AttentionShape {
    heads: 2,
    kv_heads: 1,
    head_dim: 4,
    window: None,
};

/// A recording of layers of every kind, each with a parameter set of its own.
struct Network {
    tape: Tape<Cpu>,
    input: Var,
    root: Var,
    /// Numbers of each set.
    lens: Vec<usize>,
}

/// A set that is filled from its begin on.
struct Filling {
    set: usize,
    len: usize,
}

impl Filling {
    fn take(&mut self, len: usize) -> Param {
        self.len += len;
        Param::new(self.set, self.len - len..self.len)
    }
}

/// A layer, by its kind: its rows.
fn layer(tape: &mut Tape<Cpu>, x: Var, kind: usize, own: &mut Filling) -> Var {
    let residual = |residual, bias| LinearExtras {
        bias,
        residual: Some(residual),
        scale: 0.5,
    };
    match kind {
        // Attention with a norm of heads.
        0 => {
            let h = tape.rms_norm(x, own.take(COLS), 1e-5);
            let width = SHAPE.qkv_cols();
            let qkv = tape.linear(h, own.take(width * COLS), width);
            let norm = HeadNormShape {
                attention: SHAPE,
                eps: 1e-5,
            };
            let qkv = tape.head_norm(qkv, own.take(2 * SHAPE.head_dim), norm);
            let spans = RowSpans::apart([0, 2, ROWS as u32]);
            let mixed = tape.attention(qkv, SHAPE, spans);
            let weight = own.take(COLS * SHAPE.out_cols());
            tape.linear_with(mixed, weight, COLS, residual(x, None))
        }
        // Two products with a bias each, behind a norm with one.
        1 => {
            let h = tape.layer_norm(x, own.take(COLS), own.take(COLS), 1e-5);
            let (weight, bias) = (own.take(2 * COLS * COLS), Some(own.take(2 * COLS)));
            let extras = LinearExtras {
                bias,
                ..LinearExtras::default()
            };
            let wide = tape.linear_with(h, weight, 2 * COLS, extras);
            let wide = tape.gelu(wide);
            let (weight, bias) = (own.take(2 * COLS * COLS), Some(own.take(COLS)));
            tape.linear_with(wide, weight, COLS, residual(x, bias))
        }
        // A sum that is the residual of the next, and a product of what both made.
        2 => {
            let first = tape.linear_with(x, own.take(COLS * COLS), COLS, residual(x, None));
            let place = |position| DropoutRow {
                stream: 1,
                position,
            };
            let mask = DropoutMask {
                rows: (0..ROWS as u32).map(place).collect(),
                key: 7,
                site: 0,
                probability: 0.3,
            };
            let made = tape.linear(first, own.take(COLS * COLS), COLS);
            tape.dropout(made, Some(first), mask)
        }
        // Experts.
        _ => {
            let logits = tape.linear(x, own.take(3 * COLS), 3);
            let routed = tape.route(logits, 2);
            let taken = tape.dispatch(x, &routed);
            let weights = (0..3).map(|_| own.take(2 * COLS * COLS)).collect();
            let both = tape.experts(taken, &routed, weights, 2 * COLS);
            let gated = tape.swiglu(both);
            let weights = (0..3).map(|_| own.take(COLS * COLS)).collect();
            let made = tape.experts(gated, &routed, weights, COLS);
            tape.collect(made, &routed, Some(x))
        }
    }
}

impl Network {
    fn of(kinds: &[(usize, bool)]) -> Self {
        let mut tape = Tape::new();
        let input = tape.learnt_input(ROWS, COLS);
        let (mut x, mut lens) = (input, vec![]);
        for (set, (kind, again)) in kinds.iter().enumerate() {
            let (mark, mut own) = (tape.mark(), Filling { set, len: 0 });
            x = layer(&mut tape, x, *kind, &mut own);
            if *again {
                tape.recompute(mark);
            }
            lens.push(own.len);
        }
        // Norms of a set without products, as that of a head.
        let mut own = Filling {
            set: lens.len(),
            len: 0,
        };
        let root = tape.rms_norm(x, own.take(COLS), 1e-5);
        lens.push(own.len);
        Self {
            tape,
            input,
            root,
            lens,
        }
    }

    /// Passes over micro-batches that go back in their order, with gradients of weights behind all of them: bits of
    /// gradients of sets, which come or are here, and gradients of inputs.
    fn trained(
        &self,
        (division, comes): (Division<'_>, bool),
        micros: usize,
    ) -> (Vec<Vec<u32>>, Vec<Vec<f32>>) {
        let cpu = Cpu::new(1);
        let values = self.lens.iter().enumerate();
        let sets: Vec<_> = values
            .map(|(set, len)| cpu.buffer(&numbers(*len, set + 3)))
            .collect();
        let of_sets = vec![true; sets.len()];
        let plan = match division {
            Division::Whole => self.tape.plan_training(&of_sets, &[self.root]),
            _ => self.tape.plan_divided(&of_sets, &[self.root], division),
        };
        let zeros = self.lens.iter().map(|len| vec![0.0; *len]);
        let mut coming = Coming {
            sets: sets.iter().collect(),
            sums: zeros.clone().collect(),
            brought: None,
            came: vec![0; sets.len()],
        };
        let mut resident: Vec<_> = zeros.map(|zeros| Some(cpu.buffer(&zeros))).collect();
        let mut taken: Vec<_> = sets.iter().map(|_| None).collect();
        let sets: Vec<_> = sets.iter().collect();
        let mut here = Resident(&sets);
        let (params, gradients): (&mut dyn PassParams<Cpu>, _) = match comes {
            true => (&mut coming, &mut taken),
            false => (&mut here, &mut resident),
        };
        let (tape, mut of_inputs) = (&self.tape, vec![]);
        let mut arenas: Vec<Arena<Cpu>> = (0..micros).map(|_| Arena::default()).collect();
        for (micro, arena) in arenas.iter_mut().enumerate() {
            arena.prepare(&cpu, &plan);
            let given = numbers(ROWS * COLS, 100 + micro);
            tape.write(&cpu, arena, &plan, self.input, &given);
            tape.forward_over(&cpu, arena, &plan, params);
            let seed = numbers(ROWS * COLS, 200 + micro);
            tape.seed(&cpu, arena, &plan, self.root, &seed);
            match division {
                Division::Whole => tape.backward_over(&cpu, arena, &plan, params, gradients),
                _ => tape.backward_inputs(&cpu, arena, &plan, params, gradients),
            }
            of_inputs.push(tape.read_gradient(&cpu, arena, &plan, self.input));
        }
        if division != Division::Whole {
            for arena in &mut arenas {
                tape.backward_weights(&cpu, arena, &plan, params, gradients);
            }
        }
        let sums = match comes {
            true => {
                let each_once = coming.came.iter().all(|came| *came == micros);
                assert!(each_once, "each gradient comes once: {:?}", coming.came);
                coming.sums
            }
            false => {
                let all = resident.into_iter().flatten();
                all.map(|sum| sum.as_slice().to_vec()).collect()
            }
        };
        let bits = |sum: Vec<f32>| sum.into_iter().map(f32::to_bits).collect();
        (sums.into_iter().map(bits).collect(), of_inputs)
    }
}

/// Sets that come one after the other, and whose gradients go then.
struct Coming<'a> {
    sets: Vec<&'a CpuBuffer>,
    sums: Vec<Vec<f32>>,
    brought: Option<usize>,
    /// Times that each gradient has come.
    came: Vec<usize>,
}

impl PassParams<Cpu> for Coming<'_> {
    fn buffer(&self, set: usize) -> &CpuBuffer {
        self.sets[set]
    }

    fn bring(&mut self, _: &Cpu, _: usize) {}

    fn bring_back(
        &mut self,
        cpu: &Cpu,
        set: usize,
        needs: SetNeeds,
        gradients: &mut [Option<CpuBuffer>],
    ) {
        if self.brought != Some(set) {
            self.end_back(cpu, gradients);
            self.brought = Some(set);
        }
        if needs.adds && gradients[set].is_none() {
            gradients[set] = Some(cpu.buffer(&vec![0.0; self.sums[set].len()]));
        }
    }

    fn end(&mut self, _: &Cpu) {}

    fn end_back(&mut self, _: &Cpu, gradients: &mut [Option<CpuBuffer>]) {
        let Some(set) = self.brought.take() else {
            return;
        };
        if let Some(gradient) = gradients[set].take() {
            self.came[set] += 1;
            for (sum, own) in self.sums[set].iter_mut().zip(gradient.as_slice()) {
                *sum += own;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// SEMANTICS 142. Gradients of weights come later, behind those of rows of other micro-batches.
    #[test]
    fn a_backward_pass_in_two_has_the_gradients_of_one_to_the_bit(
        kinds in prop::collection::vec((0usize..4, any::<bool>()), 1..5),
        micros in 1usize..4,
    ) {
        let network = Network::of(&kinds);
        let (whole, of_inputs) = network.trained((Division::Whole, false), micros);
        let (divided, inputs) = network.trained((Division::Resident, false), micros);
        prop_assert_eq!(&inputs, &of_inputs);
        prop_assert_eq!(divided, whole);
        // Of sets that come, each by itself: all later, but that of the norm behind them.
        let later: Vec<bool> = (0..network.lens.len()).map(|set| set < kinds.len()).collect();
        let (whole, _) = network.trained((Division::Whole, true), micros);
        let (divided, inputs) = network.trained((Division::Sets { later: &later }, true), micros);
        prop_assert_eq!(inputs, of_inputs);
        prop_assert_eq!(divided, whole);
    }
}
