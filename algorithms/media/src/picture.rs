//! Pictures: from untrusted bytes to pixels, under limits.

mod canvas;
mod decode;
mod exif;
mod gif;
mod jpeg;
mod kept;
mod png;
mod probe;
mod vp8;
mod webp;

pub use decode::{PictureFrame, PictureFrames, decode, decode_frames, frames};
pub use exif::Orientation;
pub use probe::{PictureFormat, PictureInfo, PictureLimits, probe};

use crate::error::MediaError;

/// A picture in three colours of eight bits, upright, row by row from the top, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl Picture {
    /// A picture of `3 width height` bytes: red, green and blue of each pixel.
    ///
    /// # Errors
    /// Where a side has no pixels, or the bytes are more or fewer.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Result<Self, MediaError> {
        if width == 0 || height == 0 {
            return Err(MediaError::Argument {
                what: "a side of a picture",
                is: 0,
                must: "one pixel at least",
            });
        }
        if pixels.len() as u64 != u64::from(width) * u64::from(height) * 3 {
            return Err(MediaError::Argument {
                what: "the number of bytes of a picture",
                is: pixels.len() as u64,
                must: "three for each of its pixels",
            });
        }
        Ok(Self {
            width,
            height,
            pixels,
        })
    }

    /// Its width in pixels.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Its height in pixels.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Red, green and blue of each pixel, row by row from the top.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Width, height and pixels.
    #[must_use]
    pub fn into_parts(self) -> (u32, u32, Vec<u8>) {
        (self.width, self.height, self.pixels)
    }

    /// The picture as it is to be looked at, where it was stored turned.
    #[must_use]
    pub fn turned(self, orientation: Orientation) -> Self {
        if orientation == Orientation::UPRIGHT {
            return self;
        }
        let (width, height) = (self.width as usize, self.height as usize);
        let (wide, high) = orientation.sides(self.width, self.height);
        let mut pixels = Vec::with_capacity(self.pixels.len());
        let (swapped, right_to_left, bottom_up) = orientation.reads();
        for y in 0..high as usize {
            for x in 0..wide as usize {
                let (column, row) = if swapped { (y, x) } else { (x, y) };
                let column = if right_to_left {
                    width - 1 - column
                } else {
                    column
                };
                let row = if bottom_up { height - 1 - row } else { row };
                let from = (row * width + column) * 3;
                pixels.extend_from_slice(&self.pixels[from..from + 3]);
            }
        }
        Self {
            width: wide,
            height: high,
            pixels,
        }
    }
}

/// Pixels through which something may shine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transparency {
    /// White shines through, as pages are.
    #[default]
    White,
    /// The colours stay as they are stored, whatever shines through, as Pillow's `convert("RGB")` has it.
    Dropped,
}

impl Transparency {
    /// The colour of a pixel with this much of its own.
    pub(crate) fn over(self, [red, green, blue, alpha]: [u8; 4]) -> [u8; 3] {
        match self {
            Self::Dropped => [red, green, blue],
            Self::White => [red, green, blue].map(|colour| {
                let (colour, alpha) = (u32::from(colour), u32::from(alpha));
                ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8
            }),
        }
    }

    /// Four bytes a pixel to three, in place.
    pub(crate) fn flatten(self, mut pixels: Vec<u8>) -> Vec<u8> {
        let count = pixels.len() / 4;
        for at in 0..count {
            let from = at * 4;
            let pixel = [0, 1, 2, 3].map(|part| pixels[from + part]);
            pixels[at * 3..at * 3 + 3].copy_from_slice(&self.over(pixel));
        }
        pixels.truncate(count * 3);
        pixels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turned_picture_is_as_its_number_says() {
        // 1 2 3
        // 4 5 6
        let stored = Picture::new(3, 2, (1..=6).flat_map(|n| [n; 3]).collect()).unwrap();
        let check = |number, width, expect: [u8; 6]| {
            let turned = stored.clone().turned(Orientation::of(number));
            assert_eq!(turned.width(), width, "{number}");
            let seen: Vec<u8> = turned.pixels().iter().step_by(3).copied().collect();
            assert_eq!(seen, expect, "{number}");
        };
        check(1, 3, [1, 2, 3, 4, 5, 6]);
        check(2, 3, [3, 2, 1, 6, 5, 4]);
        check(3, 3, [6, 5, 4, 3, 2, 1]);
        check(4, 3, [4, 5, 6, 1, 2, 3]);
        check(5, 2, [1, 4, 2, 5, 3, 6]);
        check(6, 2, [4, 1, 5, 2, 6, 3]);
        check(7, 2, [6, 3, 5, 2, 4, 1]);
        check(8, 2, [3, 6, 2, 5, 1, 4]);
        // What is no number of an orientation turns nothing.
        check(0, 3, [1, 2, 3, 4, 5, 6]);
        check(9, 3, [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn bytes_that_are_no_picture_are_refused() {
        let said = |width, height, bytes| {
            let refused = Picture::new(width, height, vec![0; bytes]).unwrap_err();
            refused.to_string()
        };
        assert_eq!(
            said(0, 2, 0),
            "a side of a picture is 0, and must be one pixel at least"
        );
        assert_eq!(
            said(2, 2, 11),
            "the number of bytes of a picture is 11, and must be three for each of its pixels"
        );
    }

    #[test]
    fn white_shines_through() {
        let over = |pixel| Transparency::White.over(pixel);
        assert_eq!(over([10, 20, 30, 255]), [10, 20, 30]);
        assert_eq!(over([10, 20, 30, 0]), [255, 255, 255]);
        assert_eq!(over([0, 0, 0, 128]), [127, 127, 127]);
        let flat = Transparency::Dropped.flatten(vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(flat, [1, 2, 3, 5, 6, 7]);
    }
}
