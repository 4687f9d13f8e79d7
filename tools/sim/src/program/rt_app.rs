//! RtApp: reads programs from a JSON file for rt-app.
//!
//! `tasks` has a key per kind of thread: how many (`instance`), where (`cpus`), from when (`delay`), how often
//! (`loop`), and events in the order in which they are written, possibly in `phases`. A timer belongs to its thread,
//! whatever its `ref`. `mem` passes over the beginning of one buffer per thread, which is as large as the thread's
//! largest `mem`. Keys about other properties of scheduling (policies, priorities, clamps) and about logs are ignored
//! and listed; unknown keys are errors. Times are in microseconds in the file (`duration`: in seconds) and in
//! nanoseconds in programs.
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
    /// A program per thread.
    pub programs: Vec<Program>,
    /// How long to run.
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

/// The other keys of a task or phase.
const EVENTS: &[&str] = &[
    "run", "runtime", "sleep", "mem", "timer", "lock", "unlock", "wait", "sync", "signal", "broad", "resume",
    "suspend", "barrier", "yield", "fork", "iorun", "loop", "cpus", "instance", "delay", "phases",
];

/// Keys that may occur only once; keys of events may occur again.
const PROPERTIES: &[&str] = &["loop", "cpus", "instance", "delay", "phases", "duration", "tasks", "global"];

/// The most threads of all tasks together. A larger number is rejected as a typing error.
const INSTANCES_MAX: i64 = 1 << 16;

/// The most steps of all threads together: a simulation copies them for each thread, 40 bytes a step.
const STEPS_MAX: usize = 1 << 22;

/// A limit on CPU numbers, since a set takes memory up to its largest number. Linux supports 8192 CPUs.
const CPU_MAX: u32 = 1 << 14;

/// Reads the text of a file.
///
/// # Errors
/// Text that is no JSON, with line and column; a file that rt-app would not accept, with the location:
/// `tasks.web.phases.p1.run`; a `suspend` without a `resume`, or a `wait` without a signal, which would wait for
/// ever.
pub fn read(text: &str) -> Result<Load, ProgramError> {
    if text.trim().is_empty() {
        return Err(ProgramError::new(
            "the file",
            "is empty",
            "describe one thread at least: { \"tasks\": { … } }",
        ));
    }
    let json = serde_json::from_str(&json::without_comments(text)).map_err(|e| {
        let fact = e.to_string();
        let fact = fact.split(" at line ").next().unwrap_or_default().to_owned();
        ProgramError::new(format!("line {}, column {}", e.line(), e.column()), fact, "mend the JSON")
    })?;
    let mut reader = Reader::default();
    let file = object(&json, "the file")?;
    once(file, "")?;
    for (key, value) in file {
        match key.as_str() {
            "tasks" => reader.tasks = object(value, "tasks")?.to_vec(),
            "global" => reader.global(object(value, "global")?)?,
            "resources" => reader.ignored.push("resources".into()),
            _ => return Err(unknown(key, key, &["tasks"], "`tasks`, `global` or `resources`")),
        }
    }
    let mut names = BTreeSet::new();
    for (task, _) in &reader.tasks {
        if !names.insert(task) {
            let next = "give one of them another name, or say `instance`";
            return Err(ProgramError::new(format!("tasks.{task}"), "there are two tasks of this name", next));
        }
    }
    if reader.tasks.is_empty() {
        return Err(ProgramError::new("tasks", "there are none", "describe one thread at least"));
    }
    reader.read()
}

/// An error about an unknown key. `like`: keys that may have been meant.
fn unknown(location: &str, key: &str, like: &[&str], known: &str) -> ProgramError {
    let next = match similar_names(kind_of(key), like.iter().copied()) {
        Some(meant) => perhaps(&meant),
        None => format!("there are {known}"),
    };
    ProgramError::new(location, "unknown key", next)
}

/// `a, b or c`, each in backticks.
fn perhaps(meant: &str) -> String {
    format!("perhaps `{}` is meant", meant.replace(", ", "`, `").replace(" or ", "` or `"))
}

/// Checks that no property occurs twice.
fn once(all: &Object, location: &str) -> Result<(), ProgramError> {
    for (i, (key, _)) in all.iter().enumerate() {
        if PROPERTIES.contains(&key.as_str()) && all[..i].iter().any(|(before, _)| before == key) {
            let location = format!("{location}{key}");
            return Err(ProgramError::new(location, "is there twice", "leave one of them out"));
        }
    }
    Ok(())
}

/// The number of rounds of a loop; −1: for ever.
fn rounds(value: &Json, location: &str) -> Result<i64, ProgramError> {
    let n = integer(value, location, -1, "number of rounds")?;
    if n >= i64::from(FOREVER) {
        let next = format!("{} is the most, and -1 for ever", FOREVER - 1);
        return Err(ProgramError::new(location, format!("{n} rounds"), next));
    }
    Ok(n)
}

fn object<'a>(value: &'a Json, location: &str) -> Result<&'a Object, ProgramError> {
    match value {
        Json::Object(all) => Ok(all),
        other => Err(ProgramError::new(location, format!("{}, no object", other.kind()), "write { … }")),
    }
}

fn integer(value: &Json, location: &str, least: i64, what: &str) -> Result<i64, ProgramError> {
    match value {
        Json::Int(n) if *n >= least => Ok(*n),
        Json::Int(n) => {
            Err(ProgramError::new(location, format!("{n}, no {what}"), format!("{least} is the least")))
        }
        other => Err(ProgramError::new(location, format!("{}, no {what}", other.kind()), "write an integer")),
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
        other => Err(ProgramError::new(location, format!("{}, no name", other.kind()), "write a string")),
    }
}

/// A member of an object like `{ "ref": …, "mutex": … }`.
fn member<'a>(of: &'a Object, key: &str, location: &str) -> Result<&'a Json, ProgramError> {
    let found = of.iter().find(|(known, _)| known == key).map(|(_, value)| value);
    found.ok_or_else(|| ProgramError::new(location, format!("has no `{key}`"), format!("add `{key}`")))
}

/// An event's key without the digits that make it unique.
fn kind_of(key: &str) -> &str {
    key.trim_end_matches(|c: char| c.is_ascii_digit())
}

#[derive(Default)]
struct Reader {
    tasks: Vec<(String, Json)>,
    duration: Option<Nanos>,
    ignored: Vec<String>,
    /// Waits, as (location, name); and the names that are signalled.
    waits: Vec<(String, String)>,
    told: Vec<String>,
    /// Programs of tasks that are forked, each read once.
    forked: BTreeMap<String, Arc<Program>>,
    /// The number of threads that meet at each barrier.
    parties: Vec<(String, u32)>,
}

/// A thread, while it is read.
struct Thread<'a> {
    task: &'a str,
    timers: Vec<String>,
    /// The chain of tasks that fork each other down to this one.
    forked_by: Vec<&'a str>,
}

impl Reader {
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
                            return Err(ProgramError::new(location, format!("{s} s"), next));
                        }
                    };
                }
                key if HARMLESS_GLOBAL.contains(&key) => self.ignored.push(location),
                _ => return Err(unknown(&location, key, &["duration"], "`duration` and those about logs")),
            }
        }
        Ok(())
    }

    fn read(mut self) -> Result<Load, ProgramError> {
        let tasks = std::mem::take(&mut self.tasks);
        for (task, body) in &tasks {
            let location = format!("tasks.{task}");
            let instances = self.instances(object(body, &location)?, &location)?;
            self.count_barriers(body, instances, &location)?;
        }
        let (mut programs, mut steps) = (Vec::new(), 0_usize);
        for (task, body) in &tasks {
            let location = format!("tasks.{task}");
            let instances = self.instances(object(body, &location)?, &location)?;
            let mut thread = Thread { task, timers: Vec::new(), forked_by: vec![task] };
            let program = self.thread(&tasks, &mut thread, body, &location)?;
            program
                .check()
                .map_err(|e| if e.location().starts_with("tasks.") { e } else { e.at(&location) })?;
            let most = INSTANCES_MAX as usize;
            if programs.len() + instances as usize > most {
                let fact = format!("more than {most} threads in all");
                return Err(ProgramError::new(format!("{location}.instance"), fact, "let fewer begin"));
            }
            steps = steps.saturating_add(program.steps().saturating_mul(instances as usize));
            if steps > STEPS_MAX {
                let fact = format!("all threads together have more than {STEPS_MAX} steps");
                return Err(ProgramError::new(location, fact, "let fewer begin, or say `loop`"));
            }
            match instances {
                1 => programs.push(program),
                n => programs.extend((0..n).map(|i| program.clone().named(format!("{task}-{i}")))),
            }
        }
        if programs.is_empty() {
            let next = "let one begin: `instance` 0 is for tasks that others fork";
            return Err(ProgramError::new("tasks", "all have `instance` 0, so no thread begins", next));
        }
        for (location, target) in &self.waits {
            if !self.told.contains(target) {
                let fact = format!("waits for `{target}` for ever: no thread resumes or signals it");
                return Err(ProgramError::new(location, fact, "let another thread do so"));
            }
        }
        self.ignored.dedup();
        Ok(Load { programs, duration: self.duration, ignored: self.ignored })
    }

    fn instances(&self, all: &Object, location: &str) -> Result<u32, ProgramError> {
        let Some((_, value)) = all.iter().find(|(key, _)| key == "instance") else { return Ok(1) };
        let location = format!("{location}.instance");
        let n = integer(value, &location, 0, "number of threads")?;
        if n > INSTANCES_MAX {
            return Err(ProgramError::new(
                location,
                format!("{n} threads"),
                format!("there may be {INSTANCES_MAX}"),
            ));
        }
        Ok(n as u32)
    }

    fn count_barriers(&mut self, body: &Json, instances: u32, location: &str) -> Result<(), ProgramError> {
        let Json::Object(all) = body else { return Ok(()) };
        for (key, value) in all {
            let location = format!("{location}.{key}");
            match (kind_of(key), value) {
                ("barrier", Json::Text(name)) => {
                    match self.parties.iter_mut().find(|(known, _)| known == name) {
                        Some((_, parties)) => {
                            *parties = parties.checked_add(instances).ok_or_else(|| {
                                let fact = format!("more than {} threads come to `{name}`", u32::MAX);
                                ProgramError::new(location, fact, "let fewer threads meet there")
                            })?;
                        }
                        None => self.parties.push((name.clone(), instances)),
                    }
                }
                (_, Json::Object(_)) => self.count_barriers(value, instances, &location)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A thread's program.
    fn thread<'a>(
        &mut self,
        tasks: &'a [(String, Json)],
        thread: &mut Thread<'a>,
        body: &'a Json,
        location: &str,
    ) -> Result<Program, ProgramError> {
        let all = object(body, location)?;
        once(all, &format!("{location}."))?;
        let mut program = Program::new(thread.task);
        program.set_location(location);
        let (mut times, mut phases) = (-1, None);
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
        // `thread` and the program are moved through the closure; an error is stored here.
        let mut wrong = None;
        let mut body = |mut p: Program| {
            let done = match phases {
                None => self.events(tasks, thread, &mut p, all, location, true),
                Some(phases) => self.phases(tasks, thread, &mut p, all, phases, location),
            };
            wrong = done.err();
            p
        };
        program = match times {
            -1 => program.forever(&mut body),
            1 => body(program),
            n => program.repeat(n as u32, &mut body),
        };
        wrong.map_or(Ok(program), Err)
    }

    fn phases<'a>(
        &mut self,
        tasks: &'a [(String, Json)],
        thread: &mut Thread<'a>,
        program: &mut Program,
        of_thread: &'a Object,
        phases: &'a Object,
        location: &str,
    ) -> Result<(), ProgramError> {
        // A task with `phases` has no events outside of them.
        for (key, _) in of_thread {
            let location = format!("{location}.{key}");
            match key.as_str() {
                "loop" | "delay" | "cpus" | "phases" | "instance" => {}
                key if HARMLESS.contains(&key) => self.ignored.push(location),
                _ => {
                    return Err(unknown(
                        &location,
                        key,
                        &[],
                        "beside `phases` only properties of the thread, no events",
                    ));
                }
            }
        }
        for (phase, body) in phases {
            let location = format!("{location}.phases.{phase}");
            let all = object(body, &location)?;
            once(all, &format!("{location}."))?;
            program.set_location(&location);
            let mut times = 1;
            for (key, value) in all {
                let location = format!("{location}.{key}");
                match key.as_str() {
                    "loop" => times = rounds(value, &location)?,
                    "cpus" => *program = std::mem::take(program).allow(cpus(value, &location)?),
                    _ => {}
                }
            }
            let mut wrong = None;
            let mut body = |mut p: Program| {
                wrong = self.events(tasks, thread, &mut p, all, &location, false).err();
                p
            };
            let before = std::mem::take(program);
            *program = match times {
                -1 => before.forever(&mut body),
                1 => body(before),
                n => before.repeat(n as u32, &mut body),
            };
            if let Some(wrong) = wrong {
                return Err(wrong);
            }
        }
        Ok(())
    }

    fn events<'a>(
        &mut self,
        tasks: &'a [(String, Json)],
        thread: &mut Thread<'a>,
        program: &mut Program,
        all: &'a Object,
        location: &str,
        is_thread: bool,
    ) -> Result<(), ProgramError> {
        for (key, value) in all {
            let location = format!("{location}.{key}");
            let mut p = std::mem::take(program);
            p.set_location(&location);
            *program = match kind_of(key) {
                // A key of an event may end with digits, a property may not.
                "loop" | "cpus" if kind_of(key) == key => p,
                "instance" | "delay" if is_thread && kind_of(key) == key => p,
                "run" | "runtime" => p.run(micros(value, &location)?),
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
                    self.waits.push((location.clone(), condition.to_owned()));
                    if kind_of(key) == "wait" {
                        p.wait_on(condition, mutex)
                    } else {
                        self.told.push(condition.to_owned());
                        p.lock(mutex).signal(condition).wait_on(condition, mutex).unlock(mutex)
                    }
                }
                "signal" | "broad" | "resume" => {
                    let target = name(value, &location)?;
                    self.told.push(target.to_owned());
                    if kind_of(key) == "signal" { p.signal(target) } else { p.broadcast(target) }
                }
                "suspend" => {
                    let given = name(value, &location)?;
                    let target = if given.is_empty() { thread.task } else { given };
                    self.waits.push((location.clone(), target.to_owned()));
                    p.suspend(target)
                }
                "barrier" => {
                    let at = name(value, &location)?;
                    let parties =
                        self.parties.iter().find(|(known, _)| known == at).map_or(1, |(_, n)| (*n).max(1));
                    p.barrier(at, parties)
                }
                "yield" => p.yield_now(),
                "fork" => p.fork_shared(self.forked(tasks, thread, name(value, &location)?, &location)?),
                "iorun" => {
                    self.ignored.push(location);
                    p
                }
                _ if HARMLESS.contains(&key.as_str()) => {
                    self.ignored.push(location);
                    p
                }
                _ => {
                    let known = "events (`run`, `sleep`, `timer`, …) and properties of a thread or phase";
                    return Err(unknown(&location, key, EVENTS, known));
                }
            };
        }
        Ok(())
    }

    fn timer(
        &mut self,
        thread: &mut Thread<'_>,
        p: Program,
        of: &Object,
        location: &str,
    ) -> Result<Program, ProgramError> {
        let which = name(member(of, "ref", location)?, location)?;
        let period = micros(member(of, "period", location)?, &format!("{location}.period"))?;
        let is_absolute = match of.iter().find(|(key, _)| key == "mode").map(|(_, mode)| mode) {
            None => false,
            Some(Json::Text(mode)) if mode == "absolute" => true,
            Some(Json::Text(mode)) if mode == "relative" => false,
            Some(_) => {
                let location = format!("{location}.mode");
                return Err(ProgramError::new(
                    location,
                    "no mode of a timer",
                    "write `relative` or `absolute`",
                ));
            }
        };
        let slot = thread.timers.iter().position(|known| known == which).unwrap_or_else(|| {
            thread.timers.push(which.to_owned());
            thread.timers.len() - 1
        });
        if slot >= TIMERS {
            let fact = format!("a thread has {TIMERS} timers, and `{which}` is one more");
            return Err(ProgramError::new(location, fact, "use one again"));
        }
        if !which.starts_with("unique") {
            self.ignored.push(format!("{location}.ref (a timer of its own for each thread)"));
        }
        Ok(p.timer(slot as u8, period, is_absolute))
    }

    /// The program of a task that is forked by name.
    fn forked<'a>(
        &mut self,
        tasks: &'a [(String, Json)],
        thread: &Thread<'a>,
        target: &'a str,
        location: &str,
    ) -> Result<Arc<Program>, ProgramError> {
        // A program that was read completely does not fork itself.
        if let Some(known) = self.forked.get(target) {
            return Ok(known.clone());
        }
        let Some((task, body)) = tasks.iter().find(|(task, _)| task == target) else {
            let fact = format!("forks `{target}`, and no task is called so");
            let next = match similar_names(target, tasks.iter().map(|(task, _)| task.as_str())) {
                Some(meant) => perhaps(&meant),
                None => "describe it in `tasks`".to_owned(),
            };
            return Err(ProgramError::new(location, fact, next));
        };
        if thread.forked_by.len() > FORKS_MAX {
            let fact = format!("tasks that fork each other over more than {FORKS_MAX} levels");
            return Err(ProgramError::new(location, fact, "let one of them loop instead"));
        }
        let mut forked_by = thread.forked_by.clone();
        if forked_by.contains(&task.as_str()) {
            return Err(ProgramError::new(
                location,
                format!("`{target}` forks itself, in the end"),
                "let one of them end",
            ));
        }
        forked_by.push(task);
        let mut child = Thread { task, timers: Vec::new(), forked_by };
        let program = Arc::new(self.thread(tasks, &mut child, body, &format!("tasks.{task}"))?);
        self.forked.insert(task.clone(), program.clone());
        Ok(program)
    }
}

fn cpus(value: &Json, location: &str) -> Result<TaskAffinity, ProgramError> {
    let Json::Array(all) = value else {
        return Err(ProgramError::new(location, format!("{}, no CPUs", value.kind()), "write [0, 1]"));
    };
    let number = |cpu: &Json| {
        integer(cpu, location, 0, "CPU").and_then(|n| {
            u32::try_from(n).ok().filter(|n| *n < CPU_MAX).map(CpuId).ok_or_else(|| {
                ProgramError::new(location, format!("{n}, no CPU"), "name one that the machine has")
            })
        })
    };
    let set = all.iter().map(number).collect::<Result<CpuSet, _>>()?;
    if set.is_empty() {
        return Err(ProgramError::new(location, "no CPU at all", "name one, or leave `cpus` out"));
    }
    Ok(TaskAffinity::Cpus(set))
}
