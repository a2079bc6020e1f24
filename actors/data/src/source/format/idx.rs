//! Pictures and classes in the form of MNIST: a magic number, the sizes, the bytes.

use bytes::Bytes;

use super::{At, Block, Emit, Pixels, Raw, Scanned};
use crate::source::{fault::SourceError, storage::Content};

/// The header of a file of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    items: u32,
    height: u32,
    width: u32,
    colours: u32,
    bytes: u64,
}

/// Some pictures and their classes.
#[derive(Clone, Debug)]
pub(crate) struct Items {
    first: u64,
    header: Header,
    pictures: Bytes,
    labels: Bytes,
}

impl Header {
    fn item(&self) -> u64 {
        u64::from(self.height) * u64::from(self.width) * u64::from(self.colours)
    }

    fn read(content: &Content) -> Result<Result<Self, String>, SourceError> {
        let head = content.part(0..content.len().min(20))?;
        let number = |at: usize| {
            let four = head.get(at * 4..).and_then(|rest| rest.first_chunk());
            four.map(|&four| u32::from_be_bytes(four))
        };
        let header = match (number(0), number(1), number(2), number(3), number(4)) {
            (Some(PICTURES), Some(items), Some(height), Some(width), _) => Self {
                items,
                height,
                width,
                colours: 1,
                bytes: 16,
            },
            (Some(COLOURED), Some(items), Some(height), Some(width), Some(3)) => Self {
                items,
                height,
                width,
                colours: 3,
                bytes: 20,
            },
            _ => return Ok(Err("it does not begin as a file of pictures does".into())),
        };
        let sides = 1..=1 << 15;
        if !sides.contains(&header.height) || !sides.contains(&header.width) {
            return Ok(Err("its pictures have no size, or an unlikely one".into()));
        }
        Ok(Ok(header))
    }
}

/// Cuts the items into blocks.
pub(crate) fn scan(
    pictures: &Content,
    labels: &Content,
    block_bytes: u64,
) -> Result<Scanned, SourceError> {
    let mut scanned = Scanned::default();
    let header = match Header::read(pictures)? {
        Ok(header) => header,
        Err(reason) => {
            scanned.broken(&pictures.shown, 0, reason);
            return Ok(scanned);
        }
    };
    let head = labels.part(0..labels.len().min(8))?;
    let labelled = match head.first_chunk::<4>() {
        Some(magic) if u32::from_be_bytes(*magic) == LABELS && head.len() == 8 => {
            u64::from(u32::from_be_bytes([head[4], head[5], head[6], head[7]]))
        }
        _ => {
            let reason = "it does not begin as a file of classes does";
            scanned.broken(&labels.shown, 0, reason);
            return Ok(scanned);
        }
    };
    let pictured = (pictures.len() - header.bytes) / header.item();
    let (said, there) = (u64::from(header.items), pictured.min(labels.len() - 8));
    if pictured < said {
        let reason = format!("it ends after {pictured} of {said} pictures");
        scanned.broken(&pictures.shown, pictures.len(), reason);
    } else if labelled.min(labels.len() - 8) < said {
        let reason = format!("it has classes for {labelled} of {said} pictures, or ends before");
        scanned.broken(&labels.shown, labels.len(), reason);
    }
    let each = (block_bytes / header.item()).clamp(1, u64::from(u32::MAX));
    let mut start = 0;
    let all = said.min(there).min(labelled);
    while start < all {
        let len = each.min(all - start) as u32;
        scanned.blocks.push(Block {
            start,
            len,
            file: 0,
            part: 0,
            records: len,
        });
        start += u64::from(len);
    }
    Ok(scanned)
}

/// Reads a block.
pub(crate) fn fetch(
    block: &Block,
    pictures: &Content,
    labels: &Content,
) -> Result<Items, SourceError> {
    let header = Header::read(pictures)?.map_err(|reason| SourceError::Damaged {
        file: pictures.shown.clone(),
        offset: 0,
        reason,
    })?;
    let (start, end) = (block.start, block.start + u64::from(block.len));
    let place = |item: u64| header.bytes + item * header.item();
    Ok(Items {
        first: start,
        header,
        pictures: pictures.part(place(start)..place(end))?,
        labels: labels.part(8 + start..8 + end)?,
    })
}

/// The records of a block.
pub(crate) fn records(items: &Items, names: &[String], emit: Emit<'_>) {
    let Header {
        height,
        width,
        colours,
        ..
    } = items.header;
    let pictures = items.pictures.chunks_exact(items.header.item() as usize);
    for ((picture, &label), record) in pictures.zip(&items.labels[..]).zip(0..) {
        let at = At {
            file: 0,
            offset: items.first,
            record,
        };
        let name = names.get(usize::from(label)).cloned();
        let raw = Raw {
            picture: Some(Pixels::Plain {
                height,
                width,
                colours,
                bytes: picture,
            }),
            ..Raw::text(name.unwrap_or_else(|| label.to_string()))
        };
        emit(at, Ok(raw));
    }
}

/// Bytes in one, and in three or four directions.
const LABELS: u32 = 0x0801;
const PICTURES: u32 = 0x0803;
const COLOURED: u32 = 0x0804;
