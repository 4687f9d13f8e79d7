//! Room: how large a stock may be. The rule that keeps what lies in stocks small.
//!
//! Model.   An account lets [`share`] units lie in all stocks below it: a hundredth of its limit. A
//!          stock's room is taken from the share of every account on its path when it opens, and goes
//!          back when it closes, so the bound holds whatever the number of threads and tenants. A
//!          stock wants room for [`CHARGES`] charges like the one at hand; it gets at most half of a fair
//!          part of each share, and of what is left below each limit. Near a limit that is nothing, and
//!          charges go through the tree one by one.
//! Number.  A limit of 1 GiB on 384 CPUs: 10.7 MB may lie in stocks, 16 KiB (2^14) in each.
//! Source.  Our own. The kernel's batch is fixed: 64 pages a CPU, whatever the limit.

use crate::stock::CAPACITY_LOG2_MAX;

/// So many charges like the one at hand find place in a stock: a refill, about 50 ns, costs each of
/// them 0.2 ns.
pub const CHARGES: u64 = 512;

/// Accounts without a limit let so many units lie in stocks.
pub const SHARE_MAX: u64 = 1 << 26;

/// How many units may lie in all stocks below an account with this limit.
pub const fn share(limit: u64) -> u64 {
    let hundredth = limit / 100;
    if hundredth < SHARE_MAX { hundredth } else { SHARE_MAX }
}

/// What one account on the path says about a stock's room.
#[derive(Debug, Clone, Copy)]
pub struct Facts {
    /// Its limit; `u64::MAX` without.
    pub limit: u64,
    /// Its usage, stocks and all.
    pub usage: u64,
    /// How much of its share is taken, the asking stock's own room left out.
    pub taken: u64,
    /// Open stocks below it, the asking one counted.
    pub stocks: u64,
}

impl Facts {
    /// The largest room that it grants.
    pub fn allows(&self) -> u64 {
        let share = share(self.limit);
        let left = share.saturating_sub(self.taken);
        let fair = share / (2 * self.stocks.max(1));
        let headroom = self.limit.saturating_sub(self.usage) / (4 * self.stocks.max(1));
        left.min(fair).min(headroom)
    }
}

/// The room for charges of `n` units where the path allows at most `allowed`; 0 if none is worth it.
pub fn capacity_log2(n: u64, allowed: u64) -> u8 {
    // The room is a power of two less one.
    let wanted = n.saturating_mul(CHARGES).min(allowed.saturating_add(1));
    let log2 = (wanted.max(1).ilog2() as u8).min(CAPACITY_LOG2_MAX);
    // Less than two charges: it would be refilled at each.
    if crate::stock::capacity(log2) < n.saturating_mul(2) { 0 } else { log2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An account with a limit, and that much of it used.
    fn facts(limit: u64, usage: u64) -> Facts {
        Facts { limit, usage, taken: 0, stocks: 1 }
    }

    #[test]
    fn stocks_never_have_more_room_than_a_hundredth() {
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
    fn rooms_shrink_towards_the_limit_and_end_before_it() {
        let rooms: Vec<u64> = [0, 900_000, 999_000, 999_900, 999_999, 1_000_000, 2_000_000]
            .map(|usage| crate::stock::capacity(capacity_log2(64, facts(1_000_000, usage).allows())))
            .to_vec();
        assert_eq!(rooms, [4095, 4095, 0, 0, 0, 0, 0]);
        assert_eq!(capacity_log2(1, facts(1_000_000, 999_900).allows()), 4);
    }

    #[test]
    fn a_room_holds_many_charges_or_none() {
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
