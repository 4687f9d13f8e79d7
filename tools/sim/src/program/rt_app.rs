//! RtApp: reads programs from a JSON file for rt-app.
//!
//! `tasks` has a key per kind of thread: how many (`instance`), where (`cpus`), from when (`delay`), how often
//! (`loop`), and events in the order in which they are written, possibly in `phases`. A timer belongs to its thread:
//! two threads that name the same `ref` have a timer each. `mem` passes over the beginning of one buffer per thread,
//! which is as large as the thread's largest `mem`. Keys about other properties of scheduling (policies, priorities,
//! clamps) and about logs, as well as `resources` and `iorun`, are ignored and listed; unknown keys are errors. Times
//! are in microseconds in the file (`duration`: in seconds) and in nanoseconds in programs. `run` is CPU time; `runtime`
//! ends when so much time has passed, also while the task was preempted.
//!
//! # Source
//!
//! rt-app, `doc/tutorial.txt`: the events, their defaults, and the known keys.
//!
//! ```
//! use warmcore_sim::program::rt_app;
//!
//! let load = rt_app::read(r#"{ "tasks": { "web": { "instance": 2, "run": 100, "sleep": 900 } } }"#)?;
//! assert_eq!(load.programs.iter().map(|p| p.name()).collect::<Vec<_>>(), ["web-0", "web-1"]);
//!
//! let error = rt_app::read(r#"{ "tasks": { "web": { "phases": { "p1": { "run": "long" } } } } }"#).unwrap_err();
//! assert!(error.to_string().starts_with("tasks.web.phases.p1.run: a string, no time"));
//! # Ok::<(), warmcore_sim::program::ProgramError>(())
//! ```

use super::{FOREVER, FORKS_MAX, LENGTH_MAX, Program, ProgramError, TIMERS, TaskAffinity};
use crate::error::similar_names;
use crate::memory::{Access, Pages};
use json::Json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use warmcore_types::{CpuId, CpuSet, Nanos};

mod json;

/// What a file describes.
#[derive(Debug, Clone)]
pub struct Load {
    /// A program per thread that no other thread forks.
    pub programs: Vec<Program>,
    /// How long to run; `None`: without a limit.
    pub duration: Option<Nanos>,
    /// The locations of keys that were ignored.
    pub ignored: Vec<String>,
}

type Object = [(String, Json)];

/// Keys of a task or phase that are ignored, because what they control is not simulated.
const HARMLESS: &[&str] = &[
    "policy",
    "priority",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "util_min",
    "util_max",
    "membind_nodes",
    "nodes_membind",
    "taskgroup",
    "comment",
];

/// As `HARMLESS`, for keys of `global`.
const HARMLESS_GLOBAL: &[&str] = &[
    "calibration",
    "default_policy",
    "pi_enabled",
    "lock_pages",
    "logdir",
    "log_basename",
    "log_size",
    "ftrace",
    "gnuplot",
    "io_device",
    "mem_buffer_size",
    "cumulative_slack",
];

/// The other keys of a task or phase: events and properties.
const EVENTS: &[&str] = &[
    "run", "runtime", "sleep", "mem", "timer", "lock", "unlock", "wait", "sync", "signal", "broad", "resume",
    "suspend", "barrier", "yield", "fork", "iorun", "loop", "cpus", "instance", "delay", "phases",
];

/// Keys that may occur only once; keys of events may occur again.
const PROPERTIES: &[&str] = &["loop", "cpus", "instance", "delay", "phases", "duration", "tasks", "global"];

/// The most threads of all tasks together. A larger number is rejected as a typing error.
const INSTANCES_MAX: i64 = 1 << 16;

/// The most steps of all threads together: a simulation copies them for each thread, 32 bytes a step.
const STEPS_MAX: usize = 1 << 22;

/// A limit on CPU numbers, since a set takes memory up to its largest number. Linux supports 8192 CPUs.
const CPU_MAX: i64 = 1 << 14;

/// Reads the text of a file.
///
/// # Errors
/// Text that is no JSON, with line and column; a file that rt-app would not accept, or that is beyond the limits of
/// this reader, with the location: `tasks.web.phases.p1.run`; a `suspend` or `wait` for a name that no `resume`,
/// `signal`, `broad` or `sync` of the file names, which would wait for ever.
pub fn read(text: &str) -> Result<Load, ProgramError> {
    if text.trim().is_empty() {
        return wrong("the file", "is empty", "describe one thread at least: { \"tasks\": { … } }");
    }
    let json = serde_json::from_str(&json::without_comments(text)).map_err(|e| {
        let fact = e.to_string();
        let fact = fact.split(" at line ").next().unwrap_or_default();
        ProgramError::new(format!("line {}, column {}", e.line(), e.column()), fact, "mend the JSON")
    })?;
    let mut reader = Reader::default();
    let file = object(&json, "the file")?;
    once(file, "")?;
    for (key, value) in file {
        match key.as_str() {
            "tasks" => reader.tasks = object(value, "tasks")?,
            "global" => reader.global(object(value, "global")?)?,
            "resources" => reader.ignored.push("resources".into()),
            _ => return unknown(key, key, &["tasks"], "`tasks`, `global` or `resources`"),
        }
    }
    let mut names = BTreeSet::new();
    if let Some(task) = reader.tasks.iter().map(|(task, _)| task).find(|task| !names.insert(*task)) {
        let next = "give one of them another name, or say `instance`";
        return wrong(format!("tasks.{task}"), "there are two tasks of this name", next);
    }
    if reader.tasks.is_empty() {
        return wrong("tasks", "there are none", "describe one thread at least");
    }
    reader.read()
}

fn wrong<T>(
    location: impl Into<String>,
    fact: impl Into<String>,
    next: impl Into<String>,
) -> Result<T, ProgramError> {
    Err(ProgramError::new(location, fact, next))
}

/// An error about an unknown key. `like`: keys that may have been meant.
fn unknown<T>(location: &str, key: &str, like: &[&str], known: &str) -> Result<T, ProgramError> {
    let next = perhaps(kind_of(key), like.iter().copied(), || format!("there are {known}"));
    wrong(location, "unknown key", next)
}

/// What to do about an unknown name: "perhaps `a`, `b` or `c` is meant", or else `other`.
fn perhaps<'a>(name: &str, known: impl Iterator<Item = &'a str>, other: impl FnOnce() -> String) -> String {
    similar_names(name, known).map_or_else(other, |meant| {
        format!("perhaps `{}` is meant", meant.replace(", ", "`, `").replace(" or ", "` or `"))
    })
}

/// Checks that no property occurs twice.
fn once(all: &Object, location: &str) -> Result<(), ProgramError> {
    for (i, (key, _)) in all.iter().enumerate() {
        if PROPERTIES.contains(&key.as_str()) && all[..i].iter().any(|(before, _)| before == key) {
            return wrong(format!("{location}{key}"), "is there twice", "leave one of them out");
        }
    }
    Ok(())
}

/// The number of rounds of a loop; −1 in the file is for ever.
fn rounds(value: &Json, location: &str) -> Result<u32, ProgramError> {
    let n = integer(value, location, -1, "number of rounds")?;
    if n >= i64::from(FOREVER) {
        let next = format!("{} is the most, and -1 for ever", FOREVER - 1);
        return wrong(location, format!("{n} rounds"), next);
    }
    Ok(u32::try_from(n).unwrap_or(FOREVER))
}

/// Repeats what `body` adds to the program. With `times` = 1 there is no loop step.
fn looped(
    program: Program,
    times: u32,
    body: impl FnOnce(Program) -> Result<Program, ProgramError>,
) -> Result<Program, ProgramError> {
    if times == 1 {
        return body(program);
    }
    let begin = program.steps();
    Ok(body(program.begin_loop(times))?.end_loop(begin))
}

fn object<'a>(value: &'a Json, location: &str) -> Result<&'a Object, ProgramError> {
    match value {
        Json::Object(all) => Ok(all),
        other => wrong(location, format!("{}, no object", other.kind()), "write { … }"),
    }
}

fn integer(value: &Json, location: &str, least: i64, what: &str) -> Result<i64, ProgramError> {
    match value {
        Json::Int(n) if *n >= least => Ok(*n),
        Json::Int(n) => wrong(location, format!("{n}, no {what}"), format!("{least} is the least")),
        other => wrong(location, format!("{}, no {what}", other.kind()), "write an integer"),
    }
}

fn micros(value: &Json, location: &str) -> Result<Nanos, ProgramError> {
    let n = integer(value, location, 0, "time in µs")?;
    let ns = n.unsigned_abs().checked_mul(1000).filter(|ns| *ns <= LENGTH_MAX.0);
    ns.map(Nanos).ok_or_else(|| {
        let next = format!("{} µs is the most, 104 days", LENGTH_MAX.0 / 1000);
        ProgramError::new(location, format!("{n} µs"), next)
    })
}

fn name<'a>(value: &'a Json, location: &str) -> Result<&'a str, ProgramError> {
    match value {
        Json::Text(text) => Ok(text),
        other => wrong(location, format!("{}, no name", other.kind()), "write a string"),
    }
}

fn find<'a>(of: &'a Object, key: &str) -> Option<&'a Json> {
    of.iter().find(|(known, _)| known == key).map(|(_, value)| value)
}

/// A member of an object like `{ "ref": …, "mutex": … }`.
fn member<'a>(of: &'a Object, key: &str, location: &str) -> Result<&'a Json, ProgramError> {
    let missing = || ProgramError::new(location, format!("has no `{key}`"), format!("add `{key}`"));
    find(of, key).ok_or_else(missing)
}

/// An event's key without the digits that make it unique.
fn kind_of(key: &str) -> &str {
    key.trim_end_matches(|c: char| c.is_ascii_digit())
}

#[derive(Default)]
struct Reader<'a> {
    tasks: &'a Object,
    duration: Option<Nanos>,
    ignored: Vec<String>,
    /// Waits, as (location, name). `told`: the names that are signalled.
    waits: Vec<(String, &'a str)>,
    told: BTreeSet<&'a str>,
    /// Programs of tasks that are forked, each read once.
    forked: BTreeMap<&'a str, Arc<Program>>,
    /// The number of threads that meet at each barrier, without forked ones.
    parties: BTreeMap<&'a str, u32>,
}

/// A thread, while it is read.
struct Thread<'a> {
    task: &'a str,
    timers: Vec<&'a str>,
    /// The chain of tasks that fork each other down to this one.
    forked_by: Vec<&'a str>,
}

impl<'a> Reader<'a> {
    fn global(&mut self, all: &Object) -> Result<(), ProgramError> {
        once(all, "global.")?;
        for (key, value) in all {
            let location = format!("global.{key}");
            match key.as_str() {
                "duration" => {
                    let seconds = integer(value, &location, -1, "time in s")?;
                    let most = LENGTH_MAX.0 / 1_000_000_000;
                    self.duration = match u64::try_from(seconds) {
                        Err(_) => None,
                        Ok(s) if (1..=most).contains(&s) => Some(Nanos(s * 1_000_000_000)),
                        Ok(s) => {
                            let next = format!("1 to {most} s, 104 days, or -1 for no end");
                            return wrong(location, format!("{s} s"), next);
                        }
                    };
                }
                key if HARMLESS_GLOBAL.contains(&key) => self.ignored.push(location),
                _ => return unknown(&location, key, &["duration"], "`duration` and those about logs"),
            }
        }
        Ok(())
    }

    fn read(mut self) -> Result<Load, ProgramError> {
        for (task, body) in self.tasks {
            let location = format!("tasks.{task}");
            let instances = instances(object(body, &location)?, &location)?;
            self.count_barriers(body, instances, &location)?;
        }
        let (mut programs, mut steps) = (Vec::new(), 0_usize);
        for (task, body) in self.tasks {
            let location = format!("tasks.{task}");
            let instances = instances(object(body, &location)?, &location)?;
            let mut thread = Thread { task, timers: Vec::new(), forked_by: vec![task] };
            let program = self.thread(&mut thread, body, &location)?;
            program
                .check()
                .map_err(|e| if e.location().starts_with("tasks.") { e } else { e.at(&location) })?;
            let most = INSTANCES_MAX as usize;
            if programs.len() + instances as usize > most {
                let fact = format!("more than {most} threads in all");
                return wrong(format!("{location}.instance"), fact, "let fewer begin");
            }
            steps = steps.saturating_add(program.steps().saturating_mul(instances as usize));
            if steps > STEPS_MAX {
                let fact = format!("all threads together have more than {STEPS_MAX} steps");
                return wrong(location, fact, "let fewer begin, or say `loop`");
            }
            match instances {
                1 => programs.push(program),
                n => programs.extend((0..n).map(|i| program.clone().named(format!("{task}-{i}")))),
            }
        }
        if programs.is_empty() {
            let next = "let one begin: `instance` 0 is for tasks that others fork";
            return wrong("tasks", "all have `instance` 0, so no thread begins", next);
        }
        if let Some((location, target)) = self.waits.iter().find(|(_, target)| !self.told.contains(target)) {
            let fact = format!("waits for `{target}` for ever: no thread resumes or signals it");
            return wrong(location, fact, "let another thread do so");
        }
        self.ignored.dedup();
        Ok(Load { programs, duration: self.duration, ignored: self.ignored })
    }

    fn count_barriers(&mut self, body: &'a Json, instances: u32, location: &str) -> Result<(), ProgramError> {
        let Json::Object(all) = body else { return Ok(()) };
        for (key, value) in all {
            let location = format!("{location}.{key}");
            match (kind_of(key), value) {
                ("barrier", Json::Text(name)) => {
                    let parties = self.parties.entry(name).or_default();
                    *parties = parties.checked_add(instances).ok_or_else(|| {
                        let fact = format!("more than {} threads come to `{name}`", u32::MAX);
                        ProgramError::new(location, fact, "let fewer threads meet there")
                    })?;
                }
                _ => self.count_barriers(value, instances, &location)?,
            }
        }
        Ok(())
    }

    /// Reads a thread's program.
    fn thread(
        &mut self,
        thread: &mut Thread<'a>,
        body: &'a Json,
        location: &str,
    ) -> Result<Program, ProgramError> {
        let all = object(body, location)?;
        once(all, &format!("{location}."))?;
        let mut program = Program::new(thread.task);
        program.set_location(location);
        let (mut times, mut phases) = (FOREVER, None);
        for (key, value) in all {
            let location = format!("{location}.{key}");
            match key.as_str() {
                "loop" => times = rounds(value, &location)?,
                "delay" => program = program.after(micros(value, &location)?),
                "cpus" => program = program.on(cpus(value, &location)?),
                "phases" => phases = Some(object(value, &location)?),
                _ => {}
            }
        }
        looped(program, times, |p| match phases {
            None => self.events(thread, p, all, location, true),
            Some(phases) => self.phases(thread, p, all, phases, location),
        })
    }

    fn phases(
        &mut self,
        thread: &mut Thread<'a>,
        mut p: Program,
        of_thread: &'a Object,
        phases: &'a Object,
        location: &str,
    ) -> Result<Program, ProgramError> {
        // A task with `phases` has no events outside of them.
        for (key, _) in of_thread {
            let location = format!("{location}.{key}");
            match key.as_str() {
                "loop" | "delay" | "cpus" | "phases" | "instance" => {}
                key if HARMLESS.contains(&key) => self.ignored.push(location),
                _ => {
                    let known = "beside `phases` only properties of the thread, no events";
                    return unknown(&location, key, &[], known);
                }
            }
        }
        for (phase, body) in phases {
            let location = format!("{location}.phases.{phase}");
            let all = object(body, &location)?;
            once(all, &format!("{location}."))?;
            p.set_location(&location);
            let mut times = 1;
            for (key, value) in all {
                let location = format!("{location}.{key}");
                match key.as_str() {
                    "loop" => times = rounds(value, &location)?,
                    "cpus" => p = p.allow(cpus(value, &location)?),
                    _ => {}
                }
            }
            p = looped(p, times, |p| self.events(thread, p, all, &location, false))?;
        }
        Ok(p)
    }

    fn events(
        &mut self,
        thread: &mut Thread<'a>,
        mut p: Program,
        all: &'a Object,
        location: &str,
        is_thread: bool,
    ) -> Result<Program, ProgramError> {
        for (key, value) in all {
            let location = format!("{location}.{key}");
            p.set_location(&location);
            p = match kind_of(key) {
                // A key of an event may end with digits, a property may not.
                "loop" | "cpus" if kind_of(key) == key => p,
                "instance" | "delay" if is_thread && kind_of(key) == key => p,
                "run" => p.run(micros(value, &location)?),
                "runtime" => p.run_for(micros(value, &location)?),
                "sleep" => p.sleep(micros(value, &location)?),
                "mem" => {
                    let bytes = integer(value, &location, 0, "number of bytes")?;
                    let kib = u32::try_from(bytes.unsigned_abs().div_ceil(1024)).map_err(|_| {
                        let most = u64::from(u32::MAX) * 1024;
                        ProgramError::new(&location, format!("{bytes} bytes"), format!("{most} is the most"))
                    })?;
                    p.touch_own(kib, Pages::Anonymous, Access::Write)
                }
                "timer" => self.timer(thread, p, object(value, &location)?, &location)?,
                "lock" => p.lock(name(value, &location)?),
                "unlock" => p.unlock(name(value, &location)?),
                "wait" | "sync" => {
                    let of = object(value, &location)?;
                    let condition = name(member(of, "ref", &location)?, &location)?;
                    let mutex = name(member(of, "mutex", &location)?, &location)?;
                    self.waits.push((location, condition));
                    if kind_of(key) == "wait" {
                        p.wait_on(condition, mutex)
                    } else {
                        self.told.insert(condition);
                        p.lock(mutex).signal(condition).wait_on(condition, mutex).unlock(mutex)
                    }
                }
                "signal" | "broad" | "resume" => {
                    let target = name(value, &location)?;
                    self.told.insert(target);
                    if kind_of(key) == "signal" { p.signal(target) } else { p.broadcast(target) }
                }
                "suspend" => {
                    let given = name(value, &location)?;
                    let target = if given.is_empty() { thread.task } else { given };
                    self.waits.push((location, target));
                    p.suspend(target)
                }
                "barrier" => {
                    let at = name(value, &location)?;
                    // A task of which no thread begins may still be forked.
                    p.barrier(at, self.parties.get(at).map_or(1, |parties| (*parties).max(1)))
                }
                "yield" => p.yield_now(),
                "fork" => p.fork_shared(self.forked(thread, name(value, &location)?, &location)?),
                kind if kind == "iorun" || HARMLESS.contains(&key.as_str()) => {
                    self.ignored.push(location);
                    p
                }
                _ => {
                    let known = "events (`run`, `sleep`, `timer`, …) and properties of a thread or phase";
                    return unknown(&location, key, EVENTS, known);
                }
            };
        }
        Ok(p)
    }

    fn timer(
        &mut self,
        thread: &mut Thread<'a>,
        p: Program,
        of: &'a Object,
        location: &str,
    ) -> Result<Program, ProgramError> {
        let which = name(member(of, "ref", location)?, location)?;
        let period = micros(member(of, "period", location)?, &format!("{location}.period"))?;
        let is_absolute = match find(of, "mode") {
            None => false,
            Some(Json::Text(mode)) if mode == "absolute" => true,
            Some(Json::Text(mode)) if mode == "relative" => false,
            Some(_) => {
                let next = "write `relative` or `absolute`";
                return wrong(format!("{location}.mode"), "no mode of a timer", next);
            }
        };
        let slot = thread.timers.iter().position(|known| *known == which).unwrap_or_else(|| {
            thread.timers.push(which);
            thread.timers.len() - 1
        });
        if slot >= TIMERS {
            let fact = format!("a thread has {TIMERS} timers, and `{which}` is one more");
            return wrong(location, fact, "use one again");
        }
        if !which.starts_with("unique") {
            self.ignored.push(format!("{location}.ref (a timer of its own for each thread)"));
        }
        Ok(p.timer(slot as u8, period, is_absolute))
    }

    /// Returns the program of a task that is forked by name; reads it at the first fork.
    fn forked(
        &mut self,
        thread: &Thread<'a>,
        target: &str,
        location: &str,
    ) -> Result<Arc<Program>, ProgramError> {
        // A program that was read completely does not fork itself.
        if let Some(known) = self.forked.get(target) {
            return Ok(known.clone());
        }
        let Some((task, body)) = self.tasks.iter().find(|(task, _)| task == target) else {
            let fact = format!("forks `{target}`, and no task is called so");
            let names = self.tasks.iter().map(|(task, _)| task.as_str());
            return wrong(location, fact, perhaps(target, names, || "describe it in `tasks`".to_owned()));
        };
        if thread.forked_by.len() > FORKS_MAX {
            let fact = format!("tasks that fork each other over more than {FORKS_MAX} levels");
            return wrong(location, fact, "let one of them loop instead");
        }
        let mut forked_by = thread.forked_by.clone();
        if forked_by.contains(&task.as_str()) {
            return wrong(location, format!("`{target}` forks itself, in the end"), "let one of them end");
        }
        forked_by.push(task);
        let mut child = Thread { task, timers: Vec::new(), forked_by };
        let program = Arc::new(self.thread(&mut child, body, &format!("tasks.{task}"))?);
        self.forked.insert(task, program.clone());
        Ok(program)
    }
}

/// The number of threads of a task.
fn instances(all: &Object, location: &str) -> Result<u32, ProgramError> {
    let Some(value) = find(all, "instance") else { return Ok(1) };
    let location = format!("{location}.instance");
    let n = integer(value, &location, 0, "number of threads")?;
    if n > INSTANCES_MAX {
        return wrong(location, format!("{n} threads"), format!("there may be {INSTANCES_MAX}"));
    }
    Ok(n as u32)
}

fn cpus(value: &Json, location: &str) -> Result<TaskAffinity, ProgramError> {
    let Json::Array(all) = value else {
        return wrong(location, format!("{}, no CPUs", value.kind()), "write [0, 1]");
    };
    let number = |cpu: &Json| match integer(cpu, location, 0, "CPU")? {
        n if n < CPU_MAX => Ok(CpuId(n as u32)),
        n => wrong(location, format!("{n}, no CPU"), "name one that the machine has"),
    };
    let set = all.iter().map(number).collect::<Result<CpuSet, _>>()?;
    if set.is_empty() {
        return wrong(location, "no CPU at all", "name one, or leave `cpus` out");
    }
    Ok(TaskAffinity::Cpus(set))
}
