//! `cargo xtask instructions`: counts the instructions of a poll with its wake under callgrind, on this runtime and on
//! tokio.
//!
//! Each case of the runtime's bench `poll` runs twice per runtime under callgrind, with few polls and with many, on one
//! worker. This runtime's clock then counts polls instead of time (`counted-clock`). The difference of the two counts,
//! divided by the difference in polls, does not depend on start and end of the program, nor on the load of the machine.
//! It repeats to 0.1 %, which each run checks by measuring one case again. A case whose ratio to tokio's count is more
//! than 2 % above the recorded one ([`crate::gates`]) fails the command.
//!
//! # Locked instructions
//!
//! Callgrind counts how often each instruction ran (`--dump-instr=yes`), and objdump disassembles the object files.
//! Locked instructions are those with the prefix `lock`, and `xchg` with memory, which locks without the prefix. An
//! instruction that is missing in the disassembly counts as not locked, so almost none may be missing
//! ([`UNKNOWN_MAX`]).
//!
//! # Not counted
//!
//! Instructions of the kernel are not counted. Restartable sequences do not run, since Valgrind does not implement the
//! system call: counters run on their atomic backend, and the rows that use counters name it. The recorder, in the row
//! `recorded`, asks the libc for the CPU three times a poll, which takes 37 instructions each instead of 6; and the row has
//! the instructions of the thread that writes, about 110 a poll.

use crate::gates::{Counted, Gate};
use crate::process::{counted_bench, needs_program, said};
use anyhow::{Context, bail};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(test)]
mod tests;

/// The polls of the short and of the long run of a case. The short run is long enough for the runtime to measure the
/// cost of its polls. A thousand instructions more or less at the start change the result by 1000 ÷ 30 000 = 0.03
/// instructions a poll. 20 000 and 80 000 polls take half as long again, and change a count by 0.5 % at most.
const POLLS: [u64; 2] = [10_000, 40_000];

/// The case that is measured a second time. If it is not among the counted cases, the first of these by name is
/// measured again instead.
const AGAIN: &str = "8 pairs, channels";

/// The largest relative difference that the two measurements of one case may have.
const REPEATS_TO: f64 = 0.001;

/// The part of a recorded ratio by which a ratio may be larger.
const TOLERANCE: f64 = 0.02;

/// The largest part of the executed instructions that may be missing in the disassembly. The vDSO is missing, for
/// example.
const UNKNOWN_MAX: f64 = 0.001;

/// Checks that this is Linux on x86-64 and that Valgrind and objdump are installed. If one of these is not, the error
/// names the package to install.
pub fn is_possible() -> anyhow::Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("locked instructions are known of x86-64 Linux only");
    }
    needs_program("valgrind", "valgrind")?;
    needs_program("objdump", "binutils")
}

/// Counts the cases whose names contain `filter`, prints a table, and counts one case again. Then records the cases, or
/// compares them with the records. Returns an error if no name contains `filter`, if a case can't be counted here or is
/// worse than recorded, or if the second count differs by more than `REPEATS_TO`.
pub fn run(root: &Path, filter: &str, is_recording: bool) -> anyhow::Result<()> {
    is_possible()?;
    let mut gate = Gate::read(root, "instructions", TOLERANCE, is_recording)?;
    let folder = root.join("target/xtask");
    std::fs::create_dir_all(&folder)?;
    let program = build(root)?;
    let names = said(Command::new(&program).arg("cases"))?;
    let names: Vec<&str> = names.lines().filter(|name| name.contains(filter)).collect();
    let mut sides = ["ours", "tokio"].map(|runtime| {
        let callgrind = Callgrind::new(folder.join(format!("callgrind.{runtime}.out")));
        Bench { program: program.clone(), runtime, callgrind }
    });
    println!("{:<40}{:>22}{:>19}", "", "instructions", "locked");
    println!(
        "{:<40}{:>7}{:>8}{:>9}{:>8}{:>8}  recorded",
        "a poll with its wake", "ours", "tokio's", "ratio", "ours", "tokio's"
    );
    let mut counted = BTreeMap::new();
    for name in names {
        let [ours, tokio] = per_poll(&mut sides, name)?;
        let backend =
            if ours.uses == "nothing" { String::new() } else { format!(" ({} backend)", ours.uses) };
        let ratio = ours.all / tokio.all;
        let cell = gate.add(name, Counted::new(ratio, Some(ours.locked - tokio.locked)));
        println!(
            "{:<40}{:>7.1}{:>8.1}{ratio:>8.3}×{:>8.2}{:>8.2}  {cell}",
            format!("{name}{backend}"),
            ours.all,
            tokio.all,
            ours.locked,
            tokio.locked
        );
        counted.insert(name, [ours, tokio]);
    }
    let first_or_again = counted.get_key_value(AGAIN).or_else(|| counted.first_key_value());
    let (again, before) = first_or_again.with_context(|| format!("no case is called {filter:?}"))?;
    let after = per_poll(&mut sides, again)?;
    for ((side, before), after) in sides.iter().zip(before).zip(&after) {
        let differs = (after.all - before.all).abs() / before.all;
        println!(
            "{again}, {}, again: {:.1} and {:.1}, {:.3} % apart",
            side.runtime,
            before.all,
            after.all,
            100.0 * differs
        );
        if differs > REPEATS_TO {
            bail!("the count does not repeat to {} %", 100.0 * REPEATS_TO);
        }
    }
    gate.end(filter.is_empty())
}

/// Builds the bench and returns its path.
///
/// The scheduler core, the runtime, its driver and the recorder are built with one codegen unit each. With several,
/// moving a line between two files changes which functions are inlined, and the count of a poll by 20 instructions.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let configs = ["sched", "runtime", "driver", "record"].map(|package| {
        ["--config".to_owned(), format!("profile.bench.package.warmcore-{package}.codegen-units=1")]
    });
    counted_bench(root, "poll", &configs.iter().flatten().map(String::as_str).collect::<Vec<_>>())
}

/// Counts the instructions of a poll on each side, at the same time: the program pins each side to a CPU of its own.
fn per_poll(sides: &mut [Bench; 2], name: &str) -> anyhow::Result<[PerPoll; 2]> {
    let [ours, tokio] = std::thread::scope(|scope| {
        let counts = sides.each_mut().map(|side| scope.spawn(|| side.per_poll(name)));
        counts.map(|thread| thread.join().expect("counting does not panic"))
    });
    Ok([ours?, tokio?])
}

/// The bench on a runtime.
struct Bench {
    program: PathBuf,
    runtime: &'static str,
    callgrind: Callgrind,
}

/// The instructions of one poll.
struct PerPoll {
    all: f64,
    locked: f64,
    /// The backend of the counters that the case uses, or `nothing`.
    uses: String,
}

impl Bench {
    /// Counts the instructions of a poll, from the difference of the short and the long run.
    fn per_poll(&mut self, name: &str) -> anyhow::Result<PerPoll> {
        let [few, many] = POLLS.map(|polls| self.count(name, polls));
        let ((few_polls, few, _), (many_polls, many, uses)) = (few?, many?);
        if many_polls <= few_polls {
            bail!("{name}: {many_polls} polls are not more than {few_polls}");
        }
        let polls = (many_polls - few_polls) as f64;
        let per_poll = |few: u64, many: u64| (many as f64 - few as f64) / polls;
        Ok(PerPoll { all: per_poll(few.all, many.all), locked: per_poll(few.locked, many.locked), uses })
    }

    /// Runs a case once under callgrind. Returns the number of polls, the counts, and the backend of the case's
    /// counters or `nothing`.
    fn count(&mut self, name: &str, polls: u64) -> anyhow::Result<(u64, Counts, String)> {
        let args = ["count", self.runtime, name, &polls.to_string()];
        let (said, counts) = self.callgrind.count(&self.program, &args)?;
        let word = |key: &str| said.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        let polls =
            word("polls ").and_then(|n| n.parse().ok()).context("the bench says no number of polls")?;
        let uses = word("uses ").context("the bench says no backend")?.to_owned();
        if counts.unknown as f64 > UNKNOWN_MAX * counts.all as f64 {
            bail!("{name}: {} of {} instructions ran where objdump finds none", counts.unknown, counts.all);
        }
        Ok((polls, counts, uses))
    }
}

/// Counts what programs do under callgrind, with the disassembled object files whose code they ran.
pub struct Callgrind {
    /// Where callgrind writes.
    out: PathBuf,
    objects: HashMap<String, Code>,
}

impl Callgrind {
    /// Callgrind writes its profile to `out`, which stays there after each count.
    pub fn new(out: PathBuf) -> Self {
        Self { out, objects: HashMap::new() }
    }

    /// Runs a program once. Returns its standard output and the counts.
    pub fn count(&mut self, program: &Path, args: &[&str]) -> anyhow::Result<(String, Counts)> {
        let mut callgrind = Command::new("valgrind");
        callgrind.args(["--quiet", "--tool=callgrind", "--dump-instr=yes", "--dump-line=no"]);
        callgrind.arg(format!("--callgrind-out-file={}", self.out.display())).arg(program);
        let said = said(callgrind.args(args))?;
        let profile = std::fs::read_to_string(&self.out).context("callgrind wrote nothing")?;
        let ran = executed(&profile).context("callgrind's file is not as expected")?;
        let mut counts = Counts::default();
        for (object, times_at) in &ran {
            if !self.objects.contains_key(object) {
                self.objects.insert(object.clone(), Code::of_object(object)?);
            }
            let code = &self.objects[object];
            for (at, times) in times_at {
                counts.all += times;
                counts.locked += if code.locked.contains(at) { times } else { &0 };
                counts.unknown += if code.all.contains(at) { &0 } else { times };
            }
        }
        Ok((said, counts))
    }
}

/// Instructions that a program ran.
#[derive(Debug, Default, Clone, Copy)]
pub struct Counts {
    pub all: u64,
    pub locked: u64,
    /// Those at addresses where objdump finds no instruction.
    pub unknown: u64,
}

/// Reads how often the instruction at each address ran, by object file, from a profile with `positions: instr`.
///
/// A line of a cost is an address and a count. The addresses `+4` and `-4` are relative to the address of the line
/// before, `*` repeats it. The line after `calls=` has the cost of the whole call: its address is the base of the next
/// line's, and its count is ignored.
fn executed(profile: &str) -> Option<HashMap<String, HashMap<u64, u64>>> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut ran: HashMap<String, HashMap<u64, u64>> = HashMap::new();
    let (mut object, mut at, mut is_call) = (None, 0_u64, false);
    for line in profile.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            // `(3) /usr/lib/libc.so.6` the first time, `(3)` after that.
            let (id, name) = name.split_once(' ').unwrap_or((name, ""));
            let name = if name.is_empty() { *names.get(id)? } else { name };
            names.insert(id, name);
            object = Some(name);
        } else if let Some(name) = line.strip_prefix("cob=") {
            let (id, name) = name.split_once(' ').unwrap_or((name, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(['0', '+', '-', '*']) {
            let (position, count) = line.split_once(' ')?;
            at = match position.as_bytes()[0] {
                b'+' => at.wrapping_add(position[1..].parse().ok()?),
                b'-' => at.wrapping_sub(position[1..].parse().ok()?),
                b'*' => at,
                _ => u64::from_str_radix(position.strip_prefix("0x")?, 16).ok()?,
            };
            if !std::mem::take(&mut is_call) {
                *ran.entry(object?.to_owned()).or_default().entry(at).or_default() +=
                    count.parse::<u64>().ok()?;
            }
        }
    }
    Some(ran)
}

/// The addresses of an object file's instructions, and which of the instructions lock.
#[derive(Default)]
struct Code {
    all: HashSet<u64>,
    locked: HashSet<u64>,
}

impl Code {
    fn of_object(path: &str) -> anyhow::Result<Self> {
        // The vDSO, and code that a program generates, have no file.
        if !Path::new(path).is_file() {
            return Ok(Self::default());
        }
        let text =
            said(Command::new("objdump").args(["--disassemble", "--no-show-raw-insn", "--wide", path]))?;
        Ok(Self::of_disassembly(&text))
    }

    fn of_disassembly(text: &str) -> Self {
        let mut code = Self::default();
        for line in text.lines() {
            // `  27284:\tlock xadd %eax,0x10(%rbx)`
            let Some((at, instruction)) = line.split_once(":\t") else { continue };
            let Ok(at) = u64::from_str_radix(at.trim(), 16) else { continue };
            code.all.insert(at);
            if locks(instruction) {
                code.locked.insert(at);
            }
        }
        code
    }
}

/// Whether an instruction, in AT&T's syntax, is a locked one: it has the prefix `lock`, or is an `xchg` with memory.
fn locks(instruction: &str) -> bool {
    let mut words = instruction.split_whitespace();
    let is_prefix =
        |word: &str| word.starts_with("rex") || matches!(word, "xacquire" | "xrelease" | "notrack");
    match words.find(|word| !is_prefix(word)) {
        Some("lock") => true,
        Some("xchg" | "xchgb" | "xchgw" | "xchgl" | "xchgq") => {
            words.next().is_some_and(|to| to.contains('('))
        }
        _ => false,
    }
}
