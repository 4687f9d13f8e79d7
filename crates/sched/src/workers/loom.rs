//! Loom models: a worker parks while a task is queued elsewhere. `cargo xtask test --full` runs them.
//!
//! In each model one thread queues a task where a parked worker does not see it, and the other thread is a worker that looks
//! for tasks and parks. Afterwards the worker has the task, or it was unparked for it. Both use the core's own functions,
//! through the policy `SharedQueue`, which steals and notifies at once.

use super::*;
use crate::{Allowed, Core, LockedRing, PolicyKind, Share, SharedQueue, StealDecision, TaskState};
use ::loom::{model::Builder, sync::Arc as LoomArc, thread};
use warmcore_topo::Topology;

/// The rules of `SharedQueue`, under which at most so many workers search.
struct Limited(u32);

impl Policy for Limited {
    fn wake(&self, machine: &SchedDomains, view: &impl View, wake: &Wake) -> WakeDecision {
        PolicyKind::Home.wake(machine, view, wake)
    }

    fn steal(&self, machine: &SchedDomains, view: &impl View, me: CpuId, now: Nanos) -> StealDecision {
        SharedQueue.steal(machine, view, me, now)
    }

    fn cpu_to_notify(
        &self,
        machine: &SchedDomains,
        view: &impl View,
        at: CpuId,
        now: Nanos,
    ) -> Option<CpuId> {
        SharedQueue.cpu_to_notify(machine, view, at, now)
    }

    fn max_searching(&self, workers: u32) -> u32 {
        self.0.min(workers)
    }
}

struct Model {
    workers: Workers<Self>,
    unparks: AtomicU32,
}

struct Item(TaskState);

impl Task for Item {
    fn state(&self) -> &TaskState {
        &self.0
    }
}

/// An inbox whose mark orders nothing: the order must come from the core's fences. The runtime's inbox, in which the mark
/// and the tasks are one word, has models of its own.
#[derive(Default)]
struct Weak {
    is_parked: AtomicBool,
    tasks: Mutex<Vec<Item>>,
}

impl Inbox<Item> for Weak {
    fn push(&self, task: Item) -> Result<bool, Item> {
        self.tasks.lock().unwrap().push(task);
        Ok(self.try_unpark())
    }

    fn take(&self, each: impl FnMut(Item)) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        tasks.into_iter().for_each(each);
    }

    fn has_tasks(&self) -> bool {
        !self.tasks.lock().unwrap().is_empty()
    }

    fn try_park(&self) -> bool {
        self.is_parked.store(true, Relaxed);
        true
    }

    fn try_unpark(&self) -> bool {
        self.is_parked.swap(false, Relaxed)
    }

    fn is_parked(&self) -> bool {
        self.is_parked.load(Relaxed)
    }

    fn close(&self, each: impl FnMut(Item)) {
        self.take(each);
    }
}

impl Host for Model {
    type Task = Item;
    type Inbox = Weak;
    type Ring = LockedRing<Item>;
    type Policy = Limited;

    fn workers(&self) -> &Workers<Self> {
        &self.workers
    }

    fn now(&self, _worker: CpuId) -> Nanos {
        Nanos(1_000_000)
    }

    fn unpark(&self, _worker: CpuId) {
        self.unparks.fetch_add(1, Relaxed);
    }

    fn cancel(&self, _task: Item) {}
}

impl Model {
    /// Workers of one last-level cache, of which at most `searching` may search at a time.
    fn new(machine: &SchedDomains, searching: u32) -> LoomArc<Self> {
        let workers = Workers::new(machine.clone(), Limited(searching));
        LoomArc::new(Self { workers, unparks: AtomicU32::new(0) })
    }

    fn core(&self, worker: u32) -> Core<Self> {
        Core::new(self, CpuId(worker), Nanos(1_000_000))
    }

    /// How many tasks are in the run queues of these workers.
    fn queued(&self, workers: impl IntoIterator<Item = u32>) -> u32 {
        let of = |worker| {
            let remote = self.workers.remote(CpuId(worker));
            remote.ring.len() + remote.run_queue.lock().unwrap().len()
        };
        workers.into_iter().map(of).sum()
    }
}

fn machine(workers: usize) -> SchedDomains {
    let text = format!("[drawn]\nsockets = 1\nl3_per_socket = 1\ncores_per_l3 = {workers}\nsmt = 1\n");
    let topology = Topology::from_machine(&text, "drawn").expect("a machine");
    let cpus: Vec<CpuId> = topology.cpus.iter().map(|cpu| cpu.id).collect();
    SchedDomains::new(&topology, &cpus)
}

/// `search` looks for tasks on the workers 1 to `searchers`, while `queue` queues tasks.
fn check(searchers: u32, limit: u32, queue: fn(&Model)) {
    let machine = machine(searchers as usize + 1);
    let mut model = Builder::new();
    model.preemption_bound = Some(if searchers == 1 { 4 } else { 2 });
    model.check(move || {
        let model = Model::new(&machine, limit);
        let threads: Vec<_> = (1..=searchers)
            .map(|worker| {
                let model = model.clone();
                thread::spawn(move || model.core(worker).search(&model))
            })
            .collect();
        queue(&model);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let found = model.queued(1..=searchers);
        let unparked = model.unparks.load(Relaxed);
        assert!(found + unparked > 0, "the workers are parked beside a task, and none was unparked");
    });
}

fn push_external(model: &Model) {
    model.workers.schedule_external(model, Item(TaskState::new(Allowed::Anywhere)), Some(CpuId(0)));
}

/// The second task reaches the number at which a worker is notified.
fn queue_two(model: &Model) {
    let core = model.core(0);
    (0..2).for_each(|_| core.schedule(model, Item(TaskState::new(Allowed::Anywhere)), false));
}

#[test]
fn a_worker_that_parks_finds_the_task_in_a_run_queue_or_is_unparked() {
    check(1, u32::MAX, queue_two);
}

#[test]
fn a_worker_that_parks_finds_the_task_in_an_injection_queue_or_is_unparked() {
    check(1, u32::MAX, push_external);
}

#[test]
fn where_one_worker_may_search_it_looks_again_for_what_was_queued_meanwhile() {
    check(1, 1, push_external);
    check(1, 1, queue_two);
}

#[test]
fn of_two_workers_where_one_may_search_the_last_one_looks_again() {
    check(2, 1, push_external);
}
