//! Saving and loading, beside torch.distributed.checkpoint where it is installed, and what planning
//! costs with many ranks.
//!
//! `cargo bench -p odeon-checkpoint --bench against_torch -- [--mebibytes N] [--rounds N]
//! [--folder F] [--no-peer] [--no-plans] [--ranks-max N]`
//!
//! Two ranks have half of the rows of each tensor. Both sides write the same bytes to the same disk,
//! with `fsync`, and take turns, so that a slow minute hits both; numbers are medians over the
//! rounds. What is loaded was written just before, so the system has it in memory. `ODEON_PYTHON`
//! names the Python that has torch.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::unwrap_used, reason = "a benchmark that fails has no numbers")]
#![allow(clippy::disallowed_methods, reason = "it measures time as it is")]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use futures::future;
use odeon_algorithms::parallel::{Layout, Llama, Part, Region};
use odeon_checkpoint::{
    Buffers, Checkpointer, Dtype, Held, Load, Local, LocalTensor, MODEL, Options, Retention, Save,
    Storage, pool, within,
};

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
    runtime.block_on(against(folder.path(), mebibytes, rounds, peer.as_mut()));
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

async fn against(folder: &Path, mebibytes: usize, rounds: usize, mut peer: Option<&mut Peer>) {
    let storage = Storage::create(folder.join("odeon").to_str().unwrap()).unwrap();
    let options = Options {
        retention: Retention {
            newest: 1,
            every: None,
        },
        threads: 1,
        reads: 2,
        ..Options::default()
    };
    let mut ends = vec![];
    let mut pools = vec![];
    for rank in within(RANKS) {
        let pool = pool::Pool::new(pool::Heap);
        ends.push(
            Checkpointer::new(storage.clone(), Arc::new(rank), options).with_pool(pool.clone()),
        );
        pools.push(pool);
    }
    let locals: Vec<Local> = (0..RANKS).map(|rank| local(mebibytes, rank, 0)).collect();
    let planned = future::join_all(
        ends.iter_mut()
            .zip(&locals)
            .map(|(end, local)| end.plan_ahead(local)),
    );
    for (bytes, pool) in planned.await.into_iter().zip(&pools) {
        pool.reserve(bytes.unwrap()).unwrap();
    }
    let source = |rank: usize| -> Vec<Vec<u8>> {
        let bytes = |at: usize| vec![(at + rank) as u8; 1024 * 1024 * 4 / RANKS];
        (0..mebibytes / 4).map(bytes).collect()
    };
    let sources: Vec<_> = (0..RANKS).map(source).map(Arc::new).collect();
    let mut target = [0, 1].map(|dim| {
        let locals: Vec<Local> = (0..RANKS).map(|rank| local(mebibytes, rank, dim)).collect();
        let buffers: Vec<Arc<Buffers>> = sources
            .iter()
            .map(|sizes| {
                let sizes = sizes.iter().map(|bytes| vec![1; bytes.len()]);
                Arc::new(Buffers::new(sizes.collect()))
            })
            .collect();
        (locals, buffers)
    });

    let mut rows = Rows::default();
    // The first is not counted: it finds memory and threads.
    for round in 0..=rounds {
        let count = round > 0;
        let begun = Instant::now();
        let saves =
            ends.into_iter()
                .zip(&locals)
                .zip(&sources)
                .map(|((mut end, local), source)| {
                    let source = source.clone();
                    let save = Save {
                        step: round as u64,
                        local: local.clone(),
                        ..Save::default()
                    };
                    tokio::spawn(async move {
                        let begun = Instant::now();
                        let saving = end.save(save, &*source).await.unwrap();
                        let blocked = begun.elapsed().as_secs_f64();
                        saving.wait().await.unwrap();
                        (end, blocked)
                    })
                });
        let saved = future::join_all(saves)
            .await
            .into_iter()
            .map(Result::unwrap);
        let blocked: Vec<f64>;
        (ends, blocked) = saved.unzip();
        let took = begun.elapsed().as_secs_f64();
        rows.note(count, "blocked", 0, blocked.into_iter().fold(0.0, f64::max));
        rows.note(count, "save", 0, took);
        for (dim, (locals, buffers)) in target.iter_mut().enumerate() {
            let begun = Instant::now();
            let loads = ends
                .iter_mut()
                .zip(locals)
                .zip(buffers)
                .map(|((end, local), buffers)| {
                    let load = Load {
                        local: local.clone(),
                        ..Load::default()
                    };
                    end.load(load, buffers)
                });
            for loaded in future::join_all(loads).await {
                loaded.unwrap();
            }
            rows.note(
                count,
                ["load", "resharded load"][dim],
                0,
                begun.elapsed().as_secs_f64(),
            );
        }
        if let Some(peer) = peer.as_deref_mut() {
            let to = folder.join(format!("torch-{round}"));
            let (blocked, took) = peer.run("async", &to);
            rows.note(count, "blocked", 2, blocked);
            rows.note(count, "save", 2, took);
            std::fs::remove_dir_all(&to).unwrap();
            let (blocked, took) = peer.run("save", &to);
            rows.note(count, "blocked", 1, blocked);
            rows.note(count, "save", 1, took);
            rows.note(count, "load", 1, peer.run("load", &to).1);
            rows.note(count, "resharded load", 1, peer.run("reshard", &to).1);
            std::fs::remove_dir_all(&to).unwrap();
        }
    }
    println!(
        "{mebibytes} MiB in {} tensors, {RANKS} ranks, medians of {rounds} rounds (lowest to highest)",
        mebibytes / 4
    );
    rows.print(peer.map(|peer| peer.version.clone()));
}

/// Seconds by what was done, and by whom: Odeon, dcp.save, dcp.async_save.
#[derive(Default)]
struct Rows(Vec<(&'static str, [Vec<f64>; 3])>);

impl Rows {
    fn note(&mut self, count: bool, what: &'static str, by: usize, seconds: f64) {
        if !count {
            return;
        }
        if !self.0.iter().any(|(known, _)| *known == what) {
            self.0.push((what, Default::default()));
        }
        for (known, rows) in &mut self.0 {
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
        for (what, rows) in &mut self.0 {
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

    /// How long it was kept waiting, and how long it took, of the slower rank.
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
        heads: 64,
        kv_heads: 8,
        head_width: 128,
        vocabulary: 152_064,
        element_bytes: 2,
        tied: false,
        qkv_bias: true,
        head_norms: false,
        value_head: false,
    };
    let spec = model.spec().unwrap();
    println!(
        "planning a save of {} tensors: seconds anew and from the cache",
        spec.tensors().len()
    );
    println!(
        "{:>8} {:>10} {:>10} {:>10} {:>10}",
        "ranks", "tree", "cached", "flat", "cached"
    );
    for ranks in [64, 512, 4096, 16_384]
        .into_iter()
        .filter(|ranks| *ranks <= most)
    {
        let layout = Layout::new(8, 8, ranks / 64).unwrap();
        let locals: Vec<Local> = (0..ranks)
            .map(|rank| {
                let mut local = Local::default();
                let shards = layout.shards(&spec, rank).unwrap();
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
        let mut line = format!("{ranks:>8}");
        for node_ranks in [8, ranks] {
            let options = Options {
                node_ranks,
                ..Options::default()
            };
            let ends = within(ranks).into_iter();
            let storage = Storage::memory();
            let mut ends: Vec<Checkpointer> = ends
                .map(|rank| Checkpointer::new(storage.clone(), Arc::new(rank), options))
                .collect();
            for _ in 0..2 {
                let begun = Instant::now();
                let all = ends
                    .into_iter()
                    .zip(locals.iter().cloned())
                    .map(|(mut end, local)| {
                        tokio::spawn(async move {
                            end.plan_ahead(&local).await.unwrap();
                            end
                        })
                    });
                let all = future::join_all(all).await;
                line += &format!(" {:>10.3}", begun.elapsed().as_secs_f64());
                ends = all.into_iter().map(Result::unwrap).collect();
            }
        }
        println!("{line}");
    }
}
