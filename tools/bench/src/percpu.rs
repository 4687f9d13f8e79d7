//! `bench percpu`: per-CPU data, compared with what a program would use without it.
//!
//! Every variant of a case does the same work, in the loop that a user would write. A promise is the bound that a row
//! should meet. The promises were made before the crate `warmcore-percpu` was written; a row that misses its promise is
//! shown as prominently as one that keeps it.
//!
//! The lower bound of an add is its two stores, one to the area and one to the counter: 2 cycles on a core that stores
//! once a cycle. A locked add takes 7 cycles on Zen 4 and 18 on Zen 5.

use crate::case::{Case, CaseCtx};
use crate::measure::{Measured, Variant};
use crossbeam_queue::ArrayQueue;
use fast_counter::ConcurrentCounter;
use sharded_slab::Slab;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::num::NonZeroU64;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*, compiler_fence};
use thread_local::ThreadLocal;
use warmcore_line::Padded;
use warmcore_percpu::{Backend, Counter, FreeList, LocalU64, PerCid, VARIABLE, backend, field};
pub use warmcore_results::names::percpu::ATOMIC;
use warmcore_results::{Bound, Results, Row};
use warmcore_sys::affinity;

/// The cases, in the order of the report: first the cases that are close to real programs, then loops on one counter or
/// list.
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

/// The variants of every counter case. If the case has a partner, each variant's partner does the same operation.
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
            let variant = Variant::new(name, move |n| (0..n).for_each(|_| add()));
            let beside = move || {
                (0..256).for_each(|_| add());
                256
            };
            if two { variant.beside(beside) } else { variant }
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
            variant("std Mutex", two, || *self.mutex.lock().unwrap_or_else(|e| e.into_inner()) += 1),
        ]
    }
}

/// The rows of a case: the promises first, then times and all ratios over Warmcore.
fn rows(measured: &Measured, promises: Vec<Option<Row>>) -> Vec<Row> {
    let promised: Vec<Row> = promises.into_iter().flatten().collect();
    let is_promised = |row: &Row| promised.iter().any(|p| (&p.variant, &p.over) == (&row.variant, &row.over));
    let mut rows = measured.times();
    let ratios = measured.ratios_over(&ours());
    rows.extend(promised.iter().cloned());
    rows.extend(ratios.into_iter().filter(|row| !is_promised(row)));
    rows
}

fn on_rseq() -> bool {
    matches!(backend(), Backend::Rseq(_))
}

fn counter_add(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
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
    let Some(measured) = ctx.interleave(variants)? else { return Ok(None) };
    let promises = match backend() {
        // Every add checks that its thread has a registered area, which these bounds include.
        Backend::Rseq(_) => vec![
            measured.promise(ATOMIC, &ours(), Bound::AtLeast, 8.0),
            measured.promise(&ours(), THREAD_LOCAL, Bound::AtMost, 2.5),
        ],
        Backend::Atomic(_) => vec![measured.promise(&ours(), GETCPU, Bound::AtMost, 1.25)],
        Backend::Plain(_) => vec![],
    };
    Ok(Some(rows(&measured, promises)))
}

fn counter_add_2threads(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    let counters = Counters::new();
    let Some(measured) = ctx.interleave(counters.variants(true))? else { return Ok(None) };
    let promise = measured.promise(ATOMIC, &ours(), Bound::AtLeast, 25.0).filter(|_| on_rseq());
    Ok(Some(rows(&measured, vec![promise])))
}

/// Sixteen counters in turn, each through a call that is not inlined, as in a program too large to inline everything. A
/// loop on one counter favours a variant whose address the compiler can compute outside of the loop, and slows a
/// variant that waits for its own last store; this case avoids both effects.
fn counter_add_called(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    const COUNTERS: usize = 16;
    #[inline(never)]
    fn ours_called(counter: &Counter) {
        counter.add(1);
    }
    #[inline(never)]
    fn atomic_called(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
    thread_local! {
        static NUMBERS: [Cell<u64>; COUNTERS] = const { [const { Cell::new(0) }; COUNTERS] };
    }
    #[inline(never)]
    fn thread_local_called(i: usize) {
        NUMBERS.with(|n| n[i].set(n[i].get().wrapping_add(1)));
    }
    let counters: [Counter; COUNTERS] = std::array::from_fn(|_| Counter::new());
    let atomics: [Padded<AtomicU64>; COUNTERS] = std::array::from_fn(|_| Padded::new(AtomicU64::new(0)));
    let variants = vec![
        Variant::new(&ours(), |n| (0..n).for_each(|i| ours_called(&counters[i as usize % COUNTERS]))),
        Variant::new(ATOMIC, |n| (0..n).for_each(|i| atomic_called(&atomics[i as usize % COUNTERS]))),
        Variant::new(THREAD_LOCAL, |n| (0..n).for_each(|i| thread_local_called(i as usize % COUNTERS))),
    ];
    Ok(ctx.interleave(variants)?.map(|measured| rows(&measured, vec![])))
}

/// Measures the other backends, each in a separate process, since a process has one backend.
fn counter_add_backends(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    let mut all = Vec::new();
    // If the user forced this backend, or it is the fallback, `counter.add` has measured it already.
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
        if crate::measure::INTERRUPTED.load(Relaxed) {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "the {backend} backend's process failed: {text}");
        let results: Results = serde_json::from_slice(&std::fs::read(file.path())?)?;
        let ours = format!("warmcore {backend}");
        // The child's own rows, and the rows that the child compares them with.
        let wanted = |row: &Row| match row.metric.as_str() {
            "time" => row.variant == ours || (row.variant == GETCPU && *backend == "atomic"),
            _ => row.target.is_some(),
        };
        all.extend(
            results.rows.into_iter().filter(wanted).map(|row| Row { case: ctx.name.to_owned(), ..row }),
        );
    }
    Ok(Some(all))
}

/// 64 bytes, the size of objects that programs reuse: a small request, a node of a tree.
const OBJECT: Layout = match Layout::from_size_align(64, 8) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

fn item(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n + 1).unwrap_or(NonZeroU64::MIN)
}

/// A pop and a push on sixteen lists in turn, each through a call that is not inlined, as in [`counter_add_called`].
fn freelist_pair_called(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    const LISTS: usize = 16;
    #[inline(never)]
    fn ours_called(list: &FreeList<NonZeroU64>) {
        list.push(black_box(list.pop()).unwrap_or_else(|| item(0)));
    }
    #[inline(never)]
    fn malloc_called() {
        // SAFETY: the layout has a size; the block goes back with the same layout.
        unsafe {
            let block = black_box(System.alloc(OBJECT));
            System.dealloc(block, OBJECT);
        }
    }
    #[inline(never)]
    fn queue_called(queue: &ArrayQueue<NonZeroU64>) {
        let _ = queue.push(black_box(queue.pop()).expect("32 were pushed"));
    }
    #[inline(never)]
    fn stack_called(stack: &Mutex<Vec<NonZeroU64>>) {
        let item = black_box(stack.lock().expect("no thread panics while it holds the lock").pop());
        stack.lock().expect("no thread panics while it holds the lock").push(item.expect("32 were pushed"));
    }
    let lists: [FreeList<NonZeroU64>; LISTS] = std::array::from_fn(|_| FreeList::new());
    let queues: [ArrayQueue<NonZeroU64>; LISTS] = std::array::from_fn(|_| ArrayQueue::new(64));
    let stacks: [Padded<Mutex<Vec<NonZeroU64>>>; LISTS] =
        std::array::from_fn(|_| Padded::new(Mutex::new(Vec::with_capacity(64))));
    for ((list, queue), stack) in lists.iter().zip(&queues).zip(&stacks) {
        for n in 0..32 {
            list.push(item(n));
            queue.push(item(n)).expect("64 fit");
            stack.lock().expect("no thread panics while it holds the lock").push(item(n));
        }
    }
    let variants = vec![
        Variant::new(&ours(), |n| (0..n).for_each(|i| ours_called(&lists[i as usize % LISTS]))),
        Variant::new(MALLOC, |n| (0..n).for_each(|_| malloc_called())),
        Variant::new(ARRAY_QUEUE, |n| (0..n).for_each(|i| queue_called(&queues[i as usize % LISTS]))),
        Variant::new("std Mutex<Vec>", |n| (0..n).for_each(|i| stack_called(&stacks[i as usize % LISTS]))),
    ];
    Ok(ctx.interleave(variants)?.map(|measured| rows(&measured, vec![])))
}

fn freelist_pair(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    let list = FreeList::new();
    let queue = ArrayQueue::new(64);
    let (slab, stack) = (Slab::new(), Mutex::new(Vec::with_capacity(64)));
    for n in 0..32 {
        list.push(item(n));
        queue.push(item(n)).expect("64 fit");
        stack.lock().expect("no thread panics while it holds the lock").push(item(n));
    }
    let variants = vec![
        Variant::new(&ours(), |n| {
            for _ in 0..n {
                let other = || item(0);
                list.push(black_box(list.pop()).unwrap_or_else(other));
            }
        }),
        Variant::new(MALLOC, |n| {
            for _ in 0..n {
                // SAFETY: the layout has a size; the block goes back with the same layout.
                unsafe {
                    let block = black_box(System.alloc(OBJECT));
                    System.dealloc(block, OBJECT);
                }
            }
        }),
        Variant::new(ARRAY_QUEUE, |n| {
            for _ in 0..n {
                let item = black_box(queue.pop());
                let _ = queue.push(item.expect("32 were pushed"));
            }
        }),
        Variant::new(SLAB, |n| {
            for _ in 0..n {
                let key = black_box(slab.insert(1u64));
                slab.remove(key.expect("one at a time"));
            }
        }),
        Variant::new("std Mutex<Vec>", |n| {
            for _ in 0..n {
                let item = black_box(stack.lock().expect("no thread panics while it holds the lock").pop());
                stack
                    .lock()
                    .expect("no thread panics while it holds the lock")
                    .push(item.expect("32 were pushed"));
            }
        }),
    ];
    let Some(measured) = ctx.interleave(variants)? else { return Ok(None) };
    let promises = vec![
        measured.promise(MALLOC, &ours(), Bound::AtLeast, 2.5).filter(|_| on_rseq()),
        measured.promise(ARRAY_QUEUE, &ours(), Bound::AtLeast, 8.0).filter(|_| on_rseq()),
    ];
    Ok(Some(rows(&measured, promises)))
}

/// Moves items in and out, 32 at a time. The times are per item.
fn freelist_batch32(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    const BATCH: usize = 32;
    let list = FreeList::new();
    let queue = ArrayQueue::new(64);
    let stack = Mutex::new(Vec::with_capacity(64));
    for n in 0..BATCH as u64 {
        list.push(item(n));
        queue.push(item(n)).expect("64 fit");
        stack.lock().expect("no thread panics while it holds the lock").push(item(n));
    }
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
                black_box(&mut from_stack)
                    .append(&mut stack.lock().expect("no thread panics while it holds the lock"));
                stack.lock().expect("no thread panics while it holds the lock").append(&mut from_stack);
            }
        }),
    ];
    Ok(ctx.interleave(variants)?.map(|measured| rows(&measured, vec![])))
}

/// Reads the sum over all CPUs. Warmcore reads a slot for every CPU number that the kernel may use.
fn sum(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
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
    Ok(ctx.interleave(variants)?.map(|measured| rows(&measured, vec![])))
}

/// Drains a counter on all CPUs, which returns the sum, while another CPU adds without a pause.
fn drain_all(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
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
    let Some(measured) = ctx.interleave(variants)? else { return Ok(None) };
    let mut rows = rows(&measured, vec![]);
    if let Some(row) = rows.iter_mut().find(|row| row.variant == ours() && row.metric == "time") {
        *row = row.clone().promise(Bound::AtMost, 2000.0);
    }
    rows.extend(measured.partner_times("time of an add meanwhile"));
    Ok(Some(rows))
}

/// Takes the items of all CPUs while another CPU pops and pushes without a pause. Every variant does a thousand pops and
/// pushes between two drains, and they are part of its time: without them the other CPU would mostly wait for the drain,
/// and a fence costs little where no thread runs.
fn freelist_drain_all(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    let (list, stack) = (FreeList::new(), Mutex::new(Vec::with_capacity(64)));
    let use_list = |times: u64| {
        (0..times).for_each(|_| list.push(list.pop().unwrap_or_else(|| item(0))));
        times
    };
    let use_stack = |times: u64| {
        for _ in 0..times {
            let popped = stack.lock().expect("no thread panics while it holds the lock").pop();
            stack
                .lock()
                .expect("no thread panics while it holds the lock")
                .push(popped.unwrap_or_else(|| item(0)));
        }
        times
    };
    const BETWEEN: u64 = 1000;
    let list_drain = |n| {
        for _ in 0..n {
            use_list(BETWEEN);
            black_box(list.drain_all());
        }
    };
    let stack_drain = |n| {
        for _ in 0..n {
            use_stack(BETWEEN);
            black_box(std::mem::take(&mut *stack.lock().expect("no thread panics while it holds the lock")));
        }
    };
    let no_drain = |n| (0..n).for_each(|_| _ = use_list(BETWEEN));
    let mut variants = vec![
        Variant::new(&ours(), list_drain).beside(|| use_list(64)),
        Variant::new("std Mutex<Vec>, taken whole", stack_drain).beside(|| use_stack(64)),
        Variant::new("no drain, pops and pushes alone", no_drain).beside(|| use_list(64)),
    ];
    // The other backends need no fence, and a process that has not registered may not ask for one.
    if on_rseq() {
        let fence = |n| {
            for _ in 0..n {
                use_list(BETWEEN);
                warmcore_sys::membarrier::fence_rseq();
            }
        };
        variants.push(Variant::new("membarrier instead of a drain", fence).beside(|| use_list(64)));
    }
    let Some(measured) = ctx.interleave(variants)? else { return Ok(None) };
    let mut rows = rows(&measured, vec![]);
    rows.extend(measured.partner_times("time of a pop and push meanwhile"));
    Ok(Some(rows))
}

/// The memory that two threads take on a machine of 8192 CPUs, which is simulated: only the number of CPUs is passed.
/// Counts resident pages of areas that have a page per slot.
fn memory(ctx: &CaseCtx) -> anyhow::Result<Option<Vec<Row>>> {
    #[derive(bytemuck::Zeroable)]
    #[allow(dead_code, reason = "it is there to take room")]
    struct Area {
        number: LocalU64,
        more: [u64; 500],
    }
    const CPUS: usize = 8192;
    let areas = PerCid::<Area>::with_slots(CPUS);
    // Both threads run at the same time and on different CPUs; otherwise the second would reuse the slot of the first.
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
    let pages = |bytes: f64| vec![(bytes / page).ceil()];
    let row =
        |variant: &str, metric: &str, bytes: f64| Row::of("memory", variant, metric, "pages", &pages(bytes));
    let resident = areas.resident_bytes()? as f64;
    // A slot of 4008 bytes lies on at most two pages. Two threads use two slots, or three if one of them migrates.
    Ok(Some(vec![
        row(&format!("{}, 2 threads, 8192 CPUs", ours()), "resident", resident).promise(Bound::AtMost, 6.0),
        // This row is computed, not measured: the array would have too many pages.
        row("an array with an area for every CPU", "computed size", (CPUS * areas.stride()) as f64),
    ]))
}
