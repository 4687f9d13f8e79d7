//! The charging allocator over the system's, with `OnFull::Count`.

#[path = "alloc/cases.rs"]
mod cases;
#[path = "alloc/kit.rs"]
mod kit;
#[path = "alloc/stress.rs"]
mod stress;

#[global_allocator]
static ALLOC: warmcore_budget::process::BudgetAlloc<std::alloc::System> =
    warmcore_budget::process::BudgetAlloc::new(std::alloc::System);
