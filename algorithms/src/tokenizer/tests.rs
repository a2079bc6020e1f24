//! Tests of the tokenizers.

use proptest::prelude::*;

use super::*;
use crate::task::{CountdownConfig, Split, SumsConfig, SumsForm, TaskSpec};

/// A vocabulary of all bytes, a few merges and the ChatML tokens, as `tokenizer.json`.
fn bytes_json() -> String {
    // Byte-level BPE writes bytes that are not printable as characters from U+0100 on.
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut spare = 0x100;
    let mut tokens: Vec<String> = vec!["<|im_start|>".into(), "<|im_end|>".into()];
    for byte in 0..256 {
        let code = if printable(byte) { byte } else { spare };
        spare += u32::from(code == spare);
        tokens.push(char::from_u32(code).unwrap().into());
    }
    tokens.extend(["he".into(), "hel".into()]);
    let vocabulary: serde_json::Map<String, serde_json::Value> = tokens
        .into_iter()
        .zip(0..)
        .map(|(token, id)| (token, id.into()))
        .collect();
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": [special(0, "<|im_start|>"), special(1, "<|im_end|>")],
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [["h", "e"], ["he", "l"]]},
    })
    .to_string()
}

/// ChatML, with a system turn where a conversation has none of its own.
fn chatml(default_system: Option<&str>) -> String {
    let system = default_system.map_or_else(String::new, |system| {
        format!(
            "{{% if loop.first and messages[0]['role'] != 'system' %}}{{{{ \
             '<|im_start|>system\n{system}<|im_end|>\n' }}}}{{% endif %}}"
        )
    });
    format!(
        "{{% for message in messages %}}{system}{{{{'<|im_start|>' + message['role'] + '\n' + \
         message['content'] + '<|im_end|>' + '\n'}}}}{{% endfor %}}{{% if add_generation_prompt \
         %}}{{{{ '<|im_start|>assistant\n' }}}}{{% endif %}}"
    )
}

fn spec(json: String, ends: Vec<u32>, files: &[(&str, &str)]) -> SubwordSpec {
    let files = files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    SubwordSpec {
        files: files.chain([("tokenizer.json".to_owned(), json)]).collect(),
        ends,
    }
}

fn bytes_tokenizer(chat: Option<&str>) -> Tokenizer {
    let mut files = vec![("generation_config.json", r#"{"eos_token_id": 1}"#)];
    files.extend(chat.map(|it| ("chat_template.jinja", it)));
    Tokenizer::new(TokenizerSpec::Subword(spec(bytes_json(), vec![], &files))).unwrap()
}

proptest! {
    #[test]
    fn text_over_the_alphabet_comes_back(text in "[-0-9+*/=():,.#?<>;|' \n]{0,40}") {
        let tokenizer = Tokenizer::arithmetic();
        let tokens = tokenizer.encode(&text).unwrap();
        prop_assert_eq!(tokens.len(), text.chars().count());
        prop_assert!(tokens.iter().all(|&token| token > CharTokenizer::EOS));
        prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }

    #[test]
    fn byte_level_text_comes_back(text in any::<String>()) {
        let tokenizer = bytes_tokenizer(None);
        prop_assert_eq!(tokenizer.decode(&tokenizer.encode(&text).unwrap()).unwrap(), text);
    }

    #[test]
    fn bytes_of_text_come_back(text in any::<String>()) {
        let tokenizer = Tokenizer::bytes();
        let tokens = tokenizer.encode(&text).unwrap();
        prop_assert_eq!(tokens.len(), text.len());
        prop_assert!(tokens.iter().all(|&token| token < ByteTokenizer::PAD));
        prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }

    #[test]
    fn text_cannot_speak_as_a_special_token(before in any::<String>(), after in any::<String>()) {
        let tokenizer = bytes_tokenizer(None);
        let tokens = tokenizer.encode(&format!("{before}<|im_end|>{after}")).unwrap();
        prop_assert!(tokens.iter().all(|&token| token > 1));
    }

    #[test]
    fn plain_tasks_fit_the_arithmetic_alphabet(seed: u64, steps: bool, minus_percent in 0_u8..=100) {
        let form = if steps { SumsForm::Steps } else { SumsForm::Compact };
        let tokenizer = Tokenizer::arithmetic();
        for spec in [
            TaskSpec::Sums(SumsConfig { form, minus_percent, ..SumsConfig::default() }),
            TaskSpec::Countdown(CountdownConfig::default()),
        ] {
            let problem = spec.build().unwrap().problem(seed, Split::Train, 0);
            prop_assert!(tokenizer.encode(&problem.prompt).is_ok());
            prop_assert!(tokenizer.encode(&problem.solution).is_ok());
        }
    }
}

#[test]
fn the_text_alphabet_is_all_that_can_be_typed() {
    let tokenizer = Tokenizer::text();
    assert_eq!(tokenizer.vocabulary(), 100);
    let typed: String = (' '..='~').chain(['\t', '\n']).collect();
    let tokens = tokenizer.encode(&typed).unwrap();
    assert_eq!(tokenizer.decode(&tokens).unwrap(), typed);
}

#[test]
fn bytes_have_their_own_numbers() {
    let tokenizer = Tokenizer::bytes();
    assert_eq!(tokenizer.vocabulary(), 259);
    assert_eq!(
        (tokenizer.pad(), tokenizer.before(), tokenizer.eos()),
        (256, &[257][..], 258)
    );
    assert_eq!(tokenizer.encode("a\u{e4}").unwrap(), [0x61, 0xc3, 0xa4]);
    assert_eq!(
        tokenizer.decode(&[257, 0x61, 0xc3, 258]).unwrap(),
        "a\u{fffd}"
    );
    assert_eq!(tokenizer.decode(&[259]).unwrap(), "", "an id without text");
    assert!(matches!(
        tokenizer.encode_chat(&[]),
        Err(TokenizerError::NoChat)
    ));
}

#[test]
fn a_tokenizer_of_bytes_is_made_again_from_its_files_and_its_description() {
    let tokenizer = Tokenizer::bytes();
    let directory = tempfile::tempdir().unwrap();
    for (name, contents) in tokenizer.files() {
        std::fs::write(directory.path().join(name), contents).unwrap();
    }
    let read = Tokenizer::from_directory(directory.path()).unwrap();
    assert_eq!(read.spec(), TokenizerSpec::Bytes);
    let json = serde_json::to_string(&tokenizer).unwrap();
    assert_eq!(json, "\"bytes\"");
    let read: Tokenizer = serde_json::from_str(&json).unwrap();
    assert_eq!(read.spec(), TokenizerSpec::Bytes);
}

#[test]
fn the_arithmetic_alphabet_fills_32_ids() {
    let tokenizer = Tokenizer::arithmetic();
    assert_eq!(tokenizer.vocabulary(), 32);
    assert_eq!(
        (tokenizer.pad(), tokenizer.before(), tokenizer.eos()),
        (0, &[1][..], 2)
    );
    assert_eq!(tokenizer.encode("01").unwrap(), [3, 4]);
    assert_eq!(tokenizer.decode(&[1, 3, 2, 0]).unwrap(), "0");
    assert!(matches!(
        tokenizer.encode("1a"),
        Err(TokenizerError::Character { character: 'a' })
    ));
    assert_eq!(tokenizer.decode(&[32]).unwrap(), "", "an id without text");
    assert!(matches!(
        CharTokenizer::new("aba"),
        Err(TokenizerError::Repeated { .. })
    ));
    assert!(matches!(
        tokenizer.encode_chat(&[]),
        Err(TokenizerError::NoChat)
    ));
}

#[test]
fn merges_apply_and_special_tokens_decode_to_nothing() {
    let tokenizer = bytes_tokenizer(None);
    assert_eq!(tokenizer.vocabulary(), 260);
    assert_eq!(tokenizer.encode("hel").unwrap(), [259]);
    assert_eq!(tokenizer.decode(&[0, 259, 1]).unwrap(), "hel");
    assert_eq!(
        tokenizer.decode(&[260]).unwrap(),
        "",
        "a row that pads the embedding"
    );
}

#[test]
fn a_conversation_is_encoded_as_it_is_rendered() {
    let template = chatml(Some("Be brief."));
    let tokenizer = bytes_tokenizer(Some(&template));
    let template = ChatTemplate::new("chat_template.jinja", &template);
    let messages = [
        Message::user("hel<|im_end|>"),
        Message::assistant("x"),
        Message::user("y"),
    ];
    let text = template.render(&messages).unwrap();
    assert_eq!(
        text,
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhel<|im_end|><|im_end|>\n\
         <|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\ny<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    let tokens = tokenizer.encode_chat(&messages).unwrap();
    assert_eq!(tokens.iter().filter(|&&token| token == 0).count(), 5);
    assert_eq!(
        tokens.iter().filter(|&&token| token == 1).count(),
        4,
        "the user's text is literal"
    );
    let own = [Message::system("Be long."), Message::user("y")];
    assert!(!template.render(&own).unwrap().contains("brief"));
    let plain = ChatTemplate::new("chat_template.jinja", &chatml(None));
    assert_eq!(plain.render(&[]).unwrap(), "<|im_start|>assistant\n");
}

#[test]
fn templates_see_what_they_see_in_transformers() {
    let render = |text: &str| {
        let template = ChatTemplate::new("chat_template.jinja", text);
        template.render(&[Message::system(" Be brief. "), Message::user("a\u{e4}<b>")])
    };
    // The right texts are those of transformers 5.24.
    for (template, right) in [
        (
            "{{ messages[0]['content'].strip() }}|{{ messages[0].role.upper() }}",
            "Be brief.|SYSTEM",
        ),
        (
            "{%- for m in messages -%}\n  {{- m.role[0] }}\n{%- endfor %}",
            "su",
        ),
        (
            "{% for m in messages %}\n  {% if loop.last %}{{ m.content }}{% endif %}\n{% endfor %}\n",
            "a\u{e4}<b>",
        ),
        (
            "{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
            "system",
        ),
        (
            "{{ messages[1] | tojson }}",
            "{\"role\": \"user\", \"content\": \"a\u{e4}<b>\"}",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "2",
        ),
        (
            "{% if tools is defined and tools %}t{% elif tools is none %}none{% endif %}",
            "none",
        ),
        (
            "{{ messages[1:] | map(attribute='content') | join(',') }}",
            "a\u{e4}<b>",
        ),
        (
            "{{ strftime_now('%Y') if strftime_now is defined else 'no day' }}",
            "no day",
        ),
        ("{% generation %}\nx{%- endgeneration -%}\n y", "xy"),
        (
            "{% macro say(m) %}[{{ m.content | trim }}]{% endmacro %}{{ say(messages[0]) }}",
            "[Be brief.]",
        ),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "1",
        ),
        ("{{ unknown }}{{ add_generation_prompt }}", "True"),
    ] {
        assert_eq!(render(template).unwrap(), right, "{template}");
    }
    for (template, why) in [
        ("{{ raise_exception('no tools here') }}", "no tools here"),
        ("{% if %}", "chat:1"),
        ("{{ strftime_now('%Y') }}", "strftime_now"),
        (
            "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
            "fuel",
        ),
    ] {
        let error = render(template).unwrap_err();
        assert!(matches!(error, TokenizerError::Template { .. }), "{error}");
        assert!(error.to_string().contains(why), "{template}: {error}");
    }
}

proptest! {
    /// Nothing that a turn says ends it, whatever special tokens it has the text of.
    #[test]
    fn no_turn_can_speak_as_a_special_token(
        pieces in prop::collection::vec(
            prop_oneof![
                Just("<|im_end|>".to_owned()), Just("<|im_start|>".to_owned()),
                Just("<|im_".to_owned()), Just("\u{f0000}".to_owned()), any::<String>(),
            ],
            0..8,
        ),
    ) {
        let tokenizer = bytes_tokenizer(Some(&chatml(None)));
        let content = pieces.concat();
        let tokens = tokenizer.encode_chat(&[Message::user(content.clone())]).unwrap();
        let count = |id| tokens.iter().filter(|token| **token == id).count();
        prop_assert_eq!((count(0), count(1)), (2, 1));
        let text = tokenizer.decode(&tokens).unwrap();
        prop_assert_eq!(text, format!("user\n{content}\nassistant\n"));
    }
}

#[test]
fn a_tokenizer_survives_serialisation_and_files() {
    for tokenizer in [
        Tokenizer::arithmetic(),
        bytes_tokenizer(Some(&chatml(Some("Hi")))),
    ] {
        let text = serde_json::to_string(&tokenizer).unwrap();
        let again: Tokenizer = serde_json::from_str(&text).unwrap();
        assert_eq!(again.spec(), tokenizer.spec());
        let directory = tempfile::tempdir().unwrap();
        for (name, contents) in tokenizer.files() {
            std::fs::write(directory.path().join(name), contents).unwrap();
        }
        assert_eq!(
            Tokenizer::from_directory(directory.path()).unwrap().spec(),
            tokenizer.spec()
        );
    }
}

/// <https://github.com/huggingface/tokenizers/issues/644>
#[test]
fn dropout_of_merges_is_off_and_told() {
    let dropping = bytes_json().replacen("\"type\":\"BPE\"", "\"type\":\"BPE\",\"dropout\":0.5", 1);
    assert_ne!(dropping, bytes_json());
    let eos = ("generation_config.json", r#"{"eos_token_id": 1}"#);
    let made = |json: String| {
        let spec = spec(json, vec![], &[eos]);
        Tokenizer::new(TokenizerSpec::Subword(spec)).unwrap()
    };
    let (plain, dropping) = (made(bytes_json()), made(dropping));
    assert!(dropping.notes()[0].starts_with("`dropout` of tokenizer.json is 0.5"));
    let text = "the quick brown fox jumps over the lazy dog";
    for _ in 0..20 {
        assert_eq!(dropping.encode(text).unwrap(), plain.encode(text).unwrap());
    }
}

#[test]
fn a_bad_description_is_refused() {
    let refused = |json: &str, files: &[(&str, &str)]| {
        let spec = spec(json.to_owned(), vec![], files);
        let error = Tokenizer::new(TokenizerSpec::Subword(spec)).unwrap_err();
        assert!(
            matches!(error, TokenizerError::Description { .. }),
            "{error}"
        );
        error.to_string()
    };
    let (config, generation) = ("tokenizer_config.json", "generation_config.json");
    assert!(refused("{}", &[]).contains("no token ends a reply"));
    assert!(refused("{", &[]).contains("tokenizer.json"));
    let eos = (generation, r#"{"eos_token_id": 1}"#);
    for (name, text, why) in [
        (
            config,
            r#"{"eos_token": "<|no|>"}"#,
            "no token ends a reply",
        ),
        (
            generation,
            r#"{"eos_token_id": "1"}"#,
            "`eos_token_id` is \"1\"",
        ),
        (config, "[", "tokenizer_config.json"),
        (
            config,
            r#"{"chat_template": 7, "eos_token": "<|im_end|>"}"#,
            "`chat_template` is 7",
        ),
        (
            config,
            r#"{"chat_template": [{"name": "rag", "template": ""}], "eos_token": "<|im_end|>"}"#,
            "names rag",
        ),
        (
            config,
            r#"{"add_bos_token": "yes", "eos_token": "<|im_end|>"}"#,
            "`add_bos_token` is \"yes\"",
        ),
    ] {
        let error = refused(&bytes_json(), &[(name, text)]);
        assert!(error.contains(why), "{text}: {error}");
    }
    // <https://github.com/huggingface/tokenizers/issues/1297>
    let strange = bytes_json().replacen("\"ByteLevel\"", "\"MyOwn\"", 1);
    let error = refused(&strange, &[eos]);
    assert!(error.contains("is MyOwn"), "{error}");
    let pointer = "version https://git-lfs.github.com/spec/v1\n";
    assert!(refused(pointer, &[eos]).contains("git lfs pull"));
    // What two files say otherwise is told.
    let spaced = (
        config,
        r#"{"add_prefix_space": true, "eos_token": "<|im_end|>"}"#,
    );
    let spaced = spec(bytes_json(), vec![], &[spaced]);
    let spaced = Tokenizer::new(TokenizerSpec::Subword(spaced)).unwrap();
    assert!(
        spaced.notes()[0].starts_with("`add_prefix_space` is true"),
        "{:?}",
        spaced.notes()
    );
    // The id of another token.
    let error = refused(
        &bytes_json(),
        &[eos, ("added_tokens.json", r#"{"<x>": 5}"#)],
    );
    assert!(error.contains("the id 5"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_directory(empty.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Read { .. }), "{error}");
}
