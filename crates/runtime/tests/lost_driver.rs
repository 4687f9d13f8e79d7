//! A waker that panics inside a worker's driver ends the process, with a message that gives the reason.
//!
//! Tokio drops its epoll instance and its timers when a panic unwinds through them, so every task that waits for a
//! socket or a timer of that worker would wait for ever. Each test runs itself as a child process and checks how the
//! child ends. The child's runtime has one worker.

mod limit;

use limit::HANGS_AFTER;
use std::os::unix::process::ExitStatusExt;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use warmcore_runtime::Runtime;

/// The environment variable that is set in the child; its value is the test that the child runs.
const CHILD: &str = "WARMCORE_TEST_LOST_DRIVER";

struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        panic!("woken, as planned");
    }
}

/// Runs one test of this file in a child process. Returns what the child wrote to its standard error, and the signal
/// that ended the child, if one did.
fn as_child(test: &str) -> (String, Option<i32>) {
    let me = std::env::current_exe().unwrap();
    let mut child = Command::new(me);
    child.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(CHILD, test);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() && began.elapsed() < HANGS_AFTER {
        std::thread::sleep(Duration::from_millis(10));
    }
    // A child that hangs is killed. That is another signal than the expected one.
    let _ = child.kill();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.signal())
}

/// Runs in the child: `poll` registers a waker that panics when the driver calls it. Then the task waits for timers of
/// the same driver, and would hang if only the driver were lost.
fn wait_with(poll: impl FnOnce(&mut Context<'_>) + Send + 'static) {
    let runtime = Runtime::builder().worker_threads(1).build().unwrap();
    let waits = runtime.spawn(async move {
        poll(&mut Context::from_waker(&Waker::from(Arc::new(BadWaker))));
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    runtime.block_on(waits).unwrap();
}

fn ends_with_a_reason(test: &str, in_child: impl FnOnce()) {
    if std::env::var(CHILD).is_ok_and(|name| name == test) {
        return in_child();
    }
    let (said, signal) = as_child(test);
    assert_eq!(signal, Some(libc::SIGABRT), "{said}");
    assert!(said.contains("a driver of warmcore is lost"), "{said}");
}

#[test]
fn a_timers_waker_that_panics_ends_the_process() {
    ends_with_a_reason("a_timers_waker_that_panics_ends_the_process", || {
        wait_with(|cx| {
            let mut sleep = Box::pin(tokio::time::sleep(Duration::from_millis(1)));
            assert!(sleep.as_mut().poll(cx).is_pending());
            Box::leak(Box::new(sleep));
        });
    });
}

#[test]
fn a_sockets_waker_that_panics_ends_the_process() {
    ends_with_a_reason("a_sockets_waker_that_panics_ends_the_process", || {
        wait_with(|cx| {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            server.set_nonblocking(true).unwrap();
            let mut server = TcpStream::from_std(server).unwrap();
            let mut byte = [0];
            assert!(Pin::new(&mut server).poll_read(cx, &mut ReadBuf::new(&mut byte)).is_pending());
            std::io::Write::write_all(&mut &client, b"x").unwrap();
            Box::leak(Box::new((server, client)));
        });
    });
}
