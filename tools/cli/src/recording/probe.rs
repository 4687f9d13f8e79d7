//! The machine's probe beside a recording: what `warmcore topo --probe --json` measured, by how far a move goes.
//!
//! The probe names CPUs, and the recording says where they are. So the probe must be of the recording's machine.

use anyhow::{Context, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use warmcore_record::CpuPlace;
use warmcore_report::Probe;
use warmcore_trace::{Origin, Probed};

/// The part of the file that matters here.
#[derive(Debug, Deserialize)]
struct Json {
    probe: Option<Probe>,
}

/// Reads a probe, and finds how far its pairs of CPUs are apart.
pub(super) fn read(path: &Path, cpus: &[CpuPlace]) -> anyhow::Result<Vec<Probed>> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let help = || format!("{} is not what `warmcore topo --probe --json FILE` writes", path.display());
    let json: Json = serde_json::from_slice(&bytes).with_context(help)?;
    let probe = json.probe.with_context(|| format!("{}: the times of --probe are missing", help()))?;
    let probed = probed(&probe, cpus);
    ensure!(
        !probed.is_empty(),
        "{}: no two CPUs of the probe are CPUs of the recording; is it of another machine?",
        path.display()
    );
    Ok(probed)
}

/// The median of the times of a line, and what a walk over 256 KiB takes longer after a move, by origin.
fn probed(probe: &Probe, cpus: &[CpuPlace]) -> Vec<Probed> {
    let place = |number: u32| cpus.iter().find(|place| place.cpu.0 == number);
    let origin = |from: u32, to: u32| match from == to {
        true => Some(Origin::SameCpu),
        false => Some(Origin::between(place(from)?, place(to)?)),
    };
    let mut lines: BTreeMap<Origin, Vec<f64>> = BTreeMap::new();
    for (from, row) in probe.cpus.iter().zip(&probe.hand_over_ns) {
        for (to, ns) in probe.cpus.iter().zip(row) {
            if let (Some(ns), Some(origin)) = (ns, origin(*from, *to))
                && origin.is_move()
            {
                lines.entry(origin).or_default().push(*ns);
            }
        }
    }
    let mut walks: BTreeMap<Origin, f64> = BTreeMap::new();
    for walk in &probe.working_sets {
        if let Some(origin) = origin(walk.from, walk.to) {
            walks.insert(origin, walk.ns);
        }
    }
    let Some(alone) = walks.get(&Origin::SameCpu).copied() else { return Vec::new() };
    let of = |(origin, mut times): (Origin, Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        let refill = (walks.get(&origin)? - alone).max(0.0);
        let line_ns = times[times.len() / 2].round() as u64;
        Some(Probed { origin, line_ns, refill_ns: refill.round() as u64 })
    };
    lines.into_iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmcore_report::WorkingSet;
    use warmcore_types::CpuId;

    #[test]
    fn a_probe_is_told_by_how_far_its_pairs_are_apart() {
        let place =
            |cpu| CpuPlace { cpu: CpuId(cpu), core: cpu, llc: Some(cpu / 2), node: Some(0), socket: Some(0) };
        let cpus: Vec<CpuPlace> = (0..4).map(place).collect();
        let times =
            |to: u32, from: u32| (to != from).then_some(if to / 2 == from / 2 { 40.0 } else { 140.0 });
        let walk = |from, to, ns| WorkingSet { from, to, kib: 256, ns };
        let probe = Probe {
            cpus: (0..4).collect(),
            hand_over_ns: (0..4).map(|to| (0..4).map(|from| times(to, from)).collect()).collect(),
            spread_ns: Vec::new(),
            working_sets: vec![walk(0, 0, 16_000.0), walk(0, 1, 50_000.0), walk(0, 2, 90_000.0)],
            verdict: String::new(),
            noisy: false,
        };
        let expected = [
            Probed { origin: Origin::SameLlc, line_ns: 40, refill_ns: 34_000 },
            Probed { origin: Origin::SameNode, line_ns: 140, refill_ns: 74_000 },
        ];
        assert_eq!(probed(&probe, &cpus), expected);
        assert_eq!(probed(&probe, &[]), []);
    }
}
