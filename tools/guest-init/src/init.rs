//! What the guest's first process does: mounts, the timer that ends each virtual CPU's turn, the plan, the end.

mod ports;

use anyhow::{Context, bail, ensure};
use ports::Ports;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::system::{RebootCommand, reboot};
use rustix::termios::tcdrain;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use warmcore_guest_init::plan::{GuestPlan, Line, MARK, PLAN, Run};

/// Does the plan, and switches the machine off.
pub fn run() -> anyhow::Result<()> {
    if let Err(error) = plan() {
        say(&Line::Failed { why: format!("{error:#}") });
    }
    std::io::stdout().flush()?;
    // Without it the last line's end is lost if the line is long.
    tcdrain(std::io::stdout())?;
    reboot(RebootCommand::PowerOff)?;
    Ok(())
}

fn say(line: &Line) {
    println!("{MARK}{}", serde_json::to_string(line).expect("a line is made of text and numbers"));
}

fn plan() -> anyhow::Result<()> {
    for (kind, at) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
        ("tracefs", "/sys/kernel/tracing"),
        ("bpf", "/sys/fs/bpf"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        mount(kind, at, kind, MountFlags::empty(), None).with_context(|| format!("can't mount {kind}"))?;
    }
    let text = std::fs::read_to_string(PLAN).context("the guest has no plan")?;
    let plan: GuestPlan = serde_json::from_str(&text).context("the guest's plan can't be read")?;
    end_turns_after(plan.turn_us)?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
    say(&Line::Booted { kernel, cpus: std::thread::available_parallelism()?.get() });
    let mut scheduler = Scheduler::start(&plan.scheduler)?;
    sleep(Duration::from_millis(100));
    for run in &plan.runs {
        say(&one(&plan, run, &mut scheduler)?);
    }
    if let Some(ended) = scheduler.end()? {
        say(&ended);
    }
    let uptime_ms = (uptime()? * 1000.0) as u64;
    say(&Line::Ended { warnings: warnings()?, uptime_ms });
    Ok(())
}

/// Seconds since the boot.
fn uptime() -> anyhow::Result<f64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    text.split(' ').next().and_then(|seconds| seconds.parse().ok()).context("no uptime")
}

/// Programs channel 0 of the interval timer as a periodic one. Its interrupt is masked, but the emulator ends the turn of a virtual CPU
/// whenever it expires; without it a virtual CPU runs for 5 to 30 ms while all others stand still.
fn end_turns_after(us: u32) -> anyhow::Result<()> {
    // The timer's clock has 1.193182 MHz.
    let count = (u64::from(us) * 1_193_182 / 1_000_000).clamp(2, u64::from(u16::MAX)) as u16;
    let ports = Ports::open()?;
    // Channel 0, low byte then high byte, mode 2.
    ports.write(3, 0x34);
    count.to_le_bytes().into_iter().for_each(|byte| ports.write(0, byte));
    Ok(())
}

/// The scheduler that the plan names, if it names one.
struct Scheduler {
    child: Option<Child>,
}

/// What the scheduler writes.
const SCHEDULER_LOG: &str = "/tmp/scheduler.log";

/// A scheduler is in charge so long after its start at the latest. The kernel checks the programs of `scx_lavd` for longer than 15 s.
const START_MAX: Duration = Duration::from_secs(100);

impl Scheduler {
    fn start(command: &[String]) -> anyhow::Result<Self> {
        let Some((name, args)) = command.split_first() else { return Ok(Self { child: None }) };
        let log = File::create(SCHEDULER_LOG)?;
        let child = Command::new(name)
            .args(args)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("can't start {name}"))?;
        let mut scheduler = Self { child: Some(child) };
        let begin = Instant::now();
        while scheduler.in_charge().is_none() {
            let said = last_lines(SCHEDULER_LOG, 12)?.join("; ");
            let ended = scheduler.child.as_mut().map(|child| child.try_wait()).transpose()?.flatten();
            if let Some(status) = ended {
                bail!("the scheduler {name} ended with {status}: {said}");
            }
            let limit = START_MAX.as_secs();
            ensure!(
                begin.elapsed() < START_MAX,
                "the scheduler {name} is not in charge of all tasks after {limit} s: {said}"
            );
            sleep(Duration::from_millis(20));
        }
        Ok(scheduler)
    }

    /// How many schedulers have been loaded since the boot. `None`: another than the plan's is in charge of some tasks. Without a
    /// scheduler of the plan, the kernel's own has to be in charge.
    fn in_charge(&self) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(format!("/sys/kernel/sched_ext/{name}"));
        let [state, all, loads] =
            ["state", "switch_all", "enable_seq"].map(|name| read(name).unwrap_or_default());
        charge(self.child.is_some(), [state.trim(), all.trim(), loads.trim()])
    }

    /// Ends it as Ctrl-C does.
    fn end(self) -> anyhow::Result<Option<Line>> {
        let Some(mut child) = self.child else { return Ok(None) };
        let pid = Pid::from_raw(child.id() as i32).context("no process number")?;
        // A scheduler that the kernel has ended may be gone already.
        _ = kill_process(pid, Signal::INT);
        let status = child.wait()?.code().unwrap_or(-1);
        Ok(Some(Line::Scheduler { status, said: last_lines(SCHEDULER_LOG, 12)? }))
    }
}

/// What the kernel's files say: see [`Scheduler::in_charge`]. A scheduler that was loaded again in a run is another load, since tasks ran under
/// the kernel's own in between.
fn charge(is_wanted: bool, [state, all, loads]: [&str; 3]) -> Option<u64> {
    let is_right =
        if is_wanted { state == "enabled" && all == "1" } else { matches!(state, "disabled" | "") };
    is_right.then(|| loads.parse().unwrap_or(0))
}

/// What a run writes, and what the probe counts.
const RUN_LOG: &str = "/tmp/run.log";
const COUNTS: &str = "/tmp/counts.json";

/// A run takes so long at most, in the guest's time.
const RUN_MAX: Duration = Duration::from_secs(120);

fn one(plan: &GuestPlan, run: &Run, scheduler: &mut Scheduler) -> anyhow::Result<Line> {
    let before = scheduler.in_charge();
    let seed = plan.seed.to_string();
    let work = serde_json::to_string(&run.work)?;
    let mut command: Vec<&str> = Vec::new();
    if !plan.probe.is_empty() {
        command.extend(plan.probe.iter().map(String::as_str));
        command.extend(run.groups.iter().flat_map(|group| ["--group", group]));
        command.extend(["--json", COUNTS, "--"]);
    }
    command.extend(["/init", "work", &seed, &work]);
    let log = File::create(RUN_LOG)?;
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .with_context(|| format!("can't start {}", command[0]))?;
    // A thread that waits once, so that the run is not disturbed.
    let pid = Pid::from_raw(child.id() as i32).context("no process number")?;
    let (ended, waits) = std::sync::mpsc::channel::<()>();
    let limit = std::thread::spawn(move || {
        let is_late = waits.recv_timeout(RUN_MAX) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if is_late {
            _ = kill_process_group(pid, Signal::KILL);
        }
        is_late
    });
    let status = child.wait()?;
    // What the workload leaves behind would disturb the next run.
    _ = kill_process_group(pid, Signal::KILL);
    drop(ended);
    let was_late = limit.join().unwrap_or(false);
    let counts = match std::fs::read_to_string(COUNTS) {
        Ok(text) => serde_json::from_str(&text).context("the probe's counts can't be read")?,
        Err(_) => serde_json::Value::Null,
    };
    _ = std::fs::remove_file(COUNTS);
    let mut said = last_lines(RUN_LOG, 40)?;
    said.extend(was_late.then(|| format!("did not end within {} s of the guest's time", RUN_MAX.as_secs())));
    let is_done = |line: &String| line.starts_with("{\"done\":");
    let done = said.iter().position(is_done).map(|at| said.remove(at));
    Ok(Line::Ran {
        name: run.name.clone(),
        is_scheduled: before.is_some() && before == scheduler.in_charge(),
        status: status.code().unwrap_or(-1),
        counts,
        done: done.map(|text| serde_json::from_str(&text)).transpose()?,
        said,
    })
}

/// The last lines of a file that have a word.
fn last_lines(file: &str, number: usize) -> anyhow::Result<Vec<String>> {
    let text = plain(&String::from_utf8_lossy(&std::fs::read(file)?));
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    Ok(lines[lines.len().saturating_sub(number)..].to_vec())
}

/// The text without the escape sequences that colour it.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    let is_number = |c: char| c.is_ascii_digit() || c == ';';
    parts.fold(first, |text, part| text + part.trim_start_matches(is_number).get(1..).unwrap_or_default())
}

/// What the kernel's log says of stalls, warnings and bugs.
fn warnings() -> anyhow::Result<Vec<String>> {
    let mut log = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open("/dev/kmsg")
        .context("no kernel log")?;
    let mut found = Vec::new();
    // A read returns one record; a read after the last fails.
    let mut record = [0; 8192];
    while let Ok(length) = log.read(&mut record) {
        let text = String::from_utf8_lossy(&record[..length]).into_owned();
        let message = text.split_once(';').map_or("", |(_, message)| message.lines().next().unwrap_or(""));
        let is_wrong = ["WARNING:", "BUG:", "stall", "hung task", "runtime error", "Oops", "Call Trace"]
            .iter()
            .any(|word| message.contains(word));
        found.extend(is_wrong.then(|| message.to_owned()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_left_out() {
        assert_eq!(plain("00:01 \x1b[0m\x1b[1;34m[INFO] \x1b[0mflags: 0x36\n"), "00:01 [INFO] flags: 0x36\n");
        assert_eq!(plain("no colour \x1b["), "no colour ");
    }

    #[test]
    fn a_scheduler_that_is_gone_partial_or_loaded_again_is_not_the_same() {
        assert_eq!(charge(true, ["enabled", "1", "1"]), Some(1));
        assert_ne!(charge(true, ["enabled", "1", "2"]), Some(1));
        assert_eq!(charge(true, ["enabled", "0", "1"]), None);
        assert_eq!(charge(true, ["disabled", "0", "1"]), None);
        assert_eq!(charge(true, ["enabling", "0", "1"]), None);
        assert_eq!(charge(false, ["enabled", "1", "1"]), None);
        assert_eq!(charge(false, ["disabled", "0", "0"]), Some(0));
        assert_eq!(charge(false, ["", "", ""]), Some(0), "a kernel without sched_ext");
    }
}
