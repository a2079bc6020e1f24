//! Changes of a recipe while its run goes on: all but what its checkpoint depends on, where that lies, and what its job has
//! reserved.

use odeon_actors::recipe::{PretrainRecipe, Recipe, RecipeError, Source};
use serde_json::Value;

use super::difference::difference;

/// Tables of a recipe with the fields that are looked at; none means all of them.
type Fields = &'static [(&'static str, &'static [&'static str])];

/// Settings of a recipe of reinforcement learning that a checkpoint depends on. The rest may change between two runs of a
/// folder.
pub(super) const FIXED: Fields = &[
    ("run", &["seed"]),
    (
        "model",
        &[
            "load",
            "hidden",
            "layers",
            "heads",
            "kv_heads",
            "ffn",
            "block",
            "lora_rank",
            "width",
        ],
    ),
    ("task", &[]),
    ("warmup", &["steps", "batch", "lr"]),
    ("rl", &["algorithm", "groups", "group_size", "optimizer"]),
    ("reward", &[]),
];

/// The same of pretraining.
pub(super) const PRETRAIN_FIXED: Fields = &[
    ("run", &["seed"]),
    ("model", &[]),
    ("vision", &[]),
    ("tokenizer", &[]),
    ("pretrain", &["optimizer"]),
    ("eval", &["one_of"]),
];

/// Where a run has its checkpoint.
const PLACE: Fields = &[("run", &["name", "out"])];
/// Demands of pretraining on nodes.
const PRETRAIN_DEMANDS: Fields = &[("processes", &["ranks"]), ("placement", &[])];
/// Demands of reinforcement learning.
const DEMANDS: Fields = &[("processes", &[]), ("placement", &[])];

/// Checks that a run may go on with another recipe. `reserves` says that its job has reserved what it asks for.
///
/// # Errors
/// A field has changed that cannot.
pub(crate) fn check(before: &Source, now: &Source, reserves: bool) -> Result<(), RecipeError> {
    if before.pretrains() != now.pretrains() {
        let what = "a run of pretraining does not go on as one of reinforcement learning, nor the other way \
                    round: submit it as another job";
        return Err(now.error("run", "name", what));
    }
    let (before, after, fixed, demands) = match now.pretrains() {
        true => {
            let after = now.pretrain_recipe()?;
            let Ok(before) = toml::from_str::<PretrainRecipe>(before.text()) else {
                return Ok(());
            };
            (
                value(&before),
                value(&after),
                PRETRAIN_FIXED,
                PRETRAIN_DEMANDS,
            )
        }
        false => {
            let after = toml::from_str::<Recipe>(now.text());
            let after = after.map_err(|error| now.error("", "", error.message()))?;
            let Ok(before) = toml::from_str::<Recipe>(before.text()) else {
                return Ok(());
            };
            (value(&before), value(&after), FIXED, DEMANDS)
        }
    };
    let reserved = if reserves { demands } else { &[] };
    let rules = [
        (PLACE, "its checkpoint lies there"),
        (fixed, "its checkpoint depends on it"),
        (
            reserved,
            "the job keeps what it has reserved, which is that of the present version",
        ),
    ];
    for (fields, why) in rules {
        for (table, fields) in fields {
            let found = difference(&before[*table], &after[*table], fields);
            if let Some((field, was, is)) = found {
                // The table of a choice is told as one of the task's, in which most are.
                let field = field.strip_prefix("task.").unwrap_or(&field);
                let what = format!(
                    "{table}.{field} is {was} in the version that runs and {is} here, and {why}: set it back, or \
                     submit it as another job"
                );
                return Err(now.error(table, field, &what));
            }
        }
    }
    Ok(())
}

fn value(recipe: &impl serde::Serialize) -> Value {
    serde_json::to_value(recipe).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const RECIPE: &str = "[run]\nname = \"a\"\n[model]\nhidden = 8\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 8\n\
                          context = 64\n[pretrain]\nsteps = 4\n[processes]\nranks = 2\n[plan]\nstep = { samples = 4 }\n\
                          [plan.mixture.sources.t]\nweight = { constant = 1.0 }\n\
                          [[source]]\nname = \"t\"\npath = \"t.jsonl\"\nformat = { jsonl = { text = \"text\" } }\n\
                          context = 64\n";

    /// SEMANTICS 217.
    #[test]
    fn what_a_run_cannot_change_as_it_goes_on_is_refused_by_its_field() {
        let read = |text: &str| Source::new(Path::new("r.toml"), text);
        let check = |from: &str, to: &str, reserves| {
            let now = RECIPE.replace(from, to);
            assert_ne!(now, RECIPE);
            check(&read(RECIPE), &read(&now), reserves).map_err(|error| error.to_string())
        };
        assert_eq!(check("steps = 4", "steps = 9", true), Ok(()));
        assert_eq!(check("samples = 4", "samples = 8", true), Ok(()));
        let refused = |from: &str, to: &str, what: &str| {
            let why = check(from, to, true).unwrap_err();
            assert!(why.contains(what), "{why}");
        };
        refused("hidden = 8", "hidden = 16", "r.toml:4: model.hidden is 8");
        refused(
            "ranks = 2",
            "ranks = 4",
            "processes.ranks is 2 in the version that runs and 4 here",
        );
        assert_eq!(check("ranks = 2", "ranks = 4", false), Ok(()));
        refused("\"a\"", "\"b\"", "run.name is \"a\"");
        refused("[pretrain]\nsteps = 4\n", "", "r.toml");
    }
}
