//! Config: the settings of a reactor.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use warmcore_sys::clock;
use warmcore_types::Nanos;

/// Settings of a [`TokioReactor`](crate::TokioReactor).
#[derive(Clone)]
pub struct TokioDriverConfig {
    /// The runtime's name, for messages.
    pub name: String,
    /// The largest number of threads of `spawn_blocking`; at least 1.
    pub max_blocking_threads: usize,
    /// Returns the name of a new thread of `spawn_blocking`.
    pub thread_name: Arc<dyn Fn() -> String + Send + Sync>,
    /// Stack size of these threads in bytes. `None`: the standard library's.
    pub thread_stack_size: Option<usize>,
    /// How long such a thread waits for the next closure before it ends. `None`: tokio's ten seconds.
    pub thread_keep_alive: Option<Duration>,
    /// Whether tokio's timers work in the driver's context. They panic if not.
    pub enable_time: bool,
    /// Whether [`Driver::close`](crate::Driver::close) waits for blocking operations that are under way: closures of `spawn_blocking`, and
    /// operations of `tokio::fs`. If not, they go on in the background.
    pub close_waits: bool,
    /// Called on the thread in the driver each time that it stops waiting and is about to run sockets, timers and tasks
    /// of `tokio::spawn`. It must not panic.
    pub on_run: fn(),
    /// What [`Driver::now`](crate::Driver::now) returns.
    pub clock: fn() -> Nanos,
}

impl TokioDriverConfig {
    /// The settings of a reactor with timers and up to 512 blocking threads, whose names are `NAME-blocking`, on the
    /// system's clock.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let thread_name = format!("{name}-blocking");
        Self {
            name,
            max_blocking_threads: 512,
            thread_name: Arc::new(move || thread_name.clone()),
            thread_stack_size: None,
            thread_keep_alive: None,
            enable_time: true,
            close_waits: false,
            on_run: || {},
            clock: clock::now,
        }
    }
}

impl fmt::Debug for TokioDriverConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioDriverConfig")
            .field("name", &self.name)
            .field("max_blocking_threads", &self.max_blocking_threads)
            .field("enable_time", &self.enable_time)
            .finish_non_exhaustive()
    }
}
