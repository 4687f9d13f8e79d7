/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every setting: SETTING(name, default, least, greatest, unit, what it does).
 *
 * The BPF program makes a struct of them in .data, which the loader writes while the program runs; build.rs reads
 * the same lines for the command line. A switched-off mechanism shows in the counts (counts.h).
 */
SETTING(mode, 0, 0, 3, "0 warm, 1 nosteal, 2 first-idle, 3 shared-queue", "scheduler, or a control: nosteal always queues at home, first-idle ignores prices, shared-queue searches as deep as Linux does and has one queue per shard, in order of arrival")
SETTING(hand_over, 1, 0, 1, "off/on", "queue a wakee on the CPU of its partner, if that one sleeps at once after such wakes")
SETTING(hand_us, 100, 0, 10000, "us", "longest learned time from a wake to the waker's sleep for a hand-over, and time until an idle CPU may take the wakee")
SETTING(hand_pair, 4, 0, 8, "wakes", "hand over only after so many wakes that would have been hand-overs; one after which the waker ran on takes back half of them. 0: at once")
SETTING(hand_busy, 40, 0, 101, "percent", "in a shard that is less busy than this, no hand-over of a task whose home idles, unless the pair is firm. 0: all")
SETTING(residents, 1, 0, 1, "off/on", "price of an idle CPU: tasks that ran there in the last 67 to 134 ms")
SETTING(hot_windows, 1, 0, 2, "off/on/2", "price of an idle CPU: the part of the wakee's run that falls after an owner's predicted return. 2: no prices; a CPU that expects an owner is passed over, as crates/sched does")
SETTING(smt, 1, 0, 1, "off/on", "price of an idle CPU: its sibling is busy")
SETTING(wait_home, 0, 0, 1, "off/on", "let a wakee wait for its busy home although a CPU of the LLC idles")
SETTING(wait_llc, 1, 0, 1, "off/on", "let a wakee wait for its full LLC although a CPU of another LLC idles")
SETTING(wait_us, 400, 0, 10000, "us", "longest predicted wait for home, and time until an idle CPU may take the wakee")
SETTING(wait_pct, 1, 0, 100, "waits per 100 wakes", "ration of such waits")
SETTING(pair_busy, 60, 0, 101, "percent", "in an LLC that is busier than this, a task of a pair waits for its home without a ration: a move costs a pair two. 101: never")
SETTING(pair_us, 3000, 0, 10000, "us", "longest predicted such wait, and time until an idle CPU may take the task")
SETTING(steal, 1, 0, 1, "off/on", "let an idle CPU take tasks from the home queues of its LLC")
SETTING(steal_llc, 1, 0, 1, "off/on", "let an idle CPU take tasks from other LLCs")
SETTING(late_us, 100, 0, 10000, "us", "time that a task waits in its home queue before an idle CPU of the LLC takes it")
SETTING(xlate_us, 100, 0, 10000, "us", "the same for idle CPUs of other LLCs")
SETTING(stay_us, 3000, 0, 10000, "us", "a lone task stays in its home queue while its home is predicted to be free within this time")
SETTING(balance, 1, 0, 1, "off/on", "move tasks from an LLC with more weight per CPU, also if no CPU idles")
SETTING(balance_us, 4000, 100, 1000000, "us", "shortest time between two such looks of an LLC")
SETTING(fork_place, 1, 0, 1, "off/on", "start a new task in the LLC with the fewest residents per CPU")
SETTING(preempt, 1, 0, 1, "off/on", "let a wakee that is owed time interrupt a long run at its home, if no CPU idles")
SETTING(preempt_us, 2000, 100, 100000, "us", "shortest run that may be interrupted, and how far ahead it must be")
SETTING(slice_us, 3000, 500, 100000, "us", "longest run while other tasks wait")
SETTING(debt_us, 100000, 1000, 10000000, "us", "most run time that a task owes after it ran alone, or is owed after it waited")
SETTING(sample, 0, 0, 1000000, "decisions", "log one of so many decisions; the loader decides it again natively and reports differences. 0: none")
