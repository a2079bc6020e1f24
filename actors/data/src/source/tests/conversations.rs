//! Conversations in files: `messages` and `tools`, rendered by a chat template.

use std::path::Path;

use odeon_algorithms::tokenizer::{LearntTurns, SubwordSpec, TokenizerSpec};
use serde_json::{Value, json};

use super::*;

/// What transformers makes of conversations: see `algorithms/tests/golden/conversations.py`.
fn golden() -> Value {
    let place = "../../algorithms/tests/golden/conversations.json";
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join(place);
    serde_json::from_str(&fs::read_to_string(place).unwrap()).unwrap()
}

/// A place whose tokenizer has one of the templates.
pub(super) fn place(template: &str) -> Place {
    let golden = golden();
    let mut files: BTreeMap<String, String> =
        serde_json::from_value(golden["files"].clone()).unwrap();
    let text = golden["templates"][template].as_str().unwrap();
    files.insert("chat_template.jinja".to_owned(), text.to_owned());
    let spec = TokenizerSpec::Subword(SubwordSpec {
        files,
        ends: vec![],
    });
    let mut place = Place::new();
    place.opening = Opening::new(Tokenizer::new(spec).unwrap(), place.cache.path());
    place
}

fn fields(learn: LearntTurns) -> Fields {
    Fields {
        messages: Some("messages".into()),
        tools: Some("tools".into()),
        learn,
        ..Fields::default()
    }
}

/// The tokens of a conversation, and which of them are learnt.
type Right = (Vec<u32>, Vec<bool>);

/// The cases of a template: as lines, and what transformers makes of each.
fn cases(template: &str) -> (String, Vec<Right>) {
    let golden = golden();
    let cases = golden["cases"].as_array().unwrap().iter();
    let (mut lines, mut right) = (String::new(), vec![]);
    for case in cases.filter(|case| case["template"] == template) {
        lines.push_str(&json!({"messages": case["messages"], "tools": case["tools"]}).to_string());
        lines.push('\n');
        let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).unwrap();
        let mask: Vec<u32> = serde_json::from_value(case["mask"].clone()).unwrap();
        right.push((ids, mask.into_iter().map(|it| it == 1).collect()));
    }
    (lines, right)
}

fn samples(place: &Place, name: &str, format: Format) -> Vec<Sample> {
    let spec = SourceSpec {
        context: 600,
        order: Order::Kept,
        on_bad: OnBad::Fail,
        ..place.spec(name, format)
    };
    let source = place.open(&spec).unwrap();
    let cells = cells(&source, 0);
    let samples = cells.iter().flat_map(|cell| &cell.samples);
    samples.map(|(_, bytes)| decoded(bytes)).collect()
}

/// A file of each format that holds conversations.
pub(super) fn each_format() -> Vec<(&'static str, Format, Vec<u8>)> {
    let (lines, _) = cases("tools");
    let fields = fields(LearntTurns::Replies);
    let table = include_bytes!("fixtures/conversations.parquet").to_vec();
    vec![
        ("jsonl", Format::Jsonl(fields.clone()), lines.into_bytes()),
        ("parquet", Format::Parquet(fields), table),
    ]
}

/// SEMANTICS 129. Lines, and the table that `datasets` would write of them. What stands behind the last token that is
/// learnt is left out.
#[test]
fn conversations_are_read_as_transformers_reads_them() {
    let lines = place("marked");
    let (text, right) = cases("marked");
    lines.write("turns.jsonl", text);
    let own = samples(
        &lines,
        "turns.jsonl",
        Format::Jsonl(fields(LearntTurns::Replies)),
    );
    let check = |own: &[Sample], right: &[Right]| {
        assert_eq!(own.len(), right.len());
        for (sample, (ids, mask)) in own.iter().zip(right) {
            let last = mask.iter().rposition(|it| *it).unwrap() + 1;
            assert_eq!(sample.tokens, ids[..last]);
            assert_eq!(sample.mask().collect::<Vec<_>>(), mask[..last]);
        }
    };
    check(&own, &right);
    assert!(
        own.iter().any(|sample| !sample.read.is_empty()),
        "turns between replies"
    );

    let table = place("tools");
    let bytes = include_bytes!("fixtures/conversations.parquet");
    table.write("turns.parquet", bytes);
    let (_, right) = cases("tools");
    let own = samples(
        &table,
        "turns.parquet",
        Format::Parquet(fields(LearntTurns::Replies)),
    );
    check(&own, &right);
}

#[test]
fn all_turns_or_the_last_reply_are_learnt_where_that_is_asked_for() {
    let place = place("plain");
    let line = json!({"messages": [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
    ]});
    place.write("turns.jsonl", format!("{line}\n"));
    let of = |learn| {
        let sample = samples(&place, "turns.jsonl", Format::Jsonl(fields(learn))).remove(0);
        (sample.prompt, sample.predicted())
    };
    let (all, every) = of(LearntTurns::All);
    assert_eq!(all, 1);
    let (first, replies) = of(LearntTurns::Replies);
    let (second, last) = of(LearntTurns::Last);
    assert_eq!((replies, last), (4, 2), "a letter and an end each");
    assert!(first < second && every > 10);
}

#[test]
fn what_holds_no_conversation_is_told_with_its_place() {
    let own = place("plain");
    let good = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    for (line, words) in [
        (r#"{"text": "a"}"#, "it has no field `messages`, but `text`"),
        (
            r#"{"messages": "a"}"#,
            "messages are a text that is no JSON",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "a"}]}"#,
            "no turn of it is the model's",
        ),
        (
            r#"{"messages": [{"content": "a"}]}"#,
            "message 1 has no role",
        ),
        (r#"{"messages": ["#, "it is not JSON"),
        (r#"["a"]"#, "it is an array and no object"),
    ] {
        own.write("turns.jsonl", format!("{good}\n{line}\n"));
        let spec = own.spec("turns.jsonl", Format::Jsonl(fields(LearntTurns::Replies)));
        let cell = cells(&own.open(&spec).unwrap(), 0).remove(0);
        assert_eq!((cell.samples.len(), cell.skipped.len()), (1, 1), "{line}");
        let told = cell.skipped[0].to_string();
        assert!(
            told.contains(words) && told.contains("turns.jsonl"),
            "{told}"
        );
    }
    // JSON in a text is read, too.
    let inside = json!({"messages": r#"[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]"#});
    own.write("turns.jsonl", format!("{inside}\n"));
    let read = samples(
        &own,
        "turns.jsonl",
        Format::Jsonl(fields(LearntTurns::Replies)),
    );
    assert_eq!(read.len(), 1);

    let refused = |place: &Place, fields: Fields| {
        let spec = place.spec("turns.jsonl", Format::Jsonl(fields));
        place.open(&spec).unwrap_err().to_string()
    };
    let plain = Place::new();
    plain.write("turns.jsonl", format!("{good}\n"));
    let none = refused(&plain, fields(LearntTurns::Replies));
    assert!(none.contains("the tokenizer has none"), "{none}");
    let both = Fields {
        text: Some("text".into()),
        ..fields(LearntTurns::Replies)
    };
    assert!(refused(&own, both).contains("name no `text`"));
    let alone = Fields {
        tools: Some("tools".into()),
        ..Fields::default()
    };
    assert!(refused(&own, alone).contains("name a field `messages`"));
}

/// SEMANTICS 129. Each token that is learnt is so once, whatever the context.
#[test]
fn a_long_conversation_is_cut_and_every_reply_is_learnt_once() {
    let place = place("marked");
    let (text, right) = cases("marked");
    place.write("turns.jsonl", text);
    for context in [2, 3, 7, 20, 50] {
        let spec = SourceSpec {
            context,
            order: Order::Kept,
            ..place.spec("turns.jsonl", Format::Jsonl(fields(LearntTurns::Replies)))
        };
        let source = place.open(&spec).unwrap();
        let mut learnt = vec![];
        for cell in cells(&source, 0) {
            for (_, bytes) in &cell.samples {
                let sample = decoded(bytes);
                assert!(sample.tokens.len() <= context as usize);
                let own = sample.tokens.iter().zip(sample.mask());
                learnt.extend(own.filter(|it| it.1).map(|it| *it.0));
            }
        }
        let whole = right.iter().flat_map(|(ids, mask)| ids.iter().zip(mask));
        let whole: Vec<u32> = whole.filter(|it| *it.1).map(|it| *it.0).collect();
        assert_eq!(learnt, whole, "{context}");
    }
}

/// A run that began before conversations were known goes on with the same source.
#[test]
fn a_source_without_conversations_is_described_as_before() {
    let plain = finding::described(&Format::Jsonl(Fields::default()));
    let before = r#"{"jsonl":{"text":null,"prompt":null,"response":null,"image":null}}"#;
    assert_eq!(plain, before);
    let turns = finding::described(&Format::Jsonl(fields(LearntTurns::Last)));
    assert!(
        turns.ends_with(r#""messages":"messages","tools":"tools","learn":"last"}}"#),
        "{turns}"
    );
}

#[test]
fn bytes_that_are_no_text_are_left_out_of_a_table_with_the_reason() {
    let own = place("plain");
    own.write(
        "turns.parquet",
        include_bytes!("fixtures/binary-content.parquet"),
    );
    let spec = own.spec(
        "turns.parquet",
        Format::Parquet(fields(LearntTurns::Replies)),
    );
    let cell = cells(&own.open(&spec).unwrap(), 0).remove(0);
    assert_eq!((cell.samples.len(), cell.skipped.len()), (1, 1));
    assert!(cell.skipped[0].to_string().contains("it is not UTF-8"));
}
