//! `warmcore bench`, and the hidden command that runs one part of a bench in a process of its own.
//!
//! The measurements are in `tools/bench`; this module has the arguments, prints the table on stdout and writes the file
//! of `--json`.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_bench::measure::{Effort, INTERRUPTED};
use warmcore_bench::{What, run, run_part, signals};
use warmcore_report::wrapped;
use warmcore_results::write_whole;

/// Arguments of `warmcore bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = cases_told())]
pub struct Args {
    /// What to measure
    #[arg(value_parser = whats())]
    what: What,
    /// Also write the results to FILE, as JSON (docs/json.md)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// A third of the rounds, and shorter ones: a first look, with wider intervals
    #[arg(long)]
    quick: bool,
    /// Only this case, of those listed below; may be given more than once
    #[arg(long, value_name = "CASE")]
    case: Vec<String>,
}

/// The names of the benches that the command takes, each with a description.
fn whats() -> impl TypedValueParser<Value = What> {
    let named = What::EVERY.map(|what| PossibleValue::new(what.name()).help(what.about()));
    PossibleValuesParser::new(named).map(|name| {
        *What::EVERY.iter().find(|what| what.name() == name).expect("clap takes only what is listed")
    })
}

/// The names of all cases, which `--case` takes, for the help.
fn cases_told() -> String {
    const COLUMNS: usize = 74;
    let lines = What::EVERY.iter().map(|what| {
        let cases: Vec<&str> = what.cases().iter().map(|case| case.name).collect();
        let cases = wrapped(&cases.join(", "), COLUMNS, 0).replace('\n', &format!("\n{:17}", ""));
        format!("\n  {:<15}{cases}", what.name())
    });
    "Cases:".to_owned() + &lines.collect::<String>()
}

/// `warmcore bench`.
pub fn command(args: &Args) -> anyhow::Result<()> {
    let effort = if args.quick { Effort::QUICK } else { Effort::FULL };
    let cases: Vec<&str> = args.case.iter().map(String::as_str).collect();
    let results = run(args.what, effort, &cases, "", args.json.as_deref())?;
    print!("{}", warmcore_report::run_table(&results));
    if let Some(path) = &args.json {
        write_whole(path, &serde_json::to_vec_pretty(&results)?)?;
        eprintln!("written: {}", path.display());
    }
    if INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: the cases above were finished, the others are missing");
        signals::end();
    }
    Ok(())
}

/// Arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub struct PartArgs {
    /// The part of a bench, as JSON
    part: String,
}

/// The hidden command: runs one part of a bench in this process, and prints its result.
pub fn part_command(args: &PartArgs) -> anyhow::Result<()> {
    run_part(&args.part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_case_and_no_line_is_wide() {
        let told = cases_told();
        for case in What::EVERY.iter().flat_map(|what| what.cases()) {
            assert!(
                told.split([' ', ',', '\n']).any(|word| word == case.name),
                "{} is not in\n{told}",
                case.name
            );
        }
        assert!(told.lines().all(|line| line.len() <= 100), "{told}");
    }
}
