//! Costs: what a machine's operations cost, each number with its source.
//!
//! A section of a machine file gives numbers. A number that the section lacks comes from the section that it inherits
//! from, then from `[defaults]`, and last from a default for any machine (`costs/known.rs`), which is an estimate. A
//! missing number may also be derived from a given one, such as `clock_mhz` from `boost_mhz`: the derived number has a
//! name of its own, which the simulator reads, and changes with the given one. So a report can list both, and a
//! sensitivity run can scale either. Counts of sockets, caches and cores belong to the topology, from which the sizes
//! of caches and of a line come too. Times are integers in picoseconds.
//!
//! 2 × EPYC 9654: in a pass over data, a line in the own L1 or L2 takes 5 cycles at 3.7 GHz, 1351 ps; a line that
//! another socket wrote last takes 195 000 ps, and 4 of them overlap.
//!
//! # Source
//!
//! `crates/topo/machines.toml`, whose comments have tags for the trust in each number: see `costs/file.rs`.

use std::collections::BTreeMap;
use warmcore_topo::Distance;
use warmcore_types::Nanos;

mod file;
mod known;
#[cfg(test)]
mod tests;

pub use crate::error::Error as CostsError;
use known::{Derived, ratio};

/// How far to trust a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// The published report states it.
    Said,
    /// Measured data that were read.
    Measured,
    /// From documentation, or a mailing list.
    Documented,
    /// From well-known figures, not checked.
    Recalled,
    /// Estimated by analogy, or without a tag.
    Estimated,
}

impl Trust {
    /// Its letter in machine files.
    pub fn letter(self) -> char {
        match self {
            Self::Said => 'S',
            Self::Measured => 'M',
            Self::Documented => 'D',
            Self::Recalled => 'R',
            Self::Estimated => 'E',
        }
    }

    fn of(letter: char) -> Option<Self> {
        let all = [Self::Said, Self::Measured, Self::Documented, Self::Recalled, Self::Estimated];
        all.into_iter().find(|trust| trust.letter() == letter)
    }
}

/// A cost, in thousandths of its unit: 5.3 ns is 5300, so a time in ns is stored in picoseconds. The unit is in the
/// name (`_mhz`, `_kib`, `_cycles`, `_percent`), or else it is ns.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Number {
    /// Thousandths of the unit in its name, or of ns.
    pub milli: u64,
    /// How far to trust it.
    pub trust: Trust,
    /// What the file's comment says about it, or why the default was chosen, or where the topology is from. For a
    /// derived number, the name and the basis of the other one.
    pub basis: String,
}

/// An idle state of a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CState {
    /// Such as `C1`, `C1E`, `C2` or `C6`.
    pub name: String,
    /// How long it takes to leave it.
    pub exit: Nanos,
    /// The shortest stay for which a core enters this state.
    pub residency: Nanos,
    /// Whether the core's own caches are empty afterwards: in all states but C1 and C1E.
    pub flushes: bool,
}

/// Numbers that are read often: times in picoseconds, the others in thousandths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Fast {
    /// By [`Distance`].
    hand_over: [u64; 6],
    dram: [u64; 3],
    llc: u64,
    resident: u64,
    mlp_read: u64,
    mlp_rmw: u64,
    /// The usual clock divided by the base clock, in thousandths; at least 1000.
    slow_per_mille: u64,
    cstates: Vec<CState>,
}

/// The costs of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Costs {
    machine: String,
    numbers: BTreeMap<String, Number>,
    /// In the order in which they were derived.
    derived: Vec<Derived>,
    /// Names of idle states, the lightest first. Their numbers are called `cstates.C1.exit` and
    /// `cstates.C1.residency`.
    states: Vec<String>,
    fast: Fast,
}

impl Costs {
    /// Computes the numbers that are read often.
    fn settle(&mut self) {
        let ps = |name: &str| self.numbers[name].milli;
        let cycle_fs = 1_000_000_000_000 / ps("clock_mhz").max(1);
        let cycles = |name: &str| ratio(ps(name), cycle_fs, 1_000_000);
        let state = |name: &String| CState {
            name: name.clone(),
            exit: Nanos(ps(&format!("cstates.{name}.exit")) / 1000),
            residency: Nanos(ps(&format!("cstates.{name}.residency")) / 1000),
            flushes: !matches!(name.as_str(), "C1" | "C1E"),
        };
        self.fast = Fast {
            hand_over: [
                cycles("l1_cycles"),
                ps("c2c_smt"),
                ps("c2c_same_l3"),
                ps("c2c_same_node"),
                ps("c2c_same_socket"),
                ps("c2c_other_socket"),
            ],
            dram: [ps("dram_local"), ps("dram_same_socket"), ps("dram_remote")],
            llc: ps("llc_latency"),
            resident: cycles("stream_resident_cycles_per_line"),
            // At least one access at the same time.
            mlp_read: ps("mlp_read").max(1000),
            mlp_rmw: ps("mlp_rmw_dirty_remote").max(1000),
            slow_per_mille: ratio(ps("clock_mhz"), 1000, ps("base_mhz")).max(1000),
            cstates: self.states.iter().map(state).collect(),
        };
    }

    /// The machine's name.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// The same costs under another name of the machine.
    pub fn called(self, name: &str) -> Self {
        Self { machine: name.to_owned(), ..self }
    }

    /// All numbers, by name.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, &Number)> {
        self.numbers.iter().map(|(name, number)| (name.as_str(), number))
    }

    /// The numbers that are estimates.
    pub fn estimated(&self) -> impl Iterator<Item = (&str, &Number)> {
        self.numbers().filter(|(_, number)| number.trust == Trust::Estimated)
    }

    /// The number of this name.
    pub fn get(&self, name: &str) -> Option<&Number> {
        self.numbers.get(name)
    }

    /// A number in thousandths of its unit: for a time, picoseconds.
    ///
    /// # Panics
    /// If there is no number of this name. For names that only some files have, use [`get`](Self::get).
    pub fn ps(&self, name: &str) -> u64 {
        let number = self.numbers.get(name);
        number.unwrap_or_else(|| panic!("{}: no number is called {name:?}", self.machine)).milli
    }

    /// A time, rounded to whole ns. Panics as [`ps`](Self::ps) does.
    pub fn ns(&self, name: &str) -> Nanos {
        Nanos((self.ps(name) + 500) / 1000)
    }

    /// The same costs with one number multiplied by `per_mille` thousandths. Numbers derived from it change too.
    ///
    /// # Errors
    /// An unknown name.
    pub fn scaled(&self, name: &str, per_mille: u64) -> Result<Self, CostsError> {
        let number = self.numbers.get(name).ok_or_else(|| self.unknown(name))?;
        self.with(name, ratio(number.milli, per_mille, 1000))
    }

    /// The same costs with one number replaced, in thousandths. Numbers derived from it change too.
    ///
    /// # Errors
    /// An unknown name.
    pub fn with(&self, name: &str, milli: u64) -> Result<Self, CostsError> {
        let mut other = self.clone();
        let number = other.numbers.get_mut(name).ok_or_else(|| self.unknown(name))?;
        number.milli = milli;
        other.derived.retain(|derived| derived.name != name);
        for derived in other.derived.clone() {
            other.derive(&derived);
        }
        other.settle();
        Ok(other)
    }

    /// The same costs with one number replaced by a measured one, in thousandths. Numbers derived from it change too.
    ///
    /// # Errors
    /// An unknown name.
    pub fn measured(&self, name: &str, milli: u64, basis: &str) -> Result<Self, CostsError> {
        let mut other = self.with(name, milli)?;
        if let Some(number) = other.numbers.get_mut(name) {
            (number.trust, number.basis) = (Trust::Measured, basis.to_owned());
        }
        Ok(other)
    }

    /// The same costs, but each transfer of a line between CPUs costs as much as within an L3, and memory at each
    /// distance as much as that of the own node.
    pub fn with_equal_latencies(&self) -> Self {
        let mut other = self.clone();
        let (near, local) = (self.ps("c2c_same_l3"), self.ps("dram_local"));
        for (name, number) in &mut other.numbers {
            if name.starts_with("c2c_") {
                number.milli = near;
            } else if name.starts_with("dram_") && !name.ends_with("_cycles") {
                number.milli = local;
            }
        }
        other.settle();
        other
    }

    fn unknown(&self, name: &str) -> CostsError {
        let known: Vec<&str> = self.numbers.keys().map(String::as_str).collect();
        CostsError::new(
            &self.machine,
            format!("no number is called `{name}`"),
            format!("name one of {}", known.join(", ")),
        )
    }

    /// The transfer of a cache line from a CPU at this distance, in picoseconds. [`Distance::Same`]: from the core's
    /// own L1.
    #[inline]
    pub fn hand_over(&self, distance: Distance) -> u64 {
        self.fast.hand_over[distance as usize]
    }

    /// The transfer of a line from memory, in picoseconds: at [`Distance::Socket`] from the same socket, at
    /// [`Distance::Other`] from another socket, else from the core's own node.
    #[inline]
    pub fn dram(&self, distance: Distance) -> u64 {
        self.fast.dram[match distance {
            Distance::Socket => 1,
            Distance::Other => 2,
            _ => 0,
        }]
    }

    /// The latency of a line from the core's own L1, in picoseconds.
    #[inline]
    pub fn l1(&self) -> u64 {
        self.hand_over(Distance::Same)
    }

    /// The latency of a line from the core's own last-level cache, in picoseconds.
    #[inline]
    pub fn llc(&self) -> u64 {
        self.fast.llc
    }

    /// The cost of one line in a pass over data in the core's own L1 or L2, in picoseconds.
    #[inline]
    pub fn resident(&self) -> u64 {
        self.fast.resident
    }

    /// The cost of one line in a pass over lines of this latency, several of which overlap. Never less than
    /// [`resident`](Self::resident).
    #[inline]
    pub fn read_overlapped(&self, latency: u64) -> u64 {
        ratio(latency, 1000, self.fast.mlp_read).max(self.fast.resident)
    }

    /// As [`read_overlapped`](Self::read_overlapped), for lines that the pass writes, and whose other copies it
    /// invalidates.
    #[inline]
    pub fn taken_overlapped(&self, latency: u64) -> u64 {
        ratio(latency, 1000, self.fast.mlp_rmw).max(self.fast.resident)
    }

    /// Converts a time at the usual clock to the base clock, at which a core runs at first after a deep idle state.
    #[inline]
    pub fn at_base_clock(&self, ps: u64) -> u64 {
        ratio(ps, self.fast.slow_per_mille, 1000)
    }

    /// The idle states of a core, the lightest first.
    pub fn cstates(&self) -> &[CState] {
        &self.fast.cstates
    }

    /// The idle state of a core that is idle for this long, if the kernel predicted it. `None`: too short for any.
    pub fn cstate_after(&self, idle: Nanos) -> Option<&CState> {
        self.fast.cstates.iter().rev().find(|state| idle >= state.residency)
    }
}
