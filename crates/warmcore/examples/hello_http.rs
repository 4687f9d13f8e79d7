//! A server in ten lines: axum's router, each connection a task of this runtime.
//!
//! ```text
//! cargo run --release -p warmcore --example hello_http
//! curl localhost:8080
//! ```
//!
//! In a project of your own: `warmcore` with the feature `http`, `axum`, and `tokio` with the features `net` and `signal`.
//! At Ctrl-C the server finishes running requests, for 30 seconds at most.
//! With WARMCORE_TOP=1 in its environment, `warmcore top` shows its workers.

use axum::{Router, routing::get};
use warmcore::http;

#[warmcore::main]
async fn main() -> std::io::Result<()> {
    let app = Router::new().route("/", get(|| async { "warm\n" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    println!("listening on http://{}", listener.local_addr()?);
    let ctrl_c = async { _ = tokio::signal::ctrl_c().await };
    http::serve(listener, app).with_graceful_shutdown(ctrl_c).run().await;
    Ok(())
}
