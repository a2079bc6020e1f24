//! Figures as SVG: lines with bands, and grouped bars.
//!
//! A figure is text that stands alone: no script, no font, no file beside it. Colours can be told
//! apart by people with colour blindness, lines by their markers too, and the page follows the
//! reader's choice of dark or light. Names are text and never markup.
//!
//! A [`Figure`] is either [`Lines`] or [`Bars`]; [`side_by_side`] makes one picture of several.
//! Both draw into a frame that knows titles, axes and the legend.

mod axis;
mod bars;
mod frame;
mod lines;
mod svg;
#[cfg(test)]
mod tests;

pub(crate) use axis::Axis;
pub(crate) use bars::Bars;
pub(crate) use lines::{Line, Lines};

use frame::Frame;
use svg::Svg;

/// One panel.
#[derive(Clone, Debug)]
pub(crate) enum Figure {
    /// Numbers over numbers.
    Lines(Lines),
    /// Numbers of things.
    Bars(Bars),
}

impl From<Lines> for Figure {
    fn from(lines: Lines) -> Self {
        Self::Lines(lines)
    }
}

impl From<Bars> for Figure {
    fn from(bars: Bars) -> Self {
        Self::Bars(bars)
    }
}

impl Figure {
    fn title(&self) -> &str {
        match self {
            Self::Lines(lines) => &lines.title,
            Self::Bars(bars) => &bars.title,
        }
    }

    fn draw(&self, svg: &mut Svg) {
        match self {
            Self::Lines(lines) => lines.draw(svg),
            Self::Bars(bars) => bars.draw(svg),
        }
    }
}

/// One picture of all figures, in a row.
pub(crate) fn side_by_side(figures: &[Figure]) -> String {
    let titles: Vec<&str> = figures.iter().map(Figure::title).collect();
    let width = Frame::WIDTH * figures.len().max(1) as f64;
    let mut svg = Svg::new([width, Frame::HEIGHT], &titles.join("; "));
    for (at, figure) in figures.iter().enumerate() {
        svg.group(Frame::WIDTH * at as f64, |svg| figure.draw(svg));
    }
    svg.finish()
}
