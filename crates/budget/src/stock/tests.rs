//! Performs the same steps on the three kinds (on the rseq kind if sections run here) and checks that they return the
//! same results.

use super::*;
use fastrand::Rng;
use warmcore_sys::affinity;

#[derive(Debug, Clone, Copy)]
enum Step {
    Charge(u32),
    Uncharge(u32),
    Refill(u32, u8),
    Reduction(Reduction),
    Bind,
}

/// The state that the account `key` sees in its slot, without what is particular to a kind.
fn seen(snapshot: &StockSnapshot) -> (Key, i32, u8, bool) {
    (snapshot.key, snapshot.free, snapshot.capacity_log2, snapshot.is_leaving)
}

fn do_step<S: Stocks>(stocks: &S, cpu: CpuId, key: Key, step: Step, stale: Option<&StockSnapshot>) -> bool {
    let snapshot = stocks.snapshot(cpu, key);
    let snapshot = stale.unwrap_or(&snapshot);
    match step {
        Step::Charge(n) => stocks.charge(|| cpu, key, n),
        Step::Uncharge(n) => stocks.uncharge(|| cpu, key, n),
        Step::Refill(units, capacity_log2) => stocks.refill(cpu, key, snapshot, units, capacity_log2),
        Step::Reduction(to) => stocks.reduce(cpu, key, snapshot, to),
        Step::Bind => stocks.bind(cpu, key, snapshot),
    }
}

/// Repeats an operation that is expected to succeed, up to 100 times: a section that is aborted returns false and has
/// changed nothing.
fn do_undisturbed<S: Stocks>(stocks: &S, cpu: CpuId, key: Key, step: Step, expected: bool) -> bool {
    let tries = if expected { 100 } else { 1 };
    (0..tries).any(|_| do_step(stocks, cpu, key, step, None))
}

#[test]
fn all_kinds_give_the_same_answers() {
    let runs_sections = matches!(warmcore_percpu::try_backend(), Ok(warmcore_percpu::Backend::Rseq(_)));
    let before = affinity::allowed().unwrap();
    let cpu = before.iter().next().unwrap();
    affinity::pin(cpu).unwrap();
    let cpus = affinity::nr_cpu_ids() as u32;
    // SAFETY: the backend was chosen.
    let (atomic, locked, rseq) =
        (AtomicStocks::new(cpus), LockedStocks::new(cpus), unsafe { RseqStocks::new(cpus) });
    let mut rng = Rng::with_seed(7);
    // Both keys share one slot.
    let keys: [Key; 2] = [5, 5 + 2048];
    for i in 0..200_000 {
        let key = keys[rng.u64(..2) as usize];
        let snapshot = atomic.snapshot(cpu, key);
        let free = snapshot.free as u32;
        let n = [0, 1, free, free + 1, rng.u64(..100) as u32, 1 << 29][rng.u64(..6) as usize];
        let is_mine = snapshot.key == key;
        let step = match rng.u64(..20) {
            0..7 => Step::Charge(n),
            7..14 => Step::Uncharge(n),
            14..16 if is_mine => {
                let capacity_log2 = snapshot.capacity_log2.max(rng.u64(..12) as u8);
                let most = capacity(capacity_log2) - u64::from(free);
                Step::Refill(rng.u64(..most + 1) as u32, capacity_log2)
            }
            16..18 => {
                let closes = rng.u64(..3) == 0;
                let taken = if closes { free } else { rng.u64(..u64::from(free) + 1) as u32 };
                let capacity_log2 = if closes { 0 } else { snapshot.capacity_log2 };
                Step::Reduction(Reduction { taken: taken as i32, capacity_log2, mark: rng.u64(..2) == 0 })
            }
            _ if free == 0 && !snapshot.is_open() => Step::Bind,
            _ => continue,
        };
        let expected = do_step(&atomic, cpu, key, step, None);
        assert_eq!(do_step(&locked, cpu, key, step, None), expected, "{i}: {step:?} in {snapshot:?}");
        let snapshots =
            keys.map(|key| (atomic.snapshot(cpu, key), locked.snapshot(cpu, key), rseq.snapshot(cpu, key)));
        for (atomic, locked, _) in &snapshots {
            assert_eq!((seen(atomic), atomic.is_idle), (seen(locked), locked.is_idle), "{i}: {step:?}");
        }
        if runs_sections {
            assert_eq!(
                do_undisturbed(&rseq, cpu, key, step, expected),
                expected,
                "{i}: {step:?} in {snapshot:?}"
            );
            assert_eq!(seen(&atomic.snapshot(cpu, key)), seen(&rseq.snapshot(cpu, key)), "{i}: {step:?}");
        }
    }
    affinity::set_allowed(&before).unwrap();
}

fn an_outdated_snapshot_changes_nothing<S: Stocks>(stocks: &S, cpu: CpuId) {
    let (key, closed) = (7, Reduction { taken: 0, capacity_log2: 0, mark: false });
    let unbound = stocks.snapshot(cpu, key);
    assert!(unbound.key == 0 && !unbound.is_open() && !stocks.charge(|| cpu, key, 1));
    assert!(stocks.bind(cpu, key, &unbound));
    let bound = stocks.snapshot(cpu, key);
    assert!(stocks.refill(cpu, key, &bound, 10, 5));
    for step in [Step::Refill(1, 5), Step::Reduction(closed), Step::Bind] {
        assert!(!do_step(stocks, cpu, key, step, Some(&bound)), "{step:?}");
    }
    let full = stocks.snapshot(cpu, key);
    assert_eq!((full.free, full.capacity()), (10, 31));
    // 31 units fit, and not one more.
    assert!(!stocks.uncharge(|| cpu, key, 22) && stocks.uncharge(|| cpu, key, 21));
    assert!(!stocks.charge(|| cpu, key, 32) && stocks.charge(|| cpu, key, 31));
    assert!(!stocks.charge(|| cpu, key + 2048, 0) && !stocks.uncharge(|| cpu, key + 2048, 1));
    let empty = stocks.snapshot(cpu, key);
    assert!(stocks.reduce(cpu, key, &empty, closed));
    assert!(!stocks.uncharge(|| cpu, key, 1) && !stocks.charge(|| cpu, key, 1));
}

#[test]
fn outdated_snapshots_change_nothing() {
    an_outdated_snapshot_changes_nothing(&AtomicStocks::new(4), CpuId(2));
    an_outdated_snapshot_changes_nothing(&LockedStocks::new(4), CpuId(2));
}

#[test]
fn use_after_the_mark_clears_idle() {
    let (atomic, cpu, key) = (AtomicStocks::new(1), CpuId(0), 3);
    assert!(atomic.bind(cpu, key, &atomic.snapshot(cpu, key)));
    assert!(atomic.refill(cpu, key, &atomic.snapshot(cpu, key), 100, 10));
    assert!(!atomic.snapshot(cpu, key).is_idle);
    let mark = Reduction { taken: 0, capacity_log2: 10, mark: true };
    assert!(atomic.reduce(cpu, key, &atomic.snapshot(cpu, key), mark));
    assert!(atomic.snapshot(cpu, key).is_idle);
    for n in 1..6 {
        assert!(atomic.charge(|| cpu, key, n) && !atomic.snapshot(cpu, key).is_idle);
        assert!(atomic.uncharge(|| cpu, key, n) && atomic.snapshot(cpu, key).is_idle, "as it was");
    }
}

#[test]
fn a_word_decodes_to_its_tag_and_units() {
    for key in [1, 2047, 2048, KEYS_END - 1] {
        for mark in [0, 1, 6, LEAVING] {
            for capacity_log2 in [0, 1, CAPACITY_LOG2_MAX] {
                let tag = Tag { key, mark, capacity_log2 };
                for units in [0, 1, u32::MAX] {
                    let word = tag.with(units);
                    assert_eq!((Tag::of(word), word as u32), (tag, units));
                }
            }
        }
    }
}
