//! Contents of fake memory: only what was written takes room, however large the memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// The contents of memory before something is written: no zero, so that nobody comes to rely on
/// one.
const UNDEFINED: u8 = 0xa5;
const PAGE: u64 = 4096;

#[derive(Clone, Debug, Default)]
pub(super) struct Bytes {
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Bytes {
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, part) in parts(offset, bytes.len() as u64) {
            let page = self
                .pages
                .entry(page)
                .or_insert_with(|| vec![UNDEFINED; PAGE as usize].into_boxed_slice());
            page[within].copy_from_slice(&bytes[part]);
        }
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (page, within, part) in parts(offset, bytes.len() as u64) {
            match self.pages.get(&page) {
                Some(page) => bytes[part].copy_from_slice(&page[within]),
                None => bytes[part].fill(UNDEFINED),
            }
        }
    }

    /// The bytes that were written in this range, each run with its offset from the beginning.
    pub(super) fn written(&self, range: Range<u64>) -> Vec<(u64, Vec<u8>)> {
        let pages = range.start / PAGE..range.end.div_ceil(PAGE);
        self.pages
            .range(pages)
            .filter_map(|(page, bytes)| {
                let begin = range.start.max(page * PAGE);
                let end = range.end.min((page + 1) * PAGE);
                let within =
                    (begin - page * PAGE) as usize..(end.max(begin) - page * PAGE) as usize;
                (begin < end).then(|| (begin - range.start, bytes[within].to_vec()))
            })
            .collect()
    }

    /// Makes a range undefined again.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        let pages: Vec<u64> = self
            .pages
            .range(range.start / PAGE..range.end.div_ceil(PAGE))
            .map(|(page, _)| *page)
            .collect();
        for page in pages {
            let begin = range.start.max(page * PAGE) - page * PAGE;
            let end = range.end.min((page + 1) * PAGE) - page * PAGE;
            if (begin, end) == (0, PAGE) {
                self.pages.remove(&page);
            } else if let Some(bytes) = self.pages.get_mut(&page) {
                bytes[begin as usize..end as usize].fill(UNDEFINED);
            }
        }
    }
}

/// Cuts a range at the pages: page, range in it, range of the whole.
fn parts(offset: u64, length: u64) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let (page, within) = ((offset + done) / PAGE, (offset + done) % PAGE);
        let bytes = (PAGE - within).min(length - done);
        let part = done as usize..(done + bytes) as usize;
        done += bytes;
        (bytes > 0).then_some((page, within as usize..(within + bytes) as usize, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_across_pages_and_the_rest_is_undefined() {
        let mut bytes = Bytes::default();
        let text: Vec<u8> = (0..10_000).map(|i| (i % 251) as u8).collect();
        bytes.write(5_000, &text);
        let mut back = vec![0; 10_002];
        bytes.read(4_999, &mut back);
        assert_eq!((back[0], back[10_001]), (UNDEFINED, UNDEFINED));
        assert_eq!(back[1..=10_000], text);
        let mut copy = Bytes::default();
        for (at, part) in bytes.written(5_000..15_000) {
            copy.write(7 + at, &part);
        }
        let mut back = vec![0; 10_000];
        copy.read(7, &mut back);
        assert_eq!(back, text);
        bytes.forget(6_000..14_000);
        let mut back = vec![0; 10_000];
        bytes.read(5_000, &mut back);
        assert_eq!(back[..1_000], text[..1_000]);
        assert!(back[1_000..9_000].iter().all(|byte| *byte == UNDEFINED));
        assert_eq!(back[9_000..], text[9_000..]);
    }
}
