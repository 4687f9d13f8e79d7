//! Imagined: what a report simulates by itself, in a quick form, and what it reads if somebody simulated more.
//!
//! Model.   All tables with few seeds, the sensitivity of five answers, and CPU lanes: a dozen pairs that talk on 16
//!          CPUs, as Linux places them and with hot windows, in the same time. `sim.json` in the report's folder is
//!          what `warmcore sim tables --json` writes: with `--sim FILE` it is that file. A signal gives up what is
//!          under way.
//! Number.  The tables take some 110 s of one core, most of it the loads of hot windows, the sensitivity 40, the lanes less than one.
//! Writers. The folder's `sim.json` and `sim-pictures.json`, each whole.

use crate::sim::SCHEMA;
use anyhow::{Context, ensure};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use warmcore_bench::measure::INTERRUPTED;
use warmcore_papers::{
    Options, Progress, Table, by_load, cid, drain, false_sharing, hot_windows, sensitivity, wake_queue,
};
use warmcore_report::{Lane, Lanes, Panel, Pictures, Run, Simulated};
use warmcore_results::system as host;
use warmcore_sched::{TargetQueue, WakeSource};
use warmcore_sim::costs::Costs;
use warmcore_sim::memory::{Access, Pages};
use warmcore_sim::policy::Kernel;
use warmcore_sim::program::{Length, Program, TaskId};
use warmcore_sim::simulation::{Observer, Settings, Simulation, SwitchReason};
use warmcore_topo::{MACHINES, Topology};
use warmcore_types::{CpuId, Nanos};

/// Seeds of a report's tables.
const SEEDS: u64 = warmcore_papers::SEEDS_MIN as u64;

type Simulate = fn(&Options) -> Table;

/// All tables, with what each is called.
const TABLES: [(&str, Simulate); 8] = [
    ("cid", cid::table),
    ("false-sharing", false_sharing::table),
    ("hot-windows", hot_windows::table),
    ("drain", drain::table),
    ("wake-queue", wake_queue::table),
    ("hot-windows-by-load", by_load::hot_windows),
    ("wake-queue-by-load", by_load::wake_queue),
    ("wake-queue-v3-by-load", by_load::wake_queue_v3),
];

/// A signal ends what is simulated.
#[derive(Debug)]
struct Signals;

impl Progress for Signals {
    fn is_over(&self) -> bool {
        INTERRUPTED.load(Relaxed)
    }
}

fn options() -> Options {
    Options { seeds: 0..SEEDS, quick: true, progress: Some(Arc::new(Signals)), ..Options::default() }
}

/// The tables, as `warmcore sim tables --quick` has them. Nothing if a signal came.
pub(super) fn tables(step: &str) -> anyhow::Result<Option<Simulated>> {
    let when = host::utc_now();
    let bar = warmcore_bench::progress(TABLES.len() as u64, &format!("{step}sim tables"));
    bar.enable_steady_tick(Duration::from_millis(200));
    let mut tables = Vec::new();
    for (name, table) in TABLES {
        bar.set_message(name);
        tables.push(table(&options()).concluded(&options()));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let simulated = serde_json::json!({
        "schema": SCHEMA,
        "what": "sim tables",
        "command": format!("warmcore sim tables --seeds {SEEDS} --quick"),
        "when": when,
        "tables": tables,
    });
    Ok(if INTERRUPTED.load(Relaxed) { None } else { Some(serde_json::from_value(simulated)?) })
}

/// What else is drawn. Nothing if a signal came.
pub(super) fn pictures(step: &str) -> Option<Pictures> {
    let bar = warmcore_bench::progress(1, &format!("{step}sim pictures"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar.set_message("what moves the answers");
    let sensitivities = sensitivity::all(&options());
    bar.set_message("lanes");
    let lanes = Some(lanes());
    bar.finish_and_clear();
    (!INTERRUPTED.load(Relaxed)).then_some(Pictures { schema: SCHEMA, sensitivities, lanes })
}

/// What `warmcore sim tables --json` wrote.
pub(super) fn read(path: &Path) -> anyhow::Result<Simulated> {
    let bytes = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    let help = || {
        format!(
            "{}: not what `warmcore sim tables --json FILE` of schema {SCHEMA} writes; simulate again",
            path.display()
        )
    };
    let simulated: Simulated = serde_json::from_slice(&bytes).with_context(help)?;
    ensure!(simulated.schema == SCHEMA, "{}; it has schema {}", help(), simulated.schema);
    Ok(simulated)
}

/// 16 cores with two last-level caches, with the costs of one that was measured.
const SMALL: &str = "[small]\ninherits = \"epyc9654_2p\"\nsockets = 1\nnuma_nodes = 1\nl3_per_socket = 2\n\
                     cores_per_l3 = 8\nsmt = 1\ncpus = 16\n";
const PAIRS: u32 = 14;
/// What a turn takes on a core of its own, in ns, and which part of it follows the wake.
const TURN: (u64, u64) = (5_000, 1_000);
const DATA_KIB: u32 = 16;
/// By then the pairs have settled, or have not.
const FROM: u64 = 20_000_000;
const DRAWN: u64 = 120_000;
/// What is counted begins where the picture does, and goes on for so long.
const COUNTED: u64 = 10_000_000;

/// Pairs that talk on a small machine, as Linux places them and with hot windows.
fn lanes() -> Lanes {
    let text = format!("{MACHINES}\n{SMALL}");
    let topology = Topology::from_machine(&text, "small").expect("the section is right");
    let costs = Costs::from_machine(&text, "small").expect("the section is right");
    let linux = Kernel::default();
    let panels = [("Linux", linux), ("Linux with hot windows", Kernel { hot_windows: true, ..linux })]
        .map(|(policy, kernel)| panel(policy, kernel, &topology, &costs));
    Lanes {
        machine: format!("{} CPUs with {} last-level caches", topology.cpus.len(), topology.llcs.len()),
        load: format!("{PAIRS} pairs that talk, {} µs a turn, {DATA_KIB} KiB of data a side", TURN.0 / 1000),
        from_ns: FROM,
        to_ns: FROM + DRAWN,
        panels: panels.to_vec(),
    }
}

fn panel(policy: &str, kernel: Kernel, topology: &Topology, costs: &Costs) -> Panel {
    let settings = Settings { hz: 1000, ..Settings::kernel() };
    let mut sim = Simulation::watched(topology, costs, settings, kernel, 0, Recorder::new(topology));
    let part = |ns: u64| Length::Around(Nanos(ns), 10);
    let turn = |p: Program, other: String| {
        let p = p.touch_own(DATA_KIB, Pages::Touched, Access::Write).run(part(TURN.0 - TURN.1));
        p.wake_sync(other).run(part(TURN.1))
    };
    for pair in 0..PAIRS {
        let (client, server) = (format!("client {pair}"), format!("server {pair}"));
        let begins = Nanos(10_000 * u64::from(pair));
        let there = server.clone();
        let of_client =
            Program::new(client.clone()).after(begins).forever(|p| turn(p, there).wait().mark("trips"));
        let of_server = Program::new(server).after(begins).forever(|p| turn(p.wait(), client));
        for program in [of_server, of_client] {
            sim.spawn(&program).expect("the program is right");
        }
    }
    let mut until = |at: u64| sim.run(Nanos(at)).expect("the program is right").mark("trips");
    let trips = (until(FROM), until(FROM + COUNTED));
    let trips_per_second = (trips.1 - trips.0) * 1_000_000_000 / COUNTED;
    Panel { policy: policy.to_owned(), trips_per_second, lanes: sim.into_observer().lanes }
}

/// Notes who ran where while it is drawn.
struct Recorder {
    lanes: Vec<Lane>,
    /// By task: the number of its pair, the CPU that it ran on last.
    tasks: Vec<(u32, Option<usize>)>,
    /// By CPU: what runs there.
    running: Vec<Option<Run>>,
}

impl Recorder {
    fn new(topology: &Topology) -> Self {
        let lane = |cpu: &warmcore_topo::Cpu| Lane {
            cpu: cpu.id.0,
            llc: cpu.llc.0,
            runs: Vec::new(),
            wakes_ns: Vec::new(),
        };
        let lanes: Vec<Lane> = topology.cpus.iter().map(lane).collect();
        Self { running: vec![None; lanes.len()], lanes, tasks: Vec::new() }
    }
}

impl Observer for Recorder {
    fn waking(&mut self, now: Nanos, waker: WakeSource, _wakee: TaskId) {
        if let WakeSource::Cpu(cpu) = waker
            && (FROM..FROM + DRAWN).contains(&now.0)
        {
            self.lanes[cpu.index()].wakes_ns.push(now.0);
        }
    }

    fn queued(&mut self, _now: Nanos, _task: TaskId, _at: TargetQueue) {}

    fn switch(
        &mut self,
        now: Nanos,
        cpu: CpuId,
        _prev: Option<(TaskId, SwitchReason)>,
        next: Option<TaskId>,
    ) {
        let at = cpu.index();
        if let Some(run) = self.running[at].take()
            && now.0 > FROM
            && run.from_ns < FROM + DRAWN
        {
            let (from_ns, to_ns) = (run.from_ns.max(FROM), now.0.min(FROM + DRAWN));
            // What began before the picture begins with no move in it.
            let came_from_llc = run.came_from_llc.filter(|_| run.from_ns >= FROM);
            self.lanes[at].runs.push(Run { from_ns, to_ns, came_from_llc, ..run });
        }
        let Some(next) = next else { return };
        let (pair, last) = self.tasks[next.0 as usize];
        let came_from_llc = last.filter(|last| *last != at).map(|last| self.lanes[last].llc);
        self.running[at] = Some(Run { pair, from_ns: now.0, to_ns: now.0, came_from_llc });
        self.tasks[next.0 as usize].1 = Some(at);
    }

    fn task_created(&mut self, _now: Nanos, task: TaskId, name: &str) {
        let place = task.0 as usize;
        if self.tasks.len() <= place {
            self.tasks.resize(place + 1, (0, None));
        }
        let pair = name.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
        self.tasks[place] = (pair, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_hold_nobody_twice_at_a_time_and_stay_within_the_picture() {
        let lanes = lanes();
        assert_eq!(lanes.panels.len(), 2);
        for panel in &lanes.panels {
            assert_eq!(panel.lanes.len(), 16);
            for lane in &panel.lanes {
                assert!(lane.runs.is_sorted_by(|a, b| a.to_ns <= b.from_ns), "{lane:?}");
                let inside = |ns: u64| (lanes.from_ns..=lanes.to_ns).contains(&ns);
                assert!(lane.runs.iter().all(|run| inside(run.from_ns) && inside(run.to_ns)), "{lane:?}");
                assert!(lane.wakes_ns.iter().all(|wake| inside(*wake)), "{lane:?}");
            }
            assert!(panel.trips_per_second > 0 && panel.lanes.iter().any(|lane| !lane.runs.is_empty()));
        }
    }

    #[test]
    fn hot_windows_leave_tasks_where_they_were() {
        let moved = |panel: &Panel| {
            let runs = || panel.lanes.iter().flat_map(|lane| &lane.runs);
            (runs().filter(|run| run.came_from_llc.is_some()).count() as f64) / runs().count() as f64
        };
        let [linux, hot] = &lanes().panels[..] else { panic!("two panels") };
        assert!(moved(hot) < moved(linux), "{} {}", moved(hot), moved(linux));
    }
}
