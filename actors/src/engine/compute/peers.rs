//! The ranks of a worker group as one trainer: gradients and counts over its collectives.

use std::sync::Mutex;
use std::sync::PoisonError;

use odeon::Failure;
use odeon::collective::{Collective, Reduce};
use odeon::group::Communicator;
use odeon_algorithms::train::Peers;

/// A rank of a worker group, with the communicator over which it adds up numbers.
pub(crate) struct Gang {
    rank: usize,
    comm: Mutex<Communicator>,
}

impl Gang {
    pub(crate) fn new(comm: Communicator) -> Self {
        Self {
            rank: comm.membership().rank,
            comm: Mutex::new(comm),
        }
    }
}

impl Peers for Gang {
    type Error = Failure;

    fn rank(&self) -> usize {
        self.rank
    }

    fn sum(&mut self, numbers: &mut [f32]) -> Result<(), Failure> {
        let comm = self.comm.get_mut().unwrap_or_else(PoisonError::into_inner);
        let summed = comm.all_reduce(numbers, Reduce::Sum);
        summed.map_err(Failure::error)
    }

    fn count(&mut self, counts: &mut [u64]) -> Result<(), Failure> {
        let mut digits: Vec<f32> = counts.iter().flat_map(|count| digits(*count)).collect();
        self.sum(&mut digits)?;
        for (count, digits) in counts.iter_mut().zip(digits.as_chunks().0) {
            *count = number(*digits);
        }
        Ok(())
    }
}

/// Digits of 16 bits, the least first: sums of those of 256 ranks are exact.
fn digits(count: u64) -> [f32; 4] {
    std::array::from_fn(|digit| ((count >> (16 * digit)) & 0xffff) as f32)
}

fn number(digits: [f32; 4]) -> u64 {
    let shifted = digits.iter().zip([0, 16, 32, 48]);
    shifted.fold(0, |sum, (digit, shift)| sum + ((*digit as u64) << shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_counts_are_exact() {
        for counts in [
            vec![0, 1, 65_535],
            vec![65_536, 16_777_217, 3],
            vec![(1 << 40) + 12_345; 256],
        ] {
            let mut sums = [0.0; 4];
            for count in &counts {
                for (sum, digit) in sums.iter_mut().zip(digits(*count)) {
                    *sum += digit;
                }
            }
            assert_eq!(number(sums), counts.iter().sum::<u64>());
        }
    }
}
