//! The operations on stocks against their model, and with aborts: at the loads and at the commit, and on x86-64 at
//! every instruction.

use super::*;
use fastrand::Rng;

/// A stock's two words.
type Stock = [u64; 2];

/// The model of the operations.
mod model {
    use super::Stock;

    fn parts(word: u64) -> (u32, u32) {
        ((word >> 32) as u32, word as u32)
    }

    fn set_used(stock: &mut Stock, used: u32) -> bool {
        stock[0] = stock[0] >> 32 << 32 | u64::from(used);
        true
    }

    pub fn charge(stock: &mut Stock, key: u32, n: u32) -> bool {
        let ((whose, used), (_, granted)) = (parts(stock[0]), parts(stock[1]));
        let new = used.wrapping_add(n);
        whose == key && granted.wrapping_sub(new) as i32 >= 0 && set_used(stock, new)
    }

    pub fn uncharge(stock: &mut Stock, key: u32, n: u32) -> bool {
        let ((whose, used), (tag, granted)) = (parts(stock[0]), parts(stock[1]));
        let new = used.wrapping_sub(n);
        let capacity = 1u64 << (tag % 32);
        whose == key && u64::from(granted.wrapping_sub(new)) < capacity && set_used(stock, new)
    }

    pub fn grant(stock: &mut Stock, [head, grant]: Stock, new: u64) -> bool {
        let is_as_seen = *stock == [head, grant];
        stock[1] = if is_as_seen { new } else { stock[1] };
        is_as_seen
    }

    pub fn rebind(stock: &mut Stock, [head, grant]: Stock, new: u64) -> bool {
        let is_as_seen = *stock == [head, grant];
        stock[0] = if is_as_seen { new } else { stock[0] };
        is_as_seen
    }
}

/// A random word, often near an edge: of 32 bits, of the sign bit, of a capacity.
fn random_word(rng: &mut Rng) -> u32 {
    let near = rng.u32(..7);
    let edge: u32 = match rng.u32(..5) {
        0 => 0,
        1 => 1 << 31,
        2 => 1 << rng.u32(..32),
        _ => return rng.u32(..),
    };
    edge.wrapping_add(near).wrapping_sub(3)
}

fn random_key(rng: &mut Rng) -> u32 {
    [0, 1, 0x8000_0001, u32::MAX][rng.usize(..4)]
}

/// A stock with a random number of free units, or a random debt.
fn random_stock(rng: &mut Rng, key: u32) -> Stock {
    let (used, tag) = (random_word(rng), random_word(rng));
    let granted = used.wrapping_add(random_word(rng));
    [u64::from(key) << 32 | u64::from(used), u64::from(tag) << 32 | u64::from(granted)]
}

/// Applies random operations on random CPUs. After each, all words of all stocks equal the model's.
fn agrees_with_the_model<const SHIFT: u32>() {
    const CPUS: usize = 5;
    let apart = (1 << SHIFT) / 16;
    let mut rng = Rng::with_seed(1);
    let mut table: Vec<Stock> = (0..CPUS * apart).map(|_| random_stock(&mut rng, 7)).collect();
    let mut model = table.clone();
    let first = table.as_mut_ptr();
    let mut result_counts = [[0; 2]; 4];

    for step in 0..200_000 {
        let (cpu, key) = (rng.usize(..CPUS), random_key(&mut rng));
        let at = cpu * apart;
        if rng.u64(..4) > 0 {
            let whose = if rng.u64(..4) > 0 { key } else { !key };
            model[at] = random_stock(&mut rng, whose);
            // SAFETY: an entry of the table, which no reference points into.
            unsafe { first.add(at).write(model[at]) };
        }
        let before = model[at];
        let (granted, used) = (before[1] as u32, before[0] as u32);
        let free = granted.wrapping_sub(used);
        let capacity = 1u32 << ((before[1] >> 32) % 32);
        // Often just what is free, or what the capacity allows, or one less or more.
        let n = match rng.u64(..3) {
            0 => free.wrapping_add(rng.u32(..3)).wrapping_sub(1),
            1 => capacity.wrapping_sub(free).wrapping_add(rng.u32(..3)).wrapping_sub(2),
            _ => random_word(&mut rng),
        };
        let mut seen = before;
        if rng.u64(..2) == 0 {
            seen[rng.usize(..2)] ^= 1 << rng.u64(..64);
        }
        let named = if rng.u64(..4) > 0 { cpu as u32 } else { random_word(&mut rng) };
        let new = u64::from(random_word(&mut rng)) << 32 | u64::from(random_word(&mut rng));
        let mut fake = FakeArea::new(cpu as u32, 1 << 20);
        let fields = fake.0;
        let (area, operation, first) = (fake.rseq_area(field::CPU_ID), rng.u64(..4), first.cast::<u8>());
        // SAFETY: the table has a stock for every CPU that the area may name, used by this test only.
        let (result, expected) = unsafe {
            match operation {
                0 => (stock_charge::<SHIFT>(area, first, key, n), model::charge(&mut model[at], key, n)),
                1 => (stock_uncharge::<SHIFT>(area, first, key, n), model::uncharge(&mut model[at], key, n)),
                2 => {
                    let expected = named == cpu as u32 && model::grant(&mut model[at], seen, new);
                    // Its store-exclusive may fail spuriously.
                    let tries = if expected && cfg!(target_arch = "aarch64") { 100 } else { 1 };
                    let grant = || stock_grant::<SHIFT>(area, first, named, seen[0], seen[1], new);
                    ((0..tries).any(|_| grant()), expected)
                }
                _ => (
                    stock_rebind::<SHIFT>(area, first, named, seen[0], seen[1], new),
                    named == cpu as u32 && model::rebind(&mut model[at], seen, new),
                ),
            }
        };
        let what = || {
            format!(
                "step {step}: operation {operation} on {before:x?}, key {key:x}, n {n:x}, {named} {seen:x?}"
            )
        };
        assert_eq!(result, expected, "{}", what());
        // SAFETY: the table's own entries; no operation is in progress.
        let now = unsafe { std::slice::from_raw_parts(first.cast::<Stock>(), model.len()) };
        assert!(now == model, "{}", what());
        assert!(fake.armed().is_some_and(Descriptor::is_valid), "{}", what());
        fake.disarm();
        assert_eq!(fake.0, fields, "{} wrote a field that is the kernel's", what());
        result_counts[operation as usize][usize::from(result)] += 1;
    }
    assert!(
        result_counts.as_flattened().iter().all(|&times| times > 5_000),
        "too few of a kind: {result_counts:?}"
    );
}

#[test]
fn operations_on_adjacent_stocks_agree_with_the_model() {
    agrees_with_the_model::<4>();
}

#[test]
fn operations_on_stocks_two_lines_apart_agree_with_the_model() {
    agrees_with_the_model::<7>();
}

/// The key of the stock that the tests of aborts use.
const KEY: u32 = 7;
/// A stock with 10 of 100 units used and a capacity of 2^10.
const STOCK: Stock = [(KEY as u64) << 32 | 10, 10 << 32 | 100];

/// Each operation, and the stock that [`apply`] makes of [`STOCK`].
const OPERATIONS: [(&str, Stock); 4] = [
    ("charge", [STOCK[0] + 90, STOCK[1]]),
    ("uncharge", [STOCK[0] - 9, STOCK[1]]),
    ("grant", [STOCK[0], 3]),
    ("rebind", [3, STOCK[1]]),
];

/// Applies an operation with arguments for which it succeeds.
fn apply(operation: &str, area: RseqArea, first: *mut u8) -> bool {
    let [head, grant] = STOCK;
    // SAFETY: for CPU 0, the fake areas', the stock is at `first`, used by the test only. An operation that would
    // access other memory is aborted at that access.
    unsafe {
        match operation {
            "charge" => stock_charge::<4>(area, first, KEY, 90),
            "uncharge" => stock_uncharge::<4>(area, first, KEY, 9),
            "grant" => stock_grant::<4>(area, first, 0, head, grant, 3),
            _ => stock_rebind::<4>(area, first, 0, head, grant, 3),
        }
    }
}

#[test]
fn a_section_aborted_at_a_load_or_at_its_commit_changes_nothing() {
    let bytes = page_bytes();
    let region = Region::reserve(2 * bytes).unwrap();
    let [fixed, nowhere] = [0, 1].map(|page| region.start().as_ptr().wrapping_add(page * bytes));
    let protect = |at: *mut u8, protection: i32| {
        // SAFETY: a page of the region above.
        assert_eq!(unsafe { libc::mprotect(at.cast(), bytes, protection) }, 0);
    };
    handle(libc::SIGSEGV, abort_the_section);
    protect(nowhere, libc::PROT_NONE);

    // Aborted at the load of the index, of the first word, of the second, and at the commit to a read-only page.
    let split = nowhere.wrapping_sub(8);
    for (index, first) in [(Some(nowhere), fixed), (None, nowhere), (None, split), (None, fixed)] {
        for (name, _) in OPERATIONS {
            let words = first.cast::<u64>();
            // SAFETY: words of the first page, used by this test only.
            let each = |act: &dyn Fn(*mut u64, u64)| {
                (0..2)
                    .filter(|&i| words.wrapping_add(i) < nowhere.cast())
                    .for_each(|i| act(words.wrapping_add(i), STOCK[i]))
            };
            protect(fixed, libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: a word of the first page, used by this test only.
            each(&|at, word| unsafe { at.write(word) });
            protect(fixed, libc::PROT_READ);
            let (mut fake, before) = (FakeArea::new(0, 1), aborts());
            let fake = &raw mut fake;
            // SAFETY: the area above, in this frame; no reference to it lives during the operation.
            let area = unsafe { (*fake).rseq_area(field::CPU_ID) };
            let index = index.and_then(NonNull::new).map_or(area.index, NonNull::cast);
            FAULTING.set(fake);
            let result = apply(name, RseqArea { index, ..area }, first);
            FAULTING.set(std::ptr::null_mut());
            assert!(!result, "{name}");
            assert!(aborts() > before, "{name} was not aborted");
            // SAFETY: as above.
            each(&|at, word| assert_eq!(unsafe { at.read() }, word, "{name}"));
        }
    }
}

/// Aborts after each instruction of a section, with the processor's single-step trap.
#[cfg(target_arch = "x86_64")]
mod stepped {
    use super::*;

    /// The flag that makes the processor trap after each instruction.
    const TRAP: u32 = 1 << 8;

    thread_local! {
        /// The number of instructions of the section that still run before it is aborted.
        static STEPS_LEFT: Cell<u64> = const { Cell::new(0) };
    }

    /// Aborts the section at the chosen instruction, as the kernel does. Stops stepping there, or after the section.
    extern "C" fn step(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel's context of this signal; the area is alive while an operation runs on it.
        unsafe {
            let registers = &mut (*context).uc_mcontext.gregs;
            let fake = FAULTING.get();
            // Null until the section is armed, which happens before its first instruction.
            let Some(section) = fake.as_ref().and_then(FakeArea::armed) else { return };
            let (pc, left) = (registers[libc::REG_RIP as usize] as usize, STEPS_LEFT.get());
            if section.holds(pc) && left > 0 {
                STEPS_LEFT.set(left - 1);
                return;
            }
            registers[libc::REG_EFL as usize] &= !i64::from(TRAP);
            if section.holds(pc) {
                registers[libc::REG_RIP as usize] = section.abort as i64;
                (&mut *fake).disarm();
            }
        }
    }

    #[test]
    fn a_section_aborted_after_any_instruction_changes_nothing() {
        handle(libc::SIGTRAP, step);
        let mut stock = STOCK;
        let stock = &raw mut stock;
        for (name, done) in OPERATIONS {
            for steps in 0.. {
                let (mut fake, before) = (FakeArea::new(0, 1), aborts());
                let fake = &raw mut fake;
                // SAFETY: the stock and the area above, in this frame.
                let area = unsafe {
                    stock.write(STOCK);
                    (*fake).rseq_area(field::CPU_ID)
                };
                FAULTING.set(fake);
                STEPS_LEFT.set(steps);
                // SAFETY: the handler of the trap is installed and stops the stepping at the latest after the section.
                unsafe {
                    std::arch::asm!("pushfq", "or dword ptr [rsp], {TRAP}", "popfq", TRAP = const TRAP)
                };
                let result = apply(name, area, stock.cast());
                FAULTING.set(std::ptr::null_mut());
                // SAFETY: as above.
                let (now, was_aborted) = unsafe { (stock.read(), (*fake).armed().is_none()) };
                assert_eq!(
                    (result, now),
                    if was_aborted { (false, STOCK) } else { (true, done) },
                    "{name}, {steps}"
                );
                if !was_aborted {
                    assert!(steps >= 5, "{name}: {steps} instructions are no section");
                    break;
                }
                assert!(aborts() > before, "{name}, {steps}");
            }
        }
    }
}
