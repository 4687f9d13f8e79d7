//! Area: the 16 kB that a burst works on, and the ways to find the one to use.
//!
//! Model.   A pass adds 1 to each byte of an area, on which the caller is alone meanwhile: by the
//!          guard of a tenant; by a word beside the area where the id is only read (by CPU,
//!          mm_cid), since whoever loses its CPU may meet another there.
//! Number.  16 KiB in steps of 16 bytes: 1024 loads, adds and stores. The word costs about what a
//!          guard does, 2 ns of 300.
//! Writers. An area: who is alone on it.

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

/// Indexed by the CPU's number: as many areas as CPUs, and always the own one.
pub const BY_CPU: &str = "by cpu";
/// Indexed by the kernel's id, of which the process has one set.
pub const MM_CID: &str = "mm_cid";

/// As in the published program.
pub const AREA_BYTES: usize = 16 << 10;

/// What a burst works on.
#[derive(Zeroable)]
#[repr(C, align(64))]
pub struct Area(UnsafeCell<[u8; AREA_BYTES]>);

// SAFETY: only `pass` touches the bytes, and its caller is alone on them.
unsafe impl Sync for Area {}

impl Area {
    /// Adds 1 to every byte. The compiler makes vector instructions of it.
    ///
    /// # Safety
    /// Nobody else passes over this area meanwhile.
    #[inline(never)]
    pub unsafe fn pass(&self) {
        // SAFETY: the caller is alone on it, and nobody else makes references.
        unsafe { &mut *self.0.get() }.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
    }
}

/// How a burst finds its area.
#[derive(Debug, Clone, Copy)]
pub enum Method {
    /// By the CPU's number.
    ByCpu,
    /// By an id of a tenant.
    Tenant(&'static dyn Policy),
    /// By the kernel's id.
    MmCid,
}

impl Method {
    /// All that this system has, in the order of the report.
    pub fn all() -> Vec<Self> {
        let tenants = policy::ALL.into_iter().map(Self::Tenant);
        let kernel = rseq::mm_cid().map(|_| Self::MmCid);
        std::iter::once(Self::ByCpu).chain(tenants).chain(kernel).collect()
    }

    /// As it stands in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Self::ByCpu => BY_CPU,
            Self::Tenant(policy) => policy.name(),
            Self::MmCid => MM_CID,
        }
    }

    /// The way with this name.
    pub fn named(name: &str) -> anyhow::Result<Self> {
        Self::all()
            .into_iter()
            .find(|method| method.name() == name)
            .with_context(|| format!("no way is called {name}"))
    }

    /// Fresh areas to be found this way.
    pub fn areas(self) -> Areas {
        let words = || (0..affinity::nr_cpu_ids()).map(|_| Padded::new(AtomicBool::new(false))).collect();
        match self {
            Self::ByCpu => Areas::ByCpu(PerCpu::new(), words()),
            Self::MmCid => Areas::MmCid(PerCid::new(), words()),
            Self::Tenant(policy) => {
                let tenant = Tenant::builder().name(policy.name()).policy(policy).build();
                let data = tenant.data();
                Areas::Tenant(tenant, data)
            }
        }
    }
}

/// Areas of their own for one way.
pub enum Areas {
    /// With a word that says whether somebody is in.
    ByCpu(PerCpu<Area>, Vec<Padded<AtomicBool>>),
    /// With the tenant whose ids they have.
    Tenant(Tenant, PerCid<Area>),
    /// With a word that says whether somebody is in.
    MmCid(PerCid<Area>, Vec<Padded<AtomicBool>>),
}

/// What a burst ran on, and a moment at which it was alone there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ran {
    /// The area's number.
    pub area: u32,
    /// On the clock that all CPUs share.
    pub at_ns: u64,
}

impl Areas {
    fn get(&self, id: u32) -> Option<&Area> {
        match self {
            Self::ByCpu(areas, _) => areas.get(CpuId(id)),
            Self::Tenant(_, areas) | Self::MmCid(areas, _) => areas.get(Cid(id)),
        }
    }

    /// Makes this thread a user of the tenant, as a thread of a process is one from its start.
    pub fn join(&self) {
        if let Self::Tenant(tenant, _) = self {
            drop(tenant.enter());
        }
    }

    /// Writes every area that so many CPUs use, before anybody else is there.
    pub fn touch(&mut self, cpus: &[CpuId]) {
        let all = &Barrier::new(cpus.len());
        match &*self {
            // Ids that were never handed out have no area: all are held at once.
            Self::Tenant(tenant, areas) => std::thread::scope(|scope| {
                for cpu in cpus {
                    scope.spawn(move || {
                        let _ = affinity::pin(*cpu);
                        let guard = tenant.enter();
                        all.wait();
                        // SAFETY: the guard's id is nobody else's.
                        unsafe { areas.owned_slot(&guard).pass() };
                        all.wait();
                    });
                }
            }),
            _ => {
                let end = cpus.iter().map(|cpu| cpu.0 + 1).max().unwrap_or(0);
                for area in (0..end).filter_map(|id| self.get(id)) {
                    // SAFETY: nobody else has the areas.
                    unsafe { area.pass() };
                }
            }
        }
    }

    /// One pass over the area that is this thread's now.
    #[inline]
    pub fn burst(&self) -> Ran {
        match self {
            Self::Tenant(tenant, areas) => {
                let guard = tenant.enter();
                let ran = Ran { area: guard.cid().0, at_ns: clock::now().0 };
                // SAFETY: the guard's id is nobody else's, and the area is found by nothing else.
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
            // ORDERING: Acquire, and Release below: passes over one area happen one after another.
            if word.swap(true, Acquire) {
                std::thread::yield_now();
                continue;
            }
            let ran = Ran { area: id, at_ns: clock::now().0 };
            let area = self.get(id).expect("a slot for every id");
            // SAFETY: the word says that nobody else is in.
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
        for method in Method::all() {
            assert_eq!(Method::named(method.name()).unwrap().name(), method.name());
            for touched in [true, false] {
                let mut areas = method.areas();
                if touched {
                    areas.touch(&cpus);
                }
                areas.join();
                let ran = areas.burst();
                let area = areas.get(ran.area).unwrap();
                // SAFETY: this thread is alone with them.
                let bytes = unsafe { &*area.0.get() };
                // On a third CPU it may run on an area that was not touched.
                let passes =
                    if touched && cpus.len() == affinity::allowed().unwrap().len() { 2 } else { bytes[0] };
                let same = bytes.iter().all(|byte| *byte == passes);
                assert!(same && passes > 0, "{}: {ran:?}, {}", method.name(), bytes[0]);
            }
        }
        assert!(Method::named("nonsense").is_err());
    }
}
