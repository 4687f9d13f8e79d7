/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The steps of a wake, each with what it reads and what it learns: hand-over to a partner's CPU, the start on a
 * claimed CPU, the first CPU of a new task, and the rationed waits. warm_select_cpu (warm.bpf.c) has their order.
 */
#ifndef WARM_WAKE_H
#define WARM_WAKE_H

static __always_inline bool idles(s32 cpu)
{
	const struct cpumask *idle = scx_bpf_get_idle_cpumask();
	bool is_idle = bpf_cpumask_test_cpu(cpu, idle);

	scx_bpf_put_idle_cpumask(idle);
	return is_idle;
}

/* The bits of the preemption count that are set in an NMI, in a hard interrupt, and while a softirq is served. Kernels that
 * count there how often interrupts were disabled do so in bits 16 to 23, where others count hard interrupts and NMIs. */
#define IN_INTERRUPT 0x1fff0100

/* Whether the current task is the waker. In a timer interrupt it is a bystander. A synchronous wake says that it is, also
 * one that a socket makes in a softirq; the wakes of a futex are never synchronous. */
static __always_inline bool is_waker(u64 wake_flags)
{
	if (wake_flags & SCX_WAKE_SYNC)
		return true;
	return bpf_ksym_exists(&__preempt_count) && !(*(int *)bpf_this_cpu_ptr(&__preempt_count) & IN_INTERRUPT);
}

/* Learns from a wake by the current task, and returns whether the wakee should run next on the waker's CPU. */
static __noinline enum pol_hand try_partner(struct task_struct *p, struct task_ctx *t, s32 me, s32 home, u64 now)
{
	struct task_struct *waker = bpf_get_current_task_btf();
	struct task_ctx *w;
	struct shard_ctx *s = shard_ctx(shard_of(home));
	struct pol_hand_in in = {};
	enum pol_hand hand;
	u32 late;

	if (!t || !waker->pid || waker->pid == p->pid || (waker->flags & PF_KTHREAD) ||
	    !(w = bpf_task_storage_get(&task_ctxs, waker, 0, 0)))
		return POL_HAND_STRANGER;
	in.is_partner = t->partner == (u32)waker->pid;
	t->partner = waker->pid;
	late = w->run_at && pol_is_late(now - w->run_at + w->ran, w->mean_run);
	w->woke_at[late & 1] = now;
	in.post_ns = w->post[late & 1];
	in.hand_ns = SET(hand_us) * US;
	if (in.is_partner) {
		bool is_charged = in.post_ns >= in.hand_ns && me == home;

		t->bounce = pol_bounce(t->bounce, is_charged);
		if (is_charged) /* it was handed over to here, and must not be again */
			w->bounce = pol_bounce(w->bounce + 1, true);
	}
	in.is_near = llc_of(me) == llc_of(home);
	in.is_allowed = is_allowed(p, me);
	in.home_idles = is_allowed(p, home) && idles(home);
	in.busy_pct = s ? s->busy_pct : 0;
	in.hand_busy_pct = SET(hand_busy);
	in.pair = t->pair;
	in.hand_pair = SET(hand_pair);
	in.queued = scx_bpf_dsq_nr_queued(me);
	in.bounce = t->bounce;
	hand = pol_hand_over(&in);
	log_hand(&in, POL_HAND, hand);
	t->pair = pol_pair(t->pair, hand);
	if (hand != POL_HAND_STRANGER)
		w->pair = pol_pair(w->pair, hand);
	return hand;
}

static __always_inline void count_hand(enum pol_hand hand)
{
	switch (hand) {
	case POL_HAND_FAR: count(COUNT_hand_far); break;
	case POL_HAND_QUEUED: count(COUNT_hand_queued); break;
	case POL_HAND_RUNS_ON: count(COUNT_hand_runs_on); break;
	case POL_HAND_NEW: count(COUNT_hand_new); break;
	case POL_HAND_IDLE: count(COUNT_hand_idle); break;
	case POL_HAND_BOUNCES: count(COUNT_hand_bounces); break;
	default: break;
	}
}

/* Starts a task on the CPU that was claimed for it. */
static __always_inline s32 start_on(struct task_struct *p, struct task_ctx *t, s32 cpu, u64 now)
{
	set_home(t, cpu, now);
	settle_vtime(p, t, shard_of(cpu));
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SET(slice_us) * US, 0);
	return cpu;
}

static __always_inline s32 place_fork(struct task_struct *p, struct task_ctx *t, s32 prev_cpu, u64 now)
{
	u32 own = shard_of(prev_cpu), shard = own;
	s32 cpu;

	if (SET(fork_place) && is_priced())
		shard = fork_shard(p, own, now);
	cpu = claim_in_llc(p, t, shard, behind(prev_cpu), now);
	if (cpu < 0)
		cpu = claim_elsewhere(p, t, shard, behind(prev_cpu), now);
	if (cpu >= 0) {
		count(COUNT_fork);
		if (llc_of(cpu) != llc_of(prev_cpu))
			count(COUNT_fork_other_llc);
		return start_on(p, t, cpu, now);
	}
	if (shard == own)
		return prev_cpu;
	cpu = cpu_in_shard(shard, 0, 0);
	if (!is_allowed(p, cpu))
		return prev_cpu;
	count(COUNT_fork_other_llc);
	reside(t, cpu, now);
	return cpu;
}

/* Whether a wakee waits for its busy home (`llc_is_full` false) or for its full LLC. */
static __always_inline enum pol_wait may_wait(struct task_ctx *t, struct cpu_ctx *self, s32 home, bool llc_is_full, u64 now)
{
	struct shard_ctx *s = shard_ctx(shard_of(home));
	struct cpu_ctx *c = cpu_ctx(home);
	struct pol_wait_in in = {};
	enum pol_wait wait;

	if (!self || !c || !s || c->is_offline || !is_priced())
		return POL_WAIT_NO;
	in.left_ns = c->run_end > now ? c->run_end - now : 0;
	in.queued = scx_bpf_dsq_nr_queued(home);
	in.wait_ns = SET(wait_us) * US;
	in.waits = self->waits;
	in.wakes = self->wakes;
	in.ration_pct = (llc_is_full ? SET(wait_llc) : SET(wait_home)) ? SET(wait_pct) : 0;
	in.pair = t->pair;
	in.pair_ns = SET(pair_us) * US;
	in.busy_pct = s->busy_pct;
	in.pair_busy_pct = SET(pair_busy);
	wait = llc_is_full ? pol_wait_llc(&in) : pol_wait_home(&in);
	log_wait(&in, llc_is_full ? POL_WAIT_LLC : POL_WAIT_HOME, wait);
	if (wait == POL_WAIT_RATION)
		__sync_fetch_and_add(&self->waits, 1);
	if (wait == POL_WAIT_PAIR)
		count(COUNT_wait_pair);
	return wait;
}

#endif
