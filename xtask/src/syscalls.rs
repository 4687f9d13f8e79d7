//! `cargo xtask syscalls`: counts the system calls of a request to a server with one worker, beside tokio's.
//!
//! The servers are the bench `calls` of `warmcore-http`, and strace traces them. A round is a request on each
//! connection. The first of them holds the worker until all others were sent, so that the number of the worker's
//! `epoll_wait` does not depend on how fast the client is. Only calls of the worker's thread count, without the two with
//! which it is held. They repeat exactly.
//!
//! This runtime polls its driver after 256 to 400 µs of polls, or after 640 polls. strace makes each call many times slower, so
//! the runtime's clock counts polls instead of time (`counted-clock`), and the driver is polled after 640 polls. At the
//! speed without strace a worker that is never idle polls it after about 20 requests; tokio after 61 polls in both cases.

use crate::gates::{Counted, Gate};
use crate::process::{self, counted_bench, needs_program};
use anyhow::{Context, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// The numbers of connections, and the names of the cases. A lone connection has one request at a time.
const CASES: [(usize, &str); 3] = [(1, "1 connection"), (8, "8 connections"), (64, "64 connections")];

/// The rounds before the first that counts, and those that count. In 64 rounds of 8 requests tokio's `epoll_wait` after
/// each 61 polls changes the count of a request by at most 0.01.
const ROUNDS: [usize; 2] = [8, 64];

/// The pause between rounds, in which the worker parks.
const PAUSE: Duration = Duration::from_millis(2);

/// How long an answer may take: far longer than on a machine that does much else.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The part of a recorded ratio by which a ratio may be larger.
const TOLERANCE: f64 = 0.1;

/// The call with which the server says that its worker is held.
const MARK: &str = "write(1, \"held";

/// Checks that strace is installed and may trace. If it is not, the error names the package to install.
pub fn is_possible() -> anyhow::Result<()> {
    needs_program("strace", "strace")?;
    ensure!(
        process::succeeds("strace", &["-o", "/dev/null", "true"]),
        "strace may not trace here: `strace true` says why"
    );
    Ok(())
}

/// Counts all cases and prints a table. Then records them, or compares them with the records.
pub fn run(root: &Path, is_recording: bool) -> anyhow::Result<()> {
    is_possible()?;
    let mut gate = Gate::read(root, "syscalls", TOLERANCE, is_recording)?;
    let folder = root.join("target/xtask");
    std::fs::create_dir_all(&folder)?;
    let trace = folder.join("strace.txt");
    // A debug build makes the same calls and takes a third of the time to build.
    let program = counted_bench(root, "calls", &["--profile", "dev"])?;
    println!("{:<24}{:>8}{:>9}{:>9}  recorded", "system calls of a request", "ours", "tokio's", "ratio");
    for (connections, name) in CASES {
        let [ours, tokio] =
            ["ours", "tokio"].map(|side| calls_of_request(&program, side, connections, &trace));
        let (ours, tokio) = (ours?, tokio?);
        let [sum, sum_of_tokio] = [&ours, &tokio].map(|calls| calls.values().sum::<f64>());
        let cell = gate.add(name, Counted::new(sum / sum_of_tokio, None));
        println!("{name:<24}{sum:>9.3}{sum_of_tokio:>9.3}{:>8.3}×  {cell}", sum / sum_of_tokio);
        for call in ours.keys().chain(tokio.keys()).collect::<BTreeSet<_>>() {
            let [ours, tokio] = [&ours, &tokio].map(|calls| calls.get(call).unwrap_or(&0.0));
            println!("  {call:<22}{ours:>9.3}{tokio:>9.3}");
        }
    }
    gate.end(true)
}

/// Starts a server, sends all rounds, and returns the worker's system calls of a request by name.
fn calls_of_request(
    program: &Path,
    side: &str,
    connections: usize,
    trace: &Path,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut server = Server::start(program, side, trace)?;
    let sockets: Vec<TcpStream> = (0..connections).map(|_| server.connect()).collect::<Result<_, _>>()?;
    for _ in 0..ROUNDS.iter().sum() {
        let (holds, others) = sockets.split_first().context("there is a connection")?;
        send(holds, "/hold")?;
        let line = server.line()?;
        ensure!(line == "held", "the server printed {line:?}");
        others.iter().try_for_each(|socket| send(socket, "/"))?;
        server.stdin.as_mut().context("it is open")?.write_all(b"\n")?;
        sockets.iter().try_for_each(receive)?;
        std::thread::sleep(PAUSE);
    }
    server.end(&sockets[0])?;
    let text = std::fs::read_to_string(trace)?;
    let calls = calls(&text).context("strace's output is not as expected")?;
    let requests = (ROUNDS[1] * connections) as f64;
    Ok(calls.into_iter().map(|(name, calls)| (name, f64::from(calls) / requests)).collect())
}

/// A server under strace.
struct Server {
    strace: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    port: u16,
}

impl Server {
    fn start(program: &Path, side: &str, trace: &Path) -> anyhow::Result<Self> {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-q", "-o"]).arg(trace).arg(program).arg(side);
        let mut strace = strace.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(strace.stdout.take().context("it is piped")?);
        let mut server = Self { stdin: strace.stdin.take(), strace, stdout, port: 0 };
        server.port = server.line()?.parse().context("the server prints its port")?;
        Ok(server)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn connect(&self) -> anyhow::Result<TcpStream> {
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(socket)
    }

    /// Holds the worker a last time. The server ends then, since its input has ended.
    fn end(&mut self, socket: &TcpStream) -> anyhow::Result<()> {
        self.stdin = None;
        send(socket, "/hold")?;
        let status = self.strace.wait()?;
        if !status.success() {
            bail!("the server under strace: {status}");
        }
        Ok(())
    }
}

impl Drop for Server {
    /// Ends the server after an error.
    fn drop(&mut self) {
        if !matches!(self.strace.try_wait(), Ok(Some(_))) {
            process::end_tree(self.strace.id());
            let _ = self.strace.kill();
            let _ = self.strace.wait();
        }
    }
}

fn send(mut socket: &TcpStream, path: &str) -> anyhow::Result<()> {
    Ok(socket.write_all(format!("GET {path} HTTP/1.1\r\nhost: here\r\n\r\n").as_bytes())?)
}

fn receive(mut socket: &TcpStream) -> anyhow::Result<()> {
    let (mut answer, mut filled) = ([0; 1024], 0);
    while !answer[..filled].ends_with(b"\r\n\r\nwarm") {
        let read = socket.read(&mut answer[filled..])?;
        ensure!(
            read > 0,
            "the connection was closed after {:?}",
            answer[..filled].escape_ascii().to_string()
        );
        filled += read;
    }
    Ok(())
}

/// The calls of the worker by name, from its first [`MARK`] after the rounds that do not count to the last one, without
/// those with which it is held. `None` if the number of marks is not that of the rounds.
fn calls(trace: &str) -> Option<BTreeMap<String, u32>> {
    let worker = trace.lines().find(|line| line.contains(MARK))?.split_once(' ')?.0;
    let (mut marks, mut calls) = (0, BTreeMap::new());
    for line in trace.lines() {
        // `20578 writev(8, [...], 2) = 120`. A call that another thread's line interrupts has two lines:
        // `20578 epoll_wait(3,  <unfinished ...>` and `20578 <... epoll_wait resumed>[...], 1024, -1) = 1`.
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        if thread != worker {
            continue;
        }
        marks += usize::from(call.starts_with(MARK));
        let Some((name, args)) = call.split_once('(') else { continue };
        let is_hold = matches!((name, args.split(',').next()), ("write", Some("1")) | ("read", Some("0")));
        let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
        if is_name && !is_hold && marks > ROUNDS[0] && marks <= ROUNDS[0] + ROUNDS[1] {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    (marks == ROUNDS[0] + ROUNDS[1] + 1).then_some(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_calls_of_the_worker_in_the_counted_rounds_count() {
        let round = "20578 write(1, \"held\\n\", 5)             = 5\n\
                     20578 read(0,  <unfinished ...>\n\
                     20577 futex(0x7f, FUTEX_WAKE_PRIVATE, 1) = 1\n\
                     20578 <... read resumed>\"\\n\", 8192)   = 1\n\
                     20578 writev(8, [{iov_base=\"HTTP\"..., iov_len=116}], 1) = 116\n\
                     20578 write(4, \"\\1\", 8)               = 8\n\
                     20578 --- SIGWINCH {si_signo=SIGWINCH} ---\n\
                     20578 recvfrom(8, \"GET /\"..., 16350, 0, NULL, NULL) = 34\n";
        let rounds = ROUNDS[0] + ROUNDS[1];
        let end = "20578 write(1, \"held\\n\", 5 <unfinished ...>\n20578 <... write resumed>)  = 5\n\
                   20578 exit_group(0)                     = ?\n20578 +++ exited with 0 +++\n";
        let trace = format!("20578 epoll_wait(3, [], 1024, 0) = 0\n{}{end}", round.repeat(rounds));
        let times = ROUNDS[1] as u32;
        let expected = ["recvfrom", "write", "writev"].map(|name| (name.to_owned(), times));
        assert_eq!(calls(&trace), Some(BTreeMap::from(expected)));
        assert_eq!(calls(&round.repeat(rounds)), None, "it is cut off");
        assert_eq!(calls(""), None);
    }
}
