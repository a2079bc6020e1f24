//! Virtual width: rows of the residual stream that are wider than the layers which read them (Virtual Width Networks,
//! arXiv [2511.11238](https://arxiv.org/abs/2511.11238)).
//!
//! ```text
//!  a row of a token:  n segments of D / m numbers           D is the width of layers, n >= m
//!
//!  X  = A_in^T H                  m segments, a row of D for attention or a feed-forward part T
//!  Z  = T(norm(X))                m segments
//!  H <- B^T Z + A_carry^T H       n segments
//! ```
//!
//! `A_in [n, m]`, `A_carry [n, n]` and `B [m, n]` are generalised hyper-connections, one set for each attention and each
//! feed-forward part. With `m = n = 1` they are the residual stream as it always was, with `m = 1` hyper-connections
//! (arXiv [2409.19606](https://arxiv.org/abs/2409.19606)), with `n = m > 1` fractional ones. Static ones are parameters.
//! Dynamic ones have an addend for each token, `scale * tanh(norm(H) W / sqrt(D / m))` of each segment.
//!
//! Three matrices stand in one: row `j` of `[n, m + n + m]` is what segment `j` gives to the layer, what it gives to the
//! segments, and what it gets of the layer.

mod mix;
mod record;

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub(crate) use mix::{Coefficients, Mixing};
pub(crate) use record::{Connected, WidthRecorder};

/// The residual stream of a model that is wider than its layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VirtualWidth {
    /// Segments that make up the width of a layer: `m`.
    pub fraction: usize,
    /// Segments of a row: `n`, at least as many. A row is `n / m` times as wide as a layer.
    pub segments: usize,
    /// True where connections have an addend for each token.
    pub dynamic: bool,
}

impl Default for VirtualWidth {
    fn default() -> Self {
        Self {
            fraction: 2,
            segments: 3,
            dynamic: true,
        }
    }
}

/// The most segments: the memory of a connection grows with their square.
const SEGMENTS_MAX: usize = 256;

impl VirtualWidth {
    /// Checks that rows of a model of this width can be cut into segments.
    ///
    /// # Errors
    /// The reason why they cannot.
    pub fn check(self, dim: usize) -> Result<(), String> {
        let Self {
            fraction, segments, ..
        } = self;
        if fraction == 0 || !dim.is_multiple_of(fraction) {
            return Err(format!(
                "a width of {dim} has no {fraction} equal segments (fraction)"
            ));
        }
        if segments < fraction || segments > SEGMENTS_MAX {
            return Err(format!(
                "rows of {segments} segments: there are {fraction} (fraction) to {SEGMENTS_MAX}"
            ));
        }
        Ok(())
    }

    /// Numbers of a segment.
    pub(crate) const fn segment(self, dim: usize) -> usize {
        dim / self.fraction
    }

    /// Numbers of a row.
    pub(crate) const fn row(self, dim: usize) -> usize {
        self.segment(dim) * self.segments
    }

    /// True where a row is wider than a layer.
    pub(crate) const fn widens(self) -> bool {
        self.segments > self.fraction
    }

    /// The widths of a layer that make up a row, where that is a whole number above one.
    pub(crate) const fn groups(self) -> Option<usize> {
        match self.widens() && self.segments.is_multiple_of(self.fraction) {
            true => Some(self.segments / self.fraction),
            false => None,
        }
    }

    /// Columns of the matrix of a connection.
    pub(crate) const fn columns(self) -> usize {
        2 * self.fraction + self.segments
    }

    /// Tensors of a connection below the name of its layer, with their shapes.
    fn connection(self, name: &str, dim: usize) -> Vec<(String, Vec<usize>)> {
        let (columns, segment) = (self.columns(), self.segment(dim));
        let dynamic = [
            ("norm.weight", vec![segment]),
            ("dynamic.weight", vec![columns, segment]),
            ("dynamic.scale", vec![self.segments, columns]),
        ];
        let dynamic = dynamic.into_iter().filter(|_| self.dynamic);
        let all = dynamic.chain([("static", vec![self.segments * columns])]);
        all.map(|(own, shape)| (format!("{name}_connection.{own}"), shape))
            .collect()
    }

    /// The tensors of both connections of a layer, below its name, with their shapes.
    pub(crate) fn layer_tensors(self, dim: usize) -> Vec<(String, Vec<usize>)> {
        let all = ["attention", "feed_forward"].into_iter();
        all.flat_map(|name| self.connection(name, dim)).collect()
    }

    /// The matrix between the embedding and rows, where the embedding is the head, too, and so as wide as a layer.
    pub(crate) fn expansion(self, dim: usize, tied: bool) -> Option<(&'static str, Vec<usize>)> {
        let there = tied && self.widens();
        there.then(|| ("model.embed_expand.weight", vec![self.row(dim), dim]))
    }

    /// The tensors between rows and the last norm: a norm of each group of a layer's width, where rows are made of such,
    /// and the matrix that makes a row as wide as a layer.
    pub(crate) fn reduction(self, dim: usize) -> Vec<(&'static str, Vec<usize>)> {
        let norm = ("model.width_norm.weight", vec![dim]);
        let matrix = ("model.width_reduce.weight", vec![dim, self.row(dim)]);
        let norm = self.groups().map(|_| norm);
        let matrix = self.widens().then_some(matrix);
        norm.into_iter().chain(matrix).collect()
    }

    /// The first values of a tensor of these, by its name: with them the layers read the first segments, every segment
    /// carries itself on, and what layers make is added to the segments in turns. `None` of another one's.
    pub(crate) fn first_values(self, name: &str, dim: usize) -> Option<Vec<f32>> {
        let (m, n, columns) = (self.fraction, self.segments, self.columns());
        let values = |rows: usize, cols: usize, is_one: &dyn Fn(usize, usize) -> bool| {
            let all = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
            all.map(|(row, col)| f32::from(u8::from(is_one(row, col))))
                .collect()
        };
        Some(match name {
            "model.embed_expand.weight" => values(self.row(dim), dim, &|row, col| row % dim == col),
            "model.width_reduce.weight" => values(dim, self.row(dim), &|row, col| row == col),
            _ if name.ends_with("_connection.dynamic.weight") => {
                vec![0.0; columns * self.segment(dim)]
            }
            _ if name.ends_with("_connection.dynamic.scale") => vec![1.0; n * columns],
            _ if name.ends_with("_connection.static") => values(n, columns, &|row, col| {
                let is_carried = col >= m && col - m == row;
                let is_written = col >= m + n && col - m - n == row % m;
                col < m && col == row || col < m + n && is_carried || is_written
            }),
            _ => return None,
        })
    }

    /// Parameters that a model of this width has more than the plain one, by its layers and its vocabulary, with or without a
    /// head that is the embedding.
    #[must_use]
    pub fn parameters(self, dim: usize, layers: usize, vocab: usize, tied: bool) -> usize {
        let len = |shape: &[usize]| shape.iter().product::<usize>();
        let layer: usize = self
            .layer_tensors(dim)
            .iter()
            .map(|(_, shape)| len(shape))
            .sum();
        let ends = self
            .expansion(dim, tied)
            .into_iter()
            .chain(self.reduction(dim));
        let table = if tied {
            0
        } else {
            vocab * (self.row(dim) - dim)
        };
        layers * layer + ends.map(|(_, shape)| len(&shape)).sum::<usize>() + table
    }

    /// Operations of a token's row in one layer, by its width and that of a layer: two connections with norms.
    pub(crate) fn layer_flops(self, dim: usize) -> f64 {
        let [m, n, d] = [self.fraction, self.segments, dim].map(|it| it as f64);
        let coefficients = if self.dynamic {
            4.0 * n / m * d + 2.0 * (2.0 * m + n) * (n / m) * d
        } else {
            0.0
        };
        2.0 * (coefficients + 2.0 * (m + n) * (n / m) * d + 2.0 * n * d)
    }
}

/// Ranges of the flat buffer.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionPlaces {
    /// The norm of segments, the matrix behind it, and the scale of what that makes, where there are addends for tokens.
    pub(crate) dynamic: Option<[Range<usize>; 3]>,
    pub(crate) fixed: Range<usize>,
}

/// Ranges of what is before and behind the layers.
#[derive(Clone, Debug, Default)]
pub(crate) struct WidthPlaces {
    pub(crate) expand: Option<Range<usize>>,
    pub(crate) norm: Option<Range<usize>>,
    pub(crate) reduce: Option<Range<usize>>,
}

impl ConnectionPlaces {
    /// Lays both connections of a layer out; `push` takes names below the layer's and shapes.
    pub(super) fn push(
        (width, dim): (VirtualWidth, usize),
        push: &mut impl FnMut(&str, &[usize]) -> Range<usize>,
    ) -> [Self; 2] {
        let tensors = width.layer_tensors(dim).into_iter();
        let mut places = tensors.map(|(name, shape)| push(&name, &shape));
        let mut next = || places.next().unwrap_or_default();
        [(); 2].map(|()| Self {
            dynamic: width.dynamic.then(|| [(); 3].map(|()| next())),
            fixed: next(),
        })
    }
}

#[cfg(test)]
mod tests;
