//! Loom models of which thread is inside a reactor. `cargo xtask test --full` runs them.

use super::*;
use ::loom::sync::atomic::AtomicBool;
use ::loom::{model, thread};
use std::sync::Arc;

const HERE: u32 = 1;
const OTHER: u32 = 2;

/// Fails without the fence of `try_enter` or that of `is_inside`.
#[test]
fn a_thread_that_enters_sees_that_it_was_unparked_or_is_unparked_inside() {
    model(|| {
        let attendance = Arc::new(Attendance::<()>::default());
        let is_awake = Arc::new(AtomicBool::new(false));
        let unparks = {
            let (attendance, is_awake) = (attendance.clone(), is_awake.clone());
            thread::spawn(move || {
                is_awake.store(true, Relaxed);
                attendance.is_inside(HERE)
            })
        };
        assert!(attendance.enter(HERE, false, || ()));
        let sees = is_awake.load(Relaxed);
        assert!(unparks.join().unwrap() || sees, "parks for ever");
    });
}

/// Fails without the fence of `leave` or that of `is_inside`: the unpark would go to where the thread was before.
#[test]
fn a_thread_that_parks_beside_is_not_taken_to_be_inside() {
    model(|| {
        let attendance = Arc::new(Attendance::<()>::default());
        let is_parked = Arc::new(AtomicBool::new(false));
        assert!(attendance.enter(HERE, false, || ()));
        let unparks = {
            let (attendance, is_parked) = (attendance.clone(), is_parked.clone());
            thread::spawn(move || is_parked.load(Relaxed) && attendance.is_inside(HERE))
        };
        attendance.leave();
        is_parked.store(true, Relaxed);
        assert!(!unparks.join().unwrap(), "unparks it where it is not");
    });
}

/// Fails if a visitor takes `waits` before it leaves, or if the attendant does not look again under the lock.
#[test]
fn an_attendant_that_finds_a_visitor_is_unparked_or_enters() {
    model(|| {
        let attendance = Arc::new(Attendance::default());
        let is_unparked = Arc::new(AtomicBool::new(false));
        assert!(attendance.visit(OTHER));
        let leaves = {
            let (attendance, is_unparked) = (attendance.clone(), is_unparked.clone());
            thread::spawn(move || attendance.leave_visit(|()| is_unparked.store(true, Relaxed)))
        };
        let is_inside = attendance.enter(HERE, false, || ());
        leaves.join().unwrap();
        assert!(is_inside || is_unparked.load(Relaxed), "sleeps beside, and no thread attends");
    });
}

/// Two workers find the visitor. Fails if there is room for one of them in `waits`.
#[test]
fn if_an_attendant_and_another_one_find_a_visitor_the_attendant_is_unparked_or_one_enters() {
    model(|| {
        let attendance = Arc::new(Attendance::default());
        assert!(attendance.enter(HERE, false, || HERE));
        attendance.leave();
        assert!(attendance.visit(OTHER));
        let [here, other] = [(HERE, false), (OTHER, true)].map(|(me, must_attend)| {
            let attendance = attendance.clone();
            thread::spawn(move || attendance.enter(me, must_attend, || me))
        });
        let mut unparked = Vec::new();
        attendance.leave_visit(|driver| unparked.push(driver));
        let is_one_inside = here.join().unwrap() | other.join().unwrap();
        assert!(is_one_inside || unparked.contains(&HERE), "no thread attends");
    });
}

/// Fails if a worker that can't enter becomes the attendant all the same.
#[test]
fn of_an_attendant_and_a_worker_that_must_attend_one_is_inside_in_the_end() {
    model(|| {
        let attendance = Arc::new(Attendance::<()>::default());
        assert!(attendance.enter(HERE, false, || ()));
        let other = {
            let attendance = attendance.clone();
            thread::spawn(move || attendance.enter(OTHER, true, || ()))
        };
        attendance.leave();
        let is_here = attendance.enter(HERE, false, || ());
        let is_there = other.join().unwrap();
        assert!(is_here || is_there, "no thread attends");
        assert!(!(is_here && is_there), "two threads are inside");
    });
}

/// What a thread did inside is seen by the next one. Fails without the Release of `leave`, or the Acquire of `visit`.
#[test]
fn what_was_done_inside_is_seen_by_the_next_one() {
    model(|| {
        let attendance = Arc::new(Attendance::<()>::default());
        let served = Arc::new(::loom::cell::UnsafeCell::new(0));
        assert!(attendance.enter(HERE, false, || ()));
        let visits = {
            let (attendance, served) = (attendance.clone(), served.clone());
            thread::spawn(move || {
                if attendance.visit(OTHER) {
                    served.with_mut(|served| {
                        // SAFETY: one thread at a time is inside, which the model checks.
                        unsafe { *served += 1 }
                    });
                    attendance.leave_visit(|()| {});
                }
            })
        };
        served.with_mut(|served| {
            // SAFETY: as above.
            unsafe { *served += 1 }
        });
        attendance.leave();
        visits.join().unwrap();
    });
}
