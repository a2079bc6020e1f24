//! `[recovery]`: what is done about ranks that hold up or break a run.

use std::collections::BTreeSet;
use std::time::Duration;

use odeon_diagnosis::ladder::{LadderPolicy, RankFault};
use serde::{Deserialize, Serialize};

/// The response to a fault of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultResponse {
    /// Its process is ended, and ranks go on from the last checkpoint.
    Act,
    /// People hear of it, and nothing is done.
    Tell,
}

/// `[recovery]`: the response to each kind of fault, and how often ranks begin again before a person is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoverySection {
    /// A rank that does not go on while others wait for it.
    pub still: FaultResponse,
    /// A rank that is slow while others wait for it.
    pub slow: FaultResponse,
    /// A rank whose loss is not a number, or infinite.
    pub not_finite: FaultResponse,
    /// Seconds for which a rank stands still, or is slow, before something is done.
    pub hang_seconds: f64,
    /// Restarts of a rank in its place before its node is avoided.
    pub in_place: u32,
    /// Restarts in all before the run stops for a person.
    pub restarts: u32,
    /// Seconds after which a restart is forgotten.
    pub window_seconds: f64,
    /// Nodes that are never avoided: who was is let back.
    pub trusted: BTreeSet<String>,
}

impl Default for RecoverySection {
    fn default() -> Self {
        let policy = LadderPolicy::default();
        let response = |fault| match policy.acts.contains(&fault) {
            true => FaultResponse::Act,
            false => FaultResponse::Tell,
        };
        Self {
            still: response(RankFault::Still),
            slow: response(RankFault::Slow),
            not_finite: response(RankFault::NotFinite),
            hang_seconds: policy.patience.as_secs_f64(),
            in_place: policy.in_place,
            restarts: policy.restarts,
            window_seconds: policy.window.as_secs_f64(),
            trusted: policy.trusted,
        }
    }
}

/// The least time for which a rank stands still before something is done: what is seen of ranks is up to a second old,
/// and two looks in a row have to say the same.
const HANG_SECONDS_MIN: f64 = 1.0;

impl RecoverySection {
    /// The first field that asks for what cannot be, and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let least = [
            ("hang_seconds", self.hang_seconds, HANG_SECONDS_MIN),
            ("window_seconds", self.window_seconds, 1.0),
        ];
        for (field, seconds, least) in least {
            // More seconds than a clock has are none.
            if !(least..=1e9).contains(&seconds) {
                let what = format!("expected {least} seconds or more, found {seconds}");
                return Err((field, what));
            }
        }
        match self.in_place {
            0 => {
                let what =
                    "at least 1 is needed: what befalls a rank once is no reason to leave its node";
                Err(("in_place", what.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// The same, as whoever supervises ranks goes by it.
    #[must_use]
    pub fn policy(&self) -> LadderPolicy {
        let responses = [
            (RankFault::Still, self.still),
            (RankFault::Slow, self.slow),
            (RankFault::NotFinite, self.not_finite),
            // Its process has ended already, and ranks go on without being asked.
            (RankFault::Crashed, FaultResponse::Act),
        ];
        let acts = responses.into_iter();
        let acts = acts.filter(|(_, response)| *response == FaultResponse::Act);
        LadderPolicy {
            acts: acts.map(|(fault, _)| fault).collect::<BTreeSet<_>>(),
            patience: Duration::from_secs_f64(self.hang_seconds),
            in_place: self.in_place,
            restarts: self.restarts,
            window: Duration::from_secs_f64(self.window_seconds),
            trusted: self.trusted.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::recipe::Source;

    /// SEMANTICS 178.
    #[test]
    fn recovery_is_read_and_refused_by_line() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recipes");
        let text = std::fs::read_to_string(folder.join("pretrain-mix.toml")).unwrap();
        let line = text.lines().count() + 3;
        let of = |fields: &str| {
            let text = format!("{text}\n[recovery]\n{fields}\n");
            Source::new(Path::new("p.toml"), &text).pretrain_recipe()
        };
        let told = of("still = \"tell\"\nslow = \"act\"\nhang_seconds = 5\ntrusted = [\"b\"]");
        let policy = told.unwrap().recovery.policy();
        let acts = [RankFault::Slow, RankFault::Crashed];
        assert_eq!(policy.acts, BTreeSet::from(acts));
        assert_eq!(policy.patience, Duration::from_secs(5));
        assert!(policy.trusted.contains("b"));
        assert_eq!(of("").unwrap().recovery.policy(), LadderPolicy::default());
        for (field, expected) in [
            (
                "hang_seconds = 0.5",
                "expected 1 seconds or more, found 0.5",
            ),
            (
                "window_seconds = -1",
                "expected 1 seconds or more, found -1",
            ),
            ("in_place = 0", "at least 1 is needed"),
            ("still = \"wait\"", "unknown variant `wait`"),
            ("hangs = 3", "unknown field `hangs`"),
        ] {
            let error = of(field).unwrap_err().to_string();
            assert!(error.starts_with(&format!("p.toml:{line}: ")), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
