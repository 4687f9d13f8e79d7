// SPDX-License-Identifier: GPL-2.0-only
/*
 * scx_warm: keeps tasks on the CPU whose caches have their data, without letting a CPU idle while a task waits.
 *
 * A wake goes through these steps, and the first that applies decides:
 *   1. hand-over: the waker is the task's partner and is about to sleep: its CPU's home queue; not where the home idles
 *      in a shard that is not busy;
 *   2. the home idles: the home;
 *   3. the home is about to idle: wait there, within a ration, or without one if a pair would move;
 *   4. the cheapest idle CPU of the LLC (policy.h, pol_place_cost);
 *   5. the LLC is full: wait at home, within the ration, for whichever of its CPUs idles first;
 *   6. the cheapest idle CPU of another LLC, nearest first;
 *   7. no CPU idles: the home queue.
 * A task whose slice ended queues in its shard's queue. A CPU serves its home queue, its shard's queue, runs on, or
 * takes a task from elsewhere, in this order.
 *
 * policy.h has the decisions; maps.h the state; homes.h residents and learning; place.h idle CPUs; queues.h queues;
 * wake.h the steps of a wake.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>
#include "policy.h"
#include "maps.h"
#include "homes.h"
#include "place.h"
#include "queues.h"
#include "wake.h"

char _license[] SEC("license") = "GPL";

/* ---- Wakes ---- */

SEC("struct_ops/warm_select_cpu")
s32 BPF_PROG(warm_select_cpu, struct task_struct *p, s32 prev_cpu, u64 wake_flags)
{
	struct task_ctx *t = task_ctx(p);
	s32 me = bpf_get_smp_processor_id(), home = prev_cpu, cpu;
	struct cpu_ctx *self = cpu_ctx(me);
	u64 now = scx_bpf_now(), mode = SET(mode);
	u32 shard = shard_of(home);
	enum pol_wait wait;

	if (!t)
		return prev_cpu;
	if (!(wake_flags & SCX_WAKE_TTWU))
		return is_pinned(p) ? prev_cpu : place_fork(p, t, prev_cpu, now);
	count(COUNT_wakes);
	if (self)
		__sync_fetch_and_add(&self->wakes, 1);
	if (mode == MODE_NOSTEAL)
		return home;
	if (mode == MODE_WARM && SET(hand_over) && is_waker(wake_flags) && !is_pinned(p)) {
		enum pol_hand hand = try_partner(p, t, me, home, now);

		if (hand == POL_HAND_YES) {
			count(COUNT_hand_over);
			queue_home(p, t, me, 0, SET(hand_us) * US);
			return me;
		}
		count_hand(hand);
	}
	if (claim(p, home)) {
		count(COUNT_home);
		return start_on(p, t, home, now);
	}
	if (is_pinned(p))
		return home;
	if (!any_idle()) {
		count(COUNT_no_idle);
		return home;
	}
	wait = may_wait(t, self, home, false, now);
	if (wait != POL_WAIT_NO) {
		if (wait == POL_WAIT_RATION)
			count(COUNT_wait_home);
		queue_home(p, t, home, 0, (wait == POL_WAIT_PAIR ? SET(pair_us) : SET(wait_us)) * US);
		return home;
	}
	if (mode == MODE_SHARED_QUEUE || (is_priced() && SET(hot_windows) == HOT_KEPT))
		cpu = claim_by_search(p, home, now, mode == MODE_SHARED_QUEUE);
	else
		cpu = claim_in_llc(p, t, shard, behind(home), now);
	if (cpu >= 0) {
		count(COUNT_llc);
		return start_on(p, t, cpu, now);
	}
	if (mode == MODE_SHARED_QUEUE) {
		count(COUNT_no_idle);
		return home;
	}
	wait = may_wait(t, self, home, true, now);
	if (wait != POL_WAIT_NO) {
		if (wait == POL_WAIT_RATION)
			count(COUNT_wait_llc);
		queue_home(p, t, home, 0, SET(wait_us) * US);
		release_home_to_llc(home, now);
		return home;
	}
	cpu = claim_elsewhere(p, t, shard, behind(home), now);
	if (cpu >= 0) {
		count(COUNT_xllc);
		return start_on(p, t, cpu, now);
	}
	count(COUNT_no_idle);
	return home;
}

/* ---- Queues ---- */

static __always_inline void try_preempt(struct task_ctx *t, s32 cpu, u64 now)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct pol_preempt in = {};
	bool preempts;

	if (!c || !c->run_at || !SET(preempt) || !is_priced())
		return;
	in.ran_ns = now - c->run_at;
	in.min_run_ns = in.margin_ns = SET(preempt_us) * US;
	in.curr_vtime = c->run_vtime + pol_charge(in.ran_ns, c->run_weight);
	in.wakee_vtime = t->vtime;
	preempts = pol_preempts(&in);
	log_preempt(&in, POL_PREEMPT, preempts);
	if (!preempts)
		return;
	count(COUNT_preempt);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

SEC("struct_ops/warm_enqueue")
void BPF_PROG(warm_enqueue, struct task_struct *p, u64 enq_flags)
{
	s32 cpu = scx_bpf_task_cpu(p);
	struct task_ctx *t = task_ctx(p);
	bool is_wake = enq_flags & SCX_ENQ_WAKEUP;
	u64 now = scx_bpf_now(), mode = SET(mode);

	if (!t) {
		scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SET(slice_us) * US, enq_flags);
		return;
	}
	if (is_pinned(p)) {
		count(COUNT_queue_pinned);
		/* A kernel thread of this CPU runs at once, and shares like all others after its first slice. */
		if (is_wake && (p->flags & PF_KTHREAD))
			scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | cpu, SET(slice_us) * US, enq_flags);
		else
			queue_home(p, t, cpu, enq_flags, SET(late_us) * US);
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		if (is_wake)
			try_preempt(t, cpu, now);
		return;
	}
	if (mode == MODE_NOSTEAL || (is_wake && mode != MODE_SHARED_QUEUE)) {
		count(COUNT_queue_home);
		queue_home(p, t, cpu, enq_flags, SET(late_us) * US);
		if (mode == MODE_NOSTEAL)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	} else {
		count(COUNT_queue_llc);
		queue_llc(p, t, cpu, enq_flags);
	}
	/* A CPU may have found both queues empty and gone idle since select_cpu looked: look again, now that the task
	 * is queued. That CPU may take it at once. */
	if (kick_idle(p, t, cpu, now))
		release_home(cpu);
	else if (is_wake)
		try_preempt(t, cpu, now);
}

/* The running task's slice starts anew. */
static __always_inline void run_on(struct task_struct *p)
{
	count(COUNT_run_on);
	if (bpf_ksym_exists(scx_bpf_task_set_slice))
		scx_bpf_task_set_slice(p, SET(slice_us) * US);
	else
		p->scx.slice = SET(slice_us) * US;
}

SEC("struct_ops/warm_dispatch")
void BPF_PROG(warm_dispatch, s32 cpu, struct task_struct *prev)
{
	bool is_runnable = prev && (prev->scx.flags & SCX_TASK_QUEUED), llc_first;
	struct task_ctx *t = is_runnable ? task_ctx(prev) : NULL;
	u32 shard = shard_of(cpu);
	struct shard_ctx *s = shard_ctx(shard);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 now = scx_bpf_now(), home_vtime = 0, llc_vtime = 0, weight = 0;
	bool at_home, in_llc;

	if (!s || !c)
		return;
	measure_busy(shard, now);
	if (s->nr_offline && steal_from(cpu, shard, 0, now, true))
		return;
	if (balance(cpu, shard, now))
		return;
	at_home = scx_bpf_dsq_nr_queued(cpu) && peek(cpu, &home_vtime, &weight);
	in_llc = scx_bpf_dsq_nr_queued(DSQ_SHARD + shard) && peek(DSQ_SHARD + shard, &llc_vtime, &weight);
	llc_first = in_llc && (!at_home || pol_llc_first(llc_vtime, home_vtime));
	if (t && t->run_at && (at_home || in_llc) &&
	    pol_runs_on(t->vtime + pol_charge(now - t->run_at, prev->scx.weight), llc_first ? llc_vtime : home_vtime)) {
		run_on(prev);
		return;
	}
	if (at_home && !llc_first && scx_bpf_dsq_move_to_local(cpu)) {
		count(COUNT_run_home);
		return;
	}
	if (scx_bpf_dsq_move_to_local(DSQ_SHARD + shard)) {
		count(COUNT_run_llc);
		if (at_home && llc_first)
			count(COUNT_run_llc_first);
		return;
	}
	/* The LLC's first task may not run here, or another CPU took it. */
	if (scx_bpf_dsq_move_to_local(cpu)) {
		count(COUNT_run_home);
		return;
	}
	if (is_runnable) {
		if (t && t->run_at) {
			t->vtime = pol_vtime_alone(t->vtime, s->clock, pol_charge(now - t->run_at, prev->scx.weight));
			c->run_vtime = t->vtime;
		}
		run_on(prev);
	} else {
		steal(cpu, shard, now);
	}
}

SEC("struct_ops/warm_tick")
void BPF_PROG(warm_tick, struct task_struct *p)
{
	s32 cpu = bpf_get_smp_processor_id();
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct task_ctx *t = task_ctx(p);
	u64 now = scx_bpf_now();

	if (!c || !t)
		return;
	if (c->busy_since) {
		c->busy_ns += now - c->busy_since;
		c->busy_since = now;
	}
	/* A task waits for this home, and this run is long: an idle CPU takes the task. */
	if (scx_bpf_dsq_nr_queued(cpu) && kick_idle(p, t, cpu, now))
		release_home(cpu);
}

/* ---- Runs ---- */

SEC("struct_ops/warm_runnable")
void BPF_PROG(warm_runnable, struct task_struct *p, u64 enq_flags)
{
	struct task_ctx *t = task_ctx(p);
	u64 slept;

	if (!t)
		return;
	set_load(t, shard_of(scx_bpf_task_cpu(p)), p->scx.weight);
	if (!(enq_flags & SCX_ENQ_WAKEUP) || !t->sleep_at)
		return;
	slept = scx_bpf_now() - t->sleep_at;
	t->sleep_at = 0;
	if (slept > MAX_SLEEP_NS)
		slept = MAX_SLEEP_NS;
	/* Compared with the run: a sleep much shorter than a run was a spurious wake's. */
	if (pol_is_news(slept, t->mean_run))
		t->mean_sleep = pol_mean(t->mean_sleep, slept);
	forget_return(t, p->pid);
}

SEC("struct_ops/warm_running")
void BPF_PROG(warm_running, struct task_struct *p)
{
	s32 cpu = scx_bpf_task_cpu(p);
	u32 shard = shard_of(cpu);
	struct task_ctx *t = task_ctx(p);
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct shard_ctx *s = shard_ctx(shard);
	u64 now = scx_bpf_now();

	if (!t || !c || !s)
		return;
	settle_vtime(p, t, shard);
	if (t->from_queue && pol_is_before(s->clock, t->vtime))
		s->clock = t->vtime;
	t->from_queue = false;
	set_load(t, shard, p->scx.weight);
	set_home(t, cpu, now);
	t->run_at = now;
	c->run_at = now;
	c->busy_since = now;
	c->run_vtime = t->vtime;
	c->run_weight = p->scx.weight;
	c->run_end = t->mean_run > t->ran ? now + t->mean_run - t->ran : 0;
}

SEC("struct_ops/warm_stopping")
void BPF_PROG(warm_stopping, struct task_struct *p, bool runnable)
{
	struct task_ctx *t = task_ctx(p);
	struct cpu_ctx *c = cpu_ctx(scx_bpf_task_cpu(p));
	u64 now = scx_bpf_now(), ran;

	if (!t || !t->run_at)
		return;
	ran = now - t->run_at;
	t->run_at = 0;
	t->ran += ran;
	t->vtime += pol_charge(ran, p->scx.weight);
	if (c) {
		c->busy_ns += now - c->busy_since;
		c->busy_since = 0;
		c->run_at = 0;
		c->run_end = 0;
	}
	if (!runnable)
		learn_run(t, now);
}

SEC("struct_ops/warm_quiescent")
void BPF_PROG(warm_quiescent, struct task_struct *p, u64 deq_flags)
{
	struct task_ctx *t = task_ctx(p);

	if (!t)
		return;
	set_load(t, 0, 0);
	if (!(deq_flags & SCX_DEQ_SLEEP))
		return;
	t->slept = true;
	t->sleep_at = scx_bpf_now();
	expect_return(t, p->pid, t->sleep_at);
}

/* ---- Tasks and CPUs ---- */

SEC("struct_ops/warm_set_cpumask")
void BPF_PROG(warm_set_cpumask, struct task_struct *p, const struct cpumask *mask)
{
	struct task_ctx *t = task_ctx(p);

	if (!t || t->home < 0 || t->home >= MAX_CPUS || bpf_cpumask_test_cpu(t->home, mask))
		return;
	forget_return(t, p->pid);
	t->home = -1;
	count(COUNT_cpumask);
}

SEC("struct_ops/warm_set_weight")
void BPF_PROG(warm_set_weight, struct task_struct *p, u32 weight)
{
	struct task_ctx *t = task_ctx(p);

	if (t && t->load)
		set_load(t, t->load_shard, weight);
}

SEC("struct_ops.s/warm_init_task")
s32 BPF_PROG(warm_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_ctx *t = bpf_task_storage_get(&task_ctxs, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	t->home = -1;
	t->counted_at = -1;
	t->return_at = -1;
	t->shard = MAX_SHARDS;
	return 0;
}

SEC("struct_ops/warm_exit_task")
void BPF_PROG(warm_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_ctx *t = task_ctx(p);

	if (t)
		set_load(t, 0, 0);
}

SEC("struct_ops/warm_cpu_online")
void BPF_PROG(warm_cpu_online, s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct shard_ctx *s = shard_ctx(shard_of(cpu));

	if (!c || !s)
		return;
	count(COUNT_online);
	if (cpu < 0 || cpu >= MAX_CPUS || shard_of_cpu[IN_CPUS(cpu)] >= MAX_SHARDS) {
		static char why[] = "a CPU came online that was offline at the start: its caches are not known";
		unsigned long long none = 0;

		scx_bpf_exit_bstr(EXIT_RESTART, why, &none, sizeof(none));
		return;
	}
	if (c->is_offline) {
		c->is_offline = 0;
		__sync_fetch_and_add(&s->nr_offline, (u64)-1);
		__sync_fetch_and_add(&s->cpus, 1);
	}
}

/* The kernel puts no task in the queues of an offline CPU; those that wait there are taken by the other CPUs of the
 * shard, before anything else. */
SEC("struct_ops/warm_cpu_offline")
void BPF_PROG(warm_cpu_offline, s32 cpu)
{
	struct cpu_ctx *c = cpu_ctx(cpu);
	u32 shard = shard_of(cpu), i;
	struct shard_ctx *s = shard_ctx(shard);

	if (!c || !s || c->is_offline)
		return;
	count(COUNT_offline);
	c->is_offline = 1;
	__sync_fetch_and_add(&s->nr_offline, 1);
	__sync_fetch_and_add(&s->cpus, (u64)-1);
	bpf_for(i, 0, MAX_CPUS) {
		s32 other = cpu_in_shard(shard, 0, i);
		struct cpu_ctx *o;

		if (other < 0)
			break;
		if (other != cpu && (o = cpu_ctx(other)) && !o->is_offline)
			scx_bpf_kick_cpu(other, 0);
	}
}

SEC("struct_ops.s/warm_init")
s32 BPF_PROG(warm_init)
{
	u32 i;
	s32 err;

	bpf_for(i, 0, nr_shards) {
		struct shard_ctx *s = shard_ctx(i);

		if (s)
			s->cpus = shard_len[IN_SHARDS(i)];
		err = scx_bpf_create_dsq(DSQ_SHARD + i, -1);
		if (err)
			return err;
	}
	bpf_for(i, 0, nr_cpu_ids) {
		u32 key = i;
		struct home_timer *timer = bpf_map_lookup_elem(&home_timers, &key);

		err = scx_bpf_create_dsq(i, -1);
		if (err)
			return err;
		if (!timer)
			continue;
		bpf_timer_init(&timer->timer, &home_timers, 1 /* CLOCK_MONOTONIC */);
		bpf_timer_set_callback(&timer->timer, home_timer_fired);
	}
	return 0;
}

SEC("struct_ops/warm_exit")
void BPF_PROG(warm_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_reason, sizeof(exit_reason), info->reason);
	bpf_probe_read_kernel_str(exit_msg, sizeof(exit_msg), info->msg);
	exit_code = info->exit_code;
	exit_kind = info->kind;
}

SEC(".struct_ops.link")
struct sched_ext_ops warm_ops = {
	.select_cpu = (void *)warm_select_cpu,
	.enqueue = (void *)warm_enqueue,
	.dispatch = (void *)warm_dispatch,
	.tick = (void *)warm_tick,
	.runnable = (void *)warm_runnable,
	.running = (void *)warm_running,
	.stopping = (void *)warm_stopping,
	.quiescent = (void *)warm_quiescent,
	.set_cpumask = (void *)warm_set_cpumask,
	.set_weight = (void *)warm_set_weight,
	.init_task = (void *)warm_init_task,
	.exit_task = (void *)warm_exit_task,
	.cpu_online = (void *)warm_cpu_online,
	.cpu_offline = (void *)warm_cpu_offline,
	.init = (void *)warm_init,
	.exit = (void *)warm_exit,
	.flags = SCX_OPS_KEEP_BUILTIN_IDLE,
	.timeout_ms = 10000,
	.name = "warm",
};
