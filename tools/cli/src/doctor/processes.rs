//! Running processes that could use more workers than they do.
//!
//! Those that `warmcore top` can watch are asked twice. One is told of if tasks of `tokio::spawn` take most of a
//! worker's time while another worker idles; of the others there is nothing to say here.

use super::finding;
use crate::top::{Interval, Snapshot};
use std::time::Duration;
use warmcore_report::{Finding, State};
use warmcore_runtime::observe::{self, Observable};

/// Between the two looks.
const BETWEEN: Duration = Duration::from_millis(300);

/// So many runtimes are asked, all at the same time.
const ASKED_MAX: usize = 32;

const ADVICE: &str = "such tasks stay on the worker that spawned them: spawn with `warmcore::runtime::spawn` instead of \
                      `tokio::spawn` and `JoinSet`, and serve with `http::serve` instead of `axum::serve` \
                      (docs/from-tokio.md)";

/// One for each runtime that is so.
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
    Some(finding("tokio tasks", State::Limited, fact, Some(ADVICE.into())))
}
