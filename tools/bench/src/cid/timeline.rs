//! Records which id each CPU has over time, in the published schedule, for a picture.
//!
//! The id allocator alone runs with eight CPUs and a simulated clock. Thread k begins at k × 200 ms with a burst of 20
//! ms and then enters for an instant every 8 × 200 ms; a compaction runs every 100 ms. Three policies run the same
//! schedule. Rows and picture are deterministic. In 12 s there are 8 first bursts and 52 bursts after a pause: 60 marks
//! in the picture, with bands where CPUs keep ids.

use super::shares::{Visit, Whose, percent, whose};
use crate::case::CaseCtx;
use warmcore_cid::{CacheLocal, HeldCid, Ids, KeptPerCpu, Lowest, Policy, User, pcpu_cids};
use warmcore_results::names::cid::OURS;
use warmcore_results::{Bound, Lane, Row, Span, Timeline};
use warmcore_types::{CpuId, CpuSet};

pub use warmcore_results::names::cid::TIMELINE as CASE;

const CPUS: u32 = 8;
/// The CPUs in the order in which their threads begin: neither ascending nor descending.
const ORDER: [u32; CPUS as usize] = [7, 0, 1, 4, 2, 6, 3, 5];
const DELAY_MS: u32 = 200;
const END_MS: u32 = 12_000;
/// The time of 20 000 passes of 1 µs, which warm an area.
const WARM_MS: u32 = 20;
const COMPACTION_MS: u32 = 100;
/// Compactions fall between bursts, not on them.
const COMPACTION_AT_MS: u32 = 50;

/// Policies that give out different ids after a pause, the simplest policy first.
const POLICIES: [&dyn Policy; 3] = [&Lowest, &KeptPerCpu, &CacheLocal];

/// An event of the schedule; the number is that of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Leave(u32),
    Compact,
    Enter(u32),
}

/// All events, by time.
fn schedule() -> Vec<(u32, Event)> {
    let mut events = Vec::new();
    for (k, cpu) in ORDER.into_iter().enumerate() {
        let first = k as u32 * DELAY_MS;
        events.extend([(first, Event::Enter(cpu)), (first + WARM_MS, Event::Leave(cpu))]);
        // A visit after a pause takes no time: the thread leaves at the moment at which it enters.
        let again = (first + WARM_MS + CPUS * DELAY_MS..END_MS).step_by((CPUS * DELAY_MS) as usize);
        events.extend(again.flat_map(|at| [(at, Event::Enter(cpu)), (at, Event::Leave(cpu))]));
    }
    events.extend((COMPACTION_AT_MS..END_MS).step_by(COMPACTION_MS as usize).map(|at| (at, Event::Compact)));
    // The sort is stable, so that a thread that enters and leaves at the same moment does so in that order.
    events.sort_by_key(|(at, _)| *at);
    events
}

/// Runs the schedule under a policy. Returns the timeline, and whose area each burst after a pause found.
fn record(policy: &'static dyn Policy) -> (Timeline, Vec<Whose>) {
    let ids = Ids::new(pcpu_cids(CPUS), 1, policy);
    let all: CpuSet = (0..CPUS).map(CpuId).collect();
    let mut users: Vec<User> = (0..CPUS).map(|token| ids.add_user(token, &all)).collect();
    let mut held: Vec<Option<HeldCid>> = (0..CPUS).map(|_| None).collect();
    let mut lanes: Vec<Lane> =
        (0..CPUS).map(|cpu| Lane { cpu, bursts: Vec::new(), kept: Vec::new() }).collect();
    let mut visits = Vec::new();
    for (at, event) in schedule() {
        match event {
            Event::Enter(cpu) => {
                let i = cpu as usize;
                let entered = ids.enter(CpuId(cpu), &mut users[i]).expect("as many ids as CPUs");
                let cid = entered.cid().0;
                lanes[i].bursts.push(Span { cid, from_ms: at, to_ms: at });
                visits.push(Visit { cpu, area: cid, at_ns: visits.len() as u64 });
                held[i] = Some(entered);
            }
            Event::Leave(cpu) => {
                let i = cpu as usize;
                if let Some(entered) = held[i].take() {
                    ids.leave(entered, &mut users[i]);
                }
                if let Some(burst) = lanes[i].bursts.last_mut() {
                    burst.to_ms = at;
                }
            }
            Event::Compact => _ = ids.compact(),
        }
        // Update the span of the id that each CPU keeps from now on: it continues, it ends, or a new span begins.
        for lane in &mut lanes {
            let now = ids.at(CpuId(lane.cpu)).map(|(cid, _)| cid.0);
            match (lane.kept.last_mut().filter(|span| span.to_ms == END_MS), now) {
                (Some(open), Some(cid)) if open.cid == cid => {}
                (open, now) => {
                    open.into_iter().for_each(|span| span.to_ms = at);
                    lane.kept.extend(now.map(|cid| Span { cid, from_ms: at, to_ms: END_MS }));
                }
            }
        }
    }
    lanes.iter_mut().for_each(|lane| lane.kept.retain(|span| span.from_ms < span.to_ms));
    users.into_iter().for_each(|user| ids.remove_user(user));
    let found = whose(&visits).into_iter().skip(CPUS as usize).collect();
    (Timeline { policy: policy.name().into(), end_ms: END_MS, lanes }, found)
}

/// The timelines of all policies, for the results.
pub fn record_all() -> Vec<Timeline> {
    POLICIES.into_iter().map(|policy| record(policy).0).collect()
}

pub(super) fn run(ctx: &CaseCtx) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for policy in POLICIES {
        let (timeline, found) = record(policy);
        let share = percent(found.iter().copied(), Whose::Own);
        let row = Row::exact(CASE, policy.name(), super::intermittent::OWN, "%", share, found.len() as u64);
        rows.push(row.promise_if(policy.name() == OURS, Bound::AtLeast, 100.0));
        let bursts = timeline.lanes.iter().flat_map(|lane| &lane.bursts);
        let used: std::collections::BTreeSet<u32> = bursts.map(|span| span.cid).collect();
        rows.push(Row::exact(CASE, policy.name(), "ids used", "ids", used.len() as f64, 1));
    }
    ctx.part_of(1, 1);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_every_burst_and_no_id_on_two_cpus_at_once() {
        for policy in POLICIES {
            let (timeline, found) = record(policy);
            assert_eq!(timeline.lanes.len(), CPUS as usize);
            let bursts = timeline.lanes.iter().map(|lane| lane.bursts.len()).sum::<usize>();
            assert_eq!(bursts, found.len() + CPUS as usize);
            let mut spans: Vec<Span> = timeline.lanes.iter().flat_map(|lane| lane.kept.clone()).collect();
            spans.sort_by_key(|span| (span.cid, span.from_ms));
            for pair in spans.windows(2).filter(|pair| pair[0].cid == pair[1].cid) {
                assert!(pair[0].to_ms <= pair[1].from_ms, "{}: {pair:?}", policy.name());
            }
            assert!(spans.iter().all(|span| span.from_ms < span.to_ms && span.to_ms <= END_MS));
        }
    }

    #[test]
    fn after_a_pause_cache_local_ids_come_back_and_the_others_do_not() {
        let own = |policy| percent(record(policy).1.into_iter(), Whose::Own);
        assert_eq!(own(&CacheLocal), 100.0);
        assert!(own(&Lowest) < 50.0 && own(&KeptPerCpu) < 50.0, "{} {}", own(&Lowest), own(&KeptPerCpu));
    }
}
