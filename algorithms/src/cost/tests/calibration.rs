//! The errors of the formulas against what was measured, on shapes that were held out of the fit
//! and on what nothing was fitted to.

use super::super::replica::{SERVER, Server};
use super::super::{Card, ModelSize, Replica, Sequences};
use super::fit::fit;
use super::measured::*;
use super::shapes::{Kind, Shape, shapes, three, two};

/// Relative errors of predictions, each with what was measured.
struct Errors {
    sorted: Vec<f64>,
}

impl Errors {
    fn of(pairs: impl IntoIterator<Item = [f64; 2]>) -> Self {
        let errors = pairs
            .into_iter()
            .map(|[said, was]| (said / was - 1.0).abs());
        let mut sorted: Vec<f64> = errors.collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    /// The error in the median, the one that nine of ten are within, and the largest.
    fn spread(&self) -> [f64; 3] {
        let last = (self.sorted.len() - 1) as f64;
        [0.5, 0.9, 1.0].map(|part| self.sorted[(last * part).round() as usize])
    }

    fn are_within(&self, bound: Bound) -> bool {
        let [median, nine_of_ten, _] = self.spread();
        median <= bound.median && nine_of_ten <= bound.nine_of_ten
    }
}

/// The most that a formula may be off. A formula that lacks one of its terms is off by more, as the
/// tests show.
#[derive(Clone, Copy, Debug)]
struct Bound {
    median: f64,
    nine_of_ten: f64,
}

fn bound(median: f64, nine_of_ten: f64) -> Bound {
    Bound {
        median,
        nine_of_ten,
    }
}

fn bound_of(kind: Kind) -> Bound {
    match kind {
        Kind::Product => bound(0.08, 0.20),
        Kind::Decode => bound(0.16, 0.42),
        Kind::Prefill => bound(0.16, 0.40),
        Kind::AllReduce => bound(0.12, 0.35),
    }
}

/// Prints one row of the table that the module `cost` has.
fn print(of: &str, errors: &[&Errors]) {
    let percent = |error: f64| format!("{:.0} %", 100.0 * error);
    let all = errors.iter().flat_map(|errors| errors.spread());
    let all: Vec<String> = all.map(percent).collect();
    println!(
        "| {of} | {} | {} |",
        errors[0].sorted.len(),
        all.join(" | ")
    );
}

/// Rows to fit, and rows that are held out: every third family from `first` on.
fn parts<R: Copy, F: Ord>(rows: &[R], first: usize, family: impl Fn(&R) -> F) -> (Vec<R>, Vec<R>) {
    let mut families: Vec<F> = rows.iter().map(&family).collect();
    families.sort();
    families.dedup();
    let place = |row| families.binary_search(&family(row)).expect("all are in it");
    rows.iter().partition(|row| place(row) % PARTS != first)
}

/// Errors of a kind's formula on each shape, after a fit to the families that it does not belong to.
fn held_out(card: &Card, kind: Kind, said: impl Fn(&Card, &Shape) -> f64) -> Errors {
    let rows = shapes(card, kind);
    let mut pairs = vec![];
    for first in 0..PARTS {
        let (fitted, held) = parts(&rows, first, |shape| kind.family(shape));
        let numbers = fit(kind.start(), &fitted, |numbers, shape| {
            let card = kind.with(card.clone(), numbers);
            [said(&card, shape), shape.micros]
        });
        let card = kind.with(card.clone(), &numbers);
        pairs.extend(held.iter().map(|shape| [said(&card, shape), shape.micros]));
    }
    assert_eq!(pairs.len(), rows.len(), "each shape is held out once");
    Errors::of(pairs)
}

/// Errors with the card's own constants.
fn as_they_are(card: &Card, kind: Kind, rows: &[Shape]) -> Errors {
    let pair = |shape: &Shape| [kind.said(card, shape), shape.micros];
    Errors::of(rows.iter().map(pair))
}

fn cards() -> [Card; 3] {
    [Card::h100(), Card::h200(), Card::a100()]
}

#[test]
fn kernels_that_were_held_out_of_the_fit() {
    for card in cards() {
        for kind in Kind::ALL {
            let of = format!("{}, {}", card.name, kind.name());
            let held = held_out(&card, kind, |card, shape| kind.said(card, shape));
            let own = as_they_are(&card, kind, &shapes(&card, kind));
            print(&of, &[&held, &own]);
            for errors in [held, own] {
                let spread = errors.spread();
                assert!(errors.are_within(bound_of(kind)), "{of}: {spread:?}");
            }
        }
    }
}

/// The errors of a model that is broken are beyond the bound.
fn assert_seen(card: &Card, kind: Kind, errors: &Errors) {
    let (of, spread) = (kind.name(), errors.spread());
    assert!(
        !errors.are_within(bound_of(kind)),
        "{}, {of}: {spread:?}",
        card.name
    );
}

#[test]
fn a_formula_that_lacks_a_term_is_seen() {
    // Reading, arithmetic or the wire cost nothing, whatever the fit does.
    let free = |card: &Card, kind: Kind| {
        let mut card = card.clone();
        match kind {
            Kind::Product | Kind::Prefill => card.device.flops = f64::INFINITY,
            Kind::Decode => card.device.memory_bytes_per_second = f64::INFINITY,
            Kind::AllReduce => card.device.nvlink_bytes_per_second = f64::INFINITY,
        }
        card
    };
    for card in cards() {
        for kind in Kind::ALL {
            let errors = held_out(&card, kind, |card, shape| {
                kind.said(&free(card, kind), shape)
            });
            assert_seen(&card, kind, &errors);
        }
    }
}

#[test]
fn constants_that_are_off_by_half_are_seen() {
    for card in cards() {
        let off = |speed| Card {
            kernels: card.kernels.times(speed),
            ..card.clone()
        };
        for (kind, card) in Kind::ALL
            .into_iter()
            .flat_map(|kind| [(kind, off(1.5)), (kind, off(1.0 / 1.5))])
        {
            let errors = as_they_are(&card, kind, &shapes(&card, kind));
            assert_seen(&card, kind, &errors);
        }
    }
}

#[test]
fn kernels_that_others_measured() {
    let (h100, a100) = (Card::h100(), Card::a100());
    let (product, reduce) = (Kind::Product, Kind::AllReduce);
    // NCCL is launched by the host for each all-reduce, which takes tens of microseconds: only large
    // ones are like those of the kernel in a graph.
    let large = |rows| -> Vec<Shape> {
        let rows = two(rows).into_iter();
        rows.filter(Shape::is_large).collect()
    };
    let known = |of: &str, card: &Card, kind, rows: &[Shape], bound| {
        let errors = as_they_are(card, kind, rows);
        print(of, &[&errors]);
        let spread = errors.spread();
        assert!(errors.are_within(bound), "{of}: {spread:?}");
    };
    let rows = three(VIDUR_H100_PRODUCTS);
    known("H100, product", &h100, product, &rows, bound(0.15, 0.30));
    let rows = three(VIDUR_A100_PRODUCTS);
    known("A100, product", &a100, product, &rows, bound(0.15, 0.30));
    for (card, rows, bound) in [
        (&h100, VIDUR_H100_ALL_REDUCE, bound(0.10, 0.25)),
        (&a100, VIDUR_A100_ALL_REDUCE, bound(0.25, 0.40)),
    ] {
        let of = format!("{}, all-reduce of NCCL, 16 MiB and more", card.name);
        known(&of, card, reduce, &large(rows), bound);
        let of = format!("{}, the same, 1 MiB and more", card.name);
        print(&of, &[&as_they_are(card, reduce, &two(rows))]);
    }
}

/// A run of a server: GPUs, sequences at once, tokens of prompt and response, milliseconds for each
/// token.
type Run = (u32, u64, u64, u64, f64);

/// Predicted and measured milliseconds for each output token of a server on H100: the step, and the
/// prompts of those that begin meanwhile.
fn per_output_token(server: &Server, size: &ModelSize, run: &Run) -> [f64; 2] {
    let &(tensor, batch, prompt, response, was) = run;
    let replica = Replica::new(&Card::h100(), size, tensor).unwrap();
    let step = replica.decode_step_with(server, batch, batch * (prompt + response / 2));
    let prefill = replica.prefill_with(server, Sequences::equal(1, prompt));
    let others = batch as f64 / response as f64;
    [
        (step.as_secs_f64() + prefill.as_secs_f64() * others) * 1e3,
        was,
    ]
}

fn runs(server: &Server, size: &ModelSize, runs: &[Run]) -> Errors {
    Errors::of(runs.iter().map(|run| per_output_token(server, size, run)))
}

/// Errors on each run of the server that the overheads are fitted to, after a fit to runs with other
/// numbers of sequences at once. The overheads that `given` makes of the fitted numbers are used.
fn held_out_runs(given: impl Fn([f64; 3]) -> Server) -> Errors {
    let size = qwen3_32b();
    let mut pairs = vec![];
    for first in 0..PARTS {
        let (fitted, held) = parts(QWEN3_32B, first, |&(_, batch, ..)| batch);
        let server = |numbers: &[f64]| given([numbers[0], numbers[1], numbers[2]]);
        let numbers = fit(&[1e-5, 1e-3, 1e-5], &fitted, |numbers, run| {
            per_output_token(&server(numbers), &size, run)
        });
        let server = server(&numbers);
        pairs.extend(held.iter().map(|run| per_output_token(&server, &size, run)));
    }
    Errors::of(pairs)
}

#[test]
fn whole_runs_of_the_server_that_the_overheads_are_fitted_to() {
    let size = qwen3_32b();
    let held = held_out_runs(|[layer, step, sequence]| Server {
        layer,
        step,
        sequence,
    });
    let own = runs(&SERVER, &size, QWEN3_32B);
    let bounds = bound(0.05, 0.10);
    print("Qwen3-32B, vLLM, H100, responses of 1,024", &[&held, &own]);
    assert!(held.are_within(bounds), "{:?}", held.spread());
    assert!(own.are_within(bounds), "{:?}", own.spread());
    // Without its own time for a sequence, no fit is as near.
    let without = held_out_runs(|[layer, step, _]| Server {
        layer,
        step,
        sequence: 0.0,
    });
    assert!(!without.are_within(bounds), "{:?}", without.spread());
}

#[test]
fn whole_runs_that_nothing_was_fitted_to() {
    let (qwen, llama) = (qwen3_32b(), llama_8b());
    for (of, size, rows, bound) in [
        (
            "Qwen3-32B, vLLM, H100, responses of 512",
            &qwen,
            QWEN3_32B_512,
            bound(0.05, 0.10),
        ),
        (
            "Qwen3-32B, vLLM, H100, responses of 128",
            &qwen,
            QWEN3_32B_128,
            bound(0.10, 0.15),
        ),
        (
            "Qwen3-32B, SGLang, H100",
            &qwen,
            SGLANG_QWEN3_32B,
            bound(0.30, 0.45),
        ),
        (
            "Llama-3.1-8B, TensorRT-LLM, H100",
            &llama,
            LLAMA_8B,
            bound(0.16, 0.22),
        ),
    ] {
        let errors = runs(&SERVER, size, rows);
        print(of, &[&errors]);
        let spread = errors.spread();
        assert!(errors.are_within(bound), "{of}: {spread:?}");
    }
}

/// As `config.json` of Qwen/Qwen3-32B has it.
fn qwen3_32b() -> ModelSize {
    ModelSize {
        name: "Qwen3-32B".to_owned(),
        layers: 64,
        hidden: 5_120,
        heads: 64,
        kv_heads: 8,
        head: 128,
        ffn: 25_600,
        vocabulary: 151_936,
        vectors: 2 * 5_120 + 2 * 128,
    }
}

/// As `config.json` of meta-llama/Llama-3.1-8B has it.
fn llama_8b() -> ModelSize {
    ModelSize {
        name: "Llama-3.1-8B".to_owned(),
        layers: 32,
        hidden: 4_096,
        heads: 32,
        kv_heads: 8,
        head: 128,
        ffn: 14_336,
        vocabulary: 128_256,
        vectors: 2 * 4_096,
    }
}

#[test]
fn one_sequence_on_the_a100() {
    let runs = QWEN2_5_ON_A100.iter().map(|&(size, tensor, before, was)| {
        let size = match size {
            Size::Seven => ModelSize::qwen2_5_7b(),
            Size::SeventyTwo => ModelSize::qwen2_5_72b(),
        };
        let replica = Replica::new(&Card::a100(), &size, tensor).unwrap();
        let step = replica.decode_step(1, before + 1_024);
        let prefill = replica.prefill(Sequences::equal(1, before)) / 2_048;
        [1.0 / (step + prefill).as_secs_f64(), was]
    });
    let errors = Errors::of(runs);
    print("Qwen2.5, vLLM, A100, one sequence", &[&errors]);
    let bounds = bound(0.08, 0.15);
    assert!(errors.are_within(bounds), "{:?}", errors.spread());
}

/// Families are divided into so many parts, each of which is held out once.
const PARTS: usize = 3;
