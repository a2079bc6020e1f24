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
    /// Ranks that stand at the same place, the most first.
    places: Vec<BTreeSet<usize>>,
    /// The ranks that stand elsewhere than most.
    outliers: BTreeSet<usize>,
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
        return Ok(());
    }
    lines(&args.actor, &seen)
        .into_iter()
        .try_for_each(print::line)?;
    Ok(())
}

/// The number of a program: its rank, else its place in the list.
fn number(at: usize, program: &StackOfProgram) -> usize {
    program.rank.map_or(at, |rank| rank as usize)
}

fn judge(stacks: Stacks, mesh: Option<&Mesh>) -> Result<Seen> {
    let ranks = stacks.programs.len();
    if let Some(mesh) = mesh
        && mesh.len() != ranks
    {
        bail!("{mesh} has {} ranks, and the job {ranks}", mesh.len());
    }
    let main = stacks.programs.iter().enumerate();
    let main: Vec<(usize, ThreadStack)> = main
        .filter_map(|(at, program)| Some((number(at, program), thread(program.threads.first()?))))
        .collect();
    let clusters = cluster_stacks(main.iter().map(|(rank, stack)| (*rank, stack)));
    let outliers = outliers(&clusters);
    let groups = groups(&stacks, mesh);
    let group = smallest_group(&outliers, &groups);
    Ok(Seen {
        group: group.map(|(name, ranks)| format!("{name} ({})", in_words(ranks))),
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
    let mut lines = vec![format!(
        "{} of {job}, at {}",
        figures::plural(programs.len() as u64, "program"),
        figures::plural(seen.places.len() as u64, "place")
    )];
    for ranks in &seen.places {
        lines.push(String::new());
        let first = ranks.first().and_then(|rank| by_number.get(rank));
        let where_it_is = match (ranks.len(), first) {
            (1, Some(program)) => format!(", on {} (pid {})", program.node, program.pid),
            _ => String::new(),
        };
        lines.push(format!("{}{where_it_is}", in_words(ranks)));
        let frames = first.and_then(|program| program.threads.first());
        let frames = frames.map_or(&[][..], |thread| &thread.frames);
        lines.extend(frames.iter().map(|frame| match frame.line {
            Some(line) => format!("    {}  {}:{line}", frame.function, frame.file),
            None => format!("    {}  {}", frame.function, frame.file),
        }));
    }
    let unknown = by_number
        .iter()
        .filter_map(|(rank, it)| Some((rank, it, it.why.as_ref()?)));
    for (rank, program, why) in unknown {
        lines.push(format!(
            "rank {rank}, on {} (pid {}): {why}",
            program.node, program.pid
        ));
    }
    for silent in &seen.stacks.silent {
        lines.push(format!("node {}: {}", silent.node, silent.why));
    }
    lines.push(String::new());
    lines.push(match (seen.outliers.len(), &seen.group) {
        _ if programs.is_empty() => "it has no programs at the moment".to_owned(),
        (0, _) if seen.places.len() == 1 => "all stand at the same place".to_owned(),
        (0, _) => "no place is that of most, so nobody is odd".to_owned(),
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
                in_words(&seen.outliers)
            )
        }
    });
    lines.iter().map(|line| figures::plain(line)).collect()
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
