//! Tests of `warmcore guest` without a guest: its lists, and arguments that are refused. `cargo xtask guest` boots one.

use std::process::{Command, Output};

fn guest(args: &[&str]) -> Output {
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_warmcore"));
    command.arg("guest").args(args).arg("--cache").arg(cache.path()).current_dir(cache.path());
    command.output().unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = guest(args);
    assert!(!output.status.success(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_list_names_scenarios_and_says_that_no_kernel_is_there() {
    let output = guest(&["list"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(text.contains("rrj ") && text.contains("hotplug") && text.contains("guest prepare"), "{text}");
    assert!(text.contains("`warmcore guest prepare --rival scx_rusty`"), "{text}");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_booted() {
    for (args, word) in [
        (&["run", "rrx"][..], "did you mean"),
        (&["run", "rrj"], "no kernel was fetched"),
        (&["run", "rrj", "--kernel", "7.2"], "`warmcore guest prepare --kernel 7.2` fetches one"),
        (&["run", "rrj", "--kernel", "/no/such/vmlinuz"], "is no file"),
        (&["run", "rrj", "--scheduler", "eevdf,slice=1"], "has no settings here"),
        (&["run", "no-such-file.toml"], "can't read no-such-file.toml"),
        (&["compare", "--seeds", "0"], "0 is not in 1..=1000"),
        (&["prepare"], "is in no checkout"),
        (&["prepare", "--rival", "scx_rust"], "no rival is called scx_rust"),
    ] {
        let said = refused(args);
        assert!(said.contains(word), "{args:?}: {said}");
    }
}
