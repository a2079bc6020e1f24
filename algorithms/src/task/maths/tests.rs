//! Tests of the checker.

mod pairs;
mod properties;
mod replies;

use self::pairs::{DIFFERENT, EQUAL, UNDECIDED};
use super::{budget::WORK_MAX, *};

/// The rows of a table: a reference, and answers after it.
fn rows(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table
        .lines()
        .filter(|line| !line.is_empty())
        .flat_map(|line| {
            let mut parts = line.split(" ~ ");
            let reference = parts.next().unwrap_or_default();
            parts.map(move |answer| (reference, answer))
        })
}

fn check(table: &str, expected: Equality) -> usize {
    let mut count = 0;
    for (reference, answer) in rows(table) {
        assert_eq!(
            same_answer(reference, answer),
            expected,
            "{reference} ~ {answer}"
        );
        assert_eq!(
            same_answer(answer, reference),
            expected,
            "{answer} ~ {reference}"
        );
        for text in [reference, answer] {
            assert_eq!(same_answer(text, text), Equality::Equal, "{text}");
        }
        count += 1;
    }
    count
}

#[test]
fn equal_answers_are_equal_in_any_form() {
    assert!(check(EQUAL, Equality::Equal) > 300);
}

#[test]
fn different_answers_are_different() {
    assert!(check(DIFFERENT, Equality::Different) > 100);
}

#[test]
fn what_cannot_be_told_is_said_to_be_open() {
    assert!(check(UNDECIDED, Equality::Undecided) > 10);
}

#[test]
fn references_are_checked_when_they_are_loaded() {
    for (reference, _) in rows(DIFFERENT) {
        assert!(ReferenceAnswer::parse(reference).is_ok(), "{reference}");
    }
    let error = |text: &str| ReferenceAnswer::parse(text).unwrap_err();
    assert_eq!(error(""), ReferenceError::Empty);
    assert_eq!(error(" $ $ "), ReferenceError::Empty);
    assert_eq!(
        error(&"1".repeat(4_000)),
        ReferenceError::TooLong { bytes: 4_000 }
    );
    let part = "sum _ k k".to_owned();
    assert_eq!(
        error(r"2, \sum_k k"),
        ReferenceError::NotUnderstood { part }
    );
    assert!(matches!(error("(1, 1/0)"), ReferenceError::NoValue { .. }));
    assert!(error("9^{9^{9^9}}").to_string().contains("too large"));
    assert!(matches!(
        error("((3)"),
        ReferenceError::NotUnderstood { .. }
    ));
}

#[test]
fn an_answer_that_is_too_long_is_not_compared() {
    let long = "1".repeat(ANSWER_BYTES_MAX + 1);
    assert_eq!(same_answer(&long, &long), Equality::Undecided);
}

#[test]
fn typical_answers_take_a_small_part_of_the_budget() {
    for (reference, answer) in rows(EQUAL) {
        let mut budget = Budget::new();
        let _ = compare::texts(reference, answer, &mut budget);
        assert!(
            budget.spent() < WORK_MAX / 5,
            "{}: {reference} ~ {answer}",
            budget.spent()
        );
    }
}

/// Each of these would take minutes, or all memory, if it were worked out.
#[test]
fn hostile_answers_are_given_up_within_the_budget() {
    let many = |part: &str, times: usize| part.repeat(times);
    let sum = |part: &dyn Fn(usize) -> String| (2..90).map(part).collect::<Vec<_>>().join("+");
    for answer in [
        "9^{9^{9^9}}".into(),
        "9^{-9^{9^9}}".into(),
        "1e999999999".into(),
        "1000000!".into(),
        "(((9!)!)!)!".into(),
        r"\binom{1000000000}{500000000}".into(),
        r"\sqrt[999]{2}".into(),
        "(x+y+z+w+u+v)^{64}(x-y-z-w-u-v)^{64}".into(),
        format!("({})^{{60}}", sum(&|n| format!(r"\sqrt{{{n}}}"))),
        format!("{}x", sum(&|n| format!("1/(x+{n})"))),
        format!("{}1", many("2^{30000}/3^{20000}+", 90)),
        r"\cos(12x+12y+12z+12w+12u+12v)".into(),
        many(r"\cos(\pi/7)", 150),
        format!("{}2{}", many("2^{", 400), many("}", 400)),
        format!("{}2{}", many(r"\sqrt{2+", 200), many("}", 200)),
        many("{", 2_000),
        many("(", 2_000),
        many(r"\frac", 400),
        many(r"\begin{pmatrix}", 130),
        many("|", 2_000),
        many("-", 2_000),
    ] {
        let mut budget = Budget::new();
        assert_eq!(
            compare::texts("5", &answer, &mut budget),
            Equality::Undecided,
            "{answer}"
        );
    }
}

/// The budget is spent on what takes time, so that it bounds the time.
#[test]
fn work_is_counted_where_it_is_done() {
    let sum = |name: char, count: usize| {
        let terms: Vec<String> = (0..count).map(|n| format!("{name}_{{{n}}}")).collect();
        terms.join("+")
    };
    let listed = |count: usize| (0..count).map(|n| format!("{n}, ")).collect::<String>();
    let spent = |reference: &str, answer: &str| {
        let mut budget = Budget::new();
        let _ = compare::texts(reference, answer, &mut budget);
        budget.spent()
    };
    for count in [5, 20, 60] {
        let product = format!("({})({})", sum('a', count), sum('b', count));
        assert!(spent("5", &product) >= (count * count) as u64);
        assert!(spent("5", &format!("{count}!")) >= count as u64);
        assert!(spent("5", &format!(r"\binom{{{}}}{{{count}}}", 2 * count)) >= count as u64);
        let (first, second) = (listed(count), format!("7, {}", listed(count - 1)));
        assert!(spent(&first, &second) >= (count * count) as u64);
    }
}

#[test]
fn nested_brackets_end_in_no_overflow_of_the_stack() {
    for bracket in [
        "(", "[", r"\{", "{", "|", r"\frac{", r"\sqrt{", r"\boxed{", "2^{", r"\sin ",
    ] {
        for times in [10, 40, 300, 100_000] {
            let text = bracket.repeat(times);
            assert_ne!(same_answer("5", &text), Equality::Equal);
            let _ = final_answer(&text);
            let _ = ReferenceAnswer::parse(&text);
        }
    }
    let nested = |times: usize| format!("{}5{}", "(".repeat(times), ")".repeat(times));
    assert_eq!(same_answer("5", &nested(20)), Equality::Equal);
    assert_eq!(same_answer("5", &nested(1_000)), Equality::Undecided);
}
