use warmcore_runtime::spawn;

#[warmcore_runtime_derive::main(crate = warmcore_runtime, worker_threads = 2u8, policy = "shared-queue", name = "orders",)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = spawn(async { std::thread::current().name().map(str::to_owned) }).await?;
    assert!(name.is_some_and(|name| name.starts_with("orders-")));
    let number: u32 = "42".parse()?;
    assert_eq!(number, 42);
    Ok(())
}
