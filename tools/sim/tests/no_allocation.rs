//! Wakes, steals and notifications of a policy, and updates of the kernel's records, allocate no memory.

#[path = "../../../crates/sched/tests/common/mod.rs"]
mod common;

use common::{Cpu, Facts, all_machines};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use warmcore_sched::{Allowed, Policy, Wake, WakeSource, Wakee};
use warmcore_sim::policy::kernel::{AverageIdle, Flips, Newidle, NewidleCost};
use warmcore_sim::policy::{Enqueued, Kernel, KernelPolicy, KernelView, SimPolicyKind};
use warmcore_types::{CpuId, Nanos};

impl KernelView for Facts {}

struct Counting;

thread_local! {
    /// The number of allocations by this thread: the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to `System`; the counter needs no memory and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as our caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as our caller promises.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn nothing_is_allocated_after_a_machine_is_built() {
    drop(std::hint::black_box(Box::new(1)));
    assert!(ALLOCATIONS.get() > 0, "allocations are counted");
    for (name, machine) in all_machines() {
        let cpus = machine.cpus() as u32;
        let mut facts = Facts::busy(&machine);
        let before = ALLOCATIONS.get();
        for round in 0..6u32 {
            for (i, cpu) in facts.cpus.iter_mut().enumerate() {
                let n = (i as u32).wrapping_mul(2_654_435_761).rotate_left(round);
                *cpu = Cpu {
                    idle: n % 3 == 0 && round > 1,
                    offline: n % 7 == 0,
                    stuck: n % 5 == 0,
                    backlog: if round % 2 == 0 { n % 4 } else { 0 },
                    since: Nanos(u64::from(n % 90_000)),
                    migration_cost: Nanos(u64::from(n % 300_000)),
                    hot_until: Nanos(u64::from(n % 200_000)),
                    still_for: Nanos(u64::from(n % 90_000)),
                    oldest: None,
                };
            }
            facts.waiting[0] = round % 2;
            let (a, b) = (CpuId(round % cpus), CpuId(cpus / 2));
            let wakers = [
                WakeSource::Cpu(a),
                WakeSource::Cpu(b),
                WakeSource::Outside(Some(a)),
                WakeSource::Outside(None),
            ];
            let here = [Allowed::Anywhere, Allowed::Cpu(b), Allowed::Llc(machine.llc_of(b))];
            let linux = Kernel {
                hot_windows: round % 2 == 0,
                wake_queue: round % 3 == 0,
                sis_node: true,
                newidle: Newidle::Always,
                ..Kernel::default()
            };
            std::hint::black_box(linux.steal(&machine, &facts, a, Nanos(100_000)));
            std::hint::black_box(linux.cpu_to_notify(&machine, &facts, b, Nanos(100_000)));
            for policy in SimPolicyKind::all() {
                for (waker, allowed) in wakers.iter().flat_map(|waker| here.map(|allowed| (*waker, allowed)))
                {
                    for prev_cpu in [Some(b), None] {
                        let wakee = Wakee {
                            first_poll: Nanos(0),
                            prev_cpu,
                            migration_cost: Nanos(9_000),
                            far_cost: Nanos(9_000),
                            accrued_cost: Nanos(8_700),
                            woken_from: prev_cpu,
                            allowed,
                        };
                        let wake = Wake { now: Nanos(100_000), wakee, waker };
                        std::hint::black_box(policy.wake(&machine, &facts, &wake));
                        let placed = std::hint::black_box(linux.wake(&machine, &facts, &wake));
                        std::hint::black_box(placed);
                        std::hint::black_box(linux.enters(&machine, b, allowed, Enqueued::PutBack));
                    }
                }
                std::hint::black_box(policy.steal(&machine, &facts, a, Nanos(100_000)));
                std::hint::black_box(policy.cpu_to_notify(&machine, &facts, b, Nanos(100_000)));
            }
            let (mut idle, mut flips) = (AverageIdle::default(), Flips::default());
            idle.idle(Nanos(1));
            idle.wake(Nanos(100), Nanos(7), Nanos(9));
            flips.wakes(7, Nanos(1));
            NewidleCost::default().searched(Nanos(7), Nanos(1));
        }
        assert_eq!(ALLOCATIONS.get(), before, "on {name}");
    }
}
