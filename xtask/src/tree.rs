//! Tree: a process and all below it, as `/proc` tells, to be shown and ended.
//!
//! Model.   A look lists who is whose parent. Ending stops all of it first and looks again until nothing new is
//!          there: who is stopped starts nothing, and none of it is orphaned and lost from sight before it is killed.
//! Number.  A look takes a few ms; two are enough unless the tree grows meanwhile.
//! Source.  proc_pid_stat(5), kill(1).

use std::process::{Command, Stdio};

/// A process and all below it, parents first.
pub struct Tree(Vec<u32>);

impl Tree {
    /// Looks.
    pub fn under(root: u32) -> Self {
        let parent_of = |pid: u32| -> Option<u32> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
        };
        let all: Vec<(u32, u32)> = (std::fs::read_dir("/proc").into_iter().flatten().flatten())
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter_map(|pid| Some((pid, parent_of(pid)?)))
            .collect();
        let mut tree = vec![root];
        let mut at = 0;
        while at < tree.len() {
            let parent = tree[at];
            tree.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
            at += 1;
        }
        Self(tree)
    }

    /// A line per process, and below it one per thread: what it's called, its state, where it waits.
    pub fn describe(&self) -> String {
        let read = |path: String| {
            std::fs::read_to_string(path).unwrap_or_default().replace('\0', " ").trim().to_owned()
        };
        let mut text = String::new();
        for pid in &self.0 {
            text += &format!("{pid:>8}  {}\n", read(format!("/proc/{pid}/cmdline")));
            let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
            for thread in threads.into_iter().flatten().flatten() {
                let path = thread.path().display().to_string();
                let stat = read(format!("{path}/stat"));
                let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
                let (name, wait) = (read(format!("{path}/comm")), read(format!("{path}/wchan")));
                text += &format!("          {state} {name:<16} {wait}\n");
            }
        }
        text
    }

    /// Ends all of it, and what it starts meanwhile. Does nothing where there is no program `kill`.
    pub fn end(mut self) {
        let mut new = self.0.clone();
        // Without STOP it could grow for ever.
        while !new.is_empty() && signal("-STOP", &new) {
            new = Self::under(self.0[0]).0;
            new.retain(|pid| !self.0.contains(pid));
            self.0.extend(&new);
        }
        signal("-KILL", &self.0);
    }
}

/// Whether it could be sent; to who is gone already it needn't.
fn signal(name: &str, pids: &[u32]) -> bool {
    let mut kill = Command::new("kill");
    kill.arg(name).args(pids.iter().map(u32::to_string)).stderr(Stdio::null()).status().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_that_grows_is_ended_whole() {
        // A name that only these have.
        let mark = format!("3600.{}", std::process::id());
        let grow = format!("while :; do sh -c 'sleep {mark} & wait' & sleep 0.01; done");
        let mut child = Command::new("sh").args(["-c", &grow]).spawn().unwrap();
        let sleeping = || {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            all.filter(|entry| {
                let told = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
                told.starts_with("sleep") && told.contains(&mark)
            })
            .count()
        };
        while sleeping() < 20 {
            std::thread::yield_now();
        }
        let tree = Tree::under(child.id());
        assert!(tree.describe().contains(&mark));
        tree.end();
        child.wait().unwrap();
        // Who was killed leaves its memory, and its name with it, a little later.
        let began = std::time::Instant::now();
        while sleeping() > 0 {
            assert!(began.elapsed().as_secs() < 10, "{} are left", sleeping());
            std::thread::yield_now();
        }
    }
}
