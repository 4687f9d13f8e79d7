//! Reads /metrics of the example `prometheus` as Prometheus does: over a socket, while the runtime runs tasks.

#[path = "../examples/prometheus.rs"]
mod prometheus;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;
use warmcore::Runtime;
use warmcore::http;
use warmcore::runtime::export;

fn get(server: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{path}: {reply}");
    reply.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// The sum of all series of a metric that have a label.
fn sum(metrics: &str, name: &str, label: &str) -> f64 {
    let of_it = metrics.lines().filter(|line| line.starts_with(name) && line.contains(label));
    let values: Vec<f64> = of_it.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    assert!(!values.is_empty(), "no {name} with {label} in\n{metrics}");
    values.iter().sum()
}

#[test]
fn prometheus_reads_what_the_workers_did() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder().unwrap();
    export::describe_metrics();
    let runtime = Runtime::builder().worker_threads(2).name("test").build().unwrap();
    let app = prometheus::app(runtime.handle(), recorder);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let server = listener.local_addr().unwrap();
    let serving = runtime.spawn(async { http::serve(listener, app).run().await });
    assert_eq!(get(server, "/work"), "4950\n");
    let before = get(server, "/metrics");
    for _ in 0..10 {
        get(server, "/work");
    }
    let after = get(server, "/metrics");
    let name = "warmcore_runtime_polls_total{";
    let first = |text: &str| sum(text, name, "distance=\"first\"");
    assert!(first(&after) - first(&before) >= 1000.0, "{before}\n{after}");
    for distance in ["same_worker", "same_llc", "other_llc", "other_node"] {
        sum(&after, name, &format!("distance=\"{distance}\""));
    }
    for worker in ["worker=\"0\"", "worker=\"1\"", "llc=", "node=", "cpu=", "runtime=\"test\""] {
        sum(&after, name, worker);
    }
    sum(&after, "warmcore_runtime_local_queue_depth{", "worker=\"1\"");
    sum(&after, "warmcore_runtime_hot_windows_total{", "end=\"broken\"");
    sum(&after, "warmcore_runtime_tenant_ids{", "tenant=\"work\"");
    // A hundred tasks for each of eleven requests, two polls each.
    assert_eq!(sum(&after, "warmcore_runtime_tenant_polls_total{", "tenant=\"work\""), 2200.0);
    sum(&after, "warmcore_runtime_tenant_run_nanoseconds_total{", "tenant=\"work\"");
    // Every series has a name with a description.
    for line in after.lines().filter(|line| line.starts_with("warmcore_")) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(after.contains(&format!("# HELP {name} ")), "{name} is not described");
    }
    serving.abort();
    drop(runtime);
}
