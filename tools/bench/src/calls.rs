//! The cost of single calls of a runtime's scheduler, and of the steps of the cases that a simulation predicts.
//!
//! A simulation of the wake and HTTP cases needs to know how long a poll, a wake, a spawn and an unpark take. The
//! probe measures each of them alone: with one worker, or with one task, so that no measured case is among them. Each
//! number is the first quartile of `ROUNDS` rounds, because a disturbance only adds time; a round measures every number
//! once on each runtime. All numbers are ns. A probe takes about 10 s.
//!
//! | name | what is measured |
//! |---|---|
//! | `yield.1`, `yield.64` | a poll of a task that yields, with 1 and with 64 such tasks on one worker |
//! | `hop` | a poll that wakes the next of two tasks and waits, on one worker |
//! | `hop.channel` | the same through a bounded channel: `hop`, a send, and a receive that first finds nothing |
//! | `channel` | a send and a receive in one task, without a wake |
//! | `spawn`, `child`, `join` | spawning a task that counts down, in a task; running it; joining it when it has ended |
//! | `outside.push` | a wake by a thread that is no worker, while the only worker runs a task |
//! | `outside.spawn` | a spawn by a thread that is no worker, while the only worker runs a task |
//! | `unpark.N`, `latency.N` | a wake N µs after the only worker's last poll: the call, and from the call to the poll |
//! | `cycle` | CPU time of the worker from one such wake to the next, with one poll, 10 µs apart |
//! | `http.server`, `http.client` | CPU time of a request to a server with one worker; eight requests come at once |
//!
//! Besides, `steps` has `chase.warm` and `chase.moved`: a chase through 256 KiB that this CPU chased last, and that the
//! other CPU chased last; `send` and `receive` for a message of a channel whose other side is on the same CPU (`.warm`)
//! or on another one (`.moved`); and `eventfd`, a write to a descriptor that no thread waits for.

mod steps;
mod waking;

use crate::measure::check_interrupted;
use crate::runtimes::cpus;
use crate::wake::{Executor, Ours, Tokio};
use anyhow::Context;
use std::collections::BTreeMap;
use std::time::Duration;
use warmcore_runtime::Runtime;
use warmcore_sys::affinity;

/// The number of rounds, of about 0.3 s each.
const ROUNDS: usize = 31;

/// The pauses before a wake of a worker that has no tasks, in µs, and the names of their numbers. After the shortest one
/// the worker is on its way to sleep, after the longest one its CPU sleeps deeply.
const PAUSES: [(u64, [&str; 2]); 5] = [
    (2, ["unpark.2", "latency.2"]),
    (10, ["unpark.10", "latency.10"]),
    (50, ["unpark.50", "latency.50"]),
    (300, ["unpark.300", "latency.300"]),
    (2000, ["unpark.2000", "latency.2000"]),
];

/// The pause with which the CPU time of a park is measured: the worker sleeps, and its CPU not deeply.
const CYCLE_PAUSE: u64 = 10;

/// Numbers by their names, in ns.
pub type Numbers = BTreeMap<String, f64>;

/// What the probe measured.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Calls {
    /// Of Warmcore's runtime.
    pub warmcore: Numbers,
    /// Of tokio's multi-threaded runtime.
    pub tokio: Numbers,
    /// Of code that no runtime executes.
    pub steps: Numbers,
}

/// All values of a number, by name.
#[derive(Default)]
struct Rounds(BTreeMap<String, Vec<f64>>);

impl Rounds {
    fn add(&mut self, found: impl IntoIterator<Item = (&'static str, f64)>) {
        for (name, ns) in found {
            self.0.entry(name.to_owned()).or_default().push(ns);
        }
    }

    fn quartiles(self) -> Numbers {
        let quartile = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 4]
        };
        self.0.into_iter().map(|(name, values)| (name, (quartile(values) * 10.0).round() / 10.0)).collect()
    }
}

/// Measures the calls of Warmcore's runtime and of tokio's.
///
/// # Errors
/// A runtime or a thread that can't be made, a thread that can't be pinned, or a signal.
pub fn probe(progress: impl Fn(usize, usize)) -> anyhow::Result<Calls> {
    let (ours, theirs) = (Ours::over(ours(1)?), self::tokio(1)?);
    // Warmcore's worker is pinned to the first CPU.
    let allowed = affinity::allowed().context("can't read on which CPUs this thread may run")?;
    let last = *cpus().last().context("this process may run on no CPU")?;
    affinity::pin(last).context("can't pin this thread")?;
    let [mut warmcore, mut tokio, mut steps] = [(); 3].map(|()| Rounds::default());
    for round in 0..=ROUNDS {
        check_interrupted()?;
        if round == 1 {
            // The first round warms up.
            (warmcore, tokio, steps) = Default::default();
        }
        measure(ours, &mut warmcore)?;
        measure(theirs, &mut tokio)?;
        steps.add(steps::chases()?);
        steps.add(steps::messages()?);
        steps.add([("eventfd", steps::eventfd_write()?)]);
        progress(round, ROUNDS);
    }
    affinity::set_allowed(&allowed).context("can't undo a pin")?;
    Ok(Calls { warmcore: warmcore.quartiles(), tokio: tokio.quartiles(), steps: steps.quartiles() })
}

/// Measures each number once on a runtime with one worker.
fn measure<H: Executor>(one: H, into: &mut Rounds) -> anyhow::Result<()> {
    into.add([("yield.1", waking::yields(one, 1)), ("yield.64", waking::yields(one, 64))]);
    into.add([("hop", waking::hops(one)), ("hop.channel", waking::channel_hops(one))]);
    into.add([("channel", waking::channel(one))]);
    let [spawn, child, join] = waking::spawns(one);
    into.add([("spawn", spawn), ("child", child), ("join", join)]);
    let (push, outside_spawn) = waking::pushes(one);
    into.add([("outside.push", push), ("outside.spawn", outside_spawn)]);
    for (us, [unpark, latency]) in PAUSES {
        let [call, to_poll, cycle] = waking::unparks(one, Duration::from_micros(us));
        into.add([(unpark, call), (latency, to_poll)]);
        if us == CYCLE_PAUSE {
            into.add([("cycle", cycle)]);
        }
    }
    let (server, client) = steps::requests(one)?;
    into.add([("http.server", server), ("http.client", client)]);
    Ok(())
}

fn ours(workers: usize) -> anyhow::Result<&'static Runtime> {
    let runtime = Runtime::builder().worker_threads(workers).name("probe").build();
    Ok(Box::leak(Box::new(runtime.context("can't start Warmcore's runtime")?)))
}

fn tokio(workers: usize) -> anyhow::Result<Tokio> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let runtime = Box::leak(Box::new(runtime.context("can't start tokio's runtime")?));
    Ok(Tokio(Box::leak(Box::new([runtime.handle().clone()]))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_measured_on_both_runtimes_and_is_a_time() {
        let (ours, tokio) = (ours(1).map(Ours::over).unwrap(), tokio(1).unwrap());
        let [mut ours_found, mut tokio_found] = [Rounds::default(), Rounds::default()];
        measure(ours, &mut ours_found).unwrap();
        measure(tokio, &mut tokio_found).unwrap();
        let [ours, tokio] = [ours_found, tokio_found].map(Rounds::quartiles);
        assert!(ours.keys().eq(tokio.keys()));
        for (name, ns) in ours.iter().chain(&tokio) {
            assert!(ns.is_finite() && *ns > 0.0, "{name}: {ns}");
        }
    }

    #[test]
    fn a_number_is_the_first_quartile_of_its_rounds() {
        let mut rounds = Rounds::default();
        for ns in [900.0, 5.04, 1.0, 1000.0] {
            rounds.add([("poll", ns)]);
        }
        assert_eq!(rounds.quartiles(), Numbers::from([("poll".to_owned(), 5.0)]));
    }
}
