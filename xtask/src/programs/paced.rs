//! Paced clients: requests at given moments, however long the answers take (an open loop).
//!
//! Each connection has a thread. Between two of its requests a random time passes, exponentially distributed, so that requests come
//! as from many users who do not know of each other. A request whose moment passes while the answer to the one before has not come is
//! sent after that; its time counts from its moment.

use super::load::{CONNECTIONS, Load, Loaded};
use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest time for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Sends so many requests per second to a port of 127.0.0.1, for so long.
pub fn run(load: Load, port: u16, time: Duration, per_second: f64) -> anyhow::Result<Loaded> {
    let connections = CONNECTIONS.parse::<u32>()?;
    let until = Instant::now() + time;
    let client = |number: u32| {
        let mean = f64::from(connections) / per_second;
        move || Client::connect(load, port)?.ask(until, mean, u64::from(number))
    };
    let all: Vec<_> = (0..connections).map(|number| std::thread::spawn(client(number))).collect();
    let mut times = Vec::new();
    for thread in all {
        times.extend(thread.join().ok().context("a client panicked")??);
    }
    ensure!(!times.is_empty(), "no request was answered");
    times.sort_unstable();
    let p99 = times[(times.len() - 1) * 99 / 100];
    Ok(Loaded { per_second: times.len() as f64 / time.as_secs_f64(), p99_ns: p99.as_nanos() as f64 })
}

struct Client {
    stream: BufReader<TcpStream>,
    load: Load,
}

impl Client {
    fn connect(load: Load, port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Self { stream: BufReader::new(stream), load })
    }

    /// Sends requests until then, with a mean time in seconds between two. Returns how long each took.
    fn ask(&mut self, until: Instant, mean: f64, seed: u64) -> anyhow::Result<Vec<Duration>> {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut at, mut times) = (Instant::now(), Vec::new());
        loop {
            at += Duration::from_secs_f64(-(1.0 - random.f64()).ln() * mean);
            if at >= until {
                return Ok(times);
            }
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            self.request(times.len()).with_context(|| format!("request {} of a client", times.len()))?;
            times.push(at.elapsed());
        }
    }

    fn request(&mut self, number: usize) -> anyhow::Result<()> {
        const VALUE: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        let is_set = number.is_multiple_of(2);
        let request = match self.load {
            Load::Redis if is_set => format!("*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$64\r\n{VALUE}\r\n"),
            Load::Redis => "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n".to_owned(),
            Load::Wrk(path) | Load::H2loadOverHttp1(path) => {
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
            }
            Load::H2loadGrpc(_) => bail!("h2load sends these"),
        };
        self.stream.get_mut().write_all(request.as_bytes())?;
        match self.load {
            Load::Redis if is_set => ensure!(self.line()? == "+OK", "SET failed"),
            Load::Redis => ensure!(self.line()? == "$64" && self.line()? == VALUE, "GET gave another value"),
            _ => {
                let status = self.line()?;
                ensure!(status.starts_with("HTTP/1.1 200"), "the answer is {status:?}");
                self.body()?;
            }
        }
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        ensure!(line.ends_with("\r\n"), "the connection was closed");
        Ok(line.trim_end().to_owned())
    }

    /// Reads the headers and the body of an answer.
    fn body(&mut self) -> anyhow::Result<()> {
        let mut length = None;
        loop {
            let line = self.line()?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').context("a header without a colon")?;
            if name.eq_ignore_ascii_case("content-length") {
                length = Some(value.trim().parse::<u64>()?);
            }
        }
        let length = length.context("no content-length")?;
        let read = std::io::copy(&mut self.stream.by_ref().take(length), &mut std::io::sink())?;
        ensure!(read == length, "the connection was closed");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_at_their_rate_and_a_wrong_answer_is_an_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Answers `+OK` to whatever is sent, so that each SET is right and each GET wrong.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let (mut stream, mut bytes) = (stream, [0; 256]);
                    while stream.read(&mut bytes).is_ok_and(|read| read > 0) {
                        stream.write_all(b"+OK\r\n").unwrap();
                    }
                });
            }
        });
        let mut client = Client::connect(Load::Redis, port).unwrap();
        assert!(client.request(0).is_ok());
        assert!(client.request(1).is_err());
        let error = run(Load::Redis, port, Duration::from_millis(300), 1000.0).unwrap_err();
        assert!(format!("{error:#}").contains("request 1 of a client: GET gave another value"), "{error:#}");
    }
}
