//! Tasks that never sleep.

use super::Done;
use super::clock::{Around, cpu_ns, now_ns, spin};
use super::process::Process;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::time::Duration;

/// Tasks that never sleep, and one beside them that mostly does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hogs {
    /// How many for each of `nice`, in turn.
    pub hogs: usize,
    /// For how long, in ms.
    pub ms: u64,
    /// Their nice values: hog `i` has `nice[i % nice.len()]`. Empty: 0.
    #[serde(default)]
    pub nice: Vec<i32>,
    /// How long the other task runs. 0: there is none.
    #[serde(default)]
    pub interactive_run_us: u64,
    /// How long it sleeps then.
    #[serde(default)]
    pub interactive_sleep_us: u64,
}

/// So long before they begin the hogs are told when.
const WAKE_NS: u64 = 20_000_000;

/// The kernel's weight of each nice value from 0 to 19: `sched_prio_to_weight` of kernel/sched/core.c.
const WEIGHTS: [u64; 20] =
    [1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23, 18, 15];

impl Hogs {
    /// For as long as it says. `shares_us` is the CPU time of each hog, as if all had the weight of nice 0.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        // All begin at once, after each has been started, and end at once. Each reads the time of the begin while the machine
        // idles: a reader of the pipe wakes the next one, and behind one that runs already that would take a slice.
        let (begin, began) = std::io::pipe()?;
        let mut tasks = Vec::new();
        for hog in 0..self.hogs {
            let nice = self.nice.get(hog % self.nice.len().max(1)).copied().unwrap_or(0);
            let mut begin = begin.try_clone()?;
            tasks.push(Process::spawn(&format!("hog{hog}"), || {
                rustix::process::setpriority_process(None, nice)?;
                let mut at = [0; 8];
                begin.read_exact(&mut at)?;
                let at = u64::from_le_bytes(at);
                std::thread::sleep(Duration::from_nanos(at.saturating_sub(now_ns())));
                let (end, before) = (at + self.ms * 1_000_000, cpu_ns());
                while now_ns() < end {
                    spin();
                }
                let weight = WEIGHTS[nice.clamp(0, 19) as usize];
                Ok((cpu_ns() - before) / 1000 * WEIGHTS[0] / weight)
            })?);
        }
        let interactive = (self.interactive_run_us > 0).then(|| {
            let mut around = Around::of(seed, 0);
            Process::spawn("interactive", || {
                loop {
                    around.sleep(self.interactive_sleep_us);
                    around.run(self.interactive_run_us);
                }
            })
        });
        let interactive = interactive.transpose()?;
        let at = now_ns() + WAKE_NS;
        (&began).write_all(&at.to_le_bytes().repeat(self.hogs))?;
        let shares_us = tasks.into_iter().map(Process::join).collect::<anyhow::Result<Vec<u64>>>()?;
        interactive.map(Process::kill).transpose()?;
        let hogs = self.hogs as u64;
        Ok(Done { done: hogs, of: hogs, shares_us, ..Done::default() })
    }
}
