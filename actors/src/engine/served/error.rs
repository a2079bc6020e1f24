//! Errors of a server, in words that name it.

use std::path::PathBuf;
use std::time::Duration;

use super::Dialect;

/// Why a server did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ServedError {
    /// Nobody takes connections there. Nothing was done.
    #[error("{url} cannot be reached: {why}; is the server up, and is that its address?")]
    Unreachable {
        /// The URL that was asked.
        url: String,
        /// Message of the network.
        why: String,
    },
    /// It refused, or failed; nothing of a reply is lost by that.
    #[error("{url} answered {status}: {body}")]
    Status {
        /// The URL that was asked.
        url: String,
        /// The status of HTTP.
        status: u16,
        /// The begin of what it says.
        body: String,
    },
    /// It holds the connection and sends nothing. What it has sent before counts.
    #[error("{url} has sent nothing for {:.1} s", waited.as_secs_f64())]
    Silent {
        /// The URL that was asked.
        url: String,
        /// Time that was waited.
        waited: Duration,
    },
    /// The connection ended before the reply did. What came before counts.
    #[error("{url} broke off: {why}")]
    BrokenOff {
        /// The URL that was asked.
        url: String,
        /// Message of the network.
        why: String,
    },
    /// It ended a reply that had not come to its end. What came before counts.
    #[error("{url} gave a reply up: {why}")]
    Aborted {
        /// The URL that was asked.
        url: String,
        /// The reason that the server gives.
        why: String,
    },
    /// It does not have the weights that it was given: it was started anew since. Nothing was made
    /// with the others.
    #[error("{url} was started anew and has other weights than it was given")]
    Restarted {
        /// The server.
        url: String,
    },
    /// It sent what no such server sends: most likely an older release, or another program.
    #[error("{url} sent what is no answer of {dialect}: {why}")]
    Strange {
        /// The URL that was asked.
        url: String,
        /// Whose answer was expected.
        dialect: Dialect,
        /// The fault in the answer.
        why: DecodeError,
    },
    /// Weights could not be written to where the server reads them.
    #[error("weights for the server cannot be written to {}: {why}", path.display())]
    Folder {
        /// Where.
        path: PathBuf,
        /// The error, in words.
        why: String,
    },
    /// The settings name something that is not there.
    #[error("{0}")]
    Settings(String),
    /// It was tried for as long as one may wait; the last that went wrong.
    #[error("given up after {:.0} s: {last}", waited.as_secs_f64())]
    GivenUp {
        /// For how long it was tried.
        waited: Duration,
        /// The last of the errors.
        last: Box<Self>,
    },
}

/// A fault in an event of a stream. None of its tokens was taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No JSON, or of another form.
    #[error("{why} in `{excerpt}`")]
    Json {
        /// Message of the parser.
        why: String,
        /// The begin of the text.
        excerpt: String,
    },
    /// There is text, but not the tokens that it was made of.
    #[error(
        "tokens have no ids; vLLM sends them from 0.10.2 on (`return_token_ids`), SGLang with \
         `return_logprob`"
    )]
    NoTokens,
    /// Tokens without log-probabilities.
    #[error("{tokens} tokens have no log-probabilities, which training needs")]
    NoLogProbs {
        /// So many tokens.
        tokens: usize,
    },
    /// As many tokens as log-probabilities were expected.
    #[error("{tokens} tokens have {log_probs} log-probabilities")]
    Lengths {
        /// So many tokens.
        tokens: usize,
        /// So many log-probabilities.
        log_probs: usize,
    },
    /// No logarithm of a probability.
    #[error("token {token} has {found} for a log-probability")]
    LogProb {
        /// The token.
        token: u32,
        /// The value in its place.
        found: String,
    },
    /// The server lists neither all tokens so far nor those since the last event.
    #[error("{listed} tokens are listed where there are {count}, of which {have} were known")]
    Count {
        /// Tokens of the event.
        listed: usize,
        /// Tokens of the reply, as the server counts.
        count: usize,
        /// Those that came before.
        have: usize,
    },
    /// The server has continued something else than it was asked to.
    #[error(
        "it read another prompt than it was sent: {found} tokens in place of {sent}, or others"
    )]
    OtherPrompt {
        /// Tokens that it was sent.
        sent: usize,
        /// Tokens that it names.
        found: usize,
    },
    /// The token that ended the reply is not among its tokens.
    #[error("the reply ended with token {0}, which is not at its end")]
    EndCutOff(u32),
    /// One event is larger than any can be.
    #[error("an event has more than {0} bytes")]
    TooLong(usize),
}

/// The begin of a text, on one line.
pub(super) fn excerpt(text: &str) -> String {
    let short: String = text.chars().take(EXCERPT_CHARS).collect();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let cut = if short.len() < text.len() { "..." } else { "" };
    format!(
        "{}{cut}",
        short.trim().chars().map(plain).collect::<String>()
    )
}

/// Enough for the message of an error.
const EXCERPT_CHARS: usize = 300;
