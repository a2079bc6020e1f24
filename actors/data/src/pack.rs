//! The samples of a micro-batch as one batch without padding.

mod slice;

use std::ops::Range;

use bytes::Bytes;
use odeon_algorithms::model::{Batch, BatchError, Sequence};
use thiserror::Error;

pub use self::slice::PackedSlice;
use crate::sample::{
    Image, Reader, Sample, SampleError, check_places, check_runs, form, token_width, write_images,
    write_runs, write_tokens,
};

/// Sequences one after the other, without padding.
///
/// A token is predicted if it is neither of its sequence's prompt nor of a run that is read; [`batch`](Self::batch) is the same as
/// a model of `odeon-algorithms` reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packed {
    /// Tokens of all sequences.
    pub tokens: Vec<u32>,
    /// The position of each token in its sequence, from 0.
    pub positions: Vec<u32>,
    /// Where sequences begin, and where the last one ends: one more than there are sequences.
    pub bounds: Vec<u32>,
    /// The tokens of each sequence that are read and not predicted; at least 1, at most all.
    pub prompts: Vec<u32>,
    /// Runs of tokens behind the prompts that are read and not predicted, among all tokens.
    pub read: Vec<Range<u32>>,
    /// The pictures of all sequences; their places are among all tokens.
    pub images: Vec<Image>,
}

/// Why samples cannot be packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PackError {
    /// There are more tokens than can be counted.
    #[error("{0} tokens are more than a batch can have")]
    TooLong(u64),
    /// A sample is not one.
    #[error("sample {nth} of the batch: {error}")]
    Sample {
        /// Which.
        nth: usize,
        /// The fault of the sample.
        error: SampleError,
    },
}

impl Packed {
    /// Packs samples in their order.
    ///
    /// # Errors
    /// [`PackError`] for a sample that contradicts itself, and for more than `u32::MAX` tokens.
    pub fn pack<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Result<Self, PackError> {
        let mut packed = Self {
            bounds: vec![0],
            ..Self::default()
        };
        for (nth, sample) in samples.into_iter().enumerate() {
            sample
                .check()
                .map_err(|error| PackError::Sample { nth, error })?;
            let start = packed.tokens.len() as u32;
            let end = u64::from(start) + sample.tokens.len() as u64;
            let end = u32::try_from(end).map_err(|_| PackError::TooLong(end))?;
            packed.tokens.extend_from_slice(&sample.tokens);
            packed.positions.extend(0..end - start);
            packed.bounds.push(end);
            packed.prompts.push(sample.prompt);
            let runs = sample.read.iter();
            let runs = runs.map(|run| start + run.start..start + run.end);
            packed.read.extend(runs);
            packed
                .images
                .extend(sample.images.iter().map(|image| Image {
                    at: image.at + start,
                    ..image.clone()
                }));
        }
        Ok(packed)
    }

    /// The same without pixels, for whoever reads what others encode.
    #[must_use]
    pub fn without_pixels(mut self) -> Self {
        for image in &mut self.images {
            *image = image.without_pixels();
        }
        self
    }

    /// The pictures, each with the number of its sequence and its number there.
    pub fn pictures(&self) -> impl Iterator<Item = (usize, u32, &Image)> {
        let mut last = (usize::MAX, 0);
        self.images.iter().map(move |image| {
            let sequence = self.bounds.partition_point(|end| *end <= image.at) - 1;
            last = match last {
                (before, nth) if before == sequence => (sequence, nth + 1),
                _ => (sequence, 0),
            };
            (sequence, last.1, image)
        })
    }

    /// For each token that a model reads 0, or 1 and the row of its feature, where `rows` says the
    /// first row of each picture. It is what [`Batch::seeing`] takes.
    #[must_use]
    pub fn visual(&self, rows: &[u32]) -> Vec<u32> {
        let mut all = vec![0; self.tokens.len()];
        for (image, first) in self.images.iter().zip(rows) {
            let begin = image.at as usize;
            let own = all[begin..].iter_mut().take(image.tokens() as usize);
            for (place, row) in own.zip(first + 1..) {
                *place = row;
            }
        }
        let sequences = self.bounds.windows(2);
        let read = sequences.flat_map(|ends| {
            let (start, end) = (ends[0] as usize, ends[1] as usize);
            start..(end - 1).max(start + 1)
        });
        read.map(|at| all[at]).collect()
    }

    /// The samples again.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let mut images = self.images.iter().peekable();
        let mut runs = self.read.iter().peekable();
        let sample = |(sequence, start): (Sequence<'_>, u32)| {
            let end = start + sequence.tokens.len() as u32;
            let mut own = Vec::new();
            while let Some(image) = images.next_if(|image| image.at < end) {
                own.push(Image {
                    at: image.at - start,
                    ..image.clone()
                });
            }
            let mut read = Vec::new();
            while let Some(run) = runs.next_if(|run| run.start < end) {
                read.push(run.start - start..run.end - start);
            }
            Sample {
                tokens: sequence.tokens.to_vec(),
                prompt: sequence.prompt as u32,
                read,
                images: own,
            }
        };
        self.sequences()
            .zip(self.bounds.iter().copied())
            .map(sample)
            .collect()
    }

    /// The sequences, as a model takes them.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence<'_>> {
        let bounds = self.bounds.windows(2);
        bounds.zip(&self.prompts).map(|(ends, &prompt)| Sequence {
            tokens: &self.tokens[ends[0] as usize..ends[1] as usize],
            prompt: prompt as usize,
        })
    }

    /// The batch that a model reads. Pictures are not part of it.
    ///
    /// # Errors
    /// [`BatchError::Empty`] without a sequence.
    pub fn batch(&self) -> Result<Batch, BatchError> {
        let batch = Batch::pack(&self.sequences().collect::<Vec<_>>())?;
        if self.read.is_empty() {
            return Ok(batch);
        }
        let mask = self.mask();
        Ok(batch.predicting(|sequence, at| {
            let first = self.bounds[sequence] + self.prompts[sequence];
            mask[first as usize + at]
        }))
    }

    /// Of each token, whether it is predicted.
    #[must_use]
    pub fn mask(&self) -> Vec<bool> {
        let own = |sequence: Sequence<'_>| {
            (0..sequence.tokens.len()).map(move |at| at >= sequence.prompt)
        };
        let mut mask: Vec<bool> = self.sequences().flat_map(own).collect();
        for run in &self.read {
            mask[run.start as usize..run.end as usize].fill(false);
        }
        mask
    }

    /// The number of tokens that are predicted.
    #[must_use]
    pub fn predicted(&self) -> u64 {
        self.predictions().map(|own| own as u64).sum()
    }

    /// The number of tokens of each sequence that are predicted.
    pub fn predictions(&self) -> impl Iterator<Item = usize> + '_ {
        let mut runs = self.read.iter().peekable();
        let sequences = self.bounds.windows(2).zip(&self.prompts);
        sequences.map(move |(ends, prompt)| {
            let mut own = ends[1] - ends[0] - prompt;
            while let Some(run) = runs.next_if(|run| run.start < ends[1]) {
                own -= run.end - run.start;
            }
            own as usize
        })
    }

    /// Checks that runs that are read lie each behind the prompt of one sequence.
    fn check_runs(&self) -> Result<(), SampleError> {
        let mut left = self.read.as_slice();
        for (ends, prompt) in self.bounds.windows(2).zip(&self.prompts) {
            let (own, rest) = left.split_at(left.partition_point(|run| run.start < ends[1]));
            check_runs(own, ends[0] + prompt, ends[1])?;
            left = rest;
        }
        check_runs(left, u32::MAX, u32::MAX)
    }

    /// Appends the batch as it is delivered.
    ///
    /// A header of 16 bytes (`OB`, the form's number, the bytes of a token, then the numbers of
    /// sequences, tokens and pictures), of each sequence its tokens and its prompt, 12 bytes a
    /// picture as in a [sample](Sample::encode_into), the tokens, the pixels. Positions are not sent:
    /// they follow. The form is 2 where runs behind prompts are read: their number and their bounds
    /// stand before the pictures.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let width = token_width(&self.tokens);
        out.extend_from_slice(&MAGIC);
        out.extend([form(&self.read), width as u8]);
        for count in [self.prompts.len(), self.tokens.len(), self.images.len()] {
            out.extend((count as u32).to_le_bytes());
        }
        for (ends, prompt) in self.bounds.windows(2).zip(&self.prompts) {
            out.extend((ends[1] - ends[0]).to_le_bytes());
            out.extend(prompt.to_le_bytes());
        }
        write_runs(&self.read, out);
        write_images(&self.images, out);
        write_tokens(&self.tokens, width, out);
        for image in &self.images {
            out.extend_from_slice(&image.pixels);
        }
    }

    /// The batch as it is delivered.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out.into()
    }

    /// Reads a batch. Its pixels are a part of `bytes` and not copied.
    ///
    /// # Errors
    /// [`SampleError`] for bytes that [`encode_into`](Self::encode_into) has not made.
    pub fn decode(bytes: &Bytes) -> Result<Self, SampleError> {
        let mut reader = Reader::new(bytes);
        let (magic, form, width) = (reader.array()?, reader.u8()?, reader.u8()?);
        if magic != MAGIC {
            return Err(SampleError::Foreign);
        }
        let (sequences, count, images) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let lengths = reader.u32s(sequences.checked_mul(2).ok_or(TOO_MANY)?)?;
        let read = reader.runs(form)?;
        let headers = reader.images(images)?;
        let tokens = reader.tokens(count, width)?;
        let images = reader.pixels(headers)?;
        reader.end()?;
        let (mut bounds, mut prompts, mut positions) = (vec![0], Vec::new(), Vec::new());
        let mut end = 0_u32;
        for &[length, prompt] in lengths.as_chunks().0 {
            if prompt == 0 || prompt > length {
                return Err(SampleError::Inconsistent(
                    "a prompt is empty or longer than its sequence",
                ));
            }
            end = end
                .checked_add(length)
                .filter(|&end| end <= count)
                .ok_or(TOO_MANY)?;
            bounds.push(end);
            prompts.push(prompt);
            positions.extend(0..length);
        }
        if end != count {
            return Err(SampleError::Inconsistent("tokens are of no sequence"));
        }
        check_places(&images, tokens.len())?;
        let within = |image: &Image| {
            let own = bounds.partition_point(|&bound| bound <= image.at);
            bounds
                .get(own)
                .is_some_and(|&end| image.at + image.tokens() <= end)
        };
        if !images.iter().all(within) {
            return Err(SampleError::Inconsistent("a picture is of two sequences"));
        }
        let packed = Self {
            tokens,
            positions,
            bounds,
            prompts,
            read,
            images,
        };
        packed.check_runs()?;
        Ok(packed)
    }
}

const MAGIC: [u8; 2] = *b"OB";
const TOO_MANY: SampleError =
    SampleError::Inconsistent("sequences have more tokens than there are");

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn picture(at: u32, side: u16) -> Image {
        let pixels = usize::from(side * side) * 3;
        Image {
            at,
            height_patches: side,
            width_patches: side,
            patch: 1,
            pixels: (0..pixels).map(|n| n as u8).collect(),
        }
    }

    prop_compose! {
        pub(crate) fn samples()(
            side in prop::option::of(1_u16..4),
            mut tokens in prop::collection::vec(prop_oneof![0_u32..300, any::<u32>()], 1..20),
            share in 0.0..1.0_f64,
            gaps in prop::collection::vec((1_u32..5, 1_u32..4), 0..3),
        ) -> Sample {
            let images: Vec<Image> = side.map(|side| picture(1, side * 2)).into_iter().collect();
            let placeholders: u32 = images.iter().map(Image::tokens).sum();
            tokens.resize(tokens.len() + placeholders as usize, 5);
            let prompt = 1 + ((tokens.len() - 1) as f64 * share) as u32;
            let read = crate::sample::tests::runs(prompt, tokens.len() as u32, gaps);
            Sample { tokens, prompt, read, images }
        }
    }

    #[test]
    fn the_bytes_of_a_batch_do_not_change() {
        let sample = |tokens: &[u32], prompt| Sample {
            tokens: tokens.to_vec(),
            prompt,
            ..Sample::default()
        };
        let packed = Packed::pack(&[sample(&[1, 2, 3], 1), sample(&[300], 1)]).unwrap();
        assert_eq!(packed.positions, [0, 1, 2, 0]);
        assert_eq!(packed.bounds, [0, 3, 4]);
        assert_eq!(packed.mask(), [false, true, true, false]);
        assert_eq!(packed.predicted(), 2);
        let golden = [
            b'O', b'B', 1, 2, 2, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, // header
            3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, // sequences
            1, 0, 2, 0, 3, 0, 0x2c, 1, // tokens
        ];
        assert_eq!(packed.encode()[..], golden);
    }

    proptest! {
        #[test]
        fn a_batch_without_pixels_comes_back_and_knows_its_pictures(
            samples in prop::collection::vec(samples(), 1..6), first in 0_u32..100,
        ) {
            let packed = Packed::pack(&samples).unwrap();
            let bare = packed.clone().without_pixels();
            prop_assert_eq!(&Packed::decode(&bare.encode()).unwrap(), &bare);
            let known: Vec<(usize, u32)> = packed.pictures().map(|(at, nth, _)| (at, nth)).collect();
            let of = |(at, sample): (usize, &Sample)| {
                (0..sample.images.len() as u32).map(move |nth| (at, nth)).collect::<Vec<_>>()
            };
            prop_assert_eq!(known, samples.iter().enumerate().flat_map(of).collect::<Vec<_>>());
            // A row for each visual token, in order.
            let mut next = first;
            let mut rows = vec![];
            for image in &packed.images {
                rows.push(next);
                next += image.tokens();
            }
            let visual = packed.visual(&rows);
            prop_assert_eq!(visual.len(), packed.batch().unwrap().processed());
            let seen: Vec<u32> = visual.into_iter().filter(|row| *row > 0).collect();
            // All in order, but for the last token of a sequence, which no model reads.
            let ends = |at: u32| packed.bounds.contains(&(at + 1)) && !packed.bounds.contains(&at);
            let places = packed.images.iter().zip(&rows).flat_map(|(image, row)| {
                (0..image.tokens()).map(move |nth| (image.at + nth, row + 1 + nth))
            });
            let expected = places.filter(|(at, _)| !ends(*at)).map(|(_, row)| row);
            prop_assert_eq!(seen, expected.collect::<Vec<_>>());
        }

        #[test]
        fn nothing_is_lost_in_a_batch(samples in prop::collection::vec(samples(), 0..5)) {
            let packed = Packed::pack(&samples).unwrap();
            prop_assert_eq!(&packed.samples(), &samples);
            let bytes = packed.encode();
            let read = Packed::decode(&bytes).unwrap();
            prop_assert_eq!(&read, &packed);
            for cut in 0..bytes.len() {
                prop_assert!(Packed::decode(&bytes.slice(..cut)).is_err());
            }
            if samples.is_empty() {
                prop_assert_eq!(read.batch().unwrap_err(), BatchError::Empty);
                return Ok(());
            }
            // A model predicts the tokens that the mask says, in their order.
            let batch = read.batch().unwrap();
            let masked = packed.tokens.iter().zip(packed.mask()).filter(|(_, own)| *own);
            let labels: Vec<u32> = masked.map(|(&token, _)| token).collect();
            prop_assert_eq!(&batch.labels()[..], &labels[..]);
            prop_assert_eq!(batch.predicted() as u64, packed.predicted());
        }

        #[test]
        fn no_bytes_make_it_panic(
            samples in prop::collection::vec(samples(), 0..3),
            at in any::<prop::sample::Index>(), with in any::<u8>(),
        ) {
            let mut bytes = Packed::pack(&samples).unwrap().encode().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = with;
            let bytes = Bytes::from(bytes);
            if let Ok(read) = Packed::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
                let _ = read.samples();
            }
        }
    }

    #[test]
    fn a_sample_that_contradicts_itself_is_named() {
        let good = Sample {
            tokens: vec![1],
            prompt: 1,
            ..Sample::default()
        };
        let bad = Sample {
            prompt: 2,
            ..good.clone()
        };
        let error = Packed::pack(&[good, bad]).unwrap_err();
        assert!(matches!(error, PackError::Sample { nth: 1, .. }), "{error}");
    }
}
