//! Twelve ways in which eight ranks train a model together, each beside one device.

use super::*;

/// Ranks of each kind, and the name of what they make together. Of a model without experts, expert ranks are copies.
pub(super) fn plans() -> Vec<(&'static str, Sharing)> {
    let of = |copies, experts, context, tensor| Sharing {
        copies,
        experts,
        context,
        tensor,
        ..Sharing::ALONE
    };
    let shards = |sharing| Sharing {
        zero: ZeroStage::Parameters,
        ..sharing
    };
    let staged = |stages, chunks, sharing| Sharing {
        stages,
        chunks,
        ..sharing
    };
    let ring = |sharing| Sharing {
        context_kind: ContextKind::Ring,
        ..sharing
    };
    let hybrid = Sharing {
        shards: Some(4),
        ..shards(of(8, 1, 1, 1))
    };
    vec![
        ("dp8", of(8, 1, 1, 1)),
        ("fsdp8", shards(of(8, 1, 1, 1))),
        ("hsdp 2x4", hybrid),
        ("tp2 x dp4", of(4, 1, 1, 2)),
        ("tp2 x fsdp4", shards(of(4, 1, 1, 2))),
        ("cp2 x fsdp4", shards(of(4, 1, 2, 1))),
        ("cp4 x dp2, ulysses", of(2, 1, 4, 1)),
        ("cp4 x dp2, ring", ring(of(2, 1, 4, 1))),
        ("pp2 x dp4", staged(2, 1, of(4, 1, 1, 1))),
        ("pp4 interleaved x dp2", staged(4, 2, of(2, 1, 1, 1))),
        ("ep4 x fsdp2", shards(of(2, 4, 1, 1))),
        ("pp2 x tp2 x fsdp2", staged(2, 1, shards(of(2, 1, 1, 2)))),
        ("pp2 x ep2 x cp2", staged(2, 1, of(1, 2, 2, 1))),
    ]
}

/// SEMANTICS 132, 135, 137, 138. Each plan on eight ranks, of a dense model and of one with experts, with dropout;
/// `scripts/parallel` makes a table of whole runs of them.
#[test]
fn each_of_twelve_plans_trains_a_model_as_one_device_does() {
    let [dense, _, _, experts, _] = models().try_into().unwrap();
    for (kind, config) in [("dense", dense), ("experts", experts)] {
        for (name, sharing) in plans() {
            let sharing = match config.block.experts() {
                Some(_) => sharing,
                None => Sharing {
                    copies: sharing.copies * sharing.experts,
                    experts: 1,
                    ..sharing
                },
            };
            assert_eq!(sharing.ranks(), 8, "{name}");
            // Stages are not of one length.
            let config = ModelConfig {
                layers: sharing.stages * sharing.chunks + 1,
                ..config.clone()
            };
            let mut work = Texts::of(&[5, 3, 8, 2, 7, 4, 9, 6], 0..8);
            work.dropout = 0.1;
            let buckets = sharing.copies * sharing.experts;
            let dealt = vec![8 / buckets; buckets];
            let differ = are_as_one_device(
                &config,
                &settings(false, Some(0.05)),
                &work,
                &dealt,
                sharing,
            );
            let Differences { gradient, loss } =
                differ.unwrap_or_else(|error| panic!("{kind}, {name}: {error}"));
            println!("plan\t{kind}\t{name}\t{gradient:.1e}\t{loss:.1e}");
        }
    }
}
