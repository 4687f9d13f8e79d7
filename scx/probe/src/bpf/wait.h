/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A wait: from the wake, fork or preemption of a task to the switch to it. At its start the probe notes which of the
 * task's allowed CPUs idle; at its end it counts where the task runs, and whether it waited for nothing.
 *
 * Counters are per CPU and take no lock: the tracepoints that write them run with interrupts off, except
 * sched_process_exec, which has a counter of its own.
 */
#ifndef SCX_PROBE_WAIT_H
#define SCX_PROBE_WAIT_H

#include "state.h"

/* Starts the wait of a task that was woken or is new. `last_cpu`: the CPU against which its run is judged. */
static __always_inline void start_wait(struct task_struct *p, struct probe_task *t, enum wait_reason reason,
				       u32 last_cpu)
{
	struct probe_machine *m = the_machine();
	u64 now = bpf_ktime_get_ns();
	int w;

	if (!m)
		return;
	t->since = now;
	t->reason = reason;
	t->last_cpu = last_cpu;
	read_allowed(p, t->idle);
	bpf_spin_lock(&m->lock);
	advance(m, now);
	for (w = 0; w < CPU_WORDS; w++)
		t->idle[w] &= m->idle[w];
	t->any_idle_at_start = m->any_idle_ns;
	m->waiting++;
	bpf_spin_unlock(&m->lock);
	barrier();
	t->phase = PHASE_WAITING;
	if (is_counting)
		my_counts()->wakeups++;
}

/*
 * How long an allowed CPU idled during the wait of `ns` that ends now. Exact for a task that may run on all CPUs.
 * For another it is the longest idle period of one of its CPUs within the wait, and of each CPU the last is known only:
 * a lower bound. The loop over CPUs runs rarely, see `end_wait`.
 */
static __always_inline u64 ns_beside_idle(struct task_struct *p, struct probe_task *t, u64 now, u64 ns,
					  u64 any_idle_ns)
{
	u64 allowed[CPU_WORDS], longest = 0;
	bool everywhere = true;
	int w;
	u32 i;

	read_allowed(p, allowed);
	for (w = 0; w < CPU_WORDS; w++)
		if (online_cpus[w] & ~allowed[w])
			everywhere = false;
	if (everywhere) {
		longest = any_idle_ns - t->any_idle_at_start;
		return longest < ns ? longest : ns;
	}
	bpf_for(i, 0, nr_cpu_ids) {
		u32 cpu = i & (MAX_CPUS - 1);
		u64 from, to;

		if (!(allowed[cpu / 64] & (1ULL << (cpu & 63))))
			continue;
		from = idle_from[cpu];
		to = idle_to[cpu];
		if (to < from || to > now)
			to = now;
		if (from < t->since)
			from = t->since;
		if (to > from && to - from > longest)
			longest = to - from;
	}
	return longest;
}

static __always_inline u32 bucket_of(u64 ns)
{
	u32 b;

	for (b = 0; b < BUCKETS - 1 && ns >= (1024ULL << b); b++)
		;
	return b;
}

static __always_inline void count_distance(struct probe_distances *d, u32 from, u32 to)
{
	if (from == to)
		d->same++;
	else if (llc_of(from) == llc_of(to))
		d->llc++;
	else
		d->other++;
}

/* Counts a task among the group whose prefix its name has; the first one, if several match. */
static __always_inline void count_group(struct task_struct *p, struct probe_task *t, struct probe_counts *c,
					u32 cpu, u32 bucket)
{
	u64 name[2];
	u32 g;

	if (!nr_groups)
		return;
	bpf_probe_read_kernel(name, sizeof(name), p->comm);
	for (g = 0; g < MAX_GROUPS; g++) {
		if (g >= nr_groups)
			return;
		if ((name[0] & group_names[g].mask[0]) == group_names[g].name[0] &&
		    (name[1] & group_names[g].mask[1]) == group_names[g].name[1]) {
			count_distance(&c->groups[g].wakes, t->last_cpu, cpu);
			c->groups[g].histogram[bucket]++;
			return;
		}
	}
}

/* Whether the task first ran on a CPU that was busy at its wake, though an allowed CPU idled. */
static __always_inline void count_queued(struct probe_task *t, struct probe_counts *c, u32 cpu, u64 ns)
{
	u64 any = 0, llc = 0;
	int w;

	if (t->idle[(cpu & (MAX_CPUS - 1)) / 64] & (1ULL << (cpu & 63)))
		return;
	for (w = 0; w < CPU_WORDS; w++) {
		any |= t->idle[w];
		llc |= t->idle[w] & llc_cpus[llc_of(cpu)][w];
	}
	if (!any)
		return;
	c->queued_any++;
	if (llc)
		c->queued_llc++;
	if (ns > 50000)
		c->queued_over_50us++;
	if (ns > 100000)
		c->queued_over_100us++;
}

/* Counts the wait of a task that `cpu` begins to run. */
static __always_inline void end_wait(struct task_struct *p, struct probe_task *t, u32 cpu, u64 now, u64 any_idle_ns)
{
	struct probe_counts *c = my_counts();
	u64 ns = now > t->since ? now - t->since : 0;
	u64 *longest = &longest_ns[cpu & (MAX_CPUS - 1)];
	u32 bucket = bucket_of(ns) & 31;

	if (bucket >= BUCKETS)
		return;
	c->waits++;
	c->waits_ns += ns;
	if (ns > 1000000)
		c->waits_over_1ms++;
	/* A wait that is not longer cannot have been longer beside an idle CPU. */
	if (ns > *longest || ns > slice_ns) {
		u64 beside = ns_beside_idle(p, t, now, ns, any_idle_ns);

		if (beside > *longest)
			*longest = beside;
		if (beside > slice_ns)
			c->over_slice++;
	}
	if (t->reason == WAIT_PREEMPTED) {
		count_distance(&c->preempted, t->last_cpu, cpu);
		return;
	}
	count_queued(t, c, cpu, ns);
	c->histogram[bucket]++;
	if (t->reason == WAIT_FORKED) {
		count_distance(&c->forked, t->last_cpu, cpu);
		return;
	}
	count_distance(&c->wakes, t->last_cpu, cpu);
	count_group(p, t, c, cpu, bucket);
}

#endif
