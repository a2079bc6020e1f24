//! Costs of giving bytes to another process: floors, copy-in, hand-over, reading.
//!
//! The readers are this program run again; parent and child talk by lines over pipes, so each
//! hand-over between processes includes a round trip of two wake-ups, measured alone as `ping`.

use std::{
    env,
    hint::black_box,
    io::{self, BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use criterion::{Criterion, Throughput, criterion_group};
use odeon_shm::{Arena, ArenaOptions, Mapper, Region, RegionName};

const ROLE: &str = "ODEON_SHM_BENCH_ROLE";
const MIB: usize = 1 << 20;
const SIZES: [usize; 3] = [MIB, 64 * MIB, 256 * MIB];

criterion_group!(benches, copy, hand_over, four_readers);

fn main() -> io::Result<()> {
    if env::var_os(ROLE).is_some() {
        return reader();
    }
    benches();
    Criterion::default().configure_from_args().final_summary();
    Ok(())
}

/// memcpy between private buffers against copying into the arena, warm and fresh.
fn copy(c: &mut Criterion) {
    for len in SIZES {
        let mut group = c.benchmark_group(format!("copy/{}MiB", len / MIB));
        group
            .throughput(Throughput::Bytes(len as u64))
            .sample_size(20);
        let source = vec![7u8; len];

        let mut target = vec![1u8; len];
        group.bench_function("memcpy", |b| {
            b.iter(|| target.copy_from_slice(black_box(&source)));
        });
        drop(target);

        let warm = arena(1 << 30);
        warm.warm_up(len).expect("memory for the arena");
        group.bench_function("arena warm", |b| {
            b.iter(|| copy_in(&warm, black_box(&source)));
        });

        let cold = arena(0);
        group.bench_function("arena fresh", |b| {
            b.iter(|| copy_in(&cold, black_box(&source)));
        });
    }
}

/// One region, one reader: how long until the other process has it, and has read it.
fn hand_over(c: &mut Criterion) {
    let arena = arena(1 << 30);
    let mut reader = Reader::spawn();
    for len in SIZES {
        let mut group = c.benchmark_group(format!("hand-over/{}MiB", len / MIB));
        group.sample_size(20);
        let region = copy_in(&arena, &vec![7u8; len]);
        let name = region.name();
        let mapper = Mapper::new();
        group.bench_function("map, already mapped", |b| b.iter(|| mapper.map(&name)));
        group.bench_function("map, first touch", |b| b.iter(|| Mapper::new().map(&name)));
        group.bench_function("process: ping", |b| b.iter(|| reader.ask("ping", &name)));
        reader.ask("map", &name);
        group.bench_function("process: map", |b| b.iter(|| reader.ask("map", &name)));
        group.bench_function("process: touch pages", |b| {
            b.iter(|| reader.ask("touch", &name));
        });
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function("process: read all", |b| b.iter(|| reader.ask("sum", &name)));
        group.bench_function("read all here", |b| b.iter(|| sum(black_box(&region))));
    }
}

/// The same 256 MiB to four readers at once.
fn four_readers(c: &mut Criterion) {
    let mut group = c.benchmark_group("four readers/256MiB");
    group.sample_size(20);
    let arena = arena(1 << 30);
    let region = copy_in(&arena, &vec![7u8; 256 * MIB]);
    let name = region.name();
    let mut readers: Vec<Reader> = (0..4).map(|_| Reader::spawn()).collect();
    for what in ["map", "touch", "sum"] {
        readers
            .iter_mut()
            .for_each(|reader| reader.ask(what, &name));
        group.bench_function(what, |b| {
            b.iter(|| {
                readers
                    .iter_mut()
                    .for_each(|reader| reader.send(what, &name));
                readers.iter_mut().for_each(Reader::wait);
            });
        });
    }
    group.bench_function("fresh: map and touch", |b| {
        b.iter(|| {
            readers
                .iter_mut()
                .for_each(|reader| reader.send("fresh", &name));
            readers.iter_mut().for_each(Reader::wait);
        });
    });
}

fn arena(warm_bytes: u64) -> Arena {
    Arena::new(ArenaOptions {
        warm_bytes,
        ..ArenaOptions::default()
    })
}

fn copy_in(arena: &Arena, bytes: &[u8]) -> Region {
    arena.copy_in(bytes).expect("the quota holds one region")
}

struct Reader {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Reader {
    fn spawn() -> Self {
        let mut child = Command::new(env::current_exe().expect("own path"))
            .env(ROLE, "reader")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a second process");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            stdin,
            stdout,
        }
    }

    fn ask(&mut self, what: &str, name: &RegionName) {
        self.send(what, name);
        self.wait();
    }

    fn send(&mut self, what: &str, name: &RegionName) {
        let name = serde_json::to_string(name).expect("plain numbers");
        self.stdin
            .write_all(format!("{what} {name}\n").as_bytes())
            .expect("a living reader");
    }

    fn wait(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a living reader");
        assert_eq!(line, "done\n");
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn reader() -> io::Result<()> {
    let mapper = Mapper::new();
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (what, name) = line.split_once(' ').ok_or(io::ErrorKind::InvalidData)?;
        let name: RegionName = serde_json::from_str(name)?;
        match what {
            "map" => drop(black_box(mapper.map(&name).map_err(io::Error::other)?)),
            "touch" => drop(touch(&mapper.map(&name).map_err(io::Error::other)?)),
            "sum" => drop(sum(&mapper.map(&name).map_err(io::Error::other)?)),
            "fresh" => drop(touch(&Mapper::new().map(&name).map_err(io::Error::other)?)),
            _ => {}
        }
        io::stdout().write_all(b"done\n")?;
    }
    Ok(())
}

/// Reads one byte of each page.
fn touch(bytes: &[u8]) -> u64 {
    black_box(
        bytes
            .iter()
            .step_by(4096)
            .map(|&byte| u64::from(byte))
            .sum(),
    )
}

/// Reads everything, at the speed of memory.
fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    black_box(
        words
            .iter()
            .fold(0, |sum, word| u64::from_le_bytes(*word).wrapping_add(sum)),
    )
}
