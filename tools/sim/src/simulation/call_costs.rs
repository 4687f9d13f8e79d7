//! CallCosts: how long a runtime's scheduler takes for its own work, besides the transfer of cache lines.
//!
//! All are 0 unless they are set: they differ between processors, so they come from a probe on the processor that is to be
//! simulated, and never from the measurements with which a simulation is compared.
//!
//! What an unpark costs depends on how long the worker has slept ([`ByIdle`]): only after some time its CPU is in a deep
//! idle state, or, if the CPU is virtual, not scheduled.

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
    pub unpark: ByIdle,
    /// What unparking a worker takes the waker if the worker is still on its way to sleep.
    pub unpark_awake: u64,
    /// The part by which each park, unpark and latency varies, in percent: a machine repeats none exactly.
    pub unpark_jitter: u32,
    /// From an unpark to the parked worker's first instruction. 0: as long as the machine takes for an interrupt and for
    /// leaving the idle state.
    pub unpark_latency: ByIdle,
    /// Going to sleep, after the search.
    pub park: u64,
    /// A search for tasks, without the lines that it reads.
    pub search: u64,
    /// A poll of the driver that does not wait.
    pub maintain: u64,
    /// What the driver takes for each socket or timer that is ready, besides the wake.
    pub event: u64,
    /// Making a task.
    pub spawn: u64,
    /// What a send takes more if the channel's last message was received on another CPU.
    pub send_moved: u64,
    /// What a receive takes more if the message was sent on another CPU.
    pub receive_moved: u64,
}

/// A time that depends on for how long a worker was idle before: known for some idle times, and linear between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ByIdle(pub [(u64, u64); 5]);

impl ByIdle {
    /// The time, in ns, after this many ns of idleness. Below the first known idle time it is that of the first, above the
    /// last that of the last.
    pub fn after(self, idle: u64) -> u64 {
        let mut before = self.0[0];
        for known in self.0 {
            if idle < known.0 {
                let (ns, to, width) = (before.1 as i64, known.1 as i64, (known.0 - before.0).max(1) as i64);
                return (ns + (to - ns) * idle.saturating_sub(before.0) as i64 / width) as u64;
            }
            before = known;
        }
        before.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_linear_between_known_idle_times() {
        let by_idle = ByIdle([(2, 100), (10, 900), (50, 500), (300, 500), (2000, 7000)]);
        let times = [0, 2, 6, 10, 30, 100, 2000, 9000].map(|idle| by_idle.after(idle));
        assert_eq!(times, [100, 100, 500, 900, 700, 500, 7000, 7000]);
    }
}
