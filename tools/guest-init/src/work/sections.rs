//! Short sections, as under a lock, with a longer time slice and without.
//!
//! Whether a thread lost its CPU inside of a section is counted exactly, and without a system call: before the section the thread
//! writes the address of a descriptor to its rseq area, as a restartable section does, and the kernel clears that word when the thread
//! was scheduled out.

use super::Done;
use super::clock::{Around, spin};
use anyhow::Context;
use rustix::mount::{MountFlags, mount};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use warmcore_sys::rseq::{self, PercpuMode, RseqArea, section::add_strided};
use warmcore_sys::slice;

/// Threads with sections, beside threads that compute. All share few CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sections {
    /// Threads with sections.
    pub threads: u64,
    /// Threads that compute.
    pub hogs: u64,
    /// CPUs for all of them.
    pub cpus: usize,
    /// Sections of each thread, once without longer slices and once with them.
    pub rounds: u64,
    /// How long a section is: so many times 1500 instructions.
    pub section: u64,
    /// How long the thread computes before a section, in the mean.
    pub between: u64,
    /// How long an extension is. 0: as the kernel has it, which is 5.
    #[serde(default)]
    pub extension_us: u64,
}

/// What the threads counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SectionCounts {
    /// Why no time slice could be extended. `None`: some could.
    pub refused: Option<String>,
    /// Sections in each of the two turns.
    pub sections: u64,
    /// Sections without longer slices in which the thread lost its CPU.
    pub preempted_without: u64,
    /// Sections with longer slices in which the thread lost its CPU.
    pub preempted_with: u64,
    /// Extensions that were returned in time.
    pub yields: u64,
    /// What the kernel counted meanwhile, if it has `CONFIG_RSEQ_STATS`: `sgrant`, `syield`, `sexpir` and others.
    pub kernel: BTreeMap<String, u64>,
}

impl fmt::Display for SectionCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sections, preempted_without, preempted_with, yields, .. } = self;
        write!(f, "of {sections} sections {preempted_without} lost their CPU; ")?;
        match &self.refused {
            Some(why) => write!(f, "again {preempted_with}, because {why}"),
            None => write!(
                f,
                "with longer slices {preempted_with}, and {yields} extensions were returned in time; the kernel counted {:?}",
                self.kernel
            ),
        }
    }
}

const DEBUGFS: &str = "/sys/kernel/debug";

impl Sections {
    /// Until all sections were run, without longer slices and then with them.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let refused = slice::enable_thread().err().map(|error| error.to_string());
        const TUNABLES: &str = "GLIBC_TUNABLES";
        if refused.is_some() && std::env::var_os(TUNABLES).is_none() {
            // This program's glibc may be too old. It reads the variable when the program starts.
            let mut again = Command::new("/proc/self/exe");
            again.args(std::env::args_os().skip(1)).env(TUNABLES, "glibc.pthread.rseq=0");
            return Err(again.exec()).context("can't start this program again");
        }
        _ = mount("debugfs", DEBUGFS, "debugfs", MountFlags::empty(), None);
        if self.extension_us > 0 && refused.is_none() {
            let ns = (self.extension_us * 1000).to_string();
            std::fs::write(format!("{DEBUGFS}/rseq/slice_ext_nsec"), ns).with_context(|| {
                format!(
                    "can't set the length of an extension to {} µs; the kernel takes 5 to 50",
                    self.extension_us
                )
            })?;
        }
        let mut cpus = CpuSet::new();
        (0..self.cpus).for_each(|cpu| cpus.set(cpu));
        sched_setaffinity(None, &cpus)?;
        let preempted_without = self.turn(seed, false)?;
        let before = kernel_counts();
        let preempted_with = self.turn(seed, true)?;
        let mut kernel = kernel_counts();
        kernel.iter_mut().for_each(|(name, count)| *count -= before.get(name).unwrap_or(&0));
        let (sections, yields) = (self.threads * self.rounds, slice::yields());
        let counts = SectionCounts { refused, sections, preempted_without, preempted_with, yields, kernel };
        Ok(Done { done: 2 * sections, of: 2 * sections, sections: Some(counts), ..Done::default() })
    }

    /// Returns in how many sections a thread lost its CPU.
    fn turn(&self, seed: u64, asks: bool) -> anyhow::Result<u64> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..self.hogs {
                scope.spawn(|| {
                    while !is_over.load(Relaxed) {
                        spin();
                    }
                });
            }
            let threads = (0..self.threads).map(|thread| {
                let mut around = Around::of(seed, thread);
                scope.spawn(move || self.thread(&mut around, asks))
            });
            let threads: Vec<_> = threads.collect();
            let preempted = threads.into_iter().map(|thread| {
                thread.join().map_err(|_| anyhow::anyhow!("a thread with sections panicked"))?
            });
            let preempted = preempted.sum();
            is_over.store(true, Relaxed);
            preempted
        })
    }

    fn thread(&self, around: &mut Around, asks: bool) -> anyhow::Result<u64> {
        // `run` has already said why there are no extensions.
        _ = slice::enable_thread();
        rseq::register_thread();
        let area = RseqArea::lookup(PercpuMode::Cpu).context("this thread has no rseq area")?;
        let (mut word, mut preempted) = (0_u64, 0);
        for _ in 0..self.rounds {
            (0..around.us(self.between)).for_each(|_| spin());
            // SAFETY: with a stride of 0 it is one word for all CPUs, of this thread only. An aborted add arms nothing, so that the section
            // would count as one that lost its CPU.
            while !unsafe { add_strided(area, (&raw mut word).cast(), 0, 1) } {}
            let section = asks.then(slice::ask);
            (0..self.section).for_each(|_| spin());
            preempted += u64::from(!area.is_armed());
            drop(section);
        }
        Ok(preempted)
    }
}

/// The kernel's counts of extensions. Empty: it has none.
fn kernel_counts() -> BTreeMap<String, u64> {
    let text = std::fs::read_to_string(Path::new(DEBUGFS).join("rseq/stats")).unwrap_or_default();
    let counts = text.lines().filter_map(|line| line.split_once(':'));
    let extensions =
        counts.filter(|(name, _)| ["sgrant", "sexpir", "srevok", "syield", "sabort"].contains(name));
    extensions.filter_map(|(name, count)| Some((name.to_owned(), count.trim().parse().ok()?))).collect()
}
