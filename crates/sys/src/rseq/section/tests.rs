//! Each operation against its model, on a fake area. These tests need no support of the kernel, so they also run
//! without rseq (qemu-user), and give the same results on every architecture. `rseq/tests.rs` tests sections on a real
//! kernel.

use super::super::{ENABLED, aborts, field};
use super::*;
use crate::map::{Region, page_bytes};
use crate::rseq::RseqArea;
use fastrand::Rng;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

mod stock;

/// The word before an abort address, which glibc registers and the kernel checks.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = if cfg!(target_endian = "big") { 0x00bc_28d4 } else { 0xd428_bc00 };

/// The descriptor to which `rseq_cs` points: `struct rseq_cs` of `linux/rseq.h`.
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start: usize,
    bytes: usize,
    abort: usize,
}

impl Descriptor {
    fn is_valid(&self) -> bool {
        // SAFETY: the abort address is in this program's text, which is readable, and the signature is before it.
        let signature = unsafe { std::ptr::with_exposed_provenance::<u32>(self.abort - 4).read_unaligned() };
        (self.version, self.flags, signature) == (0, 0, SIGNATURE)
            && (8..400).contains(&self.bytes)
            && !self.holds(self.abort)
    }

    fn holds(&self, pc: usize) -> bool {
        pc.wrapping_sub(self.start) < self.bytes
    }
}

/// An area that is not registered, so the kernel does not write it.
#[repr(C, align(32))]
struct FakeArea([u32; field::AREA_BYTES / 4]);

impl FakeArea {
    fn new(cpu: u32, cid: u32) -> Self {
        let mut words = [0; field::AREA_BYTES / 4];
        (words[0], words[field::CPU_ID / 4], words[field::MM_CID / 4]) = (cpu, cpu, cid);
        Self(words)
    }

    fn rseq_area(&mut self, id_field: usize) -> RseqArea {
        let base = NonNull::from(&mut self.0).cast::<u8>();
        // SAFETY: both id fields are inside the area.
        RseqArea { base, index: unsafe { base.byte_add(id_field).cast() } }
    }

    /// The descriptor of the section that was entered last. `None` before the first one, after `disarm`, and after
    /// `add_delayed` with `armed` false, which clears `rseq_cs`.
    fn armed(&self) -> Option<&Descriptor> {
        let address = std::ptr::from_ref(&self.0).cast::<u64>().wrapping_byte_add(field::RSEQ_CS);
        // SAFETY: `rseq_cs` of this area holds null or the address of a descriptor, static data.
        unsafe { std::ptr::with_exposed_provenance::<Descriptor>(address.read_volatile() as usize).as_ref() }
    }

    fn disarm(&mut self) {
        self.0[field::RSEQ_CS / 4..][..2].fill(0);
    }
}

/// The model of the operations, on the words of a slot: `len`, `cap`, items.
mod model {
    pub fn pop(slot: &mut [u64]) -> u64 {
        let mut one = [0];
        pop_batch(slot, &mut one);
        one[0]
    }

    pub fn pop_batch(slot: &mut [u64], out: &mut [u64]) -> usize {
        let (len, k) = (slot[0] as usize, out.len().min(slot[0] as usize));
        out[..k].copy_from_slice(&slot[2 + len - k..2 + len]);
        slot[0] -= k as u64;
        k
    }

    pub fn push_batch(slot: &mut [u64], items: &[u64]) -> usize {
        let (len, k) = (slot[0] as usize, items.len().min((slot[1] - slot[0]) as usize));
        slot[2 + len..2 + len + k].copy_from_slice(&items[..k]);
        slot[0] += k as u64;
        k
    }
}

/// Larger than the capacity of each stack in the tests.
const BATCH_MAX: usize = 1000;

/// Applies random operations to random ids. After each, all words of all slots equal the model's.
fn agrees_with_the_model<const SHIFT: u32>() {
    const SLOTS: usize = 5;
    let slot_words = (1 << SHIFT) / 8;
    let region = Region::reserve(SLOTS << SHIFT).unwrap();
    let (base, words) = (region.start().cast::<u64>(), SLOTS * slot_words);
    let active = AtomicPtr::new(base.as_ptr().cast::<u8>());
    let mut rng = Rng::with_seed(1);
    let mut model: Vec<u64> = (0..words).map(|_| rng.u64(..)).collect();
    for (slot, cap) in [0, 1, 3, slot_words - 2, (slot_words - 2) / 2].into_iter().enumerate() {
        (model[slot * slot_words], model[slot * slot_words + 1]) = (0, cap as u64);
    }
    // SAFETY: `words` words of the region, which no reference points into.
    unsafe { base.copy_from_nonoverlapping(NonNull::new(model.as_mut_ptr()).unwrap(), words) };

    for step in 0..10_000 {
        let (id, by_cid) = (rng.usize(..SLOTS), rng.usize(..2) == 0);
        let other = rng.u32(..1 << 20);
        let mut fake = if by_cid { FakeArea::new(other, id as u32) } else { FakeArea::new(id as u32, other) };
        let before = fake.0;
        let area = fake.rseq_area(if by_cid { field::MM_CID } else { field::CPU_ID });
        let slot = &mut model[id * slot_words..][..slot_words];
        // A word of the items, so that the adds below do not change `len`.
        let at = 8 * (2 + rng.usize(..slot_words - 2));
        let word = AtomicPtr::new(active.load(Relaxed).wrapping_byte_add(at));
        let n = [0, 1, u64::MAX, rng.u64(..)][rng.usize(..4)];
        let batch = [0, 1, 2, rng.usize(..20), BATCH_MAX][rng.usize(..5)];
        let items: Vec<u64> = (0..batch).map(|_| rng.u64(..)).collect();
        let (mut out, mut model_out) = (vec![7; batch], vec![7; batch]);
        let operation = rng.usize(..9);
        // SAFETY: the region has `SLOTS` slots of this shape, `id` is one of them, and this
        // thread alone knows them.
        unsafe {
            match operation {
                0 => {
                    assert!(add::<SHIFT>(area, &word, n));
                    slot[at / 8] = slot[at / 8].wrapping_add(n);
                }
                1 | 2 => {
                    assert!(add_delayed::<SHIFT>(area, &word, n, rng.u64(..3), operation == 1));
                    slot[at / 8] = slot[at / 8].wrapping_add(n);
                }
                3 => {
                    assert!(add_strided(area, word.load(Relaxed), 1 << SHIFT, n));
                    slot[at / 8] = slot[at / 8].wrapping_add(n);
                }
                4 => {
                    let expected = if rng.usize(..2) == 0 { slot[at / 8] } else { n };
                    let stored = cmpeqv_storev::<SHIFT>(area, &word, expected, !n);
                    assert_eq!(stored, expected == slot[at / 8], "step {step}: cmpeqv_storev");
                    slot[at / 8] = if stored { !n } else { slot[at / 8] };
                }
                5 => assert_eq!(pop::<SHIFT>(area, &active), model::pop(slot), "step {step}: pop"),
                6 => {
                    let put = model::push_batch(slot, &[n]) == 1;
                    assert_eq!(push::<SHIFT>(area, &active, n), put, "step {step}: push");
                }
                7 => {
                    let taken = pop_batch::<SHIFT>(area, &active, out.as_mut_ptr(), batch);
                    assert_eq!(taken, model::pop_batch(slot, &mut model_out), "step {step}: pop_batch");
                }
                _ => {
                    let put = push_batch::<SHIFT>(area, &active, items.as_ptr(), batch);
                    assert_eq!(put, model::push_batch(slot, &items), "step {step}: push_batch");
                }
            }
        }
        assert_eq!(out, model_out, "step {step}: what pop_batch took");
        // SAFETY: the region's words; no operation is in progress.
        let now = unsafe { std::slice::from_raw_parts(base.as_ptr(), words) };
        assert_eq!(
            now.iter().zip(&model).position(|(a, b)| a != b),
            None,
            "step {step}: operation {operation} on slot {id}"
        );
        assert_eq!(fake.armed().is_some(), operation != 2, "step {step}: operation {operation}");
        assert!(fake.armed().is_none_or(Descriptor::is_valid), "step {step}: operation {operation}");
        fake.disarm();
        assert_eq!(fake.0, before, "step {step}: operation {operation} wrote a field that is the kernel's");
    }
}

#[test]
fn operations_on_slots_of_a_page_agree_with_the_model() {
    agrees_with_the_model::<12>();
}

#[test]
fn operations_on_slots_of_two_lines_agree_with_the_model() {
    agrees_with_the_model::<7>();
}

#[test]
fn a_batch_is_cut_to_what_the_stack_can_hold_or_has() {
    let mut stack = [0_u64, 4, 0, 0, 0, 0, u64::MAX];
    let active = AtomicPtr::new(stack.as_mut_ptr().cast::<u8>());
    let mut fake = FakeArea::new(0, 1);
    let area = fake.rseq_area(field::CPU_ID);
    let mut out = [0; 9];
    // SAFETY: id 0 is a stack of 4 items, used by this test only; the batches are within their arrays.
    unsafe {
        assert_eq!((pop::<12>(area, &active), pop_batch::<12>(area, &active, out.as_mut_ptr(), 9)), (0, 0));
        assert!(push::<12>(area, &active, 11));
        assert_eq!(push_batch::<12>(area, &active, [12, 13, 14, 15, 16].as_ptr(), 5), 3, "only three fit");
        assert_eq!(
            (push::<12>(area, &active, 17), push_batch::<12>(area, &active, [18].as_ptr(), 1)),
            (false, 0)
        );
        assert_eq!(pop::<12>(area, &active), 14);
        assert_eq!(pop_batch::<12>(area, &active, out.as_mut_ptr(), 2), 2);
        assert_eq!(out[..3], [12, 13, 0], "the top two, oldest first");
        assert_eq!(pop_batch::<12>(area, &active, out.as_mut_ptr(), 9), 1, "all that the stack has");
    }
    assert_eq!((stack[0], stack[6]), (0, u64::MAX));
}

thread_local! {
    /// The area whose `rseq_cs` the signal handler reads; null except during an operation under test. Const and without
    /// a destructor, so that a signal handler may read it.
    static FAULTING: Cell<*mut FakeArea> = const { Cell::new(std::ptr::null_mut()) };
}

/// After a fault inside the armed section, continues at the abort address, as the kernel does after an interruption
/// there. After any other fault it restores the default action, so the fault is repeated and ends the process.
extern "C" fn abort_the_section(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's context of this signal; the area is alive while an operation runs on it.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        let pc = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
        #[cfg(target_arch = "aarch64")]
        let pc = &mut (*context).uc_mcontext.pc;
        let fake = FAULTING.get();
        let section = fake.as_ref().and_then(FakeArea::armed);
        if let Some(abort) = section.filter(|s| s.is_valid() && s.holds(*pc as usize)).map(|s| s.abort) {
            *pc = abort as _;
            (&mut *fake).disarm();
        } else {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
        }
    }
}

/// Installs `handler` for `signal`.
fn handle(signal: i32, handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)) {
    // SAFETY: the handlers access only their arguments, thread-locals and the area of the thread.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        assert_eq!(libc::sigaction(signal, &action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn an_aborted_section_changes_nothing_and_returns_so() {
    let bytes = page_bytes();
    let protect = |at: *mut u8, protection: i32| {
        // SAFETY: a page of the region below.
        assert_eq!(unsafe { libc::mprotect(at.cast(), bytes, protection) }, 0);
    };
    handle(libc::SIGSEGV, abort_the_section);
    // Three pages: not accessible, read-only, writable. The stack's `len` and `cap` are at the end of the second page
    // and its items at the start of the third, so of all its stores only the commit faults.
    let region = Region::reserve(3 * bytes).unwrap();
    let [nowhere, fixed, open] = [0, 1, 2].map(|page| region.start().as_ptr().wrapping_add(page * bytes));
    let (len, items) = (open.wrapping_sub(16).cast::<u64>(), open.cast::<u64>());
    let ready = || {
        protect(fixed, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: words of the second and third page, used by this test only.
        unsafe { (*len, *len.add(1), *items, *items.add(1), *items.add(2)) = (2, 100, 31, 32, 33) };
        protect(fixed, libc::PROT_READ);
    };
    protect(nowhere, libc::PROT_NONE);

    // Aborted at the first instruction (the load of the index), at the first load from the slot, and at the commit.
    for (at_index, slot) in [(true, len), (false, nowhere.cast()), (false, len)] {
        let active = AtomicPtr::new(slot.cast::<u8>());
        let is_at_commit = !at_index && slot == len;
        let aborted = |name: &str, operation: &dyn Fn(RseqArea) -> u64, next_item: u64| {
            ready();
            let (mut fake, before) = (FakeArea::new(0, 0), aborts());
            let fake = &raw mut fake;
            // SAFETY: the area above, in this frame; no reference to it lives during the operation.
            let area = unsafe { (*fake).rseq_area(field::CPU_ID) };
            let area = if at_index {
                RseqArea { index: NonNull::new(nowhere).unwrap().cast(), ..area }
            } else {
                area
            };
            FAULTING.set(fake);
            let result = operation(area);
            FAULTING.set(std::ptr::null_mut());
            assert_eq!(result, 0, "{name}");
            assert!(aborts() > before, "{name} was not aborted");
            // SAFETY: as in `ready`.
            let now = unsafe { (*len, *items, *items.add(1), *items.add(2)) };
            let next_item = if is_at_commit { next_item } else { 33 };
            assert_eq!(now, (2, 31, 32, next_item), "{name}");
        };
        let mut out = [0; 2];
        // SAFETY: for id 0, the fake area's, the slot is the stack above. Operations that would access other memory
        // are aborted at that access.
        unsafe {
            aborted("add", &|area| add::<12>(area, &active, 1).into(), 33);
            aborted("add_delayed", &|area| add_delayed::<12>(area, &active, 1, 9, true).into(), 33);
            aborted("add_strided", &|area| add_strided(area, slot.cast(), 64, 1).into(), 33);
            aborted("cmpeqv_storev", &|area| cmpeqv_storev::<12>(area, &active, 2, 5).into(), 33);
            aborted("pop", &|area| pop::<12>(area, &active), 33);
            aborted("push", &|area| push::<12>(area, &active, 40).into(), 40);
            let out = out.as_mut_ptr();
            aborted("pop_batch", &|area| pop_batch::<12>(area, &active, out, 2) as u64, 33);
            aborted("push_batch", &|area| push_batch::<12>(area, &active, [41].as_ptr(), 1) as u64, 41);
            if is_at_commit {
                // Inside the copying loops.
                let nowhere = nowhere.cast::<u64>();
                aborted("pop_batch", &|area| pop_batch::<12>(area, &active, nowhere, 2) as u64, 33);
                aborted("push_batch", &|area| push_batch::<12>(area, &active, nowhere, 1) as u64, 33);
            }
        }
    }
}

/// Runs in a child of fork, since it overwrites the process's `ENABLED`.
#[test]
fn an_area_is_found_only_while_it_is_registered_and_sections_are_enabled() {
    let _one_at_a_time = crate::fork::tests::FORKS.lock();
    // SAFETY: the child calls nothing but `area` and `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // The function pointer is opaque: the compiler may merge two direct calls into one.
        let found = || std::hint::black_box(area as fn() -> (*mut u8, usize))().0;
        let mut fake = std::hint::black_box(FakeArea::new(0, 1));
        let fake = std::hint::black_box(&raw mut fake);
        ENABLED.store(0, Relaxed);
        let none_yet = found().is_null();
        ENABLED.store((fake as i64 - thread_pointer() as i64) << 32 | field::MM_CID as i64, Relaxed);
        let registered = found() == fake.cast();
        // SAFETY: the area above.
        unsafe { (&raw mut (*fake).0[field::CPU_ID / 4]).write_volatile(u32::MAX) };
        let unregistered = found().is_null();
        let failed = i32::from(!none_yet) | i32::from(!registered) << 1 | i32::from(!unregistered) << 2;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(failed) };
    }
    let mut status = 0;
    // SAFETY: the child above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(
        status, 0,
        "not null before it was enabled (256), not the area (512), not null unregistered (1024)"
    );
}
