//! Trace: what a simulation reports to an observer while it runs, and an observer that writes the text of a kernel
//! trace, which Perfetto's UI draws.
//!
//! A simulation is generic over its observer; `()` observes nothing and costs no instruction. Observers get wakes, the
//! queues of wakees, switches and new tasks, and cannot change the simulation.
//!
//! [`Trace`] writes a line of ftrace for each wake (`sched_waking`), each wakee that is queued on a CPU
//! (`sched_wakeup`) and each `sched_switch`. CPUs are numbered by their index in the topology. A task's pid is its
//! index plus one, since 0 is the idle task; the index of a task that has ended may be used again under another name. A
//! line takes about 150 bytes. The number of lines is limited; if there were more, the last line gives the number of
//! those left out.
//!
//! # Source
//!
//! Linux, `include/trace/events/sched.h`; Perfetto reads it as systrace.

use crate::program::TaskId;
use std::collections::HashMap;
use std::fmt::Write;
use warmcore_sched::{TargetQueue, WakeSource};
use warmcore_types::{CpuId, Nanos};

/// Why a task lost its CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchReason {
    /// It sleeps, or waits for another task.
    Blocked,
    /// It is still runnable: it was preempted, or it yielded.
    Runnable,
    /// It has ended.
    Exited,
}

/// An observer of a simulation. CPUs are numbered by their index in the topology.
pub trait Observer {
    /// A task's timer has expired, or its socket has a message. A worker that serves the driver wakes the task.
    fn due(&mut self, now: Nanos, task: TaskId) {
        let _ = (now, task);
    }

    /// A task is woken. For a new task this is its first wake.
    fn waking(&mut self, now: Nanos, waker: WakeSource, wakee: TaskId) {
        let _ = (now, waker, wakee);
    }

    /// A woken task is queued on a CPU, or in a shared queue. Not called for a task that is put back or moved.
    fn queued(&mut self, now: Nanos, task: TaskId, at: TargetQueue) {
        let _ = (now, task, at);
    }

    /// A CPU switches from one task to another. `None`: the CPU was idle, or becomes idle.
    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let _ = (now, cpu, prev, next);
    }

    /// The own work of a recorded poll begins, after what the scheduler did before it.
    fn poll_began(&mut self, now: Nanos, cpu: CpuId, task: TaskId) {
        let _ = (now, cpu, task);
    }

    /// A task passes the mark of this name.
    fn marked(&mut self, now: Nanos, task: TaskId, mark: &str) {
        let _ = (now, task, mark);
    }

    /// A task was created, with this name.
    fn task_created(&mut self, now: Nanos, task: TaskId, name: &str) {
        let _ = (now, task, name);
    }
}

impl Observer for () {}

/// A limit on lines of about 150 bytes: Perfetto's UI does not open files over 300 MB.
const LINES_MAX: u64 = 2_000_000;

/// Writes the events of a simulation.
#[derive(Debug, Default)]
pub struct Trace {
    text: String,
    lines: u64,
    /// By task: its name. The three maps are only looked up, never iterated.
    names: HashMap<TaskId, String>,
    /// By CPU: the task that has it.
    has: HashMap<CpuId, Option<TaskId>>,
    /// By task: the CPU on which a wake last queued it.
    last: HashMap<TaskId, CpuId>,
}

impl Trace {
    /// The whole trace, as a file's text.
    pub fn into_text(mut self) -> String {
        if self.lines > LINES_MAX {
            let more = self.lines - LINES_MAX;
            _ = writeln!(self.text, "# {more} lines more are left out: simulate less time");
        }
        format!("# tracer: nop\n#\n{}", self.text)
    }

    fn name(&self, task: TaskId) -> &str {
        self.names.get(&task).map_or("?", String::as_str)
    }

    /// Writes one line, as an event of the task that has the CPU.
    fn line(&mut self, now: Nanos, cpu: CpuId, what: std::fmt::Arguments) {
        self.lines += 1;
        if self.lines > LINES_MAX {
            return;
        }
        let (seconds, rest) = (now.0 / 1_000_000_000, now.0 % 1_000_000_000);
        let (name, number) = match self.has.get(&cpu).copied().flatten() {
            Some(task) => (self.name(task).to_owned(), task.0 + 1),
            None => ("<idle>".to_owned(), 0),
        };
        let cpu = cpu.0;
        _ = writeln!(self.text, "{name:>16}-{number:<7} [{cpu:03}] d... {seconds}.{rest:09}: {what}");
    }

    /// Writes that a task is woken, as an event of the task that has `cpu`.
    fn woken(&mut self, now: Nanos, cpu: CpuId, event: &str, wakee: TaskId, target: u32) {
        let (name, number) = (self.name(wakee).to_owned(), wakee.0 + 1);
        self.line(
            now,
            cpu,
            format_args!("{event}: comm={name} pid={number} prio=120 target_cpu={target:03}"),
        );
    }
}

impl Observer for Trace {
    fn waking(&mut self, now: Nanos, waker: WakeSource, wakee: TaskId) {
        let cpu = match waker {
            WakeSource::Cpu(cpu) | WakeSource::Outside(Some(cpu)) => cpu,
            WakeSource::Outside(None) => CpuId(0),
        };
        let last = self.last.get(&wakee).map_or(0, |cpu| cpu.0);
        self.woken(now, cpu, "sched_waking", wakee, last);
    }

    fn queued(&mut self, now: Nanos, task: TaskId, at: TargetQueue) {
        // A task in a shared queue is on no CPU yet.
        let TargetQueue::Cpu(cpu) = at else { return };
        self.last.insert(task, cpu);
        self.woken(now, cpu, "sched_wakeup", task, cpu.0);
    }

    fn switch(&mut self, now: Nanos, cpu: CpuId, prev: Option<(TaskId, SwitchReason)>, next: Option<TaskId>) {
        let idle = || (format!("swapper/{}", cpu.0), 0);
        let named = |task: TaskId| (self.name(task).to_owned(), task.0 + 1);
        let (prev_name, prev_number) = prev.map_or_else(idle, |(task, _)| named(task));
        let (next_name, next_number) = next.map_or_else(idle, named);
        let state = match prev {
            Some((_, SwitchReason::Blocked)) => "S",
            Some((_, SwitchReason::Exited)) => "X",
            Some((_, SwitchReason::Runnable)) | None => "R",
        };
        self.has.insert(cpu, prev.map(|(task, _)| task));
        self.line(
            now,
            cpu,
            format_args!(
                "sched_switch: prev_comm={prev_name} prev_pid={prev_number} prev_prio=120 prev_state={state} ==> \
                 next_comm={next_name} next_pid={next_number} next_prio=120"
            ),
        );
        self.has.insert(cpu, next);
    }

    fn task_created(&mut self, _now: Nanos, task: TaskId, name: &str) {
        // As the kernel's names: without blanks, and at most 15 characters.
        let name = name.chars().map(|c| if c.is_whitespace() { '_' } else { c }).take(15).collect();
        self.names.insert(task, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::costs::Costs;
    use crate::policy::Kernel;
    use crate::program::Program;
    use crate::simulation::{Settings, Simulation};
    use warmcore_topo::Topology;

    fn traced() -> String {
        let text = "[two]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = 2\nsmt = 1\n";
        let topology = Topology::from_machine(text, "two").unwrap();
        let costs = Costs::of(&topology);
        let (settings, kernel) = (Settings::kernel(), Kernel::default());
        let mut sim = Simulation::watched(&topology, &costs, settings, kernel, 1, Trace::default());
        sim.spawn(&Program::new("a server").repeat(3, |p| p.wait().run(1_000))).unwrap();
        sim.spawn(&Program::new("client").repeat(3, |p| p.sleep(50_000).run(1_000).wake("a server")))
            .unwrap();
        let report = sim.run(Nanos(1_000_000_000)).unwrap();
        assert!(report.is_complete());
        sim.into_observer().into_text()
    }

    #[test]
    fn every_switch_is_from_the_task_that_the_cpu_had() {
        let text = traced();
        let mut has = ["0"; 2];
        let mut switches = 0;
        for line in text.lines().filter(|line| line.contains("sched_switch")) {
            let of = |key: &str| line.split(key).nth(1).unwrap().split(' ').next().unwrap();
            let cpu: usize = line.split('[').nth(1).unwrap()[..3].parse().unwrap();
            assert_eq!(of("prev_pid="), has[cpu], "{line}\n{text}");
            has[cpu] = of("next_pid=");
            switches += 1;
        }
        assert!(switches >= 12, "{text}");
        assert_eq!(has, ["0"; 2], "all have ended: {text}");
    }

    #[test]
    fn a_wakee_is_named_without_blanks_and_times_rise() {
        let text = traced();
        assert!(text.starts_with("# tracer: nop\n"), "{text}");
        assert!(text.matches("sched_waking: comm=a_server").count() >= 3, "{text}");
        let times: Vec<f64> = text
            .lines()
            .filter_map(|line| line.split("d... ").nth(1)?.split(':').next()?.parse().ok())
            .collect();
        assert!(times.len() > 20 && times.is_sorted(), "{text}");
    }
}
