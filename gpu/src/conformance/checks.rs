//! One check of each operation.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::{
    BACKWARD, FORWARD, Noise, backward, close, dot, forward, gradient_close, reference, wide,
};
use crate::backend::{
    ABSENT_ROW, AttentionShape, Backend, CacheRow, HeadNormShape, MatMul, RopeShape, RopeStyle,
    Store, Strides, VocabGrad, VocabStats,
};
use crate::block_table::BlockTable;
use crate::cpu::Cpu;
use crate::spans::RowSpans;
use crate::tape::{Arena, LinearExtras, Param, Tape};

pub(super) fn view<B: Backend>(buffer: &B::Buffer) -> B::View<'_> {
    B::view(buffer, 0..B::len(buffer))
}

pub(super) fn view_mut<B: Backend>(buffer: &mut B::Buffer) -> B::ViewMut<'_> {
    let len = B::len(buffer);
    B::view_mut(buffer, 0..len)
}

/// Strided, batched, scaled and accumulated products.
pub fn matmul<B: Backend>(b: &B) {
    let mut noise = Noise(1);
    let calls = [
        MatMul::linear(33, 65, 17),
        MatMul::linear_dx(7, 130, 9).scaled(0.5),
        MatMul::linear_dw(70, 5, 40).stored(Store::Add),
        MatMul::linear(1, 300, 64),
        MatMul {
            batch: 3,
            a: Strides::rows(11).batched(60),
            b: Strides::transposed(10).batched(70),
            c: Strides::rows(9).batched(50),
            ..MatMul::linear(5, 7, 10)
        },
    ];
    for call in calls {
        let a = noise.vec(call.a.extent(call.batch, call.m, call.k));
        let w = noise.vec(call.b.extent(call.batch, call.k, call.n));
        let c = noise.vec(call.c.extent(call.batch, call.m, call.n));
        let mut want = wide(&c);
        reference::matmul(call, &wide(&a), &wide(&w), &mut want);
        let mut got = b.buffer(&c);
        b.matmul(
            call,
            view::<B>(&b.buffer(&a)),
            view::<B>(&b.buffer(&w)),
            view_mut::<B>(&mut got),
        );
        close(&format!("{call:?}"), forward(b, 1), &b.to_vec(&got), &want);
    }
}

/// Copy, fill, scaling, scaled addition, bias.
pub fn elementwise<B: Backend>(b: &B) {
    let mut noise = Noise(2);
    let (x, y) = (noise.vec(40_001), noise.vec(40_001));
    let (dx, mut dy) = (b.buffer(&x), b.buffer(&y));
    b.axpy(-0.75, view::<B>(&dx), view_mut::<B>(&mut dy));
    let want: Vec<f64> = wide(&x)
        .iter()
        .zip(wide(&y))
        .map(|(x, y)| y - 0.75 * x)
        .collect();
    close("axpy", FORWARD, &b.to_vec(&dy), &want);
    b.scale(-1.25, view_mut::<B>(&mut dy));
    let want: Vec<f64> = want.iter().map(|v| -1.25 * v).collect();
    close("scale", FORWARD, &b.to_vec(&dy), &want);
    b.copy(view::<B>(&dx), view_mut::<B>(&mut dy));
    assert_eq!(b.to_vec(&dy), x, "copy");
    b.add_bias(B::view(&dx, 0..39), B::view_mut(&mut dy, 39..39 * 4));
    let want: Vec<f64> = (39..39 * 4)
        .map(|i| f64::from(x[i]) + f64::from(x[i % 39]))
        .collect();
    close("add_bias", FORWARD, &b.to_vec(&dy)[39..39 * 4], &want);
    b.fill(view_mut::<B>(&mut dy), 1.5);
    assert!(b.to_vec(&dy).iter().all(|&v| v == 1.5), "fill");
}

/// Rounding to bf16, two numbers in each, and back: to the bit, also of ties, of what is rounded to infinity, and of what
/// is no number.
pub fn halves<B: Backend>(b: &B) {
    let mut x = Noise(31).vec(40_000);
    let ties = [
        0x3f80_8000u32,
        0x3f81_8000,
        0xbf80_8001,
        0x7f7f_ffff,
        0x8000_0001,
    ];
    let special = ties.map(f32::from_bits).into_iter();
    x.splice(7..7, special.chain([f32::INFINITY, -0.0, 0.0]));
    let mut pairs = b.alloc(x.len() / 2);
    let mut back = b.buffer(&vec![7.0; x.len()]);
    b.narrow(view::<B>(&b.buffer(&x)), view_mut::<B>(&mut pairs));
    b.widen(view::<B>(&pairs), view_mut::<B>(&mut back));
    for (got, given) in b.to_vec(&back).iter().zip(&x) {
        let want = half::bf16::from_f32(*given).to_f32();
        assert_eq!(got.to_bits(), want.to_bits(), "{given} in bf16");
    }
    b.narrow(
        B::view(&b.buffer(&[f32::NAN, 1.5]), 0..2),
        B::view_mut(&mut pairs, 3..4),
    );
    b.widen(B::view(&pairs, 3..4), B::view_mut(&mut back, 0..2));
    let got = b.to_vec(&back);
    assert!(got[0].is_nan() && got[1] == 1.5, "{:?}", &got[..2]);
}

/// Sum of squares and column sums.
pub fn reductions<B: Backend>(b: &B) {
    let x = Noise(3).vec(50_003);
    let dx = b.buffer(&x);
    let want: f64 = wide(&x).iter().map(|v| v * v).sum();
    let got = b.sum_squares(view::<B>(&dx));
    assert!(
        (got / want - 1.0).abs() < 1e-6,
        "sum_squares: {got} instead of {want}"
    );
    let mut sums = b.buffer(&[1.0; 37]);
    b.sum_rows(B::view(&dx, 0..37 * 50), view_mut::<B>(&mut sums));
    let want: Vec<f64> = (0..37)
        .map(|c| 1.0 + (0..50).map(|r| f64::from(x[r * 37 + c])).sum::<f64>())
        .collect();
    close("sum_rows", FORWARD, &b.to_vec(&sums), &want);
}

/// RMSNorm, and its gradient added to a residual branch's.
pub fn rms_norm<B: Backend>(b: &B) {
    let mut noise = Noise(4);
    for (rows, cols) in [(3, 5), (300, 70)] {
        let (x, w, dy) = (
            noise.vec(rows * cols),
            noise.vec(cols),
            noise.vec(rows * cols),
        );
        let f = |x: &[f64], w: &[f64]| reference::rms_norm(1e-5, x, w);
        let (dev_x, dev_w, dev_dy) = (b.buffer(&x), b.buffer(&w), b.buffer(&dy));
        let (mut y, mut inv) = (b.alloc(rows * cols), b.alloc(rows));
        let (dst0, dst1) = (view_mut::<B>(&mut y), view_mut::<B>(&mut inv));
        b.rms_norm(1e-5, view::<B>(&dev_x), view::<B>(&dev_w), dst0, dst1);
        close("rms_norm", FORWARD, &b.to_vec(&y), &f(&wide(&x), &wide(&w)));
        for store in [Store::Set, Store::Add] {
            let (mut dx, mut dw) = (b.buffer(&dy), b.buffer(&vec![0.25; cols]));
            b.rms_norm_backward(
                view::<B>(&dev_x),
                view::<B>(&dev_w),
                view::<B>(&inv),
                view::<B>(&dev_dy),
                (view_mut::<B>(&mut dx), store),
                Some(view_mut::<B>(&mut dw)),
            );
            // What the destinations held before enters the loss linearly.
            let residual = if store == Store::Add { 1.0 } else { 0.0 };
            gradient_close("rms_norm dx", BACKWARD, &b.to_vec(&dx), &x, |x| {
                dot(&f(x, &wide(&w)), &dy) + residual * dot(x, &dy)
            });
            gradient_close("rms_norm dweight", BACKWARD, &b.to_vec(&dw), &w, |w| {
                dot(&f(&wide(&x), w), &dy) + 0.25 * w.iter().sum::<f64>()
            });
        }
    }
}

/// RMSNorm of query and key heads, and its gradient.
pub fn head_norm<B: Backend>(b: &B) {
    let mut noise = Noise(15);
    for (heads, kv_heads, dim, rows) in [(3, 1, 6, 4), (4, 2, 40, 130)] {
        let attention = AttentionShape {
            heads,
            kv_heads,
            head_dim: dim,
            window: None,
        };
        let shape = HeadNormShape {
            attention,
            eps: 1e-5,
        };
        let len = rows * attention.qkv_cols();
        let (x, w, dy) = (noise.vec(len), noise.vec(2 * dim), noise.vec(len));
        let f = |x: &[f64], w: &[f64]| reference::head_norm(shape, x, w);
        let (dev_x, dev_w, dev_dy) = (b.buffer(&x), b.buffer(&w), b.buffer(&dy));
        let (mut y, mut inv) = (b.alloc(len), b.alloc(rows * shape.heads()));
        let (dst0, dst1) = (view_mut::<B>(&mut y), view_mut::<B>(&mut inv));
        b.head_norm(shape, view::<B>(&dev_x), view::<B>(&dev_w), dst0, dst1);
        let (wide_x, wide_w) = (wide(&x), wide(&w));
        close("head_norm", FORWARD, &b.to_vec(&y), &f(&wide_x, &wide_w));
        let (mut dx, mut dw) = (b.buffer(&dy), b.buffer(&vec![0.25; 2 * dim]));
        b.head_norm_backward(
            shape,
            (view::<B>(&dev_x), view::<B>(&inv)),
            view::<B>(&dev_w),
            view::<B>(&dev_dy),
            view_mut::<B>(&mut dx),
            Some(view_mut::<B>(&mut dw)),
        );
        gradient_close("head_norm dx", BACKWARD, &b.to_vec(&dx), &x, |x| {
            dot(&f(x, &wide_w), &dy)
        });
        gradient_close("head_norm dweight", BACKWARD, &b.to_vec(&dw), &w, |w| {
            dot(&f(&wide_x, w), &dy) + 0.25 * w.iter().sum::<f64>()
        });
    }
}

/// Rotary embedding in both pairings, and its gradient.
pub fn rope<B: Backend>(b: &B) {
    let mut noise = Noise(5);
    for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
        let shape = RopeShape {
            heads: 3,
            head_dim: 8,
            row_stride: 30,
            frequencies: RopeShape::plain(10_000.0, 8),
            magnitude: 1.25,
            style,
        };
        let positions: Vec<u32> = (0..40).map(|i| i * 7 % 50).collect();
        let (x, dy) = (noise.vec(30 * 40), noise.vec(30 * 40));
        let f = |x: &[f64]| {
            let mut rows = x.to_vec();
            reference::rope(&shape, &positions, 1.0, &mut rows);
            rows
        };
        let (mut y, mut dx) = (b.buffer(&x), b.buffer(&dy));
        b.rope(&shape, &positions, view_mut::<B>(&mut y));
        close("rope", FORWARD, &b.to_vec(&y), &f(&wide(&x)));
        b.rope_backward(&shape, &positions, view_mut::<B>(&mut dx));
        gradient_close("rope dx", BACKWARD, &b.to_vec(&dx), &x, |x| dot(&f(x), &dy));
    }
}

/// Causal attention over packed sequences, with and without grouped queries and rows in common.
pub fn attention<B: Backend>(b: &B) {
    // One token; a short one; one that spans two tiles; an empty one.
    let apart = RowSpans::apart([0, 1, 9, 9, 9 + 70].as_slice());
    attention_over(b, &apart, None);
    // One position; some inside of a tile; more than a tile.
    for window in [1, 5, 66] {
        for heads in [(6, 2, 8), (2, 1, 33)] {
            attention_with(b, &apart, NonZeroU32::new(window), heads);
        }
    }
    // Tiles of which a row sees nothing, before, between and behind those of which it does.
    let long = RowSpans::apart([0, 3, 3 + 140].as_slice());
    for window in [7, 65] {
        attention_with(b, &long, NonZeroU32::new(window), (2, 1, 33));
    }
    if b.shares_prefixes() {
        // A prefix without others; one of two tiles with a row, none and two tiles behind it; one of three
        // rows with two others.
        let bounds = [0, 4, 70, 71, 71, 141, 144, 146, 151];
        let prefixes = [0, 1, 1, 1, 1, 5, 5, 5];
        let sharing = RowSpans::sharing(bounds.as_slice(), prefixes.as_slice());
        attention_over(b, &sharing, None);
        attention_over(b, &sharing, NonZeroU32::new(3));
    }
}

fn attention_over<B: Backend>(b: &B, spans: &RowSpans, window: Option<NonZeroU32>) {
    for heads in [
        (2, 2, 4),
        (6, 2, 8),
        (2, 1, 33),
        (2, 1, 80),
        (1, 1, 128),
        (1, 1, 160),
    ] {
        attention_with(b, spans, window, heads);
    }
}

/// With so many heads, of keys and values, of so many elements.
fn attention_with<B: Backend>(
    b: &B,
    spans: &RowSpans,
    window: Option<NonZeroU32>,
    (heads, kv_heads, dim): (usize, usize, usize),
) {
    let mut noise = Noise(6);
    let rows = spans.rows();
    let shape = AttentionShape {
        heads,
        kv_heads,
        head_dim: dim,
        window,
    };
    let qkv: Vec<f32> = noise
        .vec(rows * shape.qkv_cols())
        .iter()
        .map(|v| 2.0 * v)
        .collect();
    let dout = noise.vec(rows * shape.out_cols());
    let dev = b.buffer(&qkv);
    let (mut out, mut lse) = (b.alloc(dout.len()), b.alloc(rows * heads));
    let (dst0, dst1) = (view_mut::<B>(&mut out), view_mut::<B>(&mut lse));
    b.attention(shape, spans, view::<B>(&dev), dst0, dst1);
    let (want, want_lse) = reference::attention(shape, spans, &wide(&qkv));
    close("attention", forward(b, 2), &b.to_vec(&out), &want);
    close("attention lse", forward(b, 2), &b.to_vec(&lse), &want_lse);
    let mut dqkv = b.buffer(&noise.vec(qkv.len()));
    b.attention_backward(
        shape,
        spans,
        view::<B>(&dev),
        view::<B>(&out),
        view::<B>(&lse),
        view::<B>(&b.buffer(&dout)),
        view_mut::<B>(&mut dqkv),
    );
    gradient_close(
        "attention dqkv",
        backward(b, 3),
        &b.to_vec(&dqkv),
        &qkv,
        |qkv| dot(&reference::attention(shape, spans, qkv).0, &dout),
    );
}

/// SwiGLU and its gradient.
pub fn swiglu<B: Backend>(b: &B) {
    let mut noise = Noise(7);
    let (rows, cols) = (31, 21);
    let x: Vec<f32> = noise.vec(rows * 2 * cols).iter().map(|v| 8.0 * v).collect();
    let dy = noise.vec(rows * cols);
    let (dev, mut y, mut dx) = (b.buffer(&x), b.alloc(rows * cols), b.alloc(x.len()));
    b.swiglu(cols, view::<B>(&dev), view_mut::<B>(&mut y));
    close(
        "swiglu",
        FORWARD,
        &b.to_vec(&y),
        &reference::swiglu(cols, &wide(&x)),
    );
    b.swiglu_backward(
        cols,
        view::<B>(&dev),
        view::<B>(&b.buffer(&dy)),
        view_mut::<B>(&mut dx),
    );
    gradient_close("swiglu dx", BACKWARD, &b.to_vec(&dx), &x, |x| {
        dot(&reference::swiglu(cols, x), &dy)
    });
}

/// Gather, and scatter-add with repeated rows and absent ones.
pub fn gather<B: Backend>(b: &B) {
    let mut noise = Noise(8);
    let (cols, rows) = (13, [4u32, 0, ABSENT_ROW, 4, 2, 4, ABSENT_ROW]);
    let table = noise.vec(6 * cols);
    let (dev, mut dst) = (b.buffer(&table), b.alloc(rows.len() * cols));
    b.gather(cols, &rows, view::<B>(&dev), view_mut::<B>(&mut dst));
    let pick = |t: &[f64]| -> Vec<f64> {
        rows.iter()
            .flat_map(|&row| match row {
                ABSENT_ROW => vec![0.0; cols],
                row => t[row as usize * cols..][..cols].to_vec(),
            })
            .collect()
    };
    close("gather", FORWARD, &b.to_vec(&dst), &pick(&wide(&table)));
    let dout = noise.vec(rows.len() * cols);
    let mut dtable = b.alloc(table.len());
    b.scatter_add(
        cols,
        &rows,
        view::<B>(&b.buffer(&dout)),
        view_mut::<B>(&mut dtable),
    );
    gradient_close("scatter_add", BACKWARD, &b.to_vec(&dtable), &table, |t| {
        dot(&pick(t), &dout)
    });
}

/// Weighted return of expert rows to their tokens, one token without an expert, and its gradients
/// set and added.
pub fn combine<B: Backend>(b: &B) {
    let mut noise = Noise(14);
    let (cols, tokens, rows) = (37, 5, [4u32, 0, 4, 2, 0, 1, 4]);
    let (src, weights) = (noise.vec(rows.len() * cols), noise.vec(rows.len()));
    let (held, dout) = (noise.vec(tokens * cols), noise.vec(tokens * cols));
    let combined =
        |src: &[f64], weights: &[f64]| reference::combine(cols, &rows, weights, src, &wide(&held));
    let (dev_src, dev_weights, mut dst) = (b.buffer(&src), b.buffer(&weights), b.buffer(&held));
    b.combine(
        cols,
        &rows,
        view::<B>(&dev_weights),
        view::<B>(&dev_src),
        view_mut::<B>(&mut dst),
    );
    close(
        "combine",
        FORWARD,
        &b.to_vec(&dst),
        &combined(&wide(&src), &wide(&weights)),
    );
    for (store, before) in [(Store::Set, 0.0), (Store::Add, 0.5)] {
        let (mut dsrc, mut dweights) = (b.buffer(&vec![0.5; src.len()]), b.buffer(&[0.5; 7]));
        b.combine_backward(
            cols,
            &rows,
            view::<B>(&dev_weights),
            view::<B>(&dev_src),
            view::<B>(&b.buffer(&dout)),
            Some((view_mut::<B>(&mut dsrc), store)),
            Some((view_mut::<B>(&mut dweights), store)),
        );
        gradient_close("combine dsrc", BACKWARD, &b.to_vec(&dsrc), &src, |src| {
            dot(&combined(src, &wide(&weights)), &dout) + before * src.iter().sum::<f64>()
        });
        gradient_close(
            "combine dweights",
            BACKWARD,
            &b.to_vec(&dweights),
            &weights,
            |weights| {
                dot(&combined(&wide(&src), weights), &dout) + before * weights.iter().sum::<f64>()
            },
        );
    }
}

/// Two experts of a mixture through the tape: tokens dispatched, transformed and combined, the
/// weights themselves computed by a router.
pub fn mixture<B: Backend>(b: &B) {
    let mut noise = Noise(15);
    let (tokens, d) = (6, 4);
    let (table, seed) = (noise.vec(tokens * d), noise.vec(tokens * d));
    let params: Vec<f32> = [table, noise.vec(2 * d * d + d)].concat();
    let (experts, router) = (tokens * d, tokens * d + 2 * d * d);
    // The first expert takes tokens 0, 2, 3, the second 3, 1, 5: one token goes to both, one to none.
    let taken: [[u32; 3]; 2] = [[0, 2, 3], [3, 1, 5]];
    let all: Vec<u32> = (0..tokens as u32).collect();
    let mut tape = Tape::<B>::new();
    let x = tape.embed(Param::new(0, 0..experts), d, all.into());
    let mut out = x;
    for (e, rows) in taken.iter().enumerate() {
        let at = experts + e * d * d;
        let dispatched = tape.select(x, Arc::new(*rows));
        let made = tape.linear(dispatched, Param::new(0, at..at + d * d), d);
        let weights = tape.linear(dispatched, Param::new(0, router..router + d), 1);
        let combined = tape.combine(made, weights, Arc::new(*rows), tokens);
        out = tape.linear_with(
            combined,
            Param::new(0, experts..experts + d * d),
            d,
            LinearExtras {
                residual: Some(out),
                ..LinearExtras::default()
            },
        );
    }
    let reference = |p: &[f64]| {
        let mut out = p[..experts].to_vec();
        let linear = |x: &[f64], at: usize, outputs: usize| {
            let mut y = vec![0.0; x.len() / d * outputs];
            let call = MatMul::linear(x.len() / d, outputs, d);
            reference::matmul(call, x, &p[at..at + outputs * d], &mut y);
            y
        };
        for (e, rows) in taken.iter().enumerate() {
            let x: Vec<f64> = rows
                .iter()
                .flat_map(|&r| p[r as usize * d..][..d].to_vec())
                .collect();
            let (made, weights) = (linear(&x, experts + e * d * d, d), linear(&x, router, 1));
            let nothing = vec![0.0; tokens * d];
            let combined = reference::combine(d, rows, &weights, &made, &nothing);
            let added = linear(&combined, experts, d);
            out.iter_mut().zip(added).for_each(|(o, a)| *o += a);
        }
        out
    };
    let plan = tape.plan_training(&[true], &[out]);
    let mut arena = Arena::default();
    arena.prepare(b, &plan);
    let (dev, mut grads) = (b.buffer(&params), [Some(b.alloc(params.len()))]);
    tape.forward(b, &mut arena, &plan, &[&dev]);
    close(
        "mixture",
        forward(b, 2),
        &tape.read(b, &arena, &plan, out),
        &reference(&wide(&params)),
    );
    tape.seed(b, &mut arena, &plan, out, &seed);
    tape.backward(b, &mut arena, &plan, &[&dev], &mut grads);
    let grad = grads[0].as_ref().expect("the set is trained");
    gradient_close(
        "mixture gradient",
        backward(b, 4),
        &b.to_vec(grad),
        &params,
        |p| dot(&reference(p), &seed),
    );
}

/// Entries, and as labels those that are a rank's own: others are of no entry, as those of other ranks are where a
/// head is cut.
fn part_labels(rows: usize, outputs: usize, is_own: fn(usize) -> bool) -> (Vec<u32>, Vec<u32>) {
    let entries: Vec<u32> = (0..rows).map(|row| (row * 2477 % outputs) as u32).collect();
    let shift = |row: usize| if is_own(row) { 0 } else { outputs as u32 };
    let labels = entries.iter().enumerate();
    let labels = labels
        .map(|(row, it)| it.wrapping_sub(shift(row)))
        .collect();
    (entries, labels)
}

/// Log-probability and entropy over vocabularies of one and of several chunks.
pub fn vocab<B: Backend>(b: &B) {
    let mut noise = Noise(9);
    for (rows, inputs, outputs, scale) in [(150, 6, 20, 1.0), (4, 3, 5000, 0.7)] {
        let scaled = |v: Vec<f32>| -> Vec<f32> { v.iter().map(|v| 3.0 * v).collect() };
        let (x, w) = (
            scaled(noise.vec(rows * inputs)),
            noise.vec(outputs * inputs),
        );
        let is_own = |row: usize| row % 5 != 3;
        let (entries, labels) = part_labels(rows, outputs, is_own);
        let (dlogp, dent) = (noise.vec(rows), noise.vec(rows));
        let (dev_x, dev_w) = (b.buffer(&x), b.buffer(&w));
        let (mut logp, mut ent, mut lse) = (b.alloc(rows), b.alloc(rows), b.alloc(rows));
        let out = VocabStats {
            logprob: view_mut::<B>(&mut logp),
            entropy: view_mut::<B>(&mut ent),
            logsumexp: view_mut::<B>(&mut lse),
        };
        b.vocab(scale, view::<B>(&dev_x), view::<B>(&dev_w), &labels, out);
        // Without a label's logit there is its normaliser alone.
        let f = |x: &[f64], w: &[f64]| {
            let (mut logp, ent, lse) = reference::vocab(f64::from(scale), x, w, &entries);
            for row in (0..rows).filter(|row| !is_own(*row)) {
                logp[row] = -lse[row];
            }
            (logp, ent, lse)
        };
        let (want_logp, want_ent, want_lse) = f(&wide(&x), &wide(&w));
        let mut got = b.to_vec(&logp);
        for row in (0..rows).filter(|row| !is_own(*row)) {
            got[row] = want_logp[row] as f32;
        }
        close("vocab logprob", forward(b, 1), &got, &want_logp);
        close("vocab entropy", forward(b, 1), &b.to_vec(&ent), &want_ent);
        close("vocab logsumexp", forward(b, 1), &b.to_vec(&lse), &want_lse);
        for (with_logp, with_ent) in [(true, true), (true, false), (false, true)] {
            let (mut dx, mut dw) = (b.alloc(x.len()), b.alloc(w.len()));
            let (dev_dlogp, dev_dent) = (b.buffer(&dlogp), b.buffer(&dent));
            b.vocab_backward(
                scale,
                view::<B>(&dev_x),
                view::<B>(&dev_w),
                &labels,
                VocabStats {
                    logprob: view::<B>(&logp),
                    entropy: view::<B>(&ent),
                    logsumexp: view::<B>(&lse),
                },
                VocabGrad {
                    logprob: with_logp.then(|| view::<B>(&dev_dlogp)),
                    entropy: with_ent.then(|| view::<B>(&dev_dent)),
                    dx: Some((view_mut::<B>(&mut dx), Store::Set)),
                    dw: Some(view_mut::<B>(&mut dw)),
                },
            );
            let loss = |x: &[f64], w: &[f64]| {
                let (logp, ent, _) = f(x, w);
                let mut loss = 0.0;
                if with_logp {
                    loss += dot(&logp, &dlogp);
                }
                if with_ent {
                    loss += dot(&ent, &dent);
                }
                loss
            };
            gradient_close("vocab dx", backward(b, 3), &b.to_vec(&dx), &x, |x| {
                loss(x, &wide(&w))
            });
            gradient_close("vocab dw", backward(b, 3), &b.to_vec(&dw), &w, |w| {
                loss(&wide(&x), w)
            });
        }
    }
}

/// Probabilities of rows with a scale each.
pub fn softmax<B: Backend>(b: &B) {
    let mut noise = Noise(14);
    let (rows, cols) = (5, 301);
    let x: Vec<f32> = noise.vec(rows * cols).iter().map(|v| 5.0 * v).collect();
    let scales = [1.0, 0.5, 2.0, 1.25, 4.0];
    let (mut probs, mut lse) = (b.alloc(x.len()), b.alloc(rows));
    let (dst0, dst1) = (view_mut::<B>(&mut probs), view_mut::<B>(&mut lse));
    b.softmax(&scales, view::<B>(&b.buffer(&x)), dst0, dst1);
    let (probs, lse) = (b.to_vec(&probs), b.to_vec(&lse));
    for (row, &scale) in scales.iter().enumerate() {
        let x: Vec<f64> = x[row * cols..][..cols]
            .iter()
            .map(|v| f64::from(*v) * f64::from(scale))
            .collect();
        let total = x.iter().map(|z| z.exp()).sum::<f64>();
        let want: Vec<f64> = x.iter().map(|z| z.exp() / total).collect();
        close("softmax", FORWARD, &probs[row * cols..][..cols], &want);
        close("softmax logsumexp", FORWARD, &lse[row..=row], &[total.ln()]);
    }
}

/// Packed products for all row counts around the kernels' blocks; rows do not depend on the batch.
pub fn packed_linear<B: Backend>(b: &B) {
    for (outputs, inputs) in [(53, 40), (20, 600)] {
        packed_linear_of(b, outputs, inputs);
    }
}

fn packed_linear_of<B: Backend>(b: &B, outputs: usize, inputs: usize) {
    let mut noise = Noise(11);
    let w = noise.vec(outputs * inputs);
    let mut packed = b.pack(outputs, inputs, view::<B>(&b.buffer(&noise.vec(w.len()))));
    b.repack(view::<B>(&b.buffer(&w)), &mut packed);
    let x = noise.vec(40 * inputs);
    let dev = b.buffer(&x);
    let mut alone = Vec::new();
    for row in 0..40 {
        let mut y = b.alloc(outputs);
        let x = B::view(&dev, row * inputs..(row + 1) * inputs);
        b.packed_linear(x, &packed, view_mut::<B>(&mut y), Store::Set);
        alone.extend(b.to_vec(&y));
    }
    let mut want = vec![0.0; 40 * outputs];
    reference::matmul(
        MatMul::linear(40, outputs, inputs),
        &wide(&x),
        &wide(&w),
        &mut want,
    );
    close("packed_linear", forward(b, 1), &alone, &want);
    for rows in [2, 3, 5, 6, 7, 11, 12, 13, 32, 40] {
        let mut y = b.alloc(rows * outputs);
        let x = B::view(&dev, 0..rows * inputs);
        b.packed_linear(x, &packed, view_mut::<B>(&mut y), Store::Set);
        assert_eq!(
            b.to_vec(&y),
            alone[..rows * outputs],
            "{rows} rows against one at a time"
        );
        b.packed_linear(x, &packed, view_mut::<B>(&mut y), Store::Add);
        let twice: Vec<f32> = alone[..rows * outputs].iter().map(|v| v + v).collect();
        assert_eq!(b.to_vec(&y), twice, "{rows} rows added");
    }
}

/// Attention over a cache filled token by token, equal to attention over the whole sequences.
pub fn decode<B: Backend>(b: &B) {
    for window in [None, NonZeroU32::new(18), NonZeroU32::new(100)] {
        decode_with(b, window);
    }
}

fn decode_with<B: Backend>(b: &B, window: Option<NonZeroU32>) {
    let mut noise = Noise(12);
    // The long sequence crosses the borders of pages and of blocks of them.
    for (dim, long) in [(4, 40), (32, 40), (40, 40), (8, 300)] {
        let shape = AttentionShape {
            heads: 4,
            kv_heads: 2,
            head_dim: dim,
            window,
        };
        let (width, capacity) = (shape.qkv_cols(), long as usize + 5);
        let total = long as usize + 30;
        let spans = RowSpans::apart([0, long, long + 30].as_slice());
        let qkv = noise.vec(total * width);
        let want = reference::attention(shape, &spans, &wide(&qkv)).0;
        let block = b.cache_block(16);
        let most = capacity.div_ceil(block);
        // The slots' blocks lie across each other, and none lies at its own number.
        let mut table = BlockTable::new(2, most, block);
        for slot in 0..2 {
            let blocks = (0..most).rev().map(|i| (2 * i + slot) as u32);
            table.set(slot, &blocks.collect::<Vec<_>>());
        }
        let mut cache = b.alloc(2 * most * b.cache_len(shape, block));
        let mut got = vec![0.0; total * shape.out_cols()];
        for position in 0..long {
            // Both sequences while both last; the first stands in slot 1.
            let rows: Vec<CacheRow> = (0..if position < 30 { 2u32 } else { 1 })
                .map(|sequence| CacheRow {
                    slot: 1 - sequence,
                    position,
                })
                .collect();
            let row_of = |r: &CacheRow| (long * (1 - r.slot) + r.position) as usize;
            let step: Vec<f32> = rows
                .iter()
                .flat_map(|r| qkv[row_of(r) * width..][..width].to_vec())
                .collect();
            let dev = b.buffer(&step);
            let mut out = b.alloc(rows.len() * shape.out_cols());
            b.cache_append(
                shape,
                &table,
                &rows,
                view::<B>(&dev),
                view_mut::<B>(&mut cache),
            );
            let dst = view_mut::<B>(&mut out);
            b.cache_attention(
                shape,
                &table,
                &rows,
                view::<B>(&dev),
                view::<B>(&cache),
                dst,
            );
            for (r, out) in rows.iter().zip(b.to_vec(&out).chunks(shape.out_cols())) {
                got[row_of(r) * shape.out_cols()..][..shape.out_cols()].copy_from_slice(out);
            }
        }
        close("cache_attention", forward(b, 2), &got, &want);
    }
}

/// A small network through the tape: shared inputs, residuals, bias, scale, and two sets of
/// parameters of which one is frozen in a second run.
pub fn tape<B: Backend>(b: &B) {
    let mut noise = Noise(13);
    let (rows, d) = (9, 6);
    let base = noise.vec(5 * d + d + d * d + d);
    let adapter = noise.vec(2 * d * d);
    let seed = noise.vec(rows * d);
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i % 5).collect();
    let network = |tape: &mut Tape<B>| {
        let x = tape.embed(Param::new(0, 0..30), d, tokens.clone().into());
        let h = tape.rms_norm(x, Param::new(0, 30..36), 1e-5);
        let extras = LinearExtras {
            bias: Some(Param::new(0, 72..78)),
            residual: Some(x),
            scale: 0.5,
        };
        let y = tape.linear_with(h, Param::new(0, 36..72), d, extras);
        let z = tape.linear(y, Param::new(1, 0..2 * d * d), 2 * d);
        let s = tape.swiglu(z);
        let out = tape.linear_with(
            s,
            Param::new(0, 36..72),
            d,
            LinearExtras {
                residual: Some(y),
                ..LinearExtras::default()
            },
        );
        tape.select(out, (0..rows as u32).rev().collect())
    };
    let reference = |base: &[f64], adapter: &[f64]| {
        let (table, rest) = base.split_at(30);
        let (norm, rest) = rest.split_at(6);
        let (w, bias) = rest.split_at(36);
        let linear = |x: &[f64], w: &[f64], outputs: usize| {
            let mut y = vec![0.0; rows * outputs];
            reference::matmul(MatMul::linear(rows, outputs, d), x, w, &mut y);
            y
        };
        let x: Vec<f64> = tokens
            .iter()
            .flat_map(|&t| table[t as usize * d..][..d].to_vec())
            .collect();
        let h = linear(&reference::rms_norm(1e-5, &x, norm), w, d);
        let y: Vec<f64> = (0..rows * d)
            .map(|i| 0.5 * h[i] + bias[i % d] + x[i])
            .collect();
        let s = linear(&reference::swiglu(d, &linear(&y, adapter, 2 * d)), w, d);
        (0..rows)
            .rev()
            .flat_map(|r| (0..d).map(move |c| r * d + c))
            .map(|i| s[i] + y[i])
            .collect::<Vec<f64>>()
    };
    let params = [b.buffer(&base), b.buffer(&adapter)];
    let params = [&params[0], &params[1]];
    for trainable in [[true, true], [false, true], [true, false]] {
        let mut tape = Tape::new();
        let out = network(&mut tape);
        let plan = tape.plan_training(&trainable, &[out]);
        let mut arena = Arena::default();
        arena.prepare(b, &plan);
        let mut grads = [
            trainable[0].then(|| b.alloc(base.len())),
            trainable[1].then(|| b.alloc(adapter.len())),
        ];
        tape.forward(b, &mut arena, &plan, &params);
        let got = tape.read(b, &arena, &plan, out);
        close(
            "tape",
            forward(b, 3),
            &got,
            &reference(&wide(&base), &wide(&adapter)),
        );
        tape.seed(b, &mut arena, &plan, out, &seed);
        tape.backward(b, &mut arena, &plan, &params, &mut grads);
        if let Some(grad) = &grads[0] {
            gradient_close(
                "tape base",
                backward(b, 6),
                &b.to_vec(grad),
                &base,
                |base| dot(&reference(base, &wide(&adapter)), &seed),
            );
        }
        if let Some(grad) = &grads[1] {
            gradient_close(
                "tape adapter",
                backward(b, 6),
                &b.to_vec(grad),
                &adapter,
                |adapter| dot(&reference(&wide(&base), adapter), &seed),
            );
        }
        let held = arena.bytes();
        arena.prepare(b, &plan);
        assert_eq!(arena.bytes(), held, "the same plan needs no more memory");
    }
    let mut tape = Tape::new();
    let out = network(&mut tape);
    let plan = tape.plan_inference(&[out]);
    let mut arena = Arena::default();
    arena.prepare(b, &plan);
    tape.forward(b, &mut arena, &plan, &params);
    let got = tape.read(b, &arena, &plan, out);
    close(
        "tape inference",
        forward(b, 3),
        &got,
        &reference(&wide(&base), &wide(&adapter)),
    );
}

/// The smallest decoder that has everything: embedding, norms, rotary embedding, grouped attention
/// over packed sequences, SwiGLU, residuals, and the vocabulary's loss. Its loss and gradients
/// against those of the processor, in the Euclidean norm.
pub fn transformer<B: Backend>(b: &B) {
    let net = Decoder::small();
    let (params, tokens) = (net.parameters(), net.tokens());
    let (want_loss, want) = net.gradients(&Cpu::new(1), &params, &tokens);
    let (loss, got) = net.gradients(b, &params, &tokens);
    close("loss", forward(b, 2), &[loss], &[f64::from(want_loss)]);
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let length = norm(&mut want.iter().map(|v| f64::from(*v)));
    let off = norm(
        &mut got
            .iter()
            .zip(&want)
            .map(|(g, w)| f64::from(*g) - f64::from(*w)),
    );
    // Roundings of the two layers are independent, so they add up as the root of their number.
    let accepted = backward(b, 2);
    assert!(
        off <= accepted * length,
        "gradients off by {:.1e} of their length, {accepted:.1e} accepted",
        off / length
    );
}

/// Sizes of a decoder, and its two sequences.
#[derive(Clone, Copy, Debug)]
struct Decoder {
    dim: usize,
    layers: usize,
    attention: AttentionShape,
    ffn: usize,
    vocab: usize,
    rows: usize,
}

impl Decoder {
    fn small() -> Self {
        Self {
            dim: 48,
            layers: 2,
            attention: AttentionShape {
                heads: 4,
                kv_heads: 2,
                head_dim: 12,
                window: None,
            },
            ffn: 80,
            vocab: 90,
            rows: 100,
        }
    }

    /// Lengths of the parameters of a layer: norm, qkv, out, norm, gate and up, down.
    fn layer(self) -> [usize; 6] {
        let (d, a) = (self.dim, self.attention);
        [
            d,
            a.qkv_cols() * d,
            d * a.out_cols(),
            d,
            2 * self.ffn * d,
            d * self.ffn,
        ]
    }

    fn parameters(self) -> Vec<f32> {
        let mut noise = Noise(17);
        let mut params: Vec<f32> = noise.vec(self.vocab * self.dim);
        for _ in 0..self.layers {
            for len in self.layer() {
                let scale = if len == self.dim { 0.0 } else { 0.25 };
                let base = if len == self.dim { 1.0 } else { 0.0 };
                params.extend(noise.vec(len).iter().map(|v| base + scale * v));
            }
        }
        params.extend(vec![1.0; self.dim]);
        params
    }

    fn tokens(self) -> Vec<u32> {
        (0..self.rows)
            .map(|i| (i * 31 % self.vocab) as u32)
            .collect()
    }

    /// Mean negative log-probability of the next tokens, and its gradient.
    fn gradients<B: Backend>(self, b: &B, params: &[f32], tokens: &[u32]) -> (f32, Vec<f32>) {
        let (d, a) = (self.dim, self.attention);
        let mut at = 0;
        let mut next = |len: usize| {
            at += len;
            Param::new(0, at - len..at)
        };
        let mut tape = Tape::<B>::new();
        let table = next(self.vocab * d);
        let split = 30;
        let positions: Vec<u32> = (0..split).chain(0..self.rows as u32 - split).collect();
        let positions: Arc<[u32]> = positions.into();
        let rope = RopeShape {
            heads: a.heads + a.kv_heads,
            head_dim: a.head_dim,
            row_stride: a.qkv_cols(),
            frequencies: RopeShape::plain(10_000.0, a.head_dim),
            magnitude: 1.0,
            style: RopeStyle::HalfSplit,
        };
        let mut x = tape.embed(table.clone(), d, tokens.into());
        for _ in 0..self.layers {
            let [norm, qkv, out, norm2, gate_up, down] = self.layer().map(&mut next);
            let residual = |x| LinearExtras {
                residual: Some(x),
                ..LinearExtras::default()
            };
            let h = tape.rms_norm(x, norm, 1e-5);
            let h = tape.linear(h, qkv, a.qkv_cols());
            tape.rope(h, rope.clone(), Arc::clone(&positions));
            let h = tape.attention(
                h,
                a,
                RowSpans::apart([0, split, self.rows as u32].as_slice()),
            );
            x = tape.linear_with(h, out, d, residual(x));
            let h = tape.rms_norm(x, norm2, 1e-5);
            let h = tape.linear(h, gate_up, 2 * self.ffn);
            let h = tape.swiglu(h);
            x = tape.linear_with(h, down, d, residual(x));
        }
        let x = tape.rms_norm(x, next(d), 1e-5);
        let labels: Vec<u32> = tokens
            .iter()
            .map(|t| (t + 31) % self.vocab as u32)
            .collect();
        let logprob = tape.vocab(x, table, 1.0, labels.into()).logprob;
        let plan = tape.plan_training(&[true], &[logprob]);
        let mut arena = Arena::default();
        arena.prepare(b, &plan);
        let mut held = b.parameters(params.len());
        b.write(view_mut::<B>(&mut held), params);
        let mut grads = [Some(b.alloc(params.len()))];
        tape.forward(b, &mut arena, &plan, &[&held]);
        let got = tape.read(b, &arena, &plan, logprob);
        let loss = -got.iter().sum::<f32>() / self.rows as f32;
        let seed = vec![-1.0 / self.rows as f32; self.rows];
        tape.seed(b, &mut arena, &plan, logprob, &seed);
        tape.backward(b, &mut arena, &plan, &[&held], &mut grads);
        (
            loss,
            grads[0].as_ref().map(|g| b.to_vec(g)).unwrap_or_default(),
        )
    }
}
