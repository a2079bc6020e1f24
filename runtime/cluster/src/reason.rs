//! Reasons that people give, as they are kept and shown.

/// The characters of a reason that are kept.
const KEPT_MAX: usize = 1_000;

/// A reason in one line, without what moves a terminal's cursor; one that is too long is cut.
#[must_use]
pub fn reason(text: &str) -> String {
    let words = text.split(char::is_control).map(str::trim);
    let words: Vec<&str> = words.filter(|it| !it.is_empty()).collect();
    let line = words.join(" ");
    match line.char_indices().nth(KEPT_MAX) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_one_line_and_no_book() {
        assert_eq!(reason(" it is\n\tslow\u{1b}[31m "), "it is slow [31m");
        assert_eq!(reason("\n"), "");
        let long = reason(&"\u{e4}".repeat(5_000));
        assert_eq!(long.chars().count(), KEPT_MAX + 3);
    }
}
