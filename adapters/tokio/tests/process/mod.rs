//! Runs a test of the calling program again, in a process of its own with other environment variables.

use std::process::{Command, Output};

/// Set in the processes that [`rerun`] starts.
const MARK: &str = "FACE_TEST_RERUN";

/// Whether [`rerun`] started this process.
pub fn is_rerun() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs the test `name` of this program with `variables` in the environment.
///
/// # Panics
/// If the test fails there, with its output.
pub fn rerun(name: &str, variables: &[(&str, &str)]) -> Output {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    for variable in ["WARMCORE", "WARMCORE_FACE_COUNT", "TOKIO_WORKER_THREADS"] {
        command.env_remove(variable);
    }
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]).env(MARK, "1");
    let output = command.envs(variables.iter().copied()).output().expect("this program runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("1 passed"), "no test {name} ran: {text}");
    output
}
