//! Observe: a socket on which a runtime says what it does: `warmcore top`.
//!
//! A local socket, named by the process, in a folder that this user alone may enter. A client that connects gets one
//! line of JSON and then the end; it sends nothing. A thread answers; it reads the numbers that the workers write
//! anyway, and no worker notices. The socket goes when the runtime does. A killed process leaves a socket behind on
//! which nothing listens: [`list`] leaves it out.
//!
//! # Other users
//! The folder is `warmcore-USER`, mode 0700, in `$XDG_RUNTIME_DIR`, `/run/user/USER` or `/tmp`: the first of them where
//! it can be made. A folder of that name that belongs to another user, is a link, or is open to others is not used.
//! A client trusts no name: the kernel says which user and process listen (`SO_PEERCRED`). It never waits for a
//! connection, waits a second for the answer, and reads 16 MiB of it at most. Root sees the runtimes of all users.
//!
//! # While a client looks
//! What a worker spends outside of its driver is counted from a look until five seconds after the last one. Between
//! looks further apart it means nothing; a client that wants it looks more often.
//!
//! # Cost
//! 500 bytes a worker, 100 a tenant. A look misses the cache nine times a worker; a client that doesn't take the
//! answer within a second is hung up on.
//!
//! Source: docs/json.md, "top".

use crate::clock;
use crate::context;
use crate::metrics::WorkerStats;
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
use warmcore_sys::{local, signals};
use warmcore_types::{Nanos, ignore_poison};

/// The version of what is said. It grows when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 3;

/// Makes every runtime of the process observable that was not told otherwise, if it is `1`.
pub const VARIABLE: &str = "WARMCORE_TOP";

/// An exchange that takes longer is given up, on both sides.
const IO_TIMEOUT: Duration = Duration::from_secs(1);

/// A client reads no longer answer: 4096 workers and 40 000 tenants.
const ANSWER_MAX: usize = 16 << 20;

/// So long after a look what only a client wants is still counted.
const LOOKED_AT: Duration = Duration::from_secs(5);

/// So often a client looks that wants all that is counted to be counted all the time.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A longer name is cut, in characters.
const NAME_MAX: usize = 128;

/// Without descriptors no client can be accepted: the observer tries again so often.
const AGAIN_EVERY: Duration = Duration::from_millis(100);

/// So many runtimes of a process have a socket each.
const RUNTIMES_MAX: u32 = 64;

/// So many names of a folder are looked at: another user's may hold any number.
const ENTRIES_MAX: usize = 10_000;

const PREFIX: &str = "warmcore-";
const SUFFIX: &str = ".sock";

/// The end of the thread and of the socket, when dropped.
pub(crate) struct Observer {
    path: PathBuf,
    /// The listener's other handle, to end its wait: only a stream has `shutdown`.
    listener: UnixStream,
    is_shutdown: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the socket, if that was asked for. A runtime that can't be observed runs all the same.
pub(crate) fn open(shared: &Arc<Shared>, is_wanted: Option<bool>) -> Option<Observer> {
    let wanted_by_variable = || std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
    if !is_wanted.unwrap_or_else(wanted_by_variable) {
        return None;
    }
    match Observer::new(&bases(), shared.clone()) {
        Ok(observer) => {
            tracing::debug!(path = %observer.path.display(), "observable");
            Some(observer)
        }
        Err(error) => {
            tracing::warn!(%error, "the runtime is not observable: there is no folder for its socket");
            None
        }
    }
}

impl Observer {
    fn new(bases: &[PathBuf], shared: Arc<Shared>) -> io::Result<Self> {
        let (path, listener) = bind(&private_folder(bases)?)?;
        // Dropped, it takes the socket away again.
        let is_shutdown = Arc::new(AtomicBool::new(false));
        let made = listener.try_clone().map(|it| UnixStream::from(OwnedFd::from(it)));
        let mut observer = match made {
            Ok(listener) => Self { path, listener, is_shutdown: is_shutdown.clone(), thread: None },
            Err(error) => {
                let _ = fs::remove_file(path);
                return Err(error);
            }
        };
        let thread = std::thread::Builder::new().name(format!("{}-observe", shared.name));
        let waits = observer.listener.try_clone()?;
        let serve = move || {
            let began = clock::now();
            let count_own = |is_wanted| {
                shared.remotes.iter().for_each(|remote| remote.driver.count_own(is_wanted));
                // For `accept` as well: it gives up after so long.
                let _ = waits.set_read_timeout(is_wanted.then_some(LOOKED_AT));
            };
            while !is_shutdown.load(Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) if is_shutdown.load(Relaxed) => drop(stream),
                    Ok((stream, _)) => {
                        count_own(true);
                        // A client that breaks off is no news.
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
    /// Waits for the thread, which may be at an answer for a second; on a worker it does not wait.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.is_shutdown.store(true, Relaxed);
        // Ends the thread's wait for a client: Linux says so to a thread in `accept`.
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

/// What is left of an exchange: the limit of a read or write is for each, and a peer that moves byte by byte would
/// never reach it.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A socket in a folder that is this user's alone.
fn bind(folder: &Path) -> io::Result<(PathBuf, UnixListener)> {
    // Two runtimes that are made at the same time must not both find a name left behind.
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _lock = ignore_poison(LOCK.lock());
    for runtime in 1..=RUNTIMES_MAX {
        let path = folder.join(name(std::process::id(), runtime));
        // A name that is there and listens is another runtime's of this process; one that doesn't is what a process
        // of this number left behind.
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

/// Folders that may hold the folder of a user.
fn bases() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = PathBuf::from(RUN_USER).join(local::user().to_string());
    let mut bases: Vec<PathBuf> = own.into_iter().chain([usual]).filter(|path| path.is_dir()).collect();
    bases.push("/tmp".into());
    bases.dedup();
    bases
}

/// Has a folder for each user that is logged in.
const RUN_USER: &str = "/run/user";

/// The first folder that is there, or can be made, for this user alone.
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
    // A user who may rename what is in it can put another folder in its place.
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

/// Whether it is a folder that this user alone may enter.
fn is_private(folder: &Path, user: u32) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|it| it.is_dir() && it.uid() == user && it.mode() & 0o077 == 0)
}

fn name(pid: u32, runtime: u32) -> String {
    match runtime {
        1 => format!("{PREFIX}{pid}{SUFFIX}"),
        _ => format!("{PREFIX}{pid}.{runtime}{SUFFIX}"),
    }
}

/// The process and the runtime in it, of a socket's name.
fn parse(name: &str) -> Option<(u32, u32)> {
    let name = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (pid, runtime) = name.split_once('.').unwrap_or((name, "1"));
    Some((pid.parse().ok()?, runtime.parse().ok()?))
}

/// The user whose runtimes [`list`] lists; 0: those of all users.
pub fn user() -> u32 {
    local::user()
}

/// Where sockets of this user may be.
pub fn folders() -> Vec<PathBuf> {
    bases().iter().map(|base| user_folder(base, local::user())).collect()
}

/// A runtime that can be observed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Observable {
    /// Its process.
    pub pid: u32,
    /// Which one in its process, from 1.
    pub runtime: u32,
    /// The user of its process.
    pub user: u32,
    /// Its socket.
    pub path: PathBuf,
}

impl Observable {
    /// What it does now: a line of JSON, as docs/json.md says, after a second at most. An error if the process is
    /// gone, is another one than its socket's name says, or says more than 16 MiB.
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

    /// Whether its process still runs. One that has ended, and that nobody has waited for, doesn't.
    pub fn is_running(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name before the state may hold anything, brackets too.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// Whether the process at the other end is the one that the socket's name and folder say.
    fn is_peer(&self, stream: &UnixStream) -> bool {
        local::peer(stream).is_ok_and(|peer| (peer.pid, peer.user) == (self.pid, self.user))
    }

    /// Whether its process listens. One that is stopped does, and answers later. Where nothing listens nothing ever
    /// will: the file is taken away, if it is this user's.
    fn is_open(&self, user: u32) -> bool {
        match local::connect(&self.path) {
            Ok(stream) => self.is_peer(&stream),
            // Of another user's process nothing can be known then.
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

/// All runtimes that this user can observe now, by process: its own, or for root those of all users.
pub fn list() -> Vec<Observable> {
    let mut bases = bases();
    if local::user() == 0 {
        bases.extend(entries(Path::new(RUN_USER)).map(|(_, path)| path));
    }
    list_in(&bases, local::user())
}

/// What is in a folder, with its name, if that is text.
fn entries(folder: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    let found = fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX).flatten();
    found.filter_map(|entry| Some((entry.file_name().to_str()?.to_owned(), entry.path())))
}

fn list_in(bases: &[PathBuf], user: u32) -> Vec<Observable> {
    let mut found = Vec::new();
    for base in bases {
        // Another user's folders are looked for by root alone.
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

/// One line: what the runtime does.
fn line(shared: &Shared, began: Nanos) -> String {
    let now = clock::now();
    let RuntimeMetrics { workers, num_alive_tasks, injection_queue_depths, remote_schedules, tenants } =
        crate::runtime_metrics::read(shared);
    let process = quoted(&executable());
    let mut out = String::with_capacity(512 + 512 * workers.len() + 128 * tenants.len());
    let pid = std::process::id();
    let (name, policy, up_ns) = (quoted(&shared.name), shared.policy, now.0.saturating_sub(began.0));
    let at_ns = now.0;
    let _ = write!(
        out,
        "{{\"schema\":{SCHEMA},\"what\":\"top\",\"pid\":{pid},\"process\":{process},\"name\":{name},\"policy\":\"{policy}\",\
         \"at_ns\":{at_ns},\"up_ns\":{up_ns},\"num_alive_tasks\":{num_alive_tasks},\"remote_schedules\":{remote_schedules},\
         \"injection_queue_depths\":["
    );
    each(&mut out, injection_queue_depths, |out, depth| _ = write!(out, "{depth}"));
    out.push_str("],\"workers\":[");
    each(&mut out, workers, |out, worker| write_worker(out, &worker));
    out.push_str("],\"tenants\":[");
    each(&mut out, tenants, |out, tenant| write_tenant(out, &tenant));
    out.push_str("]}\n");
    out
}

/// The name of the program that the process runs; empty where it can't be told.
fn executable() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // The kernel says so where it was replaced meanwhile.
    name.trim_end_matches(" (deleted)").to_owned()
}

fn write_worker(out: &mut String, worker: &WorkerMetrics) {
    let WorkerMetrics {
        stats,
        cpu,
        llc,
        node,
        shard,
        is_idle,
        is_stuck,
        local_queue_depth,
        mean_poll_ns,
        foreign_tasks,
        busy_ns,
        own_ns,
        ..
    } = worker;
    let _ = write!(
        out,
        "{{\"cpu\":{cpu},\"llc\":{llc},\"node\":{node},\"shard\":{shard},\"is_idle\":{is_idle},\
         \"is_stuck\":{is_stuck},\"local_queue_depth\":{local_queue_depth},\"mean_poll_ns\":{mean_poll_ns},\"foreign_tasks\":{foreign_tasks},\
         \"busy_ns\":{busy_ns},\"own_ns\":{own_ns}"
    );
    for (name, value) in WorkerStats::NAMES.iter().zip(stats.values()) {
        let _ = write!(out, ",\"{name}\":{value}");
    }
    out.push('}');
}

fn write_tenant(out: &mut String, tenant: &TenantMetrics) {
    let TenantMetrics { name, serial, weight, num_alive_tasks, polls, run_ns } = tenant;
    let name = quoted(name);
    let _ = write!(
        out,
        "{{\"name\":{name},\"serial\":{serial},\"weight\":{weight},\"num_alive_tasks\":{num_alive_tasks},\"polls\":{polls},\
         \"run_ns\":{run_ns}}}"
    );
}

fn each<T>(out: &mut String, items: Vec<T>, write: impl Fn(&mut String, T)) {
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write(out, item);
    }
}

/// As JSON has strings; a long one is cut.
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
