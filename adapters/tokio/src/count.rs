//! Count: how often Warmcore's workers polled tasks of the face, for tests.
//!
//! A test suite that runs through the face proves nothing unless the scheduler under it was really Warmcore's. With
//! `WARMCORE_FACE_COUNT=FILE` in the environment the process appends one line to FILE when it exits: the polls of the
//! face's tasks by Warmcore's workers, and the multi-thread runtimes that the face built, whichever scheduler they
//! have. A process that built none appends nothing. Without the variable a poll reads one flag.

use std::ffi::c_int;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Whether polls are counted. Written before the first runtime exists.
static IS_ON: AtomicBool = AtomicBool::new(false);
static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
static POLLS: AtomicU64 = AtomicU64::new(0);
static RUNTIMES: AtomicU64 = AtomicU64::new(0);

/// How many polls were counted. 0 without `WARMCORE_FACE_COUNT` in the environment.
pub fn polls() -> u64 {
    POLLS.load(Relaxed)
}

/// Counts a poll of a task of the face, if this thread is one of Warmcore's workers.
#[inline]
pub(crate) fn count_poll() {
    if IS_ON.load(Relaxed) && warmcore_runtime::worker_index().is_some() {
        POLLS.fetch_add(1, Relaxed);
    }
}

/// Counts a multi-thread runtime. The first one reads the environment.
pub(crate) fn count_runtime() {
    let file = FILE.get_or_init(|| {
        let file = std::env::var_os("WARMCORE_FACE_COUNT").map(PathBuf::from);
        if file.is_some() {
            // SAFETY: `append` has the signature of such a function, and it does not unwind.
            IS_ON.store(unsafe { atexit(append) } == 0, Relaxed);
        }
        file
    });
    if file.is_some() {
        RUNTIMES.fetch_add(1, Relaxed);
    }
}

extern "C" fn append() {
    let Some(Some(file)) = FILE.get() else { return };
    let line = format!("{} {}\n", polls(), RUNTIMES.load(Relaxed));
    // The process exits: a failure has no reader but the reader of the file, which misses the line.
    let _ = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .and_then(|mut file| file.write_all(line.as_bytes()));
}
