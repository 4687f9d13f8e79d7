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
    let driver = TokioDriver::new(TokioDriverConfig::new("test")).unwrap();
    driver.begin();
    driver.count_own(true);
    driver.poll_events();
    let before = driver.used();
    compute(PART);
    assert!(driver.used().own.0 - before.own.0 >= PART, "as long as it is under way");
    driver.poll_events();
    assert!(driver.used().own.0 - before.own.0 >= PART, "and afterwards");
    // CPU time inside the driver is not counted in `own`.
    let before = driver.used();
    let inside = driver.used_by(|| compute(PART));
    assert!(
        inside.all.0 - before.all.0 >= PART && inside.own.0 - before.own.0 < PART,
        "{inside:?} {before:?}"
    );

    // Counting is switched off, and on again inside the driver. The time in between is not counted.
    driver.count_own(false);
    driver.poll_events();
    compute(PART);
    let before = driver.used();
    let inside = driver.used_by(|| {
        driver.count_own(true);
        compute(PART);
    });
    assert!(inside.all.0 - before.all.0 >= PART, "{inside:?} {before:?}");
    assert_eq!(inside.own, before.own);
}

#[test]
fn a_worker_that_attends_parks_inside_while_the_attendant_is_awake() {
    let reactor = Arc::new(TokioReactor::new(TokioDriverConfig::new("test")).unwrap());
    let [first, second] = [(); 2].map(|()| TokioDriver::on(&reactor));
    let park = |driver: &TokioDriver| driver.park(Some(driver.now()), &|| false);
    let attends = |driver: &TokioDriver| reactor.attendance.is_attendant(driver.me);
    park(&first);
    park(&second);
    assert!(attends(&first) && !attends(&second), "it parked beside");
    second.attend();
    park(&second);
    assert!(attends(&second), "the first one is awake");
    park(&second);
    park(&first);
    assert!(attends(&second), "once for all");
}

#[test]
fn only_the_worker_s_thread_is_counted_and_the_next_goes_on_where_it_ended() {
    const PART: u64 = 5_000_000;
    let driver = &TokioDriver::new(TokioDriverConfig::new("test")).unwrap();
    let on_a_thread = |act: &(dyn Fn() + Sync)| std::thread::scope(|scope| _ = scope.spawn(act));
    on_a_thread(&|| {
        driver.begin();
        compute(PART);
        driver.end();
    });
    let first = driver.used().all.0;
    assert!(first >= PART);
    // The CPU time of a thread that is inside the runtime, as in `block_on`, and is not the worker's is not counted.
    on_a_thread(&|| {
        let _entered = driver.enter();
        compute(PART);
    });
    assert_eq!(driver.used().all.0, first);
    on_a_thread(&|| {
        driver.begin();
        // Another thread takes over the worker, and this thread goes on without it.
        on_a_thread(&|| {
            driver.begin();
            compute(PART);
            driver.end();
        });
        let second = driver.used().all.0;
        compute(PART);
        driver.end();
        assert!(
            second >= first + PART && driver.used().all.0 == second,
            "{first} {second} {:?}",
            driver.used()
        );
    });
}

impl TokioDriver {
    /// The CPU time after `act` has run inside the driver.
    fn used_by(&self, act: impl Fn()) -> Used {
        let used = Mutex::new(Used::default());
        self.park(None, &|| {
            act();
            *ignore_poison(used.lock()) = self.used();
            true
        });
        used.into_inner().unwrap()
    }
}
