//! Decides again, with the native copy of the policy, what the BPF program logged, and counts the differences.

use anyhow::{Context, Result};
use libbpf_rs::{MapCore, RingBuffer, RingBufferBuilder};
use serde_json::{Value, json};
use std::cell::Cell;
use std::rc::Rc;

/// A `struct pol_logged` of policy.h, which no Rust code looks into: it is as aligned as its u64s.
type Logged = [u64; 32];

unsafe extern "C" {
    safe fn warm_logged_size() -> u64;
    safe fn warm_replays(logged: &Logged) -> bool;
}

/// The log, and what came of it.
pub struct Replay {
    log: RingBuffer<'static>,
    replayed: Rc<Cell<u64>>,
    different: Rc<Cell<u64>>,
}

impl Replay {
    /// Reads the log in `map`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not map it.
    pub fn new(map: &dyn MapCore) -> Result<Self> {
        let size = warm_logged_size() as usize;
        assert!(size <= size_of::<Logged>(), "a record has {size} bytes");
        let (replayed, different) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let (all, wrong) = (replayed.clone(), different.clone());
        let one = move |record: &[u8]| {
            let mut logged: Logged = [0; 32];
            let words = record.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word));
            logged[..size / 8].iter_mut().zip(words).for_each(|(to, word)| *to = word);
            all.set(all.get() + 1);
            if !warm_replays(&logged) {
                wrong.set(wrong.get() + 1);
                eprintln!("scx_warm: decided otherwise natively: {:?}", &logged[..size / 8]);
            }
            0
        };
        let mut builder = RingBufferBuilder::new();
        builder.add(map, one).context("the log of decisions cannot be read")?;
        let log = builder.build().context("the log of decisions cannot be read")?;
        Ok(Self { log, replayed, different })
    }

    /// Decides again what was logged since the last call.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read.
    pub fn go_on(&self) -> Result<()> {
        self.log.consume().context("the log of decisions cannot be read")
    }

    /// How many decisions were decided again, and how many of them otherwise.
    pub fn json(&self) -> Value {
        json!({"replayed": self.replayed.get(), "different": self.different.get()})
    }
}
