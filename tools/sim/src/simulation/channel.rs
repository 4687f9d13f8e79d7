//! Channel: a bounded queue of messages with many senders and one receiver.
//!
//! A sender first reserves room and then sends; it waits while there is no room, first come, first served. The receiver
//! waits while there is no message. Taking a message makes room: the room goes to the first sender that waits, which is
//! woken; a sender that comes later waits behind it. A message wakes the receiver only if the receiver waits. So a
//! receiver that is woken once may find many messages.
//!
//! The lines of a message move from its sender's CPU to its receiver's (`Settings::calls`).
//!
//! Each operation of a task also counts against the budget of its poll (`Settings::op_budget`): a task that has used it
//! up yields before the next operation.
//!
//! # Source
//!
//! tokio's `sync::mpsc` (its semaphore and its waker) and `task::coop`.

use super::Simulation;
use super::scheduler::Scheduler;
use super::step::StepOutcome;
use super::task::{NONE, TaskState, WaitQueue};
use crate::trace::{Observer, SwitchReason};
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// A channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// How many messages it holds; 0 until a sender has named that.
    room: u32,
    /// Places that are neither taken by a message nor reserved.
    free: u32,
    /// Messages that wait: the CPU on which each was sent.
    messages: VecDeque<u32>,
    /// The CPU on which the last message was received.
    received_on: u32,
    /// The wait queues of the senders and of the receiver.
    senders: u32,
    receiver: u32,
}

impl Channel {
    /// An empty channel with the wait queues of `name`, which are appended to `wait_queues`.
    pub(crate) fn new(name: &str, wait_queues: &mut Vec<WaitQueue>) -> Self {
        let mut queue = |what: &str| {
            wait_queues.push(WaitQueue::new(format!("{what} {name}")));
            wait_queues.len() as u32 - 1
        };
        let (senders, receiver) = (queue("room in"), queue("a message in"));
        Self { room: 0, free: 0, messages: VecDeque::new(), received_on: NONE, senders, receiver }
    }

    /// Sets how many messages it holds, at the first sender. 0: the caller does not know.
    pub(crate) fn set_room(&mut self, room: u32) {
        debug_assert!(
            room == 0 || self.room == 0 || self.room == room,
            "senders name {} and {room}",
            self.room
        );
        if self.room == 0 {
            (self.room, self.free) = (room, room);
        }
    }
}

/// 1 if a channel's lines move from the one CPU to the other, else 0. Those of threads outside are not known.
fn moves(from: u32, to: u32) -> u64 {
    u64::from(from != to && from != NONE && to != NONE)
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
    /// Takes an operation from the budget of the task's poll. The task yields if none is left.
    pub(super) fn spend_op(&mut self, cpu: u32, id: u32) -> StepOutcome {
        let Some(budget) = self.settings.op_budget else { return StepOutcome::Run(0) };
        let task = self.state.task(id);
        if task.ops < budget || task.is_outside {
            task.ops += 1;
            return StepOutcome::Run(0);
        }
        S::prepare_yield(self, cpu);
        StepOutcome::Switch(SwitchReason::Runnable)
    }

    /// Reserves room for a message, or waits until a receiver makes room for this task.
    pub(super) fn reserve(&mut self, id: u32, channel: u32) -> StepOutcome {
        let at = &mut self.channels[channel as usize];
        if at.free > 0 {
            at.free -= 1;
            return StepOutcome::Run(0);
        }
        let senders = at.senders;
        self.block_on(id, senders)
    }

    /// Sends a message for which there is room. Returns the cost of waking the receiver. To a socket, the driver of the
    /// receiver's runtime wakes it.
    pub(super) fn send(&mut self, cpu: u32, channel: u32, is_socket: bool) -> u64 {
        let at = &mut self.channels[channel as usize];
        at.messages.push_back(cpu);
        let receiver = at.receiver;
        if !is_socket {
            let moved = moves(at.received_on, cpu) * self.settings.calls.send_moved;
            return moved + self.wake_waiters(cpu, receiver, 1);
        }
        if let Some(waiter) = self.wait_queues[receiver as usize].pop(&self.state.tasks) {
            if self.state.tasks[waiter as usize].is_outside {
                self.wake_from(waiter, cpu, false);
            } else {
                S::expire(self, waiter);
            }
        }
        0
    }

    /// Waits until there is a message.
    pub(super) fn await_message(&mut self, id: u32, channel: u32) -> StepOutcome {
        let at = &self.channels[channel as usize];
        if !at.messages.is_empty() {
            return StepOutcome::Run(0);
        }
        let receiver = at.receiver;
        self.block_on(id, receiver)
    }

    /// Takes a message, and gives its room to the first sender that waits. Returns the cost of waking that sender.
    pub(super) fn take_message(&mut self, cpu: u32, channel: u32) -> u64 {
        let at = &mut self.channels[channel as usize];
        let sent_on = at.messages.pop_front().unwrap_or(NONE);
        at.received_on = cpu;
        let moved = moves(sent_on, cpu) * self.settings.calls.receive_moved;
        let senders = at.senders;
        if self.wait_queues[senders as usize].waiting == 0 {
            self.channels[channel as usize].free += 1;
            return moved;
        }
        moved + self.wake_waiters(cpu, senders, 1)
    }

    fn block_on(&mut self, id: u32, wait_queue: u32) -> StepOutcome {
        let state: TaskState = self.push_waiter(id, wait_queue);
        self.state.task(id).state = state;
        StepOutcome::Switch(SwitchReason::Blocked)
    }
}
