//! Collectives of several ranks in one process, to the bit.
//!
//! Sums of floating-point numbers depend on their order, so a run on many ranks differs from one on one
//! device in its last bits. This repeats the order of the ranks (the correctness emulator of veScale,
//! arXiv 2509.07003): it carries out the very schedules of `odeon-collective`, which are data, step by
//! step for all ranks, so that results can be compared bit by bit with one process.

use std::collections::VecDeque;
use std::ops::Range;

use odeon_collective::schedule::{
    CollectiveTask, Incoming, Outgoing, SentFrom, Step, Then, schedule,
};
use odeon_collective::{Algorithm, Reduce, Topology};

/// A gang of ranks in one process, whose collectives give the bits of communicators over messages with
/// this topology and algorithm. Communicators that share memory reduce in rank order instead, as
/// [`Algorithm::Direct`] does for an all-reduce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emulator {
    topology: Topology,
    algorithm: Algorithm,
}

impl Emulator {
    /// Ranks on these nodes. An operation that does not know the algorithm takes its own first one, as
    /// communicators do.
    #[must_use]
    pub const fn new(topology: Topology, algorithm: Algorithm) -> Self {
        Self {
            topology,
            algorithm,
        }
    }

    /// The data of each rank after an all-reduce of `data`, that of each rank before: equally many
    /// elements of each.
    ///
    /// # Panics
    /// There is not one buffer for each rank, or they differ in length.
    #[must_use]
    pub fn all_reduce(&self, data: &[Vec<f32>], reduce: Reduce) -> Vec<Vec<f32>> {
        let count = data.first().map_or(0, Vec::len);
        assert!(
            data.iter().all(|data| data.len() == count),
            "equally long data"
        );
        let in_place = |data: &Vec<f32>| (None, data.clone());
        let task = |_| CollectiveTask::AllReduce { count };
        self.run(task, Some(reduce), data.iter().map(in_place).collect())
    }

    /// The output of each rank after an all-gather of `inputs`, which may differ in length.
    ///
    /// # Panics
    /// There is not one buffer for each rank.
    #[must_use]
    pub fn all_gather(&self, inputs: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let counts: Vec<usize> = inputs.iter().map(Vec::len).collect();
        let output = vec![0.0; counts.iter().sum()];
        let apart = |input: &Vec<f32>| (Some(input.clone()), output.clone());
        let task = |_| CollectiveTask::AllGather { counts: &counts };
        self.run(task, None, inputs.iter().map(apart).collect())
    }

    /// The part of each rank after a reduce-scatter of `inputs`, in parts of `counts` elements.
    ///
    /// # Panics
    /// There is not one buffer and one count for each rank, or a buffer has another length.
    #[must_use]
    pub fn reduce_scatter(
        &self,
        inputs: &[Vec<f32>],
        counts: &[usize],
        reduce: Reduce,
    ) -> Vec<Vec<f32>> {
        assert_eq!(counts.len(), inputs.len(), "one count for each rank");
        let total: usize = counts.iter().sum();
        assert!(
            inputs.iter().all(|input| input.len() == total),
            "inputs of all parts"
        );
        let pairs = inputs.iter().zip(counts);
        let apart = pairs.map(|(input, count)| (Some(input.clone()), vec![0.0; *count]));
        let task = |_| CollectiveTask::ReduceScatter { counts };
        self.run(task, Some(reduce), apart.collect())
    }

    /// The output of each rank after an all-to-all of `inputs`, of which part `counts[rank][to]` elements
    /// go from `rank` to `to`.
    ///
    /// # Panics
    /// There is not one buffer and one row of counts for each rank, or a buffer has another length.
    #[must_use]
    pub fn all_to_all(&self, inputs: &[Vec<f32>], counts: &[Vec<usize>]) -> Vec<Vec<f32>> {
        assert_eq!(
            counts.len(),
            inputs.len(),
            "one row of counts for each rank"
        );
        let fits =
            |(input, row): (&Vec<f32>, &Vec<usize>)| input.len() == row.iter().sum::<usize>();
        assert!(inputs.iter().zip(counts).all(fits), "inputs of all parts");
        let columns: Vec<Vec<usize>> = (0..counts.len())
            .map(|to| counts.iter().map(|row| row[to]).collect())
            .collect();
        let pairs = inputs.iter().zip(&columns);
        let apart = pairs.map(|(input, from)| (Some(input.clone()), vec![0.0; from.iter().sum()]));
        let task = |rank: usize| CollectiveTask::AllToAll {
            to: &counts[rank],
            from: &columns[rank],
        };
        self.run(task, None, apart.collect())
    }

    /// All ranks, each as far as the messages of the others let it, until all are done: the data of each.
    fn run<'a>(
        &self,
        task: impl Fn(usize) -> CollectiveTask<'a>,
        reduce: Option<Reduce>,
        buffers: Vec<(Option<Vec<f32>>, Vec<f32>)>,
    ) -> Vec<Vec<f32>> {
        let world = self.topology.world();
        assert_eq!(buffers.len(), world, "one buffer for each rank");
        let reduce = reduce.unwrap_or(Reduce::Sum);
        let steps = |rank| schedule(task(rank), self.algorithm, &self.topology, rank).into();
        let mut ranks: Vec<OneRank> = buffers
            .into_iter()
            .enumerate()
            .map(|(rank, (input, data))| {
                OneRank::new(rank, world, reduce, steps(rank), input, data)
            })
            .collect();
        // From each rank to each.
        let mut sent = vec![vec![VecDeque::new(); world]; world];
        while ranks.iter().any(|rank| !rank.steps.is_empty()) {
            for rank in &mut ranks {
                rank.go_on(&mut sent);
            }
        }
        ranks.into_iter().map(|rank| rank.data).collect()
    }
}

/// Messages that were not taken yet.
type Sent = [Vec<VecDeque<Vec<f32>>>];

/// One rank in the midst of its schedule.
struct OneRank {
    rank: usize,
    reduce: Reduce,
    steps: VecDeque<Step>,
    /// The message out of the first step is on its way.
    has_sent: bool,
    input: Option<Vec<f32>>,
    data: Vec<f32>,
    /// Partial sums, where there is an input; else they lie in the data.
    sums: Vec<f32>,
    /// Elements of each rank, to be folded.
    kept: Vec<Vec<f32>>,
}

impl OneRank {
    fn new(
        rank: usize,
        world: usize,
        reduce: Reduce,
        steps: VecDeque<Step>,
        input: Option<Vec<f32>>,
        data: Vec<f32>,
    ) -> Self {
        Self {
            rank,
            reduce,
            steps,
            has_sent: false,
            sums: vec![0.0; input.as_ref().map_or(0, Vec::len)],
            kept: vec![vec![0.0; data.len()]; world],
            input,
            data,
        }
    }

    /// Does steps until there are none, or one waits for a message.
    fn go_on(&mut self, sent: &mut Sent) {
        while let Some(step) = self.steps.pop_front() {
            let Step::Exchange { out, incoming } = &step else {
                self.alone(&step);
                continue;
            };
            if let Some(out) = out.as_ref().filter(|_| !self.has_sent) {
                sent[self.rank][out.to].push_back(self.message(out));
            }
            if let Some(incoming) = incoming {
                let Some(message) = sent[incoming.from][self.rank].pop_front() else {
                    self.has_sent = true;
                    self.steps.push_front(step);
                    return;
                };
                self.take(incoming, &message);
            }
            self.has_sent = false;
        }
    }

    /// Partial sums, wherever they lie.
    fn sums(&mut self) -> &mut [f32] {
        if self.input.is_some() {
            &mut self.sums
        } else {
            &mut self.data
        }
    }

    fn message(&self, out: &Outgoing) -> Vec<f32> {
        let place = match (out.place, &self.input) {
            (SentFrom::Input, Some(input)) => input,
            (SentFrom::Sums, Some(_)) => &self.sums,
            _ => &self.data,
        };
        place[out.range.clone()].to_vec()
    }

    fn take(&mut self, incoming: &Incoming, message: &[f32]) {
        let (range, reduce) = (incoming.range.clone(), self.reduce);
        match incoming.then {
            Then::Store => self.data[range].copy_from_slice(message),
            Then::Keep => self.kept[incoming.from][range].copy_from_slice(message),
            Then::ReduceElements | Then::ReduceSums => {
                combine(&mut self.sums()[range], message, reduce);
            }
        }
    }

    /// A step without messages.
    fn alone(&mut self, step: &Step) {
        let scale = match self.reduce {
            Reduce::Mean => 1.0 / self.kept.len() as f32,
            Reduce::Sum | Reduce::Max | Reduce::Min => 1.0,
        };
        match step {
            Step::Load(range) => {
                if let Some(input) = &self.input {
                    self.sums[range.clone()].copy_from_slice(&input[range.clone()]);
                }
            }
            Step::Finish { range, to } => {
                let sums = self.sums()[range.clone()].to_vec();
                let into = &mut self.data[*to..to + range.len()];
                for (into, sum) in into.iter_mut().zip(sums) {
                    *into = sum * scale;
                }
            }
            Step::Fold(range) => self.fold(range, scale),
            Step::Copy { range, to } => {
                if let Some(input) = &self.input {
                    self.data[*to..to + range.len()].copy_from_slice(&input[range.clone()]);
                }
            }
            Step::Exchange { .. } => {}
        }
    }

    /// Reduces the elements of all ranks in their order.
    fn fold(&mut self, range: &Range<usize>, scale: f32) {
        self.kept[self.rank].clone_from(&self.data);
        let (first, others) = self.kept.split_at(1);
        let into = &mut self.data[range.clone()];
        into.copy_from_slice(&first[0][range.clone()]);
        for other in others {
            combine(into, &other[range.clone()], self.reduce);
        }
        for element in into {
            *element *= scale;
        }
    }
}

/// Reduces elements into partial sums. A NaN wins over all numbers.
fn combine(sums: &mut [f32], from: &[f32], reduce: Reduce) {
    for (sum, element) in sums.iter_mut().zip(from) {
        let wins = match reduce {
            Reduce::Sum | Reduce::Mean => {
                *sum += element;
                continue;
            }
            Reduce::Max => element > sum,
            Reduce::Min => element < sum,
        };
        if wins || element.is_nan() {
            *sum = *element;
        }
    }
}

#[cfg(test)]
mod tests;
