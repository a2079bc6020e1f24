//! `odeon data`: what a run would have of its data, and what is odd about them.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use odeon_actors::engine::compute::read_tokenizer;
use odeon_actors::recipe::Source;
use odeon_algorithms::tokenizer::Tokenizer;
use odeon_data::check::{Examined, examine};
use odeon_data::sample::Sample;
use odeon_data::source::{Csv, Fields, Format, Opening, SourceSpec, Text, Webdataset};
use serde::Deserialize;
use serde_json::json;

use crate::args::{DataCheckArgs, DataCommand};
use crate::figures;
use crate::print;
use crate::waiter::Waiter;

pub(crate) fn run(command: &DataCommand) -> Result<ExitCode> {
    let DataCommand::Check(args) = command;
    let Checked {
        sources,
        tokenizer,
        cache,
    } = checked(args)?;
    let opening = Opening::new(tokenizer.clone(), args.cache.clone().unwrap_or(cache));
    let runtime = Waiter::with_threads()?;
    let mut odd = false;
    for spec in &sources {
        let mut shown = Vec::new();
        let found = runtime.block_on(examine(spec, &opening, |sample| {
            if shown.len() < args.tokens.unwrap_or(0) {
                shown.push(sample.clone());
            }
        }));
        let found = found.unwrap_or_else(|error| Examined {
            refused: Some(error.to_string()),
            ..Examined::default()
        });
        odd |= found.is_odd();
        match args.json {
            true => print::line(row(spec, &found, &shown))?,
            false => tell(spec, &found, &shown, &tokenizer)?,
        }
    }
    Ok(ExitCode::from(u8::from(odd)))
}

/// The sources to read, and the means to do it.
struct Checked {
    sources: Vec<SourceSpec>,
    tokenizer: Tokenizer,
    cache: PathBuf,
}

fn checked(args: &DataCheckArgs) -> Result<Checked> {
    if args.source.ends_with(".toml") {
        if args.format.is_some() {
            bail!("a recipe says which format its sources have: leave --format out");
        }
        if args.tokenizer.is_some() {
            bail!("a recipe says which tokenizer it has: leave --tokenizer out");
        }
        let source = Source::read(Path::new(&args.source))?;
        if !source.pretrains() {
            bail!(
                "{} has no [[source]]: it is no recipe of pretraining; `odeon run --check` reads the \
                 problems of another",
                args.source
            );
        }
        let recipe = source.pretrain_recipe()?;
        let plan = recipe.plan(recipe.folder().join(super::run::folder::CHECKPOINT));
        let plan = plan.map_err(|failure| anyhow::anyhow!("{failure}"))?;
        return Ok(Checked {
            sources: recipe.sources,
            tokenizer: plan.tokenizer,
            cache: plan.data.cache,
        });
    }
    let format = match &args.format {
        Some(format) => said(format)?,
        None => by_name(&args.source)?,
    };
    Ok(Checked {
        sources: vec![SourceSpec::new(&args.source, &args.source, format)],
        tokenizer: match &args.tokenizer {
            None => Tokenizer::bytes(),
            Some(name) => {
                let own = PathBuf::from(name);
                // A tokenizer may lie without a model.
                let path = match own.exists() {
                    true => own,
                    false => super::model::find(name)?,
                };
                read_tokenizer(&path)
                    .map_err(|failure| anyhow::anyhow!("--tokenizer {name}: {failure}"))?
            }
        },
        cache: PathBuf::from("models/cache"),
    })
}

/// The format that a recipe would have in this way.
fn said(format: &str) -> Result<Format> {
    #[derive(Deserialize)]
    struct Said {
        format: Format,
    }
    let said: Said = toml::from_str(&format!("format = {format}"))
        .with_context(|| format!("--format is as in a recipe, and `{format}` is not"))?;
    Ok(said.format)
}

fn by_name(name: &str) -> Result<Format> {
    let plain = [".gz", ".zst"]
        .iter()
        .find_map(|ending| name.strip_suffix(ending))
        .unwrap_or(name);
    Ok(match plain.rsplit('.').next() {
        Some("jsonl" | "ndjson" | "json") => Format::Jsonl(Fields::default()),
        Some("parquet") => Format::Parquet(Fields::default()),
        Some("csv") => Format::Csv(Csv::default()),
        Some("tsv") => Format::Csv(Csv {
            delimiter: '\t',
            ..Csv::default()
        }),
        Some("txt" | "md") => Format::Text(Text::default()),
        Some("tar" | "tgz") => Format::Webdataset(Webdataset::default()),
        _ => bail!(
            "the name of {name} does not say which format it has: say it with --format, as in a recipe"
        ),
    })
}

fn row(spec: &SourceSpec, found: &Examined, shown: &[Sample]) -> serde_json::Value {
    let left_out = &found.left_out;
    let first = left_out.first.iter().map(|it| {
        json!({
            "file": it.file,
            "offset": it.offset,
            "record": it.record,
            "reason": it.reason.to_string(),
        })
    });
    let shown = shown.iter().map(|sample| {
        let learnt = runs(sample).into_iter().filter(|(is_learnt, _)| *is_learnt);
        let learnt: Vec<[usize; 2]> = learnt.map(|(_, run)| [run.start, run.end]).collect();
        json!({ "tokens": sample.tokens, "learnt": learnt })
    });
    json!({
        "source": spec.name,
        "path": spec.path,
        "files": found.files,
        "records": found.records,
        "samples": found.samples,
        "tokens": found.tokens,
        "predicted": found.predicted,
        "left_out": {
            "files": left_out.files,
            "others": left_out.others,
            "records": left_out.records,
            "bad": left_out.bad,
            "first": first.collect::<Vec<_>>(),
        },
        "refused": found.refused,
        "shown": shown.collect::<Vec<_>>(),
    })
}

/// The runs of a sample's tokens that are learnt, true, and read.
fn runs(sample: &Sample) -> Vec<(bool, Range<usize>)> {
    let mask: Vec<bool> = sample.mask().collect();
    let mut start = 0;
    let same = mask.chunk_by(|one, next| one == next);
    same.map(|run| {
        let own = start..start + run.len();
        start = own.end;
        (run[0], own)
    })
    .collect()
}

/// The text of tokens, special ones by their names.
fn readable(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let special = |token: u32| tokenizer.decode(&[token]).is_ok_and(|text| text.is_empty());
    let runs = tokens.chunk_by(|one, next| special(*one) == special(*next));
    let text = |run: &[u32]| match special(run[0]) {
        true => run.iter().map(|token| tokenizer.piece(*token)).collect(),
        false => tokenizer.decode_reply(run).unwrap_or_default(),
    };
    runs.map(text).collect()
}

fn tell(
    spec: &SourceSpec,
    found: &Examined,
    shown: &[Sample],
    tokenizer: &Tokenizer,
) -> Result<()> {
    print::line(format!(
        "{}: {} in {}, {} of {} tokens, of which {} are learnt",
        spec.name,
        figures::plural(found.records, "record"),
        figures::plural(u64::from(found.files), "file"),
        figures::plural(found.samples, "sample"),
        found.tokens,
        found.predicted
    ))?;
    for (sample, number) in shown.iter().zip(1..) {
        print::line(format!("  sample {number}"))?;
        for (is_learnt, run) in runs(sample) {
            let tokens = &sample.tokens[run];
            let what = if is_learnt { "learnt" } else { "read  " };
            let text = readable(tokenizer, tokens);
            print::line(format!("    {what} {text:?} {tokens:?}"))?;
        }
    }
    if !found.left_out.is_empty() {
        print::line(format!("  {}:", found.left_out))?;
        for skipped in &found.left_out.first {
            print::line(format!("    {skipped}"))?;
        }
    }
    if let Some(refused) = &found.refused {
        print::line(format!("  a run would end: {refused}"))?;
    }
    Ok(())
}
