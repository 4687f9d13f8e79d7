//! Settings: how the machine's host schedules, apart from where; and what its acts cost, taken from [`Costs`].
//!
//! Model.   By default a kernel: a fair order, ticks, a slice, and wakees that have used little go first. `runtime`
//!          is the other host: nobody is interrupted, and the policy says in which order a round goes.
//! Number.  Times are whole ns here; a wake of an idle CPU in C1 takes 1500 of them.
//! Source.  Linux 6.5 `kernel/sched/fair.c` with 8 CPUs and more: `sysctl_sched_min_granularity` 3 ms,
//!          `sysctl_sched_wakeup_granularity` 4 ms, half of `sysctl_sched_latency` 12 ms.

use crate::costs::Costs;
use warmcore_topo::Distance;
use warmcore_types::Nanos;

/// Lines of a run queue that `update_sg_lb_stats` reads: `nr_running` and `curr`, the queue of the fair class, its load
/// averages, the idle state. Estimated: counted in the source of 6.6 and not measured.
const LOOK_LINES_KERNEL: u32 = 4;

/// Lines that `detach_task` and `attach_task` move: the run queue's lock, two nodes of the tree, three of the task.
/// Estimated in the same way.
const TAKE_LINES_KERNEL: u32 = 6;

/// A worker of a runtime shows how much waits there in one line.
const LOOK_LINES_RUNTIME: u32 = 1;

/// Its queue's lock, the slot in it, and the task's header.
const TAKE_LINES_RUNTIME: u32 = 3;

/// In which order tasks wait on a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Who has run least comes first, as in the kernel.
    #[default]
    Fair,
    /// Rounds, in the direction that the policy says, as in a runtime.
    Rounds,
}

/// How the host schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// In which order tasks wait.
    pub order: Order,
    /// Ticks per second on a CPU that runs something: 250 or 1000. 0: none.
    pub hz: u32,
    /// Who has run so long is interrupted at a tick if somebody waits. `None`: never.
    pub slice: Option<Nanos>,
    /// A wakee that is so far behind who runs interrupts it. `None`: never.
    pub wake_granularity: Option<Nanos>,
    /// A sleeper counts as at most so far behind.
    pub sleeper_credit: Nanos,
    /// Who has run so long at a time counts as stuck. `None`: nobody, because ticks interrupt.
    pub long_run: Option<Nanos>,
    /// A thread's speed beside a busy sibling, in thousandths. `None`: what the machine's costs say.
    pub smt_per_mille: Option<u32>,
    /// How often ids of a process that nobody used are looked for.
    pub compaction: Nanos,
    /// A charge and a give-back that a stock serves.
    pub charge: Nanos,
    /// A policy is asked for help when a task is put behind others and when who looked has found something, as its
    /// trait says; else at ticks alone, as the kernel does.
    pub notify_at_once: bool,
    /// A CPU is kept for a sleeper only if that leaves it idle.
    pub keep_idle_only: bool,
    /// Cache lines that a search reads of each CPU's run queue that it looks at. 0: a search takes no time.
    pub look_lines: u32,
    /// Cache lines that a task brings along when a CPU takes it from another's run queue: the queue's lock and links, and
    /// the task's own. 0: that takes no time.
    pub take_lines: u32,
    /// Steps in a row without a nanosecond after which a program is called stuck.
    pub steps_max: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            order: Order::Fair,
            hz: 250,
            slice: Some(Nanos(3_000_000)),
            wake_granularity: Some(Nanos(4_000_000)),
            sleeper_credit: Nanos(12_000_000),
            long_run: None,
            smt_per_mille: None,
            compaction: Nanos(100_000_000),
            charge: Nanos(5),
            notify_at_once: true,
            keep_idle_only: false,
            look_lines: LOOK_LINES_RUNTIME,
            take_lines: TAKE_LINES_RUNTIME,
            steps_max: 1_000_000,
        }
    }
}

impl Settings {
    /// The kernel's own, for [`Kernel`](crate::policy::Kernel).
    pub fn kernel() -> Self {
        Self {
            notify_at_once: false,
            keep_idle_only: true,
            look_lines: LOOK_LINES_KERNEL,
            take_lines: TAKE_LINES_KERNEL,
            ..Self::default()
        }
    }

    /// A runtime's workers: nobody is interrupted.
    pub fn runtime() -> Self {
        Self {
            order: Order::Rounds,
            slice: None,
            wake_granularity: None,
            long_run: Some(Nanos(1_000_000)),
            ..Self::default()
        }
    }
}

/// In the order of [`warmcore_sched::Distance`].
const DISTANCES: [Distance; 6] =
    [Distance::Same, Distance::Smt, Distance::Llc, Distance::Node, Distance::Socket, Distance::Other];

/// What acts of the host cost, in whole ns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// From the wake to the first instruction of the wakee, without the way out of the idle state.
    pub(crate) kick: u64,
    /// (residency, exit, whether the core's caches are empty then), the lightest first.
    exits: Vec<(u64, u64, bool)>,
    pub(crate) tick: u64,
    /// Between ticks; 0: none.
    pub(crate) period: u64,
    /// How far a CPU's ticks are from the period's begin, at most.
    pub(crate) tick_spread: u64,
    /// The speed of a thread with so many busy ones on its core, in thousandths: by their number less one.
    pub(crate) speed: [u32; 8],
    /// A look at one CPU's id by a compaction.
    pub(crate) scan: u64,
    /// A waker's look at one CPU, by how far that is, in picoseconds: one line, of which several overlap.
    pub(crate) look: [u64; 6],
    /// A look at one CPU's run queue in a search, in picoseconds.
    pub(crate) search: [u64; 6],
    /// A task that comes from another CPU's run queue, in picoseconds.
    pub(crate) take: [u64; 6],
}

impl Times {
    pub(crate) fn new(costs: &Costs, settings: &Settings) -> Self {
        let known = |name: &str| costs.get(name).map_or(0, |_| costs.ns(name).0);
        let exits: Vec<_> =
            costs.cstates().iter().map(|state| (state.residency.0, state.exit.0, state.flushes)).collect();
        // The own run queue's lines are in the own cache.
        let lines = |lines: u32, distance| match distance {
            Distance::Same => 0,
            _ => costs.hand_over(distance).saturating_mul(lines.into()),
        };
        let lightest = exits.first().map_or(0, |state| state.1);
        let percent = costs.get("smt_speed_percent").map_or(100, |number| number.milli / 1000);
        let two = settings.smt_per_mille.unwrap_or(percent as u32 * 10).clamp(1, 1000);
        // Of more threads each brings to the core as much as the second did.
        let gain = (2 * two).saturating_sub(1000);
        let mut speed = [1000; 8];
        for (n, speed) in (1..).zip(&mut speed).skip(1) {
            *speed = if n == 2 { two } else { (1000 + gain * (n - 1)) / n };
        }
        Self {
            voluntary: known("csw_voluntary"),
            involuntary: known("csw_involuntary"),
            kick: known("ipi_idle_c1_wakeup").saturating_sub(lightest),
            exits,
            tick: known("tick"),
            period: 1_000_000_000u64.checked_div(settings.hz.into()).unwrap_or(0),
            tick_spread: 2 * known("tick_jitter_sigma"),
            speed,
            scan: known("mm_cid_scan_ns_per_cpu"),
            look: DISTANCES.map(|distance| costs.read_overlapped(costs.hand_over(distance))),
            search: DISTANCES.map(|distance| lines(settings.look_lines, distance)),
            take: DISTANCES.map(|distance| lines(settings.take_lines, distance)),
        }
    }

    /// The way out of the state in which a CPU is that idled for so long, and whether its caches are empty then. The
    /// kernel is taken to have foreseen the length.
    #[inline]
    pub(crate) fn exit(&self, idle: u64) -> (u64, bool) {
        let deepest = self.exits.iter().rev().find(|(residency, ..)| *residency <= idle);
        deepest.map_or((0, false), |(_, exit, flushes)| (*exit, *flushes))
    }
}
