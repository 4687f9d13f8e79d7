//! How many units a stock may hold.
//!
//! All stocks of an account and of the accounts below together may hold [`share`] units: a hundredth of the account's
//! limit, and at most [`SHARE_MAX`]. A stock takes its capacity from the share of every account on its path (from its
//! account to the root) when it opens or grows, and returns it when it closes, so the bound holds for any number of
//! threads and tenants. A stock asks for capacity for [`CHARGES`] charges of the present charge's size. Each share, and
//! what is left below each limit, is divided equally among the open stocks; a stock gets at most half of its part of
//! the share and a quarter of its part of what is left, rounded down to a power of two less one. Near a limit that is
//! 0, and each charge goes up the tree.
//!
//! Example: with a limit of 1 GiB, 10.7 MB may be in stocks. The stock that opens as the 384th gets at most 8191
//! units.
//!
//! The kernel's batch is fixed instead: 64 pages per CPU, whatever the limit.

use crate::stock::CAPACITY_LOG2_MAX;

/// The number of charges of the present size for which a stock asks capacity. A refill takes about 50 ns and fills
/// half of the capacity: 0.2 ns per charge.
pub const CHARGES: u64 = 512;

/// The largest share, in units. An account without a limit has this share.
pub const SHARE_MAX: u64 = 1 << 26;

/// How many units the stocks of an account with this limit and of all accounts below may hold together.
pub const fn share(limit: u64) -> u64 {
    let hundredth = limit / 100;
    if hundredth < SHARE_MAX { hundredth } else { SHARE_MAX }
}

/// The numbers of one account on the path that limit a stock's capacity.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// The account's limit; `u64::MAX` if there is none.
    pub limit: u64,
    /// The account's usage, units in stocks included.
    pub usage: u64,
    /// How many units of the share are taken, without the capacity of the stock that asks. An operation under way
    /// counts as one.
    pub taken: u64,
    /// The number of open stocks, including the one that asks.
    pub stocks: u64,
}

impl Facts {
    /// The largest capacity that this account allows.
    pub fn allows(&self) -> u64 {
        let share = share(self.limit);
        let left = share.saturating_sub(self.taken);
        let fair = share / (2 * self.stocks.max(1));
        let headroom = self.limit.saturating_sub(self.usage) / (4 * self.stocks.max(1));
        left.min(fair).min(headroom)
    }
}

/// The `capacity_log2` of a stock for charges of `n` units where the path allows at most `allowed` units. 0, which is
/// a closed stock, if the stock would hold less than two such charges.
pub fn capacity_log2(n: u64, allowed: u64) -> u8 {
    // A capacity is a power of two less one.
    let wanted = n.saturating_mul(CHARGES).min(allowed.saturating_add(1));
    let log2 = (wanted.max(1).ilog2() as u8).min(CAPACITY_LOG2_MAX);
    // A stock that holds less than two charges would be refilled at each charge.
    if crate::stock::capacity(log2) < n.saturating_mul(2) { 0 } else { log2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An account with this limit and usage.
    fn facts(limit: u64, usage: u64) -> Facts {
        Facts { limit, usage, taken: 0, stocks: 1 }
    }

    #[test]
    fn capacities_never_exceed_a_hundredth_of_the_limit() {
        for limit in [0, 1, 99, 100, 199, 1000, 12_345, 1 << 30, u64::MAX] {
            let mut taken = 0;
            for stocks in 1..500 {
                let allowed = Facts { limit, usage: 0, taken, stocks }.allows();
                let log2 = capacity_log2(1, allowed);
                taken += crate::stock::capacity(log2);
                assert!(taken <= share(limit) && (limit == u64::MAX || taken <= limit / 100));
            }
        }
    }

    #[test]
    fn capacities_shrink_towards_the_limit_and_end_before_it() {
        let capacities: Vec<u64> = [0, 900_000, 999_000, 999_900, 999_999, 1_000_000, 2_000_000]
            .map(|usage| crate::stock::capacity(capacity_log2(64, facts(1_000_000, usage).allows())))
            .to_vec();
        assert_eq!(capacities, [4095, 4095, 0, 0, 0, 0, 0]);
        assert_eq!(capacity_log2(1, facts(1_000_000, 999_900).allows()), 4);
    }

    #[test]
    fn a_capacity_holds_many_charges_or_none() {
        for n in [1, 3, 64, 4096, 1 << 20, 1 << 29, 1 << 40, u64::MAX] {
            for allowed in [0, 1, n, n.saturating_mul(2), n.saturating_mul(600), u64::MAX] {
                let capacity = crate::stock::capacity(capacity_log2(n, allowed));
                assert!(
                    capacity == 0 || (capacity >= 2 * n && capacity <= allowed),
                    "{n} {allowed} {capacity}"
                );
            }
        }
    }
}
