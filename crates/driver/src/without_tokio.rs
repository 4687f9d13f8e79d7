//! Without tokio: what the runtime calls for each poll, for builds without the feature `tokio`. Without tokio's sockets
//! and channels there is no budget of operations, so these functions do nothing.

/// The budget of operations of the current thread's polls. Without the feature `tokio` it limits nothing.
#[derive(Debug, Default)]
pub struct OpBudget;

impl OpBudget {
    /// Makes the budget of the current thread.
    pub fn new() -> Self {
        Self
    }

    /// Begins a poll.
    #[inline]
    pub fn begin_poll(&self) {}

    /// Ends a poll whose task was woken before the poll ended.
    #[inline]
    pub fn was_woken_in_poll(&self) {}

    /// Lets polls share budgets again.
    pub fn share(&self) {}
}

/// Calls `act` without the budget of operations of the poll that calls this.
#[inline]
pub fn unconstrained<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// Calls `act` as outside of the [`Driver::block_on`](crate::Driver::block_on) that the thread is in.
#[inline]
pub fn leave_block_on<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// Whether the current thread is inside a runtime of tokio's. Without the feature `tokio` that is not known, and the
/// answer is no.
pub fn is_inside_tokio() -> bool {
    false
}
