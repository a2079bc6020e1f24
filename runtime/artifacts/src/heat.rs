//! Which pieces of a program are read first when it starts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Bundle, Digest, Listing, Piece, Recording};

/// The pieces that are hot when a program starts, learnt from recordings of several starts. Pure.
///
/// A program reads a small part of its file to start, and mostly the same part each time. Bringing
/// that part first, in the order in which it is read, lets it start before the rest is there
/// (record and prefetch of hot blocks, Bootseer, arXiv 2507.12619). Pieces are known by their
/// content, so what was learnt of one build holds for the pieces that the next one shares with it;
/// see [`Listing`] for how many those are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    options: HeatOptions,
    /// The recordings of each start, newest first.
    starts: VecDeque<Vec<Recording>>,
}

/// Bounds on which pieces count as hot, and on how much is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatOptions {
    /// The part of all recordings that must have read a piece, from 0 to 1. Older ones count less.
    pub quantile: f64,
    /// The weight of a recording relative to one of the start after it, from 0 to 1.
    pub decay: f64,
    /// The most starts that are remembered.
    pub starts_max: usize,
    /// The most recordings of one start. Nodes behave alike, so a sample will do.
    pub recordings_max: usize,
    /// The most pieces, of a recording and of what is hot. What is read later is left out.
    pub pieces_max: usize,
}

impl Default for HeatOptions {
    /// Half of all recordings, each start counting half of the next one; four starts of sixteen
    /// nodes, and 4,096 pieces, which are about a GiB.
    fn default() -> Self {
        Self {
            quantile: 0.5,
            decay: 0.5,
            starts_max: 4,
            recordings_max: 16,
            pieces_max: 4_096,
        }
    }
}

/// A piece that is read when the program starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hot {
    /// The piece.
    pub piece: Digest,
    /// The part of all recordings that read it, from 0 to 1, older ones counting less.
    pub share: f64,
    /// When it was first read: the median over those.
    pub after: Duration,
}

impl Heat {
    /// Nothing learnt yet.
    #[must_use]
    pub const fn new(options: HeatOptions) -> Self {
        Self {
            options,
            starts: VecDeque::new(),
        }
    }

    /// Learns what the nodes recorded in one start, the newest.
    pub fn learn(&mut self, recordings: impl IntoIterator<Item = Recording>) {
        let mut start: Vec<Recording> = recordings
            .into_iter()
            .take(self.options.recordings_max)
            .collect();
        if start.is_empty() {
            return;
        }
        for recording in &mut start {
            recording.reads.sort_by_key(|read| read.after);
            recording.reads.truncate(self.options.pieces_max);
        }
        self.starts.push_front(start);
        self.starts.truncate(self.options.starts_max);
    }

    /// Number of starts it has learnt from, those it has forgotten aside.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.starts.len()
    }

    /// The pieces that are hot, in the order in which they are needed.
    #[must_use]
    pub fn hot(&self) -> Vec<Hot> {
        let mut weight = 1.0;
        let mut total = 0.0;
        let mut reads: HashMap<Digest, Vec<(Duration, f64)>> = HashMap::new();
        for start in &self.starts {
            total += weight;
            // A start counts as much whether few or many nodes recorded it.
            let each = weight / start.len() as f64;
            for recording in start {
                let mut times: HashMap<Digest, Duration> = HashMap::new();
                for read in &recording.reads {
                    times.entry(read.piece).or_insert(read.after);
                }
                for (piece, after) in times {
                    reads.entry(piece).or_default().push((after, each));
                }
            }
            weight *= self.options.decay;
        }
        let hot = reads.into_iter().map(|(piece, times)| Hot {
            piece,
            share: times.iter().map(|(_, weight)| weight).sum::<f64>() / total,
            after: median(times),
        });
        // Sums of parts are not exact.
        let least = self.options.quantile - 1e-9;
        let mut hot: Vec<Hot> = hot.filter(|hot| hot.share >= least).collect();
        hot.sort_by_key(|hot| (hot.after, hot.piece));
        hot.truncate(self.options.pieces_max);
        hot
    }

    /// In which order to bring the pieces of a file: the hot ones as they are needed, then the rest
    /// as they lie in the file. Each index of [`Listing::pieces`] occurs once.
    #[must_use]
    pub fn order(&self, listing: &Listing) -> Vec<usize> {
        let hot = self.hot();
        let ranks: HashMap<Digest, usize> = hot.iter().map(|hot| hot.piece).zip(0..).collect();
        let rank = |index: &usize| {
            let piece = &listing.pieces()[*index];
            ranks.get(&piece.digest).copied().unwrap_or(usize::MAX)
        };
        let mut order: Vec<usize> = (0..listing.pieces().len()).collect();
        // Those of one rank stay in the order of the file.
        order.sort_by_key(rank);
        order
    }

    /// The pieces of a bundle, each once: first the hot ones as they are needed, then the rest, those
    /// of the file that is started before those of the others.
    #[must_use]
    pub fn split(&self, bundle: &Bundle) -> (Vec<Piece>, Vec<Piece>) {
        let entry = bundle.file(bundle.entry()).into_iter();
        let all = entry.flat_map(|file| file.listing.pieces());
        let mut seen = HashSet::new();
        let all = all.chain(bundle.pieces());
        let all: Vec<Piece> = all.filter(|it| seen.insert(it.digest)).copied().collect();
        let known: HashMap<Digest, Piece> = all.iter().map(|it| (it.digest, *it)).collect();
        let hot = self.hot().into_iter();
        let hot: Vec<Piece> = hot.filter_map(|it| known.get(&it.piece).copied()).collect();
        let is_hot: HashSet<Digest> = hot.iter().map(|it| it.digest).collect();
        let rest = all.into_iter().filter(|it| !is_hot.contains(&it.digest));
        let rest = rest.collect();
        (hot, rest)
    }

    /// As a store keeps it, and as it travels.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("digests and numbers can be written as JSON")
    }

    /// Reads what [`encode`](Self::encode) wrote. `None` when it is nothing of the kind, or more than
    /// is ever remembered: then nothing is known, which costs time and nothing else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > Self::BYTES_MAX {
            return None;
        }
        let mut heat: Self = serde_json::from_slice(bytes).ok()?;
        // What others have learnt is told here by our own bounds.
        heat.options = HeatOptions::default();
        heat.starts.truncate(heat.options.starts_max);
        Some(heat)
    }

    /// The most bytes that are taken for one.
    pub const BYTES_MAX: usize = 16 << 20;
}

impl Default for Heat {
    /// Nothing learnt, with the usual options.
    fn default() -> Self {
        Self::new(HeatOptions::default())
    }
}

/// The time before which half of the weight lies.
fn median(mut times: Vec<(Duration, f64)>) -> Duration {
    times.sort_by_key(|(after, _)| *after);
    let half = times.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut passed = 0.0;
    let reached = times.iter().find(|(_, weight)| {
        passed += weight;
        passed >= half
    });
    // Rounding may leave the last one short of half of nothing.
    reached
        .or_else(|| times.last())
        .map_or(Duration::ZERO, |(after, _)| *after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::noise::noise;
    use crate::{BundleFile, FirstRead};

    fn piece(n: u64) -> Digest {
        Digest::of(&n.to_le_bytes())
    }

    /// A recording of pieces with the seconds after which they were read.
    fn recording(reads: &[(u64, u64)]) -> Recording {
        let reads = reads.iter().map(|(n, seconds)| FirstRead {
            piece: piece(*n),
            after: Duration::from_secs(*seconds),
        });
        Recording {
            of: Digest::of(b"file"),
            reads: reads.collect(),
        }
    }

    fn hot(heat: &Heat) -> Vec<Digest> {
        heat.hot().iter().map(|hot| hot.piece).collect()
    }

    #[test]
    fn what_half_of_the_nodes_read_is_hot_in_the_order_of_median_times() {
        let mut heat = Heat::new(HeatOptions::default());
        assert_eq!(heat.hot(), []);
        heat.learn([]);
        heat.learn([
            recording(&[(1, 5), (2, 1), (3, 9)]),
            recording(&[(1, 6), (2, 2)]),
            recording(&[(1, 0), (4, 1), (3, 9)]),
            recording(&[(1, 7), (2, 30)]),
        ]);
        assert_eq!(hot(&heat), [piece(2), piece(1), piece(3)]);
        let found = heat.hot()[1];
        assert_eq!((found.share, found.after.as_secs()), (1.0, 5));
    }

    #[test]
    fn what_is_no_longer_read_cools_down() {
        let mut heat = Heat::new(HeatOptions::default());
        heat.learn([recording(&[(1, 0)]), recording(&[(1, 0)])]);
        heat.learn([recording(&[(2, 0)])]);
        // One of three parts of the weight is left of the older start.
        assert_eq!(hot(&heat), [piece(2)]);
        for _ in 0..4 {
            heat.learn([recording(&[(3, 0)])]);
        }
        assert_eq!(hot(&heat), [piece(3)]);
        assert_eq!(heat.starts.len(), 4);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut heat = Heat::new(HeatOptions {
            recordings_max: 2,
            pieces_max: 3,
            ..HeatOptions::default()
        });
        heat.learn((0..5).map(|_| recording(&[(1, 9), (2, 8), (3, 7), (4, 6), (4, 1)])));
        assert_eq!(heat.starts[0].len(), 2);
        assert_eq!(hot(&heat), [piece(4), piece(3)]);
        let json = serde_json::to_string(&heat).unwrap();
        assert_eq!(serde_json::from_str::<Heat>(&json).unwrap(), heat);
    }

    #[test]
    fn a_tenth_of_the_file_changed_leaves_nine_tenths_of_what_was_learnt() {
        let mut bytes = noise(1, 20 << 20);
        let before = Listing::of(bytes.as_slice()).unwrap();
        // Every fifth piece is read, from the back.
        let hot = before.pieces().iter().rev().step_by(5);
        let reads = hot.zip(0..).map(|(piece, n)| FirstRead {
            piece: piece.digest,
            after: Duration::from_secs(n),
        });
        let reads: Vec<FirstRead> = reads.collect();
        let mut heat = Heat::new(HeatOptions::default());
        heat.learn([Recording {
            of: before.digest(),
            reads: reads.clone(),
        }]);
        // Some bytes are replaced, and everything behind them moves.
        let new = noise(2, 2_100_000);
        bytes.splice(4_000_000..4_000_000 + (2 << 20), new);
        let after = Listing::of(bytes.as_slice()).unwrap();
        assert_ne!(after.digest(), before.digest());
        let order = heat.order(&after);
        let there: HashSet<Piece> = after.pieces().iter().copied().collect();
        let kept: Vec<Digest> = reads.iter().map(|read| read.piece).collect();
        let kept = kept
            .iter()
            .filter(|it| there.iter().any(|piece| piece.digest == **it));
        let first = order.iter().map(|index| &after.pieces()[*index].digest);
        let kept: Vec<&Digest> = kept.collect();
        assert!(
            kept.len() * 10 >= reads.len() * 8,
            "{} of {}",
            kept.len(),
            reads.len()
        );
        assert_eq!(first.take(kept.len()).collect::<Vec<_>>(), kept);
    }

    #[test]
    fn a_bundle_is_split_into_what_is_read_first_and_the_rest() {
        let of = |pieces: &[u64]| {
            let bytes = pieces.len() as u64;
            let pieces = pieces.iter().map(|n| Piece {
                digest: piece(*n),
                bytes: 1,
            });
            BundleFile {
                executable: true,
                listing: Listing::new(piece(99), bytes, pieces.collect()).unwrap(),
            }
        };
        let files = [
            ("a", of(&[1, 2, 3])),
            ("run", of(&[4, 5, 1])),
            ("z", of(&[6])),
        ];
        let files = files.map(|(path, file)| (path.to_owned(), file));
        let bundle = Bundle::new("run", files).unwrap();
        let mut heat = Heat::default();
        let numbers = |pieces: &[Piece]| -> Vec<u64> {
            let number = |it: &Piece| (0..9).find(|n| piece(*n) == it.digest).unwrap();
            pieces.iter().map(number).collect()
        };
        let (hot, rest) = heat.split(&bundle);
        assert_eq!(
            (numbers(&hot), numbers(&rest)),
            (vec![], vec![4, 5, 1, 2, 3, 6])
        );
        // The eighth is of another bundle.
        heat.learn([recording(&[(6, 1), (8, 2), (2, 3)])]);
        let heat = Heat::decode(&heat.encode()).unwrap();
        assert_eq!(heat.starts(), 1);
        let (hot, rest) = heat.split(&bundle);
        assert_eq!(
            (numbers(&hot), numbers(&rest)),
            (vec![6, 2], vec![4, 5, 1, 3])
        );
        assert_eq!(Heat::decode(b"{}"), None);
    }

    proptest! {
        #[test]
        fn an_order_brings_each_piece_once_and_hot_ones_first(
            file in prop::collection::vec(0_u64..20, 0..40),
            starts in prop::collection::vec(
                prop::collection::vec(prop::collection::vec((0_u64..25, 0_u64..9), 0..12), 1..4),
                0..5,
            ),
            quantile in 0.0..=1.0,
        ) {
            let pieces: Vec<Piece> =
                file.iter().map(|n| Piece { digest: piece(*n), bytes: 1 }).collect();
            let listing = Listing::new(piece(99), file.len() as u64, pieces).unwrap();
            let mut heat = Heat::new(HeatOptions { quantile, ..HeatOptions::default() });
            for start in starts {
                heat.learn(start.iter().map(|reads| recording(reads)));
            }
            let order = heat.order(&listing);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..file.len()).collect::<Vec<_>>());
            let hot = hot(&heat);
            prop_assert!(heat.hot().iter().all(|it| it.share <= 1.0 + 1e-9));
            let rank = |index: &usize| {
                let digest = listing.pieces()[*index].digest;
                hot.iter().position(|it| *it == digest).unwrap_or(hot.len())
            };
            let keys: Vec<_> = order.iter().map(|index| (rank(index), *index)).collect();
            prop_assert!(keys.is_sorted());
        }
    }
}
