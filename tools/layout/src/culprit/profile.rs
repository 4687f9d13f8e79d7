//! Profile: who touches which fields, how often.
//!
//! Model.   TOML or JSON. Each entry is a field, or a named part of one, how often its CPUs read and write it in a
//!          second, and which CPUs: all, the first so many, or a list. `rates` says once for all entries whether
//!          the numbers are each CPU's or of all CPUs together: nothing is taken for either. Several entries
//!          may name one field. What `perf` printed is read by `culprit/perf.rs`.
//! Number.  hackbench on 224 CPUs: two entries.

use crate::{Layout, LayoutError};
use serde::{Deserialize, Serialize};
use warmcore_topo::Topology;
use warmcore_types::CpuSet;

/// Who touches the fields of a struct.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// What runs: `hackbench`.
    #[serde(default)]
    pub workload: String,
    /// The struct.
    #[serde(rename = "struct")]
    pub name: String,
    /// The machine of the machine file.
    pub machine: Option<String>,
    /// Whether aligned pairs of lines travel together, as where adjacent lines are prefetched.
    #[serde(default)]
    pub pair: bool,
    /// Whether the rates are each CPU's, or of an entry's CPUs together.
    pub rates: Per,
    /// Who touches what.
    pub access: Vec<Touch>,
}

/// What a profile's rates count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Per {
    /// Each of an entry's CPUs touches the field so often.
    PerCpu,
    /// All of an entry's CPUs together do, each as often as any other.
    Total,
}

/// How often some CPUs touch a field.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Touch {
    /// The field, or a named part of one: `mmap_lock.owner`.
    pub field: String,
    /// Reads in a second, counted as [`Profile::rates`] says.
    #[serde(default)]
    pub reads_per_s: f64,
    /// Writes in a second, counted so too.
    #[serde(default)]
    pub writes_per_s: f64,
    /// Which CPUs. All, if it is not there.
    #[serde(default)]
    pub cpus: Cpus,
}

/// Which CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cpus {
    /// Every one.
    #[default]
    All,
    /// The first so many, by number.
    First(u32),
    /// Those: `0-7,64`.
    List(String),
}

impl Profile {
    /// From TOML, or JSON if it begins with `{`.
    ///
    /// # Errors
    ///
    /// Text that is neither, or lacks something.
    pub fn parse(text: &str, location: &str) -> Result<Self, LayoutError> {
        let read = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|e| e.to_string())
        } else {
            toml::from_str(text).map_err(|e| e.to_string().trim().replace('\n', " "))
        };
        read.map_err(|why| {
            let next = "a profile has `struct`, `rates` (\"per_cpu\" or \"total\") and entries `[[access]]` with \
                        `field`, `reads_per_s`, `writes_per_s` and `cpus`";
            LayoutError::new(location, why, next)
        })
    }

    /// How often each of so many CPUs reads and writes.
    pub(super) fn each(&self, touch: &Touch, cpus: usize) -> (f64, f64) {
        let cpus = match self.rates {
            Per::PerCpu => 1.0,
            Per::Total => cpus.max(1) as f64,
        };
        (touch.reads_per_s / cpus, touch.writes_per_s / cpus)
    }

    /// Whether all that it says can be: its fields are in the layout, its CPUs on the machine, its numbers numbers.
    ///
    /// # Errors
    ///
    /// What cannot be, with the entry's number.
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
    /// Which they are on that machine.
    ///
    /// # Errors
    ///
    /// CPUs that it does not have, or none.
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
