//! The first process of a guest; with arguments, a workload.

mod init;

use std::process::ExitCode;
use warmcore_guest_init::work::{self, Work};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        [work::RUN, us] => work::run_for_us(us),
        ["work", seed, work] => workload(seed, work),
        _ if std::process::id() == 1 => init::run(),
        _ => Err(anyhow::anyhow!(
            "this is the first process of a guest, which `warmcore guest run` boots; here it has nothing to do"
        )),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("init: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// `init work SEED JSON`: runs a workload, and prints what it did.
fn workload(seed: &str, work: &str) -> anyhow::Result<()> {
    let work: Work = serde_json::from_str(work)?;
    println!("{}", serde_json::to_string(&work.run(seed.parse()?)?)?);
    Ok(())
}
