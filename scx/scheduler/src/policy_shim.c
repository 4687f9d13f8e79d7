/* SPDX-License-Identifier: GPL-2.0-only */
/* The native copy of policy.h: the loader asks it for shards, tests/policy.rs tests it. The arguments are the
 * fields of the policy's structs, in their order. */
#include <stdbool.h>
#include <stdint.h>

typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

#include "policy.h"

bool warm_is_news(u64 sample, u64 mean) { return pol_is_news(sample, mean); }
u64 warm_mean(u64 mean, u64 sample) { return pol_mean(mean, sample); }
bool warm_is_late(u64 ran, u64 mean) { return pol_is_late(ran, mean); }
u64 warm_epoch(u64 now) { return pol_epoch(now); }

u64 warm_residents(u64 epoch_of_count, s64 cur, s64 prev, u64 epoch)
{
	return pol_residents((struct pol_count){ epoch_of_count, cur, prev }, epoch);
}

u64 warm_place_cost(u64 residents, u64 return_in, u64 mean_run, bool sibling_busy, u32 priced)
{
	struct pol_place p = { residents, return_in, mean_run, sibling_busy, priced & 1, priced & 2, priced & 4 };

	return pol_place_cost(&p);
}

u32 warm_hand_over(bool is_partner, bool is_near, bool home_idles, u64 busy, u64 hand_pair, u64 pair, u64 queued, u64 post, u64 hand, u64 bounce)
{
	struct pol_hand_in h = {
		.is_partner = is_partner, .is_near = is_near, .is_allowed = true, .home_idles = home_idles, .busy_pct = busy,
		.hand_busy_pct = 40, .hand_pair = hand_pair, .pair = pair, .queued = queued, .post_ns = post, .hand_ns = hand, .bounce = bounce,
	};

	return pol_hand_over(&h);
}

u64 warm_bounce(u64 bounce, bool is_charged) { return pol_bounce(bounce, is_charged); }

u64 warm_pair(u64 pair, u32 hand) { return pol_pair(pair, hand); }

u32 warm_wait(bool llc_is_full, u64 left, u64 queued, u64 waits, u64 pair, u64 busy)
{
	struct pol_wait_in w = {
		.left_ns = left, .queued = queued, .wait_ns = 400000, .waits = waits, .wakes = 100, .ration_pct = 5,
		.pair = pair, .pair_ns = 2000000, .busy_pct = busy, .pair_busy_pct = 60,
	};

	return llc_is_full ? pol_wait_llc(&w) : pol_wait_home(&w);
}

bool warm_may_steal(u64 age, u64 bound, u64 left, u64 stay, u64 queued, bool is_orphan)
{
	struct pol_steal_in s = { age, bound, left, stay, queued, is_orphan };

	return pol_may_steal(&s);
}

bool warm_llc_first(u64 llc_vtime, u64 home_vtime) { return pol_llc_first(llc_vtime, home_vtime); }

bool warm_balances(u64 load, u64 cpus, u64 load_there, u64 cpus_there, u64 weight)
{
	struct pol_balance_in b = { { load, cpus }, { load_there, cpus_there }, weight };

	return pol_balances(&b);
}

bool warm_is_before(u64 a, u64 b) { return pol_is_before(a, b); }
u64 warm_charge(u64 ran, u64 weight) { return pol_charge(ran, weight); }

u64 warm_vtime_at_wake(u64 vtime, u64 clock, u64 credit, u64 debt)
{
	return pol_vtime_at_wake(vtime, clock, credit, debt);
}

u64 warm_vtime_alone(u64 vtime, u64 clock, u64 charge) { return pol_vtime_alone(vtime, clock, charge); }
u64 warm_vtime_moved(u64 vtime, u64 from, u64 to) { return pol_vtime_moved(vtime, from, to); }
bool warm_runs_on(u64 vtime, u64 first) { return pol_runs_on(vtime, first); }

bool warm_preempts(u64 ran, u64 min_run, u64 curr, u64 wakee, u64 margin)
{
	struct pol_preempt p = { ran, min_run, curr, wakee, margin };

	return pol_preempts(&p);
}

u64 warm_busy_pct(u64 old, u64 busy, u64 period, u64 cpus) { return pol_busy_pct(old, busy, period, cpus); }
u32 warm_nr_shards(u32 cpus, u32 max) { return pol_nr_shards(cpus, max); }
u32 warm_shard(u32 index, u32 cpus, u32 max) { return pol_shard(index, cpus, max); }
u64 warm_fork_cost(u64 residents, u64 cpus, bool is_own) { return pol_fork_cost(residents, cpus, is_own); }

u64 warm_scan_depth(u64 cpus, u64 used) { return pol_scan_depth(cpus, used); }
bool warm_is_in_reach(u64 steps, u64 depth) { return pol_is_in_reach(steps, depth); }
u32 warm_look(struct pol_search *search, const struct pol_seen *seen) { return pol_look(search, seen); }

/* The record's size, and what deciding again gives. */
u64 warm_logged_size(void) { return sizeof(struct pol_logged); }
u64 warm_replay(const struct pol_logged *l) { return pol_replay(l); }
