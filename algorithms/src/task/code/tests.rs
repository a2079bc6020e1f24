//! Tests of what is run for a reply and how it is judged.

use std::io::Write;

use proptest::prelude::*;

use super::*;

fn file(lines: &[&str]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for line in lines {
        writeln!(file, "{line}").unwrap();
    }
    file
}

const DOUBLE: &str = r#"{"prompt": "Double it.", "solution": "print(2 * int(input()))",
    "tests": [{"stdin": "1\n", "stdout": "2\n"}, {"stdin": "2\n", "stdout": "4"}]}"#;
const ADD: &str = r#"{"problem": "Add.", "language": "python",
    "tests": [{"assert": "assert add(1, 2) == 3"}, {"call": "add(1, 1)", "value": "2"}]}"#;

fn task(credit: Credit) -> Code {
    let rows = [DOUBLE, ADD].map(|row| row.replace('\n', " "));
    let file = file(&[&rows[0], "", &rows[1]]);
    Code::open(CodeConfig {
        train_count: 1,
        credit,
        ..CodeConfig::new(file.path())
    })
    .unwrap()
}

fn printed(text: &str) -> TrialOutcome {
    TrialOutcome::Exited {
        code: 0,
        stdout: text.into(),
    }
}

#[test]
fn the_last_block_of_the_language_is_the_program() {
    let check = |reply: &str, expect: Option<&str>| {
        let found = program(reply, Language::Python);
        assert_eq!(found.as_deref(), expect, "{reply:?}");
    };
    check("```python\na\n```", Some("a\n"));
    check("```python\na\n```\nor\n```py\nb\n```\n", Some("b\n"));
    check("```Python3 title=x\na\n```", Some("a\n"));
    check("```{.python}\na\n```", Some("a\n"));
    check("```python\r\na\r\n```\r\n", Some("a\r\n"));
    // Output shown behind the program is no program, tagged or not.
    check("```python\na\n```\n```text\nb\n```", Some("a\n"));
    check("```python\na\n```\n```\nb\n```", Some("a\n"));
    check("```\na\n```\n```\nb\n```", Some("b\n"));
    check("```java\na\n```", None);
    check("~~~python\n```\n~~~", Some("```\n"));
    check("````python\n```\n````", Some("```\n"));
    check(
        "1. So:\n   ```python\n   if a:\n       b\n  c\n   ```",
        Some("if a:\n    b\nc\n"),
    );
    // What is not closed was cut off.
    check("```python\na\n", None);
    check("```python\na\n```\n```python\nb", Some("a\n"));
    check("    ```python\n    a\n    ```", None);
    check("```python a` b\n", None);
    check("```python\n```", Some(""));
    check("print(1)", None);
    check("", None);
    let shell = program("```bash\nls\n```", Language::Shell);
    assert_eq!(shell.as_deref(), Some("ls\n"));
}

#[test]
fn outputs_are_the_same_but_for_white_space_at_ends() {
    let check = |printed: &str, expected: &str, same: bool| {
        let found = same_output(printed.as_bytes(), expected.as_bytes());
        assert_eq!(found, same, "{printed:?} {expected:?}");
    };
    check("1 2\n", "1 2", true);
    check("1 2 \t\r\n3\n\n \n", "1 2\n3", true);
    check("", "\n", true);
    check("1\n\n2", "1\n2", false);
    check(" 1", "1", false);
    check("1  2", "1 2", false);
    check("1.0", "1", false);
    check("1\n2", "1\n2\n3", false);
}

#[test]
fn expected_outputs_and_values_are_no_part_of_what_is_run() {
    let task = task(Credit::AllOrNothing);
    let problem = task.problem(0, Split::Train, 0);
    let trials = task.trials(&problem, &problem.solution, "nonce").unwrap();
    assert_eq!(trials.len(), 2);
    assert_eq!(trials[0].stdin, "1\n");
    assert_eq!(trials[0].program, ["python3", "-s", "-B", "main.py"]);
    let program = "print(2 * int(input()))\n".to_owned();
    assert_eq!(trials[0].files, [("main.py".to_owned(), program)]);

    let problem = task.problem(0, Split::HeldOut, 0);
    let trials = task.trials(&problem, "```python\nx\n```", "n1").unwrap();
    assert_eq!(trials[0].stdin, "n1\nexec\nassert add(1, 2) == 3");
    assert_eq!(trials[1].stdin, "n1\neval\nadd(1, 1)");
    assert_eq!(trials[1].program.last().unwrap(), "harness.py");
    assert!(!format!("{trials:?}").contains("add"), "{trials:?}");
}

#[test]
fn all_tests_or_a_fraction_of_them() {
    let all = task(Credit::AllOrNothing);
    let problem = all.problem(0, Split::Train, 0);
    let trials = all.trials(&problem, &problem.solution, "n").unwrap();
    let (right, wrong) = ([printed("2"), printed("4\n")], [printed("3"), printed("4")]);
    assert_eq!(all.judge(&trials, &right), Ok(Verdict::correct()));
    assert!(!all.decided(&trials, &right[..1]) && all.decided(&trials, &wrong[..1]));
    let verdict = all.judge(&trials, &wrong[..1]).unwrap();
    assert_eq!((verdict.reward, verdict.correct), (0.0, false));
    let said = verdict.reason.to_string();
    assert_eq!(said, "test 1 of 2: it printed something else");

    let some = task(Credit::Fraction);
    assert!(!some.decided(&trials, &wrong[..1]));
    let left = Unjudged::Undecided { run: 1, of: 2 };
    assert_eq!(some.judge(&trials, &wrong[..1]), Err(left));
    let verdict = some.judge(&trials, &wrong).unwrap();
    assert_eq!((verdict.reward, verdict.correct), (0.5, false));
}

#[test]
fn only_success_with_the_right_output_passes() {
    let task = task(Credit::AllOrNothing);
    let problem = task.problem(0, Split::HeldOut, 0);
    let trials = task.trials(&problem, "```python\nx\n```", "n7").unwrap();
    assert!(trials[0].passes(&printed("n7 \n")));
    assert!(trials[1].passes(&printed("n7 2\n")));
    for text in ["", "n7", "n7 2", "n8 \n", "n7 \nmore", "passed\nn7 \n"] {
        assert!(!trials[0].passes(&printed(text)), "{text:?}");
    }
    let failed = TrialOutcome::Exited {
        code: 1,
        stdout: b"n7 \n".to_vec(),
    };
    for outcome in [
        failed,
        TrialOutcome::Signalled(9),
        TrialOutcome::TimedOut,
        TrialOutcome::OutOfMemory,
        TrialOutcome::OutputTooLong,
        TrialOutcome::TooManyProcesses,
    ] {
        assert!(!trials[0].passes(&outcome));
        let verdict = task.judge(&trials, std::slice::from_ref(&outcome)).unwrap();
        assert_eq!(verdict.reward, 0.0);
        assert!(verdict.reason.to_string().contains(&outcome.to_string()));
    }
}

#[test]
fn a_fault_of_the_machine_is_no_verdict() {
    for credit in [Credit::AllOrNothing, Credit::Fraction] {
        let task = task(credit);
        let problem = task.problem(0, Split::Train, 0);
        let trials = task.trials(&problem, &problem.solution, "n").unwrap();
        let outcomes = [printed("2"), TrialOutcome::NotStarted("no sh".to_owned())];
        assert!(task.decided(&trials, &outcomes));
        let why = task.judge(&trials, &outcomes).unwrap_err();
        assert_eq!(why.to_string(), "test 2 could not be run: no sh");
        assert!(task.judge(&[], &[]).is_err());
    }
}

#[test]
fn a_reply_without_a_program_is_judged_without_a_run() {
    let task = task(Credit::AllOrNothing);
    let problem = task.problem(0, Split::Train, 0);
    for reply in ["", "print(2)", "```python\n \n```", "```java\nx\n```"] {
        let verdict = task.trials(&problem, reply, "n").unwrap_err();
        assert_eq!(verdict.reason, Reason::NoAnswer, "{reply:?}");
        assert_eq!(task.reward(&problem, reply), verdict);
    }
    let verdict = task.reward(&problem, &problem.solution);
    assert_eq!((verdict.reward, verdict.reason), (0.0, Reason::NotRun));
    assert!((&task as &dyn Task).as_code().is_some());
    let elsewhere = Problem {
        goal: Goal::Tests { row: 9 },
        ..problem
    };
    assert!(task.trials(&elsewhere, "```python\nx\n```", "n").is_err());
}

#[test]
fn a_line_that_is_no_problem_is_named() {
    let check = |line: &str, why: &str| {
        let file = file(&[&DOUBLE.replace('\n', " "), line]);
        let error = Code::open(CodeConfig::new(file.path())).unwrap_err();
        assert!(
            matches!(error, TaskError::Line { line: 2, .. }),
            "{line}: {error}"
        );
        assert!(error.to_string().contains(why), "{line}: {error}");
    };
    check("{}", "missing field `prompt`");
    check(r#"{"prompt": "x", "tests": []}"#, "no tests");
    check(
        r#"{"prompt": "x", "tests": [{"stdin": "", "output": ""}]}"#,
        "test 1: a test is",
    );
    check(
        r#"{"prompt": "x", "language": "shell", "tests": [{"assert": "x"}]}"#,
        "only Python",
    );
    check(
        r#"{"prompt": "x", "language": "cobol", "tests": []}"#,
        "cobol",
    );
    let error = Code::open(CodeConfig::new("/nonexistent/code.jsonl")).unwrap_err();
    assert!(matches!(error, TaskError::Read { .. }), "{error}");
    let file = file(&[&DOUBLE.replace('\n', " ")]);
    let error = Code::open(CodeConfig::new(file.path())).unwrap_err();
    assert!(matches!(error, TaskError::TooFewProblems { .. }), "{error}");
}

#[test]
fn settings_are_read_with_defaults() {
    let config: CodeConfig = serde_json::from_str(r#"{"path": "x"}"#).unwrap();
    assert_eq!(config, CodeConfig::new("x"));
    let text = r#"{"path": "x", "credit": "fraction"}"#;
    let config: CodeConfig = serde_json::from_str(text).unwrap();
    assert_eq!(config.credit, Credit::Fraction);
}

/// Text in which fences are likely.
fn fenced() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("```"),
        Just("~~~~"),
        Just("``"),
        Just("\n"),
        Just("python"),
        Just(" "),
        Just("x"),
        Just("é"),
        Just("\t"),
        Just("\r\n"),
        Just("    "),
        Just("{.py}"),
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_reply_can_be_judged(reply in prop_oneof![any::<String>(), fenced()]) {
        let task = task(Credit::Fraction);
        let problem = task.problem(0, Split::Train, 0);
        match task.trials(&problem, &reply, "n") {
            Ok(trials) => prop_assert_eq!(trials.len(), 2),
            Err(verdict) => prop_assert_eq!(verdict.reward, 0.0),
        }
    }

    #[test]
    fn a_program_in_a_block_is_found_as_it_was(
        before in "[a-z .\n]{0,40}",
        lines in prop::collection::vec("[a-z (){}=~\u{e9}]{0,20}", 0..8),
        after in "[a-z .\n]{0,40}",
    ) {
        prop_assume!(!lines.iter().any(|line| line.trim_start().starts_with("~~~")));
        let code: String = lines.iter().map(|line| format!("{line}\n")).collect();
        for reply in [
            format!("{before}\n```python\n{code}```\n{after}"),
            format!("{before}\n~~~~ py\n{code}~~~~~\n{after}\n```\nout\n```"),
        ] {
            prop_assert_eq!(program(&reply, Language::Python), Some(code.clone()));
        }
    }

    #[test]
    fn outputs_compare_as_their_trimmed_lines(
        a in prop::collection::vec(0_u8..4, 0..12), b in prop::collection::vec(0_u8..4, 0..12),
    ) {
        let text = |codes: &[u8]| -> Vec<u8> {
            codes.iter().map(|code| b"x \n\r"[usize::from(*code)]).collect()
        };
        let trimmed = |text: &[u8]| {
            let text = String::from_utf8(text.to_vec()).unwrap();
            let lines: Vec<_> = text.split('\n').map(str::trim_end).collect();
            lines.join("\n").trim_end().to_owned()
        };
        let (a, b) = (text(&a), text(&b));
        prop_assert_eq!(same_output(&a, &b), trimmed(&a) == trimmed(&b));
        prop_assert!(same_output(&a, &a));
    }

    #[test]
    fn any_outcomes_give_a_reward_in_range(
        texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..4),
        code in 0..2,
    ) {
        for credit in [Credit::AllOrNothing, Credit::Fraction] {
            let task = task(credit);
            let problem = task.problem(0, Split::Train, 0);
            let trials = task.trials(&problem, &problem.solution, "n").unwrap();
            let outcomes = texts.iter().map(|text| TrialOutcome::Exited { code, stdout: text.clone() });
            let outcomes: Vec<_> = outcomes.collect();
            match task.judge(&trials, &outcomes) {
                Ok(verdict) => {
                    prop_assert!((0.0..=1.0).contains(&verdict.reward));
                    prop_assert_eq!(verdict.correct, verdict.reward == 1.0);
                }
                Err(_) => prop_assert!(!task.decided(&trials, &outcomes)),
            }
        }
    }
}
