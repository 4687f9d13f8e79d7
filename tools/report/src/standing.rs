//! A page of the docs: the promises of the benches that are missed or undecided.

use super::markup::amount;
use super::words::{bound, interval, measured};
use warmcore_results::{Results, Row, Standing, Target};

/// A Markdown page: the number of promises that are met, and each promise that is missed or undecided. If a row was
/// measured more than once, the newest one counts.
pub fn standing(runs: &[Results]) -> String {
    let mut sorted: Vec<&Results> = runs.iter().collect();
    sorted.sort_by(|a, b| a.when.cmp(&b.when));
    let mut newest: Vec<(&Results, &Row, &Target)> = Vec::new();
    for run in sorted {
        for row in &run.rows {
            let Some(target) = &row.target else { continue };
            let is_same = |(other_run, other, _): &(&Results, &Row, &Target)| {
                (&other_run.what, &other.case, &other.variant, &other.metric, &other.over)
                    == (&run.what, &row.case, &row.variant, &row.metric, &row.over)
            };
            newest.retain(|other| !is_same(other));
            newest.push((run, row, target));
        }
    }
    newest.sort_by_key(|(run, row, _)| (run.what.clone(), row.case.clone()));
    let met = newest.iter().filter(|(_, row, target)| target.standing(row) == Standing::Met).count();
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let line = |(run, row, target): &(&Results, &Row, &Target)| {
        let standing = target.standing(row).word();
        format!(
            "| `{}` | {} | {} | {} | {} | {standing} | {} |\n",
            cell(&row.case),
            cell(&measured(row)),
            cell(&bound(row, target)),
            cell(&amount(row.median, &row.unit)),
            cell(&interval(row).unwrap_or_default()),
            cell(run.when.split('T').next().unwrap_or_default()),
        )
    };
    let open: String =
        newest.iter().filter(|(_, row, target)| target.standing(row) != Standing::Met).map(line).collect();
    format!(
        "# Where it stands\n\nWhat the benches expected of themselves, before they were written, on the machine of the newest report in \
         `reports/`.\n`warmcore report --render` writes this page from the results in a folder. Of {} expectations {met} are met; the \
         others:\n\n| case | compared | expected | reached | 95 % interval | | measured |\n|---|---|---|---|---|---|---|\n{open}",
        newest.len()
    )
}
