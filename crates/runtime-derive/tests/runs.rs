//! The attributes as tests use them.

use warmcore_runtime::{Handle, spawn};

#[warmcore_runtime_derive::test(crate = ::warmcore_runtime)]
async fn a_test_has_two_workers() {
    assert_eq!(Handle::current().metrics().workers.len(), 2);
    assert_eq!(spawn(async { 42 }).await.unwrap(), 42);
}

#[warmcore_runtime_derive::test(crate = warmcore_runtime, worker_threads = 3)]
async fn a_test_has_as_many_workers_as_it_says() -> Result<(), std::num::ParseIntError> {
    assert_eq!(Handle::current().metrics().workers.len(), "3".parse::<usize>()?);
    Ok(())
}

#[warmcore_runtime_derive::test(crate = warmcore_runtime, worker_threads = 1, name = "alone")]
#[should_panic(expected = "as it should")]
async fn a_panic_fails_the_test() {
    panic!("as it should");
}

#[warmcore_runtime_derive::test(crate = warmcore_runtime)]
#[ignore = "it would fail"]
async fn what_is_ignored_does_not_run() {
    panic!("it ran");
}
