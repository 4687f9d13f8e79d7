//! Fetches kernels and their configurations through apt, without installing anything.

use crate::cache::Cache;
use crate::kernel::{ABOUT, CONFIG, IMAGE, Kernel, numbers, sha256};
use crate::needs::{BOOT, BUILD, FETCH, Need, missing};
use crate::programs;
use crate::rivals::{self, Rival};
use anyhow::{Context, bail, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use warmcore_results::write_whole;

/// The suites that have kernels newer than the machine's.
const SUITES: [&str; 2] = ["trixie-backports", "sid"];

/// Debian's keys; without this file apt takes the keys that it trusts.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The first version that the scheduler can run on.
const FIRST: [u64; 2] = [6, 18];

/// Fetches the newest kernel of each of `versions`, such as `7.2`, or of each minor version from 6.18 if there are none; builds the
/// guest's programs from the checkout at `root`, and then these `rivals`. `step` is told what is being done. Kernels that are there are
/// not fetched again; without `fetches` no other is.
///
/// # Errors
/// Something is missing on this machine (the error names the command that installs it), or a step failed.
pub fn prepare(
    cache: &Cache,
    root: &Path,
    versions: &[String],
    rivals: &[&Rival],
    fetches: bool,
    step: &dyn Fn(&str),
) -> anyhow::Result<()> {
    if let Some(missing) = needed() {
        bail!(missing);
    }
    if fetches {
        fetch(cache, versions, step)?;
    }
    let kernels = cache.kernels();
    let newest = kernels.first().context("no kernel was fetched")?;
    step("the types of the newest kernel");
    let types = types(newest, cache)?;
    programs::build(cache, root, &types, step)?;
    rivals::build(cache, rivals, step)
}

/// Runs the tests of the scheduler in the checkout at `root`, with the types of the newest kernel of the cache: among them a million
/// random wakes, which it has to decide as `warmcore-sched` does.
///
/// # Errors
/// A test fails, or no kernel was fetched.
pub fn test_scheduler(cache: &Cache, root: &Path) -> anyhow::Result<()> {
    let newest = cache.kernels().into_iter().next().context("no kernel was fetched")?;
    programs::test(cache, root, &types(&newest, cache)?)
}

/// What is missing on this machine to boot a guest and to build its programs, in words. `None`: nothing.
pub fn needed() -> Option<String> {
    missing(BOOT.iter().chain(FETCH).chain(BUILD))
}

fn fetch(cache: &Cache, versions: &[String], step: &dyn Fn(&str)) -> anyhow::Result<()> {
    step("the list of packages");
    let apt = Apt::new(cache)?;
    let packages = apt.kernels()?;
    let mut chosen: BTreeMap<Vec<u64>, &str> = BTreeMap::new();
    if versions.is_empty() {
        // Ascending, so that the last of a minor version stays.
        chosen.extend(packages.iter().map(|(version, package)| (version[..2].to_vec(), package.as_str())));
    }
    for version in versions {
        let wanted = numbers(version);
        let found = packages.iter().rfind(|(found, _)| found.starts_with(&wanted));
        let (found, package) = found.with_context(|| {
            let there: Vec<String> = packages.iter().map(|(version, _)| dotted(version)).collect();
            format!("apt offers no kernel {version}; there are {}", there.join(", "))
        })?;
        chosen.insert(found.clone(), package);
    }
    for package in chosen.values() {
        let is_it = |kernel: &Kernel| kernel.package.starts_with(&format!("{package}_"));
        if !cache.kernels().iter().any(|kernel| is_it(kernel) && kernel.config().is_some()) {
            step(package);
            apt.fetch(cache, package).with_context(|| format!("can't fetch {package}"))?;
        }
    }
    Ok(())
}

fn dotted(version: &[u64]) -> String {
    version.iter().map(u64::to_string).collect::<Vec<_>>().join(".")
}

/// apt with a list of sources, of indexes and of packages of its own.
struct Apt {
    options: Vec<String>,
    packages: PathBuf,
}

impl Apt {
    fn new(cache: &Cache) -> anyhow::Result<Self> {
        let (folder, packages) = (cache.folder("apt")?, cache.folder("apt/packages")?);
        cache.folder("apt/lists/partial")?;
        cache.folder("apt/cache/archives/partial")?;
        let sources = folder.join("sources.list");
        let mirror = mirror()?;
        let signed = if Path::new(KEYS).is_file() { format!("[signed-by={KEYS}] ") } else { String::new() };
        let lines: String =
            SUITES.iter().map(|suite| format!("deb {signed}{mirror} {suite} main\n")).collect();
        write_whole(&sources, lines.as_bytes())?;
        let option = |name: &str, path: &Path| format!("-o{name}={}", path.display());
        let options = vec![
            option("Dir::Etc::sourcelist", &sources),
            option("Dir::Etc::sourceparts", Path::new("/dev/null")),
            option("Dir::State::Lists", &folder.join("lists")),
            option("Dir::Cache", &folder.join("cache")),
            // apt would download as the user `_apt`, which may not write there.
            "-oAPT::Sandbox::User=".to_owned(),
        ];
        let apt = Self { options, packages };
        apt.run("apt-get", &["-qq", "update"])?;
        Ok(apt)
    }

    fn run(&self, program: &str, args: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(program)
            .args(&self.options)
            .args(args)
            .current_dir(&self.packages)
            .output()
            .with_context(|| format!("can't run {program}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{program} {}: {}", args.join(" "), errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Packages with a kernel from [`FIRST`] on, by version, ascending. Of a version that has both, the package with the kernel alone.
    fn kernels(&self) -> anyhow::Result<Vec<(Vec<u64>, String)>> {
        let pattern = "^linux-(binary|image)-[0-9].*-cloud-amd64$";
        let text = self.run("apt-cache", &["search", "--names-only", pattern])?;
        Ok(kernels(&text))
    }

    /// Downloads a package; its file's name without the end, and its content.
    fn download(&self, cache: &Cache, package: &str) -> anyhow::Result<(String, TempDir)> {
        self.run("apt-get", &["-qq", "download", package])?;
        let is_it = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{package}_")))
        };
        let files = std::fs::read_dir(&self.packages)?.flatten().map(|file| file.path());
        let file = files.into_iter().find(is_it).context("apt-get download left no file")?;
        let content = tempfile::tempdir_in(cache.folder("apt")?)?;
        let unpacked = Command::new("dpkg-deb")
            .arg("-x")
            .arg(&file)
            .arg(content.path())
            .status()
            .context("can't run dpkg-deb")?;
        ensure!(unpacked.success(), "dpkg-deb -x {} ended with {unpacked}", file.display());
        std::fs::remove_file(&file)?;
        Ok((file.file_stem().unwrap_or_default().to_string_lossy().replace("%3a", ":"), content))
    }

    /// Downloads the package and takes the kernel out of it; its configuration too, or out of the packages that may have it.
    fn fetch(&self, cache: &Cache, package: &str) -> anyhow::Result<()> {
        let (stem, content) = self.download(cache, package)?;
        let image = find(content.path(), &|name| name.starts_with("vmlinuz"))
            .context("the package has no vmlinuz")?;
        let release = package.splitn(3, '-').nth(2).unwrap_or(package).to_owned();
        let folder = cache.folder("kernels")?.join(&release);
        std::fs::create_dir_all(&folder)?;
        write_whole(&folder.join(IMAGE), &std::fs::read(&image)?)?;
        let other = |kind: &str| self.download(cache, &format!("linux-{kind}-{release}")).ok();
        let others = ["base", "image"].into_iter().filter_map(other).map(|(_, content)| content);
        // Only schedulers that read the configuration need it, so a kernel without one is a kernel.
        for content in std::iter::once(content).chain(others) {
            let is_it = |name: &str| name == CONFIG || name.starts_with("config-");
            if let Some(config) = find(content.path(), &is_it) {
                write_whole(&folder.join(CONFIG), &std::fs::read(config)?)?;
                break;
            }
        }
        let hash = sha256(&folder.join(IMAGE))?;
        let kernel = Kernel { release, package: stem, sha256: hash, image: PathBuf::new() };
        // Last: a folder without it is no kernel.
        write_whole(&folder.join(ABOUT), serde_json::to_string_pretty(&kernel)?.as_bytes())?;
        Ok(())
    }
}

/// Reads what `apt-cache search` prints.
fn kernels(text: &str) -> Vec<(Vec<u64>, String)> {
    let names = text.lines().filter_map(|line| line.split(' ').next());
    let mut found: BTreeMap<Vec<u64>, String> = BTreeMap::new();
    for name in names {
        let version = name.splitn(3, '-').nth(2).map(numbers).unwrap_or_default();
        if version.len() < 2 || version[..] < FIRST[..] {
            continue;
        }
        let is_better = |old: &String| !(old.contains("-binary-") && name.contains("-image-"));
        if found.get(&version).is_none_or(is_better) {
            found.insert(version, name.to_owned());
        }
    }
    found.into_iter().collect()
}

/// Debian's mirror that apt uses.
fn mirror() -> anyhow::Result<String> {
    let output = Command::new("apt-get")
        .args(["indextargets", "--format", "$(ORIGIN) $(REPO_URI)", "Created-By: Packages"])
        .output()
        .context("can't run apt-get")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found =
        text.lines().find_map(|line| line.strip_prefix("Debian ").filter(|uri| !uri.contains("security")));
    let no = "apt uses no mirror of Debian here: run `apt-get update`, or give a kernel's file to `guest run --kernel`";
    found.map(str::to_owned).context(no)
}

/// The file with such a name, anywhere below a folder.
fn find(folder: &Path, is_it: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    entries.into_iter().find_map(|entry| {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            return find(&path, is_it);
        }
        is_it(&entry.file_name().to_string_lossy()).then_some(path)
    })
}

/// The kernel's types as a C header, made from its BTF.
fn types(kernel: &Kernel, cache: &Cache) -> anyhow::Result<PathBuf> {
    let header = cache.folder("kernels")?.join(&kernel.release).join("vmlinux.h");
    if header.exists() {
        return Ok(header);
    }
    let image = std::fs::read(&kernel.image)?;
    // The compressed kernel follows the code that unpacks it.
    let begin = image.windows(4).position(|bytes| bytes == [0x28, 0xb5, 0x2f, 0xfd]);
    let begin = begin.with_context(|| format!("{} is not compressed with zstd", kernel.image.display()))?;
    let folder = tempfile::tempdir_in(cache.folder("kernels")?)?;
    let [packed, unpacked] = ["packed", "vmlinux"].map(|name| folder.path().join(name));
    std::fs::write(&packed, &image[begin..])?;
    // What follows the compressed kernel makes zstd fail after it has unpacked all.
    let output = Command::new("zstd").args(["-q", "-d", "-c"]).arg(&packed).output()?;
    std::fs::write(&unpacked, output.stdout)?;
    const BPFTOOL: Need = FETCH[3];
    let output = Command::new(BPFTOOL.found().context("no bpftool")?)
        .args(["btf", "dump", "file"])
        .arg(&unpacked)
        .args(["format", "c"])
        .output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "bpftool finds no types in {}: {}", kernel.release, errors.trim());
    write_whole(&header, &output.stdout)?;
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_with_the_kernel_alone_is_taken() {
        let text = "linux-image-7.2.13+deb14-cloud-amd64 - Linux 7.2.13\n\
                    linux-binary-7.2.13+deb14-cloud-amd64 - Linux 7.2.13\n\
                    linux-image-6.18.15+deb13-cloud-amd64 - Linux 6.18.15\n\
                    linux-image-6.17.13+deb13-cloud-amd64 - Linux 6.17.13\n\
                    linux-image-7.2.9+deb13-cloud-amd64 - Linux 7.2.9\n";
        let found = kernels(text);
        let names: Vec<&str> = found.iter().map(|(_, name)| &name["linux-".len()..]).collect();
        assert_eq!(
            names,
            [
                "image-6.18.15+deb13-cloud-amd64",
                "image-7.2.9+deb13-cloud-amd64",
                "binary-7.2.13+deb14-cloud-amd64"
            ]
        );
    }
}
