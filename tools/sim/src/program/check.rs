//! Check: whether a simulation can run a program.
//!
//! Loops have to be nested correctly; no length may be more than [`LENGTH_MAX`]; an endless loop needs a step in which
//! time may pass. Errors that depend on the machine or on other programs are found when the simulation loads and links
//! the program. Each program's steps are checked once per process, however often it is forked.

use super::{
    FOREVER, FORKS_MAX, LENGTH_MAX, LOOPS_MAX, Length, Op, ProcessId, Program, ProgramError, TIMERS,
};
use std::collections::HashMap;
use std::sync::Arc;
use warmcore_types::Nanos;

/// By program and process: the number of fork levels below a program that was found correct. Only looked up, never
/// iterated.
type Checked = HashMap<(*const Program, Option<ProcessId>), usize>;

impl Program {
    /// Checks whether a simulation can run this program.
    ///
    /// # Errors
    /// Loops nested too deep, or not closed where they were opened; an endless loop without a step in which time may
    /// pass; lengths over [`LENGTH_MAX`]; a timer number above 3; a working set of two kinds of pages; `touch_cid`
    /// outside of a process; a barrier for no task; forks over more than [`FORKS_MAX`] levels.
    pub fn check(&self) -> Result<(), ProgramError> {
        self.check_family(self.process, 0, &mut Checked::new()).map(|_| ())
    }

    /// Checks this program, at this level of forks, and all that it forks, each once per process. Returns the number of
    /// levels below it.
    fn check_family(
        &self,
        process: Option<ProcessId>,
        level: usize,
        checked: &mut Checked,
    ) -> Result<usize, ProgramError> {
        let too_deep = || {
            let fact = format!("programs that fork each other over more than {FORKS_MAX} levels");
            Err(ProgramError::new(self.location(), fact, "let one of them loop instead"))
        };
        if level > FORKS_MAX {
            return too_deep();
        }
        self.check_steps(process)?;
        let mut levels = 0;
        for child in self.children.iter() {
            let process = child.process.or(process);
            let below = match checked.get(&(Arc::as_ptr(child), process)) {
                Some(below) => *below,
                None => {
                    let below = child.check_family(process, level + 1, checked)?;
                    checked.insert((Arc::as_ptr(child), process), below);
                    below
                }
            };
            levels = levels.max(below + 1);
        }
        if level + levels > FORKS_MAX { too_deep() } else { Ok(levels) }
    }

    fn check_steps(&self, process: Option<ProcessId>) -> Result<(), ProgramError> {
        self.check_loops()?;
        if let Some(delay) = self.delay {
            check_length(delay, || format!("{}, before its begin", self.location()))?;
        }
        let mut own = None;
        for (step, op) in self.ops.iter().enumerate() {
            let at = || self.at(step);
            let wrong = |fact: &str, next: &str| Err(ProgramError::new(at(), fact, next));
            match op {
                Op::Run(length) | Op::RunFor(length) | Op::Sleep(length) => check_length(*length, at)?,
                Op::Timer { period, slot, .. } => {
                    check_length(Length::Fixed(*period), at)?;
                    if usize::from(*slot) >= TIMERS {
                        return wrong(&format!("timer {slot}"), "a task has timers 0 to 3");
                    }
                }
                Op::Begin { times: FOREVER, end }
                    if !self.ops[step + 1..*end as usize].iter().any(takes_time) =>
                {
                    return wrong("a loop for ever in which no time passes", "let it run or sleep");
                }
                Op::TouchOwn { pages, .. } => {
                    let before = *own.get_or_insert(*pages);
                    if before != *pages {
                        let fact =
                            format!("its own working set has {before:?} pages, and {pages:?} ones here");
                        return wrong(&fact, "say the same in all steps, or touch an extent");
                    }
                }
                Op::TouchCid(_) if process.is_none() => {
                    return wrong("touches a process's area in none", "say `in_process`");
                }
                Op::Barrier { parties: 0, .. } => {
                    return wrong("a barrier for no task", "say how many tasks meet there");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that each loop's end belongs to the innermost open loop, and that at most [`LOOPS_MAX`] loops are nested.
    /// The first check fails if a body returned another program.
    fn check_loops(&self) -> Result<(), ProgramError> {
        let wrong = |step: usize, fact: &str| {
            let next = "let the body give back the program that it got";
            Err(ProgramError::new(self.at(step), fact, next))
        };
        let (mut open, mut deepest) = (Vec::new(), 0);
        for (step, op) in self.ops.iter().enumerate() {
            match op {
                Op::Begin { end, .. } => {
                    open.push((step, *end as usize));
                    deepest = deepest.max(open.len());
                }
                Op::End(begin) if open.pop() != Some((*begin as usize, step + 1)) => {
                    return wrong(step, "a loop ends that does not begin in this program");
                }
                _ => {}
            }
        }
        if let Some((step, _)) = open.pop() {
            return wrong(step, "a loop begins that does not end in this program");
        }
        if deepest > LOOPS_MAX {
            let fact = format!("{deepest} loops within each other, and there may be {LOOPS_MAX}");
            return Err(ProgramError::new(self.at(0), fact, "fork the inner ones"));
        }
        Ok(())
    }
}

fn check_length(length: Length, at: impl Fn() -> String) -> Result<(), ProgramError> {
    let longest = length.longest();
    if longest <= LENGTH_MAX {
        return Ok(());
    }
    let fact = match length {
        Length::Fixed(_) => format!("takes {} ns", longest.0),
        Length::Exponential(mean) => format!("takes up to 46 times its mean of {} ns", mean.0),
        _ => format!("takes up to {} ns", longest.0),
    };
    Err(ProgramError::new(at(), fact, format!("{} ns is the most, 104 days", LENGTH_MAX.0)))
}

/// Whether time may pass in a step, also because it waits for another task. A wake and a charge, whose time is only a
/// cost of the simulated machine, do not count.
fn takes_time(op: &Op) -> bool {
    !matches!(
        op,
        Op::WakeNamed { .. }
            | Op::BeginPoll { .. }
            | Op::Wake { .. }
            | Op::Signal(_)
            | Op::Broadcast(_)
            | Op::Mark(_)
            | Op::Allow(_)
            | Op::Charge(..)
            | Op::Uncharge(..)
            | Op::Spend
            | Op::Send { .. }
            | Op::Take(_)
            | Op::Begin { .. }
            | Op::End(_)
            | Op::Unlock(_)
            | Op::Run(Length::Fixed(Nanos(0)))
            | Op::RunFor(Length::Fixed(Nanos(0)))
            | Op::Sleep(Length::Fixed(Nanos(0)))
    )
}
