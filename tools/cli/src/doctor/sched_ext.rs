//! The finding on sched_ext: whether this kernel can run a scheduler that is loaded into it, such as `scx_warm`.

use super::{limited, missing, ok};
use std::path::Path;
use warmcore_report::Finding;

const WHAT: &str = "sched_ext";

/// Kernels of Debian whose functions for schedulers have an argument too many, by the beginning of their release: no scheduler that
/// calls these functions loads.
const BROKEN: [&str; 2] = ["7.1.13+deb13", "7.2.11+deb13"];

/// The finding, from `/sys` and the kernel's release.
pub(super) fn find(sys: &Path, release: &str) -> Finding {
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let state = std::fs::read_to_string(sys.join("kernel/sched_ext/state"));
    let needs = "`scx_warm` needs Linux 6.18; all else works without it";
    if BROKEN.iter().any(|broken| release.starts_with(broken)) {
        let fact = "this kernel's build exposes scheduler functions with an argument too many";
        return limited(WHAT, fact, "no scheduler loads on it: take the next version of Debian's kernel");
    }
    let Ok(state) = state else {
        let fact = match version {
            v if v < (6, 12) => "the kernel has none: Linux 6.12 was the first",
            _ => "the kernel was built without CONFIG_SCHED_CLASS_EXT",
        };
        return missing(WHAT, fact, needs);
    };
    if version < (6, 18) {
        return limited(WHAT, "there, of an older interface", needs);
    }
    if !sys.join("kernel/btf/vmlinux").exists() {
        return limited(
            WHAT,
            "there, but the kernel has no BTF (CONFIG_DEBUG_INFO_BTF)",
            "no scheduler can be loaded",
        );
    }
    match state.trim() {
        "disabled" => ok(WHAT, "there; the kernel's own scheduler runs"),
        state => {
            let name = std::fs::read_to_string(sys.join("kernel/sched_ext/root/ops")).unwrap_or_default();
            ok(WHAT, format!("{state}: {} runs", if name.is_empty() { "a scheduler" } else { name.trim() }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_report::State;

    #[test]
    fn each_kernel_gets_its_own_words() {
        let sys = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let file = sys.path().join("kernel").join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        };
        let says = |release: &str| {
            let finding = find(sys.path(), release);
            (finding.state, finding.fact)
        };
        assert!(says("6.1.0-30-amd64").1.contains("6.12 was the first"));
        assert!(says("6.18.15+deb13-cloud-amd64").1.contains("CONFIG_SCHED_CLASS_EXT"));
        write("sched_ext/state", "disabled\n");
        assert!(says("6.12.9").1.contains("older"));
        assert!(says("6.18.15").1.contains("BTF"));
        write("btf/vmlinux", "");
        assert_eq!(
            says("7.2.13+deb14-cloud-amd64"),
            (State::Ok, "there; the kernel's own scheduler runs".into())
        );
        assert!(says("7.2.11+deb13-cloud-amd64").1.contains("argument too many"));
        write("sched_ext/state", "enabled\n");
        write("sched_ext/root/ops", "warm\n");
        assert_eq!(says("7.2.13").1, "enabled: warm runs");
    }
}
