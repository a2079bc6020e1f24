//! Every field of a recipe with its range, and the check of a file against them. One table serves
//! the check, its messages and the test that `docs/recipes.md` tells the same.

use std::fmt;

use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::objective::Surrogate;
use odeon_algorithms::setting::Chosen;
use odeon_algorithms::train::{Optimizer, PipelineKind};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One field.
pub(super) struct Field {
    table: &'static str,
    name: &'static str,
    needed: bool,
    range: Range,
}

/// The values that a field may hold.
enum Range {
    Whole(i64, i64),
    Number(f64, f64, Ends),
    Word(&'static [&'static str]),
    /// A word, or a table with it and settings of what it names.
    Chosen(&'static [&'static str]),
    /// Letters, digits, `-` and `_`.
    Name,
    /// Not empty.
    Text,
    /// At least one address of a server.
    Addresses,
    /// Whole numbers that are at least 1.
    Counts,
    /// Tables in a row, which are read by what they belong to.
    Tables,
    /// `true` or `false`.
    Flag,
    /// A table of settings, which its reader checks.
    Table,
}

/// Which ends belong to a range of numbers.
enum Ends {
    Both,
    Low,
    High,
}

const fn field(table: &'static str, name: &'static str, range: Range) -> Field {
    Field {
        table,
        name,
        needed: false,
        range,
    }
}

const fn needed(table: &'static str, name: &'static str, range: Range) -> Field {
    Field {
        table,
        name,
        needed: true,
        range,
    }
}

/// In the order of the document.
pub(super) const FIELDS: &[Field] = &[
    needed("run", "name", Range::Name),
    field("run", "seed", Range::Whole(0, i64::MAX)),
    field("run", "out", Range::Text),
    field("run", "device", Range::Text),
    field("run", "deterministic", Range::Flag),
    field("run", "products", Range::Word(&["f32", "bf16"])),
    field("model", "load", Range::Text),
    field("model", "hidden", Range::Whole(2, 16_384)),
    field("model", "layers", Range::Whole(1, 256)),
    field("model", "heads", Range::Whole(1, 256)),
    field("model", "kv_heads", Range::Whole(1, 256)),
    field("model", "ffn", Range::Whole(1, 65_536)),
    field("model", "block", Range::Chosen(LayerBlock::WORDS)),
    field("model", "width", Range::Table),
    field("model", "context", Range::Whole(2, 131_072)),
    field("model", "lora_rank", Range::Whole(0, 16_384)),
    field(
        "task.sums",
        "form",
        Range::Word(&["compact", "steps", "spoken", "tool", "program"]),
    ),
    field("task.sums", "operands_min", Range::Whole(2, 16)),
    field("task.sums", "operands_max", Range::Whole(2, 16)),
    field("task.sums", "digits_min", Range::Whole(1, 15)),
    field("task.sums", "digits_max", Range::Whole(1, 15)),
    field("task.sums", "minus_percent", Range::Whole(0, 100)),
    field("task.sums", "format_reward", BELOW_ONE),
    field("task.sums", "aside", ASIDE),
    field("task.countdown", "style", Range::Word(&["plain", "chat"])),
    field("task.countdown", "numbers_min", Range::Whole(2, 8)),
    field("task.countdown", "numbers_max", Range::Whole(2, 8)),
    field("task.countdown", "number_min", Range::Whole(1, 1000)),
    field("task.countdown", "number_max", Range::Whole(1, 1000)),
    field("task.countdown", "target_min", Range::Whole(1, 1_000_000)),
    field("task.countdown", "target_max", Range::Whole(1, 1_000_000)),
    field("task.countdown", "format_reward", BELOW_ONE),
    field("task.countdown", "aside", ASIDE),
    needed("task.gsm8k", "path", Range::Text),
    field("task.gsm8k", "train_count", Range::Whole(1, 1_000_000)),
    field("task.gsm8k", "format_reward", BELOW_ONE),
    field("task.gsm8k", "aside", ASIDE),
    field("task.gsm8k", "on_bad", ON_BAD),
    field("task.gsm8k", "prompt_bytes_max", PROMPT_BYTES),
    needed("task.maths", "path", Range::Text),
    field("task.maths", "format_reward", BELOW_ONE),
    field("task.maths", "aside", ASIDE),
    field("task.maths", "on_bad", ON_BAD),
    field("task.maths", "prompt_bytes_max", PROMPT_BYTES),
    needed("task.code", "path", Range::Text),
    field("task.code", "train_count", Range::Whole(1, 1_000_000)),
    field(
        "task.code",
        "credit",
        Range::Word(&["all_or_nothing", "fraction"]),
    ),
    field("task.code", "style", Range::Word(&["chat", "plain"])),
    field("task.code", "aside", ASIDE),
    field("sandbox", "isolation", Range::Word(&["required", "limits"])),
    field("sandbox", "workers", Range::Whole(1, 1024)),
    field("sandbox", "seconds", Range::Number(0.0, 3600.0, Ends::High)),
    field(
        "sandbox",
        "cpu_seconds",
        Range::Number(0.0, 3600.0, Ends::High),
    ),
    field("sandbox", "memory_mib", Range::Whole(16, 1_048_576)),
    field("sandbox", "processes", Range::Whole(1, 4096)),
    field("sandbox", "file_mib", Range::Whole(1, 65_536)),
    field("sandbox", "output_kib", Range::Whole(1, 1_048_576)),
    needed(
        "environment",
        "tool",
        Range::Word(&["calculator", "python"]),
    ),
    field("environment", "turns_max", Range::Whole(1, 1024)),
    field("environment", "observation_max", Range::Whole(1, 65_536)),
    field(
        "environment",
        "call_seconds",
        Range::Number(0.0, 3600.0, Ends::High),
    ),
    field(
        "environment",
        "latency_ms",
        Range::Number(0.0, 3_600_000.0, Ends::Both),
    ),
    field(
        "environment",
        "latency_sigma",
        Range::Number(0.0, 10.0, Ends::Both),
    ),
    field(
        "environment",
        "latency_max_ms",
        Range::Number(0.0, 3_600_000.0, Ends::High),
    ),
    field("warmup", "steps", Range::Whole(0, STEPS_MAX)),
    field("warmup", "batch", Range::Whole(1, 65_536)),
    field("warmup", "lr", FRACTION),
    needed(
        "rl",
        "algorithm",
        Range::Word(&[
            "grpo",
            "dr_grpo",
            "dapo",
            "gspo",
            "rloo",
            "remax",
            "reinforce++",
            "ppo",
            "vapo",
            "safe_rlhf",
        ]),
    ),
    needed("rl", "steps", Range::Whole(1, STEPS_MAX)),
    needed("rl", "groups", Range::Whole(1, 65_536)),
    needed("rl", "group_size", Range::Whole(2, 65_536)),
    needed("rl", "lr", FRACTION),
    field("rl", "schedule", Range::Word(&["constant", "cosine"])),
    field("rl", "optimizer", Range::Chosen(Optimizer::WORDS)),
    field(
        "rl",
        "recompute",
        Range::Word(&["nothing", "feed_forward", "layers"]),
    ),
    field("rl", "offload", Range::Flag),
    field("rl", "staleness_max", Range::Whole(0, 1000)),
    field("rl", "publish_every", Range::Whole(1, 1001)),
    field(
        "rl",
        "sampler",
        Range::Word(&["fifo", "freshest", "oldest", "spread"]),
    ),
    field(
        "rl",
        "swap",
        Range::Word(&["overlap", "drain", "interrupt"]),
    ),
    field(
        "rl",
        "repack_seconds",
        Range::Number(0.0, 3600.0, Ends::Both),
    ),
    field("rl", "temperature", Range::Number(0.0, 10.0, Ends::High)),
    field("rl", "top_p", FRACTION),
    needed("rl", "response_max", Range::Whole(1, 131_071)),
    field("rl", "objective", Range::Chosen(Surrogate::WORDS)),
    field("rl", "clip_low", FRACTION),
    field("rl", "clip_high", Range::Number(0.0, 10.0, Ends::High)),
    field("rl", "importance_cap", WEIGHT),
    field("rl", "positive", WEIGHT),
    field("rl", "overlong", Range::Whole(0, 131_071)),
    field("rl", "refill", Range::Whole(0, 1000)),
    field("rl", "kl", WEIGHT),
    field("rl", "kl_estimator", Range::Word(&["k1", "k2", "k3"])),
    field("rl", "entropy", WEIGHT),
    field("rl", "epochs", Range::Whole(1, 100)),
    field("rl", "minibatches", Range::Whole(1, 65_536)),
    field("rl", "pretrain", WEIGHT),
    field("rl", "gamma", FRACTION),
    field("rl", "lambda", FRACTION),
    field("rl", "lambda_alpha", FRACTION),
    field("rl", "value_steps", Range::Whole(0, STEPS_MAX)),
    field("rl", "critic_lr", FRACTION),
    field("rl", "checkpoint_every", Range::Whole(1, STEPS_MAX)),
    needed("cost", "rule", Range::Word(&["length", "text"])),
    field("cost", "text", Range::Text),
    needed("cost", "limit", Range::Number(0.0, 1.0, Ends::Both)),
    field("cost", "price", Range::Number(0.0, 1000.0, Ends::High)),
    field("cost", "rate", Range::Number(0.0, 10.0, Ends::Both)),
    field("reward", "by", Range::Word(&["checker", "model", "both"])),
    field("reward", "kind", Range::Word(&["scalar", "pairwise"])),
    field("reward", "steps", Range::Whole(1, STEPS_MAX)),
    field("reward", "batch", Range::Whole(1, 65_536)),
    field("reward", "lr", FRACTION),
    field("reward", "load", Range::Text),
    field("reward", "weight", FRACTION),
    field("rollout", "engine", Range::Word(&["own", "vllm", "sglang"])),
    field("rollout", "urls", Range::Addresses),
    field("rollout", "api_key_env", Range::Text),
    field("rollout", "weights_dir", Range::Text),
    field("processes", "rollouts", Range::Whole(1, 64)),
    field("processes", "relays", Range::Whole(1, 64)),
    field("processes", "weights", Range::Word(&["f32", "bf16"])),
    field("processes", "send", Range::Word(&["whole", "changes"])),
    field("processes", "slots", Range::Whole(1, 4096)),
    field("processes", "rollout_threads", Range::Whole(1, 1024)),
    field("processes", "ranks", Range::Whole(1, 4096)),
    field("processes", "trainer_threads", Range::Whole(1, 1024)),
    field("parallel", "zero", Range::Whole(0, 3)),
    field("parallel", "fsdp", Range::Whole(0, 4096)),
    field("parallel", "params", Range::Word(&["f32", "bf16"])),
    field("parallel", "prefetch", Range::Whole(1, 256)),
    field("parallel", "tp", Range::Whole(1, 4096)),
    field("parallel", "cp", Range::Whole(1, 4096)),
    field("parallel", "cp_kind", Range::Word(&["ulysses", "ring"])),
    field("parallel", "ep", Range::Whole(1, 4096)),
    field("parallel", "pp", Range::Whole(1, 4096)),
    field("parallel", "pp_chunks", Range::Whole(1, 256)),
    field("parallel", "pp_schedule", Range::Word(&PipelineKind::WORDS)),
    field("parallel", "stages", Range::Counts),
    field("parallel", "place", Range::Tables),
    field(
        "placement",
        "models",
        Range::Word(&["auto", "colocated", "split", "standalone"]),
    ),
    field("placement", "ranks", Range::Whole(1, 256)),
    field(
        "placement",
        "card",
        Range::Word(&["a100", "h100", "h200", "h800"]),
    ),
    field("placement", "trainer_gpus", Range::Whole(0, 128)),
    field("placement", "rollout_gpus", Range::Whole(0, 128)),
    field("placement", "scorer_gpus", Range::Whole(0, 128)),
    field("placement", "device_memory_gib", Range::Whole(0, 65_536)),
    field("placement", "trainer_cpus", CORES),
    field("placement", "rollout_cpus", CORES),
    field("placement", "wait_seconds", Range::Whole(0, 1_000_000)),
    field("recovery", "still", RESPONSE),
    field("recovery", "slow", RESPONSE),
    field(
        "recovery",
        "hang_seconds",
        Range::Number(1.0, 1e6, Ends::Both),
    ),
    field("eval", "problems", Range::Whole(1, 1_000_000)),
    field("eval", "every", Range::Whole(0, STEPS_MAX)),
];

const FRACTION: Range = Range::Number(0.0, 1.0, Ends::High);
const ASIDE: Range = Range::Word(&["held_out", "choice"]);
const ON_BAD: Range = Range::Word(&["fail", "skip"]);
const PROMPT_BYTES: Range = Range::Whole(1, 1_048_576);
const BELOW_ONE: Range = Range::Number(0.0, 1.0, Ends::Low);
const WEIGHT: Range = Range::Number(0.0, 100.0, Ends::Both);
const CORES: Range = Range::Number(0.0, 1024.0, Ends::Both);
const RESPONSE: Range = Range::Word(&["act", "tell"]);
const STEPS_MAX: i64 = 1_000_000_000;

/// Tables that must be there; of the tasks, one.
const NEEDED: [&str; 4] = ["run", "model", "task", "rl"];
const TABLES: [&str; 15] = [
    "run",
    "model",
    "task",
    "sandbox",
    "environment",
    "warmup",
    "rl",
    "cost",
    "reward",
    "rollout",
    "processes",
    "parallel",
    "placement",
    "recovery",
    "eval",
];
const TASKS: [&str; 5] = [
    "task.sums",
    "task.countdown",
    "task.gsm8k",
    "task.maths",
    "task.code",
];

/// The least that a recipe needs, for whoever begins with an empty file.
const LEAST: &str = "a recipe needs at least [run] with name, [model], one of [task.sums], \
                     [task.countdown], [task.gsm8k], [task.maths] and [task.code], and [rl] with \
                     algorithm, steps, groups, group_size, lr and response_max";

/// A byte of the file, and what is wrong there.
pub(super) type Fault = (usize, String);

/// Faults, with those of what is not there apart: a misspelt field is missing as well, and the
/// word that stands there tells more.
#[derive(Default)]
struct Faults {
    wrong: Vec<Fault>,
    absent: Vec<Fault>,
}

/// The first fault of a file.
pub(super) fn check(recipe: &DeTable<'_>) -> Result<(), Fault> {
    let mut faults = Faults::default();
    for (key, value) in recipe {
        let name: &str = key.get_ref();
        if !TABLES.contains(&name) {
            let what = format!(
                "unknown table [{name}]: a recipe has [{}]",
                list(&TABLES, "], [")
            );
            faults.wrong.push((key.span().start, what));
        } else if name == "task" {
            check_task(key, value, &mut faults);
        } else {
            check_table(name, key, value, &mut faults);
        }
    }
    let absent = |table: &&&str| !recipe.iter().any(|(key, _)| key.get_ref() == **table);
    if let Some(table) = NEEDED.iter().find(absent) {
        let table = if *table == "task" { "task.sums" } else { table };
        faults
            .absent
            .push((0, format!("there is no [{table}]: {LEAST}")));
    }
    let first = |faults: Vec<Fault>| faults.into_iter().min_by_key(|(offset, _)| *offset);
    first(faults.wrong)
        .or_else(|| first(faults.absent))
        .map_or(Ok(()), Err)
}

fn check_task(key: &Spanned<DeStr<'_>>, value: &Spanned<DeValue<'_>>, faults: &mut Faults) {
    let tables = format!("[{}]", list(&TASKS, "], ["));
    let Some(tasks) = value.get_ref().as_table() else {
        faults
            .wrong
            .push((key.span().start, format!("expected one table of {tables}")));
        return;
    };
    if tasks.is_empty() {
        let what = format!("[task] is empty: expected one table of {tables}");
        faults.wrong.push((key.span().start, what));
    }
    let mut found: Vec<_> = tasks.iter().collect();
    found.sort_by_key(|(key, _)| key.span().start);
    for (index, (key, value)) in found.into_iter().enumerate() {
        let name = format!("task.{}", key.get_ref());
        if !TASKS.contains(&name.as_str()) {
            let what = format!("unknown task [{name}]: expected one of {tables}");
            faults.wrong.push((key.span().start, what));
        } else if index > 0 {
            let what = format!("[{name}] is a second task: expected one of {tables}");
            faults.wrong.push((key.span().start, what));
        } else {
            check_table(&name, key, value, faults);
        }
    }
}

fn check_table(
    table: &str,
    key: &Spanned<DeStr<'_>>,
    value: &Spanned<DeValue<'_>>,
    faults: &mut Faults,
) {
    let Some(values) = value.get_ref().as_table() else {
        let what = format!(
            "expected a table [{table}], found {}",
            found(value.get_ref())
        );
        faults.wrong.push((key.span().start, what));
        return;
    };
    let fields = || FIELDS.iter().filter(|field| field.table == table);
    for (name, value) in values {
        match fields().find(|field| field.name == name.get_ref()) {
            None => {
                let known: Vec<&str> = fields().map(|field| field.name).collect();
                let what = format!(
                    "unknown field `{}`: [{table}] has {}",
                    name.get_ref(),
                    known.join(", ")
                );
                faults.wrong.push((name.span().start, what));
            }
            Some(field) if !field.range.holds(value.get_ref()) => {
                let what = format!(
                    "{}: expected {}, found {}",
                    field.name,
                    field.range,
                    found(value.get_ref())
                );
                faults.wrong.push((name.span().start, what));
            }
            Some(_) => {}
        }
    }
    for field in fields().filter(|field| field.needed) {
        if !values.iter().any(|(name, _)| name.get_ref() == field.name) {
            let what = format!("missing field `{}`: expected {}", field.name, field.range);
            faults.absent.push((key.span().start, what));
            // One is enough, in the order of the document.
            break;
        }
    }
}

impl Range {
    fn holds(&self, value: &DeValue<'_>) -> bool {
        let integer = || {
            let integer = value.as_integer()?;
            i64::from_str_radix(integer.as_str(), integer.radix()).ok()
        };
        match self {
            Self::Whole(low, high) => integer().is_some_and(|n| (*low..=*high).contains(&n)),
            Self::Number(low, high, ends) => {
                let float = value.as_float().and_then(|x| x.as_str().parse().ok());
                let number = float.or_else(|| integer().map(|n| n as f64));
                number.is_some_and(|x: f64| match ends {
                    Ends::Both => *low <= x && x <= *high,
                    Ends::Low => *low <= x && x < *high,
                    Ends::High => *low < x && x <= *high,
                })
            }
            Self::Word(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Chosen(words) => match value.as_table() {
                None => value.as_str().is_some_and(|text| words.contains(&text)),
                // Settings are read by what they belong to.
                Some(table) => {
                    let mut names = table.iter().map(|(name, _)| name.get_ref());
                    table.len() == 1 && names.all(|name| words.contains(&name.as_ref()))
                }
            },
            Self::Name => value.as_str().is_some_and(|text| {
                let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                (1..=NAME_MAX).contains(&text.len()) && text.chars().all(plain)
            }),
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::Flag => value.as_bool().is_some(),
            Self::Table => value.as_table().is_some(),
            Self::Counts => value.as_array().is_some_and(|all| {
                let is_one = |it: &Spanned<DeValue<'_>>| Self::Whole(1, 65_536).holds(it.get_ref());
                all.iter().all(is_one)
            }),
            Self::Tables => value.as_array().is_some_and(|all| {
                let is_one = |it: &Spanned<DeValue<'_>>| it.get_ref().as_table().is_some();
                all.iter().all(is_one)
            }),
            Self::Addresses => value.as_array().is_some_and(|all| {
                let address = |text: &str| {
                    let rest = text
                        .strip_prefix("http://")
                        .or_else(|| text.strip_prefix("https://"));
                    rest.is_some_and(|rest| !rest.trim_matches('/').is_empty())
                };
                let is_one = |it: &Spanned<DeValue<'_>>| it.get_ref().as_str().is_some_and(address);
                !all.is_empty() && all.iter().all(is_one)
            }),
        }
    }

    /// As the document writes it.
    #[cfg(test)]
    fn in_short(&self) -> String {
        match self {
            Self::Whole(low, i64::MAX) => format!("{low} to 2^63-1"),
            Self::Whole(low, high) => format!("{low} to {high}"),
            Self::Number(low, high, Ends::Both) => format!("{low} to {high}"),
            Self::Number(low, high, Ends::Low) => format!("{low} to below {high}"),
            Self::Number(low, high, Ends::High) => format!("above {low}, at most {high}"),
            Self::Word(words) | Self::Chosen(words) => {
                format!("`\"{}\"`", list(words, "\"`, `\""))
            }
            Self::Name => "letters, digits, `-`, `_`".to_owned(),
            Self::Text => String::new(),
            Self::Flag => "`true`, `false`".to_owned(),
            Self::Table => "a table".to_owned(),
            Self::Counts => "a list of whole numbers".to_owned(),
            Self::Tables => "tables in a row".to_owned(),
            Self::Addresses => "a list of `http://` or `https://` addresses".to_owned(),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(low, i64::MAX) => write!(f, "a whole number from {low} to 2^63-1"),
            Self::Whole(low, high) => write!(f, "a whole number from {low} to {high}"),
            Self::Number(low, high, Ends::Both) => write!(f, "a number from {low} to {high}"),
            Self::Number(low, high, Ends::Low) => {
                write!(f, "a number of at least {low} and below {high}")
            }
            Self::Number(low, high, Ends::High) => {
                write!(f, "a number above {low} and at most {high}")
            }
            Self::Flag => write!(f, "true or false"),
            Self::Table => write!(f, "a table"),
            Self::Counts => write!(f, "a list of whole numbers from 1 to 65536"),
            Self::Tables => write!(f, "tables in a row, [[parallel.place]]"),
            Self::Word([one, two]) => write!(f, "\"{one}\" or \"{two}\""),
            Self::Word(words) => write!(f, "one of \"{}\"", list(words, "\", \"")),
            Self::Chosen(words) => write!(
                f,
                "one of \"{}\", or a table of one with its settings, {{ {} = {{ .. }} }}",
                list(words, "\", \""),
                words[words.len() - 1]
            ),
            Self::Name => write!(
                f,
                "a name of 1 to {NAME_MAX} letters, digits, '-' and '_' in quotes"
            ),
            Self::Text => f.write_str("a text in quotes that is not empty"),
            Self::Addresses => {
                f.write_str("a list of addresses, [\"http://host:port\"], one for each rollout")
            }
        }
    }
}

/// A value as a message shows it, on one line.
fn found(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("{text:?}"),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(truth) => truth.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn list(words: &[&str], between: &str) -> String {
    words.join(between)
}

/// Folders take no longer names everywhere.
const NAME_MAX: usize = 100;

type DeStr<'i> = toml::de::DeString<'i>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_tells_every_field_with_its_range() {
        let document = include_str!("../../../docs/recipes.md");
        let mut table = "";
        let mut rows = vec![];
        for line in document.lines() {
            let names_table = line.starts_with("## ") || line.contains("]`: ");
            if names_table && let Some((_, rest)) = line.split_once("`[") {
                table = rest.split(']').next().unwrap();
            }
            if let Some(cells) = line.strip_prefix("| `") {
                let (name, rest) = cells.split_once("` |").unwrap();
                rows.push((table, name, rest));
            }
        }
        let told: Vec<_> = rows
            .iter()
            .map(|(table, name, _)| (*table, *name))
            .collect();
        let known: Vec<_> = FIELDS
            .iter()
            .map(|field| (field.table, field.name))
            .collect();
        assert_eq!(told, known);
        for (field, (_, name, rest)) in FIELDS.iter().zip(rows) {
            let range = field.range.in_short();
            assert!(rest.contains(&range), "{name}: {range}: {rest}");
            let has_default = !rest.split(" |").next().unwrap().trim().is_empty();
            assert_eq!(has_default, !field.needed, "{name}: {rest}");
        }
    }
}
