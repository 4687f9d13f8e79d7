//! Extreme numbers and lifetimes: zero, all units, overflow, forks, threads without rseq, accounts that end before
//! their units come back. Each test but the last runs with both kinds of stocks; the last runs the others again without
//! rseq.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, mpsc};
use warmcore_budget::{Account, Charge, Event, StockKind};
use warmcore_percpu::Backend;
use warmcore_sys::rseq;

const KINDS: [StockKind; 2] = [StockKind::Rseq, StockKind::Atomic];

fn root(kind: StockKind, limit: u64) -> Account {
    Account::root("root").kind(kind).limit(limit).build()
}

/// Runs `act` on another thread, so that it may use the stocks of another CPU.
fn elsewhere<R: Send>(act: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

#[test]
fn a_charge_of_zero_fits_and_changes_nothing() {
    for kind in KINDS {
        for limit in [0, 1, 1_000_000, u64::MAX] {
            let root = root(kind, limit);
            let leaf = root.child("leaf").limit(limit).build();
            let full = leaf.try_hold(limit).unwrap();
            assert_eq!(full.units(), limit);
            leaf.try_charge(0).unwrap();
            leaf.force_charge(0).unwrap();
            leaf.uncharge(0).unwrap();
            Account::try_charge_all(&[(&leaf, 0), (&root, 0)]).unwrap();
            assert_eq!(leaf.try_hold(0).unwrap().units(), 0);
            drop(full);
            leaf.uncharge(0).unwrap();
            assert!(leaf.uncharge(1).is_err());
            assert_eq!((root.exact_usage(), leaf.exact_usage()), (0, 0), "{}", leaf.explain());
        }
    }
}

#[test]
fn all_units_there_are_can_be_charged_once() {
    for kind in KINDS {
        let root = root(kind, u64::MAX);
        let leaf = root.child("leaf").build();
        leaf.try_charge(5).unwrap();
        let over = leaf.try_charge(u64::MAX).unwrap_err();
        assert_eq!((over.asked(), over.usage(), over.limit()), (u64::MAX, 5, u64::MAX), "{over}");
        leaf.try_charge(u64::MAX - 5).unwrap();
        assert!(leaf.try_charge(1).is_err() && root.try_charge(1).is_err());
        assert!(root.child("other").build().try_charge(u64::MAX).is_err());
        assert_eq!(root.exact_usage(), u64::MAX);
        leaf.uncharge(u64::MAX).unwrap();
        let over = leaf.uncharge(u64::MAX).unwrap_err();
        assert_eq!((over.asked(), over.charged()), (u64::MAX, 0));
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn a_sum_that_overflows_panics_and_changes_nothing() {
    for kind in KINDS {
        let root = root(kind, u64::MAX);
        let (leaf, other) = (root.child("leaf").build(), root.child("other").build());
        assert!(std::panic::catch_unwind(|| leaf.force_charge((1 << 60) + 1)).is_err());
        assert_eq!((leaf.exact_usage(), root.exact_usage()), (0, 0));
        leaf.try_charge(u64::MAX).unwrap();
        assert!(std::panic::catch_unwind(|| other.force_charge(1)).is_err());
        assert_eq!((leaf.exact_usage(), root.exact_usage()), (u64::MAX, u64::MAX));
        leaf.uncharge(u64::MAX).unwrap();
        assert_eq!((other.exact_usage(), root.exact_usage()), (0, 0));
    }
}

#[test]
fn huge_charges_outlive_their_account() {
    for kind in KINDS {
        let root = root(kind, u64::MAX);
        let leaf = root.child("leaf").build();
        // Twice this number is 0 modulo 2^64.
        let held = leaf.try_hold(1 << 63).unwrap();
        drop(leaf);
        Account::reclaim_idle_all();
        assert_eq!(root.exact_usage(), 1 << 63);
        let next = root.child("next").build();
        assert_eq!(next.exact_usage(), 0);
        drop(held);
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn a_limit_of_zero_refuses_all_and_can_be_forced() {
    for kind in KINDS {
        let root = root(kind, 0);
        let leaf = root.child("leaf").build();
        let over = leaf.try_charge(1).unwrap_err();
        assert!(over.exceeds_limit() && over.account() == "root" && over.usage() == 0);
        let overrun = leaf.force_charge(7).unwrap_err();
        assert_eq!((overrun.account(), overrun.by()), ("root", 7));
        assert_eq!(root.exact_usage(), 7);
        leaf.uncharge(7).unwrap();
        root.set_limit(1);
        leaf.try_charge(1).unwrap();
        assert!(leaf.try_charge(1).is_err());
        leaf.uncharge(1).unwrap();
    }
}

#[test]
fn a_limit_below_usage_refuses_until_usage_is_below_it() {
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        let leaf = root.child("leaf").build();
        // Opens stocks on more than one CPU, if this machine has more.
        (0..1000).for_each(|_| leaf.try_charge(100).unwrap());
        elsewhere(|| (0..1000).for_each(|_| leaf.try_charge(100).unwrap()));
        root.set_limit(150_000);
        assert_eq!((root.exact_usage(), root.limit()), (200_000, 150_000));
        assert!(leaf.try_charge(1).is_err() && elsewhere(|| leaf.try_charge(1).is_err()));
        for left in (0..50_000).step_by(100).rev() {
            leaf.uncharge(100).unwrap();
            assert!(leaf.try_charge(100).is_err(), "{left} over");
        }
        leaf.uncharge(100).unwrap();
        leaf.try_charge(100).unwrap();
        assert!(leaf.try_charge(1).is_err());
        leaf.uncharge(150_000).unwrap();
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn uncharging_more_than_was_charged_is_an_error() {
    for kind in KINDS {
        let root = root(kind, 1 << 40);
        let (leaf, other) = (root.child("leaf").build(), root.child("other").build());
        other.try_charge(1_000_000).unwrap();
        for n in [1, 10, 1000, 1 << 29, 1 << 35] {
            leaf.try_charge(n).unwrap();
            for more in [1, n, 1 << 31, u64::MAX - n] {
                let over = leaf.uncharge(n + more).unwrap_err();
                assert_eq!((over.asked(), over.charged()), (n + more, n), "{over}");
                let text = over.to_string();
                assert!(text.contains(&n.to_string()) && text.contains(&(n + more).to_string()), "{text}");
            }
            // Units that are charged to the child cannot be uncharged from the parent.
            assert!(root.uncharge(1).is_err());
            assert_eq!((leaf.exact_usage(), root.exact_usage()), (n, n + 1_000_000));
            leaf.uncharge(n).unwrap();
            assert!(leaf.uncharge(1).is_err());
        }
        other.uncharge(1_000_000).unwrap();
    }
}

#[test]
fn several_accounts_are_charged_or_none() {
    for kind in KINDS {
        let (cpu, memory) = (root(kind, 100), root(KINDS[1], 1_000_000));
        let (a, b) = (cpu.child("a").limit(60).build(), memory.child("b").build());
        Account::try_charge_all(&[(&a, 30), (&b, 1000), (&a, 30), (&cpu, 40)]).unwrap();
        assert_eq!((a.exact_usage(), cpu.exact_usage(), b.exact_usage()), (60, 100, 1000));
        let over = Account::try_charge_all(&[(&b, 5), (&memory, 7), (&cpu, 1), (&b, 1)]).unwrap_err();
        assert_eq!((over.account(), over.asked()), ("root", 1));
        assert_eq!((cpu.exact_usage(), memory.exact_usage()), (100, 1000));
        assert!(Account::try_hold_all(&[(&b, 5), (&b, u64::MAX)]).is_err());
        assert_eq!(memory.exact_usage(), 1000);
        a.uncharge(60).unwrap();
        cpu.uncharge(40).unwrap();
        drop(Account::try_hold_all(&[(&a, 60), (&cpu, 40), (&b, 999_000)]).unwrap());
        assert_eq!((cpu.exact_usage(), memory.exact_usage()), (0, 1000));
        b.uncharge(1000).unwrap();
    }
}

#[test]
fn a_charge_is_split_merged_shrunk_and_grown_on_any_thread() {
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        let (leaf, other) = (root.child("leaf").build(), root.child("other").build());
        let mut charge = leaf.try_hold(1000).unwrap();
        assert!(charge.split(1001).is_none() && charge.units() == 1000);
        let (zero, all) = (charge.split(0).unwrap(), charge.split(1000).unwrap());
        assert_eq!((zero.units(), charge.units(), all.units()), (0, 0, 1000));
        charge.merge(all).unwrap();
        let mut charge = elsewhere(move || {
            let half = charge.split(500).unwrap();
            drop(elsewhere(move || half));
            charge
        });
        assert_eq!(leaf.exact_usage(), 500);
        charge.grow(&leaf, 250).unwrap();
        assert!(charge.grow(&leaf, 1_000_000).is_err() && charge.units() == 750);
        charge.shrink(50);
        assert_eq!((charge.units(), leaf.exact_usage()), (700, 700));
        let foreign = other.try_hold(5).unwrap();
        let foreign = charge.merge(foreign).unwrap_err();
        assert!(foreign.is_of(&other) && !foreign.is_of(&leaf) && charge.is_of(&leaf.clone()));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| charge.shrink(701))).is_err());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| charge.grow(&other, 1))).is_err());
        assert_eq!((leaf.exact_usage(), other.exact_usage()), (700, 5));
        assert_eq!(elsewhere(move || charge.forget()), 700);
        elsewhere(|| leaf.uncharge(700).unwrap());
        drop(foreign);
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn charges_outlive_their_accounts() {
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        let group = root.child("group").build();
        let charges: Vec<Charge> = (0..100)
            .map(|i| {
                let leaf = group.child(format!("{i}")).guarantee(50).build();
                leaf.try_hold(i).unwrap()
            })
            .collect();
        drop(group);
        Account::reclaim_idle_all();
        assert_eq!(root.exact_usage(), 4950);
        // The nodes of accounts that still have units are not reused meanwhile.
        let others: Vec<Account> = (0..100).map(|_| root.child("other").limit(10).build()).collect();
        others.iter().for_each(|other| other.try_charge(10).unwrap());
        elsewhere(|| drop(charges));
        assert_eq!(root.exact_usage(), 1000);
        others.iter().for_each(|other| assert_eq!(other.exact_usage(), 10));
        others.iter().for_each(|other| other.uncharge(10).unwrap());
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn a_parent_that_uncharges_too_much_takes_nothing_from_orphans() {
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        root.try_charge(5).unwrap();
        let held = root.child("dead").build().try_hold(10).unwrap();
        assert!(root.uncharge(16).is_err());
        drop(held);
        assert_eq!(root.exact_usage(), 5);
        let heir = root.child("dead").build().try_hold(10).unwrap();
        root.uncharge(15).unwrap();
        assert_eq!((heir.forget(), root.exact_usage()), (10, 0));
        assert!(root.uncharge(1).is_err());
    }
}

type EventLog = Arc<Mutex<Vec<Event>>>;

/// Returns a list, and a listener that adds each event to it.
fn event_log() -> (EventLog, impl Fn(&Event) + Send + Sync + 'static) {
    let log = EventLog::default();
    (log.clone(), move |event: &Event| log.lock().unwrap().push(event.clone()))
}

fn pressures(log: &EventLog) -> usize {
    log.lock().unwrap().drain(..).filter(|event| matches!(event, Event::Pressure { .. })).count()
}

#[test]
fn pressure_is_reported_once_for_each_crossing() {
    for kind in KINDS {
        let (log, listener) = event_log();
        let root =
            Account::root("root").kind(kind).limit(100_000).soft_limit(50_000).on_event(listener).build();
        let leaf = root.child("leaf").build();
        leaf.try_charge(50_000).unwrap();
        leaf.drain_all();
        assert_eq!(pressures(&log), 0);
        (0..100).for_each(|_| leaf.try_charge(100).unwrap());
        assert_eq!(pressures(&log), 1);
        // Usage goes only a little below the soft limit, so pressure is not reported again.
        leaf.uncharge(11_000).unwrap();
        leaf.drain_all();
        leaf.try_charge(11_000).unwrap();
        assert_eq!(pressures(&log), 0);
        leaf.uncharge(20_000).unwrap();
        leaf.drain_all();
        leaf.try_charge(20_000).unwrap();
        assert_eq!(pressures(&log), 1);
        leaf.uncharge(60_000).unwrap();
    }
}

#[test]
fn pressure_is_reported_again_above_a_raised_soft_limit() {
    for kind in KINDS {
        let (log, listener) = event_log();
        let root =
            Account::root("root").kind(kind).limit(1_000_000).soft_limit(1000).on_event(listener).build();
        root.try_charge(2000).unwrap();
        assert_eq!(pressures(&log), 1);
        root.set_soft_limit(100_000);
        root.try_charge(90_000).unwrap();
        assert_eq!(pressures(&log), 0);
        root.try_charge(20_000).unwrap();
        assert_eq!(pressures(&log), 1);
        root.set_soft_limit(200_000);
        assert_eq!(pressures(&log), 0);
        root.set_soft_limit(50_000);
        assert_eq!(pressures(&log), 1);
        root.uncharge(112_000).unwrap();
    }
}

#[test]
fn events_reach_the_listener() {
    for kind in KINDS {
        let (log, listener) = event_log();
        let root = Account::root("root").kind(kind).limit(100_000).on_event(listener).build();
        let leaf = root.child("leaf").build();
        leaf.try_charge(99_990).unwrap();
        let over = leaf.try_charge(11).unwrap_err();
        let overrun = leaf.force_charge(11).unwrap_err();
        assert_eq!((overrun.account(), overrun.by()), ("root", 1));
        let mut events = std::mem::take(&mut *log.lock().unwrap());
        assert!(
            matches!(events.remove(0), Event::Pressure { usage: 99_990, limit: 100_000, .. }),
            "{events:?}"
        );
        assert_eq!(events[0], Event::OverBudget(over));
        assert_eq!(events.last(), Some(&Event::Overrun(overrun)));
        leaf.uncharge(100_001).unwrap();
        leaf.try_charge(10).unwrap();
        log.lock().unwrap().clear();
        let drained = leaf.drain_all();
        if drained.stocks > 0 {
            let expected =
                Event::Drained { account: "leaf".into(), units: drained.units, stocks: drained.stocks };
            assert_eq!(*log.lock().unwrap(), [expected]);
        }
        leaf.uncharge(10).unwrap();
    }
}

#[test]
fn a_listener_that_frees_units_under_pressure_saves_the_charge() {
    for kind in KINDS {
        let cache: Arc<Mutex<Vec<Charge>>> = Arc::default();
        let freed = cache.clone();
        let root = Account::root("root").kind(kind).limit(100_000);
        let root = root.on_event(move |event| {
            if let Event::Pressure { .. } = event {
                let all = std::mem::take(&mut *freed.lock().unwrap());
                drop(all);
            }
        });
        let root = root.build();
        let leaf = root.child("leaf").build();
        (0..90).for_each(|_| cache.lock().unwrap().push(leaf.try_hold(1000).unwrap()));
        let saved = leaf.try_hold(80_000).unwrap();
        assert!(cache.lock().unwrap().is_empty() && root.exact_usage() == 80_000);
        // The listener has nothing left to free, so the charge is refused.
        assert!(leaf.try_charge(30_000).is_err());
        drop(saved);
        assert_eq!(root.exact_usage(), 0);
    }
}

/// A listener may use accounts as other code does, from every operation that calls it.
#[test]
fn a_listener_may_read_charge_and_drop() {
    for kind in KINDS {
        let accounts: Arc<Mutex<Vec<Account>>> = Arc::default();
        let (mine, calls) = (accounts.clone(), Arc::new(AtomicU64::new(0)));
        let count = calls.clone();
        let listener = move |event: &Event| {
            if count.fetch_add(1, Relaxed) > 50 || !matches!(event, Event::Pressure { .. }) {
                return;
            }
            let (dropped, root) = {
                let mut accounts = mine.lock().unwrap();
                (accounts.pop(), accounts.first().cloned())
            };
            drop(dropped);
            let Some(root) = root else { return };
            assert!(root.exact_usage() < u64::MAX);
            assert!(root.try_charge(u64::MAX).is_err());
            root.set_limit(root.limit());
            let child = root.child("of the listener").build();
            let _ = child.try_hold(10);
            let _ = child.set_guarantee(1);
            root.drain_all();
        };
        let root =
            Account::root("root").kind(kind).limit(1_000_000).soft_limit(10_000).on_event(listener).build();
        let leaf = root.child("leaf").build();
        accounts.lock().unwrap().push(root.clone());
        (0..20).for_each(|_| accounts.lock().unwrap().push(root.child("victim").guarantee(20).build()));
        // The soft limit is crossed by a charge that fills a stock, by a large charge, by a forced charge, by a
        // guarantee, and by a new limit.
        (0..11_000).for_each(|_| leaf.try_charge(1).unwrap());
        leaf.uncharge(11_000).unwrap();
        leaf.try_charge(1 << 19).unwrap();
        leaf.uncharge(1 << 19).unwrap();
        leaf.force_charge(20_000).unwrap();
        leaf.uncharge(20_000).unwrap();
        leaf.set_guarantee(15_000).unwrap();
        leaf.set_guarantee(0).unwrap();
        root.set_soft_limit(0);
        root.set_soft_limit(10_000);
        assert!(leaf.try_charge(1_000_001).is_err());
        assert!(root.child("too much").guarantee(1_000_001).try_build().is_err());
        assert!(calls.load(Relaxed) > 3);
        accounts.lock().unwrap().clear();
        assert_eq!(root.exact_usage(), 0);
    }
}

#[test]
fn charges_in_a_child_of_fork_do_not_change_the_parent() {
    for kind in KINDS {
        let root = root(kind, 1_000_000);
        let leaf = root.child("leaf").build();
        (0..1000).for_each(|_| leaf.try_charge(10).unwrap());
        // SAFETY: the child only charges, reads and ends; no other test of this process uses these accounts.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "{}", std::io::Error::last_os_error());
        if child == 0 {
            // SAFETY: the alarm ends a child that hangs.
            unsafe { libc::alarm(60) };
        }
        for _ in 0..50_000 {
            leaf.try_charge(7).unwrap();
            leaf.uncharge(7).unwrap();
        }
        let is_right = leaf.exact_usage() == 10_000
            && leaf.try_charge(990_000).is_ok()
            && leaf.try_charge(1).is_err()
            && leaf.uncharge(1_000_000).is_ok()
            && root.exact_usage() == 0;
        if child == 0 {
            // SAFETY: ends the child without the harness's destructors.
            unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child of this test.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(is_right && status == 0, "{kind}: parent right: {is_right}, child's status {status}");
    }
}

/// Removes glibc's rseq area from this thread, if it has one.
fn unregister_area() {
    let Ok(Backend::Rseq(rseq::Support { source: rseq::Source::Glibc, .. })) = warmcore_percpu::try_backend()
    else {
        return;
    };
    // SAFETY: the arguments of the registration that glibc made for this thread; the kernel refuses any other.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>();
        let mut thread_pointer: *mut u8;
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer);
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) thread_pointer);
        #[cfg(target_arch = "x86_64")]
        let signature = 0x5305_3053u32;
        #[cfg(target_arch = "aarch64")]
        let signature = 0xd428_bc00u32;
        let area = thread_pointer.offset(*offset);
        let result = libc::syscall(libc::SYS_rseq, area, 32, 1, signature);
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }
    assert!(rseq::RseqArea::lookup(rseq::PercpuMode::Cpu).is_none(), "still registered");
}

#[test]
fn threads_without_an_area_lose_nothing() {
    const EACH: u64 = 100_000;
    for kind in KINDS {
        let root = root(kind, 1 << 30);
        let leaf = root.child("leaf").build();
        let (to, from) = mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (leaf, to) = (&leaf, to.clone());
                scope.spawn(move || {
                    if thread % 2 == 0 {
                        unregister_area();
                    }
                    for i in 0..EACH {
                        leaf.try_charge(i % 64).unwrap();
                        leaf.uncharge(i % 64).unwrap();
                        if i % 1000 == thread {
                            to.send(leaf.try_hold(3).unwrap()).unwrap();
                        }
                    }
                });
            }
            drop(to);
            // Charged on that thread, given back on this one.
            let mut n = 0;
            from.iter().for_each(|charge| n += charge.units());
            assert_eq!(n, 4 * EACH / 1000 * 3);
        });
        assert_eq!((leaf.exact_usage(), root.exact_usage()), (0, 0), "{}", leaf.explain());
    }
}

/// Runs every other test of this file in a process in which glibc registers no area, and in two processes without
/// sections.
#[test]
fn all_tests_pass_without_rseq() {
    const INNER: &str = "WARMCORE_BUDGET_TEST_INNER";
    if std::env::var_os(INNER).is_some() {
        return;
    }
    let run = |variable: &str, value: &str| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let output = command.env(INNER, "1").env(variable, value).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{variable}={value}: {text}");
    };
    run("GLIBC_TUNABLES", "glibc.pthread.rseq=0");
    run("WARMCORE_PERCPU", "atomic");
    run("WARMCORE_PERCPU", "plain");
}
