//! Ranks that share the optimiser make the steps of ranks that have one each.

use super::*;

/// A run of so many ranks, which share the optimiser or not. Gradients are not clipped, so that nothing
/// hangs on how their squares are added up.
fn of(folder: &Path, ranks: usize, optimizer: &str, shares: bool) -> PretrainPlan {
    let mut plan = plan(folder);
    plan.sharing.copies = ranks;
    plan.sharing.zero = match shares {
        true => ZeroStage::Optimizer,
        false => ZeroStage::Off,
    };
    plan.train.optimizer = Optimizer::named(optimizer).unwrap();
    plan.train.lr = 1e-3;
    plan.train.clip = Some(1e9);
    plan
}

/// SEMANTICS 131.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_share_an_optimiser_make_the_same_steps_whoever_is_lost() {
    for optimizer in ["adamw", "muon"] {
        let folder = tempfile::tempdir().unwrap();
        let apart = told(&of(folder.path(), 3, optimizer, false), |_, _, _, _| {}).await;
        assert_eq!(apart.steps, STEPS);

        let other = tempfile::tempdir().unwrap();
        let mut plan = of(other.path(), 3, optimizer, true);
        plan.memory_every = 1;
        let mut victims = vec![(7, vec!["rank-0", "rank-1"]), (4, vec!["rank-2"])];
        let shared = told(&plan, |report, system, members, _| {
            if let Report::Step(step) = report
                && let Some((_, roles)) = victims.pop_if(|(at, _)| step.step >= *at)
            {
                roles.iter().for_each(|role| kill(system, members, role));
            }
        });
        let shared = shared.await;
        assert!(victims.is_empty());
        let from: Vec<Origin> = shared.lives().into_iter().map(|(.., from)| from).collect();
        // What neighbours kept was a part of each rank's part; of two it is in the storage alone.
        assert_eq!(
            from,
            [Origin::Start, Origin::Memory, Origin::Storage],
            "{optimizer}"
        );
        assert_eq!(losses(&shared), losses(&apart), "{optimizer}");
    }
}

/// SEMANTICS 131.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_ranks_that_share_is_one_of_ranks_that_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let apart = told(&of(folder.path(), 2, "adamw", false), |_, _, _, _| {}).await;
    for first in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let mut begins = of(folder.path(), 2, "adamw", first);
        begins.steps = 6;
        let begun = told(&begins, |_, _, _, _| {}).await;
        let goes_on = told(&of(folder.path(), 2, "adamw", !first), |_, _, _, _| {}).await;
        let mut steps = losses(&begun);
        steps.extend(losses(&goes_on));
        assert_eq!(steps, losses(&apart), "sharing at first: {first}");
    }
    // With another number of ranks, whose parts are others: sums are in another order.
    let folder = tempfile::tempdir().unwrap();
    let mut resized = of(folder.path(), 2, "adamw", true);
    resized.memory_every = 1;
    let resized = told(&resized, |report, _, _, ranks| {
        if matches!(report, Report::Step(step) if step.step == 3) {
            ranks.send_replace(Some(3));
        }
    });
    let resized = resized.await;
    let lives: Vec<u32> = resized
        .lives()
        .into_iter()
        .map(|(ranks, ..)| ranks)
        .collect();
    assert_eq!(lives, [2, 3]);
    let (resized, apart) = (resized.steps(), apart.steps());
    assert_eq!(resized.len(), apart.len());
    for (made, step) in resized.values().zip(apart.values()) {
        let apart = (made.loss - step.loss).abs() / step.loss;
        assert!(
            apart < 1e-4,
            "{}: {} and {}",
            step.step,
            made.loss,
            step.loss
        );
    }
}
