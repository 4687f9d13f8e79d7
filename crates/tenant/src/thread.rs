//! Which tenants this thread belongs to, and its user record in each.
//!
//! A thread becomes a tenant's user at its first entry, unless it is about to end. It ceases to be one when it ends, or
//! later if it still holds a guard then. It has a record for each tenant whose user it is. Up to sixteen records are in
//! a cache in the thread's own static memory, in the slot given by the low four bits of the tenant's serial, which are
//! those of its index; the fast path looks only there. Sixteen tenants with consecutive indices use different slots.
//! The other records are in a map: a record that is found in the map moves to its slot, and the record that was there
//! moves to the map.
//!
//! Only this thread reads and writes these records. A record has 64 bytes in the cache, and about 55 in the map.

use crate::registry;
use std::cell::{Cell, UnsafeCell};
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::sync::Mutex;
use warmcore_budget::process::unaccounted;
use warmcore_cid::User;
use warmcore_types::ignore_poison;

/// How many records the cache holds.
const CACHE_SLOTS: usize = 16;

/// A slot of the cache, on a cache line of its own. `serial` is set only while `user` is, so that a lookup reads the
/// serial alone.
#[repr(align(64))]
struct CachedUser {
    /// 0 if the slot is empty.
    serial: u64,
    user: Option<User>,
}

const EMPTY: CachedUser = CachedUser { serial: 0, user: None };

/// Nothing in here is dropped with the thread, so that an access need not check whether it still exists. [`Exit`]
/// cleans up.
struct Table {
    cached: UnsafeCell<[CachedUser; CACHE_SLOTS]>,
    spilled: UnsafeCell<ManuallyDrop<BTreeMap<u64, User>>>,
    /// The number of records in `spilled` at which the records of dropped tenants are removed.
    spilled_max: Cell<usize>,
    /// Whether `change` runs: then the table may be half changed, and the thread may be allocating.
    is_changing: Cell<bool>,
    token: Cell<Option<u32>>,
    /// Whether [`Exit`] was dropped: then the thread has left its tenants, except those of which it holds a
    /// guard.
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

/// This thread's record in the tenant with this serial, if it is in the cache. The pointer is valid until this thread's
/// next call of this module, and must be the only one in use.
#[inline(always)]
pub(crate) fn cached_user(serial: u64) -> Option<*mut User> {
    TABLE.with(|table| {
        // SAFETY: only this thread has the table, and no reference into it outlives a function of this module.
        let slot = unsafe { &mut (*table.cached.get())[serial as usize % CACHE_SLOTS] };
        // SAFETY: no tenant has serial 0, and with any other serial the slot has a user: see `CachedUser`.
        (slot.serial == serial).then(|| unsafe { std::ptr::from_mut(slot.user.as_mut().unwrap_unchecked()) })
    })
}

/// This thread's record in the tenant with this serial, or `None` if it has none. Moves a record that is in the map to
/// the cache.
pub(crate) fn user(serial: u64) -> Option<*mut User> {
    cached_user(serial).or_else(|| {
        change(|table| {
            // SAFETY: `change` excludes other accesses.
            let user = unsafe { (**table.spilled.get()).remove(&serial) }?;
            insert_cached(table, serial, user);
            Some(())
        })?;
        cached_user(serial)
    })
}

/// Joins a tenant to which this thread does not belong. `add` gets the thread's token and adds the user there. Returns
/// `None` if the thread is about to end and has left its tenants already: it might never leave this tenant.
#[cold]
pub(crate) fn join(serial: u64, add: impl FnOnce(u32) -> User) -> Option<*mut User> {
    EXIT.try_with(|_| {}).ok()?;
    change(|table| {
        let token = table.token.get().unwrap_or_else(take_token);
        table.token.set(Some(token));
        insert_cached(table, serial, add(token));
    });
    cached_user(serial)
}

/// Puts a record into its slot of the cache, and the record that was there, if any, into the map.
fn insert_cached(table: &Table, serial: u64, user: User) {
    // SAFETY: `change` excludes other accesses. A lookup in the cache by an allocator that runs in here finds a
    // complete slot or none.
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

/// Runs steps that must not be interleaved with others on this thread. If the global allocator enters a tenant while
/// `act` allocates, and that needs `change` too, it would find the steps half done: then this function ends the
/// process.
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
        // The table lives as long as the thread: it must not be charged to the current account.
        unaccounted(|| act(table))
    })
}

/// The numbers by which tenants tell their threads apart: no two threads that are alive have the same.
struct Tokens {
    free: Vec<u32>,
    next: u32,
}

fn tokens<R>(act: impl FnOnce(&mut Tokens) -> R) -> R {
    static TOKENS: Mutex<Tokens> = Mutex::new(Tokens { free: Vec::new(), next: 0 });
    unaccounted(|| {
        let mut tokens = ignore_poison(TOKENS.lock());
        act(&mut tokens)
    })
}

fn take_token() -> u32 {
    tokens(|tokens| {
        tokens.free.pop().unwrap_or_else(|| {
            tokens.next += 1;
            tokens.next - 1
        })
    })
}

/// Makes the thread leave its tenants when it ends.
struct Exit;

impl Drop for Exit {
    fn drop(&mut self) {
        TABLE.with(|table| table.has_exited.set(true));
        leave_tenants();
    }
}

/// To be called after a guard was dropped. If that happened in the destructor of another thread-local, after that of
/// [`Exit`], the thread leaves the guard's tenant now, unless it holds another guard of it.
pub(crate) fn leave_tenants_late() {
    if TABLE.with(|table| table.has_exited.get()) {
        leave_tenants();
    }
}

/// Makes the thread leave all tenants of which it holds no guard. A guard in another thread-local keeps its record, and
/// with it the thread's token, until it is dropped; a leaked guard of a tenant that is alive keeps them for ever.
fn leave_tenants() {
    change(|table| {
        // SAFETY: `change` excludes other accesses.
        let (cached, spilled) = unsafe { (&mut *table.cached.get(), &mut **table.spilled.get()) };
        let mut all_left = true;
        let mut leave = |serial: u64, user: User| {
            // A tenant that is gone has no users.
            let tenant = registry::tenant(serial)?;
            tenant.forget_thread();
            if tenant.ids.holds(&user) {
                // The guard's drop calls this function again.
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
            tokens(|tokens| tokens.free.push(token));
        }
    });
}
