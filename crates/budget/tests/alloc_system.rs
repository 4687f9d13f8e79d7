//! The tests of `alloc/` with the system's allocator under `BudgetAlloc::new`: a block over the limit is charged and
//! not refused.

#[path = "alloc/cases.rs"]
mod cases;
#[path = "alloc/kit.rs"]
mod kit;
#[path = "alloc/stress.rs"]
mod stress;

#[global_allocator]
static ALLOC: warmcore_budget::process::BudgetAlloc<std::alloc::System> =
    warmcore_budget::process::BudgetAlloc::new(std::alloc::System);
