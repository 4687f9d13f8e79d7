//! Host: accounts of this process, and everything that acts: wakers, the allocator, a thread that tidies.
//!
//! Model.   All accounts of a kind are in one [`Accounts`], so that a CPU's stocks stand together. A
//!          `Site` is where an account is: one word, which a block of memory can carry.
//! Number.  The thread looks ten times a second as long as there are accounts.

mod account;
mod alloc;
mod charge;
mod current;
mod kind;
mod tidy;
mod wait;

pub use account::{Account, Builder};
pub use alloc::{BudgetAlloc, OnFull};
pub use charge::Charge;
pub use current::{Current, Within, enter, unbilled, within};
pub use kind::{Kind, KindError, VARIABLE, default_kind, try_default_kind};
pub use tidy::TIDY_PERIOD;
pub use wait::Charging;

use crate::accounts::{Accounts, Node, STOCKED_MAX};
use crate::outcome::{OverBudget, OverUncharge, Overrun};
use crate::stock::{self, Place, Rseq, Word};
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use warmcore_sys::affinity;
use warmcore_sys::rseq::{PercpuMode, RseqArea, cpu_hint, current_cpu};
use warmcore_types::CpuId;

static WORD: OnceLock<Accounts<Word>> = OnceLock::new();
static RSEQ: OnceLock<Accounts<Rseq>> = OnceLock::new();

/// Where an account is: its node's address, and its kind in the lowest bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub(crate) struct Site(NonNull<Node>);

/// Runs the same code on the accounts of either kind.
macro_rules! on_site {
    ($site:expr, |$accounts:ident, $node:ident| $act:expr) => {{
        let (site, $node) = ($site, $site.node());
        match site.kind() {
            $crate::host::Kind::Rseq => {
                let $accounts = $crate::host::rseq();
                $act
            }
            $crate::host::Kind::Word => {
                let $accounts = $crate::host::word();
                $act
            }
        }
    }};
}
pub(crate) use on_site;

#[inline(always)]
pub(crate) fn word() -> &'static Accounts<Word> {
    #[cold]
    fn begin() -> &'static Accounts<Word> {
        // The backend is chosen here at the latest, so that CPUs can be told without a call.
        let _ = warmcore_percpu::try_backend();
        set_up_unbilled();
        WORD.get_or_init(|| Accounts::new(Word::new(affinity::nr_cpu_ids() as u32)))
    }
    WORD.get().unwrap_or_else(begin)
}

#[inline(always)]
pub(crate) fn rseq() -> &'static Accounts<Rseq> {
    #[cold]
    fn begin() -> &'static Accounts<Rseq> {
        // Sections run from here on, if they run at all, also where a kind was asked for by name.
        let _ = warmcore_percpu::try_backend();
        set_up_unbilled();
        // SAFETY: only sections and compare-and-swaps on the word that is theirs ever write these
        // tables; where sections are not enabled, every charge goes up the tree.
        RSEQ.get_or_init(|| Accounts::new(unsafe { Rseq::new(affinity::nr_cpu_ids() as u32) }))
    }
    RSEQ.get().unwrap_or_else(begin)
}

/// The slots of counters serve the whole process: no account pays for them because its scope was the first to add.
fn set_up_unbilled() {
    warmcore_percpu::set_up_within(|act| unbilled(act));
}

/// This CPU's stock, of the strict kind. Not where the number would have to be asked for: a call would have
/// the fast way save registers.
#[inline(always)]
fn word_at(area: Option<RseqArea>, place: Place) -> Option<&'static AtomicU64> {
    let cpu = area.map(RseqArea::index).or_else(cpu_hint)?;
    // SAFETY: the table of the static lives for ever.
    let [word, _] = unsafe { place.stock(CpuId(cpu)) };
    Some(word)
}

impl Site {
    const WORD: usize = 1;

    fn new(node: &'static Node, kind: Kind) -> Self {
        let node = NonNull::from(node);
        // A node is aligned to 128.
        Self(match kind {
            Kind::Rseq => node,
            Kind::Word => node.map_addr(|addr| addr | Self::WORD),
        })
    }

    #[inline(always)]
    fn kind(self) -> Kind {
        if self.0.addr().get() & Self::WORD == 0 { Kind::Rseq } else { Kind::Word }
    }

    #[inline(always)]
    fn node(self) -> &'static Node {
        let addr = |addr: NonZeroUsize| NonZeroUsize::new(addr.get() & !Self::WORD).expect("an address");
        // SAFETY: nodes of the two statics live for ever.
        unsafe { self.0.map_addr(addr).as_ref() }
    }

    /// Charges this CPU's stock: [`Accounts::charge_stock`], by what is known without a look at the accounts.
    /// `place` is the node's: in a handle it is in registers, where a loop charges more than once.
    #[inline(always)]
    pub(crate) fn charge_stock(self, place: Place, n: u64) -> bool {
        // Before the kind is asked, so that a loop asks it once.
        let area = RseqArea::current(PercpuMode::Cpu);
        n <= STOCKED_MAX
            && match self.kind() {
                // SAFETY: the tables of the two statics live for ever.
                Kind::Rseq => area.is_some_and(|area| unsafe { stock::charge_at(area, place, n as u32) }),
                Kind::Word => {
                    word_at(area, place).is_some_and(|word| stock::charge(word, place.key, n as u32))
                }
            }
    }

    /// Puts into this CPU's stock: [`Accounts::uncharge_stock`].
    #[inline(always)]
    pub(crate) fn uncharge_stock(self, place: Place, n: u64) -> bool {
        let area = RseqArea::current(PercpuMode::Cpu);
        n <= STOCKED_MAX
            && match self.kind() {
                // SAFETY: as in `charge_stock`.
                Kind::Rseq => area.is_some_and(|area| unsafe { stock::uncharge_at(area, place, n as u32) }),
                Kind::Word => {
                    word_at(area, place).is_some_and(|word| stock::uncharge(word, place.key, n as u32))
                }
            }
    }

    /// Where the account's stocks stand.
    #[inline(always)]
    pub(crate) fn place(self) -> Place {
        self.node().place
    }

    #[inline(always)]
    pub(crate) fn try_charge(self, place: Place, n: u64) -> Result<(), OverBudget> {
        if self.charge_stock(place, n) {
            return Ok(());
        }
        self.charge_slowly(n)
    }

    #[cold]
    #[inline(never)]
    fn charge_slowly(self, n: u64) -> Result<(), OverBudget> {
        let result = unbilled(|| {
            on_site!(self, |accounts, node| accounts.charge_slowly(node, current_cpu(), n, None))
        });
        self.pass_on();
        result
    }

    pub(crate) fn force_charge(self, n: u64) -> Result<(), Overrun> {
        if self.charge_stock(self.place(), n) {
            return Ok(());
        }
        let result =
            unbilled(|| on_site!(self, |accounts, node| accounts.force_charge(node, current_cpu(), n)));
        self.pass_on();
        result
    }

    #[inline(always)]
    pub(crate) fn uncharge(self, place: Place, n: u64) -> Result<(), OverUncharge> {
        if self.uncharge_stock(place, n) {
            return Ok(());
        }
        self.uncharge_slowly(n)
    }

    #[cold]
    #[inline(never)]
    fn uncharge_slowly(self, n: u64) -> Result<(), OverUncharge> {
        let result =
            unbilled(|| on_site!(self, |accounts, node| accounts.uncharge_slowly(node, current_cpu(), n)));
        self.pass_on();
        result
    }

    /// As `pass_on`, for the allocator: it may be called in the midst of anything, under the locks of an
    /// executor too, whose wakers want the same locks. So another thread wakes.
    pub(crate) fn pass_on_elsewhere(self) {
        if on_site!(self, |accounts, _node| accounts.owes_wake()) {
            tidy::hurry();
        }
    }

    /// After whatever may have brought units back: who waits for them is woken.
    pub(crate) fn pass_on(self) {
        if on_site!(self, |accounts, _node| accounts.take_owed_wake()) {
            wait::wake_heads();
        }
    }
}

// SAFETY: a Site is the address of a node, which is Sync and lives for ever.
unsafe impl Send for Site {}
// SAFETY: as above.
unsafe impl Sync for Site {}
