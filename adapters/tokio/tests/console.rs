//! What tokio-console shows: console-subscriber in this program, and a client that reads its stream as tokio-console does.
//!
//! Tokio reports tasks with `--cfg tokio_unstable` and its feature `tracing` alone, and so does the face.
#![cfg(all(tokio_unstable, feature = "tracing"))]

use console_api::field::Value;
use console_api::instrument::{InstrumentRequest, instrument_client::InstrumentClient};
use console_api::tasks::{Stats, Task, TaskUpdate};
use std::collections::HashMap;
use std::net::TcpListener;
use std::time::Duration;
use tokio::task::{Builder, yield_now};
use tokio::time::{sleep, timeout};

/// Catches a hang.
const LIMIT: Duration = Duration::from_secs(60);

/// The counts that the client waits for.
const ENOUGH: u64 = 50;

/// The tasks that the stream has told so far.
#[derive(Default)]
struct Seen {
    tasks: HashMap<u64, Task>,
    stats: HashMap<u64, Stats>,
}

impl Seen {
    fn add(&mut self, update: TaskUpdate) {
        self.tasks.extend(update.new_tasks.into_iter().map(|task| (task.id.unwrap().id, task)));
        self.stats.extend(update.stats_update);
    }

    /// The numbers of the first of these tasks.
    fn stats(&self, is_it: impl Fn(&Task) -> bool) -> Option<&Stats> {
        let (id, _) = self.tasks.iter().find(|(_, task)| is_it(task))?;
        self.stats.get(id)
    }
}

fn is_at(task: &Task, line: u32) -> bool {
    let place = task.location.clone().unwrap_or_default();
    place.file.is_some_and(|file| file.ends_with("console.rs")) && place.line == Some(line)
}

fn has(task: &Task, text: &str) -> bool {
    task.fields.iter().any(|field| matches!(&field.value, Some(Value::DebugVal(value)) if value == text))
}

fn is_busy(stats: &Stats) -> bool {
    let polls = stats.poll_stats.as_ref().map_or(0, |polls| polls.polls);
    polls > ENOUGH && stats.wakes > ENOUGH && stats.waker_clones > 0 && stats.waker_drops > 0
}

#[test]
fn console_shows_names_places_polls_and_wakes_of_the_programs_tasks() {
    // Another program may take the port before the subscriber has it, which is unlikely.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    console_subscriber::ConsoleLayer::builder()
        .server_addr(([127, 0, 0, 1], port))
        .publish_interval(Duration::from_millis(100))
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let main = line!() + 1;
    runtime.block_on(async move {
        let yields = async {
            loop {
                yield_now().await;
                sleep(Duration::from_millis(1)).await;
            }
        };
        let _named = Builder::new().name("yields").spawn(yields).unwrap();
        let (send, mut receive) = tokio::sync::mpsc::channel(4);
        let receiver = line!() + 1;
        let _receiver = tokio::spawn(async move { while receive.recv().await.is_some() {} });
        let _sender = tokio::spawn(async move {
            while send.send(()).await.is_ok() {
                sleep(Duration::from_millis(1)).await;
            }
        });

        let mut seen = Seen::default();
        let watched = timeout(LIMIT, async {
            let mut client = loop {
                match InstrumentClient::connect(format!("http://127.0.0.1:{port}")).await {
                    Ok(client) => break client,
                    Err(_) => sleep(Duration::from_millis(20)).await,
                }
            };
            let mut updates = client.watch_updates(InstrumentRequest {}).await.unwrap().into_inner();
            loop {
                let update = updates.message().await.unwrap().expect("the subscriber does not end");
                update.task_update.into_iter().for_each(|update| seen.add(update));
                let named = seen.stats(|task| has(task, "yields")).is_some_and(is_busy);
                let placed = seen.stats(|task| is_at(task, receiver)).is_some_and(is_busy);
                if named && placed {
                    break;
                }
            }
        });
        assert!(watched.await.is_ok(), "after a minute: {:#?} {:#?}", seen.tasks, seen.stats);
        // The program's own `block_on`, with its place. Those of Warmcore's drivers are not shown.
        let of_main: Vec<&Task> = seen.tasks.values().filter(|task| has(task, "block_on")).collect();
        assert!(of_main.iter().any(|task| is_at(task, main)), "{of_main:#?}");
        let ours = |task: &&&Task| format!("{:?}", task.location).contains("driver/src");
        assert_eq!(of_main.iter().filter(ours).count(), 0, "{of_main:#?}");
    });
}
