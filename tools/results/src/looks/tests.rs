use super::*;
use fastrand::Rng;

/// The probability that the interval between two ranks misses the true median, by counting all outcomes of `n` coins.
fn missed(n: usize, [low, high]: [usize; 2]) -> f64 {
    let mut ways = vec![1.0f64];
    for _ in 0..n {
        let mut next = vec![0.0; ways.len() + 1];
        for (below, ways) in ways.iter().enumerate() {
            next[below] += ways / 2.0;
            next[below + 1] += ways / 2.0;
        }
        ways = next;
    }
    // The median is below the interval if at most `low` ratios are below it, above it if more than `high` are.
    ways[..=low].iter().sum::<f64>() + ways[high + 1..].iter().sum::<f64>()
}

#[test]
fn the_ranks_are_the_narrowest_and_all_looks_together_keep_the_error() {
    assert_eq!(ranks(16), [2, 13]);
    for n in LOOKS {
        let [low, high] = ranks(n);
        assert!(missed(n, [low, high]) <= error_of(n));
        assert!(missed(n, [low + 1, high - 1]) > error_of(n), "{n}: a narrower interval would do");
    }
    let spent: f64 = LOOKS.into_iter().map(|n| missed(n, ranks(n))).sum();
    assert!(spent <= ERROR && spent > ERROR / 2.0, "{spent}");
    assert!((LOOKS.into_iter().map(error_of).sum::<f64>() - ERROR).abs() < 1e-12);
}

#[test]
#[should_panic(expected = "no look after 17 rounds")]
fn there_is_no_look_in_between() {
    look("requests", &[1.0; 17], Bound::AtLeast);
}

#[test]
fn a_verdict_is_where_the_interval_is() {
    // The interval of 16 ratios is from the third to the last but two.
    let at = |low: f64, high: f64, better| {
        let mut ratios = [low; 16];
        ratios[8..].fill(high);
        let seen = look("requests", &ratios, better);
        assert_eq!(seen.interval, [low, high]);
        seen.verdict
    };
    use Verdict::*;
    let rate = |low, high| at(low, high, Bound::AtLeast);
    assert_eq!([rate(0.95, 1.05), rate(0.96, 0.97), rate(1.0, 1.0)], [Level; 3]);
    assert_eq!([rate(0.8, 0.94), rate(1.06, 1.2)], [Behind, Ahead]);
    assert_eq!([rate(0.96, 1.06), rate(0.94, 1.0), rate(0.5, 2.0)], [NotBehind, Undecided, Undecided]);
    let time = |low, high| at(low, high, Bound::AtMost);
    let p99 = look("p99", &[1.19; 16], Bound::AtMost).verdict;
    assert_eq!([time(0.95, 1.05), time(1.0, 1.0), p99], [Level; 3]);
    assert_eq!([time(0.8, 0.94), time(1.06, 1.2)], [Ahead, Behind]);
    assert_eq!([time(0.94, 1.0), time(0.96, 1.06), time(0.5, 2.0)], [NotBehind, Undecided, Undecided]);
}

/// Noise with median 1: its logarithm is symmetric, with this spread. One round in 20 is disturbed tenfold.
fn noise(rng: &mut Rng, spread: f64) -> f64 {
    let sum: f64 = (0..12).map(|_| rng.f64()).sum::<f64>() - 6.0;
    let disturbed = if rng.u8(..20) == 0 { 10.0 } else { 1.0 };
    (sum * spread * disturbed).exp()
}

/// Compares two variants whose true ratio is known, until a verdict is final or there is no look left.
fn compare(rng: &mut Rng, truth: f64, spread: f64, better: Bound) -> Verdict {
    let mut ratios = Vec::new();
    let mut verdict = Verdict::Undecided;
    for n in LOOKS {
        while ratios.len() < n {
            ratios.push(truth * noise(rng, spread));
        }
        verdict = look("requests", &ratios, better).verdict;
        if verdict.is_final() {
            break;
        }
    }
    verdict
}

/// How many of 2000 comparisons end with a verdict for which `holds`.
fn count(truth: f64, spread: f64, holds: impl Fn(Verdict) -> bool) -> usize {
    let mut rng = Rng::with_seed((truth * 1e3 + spread * 1e6) as u64);
    let better = if truth > 1.0 { Bound::AtMost } else { Bound::AtLeast };
    (0..2000).filter(|_| holds(compare(&mut rng, truth, spread, better))).count()
}

#[test]
fn equal_variants_are_rarely_called_ahead_or_behind_and_called_level_if_they_can_be() {
    for spread in [0.01, 0.03, 0.1, 0.2, 0.4] {
        let wrong = count(1.0, spread, |verdict| matches!(verdict, Verdict::Ahead | Verdict::Behind));
        assert!(wrong <= 20, "spread {spread}: {wrong} of 2000");
    }
    for (spread, least) in [(0.01, 1990), (0.03, 1990), (0.1, 1800)] {
        let level = count(1.0, spread, |verdict| verdict == Verdict::Level);
        assert!(level >= least, "spread {spread}: {level} of 2000 are level");
    }
}

#[test]
fn at_the_edge_of_the_band_a_final_verdict_is_as_rare_as_promised() {
    // Here an interval that misses the truth is wrong on either side: level and behind are both false.
    for (edge, spread) in [(0.95, 0.02), (0.95, 0.1), (1.05, 0.05), (1.05, 0.3)] {
        let wrong = count(edge, spread, Verdict::is_final);
        assert!(wrong as f64 <= 2000.0 * ERROR, "{edge}, spread {spread}: {wrong} of 2000");
        let wrong = count(edge, spread, |verdict| verdict == Verdict::NotBehind);
        assert!(wrong as f64 <= 2000.0 * ERROR, "{edge}, spread {spread}: {wrong} of 2000 are not behind");
    }
}

#[test]
fn a_loss_of_a_tenth_is_found_and_never_called_level() {
    // As a rate, and as a time that is a tenth longer.
    for (truth, spread, least) in [(0.9, 0.03, 1990), (0.9, 0.1, 1800), (1.1, 0.03, 1990), (1.1, 0.08, 1800)]
    {
        let found = count(truth, spread, |verdict| verdict == Verdict::Behind);
        assert!(found >= least, "{truth}, spread {spread}: {found} of 2000");
        assert!(count(truth, spread, |verdict| verdict >= Verdict::Level) <= 10);
    }
}
