//! Gradients that are not taken, in runs of two ranks.

use odeon_actors::pretrain::rank::Drill;
use odeon_algorithms::model::GradientFault;

use super::*;

fn of(folder: &Path, drills: Vec<Drill>) -> PretrainPlan {
    let mut recipe = recipe(folder);
    recipe.pretrain.steps = 14;
    // Sums in one order, so that both tries of a step are the same to the bit.
    recipe.run.deterministic = true;
    recipe.drills = drills;
    recipe.plan(folder.join("checkpoint")).unwrap()
}

fn findings(told: &Told) -> Vec<(u64, String, Vec<u32>, String)> {
    let findings = told.reports.iter().filter_map(|report| match report {
        Report::Finding {
            step,
            rule,
            ranks,
            why,
            ..
        } => Some((*step, rule.clone(), ranks.clone(), why.clone())),
        _ => None,
    });
    findings.collect()
}

/// SEMANTICS 169.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_spoils_a_gradient_once_is_named_and_the_run_is_the_same_to_the_bit() {
    named_and_the_same(|_| {}).await;
}

/// SEMANTICS 169. Ranks that keep shards add up while they compute, and look at their own gradients before that.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_keeps_shards_is_named_too() {
    named_and_the_same(|plan| plan.sharing.zero = ZeroStage::Parameters).await;
}

async fn named_and_the_same(change: impl Fn(&mut PretrainPlan)) {
    let of = |folder: &Path, drills| {
        let mut plan = of(folder, drills);
        change(&mut plan);
        plan
    };
    let folder = tempfile::tempdir().unwrap();
    let whole = told(&of(folder.path(), vec![]), |_, _, _, _| {}).await;
    assert_eq!(findings(&whole), []);
    let folder = tempfile::tempdir().unwrap();
    let drill = |step, rank, fault| Drill { step, rank, fault };
    let drills = vec![
        drill(4, 1, GradientFault::Nan),
        drill(12, 0, GradientFault::Bit),
    ];
    let spoilt = told(&of(folder.path(), drills), |_, _, _, _| {}).await;
    assert_eq!(spoilt.made(), whole.made());
    let found = findings(&spoilt);
    let named = found
        .iter()
        .map(|(step, rule, ranks, _)| (*step, rule.as_str(), ranks.clone()));
    let expected = [
        (4, "gradient_corrupt", vec![1]),
        (12, "gradient_corrupt", vec![0]),
    ];
    assert_eq!(named.collect::<Vec<_>>(), expected, "{found:?}");
    assert!(found[0].3.contains(", first at model."), "{found:?}");
    assert!(
        found
            .iter()
            .all(|it| it.3.ends_with("the second was taken")),
        "{found:?}"
    );
}

/// SEMANTICS 169.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_steps_change_nothing_ends_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = of(folder.path(), vec![]);
    // Its first step leaves weights with which nothing can be computed.
    plan.train.lr = 1e30;
    plan.gradients.refused_max = 3;
    let system = node().start().await.unwrap();
    let (report, mut news) = mpsc::unbounded_channel();
    let desk = Desk {
        reports: report,
        members: watch::channel(vec![]).0,
        halt: watch::channel(false).1,
        ranks: watch::channel(None).1,
    };
    let ended = Clock::timeout(Duration::from_secs(120), run(&system, &plan, desk)).await;
    let failure = ended.expect("the run ends").unwrap_err();
    let why = failure.to_string();
    assert!(
        why.contains("3 steps in a row have changed nothing"),
        "{why}"
    );
    let mut reports = vec![];
    while let Ok(report) = news.try_recv() {
        reports.push(report);
    }
    let told = Told { reports, steps: 4 };
    assert_eq!(
        told.steps().len(),
        4,
        "one that changed the weights, and three"
    );
    let found = findings(&told);
    let bad = found.iter().filter(|it| it.1 == "gradient_not_finite");
    let bad: Vec<_> = bad.map(|it| (it.0, it.2.clone())).collect();
    assert_eq!(bad, [(2, vec![])], "of all ranks, once: {found:?}");
    system.shutdown().await;
}
