//! Locked: a stock behind a lock, as it was published. Reference and simulation only.
//!
//! Model.   The kernel holds the lock with preemption off. A user-space thread can't: whoever holds it
//!          may lose its CPU, and a thread of higher priority that spins for it there waits for ever
//!          (`tests/preemption.rs` shows it). So nothing hands this kind to users.
//! Number.  In the kernel the lock cost the owner 2 to 13 cycles, and took 63 % off a drain of 128 CPUs.
//! Writers. The lock's holder, which is who put a 1 where a 0 was.
//! Source.  linux-mm, January 2023, "Introduce memcg_stock_pcp remote draining", v2.

use super::table::{Place, Table};
use super::word::look;
use super::{Key, Look, Lower, Stocks, Tag, mark_of};
use std::sync::atomic::{AtomicU64, Ordering::*};
use warmcore_types::CpuId;

/// A lock in every stock: what was published, and why it is not what users get.
#[derive(Debug)]
pub struct Locked(Table);

/// While it lives, its word is this thread's alone.
struct Held<'a> {
    lock: &'a AtomicU64,
    word: &'a AtomicU64,
}

impl Locked {
    /// As [`Word::new`](super::Word::new).
    pub fn new(cpus: u32) -> Self {
        Self(Table::new(cpus))
    }

    /// Whether somebody has that stock's lock now. For the test that shows what this kind is not for.
    pub fn is_held(&self, cpu: CpuId, key: Key) -> bool {
        self.0.stock(cpu, key)[1].load(Relaxed) != 0
    }

    #[inline(always)]
    fn hold(&self, cpu: CpuId, key: Key) -> Held<'_> {
        let [word, lock] = self.0.stock(cpu, key);
        // ORDERING: Acquire; pairs with the Release in `drop`.
        while lock.compare_exchange_weak(0, 1, Acquire, Relaxed).is_err() {
            std::hint::spin_loop();
        }
        Held { lock, word }
    }

    fn replace(&self, cpu: CpuId, key: Key, seen: &Look, tag: Tag, units: u32) -> bool {
        let held = self.hold(cpu, key);
        let is_as_seen = held.word.load(Relaxed) == seen.words[0];
        if is_as_seen {
            held.word.store(tag.with(units), Relaxed);
        }
        is_as_seen
    }
}

impl Drop for Held<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // ORDERING: Release; pairs with the Acquire in `hold`.
        self.lock.store(0, Release);
    }
}

impl Stocks for Locked {
    const STRICT: bool = true;
    const NAME: &'static str = "lock";

    fn cpus(&self) -> u32 {
        self.0.cpus()
    }

    #[inline(always)]
    fn charge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        let held = self.hold(cpu(), key);
        let word = held.word.load(Relaxed);
        let fits = Tag::of(word).key == key && word as u32 >= n;
        if fits {
            held.word.store(word - u64::from(n), Relaxed);
        }
        fits
    }

    #[inline(always)]
    fn uncharge(&self, cpu: impl Fn() -> CpuId, key: Key, n: u32) -> bool {
        let held = self.hold(cpu(), key);
        let word = held.word.load(Relaxed);
        let (tag, units) = (Tag::of(word), u64::from(word as u32) + u64::from(n));
        let fits = tag.key == key && units >> tag.room_log2 == 0;
        if fits {
            held.word.store(tag.with(units as u32), Relaxed);
        }
        fits
    }

    fn place(&self, key: Key) -> Place {
        self.0.place(key)
    }

    fn look(&self, cpu: CpuId, key: Key) -> Look {
        look(self.hold(cpu, key).word.load(Relaxed))
    }

    fn raise(&self, cpu: CpuId, key: Key, seen: &Look, units: u32, room_log2: u8) -> bool {
        self.replace(cpu, key, seen, Tag { key, mark: 0, room_log2 }, seen.free as u32 + units)
    }

    fn lower(&self, cpu: CpuId, key: Key, seen: &Look, to: Lower) -> bool {
        let units = (seen.free - to.taken) as u32;
        let mark = if to.mark { mark_of(units) } else { 0 };
        self.replace(cpu, key, seen, Tag { key: seen.key, mark, room_log2: to.room_log2 }, units)
    }

    fn bind(&self, cpu: CpuId, key: Key, seen: &Look) -> bool {
        self.replace(cpu, key, seen, Tag { key, mark: 0, room_log2: 0 }, 0)
    }

    fn resident_bytes(&self) -> std::io::Result<usize> {
        self.0.resident_bytes()
    }
}
