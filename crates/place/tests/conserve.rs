//! Work conservation.

mod common;
use common::{drawn, model::*};
use warmcore_place::{Allowed, PolicyKind};
use warmcore_terms::CpuId;
use warmcore_topo::Topology;

const MS: u64 = 1_000_000;

fn machines() -> Vec<(&'static str, Topology, Vec<u32>)> {
    vec![
        ("24 LLCs", drawn(2, 12, 4, 1), vec![]),
        ("11 LLCs", drawn(1, 11, 4, 2), vec![]),
        ("SMT", drawn(1, 1, 8, 2), vec![]),
        ("offline", drawn(1, 2, 4, 1), vec![1, 4, 5, 6, 7]),
    ]
}
type Load = (&'static str, fn(u32) -> Vec<Task>);
fn loads() -> Vec<Load> {
    vec![
        ("yield 16us, 2 per cpu", |n| (0..2 * n).map(|_| Task::new((16_000, 16_001), Then::Yield)).collect()),
        ("yield 16us-1ms, half", |n| (0..n / 2 + 1).map(|_| Task::new((16_000, MS), Then::Yield)).collect()),
        ("timers even", |n| {
            (0..2 * n).map(|_| Task::new((16_000, 100_000), Then::Sleep(100_000, 300_000))).collect()
        }),
        ("timers small", |n| {
            (0..4 * n).map(|_| Task::new((1_000, 10_000), Then::Sleep(20_000, 60_000))).collect()
        }),
        ("long polls", |n| {
            (0..2 * n)
                .map(|i| {
                    if i % 4 == 0 {
                        Task::new((3 * MS, 5 * MS), Then::Sleep(MS, 2 * MS))
                    } else {
                        Task::new((16_000, 60_000), Then::Sleep(100_000, 900_000))
                    }
                })
                .collect()
        }),
        ("pairs", |n| {
            (0..(2 * n) as usize).map(|i| Task::new((16_000, 17_000), Then::Pass(i ^ 1))).collect()
        }),
        ("pairs small", |n| {
            (0..(2 * n) as usize).map(|i| Task::new((1_000, 2_000), Then::Pass(i ^ 1))).collect()
        }),
        ("messages", |n| {
            (0..(2 * n) as usize)
                .map(|_| Task::new((16_000, 40_000), Then::Message(2 * n as usize)))
                .collect()
        }),
        ("fork", |n| {
            (0..n / 4 + 1).map(|_| Task::new((16_000, 40_000), Then::Fork(8, 20_000, 60_000))).collect()
        }),
        ("pinned", |n| {
            (0..2 * n)
                .map(|i| {
                    let mut t = Task::new((16_000, 100_000), Then::Sleep(100_000, 300_000));
                    if i % 2 == 0 {
                        t.allowed = Allowed::Cpu(CpuId(0));
                    }
                    t
                })
                .collect()
        }),
    ]
}
#[test]
fn explore() {
    for (m, t, off) in machines() {
        for (l, load) in loads() {
            for p in PolicyKind::all() {
                if std::env::var("ALLP").is_err() && p != PolicyKind::Home {
                    continue;
                }
                let n = t.cpus.len() as u32;
                let o = Model::new(&t, p, &off, load(n)).run(
                    if std::env::var("OUT").is_ok() { None } else { Some(CpuId(0)) },
                    50 * MS,
                    100 * MS,
                );
                println!(
                    "{m:8} {l:22} {p:12} {:6} wakes {:6} polls moves {:5} back {:5} kicks {:6} vain {:5} idle {:8} us waited {:8} us stranded {} lookfound {}",
                    o.wakes,
                    o.polls,
                    o.moves,
                    o.moves_back,
                    o.kicks,
                    o.in_vain,
                    o.idle_beside_work / 1000,
                    o.waited / 1000,
                    o.stranded,
                    o.looked_and_found
                );
            }
        }
    }
}
