//! What waking a worker costs is learned from its wakes. The cost of a move is tested in `refill.rs`.

mod common;

use common::host::TestHost;
use common::script::Scripted;
use warmcore_sched::{Allowed, Core, Host, PolicyKind, View};
use warmcore_types::{CpuId, Nanos};

const ME: CpuId = CpuId(0);

/// The worker parks and is unparked for a task; its thread runs again after this time.
fn wake(host: &TestHost, core: &Core<TestHost>, took: u64) {
    host.park(core);
    let at = host.now(ME).0 + 100_000;
    host.set_clock(Nanos(at));
    host.workers().push_inbox(host, host.task(0, Allowed::Anywhere, 0), ME);
    host.set_clock(Nanos(at + took));
    host.wake(core);
    host.poll_next(core);
}

fn learned(host: &TestHost) -> u64 {
    host.workers().wakeup_cost(ME).0
}

/// After forty wakes of 5 µs.
fn after_short_ones() -> (TestHost, Core<TestHost>) {
    let host = TestHost::new(PolicyKind::Home);
    host.set_clock(Nanos(1_000_000));
    let core = Core::new(&host, ME, Nanos(1_000_000_000));
    assert_eq!(learned(&host), 20_000, "before the first wake");
    (0..40).for_each(|_| wake(&host, &core, 5_000));
    assert!((4_900..5_200).contains(&learned(&host)), "{}", learned(&host));
    (host, core)
}

#[test]
fn wakes_that_take_ten_times_as_long_are_learned_in_twelve() {
    let (host, core) = after_short_ones();
    (0..12).for_each(|_| wake(&host, &core, 50_000));
    assert!((35_000..50_000).contains(&learned(&host)), "{}", learned(&host));
    (0..40).for_each(|_| wake(&host, &core, 5_000));
    assert!(learned(&host) < 5_500, "and back: {}", learned(&host));
}

/// A quota of CPU time stops all threads of the process for 50 ms at a time.
#[test]
fn a_stop_of_all_workers_for_50_ms_counts_little_and_is_forgotten() {
    let (host, core) = after_short_ones();
    wake(&host, &core, 50_000_000);
    assert!(learned(&host) < 7_000, "{}", learned(&host));
    (0..8).for_each(|_| wake(&host, &core, 5_000));
    assert!(learned(&host) < 5_700, "{}", learned(&host));
    // Ten stops in a row are no wakes: the most is more than a wake takes.
    (0..20).for_each(|_| wake(&host, &core, 50_000_000));
    assert_eq!(learned(&host), 100_000);
}
