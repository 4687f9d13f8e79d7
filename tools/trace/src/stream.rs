//! The pass over a recording's events.

use crate::analysis::*;
use crate::machine::Machine;
use crate::origin::{ByOrigin, Origin};
use std::collections::HashMap;
use std::io::Read;
use warmcore_record::{Event, ReadError, Recording};

/// Reads a recording, which `open` opens anew for each of two passes, and returns what it says. A recording that is cut or
/// damaged is read up to that place. `probe` is what the machine's probe measured, or nothing.
///
/// # Errors
/// The recording can't be opened, or its header can't be read.
pub fn analyze<R: Read>(
    mut open: impl FnMut() -> Result<Recording<R>, ReadError>,
    probe: &[Probed],
) -> Result<Analysis, ReadError> {
    let mut recording = open()?;
    let header = recording.header().clone();
    let mut machine = Machine::new(header.cpus.clone());
    let (cpus, cpus_with_llc, cpus_with_node) = machine.known();
    let mut coverage = Coverage { cpus, cpus_with_llc, cpus_with_node, ..Coverage::default() };
    let mut ending = Ending::Open;
    let mut previous: HashMap<u32, u16> = HashMap::new();
    let (mut from_previous, mut from_waker, mut last) =
        (ByOrigin::default(), ByOrigin::default(), header.start);
    loop {
        let event = match recording.next_event() {
            Ok(Some(event)) => event,
            Ok(None) => break,
            Err(error) => {
                ending = Ending::Damaged(error.to_string());
                continue;
            }
        };
        match event {
            Event::Poll(poll) => {
                coverage.polls += 1;
                last = last.max(poll.end());
                let cpu = poll.cpu.map(|cpu| machine.index(cpu));
                let before = cpu.and_then(|cpu| previous.insert(poll.task, cpu));
                let waker = poll.waker_cpu.map(|cpu| machine.index(cpu));
                let origin = |from: Option<u16>| {
                    cpu.zip(from).map_or(Origin::Unknown, |(to, from)| machine.origin(from, to))
                };
                from_previous[origin(before)] += 1;
                from_waker[origin(waker)] += 1;
                if poll.is_last {
                    previous.remove(&poll.task);
                }
            }
            Event::End { why } => ending = Ending::Ended(why),
            _ => {}
        }
    }
    if let Some(bytes) = recording.cut() {
        ending = Ending::Cut(bytes);
    }
    let total = Total {
        basis: Basis::CannotTell,
        micro_cpus: 0,
        low: 0,
        high: 0,
        moved: from_previous.moved(),
        priced: 0,
    };
    Ok(Analysis {
        program: Program {
            command: header.command.clone(),
            pid: header.pid,
            started_unix_ns: header.started_unix_ns,
            length_ns: header.ns(last - header.start),
            ending,
        },
        sentence: Sentence {
            polls: from_previous.known(),
            other_core: from_previous.other_core(),
            other_llc: (cpus_with_llc == cpus).then(|| from_previous.other_llc()),
            cost: total,
            covered_permille: coverage.covered_permille(),
            recorded_permille: permille(coverage.polls, coverage.all_polls()),
        },
        coverage,
        from_previous,
        from_waker,
        cpus: machine.seen().iter().map(|cpu| machine.row(*cpu)).collect(),
        matrix: Matrix::default(),
        places: Vec::new(),
        delays: Delays::default(),
        timeline: Timeline::default(),
        threads: Vec::new(),
        cost: Cost { total, probe: probe.to_vec() },
    })
}
