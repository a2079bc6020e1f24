//! Micro-batches: what each bucket computes at a time, within its memory.

use odeon_algorithms::balance::{Caps, first_fit, greedy_within};

use super::spec::{Method, MicrobatchSpec};

/// For each bucket its micro-batches. Their number is the same in all, no larger than the fullest
/// bucket needs (or the spec asks for), and none is over the cap but one with a single sample.
pub(super) fn microbatches(
    buckets: &[Vec<usize>],
    tokens: &[u64],
    costs: &[u64],
    method: Method,
    spec: MicrobatchSpec,
) -> Vec<Vec<Vec<usize>>> {
    let cap = u64::from(spec.tokens);
    let of = |bucket: &[usize], values: &[u64]| -> Vec<u64> {
        bucket.iter().map(|item| values[*item]).collect()
    };
    let tight: Vec<Vec<Vec<usize>>> = buckets
        .iter()
        .map(|bucket| match method {
            Method::None => next_fit(&of(bucket, tokens), cap),
            _ => first_fit(&of(bucket, tokens), cap),
        })
        .collect();
    let most = tight.iter().map(Vec::len).max().unwrap_or(0);
    let count = most
        .max(spec.at_least as usize)
        .next_multiple_of((spec.multiple_of as usize).max(1));
    let filled = buckets.iter().zip(tight).map(|(bucket, tight)| {
        let (tokens, costs) = (of(bucket, tokens), of(bucket, costs));
        let spread = spread(&tokens, &costs, count, method, cap);
        let mut batches = spread.unwrap_or(tight);
        batches.resize(count, vec![]);
        let named = |batch: Vec<usize>| batch.into_iter().map(|item| bucket[item]).collect();
        batches.into_iter().map(named).collect()
    });
    filled.collect()
}

/// Balanced micro-batches within the cap; `None` where balance and cap do not go together, or
/// nothing is to be balanced.
fn spread(
    tokens: &[u64],
    costs: &[u64],
    count: usize,
    method: Method,
    cap: u64,
) -> Option<Vec<Vec<usize>>> {
    let fits = |batches: &[Vec<usize>]| {
        let held = |batch: &Vec<usize>| batch.iter().map(|item| tokens[*item]).sum::<u64>();
        batches.iter().all(|b| b.len() < 2 || held(b) <= cap)
    };
    match method {
        Method::None => return None,
        Method::Greedy => {}
        Method::KarmarkarKarp | Method::KarmarkarKarpEqual => {
            let found = method.partition(costs, count).bins;
            if fits(&found) {
                return Some(found);
            }
        }
    }
    let caps = Caps {
        items: None,
        weight: Some((tokens, cap)),
    };
    // By cost, and where that leaves no room, by what has to fit.
    let by_cost = greedy_within(costs, count, &caps);
    let found = by_cost.or_else(|_| greedy_within(tokens, count, &caps));
    found.ok().map(|partition| partition.bins)
}

/// Items in their order, into the same bin as long as it has room.
fn next_fit(weights: &[u64], cap: u64) -> Vec<Vec<usize>> {
    let mut bins: Vec<Vec<usize>> = vec![];
    let mut held = 0;
    for (item, weight) in weights.iter().enumerate() {
        match bins.last_mut() {
            Some(bin) if held + weight <= cap => {
                bin.push(item);
                held += weight;
            }
            _ => {
                bins.push(vec![item]);
                held = *weight;
            }
        }
    }
    bins
}
