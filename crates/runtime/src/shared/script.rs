//! The scripted million calls of the core, with the runtime as the host: it must decide what `fixtures/script.txt` says.
//!
//! One thread plays all workers. The tasks are real ones that are never polled.

use super::*;
use crate::header::TaskAttrs;
use crate::runtime::{remote, shared};
use crate::task_cell::future::make;
use player::{Player, Scripted};
use std::cell::{Cell, OnceCell, RefCell};
use std::time::Duration;
use warmcore_driver::Entered;
use warmcore_tenant::Tenant;

#[path = "../../../sched/tests/common/script.rs"]
mod player;

thread_local! {
    static NOW: Cell<Nanos> = const { Cell::new(Nanos(0)) };
    static UNPARKED: RefCell<Vec<CpuId>> = const { RefCell::new(Vec::new()) };
    static RUNTIME: OnceCell<(Arc<Shared>, [Tenant; 2])> = const { OnceCell::new() };
}

/// The driver of a worker that the script plays.
struct Played(CpuId);

impl Driver for Played {
    fn now(&self) -> Nanos {
        NOW.get()
    }
    fn park(&self, _until: Option<Nanos>, _is_awake: &dyn Fn() -> bool) {}
    fn poll_events(&self) {}
    fn unpark(&self) {
        UNPARKED.with_borrow_mut(|unparked| unparked.push(self.0));
    }
    fn enter(&self) -> Entered<'_> {
        Entered::none()
    }
    fn wake_at(&self, _at: Nanos) {}
    fn close(&self) {}
}

impl Scripted for Shared {
    fn task(&self, number: u32, allowed: Allowed, tenant: u64) -> RunnableTask {
        RUNTIME.with(|runtime| {
            let (shared, tenants) = runtime.get().expect("the test has set it");
            let name = Some(Arc::from(number.to_string()));
            let tenant = tenant.checked_sub(1).map(|tenant| &tenants[tenant as usize]);
            // SAFETY: the task keeps `shared`, which has the counters.
            let tenant = tenant.map(|tenant| unsafe { shared.tenant_stats.tenant_ref(tenant) });
            let attrs = Box::new(TaskAttrs { name, tenant, ..TaskAttrs::default() });
            let scheduler = Arc::new(SchedulerRef { shared: shared.clone() });
            // SAFETY: the future and its output are `Send` and `'static`.
            unsafe { make(scheduler, allowed, Some(attrs), async {}) }.0
        })
    }

    fn number(task: &RunnableTask) -> u32 {
        task.header().name().expect("each task of the script has a name").parse().expect("a number")
    }

    fn set_clock(&self, now: Nanos) {
        NOW.set(now);
    }

    fn drain_unparked(&self, each: impl FnMut(CpuId)) {
        UNPARKED.take().into_iter().for_each(each);
    }
}

#[test]
fn a_million_calls_are_decided_as_in_the_fixture() {
    let machine = player::machine();
    let remotes = (0..machine.cpus() as u32).map(|cpu| remote(Box::new(Played(CpuId(cpu))))).collect();
    let pin_to = vec![warmcore_types::CpuSet::default(); machine.cpus()];
    let limit = Duration::from_millis(1);
    let shared = Arc::new(shared("script".into(), remotes, machine, PolicyKind::Home, limit, pin_to));
    let tenants = [100, 200].map(|weight| Tenant::builder().name("tenant").weight(weight).build());
    RUNTIME.with(|runtime| drop(runtime.set((shared.clone(), tenants))));
    let mut player = Player::new(&*shared, 24);
    player.play(1_000_000);
    let text = player.log.text();
    assert!(text == include_str!("../../../../fixtures/script.txt"), "the core decides otherwise:\n{text}");
}
