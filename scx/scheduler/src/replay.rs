//! Decides again, with the native copy of the policy, what the BPF program logged, and counts the differences.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::rc::Rc;

/// A `struct pol_logged` of policy.h: the number of the decision, the answer, and what it was made from.
type Logged = [u64; 32];

/// The names of `enum pol_decision`, in its order.
const DECISIONS: [&str; 8] =
    ["place", "look", "hand", "wait_home", "wait_llc", "steal", "balance", "preempt"];

/// So many differences are printed.
const PRINTED_MAX: u64 = 10;

unsafe extern "C" {
    safe fn warm_logged_size() -> u64;
    safe fn warm_replay(logged: &Logged) -> u64;
}

/// How many decisions were made again, by number, and how many of them had another answer.
#[derive(Debug, Clone, Default)]
pub struct Replayed(Rc<RefCell<([u64; DECISIONS.len()], u64)>>);

impl Replayed {
    fn one(&self, record: &[u8]) {
        let mut logged: Logged = [0; 32];
        let words = record.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
        logged.iter_mut().zip(words).for_each(|(to, word)| *to = word);
        let [which, answer, ..] = logged;
        let Some(name) = DECISIONS.get(which as usize) else { return };
        let again = warm_replay(&logged);
        let (replayed, different) = &mut *self.0.borrow_mut();
        replayed[which as usize] += 1;
        if again != answer {
            *different += 1;
            if *different <= PRINTED_MAX {
                let from = &logged[2..warm_logged_size() as usize / 8];
                eprintln!(
                    "scx_warm: {name} was decided as {answer} in the kernel and is {again} natively, from {from:?}"
                );
            }
        }
    }

    /// The numbers, by decision.
    pub fn json(&self) -> Value {
        let (replayed, different) = &*self.0.borrow();
        let made = DECISIONS.iter().zip(replayed).filter(|(_, number)| **number > 0);
        let made: Map<_, _> = made.map(|(name, number)| ((*name).to_owned(), json!(number))).collect();
        json!({"different": different, "replayed": made})
    }
}

/// The log of a loaded program.
pub struct Replay(RingBuffer<'static>);

impl Replay {
    /// Reads the log in `map`, and counts in `replayed`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not map it.
    pub fn new(map: &dyn MapCore, replayed: Replayed) -> Result<Self> {
        let size = warm_logged_size() as usize;
        assert!(size <= size_of::<Logged>(), "a record has {size} bytes");
        let mut builder = RingBufferBuilder::new();
        let one = move |record: &[u8]| {
            replayed.one(record);
            0
        };
        builder.add(map, one).context("the log of decisions cannot be read")?;
        Ok(Self(builder.build().context("the log of decisions cannot be read")?))
    }

    /// Decides again what was logged since the last call. If the log cannot be read, the scheduler goes on.
    pub fn go_on(&self) {
        if let Err(error) = self.0.consume() {
            eprintln!("scx_warm: the log of decisions cannot be read: {error}");
        }
    }
}
