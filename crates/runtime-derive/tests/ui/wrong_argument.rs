use warmcore_runtime_derive::{main, test};

#[main(worker_threads = "four")]
async fn not_a_number() {}

#[main(worker_threads = 0)]
async fn nobody() {}

#[main(worker_threads)]
async fn how_many() {}

#[main(workers = 4)]
async fn as_before() {}

#[test(flavor = "multi_thread")]
async fn a_flavor() {}

#[main(policy = "homely")]
async fn unknown_policy() {}

#[main(policy = home)]
async fn unquoted() {}

#[main(name = "")]
async fn nameless() {}

#[main(worker_threads = 2, name = "a", worker_threads = 3)]
async fn twice() {}

#[main(crate = "warmcore")]
async fn quoted_path() {}

#[main(worker_threads = 2 name = "a")]
async fn no_comma() {}

fn main() {}
