//! Checkpoints of the layout before: they load, and go when the next one is saved.

use std::path::{Path, PathBuf};

use odeon_actors::engine::compute::{
    ComputeSpec, ModelSource, latest_model, read_model, saved_progress,
};
use odeon_actors::engine::{EngineSpec, Progress, TrainEngine};
use odeon_algorithms::model::{LoraConfig, Model, ModelConfig};
use odeon_algorithms::train::{TrainConfig, Trainer};
use odeon_checkpoint::export::{Export, export};
use odeon_checkpoint::{Opened, Storage, TensorName, Which};
use odeon_gpu::Cpu;
use serde_json::Value;

use crate::versions::{batch, reinforce, run_state, tiny, weights};

/// The names of tensors in the order of a trainer's buffers.
fn names(spec: &ComputeSpec, critic: bool) -> Vec<String> {
    let ModelSource::Fresh(config) = &spec.source else {
        panic!("it begins at random");
    };
    let mut config = ModelConfig::clone(config);
    config.value_head = critic;
    let mut model = Model::init(Cpu::new(1), config, 1).unwrap();
    if spec.lora_rank > 0 && !critic {
        let adapters = LoraConfig {
            rank: spec.lora_rank,
            ..LoraConfig::default()
        };
        model.add_lora(adapters, 1);
    }
    let trainer = Trainer::new(model, TrainConfig::default());
    let entries = trainer.trained_layout().entries().iter();
    entries.map(|entry| entry.name.clone()).collect()
}

/// Writes the newest checkpoint of `from` into `to` as versions before this one did. Its folder.
async fn write_as_before(spec: &EngineSpec, from: &Path, to: &Path) -> PathBuf {
    let EngineSpec::Compute(spec) = spec else {
        panic!("it computes");
    };
    let storage = Storage::folder(from).unwrap();
    let opened = Opened::of(&storage, Which::Latest).await.unwrap().unwrap();
    let roles: Vec<_> = opened.manifest().roles.keys().cloned().collect();
    let [role] = &*roles else { panic!("{roles:?}") };
    let json = async |name: &str| {
        let blob = opened.blob(name).await.unwrap();
        blob.map(|blob| serde_json::from_slice::<Value>(&blob).unwrap())
    };
    let steps = json("run.json").await.unwrap();
    let progress = &steps["progress"];
    let (warmup, version) = (&progress["warmup"], &progress["version"]);
    let name = format!("warmup-{warmup}-step-{version}");
    let folder = to.join(&name);
    std::fs::create_dir_all(&folder).unwrap();
    let options = Export {
        role: role.clone(),
        ..Export::default()
    };
    let model = folder.join("model");
    let exported = export(&storage, Which::Latest, &model, &options).await;
    exported.unwrap();

    let adapters = json("adapters.json").await;
    let mut states = vec!["exp_avg", "exp_avg_sq"];
    if adapters.is_some() {
        states.insert(0, "adapters");
    }
    let mut numbers: Vec<u8> = vec![];
    let names = names(spec, role == "critic");
    for state in &states {
        for tensor in &names {
            let of = TensorName {
                role: role.clone(),
                state: (*state).to_owned(),
                tensor: tensor.clone(),
            };
            numbers.extend(opened.tensor(&of).await.unwrap().unwrap());
        }
    }
    let parameters = (numbers.len() / 4 / states.len()) as u64;
    let of = |field: &str| adapters.as_ref().map(|adapters| &adapters[field]);
    let rank = of("rank").map_or(0, |rank| rank.as_u64().unwrap());
    let alpha = of("alpha").map_or(0.0, |alpha| alpha.as_f64().unwrap() as f32);
    let base = of("base").map_or(0, |base| base.as_u64().unwrap() as u32);
    let mut state = b"ODTRAIN2".to_vec();
    for word in [steps["updates"].as_u64().unwrap(), parameters, 0, rank] {
        state.extend(word.to_le_bytes());
    }
    state.extend(alpha.to_le_bytes());
    state.extend(base.to_le_bytes());
    state.extend(numbers);
    state.extend(crc32fast::hash(&state).to_le_bytes());
    std::fs::write(folder.join("trainer.state"), state).unwrap();
    if !steps["run"].is_null() {
        std::fs::write(folder.join("run.json"), steps["run"].to_string()).unwrap();
    }
    let latest = to.join("latest");
    let before = std::fs::read_to_string(&latest).unwrap_or_default();
    let line = format!("{warmup} {version} {name}\n{before}");
    std::fs::write(latest, line).unwrap();
    folder
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// SEMANTICS 35.
#[tokio::test]
async fn a_checkpoint_of_the_layout_before_is_gone_on_from_to_the_bit_and_replaced() {
    const WARMUP: u64 = 4;
    for lora_rank in [0, 3] {
        for (warmup, version) in [(2, 0), (WARMUP, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let [fresh, old, base] = ["fresh", "old", "base"].map(|name| folder.path().join(name));
            let spec = tiny(&base, lora_rank, 1);
            let advance = |trainer: &mut dyn TrainEngine, progress: &mut Progress| {
                if progress.warmup < WARMUP {
                    progress.warmup += 1;
                    trainer.warm_up(progress.warmup).unwrap()
                } else {
                    progress.version += 1;
                    reinforce(&spec, trainer, progress.version)
                }
            };
            let mut trainer = spec.trainer().unwrap();
            let (stop, mut progress) = (Progress { warmup, version }, Progress::default());
            while progress != stop {
                advance(trainer.as_mut(), &mut progress);
            }
            trainer.save(&fresh, &stop, &run_state()).unwrap();
            write_as_before(&spec, &fresh, &old).await;
            assert_eq!(saved_progress(&old).unwrap(), Some(stop));
            let model = latest_model(&old).unwrap().unwrap();
            assert_eq!(
                model,
                old.join(format!("warmup-{warmup}-step-{version}/model"))
            );
            assert_eq!(
                read_model(&model).unwrap(),
                read_model(&latest_model(&fresh).unwrap().unwrap()).unwrap()
            );

            let mut resumed = spec.trainer().unwrap();
            let restored = resumed.restore(&old).unwrap();
            assert_eq!(restored, Some((stop, run_state())));
            let mut again = progress;
            for _ in 0..3 {
                let undisturbed = advance(trainer.as_mut(), &mut progress);
                assert_eq!(advance(resumed.as_mut(), &mut again), undisturbed);
            }
            assert!(weights(resumed.as_mut()) == weights(trainer.as_mut()));

            resumed.save(&old, &again, &run_state()).unwrap();
            let first = format!("00000001-step-{}", again.warmup + again.version);
            let before = format!("warmup-{warmup}-step-{version}");
            assert_eq!(names_in(&old), [&*first, "latest", &*before]);
            advance(trainer.as_mut(), &mut progress);
            advance(resumed.as_mut(), &mut again);
            resumed.save(&old, &again, &run_state()).unwrap();
            let second = format!("00000002-step-{}", again.warmup + again.version);
            assert_eq!(names_in(&old), [first, second]);
            assert_eq!(saved_progress(&old).unwrap(), Some(again));
            let mut last = spec.trainer().unwrap();
            let restored = last.restore(&old).unwrap();
            assert_eq!(restored, Some((again, run_state())));
            assert!(weights(last.as_mut()) == weights(trainer.as_mut()));
        }
    }
}

/// SEMANTICS 35.
#[tokio::test]
async fn a_damaged_checkpoint_of_the_layout_before_is_refused_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let [fresh, old, base] = ["fresh", "old", "base"].map(|name| folder.path().join(name));
    let spec = tiny(&base, 3, 1);
    let mut trainer = spec.trainer().unwrap();
    trainer.warm_up(1).unwrap();
    let progress = Progress {
        warmup: 1,
        version: 0,
    };
    trainer.save(&fresh, &progress, &run_state()).unwrap();
    let state = write_as_before(&spec, &fresh, &old)
        .await
        .join("trainer.state");
    let refused = |lora_rank, seed| {
        let mut other = tiny(&base, lora_rank, seed).trainer().unwrap();
        other.restore(&old).unwrap_err().to_string()
    };
    for (error, words) in [
        (refused(2, 1), "adapters of rank 3"),
        (refused(0, 1), "this trainer has no adapters"),
        (refused(3, 2), "put the model back"),
    ] {
        assert!(error.contains(words), "{error}");
    }
    let whole = std::fs::read(&state).unwrap();
    let mut bent = whole.clone();
    bent[whole.len() - 9] ^= 1;
    let cut = &whole[..whole.len() / 2];
    for (bytes, words) in [
        (&*bent, "its checksum is another"),
        (cut, "it is cut off"),
        (b"", "it is cut off"),
        (b"ODTRAIN0 and so on", "it does not begin like one"),
    ] {
        std::fs::write(&state, bytes).unwrap();
        let error = refused(3, 1);
        assert!(error.contains(words), "{error}");
        assert!(error.contains(&state.display().to_string()), "{error}");
    }
}

/// SEMANTICS 33.
#[tokio::test]
async fn a_critic_keeps_those_of_the_layout_before_until_it_has_three_others() {
    let folder = tempfile::tempdir().unwrap();
    let [fresh, old, base] = ["fresh", "old", "base"].map(|name| folder.path().join(name));
    let spec = tiny(&base, 0, 1);
    let returns = |step: u64| vec![vec![1.0 / step as f32; 2]; 4];
    let mut critic = spec.critic().unwrap();
    let mut losses = vec![0.0];
    for step in 1..=5 {
        losses.push(critic.learn(&batch(step), &returns(step)).unwrap());
        if step <= 2 {
            critic.save(&fresh, step).unwrap();
            write_as_before(&spec, &fresh, &old).await;
        }
    }
    let before = ["latest", "warmup-0-step-1", "warmup-0-step-2"];
    assert_eq!(names_in(&old), before);

    let mut critic = spec.critic().unwrap();
    assert_eq!(critic.restore(&old, None).unwrap(), Some(2));
    let mut learn = |step: u64, from: Option<u64>| {
        if from.is_some() {
            assert_eq!(critic.restore(&old, from).unwrap(), from);
        }
        let loss = critic.learn(&batch(step), &returns(step)).unwrap();
        assert_eq!(loss, losses[step as usize], "step {step}");
        critic.save(&old, step).unwrap();
        names_in(&old)
    };
    let all = [
        "00000001-step-3",
        "latest",
        "warmup-0-step-1",
        "warmup-0-step-2",
    ];
    assert_eq!(learn(3, None), all);
    // The trainer is lost before it saves.
    assert_eq!(learn(3, Some(2)), all);
    let three = [
        "00000001-step-3",
        "00000002-step-4",
        "latest",
        "warmup-0-step-2",
    ];
    assert_eq!(learn(4, None), three);
    let three = ["00000001-step-3", "00000002-step-4", "00000003-step-5"];
    assert_eq!(learn(5, None), three);
}
