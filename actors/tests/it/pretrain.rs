//! A pretraining run makes the same steps whoever is lost, and goes on with other ranks.

mod gradients;
mod group_test;
mod orders;
mod parts;
mod recovery;
mod shared;
mod standbys;
mod verify;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use odeon::{
    ActorId, Clock, ClusterIdentity, FakeDevices, Limits, Needs, ProcessId, Supervision, System,
    SystemBuilder, WorkerMode,
};
use odeon_actors::engine::Progress;
use odeon_actors::engine::compute::{
    ModelSource, latest_model, read_model, read_tokenizer, saved_progress,
};
use odeon_actors::pretrain::rank::Origin;
use odeon_actors::pretrain::report::{Report, StepReport};
use odeon_actors::pretrain::{Desk, Member, PretrainPlan, run};
use odeon_actors::recipe::{PretrainRecipe, Source};
use odeon_algorithms::model::{ContextKind, Gelu, LayerBlock, ModelConfig, Moe, StageLayers};
use odeon_algorithms::setting::Chosen;
use odeon_algorithms::train::{Optimizer, PipelineKind, Sharing, ZeroStage};
use odeon_algorithms::weights::{Family, load_directory};
use odeon_checkpoint::commit::find;
use odeon_checkpoint::export::{Export, export};
use odeon_checkpoint::manifest::MANIFEST;
use odeon_checkpoint::{Storage, Which};
use odeon_data::client;
use odeon_data::plane::DataPlane;
use odeon_devices::fake::{Fake, Spec};
use odeon_diagnosis::run::Watch;
use odeon_gpu::Precision;
use odeon_tests::again;
use odeon_topology::DeviceModel;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{mpsc, watch};

#[test]
fn worker_entry() {
    odeon_actors::job().serve_if_worker();
}

const STEPS: u64 = 9;

fn plan(folder: &Path) -> PretrainPlan {
    recipe(folder).plan(folder.join("checkpoint")).unwrap()
}

fn recipe(folder: &Path) -> PretrainRecipe {
    for (name, words) in [("short", 6), ("long", 60)] {
        let mut text = String::new();
        for record in 0..300 {
            let line = format!("{name} {record} ").repeat(1 + record % words);
            writeln!(text, "{line}").unwrap();
        }
        fs::write(folder.join(format!("{name}.txt")), text).unwrap();
    }
    let place = folder.display();
    let recipe = format!(
        r#"
        [run]
        name = "small"
        seed = 3
        out = "{place}"
        [model]
        hidden = 16
        layers = 1
        heads = 2
        kv_heads = 1
        ffn = 32
        context = 128
        [pretrain]
        steps = {STEPS}
        lr = 1e-2
        checkpoint_every = 3
        [processes]
        ranks = 2
        [data]
        loaders = 2
        shadows = 1
        patience_ms = 50
        cache = "{place}/cache"
        [plan]
        step = {{ tokens = 1024 }}
        [plan.microbatch]
        tokens = 256
        [plan.mixture.sources.short]
        weight = {{ constant = 1.0 }}
        [plan.mixture.sources.long]
        weight = {{ stages = [[0, 1.0], [5, 3.0]] }}
        [eval]
        every = 4
        tokens = 512
        one_of = 4
        [[source]]
        name = "short"
        path = "{place}/short.txt"
        format = {{ text = {{ document = "line" }} }}
        context = 128
        block_bytes = 512
        [[source]]
        name = "long"
        path = "{place}/long.txt"
        format = {{ text = {{ document = "line" }} }}
        context = 128
        block_bytes = 2048
        "#
    );
    let source = Source::new(Path::new("test.toml"), &recipe);
    assert!(source.pretrains());
    source.pretrain_recipe().unwrap()
}

/// Pictures of 16 by 16 pixels, each of which has one bright corner that its caption names, and text.
/// Nothing but the picture says which corner.
fn seeing(folder: &Path, ranks: u32, encoder: &str) -> PretrainPlan {
    let mut text = String::new();
    for record in 0..300 {
        let line = format!("text {record} ").repeat(1 + record % 20);
        writeln!(text, "{line}").unwrap();
    }
    fs::write(folder.join("text.txt"), text).unwrap();
    let count = 512_u32;
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|number| number.to_be_bytes())
            .collect()
    };
    let mut pictures = numbers(&[0x0803, count, 16, 16]);
    let mut classes = numbers(&[0x0801, count]);
    for nth in 0..count {
        let corner = nth * 7 / 3 % 4;
        let (row, column) = (corner / 2, corner % 2);
        for pixel in 0..256 {
            let here = pixel / 16 / 8 == row && pixel % 16 / 8 == column;
            pictures.push(if here {
                255 - (nth % 50) as u8
            } else {
                (nth % 60) as u8
            });
        }
        classes.push(corner as u8);
    }
    fs::write(folder.join("pictures.idx"), pictures).unwrap();
    fs::write(folder.join("classes.idx"), classes).unwrap();
    let place = folder.display();
    let recipe = format!(
        r#"
        [run]
        name = "seeing"
        seed = 5
        out = "{place}"
        [model]
        hidden = 32
        layers = 1
        heads = 2
        kv_heads = 1
        ffn = 64
        context = 128
        [vision]
        patch = 4
        hidden = 16
        layers = 1
        heads = 2
        ffn = 32
        [pretrain]
        steps = 120
        lr = 1e-2
        lr_floor = 1.0
        weight_decay = 0.0
        checkpoint_every = 10
        [processes]
        ranks = {ranks}
        [data]
        cache = "{place}/cache"
        [plan]
        step = {{ tokens = 512 }}
        {encoder}
        [plan.microbatch]
        tokens = 128
        [plan.cost.picture]
        linear = 100.0
        square = 1.0
        [plan.mixture.sources.pictures]
        weight = {{ constant = 3.0 }}
        [plan.mixture.sources.text]
        weight = {{ constant = 1.0 }}
        [eval]
        every = 20
        tokens = 1024
        one_of = 4
        [[source]]
        name = "pictures"
        path = "{place}/pictures.idx"
        format = {{ idx = {{ labels = "{place}/classes.idx", names = ["a", "b", "c", "d"] }} }}
        context = 32
        block_bytes = 4096
        pictures = {{ patch = 4 }}
        [[source]]
        name = "text"
        path = "{place}/text.txt"
        format = {{ text = {{ document = "line" }} }}
        context = 128
        block_bytes = 512
        "#
    );
    let recipe = Source::new(Path::new("test.toml"), &recipe);
    let recipe = recipe.pretrain_recipe().unwrap();
    recipe.plan(folder.join("checkpoint")).unwrap()
}

const SHARED: &str = r#"encoder = { method = "greedy" }"#;

fn node() -> SystemBuilder {
    let worker = again::worker(module_path!());
    let mut limits = Limits::default();
    limits.stop_grace = Duration::from_millis(100);
    System::builder()
        .limits(limits)
        .supervision(Supervision::one_for_one().budget(60, Duration::from_secs(60)))
        .workers(WorkerMode::Processes(worker))
}

/// Reports of a run, and its steps in the end.
struct Told {
    reports: Vec<Report>,
    steps: u64,
}

impl Told {
    /// Each step as it was made last.
    fn steps(&self) -> BTreeMap<u64, StepReport> {
        let steps = self.reports.iter().filter_map(|report| match report {
            Report::Step(step) => Some((step.step, step.clone())),
            _ => None,
        });
        steps.collect()
    }

    /// The lives of the ranks: how many there were, after how many steps, and where these were kept.
    fn lives(&self) -> Vec<(u32, u64, Origin)> {
        let lives = self.reports.iter().filter_map(|report| match report {
            Report::Resumed {
                ranks, steps, from, ..
            } => Some((*ranks, *steps, *from)),
            _ => None,
        });
        lives.collect()
    }

    /// The data and results of each step, to the bit.
    fn made(&self) -> Vec<(u64, u64, u64, String)> {
        let steps = self.steps().into_values();
        steps
            .map(|it| {
                (
                    it.step,
                    it.loss.to_bits(),
                    it.grad_norm.to_bits(),
                    it.digest,
                )
            })
            .collect()
    }
}

/// The data and loss of each step, to the bit.
fn losses(told: &Told) -> Vec<(u64, u64, String)> {
    let steps = told.steps().into_values();
    steps
        .map(|it| (it.step, it.loss.to_bits(), it.digest))
        .collect()
}

/// Runs a plan, and does something whenever there is a report.
async fn told(
    plan: &PretrainPlan,
    on: impl FnMut(&Report, &System, &[Member], &watch::Sender<Option<u32>>),
) -> Told {
    let system = node().start().await.unwrap();
    let told = told_on(&system, plan, on).await;
    system.shutdown().await;
    told
}

/// The same on a node that is there.
async fn told_on(
    system: &System,
    plan: &PretrainPlan,
    mut on: impl FnMut(&Report, &System, &[Member], &watch::Sender<Option<u32>>),
) -> Told {
    let (report, mut news) = mpsc::unbounded_channel();
    let (members, member) = watch::channel(vec![]);
    let (_halt, halted) = watch::channel(false);
    let (ranks, wanted) = watch::channel(None);
    let desk = Desk {
        reports: report,
        members,
        halt: halted,
        ranks: wanted,
    };
    let mut reports = vec![];
    let steps = {
        let mut running = Box::pin(run(system, plan, desk));
        let ended = Clock::timeout(Duration::from_secs(120), async {
            loop {
                tokio::select! {
                    biased;
                    Some(report) = news.recv() => {
                        on(&report, system, &member.borrow(), &ranks);
                        reports.push(report);
                    }
                    ended = &mut running => break ended,
                }
            }
        });
        ended.await.expect("the run ends").unwrap()
    };
    while let Ok(report) = news.try_recv() {
        reports.push(report);
    }
    Told { reports, steps }
}

fn kill(system: &System, members: &[Member], role: &str) {
    let process = members.iter().find(|(name, ..)| name == role).unwrap().2;
    if let Some((_, pid)) = system
        .admin()
        .workers()
        .iter()
        .find(|(id, _)| Some(*id) == process)
    {
        let _ = kill_process(Pid::from_raw(*pid as i32).unwrap(), Signal::KILL);
    }
}

/// SEMANTICS 106.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_makes_the_same_steps_to_the_bit_whoever_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = told(&plan(folder.path()), |_, _, _, _| {}).await;
    assert_eq!(undisturbed.steps, STEPS);
    assert_eq!(undisturbed.steps().len() as u64, STEPS);
    let evaluated = |report: &&Report| matches!(report, Report::Evaluated { .. });
    assert_eq!(undisturbed.reports.iter().filter(evaluated).count(), 4);
    let losses: Vec<f64> = undisturbed.steps().values().map(|step| step.loss).collect();
    assert!(
        losses.last().unwrap() < losses.first().unwrap(),
        "{losses:?}"
    );

    let other = tempfile::tempdir().unwrap();
    let mut victims = vec![
        (7, "rank-1"),
        (5, "constructor-0"),
        (4, "rank-0"),
        (2, "loader-0"),
    ];
    let plan = plan(other.path());
    let disturbed = told(&plan, |report, system, members, _| {
        if let Report::Step(step) = report
            && let Some((_, role)) = victims.pop_if(|(at, _)| step.step >= *at)
        {
            kill(system, members, role);
        }
    });
    let disturbed = disturbed.await;
    assert!(victims.is_empty());
    assert!(disturbed.lives().len() >= 3, "ranks were lost twice");
    assert_eq!(disturbed.made(), undisturbed.made());
}

/// Lion keeps one number a parameter, in checkpoints too; those of others are refused, and both are named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_with_lion_makes_the_same_steps_when_a_rank_is_lost_and_refuses_other_checkpoints() {
    let with = |folder: &Path, optimizer: Optimizer, steps| {
        let mut plan = plan(folder);
        plan.steps = steps;
        plan.train.optimizer = optimizer;
        plan.train.lr = 1e-3;
        plan
    };
    let lion = || Optimizer::named("lion").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = told(&with(folder.path(), lion(), 6), |_, _, _, _| {}).await;
    let losses: Vec<f64> = undisturbed.steps().values().map(|step| step.loss).collect();
    assert!(losses[5] < losses[0], "{losses:?}");
    let storage = Storage::create(folder.path().join("checkpoint").to_str().unwrap()).unwrap();
    let (_, manifest) = find(&storage, Which::Latest).await.unwrap();
    let states: Vec<&String> = manifest.roles["actor"].keys().collect();
    assert_eq!(states, ["exp_avg", "model"]);

    let other = tempfile::tempdir().unwrap();
    let mut victims = vec![(5, "rank-1")];
    let plan = with(other.path(), lion(), 6);
    let disturbed = told(&plan, |report, system, members, _| {
        if let Report::Step(step) = report
            && let Some((_, role)) = victims.pop_if(|(at, _)| step.step >= *at)
        {
            kill(system, members, role);
        }
    });
    assert_eq!(disturbed.await.made(), undisturbed.made());
    assert!(victims.is_empty());

    let refused = |optimizer: Optimizer, folder: &Path| {
        let plan = with(folder, optimizer, 8);
        async move {
            let system = node().start().await.unwrap();
            let (reports, _news) = mpsc::unbounded_channel();
            let (members, _member) = watch::channel(vec![]);
            let (_halt, halt) = watch::channel(false);
            let (_ranks, ranks) = watch::channel(None);
            let desk = Desk {
                reports,
                members,
                halt,
                ranks,
            };
            let error = run(&system, &plan, desk).await.unwrap_err().to_string();
            system.shutdown().await;
            error
        }
    };
    let error = refused(Optimizer::default(), folder.path()).await;
    assert!(
        error.contains("is of Lion, and this trainer uses AdamW"),
        "{error}"
    );
    // One that does not name its optimiser, as those of before: only what it keeps tells.
    let before = tempfile::tempdir().unwrap();
    told(
        &with(before.path(), Optimizer::default(), 3),
        |_, _, _, _| {},
    )
    .await;
    unname(&before.path().join("checkpoint")).await;
    let error = refused(lion(), before.path()).await;
    assert!(
        error.contains("is of AdamW or Muon, and this trainer uses Lion"),
        "{error}"
    );
    let goes_on = told(
        &with(before.path(), Optimizer::default(), 5),
        |_, _, _, _| {},
    )
    .await;
    assert_eq!(goes_on.steps, 5);
    let error = refused(Optimizer::named("muon").unwrap(), before.path()).await;
    assert!(
        error.contains("is of AdamW, and this trainer uses Muon"),
        "{error}"
    );
}

/// Two ranks train experts as they train any model, and the folder is one of Mixtral.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn experts_are_trained_by_ranks_and_exported_under_the_names_of_mixtral() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path());
    let block = LayerBlock::Moe(Moe {
        experts: 4,
        experts_per_token: 2,
    });
    let ModelSource::Fresh(config) = &mut plan.source else {
        panic!("the recipe makes a new model");
    };
    config.block = block;
    let told = told(&plan, |_, _, _, _| {}).await;
    let losses: Vec<f64> = told.steps().values().map(|step| step.loss).collect();
    assert_eq!(losses.len() as u64, STEPS);
    assert!(losses[losses.len() - 1] < losses[0], "{losses:?}");

    let checkpoints = folder.path().join("checkpoint");
    let storage = Storage::create(checkpoints.to_str().unwrap()).unwrap();
    let target = folder.path().join("folder");
    export(&storage, Which::Latest, &target, &Export::default())
        .await
        .unwrap();
    let model = load_directory(&target).unwrap();
    assert_eq!(model.fields.block, block);
    let last = "model.layers.0.block_sparse_moe.experts.3.w2.weight";
    assert_eq!(model.tensors[last].shape, [16, 32]);
    // The same model is read out of the checkpoint where it lies.
    let newest = latest_model(&checkpoints).unwrap().unwrap();
    assert_eq!(read_model(&newest).unwrap(), model);
    let tokenizer = read_tokenizer(&newest).unwrap();
    assert_eq!(tokenizer.files(), plan.tokenizer.files());
    let progress = Progress {
        warmup: 0,
        version: STEPS,
    };
    assert_eq!(saved_progress(&checkpoints).unwrap(), Some(progress));
}

/// The same with what GPT-2 has: its matrices are joined and transposed on the way to the folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gpt2_is_trained_by_ranks_and_exported_as_its_files_are() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path());
    let ModelSource::Fresh(config) = &mut plan.source else {
        panic!("the recipe makes a new model");
    };
    let own = ModelConfig {
        kv_heads: config.heads,
        ..ModelConfig::clone(config)
    };
    **config = own.of_block(LayerBlock::Gelu(Gelu::default()), plan.context);
    let (dim, context) = (config.dim, plan.context);
    let told = told(&plan, |_, _, _, _| {}).await;
    let losses: Vec<f64> = told.steps().values().map(|step| step.loss).collect();
    assert!(losses[losses.len() - 1] < losses[0], "{losses:?}");

    let checkpoints = folder.path().join("checkpoint");
    let storage = Storage::create(checkpoints.to_str().unwrap()).unwrap();
    let target = folder.path().join("folder");
    export(&storage, Which::Latest, &target, &Export::default())
        .await
        .unwrap();
    let bytes = fs::read(target.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk().unwrap();
    let header = &rest[..u64::from_le_bytes(*length) as usize];
    let header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let shape = |name: &str| header[name]["shape"].to_string();
    let joined = format!("[{dim},{}]", 3 * dim);
    assert_eq!(shape("transformer.h.0.attn.c_attn.weight"), joined);
    assert_eq!(
        shape("transformer.wpe.weight"),
        format!("[{context},{dim}]")
    );
    let model = load_directory(&target).unwrap();
    assert_eq!(model.fields.family, Family::Gpt2);
    // The same model is read out of the checkpoint where it lies.
    let newest = latest_model(&checkpoints).unwrap().unwrap();
    assert_eq!(read_model(&newest).unwrap(), model);
}

/// Takes the optimiser's name out of the newest checkpoint's manifest.
async fn unname(checkpoints: &Path) {
    let storage = Storage::create(checkpoints.to_str().unwrap()).unwrap();
    let (entry, mut manifest) = find(&storage, Which::Latest).await.unwrap();
    assert!(manifest.blobs.remove("optimizer.json").is_some());
    let file = checkpoints.join(entry.file(MANIFEST));
    fs::write(file, manifest.encode()).unwrap();
}

/// SEMANTICS 106.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_are_left_go_on_from_memory_and_when_neighbours_are_lost_from_the_storage() {
    let folder = tempfile::tempdir().unwrap();
    let three = |folder: &Path, memory_every| {
        let mut plan = plan(folder);
        plan.sharing.copies = 3;
        plan.steps = 16;
        plan.checkpoint_every = 8;
        plan.memory_every = memory_every;
        plan
    };
    let undisturbed = told(&three(folder.path(), 0), |_, _, _, _| {}).await;

    let other = tempfile::tempdir().unwrap();
    let mut victims = vec![
        (13, vec!["rank-0", "rank-1"]),
        (10, vec!["rank-0"]),
        (6, vec!["rank-2"]),
        (5, vec!["rank-1"]),
    ];
    let plan = three(other.path(), 1);
    let disturbed = told(&plan, |report, system, members, _| {
        if let Report::Step(step) = report
            && let Some((_, roles)) = victims.pop_if(|(at, _)| step.step >= *at)
        {
            roles.iter().for_each(|role| kill(system, members, role));
        }
    });
    let disturbed = disturbed.await;
    let lives = disturbed.lives();
    let origins: Vec<Origin> = lives.iter().map(|(.., from)| *from).collect();
    let (memory, storage) = (Origin::Memory, Origin::Storage);
    assert_eq!(origins, [Origin::Start, memory, memory, memory, storage]);
    // Not further back than the step before: the one that was under way when it was lost.
    assert!(
        lives[1].1 >= 3 && lives[2].1 >= 4 && lives[3].1 >= 8,
        "{lives:?}"
    );
    assert_eq!(lives[4].1, 8);
    assert_eq!(disturbed.made(), undisturbed.made());
}

/// SEMANTICS 106.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_goes_on_with_other_ranks_in_the_middle_and_when_it_is_started_again() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = told(&plan(folder.path()), |_, _, _, _| {}).await.steps();

    let other = tempfile::tempdir().unwrap();
    let mut begins = plan(other.path());
    begins.steps = 6;
    let first = told(&begins, |report, _, _, ranks| {
        if matches!(report, Report::Step(step) if step.step == 2) {
            ranks.send_replace(Some(3));
        }
    });
    let first = first.await;
    assert_eq!(first.steps, 6);
    let mut goes_on = plan(other.path());
    goes_on.sharing.copies = 1;
    let second = told(&goes_on, |_, _, _, _| {}).await;
    let lives = [first.lives(), second.lives()].concat();
    let lives: Vec<(u32, u64)> = lives
        .into_iter()
        .map(|(ranks, steps, _)| (ranks, steps))
        .collect();
    assert_eq!(lives.first(), Some(&(2, 0)));
    assert!(
        lives
            .iter()
            .any(|(ranks, steps)| *ranks == 3 && (2..=4).contains(steps)),
        "{lives:?}"
    );
    assert_eq!(lives.last(), Some(&(1, 6)));

    let mut steps = first.steps();
    steps.extend(second.steps());
    for (number, step) in &undisturbed {
        let made = &steps[number];
        assert_eq!(
            (made.tokens, made.samples),
            (step.tokens, step.samples),
            "step {number}"
        );
        // The same sums in another order.
        let apart = (made.loss - step.loss).abs() / step.loss;
        assert!(
            apart < 1e-4,
            "step {number}: {} and {}",
            made.loss,
            step.loss
        );
    }
}

/// The held-out loss of what pictures are called, at the end.
fn called(told: &Told) -> f64 {
    let mut rated = told.reports.iter().filter_map(|report| match report {
        Report::Evaluated { sources, .. } => Some(sources["pictures"]),
        _ => None,
    });
    rated.next_back().unwrap()
}

/// SEMANTICS 109.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_are_learnt_from_the_same_wherever_they_are_encoded() {
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let alone = told(&seeing(folders[0].path(), 1, ""), |_, _, _, _| {}).await;
    // A caption is a letter of four and the end. Who is blind pays ln 4 / 2 = 0.69 a token for it.
    assert!(called(&alone) < 0.2, "{}", called(&alone));

    let two = async |folder: &Path, encoder| {
        let mut plan = seeing(folder, 2, encoder);
        plan.steps = SAME;
        told(&plan, |_, _, _, _| {}).await.steps()
    };
    let own = two(folders[1].path(), "").await;
    let shared = two(folders[2].path(), SHARED).await;
    // In the middle other ranks, then the loss of one.
    let mut begins = seeing(folders[3].path(), 2, SHARED);
    begins.steps = 23;
    let begun = told(&begins, |report, _, _, ranks| {
        if matches!(report, Report::Step(step) if step.step == 3) {
            ranks.send_replace(Some(3));
        }
    });
    let begun = begun.await;
    let mut is_lost = false;
    let mut goes_on = seeing(folders[3].path(), 3, SHARED);
    goes_on.steps = SAME;
    let ended = told(&goes_on, |report, system, members, _| {
        if !is_lost && matches!(report, Report::Step(step) if step.step == 30) {
            kill(system, members, "rank-2");
            is_lost = true;
        }
    });
    let ended = ended.await;
    assert!(is_lost);
    let mut moved = begun.steps();
    moved.extend(ended.steps());

    for (number, step) in alone.steps().range(..=SAME) {
        for other in [&own[number], &shared[number], &moved[number]] {
            assert_eq!((other.tokens, other.samples), (step.tokens, step.samples));
            // The same sums in another order.
            let apart = (other.loss - step.loss).abs() / step.loss;
            let (other, step) = (other.loss, step.loss);
            assert!(apart < 1e-4, "step {number}: {other} and {step}");
        }
        assert_ne!(
            own[number].digest, shared[number].digest,
            "pixels are elsewhere"
        );
    }
}

/// Steps in which rounding has not yet grown to more than rounding.
const SAME: u64 = 40;

/// SEMANTICS 108.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loaders_are_on_nodes_with_devices_as_long_as_there_is_room_and_elsewhere_then() {
    let cluster = ClusterIdentity::generate().unwrap();
    let fake = Fake::new(Spec::cluster(1, DeviceModel::default())).unwrap();
    let start = async |name: &str, devices| {
        let node = node().job(odeon_actors::job());
        let node = node.resource("reader", 2.0).unwrap();
        let node = match devices {
            Some(devices) => node.devices(devices),
            None => node,
        };
        let identity = cluster.issue(name).unwrap();
        let node = node.listen("127.0.0.1:0".parse().unwrap(), identity);
        node.start().await.unwrap()
    };
    let accelerated = FakeDevices::new(&fake, "node0").unwrap();
    let (system, other) = (start("a", None).await, start("b", Some(accelerated)).await);
    system.join(other.address().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut recipe = recipe(folder.path());
    recipe.data.cpus = 0.25;
    let mut plan = recipe.plan(folder.path().join("checkpoint")).unwrap().data;
    plan.loaders.sources = Some(vec![vec![0, 1], vec![1, 2]]);
    plan.loaders.shadows = 0;
    let reserved = Needs::new().cpus(0.25).prefer_accelerated(1);
    assert_eq!(
        [&plan.loaders.needs, &plan.constructors.needs],
        [&reserved; 2]
    );
    // Two find room on a node of any size.
    plan.loaders.needs = plan.loaders.needs.resource("reader", 1.0);
    plan.constructors.needs = Needs::new();
    let plane = DataPlane::start(&system, plan).await.unwrap();
    let on = |node: &System| {
        let workers = node.admin().workers();
        let here = |role: &(String, ActorId, Option<ProcessId>)| {
            role.0.starts_with("loader") && workers.iter().any(|(id, _)| Some(*id) == role.2)
        };
        plane.roles().filter(here).count()
    };
    assert_eq!((on(&other), on(&system)), (2, 1));
    for step in 0..3 {
        for rank in 0..2 {
            let constructor = plane.supply().constructor_of(rank).unwrap();
            client::fetch(constructor, step, rank).await.unwrap();
        }
    }
    plane.stop().await;
    system.shutdown().await;
    other.shutdown().await;
}

/// SEMANTICS 92.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_whose_loss_is_no_number_are_named_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(folder.path());
    // The first update throws the weights away.
    plan.train.lr = 1e15;
    plan.train.clip = None;
    let told = told(&plan, |_, _, _, _| {}).await;
    assert_eq!(told.steps, STEPS, "nothing is done about it");
    let found = told.reports.iter().filter_map(|report| match report {
        Report::Finding {
            step,
            rule,
            ranks,
            why,
            ..
        } => Some((*step, rule.as_str(), ranks.as_slice(), why.as_str())),
        _ => None,
    });
    let why = "the loss of ranks 0, 1 is not finite in step 2, like that of every rank: their weights are bad, or \
               the data of all";
    let twice = "the gradient of all ranks of step 2 is not finite, first at model.norm.weight, and was the same when \
                 it was computed again: its samples or the weights are bad; the step changed nothing";
    let expected = [
        (2, "gradient_not_finite", &[][..], twice),
        (2, "loss_not_finite", &[0, 1][..], why),
    ];
    assert_eq!(found.collect::<Vec<_>>(), expected);
}
