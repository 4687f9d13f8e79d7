//! Seats: where the seats of all tenants are, and the slots of their data.
//!
//! Model.   A [`Space`] is two pools for machines of so many CPU numbers. A seat is 8 bytes in the
//!          page of its CPU, which the seats of 512 tenants share; a tenant's data is whole pairs
//!          of lines in the page of its id, beside that of other tenants. A page exists when it was
//!          touched.
//! Number.  384 CPUs all used: 3 KiB of seats for a tenant. 2 used: two pages for 512 tenants.

use std::sync::{Mutex, PoisonError};
use warmcore_budget::host::unbilled;
use warmcore_cid::{Policy, Seat, Seats};
use warmcore_percpu::{PerCpu, Pool};
use warmcore_types::CpuId;

/// So many overflow ids has a tenant: threads that lost their CPU while they held an id.
pub(crate) const OVERFLOW_IDS: u32 = 4096;

/// More CPU numbers than any Linux has.
pub(crate) const CPUS_MAX: u32 = 1 << 16;

/// What tenants share.
#[derive(Debug)]
pub(crate) struct Space {
    cpus: u32,
    seats: Pool,
    /// Of tasks, which any CPU writes: apart from those of CPUs.
    tasks: Pool,
    /// A slot for every id: the CPUs', then the overflow's.
    pub(crate) data: Pool,
}

impl Space {
    /// The space for machines of so many CPU numbers. There are as many as were asked for: one, but
    /// for those who try what another machine would cost.
    pub(crate) fn of(cpus: u32) -> &'static Self {
        // It stays, for all tenants: no account's.
        unbilled(|| Self::find_or_make(cpus))
    }

    fn find_or_make(cpus: u32) -> &'static Self {
        static SPACES: Mutex<Vec<&'static Space>> = Mutex::new(Vec::new());
        let mut spaces = SPACES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(space) = spaces.iter().find(|space| space.cpus == cpus) {
            return space;
        }
        let data = Pool::with_slots((cpus + OVERFLOW_IDS) as usize);
        let seats = || Pool::with_slots(cpus as usize);
        let space = Box::leak(Box::new(Self { cpus, seats: seats(), tasks: seats(), data }));
        spaces.push(space);
        space
    }

    pub(crate) fn seats(&self, policy: &dyn Policy) -> CpuSeats {
        // The pages of seats are shared with other tenants, and so is the list of them.
        unbilled(|| CpuSeats {
            cpus: PerCpu::in_pool(&self.seats),
            tasks: policy.has_task_seats().then(|| PerCpu::in_pool(&self.tasks)),
        })
    }
}

/// The seats of one tenant.
#[derive(Debug)]
pub(crate) struct CpuSeats {
    cpus: PerCpu<Seat>,
    /// Task `n`'s seat lies where CPU `n`'s would.
    tasks: Option<PerCpu<Seat>>,
}

impl Seats for CpuSeats {
    fn cpus(&self) -> u32 {
        self.cpus.slots() as u32
    }

    #[inline(always)]
    fn seat(&self, number: u32) -> &Seat {
        match self.cpus.get(CpuId(number)) {
            Some(seat) => seat,
            None => self.of_task(number),
        }
    }
}

impl CpuSeats {
    #[cold]
    fn of_task(&self, number: u32) -> &Seat {
        let task = number.checked_sub(self.cpus()).map(CpuId);
        let seat = self.tasks.as_ref().zip(task).and_then(|(tasks, task)| tasks.get(task));
        seat.unwrap_or_else(|| panic!("seat {number}, and there are {} CPU numbers", self.cpus()))
    }
}
