/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the probe knows of tasks and CPUs: which CPUs idle, how many tasks wait, and the phase of each task.
 *
 * A task's storage holds the phase that the tracepoints reported last. The set of idle CPUs, the number of waiting
 * tasks and the integrals stand in one map value under one spin lock; a switch and a wake take it once each.
 */
#ifndef SCX_PROBE_STATE_H
#define SCX_PROBE_STATE_H

#define PF_KTHREAD 0x00200000

/* Set by the loader before it loads the program. */
const volatile u32 nr_cpu_ids = 1;	/* the largest CPU number + 1 */
const volatile u32 probe_tgid;		/* the loader's own threads are not counted */
const volatile u32 nr_groups;
const volatile u64 slice_ns;		/* a wait beside an idle CPU is `over_slice` above this */
const volatile u32 cpu_llc[MAX_CPUS];
const volatile u64 llc_cpus[MAX_LLCS][CPU_WORDS];
const volatile u64 online_cpus[CPU_WORDS];
const volatile struct probe_group_name group_names[MAX_GROUPS];

/* Read by the loader; `counts` and `longest_ns` by CPU. */
struct probe_counts counts[MAX_CPUS];
u64 longest_ns[MAX_CPUS];
struct probe_integrals integrals;

/* Whether a command runs. Written by `start` and `stop`, read by the tracepoints. */
static volatile u32 is_counting;

/*
 * The last idle period of each CPU, in ns; it lasts still if it ends before it starts. Written on that CPU, except once
 * by `start`; read on all. A reader that sees the new start with the old end takes the period as lasting, which it is.
 */
static volatile u64 idle_from[MAX_CPUS];
static volatile u64 idle_to[MAX_CPUS];

enum task_phase {
	PHASE_UNKNOWN,	/* not seen since the probe was attached */
	PHASE_ASLEEP,
	PHASE_WAITING,
	PHASE_RUNNING,
};

enum wait_reason {
	WAIT_WOKEN,
	WAIT_FORKED,
	WAIT_PREEMPTED,
};

struct probe_task {
	u64 since;		/* start of the wait, ns */
	u64 any_idle_at_start;	/* `any_idle_ns` at the start of the wait */
	u64 idle[CPU_WORDS];	/* the allowed CPUs that idled then; not set for WAIT_PREEMPTED */
	u32 last_cpu;
	u8 phase;
	u8 reason;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct probe_task);
} tasks SEC(".maps");

struct probe_machine {
	struct bpf_spin_lock lock;
	u32 nr_idle;
	u64 last;		/* ns; the integrals reach up to here */
	s64 waiting;
	u64 any_idle_ns;	/* time during which some CPU idled */
	struct probe_integrals sums;
	u64 idle[CPU_WORDS];
	u64 known[CPU_WORDS];	/* CPUs whose bit in `idle` is true */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct probe_machine);
} machines SEC(".maps");

static __always_inline struct probe_machine *the_machine(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&machines, &zero);
}

static __always_inline struct probe_counts *my_counts(void)
{
	return &counts[bpf_get_smp_processor_id() & (MAX_CPUS - 1)];
}

static __always_inline u32 llc_of(u32 cpu)
{
	return cpu_llc[cpu & (MAX_CPUS - 1)] & (MAX_LLCS - 1);
}

/* Whether counts include the task: a user task, not the idle task (pid 0), and not a thread of the loader. */
static __always_inline bool is_counted(struct task_struct *p)
{
	return p->pid && !(p->flags & PF_KTHREAD) && p->tgid != probe_tgid;
}

static __always_inline struct probe_task *task_of(struct task_struct *p)
{
	struct probe_task *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t && is_counting)
		my_counts()->lost++;
	return t;
}

/* Reads the CPUs on which the task may run now, which are fewer while it has migration disabled. */
static __always_inline void read_allowed(struct task_struct *p, u64 *words)
{
	u32 size = bpf_core_type_size(struct cpumask);

	__builtin_memset(words, 0, CPU_WORDS * sizeof(u64));
	if (size > CPU_WORDS * sizeof(u64))
		size = CPU_WORDS * sizeof(u64);
	bpf_probe_read_kernel(words, size, p->cpus_ptr);
}

/*
 * Brings the integrals up to `now`. The caller holds the lock, but read the clock before it took it: `now` may be in the
 * past by as long as it waited for the lock, and the integrals err by that much.
 */
static __always_inline void advance(struct probe_machine *m, u64 now)
{
	u64 ns, waiting, idle;

	if (!m->last || now <= m->last) {
		if (!m->last)
			m->last = now;
		return;
	}
	ns = now - m->last;
	m->last = now;
	idle = m->nr_idle;
	waiting = m->waiting > 0 ? m->waiting : 0;
	if (idle)
		m->any_idle_ns += ns;
	if (!is_counting)
		return;
	m->sums.observed_ns += ns;
	m->sums.idle_ns += ns * idle;
	m->sums.waiting_ns += ns * waiting;
	m->sums.idle_while_waiting_ns += ns * (idle < waiting ? idle : waiting);
}

/*
 * Notes whether a CPU idles. The caller holds the lock and has called `advance`. A CPU that goes offline is busy from then
 * on: tracepoints do not fire on it any more, and the last switch that did was to its stopper thread.
 */
static __always_inline void set_idle(struct probe_machine *m, u32 cpu, bool idle)
{
	u32 w = (cpu & (MAX_CPUS - 1)) / 64;
	u64 bit = 1ULL << (cpu & 63);

	m->known[w] |= bit;
	if (idle && !(m->idle[w] & bit)) {
		m->idle[w] |= bit;
		m->nr_idle++;
	} else if (!idle && (m->idle[w] & bit)) {
		m->idle[w] &= ~bit;
		m->nr_idle--;
	}
}

#endif
