//! Prompts as a model reads them.

use odeon_algorithms::task::PromptStyle;
use odeon_algorithms::tokenizer::{Message as ChatTurn, Tokenizer, TokenizerError};

/// The tokens that a model sees for a prompt.
///
/// # Errors
/// The tokenizer cannot write it.
pub fn encode_prompt(
    tokenizer: &Tokenizer,
    style: PromptStyle,
    prompt: &str,
) -> Result<Vec<u32>, TokenizerError> {
    match style {
        PromptStyle::Plain => tokenizer.encode_whole(prompt),
        PromptStyle::Chat => tokenizer.encode_chat(&[ChatTurn::user(prompt)]),
    }
}
