//! Tokens that have keys and values on a rollout. Pure.

use std::collections::HashMap;

use super::Prefixes;
use crate::trajectory::SampleId;

/// Tokens with keys and values. Those of a prompt are there once for all replies that share it.
#[derive(Debug)]
pub(super) struct Cache {
    prefixes: Prefixes,
    prompts: HashMap<Prompt, u32>,
    tokens: u64,
}

/// Whose keys and values of a prompt: of a group or of one sample, made with these weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Prompt {
    group: u64,
    sample: Option<u32>,
    weights: u64,
}

/// A reply as the cache knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) id: SampleId,
    pub(super) weights: u64,
    /// Tokens of its prompt.
    pub(super) prompt: u64,
    /// Tokens of itself.
    pub(super) own: u64,
}

impl Cache {
    pub(super) fn new(prefixes: Prefixes) -> Self {
        Self {
            prefixes,
            prompts: HashMap::new(),
            tokens: 0,
        }
    }

    /// Tokens that take room.
    pub(super) const fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Tokens that this one would add.
    pub(super) fn needs(&self, part: Part) -> u64 {
        match self.prompts.contains_key(&self.prompt(part)) {
            true => part.own,
            false => part.prompt + part.own,
        }
    }

    /// Takes one in. Returns the number of tokens of its prompt that were there already.
    pub(super) fn enter(&mut self, part: Part) -> u64 {
        let needs = self.needs(part);
        self.tokens += needs;
        *self.prompts.entry(self.prompt(part)).or_default() += 1;
        part.prompt + part.own - needs
    }

    /// One that was taken in goes.
    pub(super) fn leave(&mut self, part: Part) {
        self.tokens -= part.own;
        let prompt = self.prompt(part);
        if let Some(count) = self.prompts.get_mut(&prompt) {
            *count -= 1;
            if *count == 0 {
                self.prompts.remove(&prompt);
                self.tokens -= part.prompt;
            }
        }
    }

    /// Those that were taken in have so many more tokens together.
    pub(super) const fn grow(&mut self, tokens: u64) {
        self.tokens += tokens;
    }

    pub(super) fn clear(&mut self) {
        self.prompts.clear();
        self.tokens = 0;
    }

    const fn prompt(&self, part: Part) -> Prompt {
        Prompt {
            group: part.id.group,
            sample: match self.prefixes {
                Prefixes::Shared => None,
                Prefixes::Own => Some(part.id.sample),
            },
            weights: part.weights,
        }
    }
}
