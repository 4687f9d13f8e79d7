//! Home: a task wakes where its data is, unless that costs more than to carry them.
//!
//! Model.   To wake a task at home costs a kick if its home sleeps, a little if it runs; to run it elsewhere
//!          costs its migration cost once. So the wakes at home run up an accrued cost, and when that has reached the migration cost the
//!          task moves to its waker: until it moves, and by moving, it has paid less than twice the better of
//!          staying and having moved at once. Who is woken from one CPU again and again pays a part of what it waits
//!          behind others at home, too; a delay is no work, so it's a part. A task that talks to another ends up
//!          beside it, after one wake if it is small and after many if it carries a lot. It does not move to a CPU
//!          where more wait than at home, and while it could not move the accrued cost stands still. Who forgets which CPU
//!          each wake came from can be led about by wakers that know the rule, each move at twice its migration cost; wakers
//!          that come by chance can't (`tests/ski_rental.rs`).
//!          An idle CPU lets what waits elsewhere wait for as long as a move costs, counted from when somebody
//!          began to wait there: by then the idling has cost as much as the move will. And for one migration cost more:
//!          a task that has just moved there keeps its new CPU for so long, and if those behind it moved on
//!          for that, each move would bring about the next (`tests/conserve.rs`). A CPU in a
//!          long poll, or one that stops, is helped at once. Who looks at many that are not due yet leaves it at the
//!          nearest, and looks again when the first of these is due.
//! Number.  A task of 16 µs a poll: migration cost 64 µs; it moves to a waker that finds its home asleep 4 times
//!          in a row. If it waits behind others, a CPU of its LLC takes it after 200 µs, one of another socket
//!          after 320.
//! Source.  Ours; hot windows and the scan from SIS_CACHE and SIS_UTIL.

use super::Policy;
use super::near::{Found, find_idle, may, origin, shared, takes};
use crate::{
    Allowed, Distance, QueueOrder, SchedDomains, StealDecision, TargetQueue, View, Wake, WakeDecision,
    WakeSource, Wakee,
};
use warmcore_types::{CpuId, Nanos};

/// What it costs to wake a CPU that sleeps: a system call, an interrupt, the way out of idle.
pub const WAKEUP_COST: Nanos = Nanos(20_000);

/// Who has nothing to do lets those who wait elsewhere wait so long at least, and is not called before. A CPU that
/// is woken for a few light ones costs more than they do, again and again where their sockets stay behind: HTTP
/// over 64 connections took a fifth more CPU at a quarter of this.
pub const MIN_STEAL_DELAY: Nanos = Nanos(200_000);

/// Who has nothing to do weighs about so many CPUs where somebody waits who is not due yet, the nearest ones, and two
/// shards anywhere, others each time, so that nobody is overlooked for good. Of each it reads three lines that others
/// write, 100 to 200 ns each: many more would cost as much as the kick that a look is to spare, and one of those seen
/// is due before long.
pub const STEAL_SCAN_MAX: u32 = 32;

/// What it costs to hand a task to a CPU that runs: a few lines go over.
pub const HANDOVER_COST: Nanos = Nanos(500);

/// A move costs so many times what the task runs for at a time: measured 3 to 10 times, itself included.
pub const MIGRATION_COST_PER_POLL: u64 = 4;

/// No private cache takes longer to fill.
pub const MIGRATION_COST_MAX: Nanos = Nanos(400_000);

/// Tasks that run longer at a time have data worth a turn of the queue.
pub const LIFO_ORDER_MIN_POLL: Nanos = Nanos(4_000);

/// So often in a row two that talk take turns while the others wait, where tasks run long enough to have data.
pub const LIFO_POLLS_MAX: u32 = 16;

/// For so long they do, if their polls are as long as others there.
pub const LIFO_TIME_MAX: Nanos = Nanos(1_000_000);

/// Who waits uses no CPU: a wake behind others costs one in so many of the nanoseconds that it waits.
pub const WAIT_SHARE: u64 = 4;

/// Home placement and late pulling.
#[derive(Debug, Clone, Copy, Default)]
pub struct Home;

impl Policy for Home {
    #[inline]
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        match (wake.wakee.prev_cpu, wake.waker) {
            (Some(prev_cpu), WakeSource::Cpu(waker)) if prev_cpu == waker => {
                WakeDecision::on(prev_cpu, false)
            }
            (Some(prev_cpu), _) => wake_remote(machine, view, wake, prev_cpu),
            (None, WakeSource::Cpu(waker)) if may(machine, wake.wakee.allowed, waker) => {
                WakeDecision::on(waker, false)
            }
            (None, waker) => place_task(machine, view, wake, origin(machine, view, waker)),
        }
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        let mut search = Search { machine, view, me, now, scanned: 0, earliest: None };
        for shard in machine.shards_from(me) {
            if let Some(pull) = search.shard(shard) {
                return pull;
            }
            if search.scanned >= STEAL_SCAN_MAX {
                let rotation = (now.0 / WAKEUP_COST.0).wrapping_add(me.index() as u64) as usize;
                let far = [rotation % machine.shards(), rotation.wrapping_mul(7) % machine.shards()];
                if let Some(pull) = far.into_iter().find_map(|shard| search.shard(shard)) {
                    return pull;
                }
                break;
            }
        }
        search.earliest.map_or(StealDecision::Nothing, StealDecision::Until)
    }

    /// Who waits last waits for all before it: that is to be longer than anybody lets them wait, and the move.
    fn notify_threshold(&self, average_poll: Nanos) -> u32 {
        let price = later(MIN_STEAL_DELAY, self.migration_cost(average_poll)).0;
        u32::try_from(price.div_ceil(average_poll.0.max(1))).unwrap_or(u32::MAX).max(2)
    }

    /// Many wait there, or some have for long.
    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        let (waiting, migration_cost) = (view.backlog(at), view.migration_cost_at(at));
        let min_delay = later(migration_cost, migration_cost).max(MIN_STEAL_DELAY);
        let is_old = waiting > 0 && later(view.backlog_since(at), min_delay) <= now;
        if !is_old && !is_overloaded(waiting, migration_cost) && !view.is_stuck(at) {
            return None;
        }
        find_idle(machine, view, at, now, &Wakee::default()).map(|found| found.cpu)
    }

    /// Twice as many wait there as here, and two more: light ones come until both have as many, of heavy ones one.
    fn balance(&self, machine: &SchedDomains, view: &impl View, me: CpuId, other: CpuId) -> u32 {
        let (here, there) = (view.backlog(me), view.backlog(other));
        if there < here.saturating_mul(2).saturating_add(2) || !view.can_steal(me, other) {
            return 0;
        }
        let migration_cost = migration_cost_over(view.migration_cost_at(other), machine.distance(me, other));
        if migration_cost < WAKEUP_COST { (there - here) / 2 } else { 1 }
    }

    fn shares(&self) -> bool {
        true
    }

    /// Light ones find their data in the cache all the same, and more of what is sent at once.
    fn max_lifo_polls(&self, average_poll: Nanos) -> u32 {
        let in_time = LIFO_TIME_MAX.0 / average_poll.0.max(1);
        if average_poll >= LIFO_ORDER_MIN_POLL { LIFO_POLLS_MAX.min(in_time as u32) } else { 0 }
    }

    fn queue_order(&self, average_poll: Nanos) -> QueueOrder {
        if average_poll >= LIFO_ORDER_MIN_POLL { QueueOrder::Lifo } else { QueueOrder::Fifo }
    }

    fn migration_cost(&self, average_poll: Nanos) -> Nanos {
        Nanos(average_poll.0.saturating_mul(MIGRATION_COST_PER_POLL).min(MIGRATION_COST_MAX.0))
    }
}

/// What a CPU that has nothing to do has seen until now.
struct Search<'a, V> {
    machine: &'a SchedDomains,
    view: &'a V,
    me: CpuId,
    now: Nanos,
    /// CPUs where somebody waits who may not be taken yet.
    scanned: u32,
    earliest: Option<Nanos>,
}

impl<V: View> Search<'_, V> {
    /// Whether something is to be taken from a shard, or from one of its CPUs.
    fn shard(&mut self, shard: usize) -> Option<StealDecision> {
        let (machine, view, me, now) = (self.machine, self.view, self.me, self.now);
        // What belongs to nobody is taken at once, one's own first.
        if view.shared_queue_len(shard) > 0 {
            return Some(StealDecision::Shard(shard));
        }
        if !view.has_backlog_in(shard) {
            return None;
        }
        for cpu in machine.cpus_from(me, shard) {
            let waiting = view.backlog(cpu);
            if waiting == 0 || !view.can_steal(me, cpu) {
                continue;
            }
            let is_helpless = view.is_stuck(cpu) || view.is_offline(cpu);
            let migration_cost_at = view.migration_cost_at(cpu);
            let migration_cost = migration_cost_over(migration_cost_at, machine.distance(me, cpu));
            // Many light ones are taken at once. Who was kicked is on the way: to come first would waste it.
            let at_once =
                migration_cost < WAKEUP_COST && is_overloaded(waiting, migration_cost) && !view.is_idle(cpu);
            // And one migration cost for who has just moved there.
            let min_delay = later(migration_cost, migration_cost_at).max(MIN_STEAL_DELAY);
            let wait = if at_once { Nanos(0) } else { min_delay };
            let at = if is_helpless { now } else { later(view.backlog_since(cpu), wait) };
            if at <= now {
                let is_light = migration_cost < WAKEUP_COST || is_helpless;
                return Some(StealDecision::From {
                    cpu,
                    at_most: if is_light { waiting.div_ceil(2) } else { 1 },
                });
            }
            self.scanned += 1;
            self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        }
        None
    }
}

/// So many wait, each of whom costs `migration_cost` to move, that the last one waits longer than [`MIN_STEAL_DELAY`] and a move.
/// Of those that never ran nobody knows; they carry nothing, and two count as overload.
fn is_overloaded(waiting: u32, migration_cost: Nanos) -> bool {
    if migration_cost.0 == 0 {
        return waiting > 1;
    }
    migration_cost.0.saturating_mul(waiting.into()) / MIGRATION_COST_PER_POLL
        >= later(MIN_STEAL_DELAY, migration_cost).0
}

/// A move over a distance costs so many times a move within an LLC.
pub(crate) fn distance_factor(distance: Distance) -> u64 {
    match distance {
        Distance::Same | Distance::Smt | Distance::Llc => 1,
        Distance::Node => 2,
        Distance::Socket => 3,
        Distance::Other => 4,
    }
}

fn migration_cost_over(migration_cost: Nanos, distance: Distance) -> Nanos {
    Nanos(migration_cost.0.saturating_mul(distance_factor(distance)))
}

fn later(at: Nanos, by: Nanos) -> Nanos {
    Nanos(at.0.saturating_add(by.0))
}

/// The wakee has a home, and no task there woke it.
fn wake_remote(machine: &SchedDomains, view: &impl View, wake: &Wake, prev_cpu: CpuId) -> WakeDecision {
    let Wakee { migration_cost, accrued_cost, allowed, .. } = wake.wakee;
    if !takes(machine, view, allowed, prev_cpu) {
        return place_task(machine, view, wake, prev_cpu);
    }
    let is_idle = view.is_idle(prev_cpu);
    let mut stay = WakeDecision { accrued_cost, ..WakeDecision::on(prev_cpu, is_idle) };
    if let WakeSource::Cpu(near) | WakeSource::Outside(Some(near)) = wake.waker {
        // An outside waker's CPU serves if nobody is at work there; a worker's own, if no more wait than at home.
        let is_free = || match wake.waker {
            WakeSource::Cpu(_) => view.backlog(near) <= view.backlog(prev_cpu),
            WakeSource::Outside(_) => view.is_idle(near),
        };
        if near == prev_cpu {
            stay.accrued_cost = Nanos(0);
        } else if takes(machine, view, allowed, near) && is_free() {
            stay.accrued_cost = later(
                accrued_cost,
                if is_idle { WAKEUP_COST } else { queueing_cost(view, &wake.wakee, prev_cpu, near) },
            );
            if stay.accrued_cost >= migration_cost_over(migration_cost, machine.distance(prev_cpu, near)) {
                return WakeDecision::on(near, view.is_idle(near));
            }
        }
    }
    if view.is_stuck(prev_cpu) && allowed != Allowed::Cpu(prev_cpu) {
        return place_task(machine, view, wake, prev_cpu);
    }
    if !is_idle
        && allowed == Allowed::Anywhere
        && is_light_among(migration_cost, view.migration_cost_at(prev_cpu))
    {
        return place_task(machine, view, wake, prev_cpu);
    }
    stay
}

/// What it costs to go behind those who wait at home. Who was woken from the same CPU the last time talks to somebody
/// there: for that one also a part of what it waits longer than beside its waker, where a heavy task is the next.
fn queueing_cost(view: &impl View, wakee: &Wakee, prev_cpu: CpuId, near: CpuId) -> Nanos {
    if wakee.woken_from != Some(near) {
        return HANDOVER_COST;
    }
    let poll = |cpu| view.migration_cost_at(cpu).0 / MIGRATION_COST_PER_POLL;
    let wait = |cpu| poll(cpu).saturating_mul(view.backlog(cpu).into());
    let is_next = poll(near) >= LIFO_ORDER_MIN_POLL.0;
    let longer = wait(prev_cpu).saturating_sub(if is_next { 0 } else { wait(near) });
    later(HANDOVER_COST, Nanos(longer / WAIT_SHARE))
}

/// A light task behind heavy ones: whoever comes back from its poll first is to take it, as what it would wait
/// for is more than what it carries.
fn is_light_among(migration_cost: Nanos, others: Nanos) -> bool {
    others >= WAKEUP_COST && migration_cost.0.saturating_mul(8) <= others.0
}

/// The wakee is new, or can't go home: an idle CPU near, or the queue that nobody owns.
fn place_task(machine: &SchedDomains, view: &impl View, wake: &Wake, near: CpuId) -> WakeDecision {
    match find_idle(machine, view, near, wake.now, &wake.wakee) {
        Some(Found { cpu, hot_kept, hot_broken }) => {
            let there = WakeDecision { hot_kept, hot_broken, ..WakeDecision::on(cpu, true) };
            // One without data is for whoever comes first; of a burst of them the first kick serves all.
            let is_anybodys = wake.wakee.prev_cpu.is_none() && wake.wakee.allowed == Allowed::Anywhere;
            if is_anybodys {
                WakeDecision { to: TargetQueue::Shard(machine.shard_of(cpu)), ..there }
            } else {
                there
            }
        }
        None => shared(machine, view, near, wake.wakee.allowed, None),
    }
}
