//! Text whose words have tags: `word/tag`, as in the Brown corpus. Pure.

/// The words without their tags. Signs that close join the word before them, those that open the one
/// after them; lines and paragraphs stay.
pub(crate) fn untagged(text: &str) -> String {
    let mut out = String::with_capacity(text.len() / 2);
    let mut blank_lines = 0;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace().peekable();
        if words.peek().is_none() {
            blank_lines += 1;
            continue;
        }
        if !out.is_empty() {
            out.push_str(if blank_lines > 0 { "\n\n" } else { "\n" });
        }
        blank_lines = 0;
        let mut joins = true;
        for tagged in words {
            let word = tagged.rsplit_once('/').map_or(tagged, |(word, _)| word);
            let closes = matches!(word, "," | "." | ";" | ":" | "?" | "!" | "''" | ")");
            if !joins && !closes {
                out.push(' ');
            }
            joins = matches!(word, "``" | "(");
            out.push_str(match word {
                "``" | "''" => "\"",
                word => word,
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_away() {
        let check = |tagged: &str, expect: &str| assert_eq!(untagged(tagged), expect);
        check(
            "\n\n\tThe/at Fulton/np-tl County/nn-tl said/vbd ``/`` no/at evidence/nn ''/'' ./.\n",
            "The Fulton County said \"no evidence\".",
        );
        check("a/x b/y\nc/z\n\n\n\td/w (/( e/f )/)", "a b\nc\n\nd (e)");
        check("1/2/cd plain ./.", "1/2 plain.");
        check("", "");
    }
}
