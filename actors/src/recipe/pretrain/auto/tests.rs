//! A plan that is chosen would be accepted by a run and fits, and no other such plan is predicted to be quicker.

use std::path::Path;

use odeon_algorithms::model::{LayerBlock, Moe};
use proptest::prelude::*;

use super::super::super::Source;
use super::*;

fn text(parallel: &str) -> String {
    format!(
        r#"[run]
name = "small"
[model]
hidden = 32
layers = 4
heads = 4
kv_heads = 2
ffn = 64
context = 64
[pretrain]
steps = 3
{parallel}
[processes]
ranks = 4
[plan]
step = {{ tokens = 1024 }}
[plan.microbatch]
tokens = 128
[plan.mixture.sources.a]
weight = {{ constant = 1.0 }}
[[source]]
name = "a"
path = "a.txt"
format = {{ text = {{ document = "line" }} }}
context = 64
block_bytes = 512
"#
    )
}

fn read(text: &str) -> Result<PretrainRecipe, String> {
    let source = Source::new(Path::new("r.toml"), text);
    source.pretrain_recipe().map_err(|error| error.to_string())
}

/// All values of all fields, whatever they divide.
fn every_way(ranks: u32) -> impl Iterator<Item = ParallelSection> {
    let numbers = move || 1..=ranks;
    let all = numbers().flat_map(move |pp| numbers().map(move |ep| (pp, ep)));
    let all = all.flat_map(move |(pp, ep)| numbers().map(move |cp| (pp, ep, cp)));
    let all = all.flat_map(move |(pp, ep, cp)| numbers().map(move |tp| (pp, ep, cp, tp)));
    all.flat_map(move |(pp, ep, cp, tp)| {
        let kinds = [ContextKind::Ulysses, ContextKind::Ring].into_iter();
        kinds.flat_map(move |cp_kind| {
            [1, 2, 4].into_iter().flat_map(move |pp_chunks| {
                (0..4).flat_map(move |zero| {
                    (0..=ranks).map(move |fsdp| ParallelSection {
                        zero,
                        fsdp,
                        tp,
                        cp,
                        cp_kind,
                        ep,
                        pp,
                        pp_chunks,
                        ..ParallelSection::default()
                    })
                })
            })
        })
    })
}

fn recipes() -> impl Strategy<Value = (PretrainRecipe, u64)> {
    let shape = (
        1_usize..5,
        prop::sample::select(vec![(4, 2), (4, 4), (3, 3), (8, 1)]),
        any::<bool>(),
    );
    let batch = (
        prop::sample::select(vec![64_u64, 256, 1024]),
        prop::sample::select(vec![64_u32, 256]),
    );
    let ranks = prop::sample::select(vec![2_u32, 3, 4]);
    (shape, batch, ranks, 0_u64..14).prop_map(
        |((layers, heads, moe), (step, micro), ranks, memory)| {
            let mut recipe = read(&text("parallel = \"auto\"")).unwrap();
            recipe.model.layers = layers;
            (recipe.model.heads, recipe.model.kv_heads) = heads;
            recipe.model.hidden = 8 * heads.0;
            if moe {
                recipe.model.block = LayerBlock::Moe(Moe {
                    experts: 4,
                    experts_per_token: 2,
                });
            }
            recipe.plan.step = Budget::Tokens(step);
            recipe.plan.microbatch.tokens = micro;
            recipe.processes.ranks = ranks;
            (recipe, 50_000 << memory)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// SEMANTICS 147.
    #[test]
    fn no_plan_that_a_run_accepts_and_that_fits_is_predicted_to_be_quicker((recipe, memory) in recipes()) {
        let config = recipe.model_config().unwrap();
        let machine = recipe.predicted_machine();
        let arranged = recipe.choose(&config, &machine, memory);
        // By the checks that a run makes, each told by itself.
        let judged = |parallel: &ParallelSection| {
            let one = recipe.with(parallel);
            let is_accepted = one.check().is_ok() && one.shared_out(&config).is_ok() && one.accepted(&config).is_ok();
            let all = is_accepted.then(|| one.footprints().unwrap());
            let fits = all.is_some_and(|all| all.iter().all(|it| it.bytes() as u64 <= memory));
            fits.then(|| one.priced(&config, &machine).unwrap().seconds())
        };
        let best = every_way(recipe.processes.ranks).filter_map(|it| judged(&it));
        let best = best.min_by(f64::total_cmp);
        match &arranged {
            Err(none) => {
                prop_assert_eq!(best, None, "{}", none);
                prop_assert!(none.to_string().contains("parallel = \"auto\""));
            }
            Ok(arranged) => {
                for candidate in &arranged.fitting {
                    prop_assert_eq!(judged(&candidate.parallel), Some(candidate.time.seconds()));
                }
                for candidate in &arranged.too_large {
                    prop_assert_eq!(judged(&candidate.parallel), None);
                }
                prop_assert_eq!(best, Some(arranged.fitting[0].time.seconds()));
                let seconds = arranged.fitting.iter().map(|it| it.time.seconds());
                prop_assert!(seconds.is_sorted());
            }
        }
    }
}

/// SEMANTICS 147.
#[test]
fn a_choice_that_cannot_be_is_refused_at_its_line() {
    for (parallel, said) in [
        (
            "parallel = \"dp8\"",
            "r.toml:12: unknown variant `dp8`, expected `auto`",
        ),
        (
            "parallel = 8",
            "r.toml:12: invalid type: integer `8`, expected one of \"auto\", or a table of one with its settings",
        ),
        (
            "parallel = { auto = { card = \"v100\" } }",
            "r.toml:12: unknown variant `v100`, expected one of `a100`, `h100`, `h800`",
        ),
        (
            "parallel = { auto = { memory = 3 } }",
            "r.toml:12: unknown field `memory`, expected `card` or `memory_gib`",
        ),
        (
            "parallel = { auto = { memory_gib = 0.0 } }",
            "r.toml:12: auto.memory_gib: expected a number above 0, found 0",
        ),
        (
            "parallel = { auto = { card = \"h100\" } }",
            "r.toml:12: auto.card is for ranks on cards, and run.device = \"cpu\": leave it out",
        ),
        (
            "parallel = \"auto\"\n[parallel]\ntp = 2",
            "r.toml:12: \"auto\" finds a plan, and [parallel] says one (tp = 2): leave one of them out",
        ),
    ] {
        let error = read(&text(parallel)).unwrap_err();
        assert_eq!(error, said);
    }
}

#[test]
fn a_recipe_with_a_choice_is_run_as_the_one_that_says_the_same() {
    let recipe = read(&text("parallel = \"auto\"")).unwrap();
    let (arranged, choice) = recipe.arranged().unwrap();
    let choice = choice.unwrap();
    assert_eq!(arranged.parallel, choice.fitting[0].parallel);
    assert_eq!(arranged.sharing(), recipe.plan("c".into()).unwrap().sharing);
    assert!(arranged.arranged().unwrap().1.is_none());
    let small = read(&text("parallel = { auto = { memory_gib = 0.0001 } }")).unwrap();
    let failure = small.arranged().unwrap_err().to_string();
    for said in ["0.000 GiB of each rank", "the least takes", "recompute"] {
        assert!(failure.contains(said), "{failure}");
    }
}

#[test]
fn more_memory_is_never_slower_and_larger_batches_take_longer() {
    let mut recipe = read(&text("parallel = \"auto\"")).unwrap();
    let config = recipe.model_config().unwrap();
    let machine = recipe.predicted_machine();
    let seconds = |recipe: &PretrainRecipe, memory| {
        let chosen = recipe.choose(&config, &machine, memory).ok()?;
        Some(chosen.fitting[0].time.seconds())
    };
    let by_memory: Vec<f64> = (16..30)
        .filter_map(|bits| seconds(&recipe, 1 << bits))
        .collect();
    assert!(by_memory.len() > 3);
    assert!(
        by_memory.windows(2).all(|pair| pair[0] >= pair[1]),
        "{by_memory:?}"
    );
    let one = seconds(&recipe, u64::MAX).unwrap();
    recipe.plan.step = Budget::Tokens(4096);
    assert!(seconds(&recipe, u64::MAX).unwrap() > 2.0 * one);
}
