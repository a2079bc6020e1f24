//! A tiny reward model, from pairs of a policy that knows nothing yet.

use std::time::Duration;

use odeon_algorithms::model::{ModelConfig, Recompute};
use odeon_algorithms::objective::PolicyObjective;
use odeon_algorithms::task::{SumsConfig, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::Schedule;
use odeon_algorithms::weights::StoredType;

use super::*;
use crate::engine::compute::{Device, ModelSource, Precision, Sampling, policy_optimizer};
use crate::rl::referee::ProgramSpec;
use crate::trajectory::{Observed, SampleId};

fn spec(folder: &Path) -> ComputeSpec {
    let tokenizer = Tokenizer::arithmetic();
    let model = ModelConfig {
        vocab: tokenizer.vocabulary(),
        dim: 32,
        layers: 1,
        head_dim: 16,
        ffn: 64,
        ..ModelConfig::default()
    };
    ComputeSpec {
        source: ModelSource::Fresh(Box::new(model)),
        tokenizer,
        task: TaskSpec::Sums(SumsConfig {
            digits_max: 1,
            ..SumsConfig::default()
        }),
        environment: None,
        programs: ProgramSpec::default(),
        seed: 5,
        device: Device::Cpu,
        threads: 1,
        deterministic: false,
        products: Precision::F32,
        context: 24,
        lora_rank: 0,
        warmup_batch: 32,
        warmup_steps: 0,
        warmup_lr: 3e-3,
        lr: 8e-4,
        schedule: Schedule::Constant,
        optimizer: policy_optimizer(),
        recompute: Recompute::Nothing,
        offload: false,
        critic_lr: 1e-3,
        epochs: 1,
        minibatches: 1,
        pretrain: 0.0,
        objective: PolicyObjective::default(),
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            response_max: 4,
        },
        weights: StoredType::F32,
        slots: 32,
        base: folder.join("base"),
        share: None,
    }
}

fn plan(folder: &Path, kind: RewardKind) -> RewardModelSpec {
    RewardModelSpec {
        kind,
        steps: 20,
        batch: 16,
        lr: 3e-3,
        load: None,
        folder: folder.join("reward-model"),
    }
}

fn model(folder: &Path, kind: RewardKind) -> RewardModel {
    RewardModel::new(&spec(folder), &plan(folder, kind))
}

fn reply(spec: &ComputeSpec, prompt: &str, text: &str) -> Trajectory {
    Trajectory {
        id: SampleId {
            group: 0,
            sample: 0,
        },
        version: 0,
        last_version: 0,
        life: 1,
        last_life: 1,
        prompt: spec.tokenizer.encode(prompt).unwrap(),
        response: spec.tokenizer.encode(text).unwrap(),
        log_probs: vec![],
        observed: Observed::default(),
        waited: Duration::ZERO,
        problem: 0,
        reward: 0.0,
        correct: false,
        cost: 0.0,
    }
}

const KINDS: [RewardKind; 2] = [RewardKind::Scalar, RewardKind::Pairwise];

/// SEMANTICS 91.
#[test]
fn what_a_reply_earns_does_not_depend_on_those_that_are_rated_with_it() {
    for kind in KINDS {
        let folder = tempfile::tempdir().unwrap();
        let mut model = model(folder.path(), kind);
        model.prepare().unwrap();
        let spec = spec(folder.path());
        let texts = ["", "7", "12", "1234", "7+", "99", "0", "=12="];
        let prompts = ["3+4=", "9+3=", "3+4="];
        let all: Vec<Trajectory> = (0..96)
            .map(|n| reply(&spec, prompts[n % 3], texts[n % 8]))
            .collect();
        let together = model.rate(&all).unwrap();
        for (reply, rate) in all.iter().zip(&together).rev() {
            let alone = model.rate(std::slice::from_ref(reply)).unwrap();
            assert_eq!(alone, [*rate], "{kind:?}");
            assert!((0.0..=1.0).contains(rate));
        }
        let distinct: HashSet<u32> = together.iter().map(|rate| rate.to_bits()).collect();
        assert!(distinct.len() > 8, "{together:?}");
    }
}

/// SEMANTICS 91.
#[test]
fn what_was_learnt_is_read_by_the_next_life_and_is_the_same_when_it_is_learnt_again() {
    for kind in KINDS {
        let folders = [(), ()].map(|()| tempfile::tempdir().unwrap());
        // One that was killed while it saved has left something.
        let left = folders[1].path().join("reward-model.new");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("config.json"), "{").unwrap();
        let reply = reply(&spec(folders[0].path()), "3+4=", "7");
        let mut seen = vec![];
        for folder in folders.iter().chain([&folders[0]]) {
            let mut model = model(folder.path(), kind);
            let learnt = model.prepare().unwrap();
            assert_eq!((learnt.kind, learnt.steps), (kind, 20));
            assert!(learnt.pairs > 200 && learnt.loss > 0.0, "{learnt:?}");
            seen.push((learnt, model.rate(std::slice::from_ref(&reply)).unwrap()));
        }
        assert!(!left.exists());
        assert_eq!(seen[0], seen[1], "learnt again");
        assert_eq!(seen[0], seen[2], "read");
    }
}

#[test]
fn a_reply_is_as_much_better_as_the_other_is_worse() {
    let folder = tempfile::tempdir().unwrap();
    let mut model = model(folder.path(), RewardKind::Pairwise);
    model.prepare().unwrap();
    let prompt = model.spec.tokenizer.encode("3+4=").unwrap();
    let [one, two] = ["7", "12"].map(|text| model.spec.tokenizer.encode(text).unwrap());
    let (there, back) = (
        model.rows(&prompt, &one, &two),
        model.rows(&prompt, &two, &one),
    );
    let mut lead = |rows: [Trajectory; 2]| {
        let scores = model.model.scores(&batch(rows.to_vec())).unwrap();
        scores[0] - scores[1]
    };
    let (there, back) = (lead(there), lead(back));
    assert_eq!(there.to_bits(), (-back).to_bits());
    assert!(there != 0.0);
    // The reply with which all are compared is worth a half.
    let anchor = Anchors::new(&model.spec).unwrap();
    let mut likeliest = reply(&model.spec, "3+4=", "");
    let mut anchor = anchor;
    likeliest.response = anchor
        .of(std::slice::from_ref(&likeliest))
        .unwrap()
        .remove(0);
    assert_eq!(model.rate(&[likeliest]).unwrap(), [0.5]);
}

#[test]
fn one_that_has_learnt_is_loaded_and_what_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let learnt = model(folder.path(), RewardKind::Scalar).prepare().unwrap();
    let other = tempfile::tempdir().unwrap();
    let loads = |path: &Path, kind| {
        let plan = RewardModelSpec {
            load: Some(path.to_owned()),
            ..plan(other.path(), kind)
        };
        RewardModel::new(&spec(other.path()), &plan)
    };
    let there = folder.path().join("reward-model");
    let wrong = loads(&there, RewardKind::Pairwise).prepare().unwrap_err();
    assert!(
        wrong
            .to_string()
            .contains("is scalar, and kind is pairwise"),
        "{wrong}"
    );
    let nothing = loads(other.path(), RewardKind::Scalar).prepare();
    let nothing = nothing.unwrap_err().to_string();
    assert!(nothing.contains("there is no reward model"), "{nothing}");
    let small = check_reward_model(&there, RewardKind::Scalar, 7).unwrap_err();
    assert!(small.to_string().contains("expected 7"), "{small}");
    let loaded = loads(&there, RewardKind::Scalar).prepare().unwrap();
    assert_eq!((loaded.steps, loaded.loss), (learnt.steps, learnt.loss));
    // The run has its own from then on.
    fs::remove_dir_all(&there).unwrap();
    let again = loads(&there, RewardKind::Scalar).prepare().unwrap();
    assert_eq!(again, loaded);
}

#[test]
fn before_it_has_learnt_nothing_is_rated() {
    let folder = tempfile::tempdir().unwrap();
    let spec = spec(folder.path());
    let mut model = model(folder.path(), RewardKind::Scalar);
    let error = model.rate(&[reply(&spec, "3+4=", "7")]).unwrap_err();
    assert!(error.to_string().contains("has not learnt"), "{error}");
}
