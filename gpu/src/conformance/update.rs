//! The check of update rules: one for each number of buffers that a rule keeps.

use std::ops::Range;

use super::{FORWARD, Noise, close, wide};
use crate::backend::Backend;
use crate::update_rule::UpdateRule;

crate::update_rule! {
    /// A step by two moments: the arithmetic of AdamW.
    pub struct TwoMoments {
        /// Factor on the gradient.
        scale: f32,
        /// Decay of the first moment.
        decay1: f32,
        /// Weight of the gradient in it.
        gain1: f32,
        /// Decay of the second moment.
        decay2: f32,
        /// Weight of the gradient's square in it.
        gain2: f32,
        /// Divisor of the root of the second moment.
        root2: f32,
        /// Added to the quotient.
        eps: f32,
        /// Learning rate.
        rate: f32,
        /// Factor on the parameter.
        keep: f32,
    }
    fn two_moments(p, g, [m, v]) {
        let grad = g * scale;
        m = decay1 * m + gain1 * grad;
        v = decay2 * v + gain2 * grad * grad;
        p = p * keep - rate * m / (root(v) / root2 + eps);
    }
}

crate::update_rule! {
    /// A step by the sign of one moment.
    struct Signs {
        decay: f32,
        rate: f32,
    }
    fn signs(x, slope, [held]) {
        let sum = decay * held + slope;
        x = x - rate * sign(sum);
        held = sum;
    }
}

crate::update_rule! {
    /// A step down the gradient, without memory. Its numbers are called as things are in the loop.
    struct Descent {
        count: f32,
        at: f32,
    }
    fn descent(s, p, []) {
        s = s * at - count * p;
    }
}

/// Three steps of each rule over two runs; elements outside of them stay, parameters and what is kept. Then
/// over the second alone, where nothing is kept of what lies before.
pub fn update<B: Backend>(b: &B) {
    let runs = [0..20_001, 20_001..39_990];
    let two = |keep| TwoMoments {
        scale: 0.5,
        decay1: 0.9,
        gain1: 0.1,
        decay2: 0.95,
        gain2: 0.05,
        root2: 0.5,
        eps: 1e-3,
        rate: 0.01,
        keep,
    };
    check(b, &runs, [two(0.999), two(1.0)], |rule, p, g, kept| {
        let [m, v] = kept else { panic!("two moments") };
        let g = f64::from(rule.scale) * g;
        *m = f64::from(rule.decay1) * *m + f64::from(rule.gain1) * g;
        *v = f64::from(rule.decay2) * *v + f64::from(rule.gain2) * g * g;
        *p = *p * f64::from(rule.keep)
            - f64::from(rule.rate) * *m / (v.sqrt() / f64::from(rule.root2) + f64::from(rule.eps));
    });
    let signs = |rate| Signs { decay: 0.5, rate };
    check(b, &runs, [signs(0.01), signs(0.1)], |rule, p, g, kept| {
        kept[0] = f64::from(rule.decay) * kept[0] + g;
        *p -= f64::from(rule.rate) * kept[0].signum();
    });
    let descent = |at| Descent { count: 0.1, at };
    check(b, &runs, [descent(0.9), descent(1.0)], |rule, p, g, _| {
        *p = *p * f64::from(rule.at) - f64::from(rule.count) * g;
    });
}

fn check<B: Backend, R: UpdateRule>(
    b: &B,
    runs: &[Range<usize>; 2],
    rules: [R; 2],
    reference: impl Fn(&R, &mut f64, f64, &mut [f64]),
) {
    let calls: Vec<(Range<usize>, R)> = runs.iter().cloned().zip(rules).collect();
    check_from(b, &calls, 0, &reference);
    check_from(b, &calls[1..], 20_000, &reference);
}

fn check_from<B: Backend, R: UpdateRule>(
    b: &B,
    calls: &[(Range<usize>, R)],
    from: usize,
    reference: &impl Fn(&R, &mut f64, f64, &mut [f64]),
) {
    let len = 40_000;
    let mut noise = Noise(10);
    let params = noise.vec(len);
    let kept = R::TEXT.states.len();
    let mut dev = b.buffer(&params);
    let mut states: Vec<B::Buffer> = (0..kept).map(|_| b.alloc(len - from)).collect();
    let (mut want, mut held) = (wide(&params), vec![vec![0.0; kept]; len]);
    for _ in 0..3 {
        let grads = noise.vec(len);
        let mut states: Vec<&mut B::Buffer> = states.iter_mut().collect();
        b.update(calls, &mut dev, &b.buffer(&grads), from, &mut states);
        for (run, rule) in calls {
            for i in run.clone() {
                reference(rule, &mut want[i], grads[i].into(), &mut held[i]);
            }
        }
    }
    let (name, end) = (R::TEXT.name, calls[calls.len() - 1].0.end);
    let got = b.to_vec(&dev);
    close(name, FORWARD, &got, &want);
    assert_eq!(got[end..], params[end..], "outside the runs");
    for (k, state) in states.iter().enumerate() {
        let want: Vec<f64> = held[from..].iter().map(|held| held[k]).collect();
        let got = b.to_vec(state);
        close(name, FORWARD, &got, &want);
        assert!(got[end - from..].iter().all(|kept| *kept == 0.0), "outside");
    }
}
