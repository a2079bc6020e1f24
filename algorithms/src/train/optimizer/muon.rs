//! Muon: momentum made orthogonal, for the matrices of hidden layers.

use std::cmp::Reverse;
use std::ops::Range;

use odeon_gpu::{Backend, MatMul, Store, Strides, TensorEntry};
use odeon_sharding::group_buffer::{MatrixRoots, MatrixShape, newton_schulz_flops};
use serde::{Deserialize, Serialize};

use super::holding::{HeldTensor, TensorKeepers};
use super::{AdamW, Cost, Cutting, Elementwise, Holding, Kept, Rule, Step, Stepper, segments};
use crate::model::{Keepers, SetKind};
use crate::setting::{Bounds, SettingError};

/// Muon (Jordan et al. 2024) in the form of Liu et al. 2025 (Muon is Scalable for LLM Training), for the
/// matrices of the layers: Nesterov momentum, and an update scaled to the size that AdamW's has, so that
/// both share a learning rate and a weight decay.
///
/// ```text
/// M <- momentum M + G
/// O  = orthogonal(G + momentum M)
/// W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(rows, cols)) O
/// ```
///
/// Embeddings, heads, norms and biases move by AdamW. The first moments of matrices are their momentum,
/// and their second stay zero.
///
/// Of ranks that keep shards one gets all rows of a matrix, makes it orthogonal and sends them back. Matrices go in
/// waves, of which each rank has one at most, so that all are at work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// Decay of the momentum.
    pub momentum: f32,
    /// Settings for the other parameters.
    pub adamw: AdamW,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            momentum: 0.95,
            adamw: AdamW::default(),
        }
    }
}

impl Rule for Muon {
    const NAME: &'static str = "Muon";
    const STATE: &'static [&'static str] = AdamW::STATE;

    fn check(&self) -> Result<(), SettingError> {
        Bounds::check_all("muon", [("momentum", self.momentum, Bounds::Decay)])?;
        self.adamw.check()
    }

    /// Products on the short side: about as many operations an element as that is long, where moments take
    /// a few.
    fn cutting(&self, entry: &TensorEntry) -> Cutting {
        let short = entry.shape.iter().min().copied().unwrap_or(0);
        match is_hidden(&entry.name, &entry.shape) {
            true => Cutting::Whole(entry.range.len() as Cost * (4 + short as Cost)),
            false => Cutting::Anywhere,
        }
    }

    fn bytes(&self, holding: &Holding) -> usize {
        let moments = 4 * (holding.part.end - holding.begin()) * Self::STATE.len();
        moments + 4 * Room::of(&waves(holding)).numbers()
    }

    fn stepper<B: Backend>(
        &self,
        backend: &B,
        holding: &Holding,
        weight_decay: f32,
    ) -> Box<dyn Stepper<B>> {
        let others = segments(holding, weight_decay, |held| {
            !is_hidden(&held.name, &held.shape)
        });
        let waves = waves(holding);
        Box::new(MuonSteps {
            momentum: self.momentum,
            weight_decay,
            scratch: Scratch::new(backend, &Room::of(&waves)),
            waves,
            others: Elementwise::over(self.adamw, others),
        })
    }
}

/// True of the matrices of layers, but for what scales connections.
fn is_hidden(name: &str, shape: &[usize]) -> bool {
    let of_layer = shape.len() == 2 && name.starts_with("model.layers.");
    of_layer && !name.contains("_connection.")
}

/// A row-major matrix, of which this rank keeps some rows or all.
#[derive(Clone, Debug, PartialEq)]
struct Matrix {
    rows: usize,
    cols: usize,
    /// Where this rank's rows begin in the buffers of parameters and gradients.
    at: usize,
    /// Its elements of the matrix.
    own: Range<usize>,
    /// The rank that makes it orthogonal, and the elements that each rank keeps, where there are others.
    root: usize,
    parts: Vec<Range<usize>>,
}

/// Matrices that are made orthogonal at the same time, at most one by each rank, in the order of these.
#[derive(Clone, Debug, PartialEq)]
struct Wave {
    /// The ranks that keep them, and which of them this is; `None` where it is alone with them.
    ranks: Option<(SetKind, usize)>,
    matrices: Vec<Matrix>,
}

impl Wave {
    /// The matrix that this rank makes orthogonal, if it has one to do.
    fn rooted(&self) -> Option<&Matrix> {
        match self.ranks {
            None => self.matrices.first(),
            Some((_, rank)) => self.matrices.iter().find(|it| it.root == rank),
        }
    }
}

/// The waves of a holding. A matrix that ranks keep together goes to the rank with the least to do, the longest first
/// (veScale-FSDP, arXiv 2602.22437, section 5); all ranks choose the same.
fn waves(holding: &Holding) -> Vec<Wave> {
    let hidden = holding.tensors.iter();
    let hidden = hidden.filter(|it| is_hidden(&it.name, &it.shape));
    let (shared, alone): (Vec<&HeldTensor>, Vec<_>) = hidden.partition(|it| {
        let keepers = it.keepers.as_ref();
        keepers.is_some_and(|keepers| keepers.parts.len() > 1)
    });
    let matrix = |held: &HeldTensor| {
        let [rows, cols] = held.rows_and_columns();
        let keepers = held.keepers.as_ref();
        Matrix {
            rows,
            cols,
            at: held.at,
            own: held.elements.clone(),
            root: 0,
            parts: keepers.map_or_else(Vec::new, |keepers| keepers.parts.clone()),
        }
    };
    // Of a tensor that is moved as a whole a rank has all or nothing.
    let alone = alone.into_iter().filter(|it| !it.elements.is_empty());
    let mut waves: Vec<Wave> = alone
        .map(|held| Wave {
            ranks: None,
            matrices: vec![matrix(held)],
        })
        .collect();
    for kind in SetKind::ALL {
        let of_kind = shared.iter().filter_map(|held| {
            let keepers = held.keepers.as_ref().filter(|it| it.kind == kind)?;
            Some((matrix(held), keepers))
        });
        let (mut matrices, keepers): (Vec<_>, Vec<_>) = of_kind.unzip();
        let Some(TensorKeepers { rank, parts, .. }) = keepers.first() else {
            continue;
        };
        let shapes = matrices.iter().enumerate().map(|(number, it)| MatrixShape {
            name: number.to_string(),
            rows: it.rows,
            columns: it.cols,
        });
        let roots = MatrixRoots::choose(&shapes.collect::<Vec<_>>(), parts.len());
        let roots = roots.expect("matrices of a model that is in memory have roots");
        let pairs = matrices.iter_mut().zip(roots.roots());
        pairs.for_each(|(matrix, root)| matrix.root = *root);
        // Those of one wave are of like size.
        matrices.sort_by_key(|it| Reverse(newton_schulz_flops(it.rows, it.cols)));
        let mut of_root = vec![0; parts.len()];
        let first = waves.len();
        for matrix in matrices {
            let number = first + of_root[matrix.root];
            of_root[matrix.root] += 1;
            if number == waves.len() {
                waves.push(Wave {
                    ranks: Some((kind, *rank)),
                    matrices: vec![],
                });
            }
            waves[number].matrices.push(matrix);
        }
        let own = waves[first..].iter_mut();
        own.for_each(|wave| wave.matrices.sort_by_key(|it| it.root));
    }
    waves
}

/// Numbers that fit into the memory of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    /// The longest matrix that this rank makes orthogonal.
    matrix: usize,
    /// The largest square of a shorter side.
    gram: usize,
    /// The most of a wave that this rank sends to others.
    rows: usize,
}

impl Room {
    /// Room for any of the waves.
    fn of(waves: &[Wave]) -> Self {
        let mut room = Self::default();
        for wave in waves {
            if let Some(it) = wave.rooted() {
                room.matrix = room.matrix.max(it.rows * it.cols);
                room.gram = room.gram.max(it.rows.min(it.cols).pow(2));
            }
            if wave.ranks.is_some() {
                let own = wave.matrices.iter().map(|it| it.own.len()).sum();
                room.rows = room.rows.max(own);
            }
        }
        room
    }

    /// Numbers of all of it.
    fn numbers(self) -> usize {
        2 * (self.matrix + self.gram) + self.rows
    }
}

/// Memory that a step needs beside the flat buffers, kept from step to step.
#[derive(Debug)]
struct Scratch<B: Backend> {
    /// The matrix on its way to an orthogonal one, and its next iterate.
    iterate: [B::Buffer; 2],
    /// The Gram matrix of the short side, and the polynomial of it.
    gram: [B::Buffer; 2],
    /// This rank's rows of the matrices of a wave, on their way to others and back.
    rows: B::Buffer,
}

impl<B: Backend> Scratch<B> {
    fn new(backend: &B, room: &Room) -> Self {
        Self {
            iterate: [backend.alloc(room.matrix), backend.alloc(room.matrix)],
            gram: [backend.alloc(room.gram), backend.alloc(room.gram)],
            rows: backend.alloc(room.rows),
        }
    }
}

#[derive(Debug)]
struct MuonSteps<B: Backend> {
    momentum: f32,
    weight_decay: f32,
    waves: Vec<Wave>,
    scratch: Scratch<B>,
    others: Elementwise<AdamW>,
}

impl<B: Backend> Stepper<B> for MuonSteps<B> {
    #[cfg(test)]
    fn room(&self) -> usize {
        let Scratch {
            iterate: [x, next],
            gram: [gram, poly],
            rows,
        } = &self.scratch;
        [x, next, gram, poly, rows].into_iter().map(B::len).sum()
    }

    fn step(
        &mut self,
        backend: &B,
        step: Step,
        params: &mut B::Buffer,
        grads: &B::Buffer,
        kept: Kept<'_, B>,
    ) {
        let Kept {
            from,
            buffers,
            keepers,
            ..
        } = kept;
        let of_others = Kept {
            from,
            buffers: &mut *buffers,
            tiled: None,
            keepers,
        };
        self.others.step(backend, step, params, grads, of_others);
        let [momenta, _] = buffers else {
            panic!("two buffers of state")
        };
        let Self {
            momentum,
            weight_decay,
            waves,
            scratch,
            ..
        } = self;
        for wave in waves {
            let to = match wave.ranks {
                None => &mut scratch.iterate[0],
                Some(_) => &mut scratch.rows,
            };
            for (matrix, place) in placed(&wave.matrices) {
                let at = matrix.at..matrix.at + matrix.own.len();
                let held = at.start - from..at.end - from;
                let gradient = B::view(grads, at);
                backend.scale(*momentum, B::view_mut(momenta, held.clone()));
                backend.axpy(
                    step.grad_scale,
                    gradient,
                    B::view_mut(momenta, held.clone()),
                );
                backend.copy(gradient, B::view_mut(to, place.clone()));
                backend.scale(step.grad_scale, B::view_mut(to, place.clone()));
                backend.axpy(*momentum, B::view(momenta, held), B::view_mut(to, place));
            }
            orthogonalise_wave(backend, wave, scratch, keepers);
            let made = match wave.ranks {
                None => &scratch.iterate[0],
                Some(_) => &scratch.rows,
            };
            for (matrix, place) in placed(&wave.matrices) {
                let at = matrix.at..matrix.at + matrix.own.len();
                let size = 0.2 * (matrix.rows.max(matrix.cols) as f32).sqrt();
                let keep = 1.0 - step.lr * *weight_decay;
                backend.scale(keep, B::view_mut(params, at.clone()));
                backend.axpy(
                    -step.lr * size,
                    B::view(made, place),
                    B::view_mut(params, at),
                );
            }
        }
    }
}

/// The rows of this rank of some matrices, one behind the other.
fn placed(matrices: &[Matrix]) -> impl Iterator<Item = (&Matrix, Range<usize>)> {
    let mut begin = 0;
    let placed = matrices.iter().map(move |matrix| {
        let place = begin..begin + matrix.own.len();
        begin = place.end;
        (matrix, place)
    });
    placed.filter(|(_, place)| !place.is_empty())
}

/// Makes the matrices of a wave orthogonal: each on its root, which gets all rows of it and sends them back.
fn orthogonalise_wave<B: Backend>(
    backend: &B,
    wave: &Wave,
    scratch: &mut Scratch<B>,
    keepers: &Keepers<B>,
) {
    let rooted = wave.rooted();
    let Some((kind, _)) = wave.ranks else {
        if let Some(own) = rooted {
            orthogonalise(backend, own.rows, own.cols, scratch);
        }
        return;
    };
    let of_kind = SetKind::ALL.iter().position(|it| *it == kind);
    let ranks = of_kind.and_then(|at| keepers[at].as_ref());
    let ranks = ranks.expect("ranks that keep shards have met");
    let mut sends = vec![0; ranks.count()];
    for matrix in &wave.matrices {
        sends[matrix.root] = matrix.own.len();
    }
    let receives = match rooted {
        None => vec![0; ranks.count()],
        Some(own) => own.parts.iter().map(ExactSizeIterator::len).collect(),
    };
    ranks.exchange(
        backend,
        &scratch.rows,
        &sends,
        &mut scratch.iterate[0],
        &receives,
    );
    if let Some(own) = rooted {
        orthogonalise(backend, own.rows, own.cols, scratch);
    }
    ranks.exchange(
        backend,
        &scratch.iterate[0],
        &receives,
        &mut scratch.rows,
        &sends,
    );
}

/// Coefficients of Jordan's quintic, which brings every singular value near one in five rounds.
const QUINTIC: [f32; 3] = [3.4445, -4.7750, 2.0315];
const ROUNDS: usize = 5;

/// Newton-Schulz on the first iterate, `X <- a X + (b A + c A^2) X` with `A = X X^T`, the products
/// taken on the short side.
fn orthogonalise<B: Backend>(backend: &B, rows: usize, cols: usize, scratch: &mut Scratch<B>) {
    let len = rows * cols;
    let [a, b, c] = QUINTIC;
    let Scratch {
        iterate: [x, next],
        gram: [gram, poly],
        ..
    } = scratch;
    let norm = backend.sum_squares(B::view(x, 0..len)).sqrt();
    backend.scale(
        1.0 / (norm as f32).max(f32::MIN_POSITIVE),
        B::view_mut(x, 0..len),
    );
    let wide = rows <= cols;
    let (side, depth) = if wide { (rows, cols) } else { (cols, rows) };
    let (straight, turned) = (Strides::rows(cols), Strides::transposed(cols));
    let product = |m, n, k, a, b| MatMul {
        m,
        n,
        k,
        a,
        b,
        c: Strides::rows(n),
        ..MatMul::linear(m, n, k)
    };
    let square = product(side, side, side, Strides::rows(side), Strides::rows(side));
    let (outer, update) = if wide {
        (
            product(side, side, depth, straight, turned),
            product(rows, cols, rows, Strides::rows(side), straight),
        )
    } else {
        (
            product(side, side, depth, turned, straight),
            product(rows, cols, cols, straight, Strides::rows(side)),
        )
    };
    for _ in 0..ROUNDS {
        let small = side * side;
        backend.matmul(
            outer,
            B::view(x, 0..len),
            B::view(x, 0..len),
            B::view_mut(gram, 0..small),
        );
        let gram_view = B::view(gram, 0..small);
        backend.matmul(
            square.scaled(c),
            gram_view,
            gram_view,
            B::view_mut(poly, 0..small),
        );
        backend.axpy(b, gram_view, B::view_mut(poly, 0..small));
        backend.copy(B::view(x, 0..len), B::view_mut(next, 0..len));
        backend.scale(a, B::view_mut(next, 0..len));
        let (x_view, poly_view) = (B::view(x, 0..len), B::view(poly, 0..small));
        let (left, right) = if wide {
            (poly_view, x_view)
        } else {
            (x_view, poly_view)
        };
        backend.matmul(
            update.stored(Store::Add),
            left,
            right,
            B::view_mut(next, 0..len),
        );
        std::mem::swap(x, next);
    }
}
