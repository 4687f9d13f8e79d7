//! Code: a program as a simulation runs it, with its names resolved.
//!
//! There are two passes. `load`, when a program is spawned, finds CPUs that this machine does not have and processes
//! that the simulation does not have. `link`, when the simulation runs, resolves the tasks and locks that programs
//! name. A forked program is loaded once per spawn, with the program that forks it. A step takes 32 bytes.

use super::channel::Channel;
use super::scheduler::Scheduler;
use super::task::{NONE, WaitQueue};
use super::{Simulation, TaskCounts};
use crate::program::{Op, Program, ProgramError, TaskAffinity, TaskId};
use crate::trace::Observer;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use warmcore_sched::Allowed;
use warmcore_types::{CpuId, CpuSet};

/// A program as a simulation runs it. Its linked steps are in `Simulation::steps`.
#[derive(Debug, Default)]
pub(crate) struct Code {
    pub(crate) program: Program,
    children: Vec<u32>,
    pub(crate) affinities: Vec<Allowed>,
    pub(crate) starts_at: Allowed,
    /// The sizes of a task's own working set that its steps pass over, in KiB, ascending.
    pub(crate) own_kib: Vec<u32>,
    /// The wait queues of locks that it takes, each with the first step that does.
    pub(crate) locks: Vec<(u32, usize)>,
    /// By (task, account): units of refused charges that the task has not uncharged yet.
    pub(crate) refused: BTreeMap<(u32, u32), u64>,
    /// The summed counts of forked tasks that ran it and have ended.
    pub(crate) past: TaskCounts,
    pub(crate) past_tasks: u64,
}

/// What a name refers to. Only looked up, never iterated: the order of a `HashMap` must not matter.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) tasks: HashMap<String, u32>,
    wait_queues: HashMap<String, u32>,
    marks: HashMap<String, u32>,
    channels: HashMap<String, u32>,
}

impl<S: Scheduler, O: Observer> Simulation<S, O> {
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
        if let Some(process) = program.process.filter(|process| process.0 as usize >= self.processes.len()) {
            let location = format!("program `{}`", program.name);
            let fact = format!("process {} is not of this sim", process.0);
            return Err(ProgramError::new(location, fact, "make one with `process`"));
        }
        let resolve = |affinity: &TaskAffinity, location: &dyn Fn() -> String| {
            self.allowed(affinity).map_err(|fact| {
                let all = self.topology.online();
                let next = format!("name one CPU of {all}, all of an LLC or of a node, or none for all");
                ProgramError::new(location(), fact, next)
            })
        };
        let starts_at = resolve(&program.starts_at, &|| program.location())?;
        let affinities = (0..).zip(program.affinities.iter()).map(|(at, affinity)| {
            let step = || program.ops.iter().position(|op| *op == Op::Allow(at));
            resolve(affinity, &|| step().map_or_else(|| program.location(), |step| program.at(step)))
        });
        let affinities = affinities.collect::<Result<_, _>>()?;
        let own = program.ops.iter().filter_map(|op| match op {
            Op::TouchOwn { kib, .. } => Some(*kib),
            _ => None,
        });
        let own_kib = own.collect::<BTreeSet<_>>().into_iter().collect();
        let program = program.clone();
        self.codes.push(Code { program, children, affinities, starts_at, own_kib, ..Code::default() });
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
                cpus.iter().try_for_each(|cpu| host(cpu).map(|_| ()))?;
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
        let machine = &self.state.machine;
        (0..self.state.cpus.len() as u32).map(CpuId).filter(|cpu| machine.allows(place, *cpu)).collect()
    }

    /// Restricts where a task may run from now on, and tells its process's ids the CPUs, as the kernel does for an
    /// `mm`.
    pub(super) fn allow(&mut self, id: u32, place: Allowed) {
        let task = self.state.task(id);
        task.allowed = place;
        let (process, user) = (task.process, task.user);
        if process != NONE {
            let cpus = self.cpus_of(place);
            self.processes[process as usize].cids.allow_task(user, &cpus);
        }
    }

    /// Resolves the names in programs that are not linked yet. A program with an unknown name, and those loaded after
    /// it, stay unlinked until the next call.
    pub(super) fn link(&mut self) -> Result<(), ProgramError> {
        for code in &mut self.codes[self.parts.len()..] {
            let program = &code.program;
            let (names, wait_queues, marks) = (&mut self.names, &mut self.wait_queues, &mut self.marks);
            let name = |name: u32| program.names[name as usize].clone();
            let channels = &mut self.channels;
            for op in program.ops.iter() {
                let (of, room) = match *op {
                    Op::Send { channel, room, .. } => (channel, room),
                    Op::Await(channel) => (channel, 0),
                    _ => continue,
                };
                let channel = *names.channels.entry(name(of)).or_insert_with(|| {
                    channels.push(Channel::new(&name(of), wait_queues));
                    channels.len() as u32 - 1
                });
                channels[channel as usize].set_room(room);
            }
            let mut wait_queue = |of: u32| {
                *names.wait_queues.entry(name(of)).or_insert_with(|| {
                    wait_queues.push(WaitQueue::new(name(of)));
                    wait_queues.len() as u32 - 1
                })
            };
            let (mut ops, mut locks) = (Vec::with_capacity(program.ops.len()), Vec::<(u32, usize)>::new());
            for (step, op) in program.ops.iter().enumerate() {
                ops.push(match *op {
                    Op::WakeNamed { target, is_sync } => match names.tasks.get(&name(target)) {
                        Some(task) => Op::Wake { task: TaskId(*task), is_sync },
                        None => {
                            let fact = format!("wakes `{}`, and no task is called so", name(target));
                            return Err(ProgramError::new(program.at(step), fact, "spawn it first"));
                        }
                    },
                    Op::Wake { task, .. } if task.0 as usize >= self.state.tasks.len() => {
                        let fact = format!("wakes task {}, and there is none", task.0);
                        return Err(ProgramError::new(program.at(step), fact, "take what `spawn` gave"));
                    }
                    Op::Lock(of) => {
                        let of = wait_queue(of);
                        if locks.iter().all(|(known, _)| *known != of) {
                            locks.push((of, step));
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
                    Op::Reserve(of) => Op::Reserve(names.channels[&name(of)]),
                    Op::Send { channel, room, is_socket } => {
                        Op::Send { channel: names.channels[&name(channel)], room, is_socket }
                    }
                    Op::Await(of) => Op::Await(names.channels[&name(of)]),
                    Op::Take(of) => Op::Take(names.channels[&name(of)]),
                    Op::Fork(child) => Op::Fork(code.children[child as usize]),
                    Op::Mark(of) => Op::Mark(*names.marks.entry(name(of)).or_insert_with(|| {
                        marks.push((name(of), 0));
                        marks.len() as u32 - 1
                    })),
                    other => other,
                });
            }
            code.locks = locks;
            let begin = self.steps.len() as u32;
            self.steps.append(&mut ops);
            self.parts.push((begin, self.steps.len() as u32));
        }
        Ok(())
    }
}
