//! `[recovery]`: what is done about ranks that hold up or break a run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use odeon_diagnosis::ladder::{LadderPolicy, RankFault};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ranks::standbys::{MACHINE_FAULTS_DAILY, StandbyCount};

/// The response to a fault of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultResponse {
    /// Its process is ended, and ranks go on from the last checkpoint.
    Act,
    /// People hear of it, and nothing is done.
    Tell,
}

/// `recovery.standbys`: a number, or `"auto"` for as many as the rate of faults asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandbyWish {
    /// As many.
    Fixed(u32),
    /// By the binomial rule.
    Auto,
}

impl Serialize for StandbyWish {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Fixed(count) => to.serialize_u32(*count),
            Self::Auto => to.serialize_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for StandbyWish {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(WishVisitor)
    }
}

const AUTO: &str = "auto";

struct WishVisitor;

impl Visitor<'_> for WishVisitor {
    type Value = StandbyWish;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of standbys, 0 or more, or \"auto\"")
    }

    fn visit_i64<E: Error>(self, count: i64) -> Result<StandbyWish, E> {
        let wrong = |_| E::invalid_value(serde::de::Unexpected::Signed(count), &self);
        count.try_into().map(StandbyWish::Fixed).map_err(wrong)
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<StandbyWish, E> {
        let wrong = |_| E::invalid_value(serde::de::Unexpected::Unsigned(count), &self);
        count.try_into().map(StandbyWish::Fixed).map_err(wrong)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<StandbyWish, E> {
        match word {
            AUTO => Ok(StandbyWish::Auto),
            word => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
        }
    }
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
    /// Processes that wait to take the numbers of ranks that are lost.
    pub standbys: StandbyWish,
    /// The probability that a machine fails on a day, which `"auto"` goes by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_faults_daily: Option<f64>,
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
            standbys: StandbyWish::Fixed(0),
            machine_faults_daily: None,
        }
    }
}

/// The least time for which a rank stands still before something is done: what is seen of ranks is up to a second old,
/// and two looks in a row have to say the same.
const HANG_SECONDS_MIN: f64 = 1.0;

impl RecoverySection {
    /// The first field that asks for what cannot be, and why.
    fn check(&self) -> Result<(), (&'static str, String)> {
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

    /// The number of standbys for a run of so many ranks.
    ///
    /// # Errors
    /// The first field that asks for what cannot be, and why.
    pub(super) fn standbys(&self, ranks: u32) -> Result<StandbyCount, (&'static str, String)> {
        self.check()?;
        let count = match (self.standbys, self.machine_faults_daily) {
            (StandbyWish::Fixed(count), None) if count > ranks => {
                let what = format!(
                    "expected {ranks} standbys at most, one for each of processes.ranks, found {count}"
                );
                return Err(("standbys", what));
            }
            (StandbyWish::Fixed(count), None) => StandbyCount::Fixed(count),
            (StandbyWish::Fixed(_), Some(_)) => {
                let what = "it is what standbys = \"auto\" goes by: expected it with that alone";
                return Err(("machine_faults_daily", what.to_owned()));
            }
            (StandbyWish::Auto, daily) => StandbyCount::ByFaults {
                daily: daily.unwrap_or(MACHINE_FAULTS_DAILY),
            },
        };
        let checked = count.of(&BTreeMap::new());
        checked.map_err(|error| ("machine_faults_daily", error.to_string()))?;
        Ok(count)
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
            version: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::recipe::Source;

    /// SEMANTICS 178, 205.
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
        let standbys = |fields: &str| of(fields).map(|it| it.recovery.standbys(2).unwrap());
        assert_eq!(standbys("").unwrap(), StandbyCount::NONE);
        assert_eq!(standbys("standbys = 2").unwrap(), StandbyCount::Fixed(2));
        let by_faults = |daily| StandbyCount::ByFaults { daily };
        let auto = "standbys = \"auto\"\n";
        assert_eq!(standbys(auto).unwrap(), by_faults(MACHINE_FAULTS_DAILY));
        let rate = |daily: f64| standbys(&format!("{auto}machine_faults_daily = {daily:?}"));
        assert_eq!(rate(0.25).unwrap(), by_faults(0.25));
        let wrong = rate(2.0).unwrap_err().to_string();
        assert!(
            wrong.starts_with(&format!("p.toml:{}: ", line + 1)),
            "{wrong}"
        );
        assert!(
            wrong.contains("probability 2: expected at least 0 and below 1"),
            "{wrong}"
        );
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
            (
                "standbys = -1",
                "expected a number of standbys, 0 or more, or \"auto\"",
            ),
            (
                "standbys = \"many\"",
                "expected a number of standbys, 0 or more, or \"auto\"",
            ),
            (
                "standbys = 3",
                "expected 2 standbys at most, one for each of processes.ranks, found 3",
            ),
            (
                "machine_faults_daily = 0.1",
                "it is what standbys = \"auto\" goes by",
            ),
            ("still = \"wait\"", "unknown variant `wait`"),
            ("hangs = 3", "unknown field `hangs`"),
        ] {
            let error = of(field).unwrap_err().to_string();
            assert!(error.starts_with(&format!("p.toml:{line}: ")), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }
}
