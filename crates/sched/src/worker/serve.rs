//! Serve: how one worker takes what threads outside spawn, while the others sleep.
//!
//! A thread that spawns one light task after another would unpark a worker for each: the worker runs it and parks, for two system
//! calls that take as long as twenty such tasks. So a worker that took light tasks from the injection queue *serves* its shard: for as
//! long as it takes until another worker would be there, threads outside push new light tasks to its inbox, which is one
//! compare-and-swap, and unpark none. Before each poll the worker takes those that came. When it has none it waits awake for as long as
//! a wakeup takes, if the next one usually comes sooner.
//!
//! How long the poll of a new task takes is known by the task's kind (`first_polls.rs`). A task whose poll takes longer than any
//! before, or of another task of this worker, delays the light tasks in its inbox, which idle workers do not see. The delay ends with
//! that poll, or when busy workers or the watchdog find that this one stands still. That the worker serves is a hint: a push to the
//! inbox of one that has parked unparks it.

use super::*;
use crate::estimate::WEIGHT;
use crate::policy::WAKEUP_COST;
use crate::{StealDecision, View};

impl<H: Host> Core<H> {
    /// Whether this worker may serve its shard alone while polls of new tasks take up to `longest`.
    pub(super) fn may_serve(&self, host: &H, longest: Nanos) -> bool {
        let (workers, waiting) = (host.workers(), self.num_queued() + self.inject_queue.len());
        let usual = Nanos(self.remote.status.mean_poll_ns.load(Relaxed).into());
        let wakeup_cost = workers.wakeup_cost(self.me);
        !workers.limits_searching() && workers.policy().serves_alone(longest.max(usual), waiting, wakeup_cost)
    }

    /// How long first polls take of tasks of which they take up to `longest`, and of this one. `None`: not known of one of them.
    #[inline]
    pub(super) fn longest_first_poll(
        &self,
        host: &H,
        longest: Option<Nanos>,
        task: &H::Task,
    ) -> Option<Nanos> {
        Some(longest?.max(host.workers().first_poll(task)?))
    }

    /// Decides whether this worker serves its shard from now on, as it has taken new tasks whose first polls take up to `longest`,
    /// if that is known.
    pub(super) fn decide_service(&self, host: &H, longest: Option<Nanos>) {
        self.took_light.set(longest.is_some_and(|longest| self.may_serve(host, longest)));
        match self.took_light.get() {
            true if self.inject_queue.idle() != 0 => self.extend_service(host),
            true => {}
            false => self.end_service(),
        }
    }

    /// Threads outside give new light tasks to this worker for as long as a wakeup takes from now on.
    pub(super) fn extend_service(&self, host: &H) {
        let until = host.now(self.me).0 + host.workers().wakeup_cost(self.me).0;
        self.inject_queue.serve(self.bit.trailing_zeros(), Nanos(until));
    }

    /// Threads outside give new tasks to this worker no more.
    pub(super) fn end_service(&self) {
        self.inject_queue.end_service(self.bit.trailing_zeros());
    }

    /// Called when the worker has run out of tasks. Waits for the next one awake, if it serves its shard, the next task
    /// comes sooner than a worker wakes in half of all cases at least, and none is to be stolen. Returns whether one came.
    pub(super) fn waits_for_task(&self, host: &H, now: Nanos) -> bool {
        if !self.was_idle.get() {
            self.idle_since.set(now);
        }
        let may = self.took_light.get() && self.soon.get() >= 128 && self.may_serve(host, Nanos(0));
        if !may || self.could_steal(host, now) {
            return false;
        }
        self.extend_service(host);
        let has_tasks = || !self.inject_queue.is_empty() || self.remote.inbox.has_tasks();
        host.wait_awake(Nanos(self.longest_wait(host)), &has_tasks);
        let after = self.read_clock(host);
        // The time counts for no poll, but sockets and timers wait.
        self.waited.set(self.waited.get() + after.0.saturating_sub(now.0));
        self.restart_long_poll_check(after);
        if after.0 >= self.interval_start.get().0 + self.event_interval_ns() {
            self.shorten_interval(0);
        }
        let came = has_tasks();
        if came {
            self.learn_if_soon(host, after);
        }
        came
    }

    /// As long as a wakeup takes, up to [`WAKEUP_COST`]: a longer wakeup waits for a CPU, which this worker would keep busy.
    fn longest_wait(&self, host: &H) -> u64 {
        host.workers().wakeup_cost(self.me).min(WAKEUP_COST).0
    }

    fn could_steal(&self, host: &H, now: Nanos) -> bool {
        let workers = host.workers();
        self.aim_search(host, now);
        let decision = workers.policy().steal(workers.machine(), workers, self.me, now);
        matches!(decision, StealDecision::Shard(_) | StealDecision::From { .. })
    }

    /// Records how the time without a task ended: another thread handed the worker a task at `handed_at`, or, if that is 0, the worker's
    /// driver woke one.
    pub(super) fn learn_if_soon(&self, host: &H, handed_at: Nanos) {
        let is_soon = handed_at.0 > 0 && handed_at.0 <= self.idle_since.get().0 + self.longest_wait(host);
        let old = self.soon.get();
        self.soon.set(old - old / WEIGHT + if is_soon { 256 / WEIGHT } else { 0 });
    }
}
