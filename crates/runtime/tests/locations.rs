//! A panic because of misuse reports a place in the caller's file, not one in the library.

use std::panic::{AssertUnwindSafe, Location, catch_unwind, set_hook};
use std::sync::Mutex;
use warmcore_budget::Account;
use warmcore_runtime::{Handle, Placement, Runtime, scope, spawn, task_builder};
use warmcore_tenant::Tenant;

static PLACES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The file in which `act` panics.
fn place_of(act: impl FnOnce()) -> String {
    assert!(catch_unwind(AssertUnwindSafe(act)).is_err());
    PLACES.lock().unwrap().pop().expect("the hook was called")
}

#[test]
fn a_misuse_panics_at_the_line_of_its_caller() {
    set_hook(Box::new(|info| {
        let place = info.location().map_or("nowhere", Location::file);
        PLACES.lock().unwrap().push(place.to_owned());
    }));
    let runtime = Runtime::builder().worker_threads(1).build().unwrap();
    let full = Account::root("full").limit(100).build();
    let places = [
        place_of(|| drop(spawn(async {}))),
        place_of(|| drop(task_builder())),
        place_of(|| drop(Handle::current())),
        place_of(|| scope(|_| ())),
        place_of(|| drop(runtime.task_builder().placement(Placement::cpu(8191)).spawn(async {}))),
        place_of(|| drop(Tenant::builder().weight(0).build())),
        place_of(|| drop(full.child("more").guarantee(1000).build())),
        runtime.block_on(async {
            let handle = Handle::current();
            spawn(async move { place_of(|| handle.block_on(async {})) }).await.unwrap()
        }),
    ];
    assert!(places.iter().all(|place| place == file!()), "{places:#?}");
}
