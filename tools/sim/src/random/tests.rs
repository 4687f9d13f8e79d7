use super::*;

const DRAWS: u64 = 100_000;

fn draw(i: u64) -> u64 {
    Random::new(7).bits(3, Purpose::Step, i)
}

#[test]
fn a_number_depends_on_all_four_and_on_nothing_else() {
    let random = Random::new(1);
    let one = random.bits(2, Purpose::Step, 3);
    assert_eq!(one, Random::new(1).bits(2, Purpose::Step, 3));
    let others = [
        Random::new(2).bits(2, Purpose::Step, 3),
        random.bits(3, Purpose::Step, 3),
        random.bits(2, Purpose::Tick, 3),
        random.bits(2, Purpose::Step, 4),
    ];
    assert!(!others.contains(&one));
    assert_ne!(random.child(1, 2), random.child(2, 1));
}

#[test]
fn between_has_both_ends_and_is_even() {
    let mut counts = [0u64; 10];
    (0..DRAWS).for_each(|i| counts[between(draw(i), 5, 14) as usize - 5] += 1);
    assert!(counts.iter().all(|count| count.abs_diff(DRAWS / 10) < DRAWS / 100), "{counts:?}");
    assert_eq!((between(u64::MAX, 4, 3), below(u64::MAX, 0)), (4, 0));
    assert_eq!(between(u64::MAX, 0, u64::MAX), u64::MAX - 1);
}

#[test]
fn jitter_stays_within_its_percent() {
    let all = || (0..DRAWS).map(|i| jittered(draw(i), Nanos(1000), 10).0);
    assert_eq!((all().min(), all().max()), (Some(900), Some(1100)));
    assert_eq!(jittered(draw(0), Nanos(1000), 0), Nanos(1000));
}

#[test]
fn the_exponential_has_its_mean_and_its_tail() {
    let mean = 10_000;
    let all: Vec<u64> = (0..DRAWS).map(|i| exponential(draw(i), Nanos(mean)).0).collect();
    let sum: u64 = all.iter().sum();
    assert!((sum / DRAWS).abs_diff(mean) < mean / 50, "{}", sum / DRAWS);
    // A share of exp(-1) of them exceeds the mean, and of exp(-3) three times the mean.
    let longer = |than: u64| all.iter().filter(|ns| **ns > than).count() as u64;
    assert!(longer(mean).abs_diff(DRAWS * 36788 / 100_000) < DRAWS / 100, "{}", longer(mean));
    assert!(longer(3 * mean).abs_diff(DRAWS * 4979 / 100_000) < DRAWS / 100, "{}", longer(3 * mean));
    assert!(exponential(0, Nanos(mean)).0 <= 46 * mean && exponential(u64::MAX, Nanos(mean)).0 <= 1);
}
