//! Which scheduler a guest runs.

use anyhow::ensure;

/// A scheduler and its settings, as `--scheduler` names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scheduler {
    /// As it was given: `warm,hand_over=off`.
    pub name: String,
    /// Its program, and the arguments. Empty: the kernel's own.
    command: Vec<String>,
}

/// The kernel's own.
const OWN: &str = "eevdf";

/// Warmcore's, and its program.
const WARM: &str = "warm";
const PROGRAM: &str = "scx_warm";

impl Scheduler {
    /// Reads `eevdf`, which is the kernel's own; `warm`, with `,SETTING=VALUE` any number of times; or the name of another program in the
    /// guest's `/bin`, with `,ARGUMENT`.
    ///
    /// # Errors
    /// The kernel's own has no settings here.
    pub fn parse(name: &str) -> anyhow::Result<Self> {
        let mut parts = name.split(',');
        let program = parts.next().unwrap_or_default();
        ensure!(!program.is_empty(), "a scheduler has a name: eevdf, warm, or a program such as scx_rusty");
        let Self { mut command, .. } = match program {
            OWN => Self::own(),
            WARM => Self::warm(),
            program => Self { name: String::new(), command: vec![program.to_owned()] },
        };
        for part in parts {
            ensure!(program != OWN, "{name}: eevdf is the kernel's own scheduler, and has no settings here");
            if program == WARM {
                command.push("--set".to_owned());
            }
            command.push(part.to_owned());
        }
        Ok(Self { name: name.to_owned(), command })
    }

    /// The kernel's own.
    pub fn own() -> Self {
        Self { name: OWN.to_owned(), command: Vec::new() }
    }

    /// Warmcore's, with the settings that it has.
    pub fn warm() -> Self {
        Self { name: WARM.to_owned(), command: vec![PROGRAM.to_owned()] }
    }

    /// The name of its program. `None`: it is the kernel's own.
    pub fn program(&self) -> Option<&str> {
        self.command.first().map(String::as_str)
    }

    /// Whether it is neither the kernel's own nor Warmcore's.
    pub(crate) fn is_rival(&self) -> bool {
        self.program().is_some_and(|program| program != PROGRAM)
    }

    /// The command in the guest.
    pub(crate) fn command(&self) -> Vec<String> {
        let mut command = self.command.clone();
        if let Some(program) = command.first_mut() {
            *program = format!("/bin/{program}");
        }
        command
    }

    /// The name as part of a file's name.
    pub(crate) fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_-=.".contains(c) { c } else { '+' };
        self.name.chars().map(plain).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_warm_are_set_and_other_programs_get_arguments() {
        let command = |name| Scheduler::parse(name).unwrap().command().join(" ");
        assert_eq!(command("eevdf"), "");
        assert_eq!(command("warm"), "/bin/scx_warm");
        assert_eq!(
            command("warm,hand_over=off,mode=nosteal"),
            "/bin/scx_warm --set hand_over=off --set mode=nosteal"
        );
        assert_eq!(command("scx_rusty,--slice-us,5000"), "/bin/scx_rusty --slice-us 5000");
        assert!(Scheduler::parse("eevdf,x=1").is_err());
        assert!(Scheduler::parse("").is_err());
    }
}
