//! A drawing in SVG, as far as the plots need one: text, lines, boxes, dots, in colours that follow the reader's light or dark.
//!
//! Positions are pixels from the upper left. A shape's class decides its look; [`STYLE`] has the classes.

use std::fmt::{Display, Write as _};

/// The colours and sizes of all plots.
const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#1f2328}
.title{font-size:15px;font-weight:600}
.head{font-weight:600}
.faint{fill:#59636e}
.paper{fill:#ffffff}
.grid{stroke:#d1d9e0}
.axis{stroke:#59636e}
.own{fill:#0969da}
.rival{fill:#afb8c1}
.good{fill:#1a7f37}
.bad{fill:#cf222e}
.ahead{fill:#bc4c00}
.goal{stroke:#cf222e;stroke-width:2}
.quiet{stroke:#1f2328;stroke-width:1.5}
.curve{fill:none;stroke-width:2}
.c0{stroke:#0969da}.c1{stroke:#bc4c00}.c2{stroke:#1a7f37}.c3{stroke:#8250df}.c4{stroke:#9a6700}.c5{stroke:#59636e}
@media(prefers-color-scheme:dark){
text{fill:#e6edf3}
.faint{fill:#9198a1}
.paper{fill:#0d1117}
.grid{stroke:#2a313c}
.axis{stroke:#9198a1}
.own{fill:#4493f8}
.rival{fill:#565e69}
.good{fill:#3fb950}
.bad{fill:#f85149}
.ahead{fill:#f0883e}
.goal{stroke:#f85149}
.quiet{stroke:#e6edf3}
.c0{stroke:#4493f8}.c1{stroke:#f0883e}.c2{stroke:#3fb950}.c3{stroke:#ab7df8}.c4{stroke:#d29922}.c5{stroke:#9198a1}
}
";

/// How many colours of curves there are.
pub const CURVES: usize = 6;

/// Which end of a text its position is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// A drawing that is being made.
#[derive(Debug, Default)]
pub struct Svg {
    body: String,
}

impl Svg {
    /// An empty one.
    #[must_use]
    pub fn new() -> Svg {
        Svg::default()
    }

    // A String takes all that is written to it.
    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.body, "{element}");
    }

    /// A line of text, on its base line.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(&text.to_string());
        self.put(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" class="{class}">{text}</text>"#
        ));
    }

    /// A straight line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), class: &str) {
        self.put(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" class="{class}"/>"#
        ));
    }

    /// A filled box between two heights, from one side to the other, whichever is the left one.
    pub fn bar(&mut self, (x1, x2): (f64, f64), (y, height): (f64, f64), class: &str) {
        let (x, width) = (x1.min(x2), (x1 - x2).abs());
        self.put(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" class="{class}"/>"#
        ));
    }

    /// A filled circle.
    pub fn dot(&mut self, (x, y): (f64, f64), radius: f64, class: &str) {
        self.put(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" class="{class}"/>"#));
    }

    /// A line through all the points.
    pub fn curve(&mut self, points: &[(f64, f64)], class: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.put(format_args!(r#"<polyline points="{}" class="{class}"/>"#, points.join(" ")));
    }

    /// The whole drawing; `title` is its text for screen readers.
    #[must_use]
    pub fn finish(self, (width, height): (f64, f64), title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}</style>\n\
             <rect width=\"100%\" height=\"100%\" class=\"paper\"/>\n{}</svg>\n",
            escaped(title),
            self.body
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_whole_and_its_text_cannot_break_it() {
        let mut svg = Svg::new();
        svg.text((1.0, 2.0), Anchor::End, "head", "a < b & \"c\"");
        svg.bar((30.0, 10.0), (5.0, 8.0), "own");
        let drawn = svg.finish((100.0, 50.0), "<it>");
        assert!(drawn.contains(
            r#"<text x="1.0" y="2.0" text-anchor="end" class="head">a &lt; b &amp; &quot;c&quot;</text>"#
        ));
        assert!(drawn.contains(r#"<rect x="10.0" y="5.0" width="20.0" height="8.0" class="own"/>"#));
        assert!(drawn.contains("<title>&lt;it&gt;</title>") && drawn.ends_with("</svg>\n"));
    }
}
