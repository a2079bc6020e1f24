//! Arithmetic of connections, token by token.

use super::VirtualWidth;

/// Sizes of the rows that connections mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mixing {
    /// Segments of a layer's rows.
    m: usize,
    /// Segments of a row of the stream.
    n: usize,
    /// Numbers of a segment.
    d: usize,
}

/// The matrix of a connection: what it is without tokens, and the addend for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coefficients<'a> {
    /// `[n, 2 m + n]`.
    pub(crate) fixed: &'a [f32],
    /// The scale, shaped alike, and the products of each token, `[tokens n, 2 m + n]`.
    pub(crate) dynamic: Option<[&'a [f32]; 2]>,
}

/// Gradients of a connection, shaped as what they are of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MixGradients {
    /// Of the rows of the stream.
    pub(crate) stream: Vec<f32>,
    /// Of the rows that the layer has made; empty of what it reads.
    pub(crate) made: Vec<f32>,
    pub(crate) fixed: Vec<f32>,
    pub(crate) scale: Vec<f32>,
    pub(crate) products: Vec<f32>,
}

fn add(to: &mut [f32], factor: f32, from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Mixing {
    pub(crate) fn of(width: VirtualWidth, dim: usize) -> Self {
        Self {
            m: width.fraction,
            n: width.segments,
            d: width.segment(dim),
        }
    }

    /// Columns of the matrix.
    pub(crate) const fn columns(self) -> usize {
        2 * self.m + self.n
    }

    /// Segments of a row of the stream.
    pub(crate) const fn segments(self) -> usize {
        self.n
    }

    /// Numbers of a row of the stream.
    pub(crate) const fn stream_row(self) -> usize {
        self.n * self.d
    }

    /// Numbers of a layer's row.
    pub(crate) const fn layer_row(self) -> usize {
        self.m * self.d
    }

    /// The matrix of a token.
    fn matrix(self, of: Coefficients<'_>, token: usize, matrix: &mut [f32]) {
        matrix.copy_from_slice(of.fixed);
        if let Some([scale, products]) = of.dynamic {
            let products = &products[token * matrix.len()..][..matrix.len()];
            for ((to, scale), product) in matrix.iter_mut().zip(scale).zip(products) {
                *to += scale * product.tanh();
            }
        }
    }

    /// Rows of a layer, `X = A_in^T H`, of so many tokens.
    pub(crate) fn read(self, of: Coefficients<'_>, stream: &[f32]) -> Vec<f32> {
        let Self { m, n, d } = self;
        let tokens = stream.len() / (n * d);
        let mut rows = vec![0.0; tokens * m * d];
        let mut matrix = vec![0.0; n * self.columns()];
        let pairs = stream.chunks_exact(n * d).zip(rows.chunks_exact_mut(m * d));
        for (token, (stream, row)) in pairs.enumerate() {
            self.matrix(of, token, &mut matrix);
            let lines = matrix.chunks_exact(self.columns());
            for (line, segment) in lines.zip(stream.chunks_exact(d)) {
                for (factor, to) in line[..m].iter().zip(row.chunks_exact_mut(d)) {
                    add(to, *factor, segment);
                }
            }
        }
        rows
    }

    /// Rows of the stream behind a layer, `B^T Z + A_carry^T H`.
    pub(crate) fn write(self, of: Coefficients<'_>, stream: &[f32], made: &[f32]) -> Vec<f32> {
        let Self { m, n, d } = self;
        let mut all = vec![0.0; stream.len()];
        let mut matrix = vec![0.0; n * self.columns()];
        let rows = stream.chunks_exact(n * d).zip(made.chunks_exact(m * d));
        for (token, ((stream, made), new)) in rows.zip(all.chunks_exact_mut(n * d)).enumerate() {
            self.matrix(of, token, &mut matrix);
            let lines = matrix.chunks_exact(self.columns());
            for ((at, line), segment) in lines.enumerate().zip(stream.chunks_exact(d)) {
                for (factor, to) in line[m..m + n].iter().zip(new.chunks_exact_mut(d)) {
                    add(to, *factor, segment);
                }
                let own = &mut new[at * d..(at + 1) * d];
                for (factor, made) in line[m + n..].iter().zip(made.chunks_exact(d)) {
                    add(own, *factor, made);
                }
            }
        }
        all
    }

    /// Gradients of nothing yet.
    fn gradients(self, of: Coefficients<'_>, stream: &[f32], made: &[f32]) -> MixGradients {
        let len = |at: usize| of.dynamic.map_or(0, |parts| parts[at].len());
        MixGradients {
            stream: vec![0.0; stream.len()],
            made: vec![0.0; made.len()],
            fixed: vec![0.0; of.fixed.len()],
            scale: vec![0.0; len(0)],
            products: vec![0.0; len(1)],
        }
    }

    /// Adds the gradient of a token's matrix.
    fn add_matrix(self, of: Coefficients<'_>, token: usize, matrix: &[f32], to: &mut MixGradients) {
        add(&mut to.fixed, 1.0, matrix);
        if let Some([scale, products]) = of.dynamic {
            let own = token * matrix.len()..(token + 1) * matrix.len();
            let of_products = to.products[own.clone()].iter_mut();
            let parts = matrix.iter().zip(scale).zip(&products[own]);
            let to = to.scale.iter_mut().zip(of_products);
            for (((gradient, scale), product), (to_scale, to_product)) in parts.zip(to) {
                let value = product.tanh();
                *to_scale += gradient * value;
                *to_product += gradient * scale * (1.0 - value * value);
            }
        }
    }

    /// Gradients of [`read`](Self::read), by that of its rows.
    pub(crate) fn read_back(
        self,
        of: Coefficients<'_>,
        stream: &[f32],
        of_rows: &[f32],
    ) -> MixGradients {
        let Self { m, n, d } = self;
        let mut all = self.gradients(of, stream, &[]);
        let [mut matrix, mut of_matrix] = [(); 2].map(|()| vec![0.0; n * self.columns()]);
        let rows = stream.chunks_exact(n * d).zip(of_rows.chunks_exact(m * d));
        for (token, (stream, of_row)) in rows.enumerate() {
            self.matrix(of, token, &mut matrix);
            let to = &mut all.stream[token * n * d..(token + 1) * n * d];
            let lines = matrix.chunks_exact(self.columns());
            let of_lines = of_matrix.chunks_exact_mut(self.columns());
            let segments = stream.chunks_exact(d).zip(to.chunks_exact_mut(d));
            for ((line, of_line), (segment, to)) in lines.zip(of_lines).zip(segments) {
                for (at, of_row) in of_row.chunks_exact(d).enumerate() {
                    add(to, line[at], of_row);
                    of_line[at] = dot(segment, of_row);
                }
            }
            self.add_matrix(of, token, &of_matrix, &mut all);
        }
        all
    }

    /// Gradients of [`write`](Self::write), by that of its rows.
    pub(crate) fn write_back(
        self,
        of: Coefficients<'_>,
        stream: &[f32],
        made: &[f32],
        of_rows: &[f32],
    ) -> MixGradients {
        let Self { m, n, d } = self;
        let mut all = self.gradients(of, stream, made);
        let [mut matrix, mut of_matrix] = [(); 2].map(|()| vec![0.0; n * self.columns()]);
        for (token, of_row) in of_rows.chunks_exact(n * d).enumerate() {
            self.matrix(of, token, &mut matrix);
            let own = token * n * d..(token + 1) * n * d;
            let of_made = token * m * d..(token + 1) * m * d;
            let (stream, made) = (&stream[own.clone()], &made[of_made.clone()]);
            let (to_stream, to_made) = (&mut all.stream[own], &mut all.made[of_made]);
            let lines = matrix.chunks_exact(self.columns());
            let of_lines = of_matrix.chunks_exact_mut(self.columns());
            for (at, (line, of_line)) in lines.zip(of_lines).enumerate() {
                let segment = &stream[at * d..(at + 1) * d];
                let to = &mut to_stream[at * d..(at + 1) * d];
                for (to_at, of_new) in of_row.chunks_exact(d).enumerate() {
                    add(to, line[m + to_at], of_new);
                    of_line[m + to_at] = dot(segment, of_new);
                }
                let of_new = &of_row[at * d..(at + 1) * d];
                let made = made.chunks_exact(d).zip(to_made.chunks_exact_mut(d));
                for (from, (made, to)) in made.enumerate() {
                    add(to, line[m + n + from], of_new);
                    of_line[m + n + from] = dot(made, of_new);
                }
            }
            self.add_matrix(of, token, &of_matrix, &mut all);
        }
        all
    }
}
