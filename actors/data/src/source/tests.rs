//! Tests of sources over real files.

use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Write},
    sync::Arc,
};

use ::image::{ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use ::parquet::{
    data_type::{ByteArray, ByteArrayType},
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use flate2::{Compression as Level, write::GzEncoder};
use proptest::prelude::*;

use super::*;
use crate::sample::{Sample, SampleId};

mod conversations;
mod csv;
mod grown;
mod left_out;
mod mutated;
mod trackers;

/// A folder with files, and one for what is kept.
pub(super) struct Place {
    files: tempfile::TempDir,
    cache: tempfile::TempDir,
    opening: Opening,
}

impl Place {
    pub(super) fn new() -> Self {
        let cache = tempfile::tempdir().unwrap();
        Self {
            files: tempfile::tempdir().unwrap(),
            opening: Opening::new(Tokenizer::bytes(), cache.path()),
            cache,
        }
    }

    pub(super) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.files.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).to_str().unwrap().to_owned()
    }

    pub(super) fn open(&self, spec: &SourceSpec) -> Result<Source, SourceError> {
        run(Source::open(SourceNumber(3), spec, &self.opening))
    }

    fn spec(&self, name: &str, format: Format) -> SourceSpec {
        SourceSpec::new("test", self.path(name), format)
    }
}

pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

fn jsonl() -> Format {
    Format::Jsonl(Fields::default())
}

fn text(document: Document) -> Format {
    Format::Text(Text {
        document,
        ..Text::default()
    })
}

fn cells(source: &Source, epoch: u32) -> Vec<Cell> {
    let all = (0..source.cells()).map(|cell| run(source.cell(epoch, cell)).unwrap());
    all.collect()
}

/// The text that is predicted of each sample of an epoch, and the bytes.
pub(super) fn texts(source: &Source, epoch: u32) -> Vec<String> {
    let cells = cells(source, epoch);
    let samples = cells.iter().flat_map(|cell| &cell.samples);
    samples.map(|(_, bytes)| said(&decoded(bytes))).collect()
}

fn decoded(bytes: &Bytes) -> Sample {
    Sample::decode(bytes).unwrap()
}

fn said(sample: &Sample) -> String {
    Tokenizer::bytes()
        .decode(&sample.tokens[sample.prompt as usize..])
        .unwrap()
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Level::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn png(height: u32, width: u32) -> Vec<u8> {
    let picture = RgbImage::from_fn(width, height, |x, y| Rgb([x as u8, y as u8, 9]));
    let mut bytes = Vec::new();
    picture
        .write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png)
        .unwrap();
    bytes
}

fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Columns of text that may be absent, so many rows a group.
fn parquet_file(columns: &[(&str, Vec<Option<&[u8]>>)], group: usize) -> Vec<u8> {
    let fields: Vec<String> = columns
        .iter()
        .map(|(name, _)| format!("optional binary {name};"))
        .collect();
    let schema = format!("message rows {{ {} }}", fields.join(" "));
    let schema = Arc::new(parse_message_type(&schema).unwrap());
    let properties = WriterProperties::builder()
        .set_compression(::parquet::basic::Compression::SNAPPY)
        .set_data_page_row_count_limit(7)
        .set_write_batch_size(5);
    let mut writer =
        SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    let rows = columns[0].1.len();
    for start in (0..rows).step_by(group) {
        let end = rows.min(start + group);
        let mut out = writer.next_row_group().unwrap();
        for (_, values) in columns {
            let mut column = out.next_column().unwrap().unwrap();
            let levels: Vec<i16> = values[start..end]
                .iter()
                .map(|value| i16::from(value.is_some()))
                .collect();
            let values: Vec<ByteArray> = values[start..end]
                .iter()
                .flatten()
                .map(|value| value.to_vec().into())
                .collect();
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, Some(&levels), None)
                .unwrap();
            column.close().unwrap();
        }
        out.close().unwrap();
    }
    writer.into_inner().unwrap()
}

#[test]
fn lines_of_json_are_samples() {
    let place = Place::new();
    place.write(
        "a.jsonl",
        "{\"text\": \"one\"}\n\n{\"text\": \"tw\\u00f6\", \"x\": [1]}\n",
    );
    place.write("b.jsonl", "{\"text\": \"three\"}");
    place.write("c.txt", "nothing");
    let source = place.open(&place.spec("", jsonl())).unwrap();
    assert_eq!(
        (source.files(), source.records(), source.cells()),
        (2, 3, 1)
    );
    let cell = run(source.cell(0, 0)).unwrap();
    assert_eq!(cell.records, 3);
    let texts: Vec<String> = cell
        .samples
        .iter()
        .map(|(_, bytes)| said(&decoded(bytes)))
        .collect();
    assert_eq!(sorted(texts), ["one", "three", "twö"]);
    for (nth, (meta, bytes)) in (0..).zip(&cell.samples) {
        let id = SampleId {
            source: SourceNumber(3),
            epoch: 0,
            cell: 0,
            nth,
        };
        assert_eq!(*meta, decoded(bytes).meta(id, bytes.len() as u32));
        let sample = decoded(bytes);
        assert_eq!((sample.tokens[0], sample.prompt), (257, 1));
        assert_eq!(sample.tokens.last(), Some(&258));
    }
    assert!(matches!(
        run(source.cell(0, 1)),
        Err(SourceError::NoCell { cell: 1, cells: 1 })
    ));
}

#[test]
fn prompts_are_read_and_responses_predicted() {
    let place = Place::new();
    place.write("a.jsonl", "{\"q\": {\"a\": \"2+2=\"}, \"r\": 4}\n");
    let spec = place.spec("a.jsonl", Format::Jsonl(Fields::pair("q.a", "r")));
    let source = place.open(&spec).unwrap();
    let cell = run(source.cell(0, 0)).unwrap();
    let sample = decoded(&cell.samples[0].1);
    assert_eq!((sample.prompt, said(&sample)), (5, "4".into()));
}

#[test]
fn text_has_the_documents_that_are_said() {
    let place = Place::new();
    place.write("t/a.txt", "one\ntwo\n\nthree\n--\nfour\n");
    place.write("t/b/c.txt", "five\n");
    place.write("t/.hidden/d.txt", "no\n");
    place.write("t/e.md", "no\n");
    let check = |document, expect: &[&str]| {
        let Format::Text(text) = text(document) else {
            unreachable!()
        };
        let format = Format::Text(Text {
            suffixes: vec![".txt".into()],
            ..text
        });
        let source = place.open(&place.spec("t", format)).unwrap();
        assert_eq!(sorted(texts(&source, 0)), expect);
    };
    check(Document::File, &["five\n", "one\ntwo\n\nthree\n--\nfour\n"]);
    check(
        Document::Line,
        &["--", "five", "four", "one", "three", "two"],
    );
    check(
        Document::Lines(3),
        &["--\nfour", "five", "one\ntwo\n\nthree"],
    );
    check(
        Document::Paragraph,
        &["five", "one\ntwo", "three\n--\nfour"],
    );
    check(Document::Headed, &["five", "one\ntwo", "three\n--\nfour"]);
    check(
        Document::Separated("--".into()),
        &["five", "four", "one\ntwo\n\nthree"],
    );
}

#[test]
fn tagged_text_is_read_without_its_tags() {
    let place = Place::new();
    place.write("ca01", "The/at jury/nn said/vbd ./.\n");
    let spec = place.spec(
        "c?0*",
        Format::Text(Text {
            markup: Markup::Tagged,
            ..Text::default()
        }),
    );
    assert_eq!(texts(&place.open(&spec).unwrap(), 0), ["The jury said."]);
}

#[test]
fn rows_of_parquet_are_samples() {
    let place = Place::new();
    let rows: Vec<String> = (0..50).map(|n| format!("row {n}")).collect();
    let values = rows.iter().map(|row| Some(row.as_bytes())).collect();
    let other = rows.iter().map(|_| None).collect();
    let file = parquet_file(&[("other", other), ("body", values)], 20);
    place.write("a.parquet", &file);
    let spec = place.spec("a.parquet", Format::Parquet(Fields::text("body")));
    let source = place.open(&spec).unwrap();
    assert_eq!((source.records(), source.blocks()), (50, 3));
    assert_eq!(sorted(texts(&source, 0)), sorted(rows.clone()));
    // Large groups are read in pieces.
    let spec = SourceSpec {
        block_bytes: 1,
        ..spec
    };
    let source = place.open(&spec).unwrap();
    assert!(source.blocks() > 3);
    assert_eq!(sorted(texts(&source, 1)), sorted(rows));
}

#[test]
fn a_row_without_text_is_skipped_and_a_column_that_is_missing_is_named() {
    let place = Place::new();
    let rows = vec![Some(&b"a"[..]), None, Some(b"\xff")];
    let file = place.write("a.parquet", parquet_file(&[("text", rows)], 10));
    let spec = place.spec("*.parquet", Format::Parquet(Fields::default()));
    let cell = run(place.open(&spec).unwrap().cell(0, 0)).unwrap();
    assert_eq!(cell.samples.len(), 1);
    let reasons: Vec<String> = cell.skipped.iter().map(ToString::to_string).collect();
    assert!(
        reasons[0].starts_with(&format!("{file}, at 0, record 1: ")),
        "{reasons:?}"
    );
    assert!(
        reasons[0].contains("no text") && reasons[1].contains("UTF-8"),
        "{reasons:?}"
    );
    let spec = SourceSpec {
        format: Format::Parquet(Fields::text("body")),
        on_bad: OnBad::Fail,
        ..spec
    };
    let error = place.open(&spec).unwrap_err().to_string();
    assert!(error.contains("no column `body`, but text"), "{error}");
}

#[test]
fn members_of_a_tar_file_are_samples() {
    let place = Place::new();
    let picture = png(30, 60);
    let long = format!("{}/0003", "folder/".repeat(30));
    let (long_png, long_txt) = (format!("{long}.png"), format!("{long}.txt"));
    let file = tar(&[
        ("d/0001.png", &picture),
        ("d/0001.txt", b"a ramp"),
        ("d/0002.json", b"{\"text\": \"another\", \"x\": 1}"),
        ("d/0002.PNG", &picture),
        (&long_png, &picture),
        (&long_txt, b"far away"),
        ("d/0004.png", &picture),
        ("d/0005.txt", b"no picture"),
    ]);
    place.write("a.tar", &file);
    let spec = place.spec("a.tar", Format::Webdataset(Webdataset::default()));
    for block_bytes in [1, 100_000] {
        let spec = SourceSpec {
            block_bytes,
            ..spec.clone()
        };
        let source = place.open(&spec).unwrap();
        assert_eq!(source.records(), 5);
        assert_eq!(sorted(texts(&source, 0)), ["a ramp", "another", "far away"]);
        let cells = cells(&source, 0);
        let (meta, bytes) = cells.iter().flat_map(|cell| &cell.samples).next().unwrap();
        let sample = decoded(bytes);
        let image = &sample.images[0];
        assert_eq!(
            (image.height_patches, image.width_patches, image.at),
            (2, 4, 1)
        );
        assert_eq!(sample.tokens[1..3], [259, 259]);
        assert_eq!((sample.prompt, &meta.patches[..]), (3, &[8][..]));
        let skipped = cells
            .iter()
            .flat_map(|cell| &cell.skipped)
            .map(ToString::to_string);
        let skipped = sorted(skipped.collect());
        assert!(
            skipped[0].contains("d/0004 has no member with text"),
            "{skipped:?}"
        );
        assert!(
            skipped[1].contains("d/0005 has no member with a picture"),
            "{skipped:?}"
        );
    }
}

#[test]
fn pictures_have_their_captions_beside_or_listed() {
    let place = Place::new();
    for (name, caption) in [("a", "a hat\nun chapeau\n"), ("b/c", "a dog")] {
        place.write(&format!("p/{name}.png"), png(28, 28));
        place.write(&format!("p/{name}.txt"), caption);
    }
    place.write("p/d.png", png(28, 28));
    place.write(
        "list.json",
        r#"[{"image": "a.png", "short": "hat"}, {"image": "d.png", "short": "ramp"}]"#,
    );
    let source = place
        .open(&place.spec("p", Format::Images(Images::default())))
        .unwrap();
    assert_eq!(source.records(), 3);
    assert_eq!(sorted(texts(&source, 0)), ["a dog", "a hat"]);
    let cell = run(source.cell(0, 0)).unwrap();
    assert!(
        cell.skipped[0]
            .to_string()
            .contains("p/d.png, at 0, record 0: the picture has no")
    );
    let listed = Format::Images(Images {
        captions: Captions::Listed {
            path: place.path("list.json"),
            image: "image".into(),
            caption: "short".into(),
        },
    });
    let source = place.open(&place.spec("p", listed)).unwrap();
    assert_eq!(sorted(texts(&source, 0)), ["hat", "ramp"]);
}

#[test]
fn what_shines_through_a_picture_is_white() {
    let place = Place::new();
    let picture = RgbaImage::from_pixel(28, 28, Rgba([0, 0, 0, 51]));
    let mut bytes = Vec::new();
    picture
        .write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png)
        .unwrap();
    place.write("a.png", bytes);
    place.write("a.txt", "grey");
    let source = place
        .open(&place.spec("", Format::Images(Images::default())))
        .unwrap();
    let cell = run(source.cell(0, 0)).unwrap();
    let sample = decoded(&cell.samples[0].1);
    assert!(sample.images[0].pixels.iter().all(|&byte| byte == 204));
}

fn idx(magic: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let head = [magic]
        .into_iter()
        .chain(sizes.iter().copied())
        .flat_map(u32::to_be_bytes);
    head.chain(bytes.iter().copied()).collect()
}

#[test]
fn items_of_idx_files_are_samples() {
    let place = Place::new();
    let pixels: Vec<u8> = (0..5 * 28 * 28).map(|n| (n / 784) as u8).collect();
    place.write("images.gz", gz(&idx(0x803, &[5, 28, 28], &pixels)));
    place.write("labels", idx(0x801, &[5], &[0, 1, 2, 1, 0]));
    let format = Format::Idx(Idx {
        labels: place.path("labels"),
        names: vec!["shirt".into(), "shoe".into()],
    });
    let spec = SourceSpec {
        block_bytes: 1600,
        ..place.spec("images.gz", format)
    };
    let source = place.open(&spec).unwrap();
    assert_eq!((source.records(), source.blocks()), (5, 3));
    assert_eq!(
        sorted(texts(&source, 0)),
        ["2", "shirt", "shirt", "shoe", "shoe"]
    );
    for cell in cells(&source, 0) {
        for (_, bytes) in &cell.samples {
            let sample = decoded(bytes);
            let item = sample.images[0].pixels[0];
            assert!(sample.images[0].pixels.iter().all(|&byte| byte == item));
            let expect = ["shirt", "shoe", "2", "shoe", "shirt"][usize::from(item)];
            assert_eq!(said(&sample), expect);
        }
    }
    // Two items are missing.
    place.write(
        "images.gz",
        gz(&idx(0x803, &[5, 28, 28], &pixels[..3 * 784 + 5])),
    );
    let source = place.open(&spec).unwrap();
    assert_eq!(source.records(), 3);
    assert!(
        source.left_out().first[0]
            .to_string()
            .contains("ends after 3 of 5 pictures")
    );
}

#[test]
fn compressed_files_are_the_same_source_as_plain_ones() {
    let place = Place::new();
    let lines: String = (0..500)
        .map(|n| format!("{{\"text\": \"line {n}\"}}\n"))
        .collect();
    let half = lines.len() / 2;
    place.write("p.jsonl", &lines);
    place.write(
        "g.jsonl.gz",
        [gz(&lines.as_bytes()[..half]), gz(&lines.as_bytes()[half..])].concat(),
    );
    place.write("d.jsonl.dz", gz(lines.as_bytes()));
    place.write(
        "z.jsonl.zst",
        zstd::encode_all(lines.as_bytes(), 1).unwrap(),
    );
    let read = |name: &str| {
        let spec = SourceSpec {
            block_bytes: 1000,
            ..place.spec(name, jsonl())
        };
        texts(&place.open(&spec).unwrap(), 0)
    };
    let plain = read("p.jsonl");
    assert_eq!(plain.len(), 500);
    for name in ["g.jsonl.gz", "d.jsonl.dz", "z.jsonl.zst"] {
        assert_eq!(read(name), plain, "{name}");
    }
}

#[test]
fn a_compressed_file_that_is_cut_off_is_said_so_and_read_up_to_there() {
    let place = Place::new();
    // Not to be compressed away, and of several blocks of each format.
    let mut state = 1;
    let lines: String = (0..30_000)
        .map(|_| format!("{{\"text\": \"{:016x}\"}}\n", order::next(&mut state)))
        .collect();
    let zstd = zstd::encode_all(lines.as_bytes(), 1).unwrap();
    for (name, whole) in [("a.jsonl.gz", gz(lines.as_bytes())), ("a.jsonl.zst", zstd)] {
        let path = place.write(name, &whole[..whole.len() * 3 / 4]);
        let spec = place.spec(name, jsonl());
        let source = place.open(&spec).unwrap();
        let damage = source.left_out().first[0].to_string();
        assert!(damage.starts_with(&path), "{damage}");
        assert!(
            damage.contains("bytes were decompressed before"),
            "{damage}"
        );
        assert!(
            (15_000..30_000).contains(&source.records()),
            "{name} {}",
            source.records()
        );
        assert!(texts(&source, 0).len() as u64 >= source.records() - 1);
        let spec = SourceSpec {
            on_bad: OnBad::Fail,
            ..spec
        };
        let error = place.open(&spec).unwrap_err();
        assert!(matches!(error, SourceError::Damaged { .. }), "{error}");
    }
}

#[test]
fn decompressed_files_stay_within_their_bound() {
    let place = Place::new();
    let lines: String = (0..100)
        .map(|n| format!("{{\"text\": \"line {n}\"}}\n"))
        .collect();
    for name in ["a", "b", "c"] {
        place.write(&format!("{name}.jsonl.gz"), gz(lines.as_bytes()));
    }
    let spec = SourceSpec {
        block_bytes: 500,
        ..place.spec("", jsonl())
    };
    let opening = place
        .opening
        .clone()
        .with_spool_bytes(2 * lines.len() as u64);
    let source = run(Source::open(SourceNumber(3), &spec, &opening)).unwrap();
    assert_eq!(texts(&source, 0).len(), 300);
    let kept: u64 = fs::read_dir(place.cache.path().join("plain"))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(kept <= 2 * lines.len() as u64, "{kept}");
    let opening = place.opening.clone().with_spool_bytes(100);
    let other = tempfile::tempdir().unwrap();
    let opening = Opening {
        cache: other.path().into(),
        ..opening
    };
    let error = run(Source::open(SourceNumber(3), &spec, &opening)).unwrap_err();
    assert!(
        error.to_string().contains("more than the 100 bytes"),
        "{error}"
    );
    assert_eq!(fs::read_dir(other.path().join("plain")).unwrap().count(), 0);
}

#[test]
fn a_bad_line_is_skipped_with_its_reason_or_fails_its_cell() {
    let place = Place::new();
    let good = "{\"text\": \"good\"}\n";
    let lines = format!("{good}{{\"text\": 7\n{good}{{\"other\": \"x\"}}\n{{\"text\": \"  \"}}\n");
    let path = place.write("a.jsonl", &lines);
    let spec = place.spec("a.jsonl", jsonl());
    let cell = run(place.open(&spec).unwrap().cell(0, 0)).unwrap();
    assert_eq!((cell.samples.len(), cell.records), (2, 5));
    let [first, second, third] = &cell.skipped[..] else {
        panic!("{:?}", cell.skipped)
    };
    assert_eq!((&first.file, first.offset, first.record), (&path, 17, 1));
    assert!(
        first.reason.is_bad() && first.to_string().contains("JSON"),
        "{first}"
    );
    assert!(second.to_string().contains("no field `text`"), "{second}");
    assert_eq!(third.reason, SkipReason::Empty);

    let allowing = |bad_records, bad_part| SourceSpec {
        bad_records,
        bad_part,
        ..spec.clone()
    };
    let cell = |spec: &SourceSpec| run(place.open(spec).unwrap().cell(0, 0));
    assert!(cell(&allowing(2, 0.0)).is_ok() && cell(&allowing(0, 0.5)).is_ok());
    let error = cell(&allowing(1, 0.3)).unwrap_err();
    let SourceError::TooManyBad {
        bad: 2,
        records: 5,
        first,
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(first.offset, 17);
    let error = cell(&SourceSpec {
        on_bad: OnBad::Fail,
        ..spec.clone()
    })
    .unwrap_err();
    assert!(
        matches!(&error, SourceError::Bad(skipped) if skipped.offset == 17),
        "{error}"
    );
}

#[test]
fn a_file_that_changes_under_its_reader_is_an_error_and_others_are_read_on() {
    let place = Place::new();
    let line = |text: &str| format!("{{\"text\": \"{text}\"}}\n");
    let path = place.write("a.jsonl", line("a"));
    place.write("b.jsonl", line("b"));
    place.write("c.jsonl.gz", gz(line("c").as_bytes()));
    let spec = SourceSpec {
        cell_blocks: 1,
        order: Order::Kept,
        ..place.spec("", jsonl())
    };
    let source = place.open(&spec).unwrap();
    let first = run(source.cell(0, 0)).unwrap();
    let changed = |cell| match run(source.cell(0, cell)) {
        Err(SourceError::Changed { file, .. }) => file,
        other => panic!("{other:?}"),
    };
    fs::write(&path, line("z")).unwrap();
    let earlier = fs::File::open(&path).unwrap();
    earlier.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(changed(0), path);
    fs::write(&path, "{").unwrap();
    assert_eq!(changed(0), path);
    fs::remove_file(&path).unwrap();
    assert_eq!(changed(0), path);
    assert_eq!(
        said(&decoded(&run(source.cell(0, 1)).unwrap().samples[0].1)),
        "b"
    );
    let compressed = place.write("c.jsonl.gz", gz(line("cc").as_bytes()));
    assert_eq!(changed(2), compressed);
    // Whoever opens it anew has another source.
    place.write("a.jsonl", line("a longer one"));
    let anew = place.open(&spec).unwrap();
    assert_ne!(anew.identity(), source.identity());
    assert_ne!(run(anew.cell(0, 0)).unwrap(), first);
}

#[test]
fn an_index_is_kept_for_the_next_who_opens_and_made_again_if_it_is_damaged() {
    let place = Place::new();
    let lines: String = (0..500)
        .map(|n| format!("{{\"text\": \"line {n}\"}}\n"))
        .collect();
    place.write("a.jsonl", &lines);
    let spec = SourceSpec {
        block_bytes: 100,
        ..place.spec("a.jsonl", jsonl())
    };
    let first = place.open(&spec).unwrap();
    let kept = || -> Vec<_> {
        let files = fs::read_dir(place.cache.path().join("index")).unwrap();
        files.map(|entry| entry.unwrap().path()).collect()
    };
    let [path] = &kept()[..] else {
        panic!("{:?}", kept())
    };
    let bytes = fs::read(path).unwrap();
    // That it is read shows in that it is believed.
    let mut index = Index::kept(&place.cache.path().join("index"), &first.inner.key()).unwrap();
    index.blocks.truncate(1);
    index.keep(&place.cache.path().join("index"), &first.inner.key());
    assert_eq!(place.open(&spec).unwrap().blocks(), 1);
    fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    let again = place.open(&spec).unwrap();
    assert_eq!(again.identity(), first.identity());
    assert_eq!(fs::read(path).unwrap(), bytes);
    // Another specification has another index.
    let spec = SourceSpec {
        block_bytes: 200,
        ..spec
    };
    assert_ne!(place.open(&spec).unwrap().identity(), first.identity());
    assert_eq!(kept().len(), 2);
}

#[test]
fn what_cannot_be_opened_has_a_reason() {
    let place = Place::new();
    let refused = |spec: SourceSpec| place.open(&spec).unwrap_err().to_string();
    let nothing = refused(place.spec("nothing/*.jsonl", jsonl()));
    assert!(
        nothing.contains("no file at") && nothing.contains("nothing/*.jsonl"),
        "{nothing}"
    );
    let scheme = refused(SourceSpec::new("x", "ftp://a/b", jsonl()));
    assert!(scheme.contains("`ftp` is neither"), "{scheme}");
    let context = SourceSpec {
        context: 1,
        ..place.spec("a", jsonl())
    };
    assert!(refused(context).contains("source test: a context below 2"));
    let pair = Fields {
        text: Some("a".into()),
        ..Fields::pair("b", "c")
    };
    assert!(refused(place.spec("a", Format::Jsonl(pair))).contains("name a field"));
    place.write("a.parquet", b"PAR1 nothing PAR1");
    let spec = SourceSpec {
        on_bad: OnBad::Fail,
        ..place.spec("", Format::Parquet(Fields::default()))
    };
    let error = refused(spec);
    assert!(error.contains("a.parquet is damaged at 17"), "{error}");
}

#[test]
fn a_specification_is_read_strictly_and_comes_back() {
    let json = r#"{"name": "stamps", "path": "s3://bucket/stamps-*.tar", "seed": 7,
        "format": {"webdataset": {"text": ["txt"]}}, "longer": "drop", "on_bad": "fail",
        "pictures": {"crop": 0.8}, "storage": {"region": "here"}}"#;
    let spec: SourceSpec = serde_json::from_str(json).unwrap();
    assert_eq!(spec.pictures.patch, 14);
    let again: SourceSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(again, spec);
    for wrong in [
        json.replace("longer", "logner"),
        json.replace("\"text\"", "\"texts\""),
        json.replace("crop", "corp"),
    ] {
        let error = serde_json::from_str::<SourceSpec>(&wrong)
            .unwrap_err()
            .to_string();
        assert!(error.contains("unknown field"), "{error}");
    }
}

/// A file of each format, and how it is read.
fn each_format() -> Vec<(&'static str, Format, Vec<u8>)> {
    let lines: String = (0..30)
        .map(|n| format!("{{\"text\": \"line {n}\"}}\n"))
        .collect();
    let rows: Vec<Option<&[u8]>> = (0..30).map(|_| Some(&b"some text"[..])).collect();
    let picture = png(28, 40);
    let names: Vec<String> = (0..5).map(|n| format!("{n}.")).collect();
    let members: Vec<(String, &[u8])> = names
        .iter()
        .flat_map(|name| {
            [
                (format!("{name}png"), &picture[..]),
                (format!("{name}txt"), b"x"),
            ]
        })
        .collect();
    let members: Vec<(&str, &[u8])> = members
        .iter()
        .map(|(name, bytes)| (&name[..], *bytes))
        .collect();
    let parquet = parquet_file(&[("text", rows)], 12);
    vec![
        ("jsonl", jsonl(), lines.clone().into_bytes()),
        ("jsonl.gz", jsonl(), gz(lines.as_bytes())),
        (
            "jsonl.zst",
            jsonl(),
            zstd::encode_all(lines.as_bytes(), 1).unwrap(),
        ),
        (
            "csv",
            Format::Csv(Csv::default()),
            format!("text,more\n{}", "\"a, \"\"b\"\"\",c\n".repeat(30)).into_bytes(),
        ),
        ("txt", text(Document::Headed), lines.clone().into_bytes()),
        ("md", text(Document::File), lines.into_bytes()),
        ("parquet", Format::Parquet(Fields::default()), parquet),
        (
            "tar",
            Format::Webdataset(Webdataset::default()),
            tar(&members),
        ),
    ]
}

#[test]
fn damaged_files_of_each_format_never_make_it_panic() {
    let mut state = 5;
    for (name, format, whole) in each_format() {
        let place = Place::new();
        let spec = SourceSpec {
            bad_part: 1.0,
            block_bytes: 300,
            ..place.spec(&format!("a.{name}"), format)
        };
        for round in 0..60 {
            let mut bytes = whole.clone();
            if round % 2 == 0 {
                bytes.truncate(order::below(&mut state, whole.len() as u64) as usize);
            }
            for _ in 0..round % 4 {
                if !bytes.is_empty() {
                    let at = order::below(&mut state, bytes.len() as u64) as usize;
                    bytes[at] = order::next(&mut state) as u8;
                }
            }
            let path = place.write(&format!("a.{name}"), &bytes);
            let error = match place.open(&spec) {
                Ok(source) => {
                    let read = (0..source.cells()).map(|cell| run(source.cell(0, cell)));
                    read.filter_map(Result::err).next()
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                let error = error.to_string();
                assert!(error.contains(&path), "{error}");
                assert!(!error.contains("gave up"), "{name}: {error}");
            }
        }
    }
}

#[test]
fn damaged_pictures_and_classes_never_make_it_panic() {
    let place = Place::new();
    let mut state = 9;
    let (picture, items) = (png(20, 20), idx(0x803, &[3, 4, 4], &[7; 48]));
    let labels = idx(0x801, &[3], &[1, 2, 3]);
    place.write("a.txt", "a picture");
    let images = place.spec("a.png", Format::Images(Images::default()));
    let format = Format::Idx(Idx {
        labels: place.path("labels"),
        names: vec![],
    });
    let items_spec = place.spec("items", format);
    let mut damaged = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        let at = order::below(&mut state, bytes.len() as u64) as usize;
        match order::below(&mut state, 2) {
            0 => bytes.truncate(at),
            _ => bytes[at] = order::next(&mut state) as u8,
        }
        bytes
    };
    for _ in 0..100 {
        place.write("a.png", damaged(&picture));
        place.write("items", damaged(&items));
        place.write("labels", damaged(&labels));
        for spec in [&images, &items_spec] {
            let Ok(source) = place.open(spec) else {
                continue;
            };
            for cell in 0..source.cells() {
                if let Err(error) = run(source.cell(0, cell)) {
                    assert!(!error.to_string().contains("gave up"), "{error}");
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_epoch_has_every_record_once(
        lengths in prop::collection::vec(prop::collection::vec(0_usize..60, 0..40), 1..4),
        block_bytes in 1_u64..400,
        cell_blocks in 1_u32..9,
        seed: u64,
        kind in 0_usize..5,
        kept: bool,
    ) {
        let place = Place::new();
        let mut expect = Vec::new();
        for (file, lengths) in lengths.iter().enumerate() {
            let mut out = Vec::new();
            let mut members = Vec::new();
            for (record, &length) in lengths.iter().enumerate() {
                let text = format!("{file}.{record} {}", "x".repeat(length));
                let text = text.trim_end().to_owned();
                match kind {
                    0 => writeln!(out, "{{\"text\": \"{text}\"}}").unwrap(),
                    1 => writeln!(out, "{text}").unwrap(),
                    2 => write!(out, "{text}\n  more\n \n").unwrap(),
                    3 => write!(out, "{text}\n\n  more\n\n").unwrap(),
                    _ => members.push((format!("{record}.txt"), text.clone())),
                }
                expect.push(match kind {
                    2 => format!("{text}\n  more"),
                    3 => format!("{text}\n\n  more"),
                    _ => text,
                });
            }
            if kind == 4 {
                let members: Vec<(&str, &[u8])> =
                    members.iter().map(|(name, text)| (&name[..], text.as_bytes())).collect();
                out = tar(&members);
            }
            place.write(&format!("{file}.data"), out);
        }
        let format = match kind {
            0 => jsonl(),
            1 => text(Document::Line),
            2 => text(Document::Paragraph),
            3 => text(Document::Headed),
            _ => Format::Webdataset(Webdataset { image: vec![], ..Webdataset::default() }),
        };
        let spec = SourceSpec {
            block_bytes,
            cell_blocks,
            seed,
            order: if kept { Order::Kept } else { Order::Shuffled },
            ..place.spec("*.data", format)
        };
        let source = place.open(&spec).unwrap();
        prop_assert_eq!(source.records(), expect.len() as u64);
        let orders: Vec<Vec<String>> = (0..2).map(|epoch| texts(&source, epoch)).collect();
        if kept {
            prop_assert_eq!(&orders[0], &expect);
        }
        for order in &orders {
            prop_assert_eq!(sorted(order.clone()), sorted(expect.clone()));
        }
        // Whoever opens it and asks for a cell gets the same bytes.
        let again = place.open(&spec).unwrap();
        prop_assert_eq!(again.identity(), source.identity());
        for cell in (0..source.cells()).rev() {
            prop_assert_eq!(run(again.cell(1, cell)).unwrap(), run(source.cell(1, cell)).unwrap());
        }
    }
}

#[test]
fn pictures_are_cut_by_chance_and_the_same_whenever_they_are_read() {
    let place = Place::new();
    place.write("a.png", png(200, 200));
    place.write("a.txt", "a ramp");
    let spec = SourceSpec {
        pictures: Pictures {
            crop: 0.3,
            mirror: 0.5,
            ..Pictures::default()
        },
        ..place.spec("", Format::Images(Images::default()))
    };
    let source = place.open(&spec).unwrap();
    let made = |epoch| run(source.cell(epoch, 0)).unwrap().samples[0].1.clone();
    assert_eq!(made(0), made(0));
    assert!((0..5).any(|epoch| made(epoch) != made(epoch + 1)));
}

#[test]
fn many_readers_at_once_get_what_one_gets() {
    let place = Place::new();
    let lines: String = (0..2000)
        .map(|n| format!("{{\"text\": \"line {n}\"}}\n"))
        .collect();
    place.write("a.jsonl.gz", gz(lines.as_bytes()));
    let spec = SourceSpec {
        block_bytes: 500,
        ..place.spec("a.jsonl.gz", jsonl())
    };
    let source = place.open(&spec).unwrap();
    let one = cells(&source, 0);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let all: Vec<Cell> = runtime.block_on(async {
        let cells = (0..source.cells()).map(|cell| source.cell(0, cell));
        futures::future::try_join_all(cells).await.unwrap()
    });
    assert!(all == one);
}

#[test]
fn an_open_source_takes_little_memory() {
    let place = Place::new();
    for file in 0..1000 {
        place.write(&format!("folder/file-number-{file}.txt"), "some text");
    }
    let source = place
        .open(&place.spec("folder", text(Document::File)))
        .unwrap();
    let each = (source.memory() - size_of::<Inner>()) / 1000;
    assert!(each < 48, "{each} bytes a file");
    let lines = "{\"text\": \"x\"}\n".repeat(100_000);
    place.write("a.jsonl", &lines);
    let source = place.open(&place.spec("a.jsonl", jsonl())).unwrap();
    assert!(source.memory() < 4096, "{} bytes", source.memory());
}

#[test]
fn options_of_the_storage_are_its_own() {
    let place = Place::new();
    let spec = SourceSpec {
        storage: BTreeMap::from([("regoin".into(), "here".into())]),
        ..SourceSpec::new("x", "s3://bucket/a", jsonl())
    };
    let error = place.open(&spec).unwrap_err().to_string();
    assert!(error.contains("`regoin` is no option"), "{error}");
}
