//! Tests of what is read out of replies, and of the task.

use std::io::Write;

use super::super::*;

#[test]
fn the_final_answer_is_found_where_replies_have_it() {
    let check = |reply: &str, expected: &str| {
        let expected = (!expected.is_empty()).then_some(expected);
        assert_eq!(final_answer(reply), expected, "{reply}");
    };
    check("", "");
    check("I do not know what to say here", "");
    check(r"\boxed{5}", "5");
    check(
        r"First $3$, then \boxed{ \frac{1}{2} }. Done 7.",
        r"\frac{1}{2}",
    );
    check(r"\boxed{3} and then \fbox{4}", "4");
    check(r"\boxed{\boxed{5}}", r"\boxed{5}");
    check(r"\boxed{\{1, 2\}}", r"\{1, 2\}");
    check(r"{ { \boxed{5} and \boxed{6", "5");
    check(r"\boxed 5.", "5");
    check(r"\boxed{5", r"\boxed{5");
    check("So\n#### 1,250", "1,250");
    check("#### 5\nThe answer is 6.", "6");
    check("The answer is 3.5. It is small.", "3.5");
    check("**Answer:** 5", "5");
    check("**Final Answer**: $x = 5$.", "$x = 5$");
    check("Answer = 12 cm", "12 cm");
    check("The answer is $5$, which is prime.", "$5$");
    check("The answer is $3$ or $5$.", "$3$ or $5$");
    check("The answer is 5 because 2 + 3 = 5.", "5");
    check("The answer is:\n\\[\nx = 5\n\\]\n", "x = 5");
    check("The answers are 1, 2 and 3.", "1, 2 and 3");
    check("No answer isotope. It is 5", "5");
    check(
        r"Hence $x=3$ and so $y = \frac{1}{2}$.",
        r"$y = \frac{1}{2}$",
    );
    check("It is $1$, $2$, or $5$.", "$1$, $2$, or $5$");
    check("7 + 12 = 19", "7 + 12 = 19");
    check("We get x = 5.", "x = 5");
    check("In all there are 12 apples.", "12");
    check("It is 50 mm.", "50 mm");
    check("It costs $5.", "$5");
    check("It could be 1, 2, 3, 4 or 5.", "1, 2, 3, 4 or 5");
    check("Step 3: 5", "5");
    check("He has 3. She has 4.", "4");
    check("That is it.\n\nYes", "Yes");
    check("<think>\\boxed{3}</think> It is 4.", "4");
    check("<think>\\boxed{3}</think>", "");
    check("Thus\n$$\nx^2 + 1\n$$", "x^2 + 1");
    check("**5**", "5");
    check("It is **even** for all of them", "even");
}

#[test]
fn boxes_are_found_in_order() {
    assert_eq!(
        boxed_answers(r"\boxed{1} \boxed{a\boxed{2}b} \fbox{3} }{"),
        ["1", r"a\boxed{2}b", "3"]
    );
    assert_eq!(boxed_answers(r"\boxed{1</think>\boxed{2}"), ["2"]);
}

#[test]
fn long_replies_are_read_in_one_pass() {
    for part in [
        "\\boxed{",
        "\\boxed{}",
        "\\boxed 5 ",
        "{",
        "}",
        "\\",
        "answer",
        "answer is ",
        "answer ",
        "#",
        "$",
        "$5 ",
        "*",
        "**",
        "1, ",
        "a1 ",
        "\n",
        "\\[\n",
        "</think>",
        ". ",
        "`",
        "é",
    ] {
        let reply = part.repeat(1_000_000 / part.len());
        let verdict = judge("7", &reply, 0.5);
        assert!(!verdict.correct, "{part}");
    }
}

#[test]
fn replies_earn_what_they_say() {
    let reward = |reference: &str, reply: &str| judge(reference, reply, 0.1).reward;
    for (reference, reply) in [
        ("5", r"So it is \boxed{5}."),
        ("5", r"\boxed{5}, that is \boxed{x = 5.0}"),
        ("5", "The answer is 5."),
        ("524288", r"\boxed{2^{19}}"),
        (r"\frac{\sqrt{2}}{2}", r"\boxed{\frac{1}{\sqrt2}}"),
        ("1, 2", r"\boxed{2 \text{ and } 1}"),
        ("B", r"\boxed{\textbf{(B)}\ 12}"),
        (r"\text{even}", "It is **even**"),
    ] {
        assert_eq!(reward(reference, reply), 1.0, "{reference} ~ {reply}");
    }
    for (reference, reply) in [
        ("5", r"\boxed{6}"),
        ("5", r"\boxed{1, 2, 3, 4 or 5}"),
        ("5", r"\boxed{5 \text{ or } 6}"),
        ("5", r"\boxed{\{4, 5\}}"),
        ("5", r"\boxed{4 = 5}"),
        ("5", r"\boxed{\pm 5}"),
        ("5", r"\boxed{5 + 0 \cdot \int x}"),
        ("5", r"\boxed{}5"),
    ] {
        assert!(reward(reference, reply) < 0.2, "{reference} ~ {reply}");
    }
    for (reference, reply) in [
        ("5", r"\boxed{4} or \boxed{5}"),
        ("5", r"\boxed{5} or \boxed{4}"),
        ("5", "1, 2, 3, 4 or 5"),
        ("5", "It is 4 or 5."),
        ("5", "The answer is 3, 4, or 5."),
        ("5", "The answer is $4$ or $5$."),
        ("5", "$3$, $4$, $5$"),
        ("5", ""),
        ("5", "<think>\\boxed{5}</think>"),
    ] {
        assert_eq!(reward(reference, reply), 0.0, "{reference} ~ {reply}");
    }
    let boxes: String = (0..100)
        .map(|n| format!("\\boxed{{5 + {n} - {n}}} "))
        .collect();
    assert_eq!(reward("5", &boxes), 0.0);
    assert_eq!(
        reward("5", &format!("\\boxed{{{}5}}", " 0+".repeat(2_000))),
        0.0
    );
}

#[test]
fn the_reason_tells_what_was_read() {
    let reason = |reply: &str| judge("5", reply, 0.0).reason;
    assert_eq!(reason("#### 6"), Reason::Wrong { given: "6".into() });
    assert_eq!(
        reason(r"\boxed{\int x}"),
        Reason::Undecided {
            given: r"\int x".into()
        }
    );
    assert_eq!(reason(""), Reason::NoAnswer);
    assert!(matches!(
        reason(r"\boxed{5} \boxed{6}"),
        Reason::Malformed { .. }
    ));
}

fn file(rows: &[&str]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for row in rows {
        writeln!(file, "{row}").unwrap();
    }
    file
}

#[test]
fn a_file_is_split_by_the_text_of_its_problems() {
    let rows: Vec<String> = (0..40)
        .flat_map(|n| {
            let row = format!(r#"{{"problem": "What is {n}+1?", "answer": "{}"}}"#, n + 1);
            [row.clone(), row]
        })
        .collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let task = Maths::open(MathsConfig::new(file(&rows).path())).unwrap();
    let count = |split| task.problem_count(split).unwrap();
    assert_eq!(count(Split::Train) + count(Split::HeldOut), 80);
    let prompts = |split| -> Vec<String> {
        let mut prompts: Vec<String> = (0..count(split))
            .map(|index| task.problem(3, split, index).prompt)
            .collect();
        prompts.sort_unstable();
        prompts
    };
    let (train, held_out) = (prompts(Split::Train), prompts(Split::HeldOut));
    assert!(held_out.iter().all(|prompt| !train.contains(prompt)));
    // Both copies of each problem are dealt in one pass.
    assert!(train.chunks(2).all(|pair| pair[0] == pair[1]));
    for index in 0..100 {
        let problem = task.problem(5, Split::Train, index);
        assert_eq!((problem.split, problem.index), (Split::Train, index));
        assert_eq!(task.reward(&problem, &problem.solution), Verdict::correct());
        assert!(!task.reward(&problem, r"\boxed{1000}").correct);
    }
}

#[test]
fn rows_may_name_their_fields_in_several_ways() {
    let check = |row: &str, answer: &str, solution: &str| {
        let row: serde_json::Map<String, serde_json::Value> = serde_json::from_str(row).unwrap();
        let problem = rows::parse_row(&row).unwrap();
        assert_eq!(problem.answer, answer, "{row:?}");
        assert_eq!(problem.solution, solution, "{row:?}");
        assert!(problem.prompt.starts_with("Q\n"), "{row:?}");
    };
    let alone = r"The answer is \boxed{5}.";
    check(r#"{"problem": "Q", "answer": "5"}"#, "5", alone);
    check(r#"{"question": "Q", "answer": 5}"#, "5", alone);
    check(
        r#"{"prompt": "Q", "answer": "so\n#### 5", "level": 1}"#,
        "5",
        alone,
    );
    let boxed = r#"{"problem": "Q", "solution": "As $2+3$, \\boxed{5}."}"#;
    check(boxed, "5", r"As $2+3$, \boxed{5}.");
    let wrong = r#"{"problem": "Q", "solution": "\\boxed{6}", "answer": "5"}"#;
    check(wrong, "5", alone);
}

#[test]
fn a_bad_line_is_named() {
    let good = r#"{"problem": "Q", "answer": "5"}"#;
    for (row, words) in [
        ("{", "EOF"),
        (r#"{"answer": "5"}"#, "no `problem`"),
        (r#"{"problem": "Q"}"#, "no `answer`"),
        (r#"{"problem": "Q", "answer": ""}"#, "empty"),
        (
            r#"{"problem": "Q", "answer": "\\int x"}"#,
            "`int x` in the reference",
        ),
        (r#"{"problem": "Q", "answer": "1/0"}"#, "divides by zero"),
    ] {
        let rows = file(&[good, "", row, "]"]);
        let error = Maths::open(MathsConfig::new(rows.path())).unwrap_err();
        assert!(matches!(error, TaskError::Line { line: 3, .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains(words) && text.contains("1 more lines"),
            "{text}"
        );
    }
    let error = Maths::open(MathsConfig::new("/nonexistent/test.jsonl")).unwrap_err();
    assert!(error.to_string().contains("fetch the data set"), "{error}");
    let error = Maths::open(MathsConfig::new(file(&[good]).path())).unwrap_err();
    assert!(matches!(error, TaskError::TooFewProblems { .. }), "{error}");
    let config = MathsConfig {
        format_reward: 1.0,
        ..MathsConfig::new("x")
    };
    assert!(matches!(
        Maths::open(config),
        Err(TaskError::Setting { .. })
    ));
}
