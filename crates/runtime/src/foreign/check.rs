//! Check: when a worker becomes the watcher of drivers, and what the watcher does.

use super::*;
use crate::shared::Shared;
use crate::sync::fence;
use warmcore_sched::View;

impl Foreign {
    /// Called on worker `me` when its driver returns from a wait, before it runs what became ready; `n` is the driver's
    /// `run_seq`. Also called, with `n` = 0, before the worker parks after a poll.
    #[inline]
    pub(crate) fn begin(&self, shared: &Shared, me: CpuId, n: u64) {
        match self.watcher.load(Relaxed) {
            REPORTED => {}
            watcher @ (NO_WORKER | WANTED) => self.assign(shared, me, watcher),
            // This includes the watcher itself: if it never parks again it never checks, and another worker must become
            // the watcher.
            watcher if n % VERIFY_EVERY < 2 => self.assign(shared, me, watcher),
            _ => {}
        }
    }

    #[cold]
    fn assign(&self, shared: &Shared, me: CpuId, mut watcher: u32) {
        let driver = &shared.remote(me).driver;
        let is_set = ![NO_WORKER, WANTED].contains(&watcher);
        // The time is checked first. The watcher itself returns from a wait for each check, and so does not count its
        // driver's tasks each time.
        if is_set && driver.now().0 < self.at.load(Relaxed) + OVERDUE.0 {
            return;
        }
        if driver.foreign_tasks() == 0 || shared.remotes.len() == 1 {
            return;
        }
        let now = driver.now();
        // A driver without such tasks is on its way into a wait or out of it, or serves sockets: not for long.
        let is_idle = |cpu: &CpuId| {
            let driver = &shared.remote(*cpu).driver;
            shared.workers.is_idle(*cpu)
                && (driver.run_seq().is_multiple_of(2) || driver.foreign_tasks() == 0)
        };
        let idle = || shared.workers.machine().others(me).find(is_idle);
        let mut found = idle();
        if found.is_none() {
            if self.watcher.compare_exchange(NO_WORKER, WANTED, Relaxed, Relaxed).is_ok() {
                watcher = WANTED;
            }
            // ORDERING: SeqCst; that a watcher is wanted was written before, which workers are parked is read after.
            // A worker that parks does both the other way round, in `Core::mark_parked` and `due`. One of the two sees the
            // other. Model: `foreign/loom.rs`.
            fence(SeqCst);
            found = idle();
        }
        let Some(other) = found else { return };
        if self.watcher.compare_exchange(watcher, other.0, Relaxed, Relaxed).is_ok() {
            let at = Nanos(now.0 + CHECK_INTERVAL.0);
            self.at.store(at.0, Relaxed);
            // If that worker wakes before, its next park ends at that time at the latest, and it checks then.
            shared.remote(other).driver.wake_at(at);
        }
    }

    /// When worker `me`, which is about to park, must wake to check: if it is the watcher, or becomes the watcher
    /// because one is wanted.
    pub(crate) fn due(&self, shared: &Shared, me: CpuId, now: Nanos) -> Option<Nanos> {
        // A worker whose driver has such tasks may be the one that wants a watcher, and may never return from its driver.
        if self.watcher.load(Relaxed) == WANTED
            && shared.remote(me).driver.foreign_tasks() == 0
            && self.watcher.compare_exchange(WANTED, me.0, Relaxed, Relaxed).is_ok()
        {
            self.at.store(now.0 + CHECK_INTERVAL.0, Relaxed);
        }
        self.check_at(me)
    }

    /// Called by a worker that was parked until now: checks the other workers' drivers, if this worker is the watcher
    /// and the check is due.
    pub(crate) fn check(&self, shared: &Shared, me: CpuId, now: Nanos) {
        if self.check_at(me).is_none_or(|at| now < at) {
            return;
        }
        let mut seen = ignore_poison(self.seen.lock());
        let Seen { points, quiet } = &mut *seen;
        *quiet += 1;
        let all = shared.remotes.iter().zip(shared.workers.remotes()).enumerate();
        for (i, (remote, scheduled)) in all.filter(|(i, _)| *i != me.index()) {
            let runs = remote.driver.run_seq() % 2 == 1
                && scheduled.status.poll_seq.load(Relaxed) % 2 == 0
                && remote.driver.foreign_tasks() > 0;
            points[i] = update_points(points[i], runs);
            if runs {
                *quiet = 0;
            }
        }
        let busiest = points.iter().position(|points| *points >= POINTS);
        let next = match (busiest, *quiet) {
            (Some(_), _) => REPORTED,
            (None, ..QUIET_CHECKS) => me.0,
            (None, _) => NO_WORKER,
        };
        *quiet %= QUIET_CHECKS;
        drop(seen);
        self.at.store(now.0 + CHECK_INTERVAL.0, Relaxed);
        // Another worker may have become the watcher in the meantime.
        let is_mine = self.watcher.compare_exchange(me.0, next, Relaxed, Relaxed).is_ok();
        if let Some(i) = busiest.filter(|_| is_mine) {
            let tasks = shared.remotes[i].driver.foreign_tasks();
            tracing::warn!(
                runtime = %shared.name,
                worker = i,
                tasks,
                "tasks of tokio::spawn keep one worker busy while another idles: they stay on the worker that spawned \
                 them, and so do those of JoinSet and the connections of axum::serve; warmcore::runtime::spawn and http::serve \
                 use all workers"
            );
        }
    }
}
