//! Tornado: which of the numbers that nobody measured moves a simulated answer, and how far.
//!
//! Model.   A line per number: its bar goes from the answer with half of it to the answer with twice of it, the line in
//!          the middle is the answer as it is. The axis is that of the answer, so the longest bar is on top.
//!          What is below the first few is in the table, with where each number comes from.
//! Number.  Five answers of up to seven bars: 31 KB.

use super::claims::of;
use super::markup::{digits, esc, standalone};
use super::table;
use warmcore_papers::sensitivity::{Input, Sensitivity};

/// So many are drawn.
const DRAWN_MAX: usize = 7;

/// A trust letter in a word.
fn trust(letter: char) -> &'static str {
    match letter {
        'S' => "published",
        'M' => "measured",
        'D' => "documented",
        'R' => "recalled",
        _ => "estimated",
    }
}

fn value(input: &Input) -> String {
    match &*input.unit {
        "ns" => super::markup::amount(input.value, "ns"),
        unit => format!("{} {unit}", digits(input.value)),
    }
}

/// A source without the tag that is said beside it.
fn basis(input: &Input) -> &str {
    let tag = format!("[{}]", input.trust);
    input.basis.strip_prefix(&tag).unwrap_or(&input.basis).trim()
}

/// From the answer as it is to the answer as it would be.
fn change(one: &Sensitivity, input: &Input) -> String {
    format!("{} with half, {} with twice", of(Some(input.low), &one.unit), of(Some(input.high), &one.unit))
}

/// What is seen, in a sentence.
pub(super) fn said(one: &Sensitivity) -> String {
    let plain = of(Some(one.plain), &one.unit);
    let tried = one.inputs.len() + one.still;
    match one.inputs.first() {
        None => format!("{plain}; none of the {tried} numbers that nobody measured moves it."),
        Some(input) => format!(
            "{plain}. Of {tried} numbers that nobody measured {} moves it most ({}, {}): {}; {} move nothing.",
            input.name,
            value(input),
            trust(input.trust),
            change(one, input),
            one.still
        ),
    }
}

/// From the least to the most that is drawn.
fn axis(one: &Sensitivity) -> (f64, f64) {
    let ends = one.inputs.iter().flat_map(|input| [input.low, input.high]).filter(|end| end.is_finite());
    ends.fold((one.plain, one.plain), |(low, high), end| (low.min(end), high.max(end)))
}

fn at(number: f64, (low, high): (f64, f64)) -> f64 {
    let share = if high > low { (number - low) / (high - low) } else { 0.5 };
    if share.is_nan() { 98.0 } else { 2.0 + 96.0 * share.clamp(0.0, 1.0) }
}

/// The bar of a number: half of it in one look, twice of it in another.
fn bar(one: &Sensitivity, input: &Input, middle: f64) -> String {
    let axis = axis(one);
    let plain = at(one.plain, axis);
    let part = |end: f64, class: &str| {
        let end = at(end, axis);
        format!(
            "<rect class=\"{class}\" x=\"{:.2}%\" width=\"{:.2}%\" y=\"{}\" height=\"12\"/>",
            plain.min(end),
            (plain - end).abs(),
            middle - 6.0
        )
    };
    // Both may lie on one side: the longer one below.
    let mut parts = [(input.low, "half"), (input.high, "twice")];
    parts.sort_by(|a, b| (b.0 - one.plain).abs().total_cmp(&(a.0 - one.plain).abs()));
    let parts = parts.map(|(end, class)| part(end, class)).concat();
    format!("{parts}<line class=\"said\" x1=\"{plain:.2}%\" x2=\"{plain:.2}%\" y1=\"0\" y2=\"100%\"/>")
}

/// The ends of the axis and its middle, where they do not stand on each other.
fn labels(one: &Sensitivity, y: f64) -> String {
    let (low, high) = axis(one);
    let label = |number: f64| {
        let x = at(number, (low, high));
        let side = match x {
            x if x < 15.0 => "",
            x if x > 85.0 => " end",
            _ => " mid",
        };
        let text = of(Some(number), &one.unit);
        format!("<text class=\"muted small{side}\" x=\"{x:.2}%\" y=\"{y}\">{}</text>", esc(&text))
    };
    let mut numbers = vec![one.plain];
    for end in [low, high] {
        if (at(end, (low, high)) - at(one.plain, (low, high))).abs() > 30.0 {
            numbers.push(end);
        }
    }
    numbers.into_iter().map(label).collect()
}

fn line(one: &Sensitivity, input: &Input) -> String {
    let range = format!("{} … {}", of(Some(input.low), &one.unit), of(Some(input.high), &one.unit));
    format!(
        "<li class=\"line\"><span class=\"name\">{} <em title=\"{}\">{} {}</em><small>{}</small></span>\
         <svg class=\"strip\" height=\"26\" role=\"img\"><title>{}: {}</title>{}</svg><span class=\"value\">{}</span></li>",
        esc(&input.name),
        esc(&input.basis),
        esc(&input.trust.to_string()),
        trust(input.trust),
        esc(&value(input)),
        esc(&input.name),
        esc(&change(one, input)),
        bar(one, input, 13.0),
        esc(&range)
    )
}

fn article(one: &Sensitivity) -> String {
    let lines: String = one.inputs.iter().take(DRAWN_MAX).map(|input| line(one, input)).collect();
    let cells = |input: &Input| {
        let moved = |end: f64| esc(&of(Some(end), &one.unit));
        let tag = esc(&format!("{} {}", input.trust, trust(input.trust)));
        vec![
            esc(&input.name),
            esc(&value(input)),
            tag,
            esc(basis(input)),
            moved(input.low),
            moved(input.high),
        ]
    };
    let rows: Vec<Vec<String>> = one.inputs.iter().map(cells).collect();
    let chart = match lines.is_empty() {
        true => String::new(),
        false => format!(
            "<figure class=\"chart spaced\"><ol>{lines}</ol><div class=\"line axis\" aria-hidden=\"true\"><span></span>\
             <svg class=\"strip\" height=\"18\">{}</svg><span></span></div></figure>\n<details><summary>All {} numbers \
             that move it, and where each comes from</summary>\n{}</details>\n",
            labels(one, 14.0),
            rows.len(),
            table::inputs(&rows)
        ),
    };
    format!(
        "<article><h4>{}</h4>\n<p>On {}: {}</p>\n{chart}</article>\n",
        esc(&one.asked),
        esc(&one.machine),
        esc(&said(one))
    )
}

/// All answers.
pub(super) fn html(all: &[Sensitivity]) -> String {
    if all.is_empty() {
        return String::new();
    }
    format!(
        "<h3>What moves the answers</h3>\n<p>Each number of a machine that is an estimate, recalled or only documented was \
         halved and doubled, one at a time, and the answer simulated again. What was published or measured is left \
         alone.</p>\n<p class=\"reading\">How to read: the thin line is the answer as it is; the <span class=\"key-half\">\
         pale</span> part of a bar goes to the answer with half of the number, the <span class=\"key-twice\">coloured</span> \
         part to the answer with twice of it. Behind the number’s name, how far to trust it.</p>\n{}",
        all.iter().map(article).collect::<String>()
    )
}

/// The picture on its own: name, then content.
pub(super) fn file(one: &Sensitivity) -> (String, String) {
    let (width, margin, names) = (760.0f64, 20.0, 300.0);
    let inner = width - 2.0 * margin - names;
    let mut y = 54.0;
    let mut body = format!(
        "<text class=\"head\" x=\"{margin}\" y=\"26\">{}</text><text class=\"muted small\" x=\"{margin}\" y=\"44\">\
         pale: with half of the number, coloured: with twice</text>",
        esc(&one.asked)
    );
    for input in one.inputs.iter().take(DRAWN_MAX) {
        body += &format!(
            "<text x=\"{margin}\" y=\"{}\">{}</text><text class=\"muted small end\" x=\"{}\" y=\"{}\">{} {}</text>\
             <svg x=\"{}\" y=\"{y}\" width=\"{inner}\" height=\"26\">{}</svg>",
            y + 17.0,
            esc(&input.name),
            margin + names - 14.0,
            y + 17.0,
            esc(&value(input)),
            esc(&input.trust.to_string()),
            margin + names,
            bar(one, input, 13.0)
        );
        y += 28.0;
    }
    body += &format!(
        "<svg x=\"{}\" y=\"{y}\" width=\"{inner}\" height=\"18\" overflow=\"visible\">{}</svg>",
        margin + names,
        labels(one, 14.0)
    );
    let width = width.max(one.asked.chars().count() as f64 * 7.6 + 2.0 * margin);
    (format!("sim-moves-{}", super::markup::slug(&one.name)), standalone(width, y + 30.0, &one.asked, &body))
}
