//! The time that a language model leaves free on one card, by what it leaves free.

use super::kernel::{KernelStream, StageKernel};
use super::timeline::{BubbleKind, RankTimeline};

/// Begin and end, in seconds.
pub(super) type Span = (f64, f64);

/// Seconds by which sums of the same numbers in another order may differ.
pub(super) const ROUNDING_S: f64 = 1e-9;

/// The free time of a card. Before its first pass and behind its last one it is free without end: a step may be longer
/// than the language model's.
#[derive(Clone, Debug)]
pub(super) struct FreeTime {
    /// The begin of the language model's first pass.
    pub(super) first_s: f64,
    /// The end of its last one.
    last_s: f64,
    /// Where it does not compute, in order.
    compute: Vec<Span>,
    /// Where its tensor group sends nothing, in order.
    links: Vec<Span>,
}

impl FreeTime {
    pub(super) fn of(rank: &RankTimeline, step_s: f64) -> Self {
        let bubbles = rank.bubbles.iter().map(|it| (it.begin_s, it.end_s));
        let tensor = rank
            .bubbles
            .iter()
            .filter(|it| it.kind == BubbleKind::Tensor);
        Self {
            first_s: rank.kernels.first().map_or(step_s, |it| it.begin_s),
            last_s: rank.kernels.last().map_or(0.0, |it| it.end_s),
            compute: joined(
                [(f64::NEG_INFINITY, 0.0)]
                    .into_iter()
                    .chain(bubbles)
                    .chain([(step_s, f64::INFINITY)]),
            ),
            links: between(tensor.map(|it| (it.begin_s, it.end_s))),
        }
    }

    /// The free time as it is met when the step runs backwards from its end.
    pub(super) fn turned(&self, step_s: f64) -> Self {
        let turn = |spans: &[Span]| {
            spans
                .iter()
                .rev()
                .map(|(begin, end)| (step_s - end, step_s - begin))
                .collect()
        };
        Self {
            first_s: step_s - self.last_s,
            last_s: step_s - self.first_s,
            compute: turn(&self.compute),
            links: turn(&self.links),
        }
    }

    /// The rest beside kernels that are given in order.
    pub(super) fn without(&self, kernels: &[(KernelStream, Span)]) -> Self {
        let used = |stream| {
            kernels
                .iter()
                .filter(move |it| it.0 == stream)
                .map(|it| it.1)
        };
        Self {
            compute: cut(&self.compute, used(KernelStream::Compute)),
            links: cut(&self.links, used(KernelStream::Collective)),
            ..*self
        }
    }

    fn spans(&self, stream: KernelStream) -> &[Span] {
        match stream {
            KernelStream::Compute => &self.compute,
            KernelStream::Collective => &self.links,
        }
    }
}

/// A walk through free time, in which each kernel begins behind the one before it.
#[derive(Clone, Debug)]
pub(super) struct Walk<'a> {
    free: &'a FreeTime,
    compute: usize,
    links: usize,
    pub(super) now_s: f64,
}

impl<'a> Walk<'a> {
    pub(super) fn new(free: &'a FreeTime, now_s: f64) -> Self {
        Self {
            free,
            compute: 0,
            links: 0,
            now_s,
        }
    }

    /// Places a kernel as early as it can be: in the first stretch that is free for all of it.
    pub(super) fn place(&mut self, kernel: &StageKernel) -> Span {
        let spans = self.free.spans(kernel.stream);
        let at = match kernel.stream {
            KernelStream::Compute => &mut self.compute,
            KernelStream::Collective => &mut self.links,
        };
        loop {
            // The last stretch has no end.
            let (free_s, free_until_s) = spans[*at];
            let begin_s = self.now_s.max(free_s);
            if begin_s + kernel.seconds <= free_until_s + ROUNDING_S {
                self.now_s = begin_s + kernel.seconds;
                return (begin_s, self.now_s);
            }
            *at += 1;
        }
    }
}

/// Spans that are in order, those joined between which nothing is.
fn joined(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut all: Vec<Span> = vec![];
    for (begin, end) in spans {
        match all.last_mut() {
            Some(last) if begin <= last.1 + ROUNDING_S => last.1 = last.1.max(end),
            _ => all.push((begin, end)),
        }
    }
    all
}

/// All time but these spans, which are in order.
fn between(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    cut(&[(f64::NEG_INFINITY, f64::INFINITY)], spans)
}

/// Spans without others; both are in order.
fn cut(spans: &[Span], others: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut others = others.peekable();
    let mut all = vec![];
    for (mut begin, end) in spans.iter().copied() {
        while let Some((taken, taken_until)) = others.peek().copied() {
            if taken >= end - ROUNDING_S {
                break;
            }
            if taken > begin {
                all.push((begin, taken));
            }
            begin = begin.max(taken_until);
            others.next();
        }
        if begin < end {
            all.push((begin, end));
        }
    }
    all
}
