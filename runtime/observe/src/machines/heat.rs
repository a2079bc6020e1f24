//! A heat map of machines that do the same: each metric of each over the last minutes, beside their median.

use std::time::Duration;

use odeon::inspect::Metric;

use super::alike::{AlikeMachines, COMPARED};
use crate::bounds::ODD_MACHINES_MIN;
use crate::cluster_view::ClusterView;
use crate::date::Date;

/// The time over which means are taken.
pub const HEAT_OVER: Duration = Duration::from_secs(300);
/// Points of the picture of a metric, each the mean of as many seconds.
pub const HEAT_POINTS: usize = 20;

/// A metric of machines.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatColumn {
    /// Which.
    pub metric: Metric,
    /// The median of the means of all machines; of two the lower.
    pub median: f64,
    /// By machine, in the order of their names; none where it was not measured.
    pub cells: Vec<Option<HeatCell>>,
}

/// A metric of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct HeatCell {
    /// The mean.
    pub mean: f64,
    /// The distance of the mean from the median, in robust standard deviations of the means, of a third of what matters at
    /// least in the metric: from 3 on it is as far as an odd machine. None of fewer machines than are compared.
    pub deviations: Option<f64>,
    /// The course up to now, oldest first; less where it was not measured.
    pub points: Vec<f64>,
}

impl AlikeMachines {
    /// The metrics that were measured of the machines, in the order in which they are compared.
    #[must_use]
    pub fn heat(&self, seen: &ClusterView, now: Date) -> Vec<HeatColumn> {
        let seconds = HEAT_OVER.as_secs() as usize;
        // The second that goes on is not over.
        let from = now.before(HEAT_OVER + Duration::from_secs(1));
        let columns = COMPARED.iter().filter_map(|(metric, margin)| {
            let nodes = self.hosts.keys();
            let rows: Vec<Option<Vec<f32>>> = nodes
                .map(|node| self.seconds(seen, node, *metric, from, seconds))
                .collect();
            let means: Vec<Option<f64>> = rows.iter().map(|row| mean(row.as_deref()?)).collect();
            let known: Vec<f64> = means.iter().flatten().copied().collect();
            let median = median(known.clone())?;
            let apart = known.iter().map(|it| (it - median).abs()).collect();
            let matters = f64::from(margin.absolute).max(f64::from(margin.relative) * median.abs());
            let unit = (MAD * self::median(apart)?).max(matters / LIMIT);
            let cells = rows.iter().zip(&means).map(|(row, mean)| {
                let (row, mean) = (row.as_ref()?, (*mean)?);
                let is_compared = known.len() >= ODD_MACHINES_MIN && unit > 0.0;
                Some(HeatCell {
                    mean,
                    deviations: is_compared.then(|| (mean - median) / unit),
                    points: row
                        .chunks(seconds / HEAT_POINTS)
                        .filter_map(self::mean)
                        .collect(),
                })
            });
            Some(HeatColumn {
                metric: *metric,
                median,
                cells: cells.collect(),
            })
        });
        columns.collect()
    }
}

/// Medians of deviations in one standard deviation of a normal distribution.
const MAD: f64 = 1.4826;
/// The limit of the rule, in these.
const LIMIT: f64 = 3.0;

/// The mean of what was measured.
fn mean(values: &[f32]) -> Option<f64> {
    let known = values.iter().filter(|it| !it.is_nan());
    let (sum, count) = known.fold((0.0, 0_u32), |(sum, count), it| {
        (sum + f64::from(*it), count + 1)
    });
    (count > 0).then(|| sum / f64::from(count))
}

/// The middle one; of two the lower.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machines::alike::tests::{at, look, sight_of, with_actor, with_step};

    /// SEMANTICS 184.
    #[test]
    fn a_machine_that_is_far_from_the_median_has_more_than_three_deviations_and_its_course() {
        let mut seen = ClusterView::default();
        for second in 0..100 {
            let slow = if second < 50 { 0.2 } else { 0.4 };
            let nodes = [("a", 0.2), ("b", 0.201), ("c", slow), ("d", 0.199)];
            let sights = nodes
                .into_iter()
                .zip(11..)
                .map(|((node, seconds), serial)| {
                    let rank =
                        with_actor(sight_of(node, &[(serial, 0.5)]), serial, "pretrain.Rank");
                    with_step(rank, serial, "compute", seconds)
                });
            look(&mut seen, second, sights.collect());
        }
        let groups = seen.alike_machines();
        let heat = groups[0].heat(&seen, at(100));
        let metrics: Vec<_> = heat.iter().map(|it| it.metric).collect();
        assert_eq!(metrics, [Metric::ProcessCpu, Metric::Compute]);
        let compute = &heat[1];
        assert!((compute.median - 0.2).abs() < 0.002);
        let cell = |place: usize| compute.cells[place].as_ref().unwrap();
        assert!((cell(2).mean - 0.3).abs() < 2e-3);
        assert!(cell(2).deviations.unwrap() > 3.0 && cell(1).deviations.unwrap().abs() < 1.0);
        let points = &cell(2).points;
        assert!(points.len() >= 6 && points[0] < 0.21 && points[points.len() - 1] > 0.39);
        assert!(
            heat[0]
                .cells
                .iter()
                .flatten()
                .all(|it| it.deviations == Some(0.0))
        );
    }
}
