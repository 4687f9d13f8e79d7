//! No operation on ids allocates after `new`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use warmcore_cid::{CacheLocal, Ids, KeptPerCpu, Lowest, Policy, User, pcpu_cids};
use warmcore_types::{CpuId, CpuSet};

struct Counting;

thread_local! {
    /// Allocations of this thread: the test harness has threads of its own.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to `System`; the counter needs no memory and no destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Does every operation, with enough users and CPUs for every path: moves, overflow ids, ids above the policy's bound.
fn every_operation(policy: &'static dyn Policy) {
    const CPUS: u32 = 96;
    let ids = Ids::new(pcpu_cids(CPUS), 8, policy);
    let allowed: CpuSet = (0..CPUS / 2).map(CpuId).collect();
    let more: CpuSet = (0..CPUS).map(CpuId).collect();
    let mut users: [Option<User>; 128] = [const { None }; 128];

    let before = ALLOCATIONS.get();
    for (user, token) in users.iter_mut().zip(0..) {
        *user = Some(ids.add_user(token, &allowed));
    }
    for round in 0..4 {
        for (user, n) in users.iter_mut().zip(0..) {
            let Some(user) = user else { continue };
            let cpu = CpuId((n + round * 7) % CPUS);
            let held = ids.enter(cpu, user).expect("an id");
            let nested = ids.enter(CpuId(0), user).expect("the same id");
            if n % 8 == 0 {
                ids.compact();
            }
            ids.leave(held, user);
            ids.leave(nested, user);
        }
        let [Some(first), Some(second), ..] = &mut users else { panic!("they stay to the end") };
        let held = ids.enter(CpuId(3), first).expect("an id");
        let other = ids.enter(CpuId(3), second).expect("an id");
        ids.allow(&more);
        ids.compact_if(|cpu, unused| unused || cpu.0 > 20);
        for user in &mut users[128 - 32 * (round as usize + 1)..][..32] {
            // The first three rounds remove 32 users each; the two users that hold an id stay.
            if round < 3
                && let Some(user) = user.take()
            {
                ids.remove_user(user);
            }
        }
        let [Some(first), Some(second), ..] = &mut users else { panic!("they stay to the end") };
        ids.leave(other, second);
        ids.leave(held, first);
    }
    let (stats, seen) = (ids.stats(), (ids.allocated(), ids.in_use(), ids.at(CpuId(1))));
    assert_eq!(ALLOCATIONS.get(), before, "{} allocated: {stats:?}, {seen:?}", policy.name());
    assert_eq!(stats.users, 32);
    assert!(stats.overflows > 0 && stats.compacted + stats.lowest > 0, "{stats:?}");
    users.into_iter().flatten().for_each(|user| ids.remove_user(user));
}

#[test]
fn nothing_is_allocated_after_new() {
    drop(std::hint::black_box(Box::new(1)));
    assert!(ALLOCATIONS.get() > 0, "the counter counts");
    [&Lowest as &dyn Policy, &KeptPerCpu, &CacheLocal].into_iter().for_each(every_operation);
}
