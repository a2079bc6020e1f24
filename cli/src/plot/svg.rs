//! Elements of SVG, and the style that all figures share.

use std::fmt::Write as _;

/// A document that grows at its end.
#[derive(Debug)]
pub(super) struct Svg {
    text: String,
}

/// The place of a text beside its point.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl Svg {
    pub(super) fn new([width, height]: [f64; 2], title: &str) -> Self {
        let title = escaped(title);
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{title}\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n"
        );
        Self { text }
    }

    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    /// Moves to the right what is drawn inside.
    pub(super) fn group(&mut self, x: f64, inside: impl FnOnce(&mut Self)) {
        self.push(format_args!("<g transform=\"translate({} 0)\">", short(x)));
        inside(self);
        self.push(format_args!("</g>"));
    }

    pub(super) fn text(&mut self, class: &str, anchor: Anchor, [x, y]: [f64; 2], text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{}</text>",
            short(x),
            short(y),
            escaped(text),
        ));
    }

    pub(super) fn line(&mut self, class: &str, [x1, y1]: [f64; 2], [x2, y2]: [f64; 2]) {
        self.push(format_args!(
            "<path class=\"{class}\" d=\"M{} {}L{} {}\"/>",
            short(x1),
            short(y1),
            short(x2),
            short(y2),
        ));
    }

    /// A line through these points, each run of them drawn for itself.
    pub(super) fn runs(&mut self, class: &str, runs: &[Vec<[f64; 2]>]) {
        let path: String = runs.iter().map(|run| path_of(run)).collect();
        if !path.is_empty() {
            self.push(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    /// The area within these points.
    pub(super) fn area(&mut self, class: &str, points: &[[f64; 2]]) {
        let path = path_of(points);
        if !path.is_empty() {
            self.push(format_args!("<path class=\"{class}\" d=\"{path}Z\"/>"));
        }
    }

    /// A bar that tells its value when it is pointed at.
    pub(super) fn bar(&mut self, class: &str, [x, y]: [f64; 2], size: [f64; 2], told: &str) {
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">\
             <title>{}</title></rect>",
            short(x),
            short(y),
            short(size[0]),
            short(size[1]),
            escaped(told),
        ));
    }

    /// The marker of a series, which tells its value when it is pointed at.
    pub(super) fn marker(&mut self, series: usize, [x, y]: [f64; 2], told: &str) {
        let corners: &[[f64; 2]] = match series % 4 {
            0 => &[],
            1 => &[[-3.4, -3.4], [3.4, -3.4], [3.4, 3.4], [-3.4, 3.4]],
            2 => &[[0.0, -4.6], [4.4, 3.4], [-4.4, 3.4]],
            _ => &[[0.0, -4.8], [4.8, 0.0], [0.0, 4.8], [-4.8, 0.0]],
        };
        let class = format!("mark f{}", series % COLOURS);
        let told = match told {
            "" => String::new(),
            told => format!("<title>{}</title>", escaped(told)),
        };
        if corners.is_empty() {
            let (x, y) = (short(x), short(y));
            self.push(format_args!(
                "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"3.9\">{told}</circle>"
            ));
        } else {
            let at: Vec<[f64; 2]> = corners.iter().map(|[dx, dy]| [x + dx, y + dy]).collect();
            let path = path_of(&at);
            self.push(format_args!(
                "<path class=\"{class}\" d=\"{path}Z\">{told}</path>"
            ));
        }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(element);
        self.text.push('\n');
    }
}

fn path_of(points: &[[f64; 2]]) -> String {
    let mut path = String::new();
    for (at, [x, y]) in points.iter().enumerate() {
        path.push(if at == 0 { 'M' } else { 'L' });
        path.push_str(&short(*x));
        path.push(' ');
        path.push_str(&short(*y));
    }
    path
}

/// A tenth of a pixel is enough.
fn short(value: f64) -> String {
    let text = format!("{value:.1}");
    match text.strip_suffix(".0") {
        Some("-0") => "0".to_owned(),
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

/// As text of XML. What no XML may hold becomes a replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// About how wide a text is that has so many pixels to the em, in the wider of the fonts.
pub(super) fn width_of(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | ' ' | 't' | 'f' | 'r' => 0.32,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.88,
        c if c.is_ascii_uppercase() => 0.68,
        c if c.is_ascii() => 0.56,
        _ => 0.9,
    };
    text.chars().map(em).sum::<f64>() * size * 1.06
}

/// Series with colours of their own; then they begin again.
pub(super) const COLOURS: usize = 7;

/// Fonts of the reader's system. The colours follow Okabe and Ito, as far as they stand out on
/// white and on black.
const STYLE: &str = "\
text{font-family:Inter,'Helvetica Neue',Helvetica,Arial,'Liberation Sans',sans-serif;\
font-size:12px;fill:#57606a}\
.title{font-size:15px;font-weight:600;fill:#1f2328}\
.name{fill:#1f2328}\
.value{font-size:10px}\
.paper{fill:#fff}\
.grid,.axis,.s,.whisker{fill:none}\
.grid{stroke:#e6e9ed;stroke-width:1}\
.axis{stroke:#8c959f;stroke-width:1}\
.whisker{stroke:#1f2328;stroke-width:1.2}\
.s{stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\
.thin{stroke-width:1.4}\
.mark{stroke:#fff;stroke-width:1.2;stroke-linejoin:round}\
.band{fill-opacity:.18;stroke:none}\
.f0{fill:#0072b2}.f1{fill:#d55e00}.f2{fill:#009e73}.f3{fill:#c2609b}\
.f4{fill:#c98a00}.f5{fill:#3aa0dc}.f6{fill:#7d8590}\
.s0{stroke:#0072b2}.s1{stroke:#d55e00}.s2{stroke:#009e73}.s3{stroke:#c2609b}\
.s4{stroke:#c98a00}.s5{stroke:#3aa0dc}.s6{stroke:#7d8590}\
@media(prefers-color-scheme:dark){\
text{fill:#9198a1}.title,.name{fill:#f0f6fc}.paper{fill:#0d1117}\
.grid{stroke:#262c36}.axis{stroke:#656c76}.whisker{stroke:#f0f6fc}.mark{stroke:#0d1117}\
.band{fill-opacity:.28}.f0{fill:#2f8fd0}.s0{stroke:#2f8fd0}.f1{fill:#e8741e}.s1{stroke:#e8741e}\
.f2{fill:#1fb58a}.s2{stroke:#1fb58a}}";
