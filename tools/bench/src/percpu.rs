//! `bench percpu`: per-CPU data, compared with what a program would use without it.
//!
//! A variant is one way to do the work of a case, in the loop that a user would write. A promise is the bound that a
//! row should meet. The promises were made before the crate `warmcore-percpu` was written; a row that misses its
//! promise is shown as prominently as one that keeps it.
//!
//! The lower bound of an add on the rseq backend is its two stores, one to the thread's rseq area and one to the
//! counter: 2 cycles on a core that stores once a cycle. A locked add takes 7 cycles on Zen 4 and 18 on Zen 5.

use crate::case::{Case, CaseCtx};
use crate::measure::{Variant, called, check_interrupted};
use crossbeam_queue::ArrayQueue;
use fast_counter::ConcurrentCounter;
use sharded_slab::Slab;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::*, compiler_fence};
use std::sync::{Mutex, MutexGuard, PoisonError};
use thread_local::ThreadLocal;
use warmcore_line::Padded;
use warmcore_percpu::{Backend, Counter, FreeList, LocalU64, PerCid, VARIABLE, backend, field};
pub use warmcore_results::names::percpu::ATOMIC;
use warmcore_results::{Bound, Results, Row};
use warmcore_sys::affinity;

/// The cases, in the order of the report. Of the cases of counters and of free lists, the one that is closest to real
/// programs is first; loops on one counter or list follow.
pub const CASES: &[Case] = &[
    Case::new("counter.add.called", counter_add_called),
    Case::new("counter.add.2threads", counter_add_2threads).needs_two_cpus(),
    Case::new("counter.add", counter_add),
    Case::new("counter.add.backends", counter_add_backends),
    Case::new("freelist.pair.called", freelist_pair_called),
    Case::new("freelist.pair", freelist_pair),
    Case::new("freelist.batch32", freelist_batch32),
    Case::new("sum", sum),
    Case::new("drain_all", drain_all).needs_two_cpus(),
    Case::new("freelist.drain_all", freelist_drain_all).needs_two_cpus(),
    Case::new("memory", memory),
];

/// A plain number in each thread.
pub const THREAD_LOCAL: &str = "thread-local += 1";
/// A plain number on the stack: the lower bound, which no shared counter can beat.
pub const OWN_WORD: &str = "own word += 1 (floor)";
/// A counter per CPU, as a program writes it without restartable sections.
pub const GETCPU: &str = "sched_getcpu + locked add";
/// The system's malloc and free; glibc's on most systems.
pub const MALLOC: &str = "malloc + free";
const ARRAY_QUEUE: &str = "crossbeam ArrayQueue";
const SLAB: &str = "sharded-slab";

/// The name of Warmcore's variant, with the backend that runs.
pub fn ours() -> String {
    format!("warmcore {}", backend().name())
}

thread_local! {
    static NUMBER: Cell<u64> = const { Cell::new(0) };
}

/// Prevents the compiler from folding the surrounding loop into one addition.
#[inline(always)]
fn once_each() {
    compiler_fence(SeqCst);
}

/// One padded atomic per CPU, the common hand-written solution.
struct PerCpuByHand(Vec<Padded<AtomicU64>>);

impl PerCpuByHand {
    fn new() -> Self {
        Self((0..affinity::nr_cpu_ids()).map(|_| Padded::new(AtomicU64::new(0))).collect())
    }

    #[inline(always)]
    fn add(&self, n: u64) {
        self.0[affinity::current_cpu().index()].fetch_add(n, Relaxed);
    }
}

/// What `counter.add`, `counter.add.2threads`, `sum` and `drain_all` measure. With `two`, the partner of each of the
/// `variants` does the same operation on the same counter, or with a number per thread on its own number.
struct Counters {
    ours: Counter,
    atomic: Padded<AtomicU64>,
    by_hand: PerCpuByHand,
    mutex: Padded<Mutex<u64>>,
    fast_counter: ConcurrentCounter,
    thread_local: ThreadLocal<Cell<u64>>,
}

impl Counters {
    fn new() -> Self {
        Self {
            ours: Counter::new(),
            atomic: Padded::new(AtomicU64::new(0)),
            by_hand: PerCpuByHand::new(),
            mutex: Padded::new(Mutex::new(0)),
            // The crate's documentation recommends more cells than threads that write.
            fast_counter: ConcurrentCounter::new(2 * affinity::allowed().map_or(1, |c| c.len())),
            thread_local: ThreadLocal::new(),
        }
    }

    fn variants(&self, two: bool) -> Vec<Variant<'_>> {
        fn variant<'a>(name: &str, two: bool, add: impl Fn() + Sync + Copy + 'a) -> Variant<'a> {
            Variant::new(name, move |n| (0..n).for_each(|_| add())).beside_if(two, move || {
                (0..256).for_each(|_| add());
                256
            })
        }
        vec![
            variant(&ours(), two, || self.ours.add(1)),
            variant(THREAD_LOCAL, two, || {
                NUMBER.with(|n| n.set(n.get().wrapping_add(1)));
                once_each();
            }),
            variant("thread_local crate", two, || {
                let n = self.thread_local.get_or_default();
                n.set(n.get().wrapping_add(1));
                once_each();
            }),
            variant("fast-counter", two, || self.fast_counter.add(1)),
            variant(ATOMIC, two, || _ = self.atomic.fetch_add(1, Relaxed)),
            variant(GETCPU, two, || self.by_hand.add(1)),
            variant("std Mutex", two, || *lock(&self.mutex) += 1),
        ]
    }
}

/// Locks a mutex whose data is valid even if a thread panicked while it held the lock.
#[inline(always)]
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn on_rseq() -> bool {
    matches!(backend(), Backend::Rseq(_))
}

fn counter_add(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let (counters, word) = (Counters::new(), Cell::new(0u64));
    let mut variants = counters.variants(false);
    variants.insert(
        1,
        Variant::new(OWN_WORD, |n| {
            let word = black_box(&word);
            for _ in 0..n {
                word.set(word.get().wrapping_add(1));
                once_each();
            }
        }),
    );
    let measured = ctx.interleave(variants)?;
    // Every add checks that its thread has a registered rseq area; the bounds of the rseq backend include this check.
    let promises = match backend() {
        Backend::Rseq(_) => [
            measured.promise(ATOMIC, &ours(), Bound::AtLeast, 8.0),
            measured.promise(&ours(), THREAD_LOCAL, Bound::AtMost, 2.5),
        ],
        Backend::Atomic(_) => [measured.promise(&ours(), GETCPU, Bound::AtMost, 1.25), None],
        Backend::Plain(_) => [None, None],
    };
    Ok(measured.rows(&ours(), promises))
}

fn counter_add_2threads(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let measured = ctx.interleave(Counters::new().variants(true))?;
    let promise = measured.promise(ATOMIC, &ours(), Bound::AtLeast, 25.0).filter(|_| on_rseq());
    Ok(measured.rows(&ours(), [promise]))
}

/// A variant that does `act` with 0, 1, 2 and so on.
fn in_turn<'a>(name: &str, act: impl Fn(usize) + 'a) -> Variant<'a> {
    Variant::new(name, move |n| (0..n as usize).for_each(&act))
}

/// Sixteen counters in turn, each through a call that is not inlined, as in a program too large to inline everything. A
/// loop on one counter favours a variant whose address the compiler can compute outside of the loop, and slows a
/// variant that waits for its own last store; this case avoids both effects.
fn counter_add_called(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    const COUNTERS: usize = 16;
    thread_local! {
        static NUMBERS: [Cell<u64>; COUNTERS] = const { [const { Cell::new(0) }; COUNTERS] };
    }
    let add_to = |i: usize| NUMBERS.with(|n| n[i].set(n[i].get().wrapping_add(1)));
    let counters: [Counter; COUNTERS] = std::array::from_fn(|_| Counter::new());
    let atomics: [Padded<AtomicU64>; COUNTERS] = std::array::from_fn(|_| Padded::new(AtomicU64::new(0)));
    let variants = vec![
        in_turn(&ours(), |i| called(&counters[i % COUNTERS], |counter| counter.add(1))),
        in_turn(ATOMIC, |i| called(&*atomics[i % COUNTERS], |counter| _ = counter.fetch_add(1, Relaxed))),
        in_turn(THREAD_LOCAL, |i| called(i % COUNTERS, add_to)),
    ];
    Ok(ctx.interleave(variants)?.rows(&ours(), []))
}

/// If this process runs on rseq, measures the other backends, each in a separate process, since a process has one
/// backend. Otherwise makes no rows.
fn counter_add_backends(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let mut all = Vec::new();
    // Without rseq, `counter.add` measures the backend that the user forced or that is the fallback.
    let others: &[&str] = if on_rseq() { &["atomic", "plain"] } else { &[] };
    for backend in others {
        let file = tempfile::NamedTempFile::new()?;
        let mut child = std::process::Command::new(std::env::current_exe()?);
        child
            .args(["bench", "percpu", "--case", "counter.add", "--json"])
            .arg(file.path())
            .env(VARIABLE, backend);
        child.args(ctx.effort.is_quick().then_some("--quick"));
        let output = child.stdin(std::process::Stdio::null()).output()?;
        check_interrupted()?;
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "the {backend} backend's process failed: {text}");
        let results: Results = serde_json::from_slice(&std::fs::read(file.path())?)?;
        let ours = format!("warmcore {backend}");
        // The times of the child's backend, the times that the atomic backend is compared with, and the rows with a
        // promise.
        let wanted = |row: &Row| match row.metric.as_str() {
            "time" => row.variant == ours || (row.variant == GETCPU && *backend == "atomic"),
            _ => row.target.is_some(),
        };
        all.extend(
            results.rows.into_iter().filter(wanted).map(|row| Row { case: ctx.name.to_owned(), ..row }),
        );
    }
    Ok(all)
}

/// 64 bytes, the size of objects that programs reuse: a small request, a node of a tree.
const OBJECT: Layout = match Layout::from_size_align(64, 8) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

fn item(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n + 1).unwrap_or(NonZeroU64::MIN)
}

type Item = NonZeroU64;
type Stack = Mutex<Vec<Item>>;

/// How many items a list has in the beginning.
const ITEMS: u64 = 32;

fn list() -> FreeList<Item> {
    let list = FreeList::new();
    (0..ITEMS).for_each(|n| list.push(item(n)));
    list
}

fn queue() -> ArrayQueue<Item> {
    let queue = ArrayQueue::new(64);
    (0..ITEMS).for_each(|n| queue.push(item(n)).expect("64 fit"));
    queue
}

fn stack() -> Stack {
    let mut items = Vec::with_capacity(64);
    items.extend((0..ITEMS).map(item));
    Mutex::new(items)
}

/// A pop and a push.
#[inline(always)]
fn list_pair(list: &FreeList<Item>) {
    list.push(black_box(list.pop()).unwrap_or_else(|| item(0)));
}

/// An allocation and its free.
#[inline(always)]
fn malloc_pair() {
    // SAFETY: the layout has a size; the block goes back with the same layout.
    unsafe {
        let block = black_box(System.alloc(OBJECT));
        System.dealloc(block, OBJECT);
    }
}

/// A pop and a push.
#[inline(always)]
fn queue_pair(queue: &ArrayQueue<Item>) {
    let _ = queue.push(black_box(queue.pop()).expect("32 were pushed"));
}

/// A pop and a push, with a lock for each.
#[inline(always)]
fn stack_pair(stack: &Stack) {
    let item = black_box(lock(stack).pop());
    lock(stack).push(item.expect("32 were pushed"));
}

/// A pop and a push on sixteen lists in turn, each through a call that is not inlined, as in [`counter_add_called`].
fn freelist_pair_called(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    const LISTS: usize = 16;
    let lists: [_; LISTS] = std::array::from_fn(|_| list());
    let queues: [_; LISTS] = std::array::from_fn(|_| queue());
    let stacks: [_; LISTS] = std::array::from_fn(|_| Padded::new(stack()));
    let variants = vec![
        in_turn(&ours(), |i| called(&lists[i % LISTS], list_pair)),
        in_turn(MALLOC, |_| called((), |()| malloc_pair())),
        in_turn(ARRAY_QUEUE, |i| called(&queues[i % LISTS], queue_pair)),
        in_turn("std Mutex<Vec>", |i| called(&*stacks[i % LISTS], stack_pair)),
    ];
    Ok(ctx.interleave(variants)?.rows(&ours(), []))
}

fn freelist_pair(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let (list, queue, slab, stack) = (list(), queue(), Slab::new(), stack());
    let variants = vec![
        in_turn(&ours(), |_| list_pair(&list)),
        in_turn(MALLOC, |_| malloc_pair()),
        in_turn(ARRAY_QUEUE, |_| queue_pair(&queue)),
        in_turn(SLAB, |_| {
            let key = black_box(slab.insert(1u64));
            slab.remove(key.expect("one at a time"));
        }),
        in_turn("std Mutex<Vec>", |_| stack_pair(&stack)),
    ];
    let measured = ctx.interleave(variants)?;
    let promise =
        |variant, value| measured.promise(variant, &ours(), Bound::AtLeast, value).filter(|_| on_rseq());
    Ok(measured.rows(&ours(), [promise(MALLOC, 2.5), promise(ARRAY_QUEUE, 8.0)]))
}

/// Moves 32 items out of a list and back in, or allocates and frees 32 blocks. The times are per item or block.
fn freelist_batch32(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    const BATCH: usize = ITEMS as usize;
    let (list, queue, stack) = (list(), queue(), stack());
    let batches = |n: u64| 0..n.div_ceil(BATCH as u64);
    let (mut held, mut blocks) = (Vec::with_capacity(64), Vec::with_capacity(64));
    let (mut from_queue, mut from_stack) = (Vec::with_capacity(64), Vec::with_capacity(64));
    let variants = vec![
        Variant::new(&ours(), |n| {
            for _ in batches(n) {
                list.pop_batch(black_box(&mut held), BATCH);
                list.push_batch(black_box(&mut held));
            }
        }),
        Variant::new(MALLOC, |n| {
            for _ in batches(n) {
                // SAFETY: the layout has a size; each block goes back once, with the same layout.
                unsafe {
                    black_box(&mut blocks).extend((0..BATCH).map(|_| System.alloc(OBJECT)));
                    blocks.drain(..).for_each(|block| System.dealloc(block, OBJECT));
                }
            }
        }),
        Variant::new(ARRAY_QUEUE, |n| {
            for _ in batches(n) {
                black_box(&mut from_queue).extend((0..BATCH).map_while(|_| queue.pop()));
                from_queue.drain(..).for_each(|item| _ = queue.push(item));
            }
        }),
        Variant::new("std Mutex<Vec>, a lock a batch", |n| {
            for _ in batches(n) {
                black_box(&mut from_stack).append(&mut lock(&stack));
                lock(&stack).append(&mut from_stack);
            }
        }),
    ];
    Ok(ctx.interleave(variants)?.rows(&ours(), []))
}

/// Reads a counter. For the sum over all CPUs Warmcore reads as many slots as there are CPU numbers that the kernel may
/// use.
fn sum(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let counters = Counters::new();
    counters.ours.add(1);
    counters.thread_local.get_or_default().set(1);
    let repeat = |read: &dyn Fn() -> u64, n| (0..n).for_each(|_| _ = black_box(read()));
    let by_hand = || counters.by_hand.0.iter().map(|n| n.load(Relaxed)).sum();
    let snapshot = format!("{} snapshot", ours());
    let variants = vec![
        Variant::new(&ours(), |n| repeat(&|| counters.ours.sum(), n)),
        Variant::new(&snapshot, |n| repeat(&|| counters.ours.snapshot(), n)),
        Variant::new("a padded atomic per CPU number", |n| repeat(&by_hand, n)),
        Variant::new("fast-counter", |n| repeat(&|| counters.fast_counter.sum() as u64, n)),
        Variant::new(ATOMIC, |n| repeat(&|| counters.atomic.load(Relaxed), n)),
    ];
    Ok(ctx.interleave(variants)?.rows(&ours(), []))
}

/// Drains a counter on all CPUs, which returns the sum, while another CPU adds without a pause. A time includes the
/// eight adds of the draining thread.
fn drain_all(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    fn variant<'a>(
        name: &str,
        add: impl Fn() + Sync + Copy + 'a,
        drain: impl Fn() -> u64 + 'a,
    ) -> Variant<'a> {
        let work = move |n| {
            for _ in 0..n {
                // This thread adds too, so that both CPUs have a share of the sum.
                (0..8).for_each(|_| add());
                black_box(drain());
            }
        };
        Variant::new(name, work).beside(move || {
            (0..256).for_each(|_| add());
            256
        })
    }
    let counters = Counters::new();
    let by_hand = || counters.by_hand.0.iter().map(|n| n.swap(0, Relaxed)).sum();
    let variants = vec![
        variant(&ours(), || counters.ours.add(1), || counters.ours.drain_all()),
        variant("swap of an atomic per CPU number", || counters.by_hand.add(1), by_hand),
        variant(
            "swap of one atomic",
            || _ = counters.atomic.fetch_add(1, Relaxed),
            || counters.atomic.swap(0, Relaxed),
        ),
    ];
    let measured = ctx.interleave(variants)?;
    let mut rows = measured.rows(&ours(), []);
    if let Some(row) = rows.iter_mut().find(|row| row.variant == ours() && row.metric == "time") {
        *row = row.clone().promise(Bound::AtMost, 2000.0);
    }
    rows.extend(measured.partner_times("time of an add meanwhile"));
    Ok(rows)
}

/// Takes the items of all CPUs while another CPU pops and pushes without a pause. Every variant does a thousand pops
/// and pushes before each drain, and they are part of its time: without them the other CPU would mostly wait for the
/// drain, and a fence costs little where no thread runs. The variants without a drain are controls.
fn freelist_drain_all(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let (list, stack) = (FreeList::new(), Mutex::new(Vec::with_capacity(64)));
    let use_list = |times: u64| {
        (0..times).for_each(|_| list.push(list.pop().unwrap_or_else(|| item(0))));
        times
    };
    let use_stack = |times: u64| {
        for _ in 0..times {
            let popped = lock(&stack).pop();
            lock(&stack).push(popped.unwrap_or_else(|| item(0)));
        }
        times
    };
    const BETWEEN: u64 = 1000;
    let list_drain = |_| {
        use_list(BETWEEN);
        black_box(list.drain_all());
    };
    let stack_drain = |_| {
        use_stack(BETWEEN);
        black_box(std::mem::take(&mut *lock(&stack)));
    };
    let no_drain = |_| _ = use_list(BETWEEN);
    let mut variants = vec![
        in_turn(&ours(), list_drain).beside(|| use_list(64)),
        in_turn("std Mutex<Vec>, taken whole", stack_drain).beside(|| use_stack(64)),
        in_turn("no drain, pops and pushes alone", no_drain).beside(|| use_list(64)),
    ];
    // The other backends need no fence, and a process that has not registered may not ask for one.
    if on_rseq() {
        let fence = |_| {
            use_list(BETWEEN);
            warmcore_sys::membarrier::fence_rseq();
        };
        variants.push(in_turn("membarrier instead of a drain", fence).beside(|| use_list(64)));
    }
    let measured = ctx.interleave(variants)?;
    let mut rows = measured.rows(&ours(), []);
    rows.extend(measured.partner_times("time of a pop and push meanwhile"));
    Ok(rows)
}

/// The memory that two threads take on a machine of 8192 CPUs, which is simulated: only the number of CPUs is passed.
/// Counts resident pages of areas of 4008 bytes, one per slot.
fn memory(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    #[derive(bytemuck::Zeroable)]
    #[allow(dead_code, reason = "it is there to take room")]
    struct Area {
        number: LocalU64,
        more: [u64; 500],
    }
    const CPUS: usize = 8192;
    let areas = PerCid::<Area>::with_slots(CPUS);
    // Both threads run at the same time, and on different CPUs if there are two; otherwise the second thread would
    // reuse the slot of the first.
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for cpu in [Some(ctx.cpus.own), ctx.cpus.partner] {
            let (start, areas) = (&start, &areas);
            scope.spawn(move || {
                let _ = cpu.map(affinity::pin);
                start.wait();
                (0..1_000_000).for_each(|_| areas.add(field!(Area, number), 1));
            });
        }
    });
    anyhow::ensure!(areas.sum(field!(Area, number)) == 2_000_000, "updates were lost");
    let page = warmcore_sys::map::page_bytes() as f64;
    let row = |variant: &str, metric: &str, bytes: f64| {
        Row::exact("memory", variant, metric, "pages", (bytes / page).ceil(), 1)
    };
    let resident = areas.resident_bytes()? as f64;
    // A slot of 4008 bytes lies on at most two pages. Two threads use two slots, or three if one of them migrates.
    Ok(vec![
        row(&format!("{}, 2 threads, 8192 CPUs", ours()), "resident", resident).promise(Bound::AtMost, 6.0),
        // This row is computed, not measured: the array would have too many pages.
        row("an array with an area for every CPU", "computed size", (CPUS * areas.stride()) as f64),
    ])
}
