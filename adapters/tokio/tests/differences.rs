//! What differs from tokio's multi-thread runtime: a test for each line of `docs/from-tokio.md` that the other files here
//! don't show.
//!
//! The tests also pass with `WARMCORE=0`, where they expect what tokio does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::time;

fn is_tokios() -> bool {
    std::env::var_os("WARMCORE").is_some_and(|value| value == "0")
}

async fn one_byte_goes_over_a_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serves = tokio::spawn(async move { listener.accept().await.unwrap().0.write_all(b"x").await.unwrap() });
    let mut stream = TcpStream::connect(address).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'x');
    serves.await.unwrap();
}

#[test]
fn settings_of_tokios_scheduler_change_no_result() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .event_interval(1)
        .global_queue_interval(1)
        .build()
        .unwrap();
    let sum = runtime.block_on(async {
        let tasks: Vec<_> = (0..100).map(|n| tokio::spawn(async move { n })).collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        one_byte_goes_over_a_socket().await;
        sum
    });
    assert_eq!(sum, 4950);
}

#[test]
fn sockets_work_without_enable_io_and_timers_need_enable_time() {
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let served = runtime.block_on(runtime.spawn(one_byte_goes_over_a_socket()));
    assert_eq!(served.is_err(), is_tokios(), "{served:?}");
    let slept = runtime.block_on(runtime.spawn(async { time::sleep(Duration::ZERO).await }));
    assert!(slept.unwrap_err().is_panic());
    let slept = catch_unwind(AssertUnwindSafe(|| runtime.block_on(time::sleep(Duration::ZERO))));
    assert!(slept.is_err());
}

#[test]
fn the_busy_duration_is_cpu_time() {
    const SLEEP: Duration = Duration::from_millis(200);
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(runtime.spawn(async { thread::sleep(SLEEP) })).unwrap();
    let metrics = runtime.handle().metrics();
    drop(runtime);
    let busy = metrics.worker_total_busy_duration(0);
    assert_eq!(busy >= SLEEP, is_tokios(), "{busy:?}");
}
