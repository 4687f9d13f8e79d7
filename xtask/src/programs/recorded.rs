//! `cargo xtask programs --record`: records six adopted programs on tokio's scheduler and on Warmcore's.
//!
//! Four are servers of [`PROGRAMS`] under a part of the load that they have there; two run by themselves. Each runs
//! once per scheduler under `warmcore record`, and `warmcore report` draws its page. Nothing is compared with a run without
//! the recorder, as `cargo xtask programs --recorder` does.
//!
//! The recordings and pages are in `target/programs/recorded/NAME-SCHEDULER`; `recorded.md` has a line for each, with the
//! sentence that its page begins with.
//!
//! Between the two runs of a program `warmcore what-if` says what the first recording predicts for the second
//! (`NAME-tokio/predicted.json`, with the costs of a probe that is measured first), and `predicted.md` has that beside what was
//! recorded then, also where the command refused to answer.

use super::adopted::{self, Adopted};
use super::{PROGRAMS, Program, check, load, side};
use crate::test::Live;
use anyhow::{Context, ensure};
use serde_json::Value;
use std::fmt::Write;
use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use warmcore_results::{system, write_whole};

/// How long each program is recorded.
const TIME: Duration = Duration::from_secs(20);

/// The longest time from the signal to the end of the command.
const END_MAX: Duration = Duration::from_secs(30);

/// The values of `warmcore record --scheduler`.
const SCHEDULERS: [&str; 2] = ["tokio", "warmcore"];

/// The servers that are recorded, and the programs of `xtask/programs` that run by themselves for a number of seconds.
const SERVERS: [&str; 4] = ["mini-redis", "static-web-server", "axum-sqlx", "tonic"];
const BY_THEMSELVES: [&str; 2] = ["fan-out", "compute"];

/// A recorded run.
struct Run<'a> {
    name: &'a str,
    scheduler: &'static str,
    adopted: &'a Adopted,
    folder: PathBuf,
}

/// Records the chosen servers, and the programs that run by themselves if all are chosen. Requests come at this percentage of the rate at which
/// clients get answers that send each request after the answer before; at 100 those clients send them.
pub fn run(root: &Path, out: &Path, chosen: &[&'static Program], percent: u32) -> anyhow::Result<()> {
    let folder = root.join("target/programs");
    let mut live = Live::new();
    let mut predicted = Predicted::default();
    let mut lines = "| program | scheduler | rate | polls | MB | bytes per poll | polls in the file | |\n\
                     |---|---|---|---|---|---|---|---|\n"
        .to_owned();
    let servers: Vec<_> = chosen.iter().filter(|program| SERVERS.contains(&program.name)).collect();
    load::require(&servers.iter().map(|program| program.load.tool()).collect::<Vec<_>>())?;
    for program in servers {
        let adopted = adopted::prepare(root, &folder, program, &mut live)?;
        // Both get the same number of requests per second.
        let mut paced = None;
        for scheduler in SCHEDULERS {
            let run = Run::new(&folder, program.name, scheduler, &adopted)?;
            live.show(program.name, scheduler, Some(TIME));
            run.probe_once(&folder)?;
            let rate = run.server(program, percent, &mut paced)?;
            lines.push_str(&run.line(&format!("{:.1} k requests/s", rate / 1e3))?);
            predicted.add(&run, rate)?;
        }
    }
    if chosen.len() == PROGRAMS.len() {
        let own =
            PROGRAMS.iter().find(|program| program.version.is_empty()).context("a package of our own")?;
        let adopted = adopted::prepare(root, &folder, own, &mut live)?;
        for (name, scheduler) in BY_THEMSELVES.iter().flat_map(|name| SCHEDULERS.map(|it| (name, it))) {
            let run = Run::new(&folder, name, scheduler, &adopted)?;
            live.show(name, scheduler, Some(TIME));
            let said = run.by_itself()?;
            lines.push_str(&run.line(&said)?);
            let rate = said.split(' ').next().and_then(|word| word.parse().ok());
            predicted.add(&run, rate.with_context(|| format!("{name} printed {said:?}"))?)?;
        }
    }
    let text = format!("Recorded {}, for {} s each.\n\n{lines}", system::utc_now(), TIME.as_secs());
    write_whole(&out.join("recorded.md"), text.as_bytes())?;
    live.line(&text);
    let text = predicted.table();
    write_whole(&out.join("predicted.md"), text.as_bytes())?;
    live.line(&text);
    Ok(())
}

impl<'a> Run<'a> {
    fn new(
        folder: &Path,
        name: &'a str,
        scheduler: &'static str,
        adopted: &'a Adopted,
    ) -> anyhow::Result<Self> {
        let folder = folder.join("recorded").join(format!("{name}-{scheduler}"));
        let _ = std::fs::remove_dir_all(&folder);
        check::write_files(&folder.join("files"))?;
        Ok(Self { name, scheduler, adopted, folder })
    }

    fn recording(&self) -> PathBuf {
        self.folder.join(format!("{}.warmrec", self.name))
    }

    /// Starts `warmcore record` with the program.
    fn start(&self, program: &str, args: &[String]) -> anyhow::Result<Child> {
        let output = |name: &str| File::create(self.folder.join(name));
        let mut command = Command::new(&self.adopted.warmcore);
        command.args(["record", "--scheduler", self.scheduler, "--output"]).arg(self.recording());
        command.arg("--json").arg(self.folder.join("summary.json")).arg("--");
        command.arg(self.adopted.binaries.join(program)).args(args);
        command.stdin(Stdio::null()).stdout(output("out.txt")?).stderr(output("err.txt")?);
        command.spawn().context("can't run `warmcore record`")
    }

    /// Records a server under its load. Returns requests per second. `paced`: how many are sent, which the first run decides.
    fn server(&self, program: &Program, percent: u32, paced: &mut Option<f64>) -> anyhow::Result<f64> {
        let [(_, words)] = program.servers else { anyhow::bail!("{} has several processes", self.name) };
        let port = side::free_port()?;
        let files = self.folder.join("files").display().to_string();
        let filled = |word: &&str| word.replace("{port}", &port.to_string()).replace("{files}", &files);
        let mut child = self.start(words[0], &words[1..].iter().map(filled).collect::<Vec<_>>())?;
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(child.try_wait()?.is_none(), "{} ended: {}", self.name, self.said());
            ensure!(began.elapsed() < side::START_MAX, "no connection to port {port} after a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
        // Fills caches, and tells `Load::Redis` how many requests take the time.
        let loaded =
            program.load.run(port, Duration::from_secs(1), 10_000.0, &self.folder).and_then(|first| {
                match percent {
                    100 => program.load.run(port, TIME, first.per_second, &self.folder),
                    _ => {
                        let per_second = *paced.get_or_insert(first.per_second * f64::from(percent) / 100.0);
                        program.load.run_paced(port, TIME, per_second, &self.folder)
                    }
                }
            });
        let ended = self.end(&mut child);
        let loaded = loaded?;
        ended?;
        Ok(loaded.per_second)
    }

    /// Sends SIGINT, which servers take as the order to shut down, and then SIGTERM.
    fn end(&self, child: &mut Child) -> anyhow::Result<()> {
        let began = Instant::now();
        for signal in ["-INT", "-TERM"] {
            Command::new("kill").arg(signal).arg(child.id().to_string()).status()?;
            while began.elapsed() < if signal == "-INT" { END_MAX / 2 } else { END_MAX } {
                if child.try_wait()?.is_some() {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let _ = child.kill();
        anyhow::bail!("{} did not end after SIGINT and SIGTERM", self.name)
    }

    /// Records a program that runs by itself. Returns what it prints.
    fn by_itself(&self) -> anyhow::Result<String> {
        let mut child = self.start(self.name, &[TIME.as_secs().to_string()])?;
        ensure!(child.wait()?.success(), "{}: {}", self.name, self.said());
        Ok(std::fs::read_to_string(self.folder.join("out.txt"))?.trim().to_owned())
    }

    /// What `warmcore record` and the program have printed on standard error.
    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.join("err.txt")).unwrap_or_default()
    }

    /// Draws the page, and returns the line of the table.
    fn line(&self, rate: &str) -> anyhow::Result<String> {
        let json = std::fs::read(self.folder.join("summary.json"));
        let json: Value = serde_json::from_slice(&json.with_context(|| self.said())?)?;
        let recording = &json["record"]["recordings"][0];
        let number = |name: &str| recording[name].as_u64().unwrap_or(0);
        let (polls, bytes) = (number("polls"), number("bytes"));
        ensure!(polls > 0, "{} on {}: no poll was recorded: {}", self.name, self.scheduler, self.said());
        let output = Command::new(&self.adopted.warmcore)
            .arg("report")
            .arg(self.recording())
            .arg("--output")
            .arg(self.folder.join("page.html"))
            .arg("--json")
            .arg(self.folder.join("analysis.json"))
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "`warmcore report`: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let sentence = said.lines().next().unwrap_or_default();
        let mut line = String::new();
        let all = polls + number("dropped") + number("skipped");
        writeln!(
            line,
            "| {} | {} | {rate} | {polls} | {:.1} | {:.1} | {:.1} % | {} |",
            self.name,
            self.scheduler,
            bytes as f64 / 1e6,
            bytes as f64 / polls as f64,
            polls as f64 / all as f64 * 100.0,
            sentence.trim(),
        )?;
        Ok(line)
    }
}

/// What was recorded of a run: CPU time per request in ns, and the 99th percentile of the delays from wake to poll in ns.
#[derive(Clone, Copy)]
struct Recorded {
    cpu: f64,
    p99: f64,
}

/// Predictions beside what was recorded afterwards.
#[derive(Default)]
struct Predicted {
    before: Option<Recorded>,
    lines: String,
    /// The sums of the absolute differences, in percent: of the predictions, and of predicting no change.
    errors: [(f64, f64); 2],
}

impl Predicted {
    /// After a recording on tokio's scheduler makes the prediction, and after the one on Warmcore's compares.
    fn add(&mut self, run: &Run, rate: f64) -> anyhow::Result<()> {
        let json: Value = serde_json::from_slice(&std::fs::read(run.folder.join("analysis.json"))?)?;
        let number = |at: &str| json.pointer(at).and_then(Value::as_f64);
        let cpu_ns = number("/recording/coverage/cpu_ns").context("the kernel told no CPU time")?;
        let seconds = number("/recording/program/length_ns").context("no length")? / 1e9;
        let p99 = number("/recording/delays/all/p99_ns").context("no delays")?;
        let recorded = Recorded { cpu: cpu_ns / (rate * seconds), p99 };
        let Some(before) = self.before.take() else {
            self.before = Some(recorded);
            return run.predict();
        };
        let tokio = run.folder.with_file_name(format!("{}-tokio", run.name));
        let json: Value = serde_json::from_slice(&std::fs::read(tokio.join("predicted.json"))?)?;
        let answer = &json["answer"];
        let is_judged = answer["refusals"].as_array().is_some_and(Vec::is_empty);
        let mut line = format!("| {} | {} |", run.name, if is_judged { "yes" } else { "no" });
        let measured = [recorded.cpu / before.cpu, recorded.p99 / before.p99];
        for ((name, measured), errors) in ["cpu", "p99"].into_iter().zip(measured).zip(&mut self.errors) {
            let ratio = answer[name]["ratio"].as_f64().context("no prediction")?;
            let end = |at: usize| answer[name]["interval"][at].as_f64();
            let interval =
                end(0).zip(end(1)).map_or(String::new(), |(low, high)| format!(" ({low:.3} to {high:.3})"));
            write!(line, " {ratio:.3}{interval} | {measured:.3} |")?;
            *errors =
                (errors.0 + (ratio - measured).abs() * 100.0, errors.1 + (1.0 - measured).abs() * 100.0);
        }
        writeln!(self.lines, "{line}")?;
        Ok(())
    }

    fn table(&self) -> String {
        let [cpu, p99] =
            self.errors.map(|(ours, none)| format!("{ours:.0}, and {none:.0} for \"no change\""));
        format!(
            "Predicted on tokio's scheduler for Warmcore's, and recorded there afterwards, {}. Sums of the absolute errors in \
             percent: CPU {cpu}; p99 {p99}.\n\n\
             | program | judged | CPU time of a poll, predicted | CPU time of a request, recorded | p99 from wake to poll, predicted | recorded |\n\
             |---|---|---|---|---|---|\n{}",
            system::utc_now(),
            self.lines
        )
    }
}

impl Run<'_> {
    /// Measures the costs of calls on this machine, once for all programs.
    fn probe_once(&self, folder: &Path) -> anyhow::Result<()> {
        let probe = folder.join("recorded/probe.json");
        if !probe.exists() {
            let mut command = Command::new(&self.adopted.warmcore);
            let status =
                command.args(["predict", "probe", "--json"]).arg(&probe).stdout(Stdio::null()).status()?;
            ensure!(status.success(), "`warmcore predict probe` failed");
        }
        Ok(())
    }

    /// Writes what this recording predicts, whether or not it is judged.
    fn predict(&self) -> anyhow::Result<()> {
        let (json, probe) = (self.folder.join("predicted.json"), self.folder.with_file_name("probe.json"));
        let mut command = Command::new(&self.adopted.warmcore);
        command.arg("what-if").arg(self.recording()).arg("--probe").arg(probe).arg("--json").arg(&json);
        let output = command.output()?;
        std::fs::write(self.folder.join("predicted.txt"), [output.stdout, output.stderr].concat())?;
        ensure!(json.exists(), "`warmcore what-if` failed; see {}/predicted.txt", self.folder.display());
        Ok(())
    }
}
