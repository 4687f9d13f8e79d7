use super::*;

fn compute(for_ns: u64) {
    let clock = ThreadCpu::current();
    let began = clock.read();
    while clock.read().0 < began.0 + for_ns {
        std::hint::spin_loop();
    }
}

#[test]
fn own_time_is_what_is_used_outside_of_the_driver_while_it_is_counted() {
    const PART: u64 = 5_000_000;
    let host = Tokio::new("test", 1).unwrap();
    host.begin();
    host.count_own(true);
    host.turn();
    let before = host.used();
    compute(PART);
    assert!(host.used().own.0 - before.own.0 >= PART, "as long as it is under way");
    host.turn();
    assert!(host.used().own.0 - before.own.0 >= PART, "and afterwards");
    // Inside, none of it is.
    let before = host.used();
    let inside = host.used_by(|| compute(PART));
    assert!(
        inside.all.0 - before.all.0 >= PART && inside.own.0 - before.own.0 < PART,
        "{inside:?} {before:?}"
    );

    // Counted no more, and again from inside the driver: nothing is left over from before.
    host.count_own(false);
    host.turn();
    compute(PART);
    let before = host.used();
    let inside = host.used_by(|| {
        host.count_own(true);
        compute(PART);
    });
    assert!(inside.all.0 - before.all.0 >= PART, "{inside:?} {before:?}");
    assert_eq!(inside.own, before.own);
}

#[test]
fn only_the_worker_s_thread_is_counted_and_the_next_goes_on_where_it_ended() {
    const PART: u64 = 5_000_000;
    let host = &Tokio::new("test", 1).unwrap();
    let on_a_thread = |act: &(dyn Fn() + Sync)| std::thread::scope(|scope| _ = scope.spawn(act));
    on_a_thread(&|| {
        host.begin();
        compute(PART);
        host.end();
    });
    let first = host.used().all.0;
    assert!(first >= PART);
    // As in `block_on`: inside the runtime, and not the worker.
    on_a_thread(&|| host.within(&mut || compute(PART)));
    assert_eq!(host.used().all.0, first);
    on_a_thread(&|| {
        host.begin();
        // Another one takes over, and this one goes on for itself.
        on_a_thread(&|| {
            host.begin();
            compute(PART);
            host.end();
        });
        let second = host.used().all.0;
        compute(PART);
        host.end();
        assert!(second >= first + PART && host.used().all.0 == second, "{first} {second} {:?}", host.used());
    });
}

impl Tokio {
    /// What was used when `act` had run inside the driver.
    fn used_by(&self, act: impl Fn()) -> Used {
        let used = Mutex::new(Used::default());
        self.park(None, &|| {
            act();
            *locked(&used) = self.used();
            true
        });
        used.into_inner().unwrap()
    }
}
