//! `cargo xtask constants`: what a constant of scheduling decides: the simulated cases of `bench` with each one halved and doubled.
//!
//! The constants are those of the first two tables of `docs/tuning.md`. A copy of the tree gets the changed one, and the example
//! `cases` of `warmcore-sim` is built there and simulates all cases on four machines, with the costs of a probe file. Each number is
//! compared with that of the unchanged tree, seed by seed, so nothing differs but the constant.
//!
//! A difference is reported where its 99.9 % interval excludes none (Student's, of the logarithms, by seed) and it is at least
//! [`LEAST`]. So about one in a thousand numbers is reported by chance.
//!
//! Not simulated: what a refill after a move costs is not learned, no worker is preempted but by threads of the program, and there
//! is one process. Constants of the runtime's threads alone are not in the simulator; `cargo xtask compare` measures those.

use crate::build::Build;
use crate::process::git;
use crate::test::Live;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use warmcore_results::write_whole;

/// Seeds of each case, and the quantile of Student's distribution for them: four degrees of freedom, 99.9 %, both sides.
const SEEDS: u64 = 5;
const QUANTILE: f64 = 8.61;

/// Differences below this are not reported: a factor of a rate or a delay; a difference of a share.
const LEAST: f64 = 0.02;
const LEAST_MOVED: f64 = 0.002;

/// How many differences of one change are named.
const NAMED: usize = 4;

/// The arguments of the command.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The constants; all if none is named
    #[arg(value_name = "CONSTANT")]
    names: Vec<String>,
    /// What `warmcore predict probe --json FILE` wrote
    #[arg(long, value_name = "FILE")]
    probe: PathBuf,
    /// The file of the table; beside it a file with all numbers
    #[arg(long, value_name = "FILE", default_value = "target/constants/constants.md")]
    out: PathBuf,
}

/// A constant: its name in `docs/tuning.md`, its value there, its file.
struct Constant {
    name: String,
    value: String,
    file: String,
}

/// What stands in a file where the constant is, and what takes its place.
struct Change {
    path: PathBuf,
    text: String,
    changed: String,
}

/// Where a half or the double is not the text times a number. The file, the text, and what takes its place.
const SPECIAL: [(&str, &str, &str, [Option<&str>; 2]); 5] = [
    (
        "distance_factor",
        "crates/sched/src/policy/home.rs",
        "Distance::Node => 2,\n        Distance::Socket => 3,\n        Distance::Other => 4,",
        [
            Some("Distance::Node => 1,\n        Distance::Socket => 1,\n        Distance::Other => 2,"),
            Some("Distance::Node => 4,\n        Distance::Socket => 6,\n        Distance::Other => 8,"),
        ],
    ),
    // A shard's CPUs are bits of a word.
    ("SHARD_CPUS_MAX", "crates/sched/src/domains.rs", "ShardMask::BITS as usize;", [Some("8;"), None]),
    // What is above 100 % counts.
    (
        "IMBALANCE_PCT",
        "crates/sched/src/policy/near.rs",
        "IMBALANCE_PCT: u64 = 117;",
        [Some("IMBALANCE_PCT: u64 = 108;"), Some("IMBALANCE_PCT: u64 = 134;")],
    ),
    // A mask: one less than a power of two.
    (
        "SAMPLE_MASK",
        "crates/sched/src/worker/sample.rs",
        "SAMPLE_MASK: u32 = 31;",
        [Some("SAMPLE_MASK: u32 = 15;"), Some("SAMPLE_MASK: u32 = 63;")],
    ),
    // The simulator's setting of the same value.
    (
        "long_poll_threshold",
        "tools/sim/src/simulation/settings.rs",
        "long_poll: Nanos(1_000_000),",
        [Some("long_poll: Nanos(500_000),"), Some("long_poll: Nanos(2_000_000),")],
    ),
];

/// Simulates the cases with each constant halved and doubled, and writes the table.
pub fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root.join("docs/tuning.md"))?;
    let constants = listed(&text, &options.names)?;
    let probe = std::fs::canonicalize(&options.probe).with_context(|| {
        format!("can't read {}; write one with `warmcore predict probe`", options.probe.display())
    })?;
    let tree = root.join("target/constants/tree");
    let mut live = Live::new();
    copy_tree(root, &tree)?;
    let unchanged = simulate(&tree, &probe, "the tree as it is", &mut live)?;
    let mut table = format!(
        "`{}`, {SEEDS} seeds. A case is named with its number of last-level caches x CPUs. Rates and delays: \
         changed ÷ unchanged; moved: the part of the polls after a move; slowest: the slowest of equal tasks ÷ their mean.\n\n\
         | constant | value | halved | doubled |\n|---|---|---|---|\n",
        crate::command_line()
    );
    let mut numbers =
        String::from("# constant, change, case, metric, CPUs, then unchanged and changed by seed\n");
    let began = Instant::now();
    for (i, constant) in constants.iter().enumerate() {
        let mut cells = Vec::new();
        for (change, how) in constant.changes(&tree)?.iter().zip(["halved", "doubled"]) {
            let Some(Change { path, text, changed }) = change else {
                cells.push("not possible".to_owned());
                continue;
            };
            let name = &constant.name;
            let left = began.elapsed() * (constants.len() - i) as u32 / i.max(1) as u32;
            live.show(name, how, (i > 0).then_some(left));
            let before = std::fs::read_to_string(path)?;
            std::fs::write(path, before.replacen(text, changed, 1))?;
            let after = simulate(&tree, &probe, &format!("{name} {how}"), &mut live);
            std::fs::write(path, before)?;
            cells.push(match after {
                Ok(after) => {
                    add_numbers(&mut numbers, &format!("{name}\t{how}"), &unchanged, &after);
                    said(&unchanged, &after)
                }
                Err(error) => {
                    format!("does not run: {}", error.to_string().lines().next().unwrap_or_default())
                }
            });
        }
        if cells.is_empty() {
            cells = vec!["not in the simulator".to_owned(); 2];
        }
        live.line(&format!("{}: halved {}; doubled {}", constant.name, cells[0], cells[1]));
        writeln!(table, "| `{}` | {} | {} | {} |", constant.name, constant.value, cells[0], cells[1])?;
        write_whole(&options.out, table.as_bytes())?;
        write_whole(&options.out.with_extension("tsv"), numbers.as_bytes())?;
    }
    println!("\n{table}\nin {}, and all numbers beside it", options.out.display());
    Ok(())
}

/// The constants of the first two tables, or those of them that are named.
fn listed(text: &str, names: &[String]) -> anyhow::Result<Vec<Constant>> {
    let tables = text.split("\n## ").skip(1).take(2);
    let rows = tables.flat_map(str::lines).filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        let (name, value, file) = (cells.next()?, cells.next()?, cells.next()?);
        let [name, file] = [name, file].map(|cell| cell.trim_matches('`').to_owned());
        Some(Constant { name, value: value.to_owned(), file })
    });
    let all: Vec<Constant> = rows.collect();
    for name in names {
        let known = || all.iter().map(|constant| &*constant.name).collect::<Vec<_>>().join(", ");
        ensure!(
            all.iter().any(|constant| constant.name == *name),
            "no constant is called {name}; there are {}",
            known()
        );
    }
    Ok(all.into_iter().filter(|constant| names.is_empty() || names.contains(&constant.name)).collect())
}

impl Constant {
    /// How to halve and to double it, `None` where that is not possible; nothing if it is not in the simulator.
    fn changes(&self, tree: &Path) -> anyhow::Result<Vec<Option<Change>>> {
        let of_file = |file: &str, text: String, changed: [Option<String>; 2]| {
            let path = tree.join(file);
            let change = |changed| Change { path: path.clone(), text: text.clone(), changed };
            changed.map(|changed| changed.map(change)).into()
        };
        if let Some((_, file, text, changed)) = SPECIAL.iter().find(|special| special.0 == self.name) {
            let is_there = std::fs::read_to_string(tree.join(file))?.contains(text);
            ensure!(is_there, "{file} has no {text:?} any more: mend SPECIAL");
            return Ok(of_file(file, (*text).to_owned(), changed.map(|text| text.map(str::to_owned))));
        }
        if !self.file.starts_with("sched/") {
            return Ok(Vec::new());
        }
        let file = format!("crates/{}", self.file);
        let source = std::fs::read_to_string(tree.join(&file))?;
        let (text, changed) = scaled(&source, &self.name)
            .with_context(|| format!("{file} defines no {} on a line of its own", self.name))?;
        Ok(of_file(&file, text, changed.map(Some)))
    }
}

/// The definition of a constant, and that of the half and of the double.
fn scaled(source: &str, name: &str) -> Option<(String, [String; 2])> {
    let line = source.lines().find(|line| line.contains(&format!("const {name}: ")))?;
    let (head, value) = line.split_once(" = ")?;
    let value = value.strip_suffix(';')?;
    let times = |factor: &str| match head {
        _ if head.ends_with("Nanos") => format!("Nanos(({value}).0 {factor})"),
        _ if head.ends_with(']') => {
            format!("{{ let all = {value}; [all[0] {factor}, all[1] {factor}, all[2] {factor}] }}")
        }
        _ => format!("({value}) {factor}"),
    };
    Some((line.to_owned(), ["/ 2", "* 2"].map(|factor| format!("{head} = {};", times(factor)))))
}

/// Copies what git knows of, and what is new. A file that is the same already keeps its time, so that cargo does not build it again.
fn copy_tree(root: &Path, tree: &Path) -> anyhow::Result<()> {
    for name in git(root, &["ls-files", "--cached", "--others", "--exclude-standard"])?.lines() {
        let Ok(now) = std::fs::read(root.join(name)) else { continue };
        let copy = tree.join(name);
        if std::fs::read(&copy).ok().as_ref() != Some(&now) {
            std::fs::create_dir_all(copy.parent().context("a file has a folder")?)?;
            std::fs::write(copy, now)?;
        }
    }
    Ok(())
}

/// By case, metric and machine: for each seed the metric, the part that moved, the slowest task.
type Numbers = BTreeMap<[String; 3], Vec<[f64; 3]>>;

/// Builds the example in the copy of the tree, and runs it.
fn simulate(tree: &Path, probe: &Path, step: &str, live: &mut Live) -> anyhow::Result<Numbers> {
    let target = tree.with_file_name("built");
    std::fs::create_dir_all(&target)?;
    let args = ["build", "--release", "--package", "warmcore-sim", "--example", "cases"];
    let build = Build { folder: tree, args: &args, target: Some(&target), logs: &target };
    let built = build.run(&["cases"], &mut |krate| live.show(step, krate, None))?;
    live.show(step, "simulated", None);
    let mut cases = Command::new(&built[0]);
    let said = crate::process::said(cases.arg(probe).arg(SEEDS.to_string()))?;
    let mut numbers = Numbers::new();
    for line in said.lines() {
        let cells: Vec<&str> = line.split('\t').collect();
        let [case, metric, cpus, _, of_seed @ ..] = &cells[..] else { continue };
        let of_seed = of_seed.iter().map(|number| number.parse()).collect::<Result<Vec<f64>, _>>()?;
        let of_seed = of_seed.try_into().ok().with_context(|| format!("three numbers: {line}"))?;
        numbers.entry([case, metric, cpus].map(|text| text.to_string())).or_default().push(of_seed);
    }
    Ok(numbers)
}

fn add_numbers(text: &mut String, change: &str, unchanged: &Numbers, changed: &Numbers) {
    for (key, before) in unchanged {
        for (at, metric) in [&*key[1], "moved", "slowest"].into_iter().enumerate() {
            let of = |numbers: &[[f64; 3]]| {
                numbers.iter().map(|n| format!("{:.4}", n[at])).collect::<Vec<_>>().join(" ")
            };
            let [before, after] = [of(before), of(&changed[key])];
            if before != after {
                let _ = writeln!(text, "{change}\t{}\t{metric}\t{}\t{before}\t{after}", key[0], key[2]);
            }
        }
    }
}

/// The largest differences in words, and how many there are.
fn said(unchanged: &Numbers, changed: &Numbers) -> String {
    let mut found: Vec<(f64, String)> = Vec::new();
    for (key, before) in unchanged {
        let (place, after) = (format!("{} {}", key[0], key[2]), &changed[key]);
        let by_seed = |at: usize, difference: fn(f64, f64) -> f64| {
            let all = before.iter().zip(after).map(|(before, after)| difference(before[at], after[at]));
            seen(&all.collect::<Vec<_>>())
        };
        let mean = |numbers: &[[f64; 3]], at: usize| {
            numbers.iter().map(|n| n[at]).sum::<f64>() / numbers.len() as f64
        };
        if let Some(log) = by_seed(0, |before, after| (after.max(1e-3) / before.max(1e-3)).ln())
            && (log.exp() - 1.0).abs() >= LEAST
        {
            found.push((log.abs(), format!("{place} {} {:.2}", key[1], log.exp())));
        }
        if let Some(more) = by_seed(1, |before, after| after - before)
            && more.abs() >= LEAST_MOVED
        {
            let [from, to] = [before, after].map(|numbers| 100.0 * mean(numbers, 1));
            found.push((more.abs(), format!("{place} moved {from:.1} → {to:.1} %")));
        }
        if let Some(more) = by_seed(2, |before, after| after - before)
            && more.abs() >= LEAST
        {
            let [from, to] = [before, after].map(|numbers| mean(numbers, 2));
            found.push((more.abs(), format!("{place} slowest {from:.2} → {to:.2}")));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let numbers = 3 * unchanged.len();
    match found.len() {
        0 => format!("none of {numbers}"),
        n => {
            let named: Vec<String> = found.into_iter().take(NAMED).map(|difference| difference.1).collect();
            format!("{n} of {numbers}: {}", named.join("; "))
        }
    }
}

/// The mean, if its interval excludes 0.
fn seen(differences: &[f64]) -> Option<f64> {
    let n = differences.len() as f64;
    let mean = differences.iter().sum::<f64>() / n;
    let variance = differences.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean.abs() > QUANTILE * (variance / n).sqrt()).then_some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_constant_has_a_definition_that_can_be_changed() {
        let root = crate::root();
        let text = std::fs::read_to_string(root.join("docs/tuning.md")).unwrap();
        let all = listed(&text, &[]).unwrap();
        let unknown: Vec<_> =
            all.iter().filter(|constant| constant.changes(&root).unwrap().is_empty()).collect();
        let names: Vec<_> = unknown.iter().map(|constant| &*constant.name).collect();
        assert_eq!(names, ["LONG_INTERVAL", "POLLS"], "of the runtime's threads alone");
        let error = listed(&text, &["NONE".to_owned()]).map(drop).unwrap_err().to_string();
        assert!(error.starts_with("no constant is called NONE; there are HANDOVER_COST, "), "{error}");
    }

    #[test]
    fn a_definition_is_halved_and_doubled_by_its_type() {
        let source = "const A: u64 = 3 * B;\npub const C: Nanos = Nanos(5);\nconst D: [u32; 3] = [E, 2, 3];";
        let doubled = |name| scaled(source, name).unwrap().1[1].clone();
        assert_eq!(doubled("A"), "const A: u64 = (3 * B) * 2;");
        assert_eq!(doubled("C"), "pub const C: Nanos = Nanos((Nanos(5)).0 * 2);");
        let all = "const D: [u32; 3] = { let all = [E, 2, 3]; [all[0] * 2, all[1] * 2, all[2] * 2] };";
        assert_eq!(doubled("D"), all);
        assert_eq!(scaled(source, "F"), None);
    }

    #[test]
    fn a_difference_is_named_if_all_seeds_show_it() {
        let key = ["case", "rate", "1x2"].map(str::to_owned);
        let numbers = |values: [[f64; 3]; 6]| Numbers::from([(key.clone(), values.to_vec())]);
        let before = numbers([[100.0, 0.01, 1.0]; 6]);
        assert_eq!(said(&before, &before), "none of 3");
        let mut after = [[110.0, 0.02, 0.9]; 6];
        let named = "3 of 3: case 1x2 slowest 1.00 → 0.90; case 1x2 rate 1.10; case 1x2 moved 1.0 → 2.0 %";
        assert_eq!(said(&before, &numbers(after)), named);
        // Half of the seeds say the opposite.
        after.iter_mut().take(3).for_each(|n| *n = [90.0, 0.0, 1.1]);
        assert_eq!(said(&before, &numbers(after)), "none of 3");
    }
}
