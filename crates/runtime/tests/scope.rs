//! Scopes: jobs that borrow from the thread that waits for them.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use warmcore_runtime::{Runtime, scope, spawn};

fn runtime(workers: usize) -> Runtime {
    Runtime::builder().worker_threads(workers).build().unwrap()
}

#[test]
fn every_job_has_ended_when_the_scope_returns() {
    for workers in [1, 2, 5] {
        let runtime = runtime(workers);
        let mut parts = vec![0u64; 1000];
        let sum = runtime.with_context(|| {
            scope(|scope| {
                for (i, part) in parts.iter_mut().enumerate() {
                    scope.spawn(move || *part = i as u64);
                }
            });
            parts.iter().sum::<u64>()
        });
        assert_eq!(sum, 499_500, "{workers} workers");
    }
}

#[test]
fn jobs_start_jobs() {
    let runtime = runtime(2);
    let count = AtomicUsize::new(0);
    runtime.with_context(|| {
        scope(|scope| {
            for _ in 0..50 {
                scope.spawn(|| {
                    count.fetch_add(1, Relaxed);
                    for _ in 0..10 {
                        scope.spawn(|| _ = count.fetch_add(1, Relaxed));
                    }
                });
            }
        });
    });
    assert_eq!(count.into_inner(), 550);
}

#[test]
fn a_jobs_panic_is_the_scopes_once_all_have_ended() {
    let runtime = runtime(2);
    let ended = AtomicUsize::new(0);
    let panic = runtime.with_context(|| {
        catch_unwind(AssertUnwindSafe(|| {
            scope(|scope| {
                for i in 0..100 {
                    let ended = &ended;
                    scope.spawn(move || {
                        ended.fetch_add(1, Relaxed);
                        assert!(i != 7, "the seventh");
                    });
                }
            });
        }))
    });
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"the seventh"));
    assert_eq!(ended.into_inner(), 100);
}

/// If the closure of `scope` panics and a job panics too, the closure's panic is raised. The job's panic is dropped,
/// even if its payload panics when it is dropped.
#[test]
fn of_two_panics_the_scopes_own_is_raised() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped, as planned");
        }
    }
    let runtime = runtime(2);
    let of_two = |job: fn()| {
        runtime.with_context(|| {
            catch_unwind(AssertUnwindSafe(|| {
                scope(|scope| {
                    scope.spawn(job);
                    panic!("the scope's");
                });
            }))
        })
    };
    for job in [|| panic!("a job's"), || panic_any(Bomb)] {
        assert_eq!(of_two(job).unwrap_err().downcast_ref::<&str>(), Some(&"the scope's"));
    }
}

#[test]
fn a_task_may_wait_for_a_scope_and_its_worker_goes_on() {
    for workers in [1, 2] {
        let runtime = runtime(workers);
        let sums: Vec<u64> = runtime.block_on(async {
            let tasks: Vec<_> = (0..20u64)
                .map(|n| {
                    spawn(async move {
                        let mut parts = [n; 64];
                        scope(|scope| parts.iter_mut().for_each(|part| scope.spawn(|| *part *= 2)));
                        parts.iter().sum()
                    })
                })
                .collect();
            let mut sums = Vec::new();
            for task in tasks {
                sums.push(task.await.unwrap());
            }
            sums
        });
        assert_eq!(sums, (0..20).map(|n| n * 128).collect::<Vec<u64>>(), "{workers} workers");
    }
}

#[test]
fn outside_a_runtime_scope_panics() {
    let panic = catch_unwind(|| scope(|_| ())).unwrap_err();
    assert!(panic.downcast_ref::<String>().is_some_and(|text| text.contains("no runtime here")));
}
