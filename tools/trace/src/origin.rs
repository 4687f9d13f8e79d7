//! Origin: how far the CPU of a poll is from the CPU where its task, or its task's waker, was before.

use serde::ser::{Serialize, Serializer};
use std::ops::{AddAssign, Index, IndexMut};
use warmcore_record::CpuPlace;

/// Where a task came from for a poll: the nearest part of the machine that the CPU before and the CPU of the poll share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Origin {
    /// The same CPU.
    SameCpu = 0,
    /// Another CPU of the same core.
    SameCore = 1,
    /// Another core of the same last-level cache.
    SameLlc = 2,
    /// Another last-level cache of the same NUMA node.
    SameNode = 3,
    /// Another NUMA node of the same socket.
    SameSocket = 4,
    /// Another socket.
    SameMachine = 5,
    /// Another CPU, and it is not known how far that one is.
    OtherCpu = 6,
    /// There is no CPU before: the task's first poll.
    First = 7,
    /// The CPU of the poll, or the one before, is not known.
    Unknown = 8,
}

impl Origin {
    /// All origins, the nearest first.
    pub const ALL: [Self; 9] = [
        Self::SameCpu,
        Self::SameCore,
        Self::SameLlc,
        Self::SameNode,
        Self::SameSocket,
        Self::SameMachine,
        Self::OtherCpu,
        Self::First,
        Self::Unknown,
    ];

    /// The origins of polls that moved.
    pub const MOVED: [Self; 6] =
        [Self::SameCore, Self::SameLlc, Self::SameNode, Self::SameSocket, Self::SameMachine, Self::OtherCpu];

    /// How far one place of a CPU is from another, which is of another CPU. A part of the machine that is not known is never
    /// taken as shared, nor as not shared.
    pub fn between(a: &CpuPlace, b: &CpuPlace) -> Self {
        if a.core == b.core {
            return Self::SameCore;
        }
        let shares = |of: fn(&CpuPlace) -> Option<u32>| Some(of(a)? == of(b)?);
        let parts = [
            (shares(|at| at.llc), Self::SameLlc),
            (shares(|at| at.node), Self::SameNode),
            (shares(|at| at.socket), Self::SameSocket),
        ];
        for (shared, origin) in parts {
            match shared {
                Some(true) => return origin,
                Some(false) => {}
                None => return Self::OtherCpu,
            }
        }
        Self::SameMachine
    }

    /// The origin's name in data.
    pub fn name(self) -> &'static str {
        match self {
            Self::SameCpu => "same_cpu",
            Self::SameCore => "same_core",
            Self::SameLlc => "same_llc",
            Self::SameNode => "same_node",
            Self::SameSocket => "same_socket",
            Self::SameMachine => "same_machine",
            Self::OtherCpu => "other_cpu",
            Self::First => "first",
            Self::Unknown => "unknown",
        }
    }

    /// Whether the poll ran on another CPU than the one before.
    pub fn is_move(self) -> bool {
        Self::MOVED.contains(&self)
    }

    /// Whether the poll ran on another core than the one before. [`OtherCpu`](Self::OtherCpu) counts: mostly it is one.
    pub fn is_other_core(self) -> bool {
        self.is_move() && self != Self::SameCore
    }

    /// Whether the poll is known to have run at another last-level cache than the one before.
    pub fn is_other_llc(self) -> bool {
        matches!(self, Self::SameNode | Self::SameSocket | Self::SameMachine)
    }
}

impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A number for each [`Origin`]: of polls, or of nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByOrigin([u64; Origin::ALL.len()]);

impl ByOrigin {
    /// The sum over all origins.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The sum over the origins for which `is_in` is true.
    pub fn sum_if(&self, is_in: impl Fn(Origin) -> bool) -> u64 {
        Origin::ALL.into_iter().filter(|origin| is_in(*origin)).map(|origin| self[origin]).sum()
    }

    /// Polls that had a CPU before which is known: those whose shares mean something.
    pub fn known(&self) -> u64 {
        self.moved() + self[Origin::SameCpu]
    }

    /// Polls on another CPU than before.
    pub fn moved(&self) -> u64 {
        self.sum_if(Origin::is_move)
    }

    /// Polls on another core than before.
    pub fn other_core(&self) -> u64 {
        self.sum_if(Origin::is_other_core)
    }

    /// Polls that are known to have run at another last-level cache than before.
    pub fn other_llc(&self) -> u64 {
        self.sum_if(Origin::is_other_llc)
    }
}

impl Index<Origin> for ByOrigin {
    type Output = u64;

    #[inline]
    fn index(&self, origin: Origin) -> &u64 {
        &self.0[origin as usize]
    }
}

impl IndexMut<Origin> for ByOrigin {
    #[inline]
    fn index_mut(&mut self, origin: Origin) -> &mut u64 {
        &mut self.0[origin as usize]
    }
}

impl AddAssign for ByOrigin {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

impl Serialize for ByOrigin {
    /// A map from the origins' names, without zeros.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let some = Origin::ALL.into_iter().filter(|origin| self[*origin] > 0);
        serializer.collect_map(some.map(|origin| (origin.name(), self[origin])))
    }
}
