use crate::runtime::Builder;
use crate::task;
use std::fmt::{Debug, Write};
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The span of the task, and each other one: with `tokio_unstable`, tokio's `block_on` has a span, and workers call that
/// to wait for events.
const TASK: u64 = 7;
const OTHER: u64 = 8;

/// Writes the span of the task and its events as lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn push(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }
}

struct Fields(String);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio::task")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(format!("{} {}", span.metadata().target(), span.metadata().name()));
        span.record(&mut fields);
        if !fields.0.contains("kind=task ") {
            return Id::from_u64(OTHER);
        }
        self.push(fields.0);
        Id::from_u64(TASK)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(event.metadata().target().to_owned());
        event.record(&mut fields);
        if !fields.0.ends_with(&format!("task.id={OTHER}")) {
            self.push(fields.0);
        }
    }

    fn enter(&self, id: &Id) {
        if id.into_u64() == TASK {
            self.push("enter".to_owned());
        }
    }

    fn exit(&self, id: &Id) {
        if id.into_u64() == TASK {
            self.push("exit".to_owned());
        }
    }
}

#[test]
fn a_task_has_one_span_and_its_waker_reports_each_operation() {
    let lines = Lines::default();
    let of_worker = lines.clone();
    let subscribe = move || std::mem::forget(tracing::subscriber::set_default(of_worker.clone()));
    let runtime = Builder::new_multi_thread().worker_threads(1).on_thread_start(subscribe).build().unwrap();
    let _subscribed = tracing::subscriber::set_default(lines.clone());
    let (id, line) = runtime.block_on(async {
        let mut is_first = true;
        let future = poll_fn(move |cx| {
            if !std::mem::take(&mut is_first) {
                return Poll::Ready(task::id());
            }
            cx.waker().wake_by_ref();
            drop(cx.waker().clone());
            let clone = cx.waker().clone();
            clone.wake();
            Poll::Pending
        });
        let line = line!() + 1;
        (task::Builder::new().name("counts").spawn(future).unwrap().await.unwrap(), line)
    });
    drop(runtime);
    let lines = lines.0.lock().unwrap();
    let span = format!("tokio::task runtime.spawn kind=task task.name=counts task.id={id}");
    assert_eq!(lines.iter().filter(|line| line.contains("runtime.spawn")).count(), 1, "{lines:#?}");
    assert!(lines[0].starts_with(&span) && lines[0].contains(&format!("loc.line={line} ")), "{}", lines[0]);
    let waker = |operation| format!("tokio::task::waker op=\"waker.{operation}\" task.id={TASK}");
    let first = ["wake_by_ref", "clone", "drop", "clone", "wake"].map(waker);
    let in_span = |polls: &[String]| [&["enter".to_owned()], polls, &["exit".to_owned()]].concat();
    // Two polls, and the drop.
    let expected = [in_span(&first), in_span(&[]), in_span(&[])].concat();
    assert_eq!(lines[1..], expected);
}
