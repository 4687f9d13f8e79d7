//! Time: tokio's, but [`pause`] refuses on Warmcore's workers, as tokio's does in a multi-thread runtime.

pub use real::time::*;

/// Pauses the clock of a current-thread runtime, as tokio's function does.
///
/// # Panics
/// If the clock is paused already, outside of a runtime, and in a multi-thread runtime: of one clock for each worker
/// only one would stand still.
#[track_caller]
pub fn pause() {
    if warmcore_runtime::Handle::try_current().is_some() {
        panic!(
            "time::pause() requires the `current_thread` Tokio runtime; in a multi-thread runtime no clock can be paused"
        );
    }
    real::time::pause();
}
