//! All-reduce between processes beside a copy of the same bytes in one: µs and GB/s by size.
//!
//! The other ranks are this program run again. Each figure is the best mean of several repetitions.

use std::env;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use odeon_collective::{Algorithm, Collective, Communicator, Membership, Reduce, Topology};
use odeon_shm::{Gang, GangName, GangOptions, Member};

const ROLE: &str = "ODEON_COLLECTIVES_BENCH";
const SIZES: [(usize, usize); 4] = [
    (1 << 10, 4000),
    (64 << 10, 2000),
    (1 << 20, 300),
    (64 << 20, 8),
];

fn main() -> io::Result<()> {
    if let Ok(role) = env::var(ROLE) {
        let (rank, name) = role.split_once(' ').expect("a rank and a name");
        measure(
            rank.parse().expect("a rank"),
            &serde_json::from_str(name).expect("a name"),
        );
        return Ok(());
    }
    let mut out = io::stdout();
    writeln!(
        out,
        "{:>10} {:>22} {:>12} {:>10}",
        "bytes", "", "µs", "GB/s"
    )?;
    for (bytes, times) in SIZES {
        let source = vec![1.0f32; bytes / 4];
        let mut target = vec![0.0f32; bytes / 4];
        let seconds = best(times, || {
            target.copy_from_slice(std::hint::black_box(&source));
        });
        report(bytes, "copy in one process", seconds);
    }
    for world in [2, 4] {
        let mut options = GangOptions::default();
        if let Ok(kib) = env::var("WINDOW_KIB") {
            options.window_bytes = kib.parse::<usize>().expect("a number") << 10;
        }
        let gang = Gang::create(world, options)?;
        let name = serde_json::to_string(&gang.name()).expect("a name is plain");
        let others: io::Result<Vec<Child>> = (1..world)
            .map(|rank| {
                Command::new(env::current_exe()?)
                    .env(ROLE, format!("{rank} {name}"))
                    .stdout(Stdio::null())
                    .spawn()
            })
            .collect();
        measure(0, &gang.name());
        for mut other in others? {
            other.wait()?;
        }
    }
    Ok(())
}

fn measure(rank: usize, name: &GangName) {
    let world = name.world as usize;
    let topology = Topology::one_node(world);
    let membership = Membership {
        rank,
        generation: 1,
        gang: name.gang,
        topology,
    };
    let member = Member::join(name, membership).expect("the gang is there");
    let mut comm = Communicator::new(member);
    comm.set_deadline(Duration::from_secs(60));
    for (bytes, times) in SIZES {
        let mut data = vec![0.0f32; bytes / 4];
        let seconds = best(times, || {
            comm.all_reduce(&mut data, Reduce::Sum)
                .expect("all are there");
        });
        if rank == 0 {
            report(bytes, &format!("windows, {world} ranks"), seconds);
        }
    }
    // What the same memory gives as queues between neighbours.
    let mut comm = comm.with_algorithm(Algorithm::Ring);
    for (bytes, times) in SIZES {
        let mut data = vec![0.0f32; bytes / 4];
        let times = times.div_ceil(4);
        let seconds = best(times, || {
            comm.all_reduce(&mut data, Reduce::Sum)
                .expect("all are there");
        });
        if rank == 0 {
            report(bytes, &format!("queues in a ring, {world} ranks"), seconds);
        }
    }
    comm.barrier().expect("all are there");
}

#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn best(times: usize, mut body: impl FnMut()) -> f64 {
    for _ in 0..times.div_ceil(10) {
        body();
    }
    (0..5)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..times {
                body();
            }
            begun.elapsed().as_secs_f64() / times as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn report(bytes: usize, what: &str, seconds: f64) {
    // A reader that has gone away needs no figures.
    let _ = writeln!(
        io::stdout(),
        "{bytes:>10} {what:>28} {:>10.1} {:>8.2}",
        seconds * 1e6,
        bytes as f64 / seconds / 1e9
    );
}
