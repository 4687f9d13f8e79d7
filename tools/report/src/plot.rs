//! Charts, drawn by plotters as SVG that follows the page's colours.
//!
//! Plotters writes a colour as an attribute. Here each colour is a code ([`INKS`]). Rules of a style sheet, which
//! override attributes, replace each code by a CSS variable of the page, which has a light and a dark value. A chart is
//! [`WIDTH`] units wide, so that its text can be read at the width of a phone.

mod scatter;

pub use scatter::{Cloud, scatter};

use crate::answers::{Answer, LEVEL, Standing};
use crate::markup::{COLOURS, PALETTE, amount, esc, tick};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::element::{Drawable, PointCollection};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use warmcore_results::{Row, Span, Timeline};

/// The width of a chart in SVG units.
const WIDTH: u32 = 520;
/// The size of text, in SVG units.
const TEXT: u32 = 14;
/// The height of a row of the charts of [`answers`] and [`times`].
const ROW: u32 = 46;
/// The margins above the first row of a chart and, in the chart of [`answers`], below the last row.
const MARGINS: (u32, u32) = (8, 44);
/// The margin to the left and to the right of the scale of [`Log::x`], where half of a label has room.
const SIDE: u32 = 28;
/// The margin between text and the left or right edge of a chart.
const INDENT: i32 = 8;

/// A colour, by its index in [`INKS`]. Plotters gets a code for it; the style sheet of the page or of a separate
/// picture gives the code the palette's colour.
#[derive(Debug, Clone, Copy)]
struct Ink(usize);

/// The palette's names of the inks. The hues without a meaning, which only distinguish marks, come last.
const INKS: [&str; 8 + COLOURS] = [
    "ink", "muted", "rule", "tint", "accent", "good", "bad", "open", "id0", "id1", "id2", "id3", "id4",
    "id5", "id6", "id7",
];

impl Ink {
    const TEXT: Self = Self(0);
    const QUIET: Self = Self(1);
    const LINE: Self = Self(2);
    const BAND: Self = Self(3);
    const OURS: Self = Self(4);
    const GOOD: Self = Self(5);
    const BAD: Self = Self(6);
    const OPEN: Self = Self(7);

    /// A hue, counted from 0.
    fn hue(n: usize) -> Self {
        Self(INKS.len() - COLOURS + n % COLOURS)
    }

    fn rgb(self) -> RGBColor {
        RGBColor(self.0 as u8 + 1, 1, 1)
    }

    fn of(standing: Standing) -> Self {
        match standing {
            Standing::Ahead => Self::GOOD,
            Standing::Level => Self::TEXT,
            Standing::Behind => Self::BAD,
            Standing::Undecided => Self::OPEN,
        }
    }

    /// The colour of a class of marks: Warmcore's is 0.
    fn class(class: usize) -> Self {
        if class == 0 { Self::OURS } else { Self::hue([0, 3, 6, 5][(class - 1) % 4]) }
    }
}

/// The code of each ink, as plotters writes it into an attribute, and the ink's name in the palette.
fn codes() -> impl Iterator<Item = (String, &'static str)> {
    INKS.iter().enumerate().map(|(i, name)| (format!("#{:02X}0101", i + 1), *name))
}

/// Text in a chart has the page's font, and an outline that separates it from the lines behind it.
const TEXT_CSS: &str = "svg.chart text{font-family:system-ui,sans-serif;stroke-width:4px;stroke-linejoin:round;\
                        paint-order:stroke;stroke:var(--paper)}\n";

/// The page's CSS rules for charts. A rule overrides the attribute that plotters wrote.
pub(super) fn css() -> String {
    let rules = codes().map(|(code, name)| {
        format!("[fill=\"{code}\"]{{fill:var(--{name})}}[stroke=\"{code}\"]{{stroke:var(--{name})}}\n")
    });
    TEXT_CSS.chars().chain(rules.collect::<String>().chars()).collect()
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns the SVG of what `draw` draws on an area of `height`. It has no style sheet: a page has one, and [`alone`]
/// adds one.
fn drawn(height: u32, label: &str, draw: impl FnOnce(&Area<'_>)) -> String {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&area);
        area.present().expect("text is written into memory");
    }
    // Plotters writes the size in pixels. Remove it: the page sets the width.
    let rest = svg.split_once('>').map_or("", |(_, rest)| rest);
    format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">{rest}",
        esc(label)
    )
}

/// The chart `svg` for a separate file. Its colours are plain values. A style sheet replaces them by the dark ones if
/// the user prefers a dark page.
pub(super) fn alone(svg: &str) -> String {
    let value = |name: &str, is_dark: bool| {
        let found = PALETTE.iter().find(|(known, ..)| *known == name);
        found.map_or("#000000", |(_, light, dark)| if is_dark { dark } else { light })
    };
    let mut dark = format!(".paper{{fill:{}}}", value("paper", true));
    let mut svg = svg.to_owned();
    for (code, name) in codes() {
        // Two inks with the same light colour have the same value in the file, so they must also have the same dark
        // colour.
        let (light, night) = (value(name, false), value(name, true));
        svg = svg.replace(&code, light);
        dark += &format!("[fill=\"{light}\"]{{fill:{night}}}[stroke=\"{light}\"]{{stroke:{night}}}");
    }
    let paper = value("paper", false);
    let text = TEXT_CSS.replace("var(--paper)", paper);
    let night = format!("svg.chart text{{stroke:{}}}{dark}", value("paper", true));
    let (head, rest) = svg.split_once('>').unwrap_or_default();
    format!(
        "{head} xmlns=\"http://www.w3.org/2000/svg\"><style>{text}@media (prefers-color-scheme:dark){{{night}}}</style>\
         <rect class=\"paper\" fill=\"{paper}\" width=\"100%\" height=\"100%\"/>{rest}\n"
    )
}

/// Draws an element. It is written into memory, which does not fail.
fn put<'a, 'e, E>(area: &Area<'a>, element: &'e E)
where
    &'e E: PointCollection<'e, (i32, i32)>,
    E: Drawable<SVGBackend<'a>>,
{
    area.draw(element).expect("text is written into memory");
}

fn text(area: &Area<'_>, at: (i32, i32), text: &str, ink: Ink, h: HPos) {
    let style = ("sans-serif", TEXT).into_font().color(&ink.rgb()).pos(Pos::new(h, VPos::Center));
    area.draw_text(text, &style, at).expect("text is written into memory");
}

fn line(area: &Area<'_>, from: (i32, i32), to: (i32, i32), ink: Ink, width: u32) {
    put(area, &PathElement::new(vec![from, to], ink.rgb().stroke_width(width)));
}

/// A logarithmic scale, which converts a value to a position.
struct Log {
    low: f64,
    high: f64,
}

impl Log {
    /// The scale from the largest step that is not above any value to the smallest step that is not below any value.
    /// Values that are not positive are ignored. Without such a step the scale ends at the first or the last step.
    fn around(values: impl Iterator<Item = f64>, steps: &[f64]) -> Self {
        let (least, most) = values
            .filter(|v| *v > 0.0)
            .fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
        let low = steps.iter().rev().find(|step| **step <= least).unwrap_or(&steps[0]);
        let high = steps.iter().find(|step| **step >= most).unwrap_or(&steps[steps.len() - 1]);
        Self { low: *low, high: *high }
    }

    fn x(&self, value: f64) -> i32 {
        let scale = RangedCoordf64::from(self.low.log10()..self.high.log10());
        let (left, right) = (SIDE as i32, (WIDTH - SIDE) as i32);
        scale.map(&value.clamp(self.low, self.high).log10(), (left, right))
    }
}

/// 1, 2 and 5 times each power of ten from 0.001 to a billion.
fn steps() -> Vec<f64> {
    (-3..10).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power))).collect()
}

/// The steps of a scale, and whether each has a label: all steps if there are at most nine, else the powers of ten.
fn ticks(low: f64, high: f64) -> Vec<(f64, bool)> {
    let all: Vec<f64> = steps().into_iter().filter(|step| (low..=high).contains(step)).collect();
    let is_wide = all.len() > 9;
    all.into_iter().map(|step| (step, !is_wide || step.log10().fract().abs() < 1e-9)).collect()
}

/// Draws a vertical line for each step of the scale, and the labels that [`ticks`] chooses.
fn grid(area: &Area<'_>, scale: &Log, top: i32, bottom: i32, label: impl Fn(f64) -> String) {
    for (step, has_label) in ticks(scale.low, scale.high) {
        line(area, (scale.x(step), top), (scale.x(step), bottom), Ink::LINE, 1);
        if has_label {
            text(area, (scale.x(step), bottom + 14), &label(step), Ink::QUIET, HPos::Center);
        }
    }
}

/// A chart of how many times better Warmcore is: a row per answer, on a logarithmic scale.
pub(super) fn answers(answers: &[Answer], label: &str) -> String {
    if answers.is_empty() {
        return String::new();
    }
    let height = MARGINS.0 + ROW * answers.len() as u32 + MARGINS.1;
    let values = answers.iter().flat_map(|answer| answer.interval).chain([0.5, 2.0]);
    let scale = Log::around(values, &steps());
    drawn(height, label, |area| {
        let bottom = (height - MARGINS.1) as i32;
        let band = [(scale.x(1.0 / LEVEL), MARGINS.0 as i32), (scale.x(LEVEL), bottom)];
        put(area, &Rectangle::new(band, Ink::BAND.rgb().filled()));
        grid(area, &scale, MARGINS.0 as i32, bottom, |step| format!("{step}×"));
        line(area, (scale.x(1.0), MARGINS.0 as i32), (scale.x(1.0), bottom), Ink::QUIET, 2);
        text(area, (INDENT, bottom + 34), "← the alternative is better", Ink::QUIET, HPos::Left);
        text(area, (WIDTH as i32 - INDENT, bottom + 34), "Warmcore is better →", Ink::QUIET, HPos::Right);
        for (i, answer) in answers.iter().enumerate() {
            let top = (MARGINS.0 + ROW * i as u32) as i32;
            let ink = Ink::of(answer.standing());
            text(area, (INDENT, top + 10), answer.what, Ink::TEXT, HPos::Left);
            let told = format!("{} {}", answer.times(), answer.alternative);
            text(area, (WIDTH as i32 - INDENT, top + 10), &told, ink, HPos::Right);
            let y = top + 30;
            let [low, high] = answer.interval.map(|end| scale.x(end));
            line(area, (low, y), (high.max(low + 1), y), ink, 5);
            put(area, &Circle::new((scale.x(answer.times), y), 6, ink.rgb().filled()));
        }
    })
}

/// A chart of medians with their intervals, on a logarithmic scale: a line for each row whose median is positive. All
/// rows have the unit of the first one.
pub(super) fn variants(rows: &[&Row], label: &str) -> String {
    const LINE: u32 = 40;
    let rows: Vec<&&Row> = rows.iter().filter(|row| row.median > 0.0 && row.median.is_finite()).collect();
    let Some(unit) = rows.first().map(|row| &*row.unit) else { return String::new() };
    let height = MARGINS.0 + LINE * rows.len() as u32 + 26;
    let ends = |row: &Row| row.ci95.unwrap_or([row.median; 2]);
    let scale = Log::around(rows.iter().flat_map(|row| ends(row)).chain([rows[0].median]), &steps());
    drawn(height, label, |area| {
        let bottom = (height - 26) as i32;
        grid(area, &scale, MARGINS.0 as i32, bottom, |step| tick(step, unit));
        for (i, row) in rows.iter().enumerate() {
            let top = (MARGINS.0 + LINE * i as u32) as i32;
            let is_ours = row.variant.starts_with("warmcore");
            let ink = if is_ours { Ink::OURS } else { Ink::TEXT };
            text(area, (INDENT, top + 10), &row.variant, ink, HPos::Left);
            let noisy = if row.noisy { " noisy" } else { "" };
            let told = format!("{}{noisy}", amount(row.median, unit));
            text(area, (WIDTH as i32 - INDENT, top + 10), &told, ink, HPos::Right);
            let [low, high] = ends(row).map(|end| scale.x(end));
            line(area, (low, top + 27), (high.max(low + 1), top + 27), ink, 5);
            put(area, &Circle::new((scale.x(row.median), top + 27), 5, ink.rgb().filled()));
        }
    })
}

/// A chart of the id that each CPU had over time: a panel per policy and a lane per CPU. In a lane, a box with the id's
/// number is a burst, and a line of the id's colour is the time in which the CPU had the id.
pub(super) fn timelines(timelines: &[Timeline], label: &str) -> String {
    if timelines.is_empty() {
        return String::new();
    }
    const LANE: i32 = 22;
    let panel = |timeline: &Timeline| 30 + LANE * timeline.lanes.len() as i32;
    let height = timelines.iter().map(panel).sum::<i32>() + 28;
    let left = 60;
    drawn(height as u32, label, |area| {
        let mut top = 0;
        for timeline in timelines {
            let end = f64::from(timeline.end_ms.max(1));
            let x = |ms: u32| left + (f64::from(ms) / end * f64::from(WIDTH as i32 - INDENT - left)) as i32;
            text(area, (INDENT, top + 16), &timeline.policy, Ink::TEXT, HPos::Left);
            for (i, lane) in timeline.lanes.iter().enumerate() {
                let y = top + 30 + LANE * i as i32;
                text(area, (INDENT, y + 9), &format!("CPU {}", lane.cpu), Ink::QUIET, HPos::Left);
                let hue = |span: &Span| Ink::hue(span.cid as usize).rgb();
                for span in &lane.kept {
                    let path = [(x(span.from_ms), y + 9), (x(span.to_ms), y + 9)];
                    put(area, &PathElement::new(path, hue(span).stroke_width(3)));
                }
                for span in &lane.bursts {
                    let corners = [(x(span.from_ms), y), (x(span.to_ms).max(x(span.from_ms) + 14), y + 18)];
                    put(area, &Rectangle::new(corners, hue(span).filled()));
                    let at = (corners[0].0 + 7, y + 9);
                    text(area, at, &span.cid.to_string(), Ink::TEXT, HPos::Center);
                }
            }
            top += panel(timeline);
        }
        let end = timelines.first().map_or(0, |timeline| timeline.end_ms);
        text(area, (WIDTH as i32 - INDENT, height - 12), &format!("{end} ms"), Ink::QUIET, HPos::Right);
    })
}

/// An operation, and the times of the ways of doing it.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    /// `a counter add`.
    pub name: &'static str,
    /// The class of each way (an index of the legend), and its time in ns.
    pub times: Vec<(usize, f64)>,
}

/// A chart of the times of operations on one logarithmic scale, with a mark for each way of doing an operation.
pub(super) fn times(operations: &[Operation], legend: &[&str], label: &str) -> String {
    if operations.is_empty() {
        return String::new();
    }
    let legend_height = 24 * legend.len().div_ceil(2) as u32 + 8;
    let top = legend_height + MARGINS.0;
    let height = top + ROW * operations.len() as u32 + 28;
    let scale = Log::around(operations.iter().flat_map(|op| &op.times).map(|(_, ns)| *ns), &steps());
    drawn(height, label, |area| {
        let bottom = (height - 28) as i32;
        draw_legend(area, SIDE as i32 + 8, 2, (0..).zip(legend.iter().copied()));
        grid(area, &scale, top as i32, bottom, |step| tick(step, "ns"));
        for (i, operation) in operations.iter().enumerate() {
            let y = (top + ROW * i as u32) as i32;
            text(area, (INDENT, y + 10), operation.name, Ink::TEXT, HPos::Left);
            let ends = operation.times.iter().map(|(_, ns)| scale.x(*ns));
            if let (Some(left), Some(right)) = (ends.clone().min(), ends.max()) {
                line(area, (left, y + 30), (right, y + 30), Ink::LINE, 3);
            }
            // Warmcore's time is the first: draw its mark last, so that it is on top.
            for (class, ns) in operation.times.iter().rev() {
                mark(area, (scale.x(*ns), y + 30), *class);
            }
        }
    })
}

/// Draws the marks of classes with their names, `across` in a line, from `left` on.
fn draw_legend<'n>(area: &Area<'_>, left: i32, across: usize, names: impl Iterator<Item = (usize, &'n str)>) {
    for (i, (class, name)) in names.enumerate() {
        let at = (left + (i % across) as i32 * (WIDTH / 2) as i32, 14 + 24 * (i / across) as i32);
        mark(area, at, class);
        text(area, (at.0 + 16, at.1), name, Ink::TEXT, HPos::Left);
    }
}

/// Draws the mark of a class. Classes 0 to 4 each have another colour and shape.
fn mark(area: &Area<'_>, at: (i32, i32), class: usize) {
    let ink = Ink::class(class).rgb();
    match class {
        0 => put(area, &Circle::new(at, 7, ink.filled())),
        1 => put(area, &Rectangle::new([(at.0 - 5, at.1 - 5), (at.0 + 5, at.1 + 5)], ink.filled())),
        2 => put(area, &TriangleMarker::new(at, 7, ink.filled())),
        3 => put(area, &Cross::new(at, 5, ink.stroke_width(3))),
        _ => put(area, &Circle::new(at, 5, ink.stroke_width(2))),
    }
}

/// One curve of a chart.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    /// The curve's name in the legend; empty for published points.
    pub name: String,
    /// The points, in the order of x.
    pub points: Vec<(f64, f64)>,
    /// The class of its marks: 0 is Warmcore's.
    pub class: usize,
    /// Whether the points are published measurements, which are drawn as marks without a line.
    pub is_published: bool,
}

/// A chart of curves over a number of CPUs, threads or clients, which is on a logarithmic horizontal scale. The
/// vertical scale, in `unit`, is logarithmic if `is_log`.
pub(super) fn curves(curves: &[Curve], x_name: &str, unit: &str, is_log: bool, label: &str) -> String {
    let named: Vec<&Curve> = curves.iter().filter(|curve| !curve.is_published).collect();
    let across = if named.iter().any(|curve| curve.name.chars().count() > 24) { 1 } else { 2 };
    let top = 24 * named.len().div_ceil(across) as i32 + 12;
    let height = top as u32 + 260;
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let xs = Log::around(points().map(|(x, _)| x), &powers_of_two());
    let (least, most) = points().fold((f64::MAX, f64::MIN), |(a, b), (_, y)| (a.min(y), b.max(y)));
    let ys = Log::around(points().map(|(_, y)| y), &steps());
    let (low, high) = if is_log { (ys.low, ys.high) } else { nice(least.min(0.0), most.max(0.0)) };
    let (left, right, bottom) = (70i32, (WIDTH - SIDE) as i32, height as i32 - 48);
    let x = |value: f64| {
        let share = (value.log10() - xs.low.log10()) / (xs.high.log10() - xs.low.log10()).max(1e-9);
        left + (share * f64::from(right - left)).round() as i32
    };
    let y = |value: f64| {
        let share = if is_log {
            (value.max(low).log10() - low.log10()) / (high.log10() - low.log10()).max(1e-9)
        } else {
            (value - low) / (high - low).max(1e-9)
        };
        bottom - (share * f64::from(bottom - top)).round() as i32
    };
    drawn(height, label, |area| {
        draw_legend(area, 16, across, named.iter().map(|curve| (curve.class, &*curve.name)));
        let ticks: Vec<(f64, bool)> = match is_log {
            true => ticks(low, high),
            false => (0..=4).map(|i| (low + (high - low) * f64::from(i) / 4.0, true)).collect(),
        };
        for (tick, has_label) in ticks {
            line(area, (left, y(tick)), (right, y(tick)), Ink::LINE, 1);
            if has_label {
                // A mark of the first point must not hide the number.
                text(area, (left - 12, y(tick)), &short(tick), Ink::QUIET, HPos::Right);
            }
        }
        text(area, (INDENT, bottom + 38), unit, Ink::QUIET, HPos::Left);
        let mut labelled = -44;
        for tick in powers_of_two().into_iter().filter(|t| (xs.low..=xs.high).contains(t)) {
            if x(tick) - labelled >= 44 {
                labelled = x(tick);
                text(area, (x(tick), bottom + 18), &tick.to_string(), Ink::QUIET, HPos::Center);
            }
        }
        text(area, (right, bottom + 38), x_name, Ink::QUIET, HPos::Right);
        for curve in curves {
            let ink = Ink::class(curve.class);
            let points: Vec<(i32, i32)> = curve.points.iter().map(|(px, py)| (x(*px), y(*py))).collect();
            if curve.is_published {
                for at in points {
                    put(area, &Circle::new(at, 6, ink.rgb().stroke_width(2)));
                }
            } else {
                put(area, &PathElement::new(points.clone(), ink.rgb().stroke_width(2)));
                points.into_iter().for_each(|at| mark(area, at, curve.class));
            }
        }
    })
}

/// A number of an axis: `20k`.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", value / 1e6),
        v if v >= 1e3 => format!("{}k", value / 1e3),
        // The numbers are multiples of a round step (`nice`, `steps`), so further digits are rounding errors.
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

fn powers_of_two() -> Vec<f64> {
    (0..=14).map(|power| f64::from(1u32 << power)).collect()
}

/// The bounds of a scale that contains both values; its number of equal, round steps is a multiple of four.
fn nice(low: f64, high: f64) -> (f64, f64) {
    let step = (high - low).max(1e-9) / 4.0;
    let power = 10f64.powf(step.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|s| s * power).find(|s| *s >= step).unwrap_or(step);
    let low = (low / step).floor() * step;
    let mut steps = 4.0;
    while low + steps * step < high {
        steps += 4.0;
    }
    (low, low + steps * step)
}
