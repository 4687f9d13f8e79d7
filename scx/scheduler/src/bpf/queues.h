/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Queues: a home queue per CPU for tasks that woke, a queue per shard for tasks whose slice ended. All are ordered
 * by virtual time, whose clock is the shard's.
 *
 * The first task of a home queue arms that CPU's timer. When it fires and the task still waits, an idle CPU is
 * woken to take it: no task waits longer for a CPU while another idles, whatever was predicted.
 */
#ifndef WARM_QUEUES_H
#define WARM_QUEUES_H

static __always_inline void arm_timer(s32 cpu, u64 delay_ns)
{
	u32 key = cpu;
	struct home_timer *timer = bpf_map_lookup_elem(&home_timers, &key);

	if (timer)
		bpf_timer_start(&timer->timer, delay_ns, 0);
}

/* Sets a task's virtual time in the terms of a shard's clock, and bounds its debt, and its credit. After a sleep that is one
 * slice. A task that waited while others ran is owed more: a slice of one with a third of the weight moves the clock by three. */
static __always_inline void settle_vtime(struct task_struct *p, struct task_ctx *t, u32 shard)
{
	struct shard_ctx *s = shard_ctx(shard), *old;
	u64 debt = SET(debt_us) * US;

	if (!s)
		return;
	if (t->shard != shard) {
		old = shard_ctx(t->shard);
		t->vtime = old ? pol_vtime_moved(t->vtime, old->clock, s->clock) : s->clock;
		t->shard = shard;
	}
	t->vtime = pol_vtime_at_wake(t->vtime, s->clock, t->slept ? SET(slice_us) * US : debt, pol_charge(debt, p->scx.weight));
	t->slept = false;
}

/* Queues a task at home and arms the timer. An age of `delay_ns` lets an idle CPU take it. */
static __always_inline void queue_home(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 enq_flags, u64 delay_ns)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	bool is_first = !scx_bpf_dsq_nr_queued(cpu);

	if (c && is_first)
		c->queued_at = scx_bpf_now();
	settle_vtime(p, t, shard_of(cpu));
	t->from_queue = true;
	scx_bpf_dsq_insert_vtime(p, cpu, SET(slice_us) * US, t->vtime, enq_flags);
	if (is_first)
		arm_timer(cpu, delay_ns);
}

static __always_inline void queue_llc(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 enq_flags)
{
	u32 shard = shard_of(cpu);

	settle_vtime(p, t, shard);
	t->from_queue = true;
	scx_bpf_dsq_insert_vtime(p, DSQ_SHARD + shard, SET(slice_us) * US,
				 SET(mode) == MODE_SHARED_QUEUE ? scx_bpf_now() : t->vtime, enq_flags);
}

/* Lets an idle CPU of the LLC take the tasks of a home queue at once. */
static __always_inline void release_home_to_llc(s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (c)
		c->queued_at = now - SET(late_us) * US;
}

/* Lets any idle CPU take them at once. */
static __always_inline void release_home(s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);

	if (c)
		c->queued_at = 0;
}

/* The first task of a queue: its virtual time and weight. False if the queue is empty. */
__noinline bool peek(u64 dsq, u64 *vtime, u64 *weight)
{
	struct bpf_iter_scx_dsq it;
	struct task_struct *p;
	bool found = false;

	if (!vtime || !weight)
		return false;
	if (!bpf_iter_scx_dsq_new(&it, dsq, 0) && (p = bpf_iter_scx_dsq_next(&it))) {
		*vtime = p->scx.dsq_vtime;
		*weight = p->scx.weight;
		found = true;
	}
	bpf_iter_scx_dsq_destroy(&it);
	return found;
}

/* What decides whether an idle CPU may take a task from a home queue. A queue that was released has no age. */
static __always_inline struct pol_steal_in steal_in(struct cpu_ctx *c, s32 cpu, u64 bound_ns, u64 now)
{
	struct pol_steal_in in = {};

	if (!c)
		return in;
	in.age_ns = now - c->queued_at;
	in.bound_ns = bound_ns;
	in.left_ns = c->run_end > now ? c->run_end - now : 0;
	in.stay_ns = c->queued_at ? SET(stay_us) * US : 0;
	in.queued = scx_bpf_dsq_nr_queued(cpu);
	in.is_orphan = c->is_offline;
	return in;
}

/* Takes a task that waited for `bound_ns` from a home queue of a shard, nearest CPU first. */
__noinline bool steal_from(s32 cpu, u32 shard, u64 bound_ns, u64 now, bool only_orphans)
{
	u32 i, start = cpu >= 0 ? pos_of_cpu[IN_CPUS(cpu)] : 0;
	struct pol_steal_in in;
	bool may;

	bpf_for(i, 0, MAX_CPUS) {
		s32 victim = cpu_in_shard(shard, start, i);
		struct cpu_ctx *c;

		if (victim < 0)
			break;
		if (victim == cpu || !(c = cpu_ctx(victim)) || (only_orphans && !c->is_offline) || !scx_bpf_dsq_nr_queued(victim))
			continue;
		in = steal_in(c, victim, bound_ns, now);
		may = pol_may_steal(&in);
		log_steal(&in, POL_STEAL, may);
		if (!may) {
			count(COUNT_too_young);
			continue;
		}
		if (scx_bpf_dsq_move_to_local(victim)) {
			if (c->is_offline)
				count(COUNT_steal_orphan);
			return true;
		}
	}
	return false;
}

/* Takes a task for an idle CPU: first from its LLC, then from the others, nearest first. */
static __always_inline bool steal(s32 cpu, u32 shard, u64 now)
{
	u64 late = SET(late_us) * US, xlate = SET(xlate_us) * US;
	u32 i;

	if (!SET(steal) || SET(mode) == MODE_NOSTEAL)
		return false;
	if (steal_from(cpu, shard, late, now, false)) {
		count(COUNT_steal);
		return true;
	}
	bpf_for(i, 0, nr_shards - 1) {
		u32 other = near_shard(shard, i);
		bool same_llc = llc_of_shard[IN_SHARDS(other)] == llc_of_shard[IN_SHARDS(shard)];

		if (!same_llc && !SET(steal_llc))
			break;
		if (scx_bpf_dsq_move_to_local(DSQ_SHARD + other) ||
		    steal_from(cpu, other, same_llc ? late : xlate, now, false)) {
			count(same_llc ? COUNT_steal : COUNT_steal_llc);
			return true;
		}
	}
	return false;
}

/* Moves one task from the busiest shard here, if that makes the loads per CPU more equal. Each shard looks once in
 * `balance_us`. The moved task takes the place of the one whose slice ended, which queues behind it. */
__noinline bool balance(s32 cpu, u32 shard, u64 now)
{
	struct shard_ctx *s = shard_ctx(shard), *o;
	struct pol_balance_in in = {};
	struct pol_side here = {}, most = {}, there;
	u64 was, vtime = 0, weight = 0;
	u32 i, busiest = shard;
	bool moves;

	if (!s || nr_shards < 2 || !SET(balance) || SET(mode) == MODE_NOSTEAL)
		return false;
	was = s->balance_at;
	if (now - was < SET(balance_us) * US || __sync_val_compare_and_swap(&s->balance_at, was, now) != was)
		return false;
	here.load = s->load;
	here.cpus = s->cpus;
	most = here;
	bpf_for(i, 0, nr_shards) {
		if (i == shard || !(o = shard_ctx(i)))
			continue;
		there.load = o->load;
		there.cpus = o->cpus;
		if (!there.cpus && steal_from(cpu, i, 0, now, true))
			return true;
		if (pol_is_busier(there, most) || (!there.cpus && there.load)) {
			most = there;
			busiest = i;
		}
	}
	if (busiest == shard || !peek(DSQ_SHARD + busiest, &vtime, &weight))
		return false;
	in.here = here;
	in.there = most;
	in.weight = weight;
	moves = pol_balances(&in);
	log_balance(&in, POL_BALANCE, moves);
	if (!moves || !scx_bpf_dsq_move_to_local(DSQ_SHARD + busiest))
		return false;
	count(COUNT_balance);
	return true;
}

/* Wakes an idle CPU for the tasks of a home queue, whatever their affinity: nearest first. */
static int home_timer_fired(void *map, u32 *key, struct home_timer *timer)
{
	const struct cpumask *idle;
	s32 home = *key;
	u32 shard = shard_of(home), n, i;
	s32 found = -1;
	struct pol_steal_in in;

	count(COUNT_timer);
	if (!scx_bpf_dsq_nr_queued(home) || !SET(steal) || SET(mode) == MODE_NOSTEAL)
		return 0;
	in = steal_in(cpu_ctx(home), home, 0, scx_bpf_now());
	if (!pol_may_steal(&in)) {
		bpf_timer_start(&timer->timer, in.left_ns, 0);
		return 0;
	}
	idle = scx_bpf_get_idle_cpumask();
	bpf_for(n, 0, nr_shards) {
		u32 s = n ? near_shard(shard, n - 1) : shard;

		if (llc_of_shard[IN_SHARDS(s)] != llc_of_shard[IN_SHARDS(shard)] && !SET(steal_llc))
			break;
		bpf_for(i, 0, MAX_CPUS) {
			s32 cpu = cpu_in_shard(s, behind(home), i);

			if (cpu < 0)
				break;
			if (bpf_cpumask_test_cpu(cpu, idle) && scx_bpf_test_and_clear_cpu_idle(cpu)) {
				found = cpu;
				break;
			}
		}
		if (found >= 0)
			break;
	}
	scx_bpf_put_idle_cpumask(idle);
	if (found >= 0) {
		count(COUNT_timer_kick);
		release_home(home);
		scx_bpf_kick_cpu(found, 0);
	}
	return 0;
}

#endif
