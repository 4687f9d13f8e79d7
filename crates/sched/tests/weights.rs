//! Weights of tenants on whole cores. Tasks without a tenant count as those of one more.

mod common;

use common::host::TestHost;
use common::script::{Random, Scripted};
use warmcore_sched::{Allowed, Core, Next, PolicyKind};
use warmcore_types::{CpuId, Nanos};

/// How long a poll takes: so little that the tasks go into the ring until the first maintenance.
const POLL: u64 = 2_000;

#[test]
fn one_task_of_a_tenant_and_one_without_share_a_worker_by_weight() {
    let host = TestHost::new(PolicyKind::Home);
    let mut now = 1_000_000;
    host.set_clock(Nanos(now));
    let core = Core::new(&host, CpuId(0), Nanos(1_000_000));
    // The tenant's weight is 300, that of tasks without a tenant 100.
    for (task, tenant) in [(0, 0), (1, 3)] {
        let task = host.task(task, Allowed::Anywhere, tenant);
        core.begin_poll(&host, &task);
        core.schedule(&host, task, true);
        core.end_poll(true);
    }
    let mut polls = [0_u32; 2];
    while polls.iter().sum::<u32>() < 40_000 {
        match core.next(&host) {
            Next::Run(queued) => {
                let task = queued.task;
                polls[TestHost::number(&task) as usize] += 1;
                core.begin_poll(&host, &task);
                now += POLL;
                host.set_clock(Nanos(now));
                core.schedule(&host, task, true);
                core.end_poll(true);
            }
            Next::Maintain => core.maintained(&host),
            other => panic!("{other:?}"),
        }
    }
    let ratio = f64::from(polls[1]) / f64::from(polls[0]);
    assert!((2.9..3.1).contains(&ratio), "{polls:?}");
}

/// A worker that polls tasks of tenants 1 and 3, whose weights are 100 and 300, and what these tenants got.
struct Served<'a> {
    host: &'a TestHost,
    core: Core<TestHost>,
    now: u64,
    /// Virtual time of tenants 1 and 3: what their tasks ran, times 100, divided by the weight.
    got: [f64; 2],
    /// When maintenance last ended, and the longest time between two, with the poll before it.
    maintained: u64,
    interval: u64,
}

impl<'a> Served<'a> {
    fn new(host: &'a TestHost) -> Self {
        Self::at(host, CpuId(0))
    }

    fn at(host: &'a TestHost, worker: CpuId) -> Self {
        let now = 1_000_000;
        host.set_clock(Nanos(now));
        let core = Core::new(host, worker, Nanos(1_000_000));
        Self { host, core, now, got: [0.0; 2], maintained: now, interval: 0 }
    }

    /// Queues a task of each number. Even ones belong to tenant 1, odd ones to tenant 3.
    fn spawn(&self, tasks: std::ops::Range<u32>) {
        self.spawn_allowed(tasks, Allowed::Anywhere);
    }

    fn spawn_allowed(&self, tasks: std::ops::Range<u32>, allowed: Allowed) {
        for number in tasks {
            let task = self.host.task(number, allowed, 1 + 2 * u64::from(number % 2));
            self.core.begin_poll(self.host, &task);
            self.core.schedule(self.host, task, true);
            self.core.end_poll(true);
            // No interval ends meanwhile.
            self.core.set_event_interval(8);
        }
    }

    /// Polls the next task for so many ns. Returns it.
    fn poll(&mut self, takes: u64) -> <TestHost as warmcore_sched::Host>::Task {
        self.host.set_clock(Nanos(self.now));
        loop {
            match self.core.next(self.host) {
                Next::Run(queued) => {
                    let of = TestHost::number(&queued.task) as usize % 2;
                    self.core.begin_poll(self.host, &queued.task);
                    self.now += takes;
                    self.host.set_clock(Nanos(self.now));
                    self.got[of] += takes as f64 / [1.0, 3.0][of];
                    return queued.task;
                }
                Next::Maintain => {
                    self.interval = self.interval.max(self.now - self.maintained);
                    self.core.maintained(self.host);
                    self.maintained = self.now;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn queue(&self, task: <TestHost as warmcore_sched::Host>::Task) {
        self.core.schedule(self.host, task, true);
        self.core.end_poll(true);
    }
}

#[test]
fn no_tenant_leads_by_more_than_a_slice() {
    for longest in [2_000, 20_000, 60_000, 200_000] {
        let host = TestHost::new(PolicyKind::Home);
        let mut served = Served::new(&host);
        served.spawn(0..7);
        let mut rng = Random(longest);
        let mut leads = 0.0_f64;
        for _ in 0..20_000 {
            let task = served.poll(1_000 + rng.below(longest));
            served.queue(task);
            leads = leads.max((served.got[0] - served.got[1]).abs());
        }
        let most = (served.interval + longest) as f64;
        assert!(leads <= most, "a tenant led by {leads} ns of {most}, polls of up to {longest} ns");
        assert!(served.interval < 900_000 + longest, "an event interval took {} ns", served.interval);
    }
}

/// The tasks of each tenant begin at a worker of their own, and no worker is ever idle. So a worker has to take tasks of the tenant
/// that is behind from the other one: equal halves of the time would be equal rounds.
#[test]
fn a_tenant_gets_its_share_of_two_workers_although_its_tasks_began_at_one() {
    let host = TestHost::new(PolicyKind::Home);
    let mut workers = [0, 1].map(|worker| Served::at(&host, CpuId(worker)));
    for (worker, served) in workers.iter().enumerate() {
        [0, 2, 4].into_iter().map(|task| task + worker as u32).for_each(|task| served.spawn(task..task + 1));
    }
    let mut leads = 0.0_f64;
    for _ in 0..20_000 {
        for served in &mut workers {
            let task = served.poll(20_000);
            served.queue(task);
        }
        let got = |of: usize| workers.iter().map(|served| served.got[of]).sum::<f64>();
        leads = leads.max((got(0) - got(1)).abs());
    }
    // A lag of 2 ms, slices of both workers, and the time until a worker looks at the other one. Without moves it is 267 ms.
    assert!(leads < 4e6, "a tenant led by {leads} ns");
}

/// Tenant 1 has the second worker to itself, which is more than its share. So the first one, where tasks of both wait, serves tenant 3.
#[test]
fn what_a_tenant_gets_at_one_worker_counts_at_the_others() {
    let host = TestHost::new(PolicyKind::Home);
    let mut workers = [0, 1].map(|worker| Served::at(&host, CpuId(worker)));
    workers[0].spawn_allowed(0..4, Allowed::Cpu(CpuId(0)));
    (0..2).for_each(|_| workers[1].spawn_allowed(4..5, Allowed::Cpu(CpuId(1))));
    for _ in 0..10_000 {
        for served in &mut workers {
            let task = served.poll(20_000);
            served.queue(task);
        }
    }
    let of_the_first = 3.0 * workers[0].got[1] / (10_000.0 * 20_000.0);
    // With a virtual time of each worker's own it would be 0.75.
    assert!(of_the_first > 0.99, "{of_the_first} of the first worker's time");
}

/// A tenant whose tasks all wait, as for their budget, keeps its claim to what others run meanwhile, up to 4 ms of virtual time. Here its
/// task waits again as soon as it has caught up.
#[test]
fn a_tenant_that_waits_keeps_its_claim_up_to_a_bound() {
    for (waits, keeps) in [(3_000_000, 1.0), (12_000_000, 4.0 / 12.0)] {
        let host = TestHost::new(PolicyKind::Home);
        let mut served = Served::new(&host);
        [0, 1, 2].into_iter().for_each(|number| served.spawn(number..number + 1));
        let (mut waiting, mut catches_up) = (None, false);
        for _ in 0..50_000 {
            let task = served.poll(20_000);
            let is_own = TestHost::number(&task) == 1;
            catches_up &= is_own;
            if is_own && !catches_up {
                waiting = Some((task, served.now + waits));
                served.core.end_poll(false);
            } else {
                served.queue(task);
            }
            if let Some((task, _)) = waiting.take_if(|(_, until)| served.now >= *until) {
                served.core.schedule(&host, task, false);
                catches_up = true;
            }
        }
        let share = served.got[1] / served.got[0];
        assert!((share - keeps).abs() < 0.05, "after waits of {waits} ns: {share} of the claim");
    }
}

#[test]
fn a_task_that_comes_runs_next_if_its_tenant_is_behind() {
    let host = TestHost::new(PolicyKind::Home);
    let mut served = Served::new(&host);
    // One task of tenant 3, which sleeps at times, and others of tenant 1, which do not.
    [0, 1, 2, 4].into_iter().for_each(|number| served.spawn(number..number + 1));
    let mut rng = Random(3);
    let (mut asleep, mut wakes) = (None, 0);
    for _ in 0..50_000 {
        let task = served.poll(20_000);
        match TestHost::number(&task) {
            1 if rng.below(8) == 0 => {
                asleep = Some(task);
                served.core.end_poll(false);
            }
            _ => served.queue(task),
        }
        if let Some(task) = asleep.take_if(|_| served.got[1] + 20_000.0 < served.got[0]) {
            served.core.schedule(&host, task, false);
            let next = served.poll(20_000);
            assert_eq!(TestHost::number(&next), 1, "{:?}", served.got);
            served.queue(next);
            wakes += 1;
        }
    }
    assert!(wakes > 500, "it slept {wakes} times");
}

#[test]
fn what_other_threads_had_of_the_cpu_is_charged_to_no_tenant() {
    const RUNS: u64 = 300_000;
    const LOSES: u64 = 700_000;
    let host = TestHost::new(PolicyKind::Home);
    let mut served = Served::new(&host);
    served.spawn(0..6);
    for _ in 0..2_000 {
        let task = served.poll(RUNS);
        if TestHost::number(&task).is_multiple_of(2) {
            // The polls of tenant 1 are preempted.
            served.now += LOSES;
            host.set_clock(Nanos(served.now));
            let (lost, preempted, waited) = host.lost.get();
            host.lost.set((lost + LOSES, preempted + 1, waited));
        }
        served.queue(task);
    }
    let difference = (served.got[0] - served.got[1]).abs();
    assert!(difference <= 3.0 * (RUNS + LOSES) as f64, "a tenant leads by {difference} ns: {:?}", served.got);
    assert!(served.got[0] > 100.0 * LOSES as f64);
}

/// A worker charges what it has polled before another thread is to run it. If no thread can be started, its poll goes on.
#[test]
fn a_poll_is_charged_once_if_it_is_charged_in_between() {
    let host = TestHost::new(PolicyKind::Home);
    let mut served = Served::new(&host);
    served.spawn(0..6);
    for _ in 0..20_000 {
        let task = served.poll(20_000);
        if TestHost::number(&task).is_multiple_of(2) {
            served.core.read_clock(&host);
            served.core.charge_slice(&host, true);
        }
        served.queue(task);
    }
    let difference = (served.got[0] - served.got[1]).abs();
    assert!(
        difference <= (served.interval + 20_000) as f64,
        "a tenant leads by {difference} ns: {:?}",
        served.got
    );
}

/// A tenant whose only task was the last one that ran at a worker, and then slept, has no more credit than any that comes back.
#[test]
fn a_tenant_has_no_credit_for_the_time_in_which_its_last_worker_was_idle() {
    comes_back_without_credit(false);
}

/// The same if its thread has handed the worker over in that poll, to one that found no task.
#[test]
fn a_tenant_has_no_credit_for_the_time_after_a_hand_off() {
    comes_back_without_credit(true);
}

fn comes_back_without_credit(is_handed_off: bool) {
    let host = TestHost::new(PolicyKind::Home);
    let mut first = Served::new(&host);
    first.spawn(0..2);
    // From the first maintenance on tasks wait in the run queue.
    while first.interval == 0 {
        let task = first.poll(20_000);
        first.queue(task);
    }
    // The other tenant's task sleeps first.
    loop {
        let task = first.poll(20_000);
        if TestHost::number(&task) == 0 {
            break first.core.end_poll(false);
        }
        first.queue(task);
    }
    let sleeper = first.poll(20_000);
    if is_handed_off {
        first.core.read_clock(&host);
        first.core.charge_slice(&host, true);
        first.core = Core::new(&host, CpuId(0), Nanos(1_000_000));
    } else {
        first.core.end_poll(false);
    }
    assert!(matches!(first.core.next(&host), Next::Search));
    first.core.search(&host);
    assert!(matches!(first.core.next(&host), Next::Park(_)));
    let mut second = Served::new(&host);
    (second.core, second.now) = (Core::new(&host, CpuId(1), Nanos(1_000_000)), first.now);
    [0, 2].into_iter().for_each(|number| second.spawn(number..number + 1));
    for _ in 0..10_000 {
        let task = second.poll(100_000);
        second.queue(task);
    }
    first.now = second.now;
    host.set_clock(Nanos(first.now));
    first.core.schedule(&host, sleeper, false);
    first.core.unparked(&host);
    first.core.resume(&host);
    [4, 6].into_iter().for_each(|number| first.spawn(number..number + 1));
    let mut of_sleeper = 0;
    for _ in 0..1_000 {
        let task = first.poll(100_000);
        of_sleeper += u32::from(TestHost::number(&task) == 1);
        first.queue(task);
    }
    // Three of four, and 4 ms of virtual time before, which are 12 ms.
    assert!((750..900).contains(&of_sleeper), "{of_sleeper} of 1000 polls");
}
