//! `odeon stack JOB --ranks`: where the programs of a job stand, those together that stand at the same place, and the
//! smallest group of those that stand elsewhere than most.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use odeon_client::types::{StackOfProgram, StackOfThread, Stacks};
use odeon_diagnosis::gang::{StackFrame, ThreadStack, cluster_stacks, outliers, smallest_group};
use odeon_mesh::Mesh;
use serde::Serialize;

use crate::args::StackArgs;
use crate::command::job;
use crate::figures;
use crate::print;

/// The stacks, and what follows from them.
#[derive(Debug, Serialize)]
struct Seen {
    #[serde(flatten)]
    stacks: Stacks,
    /// Ranks that stand at the same place, the most first. Programs without a rank are counted in their order.
    places: Vec<BTreeSet<usize>>,
    /// The ranks that stand elsewhere than most.
    outliers: BTreeSet<usize>,
    /// The ranks of which no stack was had.
    unknown: BTreeSet<usize>,
    /// The smallest group that holds these.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<String>,
}

pub(super) fn run(args: &StackArgs) -> Result<()> {
    let (client, runtime) = job::cluster(args.look.dir.as_ref())?;
    let stacks = runtime.block_on(client.stacks(&args.actor, !args.python))?;
    let seen = judge(stacks, args.mesh.as_ref())?;
    if args.json {
        print::line(serde_json::to_string(&seen)?)?;
    } else {
        let lines = lines(&args.actor, &seen).into_iter();
        lines
            .map(|line| figures::plain(&line))
            .try_for_each(print::line)?;
    }
    if seen.stacks.programs.is_empty() {
        bail!("{} has no programs at the moment", args.actor);
    }
    if seen.places.is_empty() {
        bail!(
            "no program of {} gave a stack, so nothing is known of where they stand",
            args.actor
        );
    }
    Ok(())
}

/// The number of a program: its rank, else its place in the list.
fn number(at: usize, program: &StackOfProgram) -> usize {
    program.rank.map_or(at, |rank| rank as usize)
}

fn judge(mut stacks: Stacks, mesh: Option<&Mesh>) -> Result<Seen> {
    let has_ranks = stacks.programs.iter().any(|it| it.rank.is_some());
    // Beside ranks, others are what starts and watches them.
    stacks.programs.retain(|it| it.rank.is_some() == has_ranks);
    let ranks = stacks.programs.len();
    if mesh.is_some() && ranks > 0 && !has_ranks {
        bail!("the programs of the job were told no rank, so --mesh says nothing of them");
    }
    if let Some(mesh) = mesh
        && mesh.len() != ranks
    {
        bail!("{mesh} has {} ranks, and the job {ranks}", mesh.len());
    }
    let main = stacks.programs.iter().enumerate();
    let main: Vec<(usize, ThreadStack)> = main
        .filter_map(|(at, program)| Some((number(at, program), thread(program.threads.first()?))))
        .collect();
    let unknown = stacks.programs.iter().enumerate();
    let unknown = unknown.filter(|(_, program)| program.threads.is_empty());
    let unknown = unknown.map(|(at, program)| number(at, program));
    let clusters = cluster_stacks(main.iter().map(|(rank, stack)| (*rank, stack)));
    let outliers = outliers(&clusters);
    let groups = groups(&stacks, mesh);
    let group = smallest_group(&outliers, &groups);
    Ok(Seen {
        group: group.map(|(name, ranks)| format!("{name} ({})", named(ranks, &stacks))),
        unknown: unknown.collect(),
        places: clusters.into_iter().map(|it| it.ranks).collect(),
        outliers,
        stacks,
    })
}

fn thread(seen: &StackOfThread) -> ThreadStack {
    let frames = seen.frames.iter().map(|it| StackFrame {
        function: it.function.clone(),
        file: it.file.clone(),
        line: it.line,
    });
    ThreadStack {
        thread: seen.name.clone(),
        frames: frames.collect(),
    }
}

/// Groups that several ranks are in: along each dimension of a mesh, and on each node; of two as large, the first.
fn groups(stacks: &Stacks, mesh: Option<&Mesh>) -> Vec<(String, BTreeSet<usize>)> {
    let mut groups = vec![];
    for dim in mesh.iter().flat_map(|mesh| mesh.dims()) {
        let along = mesh.map(|mesh| mesh.groups(&[dim.name.as_str()]));
        let along = along.into_iter().flatten().filter(|group| group.len() > 1);
        groups.extend(
            along.map(|group| (format!("a {} group", dim.name), group.into_iter().collect())),
        );
    }
    let mut nodes: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (at, program) in stacks.programs.iter().enumerate() {
        nodes
            .entry(&program.node)
            .or_default()
            .insert(number(at, program));
    }
    if nodes.len() > 1 {
        groups.extend(
            nodes
                .into_iter()
                .map(|(node, ranks)| (format!("node {node}"), ranks)),
        );
    }
    groups
}

/// Programs by their numbers, in words: those that were told a rank by these, others by their processes.
fn named(numbers: &BTreeSet<usize>, stacks: &Stacks) -> String {
    if stacks.programs.iter().any(|it| it.rank.is_some()) {
        return in_words(numbers);
    }
    let pids = numbers.iter().filter_map(|at| stacks.programs.get(*at));
    let pids: Vec<String> = pids.map(|it| it.pid.to_string()).collect();
    match pids.split_last() {
        Some((last, [])) => format!("program (pid {last})"),
        Some((last, others)) => format!("programs (pids {} and {last})", others.join(", ")),
        None => "no program".to_owned(),
    }
}

/// Numbers in words: `rank 2`, `ranks 0 to 3 and 7`.
fn in_words(ranks: &BTreeSet<usize>) -> String {
    let mut spans: Vec<(usize, usize)> = vec![];
    for rank in ranks {
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == *rank => *last = *rank,
            _ => spans.push((*rank, *rank)),
        }
    }
    let spans: Vec<String> = spans
        .into_iter()
        .flat_map(|(first, last)| match last - first {
            0 => vec![first.to_string()],
            1 => vec![first.to_string(), last.to_string()],
            _ => vec![format!("{first} to {last}")],
        })
        .collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    match spans.split_last() {
        Some((last, [])) => format!("{noun} {last}"),
        Some((last, others)) => format!("{noun} {} and {last}", others.join(", ")),
        None => format!("no {noun}"),
    }
}

fn lines(job: &str, seen: &Seen) -> Vec<String> {
    let programs = &seen.stacks.programs;
    let by_number = programs.iter().enumerate();
    let by_number: BTreeMap<usize, &StackOfProgram> = by_number
        .map(|(at, program)| (number(at, program), program))
        .collect();
    let programs = figures::plural(programs.len() as u64, "program");
    let mut lines = vec![match seen.places.len() as u64 {
        0 => format!("{programs} of {job}"),
        places => format!(
            "{programs} of {job}, at {}",
            figures::plural(places, "place")
        ),
    }];
    for ranks in &seen.places {
        lines.push(String::new());
        let first = ranks.first().and_then(|rank| by_number.get(rank));
        lines.push(match (ranks.len(), first) {
            (1, Some(program)) => of_one(program),
            _ => named(ranks, &seen.stacks),
        });
        let frames = first.and_then(|program| program.threads.first());
        let frames = frames.map_or(&[][..], |thread| &thread.frames);
        lines.extend(frames.iter().map(|frame| match frame.line {
            Some(line) => format!("    {}  {}:{line}", frame.function, frame.file),
            None => format!("    {}  {}", frame.function, frame.file),
        }));
    }
    for program in by_number.values().filter(|it| it.threads.is_empty()) {
        let why = program.why.as_deref().unwrap_or("it has no threads");
        lines.push(format!("{}: {why}", of_one(program)));
    }
    for silent in &seen.stacks.silent {
        lines.push(format!("node {}: {}", silent.node, silent.why));
    }
    if !seen.places.is_empty() {
        lines.extend([String::new(), verdict(seen)]);
    }
    lines
}

/// A program, and where it runs.
fn of_one(program: &StackOfProgram) -> String {
    let StackOfProgram { node, pid, .. } = program;
    match program.rank {
        Some(rank) => format!("rank {rank}, on {node} (pid {pid})"),
        None => format!("program (pid {pid}), on {node}"),
    }
}

/// What follows, of those whose stacks were had, and of whom nothing does.
fn verdict(seen: &Seen) -> String {
    let mut unknown = vec![];
    if !seen.unknown.is_empty() {
        unknown.push(format!("of {}", named(&seen.unknown, &seen.stacks)));
    }
    let silent = seen.stacks.silent.iter();
    unknown.extend(silent.map(|it| format!("of what runs on node {}", it.node)));
    let known = match (seen.outliers.len(), &seen.group) {
        (0, _) if seen.places.len() > 1 => "no place is that of most, so nobody is odd".to_owned(),
        (0, _) if unknown.is_empty() => "all stand at the same place".to_owned(),
        (0, _) => {
            let ranks = &seen.places[0];
            let stand = match ranks.len() {
                1 => "alone gave a stack",
                _ => "stand at the same place",
            };
            format!("{} {stand}", named(ranks, &seen.stacks))
        }
        (n, group) => {
            let (stand, them) = if n == 1 {
                ("stands", "it")
            } else {
                ("stand", "them")
            };
            let group = group.as_ref().map_or_else(String::new, |group| {
                format!("; the smallest group that holds {them} is {group}")
            });
            format!(
                "{} {stand} elsewhere than most{group}",
                named(&seen.outliers, &seen.stacks)
            )
        }
    };
    match &unknown[..] {
        [] => known,
        unknown => format!("{known}; {} nothing is known", unknown.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use odeon_client::types::{CodePlace, SilentNode};

    use super::*;

    fn program(rank: u64, node: &str, function: &str) -> StackOfProgram {
        let frame = |function: &str, line| CodePlace {
            function: function.to_owned(),
            file: "/a/train.py".to_owned(),
            line,
        };
        StackOfProgram {
            rank: Some(rank),
            node: node.to_owned(),
            pid: 100 + rank as u32,
            threads: vec![StackOfThread {
                name: "MainThread".to_owned(),
                frames: vec![frame("poll", None), frame(function, Some(9))],
            }],
            why: None,
        }
    }

    fn stacks(odd: &[u64]) -> Stacks {
        let place = |rank: &u64| {
            if odd.contains(rank) {
                "load"
            } else {
                "all_reduce"
            }
        };
        let node = |rank: u64| if rank < 4 { "a" } else { "b" };
        Stacks {
            at_ms: 0,
            programs: (0..8)
                .map(|rank| program(rank, node(rank), place(&rank)))
                .collect(),
            silent: vec![],
        }
    }

    /// SEMANTICS 162.
    #[test]
    fn ranks_that_stand_elsewhere_are_named_with_the_smallest_group_that_holds_them() {
        let mesh = Mesh::new([("pp", 2), ("dp", 2), ("tp", 2)]).unwrap();
        let end = |odd: &[u64], mesh: Option<&Mesh>| {
            let seen = judge(stacks(odd), mesh).unwrap();
            lines("j1", &seen).pop().unwrap()
        };
        let group = "the smallest group that holds them is";
        assert_eq!(
            end(&[2], None),
            "rank 2 stands elsewhere than most; the smallest group that holds it is node a (ranks 0 to 3)"
        );
        let tp =
            format!("ranks 2 and 3 stand elsewhere than most; {group} a tp group (ranks 2 and 3)");
        assert_eq!(end(&[2, 3], Some(&mesh)), tp);
        let dp =
            format!("ranks 4 and 6 stand elsewhere than most; {group} a dp group (ranks 4 and 6)");
        assert_eq!(end(&[4, 6], Some(&mesh)), dp);
        assert_eq!(
            end(&[0, 7], Some(&mesh)),
            "ranks 0 and 7 stand elsewhere than most"
        );
        assert_eq!(end(&[], None), "all stand at the same place");
        assert_eq!(
            end(&[0, 1, 2, 3], None),
            "no place is that of most, so nobody is odd"
        );
        let two = Mesh::new([("dp", 2)]).unwrap();
        let error = judge(stacks(&[]), Some(&two)).unwrap_err().to_string();
        assert!(error.contains("has 2 ranks, and the job 8"), "{error}");
    }

    /// SEMANTICS 162.
    #[test]
    fn nothing_is_said_of_ranks_whose_stacks_were_not_had() {
        let end = |odd: &[u64], unknown: &[usize], silent: &[&str]| {
            let mut all = stacks(odd);
            for at in unknown {
                all.programs[*at].threads.clear();
                all.programs[*at].why = Some("py-spy: it is stopped".to_owned());
            }
            let silent = silent.iter().map(|node| SilentNode {
                node: (*node).to_owned(),
                why: "it does not answer".to_owned(),
            });
            all.silent.extend(silent);
            lines("j1", &judge(all, None).unwrap()).pop().unwrap()
        };
        assert_eq!(
            end(&[], &[2], &[]),
            "ranks 0, 1 and 3 to 7 stand at the same place; of rank 2 nothing is known"
        );
        assert_eq!(
            end(&[], &[], &["c"]),
            "ranks 0 to 7 stand at the same place; of what runs on node c nothing is known"
        );
        let odd = end(&[6], &[2, 3], &["c"]);
        assert!(
            odd.starts_with("rank 6 stands elsewhere than most; "),
            "{odd}"
        );
        let unknown = "; of ranks 2 and 3 and of what runs on node c nothing is known";
        assert!(odd.ends_with(unknown), "{odd}");
        assert_eq!(
            end(&[], &[0, 1, 2, 3, 4, 5, 6, 7], &[]),
            "rank 7, on b (pid 107): py-spy: it is stopped",
            "no verdict"
        );
    }

    #[test]
    fn programs_without_a_rank_are_told_by_their_processes_and_left_out_beside_ranks() {
        let without = |node: &str, pid: u32| StackOfProgram {
            rank: None,
            pid,
            ..program(0, node, "load")
        };
        let mut all = stacks(&[]);
        all.programs.insert(0, without("a", 90));
        let text = lines("j1", &judge(all, None).unwrap()).join("\n");
        assert!(
            text.starts_with("8 programs of j1, at 1 place\n\nranks 0 to 7\n"),
            "{text}"
        );
        let mut alone = stacks(&[]);
        alone.programs = vec![without("a", 90), without("b", 91)];
        alone.programs[1].threads.clear();
        alone.programs[1].why = Some("process 91 is no Python program".to_owned());
        let two = Mesh::new([("dp", 2)]).unwrap();
        let error = judge(alone.clone(), Some(&two)).unwrap_err().to_string();
        assert!(error.contains("told no rank"), "{error}");
        let text = lines("j1", &judge(alone, None).unwrap()).join("\n");
        for words in [
            "\nprogram (pid 90), on a\n",
            "\nprogram (pid 91), on b: process 91 is no Python program\n",
            "\nprogram (pid 90) alone gave a stack; of program (pid 91) nothing is known",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn whoever_is_not_seen_is_told_with_the_reason() {
        let mut all = stacks(&[2]);
        all.programs[5].threads.clear();
        all.programs[5].why = Some("no Python".to_owned());
        all.silent.push(SilentNode {
            node: "c".to_owned(),
            why: "it does not answer".to_owned(),
        });
        let text = lines("j1", &judge(all, None).unwrap()).join("\n");
        for words in [
            "8 programs of j1, at 2 places",
            "ranks 0, 1, 3, 4, 6 and 7\n    poll  /a/train.py\n    all_reduce  /a/train.py:9\n",
            "rank 2, on a (pid 102)\n    poll  /a/train.py\n    load  /a/train.py:9",
            "rank 5, on b (pid 105): no Python",
            "node c: it does not answer",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
