//! Sends requests over keep-alive connections, from a separate process, and checks every answer.
//!
//! There is a thread per CPU, or one, as the case says; each has its share of a server's connections and one epoll
//! instance for them. A connection has at most one outstanding request; the next request is sent after the
//! answer. This is a closed loop, as in wrk: a slow server gets fewer requests, and the time that a request would have
//! waited before it was sent is not measured. Between slices there is no outstanding request and the connections stay
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
use mio::{Events, Interest, Poll, Token};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;
use warmcore_sys::clock;

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
        /// The time before answers are counted.
        warm_ns: u64,
        /// The time in which answers are counted.
        measure_ns: u64,
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
            LoadCommand::Run { server, warm_ns, measure_ns } => {
                run(servers.get_mut(server).context("no such server")?, warm_ns, measure_ns)?
            }
        };
        println!("{}", serde_json::to_string(&seen)?);
    }
    Ok(())
}

fn run(shares: &mut [Share], warm_ns: u64, measure_ns: u64) -> anyhow::Result<Seen> {
    let begin = clock::now().0 + warm_ns;
    let end = begin + measure_ns;
    let seen = std::thread::scope(|scope| {
        let drive = |share| scope.spawn(move || Share::drive(share, begin, end));
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
        per_second: times.len() as f64 * 1e9 / measure_ns as f64,
        p50_ns: times.value_at_quantile(0.5),
        p99_ns: times.value_at_quantile(0.99),
        p999_ns: times.value_at_quantile(0.999),
        ..all
    })
}

fn no_times() -> Histogram<u64> {
    Histogram::new(3).expect("three digits can be had")
}

/// Connections of one thread to one server.
struct Share {
    poll: Poll,
    manner: Manner,
    connections: Vec<Connection>,
}

/// A server is broken if none of the connections of one thread gets data for this long.
const TIMEOUT: Duration = Duration::from_secs(20);
/// A server is broken if one thread has this many errors with it in a slice.
const ERRORS_MAX: u64 = 1000;

impl Share {
    fn open(manner: Manner, connections: usize) -> anyhow::Result<Self> {
        let poll = Poll::new()?;
        let open = |token| Connection::open(manner, &poll, Token(token));
        let connections = (0..connections).map(open).collect::<anyhow::Result<_>>()?;
        Ok(Self { poll, manner, connections })
    }

    /// Sends requests until `end` and waits for the outstanding answers. Returns the numbers of answers and errors, and
    /// the times of the answers that arrived from `begin` to `end`. Returns an error if the server is broken.
    fn drive(&mut self, begin: u64, end: u64) -> anyhow::Result<(Seen, Histogram<u64>)> {
        let (mut seen, mut times, mut events) = (Seen::default(), no_times(), Events::with_capacity(256));
        let mut under_way = self.connections.len();
        for connection in &mut self.connections {
            connection.send(self.manner)?;
        }
        while under_way > 0 {
            match self.poll.poll(&mut events, Some(TIMEOUT)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            anyhow::ensure!(!events.is_empty(), "{:?}: no answer in {TIMEOUT:?}", self.manner);
            for event in &events {
                let connection = &mut self.connections[event.token().0];
                if !connection.is_waiting {
                    continue;
                }
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
                if now < end {
                    connection.send(self.manner)?;
                } else {
                    connection.is_waiting = false;
                    under_way -= 1;
                }
            }
        }
        Ok((seen, times))
    }
}

struct Connection {
    socket: mio::net::TcpStream,
    is_waiting: bool,
    sent_at: u64,
    /// The number of the last request, and its position on this connection (`nth`).
    number: u64,
    nth: u64,
    request: Vec<u8>,
    answer: Vec<u8>,
    filled: usize,
}

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
            number: token.0 as u64,
            nth: 0,
            request: Vec::new(),
            answer: vec![0; ANSWER_BYTES_MAX],
            filled: 0,
        })
    }

    /// Sends the next request, in two writes if the manner says so. A request is far smaller than the socket's empty
    /// buffer, so the write completes at once unless the connection is broken.
    fn send(&mut self, manner: Manner) -> anyhow::Result<()> {
        // Any step is possible that gives paths of different lengths.
        self.number = (self.number + 1) * 7 % 1_000_003;
        self.nth += 1;
        self.request.clear();
        let path = manner.handler.path(self.number);
        write!(self.request, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        (self.is_waiting, self.filled, self.sent_at) = (true, 0, clock::now().0);
        let cut = if manner.afresh_after.is_some() { self.request.len() / 2 } else { 0 };
        let (head, rest) = self.request.split_at(cut);
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
                let wanted = manner.handler.answer(self.number, self.nth);
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
