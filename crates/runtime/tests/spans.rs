//! Spans: a subscriber at level `trace` sees each task's polls in a span with the task's name and tenant, or in the
//! span that the task was given. The subscriber gets the spans of the whole process, so this file has one test.

mod common;

use common::{Hear, listen};
use std::collections::BTreeMap;
use std::sync::Mutex;
use tracing::span::Attributes;
use tracing::{Level, Metadata};
use warmcore_runtime::{Runtime, yield_now};
use warmcore_tenant::Tenant;

/// The text of each task's span, and how often the span was entered.
static SPANS: Mutex<BTreeMap<u64, (String, u32)>> = Mutex::new(BTreeMap::new());

/// Records spans of tasks, at level `trace`.
struct Spans;

impl Hear for Spans {
    fn wants(&self, of: &Metadata<'_>) -> bool {
        of.is_span() && (of.target() == "warmcore::task" || of.target() == "spans")
    }

    fn span(&self, id: u64, span: &Attributes<'_>, text: String) {
        assert!(span.is_root() || span.metadata().target() == "spans", "{span:?} has a parent");
        SPANS.lock().unwrap().insert(id, (text, 0));
    }

    fn enter(&self, id: u64) {
        SPANS.lock().unwrap().get_mut(&id).unwrap().1 += 1;
    }
}

#[test]
fn a_task_is_in_a_span_of_its_name_and_tenant_if_a_subscriber_listens() {
    let runtime = Runtime::builder().worker_threads(1).build().unwrap();
    let tenant = Tenant::builder().name("gold").build();
    let run = || {
        runtime.block_on(async {
            runtime.task_builder().name("order").tenant(&tenant).spawn(yield_now()).await.unwrap();
            runtime.spawn(async {}).await.unwrap();
            let own = tracing::span!(target: "spans", Level::TRACE, "own");
            runtime.task_builder().name("mine").span(own).spawn(async {}).await.unwrap();
        });
    };
    run();
    listen(Spans);
    run();
    let told: Vec<_> = std::mem::take(&mut *SPANS.lock().unwrap()).into_values().collect();
    let expected = [("task name=\"order\" tenant=\"gold\"", 2), ("task", 1), ("own", 1)];
    assert_eq!(told, expected.map(|(text, entered)| (text.to_owned(), entered)));
}
