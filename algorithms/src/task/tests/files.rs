//! Files of problems as people have them.

use std::io::Write as _;

use super::super::{
    Decimal, Goal, Gsm8k, Gsm8kConfig, Maths, MathsConfig, OnBad, Split, Task, TaskError, Verdict,
};

fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Problems of both tasks, with these lines behind the first ten.
fn rows(bad: &[u8]) -> Vec<u8> {
    let good = |from: usize| -> String {
        let row = |n| format!("{{\"question\": \"What is {n}?\", \"answer\": \"#### {n}\"}}\n");
        (from..from + 40).map(row).collect()
    };
    [good(0).as_bytes(), bad, b"\n", good(40).as_bytes()].concat()
}

fn gsm8k(bytes: &[u8], on_bad: OnBad) -> Result<Gsm8k, TaskError> {
    let file = file(bytes);
    Gsm8k::open(Gsm8kConfig {
        train_count: 20,
        on_bad,
        ..Gsm8kConfig::new(file.path())
    })
}

fn maths(bytes: &[u8], on_bad: OnBad) -> Result<Maths, TaskError> {
    let file = file(bytes);
    Maths::open(MathsConfig {
        on_bad,
        ..MathsConfig::new(file.path())
    })
}

fn count(task: &dyn Task) -> u64 {
    [Split::Train, Split::HeldOut]
        .into_iter()
        .filter_map(|split| task.problem_count(split))
        .sum()
}

#[test]
fn marks_of_byte_order_numbers_that_are_none_and_keys_that_are_there_twice_are_read() {
    for bad in [
        &b""[..],
        b"{\"question\": \"Q\", \"score\": NaN, \"answer\": \"#### 1\"}",
        b"{\"question\": \"P\", \"answer\": \"none\", \"question\": \"Q\", \"answer\": \"#### 1\"}",
    ] {
        let bytes = [b"\xef\xbb\xbf", &rows(bad)[..]].concat();
        let expect = 80 + u64::from(!bad.is_empty());
        assert_eq!(count(&gsm8k(&bytes, OnBad::Fail).unwrap()), expect);
        assert_eq!(count(&maths(&bytes, OnBad::Fail).unwrap()), expect);
    }
}

#[test]
fn a_file_of_another_kind_says_which() {
    for (bytes, reason) in [
        (&b""[..], "it is empty"),
        (b"\n \n", "it is empty"),
        (b"\x1f\x8b\x08\0", "compressed with gzip"),
        (b"PAR1\0\0", "a Parquet file"),
        (b"\xff\xfe{\0", "UTF-16"),
        (b"[{}]", "a JSON array"),
    ] {
        for error in [
            gsm8k(bytes, OnBad::Skip).unwrap_err(),
            maths(bytes, OnBad::Skip).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(error.contains(reason) && error.contains('/'), "{error}");
        }
    }
}

#[test]
fn a_line_that_holds_no_problem_is_named_or_left_out_and_told() {
    for (bad, reason) in [
        (
            &b"{\"question\": \"caf\xe9\", \"answer\": \"#### 1\"}"[..],
            "not UTF-8",
        ),
        (
            b"{\"question\": \"Q\", \"answer\": [\"#### 1\"]}",
            "`answer` is a list",
        ),
        (
            b"{\"prompt\": [{\"role\": \"user\"}], \"reward_model\": {\"ground_truth\": \"1\"}}",
            "a list",
        ),
        (b"{\"question\": \"Q\"}", "there is no `answer`"),
        (b"[1]", "a list and not an object"),
        (b"{\"question\": \"Q\", \"answer\": \"\"}", "the"),
    ] {
        let bytes = rows(bad);
        for error in [
            gsm8k(&bytes, OnBad::Fail).unwrap_err(),
            maths(&bytes, OnBad::Fail).unwrap_err(),
        ] {
            assert!(matches!(error, TaskError::Line { line: 41, .. }), "{error}");
            let error = error.to_string();
            assert!(error.contains(reason), "{error}");
        }
        let (gsm8k, maths) = (
            gsm8k(&bytes, OnBad::Skip).unwrap(),
            maths(&bytes, OnBad::Skip).unwrap(),
        );
        for task in [&gsm8k as &dyn Task, &maths] {
            assert_eq!(count(task), 80);
            let left_out = task.left_out().unwrap();
            assert_eq!(left_out.lines, 1);
            assert!(left_out.first[0].contains(":41: "), "{left_out:?}");
        }
    }
}

#[test]
fn numbers_are_read_as_data_sets_write_them_and_so_are_replies() {
    for (written, value) in [
        ("$18", "18"),
        ("1/2", "0.5"),
        ("72.", "72"),
        ("1e3", "1000"),
    ] {
        let bad = format!("{{\"question\": \"Q\", \"answer\": \"so\\n#### {written}\"}}");
        let task = gsm8k(&rows(bad.as_bytes()), OnBad::Fail).unwrap();
        let held_out = task.problem_count(Split::HeldOut).unwrap();
        let problem = (0..held_out)
            .map(|index| task.problem(1, Split::HeldOut, index))
            .find(|problem| problem.prompt.starts_with("Q\n"))
            .unwrap();
        assert_eq!(problem.goal, Goal::Number(Decimal::parse(value).unwrap()));
        assert_eq!(task.reward(&problem, &problem.solution), Verdict::correct());
        assert_eq!(task.line(&problem), Some(41));
    }
}

#[test]
fn a_question_to_train_on_is_not_held_out_as_well() {
    let twice = [rows(b""), rows(b"")].concat();
    let task = gsm8k(&twice, OnBad::Fail).unwrap();
    assert_eq!(task.problem_count(Split::Train), Some(20));
    assert_eq!(task.problem_count(Split::HeldOut), Some(120));
    let left_out = task.left_out().unwrap();
    assert_eq!(left_out.lines, 20);
    assert!(
        left_out.first[0].contains("one to train on"),
        "{left_out:?}"
    );
}

#[test]
fn a_prompt_that_is_too_long_is_named_or_left_out() {
    let bad = format!(
        "{{\"question\": \"{}\", \"answer\": \"#### 1\"}}",
        "x".repeat(2000)
    );
    let file = file(&rows(bad.as_bytes()));
    let open = |on_bad| {
        Gsm8k::open(Gsm8kConfig {
            train_count: 20,
            on_bad,
            prompt_bytes_max: Some(1000),
            ..Gsm8kConfig::new(file.path())
        })
    };
    let error = open(OnBad::Fail).unwrap_err();
    assert!(matches!(error, TaskError::Line { line: 41, .. }), "{error}");
    assert_eq!(count(&open(OnBad::Skip).unwrap()), 80);
    let huge = format!("{{\"question\": \"{}\"}}", "x".repeat(2 << 20));
    let error = gsm8k(&rows(huge.as_bytes()), OnBad::Skip).unwrap_err();
    assert!(matches!(error, TaskError::Line { line: 41, .. }), "{error}");
}

/// Dealing a pass takes a time that grows with the problems, and not with their square: a pass over all
/// of these took minutes when each problem had the order made anew.
#[test]
fn a_pass_over_many_problems_deals_each_once() {
    let row = |n| format!("{{\"question\": \"What is {n}?\", \"answer\": \"#### {n}\"}}\n");
    let many: String = (0..60_000).map(row).collect();
    let task = gsm8k(many.as_bytes(), OnBad::Fail).unwrap();
    let count = task.problem_count(Split::HeldOut).unwrap();
    let mut dealt: Vec<String> = (0..count)
        .map(|index| task.problem(3, Split::HeldOut, index).answer)
        .collect();
    dealt.sort_unstable();
    dealt.dedup();
    assert_eq!(dealt.len() as u64, count);
}
