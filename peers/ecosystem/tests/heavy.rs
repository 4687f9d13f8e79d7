//! Reqwest, tonic and sqlx run unchanged in tasks of Warmcore's runtime.
//!
//! As in `crates/http/tests/libraries.rs`, client and server are in one runtime with one or two
//! workers, over loopback, or use a file; most tests run 16 tasks at once. The assertions follow each crate's
//! documentation.

#[path = "../../../crates/runtime/tests/limit/mod.rs"]
mod limit;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use limit::{as_task, with_workers};
use sqlx::Row;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus as Heard;
use tonic_health::pb::health_client::HealthClient;
use warmcore_http::{self as http, Executor};
use warmcore_runtime::{Handle, JoinHandle, spawn};

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

fn foreign_tasks() -> usize {
    Handle::current().metrics().workers.iter().map(|worker| worker.foreign_tasks).sum()
}

fn app() -> Router {
    Router::new()
        .route("/hello/{name}", get(|Path(name): Path<String>| async move { format!("hello {name}") }))
        .route("/echo", post(|body: String| async move { body }))
        .route("/never", get(std::future::pending::<&'static str>))
}

#[test]
fn reqwest_asks_axum_from_many_tasks() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (end, ends) = oneshot::channel::<()>();
        let server =
            spawn(http::serve(listener, app()).with_graceful_shutdown(async move { _ = ends.await }).run());
        let client = reqwest::Client::new();
        let clients: Vec<_> = (0..16)
            .map(|task| {
                let client = client.clone();
                spawn(async move {
                    for i in 0..20 {
                        let answer =
                            client.get(format!("http://{at}/hello/{task}-{i}")).send().await.unwrap();
                        assert_eq!(answer.text().await.unwrap(), format!("hello {task}-{i}"));
                        let body = "warm".repeat(10_000);
                        let answer = client.post(format!("http://{at}/echo")).body(body.clone()).send().await;
                        assert_eq!(answer.unwrap().text().await.unwrap(), body);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        // reqwest has no hook for an executor: a connection stays on the worker where its first request opened it.
        assert!(foreign_tasks() > 0);
        drop(client);
        end.send(()).unwrap();
        assert_eq!(server.await.unwrap().aborted, 0);
    });
}

#[test]
fn reqwest_gives_up_after_its_timeout() {
    as_task(1, async {
        let (listener, at) = listen().await;
        let server = spawn(http::serve(listener, app()).run());
        let client = reqwest::Client::builder().timeout(Duration::from_millis(20)).build().unwrap();
        assert!(client.get(format!("http://{at}/never")).send().await.unwrap_err().is_timeout());
        server.abort();
    });
}

async fn check(channel: Channel, service: &str) -> Result<i32, tonic::Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    HealthClient::new(channel).check(request).await.map(|answer| answer.into_inner().status)
}

/// Many tasks make calls with one answer; then this task makes a call with an error, and one with a stream of
/// answers.
async fn use_health(channel: Channel, reporter: tonic_health::server::HealthReporter) {
    reporter.set_service_status("warm", ServingStatus::Serving).await;
    let clients: Vec<JoinHandle<()>> = (0..16)
        .map(|_| {
            let channel = channel.clone();
            spawn(async move {
                for _ in 0..20 {
                    assert_eq!(check(channel.clone(), "warm").await.unwrap(), Heard::Serving as i32);
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(check(channel.clone(), "cold").await.unwrap_err().code(), tonic::Code::NotFound);
    let request = HealthCheckRequest { service: "warm".to_owned() };
    let mut told = HealthClient::new(channel).watch(request).await.unwrap().into_inner();
    assert_eq!(told.message().await.unwrap().unwrap().status, Heard::Serving as i32);
    reporter.set_service_status("warm", ServingStatus::NotServing).await;
    assert_eq!(told.message().await.unwrap().unwrap().status, Heard::NotServing as i32);
}

#[test]
fn tonic_serves_by_itself() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (reporter, service) = tonic_health::server::health_reporter();
        let (end, ends) = oneshot::channel::<()>();
        let incoming = TcpListenerStream::new(listener);
        let server = Server::builder().add_service(service);
        let server = server.serve_with_incoming_shutdown(incoming, async move { _ = ends.await });
        let server = spawn(server);
        let channel = Endpoint::new(format!("http://{at}")).unwrap().connect().await.unwrap();
        use_health(channel, reporter).await;
        end.send(()).unwrap();
        server.await.unwrap().unwrap();
    });
}

#[test]
fn tonic_over_our_serve_and_executor_spawns_no_connection_on_tokio() {
    as_task(2, async {
        let (listener, at) = listen().await;
        let (reporter, service) = tonic_health::server::health_reporter();
        let router = tonic::service::Routes::new(service).prepare().into_axum_router();
        let (end, ends) = oneshot::channel::<()>();
        let server =
            spawn(http::serve(listener, router).with_graceful_shutdown(async move { _ = ends.await }).run());
        let endpoint = Endpoint::new(format!("http://{at}")).unwrap().executor(Executor::current());
        let channel = endpoint.connect().await.unwrap();
        use_health(channel, reporter).await;
        assert_eq!(foreign_tasks(), 0);
        end.send(()).unwrap();
        assert_eq!(server.await.unwrap().aborted, 0);
    });
}

#[test]
fn sqlx_with_sqlite_reads_what_it_wrote() {
    as_task(2, async {
        let folder = std::env::temp_dir().join(format!("ecosystem-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tasks.sqlite");
        let options = SqliteConnectOptions::new().filename(&path).create_if_missing(true);
        let pool = SqlitePoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
        sqlx::query("create table tasks (id integer primary key, name text not null)")
            .execute(&pool)
            .await
            .unwrap();
        let writers: Vec<_> = (0..16i64)
            .map(|task| {
                let pool = pool.clone();
                spawn(async move {
                    for i in 0..10 {
                        let mut transaction = pool.begin_with("begin immediate").await.unwrap();
                        sqlx::query("insert into tasks (id, name) values (?, ?)")
                            .bind(task * 100 + i)
                            .bind(format!("task {task}"))
                            .execute(&mut *transaction)
                            .await
                            .unwrap();
                        // Half of the transactions are rolled back.
                        if i % 2 == 0 {
                            transaction.commit().await.unwrap();
                        } else {
                            transaction.rollback().await.unwrap();
                        }
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
        }
        let row =
            sqlx::query("select count(*), count(distinct name) from tasks").fetch_one(&pool).await.unwrap();
        assert_eq!((row.get::<i64, _>(0), row.get::<i64, _>(1)), (80, 16));
        pool.close().await;
        std::fs::remove_dir_all(&folder).unwrap();
    });
}

#[test]
fn all_three_end_with_the_runtime_while_they_are_at_work() {
    with_workers(2, |runtime| {
        let (tell, hear) = std::sync::mpsc::channel();
        drop(runtime.spawn(async move {
            let (listener, at) = listen().await;
            drop(spawn(http::serve(listener, app()).run()));
            let pool = SqlitePoolOptions::new().connect("sqlite::memory:").await.unwrap();
            drop(spawn(async move {
                let row = sqlx::query("select 7").fetch_one(&pool).await.unwrap();
                assert_eq!(row.get::<i64, _>(0), 7);
                std::future::pending::<()>().await;
                drop(pool);
            }));
            let answer = reqwest::Client::new().get(format!("http://{at}/never"));
            drop(spawn(async move { answer.send().await.is_err() }));
            let (_, service) = tonic_health::server::health_reporter();
            drop(spawn(Server::builder().add_service(service).serve("127.0.0.1:0".parse().unwrap())));
            tokio::time::sleep(Duration::from_millis(50)).await;
            tell.send(()).unwrap();
            std::future::pending::<()>().await;
        }));
        hear.recv().unwrap();
        // `with_workers` drops the runtime, and waits for its end.
    });
}
