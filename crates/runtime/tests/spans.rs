//! Spans: whoever listens to `trace` sees each task's polls under the task's name. The subscriber is the whole
//! process's, so there is one test here.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use warmcore_runtime::{Runtime, yield_now};
use warmcore_tenant::Tenant;

/// What was said of each span of tasks, and how often it was entered.
static SPANS: Mutex<BTreeMap<u64, (String, u32)>> = Mutex::new(BTreeMap::new());

/// Listens to tasks, at `trace`.
struct Listener {
    made: AtomicU64,
}

/// Writes fields one behind the other.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl Subscriber for Listener {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.is_span() && (of.target() == "warmcore::task" || of.target() == "spans")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        assert!(span.is_root() || span.metadata().target() == "spans", "{span:?} has a parent");
        let mut text = Text(span.metadata().name().to_owned());
        span.record(&mut text);
        let id = self.made.fetch_add(1, Relaxed) + 1;
        SPANS.lock().unwrap().insert(id, (text.0, 0));
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, span: &Id) {
        SPANS.lock().unwrap().get_mut(&span.into_u64()).unwrap().1 += 1;
    }

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_task_is_in_a_span_of_its_name_and_tenant_where_somebody_listens_and_in_none_before() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let tenant = Tenant::builder().name("gold").build();
    let run = || {
        runtime.block_on(async {
            runtime.task().name("order").tenant(&tenant).spawn(yield_now()).await.unwrap();
            runtime.spawn(async {}).await.unwrap();
            let own = tracing::span!(target: "spans", Level::TRACE, "own");
            runtime.task().name("mine").span(own).spawn(async {}).await.unwrap();
        });
    };
    run();
    tracing::subscriber::set_global_default(Listener { made: AtomicU64::new(0) }).unwrap();
    run();
    let told: Vec<_> = std::mem::take(&mut *SPANS.lock().unwrap()).into_values().collect();
    let expected = [("task name=\"order\" tenant=\"gold\"", 2), ("task", 1), ("own", 1)];
    assert_eq!(told, expected.map(|(text, entered)| (text.to_owned(), entered)));
}
