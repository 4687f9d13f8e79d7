//! Formats text, numbers and colours for HTML, SVG and a terminal.
//!
//! Text from outside goes through [`esc`] once, where it enters the markup. The output is well-formed XML, so that a
//! test can parse it. Colours have a name and two values, light and dark; a picture in a separate file contains both.
//!
//! A test checks that the contrast of text is at least 4.5 to 1 (WCAG AA) in both themes.

/// The name, the light and the dark value of each colour. There is one accent colour, for Warmcore and for what needs
/// attention.
pub(super) const PALETTE: [(&str, &str, &str); 10 + COLOURS] = [
    ("paper", "#fffdf9", "#17181a"),
    ("ink", "#1f2124", "#e9e7e2"),
    ("muted", "#5e625f", "#a3a49e"),
    ("rule", "#dedad2", "#3a3c3f"),
    ("tint", "#f5f1ea", "#212326"),
    ("mark", "#8b8f8c", "#7f827d"),
    ("accent", "#a63d0a", "#f09a64"),
    // The results of comparisons.
    ("good", "#17693a", "#6fce95"),
    ("bad", "#b3261e", "#f2938c"),
    ("open", "#7a5c00", "#e0c35c"),
    // Hues without a meaning, which only distinguish marks. Text on them is `ink` with an outline of `paper`.
    ("id0", "#1f5fa8", "#7fb2f0"),
    ("id1", "#8a5a00", "#dcc25a"),
    ("id2", "#1a7340", "#74c98f"),
    ("id3", "#7a3fa0", "#c79bea"),
    ("id4", "#b8275f", "#f491b4"),
    ("id5", "#0b7077", "#5fc8cf"),
    ("id6", "#4d5560", "#b9bec4"),
    ("id7", "#c0420f", "#f2a25c"),
];

/// The number of hues without a meaning.
pub(super) const COLOURS: usize = 8;

/// The CSS classes of the machine's picture, for the page and for the picture in a separate file.
pub(super) const MARKS_CSS: &str = include_str!("../templates/machine.css");

/// Whether the output must not have the character: a control character other than a line feed or a tab, or one of the
/// two noncharacters that XML forbids.
pub(super) fn is_forbidden(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{fffe}' | '\u{ffff}')
}

/// Escapes `text` for an element or an attribute: the result has no markup and no character that XML forbids.
pub(super) fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if is_forbidden(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Formats a value with three significant digits from 0.1 to 999: `0.524`, `12.3`, `186`. A larger value is rounded to
/// a whole number, and a smaller one has two digits. 0 is `0`; a value that is not finite is `?`.
pub(super) fn digits(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "?".into(),
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        v if v >= 0.01 => format!("{value:.3}"),
        _ => format!("{value:.1e}"),
    }
}

/// Formats a value with its unit: `0.524 ns`, `1.20 µs`, `11.2×`, `3.40 M/s`, `12 pages`.
pub(super) fn amount(value: f64, unit: &str) -> String {
    match unit {
        "x" => format!("{}×", digits(value)),
        "ns" => match value.abs() {
            v if v < 1e3 => format!("{} ns", digits(value)),
            v if v < 1e6 => format!("{} µs", digits(value / 1e3)),
            v if v < 1e9 => format!("{} ms", digits(value / 1e6)),
            _ => format!("{} s", digits(value / 1e9)),
        },
        "k/s" if value != 0.0 => {
            let (value, unit) = rate(value);
            format!("{} {unit}", digits(value))
        }
        // A whole number of another unit is a count and has no decimals: 3 pages, not 3.00 pages.
        _ if value.fract() == 0.0 => format!("{value} {unit}"),
        _ => format!("{} {unit}", digits(value)),
    }
}

/// Formats a simulated number with its unit: percent with two decimals, other units as [`amount`].
pub(super) fn quantity(number: f64, unit: &str) -> String {
    if unit == "percent" { format!("{number:.2} %") } else { amount(number, unit) }
}

/// Converts thousands per second to the most readable unit.
fn rate(thousands: f64) -> (f64, &'static str) {
    match thousands.abs() {
        v if v < 1.0 => (thousands * 1e3, "/s"),
        v if v < 1e3 => (thousands, "k/s"),
        _ => (thousands / 1e3, "M/s"),
    }
}

/// Formats a tick of an axis: `5 µs`, `2×`, `500 k/s`, `1 M/s`. As [`amount`], without zeros at the end.
pub(super) fn tick(value: f64, unit: &str) -> String {
    let (value, unit) = match unit {
        "ns" if value < 1e3 => (value, "ns"),
        "ns" if value < 1e6 => (value / 1e3, "µs"),
        "ns" => (value / 1e6, "ms"),
        "k/s" => rate(value),
        unit => (value, unit),
    };
    // Ticks are 1, 2 or 5 times a power of ten: rounding to six places only undoes `powi`.
    let value = (value * 1e6).round() / 1e6;
    if unit == "x" { format!("{value}×") } else { format!("{value} {}", esc(unit)) }
}

/// The palette as CSS variables: the light values, the dark ones if the user prefers a dark page, and the light ones
/// for printing.
pub(super) fn palette_css() -> String {
    let vars = |dark: bool| -> String {
        PALETTE.iter().map(|(name, l, d)| format!("--{name}:{};", if dark { d } else { l })).collect()
    };
    format!(
        ":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n@media print{{:root{{{light}}}}}\n",
        light = vars(false),
        dark = vars(true),
    )
}

/// A picture of the machine for a separate file. Its colours are plain values, because not every program that shows an
/// SVG supports CSS variables.
pub(super) fn standalone(width: f64, height: f64, title: &str, body: &str) -> String {
    let css = |dark: bool| {
        PALETTE.iter().fold(MARKS_CSS.to_owned(), |css, (name, light, night)| {
            css.replace(&format!("var(--{name})"), if dark { night } else { light })
        })
    };
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\"><title>{}</title><style>{}\
         @media (prefers-color-scheme: dark){{{}}}</style>\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>{body}</svg>\n",
        esc(title),
        css(false),
        css(true),
    )
}
