//! Numbers of things: groups of bars, one bar for each series.

use super::axis::{Axis, Fit, plain};
use super::frame::{Frame, Swatch};
use super::svg::{Anchor, COLOURS, Svg, width_of};

/// Bars in groups. A histogram is one series, with a group for each bin.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(super) title: String,
    x: String,
    y: Axis,
    groups: Vec<String>,
    series: Vec<Series>,
}

#[derive(Clone, Debug)]
struct Series {
    name: String,
    values: Vec<f64>,
    spread: Vec<[f64; 2]>,
}

impl Bars {
    /// A figure with these groups, which `x` says the kind of, and no bars yet.
    pub(crate) fn new<G: Into<String>>(
        title: impl Into<String>,
        x: impl Into<String>,
        y: Axis,
        groups: impl IntoIterator<Item = G>,
    ) -> Self {
        Self {
            title: title.into(),
            x: x.into(),
            y,
            groups: groups.into_iter().map(Into::into).collect(),
            series: vec![],
        }
    }

    /// Adds a bar to each group, in their order. A value that is no number has none.
    pub(crate) fn series(
        mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = f64>,
    ) -> Self {
        self.series.push(Series {
            name: name.into(),
            values: values.into_iter().collect(),
            spread: vec![],
        });
        self
    }

    /// Draws a whisker from the least to the most on each bar of the series added last.
    pub(crate) fn spread(mut self, spread: impl IntoIterator<Item = (f64, f64)>) -> Self {
        if let Some(last) = self.series.last_mut() {
            last.spread = spread.into_iter().map(|(low, high)| [low, high]).collect();
        }
        self
    }

    pub(super) fn draw(&self, svg: &mut Svg) {
        let values = || {
            self.series
                .iter()
                .flat_map(|series| series.values.iter().copied())
        };
        let spreads = self
            .series
            .iter()
            .flat_map(|series| series.spread.iter().flatten().copied());
        let y = self.y.span(Fit::Round, values().chain(spreads));
        let names: Vec<&str> = self
            .series
            .iter()
            .map(|series| series.name.as_str())
            .collect();
        let frame = Frame::draw(svg, &self.title, (&self.y, &y), Swatch::Bar, &names);
        let group = (frame.right - frame.left) / self.groups.len().max(1) as f64;
        // A fifth of a group is empty on its sides; bars touch almost.
        let bar = (0.8 * group / self.series.len().max(1) as f64).min(BAR_MAX);
        let used = bar * self.series.len() as f64;
        let middle = |at: usize| frame.left + (at as f64 + 0.5) * group;
        let base = frame.y(&y, y.base());
        for (number, series) in self.series.iter().enumerate() {
            let class = format!("f{}", number % COLOURS);
            for (at, (group, value)) in self.groups.iter().zip(&series.values).enumerate() {
                if !self.y.has(*value) {
                    continue;
                }
                let left = middle(at) - used / 2.0 + bar * number as f64;
                let end = frame.y(&y, *value);
                let told = format!("{}, {group}: {}", series.name, self.y.told(*value));
                let [top, height] = [end.min(base), (end - base).abs()];
                svg.bar(
                    &class,
                    [left + 0.75, top],
                    [(bar - 1.5).max(0.5), height],
                    &told,
                );
                let x = left + bar / 2.0;
                let [mut low, mut high] = [end, end];
                if let Some(spread) = series.spread.get(at) {
                    [low, high] = spread.map(|edge| frame.y(&y, edge));
                    svg.line("whisker", [x, low], [x, high]);
                    for edge in [low, high] {
                        svg.line("whisker", [x - 3.0, edge], [x + 3.0, edge]);
                    }
                }
                let label = plain(*value);
                if width_of(&label, 10.0) < bar + 2.0 {
                    let above = match end <= base {
                        true => low.min(high) - 5.0,
                        false => low.max(high) + 12.0,
                    };
                    svg.text("value", Anchor::Middle, [x, above], &label);
                }
            }
        }
        frame.x_axis(svg, &self.x, &self.labels(group, &middle));
        if !values().any(|value| self.y.has(value)) {
            frame.empty(svg);
        }
    }

    /// The groups' names, as many as there is room for.
    fn labels(&self, group: f64, middle: &dyn Fn(usize) -> f64) -> Vec<(f64, String)> {
        let widest = self
            .groups
            .iter()
            .map(|name| width_of(name, 12.0))
            .fold(0.0, f64::max);
        let every = ((widest + 8.0) / group).ceil().max(1.0) as usize;
        let named = self
            .groups
            .iter()
            .enumerate()
            .filter(|(at, _)| at % every == 0);
        named.map(|(at, name)| (middle(at), name.clone())).collect()
    }
}

/// Few bars don't become walls.
const BAR_MAX: f64 = 56.0;
