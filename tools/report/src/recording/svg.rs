//! Pictures of a recording as SVG: text, boxes, and paths of many boxes.
//!
//! Unlike the charts of `plot`, a picture here has up to ten thousand marks. All boxes of one colour in a row are one path,
//! which takes 15 bytes per box. Colours are classes, whose values follow the page's theme.

use crate::markup::esc;
use std::fmt::Write as _;
use warmcore_trace::Origin;

/// The width of a picture in units, as that of the charts of `plot`: its text can be read at the width of a phone.
pub const WIDTH: f64 = 520.0;

/// The size of text in units.
pub const TEXT: u32 = 14;

/// The class of an origin's colour.
pub fn class(origin: Origin) -> &'static str {
    match origin {
        Origin::SameCpu => "o0",
        Origin::SameCore => "o1",
        Origin::SameLlc => "o2",
        Origin::SameNode => "o3",
        Origin::SameSocket => "o4",
        Origin::SameMachine => "o5",
        Origin::OtherCpu => "o6",
        Origin::First => "o7",
        Origin::Unknown => "o8",
    }
}

/// The classes of colours and their names in the palette. The further a task came, the warmer its colour.
const COLOURS: [(&str, &str); 11] = [
    ("o0", "good"),
    ("o1", "id5"),
    ("o2", "id0"),
    ("o3", "id1"),
    ("o4", "id4"),
    ("o5", "bad"),
    ("o6", "id3"),
    ("o7", "mark"),
    ("o8", "rule"),
    ("band", "tint"),
    ("lost", "accent"),
];

/// The style of pictures and of the legend's boxes.
pub fn css() -> String {
    let rules = COLOURS
        .iter()
        .map(|(class, name)| format!(".{class}{{fill:var(--{name});background:var(--{name})}}\n"));
    rules.collect()
}

/// A picture that is drawn.
#[derive(Debug)]
pub struct Picture {
    height: f64,
    body: String,
}

/// Which part of a text is at its place.
#[derive(Debug, Clone, Copy)]
pub enum Align {
    Start,
    Middle,
    End,
}

impl Picture {
    pub fn new(height: f64) -> Self {
        Self { height, body: String::new() }
    }

    /// Writes text, whose baseline is at `y`.
    pub fn text(&mut self, x: f64, y: f64, align: Align, is_muted: bool, text: &str) {
        let align = match align {
            Align::Start => "start",
            Align::Middle => "middle",
            Align::End => "end",
        };
        let colour = if is_muted { "muted" } else { "ink" };
        let text = esc(text);
        self.add(format_args!(
            "<text x=\"{}\" y=\"{}\" font-size=\"{TEXT}\" text-anchor=\"{align}\" class=\"{colour}\">{text}</text>\n",
            Short(x),
            Short(y)
        ));
    }

    /// Draws a box, which says `title` under the pointer.
    pub fn titled(&mut self, class: &str, opacity: f64, at: [f64; 4], title: &str) {
        let [x, y, width, height] = at.map(Short);
        let title = esc(title);
        self.add(format_args!(
            "<rect class=\"{class}\" fill-opacity=\"{opacity:.2}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" \
             height=\"{height}\"><title>{title}</title></rect>\n"
        ));
    }

    /// Draws a box.
    pub fn rect(&mut self, class: &str, at: [f64; 4]) {
        let [x, y, width, height] = at.map(Short);
        self.add(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>\n"
        ));
    }

    /// Draws many boxes of one colour.
    pub fn boxes(&mut self, class: &str, boxes: &[[f64; 4]]) {
        if boxes.is_empty() {
            return;
        }
        self.add(format_args!("<path class=\"{class}\" d=\""));
        for [x, y, width, height] in boxes.iter().map(|at| at.map(Short)) {
            self.add(format_args!("M{x} {y}h{width}v{height}h-{width}z"));
        }
        self.add(format_args!("\"/>\n"));
    }

    /// Draws a thin line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        let [x, y, to_x, to_y] = [from.0, from.1, to.0, to.1].map(Short);
        self.add(format_args!("<path class=\"thin\" d=\"M{x} {y}L{to_x} {to_y}\"/>\n"));
    }

    /// The whole picture; `label` says what it is to readers who do not see it.
    pub fn done(self, label: &str) -> String {
        format!(
            "<svg class=\"chart recording\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>",
            Short(self.height),
            esc(label),
            self.body
        )
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        self.body.write_fmt(text).expect("text is written into memory");
    }
}

/// A coordinate with at most one decimal.
#[derive(Clone, Copy)]
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rounded = (self.0 * 10.0).round() / 10.0;
        write!(f, "{}", if rounded == 0.0 { 0.0 } else { rounded })
    }
}
