//! Numbers over numbers: lines, each with a band where it has a spread.

use super::axis::{Axis, Fit};
use super::frame::{Frame, Swatch};
use super::svg::{COLOURS, Svg};

/// Lines over a common axis.
#[derive(Clone, Debug)]
pub(crate) struct Lines {
    pub(super) title: String,
    x: Axis,
    y: Axis,
    lines: Vec<Line>,
}

/// A series of points, in the order of their `x`. Points that are no numbers interrupt it.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    name: String,
    points: Vec<[f64; 2]>,
    /// Least and most `y` of each point.
    band: Vec<[f64; 2]>,
}

impl Lines {
    /// A figure without lines yet.
    pub(crate) fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self {
            title: title.into(),
            x,
            y,
            lines: vec![],
        }
    }

    /// Adds a line.
    pub(crate) fn line(mut self, line: Line) -> Self {
        self.lines.push(line);
        self
    }

    pub(super) fn draw(&self, svg: &mut Svg) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bands = self
            .lines
            .iter()
            .flat_map(|line| line.band.iter().flatten().copied());
        let x = self.x.span(Fit::Data, points().map(|point| point[0]));
        let y = self
            .y
            .span(Fit::Round, points().map(|point| point[1]).chain(bands));
        let names: Vec<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        let swatch = match self.lines.iter().any(Line::is_marked) {
            true => Swatch::LineWithMarker,
            false => Swatch::Line,
        };
        let frame = Frame::draw(svg, &self.title, (&self.y, &y), swatch, &names);
        let ticks = x
            .ticks
            .iter()
            .map(|(at, label)| (frame.x(&x, *at), label.clone()));
        frame.x_axis(svg, &self.x.name(), &ticks.collect::<Vec<_>>());
        if !points().any(|point| self.has(*point)) {
            return frame.empty(svg);
        }
        let place = |[at, value]: [f64; 2]| [frame.x(&x, at), frame.y(&y, value)];
        for (series, line) in self.lines.iter().enumerate() {
            self.draw_band(svg, series, line, &place);
        }
        for (series, line) in self.lines.iter().enumerate() {
            self.draw_line(svg, series, line, &place);
        }
    }

    fn draw_band(
        &self,
        svg: &mut Svg,
        series: usize,
        line: &Line,
        place: &dyn Fn([f64; 2]) -> [f64; 2],
    ) {
        let both = || {
            line.points
                .iter()
                .zip(&line.band)
                .map(|(point, band)| (point[0], *band))
        };
        let sound = |&(x, [low, high]): &(f64, [f64; 2])| self.has([x, low]) && self.has([x, high]);
        let lower = both().filter(sound).map(|(x, [low, _])| place([x, low]));
        let upper = both().filter(sound).map(|(x, [_, high])| place([x, high]));
        let mut edge = thinned(&lower.collect::<Vec<_>>());
        edge.extend(thinned(&upper.collect::<Vec<_>>()).into_iter().rev());
        svg.area(&format!("band f{}", series % COLOURS), &edge);
    }

    fn draw_line(
        &self,
        svg: &mut Svg,
        series: usize,
        line: &Line,
        place: &dyn Fn([f64; 2]) -> [f64; 2],
    ) {
        let runs: Vec<Vec<[f64; 2]>> = line
            .points
            .split(|point| !self.has(*point))
            .map(|run| thinned(&run.iter().map(|point| place(*point)).collect::<Vec<_>>()))
            .collect();
        let class = match line.is_marked() {
            true => "s",
            false => "s thin",
        };
        svg.runs(&format!("{class} s{}", series % COLOURS), &runs);
        if !line.is_marked() {
            return;
        }
        for point in line.points.iter().filter(|point| self.has(**point)) {
            let [x, y] = [self.x.told(point[0]), self.y.told(point[1])];
            svg.marker(series, place(*point), &format!("{}: {y} at {x}", line.name));
        }
    }

    fn has(&self, [x, y]: [f64; 2]) -> bool {
        self.x.has(x) && self.y.has(y)
    }
}

impl Line {
    /// A line through these points.
    pub(crate) fn new(
        name: impl Into<String>,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        Self {
            name: name.into(),
            points: points.into_iter().map(|(x, y)| [x, y]).collect(),
            band: vec![],
        }
    }

    /// The mean of several runs, and a band from the least to the most of them. Each `x` has the
    /// values of all runs there; those without any are left out.
    pub(crate) fn spread<'v>(
        name: impl Into<String>,
        runs: impl IntoIterator<Item = (f64, &'v [f64])>,
    ) -> Self {
        let mut line = Self::new(name, []);
        for (x, values) in runs {
            let values = || values.iter().copied().filter(|value| value.is_finite());
            let count = values().count();
            if count > 0 {
                line.points.push([x, values().sum::<f64>() / count as f64]);
                let [low, high] = [f64::min, f64::max].map(|of| values().reduce(of));
                line.band
                    .push([low.unwrap_or(f64::NAN), high.unwrap_or(f64::NAN)]);
            }
        }
        line
    }

    fn is_marked(&self) -> bool {
        self.points.len() <= MARKED_MAX
    }
}

/// Of many points in one column of pixels only the first, the least, the most and the last, which
/// look the same.
pub(super) fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    if points.len() <= THINNED_FROM {
        return points.to_vec();
    }
    let mut kept = vec![];
    for column in points.chunk_by(|one, next| one[0].floor() == next[0].floor()) {
        let by_height = |a: &&[f64; 2], b: &&[f64; 2]| a[1].total_cmp(&b[1]);
        let ends = [column.first(), column.last()];
        let extremes = [
            column.iter().min_by(by_height),
            column.iter().max_by(by_height),
        ];
        let wanted: Vec<&[f64; 2]> = ends.into_iter().chain(extremes).flatten().collect();
        let is_wanted = |point: &&[f64; 2]| wanted.iter().any(|it| std::ptr::eq(*it, *point));
        kept.extend(column.iter().filter(is_wanted));
    }
    kept
}

/// Lines with more points have no markers.
const MARKED_MAX: usize = 24;

/// Lines with fewer points are drawn as they are.
const THINNED_FROM: usize = 1_000;
