//! Counts what an operation of `peers/shapes` costs: instructions under callgrind, and system calls by strace.
//!
//! Each case runs twice on each side, a few times and many times. The difference of the two counts, divided by the
//! difference of the operations, has neither start nor end of the program. Under callgrind one thread runs at a time, a
//! parked worker is never late, and restartable sequences don't run; so counts are those of the code, not of a race.
//!
//! After the counts of a case stand the functions with most instructions, from the longer run under callgrind.

use super::programs::{Programs, Slice};
use super::{OURS, TOKIO};
use crate::instructions::{self, Callgrind};
use crate::process;
use anyhow::{Context, ensure};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// How often a case runs in the short and in the long program.
const RUNS: [&str; 2] = ["3", "15"];

/// System calls that fewer of a thousand operations make are not listed.
const CALLS_MIN: f64 = 1.0;

/// The functions listed for each side.
const FUNCTIONS: usize = 12;

/// Counts, prints and writes `profile.md` into the folder `out`.
pub fn run(programs: &Programs, slices: &[Slice], out: &Path) -> anyhow::Result<()> {
    instructions::is_possible()?;
    let file = out.canonicalize()?.join("callgrind.out");
    let mut callgrind = Callgrind::new(file.clone());
    let mut text = String::new();
    for slice in slices.iter().filter(|slice| slice.program == "shapes") {
        for side in [OURS, TOKIO] {
            let program = programs.command(slice, side)?.get_program().to_owned();
            let program = Path::new(&program);
            let mut counts = Vec::new();
            for runs in RUNS {
                let (said, counted) = callgrind.count(program, &["count", &slice.name, runs])?;
                let operations: f64 = said.trim().parse().context("the program prints its operations")?;
                counts.push((operations, counted, calls(program, &slice.name, runs, out)?));
            }
            let [(few, less, calls_before), (many, more, calls)] = &counts[..] else { unreachable!() };
            let per_operation = |less: u64, more: u64| (more as f64 - less as f64) / (many - few);
            let _ = write!(
                text,
                "\n{} on {side}: {:.0} instructions, {:.1} locked; of 1000 operations:",
                slice.name,
                per_operation(less.all, more.all),
                per_operation(less.locked, more.locked)
            );
            for (call, more) in calls {
                let per_1000 = 1000.0 * per_operation(calls_before.get(call).copied().unwrap_or(0), *more);
                if per_1000 >= CALLS_MIN {
                    let _ = write!(text, " {call} {per_1000:.0}");
                }
            }
            text.push('\n');
            let annotated = process::said(Command::new("callgrind_annotate").arg(&file))?;
            for (name, instructions) in functions(&annotated) {
                let _ = writeln!(text, "{:>9.1} {name}", instructions as f64 / many);
            }
        }
        println!("{}", slice.name);
    }
    println!("{text}");
    std::fs::write(out.join("profile.txt"), text)?;
    Ok(())
}

/// The system calls of all threads of a run, by name.
fn calls(program: &Path, case: &str, runs: &str, out: &Path) -> anyhow::Result<BTreeMap<String, u64>> {
    let file = out.join("strace.txt");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-q", "-c", "-U", "calls,name", "-o"]).arg(&file).arg(program);
    process::said(strace.args(["count", case, runs]))?;
    let table = std::fs::read_to_string(&file)?;
    let calls: BTreeMap<String, u64> = table.lines().filter_map(call).collect();
    ensure!(!calls.is_empty(), "strace printed something else than expected:\n{table}");
    Ok(calls)
}

/// A line of strace's table with the number of calls and the name.
fn call(line: &str) -> Option<(String, u64)> {
    let (calls, name) = line.trim().split_once(' ')?;
    Some((name.trim().to_owned(), calls.parse().ok()?)).filter(|(name, _)| name != "total")
}

/// The functions with most instructions of their own, in callgrind's annotation:
/// `1,234 (12.3%)  file.rs:module::function [/path/program]`.
fn functions(annotated: &str) -> Vec<(String, u64)> {
    let function = |line: &str| {
        let (count, rest) = line.trim().split_once(' ')?;
        let (_, name) = rest.split_once(")  ")?;
        let name = name.split(" [").next().unwrap_or(name);
        let name = name.split_once(':').filter(|(file, _)| !file.is_empty()).map_or(name, |(_, name)| name);
        Some((name.to_owned(), count.replace(',', "").parse().ok()?))
    };
    let all = annotated.lines().filter(|line| !line.contains("PROGRAM TOTALS"));
    all.filter_map(function).take(FUNCTIONS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_strace_is_calls_by_name() {
        let table = "    calls syscall\n--------- ----------------\n       12 futex\n        3 write\n\
                     --------- ----------------\n       15 total\n";
        let calls: Vec<_> = table.lines().filter_map(call).collect();
        assert_eq!(calls, [("futex".to_owned(), 12), ("write".to_owned(), 3)]);
    }

    #[test]
    fn functions_stand_in_the_annotation_with_their_own_instructions() {
        let text = "10,000 (100.0%)  PROGRAM TOTALS\n\n Ir   file:function\n\n\
                    1,234 (12.3%)  /r/worker.rs:warmcore_runtime::worker::Worker::run [/t/shapes]\n\
                    \x20 900 ( 9.0%)  ???:malloc [/usr/lib/libc.so.6]\n";
        let expected =
            [("warmcore_runtime::worker::Worker::run".to_owned(), 1234), ("malloc".to_owned(), 900)];
        assert_eq!(functions(text), expected);
    }
}
