//! `cargo xtask shapes`: times programs written for tokio through the face (`adapters/tokio`) beside the same programs on
//! tokio.
//!
//! The programs are `peers/shapes`, and the benches that the packages h2 and deadpool have. Each is built twice, on tokio
//! and through the face, from the same versions of all packages ([`programs`]). They run in three ways ([`SIDES`]): through
//! the face, through the face with `WARMCORE=0`, which should cost nothing, and on tokio.
//!
//! A *slice* is a process that does nothing else than measure once. A round has a slice of each side, in an order that
//! changes from round to round. Ratios compare slices of the same round; their quartiles and intervals are those of
//! `warmcore-results`. The first slice of each side is not timed: the face says in it whether its workers polled tasks.
//!
//! With `--profile` nothing is timed. Instructions and system calls of an operation are counted instead ([`profile`]).

mod profile;
mod programs;

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

/// The orders of the sides in a round, by the number of the round: each side precedes each other one equally often.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]];

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
    let rows = measured.iter().flat_map(Measured::rows).collect();
    let results = results("shapes", &crate::command_line(), when, &meter, rows);
    println!("{}", text(&measured, &results));
    write_whole(&options.out.join("shapes.json"), &serde_json::to_vec_pretty(&results)?)?;
    write_whole(&options.out.join("shapes.tsv"), slices(&measured).as_bytes())?;
    println!("as JSON and, slice by slice, as text: {}/shapes.json, shapes.tsv", options.out.display());
    Ok(())
}

/// One value of a slice, over all rounds.
struct Measured {
    case: String,
    /// `time` or `cpu`.
    metric: &'static str,
    unit: &'static str,
    /// For each of [`SIDES`], a value for each round.
    values: [Vec<f64>; 3],
}

impl Measured {
    /// The times of each side, and the ratios to tokio's.
    fn rows(&self) -> Vec<Row> {
        let times = SIDES
            .iter()
            .zip(&self.values)
            .map(|(side, values)| Row::of(&self.case, side, self.metric, self.unit, values));
        times.chain([self.ratio(0), self.ratio(1)]).collect()
    }

    /// The ratio of a side's value to tokio's.
    fn ratio(&self, side: usize) -> Row {
        let row = Row::ratio(&self.case, SIDES[side], TOKIO, &self.values[side], &self.values[2]);
        Row {
            metric: if self.metric == "time" { row.metric } else { format!("{} ratio", self.metric) },
            ..row
        }
    }

    /// The third quartile of the same ratio.
    fn third_quartile(&self, side: usize) -> f64 {
        let ratios: Vec<f64> = self.values[side].iter().zip(&self.values[2]).map(|(a, b)| a / b).collect();
        Row::quantile(&self.case, SIDES[side], "ratio", "x", &ratios, 0.75).median
    }
}

/// Runs all rounds of a slice.
fn measure(
    programs: &Programs,
    slice: &Slice,
    rounds: usize,
    show: &mut dyn FnMut(usize),
) -> anyhow::Result<Vec<Measured>> {
    let empty = |(suffix, metric, unit): &(&str, &'static str, &'static str)| Measured {
        case: format!("{}{suffix}", slice.name),
        metric,
        unit,
        values: Default::default(),
    };
    let mut measured: Vec<Measured> = slice.values.iter().map(empty).collect();
    for round in 0..rounds {
        show(round + 1);
        for side in ORDERS[round % ORDERS.len()] {
            let values = programs.run(slice, SIDES[side], None)?;
            for (measured, value) in measured.iter_mut().zip(values) {
                measured.values[side].push(value);
            }
        }
    }
    Ok(measured)
}

/// The table: the values on tokio, and what times tokio's the other sides take.
fn text(measured: &[Measured], results: &Results) -> String {
    let mut text = format!(
        "{}; others used {:.0} % of the CPUs\n\n\
         | case | | on tokio | warmcore ÷ tokio: p25 | median | p75 | 95 % | | WARMCORE=0 ÷ tokio | 95 % | n |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        table::machine(&results.machine),
        100.0 * results.load.others_share
    );
    for it in measured {
        let Measured { case, metric, unit, .. } = it;
        let tokio = Row::of(case, TOKIO, metric, unit, &it.values[2]);
        let [ours, off] = [it.ratio(0), it.ratio(1)];
        let cells = table::ratio(&ours, it.third_quartile(0), Bound::AtMost);
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

/// A line for each case, metric and side.
fn slices(measured: &[Measured]) -> String {
    let mut text = String::new();
    for it in measured {
        for (side, values) in SIDES.iter().zip(&it.values) {
            table::add_slices(&mut text, [&it.case, it.metric, it.unit, side], values);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_precedes_each_other_one_equally_often() {
        let mut before = [[0; 3]; 3];
        for order in ORDERS {
            for (i, side) in order.iter().enumerate() {
                order[i + 1..].iter().for_each(|later| before[*side][*later] += 1);
            }
        }
        assert_eq!(before, [[0, 3, 3], [3, 0, 3], [3, 3, 0]]);
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let values = [vec![2.0, 4.0, 12.0], vec![1.0, 2.0, 4.0], vec![1.0, 2.0, 4.0]];
        let measured = Measured { case: "x".to_owned(), metric: "cpu", unit: "ns", values };
        let rows = measured.rows();
        let row = |i: usize| (&*rows[i].metric, &*rows[i].variant, rows[i].median);
        assert_eq!([row(0), row(3)], [("cpu", OURS, 4.0), ("cpu ratio", OURS, 2.0)]);
        assert_eq!((row(4), measured.third_quartile(0)), (("cpu ratio", OFF, 1.0), 3.0));
        assert!(slices(&[measured]).starts_with("x\tcpu\tns\twarmcore\t2.0 4.0 12.0\n"));
    }
}
