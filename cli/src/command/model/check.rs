//! `odeon model check`: what would be used of a model's files, and what is odd.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use odeon_actors::engine::compute::{ModelDescription, read_model};
use odeon_algorithms::model::LayerBlock;
use odeon_algorithms::tokenizer::{Message, Tokenizer};
use odeon_algorithms::weights::ModelFields;
use serde_json::{Value, json};

use super::find;
use crate::args::ModelCheckArgs;
use crate::figures;
use crate::print;

/// Reads everything; gives 1 where something is odd.
pub(crate) fn run(args: &ModelCheckArgs) -> Result<ExitCode> {
    let path = find(&args.model)?;
    let described = ModelDescription::read(&path).map_err(|failure| anyhow!("{failure}"))?;
    read_model(&path).map_err(|failure| anyhow!("{failure}"))?;
    let text = args.text.as_deref().map(|text| (text, args.chat));
    let rows = tokens(&described.tokenizer, text)?;
    if args.json {
        print::line(format!("{:#}", as_json(&path, &described, &rows)))?;
    } else {
        shown(&path, &described, &rows)?;
    }
    Ok(ExitCode::from(u8::from(!described.notes.is_empty())))
}

/// Ids and texts of the tokens of a text.
fn tokens(tokenizer: &Tokenizer, text: Option<(&str, bool)>) -> Result<Vec<(u32, String)>> {
    let Some((text, chat)) = text else {
        return Ok(vec![]);
    };
    if chat && tokenizer.chat().is_none() {
        bail!("the tokenizer has no chat template: give the text without --chat");
    }
    let ids = match chat {
        true => tokenizer.encode_chat(&[Message::user(text)]),
        false => tokenizer.encode_whole(text),
    };
    let ids = ids.context("the tokenizer cannot read the text")?;
    Ok(ids.iter().map(|id| (*id, tokenizer.piece(*id))).collect())
}

fn shown(path: &Path, described: &ModelDescription, rows: &[(u32, String)]) -> Result<()> {
    let ModelDescription {
        fields,
        tokenizer,
        stored,
        notes,
    } = described;
    let parameters: usize = stored.values().sum();
    let stored = stored
        .iter()
        .map(|(name, count)| format!("{} in {name}", figures::short(*count as f64)));
    let named = |ids: &[u32]| match ids {
        [] => "nothing".to_owned(),
        ids => {
            let names = ids
                .iter()
                .map(|id| format!("{} ({id})", tokenizer.piece(*id)));
            names.collect::<Vec<_>>().join(", ")
        }
    };
    let chat = tokenizer.chat().map_or("none", |template| template.file());
    let table = [
        ("model", path.display().to_string()),
        ("family", family(fields)),
        ("parameters", figures::short(parameters as f64)),
        ("stored", stored.collect::<Vec<_>>().join(", ")),
        (
            "layers",
            format!(
                "{} of width {}, {} heads over {} of width {}",
                fields.layers, fields.hidden, fields.heads, fields.kv_heads, fields.head_width
            ),
        ),
        ("context", context(fields)),
        ("embedding", format!("{} rows", fields.vocabulary)),
        ("tokenizer", format!("{} ids", tokenizer.vocabulary())),
        ("before a text", named(tokenizer.before())),
        ("after a text", named(tokenizer.after())),
        ("ends of a reply", named(tokenizer.ends())),
        ("chat template", chat.to_owned()),
    ];
    let table = table.map(|(name, value)| vec![name.to_owned(), value]);
    print::table(&["what", "value"], &table)?;
    if !rows.is_empty() {
        print::line("")?;
        let rows: Vec<Vec<String>> = rows
            .iter()
            .map(|(id, piece)| vec![id.to_string(), piece.clone()])
            .collect();
        print::table(&["token", "text"], &rows)?;
    }
    for note in notes {
        print::say(format!("odd: {note}"));
    }
    Ok(())
}

fn family(fields: &ModelFields) -> String {
    let mut family = format!("{:?}", fields.family).to_lowercase();
    if matches!(fields.block, LayerBlock::Moe(_)) {
        family = "mixtral".to_owned();
    }
    let with = [
        (fields.qkv_bias, "biases before attention"),
        (fields.out_bias, "a bias behind it"),
        (fields.mlp_bias, "biases of the feed-forward part"),
        (fields.head_norms(), "norms of heads"),
        (fields.tied, "the embedding as head"),
        (fields.value_head, "a value head"),
        (fields.vision.is_some(), "an encoder of pictures"),
    ];
    let with: Vec<&str> = with.iter().filter(|it| it.0).map(|it| it.1).collect();
    match with.is_empty() {
        true => family,
        false => format!("{family} with {}", with.join(", ")),
    }
}

fn context(fields: &ModelFields) -> String {
    let mut text = format!("{} tokens", fields.longest());
    let scaling = fields.rope_scaling.name();
    if scaling != "none" {
        text = format!("{text}, positions stretched ({scaling})");
    }
    if let Some(window) = fields.window {
        text = format!(
            "{text}, a window of {} tokens from layer {} on",
            window.tokens, window.from_layer
        );
    }
    text
}

fn as_json(path: &Path, described: &ModelDescription, rows: &[(u32, String)]) -> Value {
    let ModelDescription {
        fields,
        tokenizer,
        stored,
        notes,
    } = described;
    let rows = rows
        .iter()
        .map(|(id, text)| json!({"id": id, "text": text}));
    json!({
        "model": path.display().to_string(),
        "family": family(fields),
        "parameters": stored.values().sum::<usize>(),
        "stored": stored,
        "context": fields.longest(),
        "rope_scaling": fields.rope_scaling.name(),
        "window": fields.window.map(|window| window.tokens),
        "embedding_rows": fields.vocabulary,
        "tokenizer_ids": tokenizer.vocabulary(),
        "before": tokenizer.before(),
        "after": tokenizer.after(),
        "ends": tokenizer.ends(),
        "chat_template": tokenizer.chat().map(|template| template.file().to_owned()),
        "tokens": rows.collect::<Vec<_>>(),
        "odd": notes,
    })
}
