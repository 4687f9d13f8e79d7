//! Compiles `src/bpf/probe.bpf.c` with clang and generates its Rust interface, `probe.skel.rs`.
//!
//! Environment: `WARMCORE_VMLINUX_H`, the C header with the kernel's types; `BPF_CLANG`, the clang to use in place of
//! the newest one that is installed.

#[path = "../clang.rs"]
mod clang;

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;
use std::path::{Path, PathBuf};
use std::{env, fs};

const NO_HEADER: &str = "it is the path of a C header with the kernel's types. `warmcore guest prepare` makes one for \
     each of its kernels; `bpftool btf dump file /sys/kernel/btf/vmlinux format c > vmlinux.h` makes one for the running \
     kernel";

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed=WARMCORE_VMLINUX_H");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=../clang.rs");
    let out = PathBuf::from(
        env::var_os("OUT_DIR").context("OUT_DIR is not set: cargo runs this program and sets it")?,
    );
    let Some(header) = env::var_os("WARMCORE_VMLINUX_H") else {
        bail!("WARMCORE_VMLINUX_H is not set: {NO_HEADER}");
    };
    println!("cargo:rerun-if-changed={}", Path::new(&header).display());
    // The program includes "vmlinux.h", whatever the file's own name is.
    fs::copy(&header, out.join("vmlinux.h"))
        .with_context(|| format!("WARMCORE_VMLINUX_H={header:?} cannot be read: {NO_HEADER}"))?;

    SkeletonBuilder::new()
        .source("src/bpf/probe.bpf.c")
        .clang(clang::clang().map_err(anyhow::Error::msg)?)
        // Kernel headers of 6.19 and later have structs with unnamed members of a named type.
        .clang_args([
            format!("-I{}", out.display()),
            "-fms-extensions".into(),
            "-Wno-microsoft-anon-tag".into(),
            "-Wno-missing-declarations".into(),
        ])
        .build_and_generate(out.join("probe.skel.rs"))
        .context("src/bpf/probe.bpf.c does not compile")
}
