//! The first steps of a run by its ranks and by one rank: equal but for rounding, and what is not is named.

use odeon_actors::pretrain::compare::Quantity;
use odeon_actors::pretrain::verify::{Side, Verification, Verified, verify};

use super::*;

/// Two ranks that share a model, deterministic, with numbers that are dropped; and three steps of it.
fn shared(folder: &Path, tensor: u32) -> Verification {
    let mut recipe = recipe(folder);
    recipe.model.layers = 3;
    recipe.model.kv_heads = 2;
    recipe.parallel.tp = tensor;
    recipe.run.deterministic = true;
    recipe.pretrain.dropout = 0.1;
    recipe
        .verification(3, 1e-5, &folder.join("beside"))
        .unwrap()
}

async fn verified(verification: &Verification) -> Verified {
    let system = node().start().await.unwrap();
    let mut steps = vec![];
    let told = |side, step: &StepReport| steps.push((side, step.step));
    let verified = verify(&system, verification, told).await.unwrap();
    system.shutdown().await;
    let both = [Side::Plan, Side::One];
    let all = both
        .into_iter()
        .flat_map(|side| (1..=3).map(move |step| (side, step)));
    assert_eq!(steps, all.collect::<Vec<_>>());
    verified
}

/// SEMANTICS 146.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_are_one_rank_but_for_rounding_and_a_rank_is_one_rank_to_the_bit() {
    for tensor in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let verified = verified(&shared(folder.path(), tensor)).await;
        assert_eq!(verified.beyond, None, "{verified:?}");
        let first = verified.first.unwrap();
        assert!(
            !verified.equal && first.step > 0 && first.relative < 1e-5,
            "{first:?}"
        );
        let parts: Vec<&str> = verified.parts.iter().map(|it| &*it.part).collect();
        let layers = ["model.layers.0", "model.layers.1", "model.layers.2"];
        assert_eq!(parts[1..4], layers);
        assert_eq!(parts[0], "model.embed_tokens");
        // The folder of a run stays as it is.
        assert!(!folder.path().join("small").exists());
    }
    let folder = tempfile::tempdir().unwrap();
    let mut alone = shared(folder.path(), 2);
    alone.plan = PretrainPlan {
        checkpoint: alone.plan.checkpoint.clone(),
        ..alone.one.clone()
    };
    let verified = verified(&alone).await;
    assert!(verified.equal && verified.first.is_none() && verified.beyond.is_none());
    assert_eq!(verified.steps.len(), 3);
}

/// SEMANTICS 146. Faults of which each is in another quantity first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_begin_or_train_otherwise_are_told_by_what_differs_first() {
    type Plant = fn(&mut PretrainPlan);
    let faults: [(Plant, u64, Quantity, Option<&str>); 4] = [
        (
            |plan| plan.seed += 1,
            0,
            Quantity::Weights,
            Some("model.embed_tokens.weight"),
        ),
        (|plan| plan.dropout = 0.2, 1, Quantity::Loss, None),
        (
            |plan| plan.train.lr *= 1.5,
            1,
            Quantity::Weights,
            Some("model.embed_tokens.weight"),
        ),
        (
            |plan| plan.train.clip = Some(1e-3),
            1,
            Quantity::Gradient,
            Some("model.norm.weight"),
        ),
    ];
    for (plant, step, quantity, tensor) in faults {
        let folder = tempfile::tempdir().unwrap();
        let mut verification = shared(folder.path(), 2);
        plant(&mut verification.plan);
        let verified = verified(&verification).await;
        let beyond = verified.beyond.unwrap();
        let found = (beyond.step, beyond.quantity, beyond.tensor.as_deref());
        assert_eq!(found, (step, quantity, tensor), "{beyond:?}");
        assert!(beyond.relative > 1e-5, "{beyond:?}");
        assert_eq!(beyond.ranks.is_empty(), tensor.is_none());
    }
}
