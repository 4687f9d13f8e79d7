//! A server that a client has left without descriptors goes on accepting, and its tenants begin.
//!
//! The process opens as many files as it may, except for the descriptors that one connection needs. The limit is the
//! whole process's, so this is the only test in its file. There are two workers and 8 connections, one at a time, each
//! with a new tenant.
//!
//! Source: accept(2), EMFILE.

#![cfg(target_os = "linux")]

#[path = "../../runtime/tests/limit/mod.rs"]
mod limit;

use axum::Router;
use axum::routing::get;
use limit::with_workers;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use warmcore_http as http;
use warmcore_percpu::Counter;
use warmcore_runtime::{spawn, spawn_in};
use warmcore_tenant::Tenant;

const ROUNDS: usize = 8;

/// Largest number of open files of the process. The test opens all that are left.
const FILES_MAX: u64 = 128;

fn lower_the_limit() {
    let limit = libc::rlimit { rlim_cur: FILES_MAX, rlim_max: FILES_MAX };
    // SAFETY: the call reads the struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

/// Opens files until the limit is reached.
fn take_all() -> Vec<File> {
    let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(files.len() > 2, "{} of {FILES_MAX} files were left", files.len());
    files
}

/// Opens a connection, sends a request, and waits for the answer without a limit.
fn ask(at: SocketAddr) -> String {
    let mut stream = TcpStream::connect(at).expect("a descriptor that was left for this");
    stream.write_all(b"GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_server_without_descriptors_accepts_again() {
    let (answers, ended) = with_workers(2, |runtime| {
        // Servers have counters, so the number of slots of per-CPU data is fixed from here on.
        let connections = Arc::new(Counter::new());
        let (end, ends) = oneshot::channel::<()>();
        let tenants = Arc::new(Mutex::new(Vec::new()));
        let (known, counted) = (tenants.clone(), Arc::new(AtomicUsize::new(0)));
        let counter = connections.clone();
        // Each connection gets a new tenant when it is accepted.
        let tenant_of = move |_: &SocketAddr| {
            counter.add(1);
            let tenant = Tenant::builder().name("client").build();
            known.lock().unwrap().push(tenant.clone());
            Some(tenant)
        };
        let app = Router::new().route(
            "/",
            get(async move || {
                let counted = counted.clone();
                // The handler makes another tenant.
                let tenant = Tenant::builder().build();
                spawn_in(&tenant, async move { counted.fetch_add(1, SeqCst) }).await.unwrap().to_string()
            }),
        );
        let (server, at) = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let until = async move { _ = ends.await };
            (spawn(http::serve(listener, app).tenant_of(tenant_of).with_graceful_shutdown(until).run()), at)
        });
        lower_the_limit();
        let mut answers = Vec::new();
        for _ in 0..ROUNDS {
            let mut files = take_all();
            // Frees two descriptors, for both ends of the connection. After the accept no descriptor is left.
            files.truncate(files.len() - 2);
            answers.push(ask(at));
        }
        end.send(()).expect("the accepting task is there");
        assert_eq!(connections.sum() as usize, ROUNDS);
        (answers, runtime.block_on(server).expect("the accepting task ends by itself"))
    });
    assert_eq!(ended.connections as usize, ROUNDS);
    for answer in answers {
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
