//! What of tokio needs its driver, in tasks on Warmcore's workers.

use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio::{fs, task};

/// Ends a wait that would last for ever.
const HANG: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_serve_many_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let mut connections = JoinSet::new();
        for _ in 0..20 {
            let (mut socket, _) = listener.accept().await.unwrap();
            connections.spawn(async move {
                let (mut read, mut write) = socket.split();
                tokio::io::copy(&mut read, &mut write).await.unwrap()
            });
        }
        connections.join_all().await
    });
    let clients: JoinSet<()> = (0..20_u8)
        .map(|n| async move {
            let mut socket = TcpStream::connect(address).await.unwrap();
            let mut answer = [0; 1000];
            socket.write_all(&[n; 1000]).await.unwrap();
            socket.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [n; 1000]);
        })
        .collect();
    timeout(HANG, clients.join_all()).await.unwrap();
    assert_eq!(timeout(HANG, server).await.unwrap().unwrap(), [1000; 20]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_may_move_to_another_task() {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    let echo = tokio::spawn(async move {
        let mut byte = [0];
        there.read_exact(&mut byte).await.unwrap();
        // The next task may run on another worker than the one whose driver the socket is registered with.
        tokio::spawn(async move { there.write_all(&byte).await.unwrap() }).await.unwrap();
    });
    here.write_all(b"x").await.unwrap();
    let mut byte = [0];
    timeout(HANG, here.read_exact(&mut byte)).await.unwrap().unwrap();
    assert_eq!(&byte, b"x");
    echo.await.unwrap();

    let (one, two) =
        (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    let to = two.local_addr().unwrap();
    tokio::spawn(async move { one.send_to(b"y", to).await.unwrap() }).await.unwrap();
    let received = tokio::spawn(async move {
        let mut byte = [0];
        two.recv(&mut byte).await.map(|_| byte)
    });
    assert_eq!(&timeout(HANG, received).await.unwrap().unwrap().unwrap(), b"y");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timers_wait_at_least_as_long_as_they_say() {
    let waits = (0..10).map(|n| async move {
        let (began, time) = (Instant::now(), Duration::from_millis(n));
        sleep(time).await;
        assert!(began.elapsed() >= time);
        let mut ticks = interval(Duration::from_millis(1));
        for _ in 0..5 {
            ticks.tick().await;
        }
        assert!(timeout(Duration::from_millis(1), std::future::pending::<()>()).await.is_err());
    });
    timeout(HANG, waits.collect::<JoinSet<()>>().join_all()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_child_process_is_awaited_in_a_task() {
    let child = async {
        let output = Command::new("sh").args(["-c", "printf out; exit 3"]).output().await.unwrap();
        (output.status.code(), output.stdout)
    };
    let (code, stdout) = timeout(HANG, tokio::spawn(child)).await.unwrap().unwrap();
    assert_eq!((code, stdout.as_slice()), (Some(3), &b"out"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_reaches_a_task() {
    let mut signals = signal(SignalKind::user_defined1()).unwrap();
    let waits = tokio::spawn(async move { signals.recv().await });
    // The shell has `kill` built in; not every machine has the program.
    let kill = format!("kill -USR1 {}", std::process::id());
    let status = Command::new("sh").args(["-c", &kill]).status().await.unwrap();
    assert!(status.success());
    assert_eq!(timeout(HANG, waits).await.unwrap().unwrap(), Some(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_read_in_tasks_and_in_block_on() {
    let path = std::env::temp_dir().join(format!("warmcore-face-files-{}", std::process::id()));
    fs::write(&path, b"text").await.unwrap();
    let read = path.clone();
    let read = tokio::spawn(async move { fs::read(read).await });
    assert_eq!(timeout(HANG, read).await.unwrap().unwrap().unwrap(), b"text");
    fs::remove_file(&path).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_closure_of_spawn_blocking_may_wait_for_tasks_and_timers() {
    let closure = task::spawn_blocking(|| {
        let handle = tokio::runtime::Handle::current();
        handle.block_on(async {
            sleep(Duration::from_millis(1)).await;
            tokio::spawn(async { 6 }).await.unwrap()
        })
    });
    assert_eq!(timeout(HANG, closure).await.unwrap().unwrap(), 6);
}
