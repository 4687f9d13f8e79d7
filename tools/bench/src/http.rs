//! `bench http`: HTTP servers over loopback, one on each runtime. The servers are measured in turn, under the same
//! load.
//!
//! All servers are in this process and wait while another one is measured. The clients run in a child process, so the
//! CPU time of this process is the server's. A slice sends requests to one server over all its connections. Every round
//! has a slice of each server, in an order that is shuffled for each round, and ratios compare slices of one round.
//! Each answer is checked. Client and servers share the CPUs, as two services on the same machine do, so a rate
//! includes the work of both sides; this is the same for all variants.
//!
//! In a full run, 15 rounds of 350 ms for six servers take half a minute a case. On two virtual CPUs that share their
//! host, a ratio varies by 15 to 40 % between rounds, so a ratio below 1.3 is significant only if its interval does not
//! contain 1.
//!
//! Source: TechEmpower's plaintext for the shape of `hello`. The promises (the bounds that rows should meet) were made
//! before the runtime was written.

pub(crate) mod handler;
pub mod load;
mod serve;

use crate::case::{Case, CaseCtx};
use crate::measure::{INTERRUPTED, check_interrupted};
use crate::part::{COMMAND, LineChild};
use crate::race::{Metric, Plan, Race, rate, time};
use crate::runtimes::{Contender, cpus};
use anyhow::Context;
pub use handler::Handler;
use load::{LoadCommand, Manner, Seen};
use serve::ALL;
pub use serve::serve;
use std::process::{Child, Command};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use warmcore_results::{Bound, Row};
use warmcore_sys::clock;

/// The cases, in the order of the report. The number is that of the connections.
pub const CASES: &[Case] = &[
    Case::new("hello.8", |ctx| run(ctx, Handler::Hello, 8, Clients::PerCpu)),
    Case::new("hello.64", |ctx| run(ctx, Handler::Hello, 64, Clients::PerCpu)),
    Case::new("hello.one.1", |ctx| run(ctx, Handler::Hello, 1, Clients::One)),
    Case::new("hello.one.8", |ctx| run(ctx, Handler::Hello, 8, Clients::One)),
    Case::new("hello.one.64", |ctx| run(ctx, Handler::Hello, 64, Clients::One)),
    Case::new("hello.one.256", |ctx| run(ctx, Handler::Hello, 256, Clients::One)),
    Case::new("hello.beside.8", |ctx| run(ctx, Handler::Hello, 8, Clients::OneBeside)),
    Case::new("hello.beside.64", |ctx| run(ctx, Handler::Hello, 64, Clients::OneBeside)),
    Case::new("hello.open.30.8", |ctx| run(ctx, Handler::Hello, 8, Clients::Open(30))),
    Case::new("hello.open.30.64", |ctx| run(ctx, Handler::Hello, 64, Clients::Open(30))),
    Case::new("hello.open.60.8", |ctx| run(ctx, Handler::Hello, 8, Clients::Open(60))),
    Case::new("hello.open.60.64", |ctx| run(ctx, Handler::Hello, 64, Clients::Open(60))),
    Case::new("axum.8", |ctx| run(ctx, Handler::Axum, 8, Clients::PerCpu)),
    Case::new("axum.64", |ctx| run(ctx, Handler::Axum, 64, Clients::PerCpu)),
    Case::new("axum.one.8", |ctx| run(ctx, Handler::Axum, 8, Clients::One)),
    Case::new("axum.one.64", |ctx| run(ctx, Handler::Axum, 64, Clients::One)),
    Case::new("state.8", |ctx| run(ctx, Handler::State, 8, Clients::PerCpu)),
    Case::new("state.64", |ctx| run(ctx, Handler::State, 64, Clients::PerCpu)),
    Case::new("soak", soak).without_slices(),
];

/// Who sends the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clients {
    /// A thread per CPU.
    PerCpu,
    /// `one`: one thread, as in `wrk -t1`.
    One,
    /// `beside`: one thread, and another process computes all the time.
    OneBeside,
    /// `open`: one thread, with an open loop of so many percent of tokio's rate in a closed loop.
    Open(u64),
}

impl Clients {
    fn threads(self) -> usize {
        if self == Self::PerCpu { cpus().len() } else { 1 }
    }
}

/// A process that computes until this is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> anyhow::Result<Self> {
        Ok(Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().context("can't start sh")?))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// How long tokio's rate is measured from which that of an open loop follows, and before that warmed up.
const PEAK_OVER: Duration = Duration::from_millis(200);

const REQUESTS: &str = "requests";
const P99: &str = "p99";
const CPU: &str = "CPU per 100k requests";
const ERRORS: &str = "errors";

/// The metrics of a slice, besides errors.
const METRICS: &[Metric] = &[rate(REQUESTS), time("p50"), time(P99), time("p99.9"), time(CPU)];
/// Those of an open loop, whose rate is given.
const OPEN_METRICS: &[Metric] = &[time(CPU), rate(REQUESTS), time("p50"), time(P99), time("p99.9")];

/// The results of one server in a slice.
struct Slice {
    seen: Seen,
    /// The CPU time of this process during the slice, warm-up included.
    cpu_ns: u64,
}

impl Slice {
    /// The numbers of [`METRICS`].
    fn numbers(&self) -> Vec<f64> {
        let Seen { per_second, p50_ns, p99_ns, p999_ns, answers, .. } = self.seen;
        let [p50, p99, p999, cpu] = [p50_ns, p99_ns, p999_ns, self.cpu_ns].map(|ns| ns as f64);
        vec![per_second / 1e3, p50, p99, p999, cpu * 1e5 / answers as f64]
    }
}

/// The servers of one handler, on every variant of [`ALL`], and a client process that is connected to all of them.
/// Between two commands the client has no outstanding request. A command and its answer take 50 µs, which are not part
/// of the counted time.
struct Servers {
    client: LineChild,
    /// The variants that have a server, in the order in which the client numbers them.
    contenders: Vec<Contender>,
    /// In an open loop: how many requests are due per second.
    per_second: Option<u64>,
}

impl Servers {
    /// Starts a server on each of these runtimes.
    fn start(
        contenders: Vec<Contender>,
        handler: Handler,
        [connections, threads]: [usize; 2],
        afresh_after: Option<u64>,
    ) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg(serde_json::json!({ load::PART: null }).to_string());
        let client = LineChild::start(&mut command).context("can't start the client")?;
        let mut servers = Self { client, contenders, per_second: None };
        for contender in servers.contenders.clone() {
            let port = serve(contender, handler).with_context(|| contender.name())?;
            let open =
                LoadCommand::Open { manner: Manner { port, handler, afresh_after }, connections, threads };
            servers.ask(&open).with_context(|| contender.name())?;
        }
        Ok(servers)
    }

    /// Sends a command to the client and waits for its answer.
    fn ask(&mut self, say: &LoadCommand) -> anyhow::Result<Seen> {
        let answer = self.client.ask(&serde_json::to_string(say)?)?;
        anyhow::ensure!(!answer.is_empty(), "the client ended; it says why above");
        serde_json::from_str(&answer).with_context(|| format!("the client answered {answer:?} to {say:?}"))
    }

    /// Sends requests to one server for a slice. Returns an error if the client fails, or if the slice has errors and
    /// no answer in the counted time. A slice with neither errors nor answers is kept: its rate counts as one answer,
    /// which is too high, and its times as the slice's length, which is too low. After a signal a slice without an
    /// answer is returned as it is.
    fn slice(&mut self, i: usize, warm: Duration, measure: Duration) -> anyhow::Result<Slice> {
        let (name, measure_ns) = (self.contenders[i].name(), measure.as_nanos() as u64);
        let before = clock::process_cpu().0;
        let times_ns = [warm.as_nanos() as u64, measure_ns];
        let say = LoadCommand::Run { server: i, times_ns, per_second: self.per_second };
        let mut seen = self.ask(&say).context(name)?;
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
fn tell_once(threads: usize) {
    static TOLD: std::sync::Once = std::sync::Once::new();
    TOLD.call_once(|| {
        eprintln!(
            "http: the load is our own generator, {threads} thread(s) in a process beside; it shares the CPUs with the servers"
        );
    });
}

fn run(ctx: &CaseCtx, handler: Handler, connections: usize, clients: Clients) -> anyhow::Result<Vec<Row>> {
    tell_once(clients.threads());
    let plan = Plan::requests(ctx.effort);
    let contenders = ctx.chosen(&ALL);
    let mut servers = Servers::start(contenders.clone(), handler, [connections, clients.threads()], None)?;
    if let Clients::Open(percent) = clients {
        let mut tokio = Servers::start(vec![Contender::Tokio], handler, [connections, 1], None)?;
        let peak = tokio.slice(0, PEAK_OVER, PEAK_OVER)?.seen.per_second;
        servers.per_second = Some((peak as u64 * percent / 100).max(1));
    }
    let busy = (clients == Clients::OneBeside).then(Busy::start).transpose()?;
    // The first slices are not timed: connections are accepted, queues grow, states are made, and the kernel finds a place for the
    // process beside.
    let first = if busy.is_some() { Duration::from_millis(200) } else { plan.warm };
    for i in 0..contenders.len() {
        servers.slice(i, Duration::ZERO, first)?;
    }
    let mut sums = vec![Sums::default(); contenders.len()];
    let tick = |round| ctx.part_of(round, plan.rounds);
    let (is_open, metrics) = servers.per_second.map_or((false, METRICS), |_| (true, OPEN_METRICS));
    let race = Race::run(ctx.name, &contenders, metrics, plan, tick, |i| {
        let slice = servers.slice(i, plan.warm, plan.measure)?;
        sums[i].add(&slice.seen);
        let mut numbers = slice.numbers();
        numbers.rotate_right(usize::from(is_open));
        Ok(numbers)
    })?;
    let mut rows = race.numbers(&[]);
    rows.extend(errors_rows(ctx.name, &contenders, &sums));
    drop(busy);
    let ratio = |metric, contender| race.ratio(metric, contender, Contender::Tokio);
    let promise = |metric, kind, value| race.promise(metric, Contender::Tokio, kind, value);
    let (requests, p99) = match handler {
        Handler::Hello | Handler::Axum => {
            (promise(REQUESTS, Bound::AtLeast, 1.0), promise(P99, Bound::AtMost, 1.0))
        }
        Handler::State => (promise(REQUESTS, Bound::AtLeast, 1.3), ratio(P99, Contender::Ours)),
    };
    rows.extend(race.ratios([
        requests,
        p99,
        ratio(CPU, Contender::Ours),
        ratio(REQUESTS, Contender::OursShared),
        ratio(P99, Contender::OursShared),
        ratio(CPU, Contender::OursShared),
    ]));
    Ok(rows)
}

/// The errors and the correct answers of a server.
#[derive(Clone, Copy, Default)]
struct Sums {
    errors: u64,
    answers: u64,
}

impl Sums {
    fn add(&mut self, seen: &Seen) {
        self.errors += seen.errors;
        self.answers += seen.answers;
    }
}

/// The rows of the servers' errors. Warmcore's variants have the promise that there are none.
fn errors_rows(case: &str, contenders: &[Contender], sums: &[Sums]) -> Vec<Row> {
    let row = |(contender, sums): (&Contender, &Sums)| {
        let row = Row::exact(case, contender.name(), ERRORS, "errors", sums.errors as f64, sums.answers);
        row.promise_if(contender.is_ours(), Bound::AtMost, 0.0)
    };
    contenders.iter().zip(sums).map(row).collect()
}

/// The client of the case `soak` replaces each connection after this many requests.
const AFRESH_AFTER: u64 = 50;
const UNRULY: usize = 48;

/// Runs every handler on every variant of [`ALL`], under clients that split requests and reconnect. The rows count
/// wrong answers and broken connections.
fn soak(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    tell_once(cpus().len());
    let handlers = [Handler::Hello, Handler::Axum, Handler::State];
    let measure = Plan::requests(ctx.effort).measure * 4;
    let mut sums = [Sums::default(); ALL.len()];
    for (h, handler) in handlers.into_iter().enumerate() {
        let mut servers = Servers::start(ALL.to_vec(), handler, [UNRULY, cpus().len()], Some(AFRESH_AFTER))?;
        for (i, sums) in sums.iter_mut().enumerate() {
            check_interrupted()?;
            sums.add(&servers.slice(i, Duration::ZERO, measure)?.seen);
        }
        ctx.part_of(h + 1, handlers.len());
    }
    check_interrupted()?;
    Ok(errors_rows(ctx.name, &ALL, &sums))
}
