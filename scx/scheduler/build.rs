//! Compiles the BPF program, the native copy of its policy, and the tables of settings, counts and kfuncs.
//!
//! The tables come from the C headers, which are the only place where a name stands: `settings.h`, `counts.h`, and
//! the `__ksym` declarations and limits of `maps.h`.

#[path = "../clang.rs"]
mod clang;

use libbpf_cargo::SkeletonBuilder;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

const HEADER_HELP: &str = "WARMCORE_VMLINUX_H must be the path of a vmlinux.h, which has the kernel's types. \
    `warmcore guest prepare` makes one for the guest kernels; \
    `bpftool btf dump file /sys/kernel/btf/vmlinux format c > vmlinux.h` makes one of the running kernel";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    println!("cargo:rerun-if-env-changed=WARMCORE_VMLINUX_H");
    println!("cargo:rerun-if-env-changed=BPF_CLANG");
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-changed=../clang.rs");
    println!("cargo:rerun-if-changed=src/policy_shim.c");

    fs::write(out.join("tables.rs"), tables(Path::new("src/bpf"))).expect("OUT_DIR is writable");
    cc::Build::new().file("src/policy_shim.c").include("src/bpf").opt_level(2).compile("warm_policy");

    let header = PathBuf::from(env::var_os("WARMCORE_VMLINUX_H").unwrap_or_else(|| panic!("{HEADER_HELP}")));
    assert!(header.is_file(), "{} is not a file; {HEADER_HELP}", header.display());
    // The program includes it by the name vmlinux.h, whatever it is called.
    fs::copy(&header, out.join("vmlinux.h")).expect("OUT_DIR is writable");
    SkeletonBuilder::new()
        .source("src/bpf/warm.bpf.c")
        .clang(clang::clang().unwrap_or_else(|error| panic!("{error}")))
        .clang_args([
            format!("-I{}", out.display()),
            "-Wno-missing-declarations".into(),
            "-Wno-microsoft-anon-tag".into(),
            "-fms-extensions".into(),
        ])
        .build_and_generate(out.join("warm.skel.rs"))
        .unwrap_or_else(|e| panic!("the BPF program does not compile: {e:#}"));
}

/// Returns the Rust tables of the headers below `dir`.
fn tables(dir: &Path) -> String {
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut text = String::new();
    let settings = entries(&read("settings.h"), "SETTING(");
    writeln!(
        text,
        "/// Every setting, in the order of the program's struct.\npub const SETTINGS: [Setting; {}] = [",
        settings.len()
    )
    .unwrap();
    for s in &settings {
        let [name, default, least, greatest, unit, what] = &s[..] else {
            panic!("settings.h: {s:?} has not 6 fields")
        };
        writeln!(text, "Setting {{ name: {name:?}, default: {default}, least: {least}, greatest: {greatest}, unit: {unit}, what: {what} }},").unwrap();
    }
    let counts = entries(&read("counts.h"), "COUNT(");
    writeln!(
        text,
        "];\n/// Every count, in the order of the program's map.\npub const COUNTS: [Count; {}] = [",
        counts.len()
    )
    .unwrap();
    for c in &counts {
        let [name, what] = &c[..] else { panic!("counts.h: {c:?} has not 2 fields") };
        writeln!(text, "Count {{ name: {name:?}, what: {what} }},").unwrap();
    }
    let maps = read("maps.h");
    writeln!(text, "];\n/// The kernel functions without which the program does not load.\npub const KFUNCS: &[&str] = &[").unwrap();
    for line in maps.lines().filter(|l| l.contains(" __ksym;")) {
        let name = line.split('(').next().and_then(|l| l.split([' ', '*']).next_back());
        writeln!(text, "{:?},", name.unwrap_or_else(|| panic!("maps.h: no name in {line}"))).unwrap();
    }
    writeln!(text, "];").unwrap();
    for name in ["MAX_CPUS", "MAX_SHARDS"] {
        let value = maps
            .lines()
            .find_map(|l| l.strip_prefix(&format!("#define {name} ")))
            .unwrap_or_else(|| panic!("maps.h: no {name}"));
        writeln!(text, "/// A limit of the program's tables.\npub const {name}: usize = {value};").unwrap();
    }
    text
}

/// Returns the comma-separated fields of the lines `PREFIX...)`. A field may be a string with commas.
fn entries(text: &str, prefix: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter_map(|l| l.strip_prefix(prefix)?.strip_suffix(')'));
    let fields = |line: &str| {
        let (mut fields, mut is_quoted) = (vec![String::new()], false);
        for c in line.chars() {
            is_quoted ^= c == '"';
            match c {
                ',' if !is_quoted => fields.push(String::new()),
                c => fields.last_mut().expect("it starts with one").push(c),
            }
        }
        fields.iter().map(|f| f.trim().to_string()).collect()
    };
    lines.map(fields).collect()
}
