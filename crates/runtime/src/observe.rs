//! Observe: a local socket on which a runtime reports its numbers, for `warmcore top`.
//!
//! The socket's name contains the process's number. It is in a folder that only the process's user may enter. A client
//! connects, sends nothing, and receives one line of JSON (docs/json.md, "top"); then the socket is closed. A separate
//! thread answers with numbers that the workers count anyway, and with CPU time (see below). Dropping the runtime
//! removes the socket. A killed process leaves a socket that no process listens on; [`list`] omits it, and removes it
//! if it is the user's own.
//!
//! # Other users
//! The folder is `warmcore-USER` (USER is the user's number), mode 0700, in the first of `$XDG_RUNTIME_DIR`,
//! `/run/user/USER` and `/tmp` where it is or can be made. A folder of that name that belongs to another user, is a
//! link, or can be entered by other users is not used. A client asks the kernel which user and process listen
//! (`SO_PEERCRED`), and does not trust the name. It never waits to be connected, waits at most a second for the answer,
//! and reads at most 16 MiB of it. Root sees the runtimes of all users.
//!
//! # While a client looks
//! A *look* is one request of a client. CPU time outside of a worker's driver, and the polls of each group of tasks
//! (`task_groups.rs`), are counted from a look until five seconds after the last look. If two looks are further apart,
//! these numbers do not cover all of the time between them; a client that needs them looks more often.
//!
//! # Cost
//! An answer has about 500 bytes for each worker, 100 for each tenant and 200 for each group of tasks, and takes nine
//! cache misses for each worker and about two for each task. A client that does not take the answer within a second is
//! disconnected.

use crate::clock;
use crate::context;
use crate::runtime_metrics::{RuntimeMetrics, WorkerMetrics};
use crate::shared::Shared;
use crate::tenant_stats::TenantMetrics;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder};
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use warmcore_sched::WorkerStats;
use warmcore_sys::{local, signals};
use warmcore_types::{Nanos, ignore_poison};

pub use crate::task_groups::TaskGroupMetrics;

/// Version of the answer. Raised when a field changes its name or its meaning, or is removed.
pub const SCHEMA: u32 = 3;

/// Environment variable: `1` makes every runtime of the process observable, unless
/// [`Builder::observe`](crate::Builder::observe) was called with false.
pub const VARIABLE: &str = "WARMCORE_TOP";

/// Time after which the runtime and the client give up an exchange.
const IO_TIMEOUT: Duration = Duration::from_secs(1);

/// Longest answer that a client reads, in bytes: enough for 4096 workers and 40 000 tenants.
const ANSWER_MAX: usize = 16 << 20;

/// Time after a look for which numbers that only clients need are still counted.
const LOOKED_AT: Duration = Duration::from_secs(5);

/// Longest time between looks of a client that needs all numbers to be counted without a break.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Characters after which a name is cut.
const NAME_MAX: usize = 128;

/// Time between attempts to accept a client while the process has no descriptor left.
const AGAIN_EVERY: Duration = Duration::from_millis(100);

/// Largest number of runtimes of one process that have a socket each.
const RUNTIMES_MAX: u32 = 64;

/// Most entries of a folder that are read. Another user's folder may have any number.
const ENTRIES_MAX: usize = 10_000;

const PREFIX: &str = "warmcore-";
const SUFFIX: &str = ".sock";

/// The thread that answers, and its socket. Dropping it ends both.
pub(crate) struct Observer {
    path: PathBuf,
    /// A second handle of the listener, to end its wait in `accept`. It is a stream because only streams have
    /// `shutdown`.
    listener: UnixStream,
    is_shutdown: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the socket if it is wanted. A runtime whose socket can't be opened runs without one.
pub(crate) fn open(shared: &Arc<Shared>, is_wanted: Option<bool>) -> Option<Observer> {
    let wanted_by_variable = || std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
    if !is_wanted.unwrap_or_else(wanted_by_variable) {
        return None;
    }
    Observer::new(&bases(), shared.clone())
        .inspect(|observer| tracing::debug!(path = %observer.path.display(), "observable"))
        .inspect_err(|error| {
            tracing::warn!(%error, "the runtime is not observable: there is no folder for its socket");
        })
        .ok()
}

impl Observer {
    fn new(bases: &[PathBuf], shared: Arc<Shared>) -> io::Result<Self> {
        let (path, listener) = bind(&private_folder(bases)?)?;
        let handle = listener.try_clone().inspect_err(|_| _ = fs::remove_file(&path))?;
        // From here on an error drops `observer`, which removes the socket.
        let mut observer =
            Self { path, listener: OwnedFd::from(handle).into(), is_shutdown: Arc::default(), thread: None };
        let is_shutdown = observer.is_shutdown.clone();
        let thread = std::thread::Builder::new().name(format!("{}-observe", shared.name));
        let waits = observer.listener.try_clone()?;
        let serve = move || {
            let began = clock::now();
            let count_own = |is_wanted| {
                shared.remotes.iter().for_each(|remote| remote.driver.count_own(is_wanted));
                shared.task_groups.count(is_wanted);
                // The timeout applies to `accept` too.
                let _ = waits.set_read_timeout(is_wanted.then_some(LOOKED_AT));
            };
            while !is_shutdown.load(Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) if is_shutdown.load(Relaxed) => drop(stream),
                    Ok((stream, _)) => {
                        count_own(true);
                        // A client that disconnects early is not an error.
                        let _ = answer(&stream, || line(&shared, began));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => count_own(false),
                    // The process has no descriptor left, or the client has gone. `drop` ends the pause.
                    Err(_) => std::thread::park_timeout(AGAIN_EVERY),
                }
            }
        };
        observer.thread = Some(signals::blocked(|| thread.spawn(serve))?);
        Ok(observer)
    }
}

impl Drop for Observer {
    /// Waits for the thread to end, which takes up to a second if it is answering. On a thread that a runtime started
    /// for its workers this does not wait.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.is_shutdown.store(true, Relaxed);
        // Ends the thread's `accept`, on Linux.
        let woken = self.listener.shutdown(Shutdown::Both);
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            thread.thread().unpark();
            if !context::is_a_runtimes() {
                let _ = thread.join();
            }
        }
    }
}

fn answer(mut stream: &UnixStream, line: impl FnOnce() -> String) -> io::Result<()> {
    let user = local::peer(stream)?.user;
    if user != local::user() && user != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (until, line) = (Instant::now() + IO_TIMEOUT, line());
    let mut rest = line.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(rest) {
            Ok(0) => break,
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.shutdown(Shutdown::Both)
}

/// The time left of an exchange. A socket's own timeout applies to each read or write, so a peer that sends byte by byte
/// would never reach it.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Binds a socket in a folder that belongs to this user alone.
fn bind(folder: &Path) -> io::Result<(PathBuf, UnixListener)> {
    // Two runtimes that are built at the same time must not both find the same stale name.
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _lock = ignore_poison(LOCK.lock());
    for runtime in 1..=RUNTIMES_MAX {
        let path = folder.join(name(std::process::id(), runtime));
        // If a process listens on the name, it is this process, for another runtime. If not, the socket was left by an
        // earlier process with the same number.
        let is_left = || local::connect(&path).is_err_and(|it| it.kind() == io::ErrorKind::ConnectionRefused);
        let bound = match UnixListener::bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_left() => {
                fs::remove_file(&path).and_then(|()| UnixListener::bind(&path))
            }
            bound => bound,
        };
        match bound {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            bound => return bound.map(|listener| (path, listener)),
        }
    }
    Err(io::Error::other(format!("{RUNTIMES_MAX} runtimes of this process have a socket already")))
}

/// Folders that may contain the user's folder.
fn bases() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(RUN_USER).join(local::user().to_string());
    let mut bases: Vec<PathBuf> = own.into_iter().chain([usual]).filter(|path| path.is_dir()).collect();
    bases.push("/tmp".into());
    bases.dedup();
    bases
}

/// Contains a folder for each user that is logged in.
const RUN_USER: &str = "/run/user";

/// The first folder that exists, or can be made, for this user alone.
fn private_folder(bases: &[PathBuf]) -> io::Result<PathBuf> {
    let (mut tried, user) = (Vec::new(), local::user());
    for base in bases {
        let folder = user_folder(base, user);
        match private_in(base, &folder, user) {
            Ok(()) => return Ok(folder),
            Err(error) => tried.push(format!("{}: {error}", folder.display())),
        }
    }
    Err(io::Error::other(tried.join("; ")))
}

fn private_in(base: &Path, folder: &Path, user: u32) -> io::Result<()> {
    // Another user with the right to rename entries of `base` could put another folder in the place of this one.
    let of_base = fs::metadata(base)?;
    let is_shared = of_base.mode() & 0o022 != 0 && of_base.mode() & 0o1000 == 0;
    if is_shared || ![0, user].contains(&of_base.uid()) {
        return Err(io::Error::other("another user may rename it; set XDG_RUNTIME_DIR"));
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ if is_private(folder, user) => Ok(()),
        _ => {
            Err(io::Error::other("it is there, and is no folder for this user alone (mode 0700); remove it"))
        }
    }
}

fn user_folder(base: &Path, user: u32) -> PathBuf {
    base.join(format!("{PREFIX}{user}"))
}

/// Whether `folder` is a folder, and no link, that belongs to this user and that no other user except root may
/// enter.
fn is_private(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|it| it.is_dir() && it.uid() == user && it.mode() & 0o077 == 0)
}

fn name(pid: u32, runtime: u32) -> String {
    match runtime {
        1 => format!("{PREFIX}{pid}{SUFFIX}"),
        _ => format!("{PREFIX}{pid}.{runtime}{SUFFIX}"),
    }
}

/// The process's number in a socket's name, and the runtime's number in the process.
fn parse(name: &str) -> Option<(u32, u32)> {
    let name = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (pid, runtime) = name.split_once('.').unwrap_or((name, "1"));
    Some((pid.parse().ok()?, runtime.parse().ok()?))
}

/// The user whose runtimes [`list`] returns. For 0, root, `list` returns the runtimes of all users.
pub fn user() -> u32 {
    local::user()
}

/// Folders in which this user's sockets may be.
pub fn folders() -> Vec<PathBuf> {
    bases().iter().map(|base| user_folder(base, local::user())).collect()
}

/// A runtime that can be observed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Observable {
    /// Number of the runtime's process.
    pub pid: u32,
    /// Number of the runtime in its process, from 1.
    pub runtime: u32,
    /// The user of the process.
    pub user: u32,
    /// Path of the socket.
    pub path: PathBuf,
}

impl Observable {
    /// Asks the runtime for its numbers, and waits for a second at most. Returns a line of JSON, described in
    /// docs/json.md. Fails for instance if the process has ended, if another process or user than `pid` and `user`
    /// listens, if the answer is not complete after a second, or if it exceeds 16 MiB.
    pub fn ask(&self) -> io::Result<String> {
        let until = Instant::now() + IO_TIMEOUT;
        let mut stream = local::connect(&self.path)?;
        if !self.is_peer(&stream) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        stream.set_nonblocking(false)?;
        let (mut bytes, mut part) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            stream.set_read_timeout(Some(left(until)?))?;
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(n) if bytes.len() + n > ANSWER_MAX => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer has no end"));
                }
                Ok(n) => bytes.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let line = String::from_utf8(bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Whether a process with this number runs. A process that has ended but was not waited for does not count as
    /// running.
    pub fn is_running(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name before the state may contain anything, parentheses too.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// Whether the process at the other end has the number in the socket's name and the user in the folder's name.
    fn is_peer(&self, stream: &UnixStream) -> bool {
        local::peer(stream).is_ok_and(|peer| (peer.pid, peer.user) == (self.pid, self.user))
    }

    /// Whether the process listens. A stopped process listens too, and answers later. A socket of this user that no
    /// process listens on is removed.
    fn is_open(&self, user: u32) -> bool {
        match local::connect(&self.path) {
            Ok(stream) => self.is_peer(&stream),
            // The socket's backlog is full. The kernel does not say which process listens, so another user's socket
            // does not count.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.user == user,
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionRefused && self.user == user {
                    let _ = fs::remove_file(&self.path);
                }
                false
            }
        }
    }
}

/// All runtimes that this user can observe now, sorted by process: the user's own, or for root the runtimes of all
/// users.
pub fn list() -> Vec<Observable> {
    let mut bases = bases();
    if local::user() == 0 {
        bases.extend(entries(Path::new(RUN_USER)).map(|(_, path)| path));
    }
    list_in(&bases, local::user())
}

/// The entries of a folder whose names are UTF-8, of the first [`ENTRIES_MAX`].
fn entries(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let found = fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX).flatten();
    found.filter_map(|entry| Some((entry.file_name().to_str()?.to_owned(), entry.path())))
}

fn list_in(bases: &[PathBuf], user: u32) -> Vec<Observable> {
    let mut found = Vec::new();
    for base in bases {
        // Only root looks into other users' folders.
        let others = entries(base).filter(|_| user == 0);
        let others = others.filter_map(|(name, path)| Some((name.strip_prefix(PREFIX)?.parse().ok()?, path)));
        let own = (user, user_folder(base, user));
        for (user, folder) in others.filter(|(of, _)| *of != user).chain([own]) {
            if is_private(&folder, user) {
                found.extend(entries(&folder).filter_map(|(name, path)| {
                    let (pid, runtime) = parse(&name)?;
                    Some(Observable { pid, runtime, user, path })
                }));
            }
        }
    }
    found.sort();
    found.dedup();
    found.retain(|one| one.is_open(user));
    found
}

/// The answer: a line of JSON.
fn line(shared: &Shared, began: Nanos) -> String {
    let now = clock::now();
    let RuntimeMetrics { workers, num_alive_tasks, injection_queue_depths, remote_schedules, tenants } =
        crate::runtime_metrics::read(shared);
    let (pid, process) = (std::process::id(), quoted(&executable()));
    let (name, policy) = (quoted(&shared.name), shared.workers.policy());
    let (at_ns, up_ns) = (now.0, now.0.saturating_sub(began.0));
    let depths = array(&injection_queue_depths, u32::to_string);
    let (workers, tenants) = (array(&workers, worker_json), array(&tenants, tenant_json));
    let task_groups = array(&shared.task_groups.read(&shared.remotes), task_group_json);
    format!(
        "{{\"schema\":{SCHEMA},\"what\":\"top\",\"pid\":{pid},\"process\":{process},\"name\":{name},\"policy\":\"{policy}\",\
         \"at_ns\":{at_ns},\"up_ns\":{up_ns},\"num_alive_tasks\":{num_alive_tasks},\"remote_schedules\":{remote_schedules},\
         \"injection_queue_depths\":{depths},\"workers\":{workers},\"tenants\":{tenants},\"task_groups\":{task_groups}}}\n"
    )
}

/// The file name of the program that the process runs; empty if it is not known.
fn executable() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The kernel adds this if the file was replaced or removed.
    name.trim_end_matches(" (deleted)").to_owned()
}

fn worker_json(worker: &WorkerMetrics) -> String {
    let WorkerMetrics {
        stats,
        cpu,
        llc,
        node,
        shard,
        is_idle,
        is_stuck,
        local_queue_depth,
        num_alive_tasks: _,   // the runtime's number has their sum
        park_unpark_count: _, // `parks` says it
        mean_poll_ns,
        foreign_tasks,
        busy_ns,
        own_ns,
    } = worker;
    let counters = WorkerStats::NAMES.iter().zip(stats.values());
    let counters: String = counters.map(|(name, value)| format!(",\"{name}\":{value}")).collect();
    format!(
        "{{\"cpu\":{cpu},\"llc\":{llc},\"node\":{node},\"shard\":{shard},\"is_idle\":{is_idle},\
         \"is_stuck\":{is_stuck},\"local_queue_depth\":{local_queue_depth},\"mean_poll_ns\":{mean_poll_ns},\"foreign_tasks\":{foreign_tasks},\
         \"busy_ns\":{busy_ns},\"own_ns\":{own_ns}{counters}}}"
    )
}

fn tenant_json(tenant: &TenantMetrics) -> String {
    let TenantMetrics { name, serial, weight, num_alive_tasks, polls, run_ns } = tenant;
    let name = quoted(name);
    format!(
        "{{\"name\":{name},\"serial\":{serial},\"weight\":{weight},\"num_alive_tasks\":{num_alive_tasks},\"polls\":{polls},\
         \"run_ns\":{run_ns}}}"
    )
}

fn task_group_json(group: &TaskGroupMetrics) -> String {
    let TaskGroupMetrics {
        name,
        location,
        tenant,
        tenant_serial,
        num_alive_tasks,
        polls,
        run_ns,
        moves,
        llc_moves,
    } = group;
    let or_null = |text: Option<String>| text.unwrap_or_else(|| "null".to_owned());
    let (name, tenant) = [name, tenant].map(|text| or_null(text.as_deref().map(quoted))).into();
    // Of a long path the end says more than the begin.
    let end = |text: &str| text.char_indices().rev().nth(NAME_MAX - 1).map_or(0, |(at, _)| at);
    let location = or_null(location.as_deref().map(|text| quoted(&text[end(text)..])));
    let tenant_serial = or_null(tenant_serial.map(|serial| serial.to_string()));
    format!(
        "{{\"name\":{name},\"location\":{location},\"tenant\":{tenant},\"tenant_serial\":{tenant_serial},\
         \"num_alive_tasks\":{num_alive_tasks},\"polls\":{polls},\"run_ns\":{run_ns},\"moves\":{moves},\
         \"llc_moves\":{llc_moves}}}"
    )
}

/// A JSON array.
fn array<T>(items: &[T], json: impl Fn(&T) -> String) -> String {
    format!("[{}]", items.iter().map(json).collect::<Vec<_>>().join(","))
}

/// Text as a JSON string, cut after [`NAME_MAX`] characters.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars().take(NAME_MAX) {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(all(test, not(any(shuttle, warmcore_loom))))]
mod tests;
