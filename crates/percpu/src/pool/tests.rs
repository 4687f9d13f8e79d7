use super::*;
use proptest::prelude::*;

/// As many slots as Linux may have CPU numbers.
const MANY: usize = 8192;

fn write(block: &Block, slot: usize, byte: u8) {
    // SAFETY: inside the block's copy in that slot.
    unsafe { std::slice::from_raw_parts_mut(block.base().add(slot * block.stride()), block.bytes).fill(byte) }
}

/// Bytes of a page, in which several slots lie where pages are larger than a slot.
fn page_bytes() -> usize {
    warmcore_sys::map::page_bytes()
}

#[test]
fn no_size_wraps_around() {
    for slots in [1 << 52, usize::MAX] {
        let reserved = std::panic::catch_unwind(|| Pool::with_slots(slots).block(8, 8));
        assert!(reserved.is_err(), "{slots} slots were reserved");
    }
}

#[test]
fn memory_follows_the_slots_that_were_touched() {
    let pool = Pool::with_slots(MANY);
    let counters: Vec<Block> = (0..500).map(|_| pool.block(8, 8)).collect();
    assert_eq!(pool.resident_pages(), 0);
    for counter in &counters {
        write(counter, 0, 1);
        write(counter, MANY - 1, 1);
    }
    assert_eq!(pool.resident_pages(), 2, "500 counters in 2 of 8192 slots are 2 pages");
}

#[test]
fn a_large_block_is_packed_to_pairs_of_lines() {
    let pool = Pool::with_slots(MANY);
    let block = pool.block(16 * 1024 + 1, 64);
    assert_eq!(block.stride(), 16 * 1024 + PAIR);
    write(&block, 3, 1);
    let bytes = block.resident_bytes().unwrap();
    assert!(
        (16 << 10..=(16 << 10) + 2 * page_bytes()).contains(&bytes),
        "{bytes} bytes in memory for a slot of 16 KiB"
    );
}

#[test]
fn what_comes_back_is_zero_and_is_used_again() {
    let pool = Pool::with_slots(64);
    let keep = pool.block(8, 8);
    let first = pool.block(100, 8);
    let (base, stride) = (first.base(), first.stride());
    (0..64).for_each(|slot| write(&first, slot, 0xff));
    drop(first);
    let second = pool.block(100, 8);
    assert_eq!(second.base(), base, "the hole was not used");
    for slot in 0..64 {
        // SAFETY: inside the block's copy in that slot.
        let copy = unsafe { std::slice::from_raw_parts(base.add(slot * stride), 100) };
        assert!(copy.iter().all(|b| *b == 0), "slot {slot} has its predecessor's bytes");
    }
    drop(keep);
}

#[test]
fn dropping_does_not_touch_untouched_slots() {
    let pool = Pool::with_slots(MANY);
    let keep = pool.block(8, 8);
    let block = pool.block(64, 64);
    write(&block, 5, 1);
    drop(block);
    assert_eq!(pool.resident_pages(), 1);
    drop(keep);
}

#[test]
fn an_empty_chunk_gives_its_memory_back() {
    let pool = Pool::with_slots(MANY);
    let block = pool.block(8, 8);
    write(&block, 0, 1);
    drop(block);
    let _next = pool.block(8, 8);
    assert_eq!(pool.resident_pages(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_two_blocks_overlap_and_none_leaves_its_slot(steps in proptest::collection::vec((any::<bool>(), 1usize..2048, 0u32..7), 1..200)) {
        let pool = Pool::with_slots(2);
        let mut live: Vec<Block> = Vec::new();
        for (drop_one, bytes, align) in steps {
            if drop_one && !live.is_empty() {
                live.swap_remove(bytes % live.len());
                continue;
            }
            let block = pool.block(bytes, 1 << align);
            prop_assert_eq!(block.base() as usize % (1 << align), 0);
            prop_assert!(block.offset + bytes <= SLOT_BYTES);
            let range = block.base() as usize..block.base() as usize + bytes;
            for other in &live {
                let other = other.base() as usize..other.base() as usize + other.bytes;
                prop_assert!(range.end <= other.start || other.end <= range.start, "{range:?} in {other:?}");
            }
            live.push(block);
        }
    }
}
