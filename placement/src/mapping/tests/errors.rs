//! Each error, with its text: what is wrong, where, and what to do.

use super::*;

#[track_caller]
fn check(workload: &Workload, pools: &[Pool], expect: &str) {
    let error = map(workload, pools, &Analytic::default()).unwrap_err();
    assert_eq!(error.to_string(), expect);
}

fn one(model: Model) -> Workload {
    let task = Task::train(model.name.clone(), batch(), 1);
    Workload::new([model]).stage("train", [task])
}

#[test]
fn nothing_to_map_or_to_map_to() {
    check(
        &Workload::default(),
        &[pool(8)],
        "the workload has no models; add at least one",
    );
    for pools in [vec![], vec![pool(0)]] {
        check(
            &one(seven("actor")),
            &pools,
            "the pools have no devices; add a pool with at least one",
        );
    }
}

#[test]
fn too_many_models() {
    let names: Vec<String> = (0..9).map(|at| format!("m{at}")).collect();
    let tasks = names.iter().map(|name| Task::forward(name, batch()));
    let workload = Workload::new(names.iter().map(|name| seven(name))).stage("score", tasks);
    check(
        &workload,
        &[pool(8)],
        "9 models are more than 8, the most that are mapped exactly; \
         give models that always run together as one",
    );
}

#[test]
fn the_same_name_twice() {
    let mut models = one(seven("actor"));
    models.models.push(seven("actor"));
    check(
        &models,
        &[pool(8)],
        "two models are named actor; rename one",
    );
    let stages = one(seven("actor")).stage("train", []);
    check(
        &stages,
        &[pool(8)],
        "two stages are named train; rename one",
    );
    let pools = [pool(8), pool(16)];
    check(
        &one(seven("actor")),
        &pools,
        "two pools are named a; rename one",
    );
}

#[test]
fn models_and_tasks_that_do_not_match() {
    let unknown = one(seven("actor")).stage("score", [Task::forward("critic", batch())]);
    check(
        &unknown,
        &[pool(8)],
        "stage score names the model critic, which is not one of: actor",
    );
    let mut unused = one(seven("actor"));
    unused.models.push(seven("critic"));
    check(
        &unused,
        &[pool(8)],
        "the model critic has no task in any stage; give it one or leave it out",
    );
}

#[test]
fn quantities_that_are_zero() {
    let with = |task: Task| Workload::new([seven("actor")]).stage("run", [task]);
    let zero = |field: &str, of: &str| format!("{field} of {of} is 0; it must be at least 1");
    let task = "the task of actor in stage run";
    for (batch, field) in [
        (Batch::new(0, 1, 1), "sequences"),
        (Batch::new(1, 0, 0), "prompt_tokens and response_tokens"),
    ] {
        check(
            &with(Task::forward("actor", batch)),
            &[pool(8)],
            &zero(field, task),
        );
    }
    let silent = Task::generate("actor", Batch::new(1, 1, 0));
    check(&with(silent), &[pool(8)], &zero("response_tokens", task));
    let idle = Task::train("actor", batch(), 0);
    check(&with(idle), &[pool(8)], &zero("updates", task));

    for (model, field) in [
        (Model::new("m", 0, 1, 1), "parameters"),
        (Model::new("m", 1, 0, 1), "layers"),
        (Model::new("m", 1, 1, 0), "hidden"),
        (seven("m").kv_bytes_per_token(0), "kv_bytes_per_token"),
    ] {
        check(&one(model), &[pool(8)], &zero(field, "model m"));
    }

    let actor = one(seven("actor"));
    check(
        &actor,
        &[pool(8).nodes_of(0)],
        &zero("device.per_node", "pool a"),
    );
    let mut empty = pool(8);
    empty.device.memory_bytes = 0;
    check(&actor, &[empty], &zero("device.memory_bytes", "pool a"));
}

#[test]
fn speeds_that_are_none() {
    let actor = one(seven("actor"));
    let text = |field: &str, value: f64| {
        format!("{field} of pool a is {value}; it must be a positive number")
    };
    for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let (mut flops, mut bandwidth) = (pool(8), pool(8));
        flops.device.flops = value;
        bandwidth.device.memory_bytes_per_second = value;
        check(&actor, &[flops], &text("device.flops", value));
        check(
            &actor,
            &[bandwidth],
            &text("device.memory_bytes_per_second", value),
        );
        check(
            &actor,
            &[pool(8).links(nvlink(value), nvlink(1.0))],
            &text("node_link", value),
        );
        check(
            &actor,
            &[pool(8).links(nvlink(1.0), nvlink(value))],
            &text("cross_link", value),
        );
    }
}

#[test]
fn a_model_that_fits_nowhere() {
    let seventy = Model::new("actor", 70_000_000_000, 80, 8192);
    check(
        &one(seventy),
        &[pool(8), Pool::new("b", a100(), 16)],
        "the model actor fits on no pool: on b, the largest, it needs 78.8 GB on each of 16 \
         devices and they have 72.0 GB to use (1152.0 GB in all); \
         add devices or memory, or take a smaller model",
    );
}

#[test]
fn models_that_fit_only_one_at_a_time() {
    let workload = Workload::new([thirteen("actor"), thirteen("critic")]).stage(
        "train",
        ["actor", "critic"].map(|name| Task::train(name, batch(), 8)),
    );
    check(
        &workload,
        &[pool(4)],
        "the models fit one at a time but not together: they need at least 468.0 GB and the \
         pools have 288.0 GB to use, in pieces that do not hold them; \
         add devices or memory, or map fewer models",
    );
}

/// A cost model with a hole.
struct Hole(f64);

impl CostModel for Hole {
    fn usable_bytes(&self, device: &DeviceModel) -> u64 {
        device.memory_bytes
    }

    fn resident_bytes(&self, _: &Model, _: Role, _: Degrees) -> u64 {
        1
    }

    fn seconds(&self, _: &Run<'_>) -> f64 {
        self.0
    }

    fn generation_bytes(&self, _: &Run<'_>, _: Degrees) -> u64 {
        1
    }

    fn generation(&self, _: &Run<'_>, _: Degrees, free_bytes: u64) -> Generation {
        Generation {
            seconds: self.0,
            waves: 1,
            bytes: free_bytes,
        }
    }
}

#[test]
fn prices_that_are_no_times() {
    let generate = Workload::new([seven("m")]).stage("run", [Task::generate("m", batch())]);
    let forward = Workload::new([seven("m")]).stage("run", [Task::forward("m", batch())]);
    for workload in [generate, forward] {
        for value in [f64::NAN, f64::INFINITY, -1.0] {
            let error = map(&workload, &[pool(8)], &Hole(value)).unwrap_err();
            let expect = format!(
                "the cost model says {value} s for m in stage run as 1-1-1 on pool a; \
                 it must say a finite time"
            );
            assert_eq!(error.to_string(), expect);
        }
    }
}
