//! The memory of ten thousand tenants, without data and with 64 bytes per thread.
//!
//! Each of up to eight threads is pinned to a different CPU, enters every tenant once and does not end before the
//! measurement. The result is the growth of the process since before the first tenant, divided by the number of
//! tenants; it includes records of threads, the registry and the allocator. Each kind of tenant, and of what is
//! compared with it, runs in a separate process. A padded slot for each of 384 CPUs would take 48 KiB per tenant, 470
//! MiB for ten thousand.
//!
//! Source: proc(5), `/proc/pid/smaps_rollup`: the kernel counts it page by page, unlike `statm`.

use crate::case::CaseCtx;
use crate::part::{self, Part, resident_process_bytes};
use bytemuck::Zeroable;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex, OnceLock, PoisonError};
use thread_local::ThreadLocal;
use warmcore_line::Padded;
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_results::{Bound, Row};
use warmcore_sys::affinity;
use warmcore_tenant::Tenant;
use warmcore_types::CpuId;

/// The memory that a tenant without data may take.
const BYTES_MAX: f64 = 4096.0;
const TENANTS: usize = 10_000;
const CPUS: u32 = 384;
/// One thread per CPU, up to this many.
const THREADS_MAX: usize = 8;

/// A kind of thing, and the number of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Many {
    kind: DataKind,
    number: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum DataKind {
    /// Tenants, as on a machine with this many CPU numbers. 0 means the number of this machine.
    Tenants { cpus: u32 },
    /// Tenants as on this machine, with a slot of 64 bytes written by each thread.
    WithData,
    /// Instances of the crate `thread_local`, each with a padded word per thread.
    ThreadLocals,
    /// Sets of free ids, each with a padded word for each id.
    FreeSets,
}

/// A slot's data: one cache line.
#[derive(Zeroable)]
#[allow(dead_code, reason = "the rest is there to take room")]
struct Data {
    number: LocalU64,
    more: [u64; 7],
}

impl Part for Many {
    const NAME: &'static str = "Memory";
    type Answer = f64;

    /// Makes and uses the instances; returns the bytes of memory for each.
    fn answer(self) -> anyhow::Result<f64> {
        let n = self.number;
        match self.kind {
            DataKind::Tenants { cpus } => {
                let build = |_| match cpus {
                    0 => Tenant::builder().build(),
                    cpus => Tenant::builder().cpus(cpus).build(),
                };
                grown(n, build, |tenant, _| drop(tenant.enter()))
            }
            DataKind::WithData => {
                let build = |_| {
                    let tenant = Tenant::builder().build();
                    let data: PerCid<Data> = tenant.data();
                    (tenant, data)
                };
                // All threads hold their guards at the same time, so that each has a different id.
                grown(n, build, |(tenant, data), all| {
                    let guard = tenant.enter();
                    all.wait();
                    data.owned_slot(&guard).add(field!(Data, number), 1);
                    all.wait();
                })
            }
            DataKind::ThreadLocals => {
                let add = |slots: &ThreadLocal<Padded<AtomicU64>>, _: &Barrier| {
                    slots.get_or_default().fetch_add(1, Relaxed);
                };
                grown(n, |_| ThreadLocal::new(), add)
            }
            DataKind::FreeSets => {
                let build = |_| {
                    let slots: Vec<_> = (0..CPUS).map(|_| Padded::new(AtomicU64::new(0))).collect();
                    (Mutex::new((0..CPUS).collect::<BTreeSet<u32>>()), slots)
                };
                grown(n, build, |(free, slots), _| {
                    let free = || free.lock().unwrap_or_else(PoisonError::into_inner);
                    let id = free().pop_first();
                    id.map(|id| slots[id as usize].fetch_add(1, Relaxed));
                    free().extend(id);
                })
            }
        }
    }
}

/// Returns the bytes by which the process grew for each of `n` things that all threads used.
fn grown<T: Send + Sync>(
    n: usize,
    make: impl Fn(usize) -> T,
    use_it: impl Fn(&T, &Barrier) + Sync,
) -> anyhow::Result<f64> {
    let cpus: Vec<CpuId> = affinity::allowed()?.iter().take(THREADS_MAX).collect();
    let (all, users) = (Barrier::new(cpus.len() + 1), Barrier::new(cpus.len()));
    let things: OnceLock<Vec<T>> = OnceLock::new();
    std::thread::scope(|scope| {
        for cpu in &cpus {
            let (all, users, things, use_it) = (&all, &users, &things, &use_it);
            scope.spawn(move || {
                // An error is ignored. Unpinned threads may share a CPU, and the result would then be too small; but
                // the scheduler spreads busy threads over the CPUs.
                let _ = affinity::pin(*cpu);
                all.wait();
                all.wait();
                things.get().into_iter().flatten().for_each(|thing| use_it(thing, users));
                all.wait();
                // Measured while the threads live: a thread that ends frees its records.
                all.wait();
            });
        }
        all.wait();
        let before = resident_process_bytes();
        let _ = things.set((0..n).map(&make).collect());
        all.wait();
        all.wait();
        let after = resident_process_bytes();
        all.wait();
        Ok((after? as f64 - before? as f64) / n as f64)
    })
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let kinds = [
        ("warmcore tenants, as here", DataKind::Tenants { cpus: 0 }, TENANTS),
        ("warmcore tenants, 384 CPUs", DataKind::Tenants { cpus: CPUS }, TENANTS),
        ("warmcore tenants, 8192 CPUs", DataKind::Tenants { cpus: 8192 }, TENANTS),
        ("warmcore tenants, and 64 bytes of data on each CPU", DataKind::WithData, TENANTS),
        ("thread_local crate, a padded word per thread", DataKind::ThreadLocals, TENANTS),
        // Fewer instances: ten thousand would not fit in the memory of every machine, and each instance takes the same.
        ("Mutex<BTreeSet> and a padded word, 384 CPUs", DataKind::FreeSets, TENANTS / 10),
    ];
    let mut rows = Vec::new();
    for (i, (name, kind, number)) in kinds.into_iter().enumerate() {
        let bytes = part::ask(&Many { kind, number })?;
        let row = Row::exact(ctx.name, name, "memory each", "bytes", bytes.round(), number as u64);
        let is_promised = matches!(kind, DataKind::Tenants { cpus: 0 | CPUS });
        rows.push(row.promise_if(is_promised, Bound::AtMost, BYTES_MAX));
        ctx.part_of(i + 1, kinds.len());
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_can_be_made_and_used() {
        for kind in
            [DataKind::Tenants { cpus: 384 }, DataKind::WithData, DataKind::ThreadLocals, DataKind::FreeSets]
        {
            let bytes = Many { kind, number: 20 }.answer().unwrap();
            assert!(bytes.is_finite(), "{kind:?}");
        }
    }
}
