//! Tests of the run queue: order, stealing, and shares of tenants.

use super::*;
use crate::virtual_time::MAX_CREDIT;

/// A task of the tenant with this number. If the number is above 1000 the task is pinned.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct Item(u64);

/// Tenant 3 has three times the weight of the others.
impl Entry for Item {
    fn share(&self) -> Share {
        Share { tenant: self.0, weight: if self.0 == 3 { 300 } else { 100 } }
    }

    fn is_pinned(&self) -> bool {
        self.0 > 1000
    }

    fn waits_since(&self) -> Nanos {
        Nanos(0)
    }
}

/// A task of tenant 0. The number is its place in the order of arrival.
#[derive(Debug)]
struct Alike(u32);

impl Entry for Alike {
    fn share(&self) -> Share {
        Share { tenant: 0, weight: 100 }
    }

    fn is_pinned(&self) -> bool {
        false
    }

    fn waits_since(&self) -> Nanos {
        Nanos(self.0.into())
    }
}

impl<T: Entry> RunQueue<T> {
    /// The tenants with waiting tasks that have less virtual time than `below`.
    fn lagging(&self, below: u64) -> Vec<u64> {
        let waiting = self.classes.iter().filter(|class| class.len() > 0 && class.vtime.get() < below);
        waiting.map(|class| class.share.tenant).collect()
    }
}

fn round(queue: &mut RunQueue<Alike>, turn: QueueOrder, again: bool) -> Vec<u32> {
    let waiting = queue.len();
    let mut order = Vec::new();
    for _ in 0..waiting {
        let item = queue.pop(0, || turn).unwrap();
        order.push(item.0);
        if again {
            queue.push(item);
        }
    }
    order
}

#[test]
fn fifo_is_first_come_first_served() {
    let mut queue = RunQueue::new(Arc::default(), true);
    (0..5).for_each(|i| queue.push(Alike(i)));
    assert_eq!(round(&mut queue, QueueOrder::Fifo, true), [0, 1, 2, 3, 4]);
    assert_eq!(round(&mut queue, QueueOrder::Fifo, false), [0, 1, 2, 3, 4]);
    assert!(queue.pop(0, || QueueOrder::Fifo).is_none());
}

#[test]
fn lifo_reverses_each_batch_and_leaves_no_task_out() {
    let mut queue = RunQueue::new(Arc::default(), true);
    (0..5).for_each(|i| queue.push(Alike(i)));
    assert_eq!(round(&mut queue, QueueOrder::Lifo, true), [4, 3, 2, 1, 0]);
    assert_eq!(round(&mut queue, QueueOrder::Lifo, true), [0, 1, 2, 3, 4]);
    assert_eq!(round(&mut queue, QueueOrder::Lifo, true), [4, 3, 2, 1, 0]);
}

#[test]
fn a_thief_gets_the_task_that_would_run_last() {
    for turn in [QueueOrder::Fifo, QueueOrder::Lifo] {
        let mut queue = RunQueue::new(Arc::default(), true);
        (0..4).for_each(|i| queue.push(Alike(i)));
        assert!(queue.pop(0, || turn).is_some());
        queue.push(Alike(4));
        // Fifo: 1, 2 and 3 run in this round, and 4 in the next. Lifo: 2, 1 and 0 run in this round, and 4 in the next.
        assert_eq!(queue.steal(StealOrder::Last, |_| true).unwrap().0, 4, "{turn:?}");
        assert_eq!(queue.len(), 3);
    }
}

#[test]
fn the_oldest_task_is_taken_first_whatever_the_turn() {
    for turn in [QueueOrder::Fifo, QueueOrder::Lifo] {
        let mut queue = RunQueue::new(Arc::default(), true);
        (0..4).for_each(|i| queue.push(Alike(i)));
        let ran = queue.pop(0, || turn).unwrap().0;
        queue.push(Alike(4));
        let mut expected: Vec<u32> = (0..5).filter(|i| *i != ran).collect();
        while let Some(since) = queue.oldest_since() {
            let taken = queue.steal(StealOrder::Oldest, |_| true).unwrap();
            assert_eq!((taken.0, since), (expected.remove(0), Nanos(taken.0.into())), "{turn:?}");
        }
        assert!(expected.is_empty() && queue.len() == 0);
    }
}

/// A task's tenant, and since when the task waits; if that is odd the task is pinned.
#[derive(Debug)]
struct Of(u64, u64);

impl Entry for Of {
    fn share(&self) -> Share {
        Share { tenant: self.0, weight: 100 }
    }

    fn is_pinned(&self) -> bool {
        self.1 % 2 == 1
    }

    fn waits_since(&self) -> Nanos {
        Nanos(self.1)
    }
}

#[test]
fn the_oldest_is_of_the_tenant_whose_turn_is_next_and_not_pinned() {
    let mut queue = RunQueue::new(Arc::default(), true);
    [Of(1, 1), Of(2, 2), Of(1, 3), Of(1, 4), Of(2, 5), Of(2, 6)].into_iter().for_each(|of| queue.push(of));
    queue.charge(Share { tenant: 2, weight: 100 }, 1_000_000);
    let mut order = Vec::new();
    while let Some(since) = queue.oldest_since() {
        let taken = queue.steal(StealOrder::Oldest, |of| !of.is_pinned()).unwrap();
        assert_eq!(since, Nanos(taken.1));
        order.push(taken.1);
    }
    // The pinned tasks stay, and the tasks of tenant 2 are found although tenant 1 has pinned tasks left.
    assert_eq!(order, [4, 2, 6]);
    assert_eq!((queue.len(), queue.stealable()), (3, 0));
}

#[test]
fn a_chain_is_served_first_so_often_and_no_more() {
    for turn in [QueueOrder::Fifo, QueueOrder::Lifo] {
        let mut queue = RunQueue::new(Arc::default(), true);
        queue.push(Alike(0));
        let mut order = Vec::new();
        for i in 1..=6 {
            queue.push_lifo(Alike(i));
            order.push(queue.pop(2, || turn).unwrap().0);
        }
        assert_eq!(order, [1, 2, 0, 4, 5, 3], "{turn:?}");
    }
}

#[test]
fn a_chain_does_not_go_before_another_tenant() {
    let mut queue = RunQueue::new(Arc::default(), true);
    let mut order = Vec::new();
    for i in 1..=6 {
        queue.push_lifo(Item(1));
        if i == 2 {
            queue.push(Item(2));
        }
        let item = queue.pop(16, || QueueOrder::Lifo).unwrap();
        queue.charge(item.share(), 1000);
        order.push(item.0);
    }
    // The task of tenant 2, pushed before the second poll, runs in the fourth at the latest.
    assert!(order[1..4].contains(&2), "{order:?}");
}

#[test]
fn the_lifo_slot_is_stolen_if_no_other_task_waits() {
    let mut queue = RunQueue::new(Arc::default(), true);
    queue.push(Alike(0));
    queue.push_lifo(Alike(1));
    assert_eq!(queue.steal(StealOrder::Last, |_| true).unwrap().0, 0);
    assert!(queue.steal(StealOrder::Last, |_| false).is_none());
    assert_eq!(queue.steal(StealOrder::Last, |_| true).unwrap().0, 1);
    assert_eq!(queue.len(), 0);
    assert!(queue.pop(2, || QueueOrder::Fifo).is_none());
}

#[test]
fn what_tenants_use_is_as_their_weights() {
    let mut queue = RunQueue::new(Arc::default(), true);
    (0..8).for_each(|i| queue.push(Item(if i % 2 == 0 { 1 } else { 3 })));
    let mut used = std::collections::BTreeMap::new();
    for _ in 0..4000 {
        let item = queue.pop(0, || QueueOrder::Fifo).unwrap();
        assert!(queue.virtual_times.has_several_tenants());
        *used.entry(item.0).or_insert(0u64) += 20_000;
        queue.charge(item.share(), 20_000);
        queue.push(item);
    }
    assert!((used[&3] / 1000).abs_diff(3 * used[&1] / 1000) <= 100, "{used:?}");
}

#[test]
fn a_tenant_that_runs_seldom_runs_first() {
    let mut queue = RunQueue::new(Arc::default(), true);
    (0..64).for_each(|_| queue.push(Item(1)));
    for i in 0..1000 {
        if i % 10 == 0 {
            queue.push(Item(2));
        }
        let item = queue.pop(0, || QueueOrder::Fifo).unwrap();
        assert_eq!(item, Item(if i % 10 == 0 { 2 } else { 1 }), "poll {i}");
        if queue.virtual_times.has_several_tenants() {
            queue.charge(item.share(), if item.0 == 2 { 1_000 } else { 200_000 });
        }
        if item.0 == 1 {
            queue.push(item);
        }
    }
}

#[test]
fn many_tenants_are_told_apart_and_forgotten() {
    let mut queue = RunQueue::new(Arc::default(), true);
    for round in 0..3 {
        (0..500).for_each(|tenant| queue.push(Item(tenant)));
        let mut seen: Vec<u64> = (0..500).map(|_| queue.pop(0, || QueueOrder::Fifo).unwrap().0).collect();
        seen.sort();
        assert_eq!(seen, (0..500).collect::<Vec<_>>(), "round {round}");
        // All classes are empty, so the next tenants reuse them, but not the last one that was served.
        (600..1000).for_each(|tenant| queue.push(Item(tenant)));
        assert!(queue.classes.len() <= 501, "{}", queue.classes.len());
        (600..1000).for_each(|_| assert!(queue.pop(0, || QueueOrder::Fifo).is_some()));
    }
    assert_eq!((queue.len(), queue.busy.len()), (0, 0));
    assert_eq!(queue.by_tenant.len(), queue.classes.len());
}

#[test]
fn what_is_pinned_is_not_movable() {
    let mut queue = RunQueue::new(Arc::default(), true);
    [1, 1001, 2, 1002].into_iter().for_each(|tenant| queue.push(Item(tenant)));
    assert_eq!((queue.len(), queue.stealable()), (4, 2));
    assert!(queue.steal(StealOrder::Last, |item| !item.is_pinned()).is_some());
    assert_eq!((queue.len(), queue.stealable()), (3, 1));
    while queue.pop(0, || QueueOrder::Fifo).is_some() {}
    assert_eq!((queue.len(), queue.stealable()), (0, 0));
}

/// Four tenants wait; a task of a fifth is pushed and stolen, again and again.
#[test]
fn a_class_that_others_empty_leaves_nothing_behind() {
    let mut queue = RunQueue::new(Arc::default(), true);
    (0..4).for_each(|tenant| (0..2).for_each(|_| queue.push(Item(tenant))));
    for _ in 0..10_000 {
        queue.push(Item(9));
        assert!(queue.steal(StealOrder::Last, |item| item.0 == 9).is_some());
    }
    assert!(queue.waiting.len() <= 4 * queue.classes.len() + 1, "{} wait", queue.waiting.len());
    let mut left = Vec::new();
    while let Some(item) = queue.pop(0, || QueueOrder::Fifo) {
        left.push(item.0);
    }
    left.sort();
    assert_eq!(left, [0, 0, 1, 1, 2, 2, 3, 3]);
}

#[test]
fn by_lot_every_task_may_be_taken_and_the_others_keep_their_order() {
    let mut taken = Vec::new();
    for lot in 0..5 {
        let mut queue = RunQueue::new(Arc::default(), true);
        (0..6).for_each(|i| queue.push(Alike(i)));
        // Task 0 runs. The others wait in the same round.
        assert_eq!(queue.pop(0, || QueueOrder::Fifo).unwrap().0, 0);
        let item = queue.steal_random(lot, |_| true).unwrap().0;
        let rest: Vec<u32> = (1..6).filter(|i| *i != item).collect();
        assert_eq!(round(&mut queue, QueueOrder::Fifo, false), rest, "lot {lot}");
        taken.push(item);
    }
    taken.sort();
    assert_eq!(taken, [1, 2, 3, 4, 5]);
}

#[test]
fn by_lot_a_pinned_task_stays() {
    let mut queue = RunQueue::new(Arc::default(), true);
    [1001, 1, 1002].into_iter().for_each(|tenant| queue.push(Item(tenant)));
    for lot in 0..3 {
        let item = queue.steal_random(lot, |item| !item.is_pinned()).unwrap();
        assert_eq!((item, queue.stealable(), queue.pinned()), (Item(1), 0, 2), "lot {lot}");
        assert!(queue.steal_random(lot, |item| !item.is_pinned()).is_none());
        queue.push(item);
    }
    queue.push_lifo(Item(2));
    assert_eq!(queue.steal_random(7, |item| item.0 < 3), Some(Item(1)));
    assert_eq!(queue.steal_random(7, |item| item.0 < 3), Some(Item(2)));
}

/// A task of a tenant with a weight.
#[derive(Debug, Clone, Copy)]
struct Weighed {
    tenant: u64,
    weight: u32,
}

impl Entry for Weighed {
    fn share(&self) -> Share {
        Share { tenant: self.tenant, weight: self.weight }
    }

    fn is_pinned(&self) -> bool {
        false
    }

    fn waits_since(&self) -> Nanos {
        Nanos(0)
    }
}

struct Random(u64);

impl Random {
    fn from(&mut self, least: u64, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        least + (self.0 >> 11) % (most - least + 1)
    }
}

/// Workers on a clock of the test's: each polls the next task of its queue and pushes it back. The slice is charged as by
/// `worker/slice.rs`: before the poll of another tenant's task, and after so many polls. The tenants' run times are counted exactly.
struct Workers {
    queues: Vec<RunQueue<Weighed>>,
    /// Each worker's poll: when it ends, its task, and how long it takes.
    polls: Vec<(u64, Weighed, u64)>,
    /// Each worker's slice: what of it is not charged, and of how many polls.
    slices: Vec<(u64, u64)>,
    /// Run time of each tenant's polls that have ended.
    ran: Vec<u64>,
    random: Random,
    poll_ns: (u64, u64),
    /// The polls of a slice at most.
    most: u64,
}

impl Workers {
    /// Each worker has `tasks` tasks of each tenant. Polls take between `poll_ns.0` and `poll_ns.1`.
    fn new(seed: u64, workers: usize, weights: &[u32], tasks: u64, poll_ns: (u64, u64), most: u64) -> Self {
        let virtual_times = Arc::<VirtualTimes>::default();
        let mut queues: Vec<_> = (0..workers).map(|_| RunQueue::new(virtual_times.clone(), true)).collect();
        for queue in &mut queues {
            for (tenant, weight) in weights.iter().enumerate() {
                (0..tasks).for_each(|_| queue.push(Weighed { tenant: tenant as u64, weight: *weight }));
            }
        }
        assert!(queues[0].virtual_times.has_several_tenants(), "several tenants: it is measured");
        let (slices, ran, random) = (vec![(0, 0); workers], vec![0; weights.len()], Random(seed));
        let mut all = Self { queues, polls: vec![], slices, ran, random, poll_ns, most };
        for worker in 0..workers {
            let (task, takes) = all.pop(worker);
            all.queues[worker].set_served(task.share());
            all.polls.push((takes, task, takes));
        }
        all
    }

    fn pop(&mut self, worker: usize) -> (Weighed, u64) {
        let task = self.queues[worker].pop(0, || QueueOrder::Fifo).expect("tasks wait");
        (task, self.random.from(self.poll_ns.0, self.poll_ns.1))
    }

    /// Ends the poll that ends first, and begins that worker's next one. Returns its tenant.
    fn step(&mut self) -> usize {
        let worker = (0..self.polls.len()).min_by_key(|worker| self.polls[*worker].0).unwrap();
        let (now, task, took) = self.polls[worker];
        self.ran[task.tenant as usize] += took;
        let slice = &mut self.slices[worker];
        *slice = (slice.0 + took, slice.1 + 1);
        self.queues[worker].push(task);
        if self.queues[worker].take_came() || self.slices[worker].1 == self.most {
            self.charge(worker, task);
        }
        let (next, takes) = self.pop(worker);
        if next.tenant != task.tenant {
            self.charge(worker, task);
            self.queues[worker].set_served(next.share());
        }
        self.polls[worker] = (now + takes, next, takes);
        task.tenant as usize
    }

    fn charge(&mut self, worker: usize, task: Weighed) {
        let (ran, _) = std::mem::take(&mut self.slices[worker]);
        self.queues[worker].charge(task.share(), ran);
    }
}

/// At any time the virtual times of any two tenants differ by no more than a slice on each worker. In some runs they differ by more
/// than half of that.
#[test]
fn no_tenant_leads_by_more_than_a_slice_beyond_its_share_of_all_workers() {
    let mut reached = 0.0_f64;
    let runs: u64 = if cfg!(debug_assertions) { 500 } else { 10_000 };
    for run in 1..=runs {
        let mut random = Random(run.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let workers = random.from(1, 16) as usize;
        let weights: Vec<u32> = (0..random.from(2, 5)).map(|_| 4_u32.pow(random.from(1, 6) as u32)).collect();
        let longest = [2_000, 20_000, 200_000][random.from(0, 2) as usize];
        let poll_ns = (if run % 2 == 0 { longest } else { 2_000 }, longest);
        let (tasks, polls) = (random.from(1, 3), random.from(1, 20));
        let mut all = Workers::new(run, workers, &weights, tasks, poll_ns, polls);
        let virtual_time = |ran: u64, weight: u32| (ran * 100 / u64::from(weight)) as i64;
        for _ in 0..500 {
            let f = all.step();
            let had = virtual_time(all.ran[f], weights[f]);
            let most = workers as i64 * (virtual_time(polls * longest, weights[f]) + 1);
            for (ran, weight) in all.ran.iter().zip(&weights) {
                let lead = had - virtual_time(*ran, *weight);
                reached = reached.max(lead as f64 / most as f64);
                assert!(
                    lead <= most,
                    "run {run}, {workers} workers, {polls} polls of {poll_ns:?} ns, weights {weights:?}: {f} leads by {lead} of {most}"
                );
            }
        }
    }
    assert!(reached > 0.5, "the bound is reached to {reached:.2} only");
}

#[test]
fn the_only_task_that_waits_is_taken_if_its_tenant_lags() {
    let mut queue = RunQueue::new(Arc::default(), true);
    queue.push(Weighed { tenant: 1, weight: 100 });
    assert!(queue.steal_lagging(0, StealOrder::Last, |_| true).is_none());
    assert!(queue.steal_lagging(1, StealOrder::Last, |_| true).is_some() && queue.len() == 0);
}

/// A tenant whose tasks come back runs alone for [`MAX_CREDIT`] of virtual time, and not for longer.
#[test]
fn a_tenant_that_comes_back_catches_up_a_slice_and_no_more() {
    let virtual_times = Arc::<VirtualTimes>::default();
    let mut queue = RunQueue::new(virtual_times.clone(), true);
    let (old, new) = (Weighed { tenant: 1, weight: 100 }, Weighed { tenant: 2, weight: 100 });
    (0..2).for_each(|_| queue.push(new));
    (0..2).for_each(|_| queue.push(old));
    queue.charge(new.share(), 1_000);
    (0..2).for_each(|_| assert!(queue.steal_random(0, |task| task.tenant == 2).is_some()));
    for _ in 0..1000 {
        let task = queue.pop(0, || QueueOrder::Fifo).unwrap();
        queue.charge(task.share(), 100_000);
        queue.push(task);
    }
    (0..2).for_each(|_| queue.push(new));
    let mut in_a_row = 0;
    while let task = queue.pop(0, || QueueOrder::Fifo).unwrap()
        && task.tenant == 2
    {
        in_a_row += 1;
        queue.charge(task.share(), 100_000);
        queue.push(task);
    }
    let slice = MAX_CREDIT / 100_000;
    assert!((slice - 1..=slice + 2).contains(&in_a_row), "{in_a_row} polls of 100 µs in a row");
}

/// A tenant that comes back by the LIFO slot, while a slice of another is under way, has no more credit than others.
#[test]
fn the_lifo_slot_ends_an_absence_too() {
    let mut queue = RunQueue::new(Arc::default(), true);
    let (old, new) = (Weighed { tenant: 1, weight: 100 }, Weighed { tenant: 2, weight: 100 });
    queue.set_served(new.share());
    queue.charge(new.share(), 1_000);
    queue.set_served(old.share());
    (0..2).for_each(|_| queue.charge(old.share(), 1_000_000_000));
    queue.push_lifo(new);
    let task = queue.pop(12, || QueueOrder::Fifo).unwrap();
    queue.set_served(task.share());
    queue.push(task);
    assert_eq!(queue.min_vtime(), 1_000_000_000 - MAX_CREDIT);
}

/// While the task of one tenant runs and tasks of all others wait, a new tenant comes: it takes no class over.
#[test]
fn a_new_tenant_is_not_taken_for_the_one_that_runs() {
    let mut queue = RunQueue::new(Arc::default(), true);
    let all = TENANTS_KEPT as u64 + 1;
    (0..all).for_each(|tenant| queue.push(Weighed { tenant, weight: 100 }));
    let runs = queue.pop(0, || QueueOrder::Fifo).unwrap();
    queue.set_served(runs.share());
    for tenant in 0..all {
        (0..2).for_each(|_| queue.charge(Share { tenant, weight: 100 }, 1_000_000_000));
    }
    queue.push(Weighed { tenant: all, weight: 100 });
    assert!(queue.min_vtime() >= 1_000_000_000, "{}", queue.min_vtime());
}

/// The only task of a queue is in no class, but its run time counts.
#[test]
fn a_task_that_runs_alone_leaves_nothing_to_be_caught_up() {
    let virtual_times = Arc::<VirtualTimes>::default();
    let mut queues = [RunQueue::new(virtual_times.clone(), true), RunQueue::new(virtual_times.clone(), true)];
    let (alone, absent) = (Weighed { tenant: 1, weight: 100 }, Weighed { tenant: 2, weight: 100 });
    [alone, absent].into_iter().for_each(|task| queues[0].push(task));
    queues[0].charge(absent.share(), 1_000);
    (0..2).for_each(|_| assert!(queues[0].steal_random(0, |_| true).is_some()));
    for _ in 0..1000 {
        queues[1].push(alone);
        let task = queues[1].pop(0, || QueueOrder::Fifo).unwrap();
        queues[1].charge(task.share(), 100_000);
    }
    [alone, alone, absent].into_iter().for_each(|task| queues[0].push(task));
    let mut polls = 0;
    while queues[0].min_vtime() < 1000 * 100_000 {
        let task = queues[0].pop(0, || QueueOrder::Fifo).unwrap();
        polls += u64::from(task.tenant == 2);
        queues[0].charge(task.share(), 100_000);
        queues[0].push(task);
    }
    assert!(
        (MAX_CREDIT / 100_000 - 2..=MAX_CREDIT / 100_000 + 2).contains(&polls),
        "{polls} polls of 100 µs"
    );
}

/// Runs the queue's next task for `ns`, and pushes it back. Returns its tenant.
fn serve(queue: &mut RunQueue<Weighed>, ns: u64) -> u64 {
    let task = queue.pop(0, || QueueOrder::Fifo).unwrap();
    queue.charge(task.share(), ns);
    queue.push(task);
    task.tenant
}

/// New tenants, such as one for each connection, do not always run before a tenant that stays.
#[test]
fn tenants_that_never_ran_are_behind_no_other() {
    let mut queue = RunQueue::new(Arc::<VirtualTimes>::default(), true);
    let weight = 100;
    queue.push(Weighed { tenant: 1, weight });
    queue.push(Weighed { tenant: 2, weight });
    (0..1000).for_each(|_| _ = serve(&mut queue, 100_000));
    let mut of_the_first = 0;
    for tenant in 3..50 {
        queue.push(Weighed { tenant, weight });
        (0..3).for_each(|_| of_the_first += u32::from(serve(&mut queue, 100_000) == 1));
        assert!(queue.steal_random(0, |task| task.tenant == tenant).is_some());
    }
    assert!(of_the_first >= 30, "{of_the_first} of {} polls", 3 * 47);
}

/// If tasks can't move, tenants at another worker may have far more virtual time than all that wait at this worker.
#[test]
fn one_that_comes_back_waits_for_those_at_its_worker_and_not_for_those_elsewhere() {
    let virtual_times = Arc::<VirtualTimes>::default();
    let (mut here, mut elsewhere) =
        (RunQueue::new(virtual_times.clone(), true), RunQueue::new(virtual_times, true));
    let (stays, comes) = (Weighed { tenant: 1, weight: 100 }, Weighed { tenant: 2, weight: 100 });
    (0..2).for_each(|_| here.push(stays));
    here.charge(comes.share(), 1_000);
    (0..2).for_each(|_| elsewhere.push(Weighed { tenant: 3, weight: 1 }));
    (0..1000).for_each(|_| _ = serve(&mut elsewhere, 100_000));
    for round in 0..100 {
        serve(&mut here, 100_000);
        here.push(comes);
        let came = (0..1000).find(|_| {
            let task = here.pop(0, || QueueOrder::Fifo).unwrap();
            here.charge(task.share(), 100_000);
            if task.tenant == 1 {
                here.push(task);
            }
            task.tenant == 2
        });
        assert!(came.is_some_and(|polls| polls <= 3), "round {round}: after {came:?} polls");
    }
}

/// A tenant that gets most of its run time at another worker also runs here at some time.
#[test]
fn one_that_is_served_elsewhere_has_its_turn_here_at_some_time() {
    let virtual_times = Arc::<VirtualTimes>::default();
    let (mut here, mut elsewhere) =
        (RunQueue::new(virtual_times.clone(), true), RunQueue::new(virtual_times, true));
    let (light, heavy) = (Weighed { tenant: 1, weight: 1 }, Weighed { tenant: 2, weight: 10_000 });
    [light, heavy].into_iter().for_each(|task| here.push(task));
    elsewhere.push(light);
    let of_the_light = (0..4 * IN_TURN).filter(|_| {
        serve(&mut elsewhere, 20_000);
        serve(&mut here, 20_000) == 1
    });
    // Of four picks in turn about two are of the light tenant. It also runs once before it has more virtual time.
    assert!((2..=4).contains(&of_the_light.count()));
}

#[test]
fn what_is_too_little_to_count_is_counted_with_what_comes_next() {
    let mut queue = RunQueue::new(Arc::<VirtualTimes>::default(), true);
    let [heavy, _] = [10_000, 100].map(|weight| {
        let task = Weighed { tenant: u64::from(weight), weight };
        queue.push(task);
        task
    });
    (0..1000).for_each(|_| queue.charge(heavy.share(), 50));
    // 500, and 1 because the other tenant began to wait later.
    assert!(!queue.lagging(501).contains(&10_000) && queue.lagging(502).contains(&10_000), "50 000 ns ÷ 100");
}

#[test]
fn a_tenant_is_owed_where_it_had_less() {
    let mut queue = RunQueue::new(Arc::<VirtualTimes>::default(), true);
    [1, 2].into_iter().for_each(|tenant| queue.push(Weighed { tenant, weight: 100 }));
    queue.charge(Weighed { tenant: 1, weight: 100 }.share(), 1_000_000);
    assert_eq!((queue.lagging(1), queue.lagging(2_000_000).len()), (vec![2], 2));
}

/// The order in which the tasks of a round run, which three others pass after the first one ran, and too many later.
fn round_with_passing(order: QueueOrder) -> Vec<u32> {
    let mut queue = RunQueue::new(Arc::default(), true);
    (0..3).for_each(|n| queue.push(Alike(n)));
    let mut ran = vec![queue.pop(0, || order).unwrap().0];
    (10..13).for_each(|n| queue.push_passing(Alike(n), order, 0));
    ran.push(queue.pop(0, || order).unwrap().0);
    (13..50).for_each(|n| queue.push_passing(Alike(n), order, 0));
    ran.extend(std::iter::from_fn(|| queue.pop(0, || order)).map(|item| item.0));
    ran
}

#[test]
fn who_passes_runs_first_in_its_round_up_to_a_limit() {
    let of = |parts: [&[u32]; 4]| parts.concat();
    let first: Vec<u32> = (10..46).collect();
    assert_eq!(round_with_passing(QueueOrder::Fifo), of([&[0], &first, &[1, 2], &[46, 47, 48, 49]]));
    assert_eq!(round_with_passing(QueueOrder::Lifo), of([&[2], &first, &[1, 0], &[49, 48, 47, 46]]));
}

/// Also where no round has begun. Too many wait for the next round.
#[test]
fn who_passes_first_of_all_does_not_run_last() {
    for (order, more, expected) in [
        (QueueOrder::Fifo, 20, [0, 2, 3, 4, 5, 1, 99]),
        (QueueOrder::Lifo, 20, [0, 2, 3, 4, 5, 99, 1]),
        (QueueOrder::Fifo, 2, [0, 2, 3, 1, 4, 5, 99]),
    ] {
        let mut queue = RunQueue::new(Arc::default(), true);
        queue.push_passing(Alike(0), order, more);
        queue.push(Alike(1));
        (2..=5).for_each(|n| queue.push_passing(Alike(n), order, more));
        queue.push(Alike(99));
        let ran: Vec<u32> = std::iter::from_fn(|| queue.pop(0, || order)).map(|item| item.0).collect();
        assert_eq!(ran, expected, "{order:?}, {more} more");
        assert_eq!((queue.len(), queue.stealable()), (0, 0));
    }
}
