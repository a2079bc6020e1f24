//! Wrong recipes and the words that they are refused with.

use std::path::Path;

use odeon_algorithms::model::StageLayers;
use odeon_algorithms::objective::{
    Baseline, Cispo, Clipped, GroupBaseline, Gspo, KlEstimator, Lambda, Reduction, Scale, Surrogate,
};
use odeon_algorithms::train::{AdamW, Lion, Muon, Sharing, ZeroStage};
use odeon_gpu::Precision;

use super::*;
use crate::engine::served::Dialect;
use crate::hybrid::{Arrangement, Program};
use crate::rl::ledger::{Greedy, Uniform};
use crate::sandbox::Isolation;

const GOOD: &str = "[run]\nname = \"a\"\n\n[model]\n\n[task.sums]\n\n[rl]\nalgorithm = \"grpo\"\n\
                    steps = 3\ngroups = 2\ngroup_size = 4\nlr = 1e-4\nresponse_max = 8\n";

fn error(text: &str) -> String {
    Recipe::parse(Path::new("r.toml"), text)
        .unwrap_err()
        .to_string()
}

#[test]
fn a_good_recipe_is_read() {
    let recipe = Recipe::parse(Path::new("r.toml"), GOOD).unwrap();
    assert_eq!(recipe.rl.group_size, 4);
    assert_eq!(recipe.folder(), Path::new("runs/a"));
}

#[test]
fn the_shipped_recipes_are_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    for name in [
        "rl-sums.toml",
        "rl-reward-model.toml",
        "rl-smollm2.toml",
        "ppo-placed.toml",
        "rl-tools.toml",
        "rl-cispo.toml",
    ] {
        Recipe::read(&folder.join(name)).unwrap();
    }
    let tails = Recipe::read(&folder.join("long-tails.toml")).unwrap();
    let acting = tails.acting().unwrap();
    assert_eq!(acting.environment.tool, Tool::Calculator);
    assert_eq!(acting.environment.call_max.as_secs(), 10);
    assert_eq!((acting.latency.median_ms, acting.response_max), (200.0, 40));
    // It names its problems as seen from the root.
    let text = std::fs::read_to_string(folder.join("rl-code.toml")).unwrap();
    let problems = folder.join("rl-code.jsonl").display().to_string();
    let text = text.replace("recipes/rl-code.jsonl", &problems);
    let recipe = Recipe::parse(Path::new("rl-code.toml"), &text).unwrap();
    let programs = recipe.programs();
    assert_eq!(
        (programs.at_once.get(), programs.sandbox.memory_bytes),
        (2, 256 << 20)
    );
    assert_eq!(programs.isolation, Isolation::Required);
    assert_eq!(recipe.tokenizer().vocabulary(), 100);
}

#[test]
fn parameters_are_those_of_the_model() {
    use odeon_algorithms::model::{LayerBlock, Model, ModelConfig};
    use odeon_algorithms::setting::Chosen;
    for word in LayerBlock::WORDS {
        let block = LayerBlock::named(word).unwrap();
        let kv_heads = if *word == "gelu" { 4 } else { 2 };
        let section = ModelSection {
            block,
            kv_heads,
            ..ModelSection::default()
        };
        let sizes = ModelConfig {
            vocab: 32,
            kv_heads,
            ..ModelConfig::default()
        };
        let config = sizes.of_block(block, section.context);
        assert_eq!(section.config(32), config);
        let model = Model::zeros(odeon_gpu::Cpu::new(1), config).unwrap();
        assert_eq!(section.parameters(32), model.flat().len() as u64, "{word}");
    }
}

#[test]
fn a_wrong_recipe_is_refused_with_line_and_expectation_on_one_line() {
    for (from, to, line, words) in [
        (
            "[model]\n",
            "[model]\nwidth = { segments = 4 }\n",
            5,
            "a virtual width is for recipes with [pretrain]",
        ),
        (
            "steps = 3",
            "steps = 0",
            10,
            "from 1 to 1000000000, found 0",
        ),
        (
            "steps = 3",
            "stepz = 3",
            10,
            "unknown field `stepz`: [rl] has algorithm, steps",
        ),
        (
            "steps = 3",
            "steps = \"x\"",
            10,
            "expected a whole number from 1 to",
        ),
        ("steps = 3", "steps = 1.5", 10, "found 1.5"),
        (
            "steps = 3\n",
            "",
            8,
            "missing field `steps`: expected a whole number",
        ),
        (
            "\"grpo\"",
            "\"dpo\"",
            9,
            "expected one of \"grpo\", \"dr_grpo\", \"dapo\", \"gspo\", \"rloo\", \"remax\", \"reinforce++\", \
             \"ppo\", \"vapo\", \"safe_rlhf\", found \"dpo\"",
        ),
        (
            "lr = 1e-4",
            "lr = -1.0",
            13,
            "expected a number above 0 and at most 1, found -1.0",
        ),
        ("lr = 1e-4", "lr = nan", 13, "found nan"),
        ("lr = 1e-4", "lr = \"a\\nb\"", 13, "found \"a\\nb\""),
        ("lr = 1e-4", "lr = = 2", 13, ""),
        (
            "response_max = 8",
            "response_max = 64",
            14,
            "leaves no room",
        ),
        (
            "response_max = 8",
            "response_max = 59",
            4,
            "context = 64 is too small",
        ),
        ("groups = 2", "groups = 1e12", 11, "from 1 to 65536"),
        (
            "groups = 2\ngroup_size = 4",
            "groups = 60000\ngroup_size = 60000",
            11,
            "trajectories",
        ),
        (
            "group_size = 4",
            "group_size = 2000000",
            12,
            "from 2 to 65536",
        ),
        ("name = \"a\"", "name = \"../b\"", 2, "letters, digits"),
        (
            "name = \"a\"",
            "name = \"a\"\nseed = -1",
            3,
            "from 0 to 2^63-1, found -1",
        ),
        ("name = \"a\"", "name = \"a\"\ndevice = \"tpu\"", 3, "cpu"),
        (
            "name = \"a\"",
            "name = \"a\"\ndeterministic = \"yes\"",
            3,
            "expected true or false, found \"yes\"",
        ),
        (
            "name = \"a\"",
            "name = \"a\"\nproducts = \"f16\"",
            3,
            "products: expected \"f32\" or \"bf16\", found \"f16\"",
        ),
        (
            "name = \"a\"",
            "name = \"a\"\ndeterministic = true\ndevice = \"cuda\"",
            3,
            "expected device = \"cpu\" with it, and not \"cuda\"",
        ),
        (
            "name = \"a\"\n\n[model]",
            "name = \"a\"\ndeterministic = true\n\n[model]\nlora_rank = 2",
            6,
            "expected lora_rank = 0 with it",
        ),
        ("[model]", "[model]\nheads = 3", 5, "do not divide"),
        (
            "[model]",
            "[model]\nhidden = 1000000000",
            5,
            "from 2 to 16384",
        ),
        (
            "[model]",
            "[model]\nhidden = 16384\nlayers = 256",
            5,
            "parameters, expected at most",
        ),
        (
            "[model]",
            "[model]\nlora_rank = 129",
            5,
            "expected at most 128",
        ),
        (
            "[model]",
            "[model]\ncontext = 10",
            5,
            "expected at least 15",
        ),
        (
            "[model]",
            "[[model]]",
            4,
            "expected a table [model], found a list",
        ),
        (
            "[task.sums]",
            "[task.sums]\noperands_min = 1",
            7,
            "operands_min",
        ),
        (
            "[task.sums]",
            "[task.sums]\noperands_min = 5",
            7,
            "above operands_max = 2",
        ),
        (
            "[task.sums]",
            "[task.sums]\nminus_percent = 300",
            7,
            "from 0 to 100, found 300",
        ),
        (
            "[task.sums]",
            "[task.sums]\nform = \"spoken\"",
            7,
            "expected a chat model",
        ),
        (
            "[task.sums]",
            "[task.sums]\n[task.countdown]",
            7,
            "is a second task",
        ),
        (
            "[task.sums]",
            "[task]",
            6,
            "expected one table of [task.sums]",
        ),
        (
            "[task.sums]",
            "[task.gsm8k]\npath = \"nowhere\"",
            7,
            "nowhere",
        ),
        (
            "[task.sums]",
            "[task.code]\npath = \"nowhere\"",
            7,
            "cannot read the problems in nowhere",
        ),
        (
            "[task.sums]",
            "[task.code]\npath = \"Cargo.toml\"",
            7,
            "Cargo.toml:1: ",
        ),
        ("[task.sums]", "[task.code]", 6, "missing field `path`"),
        (
            "[task.sums]",
            "[task.code]\npath = \"x\"\ncredit = \"half\"",
            8,
            "expected \"all_or_nothing\" or \"fraction\", found \"half\"",
        ),
        (
            "[task.sums]",
            "[sandbox]\n[task.sums]",
            6,
            "[sandbox] is for [task.code], whose replies are run",
        ),
        (
            "[task.sums]",
            "[sandbox]\nisolation = \"none\"\n[task.sums]",
            7,
            "expected \"required\" or \"limits\", found \"none\"",
        ),
        (
            "[task.sums]",
            "[sandbox]\nmemory_mib = 4\n[task.sums]",
            7,
            "from 16 to 1048576, found 4",
        ),
        (
            "[task.sums]",
            "[task.sums]\nform = \"tool\"",
            7,
            "expected [environment] tool = \"calculator\" with it",
        ),
        (
            "[task.sums]",
            "[task.sums]\nform = \"program\"\n[environment]\ntool = \"calculator\"",
            9,
            "call another tool: expected tool = \"python\"",
        ),
        (
            "[task.sums]",
            "[environment]\nturns_max = 0\ntool = \"calculator\"\n[task.sums]",
            7,
            "from 1 to 1024, found 0",
        ),
        (
            "[task.sums]",
            "[environment]\n[task.sums]",
            6,
            "missing field `tool`",
        ),
        (
            "[rl]",
            "[environment]\ntool = \"calculator\"\n[placement]\nmodels = \"colocated\"\n[rl]\n\
             staleness_max = 0",
            9,
            "models that are placed make replies of one turn",
        ),
        (
            "[task.sums]",
            "[environment]\ntool = \"calculator\"\n[sandbox]\n[task.sums]",
            8,
            "[sandbox] is for [task.code]",
        ),
        ("[task.sums]", "[tusk.sums]", 6, "unknown table [tusk]"),
        (
            "[task.sums]",
            "[processes]\nrollouts = 65\n[task.sums]",
            7,
            "from 1 to 64",
        ),
        (
            "[task.sums]",
            "[processes]\nslots = 1000000\n[task.sums]",
            7,
            "from 1 to 4096",
        ),
        (
            "[task.sums]",
            "[processes]\ntrainer_threads = 1000000\n[task.sums]",
            7,
            "from 1 to 1024",
        ),
        (
            "[task.sums]",
            "[task.sums]\ndigits_max = 99",
            7,
            "from 1 to 15",
        ),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let message = error(&GOOD.replacen(from, to, 1));
        assert!(
            message.starts_with(&format!("r.toml:{line}: ")),
            "{to}: {message}"
        );
        assert!(message.contains(words), "{to}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

/// SEMANTICS 141. Plans of ranks that cannot be, with what goes with them, by line.
#[test]
fn ranks_share_models_of_reinforcement_or_are_refused_by_line() {
    let of = |tables: &str| GOOD.replacen("[task.sums]", &format!("{tables}\n[task.sums]"), 1);
    let recipe = of("[processes]\nranks = 4\n[parallel]\ntp = 2\nzero = 3");
    let recipe = Recipe::parse(Path::new("r.toml"), &recipe).unwrap();
    let sharing = recipe.sharing();
    assert_eq!((sharing.copies, sharing.tensor), (2, 2));
    assert_eq!(sharing.zero, ZeroStage::Parameters);
    for (tables, line, words) in [
        ("[parallel]\nzero = 3", 7, "processes.ranks = 1 makes none"),
        (
            "[processes]\nranks = 4\n[parallel]\ntp = 3",
            9,
            "let that be a multiple of 3",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\nep = 2",
            9,
            "2 expert ranks cannot share a model without experts",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\nzero = 4",
            9,
            "from 0 to 3",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\ncp_kind = \"ring\"",
            9,
            "parallel.cp = 1 makes none",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\npp_schedule = \"zigzag\"",
            9,
            "expected one of \"gpipe\", \"1f1b\", \"zb_h1\", \"zero_bubble\"",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\npp = 2\nstages = [9, 9]",
            10,
            "stages of 18 layers together cannot be made",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\npp = 2\nstages = [0, 1]",
            10,
            "expected a list of whole numbers from 1",
        ),
        (
            "[processes]\nranks = 2\n[parallel]\npp = 2\n[[parallel.place]]\nmatch = \"nobody\"\nstage = 0",
            11,
            "`nobody` means no parameter",
        ),
    ] {
        let message = error(&of(tables));
        let at = format!("r.toml:{line}: ");
        assert!(message.starts_with(&at), "{tables}: {message}");
        assert!(message.contains(words), "{tables}: {message}");
    }
    // Patterns say what `stages` would.
    let place = "[[parallel.place]]\nmatch = \"layers.0.*\"\nstage = 0\n[[parallel.place]]\nmatch = \"layers.1.*\"\nstage = 1";
    let recipe = of(&format!(
        "[processes]\nranks = 2\n[parallel]\npp = 2\n{place}"
    ));
    let recipe = Recipe::parse(Path::new("r.toml"), &recipe).unwrap();
    let config = recipe.model.config(recipe.tokenizer().vocabulary());
    let layers = recipe.placed(&config).unwrap().sharing().layers;
    assert_eq!(layers, StageLayers::new(&[1, config.layers - 1]));
    let ranks = "[processes]\nranks = 2\n[parallel]\ncp = 2";
    for (from, to, words) in [
        (
            "name = \"a\"",
            "name = \"a\"\ndeterministic = true",
            "sums over ranks (parallel.tp, cp) have another order",
        ),
        (
            "name = \"a\"",
            "name = \"a\"\ndevice = \"cuda\"",
            "expected trainer_gpus = 1",
        ),
        (
            "[model]",
            "[model]\nlora_rank = 4",
            "adapters are on whole matrices",
        ),
    ] {
        let text = of(ranks);
        assert!(text.contains(from), "{from}");
        let message = error(&text.replacen(from, to, 1));
        assert!(message.contains(words), "{to}: {message}");
    }
}

#[test]
fn servers_are_one_for_each_rollout_and_go_with_what_they_need() {
    let of = |swap: &str, rollout: &str| {
        let text = GOOD.replacen("lr = 1e-4", &format!("lr = 1e-4\nswap = \"{swap}\""), 1);
        format!("{text}\n[rollout]\n{rollout}\n")
    };
    let good = "engine = \"vllm\"\nurls = [\"http://a:1\", \"https://b\"]\nweights_dir = \"/w\"";
    let recipe = Recipe::parse(Path::new("r.toml"), &of("drain", good)).unwrap();
    assert_eq!(recipe.rollout.dialect(), Some(Dialect::Vllm));
    assert_eq!(recipe.rollout.urls.len(), 2);
    for (text, line, words) in [
        (
            of("overlap", good),
            14,
            "a server of vLLM has one: expected swap = \"drain\"",
        ),
        (
            of("drain", &good.replace("vllm", "tgi")),
            18,
            "expected one of \"own\", \"vllm\", \"sglang\"",
        ),
        (
            of("drain", &good.replace("\"vllm\"", "\"own\"")),
            19,
            "urls is for servers",
        ),
        (
            of("drain", &good.replace(", \"https://b\"", "")),
            19,
            "urls has 1 servers of vLLM",
        ),
        (
            of("drain", &good.replace("https://b", "http://a:1/")),
            19,
            "http://a:1 stands in urls twice",
        ),
        (
            of("drain", &good.replace("https://b", "b:2")),
            19,
            "expected a list of addresses",
        ),
        (
            of("drain", &good.replace("weights_dir = \"/w\"", "")),
            18,
            "expected weights_dir",
        ),
        (
            of("drain", "engine = \"sglang\""),
            18,
            "urls has 0 servers of SGLang",
        ),
    ] {
        let message = error(&text);
        assert!(
            message.starts_with(&format!("r.toml:{line}: ")),
            "{message}"
        );
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn an_empty_recipe_is_told_what_it_needs() {
    let message = error("");
    assert!(
        message.starts_with("r.toml:1: there is no [run]"),
        "{message}"
    );
    assert!(message.contains("at least [run] with name"), "{message}");
}

#[test]
fn a_field_of_the_same_name_in_another_table_is_not_blamed() {
    let text = GOOD.replacen("[task.sums]", "[warmup]\nlr = 1e-3\n[task.sums]", 1);
    let message = error(&text.replacen("lr = 1e-4", "lr = 2", 1));
    assert!(message.starts_with("r.toml:15: lr: "), "{message}");
}

/// Every name that a recipe may have stands for a baseline and an objective.
#[test]
fn algorithms_have_the_numbers_of_their_papers() {
    let of = |algorithm: &str, more: &str| {
        let text = GOOD.replace("\"grpo\"", &format!("\"{algorithm}\"\n{more}"));
        Recipe::parse(Path::new("a.toml"), &text).unwrap().rl
    };
    let grpo = of("grpo", "kl = 0.1");
    assert_eq!(grpo.baseline(), Baseline::Group(GroupBaseline::default()));
    let objective = grpo.objective();
    let surrogate = Surrogate::Clipped(Clipped {
        clip_low: 0.2,
        clip_high: 0.28,
    });
    assert_eq!(objective.surrogate, surrogate);
    assert_eq!(objective.kl.unwrap().estimator, KlEstimator::K3);
    let dr = of("dr_grpo", "");
    assert!(matches!(dr.baseline(), Baseline::Group(group) if group.scale == Scale::Unit));
    let tokens = dr.response_max;
    assert_eq!(
        dr.objective().reduction,
        Reduction::ConstantLength { tokens }
    );
    let gspo = of("gspo", "clip_high = 0.01").objective();
    let surrogate = Surrogate::Gspo(Gspo {
        clip_low: 3e-4,
        clip_high: 0.01,
    });
    assert_eq!(
        (gspo.surrogate, gspo.reduction),
        (surrogate, Reduction::SequenceMean)
    );
    assert_eq!(of("rloo", "").baseline(), Baseline::LeaveOneOut);
    let reinforce = of("reinforce++", "kl = 0.1\ngamma = 0.9");
    assert_eq!(reinforce.objective().kl, None, "paid out of the reward");
    let Baseline::Batch { gamma, kl } = reinforce.baseline() else {
        panic!("{reinforce:?}");
    };
    assert_eq!((gamma, kl.unwrap().estimator), (0.9, KlEstimator::K1));
    let other = of("grpo", "kl = 0.1\nkl_estimator = \"k2\"");
    assert_eq!(other.objective().kl.unwrap().estimator, KlEstimator::K2);
    assert!(of("ppo", "").baseline().has_critic());
    let more = of("grpo", "importance_cap = 2.0\npositive = 0.1\noverlong = 4");
    assert_eq!(more.objective().importance_cap, Some(2.0));
    assert_eq!(more.objective().positive_coefficient, 0.1);
    assert_eq!(more.ledger().uniform, Uniform::Kept);
    let dapo = of("dapo", "");
    assert_eq!(dapo.baseline(), Baseline::Group(GroupBaseline::default()));
    assert_eq!(dapo.ledger().uniform, Uniform::Refilled { rounds: 10 });
    assert_eq!(dapo.overlong().unwrap().cache, 1, "a fifth of 8");
    assert_eq!(of("dapo", "refill = 0").ledger().uniform, Uniform::Kept);
    let remax = of("remax", "");
    assert_eq!(
        (remax.baseline(), remax.ledger().greedy),
        (Baseline::Greedy, Greedy::Yes)
    );
    let vapo = of("vapo", "");
    let Baseline::Critic(gae) = vapo.baseline() else {
        panic!("{vapo:?}");
    };
    let alpha = 0.05;
    assert_eq!(gae.lambda, Lambda::LengthAdaptive { alpha });
    assert_eq!((gae.value_lambda, vapo.value_steps()), (Some(1.0), 50));
    assert_eq!(vapo.objective().positive_coefficient, 0.1);
    assert_eq!(of("ppo", "").value_steps(), 0);
    let safe = "\n[cost]\nrule = \"length\"\nlimit = 0.5\n";
    let text = GOOD.replace("\"grpo\"", "\"safe_rlhf\"") + safe;
    let recipe = Recipe::parse(Path::new("a.toml"), &text).unwrap();
    assert!(recipe.rl.baseline().has_critic());
    assert_eq!(recipe.cost.unwrap().price().multiplier, 1.0);
    let overlong = more.overlong().unwrap();
    assert_eq!((overlong.limit, overlong.cache), (8, 4));
    let text = GOOD.replace("\"grpo\"", "\"grpo\"\noverlong = 9");
    let error = Recipe::parse(Path::new("a.toml"), &text).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("overlong = 9 is more than response_max = 8"),
        "{error}"
    );
}

/// An objective and an optimiser are chosen by a word, or by a table with settings.
#[test]
fn an_objective_and_an_optimiser_are_chosen_by_name() {
    let of = |more: &str| {
        let text = GOOD.replace("\"grpo\"", &format!("\"grpo\"\n{more}"));
        Recipe::parse(Path::new("a.toml"), &text)
    };
    let read = |more: &str| of(more).unwrap().rl;
    let cispo = read("objective = \"cispo\"");
    assert_eq!(cispo.baseline(), Baseline::Group(GroupBaseline::default()));
    let objective = cispo.objective();
    assert_eq!(
        (objective.surrogate, objective.reduction),
        (Surrogate::Cispo(Cispo::default()), Reduction::TokenMean)
    );
    let set = read("objective = { cispo = { clip_low = 0.5, clip_high = 2 } }");
    let surrogate = Surrogate::Cispo(Cispo {
        clip_low: 0.5,
        clip_high: 2.0,
    });
    assert_eq!(set.objective().surrogate, surrogate);
    let gspo = read("objective = \"gspo\"").objective();
    assert_eq!(gspo.surrogate, Surrogate::Gspo(Gspo::default()));
    assert_eq!(gspo.reduction, Reduction::SequenceMean);
    let paper = AdamW {
        beta2: 0.99,
        ..AdamW::default()
    };
    assert_eq!(read("").optimizer, Optimizer::AdamW(paper));
    assert_eq!(
        read("optimizer = \"adamw\"").optimizer,
        Optimizer::default()
    );
    let lion = read("optimizer = { lion = { beta1 = 0.95 } }").optimizer;
    let expected = Lion {
        beta1: 0.95,
        ..Lion::default()
    };
    assert_eq!(lion, Optimizer::Lion(expected));
    let muon = read("optimizer = { muon = { momentum = 0.9 } }").optimizer;
    let expected = Muon {
        momentum: 0.9,
        ..Muon::default()
    };
    assert_eq!(muon, Optimizer::Muon(expected));
    for (more, expected) in [
        (
            "optimizer = \"adam\"",
            "a.toml:10: optimizer: expected one of \"adamw\", \"muon\", \"lion\", \"adam8bit\", or a table of one",
        ),
        ("optimizer = {}", "a.toml:10: optimizer: expected one of"),
        (
            "optimizer = { lion = { beta3 = 0.9 } }",
            "a.toml:10: unknown field `beta3`",
        ),
        (
            "optimizer = { lion = { beta1 = 1.0 } }",
            "a.toml:10: lion.beta1: expected a number of at least 0 and below 1, found 1",
        ),
        (
            "objective = \"dpo\"",
            "a.toml:10: objective: expected one of \"clipped\", \"gspo\", \"cispo\"",
        ),
        (
            "objective = { cispo = { clip = 0.9 } }",
            "a.toml:10: unknown field `clip`",
        ),
        (
            "objective = { cispo = { clip_high = 0 } }",
            "a.toml:10: cispo.clip_high: expected a number above 0, found 0",
        ),
        (
            "objective = \"cispo\"\nclip_high = 2.0",
            "a.toml:11: clip_high is of the algorithm's own objective",
        ),
    ] {
        let error = of(more).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// A recipe of pretraining chooses an optimiser in the same words.
#[test]
fn a_wrong_optimiser_of_pretraining_is_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let of = |optimizer: &str| {
        let text = text.replace(
            "[pretrain]",
            &format!("[pretrain]\noptimizer = {optimizer}"),
        );
        Source::new(Path::new("p.toml"), &text).pretrain_recipe()
    };
    let lion = of("{ lion = { beta2 = 0.98 } }")
        .unwrap()
        .pretrain
        .optimizer;
    assert_eq!(lion.name(), "Lion");
    assert_eq!(of("\"muon\"").unwrap().pretrain.optimizer.name(), "Muon");
    let tiled = of("{ adam8bit = { beta2 = 0.99 } }")
        .unwrap()
        .pretrain
        .optimizer;
    assert_eq!(tiled.name(), "8-bit Adam");
    for (optimizer, expected) in [
        (
            "{ lion = { beta2 = 1.5 } }",
            "lion.beta2: expected a number of at least 0 and below 1, found 1.5",
        ),
        (
            "\"adam\"",
            "unknown variant `adam`, expected one of `adamw`, `muon`, `lion`, `adam8bit`",
        ),
        ("{ muon = { beta2 = 0.9 } }", "unknown field `beta2`"),
        (
            "{ adam8bit = { beta2 = 1.0 } }",
            "adam8bit.beta2: expected a number of at least 0 and below 1, found 1",
        ),
        ("{ adam8bit = { block = 16 } }", "unknown field `block`"),
    ] {
        let error = of(optimizer).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let line = text.lines().position(|line| line == "[pretrain]").unwrap() + 2;
        assert!(error.starts_with(&format!("p.toml:{line}: ")), "{error}");
    }
}

/// SEMANTICS 145. Rows of a new model may be wider than its layers, in what is pretrained.
#[test]
fn a_virtual_width_is_read_and_a_wrong_one_named() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let of = |width: &str, parallel: &str| {
        let text = text.replace("[model]", &format!("[model]\nwidth = {width}"));
        let text = format!("{text}\n[parallel]\n{parallel}\n");
        Source::new(Path::new("p.toml"), &text).pretrain_recipe()
    };
    let wide = of("{ fraction = 2, segments = 4 }", "zero = 3").unwrap();
    let width = wide.model.config(300).width.unwrap();
    assert_eq!(
        (width.fraction, width.segments, width.dynamic),
        (2, 4, true)
    );
    let config = wide.model.config(300);
    let model = odeon_algorithms::model::Model::zeros(odeon_gpu::Cpu::new(1), config).unwrap();
    assert_eq!(wide.model.parameters(300), model.flat().len() as u64);
    let line = text.lines().position(|line| line == "[model]").unwrap() + 2;
    for (width, expected) in [
        ("{ fraction = 5 }", "has no 5 equal segments"),
        (
            "{ fraction = 4, segments = 3 }",
            "rows of 3 segments: there are 4 (fraction) to 256",
        ),
        ("{ segment = 3 }", "unknown field `segment`"),
        ("2", "expected"),
    ] {
        let error = of(width, "tp = 1").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with(&format!("p.toml:{line}: ")), "{error}");
    }
    let error = of("{ segments = 4 }", "tp = 2").unwrap_err().to_string();
    let line = text.lines().count() + 4;
    let expected = "a model of virtual width cannot be shared by 2 tensor ranks";
    assert_eq!(error, format!("p.toml:{line}: {expected}"));
}

/// SEMANTICS 145. A head for one token further is of new models that ranks have whole, and of files that have one.
#[test]
fn a_head_for_one_token_further_is_read_and_refused_by_name() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let line = text.lines().position(|line| line == "[pretrain]").unwrap() + 2;
    let of = |weight: &str, more: &str| {
        let text = text.replace("[pretrain]", &format!("[pretrain]\nmtp_weight = {weight}"));
        Source::new(Path::new("p.toml"), &format!("{text}\n{more}\n")).pretrain_recipe()
    };
    let read = of("0.5", "[parallel]\nzero = 3").unwrap();
    assert!((read.pretrain.mtp_weight - 0.5).abs() < f32::EPSILON);
    for (weight, more, expected) in [
        ("-0.1", "", "expected a number of at least 0, found -0.1"),
        ("nan", "", "expected a number of at least 0, found NaN"),
        (
            "0.3",
            "[vision]\npatch = 14",
            "a head for one token further goes with no pictures",
        ),
    ] {
        let error = of(weight, more).unwrap_err().to_string();
        assert_eq!(
            error.find(expected),
            Some(format!("p.toml:{line}: ").len()),
            "{error}"
        );
    }
    for (field, kind) in [("tp", "tensor"), ("pp", "pipeline"), ("cp", "context")] {
        let error = of("0.3", &format!("[parallel]\n{field} = 2"))
            .unwrap_err()
            .to_string();
        let expected = format!("cannot be shared by 2 {kind} ranks");
        assert!(
            error.contains("(multi-token prediction)") && error.contains(&expected),
            "{error}"
        );
        assert!(
            error.starts_with(&format!("p.toml:{}: ", text.lines().count() + 4)),
            "{error}"
        );
    }
}

/// Not every number is a share of numbers to drop.
#[test]
fn a_share_of_dropped_numbers_is_at_least_0_and_below_1() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let line = text.lines().position(|line| line == "[pretrain]").unwrap() + 2;
    let of = |dropout: &str| {
        let text = text.replace("[pretrain]", &format!("[pretrain]\n{dropout}"));
        let read = Source::new(Path::new("p.toml"), &text).pretrain_recipe();
        read.map(|recipe| recipe.pretrain.dropout)
    };
    assert_eq!(of("").unwrap(), 0.0);
    assert_eq!(of("dropout = 0.25").unwrap(), 0.25);
    for found in ["1.0", "-0.1", "nan"] {
        let error = of(&format!("dropout = {found}"));
        let expected = format!("p.toml:{line}: expected a number of at least 0 and below 1");
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&expected), "{error}");
    }
}

/// SEMANTICS 146, 153. One rank against which others are held reads parameters as these do.
#[test]
fn a_recipe_of_one_rank_reads_parameters_as_it_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let of = |parallel: &str| {
        let text = format!("{text}\n[parallel]\n{parallel}\n");
        let recipe = Source::new(Path::new("p.toml"), &text).pretrain_recipe();
        recipe.unwrap().of_one_rank().sharing()
    };
    assert_eq!(of("zero = 2"), Sharing::ALONE);
    let rounded = Sharing {
        params: Precision::Bf16,
        ..Sharing::ALONE
    };
    for zero in 0..4 {
        assert_eq!(of(&format!("zero = {zero}\nparams = \"bf16\"")), rounded);
    }
}

/// A plan that ranks cannot share is refused with the numbers, at its line.
#[test]
fn a_plan_that_ranks_cannot_share_is_refused_with_the_numbers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let refused = |changes: &[(&str, &str)], parallel: &str, line_of: &str| {
        let changed = changes.iter().fold(text.clone(), |text, (from, to)| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        let changed = changed + "\n[parallel]\n" + parallel + "\n";
        let error = Source::new(Path::new("p.toml"), &changed).pretrain_recipe();
        let error = error.unwrap_err().to_string();
        let line = changed.lines().position(|line| line == line_of).unwrap() + 1;
        let at = format!("p.toml:{line}: ");
        assert!(error.starts_with(&at), "{at}{error}");
        error[at.len()..].to_owned()
    };
    let four = ("ranks = 2", "ranks = 4");
    for (changes, parallel, line_of, expected) in [
        (
            &[][..],
            "zero = 4",
            "zero = 4",
            "4 is no stage of ZeRO: 0 shares nothing",
        ),
        (
            &[],
            "fsdp = 2",
            "fsdp = 2",
            "2 copies keep no shards together, since parallel.zero = 0 makes none",
        ),
        (
            &[],
            "zero = 1\nprefetch = 2",
            "prefetch = 2",
            "layers are gathered ahead of passes by ranks that keep shards, and parallel.zero = 1 makes none",
        ),
        (
            &[],
            "zero = 3\nprefetch = 0",
            "prefetch = 0",
            "0 is not from 1 to 256",
        ),
        (
            &[],
            "zero = 3\nprefetch = 4294967295",
            "prefetch = 4294967295",
            "4294967295 is not from 1 to 256",
        ),
        (
            &[four],
            "zero = 3\nfsdp = 3",
            "fsdp = 3",
            "sets of shards that 3 copies keep each cannot be made of 4 copies of the model",
        ),
        (
            &[("[pretrain]", "[pretrain]\noptimizer = \"adam8bit\"")],
            "tp = 2\nzero = 2",
            "optimizer = \"adam8bit\"",
            "\"adam8bit\" has scales of tiles of matrices, and tensor ranks (parallel.tp) have parts of them",
        ),
        (
            &[("[processes]", "[vision]\npatch = 14\n\n[processes]")],
            "zero = 3",
            "zero = 3",
            "a model that reads pictures cannot be shared by 2 sharding ranks",
        ),
        (&[], "tp = 0", "tp = 0", "at least 1 is needed"),
        (
            &[],
            "tp = 4",
            "tp = 4",
            "copies of the model on 4 ranks each (parallel.tp = 4) cannot be made of processes.ranks \
             = 2: let that be a multiple of 4",
        ),
        (
            &[four],
            "tp = 4",
            "tp = 4",
            "4 tensor ranks cannot share 2 key heads evenly",
        ),
        (
            &[("ffn = 384", "ffn = 385")],
            "tp = 2",
            "tp = 2",
            "2 tensor ranks cannot share 385 inner columns of a feed-forward part evenly",
        ),
        (
            &[],
            "tp = 2\nzero = 1",
            "zero = 1",
            "ranks that have parts of the model (parallel.tp, ep, pp) do not share the optimiser",
        ),
        (
            &[("[pretrain]", "[pretrain]\noptimizer = \"muon\"")],
            "tp = 2",
            "optimizer = \"muon\"",
            "\"muon\" moves matrices as a whole",
        ),
        (
            &[(
                "[plan.microbatch]",
                "[plan.distribute]\naxis = \"world\"\n\n[plan.microbatch]",
            )],
            "tp = 2",
            "axis = \"world\"",
            "\"world\" gives samples of their own to ranks that train on the same (parallel.tp = 2)",
        ),
        (&[], "ep = 0", "ep = 0", "at least 1 is needed"),
        (
            &[],
            "pp_chunks = 0",
            "pp_chunks = 0",
            "at least 1 is needed",
        ),
        (
            &[("ranks = 2", "ranks = 8")],
            "pp = 8",
            "pp = 8",
            "8 stages are more than the 4 layers",
        ),
        (
            &[],
            "pp_chunks = 2",
            "pp_chunks = 2",
            "2 stages of each pipeline rank need several such ranks, and parallel.pp = 1 makes none",
        ),
        (
            &[],
            "pp = 2\npp_chunks = 2\npp_schedule = \"gpipe\"",
            "pp_chunks = 2",
            "2 stages of each pipeline rank are interleaved, which \"gpipe\" does not",
        ),
        (
            &[],
            "pp = 2\npp_chunks = 2\npp_schedule = \"zb_h1\"",
            "pp_chunks = 2",
            "2 stages of each pipeline rank are interleaved, which \"zb_h1\" does not",
        ),
        (
            &[],
            "pp = 2\nzero = 1",
            "zero = 1",
            "ranks that have parts of the model (parallel.tp, ep, pp) do not share the optimiser",
        ),
        (
            &[],
            "cp_kind = \"ring\"",
            "cp_kind = \"ring\"",
            "\"ring\" is a way of ranks that share the rows of a batch, and parallel.cp = 1 makes none",
        ),
        (
            &[],
            "cp = 2\ncp_kind = \"rings\"",
            "cp_kind = \"rings\"",
            "unknown variant `rings`, expected `ulysses` or `ring`",
        ),
        (
            &[four],
            "tp = 2\ncp = 4",
            "tp = 2",
            "copies of the model on 8 ranks each (parallel.tp = 2, parallel.cp = 4) cannot be made",
        ),
        (
            &[("ranks = 2", "ranks = 8")],
            "cp = 8",
            "cp = 8",
            "8 context ranks cannot share 4 query heads evenly",
        ),
        (
            &[],
            "ep = 2",
            "ep = 2",
            "2 expert ranks cannot share a model without experts",
        ),
        (
            &[("ffn = 384", "ffn = 384\nblock = { moe = { experts = 3 } }")],
            "ep = 2",
            "ep = 2",
            "2 expert ranks cannot share 3 experts evenly",
        ),
        (
            &[("ffn = 384", "ffn = 384\nblock = { moe = { experts = 4 } }")],
            "zero = 1\nep = 2",
            "zero = 1",
            "ranks that have parts of the model",
        ),
        (
            &[(
                "[plan.microbatch]",
                "[plan.distribute]\naxis = \"context\"\n\n[plan.microbatch]",
            )],
            "cp = 2",
            "axis = \"context\"",
            "\"context\" gives samples of their own",
        ),
        (
            &[("[processes]", "[vision]\npatch = 14\n\n[processes]")],
            "cp = 2",
            "cp = 2",
            "a model that reads pictures cannot be shared by 2 context ranks",
        ),
        (
            &[("[processes]", "[vision]\npatch = 14\n\n[processes]")],
            "tp = 2",
            "tp = 2",
            "a model that reads pictures cannot be shared by 2 tensor ranks",
        ),
    ] {
        let said = refused(changes, parallel, line_of);
        assert!(said.starts_with(expected), "{said}");
    }
    let good = text.clone() + "\n[parallel]\ntp = 2\n";
    let good = Source::new(Path::new("p.toml"), &good).pretrain_recipe();
    assert_eq!(good.unwrap().parallel.tp, 2);
    // Of fields that contradict each other the one that was given beside the file is to blame.
    let file = Source::new(
        Path::new("p.toml"),
        &(text.clone() + "\n[parallel]\ntp = 2\n"),
    );
    for field in ["parallel.pp=16", "processes.ranks=3"] {
        let refused = file.clone().with(field).unwrap().pretrain_recipe();
        let said = refused.unwrap_err().to_string();
        let expected = format!("--set {field}: copies of the model on ");
        assert!(said.starts_with(&expected), "{said}");
    }
}

/// A contradiction to another field is reported before anything starts.
#[test]
fn an_algorithm_without_what_it_needs_is_refused() {
    let refused = |algorithm: &str, more: &str, end: &str| {
        let text = GOOD.replace("\"grpo\"", &format!("\"{algorithm}\"\n{more}")) + end;
        let error = Recipe::parse(Path::new("a.toml"), &text).unwrap_err();
        error.to_string()
    };
    let length = "\n[cost]\nrule = \"length\"\nlimit = 0.5\n";
    let text = "\n[cost]\nrule = \"text\"\nlimit = 0.5\n";
    for (algorithm, more, end, expected) in [
        ("safe_rlhf", "", "", "needs a table [cost]"),
        ("safe_rlhf", "", text, "needs the text that costs"),
        (
            "grpo",
            "",
            length,
            "[cost] is for algorithm = \"safe_rlhf\" alone",
        ),
        (
            "grpo",
            "value_steps = 3",
            "",
            "which this algorithm does not have",
        ),
        (
            "ppo",
            "minibatches = 3",
            "",
            "minibatches = 3 must divide groups",
        ),
        ("dapo", "refill = -1", "", "refill: expected"),
        ("grpo", "kl_estimator = \"k2\"", "", "expected kl above 0"),
        (
            "ppo",
            "kl = 0.1\nkl_estimator = \"k1\"",
            "",
            "expected \"k2\" or \"k3\"",
        ),
    ] {
        let error = refused(algorithm, more, end);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn models_are_placed_in_synchronous_runs_that_generate_by_themselves() {
    let late = error(&format!("{GOOD}\n[placement]\nmodels = \"split\"\n"));
    assert!(late.starts_with("r.toml:"), "{late}");
    assert!(late.contains("expected [rl] staleness_max = 0"), "{late}");
    let ranks = error(&format!("{GOOD}\n[placement]\nranks = 2\n"));
    assert!(ranks.contains("expected models = \"auto\""), "{ranks}");
    let card = error(&format!("{GOOD}\n[placement]\ncard = \"h100\"\n"));
    assert!(card.contains("models = \"auto\" predicts"), "{card}");
    let word = error(&format!("{GOOD}\n[placement]\nmodels = \"apart\"\n"));
    assert!(word.contains("\"standalone\""), "{word}");
    let synchronous = GOOD.replace("steps = 3", "steps = 3\nstaleness_max = 0");
    let placed = format!("{synchronous}\n[placement]\nmodels = \"standalone\"\nranks = 4\n");
    let recipe = Recipe::parse(Path::new("r.toml"), &placed).unwrap();
    assert_eq!(
        recipe.placement.models,
        Some(Choice::Arranged(Arrangement::Standalone))
    );
    assert_eq!(recipe.rl.program(), Program::Grpo);
    let refilled = placed.replace("grpo", "dapo");
    let recipe = Recipe::parse(Path::new("r.toml"), &refilled).unwrap();
    assert_eq!(recipe.rl.program(), Program::Dapo { refill: 10 });
}

/// SEMANTICS 197. Plans of ranks that share models that are placed, by line.
#[test]
fn ranks_share_models_that_are_placed_or_are_refused_by_line() {
    let text = GOOD.replace("steps = 3", "steps = 3\nstaleness_max = 0");
    let placed = |models: &str, more: &str| {
        format!("{text}\n[placement]\nmodels = \"{models}\"\nranks = 4\n{more}")
    };
    let read = |text: &str| Recipe::parse(Path::new("r.toml"), text).unwrap();
    let whole = read(&placed("split", ""));
    assert_eq!(whole.sharing(), Sharing::ALONE);
    for arrangement in ["colocated", "split", "standalone"] {
        let shared = "[parallel]\ntp = 2\nzero = 3\n[processes]\nweights = \"bf16\"\n";
        let sharing = read(&placed(arrangement, shared)).sharing();
        assert_eq!((sharing.copies, sharing.tensor), (2, 2));
        assert_eq!(sharing.zero, ZeroStage::Parameters);
    }
    for (models, more, field, words) in [
        (
            "auto",
            "[parallel]\ntp = 2",
            "tp = 2",
            "whole on each rank: expected [placement]",
        ),
        (
            "split",
            "[parallel]\ntp = 3",
            "tp = 3",
            "cannot be made of placement.ranks = 4: let that be a multiple of 3",
        ),
        (
            "split",
            "[parallel]\nep = 2",
            "ep = 2",
            "2 expert ranks cannot share a model without experts",
        ),
        (
            "split",
            "[parallel]\ntp = 2\n[processes]\nranks = 2",
            "ranks = 2",
            "models that are placed have [placement] ranks",
        ),
        (
            "split",
            "[processes]\nweights = \"bf16\"",
            "weights = ",
            "or share them by [parallel]",
        ),
        (
            "split",
            "[parallel]\ntp = 2\n[processes]\nsend = \"changes\"",
            "send = ",
            "leave send out",
        ),
    ] {
        let text = placed(models, more);
        let message = error(&text);
        let line = text.lines().position(|line| line.starts_with(field));
        let at = format!("r.toml:{}: ", line.unwrap() + 1);
        assert!(message.starts_with(&at), "{more}: {message}");
        assert!(message.contains(words), "{more}: {message}");
    }
    let cut = placed("colocated", "[parallel]\ntp = 2\n");
    for (from, to, words) in [
        (
            "[model]",
            "[model]\nlora_rank = 4",
            "adapters are on whole matrices",
        ),
        (
            "ranks = 4",
            "ranks = 1",
            "cannot be made of placement.ranks = 1",
        ),
        (
            "name = \"a\"",
            "name = \"a\"\ndevice = \"cuda\"",
            "expected trainer_gpus = 1",
        ),
        (
            "name = \"a\"",
            "name = \"a\"\ndeterministic = true",
            "sums over ranks (parallel.tp, cp) have another order",
        ),
    ] {
        assert!(cut.contains(from), "{from}");
        let message = error(&cut.replacen(from, to, 1));
        assert!(message.contains(words), "{to}: {message}");
    }
    // Models in the processes of the policy have its cards.
    let cards = cut.replacen("name = \"a\"", "name = \"a\"\ndevice = \"cuda\"", 1);
    let cards = cards.replacen("ranks = 4", "ranks = 4\ntrainer_gpus = 1", 1);
    read(&cards.replacen("\"grpo\"", "\"ppo\"", 1));
    let apart = cards.replacen("colocated", "split", 1);
    let apart = error(&apart.replacen("\"grpo\"", "\"ppo\"", 1));
    assert!(apart.contains("expected scorer_gpus = 1"), "{apart}");
}

#[test]
fn a_learned_reward_is_read_and_what_does_not_go_with_it_is_refused() {
    let learned = |text: &str| {
        let text = format!("{GOOD}[reward]\n{text}");
        let recipe = Recipe::parse(Path::new("r.toml"), &text).unwrap();
        recipe.reward.learned("there".into(), None)
    };
    assert_eq!(learned(""), None);
    assert_eq!(learned("by = \"checker\""), None);
    let model = learned("by = \"model\"").unwrap();
    assert_eq!((model.blend.model, model.model.steps), (1.0, 200));
    assert_eq!(model.model.kind, RewardKind::Scalar);
    let both = learned("by = \"both\"\nkind = \"pairwise\"\nsteps = 7\nbatch = 3\nlr = 0.5");
    let both = both.unwrap();
    assert_eq!((both.blend.model, both.model.steps), (0.5, 7));
    assert_eq!(both.model.kind, RewardKind::Pairwise);
    let weighed = learned("by = \"both\"\nweight = 0.25").unwrap();
    assert_eq!(weighed.blend.of(1.0, 0.0), 0.75);
    for (text, line, words) in [
        (
            "by = \"judge\"",
            16,
            "one of \"checker\", \"model\", \"both\"",
        ),
        (
            "kind = \"scalar\"",
            16,
            "kind is of a reward model: leave it out",
        ),
        (
            "by = \"checker\"\nsteps = 5",
            17,
            "steps is of a reward model",
        ),
        (
            "by = \"model\"\nsteps = 0",
            17,
            "from 1 to 1000000000, found 0",
        ),
        ("by = \"model\"\nweight = 0.5", 17, "expected by = \"both\""),
        ("by = \"both\"\nweight = 1.5", 17, "at most 1, found 1.5"),
        (
            "by = \"model\"\nload = \"runs/b\"\nlr = 0.1",
            18,
            "load names a model that has learnt already: leave lr out",
        ),
        ("by = \"model\"\nlode = \"x\"", 17, "[reward] has by, kind"),
    ] {
        let told = error(&format!("{GOOD}[reward]\n{text}\n"));
        assert!(
            told.starts_with(&format!("r.toml:{line}: ")),
            "{text}: {told}"
        );
        assert!(told.contains(words), "{text}: {told}");
    }
    let placed = "by = \"model\"\n[placement]\nmodels = \"auto\"\n";
    let placed = format!("{GOOD}staleness_max = 0\n[reward]\n{placed}");
    let told = error(&placed);
    assert!(
        told.contains("does not know what a reward model costs"),
        "{told}"
    );
}

#[test]
fn a_reward_model_has_room_for_what_it_reads() {
    let room = |context: usize, reward: &str| {
        let text = GOOD.replace("[model]", &format!("[model]\ncontext = {context}"));
        Recipe::parse(Path::new("r.toml"), &format!("{text}[reward]\n{reward}\n")).is_ok()
    };
    let least = |reward: &str| (1..64).find(|context| room(*context, reward)).unwrap();
    let plain = least("");
    assert_eq!(least("by = \"model\""), plain + 1);
    assert_eq!(least("by = \"model\"\nkind = \"pairwise\""), plain + 10);
}

/// A recipe of pretraining chooses a block in the same words.
#[test]
fn a_block_of_experts_is_chosen_and_a_wrong_one_is_named() {
    use odeon_algorithms::model::{LayerBlock, Moe};

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
    let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
    let of = |block: &str| {
        let text = text.replace("[model]", &format!("[model]\nblock = {block}"));
        Source::new(Path::new("p.toml"), &text).pretrain_recipe()
    };
    let plain = LayerBlock::Moe(Moe::default());
    assert_eq!(of("\"moe\"").unwrap().model.block, plain);
    let set = of("{ moe = { experts = 4, experts_per_token = 1 } }").unwrap();
    let experts = LayerBlock::Moe(Moe {
        experts: 4,
        experts_per_token: 1,
    });
    assert_eq!(set.model.block, experts);
    for (block, expected) in [
        (
            "{ moe = { experts = 4, experts_per_token = 5 } }",
            "moe.experts_per_token: expected a whole number from 1 to the number of experts, found 5",
        ),
        (
            "\"dense\"",
            "unknown variant `dense`, expected one of `mlp`, `moe`, `gelu`",
        ),
        ("{ moe = { top = 2 } }", "unknown field `top`"),
        (
            "\"gelu\"",
            "kv_heads = 2 must be heads = 4 with the block \"gelu\", as in GPT-2",
        ),
    ] {
        let error = of(block).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
