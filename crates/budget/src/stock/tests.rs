//! The three kinds side by side: the same steps, the same answers.

use super::*;
use warmcore_sys::affinity;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(end)) >> 64) as u64
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Charge(u32),
    Uncharge(u32),
    Raise(u32, u8),
    Lower(Lower),
    Bind,
}

/// What the account `key` sees in its slot, without what is the kind's own.
fn seen(look: &Look) -> (Key, i32, u8, bool) {
    (look.key, look.free, look.room_log2, look.is_leaving)
}

fn do_step<S: Stocks>(stocks: &S, cpu: CpuId, key: Key, step: Step, stale: Option<&Look>) -> bool {
    let look = stocks.look(cpu, key);
    let look = stale.unwrap_or(&look);
    match step {
        Step::Charge(n) => stocks.charge(|| cpu, key, n),
        Step::Uncharge(n) => stocks.uncharge(|| cpu, key, n),
        Step::Raise(units, room_log2) => stocks.raise(cpu, key, look, units, room_log2),
        Step::Lower(to) => stocks.lower(cpu, key, look, to),
        Step::Bind => stocks.bind(cpu, key, look),
    }
}

/// A section may be disturbed, and says so: then nothing happened, and it is tried again.
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
    let (word, locked, rseq) = (Word::new(cpus), Locked::new(cpus), unsafe { Rseq::new(cpus) });
    let mut dice = Dice(7);
    // Both in one slot.
    let keys: [Key; 2] = [5, 5 + 2048];
    for i in 0..200_000 {
        let key = keys[dice.below(2) as usize];
        let look = word.look(cpu, key);
        let free = look.free as u32;
        let n = [0, 1, free, free + 1, dice.below(100) as u32, 1 << 29][dice.below(6) as usize];
        let is_mine = look.key == key;
        let step = match dice.below(20) {
            0..7 => Step::Charge(n),
            7..14 => Step::Uncharge(n),
            14..16 if is_mine => {
                let room_log2 = look.room_log2.max(dice.below(12) as u8);
                let most = room(room_log2) - u64::from(free);
                Step::Raise(dice.below(most + 1) as u32, room_log2)
            }
            16..18 => {
                let closes = dice.below(3) == 0;
                let taken = if closes { free } else { dice.below(u64::from(free) + 1) as u32 };
                let room_log2 = if closes { 0 } else { look.room_log2 };
                Step::Lower(Lower { taken: taken as i32, room_log2, mark: dice.below(2) == 0 })
            }
            _ if free == 0 && !look.is_open() => Step::Bind,
            _ => continue,
        };
        let expected = do_step(&word, cpu, key, step, None);
        assert_eq!(do_step(&locked, cpu, key, step, None), expected, "{i}: {step:?} in {look:?}");
        let looks = keys.map(|key| (word.look(cpu, key), locked.look(cpu, key), rseq.look(cpu, key)));
        for (word, locked, _) in &looks {
            assert_eq!((seen(word), word.is_idle), (seen(locked), locked.is_idle), "{i}: {step:?}");
        }
        if runs_sections {
            assert_eq!(
                do_undisturbed(&rseq, cpu, key, step, expected),
                expected,
                "{i}: {step:?} in {look:?}"
            );
            assert_eq!(seen(&word.look(cpu, key)), seen(&rseq.look(cpu, key)), "{i}: {step:?}");
        }
    }
    affinity::set_allowed(&before).unwrap();
}

fn what_changed_meanwhile_is_not_overwritten<S: Stocks>(stocks: &S, cpu: CpuId) {
    let (key, closed) = (7, Lower { taken: 0, room_log2: 0, mark: false });
    let unbound = stocks.look(cpu, key);
    assert!(unbound.key == 0 && !unbound.is_open() && !stocks.charge(|| cpu, key, 1));
    assert!(stocks.bind(cpu, key, &unbound));
    let bound = stocks.look(cpu, key);
    assert!(stocks.raise(cpu, key, &bound, 10, 5));
    for step in [Step::Raise(1, 5), Step::Lower(closed), Step::Bind] {
        assert!(!do_step(stocks, cpu, key, step, Some(&bound)), "{step:?}");
    }
    let full = stocks.look(cpu, key);
    assert_eq!((full.free, full.room()), (10, 31));
    // 31 fit, and not one more.
    assert!(!stocks.uncharge(|| cpu, key, 22) && stocks.uncharge(|| cpu, key, 21));
    assert!(!stocks.charge(|| cpu, key, 32) && stocks.charge(|| cpu, key, 31));
    assert!(!stocks.charge(|| cpu, key + 2048, 0) && !stocks.uncharge(|| cpu, key + 2048, 1));
    let empty = stocks.look(cpu, key);
    assert!(stocks.lower(cpu, key, &empty, closed));
    assert!(!stocks.uncharge(|| cpu, key, 1) && !stocks.charge(|| cpu, key, 1));
}

#[test]
fn what_changed_meanwhile_is_seen() {
    what_changed_meanwhile_is_not_overwritten(&Word::new(4), CpuId(2));
    what_changed_meanwhile_is_not_overwritten(&Locked::new(4), CpuId(2));
}

#[test]
fn use_since_the_mark_shows() {
    let (word, cpu, key) = (Word::new(1), CpuId(0), 3);
    assert!(word.bind(cpu, key, &word.look(cpu, key)));
    assert!(word.raise(cpu, key, &word.look(cpu, key), 100, 10));
    assert!(!word.look(cpu, key).is_idle);
    let mark = Lower { taken: 0, room_log2: 10, mark: true };
    assert!(word.lower(cpu, key, &word.look(cpu, key), mark));
    assert!(word.look(cpu, key).is_idle);
    for n in 1..6 {
        assert!(word.charge(|| cpu, key, n) && !word.look(cpu, key).is_idle);
        assert!(word.uncharge(|| cpu, key, n) && word.look(cpu, key).is_idle, "as it was");
    }
}

#[test]
fn a_word_says_what_was_put_into_it() {
    for key in [1, 2047, 2048, KEYS_END - 1] {
        for mark in [0, 1, 6, LEAVING] {
            for room_log2 in [0, 1, ROOM_LOG2_MAX] {
                let tag = Tag { key, mark, room_log2 };
                for units in [0, 1, u32::MAX] {
                    let word = tag.with(units);
                    assert_eq!((Tag::of(word), word as u32), (tag, units));
                }
            }
        }
    }
}
