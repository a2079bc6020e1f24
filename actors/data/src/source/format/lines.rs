//! Files of lines: JSON lines, and text.

use std::ops::Range;

use bytes::Bytes;
use memchr::{memchr, memchr_iter};

use super::{
    At, Block, Cutter, Emit, FileFormat, RECORD_BYTES_MAX, Raw, Records, Scanned, foreign::foreign,
    json, plain_text, tagged,
};
use crate::source::{
    fault::SourceError,
    spec::{Document, Fields, Markup, Text},
    storage::{Content, Windows},
};

/// Text, several documents to a file.
pub(crate) struct Documents<'t>(pub(crate) &'t Text);

/// The text of a block.
struct Run {
    text: Text,
    start: u64,
    file: u32,
    bytes: Bytes,
}

impl FileFormat for Documents<'_> {
    fn endings(&self) -> Vec<&str> {
        self.0.suffixes.iter().map(String::as_str).collect()
    }

    fn check(&self) -> Result<(), String> {
        match &self.0.document {
            Document::Separated(line) if line.is_empty() || line.contains('\n') => {
                Err("a separator is a line that is not empty".into())
            }
            Document::Lines(0) => Err("a document has at least 1 line".into()),
            _ => Ok(()),
        }
    }

    fn grows(&self) -> bool {
        true
    }

    fn scan(&self, content: &Content, file: u32, block_bytes: u64) -> Result<Scanned, SourceError> {
        if let Some(reason) = foreign(content)? {
            return Ok(Scanned::of_another_kind(content, reason));
        }
        let begin = content.part(0..content.len().min(BEGIN))?;
        let returns = memchr_iter(b'\r', &begin).take(2).count();
        if memchr(b'\n', &begin).is_none() && returns > 1 {
            let reason = "its lines end with CR alone, and LF is what ends one: convert it, as with `tr '\\r' '\\n'`";
            return Ok(Scanned::of_another_kind(content, reason));
        }
        let splitting = Splitting::of(&self.0.document).unwrap_or(Splitting::LINE);
        scan(content, splitting, file, block_bytes)
    }

    fn fetch(&self, content: &Content, block: &Block) -> Result<Box<dyn Records>, SourceError> {
        let range = block.start..block.start + u64::from(block.len);
        Ok(Box::new(Run {
            text: self.0.clone(),
            start: block.start,
            file: block.file,
            bytes: content.part(range)?,
        }))
    }
}

impl Records for Run {
    fn records(&self, emit: Emit<'_>) {
        let splitting = Splitting::of(&self.text.document).unwrap_or(Splitting::LINE);
        text_records(
            &self.bytes,
            self.start,
            self.file,
            splitting,
            self.text.markup,
            emit,
        );
    }
}

/// The way in which lines become documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Splitting<'a> {
    Lines(u32),
    Paragraph,
    Headed,
    Separated(&'a str),
}

impl<'a> Splitting<'a> {
    pub(crate) const LINE: Self = Self::Lines(1);

    /// None where a document is a file.
    pub(crate) fn of(document: &'a Document) -> Option<Self> {
        match document {
            Document::File => None,
            Document::Line => Some(Self::LINE),
            Document::Lines(count) => Some(Self::Lines(*count)),
            Document::Headed => Some(Self::Headed),
            Document::Paragraph => Some(Self::Paragraph),
            Document::Separated(line) => Some(Self::Separated(line)),
        }
    }
}

/// Finds documents, line by line.
#[derive(Debug)]
struct Splitter<'a> {
    splitting: Splitting<'a>,
    /// The document that is not complete: from its first to its last line that is not blank.
    open: Option<Range<u64>>,
    /// Its lines.
    lines: u32,
    after_blank: bool,
}

/// A document, and from where on what follows needs not know of it.
struct Found {
    document: Range<u64>,
    next: u64,
}

impl<'a> Splitter<'a> {
    fn new(splitting: Splitting<'a>) -> Self {
        Self {
            splitting,
            open: None,
            lines: 0,
            after_blank: false,
        }
    }

    /// Takes the line that begins at a place, or the begin of one that ends further behind; gives the
    /// document of which it shows the end.
    fn line(&mut self, line: &[u8], at: u64, end: u64) -> Option<Found> {
        let text = line.trim_ascii_end();
        let blank = text.is_empty();
        let ends_before = match self.splitting {
            Splitting::Lines(_) => false,
            Splitting::Paragraph => blank,
            Splitting::Headed => self.after_blank && !blank && !text[0].is_ascii_whitespace(),
            Splitting::Separated(separator) => text == separator.trim_ascii_end().as_bytes(),
        };
        self.after_blank = blank;
        let headed = self.splitting == Splitting::Headed;
        let before = if ends_before { self.end() } else { None };
        if !blank && (!ends_before || headed) {
            let start = self.open.as_ref().map_or(at, |open| open.start);
            let whole = at + line.len() as u64 == end;
            let text_end = if whole { at + text.len() as u64 } else { end };
            self.open = Some(start..text_end);
            self.lines += 1;
        }
        if self.splitting == Splitting::Lines(self.lines) {
            let document = self.end()?;
            return Some(Found {
                document,
                next: end,
            });
        }
        let next = if headed { at } else { end };
        before.map(|document| Found { document, next })
    }

    fn end(&mut self) -> Option<Range<u64>> {
        self.lines = 0;
        self.open.take()
    }
}

/// Cuts a file into blocks of whole documents.
pub(crate) fn scan(
    content: &Content,
    splitting: Splitting<'_>,
    file: u32,
    block_bytes: u64,
) -> Result<Scanned, SourceError> {
    let mut windows = Windows::new(content);
    let mut splitter = Splitter::new(splitting);
    let mut cutter = Cutter::new(content, file, block_bytes);
    let mut scanned = Scanned::default();
    let mut take = |found: &Found, cutter: &mut Cutter| {
        let document = &found.document;
        cutter.comes(content, document.start, document.end)?;
        if document.end - document.start > RECORD_BYTES_MAX {
            let reason = "it is longer than 64 MiB, which is no document";
            scanned.bad(&content.shown, document.start, reason);
            cutter.pass(document.start, found.next);
        } else {
            cutter.record_at(document.start);
            cutter.may_end(found.next);
        }
        Ok::<(), SourceError>(())
    };
    // What is not a whole line yet, where it begins, and what of it was let go.
    let (mut rest, mut at, mut gone) = (Vec::new(), 0_u64, 0_u64);
    loop {
        let window = windows.next()?;
        if window.is_empty() {
            break;
        }
        let (known, mut start) = (rest.len(), 0);
        rest.extend_from_slice(&window);
        for newline in memchr_iter(b'\n', &rest[known..]) {
            let end = known + newline + 1;
            let line = &rest[start..end];
            let line_end = at + line.len() as u64 + std::mem::take(&mut gone);
            let found = splitter.line(line, at, line_end);
            (start, at) = (end, line_end);
            if let Some(found) = found {
                take(&found, &mut cutter)?;
            }
        }
        rest.drain(..start);
        // Nobody reads so long a line; it is kept as far as it takes to know that it is not blank.
        if rest.len() as u64 > RECORD_BYTES_MAX {
            rest[0] = b'x';
            gone += (rest.len() - HEAD) as u64;
            rest.truncate(HEAD);
        }
    }
    let end = content.len();
    let last = splitter.line(&rest, at, end);
    let open = splitter.end().map(|document| Found {
        document,
        next: end,
    });
    let mut last_end = end;
    for found in last.into_iter().chain(open) {
        take(&found, &mut cutter)?;
        last_end = found.document.end;
    }
    cutter.end(last_end);
    cutter.done(&windows, &mut scanned);
    Ok(scanned)
}

/// The documents of a block that begins at a place of its file.
fn documents(bytes: &[u8], start: u64, splitting: Splitting<'_>, mut each: impl FnMut(u64, &[u8])) {
    let mut splitter = Splitter::new(splitting);
    let mut take = |document: Range<u64>| {
        let own = (document.start - start) as usize..(document.end - start) as usize;
        each(document.start, &bytes[own]);
    };
    let mut begin = 0;
    let ends = memchr_iter(b'\n', bytes).map(|newline| newline + 1);
    for end in ends.chain([bytes.len()]) {
        let (at, line_end) = (start + begin as u64, start + end as u64);
        if let Some(found) = splitter.line(&bytes[begin..end], at, line_end) {
            take(found.document);
        }
        begin = end;
    }
    if let Some(document) = splitter.end() {
        take(document);
    }
}

/// The records of a block of JSON lines.
pub(crate) fn json_records(bytes: &[u8], start: u64, file: u32, fields: &Fields, emit: Emit<'_>) {
    let mut record = 0;
    documents(bytes, start, Splitting::LINE, |offset, line| {
        let at = At {
            file,
            offset,
            record,
        };
        record += 1;
        emit(at, json::record(line, fields));
    });
}

/// The records of a block of text.
fn text_records(
    bytes: &[u8],
    start: u64,
    file: u32,
    splitting: Splitting<'_>,
    markup: Markup,
    emit: Emit<'_>,
) {
    let mut record = 0;
    documents(bytes, start, splitting, |offset, document| {
        let at = At {
            file,
            offset,
            record,
        };
        record += 1;
        emit(at, text(document, markup));
    });
}

/// Among so many bytes there is the end of a line, where a file has some.
const BEGIN: u64 = 1 << 20;

/// As much of a line that is too long is kept.
const HEAD: usize = 64;

/// A document's text.
pub(crate) fn text(document: &[u8], markup: Markup) -> Result<Raw<'_>, String> {
    let text = plain_text(document)?;
    Ok(match markup {
        Markup::None => Raw::text(text),
        Markup::Tagged => Raw::text(tagged::untagged(text)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, splitting: Splitting<'_>) -> Vec<(u64, String)> {
        let mut found = Vec::new();
        documents(text.as_bytes(), 100, splitting, |at, document| {
            found.push((at, String::from_utf8(document.to_vec()).unwrap()));
        });
        found
    }

    #[test]
    fn documents_are_what_separates_them_says() {
        let check = |splitting, text, expect: &[(u64, &str)]| {
            let expect: Vec<_> = expect
                .iter()
                .map(|&(at, text)| (at, text.to_owned()))
                .collect();
            assert_eq!(found(text, splitting), expect, "{text:?}");
        };
        check(Splitting::LINE, "", &[]);
        check(
            Splitting::LINE,
            "a\n\n  \nb\r\nc",
            &[(100, "a"), (106, "b"), (109, "c")],
        );
        check(
            Splitting::Paragraph,
            "\n\na\nb\n \nc\n\n\n",
            &[(102, "a\nb"), (108, "c")],
        );
        check(Splitting::Paragraph, "a\n  b", &[(100, "a\n  b")]);
        check(
            Splitting::Lines(2),
            "a\n\nb\nc\n",
            &[(100, "a\n\nb"), (105, "c")],
        );
        check(
            Splitting::Headed,
            "  a\n\n  b\nc\n\nd \n  e\n\n  f\n\n\ng",
            &[(100, "  a\n\n  b\nc"), (112, "d \n  e\n\n  f"), (126, "g")],
        );
        let separated = Splitting::Separated("%%");
        check(
            separated,
            "a\n\nb\n%%\n%%\nc %%\n%% \n",
            &[(100, "a\n\nb"), (111, "c %%")],
        );
    }
}
