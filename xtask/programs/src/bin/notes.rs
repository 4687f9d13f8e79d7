//! An axum server of notes in SQLite: `notes PORT FILE`. `PUT /notes/7` stores the body, `GET /notes/7` returns it.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Router, routing::get};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqliteSynchronous};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let [_, port, file] = &args[..] else { anyhow::bail!("notes PORT FILE") };
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS notes (id INTEGER PRIMARY KEY, text TEXT NOT NULL)")
        .execute(&pool)
        .await?;
    // The load reads this note before a client has stored one.
    sqlx::query("INSERT OR IGNORE INTO notes VALUES (1, 'first')").execute(&pool).await?;
    let app = Router::new().route("/notes/{id}", get(read).put(write)).with_state(pool);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port.parse()?)).await?;
    axum::serve(listener, app).await?;
    Ok(())
}

async fn read(State(pool): State<SqlitePool>, Path(id): Path<i64>) -> Result<String, StatusCode> {
    let query = sqlx::query_scalar("SELECT text FROM notes WHERE id = ?").bind(id);
    query.fetch_optional(&pool).await.map_err(failed)?.ok_or(StatusCode::NOT_FOUND)
}

async fn write(State(pool): State<SqlitePool>, Path(id): Path<i64>, text: String) -> Result<(), StatusCode> {
    let query =
        sqlx::query("INSERT INTO notes VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET text = excluded.text");
    query.bind(id).bind(text).execute(&pool).await.map_err(failed)?;
    Ok(())
}

fn failed(error: sqlx::Error) -> StatusCode {
    eprintln!("{error}");
    StatusCode::INTERNAL_SERVER_ERROR
}
