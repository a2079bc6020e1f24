//! Layer norm and GELU, which GPT-2 has.

use super::checks::{view, view_mut};
use super::{BACKWARD, FORWARD, Noise, close, dot, gradient_close, reference, wide};
use crate::backend::{Backend, Store};
use crate::tape::{Arena, LinearExtras, Param, Tape};

/// Layer norm and its gradients, fused with the residual branch and not; also of rows whose mean is
/// large beside their deviation.
pub fn layer_norm<B: Backend>(b: &B) {
    let mut noise = Noise(21);
    for (rows, cols, level) in [(3, 5, 0.0), (300, 70, 0.0), (40, 96, 50.0)] {
        let x: Vec<f32> = noise.vec(rows * cols).iter().map(|v| v + level).collect();
        let (w, c, dy) = (noise.vec(cols), noise.vec(cols), noise.vec(rows * cols));
        let f = |x: &[f64], w: &[f64]| reference::layer_norm(1e-5, x, w, &wide(&c));
        let (dev_x, dev_w, dev_dy) = (b.buffer(&x), b.buffer(&w), b.buffer(&dy));
        let (mut y, mut moments) = (b.alloc(rows * cols), b.alloc(2 * rows));
        b.layer_norm(
            1e-5,
            view::<B>(&dev_x),
            view::<B>(&dev_w),
            view::<B>(&b.buffer(&c)),
            view_mut::<B>(&mut y),
            view_mut::<B>(&mut moments),
        );
        close(
            "layer_norm",
            FORWARD,
            &b.to_vec(&y),
            &f(&wide(&x), &wide(&w)),
        );
        for store in [Store::Set, Store::Add] {
            let (mut dx, mut dw) = (b.buffer(&dy), b.buffer(&vec![0.25; cols]));
            b.layer_norm_backward(
                view::<B>(&dev_x),
                view::<B>(&dev_w),
                view::<B>(&moments),
                view::<B>(&dev_dy),
                (view_mut::<B>(&mut dx), store),
                Some(view_mut::<B>(&mut dw)),
            );
            // What the destinations held before enters the loss linearly.
            let residual = if store == Store::Add { 1.0 } else { 0.0 };
            gradient_close("layer_norm dx", BACKWARD, &b.to_vec(&dx), &x, |x| {
                dot(&f(x, &wide(&w)), &dy) + residual * dot(x, &dy)
            });
            gradient_close("layer_norm dweight", BACKWARD, &b.to_vec(&dw), &w, |w| {
                dot(&f(&wide(&x), w), &dy) + 0.25 * w.iter().sum::<f64>()
            });
        }
    }
    recorded(b);
}

/// The same by a tape behind a table of positions, with the gradients of all parameters.
fn recorded<B: Backend>(b: &B) {
    let mut noise = Noise(22);
    let (rows, cols) = (9, 12);
    // A product, the norm's weight and bias, and a table of four rows.
    let matrix = cols * cols;
    let table = matrix + 2 * cols;
    let params = noise.vec(table + 4 * cols);
    let (x, dy) = (noise.vec(rows * cols), noise.vec(rows * cols));
    let entries: Vec<u32> = (0..rows as u32).map(|row| row % 4).collect();
    let mut tape = Tape::<B>::new();
    let input = tape.input(rows, cols);
    let h = tape.linear_with(
        input,
        Param::new(0, 0..matrix),
        cols,
        LinearExtras::default(),
    );
    let held = Param::new(0, table..params.len());
    let h = tape.embed_onto(h, held, entries.clone().into());
    let (weight, bias) = (matrix..matrix + cols, matrix + cols..matrix + 2 * cols);
    let h = tape.layer_norm(h, Param::new(0, weight), Param::new(0, bias), 1e-5);
    let out = tape.gelu(h);
    let plan = tape.plan_training(&[true], &[out]);
    let mut arena = Arena::default();
    arena.prepare(b, &plan);
    tape.write(b, &mut arena, &plan, input, &x);
    let held = b.buffer(&params);
    tape.forward(b, &mut arena, &plan, &[&held]);
    tape.seed(b, &mut arena, &plan, out, &dy);
    let mut gradients = [Some(b.alloc(params.len()))];
    tape.backward(b, &mut arena, &plan, &[&held], &mut gradients);
    let gradient = gradients[0].take().expect("a trained set has gradients");
    let tolerance = super::backward(b, 2);
    gradient_close(
        "norm by tape",
        tolerance,
        &b.to_vec(&gradient),
        &params,
        |p| {
            let product = |row: &[f32]| -> Vec<f64> {
                let outputs = p[..matrix].chunks_exact(cols);
                outputs.map(|w| dot(w, row)).collect()
            };
            let mut h: Vec<f64> = x.chunks_exact(cols).flat_map(product).collect();
            for (row, entry) in h.chunks_exact_mut(cols).zip(&entries) {
                let added = &p[table + *entry as usize * cols..][..cols];
                row.iter_mut().zip(added).for_each(|(v, a)| *v += a);
            }
            let [weight, bias] = [&p[matrix..][..cols], &p[matrix + cols..][..cols]];
            let h = reference::layer_norm(1e-5, &h, weight, bias);
            dot(&reference::gelu(&h), &dy)
        },
    );
}

/// GELU and its gradient, to where it is flat.
pub fn gelu<B: Backend>(b: &B) {
    let mut noise = Noise(23);
    let mut x: Vec<f32> = noise.vec(3_001).iter().map(|v| 6.0 * v).collect();
    x.extend([0.0, -40.0, 40.0, -0.75]);
    let dy = noise.vec(x.len());
    let (dev, mut y, mut dx) = (b.buffer(&x), b.alloc(x.len()), b.alloc(x.len()));
    b.gelu(view::<B>(&dev), view_mut::<B>(&mut y));
    close("gelu", FORWARD, &b.to_vec(&y), &reference::gelu(&wide(&x)));
    let up = b.buffer(&dy);
    b.gelu_backward(view::<B>(&dev), view::<B>(&up), view_mut::<B>(&mut dx));
    gradient_close("gelu dx", BACKWARD, &b.to_vec(&dx), &x, |x| {
        dot(&reference::gelu(x), &dy)
    });
}
