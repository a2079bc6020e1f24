//! The canvas of an animation: frames drawn over each other.

use super::{Picture, Transparency};
use crate::error::MediaError;

/// A part of a canvas. What of it lies outside is not drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) left: usize,
    pub(super) top: usize,
    pub(super) width: usize,
    pub(super) height: usize,
}

/// Pixels of four bytes, of which the last says how much of the colour there is.
#[derive(Clone, Debug)]
pub(super) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    /// A canvas of which nothing is drawn yet.
    pub(super) fn new(width: u32, height: u32) -> Self {
        let (width, height) = (width as usize, height as usize);
        Self {
            width,
            height,
            pixels: vec![0; width * height * 4],
        }
    }

    /// Draws each row of an area: `draw` is given its number and the pixels that are there.
    pub(super) fn rows(&mut self, area: Area, mut draw: impl FnMut(usize, &mut [[u8; 4]])) {
        let across = self.width.saturating_sub(area.left).min(area.width);
        let down = self.height.saturating_sub(area.top).min(area.height);
        if across == 0 {
            return;
        }
        for row in 0..down {
            let at = ((area.top + row) * self.width + area.left) * 4;
            let (pixels, _) = self.pixels[at..at + across * 4].as_chunks_mut::<4>();
            draw(row, pixels);
        }
    }

    /// Has nothing be drawn there.
    pub(super) fn clear(&mut self, area: Area) {
        self.rows(area, |_, pixels| pixels.fill([0; 4]));
    }

    /// What is seen now.
    pub(super) fn seen(&self, through: Transparency) -> Result<Picture, MediaError> {
        let (canvas, _) = self.pixels.as_chunks::<4>();
        let mut pixels = Vec::with_capacity(canvas.len() * 3);
        for &pixel in canvas {
            pixels.extend_from_slice(&through.over(pixel));
        }
        Picture::new(self.width as u32, self.height as u32, pixels)
    }
}

/// A pixel over another, in the whole numbers of libwebp.
pub(super) fn blended(over: [u8; 4], under: [u8; 4]) -> [u8; 4] {
    let (own, theirs) = (u32::from(over[3]), u32::from(under[3]));
    if own == 255 || theirs == 0 {
        return over;
    }
    if own == 0 {
        return under;
    }
    let theirs = (theirs * (256 - own)) >> 8;
    let both = own + theirs;
    let scale = u64::from((1_u32 << 24) / both);
    let part = |part: usize| {
        let sum = u32::from(over[part]) * own + u32::from(under[part]) * theirs;
        ((u64::from(sum) * scale) >> 24) as u8
    };
    [part(0), part(1), part(2), both as u8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_outside_is_not_drawn() {
        let mut canvas = Canvas::new(3, 2);
        let area = |left, top| Area {
            left,
            top,
            width: 2,
            height: 2,
        };
        let mut rows = vec![];
        canvas.rows(area(2, 1), |row, pixels| {
            rows.push((row, pixels.len()));
            pixels.fill([1, 2, 3, 255]);
        });
        assert_eq!(rows, [(0, 1)]);
        canvas.rows(area(3, 0), |_, _| panic!("outside"));
        canvas.rows(area(0, 2), |_, _| panic!("outside"));
        let seen = canvas.seen(Transparency::White).unwrap();
        assert_eq!(seen.pixels()[15..], [1, 2, 3]);
        assert_eq!(seen.pixels()[..15], [255; 15]);
        canvas.clear(area(2, 1));
        let seen = canvas.seen(Transparency::White).unwrap();
        assert_eq!(seen.pixels(), [255; 18]);
    }

    #[test]
    fn pixels_blend() {
        let under = [100, 100, 100, 255];
        assert_eq!(blended([1, 2, 3, 255], under), [1, 2, 3, 255]);
        assert_eq!(blended([1, 2, 3, 0], under), under);
        assert_eq!(blended([9, 9, 9, 7], [5, 5, 5, 0]), [9, 9, 9, 7]);
        let [half, .., all] = blended([200, 200, 200, 128], under);
        assert!((149..=151).contains(&half) && all >= 254, "{half} {all}");
    }
}
