//! Threads that allocate, pass on and free, in tenants that come and go.

use super::kit::{on_each_kind, used};
use fastrand::Rng;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use warmcore_budget::Account;
use warmcore_budget::process::enter;

const THREADS: usize = 4;
const TENANTS: usize = 6;
const STEPS: usize = 40_000;
const BLOCKS: usize = 256;

struct Shared {
    root: Account,
    tenants: Vec<Mutex<Account>>,
    blocks: Vec<Mutex<Vec<u8>>>,
}

impl Shared {
    fn tenant(&self, rng: &mut Rng) -> Account {
        let limit = [u64::MAX, 1 << 20, 50_000, 2_000][rng.usize(..4)];
        self.root.child(format!("tenant {}", rng.usize(..1000))).limit(limit).build()
    }

    fn step(&self, rng: &mut Rng, own: &mut Vec<Vec<u8>>) {
        let at = rng.usize(..TENANTS);
        let account = self.tenants[at].lock().unwrap().clone();
        let _current = enter(&account);
        let size = [16, 200, 4096, 100_000][rng.usize(..4)];
        match rng.usize(..100) {
            0..40 => own.push(vec![at as u8; 1 + rng.usize(..size)]),
            40..60 => {
                let block = vec![at as u8; 1 + rng.usize(..size)];
                let place = &self.blocks[rng.usize(..BLOCKS)];
                let before = std::mem::replace(&mut *place.lock().unwrap(), block);
                assert!(before.iter().all(|byte| *byte == before[0]));
            }
            60..70 => {
                let mut block = std::mem::take(&mut *self.blocks[rng.usize(..BLOCKS)].lock().unwrap());
                if let Some(first) = block.first().copied() {
                    block.resize(1 + rng.usize(..size), first);
                    block.shrink_to_fit();
                }
                own.push(block);
            }
            70..97 => own.truncate(own.len().saturating_sub(rng.usize(..3))),
            97 => drop(account.drain_all()),
            98 => {
                let fresh = self.tenant(rng);
                let before = std::mem::replace(&mut *self.tenants[at].lock().unwrap(), fresh);
                let below = before.child("below").build();
                drop(before);
                let _below = enter(&below);
                own.push(vec![0; 1 + rng.usize(..size)]);
            }
            _ => {
                let text = account.explain().to_string();
                let _ = account
                    .try_hold(rng.usize(..size) as u64)
                    .map(|held| own.push(vec![1; held.units() as usize]));
                account.set_limit(10_000 + text.len() as u64);
            }
        }
        if own.len() > 500 {
            own.clear();
        }
    }
}

#[test]
fn nothing_is_lost_or_created_when_tenants_come_and_go() {
    on_each_kind(|kind| {
        let root = Account::root("root").kind(kind).limit(4 << 20).build();
        let tenants = (0..TENANTS).map(|_| Mutex::new(root.child("tenant").build())).collect();
        let blocks = (0..BLOCKS).map(|_| Mutex::default()).collect();
        let shared = Arc::new(Shared { root, tenants, blocks });
        let go = Arc::new(Barrier::new(THREADS));
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (shared, go) = (shared.clone(), go.clone());
                thread::spawn(move || {
                    let (mut rng, mut own) = (Rng::with_seed(n as u64 + 1), Vec::new());
                    go.wait();
                    (0..STEPS).for_each(|_| shared.step(&mut rng, &mut own));
                    // The remaining blocks are freed by another thread.
                    own
                })
            })
            .collect();
        let left: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        drop(left);
        let Shared { root, tenants, blocks } = Arc::into_inner(shared).unwrap();
        drop(blocks);
        assert_eq!(tenants.iter().map(|tenant| used(&tenant.lock().unwrap())).sum::<u64>(), 0);
        drop(tenants);
        Account::reclaim_idle_all();
        assert_eq!((used(&root), root.usage().charged), (0, 0));
    });
}
