//! `cargo xtask instructions`: counts the instructions of a poll with its wake under callgrind, on this runtime and on
//! tokio.
//!
//! Each case of the runtime's bench `poll` runs twice per runtime under callgrind, with few polls and with many, on one
//! worker. This runtime's clock then counts polls instead of time (`counted-clock`). The difference of the two counts,
//! divided by the difference in polls, does not depend on start and end of the program, nor on the load of the machine.
//! It repeats to 0.1 %, which each run checks by measuring one case again.
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

use crate::process::{cargo, said};
use anyhow::{Context, bail};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[cfg(test)]
mod tests;

/// The polls of the short and of the long run of a case. The short run is long enough for the runtime to measure the
/// cost of its polls. A thousand instructions more or less at the start change the result by 1000 ÷ 60 000 = 0.02
/// instructions a poll.
const POLLS: [u64; 2] = [20_000, 80_000];

/// The case that is measured a second time. If it is not among the counted cases, the first of these by name is
/// measured again instead.
const AGAIN: &str = "8 pairs, channels";

/// The largest relative difference that the two measurements of one case may have.
const REPEATS_TO: f64 = 0.001;

/// The largest part of the executed instructions that may be missing in the disassembly. The vDSO is missing, for
/// example.
const UNKNOWN_MAX: f64 = 0.001;

/// Checks that this is Linux on x86-64 and that Valgrind and objdump are installed. If one of these is not, the error
/// names the package to install.
pub fn is_possible() -> anyhow::Result<()> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        bail!("locked instructions are known of x86-64 Linux only");
    }
    for (program, package) in [("valgrind", "valgrind"), ("objdump", "binutils")] {
        let version = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        match version {
            Ok(status) if status.success() => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("{program} is not installed: `apt-get install {package}` or `dnf install {package}`")
            }
            other => bail!("`{program} --version` failed: {other:?}"),
        }
    }
    Ok(())
}

/// Counts the cases whose names contain `filter`, prints a table, and counts one case again. Returns an error if no
/// name contains `filter`, if a case can't be counted here, or if the second count differs by more than `REPEATS_TO`.
pub fn run(root: &Path, filter: &str) -> anyhow::Result<()> {
    is_possible()?;
    let folder = root.join("target/xtask");
    std::fs::create_dir_all(&folder)?;
    let mut bench = Bench { program: build(root)?, callgrind: Callgrind::new(folder.join("callgrind.out")) };
    let names = bench.output(&["cases"])?;
    let names: Vec<&str> = names.lines().filter(|name| name.contains(filter)).collect();
    if names.is_empty() {
        bail!("no case is called {filter:?}");
    }
    println!("{:<40}{:>21}{:>18}", "", "instructions", "locked");
    println!(
        "{:<40}{:>7}{:>8}{:>8}{:>8}{:>8}",
        "a poll with its wake", "ours", "tokio's", "ratio", "ours", "tokio's"
    );
    let mut counted = BTreeMap::new();
    for name in names {
        let (ours, tokio) = (bench.per_poll("ours", name)?, bench.per_poll("tokio", name)?);
        let backend =
            if ours.uses == "nothing" { String::new() } else { format!(" ({} backend)", ours.uses) };
        println!(
            "{:<40}{:>7.1}{:>8.1}{:>7.2}×{:>8.2}{:>8.2}",
            format!("{name}{backend}"),
            ours.all,
            tokio.all,
            ours.all / tokio.all,
            ours.locked,
            tokio.locked
        );
        counted.insert(name, [ours, tokio]);
    }
    let (again, before) = match counted.get_key_value(AGAIN) {
        Some((name, before)) => (*name, before),
        None => {
            counted.first_key_value().map(|(name, before)| (*name, before)).context("a case was counted")?
        }
    };
    for (runtime, before) in ["ours", "tokio"].into_iter().zip(before) {
        let after = bench.per_poll(runtime, again)?;
        let differs = (after.all - before.all).abs() / before.all;
        println!(
            "{again}, {runtime}, again: {:.1} and {:.1}, {:.3} % apart",
            before.all,
            after.all,
            100.0 * differs
        );
        if differs > REPEATS_TO {
            bail!("the count does not repeat to {} %", 100.0 * REPEATS_TO);
        }
    }
    Ok(())
}

/// Builds the bench and returns its path.
///
/// The scheduler core, the runtime, its driver and the recorder are built with one codegen unit each. With several, moving a line between two
/// files changes which functions are inlined, and the count of a poll by 20 instructions.
fn build(root: &Path) -> anyhow::Result<PathBuf> {
    let mut cargo = cargo(root, &["bench", "--package", "warmcore-runtime", "--bench", "poll"]);
    cargo.args(["--features", "counted-clock"]);
    for package in ["sched", "runtime", "driver", "record"] {
        let codegen_units = format!("profile.bench.package.warmcore-{package}.codegen-units=1");
        cargo.args(["--config", &codegen_units]);
    }
    cargo.args(["--no-run", "--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let messages = said(&mut cargo)?;
    let bench = messages.lines().filter(|line| line.contains("\"kind\":[\"bench\"]"));
    let program =
        bench.filter_map(|line| line.split_once("\"executable\":\"")?.1.split('"').next()).next_back();
    Ok(program.context("cargo names no executable of the bench")?.into())
}

/// The bench.
struct Bench {
    program: PathBuf,
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
    fn output(&self, args: &[&str]) -> anyhow::Result<String> {
        said(Command::new(&self.program).args(args))
    }

    /// Counts the instructions of a poll, from the difference of the short and the long run.
    fn per_poll(&mut self, runtime: &str, name: &str) -> anyhow::Result<PerPoll> {
        let [few, many] = POLLS.map(|polls| self.count(runtime, name, polls));
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
    fn count(&mut self, runtime: &str, name: &str, polls: u64) -> anyhow::Result<(u64, Counts, String)> {
        let args = ["count", runtime, name, &polls.to_string()];
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
