//! Check: when a worker becomes the watcher, and what the watcher finds.

use super::*;
use crate::shared::Shared;
use crate::sync::fence;
use warmcore_sched::{Inbox, View};
use warmcore_types::ignore_poison;

/// Whether the worker's driver has tasks of `tokio::spawn`.
fn has_tasks(shared: &Shared, worker: CpuId) -> bool {
    shared.remote(worker).driver.foreign_tasks() > 0
}

impl Watchdog {
    /// Called by worker `me`, which is about to park. Returns when it must wake to check, if it is the watcher or
    /// becomes the watcher because there is none, or because that one's driver may run tasks of `tokio::spawn` for long. If all
    /// workers are parked, and the last checks found that none had run, none needs to be watched, and this returns `None`.
    pub(crate) fn begin(&self, shared: &Shared, me: CpuId, now: Nanos) -> Option<Nanos> {
        // `count_idle` includes workers that were unparked and have not left their drivers yet, so the inboxes are read
        // too.
        let workers = &shared.workers;
        let is_idle = || {
            workers.count_idle() >= shared.remotes.len()
                && self.more_checks.load(Relaxed) == 0
                && workers.remotes().all(|remote| remote.inbox.is_parked())
        };
        if is_idle() {
            if !self.end(me) {
                return None;
            }
            // ORDERING: SeqCst; `watcher` was written before, and what needs a watcher is read again. A worker that has just appointed
            // this one in `assign` did both the other way round.
            fence(SeqCst);
            if is_idle() {
                return None;
            }
        }
        let mut watcher = self.watcher.load(Relaxed);
        while watcher == NO_WORKER
            || (watcher != me.0 && has_tasks(shared, CpuId(watcher)) && !has_tasks(shared, me))
        {
            match self.watcher.compare_exchange(watcher, me.0, Relaxed, Relaxed) {
                Ok(_) => return Some(self.next_check(now)),
                Err(another) => watcher = another,
            }
        }
        // A watcher that wakes before its check is due, and parks again, does not postpone the check.
        (watcher == me.0).then(|| Nanos(self.at.load(Relaxed)))
    }

    /// Called on worker `me` when its driver returns from a wait, before it runs what became ready: if it has tasks of
    /// `tokio::spawn`, another worker is to watch it.
    #[inline]
    pub(crate) fn driver_runs(&self, shared: &Shared, me: CpuId) {
        let watcher = self.watcher.load(Relaxed);
        if watcher == NO_WORKER || watcher == me.0 {
            self.watch_driver(shared, me);
        }
    }

    /// Called before worker `me` parks after a poll, which may have spawned tasks on its driver: if the driver has any, another
    /// worker is to watch it, and one that watches already goes on. Tasks that never wait may run from then on.
    #[cold]
    pub(crate) fn watch_driver(&self, shared: &Shared, me: CpuId) {
        if self.has_warned.load(Relaxed) || shared.remotes.len() == 1 || !has_tasks(shared, me) {
            return;
        }
        let now = shared.remote(me).driver.now();
        // A watcher's driver returns from a wait for each check, which follows now.
        if !self.is_due(me, now) {
            // ORDERING: Relaxed; `assign` has the fence between this and the read of `watcher`.
            let is_low = self.more_checks.load(Relaxed) < QUIET_CHECKS;
            is_low.then(|| self.more_checks.store(QUIET_CHECKS, Relaxed));
            self.assign(shared, me, now);
        }
    }

    /// Called when worker `me` is no longer idle: if it was the watcher, or there is none, appoints a parked worker.
    /// That worker is woken now only if it sleeps beside a driver that workers share, and for longer than that.
    pub(crate) fn assign(&self, shared: &Shared, me: CpuId, now: Nanos) {
        // ORDERING: SeqCst; the fence is between the write that marks `me` as awake, or of `more_checks`, and the reads of `watcher`
        // and of which workers are parked. A worker that parks does both the other way round, in `Core::mark_parked` and `begin`.
        // Model: `watchdog/loom.rs`. The fence below is between the write of `watcher` and the read of whether that worker is parked.
        // So a worker that wakes while it is appointed sees the appointment, or the thread that appoints it sees that it is awake.
        fence(SeqCst);
        self.end(me);
        if self.watcher.load(Relaxed) != NO_WORKER || shared.workers.count_idle() == 0 {
            return;
        }
        // A worker comes to no check while its driver runs such tasks: rather one without.
        let others = || shared.workers.machine().others(me).filter(|cpu| shared.workers.is_idle(*cpu));
        let is_running = |cpu: &CpuId| shared.remote(*cpu).driver.run_seq() % 2 == 1;
        let without = others().filter(|cpu| !has_tasks(shared, *cpu));
        let with = others().filter(|cpu| has_tasks(shared, *cpu) && !is_running(cpu));
        for other in without.chain(with) {
            if self.watcher.compare_exchange(NO_WORKER, other.0, Relaxed, Relaxed).is_err() {
                return;
            }
            shared.remote(other).driver.wake_at(self.next_check(now));
            fence(SeqCst);
            if shared.workers.is_idle(other) {
                return;
            }
            self.end(other);
        }
    }

    /// Marks as stuck each other worker that is in the same poll, or the same run inside its driver, as at an earlier
    /// check, if that lasts for about the threshold of long polls. Then serves the drivers of all stuck workers. Returns whether
    /// there are any.
    pub(crate) fn check(&self, shared: &Shared, me: CpuId, now: Nanos) -> bool {
        let mut seen = ignore_poison(self.seen.lock());
        let Seen { polls: seen_polls, points, pointed_at } = &mut *seen;
        let is_counted = now.0 >= pointed_at.0 + LONG_INTERVAL.0;
        if is_counted {
            *pointed_at = now;
            self.more_checks.store(self.more_checks.load(Relaxed).saturating_sub(1), Relaxed);
        }
        let gives_points = is_counted && !self.has_warned.load(Relaxed);
        let mut has_run = false;
        let all = || shared.remotes.iter().zip(shared.workers.remotes());
        for (i, (remote, scheduled)) in all().enumerate() {
            if i == me.index() {
                continue;
            }
            let (polls, driven) = (scheduled.status.poll_seq.load(Relaxed), remote.driver.run_seq());
            if gives_points {
                let runs = driven % 2 == 1 && polls % 2 == 0 && remote.driver.foreign_tasks() > 0;
                points[i] = update_points(points[i], runs);
                runs.then(|| self.more_checks.store(QUIET_CHECKS, Relaxed));
            }
            // An even number may change with what other workers do in a driver that they share.
            let driven = if driven % 2 == 1 { driven } else { 0 };
            let both = polls.wrapping_mul(1 << 32) ^ driven;
            let (before, since) = seen_polls[i];
            has_run |= both != before;
            if both != before || (polls % 2 == 0 && driven % 2 == 0) {
                seen_polls[i] = (both, now);
                continue;
            }
            // `since` may be later than `now`, if another watcher has checked after this one read the clock.
            if now.0.saturating_sub(since.0) >= shared.long_poll.0.max(SHORT_INTERVAL.0 / 2) {
                self.last_long_poll.store(now.0, Relaxed);
                shared.workers.set_stuck(CpuId(i as u32), true);
            }
        }
        if has_run {
            // It is likely to run again soon. To appoint a watcher that sleeps beside a shared driver wakes it each time.
            self.more_checks.fetch_max(1, Relaxed);
        }
        if gives_points && let Some(busy) = points.iter().position(|points| *points >= POINTS) {
            self.warn(shared, busy);
        }
        drop(seen);
        // Serving another worker's driver runs the tasks that were spawned there, so this worker is no watcher
        // meanwhile.
        self.end(me);
        let mut found = false;
        for (i, remote) in shared.remotes.iter().enumerate() {
            let stuck = CpuId(i as u32);
            if shared.workers.is_stuck(stuck) {
                remote.driver.poll_events();
                shared.workers.point_to(stuck, me);
                found = true;
            }
        }
        found
    }

    #[cold]
    fn warn(&self, shared: &Shared, busy: usize) {
        self.has_warned.store(true, Relaxed);
        self.more_checks.store(0, Relaxed);
        tracing::warn!(
            runtime = %shared.name,
            worker = busy,
            tasks = shared.remotes[busy].driver.foreign_tasks(),
            "tasks of tokio::spawn keep one worker busy while another idles: they stay on the worker that spawned \
             them, and so do those of JoinSet and the connections of axum::serve; warmcore::runtime::spawn and http::serve \
             use all workers"
        );
    }
}
