//! Budgets, caching and merging against a simple model.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::fault::FaultKind;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A device that gives the first hole that fits, and what it gave. Clones are the same device.
#[derive(Clone, Debug)]
struct Flat {
    capacity: u64,
    given: Arc<Mutex<BTreeMap<u64, u64>>>,
    broken: bool,
}

impl Flat {
    fn new(capacity: u64) -> Self {
        Self {
            capacity,
            given: Arc::default(),
            broken: false,
        }
    }

    fn taken(&self) -> u64 {
        self.given.lock().values().sum()
    }
}

impl RawMemory for Flat {
    fn alloc(&mut self, bytes: u64) -> Result<RawBlock, RawError> {
        if self.broken {
            return Err(RawError::Fault(GpuFault::new(0, FaultKind::Lost)));
        }
        let free = self.capacity - self.taken();
        let mut given = self.given.lock();
        let mut at = 0;
        for (address, length) in given.iter() {
            if address - at >= bytes {
                break;
            }
            at = address + length;
        }
        if bytes > self.capacity - at {
            return Err(RawError::Full { free });
        }
        given.insert(at, bytes);
        Ok(RawBlock { address: at, bytes })
    }

    fn free(&mut self, block: RawBlock) -> Result<(), GpuFault> {
        let given = self.given.lock().remove(&block.address);
        assert_eq!(given, Some(block.bytes), "given back as it was taken");
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.capacity
    }
}

fn pool(capacity: u64, budgets: &[(&str, u64)]) -> (Pool<Flat>, Flat) {
    let device = Flat::new(capacity);
    let mut pool = Pool::new(device.clone());
    for (owner, budget) in budgets {
        pool.reserve(owner, *budget).unwrap();
    }
    (pool, device)
}

#[test]
fn an_owner_over_its_budget_is_named_while_the_card_still_has_room() {
    let (mut pool, _) = pool(100 * MIB, &[("actor", 10 * MIB), ("critic", 80 * MIB)]);
    let held = pool.alloc("actor", 8 * MIB).unwrap();
    let refused = pool.alloc("actor", 4 * MIB).unwrap_err();
    assert_eq!(
        refused,
        MemoryError::OverBudget {
            owner: "actor".to_owned(),
            asked: 4 * MIB,
            used: 8 * MIB,
            budget: 10 * MIB,
        }
    );
    assert_eq!(pool.owner("actor").unwrap().refusals, 1);
    let other = pool.alloc("critic", 60 * MIB).unwrap();
    pool.free(held).unwrap();
    let again = pool.alloc("actor", 10 * MIB).unwrap();
    assert_eq!(pool.owner("actor").unwrap().used_peak_bytes, 10 * MIB);
    pool.free(again).unwrap();
    pool.free(other).unwrap();
}

#[test]
fn budgets_beyond_the_device_are_refused_when_they_are_made() {
    let (mut pool, _) = pool(100 * MIB, &[("actor", 60 * MIB)]);
    let refused = pool.reserve("critic", 41 * MIB).unwrap_err();
    assert!(matches!(
        refused,
        MemoryError::Overcommitted { reserved, capacity, .. }
            if reserved == 60 * MIB && capacity == 100 * MIB
    ));
    assert!(matches!(
        pool.reserve("critic", u64::MAX),
        Err(MemoryError::Overcommitted { .. })
    ));
    pool.reserve("actor", 50 * MIB).unwrap();
    pool.reserve("critic", 50 * MIB).unwrap();
    let _held = pool.alloc("critic", 20 * MIB).unwrap();
    assert!(matches!(
        pool.reserve("critic", 10 * MIB),
        Err(MemoryError::BudgetBelowUse { used, .. }) if used == 20 * MIB
    ));
}

#[test]
fn cached_memory_goes_back_to_the_device_before_an_allocation_fails() {
    let (mut pool, device) = pool(64 * MIB, &[("actor", 64 * MIB)]);
    let small: Vec<Block> = (0..40).map(|_| pool.alloc("actor", MIB).unwrap()).collect();
    for block in small {
        pool.free(block).unwrap();
    }
    assert_eq!(pool.stats().cached_bytes(), 40 * MIB);
    let large = pool.alloc("actor", 60 * MIB).unwrap();
    assert_eq!(device.taken(), 60 * MIB);
    assert_eq!(pool.stats().raw_frees, 20);
    pool.free(large).unwrap();
    assert_eq!(pool.trim().unwrap(), 60 * MIB);
    assert_eq!(device.taken(), 0);
}

#[test]
fn freed_blocks_are_used_again_without_the_device() {
    let (mut pool, _) = pool(64 * MIB, &[("actor", 64 * MIB)]);
    let mut addresses = vec![];
    for _ in 0..10 {
        let block = pool.alloc("actor", 5 * MIB).unwrap();
        addresses.push(block.address());
        pool.free(block).unwrap();
    }
    addresses.dedup();
    assert_eq!(addresses.len(), 1);
    assert_eq!(pool.stats().raw_allocations, 1);
}

#[test]
fn memory_in_pieces_is_told_from_a_full_device() {
    let (mut pool, device) = pool(40 * MIB, &[("actor", 40 * MIB)]);
    let mut blocks: Vec<Block> = (0..8)
        .map(|_| pool.alloc("actor", 5 * MIB).unwrap())
        .collect();
    assert_eq!(device.taken(), 40 * MIB);
    for at in [6, 4, 2, 0] {
        pool.free(blocks.remove(at)).unwrap();
    }
    assert_eq!(
        pool.alloc("actor", 15 * MIB).unwrap_err(),
        MemoryError::Fragmented {
            asked: 15 * MIB,
            free: 20 * MIB,
            largest: 5 * MIB,
            owners: pool.shares(),
        }
    );
    for block in blocks {
        pool.free(block).unwrap();
    }
    let _whole = pool.alloc("actor", 40 * MIB).unwrap();
}

#[test]
fn a_device_that_others_fill_says_who_holds_what_here() {
    let (mut pool, mut device) = pool(40 * MIB, &[("actor", 30 * MIB), ("critic", 10 * MIB)]);
    let _held = pool.alloc("actor", 12 * MIB).unwrap();
    let _foreign = device.alloc(20 * MIB).unwrap();
    let refused = pool.alloc("critic", 10 * MIB).unwrap_err();
    let MemoryError::DeviceFull {
        asked,
        free,
        owners,
        ..
    } = &refused
    else {
        panic!("{refused}");
    };
    assert_eq!((*asked, *free), (10 * MIB, 8 * MIB));
    assert_eq!(owners.0[0].owner, "actor");
    assert!(refused.to_string().contains("actor (12582912 of 31457280)"));
}

#[test]
fn a_released_owner_leaves_nothing_and_its_blocks_are_stale() {
    let (mut pool, _) = pool(40 * MIB, &[("actor", 20 * MIB)]);
    let block = pool.alloc("actor", 700).unwrap();
    assert_eq!(block.bytes(), 1024);
    assert_eq!(pool.release("actor").unwrap(), 1024);
    pool.reserve("critic", 20 * MIB).unwrap();
    let heir = pool.alloc("critic", 700).unwrap();
    assert_eq!(heir.address(), block.address());
    assert!(matches!(pool.free(block), Err(MemoryError::Stale { .. })));
    assert_eq!(pool.owner("critic").unwrap().used_bytes, 1024);
    assert!(matches!(
        pool.alloc("actor", 1),
        Err(MemoryError::Unreserved { .. })
    ));
    pool.free(heir).unwrap();
}

#[test]
fn absurd_sizes_are_refused() {
    let (mut pool, _) = pool(40 * MIB, &[("actor", 20 * MIB)]);
    assert!(matches!(
        pool.alloc("actor", 0),
        Err(MemoryError::Zero { .. })
    ));
    assert!(matches!(
        pool.alloc("actor", u64::MAX),
        Err(MemoryError::OverBudget { .. })
    ));
    assert!(matches!(
        pool.reserve("nobody", 0),
        Err(MemoryError::Zero { .. })
    ));
    assert_eq!(charge(u64::MAX), None);
}

#[test]
fn a_broken_device_is_a_fault_and_takes_no_budget() {
    let mut device = Flat::new(40 * MIB);
    device.broken = true;
    let mut pool = Pool::new(device);
    pool.reserve("actor", 20 * MIB).unwrap();
    let refused = pool.alloc("actor", MIB).unwrap_err();
    assert_eq!(
        refused,
        MemoryError::Fault(GpuFault::new(0, FaultKind::Lost))
    );
    assert_eq!(pool.owner("actor").unwrap().used_bytes, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { owner: usize, bytes: u64 },
    Free { which: usize },
    Reserve { owner: usize, budget: u64 },
    Release { owner: usize },
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![1..4 * KIB, KIB..2 * MIB, MIB..12 * MIB, MIB..40 * MIB];
    let step = prop_oneof![
        6 => (0usize..3, bytes).prop_map(|(owner, bytes)| Step::Alloc { owner, bytes }),
        5 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => (0usize..3, MIB..50 * MIB)
            .prop_map(|(owner, budget)| Step::Reserve { owner, budget }),
        1 => (0usize..3).prop_map(|owner| Step::Release { owner }),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..120)
}

/// Runs the steps beside a model that only adds up; returns what was given, for comparison.
fn run(steps: &[Step]) -> Vec<Result<u64, MemoryError>> {
    const OWNERS: [&str; 3] = ["actor", "critic", "reward"];
    let capacity = 96 * MIB;
    let (mut pool, device) = pool(capacity, &OWNERS.map(|owner| (owner, 32 * MIB)));
    let mut held: Vec<(usize, Block)> = vec![];
    let mut trace = vec![];
    for step in steps {
        match *step {
            Step::Alloc { owner, bytes } => match pool.alloc(OWNERS[owner], bytes) {
                Ok(block) => {
                    assert_eq!(block.bytes(), charge(bytes).unwrap());
                    assert_eq!(block.address() % 512, 0);
                    trace.push(Ok(block.address()));
                    held.push((owner, block));
                }
                Err(error) => {
                    if let MemoryError::DeviceFull { asked, free, .. } = &error {
                        assert!(free < asked);
                    }
                    trace.push(Err(error));
                }
            },
            Step::Free { which } if !held.is_empty() => {
                let (_, block) = held.swap_remove(which % held.len());
                pool.free(block).unwrap();
            }
            Step::Free { .. } => {}
            Step::Reserve { owner, budget } => {
                trace.push(pool.reserve(OWNERS[owner], budget).map(|()| budget));
            }
            Step::Release { owner } => {
                trace.push(pool.release(OWNERS[owner]));
                let (gone, kept) = held.into_iter().partition(|(of, _)| *of == owner);
                held = kept;
                for (_, block) in gone {
                    assert!(matches!(pool.free(block), Err(MemoryError::Stale { .. })));
                }
            }
            Step::Trim => trace.push(pool.trim().map_err(MemoryError::from)),
        }
        check(&pool, &device, &held, OWNERS);
    }
    for (_, block) in held {
        pool.free(block).unwrap();
    }
    assert_eq!(pool.stats().used_bytes, 0);
    pool.trim().unwrap();
    assert_eq!(pool.stats().mapped_bytes, 0);
    assert_eq!(device.taken(), 0, "everything freed comes back");
    trace
}

fn check(pool: &Pool<Flat>, device: &Flat, held: &[(usize, Block)], owners: [&str; 3]) {
    pool.pieces.check();
    let mut spans: Vec<(u64, u64)> = held
        .iter()
        .map(|(_, block)| (block.address(), block.address() + block.bytes()))
        .collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "blocks overlap");
    }
    for (begin, end) in spans {
        let inside = device
            .given
            .lock()
            .iter()
            .any(|(at, bytes)| *at <= begin && end <= at + bytes);
        assert!(inside, "a block is outside of what the device gave");
    }
    let stats = pool.stats();
    assert_eq!(stats.mapped_bytes, device.taken());
    assert!(stats.used_bytes <= stats.mapped_bytes && stats.reserved_bytes <= device.capacity);
    for (index, owner) in owners.into_iter().enumerate() {
        let sum: u64 = held
            .iter()
            .filter(|(of, _)| *of == index)
            .map(|(_, block)| block.bytes())
            .sum();
        let known = pool.owner(owner).unwrap_or_default();
        assert_eq!(known.used_bytes, sum);
        assert!(sum <= known.budget_bytes && sum <= known.used_peak_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn blocks_never_overlap_budgets_hold_and_everything_comes_back(steps in steps()) {
        let first = run(&steps);
        prop_assert_eq!(first, run(&steps), "the same calls give the same addresses");
    }

    #[test]
    fn a_dropped_pool_gives_everything_back(steps in steps()) {
        let (mut pool, device) = pool(96 * MIB, &[("actor", 96 * MIB)]);
        for step in steps {
            if let Step::Alloc { bytes, .. } = step {
                drop(pool.alloc("actor", bytes));
            }
        }
        drop(pool);
        prop_assert_eq!(device.taken(), 0);
    }
}
