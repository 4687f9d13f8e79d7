//! A crate that depends only on `warmcore`, and imports only its prelude, builds and runs.

mod project;

use project::{Project, warmcore};
use std::process::Command;

/// A program that uses the items that users need first, and imports only the prelude.
const PROGRAM: &str = r#"
use warmcore::prelude::*;
use std::sync::atomic::AtomicUsize;

static REQUESTS: Counter = Counter::new();
static OPEN: Gauge = Gauge::new();
static BUFFERS: FreeList<Box<[u8; 64]>> = FreeList::new();

#[derive(Zeroable)]
struct Stats { hits: LocalU64, misses: LocalU64 }

#[derive(Zeroable)]
struct Nested<T: Copy> where T: Send { stats: Stats, last: T, twice: [T; 2], this: std::marker::PhantomData<Self> }

#[derive(Zeroable)]
struct Unit;

#[derive(Zeroable)]
struct Tuple(u64, Option<&'static u8>);

#[derive(Line)]
#[repr(C, align(64))]
struct Shared {
    #[line(read_mostly)]
    limit: usize,
    #[line(contended)]
    used: Padded<AtomicUsize>,
}

#[warmcore::main(worker_threads = 2)]
async fn main() {
    REQUESTS.add(2);
    OPEN.add(1);
    BUFFERS.push(Box::new([0; 64]));
    let stats = PerCid::<Stats>::new();
    stats.add(field!(Stats, hits), 1);
    stats.add(field!(Stats, misses), 2);
    let nested = PerCpu::<Nested<u32>>::new();
    assert_eq!(nested.iter().map(|(_, slot)| slot.last + slot.twice[1]).sum::<u32>(), 0);
    let _ = (PerCid::<Unit>::new(), PerCid::<Tuple>::new());
    let tenant = Tenant::builder().name("orders").build();
    let traffic = tenant.data::<Stats>();
    let of_task = warmcore::spawn_in(&tenant, async { 40 }).await.unwrap();
    {
        let here = tenant.enter();
        traffic.owned_slot(&here).add(field!(Stats, hits), of_task);
    }
    let aborted: JoinHandle<()> = warmcore::spawn(std::future::pending());
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    let shared = Shared { limit: 1, used: Padded::new(AtomicUsize::new(1)) };
    assert_eq!(shared.limit, shared.used.load(std::sync::atomic::Ordering::Relaxed));
    let used = std::mem::offset_of!(Shared, used);
    let sum = REQUESTS.sum() + traffic.sum(field!(Stats, hits)) + stats.sum(field!(Stats, misses));
    println!("{} {} {} {}", sum, OPEN.sum(), BUFFERS.len(), used.is_multiple_of(64));
}
"#;

#[test]
fn the_prelude_is_enough_for_a_crate_that_depends_on_warmcore_only() {
    let project = Project::new("alone", &warmcore(""), PROGRAM);
    let program = project.build("alone");
    let ran = Command::new(program).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{errors}");
    assert_eq!(said, "44 1 1 true\n", "{errors}");
}

/// An earlier version of this test took these failures for a dependency that was missing on the machine, and passed.
#[test]
fn a_project_that_cannot_be_built_fails_the_test() {
    let build = |name: &str, dependencies: &str, program: &str| {
        let project = Project::new(name, dependencies, program);
        let failed = std::panic::catch_unwind(|| project.build(name)).expect_err("it can't be built");
        failed.downcast_ref::<String>().expect("a panic has a text").clone()
    };
    let told = build("no-feature", &warmcore(", features = [\"none-such\"]"), "fn main() {}");
    assert!(told.contains("none-such"), "{told}");
    let told = build("no-compile", "", "fn main() { offline }");
    assert!(told.contains("cannot find value `offline`"), "{told}");
}
