//! Files of another kind than their source says, known by how they begin.

use super::super::{fault::SourceError, storage::Content};

/// Says of which kind a file is that should be text, where it is none.
pub(crate) fn foreign(content: &Content) -> Result<Option<&'static str>, SourceError> {
    let head = content.part(0..content.len().min(HEAD))?;
    Ok(kind(&head))
}

/// The same of a file that is there as a whole.
pub(crate) fn foreign_bytes(file: &[u8]) -> Option<&'static str> {
    kind(&file[..file.len().min(HEAD as usize)])
}

/// The kind of a file that is no text, by its first bytes.
fn kind(head: &[u8]) -> Option<&'static str> {
    let begins = KINDS.iter().find(|(magic, _)| head.starts_with(magic));
    if let Some((_, kind)) = begins {
        return Some(kind);
    }
    // Of UTF-16 without a mark every other byte is zero, as long as it is in Latin letters.
    let zeros = |first: usize| head.iter().skip(first).step_by(2).all(|&byte| byte == 0);
    let sixteen = head.len() >= 8 && head.iter().any(|&byte| byte != 0);
    (sixteen && (zeros(0) || zeros(1))).then_some(UTF_16)
}

const UTF_16: &str = "it is UTF-16 and not UTF-8: convert it, as with `iconv -f UTF-16 -t UTF-8`";

const KINDS: &[(&[u8], &str)] = &[
    (b"\xff\xfe", UTF_16),
    (b"\xfe\xff", UTF_16),
    (
        b"\x1f\x8b",
        "it is compressed with gzip and its name does not say so: name it `.gz`, or set \
         `compression = \"gzip\"`",
    ),
    (
        b"\x28\xb5\x2f\xfd",
        "it is compressed with Zstandard and its name does not say so: name it `.zst`, or set \
         `compression = \"zstd\"`",
    ),
    (
        b"BZh",
        "it is compressed with bzip2, which is not read: compress it with gzip or Zstandard",
    ),
    (
        b"\xfd7zXZ\0",
        "it is compressed with xz, which is not read: compress it with gzip or Zstandard",
    ),
    (
        b"\x04\x22\x4d\x18",
        "it is compressed with LZ4, which is not read: compress it with gzip or Zstandard",
    ),
    (
        b"PK\x03\x04",
        "it is a ZIP archive, which is not read: unpack it",
    ),
    (
        b"PAR1",
        "it is a Parquet file: set `format = { parquet = .. }`",
    ),
    (
        b"PARE",
        "it is a Parquet file that is encrypted, which is not read: write it without encryption",
    ),
    (b"version https://git-lfs.github.com/spec/", LFS_POINTER),
    (
        b"%PDF-",
        "it is a PDF and no text: take the text out of it first",
    ),
    (b"ARROW1", ARROW),
    (b"\xff\xff\xff\xff", ARROW),
];

const LFS_POINTER: &str =
    "it is a pointer of Git LFS and not the file itself: fetch that with `git lfs pull`";

const ARROW: &str = "it is an Arrow file, which is not read: write it as Parquet, as with \
                     `Dataset.to_parquet`, or as lines of JSON";

const HEAD: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_their_first_bytes() {
        let check = |head: &[u8], expect: &str| {
            assert!(kind(head).unwrap().contains(expect), "{head:?}");
        };
        check(b"\x1f\x8b\x08", "gzip");
        check(b"\xff\xfe{\0\"\0", "UTF-16");
        check(b"{\0\"\0t\0e\0x\0", "UTF-16");
        check(b"\0{\0\"\0t\0e\0x", "UTF-16");
        check(b"\xff\xff\xff\xff\x01", "Arrow");
        check(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1",
            "git lfs pull",
        );
        check(b"PARE", "encrypted");
        for text in [
            &b"{\"text\": 1}"[..],
            b"",
            b"a",
            b"\xef\xbb\xbf{}",
            &[0; 64],
        ] {
            assert_eq!(kind(text), None, "{text:?}");
        }
    }
}
