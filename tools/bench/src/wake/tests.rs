use super::slice::*;
use super::*;
use crate::part::Part;
use crate::race::STALLED;

/// Runs one short timed slice of every contender, and checks that the slice ends and has a finite number for each
/// metric.
fn runs_on(contenders: &[Contender], slice: &impl Slice) {
    let plan = Plan { rounds: 1, warm: Duration::from_millis(1), measure: Duration::from_millis(8) };
    let rows = race("case", contenders, slice, plan, |_| ()).unwrap().rows([]);
    for metric in slice.metrics() {
        let measured = rows.iter().filter(|row| row.metric == metric.name && row.median.is_finite()).count();
        assert!(measured + usize::from(!go::is_there()) >= contenders.len(), "{}: {rows:?}", metric.name);
    }
}

#[test]
fn every_case_ends_on_every_runtime() {
    for from in [spawn::From::Task, spawn::From::One] {
        runs_on(EACH, &spawn::Spawn(from));
    }
    runs_on(&EACH[..EACH.len() - 1], &spawn::Spawn(spawn::From::Outside));
    runs_on(&[Contender::Rayon], &spawn::Spawn(spawn::From::Task));
    for through in [pingpong::Through::Channel, pingpong::Through::Oneshot] {
        runs_on(&all(), &pingpong::PingPong { through, pairs: 3 });
    }
    runs_on(EACH, &parked::Parked);
    runs_on(&all(), &messaging::Messaging { groups: 2 });
    for between in [Between::Yield, Between::Message, Between::Sleep] {
        runs_on(&all(), &warm::Warm::new(between, Touch::Chase, (4, 16)));
    }
    runs_on(EACH, &storm::Storm);
    let noisy = [EACH, &[Contender::OursWithoutTenants]].concat();
    runs_on(&noisy, &noisy::Noisy { poll: Duration::from_micros(20) });
    runs_on(EACH, &timers::Timers);
    runs_on(&[Contender::Ours, Contender::Tokio], &timers::Beside { per_cpu: 2 });
    runs_on(&[Contender::Ours, Contender::Rayon, Contender::Alone, Contender::Go], &scope::Scope);
}

/// A case in which nothing happens in every third slice.
struct Stalls(std::sync::atomic::AtomicUsize);

impl Slice for Stalls {
    fn metrics(&self) -> &'static [Metric] {
        const { &[rate("round trips"), time("p99")] }
    }

    fn run<H: Executor>(&self, _: H, _: Plan) -> Vec<f64> {
        match self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 3 {
            2 => vec![0.0, f64::NAN],
            _ => vec![500.0, 2_000.0],
        }
    }
}

#[test]
fn a_slice_in_which_nothing_happened_is_kept_and_reported() {
    let plan = Plan { rounds: 8, warm: Duration::from_millis(1), measure: Duration::from_millis(10) };
    let slice = Stalls(Default::default());
    let race = race("case", &[Contender::Tokio], &slice, plan, |_| ()).unwrap();
    // The first slice is not timed; of the timed slices the second, the fifth and the eighth stall.
    assert_eq!(slice.0.into_inner(), 1 + plan.rounds);
    let rows = race.rows([]);
    let row = |metric: &str| rows.iter().find(|row| row.metric == metric).unwrap();
    // A stalled slice counts as one event in 10 ms, and as a time of 10 ms.
    assert_eq!((row("round trips").min, row("round trips").median, row("round trips").n), (0.1, 500.0, 8));
    assert_eq!((row("p99").max, row("p99").median), (10_000_000.0, 2_000.0));
    assert_eq!((row(STALLED).median, row(STALLED).n), (3.0, 8));
}

#[test]
fn what_waits_takes_memory_and_an_idle_pool_can_be_watched() {
    let waiting = |contender: Contender, what: &str| {
        let waiting = format!(r#"{{"contender":"{contender:?}","what":{what}}}"#);
        serde_json::from_str::<memory::Waiting>(&waiting).unwrap().answer().unwrap()
    };
    for contender in available(&[Contender::Smol, Contender::Go]) {
        assert!(waiting(contender, r#"{"Tasks":1000}"#).is_finite(), "{contender:?}");
    }
    for what in [r#"{"Connections":20}"#, r#"{"Workers":2}"#] {
        assert!(waiting(Contender::Ours, what).is_finite(), "{what}");
    }
    for contender in available(&[Contender::Tokio, Contender::Go, Contender::Alone]) {
        let (cpu, slept) = timers::Idle { contender, spans: 2, span_ms: 10 }.answer().unwrap();
        let is_counted = slept.len() == 2 || contender == Contender::Go;
        assert!(is_counted && cpu.len() == 2, "{contender:?}: {cpu:?} {slept:?}");
        assert!(cpu.iter().chain(&slept).all(|each| each.is_finite() && *each >= 0.0), "{cpu:?} {slept:?}");
    }
}

#[test]
fn programs_that_wait_end() {
    let late: late::Late = serde_json::from_str(r#"{"contender":"OursShared","ms":5}"#).unwrap();
    late.answer().unwrap();
}
