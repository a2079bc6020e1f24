//! Reward models that several ranks share: they learn what one process learns, and give replies the same scores.

use std::path::{Path, PathBuf};

use odeon::{AskError, Needs, Ref, Restart, System};
use odeon_actors::engine::{EngineSpec, RewardKind, RewardModelSpec};
use odeon_actors::rl::ranks::RanksPlan;
use odeon_actors::rl::report::Monitor;
use odeon_actors::rl::reward_model::{LearnedReward, Rate, RewardModel, RewardModelArgs};
use odeon_actors::trajectory::Trajectory;
use odeon_algorithms::objective::Blend;
use odeon_algorithms::train::{Sharing, ZeroStage};
use odeon_diagnosis::ladder::LadderPolicy;

use crate::ranked::{PATIENCE, close, replies, spec, system};

/// Settings of a reward model, in a folder that ranks see.
struct Asked<'a> {
    folder: &'a Path,
    kind: RewardKind,
    sharing: Sharing,
    load: Option<PathBuf>,
}

async fn model(system: &System, asked: &Asked<'_>) -> Ref<RewardModel> {
    // Nobody listens at this desk.
    let monitor = system.spawn::<Monitor>(u64::MAX).await.unwrap();
    let sharing = asked.sharing;
    let ranks = RanksPlan {
        sharing,
        needs: Needs::new(),
        recovery: LadderPolicy::default(),
    };
    let args = RewardModelArgs {
        engine: EngineSpec::Compute(Box::new(spec(asked.folder, sharing.experts > 1))),
        ranks: (sharing.ranks() > 1).then_some(ranks),
        learned: LearnedReward {
            model: RewardModelSpec {
                kind: asked.kind,
                steps: 8,
                batch: 8,
                lr: 3e-3,
                load: asked.load.clone(),
                folder: asked.folder.join("reward-model"),
            },
            blend: Blend { model: 1.0 },
        },
        reports: monitor.narrow(),
    };
    let spawned = system
        .spawn::<RewardModel>(args)
        .restart(Restart::Permanent);
    spawned.isolated().await.unwrap()
}

/// What a reply earns, of this life or, when that ends meanwhile, of the next.
async fn rate(model: Ref<RewardModel>, reply: &Trajectory) -> f32 {
    loop {
        match model.ask(Rate(reply.clone())).timeout(PATIENCE).await {
            Err(AskError::Died(_) | AskError::LinkLost { .. }) | Ok(Ok(None)) => {}
            rated => return rated.unwrap().unwrap().unwrap().reward,
        }
    }
}

/// What some replies earn.
async fn rated(system: &System, asked: &Asked<'_>) -> Vec<f32> {
    let model = model(system, asked).await;
    let mut rates = vec![];
    for reply in replies(1).trajectories {
        rates.push(rate(model, &reply).await);
    }
    model.stop().await.unwrap();
    rates
}

fn same(plan: &str, one: &[f32], other: &[f32]) {
    let pairs = one.iter().zip(other);
    let all = pairs
        .clone()
        .all(|(one, other)| close(f64::from(*one), f64::from(*other)));
    assert!(one.len() == other.len() && all, "{plan}: {one:?} {other:?}");
}

/// Scores relative to the first, of what replies earn by them.
fn beside_first(rates: &[f32]) -> Vec<f32> {
    let score = |rate: f32| (rate / (1.0 - rate)).ln();
    rates
        .iter()
        .map(|it| score(*it) - score(rates[0]))
        .collect()
}

fn plans() -> Vec<(&'static str, Sharing)> {
    let of = Sharing::ALONE;
    let shards = Sharing {
        copies: 2,
        tensor: 2,
        zero: ZeroStage::Parameters,
        ..of
    };
    let mixed = Sharing {
        context: 2,
        stages: 2,
        ..of
    };
    vec![
        ("tp2", Sharing { tensor: 2, ..of }),
        ("dp2", Sharing { copies: 2, ..of }),
        ("tp2 x fsdp2", shards),
        ("pp2 x cp2", mixed),
    ]
}

/// SEMANTICS 196. Also of one that another plan, or one process, has learnt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_of_a_reward_model_learn_and_say_what_one_process_does() {
    let system = system().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    };
    for kind in [RewardKind::Scalar, RewardKind::Pairwise] {
        let own = at(&format!("{kind:?}"));
        let asked = Asked {
            folder: &own,
            kind,
            sharing: Sharing::ALONE,
            load: None,
        };
        let alone = rated(&system, &asked).await;
        assert!(
            alone.iter().any(|rate| !close(f64::from(*rate), 0.5)),
            "{alone:?}"
        );
        let mut plans = plans();
        if kind == RewardKind::Pairwise {
            plans.truncate(1);
        }
        for (plan, sharing) in plans {
            let learnt = at(&format!("{kind:?} {plan}"));
            let asked = Asked {
                folder: &learnt,
                kind,
                sharing,
                load: None,
            };
            same(plan, &alone, &rated(&system, &asked).await);
        }
        let loaded = at(&format!("{kind:?} loaded"));
        let loads = Asked {
            folder: &loaded,
            sharing: Sharing {
                tensor: 2,
                ..Sharing::ALONE
            },
            load: Some(own.join("reward-model")),
            kind,
        };
        // What earns a half is measured anew, on other pairs: all scores move alike.
        let loaded = rated(&system, &loads).await;
        same("loaded", &beside_first(&alone), &beside_first(&loaded));
    }
    system.shutdown().await;
}

/// SEMANTICS 196. It reads what it has learnt, so that the same is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reward_model_that_loses_a_rank_says_the_same_with_new_ones() {
    let system = system().await;
    let folder = tempfile::tempdir().unwrap();
    let asked = Asked {
        folder: folder.path(),
        kind: RewardKind::Scalar,
        sharing: Sharing {
            tensor: 2,
            ..Sharing::ALONE
        },
        load: None,
    };
    let model = model(&system, &asked).await;
    let reply = &replies(1).trajectories[4];
    let before = rate(model, reply).await;
    // Ranks began behind the actor that asks them.
    let workers = system.admin().workers().into_iter();
    let rank = workers.map(|(process, _)| process).max().unwrap();
    assert!(system.admin().kill_worker(rank));
    let again = rate(model, reply).await;
    assert_eq!(before.to_bits(), again.to_bits());
    system.shutdown().await;
}
