//! A file without the parts that a decoder would copy and nobody looks at.

use std::io::{self, BufRead, Read, Seek, SeekFrom};

/// Parts of a file, one behind the other, as one.
pub(super) struct Kept<'a, I> {
    parts: I,
    part: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Kept<'a, I> {
    pub(super) fn new(parts: I) -> Self {
        Self { parts, part: &[] }
    }
}

impl<'a, I: Iterator<Item = &'a [u8]>> Read for Kept<'a, I> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl<'a, I: Iterator<Item = &'a [u8]>> BufRead for Kept<'a, I> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.part.is_empty() {
            let Some(part) = self.parts.next() else {
                break;
            };
            self.part = part;
        }
        Ok(self.part)
    }

    fn consume(&mut self, count: usize) {
        self.part = self.part.get(count..).unwrap_or_default();
    }
}

impl<I> Seek for Kept<'_, I> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
