//! Merging: each line once, in one order, and what is missing is counted.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::logs::Stream;
use crate::unix::Unix;

fn line(sender: u64, number: u64, at: u64) -> LogLine {
    LogLine {
        attempt: 1,
        sender,
        number,
        at: Unix(at),
        node: format!("n{sender}"),
        process: "driver".to_owned(),
        stream: Stream::Out,
        text: format!("{sender}:{number}"),
        changes: false,
    }
}

/// The first lines that a voter has behind a cursor.
fn page(has: &[LogLine], cursor: &Cursor, most: usize) -> Page {
    let wanted = has.iter().filter(|line| cursor.wants(line));
    let mut lines: Vec<LogLine> = wanted.cloned().collect();
    lines.sort_by_key(LogLine::place);
    let more = lines.len() > most;
    lines.truncate(most);
    Page {
        lines,
        more,
        gone: vec![],
    }
}

/// Reads all that some voters have. The lines, and how many are said to be missing.
fn read_all(voters: &[Vec<LogLine>], most: usize) -> (Vec<LogLine>, u64) {
    let (mut all, mut lost) = (vec![], 0);
    let mut cursor = Cursor::default();
    loop {
        let pages = voters.iter().map(|has| page(has, &cursor, most));
        let merged = merge(&cursor, pages.collect());
        assert!(!merged.more || !merged.lines.is_empty());
        for read in merged.lines {
            lost += read.lost;
            all.push(read.line);
        }
        // As it travels.
        cursor = merged.next.to_string().parse().unwrap();
        if !merged.more {
            return (all, lost);
        }
    }
}

/// Lines of some sources, whose times never go back, and who of three voters has which.
fn story() -> impl Strategy<Value = Vec<(LogLine, [bool; 3])>> {
    let steps = (0u64..3, 0u64..4, any::<[bool; 3]>());
    proptest::collection::vec(steps, 0..60).prop_map(|steps| {
        let mut clocks = [0, 2, 1];
        let mut numbers = [0; 3];
        let lines = steps.into_iter().map(|(sender, later, has)| {
            let at = sender as usize;
            clocks[at] += later;
            numbers[at] += 1;
            (line(sender, numbers[at] - 1, clocks[at]), has)
        });
        lines.collect()
    })
}

fn had_by(story: &[(LogLine, [bool; 3])], voter: usize) -> Vec<LogLine> {
    let has = story.iter().filter(|(_, has)| has[voter]);
    has.map(|(line, _)| line.clone()).collect()
}

proptest! {
    /// SEMANTICS 57.
    #[test]
    fn what_any_voter_has_is_read_once_and_in_one_order(story in story(), most in 1usize..7) {
        let voters = [0, 1, 2].map(|voter| had_by(&story, voter));
        let (read, lost) = read_all(&voters, most);
        let mut expect: Vec<LogLine> = story
            .iter()
            .filter(|(_, has)| has.contains(&true))
            .map(|(line, _)| line.clone())
            .collect();
        expect.sort_by_key(LogLine::place);
        prop_assert_eq!(&read, &expect);
        // Whoever is asked first, and however much at once.
        let turned = [voters[2].clone(), voters[0].clone(), voters[1].clone()];
        prop_assert_eq!(&read_all(&turned, 1000).0, &expect);
        // What is missing before a line that is there is counted.
        let mut missing = 0;
        for sender in 0..3 {
            let there = expect.iter().filter(|line| line.sender == sender);
            let numbers: BTreeSet<u64> = there.map(|line| line.number).collect();
            let end = numbers.last().map_or(0, |last| last + 1);
            missing += end - numbers.len() as u64;
        }
        prop_assert_eq!(lost, missing);
        for sender in 0..3 {
            let of = read.iter().filter(|line| line.sender == sender);
            let numbers: Vec<u64> = of.map(|line| line.number).collect();
            prop_assert!(numbers.is_sorted());
        }
    }

    /// SEMANTICS 57. The reader is at another voter at each step, and lines come in between.
    #[test]
    fn following_from_voter_to_voter_loses_and_repeats_nothing(
        story in story(),
        steps in proptest::collection::vec((0usize..60, 0usize..3, 1usize..5), 0..30),
    ) {
        let mut cursor = Cursor::default();
        let mut read = vec![];
        let mut there = 0;
        for (come, voter, most) in steps.into_iter().chain([(60, 0, 1000)]) {
            there = (there + come).min(story.len());
            // Each voter has all that has come, each tells another part of it.
            let has: Vec<LogLine> = story[..there].iter().map(|(line, _)| line.clone()).collect();
            let merged = merge(&cursor, vec![page(&has, &cursor, most + voter)]);
            read.extend(merged.lines.into_iter().map(|read| read.line));
            cursor = merged.next;
        }
        let mut once: Vec<LinePlace> = read.iter().map(LogLine::place).collect();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), read.len());
        prop_assert_eq!(read.len(), story.len());
    }
}

#[test]
fn what_made_room_is_told_from_what_was_lost() {
    let source = line(1, 0, 0).source();
    let pages = vec![
        Page {
            lines: vec![line(1, 5, 5), line(1, 8, 8)],
            more: false,
            gone: vec![(source, 4)],
        },
        Page {
            lines: vec![line(1, 8, 8)],
            more: false,
            gone: vec![(source, 3)],
        },
    ];
    let merged = merge(&Cursor::default(), pages.clone());
    let told: Vec<_> = merged
        .lines
        .iter()
        .map(|read| (read.line.number, read.gone, read.lost))
        .collect();
    assert_eq!(told, [(5, 4, 1), (8, 0, 2)]);
    assert!(merged.lacks());
    // Whoever has read up to there hears no more of it.
    let merged = merge(&[(source, 5)].into_iter().collect(), pages);
    assert_eq!((merged.lines[0].gone, merged.lines[0].lost), (0, 0));
}
