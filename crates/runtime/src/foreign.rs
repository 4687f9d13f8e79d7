//! Foreign: says once that tasks of `tokio::spawn` keep one worker busy while another worker idles.
//!
//! `tokio::spawn`, `JoinSet` and `axum::serve` put a task on the driver of the worker that calls them, and it stays
//! there: a program that spawns in no other way uses one worker. No poll of such a task is seen, so drivers are looked
//! at. A driver that begins to run such tasks appoints a worker that sleeps, which looks ten times a second which
//! drivers run, until none does. A worker whose driver runs at more than two looks of three gathers points; with
//! [`POINTS`] of them the runtime says so, and never looks again.
//!
//! # Cost
//! Each time that a driver comes back from a wait, and that a worker falls asleep, a load; while no worker looks, another
//! one, of how many such tasks the driver has. Where they are, a worker that sleeps wakes ten times a second for as long
//! as drivers run them. In polls nothing.

use crate::shared::Shared;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering::*, lock};
use warmcore_types::{CpuId, Nanos};

/// Between two looks.
const EVERY: Nanos = Nanos(100_000_000);

/// A worker that is appointed and has looked at nothing for so long does other things.
const OVERDUE: Nanos = Nanos(1_000_000_000);

/// A second of looks at a driver that always runs.
const POINTS: u8 = 10;

/// Once in so many waits a driver that finds another worker appointed checks whether that one still looks.
const CHECK_EVERY: u64 = 1024;

const NOBODY: u32 = u32::MAX;
/// It was said.
const TOLD: u32 = u32::MAX - 1;
/// No other worker slept when one was wanted: the next that falls asleep looks.
const WANTED: u32 = u32::MAX - 2;

/// See the head of this file.
pub(crate) struct Foreign {
    /// The worker that looks. Written by the workers that appoint, and by the one that looks.
    looker: AtomicU32,
    /// When it looks. Written as `looker`.
    at: AtomicU64,
    /// By worker. Written by the one that looks.
    points: Mutex<Vec<u8>>,
}

impl Foreign {
    pub(crate) fn new(workers: usize) -> Self {
        let points = Mutex::new(vec![0; workers]);
        Self { looker: AtomicU32::new(NOBODY), at: AtomicU64::new(0), points }
    }

    /// A worker's driver comes back from a wait, its `n`th, and runs what it was woken for.
    #[inline]
    pub(crate) fn begin(&self, shared: &Shared, me: CpuId, n: u64) {
        match self.looker.load(Relaxed) {
            TOLD => {}
            looker @ (NOBODY | WANTED) => self.appoint(shared, me, looker),
            // Also the one that looks: if it never sleeps again it never looks, and another is to take its place.
            looker if n % CHECK_EVERY < 2 => self.appoint(shared, me, looker),
            _ => {}
        }
    }

    #[cold]
    fn appoint(&self, shared: &Shared, me: CpuId, looker: u32) {
        let host = &shared.desk(me).host;
        let is_set = ![NOBODY, WANTED].contains(&looker);
        // The time first: one that looks comes back from its waits to look, and asks its driver nothing.
        if is_set && host.now().0 < self.at.load(Relaxed) + OVERDUE.0 {
            return;
        }
        if host.foreign_tasks() == 0 || shared.desks.len() == 1 {
            return;
        }
        let now = host.now();
        let is_idle = |cpu: &CpuId| {
            let desk = shared.desk(*cpu);
            desk.inbox.is_asleep() && desk.host.driven().is_multiple_of(2)
        };
        let Some(other) = shared.machine.others(me).find(is_idle) else {
            let _ = self.looker.compare_exchange(NOBODY, WANTED, Relaxed, Relaxed);
            return;
        };
        if self.looker.compare_exchange(looker, other.0, Relaxed, Relaxed).is_ok() {
            let at = Nanos(now.0 + EVERY.0);
            self.at.store(at.0, Relaxed);
            // One that wakes meanwhile looks when it sleeps again.
            shared.desk(other).host.alarm(at);
        }
    }

    /// A worker falls asleep: when it is to wake to look, if it is the one, or one is wanted.
    pub(crate) fn due(&self, me: CpuId, now: Nanos) -> Option<Nanos> {
        if self.looker.load(Relaxed) == WANTED
            && self.looker.compare_exchange(WANTED, me.0, Relaxed, Relaxed).is_ok()
        {
            self.at.store(now.0 + EVERY.0, Relaxed);
        }
        self.look_at(me)
    }

    /// When this worker is to wake to look, if it is the one.
    fn look_at(&self, me: CpuId) -> Option<Nanos> {
        (self.looker.load(Relaxed) == me.0).then(|| Nanos(self.at.load(Relaxed)))
    }

    /// A worker that slept until now looks at the others, if it is the one, and it is time.
    pub(crate) fn look(&self, shared: &Shared, me: CpuId, now: Nanos) {
        if self.look_at(me).is_none_or(|at| now < at) {
            return;
        }
        let mut points = lock(&self.points);
        for (i, desk) in shared.desks.iter().enumerate().filter(|(i, _)| *i != me.index()) {
            let runs = desk.host.driven() % 2 == 1 && desk.says.polls.load(Relaxed) % 2 == 0;
            points[i] = weigh(points[i], runs && desk.host.foreign_tasks() > 0);
        }
        let most = (0..points.len()).max_by_key(|i| points[*i]).filter(|i| points[*i] > 0);
        let crowded = most.filter(|i| points[*i] >= POINTS);
        drop(points);
        let next = match (crowded, most) {
            (Some(_), _) => TOLD,
            (None, Some(_)) => me.0,
            (None, None) => NOBODY,
        };
        self.at.store(now.0 + EVERY.0, Relaxed);
        // Another one may have been appointed in its place.
        let is_mine = self.looker.compare_exchange(me.0, next, Relaxed, Relaxed).is_ok();
        if let Some(i) = crowded.filter(|_| is_mine) {
            let tasks = shared.desks[i].host.foreign_tasks();
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

/// The points of a worker after one more look.
fn weigh(points: u8, runs: bool) -> u8 {
    if runs { (points + 1).min(POINTS) } else { points.saturating_sub(2) }
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests {
    use super::*;
    use crate::host::mock::workers;

    /// It sleeps, and wakes ten times a second: its driver's waits end, and each end would ask for what is counted.
    #[test]
    fn the_worker_that_looks_asks_nothing_of_its_own_driver() {
        let (mocks, shared) = workers(2, 2);
        let (looks, runs) = (CpuId(0), CpuId(1));
        mocks[1].foreign.store(4, Relaxed);
        assert!(shared.desk(looks).inbox.sleep());
        shared.foreign.begin(&shared, runs, 7);
        assert_eq!(shared.foreign.look_at(looks), Some(Nanos(1_000_000_000 + EVERY.0)));
        (0..10_000).for_each(|n| shared.foreign.begin(&shared, looks, n));
        assert_eq!([mocks[0].asked.load(Relaxed), mocks[1].asked.load(Relaxed)], [0, 1]);
        assert!(shared.foreign.look_at(looks).is_some());
    }

    #[test]
    fn the_worker_that_looks_and_never_sleeps_again_is_replaced_by_its_own_driver() {
        let (mocks, shared) = workers(2, 2);
        let (busy, idle) = (CpuId(0), CpuId(1));
        mocks[0].foreign.store(4, Relaxed);
        shared.foreign.looker.store(busy.0, Relaxed);
        assert!(shared.desk(idle).inbox.sleep());
        // By the clock of these hosts it was to look a second ago.
        shared.foreign.at.store(0, Relaxed);
        (1..=CHECK_EVERY).for_each(|n| shared.foreign.begin(&shared, busy, n));
        assert_eq!([busy, idle].map(|cpu| shared.foreign.look_at(cpu).is_some()), [false, true]);
    }

    #[test]
    fn most_of_the_time_is_two_looks_of_three() {
        let most = |looks: &[bool]| {
            let mut points = 0;
            let after = looks.iter().cycle().take(3000).map(|runs| {
                points = weigh(points, *runs);
                points
            });
            after.max()
        };
        assert_eq!((0..POINTS).fold(0, |points, _| weigh(points, true)), POINTS);
        assert_eq!(most(&[true, true, true, false]), Some(POINTS));
        for seldom in [&[true, false][..], &[true, true, false], &[false]] {
            assert!(most(seldom) < Some(POINTS), "{seldom:?}");
        }
    }
}
