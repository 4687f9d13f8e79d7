//! Loads: six programs of a server, as tasks of the simulator.
//!
//! A load is described by what a round of it needs, for a number of CPUs and a part of what these can do. Requests arrive at its
//! *clients* at random times, whatever became of those before (an open loop). At 100 % no request is waited for: each client
//! begins its next round when the last one is over (a closed loop), except for skewed connections, at which requests arrive
//! as fast as all CPUs could serve them.
//!
//! | load | tasks per CPU | a round |
//! |---|---|---|
//! | warm sets | 4 | 20 µs and a pass over 64 KiB of the task's own |
//! | request and response | 2 clients, 2 servers | 20 µs and 32 KiB on each side |
//! | fan-out | 1 root, 8 leaves | 15 µs at the root, which wakes 8 leaves of 50 µs and 32 KiB and waits for all |
//! | messaging groups | 2.5 senders, 2.5 receivers | a message of 5 µs and 4 KiB, of ten that a sender sends to each receiver of its group |
//! | noisy neighbour | 1 light task, and hogs | 100 µs and 64 KiB of a hog, which then yields; the light tasks need 5 % of the CPUs |
//! | skewed connections | 8 | 10 µs and 16 KiB; the requests have a Zipf distribution over the connections |
//!
//! Lengths vary by up to half. As many hogs run as the part of the CPUs says, at 100 % four per CPU. No connection gets more
//! requests than half a CPU serves: more would wait behind each other wherever they are served.

use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::program::{Length, Program};
use warmcore_types::Nanos;

/// A load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Tasks with data of their own that requests wake.
    WarmSets,
    /// Clients that each ask a server of their own.
    Requests,
    /// Tasks that wake eight others and wait for all.
    FanOut,
    /// Groups of senders and receivers, as hackbench has them.
    Messaging,
    /// Light tasks beside tasks that compute and yield.
    Noisy,
    /// Connections of which few get most of the requests.
    Skewed,
}

/// What the 99th percentile of a load is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delay {
    /// Of the time from a request's arrival to the end of its round.
    Round,
    /// Of the time from a wake of a receiver to its poll.
    Poll,
}

/// The mark that a round passes.
pub(super) const DONE: &str = "done";
/// The mark that a light task passes beside hogs.
pub(super) const LIGHT: &str = "light";

/// By how much a step may be longer or shorter than its mean, in percent.
const VARIES: u32 = 50;

/// The leaves of a root, and their time.
const LEAVES: usize = 8;
const LEAF_NS: u64 = 50_000;

/// The senders and the receivers of a group, and the CPUs for which there is a group.
const SIDE: usize = 10;
const GROUP_CPUS: usize = 4;

/// The messages that a channel holds.
const ROOM: u32 = 64;

/// The time of a hog's poll, and that of a light task's.
const HOG_NS: u64 = 100_000;
const LIGHT_NS: u64 = 5_000;
/// The part of the CPUs that the light tasks need, in percent.
pub(super) const LIGHT_PERCENT: u64 = 5;
/// Hogs per CPU at 100 %.
const HOGS: usize = 4;

/// The connections per CPU.
const CONNECTIONS: usize = 8;

/// What a round needs, wherever its tasks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// CPU time of its steps, in ns, without passes over data.
    pub work_ns: u64,
    /// Passes over data, and the size of each, in KiB.
    pub passes: u64,
    pub kib: u32,
    /// The fewest polls, each with the wake before it. In a closed loop a task that ends a round begins the next in the same poll.
    pub polls: u64,
    /// The steps of a round that follow each other on the longest way through it, in ns, and the passes on that way.
    pub path_ns: u64,
    pub path_passes: u64,
}

/// A task of a load.
pub(super) struct Member {
    pub program: Program,
    /// Tasks of one number are on one core, if each core has a runtime of its own.
    pub place: usize,
    /// Whether requests arrive at it.
    pub is_client: bool,
}

impl Load {
    /// All loads, in the order of a report.
    pub const ALL: [Self; 6] =
        [Self::WarmSets, Self::Requests, Self::FanOut, Self::Messaging, Self::Noisy, Self::Skewed];

    /// Its name in a row.
    pub fn name(self) -> &'static str {
        match self {
            Self::WarmSets => "warm sets",
            Self::Requests => "request and response",
            Self::FanOut => "fan-out",
            Self::Messaging => "messaging groups",
            Self::Noisy => "noisy neighbour",
            Self::Skewed => "skewed connections",
        }
    }

    /// What its 99th percentile is of.
    pub fn delay(self) -> Delay {
        if self == Self::Messaging { Delay::Poll } else { Delay::Round }
    }

    /// The mark that ends what the 99th percentile is of.
    pub(super) fn timed_mark(self) -> &'static str {
        if self == Self::Noisy { LIGHT } else { DONE }
    }

    /// How many rounds follow an arrival.
    pub(super) fn rounds_per_arrival(self) -> u64 {
        if self == Self::Messaging { SIDE as u64 } else { 1 }
    }

    /// What a round needs: of a noisy neighbour, a hog's.
    pub fn round(self) -> Round {
        let plain =
            |work_ns, kib| Round { work_ns, passes: 1, kib, polls: 1, path_ns: work_ns, path_passes: 1 };
        match self {
            Self::WarmSets => plain(20_000, 64),
            Self::Requests => Round { passes: 2, polls: 2, path_passes: 2, ..plain(40_000, 32) },
            Self::FanOut => {
                let leaves = LEAVES as u64;
                let work_ns = 15_000 + leaves * LEAF_NS;
                let (passes, polls) = (1 + leaves, 1 + leaves);
                Round { passes, polls, path_ns: 15_000 + LEAF_NS, path_passes: 2, ..plain(work_ns, 32) }
            }
            // A receiver that is polled late takes several messages in one poll.
            Self::Messaging => Round { polls: 0, path_ns: 0, path_passes: 0, ..plain(5_000, 4) },
            Self::Noisy => plain(HOG_NS, 64),
            Self::Skewed => plain(10_000, 16),
        }
    }

    /// What a request to a light task needs.
    pub(super) fn light_round() -> Round {
        Round { work_ns: LIGHT_NS, passes: 1, kib: 16, polls: 1, path_ns: LIGHT_NS, path_passes: 1 }
    }

    /// The tasks for so many CPUs. `data`: whether tasks have data; `percent`: the part of the CPUs.
    pub(super) fn members(self, cpus: usize, percent: u64, data: bool) -> Vec<Member> {
        let is_closed = percent == 100 && self != Self::Skewed;
        let kib = if data { self.round().kib } else { 0 };
        match self {
            Self::WarmSets => {
                let serve = |p: Program| {
                    let p = touch(work(begin(p, is_closed), 20_000), kib).mark(DONE);
                    if is_closed { p.yield_now() } else { p }
                };
                (0..4 * cpus).map(|i| client(i, Program::new(format!("set {i}")).forever(serve))).collect()
            }
            Self::Requests => (0..2 * cpus)
                .flat_map(|i| {
                    let (request, answer) = (format!("request {i}"), format!("answer {i}"));
                    let ask = |p: Program| {
                        let p = touch(work(begin(p, is_closed), 10_000), kib).send(&request, 1);
                        work(p.receive(&answer), 10_000).mark(DONE)
                    };
                    let serve = |p: Program| touch(work(p.receive(&request), 20_000), kib).send(&answer, 1);
                    [
                        client(i, Program::new(format!("client {i}")).forever(ask)),
                        member(i, Program::new(format!("server {i}")).forever(serve)),
                    ]
                })
                .collect(),
            Self::FanOut => (0..cpus).flat_map(|i| fan_out(i, is_closed, kib)).collect(),
            Self::Messaging => {
                (0..cpus.div_ceil(GROUP_CPUS)).flat_map(|group| messaging(group, is_closed, kib)).collect()
            }
            Self::Noisy => {
                let hogs = if percent == 100 { HOGS * cpus } else { hogs(cpus, percent) };
                let compute = |p: Program| touch(work(p, HOG_NS), kib).mark(DONE).yield_now();
                let light_kib = if data { Self::light_round().kib } else { 0 };
                let light = |p: Program| touch(work(p.wait(), LIGHT_NS), light_kib).mark(LIGHT);
                let light = |i| client(i, Program::new(format!("light {i}")).forever(light));
                let hog = |i| member(i, Program::new(format!("hog {i}")).forever(compute));
                (0..cpus).map(light).chain((0..hogs).map(hog)).collect()
            }
            Self::Skewed => {
                let serve = |p: Program| touch(work(p.wait(), 10_000), kib).mark(DONE);
                let connection = |i| client(i, Program::new(format!("connection {i}")).forever(serve));
                (0..CONNECTIONS * cpus).map(connection).collect()
            }
        }
    }
}

/// The hogs that need this part of the CPUs.
pub(super) fn hogs(cpus: usize, percent: u64) -> usize {
    (cpus * percent as usize).div_ceil(100)
}

/// A step of about this length.
fn work(program: Program, ns: u64) -> Program {
    program.run(Length::Around(Nanos(ns), VARIES))
}

fn touch(program: Program, kib: u32) -> Program {
    if kib == 0 { program } else { program.touch_own(kib, Pages::Touched, Access::Write) }
}

/// Waits for a request, unless the loop is closed.
fn begin(program: Program, is_closed: bool) -> Program {
    if is_closed { program } else { program.wait() }
}

fn member(place: usize, program: Program) -> Member {
    Member { program, place, is_client: false }
}

fn client(place: usize, program: Program) -> Member {
    Member { is_client: true, ..member(place, program) }
}

/// A root and its leaves, which are on successive cores.
fn fan_out(root: usize, is_closed: bool, kib: u32) -> Vec<Member> {
    let (part, done) = (|leaf| format!("part {root}.{leaf}"), format!("parts {root}"));
    let ask = |p: Program| {
        let p = touch(work(begin(p, is_closed), 10_000), kib);
        let p = (0..LEAVES).fold(p, |p, leaf| p.send(&part(leaf), 1));
        let p = (0..LEAVES).fold(p, |p, _| p.receive(&done));
        work(p, 5_000).mark(DONE)
    };
    let serve = |leaf| {
        move |p: Program| {
            touch(work(p.receive(&format!("part {root}.{leaf}")), LEAF_NS), kib)
                .send(&format!("parts {root}"), LEAVES as u32)
        }
    };
    let first = root * (LEAVES + 1);
    let leaf = |i: usize| member(first + 1 + i, Program::new(format!("leaf {root}.{i}")).forever(serve(i)));
    let root = client(first, Program::new(format!("root {root}")).forever(ask));
    std::iter::once(root).chain((0..LEAVES).map(leaf)).collect()
}

/// A group, whose tasks are on successive cores.
fn messaging(group: usize, is_closed: bool, kib: u32) -> Vec<Member> {
    let to = |i| format!("to {group}.{i}");
    let first = group * 2 * SIDE;
    let send = |p: Program| (0..SIDE).fold(begin(p, is_closed), |p, i| work(p, 2_000).send(&to(i), ROOM));
    let sender = |i: usize| client(first + i, Program::new(format!("sender {group}.{i}")).forever(send));
    let receiver = |i: usize| {
        let receive = |p: Program| touch(work(p.receive(&to(i)), 3_000), kib).mark(DONE);
        member(first + SIDE + i, Program::new(format!("receiver {group}.{i}")).forever(receive))
    };
    (0..SIDE).map(sender).chain((0..SIDE).map(receiver)).collect()
}

/// The parts of all requests that the clients get: equal ones, or by a Zipf distribution of which each part is at most `most`.
pub(super) fn shares(load: Load, clients: usize, most: f64) -> Vec<f64> {
    if load != Load::Skewed {
        return vec![1.0 / clients as f64; clients];
    }
    let weights: Vec<f64> = (1..=clients).map(|rank| 1.0 / rank as f64).collect();
    // The first `capped` ranks get `most`; the others share the rest by their weights.
    let mut capped = 0;
    loop {
        let rest: f64 = weights[capped..].iter().sum();
        let left = 1.0 - most * capped as f64;
        if capped == clients || left * weights[capped] / rest <= most {
            let of = |(rank, weight): (usize, &f64)| if rank < capped { most } else { left * weight / rest };
            return weights.iter().enumerate().map(of).collect();
        }
        capped += 1;
    }
}
