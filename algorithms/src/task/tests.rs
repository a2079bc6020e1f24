//! Tests of the tasks.

mod files;
mod hacks;

use std::{collections::HashSet, io::Write};

use proptest::prelude::*;

use super::*;
use crate::environment::calculate;

fn sums_config() -> impl Strategy<Value = SumsConfig> {
    let form = prop_oneof![
        Just(SumsForm::Compact),
        Just(SumsForm::Steps),
        Just(SumsForm::Spoken),
        Just(SumsForm::Tool),
        Just(SumsForm::Program)
    ];
    (form, 2_usize..6, 0_usize..4, 1_u32..8, 0_u32..8, 0_u8..=100).prop_map(
        |(form, operands_min, more, digits_min, longer, minus_percent)| SumsConfig {
            form,
            operands_min,
            operands_max: operands_min + more,
            digits_min,
            digits_max: digits_min + longer,
            minus_percent,
            format_reward: 0.1,
            aside: Aside::HeldOut,
        },
    )
}

fn countdown_config() -> impl Strategy<Value = CountdownConfig> {
    let style = prop_oneof![Just(PromptStyle::Plain), Just(PromptStyle::Chat)];
    (style, 2_usize..5, 0_usize..3, 5_u32..40).prop_map(|(style, numbers_min, more, number_max)| {
        CountdownConfig {
            style,
            numbers_min,
            numbers_max: numbers_min + more,
            number_max,
            format_reward: 0.1,
            ..CountdownConfig::default()
        }
    })
}

fn spec() -> impl Strategy<Value = TaskSpec> {
    prop_oneof![
        sums_config().prop_map(TaskSpec::Sums),
        countdown_config().prop_map(TaskSpec::Countdown),
    ]
}

fn split() -> impl Strategy<Value = Split> {
    prop_oneof![Just(Split::Train), Just(Split::HeldOut)]
}

fn gsm8k_file(rows: usize) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for row in 0..rows {
        writeln!(
            file,
            r#"{{"question": "What is {row} thousand?", "answer": "It is <<{row}*1000={row}000>>{row}000.\n#### {row},000"}}"#
        )
        .unwrap();
    }
    file
}

fn gsm8k(rows: usize, train_count: usize) -> Gsm8k {
    let file = gsm8k_file(rows);
    Gsm8k::open(Gsm8kConfig {
        train_count,
        ..Gsm8kConfig::new(file.path())
    })
    .unwrap()
}

proptest! {
    #[test]
    fn the_reference_solution_earns_reward_one(
        spec in spec(), seed: u64, split in split(), index in 0_u64..1 << 40,
    ) {
        let task = spec.build().unwrap();
        let problem = task.problem(seed, split, index);
        prop_assert_eq!(problem.split, split);
        prop_assert_eq!(problem.index, index);
        let verdict = task.reward(&problem, &problem.solution);
        prop_assert_eq!(verdict, Verdict::correct(), "{:?}", problem);
        prop_assert_eq!(task.problem(seed, split, index), problem);
    }

    #[test]
    fn another_number_earns_nothing_but_its_form(
        config in sums_config(), seed: u64, index in 0_u64..1000, off in 1_i64..1 << 50,
    ) {
        let task = Sums::new(config).unwrap();
        let problem = task.problem(seed, Split::Train, index);
        let answer: i64 = problem.answer.parse().unwrap();
        for wrong in [answer + off, answer - off] {
            let verdict = task.reward(&problem, &wrong.to_string());
            prop_assert!(!verdict.correct);
            prop_assert_eq!(verdict.reward, 0.1);
        }
    }

    #[test]
    fn a_character_changed_in_a_compact_answer_earns_nothing(
        seed: u64, index in 0_u64..1000, at: prop::sample::Index, replacement in "[0-9+ x.=-]",
    ) {
        let task = Sums::new(SumsConfig { digits_max: 6, ..SumsConfig::default() }).unwrap();
        let problem = task.problem(seed, Split::Train, index);
        let mut changed = problem.answer.clone();
        let at = at.index(changed.len());
        changed.replace_range(at..=at, &replacement);
        prop_assume!(changed.trim() != problem.answer);
        prop_assert_eq!(task.reward(&problem, &changed).reward, 0.0, "{}", changed);
    }

    #[test]
    fn an_expression_of_another_value_or_with_other_numbers_is_not_correct(
        config in countdown_config(), seed: u64, index in 0_u64..1000, by in 1_i64..100,
    ) {
        let task = Countdown::new(config).unwrap();
        let problem = task.problem(seed, Split::Train, index);
        let Goal::Expression { numbers, target } = problem.goal.clone() else { panic!() };
        let goal = Goal::Expression { numbers: numbers.clone(), target: target + by };
        let verdict = task.reward(&Problem { goal, ..problem.clone() }, &problem.solution);
        prop_assert_eq!(verdict.reward, 0.1);
        prop_assert!(!verdict.correct);

        // Twice the solution uses each number twice, though the value is right again.
        let twice = format!("({0})+({0})-({0})", problem.solution);
        let spent = Reason::NumberNotAvailable { number: String::new() };
        let verdict = task.reward(&problem, &twice);
        prop_assert_eq!(verdict.reward, 0.0);
        prop_assert_eq!(std::mem::discriminant(&verdict.reason), std::mem::discriminant(&spent));

        let goal = Goal::Expression { numbers: numbers[1..].to_vec(), target };
        let verdict = task.reward(&Problem { goal, ..problem.clone() }, &problem.solution);
        prop_assert!(!verdict.correct);
    }

    #[test]
    fn any_text_can_be_judged(spec in spec(), seed: u64, response in any::<String>()) {
        let task = spec.build().unwrap();
        let verdict = task.reward(&task.problem(seed, Split::Train, 0), &response);
        prop_assert!((0.0..=1.0).contains(&verdict.reward));
        prop_assert_eq!(verdict.correct, verdict.reward == 1.0);
    }

    #[test]
    fn nearly_arithmetic_text_can_be_judged(
        spec in spec(), seed: u64, response in "[-0-9+*/()=#,. <>answer\u{2212}×÷\n]{0,60}",
    ) {
        let task = spec.build().unwrap();
        let problem = task.problem(seed, Split::Train, 0);
        prop_assert!((0.0..=1.0).contains(&task.reward(&problem, &response).reward));
        let gsm8k = gsm8k(2, 1);
        let problem = gsm8k.problem(seed, Split::Train, 0);
        prop_assert!((0.0..=1.0).contains(&gsm8k.reward(&problem, &response).reward));
    }

    #[test]
    fn a_decimal_survives_its_canonical_form(text in "-?[0-9]{1,40}(\\.[0-9]{1,20})?") {
        let decimal = Decimal::parse(&text).unwrap();
        prop_assert_eq!(Decimal::parse(decimal.as_str()), Some(decimal.clone()));
        let number: f64 = text.parse().unwrap();
        prop_assert_eq!(decimal.as_str().parse::<f64>().unwrap(), number);
    }
}

#[test]
fn splits_share_no_problem_whatever_the_seeds() {
    for spec in [
        TaskSpec::Sums(SumsConfig {
            digits_max: 1,
            ..SumsConfig::default()
        }),
        TaskSpec::Sums(SumsConfig {
            minus_percent: 50,
            operands_max: 3,
            ..SumsConfig::default()
        }),
        TaskSpec::Countdown(CountdownConfig {
            number_max: 6,
            ..CountdownConfig::default()
        }),
    ] {
        let task = spec.build().unwrap();
        let prompts = |seed, split| -> HashSet<String> {
            (0..2_000)
                .map(|index| task.problem(seed, split, index).prompt)
                .collect()
        };
        let train = prompts(1, Split::Train);
        let held_out = prompts(2, Split::HeldOut);
        assert!(train.is_disjoint(&held_out), "{spec:?}");
        assert!(
            train.len() > 40 && held_out.len() > 3,
            "{} {}",
            train.len(),
            held_out.len()
        );
    }
}

/// A task of each kind with these problems set aside.
fn with_aside(file: &std::path::Path, maths: &std::path::Path, aside: Aside) -> [TaskSpec; 4] {
    [
        TaskSpec::Sums(SumsConfig {
            operands_max: 3,
            digits_max: 1,
            aside,
            ..SumsConfig::default()
        }),
        TaskSpec::Countdown(CountdownConfig {
            number_max: 9,
            aside,
            ..CountdownConfig::default()
        }),
        TaskSpec::Gsm8k(Gsm8kConfig {
            train_count: 150,
            aside,
            ..Gsm8kConfig::new(file)
        }),
        TaskSpec::Maths(MathsConfig {
            aside,
            ..MathsConfig::new(maths)
        }),
    ]
}

#[test]
fn settings_are_chosen_by_problems_that_are_neither_trained_on_nor_reported() {
    let (file, mut maths) = (gsm8k_file(200), tempfile::NamedTempFile::new().unwrap());
    for row in 0..200 {
        writeln!(
            maths,
            r#"{{"problem": "What is {row} plus 1?", "answer": {row}}}"#
        )
        .unwrap();
    }
    let [reported, choosing] =
        [Aside::HeldOut, Aside::Choice].map(|aside| with_aside(file.path(), maths.path(), aside));
    for (reported, choosing) in reported.into_iter().zip(choosing) {
        let prompts = |spec: &TaskSpec, split| -> HashSet<String> {
            let task = spec.build().unwrap();
            let count = task.problem_count(split).unwrap_or(4_000);
            let problems = (0..count).map(|index| task.problem(1, split, index));
            problems
                .inspect(|problem| assert_eq!(problem.split, split))
                .map(|problem| problem.prompt)
                .collect()
        };
        let all = prompts(&reported, Split::Train);
        let held_out = prompts(&reported, Split::HeldOut);
        let train = prompts(&choosing, Split::Train);
        let choice = prompts(&choosing, Split::HeldOut);
        assert!(choice.is_disjoint(&train), "{choosing:?}");
        assert!(choice.is_disjoint(&held_out), "{choosing:?}");
        assert!(train.is_disjoint(&held_out), "{choosing:?}");
        assert!(all.is_disjoint(&held_out), "{choosing:?}");
        assert!(choice.len() > 5, "{choosing:?}: {}", choice.len());
        assert!(train.len() > choice.len(), "{choosing:?}");
        if reported
            .build()
            .unwrap()
            .problem_count(Split::Train)
            .is_some()
        {
            assert_eq!(&train | &choice, all, "{choosing:?}");
        }
    }
    // Too few to set any aside.
    let few = Gsm8kConfig {
        train_count: 1,
        aside: Aside::Choice,
        ..Gsm8kConfig::new(file.path())
    };
    let error = Gsm8k::open(few).unwrap_err();
    assert!(matches!(error, TaskError::TooFewProblems { .. }), "{error}");
}

#[test]
fn seeds_and_indices_give_different_problems() {
    let task = Sums::new(SumsConfig {
        digits_max: 8,
        ..SumsConfig::default()
    })
    .unwrap();
    let prompts: HashSet<String> = (0..10)
        .flat_map(|seed| (0..100).map(move |index| (seed, index)))
        .map(|(seed, index)| task.problem(seed, Split::Train, index).prompt)
        .collect();
    assert!(prompts.len() > 900, "{}", prompts.len());
}

#[test]
fn replies_are_read_by_the_rules_of_their_form() {
    let check = |form, response: &str, reward: f64| {
        let task = Sums::new(SumsConfig {
            form,
            ..SumsConfig::default()
        })
        .unwrap();
        let mut problem = task.problem(0, Split::Train, 0);
        problem.goal = Goal::Number(19.into());
        assert_eq!(
            task.reward(&problem, response).reward,
            reward,
            "{form:?} {response:?}"
        );
    };
    check(SumsForm::Compact, "19", 1.0);
    check(SumsForm::Compact, " 19\n", 1.0);
    for wrong in ["", "019", "19.0", "+19", "=19", "19=", "191", "1 9", "18"] {
        check(SumsForm::Compact, wrong, 0.0);
    }
    check(SumsForm::Steps, "7+12=19", 1.0);
    check(SumsForm::Steps, "19=18", 0.0);
    check(SumsForm::Tool, "<7+12>19;19", 1.0);
    check(SumsForm::Tool, "19", 1.0);
    check(SumsForm::Tool, "<7+12>19;", 0.0);
    check(SumsForm::Tool, "<7+12>", 0.0);
    check(SumsForm::Tool, "<7+12>19;18", 0.0);
    let call = "<python>print(7+12)</python><output>19</output>";
    check(SumsForm::Program, &format!("{call}19"), 1.0);
    check(SumsForm::Program, call, 0.0);
    check(SumsForm::Spoken, "7 + 12 = 19.", 1.0);
    check(SumsForm::Spoken, "The answer is 19.0", 1.0);
    check(SumsForm::Spoken, "19, because 12 + 7", 0.0);
}

#[test]
fn steps_show_what_remains_after_each_operation() {
    let config = SumsConfig {
        form: SumsForm::Steps,
        operands_min: 4,
        operands_max: 4,
        minus_percent: 50,
        ..SumsConfig::default()
    };
    let task = Sums::new(config).unwrap();
    for index in 0..50 {
        let problem = task.problem(3, Split::Train, index);
        let mut values = problem.solution.split('=').map(|step| {
            let (first, rest) = step.split_at(usize::from(step.starts_with('-')));
            evaluate(&format!(
                "0{}{rest}",
                if first.is_empty() { "+" } else { "-" }
            ))
            .unwrap()
            .value
        });
        let answer: i128 = problem.answer.parse().unwrap();
        assert_eq!(problem.solution.split('=').count(), 3);
        assert!(
            values.all(|value| value == (answer, 1)),
            "{}",
            problem.solution
        );
    }
}

#[test]
fn a_worked_solution_says_what_its_tool_has_written() {
    let check = |form: SumsForm, called: &dyn Fn(&str) -> String| {
        let config = SumsConfig {
            form,
            operands_min: 2,
            operands_max: 4,
            minus_percent: 50,
            ..SumsConfig::default()
        };
        let task = Sums::new(config).unwrap();
        let tool = form.tool().unwrap();
        for index in 0..50 {
            let problem = task.problem(3, Split::Train, index);
            let (mut rest, mut at) = (problem.solution.as_str(), 0);
            let observed = task.observed(&problem);
            for range in &observed {
                // Each answer is that to the call right before it.
                let (own, more) = rest.split_at(range.start - at);
                let (answer, more) = more.split_at(range.len());
                let expression = own.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '-');
                let end = expression.find(['>', ')']).unwrap();
                let value = calculate(&expression[..end]);
                assert_eq!(own, tool.called(&called(&expression[..end])));
                assert_eq!(answer, tool.answered(&value));
                (rest, at) = (more, range.end);
            }
            assert_eq!(rest, problem.answer);
            let operators = problem.prompt.matches(['+', '-']).count();
            assert_eq!(observed.len(), operators, "{}", problem.prompt);
        }
    };
    check(SumsForm::Tool, &str::to_owned);
    check(SumsForm::Program, &|expression| {
        format!("print({expression})")
    });
    let plain = Sums::new(SumsConfig::default()).unwrap();
    assert!(
        plain
            .observed(&plain.problem(3, Split::Train, 0))
            .is_empty()
    );
}

#[test]
fn chat_replies_to_countdown_are_found() {
    let config = CountdownConfig {
        style: PromptStyle::Chat,
        ..CountdownConfig::default()
    };
    let task = Countdown::new(config).unwrap();
    let mut problem = task.problem(0, Split::Train, 0);
    problem.goal = Goal::Expression {
        numbers: vec![3, 5, 7],
        target: 22,
    };
    for (response, correct) in [
        ("3*5+7", true),
        ("Let me think.\n3 * 5 + 7 = 22", true),
        ("I tried 3+5+7.\n<answer>7+3*5</answer> done", true),
        ("<answer>3*5+7", true),
        ("The answer is 3*5+7", false),
        ("3*5+7+0", false),
        ("", false),
        ("<answer></answer>", false),
    ] {
        assert_eq!(
            task.reward(&problem, response).correct,
            correct,
            "{response:?}"
        );
    }
}

#[test]
fn a_file_is_dealt_once_a_pass_and_split_by_line() {
    let task = gsm8k(13, 10);
    assert_eq!(task.problem_count(Split::Train), Some(10));
    assert_eq!(task.problem_count(Split::HeldOut), Some(3));
    let pass = |pass: u64| -> Vec<String> {
        (pass * 10..pass * 10 + 10)
            .map(|i| task.problem(5, Split::Train, i).prompt)
            .collect()
    };
    let (first, second) = (pass(0), pass(1));
    assert_ne!(first, second);
    assert_eq!(
        first.iter().collect::<HashSet<_>>(),
        second.iter().collect::<HashSet<_>>()
    );
    assert_eq!(first.iter().collect::<HashSet<_>>().len(), 10);
    assert!((0..3).all(|i| !first.contains(&task.problem(5, Split::HeldOut, i).prompt)));

    let problem = task.problem(5, Split::HeldOut, 0);
    assert!(!problem.solution.contains("<<"), "{}", problem.solution);
    assert!(task.reward(&problem, &problem.solution).correct);
    let answer = &problem.answer;
    for (response, correct) in [
        (format!("so #### ${answer} dollars, not 7"), true),
        (format!("It is {answer}."), true),
        (format!("#### 5\n#### {answer}"), true),
        (format!("#### {answer}1"), false),
        (format!("{answer} ####"), false),
    ] {
        assert_eq!(
            task.reward(&problem, &response).correct,
            correct,
            "{response}"
        );
    }
}

#[test]
fn a_bad_line_is_named() {
    let mut file = gsm8k_file(3);
    writeln!(file, r#"{{"question": "?", "answer": "none"}}"#).unwrap();
    let error = Gsm8k::open(Gsm8kConfig::new(file.path())).unwrap_err();
    assert!(matches!(error, TaskError::Line { line: 4, .. }), "{error}");
    let error = Gsm8k::open(Gsm8kConfig::new("/nonexistent/test.jsonl")).unwrap_err();
    assert!(error.to_string().contains("fetch the data set"), "{error}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let sums = |change: fn(&mut SumsConfig)| {
        let mut config = SumsConfig::default();
        change(&mut config);
        Sums::new(config).unwrap_err().to_string()
    };
    assert!(sums(|c| c.operands_min = 1).contains("operands_min"));
    assert!(sums(|c| c.digits_max = 16).contains("digits_max"));
    assert!(sums(|c| c.minus_percent = 101).contains("minus_percent"));
    assert!(sums(|c| c.format_reward = 1.0).contains("format_reward"));
    let one_problem = CountdownConfig {
        numbers_min: 2,
        numbers_max: 2,
        number_max: 1,
        target_min: 2,
        target_max: 2,
        ..CountdownConfig::default()
    };
    let error = Countdown::new(one_problem).unwrap_err();
    assert!(matches!(error, TaskError::TooFewProblems { .. }), "{error}");
}

#[test]
fn a_task_survives_serialisation() {
    for spec in [
        TaskSpec::Sums(SumsConfig::default()),
        TaskSpec::Countdown(CountdownConfig::default()),
        TaskSpec::Gsm8k(Gsm8kConfig::new("test.jsonl")),
        TaskSpec::Maths(MathsConfig::new("test.jsonl")),
    ] {
        let text = serde_json::to_string(&spec).unwrap();
        assert_eq!(serde_json::from_str::<TaskSpec>(&text).unwrap(), spec);
    }
    let short: TaskSpec = serde_json::from_str(r#"{"sums": {"digits_max": 3}}"#).unwrap();
    assert_eq!(
        short,
        TaskSpec::Sums(SumsConfig {
            digits_max: 3,
            ..SumsConfig::default()
        })
    );
    assert!(serde_json::from_str::<TaskSpec>(r#"{"sums": {"digit_max": 3}}"#).is_err());
}
