//! The tables below the workers: a line per tenant and a line per group of tasks, those with the most CPU time first.
//!
//! A group of tasks is named by the tasks' name or, without one, by the line of the program that spawned them; of a long
//! path the end is shown. A name and a tenant may need more than the screen has: both are cut. At most a hundred tenants
//! and a hundred groups have a line.

use super::draw::{BAR_MAX, Column, bar, column, dim, many, short, time, titles, width_of};
use super::snapshot::{GroupUse, Interval, Use};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use warmcore_report::recording::{in_package, shortened};
use warmcore_runtime::TenantMetrics;
use warmcore_runtime::observe::TaskGroupMetrics;

/// The most lines of a table.
const LINES_MAX: usize = 100;

type TenantColumn = Column<TenantMetrics, Use>;
type GroupColumn = Column<TaskGroupMetrics, GroupUse>;

const SHARE: TenantColumn = column("share", 6, |_, of_it| format!("{:.0} %", of_it.share * 100.0));
const CPUS: TenantColumn = column("CPUs", 6, |_, of_it| format!("{:.2}", of_it.run));
const WEIGHT: TenantColumn = column("weight", 8, |tenant, _| tenant.weight.to_string());
const TASKS: TenantColumn = column("tasks", 7, |tenant, _| short(tenant.num_alive_tasks as f64));
const POLLS: TenantColumn = column("polls/s", 9, |_, of_it| short(of_it.polls));

/// The tenants' columns for screens of less than 60 characters.
const FEW: &[TenantColumn] = &[SHARE, WEIGHT, POLLS];
/// The tenants' columns for screens of 60 and more characters.
const ALL: &[TenantColumn] = &[SHARE, CPUS, WEIGHT, TASKS, POLLS];

const GROUP_TENANT: GroupColumn =
    column("tenant", 14, |group, _| group.tenant.as_deref().map_or("–".into(), |name| cut(name, 12)));
const GROUP_CPUS: GroupColumn = column("CPUs", 6, |_, of_it| format!("{:.2}", of_it.run));
const GROUP_POLL: GroupColumn = column("poll", 8, |_, of_it| match of_it.polls > 0.0 {
    true => time(of_it.run * 1e9 / of_it.polls),
    false => "–".into(),
});
const GROUP_TASKS: GroupColumn = column("tasks", 6, |group, _| short(group.num_alive_tasks as f64));
const GROUP_POLLS: GroupColumn = column("polls/s", 9, |_, of_it| short(of_it.polls));
const GROUP_MOVED: GroupColumn = column("moved", 7, |_, of_it| of_polls(of_it, of_it.moved));
const GROUP_LLC: GroupColumn = column("to other LLC", 14, |_, of_it| of_polls(of_it, of_it.moved_llc));

/// The groups' columns for screens of less than 60 characters.
const GROUP_FEW: &[GroupColumn] = &[GROUP_CPUS, GROUP_POLLS];
/// The groups' columns for screens of 60 and more characters.
const GROUP_ALL: &[GroupColumn] =
    &[GROUP_TENANT, GROUP_CPUS, GROUP_POLL, GROUP_TASKS, GROUP_POLLS, GROUP_MOVED];
/// The groups' columns for screens of 100 and more characters.
const GROUP_WIDE: &[GroupColumn] =
    &[GROUP_TENANT, GROUP_CPUS, GROUP_POLL, GROUP_TASKS, GROUP_POLLS, GROUP_MOVED, GROUP_LLC];

/// A share of a group's polls, if there was a poll.
fn of_polls(of_it: &GroupUse, share: f64) -> String {
    if of_it.polls > 0.0 { format!("{:.0} %", share * 100.0) } else { "–".into() }
}

/// Returns the number of lines of a table: an empty line, the titles, a line for each of `rows`, and a line if some are
/// left out.
fn table_height(rows: usize) -> usize {
    match rows {
        0 => 0,
        1..=LINES_MAX => 2 + rows,
        _ => 3 + LINES_MAX,
    }
}

/// Returns the number of lines of both tables.
pub(super) fn height(interval: &Interval) -> usize {
    table_height(interval.uses.len()) + table_height(interval.group_uses.len())
}

/// Returns the lines of both tables.
pub(super) fn lines(interval: &Interval, width: usize) -> Vec<Line<'static>> {
    let mut lines = tenant_lines(interval, width);
    lines.extend(group_lines(interval, width));
    lines
}

/// Returns the numbers of a line.
fn numbers<T, R>(columns: &[Column<T, R>], of: &T, rates: &R) -> String {
    columns
        .iter()
        .map(|column| format!("{:>width$}", (column.value)(of, rates), width = column.width))
        .collect()
}

fn tenant_lines(interval: &Interval, width: usize) -> Vec<Line<'static>> {
    if interval.uses.is_empty() {
        return Vec::new();
    }
    let columns = if width < 60 { FEW } else { ALL };
    // If at least 40 columns are left of the numbers, the name takes 24 of them and a bar the others, at most 32.
    let rest = width.saturating_sub(width_of(columns));
    let (name_width, bar_width) = match rest {
        ..40 => (rest, 0),
        _ => (24, (rest - 24).min(BAR_MAX)),
    };
    let titles = titles("tenant", name_width + bar_width, columns);
    let mut lines = vec![Line::raw(""), Line::styled(titles, dim())];
    lines.extend(interval.uses.iter().take(LINES_MAX).map(|of_it| {
        let tenant = &interval.now.metrics.tenants[of_it.tenant];
        let (full, empty) = bar(of_it.share, bar_width);
        let name = cut(&tenant.name, name_width.saturating_sub(1));
        Line::from(vec![
            Span::raw(format!("{name:name_width$}")),
            Span::styled(full, Style::new().fg(Color::Cyan)),
            Span::styled(empty, dim()),
            Span::raw(numbers(columns, tenant, of_it)),
        ])
    }));
    if interval.uses.len() > LINES_MAX {
        let more = many(interval.uses.len() - LINES_MAX, "tenant");
        lines.push(Line::styled(format!("and {more} that ran less"), dim()));
    }
    lines
}

fn group_lines(interval: &Interval, width: usize) -> Vec<Line<'static>> {
    if interval.group_uses.is_empty() {
        return Vec::new();
    }
    let columns = match width {
        ..60 => GROUP_FEW,
        60..100 => GROUP_ALL,
        _ => GROUP_WIDE,
    };
    let name_width = width.saturating_sub(width_of(columns)).min(80);
    let titles = titles("tasks by name or location", name_width, columns);
    let mut lines = vec![Line::raw(""), Line::styled(titles, dim())];
    lines.extend(interval.group_uses.iter().take(LINES_MAX).map(|of_it| {
        let group = &interval.now.task_groups[of_it.group];
        let room = name_width.saturating_sub(1);
        let name = match (&group.name, &group.location) {
            (Some(name), _) => cut(name, room),
            (None, Some(location)) => shortened(in_package(location), room),
            (None, None) => cut("all others", room),
        };
        Line::raw(format!("{name:name_width$}{}", numbers(columns, group, of_it)))
    }));
    if interval.group_uses.len() > LINES_MAX {
        let more = many(interval.group_uses.len() - LINES_MAX, "group");
        lines.push(Line::styled(format!("and {more} of tasks that ran less"), dim()));
    }
    lines
}

/// Returns the name, cut to `width` characters if it is longer; the last one is then `…`.
fn cut(name: &str, width: usize) -> String {
    match name.chars().count() {
        n if n <= width => name.to_owned(),
        _ => name.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect(),
    }
}
