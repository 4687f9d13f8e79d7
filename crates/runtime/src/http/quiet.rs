//! Quiet: for how long a connection has been without a request, and when that is too long.
//!
//! Model.   A connection is *quiet* while none of its requests is under way: from its beginning, or the end of its last
//!          answer, until the head of the next request is complete. It may be quiet for `idle`, and once a first byte
//!          has come, or at its beginning, for `head`. Bytes of HTTP/2 that are no request (pings) prove nothing.
//!          The connection's timer rings when the bound would end and is set again if something happened meanwhile, so
//!          a request costs two or three reads of the clock and no timer.
//! Writers. The connection's task, and with HTTP/2 the tasks of its streams, which end requests.

use hyper::body::{Body, Frame, SizeHint};
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
use warmcore_terms::Nanos;

/// After so long a connection that was asked to close is cut.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Tokio's timers go up to two years.
const TIMER_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long a connection may be quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// From the beginning, or the first byte after an answer, to the end of a request's head.
    pub(super) head: Duration,
    /// From the end of an answer to the next byte.
    pub(super) idle: Duration,
}

/// What is known of one connection.
#[derive(Debug)]
pub(super) struct Quiet {
    /// Requests whose head is complete and whose answer is not gone.
    requests: AtomicU32,
    /// Since when the bound counts, in ns of the clock. It means nothing while there are requests.
    since: AtomicU64,
    /// An answer is gone and nothing has come since: `idle` counts, not `head`.
    is_idle: AtomicBool,
    is_http2: AtomicBool,
}

impl Quiet {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            requests: AtomicU32::new(0),
            since: AtomicU64::new(now.0),
            is_idle: AtomicBool::new(false),
            is_http2: AtomicBool::new(false),
        }
    }

    /// A request's head is complete.
    fn begin(&self, is_http2: bool) {
        self.is_http2.store(is_http2, Relaxed);
        self.requests.fetch_add(1, Relaxed);
    }

    /// Its answer is gone.
    fn end(&self, now: Nanos) {
        self.since.store(now.0, Relaxed);
        self.is_idle.store(true, Relaxed);
        // ORDERING: Release; pairs with the Acquire in `rest`: who sees no request sees since when.
        self.requests.fetch_sub(1, Release);
    }

    /// Bytes came: the beginning of a head, if there was none.
    fn heard(&self, now: impl FnOnce() -> Nanos) {
        if self.is_idle.load(Relaxed) && self.counts_bytes() {
            self.since.store(now().0, Relaxed);
            self.is_idle.store(false, Relaxed);
        }
    }

    /// Bytes went: the end of an answer that hyper had still kept.
    fn said(&self, now: impl FnOnce() -> Nanos) {
        if self.is_idle.load(Relaxed) && self.counts_bytes() {
            self.since.store(now().0, Relaxed);
        }
    }

    fn counts_bytes(&self) -> bool {
        self.requests.load(Relaxed) == 0 && !self.is_http2.load(Relaxed)
    }

    /// Until when it may be quiet, if nothing happens. `None`: a request is under way.
    pub(super) fn until(&self, bounds: Bounds) -> Option<Nanos> {
        // ORDERING: Acquire; see `end`.
        if self.requests.load(Acquire) > 0 {
            return None;
        }
        let bound = if self.is_idle.load(Relaxed) { bounds.idle } else { bounds.head };
        Some(later(Nanos(self.since.load(Relaxed)), bound))
    }
}

/// What an [`Alarm`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ring {
    /// A connection of HTTP/2 was quiet for too long: it is to say goodbye.
    Close,
    /// Another one was, or it did not close when it was asked to: drop it.
    Cut,
}

pin_project! {
    /// Rings when a connection has been quiet for too long, and with HTTP/2 again [`CLOSE_GRACE`] later. To be polled in the
    /// connection's task, after the connection.
    pub(super) struct Alarm {
        quiet: Arc<Quiet>,
        bounds: Bounds,
        // When the timer rings.
        at: Nanos,
        has_rung: bool,
        #[pin]
        timer: Sleep,
    }
}

impl Alarm {
    pub(super) fn new(quiet: Arc<Quiet>, bounds: Bounds) -> Self {
        // The first poll sets it.
        Self { quiet, bounds, at: Nanos(u64::MAX), has_rung: false, timer: sleep(TIMER_MAX) }
    }
}

impl Future for Alarm {
    type Output = Ring;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Ring> {
        let mut this = self.project();
        loop {
            let until = this.quiet.until(*this.bounds);
            // What happened since the timer was set makes it ring too early, which costs little; never too late.
            if !*this.has_rung && until.is_some_and(|until| until < *this.at) {
                set(this.timer.as_mut(), this.at, until.unwrap_or(*this.at));
            }
            ready!(this.timer.as_mut().poll(cx));
            let (now, was_asked) = (clock::now(), *this.has_rung);
            match until {
                // Only HTTP/2 has a word for it.
                Some(until) if was_asked || until.0 <= now.0 && !this.quiet.is_http2.load(Relaxed) => {
                    return Poll::Ready(Ring::Cut);
                }
                Some(until) if until.0 <= now.0 => {
                    *this.has_rung = true;
                    set(this.timer.as_mut(), this.at, later(now, CLOSE_GRACE));
                    return Poll::Ready(Ring::Close);
                }
                Some(until) => set(this.timer.as_mut(), this.at, until),
                // When the request has ended the connection will be idle, or has been asked to close.
                None => set(this.timer.as_mut(), this.at, later(now, this.bounds.idle.max(CLOSE_GRACE))),
            }
        }
    }
}

fn later(now: Nanos, by: Duration) -> Nanos {
    Nanos(now.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
}

/// Sets the timer, which has a longest time of its own.
fn set(timer: Pin<&mut Sleep>, at: &mut Nanos, to: Nanos) {
    *at = to;
    let rest = Duration::from_nanos(to.0.saturating_sub(clock::now().0)).min(TIMER_MAX);
    timer.reset(Instant::now() + rest);
}

/// A request that is under way.
struct Underway(Arc<Quiet>);

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.end(clock::now());
    }
}

/// A service whose requests are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    pub(super) service: S,
    pub(super) quiet: Arc<Quiet>,
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
        // A tunnel through a stream of HTTP/2 lives on when its answer is gone, and hyper does not say for how long.
        let is_tunnel = is_http2 && request.method() == Method::CONNECT;
        Answering { future: self.service.call(request), underway: Some(underway), is_tunnel }
    }
}

pin_project! {
    pub(super) struct Answering<F> {
        #[pin]
        future: F,
        underway: Option<Underway>,
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
            // One request more, which is under way for as long as the connection lives.
            quiet.begin(true);
        }
        Poll::Ready(Ok(answer.map(|body| CountedBody { body, _underway: underway })))
    }
}

pin_project! {
    /// A body that ends its request when it is dropped, which hyper does when all of it was taken.
    pub(super) struct CountedBody<B> {
        #[pin]
        body: B,
        _underway: Option<Underway>,
    }
}

impl<B: Body> Body for CountedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection whose bytes are noticed.
pub(super) struct Noticed<I> {
    pub(super) io: I,
    pub(super) quiet: Arc<Quiet>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Noticed<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buf.filled().len());
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            this.quiet.heard(clock::now);
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
        // A second one, as HTTP/2 has them.
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
    fn a_bound_without_end_has_none() {
        let quiet = Quiet::new(Nanos(5));
        let bounds = Bounds { head: Duration::MAX, idle: Duration::MAX };
        assert_eq!(quiet.until(bounds), Some(Nanos(u64::MAX)));
    }
}
