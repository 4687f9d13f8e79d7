//! Known: the meaning of a section's numbers, the numbers that are derived from them, and the defaults.
//!
//! A number that the simulator reads comes from the topology (the sizes of caches and of a line), is given in the
//! section, in one that it inherits from or in `[defaults]`, is derived from another number (a clock from another
//! clock, a latency from another latency, a time from a latency in cycles and the clock), or has a default for any
//! machine (`BY_CLASS`). Numbers whose default could be wrong by a factor have to be given or derived: the clock, the
//! latency of memory and, if the machine has them, the transfers from other L3s and other sockets and the latency of
//! another node's memory.
//!
//! For example, `l3_cycles = 52` at 3.7 GHz makes `llc_latency` 14 054 ps, which changes with both, unless
//! `llc_latency` or `l3_ns` is given.

use super::{Costs, CostsError, Fast, Number, Trust, file};
use std::collections::BTreeMap;
use warmcore_topo::Topology;

/// A number that is derived from another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Derived {
    pub(super) name: String,
    pub(super) from: String,
    /// Whether this is a time and the other number is in cycles.
    pub(super) in_cycles: bool,
}

/// Keys of a section that belong to the topology and are no costs.
const COUNTS: &[&str] = &[
    "sockets",
    "numa_nodes",
    "dies_per_socket",
    "l3_per_die",
    "l3_per_socket",
    "l3_per_ccd",
    "cores_per_l3",
    "cores",
    "smt",
    "cpus",
    "linux_llc_threads",
    "l1i_kib",
    "l3_kib",
    "mem_gib",
];

/// Defaults for any machine: name, value in thousandths of its unit, why.
const BY_CLASS: &[(&str, u64, &str)] = &[
    ("clock_mhz", 3_000_000, "a server's, between base and boost"),
    ("base_mhz", 2_400_000, "a server's"),
    ("line_bytes", 64_000, "all but POWER"),
    ("l1d_kib", 32_000, "the least of today's"),
    ("l2_kib", 1_024_000, "Zen 4's"),
    ("llc_kib", 32_768_000, "Zen 4's"),
    ("l1_cycles", 4_000, "Zen's"),
    ("l2_cycles", 14_000, "Zen's"),
    ("llc_latency", 15_000, "Zen 4's"),
    ("stream_resident_cycles_per_line", 5_000, "Zen 4's"),
    ("c2c_smt", 9_000, "as Zen 4's"),
    ("c2c_same_l3", 25_000, "as Zen's"),
    ("c2c_same_node", 105_000, "as Zen's, from one L3 to the next"),
    ("c2c_same_socket", 110_000, "as Zen's, from one L3 to the next"),
    ("c2c_other_socket", 195_000, "as Zen 4's"),
    ("dram_local", 110_000, "a server's"),
    ("dram_same_socket", 140_000, "a server's"),
    ("dram_remote", 200_000, "a server's"),
    ("csw_voluntary", 500_000, "as in [defaults]"),
    ("csw_involuntary", 1_000_000, "as in [defaults]"),
    ("ipi_idle_c1_wakeup", 1_500_000, "as in [defaults]"),
    ("mlp_read", 8_000, "as in [defaults]"),
    ("mlp_rmw_dirty_remote", 4_000, "as in [defaults]"),
    ("page_fault_cow_hot", 2_900_000, "as in [defaults]"),
    ("page_fault_cow_after_200ms_idle", 7_100_000, "as in [defaults]"),
    ("page_fault_anonymous", 1_500_000, "half of one that copies: it only clears"),
    ("tick", 1_000_000, "a timer interrupt that finds nothing to do"),
    ("smt_speed_percent", 62_000, "what a thread gets of a core whose other one runs: 1.24 together"),
    ("cstates.C1.exit", 1_000_000, "mwait"),
    ("cstates.C1.residency", 2_000_000, "mwait"),
];

impl Costs {
    /// The costs of the machine `name` of a machine file, such as [`warmcore_topo::MACHINES`].
    ///
    /// # Errors
    /// What [`Topology::from_machine`] refuses; a number that is missing and has no default, is negative, too large or
    /// NaN; another value than a number, if its key begins with `c2c_` or `dram_` or ends with `_cycles`; an idle state
    /// that is not a name and two numbers. An error about a number names the section and the key, and the line if the
    /// number is there.
    pub fn from_machine(text: &str, name: &str) -> Result<Self, CostsError> {
        let topology = Topology::from_machine(text, name).map_err(|e| {
            let text = e.to_string();
            let (location, fact) = text.split_once(": ").unwrap_or(("machine file", &text));
            CostsError::new(location, fact, "")
        })?;
        let section = file::read(text, name)?;
        Self::of_section(name, section, &topology)
    }

    /// The defaults (`BY_CLASS`), for a machine without a section. All are estimates, except the sizes of caches and of
    /// a line that `topology` has.
    pub fn of(topology: &Topology) -> Self {
        let machine = topology.model.clone().unwrap_or_else(|| topology.source.clone());
        let mut costs = Self::empty(machine);
        costs.complete(topology);
        costs
    }

    fn empty(machine: String) -> Self {
        let (numbers, fast) = (BTreeMap::new(), Fast::default());
        Self { machine, numbers, derived: Vec::new(), states: Vec::new(), fast }
    }

    fn of_section(name: &str, section: file::Section, topology: &Topology) -> Result<Self, CostsError> {
        let file::Section { numbers, states } = section;
        let mut costs = Self { numbers, states, ..Self::empty(name.to_owned()) };
        // A clock of 0 means that it is unknown.
        costs.numbers.retain(|key, number| number.milli > 0 || !key.ends_with("_mhz"));
        costs.alias("clock_mhz", &["effective_mhz", "max_mhz", "boost_mhz", "base_mhz"]);
        costs.alias("base_mhz", &["clock_mhz"]);
        costs.alias("c2c_same_node", &["c2c_same_die", "c2c_same_chip", "c2c_same_socket"]);
        costs.alias("c2c_same_socket", &["c2c_same_chip", "c2c_same_die"]);
        costs.alias("llc_latency", &["l3_ns"]);
        costs.time_from("llc_latency", "l3_cycles");
        costs.time_from("dram_local", "dram_cycles");
        costs.alias("dram_same_socket", &["dram_local"]);
        let (llcs, sockets, nodes) = (topology.llcs.len(), topology.sockets.len(), topology.nodes.len());
        let clocks = "`boost_mhz`, `max_mhz` or `base_mhz`";
        for (is_needed, number, keys, why) in [
            (true, "clock_mhz", clocks, "cycles are no time without it"),
            (true, "dram_local", "`dram_local`", "nothing else says how far its memory is"),
            (llcs > sockets, "c2c_same_socket", "`c2c_same_socket`", "a socket has several L3s"),
            (sockets > 1, "c2c_other_socket", "`c2c_other_socket`", "there are several sockets"),
            (nodes > 1, "dram_remote", "`dram_remote`", "there are several nodes"),
        ] {
            if is_needed && !costs.has(number) {
                let fact = format!("has no {keys}, and {why}");
                return Err(CostsError::new(format!("machine file [{name}]"), fact, "add it to the section"));
            }
        }
        // The numbers below are still missing only if the machine does not have their distance, so a simulation never
        // uses their values.
        costs.alias("c2c_same_node", &["c2c_same_l3"]);
        costs.alias("c2c_same_socket", &["c2c_same_node"]);
        costs.alias("c2c_other_socket", &["c2c_same_socket"]);
        costs.alias("dram_remote", &["dram_local"]);
        costs.complete(topology);
        Ok(costs)
    }

    fn has(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// If `name` is missing, derives it from the first of `others` that exists.
    fn alias(&mut self, name: &str, others: &[&str]) {
        if let Some(from) = others.iter().find(|other| self.has(other)) {
            self.follow(name, from, false);
        }
    }

    /// If `name` is missing, derives it from a number in cycles and the clock, if both exist.
    fn time_from(&mut self, name: &str, cycles: &str) {
        if self.has(cycles) && self.has("clock_mhz") {
            self.follow(name, cycles, true);
        }
    }

    fn follow(&mut self, name: &str, from: &str, in_cycles: bool) {
        if !self.has(name) {
            let derived = Derived { name: name.to_owned(), from: from.to_owned(), in_cycles };
            self.derive(&derived);
            self.derived.push(derived);
        }
    }

    pub(super) fn derive(&mut self, derived: &Derived) {
        let (from, clock) = (&self.numbers[&derived.from], self.numbers.get("clock_mhz"));
        let (milli, trust) = match clock.filter(|_| derived.in_cycles) {
            Some(clock) => (ratio(from.milli, 1_000_000, clock.milli), from.trust.max(clock.trust)),
            None => (from.milli, from.trust),
        };
        let basis = format!("{}: {}", derived.from, from.basis);
        self.numbers.insert(derived.name.clone(), Number { milli, trust, basis });
    }

    /// Sets the sizes that the topology has, adds the defaults that are missing, and removes the keys of the topology.
    fn complete(&mut self, topology: &Topology) {
        let sized = [
            ("l1d_kib", topology.cores.first().and_then(|core| core.l1d_kib)),
            ("l2_kib", topology.cores.first().and_then(|core| core.l2_kib)),
            ("llc_kib", topology.llcs.first().and_then(|llc| llc.size_kib)),
            ("line_bytes", Some(topology.line_bytes)),
        ];
        for (name, size) in sized {
            let Some(size) = size else { continue };
            let said = self.numbers.get(if name == "llc_kib" { "l3_kib" } else { name });
            let (trust, basis) =
                said.map_or((Trust::Measured, topology.source.clone()), |n| (n.trust, n.basis.clone()));
            let number = Number { milli: u64::from(size) * 1000, trust, basis };
            self.numbers.insert(name.to_owned(), number);
        }
        if self.states.is_empty() {
            self.states.push("C1".to_owned());
        }
        for (name, milli, why) in BY_CLASS {
            if !self.has(name) && (!name.starts_with("cstates") || self.states == ["C1"]) {
                let number =
                    Number { milli: *milli, trust: Trust::Estimated, basis: format!("not given; {why}") };
                self.numbers.insert((*name).to_owned(), number);
            }
        }
        self.numbers.retain(|name, _| !COUNTS.contains(&name.as_str()));
        self.settle();
    }
}

/// a × b / c, saturating.
pub(super) fn ratio(a: u64, b: u64, c: u64) -> u64 {
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c.max(1))).unwrap_or(u64::MAX)
}
