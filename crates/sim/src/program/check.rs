//! Check: whether a world can run a program.
//!
//! Model.   Loops begin and end in pairs; what takes time takes less than [`LENGTH_MAX`]; a loop for
//!          ever takes some. What depends on the machine or on other programs is found when the world loads it.
//! Number.  One pass over the steps.
//! Writers. None.

use super::{FOREVER, LENGTH_MAX, LOOPS_MAX, Length, Op, Program, ProgramError, TIMERS};
use warmcore_terms::Nanos;

impl Program {
    /// Whether a world can run it.
    ///
    /// # Errors
    /// Loops too deep, or that do not end where they begin; one for ever that never takes time; lengths over
    /// [`LENGTH_MAX`]; timers that there are not; a working set of two kinds of pages.
    pub fn check(&self) -> Result<(), ProgramError> {
        let wrong = |step: usize, fact: String, next: &str| Err(ProgramError::new(self.at(step), fact, next));
        self.check_loops()?;
        if let Some(delay) = self.delay {
            check_length(delay).map_err(|(fact, next)| {
                ProgramError::new(format!("program `{}`, before its begin", self.name), fact, next)
            })?;
        }
        let mut own = None;
        for (step, op) in self.ops.iter().enumerate() {
            match op {
                Op::Run(length) | Op::Sleep(length) => check_length(*length)
                    .map_err(|(fact, next)| ProgramError::new(self.at(step), fact, next))?,
                Op::Timer { period, .. } if period.0 > LENGTH_MAX.0 => {
                    check_length(Length::Fixed(*period))
                        .map_err(|(fact, next)| ProgramError::new(self.at(step), fact, next))?
                }
                Op::Begin { times: FOREVER, end }
                    if !self.ops[step + 1..*end as usize].iter().any(takes_time) =>
                {
                    return wrong(
                        step,
                        "a loop for ever in which no time passes".into(),
                        "let it run or sleep",
                    );
                }
                Op::Timer { slot, .. } if usize::from(*slot) >= TIMERS => {
                    return wrong(step, format!("timer {slot}"), "a task has timers 0 to 3");
                }
                Op::TouchOwn { pages, .. } => {
                    let before = *own.get_or_insert(*pages);
                    if before != *pages {
                        let fact =
                            format!("its own working set has {before:?} pages, and {pages:?} ones here");
                        return wrong(step, fact, "say the same in all steps, or touch an extent");
                    }
                }
                Op::TouchCid(_) if self.process.is_none() => {
                    return wrong(step, "touches a process's area in none".into(), "say `in_process`");
                }
                Op::Barrier { parties: 0, .. } => {
                    return wrong(step, "a barrier of nobody".into(), "say how many come there");
                }
                _ => {}
            }
        }
        self.children.iter().try_for_each(|child| {
            let process = child.process.or(self.process);
            Self { process, ..child.clone() }.check()
        })
    }

    /// Each loop's end belongs to the last begin that has none yet. Not so if a body gave back another program.
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

/// What is wrong with a length, and what to do.
fn check_length(length: Length) -> Result<(), (String, String)> {
    let longest = length.longest();
    if longest <= LENGTH_MAX {
        return Ok(());
    }
    let fact = match length {
        Length::Fixed(_) => format!("takes {} ns", longest.0),
        Length::Exponential(mean) => format!("takes up to 46 times its mean of {} ns", mean.0),
        _ => format!("takes up to {} ns", longest.0),
    };
    Err((fact, format!("{} ns is the most, 104 days", LENGTH_MAX.0)))
}

/// Whether time may pass in a step, or somebody else may make it pass.
fn takes_time(op: &Op) -> bool {
    !matches!(
        op,
        Op::WakeNamed { .. }
            | Op::Wake { .. }
            | Op::Signal(_)
            | Op::Broadcast(_)
            | Op::Mark(_)
            | Op::Allow(_)
            | Op::Charge(..)
            | Op::Uncharge(..)
            | Op::Begin { .. }
            | Op::End(_)
            | Op::Unlock(_)
            | Op::Run(Length::Fixed(Nanos(0)))
            | Op::Sleep(Length::Fixed(Nanos(0)))
    )
}
