//! The services of the servers, and the check of an answer by the client.
//!
//! A connection is one future, which is the same on every runtime: hyper's HTTP/1 over a socket, with one of four
//! services. The right answer depends only on the request and on its position on the connection, so a client checks
//! each answer without doing the work again. Writing and summing 64 KiB takes about 10 µs. A chase (following a random
//! cycle of links) through 256 KiB takes 16 µs in the core's own cache and 55 to 160 µs after the task has moved.
//!
//! A connection's state is written only by the connection's task, on the thread that runs the task.

use crate::working_set::WorkingSet;
use axum::Router;
use axum::routing::get;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::future::ready;
use std::hint::black_box;
use std::sync::OnceLock;

const HELLO: &str = "Hello, World!";
const PAGE_WORDS: usize = 64 * 1024 / 8;
const STATE_KIB: usize = 256;

/// What a server does for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handler {
    /// No work, with hyper alone.
    Hello,
    /// No work, through axum's router.
    Axum,
    /// Fills 64 KiB and sums them up.
    Compute,
    /// Chases through the 256 KiB that its connection keeps.
    State,
}

impl Handler {
    /// The path of a request with this number.
    pub fn path(self, number: u64) -> String {
        if self == Self::Compute { format!("/{number}") } else { "/".to_owned() }
    }

    /// The body of the right answer to the request with this number, the `nth` of its connection, counted from 1.
    pub fn answer(self, number: u64, nth: u64) -> String {
        match self {
            Self::Hello | Self::Axum => HELLO.to_owned(),
            Self::Compute => {
                let words = PAGE_WORDS as u64;
                let sum =
                    number.wrapping_mul(FACTOR).wrapping_mul(words).wrapping_add(words * (words - 1) / 2);
                checksum(sum)
            }
            Self::State => checksum(nth.wrapping_mul(WorkingSet::lines(STATE_KIB) as u64)),
        }
    }
}

/// A multiplier that spreads numbers over all bits of a word.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn checksum(sum: u64) -> String {
    format!("{sum:016x}")
}

/// Serves one connection until the client closes it.
pub async fn connection<I>(io: I, handler: Handler)
where
    I: Read + Write + Unpin + Send + 'static,
{
    let http = Builder::new();
    // An error is ignored: the client reports a missing answer.
    let _ = match handler {
        Handler::Hello => http.serve_connection(io, service_fn(|_| answer(HELLO))).await,
        Handler::Axum => http.serve_connection(io, TowerToHyperService::new(router())).await,
        Handler::Compute => http.serve_connection(io, service_fn(|request| answer(compute(&request)))).await,
        Handler::State => {
            let state = WorkingSet::new(STATE_KIB, 1);
            http.serve_connection(io, service_fn(move |_| answer(touch(&state)))).await
        }
    };
}

type Answer = Result<Response<Full<Bytes>>, Infallible>;

fn answer(body: impl Into<Bytes>) -> impl Future<Output = Answer> {
    ready(Ok(Response::new(Full::new(body.into()))))
}

/// One router for all connections, cloned for each, as `axum::serve` does it.
fn router() -> Router {
    static ROUTER: OnceLock<Router> = OnceLock::new();
    ROUTER.get_or_init(|| Router::new().route("/", get(|| async { HELLO }))).clone()
}

/// Fills and sums up a page that is made for one request and dropped after it.
fn compute(request: &Request<Incoming>) -> String {
    let number: u64 = request.uri().path()[1..].parse().unwrap_or(0);
    let first = number.wrapping_mul(FACTOR);
    let mut page: Vec<u64> = (0..PAGE_WORDS as u64).map(|i| first.wrapping_add(i)).collect();
    // Without this the compiler would compute the sum by a formula and not write the page.
    black_box(&mut page);
    checksum(page.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)))
}

/// Touches every line of a state and sums up the touches so far.
fn touch(state: &WorkingSet) -> String {
    let mut sum = 0;
    state.chase(|touched| sum += u64::from(touched));
    checksum(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_touch_of_a_state_is_the_nth_answer() {
        let state = WorkingSet::new(STATE_KIB, 1);
        for nth in 1..=3 {
            assert_eq!(touch(&state), Handler::State.answer(0, nth));
        }
    }
}
