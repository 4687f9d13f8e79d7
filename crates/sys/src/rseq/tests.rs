use super::*;
use crate::{affinity, map::Region, membarrier};
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// A slot of 4 KiB, and more slots than a test machine has ids.
const SHIFT: u32 = 12;
const SLOTS: usize = 8192;

struct Slots {
    region: Region,
    active: AtomicPtr<u8>,
}

impl Slots {
    fn new() -> Self {
        let region = Region::reserve(SLOTS << SHIFT).unwrap();
        Self { active: AtomicPtr::new(region.start().as_ptr()), region }
    }

    fn word(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: inside the region, aligned.
        unsafe { self.region.start().add(slot << SHIFT).cast::<AtomicU64>().as_ref() }
    }

    fn sum(&self) -> u64 {
        (0..64).map(|slot| self.word(slot).load(Relaxed)).sum()
    }
}

fn area(ids: PercpuMode) -> RseqArea {
    support().expect("the test machine has rseq");
    assert!(register_thread());
    RseqArea::lookup(ids).expect("this thread is registered")
}

#[test]
fn the_area_has_the_kernels_cpu_number_and_concurrency_id() {
    let area = area(PercpuMode::Cpu);
    for cpu in affinity::allowed().unwrap().iter() {
        affinity::pin(cpu).unwrap();
        assert_eq!(area.index(), cpu.0);
    }
    let support = support().unwrap();
    assert_eq!(mm_cid().is_some(), support.has_mm_cid);
}

#[test]
fn an_add_arms_a_section() {
    // SAFETY: no test of this crate writes slots with locked instructions.
    unsafe { enable_sections() }.unwrap();
    let (area, slots) = (area(PercpuMode::Cid), Slots::new());
    assert!(RseqArea::current(PercpuMode::Cid).is_some());
    let armed = (0..100).any(|_| {
        // SAFETY: a slot for every possible id, used by this test only.
        assert!(unsafe { section::add::<SHIFT>(area, &slots.active, 3) } || aborts() > 0);
        area.is_armed()
    });
    assert!(armed, "100 adds, and rseq_cs was never set");
    assert!(slots.sum() > 0 && slots.sum() % 3 == 0);
}

#[test]
fn the_self_test_passes_on_this_kernel() {
    support().unwrap();
    let began = std::time::Instant::now();
    selftest(SLOTS).unwrap();
    println!("self-test: {:?}", began.elapsed());
}

/// The negative control: the conditions of these tests must make unprotected code fail.
#[test]
fn a_section_that_is_never_armed_loses_updates() {
    area(PercpuMode::Cpu);
    let kept_share = |armed: bool| {
        let (slots, cpu) = (Slots::new(), affinity::current_cpu());
        let began = std::time::Instant::now();
        // One thread never sleeps and two do: when they wake, they mostly preempt it inside the section.
        let adder = &|naps: bool| {
            let _ = affinity::pin(cpu);
            assert!(register_thread());
            let (area, mut added) = (RseqArea::lookup(PercpuMode::Cpu).unwrap(), 0);
            while began.elapsed().as_millis() < 300 {
                // SAFETY: a slot for every possible id, used by this test only.
                added += u64::from(unsafe {
                    section::add_delayed::<SHIFT>(area, &slots.active, 1, 100_000, armed)
                });
                if naps {
                    std::thread::sleep(std::time::Duration::from_micros(20));
                }
            }
            added
        };
        let added: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = [false, true, true].map(|naps| scope.spawn(move || adder(naps))).into();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        (slots.sum(), added)
    };
    let (kept, added) = kept_share(true);
    assert_eq!(kept, added, "armed sections lost updates");
    let (kept, added) = kept_share(false);
    assert!(
        kept < added,
        "all {added} adds of sections that were never armed were kept: this test detects nothing"
    );
}

#[test]
fn after_a_fence_no_section_commits_to_the_old_slots() {
    membarrier::register_rseq().unwrap();
    area(PercpuMode::Cid);
    let (old, new) = (Slots::new(), Slots::new());
    let active = AtomicPtr::new(old.active.load(Relaxed));
    let stop = std::sync::atomic::AtomicBool::new(false);
    let added: u64 = std::thread::scope(|scope| {
        let adder = || {
            assert!(register_thread());
            let (area, mut added) = (RseqArea::lookup(PercpuMode::Cid).unwrap(), 0);
            while !stop.load(Relaxed) {
                // SAFETY: both regions have a slot for every possible id.
                added += u64::from(unsafe { section::add_delayed::<SHIFT>(area, &active, 1, 500, true) });
            }
            added
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(adder)).collect();
        let (mut from, mut to) = (&old, &new);
        for _ in 0..60 {
            active.store(to.active.load(Relaxed), std::sync::atomic::Ordering::Release);
            membarrier::fence_rseq();
            let frozen = from.sum();
            for _ in 0..5 {
                std::thread::yield_now();
                assert_eq!(from.sum(), frozen, "a section committed to the old slots");
            }
            (from, to) = (to, from);
        }
        stop.store(true, Relaxed);
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert_eq!(old.sum() + new.sum(), added);
}
