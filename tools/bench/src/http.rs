//! `bench http`: HTTP servers over loopback, one on each runtime. The servers are measured in turn, under the same
//! load.
//!
//! All servers live in this process and sleep while another one is measured. The clients run in a child process, so the
//! CPU time of this process is the server's. A slice sends requests to one server over all its connections. Every round
//! has a slice of each server, in an order that changes, and ratios compare slices of one round. Each answer is
//! checked. Client and servers share the CPUs, as two services on the same machine do, so a rate includes the work of
//! both sides; this is the same for all variants.
//!
//! 15 rounds of 350 ms for six servers take half a minute a case. On two virtual CPUs that share their host, a ratio
//! varies by 15 to 40 % between rounds, so a ratio below 1.3 is significant only if its interval does not contain 1.
//!
//! Source: TechEmpower's plaintext for the shape of `hello`. The promises (the bounds that rows should meet) were made
//! before the runtime was written.

mod client;
mod handler;
pub mod load;
mod serve;
mod smol_io;

use crate::case::{Case, CaseCtx};
use crate::measure::{Effort, INTERRUPTED};
use crate::runtimes::cpus;
use anyhow::Context;
use client::Client;
use fastrand::Rng;
use handler::Handler;
use load::{LoadCommand, Seen};
use serve::Contender;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// The cases, in the order of the report.
pub const CASES: &[Case] = &[
    Case::new("hello.8", |ctx| run(ctx, Handler::Hello, 8)),
    Case::new("hello.64", |ctx| run(ctx, Handler::Hello, 64)),
    Case::new("axum.8", |ctx| run(ctx, Handler::Axum, 8)),
    Case::new("axum.64", |ctx| run(ctx, Handler::Axum, 64)),
    Case::new("compute.8", |ctx| run(ctx, Handler::Compute, 8)),
    Case::new("compute.64", |ctx| run(ctx, Handler::Compute, 64)),
    Case::new("state.8", |ctx| run(ctx, Handler::State, 8)),
    Case::new("state.64", |ctx| run(ctx, Handler::State, 64)),
    Case::new("soak", soak),
];

const REQUESTS: &str = "requests";
const P99: &str = "p99";
const CPU: &str = "CPU per 100k requests";
const ERRORS: &str = "errors";

/// A metric: its name, its unit, and its value in a slice.
type Metric = (&'static str, &'static str, fn(&Slice) -> f64);

/// The metrics of a slice, besides errors.
const METRICS: [Metric; 5] = [
    (REQUESTS, "k/s", |slice| slice.seen.per_second / 1e3),
    ("p50", "ns", |slice| slice.seen.p50_ns as f64),
    (P99, "ns", |slice| slice.seen.p99_ns as f64),
    ("p99.9", "ns", |slice| slice.seen.p999_ns as f64),
    (CPU, "ns", |slice| slice.cpu_ns as f64 * 1e5 / slice.seen.answers as f64),
];

/// The number of rounds and the length of a slice.
#[derive(Debug, Clone, Copy)]
struct Plan {
    rounds: usize,
    warm: Duration,
    measure: Duration,
}

impl Plan {
    fn of(effort: Effort) -> Self {
        match effort.rounds == Effort::QUICK.rounds {
            true => Self { rounds: 9, warm: Duration::from_millis(20), measure: Duration::from_millis(120) },
            false => {
                Self { rounds: 15, warm: Duration::from_millis(50), measure: Duration::from_millis(300) }
            }
        }
    }
}

/// The results of one server in a slice.
struct Slice {
    seen: Seen,
    /// The CPU time of this process during the slice.
    cpu_ns: u64,
}

/// Servers of every runtime, and a client that is connected to all of them.
struct Servers {
    client: Client,
    who: Vec<Contender>,
    numbers: Vec<usize>,
}

impl Servers {
    fn start(
        who: &[Contender],
        handler: Handler,
        connections: usize,
        afresh_after: Option<u64>,
    ) -> anyhow::Result<Self> {
        let mut client = Client::start()?;
        let open = |who: &Contender| {
            let port = who.serve(handler).with_context(|| who.name())?;
            client
                .open(LoadCommand::Open { port, handler, connections, afresh_after })
                .with_context(|| who.name())
        };
        let numbers = who.iter().map(open).collect::<anyhow::Result<_>>()?;
        Ok(Self { client, who: who.to_vec(), numbers })
    }

    /// Sends requests to one server for a slice. A slice without an answer is kept: its rate counts as one answer, which is
    /// too high, and its times as the slice's length, which is too low.
    fn slice(&mut self, i: usize, warm: Duration, measure: Duration) -> anyhow::Result<Slice> {
        let (name, measure_ns) = (self.who[i].name(), measure.as_nanos() as u64);
        let before = clock::process_cpu().0;
        let say = LoadCommand::Run { server: self.numbers[i], warm_ns: warm.as_nanos() as u64, measure_ns };
        let mut seen = self.client.ask(&say).context(name)?;
        let cpu_ns = clock::process_cpu().0 - before;
        if let Some(error) = &seen.error {
            eprintln!("{name}: {} errors, the first: {error}", seen.errors);
        }
        if seen.per_second <= 0.0 && !INTERRUPTED.load(Relaxed) {
            anyhow::ensure!(seen.errors == 0, "{name}: errors, and no answer in {measure:?}");
            eprintln!("{name}: no answer in {measure:?}; the slice is kept");
            bound(&mut seen, measure_ns);
        }
        Ok(Slice { seen, cpu_ns })
    }
}

fn bound(seen: &mut Seen, measure_ns: u64) {
    seen.per_second = 1e9 / measure_ns as f64;
    (seen.p50_ns, seen.p99_ns, seen.p999_ns) = (measure_ns, measure_ns, measure_ns);
    seen.answers = seen.answers.max(1);
}

/// Prints once that the load generator shares the CPUs with the servers, which is necessary to understand a rate.
fn tell_once() {
    static TOLD: std::sync::Once = std::sync::Once::new();
    TOLD.call_once(|| {
        eprintln!(
            "http: the load is our own generator, {} threads in a process beside; it shares the CPUs with the servers",
            cpus().len()
        );
    });
}

fn run(ctx: &CaseCtx, handler: Handler, connections: usize) -> anyhow::Result<Option<Vec<Row>>> {
    tell_once();
    let (plan, who) = (Plan::of(ctx.effort), &Contender::ALL);
    let mut servers = Servers::start(who, handler, connections, None)?;
    // The first slices are not timed: connections are accepted, queues grow, states are made.
    for i in 0..who.len() {
        servers.slice(i, Duration::ZERO, plan.warm)?;
    }
    let mut slices: Vec<Vec<Slice>> = who.iter().map(|_| Vec::new()).collect();
    let (mut order, mut rng): (Vec<usize>, _) = ((0..who.len()).collect(), Rng::with_seed(6));
    for round in 0..plan.rounds {
        rng.shuffle(&mut order);
        for &i in &order {
            if INTERRUPTED.load(Relaxed) {
                return Ok(None);
            }
            slices[i].push(servers.slice(i, plan.warm, plan.measure)?);
        }
        let at = |round: usize| ctx.effort.rounds * round / plan.rounds;
        (at(round)..at(round + 1)).for_each(|_| (ctx.tick)());
    }
    Ok((!INTERRUPTED.load(Relaxed)).then(|| rows(ctx.name, who, &slices, handler)))
}

/// The rows: all metrics of all servers, the promises, then Warmcore's ratios over the other runtimes.
fn rows(case: &str, who: &[Contender], slices: &[Vec<Slice>], handler: Handler) -> Vec<Row> {
    let samples = |of: Contender, metric: &str| -> Vec<f64> {
        let of = who.iter().position(|who| *who == of).expect("every contender ran");
        let value = METRICS.iter().find(|(name, ..)| *name == metric).expect("it is in the table").2;
        slices[of].iter().map(value).collect()
    };
    let mut rows = Vec::new();
    for (metric, unit, _) in METRICS {
        rows.extend(who.iter().map(|of| Row::of(case, of.name(), metric, unit, &samples(*of, metric))));
    }
    for (of, slices) in who.iter().zip(slices) {
        let errors = slices.iter().map(|slice| slice.seen.errors).sum::<u64>();
        rows.push(errors_row(case, *of, errors, slices.iter().map(|slice| slice.seen.answers).sum()));
    }
    let ratio_of = |of: Contender, metric: &str, over: Contender| {
        let (above, below) = (samples(of, metric), samples(over, metric));
        let row = Row::ratio(case, of.name(), over.name(), &above, &below);
        match metric {
            REQUESTS => row,
            _ => Row { metric: format!("ratio, {metric}"), ..row },
        }
    };
    let ratio = |metric: &str, over: Contender| ratio_of(Contender::Ours, metric, over);
    let (requests, p99) = (ratio(REQUESTS, Contender::Tokio), ratio(P99, Contender::Tokio));
    match handler {
        Handler::Hello | Handler::Axum => {
            rows.push(requests.promise(Bound::AtLeast, 1.0));
            rows.push(p99.promise(Bound::AtMost, 1.0));
        }
        Handler::State => rows.extend([requests.promise(Bound::AtLeast, 1.3), p99]),
        Handler::Compute => rows.extend([requests, p99]),
    }
    rows.push(ratio(CPU, Contender::Tokio));
    rows.extend([REQUESTS, P99, CPU].map(|metric| ratio_of(Contender::OursSpread, metric, Contender::Tokio)));
    let others = who.iter().filter(|who| !matches!(who, Contender::Ours | Contender::Tokio));
    rows.extend(others.map(|over| ratio(REQUESTS, *over)));
    rows
}

/// The row of a server's errors. Warmcore has the promise that there are none.
fn errors_row(case: &str, who: Contender, errors: u64, answers: u64) -> Row {
    let row = Row::exact(case, who.name(), ERRORS, "errors", errors as f64, answers);
    if matches!(who, Contender::Ours | Contender::OursSpread) { row.promise(Bound::AtMost, 0.0) } else { row }
}

/// The client of the case `soak` replaces each connection after this many requests.
const AFRESH_AFTER: u64 = 50;
const UNRULY: usize = 48;

/// Every handler on every runtime, under clients that split requests and reconnect: all answers must be right.
fn soak(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    tell_once();
    let handlers = [Handler::Hello, Handler::Axum, Handler::Compute, Handler::State];
    let measure = Plan::of(ctx.effort).measure * 4;
    let mut sums = vec![(0, 0); Contender::ALL.len()];
    for (h, handler) in handlers.into_iter().enumerate() {
        let mut servers = Servers::start(&Contender::ALL, handler, UNRULY, Some(AFRESH_AFTER))?;
        for (i, (errors, answers)) in sums.iter_mut().enumerate() {
            if INTERRUPTED.load(Relaxed) {
                return Ok(None);
            }
            let seen = servers.slice(i, Duration::ZERO, measure)?.seen;
            *errors += seen.errors;
            *answers += seen.answers;
        }
        let at = |h: usize| ctx.effort.rounds * h / handlers.len();
        (at(h)..at(h + 1)).for_each(|_| (ctx.tick)());
    }
    let row = |(who, (errors, answers)): (Contender, (u64, u64))| errors_row(ctx.name, who, errors, answers);
    Ok((!INTERRUPTED.load(Relaxed)).then(|| Contender::ALL.into_iter().zip(sums).map(row).collect()))
}
