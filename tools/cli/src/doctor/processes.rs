//! Findings on running processes whose work could use more of their workers.
//!
//! Every process that `warmcore top` can watch is asked twice. A finding is made if tasks of `tokio::spawn` take most of one
//! worker's time while another worker idles.

use super::limited;
use crate::top::{Interval, Snapshot};
use std::time::Duration;
use warmcore_report::Finding;
use warmcore_runtime::observe::{self, Observable};

/// The time between the two snapshots.
const BETWEEN: Duration = Duration::from_millis(300);

/// The most runtimes that are asked, all at the same time.
const ASKED_MAX: usize = 32;

const ADVICE: &str = "such tasks stay on the worker that spawned them: spawn with `warmcore::runtime::spawn` instead of \
                      `tokio::spawn` and `JoinSet`, and serve with `http::serve` instead of `axum::serve` \
                      (docs/from-tokio.md)";

/// Returns a finding for each such runtime.
pub(super) fn findings() -> Vec<Finding> {
    let found = observe::list();
    let asked = &found[..found.len().min(ASKED_MAX)];
    std::thread::scope(|scope| {
        let looks: Vec<_> = asked.iter().map(|one| scope.spawn(|| interval(one))).collect();
        let looks = looks.into_iter().filter_map(|interval| interval.join().ok().flatten());
        looks.filter_map(|interval| of(&interval)).collect()
    })
}

fn interval(one: &Observable) -> Option<Interval> {
    let ask = || Snapshot::parse(&one.ask().ok()?).ok();
    let before = ask()?;
    std::thread::sleep(BETWEEN);
    Some(Interval::between(&before, ask()?))
}

fn of(interval: &Interval) -> Option<Finding> {
    let fact = format!(
        "{} ({}): {}",
        interval.now.process,
        interval.now.pid,
        crate::top::foreign_imbalance(interval)?
    );
    Some(limited("tokio tasks", fact, ADVICE))
}
