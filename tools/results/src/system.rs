//! The machine and its load, as a result records them.
//!
//! [`LoadMeter`] reads `/proc/stat` and `/proc/self/stat` before and after the measurement. The differences give the
//! time that the hypervisor stole and the time that other processes and the kernel used, as shares of all CPU time.
//!
//! Source: proc(5), both files in ticks of 10 ms.

use crate::{HostInfo, Load, Results, Row, SCHEMA};
use std::time::{SystemTime, UNIX_EPOCH};
use warmcore_percpu::backend;
use warmcore_sys::{affinity, platform};

/// The properties of the machine on which results may depend.
pub fn machine() -> HostInfo {
    let allowed = affinity::allowed().unwrap_or_default();
    HostInfo {
        cpu: cpu_model(),
        kernel: platform::kernel(),
        libc: platform::libc(),
        arch: std::env::consts::ARCH.to_owned(),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32).max(allowed.len() as u32),
        allowed: allowed.to_string(),
        hypervisor: platform::hypervisor(),
    }
}

/// The processor's name in `/proc/cpuinfo`; on Arm its part number; the architecture if there is neither.
fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|l| l.starts_with("model name") || l.starts_with("CPU part"));
    line.and_then(|l| l.split_once(':')).map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

/// Measures shares of the CPU time since [`LoadMeter::start`].
pub struct LoadMeter {
    loadavg_1m: f64,
    ticks: Ticks,
}

#[derive(Clone, Copy, Default)]
struct Ticks {
    all: f64,
    idle: f64,
    steal: f64,
    /// The CPU time of this process, and of its children that have ended and were waited for.
    own: f64,
}

fn ticks() -> Ticks {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // user nice system idle iowait irq softirq steal; guest time is in user already.
    let fields: Vec<f64> = fields.take(8).map(|f| f.parse().unwrap_or(0.0)).collect();
    let at = |i: usize| fields.get(i).copied().unwrap_or(0.0);
    let own = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name in parentheses may contain spaces, so count fields from the closing parenthesis. utime and stime are the
    // fields 14 and 15; those of children that were waited for are 16 and 17.
    let own = own.rsplit_once(')').map_or("", |(_, rest)| rest);
    let own = own.split_whitespace().skip(11).take(4).map(|f| f.parse().unwrap_or(0.0)).sum();
    Ticks { all: fields.iter().sum(), idle: at(3) + at(4), steal: at(7), own }
}

impl LoadMeter {
    /// Reads the counters for the first time.
    pub fn start() -> Self {
        let loadavg = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let loadavg_1m = loadavg.split_whitespace().next().and_then(|f| f.parse().ok()).unwrap_or(0.0);
        Self { loadavg_1m, ticks: ticks() }
    }

    /// Reads the counters again and returns the load since [`LoadMeter::start`].
    pub fn load(&self) -> Load {
        let (before, now) = (self.ticks, ticks());
        let all = (now.all - before.all).max(1.0);
        let steal = now.steal - before.steal;
        let busy = all - (now.idle - before.idle) - steal;
        let share = |ticks: f64| (ticks / all).clamp(0.0, 1.0);
        Load {
            loadavg_1m: self.loadavg_1m,
            steal_share: share(steal),
            others_share: share(busy - (now.own - before.own)),
        }
    }
}

/// Builds the results around `rows`, with the load since the start of `meter` and without timelines.
pub fn results(what: &str, command: &str, when: String, meter: &LoadMeter, rows: Vec<Row>) -> Results {
    Results {
        schema: SCHEMA,
        what: what.to_owned(),
        command: command.to_owned(),
        when,
        machine: machine(),
        percpu_backend: backend().to_string(),
        load: meter.load(),
        rows,
        timelines: Vec::new(),
    }
}

/// Now, UTC, as RFC 3339 to the second.
pub fn utc_now() -> String {
    rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as a date: the civil calendar, counted in eras of 400 years from March.
fn rfc3339(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_the_civil_one() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_795_251_845), "2026-11-21T09:04:05Z");
    }

    #[test]
    fn a_busy_thread_of_ours_is_not_load() {
        let meter = LoadMeter::start();
        let began = std::time::Instant::now();
        while began.elapsed().as_millis() < 300 {
            std::hint::spin_loop();
        }
        let load = meter.load();
        assert!((0.0..=1.0).contains(&load.others_share) && (0.0..=1.0).contains(&load.steal_share));
    }
}
