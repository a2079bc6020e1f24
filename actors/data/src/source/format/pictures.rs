//! Files of pictures, and what is said of them.

use std::{borrow::Cow, collections::HashMap};

use bytes::Bytes;
use serde_json::Value;

use super::{At, Block, Emit, Pixels, Raw, json, utf8};
use crate::source::storage::Listed;

/// A picture's file and its caption.
#[derive(Clone, Debug)]
pub(crate) struct Pictured {
    pub(crate) file: u32,
    pub(crate) picture: Bytes,
    pub(crate) caption: Option<String>,
}

/// The captions of pictures by their numbers, as one string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    text: String,
    ends: Vec<u32>,
}

impl Listing {
    /// Reads a list of captions, and leaves out the pictures that are not in it; `skip` bytes of their
    /// names are not in it either.
    pub(crate) fn read(
        bytes: &[u8],
        (image, caption): (&str, &str),
        pictures: &mut Vec<Listed>,
        skip: usize,
    ) -> Result<Self, String> {
        let found = pairs(bytes, image, caption)?;
        let mut listing = Self::default();
        pictures.retain(|picture| {
            let name = picture.name.get(skip..).unwrap_or_default();
            let caption = found.get(name.trim_start_matches('/'));
            if let Some(caption) = caption {
                listing.text.push_str(caption);
                listing.ends.push(listing.text.len() as u32);
            }
            caption.is_some()
        });
        listing.text.shrink_to_fit();
        Ok(listing)
    }

    pub(crate) fn caption(&self, picture: u32) -> Option<String> {
        let picture = picture as usize;
        let start = picture.checked_sub(1).map_or(0, |before| self.ends[before]);
        let caption = &self.text[start as usize..*self.ends.get(picture)? as usize];
        (!caption.is_empty()).then(|| caption.to_owned())
    }

    pub(crate) fn memory(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}

/// Name and caption of each picture of a list.
fn pairs(bytes: &[u8], image: &str, caption: &str) -> Result<HashMap<String, String>, String> {
    let text = |value: &Value, path: &str| {
        let found = value.get(path).or_else(|| {
            path.split('.')
                .try_fold(value, |value, name| value.get(name))
        })?;
        Some(found.as_str()?.to_owned())
    };
    let (pair, absent) = (
        |object: &Value| Some((text(object, image)?, text(object, caption)?)),
        || format!("an entry of the list has no `{image}` or no `{caption}`"),
    );
    match serde_json::from_slice(bytes) {
        Ok(Value::Array(objects)) => {
            let pairs = objects.iter().map(|object| pair(object).ok_or_else(absent));
            pairs.collect()
        }
        Ok(Value::Object(names)) if !names.contains_key(image) => {
            let named = |(name, value): (String, Value)| {
                let caption = value
                    .as_str()
                    .map(str::to_owned)
                    .or_else(|| text(&value, caption));
                Ok((name, caption.ok_or_else(absent)?))
            };
            names.into_iter().map(named).collect()
        }
        _ => {
            let lines = bytes.split(|&byte| byte == b'\n');
            let lines = lines.filter(|line| !line.trim_ascii().is_empty());
            let pair = |line| {
                let [name, caption] = json::strings(line, [image, caption])?;
                Ok((name.into_owned(), caption.into_owned()))
            };
            lines.map(pair).collect()
        }
    }
}

/// Returns true where a file is a picture of a kind that is not read, as its name says.
pub(crate) fn is_other_picture(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let endings = [
        ".gif", ".bmp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".svg", ".jp2", ".jfif",
    ];
    endings.iter().any(|ending| lower.ends_with(ending))
}

/// Returns true where a file is a picture, as its name says.
pub(crate) fn is_picture(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let endings = [".png", ".jpg", ".jpeg", ".webp"];
    endings.iter().any(|ending| lower.ends_with(ending))
}

/// Cuts whole files into blocks; these are their sizes.
pub(crate) fn blocks(sizes: impl Iterator<Item = u64>, block_bytes: u64) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut bytes = block_bytes;
    for (file, size) in (0..).zip(sizes) {
        match blocks.last_mut() {
            Some(block) if bytes < block_bytes => {
                block.part += 1;
                block.records += 1;
                bytes += size;
            }
            _ => {
                blocks.push(Block {
                    file,
                    part: 1,
                    records: 1,
                    ..Block::default()
                });
                bytes = size;
            }
        }
    }
    blocks
}

/// A caption is the first line of its file.
pub(crate) fn first_line(bytes: &[u8]) -> Result<String, String> {
    let line = bytes.trim_ascii_start();
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    Ok(utf8(line)?.trim().to_owned())
}

/// The records of a block.
pub(crate) fn records(pictures: &[Pictured], emit: Emit<'_>) {
    for pictured in pictures {
        let at = At {
            file: pictured.file,
            offset: 0,
            record: 0,
        };
        let raw = match &pictured.caption {
            Some(caption) => Ok(Raw {
                picture: Some(Pixels::Encoded(Cow::Borrowed(&pictured.picture))),
                ..Raw::text(caption)
            }),
            None => Err("the picture has no caption".into()),
        };
        emit(at, raw);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::storage::Stamp;

    #[test]
    fn captions_are_read_from_each_kind_of_list() {
        let stamp = Stamp {
            size: 0,
            version: 0,
        };
        let all = ["/d/a.png", "/d/b/c.png", "/d/x.png"].map(|name| Listed {
            name: name.into(),
            stamp,
        });
        let check = |list: &str| {
            let mut pictures = all.to_vec();
            let paths = ("file", "said.en");
            let listing = Listing::read(list.as_bytes(), paths, &mut pictures, "/d".len()).unwrap();
            assert_eq!(pictures, all[..2], "{list}");
            let captions: Vec<_> = (0..3).map(|picture| listing.caption(picture)).collect();
            let expect = [Some("a hat"), Some("a dog"), None];
            assert_eq!(
                captions,
                expect.map(|caption| caption.map(str::to_owned)),
                "{list}"
            );
        };
        check(
            r#"[{"file": "a.png", "said": {"en": "a hat"}},
                {"file": "b/c.png", "said.en": "a dog"}]"#,
        );
        check(
            "{\"file\": \"a.png\", \"said\": {\"en\": \"a hat\"}}\n\n\
             {\"file\": \"b/c.png\", \"said.en\": \"a dog\"}\n",
        );
        check(r#"{"a.png": "a hat", "b/c.png": {"said": {"en": "a dog"}}}"#);
        let refused = |list: &str| {
            let paths = ("file", "said");
            Listing::read(list.as_bytes(), paths, &mut all.to_vec(), 0).unwrap_err()
        };
        assert!(refused("[{}]").contains("no `file`"));
        assert!(refused("{\"a\": 1}").contains("no `said`"));
        assert!(refused("[").contains("JSON"));
    }

    #[test]
    fn blocks_of_files_are_whole_files() {
        let check = |sizes: &[u64], expect: &[(u32, u32)]| {
            let blocks = blocks(sizes.iter().copied(), 10);
            let blocks: Vec<_> = blocks
                .iter()
                .map(|block| (block.file, block.part))
                .collect();
            assert_eq!(blocks, expect, "{sizes:?}");
        };
        check(&[], &[]);
        check(&[4, 4, 4, 4], &[(0, 3), (3, 1)]);
        check(&[50, 0, 10, 1], &[(0, 1), (1, 2), (3, 1)]);
    }
}
