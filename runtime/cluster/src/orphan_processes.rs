//! Processes that have left the group of the process which started them, and its session: they carry a
//! variable that says which try they are of, and are found by that when the try is over.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use odeon::Clock;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};

/// The variable; its value is a mark.
pub(crate) const VARIABLE: &str = "ODEON_TRY";

/// The pause between two looks at those that were killed.
const PAUSE: Duration = Duration::from_millis(2);
/// The most looks: a process that hangs in the kernel does not end.
const LOOKS: usize = 500;
/// The fewest looks while some process is about to become another program: it shows no variables
/// for a moment. One that has none shows none for good.
const LOOKS_AT_UNCLEAR: usize = 20;

/// Kills all processes with a mark, and waits until none is left. Those that have cleared their
/// variables, or are another user's, are not found.
pub(crate) async fn end(mark: String) {
    let mut killed = BTreeSet::new();
    for look in 0..LOOKS {
        let wanted = mark.clone();
        let ended = tokio::task::spawn_blocking(move || {
            let done = kill_all(&wanted, &mut killed);
            (done, killed)
        });
        let Ok((done, left)) = ended.await else {
            return;
        };
        match done {
            Left::None => return,
            Left::Unclear if look >= LOOKS_AT_UNCLEAR => return,
            Left::Unclear | Left::Some => {}
        }
        killed = left;
        Clock::sleep(PAUSE).await;
    }
    tracing::warn!(mark, "processes of a job do not end");
}

/// The processes with a mark, by their numbers, with the processor time that each has used, and those that it
/// has waited for, in milliseconds.
pub(crate) fn cpu_ms(mark: &str) -> Vec<(u64, u64)> {
    let entry = format!("{VARIABLE}={mark}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let marked = numbers.filter(|pid| is_marked(*pid, entry.as_bytes()) == Some(true));
    let ms = |ticks: u64| ticks * 1000 / rustix::param::clock_ticks_per_second();
    let used = marked.filter_map(|pid| Some((u64::try_from(pid).ok()?, ms(ticks_of(pid)?))));
    used.collect()
}

/// A program of a try, which may have started others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkedProgram {
    pub(crate) pid: u32,
    /// The rank that it was told to be.
    pub(crate) rank: Option<usize>,
}

/// The programs with a mark: one of each rank that a process was told; where none was, those that no other with the
/// mark has started.
pub(crate) fn programs(mark: &str) -> Vec<MarkedProgram> {
    let entry = format!("{VARIABLE}={mark}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = processes.filter_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let environ = fs::read(process.path().join("environ")).ok()?;
        let mut variables = environ.split(|byte| *byte == 0);
        variables.clone().find(|it| *it == entry.as_bytes())?;
        let rank = variables.find_map(|it| it.strip_prefix(b"RANK="));
        let rank = rank.and_then(|it| std::str::from_utf8(it).ok()?.parse().ok());
        let (parent, began) = parent_and_beginning(pid)?;
        let process = MarkedProcess {
            parent,
            began,
            rank,
        };
        Some((pid, process))
    });
    programs_of(&marked.collect())
}

/// A process with a mark.
#[derive(Clone, Copy, Debug)]
struct MarkedProcess {
    parent: u32,
    /// Ticks of the machine's clock.
    began: u64,
    rank: Option<usize>,
}

/// The programs of these processes. A child that was told the rank of its parent is a part of it. Of several that are
/// left, as a helper has left the process that started it and kept its variables, the rank is the one that another with
/// the mark has started, else the one that began first.
fn programs_of(marked: &BTreeMap<u32, MarkedProcess>) -> Vec<MarkedProgram> {
    let ranked = marked.iter().filter_map(|(pid, it)| {
        let rank = it.rank?;
        let parent = marked.get(&it.parent);
        let is_helper = parent.is_some_and(|parent| parent.rank == it.rank);
        (!is_helper).then_some((rank, (parent.is_none(), it.began, *pid)))
    });
    let mut first: BTreeMap<usize, (bool, u64, u32)> = BTreeMap::new();
    for (rank, key) in ranked {
        let known = first.entry(rank).or_insert(key);
        *known = key.min(*known);
    }
    if first.is_empty() {
        let alone = marked
            .iter()
            .filter(|(_, it)| !marked.contains_key(&it.parent));
        return alone
            .map(|(pid, _)| MarkedProgram {
                pid: *pid,
                rank: None,
            })
            .collect();
    }
    first
        .into_iter()
        .map(|(rank, (_, _, pid))| MarkedProgram {
            pid,
            rank: Some(rank),
        })
        .collect()
}

/// The parent of a process, and when it began, in ticks of the machine's clock.
fn parent_and_beginning(pid: u32) -> Option<(u32, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: the state, the parent, and in the 20th place from there the beginning.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(1);
    let parent = fields.next()?.parse().ok()?;
    Some((parent, fields.nth(17)?.parse().ok()?))
}

/// Ticks that a process and the children that it has waited for were given.
fn ticks_of(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: its state, and in the 12th place from there the first of four.
    let (_, rest) = stat.rsplit_once(") ")?;
    let ticks = rest.split(' ').skip(11).take(4);
    Some(ticks.filter_map(|it| it.parse::<u64>().ok()).sum())
}

/// The result of a look for marked processes.
enum Left {
    None,
    /// Nothing, but for processes that show no variables.
    Unclear,
    Some,
}

/// Kills those that live, and reaps those that have become this process's own. Returns what there
/// was.
fn kill_all(mark: &str, killed: &mut BTreeSet<i32>) -> Left {
    let entry = format!("{VARIABLE}={mark}");
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let (mut marked, mut unclear) = (BTreeSet::new(), false);
    for pid in numbers {
        match is_marked(pid, entry.as_bytes()) {
            Some(true) => drop(marked.insert(pid)),
            Some(false) => {}
            None => unclear = true,
        }
    }
    for pid in marked.iter().copied().filter_map(Pid::from_raw) {
        tracing::debug!(
            pid = pid.as_raw_nonzero(),
            mark,
            "a process of a job is ended"
        );
        // It may end by itself.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    killed.extend(&marked);
    // One that is another's child is that one's to reap.
    killed.retain(|pid| {
        let reaped = Pid::from_raw(*pid).map(|it| waitpid(Some(it), WaitOptions::NOHANG));
        matches!(reaped, Some(Ok(None)))
    });
    match (marked.is_empty() && killed.is_empty(), unclear) {
        (false, _) => Left::Some,
        (true, true) => Left::Unclear,
        (true, false) => Left::None,
    }
}

/// Returns true where a process was started with this variable; `None` for one that shows no
/// variables at the moment, though it has memory. Of one that has ended nothing is to be read.
fn is_marked(pid: i32, entry: &[u8]) -> Option<bool> {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else {
        return Some(false);
    };
    if environ.is_empty() {
        let memory = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
        let has_memory = !memory.is_empty() && !memory.starts_with("0 ");
        return (!has_memory).then_some(false);
    }
    Some(environ.split(|byte| *byte == 0).any(|it| it == entry))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// SEMANTICS 56.
    #[tokio::test]
    async fn whoever_carries_the_mark_is_ended_and_nobody_else() {
        let mark = format!("test/{:x}", rand::random::<u64>());
        let sleeps = |mark: &str| {
            let mut command = Command::new("sleep");
            command
                .arg("1000")
                .env(VARIABLE, mark)
                .stdout(Stdio::null());
            command.spawn().unwrap()
        };
        let mut ours = [sleeps(&mark), sleeps(&mark)];
        let mut other = sleeps(&format!("{mark}0"));
        end(mark).await;
        for child in &mut ours {
            // It was reaped already, or can be now.
            let _ = child.wait();
        }
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// SEMANTICS 161.
    #[test]
    fn a_helper_that_has_left_the_program_of_its_rank_is_no_program() {
        let process = |pid, parent, began, rank| {
            let process = MarkedProcess {
                parent,
                began,
                rank,
            };
            (pid, process)
        };
        let found = |processes: &[(u32, MarkedProcess)]| -> Vec<(u32, Option<usize>)> {
            let found = programs_of(&processes.iter().copied().collect());
            found.iter().map(|it| (it.pid, it.rank)).collect()
        };
        // Worker 50 has started both ranks; 20 and 21 were started by rank 0, and have left it.
        let worker = process(50, 1, 500, None);
        let ranks = [
            process(60, 50, 600, Some(0)),
            process(61, 50, 601, Some(1)),
            process(62, 61, 602, Some(1)),
            process(20, 1, 700, Some(0)),
            process(21, 1, 100, Some(0)),
        ];
        let expect = [(60, Some(0)), (61, Some(1))];
        assert_eq!(found(&[&[worker][..], &ranks].concat()), expect);
        // Nothing is known of who has started them.
        assert_eq!(found(&ranks[..4]), expect);
        assert_eq!(found(&[worker, process(51, 50, 501, None)]), [(50, None)]);
    }

    #[test]
    fn the_parent_of_a_process_and_its_beginning_are_read() {
        let (parent, began) = parent_and_beginning(std::process::id()).unwrap();
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let of_child = parent_and_beginning(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(parent, std::os::unix::process::parent_id());
        assert_eq!(of_child.0, std::process::id());
        assert!(0 < began && began <= of_child.1, "{began} {of_child:?}");
    }

    /// SEMANTICS 161.
    #[test]
    fn programs_of_ranks_are_found_and_not_what_they_have_started() {
        let mark = format!("test/{:x}", rand::random::<u64>());
        let start = |rank: Option<&str>, script: &str| {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .env(VARIABLE, &mark)
                .env_remove("RANK");
            if let Some(rank) = rank {
                command.env("RANK", rank);
            }
            let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
            // It has become the program that it is to be, with its variables.
            let mut line = [0; 1];
            child
                .stdout
                .as_mut()
                .unwrap()
                .read_exact(&mut line)
                .unwrap();
            child
        };
        let found = |children: &[Child]| {
            let own: Vec<u32> = children.iter().map(Child::id).collect();
            let mut found = programs(&mark);
            found.sort_by_key(|it| own.iter().position(|pid| *pid == it.pid));
            let (pids, ranks): (Vec<u32>, Vec<_>) =
                found.iter().map(|it| (it.pid, it.rank)).unzip();
            assert_eq!(pids, own);
            ranks
        };
        let script = "sleep 1000 & echo; wait";
        let mut children = vec![start(None, script)];
        assert_eq!(found(&children), [None]);
        children.push(start(Some("1"), script));
        children.push(start(Some("0"), script));
        assert_eq!(found(&children[1..]), [Some(1), Some(0)]);
        let ends = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        ends.unwrap().block_on(end(mark.clone()));
        for child in &mut children {
            let _ = child.wait();
        }
    }
}
