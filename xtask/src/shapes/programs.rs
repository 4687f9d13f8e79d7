//! The programs, how they are built and run, and what is read from their output.

use super::{OFF, OURS, SIDES, TOKIO};
use crate::build::Build;
use crate::process;
use crate::suites::host::{self, Package, Patch};
use crate::suites::{Suite, TOKIO as VERSION, face};
use crate::test::Live;
use anyhow::{Context, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long a slice of `peers/shapes` measures, in ms. It warms up for a fifth of that.
const WINDOW_MS: &str = "100";

/// How long a slice of deadpool's benches warms up and measures, in seconds, and its number of samples, criterion's least.
const CRITERION: [&str; 7] =
    ["--noplot", "--warm-up-time", "0.05", "--measurement-time", "0.25", "--sample-size", "10"];

/// The environment of h2's write contention: an eighth of its default streams, which then take a quarter of a second.
const WRITE_CONTENTION: [(&str, &str); 2] =
    [("H2_BENCH", "write-contention"), ("H2_WRITE_CONTENTION_STREAMS", "64")];

/// A package with programs.
struct Source {
    suite: Suite,
    /// Of this repository: its folder.
    folder: Option<&'static str>,
    /// What cargo builds, and the names of the programs.
    build: &'static [&'static str],
    programs: &'static [&'static str],
}

const SOURCES: [Source; 3] = [
    Source {
        suite: Suite { package: "shapes", version: "", features: "" },
        folder: Some("peers/shapes"),
        build: &["build", "--release"],
        programs: &["shapes"],
    },
    Source {
        suite: Suite { package: "h2", version: "=0.4.20", features: "" },
        folder: None,
        build: &["bench", "--no-run", "--bench", "main"],
        programs: &["main"],
    },
    Source {
        suite: Suite { package: "deadpool", version: "=0.13.1", features: "" },
        folder: None,
        // Its bench `unmanaged` spawns no task, so no scheduler is in it.
        build: &["bench", "--no-run", "--bench", "managed"],
        programs: &["managed"],
    },
];

/// A program, built on tokio and through the face.
struct Program {
    name: &'static str,
    on_tokio: PathBuf,
    on_face: PathBuf,
}

/// The programs of the sources that are measured.
pub struct Programs {
    programs: Vec<Program>,
    /// For files that programs write.
    folder: PathBuf,
}

/// What a process of each side does, and the values that are read from its output.
pub struct Slice {
    pub name: String,
    pub program: &'static str,
    args: Vec<String>,
    env: &'static [(&'static str, &'static str)],
    read: fn(&str) -> Vec<f64>,
    /// What is added to the name for the name of a value's case, its metric and its unit.
    pub values: &'static [(&'static str, &'static str, &'static str)],
}

impl Programs {
    /// Builds the programs of the packages that are needed, and always those of this repository.
    pub fn build(root: &Path, is_needed: &dyn Fn(&str) -> bool, live: &mut Live) -> anyhow::Result<Self> {
        let folder = root.join("target/shapes");
        let prepared = face::prepare(root, &folder.join("adopted"), VERSION, live)?;
        let mut programs = Vec::new();
        // The names of the shapes are known when their program is built.
        for source in
            SOURCES.iter().filter(|source| source.folder.is_some() || is_needed(source.suite.package))
        {
            let Suite { package, .. } = source.suite;
            let mut fetched = host::fetch(root, &folder.join("fetch"), &source.fetched(), VERSION)?;
            if let Some(own) = source.folder {
                fetched.package = Package::in_folder(&root.join(own));
            }
            let [on_tokio, on_face] = [TOKIO, "face"].map(|side| folder.join(package).join(side));
            host::write(root, &on_tokio, &source.suite, &fetched, None)?;
            let lock = on_tokio.join("Cargo.lock");
            host::write(
                root,
                &on_face,
                &source.suite,
                &fetched,
                Some(Patch { face: &prepared, lock: &lock }),
            )?;
            let mut build = |host: &Path, side: &str| {
                // Names of benches are unique, so both sides share what does not depend on tokio.
                let artifacts = if source.folder.is_some() { side } else { "benches" };
                let target = folder.join("build").join(artifacts);
                let build = Build { folder: host, args: source.build, target: Some(&target), logs: host };
                build.run(source.programs, &mut |krate| {
                    live.show(&format!("{package}, building for {side}"), krate, None);
                })
            };
            let (on_tokio, on_face) = (build(&on_tokio, TOKIO)?, build(&on_face, "face")?);
            let both = source.programs.iter().zip(on_tokio.into_iter().zip(on_face));
            programs.extend(both.map(|(name, (on_tokio, on_face))| Program { name, on_tokio, on_face }));
        }
        Ok(Self { programs, folder })
    }

    /// All slices of the programs.
    pub fn slices(&self) -> anyhow::Result<Vec<Slice>> {
        let slice = |name: String, program, args: &[&str], env, read, values| Slice {
            name,
            program,
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env,
            read,
            values,
        };
        let one: &[_] = &[("", "time", "ms")];
        let mut slices = Vec::new();
        for program in &self.programs {
            match program.name {
                "shapes" => {
                    let names = process::said(Command::new(&program.on_tokio).arg("list"))?;
                    let both: &[_] = &[("", "time", "ns"), ("", "cpu", "ns")];
                    slices.extend(names.lines().map(|case| {
                        slice(case.to_owned(), "shapes", &["time", case, WINDOW_MS], &[], numbers, both)
                    }));
                }
                "main" => {
                    let both: &[_] = &[(".current-thread", "time", "ms"), (".multi-thread", "time", "ms")];
                    let name = "h2.requests".to_owned();
                    slices.push(slice(name, "main", &[], &[("H2_BENCH", "requests")], overall, both));
                    let name = "h2.write-contention".to_owned();
                    slices.push(slice(name, "main", &[], &WRITE_CONTENTION, overall, one));
                }
                _ => {
                    for config in ["w8s2", "w16s8", "w32s32"] {
                        let name = format!("deadpool.managed.{config}");
                        let filter = format!("get/{config}$");
                        let args = [&["--bench", &filter][..], &CRITERION].concat();
                        slices.push(slice(name, "managed", &args, &[], criterion, one));
                    }
                }
            }
        }
        Ok(slices)
    }

    /// A command that runs the program of a slice on a side.
    pub fn command(&self, slice: &Slice, side: &str) -> anyhow::Result<Command> {
        let program = self.programs.iter().find(|program| program.name == slice.program);
        let program = program.context("a slice has a program")?;
        let mut command = Command::new(if side == TOKIO { &program.on_tokio } else { &program.on_face });
        for name in ["WARMCORE", "WARMCORE_FACE_COUNT", "TOKIO_WORKER_THREADS", "RUST_BACKTRACE"] {
            command.env_remove(name);
        }
        if side == OFF {
            command.env("WARMCORE", "0");
        }
        command.env("CRITERION_HOME", self.folder.join("criterion")).current_dir(&self.folder);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Runs a slice on a side and returns its values. With `count`, the face appends what it counted to that file.
    pub fn run(&self, slice: &Slice, side: &str, count: Option<&Path>) -> anyhow::Result<Vec<f64>> {
        let mut command = self.command(slice, side)?;
        command.args(&slice.args).envs(slice.env.iter().copied());
        if let Some(count) = count {
            command.env("WARMCORE_FACE_COUNT", count);
        }
        let said = process::said(&mut command)?;
        let values = (slice.read)(&said);
        let is_right = values.len() == slice.values.len() && values.iter().all(|value| *value > 0.0);
        ensure!(is_right, "{} on {side} printed something else than expected:\n{said}", slice.name);
        Ok(values)
    }

    /// Runs a slice once on each side. Returns an error unless the workers of the face polled tasks through the face, and
    /// none with `WARMCORE=0` and on tokio.
    pub fn check_face(&self, slice: &Slice) -> anyhow::Result<()> {
        let count = self.folder.join("count.txt");
        for side in SIDES {
            let _ = std::fs::remove_file(&count);
            self.run(slice, side, Some(&count))?;
            let text = std::fs::read_to_string(&count).unwrap_or_default();
            let polls: u64 =
                text.lines().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum();
            ensure!(
                (polls > 0) == (side == OURS) && text.is_empty() == (side == TOKIO),
                "{} on {side}: the face counted {text:?}",
                slice.name
            );
        }
        Ok(())
    }
}

impl Source {
    /// The suite by which the registry is asked: for a package of this repository tokio alone.
    fn fetched(&self) -> Suite {
        let package = if self.folder.is_some() { "tokio" } else { self.suite.package };
        Suite { package, ..self.suite }
    }
}

/// The first two numbers that `shapes time` prints.
fn numbers(said: &str) -> Vec<f64> {
    said.split_whitespace().take(2).filter_map(|word| word.parse().ok()).collect()
}

/// The milliseconds that h2's bench calls the overall time of each of its parts.
fn overall(said: &str) -> Vec<f64> {
    let times = said.lines().filter_map(|line| line.strip_prefix("Overall: ")?.strip_suffix("ms."));
    times.filter_map(|time| time.parse().ok()).collect()
}

/// The milliseconds that criterion estimates: the second of the three times after `time:`.
fn criterion(said: &str) -> Vec<f64> {
    let times = said.lines().filter_map(|line| line.split_once("time:")?.1.split_once('['));
    let estimate = |(_, text): (&str, &str)| {
        let mut words = text.split_whitespace().skip(2);
        let value: f64 = words.next()?.parse().ok()?;
        let ms = match words.next()? {
            "ns" => 1e-6,
            "µs" | "us" => 1e-3,
            "ms" => 1.0,
            "s" => 1e3,
            _ => return None,
        };
        Some(value * ms)
    };
    times.filter_map(estimate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_from_each_kind_of_output() {
        assert_eq!(numbers("764.49 302.39 136000\n"), [764.49, 302.39]);
        let h2 = "H2 running in current-thread runtime at 127.0.0.1:5928:\nOverall: 353ms.\nFastest: 91ms\n\
                  H2 running in multi-thread runtime at 127.0.0.1:5929:\nOverall: 541ms.\n";
        assert_eq!(overall(h2), [353.0, 541.0]);
        let deadpool = "managed/get/w8s2        time:   [810.34 µs 820.50 µs 1.2 ms]\n\
                        change: [-1 % +2 % 3 %]\nuse_pool                time:   [1.1 s 1.25 s 1.4 s]\n";
        assert_eq!(criterion(deadpool), [0.8205, 1250.0]);
    }
}
