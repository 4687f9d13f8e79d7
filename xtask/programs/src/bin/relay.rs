//! An axum server that asks another server by reqwest: `relay PORT ORIGIN`. `GET /x` returns what port ORIGIN of
//! 127.0.0.1 returns.

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, port, origin] = &args[..] else { anyhow::bail!("relay PORT ORIGIN") };
    let client = reqwest::Client::builder().no_proxy().build()?;
    let app = Router::new().fallback(relay).with_state((client, origin.parse()?));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

async fn relay(
    State((client, origin)): State<(reqwest::Client, u16)>,
    path: Uri,
) -> Result<(StatusCode, Bytes), StatusCode> {
    let answer = client.get(format!("http://127.0.0.1:{origin}{path}")).send().await.map_err(failed)?;
    Ok((answer.status(), answer.bytes().await.map_err(failed)?))
}

fn failed(error: reqwest::Error) -> StatusCode {
    eprintln!("{error}");
    StatusCode::BAD_GATEWAY
}
