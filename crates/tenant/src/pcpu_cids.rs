//! PcpuCids: where the pcpu_cids of all tenants are, and the slots of their data.
//!
//! Model.   A [`Space`] is two pools for machines of so many CPU numbers. A pcpu_cid is 8 bytes in the
//!          page of its CPU, which the pcpu_cids of 512 tenants share; a tenant's data is whole pairs
//!          of lines in the page of its id, beside that of other tenants. A page exists when it was
//!          touched.
//! Number.  384 CPUs all used: 3 KiB of pcpu_cids for a tenant. 2 used: two pages for 512 tenants.

use std::sync::Mutex;
use warmcore_budget::process::unaccounted;
use warmcore_cid::{PcpuCid, PcpuCids};
use warmcore_percpu::{PerCpu, Pool};
use warmcore_types::{CpuId, ignore_poison};

/// So many overflow ids has a tenant: threads that lost their CPU while they held an id.
pub(crate) const OVERFLOW_IDS: u32 = 4096;

/// More CPU numbers than any Linux has.
pub(crate) const CPUS_MAX: u32 = 1 << 16;

/// What tenants share.
#[derive(Debug)]
pub(crate) struct Space {
    cpus: u32,
    pcpu_cids: Pool,
    /// A slot for every id: the CPUs', then the overflow's.
    pub(crate) data: Pool,
}

impl Space {
    /// The space for machines of so many CPU numbers. There are as many as were asked for: one, but
    /// for those who try what another machine would cost.
    pub(crate) fn of(cpus: u32) -> &'static Self {
        // It stays, for all tenants: no account's.
        unaccounted(|| Self::find_or_make(cpus))
    }

    fn find_or_make(cpus: u32) -> &'static Self {
        static SPACES: Mutex<Vec<&'static Space>> = Mutex::new(Vec::new());
        let mut spaces = ignore_poison(SPACES.lock());
        if let Some(space) = spaces.iter().find(|space| space.cpus == cpus) {
            return space;
        }
        let data = Pool::with_slots((cpus + OVERFLOW_IDS) as usize);
        let pcpu_cids = Pool::with_slots(cpus as usize);
        let space = Box::leak(Box::new(Self { cpus, pcpu_cids, data }));
        spaces.push(space);
        space
    }

    pub(crate) fn pcpu_cids(&self) -> PooledPcpuCids {
        // The pages of pcpu_cids are shared with other tenants, and so is the list of them.
        PooledPcpuCids(unaccounted(|| PerCpu::in_pool(&self.pcpu_cids)))
    }
}

/// The pcpu_cids of one tenant.
#[derive(Debug)]
pub(crate) struct PooledPcpuCids(PerCpu<PcpuCid>);

impl PcpuCids for PooledPcpuCids {
    fn cpus(&self) -> u32 {
        self.0.slots() as u32
    }

    #[inline(always)]
    fn pcpu_cid(&self, cpu: CpuId) -> &PcpuCid {
        self.0.get(cpu).unwrap_or_else(|| panic!("{cpu}, and there are {} CPU numbers", self.cpus()))
    }
}
