//! Draws the report: a page that answers a user's questions about a machine, each with a picture.
//!
//! The functions take [`Inputs`] and return text. The crate does not measure, read files or read the clock, so the same
//! inputs give the same bytes. `answers` turns rows of the results into comparisons with a named alternative: ahead,
//! level, behind or undecided. `plot` draws them, by plotters; `machine_picture` draws the machine; `elsewhere` makes
//! curves of what was simulated; `page` fills the template of the page; `summary` writes the same answers as text for a
//! terminal. `sides` has what was simulated of Warmcore's runtime beside other ways to place tasks.
//!
//! A page of all benches is about 2 MB, most of it folded pictures of single cases, and loads no other file.

mod answers;
mod distances;
mod elsewhere;
mod imagined;
mod inputs;
pub mod machine_boxes;
mod machine_picture;
mod markup;
mod page;
mod plot;
pub mod recording;
mod sides;
mod simulated;
mod summary;
mod words;

pub use imagined::{Imagined, Part, Simulated, SimulatedLoad};
pub use inputs::{EXPECTED, Finding, Inputs, Probe, State, WorkingSet};
pub use page::{page, pictures};
pub use plot::{Cloud, scatter};
pub use simulated::{simulated, simulated_loads, simulated_tally};
pub use summary::{raw_csv, run_table, short, standing, summary, wrapped};

use answers::Standing;
use warmcore_results::Results;
use warmcore_results::names::percpu;

/// The command that adds the simulated tables. It must run in the folder of the page.
const SIM_COMMAND: &str = "warmcore sim tables --json sim.json";

/// The cases of a run, in the order in which they were measured; those of percpu in the order of `percpu::CASES`.
fn cases(run: &Results) -> Vec<&str> {
    let mut cases: Vec<&str> = Vec::new();
    for row in &run.rows {
        if !cases.contains(&&*row.case) {
            cases.push(&row.case);
        }
    }
    if run.what == "percpu" {
        // Older files have the cases in another order. A case that is not in the list comes last.
        cases.sort_by_key(|name| percpu::CASES.iter().position(|case| case == name).unwrap_or(usize::MAX));
    }
    cases
}

/// The number of comparisons by [`Standing`], in a sentence; or that there are none.
fn tally(inputs: &Inputs) -> String {
    let answers = [answers::tasks(inputs.runs), answers::data(inputs.runs)].concat();
    if answers.is_empty() {
        return "Nothing was measured on this machine yet.".to_owned();
    }
    let count = |standing: Standing| answers.iter().filter(|answer| answer.standing() == standing).count();
    let parts: Vec<String> = Standing::ALL
        .iter()
        .filter(|standing| count(**standing) > 0)
        .map(|standing| format!("{} in {}", standing.word(), count(*standing)))
        .collect();
    format!("Of {} comparisons on this machine Warmcore is {}.", answers.len(), parts.join(", "))
}

#[cfg(test)]
mod tests;
