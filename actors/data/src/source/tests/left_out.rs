//! Tests that nothing is left out without a word, whatever kind of damage it has.

use ::image::{ImageFormat, Rgb, RgbImage};

use super::*;

/// Good lines, with 25 bytes of text each.
fn lines(count: usize) -> String {
    let line = |n| format!("{{\"text\": \"t {n:04} some words of text\"}}\n");
    (0..count).map(line).collect()
}

/// The number of samples, and the account of all cells of a source and of its opening.
fn account(source: &Source) -> (usize, LeftOut) {
    let mut all = source.left_out().clone();
    let mut samples = 0;
    for cell in cells(source, 0) {
        samples += cell.samples.len();
        all.add(&cell.left_out());
    }
    (samples, all)
}

/// Opens what a file has and reads it: samples, and the first reason.
fn read(name: &str, bytes: &[u8], format: Format) -> Result<(usize, LeftOut), String> {
    let place = Place::new();
    let path = place.write(name, bytes);
    let source = place
        .open(&place.spec(name, format))
        .map_err(|it| it.to_string())?;
    source.check_records().map_err(|it| it.to_string())?;
    let (samples, left_out) = account(&source);
    for skipped in &left_out.first {
        assert!(skipped.file.starts_with(&path), "{skipped}");
    }
    Ok((samples, left_out))
}

fn told(name: &str, bytes: &[u8], format: Format, samples: usize, reason: &str) {
    let (found, left_out) = read(name, bytes, format).unwrap();
    let first = left_out.first.first().map(ToString::to_string);
    let first = first.unwrap_or_default();
    assert_eq!(found, samples, "{name}: {first}");
    assert!(first.contains(reason), "{name}: {first}");
    assert!(!left_out.is_empty(), "{name}");
}

fn refused(name: &str, bytes: &[u8], format: Format, reason: &str) {
    let error = match read(name, bytes, format) {
        Err(error) => error,
        Ok((0, left_out)) => left_out.first_bad().unwrap().to_string(),
        Ok(read) => panic!("{name}: {read:?}"),
    };
    assert!(error.contains(reason) && error.contains(name), "{error}");
}

#[test]
fn lines_that_cannot_be_read_are_told_with_place_and_reason() {
    let good = lines(20);
    let with = |bad: &[u8]| [good.as_bytes(), bad, b"\n", good.as_bytes()].concat();
    for (bad, reason) in [
        (&b"{\"text\": \"cut"[..], "EOF"),
        (b"plain words", "not JSON"),
        (b"{\"other\": 1}", "no field `text`"),
        (b"{\"text\": null}", "null"),
        (b"{\"text\": [\"a\"]}", "sequence"),
        (b"{\"text\": true}", "boolean"),
        (b"{\"text\": \"\xe9\"}", "UTF-8"),
        (b"{\"text\": \"\\ud83d\"}", "not JSON"),
        (b"{\"text\": \"\"}", "no text"),
        (b"{\"text\": \" \\n\"}", "no text"),
        (&[0; 4096], "not JSON"),
    ] {
        let (samples, left_out) = read("a.jsonl", &with(bad), jsonl()).unwrap();
        let first = &left_out.first[0];
        assert_eq!((samples, left_out.records), (40, 1), "{first}");
        assert_eq!((first.offset, first.record), (good.len() as u64, 20));
        let reason_of_it = first.reason.to_string();
        assert!(
            reason_of_it.contains(reason) || reason == "UTF-8" && reason_of_it.contains("JSON"),
            "{first}"
        );
    }
}

#[test]
fn what_json_does_not_have_is_read_where_python_writes_it() {
    let odd = "{\"score\": NaN, \"text\": \"a\"}\n{\"text\": \"b\", \"score\": [-Infinity, 1e400]}\n\
               {\"text\": \"c\", \"x\": 1234567890123456789012345678901}\n{\"text\": 1.10}\n\
               {\"text\": \"d\", \"x\": \"\\ud83d\"}\n";
    let place = Place::new();
    place.write("a.jsonl", odd);
    let source = place.open(&place.spec("a.jsonl", jsonl())).unwrap();
    assert_eq!(sorted(texts(&source, 0)), ["1.10", "a", "b", "c", "d"]);
}

#[test]
fn a_line_that_is_too_long_takes_nothing_with_it() {
    let long = |field: &str| {
        format!(
            "{{\"{field}\": \"{}\", \"text\": \"x\"}}\n",
            "y".repeat(70 << 20)
        )
    };
    for (bytes, samples) in [
        (lines(10) + &long("text") + &lines(10), 20),
        (lines(10) + &long("other") + &lines(10), 20),
        (long("text") + &lines(10), 10),
        (lines(10) + long("text").trim_end(), 10),
    ] {
        told(
            "a.jsonl",
            bytes.as_bytes(),
            jsonl(),
            samples,
            "longer than 64 MiB",
        );
    }
}

#[test]
fn a_file_of_another_kind_says_which() {
    let good = lines(20);
    let gzipped = gz(good.as_bytes());
    let utf16: Vec<u8> = good.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let array = format!("[{}]", good.trim_end().replace('\n', ","));
    for (bytes, reason) in [
        (&gzipped[..], "compressed with gzip"),
        (&utf16, "UTF-16"),
        (array.as_bytes(), "a JSON array"),
        (b"BZh91AY&SY", "bzip2"),
        (b"\xfd7zXZ\0\0", "xz"),
        (b"ARROW1\0\0", "Arrow"),
        (good.replace('\n', "\r").as_bytes(), "CR alone"),
        (b"", "without a record"),
    ] {
        refused("a.jsonl", bytes, jsonl(), reason);
    }
    refused("a.jsonl.gz", good.as_bytes(), jsonl(), "gzip");
    refused(
        "table.csv",
        b"text,id\na,1\n",
        jsonl(),
        "formats are csv, jsonl",
    );
    refused(
        "a.parquet",
        b"text,id\na,1\n",
        Format::Parquet(Fields::default()),
        "does not begin",
    );
    refused(
        "a.parquet",
        b"",
        Format::Parquet(Fields::default()),
        "no bytes",
    );
}

#[test]
fn the_end_of_a_compressed_file_is_told_where_it_is_not_whole() {
    let good = lines(400);
    let gzipped = gz(good.as_bytes());
    let zstd = zstd::encode_all(good.as_bytes(), 1).unwrap();
    let mut wrong = gzipped.clone();
    let end = wrong.len();
    wrong[end - 8] ^= 1;
    let behind = |bytes: &[u8], more: &[u8]| [bytes, more].concat();
    told(
        "a.jsonl.gz",
        &wrong,
        jsonl(),
        400,
        "bytes were decompressed",
    );
    told(
        "a.jsonl.gz",
        &behind(&gzipped, b"garbage"),
        jsonl(),
        400,
        "not gzip",
    );
    told(
        "a.jsonl.zst",
        &behind(&zstd, b"garbage"),
        jsonl(),
        400,
        "bytes were decompressed",
    );
    // As on tapes.
    let padded = behind(&gzipped, &[0; 512]);
    let (samples, left_out) = read("a.jsonl.gz", &padded, jsonl()).unwrap();
    assert!(samples == 400 && left_out.is_empty(), "{left_out:?}");
    let twice = behind(&gzipped, &gzipped);
    assert_eq!(read("a.jsonl.gz", &twice, jsonl()).unwrap().0, 800);
}

#[test]
fn a_long_window_of_zstandard_is_read() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    encoder.write_all(lines(400).as_bytes()).unwrap();
    let bytes = encoder.finish().unwrap();
    assert_eq!(read("a.jsonl.zst", &bytes, jsonl()).unwrap().0, 400);
}

#[test]
fn a_file_that_cannot_be_read_is_told_beside_good_ones() {
    let place = Place::new();
    place.write("d/good.jsonl", lines(20));
    let plain = place.write("d/plain.jsonl.gz", lines(20));
    let readme = place.write("d/README.md", "words");
    let source = place.open(&place.spec("d", jsonl())).unwrap();
    let (samples, left_out) = account(&source);
    assert_eq!((samples, left_out.files, left_out.others), (20, 1, 1));
    let told: Vec<&str> = left_out.first.iter().map(|it| &it.file[..]).collect();
    assert_eq!(
        sorted(told.iter().map(ToString::to_string).collect()),
        sorted(vec![plain, readme])
    );
}

#[test]
fn linked_folders_are_read_and_each_folder_once() {
    let place = Place::new();
    place.write("far/many.jsonl", lines(20));
    place.write("near/one.jsonl", lines(1));
    let link = |to: &str, name: &str| {
        let to = place.path(to);
        std::os::unix::fs::symlink(to, place.path(name)).unwrap();
    };
    link("far", "near/linked");
    link("near", "near/again");
    link("nowhere", "near/gone");
    for path in ["near", "near/**/*.jsonl"] {
        let source = place.open(&place.spec(path, jsonl())).unwrap();
        let (samples, left_out) = account(&source);
        assert_eq!((samples, left_out.others), (21, 2), "{left_out:?}");
    }
}

#[test]
fn braces_name_files_and_one_that_is_missing_is_named() {
    let place = Place::new();
    for shard in 0..5 {
        place.write(&format!("shard-{shard:03}.jsonl"), lines(4));
    }
    let read = |path: &str| {
        place
            .open(&place.spec(path, jsonl()))
            .map(|it| it.records())
    };
    assert_eq!(read("shard-{000..003}.jsonl").unwrap(), 16);
    assert_eq!(read("shard-{000,002}.jsonl").unwrap(), 8);
    assert_eq!(read("shard-00[0-3].jsonl").unwrap(), 16);
    let error = read("shard-{003..006}.jsonl").unwrap_err().to_string();
    assert!(error.contains("shard-005.jsonl"), "{error}");
    // A name with braces is itself where it is there.
    place.write("{a,b}.jsonl", lines(3));
    assert_eq!(read("{a,b}.jsonl").unwrap(), 3);
}

fn tar_text() -> Format {
    Format::Webdataset(Webdataset {
        image: vec![],
        text: vec!["txt".into()],
        ..Webdataset::default()
    })
}

fn texts_of(count: usize) -> Vec<(String, Vec<u8>)> {
    let member = |n| {
        (
            format!("{n:04}.txt"),
            format!("t {n:04} some words of text").into_bytes(),
        )
    };
    (0..count).map(member).collect()
}

fn packed(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let members: Vec<(&str, &[u8])> = members
        .iter()
        .map(|(name, bytes)| (&name[..], &bytes[..]))
        .collect();
    tar(&members)
}

#[test]
fn members_that_an_archiver_has_added_are_no_samples() {
    let mut with = Vec::new();
    for (name, bytes) in texts_of(20) {
        with.push((format!("._{name}"), b"Mac OS X".to_vec()));
        with.push((format!("PaxHeaders.123/{name}"), b"30 mtime=1".to_vec()));
        with.push((name, bytes));
    }
    let (samples, left_out) = read("a.tar", &packed(&with), tar_text()).unwrap();
    assert_eq!((samples, left_out.others, left_out.files), (20, 1, 0));
    // Pairs are not torn apart by what stands between them.
    let mut pairs = Vec::new();
    for n in 0..5 {
        for (ending, bytes) in [("png", png(28, 28)), ("txt", b"a square".to_vec())] {
            pairs.push((format!("._{n}.{ending}"), b"Mac OS X".to_vec()));
            pairs.push((format!("{n}.{ending}"), bytes));
        }
    }
    let format = Format::Webdataset(Webdataset::default());
    assert_eq!(read("a.tar", &packed(&pairs), format).unwrap().0, 5);
}

#[test]
fn what_a_tar_file_lacks_is_told() {
    let all = texts_of(20);
    let whole = packed(&all);
    told(
        "a.tar",
        &whole[..10 * 1024 + 520],
        tar_text(),
        10,
        "inside of its member",
    );
    told(
        "a.tar",
        &whole[..10 * 1024 + 100],
        tar_text(),
        10,
        "a.tar, at 10240",
    );
    let mut wrong = whole.clone();
    wrong[10 * 1024] ^= 1;
    told("a.tar", &wrong, tar_text(), 10, "a.tar, at 10240");
    let twice = [whole.clone(), whole.clone()].concat();
    assert_eq!(read("a.tar", &twice, tar_text()).unwrap().0, 40);
    let mut same = vec![("a.txt".to_owned(), b"another".to_vec())];
    same.push(("a.txt".to_owned(), b"one".to_vec()));
    same.extend(texts_of(19));
    told(
        "a.tar",
        &packed(&same),
        tar_text(),
        20,
        "a.txt is there twice",
    );
    let dots: Vec<_> = (0..20)
        .map(|n| (format!("img.{n:04}.txt"), b"x".to_vec()))
        .collect();
    refused("a.tar", &packed(&dots), tar_text(), "first dot");
    let other: Vec<_> = (0..5)
        .map(|n| (format!("{n}.caption"), b"x".to_vec()))
        .collect();
    refused("a.tar", &packed(&other), tar_text(), "`.caption`");
    refused("a.tar", b"lines of text\n", tar_text(), "a.tar");
}

#[test]
fn a_hard_link_in_a_tar_file_is_told() {
    let mut builder = ::tar::Builder::new(Vec::new());
    let mut header = ::tar::Header::new_gnu();
    header.set_size(3);
    builder
        .append_data(&mut header, "a.txt", &b"one"[..])
        .unwrap();
    let mut header = ::tar::Header::new_gnu();
    header.set_entry_type(::tar::EntryType::Link);
    header.set_size(0);
    builder.append_link(&mut header, "b.txt", "a.txt").unwrap();
    let bytes = builder.into_inner().unwrap();
    told(
        "a.tar",
        &bytes,
        tar_text(),
        1,
        "b.txt is not read: it is a hard link to a.txt",
    );
}

#[test]
fn columns_of_parquet_that_are_no_text_say_what_they_are() {
    let file = |schema: &str| {
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let properties = Arc::new(WriterProperties::builder().build());
        let writer = SerializedFileWriter::new(Vec::new(), schema, properties).unwrap();
        writer.into_inner().unwrap()
    };
    for (schema, reason) in [
        ("message rows { optional int64 text; }", "is of INT64"),
        (
            "message rows { optional fixed_len_byte_array(25) text; }",
            "FIXED_LEN",
        ),
        (
            "message rows { optional group text (LIST) { repeated group list { optional binary element; } } }",
            "is a list",
        ),
        (
            "message rows { optional group text { optional binary inner; } }",
            "its columns are text.inner",
        ),
        (
            "message rows { optional binary body; }",
            "no column `text`, but body",
        ),
    ] {
        refused(
            "a.parquet",
            &file(schema),
            Format::Parquet(Fields::default()),
            reason,
        );
    }
}

/// As pyarrow writes them: 200 rows of 25 bytes each. In the last, one letter is another, and the
/// checksum of its page does not match.
#[test]
fn parquet_is_read_in_each_compression_and_its_checksums_are_compared() {
    let format = || Format::Parquet(Fields::default());
    for bytes in [
        &include_bytes!("fixtures/lz4.parquet")[..],
        include_bytes!("fixtures/brotli.parquet"),
    ] {
        let (samples, left_out) = read("a.parquet", bytes, format()).unwrap();
        assert!(samples == 200 && left_out.is_empty(), "{left_out:?}");
    }
    let damaged = include_bytes!("fixtures/page-checksum.parquet");
    let place = Place::new();
    place.write("a.parquet", damaged);
    let source = place.open(&place.spec("a.parquet", format())).unwrap();
    let error = run(source.cell(0, 0)).unwrap_err().to_string();
    assert!(
        error.contains("a.parquet") && error.contains("CRC"),
        "{error}"
    );
}

fn images() -> Format {
    Format::Images(Images::default())
}

/// Reads a picture with a caption.
fn pictured(name: &str, bytes: &[u8]) -> Result<Sample, String> {
    let place = Place::new();
    place.write(&format!("d/{name}"), bytes);
    place.write("d/a.txt", "a red square");
    let spec = place.spec("d", images());
    let source = place.open(&spec).map_err(|error| error.to_string())?;
    let cell = run(source.cell(0, 0)).unwrap();
    match cell.samples.first() {
        Some((_, bytes)) => Ok(decoded(bytes)),
        None => Err(cell.skipped[0].to_string()),
    }
}

fn jpeg(height: u32, width: u32) -> Vec<u8> {
    let picture = RgbImage::from_fn(width, height, |x, _| match x < width / 2 {
        true => Rgb([0, 255, 0]),
        false => Rgb([255, 0, 0]),
    });
    let mut bytes = Vec::new();
    picture
        .write_to(&mut Cursor::new(&mut bytes), ImageFormat::Jpeg)
        .unwrap();
    bytes
}

#[test]
fn a_picture_is_turned_as_it_says() {
    let plain = jpeg(56, 112);
    let sample = pictured("a.jpg", &plain).unwrap();
    let image = &sample.images[0];
    assert_eq!((image.height_patches, image.width_patches), (4, 8));
    // A note that it is to be turned by a quarter, as cameras write it.
    let mut exif =
        b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec();
    let length = (exif.len() as u16 + 2).to_be_bytes();
    let mut turned = plain[..2].to_vec();
    turned.extend([0xff, 0xe1]);
    turned.extend(length);
    turned.append(&mut exif);
    turned.extend(&plain[2..]);
    let sample = pictured("a.jpg", &turned).unwrap();
    let image = &sample.images[0];
    assert_eq!((image.height_patches, image.width_patches), (8, 4));
    // The left half, which is green, comes to be above.
    assert!(image.pixels[1] > 200 && image.pixels[image.pixels.len() - 2] < 60);
}

#[test]
fn a_picture_that_is_not_whole_or_too_large_is_told() {
    let refused = |name: &str, bytes: &[u8], reason: &str| {
        let error = pictured(name, bytes).unwrap_err();
        assert!(error.contains(reason) && error.contains(name), "{error}");
    };
    let whole = jpeg(280, 280);
    refused("a.jpg", &whole[..whole.len() / 2], "cut off");
    refused("a.jpg", &whole[..whole.len() - 2], "cut off");
    let picture = png(28, 28);
    refused("a.png", &picture[..picture.len() / 2], "cannot be read");
    refused("a.png", b"", "cannot be read");
    refused("a.png", b"GIF89a", "cannot be read");
    refused("a.gif", b"GIF89a", "a.gif");
    // The head of a picture of 16,000 pixels along each side, of which nothing is decoded.
    let mut bomb = picture.clone();
    bomb[16..20].copy_from_slice(&16_000_u32.to_be_bytes());
    bomb[20..24].copy_from_slice(&16_000_u32.to_be_bytes());
    let mut crc = flate2::Crc::new();
    crc.update(&bomb[12..29]);
    bomb[29..33].copy_from_slice(&crc.sum().to_be_bytes());
    refused("a.png", &bomb, "16000 x 16000 pixels");
    let place = Place::new();
    place.write("d/a.png", png(28, 28));
    place.write("d/a.txt", "a red square");
    let gif = place.write("d/b.gif", "GIF89a");
    let source = place.open(&place.spec("d", images())).unwrap();
    let (samples, left_out) = account(&source);
    assert_eq!((samples, left_out.others), (1, 1));
    assert_eq!(left_out.first[0].file, gif);
}

#[test]
fn an_open_quote_in_a_large_table_is_told_and_not_held_in_memory() {
    let mut table = b"text\none\n\"".to_vec();
    table.extend(std::iter::repeat_n(b'x', 80 << 20));
    told(
        "a.csv",
        &table,
        Format::Csv(Csv::default()),
        1,
        "a quote may be open",
    );
}

#[test]
fn prompts_that_leave_no_room_are_counted() {
    let place = Place::new();
    let long = "p".repeat(300);
    let lines: String = (0..20)
        .map(|n| {
            let prompt = if n % 2 == 0 { &long[..] } else { "short" };
            format!("{{\"prompt\": \"{prompt}\", \"response\": \"r\"}}\n")
        })
        .collect();
    place.write("a.jsonl", lines);
    let spec = SourceSpec {
        context: 256,
        longer: Longer::Truncate,
        ..place.spec("a.jsonl", Format::Jsonl(Fields::pair("prompt", "response")))
    };
    let (samples, left_out) = account(&place.open(&spec).unwrap());
    assert_eq!((samples, left_out.records, left_out.bad), (10, 10, 0));
}

#[test]
fn files_are_known_again_by_what_is_in_them() {
    let place = Place::new();
    let states = |text: &str| {
        let path = place.write("d/a.jsonl", text);
        let file = fs::File::open(path).unwrap();
        // Another name for the index, whatever the clock of the file system says.
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(text.len() as u64);
        file.set_modified(at).unwrap();
        place.open(&place.spec("d", jsonl())).unwrap().file_states()
    };
    let before = states(&lines(20));
    assert_eq!(before[0].name, "a.jsonl");
    place.write("d/e/a.jsonl", lines(3));
    for (path, names) in [
        ("d", ["a.jsonl", "e/a.jsonl"]),
        ("d/**/*.jsonl", ["a.jsonl", "e/a.jsonl"]),
        ("d/{,e/}a.jsonl", ["a.jsonl", "e/a.jsonl"]),
    ] {
        let states = place
            .open(&place.spec(path, jsonl()))
            .unwrap()
            .file_states();
        let found: Vec<&str> = states.iter().map(|state| &state.name[..]).collect();
        assert_eq!(found, names, "{path}");
    }
    fs::remove_dir_all(place.path("d/e")).unwrap();
    let grown = difference(&before, &states(&lines(21))).unwrap();
    assert!(grown.contains("a.jsonl grew from"), "{grown}");
    assert_eq!(difference(&before, &states(&lines(20))), None);
}
