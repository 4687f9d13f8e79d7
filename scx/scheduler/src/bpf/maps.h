/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * State of scx_warm: kfuncs, the topology that the loader fills in, settings, counts, and what is kept per task,
 * per CPU and per shard.
 *
 * A shard is an LLC, or a part of a large one (policy.h, pol_shard). Shards of one LLC have the same llc_of_shard.
 * CPU numbers are the kernel's; shards are dense.
 */
#ifndef WARM_MAPS_H
#define WARM_MAPS_H

#define NULL ((void *)0)
#define MAX_CPUS 512
#define MAX_SHARDS 128
#define DSQ_SHARD 4096 /* id of a shard's queue; the id of a home queue is its CPU's number */
#define US 1000ull
#define PF_KTHREAD 0x00200000
#define ENOMEM 12
/* SCX_ECODE_ACT_RESTART: the loader reads the topology again and starts over. */
#define EXIT_RESTART (1ull << 48)

s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
const struct cpumask *scx_bpf_get_idle_cpumask(void) __ksym;
const struct cpumask *scx_bpf_get_idle_smtmask(void) __ksym;
void scx_bpf_put_idle_cpumask(const struct cpumask *mask) __ksym;
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags) __ksym;
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime, u64 enq_flags) __ksym;
bool scx_bpf_dsq_move_to_local(u64 dsq_id) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
u64 scx_bpf_now(void) __ksym;
void scx_bpf_exit_bstr(s64 code, char *fmt, unsigned long long *data, u32 data_len) __ksym;
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak; /* 6.19 */
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *mask) __ksym;
bool bpf_cpumask_empty(const struct cpumask *mask) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;

/* Per CPU; only x86 has it. */
extern const int __preempt_count __ksym __weak;

/* Written by the loader before loading. */
const volatile u32 nr_cpu_ids = 1; /* numbers of possible CPUs are below this */
const volatile u32 nr_shards = 1;
const volatile u32 shard_of_cpu[MAX_CPUS]; /* MAX_SHARDS: unknown, offline when the loader looked */
const volatile u32 llc_of_shard[MAX_SHARDS];
const volatile u32 shard_first[MAX_SHARDS], shard_len[MAX_SHARDS]; /* a range of shard_cpus */
const volatile u32 llc_first[MAX_SHARDS], llc_len[MAX_SHARDS];	   /* the same for an LLC */
const volatile u32 shard_cpus[MAX_CPUS];   /* siblings are neighbours */
const volatile u32 pos_of_cpu[MAX_CPUS];   /* its position in its shard */
const volatile u32 near_shards[MAX_SHARDS * MAX_SHARDS]; /* per shard: all others, nearest first */
const volatile bool has_smt = false;

struct settings {
#define SETTING(name, init, least, greatest, unit, what) u64 name;
#include "settings.h"
#undef SETTING
};
struct settings settings SEC(".data") = {
#define SETTING(name, init, least, greatest, unit, what) .name = init,
#include "settings.h"
#undef SETTING
};
/* The settings change while the program runs: every read is a load. */
#define SET(name) (*(volatile u64 *)&settings.name)
enum { MODE_WARM, MODE_NOSTEAL, MODE_FIRST_IDLE, MODE_SHARED_QUEUE };
#define HOT_KEPT 2 /* hot_windows: an idle CPU is kept for its owner */

enum count {
#define COUNT(name, what) COUNT_##name,
#include "counts.h"
#undef COUNT
	NR_COUNTS
};

/* Per task. Written by the CPU that wakes, runs or dequeues the task; a hand-over also writes the waker's bounce. */
struct task_ctx {
	u64 run_at;	/* start of the current run on a CPU; 0 while it does not run */
	u64 ran;	/* since the wake, without the current run */
	u64 mean_run;	/* from wake to sleep */
	u64 sleep_at;	/* 0 while runnable */
	u64 mean_sleep;
	u64 woke_at[2]; /* the last wake that it made early [0] or late [1] in this run */
	u64 post[2];	/* learned time from such a wake until it sleeps */
	u64 bounce;
	u64 pair;	/* how firmly it belongs to a pair that shares a CPU */
	u64 epoch;	/* the epoch in which it was last counted as a resident */
	u64 vtime;
	u64 load;	/* its weight in the load of `load_shard`; 0 if it is not counted */
	u32 load_shard;
	u32 partner;	/* pid of the last task that woke it */
	s32 home;	/* -1 before its first placement */
	s32 counted_at; /* the CPU where it is counted as a resident, or -1 */
	s32 return_at;	/* the CPU that expects it back, or -1 */
	u32 shard;	/* the shard whose clock its vtime belongs to; MAX_SHARDS before its first wake */
	bool was_counted; /* also in the epoch before */
	bool slept;	  /* and its vtime was not bounded since */
	bool from_queue;  /* it waited in a queue, and so its vtime moves the clock */
};

/* Per CPU, written by this CPU unless said otherwise. */
struct cpu_ctx {
	/* Written by all CPUs that place a task here: atomics. */
	struct pol_count residents;
	u64 queued_at; /* since when the home queue is not empty */
	u64 return_ns[2]; /* when owners are expected back */
	u32 return_pid[2];
	u64 run_at;	/* start of the current run; 0 while idle */
	u64 run_end;	/* predicted; 0 if unknown */
	u64 run_vtime;	/* of the running task, at run_at */
	u64 run_weight;
	u64 busy_ns;	/* sum of the runs */
	u64 busy_since; /* the part of the current run that is not in busy_ns starts here */
	u64 waits, wakes; /* of tasks that this CPU woke, for the ration */
	u32 is_offline;
	u32 pad[9];
};

/* Per shard, written by all its CPUs: atomics, except for the clock, where the last writer wins. */
struct shard_ctx {
	struct pol_count residents;
	u64 load;	/* sum of the weights of runnable tasks */
	u64 clock;	/* virtual time of the last task that left a queue */
	u64 balance_at; /* the last look for a busier shard */
	u64 busy_epoch, busy_ns, busy_at;
	u64 busy_pct;
	u64 nr_offline; /* CPUs that went offline and may have left tasks in their queue */
	u64 cpus;	/* online */
	u64 pad[3];
};

struct { __uint(type, BPF_MAP_TYPE_TASK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct task_ctx); } task_ctxs SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, MAX_CPUS); __type(key, u32); __type(value, struct cpu_ctx); } cpu_ctxs SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, MAX_SHARDS); __type(key, u32); __type(value, struct shard_ctx); } shard_ctxs SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, NR_COUNTS); __type(key, u32); __type(value, u64); } counts SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 20); } decisions SEC(".maps");
struct home_timer { struct bpf_timer timer; };
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, MAX_CPUS); __type(key, u32); __type(value, struct home_timer); } home_timers SEC(".maps");

u64 nr_decisions;

/* Read by the loader. */
u64 exit_kind;
s64 exit_code;
char exit_reason[64];
char exit_msg[256];

/* Atomic: an interrupt may count between the load and the store. */
static __always_inline void count(u32 which)
{
	u64 *v = bpf_map_lookup_elem(&counts, &which);

	if (v)
		__sync_fetch_and_add(v, 1);
}

/* Log one of `sample` decisions each. The loader decides again from the same struct, natively. They are functions of their
 * own, so that the verifier looks at them once. */
#define LOGGER(field)                                                                          \
	__noinline int log_##field(const typeof(((struct pol_logged *)0)->field) *in, u32 which, u64 answer) \
	{                                                                                      \
		struct pol_logged *logged;                                                     \
                                                                                               \
		if (!in || !SET(sample) || __sync_fetch_and_add(&nr_decisions, 1) % SET(sample)) \
			return 0;                                                              \
		count(COUNT_decision);                                                         \
		logged = bpf_ringbuf_reserve(&decisions, sizeof(*logged), 0);                  \
		if (!logged) {                                                                 \
			count(COUNT_decision_lost);                                            \
			return 0;                                                              \
		}                                                                              \
		logged->which = which;                                                         \
		logged->answer = answer;                                                       \
		logged->field = *in;                                                           \
		bpf_ringbuf_submit(logged, BPF_RB_NO_WAKEUP);                                  \
		return 0;                                                                      \
	}
LOGGER(place)
LOGGER(look)
LOGGER(hand)
LOGGER(wait)
LOGGER(steal)
LOGGER(balance)
LOGGER(preempt)

static __always_inline struct task_ctx *task_ctx(struct task_struct *p)
{
	return bpf_task_storage_get(&task_ctxs, p, 0, 0);
}

static __always_inline struct cpu_ctx *cpu_ctx(s32 cpu)
{
	u32 key = cpu;

	return bpf_map_lookup_elem(&cpu_ctxs, &key);
}

static __always_inline struct shard_ctx *shard_ctx(u32 shard)
{
	return bpf_map_lookup_elem(&shard_ctxs, &shard);
}

/* An index below a power of two, in a way that the compiler cannot optimize away: the verifier then sees it. */
static __always_inline u64 masked(u64 index, u64 size)
{
	asm volatile("%0 &= %1" : "+r"(index) : "r"(size - 1));
	return index;
}
#define IN_CPUS(cpu) masked((u32)(cpu), MAX_CPUS)
#define IN_SHARDS(shard) masked((u32)(shard), MAX_SHARDS)

static __always_inline u32 shard_of(s32 cpu)
{
	return IN_SHARDS(shard_of_cpu[IN_CPUS(cpu)]);
}

static __always_inline u32 llc_of(s32 cpu)
{
	return llc_of_shard[IN_SHARDS(shard_of(cpu))];
}

/* The i-th nearest other shard. */
static __always_inline u32 near_shard(u32 shard, u32 i)
{
	return IN_SHARDS(near_shards[masked((u64)shard * MAX_SHARDS + i, MAX_SHARDS * MAX_SHARDS)]);
}

/* The CPU at a position of a shard, counted round from `start`; -1 beyond its last. */
static __always_inline s32 cpu_in_shard(u32 shard, u32 start, u32 i)
{
	u32 len = shard_len[IN_SHARDS(shard)];

	if (i >= len)
		return -1;
	return shard_cpus[IN_CPUS(shard_first[IN_SHARDS(shard)] + (start + i) % len)];
}

/* The same for an LLC, counted round from a position in its first shard. */
static __always_inline s32 cpu_in_llc(u32 llc, u32 start, u32 i)
{
	u32 len = llc_len[IN_SHARDS(llc)];

	if (i >= len)
		return -1;
	return shard_cpus[IN_CPUS(llc_first[IN_SHARDS(llc)] + (start + i) % len)];
}

/* The kernel disables migration of the current task while a BPF program runs: that one does not count. */
static __always_inline bool is_pinned(struct task_struct *p)
{
	return p->nr_cpus_allowed == 1 || p->migration_disabled > (bpf_get_current_task_btf() == p ? 1 : 0);
}

static __always_inline bool is_allowed(struct task_struct *p, s32 cpu)
{
	return cpu >= 0 && cpu < MAX_CPUS && bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

#endif
