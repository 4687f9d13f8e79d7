//! The area of 16 KiB on which a burst works, and the methods to find it.
//!
//! A pass adds 1 to each byte of an area, and needs exclusive access to it. With ids of a tenant, the tenant's guard
//! gives exclusive access. With the CPU's number or the kernel's id (`mm_cid`) a thread may be preempted during a pass
//! and another thread may find the same area, so a pass also takes a lock word, which each area has; this costs about
//! as much as a guard, 2 ns of 300. A pass over 16 KiB in steps of 16 bytes is 1024 loads, adds and stores.

use anyhow::Context;
use bytemuck::Zeroable;
use std::cell::UnsafeCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering::*};
use warmcore_cid::{Policy, policy};
use warmcore_line::Padded;
use warmcore_percpu::{PerCid, PerCpu};
use warmcore_sys::{affinity, clock, rseq};
use warmcore_tenant::Tenant;
use warmcore_types::{Cid, CpuId};

/// Indexed by the CPU's number: there are as many areas as CPU numbers, and a CPU always uses the same area.
pub const BY_CPU: &str = "by cpu";
/// Indexed by the kernel's id. The kernel has one set of ids per process.
pub const MM_CID: &str = "mm_cid";

/// The size of an area, as in the published program.
pub const AREA_BYTES: usize = 16 << 10;

/// The data of a burst.
#[derive(Zeroable)]
#[repr(C, align(64))]
pub struct Area(UnsafeCell<[u8; AREA_BYTES]>);

// SAFETY: only `pass` and a test access the bytes, and the caller of `pass` has exclusive access.
unsafe impl Sync for Area {}

impl Area {
    /// Adds 1 to every byte. In a release build the compiler vectorizes it.
    ///
    /// # Safety
    /// No other thread accesses this area during the call.
    #[inline(never)]
    pub unsafe fn pass(&self) {
        // SAFETY: the caller has exclusive access, and no other code makes references.
        unsafe { &mut *self.0.get() }.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    }
}

/// The names of the methods to find an area that this system offers, in the order of the report.
pub fn methods() -> Vec<&'static str> {
    let kernel = rseq::mm_cid().map(|_| MM_CID);
    [BY_CPU].into_iter().chain(policy::ALL.map(Policy::name)).chain(kernel).collect()
}

/// The areas of one method.
pub enum Areas {
    /// Areas by CPU number, each with a word that locks it.
    ByCpu(PerCpu<Area>, Vec<Padded<AtomicBool>>),
    /// Areas by the ids of this tenant.
    Tenant(Tenant, PerCid<Area>),
    /// Areas by the kernel's id, each with a word that locks it.
    MmCid(PerCid<Area>, Vec<Padded<AtomicBool>>),
}

/// The area of a burst, and a moment at which the burst had exclusive access to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// The area's number.
    pub area: u32,
    /// The moment, on the clock that all CPUs share.
    pub at_ns: u64,
}

impl Areas {
    /// Makes fresh areas for the method with this name. Returns an error if no method has this name.
    pub fn new(method: &str) -> anyhow::Result<Self> {
        let words = || (0..affinity::nr_cpu_ids()).map(|_| Padded::new(AtomicBool::new(false))).collect();
        Ok(match method {
            BY_CPU => Self::ByCpu(PerCpu::new(), words()),
            MM_CID => Self::MmCid(PerCid::new(), words()),
            name => {
                let policy = policy::ALL.into_iter().find(|policy| policy.name() == name);
                let policy = policy.with_context(|| format!("no way is called {name}"))?;
                let tenant = Tenant::builder().name(name).policy(policy).build();
                let data = tenant.data();
                Self::Tenant(tenant, data)
            }
        })
    }

    fn get(&self, id: u32) -> Option<&Area> {
        match self {
            Self::ByCpu(areas, _) => areas.get(CpuId(id)),
            Self::Tenant(_, areas) | Self::MmCid(areas, _) => areas.get(Cid(id)),
        }
    }

    /// Makes this thread a user of the tenant, if the method has one. The other methods need no registration.
    pub fn join(&self) {
        if let Self::Tenant(tenant, _) = self {
            drop(tenant.enter());
        }
    }

    /// Writes every area that threads, one on each of `cpus`, may use. To be called before any burst runs.
    pub fn touch(&mut self, cpus: &[CpuId]) {
        let all = &Barrier::new(cpus.len());
        match &*self {
            // An id that was never given out has no area yet, so hold all ids at the same time.
            Self::Tenant(tenant, areas) => std::thread::scope(|scope| {
                for cpu in cpus {
                    scope.spawn(move || {
                        let _ = affinity::pin(*cpu);
                        let guard = tenant.enter();
                        all.wait();
                        // SAFETY: the guard holds the id exclusively.
                        unsafe { areas.owned_slot(&guard).pass() };
                        all.wait();
                    });
                }
            }),
            _ => {
                let end = cpus.iter().map(|cpu| cpu.0 + 1).max().unwrap_or(0);
                for area in (0..end).filter_map(|id| self.get(id)) {
                    // SAFETY: `&mut self`: no other thread has the areas.
                    unsafe { area.pass() };
                }
            }
        }
    }

    /// Makes one pass over the area that the method gives to this thread now.
    #[inline]
    pub fn burst(&self) -> Ran {
        match self {
            Self::Tenant(tenant, areas) => {
                let guard = tenant.enter();
                let ran = Ran { area: guard.cid().0, at_ns: clock::now().0 };
                // SAFETY: the guard holds the id exclusively, and no other method finds this area.
                unsafe { areas.owned_slot(&guard).pass() };
                ran
            }
            Self::ByCpu(_, words) => {
                self.alone(words, || rseq::cpu_hint().unwrap_or_else(|| affinity::current_cpu().0))
            }
            Self::MmCid(_, words) => self.alone(words, || rseq::mm_cid().unwrap_or(0)),
        }
    }

    #[inline]
    fn alone(&self, words: &[Padded<AtomicBool>], id: impl Fn() -> u32) -> Ran {
        loop {
            let id = id();
            let word = &words[id as usize];
            // ORDERING: Acquire here and Release below, so that passes over one area happen one after another.
            if word.swap(true, Acquire) {
                std::thread::yield_now();
                continue;
            }
            let ran = Ran { area: id, at_ns: clock::now().0 };
            let area = self.get(id).expect("a slot for every id");
            // SAFETY: the locked word gives exclusive access.
            unsafe { area.pass() };
            word.store(false, Release);
            return ran;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_passes_over_the_area_that_it_names() {
        let cpus: Vec<CpuId> = affinity::allowed().unwrap().iter().take(2).collect();
        for method in methods() {
            for touched in [true, false] {
                let mut areas = Areas::new(method).unwrap();
                if touched {
                    areas.touch(&cpus);
                }
                areas.join();
                let ran = areas.burst();
                let area = areas.get(ran.area).unwrap();
                // SAFETY: this is the only thread that has the areas.
                let bytes = unsafe { &*area.0.get() };
                // A thread that migrates to a third CPU may run on an area that was not touched.
                let passes =
                    if touched && cpus.len() == affinity::allowed().unwrap().len() { 2 } else { bytes[0] };
                let same = bytes.iter().all(|byte| *byte == passes);
                assert!(same && passes > 0, "{}: {ran:?}, {}", method, bytes[0]);
            }
        }
        assert!(Areas::new("nonsense").is_err());
    }
}
