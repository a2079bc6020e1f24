//! Sequences of a batch as micro-batches of a model, of which several ranks may have a part each.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use odeon::Failure;
use odeon_algorithms::model::{self, Sequence, TokenScores};
use odeon_algorithms::train::TokenGradients;
use odeon_gpu::Backend;

use super::dealing::{RankPlace, runs};
use super::models::Model;
use super::peers::PassGang;
use crate::trajectory::{Observed, Trajectory};

/// A sequence to rate.
#[derive(Clone, Debug, Default)]
pub(super) struct Row {
    /// Prompt and response.
    pub(super) tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub(super) prompt: usize,
    /// Which response tokens are read and not rated.
    pub(super) observed: Observed,
}

impl Row {
    /// Prompt and response of a reply.
    pub(super) fn of(trajectory: &Trajectory) -> Self {
        Self {
            tokens: [trajectory.prompt.as_slice(), trajectory.response.as_slice()].concat(),
            prompt: trajectory.prompt.len(),
            observed: trajectory.observed.clone(),
        }
    }

    /// Tokens that are rated.
    pub(super) fn sampled(&self) -> usize {
        self.observed.sampled(self.tokens.len() - self.prompt)
    }
}

/// Sequences as micro-batches of a model.
pub(super) struct Rows {
    /// Those of this rank.
    all: Vec<Row>,
    /// Where they are cut.
    cuts: Vec<Range<usize>>,
    /// Number of micro-batches. Those behind the last cut are empty: this rank computes them with others, who have more.
    micro_batches: usize,
    /// Set where sequences that follow each other with the same prompt have it once.
    share: bool,
    place: RankPlace,
}

impl Rows {
    /// Those of a rank among those that share the model, as its back-end takes them: it has a run of the sequences, which
    /// is answered.
    pub(super) fn dealt(all: Vec<Row>, model: &Model, place: RankPlace) -> (Self, Range<usize>) {
        let share = model.backend().shares_prefixes() && place.sharing.of_stage() == 1;
        let data = place.data();
        let runs = runs(0..all.len(), |at| all[at].tokens.len(), data.ranks);
        Self::of_run(all, &runs, (share, place), |rows| cuts(rows, share))
    }

    /// The same of pairs of neighbours, which stay together.
    pub(super) fn of_pairs(all: Vec<Row>, place: RankPlace) -> Self {
        let tokens = |rows: &[Row], pair: usize| -> usize {
            let both = rows[2 * pair..2 * pair + 2].iter();
            both.map(|row| row.tokens.len()).sum()
        };
        let of_rows = |pairs: Range<usize>| 2 * pairs.start..2 * pairs.end;
        let dealt = runs(
            0..all.len() / 2,
            |pair| tokens(&all, pair),
            place.data().ranks,
        );
        let dealt: Vec<_> = dealt.into_iter().map(of_rows).collect();
        let cuts = |rows: &[Row]| {
            let cuts = micro_batches(rows.len() / 2, |pair, _| tokens(rows, pair));
            cuts.into_iter().map(of_rows).collect()
        };
        Self::of_run(all, &dealt, (false, place), cuts).0
    }

    /// The run of a rank, in micro-batches.
    fn of_run(
        mut all: Vec<Row>,
        runs: &[Range<usize>],
        (share, place): (bool, RankPlace),
        cuts: impl Fn(&[Row]) -> Vec<Range<usize>>,
    ) -> (Self, Range<usize>) {
        let data = place.data();
        let cuts_of = |run: &Range<usize>| cuts(&all[run.clone()]);
        let own = runs[data.rank].clone();
        let cuts = cuts_of(&own);
        let most = match place.waits_for_others() {
            true => runs.iter().map(|run| cuts_of(run).len()).max(),
            false => None,
        };
        // A pipeline has a pass at least.
        let least = usize::from(place.sharing.stages > 1);
        let micro_batches = most.unwrap_or(cuts.len()).max(least);
        all.truncate(own.end);
        all.drain(..own.start);
        let rows = Self {
            all,
            cuts,
            micro_batches,
            share,
            place,
        };
        (rows, own)
    }

    /// Number of micro-batches.
    pub(super) const fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The sequences of a micro-batch, which may be none.
    pub(super) fn sequences(&self, micro: usize) -> Range<usize> {
        let end = self.all.len();
        self.cuts.get(micro).cloned().unwrap_or(end..end)
    }

    /// Tokens of all, those of a prompt once for each.
    pub(super) fn tokens(&self) -> u64 {
        self.all.iter().map(|row| row.tokens.len() as u64).sum()
    }

    /// A micro-batch, whole.
    pub(super) fn pack(&self, micro: usize) -> Result<model::Batch, Failure> {
        match self.sequences(micro) {
            none if none.is_empty() => nothing(),
            some => pack(&self.all[some], self.share),
        }
    }

    /// The rows of this rank of a micro-batch, and which response tokens these predict.
    pub(super) fn own_part(&self, batch: model::Batch) -> (model::Batch, Predictions) {
        let RankPlace { sharing, .. } = self.place;
        let context = self.place.context();
        let predictions = Predictions {
            own: batch.own_predictions(context, sharing.context_kind, sharing.tensor),
            all: batch.predicted(),
        };
        let own = batch.of_ranks(context, sharing.context_kind, sharing.tensor);
        (own, predictions)
    }
}

/// A token that predicts nothing, for ranks that others wait for.
fn nothing() -> Result<model::Batch, Failure> {
    let nothing = Sequence {
        tokens: &[0],
        prompt: 1,
    };
    model::Batch::pack(&[nothing]).map_err(Failure::error)
}

/// The response tokens of a micro-batch that a rank scores, of those that have rows of the same sequences each.
#[derive(Clone, Debug, Default)]
pub(super) struct Predictions {
    /// By their numbers.
    own: Vec<usize>,
    /// Number of all.
    all: usize,
}

impl Predictions {
    /// The scores of all response tokens, of which each of these ranks has its own.
    ///
    /// # Errors
    /// A rank is lost.
    pub(super) fn scores_of_all<'a>(
        &self,
        ranks: Option<&Arc<PassGang>>,
        own: &'a TokenScores,
    ) -> Result<Cow<'a, TokenScores>, Failure> {
        let Some(ranks) = ranks else {
            return Ok(Cow::Borrowed(own));
        };
        let kinds = [&own.logprobs, &own.entropies, &own.values];
        let mut together = vec![0.0; kinds.len() * self.all];
        for (all, own) in together.chunks_mut(self.all.max(1)).zip(kinds) {
            for (number, score) in self.own.iter().zip(own) {
                all[*number] = *score;
            }
        }
        // The others' numbers are zero here, and this rank's there.
        ranks.sum_numbers(&mut together)?;
        let mut all = together.chunks(self.all.max(1)).map(<[f32]>::to_vec);
        let mut next = || all.next().unwrap_or_default();
        let (logprobs, entropies, values) = (next(), next(), next());
        Ok(Cow::Owned(TokenScores {
            logprobs,
            entropies,
            values,
        }))
    }

    /// This rank's part of the gradients of all response tokens.
    pub(super) fn own_gradients(&self, all: &TokenGradients, own: &mut TokenGradients) {
        let part = |all: &[f32], own: &mut [f32]| {
            for (gradient, number) in own.iter_mut().zip(&self.own) {
                // Of what is not learnt from there are none.
                *gradient = all.get(*number).copied().unwrap_or_default();
            }
        };
        part(&all.logprobs, &mut own.logprobs);
        part(&all.entropies, &mut own.entropies);
        part(&all.values, &mut own.values);
    }
}

/// Packs rows, with one prompt for those that share it or not.
pub(super) fn pack(rows: &[Row], share: bool) -> Result<model::Batch, Failure> {
    let sequences: Vec<Sequence<'_>> = rows
        .iter()
        .map(|row| Sequence {
            tokens: &row.tokens,
            prompt: row.prompt,
        })
        .collect();
    let batch = match share {
        true => model::Batch::pack_sharing(&sequences),
        false => model::Batch::pack(&sequences),
    };
    let batch = batch.map_err(Failure::error)?;
    Ok(match rows.iter().any(|row| row.observed.turns() > 0) {
        true => batch.predicting(|row, at| !rows[row].observed.has(at)),
        false => batch,
    })
}

/// Where rows are cut into micro-batches, with one prompt for those that share it or not.
fn cuts(rows: &[Row], share: bool) -> Vec<Range<usize>> {
    let tokens = |index: usize, follows: bool| {
        let row = &rows[index];
        let before = index.checked_sub(1).map(|before| &rows[before]);
        let shared = before.filter(|before| {
            share && follows && before.tokens[..before.prompt] == row.tokens[..row.prompt]
        });
        row.tokens.len() - shared.map_or(0, |before| before.prompt)
    };
    micro_batches(rows.len(), tokens)
}

/// Groups of sequences whose tokens together stay below a bound, so that activations do. `tokens` says how
/// many one has, where the one before is in the same group or not.
pub(super) fn micro_batches(
    count: usize,
    tokens: impl Fn(usize, bool) -> usize,
) -> Vec<Range<usize>> {
    let mut batches = vec![];
    let (mut start, mut sum) = (0, 0);
    for index in 0..count {
        if index > start && sum + tokens(index, true) > MICRO_BATCH_TOKENS {
            batches.push(start..index);
            (start, sum) = (index, 0);
        }
        sum += tokens(index, index > start);
    }
    if start < count {
        batches.push(start..count);
    }
    batches
}

/// Tokens of the largest micro-batch, and number of them, of so many sequences that are all this long.
pub(crate) fn largest_micro_batches(sequences: usize, tokens: usize) -> (usize, usize) {
    let all = micro_batches(sequences, |_, _| tokens);
    let longest = all.iter().map(ExactSizeIterator::len).max();
    (longest.unwrap_or(1) * tokens, all.len().max(1))
}

const MICRO_BATCH_TOKENS: usize = 4096;
