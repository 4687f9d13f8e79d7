/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the BPF program and its loader share.
 *
 * Each counter has its name here and nowhere else: libbpf-cargo turns these structs into the Rust types of the same
 * names, and src/counts.rs reads their fields. A field that is renamed or removed here fails the build there.
 * README.md defines every count.
 */
#ifndef SCX_PROBE_INTERFACE_H
#define SCX_PROBE_INTERFACE_H

#define MAX_CPUS 512		/* a power of two, so that a mask bounds an index */
#define CPU_WORDS (MAX_CPUS / 64)
#define MAX_LLCS 128		/* a power of two */
#define MAX_GROUPS 4
#define BUCKETS 24		/* of a histogram; the first ends at 1024 ns, the last has no end */

/* Where a task ran, against where it ran before. */
struct probe_distances {
	u64 same;	/* the same CPU */
	u64 llc;	/* another CPU of the same last-level cache */
	u64 other;	/* a CPU of another last-level cache */
};

/* The wakes of the tasks whose name starts with one prefix. */
struct probe_group_counts {
	struct probe_distances wakes;
	u64 histogram[BUCKETS];
};

/* The counts of one CPU. All fields are u64, and a sum over CPUs is the machine's count. */
struct probe_counts {
	struct probe_distances wakes;		/* first run after a sleep */
	struct probe_distances forked;	/* first run of a new task, against its parent's CPU */
	struct probe_distances preempted;	/* first run after a preemption or a yield */
	u64 wakeups;			/* starts of waits after a sleep or a fork */
	u64 queued_any;
	u64 queued_llc;
	u64 queued_over_50us;
	u64 queued_over_100us;
	u64 over_slice;
	u64 migrations;
	u64 migrations_other_llc;
	u64 switches;
	u64 to_idle;
	u64 preemptions;
	u64 forks;
	u64 execs;
	u64 histogram[BUCKETS];		/* waits after a sleep or a fork, by length */
	u64 waits;
	u64 waits_ns;
	u64 waits_over_1ms;
	u64 lost;			/* events of tasks for which the kernel gave no memory */
	struct probe_group_counts groups[MAX_GROUPS];
} __attribute__((aligned(64)));		/* no cache line belongs to two CPUs */

/* Integrals over the time while the probe counts, in ns. */
struct probe_integrals {
	u64 observed_ns;
	u64 idle_ns;			/* idle CPUs */
	u64 waiting_ns;			/* waiting tasks */
	u64 idle_while_waiting_ns;	/* the smaller of the two */
};

/* A group's prefix: the first 16 bytes of a task's name under `mask` are `name`. */
struct probe_group_name {
	u64 name[2];
	u64 mask[2];
};

#endif
