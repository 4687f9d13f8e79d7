//! `cargo xtask shapes`: times programs written for tokio through the face (`adapters/tokio`) beside the same programs on
//! tokio.
//!
//! The programs are `peers/shapes`, and the benches that the packages h2 and deadpool have. Each is built twice, on tokio
//! and through the face, from the same versions of all packages ([`programs`]). They run in three ways ([`SIDES`]): through
//! the face, through the face with `WARMCORE=0`, which should cost nothing, and on tokio.
//!
//! A *slice* is a process that does nothing else than measure once. A round has a slice of each side, in an order that
//! is drawn by chance ([`crate::rounds`]). Ratios compare slices of the same round; their quartiles and intervals are those of
//! `warmcore-results`. The first slice of each side is not timed: the face says in it whether its workers polled tasks.
//!
//! With `--profile` nothing is timed. Instructions and system calls of an operation are counted instead ([`profile`]).

mod profile;
mod programs;

use crate::rounds::{Orders, Samples, alternate};
use crate::{table, test::Live};
use anyhow::bail;
use programs::{Programs, Slice};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;
use warmcore_results::system::{LoadMeter, results, utc_now};
use warmcore_results::{Bound, Results, Row, write_whole};

/// The ways in which a program runs, as the rows name them.
const SIDES: [&str; 3] = [OURS, OFF, TOKIO];
/// Through the face.
const OURS: &str = "warmcore";
/// Through the face, with `WARMCORE=0` in the environment.
const OFF: &str = "WARMCORE=0";
/// On tokio, without the face.
const TOKIO: &str = "tokio";

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Parts of names; a slice is measured if its name contains one, or if there are none
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// How many slices of each side are measured
    #[arg(long, value_name = "N", default_value_t = 31, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Count instructions and system calls of an operation, without times
    #[arg(long)]
    profile: bool,
    /// The folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "target/shapes")]
    out: PathBuf,
}

/// Builds the programs and measures the slices that the arguments name.
pub fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    std::fs::create_dir_all(&options.out)?;
    let is_chosen =
        |name: &str| options.names.is_empty() || options.names.iter().any(|part| name.contains(part));
    let is_needed =
        |package: &str| is_chosen(package) || options.names.iter().any(|it| it.starts_with(package));
    let mut live = Live::new();
    let programs = Programs::build(root, &is_needed, &mut live)?;
    let (chosen, others): (Vec<_>, Vec<_>) =
        programs.slices()?.into_iter().partition(|slice| is_chosen(&slice.name));
    if chosen.is_empty() {
        let others: Vec<String> = others.into_iter().map(|slice| slice.name).collect();
        bail!("nothing is called {}; there are {}", options.names.join(" or "), others.join(", "));
    }
    if options.profile {
        return profile::run(&programs, &chosen, &options.out);
    }
    let (when, meter, began) = (utc_now(), LoadMeter::start(), Instant::now());
    let mut measured = Vec::new();
    for (done, slice) in chosen.iter().enumerate() {
        programs.check_face(slice)?;
        let left = (done > 0).then(|| began.elapsed() / done as u32 * (chosen.len() - done) as u32);
        measured.extend(measure(&programs, slice, options.rounds.into(), &mut |round| {
            live.show(&slice.name, &format!("round {round} of {}", options.rounds), left);
        })?);
    }
    let rows = measured.iter().flat_map(rows).collect();
    let results = results("shapes", &crate::command_line(), when, &meter, rows);
    println!("{}", text(&measured, &results));
    write_whole(&options.out.join("shapes.json"), &serde_json::to_vec_pretty(&results)?)?;
    let mut slices = String::new();
    measured.iter().for_each(|samples| samples.add_slices(&mut slices));
    write_whole(&options.out.join("shapes.tsv"), slices.as_bytes())?;
    println!("as JSON and, slice by slice, as text: {}/shapes.json, shapes.tsv", options.out.display());
    Ok(())
}

/// Runs all rounds of a slice.
fn measure(
    programs: &Programs,
    slice: &Slice,
    rounds: usize,
    show: &mut dyn FnMut(usize),
) -> anyhow::Result<Vec<Samples>> {
    let empty = |(suffix, metric, unit): &(&str, &str, &str)| {
        Samples::new(&format!("{}{suffix}", slice.name), metric, unit, SIDES)
    };
    let mut measured: Vec<Samples> = slice.values.iter().map(empty).collect();
    alternate(0..rounds, &mut Orders::new(SIDES.len()), |round, side| {
        show(round + 1);
        let values = programs.run(slice, SIDES[side], None)?;
        for (samples, value) in measured.iter_mut().zip(values) {
            samples.sides[side].1.push(value);
        }
        Ok(())
    })?;
    Ok(measured)
}

/// The rows of each side, and the ratios to tokio's.
fn rows(samples: &Samples) -> Vec<Row> {
    (0..SIDES.len()).map(|side| samples.row(side)).chain([samples.ratio(0, 2), samples.ratio(1, 2)]).collect()
}

/// The table: the values on tokio, and what times tokio's the other sides take.
fn text(measured: &[Samples], results: &Results) -> String {
    let mut text = format!(
        "{}; others used {:.0} % of the CPUs\n\n\
         | case | | on tokio | warmcore ÷ tokio: p25 | median | p75 | 95 % | | WARMCORE=0 ÷ tokio | 95 % | n |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        table::machine(&results.machine),
        100.0 * results.load.others_share
    );
    for it in measured {
        let Samples { case, metric, unit, .. } = it;
        let [ours, off, tokio] = [it.ratio(0, 2), it.ratio(1, 2), it.row(2)];
        let cells = table::ratio(&ours, it.third_quartile(0, 2).median, Bound::AtMost);
        let _ = writeln!(
            text,
            "| {case} | {metric} | {:.0} {unit} | {cells} | {:.2} | {} | {} |",
            tokio.median,
            off.median,
            table::interval(&off),
            ours.n
        );
    }
    text
}
