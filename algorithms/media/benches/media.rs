//! Measurements of pictures and sound beside Pillow, torchvision, torchaudio and transformers, by processor time on one thread.
//!
//! `cargo bench -p odeon-media --bench media -- [--rounds N] [--only TEXT]`
//!
//! Both take turns over the same 32 photographs, or a minute of the same sound; a number is the median over the rounds, and a ratio
//! that of the ratios of each round. `ODEON_PYTHON` names the Python that has pillow, torch, torchvision, torchaudio and
//! transformers, and `ODEON_PYTHON_SIMD` one with pillow-simd; a peer that is not found is left out by name. Photographs are
//! `images/cc12m-train-0000.tar` of `ODEON_ORACLES`, or of `../shared/oracles`.

#![allow(clippy::print_stdout, reason = "a benchmark prints its numbers")]
#![allow(clippy::unwrap_used, reason = "a benchmark that fails has no numbers")]

use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use odeon_media::{PictureLimits, PictureProcessor, Transparency, WhisperFeatures, decode};
use rustix::time::{ClockId, clock_gettime};

/// Seconds of processor time that this process has used.
fn processor() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn seconds(run: impl FnOnce()) -> f64 {
    let began = processor();
    run();
    processor() - began
}

/// The photographs in a tar file.
fn photographs(tar: &Path) -> Vec<Vec<u8>> {
    let all = fs::read(tar).unwrap();
    let (mut at, mut found) = (0, vec![]);
    while let Some(header) = all.get(at..at + 512).filter(|header| header[0] != 0) {
        let size = std::str::from_utf8(&header[124..135]).unwrap();
        let size = usize::from_str_radix(size.trim_matches(['\0', ' ']), 8).unwrap();
        let name = header[..100].split(|byte| *byte == 0).next().unwrap();
        if name.ends_with(b".jpg") {
            found.push(all[at + 512..at + 512 + size].to_vec());
        }
        at += 512 + size.div_ceil(512) * 512;
    }
    found
}

struct Peer {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start(python: &str, tar: &Path) -> Option<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/media_peer.py");
        let mut command = Command::new(python);
        command
            .arg(script)
            .arg(tar)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
            .env("OMP_NUM_THREADS", "1")
            .env("MKL_NUM_THREADS", "1")
            .stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let out = BufReader::new(child.stdout.take()?);
        Some(Self { child, out })
    }

    /// Seconds of processor time, or why there are none.
    fn run(&mut self, what: &str) -> Result<f64, String> {
        let gone = |_| "its process has ended".to_owned();
        let input = self.child.stdin.as_mut().unwrap();
        writeln!(input, "{what}").map_err(gone)?;
        let mut line = String::new();
        self.out.read_line(&mut line).map_err(gone)?;
        let line = line.trim();
        line.parse().map_err(|_| line.to_owned())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// One of ours beside peers, each asked for in its words.
struct Case<'a> {
    name: &'a str,
    /// Things in a run.
    count: f64,
    run: &'a dyn Fn(),
    peers: &'a [(&'a str, bool, &'a str)],
}

impl Case<'_> {
    fn measure(&self, rounds: usize, peers: &mut [Option<Peer>; 2]) {
        (self.run)();
        for (name, simd, words) in self.peers {
            let Some(peer) = &mut peers[usize::from(*simd)] else {
                println!("{}: {name}: skipped, no such Python", self.name);
                continue;
            };
            if let Err(why) = peer.run(words) {
                println!("{}: {name}: skipped, {why}", self.name);
                continue;
            }
            let (mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![]);
            for _ in 0..rounds {
                let our = seconds(self.run);
                let their = peer.run(words).unwrap();
                ours.push(our / self.count * 1e3);
                theirs.push(their / self.count * 1e3);
                ratios.push(their / our);
            }
            let (least, most) = ratios
                .iter()
                .fold((f64::MAX, 0.0_f64), |(low, high), ratio| {
                    (low.min(*ratio), high.max(*ratio))
                });
            println!(
                "{}: ours {:.2} ms, {name} {:.2} ms: {:.2} x ({least:.2} to {most:.2})",
                self.name,
                median(&mut ours),
                median(&mut theirs),
                median(&mut ratios),
            );
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag)?;
        args.get(at + 1).cloned()
    };
    let rounds = after("--rounds")
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(9);
    let only = after("--only").unwrap_or_default();
    let oracles = std::env::var_os("ODEON_ORACLES").map(PathBuf::from);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/oracles");
    let tar = oracles.unwrap_or(root).join("images/cc12m-train-0000.tar");
    if !tar.exists() {
        println!("skipped: there is no {}", tar.display());
        return;
    }
    let photos = photographs(&tar);
    let python = |name, default: Option<&str>| {
        let python = std::env::var(name).ok();
        let python = python.or_else(|| default.map(str::to_owned))?;
        Peer::start(&python, &tar)
    };
    let mut peers = [
        python("ODEON_PYTHON", Some("python3")),
        python("ODEON_PYTHON_SIMD", None),
    ];

    let limits = PictureLimits::default();
    let decoded = |photo: &[u8]| decode(photo, &limits, Transparency::White).unwrap();
    let qwen = PictureProcessor::qwen2_5_vl();
    let features = WhisperFeatures::new(80).unwrap();
    let sound: Vec<f32> = (0..480_000)
        .map(|n| {
            let t = f64::from(n) / 16_000.0;
            let noise = f64::from((n as u32).wrapping_mul(2_654_435_761) >> 16) / 65_536.0 - 0.5;
            (0.3 * ((200.0 + 90.0 * t) * t * std::f64::consts::TAU).sin() + 0.1 * noise) as f32
        })
        .collect();
    let decoding = || {
        for photo in &photos {
            black_box(decoded(photo));
        }
    };
    let cutting = || {
        for photo in &photos {
            let mut numbers = vec![];
            qwen.append(&decoded(photo), &mut numbers).unwrap();
            black_box(numbers);
        }
    };
    let hearing = || {
        for _ in 0..2 {
            black_box(features.of_30_seconds(&sound));
        }
    };
    let count = photos.len() as f64;
    let cases = [
        Case {
            name: "a photograph decoded",
            count,
            run: &decoding,
            peers: &[
                ("Pillow", false, "decode pillow"),
                ("Pillow-SIMD", true, "decode pillow"),
                ("torchvision", false, "decode torchvision"),
            ],
        },
        Case {
            name: "a photograph decoded, resized and cut for Qwen2.5-VL",
            count,
            run: &cutting,
            peers: &[
                ("Pillow and numpy", false, "cut pillow"),
                ("Pillow-SIMD and numpy", true, "cut pillow"),
                ("torchvision", false, "cut torchvision"),
                ("transformers", false, "cut processor"),
            ],
        },
        Case {
            name: "log-mel features of 30 seconds",
            count: 2.0,
            run: &hearing,
            peers: &[
                ("torchaudio", false, "features torchaudio"),
                ("transformers", false, "features whisper"),
            ],
        },
    ];
    println!("{} photographs, {rounds} rounds", photos.len());
    for case in cases.iter().filter(|case| case.name.contains(&only)) {
        case.measure(rounds, &mut peers);
    }
}
