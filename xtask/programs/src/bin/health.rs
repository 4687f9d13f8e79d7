//! A tonic server of gRPC's health protocol: `health PORT`. The service `up` serves, `down` does not, and `flip` changes
//! between both every 50 ms.

use std::time::Duration;
use tonic_health::ServingStatus;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Some(port) = std::env::args().nth(1) else { anyhow::bail!("health PORT") };
    let (reporter, service) = tonic_health::server::health_reporter();
    reporter.set_service_status("up", ServingStatus::Serving).await;
    reporter.set_service_status("down", ServingStatus::NotServing).await;
    tokio::spawn(async move {
        let mut every = tokio::time::interval(Duration::from_millis(50));
        for status in [ServingStatus::Serving, ServingStatus::NotServing].into_iter().cycle() {
            every.tick().await;
            reporter.set_service_status("flip", status).await;
        }
    });
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port.parse()?));
    tonic::transport::Server::builder().add_service(service).serve(address).await?;
    Ok(())
}
