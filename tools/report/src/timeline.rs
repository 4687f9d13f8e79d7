//! Timeline: which id each CPU had over time, a panel per policy.
//!
//! Model.   A row is a CPU, time goes right. A mark is a burst, with the id that it ran with; the thin
//!          band after it is the id that the CPU kept. An id has one colour everywhere, and its number
//!          is in the mark: so one sees at once whether a row stays the same. Bursts of a moment
//!          are drawn as wide as their number. Panels stand beside each other where there is
//!          room, and below each other on a phone; none is ever shrunk.
//! Number.  Three panels of eight CPUs, 288 px each: 64 marks a panel, 15 KB.

use super::markup::{COLOURS, digits, esc, standalone};
use super::table;
use warmcore_results::{Lane, Results, Span, Timeline};

const WIDTH: f64 = 288.0;
/// The CPUs' names stand left of this.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 6.0;
const HEAD: f64 = 44.0;
const ROW: f64 = 24.0;
const FOOT: f64 = 22.0;
const MARK: (f64, f64) = (15.0, 16.0);
/// What a digit takes at 12 px.
const DIGIT: f64 = 7.5;

/// The picture's name as a file.
pub(super) const FILE: &str = "cid-timeline";

/// How often a CPU, when it ran again, had the id of its last burst. Of how many.
fn returns(timeline: &Timeline) -> (usize, usize) {
    let pairs = || timeline.lanes.iter().flat_map(|lane| lane.bursts.windows(2));
    (pairs().filter(|pair| pair[0].cid == pair[1].cid).count(), pairs().count())
}

/// How many of all ids were used.
fn ids(timeline: &Timeline) -> usize {
    let all = timeline.lanes.iter().flat_map(|lane| lane.bursts.iter().map(|burst| burst.cid));
    all.collect::<std::collections::BTreeSet<_>>().len()
}

/// How many CPUs ran with the id that most of them ran with.
fn sharing(timeline: &Timeline) -> usize {
    let with = |id| timeline.lanes.iter().filter(|l| l.bursts.iter().any(|b| b.cid == id)).count();
    let all = timeline.lanes.iter().flat_map(|lane| lane.bursts.iter().map(|burst| burst.cid));
    all.collect::<std::collections::BTreeSet<_>>().into_iter().map(with).max().unwrap_or(0)
}

/// What one sees, in a line.
pub(super) fn title(run: &Results) -> String {
    let all = |timeline: &Timeline| {
        let (same, of) = returns(timeline);
        of > 0 && same == of && sharing(timeline) == 1
    };
    match run.timelines.iter().find(|t| all(t)) {
        Some(timeline) => format!("The same CPU, the same id: {}", timeline.policy),
        None => "Which id each CPU had".to_owned(),
    }
}

/// What a panel shows, in a line.
fn said(timeline: &Timeline) -> String {
    match (ids(timeline), sharing(timeline)) {
        (1, n) if n > 1 => format!("1 id, on {n} CPUs in turn"),
        (ids, n) if n > 1 => format!("{ids} ids, one of them on {n} CPUs"),
        (1, _) => "1 id, on one CPU".to_owned(),
        (ids, _) => format!("{ids} ids, none on a second CPU"),
    }
}

/// All panels, the numbers as a table, and how to read them.
pub(super) fn html(run: &Results) -> String {
    let panels: String = run
        .timelines
        .iter()
        .map(|timeline| {
            let (width, height, body) = panel(timeline);
            format!(
                "<svg class=\"lanes\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
                 role=\"img\"><title>{}: {}</title>{body}</svg>\n",
                esc(&timeline.policy),
                esc(&said(timeline)),
            )
        })
        .collect();
    format!(
        "<article><h4>{}</h4>\n<figure><div class=\"panels\">{panels}</div><figcaption>{}</figcaption></figure>\n\
         <details><summary>The same in numbers</summary>\n{}</details></article>\n",
        esc(&title(run)),
        esc(&how(run)),
        table::lanes(&rows(run)),
    )
}

/// How to read it.
fn how(run: &Results) -> String {
    let facts = run.timelines.first().map(|timeline| {
        let gap = |lane: &Lane| Some(lane.bursts.get(1)?.from_ms - lane.bursts.first()?.to_ms);
        let pause = timeline.lanes.iter().find_map(gap).unwrap_or(0);
        format!(
            "{} CPUs of one tenant in imagined time, each pausing {} s between bursts, as in the published program. ",
            timeline.lanes.len(),
            digits(f64::from(pause) / 1e3)
        )
    });
    format!(
        "How to read: {}A mark is a burst, its number and colour the id: the data it works on. A band behind it is the \
         id that the CPU keeps while it pauses, if it keeps it for long. A row of one colour finds its data in its own cache; \
         a colour in many rows is data that travels.",
        facts.unwrap_or_default()
    )
}

/// The picture on its own.
pub(super) fn svg(run: &Results) -> String {
    let gap = 16.0;
    let (mut x, mut tallest, mut body) = (gap, 0.0f64, String::new());
    for timeline in &run.timelines {
        let (width, height, panel) = panel(timeline);
        body += &format!("<svg x=\"{x}\" y=\"44\" width=\"{width}\" height=\"{height}\">{panel}</svg>");
        (x, tallest) = (x + width + gap, tallest.max(height));
    }
    let title = title(run);
    let body = format!("<text class=\"title\" x=\"{gap}\" y=\"30\">{}</text>{body}", esc(&title));
    standalone(x.max(title.chars().count() as f64 * 9.0 + 2.0 * gap), tallest + 56.0, &title, &body)
}

fn panel(timeline: &Timeline) -> (f64, f64, String) {
    let low = HEAD + timeline.lanes.len() as f64 * ROW;
    // The last burst's number must fit as well.
    let scale = (WIDTH - LEFT - RIGHT - MARK.0) / f64::from(timeline.end_ms.max(1));
    let at = |ms: u32| LEFT + f64::from(ms.min(timeline.end_ms)) * scale;
    let mut out = format!(
        "<text class=\"head\" x=\"0\" y=\"14\">{}</text><text class=\"small muted\" x=\"0\" y=\"32\">{}</text>",
        esc(&timeline.policy),
        esc(&said(timeline)),
    );
    let seconds = timeline.end_ms / 1000;
    let every = (seconds / 4).max(1);
    for second in (0..=seconds).step_by(every as usize) {
        let (x, label) = (at(second * 1000), if second == 0 { "0 s".to_owned() } else { second.to_string() });
        out += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEAD}\" y2=\"{low}\"/>\
             <text class=\"small muted mid\" x=\"{x:.1}\" y=\"{}\">{label}</text>",
            low + 16.0
        );
    }
    for (i, lane) in timeline.lanes.iter().enumerate() {
        let middle = HEAD + (i as f64 + 0.5) * ROW;
        out += &format!(
            "<text class=\"small muted end\" x=\"{}\" y=\"{}\">CPU {}</text>",
            LEFT - 7.0,
            middle + 4.0,
            lane.cpu
        );
        for span in &lane.kept {
            let (x, width) = (at(span.from_ms), (at(span.to_ms) - at(span.from_ms)).max(1.0));
            out += &format!(
                "<rect class=\"{} band\" x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"4\"/>",
                colour(span),
                middle - 2.0
            );
        }
        out.extend(lane.bursts.iter().map(|burst| mark(lane, burst, at(burst.from_ms), scale, middle)));
    }
    (WIDTH, low + FOOT, out)
}

fn mark(lane: &Lane, burst: &Span, x: f64, scale: f64, middle: f64) -> String {
    let number = burst.cid.to_string();
    let least = MARK.0.max(number.len() as f64 * DIGIT + 4.0);
    let width = (f64::from(burst.to_ms.saturating_sub(burst.from_ms)) * scale).max(least);
    format!(
        "<g><title>CPU {}, {} s: id {number}</title>\
         <rect class=\"{}\" x=\"{x:.1}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" rx=\"3\"/>\
         <text class=\"inside mid\" x=\"{:.1}\" y=\"{}\">{number}</text></g>",
        lane.cpu,
        f64::from(burst.from_ms) / 1e3,
        colour(burst),
        middle - MARK.1 / 2.0,
        MARK.1,
        x + width / 2.0,
        middle + 4.2,
    )
}

/// The class with an id's colour. Beyond as many as there are, ids share them; the number tells.
fn colour(span: &Span) -> String {
    format!("id{}", span.cid as usize % COLOURS)
}

/// The bursts' ids, a row per CPU: for who reads numbers.
pub(super) fn rows(run: &Results) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["id of each burst".to_owned()]];
    rows[0].extend(run.timelines.iter().map(|timeline| timeline.policy.clone()));
    for (i, lane) in run.timelines.first().into_iter().flat_map(|t| &t.lanes).enumerate() {
        let ids = |timeline: &Timeline| {
            let bursts = timeline.lanes.get(i).into_iter().flat_map(|lane| &lane.bursts);
            bursts.map(|burst| burst.cid.to_string()).collect::<Vec<_>>().join(" ")
        };
        rows.push(
            std::iter::once(format!("CPU {}", lane.cpu)).chain(run.timelines.iter().map(ids)).collect(),
        );
    }
    rows
}
