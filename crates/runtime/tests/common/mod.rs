//! Common: helpers of several test files.
//!
//! `listen` sets the subscriber of `tracing` for the whole process, so in a file that uses it no test may emit events
//! that another test would record.

#![allow(dead_code, reason = "each test file uses some of it")]

use std::fmt::{Debug, Write as _};
use std::future::poll_fn;
use std::hint::black_box;
use std::pin::pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Polls a future to its end, and returns the number of polls.
pub async fn polls_of(future: impl Future<Output = ()>) -> u32 {
    let mut future = pin!(future);
    let mut polls = 0;
    poll_fn(|cx| {
        polls += 1;
        future.as_mut().poll(cx)
    })
    .await;
    polls
}

/// Computes for `steps` steps, with the same number of instructions each time.
pub fn work(steps: u64) {
    let mut x = steps;
    for _ in 0..steps {
        x = black_box(x.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(7));
    }
    black_box(x);
}

/// Steps of [`work`] that take about a microsecond on this machine.
pub fn steps_per_us() -> u64 {
    static STEPS: OnceLock<u64> = OnceLock::new();
    *STEPS.get_or_init(|| {
        let round = || {
            let began = Instant::now();
            work(100_000);
            began.elapsed().as_nanos().max(1) as u64
        };
        (100_000 * 1000 / (0..20).map(|_| round()).min().unwrap()).max(1)
    })
}

/// A recorder of events and spans of `tracing`.
pub trait Hear: Send + Sync + 'static {
    /// Whether to record events or spans of this callsite.
    fn wants(&self, of: &Metadata<'_>) -> bool;

    /// Called for an event, with its fields as text.
    fn event(&self, _text: String) {}

    /// Called for a new span, with its fields as text.
    fn span(&self, _id: u64, _span: &Attributes<'_>, _text: String) {}

    /// Called when a span is entered.
    fn enter(&self, _id: u64) {}
}

/// Makes `hear` the process's subscriber.
pub fn listen(hear: impl Hear) {
    let listener = Listener { hear, made: AtomicU64::new(0) };
    tracing::subscriber::set_global_default(listener).expect("one listener a process");
}

/// Makes `hear` this thread's subscriber while `act` runs.
pub fn heard<R>(hear: impl Hear, act: impl FnOnce() -> R) -> R {
    let listener = Listener { hear, made: AtomicU64::new(0) };
    tracing::subscriber::with_default(listener, act)
}

struct Listener<H> {
    hear: H,
    /// Number of spans made.
    made: AtomicU64,
}

/// Writes fields one after the other.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).expect("a string takes all");
    }
}

impl<H: Hear> Subscriber for Listener<H> {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        self.hear.wants(of)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(span.metadata().name().to_owned());
        span.record(&mut text);
        let id = self.made.fetch_add(1, Relaxed) + 1;
        self.hear.span(id, span, text.0);
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.hear.event(text.0);
    }

    fn enter(&self, span: &Id) {
        self.hear.enter(span.into_u64());
    }

    fn exit(&self, _: &Id) {}
}
