//! Quiet: measures how long a connection has had no request, and decides when it is closed for that.
//!
//! A connection is *quiet* while no request of it is under way: from its begin, or the end of its last answer, until
//! the head of the next request is complete. After an answer it may be quiet for the bound `idle`. At its begin, and
//! with HTTP/1 from the first byte of a later head on, the bound is `head`.
//!
//! With HTTP/2, bytes that belong to no request (pings) don't count as activity, but bytes of bodies do: of an answer
//! that hyper took in one piece and sends as fast as the client reads (`CountedData`), and of a request that was
//! answered before all of it had come (`Frames`). Frames are not assigned to their streams. So a client that sends
//! frames of a body on a closed stream keeps its connection until the crate `h2` has refused 1024 of them and ends the
//! connection.
//!
//! The connection's timer expires when the bound ends, and is set again if bytes or requests came in the meantime. So a
//! request sets no timer, and costs two or three readings of the clock.
//!
//! The connection's task writes the state. With HTTP/2 the tasks of the streams write it too, when a request ends.

use hyper::body::{Body, Buf, Bytes, Frame, SizeHint};
use hyper::{Method, Request, Response, Version};
use pin_project_lite::pin_project;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use warmcore_sys::clock;
use warmcore_types::Nanos;

/// Time after which a connection that was asked to close is dropped, if it is still quiet.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Longest time that the timer is set to: tokio's timers go up to two years.
const TIMER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Longest times that a connection may be quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// From the connection's begin or, with HTTP/1, the first byte after an answer, to the end of a request's head.
    pub(crate) head: Duration,
    /// From the end of an answer to the next byte, with HTTP/2 to the next request or byte of a body.
    pub(crate) idle: Duration,
}

/// State of one connection.
#[derive(Debug)]
pub(crate) struct Quiet {
    /// Requests whose head is complete and whose answer was not handed over, and open tunnels.
    requests: AtomicU32,
    /// When the current bound began, in ns of the clock. Has no meaning while a request is under way.
    since: AtomicU64,
    /// Whether an answer was handed over and, with HTTP/1, no byte has come since. If so the bound is `idle`, else
    /// `head`.
    is_idle: AtomicBool,
    is_http2: AtomicBool,
}

impl Quiet {
    pub(crate) fn new(now: Nanos) -> Self {
        Self {
            requests: AtomicU32::new(0),
            since: AtomicU64::new(now.0),
            is_idle: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
        }
    }

    /// Records that a request's head is complete.
    fn begin(&self, is_http2: bool) {
        self.is_http2.store(is_http2, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    /// Records that a request has ended: its answer was handed over to hyper, or its service failed or was dropped.
    fn end(&self, now: Nanos) {
        self.since.store(now.0, Relaxed);
        self.is_idle.store(true, Relaxed);
        // ORDERING: Release; pairs with the Acquire in `until`: a task that sees no request sees `since`.
        self.requests.fetch_sub(1, Release);
    }

    /// Records that bytes came. With HTTP/1 the first bytes after an answer begin a head.
    fn heard(&self, now: impl FnOnce() -> Nanos) {
        if self.is_idle.load(Relaxed) && self.counts_bytes() {
            self.since.store(now().0, Relaxed);
            self.is_idle.store(false, Relaxed);
        }
    }

    /// Records that bytes were sent. With HTTP/1, bytes sent after an answer's end belong to that answer: hyper had
    /// buffered them.
    fn said(&self, now: impl FnOnce() -> Nanos) {
        if self.is_idle.load(Relaxed) && self.counts_bytes() {
            self.since.store(now().0, Relaxed);
        }
    }

    /// Records that a part of an HTTP/2 body was sent or received: the rest of an answer, or the rest of a request that
    /// was answered already.
    fn moved(&self, now: impl FnOnce() -> Nanos) {
        if self.is_idle.load(Relaxed) && self.requests.load(Relaxed) == 0 {
            self.since.store(now().0, Relaxed);
        }
    }

    fn counts_bytes(&self) -> bool {
        self.requests.load(Relaxed) == 0 && !self.is_http2.load(Relaxed)
    }

    /// When the bound ends, if no byte and no request comes before. `None`: a request is under way.
    pub(crate) fn until(&self, bounds: Bounds) -> Option<Nanos> {
        // ORDERING: Acquire; pairs with the Release in `end`.
        if self.requests.load(Acquire) > 0 {
            return None;
        }
        let bound = if self.is_idle.load(Relaxed) { bounds.idle } else { bounds.head };
        Some(later(Nanos(self.since.load(Relaxed)), bound))
    }
}

/// What the connection's task must do when the alarm is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Ask a quiet HTTP/2 connection to close, if it has had a request.
    Close,
    /// Drop the connection: it has had no request by HTTP/2, or it was asked to close, and since then no request and no
    /// bytes of a body came or went.
    Cut,
}

pin_project! {
    /// Ready when a connection has been quiet for too long, and with HTTP/2 once more if it still is after
    /// [`CLOSE_GRACE`]. It must be polled in the connection's task, after the connection.
    pub(crate) struct Alarm {
        quiet: Arc<Quiet>,
        bounds: Bounds,
        // When the timer expires.
        at: Nanos,
        has_rung: bool,
        #[pin]
        timer: Sleep,
    }
}

impl Alarm {
    pub(crate) fn new(quiet: Arc<Quiet>, bounds: Bounds) -> Self {
        // The first poll sets the timer.
        Self { quiet, bounds, at: Nanos(u64::MAX), has_rung: false, timer: sleep(TIMER_MAX) }
    }
}

impl Future for Alarm {
    type Output = Ring;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ring> {
        let mut this = self.project();
        loop {
            let until = this.quiet.until(*this.bounds);
            // Activity after the timer was set moves the bound's end, so the timer expires too early, which costs
            // little. Until it has expired for a quiet connection it never expires too late.
            if !*this.has_rung && until.is_some_and(|until| until < *this.at) {
                set(this.timer.as_mut(), this.at, until.unwrap_or(*this.at));
            }
            ready!(this.timer.as_mut().poll(cx));
            let (now, was_asked) = (clock::now(), *this.has_rung);
            match until {
                // HTTP/1 has no message that asks a client to close.
                Some(until) if until.0 <= now.0 && (was_asked || !this.quiet.is_http2.load(Relaxed)) => {
                    return Poll::Ready(Ring::Cut);
                }
                Some(until) if until.0 <= now.0 => {
                    *this.has_rung = true;
                    set(this.timer.as_mut(), this.at, later(now, CLOSE_GRACE));
                    return Poll::Ready(Ring::Close);
                }
                Some(until) => set(this.timer.as_mut(), this.at, until),
                // A request is under way. When it ends, the connection may be quiet for `idle`, so the timer need not
                // expire before that. Even with a shorter `idle` the pause is `CLOSE_GRACE`.
                None => set(this.timer.as_mut(), this.at, later(now, this.bounds.idle.max(CLOSE_GRACE))),
            }
        }
    }
}

fn later(now: Nanos, by: Duration) -> Nanos {
    Nanos(now.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

/// Sets the timer, at most [`TIMER_MAX`] ahead.
fn set(timer: Pin<&mut Sleep>, at: &mut Nanos, to: Nanos) {
    *at = to;
    let rest = Duration::from_nanos(to.0.saturating_sub(clock::now().0)).min(TIMER_MAX);
    timer.reset(Instant::now() + rest);
}

/// A request that is under way; dropping it ends the request.
struct Underway(Arc<Quiet>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.end(clock::now());
    }
}

/// A service that counts its requests.
#[derive(Clone)]
pub(crate) struct Counted<S> {
    pub(crate) service: S,
    pub(crate) quiet: Arc<Quiet>,
}

impl<S, I, B> hyper::service::Service<Request<I>> for Counted<S>
where
    S: hyper::service::Service<Request<I>, Response = Response<B>>,
    B: Body,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn call(&self, request: Request<I>) -> Self::Future {
        let is_http2 = request.version() == Version::HTTP_2;
        self.quiet.begin(is_http2);
        let underway = Underway(self.quiet.clone());
        // A tunnel through an HTTP/2 stream outlives its answer, and hyper does not report its end.
        let is_tunnel = is_http2 && request.method() == Method::CONNECT;
        Answering { future: self.service.call(request), underway: Some(underway), is_http2, is_tunnel }
    }
}

pin_project! {
    pub(crate) struct Answering<F> {
        #[pin]
        future: F,
        underway: Option<Underway>,
        is_http2: bool,
        is_tunnel: bool,
    }
}

impl<F, B, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<CountedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.future.poll(cx))?;
        let underway = this.underway.take();
        if let Some(Underway(quiet)) =
            underway.as_ref().filter(|_| *this.is_tunnel && answer.status().is_success())
        {
            // A tunnel counts as one more request, under way for as long as the connection lives.
            quiet.begin(true);
        }
        let counts_data = *this.is_http2;
        Poll::Ready(Ok(answer.map(|body| CountedBody { body, underway, counts_data })))
    }
}

pin_project! {
    /// A body that ends its request when it is dropped. hyper drops it when it has taken all of it, or when the
    /// connection or stream ends before.
    pub(crate) struct CountedBody<B> {
        #[pin]
        body: B,
        underway: Option<Underway>,
        // False with HTTP/1, where `heard` and `said` record the connection's bytes instead.
        counts_data: bool,
    }
}

/// A part of a body. hyper advances it as the client reads, perhaps long after the body was dropped.
pub(crate) struct CountedData<D> {
    data: D,
    quiet: Option<Arc<Quiet>>,
}

impl<D> CountedData<D> {
    fn went(&self) {
        if let Some(quiet) = &self.quiet {
            quiet.moved(clock::now);
        }
    }
}

impl<D: Buf> Buf for CountedData<D> {
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    fn chunks_vectored<'a>(&'a self, to: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(to)
    }

    fn advance(&mut self, n: usize) {
        self.data.advance(n);
        self.went();
    }

    fn copy_to_bytes(&mut self, n: usize) -> Bytes {
        self.went();
        self.data.copy_to_bytes(n)
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = CountedData<B::Data>;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        let quiet =
            || this.underway.as_ref().filter(|_| *this.counts_data).map(|Underway(quiet)| quiet.clone());
        let counted = |frame: Frame<B::Data>| frame.map_data(|data| CountedData { data, quiet: quiet() });
        Poll::Ready(frame.map(|frame| frame.map(counted)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The first bytes of every HTTP/2 connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A parser of the HTTP/2 frames that a client sends; it finds out which bytes belong to bodies.
///
/// The head of a frame is 9 bytes: 3 for the length of the rest, then 1 for the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frames {
    /// So far this many bytes came, and they equal the begin of the preface.
    Preface(usize),
    /// Not HTTP/2.
    Other,
    /// This many bytes of a head were read; the first four are kept.
    Head(usize, [u8; 4]),
    /// This many bytes of a frame are left; true if they belong to a body.
    Rest(usize, bool),
}

impl Frames {
    /// Reads more bytes. Returns whether some of them belong to a body.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut has_data = false;
        while let Some((first, others)) = bytes.split_first() {
            let mut next = others;
            *self = match *self {
                Self::Other => return has_data,
                Self::Preface(n) if PREFACE[n] != *first => Self::Other,
                Self::Preface(n) if n + 1 < PREFACE.len() => Self::Preface(n + 1),
                Self::Preface(_) => Self::Head(0, [0; 4]),
                Self::Head(n, mut kept) => {
                    if let Some(byte) = kept.get_mut(n) {
                        *byte = *first;
                    }
                    let length = u32::from_be_bytes([0, kept[0], kept[1], kept[2]]) as usize;
                    match n {
                        8 if length > 0 => Self::Rest(length, kept[3] == 0),
                        8 => Self::Head(0, [0; 4]),
                        _ => Self::Head(n + 1, kept),
                    }
                }
                Self::Rest(length, is_data) => {
                    let these = length.min(bytes.len());
                    next = &bytes[these..];
                    has_data |= is_data;
                    if these == length { Self::Head(0, [0; 4]) } else { Self::Rest(length - these, is_data) }
                }
            };
            bytes = next;
        }
        has_data
    }
}

/// A connection that records its bytes.
pub(crate) struct Noticed<I> {
    io: I,
    quiet: Arc<Quiet>,
    frames: Frames,
}

impl<I> Noticed<I> {
    pub(crate) fn new(io: I, quiet: Arc<Quiet>) -> Self {
        Self { io, quiet, frames: Frames::Preface(0) }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Noticed<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buf.filled().len());
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let came = &buf.filled()[before..];
        if !came.is_empty() {
            this.quiet.heard(clock::now);
        }
        if this.frames != Frames::Other && this.frames.read(came) {
            this.quiet.moved(clock::now);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Noticed<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.io).poll_write(cx, buf))?;
        this.quiet.said(clock::now);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.io).poll_write_vectored(cx, bufs))?;
        this.quiet.said(clock::now);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { head: Duration::from_nanos(100), idle: Duration::from_nanos(1000) };

    fn until(quiet: &Quiet) -> Option<u64> {
        quiet.until(BOUNDS).map(|at| at.0)
    }

    #[test]
    fn a_new_connection_has_as_long_as_a_head_whatever_it_sends() {
        let quiet = Quiet::new(Nanos(50));
        assert_eq!(until(&quiet), Some(150));
        quiet.heard(|| Nanos(140));
        assert_eq!(until(&quiet), Some(150));
    }

    #[test]
    fn a_request_is_never_cut_and_its_end_begins_the_idle_bound() {
        let quiet = Quiet::new(Nanos(0));
        quiet.begin(false);
        assert_eq!(until(&quiet), None);
        // A second request at the same time, as HTTP/2 allows.
        quiet.begin(false);
        quiet.end(Nanos(2_000_000));
        assert_eq!(until(&quiet), None);
        quiet.end(Nanos(9_000_000));
        assert_eq!(until(&quiet), Some(9_001_000));
    }

    #[test]
    fn the_first_byte_after_an_answer_begins_a_head_and_later_ones_do_not() {
        let quiet = Quiet::new(Nanos(0));
        quiet.begin(false);
        quiet.end(Nanos(10));
        quiet.heard(|| Nanos(900));
        assert_eq!(until(&quiet), Some(1000));
        quiet.heard(|| Nanos(990));
        assert_eq!(until(&quiet), Some(1000));
    }

    #[test]
    fn what_is_left_of_an_answer_may_take_its_time_to_go() {
        let quiet = Quiet::new(Nanos(0));
        quiet.begin(false);
        quiet.end(Nanos(10));
        quiet.said(|| Nanos(900));
        assert_eq!(until(&quiet), Some(1900));
    }

    #[test]
    fn pings_of_http2_do_not_keep_a_connection() {
        let quiet = Quiet::new(Nanos(0));
        quiet.begin(true);
        quiet.end(Nanos(10));
        (0..100).for_each(|i| {
            quiet.heard(|| Nanos(10 * i));
            quiet.said(|| Nanos(10 * i));
        });
        assert_eq!(until(&quiet), Some(1010));
    }

    #[test]
    fn bodies_of_http2_that_still_move_keep_a_connection() {
        let quiet = Arc::new(Quiet::new(Nanos(0)));
        quiet.begin(true);
        quiet.end(Nanos(10));
        quiet.moved(|| Nanos(900));
        assert_eq!(until(&quiet), Some(1900));
        // The body's end does not end the answer.
        let mut part = CountedData { data: Bytes::from_static(b"warm"), quiet: Some(quiet.clone()) };
        for n in [1, 3] {
            quiet.since.store(0, Relaxed);
            part.advance(n);
            assert!(until(&quiet) > Some(1000));
        }
        assert_eq!(part.remaining(), 0);
        // Before the first request it does not count.
        let quiet = Quiet::new(Nanos(0));
        quiet.moved(|| Nanos(90));
        assert_eq!(until(&quiet), Some(100));
    }

    #[test]
    fn bytes_of_a_body_are_told_from_others_wherever_reads_end() {
        let frame = |kind: u8, rest: &[u8]| {
            let length = (rest.len() as u32).to_be_bytes();
            [&length[1..], &[kind, 0, 0, 0, 0, 1], rest].concat()
        };
        // Parts, and whether they contain bytes of a body: the preface, settings, a ping, an empty data frame, a data
        // frame, a ping whose bytes look like the head of a data frame, a data frame.
        let parts = [
            (PREFACE.to_vec(), false),
            (frame(4, &[]), false),
            (frame(6, &[0; 8]), false),
            (frame(0, &[]), false),
            (frame(0, &[9; 300]), true),
            (frame(6, &[0, 0, 1, 0, 0, 0, 0, 0]), false),
            (frame(0, &[0]), true),
        ];
        for at_once in [1, 2, 7, 9, 10, 10_000] {
            let mut frames = Frames::Preface(0);
            for (bytes, is_data) in &parts {
                let found = bytes.chunks(at_once).fold(false, |found, bytes| found | frames.read(bytes));
                assert_eq!(found, *is_data, "{bytes:?}, {at_once} at once");
            }
        }
        let mut frames = Frames::Preface(0);
        assert!(!frames.read(b"PRI * HTTP/1.1\r\n") && frames == Frames::Other);
    }

    #[test]
    fn a_bound_without_end_has_none() {
        let quiet = Quiet::new(Nanos(5));
        let bounds = Bounds { head: Duration::MAX, idle: Duration::MAX };
        assert_eq!(quiet.until(bounds), Some(Nanos(u64::MAX)));
    }
}
