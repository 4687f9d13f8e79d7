//! A process and all of its descendants, as `/proc` lists them, to be measured, shown and ended.
//!
//! To end a tree of processes, its processes are stopped first, and listed again until no new one appears. A stopped
//! process starts no other, so none is orphaned and lost before it is killed. A listing takes a few milliseconds; two
//! are enough unless the tree grows meanwhile.
//!
//! Source: proc_pid_stat(5), kill(1).

use std::process::{Command, Stdio};
use std::time::Duration;

/// A process and all of its descendants, parents first.
pub struct Tree(Vec<u32>);

/// Ticks a second of the times in `/proc`: `USER_HZ`, which is 100 on each architecture that Linux has kept.
const TICKS: u64 = 100;

/// The CPU time of a process, and that of its children that have ended and were waited for, from its file `stat` in
/// `/proc`. `None` if the file can't be read, as after the process has ended.
pub fn cpu_fields(stat: &str) -> Option<[Duration; 2]> {
    let stat = std::fs::read_to_string(stat).ok()?;
    // The fields from the third on; the second, a name, may contain blanks. The 14th to 17th are times.
    let fields: Vec<u64> = stat
        .rsplit_once(')')?
        .1
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|field| field.parse().ok())
        .collect();
    let [user, system, user_of_children, system_of_children] = fields[..] else { return None };
    let time = |ticks: u64| Duration::from_millis(ticks * 1000 / TICKS);
    Some([time(user + system), time(user_of_children + system_of_children)])
}

impl Tree {
    /// Lists the process `root` and its descendants.
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

    /// A line per process with its command, and below it a line per thread with the thread's state and name, and with
    /// where the thread waits in the kernel.
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

    /// The CPU time that all processes of the tree have used, with their children that have ended and were waited for.
    pub fn cpu(&self) -> Duration {
        let fields = self.0.iter().filter_map(|pid| cpu_fields(&format!("/proc/{pid}/stat")));
        fields.map(|[own, of_children]| own + of_children).sum()
    }

    /// Ends all processes of the tree, and those that they start meanwhile. Does nothing if there is no program `kill`.
    pub fn end(mut self) {
        let mut new = self.0.clone();
        // Without STOP the tree could grow for ever.
        while !new.is_empty() && signal("-STOP", &new) {
            new = Self::under(self.0[0]).0;
            new.retain(|pid| !self.0.contains(pid));
            self.0.extend(&new);
        }
        signal("-KILL", &self.0);
    }
}

/// Sends a signal; returns whether the program `kill` could be run. A process that has ended needs no signal.
fn signal(name: &str, pids: &[u32]) -> bool {
    let mut kill = Command::new("kill");
    kill.arg(name).args(pids.iter().map(u32::to_string)).stderr(Stdio::null()).status().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_process_that_computes_grows() {
        let before = Tree::under(std::process::id()).cpu();
        let began = std::time::Instant::now();
        while Tree::under(std::process::id()).cpu() < before + Duration::from_millis(20) {
            assert!(began.elapsed().as_secs() < 60, "its own time does not grow");
        }
    }

    #[test]
    fn a_tree_that_grows_is_ended_whole() {
        // A number that occurs only in the command lines of this test's processes.
        let mark = format!("3600.{}", std::process::id());
        let grow = format!("while :; do sh -c 'sleep {mark} & wait' & sleep 0.01; done");
        let mut child = Command::new("sh").args(["-c", &grow]).spawn().unwrap();
        let sleeping = || {
            let all = std::fs::read_dir("/proc").unwrap().flatten();
            all.filter(|entry| {
                let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
                command.starts_with("sleep") && command.contains(&mark)
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
        // A killed process loses its memory, and with it its command line, a little later.
        let began = std::time::Instant::now();
        while sleeping() > 0 {
            assert!(began.elapsed().as_secs() < 10, "{} are left", sleeping());
            std::thread::yield_now();
        }
    }
}
