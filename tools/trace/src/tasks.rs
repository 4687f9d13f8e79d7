//! Tasks: what has to be remembered of each task that is alive, to link its next poll to its last one.
//!
//! # Cost
//! 32 bytes per task, at most [`TASKS_MAX`] tasks. A task is removed when it ends.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// The most tasks that are remembered. If more are alive, the half that was polled longest ago is forgotten.
const TASKS_MAX: usize = 3_600_000;

/// A CPU's index that is not known.
pub const NO_CPU: u16 = u16::MAX;

/// What is remembered of a task.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// When its last poll ended; before its first poll, when it was spawned.
    pub last_at: u64,
    /// The index of its place.
    pub place: u32,
    /// The index of the CPU of its last poll, or [`NO_CPU`].
    pub cpu: u16,
    /// Whether its spawn or a poll is in the recording.
    pub is_seen: bool,
    /// Whether a poll is in the recording.
    pub is_polled: bool,
}

/// The tasks that are alive.
#[derive(Default)]
pub struct Tasks {
    tasks: HashMap<u32, Task, BuildHasherDefault<TaskHasher>>,
    /// Tasks that were forgotten.
    pub forgotten: u64,
}

impl Tasks {
    /// The task with this number; a new one belongs to `place`.
    #[inline]
    pub fn get(&mut self, task: u32, place: u32) -> &mut Task {
        if self.tasks.len() >= TASKS_MAX {
            self.forget();
        }
        self.tasks.entry(task).or_insert(Task {
            last_at: 0,
            place,
            cpu: NO_CPU,
            is_seen: false,
            is_polled: false,
        })
    }

    pub fn remove(&mut self, task: u32) {
        self.tasks.remove(&task);
    }

    #[cold]
    fn forget(&mut self) {
        let mut times: Vec<u64> = self.tasks.values().map(|task| task.last_at).collect();
        let half = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(half);
        let (median, before) = (*median, self.tasks.len());
        self.tasks.retain(|_, task| task.last_at > median);
        self.forgotten += (before - self.tasks.len()) as u64;
    }
}

/// Hashes a task's number by one multiplication: numbers come from a program that its user records, not from an enemy.
#[derive(Default)]
pub struct TaskHasher(u64);

impl Hasher for TaskHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // The table takes the place from the low bits and a tag from the high ones.
        let product = (self.0 ^ u64::from(number)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }
}
