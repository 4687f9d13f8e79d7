//! Thread: which tenants this thread belongs to, and where it was in each.
//!
//! Model.   A record per tenant. Sixteen are at home, in the thread's own static memory, at a place
//!          given by the low bits of the tenant's serial number; the fast path looks only there.
//!          Serials are handed out in turn, so sixteen neighbours have a home each. The spilled
//!          are in a map, and whoever is looked for there comes home in exchange for whoever was.
//!          A thread becomes a tenant's user at its first entry and ceases to be at its end.
//! Number.  64 bytes at home, about 75 in the map for each tenant that still lives.
//! Writers. This thread. No other ever sees it.

use crate::registry;
use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Mutex;
use warmcore_budget::process::unaccounted;
use warmcore_cid::User;
use warmcore_types::ignore_poison;

/// So many tenants can be at home at once.
const CACHE_SLOTS: usize = 16;

/// A home. Its serial is set only while its user is: read without a look at the user.
struct CachedUser {
    /// 0 if nobody lives there.
    serial: u64,
    user: Option<User>,
}

const EMPTY: CachedUser = CachedUser { serial: 0, user: None };

/// Nothing here is dropped with the thread, so that reaching it takes no look at whether it still
/// lives: [`Exit`] cleans up.
struct Table {
    cached: UnsafeCell<[CachedUser; CACHE_SLOTS]>,
    spilled: UnsafeCell<ManuallyDrop<BTreeMap<u64, User>>>,
    /// So many spilled, and those whose tenants are gone are looked for.
    spilled_max: Cell<usize>,
    /// Somebody is between two steps that belong together, and may be allocating.
    is_changing: Cell<bool>,
    token: Cell<Option<u32>>,
    /// The thread was counted out of its tenants, but for those of which it held a guard.
    has_exited: Cell<bool>,
}

thread_local! {
    static TABLE: Table = const {
        Table {
            cached: UnsafeCell::new([EMPTY; CACHE_SLOTS]),
            spilled: UnsafeCell::new(ManuallyDrop::new(BTreeMap::new())),
            spilled_max: Cell::new(CACHE_SLOTS),
            is_changing: Cell::new(false),
            token: Cell::new(None),
            has_exited: Cell::new(false),
        }
    };
    static EXIT: Exit = const { Exit };
}

/// This thread's record in the tenant with this serial, if it is at home. To be used before the
/// next call in here, by nobody else meanwhile.
#[inline(always)]
pub(crate) fn cached_user(serial: u64) -> Option<*mut User> {
    TABLE.with(|table| {
        // SAFETY: only this thread has the table, and no reference into it outlives a step.
        let slot = unsafe { &mut (*table.cached.get())[serial as usize % CACHE_SLOTS] };
        // SAFETY: no tenant has serial 0, and any other lives there with its record: see `CachedUser`.
        (slot.serial == serial).then(|| unsafe { std::ptr::from_mut(slot.user.as_mut().unwrap_unchecked()) })
    })
}

/// This thread's record in the tenant with this serial, which is at home from now on.
pub(crate) fn user(serial: u64) -> Option<*mut User> {
    cached_user(serial).or_else(|| {
        change(|table| {
            // SAFETY: `change` lets nobody else in.
            let user = unsafe { (**table.spilled.get()).remove(&serial) }?;
            insert_cached(table, serial, user);
            Some(())
        })?;
        cached_user(serial)
    })
}

/// Joins a tenant that this thread was not in before. `add` counts it in there. None if the thread
/// is about to end, and has been counted out of all of them: it would never be counted out again.
#[cold]
pub(crate) fn join(serial: u64, add: impl FnOnce(u32) -> User) -> Option<*mut User> {
    EXIT.try_with(|_| {}).ok()?;
    change(|table| {
        let token = table.token.get().unwrap_or_else(take_number);
        table.token.set(Some(token));
        insert_cached(table, serial, add(token));
    });
    cached_user(serial)
}

/// Puts a record at its home, and whoever lived there among the spilled.
fn insert_cached(table: &Table, serial: u64, user: User) {
    // SAFETY: `change` lets nobody else in. Who looks for somebody at home while this allocates
    // finds him there or not at all.
    let (slot, spilled) =
        unsafe { (&mut (*table.cached.get())[serial as usize % CACHE_SLOTS], &mut **table.spilled.get()) };
    let before = std::mem::replace(slot, CachedUser { serial, user: Some(user) });
    if let Some(user) = before.user {
        if spilled.len() >= table.spilled_max.get() {
            let lives = registry::alive_serials();
            spilled.retain(|serial, _| lives(*serial));
            table.spilled_max.set(spilled.len() * 2 + CACHE_SLOTS);
        }
        spilled.insert(before.serial, user);
    }
}

/// Several steps that belong together. An allocator that enters a tenant while this allocates would
/// meet them half done: that ends the process.
fn change<R>(act: impl FnOnce(&Table) -> R) -> R {
    struct Changing<'a>(&'a Cell<bool>);
    impl Drop for Changing<'_> {
        fn drop(&mut self) {
            self.0.set(false);
        }
    }
    TABLE.with(|table| {
        if table.is_changing.replace(true) {
            eprintln!("warmcore: a global allocator entered a tenant; it must not, see `Tenant::enter`");
            std::process::abort();
        }
        let _changing = Changing(&table.is_changing);
        // The table lives as long as the thread, whichever account pays now.
        unaccounted(|| act(table))
    })
}

/// Numbers of threads: no two living ones have the same.
struct Numbers {
    free: Vec<u32>,
    next: u32,
}

fn numbers<R>(act: impl FnOnce(&mut Numbers) -> R) -> R {
    static NUMBERS: Mutex<Numbers> = Mutex::new(Numbers { free: Vec::new(), next: 0 });
    unaccounted(|| act(&mut *ignore_poison(NUMBERS.lock())))
}

fn take_number() -> u32 {
    numbers(|numbers| {
        numbers.free.pop().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        })
    })
}

/// Counts the thread out of its tenants when it ends.
struct Exit;

impl Drop for Exit {
    fn drop(&mut self) {
        TABLE.with(|table| table.has_exited.set(true));
        count_out();
    }
}

/// After a guard was dropped: if that was in another thread-local's destructor, after [`Exit`], the thread is counted out
/// of what it left just now.
pub(crate) fn count_out_late() {
    if TABLE.with(|table| table.has_exited.get()) {
        count_out();
    }
}

/// Counts the thread out of all tenants of which it holds no guard. A guard that lives on in another thread-local keeps its
/// record, and with it the thread's number, until it is dropped; one that was leaked, for ever.
fn count_out() {
    change(|table| {
        // SAFETY: `change` lets nobody else in.
        let (cached, spilled) = unsafe { (&mut *table.cached.get(), &mut **table.spilled.get()) };
        let mut all_left = true;
        let mut leave = |serial: u64, user: User| {
            // A tenant that is gone has nobody inside.
            let tenant = registry::tenant(serial)?;
            tenant.part();
            if tenant.ids.holds(&user) {
                // Its drop comes by here again.
                tenant.ids.make_leave_slow(&user);
                all_left = false;
                return Some(user);
            }
            tenant.ids.remove_user(user);
            None
        };
        for slot in cached {
            let CachedUser { serial, user } = std::mem::replace(slot, EMPTY);
            if let Some(user) = user.and_then(|user| leave(serial, user)) {
                *slot = CachedUser { serial, user: Some(user) };
            }
        }
        let staying = std::mem::take(spilled).into_iter().filter_map(|(s, user)| Some((s, leave(s, user)?)));
        *spilled = staying.collect();
        if let Some(token) = table.token.get().filter(|_| all_left) {
            table.token.set(None);
            numbers(|numbers| numbers.free.push(token));
        }
    });
}
