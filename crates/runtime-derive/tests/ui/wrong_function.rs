use warmcore_runtime_derive::test;

#[test]
fn not_async() {}

#[test]
async fn arguments(count: u32, name: &str) {}

#[test]
async fn generic<T>() {}

#[test]
#[test]
async fn twice() {}

#[warmcore_runtime_derive::main]
struct NoFunction;

#[warmcore_runtime_derive::main(worker_threads = 0)]
fn main() {}
