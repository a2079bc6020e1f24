//! The ladder of what an operation on placed tensors costs before a byte moves: ns an operation where all is found anew
//! each time, where it is looked up by the placements, and where it was erased at the start, as in runs.
//!
//! ```sh
//! cargo bench -p odeon-sharding --bench ladder
//! ```
//!
//! Operations are those of a transformer's layers on `{dp: 4, tp: 4}` with sequence parallelism, forward and backward, as
//! rank 5 meets them: each leaves a tensor with some placements that the next wants with others, or with the same. Nothing
//! derives a placement from those of operands: who places a tensor says it. So *found* checks the placements, finds the
//! cheapest steps and this rank's way; *looked up* has a table of ways by both placements, with name, mesh and shape;
//! *erased* has the ways of a step in a row. As veScale's ladder (arXiv 2509.07003) the three do the same work: all end
//! with the way that the rank goes.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
#![allow(clippy::unwrap_used, reason = "a bench stops where it goes wrong")]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use odeon_collective::Reduce;
use odeon_mesh::{Mesh, mesh};
use odeon_sharding::{Placement, Redistribution, Route, Sharding};

const RANK: usize = 5;
const LAYERS: usize = 4;
/// Rounds in which all is found, and in which it is known.
const ROUNDS: [usize; 2] = [11, 201];
/// Operations of a round that are looked up or erased.
const MANY: usize = 100_000;

/// A tensor as an operation leaves it, and the placements in which the next wants it.
struct Operation {
    name: String,
    shape: [usize; 2],
    left: [Placement; 2],
    wanted: [Placement; 2],
}

impl Operation {
    /// Both shardings, checked.
    fn shardings(&self, mesh: &Mesh) -> (Sharding, Sharding) {
        let left = Sharding::new(&*self.name, mesh.clone(), self.shape, self.left.clone()).unwrap();
        let wanted = left.placed(self.wanted.clone()).unwrap();
        (left, wanted)
    }
}

/// Those of a step in their order.
fn operations() -> Vec<Operation> {
    use Placement::{Replicate, Shard};
    let sum = || Placement::Partial(Reduce::Sum);
    let (rows, width, inner) = (8192, 512, 1536);
    let mut all = vec![];
    let mut add = |layer: usize, name: &str, shape, left, wanted| {
        all.push(Operation {
            name: format!("layers.{layer}.{name}"),
            shape,
            left,
            wanted,
        });
    };
    for layer in 0..LAYERS {
        for part in ["attention", "mlp"] {
            let cols = if part == "mlp" { inner } else { width };
            let apart = || [Shard(0), Shard(0)];
            let columns = || [Shard(0), Shard(1)];
            let mut of = |name: &str, shape, left, wanted| {
                add(layer, &format!("{part}.{name}"), shape, left, wanted);
            };
            // Norms are of rows apart, products of all rows with some columns, and their sums are rows apart again.
            of("norm", [rows, width], apart(), apart());
            of("input", [rows, width], apart(), [Shard(0), Replicate]);
            of("product", [rows, cols], columns(), columns());
            of("middle", [rows, cols], columns(), columns());
            of("output", [rows, width], [Shard(0), sum()], apart());
            of("residual", [rows, width], apart(), apart());
            // And back.
            of("output.grad", [rows, width], apart(), [Shard(0), Replicate]);
            of("middle.grad", [rows, cols], columns(), columns());
            of("product.grad", [rows, cols], columns(), columns());
            of("input.grad", [rows, width], [Shard(0), sum()], apart());
            let [by_rows, by_cols] = [[sum(), Shard(0)], [sum(), Shard(1)]];
            of("up.grad", [cols, width], by_rows, [Replicate, Shard(0)]);
            of("down.grad", [width, cols], by_cols, [Replicate, Shard(1)]);
            of(
                "weight.grad",
                [1, width],
                [sum(), sum()],
                [Replicate, Replicate],
            );
        }
    }
    all
}

fn found(from: &Sharding, to: &Sharding) -> Route {
    Redistribution::new(from, to).unwrap().route(RANK).unwrap()
}

/// ns of each of so many operations, in each round.
fn rounds(rounds: usize, count: usize, mut run: impl FnMut()) -> Vec<f64> {
    run();
    let round = |_| {
        let begun = Instant::now();
        run();
        begun.elapsed().as_nanos() as f64 / count as f64
    };
    let mut all: Vec<f64> = (0..rounds).map(round).collect();
    all.sort_by(f64::total_cmp);
    all
}

fn main() {
    let mesh = mesh! { dp: 4, tp: 4 };
    let operations = operations();
    let shardings: Vec<_> = operations.iter().map(|it| it.shardings(&mesh)).collect();
    let step: Vec<Route> = shardings.iter().map(|(from, to)| found(from, to)).collect();
    let known: HashMap<(Sharding, Sharding), Route> = shardings
        .iter()
        .cloned()
        .zip(step.iter().cloned())
        .collect();
    let times = MANY / operations.len();
    let rungs = [
        (
            "found",
            rounds(ROUNDS[0], operations.len(), || {
                for operation in &operations {
                    let (from, to) = operation.shardings(black_box(&mesh));
                    black_box(found(&from, &to));
                }
            }),
        ),
        (
            "looked up",
            rounds(ROUNDS[1], times * shardings.len(), || {
                for both in (0..times).flat_map(|_| &shardings) {
                    black_box(&known[black_box(both)]);
                }
            }),
        ),
        (
            "erased",
            rounds(ROUNDS[1], times * step.len(), || {
                for way in (0..times).flat_map(|_| black_box(&step)) {
                    black_box(way);
                }
            }),
        ),
    ];
    println!(
        "ns an operation, of {} in a step: median of the rounds (a tenth is below, a tenth above)",
        operations.len()
    );
    for (name, all) in rungs {
        let at = |tenths: usize| all[tenths * (all.len() - 1) / 10];
        println!("{name:10} {:10.1} ({:.1} to {:.1})", at(5), at(1), at(9));
    }
}
