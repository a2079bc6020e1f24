//! Tests of the arena.

use proptest::prelude::*;

use super::*;
use crate::Mapper;

const MIB: usize = 1 << 20;

fn arena(quota_mib: u64, warm_mib: u64) -> Arena {
    Arena::new(ArenaOptions {
        quota_bytes: quota_mib << 20,
        warm_bytes: warm_mib << 20,
        slab_bytes: 2 << 20,
    })
}

#[test]
fn a_sealed_region_reads_back_and_becomes_bytes_in_place() {
    let arena = arena(16, 16);
    let region = arena.copy_in(b"weights").unwrap();
    let bytes = Bytes::from(region.clone());
    assert_eq!(&region[..], b"weights");
    assert_eq!(bytes.as_ptr(), region.as_ptr());
    drop(region);
    assert_eq!(&bytes[2..], b"ights");
    assert_eq!(arena.stats().regions, 1);
    drop(bytes);
    assert_eq!(arena.stats().regions, 0);
}

#[test]
fn regions_are_aligned_as_asked() {
    let arena = arena(64, 64);
    let small = arena.writer(100).unwrap();
    let page = arena.writer_aligned(100, Align::Page).unwrap();
    let large = arena.writer(5 * MIB).unwrap();
    assert!(small.as_ptr().addr().is_multiple_of(64));
    assert!(page.as_ptr().addr().is_multiple_of(4096));
    assert!(large.as_ptr().addr().is_multiple_of(4096));
    assert_eq!((small.len(), page.len(), large.len()), (100, 100, 5 * MIB));
}

#[test]
fn the_quota_is_exact_and_its_error_says_what_to_do() {
    let arena = arena(4, 16);
    let first = arena.writer(3 * MIB).unwrap();
    let _second = arena.writer(MIB).unwrap();
    let refused = arena.writer(2 * MIB).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "shared memory quota exceeded: asked for 2.0 MiB with 4.0 MiB of 4.0 MiB in use; \
         drop blobs that are no longer read, wait for their readers, or raise the quota"
    );
    assert!(matches!(
        refused,
        ArenaError::QuotaExceeded {
            asked: 0x20_0000,
            used: 0x40_0000,
            quota: 0x40_0000
        }
    ));
    drop(first);
    arena.writer(2 * MIB).unwrap();
    let hopeless = arena.writer(5 * MIB).unwrap_err().to_string();
    assert!(
        hopeless.ends_with("raise the quota or write smaller pieces"),
        "{hopeless}"
    );
    assert_eq!(arena.stats().used_bytes, MIB as u64);
}

#[test]
fn absurd_lengths_are_refused_without_a_trace() {
    let arena = Arena::new(ArenaOptions {
        quota_bytes: u64::MAX,
        ..ArenaOptions::default()
    });
    for len in [usize::MAX, usize::MAX - 64, isize::MAX as usize, 1 << 56] {
        arena.writer(len).unwrap_err();
    }
    let stats = arena.stats();
    assert_eq!((stats.regions, stats.used_bytes, stats.slabs), (0, 0, 0));
}

#[test]
fn freed_memory_is_reused_warm_and_given_up_beyond_the_limit() {
    let arena = arena(64, 8);
    let first = arena.copy_in(&vec![1; 5 * MIB]).unwrap();
    let (slab, held) = (first.name().slab, arena.stats().held_bytes);
    assert!(held >= 5 * MIB as u64);
    drop(first);
    assert_eq!(arena.stats().warm_bytes, held);

    let again = arena.copy_in(&vec![2; 5 * MIB - 17]).unwrap();
    assert_eq!(again.name().slab, slab);
    assert_eq!(arena.stats().warm_bytes, 0);

    let other = arena.writer(7 * MIB).unwrap();
    assert_eq!(arena.stats().slabs, 2);
    drop(again);
    drop(other);
    let stats = arena.stats();
    assert_eq!(
        stats.slabs, 1,
        "one of them is beyond the limit of 8 MiB: {stats:?}"
    );
    assert!(stats.warm_bytes <= 8 << 20);
}

#[test]
fn only_warm_memory_is_mapped_for_those_who_cannot_wait() {
    let (arena, mapper) = (arena(64, 64), Mapper::new());
    let region = arena.writer(5 * MIB).unwrap().seal();
    assert!(mapper.map_if_warm(&region.name()).unwrap().is_none());
    mapper.map(&region.name()).unwrap();
    assert_eq!(
        mapper.map_if_warm(&region.name()).unwrap().unwrap().len(),
        5 * MIB
    );
}

#[test]
fn small_regions_share_a_slab() {
    let arena = arena(64, 8);
    let regions: Vec<Region> = (0..100u8)
        .map(|i| arena.copy_in(&vec![i; 1000]).unwrap())
        .collect();
    assert_eq!(arena.stats().slabs, 1);
    for (i, region) in regions.iter().enumerate() {
        assert!(region.iter().all(|&byte| usize::from(byte) == i));
    }
}

#[test]
fn a_writer_may_end_early_or_never() {
    let arena = arena(64, 8);
    let mut writer = arena.writer(100).unwrap();
    writer[..3].copy_from_slice(b"abc");
    writer.truncate(3);
    let region = writer.seal();
    assert_eq!(&region[..], b"abc");
    assert_eq!(region.name().len, 3);
    drop((region, arena.writer(100).unwrap()));
    assert_eq!(arena.stats().used_bytes, 0);
}

#[test]
fn the_empty_region_is_a_region() {
    let arena = arena(1, 1);
    let region = arena.copy_in(b"").unwrap();
    assert!(Mapper::new().map(&region.name()).unwrap().is_empty());
}

#[test]
fn regions_outlive_their_arena() {
    let region = arena(16, 16).copy_in(b"left over").unwrap();
    assert_eq!(&region[..], b"left over");
}

#[test]
fn threads_allocate_side_by_side() {
    let arena = arena(256, 32);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let arena = arena.clone();
            scope.spawn(move || {
                for round in 0..200usize {
                    let len = (round * 7919 + usize::from(thread)) % 600_000;
                    let region = arena.copy_in(&vec![thread; len]).unwrap();
                    assert!(region.iter().all(|&byte| byte == thread));
                }
            });
        }
    });
    assert_eq!(arena.stats().used_bytes, 0);
}

#[derive(Clone, Debug)]
enum Step {
    Make { len: usize, page: bool },
    Free { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![6 => 0usize..5_000, 2 => 0usize..300_000, 1 => 0usize..6_000_000];
    prop_oneof![
        3 => (len, any::<bool>()).prop_map(|(len, page)| Step::Make { len, page }),
        2 => any::<usize>().prop_map(|which| Step::Free { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Each region is filled with its own byte; overlap would show as a foreign byte.
    #[test]
    fn regions_never_overlap_and_the_quota_is_kept(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let arena = arena(8, 4);
        let mapper = Mapper::new();
        let mut live: Vec<(u8, Region)> = Vec::new();
        let mut used = 0;
        let charge = |len: usize| (len.max(1) as u64).next_multiple_of(64);
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Make { len, page } => {
                    let align = if page { Align::Page } else { Align::CacheLine };
                    match arena.writer_aligned(len, align) {
                        Ok(mut writer) => {
                            used += charge(len);
                            writer.fill(i as u8);
                            live.push((i as u8, writer.seal()));
                        }
                        Err(ArenaError::QuotaExceeded { .. }) => {
                            prop_assert!(used + charge(len) > 8 << 20);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                Step::Free { which } if !live.is_empty() => {
                    let (_, region) = live.swap_remove(which % live.len());
                    used -= charge(region.len());
                    let name = region.name();
                    mapper.map(&name).unwrap();
                    drop(region);
                    prop_assert!(mapper.map(&name).is_err(), "freed, yet readable by name");
                }
                Step::Free { .. } => {}
            }
            prop_assert_eq!(arena.stats().used_bytes, used);
            prop_assert!(arena.stats().warm_bytes <= 4 << 20);
        }
        for (byte, region) in &live {
            prop_assert!(region.iter().all(|b| b == byte));
            prop_assert_eq!(&mapper.map(&region.name()).unwrap()[..], &region[..]);
        }
        live.clear();
        prop_assert_eq!(arena.stats().regions, 0);
        prop_assert_eq!(arena.stats().held_bytes, arena.stats().warm_bytes);
    }
}

#[test]
fn what_has_been_unused_since_a_moment_is_given_back() {
    let arena = arena(64, 64);
    let (used, idle) = (
        arena.writer(3 * MIB).unwrap(),
        arena.writer(5 * MIB).unwrap(),
    );
    drop(idle);
    let moment = arena.moment();
    let again = arena.writer(9 * MIB).unwrap();
    drop(again);
    let before = arena.stats();
    arena.cool(moment);
    let after = arena.stats();
    assert_eq!((before.slabs, after.slabs, after.regions), (3, 2, 1));
    assert!(after.warm_bytes >= 9 << 20, "it was used after the moment");
    drop(used);
    arena.cool(arena.moment());
    assert_eq!(arena.stats().held_bytes, 0);
}
