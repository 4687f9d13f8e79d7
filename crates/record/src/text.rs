//! Text: the lines of a recording's header, and of its blocks of text.
//!
//! A line is a word, its values, and, where a line has free text, that text at its end, with backslash, newline and
//! carriage return escaped. A reader leaves out lines whose first word is new to it.

use std::fmt;
use warmcore_types::CpuId;

/// Where a CPU is: numbers that are equal where CPUs share the core, the last-level cache, the node or the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPlace {
    /// The CPU.
    pub cpu: CpuId,
    /// Its core.
    pub core: u32,
    /// Its last-level cache. `None`: the process could not read it.
    pub llc: Option<u32>,
    /// Its NUMA node. `None`: as above.
    pub node: Option<u32>,
    /// Its socket. `None`: as above.
    pub socket: Option<u32>,
}

/// What the process and the machine were when the recording began.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// The process's number.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// The stamp at which the recording began.
    pub start: u64,
    /// That moment, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Nanoseconds per unit of a stamp, times 2³².
    pub ns_per_stamp_q32: u64,
    /// The CPUs of the machine, ascending; of a machine that can't be read, those that the process might use. Empty: these
    /// can't be read either.
    pub cpus: Vec<CpuPlace>,
}

impl Header {
    /// Returns a distance between two stamps in nanoseconds, at most 2⁵⁶, which are two years.
    #[inline]
    pub fn ns(&self, stamps: u64) -> u64 {
        ((u128::from(stamps) * u128::from(self.ns_per_stamp_q32)) >> 32).min(1 << 56) as u64
    }

    /// Reads the lines of a header. Unknown lines are left out; a known line that can't be read is the error.
    pub fn from_text(text: &str) -> Result<Self, String> {
        let mut header = Self::default();
        for line in text.lines() {
            let mut values = Values::of(line);
            let wrong = || format!("a line of the header can't be read: {line:?}");
            match values.word() {
                "pid" => header.pid = values.number().ok_or_else(wrong)?,
                "command" => header.command = values.rest(),
                "start" => header.start = values.number().ok_or_else(wrong)?,
                "started-unix-ns" => header.started_unix_ns = values.number().ok_or_else(wrong)?,
                "ns-per-stamp-q32" => header.ns_per_stamp_q32 = values.number().ok_or_else(wrong)?,
                "cpu" => header.cpus.push(values.cpu_place().ok_or_else(wrong)?),
                _ => {}
            }
        }
        // A unit is 5 ns or so. With one above 1 µs, sums of times might not fit.
        if !(1..=1 << 42).contains(&header.ns_per_stamp_q32) {
            return Err("the header does not say how long a unit of time is".to_owned());
        }
        Ok(header)
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pid {}", self.pid)?;
        writeln!(f, "command {}", Escaped(&self.command))?;
        writeln!(f, "start {}", self.start)?;
        writeln!(f, "started-unix-ns {}", self.started_unix_ns)?;
        writeln!(f, "ns-per-stamp-q32 {}", self.ns_per_stamp_q32)?;
        self.cpus.iter().try_for_each(|at| {
            let (llc, node, socket) = (OrDash(at.llc), OrDash(at.node), OrDash(at.socket));
            writeln!(f, "cpu {} {} {llc} {node} {socket}", at.cpu.0, at.core)
        })
    }
}

/// Where a task was spawned.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location {
    /// The source file, as the compiler names it.
    pub file: String,
    /// The line, from 1 on.
    pub line: u32,
    /// The column, from 1 on.
    pub column: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Totals of one thread, since the recording began for the polls, since the thread began for what the kernel counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ThreadStats {
    /// When they were read, as a stamp.
    pub at: u64,
    /// Polls that were recorded.
    pub polls: u64,
    /// Records that were dropped because the thread's ring was full.
    pub dropped: u64,
    /// Polls of tasks that were left out because only some tasks are sampled.
    pub skipped: u64,
    /// What the kernel counts. `None`: the process could not read it.
    pub kernel: Option<KernelStats>,
}

/// What the kernel counts for a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelStats {
    /// Time on a CPU, in nanoseconds.
    pub cpu_ns: u64,
    /// Time in which the thread could run and had no CPU, in nanoseconds.
    pub run_delay_ns: u64,
    /// How often another thread got the CPU although this one could run.
    pub involuntary_switches: u64,
}

/// A line in a block of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextLine {
    /// `location KEY LINE COLUMN FILE`: where tasks are spawned whose [`RecordKind::Spawn`](crate::RecordKind::Spawn) has this key.
    Location(u64, Location),
    /// `name KEY TEXT`: a name of tasks.
    Name(u32, String),
    /// `thread INDEX TID TEXT`: the thread's number in the system, and its name.
    Thread(u16, u32, String),
    /// `stats INDEX AT POLLS DROPPED SKIPPED [CPU_NS RUN_DELAY_NS INVOLUNTARY_SWITCHES]`: totals of a thread.
    Stats(u16, ThreadStats),
    /// `sampled SHIFT AT`: from now on the tasks are recorded whose number, times [`SAMPLE_FACTOR`], begins with SHIFT
    /// zero bits, one of 2^SHIFT.
    Sampled(u32, u64),
    /// `machine AT BUSY_NS`: for how long all CPUs of the machine together were busy until then, with all processes.
    Machine(u64, u64),
}

/// Scatters the numbers of tasks, so that a sample of tasks does not follow a pattern in which tasks are spawned.
pub const SAMPLE_FACTOR: u32 = 0x9E37_79B1;

impl TextLine {
    /// Reads a line. `Ok(None)`: its first word is new to this version. The error has the line.
    pub fn from_line(line: &str) -> Result<Option<Self>, String> {
        let mut values = Values::of(line);
        let read = match values.word() {
            "location" => values.location(),
            "name" => values.number().map(|key| Self::Name(key, values.rest())),
            "thread" => values.thread(),
            "stats" => values.stats(),
            "sampled" => values.number().zip(values.number()).map(|(shift, at)| Self::Sampled(shift, at)),
            "machine" => values.number().zip(values.number()).map(|(at, busy_ns)| Self::Machine(at, busy_ns)),
            _ => return Ok(None),
        };
        read.map(Some).ok_or_else(|| format!("a line can't be read: {line:?}"))
    }
}

impl fmt::Display for TextLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Location(key, at) => {
                write!(f, "location {key} {} {} {}", at.line, at.column, Escaped(&at.file))
            }
            Self::Name(key, name) => write!(f, "name {key} {}", Escaped(name)),
            Self::Thread(index, tid, name) => write!(f, "thread {index} {tid} {}", Escaped(name)),
            Self::Stats(index, stats) => {
                let ThreadStats { at, polls, dropped, skipped, kernel } = stats;
                write!(f, "stats {index} {at} {polls} {dropped} {skipped}")?;
                let Some(kernel) = kernel else { return Ok(()) };
                write!(f, " {} {} {}", kernel.cpu_ns, kernel.run_delay_ns, kernel.involuntary_switches)
            }
            Self::Sampled(shift, at) => write!(f, "sampled {shift} {at}"),
            Self::Machine(at, busy_ns) => write!(f, "machine {at} {busy_ns}"),
        }
    }
}

/// The values of a line, from left to right.
struct Values<'a>(&'a str);

impl<'a> Values<'a> {
    fn of(line: &'a str) -> Self {
        Self(line)
    }

    fn word(&mut self) -> &'a str {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest;
        word
    }

    fn number<N: std::str::FromStr>(&mut self) -> Option<N> {
        self.word().parse().ok()
    }

    /// A number, or `None` for a dash. The outer `None`: neither.
    fn or_dash(&mut self) -> Option<Option<u32>> {
        match self.word() {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    /// What is left, unescaped.
    fn rest(&mut self) -> String {
        let mut text = String::with_capacity(self.0.len());
        let mut chars = std::mem::take(&mut self.0).chars();
        while let Some(char) = chars.next() {
            match char {
                '\\' => match chars.next() {
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some(other) => text.push(other),
                    None => {}
                },
                _ => text.push(char),
            }
        }
        text
    }

    fn cpu_place(&mut self) -> Option<CpuPlace> {
        let (cpu, core) = (CpuId(self.number()?), self.number()?);
        let (llc, node, socket) = (self.or_dash()?, self.or_dash()?, self.or_dash()?);
        Some(CpuPlace { cpu, core, llc, node, socket })
    }

    fn location(&mut self) -> Option<TextLine> {
        let (key, line, column) = (self.number()?, self.number()?, self.number()?);
        Some(TextLine::Location(key, Location { file: self.rest(), line, column }))
    }

    fn thread(&mut self) -> Option<TextLine> {
        let (index, tid) = (self.number()?, self.number()?);
        Some(TextLine::Thread(index, tid, self.rest()))
    }

    fn stats(&mut self) -> Option<TextLine> {
        let index = self.number()?;
        let (at, polls, dropped, skipped) = (self.number()?, self.number()?, self.number()?, self.number()?);
        let kernel = match self.0 {
            "" => None,
            _ => Some(KernelStats {
                cpu_ns: self.number()?,
                run_delay_ns: self.number()?,
                involuntary_switches: self.number()?,
            }),
        };
        Some(TextLine::Stats(index, ThreadStats { at, polls, dropped, skipped, kernel }))
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|char| match char {
            '\\' => f.write_str("\\\\"),
            '\n' => f.write_str("\\n"),
            '\r' => f.write_str("\\r"),
            char => f.write_char(char),
        })
    }
}

struct OrDash(Option<u32>);

impl fmt::Display for OrDash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(number) => number.fmt(f),
            None => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back() {
        let place = |cpu, llc| CpuPlace { cpu: CpuId(cpu), core: cpu / 2, llc, node: Some(0), socket: None };
        let header = Header {
            pid: 7,
            command: "a server\nwith \\ and \r in it".to_owned(),
            start: u64::MAX,
            started_unix_ns: 12,
            ns_per_stamp_q32: 1 << 34,
            cpus: vec![place(0, Some(1)), place(8190, None)],
        };
        assert_eq!(Header::from_text(&format!("{header}later 1\n")), Ok(header));
    }

    #[test]
    fn lines_are_read_back() {
        let kernel = Some(KernelStats { cpu_ns: 1, run_delay_ns: 2, involuntary_switches: 3 });
        let stats = ThreadStats { at: 4, polls: 5, dropped: 6, skipped: 7, kernel };
        for line in [
            TextLine::Location(9, Location { file: "src/a b.rs".to_owned(), line: 1, column: 2 }),
            TextLine::Name(0, String::new()),
            TextLine::Thread(1, 2, "worker\n0".to_owned()),
            TextLine::Stats(3, stats),
            TextLine::Stats(3, ThreadStats { kernel: None, ..stats }),
            TextLine::Sampled(3, 44),
            TextLine::Machine(5, 66),
        ] {
            assert_eq!(TextLine::from_line(&line.to_string()), Ok(Some(line)));
        }
    }

    #[test]
    fn a_line_of_a_later_version_is_left_out_and_a_damaged_one_is_an_error() {
        assert_eq!(TextLine::from_line("later 1 2"), Ok(None));
        assert!(TextLine::from_line("stats 1 2 3 x").is_err());
        assert!(Header::from_text("cpu 1\n").unwrap_err().contains("cpu 1"));
        assert!(Header::from_text("").unwrap_err().contains("unit of time"));
    }
}
