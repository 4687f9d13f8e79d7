//! The resident memory of this process.
//!
//! Source: proc(5), `/proc/pid/smaps_rollup`.

use anyhow::Context;

/// Returns the resident memory of this process, in bytes.
pub fn resident_process_bytes() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").context("can't tell the memory in use")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/self/smaps_rollup names no Rss")? * 1024)
}
