//! The compiler of BPF programs, for the build scripts of this workspace.

use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Newest first: 16 or later knows all BPF instructions in use. Kernels from 6.18 on are tested with clang 19.
const CLANGS: [&str; 9] =
    ["clang-23", "clang-22", "clang-21", "clang-20", "clang-19", "clang-18", "clang-17", "clang-16", "clang"];

/// Returns `$BPF_CLANG`, or the newest clang that starts.
pub fn clang() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("BPF_CLANG") {
        return Ok(path.into());
    }
    let starts = |name: &&&str| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let found = CLANGS.iter().find(starts).map(PathBuf::from);
    found.ok_or_else(|| {
        format!(
            "no clang found (tried {}): install clang-19, or set BPF_CLANG to its path",
            CLANGS.join(", ")
        )
    })
}
