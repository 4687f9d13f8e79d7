/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Every decision of scx_warm, as pure functions: no maps, no kernel types, no clock, no randomness.
 *
 * A caller fills a struct with what it has read and gets a value or an enum back. The BPF program and the native
 * test (tests/policy.rs) compile this same text, so a decision that is logged with its inputs can be replayed
 * natively. The including file defines u32, u64, s64 and bool.
 *
 * Units: times in ns, shares in percent, weights as the kernel's p->scx.weight (100 is nice 0), costs in
 * POL_RESIDENT per task that lives on a CPU.
 */
#ifndef WARM_POLICY_H
#define WARM_POLICY_H

#define POL_INLINE static inline __attribute__((always_inline))

/* ---- Learning ---- */

/* The share of its mean that a run must exceed to teach: a shorter one was a spurious wake. */
#define POL_NEWS_DIV 5

/* Returns whether a sample says anything about the mean. */
POL_INLINE bool pol_is_news(u64 sample_ns, u64 mean_ns)
{
	return !mean_ns || sample_ns * POL_NEWS_DIV > mean_ns;
}

/* Returns the mean after a sample: the last four samples weigh most. 0 means "nothing learned yet". */
POL_INLINE u64 pol_mean(u64 mean_ns, u64 sample_ns)
{
	return mean_ns ? (mean_ns * 3 + sample_ns) / 4 : sample_ns;
}

/* Returns whether a wake comes late in the waker's run. The time until the waker sleeps is learned apart for
 * early and late wakes: a server that wakes its client last sleeps at once, one that wakes it first does not. */
POL_INLINE bool pol_is_late(u64 ran_ns, u64 mean_run_ns)
{
	return ran_ns * 4 > mean_run_ns;
}

/* ---- Residents: the tasks that live on a CPU ---- */

#define POL_EPOCH_SHIFT 26 /* an epoch is 67 ms */

POL_INLINE u64 pol_epoch(u64 now_ns)
{
	return now_ns >> POL_EPOCH_SHIFT;
}

/* Tasks that ran in an epoch and in the one before. A sleeper ages out of both without any scan. */
struct pol_count {
	u64 epoch;
	s64 cur;
	s64 prev;
};

/* Returns the count moved on to `epoch`. */
POL_INLINE struct pol_count pol_count_at(struct pol_count c, u64 epoch)
{
	if (c.epoch == epoch)
		return c;
	c.prev = c.epoch + 1 == epoch ? c.cur : 0;
	c.cur = 0;
	c.epoch = epoch;
	return c;
}

/* Returns the residents: the larger of the two epochs. A new epoch starts at 0, and concurrent updates may take
 * a count below 0 for a moment. */
POL_INLINE u64 pol_residents(struct pol_count c, u64 epoch)
{
	s64 n;

	c = pol_count_at(c, epoch);
	n = c.cur > c.prev ? c.cur : c.prev;
	return n > 0 ? n : 0;
}

/* ---- Placement: the price of an idle CPU ---- */

#define POL_RESIDENT 1024ull
/* A core whose sibling is busy runs a task at about half speed: more than any resident costs. */
#define POL_SIBLING_BUSY (8 * POL_RESIDENT)
#define POL_NEVER (~0ull)

struct pol_place {
	u64 residents;
	u64 return_in_ns; /* until the first owner is expected back; POL_NEVER if none is */
	u64 mean_run_ns;
	bool sibling_busy;
	bool price_residents, price_return, price_sibling; /* mechanisms that are on */
};

/* Returns what an idle CPU costs as a place for a task: its residents, and the part of the task's mean run that
 * falls after the return of an owner. That part is the hot window, as a price and not as a ban. */
POL_INLINE u64 pol_place_cost(const struct pol_place *p)
{
	u64 cost = 0;

	if (p->price_residents)
		cost += p->residents * POL_RESIDENT;
	if (p->price_return && p->mean_run_ns && p->return_in_ns < p->mean_run_ns)
		cost += (p->mean_run_ns - p->return_in_ns) * POL_RESIDENT / p->mean_run_ns;
	if (p->price_sibling && p->sibling_busy)
		cost += POL_SIBLING_BUSY;
	return cost;
}

/* ---- The search that sched and Linux have: crates/sched/src/policy, near.rs and shared_queue.rs ---- */

#define POL_USE_SCALE 1024ull /* the use of a CPU that is always busy */

/* Linux's nr_idle_scan: how many CPUs a wake looks at in an LLC of `cpus`, whose use adds up to `used`. It is
 * cpus * (1 - (117 % * use)^2), each step rounded down. */
POL_INLINE u64 pol_scan_depth(u64 cpus, u64 used)
{
	u64 use = cpus ? used / cpus : POL_USE_SCALE, full;

	use = use < POL_USE_SCALE ? use : POL_USE_SCALE;
	full = use * use * 117 * 117 / (10000 * POL_USE_SCALE);
	return (POL_USE_SCALE - (full < POL_USE_SCALE ? full : POL_USE_SCALE)) * cpus / POL_USE_SCALE;
}

/* Returns whether a wake looks at the CPU that comes `steps` after the home. The home itself is always looked at. */
POL_INLINE bool pol_is_in_reach(u64 steps, u64 depth)
{
	return steps <= depth;
}

/* A search over idle CPUs, nearest first, which passes over those that are kept for an owner. */
struct pol_search {
	s64 first_kept; /* -1: none yet */
	u64 first_llc;	/* its LLC */
	u64 kept;	/* how many there were */
};

struct pol_seen {
	u64 cpu, llc;
	u64 depth; /* pol_scan_depth of that LLC now */
	bool is_allowed;
	bool may_keep; /* windows count */
	bool is_kept;  /* its hot window is open, for another task than the wakee */
};

enum pol_look {
	POL_LOOK_ON,   /* not this one, go on */
	POL_LOOK_TAKE, /* this one */
	POL_LOOK_END,  /* the first kept one */
};

/* Returns what comes of the next idle CPU. After one that is kept the search stays in that LLC, and passes over half of
 * the scan depth. If the CPUs end first, the first kept one is taken. */
POL_INLINE enum pol_look pol_look(struct pol_search *s, const struct pol_seen *c)
{
	if (s->first_kept >= 0 && s->first_llc != c->llc)
		return POL_LOOK_END;
	if (!c->is_allowed)
		return POL_LOOK_ON;
	if (!c->is_kept)
		return POL_LOOK_TAKE;
	if (s->first_kept < 0) {
		s->first_kept = c->cpu;
		s->first_llc = c->llc;
	}
	s->kept++;
	return s->kept > (c->depth + 1) / 2 ? POL_LOOK_END : POL_LOOK_ON;
}

/* ---- Hand-over: the wakee runs next on its waker's CPU ---- */

enum pol_hand {
	POL_HAND_YES,
	POL_HAND_STRANGER,  /* another task woke it last, or the waker is not known */
	POL_HAND_FAR,	    /* it would be due, but the waker's CPU is in another LLC and the pair not firm, or not allowed */
	POL_HAND_QUEUED,    /* a task waits there already */
	POL_HAND_RUNS_ON,   /* the waker usually runs on after such a wake */
	POL_HAND_BOUNCES,   /* the two woke each other on one CPU without alternating */
	POL_HAND_NEW,	    /* it would be due, but the two have not alternated often enough */
	POL_HAND_IDLE,	    /* the wakee's home idles, in a shard that is not busy */
};

struct pol_hand_in {
	bool is_partner;
	bool is_near, is_allowed; /* the waker's CPU: in the home's LLC; one that the wakee may use */
	bool home_idles;
	u64 busy_pct, hand_busy_pct; /* how busy the home's shard is, and from where on an idle home is no reason to stay there */
	u64 pair, hand_pair; /* pol_pair of the wakee, and from where on it is handed over */
	u64 queued;
	u64 post_ns; /* learned time from such a wake until the waker sleeps; 0 if not learned */
	u64 hand_ns; /* the longest that still counts as "sleeps at once" */
	u64 bounce;
};

#define POL_PAIR_MIN 4
#define POL_PAIR_CAP 8

#define POL_BOUNCE_MAX 8
#define POL_BOUNCE_ADD 40
#define POL_BOUNCE_CAP 200

POL_INLINE enum pol_hand pol_hand_over(const struct pol_hand_in *h)
{
	if (!h->is_partner)
		return POL_HAND_STRANGER;
	if (!h->post_ns || h->post_ns >= h->hand_ns)
		return POL_HAND_RUNS_ON;
	if (h->bounce > POL_BOUNCE_MAX)
		return POL_HAND_BOUNCES;
	if (!h->is_allowed || (!h->is_near && h->pair < POL_PAIR_MIN))
		return POL_HAND_FAR;
	if (h->queued)
		return POL_HAND_QUEUED;
	/* No other task is likely to take the home meanwhile: nothing is gained, and the wakee would have to come back. */
	if (h->home_idles && h->busy_pct < h->hand_busy_pct && h->pair < POL_PAIR_MIN)
		return POL_HAND_IDLE;
	if (h->pair < h->hand_pair)
		return POL_HAND_NEW;
	return POL_HAND_YES;
}

/* Returns the bounce counter of a wakee after a wake by its partner. A partner that wakes it on its own CPU and
 * runs on charges both; every other partner wake takes one off. */
POL_INLINE u64 pol_bounce(u64 bounce, bool is_charged)
{
	if (bounce)
		bounce--;
	return is_charged && bounce < POL_BOUNCE_CAP ? bounce + POL_BOUNCE_ADD : bounce;
}

/* Returns how firmly a task belongs to a pair that shares one CPU: each hand-over adds one, also one that was only too
 * far, and each wake that could not be one for what its partner did halves it. A firm pair is handed over from one LLC
 * to another: it moves once, and then is together. */
POL_INLINE u64 pol_pair(u64 pair, enum pol_hand hand)
{
	if (hand == POL_HAND_YES || hand == POL_HAND_FAR || hand == POL_HAND_NEW)
		return pair < POL_PAIR_CAP ? pair + 1 : pair;
	return hand == POL_HAND_RUNS_ON || hand == POL_HAND_BOUNCES ? pair / 2 : pair;
}

/* ---- Waiting for a busy home ---- */

struct pol_wait_in {
	u64 left_ns;	 /* predicted rest of the run there; 0 if unknown or overdue */
	u64 queued;	 /* tasks that wait there already */
	u64 wait_ns;	 /* the longest predicted wait */
	u64 waits, wakes; /* of this CPU, for the ration */
	u64 ration_pct;
	u64 pair;	 /* pol_pair of the wakee */
	u64 pair_ns;	 /* the longest predicted wait of a pair */
	u64 busy_pct, pair_busy_pct; /* how busy the LLC is, and from where on pairs wait */
};

enum pol_wait {
	POL_WAIT_NO,
	POL_WAIT_RATION, /* one of the rationed waits */
	POL_WAIT_PAIR,	 /* a pair waits without a ration */
};

/* Returns whether one more wait stays within the ration. */
POL_INLINE bool pol_in_ration(u64 waits, u64 wakes, u64 ration_pct)
{
	return (waits + 1) * 100 <= wakes * ration_pct;
}

/* Returns whether a wakee of a pair waits for its home. A move costs a pair two: the partner follows by hand-over. And
 * in a busy LLC the idle CPU is the home of other tasks, which move in turn. */
POL_INLINE bool pol_pair_waits(const struct pol_wait_in *w)
{
	return w->pair >= POL_PAIR_MIN && w->busy_pct >= w->pair_busy_pct && w->left_ns && w->left_ns <= w->pair_ns;
}

/* Returns whether a wakee waits for its busy home although a CPU of the LLC idles. */
POL_INLINE enum pol_wait pol_wait_home(const struct pol_wait_in *w)
{
	if (w->queued)
		return POL_WAIT_NO;
	if (pol_pair_waits(w))
		return POL_WAIT_PAIR;
	return w->left_ns && w->left_ns <= w->wait_ns && pol_in_ration(w->waits, w->wakes, w->ration_pct) ?
		       POL_WAIT_RATION :
		       POL_WAIT_NO;
}

/* Returns whether a wakee waits for its home although a CPU of another LLC idles. The LLC is full, and any of its
 * CPUs may take the task at once. */
POL_INLINE enum pol_wait pol_wait_llc(const struct pol_wait_in *w)
{
	if (w->queued)
		return POL_WAIT_NO;
	if (pol_pair_waits(w))
		return POL_WAIT_PAIR;
	return pol_in_ration(w->waits, w->wakes, w->ration_pct) ? POL_WAIT_RATION : POL_WAIT_NO;
}

/* ---- Queues ---- */

struct pol_steal_in {
	u64 age_ns;   /* since the queue's first task began to wait */
	u64 bound_ns; /* younger tasks stay */
	u64 left_ns;  /* predicted rest of the run at their home; 0 if unknown or overdue */
	u64 stay_ns;  /* a lone task stays while its home is predicted to be free within this */
	u64 queued;
	bool is_orphan; /* their home is offline */
};

/* Returns whether an idle CPU may take a task from a home queue. A lone task whose home is about to be free stays:
 * its data is there. With a second task the home is no longer free soon for both. */
POL_INLINE bool pol_may_steal(const struct pol_steal_in *s)
{
	bool stays = s->queued < 2 && s->left_ns && s->left_ns <= s->stay_ns;

	return s->is_orphan || (s->age_ns >= s->bound_ns && !stays);
}

/* Returns whether a CPU serves its LLC's queue before its home queue: by virtual time, and so no queue starves the
 * other. An age of the LLC's queue was tried, and a task of low weight waited at home for a second. */
POL_INLINE bool pol_llc_first(u64 llc_vtime, u64 home_vtime)
{
	return (s64)(llc_vtime - home_vtime) < 0;
}

struct pol_side {
	u64 load; /* sum of the weights of the runnable tasks */
	u64 cpus; /* online */
};

/* Compares loads per CPU without a division: returns whether `a` has more than `b`. */
POL_INLINE bool pol_is_busier(struct pol_side a, struct pol_side b)
{
	return a.load * b.cpus > b.load * a.cpus;
}

struct pol_balance_in {
	struct pol_side here, there;
	u64 weight; /* of the task that may be moved */
};

/*
 * Returns whether the LLC `here` takes a task from `there`. That changes the difference of the loads per CPU by
 * weight/cpus_here + weight/cpus_there, and is worth it if it makes the difference smaller, and if that was less than
 * the change, at least halves it. If only moves by at most the difference were worth it, six heavy tasks would stay
 * beside two and eight light ones. An LLC without online CPUs gives all it has.
 */
POL_INLINE bool pol_balances(const struct pol_balance_in *b)
{
	struct pol_side here = b->here, there = b->there;
	u64 give = there.load * here.cpus, have = here.load * there.cpus, step = b->weight * (here.cpus + there.cpus);

	if (!here.cpus || !there.cpus)
		return here.cpus;
	return give > have && (give - have) * 3 >= step * 2;
}

/* ---- Virtual time ---- */

/* Virtual times wrap: only their difference is meaningful. */
POL_INLINE bool pol_is_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

/* Returns what a run costs in virtual time. */
POL_INLINE u64 pol_charge(u64 ran_ns, u64 weight)
{
	return weight ? ran_ns * 100 / weight : ran_ns;
}

/* Returns the virtual time of a task that becomes runnable. A sleeper keeps a credit of at most `credit_ns`, and a
 * task that ran ahead on an idle machine owes at most `debt_ns`. */
POL_INLINE u64 pol_vtime_at_wake(u64 vtime, u64 clock, u64 credit_ns, u64 debt_ns)
{
	if (pol_is_before(vtime, clock - credit_ns))
		return clock - credit_ns;
	if (pol_is_before(clock + debt_ns, vtime))
		return clock + debt_ns;
	return vtime;
}

/* Returns the virtual time of a task that goes on because no other one waits, of whose run `charge` is still to be added. It
 * owes nothing for that time: no other task could have used it. Without this, a task that joins an LLC whose tasks had a CPU each
 * runs until it has had as much, and a task of low weight waits for half a second. */
POL_INLINE u64 pol_vtime_alone(u64 vtime, u64 clock, u64 charge)
{
	return pol_is_before(clock, vtime + charge) ? clock - charge : vtime;
}

/* Returns the virtual time of a task in another LLC: its lag against the LLC's clock stays. */
POL_INLINE u64 pol_vtime_moved(u64 vtime, u64 from_clock, u64 to_clock)
{
	return vtime - from_clock + to_clock;
}

/* Returns whether a task whose slice ended runs on before the first task of the queue. */
POL_INLINE bool pol_runs_on(u64 vtime, u64 first_vtime)
{
	return pol_is_before(vtime, first_vtime);
}

struct pol_preempt {
	u64 ran_ns, min_run_ns;
	u64 curr_vtime, wakee_vtime;
	u64 margin_ns;
};

/* Returns whether a wakee may interrupt the running task: that one ran for a while and is far enough ahead. */
POL_INLINE bool pol_preempts(const struct pol_preempt *p)
{
	return p->ran_ns >= p->min_run_ns && pol_is_before(p->wakee_vtime + p->margin_ns, p->curr_vtime);
}

/* ---- Load and shards ---- */

/* Returns the busy share in percent, averaged over the last epochs. */
POL_INLINE u64 pol_busy_pct(u64 old_pct, u64 busy_ns, u64 period_ns, u64 cpus)
{
	u64 pct = period_ns && cpus ? busy_ns * 100 / (period_ns * cpus) : 0;

	return ((pct > 100 ? 100 : pct) + old_pct) / 2;
}

/* Returns into how many shards of about equal size an LLC of `cpus` is split; a shard has one queue. */
POL_INLINE u32 pol_nr_shards(u32 cpus, u32 max_cpus)
{
	return max_cpus && cpus ? (cpus + max_cpus - 1) / max_cpus : 1;
}

/* Returns the shard of the CPU at position `index` of its LLC. Siblings are neighbours in that order. */
POL_INLINE u32 pol_shard(u32 index, u32 cpus, u32 max_cpus)
{
	return cpus ? (u64)index * pol_nr_shards(cpus, max_cpus) / cpus : 0;
}

/* Returns the cost of a shard as the place of a new task: its residents per CPU. The parent's shard wins ties. A
 * margin for the parent's shard was tried and overloaded it: at 25 % load 86 to 89 % of the wakes ran at home, not 94 to 99 %. */
POL_INLINE u64 pol_fork_cost(u64 residents, u64 cpus, bool is_own)
{
	return cpus ? residents * POL_RESIDENT / cpus + !is_own : POL_NEVER;
}

/* ---- A log of decisions ---- */

/* The decisions that are logged, with the struct that each is made from. */
enum pol_decision {
	POL_PLACE,     /* struct pol_place */
	POL_LOOK,      /* struct pol_look_in */
	POL_HAND,      /* struct pol_hand_in */
	POL_WAIT_HOME, /* struct pol_wait_in */
	POL_WAIT_LLC,  /* struct pol_wait_in */
	POL_STEAL,     /* struct pol_steal_in */
	POL_BALANCE,   /* struct pol_balance_in */
	POL_PREEMPT,   /* struct pol_preempt */
};

struct pol_look_in {
	struct pol_search search; /* before */
	struct pol_seen seen;
};

struct pol_logged {
	u64 which, answer;
	union {
		struct pol_place place;
		struct pol_look_in look;
		struct pol_hand_in hand;
		struct pol_wait_in wait;
		struct pol_steal_in steal;
		struct pol_balance_in balance;
		struct pol_preempt preempt;
	};
};

/* Decides again. */
POL_INLINE u64 pol_replay(const struct pol_logged *l)
{
	struct pol_search search;

	switch (l->which) {
	case POL_PLACE: return pol_place_cost(&l->place);
	case POL_LOOK: search = l->look.search; return pol_look(&search, &l->look.seen);
	case POL_HAND: return pol_hand_over(&l->hand);
	case POL_WAIT_HOME: return pol_wait_home(&l->wait);
	case POL_WAIT_LLC: return pol_wait_llc(&l->wait);
	case POL_STEAL: return pol_may_steal(&l->steal);
	case POL_BALANCE: return pol_balances(&l->balance);
	case POL_PREEMPT: return pol_preempts(&l->preempt);
	}
	return POL_NEVER;
}

#endif
