use std::io;

#[warmcore_runtime_derive::main(crate = ::warmcore_runtime)]
async fn main() -> io::Result<u8> {
    let text: String = 5;
    Ok(5)
}
