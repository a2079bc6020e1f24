//! Ranks that share copies of a model make the steps of one rank that has it all: parts of its matrices, some of its
//! experts, some of the rows, or shards of its parameters.

use std::sync::Arc;

use tokio::sync::Mutex;

use super::*;

/// Copies of tensor ranks.
const fn tensor(copies: usize, tensor: usize) -> Sharing {
    Sharing {
        copies,
        tensor,
        ..Sharing::ALONE
    }
}

/// Copies of expert and context ranks.
const fn sparse(copies: usize, experts: usize, context: usize) -> Sharing {
    Sharing {
        copies,
        experts,
        context,
        ..Sharing::ALONE
    }
}

/// Context ranks whose keys and values go around.
const fn ring(context: usize) -> Sharing {
    Sharing {
        context_kind: ContextKind::Ring,
        ..sparse(1, 1, context)
    }
}

/// Copies of pipeline ranks, with so many stages each.
const fn pipeline(copies: usize, stages: usize, chunks: usize) -> Sharing {
    Sharing {
        copies,
        stages,
        chunks,
        ..Sharing::ALONE
    }
}

/// A run of ranks that share copies so.
fn of(folder: &Path, sharing: Sharing, block: LayerBlock) -> PretrainPlan {
    let mut plan = plan(folder);
    let ModelSource::Fresh(model) = &mut plan.source else {
        unreachable!("the recipe loads none")
    };
    (model.heads, model.kv_heads, model.block) = (4, 4, block);
    // For stages of two lengths.
    model.layers = 5;
    plan.sharing = sharing;
    plan.train.lr = 1e-3;
    plan.memory_every = 1;
    // Sums in one order, on threads; and numbers that are dropped.
    if block != LayerBlock::default() {
        (plan.deterministic, plan.threads) = (true, 2);
        plan.dropout = 0.1;
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

/// SEMANTICS 132, 140.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_share_copies_make_the_steps_of_one_whoever_is_lost() {
    for block in [LayerBlock::default(), experts()] {
        // Of what both copies of the first part have there is nothing left then, but on their neighbours.
        let victims = vec![(7, vec!["rank-0", "rank-2"]), (4, vec!["rank-3"])];
        are_as_one(tensor(2, 2), block, victims).await;
    }
}

/// SEMANTICS 135, 140.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_with_some_of_the_experts_and_rows_make_the_steps_of_one_whoever_is_lost() {
    let victims = || vec![(6, vec!["rank-1"])];
    are_as_one(sparse(1, 1, 2), LayerBlock::default(), victims()).await;
    are_as_one(ring(2), LayerBlock::default(), victims()).await;
    are_as_one(sparse(2, 2, 1), experts(), victims()).await;
    are_as_one(sparse(1, 2, 2), experts(), victims()).await;
}

/// The same with shards of that stage.
const fn sharded(sharing: Sharing, zero: ZeroStage, shards: Option<usize>) -> Sharing {
    Sharing {
        zero,
        shards,
        ..sharing
    }
}

/// SEMANTICS 137, 140, 149, 150, 153.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_with_shards_make_the_steps_of_one_whoever_is_lost() {
    let dense = LayerBlock::default();
    let victims = || vec![(7, vec!["rank-0", "rank-1"]), (4, vec!["rank-3"])];
    let all = sharded(tensor(4, 1), ZeroStage::Parameters, None);
    are_as_one(all, dense, victims()).await;
    let hybrid = sharded(tensor(4, 1), ZeroStage::Gradients, Some(2));
    are_as_one(hybrid, dense, victims()).await;
    let rounded = Sharing {
        params: Precision::Bf16,
        ..hybrid
    };
    are_as_one(rounded, dense, victims()).await;
    let parts = sharded(tensor(2, 2), ZeroStage::Parameters, None);
    are_as_one(parts, dense, victims()).await;
    let of_experts = sharded(sparse(2, 2, 1), ZeroStage::Parameters, None);
    are_as_one(of_experts, experts(), victims()).await;
}

/// SEMANTICS 194.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_with_rounded_copies_make_the_steps_of_one_whoever_is_lost() {
    let dense = LayerBlock::default();
    let rounded = |sharing| Sharing {
        params: Precision::Bf16,
        ..sharing
    };
    let victims = || vec![(6, vec!["rank-1"])];
    let shared = sharded(tensor(2, 1), ZeroStage::Optimizer, None);
    are_as_one(rounded(shared), dense, victims()).await;
    are_as_one(rounded(tensor(1, 2)), dense, victims()).await;

    // From a checkpoint with other ranks, with the setting and without: what is saved was never rounded.
    let all = [
        rounded(tensor(2, 1)),
        rounded(pipeline(1, 2, 1)),
        rounded(sharded(tensor(2, 1), ZeroStage::Parameters, None)),
        rounded(sparse(1, 1, 2)),
    ];
    are_one_run(Precision::Bf16, dense, &all).await;
    let (folder, steps) = (tempfile::tempdir().unwrap(), [3, 5]);
    let mut last = vec![];
    for (sharing, until) in [rounded(Sharing::ALONE), Sharing::ALONE]
        .into_iter()
        .zip(steps)
    {
        let plan = until_step(of(folder.path(), sharing, dense), until);
        last.push(told(&plan, |_, _, _, _| {}).await.steps);
    }
    assert_eq!(last, [3, 5]);
}

/// SEMANTICS 138, 140.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_with_stages_make_the_steps_of_one_whoever_is_lost() {
    let dense = LayerBlock::default();
    let victims = || vec![(6, vec!["rank-1"])];
    are_as_one(pipeline(2, 2, 1), dense, victims()).await;
    are_as_one(pipeline(1, 2, 2), dense, victims()).await;
    let gpipe = Sharing {
        schedule: PipelineKind::Gpipe,
        tensor: 2,
        ..pipeline(1, 2, 1)
    };
    are_as_one(gpipe, dense, victims()).await;
    let of_experts = Sharing {
        experts: 2,
        ..pipeline(1, 2, 1)
    };
    let of_experts = sharded(of_experts, ZeroStage::Parameters, None);
    are_as_one(of_experts, experts(), victims()).await;
}

/// SEMANTICS 138, 140, 142.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_whose_gradients_of_weights_come_later_make_the_steps_of_one_whoever_is_lost() {
    let victims = || vec![(6, vec!["rank-1"])];
    let four = Sharing {
        schedule: PipelineKind::ZeroBubbleH1,
        ..pipeline(1, 4, 1)
    };
    are_as_one(four, LayerBlock::default(), victims()).await;
    let of_experts = Sharing {
        experts: 2,
        schedule: PipelineKind::ZeroBubble,
        ..pipeline(1, 2, 1)
    };
    let of_experts = sharded(of_experts, ZeroStage::Parameters, None);
    are_as_one(of_experts, experts(), victims()).await;

    let ends = |schedule| async move {
        let folder = tempfile::tempdir().unwrap();
        let sharing = Sharing {
            schedule,
            tensor: 2,
            ..pipeline(1, 2, 1)
        };
        losses(
            &told(
                &of(folder.path(), sharing, LayerBlock::default()),
                |_, _, _, _| {},
            )
            .await,
        )
    };
    let one = ends(PipelineKind::OneForwardOneBackward).await;
    assert_eq!(ends(PipelineKind::ZeroBubbleH1).await, one);
}

/// Runs of one rank, which are the same for all that are compared with them.
static BY_ONE: Mutex<Vec<(Precision, LayerBlock, Arc<Told>)>> = Mutex::const_new(vec![]);

/// A run of one rank that reads parameters in this format.
async fn by_one(params: Precision, block: LayerBlock) -> Arc<Told> {
    let mut made = BY_ONE.lock().await;
    if let Some((.., one)) = made.iter().find(|it| (it.0, it.1) == (params, block)) {
        return Arc::clone(one);
    }
    let folder = tempfile::tempdir().unwrap();
    let alone = Sharing {
        params,
        ..Sharing::ALONE
    };
    let one = Arc::new(told(&of(folder.path(), alone, block), |_, _, _, _| {}).await);
    made.push((params, block, Arc::clone(&one)));
    one
}

/// Trains as one rank does, and so, and so again while ranks are killed at some steps.
async fn are_as_one(sharing: Sharing, block: LayerBlock, victims: Vec<(u64, Vec<&str>)>) {
    let one = by_one(sharing.params, block).await;
    let folder = tempfile::tempdir().unwrap();
    let parts = told(&of(folder.path(), sharing, block), |_, _, _, _| {}).await;
    same(&parts, &one);

    let folder = tempfile::tempdir().unwrap();
    let mut victims = victims;
    let plan = of(folder.path(), sharing, block);
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
    // Shards of several ranks go from where they lie to where they are read; experts that a rank has alone are copied, and
    // what is gathered in bf16 is written once more.
    let alone = sharing.zero.has_shards() && sharing.experts > 1 && sharing.copies == 1;
    let rounded = sharing.zero.has_shards() && sharing.params != Precision::F32;
    let copies = alone || rounded;
    for step in killed.steps().values().chain(parts.steps().values()) {
        assert_eq!((step.gather_copies > 0, step.sum_copies), (copies, 0));
    }
}

/// SEMANTICS 132, 135, 137, 138, 140, 148.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_checkpoint_of_parts_is_one_of_whole_models_and_of_other_parts() {
    let dense = [
        tensor(1, 2),
        Sharing::ALONE,
        tensor(1, 4),
        sharded(tensor(3, 1), ZeroStage::Parameters, None),
        sparse(1, 1, 2),
        sharded(tensor(2, 2), ZeroStage::Gradients, None),
        sharded(ring(3), ZeroStage::Parameters, None),
        pipeline(1, 2, 2),
        Sharing {
            layers: StageLayers::new(&[1, 1, 1, 2]),
            ..pipeline(1, 2, 2)
        },
        tensor(2, 1),
        sharded(tensor(4, 1), ZeroStage::Parameters, Some(2)),
    ];
    are_one_run(Precision::F32, LayerBlock::default(), &dense).await;
    let both = Sharing {
        experts: 2,
        ..tensor(1, 2)
    };
    let of_experts = [
        sparse(1, 4, 1),
        sharded(sparse(2, 2, 1), ZeroStage::Parameters, None),
        tensor(1, 2),
        sharded(sparse(1, 2, 2), ZeroStage::Gradients, None),
        both,
        sparse(1, 2, 2),
        Sharing::ALONE,
    ];
    are_one_run(Precision::F32, experts(), &of_experts).await;
}

/// A plan of so many steps.
fn until_step(plan: PretrainPlan, steps: u64) -> PretrainPlan {
    PretrainPlan {
        steps,
        watch: Watch::new(steps),
        ..plan
    }
}

/// Trains some steps with ranks that share the model so, then with others from their checkpoint, beside one rank that
/// reads parameters in this format.
async fn are_one_run(params: Precision, block: LayerBlock, all: &[Sharing]) {
    let of =
        |folder: &Path, sharing, steps: usize| until_step(of(folder, sharing, block), steps as u64);
    let (folder, every) = (tempfile::tempdir().unwrap(), 2);
    let alone = Sharing {
        params,
        ..Sharing::ALONE
    };
    let one = of(folder.path(), alone, every * all.len());
    let one = told(&one, |_, _, _, _| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let mut steps = BTreeMap::new();
    for (part, sharing) in all.iter().enumerate() {
        let plan = of(folder.path(), *sharing, every * (part + 1));
        let told = told(&plan, |_, _, _, _| {}).await;
        assert_eq!(told.steps, plan.steps, "{sharing:?}");
        steps.extend(told.steps());
    }
    for (made, step) in steps.values().zip(one.steps().values()) {
        let apart = (made.loss - step.loss).abs() / step.loss;
        assert!(apart < 1e-5, "{}: {apart}", step.step);
    }
    assert_eq!(steps.len(), one.steps().len());
}

/// SEMANTICS 132.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_that_are_left_have_whole_copies() {
    let dense = LayerBlock::default();
    let folder = tempfile::tempdir().unwrap();
    let one = told(&of(folder.path(), Sharing::ALONE, dense), |_, _, _, _| {}).await;
    let folder = tempfile::tempdir().unwrap();
    let plan = of(folder.path(), tensor(2, 2), dense);
    are_resized(plan, 3, [4, 2], &one).await;
    // Shards of as many copies as there are; and whole sets of shards.
    let folder = tempfile::tempdir().unwrap();
    let all = sharded(tensor(4, 1), ZeroStage::Parameters, None);
    are_resized(of(folder.path(), all, dense), 3, [4, 3], &one).await;
    let folder = tempfile::tempdir().unwrap();
    let hybrid = sharded(tensor(4, 1), ZeroStage::Parameters, Some(2));
    are_resized(of(folder.path(), hybrid, dense), 3, [4, 2], &one).await;
}

/// Trains with other ranks from the third step on, and makes the steps of one.
async fn are_resized(plan: PretrainPlan, wanted: u32, expected: [u32; 2], one: &Told) {
    let resized = told(&plan, |report, _, _, ranks| {
        if matches!(report, Report::Step(step) if step.step == 3) {
            ranks.send_replace(Some(wanted));
        }
    });
    let resized = resized.await;
    let lives: Vec<u32> = resized
        .lives()
        .into_iter()
        .map(|(ranks, ..)| ranks)
        .collect();
    assert_eq!(lives, expected);
    same(&resized, one);
}
