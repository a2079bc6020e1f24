//! Checks of rows that a router sends to experts: the choice, and a whole block through the tape.

use super::{
    BACKWARD, FORWARD, Noise, backward, close, dot, forward, gradient_close, reference, wide,
};
use crate::backend::{Backend, MatMul, RouteShape, Store};
use crate::tape::{Arena, Param, Tape};

/// The experts of a row by their logits, the most likely first, and of equals the lowest; and the
/// softmax over all experts, divided by the sum of the chosen. Sorted, where back-ends search.
fn routed(shape: RouteShape, logits: &[f64]) -> (Vec<u32>, Vec<f64>) {
    let (mut chosen, mut weights) = (vec![], vec![]);
    for row in logits.chunks_exact(shape.experts) {
        let mut order: Vec<usize> = (0..shape.experts).collect();
        order.sort_by(|a, b| {
            row[*b]
                .partial_cmp(&row[*a])
                .expect("numbers")
                .then(a.cmp(b))
        });
        let all: f64 = row.iter().map(|logit| logit.exp()).sum();
        let probs = order[..shape.top].iter().map(|e| row[*e].exp() / all);
        let probs: Vec<f64> = probs.collect();
        let sum: f64 = probs.iter().sum();
        weights.extend(probs.iter().map(|p| p / sum));
        chosen.extend(order[..shape.top].iter().map(|e| *e as u32));
    }
    (chosen, weights)
}

/// The choice of experts with ties, its weights, and their gradient set and added.
pub fn route<B: Backend>(b: &B) {
    let mut noise = Noise(20);
    for (rows, experts, top) in [(1, 1, 1), (5, 4, 2), (300, 8, 2), (67, 33, 33), (9, 130, 6)] {
        let shape = RouteShape { experts, top };
        let mut logits = noise.vec(rows * experts);
        // Ties: neighbours of every third row are equal.
        for row in logits.chunks_exact_mut(experts).step_by(3) {
            row.iter_mut()
                .for_each(|logit| *logit = (*logit * 2.0).round());
        }
        let (dev, mut chosen) = (b.buffer(&logits), vec![0; rows * top]);
        let mut weights = b.alloc(rows * top);
        let view = B::view(&dev, 0..rows * experts);
        b.route(
            shape,
            view,
            &mut chosen,
            B::view_mut(&mut weights, 0..rows * top),
        );
        let (want_chosen, want) = routed(shape, &wide(&logits));
        assert_eq!(chosen, want_chosen, "route: choice of {shape:?}");
        close("route", FORWARD, &b.to_vec(&weights), &want);

        let dweights = noise.vec(rows * top);
        let dev_dweights = b.buffer(&dweights);
        for (store, before) in [(Store::Set, 0.0), (Store::Add, 0.5)] {
            let mut dx = b.buffer(&vec![0.5; logits.len()]);
            b.route_backward(
                shape,
                &chosen,
                B::view(&weights, 0..rows * top),
                B::view(&dev_dweights, 0..rows * top),
                (B::view_mut(&mut dx, 0..rows * experts), store),
            );
            // The choice does not move with a logit's difference.
            let loss = |logits: &[f64]| {
                let rows = logits.chunks_exact(experts).zip(chosen.chunks_exact(top));
                let weights = rows.flat_map(|(row, chosen)| {
                    let sum: f64 = chosen.iter().map(|e| row[*e as usize].exp()).sum();
                    chosen.iter().map(move |e| row[*e as usize].exp() / sum)
                });
                let weights: Vec<f64> = weights.collect();
                dot(&weights, &dweights) + before * logits.iter().sum::<f64>()
            };
            gradient_close("route dx", BACKWARD, &b.to_vec(&dx), &logits, loss);
        }
    }
}

/// Sizes of a block of experts.
struct Block {
    rows: usize,
    dim: usize,
    ffn: usize,
    shape: RouteShape,
}

impl Block {
    /// Elements of the inputs, of the router, and of an expert's two matrices.
    fn lens(&self) -> [usize; 4] {
        let Self { rows, dim, ffn, .. } = self;
        let router = self.shape.experts * dim;
        [rows * dim, router, 2 * ffn * dim, dim * ffn]
    }

    fn len(&self) -> usize {
        let [inputs, router, gate_up, down] = self.lens();
        inputs + router + self.shape.experts * (gate_up + down)
    }

    fn record<B: Backend>(&self, tape: &mut Tape<B>) -> crate::tape::Var {
        let [inputs, router, gate_up, down] = self.lens();
        let param = |start: usize, len: usize| Param::new(0, start..start + len);
        let all: Vec<u32> = (0..self.rows as u32).collect();
        let x = tape.embed(param(0, inputs), self.dim, all.into());
        let logits = tape.linear(x, param(inputs, router), self.shape.experts);
        let routed = tape.route(logits, self.shape.top);
        let expert = |e: usize| inputs + router + e * (gate_up + down);
        let experts = 0..self.shape.experts;
        let first = experts.clone().map(|e| param(expert(e), gate_up));
        let second = experts.map(|e| param(expert(e) + gate_up, down));
        let (first, second) = (first.collect(), second.collect());
        let taken = tape.dispatch(x, &routed);
        let h = tape.experts(taken, &routed, first, 2 * self.ffn);
        let h = tape.swiglu(h);
        let made = tape.experts(h, &routed, second, self.dim);
        tape.collect(made, &routed, Some(x))
    }

    /// The same row by row, with the experts that `chosen` names.
    fn reference(&self, p: &[f64], chosen: &[u32]) -> Vec<f64> {
        let [inputs, router, gate_up, down] = self.lens();
        let linear = |x: &[f64], at: usize, outputs: usize| {
            let mut y = vec![0.0; outputs];
            let call = MatMul::linear(1, outputs, x.len());
            reference::matmul(call, x, &p[at..at + outputs * x.len()], &mut y);
            y
        };
        let mut out = p[..inputs].to_vec();
        let rows = p[..inputs].chunks_exact(self.dim);
        let chosen = chosen.chunks_exact(self.shape.top);
        for ((x, chosen), out) in rows.zip(chosen).zip(out.chunks_exact_mut(self.dim)) {
            let logits = linear(x, inputs, self.shape.experts);
            let sum: f64 = chosen.iter().map(|e| logits[*e as usize].exp()).sum();
            for e in chosen {
                let at = inputs + router + *e as usize * (gate_up + down);
                let h = reference::swiglu(self.ffn, &linear(x, at, 2 * self.ffn));
                let weight = logits[*e as usize].exp() / sum;
                let made = linear(&h, at + gate_up, self.dim);
                out.iter_mut().zip(made).for_each(|(o, m)| *o += weight * m);
            }
        }
        out
    }
}

/// A block of experts that a router chooses, through the tape: forward, and the gradient of inputs,
/// router and experts. One expert is chosen by nobody.
pub fn experts<B: Backend>(b: &B) {
    let block = Block {
        rows: 21,
        dim: 12,
        ffn: 10,
        shape: RouteShape { experts: 5, top: 2 },
    };
    let mut noise = Noise(21);
    let mut params = noise.vec(block.len());
    let [inputs, router, ..] = block.lens();
    // The first input says nothing but that the last expert is the worst, by far.
    for row in params[..inputs].chunks_exact_mut(block.dim) {
        row[0] = 1.0;
    }
    for (e, row) in params[inputs..inputs + router]
        .chunks_exact_mut(block.dim)
        .enumerate()
    {
        row[0] = if e == 4 { -20.0 } else { 0.0 };
    }
    let logits = {
        let mut logits = vec![0.0; block.rows * 5];
        let call = MatMul::linear(block.rows, 5, block.dim);
        let [x, w] = [&params[..inputs], &params[inputs..inputs + router]];
        reference::matmul(call, &wide(x), &wide(w), &mut logits);
        logits
    };
    let (chosen, _) = routed(block.shape, &logits);
    assert!(!chosen.contains(&4) && chosen.contains(&3));

    let mut tape = Tape::<B>::new();
    let out = block.record(&mut tape);
    let plan = tape.plan_training(&[true], &[out]);
    let mut arena = Arena::default();
    arena.prepare(b, &plan);
    let (dev, mut grads) = (b.buffer(&params), [Some(b.alloc(params.len()))]);
    tape.forward(b, &mut arena, &plan, &[&dev]);
    let got = tape.read(b, &arena, &plan, out);
    let want = block.reference(&wide(&params), &chosen);
    close("experts", forward(b, 4), &got, &want);

    let seed = noise.vec(block.rows * block.dim);
    tape.seed(b, &mut arena, &plan, out, &seed);
    tape.backward(b, &mut arena, &plan, &[&dev], &mut grads);
    let grad = b.to_vec(grads[0].as_ref().expect("the set is trained"));
    gradient_close("experts gradient", backward(b, 6), &grad, &params, |p| {
        dot(&block.reference(p, &chosen), &seed)
    });
    let untouched = &grad[block.len() - block.lens()[2] - block.lens()[3]..];
    assert!(
        untouched.iter().all(|g| *g == 0.0),
        "an expert without rows"
    );
}
