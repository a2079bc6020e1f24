//! Ranks that share copies of a model make the steps of one rank that has it all.

use super::*;

/// A run of so many ranks, of which neighbours share copies: `tensor` each.
fn of(folder: &Path, ranks: u32, tensor: u32, block: LayerBlock) -> PretrainPlan {
    let mut plan = plan(folder);
    let ModelSource::Fresh(model) = &mut plan.source else {
        unreachable!("the recipe loads none")
    };
    (model.heads, model.kv_heads, model.block) = (4, 4, block);
    (plan.ranks, plan.tensor) = (ranks, tensor);
    plan.train.lr = 1e-3;
    plan.memory_every = 1;
    // Sums in one order, on threads.
    if block != LayerBlock::default() {
        (plan.deterministic, plan.threads) = (true, 2);
    }
    plan
}

fn experts() -> LayerBlock {
    LayerBlock::Moe(Moe {
        experts: 4,
        experts_per_token: 2,
    })
}

/// Samples, tokens and losses of all steps are the same, these but for rounding; so is what held-out samples say.
fn same(told: &Told, one: &Told) {
    let (steps, of_one) = (told.steps(), one.steps());
    assert_eq!(steps.len(), of_one.len());
    for (made, step) in steps.values().zip(of_one.values()) {
        assert_eq!(
            (made.samples, made.tokens),
            (step.samples, step.tokens),
            "step {}",
            step.step
        );
        let apart = (made.loss - step.loss).abs() / step.loss;
        let (loss, expected) = (made.loss, step.loss);
        assert!(apart < 1e-5, "{}: {loss} and {expected}", step.step);
    }
    let rated = |told: &Told| -> Vec<(u64, f64)> {
        let reports = told.reports.iter().filter_map(|report| match report {
            Report::Evaluated { steps, loss, .. } => Some((*steps, *loss)),
            _ => None,
        });
        reports.collect()
    };
    let expected: BTreeMap<u64, f64> = rated(one).into_iter().collect();
    let rated = rated(told);
    assert!(rated.len() > 2 && rated.len() == expected.len());
    for (steps, loss) in rated {
        assert!((loss / expected[&steps] - 1.0).abs() < 1e-5, "step {steps}");
    }
}

/// SEMANTICS 132.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_share_copies_make_the_steps_of_one_whoever_is_lost() {
    for block in [LayerBlock::default(), experts()] {
        let folder = tempfile::tempdir().unwrap();
        let one = told(&of(folder.path(), 1, 1, block), |_, _, _, _| {}).await;
        let folder = tempfile::tempdir().unwrap();
        let parts = told(&of(folder.path(), 4, 2, block), |_, _, _, _| {}).await;
        same(&parts, &one);

        let folder = tempfile::tempdir().unwrap();
        // Of what both copies of the first part have there is nothing left then, but on their neighbours.
        let mut victims = vec![(7, vec!["rank-0", "rank-2"]), (4, vec!["rank-3"])];
        let plan = of(folder.path(), 4, 2, block);
        let killed = told(&plan, |report, system, members, _| {
            if let Report::Step(step) = report
                && let Some((_, roles)) = victims.pop_if(|(at, _)| step.step >= *at)
            {
                roles.iter().for_each(|role| kill(system, members, role));
            }
        });
        let killed = killed.await;
        assert!(victims.is_empty());
        assert_eq!(losses(&killed), losses(&parts));
    }
}

/// SEMANTICS 132.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_parts_is_one_of_whole_models_and_of_other_parts() {
    let dense = LayerBlock::default();
    let folder = tempfile::tempdir().unwrap();
    let one = told(&of(folder.path(), 1, 1, dense), |_, _, _, _| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let mut all = BTreeMap::new();
    for (steps, ranks, tensor) in [(3, 2, 2), (6, 1, 1), (9, 4, 4)] {
        let mut plan = of(folder.path(), ranks, tensor, dense);
        plan.steps = steps;
        let told = told(&plan, |_, _, _, _| {}).await;
        assert_eq!(told.steps, steps);
        all.extend(told.steps());
    }
    for (made, step) in all.values().zip(one.steps().values()) {
        let apart = (made.loss - step.loss).abs() / step.loss;
        assert!(apart < 1e-5, "{}: {apart}", step.step);
    }
    assert_eq!(all.len(), one.steps().len());
}

/// SEMANTICS 132.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_are_left_have_whole_copies() {
    let dense = LayerBlock::default();
    let folder = tempfile::tempdir().unwrap();
    let one = told(&of(folder.path(), 1, 1, dense), |_, _, _, _| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let plan = of(folder.path(), 4, 2, dense);
    let resized = told(&plan, |report, _, _, ranks| {
        if matches!(report, Report::Step(step) if step.step == 3) {
            ranks.send_replace(Some(3));
        }
    });
    let resized = resized.await;
    let lives = resized.reports.iter().filter_map(|report| match report {
        Report::Resumed { ranks, .. } => Some(*ranks),
        _ => None,
    });
    assert_eq!(lives.collect::<Vec<_>>(), [4, 2]);
    same(&resized, &one);
}
