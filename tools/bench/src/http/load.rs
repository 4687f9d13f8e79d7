//! Sends requests over keep-alive connections, from a separate process, and checks every answer.
//!
//! There is a thread per CPU, or one, as the case says; each has its share of a server's connections and one epoll
//! instance for them. A connection has at most one outstanding request; the next request is sent after the
//! answer. This is a closed loop, as in wrk: a slow server gets fewer requests, and the time that a request would have
//! waited before it was sent is not measured. In an open loop, as in wrk2, requests are due at random times, at a given
//! rate, whether earlier ones were answered or not. One that is due while all connections have one outstanding is sent
//! late; its time counts from when it was due. Between slices there is no outstanding request and the connections stay
//! open. In the case `soak` the client splits its requests in two and reconnects after every 50 requests of a
//! connection.
//!
//! A request costs the client about 3 µs of CPU, most of it in the kernel. If client and servers share two CPUs, a rate
//! includes the work of both sides. Commands arrive as lines of JSON on stdin; answers go to stdout.
//!
//! Source: wrk's loop; HdrHistogram for the times, with three significant digits.

use super::handler::Handler;
use anyhow::Context;
use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::Duration;
use warmcore_sys::clock;
use warmcore_sys::timer::Timer;

/// The name of the part that executes the [`LoadCommand`]s on stdin until stdin is closed.
pub const PART: &str = "HttpLoad";

/// A command to the client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LoadCommand {
    /// Connect to a server. Servers are numbered in this order, from 0.
    Open {
        /// How the client sends requests to it.
        manner: Manner,
        /// How many connections.
        connections: usize,
        /// How many threads they are of, at most.
        threads: usize,
    },
    /// Send requests to a server for a while.
    Run {
        /// The server's number.
        server: usize,
        /// The time before answers are counted, and the time in which they are.
        times_ns: [u64; 2],
        /// In an open loop: how many requests are due per second.
        per_second: Option<u64>,
    },
}

/// How requests are sent to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// The server's port on this machine.
    pub port: u16,
    /// The server's handler.
    pub handler: Handler,
    /// If set: split each request in two writes, and reconnect after this many requests.
    pub afresh_after: Option<u64>,
}

/// The result of a command; all zero for `Open`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Answers per second, in the time in which they are counted.
    pub per_second: f64,
    /// The median time of an answer in the counted time, in ns.
    pub p50_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The number of all correct answers, including those outside of the counted time.
    pub answers: u64,
    /// The number of wrong answers and of broken connections.
    pub errors: u64,
    /// The first error of one of the threads, if there was one.
    pub error: Option<String>,
}

/// Executes commands until stdin is closed: the client process.
pub fn serve() -> anyhow::Result<()> {
    let mut servers: Vec<Vec<Share>> = Vec::new();
    for line in std::io::stdin().lines() {
        let seen = match serde_json::from_str(&line?)? {
            LoadCommand::Open { manner, connections, threads } => {
                let threads = threads.min(connections);
                let share = |thread| {
                    let own = connections / threads + usize::from(thread < connections % threads);
                    Share::open(manner, own)
                };
                servers.push((0..threads).map(share).collect::<anyhow::Result<_>>()?);
                Seen::default()
            }
            LoadCommand::Run { server, times_ns, per_second } => {
                run(servers.get_mut(server).context("no such server")?, times_ns, per_second)?
            }
        };
        println!("{}", serde_json::to_string(&seen)?);
    }
    Ok(())
}

fn run(shares: &mut [Share], times_ns: [u64; 2], per_second: Option<u64>) -> anyhow::Result<Seen> {
    let begin = clock::now().0 + times_ns[0];
    let end = begin + times_ns[1];
    let gap_ns = per_second.map(|all| shares.len() as f64 * 1e9 / all as f64);
    let seen = std::thread::scope(|scope| {
        let drive = |share| scope.spawn(move || Share::drive(share, begin, end, gap_ns));
        let threads: Vec<_> = shares.iter_mut().map(drive).collect();
        let join = |thread: std::thread::ScopedJoinHandle<_>| thread.join().expect("no thread panics");
        threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let (mut all, mut times) = (Seen::default(), no_times());
    for (one, its_times) in seen {
        times.add(&its_times)?;
        all.answers += one.answers;
        all.errors += one.errors;
        all.error = all.error.or(one.error);
    }
    Ok(Seen {
        per_second: times.len() as f64 * 1e9 / times_ns[1] as f64,
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        p999_ns: times.value_at_quantile(0.999),
        ..all
    })
}

fn no_times() -> Histogram<u64> {
    Histogram::new(3).expect("three digits can be had")
}

/// The numbers of answers and errors, and the times of the answers that were counted.
type Driven = (Seen, Histogram<u64>);

/// Connections of one thread to one server.
struct Share {
    poll: Poll,
    manner: Manner,
    connections: Vec<Connection>,
    /// Expires when the next request of an open loop is due.
    timer: Timer,
}

/// A server is broken if none of the connections of one thread gets data for this long.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A server is broken if one thread has this many errors with it in a slice.
const ERRORS_MAX: u64 = 1000;

impl Share {
    fn open(manner: Manner, connections: usize) -> anyhow::Result<Self> {
        let (poll, timer) = (Poll::new()?, Timer::new()?);
        poll.registry().register(
            &mut SourceFd(&timer.as_raw_fd()),
            Token(connections),
            Interest::READABLE,
        )?;
        let open = |token| Connection::open(manner, &poll, Token(token));
        let connections = (0..connections).map(open).collect::<anyhow::Result<_>>()?;
        Ok(Self { poll, manner, connections, timer })
    }

    /// Sends requests until `end` and waits for the outstanding answers. In an open loop requests are due every `gap_ns` on
    /// average. Returns the numbers of answers and errors, and
    /// the times of the answers that arrived from `begin` to `end`. Returns an error if the server is broken.
    fn drive(&mut self, begin: u64, end: u64, gap_ns: Option<f64>) -> anyhow::Result<Driven> {
        let (mut seen, mut times, mut events) = (Seen::default(), no_times(), Events::with_capacity(256));
        let mut free: VecDeque<usize> = (0..self.connections.len()).collect();
        let mut due = clock::now().0;
        loop {
            let now = clock::now().0;
            while due <= now.min(end)
                && let Some(next) = free.pop_front()
            {
                self.connections[next].send(self.manner, due)?;
                // Times at random have gaps of exponential length.
                due += gap_ns.map_or(0, |gap| (-gap * (1.0 - fastrand::f64()).ln()) as u64);
            }
            // In a closed loop the next request of a connection is sent when this one is answered.
            due = if gap_ns.is_none() { u64::MAX } else { due };
            if due <= end && !free.is_empty() {
                self.timer.set(Duration::from_nanos(due.saturating_sub(now)))?;
            } else if free.len() == self.connections.len() {
                return Ok((seen, times));
            }
            match self.poll.poll(&mut events, Some(TIMEOUT)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            anyhow::ensure!(!events.is_empty(), "{:?}: no answer in {TIMEOUT:?}", self.manner);
            for event in &events {
                let connection = self.connections.get_mut(event.token().0);
                let Some(connection) = connection.filter(|connection| connection.is_waiting) else {
                    continue;
                };
                let outcome = connection.receive(self.manner);
                let now = clock::now().0;
                match outcome {
                    Ok(false) => continue,
                    Ok(true) => {
                        seen.answers += 1;
                        if (begin..=end).contains(&now) {
                            times.record(now - connection.sent_at)?;
                        }
                        if self.manner.afresh_after.is_some_and(|after| connection.nth >= after) {
                            *connection = Connection::open(self.manner, &self.poll, event.token())?;
                        }
                    }
                    Err(error) => {
                        seen.errors += 1;
                        anyhow::ensure!(seen.errors < ERRORS_MAX, "{:?}: {error:#}", self.manner);
                        seen.error.get_or_insert(format!("{error:#}"));
                        *connection = Connection::open(self.manner, &self.poll, event.token())?;
                    }
                }
                if now < end && gap_ns.is_none() {
                    connection.send(self.manner, now)?;
                } else {
                    connection.is_waiting = false;
                    free.push_back(event.token().0);
                }
            }
        }
    }
}

struct Connection {
    socket: mio::net::TcpStream,
    is_waiting: bool,
    /// When the last request was due, which is when it was sent except in an open loop.
    sent_at: u64,
    /// The number of requests so far.
    nth: u64,
    answer: Vec<u8>,
    filled: usize,
}

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const ANSWER_BYTES_MAX: usize = 4096;

impl Connection {
    fn open(manner: Manner, poll: &Poll, token: Token) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, manner.port));
        let socket = std::net::TcpStream::connect(address).context("can't connect")?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut socket = mio::net::TcpStream::from_std(socket);
        poll.registry().register(&mut socket, token, Interest::READABLE)?;
        Ok(Self {
            socket,
            is_waiting: false,
            sent_at: 0,
            nth: 0,
            answer: vec![0; ANSWER_BYTES_MAX],
            filled: 0,
        })
    }

    /// Sends the next request, in two writes if the manner says so. A request is far smaller than the socket's empty
    /// buffer, so the write completes at once unless the connection is broken.
    fn send(&mut self, manner: Manner, due: u64) -> anyhow::Result<()> {
        self.nth += 1;
        (self.is_waiting, self.filled, self.sent_at) = (true, 0, due);
        let cut = if manner.afresh_after.is_some() { REQUEST.len() / 2 } else { 0 };
        let (head, rest) = REQUEST.split_at(cut);
        for piece in [head, rest].into_iter().filter(|piece| !piece.is_empty()) {
            match self.socket.write(piece) {
                Ok(n) => anyhow::ensure!(n == piece.len(), "a request was written in part"),
                // Ignore the error: reading the answer reports the broken connection.
                Err(error) if error.kind() != ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("a request can't be written"),
            }
        }
        Ok(())
    }

    /// Returns whether the whole answer has arrived; an error if it is wrong or the connection is broken.
    fn receive(&mut self, manner: Manner) -> anyhow::Result<bool> {
        loop {
            let room = &mut self.answer[self.filled..];
            anyhow::ensure!(!room.is_empty(), "an answer is longer than {ANSWER_BYTES_MAX} bytes");
            let room_bytes = room.len();
            let n = match self.socket.read(room) {
                Ok(0) => anyhow::bail!("the connection was closed"),
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("an answer can't be read"),
            };
            self.filled += n;
            if let Some(body) = body(&self.answer[..self.filled])? {
                let wanted = manner.handler.answer(self.nth);
                let body = String::from_utf8_lossy(body);
                anyhow::ensure!(body == wanted, "{:?} answered {body:?}, not {wanted:?}", manner.handler);
                return Ok(true);
            }
            // A read that leaves room in the buffer has emptied the socket: later data is another event.
            if n < room_bytes {
                return Ok(false);
            }
        }
    }
}

/// Returns the body of an answer, or `None` if the answer is not complete. Returns an error if bytes follow the body,
/// if the status is not 200, if the length is missing, or if the bytes are no HTTP answer.
fn body(bytes: &[u8]) -> anyhow::Result<Option<&[u8]>> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut answer = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = answer.parse(bytes)? else { return Ok(None) };
    anyhow::ensure!(answer.code == Some(200), "status {:?}", answer.code);
    let length = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length: usize = std::str::from_utf8(length.context("an answer without a length")?.value)?.parse()?;
    let body = &bytes[head..];
    anyhow::ensure!(body.len() <= length, "more than was announced");
    Ok((body.len() == length).then_some(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_there_when_all_of_it_is_and_a_failure_is_an_error() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\ndate: x\r\n\r\nabc";
        for cut in 0..whole.len() {
            assert_eq!(body(&whole[..cut]).unwrap(), None, "{cut}");
        }
        assert_eq!(body(whole).unwrap(), Some(&b"abc"[..]));
        assert!(body(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nabc").is_err());
        assert!(body(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(body(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
