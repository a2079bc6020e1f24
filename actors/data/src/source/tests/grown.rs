//! Sources that have more than when they were read.

use super::*;

/// A way in which records are files, and what is special about it.
#[derive(Clone, Copy, Debug)]
struct Way {
    format: fn() -> Format,
    /// The begin of a file.
    head: &'static str,
    record: fn(u32) -> String,
    /// The name of a file, and the records that one may have at most.
    ending: &'static str,
    records_max: u32,
}

fn table() -> Format {
    Format::Csv(Csv {
        text: Some("text".into()),
        ..Csv::default()
    })
}

const WAYS: [Way; 6] = [
    Way {
        format: jsonl,
        head: "",
        record: |n| format!("{{\"text\": \"record {n}\"}}\n"),
        ending: "jsonl",
        records_max: 40,
    },
    Way {
        format: table,
        head: "n,text\n",
        record: |n| format!("{n},\"record\n\n{n}\"\n"),
        ending: "csv",
        records_max: 40,
    },
    Way {
        format: || text(Document::Line),
        head: "\n",
        record: |n| format!("record {n}\r\n\n"),
        ending: "txt",
        records_max: 40,
    },
    Way {
        format: || text(Document::Paragraph),
        head: "",
        record: |n| format!("record {n}\ngoes on\n\n"),
        ending: "txt",
        records_max: 40,
    },
    Way {
        format: || text(Document::Separated("----".into())),
        head: "",
        record: |n| format!("record {n}\n\ngoes on\n----\n"),
        ending: "txt",
        records_max: 40,
    },
    // Nothing can be added to a record.
    Way {
        format: || text(Document::File),
        head: "",
        record: |n| format!("record {n}"),
        ending: "txt",
        records_max: 1,
    },
];

/// The records of each of two files, and of one that is first by its name; as often as more comes.
type Came = Vec<[u32; 3]>;

/// Writes the files as they are after so many times.
fn write(place: &Place, way: Way, came: &[[u32; 3]]) -> Vec<u32> {
    let mut all = Vec::new();
    for (nth, name) in ["m", "n", "a"].into_iter().enumerate() {
        let records: u32 = came.iter().map(|more| more[nth]).sum();
        let records = records.min(way.records_max);
        let own = (0..records).map(|record| nth as u32 * 1000 + record);
        all.extend(own.clone());
        if records > 0 {
            let text: String = own.map(way.record).collect();
            let name = format!("d/{name}.{}", way.ending);
            place.write(&name, format!("{}{text}", way.head));
        }
    }
    all
}

fn open_behind(
    place: &Place,
    spec: &SourceSpec,
    earlier: &[Earlier],
) -> Result<Source, SourceError> {
    run(Source::open_behind(
        SourceNumber(3),
        spec,
        earlier,
        &place.opening,
    ))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// SEMANTICS 125.
    #[test]
    fn what_came_is_behind_what_was_there_and_each_record_is_once(
        way in prop::sample::select(&WAYS[..]),
        came in prop::collection::vec([0_u32..12, 0_u32..12, 0_u32..12], 2..4),
        epochs in prop::collection::vec(0_u32..3, 3),
        (cell_blocks, block_bytes) in (1_u32..4, 40_u64..200),
        order in prop::sample::select(vec![Order::Kept, Order::Shuffled]),
    ) {
        let came: Came = came;
        prop_assume!(came[0].iter().sum::<u32>() > 0);
        let place = Place::new();
        let spec = SourceSpec { cell_blocks, block_bytes, order, ..place.spec("d", (way.format)()) };
        let mut earlier: Vec<Earlier> = Vec::new();
        let mut before: Vec<Vec<Cell>> = Vec::new();
        for time in 0..came.len() {
            let records = write(&place, way, &came[..=time]);
            let source = open_behind(&place, &spec, &earlier).unwrap();
            for (epoch, before) in before.iter().enumerate() {
                prop_assert_eq!(source.cells_before() as usize, before.len());
                prop_assert_eq!(&cells(&source, epoch as u32)[..before.len()], &before[..]);
            }
            for epoch in 0..6 {
                let mut all = texts(&source, epoch);
                all.sort();
                let plain = SourceSpec { order: Order::Kept, ..spec.clone() };
                prop_assert_eq!(all.len(), records.len());
                prop_assert_eq!(all, sorted(texts(&place.open(&plain).unwrap(), 0)));
            }
            let until = epochs[..=time].iter().sum();
            earlier.push(Earlier { files: source.file_states(), until });
            // Files that only seem to be others are the same to those who have read them.
            let again = open_behind(&place, &spec, &earlier).unwrap();
            prop_assert_eq!(again.identity(), source.identity());
            before = (0..=until).map(|epoch| cells(&source, epoch)).collect();
        }
        // What is held out and what is learnt from are all, whatever came.
        let part = |part| SourceSpec { part, ..spec.clone() };
        let mut both = Vec::new();
        for part in [part(Part::HeldOut { one_of: 3 }), part(Part::AllBut { one_of: 3 })] {
            both.extend(texts(&open_behind(&place, &part, &earlier).unwrap(), 0));
        }
        let all = open_behind(&place, &spec, &earlier).unwrap();
        prop_assert_eq!(sorted(both), sorted(texts(&all, 0)));
    }
}

#[test]
fn a_source_of_which_something_that_was_read_is_not_there_is_refused() {
    let lines = |from: u32, end: u32| (from..end).map(WAYS[0].record).collect::<String>();
    let whole = lines(0, 20);
    let reversed: String = whole
        .lines()
        .rev()
        .map(|line| line.to_owned() + "\n")
        .collect();
    let check = |before: &[u8], after: &[u8], name: &str, format: fn() -> Format, why: &str| {
        let place = Place::new();
        let spec = place.spec("d", format());
        place.write(&format!("d/{name}"), before);
        let files = place.open(&spec).unwrap().file_states();
        place.write(&format!("d/{name}"), after);
        let earlier = [Earlier { files, until: 0 }];
        match open_behind(&place, &spec, &earlier) {
            Err(SourceError::Differs { what, .. }) => assert!(what.contains(why), "{what}"),
            other => panic!("{why}: {other:?}"),
        }
    };
    let lined = |after: &str, why| check(whole.as_bytes(), after.as_bytes(), "a.jsonl", jsonl, why);
    lined(&lines(0, 19), "a.jsonl shrank from");
    lined(
        &(reversed.clone() + &lines(20, 30)),
        "which were all of it, are others now",
    );
    lined(&reversed, "has the same size and other content");
    // The last record was not at its end, and has become another.
    let more = whole.clone() + "more of it\n";
    let paragraph = || text(Document::Paragraph);
    let why = "goes on within the record that was its last";
    check(whole.as_bytes(), more.as_bytes(), "b.txt", paragraph, why);
    let why = "nothing can be added to a file of its format";
    let (before, after) = (gz(whole.as_bytes()), gz(more.as_bytes()));
    check(&before, &after, "c.jsonl.gz", jsonl, why);
    let archive = || {
        Format::Webdataset(Webdataset {
            text: vec!["txt".into()],
            ..Webdataset::default()
        })
    };
    let (before, after) = (
        tar(&[("a.txt", b"a")]),
        tar(&[("a.txt", b"a"), ("b.txt", &[b'b'; 20_000])]),
    );
    check(&before, &after, "d.tar", archive, why);
}

#[test]
fn who_goes_on_with_the_same_files_does_not_read_them_through_again() {
    let place = Place::new();
    let spec = place.spec("d", jsonl());
    write(&place, WAYS[0], &[[5, 0, 0]]);
    let indices = || {
        fs::read_dir(place.cache.path().join("index"))
            .unwrap()
            .count()
    };
    let mut earlier: Vec<Earlier> = Vec::new();
    let mut known = |epochs: std::ops::Range<u32>, count: usize| {
        for until in epochs {
            let source = open_behind(&place, &spec, &earlier).unwrap();
            assert_eq!(indices(), count);
            earlier.truncate(count - 1);
            earlier.push(Earlier {
                files: source.file_states(),
                until,
            });
        }
    };
    known(0..3, 1);
    write(&place, WAYS[0], &[[9, 2, 0]]);
    known(3..6, 2);
}
