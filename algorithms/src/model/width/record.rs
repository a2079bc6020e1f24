//! Recording of connections. What they mix of a token is computed by the processor, whatever the device.

use std::ops::Range;

use odeon_gpu::{Backend, CustomOp, LinearExtras, Param, Store, Tape, Var};

use super::mix::{Coefficients, MixGradients, Mixing};
use super::{ConnectionPlaces, VirtualWidth, WidthPlaces};

/// Everything of a model that its width is recorded by.
#[derive(Clone, Copy)]
pub(crate) struct WidthRecorder<'a> {
    pub(crate) width: VirtualWidth,
    /// Numbers of a layer's row.
    pub(crate) dim: usize,
    /// Added to the mean square in norms.
    pub(crate) eps: f32,
    /// Parameters by their place in the layout.
    pub(crate) param: &'a dyn Fn(&Range<usize>) -> Param,
}

/// A connection of which the layer's rows have been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Connected {
    mixing: Mixing,
    stream: Var,
    fixed: Var,
    /// Products of tokens, and their scale.
    dynamic: Option<[Var; 2]>,
}

impl WidthRecorder<'_> {
    /// Reads the rows of a layer, `[tokens, D]`, out of the stream, `[tokens n, D / m]`.
    pub(crate) fn connect<B: Backend>(
        self,
        tape: &mut Tape<B>,
        places: &ConnectionPlaces,
        stream: Var,
    ) -> (Connected, Var) {
        let Self {
            width,
            dim,
            eps,
            param,
        } = self;
        let mixing = Mixing::of(width, dim);
        let (rows, segment) = tape.shape(stream);
        let len = width.segments * width.columns();
        // A tensor as one row, which has a gradient.
        let one = |tape: &mut Tape<B>, place| tape.embed(param(place), len, [0].into());
        let dynamic = places.dynamic.as_ref().map(|[norm, weight, scale]| {
            let normed = tape.rms_norm(stream, param(norm), eps);
            let extras = LinearExtras {
                scale: 1.0 / (segment as f32).sqrt(),
                ..LinearExtras::default()
            };
            let products = tape.linear_with(normed, param(weight), width.columns(), extras);
            [products, one(tape, scale)]
        });
        let connected = Connected {
            mixing,
            stream,
            fixed: one(tape, &places.fixed),
            dynamic,
        };
        let tokens = rows / width.segments;
        let read = Box::new(ReadRows(mixing, tokens));
        let read = tape.custom(read, connected.inputs(None), tokens, dim);
        (connected, read)
    }

    /// Rows as segments, `[tokens n, D / m]`.
    pub(crate) fn segments_of<B: Backend>(
        self,
        tape: &mut Tape<B>,
        places: &WidthPlaces,
        x: Var,
    ) -> Var {
        let row = self.width.row(self.dim);
        let wide = match &places.expand {
            None => x,
            Some(expand) => tape.linear(x, (self.param)(expand), row),
        };
        reshaped(tape, wide, self.width.segment(self.dim))
    }

    /// Segments as rows again.
    pub(crate) fn rows_of<B: Backend>(self, tape: &mut Tape<B>, x: Var) -> Var {
        reshaped(tape, x, self.width.row(self.dim))
    }

    /// Rows as wide as a layer.
    pub(crate) fn narrowed<B: Backend>(
        self,
        tape: &mut Tape<B>,
        places: &WidthPlaces,
        wide: Var,
    ) -> Var {
        let mut x = wide;
        if let Some(norm) = &places.norm {
            let groups = reshaped(tape, x, self.dim);
            let normed = tape.rms_norm(groups, (self.param)(norm), self.eps);
            x = self.rows_of(tape, normed);
        }
        match &places.reduce {
            None => x,
            Some(reduce) => tape.linear(x, (self.param)(reduce), self.dim),
        }
    }
}

impl Connected {
    /// The variables that an operation reads: the stream, what the layer has made, the matrix without tokens, and the
    /// products of tokens with their scale.
    fn inputs(&self, made: Option<Var>) -> Vec<Var> {
        let own = [self.stream].into_iter().chain(made).chain([self.fixed]);
        own.chain(self.dynamic.into_iter().flatten()).collect()
    }

    /// The stream behind the layer, by what that has made.
    pub(crate) fn write<B: Backend>(self, tape: &mut Tape<B>, made: Var) -> Var {
        let (rows, segment) = tape.shape(self.stream);
        let write = Box::new(WriteRows(self.mixing, rows / self.mixing.segments()));
        tape.custom(write, self.inputs(Some(made)), rows, segment)
    }
}

/// The same numbers in rows of another length.
fn reshaped<B: Backend>(tape: &mut Tape<B>, x: Var, cols: usize) -> Var {
    let (rows, own) = tape.shape(x);
    tape.custom(Box::new(Reshaped), vec![x], rows * own / cols, cols)
}

#[derive(Debug)]
struct Reshaped;

impl<B: Backend> CustomOp<B> for Reshaped {
    fn forward(&self, backend: &B, inputs: &[B::View<'_>], out: B::ViewMut<'_>) {
        backend.copy(inputs[0], out);
    }

    fn backward(
        &self,
        backend: &B,
        _: &[B::View<'_>],
        _: B::View<'_>,
        dout: B::View<'_>,
        dinputs: Vec<Option<(B::ViewMut<'_>, Store)>>,
    ) {
        for (to, store) in dinputs.into_iter().flatten() {
            match store {
                Store::Set => backend.copy(dout, to),
                Store::Add => backend.axpy(1.0, dout, to),
            }
        }
    }
}

/// Rows of a layer, of so many tokens.
#[derive(Debug)]
struct ReadRows(Mixing, usize);

/// Rows of the stream behind a layer, of so many tokens.
#[derive(Debug)]
struct WriteRows(Mixing, usize);

/// Numbers of a device on the host.
fn on_host<B: Backend>(backend: &B, view: B::View<'_>, len: usize) -> Vec<f32> {
    let mut numbers = vec![0.0; len];
    backend.read(view, &mut numbers);
    numbers
}

/// The variables of an operation on the host, of which so many are rows: of the stream, and of what a layer has made.
fn all_on_host<B: Backend>(
    backend: &B,
    (mixing, tokens): (Mixing, usize),
    inputs: &[B::View<'_>],
    rows: usize,
) -> Vec<Vec<f32>> {
    let matrix = mixing.segments() * mixing.columns();
    let of_rows = [mixing.stream_row(), mixing.layer_row()].map(|row| tokens * row);
    let lengths = of_rows.into_iter().take(rows);
    let lengths = lengths.chain([matrix, tokens * matrix, matrix]);
    let pairs = inputs.iter().zip(lengths);
    pairs
        .map(|(view, len)| on_host(backend, *view, len))
        .collect()
}

/// The matrix of a connection, by its variables.
fn coefficients(variables: &[Vec<f32>]) -> Coefficients<'_> {
    let [fixed, dynamic @ ..] = variables else {
        unreachable!("a connection has a matrix")
    };
    Coefficients {
        fixed,
        dynamic: match dynamic {
            [products, scale] => Some([scale, products]),
            _ => None,
        },
    }
}

/// Writes gradients where they are wanted.
fn put<B: Backend>(
    backend: &B,
    gradients: Vec<Vec<f32>>,
    wanted: Vec<Option<(B::ViewMut<'_>, Store)>>,
) {
    for (gradient, to) in gradients.into_iter().zip(wanted) {
        match to {
            None => {}
            Some((to, Store::Set)) => backend.write(to, &gradient),
            Some((to, Store::Add)) => {
                let own = backend.buffer(&gradient);
                backend.axpy(1.0, B::view(&own, 0..gradient.len()), to);
            }
        }
    }
}

impl<B: Backend> CustomOp<B> for ReadRows {
    fn forward(&self, backend: &B, inputs: &[B::View<'_>], out: B::ViewMut<'_>) {
        let inputs = all_on_host(backend, (self.0, self.1), inputs, 1);
        backend.write(out, &self.0.read(coefficients(&inputs[1..]), &inputs[0]));
    }

    fn backward(
        &self,
        backend: &B,
        inputs: &[B::View<'_>],
        _: B::View<'_>,
        dout: B::View<'_>,
        dinputs: Vec<Option<(B::ViewMut<'_>, Store)>>,
    ) {
        let inputs = all_on_host(backend, (self.0, self.1), inputs, 1);
        let of_rows = on_host(backend, dout, self.1 * self.0.layer_row());
        let of = coefficients(&inputs[1..]);
        let MixGradients {
            stream,
            fixed,
            scale,
            products,
            ..
        } = self.0.read_back(of, &inputs[0], &of_rows);
        put(backend, vec![stream, fixed, products, scale], dinputs);
    }
}

impl<B: Backend> CustomOp<B> for WriteRows {
    fn forward(&self, backend: &B, inputs: &[B::View<'_>], out: B::ViewMut<'_>) {
        let inputs = all_on_host(backend, (self.0, self.1), inputs, 2);
        let of = coefficients(&inputs[2..]);
        backend.write(out, &self.0.write(of, &inputs[0], &inputs[1]));
    }

    fn backward(
        &self,
        backend: &B,
        inputs: &[B::View<'_>],
        _: B::View<'_>,
        dout: B::View<'_>,
        dinputs: Vec<Option<(B::ViewMut<'_>, Store)>>,
    ) {
        let inputs = all_on_host(backend, (self.0, self.1), inputs, 2);
        let of_rows = on_host(backend, dout, self.1 * self.0.stream_row());
        let of = coefficients(&inputs[2..]);
        let MixGradients {
            stream,
            made,
            fixed,
            scale,
            products,
        } = self.0.write_back(of, &inputs[0], &inputs[1], &of_rows);
        put(backend, vec![stream, made, fixed, products, scale], dinputs);
    }
}
