//! Machine: where the CPUs of a recording are, and how far from each other.

use crate::analysis::CpuRow;
use crate::origin::Origin;
use warmcore_record::CpuPlace;
use warmcore_types::CpuId;

/// The CPUs of a recording. They get an index when they are first seen.
pub struct Machine {
    /// Where CPUs are, ascending.
    places: Vec<CpuPlace>,
    /// The index of a CPU; `NO_INDEX` where it was not seen.
    indices: Vec<u16>,
    /// The CPUs that were seen, by index.
    seen: Vec<CpuId>,
    /// `[to][from]`: how far, by index.
    origins: Vec<Vec<Origin>>,
}

const NO_INDEX: u16 = u16::MAX;

impl Machine {
    pub fn new(mut places: Vec<CpuPlace>) -> Self {
        places.sort_by_key(|place| place.cpu);
        Self { places, indices: Vec::new(), seen: Vec::new(), origins: Vec::new() }
    }

    /// The index of a CPU. Its number has 13 bits, so there are at most 8192.
    #[inline]
    pub fn index(&mut self, cpu: CpuId) -> u16 {
        match self.indices.get(cpu.0 as usize) {
            Some(index) if *index != NO_INDEX => *index,
            _ => self.see(cpu),
        }
    }

    #[cold]
    fn see(&mut self, cpu: CpuId) -> u16 {
        let (at, index) = (cpu.0 as usize, self.seen.len() as u16);
        if self.indices.len() <= at {
            self.indices.resize(at + 1, NO_INDEX);
        }
        self.indices[at] = index;
        self.seen.push(cpu);
        let column = |to: &CpuId| self.between(cpu, *to);
        let to_others: Vec<Origin> = self.seen.iter().map(column).collect();
        // The distance from one CPU to another is the one back.
        self.origins.iter_mut().zip(&to_others).for_each(|(row, origin)| row.push(*origin));
        self.origins.push(to_others);
        index
    }

    /// How far the CPU with the index `from` is from the one with the index `to`.
    #[inline]
    pub fn origin(&self, from: u16, to: u16) -> Origin {
        self.origins[to as usize][from as usize]
    }

    /// Where a CPU is. `None`: the recording does not say it.
    pub fn place(&self, cpu: CpuId) -> Option<&CpuPlace> {
        self.places.binary_search_by_key(&cpu, |place| place.cpu).ok().map(|at| &self.places[at])
    }

    fn between(&self, a: CpuId, b: CpuId) -> Origin {
        if a == b {
            return Origin::SameCpu;
        }
        let (Some(a), Some(b)) = (self.place(a), self.place(b)) else { return Origin::OtherCpu };
        Origin::between(a, b)
    }

    /// CPUs that the process might use; those whose last-level cache is known; those whose node and socket are.
    pub fn known(&self) -> (u32, u32, u32) {
        let count = |is: fn(&CpuPlace) -> bool| self.places.iter().filter(|place| is(place)).count() as u32;
        let with_llc = count(|place| place.llc.is_some());
        let with_node = count(|place| place.node.is_some() && place.socket.is_some());
        (self.places.len() as u32, with_llc, with_node)
    }

    /// The CPUs that were seen, by index.
    pub fn seen(&self) -> &[CpuId] {
        &self.seen
    }

    /// The row of a CPU, without polls.
    pub fn row(&self, cpu: CpuId) -> CpuRow {
        let place = self.place(cpu);
        CpuRow {
            cpu: cpu.0,
            core: place.map(|place| place.core),
            llc: place.and_then(|place| place.llc),
            node: place.and_then(|place| place.node),
            socket: place.and_then(|place| place.socket),
            polls: 0,
            busy_ns: 0,
        }
    }
}
