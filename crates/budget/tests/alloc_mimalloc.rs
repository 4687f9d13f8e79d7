//! The charging allocator over mimalloc, with `OnFull::Count`.

#[path = "alloc/cases.rs"]
mod cases;
#[path = "alloc/kit.rs"]
mod kit;
#[path = "alloc/stress.rs"]
mod stress;

#[global_allocator]
static ALLOC: warmcore_budget::process::BudgetAlloc<mimalloc::MiMalloc> =
    warmcore_budget::process::BudgetAlloc::new(mimalloc::MiMalloc);
