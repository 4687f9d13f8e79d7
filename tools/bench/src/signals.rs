//! SIGINT (Ctrl-C) and SIGTERM: the signals after which a long command ends and keeps the cases that are finished.
//!
//! A thread waits for both signals, even if a shell has made its background jobs ignore SIGINT. The first signal sets
//! [`INTERRUPTED`], which long computations check between two slices, and kills the child process of the running part.
//! A later signal ends the process at once. `timeout` signals its child and then the child's process group, so a signal
//! within `ONE_BLOW` after the first is ignored.
//!
//! Most slices take at most a second, so a command usually ends within about a second.
//!
//! [`INTERRUPTED`] and `SIGNAL` are written by the waiting thread. All threads read [`INTERRUPTED`]; the thread that
//! ends the process reads `SIGNAL`.

use crate::measure::INTERRUPTED;
use crate::part;
use std::sync::atomic::{AtomicI32, Ordering::*, fence};
use std::time::{Duration, Instant};

/// A signal within this time after the first is ignored.
const ONE_BLOW: Duration = Duration::from_millis(500);

/// The first signal that arrived; SIGINT before that.
static SIGNAL: AtomicI32 = AtomicI32::new(signal_hook::consts::SIGINT);

/// Makes the first signal only set [`INTERRUPTED`] and kill the child process of the running part. A command that
/// checks [`INTERRUPTED`] calls this once. A part in a child process also calls this, since its parent kills it. If the
/// handler can't be installed, signals have the effect that they had before the call, which is by default the end of
/// the process.
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
                    // ORDERING: Release; pairs with the fence in `end`: a thread that has read true reads the signal's
                    // number there.
                    INTERRUPTED.store(true, Release);
                    part::give_up();
                }
                Some(first) if is_another(first.elapsed()) => end(),
                Some(_) => {}
            }
        }
    };
    // Panic without this thread: the handler is installed, so the process would ignore the signals.
    std::thread::Builder::new().name("signals".into()).spawn(wait).expect("a thread can be had");
}

/// Whether a signal this long after the first counts as a second signal.
fn is_another(after: Duration) -> bool {
    after >= ONE_BLOW
}

/// Ends an interrupted command with the status that a shell reports for that signal: 130 or 143.
pub fn end() -> ! {
    // ORDERING: Acquire; pairs with the Release in `listen`. The caller has read `INTERRUPTED`, or is the thread that
    // set it.
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
