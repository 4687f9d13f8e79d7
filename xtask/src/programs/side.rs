//! The processes of a program on one scheduler, their clients, and what is measured of them.

use super::Program;
use super::adopted::Adopted;
use super::check::{self, Client};
use crate::process;
use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The variant on Warmcore's scheduler.
pub const ON: &str = "warmcore";
/// The variant on tokio's.
pub const OFF: &str = "WARMCORE=0";
/// The variants that record meanwhile.
pub const ON_RECORDED: &str = "warmcore, recorded";
pub const OFF_RECORDED: &str = "WARMCORE=0, recorded";

/// The longest time until a server accepts connections.
pub const START_MAX: Duration = Duration::from_mins(1);

/// What one slice measured.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    pub per_second: f64,
    pub p99_ns: f64,
    /// CPU time of the server per request, in ns.
    pub cpu_ns: f64,
    /// Polls on another worker than the task's previous one, in percent of all polls but first ones. 0 on tokio.
    pub moved: f64,
    /// The tasks on the server's tokio drivers in the middle of the slice, which never move. 0 on tokio.
    pub foreign: u64,
}

/// A variant of a program.
pub struct Side<'a> {
    program: &'a Program,
    pub variant: &'static str,
    adopted: &'a Adopted,
    /// `target/programs/run/NAME/VARIANT`
    folder: PathBuf,
    port: u16,
    processes: Vec<Child>,
    clients: Vec<Client>,
    stop: Arc<AtomicBool>,
    /// The rate of the last slice.
    rate: f64,
    /// Answers that the clients have checked.
    pub checked: u64,
    /// The memory of the processes after the first slice, and before their end.
    pub resident_kib: [u64; 2],
    faults: Vec<String>,
}

impl<'a> Side<'a> {
    pub fn new(
        program: &'a Program,
        variant: &'static str,
        adopted: &'a Adopted,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let folder = folder.join("run").join(program.name).join(variant);
        check::write_files(&folder.join("files"))?;
        Ok(Self {
            program,
            variant,
            adopted,
            folder,
            port: free_port()?,
            processes: Vec::new(),
            clients: Vec::new(),
            stop: Arc::new(AtomicBool::new(false)),
            rate: 10_000.0,
            checked: 0,
            resident_kib: [0; 2],
            faults: Vec::new(),
        })
    }

    /// Whether the tasks are on Warmcore's scheduler.
    pub fn is_on(&self) -> bool {
        [ON, ON_RECORDED].contains(&self.variant)
    }

    /// Starts the processes, and the clients when the last process accepts connections.
    pub fn start(&mut self) -> anyhow::Result<()> {
        let origin = check::origin()?;
        let files = self.folder.join("files").display().to_string();
        let port = self.port;
        let filled = |text: &str| {
            let text = text.replace("{port}", &port.to_string()).replace("{files}", &files);
            text.replace("{origin}", &origin.to_string())
        };
        for (i, (ready, words)) in self.program.servers.iter().enumerate() {
            let output = File::create(self.output(i))?;
            let mut command = Command::new(self.adopted.binaries.join(words[0]));
            command.args(words[1..].iter().map(|word| filled(word)));
            command.env("WARMCORE_TOP", "1").env_remove("WARMCORE");
            if !self.is_on() {
                command.env("WARMCORE", "0");
            }
            if [ON_RECORDED, OFF_RECORDED].contains(&self.variant) {
                let recording = self.folder.join(format!("{i}.warmrec"));
                let _ = std::fs::remove_file(&recording);
                command.env("WARMCORE_RECORD", recording);
            }
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
            let child = command.spawn().with_context(|| format!("can't run {}", words[0]))?;
            self.processes.push(child);
            self.wait_for(filled(ready).parse()?)?;
            let snapshot = self.snapshot(i);
            match (self.is_on(), snapshot.is_ok()) {
                (true, false) => {
                    bail!("{} is not on Warmcore's scheduler: {:#}", words[0], snapshot.unwrap_err())
                }
                (false, true) => bail!("{} is on Warmcore's scheduler in spite of WARMCORE=0", words[0]),
                _ => {}
            }
        }
        self.stop = Arc::new(AtomicBool::new(false));
        self.clients = check::start(self.program.check, self.port, &self.adopted.binaries, &self.stop);
        Ok(())
    }

    /// The file with what a process prints.
    fn output(&self, process: usize) -> PathBuf {
        self.folder.join(format!("output-{process}.txt"))
    }

    fn wait_for(&mut self, port: u16) -> anyhow::Result<()> {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            self.check_alive()?;
            ensure!(began.elapsed() < START_MAX, "no connection to port {port} after a minute");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn check_alive(&mut self) -> anyhow::Result<()> {
        for i in 0..self.processes.len() {
            if let Some(status) = self.processes[i].try_wait()? {
                let output = std::fs::read_to_string(self.output(i)).unwrap_or_default();
                bail!("{} ended, {status}: {output}", self.program.servers[i].1[0]);
            }
        }
        Ok(())
    }

    /// Sends requests for this time.
    pub fn slice(&mut self, time: Duration) -> anyhow::Result<Slice> {
        let before = (self.cpu(), self.counters()?, Instant::now());
        let (load, port, rate) = (self.program.load, self.port, self.rate);
        let (loaded, foreign) = std::thread::scope(|scope| {
            let run = scope.spawn(|| load.run(port, time, rate, &self.folder));
            std::thread::sleep(time / 2);
            let foreign = self.counters().map(|it| it.foreign);
            (run.join().expect("the load generator's thread panicked"), foreign)
        });
        let took = before.2.elapsed().as_secs_f64();
        let (cpu, after) = (self.cpu() - before.0, self.counters()?);
        self.check_alive()?;
        let loaded = loaded?;
        self.rate = loaded.per_second;
        if self.resident_kib[0] == 0 {
            self.resident_kib[0] = self.resident();
        }
        let (moved, polls) = (after.moved - before.1.moved, after.polls - before.1.polls);
        ensure!(!self.is_on() || polls > 0, "no task was polled by a worker of Warmcore");
        Ok(Slice {
            per_second: loaded.per_second,
            p99_ns: loaded.p99_ns,
            cpu_ns: cpu.as_nanos() as f64 / (loaded.per_second * took),
            moved: moved as f64 / polls.max(1) as f64 * 100.0,
            foreign: foreign?,
        })
    }

    /// Ends the clients and the processes, and looks for panics in what the processes have printed.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        self.stop.store(true, Relaxed);
        for client in std::mem::take(&mut self.clients) {
            match client.join().expect("a client's thread panicked") {
                Ok(checked) => self.checked += checked,
                Err(error) => self.faults.push(format!("{}: {error:#}", self.variant)),
            }
        }
        if self.processes.is_empty() {
            return Ok(());
        }
        self.check_alive()?;
        self.resident_kib[1] = self.resident();
        self.end();
        for i in 0..self.program.servers.len() {
            let output = std::fs::read_to_string(self.output(i)).unwrap_or_default();
            let panics = output.lines().filter(|line| line.contains("panicked at"));
            self.faults.extend(panics.map(|line| format!("{}: {line}", self.variant)));
        }
        Ok(())
    }

    fn end(&mut self) {
        for mut process in self.processes.drain(..) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// What went wrong, as the clients saw it or the processes printed it.
    pub fn faults(&self) -> &[String] {
        &self.faults
    }

    fn cpu(&self) -> Duration {
        self.processes.iter().map(|process| process::cpu_of_tree(process.id())).sum()
    }

    fn resident(&self) -> u64 {
        let of = |process: &Child| -> Option<u64> {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
            line.trim().strip_suffix(" kB")?.parse().ok()
        };
        self.processes.iter().filter_map(of).sum()
    }

    /// The counters of all processes; on tokio's scheduler they are 0.
    fn counters(&self) -> anyhow::Result<Counters> {
        let mut sum = Counters::default();
        for i in 0..self.processes.len() {
            if self.is_on() {
                sum.add(&self.snapshot(i)?);
            }
        }
        Ok(sum)
    }

    /// What `warmcore top --json` prints of a process.
    fn snapshot(&self, process: usize) -> anyhow::Result<Value> {
        let pid = self.processes[process].id().to_string();
        let output = Command::new(&self.adopted.warmcore).args(["top", "--json", &pid]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("`warmcore top --json` printed no JSON")
    }
}

impl Drop for Side<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.end();
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Counters {
    /// Polls but first ones.
    polls: u64,
    /// Polls on another worker than the one before.
    moved: u64,
    foreign: u64,
}

impl Counters {
    fn add(&mut self, snapshot: &Value) {
        for worker in snapshot["workers"].as_array().into_iter().flatten() {
            let number = |key: &str| worker[key].as_u64().unwrap_or(0);
            let moved = number("same_llc") + number("other_llc") + number("other_node");
            self.moved += moved;
            self.polls += moved + number("same_worker");
            self.foreign += number("foreign_tasks");
        }
    }
}

/// A port below those that the kernel gives to clients, so that no connection has it.
pub fn free_port() -> anyhow::Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    let mut ports = std::iter::repeat_with(|| NEXT.fetch_add(1, Relaxed)).take_while(|port| *port < 32_000);
    let port = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    port.context("no port is free")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_poll_is_one_on_another_worker() {
        let worker = |same: u64, llc: u64, node: u64| {
            serde_json::json!({ "same_worker": same, "same_llc": llc, "other_llc": 0, "other_node": node,
                "first_polls": 5, "polls": same + llc + node + 5, "foreign_tasks": 1 })
        };
        let mut counters = Counters::default();
        counters.add(&serde_json::json!({ "workers": [worker(90, 4, 1), worker(10, 0, 0)] }));
        assert_eq!(counters, Counters { polls: 105, moved: 5, foreign: 2 });
    }
}
