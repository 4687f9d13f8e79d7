//! What-if: what a recorded program would do under another policy, or on another machine, and whether that can be said.
//!
//! The windows of the recording ([`rebuild`](crate::rebuild())) are replayed to calibrate the model; under the recorded policy
//! on the recorded machine, which has to give what was recorded ([`Check`]); and on the host that is asked about. The answer is the ratio of the
//! last two, window by window, so that an error of the model that both replays have cancels out.

use crate::analysis::{Analysis, permille};
use crate::rebuild::{Rebuilt, Wakes};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use warmcore_sim::Error;
use warmcore_sim::replay::{Counts, Host, TaskKind, replay};

/// How often all windows are replayed at most.
pub const REPLAYS: u64 = ROUNDS + SLICES.len() as u64 + 2;

/// A recording is judged if so many of a hundred wakes are attributed.
pub const ATTRIBUTED_MIN: u64 = 90;

/// The most polls that are replayed, and the most in one window; windows of a recording without many polls are long.
const POLLS_MAX: u64 = 1_200_000;
const WINDOWS: u64 = 12;

/// And at most so long: of a program that hardly polls, this part is replayed.
const WINDOW_MAX_NS: u64 = 600_000_000_000;

/// A window is at least so long: a scheduler needs some time to learn what polls and moves cost.
const WINDOW_MIN_NS: u64 = 50_000_000;

/// Chooses windows: one in each of equal parts of the recording, so that all phases of the program are in them. The first and the last
/// 2 % of the recording are left out, in which a program begins and ends. A recording without many polls is one window, and so is any
/// if `is_whole`, to see what the windows leave out.
pub fn stratified(length_ns: u64, polls: u64, is_whole: bool) -> Vec<(u64, u64)> {
    let (from, length) = (length_ns / 50, length_ns / 50 * 48);
    if is_whole {
        return vec![(from, from + length)];
    }
    if polls <= POLLS_MAX || length < 2 * WINDOW_MIN_NS {
        return vec![(from, from + length.min(WINDOW_MAX_NS))];
    }
    // A window with its share of the polls that can be replayed.
    let per_window = (u128::from(length) * u128::from(POLLS_MAX) / u128::from(polls * WINDOWS)) as u64;
    let window = per_window.clamp(WINDOW_MIN_NS, WINDOW_MAX_NS);
    let windows = (length / window).clamp(1, WINDOWS);
    let part = length / windows;
    // The place within the part differs, so that what happens at a fixed period is not always or never met.
    let mut random = fastrand::Rng::with_seed(polls);
    let begin = |i| from + i * part + random.u64(..=part - window.min(part));
    (0..windows).map(begin).map(|begin| (begin, begin + window.min(part))).collect()
}

/// A figure of the recording beside the same of its replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// What it is.
    pub name: &'static str,
    /// In the recording.
    pub recorded: f64,
    /// In the replay under the recorded policy.
    pub replayed: f64,
    /// How far they may be apart: in percentage points, or the larger by the smaller.
    pub within: f64,
    /// Whether they are.
    pub is_met: bool,
}

/// A figure of the host that is asked about, by the same figure of the recorded one; in a recording of several windows with the
/// interval that holds the mean's true value with 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Change {
    /// In the replay of the recorded policy.
    pub before: f64,
    /// In the replay that is asked for.
    pub after: f64,
    /// The mean ratio over the windows.
    pub ratio: f64,
    /// The interval. `None`: there is one window.
    pub interval: Option<(f64, f64)>,
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// The part of the recording that was replayed, in thousandths.
    pub replayed_per_mille: u64,
    /// Polls of the windows, by what is known of their wakes.
    pub wakes: Wakes,
    /// Figures of the recording beside the replay under the recorded policy.
    pub checks: Vec<Check>,
    /// Why the recording says nothing about another policy. Empty: it does.
    pub refusals: Vec<String>,
    /// CPU time of a poll, in ns.
    pub cpu: Change,
    /// The median of the delays from wake to poll, in ns.
    pub p50: Change,
    /// Their 99th percentile, in ns.
    pub p99: Change,
    /// The part of the polls on the core of their task's poll before.
    pub same_core: (f64, f64),
}

/// What is asked.
#[derive(Debug, Clone)]
pub struct Question {
    /// The recorded policy on the recorded machine.
    pub recorded: Host,
    /// What is asked about.
    pub asked: Host,
    /// By how much more often arrivals come there, in thousandths.
    pub load_per_mille: u64,
}

/// Replays the windows. `is_interrupted` is asked between windows; `progress` is told after all of them, [`REPLAYS`] times at most.
///
/// # Errors
/// `Ok(None)` after an interruption; a window that is no program.
pub fn what_if(
    rebuilt: &Rebuilt,
    analysis: &Analysis,
    question: &Question,
    is_interrupted: &(dyn Fn() -> bool + Sync),
    progress: &(dyn Fn() + Sync),
) -> Result<Option<Answer>, Error> {
    let all = |windows: &[Counts]| {
        windows.iter().fold(Counts::default(), |mut sum, window| {
            sum.add(window);
            sum
        })
    };
    let recorded = all(&rebuilt.recorded);
    let Question { recorded: before, asked: after, load_per_mille } = question;
    let load = Load::of(analysis);
    let each = |kinds: &[TaskKind], host: &Host, load| {
        let done = replays(rebuilt, kinds, host, load, is_interrupted);
        progress();
        done
    };
    let calibrate =
        |kinds: &[TaskKind], host: &Host| each(kinds, host, 1000).map(|done| done.map(|done| all(&done)));
    let Some(calibrated) = Calibrated::of(rebuilt, &recorded, &load, before, &calibrate)? else {
        return Ok(None);
    };
    let kinds = &calibrated.kinds;
    let [before, after] = [before, after].map(|host| calibrated.host(host, &load));
    let Some(replayed) = each(kinds, &before, 1000)? else { return Ok(None) };
    let Some(asked) = each(kinds, &after, *load_per_mille)? else { return Ok(None) };
    let checks = checks(analysis, &recorded, &all(&replayed));
    let cpu = |counts: &Counts| counts.cpu_ns as f64 / counts.polls.max(1) as f64;
    let same = |counts: &Counts| counts.same_core as f64 / counts.followed.max(1) as f64;
    let window_ns: u64 = rebuilt.windows.iter().map(|window| window.length.0).sum();
    let (total, total_asked) = (all(&replayed), all(&asked));
    let change = |of: &dyn Fn(&Counts) -> f64| {
        let ratios: Vec<f64> = replayed
            .iter()
            .zip(&asked)
            .map(|(before, after)| of(after) / of(before))
            .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
            .collect();
        Change::of(of(&total), of(&total_asked), &ratios)
    };
    Ok(Some(Answer {
        replayed_per_mille: window_ns * 1000 / analysis.program.length_ns.max(1),
        wakes: rebuilt.wakes,
        refusals: refusals(analysis, rebuilt, &checks),
        checks,
        cpu: change(&cpu),
        p50: change(&|counts| counts.delay(500) as f64),
        p99: change(&|counts| counts.delay(990) as f64),
        same_core: (same(&total), same(&total_asked)),
    }))
}

/// Replays all windows on all CPUs of this process. `None`: it was interrupted.
fn replays(
    rebuilt: &Rebuilt,
    kinds: &[TaskKind],
    host: &Host,
    load_per_mille: u64,
    is_interrupted: &(dyn Fn() -> bool + Sync),
) -> Result<Option<Vec<Counts>>, Error> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(window) = rebuilt.windows.get(at).filter(|_| !stop.load(Relaxed)) else { break };
            if is_interrupted() {
                stop.store(true, Relaxed);
                break;
            }
            done.push((at, replay(window, kinds, host, load_per_mille, at as u64)));
        }
        done
    };
    let threads =
        std::thread::available_parallelism().map_or(1, usize::from).min(rebuilt.windows.len().max(1));
    let mut done: Vec<(usize, Result<Counts, Error>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a replay does not panic")).collect()
    });
    if stop.load(Relaxed) {
        return Ok(None);
    }
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, counts)| counts).collect::<Result<Vec<_>, _>>().map(Some)
}

impl Change {
    fn of(before: f64, after: f64, ratios: &[f64]) -> Self {
        let n = ratios.len() as f64;
        let logs: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
        let mean = logs.iter().sum::<f64>() / n.max(1.0);
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        // Of the t distribution with 2 degrees of freedom and more.
        let t = if n < 5.0 { 4.3 } else { 2.8 - 0.06 * n.min(13.0) };
        let reach = t * (variance / n.max(1.0)).sqrt();
        let interval = (n > 1.0).then(|| ((mean - reach).exp(), (mean + reach).exp()));
        Self { before, after, ratio: mean.exp(), interval }
    }
}

const BUSY: &str = "busy CPUs";

/// Two delays that are closer than this are the same: a few instructions lie between them.
const RESOLUTION_NS: f64 = 100.0;

/// The figures that a replay has to give as recorded.
fn checks(analysis: &Analysis, recorded: &Counts, replayed: &Counts) -> Vec<Check> {
    let percent = |counts: &Counts| counts.same_core as f64 * 100.0 / counts.followed.max(1) as f64;
    let factor = |name, recorded: f64, replayed: f64, within: f64| {
        let ratio = recorded.max(replayed) / recorded.min(replayed);
        let is_same = (recorded - replayed).abs() <= RESOLUTION_NS && name != BUSY;
        Check { name, recorded, replayed, within, is_met: ratio <= within || is_same }
    };
    let [same, same_replayed] = [percent(recorded), percent(replayed)];
    let points = 5.0;
    let delay = |per_mille| [recorded.delay(per_mille) as f64, replayed.delay(per_mille) as f64];
    let busy = |cpu_ns: f64, counts: &Counts| cpu_ns / counts.elapsed_ns.max(1) as f64;
    let [[p50, p50_replayed], [p99, p99_replayed]] = [500, 990].map(delay);
    let mut checks = vec![
        Check {
            name: "polls on the core of the task's poll before, %",
            recorded: same,
            replayed: same_replayed,
            within: points,
            is_met: (same - same_replayed).abs() <= points,
        },
        factor("wake to poll, median, ns", p50, p50_replayed, 1.5),
        factor("wake to poll, 99th percentile, ns", p99, p99_replayed, 1.5),
    ];
    if let Some(by_polled) = Load::of(analysis).cpu_by_polled {
        let recorded = busy(recorded.cpu_ns as f64 * by_polled, recorded);
        checks.push(factor(BUSY, recorded, busy(replayed.cpu_ns as f64, replayed), 1.1));
    }
    checks
}

/// What the kernel says of the CPUs.
#[derive(Clone, Copy)]
struct Load {
    /// The CPU time of the workers' threads by the time in their polls. `None`: not known.
    cpu_by_polled: Option<f64>,
    /// The part of the time in polls that was on a CPU, in thousandths. The kernel is assumed to take the CPU from all polls alike.
    on_cpu_per_mille: u64,
    /// How many CPUs were busy with other threads.
    others_per_mille: u64,
    /// Whether the workers found that.
    others_run: bool,
}

impl Load {
    fn of(analysis: &Analysis) -> Self {
        let has_workers = analysis.threads.iter().any(|thread| thread.worker.is_some());
        let (mut cpu, mut delay, mut polled) = (0, 0, 0);
        for thread in analysis.threads.iter().filter(|thread| thread.worker.is_some() || !has_workers) {
            cpu += thread.kernel.iter().map(|interval| interval.cpu_ns).sum::<u64>();
            delay += thread.kernel.iter().map(|interval| interval.run_delay_ns).sum::<u64>();
            polled += thread.polled_ns;
        }
        let workers = permille(cpu, analysis.program.length_ns);
        let all = u64::from(analysis.coverage.cpus) * 1000;
        let machine = analysis.coverage.machine_busy_permille.map(|busy| busy.min(all));
        let others = machine.unwrap_or(0).saturating_sub(workers);
        Self {
            cpu_by_polled: (cpu > 0 && polled > 0).then(|| cpu as f64 / polled as f64),
            on_cpu_per_mille: if cpu > 0 { permille(cpu, cpu + delay) } else { 1000 },
            others_per_mille: others,
            // The fraction is that of `Workers::compare_idle`.
            others_run: 3 * others > all.saturating_sub(workers),
        }
    }
}

/// What is not in a recording, and makes a replay under the recorded policy take as much time as was recorded.
struct Calibrated {
    /// The kinds, with the part of their polls that is their own.
    kinds: Vec<TaskKind>,
    /// What the driver takes for each wake from outside, besides the wake.
    event: u64,
    /// For how long the kernel lets a worker run while another thread waits.
    slice: u64,
}

/// The rounds in which the lengths of polls are found: a further one changes less than the seed does.
const ROUNDS: u64 = 2;

/// At least this part of a poll is the task's own, in thousandths.
const OWN_MIN: u64 = 50;

/// A driver takes no more for an event, in ns: more has another cause.
const EVENT_MAX: u64 = 5_000;

/// The slices that are tried, in ns, the kernel's own first.
const SLICES: [u64; 4] = [1_400_000, 350_000, 90_000, 20_000];

/// Replays all windows, and returns the sum of what they count.
type ReplayAll<'a> = &'a dyn Fn(&[TaskKind], &Host) -> Result<Option<Counts>, Error>;

impl Calibrated {
    /// Calibrates the CPU time of polls first, and what a driver takes, without other threads; and then how the kernel shares the CPUs
    /// with these, by how much longer polls take.
    fn of(
        rebuilt: &Rebuilt,
        recorded: &Counts,
        load: &Load,
        host: &Host,
        replay_all: ReplayAll,
    ) -> Result<Option<Self>, Error> {
        let mut kinds = rebuilt.kinds.clone();
        kinds.iter_mut().for_each(|kind| kind.own_per_mille = load.on_cpu_per_mille);
        let mut found = Self { kinds, event: 0, slice: SLICES[0] };
        let alone = Load { others_per_mille: 0, ..*load };
        let cpu_ns = load.cpu_by_polled.map(|by_polled| (recorded.cpu_ns as f64 * by_polled) as u64);
        for _ in 0..ROUNDS {
            let Some(counts) = replay_all(&found.kinds, &found.host(host, &alone))? else { return Ok(None) };
            let missing = cpu_ns.map_or(0, |cpu_ns| cpu_ns.saturating_sub(counts.cpu_ns));
            found.event = (found.event + missing.checked_div(counts.arrivals).unwrap_or(0)).min(EVENT_MAX);
            for ((kind, recorded), replayed) in
                found.kinds.iter_mut().zip(&recorded.by_kind).zip(&counts.by_kind)
            {
                let mean = |(polls, ns): &(u64, u64)| ns.checked_div(*polls);
                let (Some(length), Some(replayed)) = (mean(recorded), mean(replayed)) else { continue };
                // The task's own part is what is left of the recorded time without what the runtime added.
                let own = length * kind.own_per_mille / 1000;
                let left =
                    (length * load.on_cpu_per_mille / 1000).saturating_sub(replayed.saturating_sub(own));
                kind.own_per_mille = (left * 1000).checked_div(length).unwrap_or(1000).clamp(OWN_MIN, 1000);
            }
        }
        if load.others_per_mille > 0 {
            let mean = |counts: &Counts| {
                let (polls, ns) =
                    counts.by_kind.iter().fold((0, 0), |sum, kind| (sum.0 + kind.0, sum.1 + kind.1));
                (ns as f64 / polls.max(1) as f64).max(1.0)
            };
            let mut best = f64::INFINITY;
            for slice in SLICES {
                let tried = Self { slice, kinds: Vec::new(), ..found };
                let Some(counts) = replay_all(&found.kinds, &tried.host(host, load))? else {
                    return Ok(None);
                };
                let error = (mean(&counts) / mean(recorded)).ln().abs();
                if error < best {
                    (best, found.slice) = (error, slice);
                }
            }
        }
        Ok(Some(found))
    }

    /// A host with what was found.
    fn host(&self, host: &Host, load: &Load) -> Host {
        let Load { others_per_mille, others_run, .. } = *load;
        let mut host = Host { others_per_mille, others_run, ..host.clone() };
        host.settings.calls.event = self.event;
        host.settings.outside.slice = self.slice;
        host
    }
}

/// Why nothing is said of another policy.
fn refusals(analysis: &Analysis, rebuilt: &Rebuilt, checks: &[Check]) -> Vec<String> {
    let mut refusals = Vec::new();
    let coverage = &analysis.coverage;
    let recorded = coverage.polls * 100 / coverage.all_polls().max(1);
    if recorded < ATTRIBUTED_MIN {
        refusals.push(format!(
            "{recorded} % of the polls are in the recording, and {ATTRIBUTED_MIN} % are needed: of a wake by a task that is not \
             recorded it is not known who woke. Record for a shorter time, or with a larger WARMCORE_RECORD_MAX"
        ));
    }
    let wakes = rebuilt.wakes;
    let attributed = (wakes.by_tasks + wakes.from_outside) * 100 / wakes.all().max(1);
    if attributed < ATTRIBUTED_MIN {
        refusals.push(format!(
            "of {attributed} % of the wakes the recording says who woke, and {ATTRIBUTED_MIN} % are needed"
        ));
    }
    for check in checks.iter().filter(|check| !check.is_met) {
        let Check { name, recorded, replayed, .. } = check;
        refusals.push(format!("{name}: {recorded:.1} was recorded, and the replay gives {replayed:.1}"));
    }
    refusals
}
