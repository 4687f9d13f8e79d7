//! Signals: SIGINT (Ctrl-C) and SIGTERM end a long command with what is finished by then.
//!
//! Model.   A thread waits for both, also where a shell had SIGINT ignored, as it does for what runs in its
//!          background. The first one sets [`INTERRUPTED`], at which all that takes long looks between two slices. A
//!          second one ends the process at once. `timeout` signals its child and then its group, in which the child
//!          is: what comes within `ONE_BLOW` of the first is the first once more.
//! Number.  A slice takes at most a second, and a part in a process of its own is given up: so long until it ends.
//! Writers. [`INTERRUPTED`], `SIGNAL`: the thread that waits. Read by all.

use crate::measure::INTERRUPTED;
use crate::part;
use std::sync::atomic::{AtomicI32, Ordering::*, fence};
use std::time::{Duration, Instant};

/// Signals that are so close are one.
const ONE_BLOW: Duration = Duration::from_millis(500);

/// The first signal that came; Ctrl-C's until then.
static SIGNAL: AtomicI32 = AtomicI32::new(signal_hook::consts::SIGINT);

/// From now on the first signal only sets [`INTERRUPTED`]. To be called once, by a command that looks at it, or by a
/// part, which is ended by who asked for it. Where it can't be done, a signal ends the process as ever.
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
                    // ORDERING: Release; pairs with the fence in `end`: who saw this and ends says by which signal.
                    INTERRUPTED.store(true, Release);
                    part::give_up();
                }
                Some(first) if is_another(first.elapsed()) => end(),
                Some(_) => {}
            }
        }
    };
    // Without the thread a signal would do nothing at all.
    std::thread::Builder::new().name("signals".into()).spawn(wait).expect("a thread can be had");
}

/// Whether a signal so long after the first is meant as a second one.
fn is_another(after: Duration) -> bool {
    after >= ONE_BLOW
}

/// Ends an interrupted command, with the status that a shell gives to who died by that signal: 130 or 143.
pub fn end() -> ! {
    // ORDERING: Acquire; pairs with the Release in `listen`, which the caller has read from.
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
