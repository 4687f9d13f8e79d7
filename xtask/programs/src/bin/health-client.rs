//! A client of `health` that checks each answer: `health-client PORT`. It ends when its standard input does, and then
//! prints the number of checked answers. It fails at a wrong answer, a lost connection, or an answer that takes longer
//! than a minute.

use anyhow::{Context, bail, ensure};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// The longest time until an answer.
const LIMIT: Duration = Duration::from_secs(60);

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Some(port) = std::env::args().nth(1) else { bail!("health-client PORT") };
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
    let mut client = HealthClient::new(endpoint.connect().await?);
    let request = HealthCheckRequest { service: "flip".to_owned() };
    let mut flips = client.watch(request).await?.into_inner();
    let mut ended = std::pin::pin!(async { tokio::io::stdin().read_to_end(&mut Vec::new()).await });
    let mut checked = 0_u64;
    loop {
        tokio::select! {
            _ = &mut ended => break,
            unary = unary(&mut client) => checked += unary?,
        }
        let next = tokio::time::timeout(LIMIT, flips.message()).await.context("no change in a minute")??;
        let status = next.context("the stream of changes ended")?.status;
        ensure!([SERVING, NOT_SERVING].contains(&status), "flip: {status}");
        checked += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    ensure!(checked > 0, "no answer was checked");
    println!("{checked}");
    Ok(())
}

/// Asks for three services; returns the number of answers.
async fn unary(client: &mut HealthClient<Channel>) -> anyhow::Result<u64> {
    for (service, expected) in [("up", Ok(SERVING)), ("down", Ok(NOT_SERVING)), ("none", Err(Code::NotFound))]
    {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer =
            tokio::time::timeout(LIMIT, client.check(request)).await.context("no answer in a minute")?;
        let answer = answer.map(|answer| answer.into_inner().status).map_err(|status| status.code());
        ensure!(answer == expected, "{service}: {answer:?}, not {expected:?}");
    }
    Ok(3)
}
