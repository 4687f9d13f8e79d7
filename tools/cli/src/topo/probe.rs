//! Measures how long one cache line takes from CPU to CPU.
//!
//! Two pinned threads pass a number back and forth on one line: one makes it odd, the other even. A slice times one
//! pair for 0.3 to 3 ms, and its result is the median of its batches; a round is one slice of every pair, so that a
//! disturbance affects all pairs alike. One way is half of the round trip. One pair of CPUs takes 16 rounds, 2 s; the
//! 657 pairs that are timed of 384 CPUs take 16 rounds, 15 s.
//!
//! Both threads write the line, in turn; no other thread accesses it.
//!
//! Source: github.com/nviennot/core-to-core-latency, whose numbers are in crates/topo/machines.toml: the same exchange,
//! so that the results can be compared.

use super::pairs::pairs;
use super::verdict::{Timed, verdict};
use super::working_set;
use anyhow::{Context, bail, ensure};
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use warmcore_bench::measure::INTERRUPTED;
use warmcore_line::Padded;
use warmcore_report::Probe;
use warmcore_sys::{affinity, clock, platform};
use warmcore_topo::Topology;
use warmcore_types::{CpuId, CpuSet, Nanos};

/// The intended time of the slices of a probe with many pairs.
const AIM: Duration = Duration::from_secs(15);
/// The time since the first slice after which no slice begins.
const STOP: Duration = Duration::from_secs(20);
/// The number of rounds. Fewer rounds would not show drift; more don't improve the result.
const ROUNDS: std::ops::RangeInclusive<u32> = 5..=16;
/// The least duration of a round but the last, even with one pair: a hypervisor may move CPUs several times a second,
/// and a probe of 50 ms would not show that.
const ROUND_MIN: Duration = Duration::from_millis(100);
const SLICE: std::ops::RangeInclusive<Duration> = Duration::from_micros(300)..=Duration::from_millis(3);
/// The overhead of a slice: two threads are pinned, one of them is started.
const SLICE_OVERHEAD: Duration = Duration::from_micros(300);
/// A slice is abandoned if the leading thread still waits for the other this long after the slice's intended end: a
/// cgroup's quota stops threads for up to 100 ms at a time, a hypervisor stops a CPU for less.
const TIMEOUT: Duration = Duration::from_millis(250);
/// The number of round trips between two readings of the clock: 5 µs at 25 ns one way, of which reading the clock is
/// 0.5 %.
const BATCH: u64 = 100;
/// The number of tries of a waiting thread between two readings of the clock, 40 to 400 µs. After a reading the thread
/// yields, since the other thread may need this CPU.
const TRIES: u32 = 4096;
/// The number that ends the exchange.
const OVER: u64 = u64::MAX;

/// Times pairs of the CPUs that this process may use, and interprets the times. Then times walks over a working set
/// that moves between CPUs.
///
/// `progress(done, of)` is called after each slice. The slices take 2 s on 2 CPUs, 20 s at most.
///
/// # Errors
/// Fewer than two CPUs are allowed, the thread's affinity can't be read, a thread can't be started or pinned, no pair
/// gave a time, or SIGINT or SIGTERM came.
pub fn probe(topology: &Topology, progress: &dyn Fn(u64 /*done*/, u64 /*of*/)) -> anyhow::Result<Probe> {
    let usable = topology.usable();
    let pairs = pairs(topology, &usable);
    ensure!(
        !pairs.is_empty(),
        "this process may use CPUs {usable}, and a hand-over needs two; \
         allow it more (taskset, cpuset)"
    );
    let slices = time(&pairs, progress)?;
    let timed = pairs.iter().zip(slices).filter_map(|((a, b), slices)| Timed::of(*a, *b, slices));
    let timed: Vec<Timed> = timed.collect();
    if timed.is_empty() {
        bail!(
            "no pair of CPUs {usable} handed a line over within {} ms: others keep them busy, or a quota stops us; \
             try again when the machine is quiet",
            TIMEOUT.as_millis()
        );
    }
    let (verdict, noisy) = verdict(topology, &timed, platform::hypervisor().as_deref());
    let cpus: CpuSet = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
    let cpus: Vec<u32> = cpus.iter().map(|c| c.0).collect();
    let at = |cpu: CpuId| cpus.binary_search(&cpu.0).expect("every timed CPU is in the list");
    let mut hand_over_ns = vec![vec![None; cpus.len()]; cpus.len()];
    let mut spread_ns = vec![vec![None; cpus.len()]; cpus.len()];
    for pair in &timed {
        // Half a round trip is the same in both directions.
        for (i, j) in [(at(pair.a), at(pair.b)), (at(pair.b), at(pair.a))] {
            hand_over_ns[i][j] = Some(pair.median_ns);
            spread_ns[i][j] = Some((pair.lo_ns, pair.hi_ns));
        }
    }
    let working_sets = working_set::time(topology, &pairs)?;
    Ok(Probe { cpus, hand_over_ns, spread_ns, working_sets, verdict, noisy })
}

/// Returns the slices of each pair, in ns one way, without those that were abandoned.
fn time(pairs: &[(CpuId, CpuId)], progress: &dyn Fn(u64, u64)) -> anyhow::Result<Vec<Vec<f64>>> {
    let _guard = AffinityGuard(affinity::allowed().context("can't read on which CPUs this thread may run")?);
    let (rounds, slice) = plan(pairs.len() as u32);
    clock::now(); // The first call calibrates.
    let began = Instant::now();
    let mut slices = vec![Vec::new(); pairs.len()];
    let (mut done, of) = (0, u64::from(rounds) * pairs.len() as u64);
    for _ in 0..rounds {
        let round_began = Instant::now();
        for (i, (a, b)) in pairs.iter().enumerate() {
            if INTERRUPTED.load(Relaxed) {
                bail!("interrupted: the probe was not finished, and nothing of it is kept");
            }
            if began.elapsed() > STOP {
                return Ok(slices);
            }
            slices[i].extend(play(*a, *b, slice)?);
            done += 1;
            progress(done, of);
        }
        if done < of {
            std::thread::sleep(ROUND_MIN.saturating_sub(round_began.elapsed()));
        }
    }
    Ok(slices)
}

/// Returns the number of rounds and the length of a slice. All slices with their overhead take about [`AIM`], or less
/// if that is enough.
fn plan(pairs: u32) -> (u32, Duration) {
    let fit = AIM.as_micros() / (u128::from(pairs) * (Duration::from_millis(1) + SLICE_OVERHEAD).as_micros());
    let rounds = (fit as u32).clamp(*ROUNDS.start(), *ROUNDS.end());
    let slice = (AIM / (pairs * rounds)).saturating_sub(SLICE_OVERHEAD);
    (rounds, slice.clamp(*SLICE.start(), *SLICE.end()))
}

/// Gives the thread that drops it this affinity.
pub(super) struct AffinityGuard(pub(super) CpuSet);

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        let _ = affinity::set_allowed(&self.0);
    }
}

/// Runs one slice of one pair; `None` if it was abandoned.
fn play(a: CpuId, b: CpuId, slice: Duration) -> anyhow::Result<Option<f64>> {
    let line = &*Box::new(Padded::new(AtomicU64::new(0)));
    pin(a)?;
    std::thread::scope(|scope| {
        // End the follower even if the leader panics.
        let _end = End(line);
        let follower = std::thread::Builder::new().name("probe".into()).spawn_scoped(scope, move || {
            let _end = End(line);
            pin(b)?;
            follow(line, after(slice + TIMEOUT * 2));
            Ok(())
        });
        let follower =
            follower.context("can't start a thread: is a limit on tasks reached (pids.max, ulimit -u)?")?;
        let time = lead(line, slice);
        line.store(OVER, Release);
        match follower.join() {
            Ok(pinned) => pinned.map(|()| time),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn pin(cpu: CpuId) -> anyhow::Result<()> {
    affinity::pin(cpu).with_context(|| {
        format!(
            "can't pin a thread to {cpu}, which was allowed a moment ago; if its cpuset changed, run it again"
        )
    })
}

/// Ends the exchange when it is dropped, so that after a panic of one thread the other ends too.
struct End<'a>(&'a AtomicU64);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(OVER, Release);
    }
}

fn after(duration: Duration) -> Nanos {
    Nanos(clock::now().0 + duration.as_nanos() as u64)
}

/// Makes the number odd, over and over; returns the median one-way time of a batch. `None` if the follower did not
/// answer in time, or has ended the exchange.
fn lead(line: &AtomicU64, slice: Duration) -> Option<f64> {
    let give_up = after(slice + TIMEOUT);
    // The second exchange succeeds when the follower has been started, pinned and woken.
    let mut number = 0;
    (pass(line, 0, give_up) && pass(line, 2, give_up)).then(|| number = 4)?;
    let mut batches = Vec::new();
    let (mut began, end) = (clock::now(), after(slice));
    while began < end {
        for _ in 0..BATCH {
            if !pass(line, number, give_up) {
                return None;
            }
            number += 2;
        }
        let now = clock::now();
        batches.push((now.0 - began.0) as f64 / (2 * BATCH) as f64);
        began = now;
    }
    // Leave the first quarter of the batches out: clocks speed up, the CPU wakes from its sleep state.
    let cold = batches.len() / 4;
    let warm = &mut batches[cold..];
    warm.sort_by(f64::total_cmp);
    warm.get(warm.len() / 2).copied()
}

/// Makes the number even, over and over, until the exchange ends or a wait exceeds `give_up`.
fn follow(line: &AtomicU64, give_up: Nanos) {
    let mut number = 1;
    while pass(line, number, give_up) {
        number += 2;
    }
}

/// Waits for `number` and increments it; `false` if the exchange has ended or took too long.
///
/// The wait is a bare compare-exchange. A successful one has brought the line over, writable, in one transaction; a
/// load that sees the number would need a second one to write. `spin_loop` is left out too: a PAUSE takes 10 to 45 ns
/// on its own, as long as the transfer. On a virtual machine with 2 CPUs (Zen 4) this way takes 25 ns, with PAUSE 33
/// ns, by load and store 43 ns; published times for that processor are 22 to 25 ns.
fn pass(line: &AtomicU64, number: u64, give_up: Nanos) -> bool {
    let mut tries = 0u32;
    loop {
        // ORDERING: AcqRel costs no more than Relaxed on x86 and makes each exchange happen after the one before it; no
        // other data is passed.
        match line.compare_exchange(number, number + 1, AcqRel, Relaxed) {
            Ok(_) => return true,
            Err(OVER) => return false,
            Err(_) => tries += 1,
        }
        if tries == TRIES {
            tries = 0;
            if clock::now() > give_up {
                return false;
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_stays_within_the_aim_and_its_limits() {
        for pairs in [1, 2, 120, 657, 2048] {
            let (rounds, slice) = plan(pairs);
            assert!(ROUNDS.contains(&rounds) && SLICE.contains(&slice), "{pairs}: {rounds} × {slice:?}");
            assert!((slice + SLICE_OVERHEAD) * rounds * pairs <= AIM, "{pairs}: {rounds} × {slice:?}");
        }
    }

    #[test]
    fn two_cpus_hand_a_line_over_and_the_thread_is_back_where_it_was() {
        let allowed = affinity::allowed().unwrap();
        let cpus: Vec<CpuId> = allowed.iter().take(2).collect();
        let [a, b] = cpus[..] else { return };
        let _guard = AffinityGuard(allowed.clone());
        // On a busy machine the threads may not run at the same time; then the slice has no result.
        let times: Vec<f64> = (0..3).filter_map(|_| play(a, b, Duration::from_millis(1)).unwrap()).collect();
        assert!(times.iter().all(|ns| *ns > 0.0 && ns.is_finite()), "{times:?}");
        drop(_guard);
        assert_eq!(affinity::allowed().unwrap(), allowed);
    }

    #[test]
    fn a_partner_that_stays_away_does_not_hang_it() {
        let line = AtomicU64::new(0);
        assert!(pass(&line, 0, after(Duration::ZERO)));
        // No other thread increments the number, so the wait ends at the time limit.
        assert!(!pass(&line, 2, after(Duration::from_millis(1))));
        drop(End(&line));
        assert!(!pass(&line, 2, after(Duration::from_secs(3600))), "over is over");
        follow(&line, after(Duration::from_secs(3600)));
    }

    #[test]
    fn a_cpu_that_cannot_be_used_is_an_error_that_names_it() {
        let _guard = AffinityGuard(affinity::allowed().unwrap());
        let own = _guard.0.first().unwrap();
        for (a, b) in [(own, CpuId(8191)), (CpuId(8191), own)] {
            let error = play(a, b, Duration::from_millis(1)).unwrap_err().to_string();
            assert!(error.contains("can't pin a thread to cpu8191"), "{error}");
        }
    }
}
