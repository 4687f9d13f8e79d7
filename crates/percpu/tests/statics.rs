//! Counters, gauges and free lists as statics: concurrent first operations of several threads lose nothing.

use std::num::NonZeroU64;
use std::process::Command;
use std::sync::Barrier;
use warmcore_percpu::{Counter, FreeList, Gauge};

static REQUESTS: Counter = Counter::new();
static OPEN: Gauge = Gauge::new();
static NUMBERS: FreeList<NonZeroU64> = FreeList::new();
static FEW: FreeList<NonZeroU64> = FreeList::with_capacity(2);
static BY_KIND: [Counter; 3] = [const { Counter::new() }; 3];

const THREADS: u64 = 4;
const EACH: u64 = 100;

fn number(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n + 1).expect("not zero")
}

/// Several threads start at the same time to use a counter, a gauge and a list that were never used. Checks that
/// no add and no item is lost.
fn race(counter: &Counter, gauge: &Gauge, list: &FreeList<NonZeroU64>) {
    let begin = Barrier::new(THREADS as usize + 1);
    let (snapshots, drained) = std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for i in 0..EACH {
                    counter.add(1);
                    gauge.add(2);
                    gauge.sub(1);
                    list.push(number(thread * EACH + i));
                }
            });
        }
        begin.wait();
        let snapshots: Vec<u64> = (0..20).map(|_| counter.snapshot()).collect();
        (snapshots, list.drain_all())
    });
    assert!(snapshots.is_sorted(), "{snapshots:?}");
    assert_eq!((counter.sum(), counter.snapshot()), (THREADS * EACH, THREADS * EACH));
    assert_eq!((gauge.sum(), gauge.snapshot()), ((THREADS * EACH) as i64, (THREADS * EACH) as i64));
    let mut all = drained;
    all.extend(list.drain_all());
    all.sort_unstable();
    assert_eq!(all, (0..THREADS * EACH).map(number).collect::<Vec<_>>());
}

#[test]
fn concurrent_first_adds_and_pushes_lose_nothing() {
    for _ in 0..200 {
        race(&Counter::new(), &Gauge::new(), &FreeList::new());
    }
}

/// The first use in a process also chooses the backend, so this test starts new processes, one after the other.
#[test]
fn a_process_may_begin_with_statics() {
    const VARIABLE: &str = "WARMCORE_TEST_BEGINS_WITH_STATICS";
    if std::env::var_os(VARIABLE).is_some() {
        return race(&REQUESTS, &OPEN, &NUMBERS);
    }
    for _ in 0..20 {
        let mut child = Command::new(std::env::current_exe().expect("this test is a program"));
        let child = child.args(["--exact", "a_process_may_begin_with_statics"]).env(VARIABLE, "1").output();
        let child = child.expect("it starts");
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success() && text.contains("1 passed"), "{text}");
    }
}

#[test]
fn an_unused_counter_is_zero_and_an_unused_list_is_empty() {
    let (counter, gauge, list) = (Counter::new(), Gauge::new(), FreeList::<NonZeroU64>::new());
    assert_eq!((counter.sum(), counter.snapshot(), counter.drain_all()), (0, 0, 0));
    assert_eq!((gauge.sum(), gauge.snapshot(), gauge.drain_all()), (0, 0, 0));
    assert_eq!((list.pop(), list.len(), list.drain_all()), (None, 0, vec![]));
    let mut out = Vec::new();
    assert_eq!((list.pop_batch(&mut out, 5), out.len()), (0, 0));
    // Reading them does not prevent later use.
    counter.add(3);
    assert_eq!((counter.drain_all(), counter.sum()), (3, 0));
    let mut some: Vec<_> = (0..100).map(number).collect();
    list.push_batch(&mut some);
    assert_eq!((some.len(), list.len()), (0, 100));
    // If this thread has migrated, a pop does not find items on the previous CPU's stack.
    list.pop_batch(&mut out, 1000);
    out.extend(list.drain_all());
    assert_eq!(out.len(), 100);
}

#[test]
fn a_static_keeps_its_capacity_and_an_array_of_statics_its_counts() {
    (0..10).for_each(|n| FEW.push(number(n)));
    let mut all: Vec<_> = std::iter::from_fn(|| FEW.pop()).collect();
    // If this thread has migrated, items that a pop did not find are on the previous CPU's stack.
    all.extend(FEW.drain_all());
    all.sort_unstable();
    assert_eq!(all, (0..10).map(number).collect::<Vec<_>>());
    BY_KIND.iter().zip(1..).for_each(|(counter, n)| counter.add(n));
    assert_eq!(BY_KIND.each_ref().map(Counter::sum), [1, 2, 3]);
}
