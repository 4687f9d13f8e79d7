//! Simulate: simulates the touches of a profile one by one.
//!
//! Each CPU touches each field of the profile's entries that name the CPU at random times, independently; `Memory`, the
//! simulator's caches and cache lines, gives the cost of each touch. The first tenth is not counted, because the caches
//! are empty at first. A million touches take half a second.

use super::Profile;
use crate::{Layout, LayoutError};
use serde::Serialize;
use std::collections::BTreeMap;
use warmcore_sim::event::Events;
use warmcore_sim::machine::SimMachine;
use warmcore_sim::memory::{LineId, Memory};
use warmcore_sim::random::{Purpose, Random, exponential};
use warmcore_types::{CpuId, Nanos};

/// The touches of one field that were counted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Its name in the profile.
    pub name: String,
    /// Reads that were counted.
    pub reads: u64,
    /// Their total time, in ns.
    pub read_ns: u64,
    /// Writes that were counted.
    pub writes: u64,
    /// Their total time, in ns.
    pub write_ns: u64,
}

impl Seen {
    /// The mean time of a read, in ns; 0 if none was counted.
    pub fn mean_read_ns(&self) -> f64 {
        self.read_ns as f64 / self.reads.max(1) as f64
    }

    /// The mean time of a write, in ns; 0 if none was counted.
    pub fn mean_write_ns(&self) -> f64 {
        self.write_ns as f64 / self.writes.max(1) as f64
    }
}

/// The reads, or writes, of one field by one CPU, from one entry of the profile.
struct Stream {
    cpu: CpuId,
    field: usize,
    is_write: bool,
    mean: Nanos,
    count: u64,
}

/// The longest mean time between touches, in ns: 12 days. A longer one is replaced by this.
const MEAN_MAX: f64 = 1e15;

/// Simulates this many touches of a profile, on the cache lines of [`Memory`]; none if all its rates are 0.
///
/// # Errors
///
/// As [`Profile::check`].
pub fn simulate(
    layout: &Layout,
    profile: &Profile,
    machine: &SimMachine,
    seed: u64,
    touches: u64,
) -> Result<Vec<Seen>, LayoutError> {
    let SimMachine { costs, topology, .. } = machine;
    profile.check(layout, topology)?;
    let mut memory = Memory::new(costs, topology);
    let mut lines: BTreeMap<usize, LineId> = BTreeMap::new();
    let mut seen: Vec<Seen> = Vec::new();
    let mut on: Vec<Vec<LineId>> = Vec::new();
    let mut streams = Vec::new();
    for (name, cpu, (reads, writes)) in profile.by_cpu(topology)? {
        let field = match seen.iter().position(|s| s.name == name) {
            Some(field) => field,
            None => {
                let all = layout.byte_range(name)?.units(profile.unit(topology));
                on.push(all.map(|line| *lines.entry(line).or_insert_with(|| memory.line())).collect());
                seen.push(Seen { name: name.to_owned(), ..Seen::default() });
                seen.len() - 1
            }
        };
        for (is_write, rate) in [(false, reads), (true, writes)] {
            if rate > 0.0 {
                let mean = Nanos((1e9 / rate).round().min(MEAN_MAX) as u64);
                streams.push(Stream { cpu, field, is_write, mean, count: 0 });
            }
        }
    }
    let random = Random::new(seed);
    let mut events = Events::new();
    for (number, stream) in streams.iter_mut().enumerate() {
        events.push(next(random, number, stream), 0, number);
    }
    for touch in 0..touches {
        let Some(due) = events.pop() else { break };
        let stream = &mut streams[due.what];
        let mut took = 0;
        for line in &on[stream.field] {
            let now = Nanos(due.at.0 + took);
            took += match stream.is_write {
                true => memory.write_line(stream.cpu, *line, now).0,
                false => memory.read_line(stream.cpu, *line, now).0,
            };
        }
        if touch >= touches / 10 {
            let seen = &mut seen[stream.field];
            let (count, sum) = match stream.is_write {
                true => (&mut seen.writes, &mut seen.write_ns),
                false => (&mut seen.reads, &mut seen.read_ns),
            };
            *count += 1;
            *sum += took;
        }
        let at = Nanos(due.at.0.saturating_add(next(random, due.what, stream).0));
        events.push(at, 0, due.what);
    }
    Ok(seen)
}

fn next(random: Random, number: usize, stream: &mut Stream) -> Nanos {
    let bits = random.bits(number as u64, Purpose::Load, stream.count);
    stream.count += 1;
    exponential(bits, stream.mean)
}
