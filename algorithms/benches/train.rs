//! Training and sampling speed of three models, beside PyTorch where it is installed: each with products in f32 and,
//! where the processor has the instructions, in bf16 (PyTorch: under autocast, with a cache in bf16).
//!
//! ```sh
//! cargo bench -p odeon-algorithms --bench train -- [--threads N] [--seconds S] [--rounds N] [--processor]
//!     [--only small:train,smollm2:train] [--own f32,bf16] [--peer eager,compiled,bf16] [--no-peer]
//! ```
//!
//! Beside them two choices of one's own are paired with what is done without: sums in one order, and samples
//! of a group that share their prompt.
//!
//! All take turns, so that a slow minute of the machine hits all; rates are medians over the rounds,
//! and so is the ratio of each round. With `--processor` they are by the processor time of all threads of Odeon and of
//! PyTorch's process, so that what others take does not count; nor does a thread that waits for another, so compare with
//! one thread. A turn takes at least `--seconds`: with 0 it is one step. `--only` names rows, `--own` and `--peer` what is
//! measured in each, so that one row of a large model is measured in minutes.
//!
//! `ODEON_PYTHON` names the Python that has torch. Training in PyTorch is measured as it is and compiled, where a C++
//! compiler is there for `torch.compile`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::LazyLock;
use std::time::Instant;

use odeon_algorithms::generate::{Generator, GeneratorConfig, Request, Sampling};
use odeon_algorithms::model::{Batch, BatchError, Model, ModelConfig, Sequence};
use odeon_algorithms::train::{CrossEntropy, TrainConfig, Trainer};
use odeon_gpu::{Cpu, CpuOptions, Precision};
use rustix::time::{ClockId, clock_gettime};

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

/// A clock of seconds.
#[derive(Clone, Copy)]
enum Clock {
    Wall,
    /// The time of all threads of a process on processors.
    Processor,
}

impl Clock {
    fn now(self) -> f64 {
        static BEGIN: LazyLock<Instant> = LazyLock::new(|| {
            #[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
            Instant::now()
        });
        match self {
            Self::Wall => BEGIN.elapsed().as_secs_f64(),
            Self::Processor => {
                let time = clock_gettime(ClockId::ProcessCPUTime);
                time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
            }
        }
    }
}

/// What the command line asks for.
struct Asked {
    threads: usize,
    /// Seconds of a turn, at least.
    seconds: f64,
    rounds: usize,
    clock: Clock,
    /// Rows, products and ways of PyTorch; all where none is named.
    only: Vec<String>,
    own: Vec<String>,
    peer: Vec<String>,
    is_alone: bool,
}

impl Asked {
    fn new() -> Self {
        let args: Vec<String> = std::env::args().collect();
        let has = |flag: &str| args.iter().any(|a| a == flag);
        let word = |flag: &str| args.get(args.iter().position(|a| a == flag)? + 1);
        let number = |flag: &str, default: f64| {
            word(flag)
                .and_then(|word| word.parse().ok())
                .unwrap_or(default)
        };
        let list = |flag: &str| {
            let words = word(flag).into_iter().flat_map(|words| words.split(','));
            words.map(str::to_owned).collect()
        };
        Self {
            threads: number("--threads", 2.0) as usize,
            seconds: number("--seconds", 1.5),
            rounds: (number("--rounds", 5.0) as usize).max(1),
            clock: match has("--processor") {
                true => Clock::Processor,
                false => Clock::Wall,
            },
            only: list("--only"),
            own: list("--own"),
            peer: list("--peer"),
            is_alone: has("--no-peer"),
        }
    }

    fn has_row(&self, model: &str, what: &str) -> bool {
        is_in(&self.only, &format!("{model}:{what}"))
    }
}

fn is_in(named: &[String], name: &str) -> bool {
    named.is_empty() || named.iter().any(|one| one == name)
}

fn main() {
    let asked = Asked::new();
    let mut peer = match asked.is_alone {
        true => None,
        false => Peer::start(&asked),
    };
    let per = match asked.clock {
        Clock::Wall => "second",
        Clock::Processor => "second of processor time",
    };
    let Asked {
        threads, rounds, ..
    } = asked;
    println!("tokens per {per}, {threads} threads, median of {rounds} rounds (lowest to highest)");
    let prepare: [(&str, Prepare); 2] = [("train", train), ("sample", sample)];
    for case in cases() {
        for (what, prepare) in prepare {
            if asked.has_row(case.name, what) {
                beside_peer(&asked, &case, what, prepare, peer.as_mut());
            }
        }
    }
    for case in &cases()[..2] {
        for (what, with, without) in [
            ("order", train_in_order as Alone, train_alone as Alone),
            ("group", train_groups, train_groups_apart),
        ] {
            if asked.has_row(case.name, what) {
                paired(&asked, case, what, [with, without]);
            }
        }
    }
}

/// A row of Odeon beside PyTorch.
fn beside_peer(
    asked: &Asked,
    case: &Case,
    what: &str,
    prepare: Prepare,
    mut peer: Option<&mut Peer>,
) {
    let backends = backends(asked.threads).into_iter();
    let mut own: Vec<_> = backends
        .filter(|(name, _)| is_in(&asked.own, name))
        .map(|(name, cpu)| (name, prepare(case, cpu), vec![]))
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
    for how in ways.iter().filter(|how| is_in(&asked.peer, how)) {
        if let Some(peer) = &mut peer
            && peer.rate(case.name, what, how).is_some()
        {
            theirs.push(Theirs::new(how));
        }
    }
    for _ in 0..asked.rounds {
        for (_, run, rates) in &mut own {
            rates.push(rate(asked, run));
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

/// A row of Odeon in two ways.
fn paired(asked: &Asked, case: &Case, what: &str, ways: [Alone; 2]) {
    let mut both = ways.map(|way| way(case, asked.threads));
    for run in &mut both {
        // The first time is no measure.
        run();
    }
    let (mut rates, mut ratios) = ([vec![], vec![]], vec![]);
    for _ in 0..asked.rounds {
        let [one, other] = both.each_mut().map(|run| rate(asked, run));
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
    fn start(asked: &Asked) -> Option<Self> {
        let python = std::env::var("ODEON_PYTHON").unwrap_or_else(|_| "python3".into());
        let torch = Command::new(&python).args(["-c", "import torch"]).output();
        if !torch.is_ok_and(|o| o.status.success()) {
            println!("skipped: pytorch_peer, because {python} cannot import torch (ODEON_PYTHON)");
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/pytorch_peer.py");
        let mut child = Command::new(&python)
            .args([script, &asked.threads.to_string()])
            .arg(asked.seconds.to_string())
            .arg(match asked.clock {
                Clock::Wall => "wall",
                Clock::Processor => "processor",
            })
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
fn rate(asked: &Asked, run: &mut Run) -> f64 {
    let now = || asked.clock.now();
    let (start, mut rates) = (now(), vec![]);
    while rates.is_empty() || now() - start < asked.seconds {
        let step = now();
        let tokens = run();
        rates.push(tokens as f64 / (now() - step));
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
