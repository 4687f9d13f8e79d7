//! Clients that check the answers of a server while it is under load.
//!
//! Each server has two: one keeps a connection from the start to the end, and one opens a new connection for each
//! exchange. An answer that is not the expected one, a connection that the server closes, and an answer that takes
//! longer than a minute end the client with an error.

use anyhow::{Context, bail, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Files that servers serve: path and length.
pub const FILES: [(&str, usize); 2] = [("/small", 4096), ("/large", 300_000)];

/// The longest time until an answer.
const LIMIT: Duration = Duration::from_mins(1);

/// Time between two exchanges of a client. Both clients of a server need about a hundredth of a CPU.
const PAUSE: Duration = Duration::from_millis(20);

/// The number of keys to which a client writes.
const KEYS: u64 = 1000;

/// What the clients of a program send.
#[derive(Debug, Clone, Copy)]
pub enum Check {
    /// SET, then GET of the same key and of an older one.
    Redis,
    /// GET of [`FILES`] if `files`; PUT of a text to a path that begins with `puts`, then GET of it and of an older one.
    Http { files: bool, puts: Option<&'static str> },
    /// A program of the same package checks, on tokio's scheduler, until its standard input ends. It prints how many
    /// answers it has checked.
    Client(&'static str),
}

/// A running client. It returns how many answers it has checked.
pub type Client = JoinHandle<anyhow::Result<u64>>;

/// Starts the clients of a server. They end when `stop` is true.
pub fn start(check: Check, port: u16, binaries: &Path, stop: &Arc<AtomicBool>) -> Vec<Client> {
    if let Check::Client(name) = check {
        let (program, stop) = (binaries.join(name), Arc::clone(stop));
        return vec![std::thread::spawn(move || run_client(&program, port, &stop))];
    }
    let client = |which: u64| {
        let stop = Arc::clone(stop);
        std::thread::spawn(move || {
            let (mut connection, mut checked) = (Connection::open(port)?, 0);
            for n in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                if which == 1 {
                    connection = Connection::open(port)?;
                }
                let exchange = connection.exchange(check, which, n);
                checked += exchange.with_context(|| format!("exchange {n} of client {which}"))?;
                std::thread::sleep(PAUSE);
            }
            Ok(checked)
        })
    };
    vec![client(0), client(1)]
}

fn run_client(program: &Path, port: u16, stop: &AtomicBool) -> anyhow::Result<u64> {
    let mut command = Command::new(program);
    command.arg(port.to_string()).env("WARMCORE", "0");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().context("can't run the client")?;
    while !stop.load(Relaxed) && child.try_wait()?.is_none() {
        std::thread::sleep(PAUSE);
    }
    // Closes its standard input.
    let output = child.wait_with_output()?;
    ensure!(stop.load(Relaxed), "the client ended early: {}", String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().parse().context("the client printed no number")
}

/// A connection of a client.
struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(port: u16) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).context("can't connect")?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Checks the answers of exchange `n`; returns how many.
    fn exchange(&mut self, check: Check, client: u64, n: u64) -> anyhow::Result<u64> {
        let key = |n: u64| client * KEYS + n % KEYS;
        let older = n.saturating_sub(7);
        match check {
            Check::Redis => {
                let text = text(n);
                self.redis(&["SET", &format!("check:{}", key(n)), &text], b"+OK\r\n")?;
                for n in [n, older] {
                    let text = self::text(n);
                    let expected = format!("${}\r\n{text}\r\n", text.len());
                    self.redis(&["GET", &format!("check:{}", key(n))], expected.as_bytes())?;
                }
                Ok(3)
            }
            Check::Http { files, puts } => {
                let mut checked = 0;
                for (path, length) in FILES.iter().filter(|_| files) {
                    self.get(path, &file(*length))?;
                    checked += 1;
                }
                if let Some(puts) = puts {
                    let (status, _) = self.http("PUT", &format!("{puts}{}", key(n)), text(n).as_bytes())?;
                    ensure!((200..300).contains(&status), "PUT {puts}{}: {status}", key(n));
                    for n in [n, older] {
                        self.get(&format!("{puts}{}", key(n)), text(n).as_bytes())?;
                    }
                    checked += 3;
                }
                Ok(checked)
            }
            Check::Client(_) => unreachable!("it is a process"),
        }
    }

    fn redis(&mut self, words: &[&str], expected: &[u8]) -> anyhow::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
        self.0.get_mut().write_all(request.as_bytes())?;
        let mut answer = vec![0; expected.len()];
        self.0.read_exact(&mut answer).context("the connection is lost")?;
        ensure!(answer == expected, "{}: {}", words[..2].join(" "), difference(&answer, expected));
        Ok(())
    }

    fn get(&mut self, path: &str, expected: &[u8]) -> anyhow::Result<()> {
        let (status, body) = self.http("GET", path, b"")?;
        ensure!(status == 200 && body == expected, "GET {path}: {status}, {}", difference(&body, expected));
        Ok(())
    }

    fn http(&mut self, method: &str, path: &str, body: &[u8]) -> anyhow::Result<(u16, Vec<u8>)> {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all(&[head.as_bytes(), body].concat())?;
        let (first, length) = head_of(&mut self.0)?.context("the connection is lost")?;
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("not HTTP: {first}"))?;
        let mut body = vec![0; length.unwrap_or(0)];
        self.0.read_exact(&mut body).context("the connection is lost")?;
        Ok((status, body))
    }
}

/// Reads the head of a request or response: its first line and its content-length. `None` at the end of the connection.
fn head_of(stream: &mut impl BufRead) -> anyhow::Result<Option<(String, Option<usize>)>> {
    let (mut first, mut length) = (None, None);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            ensure!(first.is_none(), "the connection ended in a head");
            return Ok(None);
        }
        let line = line.trim_end().to_ascii_lowercase();
        match (&first, line.split_once(':')) {
            (None, _) => first = Some(line),
            (Some(_), Some(("content-length", value))) => length = Some(value.trim().parse()?),
            (Some(_), Some(("transfer-encoding", _))) => bail!("the body has no length"),
            (Some(first), _) if line.is_empty() => return Ok(Some((first.clone(), length))),
            _ => {}
        }
    }
}

/// Where an answer differs.
fn difference(answer: &[u8], expected: &[u8]) -> String {
    let at =
        answer.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(answer.len().min(expected.len()));
    let around =
        String::from_utf8_lossy(&answer[at.saturating_sub(20)..answer.len().min(at + 20)]).into_owned();
    format!("{} bytes instead of {}, different at {at}: {around:?}", answer.len(), expected.len())
}

/// The text that exchange `n` stores: 1 to 10,000 bytes.
fn text(n: u64) -> String {
    let length = (n * 7919 % 10_000 + 1) as usize;
    let mut text = format!("{n} ").repeat(length / 2 + 1);
    text.truncate(length);
    text
}

/// The content of a file.
fn file(length: usize) -> Vec<u8> {
    (0..length).map(|i| b'a' + (i * i % 26) as u8).collect()
}

/// Writes [`FILES`] into an empty folder.
pub fn write_files(folder: &Path) -> anyhow::Result<()> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    for (path, length) in FILES {
        let path: PathBuf = folder.join(path.trim_start_matches('/'));
        std::fs::write(path, file(length))?;
    }
    Ok(())
}

/// Starts a server of [`FILES`] that lasts until this process ends, and returns its port. It is the end of a tunnel.
pub fn origin() -> anyhow::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A tunnel whose client has gone leaves an error here, which the client has seen if it matters.
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(port)
}

fn answer(stream: TcpStream) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some((first, length)) = head_of(&mut stream)? {
        std::io::copy(&mut stream.by_ref().take(length.unwrap_or(0) as u64), &mut std::io::sink())?;
        let path = first.split(' ').nth(1).unwrap_or_default();
        let (status, body) = match FILES.iter().find(|(name, _)| *name == path) {
            Some((_, length)) => ("200 OK", file(*length)),
            None => ("404 Not Found", Vec::new()),
        };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.get_mut().write_all(&[head.as_bytes(), &body].concat())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_check_what_the_origin_serves() {
        let port = origin().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let check = Check::Http { files: true, puts: None };
        let mut connection = Connection::open(port).unwrap();
        assert_eq!(connection.exchange(check, 0, 0).unwrap(), 2);
        assert_eq!(connection.exchange(check, 0, 1).unwrap(), 2);
        // It stores nothing.
        let check = Check::Http { files: false, puts: Some("/x") };
        assert!(connection.exchange(check, 0, 0).is_err());
        for client in start(Check::Http { files: true, puts: None }, port, Path::new(""), &stop) {
            stop.store(true, Relaxed);
            client.join().unwrap().unwrap();
        }
    }

    #[test]
    fn a_wrong_byte_and_a_closed_connection_are_errors() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            stream.write_all(b"+OK\r\n$1\r\n1\r\n").unwrap();
            // Reads the requests, since closing a socket with unread bytes resets the connection.
            stream.read_to_end(&mut Vec::new()).unwrap_or_default();
        });
        let mut connection = Connection::open(port).unwrap();
        let wrong = connection.exchange(Check::Redis, 0, 0).unwrap_err().to_string();
        assert!(wrong.contains("GET check:0"), "{wrong}");
        drop(connection);
        server.join().unwrap();

        let mut ended = BufReader::new(&b"HTTP/1.1 200 OK\r\ncontent-"[..]);
        assert!(head_of(&mut ended).is_err());
        assert!(head_of(&mut BufReader::new(&b""[..])).unwrap().is_none());
    }
}
