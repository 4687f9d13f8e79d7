// As in a crate that depends on a facade alone: the path is the user's to give. What std exports is shadowed.
mod house {
    pub mod warm {
        pub use warmcore_runtime::{PolicyKind, Runtime, spawn};
    }
}

#[allow(non_camel_case_types, dead_code)]
struct Result;
#[allow(unused_macros)]
macro_rules! panic {
    () => {};
}

/// A doc comment, and a return type that is opaque.
#[warmcore_runtime_derive::main(crate = crate::house::warm, policy = "home")]
#[allow(unused_mut)]
async fn main() -> impl std::process::Termination {
    let mut joined = house::warm::spawn(async { 1 }).await;
    if joined.is_err() {
        return std::process::ExitCode::FAILURE;
    }
    std::process::ExitCode::SUCCESS
}
