//! Program: what a task does, step by step.
//!
//! A program is a flat list of steps, built by chaining calls or read from rt-app's JSON. A step that takes time
//! ([`run`](Program::run), [`touch`](Program::touch)) may be preempted; a step that affects other tasks or may block
//! ([`wake`](Program::wake), [`wait`](Program::wait), [`lock`](Program::lock)) happens at one moment. For each wake
//! outside of a `wait`, one later `wait` of the task returns at once. Names of tasks and locks are resolved when the
//! simulation runs, so two programs may name each other. A step takes 32 bytes.
//!
//! ```
//! use warmcore_sim::program::Program;
//!
//! let client = Program::new("client").forever(|p| p.run(8_000).wake("server").wait().mark("round trips"));
//! let server = Program::new("server").forever(|p| p.wait().run(8_000).wake("client"));
//! assert_eq!((client.name(), server.steps()), ("client", 5));
//! ```

use crate::memory::{Access, ExtentId, LineId, Pages};
use crate::random::{self, Purpose, Random};
use std::ops::RangeInclusive;
use std::sync::Arc;
use warmcore_sched::Allowed;
use warmcore_types::{CpuId, CpuSet, LlcId, Nanos, NodeId};

mod check;
pub mod rt_app;
#[cfg(test)]
mod tests;

pub use crate::error::Error as ProgramError;

/// The most loops that may be nested.
pub const LOOPS_MAX: usize = 6;

/// The most levels of programs that fork each other. Each level may multiply the number of tasks.
pub const FORKS_MAX: usize = 64;

/// The longest run, sleep, timer period or delay: 104 days. A simulation's clock has room for a thousand of them.
pub const LENGTH_MAX: Nanos = Nanos(1 << 53);

/// Identifies a task of a simulation. The number of a forked task that has ended may be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Identifies a process: tasks that share concurrency ids. The kernel's `mm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// Identifies an account of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub u32);

/// How long something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Always the same.
    Fixed(Nanos),
    /// Uniformly distributed between two values, both included; always the first if the second is not larger.
    Between(Nanos, Nanos),
    /// Uniformly distributed around a mean, by up to this percentage of it; above 100 counts as 100.
    Around(Nanos, u32),
    /// Exponentially distributed, with this mean.
    Exponential(Nanos),
}

impl Length {
    /// An upper bound of each draw.
    pub fn longest(self) -> Nanos {
        match self {
            Self::Fixed(ns) => ns,
            Self::Between(a, b) => a.max(b),
            Self::Around(mean, percent) => {
                let reach = u128::from(mean.0) * u128::from(percent.min(100)) / 100;
                Nanos(mean.0.saturating_add(reach as u64))
            }
            Self::Exponential(mean) => Nanos(mean.0.saturating_mul(46)),
        }
    }

    /// Draws a length for `entity`. `count` is the number of draws of `entity` so far; a `Fixed` length does not count.
    #[inline]
    pub fn draw(self, random: Random, entity: u64, count: &mut u64) -> Nanos {
        let mut bits = || {
            *count += 1;
            random.bits(entity, Purpose::Step, *count)
        };
        match self {
            Self::Fixed(ns) => ns,
            Self::Between(a, b) => Nanos(random::between(bits(), a.0, b.0)),
            Self::Around(mean, percent) => random::jittered(bits(), mean, percent),
            Self::Exponential(mean) => random::exponential(bits(), mean),
        }
    }
}

impl From<u64> for Length {
    fn from(ns: u64) -> Self {
        Self::Fixed(Nanos(ns))
    }
}

impl From<Nanos> for Length {
    fn from(ns: Nanos) -> Self {
        Self::Fixed(ns)
    }
}

impl From<RangeInclusive<u64>> for Length {
    fn from(range: RangeInclusive<u64>) -> Self {
        Self::Between(Nanos(*range.start()), Nanos(*range.end()))
    }
}

/// The task that a step wakes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WakeTarget {
    /// The spawned task of this name; of several, the last one that was spawned before the `Simulation::run` that
    /// resolves the name.
    Named(String),
    /// This task.
    Task(TaskId),
}

impl From<&str> for WakeTarget {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<String> for WakeTarget {
    fn from(name: String) -> Self {
        Self::Named(name)
    }
}

impl From<TaskId> for WakeTarget {
    fn from(task: TaskId) -> Self {
        Self::Task(task)
    }
}

/// Where a task may run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TaskAffinity {
    /// On all CPUs.
    #[default]
    Anywhere,
    /// On one CPU.
    Cpu(CpuId),
    /// In one last-level cache.
    Llc(LlcId),
    /// On one node.
    Node(NodeId),
    /// On these CPUs, which have to be one CPU, or all of an LLC, of a node or of the machine.
    Cpus(CpuSet),
}

impl From<Allowed> for TaskAffinity {
    fn from(allowed: Allowed) -> Self {
        match allowed {
            Allowed::Anywhere => Self::Anywhere,
            Allowed::Cpu(cpu) => Self::Cpu(cpu),
            Allowed::Llc(llc) => Self::Llc(llc),
            Allowed::Node(node) => Self::Node(node),
        }
    }
}

/// A name by its index in the program's list, until a simulation resolves it.
pub(crate) type Name = u32;

/// What a step does. Names are indexes: see [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Run(Length),
    /// Runs until so much time has passed since it began, also while the task is preempted.
    RunFor(Length),
    Touch(ExtentId, Access),
    /// The first `kib` KiB of the task's own working set, which its first touch creates.
    TouchOwn {
        kib: u32,
        pages: Pages,
        how: Access,
    },
    /// The area of the process's concurrency id under which the task runs.
    TouchCid(Access),
    ReadLine(LineId),
    WriteLine(LineId),
    WakeNamed {
        target: Name,
        is_sync: bool,
    },
    Wake {
        task: TaskId,
        is_sync: bool,
    },
    Wait,
    /// The own work of a poll begins: see [`Program::begin_poll`].
    BeginPoll {
        refill: Nanos,
    },
    /// Waits for one wake; yields if there is one already.
    EndPoll,
    /// As `EndPoll`, and one comes from outside: see [`Program::end_poll_until`].
    EndPollUntil {
        at: Nanos,
        after: Nanos,
    },
    Sleep(Length),
    /// Sleeps until `period` after the time for which the timer was last set: see [`Program::timer`].
    Timer {
        period: Nanos,
        is_absolute: bool,
        slot: u8,
    },
    Yield,
    Fork(u32),
    Join,
    Lock(Name),
    Unlock(Name),
    /// Unlocks, and waits for a signal.
    WaitOn {
        condition: Name,
        lock: Name,
    },
    /// Waits for a signal, without a lock.
    Suspend(Name),
    Signal(Name),
    Broadcast(Name),
    Barrier {
        name: Name,
        parties: u32,
    },
    /// Takes an operation from the budget of the task's poll, or yields.
    Spend,
    /// Reserves room in a channel, or waits for it.
    Reserve(Name),
    /// Sends a message for which room is reserved. `room`: how many messages the channel holds.
    Send {
        channel: Name,
        room: u32,
        is_socket: bool,
    },
    /// Waits until a channel has a message.
    Await(Name),
    /// Takes a message.
    Take(Name),
    Charge(AccountId, u64),
    Uncharge(AccountId, u64),
    Mark(Name),
    Allow(u32),
    /// Begins a loop of this many rounds; `u32::MAX`: for ever. `end`: the step after the loop.
    Begin {
        times: u32,
        end: u32,
    },
    /// Ends the loop that begins at this step.
    End(u32),
}

/// The number of rounds of an endless loop.
pub(crate) const FOREVER: u32 = u32::MAX;

/// A program. A clone shares its steps. A simulation copies the steps at each
/// [`spawn`](crate::simulation::Simulation::spawn).
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) ops: Arc<Vec<Op>>,
    pub(crate) names: Arc<Vec<String>>,
    /// The programs that it forks. A child may be shared, so that a tree of forks that is read from a file takes no
    /// more memory than the file's text.
    pub(crate) children: Arc<Vec<Arc<Program>>>,
    pub(crate) affinities: Arc<Vec<TaskAffinity>>,
    pub(crate) starts_at: Arc<TaskAffinity>,
    pub(crate) process: Option<ProcessId>,
    pub(crate) is_daemon: bool,
    /// `Some(None)`: an outside thread of its own runs it, `Some(Some(_))`: the thread of that number.
    pub(crate) outside: Option<Option<u32>>,
    pub(crate) tenant: u64,
    pub(crate) delay: Option<Length>,
    /// (step, location in a file): the location of this step and of those after it, up to the next step that is listed.
    pub(crate) locations: Arc<Vec<(u32, Arc<str>)>>,
}

impl Program {
    /// Creates a program without steps. Its tasks have the same name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of steps, including the begin and end of loops.
    pub fn steps(&self) -> usize {
        self.ops.len()
    }

    /// The same program under another name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Restricts where its tasks may run, from their start on.
    pub fn on(mut self, affinity: impl Into<TaskAffinity>) -> Self {
        self.starts_at = Arc::new(affinity.into());
        self
    }

    /// Puts its tasks, and those that they fork, into this process, unless a forked program names another one.
    pub fn in_process(mut self, process: ProcessId) -> Self {
        self.process = Some(process);
        self
    }

    /// Makes it a daemon: the simulation ends when all tasks that are not daemons have ended.
    pub fn daemon(mut self) -> Self {
        self.is_daemon = true;
        self
    }

    /// Gives its tasks a tenant of the usual weight, which Warmcore's scheduler core knows. 0: none.
    pub fn for_tenant(mut self, tenant: u64) -> Self {
        self.tenant = tenant;
        self
    }

    /// Makes it an outside thread, which no scheduler of the simulation places: see
    /// [`Outside`](crate::simulation::Outside).
    pub fn outside(mut self) -> Self {
        self.outside = Some(None);
        self
    }

    /// Lets the outside thread of this number run it, in turn with its other programs.
    pub fn on_thread(mut self, number: u32) -> Self {
        self.outside = Some(Some(number));
        self
    }

    /// Lets its tasks begin this long after they were spawned or forked.
    pub fn after(mut self, delay: impl Into<Length>) -> Self {
        self.delay = Some(delay.into());
        self
    }

    fn op(mut self, op: Op) -> Self {
        Arc::make_mut(&mut self.ops).push(op);
        self
    }

    fn named_op(mut self, name: impl Into<String>, op: impl FnOnce(Name) -> Op) -> Self {
        let name = self.name_of(name);
        self.op(op(name))
    }

    fn name_of(&mut self, name: impl Into<String>) -> Name {
        let name = name.into();
        let known = self.names.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            Arc::make_mut(&mut self.names).push(name);
            self.names.len() - 1
        }) as Name
    }

    /// Runs for this long, at the speed of a core without a busy sibling.
    pub fn run(self, length: impl Into<Length>) -> Self {
        self.op(Op::Run(length.into()))
    }

    /// Runs until this much time has passed, whether or not it has the CPU: what a preemption takes is not made up for.
    pub fn run_for(self, length: impl Into<Length>) -> Self {
        self.op(Op::RunFor(length.into()))
    }

    /// Passes once over all of an extent.
    pub fn touch(self, extent: ExtentId, how: Access) -> Self {
        self.op(Op::Touch(extent, how))
    }

    /// Passes once over the first `kib` KiB of a working set that each task of this program has for itself. Its size
    /// is the largest `kib` of the program.
    pub fn touch_own(self, kib: u32, pages: Pages, how: Access) -> Self {
        self.op(Op::TouchOwn { kib, pages, how })
    }

    /// Passes once over the data of the concurrency id under which the task runs; takes no time if the ids of its
    /// process have no data (`Plan::with_area`).
    pub fn touch_cid(self, how: Access) -> Self {
        self.op(Op::TouchCid(how))
    }

    /// Reads a line.
    pub fn read_line(self, line: LineId) -> Self {
        self.op(Op::ReadLine(line))
    }

    /// Writes a line.
    pub fn write_line(self, line: LineId) -> Self {
        self.op(Op::WriteLine(line))
    }

    /// Wakes a task that is in a `wait`. If it is in none and has not ended, one later `wait` of it returns at once.
    pub fn wake(self, target: impl Into<WakeTarget>) -> Self {
        self.wake_op(target.into(), false)
    }

    /// Wakes a task, with the hint that this task blocks right afterwards: a synchronous wake, as through a pipe or a
    /// socket.
    pub fn wake_sync(self, target: impl Into<WakeTarget>) -> Self {
        self.wake_op(target.into(), true)
    }

    fn wake_op(self, target: WakeTarget, is_sync: bool) -> Self {
        match target {
            WakeTarget::Task(task) => self.op(Op::Wake { task, is_sync }),
            WakeTarget::Named(name) => self.named_op(name, |target| Op::WakeNamed { target, is_sync }),
        }
    }

    /// Waits for one wake.
    pub fn wait(self) -> Self {
        self.op(Op::Wait)
    }

    /// Tells the observer that the own work of a poll begins. `refill`: how much longer the poll takes if the task's poll before was on
    /// another CPU under the same last-level cache; if that CPU is further away, in proportion to the transfer of a line.
    pub fn begin_poll(self, refill: Nanos) -> Self {
        self.op(Op::BeginPoll { refill })
    }

    /// Ends a poll: waits for one wake, or yields if there is one already.
    pub(crate) fn end_poll(self) -> Self {
        self.op(Op::EndPoll)
    }

    /// As [`end_poll`](Self::end_poll), and something comes from outside that wakes the task: at `at`, or `after` now if that has passed.
    pub(crate) fn end_poll_until(self, at: Nanos, after: Nanos) -> Self {
        self.op(Op::EndPollUntil { at, after })
    }

    /// Sleeps for this long.
    pub fn sleep(self, length: impl Into<Length>) -> Self {
        self.op(Op::Sleep(length.into()))
    }

    /// Sets a timer to `period` after the time for which it was last set, the first time to `period` from now, and
    /// sleeps until then. `slot` selects one of the task's timers, 0 to 3. If the time has passed, the task does not
    /// sleep, and a relative timer is set to the current time. An absolute timer keeps the time that has passed, so it
    /// never skips a period.
    pub fn timer(self, slot: u8, period: Nanos, is_absolute: bool) -> Self {
        self.op(Op::Timer { period, is_absolute, slot })
    }

    /// Gives up the CPU and stays runnable. With fair order the queued task that has run least comes first; in batches
    /// the task goes into the next batch.
    pub fn yield_now(self) -> Self {
        self.op(Op::Yield)
    }

    /// Creates a task that runs `child`, in this task's process unless `child` names one.
    pub fn fork(self, child: Program) -> Self {
        self.fork_shared(Arc::new(child))
    }

    pub(crate) fn fork_shared(mut self, child: Arc<Program>) -> Self {
        Arc::make_mut(&mut self.children).push(child);
        let at = self.children.len() as u32 - 1;
        self.op(Op::Fork(at))
    }

    /// Waits until all tasks that this task forked have ended.
    pub fn join(self) -> Self {
        self.op(Op::Join)
    }

    /// Takes a lock, after waiting while a task holds it.
    pub fn lock(self, name: &str) -> Self {
        self.named_op(name, Op::Lock)
    }

    /// Unlocks.
    pub fn unlock(self, name: &str) -> Self {
        self.named_op(name, Op::Unlock)
    }

    /// Unlocks, waits until the condition is signalled, and takes the lock again.
    pub fn wait_on(mut self, condition: &str, lock: &str) -> Self {
        let (condition, lock) = (self.name_of(condition), self.name_of(lock));
        self.op(Op::WaitOn { condition, lock }).op(Op::Lock(lock))
    }

    /// Waits until the condition is signalled. A signal that comes before the wait is lost.
    pub fn suspend(self, condition: &str) -> Self {
        self.named_op(condition, Op::Suspend)
    }

    /// Wakes the first task that waits for the condition.
    pub fn signal(self, condition: &str) -> Self {
        self.named_op(condition, Op::Signal)
    }

    /// Wakes all tasks that wait for the condition.
    pub fn broadcast(self, condition: &str) -> Self {
        self.named_op(condition, Op::Broadcast)
    }

    /// Waits until this many tasks, with this one, have reached the barrier. Then the barrier is empty again.
    pub fn barrier(self, name: &str, parties: u32) -> Self {
        self.named_op(name, |name| Op::Barrier { name, parties })
    }

    /// Sends a message to a channel that holds `room` messages; waits while it is full. All senders name the same room.
    pub fn send(self, channel: &str, room: u32) -> Self {
        self.send_op(channel, room, false)
    }

    /// Sends a message to a socket with `room` messages: the receiver is woken by its driver, and the wake costs the sender
    /// nothing more.
    pub fn send_to_socket(self, channel: &str, room: u32) -> Self {
        self.send_op(channel, room, true)
    }

    fn send_op(mut self, channel: &str, room: u32, is_socket: bool) -> Self {
        let channel = self.name_of(channel);
        let ops = [Op::Spend, Op::Reserve(channel), Op::Send { channel, room, is_socket }];
        ops.into_iter().fold(self, Self::op)
    }

    /// Takes a message from a channel; waits while there is none. A channel has one receiver.
    pub fn receive(mut self, channel: &str) -> Self {
        let channel = self.name_of(channel);
        [Op::Spend, Op::Await(channel), Op::Take(channel)].into_iter().fold(self, Self::op)
    }

    /// Charges an account. A refused charge is counted, and the task continues; its later uncharges of this account
    /// omit the units that were refused.
    pub fn charge(self, account: AccountId, units: u64) -> Self {
        self.op(Op::Charge(account, units))
    }

    /// Uncharges an account.
    pub fn uncharge(self, account: AccountId, units: u64) -> Self {
        self.op(Op::Uncharge(account, units))
    }

    /// Counts how often tasks pass this step, to measure throughput.
    pub fn mark(self, name: &str) -> Self {
        self.named_op(name, Op::Mark)
    }

    /// Restricts where the task may run from now on. A task on a CPU that is no longer allowed moves when it is next
    /// woken or stolen.
    pub fn allow(mut self, affinity: impl Into<TaskAffinity>) -> Self {
        Arc::make_mut(&mut self.affinities).push(affinity.into());
        let at = self.affinities.len() as u32 - 1;
        self.op(Op::Allow(at))
    }

    /// Repeats the body this many times.
    pub fn repeat(self, times: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let begin = self.steps();
        body(self.begin_loop(times.min(FOREVER - 1))).end_loop(begin)
    }

    /// Repeats the body for ever.
    pub fn forever(self, body: impl FnOnce(Self) -> Self) -> Self {
        let begin = self.steps();
        body(self.begin_loop(FOREVER)).end_loop(begin)
    }

    pub(crate) fn begin_loop(self, times: u32) -> Self {
        self.op(Op::Begin { times, end: 0 })
    }

    /// Ends the loop that begins at the step `begin`.
    pub(crate) fn end_loop(self, begin: usize) -> Self {
        let mut done = self.op(Op::End(begin as u32));
        let after = done.steps() as u32;
        // If the body returned another program than it was given, there may be no such step; `check` reports that.
        if let Some(Op::Begin { end: end @ 0, .. }) = Arc::make_mut(&mut done.ops).get_mut(begin) {
            *end = after;
        }
        done
    }

    /// Sets the location in a file of the next steps.
    pub(crate) fn set_location(&mut self, location: &str) {
        let begin = self.ops.len() as u32;
        Arc::make_mut(&mut self.locations).push((begin, location.into()));
    }

    /// The program's location: where it begins in its file, or its name.
    pub(crate) fn location(&self) -> String {
        self.locations
            .first()
            .map_or_else(|| format!("program `{}`", self.name), |(_, location)| (**location).to_owned())
    }

    /// A step's location in its file, or else its number.
    pub(crate) fn at(&self, step: usize) -> String {
        let locations = &self.locations;
        match locations[..locations.partition_point(|(first, _)| *first as usize <= step)].last() {
            Some((_, location)) => (**location).to_owned(),
            None => format!("program `{}`, step {}", self.name, step + 1),
        }
    }
}

/// The number of timers of a task.
pub(crate) const TIMERS: usize = 4;
