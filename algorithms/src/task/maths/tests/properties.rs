//! Properties of the comparison, over texts that nobody wrote.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*, sample::select};

use super::super::{super::expression::evaluate, *};

/// Text that is nearly mathematics.
fn scraps() -> impl Strategy<Value = String> {
    let scraps = vec![
        "0",
        "1",
        "2",
        "12",
        "1,000",
        ".5",
        "x",
        "y",
        "e",
        "i",
        "A",
        "n",
        "\\pi",
        "+",
        "-",
        "*",
        "/",
        "^",
        "_",
        "!",
        "%",
        "°",
        "$",
        "=",
        "<",
        ">",
        "\\le",
        "\\ne",
        ",",
        ";",
        ":",
        "|",
        "&",
        "\\\\",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "\\{",
        "\\}",
        "\\left(",
        "\\right)",
        "\\frac",
        "\\frac12",
        "\\sqrt",
        "\\sqrt[3]",
        "\\sin",
        "\\ln",
        "\\log",
        "\\log_2",
        "\\pm",
        "\\mp",
        "\\cup",
        "\\in",
        "\\infty",
        "\\text{",
        "\\mathrm{cm}",
        "cm",
        "m",
        "and",
        "or",
        "yes",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\overline{3}",
        "\\binom",
        "\\choose",
        "\\boxed{",
        "\\foo",
        " ",
        "\n",
        ".",
        "####",
        "answer is",
        "é",
        "²",
        "½",
        "√",
        "−",
        "ℝ",
        "∅",
        "^\\circ",
        "\\approx",
        "\\lfloor",
        "\\rfloor",
        "</think>",
    ];
    vec(select(scraps), 0..14).prop_map(|parts| parts.concat())
}

/// A polynomial in two symbols: coefficients by exponents.
type Terms = BTreeMap<(usize, usize), i128>;

fn product(factors: &[[i64; 3]]) -> Terms {
    let mut product = Terms::from([((0, 0), 1)]);
    for [a, b, c] in factors {
        let mut next = Terms::new();
        for ((x, y), value) in &product {
            *next.entry((x + 1, *y)).or_default() += value * i128::from(*a);
            *next.entry((*x, y + 1)).or_default() += value * i128::from(*b);
            *next.entry((*x, *y)).or_default() += value * i128::from(*c);
        }
        product = next;
    }
    product
}

fn expanded(terms: &Terms) -> String {
    let terms = terms
        .iter()
        .rev()
        .map(|((x, y), value)| format!("{value}x^{{{x}}}y^{{{y}}}"));
    terms.collect::<Vec<_>>().join(" + ")
}

fn factored(factors: &[[i64; 3]]) -> String {
    let factors = factors
        .iter()
        .map(|[a, b, c]| format!(r"\left({a}x + {b}y + {c}\right)"));
    factors.collect::<Vec<_>>().join("")
}

/// Arithmetic in plain writing and in LaTeX.
fn arithmetic() -> impl Strategy<Value = (String, String)> {
    let number = (0_u32..30).prop_map(|n| (n.to_string(), n.to_string()));
    number.prop_recursive(4, 24, 2, |inner| {
        (inner.clone(), inner, 0_usize..7).prop_map(|((a, s), (b, t), form)| match form {
            0 => (format!("({a}+{b})"), format!(r"\left({s} + {t}\right)")),
            1 => (format!("({a}-{b})"), format!(r"\left({s} - {t}\right)")),
            2 => (format!("({a}*{b})"), format!(r"\left[{s} \cdot {t}\right]")),
            3 => (format!("({a}*{b})"), format!("({s})({t})")),
            4 => (format!("({a}/{b})"), format!(r"\dfrac{{{s}}}{{{t}}}")),
            5 => (
                format!("({a}/{b})"),
                format!(r"\left({s}\right) / \left({t}\right)"),
            ),
            _ => (format!("({a}*({a}))"), format!("({s})^2")),
        })
    })
}

proptest! {
    #[test]
    fn any_text_is_compared_and_never_panics(a in any::<String>(), b in any::<String>()) {
        let _ = final_answer(&a);
        let _ = boxed_answers(&a);
        prop_assert_eq!(same_answer(&a, &b), same_answer(&b, &a));
        if ReferenceAnswer::parse(&a).is_ok() {
            prop_assert_eq!(same_answer(&a, &a), Equality::Equal);
        }
    }

    #[test]
    fn any_bytes_are_compared_and_never_panic(bytes in vec(any::<u8>(), 0..300)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = judge("5", &text, 0.0);
        let _ = judge(&text, "\\boxed{5}", 0.0);
    }

    #[test]
    fn scraps_are_compared_alike_from_both_sides(a in scraps(), b in scraps()) {
        prop_assert_eq!(same_answer(&a, &b), same_answer(&b, &a), "{} ~ {}", a, b);
        if let Ok(reference) = ReferenceAnswer::parse(&a) {
            prop_assert_eq!(reference.compare(&a), Equality::Equal, "{}", a);
        }
        let _ = judge(&b, &a, 0.0);
    }

    #[test]
    fn a_text_without_words_is_answered_by_none(space in "[ \n\t$.]{0,20}") {
        prop_assert_eq!(final_answer(&space), None);
        prop_assert_eq!(ReferenceAnswer::parse(&space), Err(ReferenceError::Empty));
    }

    #[test]
    fn a_polynomial_is_equal_to_its_expansion_and_to_no_other(
        factors in vec([-9_i64..10, -9_i64..10, -9_i64..10], 1..5),
        at in any::<prop::sample::Index>(),
        by in prop_oneof![-5_i128..0, 1_i128..6],
    ) {
        let mut terms = product(&factors);
        let written = factored(&factors);
        prop_assert_eq!(same_answer(&written, &expanded(&terms)), Equality::Equal);
        let at = *at.get(&terms.keys().copied().collect::<Vec<_>>());
        *terms.entry(at).or_default() += by;
        prop_assert_eq!(same_answer(&written, &expanded(&terms)), Equality::Different);
    }

    #[test]
    fn a_quotient_of_polynomials_is_equal_after_cancelling(
        factors in vec([-5_i64..6, -5_i64..6, 1_i64..6], 2..4),
        by in 1_i64..4,
    ) {
        let (first, rest) = factors.split_at(1);
        let whole = format!(r"\frac{{{}}}{{{}}}", expanded(&product(&factors)), factored(first));
        prop_assert_eq!(same_answer(&factored(rest), &whole), Equality::Equal);
        let other = format!("{whole} + {by}");
        prop_assert_eq!(same_answer(&factored(rest), &other), Equality::Different);
    }

    #[test]
    fn arithmetic_has_the_value_that_another_evaluation_finds((plain, latex) in arithmetic()) {
        match evaluate(&plain) {
            Ok(found) => {
                let (numerator, denominator) = found.value;
                let value = format!("{numerator}/{denominator}");
                prop_assert_eq!(same_answer(&value, &latex), Equality::Equal, "{}", latex);
                prop_assert_eq!(same_answer(&value, &plain), Equality::Equal, "{}", plain);
                let other = format!("{numerator}/{denominator} + 1/1000000007");
                prop_assert_eq!(same_answer(&other, &latex), Equality::Different, "{}", latex);
            }
            Err(super::super::super::ExpressionError::DivisionByZero) => {
                prop_assert_eq!(same_answer("0", &latex), Equality::Undecided, "{}", latex);
            }
            Err(_) => {}
        }
    }

    #[test]
    fn a_denominator_with_a_root_is_rationalised(
        a in -30_i64..30, b in 1_i64..30, n in 2_i64..200, index in 2_u32..5,
    ) {
        if n.isqrt().pow(2) == n || a * a == b * b * n {
            return Ok(());
        }
        let norm = a * a - b * b * n;
        let quotient = format!(r"\frac{{1}}{{{a} + {b}\sqrt{{{n}}}}}");
        let product = format!(r"\frac{{{a} - {b}\sqrt{{{n}}}}}{{{norm}}}");
        prop_assert_eq!(same_answer(&quotient, &product), Equality::Equal);
        let other = format!(r"\frac{{{a} + {b}\sqrt{{{n}}}}}{{{norm}}}");
        prop_assert_eq!(same_answer(&quotient, &other), Equality::Different);

        let power = n.pow(index) * b;
        let inside = format!(r"\sqrt[{index}]{{{power}}}");
        let outside = format!(r"{n}\sqrt[{index}]{{{b}}}");
        prop_assert_eq!(same_answer(&inside, &outside), Equality::Equal);
    }

    #[test]
    fn the_order_of_a_set_does_not_matter_but_its_elements_do(
        items in vec(-99_i64..100, 2..8), rotate in 0_usize..8, extra in 100_i64..200,
    ) {
        let listed = |items: &[i64]| {
            items.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
        };
        let mut turned = items.clone();
        turned.rotate_left(rotate % items.len());
        let (first, second) = (listed(&items), listed(&turned));
        prop_assert_eq!(same_answer(&format!(r"\{{{first}\}}"), &second), Equality::Equal);
        prop_assert_eq!(same_answer(&first, &second), Equality::Equal);
        let more = format!("{second}, {extra}");
        prop_assert_eq!(same_answer(&first, &more), Equality::Different);
        prop_assert_eq!(same_answer(&extra.to_string(), &more), Equality::Different);
        let points = same_answer(&format!("({first})"), &format!("({second})"));
        prop_assert_eq!(points == Equality::Equal, items == turned);
    }

    #[test]
    fn a_number_is_equal_however_its_digits_are_grouped(value in 1_000_u64..1 << 50) {
        let digits = value.to_string();
        let groups = |separator: &str| {
            let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev()
                .map(|group| std::str::from_utf8(group).unwrap()).collect();
            groups.join(separator)
        };
        for separator in [",", "{,}", "\\,", " ", ",\\!"] {
            let written = groups(separator);
            prop_assert_eq!(same_answer(&digits, &written), Equality::Equal, "{}", written);
        }
        let other = (value + 1).to_string();
        prop_assert_eq!(same_answer(&other, &groups(",")), Equality::Different);
    }
}
