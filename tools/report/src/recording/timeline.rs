//! The CPUs over time: a row per CPU, in which the height says how busy it was with polls, and the colour where the tasks
//! came from.

use super::groups::{At, Group, groups};
use super::svg::{Align, Picture, WIDTH, class};
use super::words;
use warmcore_trace::{Analysis, ByOrigin, Origin};

const LEFT: f64 = 74.0;
const RIGHT: f64 = 8.0;
/// The largest number of columns: each is 4 units wide.
const COLUMNS_MAX: usize = 112;

fn rows(analysis: &Analysis) -> (super::groups::By, Vec<Group>) {
    let labels: Vec<String> = analysis.cpus.iter().map(|row| format!("CPU {}", row.cpu)).collect();
    let places = analysis.cpus.iter().map(|row| At { llc: row.llc, node: row.node, socket: row.socket });
    groups(&labels, &places.collect::<Vec<_>>())
}

/// Time in polls by origin, `[group][column]`, and how long a column is.
fn columns(analysis: &Analysis, groups: &[Group]) -> (Vec<Vec<ByOrigin>>, u64) {
    let timeline = &analysis.timeline;
    let merged = (timeline.bins as usize).div_ceil(COLUMNS_MAX).max(1);
    let column = |group: &Group, from: usize| {
        let mut sum = ByOrigin::default();
        for bins in group.members.iter().filter_map(|cpu| timeline.busy_ns.get(*cpu)) {
            bins.iter().skip(from).take(merged).for_each(|bin| sum += *bin);
        }
        sum
    };
    let starts = || (0..timeline.bins as usize).step_by(merged);
    let of = |group: &Group| starts().map(|from| column(group, from)).collect();
    (groups.iter().map(of).collect(), timeline.bin_ns * merged as u64)
}

/// The share of time in polls that a row's full height stands for: the next step above the busiest column.
fn full_height(columns: &[Vec<ByOrigin>], groups: &[Group], column_ns: u64) -> f64 {
    const STEPS: [f64; 10] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0];
    let busiest = columns.iter().zip(groups).flat_map(|(row, group)| {
        let whole = (column_ns * group.members.len() as u64).max(1) as f64;
        row.iter().map(move |bin| bin.total() as f64 / whole)
    });
    let busiest = busiest.fold(0.0, f64::max);
    STEPS.into_iter().find(|step| *step >= busiest).unwrap_or(1.0)
}

/// The picture; empty if there is nothing to show.
pub fn svg(analysis: &Analysis) -> String {
    let (_, groups) = rows(analysis);
    let (columns, column_ns) = columns(analysis, &groups);
    let count = columns.first().map_or(0, Vec::len);
    if count == 0 || analysis.coverage.polls == 0 {
        return String::new();
    }
    let row_height = match groups.len() {
        ..=8 => 34.0,
        9..=16 => 24.0,
        _ => 17.0,
    };
    let missing = &analysis.timeline.missing_ns;
    let has_missing = missing.iter().any(|ns| *ns > 0);
    let top = 6.0;
    let bottom = top + row_height * groups.len() as f64;
    let axis = bottom + if has_missing { 18.0 } else { 0.0 };
    let mut picture = Picture::new(axis + 24.0);
    let width = (WIDTH - LEFT - RIGHT) / count as f64;
    let full = full_height(&columns, &groups, column_ns);

    for ((row, group), index) in columns.iter().zip(&groups).zip(0..) {
        let base = top + row_height * f64::from(index + 1) - 2.0;
        let height = row_height - 4.0;
        picture.rect("band", [LEFT, base - height, WIDTH - LEFT - RIGHT, height]);
        let label = words::shortened(&group.label, 9);
        picture.text(LEFT - 6.0, base - height / 2.0 + 4.0, Align::End, true, &label);
        let whole = (column_ns * group.members.len() as u64) as f64 * full;
        let mut boxes: Vec<Vec<[f64; 4]>> = vec![Vec::new(); Origin::ALL.len()];
        for (column, bin) in row.iter().enumerate() {
            let mut y = base;
            for (boxes, origin) in boxes.iter_mut().zip(Origin::ALL) {
                // Bins are as long as the recording's unit of time allows; a poll counts where it ends.
                let tall = (bin[origin] as f64 / whole * height).min(y - (base - height));
                if tall >= 0.05 {
                    y -= tall;
                    boxes.push([LEFT + width * column as f64, y, width, tall]);
                }
            }
        }
        boxes.iter().zip(Origin::ALL).for_each(|(boxes, origin)| picture.boxes(class(origin), boxes));
    }
    if has_missing {
        let merged = (analysis.timeline.bins as usize).div_ceil(COLUMNS_MAX).max(1);
        let lost = missing.chunks(merged).enumerate().filter(|(_, bins)| bins.iter().any(|ns| *ns > 0));
        let boxes: Vec<[f64; 4]> =
            lost.map(|(column, _)| [LEFT + width * column as f64, bottom + 3.0, width, 10.0]).collect();
        picture.text(LEFT - 6.0, bottom + 12.0, Align::End, true, "missing");
        picture.boxes("lost", &boxes);
    }
    let end = column_ns * count as u64;
    for (ns, align) in [(0, Align::Start), (end / 2, Align::Middle), (end, Align::End)] {
        let x = LEFT + (WIDTH - LEFT - RIGHT) * (ns as f64 / end.max(1) as f64);
        picture.line((x, bottom), (x, bottom + 4.0));
        picture.text(x, axis + 17.0, align, true, &words::time(ns));
    }
    picture.done("How busy each CPU was with polls over time, by where the tasks came from")
}

/// What the picture shows, and of how much.
pub fn says(analysis: &Analysis) -> String {
    let (by, groups) = rows(analysis);
    let (columns, column_ns) = columns(analysis, &groups);
    let full = full_height(&columns, &groups, column_ns) * 100.0;
    let missing: u64 = analysis.timeline.missing_ns.iter().sum();
    let lost = match missing {
        0 => String::new(),
        _ => " In the columns marked below, records are missing.".to_owned(),
    };
    format!(
        "A row is {}, a column {}; a row's full height is {full} % of that time in polls.{lost} {} A gap in a row is time \
         without recorded polls: idle, or other work.",
        by.row("CPU"),
        words::time(column_ns),
        words::covered(&analysis.coverage)
    )
}
