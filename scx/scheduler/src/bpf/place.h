/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Placement: which idle CPU a task gets, and which CPU is woken for a task that waits.
 *
 * All functions claim the CPU they return: its idle bit is cleared, so that no concurrent placement gets it.
 */
#ifndef WARM_PLACE_H
#define WARM_PLACE_H

struct price {
	u64 cost, residents;
	u64 return_in_ns;
	bool sibling_busy;
};

static __always_inline bool is_priced(void)
{
	return SET(mode) == MODE_WARM;
}

/* Where a search near `cpu` starts in its shard: behind it. */
static __always_inline u32 behind(s32 cpu)
{
	return pos_of_cpu[IN_CPUS(cpu)] + 1;
}

static __always_inline struct price price_of(struct cpu_ctx *c, u64 mean_run, bool sibling_busy, u64 now)
{
	struct price price = {
		.residents = residents(c, now),
		.return_in_ns = return_in(c, now),
		.sibling_busy = sibling_busy,
	};
	struct pol_place place = {
		.residents = price.residents,
		.return_in_ns = price.return_in_ns,
		.mean_run_ns = mean_run,
		.sibling_busy = sibling_busy,
		.price_residents = is_priced() && SET(residents) && SET(hot_windows) != HOT_KEPT,
		.price_return = is_priced() && SET(hot_windows) == 1,
		.price_sibling = SET(smt),
	};

	price.cost = pol_place_cost(&place);
	log_place(&place, POL_PLACE, price.cost);
	return price;
}

/* Claims an idle CPU as it claims its home: whatever it costs. */
static __always_inline bool claim(struct task_struct *p, s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	return c && !c->is_offline && is_allowed(p, cpu) && scx_bpf_test_and_clear_cpu_idle(cpu);
}

/* Claims the cheapest idle CPU of a shard; -1 if none idles. Equal prices: the first after `start`. A concurrent
 * claim makes it search again, at most twice. */
__noinline s32 claim_in_shard(struct task_struct *p __arg_trusted, struct task_ctx *t, u32 shard, u32 start, u64 now)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	const struct cpumask *idle_cores = scx_bpf_get_idle_smtmask();
	u64 mean_run = t ? t->mean_run : 0;
	s32 claimed = -1;
	u32 try, i;

	bpf_for(try, 0, 3) {
		struct price first = {}, best = {};
		s32 first_cpu = -1, best_cpu = -1;

		bpf_for(i, 0, MAX_CPUS) {
			s32 cpu = cpu_in_shard(shard, start, i);
			struct cpu_ctx *c;
			struct price price;

			if (cpu < 0)
				break;
			if (!bpf_cpumask_test_cpu(cpu, idle) || !is_allowed(p, cpu) || !(c = cpu_ctx(cpu)) || c->is_offline)
				continue;
			price = price_of(c, mean_run, has_smt && !bpf_cpumask_test_cpu(cpu, idle_cores), now);
			if (first_cpu < 0) {
				first = price;
				first_cpu = cpu;
			}
			if (best_cpu < 0 || price.cost < best.cost) {
				best = price;
				best_cpu = cpu;
			}
		}
		if (best_cpu < 0)
			break;
		if (!scx_bpf_test_and_clear_cpu_idle(best_cpu))
			continue;
		claimed = best_cpu;
		if (best_cpu != first_cpu) {
			if (first.sibling_busy && !best.sibling_busy)
				count(COUNT_priced_smt);
			else if (first.residents > best.residents)
				count(COUNT_priced_residents);
			else
				count(COUNT_priced_return);
		}
		break;
	}
	scx_bpf_put_idle_cpumask(idle_cores);
	scx_bpf_put_idle_cpumask(idle);
	return claimed;
}

static __always_inline bool any_idle(void)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool any = !bpf_cpumask_empty(idle);

	scx_bpf_put_idle_cpumask(idle);
	return any;
}

/* How many CPUs of an LLC a wake looks at. */
__noinline u64 scan_depth(u32 llc)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	struct cpu_ctx *c;
	u64 busy = 0;
	u32 i;

	bpf_for(i, 0, MAX_CPUS) {
		s32 cpu = cpu_in_llc(llc, 0, i);

		if (cpu < 0 || !(c = cpu_ctx(cpu)))
			break;
		/* Not `||`: the verifier would follow each combination of all CPUs. */
		busy += (u32)!bpf_cpumask_test_cpu(cpu, idle) | c->is_offline;
	}
	scx_bpf_put_idle_cpumask(idle);
	return pol_scan_depth(llc_len[IN_SHARDS(llc)], busy * POL_USE_SCALE);
}

/* A step of claim_by_search. A function of its own, so that the verifier need not know what came of the steps before. */
__noinline u32 look_at(struct task_struct *p __arg_trusted, struct pol_search *search, struct pol_seen *seen, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct pol_look_in in = {};
	u32 look;

	if (!search || !seen || !c || c->is_offline)
		return POL_LOOK_ON;
	seen->cpu = cpu;
	seen->is_allowed = is_allowed(p, cpu);
	seen->is_kept = seen->may_keep && ((c->return_ns[0] > now && c->return_pid[0] != p->pid) ||
					   (c->return_ns[1] > now && c->return_pid[1] != p->pid));
	in.search = *search;
	in.seen = *seen;
	look = pol_look(search, seen);
	log_look(&in, POL_LOOK, look);
	return look;
}

/* Claims the idle CPU of the LLC of `home` that pol_look finds, as crates/sched searches. With `in_reach` no CPU is
 * kept, and the search ends at the scan depth. -1: none, or another CPU was faster. */
__noinline s32 claim_by_search(struct task_struct *p __arg_trusted, s32 home, u64 now, bool in_reach)
{
	u32 llc = llc_of(home), look = POL_LOOK_ON, i;
	u32 start = shard_first[IN_SHARDS(shard_of(home))] - llc_first[IN_SHARDS(llc)] + behind(home);
	struct pol_search search = { .first_kept = -1 };
	struct pol_seen seen = { .llc = llc, .depth = scan_depth(llc), .may_keep = !in_reach };
	u64 reach = in_reach ? seen.depth : MAX_CPUS;
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	s32 found;

	bpf_for(i, 0, MAX_CPUS) {
		s32 cpu = cpu_in_llc(llc, start, i);

		if (cpu < 0 || !pol_is_in_reach(i + 1, reach))
			break;
		if (bpf_cpumask_test_cpu(cpu, idle) && (look = look_at(p, &search, &seen, cpu, now)) != POL_LOOK_ON)
			break;
	}
	scx_bpf_put_idle_cpumask(idle);
	found = look == POL_LOOK_TAKE ? (s32)seen.cpu : (s32)search.first_kept;
	if (found < 0 || !scx_bpf_test_and_clear_cpu_idle(found))
		return -1;
	if (search.first_kept >= 0)
		count(look == POL_LOOK_TAKE ? COUNT_hot_kept : COUNT_hot_broken);
	return found;
}

/* Claims an idle CPU of the same LLC as `shard`, its own shard first. */
__noinline s32 claim_in_llc(struct task_struct *p __arg_trusted, struct task_ctx *t, u32 shard, u32 start, u64 now)
{
	s32 cpu = claim_in_shard(p, t, shard, start, now);
	u32 i;

	if (cpu >= 0)
		return cpu;
	bpf_for(i, 0, nr_shards - 1) {
		u32 other = near_shard(shard, i);

		if (llc_of_shard[IN_SHARDS(other)] != llc_of_shard[IN_SHARDS(shard)])
			break;
		cpu = claim_in_shard(p, t, other, start, now);
		if (cpu >= 0)
			return cpu;
	}
	return -1;
}

/* Claims an idle CPU of another LLC, the nearest first. */
__noinline s32 claim_elsewhere(struct task_struct *p __arg_trusted, struct task_ctx *t, u32 shard, u32 start, u64 now)
{
	s32 cpu;
	u32 i;

	bpf_for(i, 0, nr_shards - 1) {
		u32 other = near_shard(shard, i);

		if (llc_of_shard[IN_SHARDS(other)] == llc_of_shard[IN_SHARDS(shard)])
			continue;
		cpu = claim_in_shard(p, t, other, start, now);
		if (cpu >= 0)
			return cpu;
	}
	return -1;
}

/* Wakes an idle CPU for a task that waits near `cpu`. Returns whether one idled. */
static __always_inline bool kick_idle(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	u32 shard = shard_of(cpu);
	s32 idle = -1;

	if (!SET(steal) || SET(mode) == MODE_NOSTEAL || !any_idle())
		return false;
	idle = claim_in_llc(p, t, shard, behind(cpu), now);
	if (idle < 0 && SET(steal_llc))
		idle = claim_elsewhere(p, t, shard, behind(cpu), now);
	if (idle < 0)
		return false;
	count(COUNT_kick);
	scx_bpf_kick_cpu(idle, 0);
	return true;
}

/* Returns the shard where a new task starts: the one with the fewest residents per CPU. */
__noinline u32 fork_shard(struct task_struct *p __arg_trusted, u32 own, u64 now)
{
	u64 best_cost = POL_NEVER;
	u32 best = own, i;

	bpf_for(i, 0, nr_shards) {
		struct shard_ctx *s = shard_ctx(i);
		s32 cpu = cpu_in_shard(i, 0, 0);
		struct pol_count copy;
		u64 cost;

		if (!s || !is_allowed(p, cpu))
			continue;
		copy = s->residents;
		cost = pol_fork_cost(pol_residents(copy, pol_epoch(now)), s->cpus, i == own);
		if (cost < best_cost) {
			best_cost = cost;
			best = i;
		}
	}
	return best;
}

#endif
