//! Lanes: who had each CPU over time on a simulated machine, a panel per policy.
//!
//! Model.   A row is a CPU, time goes right, the gap between two groups of rows parts the last-level caches. A block is
//!          a task that runs, with the colour and the number of its pair; the bar at its beginning says that the task
//!          ran on another CPU before, a taller one that this was in another last-level cache. A tick
//!          below a block is a wake from there; what is empty is idle. The panels stand below each other, on one scale.
//! Number.  120 µs of 16 CPUs: some 290 blocks and 60 KB a panel. 880 px wide: a phone scrolls.

use super::imagined::{Lane, Lanes, Panel, Run};
use super::markup::{COLOURS, amount, digits, esc, standalone};

const WIDTH: f64 = 880.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 10.0;
const HEAD: f64 = 44.0;
const ROW: f64 = 21.0;
const BLOCK: f64 = 13.0;
/// Between last-level caches.
const GAP: f64 = 18.0;
const FOOT: f64 = 24.0;
/// What a digit takes at 12 px.
const DIGIT: f64 = 7.5;

/// Runs, those that began with a move, and those of which from another last-level cache.
fn moves(panel: &Panel) -> (usize, usize, usize) {
    let runs = || panel.lanes.iter().flat_map(|lane| lane.runs.iter().map(move |run| (lane, run)));
    let moved = runs().filter(|(_, run)| run.came_from_llc.is_some()).count();
    let far = runs().filter(|(lane, run)| run.came_from_llc.is_some_and(|llc| llc != lane.llc)).count();
    (runs().count(), moved, far)
}

fn percent(part: usize, of: usize) -> String {
    format!("{} %", digits(100.0 * part as f64 / of.max(1) as f64))
}

/// What a panel shows.
fn shown(panel: &Panel) -> String {
    let (runs, moved, far) = moves(panel);
    format!(
        "{} of {runs} runs began on another CPU than the task’s last, {} in another last-level cache",
        percent(moved, runs),
        percent(far, runs)
    )
}

/// What is seen, in a sentence.
pub(super) fn said(lanes: &Lanes) -> String {
    let one = |panel: &Panel| {
        let (runs, moved, _) = moves(panel);
        format!(
            "under {} {} of the runs began with a move to another CPU, at {}",
            panel.policy,
            percent(moved, runs),
            amount(panel.trips_per_second as f64 / 1e3, "k/s")
        )
    };
    let panels: Vec<String> = lanes.panels.iter().map(one).collect();
    format!("{} on {}: {}.", lanes.load, lanes.machine, panels.join("; "))
}

/// All panels, and how to read them.
pub(super) fn html(lanes: &Lanes) -> String {
    let panels: String = lanes
        .panels
        .iter()
        .map(|each| {
            let (width, height, body) = panel(lanes, each);
            let (policy, shown) = (esc(&each.policy), esc(&shown(each)));
            format!(
                "<p class=\"panel\"><strong>{policy}</strong>: {shown}.</p>\n<div class=\"scroll\" tabindex=\"0\" \
                 role=\"region\" aria-label=\"CPU lanes, {policy}\"><svg class=\"cpu-lanes\" width=\"{width}\" \
                 height=\"{height}\" viewBox=\"0 0 {width} {height}\" role=\"img\"><title>{policy}: {shown}</title>{body}\
                 </svg></div>\n"
            )
        })
        .collect();
    format!(
        "<h3>Who has which CPU</h3>\n<p>{}</p>\n<figure>{panels}<figcaption>How to read: a row is a CPU, a block a task \
         that runs, its colour and number those of its pair. A bar at a block’s beginning: the task ran on another CPU \
         before, and a part of its data must follow; a long bar, in another last-level cache. A tick below a block: \
         somebody was woken from there. Empty is idle. Both see the same tasks and the same random numbers.\
         </figcaption></figure>\n",
        esc(&said(lanes))
    )
}

/// The picture on its own.
pub(super) fn svg(lanes: &Lanes) -> String {
    let (margin, mut y, mut body) = (16.0, 44.0, String::new());
    for each in &lanes.panels {
        let (width, height, inside) = panel(lanes, each);
        body += &format!(
            "<text class=\"head\" x=\"{margin}\" y=\"{}\">{}</text><text class=\"small muted\" x=\"{margin}\" y=\"{}\">\
             {}</text><svg x=\"{margin}\" y=\"{}\" width=\"{width}\" height=\"{height}\">{inside}</svg>",
            y + 16.0,
            esc(&each.policy),
            y + 34.0,
            esc(&shown(each)),
            y + 38.0
        );
        y += height + 50.0;
    }
    let title = format!("{} on {}", lanes.load, lanes.machine);
    let body = format!("<text class=\"title\" x=\"{margin}\" y=\"30\">{}</text>{body}", esc(&title));
    let width = (WIDTH + 2.0 * margin).max(title.chars().count() as f64 * 9.0 + 2.0 * margin);
    standalone(width, y + 8.0, &title, &body)
}

fn panel(lanes: &Lanes, panel: &Panel) -> (f64, f64, String) {
    let span = lanes.to_ns.saturating_sub(lanes.from_ns).max(1);
    let scale = (WIDTH - LEFT - RIGHT) / span as f64;
    let at =
        |ns: u64| LEFT + ns.clamp(lanes.from_ns, lanes.to_ns).saturating_sub(lanes.from_ns) as f64 * scale;
    // Rows first: their heights say how long the grid is.
    let (mut y, mut rows, mut last) = (HEAD - GAP, String::new(), None);
    for lane in &panel.lanes {
        if last != Some(lane.llc) {
            y += GAP;
            rows += &format!(
                "<text class=\"small muted\" x=\"{LEFT}\" y=\"{}\">last-level cache {}</text>",
                y - 4.0,
                lane.llc
            );
            last = Some(lane.llc);
        }
        rows += &row(lane, y + ROW / 2.0, &at);
        y += ROW;
    }
    let mut out = String::new();
    for i in 0..=TICKS {
        let ns = lanes.from_ns + span * i / TICKS;
        let (x, label) = (at(ns), digits((ns - lanes.from_ns) as f64 / 1e3));
        let (label, side) = match i {
            0 => ("0 µs".to_owned(), ""),
            TICKS => (label, " end"),
            _ => (label, " mid"),
        };
        out += &format!(
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{HEAD}\" y2=\"{y}\"/>\
             <text class=\"small muted{side}\" x=\"{x:.1}\" y=\"{}\">{label}</text>",
            y + 16.0
        );
    }
    (WIDTH, y + FOOT, out + &rows)
}

/// Parts of the time axis.
const TICKS: u64 = 5;

fn row(lane: &Lane, middle: f64, at: &dyn Fn(u64) -> f64) -> String {
    let mut out = format!(
        "<text class=\"small muted end\" x=\"{}\" y=\"{}\">CPU {}</text>",
        LEFT - 7.0,
        middle + 4.0,
        lane.cpu
    );
    for run in &lane.runs {
        out += &block(lane, run, middle, at);
    }
    for wake in &lane.wakes_ns {
        let x = at(*wake);
        out += &format!(
            "<line class=\"wake\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{0}\" y2=\"{1}\"/>",
            middle + BLOCK / 2.0,
            middle + BLOCK / 2.0 + 3.5
        );
    }
    out
}

fn block(lane: &Lane, run: &Run, middle: f64, at: &dyn Fn(u64) -> f64) -> String {
    let (x, number) = (at(run.from_ns), run.pair.to_string());
    let width = (at(run.to_ns) - x).max(0.8);
    let top = middle - BLOCK / 2.0;
    let came = match run.came_from_llc {
        None => String::new(),
        Some(llc) => {
            let more = if llc == lane.llc { 1.5 } else { 4.0 };
            format!(
                "<line class=\"moved\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{}\"/>",
                top - more,
                top + BLOCK + if llc == lane.llc { 0.0 } else { more }
            )
        }
    };
    let label = match width > number.len() as f64 * DIGIT + 4.0 {
        true => format!(
            "<text class=\"inside mid\" x=\"{:.1}\" y=\"{}\">{number}</text>",
            x + width / 2.0,
            middle + 4.2
        ),
        false => String::new(),
    };
    format!(
        "<rect class=\"id{}\" x=\"{x:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BLOCK}\" rx=\"1.5\"/>{label}{came}",
        run.pair as usize % COLOURS
    )
}
