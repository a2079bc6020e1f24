//! The least time by trying everything, in the plainest way: no memo, no bound, and nothing of the
//! search but the types.

use super::super::*;

/// One decision for one model.
struct Pick<'a> {
    model: &'a Model,
    set: usize,
    parallel: Degrees,
    generation: Option<Degrees>,
}

pub(super) fn least_seconds(
    workload: &Workload,
    pools: &[Pool],
    cost: &dyn CostModel,
) -> Option<f64> {
    let (mut least, mut sets, mut picks) = (None, Vec::new(), Vec::new());
    extend(workload, pools, cost, &mut sets, &mut picks, &mut least);
    least
}

/// The next model joins each of the sets, or opens one at each place, in each of its ways.
fn extend<'a>(
    workload: &'a Workload,
    pools: &[Pool],
    cost: &dyn CostModel,
    sets: &mut Vec<(usize, u32)>,
    picks: &mut Vec<Pick<'a>>,
    least: &mut Option<f64>,
) {
    let Some(model) = workload.models.get(picks.len()) else {
        if let Some(seconds) = price(workload, pools, cost, sets, picks) {
            *least = Some(least.map_or(seconds, |best: f64| best.min(seconds)));
        }
        return;
    };
    let generates = tasks(workload, model).any(|(_, task)| task.work == Work::Generate);
    for set in 0..sets.len() {
        let (pool, devices) = sets[set];
        for parallel in ways(&pools[pool], devices, model.layers) {
            for generation in generations(parallel, generates) {
                picks.push(Pick {
                    model,
                    set,
                    parallel,
                    generation,
                });
                extend(workload, pools, cost, sets, picks, least);
                picks.pop();
            }
        }
    }
    for (pool, offered) in pools.iter().enumerate() {
        let taken = sets.iter().filter(|set| set.0 == pool).map(|set| set.1);
        for devices in 1..=offered.devices - taken.sum::<u32>() {
            if !allowed(offered, devices) {
                continue;
            }
            sets.push((pool, devices));
            for parallel in ways(offered, devices, model.layers) {
                for generation in generations(parallel, generates) {
                    picks.push(Pick {
                        model,
                        set: sets.len() - 1,
                        parallel,
                        generation,
                    });
                    extend(workload, pools, cost, sets, picks, least);
                    picks.pop();
                }
            }
            sets.pop();
        }
    }
}

fn price(
    workload: &Workload,
    pools: &[Pool],
    cost: &dyn CostModel,
    sets: &[(usize, u32)],
    picks: &[Pick<'_>],
) -> Option<f64> {
    let mut seconds = vec![vec![0.0; sets.len()]; workload.stages.len()];
    for (set, &(pool, _)) in sets.iter().enumerate() {
        let pool = &pools[pool];
        let own = || picks.iter().filter(|pick| pick.set == set);
        let resident: u64 = own()
            .map(|pick| cost.resident_bytes(pick.model, role(workload, pick.model), pick.parallel))
            .sum();
        let free = cost.usable_bytes(&pool.device).checked_sub(resident)?;
        for pick in own() {
            for (stage, task) in tasks(workload, pick.model) {
                let run = |parallel| Run {
                    model: pick.model,
                    task,
                    pool,
                    parallel,
                };
                seconds[stage][set] += match pick.generation.filter(|_| task.work == Work::Generate)
                {
                    None => cost.seconds(&run(pick.parallel)),
                    Some(way) if cost.generation_bytes(&run(way), pick.parallel) > free => {
                        return None;
                    }
                    Some(way) => cost.generation(&run(way), pick.parallel, free).seconds,
                };
            }
        }
    }
    let slowest = |sets: &Vec<f64>| sets.iter().copied().fold(0.0, f64::max);
    Some(seconds.iter().map(slowest).sum())
}

fn tasks<'a>(workload: &'a Workload, model: &Model) -> impl Iterator<Item = (usize, &'a Task)> {
    let stages = workload.stages.iter().enumerate();
    stages
        .flat_map(|(at, stage)| stage.tasks.iter().map(move |task| (at, task)))
        .filter(move |(_, task)| task.model == model.name)
}

fn role(workload: &Workload, model: &Model) -> Role {
    match tasks(workload, model).any(|(_, task)| matches!(task.work, Work::Train { .. })) {
        true => Role::Trained,
        false => Role::Frozen,
    }
}

/// Returns true when a set may get so many devices of the pool.
pub(super) fn allowed(pool: &Pool, devices: u32) -> bool {
    let node = pool.device.per_node;
    devices.is_multiple_of(node)
        || (devices < node && devices.is_power_of_two() && node.is_multiple_of(devices))
}

fn ways(pool: &Pool, devices: u32, layers: u32) -> Vec<Degrees> {
    let mut found = Vec::new();
    for tensor in 1..=pool.device.per_node {
        for pipeline in 1..=layers {
            for data in 1..=devices {
                if tensor * pipeline * data == devices && allowed(pool, tensor) {
                    found.push(Degrees {
                        data,
                        tensor,
                        pipeline,
                    });
                }
            }
        }
    }
    found
}

fn generations(resident: Degrees, generates: bool) -> Vec<Option<Degrees>> {
    if !generates {
        return vec![None];
    }
    let mut found = Vec::new();
    for tensor in 1..=resident.tensor {
        for pipeline in 1..=resident.pipeline {
            if resident.tensor.is_multiple_of(tensor) && resident.pipeline.is_multiple_of(pipeline)
            {
                let data = resident.data * resident.tensor * resident.pipeline / tensor / pipeline;
                found.push(Some(Degrees {
                    data,
                    tensor,
                    pipeline,
                }));
            }
        }
    }
    found
}
