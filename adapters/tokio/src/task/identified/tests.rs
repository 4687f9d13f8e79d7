use crate::runtime::{Builder, Runtime};
use crate::task::{self, Id, JoinHandle};
use std::future::{Future, pending};
use std::sync::mpsc::{Sender, channel};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().max_blocking_threads(1).build().unwrap()
}

/// Sends the current task's id when it is dropped.
struct TellsId(Sender<Option<Id>>);

impl Drop for TellsId {
    fn drop(&mut self) {
        let _ = self.0.send(task::try_id());
    }
}

/// The ids that `make`'s task had in the drop of what it was given, and on its handle.
fn ids<F>(
    runtime: &Runtime,
    make: impl FnOnce(TellsId) -> F,
    end: impl FnOnce(JoinHandle<F::Output>),
) -> [Option<Id>; 2]
where
    F: Future<Output: Send> + Send + 'static,
{
    let (tell, told) = channel();
    let handle = runtime.spawn(make(TellsId(tell)));
    let id = handle.id();
    end(handle);
    [Some(id), told.recv().unwrap()]
}

#[test]
fn a_future_is_dropped_with_its_id_when_it_is_ready_or_aborted() {
    let runtime = runtime();
    let ready = |tells| async move { drop(tells) };
    let [handle, dropped] = ids(&runtime, ready, |handle| runtime.block_on(handle).unwrap());
    assert_eq!(handle, dropped);

    let endless = |tells| async move {
        let _tells = tells;
        pending::<()>().await
    };
    let abort = |handle: JoinHandle<()>| {
        handle.abort();
        assert!(runtime.block_on(handle).unwrap_err().is_cancelled());
    };
    let [handle, dropped] = ids(&runtime, endless, abort);
    assert_eq!(handle, dropped);
}

#[test]
fn an_output_is_dropped_with_its_id_by_the_scheduler_and_without_one_by_the_program() {
    let runtime = runtime();
    let [handle, dropped] = ids(&runtime, |tells| async { tells }, drop);
    assert_eq!(handle, dropped);

    let take = |handle: JoinHandle<TellsId>| drop(runtime.block_on(handle));
    let [_, dropped] = ids(&runtime, |tells| async { tells }, take);
    assert_eq!(dropped, None);
}

#[test]
fn a_closure_runs_with_its_id_and_an_aborted_one_is_dropped_with_it() {
    let runtime = runtime();
    let (free, blocked) = channel::<()>();
    let first = runtime.spawn_blocking(move || {
        blocked.recv().unwrap();
        task::id()
    });
    let (tell, told) = channel();
    let tells = TellsId(tell);
    let second = runtime.spawn_blocking(move || drop(tells));
    second.abort();
    let id = first.id();
    free.send(()).unwrap();
    assert_eq!(runtime.block_on(first).unwrap(), id);
    let id = second.id();
    assert!(runtime.block_on(second).unwrap_err().is_cancelled());
    assert_eq!(told.recv().unwrap(), Some(id));
}

#[test]
fn the_outer_task_is_current_again_after_a_task_that_was_polled_inside_it() {
    let outer = runtime();
    let task = outer.spawn(async {
        let before = task::id();
        let inner = task::block_in_place(|| {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(runtime.spawn(async { task::id() })).unwrap()
        });
        (before, inner, task::id())
    });
    let (before, inner, after) = outer.block_on(task).unwrap();
    assert_eq!(before, after);
    assert_ne!(before, inner);
    assert_eq!(task::try_id(), None);
}
