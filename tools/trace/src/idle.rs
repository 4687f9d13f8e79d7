//! Idle workers beside tasks that wait.
//!
//! A task waits from its wake, or from the end of its poll before if that is later, to the start of its poll. A worker is idle
//! from the end of one poll to the start of the next one, also while it looks for tasks, or was woken and has no CPU yet. Of
//! each wait of [`LATE_NS`] or more, the longest part is counted during which one worker was idle: another one, or the one that polls the
//! task at last.
//!
//! Polls are read in the order of their ends. So at the end of a wait it is not known yet whether another worker had begun a
//! poll, and the part of the wait since that worker's last poll is counted when its next one is read, or at the recording's end. If the
//! thread gives its worker to another one in the middle of a poll, it counts as busy since the poll before. Of a poll within a poll the
//! outer one's beginning counts as idle.

use crate::analysis::BesideIdle;
use crate::delays::{Buckets, Histogram};
use std::collections::{HashMap, VecDeque};

/// Shorter waits, and shorter parts of them, are not counted.
pub const LATE_NS: u64 = 200_000;

/// Of how many idle times a worker's last ones are kept, and how many parts of waits that are not counted yet. If there are more of
/// these, the worker is idle or in a long poll, and the first ones are not counted.
const KEPT: usize = 1024;

/// What is known of waits beside idle workers. Times are in nanoseconds since the recording began.
pub struct IdleWorkers {
    threads: Vec<Thread>,
    /// Waits of which a part is not counted yet, by their number.
    waits: HashMap<u64, Wait>,
    next: u64,
    counted: Histogram,
}

/// A thread, which runs a worker or not.
#[derive(Default)]
struct Thread {
    is_worker: bool,
    /// The end of its last poll, or when it became a worker.
    idle_since: u64,
    /// The last times of [`LATE_NS`] or more without a poll.
    idle: VecDeque<(u64, u64)>,
    /// Parts of waits since `idle_since`: the wait's number, and from when to when.
    open: VecDeque<(u64, u64, u64)>,
    /// Parts of waits that were counted since the kernel's last totals.
    counted: Buckets,
    /// For how long the kernel kept the thread waiting between the two totals before.
    run_delay_ns: u64,
}

#[derive(Clone, Copy)]
struct Wait {
    /// For how many threads a part is not known yet.
    open: usize,
    /// The longest part so far, and which thread was idle.
    longest: u64,
    thread: usize,
}

impl Wait {
    fn take(&mut self, part: u64, thread: usize) {
        if part > self.longest {
            (self.longest, self.thread) = (part, thread);
        }
    }
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> u64 {
    a.1.min(b.1).saturating_sub(a.0.max(b.0))
}

impl IdleWorkers {
    pub fn new() -> Self {
        Self { threads: Vec::new(), waits: HashMap::new(), next: 0, counted: Histogram::new() }
    }

    fn thread(&mut self, thread: usize) -> &mut Thread {
        if self.threads.len() <= thread {
            self.threads.resize_with(thread + 1, Thread::default);
        }
        &mut self.threads[thread]
    }

    /// A thread runs a worker from now on, or none.
    pub fn worker(&mut self, thread: usize, at: u64, is_worker: bool) {
        // A thread that gives its worker away is in a poll, perhaps.
        let busy_since = self.thread(thread).idle_since;
        self.end_idle(thread, if is_worker { at } else { busy_since });
        self.thread(thread).is_worker = is_worker;
        self.thread(thread).idle_since = at;
    }

    /// A poll of a task that had waited since then.
    pub fn poll(&mut self, thread: usize, since: Option<u64>, start: u64, end: u64) {
        self.end_idle(thread, start);
        let me = self.thread(thread);
        me.idle_since = me.idle_since.max(end);
        if let Some(since) = since.filter(|since| start.saturating_sub(*since) >= LATE_NS) {
            self.late(thread, (since, start));
        }
    }

    /// A thread was idle until then.
    fn end_idle(&mut self, thread: usize, at: u64) {
        let me = self.thread(thread);
        let idle = (me.idle_since, at);
        if me.is_worker && at.saturating_sub(idle.0) >= LATE_NS {
            me.idle.push_back(idle);
            if me.idle.len() > KEPT {
                me.idle.pop_front();
            }
        }
        for (number, from, to) in std::mem::take(&mut me.open) {
            self.settle(number, overlap(idle, (from, to)), thread);
        }
    }

    /// A task waited that long.
    fn late(&mut self, thread: usize, wait: (u64, u64)) {
        let mut late = Wait { open: 0, longest: 0, thread };
        let number = self.next;
        self.next += 1;
        let mut given_up = Vec::new();
        for (other, them) in self.threads.iter_mut().enumerate().filter(|(_, them)| them.is_worker) {
            let recent = them.idle.iter().rev().take_while(|idle| idle.1 > wait.0);
            recent.for_each(|idle| late.take(overlap(*idle, wait), other));
            if other != thread && overlap((them.idle_since, u64::MAX), wait) >= LATE_NS {
                late.open += 1;
                them.open.push_back((number, wait.0, wait.1));
                if them.open.len() > KEPT {
                    given_up.extend(them.open.pop_front().map(|(number, ..)| (number, other)));
                }
            }
        }
        late.open += 1;
        self.waits.insert(number, late);
        self.settle(number, 0, thread);
        given_up.into_iter().for_each(|(number, other)| self.settle(number, 0, other));
    }

    /// A thread was idle for this part of a wait. If it is the last part, the wait is counted.
    fn settle(&mut self, number: u64, part: u64, thread: usize) {
        let Some(wait) = self.waits.get_mut(&number) else { return };
        wait.take(part, thread);
        wait.open -= 1;
        if wait.open == 0 {
            let wait = *wait;
            self.waits.remove(&number);
            if wait.longest >= LATE_NS {
                self.counted.add(wait.longest);
                self.thread(wait.thread).counted.add(wait.longest);
            }
        }
    }

    /// The kernel kept a thread waiting for a CPU for `run_delay_ns` since its last totals. `None`: for any time.
    pub fn stats(&mut self, thread: usize, run_delay_ns: Option<u64>) {
        let me = self.thread(thread);
        let counted = std::mem::take(&mut me.counted);
        // A part may be counted after the totals of its time.
        let before = std::mem::replace(&mut me.run_delay_ns, run_delay_ns.unwrap_or(0));
        self.counted.add_kernel(&counted, run_delay_ns.map(|run_delay| run_delay + before));
    }

    /// The recording ends.
    pub fn end(&mut self, at: u64) {
        (0..self.threads.len()).for_each(|thread| self.end_idle(thread, at));
    }

    pub fn finish(self) -> BesideIdle {
        BesideIdle { times: self.counted.times.quantiles(), buckets: self.counted.buckets() }
    }
}
