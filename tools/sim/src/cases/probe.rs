//! The probe file: what single calls of two runtimes cost on a machine, and what machine that is.
//!
//! `warmcore predict probe --json FILE` measures it. A simulation reads it and derives the costs of its calls and steps, so
//! that a prediction depends on this file alone. No number of it is one of the cases that are predicted.

use super::Side;
use crate::costs::Costs;
use crate::error::Error;
use crate::simulation::{ByIdle, CallCosts, Drivers, Outside};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use warmcore_topo::Topology;

/// The version of the file's fields.
pub const SCHEMA: u32 = 2;

/// The size of the working set that the probe chases, and the size of a cache line.
const CHASED_LINES: f64 = 256.0 * 1024.0 / 64.0;

/// The time slice of the kernel's fair class on one CPU: `sysctl_sched_base_slice` of Linux 6.12 to 6.18. It grows with the
/// logarithm of the number of CPUs.
const BASE_SLICE_NS: u64 = 700_000;

/// What a line costs that is in the cache of a core under another last-level cache: between two of an EPYC, an estimate. The
/// probed machine has one.
const BETWEEN_LLCS_NS: u32 = 120;

/// Numbers by their names, in ns.
type Numbers = BTreeMap<String, f64>;

/// The machine on which the probe ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probed {
    /// The processor's name, as the kernel reports it.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// The number of CPUs that the process may use, each on a core of its own and all under one last-level cache.
    pub cpus: u32,
}

/// A probe file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeFile {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The command that repeats it.
    pub command: String,
    /// When it was measured, UTC, RFC 3339.
    pub when: String,
    /// Where.
    pub machine: Probed,
    /// The size of a core's own cache, in KiB.
    pub l2_kib: u32,
    /// What calls of Warmcore's runtime cost.
    pub warmcore: Numbers,
    /// What calls of tokio's runtime cost.
    pub tokio: Numbers,
    /// What steps cost that no runtime executes.
    pub steps: Numbers,
}

impl ProbeFile {
    /// Reads a probe file.
    ///
    /// # Errors
    /// A file that can't be read, that is no probe file, or that lacks a number.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let at = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::new(&at, format!("can't be read: {e}"), NEXT))?;
        Self::parse(&text, &at)
    }

    /// Reads the text of a probe file. `at` names it in an error.
    ///
    /// # Errors
    /// A text that is no probe file, or that lacks a number.
    pub fn parse(text: &str, at: &str) -> Result<Self, Error> {
        let wrong = |fact: String| Error::new(at, fact, NEXT);
        let file: Self = serde_json::from_str(text).map_err(|e| wrong(format!("is no probe file: {e}")))?;
        if file.schema != SCHEMA {
            return Err(wrong(format!("has schema {}, and this program reads {SCHEMA}", file.schema)));
        }
        for (numbers, names) in [(&file.warmcore, CALLS), (&file.tokio, CALLS), (&file.steps, STEPS)] {
            if let Some(name) = names.iter().find(|name| !numbers.get(**name).is_some_and(|ns| *ns > 0.0)) {
                return Err(wrong(format!("has no number `{name}`")));
            }
        }
        Ok(file)
    }

    /// A number of a runtime.
    fn of(&self, side: Side, name: &str) -> f64 {
        let numbers = if side == Side::Warmcore { &self.warmcore } else { &self.tokio };
        numbers[name]
    }

    /// What calls of this runtime cost.
    ///
    /// A poll and the wake that causes it are measured together, and half of the time is taken for each. A task that
    /// yields alone makes tokio poll its driver after each poll, 64 such tasks once for all, so the difference is a poll
    /// of the driver. Warmcore's driver is tokio's, so it takes as long there. Of the worker's CPU time from one wake
    /// to the next, half is taken for going to sleep. A worker that is on its way to sleep has its driver, so to unpark it is a
    /// write to the driver's descriptor, on both sides. The lines that a search reads and that move with a task cost what the
    /// machine's lines cost.
    pub fn calls(&self, side: Side) -> CallCosts {
        let of = |name: &str| self.of(side, name);
        let driver = (self.tokio["yield.1"] - self.tokio["yield.64"]) * 64.0 / 63.0;
        let hop = of("hop");
        let moves =
            |what: &str| ns(self.steps[&format!("{what}.moved")] - self.steps[&format!("{what}.warm")]);
        CallCosts {
            poll: ns(hop / 2.0),
            wake: ns(hop / 2.0),
            push: ns(of("outside.push")),
            unpark: by_idle(&|name| of(&format!("unpark.{name}")) - of("outside.push")),
            unpark_latency: by_idle(&|name| (of(&format!("latency.{name}")) - hop).max(1.0)),
            unpark_jitter: super::JITTER,
            unpark_awake: ns(self.steps["eventfd"]),
            park: ns((of("cycle") - hop) / 2.0),
            search: 0,
            maintain: ns(driver),
            event: 0,
            spawn: 0,
            send_moved: moves("send"),
            receive_moved: moves("receive"),
        }
    }

    /// Threads beside this runtime: they are unparked as tokio's workers are, on both sides. Warmcore has a driver per worker,
    /// tokio one for all.
    pub fn outside(&self, side: Side) -> Outside {
        let calls = self.calls(Side::Tokio);
        let (wake, latency, sleep) = (calls.unpark, calls.unpark_latency, calls.park);
        let slice = BASE_SLICE_NS * u64::from(1 + self.machine.cpus.min(8).ilog2());
        let is_tokio = side == Side::Tokio;
        let drivers = if is_tokio { Drivers::FirstParked } else { Drivers::Own };
        Outside { wake, latency, sleep, slice, drivers }
    }

    /// What steps of tasks cost on this runtime.
    pub fn steps(&self, side: Side) -> StepCosts {
        let of = |name: &str| self.of(side, name);
        let has_tenants = side == Side::Warmcore;
        let (poll, waits) = (of("hop"), of("hop.channel") - of("hop"));
        StepCosts {
            message: ns(of("channel")),
            message_waited: ns(waits),
            spawn: ns(of("spawn")),
            child: ns(of("child") - poll),
            join: ns(of("join")),
            outside_spawn: ns(of("outside.spawn") - of("outside.push")),
            request: ns(of("http.server")),
            ask: ns(of("http.client")),
            has_tenants,
        }
    }

    /// A machine of cores like the probed ones, so many last-level caches and so many CPUs below each: its topology, and costs
    /// of which those of the chases were measured. What lies between two last-level caches is an estimate.
    ///
    /// # Errors
    /// More CPUs than a machine may have.
    pub fn machine(&self, (llcs, cpus_per_llc): (u32, u32)) -> Result<(Topology, Costs), Error> {
        let (cpus, l2) = (llcs * cpus_per_llc, self.l2_kib);
        let text = format!(
            "[probed]\nsockets = 1\nl3_per_socket = {llcs}\ncores_per_l3 = {cpus_per_llc}\nsmt = 1\ncpus = {cpus}\nl1d_kib = 32\n\
             l2_kib = {l2}\nl3_kib = 32768\nbase_mhz = 1000\ndram_local = 110\nc2c_same_socket = {BETWEEN_LLCS_NS}\n"
        );
        let place = "the machine of the probe";
        let wrong = |e: String| Error::new(place, e, "probe a machine with a few CPUs");
        let topology = Topology::from_machine(&text, "probed").map_err(|e| wrong(e.to_string()))?;
        // With a clock of 1 GHz a cycle is a ns.
        let line = |name: &str| (self.steps[name] * 1000.0 / CHASED_LINES).round() as u64;
        let costs = Costs::from_machine(&text, "probed").map_err(|e| wrong(e.to_string()))?;
        let [warm, moved] = ["chase.warm", "chase.moved"].map(line);
        let set = |costs: Costs, name: &str, milli: u64| {
            costs.measured(name, milli, "probed").map_err(|e| wrong(e.to_string()))
        };
        let costs = set(costs, "stream_resident_cycles_per_line", warm)?;
        let costs = set(costs, "c2c_same_l3", moved.max(warm))?;
        // A chase has one access at a time.
        let costs = set(costs, "mlp_read", 1000)?;
        Ok((topology, set(costs, "mlp_rmw_dirty_remote", 1000)?))
    }
}

/// The numbers of a runtime for each idle time, whose names are its µs.
fn by_idle(of: &dyn Fn(u64) -> f64) -> ByIdle {
    ByIdle([2, 10, 50, 300, 2000].map(|us| (us * 1000, ns(of(us)))))
}

/// Whole ns, at least 0.
fn ns(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

/// What to do about a file that is no probe file.
const NEXT: &str = "write one with `warmcore predict probe --json FILE`";

/// The numbers of code that no runtime executes.
const STEPS: &[&str] =
    &["chase.warm", "chase.moved", "eventfd", "receive.warm", "receive.moved", "send.warm", "send.moved"];

/// The numbers of a runtime that a probe file has to have.
const CALLS: &[&str] = &[
    "yield.1",
    "yield.64",
    "hop",
    "hop.channel",
    "channel",
    "spawn",
    "child",
    "join",
    "outside.push",
    "outside.spawn",
    "unpark.2",
    "unpark.10",
    "unpark.50",
    "unpark.300",
    "unpark.2000",
    "latency.2",
    "latency.10",
    "latency.50",
    "latency.300",
    "latency.2000",
    "cycle",
    "http.server",
    "http.client",
];

/// What steps of tasks cost, in ns, without the polls and wakes that they cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepCosts {
    /// A send and a receive, in a channel that has a message and room.
    pub message: u64,
    /// A send and a receive that first finds no message and waits.
    pub message_waited: u64,
    /// Spawning a task, in a task.
    pub spawn: u64,
    /// What an empty task does in its only poll, and its end.
    pub child: u64,
    /// Joining a task that has ended.
    pub join: u64,
    /// Spawning a task by a thread that is no worker, without the push.
    pub outside_spawn: u64,
    /// What a server does for an HTTP request, with an eighth of a park.
    pub request: u64,
    /// What a client does for an HTTP request, with an eighth of a sleep.
    pub ask: u64,
    /// Whether the runtime has tenants.
    pub has_tenants: bool,
}
