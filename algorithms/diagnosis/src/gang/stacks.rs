//! Stacks of ranks of one moment: those that stand elsewhere than most, and the smallest group that holds them.
//!
//! In a program whose ranks wait for each other nearly all stand at the same place when one does not come, so the few
//! that stand elsewhere are to blame, or next to whoever is (ByteRobust, arXiv 2509.16293).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct StackFrame {
    /// The function.
    pub function: String,
    /// Its file, or the library that it is in.
    pub file: String,
    /// The line of the file; nothing for native frames.
    pub line: Option<u32>,
}

/// A thread, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ThreadStack {
    /// Its name.
    pub thread: String,
    /// Its frames, the innermost first.
    pub frames: Vec<StackFrame>,
}

impl Display for StackFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let file = self.file.rsplit('/').next().unwrap_or(&self.file);
        match self.line {
            Some(line) => write!(f, "{} ({file}:{line})", self.function),
            None => write!(f, "{} ({file})", self.function),
        }
    }
}

impl ThreadStack {
    /// The innermost frames in one line: `recv (comm.py:40) < step (train.py:12)`. Those of libraries are left out where
    /// some are of files with lines.
    #[must_use]
    pub fn in_short(&self) -> String {
        let has_lines = self.frames.iter().any(|it| it.line.is_some());
        let shown = self
            .frames
            .iter()
            .filter(|it| !has_lines || it.line.is_some());
        let shown: Vec<String> = shown.take(SHOWN).map(ToString::to_string).collect();
        shown.join(" < ")
    }
}

/// Reads what `py-spy dump --json` prints of a process: its threads, the main one first.
///
/// # Errors
/// What is no such text.
#[cfg(feature = "stacks")]
pub fn read_py_spy(text: &[u8]) -> Result<Vec<ThreadStack>, serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Thread {
        pid: u64,
        os_thread_id: Option<u64>,
        thread_name: Option<String>,
        frames: Vec<Frame>,
    }
    #[derive(serde::Deserialize)]
    struct Frame {
        name: String,
        filename: String,
        /// The library, of a native frame.
        module: Option<String>,
        line: u32,
    }
    let mut threads: Vec<Thread> = serde_json::from_slice(text)?;
    threads.sort_by_key(|it| it.os_thread_id != Some(it.pid));
    let stack = |it: Thread| ThreadStack {
        thread: it.thread_name.unwrap_or_default(),
        frames: it
            .frames
            .into_iter()
            .map(|frame| StackFrame {
                function: frame.name,
                file: frame.filename,
                line: (frame.line > 0 && frame.module.is_none()).then_some(frame.line),
            })
            .collect(),
    };
    Ok(threads.into_iter().map(stack).collect())
}

/// Ranks that stand at the same place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackCluster {
    /// Their numbers.
    pub ranks: BTreeSet<usize>,
    /// Where they stand.
    pub stack: ThreadStack,
}

/// Ranks by where their main threads stand, the most first. Native frames play no part where there are others: ranks
/// that wait for each other stand at different places of the library by which they do.
#[must_use]
pub fn cluster_stacks<'a>(
    stacks: impl IntoIterator<Item = (usize, &'a ThreadStack)>,
) -> Vec<StackCluster> {
    let mut clusters: BTreeMap<Vec<&StackFrame>, StackCluster> = BTreeMap::new();
    for (rank, stack) in stacks {
        let has_lines = stack.frames.iter().any(|it| it.line.is_some());
        let of_place = stack
            .frames
            .iter()
            .filter(|it| !has_lines || it.line.is_some());
        let cluster = clusters
            .entry(of_place.collect())
            .or_insert_with(|| StackCluster {
                ranks: BTreeSet::new(),
                stack: stack.clone(),
            });
        cluster.ranks.insert(rank);
    }
    let mut clusters: Vec<StackCluster> = clusters.into_values().collect();
    clusters.sort_by_key(|it| (usize::MAX - it.ranks.len(), it.ranks.first().copied()));
    clusters
}

/// The ranks that stand elsewhere than most do; nobody where no place has more than half of the ranks, since then nobody
/// is odd.
#[must_use]
pub fn outliers(clusters: &[StackCluster]) -> BTreeSet<usize> {
    let all: usize = clusters.iter().map(|it| it.ranks.len()).sum();
    match clusters.split_first() {
        Some((most, others)) if 2 * most.ranks.len() > all => others
            .iter()
            .flat_map(|it| it.ranks.iter().copied())
            .collect(),
        _ => BTreeSet::new(),
    }
}

/// The smallest of these groups that holds all of the ranks; of equal ones the first.
#[must_use]
pub fn smallest_group<'a, N>(
    ranks: &BTreeSet<usize>,
    groups: &'a [(N, BTreeSet<usize>)],
) -> Option<&'a (N, BTreeSet<usize>)> {
    let holding = groups.iter().filter(|(_, group)| group.is_superset(ranks));
    holding
        .min_by_key(|(_, group)| group.len())
        .filter(|_| !ranks.is_empty())
}

/// Frames of a stack in one line.
const SHOWN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(frames: &[(&str, &str, Option<u32>)]) -> ThreadStack {
        let frame = |(function, file, line): &(&str, &str, Option<u32>)| StackFrame {
            function: (*function).to_owned(),
            file: (*file).to_owned(),
            line: *line,
        };
        ThreadStack {
            thread: "MainThread".to_owned(),
            frames: frames.iter().map(frame).collect(),
        }
    }

    /// The example of the paper: tp 2, pp 4, dp 4 on 16 machines.
    #[test]
    fn outliers_and_the_smallest_group_that_holds_them_are_found() {
        let at = |place: &str, line| {
            stack(&[
                (place, "/lib/dist.py", Some(line)),
                ("main", "/a/train.py", Some(9)),
            ])
        };
        let place = |rank| match rank {
            0..12 => at("all_reduce", 1),
            12 | 13 => at("irecv", 2),
            14 => at("isend", 3),
            _ => at("all_gather", 4),
        };
        let stacks: Vec<_> = (0..16).map(place).collect();
        let clusters = cluster_stacks(stacks.iter().enumerate());
        let sizes: Vec<usize> = clusters.iter().map(|it| it.ranks.len()).collect();
        assert_eq!(sizes, [12, 2, 1, 1]);
        assert_eq!(
            clusters[0].stack.in_short(),
            "all_reduce (dist.py:1) < main (train.py:9)"
        );
        let odd = outliers(&clusters);
        assert_eq!(odd, (12..16).collect());
        let group =
            |name, ranks: std::ops::Range<usize>| (name, ranks.collect::<BTreeSet<usize>>());
        let groups = [
            group("all", 0..16),
            group("pp 2", 8..12),
            group("pp 3", 12..16),
            group("tp 7", 14..16),
        ];
        assert_eq!(smallest_group(&odd, &groups).unwrap().0, "pp 3");
        assert_eq!(smallest_group(&BTreeSet::new(), &groups), None);
        // Where no place has most, nobody is odd.
        let split: Vec<_> = (0..4).map(|rank| place(rank * 4)).collect();
        assert_eq!(
            outliers(&cluster_stacks(split[2..].iter().enumerate())),
            BTreeSet::new()
        );
        assert_eq!(outliers(&cluster_stacks([])), BTreeSet::new());
    }

    #[test]
    fn ranks_that_wait_in_different_parts_of_a_library_stand_at_the_same_place() {
        let (poll, recv) = (("poll", "libc.so.6", None), ("recv", "libc.so.6", None));
        let source = ("step", "train.py", Some(3));
        let stacks = [
            stack(&[poll, source]),
            stack(&[recv, source]),
            stack(&[recv]),
        ];
        let clusters = cluster_stacks(stacks.iter().enumerate());
        assert_eq!(clusters.len(), 2);
        assert_eq!(clusters[0].ranks, BTreeSet::from([0, 1]));
        assert_eq!(clusters[0].stack.in_short(), "step (train.py:3)");
        assert_eq!(clusters[1].stack.in_short(), "recv (libc.so.6)");
    }

    #[cfg(feature = "stacks")]
    #[test]
    fn what_py_spy_prints_is_read_with_the_main_thread_first() {
        let text = br#"[
            {"pid": 7, "thread_id": 1, "thread_name": "loader", "os_thread_id": 8, "active": false, "owns_gil": false,
             "frames": [], "process_info": null},
            {"pid": 7, "thread_id": 2, "thread_name": "MainThread", "os_thread_id": 7, "active": true, "owns_gil": true,
             "frames": [{"name": "clock_nanosleep", "filename": "libc.so.6", "module": "libc.so.6",
                         "short_filename": null, "line": 0, "locals": null, "is_entry": false},
                        {"name": "time_sleep", "filename": "timemodule.c", "module": "libpython3.11.so",
                         "short_filename": null, "line": 2018, "locals": null, "is_entry": false},
                        {"name": "f", "filename": "<string>", "module": null, "short_filename": "<string>", "line": 3,
                         "locals": null, "is_entry": true}], "process_info": null}]"#;
        let threads = read_py_spy(text).unwrap();
        assert_eq!(threads[0].thread, "MainThread");
        assert_eq!(threads[0].in_short(), "f (<string>:3)");
        assert_eq!(threads[0].frames.len(), 3);
        assert!(threads[0].frames[..2].iter().all(|it| it.line.is_none()));
        assert!(read_py_spy(b"Error: Permission Denied").is_err());
    }
}
