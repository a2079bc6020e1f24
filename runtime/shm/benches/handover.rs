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

use divan::Bencher;
use divan::counter::BytesCount;
use odeon_shm::{Arena, ArenaOptions, Mapper, Region, RegionName};

const ROLE: &str = "ODEON_SHM_BENCH_ROLE";
const MIB: usize = 1 << 20;
const SIZES: [usize; 3] = [MIB, 64 * MIB, 256 * MIB];

fn main() -> io::Result<()> {
    if env::var_os(ROLE).is_some() {
        return reader();
    }
    divan::main();
    Ok(())
}

/// A copy between private buffers, and into the arena, warm and fresh.
#[divan::bench_group(sample_count = 20, sample_size = 1)]
mod copy {
    use super::*;

    #[divan::bench(args = SIZES)]
    fn memcpy(bencher: Bencher<'_, '_>, len: usize) {
        let (source, mut target) = (vec![7u8; len], vec![1u8; len]);
        bencher
            .counter(BytesCount::new(len))
            .bench_local(|| target.copy_from_slice(black_box(&source)));
    }

    #[divan::bench(args = SIZES)]
    fn arena_warm(bencher: Bencher<'_, '_>, len: usize) {
        let (source, warm) = (vec![7u8; len], arena(1 << 30));
        warm.warm_up(len).expect("memory for the arena");
        copies(bencher, &warm, &source);
    }

    #[divan::bench(args = SIZES)]
    fn arena_fresh(bencher: Bencher<'_, '_>, len: usize) {
        copies(bencher, &arena(0), &vec![7u8; len]);
    }

    fn copies(bencher: Bencher<'_, '_>, arena: &Arena, source: &[u8]) {
        bencher
            .counter(BytesCount::of_slice(source))
            .bench_local(|| drop(copy_in(arena, black_box(source))));
    }
}

/// One region, one reader: how long until the other process has it, and has read it.
#[divan::bench_group(sample_count = 20)]
mod hand_over {
    use super::*;

    /// A region, and the arena that it lies in.
    fn region(len: usize) -> (Arena, Region) {
        let arena = arena(1 << 30);
        let region = copy_in(&arena, &vec![7u8; len]);
        (arena, region)
    }

    #[divan::bench(args = SIZES)]
    fn map_already_mapped(bencher: Bencher<'_, '_>, len: usize) {
        let (_arena, region) = region(len);
        let (name, mapper) = (region.name(), Mapper::new());
        let _mapped = mapper.map(&name);
        bencher.bench_local(|| drop(mapper.map(&name)));
    }

    #[divan::bench(args = SIZES)]
    fn map_first_touch(bencher: Bencher<'_, '_>, len: usize) {
        let (_arena, region) = region(len);
        let name = region.name();
        bencher.bench_local(|| drop(Mapper::new().map(&name)));
    }

    #[divan::bench(args = SIZES)]
    fn process_ping(bencher: Bencher<'_, '_>, len: usize) {
        asked(bencher, "ping", len);
    }

    #[divan::bench(args = SIZES)]
    fn process_map(bencher: Bencher<'_, '_>, len: usize) {
        asked(bencher, "map", len);
    }

    #[divan::bench(args = SIZES)]
    fn process_touch_pages(bencher: Bencher<'_, '_>, len: usize) {
        asked(bencher, "touch", len);
    }

    #[divan::bench(args = SIZES)]
    fn process_read_all(bencher: Bencher<'_, '_>, len: usize) {
        asked(bencher.counter(BytesCount::new(len)), "sum", len);
    }

    #[divan::bench(args = SIZES)]
    fn read_all_here(bencher: Bencher<'_, '_>, len: usize) {
        let (_arena, region) = region(len);
        bencher
            .counter(BytesCount::new(len))
            .bench_local(|| sum(black_box(&region)));
    }

    fn asked(bencher: Bencher<'_, '_>, what: &str, len: usize) {
        let (_arena, region) = region(len);
        let (name, mut reader) = (region.name(), Reader::spawn());
        reader.ask("map", &name);
        bencher.bench_local(|| reader.ask(what, &name));
    }
}

/// The same 256 MiB to four readers at once; `fresh` maps it anew each time.
#[divan::bench(sample_count = 20, args = ["map", "touch", "sum", "fresh"])]
fn four_readers(bencher: Bencher<'_, '_>, what: &str) {
    let arena = arena(1 << 30);
    let region = copy_in(&arena, &vec![7u8; 256 * MIB]);
    let name = region.name();
    let mut readers: Vec<Reader> = (0..4).map(|_| Reader::spawn()).collect();
    readers
        .iter_mut()
        .for_each(|reader| reader.ask("map", &name));
    bencher.bench_local(|| {
        readers
            .iter_mut()
            .for_each(|reader| reader.send(what, &name));
        readers.iter_mut().for_each(Reader::wait);
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
