//! The cost of holding an id for a moment, compared with what a program uses without ids.
//!
//! With ids, the same thread enters on the same CPU again, which is the fast path. The other variants are the usual
//! ways to get exclusive access: a lock, a slot for each thread, a slot of a slab, a set of free ids.
//!
//! A compare-and-swap and a store take 2.2 ns on a 3.7 GHz Zen 4; a Mutex takes two locked instructions.

use crate::case::CaseCtx;
use crate::measure::{Variant, called};
use bytemuck::Zeroable;
use sharded_slab::Slab;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::atomic::{Ordering::SeqCst, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use thread_local::ThreadLocal;
use warmcore_line::Padded;
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_results::{Bound, Row};
use warmcore_tenant::Tenant;

/// The fast path alone.
pub const ENTER: &str = "warmcore tenant";
/// The variant with which the promise compares Warmcore.
pub const MUTEX: &str = "std Mutex";
const OVER_MUTEX_MAX: f64 = 0.6;

#[derive(Zeroable)]
struct Slot {
    number: LocalU64,
}

/// An instance of each thing that is compared. With two threads both use the same instances, and each its own slot of
/// `thread_local`.
struct All {
    tenant: Tenant,
    data: PerCid<Slot>,
    mutex: Padded<Mutex<u64>>,
    thread_local: ThreadLocal<Cell<u64>>,
    slab: Slab<u64>,
    free: Padded<Mutex<BTreeSet<u32>>>,
}

impl All {
    fn new() -> Self {
        let tenant = Tenant::builder().name("lab").build();
        Self {
            data: tenant.data(),
            tenant,
            mutex: Padded::new(Mutex::new(0)),
            thread_local: ThreadLocal::new(),
            slab: Slab::new(),
            free: Padded::new(Mutex::new((0..384).collect())),
        }
    }

    fn variants(&self, two: bool) -> Vec<Variant<'_>> {
        /// Expands the operation into a separate loop for each CPU, so that it is inlined and not called: a locked
        /// instruction waits until the registers that a call saved are written.
        macro_rules! variant {
            ($name:expr, $act:expr) => {{
                Variant::new($name, move |n| (0..n).for_each(|_| $act)).beside_if(two, move || {
                    (0..256).for_each(|_| $act);
                    256
                })
            }};
        }
        const NUMBER: warmcore_percpu::Field<Slot> = field!(Slot, number);
        let inside = |n: u64| {
            let _guard = self.tenant.enter();
            (0..n).for_each(|_| self.data.add(NUMBER, 1));
            n
        };
        let in_guard = Variant::new("warmcore, PerCid::add inside a guard", move |n| _ = inside(n));
        vec![
            variant!(ENTER, drop(self.tenant.enter())),
            variant!(MUTEX, drop(lock(&self.mutex))),
            variant!("warmcore tenant, in a function", called(&self.tenant, |tenant| drop(tenant.enter()))),
            variant!("std Mutex, in a function", called(&*self.mutex, |mutex| drop(lock(mutex)))),
            variant!("warmcore tenant, with an add", {
                let guard = self.tenant.enter();
                self.data.owned_slot(&guard).add(NUMBER, 1);
            }),
            variant!("std Mutex, with an add", *lock(&self.mutex) += 1),
            variant!("warmcore, PerCid::add without a guard", self.data.add(NUMBER, 1)),
            in_guard.beside_if(two, move || inside(256)),
            variant!("thread_local crate, a slot", {
                black_box(self.thread_local.get_or_default());
                compiler_fence(SeqCst);
            }),
            variant!("sharded-slab, insert and remove", {
                let key = black_box(self.slab.insert(1));
                key.map(|key| self.slab.remove(key));
            }),
            variant!("Mutex<BTreeSet> of free ids", {
                let id = black_box(lock(&self.free).pop_first());
                lock(&self.free).extend(id);
            }),
        ]
    }
}

#[inline(always)]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// If `two`, measures two CPUs in the same tenant, or at the same lock, at the same time.
pub(super) fn run(ctx: &CaseCtx, two: bool) -> anyhow::Result<Vec<Row>> {
    let all = All::new();
    let measured = ctx.interleave(all.variants(two))?;
    let mut rows = measured.times();
    let ratio = measured.ratio(ENTER, MUTEX);
    rows.extend(ratio.map(|row| row.promise_if(!two, Bound::AtMost, OVER_MUTEX_MAX)));
    rows.extend(measured.ratios_over(ENTER).into_iter().filter(|row| row.variant != MUTEX));
    Ok(rows)
}
