//! Stocks under preemption by a real kernel, in a process of their own, so that every counted abort is one of these
//! operations. `cargo xtask test --full` also runs this with lengthened sections (feature `delay`).
#![cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]

use fastrand::Rng;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use warmcore_sys::map::Region;
use warmcore_sys::rseq::{PercpuMode, RseqArea, aborts, register_thread, section::*, support};
use warmcore_sys::{affinity, affinity::nr_cpu_ids};
use warmcore_types::CpuId;

/// A pair of cache lines per CPU.
const SHIFT: u32 = 7;
/// The length of one round of operations.
const ROUND: Duration = Duration::from_millis(400);
/// The largest number of rounds.
const ROUNDS_MAX: usize = 25;
/// The number of aborts after which a test ends.
const ABORTS_WANTED: u64 = 20;

/// Runs the tests one after the other, since they count the aborts of the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    #[cfg(feature = "delay")]
    DELAY_SPINS.store(200, Relaxed);
    support().expect("the test machine has rseq");
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Repeats `round` until enough sections were aborted. Panics after [`ROUNDS_MAX`] rounds with fewer aborts, because
/// then nothing was tested.
fn until_aborted(mut round: impl FnMut()) {
    let before = aborts();
    for _ in 0..ROUNDS_MAX {
        round();
        if aborts() - before >= ABORTS_WANTED {
            return;
        }
    }
    panic!("{} sections were aborted in {ROUNDS_MAX} rounds: nothing was tested", aborts() - before);
}

/// A stock for every possible CPU.
struct Table(Region);

impl Table {
    fn new(stock: [u64; 2]) -> Self {
        let table = Self(Region::reserve(nr_cpu_ids() << SHIFT).unwrap());
        for cpu in 0..nr_cpu_ids() {
            table.word(cpu, 0).store(stock[0], Relaxed);
            table.word(cpu, 1).store(stock[1], Relaxed);
        }
        table
    }

    fn first(&self) -> *mut u8 {
        self.0.start().as_ptr()
    }

    fn word(&self, cpu: usize, i: usize) -> &AtomicU64 {
        // SAFETY: inside the region, aligned.
        unsafe { self.0.start().add((cpu << SHIFT) + 8 * i).cast::<AtomicU64>().as_ref() }
    }

    /// Returns (used, granted).
    fn counts(&self, cpu: usize) -> (u32, u32) {
        (self.word(cpu, 0).load(Relaxed) as u32, self.word(cpu, 1).load(Relaxed) as u32)
    }

    /// Returns the sum of free units of all CPUs; debts count as negative.
    fn free(&self) -> i64 {
        let free = |(used, granted): (u32, u32)| i64::from(granted.wrapping_sub(used) as i32);
        (0..nr_cpu_ids()).map(|cpu| free(self.counts(cpu))).sum()
    }
}

fn area() -> RseqArea {
    assert!(register_thread());
    RseqArea::lookup(PercpuMode::Cpu).expect("this thread is registered")
}

fn cpus() -> Vec<CpuId> {
    affinity::allowed().unwrap().iter().collect()
}

/// The kinds of threads that start on each CPU: busy ones; nappers, which sleep, and whose wakes preempt the busy
/// threads inside a section; and wanderers, which move to a random CPU after every 500 operations.
#[derive(Clone, Copy, PartialEq)]
enum ThreadKind {
    Busy,
    Napper,
    Wanderer,
}

/// Totals of what a thread did. Each thread has its own: with shared ones the threads would spend most of their time
/// outside of sections.
type Tally = [i64; 3];

/// Calls `act` until the end of the round, on five threads that start on each CPU. Returns the sum of their totals.
fn disturbed(act: impl Fn(RseqArea, &mut Rng, &mut Tally) + Sync) -> Tally {
    let (cpus, began, act) = (&cpus(), Instant::now(), &act);
    let kinds =
        [ThreadKind::Busy, ThreadKind::Busy, ThreadKind::Napper, ThreadKind::Napper, ThreadKind::Wanderer];
    let work = |cpu: CpuId, kind: ThreadKind, seed: usize| {
        affinity::pin(cpu).unwrap();
        let (area, mut rng, mut tally) = (area(), Rng::with_seed(seed as u64), [0; 3]);
        while began.elapsed() < ROUND {
            let times = if kind == ThreadKind::Napper { 5 } else { 500 };
            (0..times).for_each(|_| act(area, &mut rng, &mut tally));
            match kind {
                ThreadKind::Busy => {}
                ThreadKind::Napper => std::thread::sleep(Duration::from_micros(20)),
                ThreadKind::Wanderer => affinity::pin(cpus[rng.u64(..cpus.len() as u64) as usize]).unwrap(),
            }
        }
        tally
    };
    std::thread::scope(|scope| {
        let each = cpus.iter().flat_map(|&cpu| kinds.map(|kind| (cpu, kind))).enumerate();
        let threads: Vec<_> =
            each.map(|(i, (cpu, kind))| scope.spawn(move || work(cpu, kind, i + 1))).collect();
        let tallies = threads.into_iter().map(|thread| thread.join().unwrap());
        tallies.fold([0; 3], |sum, tally| std::array::from_fn(|i| sum[i] + tally[i]))
    })
}

const KEY: u32 = 7;
/// The first value of a stock's `used` and `granted`, so that they soon wrap around at 32 bits.
const NEAR_THE_EDGE: u32 = u32::MAX - 500;
/// The capacity of the stocks, as a power of 2.
const CAPACITY_LOG2: u64 = 10;

/// Charges or uncharges at random, at times with another key, which must fail. Returns the change of the charged units.
fn charge_or_uncharge(table: &Table, area: RseqArea, rng: &mut Rng) -> i64 {
    let (n, key) = (rng.u64(..16) as u32, if rng.u64(..16) > 0 { KEY } else { !KEY });
    // SAFETY: the table has a stock for every CPU; all tests write it only in the ways that `stock_charge` allows.
    let rose = unsafe {
        match rng.u64(..2) {
            0 if stock_charge::<SHIFT>(area, table.first(), key, n) => n.into(),
            1 if stock_uncharge::<SHIFT>(area, table.first(), key, n) => -i64::from(n),
            _ => 0,
        }
    };
    assert!(key == KEY || rose == 0, "a charge with another key succeeded");
    rose
}

/// Takes the free units of each allowed CPU's stock, or pays its debt, and clears the capacity bits of its tag; leaves
/// out a stock whose `grant` changes at that moment. Returns the units taken less those paid.
fn take_everywhere(table: &Table) -> i64 {
    let take = |cpu: CpuId| {
        let [head, grant] = [0, 1].map(|i| table.word(cpu.0 as usize, i));
        let seen = grant.load(Acquire);
        let used = head.load(Relaxed) as u32;
        let new = next_tag(seen) | u64::from(used);
        let taken = grant.compare_exchange(seen, new, AcqRel, Relaxed).is_ok();
        if taken { (seen as u32).wrapping_sub(used) as i32 } else { 0 }
    };
    cpus().into_iter().map(take).map(i64::from).sum()
}

/// Returns a `grant` of 0 units with the tag that follows that of `grant`, and with capacity bits of 0.
fn next_tag(grant: u64) -> u64 {
    ((grant >> 37) + 1) << 37
}

#[test]
fn charged_and_free_units_are_the_granted_ones_less_the_taken_ones() {
    let _alone = alone();
    let edge = u64::from(NEAR_THE_EDGE);
    let table = &Table::new([u64::from(KEY) << 32 | edge, CAPACITY_LOG2 << 32 | edge]);
    let (mut charged, mut granted, mut taken) = (0, 0, 0);
    until_aborted(|| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let (mut rng, mut taken) = (Rng::with_seed(5), 0);
                while began.elapsed() < ROUND {
                    taken += take_everywhere(table);
                    std::thread::sleep(Duration::from_micros(rng.u64(..100)));
                }
                taken
            });
            let tally = disturbed(|area, rng, [charged, granted, _]| {
                if rng.u64(..8) > 0 {
                    *charged += charge_or_uncharge(table, area, rng);
                    return;
                }
                let cpu = area.index() as usize;
                let (grant, head) = (table.word(cpu, 1).load(Acquire), table.word(cpu, 0).load(Relaxed));
                let n = rng.u64(..50) as u32;
                let new = next_tag(grant) | CAPACITY_LOG2 << 32 | u64::from((grant as u32).wrapping_add(n));
                // SAFETY: as above.
                if unsafe { stock_grant::<SHIFT>(area, table.first(), cpu as u32, head, grant, new) } {
                    *granted += i64::from(n);
                }
            });
            (charged, granted, taken) =
                (charged + tally[0], granted + tally[1], taken + taker.join().unwrap());
        });
        assert_eq!(
            charged + table.free(),
            granted - taken,
            "charged {charged}, granted {granted}, taken {taken}"
        );
    });
    assert!(granted > 1000 && taken > 1000, "{granted} granted, {taken} taken: nothing was tested");
    println!("{granted} granted, {taken} taken, {charged} charged, {} aborts", aborts());
}

#[test]
fn without_takers_free_units_stay_between_0_and_the_capacity() {
    const GRANTED: u32 = 1000;
    let _alone = alone();
    let (used, granted) = (NEAR_THE_EDGE, NEAR_THE_EDGE.wrapping_add(GRANTED));
    let table =
        &Table::new([u64::from(KEY) << 32 | u64::from(used), CAPACITY_LOG2 << 32 | u64::from(granted)]);
    let (at_start, mut charged) = (table.free(), 0);
    until_aborted(|| {
        let tally = disturbed(|area, rng, [charged, ..]| {
            *charged += charge_or_uncharge(table, area, rng);
            let (used, granted) = table.counts(area.index() as usize);
            let free = granted.wrapping_sub(used) as i32;
            assert!((0..1 << CAPACITY_LOG2).contains(&free), "{free} are free");
        });
        charged += tally[0];
        assert_eq!(charged + table.free(), at_start);
    });
}

/// Heads are the numbers 1, 2, …. The lower half of a grant is the head for which it was made; other CPUs increase the
/// upper half. A head may be replaced with or without a grant. So each head is replaced once, and each grant belongs to
/// a head that was current when the grant was made: that head was replaced with its grant, or is still current with it.
#[test]
fn a_head_is_replaced_once_and_a_grant_is_made_for_the_current_head() {
    let _alone = alone();
    let table = &Table::new([1, 0]);
    let (mut left_granted, mut left, mut granted, raised) = (0, 0, 0, &AtomicU64::new(0));
    until_aborted(|| {
        let tally = disturbed(|area, rng, [left_granted, left, granted]| {
            let cpu = area.index();
            let [head, grant] = [0, 1].map(|i| table.word(cpu as usize, i).load(Acquire));
            let is_granted = grant as u32 == head as u32;
            // SAFETY: as above.
            unsafe {
                match rng.u64(..64) {
                    0 => {
                        let other = rng.u64(..nr_cpu_ids().min(4) as u64) as usize;
                        table.word(other, 1).fetch_add(1 << 32, AcqRel);
                        raised.fetch_add(1, Relaxed);
                    }
                    1..32 if !is_granted => {
                        let new = grant >> 32 << 32 | head;
                        *granted +=
                            i64::from(stock_grant::<SHIFT>(area, table.first(), cpu, head, grant, new));
                    }
                    _ => {
                        let done = stock_rebind::<SHIFT>(area, table.first(), cpu, head, grant, head + 1);
                        *if is_granted { left_granted } else { left } += i64::from(done);
                    }
                }
            }
        });
        (left_granted, left, granted) = (left_granted + tally[0], left + tally[1], granted + tally[2]);
        let words = || (0..nr_cpu_ids()).map(|cpu| [0, 1].map(|i| table.word(cpu, i).load(Relaxed)));
        let stand_granted = words().filter(|[head, grant]| *head as u32 == *grant as u32).count() as i64;
        assert_eq!(words().map(|[head, _]| head as i64 - 1).sum::<i64>(), left_granted + left, "heads");
        assert_eq!(granted, left_granted + stand_granted, "grants");
        assert_eq!(words().map(|[_, grant]| grant >> 32).sum::<u64>(), raised.load(Relaxed));
    });
    let fewest = left_granted.min(left).min(granted);
    assert!(fewest > 1000, "{left_granted} left granted, {left} not, {granted} granted: nothing was tested");
}
