//! Which runtime a thread is in, if it entered several.

use std::time::Duration;
use warmcore_runtime::{Handle, Runtime, block_in_place, outside, spawn, worker_index};

fn runtime(name: &str) -> Runtime {
    Runtime::builder().name(name).worker_threads(1).build().unwrap()
}

#[test]
fn guards_of_two_runtimes_nest() {
    let (inner, outer) = (runtime("inner"), runtime("outer"));
    let now = || Handle::try_current().map(|handle| name_of(&handle)).unwrap_or_default();
    let outer_guard = outer.enter();
    let inner_handle = inner.handle();
    let inner_guard = inner_handle.enter();
    let inside = now();
    drop(inner_guard);
    let between = now();
    drop(outer_guard);
    assert!(inside.contains("inner") && between.contains("outer"), "{inside}, then {between}");
    assert_eq!(now(), "");
}

fn name_of(handle: &Handle) -> String {
    format!("{handle:?}")
}

#[test]
fn a_task_that_enters_another_runtime_spawns_there() {
    let (inner, outer) = (runtime("inner"), runtime("outer"));
    let handle = inner.handle();
    let task = outer.spawn(async move {
        let entered = handle.with_context(|| (name_of(&Handle::current()), spawn(async { thread_name() })));
        (entered.0, entered.1.await.unwrap(), name_of(&Handle::current()))
    });
    let (inside, ran_on, after) = outer.block_on(task).unwrap();
    assert!(inside.contains("inner") && after.contains("outer"), "{inside}, then {after}");
    assert!(ran_on.starts_with("inner"), "{ran_on}");
}

#[test]
fn a_call_outside_a_runtime_panics_with_advice() {
    let told = |act: fn()| {
        let panic = std::panic::catch_unwind(act).expect_err("there is no runtime");
        panic.downcast_ref::<String>().expect("a panic has a text").clone()
    };
    let plain = told(|| drop(spawn(async {})));
    assert!(plain.contains("inside Runtime::block_on") && !plain.contains("tokio"), "{plain}");
    for act in [|| drop(spawn(async {})), || drop(Handle::current()), || warmcore_runtime::scope(|_| ())] {
        let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _in_it = tokio.enter();
        let text = told(act);
        assert!(
            text.starts_with(&plain) && text.contains("`#[warmcore::main]` in the place of `#[tokio::main]`"),
            "{text}"
        );
    }
}

fn thread_name() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

#[test]
fn a_task_that_blocks_in_place_inside_another_runtime_returns_to_its_own() {
    let (inner, outer) = (runtime("inner"), runtime("outer"));
    let handle = inner.handle();
    let task = outer.spawn(async move {
        handle.with_context(|| block_in_place(|| std::thread::sleep(Duration::from_millis(1))));
        name_of(&Handle::current())
    });
    let after = outer.block_on(task).unwrap();
    assert!(after.contains("outer"), "{after}");
}

#[test]
fn outside_hides_the_runtime_from_spawn_and_from_handles_and_another_one_can_be_entered_below() {
    let (inner, outer) = (runtime("inner"), runtime("outer"));
    let handle = inner.handle();
    let now = || Handle::try_current().map(|handle| name_of(&handle)).unwrap_or_default();
    let checks = move || {
        assert!(now().contains("outer"));
        let index = worker_index();
        let hides = outside();
        assert_eq!((now(), worker_index()), (String::new(), None));
        assert!(std::panic::catch_unwind(|| drop(spawn(async {}))).is_err());
        let ran_on = handle.with_context(|| {
            assert!(now().contains("inner"));
            spawn(async { thread_name() })
        });
        assert_eq!(now(), "");
        drop(hides);
        assert!(now().contains("outer"));
        assert_eq!(worker_index(), index);
        (index, ran_on)
    };
    let in_block_on = outer.block_on(async { checks.clone()() });
    let in_a_task = outer.block_on(outer.spawn(async move { checks() })).unwrap();
    assert_eq!((in_block_on.0, in_a_task.0), (None, Some(0)));
    for (_, ran_on) in [in_block_on, in_a_task] {
        assert!(inner.block_on(ran_on).unwrap().starts_with("inner"));
    }
}

#[test]
fn a_wake_outside_reaches_its_task() {
    let runtime = runtime("one");
    let (send, receive) = tokio::sync::oneshot::channel();
    let waits = runtime.spawn(receive);
    let wakes = runtime.spawn(async move {
        let _hides = outside();
        send.send(7).unwrap();
    });
    runtime.block_on(wakes).unwrap();
    assert_eq!(runtime.block_on(waits).unwrap().unwrap(), 7);
}
