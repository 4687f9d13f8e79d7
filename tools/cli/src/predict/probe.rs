//! `warmcore predict probe`: measures the calls of the schedulers, and writes them with the machine's description.

use anyhow::Context;
use std::path::Path;
use warmcore_bench::calls::{self, Numbers};
use warmcore_results::{HostInfo, system, write_whole};
use warmcore_topo::Topology;

/// The version of the file's fields.
const SCHEMA: u32 = 2;

/// The probe file.
#[derive(Debug, serde::Serialize)]
struct ProbeFile {
    schema: u32,
    command: &'static str,
    when: String,
    machine: HostInfo,
    /// The size of a core's own cache.
    l2_kib: u32,
    #[serde(flatten)]
    calls: calls::Calls,
}

pub(super) fn command(path: &Path) -> anyhow::Result<()> {
    let file = measure()?;
    println!("{}", table(&file.calls));
    write_whole(path, &serde_json::to_vec_pretty(&file)?)?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// The probe of this machine, as a simulation reads it.
pub fn measured() -> anyhow::Result<warmcore_sim::cases::ProbeFile> {
    Ok(serde_json::from_slice(&serde_json::to_vec(&measure()?)?)?)
}

fn measure() -> anyhow::Result<ProbeFile> {
    let topology = Topology::this_machine().context("can't read this machine's topology")?;
    let l2_kib = topology.cores.first().and_then(|core| core.l2_kib).unwrap_or(1024);
    let bar = warmcore_bench::progress(1, "predict probe");
    let when = system::utc_now();
    let calls = calls::probe(|done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    let (schema, command) = (SCHEMA, "warmcore predict probe");
    Ok(ProbeFile { schema, command, when, machine: system::machine(), l2_kib, calls })
}

/// The numbers, a line each.
fn table(calls: &calls::Calls) -> String {
    let of = |numbers: &Numbers, name: &str| numbers.get(name).map_or(String::new(), |ns| format!("{ns:.1}"));
    let names = calls.warmcore.keys();
    let both = names.map(|name| (name, of(&calls.warmcore, name), of(&calls.tokio, name)));
    let steps = calls.steps.keys().map(|name| (name, of(&calls.steps, name), String::new()));
    let line = |(name, ours, tokio)| format!("{name:<22}{ours:>12}{tokio:>12}\n");
    format!("{:<22}{:>12}{:>12}\n", "ns", "warmcore", "tokio")
        + &both.chain(steps).map(line).collect::<String>()
}
