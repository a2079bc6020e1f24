//! Files that went wrong for users of other libraries, each with the address where that was told.

use super::*;

/// Opens what a file has and reads it: the texts, or else the first reason.
fn read(name: &str, bytes: impl AsRef<[u8]>, format: Format) -> Result<Vec<String>, String> {
    let place = Place::new();
    let path = place.write(name, bytes);
    let spec = SourceSpec {
        on_bad: OnBad::Fail,
        ..SourceSpec::new("test", &path, format)
    };
    let source = place.open(&spec).map_err(|error| error.to_string())?;
    if source.cells() == 0 {
        source.check_records().map_err(|error| error.to_string())?;
    }
    let mut all = Vec::new();
    for cell in 0..source.cells() {
        let cell = run(source.cell(0, cell)).map_err(|error| error.to_string())?;
        all.extend(cell.samples.iter().map(|(_, bytes)| said(&decoded(bytes))));
    }
    Ok(all)
}

#[track_caller]
fn refused(name: &str, bytes: impl AsRef<[u8]>, format: Format, why: &str) {
    let error = read(name, bytes, format).unwrap_err();
    assert!(error.contains(why) && error.contains(name), "{error}");
}

const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";

/// <https://github.com/policy-gradient/GRPO-Zero/issues/1>,
/// <https://github.com/deephaven/deephaven-core/issues/4561>
#[test]
fn a_pointer_of_git_lfs_is_told_as_such_in_every_format() {
    let parquet = Format::Parquet(Fields::default());
    let archive = Format::Webdataset(Webdataset {
        text: vec!["txt".into()],
        ..Webdataset::default()
    });
    for (name, format) in [
        ("a.jsonl", jsonl()),
        ("a.jsonl.gz", jsonl()),
        ("a.jsonl.zst", jsonl()),
        ("a.parquet", parquet),
        ("a.tar", archive),
        ("a.txt", text(Document::Line)),
        ("a.txt", text(Document::File)),
    ] {
        refused(name, POINTER, format, "git lfs pull");
    }
}

/// <https://github.com/facebookresearch/dynabench/issues/740>,
/// <https://github.com/facebookresearch/lingua/issues/42>, <https://github.com/zai-org/GLM-4/issues/591>,
/// <https://github.com/huggingface/datasets/pull/8086>
#[test]
fn lines_that_are_nearly_json_say_what_they_are() {
    for (line, why) in [
        ("{'text': 'a'}", "its quotes are single"),
        (
            r#"{"text": "a"}{"text": "b"}"#,
            "something stands behind its object",
        ),
        (r#"{"text": "a"},"#, "trailing characters, at its byte 14"),
        (r#"{"text": "a",}"#, "trailing comma, at its byte 14"),
        ("{", "spread over several lines"),
        ("<html>", "a page that says what went wrong"),
    ] {
        let whole = "{\"text\": \"good\"}\n".repeat(3) + line + "\n";
        refused("a.jsonl", &whole, jsonl(), why);
        // The line stands where the error says, and not in line 1.
        let error = read("a.jsonl", &whole, jsonl()).unwrap_err();
        assert!(!error.contains("line 1"), "{error}");
    }
}

/// <https://github.com/hiyouga/LlamaFactory/issues/5503>, <https://github.com/huggingface/trl/issues/1777>
#[test]
fn an_object_that_lacks_a_field_says_which_it_has() {
    let line = r#"{"conversations": [{"from": "human"}], "Text": "a", "id": 7}"#;
    refused(
        "a.jsonl",
        line,
        jsonl(),
        "no field `text`, but `Text`, `conversations`, `id`",
    );
}

/// <https://github.com/citrusvanilla/tinyflux/issues/14>, <https://github.com/stanfordnlp/GloVe/issues/34>
#[test]
fn zeros_at_the_end_of_a_text_are_no_text() {
    let zeros = [&b"one line\nanother"[..], &[0; 600]].concat();
    refused("a.txt", &zeros, text(Document::Line), "is NUL");
    let table = || Format::Csv(Csv::default());
    let rows = [&b"text\na\nb"[..], &[0; 600]].concat();
    refused("a.csv", rows, table(), "is NUL");
}

/// <https://github.com/huggingface/datasets/pull/3910>, <https://github.com/karpathy/char-rnn/issues/171>
#[test]
fn a_text_whose_lines_end_with_cr_alone_is_refused_with_the_remedy() {
    let lines = "line\r".repeat(200);
    for document in [Document::Line, Document::Paragraph] {
        refused("a.txt", &lines, text(document), "end with CR alone");
    }
    assert_eq!(
        read("a.txt", "line\r\n\r\nline", text(Document::Line))
            .unwrap()
            .len(),
        2
    );
}

/// <https://github.com/pytorch/text/issues/612>, <https://github.com/rewicks/ersatz/issues/1>,
/// <https://github.com/pandas-dev/pandas/issues/21862>
#[test]
fn quotes_of_tables_are_read_as_is_said() {
    let table = |change: fn(&mut Csv)| {
        let mut csv = Csv {
            delimiter: '\t',
            ..Csv::default()
        };
        change(&mut csv);
        Format::Csv(csv)
    };
    let rows = "n\ttext\n1\t\"never closed\n2\tb\n3\tc\n";
    let plain = read("a.tsv", rows, table(|csv| csv.quoting = false)).unwrap();
    assert_eq!(sorted(plain), ["\"never closed", "b", "c"]);
    let rows = "n\ttext\n1\t\"say \\\"hi\\\", then\tgo\"\n2\tb\n";
    let escaped = read("a.tsv", rows, table(|csv| csv.escape = Some('\\'))).unwrap();
    assert_eq!(sorted(escaped), ["b", "say \"hi\", then\tgo"]);
}

/// <https://github.com/apache/spark/pull/1924>, <https://github.com/ray-project/ray/issues/57704>
#[test]
fn what_spark_has_not_finished_is_not_read_and_told() {
    let place = Place::new();
    place.write("d/part-0.jsonl", "{\"text\": \"a\"}\n");
    place.write("d/_temporary/0/part-1.jsonl", "{\"text\": \"b\"}\n");
    let source = place.open(&place.spec("d", jsonl())).unwrap();
    assert_eq!(texts(&source, 0), ["a"]);
    let told = source.left_out();
    assert_eq!((told.others, told.first.len()), (1, 1));
    assert!(told.first[0].to_string().contains("_temporary"), "{told:?}");
    // Whoever names it has it.
    let source = place.open(&place.spec("d/_temporary", jsonl())).unwrap();
    assert_eq!(texts(&source, 0), ["b"]);
}

/// <https://github.com/astral-sh/tokio-tar/issues/109>, <https://github.com/dotnet/runtime/issues/125281>
#[test]
fn a_member_with_holes_is_refused_also_where_pax_says_so() {
    let mut builder = tar::Builder::new(Vec::new());
    let notes = [
        ("GNU.sparse.major", &b"1"[..]),
        ("GNU.sparse.realsize", b"4096"),
    ];
    builder.append_pax_extensions(notes).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_size(512);
    header.set_mode(0o644);
    let map = [&b"1\n0\n4\n"[..], &[0; 506]].concat();
    builder.append_data(&mut header, "a.txt", &map[..]).unwrap();
    let archive = Format::Webdataset(Webdataset {
        text: vec!["txt".into()],
        ..Webdataset::default()
    });
    refused("a.tar", builder.into_inner().unwrap(), archive, "has holes");
}

/// <https://github.com/facebook/zstd/issues/3655>
#[test]
fn a_file_that_was_compressed_with_a_dictionary_says_so() {
    // The head of a frame that names its dictionary.
    let head = *b"\x28\xb5\x2f\xfd\x63\xd5\x18\xef\x55\xb0\x1c\x3d\x0f\x00";
    let bytes = [&head[..], &[0xff; 100]].concat();
    refused(
        "a.jsonl.zst",
        bytes,
        jsonl(),
        "with a dictionary, which is not read",
    );
}

/// <https://github.com/hardwood-hq/hardwood/issues/600>
#[test]
fn an_encrypted_parquet_file_says_so() {
    let bytes = [&b"PARE"[..], &[7; 100], b"PARE"].concat();
    refused(
        "a.parquet",
        bytes,
        Format::Parquet(Fields::default()),
        "is encrypted",
    );
}

/// <https://github.com/ray-project/ray/issues/17325>
#[test]
fn a_column_that_is_the_name_of_a_folder_says_so() {
    let place = Place::new();
    let schema = parse_message_type("message rows { required binary text (UTF8); }").unwrap();
    let mut bytes = Vec::new();
    let properties = Arc::new(WriterProperties::builder().build());
    let mut writer = SerializedFileWriter::new(&mut bytes, Arc::new(schema), properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values = [ByteArray::from("a")];
    column
        .typed::<ByteArrayType>()
        .write_batch(&values, None, None)
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    place.write("d/lang=en/a.parquet", bytes);
    let fields = Fields::pair("lang", "text");
    let source = place
        .open(&place.spec("d", Format::Parquet(fields)))
        .unwrap();
    let error = source.check_records().unwrap_err().to_string();
    assert!(
        error.contains("`lang` is in the names of folders"),
        "{error}"
    );
}

/// A pipe has no size, and what is read of it cannot be read again.
#[test]
fn a_pipe_is_no_file_and_told() {
    let place = Place::new();
    place.write("d/a.jsonl", "{\"text\": \"a\"}\n");
    let pipe = place.path("d/pipe.jsonl");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let source = place.open(&place.spec("d", jsonl())).unwrap();
    assert_eq!(texts(&source, 0), ["a"]);
    assert!(
        source.left_out().first[0]
            .to_string()
            .contains("neither a file nor a folder")
    );
    let error = place
        .open(&place.spec("d/pipe.jsonl", jsonl()))
        .unwrap_err();
    assert!(
        error.to_string().contains("neither a file nor a folder"),
        "{error}"
    );
}
