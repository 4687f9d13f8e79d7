//! Scenarios whose counts can be written down by hand.
//!
//! Each one prepares tasks, runs them while the probe counts, and lists what was counted beside what must have been.
//! The tasks are children of this process, which the probe does not count.

use crate::tasks::{Task, allow, be_real_time, fork, sleep_repeatedly, spin, spin_forever, wait};
use anyhow::{Context, Result, ensure};
use scx_probe::{Outcome, Probe, Report};
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet};

/// The argument with which this program, run by a scenario, does nothing.
pub const NOTHING: &str = "do-nothing";

/// How many times a task of a scenario does its thing.
const N: u64 = 50;
const NAP: Duration = Duration::from_millis(1);
/// How long the scenarios about time run: 50 ticks of 4 ms.
const SPAN: Duration = Duration::from_millis(200);
/// Released tasks that never sleep run for sure after this time.
const SETTLE: Duration = Duration::from_millis(20);

/// A count, and what it must be.
pub struct Check {
    pub name: &'static str,
    pub is: u64,
    pub expected: RangeInclusive<u64>,
}

/// What a scenario returns: its counts and their checks, or why it cannot run here.
pub enum Verdict {
    Checked(Box<Report>, Vec<Check>),
    Skipped(String),
}

/// A scenario and its name.
pub type Scenario = (&'static str, fn(&mut Bench) -> Result<Verdict>);

pub const SCENARIOS: &[Scenario] = &[
    ("a pinned task sleeps", pinned_sleeper),
    ("a task sleeps behind a hog, both pinned to one CPU", behind_a_hog),
    ("a real-time task stays on a hog's CPU although others idle", real_time_on_a_hogs_cpu),
    ("a task sleeps among idle CPUs", among_idle_cpus),
    ("a task moves itself between last-level caches", moves_across_caches),
    ("a task moves itself within a last-level cache", moves_within_a_cache),
    ("a task forks", forks),
    ("a task forks and its children exec", execs),
    ("two tasks compute on one CPU", two_on_one_cpu),
    ("one task computes while a CPU is offline, and when it is back", one_offline),
    ("a cgroup's quota makes a task wait while all CPUs idle", throttled_anywhere),
    ("a cgroup's quota makes a task wait while its two CPUs idle", throttled_on_two_cpus),
];

/// The loaded probe and the CPUs that scenarios use.
pub struct Bench<'a> {
    probe: Probe<'a>,
    cpus: CpuSet,
    /// Two CPUs of one last-level cache, neither of them CPU 0, which handles most interrupts.
    here: CpuId,
    beside: CpuId,
    /// A CPU of another last-level cache.
    far: CpuId,
}

impl<'a> Bench<'a> {
    /// Chooses the CPUs.
    ///
    /// # Errors
    /// Returns an error if the machine is too small.
    pub fn new(probe: Probe<'a>, topology: &Topology) -> Result<Self> {
        let cpus = topology.usable();
        let (first, last) =
            (topology.llcs.first().context("no cache")?, topology.llcs.last().context("no cache")?);
        let of_first: Vec<_> = first.cpus.iter().collect();
        ensure!(
            topology.llcs.len() >= 2 && of_first.len() >= 4 && cpus.len() == topology.cpus.len(),
            "this machine has {} last-level caches, {} CPUs in the first, and this process may use {} of {} CPUs: expected \
             2 caches, 4 CPUs, and all; run it in the guest",
            topology.llcs.len(),
            of_first.len(),
            cpus.len(),
            topology.cpus.len(),
        );
        let far = last.cpus.last().context("a cache without CPUs")?;
        Ok(Self { probe, cpus, here: of_first[1], beside: of_first[2], far })
    }

    /// Counts while `run` runs. The prepared tasks sleep by then.
    fn count(&mut self, run: impl FnOnce() -> Result<()>) -> Result<Report> {
        std::thread::sleep(SETTLE);
        self.probe.start()?;
        let started = Instant::now();
        run()?;
        let elapsed_ns = started.elapsed().as_nanos() as u64;
        Ok(self.probe.stop()?.report(Outcome { status: 0, elapsed_ns }))
    }

    /// Counts while one task runs.
    fn count_task(&mut self, mut task: Task) -> Result<Report> {
        self.count(|| {
            task.release()?;
            task.join()
        })
    }
}

fn only(cpu: CpuId) -> CpuSet {
    CpuSet::from_iter([cpu])
}

/// A count that is known exactly.
fn exactly(name: &'static str, is: u64, expected: u64) -> Check {
    Check { name, is, expected: expected..=expected }
}

/// A count of which only bounds are known.
fn within(name: &'static str, is: u64, expected: RangeInclusive<u64>) -> Check {
    Check { name, is, expected }
}

/// Adds what holds in every scenario.
fn checked(r: Report, mut checks: Vec<Check>) -> Result<Verdict> {
    let started = r.wakes.sum() + r.new.sum();
    let all = started + r.preempted.sum();
    checks.extend([
        exactly("lost", r.lost, 0),
        exactly("wakeups = wakes + new", r.wakeups, started),
        exactly("histogram, all buckets", r.histogram.iter().sum(), started),
        exactly("waits.number = wakes + new + preempted", r.waits.number, all),
        within(
            "time.observed_ns, of elapsed_ns",
            r.time.observed_ns,
            r.elapsed_ns..=r.elapsed_ns + r.elapsed_ns / 20 + 2_000_000,
        ),
        // Each wait adds itself to the integral, but CPUs read the clock before they take the lock.
        within(
            "time.waiting_ns, at least waits.ns - 1 %",
            r.time.waiting_ns,
            r.waits.ns - r.waits.ns / 100..=u64::MAX,
        ),
    ]);
    Ok(Verdict::Checked(Box::new(r), checks))
}

/// One wake of the release and N of the sleeps, all on the task's only CPU.
fn pinned_sleeper(bench: &mut Bench) -> Result<Verdict> {
    let here = only(bench.here);
    let r = bench.count_task(Task::fork("ui-1", || allow(&here), || sleep_repeatedly(N, NAP))?)?;
    let group = &r.groups["ui"];
    let checks = vec![
        exactly("wakes.same", r.wakes.same, N + 1),
        exactly("wakes.llc + wakes.other", r.wakes.llc + r.wakes.other, 0),
        exactly("new", r.new.sum(), 0),
        exactly("queued.any", r.queued.any, 0),
        exactly("migrations.all", r.migrations.all, 0),
        exactly("forks", r.forks, 0),
        exactly("execs", r.execs, 0),
        exactly("switches = waits.number", r.switches, r.waits.number),
        within("to_idle", r.to_idle, N..=10 * N),
        exactly("groups.ui.wakes.same", group.wakes.same, N + 1),
        exactly("groups.ui.histogram, all buckets", group.histogram.iter().sum(), N + 1),
        exactly("groups.hogs.wakes", r.groups["hogs"].wakes.sum(), 0),
    ];
    checked(r, checks)
}

/// The sleeper's CPU is busy at each wake, but no other is allowed: not queued. The hog's CPU idles at its one wake.
fn behind_a_hog(bench: &mut Bench) -> Result<Verdict> {
    let here = only(bench.here);
    let mut hog = Task::fork("hog", || allow(&here), spin_forever)?;
    let mut sleeper = Task::fork("ui-1", || allow(&here), || sleep_repeatedly(N, NAP))?;
    let r = bench.count(|| {
        hog.release()?;
        std::thread::sleep(SETTLE);
        sleeper.release()?;
        sleeper.join()?;
        hog.kill()
    })?;
    let checks = vec![
        exactly("wakes.same", r.wakes.same, N + 2),
        exactly("wakes.llc + wakes.other", r.wakes.llc + r.wakes.other, 0),
        exactly("queued.any", r.queued.any, 0),
        exactly("queued.over_slice", r.queued.over_slice, 0),
        exactly("migrations.all", r.migrations.all, 0),
        within("preempted.same", r.preempted.same, N..=20 * N),
        exactly("preempted.llc + preempted.other", r.preempted.llc + r.preempted.other, 0),
        exactly("groups.ui.wakes.same", r.groups["ui"].wakes.same, N + 1),
        exactly("groups.hogs.wakes.same", r.groups["hogs"].wakes.same, 1),
    ];
    checked(r, checks)
}

/// A real-time task that wakes where a fair task runs preempts it: `select_task_rq_rt` looks for another CPU only if a
/// real-time task runs there. It may run on all CPUs, and most idle: each of its wakes is queued.
fn real_time_on_a_hogs_cpu(bench: &mut Bench) -> Result<Verdict> {
    let (here, all) = (only(bench.here), bench.cpus.clone());
    let mut hog = Task::fork("hog", || allow(&here), spin_forever)?;
    let stay = || {
        allow(&here);
        be_real_time();
        allow(&all);
    };
    let mut sleeper = Task::fork("ui-1", stay, || sleep_repeatedly(N, NAP))?;
    let r = bench.count(|| {
        hog.release()?;
        std::thread::sleep(SETTLE);
        sleeper.release()?;
        sleeper.join()?;
        hog.kill()
    })?;
    let checks = vec![
        exactly("wakes.same", r.wakes.same, N + 2),
        exactly("queued.any", r.queued.any, N + 1),
        exactly("queued.llc", r.queued.llc, N + 1),
        exactly("queued.over_slice", r.queued.over_slice, 0),
        exactly("migrations.all", r.migrations.all, 0),
        within("preempted.same", r.preempted.same, N + 1..=20 * N),
    ];
    checked(r, checks)
}

/// Wherever the scheduler wakes the task, the CPU idles, unless it is a poor scheduler. A run elsewhere is a migration.
fn among_idle_cpus(bench: &mut Bench) -> Result<Verdict> {
    let r = bench.count_task(Task::fork("ui-1", || (), || sleep_repeatedly(N, NAP))?)?;
    let elsewhere = r.wakes.llc + r.wakes.other + r.preempted.llc + r.preempted.other;
    let checks = vec![
        exactly("wakes", r.wakes.sum(), N + 1),
        exactly("queued.any", r.queued.any, 0),
        exactly("queued.over_slice", r.queued.over_slice, 0),
        exactly("migrations.all", r.migrations.all, elsewhere),
        exactly("migrations.other_llc", r.migrations.other_llc, r.wakes.other + r.preempted.other),
    ];
    checked(r, checks)
}

/// Runs a task that moves itself N times, first to `first`, then to the CPU where it started, and so on.
fn moves(bench: &mut Bench, first: CpuId) -> Result<Report> {
    let ends = [only(first), only(bench.here)];
    bench.count_task(Task::fork(
        "mover",
        || allow(&ends[1]),
        || {
            for i in 0..N as usize {
                allow(&ends[i % 2]);
                spin(Duration::from_micros(100));
            }
        },
    )?)
}

fn moves_across_caches(bench: &mut Bench) -> Result<Verdict> {
    let r = moves(bench, bench.far)?;
    let checks = vec![
        exactly("migrations.all", r.migrations.all, N),
        exactly("migrations.other_llc", r.migrations.other_llc, N),
        exactly("runs in the other cache", r.wakes.other + r.preempted.other, N),
        exactly("runs in the same cache", r.wakes.llc + r.preempted.llc, 0),
        exactly("queued.any", r.queued.any, 0),
    ];
    checked(r, checks)
}

fn moves_within_a_cache(bench: &mut Bench) -> Result<Verdict> {
    let r = moves(bench, bench.beside)?;
    let checks = vec![
        exactly("migrations.all", r.migrations.all, N),
        exactly("migrations.other_llc", r.migrations.other_llc, 0),
        exactly("runs on another CPU of the cache", r.wakes.llc + r.preempted.llc, N),
        exactly("runs in the other cache", r.wakes.other + r.preempted.other, 0),
        exactly("queued.any", r.queued.any, 0),
    ];
    checked(r, checks)
}

/// Runs a task on one CPU that forks N children, one after the other, and waits for each.
fn children(bench: &mut Bench, child: fn()) -> Result<Report> {
    let here = only(bench.here);
    let body = || {
        for _ in 0..N {
            let status = fork(child).and_then(wait).expect("a child is forked and ends");
            assert_eq!(status, 0, "wait status of a child");
        }
    };
    bench.count_task(Task::fork("parent", || allow(&here), body)?)
}

fn forks(bench: &mut Bench) -> Result<Verdict> {
    let r = children(bench, || ())?;
    let checks = vec![
        exactly("forks", r.forks, N),
        exactly("execs", r.execs, 0),
        exactly("new.same", r.new.same, N),
        exactly("new.llc + new.other", r.new.llc + r.new.other, 0),
        exactly("migrations.all", r.migrations.all, 0),
        exactly("queued.any", r.queued.any, 0),
    ];
    checked(r, checks)
}

fn execs(bench: &mut Bench) -> Result<Verdict> {
    let r = children(bench, || {
        let args = [c"/proc/self/exe".as_ptr(), c"do-nothing".as_ptr(), std::ptr::null()];
        // SAFETY: `args` is an array of C strings that ends with a null pointer.
        unsafe { libc::execv(args[0], args.as_ptr()) };
        panic!("execv: {}", std::io::Error::last_os_error());
    })?;
    let checks = vec![
        exactly("forks", r.forks, N),
        exactly("execs", r.execs, N),
        exactly("new.same", r.new.same, N),
        exactly("migrations.all", r.migrations.all, 0),
    ];
    checked(r, checks)
}

/// One of the two always waits, and all CPUs but one idle. This process and kernel threads take little time.
fn two_on_one_cpu(bench: &mut Bench) -> Result<Verdict> {
    let here = only(bench.here);
    let mut tasks = ["hog-1", "hog-2"].map(|name| Task::fork(name, || allow(&here), || spin(SPAN)));
    let r = bench.count(|| {
        tasks.iter_mut().flatten().try_for_each(Task::release)?;
        tasks.into_iter().try_for_each(|task| task?.join())
    })?;
    let (span, others) = (SPAN.as_nanos() as u64, bench.cpus.len() as u64 - 1);
    let observed = r.time.observed_ns;
    let checks = vec![
        within("time.observed_ns", observed, span..=span * 11 / 10),
        within("time.idle_ns", r.time.idle_ns, observed * others * 97 / 100..=observed * others * 103 / 100),
        within("time.waiting_ns", r.time.waiting_ns, observed * 90 / 100..=observed * 102 / 100),
        within(
            "time.idle_while_waiting_ns, close to waiting_ns",
            r.time.idle_while_waiting_ns,
            r.time.waiting_ns * 99 / 100..=r.time.waiting_ns,
        ),
        within("preempted.same", r.preempted.same, SPAN.as_millis() as u64 / 10..=SPAN.as_millis() as u64),
        exactly("preempted.llc + preempted.other", r.preempted.llc + r.preempted.other, 0),
        exactly("queued.over_slice", r.queued.over_slice, 0),
        exactly("migrations.all", r.migrations.all, 0),
        exactly("wakes.same", r.wakes.same, 2),
    ];
    checked(r, checks)
}

/// A CPU that is offline does not idle, and one that came back does.
fn one_offline(bench: &mut Bench) -> Result<Verdict> {
    let file = format!("/sys/devices/system/cpu/cpu{}/online", bench.far.0);
    if let Err(error) = fs::write(&file, "0") {
        return Ok(Verdict::Skipped(format!(
            "{file} cannot be written, so no CPU can be taken offline: {error}"
        )));
    }
    let here = only(bench.here);
    let count = |bench: &mut Bench| bench.count_task(Task::fork("hog", || allow(&here), || spin(SPAN))?);
    let offline = count(bench);
    fs::write(&file, "1").with_context(|| format!("{file} cannot be written: the CPU stays offline"))?;
    let (offline, online) = (offline?, count(bench)?);
    let others = bench.cpus.len() as u64 - 1;
    let idle =
        |r: &Report, cpus: u64| r.time.observed_ns * cpus * 97 / 100..=r.time.observed_ns * cpus * 103 / 100;
    let checks = vec![
        within("time.idle_ns, one CPU offline", offline.time.idle_ns, idle(&offline, others - 1)),
        within("time.idle_ns, all CPUs online", online.time.idle_ns, idle(&online, others)),
        exactly("wakes.same", online.wakes.same, 1),
        exactly("queued.any", offline.queued.any + online.queued.any, 0),
        exactly("queued.over_slice", offline.queued.over_slice + online.queued.over_slice, 0),
    ];
    checked(online, checks)
}

/// Runs a task on these CPUs with a quota of 20 ms in 100 ms: it is runnable, and does not run for 80 ms, whatever
/// idles. In 400 ms that is 3 or 4 times, and the task's end may be one more.
fn throttled(bench: &mut Bench, cpus: &CpuSet) -> Result<Verdict> {
    let (root, group) = (Path::new("/sys/fs/cgroup"), Path::new("/sys/fs/cgroup/probe-check"));
    // An error shows in `cpu.max` being absent.
    drop(fs::write(root.join("cgroup.subtree_control"), "+cpu"));
    drop(fs::create_dir(group));
    if fs::write(group.join("cpu.max"), "20000 100000").is_err() {
        return Ok(Verdict::Skipped(
            "/sys/fs/cgroup has no cpu.max: cgroup v2 with CFS_BANDWIDTH is needed".into(),
        ));
    }
    if fs::read_to_string("/sys/kernel/sched_ext/state").is_ok_and(|state| state.trim() == "enabled") {
        return Ok(Verdict::Skipped("a scheduler of sched_ext runs, and most of them ignore cpu.max".into()));
    }
    let prepare = || {
        allow(cpus);
        fs::write(group.join("cgroup.procs"), "0").expect("a task may join its cgroup");
    };
    let task = Task::fork("hog", prepare, || spin(2 * SPAN))?;
    let r = bench.count_task(task)?;
    drop(fs::remove_dir(group));
    let ms = 1_000_000;
    let checks = vec![
        within("queued.over_slice", r.queued.over_slice, 2..=6),
        within("queued.longest_ns", r.queued.longest_ns, 50 * ms..=110 * ms),
        within("over_slice waits are over_1ms", r.waits.over_1ms, r.queued.over_slice..=r.waits.number),
        within("time.idle_while_waiting_ns", r.time.idle_while_waiting_ns, 2 * 50 * ms..=r.time.waiting_ns),
    ];
    checked(r, checks)
}

fn throttled_anywhere(bench: &mut Bench) -> Result<Verdict> {
    let all = bench.cpus.clone();
    throttled(bench, &all)
}

/// As above, counted another way: from the idle periods of the task's CPUs.
fn throttled_on_two_cpus(bench: &mut Bench) -> Result<Verdict> {
    let two = CpuSet::from_iter([bench.here, bench.beside]);
    throttled(bench, &two)
}
