//! From pictures to patches.
//!
//! A picture is brought, bilinearly, to the nearest size whose sides are multiples of two patches, so
//! that four patches (two by two) become one visual token. Sizes and counts are exact: what a plan
//! reckons with is what an encoder gets.

use std::{borrow::Cow, io::Cursor};

use bytes::Bytes;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::{DynamicImage, ImageDecoder, ImageReader, Limits, RgbImage, imageops};
use thiserror::Error;

use crate::{
    sample::Image,
    source::{Pictures, Pixels, foreign_bytes, order},
};

/// Why bytes are no picture.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PictureError {
    /// They cannot be decoded.
    #[error("the picture cannot be read: {0}")]
    Undecodable(String),
    /// It has no pixels.
    #[error("the picture has no pixels")]
    Empty,
    /// It has more pixels than are decoded, however few bytes it has.
    #[error("the picture has {width} x {height} pixels, more than the 67 million that are decoded")]
    Large {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
    },
}

/// Rows and columns of visual tokens of a picture that has these sides in pixels: what is nearest to
/// its size, or to its shape where that would be more than `tokens_max` tokens. At least one each.
///
/// `unit` is the side of a visual token, two patches; no argument is zero.
#[must_use]
pub fn fitted(height: u32, width: u32, unit: u32, tokens_max: u32) -> (u32, u32) {
    let nearest = |side: u32| ((u64::from(side) + u64::from(unit) / 2) / u64::from(unit)).max(1);
    let (rows, columns) = (nearest(height), nearest(width));
    if rows * columns <= u64::from(tokens_max) {
        return (rows as u32, columns as u32);
    }
    // As many as keep the shape, but nothing is made larger; where one side is less than a token, the
    // other gives way.
    let scale = f64::from(tokens_max) / (f64::from(height) * f64::from(width));
    let fewer = |side: u32, nearest: u64| {
        let count = (f64::from(side) * scale.sqrt()) as u64;
        count.clamp(1, nearest.min(u64::from(tokens_max))) as u32
    };
    let rows = fewer(height, rows);
    let columns = fewer(width, columns).min(tokens_max / rows);
    (rows, columns)
}

/// The image that a record's picture becomes, at a place among the tokens.
pub(crate) fn image(
    pixels: &Pixels<'_>,
    options: &Pictures,
    seed: u64,
    at: u32,
) -> Result<Image, PictureError> {
    let picture = cropped(rgb(pixels)?, options, seed);
    let unit = u32::from(options.patch) * 2;
    let (rows, columns) = fitted(picture.height(), picture.width(), unit, options.tokens);
    let (height, width) = (rows * unit, columns * unit);
    let sized = if picture.dimensions() == (width, height) {
        picture
    } else {
        resized(&picture, width, height)?
    };
    Ok(Image {
        at,
        height_patches: (rows * 2) as u16,
        width_patches: (columns * 2) as u16,
        patch: options.patch,
        pixels: patches(&sized, usize::from(options.patch)),
    })
}

/// In three colours; what shines through a picture is white.
fn rgb(pixels: &Pixels<'_>) -> Result<RgbImage, PictureError> {
    match pixels {
        Pixels::Encoded(bytes) => {
            let mut reader = ImageReader::new(Cursor::new(&bytes[..]));
            let mut limits = Limits::default();
            limits.max_image_width = Some(SIDE_MAX);
            limits.max_image_height = Some(SIDE_MAX);
            limits.max_alloc = Some(DECODED_BYTES_MAX);
            reader.limits(limits);
            let undecodable =
                |error: &dyn std::error::Error| PictureError::Undecodable(error.to_string());
            let reader = reader
                .with_guessed_format()
                .map_err(|error| undecodable(&error))?;
            let decoder = reader.into_decoder();
            let mut decoder = decoder.map_err(|error| match foreign_bytes(bytes) {
                Some(kind) => PictureError::Undecodable(kind.to_owned()),
                None => undecodable(&error),
            })?;
            let (width, height) = decoder.dimensions();
            if width == 0 || height == 0 {
                return Err(PictureError::Empty);
            }
            if u64::from(width) * u64::from(height) > PIXELS_MAX {
                return Err(PictureError::Large { width, height });
            }
            if is_cut_off(bytes) {
                return Err(PictureError::Undecodable("it is cut off".to_owned()));
            }
            let turned = decoder.orientation().map_err(|error| undecodable(&error))?;
            let decoded = DynamicImage::from_decoder(decoder);
            let mut picture = decoded.map_err(|error| undecodable(&error))?;
            picture.apply_orientation(turned);
            Ok(opaque(picture))
        }
        &Pixels::Plain {
            height,
            width,
            colours,
            bytes,
        } => {
            let bytes: Cow<'_, [u8]> = match colours {
                1 => bytes.iter().flat_map(|&grey| [grey; 3]).collect(),
                _ => bytes.into(),
            };
            let picture = RgbImage::from_raw(width, height, bytes.into_owned());
            picture
                .filter(|picture| picture.width() > 0 && picture.height() > 0)
                .ok_or(PictureError::Empty)
        }
    }
}

/// Returns true for a JPEG without its end, of which a decoder gives what there is.
fn is_cut_off(bytes: &[u8]) -> bool {
    let Some(mut rest) = bytes.strip_prefix(b"\xff\xd8") else {
        return false;
    };
    // Up to the first scan, which no bytes of a picture within the picture's notes are behind.
    while let [0xff, marker, length @ ..] = rest {
        if *marker == 0xda {
            return memchr::memmem::find(rest, b"\xff\xd9").is_none();
        }
        let skip = match (marker, length) {
            (0xff, _) => 1,
            (0x01 | 0xd0..=0xd8, _) => 2,
            (_, [high, low, ..]) => 2 + usize::from(u16::from_be_bytes([*high, *low])),
            _ => return true,
        };
        match rest.get(skip..) {
            Some(behind) => rest = behind,
            None => return true,
        }
    }
    // Its decoder says what is wrong with it.
    false
}

fn opaque(picture: DynamicImage) -> RgbImage {
    if !picture.color().has_alpha() {
        return picture.into_rgb8();
    }
    let picture = picture.into_rgba8();
    let mut out = RgbImage::new(picture.width(), picture.height());
    for (to, from) in out.pixels_mut().zip(picture.pixels()) {
        let [red, green, blue, alpha] = from.0.map(u32::from);
        let over = |colour: u32| ((colour * alpha + 255 * (255 - alpha) + 127) / 255) as u8;
        to.0 = [over(red), over(green), over(blue)];
    }
    out
}

/// Bilinearly, over all pixels that become one, in whole numbers. Typed, so that no other kind of
/// pixels is compiled.
fn resized(picture: &RgbImage, width: u32, height: u32) -> Result<RgbImage, PictureError> {
    let undecodable = |error: &dyn std::error::Error| PictureError::Undecodable(error.to_string());
    let (from_width, from_height) = picture.dimensions();
    let from = TypedImageRef::<U8x3>::from_buffer(from_width, from_height, picture.as_raw());
    let from = from.map_err(|error| undecodable(&error))?;
    let mut made = RgbImage::new(width, height);
    let to = TypedImage::<U8x3>::from_buffer(width, height, &mut made);
    let mut to = to.map_err(|error| undecodable(&error))?;
    let how = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    let done = Resizer::new().resize_typed(&from, &mut to, &how);
    done.map_err(|error| undecodable(&error))?;
    Ok(made)
}

/// A part of the picture, and mirrored, as chance has it.
fn cropped(picture: RgbImage, options: &Pictures, seed: u64) -> RgbImage {
    let mut chance = seed;
    let mut picture = picture;
    if options.crop < 1.0 {
        let area = options.crop + (1.0 - options.crop) * order::part(&mut chance);
        let (whole_width, whole_height) = picture.dimensions();
        let cut = |side: u32| ((f64::from(side) * area.sqrt()).round() as u32).clamp(1, side);
        let (width, height) = (cut(whole_width), cut(whole_height));
        let mut place =
            |whole: u32, part: u32| order::below(&mut chance, u64::from(whole - part) + 1) as u32;
        let (x, y) = (place(whole_width, width), place(whole_height, height));
        picture = imageops::crop_imm(&picture, x, y, width, height).to_image();
    }
    if options.mirror > 0.0 && order::part(&mut chance) < options.mirror {
        imageops::flip_horizontal_in_place(&mut picture);
    }
    picture
}

/// The pixels patch by patch, in the order that [`Image::pixels`] says.
fn patches(picture: &RgbImage, patch: usize) -> Bytes {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    let (line, raw) = (width * 3, picture.as_raw());
    let mut out = Vec::with_capacity(raw.len());
    for top in (0..height).step_by(patch * 2) {
        for left in (0..width).step_by(patch * 2) {
            for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let start = (left + right * patch) * 3;
                for row in 0..patch {
                    let begin = (top + down * patch + row) * line + start;
                    out.extend_from_slice(&raw[begin..begin + patch * 3]);
                }
            }
        }
    }
    out.into()
}

/// As much as the largest picture that any setting asks for, and less than memory for one of many.
const PIXELS_MAX: u64 = 1 << 26;
const SIDE_MAX: u32 = 1 << 20;
const DECODED_BYTES_MAX: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sizes_are_the_nearest_that_fit(
            height in prop_oneof![1_u32..200, 1_u32..100_000],
            width in prop_oneof![1_u32..200, 1_u32..100_000],
            patch in 1_u32..30,
            tokens_max in 1_u32..5000,
        ) {
            let unit = patch * 2;
            let (rows, columns) = fitted(height, width, unit, tokens_max);
            prop_assert!(rows >= 1 && columns >= 1);
            prop_assert!(u64::from(rows) * u64::from(columns) <= u64::from(tokens_max));
            let near = |side: u32, count: u32| {
                side.abs_diff(count * unit) <= unit.div_ceil(2) || (count == 1 && side < unit)
            };
            let nearest = |side: u32| (u64::from(side) + u64::from(unit / 2)) / u64::from(unit);
            let all = nearest(height).max(1) * nearest(width).max(1);
            if all <= u64::from(tokens_max) {
                prop_assert!(near(height, rows) && near(width, columns), "{rows} {columns}");
            } else {
                // No more than a row and a column are lost to the bound, and the shape stays.
                let more = u64::from(rows + 1) * u64::from(columns + 1);
                prop_assert!(more > u64::from(tokens_max), "{rows} {columns} of {tokens_max}");
                prop_assert!(rows <= height.div_ceil(unit).max(1));
                prop_assert!(columns <= width.div_ceil(unit).max(1));
                prop_assert!((height >= width) == (rows >= columns) || rows == columns);
            }
        }

        #[test]
        fn a_picture_is_as_another_library_makes_it(
            from in (1_u32..60, 1_u32..60), to in (1_u32..40, 1_u32..40), seed: u32,
        ) {
            let picture = RgbImage::from_fn(from.0, from.1, |x, y| {
                let value = (x * 37 + y * 101).wrapping_mul(seed) >> 24;
                image::Rgb([value as u8, (x * 4) as u8, 255 - (y * 4) as u8])
            });
            let made = resized(&picture, to.0, to.1).unwrap();
            let triangle = imageops::FilterType::Triangle;
            let expected = imageops::resize(&picture, to.0, to.1, triangle);
            for (made, expected) in made.iter().zip(expected.iter()) {
                prop_assert!(made.abs_diff(*expected) <= 2, "{made} {expected}");
            }
        }
    }

    #[test]
    fn sizes_of_known_pictures() {
        let check = |height, width, expect| {
            assert_eq!(fitted(height, width, 28, 1000), expect, "{height}x{width}");
        };
        check(28, 28, (1, 1));
        check(64, 64, (2, 2));
        check(70, 69, (3, 2));
        check(1, 1, (1, 1));
        check(1, 10_000, (1, 357));
        check(1, 100_000, (1, 1000));
        check(100_000, 1, (1000, 1));
        check(2800, 2800, (31, 31));
        check(u32::MAX, u32::MAX, (31, 31));
    }

    #[test]
    fn patches_of_a_token_follow_each_other() {
        // Each pixel says where it is.
        let picture = RgbImage::from_fn(8, 4, |x, y| image::Rgb([x as u8, y as u8, 0]));
        let bytes = patches(&picture, 2);
        let image = Image {
            at: 0,
            height_patches: 2,
            width_patches: 4,
            patch: 2,
            pixels: bytes.clone(),
        };
        for patch in 0..image.patches() {
            let (row, column) = image.place(patch);
            let first = patch as usize * 2 * 2 * 3;
            assert_eq!(bytes[first..first + 2], [column as u8 * 2, row as u8 * 2]);
            assert_eq!(
                bytes[first + 9..first + 11],
                [column as u8 * 2 + 1, row as u8 * 2 + 1]
            );
        }
    }

    #[test]
    fn chance_is_of_the_seed_alone() {
        let pixels: Vec<u8> = (0..40 * 30).map(|n| (n * 7) as u8).collect();
        let plain = Pixels::Plain {
            height: 30,
            width: 40,
            colours: 1,
            bytes: &pixels,
        };
        let options = Pictures {
            patch: 4,
            crop: 0.5,
            mirror: 0.5,
            ..Pictures::default()
        };
        let made = |seed| image(&plain, &options, seed, 1).unwrap();
        assert_eq!(made(1), made(1));
        let different = (0..20).filter(|&seed| made(seed) != made(seed + 1)).count();
        assert!(different > 15, "{different}");
        let area = |image: &Image| f64::from(image.patches()) * 16.0;
        assert!((0..50).all(|seed| area(&made(seed)) >= 0.3 * 1200.0));
    }

    #[test]
    fn what_is_no_picture_has_a_reason() {
        let refused = |bytes: &[u8]| {
            let pixels = Pixels::Encoded(bytes.into());
            image(&pixels, &Pictures::default(), 0, 0)
                .unwrap_err()
                .to_string()
        };
        assert!(refused(b"").contains("cannot be read"));
        assert!(refused(b"GIF89a").contains("cannot be read"));
        let mut png = Vec::new();
        let picture = RgbImage::from_fn(20, 20, |x, y| image::Rgb([x as u8, y as u8, 7]));
        picture
            .write_to(&mut Cursor::new(&mut png), image::ImageFormat::Png)
            .unwrap();
        assert!(image(&Pixels::Encoded(png[..].into()), &Pictures::default(), 0, 0).is_ok());
        for cut in [10, 30, png.len() / 2] {
            assert!(refused(&png[..cut]).contains("cannot be read"), "{cut}");
        }
    }
}
