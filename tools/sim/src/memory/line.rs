//! Line: one cache line that several cores read and write.
//!
//! A line is owned by one core that may write it, or shared by cores that may read it. A read by a core without a copy
//! gets the line from the core that got it last, which is the owner if there is one; the first access gets it from
//! memory. A write waits until the farthest sharer has invalidated its copy; an upper bound of that distance is used.
//! While the line is in transfer to a writer, the next core waits, which is the cost of contention.
//!
//! On 2 × EPYC 9654 the transfer takes 23 ns from a core under the same L3, and 195 ns from the other socket. A line
//! takes 96 bytes, and a bit for each core once more than eight cores share it.

use super::{CpuLocation, NOWHERE};
use crate::costs::Costs;
use warmcore_topo::Distance;
use warmcore_types::Nanos;

/// Up to this many sharers are a list; more are a bitmap.
const FEW: usize = 8;

#[derive(Debug, Clone)]
enum Sharers {
    Few([u32; FEW]),
    Many(Vec<u64>),
}

impl Default for Sharers {
    fn default() -> Self {
        Self::Few([NOWHERE; FEW])
    }
}

impl Sharers {
    fn contains(&self, core: u32) -> bool {
        match self {
            Self::Few(cores) => cores.contains(&core),
            Self::Many(words) => words.get(core as usize / 64).is_some_and(|w| w >> (core % 64) & 1 == 1),
        }
    }

    fn insert(&mut self, core: u32) {
        match self {
            Self::Few(cores) => {
                if let Some(free) = cores.iter_mut().find(|c| **c == NOWHERE) {
                    *free = core;
                    return;
                }
                let mut many = Self::Many(Vec::new());
                cores.iter().for_each(|c| many.insert(*c));
                many.insert(core);
                *self = many;
            }
            Self::Many(words) => {
                let word = core as usize / 64;
                words.resize(words.len().max(word + 1), 0);
                words[word] |= 1 << (core % 64);
            }
        }
    }

    /// Makes this core the only sharer.
    fn only(&mut self, core: u32) {
        let mut few = [NOWHERE; FEW];
        few[0] = core;
        *self = Self::Few(few);
    }
}

/// Where the sharers are: none is farther than `reach` from `some`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    some: CpuLocation,
    /// The distance from `some` to the farthest core that has shared the line since its last write.
    reach: Distance,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Line {
    /// The cores that have it.
    sharers: Sharers,
    span: Option<Span>,
    /// The core that got it last, from which the next reader gets it.
    last: Option<CpuLocation>,
    /// Whether the core that has it wrote it.
    is_dirty: bool,
    /// The line is in transfer to a writer until this time.
    busy_until: Nanos,
}

impl Line {
    pub(super) fn read(&mut self, costs: &Costs, me: CpuLocation, now: Nanos) -> Nanos {
        if self.sharers.contains(me.core) {
            return nanos(costs.l1());
        }
        let wait = self.wait(now);
        let from = self.last.map_or(costs.dram(Distance::Same), |last| costs.hand_over(me.distance(last)));
        self.sharers.insert(me.core);
        self.span = Some(match self.span {
            None => Span { some: me, reach: Distance::Smt },
            Some(span) => Span { reach: span.reach.max(me.distance(span.some)), ..span },
        });
        self.is_dirty = false;
        self.last = Some(me);
        Nanos(wait.0 + nanos(from).0)
    }

    pub(super) fn write(&mut self, costs: &Costs, me: CpuLocation, now: Nanos) -> Nanos {
        let is_only = matches!(&self.sharers, Sharers::Few([core, NOWHERE, ..]) if *core == me.core);
        if self.sharers.contains(me.core) && (self.is_dirty || is_only) {
            self.is_dirty = true;
            return nanos(costs.l1());
        }
        let wait = self.wait(now);
        let from = match self.span {
            None => costs.dram(Distance::Same),
            // The farthest sharer is at most as far as the larger of its distance from `some` and the distance of
            // `some` from here.
            Some(span) => costs.hand_over(span.reach.max(me.distance(span.some))),
        };
        self.sharers.only(me.core);
        self.span = Some(Span { some: me, reach: Distance::Smt });
        (self.last, self.is_dirty) = (Some(me), true);
        let took = Nanos(wait.0 + nanos(from).0);
        self.busy_until = Nanos(now.0 + took.0);
        took
    }

    fn wait(&self, now: Nanos) -> Nanos {
        Nanos(self.busy_until.0.saturating_sub(now.0))
    }

    pub(super) fn bytes(&self) -> usize {
        let many = match &self.sharers {
            Sharers::Few(_) => 0,
            Sharers::Many(words) => words.capacity() * 8,
        };
        size_of::<Self>() + many
    }
}

/// Rounds up, so that an access takes zero ns only if it costs nothing.
fn nanos(ps: u64) -> Nanos {
    Nanos(ps.div_ceil(1000))
}
