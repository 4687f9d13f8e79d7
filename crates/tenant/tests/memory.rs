//! The memory of tenants. The test has a process of its own, because it measures the memory of a whole process.

use bytemuck::Zeroable;
use warmcore_percpu::{LocalU64, PerCid, field};
use warmcore_sys::{affinity, map};
use warmcore_tenant::Tenant;

const TENANTS: usize = 10_000;
/// The limit for a tenant that has not touched data.
const BYTES_EACH_MAX: usize = 4096;
/// How many times memory is measured, each time over the making of four times `TENANTS` tenants. It grows every time
/// only if memory is not given back.
const WINDOWS: usize = 5;

#[derive(Zeroable)]
struct Numbers {
    n: LocalU64,
    _more: [u64; 190],
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * map::page_bytes()
}

/// Makes tenants as on a machine of `cpus` CPU numbers, and enters each once on every CPU.
fn tenants(cpus: u32) -> Vec<Tenant> {
    let tenants: Vec<Tenant> = (0..TENANTS).map(|_| Tenant::builder().cpus(cpus).build()).collect();
    std::thread::scope(|scope| {
        for cpu in affinity::allowed().unwrap().iter() {
            let tenants = &tenants;
            scope.spawn(move || {
                affinity::pin(cpu).unwrap();
                tenants.iter().for_each(|tenant| drop(tenant.enter()));
            });
        }
    });
    tenants
}

/// Measures tenants as on a machine of `cpus` CPU numbers. Each call needs a process of its own: memory that was
/// given back to the heap would make the next tenants look cheap.
fn cost(cpus: u32) {
    // The first tenant sets up what all share: the backend's self-test, the pools, the compactor.
    drop(Tenant::builder().build().enter());
    let before = resident_bytes();
    let alive = tenants(cpus);
    let each = (resident_bytes() - before) / TENANTS;
    let data: Vec<PerCid<Numbers>> = alive.iter().map(Tenant::data).collect();
    data.iter().for_each(|data| data.add(field!(Numbers, n), 1));
    let with_data = (resident_bytes() - before) / TENANTS;
    println!("{cpus} CPU numbers: {each} bytes each, {with_data} with data in one slot");
    assert!(each <= BYTES_EACH_MAX, "{each} bytes each on {cpus} CPUs");
    drop(data);
    let left = resident_bytes().saturating_sub(before) / TENANTS;
    let (were, are) = (with_data - each, left.saturating_sub(each));
    assert!(are < were / 8, "{are} of {were} bytes of data each stayed when the data were gone");
    drop(alive);

    // Making the same tenants again needs no more memory. The heap's size changes in jumps, depending on which thread
    // frees what; memory that is not given back makes it grow every time.
    (0..3).for_each(|_| drop(tenants(cpus)));
    let grown = |_| {
        let before = resident_bytes();
        (0..4).for_each(|_| drop(tenants(cpus)));
        let grown = || resident_bytes().saturating_sub(before) / (4 * TENANTS);
        // The compactor may hold the last tenants while it compacts them.
        for _ in 0..20 {
            if grown() < BYTES_EACH_MAX / 32 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        grown()
    };
    let least = (0..WINDOWS).map(grown).find(|grown| *grown < BYTES_EACH_MAX / 32);
    assert!(
        least.is_some(),
        "{} bytes each and more were not given back on {cpus} CPUs",
        BYTES_EACH_MAX / 32
    );
}

#[test]
#[cfg(target_os = "linux")]
fn ten_thousand_tenants_cost_at_most_a_page_each_and_give_it_back() {
    const CPUS: &str = "WARMCORE_TEST_CPUS";
    if let Ok(cpus) = std::env::var(CPUS) {
        return cost(cpus.parse().unwrap());
    }
    for cpus in [affinity::nr_cpu_ids() as u32, 384, 2048] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "ten_thousand_tenants_cost_at_most_a_page_each_and_give_it_back",
            "--nocapture",
        ]);
        let output = child.env(CPUS, cpus.to_string()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        println!("{}", text.lines().find(|line| line.contains("bytes each")).unwrap_or_default());
    }
}
