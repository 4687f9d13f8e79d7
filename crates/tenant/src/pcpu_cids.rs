//! The memory with the [`PcpuCid`]s of all tenants (a `PcpuCid` has the id that a tenant has on one CPU) and the slots
//! of their data.
//!
//! A [`Space`] has two pools, which are made for a given number of CPU numbers. A `PcpuCid` takes 8 bytes in the page
//! of its CPU; the `PcpuCid`s of 512 tenants share that page. A tenant's data of up to 2 KiB takes whole pairs of cache
//! lines in the page of each id, beside the data of other tenants. A page takes memory once it was touched.
//!
//! With all of 384 CPUs used, a tenant has 3 KiB of `PcpuCid`s; with 2 CPUs used, 512 tenants share two pages.

use std::sync::Mutex;
use warmcore_budget::process::unaccounted;
use warmcore_cid::{PcpuCid, PcpuCids};
use warmcore_percpu::{PerCpu, Pool};
use warmcore_types::{CpuId, ignore_poison};

/// How many overflow ids a tenant has, for threads that find the id of their CPU in use.
pub(crate) const OVERFLOW_IDS: u32 = 4096;

/// A number of CPU numbers that no Linux system reaches.
pub(crate) const CPUS_MAX: u32 = 1 << 16;

/// The memory that tenants share.
#[derive(Debug)]
pub(crate) struct Space {
    cpus: u32,
    pcpu_cids: Pool,
    /// A slot for every id: first those of CPUs, then the overflow ids.
    pub(crate) data: Pool,
}

impl Space {
    /// The space for machines with `cpus` CPU numbers. A process has one, unless it makes tenants as for other machines
    /// ([`Builder::cpus`](crate::Builder::cpus)).
    pub(crate) fn of(cpus: u32) -> &'static Self {
        static SPACES: Mutex<Vec<&'static Space>> = Mutex::new(Vec::new());
        let mut spaces = ignore_poison(SPACES.lock());
        if let Some(space) = spaces.iter().find(|space| space.cpus == cpus) {
            return space;
        }
        // This memory stays and serves all tenants, so it must not be charged to the current account.
        unaccounted(|| {
            let data = Pool::with_slots((cpus + OVERFLOW_IDS) as usize);
            let pcpu_cids = Pool::with_slots(cpus as usize);
            let space: &'static Self = Box::leak(Box::new(Self { cpus, pcpu_cids, data }));
            spaces.push(space);
            space
        })
    }

    pub(crate) fn pcpu_cids(&self) -> PooledPcpuCids {
        // The pages, and the list of them, are shared with other tenants.
        PooledPcpuCids(unaccounted(|| PerCpu::in_pool(&self.pcpu_cids)))
    }
}

/// The `PcpuCid`s of one tenant.
#[derive(Debug)]
pub(crate) struct PooledPcpuCids(PerCpu<PcpuCid>);

impl PcpuCids for PooledPcpuCids {
    fn cpus(&self) -> u32 {
        self.0.slots() as u32
    }

    #[inline(always)]
    fn pcpu_cid(&self, cpu: CpuId) -> &PcpuCid {
        match self.0.get(cpu) {
            Some(pcpu_cid) => pcpu_cid,
            None => self.no_such_cpu(cpu),
        }
    }
}

impl PooledPcpuCids {
    #[cold]
    #[inline(never)]
    fn no_such_cpu(&self, cpu: CpuId) -> ! {
        panic!("{cpu}, and there are {} CPU numbers", self.cpus())
    }
}
