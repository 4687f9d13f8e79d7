//! Clock: a monotonic time in nanoseconds that is cheap to read.
//!
//! Where the CPU has a counter of constant rate (on x86-64 an invariant time-stamp counter that the kernel uses too, on
//! aarch64 the generic timer), the time is its value scaled by a factor that is measured once against CLOCK_MONOTONIC.
//! Elsewhere it is CLOCK_MONOTONIC itself. The time never decreases on one thread.
//!
//! # Cost
//!
//! `rdtsc` takes 6 to 10 ns, CLOCK_MONOTONIC through the vDSO 20 to 50 ns.
//!
//! # Source
//!
//! CPUID 8000_0007H EDX bit 8 (invariant TSC); ARM CNTVCT_EL0.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use warmcore_types::{Nanos, ThreadUsage};

/// The clock that [`now`] reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The CPU's own counter, scaled.
    Counter,
    /// `clock_gettime`, through the vDSO where there is one.
    Monotonic,
}

struct Scale {
    source: Source,
    /// Nanoseconds per tick, times 2³².
    ns_per_tick_q32: u64,
    /// The counter's value at the clock's time 0.
    zero_tick: u64,
    /// CLOCK_MONOTONIC at the clock's time 0.
    zero: Instant,
}

/// The length of the calibration. Against a clock with an error of 50 ns, 5 ms give an error of 1e-5.
const CALIBRATE_FOR: Duration = Duration::from_millis(5);

static SCALE: OnceLock<Scale> = OnceLock::new();

fn scale() -> &'static Scale {
    SCALE.get_or_init(|| {
        let zero = Instant::now();
        let Some(zero_tick) = ticks() else {
            return Scale { source: Source::Monotonic, ns_per_tick_q32: 0, zero_tick: 0, zero };
        };
        // Each end of the interval is a read of the counter between two reads of CLOCK_MONOTONIC. Of 16 tries the
        // shortest is used, since longer ones may have been interrupted.
        let pair = || {
            (0..16)
                .map(|_| {
                    let (before, tick, after) = (Instant::now(), ticks().unwrap_or(0), Instant::now());
                    (after - before, before + (after - before) / 2, tick)
                })
                .min_by_key(|(width, _, _)| *width)
                .map(|(_, time, tick)| (time, tick))
                .unwrap_or((Instant::now(), zero_tick))
        };
        let (time_a, tick_a) = pair();
        while time_a.elapsed() < CALIBRATE_FOR {
            std::hint::spin_loop();
        }
        let (time_b, tick_b) = pair();
        let ns = (time_b - time_a).as_nanos();
        let ns_per_tick_q32 = ((ns << 32) / u128::from((tick_b - tick_a).max(1))) as u64;
        Scale { source: Source::Counter, ns_per_tick_q32, zero_tick, zero }
    })
}

/// Returns the time since this process first called [`now`], [`source`] or [`ticks_per_ns`]. With a counter, that first
/// call takes 5 ms or a little more, for the calibration.
#[inline]
pub fn now() -> Nanos {
    let scale = scale();
    match ticks().filter(|_| scale.source == Source::Counter) {
        None => Nanos(scale.zero.elapsed().as_nanos() as u64),
        Some(tick) => {
            let ticks = u128::from(tick.saturating_sub(scale.zero_tick));
            Nanos(((ticks * u128::from(scale.ns_per_tick_q32)) >> 32) as u64)
        }
    }
}

/// By how many bits a stamp is shorter than the counter. A time-stamp counter counts about 3 a nanosecond, which would fill
/// 32 bits in 1.4 s. The generic timer of aarch64 counts 0.02 to 1.
const STAMP_SHIFT: u32 = if cfg!(target_arch = "x86_64") { 4 } else { 0 };

/// Whether stamps come from the counter. Written by [`ns_per_stamp_q32`], read by [`stamp`].
static STAMP_IS_COUNTER: AtomicBool = AtomicBool::new(false);

/// Returns the time as a stamp: the CPU's counter, on x86-64 divided by 16, which gives units of about 5 ns; nanoseconds
/// where [`now`] does not use the counter, and before the first call of [`ns_per_stamp_q32`].
///
/// Stamps of different threads are in the order in which they were taken, as far as the CPUs' counters agree.
///
/// **Cost** that of the counter and a load; nothing is scaled.
#[inline]
pub fn stamp() -> u64 {
    if STAMP_IS_COUNTER.load(Relaxed) { counter() >> STAMP_SHIFT } else { stamp_of_monotonic() }
}

#[cold]
fn stamp_of_monotonic() -> u64 {
    scale().zero.elapsed().as_nanos() as u64
}

/// Returns the nanoseconds per unit of a [`stamp`], times 2³². From this call on, stamps come from the counter, if [`now`]
/// uses it: earlier stamps can't be compared with later ones.
pub fn ns_per_stamp_q32() -> u64 {
    let scale = scale();
    match scale.source {
        Source::Monotonic => 1 << 32,
        Source::Counter => {
            STAMP_IS_COUNTER.store(true, Relaxed);
            scale.ns_per_tick_q32 << STAMP_SHIFT
        }
    }
}

/// Returns the clock that [`now`] reads.
pub fn source() -> Source {
    scale().source
}

/// Returns the rate of the CPU's counter in ticks per nanosecond, or `None` if [`now`] does not use the counter. On
/// x86-64 it is near the processor's base frequency and independent of the core's current frequency.
pub fn ticks_per_ns() -> Option<f64> {
    let scale = scale();
    (scale.source == Source::Counter).then(|| (1u64 << 32) as f64 / scale.ns_per_tick_q32 as f64)
}

/// Returns the CPU time of all threads of this process.
#[cfg(unix)]
pub fn process_cpu() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes one timespec. It fails only without the clock; the result is 0 then.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns 0: not supported on this platform.
#[cfg(not(unix))]
pub fn process_cpu() -> Nanos {
    Nanos(0)
}

/// The CPU-time clock of a thread. As long as that thread lives, every thread of the process can read the clock.
#[cfg(target_os = "linux")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCpu(libc::clockid_t);

#[cfg(target_os = "linux")]
impl ThreadCpu {
    /// Returns the clock of the current thread.
    pub fn current() -> Self {
        let mut id = libc::CLOCK_THREAD_CPUTIME_ID;
        // SAFETY: this thread lives; one clock id is written. It fails only without that clock; then the id stays that
        // of the calling thread, whichever it is.
        unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut id) };
        Self(id)
    }

    /// Returns the CPU time of the thread, or 0 if it has ended and no later thread of this process has its id. A
    /// system call, 0.2 µs.
    pub fn read(self) -> Nanos {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel writes one timespec; of a thread that has ended it writes none.
        unsafe { libc::clock_gettime(self.0, &mut time) };
        Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// Returns how long the machine's CPUs were idle since it started, all together, in steps of 10 ms. `None`: the system does not tell.
/// Takes 5 µs. Source: proc_uptime(5).
pub fn cpus_idle() -> Option<Nanos> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Nanos((seconds * 1e9) as u64))
}

/// Returns what the kernel has counted of the calling thread. Two system calls, 0.4 µs.
#[cfg(target_os = "linux")]
pub fn thread_usage() -> ThreadUsage {
    // SAFETY: the kernel fills the struct, for which all zeros is valid; it can't fail for a thread's own usage.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    let (preempted, waited) = (usage.ru_nivcsw as u64, usage.ru_nvcsw as u64);
    ThreadUsage { cpu: ThreadCpu::current().read(), preempted, waited }
}

/// Reads the time-stamp counter, if it is invariant and the kernel's clock uses it.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ticks() -> Option<u64> {
    use std::arch::x86_64::__cpuid;
    static INVARIANT: OnceLock<bool> = OnceLock::new();
    let invariant = *INVARIANT.get_or_init(|| {
        // CPUID may report an invariant counter that is not usable (unsynchronised sockets, live migration). The kernel
        // detects this and uses another clock source.
        let trusted =
            std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .is_ok_and(|name| matches!(name.trim(), "tsc" | "kvm-clock" | "hyperv_clocksource_tsc_page"));
        trusted && __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
    });
    invariant.then(counter)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 CPU has the instruction. The kernel leaves it enabled unless the program has disabled it
    // with prctl(PR_SET_TSC); then the instruction raises SIGSEGV.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Reads the generic timer, which is the same on all CPUs by the architecture.
#[cfg(target_arch = "aarch64")]
#[inline]
fn ticks() -> Option<u64> {
    Some(counter())
}

#[cfg(target_arch = "aarch64")]
#[inline]
fn counter() -> u64 {
    let tick: u64;
    // SAFETY: reads a register that user space may read on every Linux.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) tick, options(nomem, nostack, preserves_flags)) };
    tick
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter() -> u64 {
    unreachable!("stamps come from a counter only where there is one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_never_decreases_on_one_thread() {
        let mut last = now();
        for _ in 0..100_000 {
            let next = now();
            assert!(next >= last, "{next:?} after {last:?}");
            last = next;
        }
    }

    #[test]
    #[cfg(unix)]
    fn process_cpu_grows_while_the_process_computes() {
        let before = process_cpu();
        let mut used = 0;
        for i in 0..10_000_000u64 {
            used = std::hint::black_box(i);
            if process_cpu() > before {
                break;
            }
        }
        assert!(process_cpu() > before, "nothing used in {used} steps");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_tells_how_long_cpus_were_idle() {
        assert!(cpus_idle().is_some_and(|idle| idle.0 > 0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn another_thread_can_read_a_threads_cpu_time() {
        let (tell, told) = std::sync::mpsc::channel();
        let (done, end) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let clock = ThreadCpu::current();
            let before = clock.read();
            while clock.read().0 < before.0 + 5_000_000 {}
            tell.send((clock, clock.read())).unwrap();
            end.recv().unwrap_err();
        });
        let (theirs, read_there) = told.recv().unwrap();
        // The thread has blocked or is about to, so this value is the one that the thread itself read, plus the short
        // CPU time until it blocks.
        let read_here = theirs.read();
        assert!(
            read_here >= read_there && read_here.0 - read_there.0 < 5_000_000,
            "{read_here:?} {read_there:?}"
        );
        assert_ne!(theirs, ThreadCpu::current());
        drop(done);
        thread.join().unwrap();
        // `join` may return before the kernel has removed the thread.
        while theirs.read() != Nanos(0) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn stamps_agree_with_the_monotonic_clock() {
        let scale = ns_per_stamp_q32();
        let (a, b) = (stamp(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let (stamps, theirs) = (stamp() - a, b.elapsed().as_nanos() as u64);
        let ours = ((u128::from(stamps) * u128::from(scale)) >> 32) as u64;
        // As below: the bound is wide.
        assert!(ours.abs_diff(theirs) < theirs, "{ours} ns against {theirs} ns");
    }

    #[test]
    fn the_time_agrees_with_the_monotonic_clock() {
        let (a, b) = (now(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        let (ours, theirs) = (now().0 - a.0, b.elapsed().as_nanos() as u64);
        // A preemption between the two reads makes them differ, so the bound is wide: the test fails if the clock runs
        // at twice the speed or more, or does not run.
        assert!(ours.abs_diff(theirs) < theirs, "{ours} ns against {theirs} ns");
    }
}
