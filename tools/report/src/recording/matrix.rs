//! The matrix from the waker's core to the poll's core.

use super::groups::{At, By, Group, groups};
use super::svg::{Align, Picture, WIDTH};
use super::words;
use std::collections::BTreeMap;
use warmcore_trace::{Analysis, MatrixCore};

const LEFT: f64 = 96.0;
const TOP: f64 = 40.0;

/// The classes of the cells' colours, and what they are.
pub const LEGEND: [(&str, &str); 4] = [
    ("o0", "the same core"),
    ("o2", "the same L3"),
    ("o5", "another L3"),
    ("o6", "not known, or rows of several L3s"),
];

fn label(core: &MatrixCore) -> String {
    let cpus: Vec<String> = core.cpus.iter().map(u32::to_string).collect();
    format!("CPU {}", cpus.join(","))
}

fn rows(analysis: &Analysis) -> (By, Vec<Group>) {
    let cores = &analysis.matrix.cores;
    let labels: Vec<String> = cores.iter().map(label).collect();
    let places = cores.iter().map(|core| At { llc: core.llc, node: core.node, socket: None });
    groups(&labels, &places.collect::<Vec<_>>())
}

/// The colour of a cell: what the two rows share.
fn colour(analysis: &Analysis, by: By, from: &Group, to: &Group) -> &'static str {
    let cores = &analysis.matrix.cores;
    let llc = |group: &Group| cores[group.members[0]].llc;
    match (by, from == to) {
        (By::Each, true) => "o0",
        (By::Llc, true) => "o2",
        (By::Each | By::Llc, false) => match (llc(from), llc(to)) {
            (Some(from), Some(to)) if from == to => "o2",
            (Some(_), Some(_)) => "o5",
            _ => "o6",
        },
        _ => "o6",
    }
}

/// The picture; empty if no waker is known.
pub fn svg(analysis: &Analysis) -> String {
    let (by, groups) = rows(analysis);
    let matrix = &analysis.matrix;
    if groups.is_empty() || matrix.cells.is_empty() {
        return String::new();
    }
    let mut group_of = vec![0; matrix.cores.len()];
    for (index, group) in groups.iter().enumerate() {
        group.members.iter().for_each(|member| group_of[*member] = index);
    }
    let mut cells: BTreeMap<(usize, usize), u64> = BTreeMap::new();
    for cell in &matrix.cells {
        *cells.entry((group_of[cell.from as usize], group_of[cell.to as usize])).or_default() += cell.polls;
    }
    let all: u64 = cells.values().sum::<u64>() + matrix.others;
    let most = cells.values().copied().max().unwrap_or(1).max(1);
    let side = ((WIDTH - LEFT - 8.0) / groups.len() as f64).min(72.0);
    let mut picture = Picture::new(TOP + side * groups.len() as f64 + 8.0);
    picture.text(4.0, 14.0, Align::Start, true, "waker ↓");
    picture.text(LEFT, 14.0, Align::Start, true, "poll →");
    let every = (13.0 / side).ceil().max(1.0) as usize;
    let longest = groups.iter().map(|group| group.label.chars().count().min(10)).max().unwrap_or(0);
    let across = ((longest as f64 * 8.0 + 4.0) / side).ceil().max(1.0) as usize;
    for (index, group) in groups.iter().enumerate() {
        let middle = side * index as f64 + side / 2.0;
        let name = words::shortened(&group.label, 12);
        if index % every == 0 {
            picture.text(LEFT - 6.0, TOP + middle + 4.0, Align::End, true, &name);
        }
        if index % across == 0 {
            picture.text(LEFT + middle, TOP - 6.0, Align::Middle, true, &words::shortened(&group.label, 10));
        }
    }
    picture.rect("band", [LEFT, TOP, side * groups.len() as f64, side * groups.len() as f64]);
    for ((from, to), polls) in cells {
        let (x, y) = (LEFT + side * to as f64, TOP + side * from as f64);
        // Counts differ by orders of magnitude: the ink is by their logarithm.
        let opacity = 0.15 + 0.85 * ((polls + 1) as f64).ln() / ((most + 1) as f64).ln();
        let class = colour(analysis, by, &groups[from], &groups[to]);
        let title = format!(
            "{} → {}: {} polls, {}",
            groups[from].label,
            groups[to].label,
            words::count(polls),
            words::share(polls, all)
        );
        picture.titled(class, opacity, [x + 0.5, y + 0.5, side - 1.0, side - 1.0], &title);
        if side >= 44.0 {
            let share = words::share(polls, all);
            picture.text(x + side / 2.0, y + side / 2.0 + 4.0, Align::Middle, false, &share);
        }
    }
    picture.done("Polls by the core of the waker and the core of the poll")
}

/// What the picture shows, and of how much.
pub fn says(analysis: &Analysis) -> String {
    let (by, _) = rows(analysis);
    let coverage = &analysis.coverage;
    if analysis.matrix.cells.is_empty() {
        return format!(
            "No poll's waker is known on a known CPU, so there is no matrix: no data, and not the absence of wakes. {}",
            words::covered(coverage)
        );
    }
    let from = &analysis.from_waker;
    let left_out = match analysis.matrix.others {
        0 => String::new(),
        polls => format!(" {} polls of rarer pairs are not drawn.", words::count(polls)),
    };
    format!(
        "A row is {}; stronger is more, by the logarithm. Of polls with a known waker, {} ran on another core than it, {} on another L3. The waker is known of {}.{left_out} {}",
        by.row("core"),
        words::share(from.other_core(), from.known()),
        match analysis.sentence.other_llc {
            Some(_) => words::share(from.other_llc(), from.known()),
            None => "a share that is not known".to_owned(),
        },
        words::of_polls(coverage.with_waker, coverage),
        words::covered(coverage)
    )
}
