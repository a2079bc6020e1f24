//! Tables of text.

use super::*;

fn table(settings: &str) -> Format {
    serde_json::from_str(&format!("{{\"csv\": {settings}}}")).unwrap()
}

/// The samples of a file of text, in its order, in blocks of so many bytes.
fn read(text: &str, settings: &str, block_bytes: u64) -> Vec<String> {
    let place = Place::new();
    place.write("a.csv", text);
    let spec = SourceSpec {
        order: Order::Kept,
        block_bytes,
        ..place.spec("a.csv", table(settings))
    };
    texts(&place.open(&spec).unwrap(), 0)
}

/// What is wrong with a file, whether that is found when it is opened or read.
fn refused(text: &str, settings: &str) -> String {
    let place = Place::new();
    place.write("a.csv", text);
    let spec = SourceSpec {
        on_bad: OnBad::Fail,
        ..place.spec("a.csv", table(settings))
    };
    let error = match place.open(&spec) {
        Ok(source) => run(source.cell(0, 0)).unwrap_err(),
        Err(error) => error,
    };
    error.to_string()
}

#[test]
fn rows_are_read_as_programs_write_them() {
    let check = |text: &str, settings: &str, expect: &[&str]| {
        // Wherever blocks end, the rows are the same.
        for block_bytes in [1, 9, 1 << 18] {
            assert_eq!(
                read(text, settings, block_bytes),
                expect,
                "{text:?} {block_bytes}"
            );
        }
    };
    check("id,text\n1,one\n2,two\n", "{}", &["one", "two"]);
    check("text\r\none\r\n\r\ntwo\r\n", "{}", &["one", "two"]);
    check("\u{feff}text,id\none,1\ntwo,2", "{}", &["one", "two"]);
    check(
        "id,text\n1,\"a, b\"\n2,\"two\nlines\"\n3,\"say \"\"so\"\"\"\n",
        "{}",
        &["a, b", "two\nlines", "say \"so\""],
    );
    check("id\ttext\n1\ta,b\n", r#"{"delimiter": "\t"}"#, &["a,b"]);
    check(
        "q;a\nWhat?;That.\n",
        r#"{"delimiter": ";", "prompt": "q", "response": "a"}"#,
        &["That."],
    );
    check(
        "1,one\n2,two\n",
        r#"{"text": "2", "header": false}"#,
        &["one", "two"],
    );
}

#[test]
fn what_is_no_table_is_said_with_its_place() {
    let check = |text: &str, settings: &str, expect: &str| {
        let error = refused(text, settings);
        assert!(error.contains(expect), "{error}");
    };
    check(
        "id,body\n1,one\n",
        "{}",
        "it has no column `text`: it has `id`, `body`",
    );
    check("text,text\n1,2\n", "{}", "it has two columns `text`");
    check(
        "id,text\n1,one\n2\n",
        "{}",
        "it has 1 fields, and the header has 2",
    );
    check("text\none\n\"two\nthree\n", "{}", "a quote is not closed");
    check(
        "1,one\n2\n",
        r#"{"text": "2", "header": false}"#,
        "it has no column 2: it has 1",
    );
    check(
        "one\n",
        r#"{"header": false}"#,
        "without a header a column is a number from 1 on, and `text` is none",
    );
    check(
        "text\none\n",
        r#"{"delimiter": "\""}"#,
        "a delimiter is one ASCII character",
    );
    check(
        "text\none\n",
        r#"{"prompt": "text"}"#,
        "name a field `text`, or `prompt` and `response`",
    );
}

#[test]
fn rows_before_an_open_quote_are_read_and_it_is_said_where_that_is() {
    let place = Place::new();
    place.write("a.csv", "text\none\ntwo\n\"three\nfour\n");
    let spec = place.spec("a.csv", table("{}"));
    let source = place.open(&spec).unwrap();
    assert_eq!(sorted(texts(&source, 0)), ["one", "two"]);
    let damages = &source.left_out().first;
    assert_eq!(damages.len(), 1);
    assert_eq!(damages[0].offset, 13);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Rows that a writer has quoted come back, wherever blocks end.
    #[test]
    fn what_is_written_is_read(
        rows in prop::collection::vec("[a,\"\n\r;\t' b]{0,12}", 0..20),
        block_bytes in 1_u64..60,
    ) {
        let mut writer = ::csv::Writer::from_writer(vec![]);
        writer.write_record(["id", "text"]).unwrap();
        for (id, row) in rows.iter().enumerate() {
            writer.write_record([&id.to_string(), row]).unwrap();
        }
        let text = String::from_utf8(writer.into_inner().unwrap()).unwrap();
        // Rows of blanks alone are no samples, in tables as elsewhere.
        let expect: Vec<&String> = rows.iter().filter(|row| !row.trim().is_empty()).collect();
        prop_assert_eq!(read(&text, "{}", block_bytes), expect.into_iter().cloned().collect::<Vec<_>>());
    }
}
