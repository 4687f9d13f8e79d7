//! Draws an interval into the cells of a screen.
//!
//! Two lines summarize the runtime; a further line names the worker, if any, that is busy with foreign tasks (those of
//! `tokio::spawn`) while other workers are less than half as busy. After the line of titles there is a line per
//! last-level cache with a line per worker below it, a line per tenant, and a line per group of tasks, the busiest first
//! (`tables.rs`). On a terminal the last line has the keys, the number of hidden lines, or a message about the process.
//! On a narrow screen the least important columns are left out; the bar takes the remaining width, at most 32 columns.
//! What a colour says about a worker is in its line too, as a mark or as the share of busy time.
//!
//! 40 columns show which workers are busy and how many tasks they poll that another worker polled before; 73 columns
//! show every distance.

use super::snapshot::{Interval, Rates};
use super::tables;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use warmcore_runtime::WorkerMetrics;

/// How an interval is shown.
#[derive(Debug, Clone, Default)]
pub(super) struct View {
    /// The number of lines of workers and tenants that are scrolled out above the screen.
    pub(super) scroll: u16,
    /// Whether the interval is drawn to a terminal, where keys work.
    pub(super) is_live: bool,
    /// A message if the process does not answer.
    pub(super) note: Option<String>,
    /// A message if the process or its runtime has ended.
    pub(super) end: Option<String>,
}

/// The colour of workers that foreign tasks dominate ([`Rates::is_dominated`]).
const FOREIGN_COLOR: Color = Color::Magenta;

/// The number of lines above the list of workers.
const HEAD: u16 = 4;

/// A column of a table: its title, its width, and its text for a worker or a tenant with its rates.
pub(super) struct Column<T, R> {
    pub(super) title: &'static str,
    pub(super) width: usize,
    pub(super) value: fn(&T, &R) -> String,
}

pub(super) const fn column<T, R>(
    title: &'static str,
    width: usize,
    value: fn(&T, &R) -> String,
) -> Column<T, R> {
    Column { title, width, value }
}

type WorkerColumn = Column<WorkerMetrics, Rates>;

const BUSY: WorkerColumn = column("busy", 6, |_, rates| format!("{:.0} %", rates.busy * 100.0));
/// The number of foreign tasks, and their share of the time.
const FOREIGN: WorkerColumn = column("foreign", 11, |worker, rates| match worker.foreign_tasks {
    0 => "0".into(),
    n => format!("{}, {:.0} %", short(n as f64), rates.foreign * 100.0),
});
const WAITING: WorkerColumn = column("wait", 6, |worker, _| short(worker.local_queue_depth.into()));
const HOME: WorkerColumn = column("home/s", 8, |_, rates| short(rates.same_worker));

/// The workers' columns for screens of 40 to 72 characters.
const NARROW: &[WorkerColumn] = &[
    BUSY,
    WAITING,
    HOME,
    column("away/s", 8, |_, rates| short(rates.same_llc + rates.other_llc + rates.other_node)),
];

/// The workers' columns for screens of 73 to 119 characters.
const MIDDLE: &[WorkerColumn] = &[
    BUSY,
    FOREIGN,
    WAITING,
    HOME,
    column("LLC/s", 7, |_, rates| short(rates.same_llc)),
    column("far/s", 7, |_, rates| short(rates.other_llc)),
    column("node/s", 8, |_, rates| short(rates.other_node)),
    column("long/s", 8, |_, rates| short(rates.long_polls)),
];

/// The workers' columns for screens of 120 and more characters.
const WIDE: &[WorkerColumn] = &[
    BUSY,
    FOREIGN,
    column("waiting", 9, WAITING.value),
    column("poll", 9, |worker, _| time(worker.mean_poll_ns.into())),
    HOME,
    column("same LLC/s", 12, |_, rates| short(rates.same_llc)),
    column("other LLC/s", 13, |_, rates| short(rates.other_llc)),
    column("other node/s", 14, |_, rates| short(rates.other_node)),
    column("first/s", 9, |_, rates| short(rates.first_polls)),
    column("steals/s", 9, |_, rates| short(rates.steal_operations)),
    column("long/s", 8, |_, rates| short(rates.long_polls)),
];

pub(super) fn width_of<T, R>(columns: &[Column<T, R>]) -> usize {
    columns.iter().map(|column| column.width).sum()
}

/// The line of titles, with `first` in the space of `rest` characters before the columns.
pub(super) fn titles<T, R>(first: &str, rest: usize, columns: &[Column<T, R>]) -> String {
    let titles = columns.iter().map(|Column { title, width, .. }| format!("{title:>width$}"));
    std::iter::once(format!("{first:rest$}")).chain(titles).collect()
}

/// The width of a worker's CPU number and mark before the bar: `  383 ! `.
const LABEL: usize = 8;
const BAR_MIN: usize = 4;
pub(super) const BAR_MAX: usize = 32;

fn columns(width: usize) -> &'static [WorkerColumn] {
    let fits = |columns: &&&[WorkerColumn]| LABEL + BAR_MIN + width_of(columns) <= width;
    [WIDE, MIDDLE, NARROW].iter().find(fits).copied().unwrap_or(&[])
}

/// The height of a screen that shows everything but the line of keys; at most 4000 lines below the titles.
pub(super) fn height(interval: &Interval) -> u16 {
    let lines = interval.now.metrics.workers.len() + interval.llcs().len() + tables::height(interval);
    HEAD + lines.min(4000) as u16
}

/// The furthest useful scroll position on a screen that also has the line of keys.
pub(super) fn scroll_max(interval: &Interval, area: Rect) -> u16 {
    (height(interval) + 1).saturating_sub(area.height)
}

/// Draws the interval.
pub(super) fn draw(interval: &Interval, view: &View, area: Rect, cells: &mut Buffer) {
    let width = area.width as usize;
    let foot = u16::from(view.is_live).min(area.height);
    let mut lines = head(interval, width);
    lines.extend(body(interval, width).into_iter().skip(view.scroll.into()));
    let shown = area.height - foot;
    let hidden = lines.len().saturating_sub(shown.into());
    for (line, y) in lines.iter().zip(area.y..area.y + shown) {
        cells.set_line(area.x, y, line, area.width);
    }
    if foot > 0 {
        cells.set_line(area.x, area.bottom() - 1, &foot_line(view, hidden, area.width.into()), area.width);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

/// Joins the first part and as many of the next ones as fit into `width`, separated by dots.
fn fitting(parts: &[String], width: usize) -> String {
    let mut out = String::new();
    for part in parts {
        let dot = if out.is_empty() { "" } else { " · " };
        if !out.is_empty() && out.chars().count() + dot.chars().count() + part.chars().count() > width {
            break;
        }
        out.push_str(dot);
        out.push_str(part);
    }
    out
}

pub(super) fn many(n: usize, what: &str) -> String {
    format!("{} {what}{}", short(n as f64), if n == 1 { "" } else { "s" })
}

fn head(interval: &Interval, width: usize) -> Vec<Line<'static>> {
    let now = &interval.now;
    let workers = &now.metrics.workers;
    let foreign = workers.iter().fold(0usize, |sum, worker| sum.saturating_add(worker.foreign_tasks));
    let tasks = match foreign {
        0 => many(now.metrics.num_alive_tasks, "task"),
        n => format!("{}, {} foreign", many(now.metrics.num_alive_tasks, "task"), short(n as f64)),
    };
    let whole = [
        // If the program's name is not known, show the runtime's name.
        format!("{} ({})", if now.process.is_empty() { &now.name } else { &now.process }, now.pid),
        format!("{:.1} of {} CPUs busy", interval.total(|it| it.busy), workers.len()),
        tasks,
        format!("runtime {}", now.name),
        format!("policy {}", now.policy),
        format!("up {}", time(now.up_ns as f64)),
    ];
    let total = |of: fn(&Rates) -> f64| interval.total(of);
    let home = total(|it| it.same_worker);
    let [same_llc, other_llc, other_node] =
        [total(|it| it.same_llc), total(|it| it.other_llc), total(|it| it.other_node)];
    let away = same_llc + other_llc + other_node;
    // The first poll of a task has no previous worker and is not counted here.
    let again = home + away;
    let share = |n: f64| if again > 0.0 { format!("{:.0} %", 100.0 * n / again) } else { "–".into() };
    let mut wakes = vec![format!("{} polls/s", short(total(|it| it.polls)))];
    match width {
        ..60 => wakes.extend([format!("home {}", share(home)), format!("away {}", share(away))]),
        _ => wakes.extend([
            format!("home {}", share(home)),
            format!("same LLC {}", share(same_llc)),
            format!("other LLC {}", share(other_llc)),
            format!("other node {}", share(other_node)),
        ]),
    }
    wakes.push(format!("{}/s first", short(total(|it| it.first_polls))));
    wakes.push(format!("{} wakes/s from outside", short(interval.remote_schedules)));
    let columns = columns(width);
    let titles = titles("", LABEL + bar_width(columns, width), columns);
    vec![
        Line::styled(fitting(&whole, width), bold()),
        Line::raw(fitting(&wakes, width)),
        Line::styled(foreign_imbalance(interval).unwrap_or_default(), bold().fg(FOREIGN_COLOR)),
        Line::styled(titles, dim()),
    ]
}

/// Describes the worker that is busy with foreign tasks while other workers are less than half as busy, if there is
/// one.
pub(crate) fn foreign_imbalance(interval: &Interval) -> Option<String> {
    let (most, idle) = interval.foreign_imbalance()?;
    let (worker, share) = (&interval.now.metrics.workers[most], interval.rates[most].foreign);
    let idle = if idle == 1 { "1 other idles".into() } else { format!("{idle} others idle") };
    let (cpu, tasks) = (worker.cpu, many(worker.foreign_tasks, "task"));
    Some(format!(
        "CPU {cpu}: {:.0} % goes to {tasks} of tokio::spawn, which stay there; {idle}",
        share * 100.0
    ))
}

fn bar_width(columns: &[WorkerColumn], width: usize) -> usize {
    width.saturating_sub(LABEL + width_of(columns)).min(BAR_MAX)
}

fn body(interval: &Interval, width: usize) -> Vec<Line<'static>> {
    let columns = columns(width);
    let mut lines = Vec::new();
    for (llc, workers) in interval.llcs() {
        lines.push(llc_line(interval, llc, &workers, width));
        for i in workers {
            lines.push(worker_line(&interval.now.metrics.workers[i], &interval.rates[i], columns, width));
        }
    }
    lines.extend(tables::lines(interval, width));
    lines
}

fn llc_line(interval: &Interval, llc: u32, workers: &[usize], width: usize) -> Line<'static> {
    let busy: f64 = workers.iter().map(|i| interval.rates[*i].busy).sum();
    let here = || workers.iter().map(|i| &interval.now.metrics.workers[*i]);
    let shards: std::collections::BTreeSet<usize> = here().map(|worker| worker.shard).collect();
    let queued = shards
        .iter()
        .filter_map(|shard| interval.now.metrics.injection_queue_depths.get(*shard))
        .fold(0u32, |a, b| a.saturating_add(*b));
    let node = here().next().map_or(0, |worker| worker.node);
    let parts = [
        format!("LLC {llc}"),
        format!("{busy:.1} of {} busy", workers.len()),
        format!("queue {queued}"),
        format!("node {node}"),
    ];
    Line::styled(fitting(&parts, width), bold())
}

fn worker_line(
    worker: &WorkerMetrics,
    rates: &Rates,
    columns: &[WorkerColumn],
    width: usize,
) -> Line<'static> {
    let (mark, color) = match () {
        _ if worker.is_stuck => ('!', Color::Red),
        _ if rates.is_dominated() => ('f', FOREIGN_COLOR),
        _ if rates.busy >= 0.9 => (' ', Color::Yellow),
        _ if worker.is_idle => ('z', Color::Green),
        _ => (' ', Color::Green),
    };
    let (full, empty) = bar(rates.busy, bar_width(columns, width));
    let mut spans = vec![
        Span::raw(format!("{:>5} {mark} ", worker.cpu)),
        Span::styled(full, Style::new().fg(color)),
        Span::styled(empty, dim()),
    ];
    spans.extend(columns.iter().map(|column| {
        let is_marked = column.title == FOREIGN.title && rates.is_dominated();
        let style = if is_marked { bold().fg(FOREIGN_COLOR) } else { Style::new() };
        Span::styled(format!("{:>width$}", (column.value)(worker, rates), width = column.width), style)
    }));
    Line::from(spans)
}

/// Returns the filled and the empty part of a bar, to an eighth of a cell.
pub(super) fn bar(share: f64, width: usize) -> (String, String) {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * 8.0 * width as f64).round() as usize;
    let (full, rest) = (eighths / 8, EIGHTHS[eighths % 8]);
    let filled = full + usize::from(!rest.is_empty());
    ("█".repeat(full) + rest, "·".repeat(width.saturating_sub(filled)))
}

fn foot_line(view: &View, hidden: usize, width: usize) -> Line<'static> {
    const KEYS: [&str; 2] = [
        "q quits · z sleeps · ! long poll · f mostly foreign tasks (tokio::spawn)",
        "q quits · z sleeps · ! long · f foreign",
    ];
    match view.end.as_ref().or(view.note.as_ref()) {
        Some(text) => Line::styled(format!("{text}; q quits"), bold().fg(Color::Red)),
        None if hidden > 0 => Line::styled(format!("q quits · ↓ {hidden} more lines"), dim()),
        None if view.scroll > 0 => Line::styled("q quits · ↑ more lines", dim()),
        None => {
            let fits = |text: &&str| text.chars().count() <= width;
            Line::styled(KEYS.into_iter().find(fits).unwrap_or(KEYS[1]), dim())
        }
    }
}

/// Formats a number. Below 9.9 billion it takes at most five characters.
pub(super) fn short(n: f64) -> String {
    match n {
        ..0.05 => "0".into(),
        ..9.95 if n.fract() < 0.05 || n.fract() > 0.95 => format!("{n:.0}"),
        ..9.95 => format!("{n:.1}"),
        ..999.5 => format!("{n:.0}"),
        ..9_950.0 => format!("{:.1}k", n / 1e3),
        ..999_500.0 => format!("{:.0}k", n / 1e3),
        ..9_950_000.0 => format!("{:.1}M", n / 1e6),
        _ => format!("{:.0}M", n / 1e6),
    }
}

pub(super) fn time(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.0} ns"),
        ..9.95e3 => format!("{:.1} µs", ns / 1e3),
        ..1e6 => format!("{:.0} µs", ns / 1e3),
        ..9.95e6 => format!("{:.1} ms", ns / 1e6),
        ..1e9 => format!("{:.0} ms", ns / 1e6),
        ..120e9 => format!("{:.0} s", ns / 1e9),
        ..7200e9 => format!("{:.0} min", ns / 60e9),
        _ => format!("{:.0} h", ns / 3600e9),
    }
}
