//! One line of the report, and how it is computed from rounds.

use std::fmt::Write;

use serde::Serialize;

/// The groups to measure, and the number of rounds.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Groups to run; empty for all.
    pub groups: Vec<String>,
    /// Rounds of floor and runtime in turn.
    pub rounds: usize,
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            groups: vec![],
            rounds: 9,
        }
    }
}

impl Filter {
    pub(crate) fn wants(&self, group: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|wanted| wanted == group)
    }
}

/// The bound that a row has to keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The value, at most.
    AtMost(f64),
    /// The value, at least.
    AtLeast(f64),
    /// Value divided by floor, at most.
    RatioAtMost(f64),
    /// Value divided by floor, at least.
    RatioAtLeast(f64),
}

impl Target {
    fn met(self, value: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::AtMost(most) => value <= most,
            Self::AtLeast(least) => value >= least,
            Self::RatioAtMost(most) => ratio.is_some_and(|ratio| ratio <= most),
            Self::RatioAtLeast(least) => ratio.is_some_and(|ratio| ratio >= least),
        }
    }
}

/// One measured quantity.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name of the measurement.
    pub name: String,
    /// The median over all rounds.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// The name of the floor.
    pub against: String,
    /// The floor's median.
    pub floor: Option<f64>,
    /// The median of the rounds' ratios.
    pub ratio: Option<f64>,
    /// The bound that it has to keep; `None` where the row only informs.
    pub target: Option<Target>,
    /// True where it does, `None` without a target.
    pub pass: Option<bool>,
}

impl Row {
    /// One without a floor.
    pub fn single(
        name: impl Into<String>,
        unit: &'static str,
        values: &[f64],
        target: impl Into<Option<Target>>,
    ) -> Self {
        let (value, target) = (median(values), target.into());
        let pass = target.map(|target| target.met(value, None));
        Self {
            name: name.into(),
            value,
            unit,
            against: String::new(),
            floor: None,
            ratio: None,
            target,
            pass,
        }
    }

    pub(crate) fn against(
        name: impl Into<String>,
        unit: &'static str,
        ours: &[f64],
        (against, floor): (&'static str, &[f64]),
        target: impl Into<Option<Target>>,
    ) -> Self {
        let ratios: Vec<f64> = ours
            .iter()
            .zip(floor)
            .map(|(ours, floor)| ours / floor)
            .collect();
        let (value, ratio, target) = (median(ours), median(&ratios), target.into());
        Self {
            name: name.into(),
            value,
            unit,
            against: against.to_owned(),
            floor: Some(median(floor)),
            ratio: Some(ratio),
            target,
            pass: target.map(|target| target.met(value, Some(ratio))),
        }
    }
}

impl Row {
    /// One over a floor that nothing can be quicker than. When it is beaten it is none, and the row says so
    /// and fails.
    pub(crate) fn on_floor(
        name: impl Into<String>,
        unit: &'static str,
        ours: &[f64],
        (against, floor): (&'static str, &[f64]),
        target: Target,
    ) -> Self {
        let mut row = Self::against(name, unit, ours, (against, floor), target);
        let beaten = match target {
            Target::RatioAtMost(_) => row.ratio < Some(1.0),
            Target::RatioAtLeast(_) => row.ratio > Some(1.0),
            Target::AtMost(_) | Target::AtLeast(_) => false,
        };
        if beaten {
            row.against = format!("no floor, since it is beaten: {against}");
            row.pass = Some(false);
        }
        row
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// One JSON object for each row, a line each.
#[must_use]
pub fn json_lines(rows: &[Row]) -> String {
    let mut out = String::new();
    for row in rows {
        out.push_str(&serde_json::to_string(row).expect("a row has no map keys"));
        out.push('\n');
    }
    out
}

/// The rows for people.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut out = String::new();
    let optional = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), number);
    let cells: Vec<[String; 7]> = rows
        .iter()
        .map(|row| {
            [
                row.name.clone(),
                format!("{} {}", number(row.value), row.unit),
                optional(row.floor),
                optional(row.ratio),
                row.target.map_or_else(
                    || "-".to_owned(),
                    |target| match target {
                        Target::AtMost(most) => format!("<= {}", number(most)),
                        Target::AtLeast(least) => format!(">= {}", number(least)),
                        Target::RatioAtMost(most) => format!("ratio <= {most}"),
                        Target::RatioAtLeast(least) => format!("ratio >= {least}"),
                    },
                ),
                row.pass
                    .map_or("-", |pass| if pass { "met" } else { "MISSED" })
                    .to_owned(),
                row.against.clone(),
            ]
        })
        .collect();
    let heads = [
        "measurement",
        "value",
        "floor",
        "ratio",
        "target",
        "",
        "floor is",
    ];
    let widths: Vec<usize> = (0..heads.len())
        .map(|i| {
            cells
                .iter()
                .map(|row| row[i].len())
                .chain([heads[i].len()])
                .max()
                .unwrap_or(0)
        })
        .collect();
    let heads = heads.map(str::to_owned);
    for row in std::iter::once(&heads).chain(&cells) {
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a string cannot fail.
            let _ = write!(out, "{cell:<width$}  ");
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
    out
}

fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 1e4 => format!("{:.0}k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_that_is_beaten_is_none() {
        let row = |ours, target| Row::on_floor("x", "us", &[ours], ("echo", &[10.0]), target);
        for (ours, target, pass) in [
            (12.0, Target::RatioAtMost(1.3), true),
            (14.0, Target::RatioAtMost(1.3), false),
            (9.0, Target::RatioAtMost(1.3), false),
            (7.0, Target::RatioAtLeast(0.6), true),
            (5.0, Target::RatioAtLeast(0.6), false),
            (11.0, Target::RatioAtLeast(0.6), false),
        ] {
            assert_eq!(row(ours, target).pass, Some(pass), "{ours} {target:?}");
        }
        let beaten = row(9.0, Target::RatioAtMost(1.3));
        assert!(beaten.against.starts_with("no floor"), "{}", beaten.against);
    }

    #[test]
    fn a_ratio_is_paired_by_round() {
        // A slow second round disturbs both sides and no ratio.
        let row = Row::against(
            "x",
            "us",
            &[1.0, 10.0, 1.0],
            ("floor", &[1.0, 10.0, 1.0]),
            Target::RatioAtMost(1.3),
        );
        assert_eq!((row.ratio, row.pass), (Some(1.0), Some(true)));
        let slow = Row::single("y", "ms", &[40.0, 20.0, 30.0], Target::AtMost(29.0));
        assert_eq!((slow.value, slow.pass), (30.0, Some(false)));
        assert!(table(&[row, slow]).contains("MISSED"));
    }
}
