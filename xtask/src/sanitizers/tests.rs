use super::*;
use std::cell::RefCell;

/// A machine on which these calls succeed, and where these parts of paths exist.
fn machine(calls: &[(&str, &str)], there: &[&str]) -> Option<Nightly> {
    find(
        |program, args| {
            let call = format!("{program} {}", args.join(" "));
            calls.iter().find(|(known, _)| *known == call).map(|(_, said)| (*said).to_owned())
        },
        |path| there.iter().any(|part| path == Path::new(part)),
    )
}

/// The names of the steps that run, and of those that don't with the printed reasons.
fn sorted(planned: &[Planned]) -> (Vec<&'static str>, Vec<(&'static str, &str)>) {
    let runs = planned.iter().filter_map(|step| step.as_ref().ok().map(|step| step.name)).collect();
    let skipped = planned.iter().filter_map(|step| step.as_ref().err().map(|(name, why)| (*name, &why[..])));
    (runs, skipped.collect())
}

const SOURCES: &str = "/toolchain/lib/rustlib/src/rust/library/std";

#[test]
fn a_stable_toolchain_alone_runs_nothing_and_each_says_what_to_install() {
    assert_eq!(machine(&[], &[SOURCES]), None);
    let found = machine(&[("rustc --version", "rustc 1.95.0 (59807616e 2026-04-14)")], &[SOURCES]);
    assert_eq!(found, None);
    let planned = plan(true, None);
    let (runs, skipped) = sorted(&planned);
    assert!(runs.is_empty());
    assert_eq!(skipped.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [ADDRESS, THREAD, MIRI]);
    for (name, why) in skipped {
        assert!(why.contains("rustc +nightly") && why.contains("rustup toolchain install"), "{name}: {why}");
    }
}

#[test]
fn a_nightly_without_sources_runs_what_needs_none() {
    let nightly = machine(
        &[
            ("rustc +nightly --version", "rustc 1.97.0-nightly"),
            ("rustc +nightly --print sysroot", "/toolchain"),
        ],
        &[],
    );
    assert_eq!(nightly, Some(Nightly { how: "+nightly ", has_std_sources: false, has_miri: false }));
    let planned = plan(true, nightly.as_ref());
    let (runs, skipped) = sorted(&planned);
    assert_eq!(runs, [ADDRESS]);
    assert!(planned[0].as_ref().unwrap().args.starts_with("+nightly test "));
    let [(THREAD, thread), (MIRI, miri)] = skipped[..] else { panic!("{skipped:?}") };
    assert!(
        thread.contains("--toolchain nightly rust-src") && thread.contains("lib/rustlib/src"),
        "{thread}"
    );
    assert!(miri.contains("--toolchain nightly rust-src miri"), "{miri}");
    // Miri without the sources it builds its std from is no Miri.
    let planned = plan(true, Some(&Nightly { has_miri: true, ..nightly.unwrap() }));
    assert!(sorted(&planned).1[1].1.contains("has no rust-src"), "{:?}", sorted(&planned));
}

#[test]
fn a_whole_nightly_runs_all_and_is_called_by_its_name_or_as_what_there_is() {
    let rustups = [
        ("rustc +nightly --version", "rustc 1.97.0-nightly"),
        ("rustc +nightly --print sysroot", "/toolchain"),
        ("cargo +nightly miri --version", "miri 0.1.0"),
    ];
    let alone = [
        ("rustc --version", "rustc 1.97.0-nightly (x 2026-05-15)"),
        ("rustc --print sysroot", "/toolchain"),
        ("cargo miri --version", "miri 0.1.0"),
    ];
    for (calls, how) in [(&rustups, "+nightly "), (&alone, "")] {
        let nightly = machine(calls, &[SOURCES]);
        assert_eq!(nightly, Some(Nightly { how, has_std_sources: true, has_miri: true }));
        let planned = plan(true, nightly.as_ref());
        let (runs, skipped) = sorted(&planned);
        assert_eq!(runs, [ADDRESS, THREAD, MIRI]);
        assert!(skipped.is_empty());
        for step in planned.iter().flatten() {
            let args = step.args.strip_prefix(how).unwrap_or_else(|| panic!("{}", step.args));
            assert!(args.starts_with("test ") || args.starts_with("miri test "), "{args}");
        }
        assert!(planned[1].as_ref().unwrap().args.contains("-Zbuild-std"));
    }
}

#[test]
fn where_there_is_no_runtime_library_only_miri_runs() {
    let nightly = Nightly { how: "+nightly ", has_std_sources: true, has_miri: true };
    let planned = plan(false, Some(&nightly));
    let (runs, skipped) = sorted(&planned);
    assert_eq!(runs, [MIRI]);
    assert!(skipped.iter().all(|(_, why)| why.contains("x86-64 and aarch64 Linux")), "{skipped:?}");
}

/// Rustup is asked first: its nightly is found even if the default toolchain is a nightly too.
#[test]
fn rustup_is_asked_first() {
    let asked = RefCell::new(Vec::new());
    let found = find(
        |program, args| {
            asked.borrow_mut().push(format!("{program} {}", args.join(" ")));
            Some("rustc 1.97.0-nightly".into())
        },
        |_| false,
    );
    assert_eq!(found.unwrap().how, "+nightly ");
    assert_eq!(asked.borrow()[0], "rustc +nightly --version");
}
