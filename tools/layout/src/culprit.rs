//! Culprit: which field of a struct makes reads of another field miss in the cache, at what cost, and the cheapest
//! layout that avoids it.
//!
//! The layout lists the fields of each line; the profile lists how often each CPU reads and writes each field. A read
//! hits in the core's own cache, or, if another core has written the line since its core's last touch, takes the time
//! to transfer the line; in addition it may wait for a transfer to another core. A field *suffers* if its reads or its
//! writes cost more than on a line that has only this field, by more than 5 % and more than 0.5 ns. Culprits of its
//! reads are the other fields of its lines that other cores write; culprits of its writes are those that other cores
//! write or read. Each has its share of the invalidations. If the same cores read and write a lock and its data at the
//! same rates, the lock does not change how often a touch of the data misses. A culprit may be before or after the
//! field in the line.
//!
//! In the kernel's `mm_struct` of April 2023, `mm_count` is at byte 88 and `pcpu_cid` at byte 96. On 224 CPUs of 112
//! cores, at the rates of `fixtures/sim/hackbench.toml`, 96 of 100 reads of `pcpu_cid` get the line from another core.
//! Padding after `pcpu_cid` changes nothing, because `mm_count` is before it.
//!
//! # Source
//!
//! linux-kernel, May 2023, "mm: Move mm_count into its own cache line". `culprit/rates.rs` has the formulas.

mod perf;
mod profile;
mod rates;
mod relayout;
mod report;
mod simulate;
#[cfg(test)]
mod tests;

pub use perf::{Base, from_perf, is_perf};
pub use profile::{Cpus, Per, Profile, Touch};
pub use relayout::{Relayout, RelayoutKind, relayouts};
pub use simulate::{Seen, simulate};

use crate::{Layout, LayoutError};
use rates::{Cores, Cost, Rates, Solved};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use warmcore_line::{Access, FieldLine, Group};
use warmcore_sim::machine::SimMachine;

/// A field suffers if a touch costs more than on a line of its own, by more than this share.
const SUFFERS_SHARE: f64 = 0.05;
/// A field suffers only if the difference is also more than this many ns.
const SUFFERS_NS: f64 = 0.5;
/// A field with a smaller share of the invalidations is not listed as a culprit.
const BLAME_SHARE: f64 = 0.05;
/// A line that is in transfer to a writer for a larger share of the time is close to saturation, where waiting times
/// grow without bound.
const BUSY: f64 = 0.5;

/// What the touches of a profile cost in a layout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The fields that the profile names, by offset and size.
    pub fields: Vec<FieldCost>,
    /// The cost of all touches of all fields, in ns per second.
    pub ns_per_s: f64,
    /// The part of this cost that the touches would not have if each field were on lines of its own.
    pub excess_ns_per_s: f64,
    /// Lines that are in transfer to a writer for more than half of the time: (the line's number, that share, at most
    /// 0.95).
    pub busy: Vec<(usize, f64)>,
    /// Bytes that are transferred together: a line, or a pair of lines.
    pub unit: usize,
}

/// A field, and what its touches cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldCost {
    /// Its name in the profile.
    pub name: String,
    /// Its first byte.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
    /// Reads by all cores per second.
    pub reads_per_s: f64,
    /// Writes by all cores per second.
    pub writes_per_s: f64,
    /// Cores that read it.
    pub readers: usize,
    /// Cores that write it.
    pub writers: usize,
    /// The cost of a read in ns; 0 if there are no reads.
    pub read_ns: f64,
    /// The cost of a read in ns if the field had lines of its own; 0 if there are no reads.
    pub read_alone_ns: f64,
    /// The cost of a write in ns; 0 if there are no writes.
    pub write_ns: f64,
    /// The cost of a write in ns if the field had lines of its own; 0 if there are no writes.
    pub write_alone_ns: f64,
    /// The fields that make its reads cost more than on a line of its own, the worst first. Empty if its reads do not
    /// suffer.
    pub blame: Vec<Blame>,
    /// The fields that make its writes cost more, the worst first. Reads of other fields delay writes too.
    pub write_blame: Vec<Blame>,
}

impl FieldCost {
    /// Whether its reads or its writes suffer from another field.
    pub fn suffers(&self) -> bool {
        !self.blame.is_empty() || !self.write_blame.is_empty()
    }
}

/// A field from which another one suffers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Blame {
    /// Its name in the profile.
    pub field: String,
    /// Its position relative to the field that suffers.
    pub stands: Stands,
    /// Its share of the invalidations by touches of the other fields on the lines of the field that suffers. A core's
    /// own touches do not count for that core.
    pub share: f64,
    /// What it adds to each read, in ns; in `write_blame`, to each write.
    pub by_ns: f64,
}

/// The position of a field relative to the one that suffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stands {
    /// At a lower offset: padding after the field that suffers does not separate the two.
    Before,
    /// At a higher offset.
    After,
    /// It shares bytes with the field that suffers: no layout separates the two.
    Inside,
}

impl Verdict {
    /// The field from which the reads of `field` suffer most. `None` if they do not suffer, or if the profile does not
    /// name `field`.
    pub fn culprit_of(&self, field: &str) -> Option<&Blame> {
        self.fields.iter().find(|f| f.name == field)?.blame.first()
    }

    /// The costs of the field of this name, if the profile names it.
    pub fn field(&self, name: &str) -> Option<&FieldCost> {
        self.fields.iter().find(|f| f.name == name)
    }
}

/// A profile on a machine, to analyze many layouts of the struct.
pub struct Analyzer {
    cores: Cores,
    /// The names in the profile, each once, with how often each core touches it.
    touched: Vec<(String, Rates)>,
    unit: usize,
    /// Results of `solve` by the fields on a line. The search for a layout asks for the same ones many times.
    known: RefCell<BTreeMap<Vec<usize>, Rc<Solved>>>,
}

impl Analyzer {
    /// Adds up the profile's touches by field and core. The profile is checked against the layout.
    ///
    /// # Errors
    ///
    /// As [`Profile::check`].
    pub fn new(profile: &Profile, layout: &Layout, machine: &SimMachine) -> Result<Self, LayoutError> {
        let topology = &machine.topology;
        profile.check(layout, topology)?;
        let cores = Cores::new(machine);
        let mut touched: Vec<(String, Rates)> = Vec::new();
        for (field, cpu, (reads, writes)) in profile.by_cpu(topology)? {
            let at = touched.iter().position(|(name, _)| *name == field).unwrap_or_else(|| {
                touched.push((field.to_owned(), cores.none()));
                touched.len() - 1
            });
            let rate = &mut touched[at].1.0[cores.core_of(cpu)];
            *rate = (rate.0 + reads, rate.1 + writes);
        }
        Ok(Self { cores, touched, unit: profile.unit(topology), known: RefCell::new(BTreeMap::new()) })
    }

    /// Bytes that are transferred together: a line, or a pair of lines.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// The fields that the profile names, whole or in part: their indexes in the layout, each once.
    pub(crate) fn hot(&self, layout: &Layout) -> Vec<usize> {
        let mut hot: Vec<usize> =
            self.touched.iter().filter_map(|(name, _)| Some(layout.byte_range(name).ok()?.field)).collect();
        hot.sort_unstable();
        hot.dedup();
        hot
    }

    /// What a touch of a line with these fields (indexes in `touched`) costs each core.
    fn solve(&self, fields: &[usize]) -> Rc<Solved> {
        if let Some(solved) = self.known.borrow().get(fields) {
            return Rc::clone(solved);
        }
        let mut line = self.cores.none();
        fields.iter().for_each(|f| line.add(&self.touched[*f].1));
        let solved = Rc::new(self.cores.solve(&line));
        self.known.borrow_mut().insert(fields.to_vec(), Rc::clone(&solved));
        solved
    }

    /// The mean costs of a read and of a write over a field's touches.
    fn mean(&self, field: usize, costs: &[Cost]) -> Cost {
        let rates = &self.touched[field].1;
        let (mut read, mut write) = (0.0, 0.0);
        for ((reads, writes), cost) in rates.0.iter().zip(costs) {
            read += reads * cost.read;
            write += writes * cost.write;
        }
        let over = |sum: f64, count: f64| if count > 0.0 { sum / count } else { 0.0 };
        Cost { read: over(read, rates.reads()), write: over(write, rates.writes()) }
    }

    /// What the touches of the profile cost in a layout.
    ///
    /// # Errors
    ///
    /// A field that the layout does not have.
    pub fn verdict(&self, layout: &Layout) -> Result<Verdict, LayoutError> {
        let ranges =
            self.touched.iter().map(|(name, _)| layout.byte_range(name)).collect::<Result<Vec<_>, _>>()?;
        let mut lines: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (field, range) in ranges.iter().enumerate() {
            for line in range.units(self.unit) {
                lines.entry(line).or_default().push(field);
            }
        }
        let busy = lines.iter().map(|(line, fields)| (*line, self.solve(fields).busy));
        let mut verdict = Verdict {
            fields: Vec::new(),
            ns_per_s: 0.0,
            excess_ns_per_s: 0.0,
            busy: busy.filter(|(_, busy)| *busy > BUSY).collect(),
            unit: self.unit,
        };
        for (field, (name, rates)) in self.touched.iter().enumerate() {
            let range = ranges[field];
            let (mut here, mut alone) = (Cost::default(), Cost::default());
            let mut company: Vec<usize> = Vec::new();
            for fields in lines.values().filter(|fields| fields.contains(&field)) {
                let (with, without) = (
                    self.mean(field, &self.solve(fields).costs),
                    self.mean(field, &self.solve(&[field]).costs),
                );
                here = Cost { read: here.read + with.read, write: here.write + with.write };
                alone = Cost { read: alone.read + without.read, write: alone.write + without.write };
                company.extend(fields.iter().filter(|f| **f != field));
            }
            company.sort_unstable();
            company.dedup();
            let (reads, writes) = (rates.reads(), rates.writes());
            verdict.ns_per_s += reads * here.read + writes * here.write;
            verdict.excess_ns_per_s += reads * (here.read - alone.read).max(0.0);
            verdict.excess_ns_per_s += writes * (here.write - alone.write).max(0.0);
            let blame = |excess: f64, alone: f64, is_read: bool| {
                let suffers = excess > SUFFERS_NS && excess > SUFFERS_SHARE * alone;
                if suffers { self.blame(field, &company, excess, is_read, layout) } else { Vec::new() }
            };
            verdict.fields.push(FieldCost {
                name: name.clone(),
                offset: range.offset,
                size: range.size,
                reads_per_s: reads,
                writes_per_s: writes,
                readers: rates.0.iter().filter(|r| r.0 > 0.0).count(),
                writers: rates.writers(),
                read_ns: here.read,
                read_alone_ns: alone.read,
                write_ns: here.write,
                write_alone_ns: alone.write,
                blame: blame(here.read - alone.read, alone.read, true),
                write_blame: blame(here.write - alone.write, alone.write, false),
            });
        }
        verdict.fields.sort_by_key(|f| (f.offset, f.size));
        Ok(verdict)
    }

    /// Divides the excess cost of a field's reads, or of its writes, among the other fields on its lines (`company`).
    fn blame(
        &self,
        field: usize,
        company: &[usize],
        excess: f64,
        is_read: bool,
        layout: &Layout,
    ) -> Vec<Blame> {
        let mine = &self.touched[field].1;
        // Writes by other cores delay a read; reads and writes by other cores delay a write.
        let harms = |other: &Rates, core: usize| {
            let (reads, writes) = other.0[core];
            if is_read { writes } else { reads + writes }
        };
        let weigh = |other: usize| -> f64 {
            let other = &self.touched[other].1;
            let all: f64 = (0..other.0.len()).map(|core| harms(other, core)).sum();
            let each = mine.0.iter().enumerate().map(|(core, (reads, writes))| {
                let touches = if is_read { *reads } else { *writes };
                touches * (all - harms(other, core)).max(0.0)
            });
            each.sum()
        };
        let weights: Vec<(usize, f64)> = company.iter().map(|other| (*other, weigh(*other))).collect();
        let all: f64 = weights.iter().map(|(_, weight)| weight).sum();
        if all <= 0.0 {
            return Vec::new();
        }
        let range = |f: usize| layout.byte_range(&self.touched[f].0).expect("the verdict has asked for it");
        let me = range(field);
        let mut blame: Vec<Blame> = weights
            .into_iter()
            .filter(|(_, weight)| weight / all >= BLAME_SHARE)
            .map(|(other, weight)| {
                let it = range(other);
                let stands = match () {
                    _ if it.offset + it.size <= me.offset => Stands::Before,
                    _ if me.offset + me.size <= it.offset => Stands::After,
                    _ => Stands::Inside,
                };
                let share = weight / all;
                Blame { field: self.touched[other].0.clone(), stands, share, by_ns: share * excess }
            })
            .collect();
        blame.sort_by(|a, b| b.share.total_cmp(&a.share).then_with(|| a.field.cmp(&b.field)));
        blame
    }

    /// The touched fields for `warmcore_line`, to list conflicts and to draw. Fields that no core writes are one group;
    /// of the others, those that the same cores touch at the same rates are one group. A field that the layout does not
    /// have is left out.
    pub fn field_lines(&self, layout: &Layout) -> Vec<FieldLine<'_>> {
        let fields = self.touched.iter().filter_map(|(name, rates)| {
            let range = layout.byte_range(name).ok()?;
            // A group of fields that are written is named by its first field.
            let first = self.touched.iter().find(|(_, other)| other == rates)?.0.as_str();
            let group = match rates.writers() {
                0 => Group { access: Access::ReadMostly, name: "" },
                1 => Group { access: Access::Owner, name: first },
                _ => Group { access: Access::Contended, name: first },
            };
            Some(FieldLine { name, group, offset: range.offset, size: range.size.max(1) })
        });
        fields.collect()
    }
}

/// The result for one layout: the cost of its fields, the culprits, and better layouts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Culprit {
    /// The struct's layout.
    pub layout: Layout,
    /// The workload that the profile describes.
    pub workload: String,
    /// The machine.
    pub machine: String,
    /// What the touches of the profile cost.
    pub verdict: Verdict,
    /// Pairs of fields in one unit (a line or a pair of lines) that are in different groups of
    /// [`Analyzer::field_lines`], in words.
    pub conflicts: Vec<String>,
    /// What [`relayouts`] found: layouts that remove at least 95 % of the excess cost, the cheapest first; then, if
    /// reads of a field suffer, padding after the field whose reads suffer most, for comparison.
    pub relayouts: Vec<Relayout>,
}

/// Analyzes a layout and searches for a better one.
///
/// ```
/// use warmcore_layout::{Layout, culprit};
/// use warmcore_sim::machine::SimMachine;
///
/// let ring = Layout::declared(
///     r#"
///     name = "ring"
///     size = 128
///     align = 64
///     fields = [
///       { name = "tail", offset = 0, size = 8 },
///       { name = "mask", offset = 8, size = 8 },
///       { name = "name", offset = 64, size = 8 },
///     ]"#,
///     "ring.toml",
/// )?;
/// let profile = culprit::Profile::parse(
///     r#"
///     struct = "ring"
///     rates = "per_cpu"
///     access = [
///       { field = "tail", writes_per_s = 100_000, cpus = "0" },
///       { field = "mask", reads_per_s = 100_000, cpus = "8-15" },
///     ]"#,
///     "profile.toml",
/// )?;
/// let found = culprit::find(&ring, &profile, &SimMachine::named("epyc9654_2p")?)?;
/// assert_eq!(found.verdict.culprit_of("mask").unwrap().field, "tail");
/// assert_eq!(found.relayouts[0].added, 0);
/// println!("{found}");
/// # Ok::<(), warmcore_layout::LayoutError>(())
/// ```
///
/// # Errors
///
/// As [`Profile::check`].
pub fn find(layout: &Layout, profile: &Profile, machine: &SimMachine) -> Result<Culprit, LayoutError> {
    let analyzer = Analyzer::new(profile, layout, machine)?;
    let fields = analyzer.field_lines(layout);
    let conflicts = warmcore_line::conflicts(&fields, analyzer.unit());
    Ok(Culprit {
        layout: layout.clone(),
        workload: profile.workload.clone(),
        machine: machine.costs.machine().to_owned(),
        verdict: analyzer.verdict(layout)?,
        conflicts: conflicts.iter().map(ToString::to_string).collect(),
        relayouts: relayouts(&analyzer, layout)?,
    })
}
