//! Sequences of different lengths, packed one after the other.

use std::ops::Range;
use std::sync::Arc;

use odeon_gpu::{DropoutRow, RowSpans};
use thiserror::Error;

use super::dropout::{Dropout, DropoutRows};
use super::rank::{ContextKind, RankOf};

/// One sequence to score: a prompt and the response whose tokens are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// Prompt, then response.
    pub tokens: &'a [u32],
    /// Tokens of the prompt, at least one. Pretraining predicts all but the first: 1.
    pub prompt: usize,
}

/// Packed sequences without padding. Per-token numbers of a pass over it are one a response token,
/// sequence after sequence.
#[derive(Clone, Debug)]
pub struct Batch {
    tokens: Arc<[u32]>,
    positions: Arc<[u32]>,
    spans: RowSpans,
    rows: Arc<[u32]>,
    labels: Arc<[u32]>,
    responses: Vec<Range<usize>>,
    temperature: f32,
    visual: Arc<[u32]>,
    /// Set where numbers of its rows are dropped.
    dropout: Option<DropoutRows>,
    /// The rank whose rows these are, where ranks share them. Spans are those of all rows in any case.
    context: RankOf,
    /// The way in which these ranks attend to each other's rows.
    context_kind: ContextKind,
}

/// Why sequences cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BatchError {
    /// There is no sequence.
    #[error("a batch needs at least one sequence")]
    Empty,
    /// The first token of a sequence has nothing that predicts it.
    #[error("sequence {0} has no prompt: its first token cannot be predicted")]
    NoPrompt(usize),
    /// The prompt is longer than the sequence.
    #[error("sequence {0} is shorter than its prompt")]
    ShortSequence(usize),
}

impl Batch {
    /// Packs sequences. A sequence without response is allowed and counts for nothing.
    ///
    /// # Errors
    /// If there is no sequence, or a prompt is empty or longer than its sequence.
    pub fn pack(sequences: &[Sequence<'_>]) -> Result<Self, BatchError> {
        Self::pack_with(sequences, false)
    }

    /// The same, with one prompt for sequences that follow each other and have the same: it passes through
    /// the network once, as the samples of a group ask for. For back-ends that
    /// [read prefixes](odeon_gpu::Backend::shares_prefixes).
    ///
    /// # Errors
    /// If there is no sequence, or a prompt is empty or longer than its sequence.
    pub fn pack_sharing(sequences: &[Sequence<'_>]) -> Result<Self, BatchError> {
        Self::pack_with(sequences, true)
    }

    fn pack_with(sequences: &[Sequence<'_>], share: bool) -> Result<Self, BatchError> {
        if sequences.is_empty() {
            return Err(BatchError::Empty);
        }
        for (i, Sequence { tokens, prompt }) in sequences.iter().enumerate() {
            match *prompt {
                0 => return Err(BatchError::NoPrompt(i)),
                prompt if prompt > tokens.len() => return Err(BatchError::ShortSequence(i)),
                _ => {}
            }
        }
        let mut packing = Packing::default();
        let together = |one: &Sequence<'_>, other: &Sequence<'_>| {
            share && one.tokens[..one.prompt] == other.tokens[..other.prompt]
        };
        for group in sequences.chunk_by(together) {
            match group {
                [one] => packing.sequence(*one),
                all => packing.group(all),
            }
        }
        let bounds = [0].into_iter().chain(packing.ends).collect::<Vec<u32>>();
        Ok(Self {
            tokens: packing.tokens.into(),
            positions: packing.positions.into(),
            spans: match packing.shares {
                true => RowSpans::sharing(bounds, packing.prefixes),
                false => RowSpans::apart(bounds),
            },
            rows: packing.rows.into(),
            labels: packing.labels.into(),
            responses: packing.responses,
            temperature: 1.0,
            visual: Arc::default(),
            dropout: None,
            context: RankOf::ALONE,
            context_kind: ContextKind::default(),
        })
    }

    /// The same batch with only those response tokens predicted that `own` says, by the number of their
    /// sequence and their place in its response: the others are read as a prompt is, and there is no
    /// number for them.
    #[must_use]
    pub fn predicting(self, own: impl Fn(usize, usize) -> bool) -> Self {
        let (mut rows, mut labels, mut responses) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, response) in self.responses.iter().enumerate() {
            let first = labels.len();
            for at in response.clone() {
                if own(sequence, at - response.start) {
                    rows.push(self.rows[at]);
                    labels.push(self.labels[at]);
                }
            }
            responses.push(first..labels.len());
        }
        Self {
            rows: rows.into(),
            labels: labels.into(),
            responses,
            ..self
        }
    }

    /// The same batch scored under logits divided by `temperature`: the distribution that sampled
    /// it.
    #[must_use]
    pub fn with_temperature(self, temperature: f32) -> Self {
        Self {
            temperature,
            ..self
        }
    }

    /// The same batch with pictures: for each token that passes through the network 0, or 1 and the
    /// number of the feature that is added to it, among those that the pass is given.
    ///
    /// # Panics
    /// If there is not one number a token.
    #[must_use]
    pub fn seeing(self, visual: Vec<u32>) -> Self {
        assert_eq!(visual.len(), self.processed(), "one number a token");
        Self {
            visual: visual.into(),
            ..self
        }
    }

    /// The same batch with dropout in passes that learn from it; those that rate have none. `samples` are a number for
    /// each sequence, which is the same wherever it is computed and no other's in this step.
    ///
    /// # Panics
    /// If there is not one number a sequence, or prompts are shared, or it is a rank's already.
    #[must_use]
    pub fn dropping(self, dropout: Dropout, samples: &[u128]) -> Self {
        if dropout.is_off() {
            return self;
        }
        assert_eq!(samples.len(), self.spans.count(), "one number a sequence");
        let is_whole = self.context.ranks == 1 && !self.spans.share();
        assert!(is_whole, "sequences as they were packed");
        let streams = samples.iter().map(|sample| dropout.stream(*sample));
        let rows = streams.zip(self.spans.iter()).flat_map(|(stream, span)| {
            let positions = self.positions[span.rows].iter();
            positions.map(move |position| DropoutRow {
                stream,
                position: *position,
            })
        });
        let rows = DropoutRows::new(dropout, rows.collect());
        Self {
            dropout: Some(rows),
            ..self
        }
    }

    /// The same batch without dropout, for passes that rate.
    pub(crate) fn without_dropout(&self) -> Self {
        Self {
            dropout: None,
            ..self.clone()
        }
    }

    /// The rows of a context rank, of those that share the rows of each batch: as many for each of them, and each time a
    /// multiple of the `tensor` ranks that share these again. Those of a rank follow each other, or for a ring are a run
    /// of the first half and one of the second ([`ContextKind`]). Where rows are too few, sequences of one token are
    /// added, which predict nothing. Predicted are the response tokens that rows of this rank predict.
    ///
    /// # Panics
    /// If it has pictures or shared prompts, or is a rank's already.
    #[must_use]
    pub fn of_ranks(self, context: RankOf, kind: ContextKind, tensor: usize) -> Self {
        if context.ranks * tensor == 1 {
            return self;
        }
        assert_eq!(self.context.ranks, 1, "rows are shared once");
        let alone = self.visual.is_empty() && !self.spans.share();
        assert!(alone, "no pictures, and no prefixes");
        // Of one rank all kinds are the same.
        let kind = match context.ranks {
            1 => ContextKind::default(),
            _ => kind,
        };
        let read = self.tokens.len();
        let all = kind.shared(read, context.ranks, tensor);
        let runs = kind.runs(context, all);
        let added = read as u32 + 1..=all as u32;
        let bounds = self.spans.bounds().iter().copied().chain(added);
        let own = |row: usize| place_in(&runs, row);
        let is_own = |sequence: usize, at: usize| {
            let at = self.responses[sequence].start + at;
            own(self.rows[at] as usize).is_some()
        };
        let dropout = self.dropout.as_ref();
        let part = self.clone().predicting(is_own);
        let rows = part.rows.iter().filter_map(|row| own(*row as usize));
        Self {
            tokens: rows_of(&runs, &self.tokens),
            positions: rows_of(&runs, &self.positions),
            spans: RowSpans::apart(bounds.collect::<Vec<u32>>()),
            rows: rows.map(|row| row as u32).collect(),
            dropout: dropout.map(|all| all.of(rows_of(&runs, all.rows()))),
            context,
            context_kind: kind,
            ..part
        }
    }

    /// The response tokens that rows of a context rank predict, by their numbers among those of this batch and in
    /// their order: what [`of_ranks`](Self::of_ranks) of it predicts.
    #[must_use]
    pub fn own_predictions(&self, context: RankOf, kind: ContextKind, tensor: usize) -> Vec<usize> {
        if context.ranks == 1 {
            return (0..self.predicted()).collect();
        }
        let all = kind.shared(self.tokens.len(), context.ranks, tensor);
        let runs = kind.runs(context, all);
        let own = |number: &usize| place_in(&runs, self.rows[*number] as usize).is_some();
        (0..self.predicted()).filter(own).collect()
    }

    /// # Panics
    /// If these are not the rows of this context rank, or so many tensor ranks cannot share them: see
    /// [`of_ranks`](Self::of_ranks).
    pub(crate) fn check_rows(&self, context: RankOf, tensor: usize) {
        assert_eq!(self.context, context, "the rows of this rank");
        let even = self.processed().is_multiple_of(tensor);
        assert!(even, "as many rows on each tensor rank");
    }

    /// The same with one token predicted in place of none: for a pass whose numbers nobody asks for.
    pub(crate) fn standing_in(&self) -> Self {
        Self {
            rows: [0].into(),
            labels: [0].into(),
            ..self.clone()
        }
    }

    /// Response tokens of each sequence, as a range of the per-token numbers.
    #[must_use]
    pub fn responses(&self) -> &[Range<usize>] {
        &self.responses
    }

    /// Number of response tokens.
    #[must_use]
    pub fn predicted(&self) -> usize {
        self.labels.len()
    }

    /// Number of tokens that pass through the network.
    #[must_use]
    pub fn processed(&self) -> usize {
        self.tokens.len()
    }

    /// The response tokens themselves.
    #[must_use]
    pub fn labels(&self) -> &Arc<[u32]> {
        &self.labels
    }

    /// Divisor of the logits.
    #[must_use]
    pub fn temperature(&self) -> f32 {
        self.temperature
    }

    pub(crate) fn tokens(&self) -> &Arc<[u32]> {
        &self.tokens
    }

    pub(crate) fn positions(&self) -> &Arc<[u32]> {
        &self.positions
    }

    /// Rows of each span, and of its prefix.
    pub(crate) fn spans(&self) -> &RowSpans {
        &self.spans
    }

    /// The rows of which numbers are dropped, where there is dropout.
    pub(super) fn dropout(&self) -> Option<&DropoutRows> {
        self.dropout.as_ref()
    }

    /// The rank whose rows these are.
    pub(crate) fn context(&self) -> RankOf {
        self.context
    }

    /// The way in which ranks that share rows attend to those of all.
    pub(crate) fn context_kind(&self) -> ContextKind {
        self.context_kind
    }

    /// Which feature each token sees; nothing where the batch has no pictures.
    pub(crate) fn visual(&self) -> &Arc<[u32]> {
        &self.visual
    }

    /// Row that predicts each response token.
    pub(crate) fn rows(&self) -> &Arc<[u32]> {
        &self.rows
    }

    /// True where those are not all rows, each once.
    pub(crate) fn selects(&self) -> bool {
        self.spans.share() || self.rows.len() < self.tokens.len()
    }
}

/// The numbers of runs of rows; of rows that are added zeros.
fn rows_of<T: Copy + Default>(runs: &[Range<usize>], numbers: &[T]) -> Arc<[T]> {
    let rows = runs.iter().cloned().flatten();
    rows.map(|row| numbers.get(row).copied().unwrap_or_default())
        .collect()
}

/// Where a row lies in runs of rows that lie one behind the other, if it is in one.
fn place_in(runs: &[Range<usize>], row: usize) -> Option<usize> {
    let mut before = 0;
    runs.iter().find_map(|run| {
        let place = run.contains(&row).then(|| before + row - run.start);
        before += run.len();
        place
    })
}

/// A batch that comes to be.
#[derive(Default)]
struct Packing {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    /// Where spans end.
    ends: Vec<u32>,
    prefixes: Vec<u32>,
    /// Set when a span has a prefix.
    shares: bool,
    rows: Vec<u32>,
    labels: Vec<u32>,
    responses: Vec<Range<usize>>,
}

impl Packing {
    /// A span of these tokens from a position on; its first row.
    fn span(&mut self, tokens: &[u32], position: usize, prefix: Option<u32>) -> u32 {
        let first = self.tokens.len() as u32;
        let number = self.ends.len() as u32;
        self.tokens.extend_from_slice(tokens);
        self.positions
            .extend((position..position + tokens.len()).map(|at| at as u32));
        self.ends.push(self.tokens.len() as u32);
        self.prefixes.push(prefix.unwrap_or(number));
        first
    }

    /// The tokens of a response, and the rows that predict them.
    fn predict(&mut self, rows: impl Iterator<Item = u32>, labels: &[u32]) {
        let first = self.labels.len();
        self.rows.extend(rows.take(labels.len()));
        self.labels.extend_from_slice(labels);
        self.responses.push(first..self.labels.len());
    }

    fn sequence(&mut self, Sequence { tokens, prompt }: Sequence<'_>) {
        // The last token predicts nothing, so it is a label only.
        let read = (tokens.len() - 1).max(1);
        let first = self.span(&tokens[..read], 0, None);
        self.predict(first + prompt as u32 - 1.., &tokens[prompt..]);
    }

    /// Sequences with one prompt, whose last token predicts the first of each response.
    fn group(&mut self, all: &[Sequence<'_>]) {
        self.shares = true;
        let (number, prompt) = (self.ends.len() as u32, all[0].prompt);
        let last = self.span(&all[0].tokens[..prompt], 0, None) + prompt as u32 - 1;
        for Sequence { tokens, .. } in all {
            let response = &tokens[prompt..];
            let read = response.len().saturating_sub(1);
            let first = self.span(&response[..read], prompt, Some(number));
            self.predict([last].into_iter().chain(first..), response);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_packed_without_padding_and_the_last_token_is_a_label_only() {
        let a = Sequence {
            tokens: &[5, 6, 7, 8],
            prompt: 2,
        };
        let b = Sequence {
            tokens: &[9],
            prompt: 1,
        };
        let c = Sequence {
            tokens: &[1, 2],
            prompt: 1,
        };
        let batch = Batch::pack(&[a, b, c]).unwrap();
        assert_eq!(batch.tokens()[..], [5, 6, 7, 9, 1]);
        assert_eq!(batch.positions()[..], [0, 1, 2, 0, 0]);
        assert_eq!(batch.spans().bounds(), [0, 3, 4, 5]);
        assert!(!batch.spans().share());
        assert_eq!(batch.rows()[..], [1, 2, 4]);
        assert_eq!(batch.labels()[..], [7, 8, 2]);
        assert_eq!(batch.responses(), [0..2, 2..2, 2..3]);
        let own = batch
            .clone()
            .predicting(|sequence, at| (sequence, at) != (0, 0));
        assert_eq!(own.tokens()[..], batch.tokens()[..]);
        assert_eq!(own.rows()[..], [2, 4]);
        assert_eq!(own.labels()[..], [8, 2]);
        assert_eq!(own.responses(), [0..1, 1..1, 1..2]);
        assert_eq!(Batch::pack(&[]).unwrap_err(), BatchError::Empty);
        let bad = |prompt| {
            Batch::pack(&[Sequence {
                tokens: &[1, 2],
                prompt,
            }])
            .unwrap_err()
        };
        assert_eq!(bad(0), BatchError::NoPrompt(0));
        assert_eq!(bad(3), BatchError::ShortSequence(0));
    }

    #[test]
    fn ranks_have_the_rows_of_a_batch_between_them() {
        let sequence = |tokens, prompt| Sequence { tokens, prompt };
        let all = [sequence(&[5, 6, 7, 8][..], 2), sequence(&[1, 2, 3], 1)];
        let batch = Batch::pack(&all).unwrap();
        let of = |rank| {
            batch
                .clone()
                .of_ranks(RankOf::new(rank, 3), ContextKind::Ulysses, 1)
        };
        let tokens = [0, 1, 2].map(|rank| of(rank).tokens().to_vec());
        assert_eq!(tokens, [[5, 6], [7, 1], [2, 0]]);
        let positions = [0, 1, 2].map(|rank| of(rank).positions().to_vec());
        assert_eq!(positions, [[0, 1], [2, 0], [1, 0]]);
        let predicted =
            [0, 1, 2].map(|rank| (of(rank).rows().to_vec(), of(rank).labels().to_vec()));
        let expected = [
            (vec![1], vec![7]),
            (vec![0, 1], vec![8, 2]),
            (vec![0], vec![3]),
        ];
        assert_eq!(predicted, expected);
        assert_eq!(of(1).responses(), [0..1, 1..2]);
        for rank in 0..3 {
            assert_eq!(of(rank).spans().bounds(), [0, 3, 5, 6]);
        }
        let alone = batch.clone().of_ranks(RankOf::ALONE, ContextKind::Ring, 1);
        assert_eq!(alone.tokens(), batch.tokens());
        // Four rows, so that two tensor ranks have as many.
        let of_tensor = batch
            .clone()
            .of_ranks(RankOf::new(1, 2), ContextKind::Ulysses, 2);
        assert_eq!(of_tensor.tokens()[..], [2, 0, 0, 0]);
        assert_eq!(of_tensor.spans().bounds(), [0, 3, 5, 6, 7, 8]);
        // More ranks than rows: the last have nothing but what is added.
        let last = batch.of_ranks(RankOf::new(7, 8), ContextKind::Ulysses, 1);
        assert_eq!((last.predicted(), last.processed()), (0, 1));
        assert!(last.selects());
        assert_eq!(last.standing_in().predicted(), 1);
    }

    /// SEMANTICS 140. Packed elsewhere, or on any rank, the rows of a sample drop the same numbers.
    #[test]
    fn rows_of_a_sample_have_the_same_places_wherever_they_are() {
        let sequence = |tokens, prompt| Sequence { tokens, prompt };
        let [a, b] = [sequence(&[5, 6, 7, 8][..], 2), sequence(&[1, 2, 3], 1)];
        let dropout = Dropout::of_step(0.1, 3, 7);
        let of = |packed: &[Sequence<'_>], samples: &[u128]| {
            let batch = Batch::pack(packed).unwrap().dropping(dropout, samples);
            batch.dropout().unwrap().rows().to_vec()
        };
        let both = of(&[a, b], &[1 << 100, 9]);
        let alone = of(&[b], &[9]);
        assert_eq!(both[3..], alone);
        assert_eq!(
            of(&[b, a], &[9, 1 << 100]),
            [&both[3..], &both[..3]].concat()
        );
        assert_eq!(
            both.iter().map(|row| row.position).collect::<Vec<_>>(),
            [0, 1, 2, 0, 1]
        );
        assert!(both[0].stream == both[2].stream && both[0].stream != both[3].stream);
        assert_ne!(of(&[b], &[8])[0].stream, alone[0].stream);
        let batch = Batch::pack(&[a, b]).unwrap();
        let batch = batch.dropping(dropout, &[1 << 100, 9]);
        for kind in [ContextKind::Ulysses, ContextKind::Ring] {
            for rank in 0..2 {
                let own = batch.clone().of_ranks(RankOf::new(rank, 2), kind, 1);
                let rows = kind.runs(RankOf::new(rank, 2), 2 * own.processed());
                let expected = rows.into_iter().flatten();
                let expected = expected.map(|row| both.get(row).copied().unwrap_or_default());
                assert!(expected.eq(own.dropout().unwrap().rows().iter().copied()));
            }
        }
        assert!(batch.without_dropout().dropout().is_none());
        let off = Batch::pack(&[b]).unwrap();
        let off = off.dropping(Dropout::of_step(0.0, 3, 7), &[9]);
        assert!(off.dropout().is_none());
    }

    #[test]
    fn ranks_of_a_ring_have_rows_of_both_halves_of_a_batch() {
        let sequence = |tokens, prompt| Sequence { tokens, prompt };
        let all = [sequence(&[5, 6, 7, 8][..], 2), sequence(&[1, 2, 3], 1)];
        let batch = Batch::pack(&all).unwrap();
        let of = |rank, tensor| {
            let own = RankOf::new(rank, 2);
            batch.clone().of_ranks(own, ContextKind::Ring, tensor)
        };
        let tokens = [0, 1].map(|rank| of(rank, 1).tokens().to_vec());
        assert_eq!(tokens, [[5, 6, 0, 0], [7, 1, 2, 0]]);
        let positions = [0, 1].map(|rank| of(rank, 1).positions().to_vec());
        assert_eq!(positions, [[0, 1, 0, 0], [2, 0, 1, 0]]);
        let predicted =
            [0, 1].map(|rank| (of(rank, 1).rows().to_vec(), of(rank, 1).labels().to_vec()));
        assert_eq!(
            predicted,
            [(vec![1], vec![7]), (vec![0, 1, 2], vec![8, 2, 3])]
        );
        assert_eq!(of(1, 1).responses(), [0..1, 1..3]);
        assert_eq!(of(0, 1).spans().bounds(), [0, 3, 5, 6, 7, 8]);
        assert_eq!(of(0, 1).context_kind(), ContextKind::Ring);
        // Parts of two rows each are parts of six rows for three tensor ranks.
        assert_eq!(of(0, 3).processed(), 6);
        // One rank has them in their order, whatever the kind.
        let alone = batch.clone().of_ranks(RankOf::ALONE, ContextKind::Ring, 2);
        assert_eq!(alone.tokens()[..], [5, 6, 7, 1, 2, 0]);
        assert_eq!(alone.context_kind(), ContextKind::Ulysses);
    }

    #[test]
    fn sequences_that_begin_alike_share_their_prompt() {
        let of = |tokens, prompt| Sequence { tokens, prompt };
        let batch = Batch::pack_sharing(&[
            of(&[1, 2, 3, 4, 5], 2),
            of(&[1, 2, 6], 2),
            of(&[1, 2], 2),
            of(&[1, 2, 6, 7], 3),
            of(&[8, 9], 1),
        ])
        .unwrap();
        assert_eq!(batch.tokens()[..], [1, 2, 3, 4, 1, 2, 6, 8]);
        assert_eq!(batch.positions()[..], [0, 1, 2, 3, 0, 1, 2, 0]);
        let spans = RowSpans::sharing(
            [0, 2, 4, 4, 4, 7, 8].as_slice(),
            [0, 0, 0, 0, 4, 5].as_slice(),
        );
        assert_eq!(*batch.spans(), spans);
        assert_eq!(batch.rows()[..], [1, 2, 3, 1, 6, 7]);
        assert_eq!(batch.labels()[..], [3, 4, 5, 6, 7, 9]);
        assert_eq!(batch.responses(), [0..3, 3..4, 4..4, 4..5, 5..6]);
        let apart = Batch::pack_sharing(&[of(&[1, 2], 1), of(&[3, 2], 1)]).unwrap();
        assert!(!apart.spans().share());
    }
}
