//! Program: what a task does, step by step.
//!
//! Model.   A flat list of steps, built by chaining or read from rt-app's JSON. A step that takes time
//!          ([`run`](Program::run), [`touch`](Program::touch)) may be interrupted; one that tells or asks somebody
//!          ([`wake`](Program::wake), [`wait`](Program::wait), [`lock`](Program::lock)) happens at one moment.
//!          Who is woken while it does not wait keeps the wake for its next `wait`: nothing is lost. Names of tasks
//!          and locks are looked up when the simulation begins, so that two programs may name each other.
//! Number.  A ping-pong is four steps of 40 bytes.
//! Writers. The builder; a simulation reads.
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

/// Loops within each other.
pub const LOOPS_MAX: usize = 6;

/// Programs that fork each other, one below the other. Each level may double how many tasks there are.
pub const FORKS_MAX: usize = 64;

/// No length may be longer: 104 days. A thousand of it fit into the clock's number.
pub const LENGTH_MAX: Nanos = Nanos(1 << 53);

/// A task of a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// A group of tasks that share concurrency ids: the kernel's `mm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u32);

/// A budget's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub u32);

/// How long something takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Always the same.
    Fixed(Nanos),
    /// Evenly between two.
    Between(Nanos, Nanos),
    /// Around a mean, by up to so many percent.
    Around(Nanos, u32),
    /// Exponential, with a mean.
    Exponential(Nanos),
}

impl Length {
    /// No draw is longer.
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

    /// The `count`th one that `entity` draws.
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

/// Who is woken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WakeTarget {
    /// The task of that name.
    Named(String),
    /// That task.
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

/// TaskAffinity a task may run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TaskAffinity {
    /// Everywhere.
    #[default]
    Anywhere,
    /// On one CPU.
    Cpu(CpuId),
    /// In one last-level cache.
    Llc(LlcId),
    /// On one node.
    Node(NodeId),
    /// On these, which are all CPUs, one, or those of an LLC or a node.
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

/// A name, as a number: of the program's own, until a simulation looks it up.
pub(crate) type Name = u32;

/// What one step does. Names are numbers: see [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Run(Length),
    Touch(ExtentId, Access),
    /// The task's own working set, made at its first touch.
    TouchOwn {
        kib: u32,
        pages: Pages,
        how: Access,
    },
    /// The area of the process's concurrency id that the CPU holds.
    TouchCid(Access),
    ReadLine(LineId),
    WriteLine(LineId),
    WakeNamed {
        whom: Name,
        is_sync: bool,
    },
    Wake {
        task: TaskId,
        is_sync: bool,
    },
    Wait,
    Sleep(Length),
    /// Until a period after its last use.
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
    /// Lets go of the lock and waits to be told.
    WaitOn {
        condition: Name,
        lock: Name,
    },
    /// Waits to be told, holding nothing.
    Suspend(Name),
    Signal(Name),
    Broadcast(Name),
    Barrier {
        name: Name,
        parties: u32,
    },
    Charge(AccountId, u64),
    Uncharge(AccountId, u64),
    Mark(Name),
    Allow(u32),
    /// So many times; `u32::MAX`: for ever. `end`: behind the loop's end.
    Begin {
        times: u32,
        end: u32,
    },
    /// Back to that step.
    End(u32),
}

/// Loops for ever.
pub(crate) const FOREVER: u32 = u32::MAX;

/// A program. A clone shares its steps: many of a kind are as large as one.
#[derive(Debug, Clone, Default)]
pub struct Program {
    pub(crate) name: String,
    pub(crate) ops: Arc<Vec<Op>>,
    pub(crate) names: Arc<Vec<String>>,
    /// Shared: a tree in which each forks the same one twice is no larger than it was written.
    pub(crate) children: Arc<Vec<Arc<Program>>>,
    pub(crate) affinities: Arc<Vec<TaskAffinity>>,
    pub(crate) starts_at: Arc<TaskAffinity>,
    pub(crate) process: Option<ProcessId>,
    pub(crate) is_daemon: bool,
    pub(crate) delay: Option<Length>,
    /// From that step on: where in a file it stands.
    pub(crate) locations: Arc<Vec<(u32, Arc<str>)>>,
}

impl Program {
    /// One that ends at once; also the name of its task.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many steps it has, a loop's begin and end included.
    pub fn steps(&self) -> usize {
        self.ops.len()
    }

    /// The same under another name: for many of a kind.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// It may run only there, from the beginning.
    pub fn on(mut self, affinity: impl Into<TaskAffinity>) -> Self {
        self.starts_at = Arc::new(affinity.into());
        self
    }

    /// Its tasks belong to that process.
    pub fn in_process(mut self, process: ProcessId) -> Self {
        self.process = Some(process);
        self
    }

    /// Nobody waits for its end: the simulation ends with the last task that is no daemon.
    pub fn daemon(mut self) -> Self {
        self.is_daemon = true;
        self
    }

    /// It begins so long after it was spawned.
    pub fn after(mut self, delay: impl Into<Length>) -> Self {
        self.delay = Some(delay.into());
        self
    }

    fn op(mut self, op: Op) -> Self {
        Arc::make_mut(&mut self.ops).push(op);
        self
    }

    fn name_of(&mut self, name: impl Into<String>) -> Name {
        let name = name.into();
        let known = self.names.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            Arc::make_mut(&mut self.names).push(name);
            self.names.len() - 1
        }) as Name
    }

    /// Runs for so long, on a core that it has to itself.
    pub fn run(self, length: impl Into<Length>) -> Self {
        self.op(Op::Run(length.into()))
    }

    /// Goes once over all of an extent.
    pub fn touch(self, extent: ExtentId, how: Access) -> Self {
        self.op(Op::Touch(extent, how))
    }

    /// Goes once over a working set of its own, which every task that runs this program has for itself: as large as
    /// the most that the program goes over, and what is less is its beginning.
    pub fn touch_own(self, kib: u32, pages: Pages, how: Access) -> Self {
        self.op(Op::TouchOwn { kib, pages, how })
    }

    /// Goes once over the area of the concurrency id under which it runs.
    pub fn touch_cid(self, how: Access) -> Self {
        self.op(Op::TouchCid(how))
    }

    /// Reads a named line.
    pub fn read_line(self, line: LineId) -> Self {
        self.op(Op::ReadLine(line))
    }

    /// Writes a named line.
    pub fn write_line(self, line: LineId) -> Self {
        self.op(Op::WriteLine(line))
    }

    /// Wakes a task; if that does not wait, its next wait goes on at once.
    pub fn wake(self, whom: impl Into<WakeTarget>) -> Self {
        self.wake_op(whom.into(), false)
    }

    /// The same, and says that it sleeps right afterwards: a synchronous wake, as through a pipe or a socket.
    pub fn wake_sync(self, whom: impl Into<WakeTarget>) -> Self {
        self.wake_op(whom.into(), true)
    }

    fn wake_op(mut self, whom: WakeTarget, is_sync: bool) -> Self {
        let op = match whom {
            WakeTarget::Task(task) => Op::Wake { task, is_sync },
            WakeTarget::Named(name) => Op::WakeNamed { whom: self.name_of(name), is_sync },
        };
        self.op(op)
    }

    /// Waits to be woken, once.
    pub fn wait(self) -> Self {
        self.op(Op::Wait)
    }

    /// Sleeps for so long.
    pub fn sleep(self, length: impl Into<Length>) -> Self {
        self.op(Op::Sleep(length.into()))
    }

    /// Sleeps until a period after this timer's last use; not at all if that is past. `slot` below 4 says which of
    /// the task's timers. An absolute one never skips a period.
    pub fn timer(self, slot: u8, period: Nanos, is_absolute: bool) -> Self {
        self.op(Op::Timer { period, is_absolute, slot })
    }

    /// Lets others run first.
    pub fn yield_now(self) -> Self {
        self.op(Op::Yield)
    }

    /// Makes a task that runs `child`, in the same process unless that names another.
    pub fn fork(self, child: Program) -> Self {
        self.fork_shared(Arc::new(child))
    }

    pub(crate) fn fork_shared(mut self, child: Arc<Program>) -> Self {
        Arc::make_mut(&mut self.children).push(child);
        let at = self.children.len() as u32 - 1;
        self.op(Op::Fork(at))
    }

    /// Waits until all tasks that it forked have ended.
    pub fn join(self) -> Self {
        self.op(Op::Join)
    }

    /// Takes a lock, and sleeps as long as another has it.
    pub fn lock(mut self, name: &str) -> Self {
        let name = self.name_of(name);
        self.op(Op::Lock(name))
    }

    /// Gives a lock back.
    pub fn unlock(mut self, name: &str) -> Self {
        let name = self.name_of(name);
        self.op(Op::Unlock(name))
    }

    /// Lets go of the lock, waits until the condition is signalled, and takes the lock again.
    pub fn wait_on(mut self, condition: &str, lock: &str) -> Self {
        let (condition, lock) = (self.name_of(condition), self.name_of(lock));
        self.op(Op::WaitOn { condition, lock }).op(Op::Lock(lock))
    }

    /// Waits until the condition is signalled. A signal that comes before is lost.
    pub fn suspend(mut self, condition: &str) -> Self {
        let name = self.name_of(condition);
        self.op(Op::Suspend(name))
    }

    /// Wakes the first who waits for the condition.
    pub fn signal(mut self, condition: &str) -> Self {
        let name = self.name_of(condition);
        self.op(Op::Signal(name))
    }

    /// Wakes all who wait for the condition.
    pub fn broadcast(mut self, condition: &str) -> Self {
        let name = self.name_of(condition);
        self.op(Op::Broadcast(name))
    }

    /// Waits until so many have come here.
    pub fn barrier(mut self, name: &str, parties: u32) -> Self {
        let name = self.name_of(name);
        self.op(Op::Barrier { name, parties })
    }

    /// Charges an account; a refusal is counted, and the task goes on. What was refused it does not give back.
    pub fn charge(self, account: AccountId, units: u64) -> Self {
        self.op(Op::Charge(account, units))
    }

    /// Gives units back.
    pub fn uncharge(self, account: AccountId, units: u64) -> Self {
        self.op(Op::Uncharge(account, units))
    }

    /// Counts that it came by: throughput.
    pub fn mark(mut self, name: &str) -> Self {
        let name = self.name_of(name);
        self.op(Op::Mark(name))
    }

    /// From here on it may run only there. It moves when it next waits.
    pub fn allow(mut self, affinity: impl Into<TaskAffinity>) -> Self {
        Arc::make_mut(&mut self.affinities).push(affinity.into());
        let at = self.affinities.len() as u32 - 1;
        self.op(Op::Allow(at))
    }

    /// So many times.
    pub fn repeat(self, times: u32, body: impl FnOnce(Self) -> Self) -> Self {
        self.in_loop(times.min(FOREVER - 1), body)
    }

    /// Again and again.
    pub fn forever(self, body: impl FnOnce(Self) -> Self) -> Self {
        self.in_loop(FOREVER, body)
    }

    fn in_loop(self, times: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let begin = self.ops.len();
        let mut done = body(self.op(Op::Begin { times, end: 0 })).op(Op::End(begin as u32));
        let end = done.ops.len() as u32;
        // Not there if the body gave back another program than it got: `check` says so.
        if let Some(op @ Op::Begin { end: 0, .. }) = Arc::make_mut(&mut done.ops).get_mut(begin) {
            *op = Op::Begin { times, end };
        }
        done
    }

    /// Its next steps stand there in a file.
    pub(crate) fn set_location(&mut self, location: &str) {
        let begin = self.ops.len() as u32;
        Arc::make_mut(&mut self.locations).push((begin, location.into()));
    }

    /// Its own location: where it begins in its file, or its name.
    pub(crate) fn location(&self) -> String {
        self.locations
            .first()
            .map_or_else(|| format!("program `{}`", self.name), |(_, location)| (**location).to_owned())
    }

    /// A step's location, in words.
    pub(crate) fn at(&self, step: usize) -> String {
        location_of(&self.name, &self.locations, step as u32)
    }
}

/// A step's location: where it stands in its file, or which it is.
pub(crate) fn location_of(name: &str, locations: &[(u32, Arc<str>)], step: u32) -> String {
    match locations[..locations.partition_point(|(first, _)| *first <= step)].last() {
        Some((_, location)) => (**location).to_owned(),
        None => format!("program `{name}`, step {}", step + 1),
    }
}

/// Timers of a task.
pub(crate) const TIMERS: usize = 4;
