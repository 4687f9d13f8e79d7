//! Profile: which CPUs touch which fields, how often.
//!
//! A profile is TOML or JSON. Each entry has a field, or a named part of one, its reads and writes per second, and
//! the CPUs: all, the first ones, or a list. `rates` states for all entries whether these numbers are per CPU or the
//! total of an entry's CPUs; there is no default. Several entries may name one field. `culprit/perf.rs` reads the
//! output of `perf`.

use crate::declared::parse;
use crate::{Layout, LayoutError};
use serde::{Deserialize, Serialize};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet};

/// How often which CPUs touch the fields of a struct.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What runs: `hackbench`.
    #[serde(default)]
    pub workload: String,
    /// The struct.
    #[serde(rename = "struct")]
    pub name: String,
    /// The machine, by its name in `crates/topo/machines.toml`, or as `--machine` takes it.
    pub machine: Option<String>,
    /// Whether aligned pairs of lines are transferred together, as with a prefetcher of adjacent lines.
    #[serde(default)]
    pub pair: bool,
    /// Whether the rates are per CPU, or totals of an entry's CPUs.
    pub rates: Per,
    /// The touches.
    pub access: Vec<Touch>,
}

/// What a profile's rates count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// The touches by each of an entry's CPUs.
    PerCpu,
    /// The touches by all of an entry's CPUs together. Each of these CPUs has an equal part.
    Total,
}

/// How often some CPUs touch a field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touch {
    /// The field, or a named part of one: `mmap_lock.owner`.
    pub field: String,
    /// Reads per second: per CPU or in total, see [`Profile::rates`].
    #[serde(default)]
    pub reads_per_s: f64,
    /// Writes per second, likewise.
    #[serde(default)]
    pub writes_per_s: f64,
    /// The CPUs that touch it; all by default.
    #[serde(default)]
    pub cpus: Cpus,
}

/// A set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cpus {
    /// All online CPUs.
    #[default]
    All,
    /// This many CPUs, the online ones of the lowest numbers.
    First(u32),
    /// A list: `0-7,64`.
    List(String),
}

/// A field's name, a CPU that touches it, and that CPU's reads and writes per second.
type TouchByCpu<'a> = (&'a str, CpuId, (f64, f64));

impl Profile {
    /// Parses TOML, or JSON if the text begins with `{`.
    ///
    /// # Errors
    ///
    /// Text that is neither TOML nor JSON, lacks a required key, or has an unknown one.
    pub fn parse(text: &str, location: &str) -> Result<Self, LayoutError> {
        let next = "a profile has `struct`, `rates` (\"per_cpu\" or \"total\") and entries `[[access]]` with \
                    `field`, `reads_per_s`, `writes_per_s` and `cpus`";
        parse(text, location, next)
    }

    /// The touches, entry by entry and CPU by CPU, with the rates per CPU.
    pub(super) fn by_cpu(&self, topology: &Topology) -> Result<Vec<TouchByCpu<'_>>, LayoutError> {
        let mut all = Vec::new();
        for Touch { field, reads_per_s, writes_per_s, cpus } in &self.access {
            let cpus = cpus.on(topology, "profile")?;
            let parts = match self.rates {
                Per::PerCpu => 1.0,
                Per::Total => cpus.len().max(1) as f64,
            };
            let each = (reads_per_s / parts, writes_per_s / parts);
            all.extend(cpus.iter().map(|cpu| (field.as_str(), cpu, each)));
        }
        Ok(all)
    }

    /// Bytes that are transferred together: a line, or a pair of lines.
    pub(super) fn unit(&self, topology: &Topology) -> usize {
        topology.line_bytes as usize * if self.pair { 2 } else { 1 }
    }

    /// Checks that the profile has entries and is of the layout's struct; and of each entry that its field is in the
    /// layout, its CPUs are online on the machine, and its rates are from 0 to 10⁹.
    ///
    /// # Errors
    ///
    /// A profile without entries or of another struct; otherwise the first entry that is wrong, with its number.
    pub fn check(&self, layout: &Layout, topology: &Topology) -> Result<(), LayoutError> {
        if self.access.is_empty() {
            let next = "add an [[access]]";
            return Err(LayoutError::new(format!("profile of {}", self.name), "says nothing", next));
        }
        if self.name != layout.name && !layout.name.ends_with(&format!("::{}", self.name)) {
            let fact = format!("is of struct {}, and the layout of {}", self.name, layout.name);
            return Err(LayoutError::new("profile", fact, "give the two of one struct"));
        }
        for (number, access) in self.access.iter().enumerate() {
            let location = format!("profile of {}, access {} ({})", self.name, number + 1, access.field);
            layout
                .byte_range(&access.field)
                .map_err(|e| LayoutError::new(&location, e.to_string(), "mend `field`"))?;
            for (what, rate) in [("reads_per_s", access.reads_per_s), ("writes_per_s", access.writes_per_s)] {
                if !rate.is_finite() || !(0.0..=1e9).contains(&rate) {
                    let fact = format!("{what} = {rate}");
                    return Err(LayoutError::new(&location, fact, "give a number from 0 to 1e9"));
                }
            }
            access.cpus.on(topology, &location)?;
        }
        Ok(())
    }
}

impl Cpus {
    /// The CPUs that `self` names, on the machine of `topology`. `location` is for the text of an error.
    ///
    /// # Errors
    ///
    /// A list that is not in the kernel's format; CPUs that are not online on that machine; no CPU at all.
    pub fn on(&self, topology: &Topology, location: &str) -> Result<CpuSet, LayoutError> {
        let online = topology.online();
        let (asked, is_there) = match self {
            Self::All => return Ok(online),
            Self::First(count) => {
                let first: CpuSet = online.iter().take(*count as usize).collect();
                (count.to_string(), (first.len() == *count as usize).then_some(first))
            }
            Self::List(list) => {
                let set = CpuSet::parse_list(list).map_err(|e| {
                    LayoutError::new(location, format!("cpus = {list:?}: {e}"), "write them as 0-7,64")
                })?;
                (list.clone(), set.is_subset(&online).then_some(set))
            }
        };
        is_there.filter(|set| !set.is_empty()).ok_or_else(|| {
            let fact = format!("cpus = {asked}, and {} has CPUs {online}", topology.source);
            LayoutError::new(location, fact, "name at least one, and only those")
        })
    }
}
