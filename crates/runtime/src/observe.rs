//! Observe: a socket where who asks is told what the runtime does: `warmcore top`.
//!
//! Model.   A local socket, named by the process, for the user alone. Who connects gets one line of JSON and then
//!          the end; it sends nothing. A thread answers; it reads the numbers that the workers write anyway, and
//!          no worker notices. The socket goes when the runtime does. What a killed process leaves behind, nobody
//!          listens on: [`list`] leaves it out.
//! Number.  350 bytes a worker, 100 a tenant. A look misses the cache nine times a worker; who doesn't take the
//!          answer within a second is hung up on.
//! Writers. The thread, and who drops the observer.
//! Source.  docs/json.md, "top".

use crate::clock;
use crate::metrics::{Metrics, WorkerMetrics, WorkerStats};
use crate::shared::Shared;
use crate::tally::TenantMetrics;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use warmcore_sys::signals;
use warmcore_terms::Nanos;

/// The version of what is said. It grows when a field changes its meaning or goes away.
pub const SCHEMA: u32 = 1;

/// Makes every runtime of the process observable that was not told otherwise, if it is `1`.
pub const VARIABLE: &str = "WARMCORE_TOP";

/// Who doesn't take the answer in so long is hung up on.
const PATIENCE: Duration = Duration::from_secs(1);

/// So many runtimes of a process have a socket each.
const RUNTIMES_MAX: u32 = 64;

const PREFIX: &str = "warmcore-";
const SUFFIX: &str = ".sock";

/// The end of the thread and of the socket, when dropped.
pub(crate) struct Observer {
    path: PathBuf,
    listener: OwnedFd,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Opens the socket, if that was asked for. A runtime that can't be observed runs all the same.
pub(crate) fn open(shared: &Arc<Shared>, is_wanted: Option<bool>) -> Option<Observer> {
    let wanted_by_variable = || std::env::var_os(VARIABLE).is_some_and(|value| value == "1");
    if !is_wanted.unwrap_or_else(wanted_by_variable) {
        return None;
    }
    let folder = folders().into_iter().next()?;
    match Observer::new(&folder, shared.clone()) {
        Ok(observer) => {
            tracing::debug!(path = %observer.path.display(), "observable");
            Some(observer)
        }
        Err(error) => {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "the runtime is not observable: no socket can be made there");
            None
        }
    }
}

impl Observer {
    fn new(folder: &Path, shared: Arc<Shared>) -> io::Result<Self> {
        let (path, listener) = bind(folder)?;
        // Dropped, it takes the socket away again.
        let is_over = Arc::new(AtomicBool::new(false));
        let made = listener.try_clone().map(OwnedFd::from);
        let mut observer = match made {
            Ok(listener) => Self { path, listener, is_over: is_over.clone(), thread: None },
            Err(error) => {
                let _ = fs::remove_file(path);
                return Err(error);
            }
        };
        let thread = std::thread::Builder::new().name(format!("{}-observe", shared.name));
        let serve = move || {
            let began = clock::now();
            while let Ok((stream, _)) = listener.accept() {
                if is_over.load(Relaxed) {
                    return;
                }
                // Who breaks off is no news.
                let _ = answer(&stream, &line(&shared, began));
            }
        };
        observer.thread = Some(signals::blocked(|| thread.spawn(serve))?);
        Ok(observer)
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        self.is_over.store(true, Relaxed);
        // Ends the wait for somebody who connects: Linux says so to who accepts.
        let woken =
            self.listener.try_clone().map(UnixStream::from).and_then(|it| it.shutdown(Shutdown::Both));
        if let (Ok(()), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn answer(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    // The limit is for each write; somebody who reads byte by byte would keep the thread for ever.
    let (began, mut rest) = (Instant::now(), line.as_bytes());
    while !rest.is_empty() && began.elapsed() < PATIENCE {
        match stream.write(rest) {
            Ok(0) => break,
            Ok(n) => rest = &rest[n..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    stream.shutdown(Shutdown::Both)
}

/// A socket that nobody but the user could ever connect to: it is made in a folder of its own, and moved from there
/// when it has its mode.
fn bind(folder: &Path) -> io::Result<(PathBuf, UnixListener)> {
    static MADE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let pid = std::process::id();
    let unique = format!(".{PREFIX}{pid}-{}-{}", MADE.fetch_add(1, Relaxed), clock::now().0);
    let private = folder.join(unique);
    DirBuilder::new().mode(0o700).create(&private)?;
    let made = private.join("s");
    let bound = UnixListener::bind(&made).and_then(|listener| {
        fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        // A name that is there and answers is another runtime's of this process; one that doesn't is what a process
        // of this number left behind.
        let names = (1..=RUNTIMES_MAX).map(|runtime| folder.join(name(pid, runtime)));
        for path in names {
            // Two runtimes that are made at the same time must not both find the name free.
            static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
            let _lock = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if UnixStream::connect(&path).is_err() {
                fs::rename(&made, &path)?;
                return Ok((path, listener));
            }
        }
        Err(io::Error::other(format!("{RUNTIMES_MAX} runtimes of this process have a socket already")))
    });
    let _ = fs::remove_file(&made);
    let _ = fs::remove_dir(&private);
    bound
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

/// Where sockets are: the user's own folder, if there is one, and `/tmp`. They are made in the first.
pub fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    own.into_iter().chain([PathBuf::from("/tmp")]).collect()
}

/// A runtime that can be observed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Observable {
    /// Its process.
    pub pid: u32,
    /// Which one in its process, from 1.
    pub runtime: u32,
    /// Its socket.
    pub path: PathBuf,
}

impl Observable {
    /// What it does now: a line of JSON, as docs/json.md says. An error if the process is gone.
    pub fn ask(&self) -> io::Result<String> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let line = io::read_to_string(stream)?;
        if line.ends_with('\n') { Ok(line) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Whether its process still runs. One that has ended, and that nobody has waited for, doesn't.
    pub fn is_running(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name before the state may hold anything, brackets too.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    }

    /// Whether the socket belongs to the process's user: in `/tmp` anybody may make one.
    fn is_genuine(&self) -> bool {
        self.owner().is_some_and(|socket| Some(socket) == owner(&self.pid.to_string()))
    }

    /// Whether the socket belongs to this process's user.
    fn is_ours(&self) -> bool {
        self.owner().is_some_and(|socket| Some(socket) == owner("self"))
    }

    fn owner(&self) -> Option<u32> {
        let meta = fs::symlink_metadata(&self.path).ok()?;
        meta.file_type().is_socket().then(|| meta.uid())
    }
}

/// Whose a process is.
fn owner(process: &str) -> Option<u32> {
    fs::metadata(Path::new("/proc").join(process)).ok().map(|meta| meta.uid())
}

/// All runtimes that this user can observe now, by process.
pub fn list() -> Vec<Observable> {
    list_in(&folders())
}

/// Whether somebody listens. One that is stopped does, and answers later. Where nobody does nobody ever will: the
/// file is taken away, if that is allowed.
fn is_open(one: &Observable) -> bool {
    match UnixStream::connect(&one.path) {
        Ok(_) => true,
        Err(error) => {
            if error.kind() == io::ErrorKind::ConnectionRefused {
                let _ = fs::remove_file(&one.path);
            }
            false
        }
    }
}

fn list_in(folders: &[PathBuf]) -> Vec<Observable> {
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let found = entries.filter_map(|entry| {
        let (pid, runtime) = parse(entry.file_name().to_str()?)?;
        Some(Observable { pid, runtime, path: entry.path() })
    });
    let mut found: Vec<_> = found
        .filter(|one| one.is_ours() || one.is_genuine())
        .filter(is_open)
        .filter(Observable::is_genuine)
        .collect();
    found.sort();
    found
}

/// One line: what the runtime does.
fn line(shared: &Shared, began: Nanos) -> String {
    let now = clock::now();
    let Metrics { workers, living, shelves, outside_wakes, tenants } = crate::runtime::metrics(shared);
    let mut out = String::with_capacity(512 + 512 * workers.len() + 128 * tenants.len());
    let pid = std::process::id();
    let (name, policy, up_ns) = (quoted(&shared.name), shared.policy, now.0.saturating_sub(began.0));
    let at_ns = now.0;
    let _ = write!(
        out,
        "{{\"schema\":{SCHEMA},\"what\":\"top\",\"pid\":{pid},\"name\":{name},\"policy\":\"{policy}\",\
         \"at_ns\":{at_ns},\"up_ns\":{up_ns},\"living\":{living},\"outside_wakes\":{outside_wakes},\
         \"shelves\":["
    );
    each(&mut out, shelves, |out, waiting| _ = write!(out, "{waiting}"));
    out.push_str("],\"workers\":[");
    each(&mut out, workers, |out, worker| write_worker(out, &worker));
    out.push_str("],\"tenants\":[");
    each(&mut out, tenants, |out, tenant| write_tenant(out, &tenant));
    out.push_str("]}\n");
    out
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
        waiting,
        poll_ns,
        foreign_tasks,
        ..
    } = worker;
    let _ = write!(
        out,
        "{{\"cpu\":{cpu},\"llc\":{llc},\"node\":{node},\"shard\":{shard},\"is_idle\":{is_idle},\
         \"is_stuck\":{is_stuck},\"waiting\":{waiting},\"poll_ns\":{poll_ns},\"foreign_tasks\":{foreign_tasks}"
    );
    for (name, value) in WorkerStats::NAMES.iter().zip(stats.values()) {
        let _ = write!(out, ",\"{name}\":{value}");
    }
    out.push('}');
}

fn write_tenant(out: &mut String, tenant: &TenantMetrics) {
    let TenantMetrics { name, serial, weight, living, polls, run_ns } = tenant;
    let name = quoted(name);
    let _ = write!(
        out,
        "{{\"name\":{name},\"serial\":{serial},\"weight\":{weight},\"living\":{living},\"polls\":{polls},\
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

/// As JSON has strings.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests;
