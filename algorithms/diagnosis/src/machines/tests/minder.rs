//! The published detector as a peer: a small model for jitter, distances between machines of what it makes of their
//! windows, and the same continuity (Minder, arXiv 2411.01791).
//!
//! The model is a variational autoencoder with one LSTM layer at each end, of 4 hidden and 8 latent numbers, over windows
//! of 8 seconds of one metric, scaled to 0 to 1 between the least and the greatest number of all machines. The paper has
//! one for each metric. Made-up metrics differ in nothing that scaling leaves, so that one serves all of them here.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::super::simulated::{Case, case};
use super::super::{MachineSamples, PRIORITY};
use super::roc::lasting;

/// Seconds of a window.
const WINDOW: usize = 8;
/// Moments from one window to the next, as many as the robust rule leaves out.
const STRIDE: usize = 4;
/// Windows of four minutes, and how many of them may say something else.
const NEEDED: usize = 240 / STRIDE;
const GAPS: usize = NEEDED / 20;

const HIDDEN: usize = 4;
const LATENT: usize = 8;
/// The weight of the divergence of latent numbers from a normal distribution, beside the squared error.
const DIVERGENCE: f32 = 1e-6;

type Window = [f32; WINDOW];
type Hidden = [f32; HIDDEN];

/// A layer of an LSTM: four gates of `HIDDEN` rows each, over inputs, what was hidden before, and one.
#[derive(Clone, Copy)]
struct Lstm {
    at: usize,
    inputs: usize,
}

/// Of one step of an [`Lstm`], for the way back.
#[derive(Clone, Copy, Default)]
struct Step {
    before: Hidden,
    cell_before: Hidden,
    /// Input, forget, candidate, output.
    gates: [Hidden; 4],
    cell: Hidden,
    hidden: Hidden,
}

/// Lambert's continued fraction, within 1e-4: without branches, so that it is computed for several numbers at once.
fn tanh(x: f32) -> f32 {
    let x = x.clamp(-4.9, 4.9);
    let square = x * x;
    let above = 135_135.0 + square * (17_325.0 + square * (378.0 + square));
    x * above / (135_135.0 + square * (62_370.0 + square * (3_150.0 + square * 28.0)))
}

impl Lstm {
    fn columns(self) -> usize {
        self.inputs + HIDDEN + 1
    }

    fn weights(self) -> usize {
        4 * HIDDEN * self.columns()
    }

    fn step(self, weights: &[f32], input: &[f32], before: &Step) -> Step {
        let rows = weights[self.at..][..self.weights()].chunks_exact(self.columns());
        let mut gates = [[0.0; HIDDEN]; 4];
        for (place, row) in rows.enumerate() {
            let (of_input, rest) = row.split_at(self.inputs);
            let mut sum = rest[HIDDEN];
            sum += of_input.iter().zip(input).map(|(w, x)| w * x).sum::<f32>();
            sum += (rest.iter().zip(&before.hidden))
                .map(|(w, x)| w * x)
                .sum::<f32>();
            gates[place / HIDDEN][place % HIDDEN] = sum;
        }
        let half = |it: Hidden| it.map(|it| 0.5 + 0.5 * tanh(it / 2.0));
        let [enter, keep, new, leave] = gates;
        let gates = [half(enter), half(keep), new.map(tanh), half(leave)];
        let [enter, keep, new, leave] = gates;
        let mut step = Step {
            before: before.hidden,
            cell_before: before.cell,
            gates,
            ..Step::default()
        };
        for it in 0..HIDDEN {
            step.cell[it] = keep[it] * before.cell[it] + enter[it] * new[it];
            step.hidden[it] = leave[it] * tanh(step.cell[it]);
        }
        step
    }

    /// Adds to the gradients of weights and inputs, and answers those of what was hidden and in the cell before.
    fn back(
        self,
        (weights, gradients): (&[f32], &mut [f32]),
        (input, into): (&[f32], &mut [f32]),
        step: &Step,
        (of_hidden, of_cell): (Hidden, Hidden),
    ) -> (Hidden, Hidden) {
        let [enter, keep, new, leave] = step.gates;
        let mut of_gates = [[0.0; HIDDEN]; 4];
        let (mut hidden_before, mut cell_before) = ([0.0; HIDDEN], [0.0; HIDDEN]);
        for it in 0..HIDDEN {
            let bent = tanh(step.cell[it]);
            let of_cell = of_cell[it] + of_hidden[it] * leave[it] * (1.0 - bent * bent);
            of_gates[0][it] = of_cell * new[it] * enter[it] * (1.0 - enter[it]);
            of_gates[1][it] = of_cell * step.cell_before[it] * keep[it] * (1.0 - keep[it]);
            of_gates[2][it] = of_cell * enter[it] * (1.0 - new[it] * new[it]);
            of_gates[3][it] = of_hidden[it] * bent * leave[it] * (1.0 - leave[it]);
            cell_before[it] = of_cell * keep[it];
        }
        for (place, of_sum) in of_gates.as_flattened().iter().enumerate() {
            let row = self.at + place * self.columns();
            for (column, x) in input.iter().enumerate() {
                gradients[row + column] += of_sum * x;
                into[column] += of_sum * weights[row + column];
            }
            for it in 0..HIDDEN {
                gradients[row + self.inputs + it] += of_sum * step.before[it];
                hidden_before[it] += of_sum * weights[row + self.inputs + it];
            }
            gradients[row + self.inputs + HIDDEN] += of_sum;
        }
        (hidden_before, cell_before)
    }
}

const ENCODER: Lstm = Lstm { at: 0, inputs: 1 };
/// Rows of the mean, then of the logarithm of the variance of each latent number, over hidden ones and one.
const LATENTS: usize = 4 * HIDDEN * (1 + HIDDEN + 1);
const DECODER: Lstm = Lstm {
    at: LATENTS + 2 * LATENT * (HIDDEN + 1),
    inputs: LATENT,
};
const OUTPUT: usize = DECODER.at + 4 * HIDDEN * (LATENT + HIDDEN + 1);
const WEIGHTS: usize = OUTPUT + HIDDEN + 1;

/// The model, with the weights of all its parts.
pub(super) struct Model {
    weights: Vec<f32>,
}

/// Of one window, for the way back.
struct Passed {
    encoder: [Step; WINDOW],
    mean: [f32; LATENT],
    log_variance: [f32; LATENT],
    latent: [f32; LATENT],
    decoder: [Step; WINDOW],
    made: Window,
}

fn row(row: &[f32], hidden: &Hidden) -> f32 {
    row[HIDDEN] + row.iter().zip(hidden).map(|(w, x)| w * x).sum::<f32>()
}

impl Model {
    fn new(rng: &mut ChaCha8Rng) -> Self {
        let weights = (0..WEIGHTS).map(|_| rng.random_range(-0.5..0.5));
        Self {
            weights: weights.collect(),
        }
    }

    /// With noise of deviation one for each latent number, or none.
    fn pass(&self, window: &Window, noise: &[f32; LATENT]) -> Passed {
        let weights = &self.weights;
        let mut step = Step::default();
        let encoder = window.map(|value| {
            step = ENCODER.step(weights, &[value], &step);
            step
        });
        let rows: Vec<f32> = (weights[LATENTS..DECODER.at].chunks_exact(HIDDEN + 1))
            .map(|it| row(it, &step.hidden))
            .collect();
        let mut passed = Passed {
            encoder,
            mean: [0.0; LATENT],
            log_variance: [0.0; LATENT],
            latent: [0.0; LATENT],
            decoder: [Step::default(); WINDOW],
            made: [0.0; WINDOW],
        };
        passed.mean.copy_from_slice(&rows[..LATENT]);
        passed.log_variance.copy_from_slice(&rows[LATENT..]);
        for (it, latent) in passed.latent.iter_mut().enumerate() {
            *latent = passed.mean[it] + (passed.log_variance[it] / 2.0).exp() * noise[it];
        }
        let mut step = Step::default();
        for (into, made) in passed.decoder.iter_mut().zip(&mut passed.made) {
            step = DECODER.step(weights, &passed.latent, &step);
            *into = step;
            *made = row(&weights[OUTPUT..], &step.hidden);
        }
        passed
    }

    /// The squared error and the divergence of a window: what is made less.
    fn loss(window: &Window, passed: &Passed) -> f32 {
        let error: f32 = (window.iter().zip(&passed.made))
            .map(|(a, b)| (a - b) * (a - b))
            .sum();
        let apart: f32 = (passed.mean.iter().zip(&passed.log_variance))
            .map(|(mean, log)| 0.5 * (mean * mean + log.exp() - 1.0 - log))
            .sum();
        error / WINDOW as f32 + DIVERGENCE * apart
    }

    /// Adds the gradient of the loss of a window.
    fn add_gradient(&self, window: &Window, noise: &[f32; LATENT], gradient: &mut [f32]) -> f32 {
        let weights = &self.weights;
        let passed = self.pass(window, noise);
        let mut of_latent = [0.0; LATENT];
        let mut after = ([0.0; HIDDEN], [0.0; HIDDEN]);
        for (at, step) in passed.decoder.iter().enumerate().rev() {
            let error = 2.0 * (passed.made[at] - window[at]) / WINDOW as f32;
            for it in 0..HIDDEN {
                gradient[OUTPUT + it] += error * step.hidden[it];
                after.0[it] += error * weights[OUTPUT + it];
            }
            gradient[OUTPUT + HIDDEN] += error;
            let input = (passed.latent.as_slice(), of_latent.as_mut_slice());
            after = DECODER.back((weights, gradient), input, step, after);
        }
        let mut of_hidden = [0.0; HIDDEN];
        let last = passed.encoder[WINDOW - 1].hidden;
        for it in 0..LATENT {
            let (mean, log) = (passed.mean[it], passed.log_variance[it]);
            let of_mean = of_latent[it] + DIVERGENCE * mean;
            let of_log = of_latent[it] * noise[it] * (log / 2.0).exp() / 2.0
                + DIVERGENCE * 0.5 * (log.exp() - 1.0);
            for (row, of_row) in [(it, of_mean), (LATENT + it, of_log)] {
                let at = LATENTS + row * (HIDDEN + 1);
                for hidden in 0..HIDDEN {
                    gradient[at + hidden] += of_row * last[hidden];
                    of_hidden[hidden] += of_row * weights[at + hidden];
                }
                gradient[at + HIDDEN] += of_row;
            }
        }
        let mut after = (of_hidden, [0.0; HIDDEN]);
        for (at, step) in passed.encoder.iter().enumerate().rev() {
            let mut of_value = [0.0];
            let input = (&window[at..=at], of_value.as_mut_slice());
            after = ENCODER.back((weights, gradient), input, step, after);
        }
        Self::loss(window, &passed)
    }

    /// Trained by Adam on windows of sound machines; and the mean squared error over those of other cases, in which
    /// latent numbers have no noise.
    pub(super) fn trained() -> (Self, f32) {
        let mut rng = ChaCha8Rng::seed_from_u64(0);
        let mut model = Self::new(&mut rng);
        let windows = sound_windows(0..8);
        let (mut first, mut second) = (vec![0.0; WEIGHTS], vec![0.0; WEIGHTS]);
        const STEPS: i32 = 4_000;
        const BATCH: usize = 32;
        for step in 1..=STEPS {
            let mut gradient = vec![0.0; WEIGHTS];
            for _ in 0..BATCH {
                let window = &windows[rng.random_range(0..windows.len())];
                let noise = [(); LATENT].map(|()| rng.random_range(-1.7..1.7_f32));
                model.add_gradient(window, &noise, &mut gradient);
            }
            let rate = 0.01 * (1.0 - (step - 1) as f32 / STEPS as f32);
            for (it, gradient) in gradient.iter().enumerate() {
                let gradient = gradient / BATCH as f32;
                first[it] = 0.9 * first[it] + 0.1 * gradient;
                second[it] = 0.999 * second[it] + 0.001 * gradient * gradient;
                let mean = first[it] / (1.0 - 0.9_f32.powi(step));
                let square: f32 = second[it] / (1.0 - 0.999_f32.powi(step));
                model.weights[it] -= rate * mean / (square.sqrt() + 1e-8);
            }
        }
        let others = sound_windows(8..10);
        let errors = others.iter().step_by(17).map(|window| {
            let made = model.pass(window, &[0.0; LATENT]).made;
            let squares = window.iter().zip(&made).map(|(a, b)| (a - b) * (a - b));
            squares.sum::<f32>() / WINDOW as f32
        });
        let errors: Vec<f32> = errors.collect();
        let error = errors.iter().sum::<f32>() / errors.len() as f32;
        (model, error)
    }

    /// The score of each machine in each window of a metric: by how many standard deviations the sum of its distances
    /// from all others lies above the mean of such sums. Of shape `[windows, machines]`.
    fn scores(&self, samples: &MachineSamples, metric: usize) -> Vec<f32> {
        let machines = samples.machines();
        let scaled = scaled(samples.of(metric));
        let mut scores = vec![];
        for begin in (0..=samples.moments().saturating_sub(WINDOW)).step_by(STRIDE) {
            let made: Vec<Window> = (0..machines)
                .map(|machine| {
                    let window = window(&scaled, machines, machine, begin);
                    self.pass(&window, &[0.0; LATENT]).made
                })
                .collect();
            let sums = made.iter().map(|a| {
                let far = made.iter().map(|b| {
                    let squares = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b));
                    squares.sum::<f32>().sqrt()
                });
                far.sum::<f32>()
            });
            let sums: Vec<f32> = sums.collect();
            let mean = sums.iter().sum::<f32>() / machines as f32;
            let squares = sums.iter().map(|it| (it - mean) * (it - mean));
            let deviation = (squares.sum::<f32>() / machines as f32).sqrt();
            scores.extend((sums.iter()).map(|it| (it - mean) / deviation.max(f32::MIN_POSITIVE)));
        }
        scores
    }

    /// The scores of all machines in the published metrics, in the order of their priority.
    pub(super) fn looks(&self, samples: &MachineSamples) -> Vec<Vec<f32>> {
        let metrics = samples.metrics().iter();
        let published = PRIORITY.map(|name| metrics.clone().position(|it| it == name).unwrap());
        published.map(|it| self.scores(samples, it)).to_vec()
    }
}

/// The machine that has the greatest score of all, above a limit, in windows of four minutes; the first metric in which
/// there is one decides.
pub(super) fn named(looks: &[Vec<f32>], machines: usize, limit: f32) -> Option<usize> {
    looks.iter().find_map(|scores| {
        let candidates = scores.chunks_exact(machines).map(|row| {
            let most = (0..machines).max_by(|a, b| row[*a].total_cmp(&row[*b]))?;
            (row[most] > limit).then_some(most)
        });
        let candidates: Vec<Option<usize>> = candidates.collect();
        candidates.windows(NEEDED).find_map(|windows| {
            let first = windows.iter().flatten().next()?;
            let same = windows.iter().filter(|it| **it == Some(*first)).count();
            (same + GAPS >= NEEDED).then_some(*first)
        })
    })
}

/// The greatest limit at which each machine would still be named, whoever else is.
pub(super) fn over_limits(looks: &[Vec<f32>], machines: usize) -> Vec<f32> {
    let of = |machine: usize| {
        let metrics = looks.iter().map(|scores| {
            let own = scores.iter().copied().skip(machine).step_by(machines);
            lasting(own, NEEDED, GAPS)
        });
        metrics.fold(0.0, f32::max)
    };
    (0..machines).map(of).collect()
}

fn scaled(values: &[f32]) -> Vec<f32> {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let range = (most - least).max(f32::MIN_POSITIVE);
    values.iter().map(|it| (it - least) / range).collect()
}

fn window(scaled: &[f32], machines: usize, machine: usize, begin: usize) -> Window {
    std::array::from_fn(|at| scaled[(begin + at) * machines + machine])
}

/// All windows of four machines in three metrics of cases without a fault.
fn sound_windows(cases: std::ops::Range<u64>) -> Vec<Window> {
    let mut windows = vec![];
    for seed in cases.map(|it| 2 * it) {
        let Case { samples, .. } = case(4, seed);
        for metric in 0..3 {
            let scaled = scaled(samples.of(metric));
            let begins = 0..=samples.moments() - WINDOW;
            windows.extend(
                begins
                    .flat_map(|begin| (0..4).map(move |it| (begin, it)))
                    .map(|(begin, machine)| window(&scaled, 4, machine, begin)),
            );
        }
    }
    windows
}

#[test]
fn the_gradient_of_the_published_model_is_that_of_its_loss() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut model = Model::new(&mut rng);
    let window = [0.1, 0.5, 0.9, 0.2, 0.4, 0.8, 0.3, 0.6];
    let noise = [0.3, -0.2, 1.1, 0.0, -0.7, 0.5, -1.3, 0.1];
    let mut gradient = vec![0.0; WEIGHTS];
    model.add_gradient(&window, &noise, &mut gradient);
    for (it, of_weight) in gradient.iter().enumerate() {
        let kept = model.weights[it];
        let mut at = |weight: f32| {
            model.weights[it] = weight;
            f64::from(Model::loss(&window, &model.pass(&window, &noise)))
        };
        let slope = (at(kept + 3e-3) - at(kept - 3e-3)) / 6e-3;
        model.weights[it] = kept;
        let apart = (slope - f64::from(*of_weight)).abs();
        assert!(apart < 2e-4, "{it}: {slope}, {of_weight}");
    }
}
