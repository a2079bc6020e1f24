//! Samples: their names, what a plan sees of them, and their bytes.

use std::ops::Range;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The number of a source among those of a run.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
#[serde(transparent)]
pub struct SourceNumber(pub u16);

/// The name of a sample: where it stands in the order of its source.
///
/// It says nothing of who made the sample, and two that make it make the same bytes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, odeon::Shape,
)]
pub struct SampleId {
    /// Its source.
    pub source: SourceNumber,
    /// Which pass over the source, from 0.
    pub epoch: u32,
    /// Which cell of that pass, from 0.
    pub cell: u32,
    /// Which sample of that cell, from 0.
    pub nth: u32,
}

impl SampleId {
    /// The name as a number, which no other sample has.
    #[must_use]
    pub fn number(self) -> u128 {
        let Self {
            source,
            epoch,
            cell,
            nth,
        } = self;
        let parts = [u32::from(source.0), epoch, cell, nth];
        let parts = parts.into_iter().map(u128::from);
        parts.fold(0, |number, part| number << 32 | part)
    }
}

/// The part of a sample that a plan sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, odeon::Shape)]
pub struct SampleMeta {
    /// Its name.
    pub id: SampleId,
    /// Tokens that the backbone reads: those of its text, and those that its pictures become.
    pub tokens: u32,
    /// Patches of each of its pictures, which an encoder reads.
    pub patches: Vec<u32>,
    /// Bytes of the sample as it is delivered.
    pub bytes: u32,
}

/// A sample: the tokens of its text, and its pictures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Tokens in the order in which a backbone reads them. Where a picture stands there are as many
    /// placeholders as it has [visual tokens](Image::tokens).
    pub tokens: Vec<u32>,
    /// Tokens at the start that are read and not predicted: at least 1, at most all.
    pub prompt: u32,
    /// Runs of tokens behind the prompt that are read and not predicted, as the turns of a conversation
    /// that are not the model's: in their order, none empty, none touching another or the prompt.
    pub read: Vec<Range<u32>>,
    /// Its pictures, in the order of their places.
    pub images: Vec<Image>,
}

/// A picture as an encoder reads it: patches, four of which become one visual token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Where among the tokens its placeholders begin.
    pub at: u32,
    /// Rows of patches; even.
    pub height_patches: u16,
    /// Columns of patches; even.
    pub width_patches: u16,
    /// Pixels along the side of a patch.
    pub patch: u16,
    /// Red, green and blue of each pixel; nothing where somebody else encodes it. The four patches of
    /// a visual token follow each other (as two rows of two), tokens go by rows, and so do the pixels
    /// inside a patch.
    pub pixels: Bytes,
}

/// Why bytes are no sample. They were made by another program, or damaged on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SampleError {
    /// They do not begin as a sample does.
    #[error("these bytes are not a sample")]
    Foreign,
    /// There are fewer or more than the sample says.
    #[error("a sample of {expected} bytes has {found}")]
    Length {
        /// The bytes that it should have.
        expected: u64,
        /// The bytes that there are.
        found: u64,
    },
    /// The sample contradicts itself.
    #[error("a sample contradicts itself: {0}")]
    Inconsistent(&'static str),
}

impl Image {
    /// Its patches.
    #[must_use]
    pub fn patches(&self) -> u32 {
        u32::from(self.height_patches) * u32::from(self.width_patches)
    }

    /// The visual tokens that it becomes: a quarter of its patches.
    #[must_use]
    pub fn tokens(&self) -> u32 {
        self.patches() / 4
    }

    /// Row and column of the patch that stands at this place of the order in which they are kept.
    #[must_use]
    pub fn place(&self, patch: u32) -> (u32, u32) {
        let (token, corner) = (patch / 4, patch % 4);
        let across = u32::from(self.width_patches / 2).max(1);
        (
            token / across * 2 + corner / 2,
            token % across * 2 + corner % 2,
        )
    }

    /// Where each of its patches is, in the order in which they are kept.
    pub fn places(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        (0..self.patches()).map(|patch| self.place(patch))
    }

    /// The same, for somebody who does not encode it.
    #[must_use]
    pub fn without_pixels(&self) -> Self {
        Self {
            pixels: Bytes::new(),
            ..self.clone()
        }
    }

    fn bytes(&self) -> u64 {
        u64::from(self.patches()) * u64::from(self.patch) * u64::from(self.patch) * 3
    }

    /// Holds what is said of the fields, as far as it does not depend on the sample.
    fn check(&self) -> Result<(), SampleError> {
        let even = |side: u16| side > 0 && side.is_multiple_of(2);
        if !even(self.height_patches) || !even(self.width_patches) {
            return Err(SampleError::Inconsistent(
                "a side is not of patches in pairs",
            ));
        }
        if self.patch == 0 {
            return Err(SampleError::Inconsistent("a patch has no pixels"));
        }
        Ok(())
    }
}

impl Sample {
    /// Appends the sample as bytes.
    ///
    /// A header of 16 bytes (`OS`, the form's number, the bytes of a token, then the numbers of tokens,
    /// prompt tokens and pictures), 12 bytes a picture (place, rows, columns, patch, whether its pixels
    /// are elsewhere), the tokens, the pixels. All numbers are little-endian. Tokens take two bytes each where all fit.
    /// The form is 2 where runs behind the prompt are read: their number and their bounds stand before
    /// the pictures.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let width = token_width(&self.tokens);
        out.reserve(self.encoded_len(width));
        out.extend_from_slice(&MAGIC);
        out.extend([form(&self.read), width as u8]);
        out.extend((self.tokens.len() as u32).to_le_bytes());
        out.extend(self.prompt.to_le_bytes());
        out.extend((self.images.len() as u32).to_le_bytes());
        write_runs(&self.read, out);
        write_images(&self.images, out);
        write_tokens(&self.tokens, width, out);
        for image in &self.images {
            out.extend_from_slice(&image.pixels);
        }
    }

    /// The sample as bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out.into()
    }

    /// Reads a sample. Its pixels are a part of `bytes` and not copied.
    ///
    /// # Errors
    /// [`SampleError`] for bytes that [`encode_into`](Self::encode_into) has not made.
    pub fn decode(bytes: &Bytes) -> Result<Self, SampleError> {
        let mut reader = Reader::new(bytes);
        let (magic, form, width) = (reader.array()?, reader.u8()?, reader.u8()?);
        if magic != MAGIC {
            return Err(SampleError::Foreign);
        }
        let (count, prompt, images) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let read = reader.runs(form)?;
        let headers = reader.images(images)?;
        let tokens = reader.tokens(count, width)?;
        let images = reader.pixels(headers)?;
        reader.end()?;
        let sample = Self {
            tokens,
            prompt,
            read,
            images,
        };
        sample.check()?;
        Ok(sample)
    }

    /// The metadata of the sample under this name, when it is delivered in `bytes` bytes.
    #[must_use]
    pub fn meta(&self, id: SampleId, bytes: u32) -> SampleMeta {
        SampleMeta {
            id,
            tokens: self.tokens.len() as u32,
            patches: self.images.iter().map(Image::patches).collect(),
            bytes,
        }
    }

    /// Holds what is said of the fields.
    ///
    /// # Errors
    /// [`SampleError::Inconsistent`] with what does not hold.
    pub fn check(&self) -> Result<(), SampleError> {
        if self.prompt == 0 || self.prompt as usize > self.tokens.len() {
            return Err(SampleError::Inconsistent(
                "its prompt is empty or longer than itself",
            ));
        }
        check_runs(&self.read, self.prompt, self.tokens.len() as u32)?;
        if self.images.iter().any(|image| image.pixels.is_empty()) {
            return Err(SampleError::Inconsistent("a picture has no pixels"));
        }
        check_places(&self.images, self.tokens.len())
    }

    /// Tokens that are predicted.
    #[must_use]
    pub fn predicted(&self) -> u32 {
        let read: u32 = self.read.iter().map(|run| run.end - run.start).sum();
        self.tokens.len() as u32 - self.prompt - read
    }

    /// Of each token, whether it is predicted.
    pub fn mask(&self) -> impl Iterator<Item = bool> + '_ {
        let own = |at: u32| at >= self.prompt && !self.read.iter().any(|run| run.contains(&at));
        (0..self.tokens.len() as u32).map(own)
    }

    fn encoded_len(&self, width: usize) -> usize {
        let pixels: usize = self.images.iter().map(|image| image.pixels.len()).sum();
        HEADER
            + 8 * self.read.len()
            + self.images.len() * IMAGE_HEADER
            + self.tokens.len() * width
            + pixels
    }
}

/// That runs of tokens that are read follow each other between a prompt and the end of a sequence.
pub(crate) fn check_runs(runs: &[Range<u32>], prompt: u32, end: u32) -> Result<(), SampleError> {
    let mut free = prompt;
    for run in runs {
        if run.start <= free || run.end <= run.start {
            return Err(SampleError::Inconsistent(
                "runs that are read are empty, or touch each other or the prompt",
            ));
        }
        free = run.end;
    }
    match free <= end {
        true => Ok(()),
        false => Err(SampleError::Inconsistent(
            "a run that is read is beyond the end",
        )),
    }
}

/// The form's number, which says whether runs stand behind the header.
pub(crate) fn form(runs: &[Range<u32>]) -> u8 {
    if runs.is_empty() { FORM } else { FORM_RUNS }
}

pub(crate) fn write_runs(runs: &[Range<u32>], out: &mut Vec<u8>) {
    if runs.is_empty() {
        return;
    }
    out.extend((runs.len() as u32).to_le_bytes());
    for run in runs {
        out.extend(run.start.to_le_bytes());
        out.extend(run.end.to_le_bytes());
    }
}

/// That pictures follow each other inside so many tokens, and are whole.
pub(crate) fn check_places(images: &[Image], tokens: usize) -> Result<(), SampleError> {
    let mut free = 0;
    for image in images {
        image.check()?;
        let whole = image.pixels.len() as u64 == image.bytes();
        if !(whole || image.pixels.is_empty()) {
            return Err(SampleError::Inconsistent("a picture is not of its size"));
        }
        if u64::from(image.at) < free {
            return Err(SampleError::Inconsistent("pictures overlap"));
        }
        free = u64::from(image.at) + u64::from(image.tokens());
    }
    if free > tokens as u64 {
        return Err(SampleError::Inconsistent("a picture has no place"));
    }
    Ok(())
}

/// The bytes of a token when all of them shall have as many.
pub(crate) fn token_width(tokens: &[u32]) -> usize {
    let wide = tokens.iter().any(|&token| token > u32::from(u16::MAX));
    if wide { 4 } else { 2 }
}

pub(crate) fn write_tokens(tokens: &[u32], width: usize, out: &mut Vec<u8>) {
    if width == 2 {
        out.extend(
            tokens
                .iter()
                .flat_map(|&token| (token as u16).to_le_bytes()),
        );
    } else {
        out.extend(tokens.iter().flat_map(|token| token.to_le_bytes()));
    }
}

pub(crate) fn write_images(images: &[Image], out: &mut Vec<u8>) {
    for image in images {
        out.extend(image.at.to_le_bytes());
        let absent = u16::from(image.pixels.is_empty());
        for number in [
            image.height_patches,
            image.width_patches,
            image.patch,
            absent,
        ] {
            out.extend(number.to_le_bytes());
        }
    }
}

/// Reads numbers off bytes that may be anything.
pub(crate) struct Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `len` bytes, which are asked for before anything is allocated for them.
    pub(crate) fn take(&mut self, len: u64) -> Result<Range<usize>, SampleError> {
        let end = self.at as u64 + len;
        if end > self.bytes.len() as u64 {
            return Err(SampleError::Length {
                expected: end,
                found: self.bytes.len() as u64,
            });
        }
        let range = self.at..end as usize;
        self.at = range.end;
        Ok(range)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], SampleError> {
        let range = self.take(N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, SampleError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, SampleError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, SampleError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32s(&mut self, count: u32) -> Result<Vec<u32>, SampleError> {
        let range = self.take(u64::from(count) * 4)?;
        let (numbers, _) = self.bytes[range].as_chunks();
        Ok(numbers
            .iter()
            .map(|&four| u32::from_le_bytes(four))
            .collect())
    }

    /// Tokens of a width.
    pub(crate) fn wide_tokens(&mut self, count: u32, width: u8) -> Result<Vec<u32>, SampleError> {
        match width {
            2 => {
                let range = self.take(u64::from(count) * 2)?;
                let (numbers, _) = self.bytes[range].as_chunks();
                let token = |&two| u32::from(u16::from_le_bytes(two));
                Ok(numbers.iter().map(token).collect())
            }
            4 => self.u32s(count),
            _ => Err(SampleError::Inconsistent("tokens have 2 or 4 bytes")),
        }
    }

    /// Tokens of a width, which is the least that they fit in.
    pub(crate) fn tokens(&mut self, count: u32, width: u8) -> Result<Vec<u32>, SampleError> {
        let tokens = self.wide_tokens(count, width)?;
        if usize::from(width) != token_width(&tokens) {
            return Err(SampleError::Inconsistent("tokens are wider than need be"));
        }
        Ok(tokens)
    }

    /// Runs of tokens, where the form has some.
    pub(crate) fn runs(&mut self, form: u8) -> Result<Vec<Range<u32>>, SampleError> {
        match form {
            FORM => return Ok(vec![]),
            FORM_RUNS => {}
            _ => return Err(SampleError::Foreign),
        }
        let count = self.u32()?;
        let numbers = self.u32s(count.checked_mul(2).ok_or(SampleError::Foreign)?)?;
        if count == 0 {
            return Err(SampleError::Inconsistent("no runs where there are some"));
        }
        let runs = numbers.as_chunks().0.iter();
        Ok(runs.map(|&[start, end]| start..end).collect())
    }

    /// The headers of pictures, their pixels still missing, and whether they follow.
    pub(crate) fn images(&mut self, count: u32) -> Result<Vec<(Image, bool)>, SampleError> {
        let all = self.take(u64::from(count) * IMAGE_HEADER as u64)?;
        self.at = all.start;
        let image = |_| {
            let at = self.u32()?;
            let (height_patches, width_patches) = (self.u16()?, self.u16()?);
            let (patch, absent) = (self.u16()?, self.u16()?);
            let image = Image {
                at,
                height_patches,
                width_patches,
                patch,
                pixels: Bytes::new(),
            };
            if absent > 1 {
                return Err(SampleError::Inconsistent("pixels are there or not"));
            }
            image.check()?;
            Ok((image, absent == 0))
        };
        (0..count).map(image).collect()
    }

    pub(crate) fn pixels(&mut self, images: Vec<(Image, bool)>) -> Result<Vec<Image>, SampleError> {
        let filled = |(image, follow): (Image, bool)| {
            if !follow {
                return Ok(image);
            }
            let range = self.take(image.bytes())?;
            Ok(Image {
                pixels: self.bytes.slice(range),
                ..image
            })
        };
        images.into_iter().map(filled).collect()
    }

    pub(crate) fn end(&self) -> Result<(), SampleError> {
        if self.at == self.bytes.len() {
            return Ok(());
        }
        Err(SampleError::Length {
            expected: self.at as u64,
            found: self.bytes.len() as u64,
        })
    }
}

const MAGIC: [u8; 2] = *b"OS";
const FORM: u8 = 1;
/// The form of what has runs of tokens that are read behind a prompt.
const FORM_RUNS: u8 = 2;
const HEADER: usize = 16;
const IMAGE_HEADER: usize = 12;

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn images(places: Vec<(u16, u16)>) -> (Vec<Image>, u32) {
        let mut at = 1;
        let image = |(height, width): (u16, u16)| {
            let (height_patches, width_patches) = (height * 2, width * 2);
            let len = usize::from(height_patches * width_patches) * 12;
            let image = Image {
                at,
                height_patches,
                width_patches,
                patch: 2,
                pixels: (0..len).map(|n| n as u8).collect(),
            };
            at += image.tokens() + 1;
            image
        };
        let images = places.into_iter().map(image).collect();
        (images, at)
    }

    /// Runs behind a prompt: so many tokens after what is before, and so long, as far as there is room.
    pub(crate) fn runs(prompt: u32, end: u32, gaps: Vec<(u32, u32)>) -> Vec<Range<u32>> {
        let mut free = prompt;
        let next = |(gap, length): (u32, u32)| {
            let run = free + gap..free + gap + length;
            free = run.end;
            run
        };
        let runs = gaps.into_iter().map(next);
        runs.take_while(|run| run.end <= end).collect()
    }

    prop_compose! {
        fn samples()(
            places in prop::collection::vec((1_u16..4, 1_u16..4), 0..3),
            mut text in prop::collection::vec(prop_oneof![0_u32..300, any::<u32>()], 1..40),
            share in 0.0..1.0_f64,
            gaps in prop::collection::vec((1_u32..5, 1_u32..4), 0..3),
        ) -> Sample {
            let (images, least) = images(places);
            text.resize(text.len() + least as usize, 7);
            let prompt = 1 + ((text.len() - 1) as f64 * share) as u32;
            let read = runs(prompt, text.len() as u32, gaps);
            Sample { tokens: text, prompt, read, images }
        }
    }

    #[test]
    fn the_bytes_of_a_sample_do_not_change() {
        let sample = Sample {
            tokens: vec![1, 260, 3],
            prompt: 2,
            read: vec![],
            images: vec![Image {
                at: 1,
                height_patches: 2,
                width_patches: 2,
                patch: 1,
                pixels: Bytes::from_static(&[9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2]),
            }],
        };
        let golden = [
            b'O', b'S', 1, 2, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, // header
            1, 0, 0, 0, 2, 0, 2, 0, 1, 0, 0, 0, // the picture
            1, 0, 4, 1, 3, 0, // tokens
            9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, // pixels
        ];
        assert_eq!(sample.encode()[..], golden);
        let wide = Sample {
            tokens: vec![70_000],
            prompt: 1,
            ..Sample::default()
        };
        let golden = [
            b'O', b'S', 1, 4, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0x70, 0x11, 1, 0,
        ];
        assert_eq!(wide.encode()[..], golden);
        let run = 2..3;
        let turns = Sample {
            tokens: vec![1, 2, 3, 4],
            prompt: 1,
            read: vec![run],
            images: vec![],
        };
        let golden = [
            b'O', b'S', 2, 2, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, // header
            1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, // runs
            1, 0, 2, 0, 3, 0, 4, 0, // tokens
        ];
        assert_eq!(turns.encode()[..], golden);
        assert_eq!(turns.mask().collect::<Vec<_>>(), [false, true, false, true]);
        assert_eq!(turns.predicted(), 2);
    }

    proptest! {
        #[test]
        fn a_sample_comes_back(sample in samples()) {
            let bytes = sample.encode();
            prop_assert_eq!(Sample::decode(&bytes).unwrap(), sample);
        }

        #[test]
        fn damaged_bytes_are_refused_or_another_sample(
            sample in samples(), cut in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(), with in any::<u8>(),
        ) {
            let bytes = sample.encode();
            prop_assert!(Sample::decode(&bytes.slice(..cut.index(bytes.len()))).is_err());
            let mut longer = bytes.to_vec();
            longer.push(0);
            prop_assert!(Sample::decode(&longer.into()).is_err());
            let mut other = bytes.to_vec();
            other[at.index(bytes.len())] = with;
            let other = Bytes::from(other);
            if let Ok(read) = Sample::decode(&other) {
                prop_assert_eq!(read.encode(), other);
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), head: bool) {
            let mut bytes = bytes;
            if head && bytes.len() > 4 {
                bytes[..4].copy_from_slice(b"OS\x01\x02");
            }
            let bytes = Bytes::from(bytes);
            if let Ok(read) = Sample::decode(&bytes) {
                prop_assert_eq!(read.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_patch_knows_its_place() {
        let (images, _) = images(vec![(2, 3)]);
        let places: Vec<_> = (0..images[0].patches())
            .map(|n| images[0].place(n))
            .collect();
        assert_eq!(
            places[..6],
            [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3)]
        );
        assert_eq!(places[12..14], [(2, 0), (2, 1)]);
        let mut sorted = places.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 24);
    }
}
