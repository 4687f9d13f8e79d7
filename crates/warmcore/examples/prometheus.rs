//! The runtime's numbers for Prometheus, at /metrics.
//!
//! ```text
//! cargo run --release -p warmcore --example prometheus
//! curl localhost:8080/work
//! curl -s localhost:8080/metrics | grep polls_total
//! ```
//!
//! In a project of your own: `warmcore` with the features `http` and `metrics`, `metrics-exporter-prometheus`
//! without its default features, `axum`, and `tokio` with the feature `net`. Any other exporter for the crate `metrics` works
//! too: see `export::record_metrics` for exporters that push.

use axum::{Router, routing::get};
use metrics_exporter_prometheus::PrometheusHandle;
use warmcore::Handle;
use warmcore::http;
use warmcore::prelude::Tenant;
use warmcore::runtime::export;

/// The tenant of the tasks of /work.
fn tenant() -> Tenant {
    Tenant::builder().name("work").build()
}

/// `prometheus` renders the recorded metrics.
pub fn app(handle: Handle, prometheus: PrometheusHandle) -> Router {
    let tenant = tenant();
    let of_tenant = tenant.clone();
    let work = move || {
        // Many short tasks, which spread over the workers.
        let tasks: Vec<_> = (0..100u64)
            .map(|n| {
                warmcore::spawn_in(&tenant, async move {
                    warmcore::yield_now().await;
                    n
                })
            })
            .collect();
        async {
            let mut sum = 0;
            for task in tasks {
                sum += task.await.expect("it does not panic");
            }
            format!("{sum}\n")
        }
    };
    let metrics = move || {
        // Record the present numbers before each scrape.
        export::record_now(&handle);
        export::record_tenant(&of_tenant);
        let text = prometheus.render();
        async { text }
    };
    Router::new().route("/work", get(work)).route("/metrics", get(metrics))
}

#[allow(dead_code)]
#[warmcore::main(name = "prometheus")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let prometheus = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder()?;
    export::describe_metrics();
    let app = app(Handle::current(), prometheus);
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    http::serve(listener, app).run().await;
    Ok(())
}
