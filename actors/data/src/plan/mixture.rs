//! Debts: who comes next so that shares come out even.
//!
//! With each unit that is given, everybody is owed their share of it, and who gives it is paid a
//! whole one. Shares are whole numbers of 2^-32 that add up to 1, so debts are exact, and add up to
//! nothing, however long a run is. A share is off by 2^-33 at most: a sample in eight thousand
//! million.

/// One unit of debt.
pub(super) const WHOLE: i64 = 1 << 32;

/// Shares in proportion to weights, which add up to [`WHOLE`]; all 0 where the weights are.
pub(super) fn shares(weights: &[f64]) -> Vec<i64> {
    let sum: f64 = weights.iter().sum();
    if sum <= 0.0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: &f64| weight / sum * WHOLE as f64;
    let mut shares: Vec<i64> = weights.iter().map(|w| exact(w).floor() as i64).collect();
    // What rounding left goes to those that lost most by it.
    let mut order: Vec<usize> = (0..weights.len()).filter(|i| weights[*i] > 0.0).collect();
    order.sort_by(|a, b| {
        let lost = |i: usize| exact(&weights[i]) - shares[i] as f64;
        lost(*b).total_cmp(&lost(*a)).then(a.cmp(b))
    });
    let left = WHOLE - shares.iter().sum::<i64>();
    for at in 0..left.unsigned_abs() as usize {
        shares[order[at % order.len()]] += left.signum();
    }
    shares
}

/// The index of whoever gives the next of units that are all alike; `None` where nobody has a
/// share.
///
/// Of those who are owed enough it is the one who would first be owed a whole unit. So nobody is
/// ever ahead or behind by one (Tijdeman 1980, "The chairman assignment problem"); by the largest
/// debt alone one of 20 can be behind by one and a half.
pub(super) fn next_of_equals(owed: &[i64], shares: &[i64]) -> Option<usize> {
    let live = shares.iter().filter(|share| **share > 0).count() as i64;
    let enough = if live > 1 { WHOLE / (2 * live - 2) } else { 0 };
    let due = |i: usize| owed[i] + shares[i];
    let able = (0..owed.len()).filter(|i| shares[*i] > 0 && due(*i) >= enough);
    // Compares (WHOLE - enough - due) / share without dividing.
    let until = |i: usize| i128::from(WHOLE - enough - due(i));
    let first = able.min_by(|a, b| {
        let (left, right) = (
            until(*a) * i128::from(shares[*b]),
            until(*b) * i128::from(shares[*a]),
        );
        left.cmp(&right).then(a.cmp(b))
    });
    // After a change of shares it may be that nobody is owed enough.
    first.or_else(|| next_owed(owed, shares))
}

/// The index of whoever is owed most; `None` where nobody has a share. Whoever gives the next was
/// owed something before, so nobody is ahead by more than one sample.
pub(super) fn next_owed(owed: &[i64], shares: &[i64]) -> Option<usize> {
    let able = (0..owed.len()).filter(|i| shares[*i] > 0);
    able.max_by(|a, b| {
        let due = |i: usize| owed[i] + shares[i];
        due(*a).cmp(&due(*b)).then(b.cmp(a))
    })
}

/// Books units that `giver` gave.
pub(super) fn pay(owed: &mut [i64], shares: &[i64], giver: usize, units: u32) {
    let units = i64::from(units);
    for (owed, share) in owed.iter_mut().zip(shares) {
        *owed += share * units;
    }
    owed[giver] -= WHOLE * units;
}
