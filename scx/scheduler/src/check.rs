//! What the kernel must have before the program is loaded: sched_ext, BTF, no other scheduler, and every kfunc.
//!
//! Debian's 7.1.13~bpo13 and 7.2.11~bpo13 have kfuncs whose hidden argument is visible in BTF, without the `_impl`
//! twins that go with it. The verifier then expects an argument that no program can pass, so no scheduler loads.

use crate::tables::KFUNCS;
use anyhow::{Context, Result, anyhow, bail};
use libbpf_rs::btf::types::{Func, FuncProto};
use libbpf_rs::btf::{Btf, ReferencesType};
use std::fs;
use std::path::Path;

const SCHED_EXT: &str = "/sys/kernel/sched_ext";
const BTF: &str = "/sys/kernel/btf/vmlinux";

/// One check: what it looked at, and what it found.
#[derive(Debug)]
pub struct Check {
    /// What was checked, in a few words.
    pub what: &'static str,
    /// What was found, or what is wrong and what to do.
    pub outcome: Result<String>,
}

/// Runs all checks. Those that need BTF fail with the reason if there is none.
pub fn all() -> Vec<Check> {
    let btf = btf();
    let kfuncs = match &btf {
        Ok(btf) => kfuncs(btf),
        Err(e) => Err(anyhow!("not checked: {e:#}")),
    };
    vec![
        Check { what: "sched_ext", outcome: sched_ext() },
        Check { what: "BTF", outcome: btf.map(|_| format!("{BTF} is readable")) },
        Check { what: "no other scheduler", outcome: is_free() },
        Check { what: "kfuncs", outcome: kfuncs },
    ]
}

/// Runs all checks and returns the first failure.
///
/// # Errors
/// Returns the failed check with what to do.
pub fn require() -> Result<()> {
    all()
        .into_iter()
        .try_for_each(|c| c.outcome.map(drop).with_context(|| format!("check failed: {}", c.what)))
}

fn sched_ext() -> Result<String> {
    if !Path::new(SCHED_EXT).is_dir() {
        bail!(
            "{SCHED_EXT} does not exist: this kernel has no sched_ext; Linux 6.18 or later with CONFIG_SCHED_CLASS_EXT=y is needed"
        );
    }
    Ok(format!("{SCHED_EXT} exists"))
}

fn btf() -> Result<Btf<'static>> {
    fs::File::open(BTF).with_context(|| {
        format!("{BTF} cannot be read: the kernel needs CONFIG_DEBUG_INFO_BTF=y, and the loader root")
    })?;
    Btf::from_vmlinux().with_context(|| format!("{BTF} cannot be parsed"))
}

fn is_free() -> Result<String> {
    let read = |name: &str| fs::read_to_string(Path::new(SCHED_EXT).join(name)).map(|t| t.trim().to_string());
    let state = read("state").with_context(|| format!("{SCHED_EXT}/state cannot be read"))?;
    if state != "disabled" {
        let ops = read("root/ops").unwrap_or_else(|_| "a scheduler".into());
        bail!(
            "`{ops}` is {state}: one sched_ext scheduler runs at a time; stop it first, for example with `systemctl stop scx`"
        );
    }
    Ok("sched_ext is free".into())
}

fn kfuncs(btf: &Btf<'_>) -> Result<String> {
    for name in KFUNCS {
        let Some(func) = btf.type_by_name::<Func<'_>>(name) else {
            bail!("the kernel has no kfunc {name}: scx_warm was built for Linux 6.18 and later");
        };
        let proto = FuncProto::try_from(func.referenced_type())
            .map_err(|_| anyhow!("the BTF of {name} is not that of a function"))?;
        let has_hidden = proto.iter().any(|p| p.name.is_some_and(|n| n.to_string_lossy().starts_with("aux")));
        if has_hidden && btf.type_by_name::<Func<'_>>(&format!("{name}_impl")).is_none() {
            bail!(
                "the kfunc {name} shows a hidden argument and has no {name}_impl, so no sched_ext scheduler that uses it loads. \
                 Debian's 7.1.13~bpo13 and 7.2.11~bpo13 are built so: install another kernel, for example 7.2.13 or 6.18"
            );
        }
    }
    Ok(format!("all {} are in the kernel's BTF", KFUNCS.len()))
}
