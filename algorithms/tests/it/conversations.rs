//! Conversations against transformers: `tests/golden/conversations.py` made the file. The tokens of each
//! are those of `apply_chat_template`, and those that are learnt those of its mask.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use odeon_algorithms::json::OrderedJson;
use odeon_algorithms::tokenizer::{
    Conversation, LearntTurns, MaskedTokens, SubwordSpec, Tokenizer, TokenizerError, TokenizerSpec,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    files: BTreeMap<String, String>,
    templates: BTreeMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: OrderedJson,
    tools: Option<OrderedJson>,
    ids: Vec<u32>,
    /// Of templates with `generation` blocks.
    mask: Option<Vec<u32>>,
}

static GOLDEN: LazyLock<Golden> = LazyLock::new(|| {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/conversations.json");
    serde_json::from_str(&fs::read_to_string(place).unwrap()).unwrap()
});

/// The tokenizer with a template.
fn with(template: &str) -> Tokenizer {
    let mut files = GOLDEN.files.clone();
    files.insert("chat_template.jinja".to_owned(), template.to_owned());
    let spec = SubwordSpec {
        files,
        ends: vec![],
    };
    Tokenizer::new(TokenizerSpec::Subword(spec)).unwrap()
}

fn mask(masked: &MaskedTokens) -> Vec<u32> {
    let is_learnt = |at: usize| masked.learnt.iter().any(|run| run.contains(&at));
    (0..masked.tokens.len())
        .map(|at| is_learnt(at).into())
        .collect()
}

fn conversation(json: &str) -> Conversation {
    let messages: OrderedJson = serde_json::from_str(json).unwrap();
    Conversation::new(messages, None).unwrap()
}

/// The texts of the tokens that are learnt.
fn learnt(tokenizer: &Tokenizer, masked: &MaskedTokens) -> Vec<String> {
    let text = |run: &Range<usize>| {
        let tokens = masked.tokens[run.clone()].iter();
        tokens.map(|token| tokenizer.piece(*token)).collect()
    };
    masked.learnt.iter().map(text).collect()
}

/// SEMANTICS 129.
#[test]
fn tokens_and_masks_are_those_of_transformers() {
    let mut masks = 0;
    for case in &GOLDEN.cases {
        let tokenizer = with(&GOLDEN.templates[&case.template]);
        let told = Conversation::new(case.messages.clone(), case.tools.clone()).unwrap();
        let masked = tokenizer
            .encode_conversation(&told, LearntTurns::Replies)
            .unwrap();
        assert_eq!(masked.tokens, case.ids, "{}", case.template);
        let own = masked.learnt.iter();
        assert!(own.clone().all(|run| !run.is_empty()));
        assert!(
            own.zip(masked.learnt.iter().skip(1))
                .all(|(a, b)| a.end < b.start)
        );
        if let Some(right) = &case.mask {
            assert_eq!(&mask(&masked), right, "{}", case.template);
            masks += 1;
        }
    }
    assert_eq!((GOLDEN.cases.len(), masks), (14, 8));
}

/// SEMANTICS 129. Turns as most templates have them, without blocks: from where a turn is opened to what ends it.
#[test]
fn replies_are_found_in_templates_without_blocks() {
    let told = conversation(
        r#"[{"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Whose cat is it?"},
            {"role": "assistant", "content": "Ours."},
            {"role": "user", "content": "And the mat?"},
            {"role": "assistant", "content": "Ours, too."}]"#,
    );
    for (template, replies) in [
        ("plain", ["Ours.<|im_end|>", "Ours, too.<|im_end|>"]),
        // What is opened is nothing here, so that the space before a reply is of it.
        ("brackets", [" Ours.<|im_end|>", " Ours, too.<|im_end|>"]),
    ] {
        let tokenizer = with(&GOLDEN.templates[template]);
        let of = |turns| tokenizer.encode_conversation(&told, turns).unwrap();
        let all = of(LearntTurns::Replies);
        assert_eq!(learnt(&tokenizer, &all), replies, "{template}");
        let last = of(LearntTurns::Last);
        assert_eq!(learnt(&tokenizer, &last), replies[1..], "{template}");
        let every = of(LearntTurns::All);
        let whole = 0..every.tokens.len();
        assert_eq!(every.learnt, vec![whole]);
        assert_eq!((&all.tokens, &last.tokens), (&every.tokens, &every.tokens));
    }
    let marked = with(&GOLDEN.templates["marked"]);
    let last = marked
        .encode_conversation(&told, LearntTurns::Last)
        .unwrap();
    assert_eq!(learnt(&marked, &last), ["Ours, too.<|im_end|>"]);
}

/// SEMANTICS 129. A template that writes an earlier turn otherwise than the last, as those do that leave out thoughts.
#[test]
fn a_turn_of_which_nothing_says_where_it_lies_is_refused() {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if loop.last %}{{ m.content }}\
                    {% else %}{{ m.content | upper }}{% endif %}<|im_end|>\n{% endfor %}\
                    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let tokenizer = with(template);
    let told = conversation(
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]"#,
    );
    let error = tokenizer
        .encode_conversation(&told, LearntTurns::Replies)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("renders the turns before it otherwise when others follow")
    );
    assert!(
        matches!(error, TokenizerError::Turn { turn: 2, .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("chat_template.jinja") && text.contains("{% generation %}"),
        "{text}"
    );
    // Of the last reply the turns before are other ones where nothing follows them.
    let refused = tokenizer.encode_conversation(&told, LearntTurns::Last);
    assert!(matches!(refused, Err(TokenizerError::Turn { turn: 4, .. })));
    assert!(
        tokenizer
            .encode_conversation(&told, LearntTurns::All)
            .is_ok()
    );
}

/// SEMANTICS 129. A turn that the template opens with more than the reply has, or not at all.
#[test]
fn a_turn_that_is_not_opened_as_it_is_written_is_refused_with_the_reason() {
    let told = conversation(
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#,
    );
    let plain =
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let thinks = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}";
    // Blocks in a comment are none.
    for (behind, why) in [
        (
            thinks,
            "opens it with a text that is not there when the reply is",
        ),
        (
            "{# {% generation %} #}",
            "does not open it where `add_generation_prompt` asks for that",
        ),
    ] {
        for learn in [LearntTurns::Replies, LearntTurns::Last] {
            let tokenizer = with(&format!("{plain}{behind}"));
            let error = tokenizer
                .encode_conversation(&told, learn)
                .unwrap_err()
                .to_string();
            assert!(error.contains(why) && error.contains("turn 2"), "{error}");
        }
    }
}

/// SEMANTICS 129. White space behind a special token is learnt nowhere, whether or not it ends a reply.
#[test]
fn what_stands_between_turns_is_not_learnt() {
    let mut files = GOLDEN.files.clone();
    let config = files.get_mut("tokenizer_config.json").unwrap();
    *config = config.replace(
        "\"eos_token\": \"<|im_end|>\"",
        "\"eos_token\": \"<|endoftext|>\"",
    );
    assert!(
        config.contains("\"eos_token\": \"<|endoftext|>\""),
        "{config}"
    );
    files.insert(
        "chat_template.jinja".into(),
        GOLDEN.templates["plain"].clone(),
    );
    let spec = SubwordSpec {
        files,
        ends: vec![],
    };
    let tokenizer = Tokenizer::new(TokenizerSpec::Subword(spec)).unwrap();
    let told = conversation(
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"}, {"role": "assistant", "content": ""}]"#,
    );
    let masked = tokenizer
        .encode_conversation(&told, LearntTurns::Replies)
        .unwrap();
    assert_eq!(learnt(&tokenizer, &masked), ["b<|im_end|>", "<|im_end|>"]);
}

/// SEMANTICS 129. All but the text itself is as it would be without it, also where special tokens take
/// the white space behind them.
#[test]
fn a_text_that_looks_like_a_special_token_changes_nothing_else() {
    let mut files = GOLDEN.files.clone();
    let json = files.get_mut("tokenizer.json").unwrap();
    let mut described: serde_json::Value = serde_json::from_str(json).unwrap();
    for token in described["added_tokens"].as_array_mut().unwrap() {
        token["rstrip"] = true.into();
    }
    *json = described.to_string();
    files.insert(
        "chat_template.jinja".into(),
        GOLDEN.templates["marked"].clone(),
    );
    let spec = SubwordSpec {
        files,
        ends: vec![],
    };
    let tokenizer = Tokenizer::new(TokenizerSpec::Subword(spec)).unwrap();
    let of = |user: &str| {
        let turns = format!(
            r#"[{{"role": "user", "content": "{user}"}}, {{"role": "assistant", "content": "Hi there"}}]"#
        );
        tokenizer
            .encode_conversation(&conversation(&turns), LearntTurns::Replies)
            .unwrap()
    };
    let (plain, masked) = (of("say so"), of("say <|im_start|>"));
    // What follows the text of the person, and what is learnt of it.
    let behind = |masked: &MaskedTokens| {
        let end = masked
            .tokens
            .iter()
            .position(|it| *it == tokenizer.eos())
            .unwrap();
        let learnt = masked
            .learnt
            .iter()
            .map(|run| run.start - end..run.end - end);
        (masked.tokens[end..].to_vec(), learnt.collect::<Vec<_>>())
    };
    assert_eq!(behind(&masked), behind(&plain));
    assert_eq!(
        tokenizer.decode(&masked.tokens).unwrap(),
        "user\nsay <|im_start|>assistant\nHi there"
    );
}

/// SEMANTICS 129. What a person writes ends no turn, and its own text is learnt where the model writes it.
#[test]
fn texts_that_look_like_special_tokens_are_texts() {
    let tokenizer = with(&GOLDEN.templates["marked"]);
    let plain = conversation(
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#,
    );
    let told = conversation(
        r#"[{"role": "user", "content": "<|im_end|>"}, {"role": "assistant", "content": "x <|im_end|> y"}]"#,
    );
    let of = |told| {
        tokenizer
            .encode_conversation(told, LearntTurns::Replies)
            .unwrap()
    };
    let (plain, masked) = (of(&plain), of(&told));
    let end = tokenizer.eos();
    let ends = |masked: &MaskedTokens| masked.tokens.iter().filter(|it| **it == end).count();
    assert_eq!((ends(&plain), ends(&masked)), (2, 2));
    assert_eq!(learnt(&tokenizer, &masked), ["x <|im_end|> y<|im_end|>"]);
    // The same without guard but for the texts.
    assert_eq!(masked.learnt.len(), 1);
    assert_eq!(masked.tokens[masked.learnt[0].end - 1], end);
}

#[test]
fn messages_as_data_sets_have_them_are_read_and_others_refused_in_words() {
    let tokenizer = with(&GOLDEN.templates["plain"]);
    let told = conversation(
        r#"[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#,
    );
    let right = tokenizer
        .encode_conversation(&told, LearntTurns::Replies)
        .unwrap();
    for same in [
        r#"[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]"#,
        r#"{"role": ["user", "assistant"], "content": ["a", "b"]}"#,
        r#"[{"content": "a", "role": "user", "tool_calls": null}, {"role": "assistant", "content": "b", "name": null}]"#,
    ] {
        let masked = tokenizer.encode_conversation(&conversation(same), LearntTurns::Replies);
        assert_eq!(masked.unwrap(), right, "{same}");
    }
    for (wrong, words) in [
        ("\"a\"", "messages are a text and no array"),
        ("[]", "there are no messages"),
        ("[1]", "message 1 is a number and no object"),
        (r#"[{"content": "a"}]"#, "message 1 has no role"),
        (r#"[{"role": "user"}]"#, "message 1 has no content"),
        (
            r#"[{"role": "user", "content": null}]"#,
            "message 1 has no content",
        ),
        (
            r#"[{"role": "user", "content": 1}]"#,
            "the content of message 1 is a number",
        ),
        (
            r#"[{"from": "moon", "value": "a"}]"#,
            "message 1 is from `moon`, which is no role",
        ),
    ] {
        let messages: OrderedJson = serde_json::from_str(wrong).unwrap();
        assert_eq!(
            Conversation::new(messages, None).unwrap_err(),
            words,
            "{wrong}"
        );
    }
    let tools = Some(OrderedJson::Text("weather".into()));
    let messages: OrderedJson =
        serde_json::from_str(r#"[{"role": "user", "content": "a"}]"#).unwrap();
    assert_eq!(
        Conversation::new(messages, tools).unwrap_err(),
        "tools are a text and no array"
    );
    let bytes = Tokenizer::bytes();
    let none = bytes.encode_conversation(&told, LearntTurns::Replies);
    assert!(matches!(none, Err(TokenizerError::NoChat)));
}
