//! Samples of the polls of each stratum.

use super::estimate::{BLOCKS, Stratum};
use crate::origin::Origin;
use fastrand::Rng;

/// Doublings of the time since the task's last poll, from below 2 µs to 8 s and more.
const SINCE: usize = 24;
const SINCE_FIRST_LOG: u32 = 10;

/// What [`queue_before`](crate::threads::ThreadState::queue_before) returns: 0 to 8.
const QUEUES: usize = 9;

const STRATA: usize = SINCE * QUEUES;

/// Origins of polls that are compared: [`Origin::SameCpu`] and the moves.
const ORIGINS: usize = 7;

/// The most samples of a cell.
const SAMPLES_MAX: usize = 128;

/// The most cells.
const CELLS_MAX: usize = 1 << 16;

/// Polls with a move, and without, that a stratum needs.
const ARM_MIN: usize = 8;

const NO_CELL: u32 = u32::MAX;

/// A poll of a sample: its duration, and its block of time.
pub type Sample = (u32, u8);

/// The polls of a place in one stratum from one origin.
struct Cell {
    polls: u64,
    /// Each of the polls with the same chance.
    samples: Vec<Sample>,
}

/// The samples of all places.
pub struct Samples {
    block_ns: u64,
    cells: Vec<Cell>,
    /// `[place][stratum and origin]`: the cell's index.
    tables: Vec<Vec<u32>>,
    rng: Rng,
}

impl Samples {
    pub fn new(length_ns: u64) -> Self {
        let block_ns = length_ns.div_ceil(BLOCKS as u64).max(1);
        Self { block_ns, cells: Vec::new(), tables: Vec::new(), rng: Rng::with_seed(1) }
    }

    /// Adds a poll that is linked to the task's last one, which ended `since_ns` before it.
    #[inline]
    pub fn add(
        &mut self,
        place: u32,
        origin: Origin,
        since_ns: u64,
        queue: u8,
        at_ns: u64,
        duration_ns: u64,
    ) {
        let since = since_ns.checked_ilog2().unwrap_or(0).saturating_sub(SINCE_FIRST_LOG) as usize;
        let stratum = since.min(SINCE - 1) * QUEUES + usize::from(queue);
        let Some(cell) = self.cell(place as usize, stratum * ORIGINS + origin as usize) else { return };
        let cell = &mut self.cells[cell];
        cell.polls += 1;
        let at = match cell.polls as usize {
            polls if polls <= SAMPLES_MAX => polls - 1,
            _ => self.rng.u64(..cell.polls) as usize,
        };
        if at < SAMPLES_MAX {
            let block = (at_ns / self.block_ns).min(BLOCKS as u64 - 1) as u8;
            let sample = (duration_ns.min(u64::from(u32::MAX)) as u32, block);
            match cell.samples.get_mut(at) {
                Some(old) => *old = sample,
                None => cell.samples.push(sample),
            }
        }
    }

    /// The index of a cell; `None` if there are too many.
    #[inline]
    fn cell(&mut self, place: usize, at: usize) -> Option<usize> {
        if self.tables.len() <= place {
            self.tables.resize(place + 1, Vec::new());
        }
        let table = &mut self.tables[place];
        if table.is_empty() {
            table.resize(STRATA * ORIGINS, NO_CELL);
        }
        if table[at] == NO_CELL {
            if self.cells.len() == CELLS_MAX {
                return None;
            }
            table[at] = self.cells.len() as u32;
            self.cells.push(Cell { polls: 0, samples: Vec::new() });
        }
        Some(table[at] as usize)
    }

    /// The cells, with and without a move, of each stratum of a place in which both have enough polls.
    fn both(&self, place: usize, origin: Origin) -> impl Iterator<Item = (&Cell, &Cell)> {
        let table = self.tables.get(place).filter(|table| !table.is_empty());
        let strata = table.into_iter().flat_map(|table| table.chunks_exact(ORIGINS));
        let cell = |at: u32| self.cells.get(at as usize).filter(|cell| cell.samples.len() >= ARM_MIN);
        strata.filter_map(move |cells| {
            Some((cell(cells[origin as usize])?, cell(cells[Origin::SameCpu as usize])?))
        })
    }

    /// The moved polls of strata that can be compared, and how many of them are in the samples.
    pub fn matched(&self, place: usize, origin: Origin) -> (u64, u64) {
        self.both(place, origin)
            .map(|(moved, _)| (moved.polls, moved.samples.len() as u64))
            .fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// The strata of a place that can be compared.
    pub fn strata(&self, place: usize, origin: Origin) -> Vec<Stratum> {
        self.both(place, origin)
            .map(|(moved, stayed)| Stratum::new(moved.polls, &moved.samples, &stayed.samples))
            .collect()
    }
}
