//! Answers without order.

use super::{
    super::{Equality, answer::Answer, budget::Budget},
    all, answers,
};

/// Compares two lists of one length, the items of which have to be equal in pairs.
pub(super) fn in_pairs(first: &[Answer], second: &[Answer], budget: &mut Budget) -> Equality {
    if first.len() != second.len() {
        return Equality::Different;
    }
    if first.len() > ITEMS_MAX {
        return Equality::Undecided;
    }
    let mut table = Vec::new();
    for item in first {
        table.push(
            second
                .iter()
                .map(|other| answers(item, other, budget))
                .collect(),
        );
    }
    if pairs(&table, |found| found == Equality::Equal) {
        Equality::Equal
    } else if pairs(&table, |found| found != Equality::Different) {
        Equality::Undecided
    } else {
        Equality::Different
    }
}

/// Returns true when rows and columns can be paired at places that fit.
fn pairs(table: &[Vec<Equality>], fits: fn(Equality) -> bool) -> bool {
    let mut row_of = vec![None; table.len()];
    (0..table.len()).all(|row| {
        let mut seen = vec![false; table.len()];
        pair(row, table, fits, &mut seen, &mut row_of)
    })
}

/// Pairs one more row, for which others may have to change theirs. As deep as there are rows.
fn pair(
    row: usize,
    table: &[Vec<Equality>],
    fits: fn(Equality) -> bool,
    seen: &mut [bool],
    row_of: &mut [Option<usize>],
) -> bool {
    for column in 0..table.len() {
        if seen[column] || !fits(table[row][column]) {
            continue;
        }
        seen[column] = true;
        let free = match row_of[column] {
            Some(other) => pair(other, table, fits, seen, row_of),
            None => true,
        };
        if free {
            row_of[column] = Some(row);
            return true;
        }
    }
    false
}

/// Compares two lists, each item of which has to have an equal in the other.
pub(super) fn without_order(first: &[Answer], second: &[Answer], budget: &mut Budget) -> Equality {
    let ways = [(first, second), (second, first)];
    all(ways
        .into_iter()
        .map(|(of, among)| each_has_an_equal(of, among, budget)))
}

fn each_has_an_equal(of: &[Answer], among: &[Answer], budget: &mut Budget) -> Equality {
    let best = |item: &Answer, budget: &mut Budget| {
        let mut best = Equality::Different;
        for other in among {
            match answers(item, other, budget) {
                Equality::Equal => return Equality::Equal,
                Equality::Undecided => best = Equality::Undecided,
                Equality::Different => {}
            }
        }
        best
    };
    all(of.iter().map(|item| best(item, budget)))
}

/// More answers than one list has.
const ITEMS_MAX: usize = 128;
