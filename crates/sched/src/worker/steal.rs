//! Steal: how a worker takes tasks from other queues.
//!
//! The tasks pass through a buffer of the worker, so that no thread holds the locks of two queues.

use super::*;
use crate::policy::MIN_STEAL_DELAY;
use crate::sync::fence;
use crate::{StealDecision, View, Workers};

/// A worker that has tasks which may not come here, or that this one has compared itself with, is looked at again after this time. So
/// long a worker looks where it was asked to.
pub(super) const LOOK_AGAIN_AFTER: Nanos = Nanos(1_000_000);

/// What came of a search.
pub(super) enum SearchOutcome {
    /// Tasks, which are in this worker's ring and run queue now. `left_at`: the worker from whose queues they came, where
    /// others may wait. `is_last`: no other worker searches, under a policy that limits how many do, so this one has to notify
    /// the next.
    Tasks { left_at: Option<CpuId>, is_last: bool },
    /// No task. If a time is given, the worker looks again at that time.
    Nothing(Option<Nanos>),
}

impl<H: Host> Core<H> {
    /// Looks for tasks, as the policy decides, and moves those that it finds to this worker's queues. The number of
    /// workers that search is counted if the policy limits it.
    pub(super) fn steal_work(&self, host: &H, now: Nanos) -> SearchOutcome {
        let workers = host.workers();
        if !workers.limits_searching() {
            return self.steal_as_decided(host, now);
        }
        let limit = workers.max_searching;
        let below = |searching| (searching < limit).then_some(searching + 1);
        // ORDERING: SeqCst; as for `searching`: a worker that was notified is counted already.
        let is_counted = self.remote.notice.is_notified.swap(false, SeqCst);
        if !is_counted && workers.searching.fetch_update(SeqCst, SeqCst, below).is_err() {
            return SearchOutcome::Nothing(None);
        }
        let mut outcome = self.steal_as_decided(host, now);
        let was_last = workers.searching.fetch_sub(1, SeqCst) == 1;
        if was_last && matches!(outcome, SearchOutcome::Nothing(_)) {
            // ORDERING: SeqCst; `searching` was decremented before, the queues are read after. A thread that queues a task
            // does both the other way round, in `Workers::has_enough_searching`. One of the two sees the other.
            // Models: `workers/loom.rs`.
            fence(SeqCst);
            outcome = self.steal_as_decided(host, now);
        }
        match outcome {
            SearchOutcome::Tasks { left_at, .. } => SearchOutcome::Tasks { left_at, is_last: was_last },
            nothing => nothing,
        }
    }

    /// Notifies another worker of tasks that wait anywhere. Nobody was notified of them while this worker searched.
    pub(super) fn notify_next(&self, host: &H, now: Nanos) {
        let workers = host.workers();
        match workers.inject_queues.iter().position(|queue| !queue.is_empty()) {
            Some(queue) => workers.notify_for_inject(host, queue, None),
            None => _ = workers.notify_parked(host, self.me, now),
        }
    }

    /// Looks for tasks near; in other last-level caches where a worker asked for it, and rarely everywhere.
    ///
    /// A task in a queue of a worker there is not stolen before it has waited for `MIN_STEAL_DELAY`, unless that worker is stuck, and that worker
    /// asks another one to come when the task is worth it. All injection queues are looked at each time: `workers.rs`, "Protocol".
    fn steal_as_decided(&self, host: &H, now: Nanos) -> SearchOutcome {
        self.aim_search(host, now);
        let (asked_by, may_look) = (self.asked_by.get(), now >= self.searches_far_at.get());
        let mut outcome = SearchOutcome::Nothing(None);
        if asked_by > 0 || !may_look {
            outcome = self.steal_until_decided(host, now);
            if matches!(outcome, SearchOutcome::Nothing(None)) {
                self.asked_by.set(0);
            }
        }
        if may_look && matches!(outcome, SearchOutcome::Nothing(_)) {
            self.remote.status.far_search.store(0, Relaxed);
            outcome = self.steal_until_decided(host, now);
            let next = Nanos(now.0 + MIN_STEAL_DELAY.0);
            self.searches_far_at.set(match outcome {
                SearchOutcome::Nothing(Some(until)) => until.min(next),
                _ => next,
            });
        }
        outcome
    }

    /// Decides where the next search looks far away: where a worker has asked for it a short time ago, or nowhere; under a limit of searches
    /// everywhere, as nobody is unparked while a worker searches.
    pub(super) fn aim_search(&self, host: &H, now: Nanos) {
        let notice = &self.remote.notice.asked_by;
        if notice.load(Relaxed) > 0 {
            let asked_by = notice.swap(0, Relaxed);
            let old = self.asked_by.get();
            self.asked_by.set(if old == 0 || old == asked_by { asked_by } else { u32::MAX });
            self.asked_until.set(Nanos(now.0 + LOOK_AGAIN_AFTER.0));
        } else if now >= self.asked_until.get() {
            self.asked_by.set(0);
        }
        let everywhere = host.workers().limits_searching() || self.asked_by.get() == u32::MAX;
        self.remote.status.far_search.store(if everywhere { 0 } else { self.asked_by.get() + 1 }, Relaxed);
    }

    fn steal_until_decided(&self, host: &H, now: Nanos) -> SearchOutcome {
        let workers = host.workers();
        for _ in workers.remotes.iter() {
            match workers.policy().steal(workers.machine(), workers, self.me, now) {
                StealDecision::Shard(queue) => {
                    if self.take_injected(host, queue) {
                        return SearchOutcome::Tasks { left_at: None, is_last: false };
                    }
                }
                StealDecision::From { cpu, at_most } => {
                    if self.steal_from(host, cpu, at_most.clamp(1, STEAL_MAX), now, false) > 0 {
                        return SearchOutcome::Tasks { left_at: Some(cpu), is_last: false };
                    }
                    let remote = workers.remote(cpu);
                    if remote.status.queued.load(Relaxed) == 0 && !workers.is_stuck(cpu) {
                        // Another worker took the ring's tasks, each of which could run here. The inbox of a stuck worker may
                        // have tasks that may not.
                        continue;
                    }
                    // The tasks there may not run here.
                    return SearchOutcome::Nothing(Some(Nanos(now.0 + LOOK_AGAIN_AFTER.0)));
                }
                StealDecision::Until(at) => return SearchOutcome::Nothing(Some(at)),
                StealDecision::Nothing => return SearchOutcome::Nothing(None),
            }
        }
        // Other workers were faster each time, and tasks may wait all the same.
        SearchOutcome::Nothing(Some(now))
    }

    /// Moves a share of an injection queue to this worker's queues. Returns whether a task came.
    pub(super) fn take_injected(&self, host: &H, queue: usize) -> bool {
        let (workers, mut taken) = (host.workers(), self.taken.borrow_mut());
        let sharers = workers.machine().cpus_of(queue).len();
        let mut longest = Some(Nanos(0));
        workers.inject_queues[queue].pop(sharers, usize::MAX, |task| {
            longest = self.longest_first_poll(host, longest, &task);
            taken.push(Queued { task, since: self.now() });
        });
        if taken.is_empty() {
            return false;
        }
        self.push_taken(host, &mut taken, 0, self.now());
        self.decide_service(host, longest);
        true
    }

    /// Moves the buffered tasks to this worker's queues; those from the index `woken` on were woken and have not waited there yet.
    /// Returns how many there were.
    fn push_taken(&self, host: &H, taken: &mut Vec<Queued<H::Task>>, woken: usize, now: Nanos) -> u32 {
        let (came, mut run_queue) = (taken.len() as u32, None);
        self.leave_idle();
        for (at, queued) in taken.drain(..).enumerate() {
            self.queue_here(&mut run_queue, queued, now, at >= woken);
        }
        self.publish_queued(host, run_queue, now);
        came
    }

    /// The same of tasks of another worker, whose counter they are added to.
    fn push_stolen(
        &self,
        host: &H,
        from: &Remote<H>,
        taken: &mut Vec<Queued<H::Task>>,
        woken: usize,
        now: Nanos,
    ) -> u32 {
        from.counters.stolen_tasks.fetch_add(taken.len() as u64, Relaxed);
        self.push_taken(host, taken, woken, now)
    }

    /// Takes tasks from another worker's ring, then from its run queue, and from its inbox if it is in a long poll or
    /// `is_still`. Returns how many came.
    pub(super) fn steal_from(&self, host: &H, from: CpuId, at_most: u32, now: Nanos, is_still: bool) -> u32 {
        let workers = host.workers();
        let (remote, mut taken) = (workers.remote(from), self.taken.borrow_mut());
        let steal_order = workers.policy().steal_order();
        let may = |task: &H::Task| workers.machine().allows(task.state().allowed(), self.me);
        remote.ring.steal(at_most, |task| taken.push(Queued { task, since: now }));
        let takes_inbox = is_still || workers.is_stuck(from);
        let is_enough = taken.len() >= at_most as usize || remote.status.queued.load(Relaxed) == 0;
        let queue = match is_still {
            // It may have lost its CPU while it holds the lock.
            true => remote.run_queue.try_lock().ok().map(Locked::of),
            false if is_enough && !takes_inbox => None,
            false => Some(remote.lock_queue()),
        };
        let Some(mut queue) = queue else {
            return self.push_stolen(host, remote, &mut taken, usize::MAX, now);
        };
        while taken.len() < at_most as usize
            && let Some(queued) = queue.steal(steal_order, |queued| may(&queued.task))
        {
            taken.push(queued);
        }
        let of_queue = taken.len();
        if takes_inbox {
            // The tasks that were handed to the worker are in its inbox until its poll ends.
            remote.inbox.take(|task| taken.push(Queued { task, since: now }));
        }
        Self::publish_stolen(workers, remote, queue);
        // Not into the run queue: the worker may have ended its poll and parked meanwhile, which its inbox knows.
        let back = taken.extract_if(of_queue.., |queued| !may(&queued.task));
        back.for_each(|queued| workers.push_inbox(host, queued.task, from));
        self.push_stolen(host, remote, &mut taken, of_queue, now)
    }

    /// Takes random tasks that wait at `from` and may run here. Returns how many came, and how many of them had run.
    ///
    /// Random ones, because the tasks that would run last are the same ones each time, and all tasks are to get the shorter
    /// round equally often (`shares.rs`).
    pub(super) fn migrate(&self, host: &H, from: CpuId, at_most: u32, now: Nanos) -> (u32, u32) {
        let workers = host.workers();
        let (remote, mut taken) = (workers.remote(from), self.taken.borrow_mut());
        let may = |queued: &Queued<H::Task>| workers.machine().allows(queued.task.state().allowed(), self.me);
        let at_most = at_most.min(STEAL_MAX);
        // The first one of a ring is as good as a random one: intervals between looks vary by a poll.
        remote.ring.steal(at_most, |task| taken.push(Queued { task, since: now }));
        let mut queue = remote.lock_queue();
        let left = at_most - taken.len() as u32;
        taken.extend((0..left).map_while(|_| queue.steal_random(self.next_rand(), may)));
        let had_run = taken.iter().filter(|queued| queued.task.state().prev_worker().is_some()).count();
        Self::publish_stolen(workers, remote, queue);
        (self.push_stolen(host, remote, &mut taken, usize::MAX, now), had_run as u32)
    }

    /// Takes one task that waits at `from`, of a tenant with less virtual time than `below`. Returns how many came.
    pub(super) fn steal_lagging(&self, host: &H, from: CpuId, below: u64, now: Nanos) -> u32 {
        let workers = host.workers();
        let (remote, mut taken) = (workers.remote(from), self.taken.borrow_mut());
        let may = |queued: &Queued<H::Task>| workers.machine().allows(queued.task.state().allowed(), self.me);
        let mut queue = remote.lock_queue();
        let Some(queued) = queue.steal_lagging(below, workers.policy().steal_order(), may) else { return 0 };
        taken.push(queued);
        Self::publish_stolen(workers, remote, queue);
        self.push_stolen(host, remote, &mut taken, usize::MAX, now)
    }

    /// Publishes the status of a worker from which tasks were taken, and keeps since when it has a backlog. Unlocks its queue.
    fn publish_stolen(
        workers: &Workers<H>,
        remote: &Remote<H>,
        mut queue: Locked<'_, RunQueue<Queued<H::Task>>>,
    ) {
        workers.publish_status(remote, &mut queue, Nanos(remote.status.backlog_since.load(Relaxed)));
    }
}
