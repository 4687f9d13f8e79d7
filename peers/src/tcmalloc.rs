//! Tcmalloc with its per-CPU caches, in a process in which tcmalloc registers the areas for restartable sequences.
//!
//! A thread has one area for restartable sequences. tcmalloc must register it itself, and writes fields of it that only
//! the kernel may write; but glibc from 2.35 on registers an area first. So a child process runs with glibc's
//! registration switched off and Warmcore on its atomic backend, and measures tcmalloc and glibc's malloc. Warmcore is
//! no variant of this case: Warmcore and tcmalloc can't both use the area, and times of two processes are not compared.
//!
//! On a Zen 4 with kernel 6.18 an allocation and its free take 5.5 ns, and 13 ns with per-thread caches. From kernel
//! 6.19 on tcmalloc may crash; if it does the case is left out.
//!
//! # Source
//! google/tcmalloc `docs/rseq.md`, issues 144 and 292.

use crate::blocks::{malloc_batch, malloc_pair};
use std::alloc::System;
use std::process::{Command, Stdio};
use tcmalloc_better::TCMalloc;
use warmcore_bench::measure::{Effort, Variant, check_interrupted};
use warmcore_bench::{CaseCtx, percpu};
use warmcore_percpu::VARIABLE;
use warmcore_results::{Results, Row};

/// Switches glibc's area off, as MongoDB advises for tcmalloc.
const TUNABLE: (&str, &str) = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");

unsafe extern "C" {
    /// A function of tcmalloc's `cpu_cache.cc` that the crate does not declare.
    safe fn MallocExtension_Internal_GetPerCpuCachesActive() -> bool;
}

/// The name of tcmalloc with the kind of caches that it has in this process.
pub fn name() -> &'static str {
    if MallocExtension_Internal_GetPerCpuCachesActive() { "tcmalloc per CPU" } else { "tcmalloc per thread" }
}

/// The case `peers.freelist.pair.tcmalloc`.
pub fn pair(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    here_or_in_a_child(ctx, || {
        vec![malloc_pair(percpu::MALLOC, false, &System), malloc_pair(name(), false, &TCMalloc)]
    })
}

/// The case `peers.freelist.batch32.tcmalloc`.
pub fn batch32(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    here_or_in_a_child(ctx, || {
        vec![malloc_batch(percpu::MALLOC, false, &System), malloc_batch(name(), false, &TCMalloc)]
    })
}

/// Measures tcmalloc with per-CPU caches: in this process if it has them, else in a child, else not at all.
fn here_or_in_a_child(ctx: &CaseCtx, variants: fn() -> Vec<Variant<'static>>) -> anyhow::Result<Vec<Row>> {
    if MallocExtension_Internal_GetPerCpuCachesActive() {
        return Ok(ctx.interleave(variants())?.rows(percpu::MALLOC, []));
    }
    if std::env::var(TUNABLE.0).is_ok_and(|value| value.contains(TUNABLE.1)) {
        return left_out(ctx, "it keeps per-thread caches even where glibc has no area");
    }
    let file = tempfile::NamedTempFile::new()?;
    let mut child = Command::new(std::env::current_exe()?);
    child
        .args(["--case", ctx.name, "--json"])
        .arg(file.path())
        .env(TUNABLE.0, TUNABLE.1)
        .env(VARIABLE, "atomic");
    child.args((ctx.effort.rounds == Effort::QUICK.rounds).then_some("--quick"));
    let output = child.stdin(Stdio::null()).output()?;
    check_interrupted()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return left_out(ctx, &format!("its process ended with {}: {}", output.status, text.trim()));
    }
    // If the child left the case out, pass on its message; its results have no rows.
    text.lines().filter(|line| line.contains("left out")).for_each(|line| eprintln!("{line}"));
    let results: Results = serde_json::from_slice(&std::fs::read(file.path())?)?;
    Ok(results.rows)
}

fn left_out(ctx: &CaseCtx, why: &str) -> anyhow::Result<Vec<Row>> {
    eprintln!("{}: left out: {why}", ctx.name);
    Ok(Vec::new())
}
