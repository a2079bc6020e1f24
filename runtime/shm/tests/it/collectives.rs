//! Collectives between real processes: results, kill -9, ranks that do not come, and what is left.
//!
//! Each other rank is this test program run again with one test and a role.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use odeon_collective::{
    Algorithm, CallState, Collective, CollectiveError, Communicator, Fault, FlowLabel, FlowMember,
    FlowPlace, FlowRecord, Membership, Reduce, Topology, conformance,
};
use odeon_shm::{FlowLog, FlowLogName, FlowReader, Gang, GangName, GangOptions, JoinError, Member};

const ROLE: &str = "ODEON_COLLECTIVES_TEST";

fn join(name: &GangName, rank: usize) -> Result<Communicator<Member>, JoinError> {
    let membership = Membership {
        rank,
        generation: 4,
        gang: name.gang,
        topology: Topology::one_node(name.world as usize),
    };
    let mut comm = Communicator::new(Member::join(name, membership)?);
    comm.set_deadline(Duration::from_secs(20));
    Ok(comm)
}

/// The role of this process, when it is not the first: its rank, and what it is told.
fn role() -> Option<(usize, GangName)> {
    let role = env::var(ROLE).ok()?;
    let (rank, name) = role.split_once(' ').unwrap();
    Some((rank.parse().unwrap(), serde_json::from_str(name).unwrap()))
}

fn say(text: &str) {
    println!("\n> {text}");
    std::io::stdout().flush().unwrap();
}

/// A rank in another process.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(test: &str, rank: usize, name: &GangName) -> Self {
        let mut child = crate::again(module_path!(), test)
            .env(
                ROLE,
                format!("{rank} {}", serde_json::to_string(name).unwrap()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// The next line that it says.
    fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "it has ended"
            );
            if let Some(said) = line.strip_prefix("> ") {
                return said.trim_end().to_owned();
            }
        }
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

// SEMANTICS 50.
#[test]
fn processes_get_what_arithmetic_gives() {
    const NAME: &str = "processes_get_what_arithmetic_gives";
    let everything = |name: &GangName, rank| {
        let mut comm = join(name, rank).unwrap();
        conformance::check(&mut comm);
        for algorithm in Algorithm::ALL {
            comm = comm.with_algorithm(algorithm);
            conformance::check(&mut comm);
        }
        comm.barrier().unwrap();
    };
    if let Some((rank, name)) = role() {
        return everything(&name, rank);
    }
    for (world, window_bytes, queue_bytes) in
        [(2, 4096, 6400), (3, 1 << 20, 128 << 10), (4, 9000, 4096)]
    {
        let options = GangOptions {
            window_bytes,
            queue_bytes,
        };
        let gang = Gang::create(world, options).unwrap();
        let others: Vec<_> = (1..world)
            .map(|rank| Other::start(NAME, rank, &gang.name()))
            .collect();
        everything(&gang.name(), 0);
        others.into_iter().for_each(Other::end);
        assert_eq!(gang.missing(), [] as [usize; 0]);
    }
}

// SEMANTICS 51.
#[test]
fn a_killed_process_is_named_by_all_at_once() {
    const NAME: &str = "a_killed_process_is_named_by_all_at_once";
    // Over windows, and over queues.
    let modes = [None, Some(Algorithm::Ring)];
    let reduce_until_it_fails = |comm: Communicator<Member>, mode: Option<Algorithm>| {
        let mut comm = match mode {
            Some(algorithm) => comm.with_algorithm(algorithm),
            None => comm,
        };
        let mut data = vec![1.0f32; 500_000];
        // Each of them takes about a millisecond.
        for _ in 0..100_000 {
            match comm.all_reduce(&mut data, Reduce::Mean) {
                Ok(()) => assert!(data.iter().all(|value| *value == 1.0)),
                Err(error) => return error,
            }
        }
        panic!("nobody is lost")
    };
    if let Some((rank, name)) = role() {
        let mode = modes[usize::from(name.queue_bytes != 4096)];
        let mut comm = join(&name, rank).unwrap();
        comm.barrier().unwrap();
        let error = reduce_until_it_fails(comm, mode);
        say(&format!("{:?} {error}", error.fault().unwrap().ranks()));
        return;
    }
    for mode in modes {
        let queue_bytes = if mode.is_none() { 4096 } else { 128 << 10 };
        let options = GangOptions {
            queue_bytes,
            ..GangOptions::default()
        };
        let gang = Gang::create(4, options).unwrap();
        let mut others: Vec<_> = (1..4)
            .map(|rank| Other::start(NAME, rank, &gang.name()))
            .collect();
        let mut comm = join(&gang.name(), 0).unwrap();
        comm.barrier().unwrap();
        let mut victim = others.remove(1);
        // In the midst of one of many calls.
        let killer = std::thread::spawn(move || {
            victim.child.kill().unwrap();
            victim
        });
        let error = reduce_until_it_fails(comm, mode);
        let killed = error.fault().unwrap();
        assert!(
            matches!(killed, Fault::Lost { rank: 2, why } if why.contains("has ended")),
            "{error}"
        );
        for mut other in others {
            let said = other.hear();
            assert!(said.starts_with("[2]"), "{said}");
            other.end();
        }
        killer.join().unwrap().child.wait().unwrap();
    }
}

// SEMANTICS 51.
#[test]
fn a_rank_that_does_not_come_is_named_though_its_process_lives() {
    const NAME: &str = "a_rank_that_does_not_come_is_named_though_its_process_lives";
    if let Some((rank, name)) = role() {
        let mut comm = join(&name, rank).unwrap();
        if rank == 1 {
            // Stuck, until it is let go.
            std::io::stdin().read_line(&mut String::new()).unwrap();
            let error = comm.barrier().unwrap_err();
            say(&format!("{:?}", error.fault().unwrap().ranks()));
            return;
        }
        comm.set_deadline(Duration::from_millis(300));
        let error = comm.all_reduce(&mut [1.0f32; 9], Reduce::Sum).unwrap_err();
        say(&format!("{:?}", error.fault().unwrap().ranks()));
        return;
    }
    let gang = Gang::create(3, GangOptions::default()).unwrap();
    let mut stuck = Other::start(NAME, 1, &gang.name());
    let mut comm = join(&gang.name(), 0).unwrap();
    let mut other = Other::start(NAME, 2, &gang.name());
    // Its deadline is the shortest; it may have come before rank 1 or 0 has even joined.
    let named = other.hear();
    assert!(named.contains('1'), "{named}");
    let error = comm.all_reduce(&mut [1.0f32; 9], Reduce::Sum).unwrap_err();
    assert!(error.fault().unwrap().ranks().contains(&1), "{error}");
    writeln!(stuck.input).unwrap();
    assert_eq!(stuck.hear(), named);
    other.end();
    stuck.end();
}

#[test]
fn only_who_fits_may_join() {
    let gang = Gang::create(2, GangOptions::default()).unwrap();
    let name = gang.name();
    let _first = join(&name, 0).unwrap();
    let error = join(&name, 0).unwrap_err();
    assert!(matches!(error, JoinError::Taken { rank: 0, .. }), "{error}");
    for wrong in [
        GangName { world: 3, ..name },
        GangName {
            window_bytes: 8192,
            ..name
        },
        GangName {
            window_bytes: u64::MAX,
            ..name
        },
        GangName {
            queue_bytes: 0,
            ..name
        },
        GangName { gang: 1, ..name },
        GangName { fd: 0, ..name },
        GangName {
            owner_pid: 0,
            ..name
        },
    ] {
        assert!(join(&wrong, 1).is_err(), "{wrong:?}");
    }
    assert!(matches!(
        join(&name, 2).unwrap_err(),
        JoinError::Misfit { .. }
    ));
    for world in [0, usize::MAX, 1 << 30] {
        assert!(Gang::create(world, GangOptions::default()).is_err());
    }
    assert_eq!(gang.missing(), [1]);
}

// SEMANTICS 53.
#[test]
fn a_new_gang_does_not_hear_an_old_one() {
    let (old, new) = (
        Gang::create(2, GangOptions::default()).unwrap(),
        Gang::create(2, GangOptions::default()).unwrap(),
    );
    let mut late = join(&old.name(), 1).unwrap();
    late.set_deadline(Duration::from_millis(100));
    let ranks: Vec<_> = (0..2)
        .map(|rank| join(&new.name(), rank).unwrap())
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let error = late.all_reduce(&mut [7.0f32; 4], Reduce::Sum).unwrap_err();
            assert!(
                matches!(error.fault(), Some(Fault::Missing { ranks, .. }) if ranks == &[0]),
                "{error}"
            );
        });
        for mut comm in ranks {
            scope.spawn(move || {
                for _ in 0..100 {
                    let mut data = [1.0f32; 4];
                    comm.all_reduce(&mut data, Reduce::Sum).unwrap();
                    assert_eq!(data, [2.0; 4]);
                }
            });
        }
    });
}

#[test]
fn nothing_is_left_of_a_gang() {
    let open = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = links.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets
            .filter(|target| target.to_string_lossy().contains("odeon-gang"))
            .count()
    };
    let maps = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .matches("odeon-gang")
            .count()
    };
    // Other tests of this program may run beside this one, each in a process of its own or not.
    let gang = Gang::create(2, GangOptions::default()).unwrap();
    let id = format!("odeon-gang-{:016x}", gang.name().gang);
    let members: Vec<_> = (0..2)
        .map(|rank| join(&gang.name(), rank).unwrap())
        .collect();
    assert!(open() > 0 && maps() > 0);
    drop((gang, members));
    assert!(
        !std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .contains(&id)
    );
}

// SEMANTICS 51.
#[test]
fn a_rank_of_this_process_that_gives_up_is_named() {
    let gang = Gang::create(3, GangOptions::default()).unwrap();
    let mut ranks: Vec<_> = (0..3)
        .map(|rank| join(&gang.name(), rank).unwrap())
        .collect();
    let gone = ranks.remove(1);
    std::thread::scope(|scope| {
        for mut comm in ranks {
            scope.spawn(move || {
                let error = comm.all_reduce(&mut [1.0f32; 4], Reduce::Sum).unwrap_err();
                assert!(
                    matches!(error.fault(), Some(Fault::Lost { rank: 1, .. })),
                    "{error}"
                );
                let again = comm.barrier().unwrap_err();
                assert!(matches!(again, CollectiveError::Broken { .. }));
            });
        }
        drop(gone);
    });
}

/// What a rank has given stands when it leaves at once, whether the others have looked or not.
#[test]
fn a_rank_may_leave_when_its_last_operation_is_done() {
    const NAME: &str = "a_rank_may_leave_when_its_last_operation_is_done";
    let once = |name: &GangName, rank: usize| {
        // Over shared windows, and over queues in turn.
        let algorithm = Algorithm::ALL[(name.gang % 4) as usize];
        let mut comm = join(name, rank).unwrap().with_algorithm(algorithm);
        let mut data = [rank as f32];
        comm.all_reduce(&mut data, Reduce::Sum).unwrap();
        assert_eq!(data, [6.0]);
    };
    if let Some((rank, _)) = role() {
        for line in std::io::stdin().lines() {
            once(&serde_json::from_str(&line.unwrap()).unwrap(), rank);
        }
        return;
    }
    let gang = || Gang::create(4, GangOptions::default()).unwrap();
    let first = gang();
    let start = |rank| Other::start(NAME, rank, &first.name());
    let mut others: Vec<Other> = (1..4).map(start).collect();
    for _ in 0..1000 {
        let gang = gang();
        let name = gang.name();
        for other in &mut others {
            writeln!(other.input, "{}", serde_json::to_string(&name).unwrap()).unwrap();
        }
        once(&name, 0);
        // They may be about to join.
        while !gang.missing().is_empty() {
            std::thread::yield_now();
        }
    }
    others.into_iter().for_each(Other::end);
}

/// SEMANTICS 165.
#[test]
fn records_of_a_call_outlive_a_process_that_is_killed_in_it() {
    const NAME: &str = "records_of_a_call_outlive_a_process_that_is_killed_in_it";
    let place = |rank: usize, gang| FlowPlace {
        member: FlowMember::default(),
        group: gang,
        label: FlowLabel::new("dp"),
        rank: rank as u32,
        world: 2,
    };
    if let Some((rank, name)) = role() {
        let log = FlowLog::create().unwrap();
        let writer = log.writer(place(rank, name.gang)).unwrap();
        let mut comm = join(&name, rank).unwrap().with_flows(writer);
        say(&serde_json::to_string(&log.name()).unwrap());
        comm.barrier().unwrap();
        say("together");
        // The other does not come.
        let _ = comm.all_reduce(&mut [1.0], Reduce::Sum);
        return;
    }
    let gang = Gang::create(2, GangOptions::default()).unwrap();
    let mut other = Other::start(NAME, 1, &gang.name());
    let log: FlowLogName = serde_json::from_str(&other.hear()).unwrap();
    let mut reader = FlowReader::open(&log).unwrap();
    // It stays, or the other would lose it.
    let mut own = join(&gang.name(), 0).unwrap();
    own.barrier().unwrap();
    assert_eq!(other.hear(), "together");
    let mut records = vec![];
    while !records.iter().any(|it: &FlowRecord| it.sequence == 2) {
        records.extend(reader.read().records);
        std::thread::yield_now();
    }
    other.child.kill().unwrap();
    other.child.wait().unwrap();
    let seen = reader.read();
    let [last] = &seen.last[..] else {
        panic!("{seen:?}");
    };
    assert_eq!(last.record.place, place(1, gang.name().gang));
    assert_eq!((last.record.state, last.launched), (CallState::UnderWay, 2));
    let beat = reader.read().beat;
    assert_eq!(beat, seen.beat, "nobody beats any more");
}
