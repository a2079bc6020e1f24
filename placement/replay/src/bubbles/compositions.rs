//! The ways in which micro-batches are dealt out to the pipelines of an encoder.

/// All compositions of a number into so many parts of 1 at least, in the order of their first parts.
#[derive(Clone, Debug)]
pub struct Compositions {
    next: Option<Vec<usize>>,
}

impl Compositions {
    /// The compositions of `whole` into `parts`; none where `whole` is smaller, or `parts` is 0.
    #[must_use]
    pub fn new(whole: usize, parts: usize) -> Self {
        let next = (parts > 0 && whole >= parts).then(|| {
            let mut first = vec![1; parts];
            first[parts - 1] = whole + 1 - parts;
            first
        });
        Self { next }
    }
}

impl Iterator for Compositions {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let now = self.next.take()?;
        // The last part that can give one to the part before it does, and what is behind that begins anew.
        let giver = (1..now.len()).rev().find(|at| now[*at] > 1);
        self.next = giver.map(|giver| {
            let mut next = now.clone();
            next[giver - 1] += 1;
            // What it has left goes to the last one.
            let left = next[giver] - 1;
            next[giver] = 1;
            if let Some(last) = next.last_mut() {
                *last = left;
            }
            next
        });
        Some(now)
    }
}

/// The number of these compositions, `C(whole - 1, parts - 1)`; `u64::MAX` where it is larger.
#[must_use]
pub fn composition_count(whole: usize, parts: usize) -> u64 {
    if parts == 0 || whole < parts {
        return 0;
    }
    let (of, mut count) = (whole - 1, 1_u128);
    for at in 0..(parts - 1).min(of + 1 - parts) {
        count = count * (of - at) as u128 / (at as u128 + 1);
        if count > u128::from(u64::MAX) {
            return u64::MAX;
        }
    }
    count as u64
}
