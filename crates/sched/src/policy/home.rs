//! Home: a task wakes on the worker that ran it last, where its data is, unless that costs more than moving the data.
//!
//! **Wakes.** To wake a task on its previous CPU costs a kick if that CPU is parked, and a little if it runs. To run the
//! task elsewhere costs its migration cost, once. Both are learned ([`View::wakeup_cost`], `refill.rs`). If one kick costs more
//! than the move, or one wait behind the poll that runs there, the task runs where it is woken. Otherwise each wake on the
//! previous CPU adds to the task's *accrued cost*. When that reaches the migration cost, the task moves to its waker. Until
//! it moves, and by moving, it has paid less than twice the better of staying for ever and moving at once (the ski rental
//! problem). A task that one CPU wakes again and again also adds a part of the time that it waits behind other tasks: a part
//! only, because waiting uses no CPU. So a task ends up beside the task that it talks to, after one wake if it has little
//! data, after many if it has much. It does not move to a CPU where more tasks wait than at its own, unless that saves a
//! kick; while it could not move, the accrued cost does not grow. And a task that would wait for its CPU for longer than a kick and the move
//! take goes to an idle CPU of its shard, as long as the machine has two: on 2 × 96 simulated cores requests got 0.94 to 0.96 of the
//! rounds of Linux's placement without that, and 0.99 with it (`tools/sim/tests/placement.rs`).
//!
//! **Steals.** A task that waits elsewhere is stolen when it has waited for as long as a move costs, counted from when
//! the CPU's backlog began: by then the idling has cost as much as the move will. One migration cost is added, because a
//! task that has just moved there keeps its CPU for that long; if the tasks behind it were stolen because that CPU is busy
//! with it, each move would cause the next one (`tools/sim/tests/conserve.rs`). From a CPU in a long poll, or an offline one,
//! tasks are stolen at once. So are light ones nearby that would wait for longer than the steal takes: the delay is there to keep
//! parked CPUs from being woken for them, and the CPU that steals is awake. A search looks at its shard and, a limited number, at other CPUs of its last-level cache, and at
//! others only where another CPU asked for it ([`View::far_search`]) or rarely, and then at a limited number, others each time: each line that
//! it reads takes 100 to 200 ns, and tasks wait for the CPU that searches. With a look at all CPUs that are awake, simulated as above, requests
//! at 60 % load got 0.85 of the rounds.
//!
//! **New tasks.** A task that never ran has no data. If its first poll is known to take longer than a kick, four kicks if only one
//! CPU is idle, or ten if other threads may need that, it goes to an idle CPU.
//!
//! **Kicks.** A parked CPU is kicked for light tasks of which the last would wait longer than the kick and the move take, as long as
//! two CPUs or more are idle. The last idle CPU is kicked if they would wait for four times as long, unless other threads may need it
//! ([`View::others_run`]). Then the wait has to be ten times as long as a kick, because the kick takes time from those
//! threads; and so for heavy tasks, which no CPU steals before. By simulation, 8 and 16 workers that are busy for 10 to
//! 60 % of the time then answer requests as soon as tokio's rules do, and two at 60 % in 1.5 times the time; with the longer wait for all, in three to six times
//! (`tools/sim/tests/drivers.rs`).
//!
//! **Standing still.** The thread of a CPU that neither begins nor ends a poll while tasks wait there has probably lost its CPU of the
//! machine ([`View::still_for`]). After four times as long as a poll or a kick takes, its light tasks run where they are woken,
//! and busy CPUs take over half of those that wait there.
//!
//! # Cost
//! A wake on the previous CPU is two comparisons. Example, before a cost was learned: a task whose polls take 16 µs has a
//! migration cost of 64 µs, and moves to a waker that finds its CPU parked four times in a row. If it waits behind others, an idle CPU of its
//! last-level cache takes it after 200 µs, one of another socket after 320 µs.
//!
//! # Source
//! Ours. Wakers that know the rule and alternate can make a task move at twice its migration cost each time; wakers that
//! come by chance cannot (`tests/ski_rental.rs`). Hot windows and the depth of a search: SIS_CACHE and SIS_UTIL.

use super::Policy;
use super::near::{Found, find_idle, may, origin, shared, takes};
use crate::refill::SHORT_POLL_NS;
use crate::{
    Allowed, Distance, FarSearch, QueueOrder, SchedDomains, StealDecision, TargetQueue, View, Wake,
    WakeDecision, WakeSource, Wakee,
};
use warmcore_types::{CpuId, Nanos};

/// The cost of waking a parked CPU: a system call, an interrupt, leaving the idle state.
pub const WAKEUP_COST: Nanos = Nanos(20_000);

/// A task waits at least this long before the last parked CPU is kicked for it, if other threads may need that, or, unless it is light,
/// an idle CPU steals it. To wake a
/// CPU for a few light tasks costs more than they do: HTTP over 8 connections took 8 to 13 % more CPU time at a tenth of this.
pub const MIN_STEAL_DELAY: Nanos = Nanos(WAKEUPS_WAITED * WAKEUP_COST.0);

/// A parked CPU that other threads may need is kicked only for tasks that wait for at least this many times as long as its wakeups were
/// learned to take.
pub const WAKEUPS_WAITED: u64 = 10;

/// An idle CPU examines about this many CPUs of other shards: the nearest ones that are awake, and then two shards anywhere,
/// others each time, so that no task is overlooked for ever. Of each CPU it reads up to three lines that others write, 100 to
/// 200 ns each. Many more reads would cost as much as the kick that they save.
pub const STEAL_SCAN_MAX: u32 = 32;

/// The cost of handing a task to a CPU that runs: a few cache lines move.
pub const HANDOVER_COST: Nanos = Nanos(500);

/// A move costs this many polls of the task: measured 3 to 10, that poll included.
pub const MIGRATION_COST_PER_POLL: u64 = 4;

/// The largest migration cost within a last-level cache: no private cache takes longer to fill from there.
pub const MIGRATION_COST_MAX: Nanos = Nanos(100_000);

/// The longest time until a busy worker polls its driver, and the longest sleep for which a CPU is kept idle.
pub const INTERVAL_MAX: Nanos = Nanos(MIGRATION_COST_PER_POLL * MIGRATION_COST_MAX.0);

/// From this cost of a move on, tasks have enough data that the order of a round alternates. Until it is learned, polls that are not
/// short cost so much.
pub const LIFO_ORDER_MIN_COST: Nanos = Nanos(SHORT_POLL_NS as u64 * MIGRATION_COST_PER_POLL);

/// How often in a row the LIFO slot is served. In few polls two tasks that wake each other would fetch their data and hardly use it;
/// and as fetching makes polls long, that would go on.
pub const LIFO_POLLS: u32 = 12;

/// Of the time that a task waits behind others, one part in this many counts as cost, because waiting uses no CPU.
pub const WAIT_SHARE: u64 = 4;

/// Wakes on the previous CPU, and late steals. The fields are the rules that a test or a simulation may change one by
/// one; [`Home::DEFAULT`] is what the product uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Home {
    /// From this cost of moving a task with the CPU's average poll on, the order of a round alternates and there is a LIFO slot.
    /// Default: 16 µs.
    pub lifo_order_min_cost: Nanos,
    /// An idle CPU steals one light task in this many, rounded up. Default: 2.
    pub steal_divisor: u32,
    /// How many CPUs may search at a time. Default: no limit.
    pub max_searching: u32,
    /// Whether an idle CPU is kept for a task that sleeps briefly. Default: true.
    pub keeps_hot: bool,
    /// How long a task waits before an idle CPU steals it, or before it is kicked for it, at least, unless the task is light. For light
    /// ones: before the last idle CPU is kicked, if other threads may need it. Default: 200 µs.
    pub min_steal_delay: Nanos,
}

impl Home {
    /// The rules of the product.
    pub const DEFAULT: Self = Self {
        lifo_order_min_cost: LIFO_ORDER_MIN_COST,
        steal_divisor: 2,
        max_searching: u32::MAX,
        keeps_hot: true,
        min_steal_delay: MIN_STEAL_DELAY,
    };

    /// How long a task that costs so much to move waits before a parked CPU is kicked for it, at least. `spare`: what the kick counts as, if
    /// no other thread needs the CPU; then a light task waits for as long as that, since the kicked CPU steals it at once.
    fn kick_delay(self, migration_cost: Nanos, spare: Option<Nanos>) -> Nanos {
        match spare {
            Some(wakeup) if migration_cost < WAKEUP_COST => {
                Nanos(wakeup.0.saturating_mul(self.min_steal_delay.0) / MIN_STEAL_DELAY.0)
            }
            _ => self.min_steal_delay,
        }
    }

    /// The idle CPU that a new task goes to which a task on `waker` spawned: if its first poll takes longer than the kick counts as, or, if
    /// other threads may need the CPU, than ten. It has no data yet.
    fn cpu_for_new(
        self,
        machine: &SchedDomains,
        view: &impl View,
        wake: &Wake,
        waker: CpuId,
    ) -> Option<CpuId> {
        if wake.wakee.first_poll == Nanos(0) || !has_idle(machine, view, waker, 1) {
            return None;
        }
        let spare = kick_price(machine, view, waker, view.wakeup_cost(waker));
        let found = || find_idle(machine, view, waker, self.hot_clock(wake.now), &wake.wakee);
        let pays = wake.wakee.first_poll >= self.kick_delay(Nanos(0), spare);
        pays.then(found)?.map(|found| found.cpu).filter(|found| *found != waker)
    }

    /// The time with which a search at `now` compares hot windows: if CPUs are not kept, one at which all are closed.
    fn hot_clock(self, now: Nanos) -> Nanos {
        if self.keeps_hot { now } else { Nanos(u64::MAX) }
    }
}

impl Default for Home {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Policy for Home {
    #[inline]
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        match (wake.wakee.prev_cpu, wake.waker) {
            (Some(prev_cpu), WakeSource::Cpu(waker)) if prev_cpu == waker => {
                WakeDecision::on(prev_cpu, false)
            }
            (Some(prev_cpu), _) => self.wake_remote(machine, view, wake, prev_cpu),
            (None, WakeSource::Cpu(waker)) if may(machine, wake.wakee.allowed, waker) => {
                match self.cpu_for_new(machine, view, wake, waker) {
                    Some(idle) => WakeDecision::on(idle, true),
                    None => WakeDecision::on(waker, false),
                }
            }
            (None, waker) => self.place_task(machine, view, wake, origin(machine, view, waker)),
        }
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        let mut search = Search { rules: *self, machine, view, me, now, scanned: 0, earliest: None };
        let (own, far_search) = (machine.shard_of(me), view.far_search(me));
        for shard in machine.shards_from(me) {
            let is_far =
                machine.cpus_of(shard).first().is_some_and(|cpu| machine.distance(me, *cpu) > Distance::Llc);
            let looks = match far_search {
                FarSearch::Shard(asked) if shard == asked => true,
                FarSearch::Shard(_) | FarSearch::None if is_far => false,
                _ => shard == own || search.scanned < STEAL_SCAN_MAX,
            };
            if let Some(pull) = search.shard(shard, looks) {
                return pull;
            }
        }
        if far_search == FarSearch::All && search.scanned >= STEAL_SCAN_MAX {
            let rotation = (now.0 / WAKEUP_COST.0).wrapping_add(me.index() as u64) as usize;
            let far = [rotation, rotation / machine.shards()].map(|number| number % machine.shards());
            if let Some(pull) = far.into_iter().find_map(|shard| search.shard(shard, true)) {
                return pull;
            }
        }
        search.earliest.map_or(StealDecision::Nothing, StealDecision::Until)
    }

    fn takes_over(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        me: CpuId,
        cpu: CpuId,
        now: Nanos,
    ) -> bool {
        let distance = machine.distance(me, cpu);
        let migration_cost =
            migration_cost_over(view.migration_cost_at(cpu), view.far_cost_at(cpu), distance);
        is_late(view, cpu, me, migration_cost, now)
    }

    /// As many tasks as make the last one wait longer than the steal delay and the move.
    #[inline]
    fn notify_threshold(&self, average_poll: Nanos, migration_cost: Nanos, spare: Option<Nanos>) -> u32 {
        let price = later(self.kick_delay(migration_cost, spare), migration_cost).0;
        u32::try_from(price.div_ceil(average_poll.0.max(1))).unwrap_or(u32::MAX).max(2)
    }

    /// If a kicked CPU would come later than this one, and the tasks that wait are not worth a kick.
    fn serves_alone(&self, poll: Nanos, waiting: u32, wakeup_cost: Nanos) -> bool {
        poll <= wakeup_cost && !waits_longer(waiting, poll, self.min_steal_delay)
    }

    /// An idle CPU, if so many tasks wait that the last one waits longer than the kick and the move take, or some wait for long. If only
    /// one CPU is idle: longer than four such kicks, or ten if other threads may need it.
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        let (waiting, migration_cost) = (view.backlog(at), view.migration_cost_at(at));
        let pays = |delay: Nanos| {
            let min_delay = later(migration_cost, migration_cost).max(delay).max(self.min_steal_delay);
            (waiting > 0 && later(view.backlog_since(at), min_delay) <= now)
                || waits_longer(waiting, view.mean_poll_at(at), later(delay, migration_cost))
                || view.is_stuck(at)
        };
        // One task that waits runs next.
        let price = |kick| if waiting > 1 { kick_price(machine, view, at, kick) } else { None };
        if !pays(self.kick_delay(migration_cost, price(HANDOVER_COST))) {
            return None;
        }
        let found = find_idle(machine, view, at, self.hot_clock(now), &Wakee::default())?.cpu;
        // What this one's kick was learned to cost. From another last-level cache it steals no task at once.
        let wakeup = view.wakeup_cost(found);
        let is_near = machine.distance(at, found) <= Distance::Llc;
        let delay = self.kick_delay(migration_cost, price(wakeup).filter(|_| is_near));
        let waited = Nanos((self.min_steal_delay.0 / WAKEUP_COST.0).saturating_mul(wakeup.0));
        let delay = if delay < self.min_steal_delay { delay } else { delay.max(waited) };
        pays(delay).then_some(found)
    }

    fn shares(&self) -> bool {
        true
    }

    /// None for light tasks: they find their data in the cache in any order, and in order of arrival a task finds more
    /// messages at once. And none if a poll that others wait for costs more than what it saves, as above 0.4 ms.
    #[inline]
    fn max_lifo_polls(&self, average_poll: Nanos, migration_cost: Nanos) -> u32 {
        let has_slot =
            migration_cost >= self.lifo_order_min_cost && average_poll.0 / WAIT_SHARE <= migration_cost.0;
        if has_slot { LIFO_POLLS } else { 0 }
    }

    fn queue_order(&self, migration_cost: Nanos) -> QueueOrder {
        if migration_cost >= self.lifo_order_min_cost { QueueOrder::Lifo } else { QueueOrder::Fifo }
    }

    fn max_searching(&self, workers: u32) -> u32 {
        self.max_searching.min(workers)
    }

    #[inline]
    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        Nanos(average_poll.0.saturating_mul(MIGRATION_COST_PER_POLL).min(MIGRATION_COST_MAX.0))
    }
}

/// A search of an idle CPU for a task to steal.
struct Search<'a, V> {
    rules: Home,
    machine: &'a SchedDomains,
    view: &'a V,
    me: CpuId,
    now: Nanos,
    /// CPUs of other shards that were examined.
    scanned: u32,
    earliest: Option<Nanos>,
}

impl<V: View> Search<'_, V> {
    /// What to take from a shard's queue, or, if `looks`, from one of its CPUs.
    fn shard(&mut self, shard: usize, looks: bool) -> Option<StealDecision> {
        let (machine, view, me, now) = (self.machine, self.view, self.me, self.now);
        // A task in a shared queue has no CPU yet, and is taken at once.
        if view.shared_queue_len(shard) > 0 {
            return Some(StealDecision::Shard(shard));
        }
        if !looks {
            return None;
        }
        let is_own = shard == machine.shard_of(me);
        for cpu in machine.cpus_among(me, shard, view.backlogs_in(shard)) {
            self.scanned += u32::from(!is_own);
            let waiting = view.backlog(cpu);
            if waiting == 0 || !view.can_steal(me, cpu) {
                continue;
            }
            let is_helpless = view.is_stuck(cpu) || view.is_offline(cpu);
            let migration_cost_at = view.migration_cost_at(cpu);
            let distance = machine.distance(me, cpu);
            let migration_cost = migration_cost_over(migration_cost_at, view.far_cost_at(cpu), distance);
            // This CPU is awake, so light tasks nearby that would wait for longer than the steal takes are taken at once, unless
            // their CPU was kicked and is about to run them.
            let at_once = migration_cost < WAKEUP_COST
                && distance <= Distance::Llc
                && waits_longer(waiting, view.mean_poll_at(cpu), later(HANDOVER_COST, migration_cost))
                && !view.is_idle(cpu);
            // One migration cost is added for a task that has just moved there.
            let min_delay = later(migration_cost, migration_cost_at).max(self.rules.min_steal_delay);
            let wait = if at_once { Nanos(0) } else { min_delay };
            let at = if is_helpless { now } else { later(view.backlog_since(cpu), wait) };
            if at <= now {
                let is_light = migration_cost < WAKEUP_COST || is_helpless;
                return Some(StealDecision::From {
                    cpu,
                    at_most: if is_light { waiting.div_ceil(self.rules.steal_divisor.max(1)) } else { 1 },
                });
            }
            self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        }
        None
    }
}

/// Whether so many CPUs are idle, besides `me`.
#[inline]
pub(crate) fn has_idle(machine: &SchedDomains, view: &impl View, me: CpuId, cpus: u32) -> bool {
    let own = machine.shard_of(me);
    let mut idle = (view.idle_in(own) & !machine.bit(me)).count_ones();
    let mut others = (0..machine.shards()).filter(|shard| *shard != own);
    idle >= cpus
        || others.any(|shard| {
            idle += view.idle_in(shard).count_ones();
            idle >= cpus
        })
}

/// What a kick that costs so much counts as for light tasks. `None`: other threads may need the only idle CPU besides `me`. If none
/// does, the kick takes CPU time all the same, and of the time that a task waits only a part counts.
#[inline]
pub(crate) fn kick_price(machine: &SchedDomains, view: &impl View, me: CpuId, kick: Nanos) -> Option<Nanos> {
    if has_idle(machine, view, me, 2) {
        return Some(kick);
    }
    (!view.others_run() && has_idle(machine, view, me, 1)).then(|| Nanos(kick.0.saturating_mul(WAIT_SHARE)))
}

/// The factor by which a move over this distance costs more than one within a last-level cache.
pub(crate) fn distance_factor(distance: Distance) -> u64 {
    match distance {
        Distance::Same | Distance::Smt | Distance::Llc => 1,
        Distance::Node => 2,
        Distance::Socket => 3,
        Distance::Other => 4,
    }
}

/// The cost of a move over this distance: within the last-level cache, or `far_cost` at least, times the distance's factor.
fn migration_cost_over(migration_cost: Nanos, far_cost: Nanos, distance: Distance) -> Nanos {
    if distance <= Distance::Llc {
        return migration_cost;
    }
    Nanos(migration_cost.max(far_cost).0.saturating_mul(distance_factor(distance)))
}

fn later(at: Nanos, by: Nanos) -> Nanos {
    Nanos(at.0.saturating_add(by.0))
}

/// The cost of queueing behind the tasks of the previous CPU. If the task's last waker was on the same CPU as this one, it
/// talks to a task there: then also a part of the time that it waits longer than on the waker's CPU. There a heavy task
/// would run next, through the LIFO slot.
fn queueing_cost(rules: Home, view: &impl View, wakee: &Wakee, prev_cpu: CpuId, near: CpuId) -> Nanos {
    if wakee.woken_from != Some(near) {
        return HANDOVER_COST;
    }
    let poll = |cpu| view.mean_poll_at(cpu).0;
    let wait = |cpu| poll(cpu).saturating_mul(view.backlog(cpu).into());
    let is_next = rules.max_lifo_polls(view.mean_poll_at(near), view.migration_cost_at(near)) > 0;
    let longer = wait(prev_cpu).saturating_sub(if is_next { 0 } else { wait(near) });
    later(HANDOVER_COST, Nanos(longer / WAIT_SHARE))
}

/// The cost of queueing at a CPU whose present poll has not ended yet.
fn wait_of_a_poll(view: &impl View, cpu: CpuId) -> Nanos {
    later(HANDOVER_COST, Nanos(view.mean_poll_at(cpu).0 / WAIT_SHARE))
}

/// Whether a light task that waits at `cpu` is better off at `near`, because `cpu` stands still: its thread is not on a CPU of the
/// machine, or it is in a long poll. For how much longer is not known, so as long again is as good a guess as any. A part of that
/// is more than a usual poll takes, or a kick, and all of it more than the wait at `near`.
///
/// Only light tasks: if `cpu` moves on, it takes those back by halves, others one by one.
fn is_late(view: &impl View, cpu: CpuId, near: CpuId, migration_cost: Nanos, now: Nanos) -> bool {
    if migration_cost >= WAKEUP_COST || view.is_stuck(cpu) {
        return false;
    }
    let still_for = view.still_for(cpu, now).0;
    let wait = || view.mean_poll_at(near).0.saturating_mul(view.backlog(near).into());
    let usual = || view.mean_poll_at(cpu).max(view.wakeup_cost(cpu)).0;
    still_for > 0 && still_for >= usual().saturating_mul(WAIT_SHARE) && still_for > wait()
}

/// Whether a light task would wait behind heavy ones. Then the CPU that ends its poll first takes it, because the wait
/// would cost more than the move.
fn is_light_among(migration_cost: Nanos, others: Nanos) -> bool {
    others >= WAKEUP_COST && migration_cost.0.saturating_mul(8) <= others.0
}

impl Home {
    /// Places a task that has a previous CPU and was not woken there.
    fn wake_remote(
        self,
        machine: &SchedDomains,
        view: &impl View,
        wake: &Wake,
        prev_cpu: CpuId,
    ) -> WakeDecision {
        let Wakee { migration_cost, accrued_cost, allowed, .. } = wake.wakee;
        if !takes(machine, view, allowed, prev_cpu) {
            return self.place_task(machine, view, wake, prev_cpu);
        }
        let is_idle = view.is_idle(prev_cpu);
        let mut stay = WakeDecision { accrued_cost, ..WakeDecision::on(prev_cpu, is_idle) };
        if let WakeSource::Cpu(near) | WakeSource::Outside(Some(near)) = wake.waker {
            // The task may move to the waker's CPU if no more tasks wait there than at its own, or if that CPU is idle and the
            // waker is a thread outside.
            let is_free = || match wake.waker {
                WakeSource::Cpu(_) => view.backlog(near) <= view.backlog(prev_cpu),
                WakeSource::Outside(_) => view.is_idle(near),
            };
            let distance = machine.distance(prev_cpu, near);
            let migration_cost = migration_cost_over(migration_cost, wake.wakee.far_cost, distance);
            // A light task: to fetch its data costs less than to wake its CPU, however many tasks wait here, or less than one
            // wait behind a poll there. The first CPU that has time takes it.
            let is_light = || match is_idle {
                true => migration_cost < view.wakeup_cost(prev_cpu),
                false => {
                    (migration_cost < wait_of_a_poll(view, prev_cpu) && is_free())
                        || is_late(view, prev_cpu, near, migration_cost, wake.now)
                }
            };
            if near == prev_cpu {
                stay.accrued_cost = Nanos(0);
            } else if matches!(wake.waker, WakeSource::Cpu(_)) && may(machine, allowed, near) && is_light() {
                return WakeDecision::on(near, false);
            } else if takes(machine, view, allowed, near) && is_free() {
                stay.accrued_cost = later(
                    accrued_cost,
                    if is_idle {
                        view.wakeup_cost(prev_cpu)
                    } else {
                        queueing_cost(self, view, &wake.wakee, prev_cpu, near)
                    },
                );
                if stay.accrued_cost >= migration_cost {
                    return WakeDecision::on(near, view.is_idle(near));
                }
            }
        }
        if view.is_stuck(prev_cpu) && allowed != Allowed::Cpu(prev_cpu) {
            return self.place_task(machine, view, wake, prev_cpu);
        }
        if !is_idle && allowed == Allowed::Anywhere {
            if let Some(idle) = self.idle_instead(machine, view, wake, prev_cpu) {
                return idle;
            }
            if is_light_among(migration_cost, view.migration_cost_at(prev_cpu)) {
                return self.place_task(machine, view, wake, prev_cpu);
            }
        }
        stay
    }

    /// An idle CPU of the shard, if the task would wait behind the others of `prev_cpu` for longer than a kick and the move take.
    /// Not the machine's last idle one; one that is kept for another task, if there is no other.
    fn idle_instead(
        self,
        machine: &SchedDomains,
        view: &impl View,
        wake: &Wake,
        prev_cpu: CpuId,
    ) -> Option<WakeDecision> {
        let migration_cost = wake.wakee.migration_cost;
        // The poll that runs there counts as a whole one: those that a wake meets are the long ones.
        let polls = u64::from(view.backlog(prev_cpu)) + 1;
        let wait = Nanos(view.mean_poll_at(prev_cpu).0.saturating_mul(polls));
        let near = view.idle_in(machine.shard_of(prev_cpu));
        if wait <= migration_cost || near == 0 || !has_idle(machine, view, prev_cpu, 2) {
            return None;
        }
        let Found { cpu, hot_kept, hot_broken } =
            find_idle(machine, view, prev_cpu, self.hot_clock(wake.now), &wake.wakee)?;
        let pays = wait > later(view.wakeup_cost(cpu), migration_cost);
        let is_near = machine.distance(prev_cpu, cpu) <= Distance::Llc;
        (pays && is_near).then(|| WakeDecision { hot_kept, hot_broken, ..WakeDecision::on(cpu, true) })
    }

    /// Places a new task, or one that can't run on its previous CPU: on an idle CPU near `near`, else in a shared queue.
    fn place_task(self, machine: &SchedDomains, view: &impl View, wake: &Wake, near: CpuId) -> WakeDecision {
        match find_idle(machine, view, near, self.hot_clock(wake.now), &wake.wakee) {
            Some(Found { cpu, hot_kept, hot_broken }) => {
                let there = WakeDecision { hot_kept, hot_broken, ..WakeDecision::on(cpu, true) };
                // A task without data is for the first CPU that is free. Of a burst of such tasks the first kick serves all.
                let is_new = wake.wakee.prev_cpu.is_none() && wake.wakee.allowed == Allowed::Anywhere;
                if is_new {
                    WakeDecision { to: TargetQueue::Shard(machine.shard_of(cpu)), ..there }
                } else {
                    there
                }
            }
            None => shared(machine, view, near, wake.wakee.allowed, None),
        }
    }
}

/// Whether the last one of so many waiting tasks, whose polls take `poll`, waits at least for so long. The cost of tasks that
/// never ran is not known and they have no data: two are enough.
fn waits_longer(waiting: u32, poll: Nanos, least: Nanos) -> bool {
    if poll.0 == 0 { waiting > 1 } else { poll.0.saturating_mul(waiting.into()) >= least.0 }
}
