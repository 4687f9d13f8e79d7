//! Recorder: the process's recording, from its start to its end.
//!
//! `WARMCORE_RECORD=FILE` starts it, when the first runtime is built or the first [`Recorded`](crate::Recorded) is made.
//! One thread writes ([`writer`](crate::writer)); other threads push into their rings, and ask it for what must be done
//! at once: the rounds at a runtime's shutdown and the end at the process's exit. So a signal for a file that grows too large
//! reaches no thread of the program.
//!
//! A child of fork(2) has no writer. It records nothing, and leaves the file alone.
//!
//! # Cost
//! Off: [`is_on`] is a load and a comparison.

use crate::file::BlockFile;
use crate::ring::Ring;
use crate::text::{CpuPlace, Header};
use crate::writer::Writer;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, Once, OnceLock};
use std::thread::Thread;
use std::time::{SystemTime, UNIX_EPOCH};
use warmcore_sys::{affinity, clock, exit, fork, rseq, signals};
use warmcore_topo::Topology;
use warmcore_types::ignore_poison;

/// The variable that names the file.
pub const VARIABLE: &str = "WARMCORE_RECORD";

/// The variable with the bound of the file, in bytes or with a suffix k, M or G.
pub const MAX_VARIABLE: &str = "WARMCORE_RECORD_MAX";

/// The bound of the file unless [`MAX_VARIABLE`] has another.
pub const DEFAULT_MAX: u64 = 4 << 30;

/// The smallest bound: the header of a large machine and some blocks fit.
const LEAST_MAX: u64 = 64 << 10;

/// The longest command line in the header, in bytes.
const COMMAND_MAX: usize = 4096;

/// Different names of tasks that are kept. Programs that name each task differently would fill memory with names.
const NAMES_MAX: usize = 1 << 16;

/// The longest name of a task or a thread, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// Threads that are recorded; the format has 16 bits for them.
const THREADS_MAX: usize = 1 << 16;

/// Tasks are recorded whose scattered number is below this. 0: the recorder is off. Written by [`start`], by the writer
/// and in children of fork(2); read before each poll.
static BOUND: AtomicU64 = AtomicU64::new(0);

/// The process that records.
static PID: AtomicU32 = AtomicU32::new(0);

/// The writer's thread.
static WRITER: OnceLock<Thread> = OnceLock::new();

static SHARED: Mutex<Shared> =
    Mutex::new(Shared { threads: 0, new_threads: Vec::new(), names: None, new_names: Vec::new() });

/// What threads leave for the writer.
struct Shared {
    /// Threads that were added so far.
    threads: usize,
    new_threads: Vec<NewThread>,
    names: Option<HashMap<Box<str>, u32>>,
    new_names: Vec<(u32, String)>,
}

/// A thread that the writer does not know yet.
pub(crate) struct NewThread {
    pub(crate) ring: Arc<Ring>,
    pub(crate) base: u64,
    pub(crate) tid: u32,
    pub(crate) name: String,
}

static ASKED: Mutex<Asked> = Mutex::new(Asked { rounds: 0, done: 0, end: None, is_running: false });
static ANSWERED: Condvar = Condvar::new();

/// What the writer is asked for.
struct Asked {
    /// Rounds that were asked for, and how many of these are done.
    rounds: u64,
    done: u64,
    /// Why the recording is to end.
    end: Option<&'static str>,
    is_running: bool,
}

/// Whether polls are recorded now.
#[inline]
pub fn is_on() -> bool {
    BOUND.load(Relaxed) != 0
}

/// Whether the polls of the task with this scattered number are recorded now.
#[inline]
pub(crate) fn is_in_sample(scattered: u32) -> bool {
    u64::from(scattered) < BOUND.load(Relaxed)
}

/// One task of 2^`shift` is recorded from now on.
pub(crate) fn set_sample(shift: u32) {
    BOUND.store(1 << (32 - shift), Relaxed);
}

/// No poll is recorded from now on.
pub(crate) fn stop() {
    BOUND.store(0, Relaxed);
}

/// Starts the recorder if [`VARIABLE`] names a file. Only the first call of a process does something. What goes wrong is
/// said in one line on standard error, and the program goes on without a recording.
pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) else { return };
        if let Err(error) = start_writing(Path::new(&path), bytes_max()) {
            say(&format!("{VARIABLE}: {error}; nothing is recorded"));
        }
    });
}

fn bytes_max() -> u64 {
    let Some(text) = std::env::var_os(MAX_VARIABLE) else { return DEFAULT_MAX };
    parse_bytes(&text).unwrap_or_else(|| {
        say(&format!(
            "{MAX_VARIABLE} is {text:?}; a number of bytes from {LEAST_MAX} on was expected, such as 100M or 2G; it is 4G now"
        ));
        DEFAULT_MAX
    })
}

fn parse_bytes(text: &OsString) -> Option<u64> {
    let text = text.to_str()?;
    let shift = match text.chars().last()? {
        'k' | 'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes >= LEAST_MAX)
}

/// Says something on standard error, if there is one. Without the lock of [`io::stderr`]: the thread that holds it may wait
/// for the writer.
pub(crate) fn say(what: &str) {
    // SAFETY: never dropped, so the descriptor stays open. If it is closed or another file, the write fails or lands there,
    // as any write to standard error would.
    let stderr = ManuallyDrop::new(unsafe { File::from_raw_fd(2) });
    let _ = (&*stderr).write_all(format!("warmcore: {what}\n").as_bytes());
}

fn start_writing(path: &Path, bytes_max: u64) -> io::Result<()> {
    // Areas must be found before `rseq::cpu_hint` reads them.
    let _ = rseq::support();
    let header = header();
    let file = BlockFile::create(path, header.pid, bytes_max, &header.to_string())?;
    PID.store(header.pid, Relaxed);
    fork::in_children(leave_to_parent)?;
    exit::at_exit(end_at_exit)?;
    ignore_poison(ASKED.lock()).is_running = true;
    let writer = Writer::new(file);
    let thread = std::thread::Builder::new().name("warmcore-record".to_owned()).stack_size(256 << 10);
    let started = signals::blocked(|| thread.spawn(move || writer.run()));
    match started {
        Ok(thread) => {
            let _ = WRITER.set(thread.thread().clone());
            set_sample(0);
            Ok(())
        }
        Err(error) => {
            ignore_poison(ASKED.lock()).is_running = false;
            Err(error)
        }
    }
}

fn header() -> Header {
    let ns_per_stamp_q32 = clock::ns_per_stamp_q32();
    let mut command = std::env::args_os()
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ");
    command.truncate(command.floor_char_boundary(COMMAND_MAX));
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Header {
        pid: std::process::id(),
        command,
        start: clock::stamp(),
        started_unix_ns: started.as_nanos() as u64,
        ns_per_stamp_q32,
        cpus: Topology::this_machine().map(|machine| places(&machine)).unwrap_or_default(),
    }
}

fn places(machine: &Topology) -> Vec<CpuPlace> {
    // A flat machine is an assumption: nothing is known but the numbers of its CPUs.
    let known = |number: u32| (!machine.is_flat).then_some(number);
    let place = |cpu| {
        let at = machine.cpu(cpu)?;
        let (llc, node, socket) = (known(at.llc.0), known(at.node.0), known(at.socket.0));
        Some(CpuPlace { cpu, core: at.core.0, llc, node, socket })
    };
    // All CPUs, and not those that this thread may use: a program may have bound the thread to one of them.
    machine.online().iter().filter_map(place).collect()
}

/// Runs in each child of fork(2): it has no writer.
extern "C" fn leave_to_parent() {
    stop();
    PID.store(0, Relaxed);
}

extern "C" fn end_at_exit() {
    // A child of fork(2) or clone(2) inherits the registration, and has no writer.
    if PID.load(Relaxed) == std::process::id() {
        end("the process exited");
    }
}

/// Ends the recording. Returns when the last block is written; at once if the recording has ended. If it is just ending by
/// itself, the writer first says so.
fn end(why: &'static str) {
    stop();
    ignore_poison(ASKED.lock()).end = Some(why);
    ask_for_round();
}

/// Writes all that was recorded so far to the file. Returns when that is done; at once while the recorder is off.
///
/// A runtime calls it when it has shut down. The recording goes on.
pub fn flush() {
    // A child of clone(2), which no handler tells, has no writer.
    if is_on() && PID.load(Relaxed) == std::process::id() {
        ask_for_round();
    }
}

fn ask_for_round() {
    if WRITER.get().is_some_and(|writer| writer.id() == std::thread::current().id()) {
        // The writer itself ends the process: a panic hook may do that.
        return;
    }
    let mut asked = ignore_poison(ASKED.lock());
    asked.rounds += 1;
    let mine = asked.rounds;
    wake_writer();
    let waits = |asked: &mut Asked| asked.is_running && asked.done < mine;
    drop(ignore_poison(ANSWERED.wait_while(asked, waits)));
}

/// Ends the writer's wait: a ring is half full.
pub(crate) fn wake_writer() {
    if let Some(thread) = WRITER.get() {
        thread.unpark();
    }
}

/// What the writer is asked for now: how many rounds in all, and why the recording is to end.
pub(crate) fn asked() -> (u64, Option<&'static str>) {
    let asked = ignore_poison(ASKED.lock());
    (asked.rounds, asked.end)
}

/// The writer has done this many of the rounds that it was asked for.
pub(crate) fn answer(rounds: u64, is_running: bool) {
    let mut asked = ignore_poison(ASKED.lock());
    asked.done = rounds;
    asked.is_running = is_running;
    ANSWERED.notify_all();
}

/// Adds the current thread. False: the recorder is off, or has no number for another thread.
pub(crate) fn add_thread(ring: Arc<Ring>, base: u64) -> bool {
    let thread = std::thread::current();
    let name = shortened(thread.name().unwrap_or_default()).to_owned();
    let mut shared = ignore_poison(SHARED.lock());
    if !is_on() || shared.threads == THREADS_MAX {
        return false;
    }
    shared.threads += 1;
    shared.new_threads.push(NewThread { ring, base, tid: affinity::this_thread(), name });
    true
}

fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// Takes the threads that were added since the last call.
pub(crate) fn take_threads() -> Vec<NewThread> {
    std::mem::take(&mut ignore_poison(SHARED.lock()).new_threads)
}

/// Returns the key of a task's name. `None`: there are too many names.
pub(crate) fn name_key(name: &str) -> Option<u32> {
    let name = shortened(name);
    let mut shared = ignore_poison(SHARED.lock());
    let names = shared.names.get_or_insert_default();
    if let Some(key) = names.get(name) {
        return Some(*key);
    }
    let key = names.len() as u32;
    if names.len() == NAMES_MAX {
        return None;
    }
    names.insert(name.into(), key);
    shared.new_names.push((key, name.to_owned()));
    Some(key)
}

/// Takes the names that are new since the last call.
pub(crate) fn take_names() -> Vec<(u32, String)> {
    std::mem::take(&mut ignore_poison(SHARED.lock()).new_names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_bytes_with_a_suffix() {
        let parse = |text: &str| parse_bytes(&text.into());
        assert_eq!(parse("65536"), Some(65536));
        assert_eq!(
            [parse("100k"), parse("3M"), parse("2G")],
            [Some(100 << 10), Some(3 << 20), Some(2 << 30)]
        );
        for wrong in
            ["", "1", "63k", "4T", "G", "-1", "1.5G", "99999999999999999999", "18446744073709551615G"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_header_has_this_process_and_its_cpus() {
        let header = header();
        assert_eq!(header.pid, std::process::id());
        let allowed = affinity::allowed().unwrap();
        assert!(allowed.iter().all(|cpu| header.cpus.iter().any(|place| place.cpu == cpu)), "{header:?}");
        assert_eq!(Header::from_text(&header.to_string()), Ok(header));
    }
}
