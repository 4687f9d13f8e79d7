//! Counters: adds one to a counter, on one CPU, and with a second CPU that adds to the same counter.
//!
//! Each peer's handle is created once and kept, as its documentation advises, so no label is looked up and no name is
//! hashed. At the end every counter must have counted all adds. The expected number, `Asked`, is written once a slice,
//! or once per 256 adds.
//!
//! A locked add without contention takes 7 cycles on Zen 4 and 18 on Zen 5; with a second CPU on the same line it takes
//! 20 to 100 ns. An add to a word that only this thread writes takes a cycle or two.

use crate::rows;
use anyhow::ensure;
use contatori::counters::{CounterValue, Observable, unsigned::Unsigned};
use hytra::TrAdder;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusRecorder};
use prometheus::IntCounter;
use prometheus::local::LocalIntCounter;
use prometheus_client::metrics::counter::Counter as ClientCounter;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::*, compiler_fence};
use warmcore_bench::measure::Variant;
use warmcore_bench::{CaseCtx, percpu};
use warmcore_line::Padded;
use warmcore_percpu::Counter;
use warmcore_results::Row;

/// How many adds the second thread makes before it checks whether it should stop, and after how many adds a local
/// prometheus counter is flushed.
const BATCH: u64 = 256;

const NAME: &str = "peers_adds";

/// The counter into which the threads' own counters are flushed.
static SHARED: LazyLock<IntCounter> =
    LazyLock::new(|| IntCounter::new("peers_local_adds", "adds").expect("the name is a good one"));

thread_local! {
    static LOCAL: LocalIntCounter = SHARED.local();
}

/// The counters of a case.
struct Counters {
    ours: Counter,
    atomic: Padded<AtomicU64>,
    hytra: TrAdder<u64>,
    contatori: Unsigned,
    /// One counter for all threads, the usual way to use prometheus.
    prometheus: IntCounter,
    /// The value of `SHARED` before the case.
    shared_began: u64,
    client: ClientCounter,
    metrics: metrics::Counter,
    recorder: PrometheusRecorder,
}

impl Counters {
    fn new() -> Self {
        // The usual recorder, without its HTTP server, which only reads.
        let recorder = PrometheusBuilder::new().build_recorder();
        Self {
            ours: Counter::new(),
            atomic: Padded::new(AtomicU64::new(0)),
            hytra: TrAdder::new(),
            contatori: Unsigned::new(),
            prometheus: IntCounter::new(NAME, "adds").expect("the name is a good one"),
            shared_began: SHARED.get(),
            client: ClientCounter::default(),
            metrics: metrics::with_local_recorder(&recorder, || metrics::counter!(NAME)),
            recorder,
        }
    }

    /// The variants. Each counts in `asked` how many adds it had to make.
    fn variants<'a>(&'a self, asked: &'a Asked, two: bool) -> Vec<Variant<'a>> {
        fn variant<'a>(
            name: &str,
            asked: &'a AtomicU64,
            two: bool,
            add: impl Fn() + Sync + Copy + 'a,
        ) -> Variant<'a> {
            let adds = move |n| {
                (0..n).for_each(|_| add());
                asked.fetch_add(n, Relaxed);
                n
            };
            // Adds before the calibration, because the first add may allocate.
            adds(BATCH);
            let variant = Variant::new(name, move |n| _ = adds(n));
            if two { variant.beside(move || adds(BATCH)) } else { variant }
        }
        vec![
            variant(&percpu::ours(), &asked[0], two, || self.ours.add(1)),
            variant(percpu::ATOMIC, &asked[1], two, || _ = self.atomic.fetch_add(1, Relaxed)),
            variant("hytra", &asked[2], two, || self.hytra.inc(1)),
            variant("contatori", &asked[3], two, || self.contatori.add(1)),
            variant("prometheus", &asked[4], two, || self.prometheus.inc()),
            // A thread's local counter, flushed explicitly. `SHARED` may lack up to 255 adds of each thread, and lacks
            // for ever the adds of a thread that ends without a flush. The crate's auto-flush flushes after a time, not
            // after a number of adds.
            variant("prometheus local, flushed per 256", &asked[5], two, || {
                LOCAL.with(|local| {
                    local.inc();
                    if local.get() >= BATCH {
                        local.flush();
                    }
                });
                // The local counter is not an atomic. Without the fence the compiler could keep it in a register.
                compiler_fence(SeqCst);
            }),
            variant("prometheus-client", &asked[6], two, || _ = self.client.inc()),
            // An add is a virtual call with any recorder. This recorder writes two atomics: the value, and a generation
            // by which it drops idle metrics.
            variant("metrics", &asked[7], two, || self.metrics.increment(1)),
        ]
    }

    /// Checks that each variant counted all its adds. If one did not, the case fails.
    fn check(&self, asked: &Asked) -> anyhow::Result<()> {
        LOCAL.with(LocalIntCounter::flush);
        let CounterValue::Unsigned(contatori) = self.contatori.value() else {
            anyhow::bail!("contatori's unsigned counter has another value")
        };
        let text = self.recorder.handle().render();
        let metrics = text.lines().find_map(|line| line.strip_prefix(NAME)?.trim().parse().ok());
        let counted = [
            self.ours.sum(),
            self.atomic.load(Relaxed),
            self.hytra.get(),
            contatori,
            self.prometheus.get(),
            SHARED.get() - self.shared_began,
            self.client.get(),
            metrics.unwrap_or(0),
        ];
        for (i, (counted, asked)) in counted.iter().zip(asked).enumerate() {
            let asked = asked.load(Relaxed);
            ensure!(*counted == asked, "counter {i} counted {counted} of {asked} adds");
        }
        Ok(())
    }
}

/// How many adds each variant had to make.
type Asked = [Padded<AtomicU64>; 8];

/// The case `peers.counter.add`; if `two`, `peers.counter.add.2threads`.
pub fn add(ctx: &CaseCtx, two: bool) -> anyhow::Result<Vec<Row>> {
    let counters = Counters::new();
    let asked: Asked = std::array::from_fn(|_| Padded::new(AtomicU64::new(0)));
    let measured = ctx.interleave(counters.variants(&asked, two))?;
    counters.check(&asked)?;
    Ok(rows(&measured))
}
