//! Names: cases, variants and metrics that a bench writes into its rows and a report looks for.
//!
//! They are part of the schema: a renamed one leaves the charts of older files empty. A bench and the report take them
//! from here, so that neither imports the other.

/// Per-CPU data.
pub mod percpu {
    /// The cases, in the order of the report: first what programs do, then loops on one thing.
    pub const CASES: [&str; 11] = [
        "counter.add.called",
        "counter.add.2threads",
        "counter.add",
        "counter.add.backends",
        "freelist.pair.called",
        "freelist.pair",
        "freelist.batch32",
        "sum",
        "drain_all",
        "freelist.drain_all",
        "memory",
    ];

    /// The variant that has one number for all threads.
    pub const ATOMIC: &str = "relaxed atomic";
}

/// Concurrency ids.
pub mod cid {
    /// The policy that is ours by default, as it stands in the rows.
    pub const OURS: &str = "cache-local";
    /// The case whose ids are drawn over time.
    pub const TIMELINE: &str = "cid.timeline";
}

/// The case of programs that pause.
pub mod intermittent {
    /// The case; its rows add the delay, and whether all areas were written before.
    pub const CASE: &str = "cid.intermittent";
    /// A burst after the pause, each one for itself.
    pub const AFTER_A_PAUSE: &str = "time after a pause";
    /// Of that, until the burst is alone on its area: asking for the id, and for a tenant all that its
    /// entry sets going.
    pub const ENTRY: &str = "of that, the entry";
    /// The rest: the pass over the area, and leaving.
    pub const PASS: &str = "of that, the pass";
    /// The mean of all timed passes of a round, the hot one included: the published number.
    pub const MEAN: &str = "mean time";
    /// The share of bursts after a pause on an area that this CPU used last.
    pub const OWN: &str = "own area";
    /// On one that another CPU used last.
    pub const FOREIGN: &str = "foreign area";
    /// On one that nobody used.
    pub const FRESH: &str = "fresh area";
    /// Per burst after a pause.
    pub const FAULTS: &str = "page faults";
}

/// What taking back unused units costs.
pub mod drain {
    /// The worker charges only when it is asked to.
    pub const QUIET: &str = "drain.quiet";
    /// The worker charges all the time.
    pub const CONTENDED: &str = "drain.contended";
    /// The metric of the slow ones.
    pub const P99: &str = "p99";
    /// The variant of scheduled work, which ours replaces.
    pub const HELPER: &str = "a helper thread there, woken";
}
