//! Reading a source in its order, with samples that wait for steps that want their length.

use std::collections::{BTreeMap, VecDeque};

use crate::sample::{SampleId, SampleMeta, SourceNumber};

use super::cell::{CellMeta, CellName};
use super::state::SourceState;

/// The lengths that a step wants: longer than the first, and no longer than the second, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) above: u32,
    pub(super) most: u32,
}

impl Lengths {
    pub(super) const ANY: Self = Self {
        above: 0,
        most: u32::MAX,
    };

    pub(super) fn has(self, tokens: u32) -> bool {
        // A sample without tokens is as short as can be, and not shorter than everything.
        (self.above == 0 || tokens > self.above) && tokens <= self.most
    }
}

/// One source on its way through its cells.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    name: String,
    number: SourceNumber,
    cells: u32,
    epochs: Option<u32>,
    waiting_max: usize,
    epoch: u32,
    cell: u32,
    nth: usize,
    any: bool,
    /// Cells from the cursor on, as far as they were heard.
    heard: BTreeMap<(u32, u32), Vec<SampleMeta>>,
    /// Waiting samples that this step wants, in their order.
    ready: VecDeque<SampleMeta>,
    /// Those that it does not want.
    waiting: VecDeque<SampleMeta>,
    /// Cells that were heard so far, and what they had in samples and tokens. An estimate of how
    /// much a cell has; no plan depends on it.
    pub(super) seen: Seen,
}

/// Counts of the cells that were heard, with their samples and tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) cells: u64,
    pub(super) samples: u64,
    pub(super) tokens: u64,
}

impl Seen {
    /// Of a sample; 1 where none was heard.
    pub(super) fn mean_tokens(self) -> f64 {
        if self.tokens == 0 {
            1.0
        } else {
            self.tokens as f64 / self.samples as f64
        }
    }
}

/// The next thing that a source would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A sample of so many tokens, which [`Reader::take`] takes.
    Sample { tokens: u32, from: From },
    /// It depends on a cell that was not heard.
    Unheard(CellName),
    /// A whole pass has had no sample, so there is no end to reading.
    Barren,
    /// It has given all.
    Ended,
}

/// Where a sample comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    Ready,
    Order,
    Oldest,
}

impl Reader {
    pub(super) fn at(
        number: SourceNumber,
        cells: u32,
        epochs: Option<u32>,
        waiting_max: usize,
        state: SourceState,
    ) -> Self {
        Self {
            name: state.name,
            number,
            cells,
            epochs,
            waiting_max,
            epoch: state.epoch,
            cell: state.cell,
            nth: state.nth as usize,
            any: state.any,
            heard: BTreeMap::new(),
            ready: VecDeque::new(),
            waiting: state.waiting.into(),
            seen: Seen::default(),
        }
    }

    /// At a step's border, where nothing is ready.
    pub(super) fn state(&self, owed: i64) -> SourceState {
        SourceState {
            name: self.name.clone(),
            epoch: self.epoch,
            cell: self.cell,
            nth: self.nth as u32,
            any: self.any,
            owed,
            waiting: self.waiting.iter().cloned().collect(),
        }
    }

    pub(super) fn cursor(&self) -> CellName {
        CellName {
            source: self.number,
            epoch: self.epoch,
            cell: self.cell,
        }
    }

    pub(super) fn kept(&self) -> Vec<SampleId> {
        self.waiting.iter().map(|sample| sample.id).collect()
    }

    pub(super) fn waiting(&self) -> &VecDeque<SampleMeta> {
        &self.waiting
    }

    pub(super) fn is_full(&self) -> bool {
        !self.waiting.is_empty() && self.waiting.len() >= self.waiting_max
    }

    /// Returns true once all of its order was read.
    fn is_read(&self) -> bool {
        self.epochs.is_some_and(|epochs| self.epoch >= epochs)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_read() && self.ready.is_empty() && self.waiting.is_empty()
    }

    /// Number of cells that the given one is ahead of the cursor; `None` for one behind, or one
    /// that the source does not have.
    pub(super) fn ahead(&self, name: CellName) -> Option<u64> {
        let past = self.epochs.is_some_and(|epochs| name.epoch >= epochs);
        if past || name.cell >= self.cells {
            return None;
        }
        let count =
            |epoch: u32, cell: u32| u64::from(epoch) * u64::from(self.cells) + u64::from(cell);
        count(name.epoch, name.cell).checked_sub(count(self.epoch, self.cell))
    }

    pub(super) fn knows(&self, name: CellName) -> bool {
        self.heard.contains_key(&(name.epoch, name.cell))
    }

    pub(super) fn has_cell(&self, cell: u32) -> bool {
        cell < self.cells
    }

    pub(super) fn hear(&mut self, cell: CellMeta) {
        let tokens = |sample: &SampleMeta| u64::from(sample.tokens);
        self.seen.cells += 1;
        self.seen.samples += cell.samples.len() as u64;
        self.seen.tokens += cell.samples.iter().map(tokens).sum::<u64>();
        self.heard.insert((cell.epoch, cell.cell), cell.samples);
    }

    /// The cells from the cursor on, whether heard or not.
    pub(super) fn upcoming(&self) -> impl Iterator<Item = CellName> + '_ {
        let mut next = (!self.is_read()).then(|| self.cursor());
        std::iter::from_fn(move || {
            let now = next?;
            let mut after = now;
            after.cell += 1;
            if after.cell == self.cells {
                after.cell = 0;
                after.epoch += 1;
            }
            let past = self.epochs.is_some_and(|epochs| after.epoch >= epochs);
            next = (!past).then_some(after);
            Some(now)
        })
    }

    /// Sets apart which of the waiting samples the step wants.
    pub(super) fn begin(&mut self, lengths: Lengths) {
        let all = std::mem::take(&mut self.waiting);
        let (ready, waiting) = all.into_iter().partition(|s| lengths.has(s.tokens));
        (self.ready, self.waiting) = (ready, waiting);
    }

    /// Puts back those that it wanted and had no room for.
    pub(super) fn end(&mut self) {
        if !self.ready.is_empty() {
            self.waiting.extend(self.ready.drain(..));
            self.waiting.make_contiguous().sort_by_key(|s| s.id);
        }
    }

    /// Looks at what comes next. It passes empty cells by and lets samples wait; asked again, it
    /// says the same.
    pub(super) fn look(&mut self, lengths: Lengths) -> Look {
        let oldest = |tokens| Look::Sample {
            tokens,
            from: From::Oldest,
        };
        loop {
            if let Some(sample) = self.ready.front() {
                return Look::Sample {
                    tokens: sample.tokens,
                    from: From::Ready,
                };
            }
            if self.is_read() {
                // Nothing else will come, so what waits comes whatever its length.
                return self
                    .waiting
                    .front()
                    .map_or(Look::Ended, |s| oldest(s.tokens));
            }
            let Some(cell) = self.heard.get(&(self.epoch, self.cell)) else {
                return Look::Unheard(self.cursor());
            };
            let Some(sample) = cell.get(self.nth) else {
                if !self.pass() {
                    return Look::Barren;
                }
                continue;
            };
            if lengths.has(sample.tokens) {
                return Look::Sample {
                    tokens: sample.tokens,
                    from: From::Order,
                };
            }
            if self.waiting.len() >= self.waiting_max {
                let tokens = self.waiting.front().map_or(sample.tokens, |s| s.tokens);
                let from = if self.waiting.is_empty() {
                    From::Order
                } else {
                    From::Oldest
                };
                return Look::Sample { tokens, from };
            }
            self.waiting.push_back(sample.clone());
            self.step_over();
        }
    }

    /// Takes what was looked at.
    pub(super) fn take(&mut self, from: From) -> Option<SampleMeta> {
        match from {
            From::Ready => self.ready.pop_front(),
            From::Oldest => self.waiting.pop_front(),
            From::Order => {
                let cell = self.heard.get(&(self.epoch, self.cell))?;
                let sample = cell.get(self.nth)?.clone();
                self.step_over();
                Some(sample)
            }
        }
    }

    /// Goes to the sample after this one.
    fn step_over(&mut self) {
        self.any = true;
        self.nth += 1;
        let len = self.heard.get(&(self.epoch, self.cell)).map_or(0, Vec::len);
        if self.nth >= len {
            self.pass();
        }
    }

    /// Goes to the next cell; `false` where a pass ends that had no sample.
    fn pass(&mut self) -> bool {
        if self.cell + 1 == self.cells {
            if !self.any {
                return false;
            }
            self.heard.remove(&(self.epoch, self.cell));
            (self.epoch, self.cell, self.any) = (self.epoch + 1, 0, false);
        } else {
            self.heard.remove(&(self.epoch, self.cell));
            self.cell += 1;
        }
        self.nth = 0;
        true
    }
}
