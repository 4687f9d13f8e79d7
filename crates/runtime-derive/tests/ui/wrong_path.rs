#[warmcore_runtime_derive::main(crate = ::nowhere)]
async fn main() {}
