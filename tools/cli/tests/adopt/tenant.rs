//! A program of tokio's that `warmcore adopt` has adopted, and that depends on `warmcore` too. A tenant's tasks run on
//! the same workers as those of `tokio::spawn`, and wait until the tenant's budget has room for them.

use std::time::Duration;
use warmcore::prelude::*;

#[tokio::main]
async fn main() {
    let tasks: Vec<_> = (0..100u64).map(|i| tokio::spawn(after_a_pause(i))).collect();
    let mut sum = 0;
    for task in tasks {
        sum += task.await.unwrap();
    }
    // With `WARMCORE=0` in the environment this thread is inside a runtime of tokio's.
    if warmcore::Handle::try_current().is_some() {
        sum += work_of_a_tenant().await;
    }
    println!("{sum}");
}

async fn after_a_pause<T>(value: T) -> T {
    tokio::time::sleep(Duration::from_millis(1)).await;
    value
}

/// Starts eight tasks, of which the budget admits two at a time. Returns the number of those that had their part of it.
async fn work_of_a_tenant() -> u64 {
    let account = Account::root("orders").limit(64 << 10).build();
    let orders = Tenant::builder().name("orders").weight(3).account(&account).build();
    let spawn = |_| {
        let account = account.clone();
        warmcore::spawn_in(&orders, async move {
            let _buffer = account.charge(32 << 10).await.expect("it is smaller than the limit");
            tokio::spawn(after_a_pause(1)).await.unwrap()
        })
    };
    let tasks: Vec<_> = (0..8).map(spawn).collect();
    let mut done = 0;
    for task in tasks {
        done += task.await.unwrap();
    }
    done
}
