//! The scripted million calls of the core, with the simulated runtime as the host: it must decide what
//! `fixtures/script.txt` says.

use super::host::{SimHost, SimTask};
use player::{Player, Scripted};
use warmcore_sched::{Allowed, Policy, PolicyKind, Share};
use warmcore_types::{CpuId, Nanos};

#[path = "../../../../../crates/sched/tests/common/script.rs"]
mod player;

impl<P: Policy> Scripted for SimHost<P> {
    fn task(&self, number: u32, allowed: Allowed, tenant: u64) -> SimTask {
        let share = match tenant {
            0 => Share::NO_TENANT,
            tenant => Share { tenant, weight: 100 * tenant as u32 },
        };
        SimTask::new(number, 0, allowed, share)
    }

    fn number(task: &SimTask) -> u32 {
        task.index()
    }

    fn set_clock(&self, now: Nanos) {
        self.set_now(now.0);
    }

    fn drain_unparked(&self, mut each: impl FnMut(CpuId)) {
        while let Some(worker) = self.pop_unparked() {
            each(worker);
        }
    }
}

#[test]
fn a_million_calls_are_decided_as_in_the_fixture() {
    let host = SimHost::new(player::machine(), PolicyKind::Home);
    let mut player = Player::new(&host, 24);
    player.play(1_000_000);
    let text = player.log.text();
    assert!(
        text == include_str!("../../../../../fixtures/script.txt"),
        "the core decides otherwise:\n{text}"
    );
}
