//! A part of each sequence of a micro-batch, for context parallelism.

use std::ops::Range;

use bytes::Bytes;

use super::Packed;
use crate::plan::{Slice, Slicing};
use crate::sample::{
    Image, Reader, SampleError, check_places, check_runs, form, token_width, write_images,
    write_runs, write_tokens,
};

/// The part of a micro-batch that one rank of a context group computes: of each sequence the tokens
/// that its slice has, with what is needed to predict the next ones and to attend to those of other
/// ranks.
///
/// The last token of a sequence predicts nothing, so it is a label and is not cut. Over all parts,
/// each token that is read is there once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedSlice {
    /// The way in which sequences are cut.
    pub slicing: Slicing,
    /// Which part it is.
    pub slice: Slice,
    /// Tokens of all whole sequences, with the last of each.
    pub lengths: Vec<u32>,
    /// The tokens of each whole sequence that are read and not predicted.
    pub prompts: Vec<u32>,
    /// Runs of tokens behind the prompts that are read and not predicted, among those of all whole
    /// sequences.
    pub read: Vec<Range<u32>>,
    /// Tokens of the slice, sequence after sequence, in ascending order in each.
    pub tokens: Vec<u32>,
    /// For each token the one that follows it in its sequence; 0 where none does.
    pub labels: Vec<u32>,
    /// The pictures of which the slice has a visual token. Their places are among all tokens of the
    /// whole micro-batch.
    pub images: Vec<Image>,
}

impl Packed {
    /// A part of each sequence.
    #[must_use]
    pub fn slice(&self, slicing: Slicing, slice: Slice) -> PackedSlice {
        let lengths: Vec<u32> = self
            .bounds
            .windows(2)
            .map(|ends| ends[1] - ends[0])
            .collect();
        let (mut tokens, mut labels, mut images) = (vec![], vec![], vec![]);
        let mut left = self.images.as_slice();
        for (start, &length) in self.bounds.iter().zip(&lengths) {
            let end = start + length;
            let own = left.partition_point(|image| image.at < end);
            let (within, rest) = left.split_at(own);
            left = rest;
            let ranges = slicing.ranges(read(length), slice);
            for at in ranges.iter().cloned().flatten() {
                tokens.push(self.tokens[(start + at) as usize]);
                let next = (at + 1 < length).then(|| self.tokens[(start + at + 1) as usize]);
                labels.push(next.unwrap_or(0));
            }
            let has = |image: &&Image| {
                let (begin, end) = (image.at - start, image.at - start + image.tokens());
                ranges
                    .iter()
                    .any(|range| begin < range.end && range.start < end)
            };
            images.extend(within.iter().filter(has).cloned());
        }
        PackedSlice {
            slicing,
            slice,
            lengths,
            prompts: self.prompts.clone(),
            read: self.read.clone(),
            tokens,
            labels,
            images,
        }
    }
}

/// The tokens of a sequence that pass through a model.
fn read(length: u32) -> u32 {
    length.saturating_sub(1).max(1)
}

impl PackedSlice {
    /// Of each token of the slice, its position in its sequence.
    #[must_use]
    pub fn positions(&self) -> Vec<u32> {
        self.places().map(|(_, at)| at).collect()
    }

    /// Of each token of the slice, whether what follows it is predicted.
    #[must_use]
    pub fn mask(&self) -> Vec<bool> {
        let mut starts = vec![0];
        starts.extend(self.lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        }));
        let is_read = |at: u32| {
            let next = self.read.partition_point(|run| run.end <= at);
            self.read.get(next).is_some_and(|run| run.contains(&at))
        };
        let predicted = |(sequence, at): (usize, u32)| {
            let within = at + 1 >= self.prompts[sequence] && at + 1 < self.lengths[sequence];
            within && !is_read(starts[sequence] + at + 1)
        };
        self.places().map(predicted).collect()
    }

    /// Where the sequences begin in the slice, and where the last one ends.
    #[must_use]
    pub fn bounds(&self) -> Vec<u32> {
        let mut bounds = vec![0];
        for length in &self.lengths {
            let ranges = self.slicing.ranges(read(*length), self.slice);
            let own: u32 = ranges.iter().map(|range| range.end - range.start).sum();
            bounds.push(bounds[bounds.len() - 1] + own);
        }
        bounds
    }

    /// Sequence and position of each token.
    fn places(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let sequences = self.lengths.iter().enumerate();
        sequences.flat_map(|(sequence, length)| {
            let ranges = self.slicing.ranges(read(*length), self.slice);
            ranges.into_iter().flatten().map(move |at| (sequence, at))
        })
    }

    /// Appends the slice as it is delivered.
    ///
    /// A header of 24 bytes (`OC`, the form's number, the bytes of a token, the numbers of sequences,
    /// tokens and pictures, the part, of how many with the highest bit for zigzag), of each sequence
    /// its tokens and its prompt, 12 bytes a picture as in a
    /// [sample](crate::sample::Sample::encode_into), the tokens, the labels, the pixels.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let width = token_width(&self.tokens).max(token_width(&self.labels));
        out.extend_from_slice(&MAGIC);
        out.extend([form(&self.read), width as u8]);
        for count in [self.lengths.len(), self.tokens.len(), self.images.len()] {
            out.extend((count as u32).to_le_bytes());
        }
        let zigzag = match self.slicing {
            Slicing::Contiguous => 0,
            Slicing::Zigzag => ZIGZAG,
        };
        out.extend(self.slice.part.to_le_bytes());
        out.extend((self.slice.of | zigzag).to_le_bytes());
        for (length, prompt) in self.lengths.iter().zip(&self.prompts) {
            out.extend(length.to_le_bytes());
            out.extend(prompt.to_le_bytes());
        }
        write_runs(&self.read, out);
        write_images(&self.images, out);
        write_tokens(&self.tokens, width, out);
        write_tokens(&self.labels, width, out);
        for image in &self.images {
            out.extend_from_slice(&image.pixels);
        }
    }

    /// Reads a slice. Its pixels are a part of `bytes` and not copied.
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
        let (part, of) = (reader.u32()?, reader.u32()?);
        let slicing = match of & ZIGZAG {
            0 => Slicing::Contiguous,
            _ => Slicing::Zigzag,
        };
        let slice = Slice {
            part,
            of: of & !ZIGZAG,
        };
        if slice.part >= slice.of || slice.of > PARTS_MAX {
            return Err(SampleError::Inconsistent("there is no such part"));
        }
        let pairs = reader.u32s(sequences.checked_mul(2).ok_or(super::TOO_MANY)?)?;
        let all_read = reader.runs(form)?;
        let headers = reader.images(images)?;
        let tokens = reader.wide_tokens(count, width)?;
        let labels = reader.wide_tokens(count, width)?;
        if usize::from(width) != token_width(&tokens).max(token_width(&labels)) {
            return Err(SampleError::Inconsistent("tokens are wider than need be"));
        }
        let images = reader.pixels(headers)?;
        reader.end()?;
        let (mut lengths, mut prompts) = (vec![], vec![]);
        let (mut whole, mut own, mut checked) = (0_u32, 0_u64, 0);
        for &[length, prompt] in pairs.as_chunks().0 {
            if prompt == 0 || prompt > length {
                return Err(SampleError::Inconsistent(
                    "a prompt is empty or longer than its sequence",
                ));
            }
            whole = whole.checked_add(length).ok_or(super::TOO_MANY)?;
            let ranges = slicing.ranges(read(length), slice);
            own += ranges
                .iter()
                .map(|range| u64::from(range.end - range.start))
                .sum::<u64>();
            let runs = all_read.iter().skip(checked);
            let runs: Vec<Range<u32>> = runs.take_while(|run| run.start < whole).cloned().collect();
            checked += runs.len();
            check_runs(&runs, whole - length + prompt, whole)?;
            lengths.push(length);
            prompts.push(prompt);
        }
        if checked < all_read.len() {
            return Err(SampleError::Inconsistent(
                "a run that is read is of no sequence",
            ));
        }
        if own != u64::from(count) {
            return Err(SampleError::Inconsistent("tokens are of no sequence"));
        }
        check_places(&images, whole as usize)?;
        Ok(Self {
            slicing,
            slice,
            lengths,
            prompts,
            read: all_read,
            tokens,
            labels,
            images,
        })
    }
}

const MAGIC: [u8; 2] = *b"OC";
const ZIGZAG: u32 = 1 << 31;
/// More ranks than a sequence is ever cut over.
const PARTS_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::super::tests::samples;
    use super::*;

    proptest! {
        #[test]
        fn slices_are_the_whole_and_come_back(
            samples in prop::collection::vec(samples(), 1..6), parts in 1_u32..6, zigzag: bool,
        ) {
            let packed = Packed::pack(&samples).unwrap();
            let batch = packed.batch().unwrap();
            let slicing = if zigzag { Slicing::Zigzag } else { Slicing::Contiguous };
            let mut read = BTreeMap::new();
            let (mut predicted, mut pictures) = (0, 0);
            for part in 0..parts {
                let slice = packed.slice(slicing, Slice { part, of: parts });
                let mut bytes = vec![];
                slice.encode_into(&mut bytes);
                let bytes = Bytes::from(bytes);
                prop_assert_eq!(&PackedSlice::decode(&bytes).unwrap(), &slice);
                prop_assert!(PackedSlice::decode(&bytes.slice(..bytes.len() - 1)).is_err());
                let (positions, mask) = (slice.positions(), slice.mask());
                prop_assert_eq!(positions.len(), slice.tokens.len());
                let bounds = slice.bounds();
                prop_assert_eq!(*bounds.last().unwrap() as usize, slice.tokens.len());
                for (sequence, ends) in bounds.windows(2).enumerate() {
                    for at in ends[0] as usize..ends[1] as usize {
                        let what = (slice.tokens[at], mask[at].then_some(slice.labels[at]));
                        let place = (sequence, positions[at]);
                        prop_assert_eq!(read.insert(place, what), None, "twice");
                    }
                }
                predicted += mask.iter().filter(|it| **it).count();
                pictures += slice.images.len();
            }
            // The same that a model reads of the whole.
            prop_assert_eq!(read.len(), batch.processed());
            prop_assert_eq!(predicted, batch.predicted());
            let tokens: Vec<u32> = read.values().map(|(token, _)| *token).collect();
            let whole: Vec<u32> = packed
                .sequences()
                .flat_map(|it| it.tokens[..(it.tokens.len() - 1).max(1)].to_vec())
                .collect();
            prop_assert_eq!(tokens, whole);
            let labels: Vec<u32> = read.values().filter_map(|(_, label)| *label).collect();
            let whole = packed.tokens.iter().zip(packed.mask()).filter(|(_, own)| *own);
            prop_assert_eq!(labels, whole.map(|(token, _)| *token).collect::<Vec<_>>());
            let mut seen = packed.images.iter().filter(|image| {
                let end = packed.bounds.iter().find(|end| **end > image.at).unwrap();
                image.at < end - 1
            });
            prop_assert!(pictures >= seen.by_ref().count());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), head: bool) {
            let mut bytes = bytes;
            if head && bytes.len() > 4 {
                bytes[..4].copy_from_slice(b"OC\x01\x02");
            }
            let _ = PackedSlice::decode(&Bytes::from(bytes));
        }
    }
}
