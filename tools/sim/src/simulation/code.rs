//! Code: a program as a simulation runs it, with its names resolved.
//!
//! There are two passes. `load`, when a program is spawned, finds CPUs and processes that this machine does not have.
//! `link`, when the simulation runs, resolves the tasks and locks that programs name. A forked program is loaded
//! once, with the program that forks it. A step takes 40 bytes.

use super::Simulation;
use super::observe::Observer;
use super::task::NONE;
use super::wait_queue::WaitQueue;
use crate::policy::SimPolicy;
use crate::program::{Length, Op, ProcessId, Program, ProgramError, TaskAffinity, TaskId, location_of};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use warmcore_sched::Allowed;
use warmcore_types::{CpuId, CpuSet};

/// A program as a simulation runs it.
#[derive(Debug)]
pub(crate) struct Code {
    pub(crate) name: String,
    pub(crate) ops: Vec<Op>,
    names: Arc<Vec<String>>,
    locations: Arc<Vec<(u32, Arc<str>)>>,
    children: Vec<u32>,
    pub(crate) affinities: Vec<Allowed>,
    pub(crate) starts_at: Allowed,
    pub(crate) process: Option<ProcessId>,
    pub(crate) is_daemon: bool,
    pub(crate) delay: Option<Length>,
    /// The sizes of a task's own working set that its steps pass over, in KiB, ascending.
    pub(crate) own_kib: Vec<u32>,
    /// The wait queues of locks that it takes, each with the first step that does.
    pub(crate) locks: Vec<(u32, u32)>,
    /// By (task, account): units of refused charges that the task has not uncharged yet.
    pub(crate) refused: BTreeMap<(u32, u32), u64>,
    is_linked: bool,
    /// The summed counts of forked tasks that ran it and have ended.
    pub(crate) past: super::TaskCounts,
    pub(crate) past_tasks: u64,
}

impl Code {
    /// The location of a step, in words.
    pub(crate) fn at(&self, step: u32) -> String {
        location_of(&self.name, &self.locations, step)
    }
}

/// What a name refers to. Only looked up, never iterated: the order of a `HashMap` must not matter.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) tasks: HashMap<String, u32>,
    wait_queues: HashMap<String, u32>,
    marks: HashMap<String, u32>,
}

impl<P: SimPolicy, O: Observer> Simulation<P, O> {
    pub(super) fn load(&mut self, program: &Program) -> Result<u32, ProgramError> {
        self.load_family(program, &mut HashMap::new())
    }

    /// Loads a program and all that it forks, each once. `loaded` is only looked up, never iterated.
    fn load_family(
        &mut self,
        program: &Program,
        loaded: &mut HashMap<*const Program, u32>,
    ) -> Result<u32, ProgramError> {
        let mut children = Vec::new();
        for child in program.children.iter() {
            let known = loaded.get(&Arc::as_ptr(child)).copied();
            let code = known.map_or_else(|| self.load_family(child, loaded), Ok)?;
            loaded.insert(Arc::as_ptr(child), code);
            children.push(code);
        }
        let resolve = |affinity: &TaskAffinity, step: Option<usize>| {
            self.allowed(affinity).map_err(|fact| {
                let all = self.topology.online();
                let next = format!("name one CPU of {all}, all of an LLC or of a node, or none for all");
                ProgramError::new(
                    step.map_or_else(|| program.location(), |step| program.at(step)),
                    fact,
                    next,
                )
            })
        };
        if let Some(process) = program.process.filter(|process| process.0 as usize >= self.processes.len()) {
            let fact = format!("process {} is not of this sim", process.0);
            return Err(ProgramError::new(
                format!("program `{}`", program.name),
                fact,
                "make one with `process`",
            ));
        }
        let step_of = |at: usize| program.ops.iter().position(|op| *op == Op::Allow(at as u32));
        let affinities = program.affinities.iter().enumerate().map(|(at, of)| resolve(of, step_of(at)));
        let (starts_at, affinities) =
            (resolve(&program.starts_at, None)?, affinities.collect::<Result<_, _>>()?);
        let own = program.ops.iter().filter_map(|op| match op {
            Op::TouchOwn { kib, .. } => Some(*kib),
            _ => None,
        });
        let mut own_kib: Vec<u32> = own.collect();
        own_kib.sort_unstable();
        own_kib.dedup();
        self.codes.push(Code {
            name: program.name.clone(),
            ops: program.ops.to_vec(),
            names: program.names.clone(),
            locations: program.locations.clone(),
            children,
            affinities,
            starts_at,
            process: program.process,
            is_daemon: program.is_daemon,
            delay: program.delay,
            own_kib,
            locks: Vec::new(),
            refused: BTreeMap::new(),
            is_linked: false,
            past: super::TaskCounts::default(),
            past_tasks: 0,
        });
        Ok(self.codes.len() as u32 - 1)
    }

    /// Where a task may run, by index of CPUs in the topology.
    fn allowed(&self, affinity: &TaskAffinity) -> Result<Allowed, String> {
        let topology = &self.topology;
        let host = |id: CpuId| {
            let at = topology.cpus.binary_search_by_key(&id, |cpu| cpu.id);
            at.map(|at| CpuId(at as u32)).map_err(|_| format!("{id} is not online on {}", topology.source))
        };
        match affinity {
            TaskAffinity::Anywhere => Ok(Allowed::Anywhere),
            TaskAffinity::Cpu(cpu) => Ok(Allowed::Cpu(host(*cpu)?)),
            TaskAffinity::Llc(llc) if llc.index() < topology.llcs.len() => Ok(Allowed::Llc(*llc)),
            TaskAffinity::Llc(llc) => Err(format!("there is no {llc} on {}", topology.source)),
            TaskAffinity::Node(node) if topology.node(*node).is_some_and(|node| !node.cpus.is_empty()) => {
                Ok(Allowed::Node(*node))
            }
            TaskAffinity::Node(node) => Err(format!("there is no {node} with CPUs on {}", topology.source)),
            TaskAffinity::Cpus(cpus) => {
                if let Some(missing) = cpus.iter().find(|cpu| host(*cpu).is_err()) {
                    return Err(format!("{missing} is not online on {}", topology.source));
                }
                let all =
                    || topology.llcs.iter().find(|llc| llc.cpus == *cpus).map(|llc| Allowed::Llc(llc.id));
                let node =
                    || topology.nodes.iter().find(|node| node.cpus == *cpus).map(|n| Allowed::Node(n.id));
                let one = (cpus.iter().count() == 1).then(|| cpus.first()).flatten();
                match one {
                    _ if *cpus == topology.online() => Ok(Allowed::Anywhere),
                    Some(cpu) => Ok(Allowed::Cpu(host(cpu)?)),
                    None => node().or_else(all).ok_or_else(|| {
                        format!("CPUs {cpus} are neither one CPU nor all of an LLC, a node or the machine")
                    }),
                }
            }
        }
    }

    /// The CPUs of a restriction.
    pub(super) fn cpus_of(&self, place: Allowed) -> CpuSet {
        let machine = &self.sched.machine;
        (0..self.sched.cpus.len() as u32).map(CpuId).filter(|cpu| machine.allows(place, *cpu)).collect()
    }

    /// Restricts where a task may run from now on, and updates the CPUs of its process, as the kernel does for an
    /// `mm`.
    pub(super) fn allow(&mut self, id: u32, place: Allowed) {
        let task = self.sched.task(id);
        task.allowed = place;
        let (process, user) = (task.process, task.user);
        if process != NONE {
            let cpus = self.cpus_of(place);
            self.processes[process as usize].allow(user, &cpus);
        }
    }

    /// Resolves the names in programs. A program with an unknown name is left as it was, for the next call.
    pub(super) fn link(&mut self) -> Result<(), ProgramError> {
        for at in 0..self.codes.len() {
            let code = &mut self.codes[at];
            if code.is_linked {
                continue;
            }
            let (mut ops, mut locks) = (Vec::with_capacity(code.ops.len()), Vec::<(u32, u32)>::new());
            let (names, wait_queues, marks) = (&mut self.names, &mut self.wait_queues, &mut self.marks);
            for step in 0..code.ops.len() {
                let name = |name: u32| code.names[name as usize].clone();
                let mut wait_queue = |of: u32| {
                    *names.wait_queues.entry(name(of)).or_insert_with(|| {
                        wait_queues.push(WaitQueue::new(name(of)));
                        wait_queues.len() as u32 - 1
                    })
                };
                let linked = match code.ops[step] {
                    Op::WakeNamed { target, is_sync } => match names.tasks.get(&name(target)) {
                        Some(task) => Op::Wake { task: TaskId(*task), is_sync },
                        None => {
                            let fact = format!("wakes `{}`, and no task is called so", name(target));
                            return Err(ProgramError::new(code.at(step as u32), fact, "spawn it first"));
                        }
                    },
                    Op::Wake { task, .. } if task.0 as usize >= self.sched.tasks.len() => {
                        let fact = format!("wakes task {}, and there is none", task.0);
                        return Err(ProgramError::new(code.at(step as u32), fact, "take what `spawn` gave"));
                    }
                    Op::Lock(of) => {
                        let of = wait_queue(of);
                        if locks.iter().all(|(known, _)| *known != of) {
                            locks.push((of, step as u32));
                        }
                        Op::Lock(of)
                    }
                    Op::Unlock(of) => Op::Unlock(wait_queue(of)),
                    Op::Suspend(of) => Op::Suspend(wait_queue(of)),
                    Op::Signal(of) => Op::Signal(wait_queue(of)),
                    Op::Broadcast(of) => Op::Broadcast(wait_queue(of)),
                    Op::WaitOn { condition, lock } => {
                        Op::WaitOn { condition: wait_queue(condition), lock: wait_queue(lock) }
                    }
                    Op::Barrier { name: of, parties } => Op::Barrier { name: wait_queue(of), parties },
                    Op::Fork(child) => Op::Fork(code.children[child as usize]),
                    Op::Mark(of) => Op::Mark(*names.marks.entry(name(of)).or_insert_with(|| {
                        marks.push((name(of), 0));
                        marks.len() as u32 - 1
                    })),
                    other => other,
                };
                ops.push(linked);
            }
            (code.ops, code.locks, code.is_linked) = (ops, locks, true);
        }
        Ok(())
    }
}
