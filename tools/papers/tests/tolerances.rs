//! No tolerance in `tolerances.toml` is wider than in the notes from before the first run
//! (`fixtures/sim/tolerances.md`), and each line of the notes has a tolerance.

use warmcore_papers::tolerance::{Claim, What, all, named};

const NOTES: &str = include_str!("../../../fixtures/sim/tolerances.md");

/// A tolerance's name, what is compared, and the bounds.
type Entry = (&'static str, What, f64, f64);

/// What each line of the notes' table allows.
const ALLOWED: &[(&str, &[Entry])] = &[
    (
        "| cid, ids per burst, and the 8-thread 10 ms row | emerges | exact; 1.0–1.15 |",
        &[("cid.ids", What::Difference, 0.0, 0.0), ("cid.8_threads_10_ms", What::Simulated, 1.0, 1.15)],
    ),
    ("| cid, 10 ms times | emerges from probes | ±30 % per row |", &[("cid.10_ms", What::Ratio, 0.7, 1.3)]),
    (
        "| cid, 200 ms times | 1–2 fault costs fitted, said so | ±35 % per row; 1.4× on the speed-up |",
        &[("cid.200_ms", What::Ratio, 0.65, 1.35), ("cid.200_ms_speedup", What::Ratio, 1.0 / 1.4, 1.4)],
    ),
    (
        "| false sharing | sign, culprit field | reader's extra cost falls by ≥ 95 % |",
        &[
            ("false_sharing.reader", What::Simulated, 0.95, 1.0),
            ("false_sharing.culprit", What::Simulated, 0.0, 0.0),
        ],
    ),
    (
        "| stock, drain at 1/8/128 CPUs | emerges, 2 given numbers | ±20 %; −63 % ± 10 points |",
        &[("drain.cycles", What::Ratio, 0.8, 1.2), ("drain.saving", What::Difference, -10.0, 10.0)],
    ),
    ("| stock, contention | emerges | 0 |", &[("drain.contended", What::Simulated, 0.0, 0.0)]),
    (
        "| sis_cache, netperf/tbench | two regimes; a window with +15…70 % | 0.7–1.4× of the regimes' throughput |",
        &[
            ("hot_windows.regimes", What::Ratio, 0.7, 1.4),
            ("hot_windows.window", What::Simulated, 15.0, 70.0),
        ],
    ),
    (
        "| wake queue, time ratio | sign and bound | −0.6 %…0 |",
        &[("wake_queue.time", What::Simulated, -0.6, 0.0)],
    ),
    (
        "| by load, the published change is at most 5 %, or less than twice the variation | bound | −5…+5 % |",
        &[("by_load.nothing", What::Simulated, -5.0, 5.0)],
    ),
    (
        "| by load, the other rows | sign and size | 0.5–2 × the published change |",
        &[("by_load.effect", What::Ratio, 0.5, 2.0)],
    ),
    ("| SIS_NODE, time ratio | sign and bound | 0…+1 % |", &[("sis_node.time", What::Simulated, 0.0, 1.0)]),
    ("| same-CPU share of wakes | emerges | ±10 points |", &[("guest.same", What::Difference, -10.0, 10.0)]),
    (
        "| other-LLC share of wakes | emerges | ±5 points |",
        &[("guest.other_llc", What::Difference, -5.0, 5.0)],
    ),
    (
        "| bubbles: integral of min(idle CPUs, waiting tasks), as a share of the CPUs' time | emerges, 1 given number (33 µs to wake an idle CPU) | ±2 points |",
        &[("guest.bubbles", What::Difference, -2.0, 2.0)],
    ),
    (
        "| migrations per wake | emerges | 0.5–2 × the guest's |",
        &[("guest.migrations", What::Ratio, 0.5, 2.0)],
    ),
];

#[test]
fn no_tolerance_is_wider_than_the_notes_allow() {
    for (line, entries) in ALLOWED {
        assert!(NOTES.lines().any(|l| l == *line), "the notes have no line {line:?}");
        for (id, what, low, high) in *entries {
            let ours = named(id);
            assert_eq!(ours.what, Some(*what), "{id}");
            assert!(
                ours.low >= low - 1e-9 && ours.high <= high + 1e-9,
                "{id}: {ours:?} is wider than {line:?}"
            );
            assert!(ours.low <= ours.high, "{id}: nothing is within it");
        }
    }
}

#[test]
fn every_line_of_the_notes_has_its_tolerance() {
    let is_heading = |l: &str| l.starts_with("| table") || l.starts_with("| measure");
    let lines = NOTES.lines().filter(|l| l.starts_with("| ") && !is_heading(l));
    for line in lines.filter(|l| !l.contains("| not claimed |")) {
        assert!(ALLOWED.iter().any(|(known, _)| known == &line), "no tolerance is for {line:?}");
    }
}

#[test]
fn a_tolerance_without_a_claim_says_why_and_one_with_a_claim_is_in_the_notes() {
    for tolerance in all() {
        if tolerance.claim == Claim::None {
            assert!(tolerance.why.is_some() && tolerance.what.is_none(), "{tolerance:?}");
        } else {
            let known = ALLOWED.iter().flat_map(|(_, entries)| *entries).any(|entry| entry.0 == tolerance.id);
            assert!(known, "{} is in no line of the notes", tolerance.id);
        }
    }
}
