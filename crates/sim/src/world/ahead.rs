//! Ahead: lines that the next events will need are read while this one happens.
//!
//! Model.   Events come in the order of time, their CPUs and tasks in none: on a large machine each is a miss. Those
//!          who may be next stand at the top of the heap. A word of each of their CPUs' lines is read; of the second
//!          those of the task that is on, whose number came with its CPU a turn before; of the first its step,
//!          and the task that this one wakes. Nothing waits for what is read, so the misses lie beside each other,
//!          where events would have met them one by one.
//! Number.  Twelve words of CPUs and ten of tasks an event.
//! Writers. None: no state changes.

use super::observe::Observer;
use super::scene::Cpu;
use super::task::{NONE, Task};
use super::{Target, World, kind};
use crate::program::Op;
use std::hint::black_box;
use warmcore_place::Policy;

/// A word of each line of a CPU that a switch needs.
#[inline(always)]
fn read_cpu(cpu: &Cpu) {
    black_box(cpu.left ^ cpu.on_since ^ cpu.hot_until);
}

/// A word of each line of a task that a wake and a switch need.
#[inline(always)]
fn read_task(task: &Task) {
    let clocks = task.queued_at ^ task.last_ran ^ task.counts.run_ns;
    black_box(u64::from(task.home) ^ clocks ^ task.permits as u64);
}

impl<P: Policy, O: Observer> World<P, O> {
    /// An event was taken: those that may be next are made ready, each a stage further the sooner it is due.
    #[inline]
    pub(super) fn look_ahead(&self) {
        let scene = &self.scene;
        let mut soon = [(u64::MAX, NONE); 4];
        for ((at, class, Target { index, .. }), slot) in self.events.soon().zip(&mut soon) {
            if matches!(class, kind::TIMER | kind::BEGIN) {
                read_task(&scene.tasks[index as usize]);
            } else {
                read_cpu(&scene.cpus[index as usize]);
                *slot = (at.0, index);
            }
        }
        let [a, b, c, d] = soon;
        let (a, b) = (a.min(b), a.max(b));
        let (c, d) = (c.min(d), c.max(d));
        let (first, second) = (a.min(c), b.min(d).min(a.max(c)));
        let on = |(_, cpu): (u64, u32)| {
            let cpu = scene.cpus.get(cpu as usize)?;
            scene.tasks.get(cpu.current as usize)
        };
        if let Some(task) = on(second) {
            read_task(task);
        }
        if let Some(task) = on(first)
            && let Some(Op::Wake { task: whom, .. }) = self.op_at(task.code, task.step)
        {
            read_task(&scene.tasks[whom.0 as usize]);
        }
    }
}
