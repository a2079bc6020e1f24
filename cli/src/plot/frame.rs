//! The frame that lines and bars share: title, legend, grid and axes around a field.

use super::axis::{Axis, Span};
use super::svg::{Anchor, COLOURS, Svg, width_of};

/// The field that data are drawn into, in pixels.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// The mark of a series in the legend.
#[derive(Clone, Copy, Debug)]
pub(super) enum Swatch {
    Line,
    LineWithMarker,
    Bar,
}

impl Frame {
    /// Title, legend, and the vertical axis with its grid.
    pub(super) fn draw(
        svg: &mut Svg,
        title: &str,
        y: (&Axis, &Span),
        swatch: Swatch,
        names: &[&str],
    ) -> Self {
        let (axis, span) = y;
        svg.text("title", Anchor::Start, [EDGE, 26.0], title);
        let legend_bottom = legend(svg, swatch, names);
        let widest = span.ticks.iter().map(|(_, label)| width_of(label, FONT));
        let frame = Self {
            left: EDGE + widest.fold(12.0, f64::max) + 10.0,
            right: Self::WIDTH - EDGE,
            top: legend_bottom + 42.0,
            bottom: Self::HEIGHT - 52.0,
        };
        svg.text(
            "label",
            Anchor::Start,
            [EDGE, frame.top - 14.0],
            &axis.name(),
        );
        for (value, label) in &span.ticks {
            let at = frame.y(span, *value);
            svg.line("grid", [frame.left, at], [frame.right, at]);
            svg.text("tick", Anchor::End, [frame.left - 8.0, at + 4.0], label);
        }
        frame
    }

    /// The horizontal axis: its line, marks and name.
    pub(super) fn x_axis(&self, svg: &mut Svg, name: &str, ticks: &[(f64, String)]) {
        svg.line("axis", [self.left, self.bottom], [self.right, self.bottom]);
        for (x, label) in ticks {
            svg.line("axis", [*x, self.bottom], [*x, self.bottom + 4.0]);
            svg.text("tick", Anchor::Middle, [*x, self.bottom + 19.0], label);
        }
        let middle = f64::midpoint(self.left, self.right);
        svg.text("label", Anchor::Middle, [middle, self.bottom + 40.0], name);
    }

    /// Says that there is nothing to see.
    pub(super) fn empty(&self, svg: &mut Svg) {
        let [x, y] = [(self.left, self.right), (self.top, self.bottom)].map(|(a, b)| a.midpoint(b));
        svg.text("label", Anchor::Middle, [x, y], "no data");
    }

    pub(super) fn x(&self, span: &Span, value: f64) -> f64 {
        self.left + span.at(value) * (self.right - self.left)
    }

    pub(super) fn y(&self, span: &Span, value: f64) -> f64 {
        self.bottom - span.at(value) * (self.bottom - self.top)
    }

    /// Of a panel, pixels.
    pub(super) const WIDTH: f64 = 600.0;

    /// Of a panel, pixels.
    pub(super) const HEIGHT: f64 = 400.0;
}

/// Rows of names; none for a single series, whose name the title has. Tells where it ends.
fn legend(svg: &mut Svg, swatch: Swatch, names: &[&str]) -> f64 {
    let top = 26.0;
    if names.len() < 2 {
        return top;
    }
    let sample = match swatch {
        Swatch::Line | Swatch::LineWithMarker => 22.0,
        Swatch::Bar => 11.0,
    };
    let (mut x, mut y) = (EDGE, top + 26.0);
    for (series, name) in names.iter().enumerate() {
        let wide = sample + 7.0 + width_of(name, FONT);
        if x > EDGE && x + wide > Frame::WIDTH - EDGE {
            (x, y) = (EDGE, y + 20.0);
        }
        let (colour, right) = (series % COLOURS, x + sample);
        match swatch {
            Swatch::Line | Swatch::LineWithMarker => {
                svg.line(&format!("s s{colour}"), [x, y - 4.0], [right, y - 4.0]);
            }
            Swatch::Bar => {
                let [top, bottom] = [y - 10.0, y + 1.0];
                let square = [[x, top], [right, top], [right, bottom], [x, bottom]];
                svg.area(&format!("f{colour}"), &square);
            }
        }
        if matches!(swatch, Swatch::LineWithMarker) {
            svg.marker(series, [x + sample / 2.0, y - 4.0], "");
        }
        svg.text("name", Anchor::Start, [right + 7.0, y], name);
        x += wide + 20.0;
    }
    y
}

/// Around everything.
const EDGE: f64 = 20.0;

/// Of all but the title.
const FONT: f64 = 12.0;
