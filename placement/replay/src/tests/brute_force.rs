//! Makespans of builders against the best of all orders of all ranks, for tiny pipelines.

use crate::{Pass, PassKind, PipelineCosts, PipelineSchedule, StageCosts};

/// Adds all orders that begin with `taken` to `found`: each pass behind those of its micro-batch and chunk that it
/// needs on this rank, and at most so many activations in flight.
fn orders(
    left: &[Pass],
    taken: &mut Vec<Pass>,
    in_flight: usize,
    in_flight_max: usize,
    found: &mut Vec<Vec<Pass>>,
) {
    if left.is_empty() {
        found.push(taken.clone());
    }
    for (at, pass) in left.iter().enumerate() {
        // Chunks are passed upwards by forward passes and downwards by gradients, whatever other ranks do.
        let needed = |it: &&Pass| it.micro_batch == pass.micro_batch && comes_before(it, pass);
        let in_flight = match pass.kind {
            PassKind::Forward => in_flight + 1,
            PassKind::Backward | PassKind::BackwardWeight => in_flight.wrapping_sub(1),
            PassKind::BackwardInput => in_flight,
        };
        if left.iter().any(|it| needed(&it)) || in_flight > in_flight_max {
            continue;
        }
        let rest = [&left[..at], &left[at + 1..]].concat();
        taken.push(*pass);
        orders(&rest, taken, in_flight, in_flight_max, found);
        taken.pop();
    }
}

fn comes_before(a: &Pass, b: &Pass) -> bool {
    use PassKind::{BackwardWeight, Forward};
    match (a.kind, b.kind) {
        (Forward, Forward) => a.chunk < b.chunk,
        (Forward, BackwardWeight) => a.chunk == b.chunk,
        (Forward, _) => true,
        (_, Forward) | (BackwardWeight, _) => false,
        (_, BackwardWeight) => a.chunk == b.chunk,
        _ => a.chunk > b.chunk,
    }
}

/// The end of the last pass; none if ranks wait for each other. Messages take no time.
fn makespan(
    ranks: &[&Vec<Pass>],
    chunks: usize,
    micro_batches: usize,
    costs: &PipelineCosts,
) -> Option<f64> {
    let stages = ranks.len() * chunks;
    let mut ends = vec![[None; 2]; stages * micro_batches];
    let (mut next, mut free) = (vec![0; ranks.len()], vec![0.0_f64; ranks.len()]);
    let mut moved = true;
    while moved {
        moved = false;
        for (rank, passes) in ranks.iter().enumerate() {
            while let Some(pass) = passes.get(next[rank]) {
                let stage = pass.chunk * ranks.len() + rank;
                let end_of = |stage: usize, kind: usize| -> Option<f64> {
                    ends[stage * micro_batches + pass.micro_batch][kind]
                };
                let (kind, arrives) = match pass.kind {
                    PassKind::Forward if stage == 0 => (0, Some(0.0)),
                    PassKind::Forward => (0, end_of(stage - 1, 0)),
                    PassKind::BackwardWeight => (2, Some(0.0)),
                    _ if stage + 1 == stages => (1, Some(0.0)),
                    _ => (1, end_of(stage + 1, 1)),
                };
                let Some(arrives) = arrives else {
                    break;
                };
                free[rank] = free[rank].max(arrives) + costs.stages[stage].seconds(pass.kind);
                if kind < 2 {
                    ends[stage * micro_batches + pass.micro_batch][kind] = Some(free[rank]);
                }
                next[rank] += 1;
                moved = true;
            }
        }
    }
    let is_done = ranks
        .iter()
        .zip(&next)
        .all(|(passes, next)| passes.len() == *next);
    is_done.then(|| free.into_iter().fold(0.0, f64::max))
}

/// The least makespan of all orders with the passes of this schedule, and at most so many activations in flight on
/// each rank. Micro-batches cost the same, so that rank 0 may take them by number the first time.
fn least(schedule: &PipelineSchedule, in_flight_max: &[usize], costs: &PipelineCosts) -> f64 {
    let (chunks, micro_batches) = (schedule.chunks(), schedule.micro_batches());
    let mut all = vec![];
    for (rank, passes) in schedule.ranks().iter().enumerate() {
        let mut found = vec![];
        orders(passes, &mut vec![], 0, in_flight_max[rank], &mut found);
        if rank == 0 {
            found.retain(|passes| {
                let firsts = passes
                    .iter()
                    .filter(|it| it.kind == PassKind::Forward && it.chunk == 0);
                firsts.map(|it| it.micro_batch).is_sorted()
            });
        }
        all.push(found);
    }
    let (mut least, mut at) = (f64::INFINITY, vec![0; all.len()]);
    'products: loop {
        let ranks: Vec<_> = at
            .iter()
            .zip(&all)
            .map(|(at, orders)| &orders[*at])
            .collect();
        if let Some(makespan) = makespan(&ranks, chunks, micro_batches, costs) {
            least = least.min(makespan);
        }
        for (at, orders) in at.iter_mut().zip(&all) {
            *at += 1;
            if *at < orders.len() {
                continue 'products;
            }
            *at = 0;
        }
        return least;
    }
}

fn uniform(stages: usize, (f, b, w): (f64, f64, f64)) -> PipelineCosts {
    PipelineCosts::uniform(stages, StageCosts::new(f, b, w), 0.0)
}

fn assert_best(schedule: &PipelineSchedule, costs: &PipelineCosts) {
    let makespan_s = schedule.summary(costs).unwrap().makespan_s;
    let least_s = least(schedule, &schedule.in_flight_max(), costs);
    assert_eq!(makespan_s, least_s, "{schedule:?}");
}

#[test]
fn no_order_beats_gpipe_and_1f1b_in_their_memory() {
    for (p, m) in [(1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (3, 3)] {
        for seconds in [(1.0, 1.0, 1.0), (2.0, 1.0, 0.5), (1.0, 0.5, 0.0)] {
            let costs = uniform(p, seconds);
            assert_best(&PipelineSchedule::gpipe(p, m).unwrap(), &costs);
            assert_best(
                &PipelineSchedule::one_forward_one_backward(p, m).unwrap(),
                &costs,
            );
        }
    }
}

#[test]
fn no_order_beats_interleaved_1f1b_in_its_memory() {
    for (p, m, v) in [(2, 2, 2), (2, 1, 3), (2, 2, 1), (3, 2, 1)] {
        for seconds in [(1.0, 1.0, 1.0), (1.0, 0.5, 0.5)] {
            let schedule = PipelineSchedule::interleaved(p, m, v).unwrap();
            assert_best(&schedule, &uniform(p * v, seconds));
        }
    }
}

#[test]
fn no_order_beats_zb_h1_in_its_memory() {
    for (p, m) in [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2)] {
        for seconds in [
            (1.0, 1.0, 1.0),
            (1.0, 2.0, 1.0),
            (1.0, 1.0, 2.0),
            (2.0, 1.0, 0.5),
        ] {
            let schedule = PipelineSchedule::zero_bubble_h1(p, m).unwrap();
            assert_best(&schedule, &uniform(p, seconds));
        }
    }
}

#[test]
fn the_search_finds_what_is_faster_where_there_is_something() {
    // A bound of 1 makes pipelines wait; more memory is used by the search.
    let schedule = PipelineSchedule::one_forward_one_backward(2, 3).unwrap();
    let costs = uniform(2, (1.0, 1.0, 1.0));
    assert_eq!(least(&schedule, &[1, 1], &costs), 18.0);
    assert_eq!(least(&schedule, &[2, 1], &costs), 12.0);
    // ZB-H1 with weight gradients at once is slower than it need be.
    let prompt = schedule.ranks().iter().map(|passes| {
        let split = |pass: &Pass| match pass.kind {
            PassKind::Forward => vec![*pass],
            _ => [PassKind::BackwardInput, PassKind::BackwardWeight]
                .map(|kind| Pass { kind, ..*pass })
                .to_vec(),
        };
        passes.iter().flat_map(split).collect()
    });
    let prompt = PipelineSchedule::from_passes(3, 1, prompt.collect());
    let makespan_s = prompt.summary(&costs).unwrap().makespan_s;
    assert!(least(&prompt, &[2, 2], &costs) < makespan_s);
}

/// The makespan of the planned schedule, as a multiple of the least of all orders.
fn times_the_least(costs: &PipelineCosts, micro_batches: usize, in_flight_max: usize) -> f64 {
    let schedule = PipelineSchedule::zero_bubble(costs, micro_batches, in_flight_max).unwrap();
    schedule.check_within(in_flight_max).unwrap();
    let makespan_s = schedule.summary(costs).unwrap().makespan_s;
    let bounds = vec![in_flight_max; costs.stages.len()];
    makespan_s / least(&schedule, &bounds, costs)
}

/// All costs of so many stages with these seconds.
fn uneven(stages: usize, seconds: &[f64]) -> impl Iterator<Item = PipelineCosts> {
    let cases = 0..seconds.len().pow(3 * stages as u32);
    cases.map(move |case| {
        let second = |at: usize| seconds[case / seconds.len().pow(at as u32) % seconds.len()];
        let stage = |at| StageCosts::new(second(3 * at), second(3 * at + 1), second(3 * at + 2));
        PipelineCosts {
            stages: (0..stages).map(stage).collect(),
            ..PipelineCosts::default()
        }
    })
}

#[test]
fn no_order_of_two_ranks_beats_the_planned_one_with_uneven_costs() {
    for costs in uneven(2, &[0.5, 1.0, 2.0]) {
        for in_flight_max in [1, 2] {
            assert_eq!(times_the_least(&costs, 2, in_flight_max), 1.0, "{costs:?}");
        }
    }
    for (case, costs) in uneven(2, &[1.0, 2.0]).enumerate() {
        assert_eq!(times_the_least(&costs, 3, 2), 1.0, "{costs:?}");
        // All orders of three micro-batches in flight are many.
        if case % 13 == 0 {
            assert_eq!(times_the_least(&costs, 3, 3), 1.0, "{costs:?}");
        }
    }
}

#[test]
fn planned_orders_of_three_ranks_are_near_the_best_with_uneven_costs() {
    let (mut worst, mut best, mut count) = (1.0_f64, 0, 0);
    for costs in uneven(3, &[1.0, 3.0]) {
        let times = times_the_least(&costs, 2, 2);
        assert!(times >= 1.0, "{costs:?}");
        worst = worst.max(times);
        best += usize::from(times == 1.0);
        count += 1;
    }
    println!("the best of all orders in {best} of {count} cases, {worst:.3} times it at worst");
    assert!(best * 50 >= count * 49 && worst < 1.06);
}
