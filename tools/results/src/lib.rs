//! The results of a command that measures, in the format of its `--json FILE`.
//!
//! A row is one metric of one variant in one case, with its unit and a 95 % interval. A ratio row compares two variants
//! slice by slice. With 100 slices of 2 ms the median of a ratio has an error of about 2 % on a quiet machine.
//!
//! Source: `docs/json.md` describes the schema; a test in `tests.rs` compares its lists of fields with the types here.

pub mod looks;
pub mod names;
pub mod printable;
pub mod system;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use warmcore_sys::files;

/// The version of the schema. It increases when a field changes its meaning or is removed.
pub const SCHEMA: u32 = 3;

/// A row is `noisy` if its 95 % interval reaches further from the median than this share of the median, to either side.
pub const NOISY_ABOVE: f64 = 0.10;

/// The results of one command on one machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Which measurement this is: `percpu`, `false-sharing`, `cid`, `budget`, `wake`, `http`, `topo-probe`, `peers`,
    /// `shapes`, `programs`, `compare`.
    pub what: String,
    /// The command that repeats it.
    pub command: String,
    /// When the measurement began, UTC, RFC 3339.
    pub when: String,
    /// The machine on which the command ran.
    pub machine: HostInfo,
    /// How per-CPU data was kept: `rseq (areas by glibc)`, `rseq (own areas)`, `atomic: why`, `plain: why`.
    #[serde(alias = "mode")] // schema 2
    pub percpu_backend: String,
    /// The load of the machine during the measurement.
    pub load: Load,
    /// What was measured.
    pub rows: Vec<Row>,
    /// Which id each CPU had over time, per policy, if that was recorded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timelines: Vec<Timeline>,
}

/// The properties of the machine on which results may depend.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostInfo {
    /// The processor's name, as the kernel reports it; on Arm its part number; the architecture if there is neither.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// libc and its version.
    pub libc: String,
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// The number of CPUs that this process may use.
    pub cpus: u32,
    /// CPUs this process may use, in the kernel's list format.
    pub allowed: String,
    /// The hypervisor, if the CPU says there is one.
    pub hypervisor: Option<String>,
}

/// The load of the machine during the measurement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Load {
    /// Load average over one minute, before the run; 0 if it can't be read.
    pub loadavg_1m: f64,
    /// Share of all CPU time that the hypervisor gave to other machines during the run, 0 to 1.
    pub steal_share: f64,
    /// Share of all CPU time during the run, 0 to 1, that was neither idle, nor stolen, nor used by this process or by
    /// children that it has waited for.
    pub others_share: f64,
}

/// A run is marked as disturbed if other processes used a larger share of all CPU time than this: its numbers are then
/// not reliable.
pub const OTHERS_MAX: f64 = 0.10;

impl Load {
    /// Whether other processes used more than [`OTHERS_MAX`].
    pub fn is_disturbed(&self) -> bool {
        self.others_share > OTHERS_MAX
    }
}

/// One metric of one variant in one case.
///
/// In a row that [`Row::quantile`] or [`Row::exact`] made, `median` is that quantile or count, and `p25`, `min` and
/// `max` are equal to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The case: `counter.add`, `false-sharing`.
    pub case: String,
    /// The variant that was measured in the case: `warmcore rseq`, `relaxed atomic`.
    pub variant: String,
    /// `time`, `ratio`, `resident`, or what else was timed or counted: `writer time`, `own area`.
    pub metric: String,
    /// `ns`, `x`, `pages`, `%`, `cycles`, `k/s`, `ms`, or what was counted: `units`, `refusals`.
    pub unit: String,
    /// The first quartile: a quarter of the slices have about this value or less. Interpolated.
    pub p25: f64,
    /// The median of the slices, interpolated.
    pub median: f64,
    /// The lowest slice.
    pub min: f64,
    /// The highest slice.
    pub max: f64,
    /// The number of slices, or of the samples or things over which a count was made.
    pub n: u64,
    /// Whether the 95 % interval reaches more than 10 % away from the median, to either side.
    pub noisy: bool,
    /// The 95 % interval of the median, or in a row of [`Row::quantile`] of that quantile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci95: Option<[f64; 2]>,
    /// In a ratio: the variant in the denominator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The promise about this row, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

/// A promise: the bound that a row should meet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// `at least` or `at most`.
    pub kind: Bound,
    /// The promised value, in the row's unit.
    pub value: f64,
    /// Whether the row keeps the promise. Reports compute it again, since files of older versions don't have it.
    #[serde(default)]
    pub standing: Standing,
}

/// Whether a row keeps its promise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The median is on the good side, and so is all of its interval.
    Met,
    /// The median is on the wrong side, and so is all of its interval.
    Missed,
    /// The interval has values on both sides of the bound.
    #[default]
    Undecided,
}

impl Standing {
    /// A word for a sentence.
    pub fn word(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Undecided => "undecided",
        }
    }

    /// A sign for a cell of a table.
    pub fn sign(self) -> &'static str {
        match self {
            Self::Met => "✓",
            Self::Missed => "✕",
            Self::Undecided => "~",
        }
    }
}

impl Target {
    /// Whether `row` keeps this promise.
    pub fn standing(&self, row: &Row) -> Standing {
        let is_good = |n: f64| match self.kind {
            Bound::AtLeast => n >= self.value,
            Bound::AtMost => n <= self.value,
        };
        let [low, high] = row.ci95.unwrap_or([row.median, row.median]);
        match [low, row.median, high].map(is_good) {
            [true, true, true] => Standing::Met,
            [false, false, false] => Standing::Missed,
            _ => Standing::Undecided,
        }
    }
}

/// Which side of a target's value is the good side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The row should be this or more.
    AtLeast,
    /// The row should be this or less.
    AtMost,
}

/// The ids that CPUs had in one process or tenant, in simulated time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// The policy that chose the ids: `cache-local`.
    pub policy: String,
    /// When the timeline ends; it begins at 0.
    pub end_ms: u32,
    /// A lane for each CPU.
    pub lanes: Vec<Lane>,
}

/// One CPU of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lane {
    /// The CPU's number.
    pub cpu: u32,
    /// When a task ran, and with which id.
    pub bursts: Vec<Span>,
    /// When the CPU had an id, whether or not a task ran.
    pub kept: Vec<Span>,
}

/// An id, and when a CPU used it or kept it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The id.
    pub cid: u32,
    /// When the span begins.
    pub from_ms: u32,
    /// When the span ends; equal to `from_ms` if it was shorter than a millisecond.
    pub to_ms: u32,
}

impl Row {
    /// Makes the row of a count: `p25`, `median`, `min`, `max` and the interval are `value`; `n` is the number of
    /// things over which it was counted.
    pub fn exact(case: &str, variant: &str, metric: &str, unit: &str, value: f64, n: u64) -> Self {
        Self { n, ..Self::of(case, variant, metric, unit, &[value]) }
    }

    /// Makes the row of `samples`, usually one per slice. Panics if there are none: a case without a slice is a bug in
    /// the case.
    pub fn of(case: &str, variant: &str, metric: &str, unit: &str, samples: &[f64]) -> Self {
        assert!(!samples.is_empty(), "{case}/{variant}: no slice was measured");
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let median = quantile(&sorted, 0.5);
        let row = Self {
            case: case.into(),
            variant: variant.into(),
            metric: metric.into(),
            unit: unit.into(),
            p25: quantile(&sorted, 0.25),
            median,
            min: sorted[0],
            max: sorted[sorted.len() - 1],
            n: sorted.len() as u64,
            noisy: false,
            ci95: None,
            over: None,
            target: None,
        };
        row.with_interval(&sorted, 0.5)
    }

    /// Makes a row that has the quantile `q` of the samples as its `median`, with the interval of that quantile. Panics
    /// if there are no samples.
    pub fn quantile(case: &str, variant: &str, metric: &str, unit: &str, samples: &[f64], q: f64) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let value = sorted[(q * (sorted.len() - 1) as f64).round() as usize];
        Self::exact(case, variant, metric, unit, value, sorted.len() as u64).with_interval(&sorted, q)
    }

    /// Sets the 95 % interval of the quantile `q` of the sorted samples, and whether the row is noisy.
    fn with_interval(self, sorted: &[f64], q: f64) -> Self {
        self.with_ci(ranks_95(sorted.len(), q).map(|rank| sorted[rank]))
    }

    /// Sets the interval, and whether the row is noisy.
    pub(crate) fn with_ci(self, ci: [f64; 2]) -> Self {
        let noisy = ci[0] < self.median * (1.0 - NOISY_ABOVE) || ci[1] > self.median * (1.0 + NOISY_ABOVE);
        Self { noisy, ci95: Some(ci), ..self }
    }

    /// Makes the row of the ratio `variant ÷ over`, from slices of the same rounds. Panics if the numbers of slices
    /// differ or are 0.
    pub fn ratio(case: &str, variant: &str, over: &str, above: &[f64], below: &[f64]) -> Self {
        assert_eq!(above.len(), below.len(), "{case}: {variant} and {over} ran different rounds");
        let ratios: Vec<f64> = above.iter().zip(below).map(|(a, b)| a / b).collect();
        Self { over: Some(over.into()), ..Self::of(case, variant, "ratio", "x", &ratios) }
    }

    /// Adds a promise about the row's median.
    pub fn promise(mut self, kind: Bound, value: f64) -> Self {
        let target = Target { kind, value, standing: Standing::Undecided };
        self.target = Some(Target { standing: target.standing(&self), ..target });
        self
    }

    /// As [`Row::promise`], if `is_promised`.
    pub fn promise_if(self, is_promised: bool, kind: Bound, value: f64) -> Self {
        if is_promised { self.promise(kind, value) } else { self }
    }
}

/// The quantile `q` of the sorted samples, interpolated.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (below, part) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

/// The ranks between which the true quantile `q` lies in about 95 of 100 runs: the binomial interval in its normal
/// approximation, which holds for any distribution of the samples if there are enough of them.
fn ranks_95(n: usize, q: f64) -> [usize; 2] {
    let (at, half) = (q * (n as f64 - 1.0), 1.96 * (q * (1.0 - q) * n as f64).sqrt());
    [(at - half).floor().max(0.0) as usize, ((at + half).ceil() as usize).min(n - 1)]
}

/// Writes `bytes` to `path`.
///
/// A regular file is replaced as a whole: a reader sees the old file or the new one, never a part. The new file gets
/// the mode and the access control list of the old file, and no other extended attribute; if there is no old file, the
/// umask determines the mode. Where a replacement would change the kind, the owner or the group of the file, or break a
/// link, the file is written in place: a device, a FIFO, the target of a symbolic link, a file of another user or with
/// several names, standard output and standard error. So is a file whose folder refuses a new file, or whose access
/// control list can't be copied.
///
/// # Errors
///
/// Returns an error if the file can't be written. A symbolic link in a sticky folder that all users may write to, such
/// as `/tmp`, is an error too if neither the caller nor the folder's owner made it, even if the kernel would follow it
/// (`fs.protected_symlinks` is 0), unless it leads to standard output or standard error.
pub fn write_whole(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fail =
        || format!("can't write {}: is {} a folder you may write to?", path.display(), folder.display());
    match fs::symlink_metadata(path) {
        Err(_) => replace(path, folder, None, bytes).with_context(fail),
        Ok(old) => {
            let can_be_replaced = old.file_type().is_file() && stream_of(path).is_none() && old.nlink() == 1;
            let through = || format!("can't write to {}", path.display());
            match can_be_replaced.then(|| replace(path, folder, Some(&old), bytes)) {
                Some(Ok(())) => Ok(()),
                // An error such as a full disk: writing in place would lose the old content.
                Some(Err(error)) if !is_refusal(&error) => Err(error).with_context(fail),
                Some(Err(_)) | None => write_through(path, bytes).with_context(through),
            }
        }
    }
}

/// Whether a later version can replace what was written to `path`: true if it is a regular file, a folder or nothing
/// that can be found, and not standard output or standard error. A pipe or a terminal gets the result once, at the end.
pub fn is_rewritable(path: &Path) -> bool {
    stream_of(path).is_none() && fs::metadata(path).map_or(true, |it| it.is_file() || it.is_dir())
}

/// Whether the error means that no new file can be put in place of the old file. The old file may still be writable.
fn is_refusal(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, PermissionDenied, ReadOnlyFilesystem, ResourceBusy};
    matches!(error.kind(), CrossesDevices | PermissionDenied | ReadOnlyFilesystem | ResourceBusy)
}

/// Turns an error of copying an access control list into a refusal (see [`is_refusal`]): for example EINVAL, if the
/// list names a user that the user namespace does not have. A full disk or an exceeded quota is no refusal.
fn as_refusal(error: io::Error) -> io::Error {
    use io::ErrorKind::{PermissionDenied, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => error,
        _ => io::Error::new(PermissionDenied, error),
    }
}

/// Makes `path` a new file, with the mode and access control list of `old` if there is one; returns an error if the
/// owner or the group would change. After an error the old file is unchanged.
fn replace(path: &Path, folder: &Path, old: Option<&fs::Metadata>, bytes: &[u8]) -> io::Result<()> {
    // By default a temporary file is readable by its owner only; with an explicit mode the umask applies.
    let mode = fs::Permissions::from_mode(if old.is_some() { 0o600 } else { 0o666 });
    let mut file = tempfile::Builder::new().permissions(mode).tempfile_in(folder)?;
    file.write_all(bytes)?;
    if let Some(old) = old {
        let new = file.as_file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the new file would have another owner",
            ));
        }
        // Copy the list before the mode is set: with a list, the group's bits of the mode are the list's mask; without
        // one, they are the group's permissions.
        files::copy_acl(path, file.as_file()).map_err(as_refusal)?;
        file.as_file().set_permissions(old.permissions())?;
    }
    file.persist(path)?;
    Ok(())
}

fn write_through(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match stream_of(path) {
        Some(mut stream) => {
            io::stdout().flush()?;
            stream.write_all(bytes)
        }
        None => match follow(path)? {
            Leads::To(path) => files::open_no_link(&path)?.write_all(bytes),
            Leads::Open => fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(bytes),
        },
    }
}

/// Where a path leads.
#[derive(Debug, PartialEq)]
enum Leads {
    /// To this path, where [`follow`] found no link.
    To(PathBuf),
    /// A file that a process has open, by a link in `/proc`; it may have no path.
    Open,
}

/// Follows symbolic links from `path` on; returns an error at a link that must not be followed. The resulting path may
/// become a link again before it is opened, so [`files::open_no_link`] opens it.
fn follow(path: &Path) -> io::Result<Leads> {
    /// The number of links that the kernel follows.
    const LINKS_MAX: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(link) = fs::symlink_metadata(&path) else { return Ok(Leads::To(path)) };
        if !link.is_symlink() {
            return Ok(Leads::To(path));
        }
        if fs::metadata("/proc/self").is_ok_and(|proc| proc.dev() == link.dev()) {
            // The kernel follows a link in `/proc`: those in `/proc/PID/fd` lead to open files, which may have no path.
            return Ok(Leads::Open);
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let shared = fs::metadata(folder)?;
        if !may_follow(&link, &shared, warmcore_sys::local::user()) {
            let text = format!(
                "{} is a symbolic link of user {} in {}, where all users may write: it is not followed; remove it, or \
                 write elsewhere",
                path.display(),
                link.uid(),
                folder.display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        path = folder.join(fs::read_link(&path)?);
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

/// The kernel's rule where `fs.protected_symlinks` is 1: in a sticky folder that all users may write to, a link is
/// followed if its owner is the user that follows it, or the folder's owner. Source: proc_sys_fs(5).
fn may_follow(link: &fs::Metadata, folder: &fs::Metadata, user: u32) -> bool {
    const STICKY_AND_WRITABLE_BY_ALL: u32 = 0o1002;
    folder.mode() & STICKY_AND_WRITABLE_BY_ALL != STICKY_AND_WRITABLE_BY_ALL
        || [user, folder.uid()].contains(&link.uid())
}

/// Standard output or standard error, if `path` leads to one of them. Opening it by its path would truncate a file to
/// which the program has already printed, and a socket can't be opened.
fn stream_of(path: &Path) -> Option<fs::File> {
    let target = fs::metadata(path).ok()?;
    let streams = [io::stdout().as_fd().try_clone_to_owned(), io::stderr().as_fd().try_clone_to_owned()];
    streams
        .into_iter()
        .flatten()
        .map(fs::File::from)
        .find(|stream| stream.metadata().is_ok_and(|it| (it.dev(), it.ino()) == (target.dev(), target.ino())))
}

#[cfg(test)]
mod tests;
