//! Saving and loading, beside torch.distributed.checkpoint where it is installed, and what planning
//! costs with many ranks.
//!
//! `cargo bench -p odeon-checkpoint --bench against_torch -- [--mebibytes N] [--rounds N]
//! [--folder F] [--stages] [--no-peer] [--no-plans] [--ranks-max N]`
//!
//! Two ranks have half of the rows of each tensor. Both sides write the same bytes to the same disk,
//! with `fsync`, and take turns, so that a slow minute hits both; numbers are medians over the
//! rounds. What is loaded was written just before, so the system has it in memory, unless it is cold.
//! `ODEON_PYTHON` names the Python that has torch.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::unwrap_used, reason = "a benchmark that fails has no numbers")]
#![allow(clippy::disallowed_methods, reason = "it measures time as it is")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use bytes::Bytes;
use futures::future::{self, BoxFuture};
use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::parallel::{Llama, Part, Region};
use odeon_checkpoint::ranks::Within;
use odeon_checkpoint::stage::StageTime;
use odeon_checkpoint::{
    Buffers, Checkpointer, Dtype, Held, Load, Local, LocalTensor, MODEL, Options, Ranks,
    RanksError, Retention, Save, Storage, pool, within,
};
use odeon_mesh::mesh;

const RANKS: usize = 2;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).cloned()
    };
    let number = |flag: &str, default: usize| {
        value(flag)
            .and_then(|value| value.parse().ok())
            .unwrap_or(default)
    };
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    let mebibytes = number("--mebibytes", 512);
    let rounds = number("--rounds", 5).max(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.unwrap();
    let parent = value("--folder").map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::tempdir_in(parent).unwrap();
    let mut peer = if has("--no-peer") {
        None
    } else {
        Peer::start(mebibytes)
    };
    runtime.block_on(against(
        folder.path(),
        mebibytes,
        rounds,
        has("--stages"),
        peer.as_mut(),
    ));
    drop(peer);
    if !has("--no-plans") {
        runtime.block_on(plans(number("--ranks-max", 16_384)));
    }
}

/// Tensors of 4 MiB, as many as there is room for; what a rank has of them when they are cut along
/// a dimension.
fn local(mebibytes: usize, rank: usize, dim: usize) -> Local {
    let shape = vec![1024, 1024];
    let range = rank * 1024 / RANKS..(rank + 1) * 1024 / RANKS;
    let tensor = |at| LocalTensor {
        name: format!("layers.{at}.w"),
        dtype: Dtype::F32,
        shape: shape.clone(),
        held: Held::Region(Region::cut(&shape, dim, range.clone())),
    };
    let mut local = Local::default();
    local
        .add("actor", MODEL, (0..mebibytes / 4).map(tensor).collect())
        .unwrap();
    local
}

async fn against(
    folder: &Path,
    mebibytes: usize,
    rounds: usize,
    stages: bool,
    mut peer: Option<&mut Peer>,
) {
    let mut own = Own::new(folder, mebibytes, stages).await;
    let mut rows = Rows::default();
    // The first is not counted: it finds memory and threads.
    for round in 0..=rounds {
        rows.counts = round > 0;
        // Who comes first pays for what the disk has still to do.
        if round % 2 == 0 {
            own.take_turn(round as u64, &mut rows).await;
        }
        if let Some(peer) = peer.as_deref_mut() {
            peer.take_turn(&folder.join("torch"), &mut rows);
        }
        if round % 2 == 1 {
            own.take_turn(round as u64, &mut rows).await;
        }
    }
    let tensors = mebibytes / 4;
    println!(
        "{mebibytes} MiB in {tensors} tensors, {RANKS} ranks, medians of {rounds} rounds (lowest to \
         highest)"
    );
    rows.print(peer.map(|peer| peer.version.clone()));
}

/// Ranks of this process.
struct Own {
    place: PathBuf,
    ends: Vec<Checkpointer>,
    locals: Vec<Local>,
    sources: Vec<Arc<Vec<Vec<u8>>>>,
    /// Layouts and buffers to load into, for a cut along each of the two dimensions.
    targets: [(Vec<Local>, Vec<Arc<Buffers>>); 2],
    stages: bool,
}

impl Own {
    async fn new(folder: &Path, mebibytes: usize, stages: bool) -> Self {
        let place = folder.join("odeon");
        let storage = Storage::create(place.to_str().unwrap()).unwrap();
        let options = Options {
            retention: Retention {
                newest: 1,
                every: None,
            },
            threads: 1,
            reads: 2,
            ..Options::default()
        };
        let (mut ends, mut pools) = (vec![], vec![]);
        for rank in within(RANKS) {
            let pool = pool::Pool::new(pool::Heap);
            let end = Checkpointer::new(storage.clone(), Arc::new(rank), options);
            ends.push(end.with_pool(pool.clone()));
            pools.push(pool);
        }
        let locals =
            |dim| -> Vec<Local> { (0..RANKS).map(|rank| local(mebibytes, rank, dim)).collect() };
        let saved = locals(0);
        let planned = ends
            .iter_mut()
            .zip(&saved)
            .map(|(end, local)| end.plan_ahead(local));
        for (bytes, pool) in future::join_all(planned).await.into_iter().zip(&pools) {
            pool.reserve(bytes.unwrap()).unwrap();
        }
        let source = |rank: usize| {
            let bytes = |at: usize| vec![(at + rank) as u8; 1024 * 1024 * 4 / RANKS];
            Arc::new((0..mebibytes / 4).map(bytes).collect())
        };
        let buffers = |local: &Local| {
            // Memory that is there already, as torch has it.
            let buffers = local.tensors().map(|(.., tensor)| vec![1; tensor.bytes()]);
            Arc::new(Buffers::new(buffers.collect()))
        };
        let target = |dim| {
            let locals = locals(dim);
            let buffers = locals.iter().map(buffers).collect();
            (locals, buffers)
        };
        Self {
            place,
            ends,
            locals: saved,
            sources: (0..RANKS).map(source).collect(),
            targets: [0, 1].map(target),
            stages,
        }
    }

    async fn take_turn(&mut self, step: u64, rows: &mut Rows) {
        let stages = self.stages;
        let begun = Instant::now();
        let each = std::mem::take(&mut self.ends)
            .into_iter()
            .zip(&self.locals)
            .zip(&self.sources);
        let saves = each.map(|((mut end, local), source)| {
            let source = source.clone();
            let save = Save {
                step,
                local: local.clone(),
                ..Save::default()
            };
            tokio::spawn(async move {
                let begun = Instant::now();
                let saving = end.save(save, &*source).await.unwrap();
                let blocked = begun.elapsed().as_secs_f64();
                let saved = saving.wait().await.unwrap();
                if stages {
                    print_stages("save", &saved.stages);
                }
                (end, blocked)
            })
        });
        let mut most = 0.0;
        for saved in future::join_all(saves).await {
            let (end, blocked) = saved.unwrap();
            self.ends.push(end);
            most = f64::max(most, blocked);
        }
        rows.note("blocked", 0, most);
        rows.note("save", 0, begun.elapsed().as_secs_f64());
        for end in &mut self.ends {
            end.settle().await.unwrap();
        }
        for (dim, what) in LOADS {
            if what.ends_with("cold") {
                evict(&self.place);
            }
            let (locals, buffers) = &self.targets[dim];
            let begun = Instant::now();
            let each = self.ends.iter_mut().zip(locals).zip(buffers);
            let loads = each.map(|((end, local), buffers)| {
                let load = Load {
                    local: local.clone(),
                    ..Load::default()
                };
                end.load(load, buffers)
            });
            for loaded in future::join_all(loads).await {
                let loaded = loaded.unwrap();
                if stages {
                    print_stages(what, &loaded.stages);
                }
            }
            rows.note(what, 0, begun.elapsed().as_secs_f64());
        }
    }
}

/// The loads to measure: the dimension along which each cuts the tensors, and its name.
const LOADS: [(usize, &str); 4] = [
    (0, "load"),
    (1, "resharded load"),
    (0, "load, cold"),
    (1, "resharded, cold"),
];

/// Has the system forget what it has of files in memory.
fn evict(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            evict(&path);
            continue;
        }
        let of = format!("of={}", path.display());
        let args = [
            &of,
            "oflag=nocache",
            "conv=notrunc,fdatasync",
            "count=0",
            "status=none",
        ];
        assert!(Command::new("dd").args(args).status().unwrap().success());
    }
}

fn print_stages(what: &str, stages: &[StageTime]) {
    let stages = stages
        .iter()
        .map(|time| format!("{} {:.3}", time.stage, time.seconds));
    println!("{what}: {}", stages.collect::<Vec<_>>().join(", "));
}

/// Seconds by what was done, and by whom: Odeon, dcp.save, dcp.async_save.
#[derive(Default)]
struct Rows {
    counts: bool,
    rows: Vec<(&'static str, [Vec<f64>; 3])>,
}

impl Rows {
    fn note(&mut self, what: &'static str, by: usize, seconds: f64) {
        if !self.counts {
            return;
        }
        if !self.rows.iter().any(|(known, _)| *known == what) {
            self.rows.push((what, Default::default()));
        }
        for (known, rows) in &mut self.rows {
            if *known == what {
                rows[by].push(seconds);
            }
        }
    }

    fn print(mut self, torch: Option<String>) {
        if let Some(torch) = torch {
            println!("torch {torch}");
        }
        println!(
            "{:16} {:>26} {:>26} {:>26}",
            "seconds", "odeon", "dcp.save, dcp.load", "dcp.async_save"
        );
        for (what, rows) in &mut self.rows {
            let mut line = format!("{what:16}");
            let own = median(&mut rows[0]);
            for seconds in rows.iter_mut() {
                let of = median(seconds);
                let text = match (seconds.first(), seconds.last()) {
                    (Some(low), Some(high)) => {
                        format!("{of:.3} ({low:.3}-{high:.3}) {:.1}x", of / own)
                    }
                    _ => "-".into(),
                };
                line += &format!(" {text:>26}");
            }
            println!("{line}");
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Two processes with torch.
struct Peer {
    children: Vec<(Child, ChildStdin, BufReader<ChildStdout>)>,
    version: String,
}

impl Peer {
    fn start(mebibytes: usize) -> Option<Self> {
        let python = std::env::var("ODEON_PYTHON").unwrap_or_else(|_| "python3".into());
        let there = Command::new(&python)
            .args(["-c", "import torch"])
            .stderr(Stdio::null())
            .status();
        if !there.is_ok_and(|status| status.success()) {
            println!(
                "skipped: {python} has no torch, so there is nothing to compare with (ODEON_PYTHON)"
            );
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/torch_peer.py");
        let start = |rank: usize| {
            let mut child = Command::new(&python)
                .arg(&script)
                .args([rank, RANKS, port.into(), mebibytes].map(|number| number.to_string()))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
            (child, input, BufReader::new(output))
        };
        let mut peer = Self {
            children: (0..RANKS).map(start).collect(),
            version: String::new(),
        };
        for (.., output) in &mut peer.children {
            let mut line = String::new();
            while !line.starts_with("ready") {
                line.clear();
                assert!(
                    output.read_line(&mut line).unwrap() > 0,
                    "torch_peer.py ended"
                );
            }
            peer.version = line.trim_start_matches("ready ").trim().into();
        }
        Some(peer)
    }

    fn take_turn(&mut self, folder: &Path, rows: &mut Rows) {
        for (by, what) in [(2, "async"), (1, "save")] {
            let (blocked, took) = self.run(what, folder);
            rows.note("blocked", by, blocked);
            rows.note("save", by, took);
            if what == "save" {
                for (dim, row) in LOADS {
                    if row.ends_with("cold") {
                        evict(folder);
                    }
                    rows.note(row, 1, self.run(["load", "reshard"][dim], folder).1);
                }
            }
            std::fs::remove_dir_all(folder).unwrap();
        }
    }

    /// Seconds for which the slower rank was kept waiting, and seconds that it took in all.
    fn run(&mut self, what: &str, folder: &Path) -> (f64, f64) {
        for (_, input, _) in &mut self.children {
            writeln!(input, "{what} {}", folder.display()).unwrap();
        }
        let mut most = (0.0, 0.0);
        for (.., output) in &mut self.children {
            let numbers = loop {
                let mut line = String::new();
                assert!(
                    output.read_line(&mut line).unwrap() > 0,
                    "torch_peer.py ended in {what}"
                );
                let numbers: Vec<f64> = line
                    .split_whitespace()
                    .map_while(|word| word.parse().ok())
                    .collect();
                if let [blocked, took] = *numbers {
                    break (blocked, took);
                }
            };
            most = (f64::max(most.0, numbers.0), f64::max(most.1, numbers.1));
        }
        most
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        for (child, ..) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A model of 72B parameters over 8 stages of 8 tensor ranks, and its optimizer over all ranks.
async fn plans(most: usize) {
    let model = Llama {
        layers: 80,
        hidden: 8192,
        intermediate: 29_568,
        block: LayerBlock::default(),
        heads: 64,
        kv_heads: 8,
        head_width: 128,
        vocabulary: 152_064,
        element_bytes: 2,
        tied: false,
        qkv_bias: true,
        out_bias: false,
        mlp_bias: false,
        head_norms: false,
        value_head: false,
    };
    let spec = model.spec().unwrap();
    println!(
        "planning a save of {} tensors, all ranks on this machine: seconds anew and from the cache, \
         and what rank 0 hears anew",
        spec.tensors().len()
    );
    println!(
        "{:>8} {:>6} {:>10} {:>10} {:>10} {:>10}",
        "ranks", "", "anew", "cached", "messages", "MiB"
    );
    for ranks in [64, 512, 4096, 16_384]
        .into_iter()
        .filter(|ranks| *ranks <= most)
    {
        let layout = mesh! { dp: ranks / 64, pp: 8, tp: 8 };
        let locals: Vec<Local> = (0..ranks)
            .map(|rank| {
                let mut local = Local::default();
                let shards = spec.shards_on(&layout, rank).unwrap();
                local
                    .add_shards("actor", MODEL, &spec, &shards, Dtype::BF16)
                    .unwrap();
                let flat = spec.flat(Part::new(rank, ranks).unwrap());
                local
                    .add_shards("actor", "exp_avg", &spec, &flat, Dtype::F32)
                    .unwrap();
                local
            })
            .collect();
        for (name, node_ranks) in [("tree", 8), ("flat", ranks)] {
            let mut line = format!("{ranks:>8} {name:>6}");
            let options = Options {
                node_ranks,
                ..Options::default()
            };
            let storage = Storage::memory();
            let heard = Arc::new(Heard::default());
            let ends = within(ranks).into_iter().map(|ranks| {
                let heard = heard.clone();
                Checkpointer::new(storage.clone(), Arc::new(Hearing { ranks, heard }), options)
            });
            let mut ends: Vec<Checkpointer> = ends.collect();
            let mut anew = (0, 0);
            for _ in 0..2 {
                let begun = Instant::now();
                let each = ends.into_iter().zip(locals.iter().cloned());
                let all = each.map(|(mut end, local)| {
                    tokio::spawn(async move {
                        end.plan_ahead(&local).await.unwrap();
                        end
                    })
                });
                let all = future::join_all(all).await;
                line += &format!(" {:>10.3}", begun.elapsed().as_secs_f64());
                ends = all.into_iter().map(Result::unwrap).collect();
                if anew == (0, 0) {
                    anew = (heard.messages.load(Relaxed), heard.bytes.load(Relaxed));
                }
            }
            let (messages, bytes) = (anew.0, anew.1 as f64 / f64::from(1 << 20));
            println!("{line} {messages:>10} {bytes:>10.2}");
        }
    }
}

/// Messages and bytes that rank 0 has received.
#[derive(Debug, Default)]
struct Heard {
    messages: AtomicUsize,
    bytes: AtomicUsize,
}

/// A rank that counts it.
#[derive(Debug)]
struct Hearing {
    ranks: Within,
    heard: Arc<Heard>,
}

impl Ranks for Hearing {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn ranks(&self) -> usize {
        self.ranks.ranks()
    }

    fn send(&self, to: usize, bytes: Bytes) -> BoxFuture<'_, Result<(), RanksError>> {
        if to == 0 {
            self.heard.messages.fetch_add(1, Relaxed);
            self.heard.bytes.fetch_add(bytes.len(), Relaxed);
        }
        self.ranks.send(to, bytes)
    }

    fn receive(&self, from: usize) -> BoxFuture<'_, Result<Bytes, RanksError>> {
        self.ranks.receive(from)
    }
}
