//! Replies that a policy could find instead of answers: none of them earns what an answer does.

use proptest::prelude::*;

use super::*;

/// A task with a reward for form, and one that judges by the answer alone.
fn tasks(of: impl Fn(f64) -> Box<dyn Task>) -> [(f64, Box<dyn Task>); 2] {
    [0.1, 0.0].map(|form| (form, of(form)))
}

fn maths(format_reward: f64) -> Box<dyn Task> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for row in 0..40 {
        let (left, right) = (10 + row, 3 * row + 7);
        writeln!(
            file,
            r#"{{"problem": "What is {left} plus {right}?", "answer": "{}"}}"#,
            left + right
        )
        .unwrap();
    }
    let config = MathsConfig {
        format_reward,
        ..MathsConfig::new(file.path())
    };
    Box::new(Maths::open(config).unwrap())
}

fn word_problems(format_reward: f64) -> Box<dyn Task> {
    let file = gsm8k_file(13);
    let config = Gsm8kConfig {
        train_count: 10,
        format_reward,
        ..Gsm8kConfig::new(file.path())
    };
    Box::new(Gsm8k::open(config).unwrap())
}

fn every_task(config: &SumsConfig, game: &CountdownConfig) -> Vec<(f64, Box<dyn Task>)> {
    let sums = |format_reward| -> Box<dyn Task> {
        let config = SumsConfig {
            format_reward,
            ..config.clone()
        };
        Box::new(Sums::new(config).unwrap())
    };
    let countdown = |format_reward| -> Box<dyn Task> {
        let game = CountdownConfig {
            format_reward,
            ..game.clone()
        };
        Box::new(Countdown::new(game).unwrap())
    };
    let all = [
        tasks(sums),
        tasks(countdown),
        tasks(word_problems),
        tasks(maths),
    ];
    all.into_iter().flatten().collect()
}

/// The digits of other scripts and their look-alikes.
fn foreign(digits: &str, zero: char) -> String {
    let foreign = |c: char| match c.to_digit(10) {
        Some(digit) => char::from_u32(zero as u32 + digit).unwrap(),
        None => c,
    };
    digits.chars().map(foreign).collect()
}

/// Texts without an answer in them, whatever the problem.
fn empty_forms() -> Vec<String> {
    let parts = [
        "####",
        "#### ",
        "<answer></answer>",
        "<answer>",
        "\\boxed{}",
        "\\boxed{ } ",
        "=",
        "()",
        "+",
        "-",
        "\u{2212}",
        "\u{200b}",
        "answer is ",
        "</think>",
        "<think>",
        "$",
        "NaN",
        "-NaN",
        "Infinity",
        "null",
        "\u{ff10}",
        "½",
        "²",
        "Ⅷ",
        "∞",
    ];
    let repeated = |part: &&str| [1, 2, 1000].map(|times| part.repeat(times));
    parts.iter().flat_map(repeated).collect()
}

/// Replies with another final answer than `right`, among them some that have it somewhere.
fn wrong_replies(right: &str, wrong: &str) -> Vec<String> {
    let long = "7".repeat(20_000);
    let mut replies = vec![
        wrong.to_owned(),
        format!("{wrong} ").repeat(500),
        format!("{right} {wrong}"),
        format!("{right}, {wrong}"),
        format!("{right} or {wrong}"),
        format!("{right}\n{wrong}"),
        format!("{right}={wrong}"),
        format!("#### {wrong}\n").repeat(50),
        format!("#### {right}\n#### {wrong}"),
        format!("<answer>{right}</answer><answer>{wrong}</answer>"),
        format!("<think>{right}</think>{wrong}"),
        format!("\\boxed{{{right}}} \\boxed{{{wrong}}}"),
        format!("\\boxed{{{wrong}}} \\boxed{{{right}}} \\boxed{{{wrong}}}"),
        format!("The answer is {right} or {wrong}."),
        format!("{right}{long}"),
        format!("{long}{right}"),
        format!("0.{long}{right}"),
        format!("{right}.{long}"),
        format!("{right}e{long}"),
        long,
    ];
    for zero in ['\u{ff10}', '\u{660}', '\u{966}', '\u{1d7ce}'] {
        replies.push(foreign(right, zero));
    }
    let all: Vec<String> = (0..200).map(|n: u32| n.to_string()).collect();
    for between in [" ", ", ", "=", "\n", " or ", "|"] {
        replies.push(format!("{}{between}{wrong}", all.join(between)));
    }
    replies
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// SEMANTICS 93.
    #[test]
    fn no_trick_earns_what_an_answer_does(
        config in sums_config(), game in countdown_config(), seed: u64, index in 0_u64..1000,
        off in 1_i64..1000,
    ) {
        for (form, task) in every_task(&config, &game) {
            let problem = task.problem(seed, Split::Train, index);
            let right: i64 = problem.answer.parse().unwrap();
            let mut replies = wrong_replies(&problem.answer, &(right + off).to_string());
            // Where the answer is one of the numbers that are given, it is an expression as well.
            if let Goal::Expression { numbers, .. } = &problem.goal {
                replies.retain(|_| !numbers.iter().any(|it| i64::from(*it) == right));
            }
            let answers_end_prompt = last_number(&problem.prompt)
                .is_some_and(|last| last.as_str() == problem.answer);
            if !answers_end_prompt {
                replies.push(problem.prompt.clone());
                replies.push(problem.prompt.repeat(20));
            }
            for reply in &replies {
                let verdict = task.reward(&problem, reply);
                let shown: String = reply.chars().take(200).collect();
                prop_assert!(!verdict.correct, "{} {} {}: {:?}", task.name(), problem.prompt, shown, verdict);
                prop_assert!(verdict.reward <= form, "{} {}: {:?}", task.name(), shown, verdict);
            }
            for reply in empty_forms() {
                let verdict = task.reward(&problem, &reply);
                let shown: String = reply.chars().take(60).collect();
                prop_assert!(verdict.reward <= form, "{} {}: {:?}", task.name(), shown, verdict);
                prop_assert!(!verdict.correct, "{} {}: {:?}", task.name(), shown, verdict);
            }
        }
    }

    /// SEMANTICS 93.
    #[test]
    fn the_solution_of_another_problem_earns_its_form_at_most(
        config in sums_config(), game in countdown_config(), seed: u64, index in 0_u64..1000,
        other in 0_u64..1000,
    ) {
        for (form, task) in every_task(&config, &game) {
            let problem = task.problem(seed, Split::Train, index);
            let other = task.problem(seed, Split::Train, other);
            if problem.answer == other.answer {
                continue;
            }
            for reply in [
                other.solution.clone(),
                format!("{}{}", other.prompt, other.solution),
                format!("{}\n{}", problem.solution, other.solution),
                format!("{}{}", problem.prompt, other.solution),
            ] {
                let verdict = task.reward(&problem, &reply);
                prop_assert!(!verdict.correct, "{} {reply}: {verdict:?}", task.name());
                prop_assert!(verdict.reward <= form, "{} {reply}: {verdict:?}", task.name());
            }
        }
    }

    /// More of the form is not worth more: the reward of a reply is that of an answer, of its form, or
    /// nothing. SEMANTICS 93.
    #[test]
    fn form_is_paid_for_once(
        config in sums_config(), game in countdown_config(), seed: u64, index in 0_u64..1000,
        times in 1_usize..200, between in "[ \n,=]", off in 1_i64..1000,
    ) {
        for (form, task) in every_task(&config, &game) {
            let problem = task.problem(seed, Split::Train, index);
            let wrong = (problem.answer.parse::<i64>().unwrap() + off).to_string();
            let forms = [
                format!("#### {wrong}"), format!("<answer>{wrong}</answer>"),
                format!("\\boxed{{{wrong}}}"), wrong,
            ];
            for one in forms {
                let reply = vec![one; times].join(&between);
                let reward = task.reward(&problem, &reply).reward;
                prop_assert!(reward == 0.0 || reward == form, "{} {reply}: {reward}", task.name());
            }
        }
    }
}
