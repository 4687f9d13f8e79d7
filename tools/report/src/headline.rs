//! Headline: the sentence that a report begins with.

use super::chart::{self, cases};
use super::inputs::Inputs;
use super::markup::{amount, digits};
use super::words::cheaper;
use super::{budgets, cids, matrix, sharing, wakes};
use warmcore_results::Results;

/// The headline names at most this many cases of per-CPU data; the rest is in the table.
const CASES_MAX: usize = 2;

/// What was found on this machine, in a sentence.
pub(super) fn headline(inputs: &Inputs) -> String {
    let mut found: Vec<String> = Vec::new();
    for run in inputs.runs {
        match &*run.what {
            sharing::CASE => found.extend(shared_line(run)),
            cids::RUN => found.extend(cids::sentence(run)),
            budgets::RUN => found.extend(budgets::sentence(run)),
            wakes::RUN | wakes::HTTP => found.extend(wakes::sentence(run)),
            "percpu" => found.extend(cases(run).into_iter().filter_map(|c| cheaper(run, c)).take(CASES_MAX)),
            _ => {}
        }
    }
    found.extend(inputs.probe.and_then(|probe| {
        let classes = matrix::by_distance(inputs.topology, probe);
        let (near, far) = (classes.first()?, classes.last()?);
        let noisy = if probe.noisy { " (noisy)" } else { "" };
        Some(match classes.len() {
            1 => format!("a cache line takes {} from CPU to CPU{noisy}", amount(near.median, "ns")),
            _ => format!(
                "a cache line takes {} between CPUs that share {} and {} between those that share {}{noisy}",
                amount(near.median, "ns"),
                near.shared,
                amount(far.median, "ns"),
                far.shared
            ),
        })
    }));
    match found.is_empty() {
        true if inputs.runs.is_empty() => "Nothing was measured on this machine yet.".to_owned(),
        true => {
            "What was measured on this machine stands below; `warmcore report` measures the rest.".to_owned()
        }
        false => format!("On this machine {}.", found.join("; ")),
    }
}

/// `a read beside a busy writer costs 8.4 ns, 9.1× its price on a line of its own`.
fn shared_line(run: &Results) -> Option<String> {
    let case = format!("{}.full", sharing::CASE);
    let time = |variant: &str| {
        run.rows
            .iter()
            .find(|r| r.case == case && r.variant == variant && r.metric == "time" && chart::is_time(r))
    };
    let (same, own) = (time(sharing::SAME_LINE)?, time(sharing::OWN_LINE)?);
    let noisy = if same.noisy || own.noisy { " (noisy)" } else { "" };
    Some(format!(
        "a read beside a busy writer costs {}, {}× its price on a line of its own{noisy}",
        amount(same.median, "ns"),
        digits(same.median / own.median)
    ))
}
