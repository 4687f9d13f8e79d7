//! Runs one part of a bench, as the hidden command of `warmcore` does: `warmcore-bench bench-part JSON`.
//!
//! `cargo xtask compare` builds this program with the crates of two revisions. It has no other dependencies than the
//! benches, so a revision in which other tools differ can be measured by the same benches.

use anyhow::bail;
use warmcore_bench::{part, run_part};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [command, json] if command == part::COMMAND => run_part(json),
        _ => bail!("expected: {} JSON; `warmcore bench` is the command for people", part::COMMAND),
    }
}
