//! The pure parts: events out of bytes, what they say, and what is done about losses.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::dialect::{Ask, Finish, metric};
use super::events::Events;
use super::{DecodeError, Dialect, Patience, Remedy, ServedError};

fn ask() -> Ask {
    Ask {
        prompt: vec![1, 2, 3],
        tokens_max: 7,
        temperature: 0.5,
        top_p: 1.0,
        seed: u64::MAX,
        ends: vec![9],
    }
}

fn read(parts: &[&[u8]]) -> Vec<String> {
    let mut events = Events::default();
    let read = parts.iter().flat_map(|part| events.push(part).unwrap());
    read.collect()
}

#[test]
fn events_are_what_the_format_says() {
    let text = b": a comment\ndata: one\n\ndata:two\r\nid: 3\r\ndata: three\r\n\r\n\n\nevent: x\n\ndata\n\ndata: end";
    assert_eq!(read(&[text]), ["one", "two\nthree"]);
    assert_eq!(read(&[b"data: a\r", b"\n\r", b"\ndata: b\r\r"]), ["a", "b"]);
}

#[test]
fn an_event_without_an_end_is_refused() {
    let mut events = Events::default();
    let piece = vec![b'x'; 1 << 20];
    let refused = (0..100).find_map(|_| events.push(&piece).err());
    assert!(matches!(refused, Some(DecodeError::TooLong(_))));
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same_events(
        lines in prop::collection::vec("(data: ?)?[a-z\u{e9}\\[\\]:]{0,6}", 0..20),
        ends in prop::collection::vec(prop_oneof![Just("\n"), Just("\r\n"), Just("\r")], 20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let text: String = lines.iter().zip(&ends).flat_map(|(line, end)| [line.as_str(), end]).collect();
        let bytes = text.as_bytes();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect();
        prop_assert_eq!(read(&parts), read(&[bytes]));
    }

    #[test]
    fn whatever_a_server_sends_is_read_or_refused(text in "\\PC{0,40}", have in 0usize..4) {
        for dialect in [Dialect::Vllm, Dialect::Sglang] {
            let _ = dialect.decode(&text, &ask(), have);
        }
    }

    /// Any part of a good event in place of the whole: read without tokens, or refused; never tokens
    /// without log-probabilities.
    #[test]
    fn a_piece_has_as_many_tokens_as_log_probabilities(
        ids in prop::collection::vec(0u32..50, 0..5),
        log_probs in prop::collection::vec(prop_oneof![
            (-20f64..0.0).prop_map(|it| json!(it)), Just(Value::Null), Just(json!("x")), Just(json!(3.0)),
        ], 0..5),
    ) {
        let event = vllm(&ids, json!(log_probs), Value::Null).to_string();
        match Dialect::Vllm.decode(&event, &ask(), 0) {
            Ok(piece) => {
                let tokens: Vec<u32> = piece.tokens.iter().map(|(token, _)| *token).collect();
                prop_assert_eq!(&tokens, &ids);
                prop_assert!(ids.is_empty() || ids.len() == log_probs.len());
                prop_assert!(piece.tokens.iter().all(|(_, log_prob)| *log_prob <= 0.0));
            }
            Err(DecodeError::Lengths { tokens, log_probs: found }) => {
                prop_assert_eq!((tokens, found), (ids.len(), log_probs.len()));
                prop_assert_ne!(ids.len(), log_probs.len());
            }
            Err(DecodeError::LogProb { .. }) => {
                prop_assert!(!log_probs.iter().all(|it| it.as_f64().is_some_and(|it| it <= 0.0)));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// SGLang sends all tokens with each event, or those that are new: both give each once.
    #[test]
    fn tokens_come_once_however_they_are_listed(
        counts in prop::collection::vec(0usize..4, 1..8), incremental: bool,
    ) {
        let total: usize = counts.iter().sum();
        let all: Vec<Value> = (0..total).map(|id| json!([-0.5, id, null])).collect();
        let (mut have, mut got) = (0, vec![]);
        for count in counts {
            let upto = have + count;
            let listed = if incremental { &all[have..upto] } else { &all[..upto] };
            let event = json!({"meta_info": {
                "completion_tokens": upto, "output_token_logprobs": listed, "finish_reason": null,
            }});
            let piece = Dialect::Sglang.decode(&event.to_string(), &ask(), have).unwrap();
            got.extend(piece.tokens.into_iter().map(|(token, _)| token as usize));
            have = upto;
        }
        prop_assert_eq!(got, (0..total).collect::<Vec<_>>());
    }

    #[test]
    fn pauses_grow_and_are_bounded(failures in 1u32..u32::MAX) {
        let patience = Patience::default();
        let (now, next) = (patience.pause(failures), patience.pause(failures.saturating_add(1)));
        prop_assert!(patience.pause <= now && now <= next && next <= patience.pause_max);
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "what `json!` makes is for this call"
)]
fn vllm(ids: &[u32], log_probs: Value, finish: Value) -> Value {
    json!({"choices": [{
        "text": "x", "token_ids": ids, "finish_reason": finish,
        "logprobs": {"tokens": [], "token_logprobs": log_probs},
    }]})
}

fn decoded(dialect: Dialect, event: &Value) -> Result<super::dialect::Piece, DecodeError> {
    dialect.decode(&event.to_string(), &ask(), 1)
}

#[test]
fn what_vllm_sends_is_understood() {
    let is = |event: &Value| decoded(Dialect::Vllm, event);
    let piece = is(&vllm(&[4, 9], json!([-0.5, -1]), json!("stop"))).unwrap();
    assert_eq!(piece.tokens, [(4, -0.5), (9, -1.0)]);
    assert_eq!(piece.finish, Some(Finish::Complete));
    // Of an older release, which names tokens by their ids.
    let named = json!({"choices": [{
        "text": "x", "finish_reason": null,
        "logprobs": {"tokens": ["token_id:7"], "token_logprobs": [-0.25]},
    }]});
    assert_eq!(is(&named).unwrap().tokens, [(7, -0.25)]);
    let spoken = json!({"choices": [{
        "text": "x", "logprobs": {"tokens": ["x"], "token_logprobs": [-0.25]},
    }]});
    assert_eq!(is(&spoken), Err(DecodeError::NoTokens));
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 3}});
    assert_eq!(is(&usage), Ok(super::dialect::Piece::default()));
    let mut bare = vllm(&[4, 5], json!([]), Value::Null);
    bare["choices"][0]["logprobs"] = Value::Null;
    assert_eq!(is(&bare), Err(DecodeError::NoLogProbs { tokens: 2 }));
    let mut other = vllm(&[4], json!([-0.5]), Value::Null);
    other["choices"][0]["prompt_token_ids"] = json!([1, 2]);
    assert_eq!(
        is(&other),
        Err(DecodeError::OtherPrompt { sent: 3, found: 2 })
    );
    let mut cut = vllm(&[4], json!([-0.5]), json!("stop"));
    cut["choices"][0]["stop_reason"] = json!(9);
    assert_eq!(is(&cut), Err(DecodeError::EndCutOff(9)));
    let aborted = is(&vllm(&[], json!([]), json!("abort"))).unwrap();
    assert!(matches!(aborted.finish, Some(Finish::Aborted(_))));
    let failed = is(&json!({"error": {"message": "out of\nmemory", "code": 500}})).unwrap();
    assert_eq!(
        failed.finish,
        Some(Finish::Aborted("out of memory".to_owned()))
    );
}

#[test]
fn what_sglang_sends_is_understood() {
    let event = |count: usize, listed: Value, finish: Value| {
        json!({"meta_info": {
            "completion_tokens": count, "output_token_logprobs": listed, "finish_reason": finish,
            "weight_version": "default",
        }})
    };
    let is = |event: &Value| decoded(Dialect::Sglang, event);
    let both = json!([[-0.5, 4, null], [-1.0, 9, null]]);
    let ends = json!({"type": "stop", "matched": 9});
    let piece = is(&event(2, both.clone(), ends.clone())).unwrap();
    assert_eq!(piece.tokens, [(9, -1.0)], "one was known");
    assert_eq!(piece.finish, Some(Finish::Complete));
    assert_eq!(piece.weights.as_deref(), Some("default"));
    let (listed, count, have) = (2, 5, 1);
    assert_eq!(
        is(&event(5, both, ends)),
        Err(DecodeError::Count {
            listed,
            count,
            have
        })
    );
    let none = json!({"meta_info": {"completion_tokens": 3}});
    assert_eq!(is(&none), Err(DecodeError::NoLogProbs { tokens: 2 }));
    let aborted =
        json!({"meta_info": {"completion_tokens": 1, "finish_reason": {"type": "abort"}}});
    assert!(matches!(
        is(&aborted).unwrap().finish,
        Some(Finish::Aborted(_))
    ));
    assert!(matches!(
        is(&json!({"text": "x"})),
        Err(DecodeError::Json { .. })
    ));
}

#[test]
fn what_is_asked_says_everything_that_changes_a_distribution() {
    let vllm = Dialect::Vllm.generate("m", &ask());
    let body = vllm.body.unwrap();
    assert_eq!(vllm.path, "/v1/completions");
    assert_eq!(body["prompt"], json!([1, 2, 3]));
    assert_eq!((&body["seed"], &body["model"]), (&json!(-1), &json!("m")));
    let sglang = Dialect::Sglang.generate("m", &ask());
    assert_eq!(sglang.path, "/generate");
    let params = sglang.body.unwrap()["sampling_params"].clone();
    for said in [&body, &params] {
        assert_eq!(
            (&said["temperature"], &said["top_p"]),
            (&json!(0.5), &json!(1.0))
        );
        assert_eq!((&said["top_k"], &said["min_p"]), (&json!(-1), &json!(0.0)));
        assert_eq!(said["repetition_penalty"], json!(1.0));
        assert_eq!(said["stop_token_ids"], json!([9]));
    }
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let update = dialect.update(Path::new("/w/1"), "v").calls;
        let names: Vec<_> = update
            .iter()
            .map(|call| call.path.split('?').next().unwrap())
            .collect();
        let wanted = match dialect {
            Dialect::Vllm => ["/pause", "/collective_rpc", "/reset_prefix_cache"],
            Dialect::Sglang => [
                "/pause_generation",
                "/update_weights_from_disk",
                "/flush_cache",
            ],
        };
        assert_eq!(names, wanted);
        assert!(
            update[1]
                .body
                .as_ref()
                .unwrap()
                .to_string()
                .contains("/w/1")
        );
    }
}

#[test]
fn a_metric_is_found_among_others() {
    let text = "# TYPE a gauge\na{x=\"}\"} 0.5\na{x=\"y\"} 0.75 17\nab 3\na NaN\n";
    assert_eq!(metric(text, "a"), Some(0.75));
    assert_eq!(metric(text, "ab"), Some(3.0));
    assert_eq!(metric(text, "b"), None);
}

#[test]
fn a_loss_is_mended_or_given_up() {
    let patience = Patience::default();
    let url = String::new;
    let status = |status| ServedError::Status {
        url: url(),
        status,
        body: String::new(),
    };
    let broken = ServedError::BrokenOff {
        url: url(),
        why: String::new(),
    };
    let silent = ServedError::Silent {
        url: url(),
        waited: Duration::ZERO,
    };
    let again = |after| Remedy::Again { after };
    assert_eq!(patience.remedy(&broken, 1), Remedy::Restore);
    assert_eq!(
        patience.remedy(&ServedError::Restarted { url: url() }, 5),
        Remedy::Restore
    );
    assert_eq!(patience.remedy(&broken, 6), Remedy::GiveUp);
    assert_eq!(patience.remedy(&silent, 1), again(patience.pause));
    assert_eq!(patience.remedy(&status(503), 2), again(patience.pause * 2));
    assert_eq!(patience.remedy(&status(429), 5), again(patience.pause * 16));
    assert_eq!(patience.remedy(&status(500), 6), Remedy::GiveUp);
    for refused in [400, 401, 404, 422] {
        assert_eq!(patience.remedy(&status(refused), 1), Remedy::GiveUp);
    }
}
