//! Axes: what they are called, where numbers lie on them, and round numbers to write beside them.

/// A numeric axis.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    label: String,
    unit: String,
    scale: Scale,
    within: Option<[f64; 2]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    /// Doublings are equally far apart.
    Doubling,
}

/// The span of an axis: where it begins and ends, and what is written beside it.
#[derive(Clone, Debug)]
pub(super) struct Span {
    scale: Scale,
    from: f64,
    to: f64,
    pub(super) ticks: Vec<(f64, String)>,
}

/// Where an axis begins and ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fit {
    /// At the data, so that nothing is empty.
    Data,
    /// At round numbers, and at zero where the data are on one side of it.
    Round,
}

impl Axis {
    /// An axis of equal steps.
    pub(crate) fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            unit: String::new(),
            scale: Scale::Linear,
            within: None,
        }
    }

    /// Sets the unit.
    pub(crate) fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = unit.into();
        self
    }

    /// Makes doublings equally far apart, for numbers above zero; others are left out.
    pub(crate) fn doubling(mut self) -> Self {
        self.scale = Scale::Doubling;
        self
    }

    /// Sets where it begins and ends. What is beyond is drawn at the end.
    pub(crate) fn within(mut self, from: f64, to: f64) -> Self {
        self.within = Some([from, to]);
        self
    }

    /// Label and unit.
    pub(super) fn name(&self) -> String {
        match self.unit.as_str() {
            "" => self.label.clone(),
            unit => format!("{} ({unit})", self.label),
        }
    }

    /// The text of one number, with the unit.
    pub(super) fn told(&self, value: f64) -> String {
        let number = plain(value);
        match self.unit.as_str() {
            "" => number,
            unit => format!("{number} {unit}"),
        }
    }

    /// Returns true if this number has a place on the axis.
    pub(super) fn has(&self, value: f64) -> bool {
        let sound = value.abs() <= LARGEST;
        sound && (self.scale == Scale::Linear || value >= LARGEST.recip())
    }

    /// The span that shows these numbers.
    pub(super) fn span(&self, fit: Fit, values: impl Iterator<Item = f64>) -> Span {
        let seen =
            values
                .filter(|value| self.has(*value))
                .fold(None, |range: Option<[f64; 2]>, value| match range {
                    None => Some([value, value]),
                    Some([from, to]) => Some([from.min(value), to.max(value)]),
                });
        let sound = |range: &[f64; 2]| range.iter().all(|it| self.has(*it)) && range[0] < range[1];
        match (self.scale, self.within.filter(sound)) {
            (Scale::Linear, Some([from, to])) => linear(from, to, Fit::Data),
            (Scale::Linear, None) => {
                let [from, to] = seen.unwrap_or([0.0, 1.0]);
                let [from, to] = match fit {
                    Fit::Data => apart(from, to),
                    Fit::Round => apart(from.min(0.0), to.max(0.0)),
                };
                linear(from, to, fit)
            }
            (Scale::Doubling, within) => {
                let [from, to] = within.or(seen).unwrap_or([1.0, 2.0]);
                doubling(from, to, fit)
            }
        }
    }
}

impl Span {
    /// From 0 at the beginning to 1 at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Doubling => (value / self.from).ln() / (self.to / self.from).ln(),
        };
        share.clamp(0.0, 1.0)
    }

    /// Where bars stand: zero, or the end that is nearest to it.
    pub(super) fn base(&self) -> f64 {
        0f64.clamp(self.from, self.to)
    }
}

/// Two numbers that differ.
fn apart(from: f64, to: f64) -> [f64; 2] {
    let largest = from.abs().max(to.abs());
    if largest < LARGEST.recip() {
        [0.0, 1.0]
    } else if to - from > largest * 1e-9 {
        [from, to]
    } else {
        [from - largest / 2.0, to + largest / 2.0]
    }
}

fn linear(from: f64, to: f64, fit: Fit) -> Span {
    let step = nice_step((to - from) / STEPS);
    let [first, last] = match fit {
        // A little beyond counts as inside, so that rounding loses no tick.
        Fit::Data => [(from / step - 1e-6).ceil(), (to / step + 1e-6).floor()],
        Fit::Round => [(from / step + 1e-6).floor(), (to / step - 1e-6).ceil()],
    };
    let [from, to] = match fit {
        Fit::Data => [from, to],
        Fit::Round => [first * step, last * step],
    };
    let count = (last - first).max(0.0) as u32;
    let values = (0..=count).map(|at| (first + f64::from(at)) * step);
    Span {
        scale: Scale::Linear,
        from,
        to,
        ticks: labelled(values.collect(), step),
    }
}

fn doubling(from: f64, to: f64, fit: Fit) -> Span {
    let [first, last] = [from.log2(), to.log2()];
    let [mut from, mut to] = match fit {
        Fit::Data => [from, to],
        Fit::Round => [first.floor().exp2(), last.ceil().exp2()],
    };
    if to / from < 1.001 {
        [from, to] = [from / 2.0, to * 2.0];
    }
    let [first, last] = [
        (from.log2() - 1e-6).ceil() as i32,
        (to.log2() + 1e-6).floor() as i32,
    ];
    let every = ((last - first) / 8 + 1).max(1);
    let powers = (first..=last).filter(|power| (power - first) % every == 0);
    Span {
        scale: Scale::Doubling,
        from,
        to,
        ticks: powers
            .map(|power| f64::from(power).exp2())
            .map(|it| (it, plain(it)))
            .collect(),
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below.
pub(super) fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let nice = [1.0, 2.0, 2.5, 5.0, 10.0].map(|it| it * power);
    nice.into_iter()
        .find(|it| *it >= least * (1.0 - 1e-9))
        .unwrap_or(10.0 * power)
}

/// All in one magnitude, with as many decimals as the step has.
fn labelled(values: Vec<f64>, step: f64) -> Vec<(f64, String)> {
    let largest = values
        .iter()
        .fold(0f64, |largest, value| largest.max(value.abs()));
    let (unit, suffix) = match largest {
        it if it >= 1e13 || (it > 0.0 && it < 1e-4) => {
            return values
                .into_iter()
                .map(|it| (it, format!("{it:.2e}")))
                .collect();
        }
        it if it >= 1e10 => (1e9, "G"),
        it if it >= 1e7 => (1e6, "M"),
        it if it >= 1e4 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let decimals = (0..10).find(|it| {
        let scaled = step / unit * 10f64.powi(*it);
        (scaled - scaled.round()).abs() < 1e-6 * scaled
    });
    let decimals = decimals.unwrap_or(10) as usize;
    let label = |value: f64| match value.abs() < step / 2.0 {
        true => "0".to_owned(),
        false => format!("{:.decimals$}{suffix}", value / unit),
    };
    values.into_iter().map(|it| (it, label(it))).collect()
}

/// A number with three digits that count, and a magnitude where it is large.
pub(super) fn plain(value: f64) -> String {
    let size = value.abs();
    let (unit, suffix) = match size {
        it if it >= 9.995e9 => (1e9, "G"),
        it if it >= 9.995e6 => (1e6, "M"),
        it if it >= 9.995e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let scaled = value / unit;
    if scaled == scaled.round() {
        return format!("{scaled:.0}{suffix}");
    }
    let digits = scaled.abs().log10().floor() as i32;
    let decimals = (2 - digits).clamp(0, 9) as usize;
    let text = format!("{scaled:.decimals$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text}{suffix}")
}

/// About so many steps lie on an axis.
const STEPS: f64 = 6.0;

/// Beyond are no figures, but overflows.
const LARGEST: f64 = 1e100;
