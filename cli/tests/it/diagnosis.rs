//! `odeon whatif` and `odeon diagnose`: files of other programs, and what they say of whom.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use odeon_skip::{Need, skip};
use serde_json::Value;

use crate::nodes::text;

fn odeon(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odeon"));
    command.args(args).output().unwrap()
}

fn ok(args: &[&str]) -> String {
    let output = odeon(args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn fails(args: &[&str]) -> String {
    let output = odeon(args);
    assert!(!output.status.success(), "{}", text(&output.stdout));
    text(&output.stderr)
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/stragglers")
}

/// Where data of others lies beside the project.
fn oracles() -> PathBuf {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/oracles");
    std::env::var("ODEON_ORACLES")
        .unwrap_or_else(|_| beside.to_owned())
        .into()
}

/// Traces have numbers of 24 bits, and the published results were summed in these.
#[track_caller]
fn same(found: &Value, published: &Value, of: &str) {
    let (found, published) = (found.as_f64().unwrap(), published.as_f64().unwrap());
    let error = (found / published - 1.0).abs();
    // M_S of the first trace is a difference of nearly equal numbers.
    assert!(
        error < 1e-6 || (found - published).abs() < 2e-8,
        "{of}: {found}, published {published}"
    );
}

/// All that is published of a trace, and all of it is met.
fn meets_published(folder: &Path, name: &str, trace: &str) {
    let read = |file: String| -> Value {
        serde_json::from_str(&fs::read_to_string(folder.join(file)).unwrap()).unwrap()
    };
    let published = read(format!("result-{name}.json"));
    let path = folder.join(trace);
    let told: Value =
        serde_json::from_str(&ok(&["whatif", path.to_str().unwrap(), "--json"])).unwrap();
    assert_eq!(told["left_out"].as_array().unwrap().len(), 0);
    let steps: Vec<String> = (told["steps"].as_array().unwrap().iter())
        .map(ToString::to_string)
        .collect();
    let base = published["step_t_noblk"].as_object().unwrap();
    assert_eq!(steps.len(), base.len());
    same(&told["ideal_seconds"], &base[&steps[0]], "T_ideal");
    same(&told["slowdown"], &published["blocking_slowdown"], "S");
    same(
        &told["launch_slowdown"],
        &published["launch_slowdown"],
        "launches",
    );
    for (at, step) in steps.iter().enumerate() {
        same(
            &told["by_step"][at],
            &published["blocking_step_slowdown"][step],
            step,
        );
    }
    let kinds = |part: &str| match part {
        "forward-send + forward-recv" => "forward-pp-comm".to_owned(),
        "backward-send + backward-recv" => "backward-pp-comm".to_owned(),
        other => other.replace("stage ", "").replace("copy ", ""),
    };
    for (own, theirs) in [
        ("by_kind", "optype"),
        ("by_stage", "stage"),
        ("by_copy", "dp_rank"),
    ] {
        let whole = &published[format!("blocking_decompose_by_{theirs}")];
        let by_step = &published[format!("blocking_decompose_by_{theirs}_per_step")];
        let parts = told[own].as_array().unwrap();
        assert_eq!(parts.len(), whole.as_object().unwrap().len());
        for part in parts {
            let name = kinds(part["part"].as_str().unwrap());
            same(&part["slowdown"], &whole[&name], &name);
            for (at, step) in steps.iter().enumerate() {
                same(
                    &part["by_step"][at],
                    &by_step[step][&name],
                    &format!("{name} of {step}"),
                );
            }
        }
    }
    let (workers, last) = (
        read(format!("mw-{name}.json")),
        read(format!("ms-{name}.json")),
    );
    same(&told["slowest_workers"]["share"], &workers["Mw"], "M_W");
    same(
        &told["slowest_workers"]["mended_seconds"],
        &workers["trem"],
        "T without W",
    );
    same(&told["last_stage"]["share"], &last["Ms"], "M_S");
    same(
        &told["last_stage"]["mended_seconds"],
        &last["trem"],
        "T without S",
    );
}

/// SEMANTICS 151.
#[test]
fn a_published_trace_has_the_published_slowdowns() {
    meets_published(&golden(), "ST", "trace-ST.parquet");
}

/// SEMANTICS 151.
#[test]
fn all_published_traces_that_are_found_have_the_published_slowdowns_and_causes() {
    let folder = oracles().join("stragglers");
    if let Err(error) = fs::metadata(&folder) {
        return skip(Need::Oracles, error);
    }
    for (name, causes) in [
        ("AR", &["stage 0 of copy 0 is slow"][..]),
        (
            "SE",
            &[
                "micro-batches differ in length",
                "the last stage, 1, is heavier",
            ],
        ),
        ("ST", &["the last stage, 3, is heavier"]),
    ] {
        for ending in ["csv.gz", "parquet"] {
            meets_published(&folder, name, &format!("trace-{name}.{ending}"));
        }
        let path = folder.join(format!("trace-{name}.parquet"));
        let told: Value =
            serde_json::from_str(&ok(&["whatif", path.to_str().unwrap(), "--json"])).unwrap();
        let told = told["causes"].as_array().unwrap();
        assert_eq!(told.len(), causes.len(), "{name}: {told:?}");
        for (told, cause) in told.iter().zip(causes) {
            assert!(told.as_str().unwrap().starts_with(cause), "{name}: {told}");
        }
    }
}

#[test]
fn a_trace_is_told_in_words() {
    let path = golden().join("trace-ST.parquet");
    let told = ok(&["whatif", path.to_str().unwrap()]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(
        lines[..4],
        [
            "32 steps of 4 stages, 2 copies and 4 micro-batches",
            "a step takes 2.214 s; with no delay of launches 2.173 s; with no stragglers 1.843 s",
            "slowdown 1.179 (1.117 to 1.269 by step): 15.2 % of the workers' time is lost",
            "cause: the last stage, 3, is heavier than the others, which explains 100 % of the slowdown: move layers \
             from it to others",
        ]
    );
    assert!(told.contains("stage 3"), "{told}");
}

#[test]
fn traces_that_are_none_say_what_is_wrong_and_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let refused = |trace: &str| {
        fs::write(&path, trace).unwrap();
        fails(&["whatif", path.to_str().unwrap()])
    };
    let head = "step,stage,dp_rank,optype,seq_id,start_ts,duration\n";
    for (trace, said) in [
        (
            String::new(),
            "this one has no step, stage, dp_rank, optype, seq_id, start_ts, duration",
        ),
        ("a,b\n1,2\n".to_owned(), "(it has a, b)"),
        (head.to_owned(), "the trace has no operation of a step"),
        (
            format!("{head}0,0,0,forward-compute,0,0,1\n0,0,0,forwards,0,1,1\n"),
            "line 3: optype `forwards` is none of",
        ),
        (
            format!("{head}0,0,0,forward-compute,0,0,-1\n"),
            "takes -1 s",
        ),
        (
            format!("{head}0,0,0,forward-compute,0,x,1\n"),
            "line 2: start_ts `x` is no number of seconds",
        ),
        (
            format!("{head}0,-1,0,forward-compute,0,0,1\n"),
            "line 2: stage `-1` is no whole number",
        ),
        (
            format!("{head}0,0,0,forward-compute,0,0,1\n0,0,0,forward-compute,0,1,1\n"),
            "is there twice in step 0",
        ),
        (
            format!("{head}0,0,0,forward-compute,0,0,1\n"),
            "1 forward and 0 backward passes",
        ),
        (
            format!("{head}0,3,0,forward-compute,0,0,1\n0,3,0,backward-compute,0,1,1\n"),
            "stage 0 of copy 0 has 0 forward and 0 backward passes",
        ),
        ("PAR1 and no more".to_owned(), "Parquet"),
    ] {
        let why = refused(&trace);
        assert!(why.contains(said), "{trace}: {why}");
        assert!(why.contains("trace.csv"), "{why}");
    }
}

#[test]
fn dumps_of_a_flight_recorder_name_who_is_behind() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../algorithms/diagnosis/src/flight_recorder/golden");
    let folder = folder.to_str().unwrap();
    let told = ok(&["diagnose", folder]);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "4 dumps, 4 groups");
    assert!(
        lines[1].starts_with("since 2025-09-23 06:55:05")
            && lines[1].contains("rank 12 has not launched nccl:all_to_all 20537"),
        "{told}"
    );
    let told: Value = serde_json::from_str(&ok(&["diagnose", folder, "--json"])).unwrap();
    assert_eq!(told["findings"][0]["ranks"], serde_json::json!([12]));
    assert_eq!(told["findings"][0]["call"]["sequence"], 20537);
    let one = format!("{folder}/rank-13.pickle");
    let told = ok(&["diagnose", &one]);
    assert!(
        told.starts_with("1 dumps, 3 groups; no dump of ranks 12, 14, 15\n"),
        "{told}"
    );
    let why = fails(&["diagnose", &one, &one]);
    assert!(why.contains("are both of rank 13"), "{why}");
    let why = fails(&["diagnose", env!("CARGO_MANIFEST_DIR")]);
    assert!(
        why.contains("no file in it has a name that ends with a rank"),
        "{why}"
    );
    let empty = tempfile::tempdir().unwrap();
    let hostile = empty.path().join("dump_0");
    fs::write(
        &hostile,
        b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.",
    )
    .unwrap();
    let why = fails(&["diagnose", hostile.to_str().unwrap()]);
    assert!(
        why.contains("it wants to call `posix.system`, which is not done"),
        "{why}"
    );
}
