use super::*;
use crate::runtime::{Builder, Runtime};
use std::cell::Cell;
use std::marker::PhantomPinned;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::Duration;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Waits until a task has ended, without touching the set that it is in.
async fn ended(task: &AbortHandle) {
    while !task.is_finished() {
        real::time::sleep(Duration::from_millis(1)).await;
    }
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn outputs_come_in_the_order_in_which_the_tasks_end() {
    runtime().block_on(async {
        let mut set = JoinSet::new();
        let (gates, tasks): (Vec<_>, Vec<_>) = (0..5)
            .map(|number| {
                let (open, gate) = real::sync::oneshot::channel::<()>();
                (open, set.spawn(async move { gate.await.map(|()| number) }))
            })
            .unzip();
        let mut gates: Vec<_> = gates.into_iter().map(Some).collect();
        for number in [3, 0, 4, 1, 2] {
            gates[number].take().unwrap().send(()).unwrap();
            ended(&tasks[number]).await;
            // The entry's waker is called after the task is marked as ended.
            while set.finished.state().queue.iter().all(|index| *index != number) {
                real::task::yield_now().await;
            }
        }
        let outputs: Result<Vec<usize>, _> = set.join_all().await.into_iter().collect();
        assert_eq!(outputs.unwrap(), [3, 0, 4, 1, 2]);
    });
}

#[test]
fn the_end_of_a_detached_task_is_not_taken_for_that_of_the_task_with_its_index() {
    runtime().block_on(async {
        let mut set = JoinSet::new();
        let (open, gate) = real::sync::oneshot::channel::<()>();
        let first = set.spawn(async move {
            gate.await.unwrap();
            1
        });
        set.detach_all();
        assert!(set.is_empty());
        let (open_second, gate) = real::sync::oneshot::channel::<()>();
        set.spawn(async move {
            gate.await.unwrap();
            2
        });
        open.send(()).unwrap();
        ended(&first).await;
        assert!(set.try_join_next().is_none());
        open_second.send(()).unwrap();
        assert_eq!(set.join_next().await.unwrap().unwrap(), 2);
        assert!(set.join_next().await.is_none());
    });
}

#[test]
fn try_join_next_keeps_the_waker_of_a_pending_poll() {
    let runtime = runtime();
    let mut set = JoinSet::new();
    let (open, gate) = real::sync::oneshot::channel::<()>();
    let task = set.spawn_on(async move { gate.await.unwrap() }, runtime.handle());
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(wakes.clone());
    assert!(set.poll_join_next(&mut Context::from_waker(&waker)).is_pending());
    assert!(set.try_join_next().is_none());
    open.send(()).unwrap();
    runtime.block_on(ended(&task));
    while wakes.0.load(SeqCst) == 0 {
        std::thread::yield_now();
    }
    assert!(set.try_join_next().unwrap().is_ok());
}

#[test]
fn a_dropped_join_next_loses_no_output() {
    runtime().block_on(async {
        let mut set = JoinSet::new();
        for number in 0..100 {
            set.spawn(async move { number });
        }
        let mut sum = 0;
        while !set.is_empty() {
            let mut next = pin!(set.join_next());
            let once = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
            match once {
                Poll::Ready(output) => sum += output.unwrap().unwrap(),
                Poll::Pending => real::task::yield_now().await,
            }
        }
        assert_eq!(sum, 4950);
    });
}

#[test]
fn an_index_is_used_again_after_its_output_was_taken() {
    runtime().block_on(async {
        let mut set = JoinSet::new();
        for number in 0..1000 {
            set.spawn(async move { number });
            set.spawn(async move { number });
            assert!(set.join_next().await.unwrap().is_ok());
            assert!(set.join_next().await.unwrap().is_ok());
        }
        assert!(set.entries.len() <= 2, "{} entries for 2 tasks at a time", set.entries.len());
    });
}

#[test]
fn a_dropped_set_aborts_its_tasks_and_a_detached_task_goes_on() {
    runtime().block_on(async {
        let (open, gate) = real::sync::oneshot::channel::<()>();
        let mut set = JoinSet::new();
        let aborted = set.spawn(std::future::pending::<()>());
        drop(set);
        ended(&aborted).await;

        let mut set = JoinSet::new();
        let detached = set.spawn(async move { gate.await.unwrap() });
        set.detach_all();
        drop(set);
        open.send(()).unwrap();
        ended(&detached).await;
    });
}

#[test]
fn a_set_is_send_and_sync_if_its_outputs_are_send_and_unpin_always() {
    fn is_shared<T: Send + Sync + Unpin>() {}
    is_shared::<JoinSet<(Cell<u32>, PhantomPinned)>>();
}
