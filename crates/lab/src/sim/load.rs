//! Load: `warmcore sim load`: tasks from a file on a machine that isn't here, under each policy.
//!
//! Model.   A world per policy and seed; all policies see the same tasks and the same random lengths. The kernel's
//!          policies run as the kernel schedules; ours and the runtimes' are asked for help at once besides.
//! Number.  A second of 64 CPUs that switch every 50 µs is a million events: a fifth of a second.

use super::{Args, SCHEMA, Simulated, keep, repeat};
use crate::measure::INTERRUPTED;
use crate::{host, report, results};
use anyhow::Context;
use clap::builder::PossibleValuesParser;
use serde::Serialize;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use warmcore_place::{Kernel, Policy, PolicyKind};
use warmcore_sim::costs::Costs;
use warmcore_sim::program::rt_app;
use warmcore_sim::trace::Trace;
use warmcore_sim::world::{Observer, Report, Settings, World};
use warmcore_terms::Nanos;
use warmcore_topo::{MACHINES, Topology};

/// Where tasks run if no machine is named.
const MACHINE: &str = "epyc9654_2p";

/// For how long, if the file doesn't say.
const DURATION: Nanos = Nanos(1_000_000_000);

/// What came of it under one policy.
#[derive(Debug, Clone, Serialize)]
pub struct Load {
    /// The policy.
    pub policy: String,
    /// The machine's name.
    pub machine: String,
    /// One for each seed, in their order.
    pub reports: Vec<Report>,
}

/// A policy by its name on the command line.
#[derive(Debug, Clone, Copy)]
enum Who {
    Linux(Kernel),
    Kind(PolicyKind),
}

fn all() -> Vec<(&'static str, Who)> {
    let kernel = Kernel::default();
    let linux = [
        ("kernel", kernel),
        ("kernel-hot-windows", Kernel { hot_windows: true, ..kernel }),
        ("kernel-wake-queue", Kernel { wake_queue: true, ..kernel }),
        ("kernel-sis-node", Kernel { sis_node: true, ..kernel }),
    ];
    let kinds = PolicyKind::all().map(|kind| (kind.name(), Who::Kind(kind)));
    linux.into_iter().map(|(name, kernel)| (name, Who::Linux(kernel))).chain(kinds).collect()
}

/// The names that `--policy` takes.
pub(super) fn policies() -> PossibleValuesParser {
    PossibleValuesParser::new(all().into_iter().map(|(name, _)| name))
}

/// `warmcore sim load`.
pub(super) fn command(args: &Args, tasks: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(tasks).with_context(|| format!("can't read {}", tasks.display()))?;
    let load = rt_app::read(&text).map_err(|e| anyhow::anyhow!("{}: {e}", tasks.display()))?;
    if !load.ignored.is_empty() {
        eprintln!("without a meaning here: {}", load.ignored.join(", "));
    }
    let name = args.machine.as_deref().unwrap_or(MACHINE);
    let (costs, topology) = (Costs::from_machine(MACHINES, name)?, Topology::from_machine(MACHINES, name)?);
    let chosen: Vec<_> = all()
        .into_iter()
        .filter(|(policy, _)| args.policy.as_ref().is_none_or(|only| only == policy))
        .collect();
    let mut found = Simulated {
        schema: SCHEMA,
        what: "sim load".to_owned(),
        command: repeat(args),
        when: host::utc_now(),
        tables: Vec::new(),
        loads: Vec::new(),
        culprit: None,
    };
    keep(args, &found)?;
    let world = Scenario { load: &load, topology: &topology, costs: &costs };
    let bar = crate::progress(chosen.len() as u64 * args.seeds, "sim load");
    for (policy, who) in &chosen {
        bar.set_message(*policy);
        let mut reports = Vec::new();
        for seed in 0..args.seeds {
            if INTERRUPTED.load(Relaxed) {
                break;
            }
            reports.push(world.run(*who, seed, ()).with_context(|| tasks.display().to_string())?.0);
            bar.inc(1);
        }
        // A policy with fewer seeds than another would not be compared with it.
        if reports.len() as u64 == args.seeds {
            found.loads.push(Load { policy: (*policy).to_owned(), machine: name.to_owned(), reports });
            keep(args, &found)?;
        }
    }
    bar.finish_and_clear();
    print!("{}", report::simulated_loads(&found.loads));
    if let Some((path, (_, who))) = args.trace.as_ref().zip(chosen.first()) {
        let trace = world.run(*who, 0, Trace::default())?.1.into_text();
        results::write_whole(path, trace.as_bytes())?;
        eprintln!("written: {}; open it at ui.perfetto.dev", path.display());
    }
    if INTERRUPTED.load(Relaxed) {
        eprintln!("interrupted: the policies above were finished with all seeds, the others are missing");
        crate::signals::end();
    }
    Ok(())
}

struct Scenario<'a> {
    load: &'a rt_app::Load,
    topology: &'a Topology,
    costs: &'a Costs,
}

impl Scenario<'_> {
    fn run<O: Observer>(&self, who: Who, seed: u64, observer: O) -> anyhow::Result<(Report, O)> {
        match who {
            Who::Linux(kernel) => self.under(kernel, Settings::kernel(), seed, observer),
            Who::Kind(kind) => self.under(kind, Settings::default(), seed, observer),
        }
    }

    fn under<O: Observer>(
        &self,
        policy: impl Policy,
        settings: Settings,
        seed: u64,
        observer: O,
    ) -> anyhow::Result<(Report, O)> {
        let mut world = World::watched(self.topology, self.costs, settings, policy, seed, observer);
        for program in &self.load.programs {
            world.spawn(program)?;
        }
        let report = world.run(self.load.duration.unwrap_or(DURATION))?;
        if let Some(waits) = report.deadlock() {
            anyhow::bail!("nothing will happen any more after {:?}: {waits}", report.now);
        }
        Ok((report, world.into_observer()))
    }
}
