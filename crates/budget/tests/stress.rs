//! Runs all operations on accounts concurrently, on real threads, and checks that no unit is lost or created.
//!
//! In the first test, workers charge and give back while they are signalled and moved every millisecond, and while
//! other threads drain, reclaim, change limits, and make and drop accounts. At its end everything must be exactly 0.
//! Other tests record when each call began and ended, and check afterwards: with the strict kind no limit was exceeded
//! at any moment, and no refusal was false.
//!
//! 10⁸ operations for each kind in the first test, in some seconds on two CPUs.
#![cfg(not(loom))]

use fastrand::Rng;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use warmcore_budget::{Account, Charge, StockKind, capacity};
use warmcore_percpu::Backend;
use warmcore_sys::{affinity, rseq};

/// Operations of the long test, for each kind. Debug builds take a tenth.
const OPERATIONS: u64 = if cfg!(debug_assertions) { 10_000_000 } else { 100_000_000 };
/// The environment variable that sets another number of operations.
const VARIABLE: &str = "WARMCORE_BUDGET_OPERATIONS";
const THREADS: u64 = 8;
/// The time between two signals or moves of a thread.
const EVERY: Duration = Duration::from_millis(1);

fn operations() -> u64 {
    std::env::var(VARIABLE).map_or(OPERATIONS, |n| n.parse().expect("a number of operations"))
}

/// The tests of this file run one after the other, because signals and aborts belong to the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runs_sections() -> bool {
    matches!(warmcore_percpu::try_backend(), Ok(Backend::Rseq(_)))
}

fn install_handler() {
    extern "C" fn handler(_: libc::c_int) {}
    // SAFETY: a handler that does nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
}

/// Runs `work` on `threads` threads, which are signalled and moved every millisecond. Meanwhile other threads
/// repeat each function of `beside` until all of `work` is done.
fn disturbed(threads: u64, work: impl Fn(u64) + Sync, beside: &[&(dyn Fn() + Sync)]) {
    #[cfg(feature = "delay")]
    rseq::section::DELAY_SPINS.store(60, Relaxed);
    install_handler();
    let cpus: Vec<_> = affinity::allowed().unwrap().iter().collect();
    let (handles, working) = (Mutex::new(Vec::new()), AtomicU64::new(threads));
    let is_done = || working.load(Acquire) == 0;
    /// Decrements the number of running workers when it is dropped, also after a panic.
    struct Out<'a>(&'a AtomicU64);
    impl Drop for Out<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, AcqRel);
        }
    }
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (handles, working, work) = (&handles, &working, &work);
            scope.spawn(move || {
                // SAFETY: no arguments; both are only used while this thread lives.
                handles.lock().unwrap().push(unsafe { (libc::pthread_self(), libc::gettid()) });
                {
                    let _out = Out(working);
                    work(thread);
                }
                while working.load(Acquire) > 0 {
                    std::thread::sleep(EVERY);
                }
                // The list is cleared before any of the threads ends: a dead thread must not be signalled.
                handles.lock().unwrap().clear();
            });
        }
        for act in beside {
            scope.spawn(move || {
                while !is_done() {
                    act();
                }
            });
        }
        let mut round = 0;
        while !is_done() {
            std::thread::sleep(EVERY);
            for (i, (pthread, tid)) in handles.lock().unwrap().iter().enumerate() {
                let cpu = cpus[(i + round) % cpus.len()];
                let mask: warmcore_types::CpuSet = [cpu].into_iter().collect();
                let bytes = mask.words().len() * 8;
                // SAFETY: a thread in the list lives, and the list is locked; the mask's own length.
                unsafe {
                    libc::syscall(libc::SYS_sched_setaffinity, *tid, bytes, mask.words().as_ptr());
                    libc::pthread_kill(*pthread, libc::SIGUSR1);
                }
            }
            round += 1;
        }
    });
}

/// Asserts that nothing is charged to any account, and that all stocks are empty.
fn assert_all_is_given_back(accounts: &[&Account]) {
    for account in accounts {
        assert_eq!(account.exact_usage(), 0, "{}", account.explain());
        let explain = account.explain();
        assert!(explain.cpus.is_empty() && explain.path[0].stocks == 0, "{explain}");
        assert_eq!((explain.path[0].reserve, explain.path[0].in_stocks_max), (0, 0), "{explain}");
        assert_eq!((explain.path[0].stocks_disabled, explain.path[0].waiting), (0, 0), "{explain}");
    }
}

/// The loop of one worker: gives each small charge back 64 charges later, and passes some larger ones to the next
/// worker.
fn work(leaves: &[Account], seed: u64, operations: u64, next: &SyncSender<Charge>, mine: &Receiver<Charge>) {
    const RING: usize = 64;
    let mut rng = Rng::with_seed(seed);
    let mut ring = [(0usize, 0u64); RING];
    let mut kept: Vec<Charge> = Vec::new();
    let mut done = 0;
    while done < operations {
        let at = rng.u64(..leaves.len() as u64) as usize;
        for _ in 0..256 {
            let entry = &mut ring[done as usize / 2 % RING];
            leaves[entry.0].uncharge(entry.1).unwrap();
            let n = rng.u64(..64);
            *entry = if leaves[at].try_charge(n).is_ok() { (at, n) } else { (at, 0) };
            done += 2;
        }
        match rng.u64(..8) {
            0 => kept.extend(leaves[at].try_hold(rng.u64(..100_000)).ok()),
            1 => kept.push(leaves[at].force_hold(rng.u64(..500)).0),
            2 => kept.extend(mine.try_iter().take(20)),
            3 => {
                if let Some(charge) = kept.pop() {
                    // If the channel is full, the charge is given back here.
                    let _ = next.try_send(charge);
                }
            }
            4 => {
                let other = (at + 1) % leaves.len();
                let all = [(&leaves[at], rng.u64(..1000)), (&leaves[other], rng.u64(..1000))];
                kept.extend(Account::try_hold_all(&all).unwrap_or_default());
            }
            5 => {
                if let Some(mut charge) = kept.pop() {
                    let half = charge.split(charge.units() / 2).unwrap();
                    if let Err(half) = charge.merge(half) {
                        panic!("{half:?} is no half");
                    }
                    charge.shrink(charge.units() / 3);
                    kept.push(charge);
                }
            }
            _ => {}
        }
        done += 2;
        if kept.len() > 20 {
            kept.truncate(5);
        }
    }
    for (at, n) in ring {
        leaves[at].uncharge(n).unwrap();
    }
}

fn nothing_is_lost(kind: StockKind) {
    let _alone = alone();
    let root = Account::root("root").kind(kind).limit(1 << 40).build();
    let groups =
        [root.child("a").limit(1 << 32).build(), root.child("b").limit(1 << 30).guarantee(1000).build()];
    let leaves = [
        groups[0].child("a/a").build(),
        groups[0].child("a/b").limit(50_000_000).build(),
        groups[1].child("b/a").guarantee(5000).build(),
        groups[1].child("b/b").limit(2_000_000).build(),
    ];
    let estate = root.child("estate").build();
    let all: Vec<&Account> = leaves.iter().chain(&groups).chain([&estate, &root]).collect();
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| sync_channel(50)).unzip();
    let receivers: Vec<Mutex<Receiver<Charge>>> = receivers.into_iter().map(Mutex::new).collect();
    let (rounds, drained) = ([const { AtomicU64::new(0) }; 3], AtomicU64::new(0));
    let rng = |i: usize| Rng::with_seed(rounds[i].fetch_add(1, Relaxed) << 3 | i as u64);

    let drain = || {
        let mut rng = rng(0);
        let account = all[rng.u64(..all.len() as u64) as usize];
        match rng.u64(..8) {
            0 => assert!(account.exact_usage() < 1 << 40),
            1 => assert!(account.explain().to_string().contains(" used")),
            _ => {
                drained.fetch_add(account.drain_all().stocks.into(), Relaxed);
            }
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..200)));
    };
    let limit = || {
        let mut rng = rng(1);
        let account = all[rng.u64(..6) as usize];
        let before = account.limit();
        account.set_limit([0, 10_000, 1_000_000][rng.u64(..3) as usize]);
        account.set_soft_limit(rng.u64(..1 << 30));
        let _ = groups[1].set_guarantee(rng.u64(..100_000));
        std::thread::sleep(Duration::from_micros(rng.u64(..100)));
        account.set_limit(before);
        std::thread::sleep(Duration::from_millis(1));
    };
    let accounts_come_and_go = || {
        let mut rng = rng(2);
        let parent = &leaves[rng.u64(..4) as usize];
        if let Ok(child) = parent.child("child").limit(10_000).guarantee(rng.u64(..50)).try_build() {
            let grandchild = child.child("grandchild").build();
            for _ in 0..rng.u64(..40) {
                let held = grandchild.try_hold(rng.u64(..50));
                drop(child.try_hold(rng.u64(..50)));
                // A charge that another worker gets outlives its account.
                let _ = held.map(|charge| senders[rng.u64(..THREADS) as usize].try_send(charge));
            }
        }
        // Units of a dropped account are charged to its parent.
        let testator = estate.child("testator").build();
        let mut left = 0;
        for _ in 0..rng.u64(..40) {
            let n = rng.u64(..300);
            left += testator.try_charge(n).map_or(0, |()| n);
        }
        drop(testator);
        estate.uncharge(left).unwrap();
    };
    let reclaim = || {
        Account::reclaim_idle_all();
        std::thread::sleep(EVERY);
    };
    let (runs_sections, aborts, each) = (runs_sections(), rseq::aborts(), operations() / THREADS);
    disturbed(
        THREADS,
        |thread| {
            let next = &senders[(thread as usize + 1) % THREADS as usize];
            let mine = receivers[thread as usize].lock().unwrap();
            work(&leaves, thread, each, next, &mine);
        },
        &[&drain, &limit, &accounts_come_and_go, &reclaim],
    );
    let rounds = rounds.map(AtomicU64::into_inner);
    let (aborts, drained) = (rseq::aborts() - aborts, drained.into_inner());
    println!(
        "{kind}: {} operations, {aborts} aborts; drains, limits, families: {rounds:?}; {drained} stocks drained",
        each * THREADS,
    );
    drop((senders, receivers));
    groups[1].set_guarantee(0).unwrap();
    leaves[2].set_guarantee(0).unwrap();
    Account::reclaim_idle_all();
    assert_all_is_given_back(&all);
    if kind == StockKind::Rseq && runs_sections {
        assert!(aborts > 0, "no section was aborted: nothing was tested");
    }
    assert!(
        drained > 0 || (kind == StockKind::Rseq && !runs_sections),
        "no stock was open: nothing was tested"
    );
}

#[test]
fn rseq_stocks_lose_and_create_nothing() {
    nothing_is_lost(StockKind::Rseq);
}

#[test]
fn atomic_stocks_lose_and_create_nothing() {
    nothing_is_lost(StockKind::Atomic);
}

/// A call, with its begin and its end on a clock that all threads share.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Call {
    began: u64,
    ended: u64,
    account: usize,
    act: Act,
    n: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Charged,
    Refused,
    GaveBack,
}

/// The parameters of one account in the check.
#[derive(Debug, Clone, Copy)]
struct Law {
    up: Option<usize>,
    limit: u64,
    guarantee: u64,
}

#[derive(Debug, Default)]
struct Verdict {
    charges: u64,
    refusals: u64,
    /// Refusals of charges that fitted throughout the call.
    falsely: Vec<Call>,
    /// The largest number of units by which a limit was certainly exceeded.
    overshoot: u64,
}

/// Checks the calls. At any moment an account holds at most the units of all charges that had begun and were not
/// refused, less the units that had been given back. It holds at least the units that had been charged, less
/// those that were being given back. Units that are being given back may have left an account but not yet its
/// parent, while the account's guarantee already keeps the same number: then the parent's upper bound is larger
/// by these units.
fn judge(laws: &[Law], calls: &[Call]) -> Verdict {
    fn used(laws: &[Law], held: &[u64], i: usize) -> u64 {
        let below = |c: &usize| laws[*c].up == Some(i);
        let children = (0..laws.len()).filter(below).map(|c| used(laws, held, c).max(laws[c].guarantee));
        held[i] + children.sum::<u64>()
    }
    fn leaving(laws: &[Law], going: &[u64], i: usize) -> u64 {
        let children = (0..laws.len()).filter(|c| laws[*c].up == Some(i));
        going[i] + children.map(|c| leaving(laws, going, c)).sum::<u64>()
    }
    let fits = |held: &[u64], going: &[u64], i: usize, n: u64| {
        let (mut at, mut rest) = (Some(i), n);
        while let Some(i) = at.filter(|_| rest > 0) {
            let (used, law) = (used(laws, held, i) + leaving(laws, going, i), laws[i]);
            if used + rest > law.limit {
                return false;
            }
            rest = (used + rest).max(law.guarantee) - used.max(law.guarantee);
            at = law.up;
        }
        true
    };
    let mut moments: Vec<(u64, bool, Call)> =
        calls.iter().flat_map(|call| [(call.began, true, *call), (call.ended, false, *call)]).collect();
    moments.sort_unstable_by_key(|(at, ..)| *at);
    let [mut most, mut going, mut least] = [(); 3].map(|()| vec![0u64; laws.len()]);
    let mut verdict = Verdict::default();
    // Refused calls that have not ended yet and that fitted at each moment so far.
    let mut doubtful: Vec<Call> = Vec::new();
    for (_, begins, call) in moments {
        match (call.act, begins) {
            (Act::Charged, true) => {
                most[call.account] += call.n;
                doubtful.retain(|call| fits(&most, &going, call.account, call.n));
            }
            (Act::Charged, false) => {
                verdict.charges += 1;
                least[call.account] += call.n;
                let mut at = Some(call.account);
                while let Some(i) = at {
                    verdict.overshoot =
                        verdict.overshoot.max(used(laws, &least, i).saturating_sub(laws[i].limit));
                    at = laws[i].up;
                }
            }
            (Act::GaveBack, true) => {
                least[call.account] -= call.n;
                most[call.account] -= call.n;
                going[call.account] += call.n;
                doubtful.retain(|call| fits(&most, &going, call.account, call.n));
            }
            (Act::GaveBack, false) => going[call.account] -= call.n,
            (Act::Refused, true) => {
                doubtful.extend(Some(call).filter(|call| fits(&most, &going, call.account, call.n)))
            }
            (Act::Refused, false) => {
                verdict.refusals += 1;
                if let Some(at) = doubtful.iter().position(|doubtful| doubtful.began == call.began) {
                    verdict.falsely.push(doubtful.swap_remove(at));
                }
            }
        }
    }
    assert!(most.iter().chain(&going).chain(&least).all(|held| *held == 0), "{most:?} {least:?}");
    verdict
}

/// Runs threads that together ask for more than the limits. `wants`: for each thread, pairs of an account and the most
/// units that one charge asks of it; each charge takes a random pair.
fn tried(kind: StockKind, laws: &[Law], wants: &[&[(usize, u64)]], calls_each: usize) -> Verdict {
    let mut accounts: Vec<Account> = Vec::new();
    for (i, law) in laws.iter().enumerate() {
        let name = format!("#{i}");
        let builder = match law.up {
            None => Account::root(name).kind(kind),
            Some(up) => accounts[up].child(name),
        };
        accounts.push(builder.limit(law.limit).guarantee(law.guarantee).build());
    }
    let (clock, calls) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    // ORDERING: SeqCst; so that all threads agree that a call is between its two ticks.
    let tick = || clock.fetch_add(1, SeqCst);
    let seeds = AtomicU64::new(0);
    let drain = || {
        let mut rng = Rng::with_seed(seeds.fetch_add(1, Relaxed));
        let account = &accounts[rng.u64(..accounts.len() as u64) as usize];
        if rng.u64(..4) == 0 {
            Account::reclaim_idle_all();
        } else {
            account.drain_all();
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..300)));
    };
    disturbed(
        wants.len() as u64,
        |thread| {
            let mut rng = Rng::with_seed(thread);
            let (mut mine, mut held) = (Vec::with_capacity(calls_each), Vec::<(usize, u64)>::new());
            while mine.len() + held.len() < calls_each {
                let give_back = held.len() > 6 || rng.u64(..2) == 0;
                if give_back && !held.is_empty() {
                    let (account, n) = held.swap_remove(rng.u64(..held.len() as u64) as usize);
                    let began = tick();
                    accounts[account].uncharge(n).unwrap();
                    mine.push(Call { began, ended: tick(), account, act: Act::GaveBack, n });
                    continue;
                }
                let (account, most) =
                    wants[thread as usize][rng.u64(..wants[thread as usize].len() as u64) as usize];
                // Half of the charges or more, on average, are of the largest size.
                let n = if rng.u64(..2) == 0 { most } else { 1 + rng.u64(..most) };
                let began = tick();
                let result = accounts[account].try_charge(n);
                let act = if result.is_ok() { Act::Charged } else { Act::Refused };
                mine.push(Call { began, ended: tick(), account, act, n });
                held.extend(result.is_ok().then_some((account, n)));
            }
            for (account, n) in held {
                let began = tick();
                accounts[account].uncharge(n).unwrap();
                mine.push(Call { began, ended: tick(), account, act: Act::GaveBack, n });
            }
            calls.lock().unwrap().append(&mut mine);
        },
        &[&drain],
    );
    for account in &accounts {
        account.set_guarantee(0).unwrap();
    }
    assert_all_is_given_back(&accounts.iter().collect::<Vec<_>>());
    let verdict = judge(laws, &calls.into_inner().unwrap());
    println!(
        "{kind}: {} charged, {} refused, {} of them falsely, overshoot {}",
        verdict.charges,
        verdict.refusals,
        verdict.falsely.len(),
        verdict.overshoot
    );
    assert!(verdict.refusals > 0 && verdict.charges > 0, "nothing was tested");
    verdict
}

const CALLS: usize = if cfg!(debug_assertions) { 20_000 } else { 300_000 };

/// Three levels, each with an account whose limit is too small for what the four threads ask of it.
const NARROW: [Law; 4] = [
    Law { up: None, limit: 50_000, guarantee: 0 },
    Law { up: Some(0), limit: 40_000, guarantee: 0 },
    Law { up: Some(1), limit: u64::MAX, guarantee: 0 },
    Law { up: Some(1), limit: 30_000, guarantee: 0 },
];
const NARROW_WANTS: [&[(usize, u64)]; 4] = [
    &[(2, 10_000), (2, 50), (3, 10)],
    &[(2, 100), (3, 9000), (3, 3)],
    &[(2, 1), (3, 1), (0, 12_000)],
    &[(1, 15_000), (2, 30), (3, 30)],
];

#[test]
fn atomic_stocks_exceed_no_limit_and_refuse_nothing_that_fits() {
    let _alone = alone();
    let verdict = tried(StockKind::Atomic, &NARROW, &NARROW_WANTS, CALLS);
    assert_eq!((verdict.overshoot, verdict.falsely.as_slice()), (0, &[][..]));
}

#[test]
fn atomic_stocks_keep_guarantees_under_contention() {
    let _alone = alone();
    let laws = [
        Law { up: None, limit: 100_000, guarantee: 0 },
        // This account always gets its guarantee; it gets more only while the greedy account leaves units free.
        Law { up: Some(0), limit: u64::MAX, guarantee: 30_000 },
        Law { up: Some(0), limit: u64::MAX, guarantee: 0 },
    ];
    let wants: [&[(usize, u64)]; 4] =
        [&[(1, 9000), (1, 100)], &[(1, 31_000)], &[(2, 60_000), (2, 20_000)], &[(2, 20_000), (1, 10)]];
    let verdict = tried(StockKind::Atomic, &laws, &wants, CALLS);
    assert_eq!((verdict.overshoot, verdict.falsely.as_slice()), (0, &[][..]));
}

#[test]
fn rseq_stocks_exceed_a_limit_by_at_most_their_capacity() {
    let _alone = alone();
    let verdict = tried(StockKind::Rseq, &NARROW, &NARROW_WANTS, CALLS);
    let cpus = affinity::allowed().unwrap().len() as u64;
    // No stock has a larger capacity: it takes its capacity from the share of the root's limit too.
    let largest = capacity::share(50_000);
    assert!(verdict.overshoot <= cpus * largest, "{verdict:?}");
}

/// Runs eight threads that together never ask for more than the limit. `base` units for each thread stay charged to the
/// root; each thread repeatedly charges and gives back up to `SWING` units, the rest of its part. When all threads
/// hold their whole part, a charge fails if any unit is in the wrong place. Returns the number of refusals.
fn no_charge_is_refused(kind: StockKind, base: u64) -> u64 {
    const SWING: u64 = 500;
    let each = base + SWING;
    let root = Account::root("root").kind(kind).limit(THREADS * each).build();
    let leaves = [root.child("a").build(), root.child("b").limit(THREADS * each).build()];
    root.try_charge(THREADS * base).unwrap();
    let (held, refused) = (AtomicU64::new(0), AtomicU64::new(0));
    let drain = || {
        root.drain_all();
        std::thread::sleep(Duration::from_micros(100));
    };
    disturbed(
        THREADS,
        |thread| {
            let (mut rng, mut mine) = (Rng::with_seed(thread), Vec::<(u64, u64)>::new());
            for _ in 0..CALLS / 4 {
                let free = SWING - mine.iter().map(|(_, n)| n).sum::<u64>();
                if free == 0 || rng.u64(..3) == 0 {
                    for (leaf, n) in mine.drain(..) {
                        // ORDERING: SeqCst, both; the sum is never more than what is charged.
                        held.fetch_sub(n, SeqCst);
                        leaves[leaf as usize].uncharge(n).unwrap();
                    }
                    continue;
                }
                let n = if rng.u64(..4) == 0 { free } else { 1 + rng.u64(..free) };
                let leaf = rng.u64(..2);
                match leaves[leaf as usize].try_charge(n) {
                    Ok(()) => {
                        let sum = held.fetch_add(n, SeqCst) + n;
                        assert!(sum <= THREADS * SWING, "{sum} units held");
                        mine.push((leaf, n));
                    }
                    Err(_) => {
                        refused.fetch_add(1, Relaxed);
                    }
                }
            }
            for (leaf, n) in mine {
                held.fetch_sub(n, SeqCst);
                leaves[leaf as usize].uncharge(n).unwrap();
            }
        },
        &[&drain],
    );
    root.uncharge(THREADS * base).unwrap();
    assert_all_is_given_back(&[&leaves[0], &leaves[1], &root]);
    refused.into_inner()
}

/// They make limits of 4000, 84 000 and 8 004 000 units, of which all stocks together may hold 40, 840 and 80 040.
const BASES: [u64; 3] = [0, 10_000, 1_000_000];

#[test]
fn atomic_stocks_never_refuse_threads_that_stay_below_the_limit_together() {
    let _alone = alone();
    for base in BASES {
        assert_eq!(no_charge_is_refused(StockKind::Atomic, base), 0, "{base}");
    }
}

#[test]
fn rseq_stocks_lose_nothing_at_a_limit_that_is_just_enough() {
    let _alone = alone();
    for base in BASES {
        println!("rseq: {} refused falsely", no_charge_is_refused(StockKind::Rseq, base));
    }
}
