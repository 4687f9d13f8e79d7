//! The cases of `warmcore bench wake`: its modules `pingpong`, `messaging`, `warm`, `noisy` and `spawn`.

use super::{DONE, StepCosts, about};
use crate::memory::{Access, Pages};
use crate::program::Program;

/// The sender's side of a case with messages of 100 bytes: what a channel holds, and how many tasks are on each side.
const HELD: u32 = 64;
const SIDE: usize = 20;

/// The tasks that compute.
const HOGS: usize = 64;

/// The tasks that are spawned before the first is joined.
const BATCH: usize = 128;

/// Pairs of tasks that send to each other through channels with room for one message.
///
/// A hop takes a send and a receive that waits. The clock that the measured client reads is not simulated.
pub(super) fn pingpong(steps: &StepCosts, pairs: usize) -> Vec<Program> {
    let hop = about(steps.message_waited);
    let pair = |i: usize| {
        let (ping, pong) = (format!("ping {i}"), format!("pong {i}"));
        let serve = |p: Program| p.receive(&ping).run(hop).send(&pong, 1);
        let play = |p: Program| p.run(hop).send(&ping, 1).receive(&pong).mark(DONE);
        [
            Program::new(format!("server {i}")).forever(serve),
            Program::new(format!("client {i}")).forever(play),
        ]
    };
    (0..pairs).flat_map(pair).collect()
}

/// Groups of 20 senders and 20 receivers; each sender sends a message to each receiver of its group in turn.
///
/// Half of the time of a send and a receive is the sender's. What a receiver that waits does more is not simulated.
pub(super) fn messaging(steps: &StepCosts, groups: usize) -> Vec<Program> {
    let half = about(steps.message / 2);
    let channel = |group: usize, i: usize| format!("to {group}.{i}");
    let receiver = |group: usize, i: usize| {
        Program::new(format!("receiver {group}.{i}"))
            .forever(|p| p.receive(&channel(group, i)).run(half).mark(DONE))
    };
    let sender = |group: usize, i: usize| {
        let to_all = |p: Program| (0..SIDE).fold(p, |p, to| p.run(half).send(&channel(group, to), HELD));
        Program::new(format!("sender {group}.{i}")).forever(to_all)
    };
    (0..groups)
        .flat_map(|group| {
            let receivers = (0..SIDE).map(move |i| receiver(group, i));
            receivers.chain((0..SIDE).map(move |i| sender(group, i)))
        })
        .collect()
}

/// A chase through all of a task's working set.
fn chase(program: Program, kib: u32) -> Program {
    program.touch_own(kib, Pages::Touched, Access::Write).mark(DONE)
}

/// Tasks that chase through `kib` KiB each and yield.
pub(super) fn warm_yield(tasks: usize, kib: u32) -> Vec<Program> {
    let task = |i: usize| Program::new(format!("task {i}")).forever(|p| chase(p, kib).yield_now());
    (0..tasks).map(task).collect()
}

/// Pairs of tasks with `kib` KiB each, of which one chases and then sends to its partner.
pub(super) fn warm_message(steps: &StepCosts, tasks: usize, kib: u32) -> Vec<Program> {
    let waited = about(steps.message_waited);
    let task = |i: usize| {
        let (to, from) = (format!("to {}", i ^ 1), format!("to {i}"));
        let first = Program::new(format!("task {i}"));
        let first = if i % 2 == 1 { first.receive(&from) } else { first };
        first.forever(|p| chase(p, kib).run(waited).send(&to, 1).receive(&from))
    };
    (0..tasks).map(task).collect()
}

/// 64 tasks that compute for `poll_ns` and yield, and one that a thread wakes about once per millisecond.
///
/// On a runtime with tenants the hogs are in one and the other task is in another.
pub(super) fn noisy(steps: &StepCosts, poll_ns: u64) -> Vec<Program> {
    let [quicks, hogs] = if steps.has_tenants { [1, 2] } else { [0, 0] };
    let quick = Program::new("quick").for_tenant(quicks).forever(|p| p.receive("wakes").run(100));
    let poll = about(poll_ns);
    let hog =
        |i| Program::new(format!("hog {i}")).for_tenant(hogs).forever(|p: Program| p.run(poll).yield_now());
    let waker = Program::new("waker").outside();
    let waker = waker.forever(|p| p.sleep(800_000..=1_200_000).run(500).send("wakes", u32::MAX));
    std::iter::once(quick).chain((0..HOGS).map(hog)).chain([waker]).collect()
}

/// A task, or a thread that is no worker, that spawns 128 tasks and joins them in their order.
pub(super) fn spawn(steps: &StepCosts, is_outside: bool) -> Vec<Program> {
    let ended = |i: usize| format!("ended {i}");
    let child = |i: usize| Program::new(format!("child {i}")).run(about(steps.child)).send(&ended(i), 1);
    let spawning = about(if is_outside { steps.outside_spawn } else { steps.spawn });
    let spawner = Program::new("spawner");
    let spawner = if is_outside { spawner.outside() } else { spawner };
    let batch = |p: Program| {
        let p = (0..BATCH).fold(p, |p, i| p.run(spawning).fork(child(i)));
        (0..BATCH).fold(p, |p, i| p.receive(&ended(i)).run(about(steps.join)).mark(DONE))
    };
    vec![spawner.forever(batch)]
}
