//! Rotary positions: the pairs that turn, and how far models stretch positions beyond those that they
//! were first trained on.

use std::sync::Arc;

use odeon_gpu::RopeShape;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Pairing of the rotary embedding, as files name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rope {
    /// Element `i` with `i + head_dim/2` (Hugging Face).
    #[default]
    HalfSplit,
    /// Element `2i` with `2i + 1` (GGUF files of Llama).
    Interleaved,
}

/// The way in which positions are stretched. Formulas are those of `transformers`
/// (`modeling_rope_utils.py`), frequencies in radians a position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// All frequencies are divided (Chen et al. 2023).
    Linear {
        /// By this.
        factor: f64,
    },
    /// The base grows with the sequence, beyond the first length alone (NTK-aware, dynamic). Sequences
    /// longer than that are refused, for their tokens would turn otherwise with each that is added.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// The first length, in tokens.
        original: usize,
    },
    /// Frequencies that turn rarely are divided, those between smoothly (Llama 3.1).
    Llama3 {
        /// Divides the lowest frequencies.
        factor: f64,
        /// Turns over the first length below which a frequency is low.
        low: f64,
        /// Turns over the first length above which a frequency stays.
        high: f64,
        /// The first length, in tokens.
        original: usize,
    },
    /// A ramp between frequencies that stay and ones that are divided (Peng et al. 2023, YaRN).
    Yarn(Yarn),
    /// Each frequency has a divisor of its own (Ding et al. 2024, LongRoPE), of which there is one list
    /// for sequences up to the first length and one for longer ones. These are refused where the lists
    /// differ: a token would turn otherwise once the sequence has grown.
    Longrope {
        /// Divisors, one a pair.
        short: Vec<f64>,
        /// Those of longer sequences.
        long: Vec<f64>,
        /// The first length, in tokens.
        original: usize,
        /// Factor on queries and keys.
        magnitude: f64,
    },
}

/// Settings of YaRN.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Yarn {
    /// Divides the lowest frequencies.
    pub factor: f64,
    /// The first length, in tokens.
    pub original: usize,
    /// Turns over the first length above which a frequency stays.
    pub fast: f64,
    /// Turns below which it is divided.
    pub slow: f64,
    /// True where the ramp begins and ends at whole pairs.
    pub truncate: bool,
    /// Factor on queries and keys.
    pub magnitude: f64,
}

impl RopeScaling {
    /// Frequencies of the pairs of a head, and the factor on what was turned.
    pub(crate) fn frequencies(&self, theta: f32, head_dim: usize) -> (Arc<[f32]>, f32) {
        let plain = RopeShape::plain(theta, head_dim);
        let divided = |by: &dyn Fn(usize, f64) -> f64| -> Arc<[f32]> {
            let numbered = plain.iter().enumerate();
            numbered
                .map(|(pair, frequency)| by(pair, f64::from(*frequency)) as f32)
                .collect()
        };
        match self {
            Self::None | Self::Dynamic { .. } => (plain, 1.0),
            Self::Linear { factor } => (divided(&|_, frequency| frequency / factor), 1.0),
            Self::Llama3 {
                factor,
                low,
                high,
                original,
            } => {
                let one = |_, frequency: f64| {
                    let turns = *original as f64 * frequency / std::f64::consts::TAU;
                    let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                };
                (divided(&one), 1.0)
            }
            Self::Yarn(yarn) => {
                let (first, last) = yarn.ramp(f64::from(theta), head_dim);
                let one = |pair: usize, frequency: f64| {
                    let divided = ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0);
                    frequency / yarn.factor * divided + frequency * (1.0 - divided)
                };
                (divided(&one), yarn.magnitude as f32)
            }
            Self::Longrope {
                short, magnitude, ..
            } => (
                divided(&|pair, frequency| frequency / short[pair]),
                *magnitude as f32,
            ),
        }
    }

    /// The name that `rope_parameters` has for it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Linear { .. } => "linear",
            Self::Dynamic { .. } => "dynamic",
            Self::Llama3 { .. } => "llama3",
            Self::Yarn(_) => "yarn",
            Self::Longrope { .. } => "longrope",
        }
    }

    /// The longest sequence, in tokens, where it is bounded by the scaling alone.
    #[must_use]
    pub fn longest(&self) -> Option<usize> {
        match self {
            Self::Dynamic { original, .. } => Some(*original),
            Self::Longrope {
                short,
                long,
                original,
                ..
            } if short != long => Some(*original),
            _ => None,
        }
    }

    /// Checks what the formulas rely on.
    pub(crate) fn check(&self, head_dim: usize) -> Result<(), String> {
        let above = |name: &str, number: f64| match number.is_finite() && number > 0.0 {
            true => Ok(()),
            false => Err(format!(
                "`{name}` of {number} in the rotary embedding's scaling"
            )),
        };
        match self {
            Self::None => Ok(()),
            Self::Linear { factor } | Self::Dynamic { factor, .. } => above("factor", *factor),
            Self::Llama3 {
                factor, low, high, ..
            } => {
                above("factor", *factor)?;
                above("low_freq_factor", *low)?;
                above("high_freq_factor less low_freq_factor", high - low)
            }
            Self::Yarn(yarn) => {
                above("factor", yarn.factor)?;
                above("beta_fast", yarn.fast)?;
                above("beta_slow", yarn.slow)?;
                above("attention_factor", yarn.magnitude)
            }
            Self::Longrope {
                short,
                long,
                magnitude,
                ..
            } => {
                above("attention_factor", *magnitude)?;
                for (name, list) in [("short_factor", short), ("long_factor", long)] {
                    if list.len() != head_dim / 2 {
                        return Err(format!(
                            "`{name}` of {} numbers for heads of width {head_dim}",
                            list.len()
                        ));
                    }
                    list.iter().try_for_each(|number| above(name, *number))?;
                }
                Ok(())
            }
        }
    }

    /// Reads `rope_parameters`, or `rope_scaling` of older files. `context` is `max_position_embeddings`.
    pub(crate) fn read(config: &Value, context: usize) -> Result<Self, String> {
        let of = |key: &str| config.get(key).filter(|found| !found.is_null());
        // Some files have fields of the scaling beside it.
        let beside = Said {
            key: "config.json",
            said: config,
        };
        beside.turns_whole_heads()?;
        // Older files have the scaling apart, and newer ones may still.
        let (key, said) = match (of("rope_scaling"), of("rope_parameters")) {
            (Some(scaling), _) => ("rope_scaling", scaling),
            (None, Some(parameters)) => ("rope_parameters", parameters),
            (None, None) => return Ok(Self::None),
        };
        if !said.is_object() {
            return Err(format!("`{key}` of {said}"));
        }
        let said = Said { key, said };
        said.turns_whole_heads()?;
        let kind = match said.get("rope_type").or_else(|| said.get("type")) {
            None => "default",
            Some(kind) => kind
                .as_str()
                .ok_or_else(|| said.strange("rope_type", kind))?,
        };
        let original = match said.length(ORIGINAL)? {
            Some(original) => original,
            None => beside.length(ORIGINAL)?.unwrap_or(context),
        };
        let stretch = context as f64 / original as f64;
        Ok(match kind {
            "default" => Self::None,
            "linear" => Self::Linear {
                factor: said.needed("factor")?,
            },
            "dynamic" => Self::Dynamic {
                factor: said.needed("factor")?,
                original: context,
            },
            "llama3" => Self::Llama3 {
                factor: said.needed("factor")?,
                low: said.needed("low_freq_factor")?,
                high: said.needed("high_freq_factor")?,
                original,
            },
            "yarn" => Self::Yarn(Yarn::read(said, original, stretch)?),
            "longrope" | "su" => {
                let factor = said.number("factor")?.unwrap_or(stretch);
                let grown = (1.0 + factor.ln() / (original as f64).ln()).sqrt();
                let inferred = if factor > 1.0 { grown } else { 1.0 };
                Self::Longrope {
                    short: said.list("short_factor")?,
                    long: said.list("long_factor")?,
                    original,
                    magnitude: said.number("attention_factor")?.unwrap_or(inferred),
                }
            }
            other => return Err(format!("scaling {other:?} of the rotary embedding")),
        })
    }

    /// Writes `rope_parameters`, whose base is added by the caller.
    pub(crate) fn write(&self) -> Map<String, Value> {
        let written = match self {
            Self::None => json!({"rope_type": "default"}),
            Self::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
            Self::Dynamic { factor, .. } => json!({"rope_type": "dynamic", "factor": factor}),
            Self::Llama3 {
                factor,
                low,
                high,
                original: length,
            } => json!({
                "rope_type": "llama3", "factor": factor, "low_freq_factor": low,
                "high_freq_factor": high, ORIGINAL: length,
            }),
            Self::Yarn(yarn) => json!({
                "rope_type": "yarn", "factor": yarn.factor, ORIGINAL: yarn.original,
                "beta_fast": yarn.fast, "beta_slow": yarn.slow, "truncate": yarn.truncate,
                "attention_factor": yarn.magnitude,
            }),
            Self::Longrope {
                short,
                long,
                original: length,
                magnitude,
            } => json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long,
                ORIGINAL: length, "attention_factor": magnitude, "factor": 1.0,
            }),
        };
        written.as_object().cloned().unwrap_or_default()
    }
}

/// The fields of a scaling; `null` is as one that is left out.
#[derive(Clone, Copy)]
struct Said<'a> {
    /// Their place, which errors name.
    key: &'a str,
    said: &'a Value,
}

impl<'a> Said<'a> {
    fn get(self, name: &str) -> Option<&'a Value> {
        self.said.get(name).filter(|found| !found.is_null())
    }

    fn strange(self, name: &str, found: &Value) -> String {
        format!("`{}.{name}` of {found}", self.key)
    }

    fn number(self, name: &str) -> Result<Option<f64>, String> {
        let read = |found: &Value| found.as_f64().ok_or_else(|| self.strange(name, found));
        self.get(name).map(read).transpose()
    }

    fn needed(self, name: &str) -> Result<f64, String> {
        let number = self.number(name)?;
        number.ok_or_else(|| format!("`{}` without `{name}`", self.key))
    }

    fn turns_whole_heads(self) -> Result<(), String> {
        match self.number("partial_rotary_factor")? {
            Some(part) if part != 1.0 => Err(format!("rotation of a part of each head ({part})")),
            _ => Ok(()),
        }
    }

    /// Tokens.
    fn length(self, name: &str) -> Result<Option<usize>, String> {
        let read = |found: &Value| {
            let length = found.as_u64().and_then(|it| usize::try_from(it).ok());
            let length = length.filter(|it| (1..=1 << 40).contains(it));
            length.ok_or_else(|| self.strange(name, found))
        };
        self.get(name).map(read).transpose()
    }

    fn list(self, name: &str) -> Result<Vec<f64>, String> {
        let found = self.get(name);
        let found = found.ok_or_else(|| format!("`{}` without `{name}`", self.key))?;
        let numbers = found.as_array().into_iter().flatten();
        let numbers: Option<Vec<f64>> = numbers.map(Value::as_f64).collect();
        numbers.ok_or_else(|| self.strange(name, found))
    }
}

/// The first length, in files.
const ORIGINAL: &str = "original_max_position_embeddings";

impl Yarn {
    /// Reads its settings; `stretch` is the longest sequence over the first length.
    fn read(said: Said<'_>, original: usize, stretch: f64) -> Result<Self, String> {
        let factor = said.number("factor")?.unwrap_or(stretch);
        let scales = (said.number("mscale")?, said.number("mscale_all_dim")?);
        let told = said.number("attention_factor")?;
        let turns = |name: &str, otherwise: f64| {
            let told = said.number(name)?.filter(|turns| *turns != 0.0);
            Ok::<_, String>(told.unwrap_or(otherwise))
        };
        Ok(Self {
            factor,
            original,
            fast: turns("beta_fast", 32.0)?,
            slow: turns("beta_slow", 1.0)?,
            truncate: match said.get("truncate") {
                None => true,
                Some(found) => found
                    .as_bool()
                    .ok_or_else(|| said.strange("truncate", found))?,
            },
            magnitude: told.unwrap_or_else(|| Self::magnitude(factor, scales)),
        })
    }

    /// The factor on queries and keys of files that name none.
    fn magnitude(factor: f64, scales: (Option<f64>, Option<f64>)) -> f64 {
        let of = |scale: f64| match factor <= 1.0 {
            true => 1.0,
            false => 0.1 * scale * factor.ln() + 1.0,
        };
        match scales {
            (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => of(scale) / of(all),
            _ => of(1.0),
        }
    }

    /// The pairs between which frequencies pass from those that stay to those that are divided.
    fn ramp(&self, theta: f64, head_dim: usize) -> (f64, f64) {
        let dim = head_dim as f64;
        let pair = |turns: f64| {
            let length = self.original as f64 / (turns * std::f64::consts::TAU);
            dim * length.ln() / (2.0 * theta.ln())
        };
        let (mut first, mut last) = (pair(self.fast), pair(self.slow));
        if self.truncate {
            (first, last) = (first.floor(), last.ceil());
        }
        (first, last) = (first.max(0.0), last.min(dim - 1.0));
        if first == last {
            last += 0.001;
        }
        (first, last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frequencies of transformers 5.24 (`modeling_rope_utils.py`).
    #[test]
    fn frequencies_are_those_of_transformers() {
        let text = include_str!("../../tests/golden/rope.json");
        let cases: Vec<Value> = serde_json::from_str(text).unwrap();
        for case in &cases {
            let number = |key: &str| case[key].as_u64().unwrap() as usize;
            let context = number("max_position_embeddings");
            let scaling = RopeScaling::read(case, context).unwrap();
            let theta = case["rope_parameters"]["rope_theta"].as_f64().unwrap() as f32;
            let (found, magnitude) = scaling.frequencies(theta, number("head_dim"));
            let right = case["frequencies"].as_array().unwrap();
            assert_eq!(found.len(), right.len());
            for (pair, (found, right)) in found.iter().zip(right).enumerate() {
                let right = right.as_f64().unwrap();
                let off = (f64::from(*found) - right).abs();
                assert!(off <= 2e-6 * right, "{case} {pair}: {found}");
            }
            let right = case["magnitude"].as_f64().unwrap();
            assert!(
                (f64::from(magnitude) - right).abs() < 1e-6,
                "{case}: {magnitude}"
            );
            // What is written is read as the same.
            let mut written = json!({"rope_parameters": scaling.write()});
            written["rope_parameters"]["rope_theta"] = json!(theta);
            assert_eq!(RopeScaling::read(&written, context).unwrap(), scaling);
        }
        assert_eq!(cases.len(), 9);
    }

    #[test]
    fn sequences_that_would_turn_otherwise_once_they_have_grown_are_bounded() {
        let read = |text: &str| {
            let config = serde_json::from_str(&format!(r#"{{"rope_scaling": {text}}}"#)).unwrap();
            RopeScaling::read(&config, 64).unwrap().longest()
        };
        assert_eq!(read(r#"{"type": "linear", "factor": 2}"#), None);
        assert_eq!(read(r#"{"type": "dynamic", "factor": 2}"#), Some(64));
        let lists = |long: &str| {
            read(&format!(
                r#"{{"type": "longrope", "short_factor": [1, 2], "long_factor": {long},
                "original_max_position_embeddings": 16}}"#
            ))
        };
        assert_eq!(lists("[1, 2]"), None);
        assert_eq!(lists("[1, 3]"), Some(16));
    }
}
