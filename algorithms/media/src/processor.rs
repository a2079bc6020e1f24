//! From pixels to the numbers that vision towers read: resized, normalised and cut into patches in their order.

use std::borrow::Cow;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use crate::error::MediaError;
use crate::fit::Sizing;
use crate::packing::PatchGrid;
use crate::picture::Picture;

/// A way of averaging pixels. Both widen as pictures become smaller, over all pixels that become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ResizeFilter {
    /// Straight lines between pixels.
    Bilinear,
    /// Keys's cubic with a = -1/2, as Pillow and torchvision have it.
    Bicubic,
}

/// The order of the numbers in a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PatchLayout {
    /// By colour, then frame, then row, then column: as a convolution's weights lie.
    ColourFirst,
    /// By frame, then row, then column, then colour.
    ColourLast,
}

/// The steps from a picture to what a vision tower reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PictureProcessor {
    /// The size to which a picture is brought.
    pub sizing: Sizing,
    /// Pixels along a patch.
    pub patch: u32,
    /// Patches along a token: those of a token follow each other.
    pub merge: u32,
    /// Frames in a patch. A still picture is in all of them.
    pub temporal: u32,
    /// The part that is taken from red, green and blue, each from 0 to 1.
    pub mean: [f64; 3],
    /// The number that the rest is divided by.
    pub std: [f64; 3],
    /// The way in which pixels are averaged.
    pub filter: ResizeFilter,
    /// The order of the numbers in a patch.
    pub layout: PatchLayout,
}

impl PictureProcessor {
    /// Qwen2.5-VL's, and Qwen2-VL's: patches of 14 pixels, tokens of 2 x 2, 56 x 56 to 1,280 x 28 x 28 pixels.
    #[must_use]
    pub fn qwen2_5_vl() -> Self {
        Self {
            sizing: Sizing::Smart {
                pixels_min: 56 * 56,
                pixels_max: 28 * 28 * 1280,
            },
            patch: 14,
            merge: 2,
            temporal: 2,
            mean: CLIP_MEAN,
            std: CLIP_STD,
            filter: ResizeFilter::Bicubic,
            layout: PatchLayout::ColourFirst,
        }
    }

    /// Qwen3-VL's: patches of 16 pixels, tokens of 2 x 2, 256 x 256 to 4,096 x 4,096 pixels.
    #[must_use]
    pub fn qwen3_vl() -> Self {
        Self {
            sizing: Sizing::Smart {
                pixels_min: 65_536,
                pixels_max: 16_777_216,
            },
            patch: 16,
            mean: HALF,
            std: HALF,
            ..Self::qwen2_5_vl()
        }
    }

    /// SigLIP's: one square of `side` pixels, in patches of `patch`, row by row.
    #[must_use]
    pub fn siglip(side: u32, patch: u32) -> Self {
        Self {
            sizing: Sizing::Fixed {
                height: side,
                width: side,
            },
            patch,
            merge: 1,
            temporal: 1,
            mean: HALF,
            std: HALF,
            filter: ResizeFilter::Bicubic,
            layout: PatchLayout::ColourFirst,
        }
    }

    /// SigLIP 2's of any shape (NaFlex): as many patches of 16 pixels as fit, row by row.
    #[must_use]
    pub fn siglip2(patches_max: u32) -> Self {
        Self {
            sizing: Sizing::Largest { patches_max },
            filter: ResizeFilter::Bilinear,
            layout: PatchLayout::ColourLast,
            ..Self::siglip(16, 16)
        }
    }

    /// Seed1.5-VL's: native resolution in patches of 14 pixels, tokens of 2 x 2. Its report tells no normalisation: that of
    /// [`Self::siglip`].
    #[must_use]
    pub fn seed1_5_vl(tokens_max: u32) -> Self {
        Self {
            sizing: Sizing::Nearest { tokens_max },
            patch: 14,
            merge: 2,
            filter: ResizeFilter::Bilinear,
            ..Self::siglip(14, 14)
        }
    }

    /// Patches of a picture of this height and width, without a pixel of it.
    ///
    /// # Errors
    /// As [`Sizing::size`].
    pub fn grid(&self, height: u32, width: u32) -> Result<PatchGrid, MediaError> {
        let (height, width) = self.sizing.size(height, width, self.unit()?)?;
        self.grid_of(1, height, width)
    }

    /// Tokens of a picture of this height and width.
    ///
    /// # Errors
    /// As [`Sizing::size`].
    pub fn tokens(&self, height: u32, width: u32) -> Result<u64, MediaError> {
        Ok(self.grid(height, width)?.tokens(self.merge))
    }

    /// Numbers of a patch.
    #[must_use]
    pub fn patch_numbers(&self) -> usize {
        3 * self.temporal as usize * (self.patch as usize).pow(2)
    }

    /// The patches of a picture behind those that are in `numbers` already: [`Self::patch_numbers`] for each, those of a
    /// token one after the other, tokens row by row.
    ///
    /// # Errors
    /// As [`Sizing::size`]; nothing is added then.
    pub fn append(
        &self,
        picture: &Picture,
        numbers: &mut Vec<f32>,
    ) -> Result<PatchGrid, MediaError> {
        let unit = self.unit()?;
        let (height, width) = self.sizing.size(picture.height(), picture.width(), unit)?;
        let sized = resized(picture, height, width, self.filter)?;
        let grid = self.grid_of(1, height, width)?;
        self.cut(&[&sized], numbers);
        Ok(grid)
    }

    /// The patches of a video's frames of one size, brought to `height` and `width` (see [`video_size`]), behind those that
    /// are in `numbers` already. The last frame is repeated where the last patch has fewer.
    ///
    /// [`video_size`]: crate::video_size
    ///
    /// # Errors
    /// Where there is no frame, or the size is no multiple of a token's; nothing is added then.
    pub fn append_video(
        &self,
        frames: &[Picture],
        (height, width): (u32, u32),
        numbers: &mut Vec<f32>,
    ) -> Result<PatchGrid, MediaError> {
        let patches = frames.len().div_ceil(self.temporal.max(1) as usize);
        let grid = self.grid_of(patches as u32, height, width)?;
        self.unit()?;
        let mut sized = Vec::with_capacity(self.temporal as usize);
        for together in frames.chunks(self.temporal as usize) {
            sized.clear();
            for frame in together {
                sized.push(resized(frame, height, width, self.filter)?);
            }
            let sized: Vec<&Picture> = sized.iter().map(AsRef::as_ref).collect();
            self.cut(&sized, numbers);
        }
        Ok(grid)
    }

    /// The side of a token in pixels.
    fn unit(&self) -> Result<u32, MediaError> {
        let unit = self.patch.checked_mul(self.merge).filter(|unit| *unit > 0);
        unit.filter(|_| self.temporal > 0)
            .ok_or(MediaError::Argument {
                what: "pixels along a patch, patches along a token or frames in a patch",
                is: 0,
                must: "one at least",
            })
    }

    fn grid_of(&self, frames: u32, height: u32, width: u32) -> Result<PatchGrid, MediaError> {
        let unit = self.unit()?;
        for side in [height, width] {
            if side == 0 || !side.is_multiple_of(unit) {
                return Err(MediaError::Argument {
                    what: "a side of what is cut into patches",
                    is: side.into(),
                    must: "a multiple of a token's",
                });
            }
        }
        if frames == 0 {
            return Err(MediaError::Argument {
                what: "the number of a video's frames",
                is: 0,
                must: "one at least",
            });
        }
        Ok(PatchGrid {
            frames,
            rows: height / self.patch,
            columns: width / self.patch,
        })
    }

    /// Cuts one to `temporal` pictures of one size into a layer of patches.
    fn cut(&self, frames: &[&Picture], numbers: &mut Vec<f32>) {
        let Some(first) = frames.first() else { return };
        let (patch, merge) = (self.patch as usize, self.merge as usize);
        let (width, height) = (first.width() as usize, first.height() as usize);
        let levels = self.levels();
        numbers.reserve(width * height * 3 * self.temporal as usize);
        // One frame's part of a patch, in the order of the layout.
        let mut parts = vec![vec![0.0; 3 * patch * patch]; frames.len()];
        let unit = patch * merge;
        for token in 0..(height / unit) * (width / unit) {
            let (top, left) = (token / (width / unit) * unit, token % (width / unit) * unit);
            for place in 0..merge * merge {
                let (y, x) = (top + place / merge * patch, left + place % merge * patch);
                for (part, frame) in parts.iter_mut().zip(frames) {
                    let corner = (y * width + x) * 3;
                    let pixels = &frame.pixels()[corner..];
                    match self.layout {
                        PatchLayout::ColourFirst => planes(part, pixels, width, patch, &levels),
                        PatchLayout::ColourLast => rows(part, pixels, width, patch, &levels),
                    }
                }
                self.push(&parts, numbers);
            }
        }
    }

    fn push(&self, parts: &[Vec<f32>], numbers: &mut Vec<f32>) {
        // The last frame again where there are fewer.
        let of = |frame: usize| &parts[frame.min(parts.len() - 1)];
        let temporal = self.temporal as usize;
        match self.layout {
            PatchLayout::ColourLast => {
                (0..temporal).for_each(|frame| numbers.extend_from_slice(of(frame)));
            }
            PatchLayout::ColourFirst => {
                let plane = parts[0].len() / 3;
                for colour in 0..3 {
                    for frame in 0..temporal {
                        let part = &of(frame)[colour * plane..][..plane];
                        numbers.extend_from_slice(part);
                    }
                }
            }
        }
    }

    /// The number that each level of red, green and blue becomes.
    fn levels(&self) -> [[f32; 256]; 3] {
        [0, 1, 2].map(|colour| {
            std::array::from_fn(|level| {
                let part = level as f64 / 255.0;
                ((part - self.mean[colour]) / self.std[colour]) as f32
            })
        })
    }
}

/// Three planes of a patch, from the row by row pixels of its picture.
fn planes(part: &mut [f32], pixels: &[u8], width: usize, patch: usize, levels: &[[f32; 256]; 3]) {
    let (red, rest) = part.split_at_mut(patch * patch);
    let (green, blue) = rest.split_at_mut(patch * patch);
    for row in 0..patch {
        let (from, _) = pixels[row * width * 3..][..patch * 3].as_chunks::<3>();
        let red = &mut red[row * patch..][..patch];
        let green = &mut green[row * patch..][..patch];
        let blue = &mut blue[row * patch..][..patch];
        for (((pixel, red), green), blue) in from.iter().zip(red).zip(green).zip(blue) {
            *red = levels[0][usize::from(pixel[0])];
            *green = levels[1][usize::from(pixel[1])];
            *blue = levels[2][usize::from(pixel[2])];
        }
    }
}

/// A patch row by row, pixel by pixel.
fn rows(part: &mut [f32], pixels: &[u8], width: usize, patch: usize, levels: &[[f32; 256]; 3]) {
    let (to, _) = part.as_chunks_mut::<3>();
    for (row, to) in to.chunks_exact_mut(patch).enumerate() {
        let (from, _) = pixels[row * width * 3..][..patch * 3].as_chunks::<3>();
        for (to, pixel) in to.iter_mut().zip(from) {
            *to = [0, 1, 2].map(|colour| levels[colour][usize::from(pixel[colour])]);
        }
    }
}

/// A picture of another size. One that has it is lent.
///
/// First along rows, then along columns, with whole levels between: in that order, as Pillow and torchvision do it, nearly all
/// levels are theirs.
///
/// # Errors
/// Where a side has no pixels.
pub fn resized(
    picture: &Picture,
    height: u32,
    width: u32,
    filter: ResizeFilter,
) -> Result<Cow<'_, Picture>, MediaError> {
    let mut sized = Cow::Borrowed(picture);
    for (width, height) in [(width, picture.height()), (width, height)] {
        if (sized.width(), sized.height()) != (width, height) {
            sized = Cow::Owned(along_one_side(&sized, height, width, filter)?);
        }
    }
    Ok(sized)
}

fn along_one_side(
    picture: &Picture,
    height: u32,
    width: u32,
    filter: ResizeFilter,
) -> Result<Picture, MediaError> {
    let wrong = || MediaError::Argument {
        what: "a side of a picture",
        is: width.min(height).into(),
        must: "one pixel at least",
    };
    let mut pixels = vec![0; width as usize * height as usize * 3];
    // Typed, so that no other kind of pixels is compiled.
    let from = picture.pixels();
    let from = TypedImageRef::<U8x3>::from_buffer(picture.width(), picture.height(), from);
    let to = TypedImage::<U8x3>::from_buffer(width, height, &mut pixels);
    let (Ok(from), Ok(mut to)) = (from, to) else {
        return Err(wrong());
    };
    let filter = match filter {
        ResizeFilter::Bilinear => FilterType::Bilinear,
        ResizeFilter::Bicubic => FilterType::CatmullRom,
    };
    let how = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    let done = Resizer::new().resize_typed(&from, &mut to, &how);
    done.map_err(|_| wrong())?;
    Picture::new(width, height, pixels)
}

/// Of CLIP's pictures.
const CLIP_MEAN: [f64; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_STD: [f64; 3] = [0.268_629_54, 0.261_302_58, 0.275_777_11];
const HALF: [f64; 3] = [0.5; 3];

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pixel says where it is, and its frame.
    fn picture(width: u32, height: u32, frame: u8) -> Picture {
        let places = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
        let pixels = places
            .flat_map(|(x, y)| [x as u8, y as u8, frame])
            .collect();
        Picture::new(width, height, pixels).unwrap()
    }

    fn tiny(temporal: u32, layout: PatchLayout) -> PictureProcessor {
        PictureProcessor {
            sizing: Sizing::Nearest { tokens_max: 100 },
            patch: 2,
            merge: 2,
            temporal,
            mean: [0.0; 3],
            std: [1.0 / 255.0; 3],
            filter: ResizeFilter::Bilinear,
            layout,
        }
    }

    #[test]
    fn patches_of_a_token_follow_each_other() {
        let processor = tiny(2, PatchLayout::ColourFirst);
        let mut numbers = vec![];
        let grid = processor.append(&picture(8, 4, 9), &mut numbers).unwrap();
        assert_eq!((grid.frames, grid.rows, grid.columns), (1, 2, 4));
        assert_eq!(numbers.len(), 8 * 24);
        let corners: Vec<[f32; 2]> = numbers.chunks(24).map(|p| [p[0], p[8]]).collect();
        let expect = [
            [0, 0],
            [2, 0],
            [0, 2],
            [2, 2],
            [4, 0],
            [6, 0],
            [4, 2],
            [6, 2],
        ];
        assert_eq!(corners, expect.map(|place| place.map(|side| side as f32)));
        // Columns, the same again as a second frame, rows twice, frames twice.
        assert_eq!(numbers[..8], [0., 1., 0., 1., 0., 1., 0., 1.]);
        assert_eq!(numbers[8..16], [0., 0., 1., 1., 0., 0., 1., 1.]);
        assert_eq!(numbers[16..24], [9.; 8]);
    }

    #[test]
    fn frames_of_a_video_share_patches_and_the_last_is_repeated() {
        let processor = tiny(2, PatchLayout::ColourFirst);
        let frames = [picture(4, 4, 1), picture(4, 4, 2), picture(4, 4, 3)];
        let mut numbers = vec![];
        let grid = processor.append_video(&frames, (4, 4), &mut numbers);
        let grid = grid.unwrap();
        assert_eq!((grid.frames, grid.rows, grid.columns), (2, 2, 2));
        assert_eq!(numbers.len(), 8 * 24);
        assert_eq!(numbers[16..24], [1., 1., 1., 1., 2., 2., 2., 2.]);
        assert_eq!(numbers[4 * 24 + 16..5 * 24], [3.; 8]);
        assert!(processor.append_video(&[], (4, 4), &mut vec![]).is_err());
        assert!(
            processor
                .append_video(&frames, (4, 6), &mut vec![])
                .is_err()
        );
    }

    #[test]
    fn colours_of_a_pixel_follow_each_other_where_they_are_last() {
        let processor = tiny(1, PatchLayout::ColourLast);
        let mut numbers = vec![];
        processor.append(&picture(4, 4, 7), &mut numbers).unwrap();
        let second = [2., 0., 7., 3., 0., 7., 2., 1., 7., 3., 1., 7.];
        assert_eq!(numbers[12..24], second);
    }

    #[test]
    fn what_is_appended_lies_behind_what_was_there() {
        let processor = tiny(1, PatchLayout::ColourFirst);
        let mut both = vec![];
        processor.append(&picture(4, 4, 1), &mut both).unwrap();
        processor.append(&picture(8, 4, 2), &mut both).unwrap();
        let mut alone = vec![];
        processor.append(&picture(8, 4, 2), &mut alone).unwrap();
        assert_eq!(both[both.len() - alone.len()..], alone);
    }
}
