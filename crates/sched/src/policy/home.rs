//! Home: a task wakes where its data is, unless that costs more than to carry them.
//!
//! Model.   To wake a task at home costs a kick if its home sleeps, a little if it runs; to run it elsewhere
//!          costs its refill once. So the wakes at home run up a debt, and when that has reached the refill the
//!          task moves to its waker: until it moves, and by moving, it has paid less than twice the better of
//!          staying and having moved at once. Who is woken from one CPU again and again pays a part of what it waits
//!          behind others at home, too; a delay is no work, so it's a part. A task that talks to another ends up
//!          beside it, after one wake if it is small and after many if it carries a lot. It does not move to a CPU
//!          where more wait than at home, and while it could not move the debt stands still. Who forgets which CPU
//!          each wake came from can be led about by wakers that know the rule, each move at twice its refill; wakers
//!          that come by chance can't (`tests/ski_rental.rs`).
//!          An idle CPU lets what waits elsewhere wait for as long as a move costs, counted from when somebody
//!          began to wait there: by then the idling has cost as much as the move will. And for one refill more:
//!          a task that has just moved there keeps its new CPU for so long, and if those behind it moved on
//!          for that, each move would bring about the next (`tests/conserve.rs`). A CPU in a
//!          long poll, or one that stops, is helped at once. Who looks at many that are not due yet leaves it at the
//!          nearest, and looks again when the first of these is due.
//! Number.  A task of 16 µs a poll: refill 64 µs; it moves to a waker that finds its home asleep 4 times
//!          in a row. If it waits behind others, a CPU of its LLC takes it after 200 µs, one of another socket
//!          after 320.
//! Source.  Ours; hot windows and the scan from SIS_CACHE and SIS_UTIL.

use super::Policy;
use super::near::{Found, find_idle, may, origin, shared, takes};
use crate::{Allowed, Distance, Machine, Placed, Pull, To, Turn, View, Wake, Wakee, Waker};
use warmcore_types::{CpuId, Nanos};

/// What it costs to wake a CPU that sleeps: a system call, an interrupt, the way out of idle.
pub const KICK: Nanos = Nanos(20_000);

/// Who has nothing to do lets those who wait elsewhere wait so long at least, and is not called before. A CPU that
/// is woken for a few light ones costs more than they do, again and again where their sockets stay behind: HTTP
/// over 64 connections took a fifth more CPU at a quarter of this.
pub const PATIENCE: Nanos = Nanos(200_000);

/// Who has nothing to do weighs about so many CPUs where somebody waits who is not due yet, the nearest ones, and two
/// shards anywhere, others each time, so that nobody is overlooked for good. Of each it reads three lines that others
/// write, 100 to 200 ns each: many more would cost as much as the kick that a look is to spare, and one of those seen
/// is due before long.
pub const WEIGHED_MAX: u32 = 32;

/// What it costs to hand a task to a CPU that runs: a few lines go over.
pub const HAND_OVER: Nanos = Nanos(500);

/// A move costs so many times what the task runs for at a time: measured 3 to 10 times, itself included.
pub const REFILL_PER_POLL: u64 = 4;

/// No private cache takes longer to fill.
pub const REFILL_MAX: Nanos = Nanos(400_000);

/// Tasks that run longer at a time have data worth a turn of the queue.
pub const TURN_POLL_MIN: Nanos = Nanos(4_000);

/// So often in a row two that talk take turns while the others wait, where tasks run long enough to have data.
pub const CHAIN_POLLS_MAX: u32 = 16;

/// For so long they do, if their polls are as long as others there.
pub const CHAIN_TIME_MAX: Nanos = Nanos(1_000_000);

/// Who waits uses no CPU: a wake behind others costs one in so many of the nanoseconds that it waits.
pub const WAIT_SHARE: u64 = 4;

/// Home placement and late pulling.
#[derive(Debug, Clone, Copy, Default)]
pub struct Home;

impl Policy for Home {
    #[inline]
    fn wake(&self, machine: &Machine, view: &impl View, wake: &Wake) -> Placed {
        match (wake.wakee.home, wake.waker) {
            (Some(home), Waker::Cpu(waker)) if home == waker => Placed::on(home, false),
            (Some(home), _) => wake_away(machine, view, wake, home),
            (None, Waker::Cpu(waker)) if may(machine, wake.wakee.allowed, waker) => Placed::on(waker, false),
            (None, waker) => place(machine, view, wake, origin(machine, view, waker)),
        }
    }

    fn pull(&self, machine: &Machine, view: &impl View, me: CpuId, now: Nanos) -> Pull {
        let mut search = Search { machine, view, me, now, weighed: 0, earliest: None };
        for shard in machine.shards_from(me) {
            if let Some(pull) = search.shard(shard) {
                return pull;
            }
            if search.weighed >= WEIGHED_MAX {
                let turn = (now.0 / KICK.0).wrapping_add(me.index() as u64) as usize;
                let far = [turn % machine.shards(), turn.wrapping_mul(7) % machine.shards()];
                if let Some(pull) = far.into_iter().find_map(|shard| search.shard(shard)) {
                    return pull;
                }
                break;
            }
        }
        search.earliest.map_or(Pull::Nothing, Pull::Until)
    }

    /// Who waits last waits for all before it: that is to be longer than anybody lets them wait, and the move.
    fn crowded(&self, average_poll: Nanos) -> u32 {
        let price = later(PATIENCE, self.refill(average_poll)).0;
        u32::try_from(price.div_ceil(average_poll.0.max(1))).unwrap_or(u32::MAX).max(2)
    }

    /// Many wait there, or some have for long.
    fn help(&self, machine: &Machine, view: &impl View, at: CpuId, now: Nanos) -> Option<CpuId> {
        let (waiting, refill) = (view.backlog(at), view.refill_there(at));
        let patience = later(refill, refill).max(PATIENCE);
        let is_old = waiting > 0 && later(view.backlog_since(at), patience) <= now;
        if !is_old && !is_crowd(waiting, refill) && !view.is_stuck(at) {
            return None;
        }
        find_idle(machine, view, at, now, &Wakee::default()).map(|found| found.cpu)
    }

    /// Twice as many wait there as here, and two more: light ones come until both have as many, of heavy ones one.
    fn balance(&self, machine: &Machine, view: &impl View, me: CpuId, other: CpuId) -> u32 {
        let (here, there) = (view.backlog(me), view.backlog(other));
        if there < here.saturating_mul(2).saturating_add(2) || !view.may_take(me, other) {
            return 0;
        }
        let refill = refill_over(view.refill_there(other), machine.distance(me, other));
        if refill < KICK { (there - here) / 2 } else { 1 }
    }

    fn shares(&self) -> bool {
        true
    }

    /// Light ones find their data in the cache all the same, and more of what is sent at once.
    fn chain_max(&self, average_poll: Nanos) -> u32 {
        let in_time = CHAIN_TIME_MAX.0 / average_poll.0.max(1);
        if average_poll >= TURN_POLL_MIN { CHAIN_POLLS_MAX.min(in_time as u32) } else { 0 }
    }

    fn turn(&self, average_poll: Nanos) -> Turn {
        if average_poll >= TURN_POLL_MIN { Turn::Back } else { Turn::Forth }
    }

    fn refill(&self, average_poll: Nanos) -> Nanos {
        Nanos(average_poll.0.saturating_mul(REFILL_PER_POLL).min(REFILL_MAX.0))
    }
}

/// What a CPU that has nothing to do has seen until now.
struct Search<'a, V> {
    machine: &'a Machine,
    view: &'a V,
    me: CpuId,
    now: Nanos,
    /// CPUs where somebody waits who may not be taken yet.
    weighed: u32,
    earliest: Option<Nanos>,
}

impl<V: View> Search<'_, V> {
    /// Whether something is to be taken from a shard, or from one of its CPUs.
    fn shard(&mut self, shard: usize) -> Option<Pull> {
        let (machine, view, me, now) = (self.machine, self.view, self.me, self.now);
        // What belongs to nobody is taken at once, one's own first.
        if view.waiting_in(shard) > 0 {
            return Some(Pull::Shard(shard));
        }
        if !view.has_backlog_in(shard) {
            return None;
        }
        for cpu in machine.cpus_from(me, shard) {
            let waiting = view.backlog(cpu);
            if waiting == 0 || !view.may_take(me, cpu) {
                continue;
            }
            let is_helpless = view.is_stuck(cpu) || view.is_offline(cpu);
            let refill_there = view.refill_there(cpu);
            let refill = refill_over(refill_there, machine.distance(me, cpu));
            // Many light ones are taken at once. Who was kicked is on the way: to come first would waste it.
            let at_once = refill < KICK && is_crowd(waiting, refill) && !view.is_idle(cpu);
            // And one refill for who has just moved there.
            let patience = later(refill, refill_there).max(PATIENCE);
            let wait = if at_once { Nanos(0) } else { patience };
            let at = if is_helpless { now } else { later(view.backlog_since(cpu), wait) };
            if at <= now {
                let is_light = refill < KICK || is_helpless;
                return Some(Pull::From { cpu, at_most: if is_light { waiting.div_ceil(2) } else { 1 } });
            }
            self.weighed += 1;
            self.earliest = Some(self.earliest.map_or(at, |earliest| earliest.min(at)));
        }
        None
    }
}

/// So many wait, each of whom costs `refill` to move, that the last one waits longer than [`PATIENCE`] and a move.
/// Of those that never ran nobody knows; they carry nothing, and two are a crowd.
fn is_crowd(waiting: u32, refill: Nanos) -> bool {
    if refill.0 == 0 {
        return waiting > 1;
    }
    refill.0.saturating_mul(waiting.into()) / REFILL_PER_POLL >= later(PATIENCE, refill).0
}

/// A move over a distance costs so many times a move within an LLC.
pub(crate) fn farness(distance: Distance) -> u64 {
    match distance {
        Distance::Same | Distance::Core | Distance::Llc => 1,
        Distance::Node => 2,
        Distance::Socket => 3,
        Distance::Machine => 4,
    }
}

fn refill_over(refill: Nanos, distance: Distance) -> Nanos {
    Nanos(refill.0.saturating_mul(farness(distance)))
}

fn later(at: Nanos, by: Nanos) -> Nanos {
    Nanos(at.0.saturating_add(by.0))
}

/// The wakee has a home, and no task there woke it.
fn wake_away(machine: &Machine, view: &impl View, wake: &Wake, home: CpuId) -> Placed {
    let Wakee { refill, debt, allowed, .. } = wake.wakee;
    if !takes(machine, view, allowed, home) {
        return place(machine, view, wake, home);
    }
    let is_idle = view.is_idle(home);
    let mut stay = Placed { debt, ..Placed::on(home, is_idle) };
    if let Waker::Cpu(near) | Waker::Outside(Some(near)) = wake.waker {
        // An outside waker's CPU serves if nobody is at work there; a worker's own, if no more wait than at home.
        let is_free = || match wake.waker {
            Waker::Cpu(_) => view.backlog(near) <= view.backlog(home),
            Waker::Outside(_) => view.is_idle(near),
        };
        if near == home {
            stay.debt = Nanos(0);
        } else if takes(machine, view, allowed, near) && is_free() {
            stay.debt = later(debt, if is_idle { KICK } else { behind(view, &wake.wakee, home, near) });
            if stay.debt >= refill_over(refill, machine.distance(home, near)) {
                return Placed::on(near, view.is_idle(near));
            }
        }
    }
    if view.is_stuck(home) && allowed != Allowed::Cpu(home) {
        return place(machine, view, wake, home);
    }
    if !is_idle && allowed == Allowed::Anywhere && is_light_among(refill, view.refill_there(home)) {
        return place(machine, view, wake, home);
    }
    stay
}

/// What it costs to go behind those who wait at home. Who was woken from the same CPU the last time talks to somebody
/// there: for that one also a part of what it waits longer than beside its waker, where a heavy task is the next.
fn behind(view: &impl View, wakee: &Wakee, home: CpuId, near: CpuId) -> Nanos {
    if wakee.woken_from != Some(near) {
        return HAND_OVER;
    }
    let poll = |cpu| view.refill_there(cpu).0 / REFILL_PER_POLL;
    let wait = |cpu| poll(cpu).saturating_mul(view.backlog(cpu).into());
    let is_next = poll(near) >= TURN_POLL_MIN.0;
    let longer = wait(home).saturating_sub(if is_next { 0 } else { wait(near) });
    later(HAND_OVER, Nanos(longer / WAIT_SHARE))
}

/// A light task behind heavy ones: whoever comes back from its poll first is to take it, as what it would wait
/// for is more than what it carries.
fn is_light_among(refill: Nanos, others: Nanos) -> bool {
    others >= KICK && refill.0.saturating_mul(8) <= others.0
}

/// The wakee is new, or can't go home: an idle CPU near, or the queue that nobody owns.
fn place(machine: &Machine, view: &impl View, wake: &Wake, near: CpuId) -> Placed {
    match find_idle(machine, view, near, wake.now, &wake.wakee) {
        Some(Found { cpu, hot_kept, hot_broken }) => {
            let there = Placed { hot_kept, hot_broken, ..Placed::on(cpu, true) };
            // One without data is for whoever comes first; of a burst of them the first kick serves all.
            let is_anybodys = wake.wakee.home.is_none() && wake.wakee.allowed == Allowed::Anywhere;
            if is_anybodys { Placed { to: To::Shard(machine.shard_of(cpu)), ..there } } else { there }
        }
        None => shared(machine, view, near, wake.wakee.allowed, None),
    }
}
