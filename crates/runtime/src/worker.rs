//! Worker: the loop that polls tasks, looks for more, and sleeps.
//!
//! Model.   Its inbox first, then the shelf, then its queue; every so many polls (as many as take 200 µs) it reads
//!          the clock, asks its driver and looks at a neighbour. Without work it falls asleep *first*, then looks everywhere, and
//!          takes the sleep back if it finds something: who makes work after that look sees it asleep.
//! Number.  Around a poll: the queue's lock, two stores, an exchange where the future was woken.
//! Protocol. README.md, "Notes on sleeping" and "Notes on one run".
//! Writers. `Local`: its thread.

use crate::claims::{Claims, OWED_MIN};
use crate::context;
use crate::header::{Header, Ready, Waiting};
use crate::metrics::Stats;
use crate::op_budget::OpBudget;
use crate::shared::{Anchor, Desk, Pulled, Shared, Shelf};
use crate::spare::Spares;
use crate::sync::{Ordering::*, fence, lock};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use warmcore_sched::shares::NEIGHBOURS;
use warmcore_sched::{Distance, Policy, Shares, To, Waker};
use warmcore_types::{CpuId, Nanos};

/// The driver is asked this often, if no poll takes longer. Seldom enough that it has several answers each time.
const TURN_EVERY: Nanos = Nanos(200_000);

/// However short polls are, the driver is asked after so many. To ask it takes 0.5 µs, as long as six polls of tasks
/// that only wake each other.
const POLLS_MAX: u32 = 512;

/// A poll of a tenant's that took longer is looked at: other threads may have had the CPU meanwhile.
const LONG_CHARGE: Nanos = Nanos(500_000);

/// One poll of 16 is measured, on average.
pub(crate) const SAMPLE_MASK: u32 = 31;

/// So long after a long poll each poll is measured, so that the next one is known by its task.
const MEASURED_FOR: Nanos = Nanos(1_000_000_000);

/// A worker names a task whose poll was long at most this often: each event may be a line of a log.
const NAMED_EVERY: Nanos = Nanos(1_000_000_000);

/// Polls that nobody measured took so many times as long as polls take on average: one of them was longer.
const UNUSUAL: u64 = 4;

/// Between two looks at a neighbour whose tasks may get fewer polls.
const BALANCE_EVERY: Nanos = Nanos(1_000_000);

/// A worker that panics outside of tasks so often is broken.
const UNWOUND_MAX: u32 = 1000;

/// What is a worker's own.
pub(crate) struct Local {
    pub(crate) shared: Arc<Shared>,
    /// Its own, in `shared`.
    desk: NonNull<Desk>,
    pub(crate) me: CpuId,
    pub(crate) anchor: Arc<Anchor>,
    /// The clock as it was last read.
    now: Cell<Nanos>,
    /// It may have slept since then.
    is_now_old: Cell<bool>,
    dice: Cell<u32>,
    /// Polls until the clock is read again, and how many that were.
    left: Cell<u32>,
    round: Cell<u32>,
    round_began: Cell<Nanos>,
    /// What wakes now comes from the driver.
    in_driver: Cell<bool>,
    /// From how many on that wait help is called.
    crowd: Cell<u32>,
    /// Another thread is this worker now.
    is_replaced: Cell<bool>,
    /// It comes from a sleep, and has not polled since.
    was_idle: Cell<bool>,
    /// Polls until one is measured.
    until_sample: Cell<u32>,
    /// From one to the next it is a random number below this, and one: `SAMPLE_MASK`, or 0 after a long poll.
    sample_mask: Cell<u32>,
    /// So many half polls the next one that is measured stands for, itself and those before it.
    stands_for: Cell<u32>,
    /// Until when it is 0.
    all_measured_until: Cell<Nanos>,
    /// Long polls until then are counted, of so many polls.
    judged_at: Cell<Nanos>,
    judged_polls: Cell<u64>,
    budget: Rc<OpBudget>,
    balance_at: Cell<Nanos>,
    /// What it remembers of its neighbours.
    shares: RefCell<Shares>,
    /// How often in a row a woken task may be the next.
    chain_max: Cell<u32>,
    /// How long the task usually sleeps that was polled last, if it fell asleep. 0: it did not, or nothing is known.
    sleeper: Cell<u32>,
    /// The longest of those since the clock was read.
    longest_sleeper: Cell<u32>,
    /// Until when tasks that went to sleep before that usually do, by the clock as it was last read then.
    window: Cell<Nanos>,
    claims: Arc<Claims>,
    /// Time awake and time on its CPU, in ns, and how often it was taken off it, when they were compared last.
    on_cpu: Cell<(u64, u64, u64)>,
    /// Its shard's, in `shared`.
    shelf: NonNull<Shelf>,
}

impl Local {
    fn new(shared: Arc<Shared>, me: CpuId, budget: Rc<OpBudget>) -> Self {
        let anchor = Arc::new(Anchor { shared: shared.clone(), worker: me });
        let now = shared.desk(me).host.now();
        let polls = shared.desk(me).says.polls.load(Relaxed);
        let chain_max = Cell::new(shared.policy.chain_max(Nanos(0)));
        let claims = lock(&shared.desk(me).queue).claims().clone();
        let shelf = NonNull::from(&shared.shelves[shared.machine.shard_of(me)]);
        Self {
            desk: NonNull::from(shared.desk(me)),
            shared,
            me,
            anchor,
            now: Cell::new(now),
            is_now_old: Cell::new(false),
            dice: Cell::new(me.0.wrapping_mul(0x9E37_79B9) | 1),
            left: Cell::new(8),
            round: Cell::new(8),
            round_began: Cell::new(now),
            in_driver: Cell::new(false),
            crowd: Cell::new(2),
            is_replaced: Cell::new(false),
            was_idle: Cell::new(true),
            until_sample: Cell::new(0),
            sample_mask: Cell::new(SAMPLE_MASK),
            stands_for: Cell::new(2),
            all_measured_until: Cell::new(now),
            judged_at: Cell::new(now),
            judged_polls: Cell::new(polls / 2),
            budget,
            balance_at: Cell::new(now),
            shares: RefCell::default(),
            claims,
            on_cpu: Cell::new((u64::MAX, 0, 0)),
            sleeper: Cell::new(0),
            longest_sleeper: Cell::new(0),
            window: Cell::new(Nanos(0)),
            chain_max,
            shelf,
        }
    }

    #[inline]
    pub(crate) fn desk(&self) -> &Desk {
        // SAFETY: it is in `shared`, which keeps it, and is never moved there.
        unsafe { self.desk.as_ref() }
    }

    /// The clock as it was last read: late by up to a round.
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        self.now.get()
    }

    fn read_clock(&self) -> Nanos {
        self.window.set(self.window());
        self.longest_sleeper.set(0);
        self.now.set(self.desk().host.now());
        self.now.get()
    }

    /// A task was woken on this thread.
    #[inline]
    pub(crate) fn wake(&self, ready: Ready, is_yield: bool) {
        let header = ready.metadata();
        if self.is_now_old.get() {
            // Who is woken by the driver waits since now, and not since the worker fell asleep; and it sleeps on
            // where those that it wakes are at home elsewhere.
            self.read_clock();
            self.is_now_old.set(self.desk().inbox.is_asleep());
        }
        if is_yield {
            header.stay_awake();
        } else {
            // Not the clock as it was last read: that is late by as much as a sleep is long.
            header.wake(|| self.read_clock());
        }
        if !header.is_home(self.me) {
            return self.wake_away(ready, is_yield);
        }
        if !is_yield {
            header.clear_debt();
        }
        if self.in_driver.get() && self.desk().inbox.is_asleep() {
            // It sleeps in the driver that woke the task: what goes into the queue would not end that.
            return self.wake_myself(ready);
        }
        self.put_here(ready, is_yield);
    }

    fn wake_myself(&self, ready: Ready) {
        match self.desk().inbox.push(ready) {
            Ok(false) => {}
            Ok(true) => self.desk().host.kick(),
            Err(ready) => end(ready),
        }
    }

    fn wake_away(&self, ready: Ready, is_yield: bool) {
        let placed = self.shared.place(ready.metadata(), self.now(), Waker::Cpu(self.me));
        match placed.to {
            To::Cpu(cpu) if cpu == self.me && !self.in_driver.get() => self.put_here(ready, is_yield),
            _ => {
                Stats::add(&self.desk().stats.sent, 1);
                self.shared.put(ready, placed);
            }
        }
    }

    /// Into this worker's queue.
    #[inline]
    fn put_here(&self, ready: Ready, is_yield: bool) {
        let desk = self.desk();
        let waiting = Waiting { ready, since: self.now() };
        let mut queue = lock(&desk.queue);
        if is_yield || self.in_driver.get() || self.chain_max.get() == 0 {
            queue.push(waiting)
        } else {
            queue.push_next(waiting)
        }
        self.shared.say(desk, &mut queue, self.now());
        let waiting = queue.len();
        drop(queue);
        // Once on the way up; after that it is asked every round.
        if waiting == self.crowd.get() {
            self.call_help();
        }
    }

    #[cold]
    fn call_help(&self) {
        self.shared.help(self.me, self.now());
    }

    /// Whether this poll is measured. If so, [`draw_sample`](Self::draw_sample) says when the next one is.
    #[inline]
    pub(crate) fn is_sampled(&self) -> bool {
        let left = self.until_sample.get();
        if left > 0 {
            self.until_sample.set(left - 1);
        }
        left == 0
    }

    /// Which poll is measured after this one. Returns how many half polls this one stands for, on average: from one
    /// that is measured by chance to the next it is half the mask and one.
    pub(crate) fn draw_sample(&self) -> u32 {
        // By chance: tasks that take turns are not to be measured in turn, too.
        let mask = self.sample_mask.get();
        self.until_sample.set(self.throw() & mask);
        self.stands_for.replace(mask + 2)
    }

    /// What a measured poll took.
    pub(crate) fn end_sample(&self, since: Nanos) -> u64 {
        let now = self.read_clock();
        // The polls before this one; this one is measured.
        self.judge(since);
        self.start_judging(now);
        if now.0 > self.round_began.get().0 + 2 * TURN_EVERY.0 {
            // Polls are longer than they were in the round before: the driver is not to wait for the rest of them.
            let rest = self.left.replace(1) - 1;
            self.round.set(self.round.get() - rest);
        }
        now.0.saturating_sub(since.0)
    }

    /// Whether a poll that took so long is a long one.
    pub(crate) fn is_long(&self, ran: u64) -> bool {
        ran > self.shared.long_poll.0
    }

    /// Polls that ended before are judged, and what the time until now was spent with was no poll.
    fn start_judging(&self, now: Nanos) {
        self.judged_at.set(now);
        self.judged_polls.set(self.desk().says.polls.load(Relaxed) / 2);
    }

    /// The clock was read: counts a long poll among those that ended since that was last asked. Nobody measured them,
    /// so it is not known which it was, and several count as one; from then on each poll is measured. True: there was one.
    fn judge(&self, now: Nanos) -> bool {
        let says = &self.desk().says;
        let took = now.0.saturating_sub(self.judged_at.get().0);
        let polls = (says.polls.load(Relaxed) / 2).wrapping_sub(self.judged_polls.get());
        self.start_judging(now);
        let is_one_long = is_one_long(took, polls, says.poll_ns.load(Relaxed), self.shared.long_poll);
        if is_one_long {
            self.count_long_poll(None);
        } else if now >= self.all_measured_until.get() {
            self.sample_mask.set(SAMPLE_MASK);
        }
        is_one_long
    }

    /// A poll was long: this task's, if that is known. Each is counted; with their tasks they are told once in
    /// [`NAMED_EVERY`].
    #[cold]
    pub(crate) fn count_long_poll(&self, header: Option<&Header>) {
        let desk = self.desk();
        Stats::add(&desk.stats.long_polls, 1);
        desk.is_stuck.store(false, Relaxed);
        let now = self.read_clock();
        self.start_judging(now);
        self.all_measured_until.set(Nanos(now.0 + MEASURED_FOR.0));
        self.sample_mask.set(0);
        self.until_sample.set(0);
        self.stands_for.set(2);
        if header.is_some() {
            if now.0 < desk.says.untold_until.load(Relaxed) {
                return Stats::add(&desk.says.untold, 1);
            }
            desk.says.untold_until.store(now.0 + NAMED_EVERY.0, Relaxed);
        }
        let worker = self.me.0;
        let limit_ms = self.shared.long_poll.0 / 1_000_000;
        let untold = if header.is_some() { desk.says.untold.swap(0, Relaxed) } else { 0 };
        // What listens to traces may panic; the task that ran is not to die of it, nor is the worker's round.
        let _ = catch_unwind(AssertUnwindSafe(|| match header.map(Header::name) {
            Some(Some(task)) => {
                tracing::warn!(worker, %task, limit_ms, untold, "long poll: others waited for it")
            }
            Some(None) => {
                tracing::warn!(worker, limit_ms, untold, "long poll of a task without a name: others waited")
            }
            None => tracing::warn!(
                worker,
                limit_ms,
                "long poll: others waited; the next one within a second is told with its task"
            ),
        }));
    }

    /// Until the runtime is over, or another thread takes the worker.
    fn run(&self) {
        while !self.is_replaced.get() {
            let desk = self.desk();
            if desk.inbox.has_tasks() {
                self.empty_inbox();
            }
            if self.shelf().len() > 0 {
                self.take_from_shelf();
            }
            match self.next() {
                Some((waiting, is_shared)) => {
                    if self.was_idle.get() {
                        self.was_idle.set(false);
                        // From here on somebody else is to watch.
                        self.shared.watch.appoint(&self.shared, self.me, self.now());
                    }
                    self.poll(waiting, is_shared);
                }
                None => {
                    if self.idle() == Idle::Over {
                        return self.close();
                    }
                }
            }
        }
    }

    fn empty_inbox(&self) {
        let desk = self.desk();
        let mut queue = lock(&desk.queue);
        desk.inbox.take().for_each(|ready| queue.push(Waiting { ready, since: self.now() }));
        self.shared.say(desk, &mut queue, self.now());
        let waiting = queue.len();
        drop(queue);
        if waiting > self.crowd.get() {
            self.call_help();
        }
    }

    /// The next task; and whether tasks of several tenants are about, so that what each uses is to be measured.
    #[inline]
    fn next(&self) -> Option<(Waiting, bool)> {
        let desk = self.desk();
        let mut queue = lock(&desk.queue);
        let is_shared = self.claims.are_several();
        let waiting = queue.pop(self.chain_max.get(), || self.shared.turn_of(desk))?;
        self.shared.say(desk, &mut queue, self.now());
        Some((waiting, is_shared))
    }

    #[inline]
    fn poll(&self, waiting: Waiting, is_shared: bool) {
        let desk = self.desk();
        let header = waiting.ready.metadata();
        if !header.is_home(self.me) {
            self.count_move(header.home());
            header.set_home(self.me);
        }
        let share = is_shared.then(|| (crate::queue::Entry::share(&waiting), desk.host.now()));
        let polls = desk.says.polls.load(Relaxed);
        desk.says.polls.store(polls + 1, Relaxed);
        self.budget.begin_poll();
        self.sleeper.set(0);
        let is_awake = waiting.ready.run();
        if self.is_replaced.get() {
            return;
        }
        desk.says.polls.store(polls + 2, Relaxed);
        if is_awake {
            self.sleeper.set(0);
            self.budget.was_woken_in_poll();
        } else if self.sleeper.get() > self.longest_sleeper.get() {
            self.longest_sleeper.set(self.sleeper.get());
        }
        if let Some((share, since)) = share {
            let mut ran = self.read_clock().0.saturating_sub(since.0);
            if ran >= LONG_CHARGE.0 {
                ran = ran.saturating_sub(self.lost_since()).max(1);
            }
            lock(&desk.queue).charge(share, ran);
        }
        let left = self.left.get() - 1;
        self.left.set(left);
        if left == 0 {
            self.turn();
        }
    }

    /// The task that this worker polls is not ready. It sleeps, unless it was woken meanwhile: that is known when
    /// its poll has ended.
    #[inline]
    pub(crate) fn fell_asleep(&self, usually: u32) {
        self.sleeper.set(usually);
    }

    /// Until when tasks that went to sleep usually do, by the clock as it was last read then.
    fn window(&self) -> Nanos {
        match self.longest_sleeper.get() {
            0 => self.window.get(),
            longest => self.window.get().max(Nanos(self.now().0 + u64::from(longest))),
        }
    }

    /// The worker has nothing to do: it is kept for those of its tasks that sleep shortly.
    fn open_window(&self, now: Nanos) {
        let says = &self.desk().says;
        let until = match self.sleeper.get() {
            0 => self.window().0,
            // That was its last poll: the task has just gone to sleep.
            usually => self.window().0.max(now.0 + u64::from(usually)),
        };
        if until > says.hot_until.load(Relaxed) {
            says.hot_until.store(until, Relaxed);
        }
    }

    /// What other threads had of this worker's CPU since this was asked last. A tenant is not to pay for that: after
    /// such a pause the CPU is the worker's for a while, so that those that run then would pay for none. A poll that
    /// waits by itself, in a system call or for a lock, pays: where nothing was taken from the thread nothing is lost.
    #[cold]
    fn lost_since(&self) -> u64 {
        let desk = self.desk();
        let Some((cpu, taken_off)) = desk.host.thread_cpu() else { return 0 };
        let now = (self.now().0.saturating_sub(desk.stats.parked_ns.load(Relaxed)), cpu.0, taken_off);
        let before = self.on_cpu.replace(now);
        if now.2 == before.2 {
            return 0;
        }
        now.0.saturating_sub(before.0).saturating_sub(now.1.saturating_sub(before.1))
    }

    #[cold]
    fn count_move(&self, home: Option<CpuId>) {
        let stats = &self.desk().stats;
        let number = match home.map(|home| self.shared.machine.distance(home, self.me)) {
            None => &stats.first,
            Some(Distance::Same | Distance::Core | Distance::Llc) => &stats.same_llc,
            Some(Distance::Node) => &stats.other_llc,
            Some(Distance::Socket | Distance::Machine) => &stats.other_node,
        };
        Stats::add(number, 1);
    }

    #[inline]
    fn shelf(&self) -> &Shelf {
        // SAFETY: as `desk`.
        unsafe { self.shelf.as_ref() }
    }

    /// Some that belong to nobody. If more are left somebody else is to come for them.
    #[cold]
    fn take_from_shelf(&self) {
        let (desk, machine) = (self.desk(), &self.shared.machine);
        let shard = machine.shard_of(self.me);
        let popped = self.shelf().pop(machine.cpus_of(shard).len());
        if popped.is_empty() {
            return;
        }
        let mut queue = lock(&desk.queue);
        popped.into_iter().for_each(|ready| queue.push(Waiting { ready, since: self.now() }));
        self.shared.say(desk, &mut queue, self.now());
        drop(queue);
        if self.shelf().len() > 0 && self.shelf().idle.load(Relaxed) > 0 {
            self.shared.kick_for_shelf(shard, None);
        }
    }

    /// A round is over: the clock and the driver.
    #[cold]
    fn turn(&self) {
        let now = self.read_clock();
        self.judge(now);
        self.end_round(now.0.saturating_sub(self.round_began.get().0));
        self.ask_driver();
        self.round_began.set(self.read_clock());
        self.start_judging(self.now());
        if self.desk().says.waiting.load(Relaxed) > 0 && self.shared.count_idle() > 0 {
            self.shared.help(self.me, now);
        }
        if now >= self.balance_at.get() {
            self.balance(now);
        }
        if self.claims.are_several() {
            self.fetch_owed(now);
        }
    }

    /// Looks at one of its neighbours, by chance: if the tasks there get fewer polls than those here, some come.
    fn balance(&self, now: Nanos) {
        self.balance_at.set(Nanos(now.0 + BALANCE_EVERY.0));
        let (desk, shared) = (self.desk(), &self.shared);
        let near = shared.machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || !shared.policy.shares() {
            return;
        }
        desk.says.pinned.store(lock(&desk.queue).pinned(), Relaxed);
        let which = self.throw() as usize % near;
        let Some(other) = shared.machine.others(self.me).nth(which) else { return };
        let distance = shared.machine.distance(self.me, other);
        let mut shares = self.shares.borrow_mut();
        let come = shares.look(which, shared.pace(self.me), shared.pace(other), distance);
        if come > 0 {
            let (came, had_run) = shared.fetch(self.me, other, come, now, || self.throw());
            shares.moved(had_run);
            Stats::add(&desk.stats.balanced, came.into());
        }
    }

    /// Looks at one of its neighbours, by chance: if a task waits there of a tenant that is behind all those whose tasks
    /// wait here, it comes.
    #[cold]
    fn fetch_owed(&self, now: Nanos) {
        let (desk, shared) = (self.desk(), &self.shared);
        let near = shared.machine.cpus().saturating_sub(1).min(NEIGHBOURS);
        if near == 0 || !shared.policy.shares() {
            return;
        }
        let least = lock(&desk.queue).least_had();
        // A worker where no task waits takes one by itself before it sleeps.
        let Some(below) = least.checked_sub(OWED_MIN).filter(|_| least < u64::MAX) else { return };
        let which = self.throw() as usize % near;
        let Some(other) = shared.machine.others(self.me).nth(which) else { return };
        if shared.fetch_owed(self.me, other, below, now) {
            Stats::add(&desk.stats.balanced, 1);
        }
    }

    fn throw(&self) -> u32 {
        let mut dice = self.dice.get();
        dice ^= dice << 13;
        dice ^= dice >> 17;
        dice ^= dice << 5;
        self.dice.set(dice);
        dice
    }

    /// What a poll takes on average, and how many make a round.
    fn end_round(&self, took: u64) {
        let says = &self.desk().says;
        let round = self.round.get();
        let average = (took / u64::from(round)).clamp(1, 1 << 30);
        let old = u64::from(says.poll_ns.load(Relaxed));
        // A round in which the system gave the CPU to somebody else says little.
        let average = if old == 0 { average } else { average.min(old * 4) };
        let average = if old == 0 { average } else { old - old / 4 + average / 4 }.max(1);
        says.poll_ns.store(average as u32, Relaxed);
        // One more or not, by lot. With the same number each time, of three tasks on two workers the same one could be
        // found waiting whenever this worker looks. A round of one poll stays one: its driver waits for long enough.
        let round = match (TURN_EVERY.0 / average).clamp(1, POLLS_MAX.into()) as u32 {
            1 => 1,
            polls => polls + self.throw() % 2,
        };
        self.round.set(round);
        self.left.set(round);
        self.crowd.set(self.shared.policy.crowded(Nanos(average)));
        self.chain_max.set(self.shared.policy.chain_max(Nanos(average)));
    }

    fn ask_driver(&self) {
        let desk = self.desk();
        self.in_driver.set(true);
        desk.host.turn();
        self.in_driver.set(false);
        Stats::add(&desk.stats.turns, 1);
        self.clear_stuck();
    }

    /// What ran in the driver for long has ended.
    fn clear_stuck(&self) {
        let desk = self.desk();
        if desk.is_stuck.load(Relaxed) {
            desk.is_stuck.store(false, Relaxed);
            Stats::add(&desk.stats.long_polls, 1);
            tracing::warn!(
                worker = self.me.0,
                "long poll of a task that was spawned on tokio: others waited"
            );
        }
    }

    /// Nothing waits here.
    fn idle(&self) -> Idle {
        let desk = self.desk();
        let now = self.read_clock();
        if self.judge(now) {
            // What was told of it may have woken a task, here.
            return Idle::Awake;
        }
        if !desk.inbox.sleep() {
            return Idle::Awake;
        }
        if desk.is_stuck.load(Relaxed) {
            desk.is_stuck.store(false, Relaxed);
        }
        let shelf = self.shelf();
        shelf.idle.fetch_add(1, Relaxed);
        let idling = Idling { desk, shelf };
        // ORDERING: SeqCst; that it sleeps was written before, what waits elsewhere is read after:
        // `Shared::help` and `kick_for_shelf` do both the other way round. One of the two sees the other.
        fence(SeqCst);
        let outcome = self.sleep(now);
        drop(idling);
        self.start_judging(self.now());
        // What it slept is not what its polls took.
        let slept = self.now().0 - now.0;
        self.round_began.set(Nanos(self.round_began.get().0 + slept));
        self.was_idle.set(true);
        outcome
    }

    fn sleep(&self, now: Nanos) -> Idle {
        let (desk, me) = (self.desk(), self.me);
        if self.shared.is_over.load(Acquire) {
            return Idle::Over;
        }
        let until = match self.shared.pull(me, now) {
            Pulled::Some => {
                Stats::add(&desk.stats.pulls, 1);
                return Idle::Awake;
            }
            Pulled::Until(at) => Some(at),
            Pulled::Nothing => None,
        };
        self.open_window(now);
        let watch = self.shared.watch.begin(&self.shared, me, now);
        let foreign = self.shared.foreign.due(me, now);
        if !self.was_idle.get() {
            // What it polled may have spawned tasks on its driver. One that only woke to look appoints no other, or two
            // that idle would wake each other for ever.
            self.shared.foreign.begin(&self.shared, me, 0);
        }
        let until = [until, watch, foreign].into_iter().flatten().min();
        self.in_driver.set(true);
        desk.says.asleep_since.store(now.0, Relaxed);
        self.is_now_old.set(true);
        desk.host.park(until, &|| !desk.inbox.is_asleep());
        self.is_now_old.set(false);
        desk.says.asleep_since.store(0, Relaxed);
        self.in_driver.set(false);
        let woke = self.read_clock();
        Stats::add(&desk.stats.parks, 1);
        Stats::add(&desk.stats.parked_ns, woke.0.saturating_sub(now.0));
        self.clear_stuck();
        if self.shared.watch.is_due(me, woke) {
            self.in_driver.set(true);
            self.shared.watch.look(&self.shared, me, woke);
            self.in_driver.set(false);
            self.read_clock();
        }
        self.shared.foreign.look(&self.shared, me, woke);
        Idle::Awake
    }

    /// The driver comes back from a wait, its `n`th.
    pub(crate) fn driver_runs(&self, n: u64) {
        self.shared.foreign.begin(&self.shared, self.me, n);
    }

    /// The runtime is over, and every task has ended.
    fn close(&self) {
        let desk = self.desk();
        desk.says.is_gone.store(true, Relaxed);
        desk.inbox.close().for_each(end);
        while let Some(ready) = self.pop_any() {
            end(ready);
        }
        desk.host.close();
        // What the driver dropped may have woken others, here.
        while let Some(ready) = self.pop_any() {
            end(ready);
        }
    }

    /// Whatever is left.
    fn pop_any(&self) -> Option<Ready> {
        let waiting = lock(&self.desk().queue).pop(u32::MAX, || warmcore_sched::Turn::Forth);
        waiting.map(|waiting| waiting.ready)
    }

    /// The thread is going to block: another goes on as this worker. False: there is none to be had.
    pub(crate) fn hand_on(&self) -> bool {
        if self.in_driver.get() {
            // The driver is held by this thread, and so is the worker's sleep.
            return false;
        }
        // Before the other begins: from then on the worker's numbers are that one's.
        Stats::add(&self.desk().says.polls, 1);
        self.desk().is_stuck.store(false, Relaxed);
        if Spares::give(&self.shared, self.me).is_err() {
            Stats::add(&self.desk().says.polls, 1);
            return false;
        }
        self.is_replaced.set(true);
        context::stop_being();
        // For the rest of the poll the thread is in the runtime as any other that entered it: see `be_thread`.
        std::mem::forget(context::enter(self.shared.clone()));
        true
    }
}

/// Whether one of so many polls, which took so long together, was longer than `limit`, where a poll takes `average` ns.
///
/// A round of polls is as many as take 200 µs on average, so a poll that is longer than the limit by 0.8 ms and
/// eight average polls is always found; and polls that are all five times as long as those before may pass for a long one among shorter ones, once.
fn is_one_long(took: u64, polls: u64, average: u32, limit: Nanos) -> bool {
    // Not known yet: only what so many polls can't have taken together if none of them was long.
    let usual = if average == 0 { limit.0 } else { UNUSUAL * u64::from(average) };
    polls > 0 && took > limit.0.saturating_add(polls.saturating_mul(usual))
}

/// A worker that sleeps, or looks for work as one that does. However that ends, it is awake again.
struct Idling<'a> {
    desk: &'a Desk,
    shelf: &'a Shelf,
}

impl Drop for Idling<'_> {
    fn drop(&mut self) {
        self.shelf.idle.fetch_sub(1, Relaxed);
        self.desk.inbox.rouse();
        // ORDERING: SeqCst; that it is awake was written before, whether it was called, and what lies on the shelf,
        // is read after: `Shared::kick_for_shelf` does both the other way round.
        fence(SeqCst);
        if self.shelf.is_called.load(Relaxed) {
            self.shelf.is_called.store(false, SeqCst);
            fence(SeqCst);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Idle {
    Awake,
    Over,
}

/// Ends a task that nobody will run: its future is dropped here, and who waits for it hears that.
pub(crate) fn end(ready: Ready) {
    ready.metadata().abort();
    ready.run();
}

/// A worker's thread, from its first to its last moment.
pub(crate) fn be_thread(shared: Arc<Shared>, first: CpuId) {
    context::become_a_runtimes();
    let mut next = Some(first);
    let budget = Rc::new(OpBudget::new());
    while let Some(cpu) = next {
        shared.pin(cpu);
        let local = Local::new(shared.clone(), cpu, budget.clone());
        let host = &shared.desk(cpu).host;
        host.begin();
        host.within(&mut || {
            let _being = context::be(&local);
            // What unwinds to here is not a task's: a waker or a subscriber of somebody else's. The worker goes on.
            let mut unwound = 0;
            while catch_unwind(AssertUnwindSafe(|| local.run())).is_err() {
                local.in_driver.set(false);
                unwound += 1;
                if unwound > UNWOUND_MAX {
                    eprintln!(
                        "worker {cpu} of {}: {unwound} panics outside tasks; it can't go on",
                        shared.name
                    );
                    std::process::abort();
                }
            }
        });
        host.end();
        if !local.is_replaced.get() {
            return;
        }
        drop(local);
        context::leave_all();
        next = shared.spares.wait();
    }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;
