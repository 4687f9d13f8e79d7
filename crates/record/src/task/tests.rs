use super::*;
#[test]
fn a_time_that_does_not_fit_is_the_longest_and_one_that_ends_before_it_begins_is_none() {
    assert_eq!(too_long(u64::from(NOT_KNOWN)), NOT_KNOWN - 1);
    assert_eq!(too_long(1_u64.wrapping_sub(2)), 0);
}

#[test]
fn the_tag_of_a_poll_is_the_general_one() {
    for (cpu, waker_cpu, flags) in [(0, 0, 0), (NO_CPU, 1, 7), (8190, NO_CPU, IS_LAST | CHANGED_CPU)] {
        assert_eq!(poll_tag(cpu, waker_cpu, flags), tag(RecordKind::Poll, cpu, waker_cpu, flags));
    }
}

#[test]
fn a_poll_without_a_wake_has_no_delay_even_where_stamps_are_small() {
    let at = |at| Wake::new((at, 3));
    let task = TaskRecord { number: 0, scattered: 0, wake: at(0), prev_end: AtomicU64::new(ENDED) };
    let begin = |wake| {
        let polling = Polling::begin(&task, &wake);
        let Polling { delay, tag, .. } = polling;
        mem::forget(polling);
        (delay, Tag::from_word(tag).unwrap())
    };
    let (delay, none) = begin(at(0));
    assert_eq!((delay, none.waker_cpu, none.flags), (NOT_KNOWN, None, 0));
    let (delay, some) = begin(at(clock::stamp()));
    assert!(delay < NOT_KNOWN - 1, "{delay}");
    assert_eq!((some.waker_cpu, some.flags), (Some(3), WOKEN_IN_POLL));
}

#[test]
fn the_first_wake_counts_and_is_taken_once() {
    let wake = Wake::new((0, 0));
    wake.set();
    let first = wake.at.load(Relaxed);
    wake.set();
    assert_ne!(first, 0);
    let (taken, cpu) = wake.take();
    assert_eq!((taken, wake.take().0), (first, 0));
    assert!(cpu < NO_CPU || !cfg!(target_os = "linux"));
}

#[test]
fn numbers_of_tasks_differ() {
    let take = || std::thread::spawn(|| (0..3 * BLOCK).map(|_| next_number().unwrap()).collect::<Vec<_>>());
    let threads = [take(), take()];
    let mut numbers: Vec<u32> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len() as u32, 6 * BLOCK);
}

#[test]
fn nothing_is_recorded_while_the_recorder_is_off() {
    assert!(!recorder::is_on());
    assert!(TaskRecord::spawned(Location::caller(), Some("name")).is_none());
}
