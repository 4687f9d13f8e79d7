//! A server of short answers on one worker, with `ours` through this crate's `serve`, with `tokio` through `axum::serve`.
//! `cargo xtask syscalls` counts its system calls.
//!
//! The program prints its port. It answers requests of `/` at once. A request of `/hold` prints `held` and blocks the
//! worker until standard input has a line, so that all requests that a client sends meanwhile are there when the worker
//! polls its driver next. At the end of standard input it ends the program.

use axum::Router;
use axum::routing::get;
use std::io::stdin;
use std::process::exit;
use tokio::net::TcpListener;

async fn hold() -> &'static str {
    println!("held");
    if stdin().read_line(&mut String::new()).expect("standard input has lines") == 0 {
        exit(0);
    }
    "warm"
}

async fn listen() -> (TcpListener, Router) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port can be had");
    println!("{}", listener.local_addr().expect("it is bound").port());
    (listener, Router::new().route("/", get(async || "warm")).route("/hold", get(hold)))
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("ours") => {
            let runtime = warmcore_runtime::Runtime::builder().worker_threads(1).build();
            runtime
                .expect("threads and descriptors can be had")
                .block_on(async {
                    warmcore_runtime::spawn(async {
                        let (listener, app) = listen().await;
                        warmcore_http::serve(listener, app).run().await;
                    })
                    .await
                })
                .expect("it runs until the program ends");
        }
        Some("tokio") => {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime
                .expect("threads and an epoll instance can be had")
                .block_on(async {
                    tokio::spawn(async {
                        let (listener, app) = listen().await;
                        axum::serve(listener, app).await
                    })
                    .await
                })
                .expect("it runs until the program ends")
                .expect("it returns no error");
        }
        _ => {
            eprintln!("arguments: ours|tokio");
            exit(2);
        }
    }
}
