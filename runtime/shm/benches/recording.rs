//! Costs of recording collectives: the same steps with and without, in turns, in two processes.
//!
//! A step is some work and eight all-reduces. Told are medians over all turns, of pairs of steps one behind the other.
//! The other rank is this program run again.

use std::env;
use std::hint::black_box;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use odeon_collective::{
    Collective, Communicator, FlowLabel, FlowMember, FlowPlace, Membership, Reduce, Topology,
};
use odeon_shm::{FlowLog, Gang, GangName, GangOptions, Member};

const ROLE: &str = "ODEON_RECORDING_BENCH";
const CALLS: usize = 8;
/// Bytes of a call, work of a step, and pairs of steps.
const CASES: [(usize, Duration, usize); 4] = [
    (1 << 10, Duration::ZERO, 4_000),
    (64 << 10, Duration::ZERO, 2_000),
    (64 << 10, Duration::from_millis(2), 1_000),
    (4 << 20, Duration::from_millis(10), 60),
];

fn main() -> io::Result<()> {
    if let Ok(role) = env::var(ROLE) {
        measure(1, &serde_json::from_str(&role)?)?;
        return Ok(());
    }
    let gangs = [(); 2].map(|()| Gang::create(2, GangOptions::default()));
    let [plain, recorded] = gangs;
    let (plain, recorded) = (plain?, recorded?);
    let names = [plain.name(), recorded.name()];
    let mut other = Command::new(env::current_exe()?)
        .env(ROLE, serde_json::to_string(&names)?)
        .stdout(Stdio::null())
        .spawn()?;
    measure(0, &names)?;
    other.wait()?;
    Ok(())
}

fn join(rank: usize, name: &GangName) -> Communicator<Member> {
    let membership = Membership {
        rank,
        generation: 1,
        gang: name.gang,
        topology: Topology::one_node(2),
    };
    Communicator::new(Member::join(name, membership).expect("a place"))
}

fn measure(rank: usize, names: &[GangName; 2]) -> io::Result<()> {
    let log = FlowLog::create()?;
    let place = FlowPlace {
        member: FlowMember::default(),
        group: 1,
        label: FlowLabel::new("dp"),
        rank: rank as u32,
        world: 2,
    };
    let writer = log.writer(place).expect("a slot");
    let mut comms = [
        join(rank, &names[0]),
        join(rank, &names[1]).with_flows(writer),
    ];
    let mut out = io::stdout();
    writeln!(
        out,
        "{:>10} {:>10} {:>12} {:>12} {:>12} {:>10}",
        "bytes", "work ms", "plain us", "recorded us", "ns a call", "of a step"
    )?;
    for (bytes, work, pairs) in CASES {
        let mut data = vec![1.0f32; bytes / 4];
        let (mut plain, mut recorded, mut apart) = (vec![], vec![], vec![]);
        for pair in 0..pairs {
            let mut took = [0.0; 2];
            // Each is the first of a pair as often as the other.
            for turn in 0..2 {
                let which = (pair + turn) % 2;
                took[which] = step(&mut comms[which], &mut data, work);
            }
            plain.push(took[0]);
            recorded.push(took[1]);
            apart.push(took[1] - took[0]);
        }
        let (plain, recorded, apart) = (median(plain), median(recorded), median(apart));
        writeln!(
            out,
            "{bytes:>10} {:>10.1} {:>12.2} {:>12.2} {:>12.0} {:>9.3}%",
            work.as_secs_f64() * 1e3,
            plain * 1e6,
            recorded * 1e6,
            apart * 1e9 / CALLS as f64,
            100.0 * apart / plain
        )?;
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "a measurement of real time")]
fn step(comm: &mut Communicator<Member>, data: &mut [f32], work: Duration) -> f64 {
    // Both begin at once.
    comm.barrier().expect("both are here");
    let begun = Instant::now();
    while begun.elapsed() < work {
        black_box(&data);
    }
    for _ in 0..CALLS {
        comm.all_reduce(data, Reduce::Mean).expect("both are here");
    }
    begun.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
