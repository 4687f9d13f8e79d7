//! Names of cases, variants and metrics that a bench writes into its rows and a report looks for.
//!
//! The names are part of the schema: if a name changes, the charts of older files are empty. Benches and the report
//! take them from here, so that neither imports the other.

/// Per-CPU data.
pub mod percpu {
    /// The cases, in the order of the report. Of the cases of counters and of free lists, the one that is closest to
    /// real programs is first; loops on one counter or list follow.
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

    /// The variant with one number for all threads.
    pub const ATOMIC: &str = "relaxed atomic";
}

/// Concurrency ids.
pub mod cid {
    /// The default policy, as in the rows.
    pub const OURS: &str = "cache-local";
    /// The case with a timeline of ids.
    pub const TIMELINE: &str = "cid.timeline";
}

/// The case of programs with pauses.
pub mod intermittent {
    /// The case; its rows add the delay, and whether all areas were written before.
    pub const CASE: &str = "cid.intermittent";
    /// The time of one burst after the pause.
    pub const AFTER_A_PAUSE: &str = "time after a pause";
    /// The part of [`AFTER_A_PAUSE`] until the burst has exclusive access to its area: getting the id, and for a tenant
    /// the whole entry.
    pub const ENTRY: &str = "of that, the entry";
    /// The rest of [`AFTER_A_PAUSE`]: the pass over the area, and leaving.
    pub const PASS: &str = "of that, the pass";
    /// The mean of all timed passes of a round, including the warm one, as in the published tables.
    pub const MEAN: &str = "mean time";
    /// The share of bursts after a pause on an area that this CPU used last.
    pub const OWN: &str = "own area";
    /// The share of bursts after a pause on an area that another CPU used last.
    pub const FOREIGN: &str = "foreign area";
    /// The share of bursts after a pause on an area that no burst had used.
    pub const FRESH: &str = "fresh area";
    /// Page faults per burst after a pause.
    pub const FAULTS: &str = "page faults";
}

/// The cost of taking back unused units of a budget.
pub mod drain {
    /// The case in which the worker charges only on request.
    pub const QUIET: &str = "drain.quiet";
    /// The case in which the worker charges all the time.
    pub const CONTENDED: &str = "drain.contended";
    /// The metric of slow drains: the 99th percentile.
    pub const P99: &str = "p99";
    /// The variant that imitates the kernel's scheduled work, which a remote drain replaces.
    pub const HELPER: &str = "a helper thread there, woken";
}
