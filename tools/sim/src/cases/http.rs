//! The case of `warmcore bench http`: a server that does nothing, with eight connections.

use super::{DONE, StepCosts, about};
use crate::program::Program;

const CONNECTIONS: usize = 8;

/// The threads of the client, of which each serves its share of the connections in one loop.
const CLIENTS: usize = 2;

/// Eight connections with one outstanding request each, a server's task for each, and the client's threads beside them.
///
/// The kernel's work for a request is part of the server's and the client's.
pub(super) fn hello(steps: &StepCosts) -> Vec<Program> {
    let connection = |i: usize| {
        let (request, answer) = (format!("request {i}"), format!("answer {i}"));
        let serve = |p: Program| p.receive(&request).run(about(steps.request)).send_to_socket(&answer, 1);
        let ask =
            |p: Program| p.run(about(steps.ask)).send_to_socket(&request, 1).receive(&answer).mark(DONE);
        [
            Program::new(format!("connection {i}")).forever(serve),
            Program::new(format!("client {i}")).on_thread((i % CLIENTS) as u32).forever(ask),
        ]
    };
    (0..CONNECTIONS).flat_map(connection).collect()
}
