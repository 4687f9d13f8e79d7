//! Rebuild: parts of a recorded program, as a simulation replays them.
//!
//! A recording says of each poll when it began, how long it took, when its task was woken, and on which CPU the waker ran. The poll
//! that was on that CPU then is the waker's; if there was none, the wake came from outside: from a driver, which is between
//! polls, or from a thread without tasks. CPUs and threads are compared with each other here, and nothing more: a [`Window`] has none.
//!
//! A poll after a move took longer, by what the recording's moves of such tasks cost (`cost.rs`). This time is taken out.
//!
//! # Cost
//! One pass over the recording. Memory for the polls of the windows, of about 200 bytes each, and 32 bytes for each task that is alive.

use crate::analysis::{Analysis, SpawnPlace};
use crate::cost::is_sound;
use crate::machine::Machine;
use crate::origin::Origin;
use crate::tasks::{NO_CPU, Tasks};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use warmcore_record::{Event, Header, Poll, ReadError, Recording};
use warmcore_sim::replay::{Counts, Step, Task, TaskKind, Window};
use warmcore_types::{CpuId, Nanos};

/// A poll that began in a window is waited for so long after its end.
const LONGEST_POLL_NS: u64 = 50_000_000;

/// Windows of a recording.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// The windows, in their order.
    pub windows: Vec<Window>,
    /// What was recorded in each, after the replay's warm-up. The CPU time is that of polls.
    pub recorded: Vec<Counts>,
    /// The kinds of tasks: by the place where they were spawned.
    pub kinds: Vec<TaskKind>,
    /// What is known of the wakes.
    pub wakes: Wakes,
    /// Workers that polled.
    pub workers: usize,
    /// Whether these are Warmcore's.
    pub is_warmcore: bool,
}

/// Polls of the windows by what is known of their wakes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Wakes {
    /// Woken by a poll of the window.
    pub by_tasks: u64,
    /// Woken from outside.
    pub from_outside: u64,
    /// Not known.
    pub unknown: u64,
}

impl Wakes {
    /// All polls.
    pub fn all(&self) -> u64 {
        self.by_tasks + self.from_outside + self.unknown
    }
}

/// Reads the windows at these times, which ascend, do not overlap, and are in nanoseconds since the recording began. `analysis` is that of the recording.
///
/// # Errors
/// The recording can't be opened, or its header can't be read. A recording that is damaged is read up to that place.
pub fn rebuild<R: Read>(
    mut recording: Recording<R>,
    analysis: &Analysis,
    spans: &[(u64, u64)],
) -> Result<Rebuilt, ReadError> {
    let header = recording.header().clone();
    let mut reader = Reader {
        machine: Machine::new(header.cpus.clone()),
        kind_of: analysis.places.iter().map(|place| place.location.clone()).collect::<Vec<_>>(),
        kinds: kinds(analysis),
        header,
        tasks: Tasks::default(),
        workers: BTreeMap::new(),
        seen: BTreeMap::new(),
        polls: Vec::new(),
        rebuilt: Rebuilt::default(),
    };
    reader.kind_of.sort();
    reader.kind_of.dedup();
    reader.rebuilt.kinds = reader.kinds.clone();
    let mut spans = spans.iter().copied();
    let mut span = spans.next();
    loop {
        let event = match recording.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(_) => continue,
        };
        match event {
            Event::Poll(poll) => {
                let end = reader.since_start(poll.end());
                while span.is_some_and(|span| end > span.1 + LONGEST_POLL_NS) {
                    reader.close(span.expect("there is one"));
                    span = spans.next();
                }
                reader.poll(&poll, span);
            }
            Event::Spawn(spawn) => {
                let location = Some(recording.location(spawn.location).to_string());
                let kind = reader.kind_of.binary_search(&location).unwrap_or(0) as u32;
                reader.tasks.get(spawn.task, kind).place = kind;
            }
            Event::Worker { thread, worker, is_warmcore, .. } => {
                reader.workers.insert(thread, worker);
                reader.rebuilt.is_warmcore |= is_warmcore;
            }
            Event::Drop { task, .. } => reader.tasks.remove(task),
            _ => {}
        }
    }
    span.into_iter().chain(spans).for_each(|span| reader.close(span));
    reader.rebuilt.workers = reader.seen.len();
    Ok(reader.rebuilt)
}

/// By location, what a move costs: the mean over the recorded moves whose cost is known.
fn kinds(analysis: &Analysis) -> Vec<TaskKind> {
    let mut by_location: BTreeMap<Option<&String>, Vec<&SpawnPlace>> = BTreeMap::new();
    analysis
        .places
        .iter()
        .for_each(|place| by_location.entry(place.location.as_ref()).or_default().push(place));
    let kind = |places: Vec<&SpawnPlace>| {
        let costs = places.iter().flat_map(|place| &place.costs).filter(|cost| cost.origin.is_other_core());
        let known = costs.filter_map(|cost| Some((cost.moved, cost.measured.filter(is_sound)?.ns)));
        let (moves, ns) = known.fold((0_i128, 0_i128), |(moves, sum), (moved, ns)| {
            (moves + i128::from(moved), sum + i128::from(moved) * i128::from(ns))
        });
        let refill = ns.checked_div(moves).unwrap_or(0).max(0) as u64;
        TaskKind { refill: Nanos(refill), own_per_mille: 1000 }
    };
    by_location.into_values().map(kind).collect()
}

/// A poll of a window.
#[derive(Debug, Clone, Copy)]
struct Seen {
    task: u32,
    kind: u32,
    start: u64,
    end: u64,
    woken: Option<u64>,
    waker: Option<CpuId>,
    cpu: Option<CpuId>,
    /// Whether a poll of the task came before, and whether it was on the same core.
    before: Option<bool>,
    woken_in_poll: bool,
    is_last: bool,
}

struct Reader {
    header: Header,
    machine: Machine,
    /// The locations of the kinds, ascending.
    kind_of: Vec<Option<String>>,
    kinds: Vec<TaskKind>,
    /// `Task::place` is the kind, `Task::cpu` the index of the CPU.
    tasks: Tasks,
    /// The worker that each thread runs.
    workers: BTreeMap<u16, Option<u32>>,
    /// The workers that polled: their polls.
    seen: BTreeMap<u32, u64>,
    polls: Vec<Seen>,
    rebuilt: Rebuilt,
}

impl Reader {
    fn since_start(&self, at: u64) -> u64 {
        self.header.ns(at.saturating_sub(self.header.start))
    }

    fn poll(&mut self, poll: &Poll, span: Option<(u64, u64)>) {
        // Where workers are known, other threads poll what the replay has as outside.
        let worker = match self.workers.is_empty() {
            true => Some(u32::from(poll.thread)),
            false => self.workers.get(&poll.thread).copied().flatten(),
        };
        let Some(worker) = worker else { return };
        *self.seen.entry(worker).or_default() += 1;
        let cpu = poll.cpu.map_or(NO_CPU, |cpu| self.machine.index(cpu));
        let task = self.tasks.get(poll.task, 0);
        let before = std::mem::replace(&mut task.cpu, cpu);
        let kind = task.place;
        let was_polled = std::mem::replace(&mut task.is_polled, true);
        if poll.is_last {
            self.tasks.remove(poll.task);
        }
        let Some((from, to)) = span else { return };
        let (start, end) = (self.since_start(poll.start), self.since_start(poll.end()));
        if end < from || start >= to {
            return;
        }
        let origin = match (before, cpu) {
            (NO_CPU, _) | (_, NO_CPU) => None,
            (before, cpu) => Some(self.machine.origin(before, cpu)),
        };
        self.polls.push(Seen {
            task: poll.task,
            kind,
            start,
            end,
            woken: poll.woken_at.map(|at| self.since_start(at)),
            waker: poll.waker_cpu,
            cpu: poll.cpu,
            before: origin.filter(|_| was_polled).map(|origin| !Origin::is_other_core(origin)),
            woken_in_poll: poll.woken_in_poll,
            is_last: poll.is_last,
        });
    }

    /// Makes a window of the polls that were read.
    fn close(&mut self, (from, to): (u64, u64)) {
        let mut polls = std::mem::take(&mut self.polls);
        polls.sort_by_key(|poll| (poll.start, poll.task));
        // By CPU: its polls, by their start.
        let mut on: HashMap<CpuId, Vec<u32>> = HashMap::new();
        for (poll, index) in polls.iter().zip(0..) {
            if let Some(cpu) = poll.cpu {
                on.entry(cpu).or_default().push(index);
            }
        }
        let waker_of = |poll: &Seen| -> Option<u32> {
            let (woken, on) = (poll.woken?, on.get(&poll.waker?)?);
            let next = on.partition_point(|waker| polls[*waker as usize].start < woken);
            let waker = *on.get(next.checked_sub(1)?)?;
            let of = &polls[waker as usize];
            (of.end >= woken && of.start >= from).then_some(waker)
        };
        // Of each counted poll: whether its task waited for another one's wake.
        let mut has_delay: Vec<bool> = Vec::new();
        let mut window = Window { length: Nanos(to - from), ..Window::default() };
        let mut task_of: HashMap<u32, u32> = HashMap::new();
        // By task: its poll before.
        let mut last_of: HashMap<u32, u32> = HashMap::new();
        // Of each poll: the wakes in it, and when it was woken from outside after its task's poll before.
        let mut wakes: Vec<(u32, u64, u32)> = Vec::new();
        let mut from_outside: HashMap<u32, (u64, u64)> = HashMap::new();
        let counted: Vec<(u32, &Seen)> = (0..).zip(&polls).filter(|(_, poll)| poll.start >= from).collect();
        for (index, poll) in &counted {
            let before = last_of.insert(poll.task, *index);
            let next = window.tasks.len() as u32;
            let task = *task_of.entry(poll.task).or_insert(next);
            if task == next {
                window.tasks.push(Task { kind: poll.kind, steps: Vec::new() });
            }
            let known = &mut self.rebuilt.wakes;
            // A task that yields wakes itself, and the recording need not say so.
            let waker = waker_of(poll).or_else(|| before.filter(|_| poll.waker.is_none()));
            match waker {
                Some(waker) => {
                    has_delay.push(before != Some(waker) && !poll.woken_in_poll);
                    let of = &polls[waker as usize];
                    known.by_tasks += 1;
                    wakes.push((waker, poll.woken.unwrap_or(of.end).clamp(of.start, of.end), task));
                }
                None => {
                    has_delay.push(!poll.woken_in_poll);
                    *(if poll.waker.is_some() { &mut known.from_outside } else { &mut known.unknown }) += 1;
                    let woken = poll.woken.unwrap_or(poll.start);
                    let after = before.and_then(|before| woken.checked_sub(polls[before as usize].end));
                    match after {
                        Some(after) => _ = from_outside.insert(*index, (woken, after)),
                        None => window.arrivals.push((Nanos(woken.saturating_sub(from)), task)),
                    }
                }
            }
        }
        window.arrivals.sort_unstable();
        wakes.sort();
        let mut wakes = wakes.into_iter().peekable();
        for (poll, index) in polls.iter().zip(0_u32..) {
            if poll.start < from {
                continue;
            }
            let kind = self.kinds[poll.kind as usize];
            let length = poll.end - poll.start;
            // What the move cost is taken out evenly, so that the wakes stay in their order.
            let own = if poll.before == Some(false) { length.saturating_sub(kind.refill.0) } else { length };
            let own_at = |at: u64| {
                (u128::from(at) * u128::from(own)).checked_div(u128::from(length)).unwrap_or(0) as u64
            };
            let steps = &mut window.tasks[task_of[&poll.task] as usize].steps;
            if let (Some((woken, after)), Some(wait)) = (from_outside.get(&index), steps.last_mut()) {
                *wait = Step::WaitUntil { at: Nanos(woken.saturating_sub(from)), after: Nanos(*after) };
            }
            steps.push(Step::Poll);
            let mut done = 0;
            while let Some((_, woken, task)) = wakes.next_if(|(waker, ..)| *waker == index) {
                let at = own_at(woken - poll.start);
                steps.extend([Step::Run(Nanos(at - done)), Step::Wake(task)]);
                done = at;
            }
            steps.push(Step::Run(Nanos(own - done)));
            if !poll.is_last {
                steps.push(Step::Wait);
            }
        }
        self.count(&window, counted.iter().map(|(_, poll)| *poll).zip(has_delay), from);
        self.rebuilt.windows.push(window);
    }

    /// Counts what was recorded, as a replay does.
    fn count<'a>(&mut self, window: &Window, polls: impl Iterator<Item = (&'a Seen, bool)>, from: u64) {
        let warm = from + window.warm_up().0;
        let mut counts = Counts { elapsed_ns: window.length.0 - window.warm_up().0, ..Counts::default() };
        counts.by_kind = vec![(0, 0); self.kinds.len()];
        // A replay knows no poll before the window.
        let mut seen = std::collections::HashSet::new();
        for (poll, has_delay) in polls {
            let is_first = seen.insert(poll.task);
            let (number, ns) = &mut counts.by_kind[poll.kind as usize];
            (*number, *ns) = (*number + 1, *ns + (poll.end - poll.start));
            if poll.start < warm {
                continue;
            }
            counts.polls += 1;
            counts.cpu_ns += poll.end - poll.start;
            if let Some(is_same) = poll.before.filter(|_| !is_first) {
                counts.followed += 1;
                counts.same_core += u64::from(is_same);
            }
            if has_delay {
                counts.delays_ns.extend(poll.woken.map(|woken| poll.start.saturating_sub(woken)));
            }
        }
        self.rebuilt.recorded.push(counts);
    }
}
