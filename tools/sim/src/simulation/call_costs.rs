//! CallCosts: how long a runtime's scheduler takes for its own work, besides the transfer of cache lines.
//!
//! All are 0 unless they are set: they differ between processors, so they come from a probe on the processor that is to be
//! simulated, and never from the measurements with which a simulation is compared.

/// How long a runtime's scheduler takes for its own work, in ns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallCosts {
    /// A poll of a task that does nothing: choosing it, and what is done before and after it.
    pub poll: u64,
    /// A wake of a task, by a task or the driver of a worker.
    pub wake: u64,
    /// What a wake takes more if the task goes to another worker or into an injection queue, without the transfer of the
    /// line.
    pub push: u64,
    /// What unparking a worker takes the waker.
    pub unpark: u64,
    /// From an unpark to the parked worker's first instruction. 0: as long as the machine takes for an interrupt and for
    /// leaving the idle state.
    pub unpark_latency: u64,
    /// Going to sleep, after the search.
    pub park: u64,
    /// A search for tasks, without the lines that it reads.
    pub search: u64,
    /// A poll of the driver that does not wait.
    pub maintain: u64,
    /// Making a task.
    pub spawn: u64,
}
