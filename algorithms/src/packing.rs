//! Sequences of different lengths into micro-batches of bounded size.

/// Why sequences could not be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackingError {
    /// A sequence is longer than a micro-batch may be. Raise the budget or cut the sequence.
    #[error("sequence {index} has {tokens} tokens, more than the {tokens_max} of a micro-batch")]
    TooLong {
        /// The sequence.
        index: usize,
        /// Its length.
        tokens: usize,
        /// The budget.
        tokens_max: usize,
    },
}

/// Packs sequences into micro-batches of at most `tokens_max` tokens, and returns the indices of
/// each micro-batch's sequences in ascending order.
///
/// First fit decreasing: the number of micro-batches is at most 11/9 of the least possible plus
/// 6/9 (Dósa 2007). Equal lengths keep their order, so the result is a function of the lengths
/// alone. Empty sequences are packed like others.
///
/// # Errors
/// [`PackingError::TooLong`] for the first sequence that no micro-batch can hold.
pub fn pack(lengths: &[usize], tokens_max: usize) -> Result<Vec<Vec<usize>>, PackingError> {
    if let Some(index) = lengths.iter().position(|&tokens| tokens > tokens_max) {
        return Err(PackingError::TooLong {
            index,
            tokens: lengths[index],
            tokens_max,
        });
    }
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(lengths[index]));
    let mut packed: Vec<Vec<usize>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    for index in order {
        let length = lengths[index];
        match free.iter().position(|&free| free >= length) {
            Some(bin) => {
                packed[bin].push(index);
                free[bin] -= length;
            }
            None => {
                packed.push(vec![index]);
                free.push(tokens_max - length);
            }
        }
    }
    for bin in &mut packed {
        bin.sort_unstable();
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_sequence_is_packed_once_within_the_budget(
            lengths in prop::collection::vec(0_usize..100, 0..200), tokens_max in 99_usize..400,
        ) {
            let packed = pack(&lengths, tokens_max).unwrap();
            let tokens = |bin: &Vec<usize>| bin.iter().map(|&index| lengths[index]).sum::<usize>();
            let mut seen: Vec<usize> = packed.iter().flatten().copied().collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..lengths.len()).collect::<Vec<_>>());
            prop_assert!(packed.iter().all(|bin| tokens(bin) <= tokens_max));
            // No two micro-batches would fit into one.
            for (i, a) in packed.iter().enumerate() {
                prop_assert!(packed[..i].iter().all(|b| tokens(a) + tokens(b) > tokens_max));
            }
        }
    }

    #[test]
    fn long_and_short_sequences_share_a_micro_batch() {
        assert_eq!(pack(&[2, 7, 3, 8], 10).unwrap(), [vec![0, 3], vec![1, 2]]);
        assert_eq!(pack(&[], 10).unwrap(), Vec::<Vec<usize>>::new());
        let error = PackingError::TooLong {
            index: 1,
            tokens: 11,
            tokens_max: 10,
        };
        assert_eq!(pack(&[3, 11], 10), Err(error));
    }
}
