//! Items go through tasks in a row.

use super::clock::Around;
use super::process::Process;
use super::{Done, join};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::io::{PipeReader, PipeWriter, Read, Write};

/// Rows of tasks, connected by pipes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// How many rows.
    pub rows: u64,
    /// Tasks of a row.
    pub stages: u64,
    /// Items that go through each row.
    pub items: u64,
    /// How long a task works on an item.
    pub stage_us: u64,
    /// How long the first task sleeps between two items.
    pub sleep_us: u64,
}

impl Pipeline {
    /// Until all items have come out.
    pub fn run(&self, seed: u64) -> anyhow::Result<Done> {
        let mut tasks = Vec::new();
        for row in 0..self.rows {
            let mut input = None;
            for stage in 0..self.stages {
                let is_last = stage + 1 == self.stages;
                let (next, output) = if is_last {
                    (None, None)
                } else {
                    let (next, output) = std::io::pipe().context("no pipe")?;
                    (Some(next), Some(output))
                };
                tasks.push(self.stage(row, stage, seed, std::mem::replace(&mut input, next), output)?);
            }
        }
        Ok(Done { done: join(tasks)?, of: self.rows * self.items, ..Done::default() })
    }

    /// The first stage has no input, and the last no output.
    fn stage(
        &self,
        row: u64,
        stage: u64,
        seed: u64,
        mut input: Option<PipeReader>,
        mut output: Option<PipeWriter>,
    ) -> anyhow::Result<Process> {
        let Self { items, stage_us, sleep_us, .. } = *self;
        let mut around = Around::of(seed, row * self.stages + stage);
        Process::spawn(&format!("row{row}-{stage}"), move || {
            let mut item = [0; 64];
            for _ in 0..items {
                match &mut input {
                    Some(input) => input.read_exact(&mut item).context("the stage before has ended")?,
                    None => around.sleep(sleep_us),
                }
                around.run(stage_us);
                if let Some(output) = &mut output {
                    output.write_all(&item).context("the next stage has ended")?;
                }
            }
            Ok(if output.is_none() { items } else { 0 })
        })
    }
}
