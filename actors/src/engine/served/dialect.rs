//! Protocols of vLLM and SGLang: everything in which they differ. Pure.
//!
//! Both stream server-sent events, of which the last is `[DONE]`.
//!
//! | | vLLM, in developer mode (`VLLM_SERVER_DEV_MODE=1`) | SGLang |
//! | --- | --- | --- |
//! | a reply | `/v1/completions`: `prompt` of ids, `return_token_ids`, `logprobs` | `/generate`: `input_ids`, `return_logprob` |
//! | its tokens | `choices[0].token_ids` with `logprobs.token_logprobs`, those that are new | `meta_info.output_token_logprobs`: all, or with `--incremental-streaming-output` those that are new |
//! | pause | `/pause?mode=abort` | `/pause_generation` |
//! | weights | `/collective_rpc` with `reload_weights` and `weights_path` | `/update_weights_from_disk` |
//! | cached prefixes | `/reset_prefix_cache` | `/flush_cache` |
//! | go on | `/resume` | `/continue_generation` |
//! | room in use | `/metrics`: `vllm:kv_cache_usage_perc` | `/metrics`: `sglang:token_usage`, with `--enable-metrics` |
//!
//! Sources: for vLLM `vllm/entrypoints/openai/completion/serving.py` and, below
//! `vllm/entrypoints/serve/dev`, `rlhf/api_router.py`, `rpc/api_router.py` and
//! `cache/api_router.py`; `weights_path` of `reload_weights` is told of in vllm-project/vllm#48284.
//! Its other way, `/init_weight_transfer_engine` and `/update_weights`, has back-ends between cards
//! alone (NCCL, CUDA IPC), as has SGLang's `/update_weights_from_distributed`. For SGLang
//! `docs/advanced_features/sglang_for_rl.md` and `python/sglang/srt/managers/tokenizer_manager.py`.

use std::fmt;
use std::path::Path;

use odeon::serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::error::{DecodeError, excerpt};

/// Whose protocol a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde", rename_all = "lowercase")]
pub enum Dialect {
    /// vLLM: the completions of OpenAI, with token ids in and out.
    Vllm,
    /// SGLang: its own `/generate`.
    Sglang,
}

/// A request to continue a sequence of tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Its tokens: those of the prompt, and what there is of the reply.
    pub prompt: Vec<u32>,
    /// The most new tokens, at least 1.
    pub tokens_max: usize,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// The part of the distribution that is drawn from.
    pub top_p: f32,
    /// Draws follow from it.
    pub seed: u64,
    /// The tokens that end a reply.
    pub ends: Vec<u32>,
}

/// The content of one event of a stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// New tokens with their log-probabilities.
    pub tokens: Vec<(u32, f32)>,
    /// Why the reply ends, if it does.
    pub finish: Option<Finish>,
    /// The weights that the server says it has.
    pub weights: Option<String>,
}

/// Why a reply ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It is whole.
    Complete,
    /// The server ended it; what it says.
    Aborted(String),
}

/// One call of HTTP, a POST.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// After the address of the server, with its query.
    pub path: String,
    /// The body; none for an empty one.
    pub body: Option<Value>,
}

/// The calls that give a server other weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Update {
    /// In this order; the first that fails is the last.
    pub calls: Vec<Call>,
    /// This one whatever became of the others, or the server would stand still for good.
    pub resume: Call,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vllm => "vLLM",
            Self::Sglang => "SGLang",
        })
    }
}

impl Dialect {
    /// The call that asks for a reply. `model` is the server's name for what it serves.
    ///
    /// Whatever changes the distribution is said, since servers take what is left out from the
    /// model's `generation_config.json`.
    #[must_use]
    pub fn generate(self, model: &str, ask: &Ask) -> Call {
        // As the signed numbers that both take: the bits stay.
        let seed = ask.seed.cast_signed();
        match self {
            Self::Vllm => Call {
                path: "/v1/completions".to_owned(),
                body: Some(json!({
                    "model": model,
                    "prompt": ask.prompt,
                    "max_tokens": ask.tokens_max,
                    "temperature": ask.temperature,
                    "top_p": ask.top_p,
                    "top_k": -1,
                    "min_p": 0.0,
                    "repetition_penalty": 1.0,
                    "presence_penalty": 0.0,
                    "frequency_penalty": 0.0,
                    "seed": seed,
                    "stop_token_ids": ask.ends,
                    // Ends of the model's own would end replies that training goes on with.
                    "ignore_eos": true,
                    "skip_special_tokens": false,
                    "logprobs": 0,
                    "return_token_ids": true,
                    "return_tokens_as_token_ids": true,
                    "stream": true,
                })),
            },
            Self::Sglang => Call {
                path: "/generate".to_owned(),
                body: Some(json!({
                    "input_ids": ask.prompt,
                    "sampling_params": {
                        "max_new_tokens": ask.tokens_max,
                        "temperature": ask.temperature,
                        "top_p": ask.top_p,
                        "top_k": -1,
                        "min_p": 0.0,
                        "repetition_penalty": 1.0,
                        "presence_penalty": 0.0,
                        "frequency_penalty": 0.0,
                        "sampling_seed": seed,
                        // With `ignore_eos` it would ignore these, too.
                        "stop_token_ids": ask.ends,
                        "skip_special_tokens": false,
                        "no_stop_trim": true,
                    },
                    "return_logprob": true,
                    "stream": true,
                })),
            },
        }
    }

    /// The calls that have a server read the weights in `folder`, and name them `version` where it
    /// can. What it is working on is ended first: nothing is made with both.
    #[must_use]
    pub fn update(self, folder: &Path, version: &str) -> Update {
        let call = |path: &str, body| Call {
            path: path.to_owned(),
            body,
        };
        match self {
            Self::Vllm => Update {
                calls: vec![
                    call("/pause?mode=abort&clear_cache=true", None),
                    call(
                        "/collective_rpc",
                        Some(json!({
                            "method": "reload_weights",
                            "kwargs": {"weights_path": folder, "is_checkpoint_format": true},
                        })),
                    ),
                    call("/reset_prefix_cache", None),
                ],
                resume: call("/resume", None),
            },
            Self::Sglang => Update {
                calls: vec![
                    call("/pause_generation", Some(json!({"mode": "abort"}))),
                    call(
                        "/update_weights_from_disk",
                        Some(json!({
                            "model_path": folder,
                            "abort_all_requests": true,
                            "flush_cache": true,
                            "weight_version": version,
                        })),
                    ),
                    call("/flush_cache", None),
                ],
                resume: call("/continue_generation", Some(json!({}))),
            },
        }
    }

    /// The names under which `/metrics` may tell the part of the room for keys and values in use.
    #[must_use]
    pub const fn cache_metrics(self) -> &'static [&'static str] {
        match self {
            Self::Vllm => &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
            Self::Sglang => &["sglang:token_usage"],
        }
    }

    /// Reads the data of an event. `ask` is what it answers, and `have` how many tokens of the answer
    /// came before.
    ///
    /// # Errors
    /// [`DecodeError`]; none of its tokens counts then.
    pub fn decode(self, data: &str, ask: &Ask, have: usize) -> Result<Piece, DecodeError> {
        let event: Value = serde_json::from_str(data).map_err(|error| DecodeError::Json {
            why: error.to_string(),
            excerpt: excerpt(data),
        })?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let message = error.get("message").and_then(Value::as_str);
            let said = message.map_or_else(|| error.to_string(), ToOwned::to_owned);
            return Ok(Piece {
                finish: Some(Finish::Aborted(excerpt(&said))),
                ..Piece::default()
            });
        }
        match self {
            Self::Vllm => vllm(data, &event, ask),
            Self::Sglang => sglang(data, &event, have),
        }
    }
}

fn vllm(data: &str, event: &Value, ask: &Ask) -> Result<Piece, DecodeError> {
    let choices = event.get("choices").and_then(Value::as_array);
    let choices = choices.ok_or_else(|| form("there are no `choices`", data))?;
    // The last event of some has the usage alone.
    let Some(choice) = choices.first() else {
        return Ok(Piece::default());
    };
    if let Some(read) = choice.get("prompt_token_ids").and_then(Value::as_array) {
        let same = read
            .iter()
            .map(Value::as_u64)
            .eq(ask.prompt.iter().map(|t| Some(u64::from(*t))));
        if !same {
            return Err(DecodeError::OtherPrompt {
                sent: ask.prompt.len(),
                found: read.len(),
            });
        }
    }
    let array = |value: Option<&Value>| value.and_then(Value::as_array).cloned();
    let logprobs = choice.get("logprobs").filter(|it| !it.is_null());
    let token = |value: &Value| {
        let text = value.as_str().and_then(|it| it.strip_prefix("token_id:"));
        let id = value.as_u64().or_else(|| text?.parse().ok());
        id.and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| form("a token is no number", data))
    };
    let named = array(logprobs.and_then(|it| it.get("tokens")));
    let ids = array(choice.get("token_ids")).or_else(|| {
        let as_ids = |all: &Vec<Value>| all.iter().all(|it| token(it).is_ok());
        named.filter(as_ids)
    });
    let finished = choice.get("finish_reason").filter(|it| !it.is_null());
    let ids = match ids {
        Some(ids) => ids.iter().map(token).collect::<Result<Vec<_>, _>>()?,
        None if choice
            .get("text")
            .and_then(Value::as_str)
            .unwrap_or("")
            .is_empty() =>
        {
            vec![]
        }
        None => return Err(DecodeError::NoTokens),
    };
    let log_probs = array(logprobs.and_then(|it| it.get("token_logprobs")));
    let tokens = match log_probs {
        _ if ids.is_empty() => vec![],
        None => return Err(DecodeError::NoLogProbs { tokens: ids.len() }),
        Some(log_probs) => paired(&ids, &log_probs)?,
    };
    let stop = choice.get("stop_reason").and_then(Value::as_u64);
    let finish = finished.map(|reason| finish(reason.as_str(), stop, &tokens, reason));
    Ok(Piece {
        finish: finish.transpose()?,
        tokens,
        weights: None,
    })
}

fn sglang(data: &str, event: &Value, have: usize) -> Result<Piece, DecodeError> {
    let meta = event.get("meta_info");
    let meta = meta.ok_or_else(|| form("there is no `meta_info`", data))?;
    let count = meta.get("completion_tokens").and_then(Value::as_u64);
    let count = count.ok_or_else(|| form("there are no `completion_tokens`", data))? as usize;
    let reason = meta.get("finish_reason").filter(|it| !it.is_null());
    let listed = meta.get("output_token_logprobs").and_then(Value::as_array);
    let listed = match listed {
        Some(listed) => listed.as_slice(),
        None if count == have => &[],
        None => {
            let tokens = count.saturating_sub(have);
            return Err(DecodeError::NoLogProbs { tokens });
        }
    };
    let fresh = if listed.len() == count && count >= have {
        &listed[have..]
    } else if have + listed.len() == count {
        listed
    } else {
        let listed = listed.len();
        return Err(DecodeError::Count {
            listed,
            count,
            have,
        });
    };
    let (mut ids, mut log_probs) = (vec![], vec![]);
    for entry in fresh {
        let id = entry.get(1).and_then(Value::as_u64);
        let id = id.and_then(|id| u32::try_from(id).ok());
        ids.push(id.ok_or_else(|| form("a token is no number", data))?);
        log_probs.push(entry.get(0).cloned().unwrap_or_default());
    }
    let tokens = paired(&ids, &log_probs)?;
    let finish = reason.map(|reason| {
        let stop = reason.get("matched").and_then(Value::as_u64);
        finish(
            reason.get("type").and_then(Value::as_str),
            stop,
            &tokens,
            reason,
        )
    });
    let weights = meta.get("weight_version").and_then(Value::as_str);
    Ok(Piece {
        finish: finish.transpose()?,
        tokens,
        weights: weights.map(ToOwned::to_owned),
    })
}

/// Reads the word for the end of a reply. The token that it ended with, if the server names it, is
/// the last of its last event.
fn finish(
    word: Option<&str>,
    stop: Option<u64>,
    tokens: &[(u32, f32)],
    said: &Value,
) -> Result<Finish, DecodeError> {
    match word {
        Some("stop") => match stop.and_then(|stop| u32::try_from(stop).ok()) {
            Some(stop) if tokens.last().is_some_and(|(last, _)| *last != stop) => {
                Err(DecodeError::EndCutOff(stop))
            }
            _ => Ok(Finish::Complete),
        },
        Some("length") => Ok(Finish::Complete),
        _ => Ok(Finish::Aborted(excerpt(&said.to_string()))),
    }
}

fn paired(ids: &[u32], log_probs: &[Value]) -> Result<Vec<(u32, f32)>, DecodeError> {
    if ids.len() != log_probs.len() {
        return Err(DecodeError::Lengths {
            tokens: ids.len(),
            log_probs: log_probs.len(),
        });
    }
    let pair = |(token, value): (&u32, &Value)| match value.as_f64() {
        // Rounding makes it a little more than certain.
        Some(log_prob) if log_prob <= ROUNDING => Ok((*token, log_prob.min(0.0) as f32)),
        _ => Err(DecodeError::LogProb {
            token: *token,
            found: excerpt(&value.to_string()),
        }),
    };
    ids.iter().zip(log_probs).map(pair).collect()
}

fn form(why: &str, data: &str) -> DecodeError {
    DecodeError::Json {
        why: why.to_owned(),
        excerpt: excerpt(data),
    }
}

/// The largest value of a metric in the text that Prometheus reads, over its labels.
#[must_use]
pub fn metric(text: &str, name: &str) -> Option<f64> {
    let value = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let rest = match rest.strip_prefix('{') {
            Some(labels) => labels.rsplit_once('}')?.1,
            None => rest.strip_prefix(' ')?,
        };
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    let values = text.lines().filter_map(value);
    values.filter(|value| value.is_finite()).reduce(f64::max)
}

const ROUNDING: f64 = 1e-3;
