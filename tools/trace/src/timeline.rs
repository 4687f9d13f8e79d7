//! Timeline: time in polls by CPU, time and origin.

use crate::analysis::Timeline;
use crate::first_pass::FirstPass;
use crate::origin::{ByOrigin, Origin};
use warmcore_record::Header;

/// The most bins.
const BINS_MAX: u64 = 600;

/// A timeline that is filled.
pub struct Bins {
    bin_ns: u64,
    bins: u64,
    /// `[cpu index][bin]`.
    busy: Vec<Vec<ByOrigin>>,
}

impl Bins {
    pub fn new(length_ns: u64) -> Self {
        let bin_ns = length_ns.div_ceil(BINS_MAX).max(1);
        Self { bin_ns, bins: length_ns.div_ceil(bin_ns).max(1), busy: Vec::new() }
    }

    #[inline]
    pub fn add(&mut self, cpu: u16, origin: Origin, start_ns: u64, end_ns: u64) {
        let cpu = usize::from(cpu);
        if self.busy.len() <= cpu {
            self.busy.resize_with(cpu + 1, || vec![ByOrigin::default(); self.bins as usize]);
        }
        let row = &mut self.busy[cpu];
        each_bin(self.bin_ns, self.bins, start_ns, end_ns, |bin, ns| row[bin][origin] += ns);
    }

    /// `order` has the CPUs' indices in the order of their rows.
    pub fn finish(mut self, order: &[usize], first: &FirstPass, header: &Header) -> Timeline {
        let mut missing_ns = vec![0; self.bins as usize];
        first.gaps(|from, to| {
            let ns = |at: u64| header.ns(at.saturating_sub(first.start));
            each_bin(self.bin_ns, self.bins, ns(from), ns(to), |bin, ns| missing_ns[bin] += ns);
        });
        let empty = || vec![ByOrigin::default(); self.bins as usize];
        let row = |cpu: &usize| self.busy.get_mut(*cpu).map_or_else(empty, std::mem::take);
        let busy_ns = order.iter().map(row).collect();
        Timeline { bin_ns: self.bin_ns, bins: self.bins as u32, busy_ns, missing_ns }
    }
}

/// Calls `add` with each bin between the two times and the part of the time that is in it.
#[inline]
fn each_bin(bin_ns: u64, bins: u64, start_ns: u64, end_ns: u64, mut add: impl FnMut(usize, u64)) {
    let (mut bin, mut at) = ((start_ns / bin_ns).min(bins - 1), start_ns);
    while at < end_ns {
        // What is after the last bin, by rounding, is in it.
        let end = if bin + 1 < bins { end_ns.min((bin + 1).saturating_mul(bin_ns)) } else { end_ns };
        add(bin as usize, end - at);
        (bin, at) = (bin + 1, end);
    }
}
