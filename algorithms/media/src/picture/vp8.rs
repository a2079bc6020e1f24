//! As much of a frame header of VP8 (RFC 6386) as tells into how many partitions a picture is cut.
//!
//! A decoder takes memory for a partition as long as it says it is, up to 16 MiB, before it looks whether it is there.

use crate::scan::Scan;

/// Returns true if all partitions of a picture that say how long they are lie within its bytes.
pub(super) fn partitions_fit(chunk: &[u8]) -> bool {
    fit(chunk).is_some()
}

fn fit(chunk: &[u8]) -> Option<()> {
    let mut scan = Scan::new(chunk);
    let first = (scan.u24_le()? >> 5) as usize;
    // The start code and both sides.
    scan.take(7)?;
    let count = 1_usize << Bits::new(scan.take(first)?).partitions();
    let sizes = scan.take(3 * (count - 1))?;
    for size in sizes.chunks_exact(3) {
        scan.take(Scan::new(size).u24_le()? as usize)?;
    }
    Some(())
}

/// Bits of even odds in arithmetic codes; zeros behind the end.
struct Bits<'a> {
    bytes: &'a [u8],
    value: u32,
    range: u32,
    shifted: u32,
}

impl<'a> Bits<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let mut bits = Self {
            bytes,
            value: 0,
            range: 255,
            shifted: 0,
        };
        bits.value = bits.byte() << 8 | bits.byte();
        bits
    }

    fn byte(&mut self) -> u32 {
        let (byte, rest) = self.bytes.split_first().unwrap_or((&0, &[]));
        self.bytes = rest;
        u32::from(*byte)
    }

    fn bit(&mut self) -> bool {
        let split = 1 + (((self.range - 1) * 128) >> 8);
        let is_set = self.value >= split << 8;
        if is_set {
            self.range -= split;
            self.value -= split << 8;
        } else {
            self.range = split;
        }
        while self.range < 128 {
            self.value <<= 1;
            self.range <<= 1;
            self.shifted += 1;
            if self.shifted == 8 {
                self.shifted = 0;
                self.value |= self.byte();
            }
        }
        is_set
    }

    fn number(&mut self, bits: u32) -> u32 {
        (0..bits).fold(0, |number, _| number << 1 | u32::from(self.bit()))
    }

    /// Numbers of so many bits that may each be there or not.
    fn skip(&mut self, count: u32, bits: u32) {
        for _ in 0..count {
            if self.bit() {
                self.number(bits);
            }
        }
    }

    /// The logarithm of the number of partitions.
    fn partitions(&mut self) -> u32 {
        // Colours and their range.
        self.number(2);
        if self.bit() {
            let (map, features) = (self.bit(), self.bit());
            if features {
                self.bit();
                // Quantisation and filters of four segments, each with its sign.
                self.skip(4, 8);
                self.skip(4, 7);
            }
            if map {
                self.skip(3, 8);
            }
        }
        // The filter: its kind, level and sharpness.
        self.number(10);
        if self.bit() && self.bit() {
            self.skip(8, 7);
        }
        self.number(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_that_is_not_there_is_seen() {
        // Bits of zero up to the number of partitions, which is then one: nothing says how long it is.
        let picture = |first: &[u8], rest: &[u8]| {
            let mut chunk = ((first.len() as u32) << 5).to_le_bytes()[..3].to_vec();
            chunk.extend([0x9d, 0x01, 0x2a, 16, 0, 16, 0]);
            chunk.extend(first);
            chunk.extend(rest);
            partitions_fit(&chunk)
        };
        assert!(picture(&[0; 8], &[]));
        assert!(!partitions_fit(&[0; 5]));
        // All bits set have eight.
        let said = |sizes: [u8; 21], bytes: usize| {
            let rest = [&sizes[..], &vec![0; bytes]].concat();
            picture(&[0xff; 40], &rest)
        };
        let mut sizes = [0; 21];
        assert!(said(sizes, 0));
        sizes[3] = 100;
        assert!(said(sizes, 100) && !said(sizes, 99));
        sizes[20] = 0xff;
        assert!(!said(sizes, 10_000));
    }
}
