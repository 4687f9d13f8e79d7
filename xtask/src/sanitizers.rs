//! AddressSanitizer, ThreadSanitizer and Miri over the crates whose code is unsafe or lock-free.
//!
//! | | over | needs |
//! |---|---|---|
//! | AddressSanitizer | percpu, cid, budget, driver, runtime, http | a nightly toolchain |
//! | ThreadSanitizer | the same | nightly with the sources of std, which is built again: else its locks count as races |
//! | Miri | line, cid, sched | nightly with the component miri and the sources of std |
//!
//! A step whose tool is missing is skipped, and how to install the tool is printed. This program installs no tool.
//!
//! # Limits
//!
//! Miri lacks the system call by which percpu, budget and runtime reserve memory.
//! No sanitizer checks the loads and stores of restartable sequences, which are `asm!`. AddressSanitizer checks all
//! other Rust code of these crates. ThreadSanitizer runs on the atomic backend and the strict stocks, which use no
//! `asm!`. The tests link mimalloc, which is C and is not sanitized.

use crate::test::{Level, Step, Work, step};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A nightly toolchain, and which of its components are installed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Nightly {
    /// The argument before cargo's command: `+nightly `, or nothing if `rustc` without an argument is a nightly.
    how: &'static str,
    has_std_sources: bool,
    has_miri: bool,
}

/// A step, or its name and the reason why it cannot run here.
pub type Planned = Result<Step, (&'static str, String)>;

/// The steps for this machine.
pub fn steps() -> Vec<Planned> {
    let ask = |program: &str, args: &[&str]| {
        // Rustup installs a missing toolchain unless this variable is 0.
        let ran =
            Command::new(program).args(args).env("RUSTUP_AUTO_INSTALL", "0").stderr(Stdio::null()).output();
        let output = ran.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let has_runtime = cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));
    plan(has_runtime, find(ask, Path::exists).as_ref())
}

/// Finds a nightly toolchain: rustup's `+nightly`, or else the `rustc` that runs without an argument. `ask` runs a
/// program and returns its output, if the program succeeds.
fn find(ask: impl Fn(&str, &[&str]) -> Option<String>, exists: impl Fn(&Path) -> bool) -> Option<Nightly> {
    let how = if ask("rustc", &["+nightly", "--version"]).is_some() {
        "+nightly "
    } else if ask("rustc", &["--version"])?.contains("-nightly") {
        ""
    } else {
        return None;
    };
    let with = |args: &[&'static str]| how.split_whitespace().chain(args.iter().copied()).collect::<Vec<_>>();
    let sysroot = ask("rustc", &with(&["--print", "sysroot"]))?;
    Some(Nightly {
        how,
        has_std_sources: exists(&Path::new(&sysroot).join("lib/rustlib/src/rust/library/std")),
        has_miri: ask("cargo", &with(&["miri", "--version"])).is_some(),
    })
}

const ADDRESS: &str = "AddressSanitizer";
const THREAD: &str = "ThreadSanitizer";
const MIRI: &str = "Miri";

/// The steps that this toolchain can run, and for the other steps the reason why it can't.
fn plan(has_runtime: bool, nightly: Option<&Nightly>) -> Vec<Planned> {
    const CRATES: &str = "-p warmcore-percpu -p warmcore-cid -p warmcore-budget -p warmcore-driver \
                          -p warmcore-runtime -p warmcore-http";
    let Some(nightly) = nightly else {
        let why = "no nightly toolchain: neither `rustc +nightly` nor `rustc` is one; \
                   `rustup toolchain install nightly --component rust-src,miri`";
        return [ADDRESS, THREAD, MIRI].map(|name| Err((name, why.to_owned()))).into();
    };
    let made = |name, env, args: String| Step {
        env,
        // Leaked, once for each of these steps, because a step's arguments are static.
        args: format!("{}{args}", nightly.how).leak(),
        // Miri has a separate cargo command, which builds and runs the tests.
        work: match args.starts_with("test ") {
            true => Work::Tests { also_documentation: false, leaves_out_long: false },
            false => Work::Cargo,
        },
        // Sanitized code is about ten times slower, and one test may be most of a file.
        limit: Duration::from_hours(2),
        ..step(name, Level::All, 1800, "")
    };
    let add = |component: &str| match nightly.how {
        "" => format!("install your toolchain's {component}"),
        _ => format!("`rustup component add --toolchain nightly {component}`"),
    };
    let no_runtime = "its runtime library exists for x86-64 and aarch64 Linux only";
    // With `--target`, build scripts and procedural macros are not sanitized.
    let address = match has_runtime {
        false => Err((ADDRESS, no_runtime.to_owned())),
        true => Ok(made(
            ADDRESS,
            &[
                ("RUSTFLAGS", "-Zsanitizer=address"),
                ("CARGO_TARGET_DIR", "target/address"),
                // Tests leak on purpose, and allocate more memory than there is.
                ("ASAN_OPTIONS", "detect_leaks=0:allocator_may_return_null=1"),
            ],
            // The sanitizer's allocator takes locks that a fork leaves held in the child.
            format!(
                "test --release --no-fail-fast --target host-tuple --lib --tests {CRATES} \
                 -- --skip children_of_fork_allocate_whatever_lock_was_held"
            ),
        )),
    };
    let thread = match (has_runtime, nightly.has_std_sources) {
        (false, _) => Err((THREAD, no_runtime.to_owned())),
        (_, false) => Err((
            THREAD,
            format!(
                "no lib/rustlib/src in the nightly toolchain, and std is to be rebuilt: {}",
                add("rust-src")
            ),
        )),
        (true, true) => Ok(made(
            THREAD,
            &[
                ("RUSTFLAGS", "-Zsanitizer=thread"),
                ("CARGO_TARGET_DIR", "target/thread"),
                ("WARMCORE_PERCPU", "atomic"),
                ("WARMCORE_BUDGET", "atomic"),
            ],
            format!("test --release --no-fail-fast -Zbuild-std --target host-tuple --lib --tests {CRATES}"),
        )),
    };
    let mut steps = vec![address, thread];
    if nightly.has_miri && nightly.has_std_sources {
        // The code asks the system for its CPUs.
        let env = &[("MIRIFLAGS", "-Zmiri-disable-isolation"), ("CARGO_TARGET_DIR", "target/miri")];
        let lib = "miri test --lib -p warmcore-line -p warmcore-cid -p warmcore-sched".to_owned();
        steps.push(Ok(made(MIRI, env, lib)));
    } else {
        let what = if nightly.has_miri { "rust-src" } else { "miri" };
        steps.push(Err((MIRI, format!("the nightly toolchain has no {what}: {}", add("rust-src miri")))));
    }
    steps
}

#[cfg(test)]
mod tests;
