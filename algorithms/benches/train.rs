//! Training and sampling speed of three models, beside PyTorch where it is installed: each with products in f32 and,
//! where the processor has the instructions, in bf16 (PyTorch: under autocast, with a cache in bf16).
//!
//! `cargo bench -p odeon-algorithms --bench train -- [--threads N] [--seconds S] [--rounds N]
//! [--only tiny:train] [--no-peer]`
//!
//! Beside them two choices of one's own are paired with what is done without: sums in one order, and samples
//! of a group that share their prompt.
//!
//! All take turns, so that a slow minute of the machine hits all; rates are medians over the rounds,
//! and so is the ratio of each round. `ODEON_PYTHON` names the Python that has torch. Training in
//! PyTorch is measured as it is and compiled, where a C++ compiler is there for `torch.compile`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use odeon_algorithms::generate::{Generator, GeneratorConfig, Request, Sampling};
use odeon_algorithms::model::{Batch, BatchError, Model, ModelConfig, Sequence};
use odeon_algorithms::train::{CrossEntropy, TrainConfig, Trainer};
use odeon_gpu::{Cpu, CpuOptions, Precision};

struct Case {
    name: &'static str,
    config: ModelConfig,
    tokens: usize,
    batch: usize,
}

/// Matrix sizes of two GPTs of 0.83 and 10.9 million parameters, and of SmolLM2 with 135 million.
fn cases() -> [Case; 3] {
    let square = |vocab, dim, layers, heads, ffn| ModelConfig {
        vocab,
        dim,
        layers,
        heads,
        kv_heads: heads,
        head_dim: dim / heads,
        ffn,
        tied_head: false,
        ..ModelConfig::default()
    };
    [
        Case {
            name: "tiny",
            config: square(96, 128, 4, 4, 352),
            tokens: 128,
            batch: 16,
        },
        Case {
            name: "small",
            config: square(256, 384, 6, 6, 1040),
            tokens: 256,
            batch: 8,
        },
        Case {
            name: "smollm2",
            config: ModelConfig {
                kv_heads: 3,
                tied_head: true,
                ..square(49_152, 576, 30, 9, 1536)
            },
            tokens: 128,
            batch: 8,
        },
    ]
}

const SLOTS: usize = 32;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |flag: &str, default: f64| {
        let at = args.iter().position(|a| a == flag);
        at.and_then(|i| args.get(i + 1)?.parse().ok())
            .unwrap_or(default)
    };
    let threads = number("--threads", 2.0) as usize;
    let budget = Duration::from_secs_f64(number("--seconds", 1.5));
    let rounds = (number("--rounds", 5.0) as usize).max(1);
    let only = args
        .iter()
        .position(|a| a == "--only")
        .and_then(|i| args.get(i + 1));
    let mut peer = if args.iter().any(|a| a == "--no-peer") {
        None
    } else {
        Peer::start(threads, budget)
    };
    println!("tokens per second, {threads} threads, median of {rounds} rounds (lowest to highest)");
    let prepare: [(&str, Prepare); 2] = [("train", train), ("sample", sample)];
    for case in cases() {
        for (what, prepare) in prepare {
            if only.is_some_and(|only| *only != format!("{}:{what}", case.name)) {
                continue;
            }
            let mut own: Vec<_> = backends(threads)
                .into_iter()
                .map(|(name, cpu)| (name, prepare(&case, cpu), vec![]))
                .collect();
            // The first time is no measure.
            own.iter_mut().for_each(|(_, run, _)| {
                run();
            });
            let ways: &[&'static str] = match what {
                "train" => &["eager", "compiled", "bf16"],
                _ => &["eager", "bf16"],
            };
            let mut theirs: Vec<Theirs> = vec![];
            for how in ways {
                if let Some(peer) = &mut peer
                    && peer.rate(case.name, what, how).is_some()
                {
                    theirs.push(Theirs::new(how));
                }
            }
            for _ in 0..rounds {
                for (_, run, rates) in &mut own {
                    rates.push(rate(budget, run));
                }
                for one in &mut theirs {
                    if let Some(other) = peer
                        .as_mut()
                        .and_then(|peer| peer.rate(case.name, what, one.how))
                    {
                        one.rates.push(other);
                        let last = own.iter().map(|(_, _, rates)| rates[rates.len() - 1]);
                        one.ratios.push(last.map(|own| own / other).collect());
                    }
                }
            }
            println!("{} {what}", case.name);
            for (name, _, rates) in &own {
                println!("{}", spread(&format!("odeon {name}"), rates.clone(), 0));
            }
            for Theirs { how, rates, ratios } in theirs {
                let mut columns = vec![spread(&format!("pytorch {how}"), rates, 0)];
                for (number, (name, ..)) in own.iter().enumerate() {
                    let ratios = ratios.iter().map(|all| all[number]).collect();
                    columns.push(spread(&format!("{name} at"), ratios, 2));
                }
                println!("{}", columns.concat());
            }
        }
    }
    for case in &cases()[..2] {
        for (what, with, without) in [
            ("order", train_in_order as Alone, train_alone as Alone),
            ("group", train_groups, train_groups_apart),
        ] {
            if only.is_some_and(|only| *only != format!("{}:{what}", case.name)) {
                continue;
            }
            let mut both = [with(case, threads), without(case, threads)];
            for run in &mut both {
                // The first time is no measure.
                run();
            }
            let (mut rates, mut ratios) = ([vec![], vec![]], vec![]);
            for _ in 0..rounds {
                let [one, other] = both.each_mut().map(|run| rate(budget, run));
                ratios.push(one / other);
                rates[0].push(one);
                rates[1].push(other);
            }
            let [one, other] = rates;
            let columns = [
                spread("with", one, 0),
                spread("without", other, 0),
                spread("ratio", ratios, 2),
            ];
            println!(
                "{:13} {}",
                format!("{} {what}", case.name),
                columns.concat()
            );
        }
    }
}

/// Figures of PyTorch in one of its ways.
struct Theirs {
    how: &'static str,
    rates: Vec<f64>,
    /// One for each of one's own, a round.
    ratios: Vec<Vec<f64>>,
}

impl Theirs {
    fn new(how: &'static str) -> Self {
        Self {
            how,
            rates: vec![],
            ratios: vec![],
        }
    }
}

/// One column: the median, and how far the values lie apart.
fn spread(of: &str, mut values: Vec<f64>, digits: usize) -> String {
    values.sort_by(f64::total_cmp);
    match values[..] {
        [] => String::new(),
        [low] => format!("  {of} {low:.digits$}"),
        [low, .., high] => {
            let median = values[values.len() / 2];
            format!("  {of} {median:.digits$} ({low:.digits$} to {high:.digits$})")
        }
    }
}

/// PyTorch, which measures when it is told to.
struct Peer {
    child: Child,
    orders: ChildStdin,
    rates: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it, where there is one.
    fn start(threads: usize, budget: Duration) -> Option<Self> {
        let python = std::env::var("ODEON_PYTHON").unwrap_or_else(|_| "python3".into());
        let torch = Command::new(&python).args(["-c", "import torch"]).output();
        if !torch.is_ok_and(|o| o.status.success()) {
            println!("skipped: pytorch_peer, because {python} cannot import torch (ODEON_PYTHON)");
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/pytorch_peer.py");
        let mut child = Command::new(&python)
            .args([script, &threads.to_string()])
            .arg(budget.as_secs_f64().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it has just run");
        let orders = child.stdin.take().expect("it is piped");
        let rates = BufReader::new(child.stdout.take().expect("it is piped"));
        Some(Self {
            child,
            orders,
            rates,
        })
    }

    fn rate(&mut self, model: &str, what: &str, how: &str) -> Option<f64> {
        writeln!(self.orders, "{model} {what} {how}").ok()?;
        let mut line = String::new();
        self.rates.read_line(&mut line).ok()?;
        let rate = line.trim().parse().ok();
        if rate.is_none() {
            println!(
                "failed: pytorch_peer, {model} {what} {how}: {}",
                line.trim()
            );
        }
        rate
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does a piece of work and says how many tokens it was.
type Run = Box<dyn FnMut() -> usize>;
type Prepare = fn(&Case, Cpu) -> Run;
/// On a back-end of its own, with so many threads.
type Alone = fn(&Case, usize) -> Run;

/// With products in f32, and in bf16 where the processor has that.
fn backends(threads: usize) -> Vec<(&'static str, Cpu)> {
    let open = |products| {
        Cpu::open(&CpuOptions {
            threads,
            products,
            ..CpuOptions::default()
        })
    };
    let all = [("f32", Precision::F32), ("bf16", Precision::Bf16)];
    all.into_iter()
        .filter_map(|(name, products)| match open(products) {
            Ok(cpu) => Some((name, cpu)),
            Err(error) => {
                println!("skipped: odeon {name}, because {error}");
                None
            }
        })
        .collect()
}

/// The median of tokens per second over repetitions.
fn rate(budget: Duration, run: &mut Run) -> f64 {
    #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    let now = Instant::now;
    let start = now();
    let mut rates = Vec::new();
    while start.elapsed() < budget {
        let step = now();
        let tokens = run();
        rates.push(tokens as f64 / step.elapsed().as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn train_alone(case: &Case, threads: usize) -> Run {
    train(case, Cpu::new(threads))
}

/// With sums in the order of sampling.
fn train_in_order(case: &Case, threads: usize) -> Run {
    train(case, Cpu::deterministic(threads))
}

fn train(case: &Case, cpu: Cpu) -> Run {
    let model = Model::init(cpu, case.config.clone(), 1).expect("a valid model");
    let settings = TrainConfig {
        lr: 1e-3,
        ..TrainConfig::default()
    };
    let mut trainer = Trainer::new(model, settings);
    let vocab = case.config.vocab;
    let texts: Vec<Vec<u32>> = (0..case.batch)
        .map(|b| {
            (0..=case.tokens)
                .map(|t| ((t * t + b * 31) % vocab) as u32)
                .collect()
        })
        .collect();
    let sequences: Vec<_> = texts
        .iter()
        .map(|tokens| Sequence { tokens, prompt: 1 })
        .collect();
    let batch = Batch::pack(&sequences).expect("sequences with prompts");
    Box::new(move || {
        trainer.accumulate(&batch, &mut CrossEntropy::mean_over(batch.predicted()));
        trainer.apply(1.0);
        batch.predicted()
    })
}

fn train_groups(case: &Case, threads: usize) -> Run {
    groups(case, threads, Batch::pack_sharing)
}

fn train_groups_apart(case: &Case, threads: usize) -> Run {
    groups(case, threads, Batch::pack)
}

/// Groups of sixteen samples of four tokens to prompts of eight, as sums of three digits have them.
fn groups(
    case: &Case,
    threads: usize,
    pack: fn(&[Sequence<'_>]) -> Result<Batch, BatchError>,
) -> Run {
    let model = Model::init(Cpu::new(threads), case.config.clone(), 1).expect("a valid model");
    let mut trainer = Trainer::new(model, TrainConfig::default());
    let texts: Vec<Vec<u32>> = (0..256u32)
        .map(|sample| {
            let prompt = (0..8).map(|at| (at * at + sample / 16) % 96);
            prompt.chain((0..4).map(|at| (at + sample) % 96)).collect()
        })
        .collect();
    let sequences: Vec<_> = texts
        .iter()
        .map(|tokens| Sequence { tokens, prompt: 8 })
        .collect();
    let batch = pack(&sequences).expect("sequences with prompts");
    Box::new(move || {
        trainer.accumulate(&batch, &mut CrossEntropy::mean_over(batch.predicted()));
        trainer.apply(1.0);
        batch.predicted()
    })
}

fn sample(case: &Case, cpu: Cpu) -> Run {
    let options = GeneratorConfig {
        slots: SLOTS,
        max_tokens: case.tokens,
        prefill_tokens: SLOTS,
        ..GeneratorConfig::default()
    };
    let mut generator =
        Generator::new(cpu.clone(), case.config.clone(), options).expect("a valid model");
    let model = Model::init(cpu, case.config.clone(), 1).expect("a valid model");
    generator
        .load_flat(&model.to_flat())
        .expect("the same layout");
    let max_new_tokens = case.tokens - 1;
    Box::new(move || {
        for id in 0..SLOTS as u64 {
            let request = Request {
                id,
                prompt: vec![1],
                max_new_tokens,
                sampling: Sampling::default(),
                seed: id,
                resumed: 0,
            };
            generator.submit(request).expect("a valid request");
        }
        let mut tokens = 0;
        while !generator.is_idle() {
            tokens += generator
                .step()
                .iter()
                .map(|s| s.tokens.len())
                .sum::<usize>();
        }
        tokens
    })
}
