//! Names for bytes that are something else.

/// A few words about bytes that are none of the formats that are wanted, for whoever has to find out.
pub(crate) fn foreign(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "has no bytes".to_owned();
    }
    if bytes.get(4..8) == Some(b"ftyp") {
        let brand = bytes.get(8..12).unwrap_or_default();
        return match brand {
            b"heic" | b"heix" | b"mif1" | b"msf1" => "is HEIC: convert it to one of these",
            b"avif" | b"avis" => "is AVIF: convert it to one of these",
            b"M4A " | b"M4B " => "is AAC in MP4: convert it to one of these",
            _ => "is a video or another file of MP4's family",
        }
        .to_owned();
    }
    let known: [(&[u8], &str); 21] = [
        (b"BM", "looks like BMP: convert it to one of these"),
        (b"II*\0", "is TIFF: convert it to one of these"),
        (b"MM\0*", "is TIFF: convert it to one of these"),
        (
            b"\0\0\x01\0",
            "looks like an icon (ICO): convert it to one of these",
        ),
        (b"\xff\x0a", "is JPEG XL: convert it to one of these"),
        (b"\0\0\0\x0cJXL ", "is JPEG XL: convert it to one of these"),
        (b"\x1a\x45\xdf\xa3", "is WebM or Matroska, a video"),
        (b"%PDF", "is PDF: draw its pages first"),
        (b"\x1f\x8b", "is compressed by gzip: unpack it first"),
        (b"PK\x03\x04", "is a ZIP archive: unpack it first"),
        (b"\x89PNG", "is PNG, a picture"),
        (b"\xff\xd8\xff", "is JPEG, a picture"),
        (b"GIF8", "is GIF, a picture"),
        (b"fLaC", "is FLAC, a sound"),
        (b"OggS", "is Ogg, a sound"),
        (b"ID3", "begins with an ID3 tag, as sounds do"),
        (b"FORM", "looks like AIFF: convert it to one of these"),
        (b"RIFF", "is a RIFF file of another kind"),
        (b"<?xml", "is XML, perhaps SVG: draw it first"),
        (b"<svg", "is SVG: draw it first"),
        (
            b"version https://git-lfs",
            "is a pointer of Git LFS: fetch the file",
        ),
    ];
    if let Some((_, found)) = known.iter().find(|(start, _)| bytes.starts_with(start)) {
        return (*found).to_owned();
    }
    let start = &bytes[..bytes.len().min(64)];
    let text = start.trim_ascii_start().to_ascii_lowercase();
    if text.starts_with(b"<!doctype") || text.starts_with(b"<html") {
        return "is a page of HTML, as servers send for what they lack".to_owned();
    }
    let begins: Vec<String> = start
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("begins with {}", begins.join(" "))
}
