//! Long polls: how they are reported.
//!
//! The scheduler core finds them. A poll that was measured is reported with its task, one that was not without, at most once a
//! second; besides, one after which the worker measures each poll.

use super::*;
use crate::header::Header;
use crate::sync::AtomicU64;
use std::panic::{AssertUnwindSafe, catch_unwind};
use warmcore_sched::{Counters, RECENT};

/// The reports of one worker. Written by the worker; outlives the thread that runs the worker.
#[derive(Default)]
pub(crate) struct Reports {
    /// Until when no long poll is reported: each report may be a line of a log.
    silent_until: AtomicU64,
    /// Long polls that were not reported since the last report.
    unreported: AtomicU64,
}

impl Shared {
    /// Reports a long poll of a worker, which calls this: of this task if it is known. `are_measured`: whether each poll is measured
    /// from now on.
    #[cold]
    pub(crate) fn report_long_poll(
        &self,
        worker: CpuId,
        now: Nanos,
        header: Option<&Header>,
        are_measured: bool,
    ) {
        let reports = &self.remote(worker).reports;
        let mut unreported = 0;
        if header.is_some() || !are_measured {
            if now.0 < reports.silent_until.load(Relaxed) {
                return Counters::add(&reports.unreported, 1);
            }
            reports.silent_until.store(now.0 + RECENT.0, Relaxed);
            unreported = reports.unreported.swap(0, Relaxed);
        }
        let worker = worker.0;
        let limit_ms = self.long_poll.0 / 1_000_000;
        // A subscriber that panics ends neither the task nor the worker's round.
        let _ = catch_unwind(AssertUnwindSafe(|| match header.map(Header::name) {
            Some(Some(task)) => {
                tracing::warn!(worker, %task, limit_ms, unreported, "long poll: the tasks behind it waited")
            }
            Some(None) => {
                tracing::warn!(
                    worker,
                    limit_ms,
                    unreported,
                    "long poll of a task without a name: the tasks behind it waited"
                )
            }
            None if !are_measured => {
                tracing::warn!(
                    worker,
                    limit_ms,
                    unreported,
                    "long poll of a task: the tasks behind it waited"
                )
            }
            None => tracing::warn!(
                worker,
                limit_ms,
                "long poll: the tasks behind it waited; the next one within a second is reported with its task"
            ),
        }));
    }
}

impl Worker {
    /// Counts a long poll of this task, and reports it.
    #[cold]
    pub(crate) fn found_long_poll(&self, header: &Header) {
        self.core.count_long_poll(&self.shared);
        self.shared.report_long_poll(self.me(), self.core.now(), Some(header), true);
    }

    /// Ends a long run of the driver: clears the mark that the watchdog set, and reports it.
    pub(super) fn clear_stuck(&self) {
        let remote = self.core.remote();
        if self.core.is_stuck() {
            self.shared.workers.set_stuck(self.me(), false);
            Counters::add(&remote.counters.long_polls, 1);
            tracing::warn!(
                worker = self.me().0,
                "long poll of a task of tokio::spawn: the tasks behind it waited"
            );
        }
    }
}
