//! Report: one page that says what was found on a machine, and shows it.
//!
//! Model.   [`Inputs`] in, text out: nothing here measures, reads a file or knows the time, so
//!          the same inputs give the same bytes. Layers: `markup` escapes and formats; `chart`,
//!          `sharing`, `cids`, `budgets`, `wakes`, `timeline`, `matrix` and `topo_picture` draw what was measured,
//!          `claims`, `lanes` and `tornado` what was simulated (`imagined`); `words` says it in sentences; `table` sets
//!          rows; `page` and `summary` put them in order.
//! Number.  A page of 60 rows on a 2-CPU machine is about 60 KB, and loads nothing else.
//! Writers. none: the caller writes the files.

mod budgets;
mod chart;
mod cids;
mod claims;
mod headline;
mod imagined;
mod imagined_parts;
mod inputs;
mod lanes;
mod markup;
mod matrix;
mod page;
mod sharing;
mod simulated;
mod summary;
mod table;
mod timeline;
mod topo_picture;
mod tornado;
mod wakes;
mod words;

pub use imagined::{Imagined, Lane, Lanes, Panel, Pictures, Run, Simulated};
pub use inputs::{Finding, Inputs, Probe, State};
pub use page::page;
pub use simulated::{Load, simulated, simulated_loads, simulated_tally};
pub use summary::{raw_csv, run_table, short, summary};

use chart::{Chart, cases};
use warmcore_results::Results;

/// The pictures of a report, each a file of its own: name, then content.
pub fn pictures(inputs: &Inputs) -> Vec<(String, String)> {
    let charts = inputs.runs.iter().flat_map(charts).map(|c| (c.name.clone(), c.svg()));
    let mut files = vec![("machine".to_owned(), topo_picture::svg(inputs.topology))];
    files.extend(inputs.probe.map(|p| ("hand-over".to_owned(), matrix::svg(inputs.topology, p))));
    files.extend(inputs.runs.iter().filter_map(cids::picture));
    files.extend(charts);
    files.extend(inputs.imagined.into_iter().flat_map(imagined_parts::files));
    // Two names may differ only in what a file name leaves out.
    for i in 0..files.len() {
        let same = files[..i].iter().filter(|(name, _)| *name == files[i].0).count();
        if same > 0 {
            files[i].0 += &format!("-{}", i + 1);
        }
    }
    files.into_iter().map(|(name, svg)| (name + ".svg", svg)).collect()
}

/// The charts of a run, in the order of its cases.
fn charts(run: &Results) -> Vec<Chart<'_>> {
    if run.what == sharing::CASE {
        return sharing::charts(run);
    }
    if run.what == cids::RUN {
        return cids::charts(run);
    }
    if run.what == budgets::RUN {
        return budgets::charts(run);
    }
    if wakes::is_here(&run.what) {
        return wakes::charts(run);
    }
    cases(run).into_iter().flat_map(|case| chart::of_case(run, case)).collect()
}

#[cfg(test)]
mod tests;
