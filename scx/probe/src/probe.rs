//! The loaded BPF program: attached to the tracepoints from [`Probe::load`] on, it counts between [`Probe::start`] and
//! [`Probe::stop`].
//!
//! It follows the states of tasks also while it does not count, so that a task that slept before the start is known to
//! sleep. A probe may count several times; each start begins at 0.

use crate::bpf::types::{probe_counts, probe_integrals};
use crate::bpf::{ProbeSkel, ProbeSkelBuilder};
use crate::counts::{Machine, Outcome, Report, SLICE_NS};
use crate::group::Group;
use anyhow::{Context, Result, anyhow, ensure};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{OpenObject, ProgramInput, ProgramMut};
use std::mem::MaybeUninit;
use warmcore_topo::Topology;
use warmcore_types::CpuSet;

/// Memory for a loaded BPF program, from which a [`Probe`] borrows.
pub type Storage = MaybeUninit<OpenObject>;

/// A loaded and attached probe. Dropping it detaches and unloads the program.
pub struct Probe<'a> {
    skel: ProbeSkel<'a>,
    machine: Machine,
    groups: Vec<Group>,
}

/// What was counted between a start and a stop.
pub struct Counted {
    counts: Vec<probe_counts>,
    longest_ns: Vec<u64>,
    time: probe_integrals,
    machine: Machine,
    groups: Vec<Group>,
}

impl<'a> Probe<'a> {
    /// Loads the program and attaches it to the tracepoints. Needs root, or CAP_BPF and CAP_PERFMON.
    ///
    /// # Errors
    /// Returns an error if the machine has more CPUs or last-level caches than the program supports, if more than four
    /// groups are given or two have one name, or if the kernel refuses the program.
    pub fn load(storage: &'a mut Storage, topology: &Topology, groups: &[Group]) -> Result<Self> {
        let builder = ProbeSkelBuilder::default();
        let mut open = builder.open(storage).context("the BPF object inside this binary cannot be read")?;
        let rodata = open.maps.rodata_data.as_deref_mut().context("the BPF object has no .rodata")?;

        let nr_cpu_ids = topology.online().last().map_or(0, |cpu| cpu.index() + 1);
        let (max_cpus, max_llcs) = (rodata.cpu_llc.len(), rodata.llc_cpus.len());
        ensure!(
            nr_cpu_ids <= max_cpus && topology.llcs.len() <= max_llcs,
            "the machine has CPU numbers up to {} and {} last-level caches, but the probe supports {max_cpus} CPUs and \
             {max_llcs} caches: raise MAX_CPUS and MAX_LLCS in src/bpf/interface.h",
            nr_cpu_ids.saturating_sub(1),
            topology.llcs.len(),
        );
        ensure!(
            groups.len() <= rodata.group_names.len(),
            "{} groups are given, but the probe counts at most {}: leave some out",
            groups.len(),
            rodata.group_names.len(),
        );
        for (i, group) in groups.iter().enumerate() {
            ensure!(
                groups[..i].iter().all(|other| other.name != group.name),
                "two groups have the name {:?}, but each is a key of the report: rename one",
                group.name,
            );
        }
        rodata.nr_cpu_ids = nr_cpu_ids as u32;
        rodata.probe_tgid = std::process::id();
        rodata.slice_ns = SLICE_NS;
        rodata.nr_groups = groups.len() as u32;
        rodata.online_cpus = words(&topology.online());
        for cpu in &topology.cpus {
            rodata.cpu_llc[cpu.id.index()] = cpu.llc.index() as u32;
        }
        for llc in &topology.llcs {
            rodata.llc_cpus[llc.id.index()] = words(&llc.cpus);
        }
        for (slot, group) in rodata.group_names.iter_mut().zip(groups) {
            (slot.name, slot.mask) = group.words();
        }

        let mut skel = open.load().context(
            "the kernel refused the probe: it needs a kernel with BTF (/sys/kernel/btf/vmlinux), and the rights of root \
             or CAP_BPF and CAP_PERFMON; it was run on Linux 6.18 to 7.3",
        )?;
        skel.attach()
            .context("the probe cannot be attached to the scheduler's tracepoints: CAP_PERFMON is needed")?;
        let machine = Machine { cpus: topology.cpus.len() as u32, llcs: topology.llcs.len() as u32 };
        Ok(Self { skel, machine, groups: groups.to_vec() })
    }

    /// Sets all counts to 0 and starts to count.
    ///
    /// # Errors
    /// Returns an error if the kernel does not run the program's `start`.
    pub fn start(&mut self) -> Result<()> {
        let bss = self.skel.maps.bss_data.as_deref_mut().context("the BPF object has no .bss")?;
        bss.counts.fill_with(Default::default);
        bss.longest_ns.fill(0);
        run(&mut self.skel.progs.start)
    }

    /// Stops to count and returns what was counted since [`Probe::start`].
    ///
    /// # Errors
    /// Returns an error if the kernel does not run the program's `stop`.
    pub fn stop(&mut self) -> Result<Counted> {
        run(&mut self.skel.progs.stop)?;
        let bss = self.skel.maps.bss_data.as_deref().context("the BPF object has no .bss")?;
        Ok(Counted {
            counts: bss.counts.to_vec(),
            longest_ns: bss.longest_ns.to_vec(),
            time: bss.integrals,
            machine: self.machine,
            groups: self.groups.clone(),
        })
    }
}

impl Counted {
    /// Returns the report of a command that ended so.
    pub fn report(&self, outcome: Outcome) -> Report {
        Report::sum(&self.counts, &self.longest_ns, &self.time, self.machine, &self.groups, outcome)
    }
}

/// Runs a program of type `syscall` once on this CPU.
fn run(program: &mut ProgramMut<'_>) -> Result<()> {
    let name = program.name().to_string_lossy().into_owned();
    let output = program
        .test_run(ProgramInput::default())
        .with_context(|| format!("the kernel did not run `{name}`"))?;
    match output.return_value {
        0 => Ok(()),
        code => Err(anyhow!("`{name}` of the BPF program returned {code}, expected 0: its map has no entry")),
    }
}

/// Returns the bitmap of a set whose members are below `64 * N`.
fn words<const N: usize>(cpus: &CpuSet) -> [u64; N] {
    std::array::from_fn(|i| cpus.words().get(i).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_has_cpu_64_in_its_second_word() {
        assert_eq!(words(&CpuSet::parse_list("0,3,64,511").unwrap()), [9, 1, 0, 0, 0, 0, 0, 1 << 63]);
        assert_eq!(words(&CpuSet::new()), [0; 8]);
    }
}
