//! Settings: how the host of a simulation schedules, except for placement; and what its operations cost ([`Costs`]).
//!
//! [`Settings::kernel`] is for a simulated kernel: ticks, time slices, preemption by wakees that have run little.
//! [`Settings::runtime`] is for the workers of a runtime, which preempt no task. Both have all fields; a field that only
//! one of the two schedulers reads says so. Times are in whole ns; with the default costs the wake of an idle CPU in C1
//! takes 1500 ns.
//!
//! # Source
//!
//! Linux 6.5 `kernel/sched/fair.c` with 8 CPUs or more: `sysctl_sched_min_granularity` 3 ms,
//! `sysctl_sched_wakeup_granularity` 4 ms; `sysctl_sched_latency` 24 ms, of which `sleeper_credit` is half.

use super::call_costs::CallCosts;
use super::outside::Outside;
use crate::costs::Costs;
use warmcore_topo::Distance;
use warmcore_types::Nanos;

/// Cache lines of a run queue that `update_sg_lb_stats` reads: `nr_running` and `curr`, the queue of the fair class,
/// its load averages, the idle state. An estimate: counted in the source of 6.6, not measured.
const LOOK_LINES_KERNEL: u32 = 4;

/// Cache lines that `detach_task` and `attach_task` move: the run queue's lock, two nodes of the tree, three of the
/// task. An estimate: counted in the source, not measured.
const TAKE_LINES_KERNEL: u32 = 6;

/// Cache lines that a search in a runtime reads of each worker: the one with its queue's length.
const LOOK_LINES_RUNTIME: u32 = 1;

/// Cache lines that move with a task in a runtime: the queue's lock, the task's slot in the queue, and its header.
const TAKE_LINES_RUNTIME: u32 = 3;

/// How the host schedules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Ticks per second on a CPU that runs a task, such as 250 or 1000. 0: no ticks.
    pub hz: u32,
    /// A task that has run for this long is preempted at a tick if others are queued. `None`: never. Kernel only.
    pub slice: Option<Nanos>,
    /// A wakee whose `vruntime` (its run time, as the kernel compares it between tasks) is smaller than the current
    /// task's by more than this preempts it. `None`: never. Kernel only.
    pub wake_granularity: Option<Nanos>,
    /// When a sleeper is woken, its `vruntime` is raised to this much below that of its CPU (the least of the CPU's
    /// tasks) if it is less. Kernel only.
    pub sleeper_credit: Nanos,
    /// A poll that takes this long is a long one: its worker counts as stuck until it ends. Runtime only.
    pub long_poll: Nanos,
    /// The speed of each of two busy threads of a core, in thousandths. `None`: as in the machine's costs.
    pub smt_per_mille: Option<u32>,
    /// The least interval between scans for unused concurrency ids of a process.
    pub compaction: Nanos,
    /// The time of each charge and each uncharge, as if a stock served it. An uncharge takes no time if the charge of
    /// all its units was refused.
    pub charge: Nanos,
    /// Cache lines that a search reads of each CPU's run queue. 0: that takes no time.
    pub look_lines: u32,
    /// Cache lines that move with a task from another CPU's run queue: the queue's lock and links, and the task's
    /// own. 0: moving takes no time.
    pub take_lines: u32,
    /// How long a runtime's scheduler takes for its own work. Runtime only, except `unpark_latency`.
    pub calls: CallCosts,
    /// Steps in a row without time passing after which a program is in error.
    pub steps_max: u32,
    /// Whether workers learn what the first poll of a task after a move takes. Only of use where tasks have data
    /// ([`Program::touch_own`](crate::program::Program::touch_own)): else moves would count as free. Runtime only.
    pub learns_moves: bool,
    /// The operations on channels after which a task yields. `None`: it never does.
    pub op_budget: Option<u32>,
    /// Threads outside.
    pub outside: Outside,
}

impl Settings {
    /// The settings of a kernel, for [`Kernel`](crate::policy::Kernel).
    pub fn kernel() -> Self {
        Self {
            hz: 250,
            slice: Some(Nanos(3_000_000)),
            wake_granularity: Some(Nanos(4_000_000)),
            sleeper_credit: Nanos(12_000_000),
            long_poll: Nanos(1_000_000),
            smt_per_mille: None,
            compaction: Nanos(100_000_000),
            charge: Nanos(5),
            look_lines: LOOK_LINES_KERNEL,
            take_lines: TAKE_LINES_KERNEL,
            calls: CallCosts::default(),
            steps_max: 1_000_000,
            learns_moves: false,
            op_budget: None,
            outside: Outside::default(),
        }
    }

    /// The settings of a runtime's workers.
    pub fn runtime() -> Self {
        Self { look_lines: LOOK_LINES_RUNTIME, take_lines: TAKE_LINES_RUNTIME, ..Self::kernel() }
    }
}

/// All distances, in the order of [`warmcore_sched::Distance`].
const DISTANCES: [Distance; 6] =
    [Distance::Same, Distance::Smt, Distance::Llc, Distance::Node, Distance::Socket, Distance::Other];

/// What operations of the host cost, in whole ns if not said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) voluntary: u64,
    pub(crate) involuntary: u64,
    /// From the wake to the wakee's first instruction, without the time to leave the idle state.
    pub(crate) kick: u64,
    pub(crate) tick: u64,
    /// The time between ticks; 0: no ticks.
    pub(crate) period: u64,
    /// The longest delay of a CPU's tick.
    pub(crate) tick_spread: u64,
    /// By the number of busy threads on its core, less one: the speed of a thread, in thousandths.
    pub(crate) speed: [u32; 8],
    /// The time for a compaction to examine the id of one CPU.
    pub(crate) scan: u64,
    /// By distance, in picoseconds: a waker's read of one line of another CPU; several such reads overlap.
    pub(crate) look: [u64; 6],
    /// By distance, in picoseconds: the examination of one CPU's run queue by a search.
    pub(crate) search: [u64; 6],
    /// By distance, in picoseconds: the write of the line of another worker's inbox.
    pub(crate) push: [u64; 6],
    /// By distance, in picoseconds: moving a task from another CPU's run queue.
    pub(crate) take: [u64; 6],
}

impl Times {
    pub(crate) fn new(costs: &Costs, settings: &Settings) -> Self {
        let known = |name: &str| costs.get(name).map_or(0, |_| costs.ns(name).0);
        // The lines of a CPU's own run queue are in its own cache.
        let lines = |lines: u32, distance| match distance {
            Distance::Same => 0,
            _ => costs.hand_over(distance).saturating_mul(lines.into()),
        };
        let lightest = costs.cstates().first().map_or(0, |state| state.exit.0);
        let percent = costs.get("smt_speed_percent").map_or(100, |number| number.milli / 1000);
        let two = settings.smt_per_mille.unwrap_or(percent as u32 * 10).clamp(1, 1000);
        // Each thread after the second adds as much to the core's throughput as the second did.
        let gain = (2 * two).saturating_sub(1000);
        let mut speed = [1000; 8];
        for (n, speed) in (1..).zip(&mut speed).skip(1) {
            *speed = if n == 2 { two } else { (1000 + gain * (n - 1)) / n };
        }
        Self {
            voluntary: known("csw_voluntary"),
            involuntary: known("csw_involuntary"),
            kick: known("ipi_idle_c1_wakeup").saturating_sub(lightest),
            tick: known("tick"),
            period: 1_000_000_000u64.checked_div(settings.hz.into()).unwrap_or(0),
            tick_spread: 2 * known("tick_jitter_sigma"),
            speed,
            scan: known("mm_cid_scan_ns_per_cpu"),
            look: DISTANCES.map(|distance| costs.read_overlapped(costs.hand_over(distance))),
            search: DISTANCES.map(|distance| lines(settings.look_lines, distance)),
            push: DISTANCES.map(|distance| lines(1, distance)),
            take: DISTANCES.map(|distance| lines(settings.take_lines, distance)),
        }
    }
}
