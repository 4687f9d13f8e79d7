//! Words: what was found, in sentences that are computed and never tuned.
//!
//! Model.   The first ratio with a promise in a case speaks for the case, so that the sentence
//!          can't pick the flattering one. A number that is noisy says so in the sentence too.

use super::chart;
use super::inputs::Inputs;
use super::markup::{amount, digits, round};
use warmcore_results::names::percpu;
use warmcore_results::{Bound, OTHERS_MAX, Results, Row, Standing, Target};

/// `Not quiet: other processes used 46 % of the CPUs during budget; …`, if some run was not.
pub(super) fn disturbed(runs: &[Results]) -> Option<String> {
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let parts: Vec<String> = runs
        .iter()
        .filter(|run| run.load.is_disturbed())
        .map(|run| format!("{} of the CPUs during {}", percent(run.load.others_share), run.what))
        .collect();
    (!parts.is_empty()).then(|| {
        format!(
            "Not quiet: other processes used {}; above {} a number is no measurement: run it again on a quiet machine.",
            parts.join(", "),
            percent(OTHERS_MAX)
        )
    })
}

/// The rows that promise something, with what they promise.
pub(super) fn promises<'a>(inputs: &Inputs<'a>) -> impl Iterator<Item = (&'a Row, &'a Target)> {
    inputs.runs.iter().flat_map(promises_of)
}

/// Those of one run.
pub(super) fn promises_of(run: &Results) -> impl Iterator<Item = (&Row, &Target)> {
    run.rows.iter().filter_map(|row| Some((row, row.target.as_ref()?)))
}

/// What a case of per-CPU data measures, where its name does not say it.
pub(super) fn about(case: &str) -> Option<&'static str> {
    Some(match case {
        "counter.add.called" => "sixteen counters in turn, each add through a call, as in a program",
        "counter.add.2threads" => "a loop on one counter, while another CPU does the same",
        "counter.add" => {
            "a loop on one counter; it measures mostly how soon the processor can load what it has just stored"
        }
        "counter.add.backends" => {
            "the same loop where adds are locked instructions, and where they are plain"
        }
        "freelist.pair.called" => "sixteen lists in turn, a pop and a push through a call, as in a program",
        "freelist.pair" => "a pop and a push in a loop on one list",
        "freelist.batch32" => "32 items out and in again; a time is of one item",
        "sum" => "reading what all CPUs added",
        "drain_all" => "taking what all CPUs added, while another CPU adds",
        "freelist.drain_all" => "taking the items of all CPUs, and a thousand pops and pushes before",
        "memory" => "two threads on a machine of 8192 CPUs, imagined",
        _ => return None,
    })
}

/// `at least 10×`.
pub(super) fn bound(row: &Row, target: &Target) -> String {
    let kind = match target.kind {
        Bound::AtLeast => "at least",
        Bound::AtMost => "at most",
    };
    format!("{kind} {}", round(target.value, &row.unit))
}

/// `relaxed atomic ÷ warmcore`, or the variant alone.
pub(super) fn compared(row: &Row) -> String {
    match &row.over {
        Some(over) => format!("{} ÷ {over}", row.variant),
        None => row.variant.clone(),
    }
}

/// The 95 % interval of the median; a unit that is a word of its own is said once.
pub(super) fn interval(row: &Row) -> Option<String> {
    let [lo, hi] = row.ci95?.map(|v| amount(v, &row.unit));
    let (lo_unit, hi_unit) = (lo.rsplit_once(' '), hi.rsplit_once(' '));
    Some(match (lo_unit, hi_unit) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number} … {hi}"),
        _ => format!("{lo} … {hi}"),
    })
}

/// As [`compared`], where no column says the metric: `warmcore atomic, over the limit`.
pub(super) fn measured(row: &Row) -> String {
    match &*row.metric {
        "time" | "ratio" => compared(row),
        metric => format!("{}, {metric}", compared(row)),
    }
}

/// `Of 9 promises 7 are met, 1 is missed and 1 is undecided.`
pub(super) fn tally<'a>(promises: impl Iterator<Item = (&'a Row, &'a Target)>) -> Option<String> {
    let standings: Vec<Standing> = promises.map(|(r, t)| t.standing(r)).collect();
    let parts: Vec<String> =
        [(Standing::Met, "met"), (Standing::Missed, "missed"), (Standing::Undecided, "undecided")]
            .into_iter()
            .map(|(s, word)| (standings.iter().filter(|x| **x == s).count(), word))
            .filter(|(n, _)| *n > 0)
            .map(|(n, word)| format!("{n} {} {word}", if n == 1 { "is" } else { "are" }))
            .collect();
    let list = match &parts[..] {
        [] => return None,
        [one] => one.clone(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    };
    let n = standings.len();
    Some(format!("Of {n} {} {list}.", if n == 1 { "promise" } else { "promises" }))
}

/// `counter.add costs 0.52 ns, 11.2× less than relaxed atomic`.
pub(super) fn cheaper(run: &Results, case: &str) -> Option<String> {
    let rows = || run.rows.iter().filter(move |r| r.case == case);
    let ratios = || rows().filter(|r| r.metric == "ratio" && r.over.is_some());
    let promised = ratios().find(|r| r.target.is_some());
    let row =
        promised.or_else(|| ratios().find(|r| r.variant == percpu::ATOMIC)).or_else(|| ratios().next())?;
    let over = row.over.as_deref()?;
    // The ratio may stand either way round: ours below the line, or above.
    let ours_above = chart::is_ours(row);
    let (ours, other, times) = match ours_above {
        true => (row.variant.as_str(), over, 1.0 / row.median),
        false => (over, row.variant.as_str(), row.median),
    };
    let time = rows().find(|r| chart::is_time(r) && r.variant == ours)?;
    let noisy = if row.noisy || time.noisy { " (noisy)" } else { "" };
    let (times, word) = if times >= 1.0 { (times, "less") } else { (1.0 / times, "more") };
    let what = match case {
        "counter.add.called" | "counter.add" => "a per-CPU counter add costs",
        "counter.add.2threads" => "in a loop while another CPU adds as well it costs",
        "hit" => "a charge against a limit costs",
        case => &format!("{case} costs"),
    };
    let other = match other {
        "relaxed atomic" if case.ends_with("2threads") => "one shared atomic",
        "relaxed atomic" => "a relaxed atomic",
        other => other,
    };
    Some(format!("{what} {}, {}× {word} than {other}{noisy}", amount(time.median, "ns"), digits(times)))
}
