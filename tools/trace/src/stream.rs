//! Second pass: counts each poll where it belongs.

use crate::analysis::*;
use crate::cost::{self, Rate, Samples};
use crate::delays::AllDelays;
use crate::first_pass::{FirstPass, bounded};
use crate::idle::IdleWorkers;
use crate::machine::Machine;
use crate::matrix::CpuMatrix;
use crate::origin::{ByOrigin, Origin};
use crate::places::{Places, UNKNOWN_PLACE};
use crate::tasks::{NO_CPU, Task, Tasks};
use crate::threads::ThreadState;
use crate::timeline::Bins;
use std::cmp::Reverse;
use std::io::Read;
use warmcore_record::{Event, Header, Poll, ReadError, Recording};

/// Reads a recording, which `open` opens anew for each of two passes, and returns what it says. A recording that is cut or
/// damaged is read up to that place. `probe` is what the machine's probe measured, or nothing.
///
/// # Errors
/// The recording can't be opened, or its header can't be read.
pub fn analyze<R: Read>(
    mut open: impl FnMut() -> Result<Recording<R>, ReadError>,
    probe: &[Probed],
) -> Result<Analysis, ReadError> {
    let first = FirstPass::read(open()?);
    let mut stream = Stream::new(open()?, first);
    loop {
        match stream.recording.next_event() {
            // The file of a program that still runs has grown since the first pass.
            Ok(Some(event)) if !stream.is_later(&event) => stream.event(event),
            Ok(Some(_)) => {}
            Ok(None) => break,
            // The first pass has kept the error.
            Err(_) => {}
        }
    }
    Ok(stream.finish(probe))
}

/// The state of the pass.
struct Stream<R> {
    recording: Recording<R>,
    header: Header,
    first: FirstPass,
    machine: Machine,
    tasks: Tasks,
    places: Places,
    threads: Vec<ThreadState>,
    delays: AllDelays,
    idle: IdleWorkers,
    matrix: CpuMatrix,
    bins: Bins,
    samples: Samples,
    coverage: Coverage,
    from_previous: ByOrigin,
    from_waker: ByOrigin,
    /// By CPU index: polls, and time in them.
    cpus: Vec<(u64, u64)>,
}

impl<R: Read> Stream<R> {
    fn new(recording: Recording<R>, first: FirstPass) -> Self {
        let header = recording.header().clone();
        let machine = Machine::new(header.cpus.clone());
        let (cpus, cpus_with_llc, cpus_with_node) = machine.known();
        let mut coverage = Coverage { cpus, cpus_with_llc, cpus_with_node, ..Coverage::default() };
        first.cover(&header, &mut coverage);
        let length_ns = header.ns(first.last - first.start);
        Self {
            recording,
            machine,
            tasks: Tasks::default(),
            places: Places::new(),
            threads: Vec::new(),
            delays: AllDelays::new(),
            idle: IdleWorkers::new(),
            matrix: CpuMatrix::default(),
            bins: Bins::new(length_ns),
            samples: Samples::new(length_ns),
            coverage,
            from_previous: ByOrigin::default(),
            from_waker: ByOrigin::default(),
            cpus: Vec::new(),
            header,
            first,
        }
    }

    fn is_later(&self, event: &Event) -> bool {
        matches!(event, Event::Poll(poll) if poll.end() > self.first.last)
    }

    /// A stamp in nanoseconds since the recording began.
    #[inline]
    fn since_start(&self, at: u64) -> u64 {
        self.header.ns(at.clamp(self.first.start, self.first.last) - self.first.start)
    }

    #[inline]
    fn event(&mut self, event: Event) {
        match event {
            Event::Poll(poll) => self.poll(&poll),
            Event::Spawn(spawn) => {
                let place = self.place(Some(spawn.location), None);
                let task = self.tasks.get(spawn.task, place);
                *task = Task { last_at: spawn.at, place, is_seen: true, ..*task };
            }
            Event::Name { task, name } => {
                let place = self.tasks.get(task, UNKNOWN_PLACE).place;
                let place = self.place(self.places.location(place), Some(name));
                self.tasks.get(task, place).place = place;
            }
            Event::Worker { thread, worker, at, .. } => {
                self.thread(thread).row.worker = worker;
                let at_ns = self.since_start(at);
                self.idle.worker(thread.into(), at_ns, worker.is_some());
            }
            Event::Stats { thread, stats } => {
                let stats = bounded(stats);
                let at_ns = self.since_start(stats.at);
                if let Some((delays, run_delay)) = self.thread(thread).stats(at_ns, &stats) {
                    self.delays.histogram.add_kernel(&delays, Some(run_delay));
                    self.idle.stats(thread.into(), Some(run_delay));
                }
            }
            Event::Drop { task, .. } => self.tasks.remove(task),
            Event::Gap { .. } | Event::Sampled { .. } | Event::Machine { .. } | Event::End { .. } => {}
        }
    }

    fn place(&mut self, location: Option<u32>, name: Option<u32>) -> u32 {
        let recording = &self.recording;
        self.places.find(location, name, &|| {
            let location = location.map(|location| recording.location(location).to_string());
            (location, name.map(|name| recording.name(name).to_owned()))
        })
    }

    #[inline]
    fn thread(&mut self, thread: u16) -> &mut ThreadState {
        let thread = usize::from(thread);
        while self.threads.len() <= thread {
            let known = &self.recording.threads()[self.threads.len()];
            self.threads.push(ThreadState::new(known.name.clone(), known.tid));
        }
        &mut self.threads[thread]
    }

    fn poll(&mut self, poll: &Poll) {
        let (start_ns, end_ns) = (self.since_start(poll.start), self.since_start(poll.end()));
        let duration_ns = end_ns - start_ns;
        let cpu = poll.cpu.map_or(NO_CPU, |cpu| self.machine.index(cpu));
        let waker = poll.waker_cpu.map_or(NO_CPU, |cpu| self.machine.index(cpu));
        let origin_of = |from: u16| match (from, cpu) {
            (NO_CPU, _) | (_, NO_CPU) => Origin::Unknown,
            _ => self.machine.origin(from, cpu),
        };
        let task = self.tasks.get(poll.task, UNKNOWN_PLACE);
        let before = *task;
        *task = Task { last_at: poll.end(), cpu, is_seen: true, is_polled: true, ..before };
        if poll.is_last {
            self.tasks.remove(poll.task);
        }
        let is_linked = before.is_seen && self.first.is_whole(poll.task, before.last_at, poll.start);
        let origin = match (is_linked, before.is_polled) {
            (false, _) => Origin::Unknown,
            (true, false) => Origin::First,
            (true, true) => origin_of(before.cpu),
        };
        let from_waker = origin_of(waker);
        let delay_ns = poll.woken_at.map(|woken| self.header.ns(poll.start.saturating_sub(woken)));

        let coverage = &mut self.coverage;
        coverage.polls += 1;
        coverage.polled_ns += duration_ns;
        coverage.with_cpu += u64::from(cpu != NO_CPU);
        coverage.with_waker += u64::from(waker != NO_CPU);
        coverage.with_delay += u64::from(delay_ns.is_some());
        coverage.unlinked += u64::from(!is_linked);
        coverage.without_place += u64::from(before.place == UNKNOWN_PLACE);
        coverage.changed_cpu += u64::from(poll.changed_cpu);
        self.from_previous[origin] += 1;
        self.from_waker[from_waker] += 1;

        let place = self.places.row(before.place);
        place.tasks += u64::from(!before.is_polled);
        place.polls += 1;
        place.from_previous[origin] += 1;
        place.from_waker[from_waker] += 1;
        place.polled_ns += duration_ns;
        place.duration.add(duration_ns);
        if let Some(delay) = delay_ns {
            place.delay.add(delay);
        }

        // While it was polled it could not be polled elsewhere.
        let since = poll.woken_at.map(|woken| woken.max(if is_linked { before.last_at } else { 0 }));
        let since_ns = since.map(|since| self.since_start(since));
        self.idle.poll(poll.thread.into(), since_ns, start_ns, end_ns);

        let thread = self.thread(poll.thread);
        thread.row.polls += 1;
        thread.row.polled_ns += duration_ns;
        thread.row.from_previous[origin] += 1;
        let queue = thread.queue_before(poll, cpu);
        let worker = thread.row.worker;
        if let Some(delay_ns) = delay_ns {
            thread.delays.add(delay_ns);
            self.delays.add(delay_ns, || LongDelay {
                delay_ns,
                at_ns: start_ns,
                duration_ns,
                task: poll.task,
                place: before.place,
                thread: poll.thread,
                worker,
                cpu: poll.cpu.map(|cpu| cpu.0),
                waker_cpu: poll.waker_cpu.map(|cpu| cpu.0),
                origin,
            });
        }
        if cpu != NO_CPU {
            let index = usize::from(cpu);
            if self.cpus.len() <= index {
                self.cpus.resize(index + 1, (0, 0));
            }
            self.cpus[index].0 += 1;
            self.cpus[index].1 += duration_ns;
            self.bins.add(cpu, origin, start_ns, end_ns);
            if waker != NO_CPU {
                self.matrix.add(waker, cpu);
            }
            if origin == Origin::SameCpu || origin.is_move() {
                let since_ns = self.header.ns(poll.start.saturating_sub(before.last_at));
                self.samples.add(before.place, origin, since_ns, queue, start_ns, duration_ns);
            }
        }
    }

    fn finish(mut self, probe: &[Probed]) -> Analysis {
        let known_threads = self.recording.threads().len();
        if let Some(last) = known_threads.checked_sub(1) {
            self.thread(last as u16);
        }
        self.idle.end(self.since_start(self.first.last));
        for (number, (thread, span)) in self.threads.iter_mut().zip(&self.first.threads).enumerate() {
            (thread.row.dropped, thread.row.skipped) = (span.dropped(), span.skipped());
            if thread.has_kernel() {
                self.delays.histogram.add_kernel(&thread.delays, None);
                self.idle.stats(number, None);
            }
        }
        let has_kernel = self.threads.iter().any(ThreadState::has_kernel);
        let threads: Vec<ThreadRow> = self.threads.into_iter().map(ThreadState::finish).collect();
        let kernel_sum = |of: fn(&KernelInterval) -> u64| {
            let intervals = threads.iter().flat_map(|thread| &thread.kernel);
            has_kernel.then(|| intervals.map(of).sum::<u64>())
        };
        let delays_in_kernel = kernel_sum(|interval| interval.run_delay_ns);
        let switches = kernel_sum(|interval| interval.involuntary_switches);

        self.coverage.forgotten_tasks = self.tasks.forgotten;
        let coverage = self.coverage;
        // Where polls are missing, a worker that ran them looks idle.
        let beside_idle = (coverage.skipped + coverage.dropped == 0).then(|| self.idle.finish());
        let length_ns = self.header.ns(self.first.last - self.first.start);
        let rows = self.places.into_rows();
        let moves: Vec<ByOrigin> = rows.iter().map(|row| row.from_previous).collect();
        let rate = Rate { recorded: coverage.polls, all: coverage.all_polls(), length_ns };
        let costs = cost::costs(&self.samples, &moves, rate, probe);
        let mut order: Vec<usize> = (0..rows.len()).filter(|place| rows[*place].polls > 0).collect();
        order.sort_by_key(|place| (Reverse(rows[*place].polled_ns), *place));
        let mut new_index = vec![0; rows.len()];
        order.iter().zip(0..).for_each(|(place, index)| new_index[*place] = index);
        let mut finished: Vec<Option<SpawnPlace>> = rows
            .into_iter()
            .zip(costs.places)
            .map(|(row, (costs, cost))| Some(row.finish(costs, cost)))
            .collect();

        let seen = self.machine.seen();
        let counts = |index: usize| self.cpus.get(index).copied().unwrap_or_default();
        let by_index: Vec<CpuRow> = (0..seen.len())
            .map(|index| {
                let (polls, busy_ns) = counts(index);
                CpuRow { polls, busy_ns, ..self.machine.row(seen[index]) }
            })
            .collect();
        let mut cpu_order: Vec<usize> = (0..seen.len()).collect();
        cpu_order.sort_by_key(|index| seen[*index]);
        // A move to a CPU whose cache is not known may be one to another cache.
        let are_llcs_known = self.from_previous[Origin::OtherCpu] == 0;
        Analysis {
            program: Program {
                command: self.header.command.clone(),
                pid: self.header.pid,
                started_unix_ns: self.header.started_unix_ns,
                length_ns,
                ending: self.first.ending.clone(),
            },
            sentence: Sentence {
                polls: self.from_previous.known(),
                unknown: self.from_previous[Origin::Unknown],
                other_core: self.from_previous.other_core(),
                other_llc: are_llcs_known.then(|| self.from_previous.other_llc()),
                cost: costs.total,
                covered_permille: coverage.covered_permille(),
                recorded_permille: permille(coverage.polls, coverage.all_polls()),
                is_whole: matches!(self.first.ending, Ending::Ended(_) | Ending::Open),
            },
            coverage,
            from_previous: self.from_previous,
            from_waker: self.from_waker,
            cpus: cpu_order.iter().map(|index| by_index[*index]).collect(),
            matrix: self.matrix.finish(&by_index),
            places: order.iter().filter_map(|place| finished[*place].take()).collect(),
            delays: self.delays.finish(
                |place| new_index[place as usize],
                delays_in_kernel,
                switches,
                beside_idle,
            ),
            timeline: self.bins.finish(&cpu_order, &self.first, &self.header),
            threads,
            cost: Cost { total: costs.total, probe: probe.to_vec() },
        }
    }
}
