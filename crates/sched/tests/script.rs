//! A million calls of the core: the same decisions as before (`fixtures/script.txt`), and no allocation after the start.

mod common;

use common::host::TestHost;
use common::script::Player;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use warmcore_sched::{Home, PolicyKind};

const FIXTURE: &str = include_str!("../../../fixtures/script.txt");

/// The seed of the fixture.
const SEED: u64 = 24;

/// The seed of scripts in which each rule decides something. A hot window does so in seven scripts of eight.
const SEED_OF_RULES: u64 = 3;

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to `System`; the counter needs no memory and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller guarantees.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller guarantees.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_million_calls_are_decided_as_in_the_fixture() {
    let host = TestHost::new(PolicyKind::Home);
    let mut player = Player::new(&host, SEED);
    player.play(1_000_000);
    let text = player.log.text();
    if std::env::var_os("WARMCORE_WRITE_FIXTURES").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/script.txt"), &text).unwrap();
    }
    assert!(text == FIXTURE, "the core decides otherwise; WARMCORE_WRITE_FIXTURES=1 writes:\n{text}");
}

#[test]
fn after_the_start_nothing_is_allocated() {
    for policy in PolicyKind::all() {
        let host = TestHost::new(policy);
        let mut player = Player::new(&host, SEED);
        player.fill_queues();
        player.play(100_000);
        let before = ALLOCATIONS.get();
        assert!(before > 0, "the counter counts");
        player.play(1_000_000);
        assert_eq!(ALLOCATIONS.get() - before, 0, "under {policy}");
    }
}

#[test]
fn each_rule_of_home_changes_what_is_decided() {
    let hash = |rules: Home| {
        let host = TestHost::new(PolicyKind::Changed(rules));
        let mut player = Player::new(&host, SEED_OF_RULES);
        player.play(1_000_000);
        player.log.hash
    };
    let home = hash(Home::DEFAULT);
    assert_eq!(home, hash(Home::DEFAULT), "the same calls give the same decisions");
    let changed = [
        ("LIFO order", Home { lifo_order_min_cost: warmcore_types::Nanos(u64::MAX), ..Home::DEFAULT }),
        ("steal share", Home { steal_divisor: 8, ..Home::DEFAULT }),
        ("search limit", Home { max_searching: 1, ..Home::DEFAULT }),
        ("hot window", Home { keeps_hot: false, ..Home::DEFAULT }),
        ("steal delay", Home { min_steal_delay: warmcore_types::Nanos(10_000), ..Home::DEFAULT }),
    ];
    for (rule, rules) in changed {
        assert_ne!(hash(rules), home, "{rule}");
    }
}
