//! Communication schedules as data: the steps of each rank, with senders and receivers. Pure.
//!
//! - *Ring* all-reduce is a reduce-scatter and an all-gather around a ring, in which each rank
//!   sends `2 (n - 1) / n` of the buffer, the least that is possible (Patarasuk and Yuan 2009,
//!   "Bandwidth optimal all-reduce algorithms for clusters of workstations").
//! - *Tree* goes along binomial trees in `log2 n` rounds; for short messages (Thakur, Rabenseifner
//!   and Gropp 2005, "Optimization of collective communication operations in MPICH").
//! - *Direct* exchanges between all pairs. An all-reduce sends the whole buffer to everyone and
//!   reduces it everywhere, in rank order: one round trip, for very short messages and few ranks.
//! - *Hierarchical* reduces inside each node, goes around a ring of one rank a node, and broadcasts
//!   inside each node, so that each byte crosses between nodes as seldom as it can.
//!
//! Every rank adds the numbers of an index in one order, which depends on the algorithm, the world
//! and the length only, and one rank rounds the result for all: so all ranks get the same bits, in
//! every run.

use std::ops::Range;

/// The placement of a gang's ranks on nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The number of each rank's node.
    nodes: Vec<usize>,
    /// All ranks, those of a node next to each other.
    order: Vec<usize>,
    /// The ranks of each node, the leader first; nodes in the order of their leaders.
    groups: Vec<Vec<usize>>,
}

impl Topology {
    /// From the node of each rank, by any numbers.
    #[must_use]
    pub fn new(nodes: Vec<usize>) -> Self {
        let mut groups: Vec<Vec<usize>> = vec![];
        let mut known: Vec<usize> = vec![];
        for (rank, node) in nodes.iter().enumerate() {
            match known.iter().position(|other| other == node) {
                Some(group) => groups[group].push(rank),
                None => {
                    known.push(*node);
                    groups.push(vec![rank]);
                }
            }
        }
        let order = groups.concat();
        Self {
            nodes,
            order,
            groups,
        }
    }

    /// All ranks on one node.
    #[must_use]
    pub fn one_node(world: usize) -> Self {
        Self::new(vec![0; world])
    }

    /// Number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.nodes.len()
    }

    /// Number of nodes that they are on.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.groups.len()
    }

    /// The most ranks on one node.
    #[must_use]
    pub fn ranks_per_node_max(&self) -> usize {
        self.groups.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns true when two ranks share a node.
    #[must_use]
    pub fn near(&self, a: usize, b: usize) -> bool {
        self.nodes[a] == self.nodes[b]
    }

    fn group_of(&self, rank: usize) -> &[usize] {
        let mine = |group: &&Vec<usize>| group.contains(&rank);
        self.groups.iter().find(mine).map_or(&[], Vec::as_slice)
    }

    fn leaders(&self) -> Vec<usize> {
        self.groups
            .iter()
            .filter_map(|group| group.first().copied())
            .collect()
    }
}

/// The path of data between the ranks. See the module for what each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Algorithm {
    /// Between all pairs.
    Direct,
    /// Around a ring.
    Ring,
    /// Along binomial trees.
    Tree,
    /// Inside nodes, then between them, then inside.
    Hierarchical,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ring, Self::Tree, Self::Direct, Self::Hierarchical];
}

/// A task of all ranks together, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveTask<'a> {
    /// `data[..count]` of all ranks is reduced in place.
    AllReduce {
        /// Elements.
        count: usize,
    },
    /// `input` of each rank goes into `data` of every rank, in rank order.
    AllGather {
        /// Elements of each rank.
        counts: &'a [usize],
    },
    /// Part `rank` of `input`, reduced over all ranks, goes into `data` of that rank.
    ReduceScatter {
        /// Elements of each part.
        counts: &'a [usize],
    },
    /// `data[..count]` of the root goes into that of every rank.
    Broadcast {
        /// Elements.
        count: usize,
        /// Whose.
        root: usize,
    },
    /// Part `r` of `input` goes to rank `r`, and part `r` of `data` comes from it.
    AllToAll {
        /// Elements to each rank.
        to: &'a [usize],
        /// Elements from each rank.
        from: &'a [usize],
    },
    /// Nothing moves.
    Barrier,
}

impl CollectiveTask<'_> {
    /// The algorithms that differ for it, those first that are to be taken when equally good.
    #[must_use]
    pub fn algorithms(&self) -> &'static [Algorithm] {
        use Algorithm::{Direct, Hierarchical, Ring, Tree};
        match self {
            Self::AllReduce { .. } | Self::Broadcast { .. } => &[Ring, Tree, Direct, Hierarchical],
            Self::AllGather { .. } | Self::ReduceScatter { .. } => &[Ring, Direct],
            Self::AllToAll { .. } | Self::Barrier => &[Direct],
        }
    }
}

/// Where the bytes of a message come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentFrom {
    /// The caller's input, in elements as they are.
    Input,
    /// The caller's output, in elements as they are.
    Data,
    /// Partial sums, in f32. For f32 in place they lie in the caller's output.
    Sums,
}

/// The use of a message's bytes at their receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// They are the elements of the caller's output here.
    Store,
    /// Elements, to be kept for [`Step::Fold`] as those of their sender.
    Keep,
    /// Elements, to be added to the partial sums here.
    ReduceElements,
    /// Partial sums, to be added to those here.
    ReduceSums,
}

/// One message out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// To whom.
    pub to: usize,
    /// From where.
    pub place: SentFrom,
    /// Which elements.
    pub range: Range<usize>,
}

/// One message in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// From whom.
    pub from: usize,
    /// The use of its bytes.
    pub then: Then,
    /// Which elements.
    pub range: Range<usize>,
}

/// One thing after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Partial sums begin with the elements of this rank: those of the input, or of the data where
    /// there is no input.
    Load(Range<usize>),
    /// Both at the same time; done when both are.
    Exchange {
        /// The message out.
        out: Option<Outgoing>,
        /// The message in.
        incoming: Option<Incoming>,
    },
    /// Partial sums become elements of the output, from `to` on.
    Finish {
        /// Which partial sums.
        range: Range<usize>,
        /// Where they go.
        to: usize,
    },
    /// All that was kept of the others, and the elements here, are reduced in rank order.
    Fold(Range<usize>),
    /// Elements of the input go into the output, from `to` on.
    Copy {
        /// Which elements.
        range: Range<usize>,
        /// Where they go.
        to: usize,
    },
}

/// The steps of `rank`. An algorithm that a task does not know stands for the first that it knows.
#[must_use]
pub fn schedule(
    task: CollectiveTask<'_>,
    algorithm: Algorithm,
    topology: &Topology,
    rank: usize,
) -> Vec<Step> {
    let known = task.algorithms();
    let algorithm = if known.contains(&algorithm) {
        algorithm
    } else {
        known[0]
    };
    let mut steps = Steps {
        rank,
        steps: vec![],
    };
    let world = topology.world();
    match (task, algorithm) {
        (CollectiveTask::AllReduce { count }, Algorithm::Direct) => {
            steps.direct_all_reduce(world, count);
        }
        (CollectiveTask::AllReduce { count }, Algorithm::Ring) => {
            steps.steps.push(Step::Load(0..count));
            steps.ring_all_reduce(&topology.order, count);
        }
        (CollectiveTask::AllReduce { count }, Algorithm::Tree) => {
            steps.steps.push(Step::Load(0..count));
            steps.tree_reduce(&topology.order, count);
            if topology.order.first() == Some(&rank) {
                steps.finish(0..count, 0);
            }
            steps.tree_broadcast(&topology.order, count);
        }
        (CollectiveTask::AllReduce { count }, Algorithm::Hierarchical) => {
            let (group, leaders) = (topology.group_of(rank), topology.leaders());
            steps.steps.push(Step::Load(0..count));
            steps.tree_reduce(group, count);
            if leaders.contains(&rank) {
                steps.ring_all_reduce(&leaders, count);
            }
            steps.tree_broadcast(group, count);
        }
        (CollectiveTask::Broadcast { count, root }, algorithm) => {
            steps.broadcast(count, root, algorithm, topology);
        }
        (CollectiveTask::AllGather { counts }, algorithm) => {
            let parts = parts(counts);
            steps.copy(0..counts[rank], parts[rank].start);
            if algorithm == Algorithm::Direct {
                for step in 1..world {
                    let (to, from) = around(rank, step, world);
                    steps.exchange(
                        (to, SentFrom::Data, parts[rank].clone()),
                        (from, Then::Store, parts[from].clone()),
                    );
                }
            } else {
                let parts: Vec<_> = topology
                    .order
                    .iter()
                    .map(|rank| parts[*rank].clone())
                    .collect();
                steps.ring_gather(&topology.order, &parts, 0);
            }
        }
        (CollectiveTask::ReduceScatter { counts }, Algorithm::Direct) => {
            let parts = parts(counts);
            steps.steps.push(Step::Load(parts[rank].clone()));
            for step in 1..world {
                let (to, from) = around(rank, step, world);
                steps.exchange(
                    (to, SentFrom::Input, parts[to].clone()),
                    (from, Then::ReduceElements, parts[rank].clone()),
                );
            }
            steps.finish(parts[rank].clone(), 0);
        }
        (CollectiveTask::ReduceScatter { counts }, _) => {
            let parts = parts(counts);
            let total = parts.last().map_or(0, |part| part.end);
            steps.steps.push(Step::Load(0..total));
            let ordered: Vec<_> = topology
                .order
                .iter()
                .map(|rank| parts[*rank].clone())
                .collect();
            // Part `p` ends at position `p`.
            steps.ring_reduce(&topology.order, &ordered, 0);
            steps.finish(parts[rank].clone(), 0);
        }
        (CollectiveTask::AllToAll { to, from }, _) => {
            let (outgoing, incoming) = (parts(to), parts(from));
            steps.copy(outgoing[rank].clone(), incoming[rank].start);
            for step in 1..world {
                let (to, from) = around(rank, step, world);
                steps.exchange(
                    (to, SentFrom::Input, outgoing[to].clone()),
                    (from, Then::Store, incoming[from].clone()),
                );
            }
        }
        (CollectiveTask::Barrier, _) => {
            // Dissemination (Hensgen, Finkel and Manber 1988): after round k a rank has heard, by
            // others, of 2^k - 1 before it.
            let mut step = 1;
            while step < world {
                let (to, from) = around(rank, step, world);
                steps.exchange((to, SentFrom::Data, 0..0), (from, Then::Store, 0..0));
                step *= 2;
            }
        }
    }
    steps.steps
}

/// Where the part of each rank lies when all lie one after the other.
#[must_use]
pub fn parts(counts: &[usize]) -> Vec<Range<usize>> {
    let mut end = 0;
    counts
        .iter()
        .map(|count| {
            let start = end;
            end += count;
            start..end
        })
        .collect()
}

/// `count` elements in `world` parts that differ by one element at most, the larger ones first.
#[must_use]
pub fn split(count: usize, world: usize) -> Vec<Range<usize>> {
    let (each, more) = (count / world, count % world);
    let counts: Vec<usize> = (0..world)
        .map(|rank| each + usize::from(rank < more))
        .collect();
    parts(&counts)
}

/// The rank `step` further, and the one for which this one is that.
fn around(rank: usize, step: usize, world: usize) -> (usize, usize) {
    ((rank + step) % world, (rank + world - step) % world)
}

/// Elements of a segment in a chain, through which segments follow each other.
const SEGMENT: usize = 64 << 10;

struct Steps {
    rank: usize,
    steps: Vec<Step>,
}

type Out = (usize, SentFrom, Range<usize>);
type In = (usize, Then, Range<usize>);

impl Steps {
    fn push(&mut self, out: Option<Out>, incoming: Option<In>) {
        if out.is_none() && incoming.is_none() {
            return;
        }
        self.steps.push(Step::Exchange {
            out: out.map(|(to, place, range)| Outgoing { to, place, range }),
            incoming: incoming.map(|(from, then, range)| Incoming { from, then, range }),
        });
    }

    fn exchange(&mut self, out: Out, incoming: In) {
        self.push(Some(out), Some(incoming));
    }

    fn finish(&mut self, range: Range<usize>, to: usize) {
        self.steps.push(Step::Finish { range, to });
    }

    fn copy(&mut self, range: Range<usize>, to: usize) {
        self.steps.push(Step::Copy { range, to });
    }

    /// This rank's position in `ranks`, which it is in.
    fn position(&self, ranks: &[usize]) -> usize {
        ranks
            .iter()
            .position(|rank| *rank == self.rank)
            .unwrap_or(0)
    }

    fn direct_all_reduce(&mut self, world: usize, count: usize) {
        for step in 1..world {
            let (to, from) = around(self.rank, step, world);
            self.exchange((to, SentFrom::Data, 0..count), (from, Then::Keep, 0..count));
        }
        self.steps.push(Step::Fold(0..count));
    }

    fn ring_all_reduce(&mut self, ranks: &[usize], count: usize) {
        let parts = split(count, ranks.len());
        self.ring_reduce(ranks, &parts, 0);
        let mine = parts[self.position(ranks)].clone();
        self.finish(mine.clone(), mine.start);
        self.ring_gather(ranks, &parts, 0);
    }

    /// Afterwards the partial sums of part `p + ahead` are whole at position `p`.
    fn ring_reduce(&mut self, ranks: &[usize], parts: &[Range<usize>], ahead: usize) {
        let (n, at) = (ranks.len(), self.position(ranks));
        for step in 1..n {
            let (next, before) = around(at, 1, n);
            let part = |back: usize| parts[(at + ahead + 2 * n - back) % n].clone();
            self.exchange(
                (ranks[next], SentFrom::Sums, part(step)),
                (ranks[before], Then::ReduceSums, part(step + 1)),
            );
        }
    }

    /// Position `p` begins with part `p + ahead` of the data; all end with all parts.
    fn ring_gather(&mut self, ranks: &[usize], parts: &[Range<usize>], ahead: usize) {
        let (n, at) = (ranks.len(), self.position(ranks));
        for step in 0..n - 1 {
            let (next, before) = around(at, 1, n);
            let part = |back: usize| parts[(at + ahead + 2 * n - back) % n].clone();
            self.exchange(
                (ranks[next], SentFrom::Data, part(step)),
                (ranks[before], Then::Store, part(step + 1)),
            );
        }
    }

    /// All partial sums come to the first of `ranks`.
    fn tree_reduce(&mut self, ranks: &[usize], count: usize) {
        let (n, at) = (ranks.len(), self.position(ranks));
        let mut distance = 1;
        while distance < n {
            if at & distance != 0 {
                let out = (ranks[at - distance], SentFrom::Sums, 0..count);
                return self.push(Some(out), None);
            }
            if at + distance < n {
                self.push(
                    None,
                    Some((ranks[at + distance], Then::ReduceSums, 0..count)),
                );
            }
            distance *= 2;
        }
    }

    /// The data of the first of `ranks` go to all of them.
    fn tree_broadcast(&mut self, ranks: &[usize], count: usize) {
        let (n, at) = (ranks.len(), self.position(ranks));
        let mut distance = n.next_power_of_two();
        if at != 0 {
            distance = 1 << at.trailing_zeros();
            self.push(None, Some((ranks[at - distance], Then::Store, 0..count)));
        }
        while distance > 1 {
            distance /= 2;
            if at + distance < n {
                self.push(Some((ranks[at + distance], SentFrom::Data, 0..count)), None);
            }
        }
    }

    fn broadcast(&mut self, count: usize, root: usize, algorithm: Algorithm, topology: &Topology) {
        let first = |ranks: &[usize], first: usize| {
            let mut ranks = ranks.to_vec();
            if let Some(at) = ranks.iter().position(|rank| *rank == first) {
                ranks.rotate_left(at);
            }
            ranks
        };
        let ranks = first(&topology.order, root);
        match algorithm {
            Algorithm::Tree => self.tree_broadcast(&ranks, count),
            Algorithm::Ring => self.chain(&ranks, count),
            Algorithm::Direct if self.rank == root => {
                for to in &ranks[1..] {
                    self.push(Some((*to, SentFrom::Data, 0..count)), None);
                }
            }
            Algorithm::Direct => self.push(None, Some((root, Then::Store, 0..count))),
            Algorithm::Hierarchical => {
                // The root stands for its node.
                let stand = |group: &Vec<usize>| {
                    if group.contains(&root) {
                        Some(root)
                    } else {
                        group.first().copied()
                    }
                };
                let leaders: Vec<usize> = topology.groups.iter().filter_map(stand).collect();
                if leaders.contains(&self.rank) {
                    self.tree_broadcast(&first(&leaders, root), count);
                }
                let group = topology.group_of(self.rank);
                let leader = if group.contains(&root) {
                    root
                } else {
                    group[0]
                };
                self.tree_broadcast(&first(group, leader), count);
            }
        }
    }

    /// The data of the first of `ranks` go along all of them, in segments that follow each other.
    fn chain(&mut self, ranks: &[usize], count: usize) {
        let (n, at) = (ranks.len(), self.position(ranks));
        let segments: Vec<Range<usize>> = (0..count.max(1))
            .step_by(SEGMENT)
            .map(|start| start..(start + SEGMENT).min(count))
            .collect();
        for turn in 0..=segments.len() {
            let sent = turn.checked_sub(1).filter(|_| at + 1 < n);
            let out = sent.map(|turn| (ranks[at + 1], SentFrom::Data, segments[turn].clone()));
            let taken = segments.get(turn).filter(|_| at > 0);
            let incoming = taken.map(|range| (ranks[at - 1], Then::Store, range.clone()));
            self.push(out, incoming);
        }
    }
}

#[cfg(test)]
mod tests;
