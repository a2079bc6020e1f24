//! From records to samples. Pure: what a record becomes follows from the record, the source's
//! specification and a seed that is a function of source, epoch and record.

pub mod picture;

use std::ops::Range;

use odeon_algorithms::tokenizer::{
    Conversation, LearntTurns, MaskedTokens, Tokenizer, TokenizerError,
};

use self::picture::PictureError;
use crate::{
    sample::Sample,
    source::{Longer, Pictures, Raw, SkipReason, SourceSpec},
};

/// The transform that makes samples of the records of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transform<'a> {
    tokenizer: &'a Tokenizer,
    placeholder: u32,
    context: usize,
    longer: Longer,
    pictures: Pictures,
    learn: LearntTurns,
}

impl<'a> Transform<'a> {
    pub(crate) fn new(spec: &SourceSpec, tokenizer: &'a Tokenizer, placeholder: u32) -> Self {
        Self {
            tokenizer,
            placeholder,
            context: spec.context as usize,
            longer: spec.longer,
            learn: spec.format.learn(),
            pictures: Pictures {
                // So that its text has room beside it.
                tokens: spec.pictures.tokens.min((spec.context / 2).max(1)),
                ..spec.pictures
            },
        }
    }

    /// The samples of a record, in its order.
    ///
    /// A sequence is what the tokenizer puts before a text, the picture, the prompt, the text, what the
    /// tokenizer puts after it, and the token that ends a reply, once.
    pub(crate) fn samples(&self, raw: &Raw<'_>, seed: u64) -> Result<Vec<Sample>, SkipReason> {
        if let Some(conversation) = &raw.conversation {
            return self.conversation(conversation);
        }
        if raw.text.trim().is_empty() {
            return Err(SkipReason::Empty);
        }
        let mut tokens: Vec<u32> = self.tokenizer.before().to_vec();
        let mut images = Vec::new();
        if let Some(pixels) = &raw.picture {
            let at = tokens.len() as u32;
            let image = picture::image(pixels, &self.pictures, seed, at).map_err(unreadable)?;
            tokens.resize(tokens.len() + image.tokens() as usize, self.placeholder);
            images.push(image);
        }
        if let Some(prompt) = &raw.prompt {
            tokens.extend(self.tokenizer.encode(prompt).map_err(unknown)?);
        }
        let prompt = tokens.len().max(1);
        let text = self.tokenizer.encode(&raw.text).map_err(unknown)?;
        if tokens.is_empty() {
            tokens = text;
        } else {
            tokens.extend(text);
        }
        tokens.extend(self.tokenizer.after());
        let eos = self.tokenizer.eos();
        if self.tokenizer.after().last() != Some(&eos) {
            tokens.push(eos);
        }
        self.fitted(Sample {
            tokens,
            prompt: prompt as u32,
            read: vec![],
            images,
        })
    }

    /// The samples of a conversation: what the chat template makes of it, up to the last token that is
    /// learnt.
    fn conversation(&self, conversation: &Conversation) -> Result<Vec<Sample>, SkipReason> {
        let masked = self.tokenizer.encode_conversation(conversation, self.learn);
        let MaskedTokens { mut tokens, learnt } = masked.map_err(unknown)?;
        // Nothing stands before the first token that it could be predicted from.
        let learnt = learnt.into_iter().map(|run| run.start.max(1)..run.end);
        let learnt: Vec<Range<usize>> = learnt.filter(|run| !run.is_empty()).collect();
        let (Some(first), Some(last)) = (learnt.first(), learnt.last()) else {
            let reason = "no turn of it is the model's, so that nothing of it is learnt";
            return Err(SkipReason::Bad(reason.into()));
        };
        tokens.truncate(last.end);
        let between = learnt.windows(2);
        self.fitted(Sample {
            prompt: first.start as u32,
            read: between
                .map(|runs| runs[0].end as u32..runs[1].start as u32)
                .collect(),
            tokens,
            images: vec![],
        })
    }

    /// The samples of a sequence: one, unless it is longer than the context.
    fn fitted(&self, mut whole: Sample) -> Result<Vec<Sample>, SkipReason> {
        if whole.tokens.len() > self.context {
            let longer = SkipReason::Longer {
                tokens: whole.tokens.len() as u32,
            };
            match self.longer {
                Longer::Drop => return Err(longer),
                Longer::Truncate if whole.prompt as usize >= self.context => return Err(longer),
                Longer::Truncate => {
                    whole.read = clipped(&whole.read, 0..self.context as u32);
                    whole.tokens.truncate(self.context);
                }
                Longer::Cut => return Ok(self.pieces(&whole)),
            }
        }
        Ok(vec![whole])
    }

    /// Pieces of a sequence, each of which but the first begins with the token that the one before
    /// ends with. Those that are all prompt are left out, and the picture with them.
    fn pieces(&self, whole: &Sample) -> Vec<Sample> {
        let mut images = Some(&whole.images);
        let tokens = &whole.tokens;
        let piece = |start: usize| {
            let end = tokens.len().min(start + self.context);
            let own = start as u32..end as u32;
            let images = images.take().cloned().unwrap_or_default();
            let mut prompt = whole.prompt.saturating_sub(own.start).max(1);
            let mut read = clipped(&whole.read, own);
            // A run at its beginning is its prompt.
            if let Some(first) = read.first().filter(|run| run.start <= prompt) {
                prompt = prompt.max(first.end);
                read.remove(0);
            }
            let sample = Sample {
                tokens: tokens[start..end].to_vec(),
                prompt: prompt.min((end - start) as u32),
                read,
                images,
            };
            (sample.predicted() > 0).then_some(sample)
        };
        let starts = (0..tokens.len() - 1).step_by(self.context - 1);
        starts.filter_map(piece).collect()
    }
}

/// What of runs lies in a range, counted from its beginning.
fn clipped(runs: &[Range<u32>], own: Range<u32>) -> Vec<Range<u32>> {
    let part = |run: &Range<u32>| {
        let (start, end) = (run.start.max(own.start), run.end.min(own.end));
        (start < end).then(|| start - own.start..end - own.start)
    };
    runs.iter().filter_map(part).collect()
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what an error is mapped by"
)]
fn unreadable(error: PictureError) -> SkipReason {
    SkipReason::Bad(error.to_string())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is what an error is mapped by"
)]
fn unknown(error: TokenizerError) -> SkipReason {
    SkipReason::Bad(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::source::{Fields, Format};

    fn spec(context: u32, longer: Longer) -> SourceSpec {
        SourceSpec {
            context,
            longer,
            ..SourceSpec::new("test", "", Format::Jsonl(Fields::default()))
        }
    }

    fn samples(spec: &SourceSpec, prompt: &str, text: &str) -> Result<Vec<Sample>, SkipReason> {
        let tokenizer = Tokenizer::text();
        let raw = Raw {
            prompt: (!prompt.is_empty()).then(|| prompt.into()),
            ..Raw::text(text)
        };
        Transform::new(spec, &tokenizer, 100).samples(&raw, 0)
    }

    proptest! {
        #[test]
        fn every_token_of_a_text_is_predicted_once(
            context in 2_u32..30, prompt in "[a-z]{0,40}", text in "[a-z]{1,100}",
        ) {
            let whole = samples(&spec(1000, Longer::Cut), &prompt, &text).unwrap();
            let [whole] = &whole[..] else { panic!("it is cut") };
            prop_assert_eq!(whole.tokens.len(), prompt.len() + text.len() + 2);
            let pieces = samples(&spec(context, Longer::Cut), &prompt, &text).unwrap();
            let mut predicted = Vec::new();
            for piece in &pieces {
                piece.check().unwrap();
                prop_assert!(piece.tokens.len() <= context as usize);
                prop_assert!((piece.prompt as usize) < piece.tokens.len());
                predicted.extend_from_slice(&piece.tokens[piece.prompt as usize..]);
            }
            prop_assert_eq!(&predicted[..], &whole.tokens[whole.prompt as usize..]);

            match samples(&spec(context, Longer::Truncate), &prompt, &text) {
                Ok(one) => {
                    prop_assert_eq!(one.len(), 1);
                    prop_assert!(whole.tokens.starts_with(&one[0].tokens));
                    one[0].check().unwrap();
                }
                Err(reason) => prop_assert_eq!(reason, SkipReason::Longer {
                    tokens: whole.tokens.len() as u32,
                }),
            }
            let dropped = samples(&spec(context, Longer::Drop), &prompt, &text);
            prop_assert_eq!(dropped.is_ok(), whole.tokens.len() <= context as usize);
        }
    }

    #[test]
    fn what_no_sample_is_made_of_has_a_reason() {
        let spec = spec(8, Longer::Cut);
        assert_eq!(samples(&spec, "a", " \n").unwrap_err(), SkipReason::Empty);
        let unknown = samples(&spec, "", "ä").unwrap_err();
        assert!(
            unknown.is_bad() && unknown.to_string().contains('ä'),
            "{unknown}"
        );
    }

    #[test]
    fn a_prompt_is_read_and_a_reply_predicted() {
        let samples = samples(&spec(100, Longer::Cut), "2", "3").unwrap();
        assert_eq!(samples[0].tokens, [1, 5, 6, 2]);
        assert_eq!(samples[0].prompt, 2);
    }
}
