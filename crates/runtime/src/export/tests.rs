use super::exported::Exported;
use super::*;
use crate::Runtime;
use crate::tenant_stats::TenantMetrics;
use ::metrics::{Counter, CounterFn, Gauge, GaugeFn, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A recorder that keeps what is reported.
#[derive(Default)]
struct Notes {
    told: Arc<Mutex<BTreeMap<String, f64>>>,
    described: Mutex<Vec<String>>,
}

struct Note(String, Arc<Mutex<BTreeMap<String, f64>>>);

impl Note {
    fn put(&self, value: f64) {
        self.1.lock().unwrap().insert(self.0.clone(), value);
    }
}

impl CounterFn for Note {
    fn increment(&self, _: u64) {
        panic!("{} is not absolute", self.0);
    }

    fn absolute(&self, value: u64) {
        self.put(value as f64);
    }
}

impl GaugeFn for Note {
    fn increment(&self, _: f64) {
        panic!("{} is not set", self.0);
    }

    fn decrement(&self, _: f64) {
        panic!("{} is not set", self.0);
    }

    fn set(&self, value: f64) {
        self.put(value);
    }
}

impl Notes {
    fn note(&self, key: &Key) -> Arc<Note> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Note(format!("{} {}", key.name(), labels.join(",")), self.told.clone()))
    }

    fn describe(&self, key: &KeyName, unit: Option<Unit>, text: &SharedString) {
        assert!(
            unit.is_some() && text.ends_with('.') && !text.starts_with(' '),
            "{}: {text:?}",
            key.as_str()
        );
        self.described.lock().unwrap().push(key.as_str().to_owned());
    }
}

impl Recorder for Notes {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        assert!(key.as_str().ends_with("_total"));
        self.describe(&key, unit, &text);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&key, unit, &text);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("no histogram is told: {}", key.as_str());
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.note(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.note(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> ::metrics::Histogram {
        panic!("no histogram is told: {}", key.name());
    }
}

#[test]
fn every_name_is_described_and_told_and_the_polls_of_all_workers_are_the_runtimes() {
    let notes = Notes::default();
    let runtime = Runtime::builder().worker_threads(2).name("orders").build().unwrap();
    let account = warmcore_budget::process::Account::root("bytes").limit(1000).build();
    let tenant = Tenant::builder().name("gold").account(&account).build();
    let held = account.try_hold(10).unwrap();
    runtime.block_on(async {
        for _ in 0..100 {
            crate::spawn(crate::yield_now()).await.unwrap();
        }
        crate::spawn_in(&tenant, crate::yield_now()).await.unwrap();
    });
    ::metrics::with_local_recorder(&notes, || {
        describe_metrics();
        record_now(&runtime.handle());
        record_tenant(&tenant);
    });
    let (told, mut described) = (notes.told.lock().unwrap(), notes.described.into_inner().unwrap());
    let mut names: Vec<_> = told.keys().map(|key| key.split(' ').next().unwrap().to_owned()).collect();
    names.dedup();
    described.sort();
    assert_eq!(names, described);
    assert_eq!(names.len(), NAMES.len());
    assert!(told.keys().all(|key| key.contains("runtime=orders") || key.contains("tenant=gold")), "{told:?}");
    assert_eq!(told["warmcore_runtime_tenant_polls_total runtime=orders,tenant=gold"], 2.0);
    let of = |name: &str| told[&format!("warmcore_runtime_{name} tenant=gold")];
    assert_eq!(of("tenant_limit_units"), 1000.0);
    assert!((10.0..=1000.0).contains(&of("tenant_charged_units")), "{told:?}");
    drop(held);
    let polls = told.iter().filter(|(key, _)| key.contains("polls_total") && key.contains("distance="));
    // A worker may count a task's last poll after the task was joined.
    assert!(polls.map(|(_, n)| n).sum::<f64>() >= 201.0, "{told:?}");
    let first = told.iter().filter(|(key, _)| key.ends_with("distance=first"));
    assert_eq!(first.map(|(_, n)| n).sum::<f64>(), 101.0, "{told:?}");
}

#[test]
fn tenants_of_one_name_are_one_series() {
    let notes = Notes::default();
    let runtime = Runtime::builder().worker_threads(1).name("orders").build().unwrap();
    let tenant = || Tenant::builder().name("silver").build();
    let (a, b) = (tenant(), tenant());
    runtime.block_on(async {
        crate::spawn_in(&a, async {}).await.unwrap();
        crate::spawn_in(&b, crate::yield_now()).await.unwrap();
    });
    ::metrics::with_local_recorder(&notes, || record_now(&runtime.handle()));
    let told = notes.told.lock().unwrap();
    let polls: Vec<_> = told.iter().filter(|(key, _)| key.contains("tenant_polls")).collect();
    assert_eq!(
        polls,
        [(&"warmcore_runtime_tenant_polls_total runtime=orders,tenant=silver".to_owned(), &3.0)]
    );
    assert_eq!(told.keys().filter(|key| key.contains("tenant=")).count(), 3);
}

#[test]
fn the_counters_of_a_name_never_fall_and_without_tenants_it_has_no_alive_tasks() {
    let notes = Notes::default();
    let runtime = Runtime::builder().worker_threads(1).name("orders").build().unwrap();
    let look = || {
        ::metrics::with_local_recorder(&notes, || record_now(&runtime.handle()));
        std::mem::take(&mut *notes.told.lock().unwrap())
    };
    let of = |told: &BTreeMap<String, f64>, name: &str| {
        told.get(&format!("warmcore_runtime_tenant_{name} runtime=orders,tenant=silver")).copied()
    };
    let mut before = 0.0;
    for round in 1..=3 {
        let tenant = Tenant::builder().name("silver").build();
        let waiting = runtime.spawn_in(&tenant, std::future::pending::<()>());
        runtime.block_on(runtime.spawn_in(&tenant, crate::yield_now())).unwrap();
        let told = look();
        // The waiting task was polled once, or is about to be.
        let polls = of(&told, "polls_total").unwrap();
        assert!((before + 2.0..=before + 3.0).contains(&polls), "{round}: {polls} after {before}");
        assert!(of(&told, "num_alive_tasks") >= Some(1.0));
        before = polls;
        waiting.abort();
        let _ = runtime.block_on(waiting);
        let serial = tenant.serial();
        drop(tenant);
        // Waits for the tenant's end, because a worker may still have the last handle to it.
        while Tenant::by_serial(serial).is_some() {
            std::thread::yield_now();
        }
        let told = look();
        assert_eq!((of(&told, "polls_total"), of(&told, "num_alive_tasks")), (Some(polls), Some(0.0)));
        // A name without tenants is reported only once, so that an exporter can drop the idle series.
        assert_eq!(of(&look(), "num_alive_tasks"), None);
    }
}

#[test]
fn what_is_kept_of_tenants_is_by_name() {
    let mut told = Exported::default();
    for serial in 0..1000 {
        let name = ["odd", "even"][serial as usize % 2].to_owned();
        told.by_name(&[TenantMetrics { name, serial, weight: 100, num_alive_tasks: 1, polls: 2, run_ns: 3 }]);
    }
    let last = told.by_name(&[]);
    assert_eq!(
        last.into_iter().collect::<Vec<_>>(),
        [("even".to_owned(), OfName { polls: 1000, run_ns: 1500, num_alive_tasks: 0 })]
    );
    assert_eq!((told.last.len(), told.gone.len()), (0, 2));
    assert_eq!(told.gone["odd"], (1000, 1500));
    assert_eq!(told.by_name(&[]), BTreeMap::new());
}

#[cfg(feature = "tokio")]
#[test]
fn recording_goes_on_until_it_is_aborted() {
    let runtime = Runtime::builder().worker_threads(1).build().unwrap();
    let recording = record_metrics(&runtime.handle(), Duration::from_millis(1));
    assert_eq!(recording.name(), Some("warmcore-metrics"));
    recording.abort();
    let ended = runtime.block_on(recording);
    assert!(ended.is_err_and(|error| error.is_cancelled()));
}
