//! The accounts of this process, and what uses them: handles, waiting charges, the allocator, the background
//! thread.
//!
//! All accounts of one stock kind are in one [`Accounts`](crate::Accounts), so that all stocks of a CPU are next to
//! each other. An `AccountPtr` refers to an account with one word, which a block of memory can carry.

mod account;
mod account_ptr;
mod active;
mod alloc;
mod charge;
mod reclaim;
mod stock_kind;
mod wait;
mod waiters;

pub use account::{Account, AccountBuilder};
pub use account_ptr::unaccounted;
pub use active::{ActiveAccount, Within, enter, within};
pub use alloc::{BudgetAlloc, OnFull};
pub use charge::Charge;
pub use reclaim::RECLAIM_PERIOD;
pub use stock_kind::{StockKind, StockKindError, VARIABLE, default_kind, try_default_kind};
pub use wait::ChargeFuture;
