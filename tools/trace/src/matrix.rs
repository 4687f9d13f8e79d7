//! Matrix: from the waker's core to the poll's core.

use crate::analysis::{CpuRow, Matrix, MatrixCell, MatrixCore};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The most cells that are kept.
const CELLS_MAX: usize = 4096;

/// Polls by the CPUs of waker and poll.
#[derive(Default)]
pub struct CpuMatrix {
    /// `[poll][waker]`, by CPU index; a row is as long as it needs.
    rows: Vec<Vec<u64>>,
}

impl CpuMatrix {
    #[inline]
    pub fn add(&mut self, from: u16, to: u16) {
        let (from, to) = (usize::from(from), usize::from(to));
        if self.rows.get(to).is_none_or(|row| row.len() <= from) {
            self.grow(from, to);
        }
        self.rows[to][from] += 1;
    }

    #[cold]
    fn grow(&mut self, from: usize, to: usize) {
        if self.rows.len() <= to {
            self.rows.resize_with(to + 1, Vec::new);
        }
        self.rows[to].resize(from + 1, 0);
    }

    /// Sums the CPUs up to cores. `cpus` are the CPUs' rows, by index.
    pub fn finish(&self, cpus: &[CpuRow]) -> Matrix {
        // CPUs without a known core come last, each alone.
        let core_of = |row: &CpuRow| {
            let alone = row.core.is_none().then_some(row.cpu);
            (alone, row.node, row.llc, row.core)
        };
        let mut members: BTreeMap<_, Vec<u32>> = BTreeMap::new();
        cpus.iter().for_each(|row| members.entry(core_of(row)).or_default().push(row.cpu));
        let numbers: BTreeMap<_, u32> = members.keys().copied().zip(0..).collect();
        let mut cells: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for (to, row) in self.rows.iter().enumerate() {
            for (from, polls) in row.iter().enumerate().filter(|(_, polls)| **polls > 0) {
                *cells.entry((numbers[&core_of(&cpus[from])], numbers[&core_of(&cpus[to])])).or_default() +=
                    polls;
            }
        }
        let mut cells: Vec<MatrixCell> =
            cells.into_iter().map(|((from, to), polls)| MatrixCell { from, to, polls }).collect();
        cells.sort_by_key(|cell| (Reverse(cell.polls), cell.from, cell.to));
        let others = cells.iter().skip(CELLS_MAX).map(|cell| cell.polls).sum();
        cells.truncate(CELLS_MAX);
        let core = |((_, node, llc, _), mut cpus): (_, Vec<u32>)| {
            cpus.sort_unstable();
            MatrixCore { cpus, llc, node }
        };
        Matrix { cores: members.into_iter().map(core).collect(), cells, others }
    }
}
