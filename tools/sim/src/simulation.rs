//! Simulation: a machine on which tasks run, on a virtual clock.
//!
//! A loop takes the next event and changes the state. When a decision is due, it calls the scheduler, `cid` and
//! `budget`, and carries out what they return. Everything runs on one thread.
//!
//! `state` has the CPUs and tasks; `step` runs programs; `running` has the time of CPUs; `process` has the concurrency
//! ids. `scheduler` is the interface of what schedules: `kernel` is a simulated kernel, `runtime` the workers of a
//! runtime, which run the product's scheduler core.
//!
//! **Not simulated:** priorities and groups, clock frequencies (except in the first pass over memory after a deep idle
//! state), interrupts other than ticks, timers and wakes, cache misses in the rest of a step that was preempted, active
//! balancing.
//!
//! **Beside a real kernel** (`warmcore guest simulate`, `reports/2026-11-30-simulator-against-kernel`) three more omissions count.
//! A task that wakes another one and then blocks does both at one moment, so that a wakee on its CPU waits for nothing. Paths through
//! the kernel have constants, which do not grow with the number of busy CPUs as they do in an emulated machine. And programs of a file
//! begin on an idle machine, and not one after the other as threads of a thread that forks them.
//!
//! # Source
//!
//! Linux `try_to_wake_up`, `__schedule`, `scheduler_tick`, `newidle_balance`; `wake`, `settings` and `process` name the
//! versions.
//!
//! ```
//! use warmcore_sim::{costs::Costs, policy::Kernel, program::Program, simulation::{Settings, Simulation}};
//! use warmcore_types::Nanos;
//! use warmcore_topo::{MACHINES, Topology};
//!
//! let topology = Topology::from_machine(MACHINES, "ryzen7950x")?;
//! let costs = Costs::from_machine(MACHINES, "ryzen7950x")?;
//! let mut simulation = Simulation::new(&topology, &costs, Settings::kernel(), Kernel::default(), 1);
//! simulation.spawn(&Program::new("client").repeat(100, |p| p.run(8_000).wake("server").wait().mark("trips")))?;
//! simulation.spawn(&Program::new("server").daemon().forever(|p| p.wait().run(8_000).wake("client")))?;
//! let report = simulation.run(Nanos(1_000_000_000))?;
//! assert!(report.is_complete());
//! assert_eq!(report.mark("trips"), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::costs::Costs;
use crate::event::Events;
use crate::memory::{ExtentId, LineId, Memory, Pages};
use crate::program::{AccountId, Length, Op, ProcessId, Program, ProgramError, TaskId};
use crate::random::Random;
use channel::Channel;
use code::{Code, Names};
use settings::Times;
use state::State;
use task::{NONE, Task, WaitQueue};
use warmcore_sched::SchedDomains;
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos, NodeId};

mod account;
mod call_costs;
mod channel;
mod code;
mod kernel;
mod outside;
pub mod process;
mod report;
mod running;
mod runtime;
mod scheduler;
mod settings;
mod state;
mod step;
mod task;
#[cfg(test)]
mod tests;

pub use crate::trace::{Observer, SwitchReason};
pub use call_costs::{ByIdle, CallCosts};
pub use kernel::KernelScheduler;
pub use outside::{Drivers, Outside};
pub use report::{Outcome, Report, TaskReport, Waiting, WaitsFor};
pub use runtime::RuntimeScheduler;
pub use scheduler::Scheduler;
pub use settings::Settings;
pub use state::CpuCounts;
pub use task::TaskCounts;

/// The class of an event. Of two events at the same time the one with the lower class comes first.
mod event_class {
    pub(super) const STEP: u8 = 0;
    pub(super) const AWAKE: u8 = 1;
    pub(super) const TIMER: u8 = 2;
    pub(super) const BEGIN: u8 = 3;
    pub(super) const PREEMPT: u8 = 4;
    /// Of a runtime, which does not preempt.
    pub(super) const LONG_POLL: u8 = PREEMPT;
    pub(super) const TICK: u8 = 5;
    pub(super) const SEARCH: u8 = 6;
    /// An outside thread begins, continues or preempts.
    pub(super) const OUTSIDE: u8 = 7;
    /// Wakes from outside, in the order of a list.
    pub(super) const ARRIVALS: u8 = 8;
    /// A recorded wake of a task from outside.
    pub(super) const ARRIVAL: u8 = 9;
}

/// The CPU, task or thread of an event. `generation`: for STEP, AWAKE and SEARCH that of the CPU when the event was pushed, and
/// the event is stale if the CPU has another one when the event is due; for OUTSIDE that of the thread; for PREEMPT the task
/// to preempt; else 0.
#[derive(Debug, Clone, Copy)]
struct Target {
    index: u32,
    generation: u32,
}

/// A machine on which tasks run. `S` decides which task has a CPU; `O` is an [`Observer`] of wakes and switches.
pub struct Simulation<S: Scheduler, O = ()> {
    state: State<S>,
    observer: O,
    settings: Settings,
    times: Times,
    memory: Memory,
    random: Random,
    events: Events<Target>,
    codes: Vec<Code>,
    /// The linked steps of all programs, one program after the other. `parts`: where those of each code (see `Code`)
    /// begin and end.
    steps: Vec<Op>,
    parts: Vec<(u32, u32)>,
    names: Names,
    wait_queues: Vec<WaitQueue>,
    channels: Vec<Channel>,
    threads: outside::Threads,
    arrivals: outside::Arrivals,
    marks: Vec<(String, u64)>,
    processes: Vec<process::Process>,
    accounts: account::Budgets,
    topology: Topology,
    /// Indexes of tasks that have ended and may be used again.
    free: Vec<u32>,
    /// Tasks that have not ended, without daemons.
    num_alive_tasks: u64,
    spawned: u64,
    /// Whether there ever was a task that is no daemon. If so, the simulation ends when all such tasks have ended.
    has_end: bool,
    handled: u64,
    stale: u64,
    hash: u64,
    /// Why a program cannot continue. `run` returns it.
    error: Option<ProgramError>,
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// An idle machine without tasks. `sched` creates the scheduler, whose cache lines are in the memory.
    fn of(
        topology: &Topology,
        costs: &Costs,
        settings: Settings,
        seed: u64,
        observer: O,
        sched: impl FnOnce(&SchedDomains, &mut Memory) -> S,
    ) -> Self {
        let kernel_cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
        let machine = SchedDomains::new(topology, &kernel_cpus);
        let core_of: Vec<u32> = topology.cpus.iter().map(|cpu| cpu.core.0).collect();
        let cpus = kernel_cpus.len() as u32;
        let mut memory = Memory::new(costs, topology);
        let sched = sched(&machine, &mut memory);
        Self {
            state: State::new(machine, &core_of, sched),
            observer,
            times: Times::new(costs, &settings),
            settings,
            memory,
            random: Random::new(seed),
            events: Events::new(),
            codes: Vec::new(),
            steps: Vec::new(),
            parts: Vec::new(),
            names: Names::default(),
            wait_queues: Vec::new(),
            channels: Vec::new(),
            threads: outside::Threads::default(),
            arrivals: outside::Arrivals::default(),
            marks: Vec::new(),
            processes: Vec::new(),
            accounts: account::Budgets::new(cpus),
            topology: topology.clone(),
            free: Vec::new(),
            num_alive_tasks: 0,
            spawned: 0,
            has_end: false,
            handled: 0,
            stale: 0,
            hash: 0,
            error: None,
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Nanos {
        Nanos(self.state.now)
    }

    /// The machine as policies see it. Its CPUs are numbered by their index in the topology.
    pub fn machine(&self) -> &SchedDomains {
        &self.state.machine
    }

    /// The model of its caches and memory.
    pub fn memory(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// Ends the simulation. Returns its observer.
    pub fn into_observer(self) -> O {
        self.observer
    }

    /// Creates a working set: see [`Memory::extent`].
    pub fn extent(&mut self, bytes: u64, pages: Pages, home: Option<NodeId>) -> ExtentId {
        self.memory.extent(bytes, pages, home)
    }

    /// Creates a line: see [`Memory::line`].
    pub fn line(&mut self) -> LineId {
        self.memory.line()
    }

    /// Creates a process without tasks.
    pub fn process(&mut self, plan: process::Plan) -> ProcessId {
        self.processes.push(process::Process::new(self.state.cpus.len() as u32, plan));
        ProcessId(self.processes.len() as u32 - 1)
    }

    /// A process, with the counters of its concurrency ids.
    pub fn process_of(&self, id: ProcessId) -> &process::Process {
        &self.processes[id.0 as usize]
    }

    /// Creates a budget account below `parent`, or a root. Its stocks (units that a CPU holds ready) have locks, as in
    /// the published kernel.
    pub fn account(&mut self, name: &str, parent: Option<AccountId>, limit: u64) -> AccountId {
        self.accounts.create(name, parent, limit)
    }

    /// The units charged to an account, including those in stocks, and the number of charges that the account
    /// refused.
    pub fn account_use(&self, account: AccountId) -> (u64, u64) {
        self.accounts.usage(account)
    }

    /// Drains all stocks of an account. Returns the units that came back.
    pub fn drain(&mut self, account: AccountId) -> u64 {
        self.accounts.drain(account)
    }

    /// Creates a task that runs `program`. It is woken at the present virtual time, or later by the program's delay.
    ///
    /// # Errors
    /// A program that fails [`Program::check`], that names CPUs, an LLC or a node that the machine does not have, or
    /// several CPUs that are not all of an LLC, a node or the machine, or that names a process that this simulation
    /// does not have.
    pub fn spawn(&mut self, program: &Program) -> Result<TaskId, ProgramError> {
        program.check()?;
        let code = self.load(program)?;
        let entity = self.spawned;
        self.spawned += 1;
        let id = self.make(code, entity, NONE);
        self.names.tasks.insert(program.name.clone(), id);
        let at = program.delay.map_or(0, |delay| self.draw(id, delay));
        self.push_event(self.state.now + at, event_class::BEGIN, id, 0);
        Ok(TaskId(id))
    }

    /// Creates a task that has not begun. `parent`: the task that forks it, or `NONE`.
    fn make(&mut self, code: u32, entity: u64, parent: u32) -> u32 {
        let of = &self.codes[code as usize];
        let mut task = Task::new(code, entity, of.starts_at);
        task.is_daemon = of.program.is_daemon;
        task.tenant = of.program.tenant;
        if let Some(thread) = of.program.outside {
            task.is_outside = true;
            task.thread = self.threads.thread_of(thread, self.state.cpus.len());
        }
        let inherited = if parent == NONE { NONE } else { self.state.tasks[parent as usize].process };
        task.process = of.program.process.map_or(inherited, |process| process.0);
        task.parent = parent;
        task.is_forked = parent != NONE;
        if !task.is_daemon {
            self.num_alive_tasks += 1;
            self.has_end = true;
        }
        if task.process != NONE {
            let allowed = self.cpus_of(of.starts_at);
            task.user = self.processes[task.process as usize].join(&allowed);
        }
        let tasks = &mut self.state.tasks;
        let id = self.free.pop().unwrap_or(tasks.len() as u32);
        if tasks.len() == tasks.capacity() {
            // Grow by an eighth and 16: tasks are large, and doubling would leave half of the capacity empty.
            tasks.reserve_exact(tasks.len() / 8 + 16);
        }
        if id as usize == tasks.len() {
            tasks.push(task)
        } else {
            tasks[id as usize] = task
        }
        self.observer.task_created(
            Nanos(self.state.now),
            TaskId(id),
            &self.codes[code as usize].program.name,
        );
        id
    }

    fn draw(&mut self, id: u32, length: Length) -> u64 {
        let task = &mut self.state.tasks[id as usize];
        length.draw(self.random, task.entity, &mut task.draws).0
    }

    /// Runs until all tasks that are not daemons have ended, or no event is left, or the next event is due after
    /// `until`.
    ///
    /// # Errors
    /// A wake of a task that does not exist; a program that continues without time passing, that unlocks a lock it does
    /// not hold or ends with a lock, or that uncharges more than is charged; a fork while there are 2²² tasks; the end
    /// of the clock, 292 years.
    pub fn run(&mut self, until: Nanos) -> Result<Report, ProgramError> {
        self.link()?;
        while self.num_alive_tasks > 0 || !self.has_end {
            let Some(due) = self.events.pop_until(until) else { break };
            debug_assert!(due.at.0 >= self.state.now, "time goes back");
            self.state.now = due.at.0;
            let Target { index, generation } = due.what;
            let word = due.at.0 ^ u64::from(due.class) << 60 ^ u64::from(index) << 32 ^ u64::from(generation);
            self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let was_stale = self.handle_event(due.class, index, generation);
            self.handled += u64::from(!was_stale);
            self.stale += u64::from(was_stale);
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        if (self.num_alive_tasks > 0 || !self.has_end) && self.events.next_at().is_some() {
            // An earlier call may have run beyond `until`: time never goes back.
            self.state.now = self.state.now.max(until.0);
        }
        Ok(self.report())
    }

    /// The linked steps of a program.
    #[inline]
    fn ops(&self, code: u32) -> &[Op] {
        let (begin, end) = self.parts[code as usize];
        &self.steps[begin as usize..end as usize]
    }

    /// Handles an event. Returns whether it was stale.
    #[inline]
    fn handle_event(&mut self, class: u8, index: u32, generation: u32) -> bool {
        let is_current = |sim: &Self| sim.state.cpus[index as usize].generation == generation;
        match class {
            event_class::STEP | event_class::AWAKE | event_class::SEARCH if !is_current(self) => return true,
            event_class::STEP => return self.finish_step(index),
            event_class::AWAKE => S::finish_wakeup(self, index),
            event_class::OUTSIDE => return self.run_thread(index, generation),
            event_class::ARRIVALS => self.next_arrivals(),
            event_class::ARRIVAL => self.arrive(index, true),
            event_class::TIMER | event_class::BEGIN if self.state.tasks[index as usize].is_outside => {
                _ = self.wake_outside(index)
            }
            event_class::TIMER => S::expire(self, index),
            event_class::BEGIN => S::begin(self, index),
            event_class::TICK => return self.tick(index),
            _ => return S::handle_event(self, class, index, generation),
        }
        false
    }

    /// Pushes an event of a CPU or task. `generation`: see [`Target`].
    #[inline]
    fn push_event(&mut self, at: u64, class: u8, index: u32, generation: u32) {
        self.events.push(Nanos(at), class, Target { index, generation });
    }
}
