//! Operations in an order in which each comes after all for which it waits, and their earliest times in it.

/// The order of operations that wait for others, which is found once and replayed with many durations.
#[derive(Clone, Debug)]
pub(crate) struct ReplayOrder {
    /// Numbers of operations, each behind those for which it waits.
    order: Vec<u32>,
    /// Where those for which an operation waits begin in `waits_for`.
    starts: Vec<usize>,
    waits_for: Vec<u32>,
}

/// Operations that wait for each other: how many of those for which each waits never end.
#[derive(Clone, Debug)]
pub(crate) struct WaitingCircle(pub Vec<u32>);

/// The earliest times of operations, in seconds from the begin of the first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    pub begins_s: Vec<f64>,
    pub ends_s: Vec<f64>,
    /// For each operation the last to end of those for which it waited.
    pub causes: Vec<Option<u32>>,
}

impl ReplayOrder {
    /// Orders so many operations, given pairs of one and another that must be over before it begins.
    ///
    /// # Errors
    /// Some wait for each other.
    pub(crate) fn new(
        operations: usize,
        arrows: impl Iterator<Item = (u32, u32)> + Clone,
    ) -> Result<Self, WaitingCircle> {
        let (starts, waits_for) = by_first(operations, arrows.clone());
        let turned = arrows.map(|(operation, over)| (over, operation));
        let (follower_starts, followers) = by_first(operations, turned);
        let mut waits: Vec<u32> = starts.windows(2).map(|it| (it[1] - it[0]) as u32).collect();
        let mut order: Vec<u32> = Vec::with_capacity(operations);
        order.extend((0..).zip(&waits).filter(|it| *it.1 == 0).map(|it| it.0));
        let mut next = 0;
        while let Some(at) = order.get(next).map(|at| *at as usize) {
            next += 1;
            for follower in &followers[follower_starts[at]..follower_starts[at + 1]] {
                let waits = &mut waits[*follower as usize];
                *waits -= 1;
                if *waits == 0 {
                    order.push(*follower);
                }
            }
        }
        if order.len() < operations {
            return Err(WaitingCircle(waits));
        }
        Ok(Self {
            order,
            starts,
            waits_for,
        })
    }

    /// Runs each operation as soon as all that it waits for is over. `times` is written over.
    pub(crate) fn replay(&self, seconds: impl Fn(usize) -> f64, times: &mut Times) {
        let count = self.order.len();
        times.begins_s.resize(count, 0.0);
        times.ends_s.resize(count, 0.0);
        times.causes.resize(count, None);
        for number in &self.order {
            let at = *number as usize;
            let (mut begin, mut cause) = (0.0, None);
            for before in &self.waits_for[self.starts[at]..self.starts[at + 1]] {
                let end = times.ends_s[*before as usize];
                if cause.is_none() || end > begin {
                    (begin, cause) = (end, Some(*before));
                }
            }
            times.begins_s[at] = begin;
            times.ends_s[at] = begin + seconds(at);
            times.causes[at] = cause;
        }
    }
}

/// The second numbers of pairs, by the first: where those of each begin, and all behind each other.
fn by_first(
    operations: usize,
    pairs: impl Iterator<Item = (u32, u32)> + Clone,
) -> (Vec<usize>, Vec<u32>) {
    let mut starts = vec![0; operations + 1];
    for (first, _) in pairs.clone() {
        starts[first as usize + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut ends = starts.clone();
    let mut seconds = vec![0; starts[operations]];
    for (first, second) in pairs {
        seconds[ends[first as usize]] = second;
        ends[first as usize] += 1;
    }
    (starts, seconds)
}
