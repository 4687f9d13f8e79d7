//! `cargo xtask compare`: two builds of Warmcore, or Warmcore and tokio, in the cases of `bench wake` and `bench http`.
//!
//! A slice is a process that measures one case on one runtime ([`side`]). A round has a slice of each side, in an order
//! drawn by chance ([`crate::rounds`]), and gives a ratio: the working tree's number ÷ the other side's. After 16, 32, 64
//! and 128 rounds the ratios are looked at, and the case ends as soon as those of every metric (rate, CPU time per operation,
//! quantiles) say level, ahead or behind; [`warmcore_results::looks`] says when, and with which error.
//!
//! On a quiet machine with two CPUs most cases take 0.1 s a round, those with HTTP 0.9 s, beside tokio 1.2 s. Each slice is appended to
//! `compare.tsv`, and `compare.json` and `compare.md` are written after each case, so a run that is ended early has the finished ones.
//!
//! Builds at the same time make most cases undecided. Priority over them helps: with `echo -15 > /proc/self/autogroup` in
//! a session of its own, as root, the standard deviation of the logarithm of a rate of `pingpong.channel.1` was 0.09
//! instead of 0.54, at a load average of 11 on two CPUs.

mod side;

use crate::rounds::{Orders, Samples, alternate};
use crate::{table, test::Live};
use anyhow::{Context, ensure};
use side::{Side, TOKIO};
use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use warmcore_results::looks::{LOOKS, Look, Verdict, look};
use warmcore_results::system::{LoadMeter, results, utc_now};
use warmcore_results::{Bound, Results, Row, write_whole};

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A revision of this repository, or `tokio`
    other: String,
    /// The cases, or their first words: `messaging.1`, `warm.yield`; all if none is named
    #[arg(value_name = "CASE")]
    cases: Vec<String>,
    /// How many slices each process measures, of about 30 ms, or 0.5 s beside tokio; its number is their median. More of
    /// them make a noisy ratio narrower, in proportionally more time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    slices: u16,
    /// Warmcore's workers share one driver, as in adopted programs
    #[arg(long)]
    shared: bool,
    /// The folder of the results
    #[arg(long, value_name = "FOLDER", default_value = "target/compare")]
    out: PathBuf,
}

/// Builds both sides and compares them in the cases that the arguments name.
pub fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let folder = root.join("target/compare");
    std::fs::create_dir_all(&folder)?;
    std::fs::create_dir_all(&options.out)?;
    let lock = File::create(folder.join("lock"))?;
    ensure!(lock.try_lock().is_ok(), "another `cargo xtask compare` uses {}", folder.display());
    let mut live = Live::new();
    let sides = Side::both(root, &folder, (&options.other, options.shared), &mut live)?;
    let cases = chosen(&sides[0].cases()?, options)?;
    // Both programs are read from the disk now, not in the first slice.
    sides.iter().try_for_each(|side| side.slice(&cases[0], 1, 0).map(drop))?;
    // In shorter slices tasks that wait for their turn look unfair. Programs of older revisions have slices of 30 ms only.
    let least_ms = if options.other == TOKIO { 500 } else { 0 };
    let (when, meter, began) = (utc_now(), LoadMeter::start(), Instant::now());
    let names = sides.each_ref().map(|side| &*side.name);
    let mut orders = Orders::new(sides.len());
    let mut compared = Vec::new();
    let mut slices = File::options().append(true).create(true).open(options.out.join("compare.tsv"))?;
    writeln!(slices, "# {when} {}", crate::command_line())?;
    for (i, case) in cases.iter().enumerate() {
        let before = began.elapsed();
        let of_case = compare(case, names, &mut orders, |round, side| {
            let left = left([before, began.elapsed() - before], [i, cases.len()], round);
            live.show(case, &format!("round {} of at most {}", round + 1, LOOKS[LOOKS.len() - 1]), left);
            let rows = sides[side].slice(case, options.slices, least_ms)?;
            slices.write_all(lines(names[side], &rows).as_bytes())?;
            Ok(rows)
        })?;
        live.line(&line(&of_case[0], began.elapsed() - before));
        compared.extend(of_case);
        let rows = compared.iter().flat_map(Compared::rows).collect();
        let results = results("compare", &crate::command_line(), when.clone(), &meter, rows);
        write(&options.out, names, &compared, &results)?;
    }
    println!("\n{}", std::fs::read_to_string(options.out.join("compare.md"))?);
    println!(
        "in {}: compare.json, compare.md, and a line for each slice in compare.tsv",
        options.out.display()
    );
    Ok(())
}

/// Those of the names that the arguments choose. Returns an error if an argument chooses none.
fn chosen(names: &[String], options: &Options) -> anyhow::Result<Vec<String>> {
    let wanted = &options.cases;
    let is_of = |name: &str, wanted: &str| {
        name.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    for wanted in wanted {
        let is_known = names.iter().any(|name| is_of(name, wanted));
        ensure!(is_known, "no case is called {wanted}; there are {}", names.join(", "));
    }
    let is_wanted = |name: &&String| wanted.is_empty() || wanted.iter().any(|wanted| is_of(name, wanted));
    Ok(names.iter().filter(is_wanted).cloned().collect())
}

/// The time that is probably left, from the times of all cases before this one and of this one so far: the next cases
/// take as long as those before, and this one too unless it has taken longer already. In the first case all rounds count.
fn left([before, so_far]: [Duration; 2], [done, cases]: [usize; 2], rounds: usize) -> Option<Duration> {
    let per_case = match done {
        0 if rounds == 0 => return None,
        0 => so_far / rounds as u32 * LOOKS[LOOKS.len() - 1] as u32,
        done => before / done as u32,
    };
    Some(per_case.saturating_sub(so_far) + per_case * (cases - done - 1) as u32)
}

/// A metric of a case on both sides, and what the look at its ratios said.
struct Compared {
    samples: Samples,
    look: Look,
}

/// The side of 1 that is good.
fn better(samples: &Samples) -> Bound {
    if samples.unit == "k/s" { Bound::AtLeast } else { Bound::AtMost }
}

impl Compared {
    fn of(samples: Samples) -> Self {
        let look = look(&samples.metric, &samples.ratios(0, 1), better(&samples));
        Self { samples, look }
    }

    /// The rows of both sides and of the ratio, which has the interval of the look and the bound beyond which it would be
    /// behind.
    fn rows(&self) -> [Row; 3] {
        let [ours, other] = [0, 1].map(|side| self.samples.row(side));
        [ours, other, self.look.row(self.samples.ratio(0, 1), better(&self.samples))]
    }
}

/// Runs a case on the sides of these names until a look finds all of its metrics decided, and returns them, the most important one
/// first. `slice` gets the numbers of the round and of the side.
fn compare(
    case: &str,
    names: [&str; 2],
    orders: &mut Orders,
    mut slice: impl FnMut(usize, usize) -> anyhow::Result<Vec<Row>>,
) -> anyhow::Result<Vec<Compared>> {
    let mut metrics: Vec<Samples> = Vec::new();
    let mut done = 0;
    for rounds in LOOKS {
        alternate(done..rounds, orders, |round, side| {
            let rows = slice(round, side)?;
            add(&mut metrics, names, side, &rows).with_context(|| format!("{case} on {}", names[side]))
        })?;
        done = rounds;
        ensure!(!metrics.is_empty(), "{case} has no rate and no time");
        let is_decided = |it: &Samples| look(&it.metric, &it.ratios(0, 1), better(it)).verdict.is_final();
        if metrics.iter().all(is_decided) {
            break;
        }
    }
    Ok(metrics.into_iter().map(Compared::of).collect())
}

/// Adds the numbers of a slice. Rates and times are compared; other rows are counts, such as that of errors, which must
/// be 0.
fn add(metrics: &mut Vec<Samples>, names: [&str; 2], side: usize, rows: &[Row]) -> anyhow::Result<()> {
    let is_first = metrics.is_empty();
    let numbers: Vec<&Row> = rows.iter().filter(|row| ["k/s", "ns"].contains(&&*row.unit)).collect();
    if is_first {
        metrics.extend(numbers.iter().map(|row| Samples::new(&row.case, &row.metric, &row.unit, names)));
    }
    ensure!(numbers.len() == metrics.len(), "{} numbers instead of {}", numbers.len(), metrics.len());
    for (samples, row) in metrics.iter_mut().zip(numbers) {
        ensure!(samples.metric == row.metric, "{} instead of {}", row.metric, samples.metric);
        samples.sides[side].1.push(row.median);
    }
    let errors = rows.iter().find(|row| row.unit == "errors" && row.median > 0.0);
    ensure!(errors.is_none(), "{} errors", errors.map_or(0.0, |row| row.median));
    Ok(())
}

/// The verdict of a case, for the terminal.
fn line(first: &Compared, took: Duration) -> String {
    let ratio = first.samples.ratio(0, 1);
    let [low, high] = first.look.interval;
    format!(
        "{:<10} {:<28} {:.3} ({low:.3} to {high:.3}), {} rounds, {:.0} s",
        first.look.verdict.word(),
        first.samples.case,
        ratio.median,
        ratio.n,
        took.as_secs_f64()
    )
}

/// A line for each number of a slice.
fn lines(side: &str, rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows {
        table::add_slices(&mut text, [&row.case, &row.metric, &row.unit, side], &[row.median]);
    }
    text
}

/// Writes the results so far.
fn write(out: &Path, names: [&str; 2], compared: &[Compared], results: &Results) -> anyhow::Result<()> {
    write_whole(&out.join("compare.json"), &serde_json::to_vec_pretty(results)?)?;
    write_whole(&out.join("compare.md"), text(names, compared, results).as_bytes())
}

/// The results as Markdown: the first metric of each case, then the others.
fn text([ours, other]: [&str; 2], compared: &[Compared], results: &Results) -> String {
    let mut text = format!(
        "{}; {}; others used {:.0} % of the CPUs, the hypervisor {:.0} %\n\n`{}`\n",
        table::machine(&results.machine),
        results.when,
        100.0 * results.load.others_share,
        100.0 * results.load.steal_share,
        results.command,
    );
    let mut cases: Vec<&str> = Vec::new();
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for it in compared {
        if cases.contains(&&*it.samples.case) {
            others.push(it);
        } else {
            cases.push(&it.samples.case);
            first.push(it);
        }
    }
    for (title, rows) in [("The first metric of each case", first), ("The other metrics", others)] {
        let count = |verdict: Verdict| rows.iter().filter(|it| it.look.verdict == verdict).count();
        let counts = Verdict::ALL.map(|verdict| format!("{} {}", count(verdict), verdict.word())).join(", ");
        let _ = write!(
            text,
            "\n{title}: {counts}.\n\n| case | | {other} | {ours} ÷ {other}: p25 | median | p75 | interval | | rounds |\n\
             |---|---|---|---|---|---|---|---|---|\n"
        );
        rows.iter().for_each(|it| add_line(&mut text, it));
    }
    text
}

fn add_line(text: &mut String, it: &Compared) {
    let Samples { case, metric, unit, .. } = &it.samples;
    let [_, other, ratio] = it.rows();
    let _ = writeln!(
        text,
        "| {case} | {metric} | {:.1} {unit} | {:.3} | {:.3} | {:.3} | {:.3} to {:.3} | {} | {} |",
        other.median,
        ratio.p25,
        ratio.median,
        it.samples.third_quartile(0, 1).median,
        it.look.interval[0],
        it.look.interval[1],
        it.look.verdict.word(),
        ratio.n
    );
}

#[cfg(test)]
mod tests;
