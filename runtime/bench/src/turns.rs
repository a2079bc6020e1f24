//! Rounds, in which subjects take turns.

use futures::FutureExt;
use futures::future::BoxFuture;

/// A measurement of one subject.
pub(crate) type Measured<'a> = Box<dyn FnMut() -> BoxFuture<'a, anyhow::Result<f64>> + Send + 'a>;

/// Boxes a measurement.
pub(crate) fn measured<'a, F>(mut measure: impl FnMut() -> F + Send + 'a) -> Measured<'a>
where
    F: Future<Output = anyhow::Result<f64>> + Send + 'a,
{
    Box::new(move || measure().boxed())
}

/// Measures all subjects once a round, beginning with another each time, so that nobody is always behind
/// the same one. Gives each subject's values, round by round.
pub(crate) async fn in_turns<'a, const N: usize>(
    rounds: usize,
    mut subjects: [Measured<'a>; N],
) -> anyhow::Result<[Vec<f64>; N]> {
    let mut values: [Vec<f64>; N] = std::array::from_fn(|_| vec![]);
    for round in 0..rounds {
        for at in 0..N {
            let next = (round + at) % N;
            values[next].push(subjects[next]().await?);
        }
    }
    Ok(values)
}

/// The lower value of two subjects, round by round.
pub(crate) fn lower(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(a, b)| a.min(*b)).collect()
}

/// The higher value of two subjects, round by round.
pub(crate) fn higher(one: &[f64], other: &[f64]) -> Vec<f64> {
    one.iter().zip(other).map(|(a, b)| a.max(*b)).collect()
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[test]
    fn each_begins_as_often_as_the_others() {
        let order = Mutex::new(vec![]);
        let subject = |n: usize| {
            let order = &order;
            measured(move || {
                order.lock().push(n);
                std::future::ready(Ok(n as f64))
            })
        };
        let values = in_turns(3, [subject(0), subject(1), subject(2)]).now_or_never();
        assert_eq!(values.unwrap().unwrap()[1], [1.0; 3]);
        assert_eq!(*order.lock(), [0, 1, 2, 1, 2, 0, 2, 0, 1]);
    }
}
