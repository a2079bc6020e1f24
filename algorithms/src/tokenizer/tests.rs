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

fn chatml(default_system: Option<&str>) -> ChatTemplate {
    ChatTemplate::ChatMl {
        default_system: default_system.map(Into::into),
    }
}

fn bytes_tokenizer(chat: Option<ChatTemplate>) -> Tokenizer {
    let spec = BpeSpec {
        json: bytes_json(),
        bos: Some(0),
        eos: 1,
        pad: 1,
        chat,
    };
    Tokenizer::new(TokenizerSpec::Bpe(spec)).unwrap()
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
        (tokenizer.pad(), tokenizer.bos(), tokenizer.eos()),
        (256, Some(257), 258)
    );
    assert_eq!(tokenizer.encode("a\u{e4}").unwrap(), [0x61, 0xc3, 0xa4]);
    assert_eq!(
        tokenizer.decode(&[257, 0x61, 0xc3, 258]).unwrap(),
        "a\u{fffd}"
    );
    assert!(tokenizer.decode(&[259]).is_err());
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
        (tokenizer.pad(), tokenizer.bos(), tokenizer.eos()),
        (0, Some(1), 2)
    );
    assert_eq!(tokenizer.encode("01").unwrap(), [3, 4]);
    assert_eq!(tokenizer.decode(&[1, 3, 2, 0]).unwrap(), "0");
    assert!(matches!(
        tokenizer.encode("1a"),
        Err(TokenizerError::Character { character: 'a' })
    ));
    assert!(matches!(
        tokenizer.decode(&[32]),
        Err(TokenizerError::Token { token: 32, .. })
    ));
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
    assert!(matches!(
        tokenizer.decode(&[260]),
        Err(TokenizerError::Token { .. })
    ));
}

#[test]
fn a_conversation_is_encoded_as_it_is_rendered() {
    let template = chatml(Some("Be brief."));
    let tokenizer = bytes_tokenizer(Some(template.clone()));
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
    assert_eq!(chatml(None).render(&[]).unwrap(), "<|im_start|>assistant\n");
}

#[test]
fn templates_are_recognised_or_refused_when_used() {
    for template in [
        chatml(None),
        chatml(Some("You are a helpful AI assistant.")),
    ] {
        assert_eq!(ChatTemplate::recognise(&template.jinja()), template);
        let escaped = template.jinja().replace('\n', "\\n");
        assert_eq!(ChatTemplate::recognise(&escaped), template);
    }
    let other = ChatTemplate::recognise("{{ bos_token }}{{ messages }}");
    assert!(matches!(&other, ChatTemplate::Unknown { .. }));
    let error = bytes_tokenizer(Some(other))
        .encode_chat(&[Message::user("x")])
        .unwrap_err();
    assert!(
        matches!(error, TokenizerError::UnknownTemplate { .. }),
        "{error}"
    );
}

#[test]
fn a_tokenizer_survives_serialisation_and_files() {
    for tokenizer in [
        Tokenizer::arithmetic(),
        bytes_tokenizer(Some(chatml(Some("Hi")))),
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

#[test]
fn a_bad_description_is_refused() {
    let spec = |json: String, eos| BpeSpec {
        json,
        bos: None,
        eos,
        pad: 0,
        chat: None,
    };
    let make = |spec| Tokenizer::new(TokenizerSpec::Bpe(spec)).unwrap_err();
    assert!(matches!(
        make(spec("{}".into(), 0)),
        TokenizerError::Description { .. }
    ));
    assert!(matches!(
        make(spec(bytes_json(), 260)),
        TokenizerError::Token { token: 260, .. }
    ));
    let empty = tempfile::tempdir().unwrap();
    let error = Tokenizer::from_directory(empty.path()).unwrap_err();
    assert!(matches!(error, TokenizerError::Read { .. }), "{error}");
}
