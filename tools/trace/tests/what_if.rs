//! What-if against a truth: programs that are simulated, recorded there, rebuilt from the recording, and replayed.
//!
//! The same program is also simulated under the other policy directly. What-if knows only the recording, and has to say what that
//! simulation does.

mod common;

use common::{PollAt, Writer, places};
use std::collections::BTreeMap;
use std::path::Path;
use warmcore_record::format::IS_LAST;
use warmcore_record::{KernelStats, Recording, ThreadStats};
use warmcore_sched::{PolicyKind, WakeSource};
use warmcore_sim::cases::{ProbeFile, Side};
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::SimPolicyKind;
use warmcore_sim::program::{Length, Program, TaskId};
use warmcore_sim::replay::Host;
use warmcore_sim::simulation::{Drivers, Observer, Outside, Settings, Simulation, SwitchReason};
use warmcore_trace::{Analysis, Answer, Question, Rebuilt, analyze, rebuild, stratified, what_if};
use warmcore_types::{CpuId, Nanos};

const PROBE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../reports/2026-11-22-amd-epyc-2cpu/predicted/probe-2.json");

const CPUS: u32 = 4;
const TOKIO: SimPolicyKind = SimPolicyKind::WorkSteal;
const HOME: SimPolicyKind = SimPolicyKind::Product(PolicyKind::Home);

const MS: u64 = 1_000_000;
const LENGTH: u64 = 200 * MS;

fn host(policy: SimPolicyKind) -> Host {
    let probe = ProbeFile::read(Path::new(PROBE)).unwrap();
    let (topology, costs) = probe.machine((1, CPUS)).unwrap();
    let drivers = if policy == TOKIO { Drivers::FirstParked } else { Drivers::Attendant };
    let outside = Outside { drivers, ..probe.outside(Side::Tokio) };
    let settings =
        Settings { calls: probe.calls(Side::Tokio), outside, learns_moves: true, ..Settings::runtime() };
    Host { topology, costs, settings, policy, others_per_mille: 0, others_run: false }
}

/// A poll that was simulated.
#[derive(Debug, Clone, Copy)]
struct Polled {
    task: u32,
    cpu: u32,
    start: u64,
    end: u64,
    wake: Option<(u64, u32)>,
    is_last: bool,
}

/// Records a simulation.
#[derive(Default)]
struct Recorder {
    woken: BTreeMap<u32, (u64, u32)>,
    running: BTreeMap<u32, Polled>,
    polls: Vec<Polled>,
}

impl Observer for Recorder {
    fn waking(&mut self, now: Nanos, waker: WakeSource, wakee: TaskId) {
        let WakeSource::Cpu(cpu) = waker else { return };
        self.woken.insert(wakee.0, (now.0, cpu.0));
    }

    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        if let Some((_, reason)) = prev {
            let polled = self.running.remove(&cpu.0).expect("it began");
            // The scheduler works at the same moment, and its wakes are not the task's.
            let end = (now.0 - 1).max(polled.start);
            self.polls.push(Polled { end, is_last: reason == SwitchReason::Exited, ..polled });
        }
        if let Some(TaskId(task)) = next {
            let wake = self.woken.remove(&task);
            let polled = Polled { task, cpu: cpu.0, start: now.0, end: 0, wake, is_last: false };
            self.running.insert(cpu.0, polled);
        }
    }

    fn poll_began(&mut self, now: Nanos, cpu: CpuId, _: TaskId) {
        self.running.get_mut(&cpu.0).expect("it was given the CPU").start = now.0;
    }
}

/// A recording of programs under a policy. `cpu` is the number that a CPU gets in it.
fn recorded(programs: &[Program], policy: SimPolicyKind, cpu: fn(u32) -> u32) -> Vec<u8> {
    let Host { topology, costs, settings, policy, .. } = host(policy);
    let recorder = Recorder::default();
    let mut sim = Simulation::runtime_watched(&topology, &costs, settings, policy, 5, recorder);
    programs.iter().for_each(|program| _ = sim.spawn(program).unwrap());
    let report = sim.run(Nanos(LENGTH)).unwrap();
    let mut polls = sim.into_observer().polls;
    polls.sort_by_key(|poll| poll.end);
    // All CPUs under one last-level cache, a core each.
    let places = places(CPUS).into_iter().map(|place| warmcore_record::CpuPlace {
        core: place.cpu.0,
        llc: Some(0),
        node: Some(0),
        socket: Some(0),
        ..place
    });
    let mut writer = Writer::in_memory(places.collect(), CPUS as u16);
    for task in 0..programs.len() as u32 {
        writer.spawn(0, task, 0, 1, 0);
    }
    let mut round = 0;
    for poll in polls {
        if poll.end > round + MS {
            writer.round(round);
            round = poll.end;
        }
        let (thread, at) = (cpu(poll.cpu) as u16, cpu(poll.cpu));
        let of = PollAt::new(thread, poll.task, at, poll.start, (poll.end - poll.start) as u32);
        let of = PollAt { flags: if poll.is_last { IS_LAST } else { 0 }, ..of };
        writer.poll(match poll.wake {
            Some((woken, waker)) => of.woken((poll.start - woken) as u32, cpu(waker)),
            None => of,
        });
    }
    for (thread, cpu) in (0..).zip(&report.cpus) {
        let kernel = KernelStats { cpu_ns: cpu.busy_ns + cpu.search_ns, ..KernelStats::default() };
        writer.stats(thread, LENGTH, ThreadStats { kernel: Some(kernel), ..ThreadStats::default() });
    }
    writer.end();
    writer.bytes()
}

fn read(bytes: &[u8]) -> (Analysis, Rebuilt) {
    let analysis = analyze(|| Recording::new(bytes), &[]).unwrap();
    let spans = [(20 * MS, LENGTH - 10 * MS)];
    let rebuilt = rebuild(Recording::new(bytes).unwrap(), &analysis, &spans).unwrap();
    (analysis, rebuilt)
}

fn ask(bytes: &[u8], recorded: SimPolicyKind, asked: SimPolicyKind) -> Answer {
    let (analysis, rebuilt) = read(bytes);
    let question = Question { recorded: host(recorded), asked: host(asked), load_per_mille: 1000 };
    what_if(&rebuilt, &analysis, &question, &|| false, &|| {}).unwrap().unwrap()
}

/// CPU time of a poll and the share of polls on the core of the poll before, as the programs themselves have them under a policy.
fn truth(programs: &[Program], policy: SimPolicyKind) -> (f64, f64) {
    let Host { topology, costs, settings, policy, .. } = host(policy);
    let mut sim = Simulation::runtime(&topology, &costs, settings, policy, 6);
    programs.iter().for_each(|program| _ = sim.spawn(program).unwrap());
    let [before, after] = [50 * MS, LENGTH].map(|until| sim.run(Nanos(until)).unwrap());
    let cpu = |report: &warmcore_sim::simulation::Report| -> f64 {
        report.cpus.iter().map(|cpu| (cpu.busy_ns + cpu.search_ns) as f64).sum()
    };
    let polls = (after.total().wakes - before.total().wakes) as f64;
    let moves = (after.total().moves() - before.total().moves()) as f64;
    ((cpu(&after) - cpu(&before)) / polls, 1.0 - moves / polls)
}

/// Servers that wait for a timer, compute, and ask a task of their own, which answers.
fn servers() -> Vec<Program> {
    let pair = |i: usize| {
        let (ask, answer) = (format!("ask {i}"), format!("answer {i}"));
        let nap = Length::Exponential(Nanos(200_000));
        let about = |ns| Length::Around(Nanos(ns), 30);
        let front = |p: Program| {
            let p = p.sleep(nap).begin_poll(Nanos(0)).run(about(10_000)).send(&ask, 1);
            p.receive(&answer).begin_poll(Nanos(0)).run(about(5_000))
        };
        let back = |p: Program| p.receive(&ask).begin_poll(Nanos(0)).run(about(20_000)).send(&answer, 1);
        [Program::new(format!("front {i}")).forever(front), Program::new(format!("back {i}")).forever(back)]
    };
    (0..16).flat_map(pair).collect()
}

/// Tasks that pass over data of their own when a timer expires.
fn caches() -> Vec<Program> {
    let task = |i: usize| {
        let nap = Length::Exponential(Nanos(150_000));
        let pass = |p: Program| {
            p.sleep(nap).begin_poll(Nanos(0)).run(Length::Around(Nanos(5_000), 30)).touch_own(
                64,
                Pages::Touched,
                Access::Write,
            )
        };
        Program::new(format!("cache {i}")).forever(pass)
    };
    (0..24).map(task).collect()
}

#[test]
fn a_replay_under_the_recorded_policy_gives_what_was_recorded() {
    for policy in [TOKIO, HOME] {
        for (name, programs) in [("servers", servers()), ("caches", caches())] {
            let answer = ask(&recorded(&programs, policy, |cpu| cpu), policy, policy);
            println!("{name}, {policy}: {:?}", answer.checks);
            assert!(answer.refusals.is_empty(), "{name}, {policy}: {:?}", answer.refusals);
            // The same replay twice: nothing changes.
            assert_eq!((answer.cpu.ratio, answer.p99.ratio), (1.0, 1.0), "{name}, {policy}");
        }
    }
}

#[test]
fn the_other_policy_does_what_the_program_does_under_it() {
    for (policy, other) in [(TOKIO, HOME), (HOME, TOKIO)] {
        for (name, programs) in [("servers", servers()), ("caches", caches())] {
            let answer = ask(&recorded(&programs, policy, |cpu| cpu), policy, other);
            let ((cpu, same), (other_cpu, other_same)) = (truth(&programs, policy), truth(&programs, other));
            let ratio = other_cpu / cpu;
            println!(
                "{name}, {policy} to {other}: {:?} {:?}; truth {ratio} {same}, {other_same}",
                answer.cpu, answer.same_core
            );
            assert!(
                (answer.cpu.ratio / ratio - 1.0).abs() < 0.05,
                "{name}, {policy}: {:?}, and it is {ratio}",
                answer.cpu
            );
            assert!(
                (answer.same_core.1 - other_same).abs() < 0.07,
                "{name}, {policy}: {:?}, {other_same}",
                answer.same_core
            );
        }
    }
}

#[test]
fn a_replay_reads_no_recorded_cpu_or_worker() {
    let [straight, permuted] =
        [|cpu| cpu, |cpu| (cpu + 3) % CPUS].map(|cpu| recorded(&servers(), TOKIO, cpu));
    assert_ne!(straight, permuted);
    let [straight, permuted] = [straight, permuted].map(|bytes| read(&bytes).1);
    assert!(straight.windows[0].from_outside().count() > 1000 && straight.wakes.by_tasks > 1000);
    assert_eq!(straight, permuted);
}

#[test]
fn windows_are_in_equal_parts_of_a_long_recording_and_the_whole_is_one() {
    let (minutes, polls) = (600_000 * MS, 60_000_000);
    let windows = stratified(minutes, polls, false);
    let part = (minutes / 50 * 48) / windows.len() as u64;
    assert!(windows.len() > 1 && windows.iter().map(|(from, to)| to - from).sum::<u64>() < minutes / 20);
    for (i, (from, to)) in (0..).zip(windows) {
        let begin = minutes / 50 + i * part;
        assert!(begin <= from && from < to && to <= begin + part, "window {i}: {from} to {to}");
    }
    assert_eq!(stratified(minutes, polls, true), [(minutes / 50, minutes / 50 * 49)]);
}
