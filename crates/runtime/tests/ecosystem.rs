//! Tokio's sockets, timers, channels, files, processes and signals work unchanged in tasks of this runtime.
//!
//! In each test a task uses something real: a socket, a timer, a channel, a file, a process, a signal. There are two
//! workers, or one if that is the harder case. The assertions follow tokio's documentation.

mod limit;

use limit::{as_task, with_workers};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use tokio::sync::{Semaphore, broadcast, mpsc, oneshot, watch};
use tokio::time::{self, MissedTickBehavior};
use warmcore_runtime::{block_in_place, spawn, yield_now};

/// Short enough for a test, long enough to park.
const SHORT: Duration = Duration::from_millis(2);

/// A time that is never reached, because the futures that wait for it are dropped.
const LONG: Duration = Duration::from_secs(3600);

async fn echo<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    let mut buffer = [0; 256];
    loop {
        match stream.read(&mut buffer).await? {
            0 => return Ok(()),
            n => stream.write_all(&buffer[..n]).await?,
        }
    }
}

async fn ask<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    for round in 0..100u32 {
        let mut answer = [0; 4];
        stream.write_all(&round.to_le_bytes()).await?;
        stream.read_exact(&mut answer).await?;
        assert_eq!(u32::from_le_bytes(answer), round);
    }
    Ok(())
}

#[test]
fn tcp_sockets_echo_on_one_worker_and_on_two() {
    for workers in [1, 2] {
        as_task(workers, async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let to = listener.local_addr().unwrap();
            let server = spawn(async move {
                for _ in 0..8 {
                    let (stream, _) = listener.accept().await.unwrap();
                    drop(spawn(echo(stream)));
                }
            });
            let ask = || spawn(async move { ask(TcpStream::connect(to).await.unwrap()).await });
            let clients: Vec<_> = (0..8).map(|_| ask()).collect();
            for client in clients {
                client.await.unwrap().unwrap();
            }
            server.await.unwrap();
        });
    }
}

#[test]
fn a_socket_made_on_one_worker_is_used_on_another() {
    with_workers(2, |runtime| {
        // The sockets are created outside of a task, so the nearest worker drives them. Tasks on any worker use them.
        let (server, client) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let to = listener.local_addr().unwrap();
            let client = spawn(async move { TcpStream::connect(to).await.unwrap() });
            (listener.accept().await.unwrap().0, client.await.unwrap())
        });
        let server = runtime.spawn(echo(server));
        runtime.block_on(runtime.spawn(ask(client))).unwrap().unwrap();
        runtime.block_on(server).unwrap().unwrap();
    });
}

#[test]
fn udp_sockets_send_and_receive() {
    as_task(2, async {
        let one = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = other.local_addr().unwrap();
        let echo = spawn(async move {
            let mut buffer = [0; 64];
            for _ in 0..100 {
                let (n, from) = other.recv_from(&mut buffer).await.unwrap();
                other.send_to(&buffer[..n], from).await.unwrap();
            }
        });
        for round in 0..100u8 {
            one.send_to(&[round; 3], to).await.unwrap();
            let mut answer = [0; 64];
            assert_eq!(one.recv(&mut answer).await.unwrap(), 3);
            assert_eq!(answer[..3], [round; 3]);
        }
        echo.await.unwrap();
    });
}

#[test]
fn unix_sockets_echo() {
    as_task(2, async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = spawn(async move { echo(listener.accept().await.unwrap().0).await });
        ask(UnixStream::connect(&path).await.unwrap()).await.unwrap();
        server.await.unwrap().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let server = spawn(echo(one));
        ask(other).await.unwrap();
        server.await.unwrap().unwrap();
    });
}

#[test]
fn no_sleep_ends_before_its_time() {
    as_task(2, async {
        let until = |i: u64| time::Instant::now() + Duration::from_micros(100 + i * 317 % 5000);
        let sleeps: Vec<_> = (0..100)
            .map(|i| {
                spawn(async move {
                    let until = until(i);
                    time::sleep_until(until).await;
                    time::Instant::now() >= until
                })
            })
            .collect();
        for sleep in sleeps {
            assert!(sleep.await.unwrap());
        }
    });
}

#[test]
fn an_interval_ticks_and_a_timeout_cuts() {
    as_task(2, async {
        let mut interval = time::interval(SHORT);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let began = interval.tick().await;
        for _ in 0..5 {
            assert!(interval.tick().await > began);
        }
        assert!(time::timeout(SHORT, std::future::pending::<()>()).await.is_err());
        assert_eq!(time::timeout(LONG, async { 7 }).await.unwrap(), 7);
    });
}

#[test]
fn a_thousand_sleeps_all_end() {
    as_task(2, async {
        let sleeps: Vec<_> = (0..1000u64)
            .map(|i| spawn(async move { time::sleep(Duration::from_micros(i * 37 % 5000)).await }))
            .collect();
        for sleep in sleeps {
            sleep.await.unwrap();
        }
    });
}

#[test]
fn files_are_written_and_read() {
    as_task(2, async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = tokio::fs::File::create(&path).await.unwrap();
        for i in 0..100u8 {
            file.write_all(&[i; 100]).await.unwrap();
        }
        file.sync_all().await.unwrap();
        let read = tokio::fs::read(&path).await.unwrap();
        assert_eq!(read.len(), 10_000);
        assert!(read.chunks(100).enumerate().all(|(i, chunk)| chunk == [i as u8; 100]));
        tokio::fs::remove_file(&path).await.unwrap();
        assert!(!tokio::fs::try_exists(&path).await.unwrap());
    });
}

#[test]
fn a_signal_arrives_on_every_worker_that_waits() {
    use tokio::signal::unix::{SignalKind, signal};
    as_task(2, async {
        let wait = || async {
            let mut signals = signal(SignalKind::user_defined1()).unwrap();
            (signals.recv().await, signals.recv().await)
        };
        let mut here = signal(SignalKind::user_defined1()).unwrap();
        let waiting = [spawn(wait()), spawn(wait())];
        // Two signals that come close together may arrive as one, so this sends until both tasks have received two.
        while !waiting.iter().all(|task| task.is_finished()) {
            // SAFETY: a plain system call; this process has a handler for the signal.
            assert_eq!(unsafe { libc::kill(std::process::id() as i32, libc::SIGUSR1) }, 0);
            here.recv().await.unwrap();
            yield_now().await;
        }
        for task in waiting {
            assert_eq!(task.await.unwrap(), (Some(()), Some(())));
        }
    });
}

#[test]
fn a_process_is_spoken_to_and_waited_for() {
    use std::process::Stdio;
    use tokio::process::Command;
    for workers in [1, 2] {
        as_task(workers, async {
            let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            let output = spawn(child.wait_with_output());
            input.write_all(b"warm").await.unwrap();
            drop(input);
            let output = output.await.unwrap().unwrap();
            assert!(output.status.success());
            assert_eq!(output.stdout, b"warm");
            let failed = Command::new("sh").args(["-c", "exit 3"]).status().await.unwrap();
            assert_eq!(failed.code(), Some(3));
        });
    }
}

#[test]
fn spawn_blocking_runs_beside_the_workers() {
    as_task(1, async {
        // The only worker goes on while four closures block, and each closure waits for the worker.
        let (mut ring, mut blocking) = (Vec::new(), Vec::new());
        for i in 0..4usize {
            let (go, wait) = oneshot::channel();
            blocking.push(tokio::task::spawn_blocking(move || wait.blocking_recv().unwrap() + i));
            ring.push(go);
        }
        for go in ring {
            yield_now().await;
            go.send(10).unwrap();
        }
        for (i, closure) in blocking.into_iter().enumerate() {
            assert_eq!(closure.await.unwrap(), 10 + i);
        }
    });
}

#[test]
fn a_panic_in_spawn_blocking_is_returned_to_the_caller() {
    let error = as_task(1, async { tokio::task::spawn_blocking(|| panic!("cold")).await.unwrap_err() });
    assert!(error.is_panic());
}

#[test]
fn block_in_place_lets_the_only_worker_go_on() {
    as_task(1, async {
        let (go, wait) = std::sync::mpsc::channel();
        let other = spawn(async move {
            time::sleep(SHORT).await;
            go.send(7).unwrap();
        });
        assert_eq!(block_in_place(move || wait.recv().unwrap()), 7);
        other.await.unwrap();
    });
}

#[test]
fn tokios_block_in_place_runs_where_it_is_called_and_an_idle_worker_helps() {
    // Tokio does not know this thread as one of its workers, and just calls the closure. So the worker is in a long
    // poll. With a second worker its other tasks and timers go on; a single worker needs this crate's `block_in_place`.
    as_task(2, async {
        let (go, wait) = std::sync::mpsc::channel();
        let other = spawn(async move {
            time::sleep(SHORT).await;
            go.send(7).unwrap();
        });
        let before = std::thread::current().id();
        let heard = tokio::task::block_in_place(move || {
            assert_eq!(std::thread::current().id(), before);
            wait.recv().unwrap()
        });
        assert_eq!(heard, 7);
        other.await.unwrap();
    });
}

#[test]
fn tokios_block_in_place_panics_in_what_tokio_spawned() {
    let error =
        as_task(1, async { tokio::spawn(async { tokio::task::block_in_place(|| ()) }).await.unwrap_err() });
    assert!(error.is_panic());
}

#[test]
fn our_block_in_place_just_calls_in_what_tokio_spawned() {
    assert_eq!(as_task(1, async { tokio::spawn(async { block_in_place(|| 7) }).await.unwrap() }), 7);
}

#[test]
fn channels_carry_across_workers() {
    as_task(2, async {
        let (say, mut hear) = mpsc::channel(4);
        for task in 0..8u64 {
            let say = say.clone();
            drop(spawn(async move {
                for i in 0..250 {
                    say.send(task * 1000 + i).await.unwrap();
                }
            }));
        }
        drop(say);
        let mut last = [None; 8];
        let mut count = 0;
        while let Some(message) = hear.recv().await {
            let (task, i) = ((message / 1000) as usize, message % 1000);
            assert!(last[task].is_none_or(|last| last + 1 == i), "one sender's messages stay in order");
            last[task] = Some(i);
            count += 1;
        }
        assert_eq!(count, 2000);
    });
}

#[test]
fn select_takes_what_is_ready_and_drops_the_rest() {
    as_task(2, async {
        struct Dropped(Option<oneshot::Sender<()>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.take().unwrap().send(());
            }
        }
        let (told, tell) = oneshot::channel();
        let dropped = Dropped(Some(told));
        let (go, wait) = oneshot::channel();
        let slow = async move {
            let _dropped = dropped;
            time::sleep(LONG).await;
        };
        drop(spawn(async move {
            time::sleep(SHORT).await;
            go.send(7).unwrap();
        }));
        tokio::select! {
            () = slow => unreachable!("an hour has passed"),
            heard = wait => assert_eq!(heard, Ok(7)),
        }
        tell.await.unwrap();
    });
}

#[test]
fn a_watch_tells_the_last_value_and_its_end() {
    as_task(2, async {
        let (say, mut hear) = watch::channel(0);
        let listener = spawn(async move {
            let mut last = 0;
            while hear.changed().await.is_ok() {
                let now = *hear.borrow_and_update();
                assert!(now > last);
                last = now;
            }
            last
        });
        for i in 1..=100 {
            say.send(i).unwrap();
            yield_now().await;
        }
        drop(say);
        assert_eq!(listener.await.unwrap(), 100);
    });
}

#[test]
fn a_broadcast_reaches_all() {
    as_task(2, async {
        let (say, _) = broadcast::channel(128);
        let listeners: Vec<_> = (0..4)
            .map(|_| {
                let mut hear = say.subscribe();
                spawn(async move {
                    let mut sum = 0u32;
                    while let Ok(i) = hear.recv().await {
                        sum += i;
                    }
                    sum
                })
            })
            .collect();
        for i in 1..=100 {
            say.send(i).unwrap();
        }
        drop(say);
        for listener in listeners {
            assert_eq!(listener.await.unwrap(), 5050);
        }
    });
}

#[test]
fn a_semaphore_lets_only_so_many_in() {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    as_task(2, async {
        let (permits, inside) = (Arc::new(Semaphore::new(3)), Arc::new(AtomicUsize::new(0)));
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let (permits, inside) = (permits.clone(), inside.clone());
                spawn(async move {
                    let _permit = permits.acquire().await.unwrap();
                    assert!(inside.fetch_add(1, SeqCst) < 3);
                    yield_now().await;
                    inside.fetch_sub(1, SeqCst);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(permits.available_permits(), 3);
    });
}

#[test]
fn what_tokio_spawns_stays_on_the_worker_that_called_and_is_counted_there() {
    with_workers(2, |runtime| {
        let handle = runtime.handle();
        let count = move || handle.metrics().workers.iter().map(|w| w.foreign_tasks).collect::<Vec<_>>();
        let watcher = runtime.handle();
        runtime
            .block_on(runtime.spawn(async move {
                assert_eq!(count(), [0, 0]);
                let (go, wait) = watch::channel(false);
                let foreign = |mut wait: watch::Receiver<bool>| async move {
                    while !*wait.borrow_and_update() {
                        tokio::select! {
                            _ = wait.changed() => {}
                            () = time::sleep(SHORT) => {}
                        }
                    }
                };
                // All ten are spawned in one poll, and so on one worker.
                let spawned: Vec<_> = (0..10).map(|_| tokio::spawn(foreign(wait.clone()))).collect();
                let mut counts = count();
                counts.sort();
                assert_eq!(counts, [0, 10], "all on one worker");
                assert_eq!(watcher.metrics().num_alive_tasks, 1, "they are not tasks of this runtime");
                // Meanwhile tasks of this runtime begin and end on both workers.
                for _ in 0..10 {
                    spawn(time::sleep(SHORT)).await.unwrap();
                }
                let mut counts = count();
                counts.sort();
                assert_eq!(counts, [0, 10], "they stay");
                go.send(true).unwrap();
                for task in spawned {
                    task.await.unwrap();
                }
                while count() != [0, 0] {
                    yield_now().await;
                }
            }))
            .unwrap();
    });
}
