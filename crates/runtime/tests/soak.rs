//! Scratch.
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering::*},
};
use std::time::{Duration, Instant};
use warmcore_runtime::*;

#[test]
fn spawn_after_the_end_ends() {
    for policy in PolicyKind::all() {
        let rt = Runtime::builder().workers(2).policy(policy).build().unwrap();
        let handle = rt.handle();
        drop(rt);
        let join = handle.spawn(async { 1 });
        std::thread::sleep(Duration::from_millis(20));
        println!("{policy}: finished {}", join.is_finished());
    }
}

#[test]
fn long_poll_from_idle() {
    for policy in PolicyKind::all() {
        let rt = Runtime::builder().workers(2).policy(policy).build().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let ran = Arc::new(AtomicU32::new(0));
        let r2 = ran.clone();
        let h = rt.spawn(async move {
            let r3 = r2.clone();
            drop(spawn(async move {
                r3.store(1, SeqCst);
            }));
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(500) {
                if r2.load(SeqCst) == 1 {
                    return Some(began.elapsed());
                }
                std::thread::yield_now();
            }
            None
        });
        println!("{policy}: {:?}", rt.block_on(h).unwrap());
    }
}

#[test]
fn block_in_place_in_tokio_task() {
    let rt = Runtime::builder().workers(1).build().unwrap();
    let h = rt.spawn(async {
        tokio::spawn(async { block_in_place(|| std::thread::sleep(Duration::from_millis(50))) })
            .await
            .unwrap();
    });
    let t = Instant::now();
    while !h.is_finished() && t.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("first {}", h.is_finished());
    std::thread::sleep(Duration::from_millis(200));
    let done = Arc::new(AtomicBool::new(false));
    let d = done.clone();
    drop(rt.spawn(async move { d.store(true, SeqCst) }));
    std::thread::sleep(Duration::from_millis(500));
    println!("second {}", done.load(SeqCst));
    std::mem::forget(rt);
}
