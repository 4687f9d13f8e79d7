//! Script: a random sequence of calls of the scheduler core, and what the core decided in each.
//!
//! One thread plays all workers of a host, on a clock that the script advances. The same seed gives the same calls as long as
//! the core decides the same, so two hosts of one core must give the same log, byte for byte. The hosts' own tests include
//! this file and compare with `fixtures/script.txt`.
#![allow(dead_code)] // Each test uses a part.

use std::collections::BTreeMap;
use std::fmt::Write;
use warmcore_sched::{Allowed, Core, Host, Inbox, Next, SchedDomains, Task};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, Nanos};

/// A host whose clock, tasks and workers' sleep a script plays.
pub trait Scripted: Host {
    /// Makes a task. `tenant`: 0, or the number of one with the weight 100 × that number.
    fn task(&self, number: u32, allowed: Allowed, tenant: u64) -> Self::Task;
    /// The number of a task.
    fn number(task: &Self::Task) -> u32;
    /// Sets the clock of all workers.
    fn set_clock(&self, now: Nanos);
    /// Calls `each` with the workers that were unparked since the last call, in the order of the unparks.
    fn drain_unparked(&self, each: impl FnMut(CpuId));
}

/// The workers of a machine with two last-level caches: four and two.
pub fn machine() -> SchedDomains {
    let text = "[drawn]\nsockets = 1\nl3_per_socket = 2\ncores_per_l3 = 4\nsmt = 1\n";
    let topology = Topology::from_machine(text, "drawn").expect("a machine");
    let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).take(6).collect();
    SchedDomains::new(&topology, &cpus)
}

/// The number of tasks of a script.
pub const TASKS: u32 = 40;

/// The log of a script: its first lines, and a hash of all lines.
pub struct Log {
    pub lines: String,
    pub hash: u64,
    pub calls: u64,
    /// How often each decision was taken.
    pub counts: BTreeMap<&'static str, u64>,
    line: String,
}

impl Log {
    /// The number of lines that are kept.
    const KEPT: usize = 400;

    fn new() -> Self {
        let (lines, line) = (String::with_capacity(1 << 15), String::with_capacity(256));
        Self { lines, hash: 0xcbf2_9ce4_8422_2325, calls: 0, counts: BTreeMap::new(), line }
    }

    fn add(&mut self, what: &'static str, line: std::fmt::Arguments<'_>) {
        self.line.clear();
        writeln!(self.line, "{what} {line}").expect("a string grows");
        for byte in self.line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        self.calls += 1;
        if self.calls <= Self::KEPT as u64 {
            self.lines.push_str(&self.line);
        }
        *self.counts.entry(what).or_default() += 1;
    }

    /// The text of the fixture.
    pub fn text(&self) -> String {
        let mut text = self.lines.clone();
        writeln!(text, "… {} calls, hash {:016x}", self.calls, self.hash).expect("a string grows");
        self.counts.iter().for_each(|(what, n)| writeln!(text, "{what}: {n}").expect("a string grows"));
        text
    }
}

/// Random numbers: splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What a worker is doing.
enum Doing<T> {
    /// It calls `next` when its turn comes.
    Looks,
    Polls {
        task: T,
        since: Nanos,
        is_sampled: bool,
    },
    Maintains,
    Searches,
    Sleeps(Option<Nanos>),
}

/// A host, its workers, and where each of its tasks is.
pub struct Player<'a, H: Scripted> {
    host: &'a H,
    random: Random,
    now: u64,
    cores: Vec<Core<H>>,
    doing: Vec<Doing<H::Task>>,
    /// Tasks that sleep. Every other task is in a queue of the core, or is polled.
    asleep: Vec<H::Task>,
    pub log: Log,
}

impl<'a, H: Scripted> Player<'a, H> {
    pub fn new(host: &'a H, seed: u64) -> Self {
        let workers = host.workers().machine().cpus() as u32;
        let now = 1_000_000;
        host.set_clock(Nanos(now));
        let allowed = |number| match number % 10 {
            0 => Allowed::Cpu(CpuId(number / 10)),
            1 => Allowed::Llc(host.workers().machine().llc_of(CpuId(0))),
            _ => Allowed::Anywhere,
        };
        Self {
            cores: (0..workers).map(|worker| Core::new(host, CpuId(worker), Nanos(1_000_000))).collect(),
            doing: (0..workers).map(|_| Doing::Looks).collect(),
            asleep: (0..TASKS)
                .map(|number| host.task(number, allowed(number), u64::from(number % 3)))
                .collect(),
            host,
            random: Random(seed),
            now,
            log: Log::new(),
        }
    }

    /// Queues all tasks at each worker and runs them, twice, so that each queue has memory for all of them.
    pub fn fill_queues(&mut self) {
        for worker in 0..2 * self.cores.len() {
            let core = &self.cores[worker % self.cores.len()];
            for task in self.asleep.drain(..) {
                self.host.workers().push_inbox(self.host, task, core.me());
            }
            while self.asleep.len() < TASKS as usize {
                match core.next(self.host) {
                    Next::Run(queued) => {
                        core.begin_poll(self.host, &queued.task);
                        core.end_poll(false);
                        self.asleep.push(queued.task);
                    }
                    Next::Maintain => core.maintained(self.host),
                    _ => panic!("tasks are queued"),
                }
            }
        }
    }

    /// Plays until so many calls are in the log.
    pub fn play(&mut self, calls: u64) {
        while self.log.calls < calls {
            // Polls take about 40 µs and about 2 µs in turn: heavy and light tasks.
            let is_heavy = (self.log.calls / 6_000).is_multiple_of(2);
            self.now += self.random.below(if is_heavy { 3_000 } else { 160 });
            self.host.set_clock(Nanos(self.now));
            match self.random.below(16) {
                0 => self.wake_from_outside(),
                1 => self.find_stuck(),
                _ => {
                    let worker = self.random.below(self.cores.len() as u64) as usize;
                    self.act(worker);
                }
            }
            self.host.drain_unparked(|cpu| self.log.add("unpark", format_args!("{cpu}")));
        }
    }

    fn wake_from_outside(&mut self) {
        let Some(task) = self.take_asleep() else { return };
        let near =
            (self.random.below(2) == 0).then(|| CpuId(self.random.below(self.cores.len() as u64) as u32));
        self.log.add("outside", format_args!("wakes {} near {near:?}", H::number(&task)));
        self.host.workers().schedule_external(self.host, task, near);
    }

    /// Finds that a worker is in a long poll, as the watchdog of a runtime does.
    fn find_stuck(&mut self) {
        let worker = self.random.below(4 * self.cores.len() as u64) as usize;
        if let Some(Doing::Polls { .. }) = self.doing.get(worker) {
            self.log.add("stuck", format_args!("{}", self.cores[worker].me()));
            self.host.workers().set_stuck(self.cores[worker].me(), true);
        }
    }

    fn take_asleep(&mut self) -> Option<H::Task> {
        let len = self.asleep.len() as u64;
        (len > 0).then(|| self.asleep.swap_remove(self.random.below(len) as usize))
    }

    /// Lets a worker do one thing.
    fn act(&mut self, worker: usize) {
        let (host, me) = (self.host, CpuId(worker as u32));
        match std::mem::replace(&mut self.doing[worker], Doing::Looks) {
            Doing::Looks => self.look(worker),
            Doing::Polls { task, since, is_sampled } => {
                // Of three phases one has more wakes than polls end with a sleep, so that queues grow, and two have fewer.
                let wakes = if (self.log.calls / 2_000).is_multiple_of(3) { 4 } else { 1 };
                match self.random.below(8) {
                    0..=2 => self.end_poll(worker, task, since, is_sampled),
                    n if n < 8 - wakes => self.doing[worker] = Doing::Polls { task, since, is_sampled },
                    _ => {
                        if let Some(other) = self.take_asleep() {
                            self.log.add("wake", format_args!("{me} wakes {}", H::number(&other)));
                            self.cores[worker].schedule(host, other, false);
                        }
                        self.doing[worker] = Doing::Polls { task, since, is_sampled };
                    }
                }
            }
            Doing::Maintains => {
                if let Some(other) = self.take_asleep() {
                    self.log.add("driver", format_args!("of {me} wakes {}", H::number(&other)));
                    self.cores[worker].schedule(host, other, false);
                }
                self.cores[worker].maintained(host);
            }
            Doing::Searches => self.cores[worker].search(host),
            Doing::Sleeps(until) => {
                let is_due = until.is_some_and(|until| until.0 <= self.now);
                if self.random.below(8) == 0
                    && let Some(other) = self.take_asleep()
                {
                    self.log.add("driver", format_args!("of {me} wakes {} in its sleep", H::number(&other)));
                    self.cores[worker].schedule(host, other, false);
                }
                if is_due || !host.workers().remote(me).inbox.is_parked() {
                    self.cores[worker].unparked(host);
                    self.cores[worker].resume(host);
                    self.log.add("awake", format_args!("{me}"));
                } else {
                    self.doing[worker] = Doing::Sleeps(until);
                }
            }
        }
    }

    fn look(&mut self, worker: usize) {
        let (host, core) = (self.host, &self.cores[worker]);
        let me = core.me();
        self.doing[worker] = match core.next(host) {
            Next::Run(queued) => {
                let task = queued.task;
                self.log.add("run", format_args!("{} on {me}, queued {}", H::number(&task), queued.since.0));
                core.begin_poll(host, &task);
                let is_sampled = core.is_sampled() && !core.is_after_move();
                Doing::Polls { task, since: Nanos(self.now), is_sampled }
            }
            Next::Maintain => {
                self.log.add("maintain", format_args!("{me}"));
                Doing::Maintains
            }
            Next::Search => {
                self.log.add("search", format_args!("{me}"));
                Doing::Searches
            }
            Next::Park(until) => {
                self.log.add("park", format_args!("{me} until {until:?}"));
                Doing::Sleeps(until)
            }
            Next::Shutdown => panic!("nobody shuts down"),
        };
    }

    fn end_poll(&mut self, worker: usize, task: H::Task, since: Nanos, is_sampled: bool) {
        let (host, core) = (self.host, &self.cores[worker]);
        if is_sampled {
            core.draw_sample();
            let ran = core.end_sample(host, since);
            task.state().record_poll(ran);
            task.state().sleep(core.now());
        }
        host.workers().set_stuck(core.me(), false);
        let is_awake = self.random.below(4) == 0;
        if !is_awake {
            core.fell_asleep(task.state().usual_sleep());
        }
        self.log.add("end", format_args!("of {} on {}, awake: {is_awake}", H::number(&task), core.me()));
        if is_awake {
            core.note_yield();
            core.schedule(host, task, true);
        } else {
            self.asleep.push(task);
        }
        core.end_poll(is_awake);
    }
}
