//! Runs a slice on every variant (a runtime, or one thread without a runtime) in every round, and makes the rows.
//!
//! A slice yields one number per metric. A row is the distribution over the rounds; a ratio compares slices of the same
//! round. A 99th percentile is computed for each slice, and its row is the distribution over the slices, so its median
//! is the tail of an ordinary slice, not of the worst one.

use crate::measure::{Effort, check_interrupted, in_rounds, promised_first};
use crate::runtimes::Contender;
use std::time::Duration;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// The number of rounds, and the length of the warm-up and of the measurement of a slice.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub rounds: usize,
    pub warm: Duration,
    pub measure: Duration,
}

impl Plan {
    /// Chooses between a full run, a quick run and a number of slices; `full` and `quick` are the warm-up and the
    /// measurement of a slice, in ms.
    fn new(effort: Effort, full: [u64; 2], quick: [u64; 2]) -> Self {
        let (rounds, times) = match effort.rounds {
            _ if effort.is_quick() => (9, quick),
            rounds if rounds == Effort::FULL.rounds => (15, full),
            rounds => (rounds, full),
        };
        let [warm, measure] = times.map(Duration::from_millis);
        Self { rounds, warm, measure: measure.max(effort.slice) }
    }

    /// For tasks that are busy all the time.
    pub fn busy(effort: Effort) -> Self {
        Self::new(effort, [6, 30], [3, 10])
    }

    /// For tasks that mostly wait: measurements that are `times` as long as in [`Plan::busy`], with the same warm-up.
    pub fn slow(effort: Effort, times: u64) -> Self {
        Self::new(effort, [6, 30 * times], [3, 10 * times])
    }

    /// For servers.
    pub fn requests(effort: Effort) -> Self {
        Self::new(effort, [50, 300], [20, 120])
    }
}

/// A number that a slice measures.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    pub unit: &'static str,
}

/// A rate, in thousands per second.
pub const fn rate(name: &'static str) -> Metric {
    Metric { name, unit: "k/s" }
}

/// A time.
pub const fn time(name: &'static str) -> Metric {
    Metric { name, unit: "ns" }
}

/// The CPU time of the process per operation, where an operation is what the first rate of the case counts. Other
/// runtimes in the process would add theirs, so a case has this metric only if it runs on one runtime and does not
/// measure CPU time itself.
const CPU: &str = "CPU per operation";

/// The metric that counts slices in which nothing happened; its row's `n` is the number of all slices of the variant.
pub const STALLED: &str = "stalled slices";

/// The results of all slices of a case.
pub struct Race {
    case: String,
    contenders: Vec<Contender>,
    metrics: &'static [Metric],
    /// The numbers, indexed by variant, metric and round.
    samples: Vec<Vec<Vec<f64>>>,
    /// The number of slices in which nothing happened, indexed by variant.
    stalled: Vec<usize>,
    /// The numbers of [`CPU`] by round; empty if the case does not have this metric.
    cpu_ns: Vec<f64>,
}

/// Whether something happened in a slice with these values: all are finite, and the first is above 0.
fn is_whole(values: &[f64]) -> bool {
    values.iter().all(|v| v.is_finite()) && values[0] > 0.0
}

/// Returns the number of a slice for its row. A slice in which nothing happened is counted too, since users also wait
/// for a stalled task: a rate that is not above 0 or not finite becomes one event in the slice, which is too high; a
/// time that is not finite becomes the slice's length, which is too low. Any other number that is not finite becomes 0.
fn bounded(metric: &Metric, value: f64, plan: Plan) -> f64 {
    let slice_ns = plan.measure.as_nanos() as f64;
    match metric.unit {
        "k/s" if !value.is_finite() || value <= 0.0 => 1e6 / slice_ns,
        "ns" if !value.is_finite() => slice_ns,
        _ if !value.is_finite() => 0.0,
        _ => value,
    }
}

impl Race {
    /// Runs all slices: `slice` runs one on the variant with this index, and returns a number for each metric. A number
    /// that is not finite, or a first number that is not above 0, means that nothing happened in the slice: see
    /// [`bounded`]. `tick` is called after each round, with the number of finished rounds. Returns an error if `slice`
    /// does or if a signal came.
    pub fn run(
        case: &str,
        contenders: &[Contender],
        metrics: &'static [Metric],
        plan: Plan,
        tick: impl Fn(usize),
        mut slice: impl FnMut(usize) -> anyhow::Result<Vec<f64>>,
    ) -> anyhow::Result<Self> {
        let mut samples = vec![vec![Vec::with_capacity(plan.rounds); metrics.len()]; contenders.len()];
        let mut stalled = vec![0; contenders.len()];
        let mut cpu_ns = Vec::new();
        let counts_cpu = matches!(contenders, [one] if *one != Contender::Go)
            && metrics.iter().all(|metric| !metric.name.starts_with("CPU"));
        let counted = metrics.iter().position(|metric| metric.unit == "k/s").filter(|_| counts_cpu);
        in_rounds(plan.rounds, contenders.len(), tick, |i| {
            let before = clock::process_cpu().0;
            let values = slice(i)?;
            let used = (clock::process_cpu().0 - before) as f64;
            check_interrupted()?;
            debug_assert_eq!(values.len(), metrics.len());
            stalled[i] += usize::from(!is_whole(&values));
            for ((samples, metric), value) in samples[i].iter_mut().zip(metrics).zip(values) {
                samples.push(bounded(metric, value, plan));
            }
            // The tasks run at this rate in the warm-up too.
            if let Some(rate) = counted.and_then(|rate| samples[i][rate].last()) {
                cpu_ns.push(used / (rate * 1e3 * (plan.warm + plan.measure).as_secs_f64()));
            }
            Ok(())
        })?;
        let (case, contenders) = (case.to_owned(), contenders.to_vec());
        Ok(Self { case, contenders, metrics, samples, stalled, cpu_ns })
    }

    /// Returns a variant's numbers in a metric, by round; `None` if the case has no such variant or metric.
    pub fn of(&self, contender: Contender, metric: &str) -> Option<&[f64]> {
        let variant = self.contenders.iter().position(|one| *one == contender)?;
        let metric = self.metrics.iter().position(|m| m.name == metric)?;
        Some(&self.samples[variant][metric])
    }

    /// Returns the variant with the lowest median in a metric, without those of Warmcore; `None` if there is no other.
    pub fn lowest_peer(&self, metric: &str) -> Option<Contender> {
        let median = |contender: Contender| {
            Row::of("", "", "", "", self.of(contender, metric).unwrap_or(&[f64::MAX])).median
        };
        let peers = self.contenders.iter().copied().filter(|contender| !contender.is_ours());
        peers.min_by(|a, b| median(*a).total_cmp(&median(*b)))
    }

    /// Returns Warmcore's [`ratio`](Self::ratio) over another variant in a metric, with a promise; `None` as there.
    pub fn promise(&self, metric: &str, over: Contender, kind: Bound, value: f64) -> Option<Row> {
        self.ratio(metric, Contender::Ours, over).map(|row| row.promise(kind, value))
    }

    /// Returns the ratio `contender ÷ over` in a metric; `None` if the case has not both variants or the ratio is not finite
    /// in some round.
    pub fn ratio(&self, metric: &str, contender: Contender, over: Contender) -> Option<Row> {
        let (above, below) = (self.of(contender, metric)?, self.of(over, metric)?);
        let row = Row::ratio(&self.case, contender.name(), over.name(), above, below);
        // Leave out a ratio that is not finite, such as a share of 0 over a share of 0.
        if ![row.p25, row.median, row.min, row.max].iter().all(|v| v.is_finite()) {
            return None;
        }
        let is_first = self.metrics[0].name == metric;
        let metric = if is_first { "ratio".to_owned() } else { format!("ratio, {metric}") };
        Some(Row { metric, ..row })
    }

    /// Returns the rows: those of [`numbers`](Self::numbers), then those of [`ratios`](Self::ratios).
    pub fn rows(&self, promises: impl IntoIterator<Item = Option<Row>>) -> Vec<Row> {
        [self.numbers(&[]), self.ratios(promises)].concat()
    }

    /// Returns the rows with the numbers, then one of [`CPU`] if the case has it, then a row [`STALLED`] for each variant
    /// that has such slices. `own` has the promises about Warmcore's numbers, without a comparison.
    pub fn numbers(&self, own: &[(&str, Bound, f64)]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (m, metric) in self.metrics.iter().enumerate() {
            for (contender, samples) in self.contenders.iter().zip(&self.samples) {
                let row = Row::of(&self.case, contender.name(), metric.name, metric.unit, &samples[m]);
                let promised =
                    own.iter().find(|(name, ..)| *name == metric.name && *contender == Contender::Ours);
                rows.push(match promised {
                    Some((_, kind, value)) => row.promise(*kind, *value),
                    None => row,
                });
            }
        }
        if !self.cpu_ns.is_empty() {
            rows.push(Row::of(&self.case, self.contenders[0].name(), CPU, "ns", &self.cpu_ns));
        }
        for ((contender, stalled), samples) in self.contenders.iter().zip(&self.stalled).zip(&self.samples) {
            if *stalled > 0 {
                let (case, contender, slices) = (&self.case, contender.name(), samples[0].len() as u64);
                rows.push(Row::exact(case, contender, STALLED, "slices", *stalled as f64, slices));
            }
        }
        rows
    }

    /// Returns the rows with the promises, then Warmcore's other finite ratios over the other variants in the first
    /// metric.
    pub fn ratios(&self, promises: impl IntoIterator<Item = Option<Row>>) -> Vec<Row> {
        let others = self.contenders.iter().filter(|contender| **contender != Contender::Ours);
        let ratio = |over: &Contender| self.ratio(self.metrics[0].name, Contender::Ours, *over);
        promised_first(promises, others.filter_map(ratio).collect())
    }
}
