// SPDX-License-Identifier: GPL-2.0-only
/*
 * The probe: counts what a scheduler does with user tasks, from scheduler tracepoints only, and so beside any one.
 *
 * The tracepoints are here, with the programs by which the loader starts and stops the counts. state.h has what is
 * known of tasks and CPUs, wait.h what is counted of a wait. README.md defines the counts, interface.h names them.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "interface.h"
#include "state.h"
#include "wait.h"

char LICENSE[] SEC("license") = "GPL";

static __always_inline int on_wake(struct task_struct *p)
{
	struct probe_task *t;
	u32 cpu;

	if (!is_counted(p) || !(t = task_of(p)))
		return 0;
	/* A task that is woken before it has been switched away from goes on: it did not sleep. */
	if (t->phase == PHASE_RUNNING || t->phase == PHASE_WAITING)
		return 0;
	cpu = BPF_CORE_READ(p, thread_info.cpu);
	if (t->phase == PHASE_UNKNOWN) {
		if (BPF_CORE_READ(p, on_cpu)) {
			t->last_cpu = cpu;
			t->phase = PHASE_RUNNING;
			return 0;
		}
		t->last_cpu = cpu;
	}
	start_wait(p, t, WAIT_WOKEN, t->last_cpu);
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(on_sched_waking, struct task_struct *p)
{
	return on_wake(p);
}

/*
 * Most tasks are PHASE_WAITING by now. A task that had left its queue at sched_waking, but was not yet switched away
 * from, was PHASE_RUNNING there, and its wait starts here.
 */
SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_sched_wakeup, struct task_struct *p)
{
	return on_wake(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_sched_wakeup_new, struct task_struct *p)
{
	struct probe_task *t;

	if (!is_counted(p))
		return 0;
	if (is_counting)
		my_counts()->forks++;
	t = task_of(p);
	if (t)
		start_wait(p, t, WAIT_FORKED, bpf_get_smp_processor_id()); /* the parent runs here */
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	u64 now = bpf_ktime_get_ns(), any_idle_ns;
	u32 cpu = bpf_get_smp_processor_id() & (MAX_CPUS - 1);
	struct probe_task *from = is_counted(prev) ? task_of(prev) : NULL;
	struct probe_task *to = is_counted(next) ? task_of(next) : NULL;
	bool stays = from && (preempt || !prev_state);
	bool waited = to && to->phase == PHASE_WAITING;
	bool idles = !next->pid;
	struct probe_machine *m = the_machine();
	struct probe_counts *c = my_counts();

	if (!m)
		return 0;
	if (idles)
		idle_from[cpu] = now;
	else if (idle_to[cpu] < idle_from[cpu])
		idle_to[cpu] = now;

	bpf_spin_lock(&m->lock);
	advance(m, now);
	set_idle(m, cpu, idles);
	m->waiting += (s64)stays - (s64)waited;
	any_idle_ns = m->any_idle_ns;
	bpf_spin_unlock(&m->lock);

	if (from) {
		from->last_cpu = cpu;
		if (stays) {
			from->since = now;
			from->reason = WAIT_PREEMPTED;
			from->any_idle_at_start = any_idle_ns;
		}
		/* Last: once the task is PHASE_ASLEEP, a waker on another CPU may start its wait. */
		barrier();
		from->phase = stays ? PHASE_WAITING : PHASE_ASLEEP;
	}
	if (is_counting) {
		if (stays)
			c->preemptions++;
		if (idles)
			c->to_idle++;
		if (is_counted(next))
			c->switches++;
		if (waited)
			end_wait(next, to, cpu, now, any_idle_ns);
	}
	if (to)
		to->phase = PHASE_RUNNING;
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_sched_migrate_task, struct task_struct *p, int dest_cpu)
{
	struct probe_counts *c = my_counts();

	if (!is_counting || !is_counted(p))
		return 0;
	c->migrations++;
	if (llc_of(BPF_CORE_READ(p, thread_info.cpu)) != llc_of(dest_cpu))
		c->migrations_other_llc++;
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_sched_process_exec, struct task_struct *p)
{
	if (is_counting && is_counted(p))
		my_counts()->execs++;
	return 0;
}

extern const struct rq runqueues __ksym;

/* Learns which CPUs idle that have not switched since the probe was attached. Their tracepoints know better later. */
static __always_inline void learn_idle(struct probe_machine *m)
{
	u32 i;

	bpf_for(i, 0, nr_cpu_ids) {
		u32 cpu = i & (MAX_CPUS - 1);
		struct rq *rq = bpf_per_cpu_ptr(&runqueues, cpu);
		u64 bit = 1ULL << (cpu & 63), now = bpf_ktime_get_ns();
		bool idles, is_new;

		if (!rq || !(online_cpus[cpu / 64] & bit))
			continue;
		idles = BPF_CORE_READ(rq, curr, pid) == 0;
		bpf_spin_lock(&m->lock);
		advance(m, now);
		is_new = !(m->known[cpu / 64] & bit);
		if (is_new)
			set_idle(m, cpu, idles);
		bpf_spin_unlock(&m->lock);
		if (is_new && idles)
			idle_from[cpu] = now;
	}
}

/* Starts to count. The loader has set `counts` and `longest_ns` to 0. */
SEC("syscall")
int start(void *ctx)
{
	struct probe_machine *m = the_machine();
	u64 now;

	if (!m)
		return 1;
	learn_idle(m);
	now = bpf_ktime_get_ns();
	bpf_spin_lock(&m->lock);
	advance(m, now);
	m->sums.observed_ns = 0;
	m->sums.idle_ns = 0;
	m->sums.waiting_ns = 0;
	m->sums.idle_while_waiting_ns = 0;
	is_counting = 1;
	bpf_spin_unlock(&m->lock);
	return 0;
}

/* Stops, and hands the integrals over. */
SEC("syscall")
int stop(void *ctx)
{
	struct probe_machine *m = the_machine();
	u64 now = bpf_ktime_get_ns();

	if (!m)
		return 1;
	bpf_spin_lock(&m->lock);
	advance(m, now);
	is_counting = 0;
	integrals = m->sums;
	bpf_spin_unlock(&m->lock);
	return 0;
}
