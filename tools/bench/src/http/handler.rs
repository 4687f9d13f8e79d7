//! The services of the servers, and the check of an answer by the client.
//!
//! A connection is one future, which is the same on every runtime: hyper's HTTP/1 over a socket, with one of three
//! services. The right answer depends only on the request's position on the connection, so a client checks
//! each answer without doing the work again. A chase (following a random
//! cycle of links) through 256 KiB takes 16 µs in the core's own cache and 55 to 160 µs after the task has moved.
//!
//! A connection's state is written only by the connection's task, on the thread that runs the task.

use crate::working_set::WorkingSet;
use axum::Router;
use axum::routing::get;
use http_body_util::Full;
use hyper::Response;
use hyper::body::Bytes;
use hyper::rt::{Read, Write};
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::future::ready;
use std::sync::OnceLock;

const HELLO: &str = "Hello, World!";
const STATE_KIB: usize = 256;

/// What a server does for each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Handler {
    /// No work, with hyper alone.
    Hello,
    /// No work, through axum's router.
    Axum,
    /// Chases through the 256 KiB that its connection keeps.
    State,
}

impl Handler {
    /// The body of the right answer to the `nth` request of a connection, counted from 1.
    pub fn answer(self, nth: u64) -> String {
        match self {
            Self::Hello | Self::Axum => HELLO.to_owned(),
            Self::State => checksum(nth.wrapping_mul(WorkingSet::lines(STATE_KIB) as u64)),
        }
    }
}

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
            assert_eq!(touch(&state), Handler::State.answer(nth));
        }
    }
}
