//! Environments of several turns: a model calls a tool in its reply, and what the tool says is written
//! into the reply, which goes on behind it.
//!
//! ```text
//!  prompt   reply
//!  7+12-5=  <7+12>19;<19-5>14;14
//!           ~~~~~~   ~~~~~~   ~~   the policy's own tokens
//!                 ~~~      ~~~     observations: what the tool wrote
//! ```
//!
//! An [`Environment`] is pure: it says whether a reply has just called its tool and with what, and how
//! an answer is written. Running the tool is somebody else's work, but for [`calculate`].
//! [`Latency`] draws how long a call is made to take, so that long tails can be measured.
//!
//! ```
//! use odeon_algorithms::environment::{Environment, EnvironmentConfig, Next, Tool, calculate};
//! use odeon_algorithms::tokenizer::Tokenizer;
//!
//! let tokenizer = Tokenizer::arithmetic();
//! let environment = Environment::new(EnvironmentConfig::of(Tool::Calculator), tokenizer.clone());
//! let own = tokenizer.encode("<7+12>")?;
//! assert_eq!(environment.next(&own, 0), Next::Call("7+12".to_owned()));
//! let observation = environment.observation(&calculate("7+12"));
//! assert_eq!(tokenizer.decode(&observation)?, "19;");
//! # Ok::<(), odeon_algorithms::tokenizer::TokenizerError>(())
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::task::expression::evaluate;
use crate::tokenizer::Tokenizer;
use crate::workload::{normal_quantile, uniform};

/// A tool that a reply can call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// `<12+7>`, to which `19;` is the answer: exact arithmetic, see [`calculate`].
    Calculator,
    /// `<python>print(12+7)</python>`, to which `<output>19</output>` is the answer: what the program
    /// prints.
    Python,
}

/// The settings of an [`Environment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvironmentConfig {
    /// The tool that replies can call.
    pub tool: Tool,
    /// Calls that a reply may make: one that makes another ends there.
    pub turns_max: usize,
    /// Tokens of an answer, what is written around it aside: longer ones are cut.
    pub observation_max: usize,
    /// The longest that a call may take: what takes longer has no answer.
    pub call_max: Duration,
}

/// A tool as the tokens of replies see it: where a call ends, and how its answer is written.
#[derive(Clone, Debug)]
pub struct Environment {
    config: EnvironmentConfig,
    tokenizer: Tokenizer,
    closing: Vec<u32>,
}

/// The continuation of a reply that has come to a token which may close a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It was no call: the model goes on.
    GoesOn,
    /// The tool is called with this.
    Call(String),
    /// It was a call too many: the reply ends here.
    Ended,
}

/// The simulated time of calls: log-normal, at most so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median, in milliseconds; 0 for none.
    pub median_ms: f64,
    /// Standard deviation of the logarithm. At 0.99 one call of a hundred takes ten times the median.
    pub sigma: f64,
    /// The most, in milliseconds.
    pub max_ms: f64,
}

impl Tool {
    /// A call, as a model writes it.
    #[must_use]
    pub fn called(self, input: &str) -> String {
        let (opens, closes) = self.marks();
        format!("{opens}{input}{closes}")
    }

    /// An answer, as it is written into a reply.
    #[must_use]
    pub fn answered(self, output: &str) -> String {
        let (before, after) = self.around();
        format!("{before}{output}{after}")
    }

    /// The text of a reply behind the last answer; all of it where there was none.
    #[must_use]
    pub fn said_last(self, reply: &str) -> &str {
        let (_, after) = self.around();
        reply.rsplit(after).next().unwrap_or(reply)
    }

    /// The marks around a call.
    const fn marks(self) -> (&'static str, &'static str) {
        match self {
            Self::Calculator => ("<", ">"),
            Self::Python => ("<python>", "</python>"),
        }
    }

    /// The marks around an answer.
    const fn around(self) -> (&'static str, &'static str) {
        match self {
            Self::Calculator => ("", ";"),
            Self::Python => ("<output>", "</output>"),
        }
    }
}

impl EnvironmentConfig {
    /// Up to eight calls of up to ten seconds, with answers of up to 64 tokens.
    #[must_use]
    pub const fn of(tool: Tool) -> Self {
        Self {
            tool,
            turns_max: 8,
            observation_max: 64,
            call_max: Duration::from_secs(10),
        }
    }
}

impl Environment {
    /// For models that read and write with this tokenizer.
    #[must_use]
    pub fn new(config: EnvironmentConfig, tokenizer: Tokenizer) -> Self {
        let closes = config.tool.marks().1.chars().next_back();
        let ids = 0..u32::try_from(tokenizer.vocabulary()).unwrap_or(u32::MAX);
        // A token may hold more than the last character of a call, and such a character may be no end
        // of one: whether it was is seen in the text.
        let closing = ids.filter(|id| {
            let text = tokenizer.decode(&[*id]).unwrap_or_default();
            closes.is_some_and(|closes| text.contains(closes))
        });
        Self {
            closing: closing.collect(),
            config,
            tokenizer,
        }
    }

    /// The settings that it was made from.
    #[must_use]
    pub const fn config(&self) -> &EnvironmentConfig {
        &self.config
    }

    /// The tokens at which a call may close: a reply stops there to be looked at.
    #[must_use]
    pub fn closing(&self) -> &[u32] {
        &self.closing
    }

    /// Decides what comes next in a reply with so many calls, of which the model wrote `own` behind
    /// the last answer.
    #[must_use]
    pub fn next(&self, own: &[u32], turns: usize) -> Next {
        let (opens, closes) = self.config.tool.marks();
        let text = self.tokenizer.decode_reply(own).unwrap_or_default();
        let Some(text) = text.trim_end().strip_suffix(closes) else {
            return Next::GoesOn;
        };
        match text.rsplit_once(opens) {
            Some(_) if turns >= self.config.turns_max => Next::Ended,
            // What is closed already is no call that goes on.
            Some((_, input)) if !input.contains(closes) => Next::Call(input.to_owned()),
            _ => Next::GoesOn,
        }
    }

    /// An answer as tokens of a reply. What the tokenizer has no token for is left out.
    #[must_use]
    pub fn observation(&self, output: &str) -> Vec<u32> {
        let (before, after) = self.config.tool.around();
        let mut tokens = self.encoded(before);
        let output = self.encoded(output.trim());
        tokens.extend(output.iter().take(self.config.observation_max));
        tokens.extend(self.encoded(after));
        tokens
    }

    fn encoded(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text).unwrap_or_else(|_| {
            let each = text
                .chars()
                .map(|it| self.tokenizer.encode(it.encode_utf8(&mut [0; 4])));
            each.filter_map(Result::ok).flatten().collect()
        })
    }
}

impl Latency {
    /// The time that a call is made to take: a pure function of the seed, the sample and which of
    /// its calls it is.
    #[must_use]
    pub fn of(&self, seed: u64, group: u64, sample: u32, turn: usize) -> Duration {
        let normal = normal_quantile(uniform(&[seed, group, sample.into(), turn as u64, CALL]));
        self.at(normal)
    }

    /// So many standard deviations of the logarithm above the median.
    fn at(&self, normal: f64) -> Duration {
        if self.median_ms <= 0.0 {
            return Duration::ZERO;
        }
        let takes = self.median_ms * (self.sigma * normal).exp();
        Duration::from_secs_f64(takes.min(self.max_ms).max(0.0) / 1e3)
    }
}

/// The calculator's answer: the value of an expression, a fraction where it is not whole, and
/// [`UNANSWERED`] for what is no expression.
#[must_use]
pub fn calculate(input: &str) -> String {
    let input = input.trim();
    // An expression begins with a number; one below zero is taken from nothing.
    let value = match input.starts_with('-') {
        true => evaluate(&format!("0{input}")),
        false => evaluate(input),
    };
    value.map_or_else(|_| UNANSWERED.to_owned(), |value| value.to_string())
}

/// The answer of a tool that has none.
pub const UNANSWERED: &str = "?";

/// Tells draws of latencies from others of the same seed.
const CALL: u64 = 0x63_61_6c_6c;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn environment(tool: Tool, tokenizer: &Tokenizer) -> Environment {
        let config = EnvironmentConfig {
            turns_max: 2,
            observation_max: 4,
            ..EnvironmentConfig::of(tool)
        };
        Environment::new(config, tokenizer.clone())
    }

    #[test]
    fn a_call_is_what_stands_between_its_marks_at_the_end() {
        let check = |tool, text: &str, turns, expected: Next| {
            let tokenizer = Tokenizer::text();
            let environment = environment(tool, &tokenizer);
            let own = tokenizer.encode(text).unwrap();
            assert_eq!(environment.next(&own, turns), expected, "{text}");
            let last = own.last().copied();
            let stops = last.is_some_and(|last| environment.closing().contains(&last));
            assert_eq!(stops, text.ends_with('>'), "{text}");
        };
        let call = |input: &str| Next::Call(input.to_owned());
        check(Tool::Calculator, "<1+2>", 0, call("1+2"));
        check(Tool::Calculator, "so <1+2>", 1, call("1+2"));
        check(Tool::Calculator, "<1+2>", 2, Next::Ended);
        check(Tool::Calculator, "1+2>", 2, Next::GoesOn);
        check(Tool::Calculator, "<<3>", 0, call("3"));
        check(Tool::Calculator, "<1>2>", 0, Next::GoesOn);
        check(Tool::Calculator, "<1+2", 0, Next::GoesOn);
        check(Tool::Calculator, "", 0, Next::GoesOn);
        check(Tool::Python, "<python>a > b</python>", 0, call("a > b"));
        check(Tool::Python, "<python>if a >", 0, Next::GoesOn);
        check(Tool::Python, "<python>", 0, Next::GoesOn);
        check(Tool::Python, "</python>", 0, Next::GoesOn);
    }

    #[test]
    fn an_answer_is_cut_and_what_cannot_be_written_is_left_out() {
        let check = |tool, tokenizer: &Tokenizer, output: &str, expected: &str| {
            let tokens = environment(tool, tokenizer).observation(output);
            assert_eq!(tokenizer.decode(&tokens).unwrap(), expected);
        };
        check(Tool::Calculator, &Tokenizer::arithmetic(), "19", "19;");
        check(
            Tool::Calculator,
            &Tokenizer::arithmetic(),
            "123456",
            "1234;",
        );
        check(Tool::Calculator, &Tokenizer::arithmetic(), "a1é2", "12;");
        let text = Tokenizer::text();
        check(Tool::Python, &text, "19\n", "<output>19</output>");
        check(Tool::Python, &text, "", "<output></output>");
    }

    #[test]
    fn the_calculator_is_exact_and_says_where_it_has_no_answer() {
        let check = |input: &str, output: &str| assert_eq!(calculate(input), output, "{input}");
        check("7+12", "19");
        check("-3-5", "-8");
        check(" 1/3+1/6 ", "1/2");
        check("1/0", "?");
        check("", "?");
        check("7+", "?");
        check(&"9".repeat(50), "?");
    }

    #[test]
    fn one_call_of_a_hundred_takes_ten_times_the_median() {
        let latency = Latency {
            median_ms: 50.0,
            sigma: 10f64.ln() / 2.326,
            max_ms: 5_000.0,
        };
        let mut all: Vec<Duration> = (0..20_000)
            .map(|group| latency.of(7, group, 0, 0))
            .collect();
        all.sort_unstable();
        let near = |part: f64, expected: f64| {
            let found = all[(part * all.len() as f64) as usize].as_secs_f64() * 1e3;
            assert!((found / expected - 1.0).abs() < 0.15, "{part}: {found} ms");
        };
        near(0.5, 50.0);
        near(0.99, 500.0);
        assert_eq!(latency.at(50.0), Duration::from_secs(5));
        assert_eq!(Latency::default().of(7, 1, 2, 3), Duration::ZERO);
    }

    proptest! {
        /// The same call takes the same time, and other calls take others.
        #[test]
        fn a_latency_follows_from_the_call(seed: u64, group: u64, sample: u32, turn in 0usize..64) {
            let latency = Latency { median_ms: 10.0, sigma: 1.0, max_ms: 1e9 };
            let takes = latency.of(seed, group, sample, turn);
            prop_assert_eq!(takes, latency.of(seed, group, sample, turn));
            prop_assert_ne!(takes, latency.of(seed, group, sample, turn + 1));
            prop_assert_ne!(takes, latency.of(seed, group, sample.wrapping_add(1), turn));
        }

        /// Whatever a model writes, a call is what stands last between two marks.
        #[test]
        fn a_call_is_in_the_text(text in "[0-9<>+;]{0,12}", turns in 0usize..4) {
            let tokenizer = Tokenizer::arithmetic();
            let environment = environment(Tool::Calculator, &tokenizer);
            let own = tokenizer.encode(&text).unwrap();
            match environment.next(&own, turns) {
                Next::Call(input) => {
                    prop_assert!(turns < 2 && text.ends_with(&Tool::Calculator.called(&input)));
                }
                Next::Ended => prop_assert!(turns >= 2 && text.ends_with('>')),
                Next::GoesOn => {}
            }
        }
    }
}
