//! Dumps of real jobs, made-up ones for each finding, and files that are none.

use std::fs;
use std::path::{Path, PathBuf};

use odeon_skip::{Need, skip};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{Detector, Finding};

fn found(dumps: &FlightDumps) -> Vec<Finding<FlightDumps>> {
    UnfinishedCollectives.observe(dumps, dumps.last_ns())
}

/// The dumps of a folder, by the number at the end of their names.
fn of_folder(folder: &Path) -> FlightDumps {
    let mut dumps = FlightDumps::default();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let rank = stem.rsplit(['_', '-']).next().unwrap().parse();
        if let Ok(rank) = rank {
            let dump = FlightDump::read(rank, &fs::read(&path).unwrap()).unwrap();
            assert!(dumps.add(dump).is_none());
        }
    }
    dumps
}

fn golden() -> FlightDumps {
    of_folder(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/flight_recorder/golden"))
}

/// SEMANTICS 152.
#[test]
fn the_rank_that_launched_less_is_named_with_the_call_that_others_wait_in() {
    let dumps = golden();
    assert_eq!(dumps.ranks().collect::<Vec<_>>(), [12, 13, 14, 15]);
    assert!(dumps.lacking().is_empty());
    let found = found(&dumps);
    assert_eq!(found[0].who, [12]);
    assert_eq!(
        found[0].cause.to_string(),
        "rank 12 has not launched nccl:all_to_all 20537 of 4007x5120 in group 74 (EXPERT_MODEL_PARALLEL_GROUP, ranks \
         12 to 15), in which ranks 13 to 15 wait; the last there is 20536 at rank 12"
    );
    assert_eq!(found[0].since, 1_758_610_505_925_585_112);
    let behind = |it: &&Finding<FlightDumps>| matches!(it.cause, FlightCause::NotLaunched { .. });
    assert_eq!(found.iter().filter(behind).count(), 3);
    for later in found.iter().filter(behind).skip(1) {
        assert_eq!(later.who, [12]);
        let FlightCause::NotLaunched { is_first, .. } = later.cause else {
            unreachable!()
        };
        assert!(!is_first, "{}", later.cause);
    }
}

/// The group, operation, shape and ranks that a reference tool names.
fn reference(text: &str) -> (String, String, Vec<usize>) {
    let row = text.lines().nth(1).unwrap();
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let ranks = cells[5].split(',').map(|it| it.parse().unwrap());
    (cells[0].to_owned(), cells[2].to_owned(), ranks.collect())
}

/// SEMANTICS 152.
#[test]
fn what_a_reference_tool_names_is_named_in_all_published_dumps_that_are_found() {
    let root = std::env::var("ODEON_ORACLES");
    let root = root.unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/oracles").to_owned()
    });
    let folder = PathBuf::from(root).join("flight-recorder");
    for case in ["gpu_error_1st", "lock_gil_1st"] {
        let published = folder.join(format!("reference_outputs/{case}_reference.txt"));
        let text = match fs::read_to_string(published) {
            Ok(text) => text,
            Err(error) => return skip(Need::Oracles, error),
        };
        let (group, operation, ranks) = reference(&text);
        let dumps = of_folder(&folder.join(case));
        assert_eq!(dumps.ranks().count(), 16);
        let found = found(&dumps);
        assert_eq!(found[0].who, ranks, "{case}: {}", found[0].cause);
        let FlightCause::NotLaunched { call, silent, .. } = &found[0].cause else {
            panic!("{}", found[0].cause);
        };
        assert_eq!((&call.group.name, &call.operation), (&group, &operation));
        match case {
            // The other rank that was made to fail cannot be seen in the dumps.
            "gpu_error_1st" => assert!(silent.is_empty()),
            _ => assert_eq!(*silent, ranks),
        }
        for other in &found {
            let FlightCause::NotLaunched { is_first, .. } = &other.cause else {
                continue;
            };
            assert_eq!(*is_first, other.since == found[0].since, "{}", other.cause);
        }
    }
}

/// A dump with calls `(number, operation, shape, state)` in one group of these ranks.
fn dump(rank: usize, ranks: &str, calls: &[(u64, &str, u64, &str)]) -> FlightDump {
    let entries = calls.iter().map(|(number, operation, size, state)| {
        json!({
            "process_group": ["7", "pipeline"], "collective_seq_id": number, "profiling_name": operation,
            "input_sizes": [[size]], "output_sizes": [[size]], "input_dtypes": ["Float"], "state": state,
            "time_created_ns": number * 10 + rank as u64,
        })
    });
    let dump = json!({
        "version": "2.4",
        "pg_config": {"7": {"name": "7", "desc": "pipeline", "ranks": ranks}},
        "entries": entries.collect::<Vec<Value>>(),
    });
    FlightDump::read(rank, dump.to_string().as_bytes()).unwrap()
}

fn of(dumps: impl IntoIterator<Item = FlightDump>) -> FlightDumps {
    let mut all = FlightDumps::default();
    for dump in dumps {
        all.add(dump);
    }
    all
}

#[test]
fn calls_of_one_number_that_differ_are_named_at_the_rank_that_is_alone() {
    let usual = [
        (4, "nccl:all_reduce", 8, "completed"),
        (5, "nccl:all_reduce", 8, "scheduled"),
    ];
    let size = [usual[0], (5, "nccl:all_reduce", 9, "scheduled")];
    let operation = [usual[0], (5, "nccl:broadcast", 8, "scheduled")];
    for (other, said) in [
        (size, "rank 2 has launched nccl:all_reduce of Float 9"),
        (operation, "rank 2 has launched nccl:broadcast of Float 8"),
    ] {
        let calls = [&usual, &usual, &other];
        let dumps = of((0..3).map(|rank| dump(rank, "[0, 1, 2]", calls[rank])));
        let found = found(&dumps);
        assert_eq!((found.len(), &found[0].who), (1, &vec![2]));
        assert!(
            found[0].cause.to_string().ends_with(said),
            "{}",
            found[0].cause
        );
    }
    // Ranks of an all-to-all may send as much as they like.
    let own = |size| [(5, "nccl:all_to_all", size, "scheduled")];
    let dumps = of((0..3).map(|rank| dump(rank, "[0, 1, 2]", &own(rank as u64))));
    assert!(matches!(
        found(&dumps)[0].cause,
        FlightCause::NotEnded { .. }
    ));
}

#[test]
fn a_call_that_all_launched_names_those_whose_devices_have_not_begun() {
    let states = ["started", "scheduled", "started", "completed"];
    let dumps = of((0..4).map(|rank| {
        dump(
            rank,
            "[0, 1, 2, 3]",
            &[(5, "nccl:all_reduce", 8, states[rank])],
        )
    }));
    let found = found(&dumps);
    assert_eq!(found[0].who, [1]);
    assert_eq!(
        found[0].cause.to_string(),
        "all ranks have launched nccl:all_reduce 5 of 8 in group 7 (pipeline, ranks 0 to 3), and it does not end; the \
         devices of ranks 0, 2 are at it; those of rank 1 have not begun it"
    );
    // All are over: nothing is wrong.
    let done = |rank| dump(rank, "[0, 1]", &[(5, "nccl:all_reduce", 8, "completed")]);
    assert_eq!(self::found(&of((0..2).map(done))), []);
}

/// SEMANTICS 152.
#[test]
fn a_rank_that_left_no_dump_is_named_where_all_others_wait_in_a_call_and_are_more() {
    let waits = [(5, "nccl:all_reduce", 8, "started")];
    let dumps = of((0..3).map(|rank| dump(rank, "[0, 1, 2, 3]", &waits)));
    let named = found(&dumps);
    assert_eq!((named.len(), &named[0].who), (1, &vec![3]));
    assert_eq!(
        named[0].cause.to_string(),
        "all others have launched nccl:all_reduce 5 of 8 in group 7 (pipeline, ranks 0 to 3), and it does not end; the \
         devices of ranks 0 to 2 are at it; rank 3 has left no dump: it is who writes nothing that hangs"
    );
    // Half of the dumps may have been left behind; a device that has not begun is better known; and where the call has
    // ended the rank was in it.
    let half = of((0..2).map(|rank| dump(rank, "[0, 1, 2, 3]", &waits)));
    assert_eq!(found(&half)[0].who, Vec::<usize>::new());
    for (state, who) in [("scheduled", vec![0]), ("completed", vec![])] {
        let other = [(5, "nccl:all_reduce", 8, state)];
        let calls = [&other, &waits, &waits];
        let dumps = of((0..3).map(|rank| dump(rank, "[0, 1, 2, 3]", calls[rank])));
        assert_eq!(found(&dumps)[0].who, who, "{state}");
    }
}

/// SEMANTICS 152.
#[test]
fn groups_of_one_name_and_other_ranks_are_two_and_ranks_without_a_dump_are_not_blamed() {
    let ahead = [
        (5, "nccl:all_reduce", 8, "scheduled"),
        (6, "nccl:all_reduce", 8, "scheduled"),
    ];
    let dumps = of([
        dump(0, "[0, 1]", &ahead),
        dump(1, "[0, 1]", &ahead[..1]),
        dump(2, "[2, 3]", &ahead[..1]),
    ]);
    assert_eq!(dumps.lacking().into_iter().collect::<Vec<_>>(), [3]);
    let found = found(&dumps);
    assert_eq!((found.len(), &found[0].who), (2, &vec![1]));
    assert!(
        matches!(&found[1].cause, FlightCause::NotEnded { call, .. } if call.group.ranks == [2, 3])
    );
}

/// SEMANTICS 152.
#[test]
fn a_pickle_that_would_run_something_is_refused_by_its_name() {
    // os.system("true"), as `pickle.dumps` writes it.
    let hostile = b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.";
    let error = FlightDump::read(0, hostile).unwrap_err();
    assert_eq!(
        error.to_string(),
        "byte 2 of the pickle: it wants to call `posix.system`, which is not done"
    );
    // The lists of numbers of PyTorch's own writer are lists.
    let listed = b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n](K\x01K\x02e\x85R.";
    assert_eq!(pickle::read(listed).unwrap(), json!([1, 2]));
}

#[test]
fn files_that_are_no_dumps_say_what_they_are() {
    let refused = |bytes: &[u8]| FlightDump::read(0, bytes).unwrap_err().to_string();
    assert_eq!(
        refused(br#"{"version": "1.5", "entries": []}"#),
        "the dump has version 1.5: versions from 2.4 on are read, which PyTorch 2.5 and later write"
    );
    assert!(refused(b"hello").starts_with("it is neither a pickle nor JSON: expected value"));
    assert_eq!(
        refused(br#"{"entries": []}"#),
        "it is no dump of a flight recorder: it has no text `version`"
    );
    let entry = json!({
        "process_group": ["9", ""], "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "input_sizes": [],
        "output_sizes": [], "state": "scheduled", "time_created_ns": 1,
    });
    let foreign = json!({"version": "2.9", "pg_config": {}, "entries": [entry]});
    assert_eq!(
        refused(foreign.to_string().as_bytes()),
        "entry 0 is of group `9`, which pg_config does not have"
    );
    // 1,000 lists in each other.
    let mut deep = b"\x80\x02".to_vec();
    deep.extend([b']'; 1000]);
    deep.extend([b'a'; 999]);
    deep.push(b'.');
    assert!(refused(&deep).ends_with("it nests too deep"));
}

#[test]
fn lists_that_are_elsewhere_too_are_read_in_all_protocols() {
    // `a = [1, 2]; {"a": a, "b": a, 3: None}` of protocols 2 and 4.
    let second = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01K\x02eX\x01\x00\x00\x00bq\x03h\x02K\x03Nu.";
    let fourth = b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01K\x02e\x8c\x01b\x94h\x02K\x03Nu.";
    let expected = json!({"a": [1, 2], "b": [1, 2], "3": null});
    assert_eq!(pickle::read(second).unwrap(), expected);
    assert_eq!(pickle::read(fourth).unwrap(), expected);
    // A list in itself.
    let own = b"\x80\x02]q\x00(h\x00e.";
    let error = pickle::read(own).unwrap_err().to_string();
    assert_eq!(error, "byte 6 of the pickle: it takes what it has not kept");
}

proptest! {
    #[test]
    fn damage_is_an_error_or_a_dump_and_no_panic(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
        which in 0..2_usize,
    ) {
        let golden: [&[u8]; 2] = [
            include_bytes!("golden/rank-12.pickle"),
            include_bytes!("golden/rank-13.pickle"),
        ];
        let mut bytes = golden[which].to_vec();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        let _ = FlightDump::read(0, &bytes);
        bytes.truncate(cut.index(bytes.len()));
        prop_assert!(FlightDump::read(0, &bytes).is_err());
    }
}
