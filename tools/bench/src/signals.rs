//! SIGINT (Ctrl-C) and SIGTERM: a long command ends and keeps the cases that are finished.
//!
//! A thread waits for both signals, also where a shell has made its background jobs ignore SIGINT. The first signal sets
//! [`INTERRUPTED`], which every long computation checks between two slices. A second signal ends the process at once.
//! `timeout` signals its child and then the child's process group, so a signal within `ONE_BLOW` of the first counts as
//! the same one.
//!
//! A slice takes at most a second, and a part in a child process is killed: a command ends within about a second.
//!
//! [`INTERRUPTED`] and `SIGNAL` are written by the waiting thread and read by all threads.

use crate::measure::INTERRUPTED;
use crate::part;
use std::sync::atomic::{AtomicI32, Ordering::*, fence};
use std::time::{Duration, Instant};

/// Two signals within this time count as one.
const ONE_BLOW: Duration = Duration::from_millis(500);

/// The first signal that arrived; SIGINT until then.
static SIGNAL: AtomicI32 = AtomicI32::new(signal_hook::consts::SIGINT);

/// From now on the first signal only sets [`INTERRUPTED`]. A command that checks it calls this once; so does a part, whose
/// parent kills it. Where the handler can't be installed, a signal ends the process as it does by default.
pub fn listen() {
    use signal_hook::{consts, iterator::Signals};
    let Ok(mut signals) = Signals::new([consts::SIGINT, consts::SIGTERM]) else { return };
    let wait = move || {
        let mut first = None;
        for signal in signals.forever() {
            match first {
                None => {
                    first = Some(Instant::now());
                    SIGNAL.store(signal, Relaxed);
                    // ORDERING: Release; pairs with the fence in `end`: a thread that reads true here also reads the signal's number.
                    INTERRUPTED.store(true, Release);
                    part::give_up();
                }
                Some(first) if is_another(first.elapsed()) => end(),
                Some(_) => {}
            }
        }
    };
    // Without this thread the process would ignore the signals: the handler is installed already.
    std::thread::Builder::new().name("signals".into()).spawn(wait).expect("a thread can be had");
}

/// Whether a signal this long after the first one is a second one.
fn is_another(after: Duration) -> bool {
    after >= ONE_BLOW
}

/// Ends an interrupted command with the status that a shell reports for that signal: 130 or 143.
pub fn end() -> ! {
    // ORDERING: Acquire; pairs with the Release in `listen`. The caller has read `INTERRUPTED`.
    fence(Acquire);
    std::process::exit(128 + SIGNAL.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_signals_of_one_blow_are_one_and_a_later_one_is_another() {
        assert!(!is_another(Duration::ZERO) && !is_another(ONE_BLOW / 2));
        assert!(is_another(ONE_BLOW) && is_another(Duration::from_secs(60)));
    }
}
