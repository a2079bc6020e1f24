//! Measurements of loading: how quickly samples come, beside PyTorch's DataLoader and Hugging Face
//! datasets; what memory a data plane takes, beside a loader of each rank; how long ranks wait when
//! a loader is killed.
//!
//! `cargo bench -p odeon-data --bench loading -- [samples] [memory] [losses] [--rounds N]
//! [--only TEXT] [--text PATH] [--documents N] [--pictures N] [--clients N] [--clients-run N]
//! [--block-kib N]`
//!
//! All read the same files and take turns, each round in another order. Here are two loaders; each peer
//! has the number of workers and the batches ahead of each with which it is quickest, which is searched
//! before. A rate is that between a quarter and three quarters of an epoch, since whoever reads ahead
//! has read some before the first batch comes; a number is the median over the rounds, and so is the
//! ratio of each round. Processor time is that of all processes, from before they begin to read until
//! they have ended: on a busy machine it says more. `ODEON_PYTHON` names the Python that has torch,
//! datasets, tokenizers, pillow and orjson.
//!
//! Text is what the files below `--text` hold, cut into documents of log-normal length, each of which
//! comes once. Without it, the documentation of the Linux kernel is fetched, as `odeon fetch kernel-docs`
//! does.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::unwrap_used, reason = "a benchmark that fails has no numbers")]
#![allow(clippy::disallowed_methods, reason = "it measures time as it is")]

use odeon_mesh::{DP, Mesh};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use image::{ImageBuffer, Rgb, codecs::jpeg::JpegEncoder};
use odeon::{Needs, Supervision, System, WorkerCommand, WorkerMode};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::workload::normal_quantile;
use odeon_data::client;
use odeon_data::corpus::{self, KERNEL_DOCS};
use odeon_data::plan::{Ahead, Budget, MicrobatchSpec, MixedSource, Mixture, PlanSpec, Schedule};
use odeon_data::plane::{Changed, Constructors, DataPlan, DataPlane, Loaders, Processes};
use odeon_data::sample::SourceNumber;
use odeon_data::source::{
    Captions, Cell, Fields, Format, Images, Longer, Opening, Pictures, Source, SourceSpec,
};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};

fn main() {
    odeon_data::job().serve_if_worker();
    let args: Vec<String> = std::env::args().collect();
    let number = |flag: &str, default: usize| {
        let at = args.iter().position(|arg| arg == flag);
        let value = at.and_then(|at| args.get(at + 1)?.parse().ok());
        value.unwrap_or(default)
    };
    let has = |word: &str| args.iter().any(|arg| arg == word);
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).cloned()
    };
    let all = !["samples", "memory", "losses"].iter().any(|word| has(word));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.unwrap();
    if let Some(at) = args.iter().position(|arg| arg == "--as-rank") {
        return runtime.block_on(as_rank(
            Path::new(&args[at + 1]),
            number("--block-kib", 128),
        ));
    }
    if all || has("samples") {
        runtime.block_on(samples(&Sizes {
            rounds: number("--rounds", 5).max(1),
            documents: number("--documents", usize::MAX),
            pictures: number("--pictures", 4_000),
            text: natural(after("--text")),
            only: after("--only").unwrap_or_default(),
        }));
    }
    if all || has("memory") {
        let clients = number("--clients", 64);
        let run = number("--clients-run", clients).min(clients);
        runtime.block_on(memory(clients, run, number("--block-kib", 128)));
    }
    if all || has("losses") {
        let text = natural(after("--text"));
        runtime.block_on(losses(&text, number("--documents", 60_000)));
    }
}

struct Sizes {
    rounds: usize,
    documents: usize,
    pictures: usize,
    text: String,
    /// A part of the name of what is read; empty for all.
    only: String,
}

async fn node() -> System {
    let worker = WorkerCommand::current_exe().unwrap();
    // Killed on purpose, and often.
    let often = Supervision::one_for_one().budget(1000, Duration::from_secs(60));
    let system = System::builder().supervision(often);
    let system = system.workers(WorkerMode::Processes(worker));
    system.start().await.unwrap()
}

const CONTEXT: u32 = 1024;
/// Tokens of a step.
const STEP: u64 = 16_384;

/// The workload that is read: the same for all.
struct Workload {
    name: &'static str,
    source: SourceSpec,
    tokenizer: Tokenizer,
    samples: usize,
    /// Samples of a batch, in the mean of a step.
    batch: usize,
}

/// All text below a path, or that of the kernel's documentation; says which.
fn natural(path: Option<String>) -> String {
    let path = path.map_or_else(
        || {
            let models = std::env::var_os("ODEON_MODELS");
            let kept = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models");
            let models = models.map_or_else(|| PathBuf::from(kept), PathBuf::from);
            corpus::fetch(&KERNEL_DOCS, &models).unwrap()
        },
        PathBuf::from,
    );
    let mut files = vec![];
    files_below(&path, &mut files);
    files.sort();
    let read = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    let text = read.collect::<Vec<_>>().join("\n\n");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut distinct = words.clone();
    distinct.sort_unstable();
    distinct.dedup();
    println!(
        "text: {}, {:.1} MB in {} files, {} words of which {} are distinct",
        path.display(),
        text.len() as f64 / 1e6,
        files.len(),
        words.len(),
        distinct.len(),
    );
    text
}

fn files_below(path: &Path, found: &mut Vec<PathBuf>) {
    match path.is_dir() {
        true => {
            for entry in fs::read_dir(path).unwrap() {
                files_below(&entry.unwrap().path(), found);
            }
        }
        false => found.push(path.to_owned()),
    }
}

/// The next piece of text of about so many bytes, which ends between two words, and what follows.
fn piece(text: &str, bytes: usize) -> (&str, &str) {
    let floor = text.floor_char_boundary(bytes);
    let end = text[floor..].find(char::is_whitespace);
    let (piece, rest) = text.split_at(end.map_or(text.len(), |end| floor + end));
    (piece.trim(), rest.trim_start())
}

/// Documents that were written.
#[derive(Default)]
struct Written<'a> {
    count: usize,
    /// Some of them.
    some: Vec<&'a str>,
}

/// Text as lines of JSON in four files, in documents log-normal in their length.
fn documents<'a>(folder: &Path, text: &'a str, most: usize) -> Written<'a> {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    fs::create_dir_all(folder).unwrap();
    let mut files: [String; 4] = Default::default();
    let (mut written, mut rest) = (Written::default(), text.trim());
    while !rest.is_empty() && written.count < most {
        let spread = normal_quantile(random.random_range(1e-9..1.0 - 1e-9));
        let length = (400.0 * spread.exp()).clamp(20.0, 20_000.0) as usize;
        let (document, behind) = piece(rest, length);
        rest = behind;
        let line = serde_json::json!({ "text": document });
        let _ = writeln!(files[written.count % 4], "{line}");
        if written.count % 50 == 0 {
            written.some.push(document);
        }
        written.count += 1;
    }
    for (part, file) in files.iter().enumerate() {
        fs::write(folder.join(format!("part-{part}.jsonl")), file).unwrap();
    }
    written
}

/// Photographs of nothing, as JPEG, each with a caption beside it. Of large ones only some are distinct,
/// since a picture is decoded each time that it comes.
fn pictures(folder: &Path, text: &str, count: usize, large: bool) {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    fs::create_dir_all(folder).unwrap();
    let mut made: Vec<Vec<u8>> = vec![];
    let mut rest = text.trim();
    for nth in 0..count {
        if !large || nth < LARGE_DISTINCT {
            let (widths, heights) = match large {
                true => (1_200..2_000, 900..1_500),
                false => (200..640, 200..480),
            };
            let sides = [random.random_range(widths), random.random_range(heights)];
            made.push(photograph(&mut random, sides));
        }
        let bytes = &made[nth % made.len()];
        fs::write(folder.join(format!("{nth:05}.jpg")), bytes).unwrap();
        let (caption, behind) = piece(rest, 60);
        rest = if behind.is_empty() {
            text.trim()
        } else {
            behind
        };
        fs::write(folder.join(format!("{nth:05}.txt")), caption).unwrap();
    }
}

const LARGE_DISTINCT: usize = 24;

fn photograph(random: &mut ChaCha8Rng, [width, height]: [u32; 2]) -> Vec<u8> {
    let waves: Vec<[f32; 4]> = (0..6)
        .map(|_| std::array::from_fn(|_| random.random_range(0.005..0.12)))
        .collect();
    let picture = ImageBuffer::from_fn(width, height, |x, y| {
        let mut colour = |at: usize| {
            let sum: f32 = waves
                .iter()
                .skip(at)
                .take(3)
                .map(|[a, b, c, d]| {
                    (x as f32 * a + y as f32 * b).sin() * (c * 900.0 + d * y as f32)
                })
                .sum();
            (128.0 + sum + random.random_range(-6.0..6.0)).clamp(0.0, 255.0) as u8
        };
        Rgb([colour(0), colour(1), colour(2)])
    });
    let mut bytes = vec![];
    JpegEncoder::new_with_quality(&mut bytes, 85)
        .encode_image(&picture)
        .unwrap();
    bytes
}

fn source(name: &str, path: &Path, format: Format) -> SourceSpec {
    SourceSpec {
        context: CONTEXT,
        longer: Longer::Truncate,
        ..SourceSpec::new(name, path.to_str().unwrap(), format)
    }
}

fn plan(
    sources: Vec<SourceSpec>,
    tokenizer: Tokenizer,
    cache: PathBuf,
    loaders: Loaders,
) -> DataPlan {
    let mut mixture = Mixture::even(sources.iter().map(|source| source.name.clone()));
    for source in &sources {
        let weight = Schedule::Constant(1.0);
        let once = MixedSource {
            weight,
            epochs: Some(1),
        };
        mixture.sources.insert(source.name.clone(), once);
    }
    let mut spec = PlanSpec::mix(mixture, Budget::Tokens(STEP));
    spec.microbatch = MicrobatchSpec {
        tokens: STEP as u32,
        ..MicrobatchSpec::default()
    };
    DataPlan {
        prefix: String::new(),
        sources,
        tokenizer,
        cache,
        spec,
        mesh: Mesh::new([(DP, 1)]).unwrap(),
        state: None,
        earlier: BTreeMap::new(),
        loaders,
        constructors: Constructors {
            count: 1,
            ahead: 2,
            needs: Needs::new(),
        },
        planned_ahead: 4,
        patience: Duration::from_millis(200),
        processes: Processes::Own,
        changed: Changed::Refuse,
    }
}

fn loaders(sources: Vec<Vec<u32>>, shadows: u32, bytes_max: u64) -> Loaders {
    Loaders {
        sources: Some(sources),
        scaling: None,
        step_seconds: 1.0,
        shadows,
        bytes_max,
        threads: 1,
        needs: Needs::new(),
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Samples of a step, in the mean of some documents.
fn of_a_step(tokenizer: &Tokenizer, some: &[&str]) -> usize {
    let tokens = |text: &&str| {
        let count = tokenizer.encode(text).unwrap().len() + 1;
        count.min(CONTEXT as usize) as u64
    };
    let all: u64 = some.iter().map(tokens).sum();
    (STEP * some.len() as u64).div_ceil(all) as usize
}

fn workloads(sizes: &Sizes, folder: &Path, peers: &Peers) -> Vec<Workload> {
    let text = folder.join("text");
    let written = documents(&text, &sizes.text, sizes.documents);
    let lines = source("text", &text, Format::Jsonl(Fields::text("text")));
    let of_text = |name, tokenizer: Tokenizer| Workload {
        name,
        source: lines.clone(),
        samples: written.count,
        batch: of_a_step(&tokenizer, &written.some),
        tokenizer,
    };
    let mut all = vec![of_text("text, a token a byte", Tokenizer::bytes())];
    if let Some(trained) = peers.tokenizer(&text) {
        let tokenizer = Tokenizer::from_directory(&trained).unwrap();
        all.push(of_text("text, BPE of 8,192 tokens", tokenizer));
    }
    for (name, large, count) in [
        ("pictures with captions", false, sizes.pictures),
        ("large pictures with captions", true, sizes.pictures / 5),
    ] {
        let seen = folder.join(name.replace(' ', "-"));
        pictures(&seen, &sizes.text, count, large);
        let images = Images {
            captions: Captions::Beside("txt".into()),
        };
        let mut source = source("pictures", &seen, Format::Images(images));
        source.pictures = Pictures {
            tokens: 64,
            ..Pictures::default()
        };
        all.push(Workload {
            name,
            source,
            tokenizer: Tokenizer::bytes(),
            samples: count,
            batch: 128,
        });
    }
    all.retain(|workload| workload.name.contains(&sizes.only));
    all
}

async fn samples(sizes: &Sizes) {
    let folder = tempfile::tempdir().unwrap();
    let python = std::env::var("ODEON_PYTHON").unwrap_or_else(|_| "python3".into());
    let peers = Peers::new(&python, folder.path());
    let workloads = workloads(sizes, folder.path(), &peers);
    println!(
        "| what is read | samples | | here | DataLoader | datasets, streamed | datasets, mapped | times the best of these, by round |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for workload in &workloads {
        let set = PEERS.map(|by| peers.search(by, workload));
        let mut rounds: Vec<[Option<Seen>; 4]> = vec![];
        for round in 0..sizes.rounds {
            let mut seen = [None; 4];
            for turn in 0..4 {
                let whose = (turn + round) % 4;
                seen[whose] = match whose {
                    0 => {
                        let cache = folder.path().join(format!("cache-{round}"));
                        Some(own(workload, &cache).await)
                    }
                    _ => set[whose - 1]
                        .as_ref()
                        .and_then(|set| peers.run(PEERS[whose - 1], workload, set)),
                };
            }
            rounds.push(seen);
        }
        let how = |set: &Option<Setting>| match set {
            None => String::new(),
            Some([workers, _]) if workers == "0" => "no workers".to_owned(),
            Some([workers, ahead]) => format!("{workers} workers, {ahead} ahead"),
        };
        println!(
            "| {} | {} | | | {} | |",
            workload.name,
            workload.samples,
            set.each_ref().map(how).join(" | ")
        );
        row(
            "samples/s",
            &rounds,
            |seen| seen.rate,
            f64::max,
            |own, best| own / best,
        );
        row(
            "CPU µs a sample",
            &rounds,
            |seen| seen.micros,
            f64::min,
            |own, best| best / own,
        );
    }
}

/// Figures of an epoch: samples a second, and processor time of each.
#[derive(Clone, Copy, Debug)]
struct Seen {
    rate: f64,
    micros: f64,
}

/// Prints the medians of a figure, and how far the best of the peers is behind, by round.
fn row(
    of: &str,
    rounds: &[[Option<Seen>; 4]],
    figure: impl Fn(Seen) -> f64,
    best: impl Fn(f64, f64) -> f64,
    times: impl Fn(f64, f64) -> f64,
) {
    let whose = |whose: usize| -> Vec<f64> {
        let all = rounds.iter().filter_map(|seen| seen[whose]);
        all.map(&figure).collect()
    };
    let all = [0, 1, 2, 3].map(|one| match &whose(one)[..] {
        [] => "-".to_owned(),
        all => format!("{:.0}", median(all.to_vec())),
    });
    let mut ratios: Vec<f64> = rounds
        .iter()
        .filter_map(|seen| {
            let peers = seen[1..].iter().flatten().copied().map(&figure);
            Some(times(figure(seen[0]?), peers.reduce(&best)?))
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let ratios = match ratios[..] {
        [] => "-".to_owned(),
        [low, .., high] => format!("{:.2} ({low:.2} to {high:.2})", median(ratios)),
        [one] => format!("{one:.2}"),
    };
    println!("| | | {of} | {} | {ratios} |", all.join(" | "));
}

/// Seconds of processor time of this process and of those that it has waited for.
fn worked() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    // The name may have blanks; it ends with a bracket.
    let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
    let ticks: f64 = fields
        .skip(11)
        .take(4)
        .map(|it| it.parse::<f64>().unwrap())
        .sum();
    // A hundred a second, on all machines of today.
    ticks / 100.0
}

/// Ways in which `loading_peer.py` reads.
const PEERS: [&str; 3] = ["torch", "streamed", "mapped"];

/// Workers, and batches ahead of each, as `loading_peer.py` prints and takes them.
type Setting = [String; 2];

/// An epoch through a plane of two loaders.
async fn own(workload: &Workload, cache: &Path) -> Seen {
    let before = worked();
    let system = node().await;
    let cache = cache.join(workload.name.replace(' ', "-"));
    let tokenizer = workload.tokenizer.clone();
    let plan = plan(
        vec![workload.source.clone()],
        tokenizer,
        cache,
        loaders(vec![vec![0, 1]], 0, 64 << 20),
    );
    let plane = DataPlane::start(&system, plan).await.unwrap();
    let from = plane.supply().constructor_of(0).unwrap();
    let mut count = 0;
    let mut came: Vec<(usize, Instant)> = vec![];
    for step in 0.. {
        // Behind the last step is none.
        let Ok((_, batches)) = client::fetch(from, step, 0).await else {
            break;
        };
        count += batches
            .iter()
            .map(|batch| batch.sequences().count())
            .sum::<usize>();
        came.push((count, Instant::now()));
    }
    plane.stop().await;
    system.shutdown().await;
    assert_eq!(count, workload.samples, "each sample comes once");
    let at = |quarters: usize| came.iter().find(|(seen, _)| seen * 4 >= count * quarters);
    let (&(first, begun), &(after, ended)) = at(1).zip(at(3)).unwrap();
    Seen {
        rate: (after - first) as f64 / (ended - begun).as_secs_f64(),
        micros: (worked() - before) / count as f64 * 1e6,
    }
}

/// Python programs that read the same.
struct Peers {
    python: String,
    script: PathBuf,
    folder: PathBuf,
    is_there: bool,
}

impl Peers {
    fn new(python: &str, folder: &Path) -> Self {
        let imports = "import torch, datasets, tokenizers, PIL, orjson";
        let there = Command::new(python)
            .args(["-c", imports])
            .stderr(Stdio::null())
            .status();
        let is_there = there.is_ok_and(|status| status.success());
        if !is_there {
            println!(
                "skipped: {python} has not all of torch, datasets, tokenizers, pillow and orjson, so there is nothing to compare with (ODEON_PYTHON)"
            );
        }
        Self {
            python: python.to_owned(),
            script: Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/loading_peer.py"),
            folder: folder.to_owned(),
            is_there,
        }
    }

    fn call(&self, args: &[&str]) -> Option<String> {
        if !self.is_there {
            return None;
        }
        let run = Command::new(&self.python)
            .arg(&self.script)
            .args(args)
            .env("HF_HOME", self.folder.join("hf"))
            .stderr(Stdio::inherit())
            .output();
        let run = run.unwrap();
        assert!(run.status.success(), "loading_peer.py {args:?} failed");
        Some(String::from_utf8(run.stdout).unwrap())
    }

    /// A folder with `tokenizer.json`, trained on these documents.
    fn tokenizer(&self, text: &Path) -> Option<PathBuf> {
        let folder = self.folder.join("tokenizer");
        self.call(&["train", text.to_str().unwrap(), folder.to_str().unwrap()])?;
        Some(folder)
    }

    /// The answer of `loading_peer.py`, asked with what to read.
    fn read(&self, before: &[&str], workload: &Workload, after: &[String]) -> Option<Vec<String>> {
        let trained = self.folder.join("tokenizer");
        let tokenizer = match workload.name.contains("BPE") {
            true => trained.to_str().unwrap(),
            false => "-",
        };
        let batch = workload.batch.to_string();
        let read = [&*workload.source.path, tokenizer, &batch];
        let after = after.iter().map(|it| &**it);
        let all: Vec<&str> = before.iter().copied().chain(read).chain(after).collect();
        let told = self.call(&all)?;
        Some(told.split_whitespace().map(str::to_owned).collect())
    }

    /// The setting with which most samples come.
    fn search(&self, by: &str, workload: &Workload) -> Option<Setting> {
        self.read(&["search", by], workload, &[])?.try_into().ok()
    }

    fn run(&self, by: &str, workload: &Workload, set: &Setting) -> Option<Seen> {
        let told = self.read(&[by], workload, set)?;
        let numbers: Vec<f64> = told.iter().map(|it| it.parse().unwrap()).collect();
        assert_eq!(numbers[0] as usize, workload.samples, "{by} reads all");
        Some(Seen {
            rate: numbers[1],
            micros: numbers[2],
        })
    }
}

/// Sources of the memory measurement, and how much of each there is.
const SOURCES: usize = 306;
const SOURCE_BYTES: usize = 1 << 20;

fn many(folder: &Path, block_kib: usize) -> Vec<SourceSpec> {
    let one = |nth: usize| {
        let path = folder.join(format!("source-{nth:03}.jsonl"));
        if !path.exists() {
            let mut text = String::new();
            for line in 0.. {
                if text.len() >= SOURCE_BYTES {
                    break;
                }
                let words = format!("source {nth} line {line} ").repeat(1 + (line * 7 + nth) % 40);
                let _ = writeln!(text, "{{\"text\": \"{words}\"}}");
            }
            fs::write(&path, text).unwrap();
        }
        SourceSpec {
            block_bytes: (block_kib << 10) as u64,
            cell_blocks: 1,
            ..source(
                &format!("source-{nth:03}"),
                &path,
                Format::Jsonl(Fields::text("text")),
            )
        }
    };
    (0..SOURCES).map(one).collect()
}

/// Bytes of memory of a process: what is shared counts in parts.
fn proportional(pid: u32) -> f64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find(|line| line.starts_with("Pss:"));
    let kib: f64 = line
        .and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0.0);
    kib * 1024.0
}

/// A rank with a loader of its own: all sources open, and of each one cell, the next, in memory. Says
/// by how much it grew for that.
async fn as_rank(folder: &Path, block_kib: usize) {
    let before = proportional(std::process::id());
    let opening = Opening::new(Tokenizer::bytes(), folder.join("cache"));
    let mut held: Vec<(Source, Cell)> = vec![];
    for (nth, spec) in (0..).zip(many(folder, block_kib)) {
        let source = Source::open(SourceNumber(nth), &spec, &opening)
            .await
            .unwrap();
        let cell = source.cell(0, 0).await.unwrap();
        held.push((source, cell));
    }
    println!("{}", proportional(std::process::id()) - before);
    // Until all are measured.
    let _ = std::io::stdin().lines().next();
    drop(held);
}

async fn memory(clients: usize, run: usize, block_kib: usize) {
    let folder = tempfile::tempdir().unwrap();
    let sources = many(folder.path(), block_kib);
    let own = plane_memory(folder.path(), sources, clients).await;
    let mut ranks = vec![];
    for _ in 0..run {
        let rank = Command::new(std::env::current_exe().unwrap())
            .arg("--as-rank")
            .arg(folder.path())
            .args(["--block-kib", &block_kib.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut rank = rank.unwrap();
        let mut line = String::new();
        BufReader::new(rank.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        ranks.push((rank, line.trim().parse::<f64>().unwrap()));
    }
    let grown: f64 = ranks.iter().map(|(_, bytes)| bytes).sum();
    for (mut rank, _) in ranks {
        drop(rank.stdin.take());
        rank.wait().unwrap();
    }
    let each = grown / run as f64;
    let all = each * clients as f64;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    println!(
        "{SOURCES} sources, {clients} clients, blocks of {block_kib} KiB, {run} of the ranks' own loaders run"
    );
    println!("| | MiB |\n| --- | --- |");
    println!(
        "| a loader of a rank, without its process | {:.1} |",
        mib(each)
    );
    println!("| all of them | {:.0} |", mib(all));
    for (role, bytes) in &own {
        println!("| {role} | {:.1} |", mib(*bytes));
    }
    let whole: f64 = own.iter().map(|(_, bytes)| bytes).sum();
    println!("| all of the plane | {:.0} |", mib(whole));
    println!("| times less | {:.1} |", all / whole);
}

/// Measures the memory that a plane takes which feeds so many clients, its processes as a whole.
async fn plane_memory(
    folder: &Path,
    sources: Vec<SourceSpec>,
    clients: usize,
) -> Vec<(String, f64)> {
    let system = node().await;
    let around = (0..SOURCES as u32).map(|source| vec![source % 8]).collect();
    let mut plan = plan(
        sources,
        Tokenizer::bytes(),
        folder.join("cache"),
        loaders(around, 0, 64 << 20),
    );
    plan.mesh = Mesh::new([(DP, clients)]).unwrap();
    plan.spec.step = Budget::Tokens(4096 * clients as u64);
    plan.spec.ahead = Ahead { steps: 1, cells: 4 };
    plan.constructors.count = 4;
    let plane = DataPlane::start(&system, plan).await.unwrap();
    let mut most: Vec<(String, f64)> = vec![];
    for step in 0..12 {
        let mut held = vec![];
        for rank in 0..clients as u32 {
            let from = plane.supply().constructor_of(rank).unwrap();
            held.push(client::fetch(from, step, rank).await.unwrap());
        }
        let workers = system.admin().workers();
        let mut now = vec![(
            "program: planner, ledger, batches that ranks hold".to_owned(),
            proportional(std::process::id()),
        )];
        for kind in ["loader", "constructor"] {
            let of = plane.roles().filter(|(name, ..)| name.starts_with(kind));
            let pids: Vec<u32> = of
                .filter_map(|(.., process)| workers.iter().find(|(id, _)| Some(*id) == process))
                .map(|(_, pid)| *pid)
                .collect();
            let bytes = pids.iter().map(|pid| proportional(*pid)).sum();
            now.push((format!("{} {kind}s", pids.len()), bytes));
        }
        let sum = |all: &[(String, f64)]| all.iter().map(|(_, bytes)| bytes).sum::<f64>();
        if sum(&now) > sum(&most) {
            most = now;
        }
    }
    plane.stop().await;
    system.shutdown().await;
    most
}

/// Measures the time that ranks wait when loaders are killed, with others that stand in for them
/// and without: now and then, and so often that their supervisor makes them wait before they begin
/// again.
async fn losses(text: &str, count: usize) {
    let folder = tempfile::tempdir().unwrap();
    // Long enough for all kills.
    documents(&folder.path().join("text"), &text.repeat(3), count);
    println!(
        "| a step takes | shadows | kills | wait of a step, median, ms | after a kill, median, ms | after a kill, most, ms |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for (busy, shadows, kills) in [
        (0, 0, 0),
        (0, 0, 5),
        (0, 1, 5),
        (10, 0, 5),
        (10, 1, 5),
        (10, 0, 30),
        (10, 1, 30),
    ] {
        let waits = waits(folder.path(), shadows, busy, kills).await;
        let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        let after = match kills {
            0 => (
                "-".to_owned(),
                format!("{:.1} without a kill", most(&waits.all)),
            ),
            _ => (
                format!("{:.1}", median(waits.worst.clone())),
                format!("{:.1}", most(&waits.worst)),
            ),
        };
        println!(
            "| {busy} ms | {shadows} | {} | {:.2} | {} | {} |",
            waits.worst.len(),
            median(waits.all),
            after.0,
            after.1,
        );
    }
}

struct Waits {
    /// Of each step, in ms.
    all: Vec<f64>,
    /// The longest after each kill.
    worst: Vec<f64>,
}

/// Steps between two kills.
const BETWEEN: u64 = 40;

async fn waits(folder: &Path, shadows: u32, busy: u64, kills: usize) -> Waits {
    let system = node().await;
    let lines = source(
        "text",
        &folder.join("text"),
        Format::Jsonl(Fields::text("text")),
    );
    let mut plan = plan(
        vec![lines],
        Tokenizer::bytes(),
        folder.join("cache"),
        loaders(vec![vec![0, 1]], shadows, 64 << 20),
    );
    // The blocks of recipes/pretrain-mix.toml, so that a loader has many.
    plan.sources[0].block_bytes = 64 << 10;
    let plane = DataPlane::start(&system, plan).await.unwrap();
    let from = plane.supply().constructor_of(0).unwrap();
    let mut waits = Waits {
        all: vec![],
        worst: vec![],
    };
    for step in 0..(kills.max(5) as u64 + 2) * BETWEEN {
        let begun = Instant::now();
        if let Err(failure) = client::fetch(from, step, 0).await {
            assert!(
                failure.to_string().contains("the sources ended"),
                "{failure}"
            );
            break;
        }
        let waited = begun.elapsed().as_secs_f64() * 1e3;
        // The first waits for all to begin.
        if step >= BETWEEN {
            waits.all.push(waited);
            if let Some(worst) = waits.worst.last_mut() {
                *worst = waited.max(*worst);
            }
        }
        let due = step >= BETWEEN && step % BETWEEN == 0;
        if due && waits.worst.len() < kills {
            let role = format!("loader-{}", step / BETWEEN % 2);
            let process = plane.roles().find(|(name, ..)| *name == role).unwrap().2;
            let workers = system.admin().workers();
            if let Some((_, pid)) = workers.iter().find(|(id, _)| Some(*id) == process) {
                kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL).unwrap();
                waits.worst.push(0.0);
            }
        }
        tokio::time::sleep(Duration::from_millis(busy)).await;
    }
    plane.stop().await;
    system.shutdown().await;
    waits
}
