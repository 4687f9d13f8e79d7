//! The hand-over times of a cache line as text: a row per distance; for 3 to 16 CPUs also a matrix of all pairs.

use super::boxes::wrap;
use super::pairs::ALL_PAIRS_CPUS_MAX;
use super::verdict::{Timed, by_distance, groups, levels, range, round, within};
use warmcore_report::Probe;
use warmcore_topo::{Distance, Topology};
use warmcore_types::{CpuId, CpuSet};

/// The probe as text: times, groups, verdict. Sentences are wrapped at `width` columns; the rows of distances take 72
/// columns.
pub(super) fn table(t: &Topology, probe: &Probe, width: usize) -> String {
    let timed = timed(probe);
    let mut lines = wrap("One-way hand-over of a cache line from CPU to CPU, in ns", width, 0);
    if probe.cpus.len() <= ALL_PAIRS_CPUS_MAX && probe.cpus.len() > 2 {
        lines.extend(matrix(probe));
    }
    lines.push(String::new());
    lines.extend(distances(t, &timed));
    lines.push(String::new());
    for line in by_time(&timed).iter().chain([&probe.verdict]) {
        lines.extend(wrap(line, width, 2));
    }
    if cfg!(debug_assertions) {
        lines.extend(wrap(
            "This is a debug build, which is slower than the line: use `cargo run --release`.",
            width,
            2,
        ));
    }
    lines.join("\n") + "\n"
}

/// The pairs of a probe that have a time, each once.
fn timed(probe: &Probe) -> Vec<Timed> {
    let n = probe.cpus.len();
    let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
    let pair = |(i, j): (usize, usize)| {
        let median_ns = (*probe.hand_over_ns.get(i)?.get(j)?)?;
        let spread = probe.spread_ns.get(i).and_then(|row| *row.get(j)?);
        let (lo_ns, hi_ns) = spread.unwrap_or((median_ns, median_ns));
        Some(Timed { a: CpuId(probe.cpus[i]), b: CpuId(probe.cpus[j]), median_ns, lo_ns, hi_ns })
    };
    pairs.filter_map(pair).collect()
}

/// The medians of all pairs as a matrix. For 16 CPUs, with numbers and times of three digits, it takes 67 columns.
fn matrix(probe: &Probe) -> Vec<String> {
    let time = |ns: &Option<f64>| ns.map_or("·".to_owned(), round);
    let head = std::iter::once(String::new()).chain(probe.cpus.iter().map(u32::to_string));
    let row = |(cpu, row): (&u32, &Vec<Option<f64>>)| {
        std::iter::once(cpu.to_string()).chain(row.iter().map(time)).collect::<Vec<_>>()
    };
    let rows = probe.cpus.iter().zip(&probe.hand_over_ns).map(row);
    let rows: Vec<Vec<String>> = std::iter::once(head.collect()).chain(rows).collect();
    let each = rows.iter().flatten().map(|cell| cell.chars().count()).max().unwrap_or(0);
    let line =
        |row: &Vec<String>| row.iter().map(|cell| format!("{cell:>each$}")).collect::<Vec<_>>().join(" ");
    rows.iter().map(line).collect()
}

/// A line of titles, and a row for each distance that the kernel reports between the CPUs of a timed pair.
fn distances(t: &Topology, timed: &[Timed]) -> Vec<String> {
    let head = format!(
        "{:<26} {:>6} {:>8} {:>14} {:>14}",
        "the kernel says", "pairs", "median", "pairs' medians", "all rounds"
    );
    let row = |(distance, pairs): (&Distance, &Vec<Timed>)| {
        let mut medians: Vec<f64> = pairs.iter().map(|p| p.median_ns).collect();
        medians.sort_by(f64::total_cmp);
        let lo = pairs.iter().map(|p| p.lo_ns).fold(f64::INFINITY, f64::min);
        let hi = pairs.iter().map(|p| p.hi_ns).fold(0.0, f64::max);
        let (n, middle) = (medians.len(), medians[medians.len() / 2]);
        let (medians, rounds) = (range(medians[0], medians[n - 1]), range(lo, hi));
        format!("{:<26} {n:>6} {:>8} {medians:>14} {rounds:>14}", within(*distance), round(middle))
    };
    std::iter::once(head).chain(by_distance(t, timed).iter().map(row)).collect()
}

/// The groups of CPUs that the times show (`verdict.rs` defines levels and groups): a line for each level at which
/// there is more than one group; none with more than `ALL_PAIRS_CPUS_MAX` CPUs.
fn by_time(timed: &[Timed]) -> Vec<String> {
    let levels = levels(timed);
    let cpus: CpuSet = timed.iter().flat_map(|p| [p.a, p.b]).collect();
    let line = |(_, hi): &(f64, f64)| {
        let groups = groups(timed, *hi);
        let shown: Vec<String> = groups.iter().map(|g| format!("[{g}]")).collect();
        // With more than `ALL_PAIRS_CPUS_MAX` CPUs the groups would be too long; the rows of `distances` are enough.
        let listed = cpus.len() <= ALL_PAIRS_CPUS_MAX && groups.len() > 1;
        listed.then(|| format!("by time, within {} ns: {}", round(*hi), shown.join(" ")))
    };
    levels.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_topo::MACHINES;

    fn probe(cpus: &[u32], ns: impl Fn(u32, u32) -> f64) -> Probe {
        let row = |a: &u32| cpus.iter().map(|b| (a != b).then(|| ns(*a, *b))).collect::<Vec<_>>();
        let hand_over_ns: Vec<Vec<Option<f64>>> = cpus.iter().map(row).collect();
        let spread =
            |row: &Vec<Option<f64>>| row.iter().map(|ns| ns.map(|ns| (ns - 1.0, ns + 1.0))).collect();
        let spread_ns = hand_over_ns.iter().map(spread).collect();
        Probe {
            cpus: cpus.to_vec(),
            hand_over_ns,
            spread_ns,
            working_sets: Vec::new(),
            verdict: "The verdict.".into(),
            noisy: false,
        }
    }

    #[test]
    fn few_cpus_get_a_matrix_and_their_groups_and_many_do_not() {
        let t = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
        let ns = |a: u32, b: u32| match (a % 16 == b % 16, a % 16 / 8 == b % 16 / 8) {
            (true, _) => 5.3,
            (_, true) => 16.0,
            _ => 73.0,
        };
        let few = table(&t, &probe(&[0, 1, 8, 9, 16, 17, 24, 25], ns), 80);
        assert!(few.contains("\n  0   ·  16  73  73 5.3  16  73  73\n"), "{few}");
        assert!(few.contains("by time, within 5.3 ns: [0,16] [1,17] [8,24] [9,25]"), "{few}");
        assert!(few.contains("by time, within 16 ns: [0-1,16-17] [8-9,24-25]"), "{few}");
        assert!(
            few.contains("within a last-level cache       8       16             16          15–17"),
            "{few}"
        );
        assert!(few.contains("The verdict."), "{few}");
        let many = table(&t, &probe(&(0..32).collect::<Vec<_>>(), ns), 80);
        assert!(!many.contains("by time") && many.lines().all(|l| l.chars().count() <= 80), "{many}");
    }

    #[test]
    fn a_probe_with_holes_prints_what_it_has() {
        let t = Topology::from_machine(MACHINES, "ryzen7950x").unwrap();
        let mut holes = probe(&[0, 1, 2], |_, _| 20.0);
        (holes.hand_over_ns[0][1], holes.hand_over_ns[1][0]) = (None, None);
        holes.spread_ns.clear();
        assert!(table(&t, &holes, 80).contains("\n 0  ·  · 20\n"));
        let none = Probe { hand_over_ns: Vec::new(), ..holes };
        assert!(table(&t, &none, 80).contains("The verdict."));
    }
}
