//! The one note of a camera that changes a picture: which way up it was held.

use crate::scan::Scan;

/// The way in which a picture was stored, by the numbers 1 to 8 of EXIF's tag 0x0112.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Orientation(u8);

impl Orientation {
    /// Stored as it is looked at.
    pub const UPRIGHT: Self = Self(1);

    /// The orientation of this number; upright for any that is none.
    #[must_use]
    pub fn of(number: u16) -> Self {
        match number {
            2..=8 => Self(number as u8),
            _ => Self::UPRIGHT,
        }
    }

    /// Its number, 1 to 8.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// Width and height as they are looked at, of a picture that is stored with these.
    #[must_use]
    pub fn sides(self, width: u32, height: u32) -> (u32, u32) {
        if self.0 >= 5 {
            (height, width)
        } else {
            (width, height)
        }
    }

    /// How the stored picture is read: with rows for columns, from right to left, from the bottom up.
    pub(crate) fn reads(self) -> (bool, bool, bool) {
        match self.0 {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => (false, false, false),
        }
    }
}

/// The orientation in notes that begin with the header of a TIFF file. Notes that are broken say nothing, and
/// the picture is none the worse for it.
pub(crate) fn orientation(notes: &[u8]) -> Orientation {
    found(notes).map_or(Orientation::UPRIGHT, Orientation::of)
}

fn found(notes: &[u8]) -> Option<u16> {
    let notes = notes.strip_prefix(b"Exif\0\0").unwrap_or(notes);
    let mut scan = Scan::new(notes);
    let little = match scan.array::<4>()? {
        [b'I', b'I', 42, 0] => true,
        [b'M', b'M', 0, 42] => false,
        _ => return None,
    };
    let word = |scan: &mut Scan<'_>| if little { scan.u16_le() } else { scan.u16_be() };
    let long = |scan: &mut Scan<'_>| if little { scan.u32_le() } else { scan.u32_be() };
    let directory = long(&mut scan)? as usize;
    let mut scan = Scan {
        bytes: notes,
        at: directory,
    };
    for _ in 0..word(&mut scan)? {
        let (tag, kind) = (word(&mut scan)?, word(&mut scan)?);
        let (_count, value) = (long(&mut scan)?, scan.take(4)?);
        if tag == ORIENTATION {
            let mut value = Scan::new(value);
            return match kind {
                SHORT => word(&mut value),
                LONG => long(&mut value).and_then(|number| number.try_into().ok()),
                _ => None,
            };
        }
    }
    None
}

const ORIENTATION: u16 = 0x0112;
const SHORT: u16 = 3;
const LONG: u16 = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn notes(number: u16) -> Vec<u8> {
        let mut notes = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01".to_vec();
        notes.extend(number.to_be_bytes());
        notes.extend([0; 6]);
        notes
    }

    #[test]
    fn the_tag_is_found_in_both_orders_of_bytes() {
        for number in 1..=8 {
            assert_eq!(orientation(&notes(number)).number(), number as u8);
        }
        let little = b"II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
        assert_eq!(orientation(little).number(), 6);
    }

    proptest! {
        #[test]
        fn broken_notes_say_nothing(at in 0_usize..40, byte: u8, cut in 0_usize..40) {
            let mut notes = notes(6);
            let length = notes.len();
            notes[at % length] = byte;
            notes.truncate(cut);
            let number = orientation(&notes).number();
            prop_assert!((1..=8).contains(&number));
        }
    }
}
