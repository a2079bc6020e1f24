//! The account of what cells have left out, by source. Pure.

use std::collections::BTreeSet;

use crate::plan::{CellMeta, CellName, SourceShape};
use crate::sample::SourceNumber;
use crate::source::LeftOut;

/// The account of what was left out of the cells that a planner has heard of, each counted once.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    sources: Vec<LeftOut>,
    /// The cells that something was left out of.
    counted: BTreeSet<CellName>,
}

impl Account {
    pub(super) fn new(sources: usize) -> Self {
        Self {
            sources: vec![LeftOut::default(); sources],
            counted: BTreeSet::new(),
        }
    }

    /// Takes in a cell, which may have been heard of before.
    pub(super) fn hear(&mut self, cell: &CellMeta) {
        if !cell.left_out.is_empty()
            && let Some(source) = self.sources.get_mut(usize::from(cell.source.0))
            && self.counted.insert(cell.name())
        {
            source.add(&cell.left_out);
        }
    }

    /// By the numbers of the sources.
    pub(super) fn sources(&self) -> &[LeftOut] {
        &self.sources
    }

    /// Says why nothing comes of a source that was read through.
    pub(super) fn barren(&self, source: SourceNumber, shapes: &[SourceShape]) -> String {
        let number = usize::from(source.0);
        let name = shapes.get(number).map_or("", |shape| &shape.name);
        match self.sources.get(number) {
            Some(left_out) if !left_out.is_empty() => {
                let first = left_out.first_bad().or_else(|| left_out.first.first());
                let first = first.map(ToString::to_string).unwrap_or_default();
                format!("source `{name}` has no samples: {left_out}; the first: {first}")
            }
            _ => format!("source `{name}` has no samples"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{SkipReason, Skipped};

    #[test]
    fn a_cell_is_counted_once_however_often_it_is_heard_of() {
        let skipped = |offset| Skipped {
            file: "a.jsonl".to_owned(),
            offset,
            record: 0,
            reason: SkipReason::Bad("torn".to_owned()),
        };
        let cell = |cell| {
            let name = CellName {
                source: SourceNumber(1),
                epoch: 0,
                cell,
            };
            let left_out = LeftOut {
                records: 2,
                bad: 2,
                first: vec![skipped(u64::from(cell))],
                ..LeftOut::default()
            };
            CellMeta {
                left_out,
                ..CellMeta::of(name, vec![])
            }
        };
        let mut account = Account::new(2);
        for heard in [0, 1, 0, 1, 2] {
            account.hear(&cell(heard));
        }
        assert!(account.sources()[0].is_empty());
        assert_eq!(account.sources()[1].records, 6);
        let shapes = ["one", "two"].map(|name| SourceShape {
            name: name.to_owned(),
            cells: 3,
        });
        assert_eq!(
            account.barren(SourceNumber(1), &shapes),
            "source `two` has no samples: 6 records left out; the first: a.jsonl, at 0, record 0: torn"
        );
        assert_eq!(
            account.barren(SourceNumber(0), &shapes),
            "source `one` has no samples"
        );
    }
}
