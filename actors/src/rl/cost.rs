//! The cost actor: what harm a reply does, by a rule. The reward actor says how good it is.

use odeon::serde::{Deserialize, Serialize};
use odeon::{Failure, actor, message};
use odeon_algorithms::tokenizer::Tokenizer;

use crate::trajectory::Trajectory;

/// Settings that a [`Cost`] is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub struct CostArgs {
    /// The measure of cost.
    pub harm: Harm,
    /// The tokenizer that turns tokens into text.
    pub tokenizer: Tokenizer,
}

/// The cost of a reply, from 0 to 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "odeon::serde")]
pub enum Harm {
    /// Its length, in parts of so many tokens.
    Length(usize),
    /// 1 if this text is in it, else 0.
    Text(String),
}

impl Harm {
    pub(crate) fn of(&self, tokens: usize, text: &str) -> f32 {
        match self {
            Self::Length(most) => (tokens as f32 / (*most).max(1) as f32).min(1.0),
            Self::Text(harm) => f32::from(u8::from(text.contains(harm.as_str()))),
        }
    }
}

/// Fills in `cost`.
#[message(reply = Trajectory, name = "cost.Weigh")]
#[derive(Debug)]
pub struct Weigh(pub Trajectory);

/// The actor that gives each reply its cost.
#[derive(Debug)]
pub struct Cost {
    args: CostArgs,
}

#[actor(name = "rl.Cost")]
impl Cost {
    async fn start(args: CostArgs) -> Result<Self, Failure> {
        Ok(Self { args })
    }

    #[handler(message = Weigh)]
    fn weigh(&mut self, weigh: Weigh) -> Trajectory {
        let Weigh(mut trajectory) = weigh;
        let response = &trajectory.response;
        // Tokens outside the vocabulary are no text.
        let text = self
            .args
            .tokenizer
            .decode_reply(response)
            .unwrap_or_default();
        trajectory.cost = self.args.harm.of(response.len(), &text);
        trajectory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn length_costs_in_parts_of_the_longest_and_a_text_all_or_nothing() {
        let length = Harm::Length(8);
        assert_eq!(
            [0, 2, 8, 9].map(|it| length.of(it, "")),
            [0.0, 0.25, 1.0, 1.0]
        );
        let text = Harm::Text("rm -rf".to_owned());
        assert_eq!(["ls", "rm -rf /"].map(|it| text.of(3, it)), [0.0, 1.0]);
    }
}
