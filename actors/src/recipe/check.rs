//! Checks that no single field can make: fields against each other, against the task and against
//! the model.

use odeon_algorithms::environment::Tool;
use odeon_algorithms::model::{ModelConfig, PartPlace};
use odeon_algorithms::objective::KlEstimator;
use odeon_algorithms::setting::Chosen;
use odeon_algorithms::task::{Goal, PromptStyle, Split, SumsForm, Task, TaskError, TaskSpec};
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_algorithms::train::TrainConfig;
use odeon_algorithms::weights::StoredType;

use super::pretrain::Fault;
use super::pretrain::parallel::field_of_fault;
use super::pretrain::place::place_table;
use super::{Algorithm, CostRule, ParallelSection, Recipe, RewardBy, RlSection, Sent};
use crate::engine::RewardKind;
use crate::hybrid::{Arrangement, Choice};
use crate::rl::prompt::encode_prompt;
use crate::rl::rollout::Swap;

/// An error, and the fields at fault: the first of them that the file sets stands for the line.
pub(super) struct Blame {
    pub(super) table: &'static str,
    pub(super) fields: Vec<&'static str>,
    pub(super) what: String,
}

fn blame<const N: usize>(
    table: &'static str,
    fields: [&'static str; N],
    what: String,
) -> Result<(), Blame> {
    Err(Blame {
        table,
        fields: fields.to_vec(),
        what,
    })
}

/// Everything that can be told without the model that is loaded.
pub(super) fn check(recipe: &Recipe) -> Result<(), Blame> {
    let (model, rl) = (&recipe.model, &recipe.rl);
    if model.load.is_none() {
        check_sizes(recipe)?;
    }
    check_settings(rl)?;
    check_deterministic(recipe)?;
    if rl.response_max >= model.context {
        let what = format!(
            "response_max = {} leaves no room for a prompt in context = {}",
            rl.response_max, model.context
        );
        return blame("rl", ["response_max"], what);
    }
    if let Some(overlong) = rl.overlong.filter(|last| *last > rl.response_max) {
        let what = format!(
            "overlong = {overlong} is more than response_max = {}: it is the last part of that",
            rl.response_max
        );
        return blame("rl", ["overlong"], what);
    }
    if !rl.groups.is_multiple_of(rl.minibatches) {
        let what = format!(
            "minibatches = {} must divide groups = {}: each has an equal part of the prompts",
            rl.minibatches, rl.groups
        );
        return blame("rl", ["minibatches", "groups"], what);
    }
    if rl.value_steps.is_some_and(|steps| steps > 0) && !rl.baseline().has_critic() {
        let what = "value_steps are steps of a critic, which this algorithm does not have: expected \
                    0, or algorithm = \"ppo\", \"vapo\" or \"safe_rlhf\"";
        return blame("rl", ["value_steps"], what.to_owned());
    }
    if rl.publish_every > rl.staleness_max + 1 {
        let what = format!(
            "publish_every = {} leaves rollouts with weights that are too old for the steps up to the \
             next: expected at most staleness_max + 1 = {}",
            rl.publish_every,
            rl.staleness_max + 1
        );
        return blame("rl", ["publish_every"], what);
    }
    if rl.repack_seconds > 0.0 && rl.swap != Swap::Drain {
        let what =
            "repack_seconds packs together what drains: expected swap = \"drain\" with it, or 0";
        return blame("rl", ["repack_seconds"], what.to_owned());
    }
    if rl.kl_estimator.is_some() && rl.kl == 0.0 {
        let what = "kl_estimator says how the divergence is estimated that kl weighs: expected kl \
                    above 0 with it";
        return blame("rl", ["kl_estimator"], what.to_owned());
    }
    if rl.kl_estimator == Some(KlEstimator::K1) && rl.algorithm != Algorithm::ReinforcePlusPlus {
        let what = "k1 has no gradient to be expected where it is part of the loss: expected \"k2\" \
                    or \"k3\", or algorithm = \"reinforce++\", which takes it out of the reward";
        return blame("rl", ["kl_estimator"], what.to_owned());
    }
    check_cost(recipe)?;
    check_reward(recipe)?;
    check_placement(recipe)?;
    check_parallel(recipe)?;
    check_rollout(recipe)?;
    let tool = recipe.environment.as_ref().map(|it| it.tool);
    let runs_programs = matches!(recipe.task, TaskSpec::Code(_)) || tool == Some(Tool::Python);
    if recipe.sandbox.is_some() && !runs_programs {
        let what = "[sandbox] is for [task.code], whose replies are run, and for tool = \"python\": \
                    leave it out";
        return blame("sandbox", [""], what.to_owned());
    }
    check_environment(recipe)?;
    let trajectories = rl.groups as u64 * u64::from(rl.group_size);
    if trajectories > TRAJECTORIES_MAX {
        let what = format!(
            "groups = {} times group_size = {} makes {trajectories} trajectories in a step, \
             expected at most {TRAJECTORIES_MAX}",
            rl.groups, rl.group_size
        );
        return blame("rl", ["groups"], what);
    }
    check_task(&recipe.task)?;
    if model.load.is_none() {
        fits(recipe, &recipe.tokenizer(), model.hidden, model.context)?;
    }
    Ok(())
}

/// Everything that would have a rollout compute with other weights than the trainer does.
fn check_deterministic(recipe: &Recipe) -> Result<(), Blame> {
    if !recipe.run.deterministic {
        return Ok(());
    }
    if let Err(what) = recipe.run.check_deterministic() {
        return blame("run", ["deterministic"], what);
    }
    let gap =
        "deterministic = true has rollouts say of each token what the trainer says, to the bit";
    if recipe.processes.weights != StoredType::F32 {
        let what = format!("{gap}: expected weights = \"f32\" with it, which rounds none");
        return blame("processes", ["weights"], what);
    }
    if recipe.model.lora_rank > 0 {
        let what = format!(
            "{gap}, and rollouts have adapters merged into the weights, which rounds: expected lora_rank = \
             0 with it"
        );
        return blame("model", ["lora_rank"], what);
    }
    if let Some(dialect) = recipe.rollout.dialect() {
        let what = format!("{gap}, and {dialect} adds up in an order of its own: leave engine out");
        return blame("rollout", ["engine"], what);
    }
    Ok(())
}

/// Settings of what was chosen.
fn check_settings(rl: &RlSection) -> Result<(), Blame> {
    if let Err(error) = rl.optimizer.check() {
        return blame("rl", ["optimizer"], error.to_string());
    }
    let Some(objective) = &rl.objective else {
        return Ok(());
    };
    if let Err(error) = objective.check() {
        return blame("rl", ["objective"], error.to_string());
    }
    let bounds = [("clip_low", rl.clip_low), ("clip_high", rl.clip_high)];
    match bounds.into_iter().find(|(_, bound)| bound.is_some()) {
        Some((field, _)) => {
            let what = format!(
                "{field} is of the algorithm's own objective: leave it out, or set it inside, as in \
                 objective = {{ cispo = {{ {field} = .. }} }}"
            );
            blame("rl", [field], what)
        }
        None => Ok(()),
    }
}

/// Tools, and what goes with them.
fn check_environment(recipe: &Recipe) -> Result<(), Blame> {
    let form = match &recipe.task {
        TaskSpec::Sums(sums) => sums.form.tool(),
        _ => None,
    };
    let word = |tool: Tool| match tool {
        Tool::Calculator => "calculator",
        Tool::Python => "python",
    };
    let Some(environment) = &recipe.environment else {
        return match form {
            Some(tool) => {
                let what = format!(
                    "replies of this form call a tool: expected [environment] tool = \"{}\" with it",
                    word(tool)
                );
                blame("task.sums", ["form"], what)
            }
            None => Ok(()),
        };
    };
    if let Some(tool) = form.filter(|tool| *tool != environment.tool) {
        let what = format!(
            "replies of this task call another tool: expected tool = \"{}\"",
            word(tool)
        );
        return blame("environment", ["tool"], what);
    }
    if recipe.reward.is_learnt() {
        let what = "a reward model learns from replies of one turn: expected [reward] by = \"checker\" \
                    with [environment], or leave that out";
        return blame("environment", ["tool"], what.to_owned());
    }
    if matches!(recipe.task, TaskSpec::Code(_)) {
        let what = "replies of [task.code] are programs, which may hold what looks like a call: leave \
                    [environment] out";
        return blame("environment", ["tool"], what.to_owned());
    }
    if recipe.placement.models.is_some() {
        let what = "models that are placed make replies of one turn: leave [placement] models out, or \
                    [environment]";
        return blame("environment", ["tool"], what.to_owned());
    }
    if let Some(dialect) = recipe.rollout.dialect() {
        let what = format!(
            "servers of {dialect} make replies of one turn: leave [rollout] engine out, or \
             [environment]"
        );
        return blame("environment", ["tool"], what);
    }
    Ok(())
}

fn check_cost(recipe: &Recipe) -> Result<(), Blame> {
    let safe = recipe.rl.algorithm == Algorithm::SafeRlhf;
    match &recipe.cost {
        None if safe => {
            let what = "algorithm = \"safe_rlhf\" needs a table [cost], with rule and limit";
            blame("rl", ["algorithm"], what.to_owned())
        }
        Some(_) if !safe => {
            let what =
                "[cost] is for algorithm = \"safe_rlhf\" alone: leave it out, or choose that";
            blame("cost", ["rule"], what.to_owned())
        }
        Some(cost) if cost.rule == CostRule::Text && cost.text.is_empty() => {
            let what = "rule = \"text\" needs the text that costs: expected text = \"...\"";
            blame("cost", ["rule"], what.to_owned())
        }
        _ => Ok(()),
    }
}

fn check_reward(recipe: &Recipe) -> Result<(), Blame> {
    let reward = &recipe.reward;
    let learns = [
        ("steps", reward.steps.is_some()),
        ("batch", reward.batch.is_some()),
        ("lr", reward.lr.is_some()),
    ];
    let models = [
        ("kind", reward.kind.is_some()),
        ("load", reward.load.is_some()),
        ("weight", reward.weight.is_some()),
    ];
    let set = |fields: &[(&'static str, bool)]| fields.iter().find(|(_, is)| *is).map(|it| it.0);
    if !reward.is_learnt() {
        if let Some(field) = set(&models).or_else(|| set(&learns)) {
            let what = format!(
                "{field} is of a reward model: leave it out, or choose by = \"model\" or \"both\""
            );
            return blame("reward", [field], what);
        }
        return Ok(());
    }
    if let Some(field) = set(&learns).filter(|_| reward.load.is_some()) {
        let what = format!("load names a model that has learnt already: leave {field} out with it");
        return blame("reward", [field], what);
    }
    if reward.weight.is_some() && reward.by != RewardBy::Both {
        let what = "weight is the model's part beside the checker: expected by = \"both\" with it";
        return blame("reward", ["weight"], what.to_owned());
    }
    if recipe.placement.models == Some(Choice::Auto) {
        let what = "models = \"auto\" does not know what a reward model costs: expected [placement] \
                    models = \"colocated\", \"split\" or \"standalone\" with it, or none";
        return blame("reward", ["by"], what.to_owned());
    }
    Ok(())
}

fn check_placement(recipe: &Recipe) -> Result<(), Blame> {
    let placement = &recipe.placement;
    if placement.models.is_some() && recipe.rl.staleness_max > 0 {
        let what = "models that are placed make each step together: expected [rl] staleness_max = 0 \
                    with it";
        return blame("placement", ["models"], what.to_owned());
    }
    if placement.models.is_none() && placement.ranks > 1 {
        let what = format!(
            "ranks = {} are of models that are placed: expected models = \"auto\", \
             \"colocated\", \"split\" or \"standalone\" with it",
            placement.ranks
        );
        return blame("placement", ["ranks"], what);
    }
    if placement.card.is_some() && placement.models != Some(Choice::Auto) {
        let what =
            "card is what models = \"auto\" predicts with: expected that with it, or leave it out";
        return blame("placement", ["card"], what.to_owned());
    }
    if placement.models.is_some() && recipe.processes.send != Sent::Whole {
        let what = "models that are placed have no relays, which weights are sent along: leave send out with it";
        return blame("processes", ["send"], what.to_owned());
    }
    let rounded = recipe.processes.weights != StoredType::F32;
    if placement.models.is_some() && rounded && recipe.sharing().ranks() == 1 {
        let what = "models that are placed and whole on each rank generate with the weights that they train: leave \
                    weights out with it, or share them by [parallel]";
        return blame("processes", ["weights"], what.to_owned());
    }
    if placement.models.is_some() && recipe.rollout.dialect().is_some() {
        let what =
            "models that are placed generate by themselves: leave [rollout] engine out with it";
        return blame("placement", ["models"], what.to_owned());
    }
    Ok(())
}

/// Ranks that share models, and what goes with them.
fn check_parallel(recipe: &Recipe) -> Result<(), Blame> {
    let parallel = &recipe.parallel;
    let fields = [
        "zero",
        "fsdp",
        "params",
        "prefetch",
        "tp",
        "cp",
        "cp_kind",
        "ep",
        "pp",
        "pp_chunks",
        "pp_schedule",
        "stages",
        "place",
    ];
    check_ranks_of_placed(recipe, fields)?;
    let of_file = |fault: Fault| Blame {
        table: fault.table,
        fields: vec![fault.field],
        what: fault.what,
    };
    let optimizer = ("rl", &recipe.rl.optimizer);
    let (field, ranks) = recipe.ranks_that_share();
    parallel.check((field, ranks), optimizer).map_err(of_file)?;
    if ranks == 1 {
        return match *parallel == ParallelSection::default() {
            true => Ok(()),
            false => {
                let what = format!(
                    "[parallel] says how several ranks share a model, and {field} = 1 makes none: let that be 2 or more"
                );
                blame("parallel", fields, what)
            }
        };
    }
    check_cards(recipe)?;
    let cuts =
        recipe.sharing().place(0) != PartPlace::WHOLE || parallel.zero > 1 || parallel.cp > 1;
    if recipe.model.lora_rank > 0 && cuts {
        let what = "adapters are on whole matrices, which ranks share here: expected lora_rank = 0, or copies of \
                    the model alone (parallel.zero = 0 or 1, no tp, cp, ep, pp)";
        return blame("model", ["lora_rank"], what.to_owned());
    }
    if recipe.run.deterministic && (parallel.tp > 1 || parallel.cp > 1) {
        let what = "deterministic = true has rollouts say of each token what the trainer says, to the bit, and sums \
                    over ranks (parallel.tp, cp) have another order: expected 1 of both with it";
        return blame("run", ["deterministic"], what.to_owned());
    }
    if recipe.model.load.is_some() {
        return Ok(());
    }
    let vocabulary = recipe.tokenizer().vocabulary();
    shared_out(recipe, &recipe.model.config(vocabulary))
}

/// Checks that models that are placed have their ranks from `[placement]`, and an arrangement where these share them by
/// one of the fields.
fn check_ranks_of_placed<const N: usize>(
    recipe: &Recipe,
    fields: [&'static str; N],
) -> Result<(), Blame> {
    let ranks = recipe.processes.ranks;
    if recipe.placement.models.is_some() && ranks > 1 {
        let what = format!(
            "ranks = {ranks} are of roles of an asynchronous run, and models that are placed have [placement] ranks: \
             leave one of them out"
        );
        return blame("processes", ["ranks"], what);
    }
    let shares = recipe.parallel != ParallelSection::default();
    if recipe.placement.models == Some(Choice::Auto) && shares {
        let what = "models = \"auto\" looks through placements of models that are whole on each rank: expected \
                    [placement] models = \"colocated\", \"split\" or \"standalone\" where ranks share them";
        return blame("parallel", fields, what.to_owned());
    }
    Ok(())
}

/// Checks that each rank has a card to itself, where ranks compute on cards.
fn check_cards(recipe: &Recipe) -> Result<(), Blame> {
    let placement = &recipe.placement;
    let (critic, reference) = (recipe.rl.baseline().has_critic(), recipe.rl.kl > 0.0);
    let learnt = recipe.reward.is_learnt();
    // Those that are in processes of the policy have its cards.
    let scorers = match placement.models {
        Some(Choice::Arranged(Arrangement::Colocated)) => false,
        Some(Choice::Arranged(Arrangement::Split)) => critic || learnt,
        Some(Choice::Auto | Choice::Arranged(Arrangement::Standalone)) | None => {
            critic || reference || learnt
        }
    };
    let lacking = match (placement.trainer_gpus, placement.scorer_gpus) {
        _ if recipe.run.device == "cpu" => return Ok(()),
        (1, 1) => return Ok(()),
        (1, _) if !scorers => return Ok(()),
        (1, _) => "scorer_gpus",
        _ => "trainer_gpus",
    };
    let what = format!(
        "each of the {} ranks of a model computes on a card of its own: expected {lacking} = 1",
        recipe.ranks_that_share().1
    );
    blame("placement", [lacking], what)
}

/// Checks that ranks can share this model.
pub(super) fn shared_out(recipe: &Recipe, config: &ModelConfig) -> Result<(), Blame> {
    let (_, ranks) = recipe.ranks_that_share();
    let placed = recipe
        .parallel
        .placed(ranks, config, &TrainConfig::default());
    let placed = placed.map_err(|fault| Blame {
        table: place_table(fault.entry),
        fields: vec![fault.field],
        what: fault.what,
    })?;
    placed.shared_out(ranks, config).map_err(|error| Blame {
        table: "parallel",
        fields: vec![field_of_fault(&error)],
        what: error.to_string(),
    })
}

/// Servers, and what goes with them.
fn check_rollout(recipe: &Recipe) -> Result<(), Blame> {
    let (rollout, rollouts) = (&recipe.rollout, recipe.processes.rollouts);
    let Some(dialect) = rollout.dialect() else {
        let set = [
            ("urls", !rollout.urls.is_empty()),
            ("api_key_env", rollout.api_key_env.is_some()),
            ("weights_dir", rollout.weights_dir.is_some()),
        ];
        return match set.into_iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => {
                let what = format!(
                    "{field} is for servers: leave it out, or choose engine = \"vllm\" or \"sglang\""
                );
                blame("rollout", [field], what)
            }
            None => Ok(()),
        };
    };
    if rollout.urls.len() != rollouts {
        let what = format!(
            "urls has {} servers of {dialect} for processes.rollouts = {rollouts}: expected one for \
             each rollout",
            rollout.urls.len()
        );
        return blame("rollout", ["urls", "engine"], what);
    }
    let bare = |url: &'_ String| url.trim_end_matches('/').to_owned();
    let mut known = std::collections::BTreeSet::new();
    if let Some(twice) = rollout
        .urls
        .iter()
        .map(bare)
        .find(|it| !known.insert(it.clone()))
    {
        let what = format!("{twice} stands in urls twice: a server belongs to one rollout");
        return blame("rollout", ["urls"], what);
    }
    if rollout.weights_dir.is_none() {
        let what = "servers are given weights in a folder: expected weights_dir = \"...\", under the \
                    same path for the rollouts and the servers";
        return blame("rollout", ["engine"], what.to_owned());
    }
    if recipe.processes.weights != StoredType::F32 {
        let what = format!(
            "servers of {dialect} are given weights as the trainer has them: expected weights = \"f32\""
        );
        return blame("processes", ["weights"], what);
    }
    if recipe.rl.swap == Swap::Overlap {
        let what = format!(
            "swap = \"overlap\" holds two sets of weights, and a server of {dialect} has one: expected \
             swap = \"drain\" or \"interrupt\""
        );
        return blame("rl", ["swap"], what);
    }
    Ok(())
}

fn check_sizes(recipe: &Recipe) -> Result<(), Blame> {
    let model = &recipe.model;
    if let Err((fields, what)) = model.check() {
        let table = "model";
        return Err(Blame {
            table,
            fields,
            what,
        });
    }
    if model.width.is_some() {
        let what = "a virtual width is for recipes with [pretrain]: load the model that such a run has made";
        return blame("model", ["width"], what.to_owned());
    }
    let parameters = model.parameters(recipe.tokenizer().vocabulary());
    if parameters > PARAMETERS_MAX {
        let what = format!(
            "these sizes make a model of {parameters} parameters, expected at most {PARAMETERS_MAX}"
        );
        return blame("model", ["hidden", "layers", "ffn", "block"], what);
    }
    Ok(())
}

fn check_task(spec: &TaskSpec) -> Result<(), Blame> {
    let ordered = |table, low: (&'static str, i64), high: (&'static str, i64)| {
        if low.1 <= high.1 {
            return Ok(());
        }
        let what = format!(
            "{} = {} is above {} = {}: expected at most that",
            low.0, low.1, high.0, high.1
        );
        blame(table, [low.0, high.0], what)
    };
    match spec {
        TaskSpec::Sums(sums) => {
            let operands = (sums.operands_min as i64, sums.operands_max as i64);
            let digits = (i64::from(sums.digits_min), i64::from(sums.digits_max));
            let table = table(spec);
            ordered(
                table,
                ("operands_min", operands.0),
                ("operands_max", operands.1),
            )?;
            ordered(table, ("digits_min", digits.0), ("digits_max", digits.1))?;
        }
        TaskSpec::Countdown(game) => {
            let count = (game.numbers_min as i64, game.numbers_max as i64);
            let number = (i64::from(game.number_min), i64::from(game.number_max));
            let target = (game.target_min, game.target_max);
            let table = table(spec);
            ordered(table, ("numbers_min", count.0), ("numbers_max", count.1))?;
            ordered(table, ("number_min", number.0), ("number_max", number.1))?;
            ordered(table, ("target_min", target.0), ("target_max", target.1))?;
        }
        _ => {}
    }
    let Err(error) = spec.build() else {
        return Ok(());
    };
    let field = match &error {
        TaskError::Read { .. } | TaskError::Line { .. } | TaskError::File { .. } => "path",
        TaskError::TooFewProblems { .. } => "train_count",
        _ => "",
    };
    blame(table(spec), [field], error.to_string())
}

/// Checks that a model can read the task's prompts and has room for them.
pub(super) fn fits(
    recipe: &Recipe,
    tokenizer: &Tokenizer,
    hidden: usize,
    context_max: usize,
) -> Result<(), Blame> {
    let (model, rl) = (&recipe.model, &recipe.rl);
    if model.lora_rank > hidden {
        let what = format!(
            "lora_rank = {} is more than the model's width: expected at most {hidden}",
            model.lora_rank
        );
        return blame("model", ["lora_rank"], what);
    }
    if model.context > context_max {
        let what = format!(
            "context = {} is more than the loaded model was made for: expected at most {context_max}",
            model.context
        );
        return blame("model", ["context"], what);
    }
    // It was built before.
    let Ok(task) = recipe.task.build() else {
        return Ok(());
    };
    if task.style() == PromptStyle::Chat && tokenizer.chat().is_none() {
        let what = format!(
            "{} is asked as in a conversation, which the model has no template for: {}",
            spoken(&recipe.task),
            other_forms(&recipe.task)
        );
        return blame(table(&recipe.task), ["form", "style"], what);
    }
    let (prompt, line) =
        match longest_prompt(&recipe.task, task.as_ref(), tokenizer, recipe.run.seed) {
            Ok(tokens) => tokens,
            Err(error) => {
                let what = format!("the model cannot read this task's prompts: {error}");
                return blame(table(&recipe.task), ["form", "style"], what);
            }
        };
    // A reward model reads one or two replies, each with a token that ends it.
    let (read, read_by) = match (recipe.reward.is_learnt(), recipe.reward.kind) {
        (false, _) => (rl.response_max, ""),
        (true, None | Some(RewardKind::Scalar)) => {
            (rl.response_max + 1, " and an end for the reward model")
        }
        (true, Some(RewardKind::Pairwise)) => (
            2 * (rl.response_max + 1),
            ", twice and with ends for the reward model",
        ),
    };
    let needed = prompt + read;
    if model.context < needed {
        let place = match line {
            Some(line) => format!(
                " (line {line} of its file; prompt_bytes_max with on_bad = \"skip\" leaves long ones \
                 out)"
            ),
            None => String::new(),
        };
        let what = format!(
            "context = {} is too small: the longest prompt of this task has {prompt} \
             tokens{place}, and response_max = {}{read_by} come on top, so expected at least {needed}",
            model.context, rl.response_max
        );
        return blame("model", ["context"], what);
    }
    Ok(())
}

/// Tokens of the longest prompt, and its line where the problems are in a file: of all problems where
/// they are few, else of many and with every number grown to its most digits.
fn longest_prompt(
    spec: &TaskSpec,
    task: &dyn Task,
    tokenizer: &Tokenizer,
    seed: u64,
) -> Result<(usize, Option<usize>), odeon_algorithms::tokenizer::TokenizerError> {
    // The longest problems that the settings allow; settings that leave no problems keep the rest.
    let longest = match spec.clone() {
        TaskSpec::Sums(mut sums) => {
            sums.operands_min = sums.operands_max;
            sums.digits_min = sums.digits_max;
            TaskSpec::Sums(sums).build().ok()
        }
        TaskSpec::Countdown(mut game) => {
            game.numbers_min = game.numbers_max;
            TaskSpec::Countdown(game).build().ok()
        }
        _ => None,
    };
    let digits = |number: u64| number.checked_ilog10().map_or(1, |more| more as usize + 1);
    let mut most = (0, None);
    for task in [Some(task), longest.as_deref()].into_iter().flatten() {
        for split in [Split::Train, Split::HeldOut] {
            let count = task.problem_count(split).unwrap_or(DRAWN);
            for index in 0..count {
                let problem = task.problem(seed, split, index);
                let mut tokens = encode_prompt(tokenizer, task.style(), &problem.prompt)?.len();
                if let (TaskSpec::Countdown(game), Goal::Expression { numbers, target }) =
                    (spec, &problem.goal)
                {
                    let grown = |most: u64, now: u64| digits(most).saturating_sub(digits(now));
                    let number = |now: &u32| grown(game.number_max.into(), u64::from(*now));
                    tokens += numbers.iter().map(number).sum::<usize>();
                    tokens += grown(game.target_max.unsigned_abs(), target.unsigned_abs());
                }
                if tokens > most.0 {
                    most = (tokens, task.line(&problem));
                }
            }
        }
    }
    Ok(most)
}

fn table(spec: &TaskSpec) -> &'static str {
    match spec {
        TaskSpec::Sums(_) => "task.sums",
        TaskSpec::Countdown(_) => "task.countdown",
        TaskSpec::Maths(_) => "task.maths",
        TaskSpec::Code(_) => "task.code",
        _ => "task.gsm8k",
    }
}

fn spoken(spec: &TaskSpec) -> &'static str {
    match spec {
        TaskSpec::Sums(_) => "form = \"spoken\"",
        TaskSpec::Countdown(_) | TaskSpec::Code(_) => "style = \"chat\"",
        TaskSpec::Maths(_) => "maths",
        _ => "gsm8k",
    }
}

fn other_forms(spec: &TaskSpec) -> &'static str {
    match spec {
        TaskSpec::Sums(sums) if sums.form == SumsForm::Spoken => {
            "expected a chat model as model.load, or form = \"compact\" or \"steps\""
        }
        TaskSpec::Countdown(_) | TaskSpec::Code(_) => {
            "expected a chat model as model.load, or style = \"plain\""
        }
        _ => "expected a chat model as model.load",
    }
}

/// Beyond it, one step would not fit any machine that this runs on.
const TRAJECTORIES_MAX: u64 = 1 << 20;

/// Larger models are loaded, not made anew.
const PARAMETERS_MAX: u64 = 2_000_000_000;

/// Problems of an endless task that are looked at.
const DRAWN: u64 = 64;
