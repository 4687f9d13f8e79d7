//! Random: numbers that depend only on a seed, an entity, a purpose and a count.
//!
//! A number is a pure function of these four. Two policies that run the same tasks in different orders thus draw the
//! same numbers for the same things, and a difference in results comes from the policies. A `Random` has no state:
//! the caller counts its draws. Two rounds of a 64-bit finaliser take about 2 ns. There are no floats: the
//! exponential distribution uses a table of the logarithm in 16 fractional bits.
//!
//! # Source
//!
//! The finaliser of splitmix64, keyed twice.

use warmcore_types::Nanos;

#[cfg(test)]
mod tests;

/// What a number is for, so that two uses by one entity have different streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// The length of a program's step.
    Step = 1,
    /// When a CPU ticks within its period.
    Tick = 2,
    /// Which neighbour a CPU examines.
    Neighbour = 3,
    /// Draws by users of this crate.
    Load = 4,
}

/// A source of numbers for one seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Random {
    seed: u64,
}

/// The finaliser of splitmix64.
const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    /// The source for a seed.
    pub const fn new(seed: u64) -> Self {
        Self { seed: mix(seed.wrapping_add(GOLDEN)) }
    }

    /// Sixty-four random bits: the `count`th draw of this entity for this purpose.
    #[inline]
    pub const fn bits(self, entity: u64, purpose: Purpose, count: u64) -> u64 {
        let stream = mix(self.seed ^ entity.wrapping_mul(GOLDEN) ^ (purpose as u64) << 56);
        mix(stream.wrapping_add(count.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// The entity of the `count`th child of an entity: the same under every policy, in whatever order tasks fork.
    pub const fn child(self, entity: u64, count: u64) -> u64 {
        mix(mix(entity.wrapping_add(GOLDEN)) ^ count.wrapping_mul(GOLDEN)) | 1 << 63
    }
}

/// A number below `n`; 0 if `n` is 0.
#[inline]
pub const fn below(bits: u64, n: u64) -> u64 {
    ((bits as u128 * n as u128) >> 64) as u64
}

/// A number from `a` to `b`, both included; `a` if `b` is not larger. If `a` is 0, `u64::MAX` is not included.
#[inline]
pub const fn between(bits: u64, a: u64, b: u64) -> u64 {
    if b <= a { a } else { a + below(bits, (b - a).saturating_add(1)) }
}

/// Uniformly distributed around `mean`, by up to `percent` of it; above 100 counts as 100.
#[inline]
pub const fn jittered(bits: u64, mean: Nanos, percent: u32) -> Nanos {
    let percent = if percent > 100 { 100 } else { percent };
    let reach = (mean.0 as u128 * percent as u128 / 100) as u64;
    Nanos(between(bits, mean.0 - reach, mean.0.saturating_add(reach)))
}

/// −ln(i / 64) for i = 1 to 64, with 16 fractional bits; the first is for 1/64.
const LN: [u32; 64] = [
    272557, 227130, 200558, 181704, 167080, 155132, 145029, 136278, 128559, 121654, 115408, 109706, 104460,
    99603, 95082, 90852, 86879, 83133, 79590, 76228, 73031, 69982, 67069, 64280, 61604, 59034, 56561, 54177,
    51877, 49656, 47507, 45426, 43409, 41453, 39553, 37707, 35911, 34164, 32461, 30802, 29184, 27605, 26063,
    24556, 23083, 21643, 20233, 18854, 17502, 16178, 14880, 13608, 12360, 11135, 9932, 8751, 7591, 6451,
    5331, 4230, 3146, 2081, 1032, 0,
];

/// Exponentially distributed with this mean, like the times between independent arrivals. At most 46 times the mean.
pub const fn exponential(bits: u64, mean: Nanos) -> Nanos {
    // u in (0, 1) is 2^-zeros × m with m in [1/2, 1); −ln u = zeros × ln 2 − ln m, with ln m interpolated in the
    // table.
    let zeros = bits.leading_zeros();
    let mantissa = if zeros >= 63 { 0 } else { (bits << (zeros + 1)) >> 32 };
    // m = 1/2 + mantissa/2^33 is i / 64 for i = 32 + 32 × mantissa/2^32; −ln(i / 64) is at index i − 1 of the table.
    let position = 32 * mantissa;
    let (at, rest) = ((position >> 32) as usize + 31, position & 0xffff_ffff);
    let (here, next) = (LN[at] as u64, if at < 63 { LN[at + 1] as u64 } else { 0 });
    let minus_ln_m = here - (((here - next) * rest) >> 32);
    let e = zeros as u64 * 45_426 + minus_ln_m;
    Nanos(((mean.0 as u128 * e as u128) >> 16) as u64)
}
