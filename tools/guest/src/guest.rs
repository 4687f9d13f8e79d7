//! A guest: boots a kernel with a plan, and reads its console.

use crate::archive::Archive;
use crate::cache::Cache;
use crate::kernel::{Kernel, sha256};
use crate::needs::{BOOT, missing};
use crate::rivals::version;
use crate::scheduler::Scheduler;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use warmcore_guest_init::plan::{MARK, PLAN};
use warmcore_guest_init::{GuestPlan, Line, Run, Work};
use warmcore_sys::affinity;

/// The machine that is emulated. Each socket is one last-level cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its CPUs.
    pub cpus: u32,
    /// Its last-level caches.
    pub llcs: u32,
    /// Hardware threads of a core.
    pub threads: u32,
    /// Memory, in MiB.
    pub memory: u32,
}

/// A guest that has not been booted.
#[derive(Debug, Clone)]
pub struct Guest {
    /// What boots.
    pub kernel: Kernel,
    /// On what.
    pub machine: Machine,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// Of the workloads' durations, and of the emulator's random numbers.
    pub seed: u64,
    /// The workloads.
    pub runs: Vec<Run>,
    /// Whether the probe counts.
    pub is_probed: bool,
}

/// A guest that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Ended {
    /// What it said.
    pub lines: Vec<Line>,
    /// All of its console.
    pub console: Vec<u8>,
}

/// Each virtual CPU's turn, in µs.
const TURN_US: u32 = 10;

/// The kernel's command line. The clock is the time stamp counter at 1 GHz: each instruction takes 1 ns, and a read of another clock would
/// take 20 µs. Without the other options the boot takes twice as long.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr clocksource=tsc tsc=reliable \
                            tsc_early_khz=1000000 no_timer_check lpj=4000000 cpu_init_udelay=0 \
                            cryptomgr.notests=1 initcall_blacklist=raid6_select_algo";

/// The machine file of a guest with 8 CPUs in 2 last-level caches.
const MACHINE_FILE: &str = include_str!("../machine.toml");

impl Machine {
    /// This machine's section in [`file`](Self::file).
    pub const SECTION: &'static str = "this";

    /// A machine file for the simulator, whose section [`SECTION`](Self::SECTION) is this machine.
    ///
    /// # Errors
    /// As of a guest with this machine.
    pub fn file(&self) -> anyhow::Result<String> {
        self.check()?;
        let Self { cpus, llcs, threads, .. } = *self;
        let (section, cores) = (Self::SECTION, cpus / (llcs * threads));
        Ok(format!(
            "{MACHINE_FILE}\n[{section}]\ninherits = \"guest\"\nl3_per_socket = {llcs}\ncores_per_l3 = {cores}\nsmt = {threads}\ncpus = {cpus}\n"
        ))
    }

    /// # Errors
    /// The last-level caches can't have equally many cores.
    fn check(&self) -> anyhow::Result<()> {
        let Self { cpus, llcs, threads, memory } = *self;
        let is_even = llcs > 0 && threads > 0 && cpus > 0 && cpus % (llcs * threads) == 0;
        ensure!(
            is_even,
            "{cpus} CPUs can't be {llcs} last-level caches of equally many cores with {threads} threads each"
        );
        ensure!(cpus <= 255, "{cpus} CPUs: the emulated machine has 255 at most");
        ensure!(memory >= 256, "{memory} MiB of memory: the guest needs 256");
        Ok(())
    }
}

impl Guest {
    /// Boots it and waits until it has done its plan. `lane` chooses one of this process's CPUs for the emulator: guests that run at a time
    /// have lanes of their own. `is_interrupted` is asked a few times a second, and `said` gets each line.
    ///
    /// # Errors
    /// A program is missing; the emulator failed; the guest could not do its plan, or ended before. `Ok(None)` after an interruption.
    pub fn run(
        &self,
        cache: &Cache,
        lane: usize,
        is_interrupted: &dyn Fn() -> bool,
        said: &mut dyn FnMut(&Line),
    ) -> anyhow::Result<Option<Ended>> {
        let ended = self.boot(cache, lane, is_interrupted, said)?;
        match ended.as_ref().and_then(|ended| ended.lines.last()) {
            Some(Line::Failed { why }) => bail!("the guest could not do its plan: {why}"),
            _ => Ok(ended),
        }
    }

    /// As [`run`](Self::run), also if it could not do its plan: then its last line says so.
    pub(crate) fn boot(
        &self,
        cache: &Cache,
        lane: usize,
        is_interrupted: &dyn Fn() -> bool,
        said: &mut dyn FnMut(&Line),
    ) -> anyhow::Result<Option<Ended>> {
        self.machine.check()?;
        if let Some(missing) = missing(BOOT) {
            bail!(missing);
        }
        let mut disk = tempfile::NamedTempFile::new().context("no temporary file")?;
        disk.write_all(&self.disk(cache)?).context("can't write the guest's initial RAM disk")?;
        let mut command = Command::new("qemu-system-x86_64");
        command.args(self.arguments(disk.path()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for this process, which ends the emulator.
        command.process_group(0);
        let mut emulator = std::thread::scope(|scope| {
            let pinned = scope.spawn(|| {
                pin(lane)?;
                command.spawn().context("can't start qemu-system-x86_64")
            });
            pinned.join().map_err(|_| anyhow::anyhow!("the thread that starts the emulator panicked"))?
        })?;
        let output = emulator.stdout.take().context("the emulator has no output")?;
        let errors = emulator.stderr.take().context("the emulator has no output")?;
        let (sender, lines) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
                if sender.send(std::mem::take(&mut line)).is_err() {
                    break;
                }
            }
        });
        let errors = std::thread::spawn(move || std::io::read_to_string(errors).unwrap_or_default());
        let mut ended = Ended { lines: Vec::new(), console: Vec::new() };
        let was_interrupted = loop {
            use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    ended.lines.extend(read_line(&line)?.inspect(|line| said(line)));
                    ended.console.extend(line);
                }
                Err(Disconnected) => break false,
                Err(Timeout) => {}
            }
            if is_interrupted() {
                emulator.kill()?;
                break true;
            }
        };
        let status = emulator.wait()?;
        _ = reader.join();
        let errors = errors.join().unwrap_or_default();
        if was_interrupted {
            return Ok(None);
        }
        ensure!(status.success(), "qemu-system-x86_64 ended with {status}: {}", errors.trim());
        ended.check()?;
        Ok(Some(ended))
    }

    /// The SHA-256 of each file of the guest, by name, with the version if `prepare` built it in a pinned one: another file makes another
    /// guest.
    ///
    /// # Errors
    /// A program has not been built, or this machine lacks a file.
    pub(crate) fn programs(&self, cache: &Cache) -> anyhow::Result<BTreeMap<String, String>> {
        let one = |(path, file): (String, PathBuf)| {
            let name = path.strip_prefix("/bin/").unwrap_or(&path);
            let name = match version(cache, name).filter(|_| path.starts_with("/bin/")) {
                Some(version) => format!("{name} {version}"),
                None => name.to_owned(),
            };
            Ok((name, sha256(&file)?))
        };
        self.files(cache)?.into_iter().map(one).collect()
    }

    /// The guest's files but the plan, by their path in the guest: where each lies on this machine.
    fn files(&self, cache: &Cache) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        let mut files = BTreeMap::from([("/init".to_owned(), cache.program(INIT)?)]);
        for program in self.scheduler.program().into_iter().chain(self.is_probed.then_some(PROBE)) {
            files.insert(format!("/bin/{program}"), cache.program(program)?);
        }
        files.extend(self.kernel.config().filter(|_| self.scheduler.is_rival()));
        for run in &self.runs {
            if let Work::Program { command, package, files: read, .. } = &run.work {
                let program = command.first().map_or("", String::as_str);
                match program.strip_prefix("/bin/").and_then(|name| cache.program(name).ok()) {
                    Some(ours) => _ = files.insert(program.to_owned(), ours),
                    None => files.extend(with_libraries(program, package)?),
                }
                for name in read {
                    let path = format!("/{}", name.trim_start_matches('/'));
                    files.insert(path, above(&std::env::current_dir()?, name)?);
                }
            }
        }
        Ok(files)
    }

    /// The initial RAM disk.
    fn disk(&self, cache: &Cache) -> anyhow::Result<Vec<u8>> {
        let mut archive = Archive::default();
        ["/proc", "/sys", "/dev", "/tmp", "/run"].iter().for_each(|folder| archive.folder(folder));
        for (path, file) in self.files(cache)? {
            let content = std::fs::read(&file).with_context(|| format!("can't read {}", file.display()))?;
            archive.file(&path, &content);
        }
        let plan = GuestPlan {
            turn_us: TURN_US,
            seed: self.seed,
            scheduler: self.scheduler.command(),
            probe: self.is_probed.then(|| format!("/bin/{PROBE}")).into_iter().collect(),
            runs: self.runs.clone(),
        };
        archive.file(PLAN, serde_json::to_string(&plan)?.as_bytes());
        Ok(archive.finish())
    }

    fn arguments(&self, disk: &Path) -> Vec<String> {
        let Machine { cpus, llcs, threads, memory } = self.machine;
        let cores = cpus / (llcs * threads);
        let text = |text: &str| text.to_owned();
        let mut arguments: Vec<String> = Vec::new();
        let mut add = |name: &str, value: String| arguments.extend([text(name), value]);
        add("-accel", text("tcg,thread=single"));
        add("-icount", text("shift=0,sleep=off"));
        add("-rtc", text("base=2026-01-01,clock=vm"));
        add("-seed", self.seed.to_string());
        add("-cpu", text("max"));
        add("-m", memory.to_string());
        add("-smp", format!("{cpus},sockets={llcs},cores={cores},threads={threads}"));
        add("-serial", text("stdio"));
        add("-bios", text("qboot.rom"));
        add("-kernel", self.kernel.image.display().to_string());
        add("-initrd", disk.display().to_string());
        add("-append", text(COMMAND_LINE));
        arguments.extend(["-no-hpet", "-nographic", "-nodefaults", "-no-reboot"].map(text));
        arguments
    }
}

/// Restricts this thread, and the processes that it starts, to one CPU.
///
/// The emulator has a thread for the virtual CPUs and one for its main loop, and both run timers that expire. Which of them runs a timer
/// decides whose turn is next in the guest. On one CPU the virtual CPUs' thread runs all of them: 14 of 14 guests, two at a time on two CPUs,
/// were the same to the byte, where 7 of 20 differed without.
fn pin(lane: usize) -> anyhow::Result<()> {
    let allowed = affinity::allowed().context("the allowed CPUs can't be read")?;
    let cpu = allowed.iter().nth(lane % allowed.len().max(1)).context("no CPU is allowed")?;
    affinity::pin(cpu).with_context(|| format!("can't be restricted to CPU {cpu}"))
}

/// The first process's program.
const INIT: &str = "warmcore-guest-init";

/// The probe's program.
const PROBE: &str = "scx_probe";

/// A program of this machine, and the libraries that it is linked with, by their paths.
fn with_libraries(program: &str, package: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    ensure!(program.starts_with('/'), "{program}: a scenario names a program by its whole path");
    ensure!(
        Path::new(program).is_file(),
        "this machine has no {program}, which the scenario runs{}",
        if package.is_empty() { String::new() } else { format!("; on Debian: apt-get install {package}") }
    );
    let output = Command::new("ldd").arg(program).output().context("can't run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut libraries = libraries(&text).with_context(|| format!("{program} can't be run in a guest"))?;
    // The C library loads it when a thread ends by `pthread_exit`, and no program names it.
    let unwind =
        libraries.iter().find_map(|path| Some(format!("{}libgcc_s.so.1", path.strip_suffix("libc.so.6")?)));
    libraries.extend(unwind.as_deref().filter(|path| Path::new(path).is_file()));
    Ok([program].into_iter().chain(libraries).map(|path| (path.to_owned(), path.into())).collect())
}

/// Reads what ldd prints: "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)", or "/lib64/ld-linux-x86-64.so.2 (0x…)"; of a static
/// program no path.
fn libraries(text: &str) -> anyhow::Result<Vec<&str>> {
    let missing: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(" => not found"))
        .map(|(name, _)| name.trim())
        .collect();
    ensure!(
        missing.is_empty(),
        "this machine has none of its libraries {}: install its package anew",
        missing.join(", ")
    );
    Ok(text.split_whitespace().filter(|word| word.starts_with('/')).collect())
}

/// A file that a scenario names, in this folder or one above it.
fn above(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let found = folder.ancestors().map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| {
        format!(
            "neither {} nor a folder above it has {name}, which the scenario's program reads; the built-in scenarios' files are in a \
             checkout of Warmcore",
            folder.display()
        )
    })
}

/// A line of the console, if it is the first process's.
fn read_line(line: &[u8]) -> anyhow::Result<Option<Line>> {
    let text = String::from_utf8_lossy(line);
    let Some((_, json)) = text.split_once(MARK) else { return Ok(None) };
    let line = serde_json::from_str(json.trim());
    line.map(Some).with_context(|| format!("the guest said {:?}, which is no line of its plan", json.trim()))
}

impl Ended {
    /// # Errors
    /// The guest said neither that its plan is done nor that it can't be.
    fn check(&self) -> anyhow::Result<()> {
        match self.lines.last() {
            Some(Line::Ended { .. } | Line::Failed { .. }) => Ok(()),
            _ => {
                let console = String::from_utf8_lossy(&self.console).into_owned();
                let lines: Vec<&str> = console.lines().collect();
                let last = lines[lines.len().saturating_sub(15)..].join("\n");
                bail!("the guest ended before its plan did; its console's last lines:\n{last}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_equal_caches() {
        let machine = Machine { cpus: 8, llcs: 2, threads: 1, memory: 1024 };
        assert!(machine.check().is_ok());
        assert!(
            Machine { llcs: 3, ..machine }.check().unwrap_err().to_string().contains("3 last-level caches")
        );
        assert!(Machine { cpus: 0, ..machine }.check().is_err());
        assert!(Machine { threads: 4, ..machine }.check().is_ok());
        assert!(Machine { threads: 8, ..machine }.check().is_err());
    }

    #[test]
    fn the_console_may_say_other_things_between_the_lines() {
        let mark = |json: &str| format!("[    1.0] {MARK}{json}\r\n");
        assert_eq!(read_line(b"[    0.1] Linux version\n").unwrap(), None);
        let failed = read_line(mark("{\"failed\":{\"why\":\"x\"}}").as_bytes()).unwrap();
        assert_eq!(failed, Some(Line::Failed { why: "x".into() }));
        assert!(read_line(mark("{\"failed\":").as_bytes()).is_err());
    }

    #[test]
    fn a_guest_that_ends_early_is_an_error_with_its_last_lines() {
        let ended = Ended { lines: Vec::new(), console: b"Kernel panic\n".to_vec() };
        assert!(ended.check().unwrap_err().to_string().ends_with("Kernel panic"));
    }

    #[test]
    fn a_program_that_is_not_installed_is_named_with_its_package() {
        let error = |program| format!("{:#}", with_libraries(program, "such").unwrap_err());
        assert_eq!(
            error("/no/such"),
            "this machine has no /no/such, which the scenario runs; on Debian: apt-get install such"
        );
        assert!(error("ls").contains("whole path"));
    }

    #[test]
    fn libraries_are_found_and_missing_ones_are_named() {
        let text = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(libraries(text).unwrap(), ["/lib/libc.so.6", "/lib64/ld.so.2"]);
        assert_eq!(libraries("\tnot a dynamic executable\n").unwrap(), [""; 0]);
        let error = libraries("\tlibx.so.1 => not found\n").unwrap_err().to_string();
        assert!(error.contains("libx.so.1"), "{error}");
    }

    #[test]
    fn a_scenarios_file_is_found_in_a_folder_above() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        std::fs::write(folder.path().join("load.json"), "{}").unwrap();
        let here = folder.path().join("a/b");
        assert_eq!(above(&here, "load.json").unwrap(), folder.path().join("load.json"));
        let error = above(&here, "no-such.json").unwrap_err().to_string();
        assert!(error.contains("no-such.json") && error.contains("checkout"), "{error}");
    }
}
