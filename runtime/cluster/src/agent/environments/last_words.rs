//! The last lines that a setup has printed, for people who read why it failed. Pure, but for reading them.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes at the end of what was printed that are looked at.
const READ_BYTES: u64 = 64 << 10;
/// The most lines that are told.
const LINES_MAX: usize = 20;
/// The most characters of one of them.
const LINE_CHARS_MAX: usize = 400;
/// The most bytes of all of them: the catalog keeps them with the job.
const BYTES_MAX: usize = 4 << 10;

/// The last lines of a file, as a part of a sentence.
pub(super) fn last_words(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let bytes = file.metadata()?.len();
        let begin = bytes.saturating_sub(READ_BYTES);
        file.seek(SeekFrom::Start(begin))?;
        let mut printed = vec![];
        file.read_to_end(&mut printed)?;
        Ok(last_lines(&printed, begin > 0))
    };
    match read() {
        Ok(said) if !said.is_empty() => format!("; its command printed last: {said}"),
        _ => String::new(),
    }
}

/// The last lines of a text, whole, without what a terminal would obey. Of a text that is cut the first line is none.
fn last_lines(printed: &[u8], is_cut: bool) -> String {
    let printed = match printed.iter().position(|byte| *byte == b'\n') {
        Some(end) if is_cut => &printed[end + 1..],
        _ => printed,
    };
    let text = String::from_utf8_lossy(printed);
    let lines: Vec<String> = text.lines().map(plain).collect();
    let (mut told, mut bytes) = (vec![], 0);
    for line in lines.iter().rev().filter(|line| !line.is_empty()) {
        bytes += line.len() + 1;
        if told.len() == LINES_MAX || bytes > BYTES_MAX {
            break;
        }
        told.push(line.as_str());
    }
    told.reverse();
    told.join("\n")
}

/// A line as a terminal would show it at last: what a carriage return has taken back is gone, and so are colours.
fn plain(line: &str) -> String {
    let line = line.trim_end();
    let shown = line.rsplit('\r').next().unwrap_or(line);
    let mut plain = String::new();
    let mut chars = shown.chars();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => skip_sequence(&mut chars),
            '\t' => plain.push(' '),
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    match plain.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &plain[..end]),
        None => plain,
    }
}

/// Skips the rest of an escape sequence (ECMA-48): one with parameters, a string, or a single character.
fn skip_sequence(chars: &mut std::str::Chars<'_>) {
    match chars.next() {
        Some('[') => drop(chars.find(|c| ('\x40'..='\x7e').contains(c))),
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = chars.next() {
                if c == '\x07' {
                    return;
                }
                if c == '\x1b' {
                    chars.next();
                    return;
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SEMANTICS 191.
    #[test]
    fn the_last_lines_are_whole_and_nothing_in_them_is_obeyed() {
        let printed =
            b"\x1b[31mERROR\x1b[0m: no\tsuch \x07package\n\n\x1b]0;title\x07now\r\n10 %\r100 %\n";
        assert_eq!(
            last_lines(printed, false),
            "ERROR: no such package\nnow\n100 %"
        );
        assert_eq!(last_lines(b"half a line\nnext\nlast", true), "next\nlast");
        assert_eq!(last_lines(b"all in one", true), "all in one");
        assert_eq!(last_lines(b"\x1b", false), "");
        let many: String = (0..30).map(|n| format!("line {n}\n")).collect();
        let told = last_lines(many.as_bytes(), false);
        assert!(told.starts_with("line 10\n") && told.ends_with("line 29"));
        let long = last_lines("\u{e4}".repeat(9000).as_bytes(), false);
        assert_eq!(long.chars().count(), LINE_CHARS_MAX + 3);
        let wide = format!("{}\n", "\u{e4}".repeat(LINE_CHARS_MAX)).repeat(30);
        assert!(last_lines(wide.as_bytes(), false).len() <= BYTES_MAX);
    }
}
