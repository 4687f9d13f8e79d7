//! Chart: what a case's variants take or get done, on one logarithmic axis, a line each.
//!
//! Model.   A strip is drawn in percent of its width and in pixels of its height, so it
//!          stretches from a phone to a desk without shrinking a letter. The page lays name,
//!          strip and value out with CSS; a picture that stands alone stacks them.
//! Number.  The axis ends at twice the highest 95 % interval: one slice that met an interrupt
//!          may be 100 times slower, and would squeeze the rest into a corner. It is cut there,
//!          and the cut is drawn.

use super::markup::{amount, esc, slug, standalone, tick_of};
use std::borrow::Cow;
use warmcore_results::names::percpu;
use warmcore_results::{Results, Row};

/// A heading, and the rows below it: as measured, or computed from those.
pub(super) type Group<'a> = (Option<String>, Vec<Cow<'a, Row>>);

/// A chart: groups of rows over one axis.
pub(super) struct Chart<'a> {
    /// The part of a file name that tells it from others.
    pub name: String,
    /// What is timed.
    pub title: String,
    /// How to read it, in one line.
    pub how: String,
    /// Headed groups; a chart of one case has one, without a heading.
    pub groups: Vec<Group<'a>>,
    /// Which rows carry the accent.
    pub accent: fn(&Row) -> bool,
    /// Of some rows the 99th percentile, as rows of their own.
    tails: Vec<&'a Row>,
    axis: Axis,
}

/// Whether a row is Warmcore's own.
pub(super) fn is_ours(row: &Row) -> bool {
    row.variant.starts_with("warmcore") || row.variant == warmcore_results::names::cid::OURS
}

/// Whether a row can stand on an axis of times.
pub(super) fn is_time(row: &Row) -> bool {
    row.unit == "ns" && is_positive(row)
}

/// Whether a row can stand on a logarithmic axis.
pub(super) fn is_positive(row: &Row) -> bool {
    row.median.is_finite() && row.median > 0.0
}

/// The values of `key` over `rows`, each once, in the order they first come.
pub(super) fn distinct<'a>(rows: &[&'a Row], key: impl Fn(&'a Row) -> &'a str) -> Vec<&'a str> {
    rows.iter().fold(Vec::new(), |mut seen, row| {
        let value = key(row);
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

/// The charts of one case: one for each metric that is a time, fastest variant first.
pub(super) fn of_case<'a>(run: &'a Results, case: &str) -> Vec<Chart<'a>> {
    let times: Vec<&Row> = run.rows.iter().filter(|r| r.case == case && is_time(r)).collect();
    let of_metric = |metric: &str| {
        let mut rows: Vec<&Row> = times.iter().copied().filter(|r| r.metric == metric).collect();
        rows.sort_by(|a, b| a.median.total_cmp(&b.median));
        let suffix = if metric == "time" { String::new() } else { format!(", {metric}") };
        let how = "How to read: dot, the median; thick bar, its 95 % interval; thin line, lowest to highest slice \
                   (› goes on); hollow, noisy. Left is faster, the scale is logarithmic; Warmcore is bold.";
        Chart {
            // A case that names its run already (`peers.counter.add`) needs no second name.
            name: match case.starts_with(&run.what) {
                true => slug(&format!("{case}{suffix}")),
                false => slug(&format!("{}-{case}{suffix}", run.what)),
            },
            title: format!("{case}{suffix}"),
            how: how.into(),
            axis: Axis::over(&rows),
            groups: vec![(None, rows.into_iter().map(Cow::Borrowed).collect())],
            accent: is_ours,
            tails: Vec::new(),
        }
    };
    distinct(&times, |r| &r.metric).into_iter().map(of_metric).collect()
}

impl<'a> Chart<'a> {
    /// A chart of headed groups over one axis.
    pub fn grouped(
        name: String,
        title: String,
        how: String,
        groups: Vec<(Option<String>, Vec<&'a Row>)>,
        accent: fn(&Row) -> bool,
    ) -> Self {
        let borrowed = |rows: Vec<&'a Row>| rows.into_iter().map(Cow::Borrowed).collect();
        let groups = groups.into_iter().map(|(head, rows)| (head, borrowed(rows))).collect();
        Self::of_any(name, title, how, groups, accent)
    }

    /// The same of rows that may be computed. All have one unit.
    pub fn of_any(
        name: String,
        title: String,
        how: String,
        groups: Vec<Group<'a>>,
        accent: fn(&Row) -> bool,
    ) -> Self {
        let axis = Axis::over(&rows_of(&groups));
        Self { name, title, how, groups, accent, tails: Vec::new(), axis }
    }

    /// The same, each bar from the median to the row's 99th percentile instead.
    pub fn with_tails(self, tails: Vec<&'a Row>) -> Self {
        let all: Vec<&Row> = rows_of(&self.groups).into_iter().chain(tails.iter().copied()).collect();
        Self { axis: Axis::over(&all), tails, ..self }
    }

    fn tail(&self, row: &Row) -> Option<f64> {
        let tail = self.tails.iter().find(|tail| tail.case == row.case && tail.variant == row.variant);
        tail.map(|tail| tail.median)
    }

    /// The chart inside the page.
    pub fn html(&self) -> String {
        let groups: String =
            self.groups.iter().map(|(head, rows)| self.group_html(head.as_deref(), rows)).collect();
        let ticks: String = self.axis.ticks().map(|t| self.axis.label(t, 14.0)).collect();
        format!(
            "<figure class=\"chart\">{groups}<div class=\"line axis\" aria-hidden=\"true\"><span></span>\
             <svg class=\"strip\" height=\"18\">{ticks}</svg><span></span></div>\
             <figcaption>{}</figcaption></figure>\n",
            esc(&self.how)
        )
    }

    fn group_html(&self, head: Option<&str>, rows: &[Cow<Row>]) -> String {
        let head = head.map(|h| format!("<h4>{}</h4>", esc(h))).unwrap_or_default();
        let line = |row: &Cow<Row>| {
            format!(
                "<li class=\"line{}\"><span class=\"name\">{}</span><svg class=\"strip\" height=\"26\" \
                 role=\"img\"><title>{}</title>{}</svg><span class=\"value\">{}{}{}</span></li>",
                self.classes(row),
                esc(&row.variant),
                esc(&self.spoken(row)),
                self.marks(row, 13.0),
                esc(&amount(row.median, &row.unit)),
                self.tail(row)
                    .map_or(String::new(), |p99| format!("<small>p99 {}</small>", amount(p99, &row.unit))),
                if row.noisy { " <em>noisy</em>" } else { "" },
            )
        };
        format!("{head}<ol>{}</ol>", rows.iter().map(line).collect::<String>())
    }

    /// The chart as a picture of its own.
    pub fn svg(&self) -> String {
        let (width, margin) = (760.0, 20.0);
        let inner = width - 2.0 * margin;
        let mut y = 34.0;
        let mut body = format!("<text class=\"title\" x=\"{margin}\" y=\"{y}\">{}</text>", esc(&self.title));
        y += 10.0;
        for (head, rows) in &self.groups {
            if let Some(head) = head {
                y += 24.0;
                body += &format!("<text class=\"muted\" x=\"{margin}\" y=\"{y}\">{}</text>", esc(head));
                y += 4.0;
            }
            for row in rows {
                body += &format!(
                    "<g class=\"{}\"><text class=\"name\" x=\"{margin}\" y=\"{}\">{}</text>\
                     <text class=\"amount end\" x=\"{}\" y=\"{}\">{}{}{}</text>\
                     <svg x=\"{margin}\" y=\"{}\" width=\"{inner}\" height=\"22\">{}</svg></g>",
                    self.classes(row),
                    y + 18.0,
                    esc(&row.variant),
                    width - margin,
                    y + 18.0,
                    esc(&amount(row.median, &row.unit)),
                    self.tail(row).map_or(String::new(), |p99| format!(", p99 {}", amount(p99, &row.unit))),
                    if row.noisy { " noisy" } else { "" },
                    y + 22.0,
                    self.marks(row, 11.0),
                );
                y += 46.0;
            }
        }
        let ticks: String = self.axis.ticks().map(|t| self.axis.label(t, 14.0)).collect();
        body += &format!(
            "<svg x=\"{margin}\" y=\"{y}\" width=\"{inner}\" height=\"18\" overflow=\"visible\">{ticks}</svg>"
        );
        standalone(width, y + 34.0, &self.title, &body)
    }

    fn classes(&self, row: &Row) -> String {
        let (ours, noisy) = ((self.accent)(row), row.noisy);
        format!("{}{}", if ours { " ours" } else { "" }, if noisy { " noisy" } else { "" })
    }

    /// A row in a sentence, for those who hear the chart or point at a line.
    fn spoken(&self, row: &Row) -> String {
        let a = |value| amount(value, &row.unit);
        let interval =
            row.ci95.map(|[lo, hi]| format!(", 95 % interval {} to {}", a(lo), a(hi))).unwrap_or_default();
        format!(
            "{}: median {}{interval}, a quarter at or below {}, {}lowest {}, highest {}, {} slices{}",
            row.variant,
            a(row.median),
            a(row.p25),
            self.tail(row).map_or(String::new(), |p99| format!("99 of 100 at or below {}, ", a(p99))),
            a(row.min),
            a(row.max),
            row.n,
            if row.noisy { ", noisy" } else { "" }
        )
    }

    /// Grid, whisker, bar and dot of a row, around the height `y`.
    fn marks(&self, row: &Row, y: f64) -> String {
        let at = |value: f64| self.axis.at(value);
        let grid: String = self
            .axis
            .ticks()
            .map(|t| {
                format!("<line class=\"grid\" x1=\"{0:.2}%\" x2=\"{0:.2}%\" y1=\"0\" y2=\"100%\"/>", at(t))
            })
            .collect();
        let [lo, hi] = match self.tail(row) {
            Some(p99) => [row.median, p99],
            None => row.ci95.unwrap_or([row.p25, row.median]),
        };
        let cut = |beyond: bool, x: &str, sign: &str| match beyond {
            true => format!("<text class=\"clip{x}\" y=\"{:.1}\">{sign}</text>", y + 6.5),
            false => String::new(),
        };
        format!(
            "{grid}<line class=\"whisker\" x1=\"{:.2}%\" x2=\"{:.2}%\" y1=\"{y}\" y2=\"{y}\"/>{}{}\
             <rect class=\"bar\" x=\"{:.2}%\" width=\"{:.2}%\" y=\"{}\" height=\"10\" rx=\"2\"/>\
             <circle class=\"dot\" cx=\"{:.2}%\" cy=\"{y}\" r=\"5\"/>",
            at(row.min),
            at(row.max),
            cut(row.min < self.axis.lo, "\" x=\"0", "‹"),
            cut(row.max > self.axis.hi, " end\" x=\"100%", "›"),
            at(lo),
            (at(hi) - at(lo)).max(0.0),
            y - 5.0,
            at(row.median),
        )
    }
}

/// The rows of all groups.
fn rows_of<'g>(groups: &'g [Group]) -> Vec<&'g Row> {
    groups.iter().flat_map(|(_, rows)| rows).map(|row| &**row).collect()
}

/// No axis reaches beyond: powers of ten are exact between them, and nothing that is measured is so small or
/// large. What a file says beyond stands at the edge.
const ENDS: [f64; 2] = [1e-9, 1e18];

/// A logarithmic axis of the rows' unit.
struct Axis {
    lo: f64,
    hi: f64,
    unit: String,
}

impl Axis {
    /// The axis that shows every interval, and of whiskers as much as doesn't squeeze the rest.
    fn over(rows: &[&Row]) -> Self {
        let ends = |row: &&Row| {
            let [lo, hi] = row.ci95.unwrap_or([row.p25, row.median]);
            [row.min.max(lo / 2.0), row.max.min(hi * 2.0)]
        };
        let is_number = |v: &f64| v.is_finite() && *v > 0.0;
        let values: Vec<f64> =
            rows.iter().flat_map(ends).filter(is_number).map(|v| v.clamp(ENDS[0], ENDS[1])).collect();
        let lo = values.iter().copied().fold(f64::INFINITY, f64::min);
        let hi = values.iter().copied().fold(0.0, f64::max);
        let unit = rows.first().map_or("ns", |row| &row.unit).to_owned();
        if values.is_empty() {
            Self { lo: 1.0, hi: 10.0, unit }
        } else {
            // One slice of exactly 1 ns still needs an axis of some length.
            Self { lo: step(lo, true), hi: step(hi.max(2.0 * lo), false), unit }
        }
    }

    /// Where a value stands, in percent of the width; what lies beyond stands at the edge.
    fn at(&self, value: f64) -> f64 {
        let share = (value.max(self.lo) / self.lo).ln() / (self.hi / self.lo).ln();
        2.0 + 96.0 * share.clamp(0.0, 1.0)
    }

    /// 1-2-5 over a short range, powers of ten over a long one, so that seven labels fit a phone.
    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        let decades = (self.hi / self.lo).log10();
        let (parts, every): (&[f64], i32) = match decades {
            d if d <= 2.0 => (&[1.0, 2.0, 5.0], 1),
            d if d <= 6.0 => (&[1.0], 1),
            d => (&[1.0], (d / 5.0).ceil() as i32),
        };
        let (first, last) = (self.lo.log10().floor() as i32, self.hi.log10().ceil() as i32);
        (first..=last)
            .filter(move |e| e.rem_euclid(every) == 0)
            .flat_map(move |e| parts.iter().map(move |p| p * 10f64.powi(e)))
            .filter(|t| *t >= self.lo * 0.999 && *t <= self.hi * 1.001)
    }

    fn label(&self, value: f64, y: f64) -> String {
        let (x, text) = (self.at(value), tick_of(value, &self.unit));
        // At an edge half of it stands outside the strip, where the margin has room for it.
        format!("<text class=\"muted small mid\" x=\"{x:.2}%\" y=\"{y}\">{text}</text>")
    }
}

/// The next 1, 2 or 5 times a power of ten, downwards or upwards.
fn step(value: f64, down: bool) -> f64 {
    let power = 10f64.powi(value.log10().floor() as i32);
    let steps = [1.0, 2.0, 5.0, 10.0].map(|s| s * power);
    let near = |s: &&f64| if down { **s <= value * 1.0001 } else { **s >= value * 0.9999 };
    let found = if down { steps.iter().rev().find(near) } else { steps.iter().find(near) };
    found.copied().unwrap_or(value)
}

/// The cases of a run, in the order they were measured.
pub(super) fn cases(run: &Results) -> Vec<&str> {
    let mut cases = distinct(&run.rows.iter().collect::<Vec<_>>(), |r| &r.case);
    if run.what == "percpu" {
        // Older files begin with the loops; one that is not known stays behind.
        cases.sort_by_key(|name| percpu::CASES.iter().position(|case| case == name).unwrap_or(usize::MAX));
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(lo: f64, hi: f64) -> (Axis, Vec<f64>) {
        let row = serde_json::json!({
            "case": "c", "variant": "v", "metric": "time", "unit": "ns", "p25": 1.0, "median": 1.0, "min": 1.0,
            "max": 1.0, "n": 1, "noisy": false,
        });
        let row = Row { min: lo, p25: lo, median: hi, max: hi, ..serde_json::from_value(row).unwrap() };
        let axis = Axis::over(&[&row]);
        // One that goes on and on would be cut here, and is too many.
        let ticks = axis.ticks().take(100).collect();
        (axis, ticks)
    }

    #[test]
    fn numbers_at_the_ends_of_what_a_float_can_be_have_an_axis() {
        for (lo, hi) in
            [(1e-320, 1e-320), (1e-320, 1e300), (f64::MIN_POSITIVE, f64::MAX), (f64::MAX, f64::MAX)]
        {
            let (axis, ticks) = ticks(lo, hi);
            assert!(axis.lo > 0.0 && axis.lo < axis.hi && axis.hi.is_finite(), "{lo} to {hi}");
            assert!((1..12).contains(&ticks.len()), "{lo} to {hi}: {ticks:?}");
            assert!((0.0..=100.0).contains(&axis.at(lo)) && (0.0..=100.0).contains(&axis.at(hi)));
        }
    }

    #[test]
    fn an_axis_of_any_numbers_has_a_few_labels() {
        // Any bits: all exponents, infinities and NaNs.
        let mut rng = fastrand::Rng::with_seed(1);
        let mut any = || f64::from_bits(rng.u64(..));
        for _ in 0..20_000 {
            let (a, b) = (any(), any());
            let (axis, ticks) = ticks(a, b);
            assert!(axis.lo > 0.0 && axis.lo < axis.hi && axis.hi.is_finite(), "{a} {b}");
            assert!((1..12).contains(&ticks.len()), "{a} {b}: {ticks:?}");
        }
    }
}
