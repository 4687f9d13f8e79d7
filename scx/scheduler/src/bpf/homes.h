/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Homes: where a task lives, which other tasks live there, and when owners come back.
 *
 * A task's home is the CPU where it ran last, or where it was just placed: a concurrent placement sees it at once.
 * A task counts as a resident of its home in each epoch in which it runs.
 */
#ifndef WARM_HOMES_H
#define WARM_HOMES_H

/* A task that sleeps longer is not expected back at any time. */
#define MAX_SLEEP_NS (16000 * US)
/* A waker that runs on longer than this after a wake counts as this. */
#define MAX_POST_NS (1000 * US)

/* Moves a count on to the epoch. The CPU that wins the exchange resets it; an addition that falls between the
 * exchange and the reset is lost, which costs one resident for one epoch. */
static __always_inline void roll_count(struct pol_count *c, u64 epoch)
{
	struct pol_count was = *c;

	if (was.epoch == epoch || __sync_val_compare_and_swap(&c->epoch, was.epoch, epoch) != was.epoch)
		return;
	was = pol_count_at(was, epoch);
	c->prev = was.prev;
	c->cur = was.cur;
}

static __always_inline void add_count(struct pol_count *c, u64 epoch, s64 cur, s64 prev)
{
	roll_count(c, epoch);
	if (cur)
		__sync_fetch_and_add(&c->cur, cur);
	if (prev)
		__sync_fetch_and_add(&c->prev, prev);
}

static __always_inline u64 residents(struct cpu_ctx *c, u64 now)
{
	struct pol_count copy = c->residents;

	return pol_residents(copy, pol_epoch(now));
}

/* Counts a task as a resident of `cpu` in this epoch, and no longer where it was counted before. */
__noinline int reside(struct task_ctx *t, s32 cpu, u64 now)
{
	u64 epoch = pol_epoch(now);
	struct cpu_ctx *c = cpu_ctx(cpu), *old;
	struct shard_ctx *s = shard_ctx(shard_of(cpu)), *old_s;
	s64 cur;

	if (!t || !c || !s || (t->epoch == epoch && t->counted_at == cpu))
		return 0;
	cur = t->epoch == epoch;
	if (!cur)
		t->was_counted = t->epoch + 1 == epoch;
	old = t->counted_at >= 0 ? cpu_ctx(t->counted_at) : NULL;
	old_s = t->counted_at >= 0 ? shard_ctx(shard_of(t->counted_at)) : NULL;
	if (old && old_s) {
		s64 moved = t->was_counted && old != c ? 1 : 0;

		if (cur || moved)
			add_count(&old->residents, epoch, -cur, -moved);
		if (old_s != s && (cur || moved))
			add_count(&old_s->residents, epoch, -cur, -moved);
		add_count(&c->residents, epoch, 1, moved);
		if (old_s != s)
			add_count(&s->residents, epoch, 1, moved);
		else if (!cur)
			add_count(&s->residents, epoch, 1, 0);
	} else {
		add_count(&c->residents, epoch, 1, 0);
		add_count(&s->residents, epoch, 1, 0);
	}
	t->epoch = epoch;
	t->counted_at = cpu;
	return 0;
}

static __always_inline void set_home(struct task_ctx *t, s32 cpu, u64 now)
{
	if (t->home != cpu) {
		t->home = cpu;
		count(COUNT_new_home);
	}
	reside(t, cpu, now);
}

/* An owner that is overdue by more than this is not expected any more. */
#define OVERDUE_NS (1000 * US)

static __always_inline u64 return_in(struct cpu_ctx *c, u64 now)
{
	u64 a = c->return_ns[0], b = c->return_ns[1];

	if (a + OVERDUE_NS <= now)
		a = 0;
	if (b + OVERDUE_NS <= now)
		b = 0;
	if (b && (!a || b < a))
		a = b;
	return !a ? POL_NEVER : a > now ? a - now : 0;
}

/* Notes that a task that falls asleep is expected back: one of two slots, its own or the earlier one. */
static __always_inline void expect_return(struct task_ctx *t, u32 pid, u64 now)
{
	struct cpu_ctx *c;
	u64 at = now + t->mean_sleep;

	t->return_at = -1;
	if (!t->mean_sleep || t->mean_sleep >= MAX_SLEEP_NS || t->home < 0 || !(c = cpu_ctx(t->home)))
		return;
	t->return_at = t->home;
	if (c->return_pid[0] == pid || (c->return_pid[1] != pid && c->return_ns[0] <= c->return_ns[1])) {
		c->return_pid[0] = pid;
		c->return_ns[0] = at;
	} else {
		c->return_pid[1] = pid;
		c->return_ns[1] = at;
	}
}

static __always_inline void forget_return(struct task_ctx *t, u32 pid)
{
	struct cpu_ctx *c = t->return_at >= 0 ? cpu_ctx(t->return_at) : NULL;

	t->return_at = -1;
	if (!c)
		return;
	if (c->return_pid[0] == pid)
		c->return_ns[0] = 0;
	if (c->return_pid[1] == pid)
		c->return_ns[1] = 0;
}

/* The wakes that a task made in a run end with its sleep: learns how long it ran on. */
static __always_inline void learn_post(struct task_ctx *t, u32 late, u64 now)
{
	u64 post;

	if (!t->woke_at[late & 1])
		return;
	post = now - t->woke_at[late & 1];
	t->post[late & 1] = pol_mean(t->post[late & 1], post > MAX_POST_NS ? MAX_POST_NS : post);
	t->woke_at[late & 1] = 0;
}

static __always_inline void learn_run(struct task_ctx *t, u64 now)
{
	if (pol_is_news(t->ran, t->mean_run))
		t->mean_run = pol_mean(t->mean_run, t->ran);
	t->ran = 0;
	learn_post(t, 0, now);
	learn_post(t, 1, now);
}

/* Adds a task to the load of a shard, and takes it out of the one where it was counted. */
static __always_inline void set_load(struct task_ctx *t, u32 shard, u64 weight)
{
	struct shard_ctx *s;

	if (t->load == weight && (!weight || t->load_shard == shard))
		return;
	if (t->load && (s = shard_ctx(t->load_shard)))
		__sync_fetch_and_add(&s->load, -t->load);
	if (weight && (s = shard_ctx(shard)))
		__sync_fetch_and_add(&s->load, weight);
	t->load = weight;
	t->load_shard = shard;
}

/* Adds the busy time of the CPUs of a shard once an epoch. */
__noinline int measure_busy(u32 shard, u64 now)
{
	struct shard_ctx *s = shard_ctx(shard);
	u64 epoch = pol_epoch(now), was, sum = 0;
	u32 i;

	if (!s)
		return 0;
	was = s->busy_epoch;
	if (was == epoch || __sync_val_compare_and_swap(&s->busy_epoch, was, epoch) != was)
		return 0;
	bpf_for(i, 0, MAX_CPUS) {
		s32 cpu = cpu_in_shard(shard, 0, i);
		struct cpu_ctx *c;

		if (cpu < 0)
			break;
		c = cpu_ctx(cpu);
		if (c)
			sum += c->busy_ns;
	}
	if (s->busy_at && now > s->busy_at && sum > s->busy_ns)
		s->busy_pct = pol_busy_pct(s->busy_pct, sum - s->busy_ns, now - s->busy_at, s->cpus);
	else
		s->busy_pct = pol_busy_pct(s->busy_pct, 0, 1, 1);
	s->busy_ns = sum;
	s->busy_at = now;
	return 0;
}

#endif
