//! Shared: what the workers of one runtime see of each other, and what everybody else sees of them.
//!
//! Model.   A `Desk` per worker: its inbox, its queue, what it says of itself. A shelf per shard of an LLC: tasks
//!          that have no home yet, for whoever of the shard is free first. Placement asks through `View`.
//! Number.  A desk is 9 lines, of which a wake from elsewhere writes one.
//! Writers. Of each field: said there.

use crate::header::{Header, Ready, Waiting};
use crate::host::Host;
use crate::inbox::Inbox;
use crate::living::Living;
use crate::metrics::Stats;
use crate::queue::{Entry, Queue};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering::*, fence, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use warmcore_budget::process::unaccounted;
use warmcore_line::{Line, Padded};
use warmcore_sched::{Allowed, Machine, Pace, Placed, Policy, PolicyKind, Pull, To, Turn, View, Wake, Waker};
use warmcore_types::{CpuId, Nanos};

/// What a task is found by: the runtime, and the worker that spawned it. One per worker, so that counting
/// references writes no line that all share.
pub(crate) struct Anchor {
    pub(crate) shared: Arc<Shared>,
    /// Whose list of the living.
    pub(crate) worker: CpuId,
}

/// One worker, as others see it.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct Desk {
    /// Written by all who hand it something.
    #[line(contended = "inbox")]
    pub(crate) inbox: Padded<Inbox<Ready>>,
    /// Under the lock: the worker's own, and who pulls.
    #[line(contended = "queue")]
    pub(crate) queue: Padded<Mutex<Queue<Waiting>>>,
    #[line(owner = "worker")]
    pub(crate) says: Padded<Says>,
    /// Written by who finds it in a long poll, and by the worker, which clears it.
    #[line(contended = "watch")]
    pub(crate) is_stuck: Padded<AtomicBool>,
    /// Its groups are said there.
    #[line(contended = "stats")]
    pub(crate) stats: Padded<Stats>,
    #[line(contended = "living")]
    pub(crate) living: Padded<Living>,
    #[line(read_mostly)]
    pub(crate) host: Box<dyn Host>,
}

/// What a worker says of itself. Written by the worker; `waiting`, `since` and `oldest` under its
/// queue's lock.
#[derive(Debug, Default, Line)]
#[line(pair, default = owner)]
#[repr(align(128))]
pub(crate) struct Says {
    /// How many wait in its queue that could run elsewhere.
    pub(crate) waiting: AtomicU32,
    /// How many wait in its queue that may not, as of its last look at a neighbour.
    pub(crate) pinned: AtomicU32,
    /// Since when always somebody has.
    pub(crate) since: AtomicU64,
    /// Since when the one of them waits that has waited longest. Kept only where the policy takes that one.
    pub(crate) oldest: AtomicU64,
    /// Odd: in a poll. A poll is counted twice.
    pub(crate) polls: AtomicU64,
    /// What its tasks run for at a time.
    pub(crate) poll_ns: AtomicU32,
    /// Until when it is kept for a task that sleeps shortly.
    pub(crate) hot_until: AtomicU64,
    /// Since when it sleeps; 0: it does not.
    pub(crate) asleep_since: AtomicU64,
    /// It takes no more work.
    pub(crate) is_gone: AtomicBool,
    /// Until when no long poll is told with its task, and how many were not since the last one that was. Kept here: they
    /// outlive the thread that is the worker.
    pub(crate) untold_until: AtomicU64,
    pub(crate) untold: AtomicU64,
}

/// From a shelf so many are taken at once, at most.
const SHARE_MAX: usize = 32;

/// Tasks without a home. They may run anywhere: what may not is on no shelf.
#[derive(Line)]
#[line(pair)]
#[repr(align(128))]
pub(crate) struct Shelf {
    /// Written under the lock. Each worker of the shard reads it before each poll, so that nothing else may be on its
    /// line that is written more often.
    #[line(read_mostly)]
    len: Padded<AtomicU32>,
    /// `None`: closed.
    #[line(contended = "tasks")]
    tasks: Padded<Mutex<Option<VecDeque<Ready>>>>,
    /// Written by workers that fall asleep or wake.
    #[line(contended = "sleepers")]
    pub(crate) idle: Padded<AtomicU32>,
    /// One of the shard's workers was woken for what lies here, and has not looked yet: one at a time. Written by
    /// who wakes it, and by workers that wake.
    #[line(contended = "sleepers")]
    pub(crate) is_called: Padded<AtomicBool>,
}

#[derive(Line)]
#[line(pair, default = read_mostly)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) desks: Box<[Desk]>,
    pub(crate) shelves: Box<[Shelf]>,
    pub(crate) machine: Machine,
    pub(crate) policy: PolicyKind,
    /// What the policy says of [`Policy::whom`]: asked twice a poll.
    pub(crate) takes_oldest: bool,
    /// Which worker's CPU is the kernel's so-and-so; `u32::MAX`: none.
    pub(crate) worker_on: Box<[u32]>,
    pub(crate) is_closing: AtomicBool,
    /// Nobody waits for tasks any more.
    pub(crate) is_over: AtomicBool,
    #[line(contended = "watch")]
    pub(crate) watch: Padded<crate::watch::Watch>,
    #[line(contended = "foreign")]
    pub(crate) foreign: Padded<crate::foreign::Foreign>,
    #[line(contended = "spares")]
    pub(crate) spares: Padded<crate::spare::Spares>,
    pub(crate) tally: crate::tally::Tally,
    #[cfg(feature = "metrics")]
    #[line(contended = "told")]
    pub(crate) told: Padded<Mutex<crate::export::Told>>,
    pub(crate) long_poll: Nanos,
    /// Which worker's list the next task from outside is on.
    #[line(contended = "outside")]
    pub(crate) outside: Padded<AtomicU32>,
    #[line(contended = "outside wakes")]
    pub(crate) outside_wakes: Padded<AtomicU64>,
    /// Which CPUs each worker's thread may use.
    pub(crate) pin_to: Box<[warmcore_types::CpuSet]>,
}

impl Shared {
    /// The current thread goes where a worker belongs. Where that is refused (the process's CPUs were changed
    /// meanwhile) it stays where the system puts it.
    pub(crate) fn pin(&self, cpu: CpuId) {
        if let Some(cpus) = self.pin_to.get(cpu.index())
            && let Err(error) = warmcore_sys::affinity::set_allowed(cpus)
        {
            tracing::debug!(worker = cpu.0, %cpus, %error, "a worker is not pinned");
        }
    }

    /// Of two workers that are allowed and among these, the one with fewer tasks: the next one in turn, and one by
    /// chance. Its driver's own tasks count. Further ones are looked at only if both are in a long poll, or take no more.
    ///
    /// To look at a worker misses the cache four times. With two looks instead of one at each, no worker of many gets
    /// more than two or three tasks above the average ("the power of two choices").
    pub(crate) fn least_loaded(&self, allowed: Allowed, among: Allowed) -> Option<CpuId> {
        let may = |cpu: &CpuId| self.machine.allows(allowed, *cpu) && self.machine.allows(among, *cpu);
        // What this reads no worker writes.
        let all = || (0..self.desks.len() as u32).map(CpuId).filter(may);
        let n = all().count();
        let turn = self.outside.fetch_add(1, Relaxed);
        let first = turn as usize % n.max(1);
        let chance = (turn.wrapping_mul(0x9E37_79B9) >> 8) as usize % n.saturating_sub(1).max(1);
        let second = first + 1 + chance;
        let load = |at: usize| {
            let cpu = all().nth(at % n).filter(|cpu| !self.is_offline(*cpu))?;
            let desk = self.desk(cpu);
            Some((self.is_stuck(cpu), desk.living.count() as usize + desk.host.foreign_tasks(), cpu))
        };
        // By load; the first one where two have the same.
        let lighter =
            |a: (bool, usize, CpuId), b: (bool, usize, CpuId)| if (b.0, b.1) < (a.0, a.1) { b } else { a };
        let two = [first, second].into_iter().take(n).filter_map(load).reduce(lighter);
        let chosen = match two {
            Some((false, _, cpu)) => return Some(cpu),
            busy => (first + 1..first + n)
                .filter_map(load)
                .fold(busy, |best, next| Some(best.map_or(next, |best| lighter(best, next)))),
        };
        chosen.map(|(_, _, cpu)| cpu)
    }

    pub(crate) fn living(&self, anchor: &Anchor) -> &Living {
        &self.desks[anchor.worker.index()].living
    }

    pub(crate) fn desk(&self, cpu: CpuId) -> &Desk {
        &self.desks[cpu.index()]
    }

    pub(crate) fn count_living(&self) -> usize {
        self.desks.iter().map(|desk| desk.living.count() as usize).sum()
    }

    /// How many workers sleep.
    pub(crate) fn count_idle(&self) -> usize {
        self.shelves.iter().map(|shelf| shelf.idle.load(Relaxed) as usize).sum()
    }

    /// What a move costs a task that runs for so long at a time; for as long as those of `near` do, if nobody
    /// knows.
    pub(crate) fn refill(&self, poll_ns: Option<u32>, near: Option<CpuId>) -> Nanos {
        let average = || near.map_or(0, |cpu| self.desk(cpu).says.poll_ns.load(Relaxed));
        self.policy.refill(Nanos(poll_ns.unwrap_or_else(average).into()))
    }

    /// Decides where a wakee goes.
    pub(crate) fn place(&self, header: &Header, now: Nanos, waker: Waker) -> Placed {
        let near = header.home();
        let wakee = header.wakee(|poll_ns| self.refill(poll_ns, near));
        let mut placed = self.policy.wake(&self.machine, self, &Wake { now, wakee, waker });
        if placed.hot_kept > 0 || placed.hot_broken {
            // A window that was open by the caller's clock, which may be late, and may be closed by now.
            let now = self.desks[0].host.now();
            placed = self.policy.wake(&self.machine, self, &Wake { now, wakee, waker });
        }
        let woken_from = match waker {
            Waker::Cpu(cpu) | Waker::Outside(Some(cpu)) => Some(cpu),
            Waker::Outside(None) => None,
        };
        header.set_debt(placed.debt, woken_from);
        if placed.hot_kept > 0 || placed.hot_broken {
            let at = placed.kick.unwrap_or(CpuId(0));
            let stats = &self.desk(at).stats;
            stats.hot_kept.fetch_add(placed.hot_kept.into(), Relaxed);
            stats.hot_broken.fetch_add(placed.hot_broken.into(), Relaxed);
        }
        placed
    }

    /// A wake by a thread that is no worker of this runtime.
    #[cold]
    pub(crate) fn wake_from_outside(&self, ready: Ready) {
        let cpu = warmcore_sys::rseq::cpu_hint();
        let here = cpu.and_then(|cpu| self.worker_on.get(cpu as usize));
        let here = here.filter(|worker| **worker != u32::MAX).map(|worker| CpuId(*worker));
        let now = self.desks[0].host.now();
        ready.metadata().wake(|| now);
        let placed = self.place(ready.metadata(), now, Waker::Outside(here));
        self.outside_wakes.fetch_add(1, Relaxed);
        self.put(ready, placed);
    }

    /// Puts a task where it was placed, unless that is the caller's own queue.
    pub(crate) fn put(&self, ready: Ready, placed: Placed) {
        match placed.to {
            To::Cpu(cpu) => self.hand_over(ready, cpu),
            To::Shard(shard) => match self.shelves[shard].push(ready) {
                Ok(()) => self.kick_for_shelf(shard, placed.kick),
                Err(ready) => crate::worker::end(ready),
            },
        }
    }

    /// Into a worker's inbox; wakes it if it sleeps.
    pub(crate) fn hand_over(&self, ready: Ready, cpu: CpuId) {
        let desk = self.desk(cpu);
        match desk.inbox.push(ready) {
            Ok(false) => {}
            Ok(true) => self.kick(cpu),
            Err(ready) => self.put_elsewhere(ready, cpu),
        }
    }

    /// A worker took no more.
    #[cold]
    fn put_elsewhere(&self, ready: Ready, cpu: CpuId) {
        if self.is_over.load(Acquire) {
            return crate::worker::end(ready);
        }
        let mut ready = ready;
        for other in self.machine.others(cpu) {
            match self.desk(other).inbox.push(ready) {
                Ok(slept) => {
                    if slept {
                        self.kick(other);
                    }
                    return;
                }
                Err(back) => ready = back,
            }
        }
        crate::worker::end(ready);
    }

    /// Ends a worker's sleep. The caller has made its inbox say that it is awake.
    pub(crate) fn kick(&self, cpu: CpuId) {
        let desk = self.desk(cpu);
        desk.stats.kicked.fetch_add(1, Relaxed);
        desk.host.kick();
        if desk.host.driven() % 2 == 1 {
            // It sleeps no more, but runs what somebody spawned on its driver: nobody knows for how long. Who is
            // appointed is not kicked by this function, so this does not come back here.
            self.watch.appoint(self, cpu, desk.host.now());
        }
    }

    /// Rouses a worker, to look for work.
    pub(crate) fn rouse(&self, cpu: CpuId) -> bool {
        let slept = self.desk(cpu).inbox.rouse();
        if slept {
            self.kick(cpu);
        }
        slept
    }

    /// Something lies on a shelf: one of those that sleep is to look, its own first.
    pub(crate) fn kick_for_shelf(&self, shard: usize, first: Option<CpuId>) {
        // ORDERING: SeqCst; the shelf's length was written before, who sleeps, and whether one was called, is read
        // after: `Worker::idle` does both the other way round. One of the two sees the other.
        fence(SeqCst);
        let shelf = &self.shelves[shard];
        let cpus = self.machine.cpus_of(shard);
        let near = first.or(cpus.first().copied()).unwrap_or(CpuId(0));
        if shelf.idle.load(Relaxed) > 0 {
            if shelf.is_called.swap(true, SeqCst) {
                return;
            }
            // Only the shard's own: who wakes takes back the call of its own shelf, and of no other.
            let own = first.filter(|cpu| self.machine.shard_of(*cpu) == shard);
            if own.into_iter().chain(cpus.iter().copied()).any(|cpu| self.rouse(cpu)) {
                return;
            }
            shelf.is_called.store(false, SeqCst);
        }
        let _ = std::iter::once(near).chain(self.machine.others(near)).find(|cpu| self.rouse(*cpu));
    }

    /// More wait at `at` than it will get to soon: somebody who sleeps is to look.
    pub(crate) fn help(&self, at: CpuId, now: Nanos) {
        // ORDERING: SeqCst; as in `kick_for_shelf`, with how many wait in the place of the shelf's length.
        fence(SeqCst);
        if self.count_idle() == 0 {
            return;
        }
        // Who woke meanwhile sleeps no more, so this ends.
        while let Some(cpu) = self.policy.help(&self.machine, self, at, now) {
            if self.rouse(cpu) {
                break;
            }
        }
    }

    /// Under the lock of its queue: how many wait, and since when.
    #[inline]
    pub(crate) fn say(&self, desk: &Desk, queue: &mut Queue<Waiting>, now: Nanos) {
        let (before, waiting) = (desk.says.waiting.load(Relaxed), queue.movable());
        if before == 0 && waiting > 0 {
            desk.says.since.store(now.0, Relaxed);
        }
        desk.says.waiting.store(waiting, Relaxed);
        if self.takes_oldest {
            self.say_oldest(desk, queue);
        }
    }

    #[inline(never)]
    fn say_oldest(&self, desk: &Desk, queue: &mut Queue<Waiting>) {
        if let Some(oldest) = queue.oldest_since()
            && oldest.0 != desk.says.oldest.load(Relaxed)
        {
            desk.says.oldest.store(oldest.0, Relaxed);
        }
    }

    /// Looks for work for a worker that has none; what it may take comes into its own queue.
    pub(crate) fn pull(&self, me: CpuId, now: Nanos) -> Pulled {
        for _ in 0..self.desks.len().min(64) + 1 {
            match self.policy.pull(&self.machine, self, me, now) {
                Pull::Shard(shard) => {
                    let popped = self.shelves[shard].pop(self.machine.cpus_of(shard).len());
                    if !popped.is_empty() {
                        self.keep(me, popped.into_iter().map(|ready| Waiting { ready, since: now }), now);
                        return Pulled::Some;
                    }
                }
                Pull::From { cpu, at_most } => {
                    let taken = self.take(me, cpu, at_most.clamp(1, 256), now);
                    if !taken.is_empty() {
                        self.keep(me, taken, now);
                        // Who waits there still is to be seen by the next one.
                        self.help(cpu, now);
                        return Pulled::Some;
                    }
                    // Those that wait there may not come here.
                    return Pulled::Until(Nanos(now.0 + 1_000_000));
                }
                Pull::Until(at) => return Pulled::Until(at),
                Pull::Nothing => return Pulled::Nothing,
            }
        }
        // Others were faster each time; something may wait all the same.
        Pulled::Until(now)
    }

    /// Puts tasks into the caller's own queue.
    fn keep(&self, me: CpuId, tasks: impl IntoIterator<Item = Waiting>, now: Nanos) {
        let desk = self.desk(me);
        let mut queue = lock(&desk.queue);
        tasks.into_iter().for_each(|waiting| queue.push(waiting));
        self.say(desk, &mut queue, now);
    }

    /// Takes tasks away from `from`, for `me`.
    fn take(&self, me: CpuId, from: CpuId, at_most: u32, now: Nanos) -> Vec<Waiting> {
        let desk = self.desk(from);
        let is_stuck = desk.is_stuck.load(Relaxed);
        let whom = self.policy.whom();
        let may = |ready: &Ready| self.machine.allows(ready.metadata().allowed, me);
        let mut taken = Vec::new();
        let mut queue = lock(&desk.queue);
        while taken.len() < at_most as usize
            && let Some(waiting) = queue.take(whom, |waiting| may(&waiting.ready))
        {
            taken.push(waiting);
        }
        let mut back = Vec::new();
        if is_stuck {
            // What was handed to it lies in its inbox until it comes back.
            for ready in desk.inbox.take() {
                if may(&ready) { taken.push(Waiting { ready, since: now }) } else { back.push(ready) }
            }
        }
        self.say(desk, &mut queue, Nanos(desk.says.since.load(Relaxed)));
        drop(queue);
        // Not into its queue: it may have come back and fallen asleep meanwhile, which its inbox knows.
        back.into_iter().for_each(|ready| self.hand_over(ready, from));
        desk.stats.pulled_away.fetch_add(taken.len() as u64, Relaxed);
        taken
    }

    /// Takes so many of the tasks that wait at `from` and may come, each by lot. Returns how many came, and
    /// how many of them had run.
    ///
    /// Not those that would run last, as [`take`](Self::take) does for an idle worker: those are the same ones again
    /// and again, and what is evened out here is which task gets the shorter round.
    pub(crate) fn fetch(
        &self,
        me: CpuId,
        from: CpuId,
        at_most: u32,
        now: Nanos,
        lot: impl Fn() -> u32,
    ) -> (u32, u32) {
        let desk = self.desk(from);
        let may = |waiting: &Waiting| self.machine.allows(waiting.ready.metadata().allowed, me);
        let mut queue = lock(&desk.queue);
        let taken: Vec<Waiting> = (0..at_most).map_while(|_| queue.take_by_lot(lot(), may)).collect();
        self.say(desk, &mut queue, Nanos(desk.says.since.load(Relaxed)));
        drop(queue);
        let came = taken.len() as u32;
        let had_run = taken.iter().filter(|waiting| waiting.ready.metadata().home().is_some()).count() as u32;
        desk.stats.pulled_away.fetch_add(came.into(), Relaxed);
        self.keep(me, taken, now);
        (came, had_run)
    }

    /// Takes one task of a tenant that had less than `below`, in virtual time, of those that wait at `from`. Returns
    /// whether one came.
    pub(crate) fn fetch_owed(&self, me: CpuId, from: CpuId, below: u64, now: Nanos) -> bool {
        let desk = self.desk(from);
        let mut queue = lock(&desk.queue);
        let owed = queue.owed(below);
        if owed.is_empty() {
            return false;
        }
        let may = |waiting: &Waiting| {
            owed.contains(&Entry::share(waiting).tenant)
                && self.machine.allows(waiting.ready.metadata().allowed, me)
        };
        let taken = queue.take(self.policy.whom(), may);
        self.say(desk, &mut queue, Nanos(desk.says.since.load(Relaxed)));
        drop(queue);
        let came = taken.is_some();
        desk.stats.pulled_away.fetch_add(came.into(), Relaxed);
        self.keep(me, taken, now);
        came
    }

    /// What a worker has done so far. Late by what it did since its last stores.
    pub(crate) fn pace(&self, cpu: CpuId) -> Pace {
        let desk = self.desk(cpu);
        let waiting = desk.says.waiting.load(Relaxed) + desk.says.pinned.load(Relaxed);
        let polls = desk.says.polls.load(Relaxed);
        // It is odd during a poll: that task waits nowhere.
        let queued = waiting + (polls % 2) as u32;
        let parks = desk.stats.parks.load(Relaxed) + desk.stats.pulls.load(Relaxed);
        Pace { polls: polls / 2, parks, queued }
    }

    pub(crate) fn turn_of(&self, desk: &Desk) -> Turn {
        self.policy.turn(Nanos(desk.says.poll_ns.load(Relaxed).into()))
    }
}

/// What came of looking for work.
pub(crate) enum Pulled {
    /// It is in the worker's queue.
    Some,
    /// Look again then.
    Until(Nanos),
    Nothing,
}

impl Shelf {
    pub(crate) fn new() -> Self {
        Self {
            len: Padded::new(AtomicU32::new(0)),
            tasks: Padded::new(Mutex::new(Some(VecDeque::new()))),
            idle: Padded::new(AtomicU32::new(0)),
            is_called: Padded::new(AtomicBool::new(false)),
        }
    }

    /// `Err`: closed.
    fn push(&self, ready: Ready) -> Result<(), Ready> {
        let mut tasks = lock(&self.tasks);
        let Some(tasks) = tasks.as_mut() else { return Err(ready) };
        if tasks.len() == tasks.capacity() {
            // As in a worker's queue: it is nobody's, whoever spawns.
            unaccounted(|| tasks.reserve(1));
        }
        tasks.push_back(ready);
        self.len.store(tasks.len() as u32, Relaxed);
        Ok(())
    }

    /// Nothing comes in any more; what was there is handed out.
    pub(crate) fn close(&self) -> VecDeque<Ready> {
        let tasks = lock(&self.tasks).take();
        self.len.store(0, Relaxed);
        tasks.unwrap_or_default()
    }

    /// Those that wait longest: a share for one of so many workers.
    pub(crate) fn pop(&self, workers: usize) -> Vec<Ready> {
        if self.len.load(Relaxed) == 0 {
            return Vec::new();
        }
        let mut tasks = lock(&self.tasks);
        let Some(tasks) = tasks.as_mut() else { return Vec::new() };
        let share = tasks.len().div_ceil(workers.max(1)).min(SHARE_MAX);
        let popped = tasks.drain(..share).collect();
        self.len.store(tasks.len() as u32, Relaxed);
        popped
    }

    pub(crate) fn len(&self) -> u32 {
        self.len.load(Relaxed)
    }
}

impl View for Shared {
    fn is_idle(&self, cpu: CpuId) -> bool {
        self.desk(cpu).inbox.is_asleep()
    }

    fn is_offline(&self, cpu: CpuId) -> bool {
        self.desk(cpu).says.is_gone.load(Relaxed)
    }

    fn is_stuck(&self, cpu: CpuId) -> bool {
        self.desk(cpu).is_stuck.load(Relaxed)
    }

    fn backlog(&self, cpu: CpuId) -> u32 {
        let desk = self.desk(cpu);
        let waiting = desk.says.waiting.load(Relaxed);
        waiting + u32::from(desk.is_stuck.load(Relaxed) && desk.inbox.has_tasks())
    }

    fn backlog_since(&self, cpu: CpuId) -> Nanos {
        Nanos(self.desk(cpu).says.since.load(Relaxed))
    }

    fn waits_since(&self, _me: CpuId, cpu: CpuId) -> Nanos {
        Nanos(self.desk(cpu).says.oldest.load(Relaxed))
    }

    fn refill_there(&self, cpu: CpuId) -> Nanos {
        self.refill(None, Some(cpu))
    }

    fn hot_until(&self, cpu: CpuId) -> Nanos {
        Nanos(self.desk(cpu).says.hot_until.load(Relaxed))
    }

    fn waiting_in(&self, shard: usize) -> u32 {
        self.shelves[shard].len()
    }

    fn idle_in(&self, shard: usize) -> u32 {
        self.shelves[shard].idle.load(Relaxed)
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;
    use crate::host::mock::{Mock, workers};
    use warmcore_types::LlcId;

    /// Where so many connections begin that all stay, and how often a worker was looked at.
    fn place(mocks: &[Arc<Mock>], shared: &Shared, many: usize, among: Allowed) -> (Vec<usize>, usize) {
        for _ in 0..many {
            let cpu = shared.least_loaded(Allowed::Anywhere, among).expect("a worker");
            mocks[cpu.index()].foreign.fetch_add(1, Relaxed);
        }
        let of = |count: fn(&Mock) -> &std::sync::atomic::AtomicUsize| {
            mocks.iter().map(|mock| count(mock).load(Relaxed)).collect::<Vec<_>>()
        };
        (of(|mock| &mock.foreign), of(|mock| &mock.asked).iter().sum())
    }

    #[test]
    fn a_connection_looks_at_two_workers_and_all_get_about_as_many() {
        for (n, most_apart) in [(1, 0), (2, 1), (3, 2), (64, 4), (384, 4)] {
            let (mocks, shared) = workers(n, n);
            let (counts, looks) = place(&mocks, &shared, n * 100, Allowed::Anywhere);
            assert_eq!(looks, n * 100 * n.min(2));
            let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
            assert!(most - least <= most_apart, "{n} workers: {counts:?}");
        }
    }

    #[test]
    fn connections_of_one_cache_begin_on_its_workers_evenly() {
        let (mocks, shared) = workers(64, 8);
        let (counts, _) = place(&mocks, &shared, 800, Allowed::Llc(LlcId(3)));
        let own: Vec<usize> = counts.iter().copied().filter(|count| *count > 0).collect();
        assert_eq!((own.len(), own.iter().sum()), (8, 800), "{counts:?}");
        assert!(own.iter().all(|count| (97..=103).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_connection_begins_on_no_worker_in_a_long_poll_if_there_is_another() {
        let (mocks, shared) = workers(16, 16);
        for stuck in shared.desks.iter().skip(1) {
            stuck.is_stuck.store(true, Relaxed);
        }
        shared.desks[1].is_stuck.store(false, Relaxed);
        let (counts, _) = place(&mocks, &shared, 100, Allowed::Anywhere);
        assert_eq!((counts[0] + counts[1], counts[0].abs_diff(counts[1])), (100, 0), "{counts:?}");
        shared.desks.iter().for_each(|desk| desk.is_stuck.store(true, Relaxed));
        assert!(shared.least_loaded(Allowed::Anywhere, Allowed::Anywhere).is_some());
        shared.desks.iter().for_each(|desk| desk.says.is_gone.store(true, Relaxed));
        assert!(shared.least_loaded(Allowed::Anywhere, Allowed::Anywhere).is_none());
    }
}
