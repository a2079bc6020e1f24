//! Which rank encodes which picture, and where its features are.
//!
//! Features of a step are one table of all ranks. Each rank writes what it has encoded into a table of
//! zeros, and one all-reduce brings all of it to all; the gradient comes back the same way, from those
//! who have read the features (symmetric dispatch, MegaScale-Omni, arXiv 2605.08962). So a picture may
//! be encoded anywhere, and nothing of the gradient depends on where, but for rounding.

use std::collections::BTreeMap;
use std::ops::Range;

use odeon::Failure;
use odeon_algorithms::model::Pictures;
use odeon_data::pack::Packed;
use odeon_data::plan::EncoderShare;
use odeon_data::sample::{Image, SampleId};

/// The table of features of a step, by rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Features {
    /// The first row of each picture.
    first: BTreeMap<(SampleId, u32), u32>,
    /// Rows in all.
    pub(super) rows: u32,
    /// Those that this rank encodes.
    pub(super) own: Range<u32>,
}

impl Features {
    /// Of what all ranks encode, in their order.
    pub(super) fn shared(shares: &[EncoderShare], rank: u32) -> Self {
        let mut features = Self::default();
        for (of, share) in (0..).zip(shares) {
            let begin = features.rows;
            for picture in &share.pictures {
                let name = (picture.sample, picture.nth);
                features.first.insert(name, features.rows);
                features.rows += picture.patches / 4;
            }
            if of == rank {
                features.own = begin..features.rows;
            }
        }
        features
    }

    /// Of the pictures that come with the samples of a rank, which it encodes itself.
    pub(super) fn own(batches: &[Packed], ids: &[Vec<SampleId>]) -> Self {
        let mut features = Self::default();
        for (packed, ids) in batches.iter().zip(ids) {
            for (sequence, nth, image) in packed.pictures() {
                features.first.insert((ids[sequence], nth), features.rows);
                features.rows += image.tokens();
            }
        }
        features.own = 0..features.rows;
        features
    }

    /// The first row of each picture of a micro-batch.
    pub(super) fn rows_of(&self, packed: &Packed, ids: &[SampleId]) -> Result<Vec<u32>, Failure> {
        let row = |(sequence, nth, _): (usize, u32, &Image)| {
            let name = (ids[sequence], nth);
            let lacks = || Failure::error(format!("nobody encodes picture {nth} of {:?}", name.0));
            self.first.get(&name).copied().ok_or_else(lacks)
        };
        packed.pictures().map(row).collect()
    }
}

/// Patches that are encoded in one pass, as far as pictures are not larger.
const PATCHES_MAX: u32 = 8192;

/// Pictures in passes of the encoder.
pub(super) fn passes(images: &[Image], patch: usize) -> Result<Vec<Pictures>, Failure> {
    let mut passes: Vec<Pictures> = vec![];
    for image in images {
        if usize::from(image.patch) != patch {
            let other = format!(
                "a picture has patches of {} pixels, and the encoder reads those of {patch}: let \
                 pictures.patch of its source be that of the model",
                image.patch
            );
            return Err(Failure::error(other).fatal());
        }
        let has_room =
            |pass: &&mut Pictures| pass.patches() as u32 + image.patches() <= PATCHES_MAX;
        match passes.last_mut().filter(has_room) {
            Some(pass) => pass.push(&image.pixels, image.places()),
            None => {
                let mut pass = Pictures::new();
                pass.push(&image.pixels, image.places());
                passes.push(pass);
            }
        }
    }
    Ok(passes)
}

#[cfg(test)]
mod tests {
    use odeon_data::plan::PictureRef;
    use odeon_data::sample::SourceNumber;

    use super::*;

    fn id(nth: u32) -> SampleId {
        SampleId {
            source: SourceNumber(0),
            epoch: 0,
            cell: 0,
            nth,
        }
    }

    fn share(pictures: &[(u32, u32, u32)]) -> EncoderShare {
        let picture = |&(sample, nth, patches): &(u32, u32, u32)| PictureRef {
            sample: id(sample),
            nth,
            patches,
            bucket: 0,
            microbatch: 0,
        };
        EncoderShare {
            pictures: pictures.iter().map(picture).collect(),
            cost: 0,
        }
    }

    #[test]
    fn every_picture_has_rows_of_its_own_and_each_rank_knows_which_are_its() {
        let shares = [
            share(&[(3, 0, 8), (1, 1, 4)]),
            share(&[]),
            share(&[(1, 0, 16)]),
        ];
        let own = [0..3, 0..0, 3..7];
        for (rank, own) in (0..).zip(own) {
            let features = Features::shared(&shares, rank);
            assert_eq!(features.rows, 7);
            assert_eq!(features.own.len(), own.len());
            assert!(own.is_empty() || features.own == own, "{features:?}");
            let first: Vec<_> = features.first.values().copied().collect();
            assert_eq!(first, [3, 2, 0]);
        }
    }
}
