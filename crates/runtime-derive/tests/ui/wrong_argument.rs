use warmcore_runtime_derive::{main, test};

#[main(workers = "four")]
async fn not_a_number() {}

#[main(workers = 0)]
async fn nobody() {}

#[main(workers)]
async fn how_many() {}

#[main(worker_threads = 4)]
async fn as_in_tokio() {}

#[test(flavor = "multi_thread")]
async fn a_flavor() {}

#[main(policy = "homely")]
async fn unknown_policy() {}

#[main(policy = home)]
async fn unquoted() {}

#[main(name = "")]
async fn nameless() {}

#[main(workers = 2, name = "a", workers = 3)]
async fn twice() {}

#[main(crate = "warmcore")]
async fn quoted_path() {}

#[main(workers = 2 name = "a")]
async fn no_comma() {}

fn main() {}
