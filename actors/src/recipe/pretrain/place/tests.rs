//! Patterns put layers on stages, and what cannot be is refused with its line and names.

use std::path::Path;

use proptest::prelude::*;

use super::super::super::{PretrainRecipe, Source};
use super::*;

const TEXT: &str = r#"[run]
name = "small"
[model]
hidden = 32
layers = 5
heads = 4
kv_heads = 2
ffn = 64
context = 64
[pretrain]
steps = 3
[processes]
ranks = 4
[plan]
step = { tokens = 1024 }
[plan.microbatch]
tokens = 128
[plan.mixture.sources.a]
weight = { constant = 1.0 }
[[source]]
name = "a"
path = "a.txt"
format = { text = { document = "line" } }
context = 64
block_bytes = 512
[parallel]
"#;

fn read(parallel: &str) -> Result<PretrainRecipe, String> {
    let source = Source::new(Path::new("r.toml"), &format!("{TEXT}{parallel}"));
    source.pretrain_recipe().map_err(|error| error.to_string())
}

fn stages(parallel: &str) -> Vec<u32> {
    read(parallel)
        .unwrap()
        .arranged()
        .unwrap()
        .0
        .parallel
        .stages
}

/// SEMANTICS 148.
#[test]
fn layers_are_on_the_stages_that_patterns_and_lengths_say() {
    let recipe = read("pp = 2\nstages = [1, 4]").unwrap();
    let plan = recipe.plan("c".into()).unwrap();
    assert_eq!(plan.sharing.layers.unwrap().lengths(), [1, 4]);
    let place = "pp = 2\n[[parallel.place]]\nmatch = \"layers.3.*\"\nstage = 1\n";
    assert_eq!(stages(place), [3, 2]);
    let plan = read(place).unwrap().plan("c".into()).unwrap();
    assert_eq!(plan.sharing.layers.unwrap().lengths(), [3, 2]);
    // All of a layer by several patterns, and parameters where they are anyway.
    let all = "pp = 2\ntp = 2\nplace = [{ match = \"layers.1.self_attn.*\", stage = 1 }, { match = \"layers.1.mlp.*\", stage \
               = 1, tensor = true }, { match = \"layers.1.*norm*\", stage = 1, tensor = false }, { match = \
               \"embed_tokens.weight\", stage = 0 }, { match = \"model.norm.*\", stage = 1 }]";
    assert_eq!(stages(all), [1, 4]);
    // Nothing is said of stages: they stay even.
    let tensor = "tp = 2\nplace = [{ match = \"*norm*\", tensor = false }]";
    assert_eq!(stages(tensor), Vec::<u32>::new());
}

/// SEMANTICS 148.
#[test]
fn parameters_that_cannot_be_there_are_refused_by_their_names_at_their_line() {
    let entry = |fields: &str| {
        format!(
            "pp = 2\ntp = 2\n[[parallel.place]]\nmatch = \"layers.3.*\"\nstage = 1\n[[parallel.place]]\n{fields}"
        )
    };
    for (fields, line, said) in [
        (
            "match = \"layers.*.mpl.*\"\nstage = 1",
            33,
            "`layers.*.mpl.*` means no parameter of the model; the nearest are model.layers.0.mlp.",
        ),
        ("match = \"layers.1.*\"", 33, "nothing is said of them"),
        (
            "match = \"layers.4.*\"\nstage = 0",
            31,
            "model.layers.4.input_layernorm.weight is to be on stage 0, and model.layers.3.input_layernorm.weight before it \
             on stage 1",
        ),
        (
            "match = \"layers.2.mlp.*\"\nstage = 0",
            31,
            "model.layers.2.input_layernorm.weight is on the stage of its layer, and model.layers.2.mlp.",
        ),
        (
            "match = \"layers.3.mlp.*\"\nstage = 0",
            34,
            "is to be on stage 1, and on stage 0 as well",
        ),
        (
            "match = \"embed*\"\nstage = 1",
            34,
            "model.embed_tokens.weight is on stage 0, where tokens are embedded, and cannot be on stage 1",
        ),
        (
            "match = \"layers.4.*\"\nstage = 2",
            34,
            "there is no stage 2: parallel.pp = 2 and pp_chunks = 1 make 2",
        ),
        (
            "match = \"layers.*.mlp.*\"\ntensor = false",
            34,
            "is cut over 2 tensor ranks, which compute heads, columns and entries of the vocabulary apart, and cannot be whole",
        ),
        (
            "match = \"norm.weight\"\ntensor = true",
            34,
            "model.norm.weight is whole on each of 2 tensor ranks, which read all of it, and cannot be cut over them",
        ),
        ("match = \"a\"\nstages = 1", 34, "unknown field `stages`"),
    ] {
        let error = read(&entry(fields)).unwrap_err();
        assert!(error.contains(said), "{error}");
        assert!(
            error.starts_with(&format!("r.toml:{line}: ")),
            "{line}, {error}"
        );
    }
    for (parallel, said) in [
        (
            "stages = [2, 3]",
            "r.toml:27: stages are those of a pipeline, and parallel.pp = 1 makes none",
        ),
        (
            "pp = 2\nstages = [2, 2, 1]",
            "r.toml:28: layers are told of 3 stages, and parallel.pp = 2 with pp_chunks = 1 makes 2",
        ),
        (
            "pp = 2\nstages = [2, 2]",
            "r.toml:28: stages of 4 layers together cannot be made of 5 layers",
        ),
        (
            "pp = 2\nstages = [0, 5]",
            "r.toml:28: stages of 5 layers together cannot be made of 5 layers: as many are needed, in 2 stages of one at least",
        ),
        (
            "pp = 2\nstages = [1, 300]",
            "r.toml:28: 64 stages with 255 layers each are told at most",
        ),
        (
            "pp = 2\nstages = [1, 4]\nplace = [{ match = \"layers.2.*\", stage = 1 }]",
            "r.toml:29: parallel.stages says how many layers each stage has",
        ),
        (
            "pp = 2\nplace = [{ match = \"layers.*\", stage = 1 }]",
            "r.toml:28: stage 0 of 2 would have no layer",
        ),
    ] {
        let error = read(parallel).unwrap_err();
        assert!(error.starts_with(said), "{error}");
    }
}

proptest! {
    /// What is cut off a name in front of a word, and what is left out of it, is found again.
    #[test]
    fn a_name_with_stars_for_some_of_it_is_found(
        words in prop::collection::vec("[a-z0-9_]{1,6}", 1..5),
        from in any::<prop::sample::Index>(),
        star in any::<prop::sample::Index>(),
        length in 0_usize..5,
    ) {
        let name = words.join(".");
        let tail = words[from.index(words.len())..].join(".");
        prop_assert!(matches(&tail, &name));
        prop_assert_eq!(distance(&name, &name), 0);
        let at = star.index(tail.len());
        let end = (at + length).min(tail.len());
        let pattern = format!("{}*{}", &tail[..at], &tail[end..]);
        prop_assert!(matches(&pattern, &name));
        prop_assert_eq!(distance(&pattern, &tail), 0);
        let wrong = format!("{tail}!");
        prop_assert!(!matches(&wrong, &name));
        prop_assert_eq!(distance(&wrong, &tail), 1);
    }
}
