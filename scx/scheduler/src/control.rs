//! The sockets of a running instance: settings over a Unix socket, metrics over HTTP.
//!
//! Both are served by the loader's only thread, between its other duties, one short request at a time: a client gets
//! half a second to send its line. The Unix socket takes a line `set NAME=VALUE` and answers `ok` or `error: ...`;
//! only root can connect to it.

use crate::settings;
use anyhow::{Context, Result, bail};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// The socket of the running instance.
const SOCKET: &str = "/run/scx_warm.sock";
const TIMEOUT: Duration = Duration::from_millis(500);
/// A request is one line of a setting, or the header of a GET.
const REQUEST_MAX: u64 = 8192;

/// The listening Unix socket. Its file is removed on drop.
#[derive(Debug)]
pub struct Control(UnixListener);

impl Control {
    /// Listens at [`SOCKET`], in the place of a file that a killed instance left.
    ///
    /// # Errors
    /// Returns an error if the socket cannot be made.
    pub fn listen() -> Result<Self> {
        // The caller has checked that no other instance schedules.
        let _ = fs::remove_file(SOCKET);
        let socket = UnixListener::bind(SOCKET)
            .with_context(|| format!("{SOCKET} cannot be made; is /run writable?"))?;
        fs::set_permissions(SOCKET, Permissions::from_mode(0o600))
            .with_context(|| format!("{SOCKET} cannot be protected"))?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    /// The socket, for poll.
    pub fn socket(&self) -> &UnixListener {
        &self.0
    }

    /// Answers the next client, if one waits. A client that fails is dropped: the scheduler goes on.
    pub fn serve(&self, set: impl FnOnce(settings::Assignment)) {
        let Ok((stream, _)) = self.0.accept() else { return };
        let _ = answer(stream, set);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = fs::remove_file(SOCKET);
    }
}

fn answer(stream: UnixStream, set: impl FnOnce(settings::Assignment)) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(REQUEST_MAX)).read_line(&mut line)?;
    let reply = match line.trim().strip_prefix("set ").map(settings::parse) {
        Some(Ok(assignment)) => {
            set(assignment);
            "ok\n".to_string()
        }
        Some(Err(e)) => format!("error: {e:#}\n"),
        None => format!("error: `{}` is no request: expected `set NAME=VALUE`\n", line.trim()),
    };
    (&stream).write_all(reply.as_bytes())
}

/// Sends `set NAME=VALUE` to the running instance.
///
/// # Errors
/// Returns an error if none runs, or with what it answered.
pub fn send_set(assignment: &str) -> Result<()> {
    let mut stream = UnixStream::connect(SOCKET)
        .with_context(|| format!("{SOCKET}: no scx_warm runs, or this is not root"))?;
    writeln!(stream, "set {assignment}")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    match reply.trim() {
        "ok" => Ok(()),
        reply => bail!("{}", reply.strip_prefix("error: ").unwrap_or(reply)),
    }
}

/// Answers the next HTTP client, if one waits, with `text`, whatever path it asks for.
pub fn serve_metrics(socket: &TcpListener, text: impl FnOnce() -> String) {
    let Ok((mut stream, _)) = socket.accept() else { return };
    let answer = || -> std::io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let mut request = BufReader::new((&stream).take(REQUEST_MAX));
        let mut line = String::new();
        while request.read_line(&mut line)? > 2 {
            line.clear();
        }
        Ok(())
    };
    if answer().is_err() {
        return;
    }
    let text = text();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
}
