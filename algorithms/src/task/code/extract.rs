//! The program in a reply.

use super::language::Language;

/// The program in a reply: the last fenced block that is closed and tagged with the language; if
/// there is none, the last that is closed and has no tag.
///
/// A block that another language is named on is none, and neither is one that is not closed: a
/// reply that was cut off has not answered. Fences are those of CommonMark: three or more backticks
/// or tildes, behind three spaces at most, closed by as many of the same or more. Lines lose the
/// indentation that their fence has. Takes time linear in the reply.
#[must_use]
pub fn program(reply: &str, language: Language) -> Option<String> {
    let (mut tagged, mut bare) = (None, None);
    let mut open: Option<(Fence<'_>, usize)> = None;
    let mut at = 0;
    for line in reply.split_inclusive('\n') {
        let begin = at;
        at += line.len();
        match &open {
            None => open = Fence::opening(line).map(|fence| (fence, at)),
            Some((fence, content)) if fence.is_closed_by(line) => {
                let block = (fence.indent, &reply[*content..begin]);
                if fence.tag.is_empty() {
                    bare = Some(block);
                } else if is_tag_of(fence.tag, language) {
                    tagged = Some(block);
                }
                open = None;
            }
            Some(_) => {}
        }
    }
    let (indent, block) = tagged.or(bare)?;
    Some(without_indent(block, indent))
}

/// The line that begins a block.
struct Fence<'a> {
    mark: u8,
    count: usize,
    indent: usize,
    tag: &'a str,
}

impl<'a> Fence<'a> {
    fn opening(line: &'a str) -> Option<Self> {
        let (mark, count, indent, rest) = run_of_marks(line)?;
        let rest = rest.trim();
        // Code within a line of text begins so, too.
        if mark == b'`' && rest.contains('`') {
            return None;
        }
        let tag = rest.split_whitespace().next().unwrap_or_default();
        Some(Self {
            mark,
            count,
            indent,
            tag,
        })
    }

    fn is_closed_by(&self, line: &str) -> bool {
        run_of_marks(line).is_some_and(|(mark, count, _, rest)| {
            mark == self.mark && count >= self.count && rest.trim().is_empty()
        })
    }
}

/// The mark, how often it stands, behind how many spaces, and what follows.
fn run_of_marks(line: &str) -> Option<(u8, usize, usize, &str)> {
    let indent = line.bytes().take_while(|byte| *byte == b' ').count();
    let text = &line[indent..];
    let mark = *text.as_bytes().first()?;
    if indent > INDENT_MAX || !matches!(mark, b'`' | b'~') {
        return None;
    }
    let count = text.bytes().take_while(|byte| *byte == mark).count();
    (count >= MARKS_MIN).then(|| (mark, count, indent, &text[count..]))
}

fn is_tag_of(tag: &str, language: Language) -> bool {
    // As some write it: `{.python}` or `python,editable`.
    let word = tag.trim_start_matches(['{', '.']);
    let word = word.split([',', '}', ':']).next().unwrap_or_default();
    let mut tags = language.tags().iter();
    tags.any(|known| known.eq_ignore_ascii_case(word))
}

fn without_indent(block: &str, indent: usize) -> String {
    let lines = block.split_inclusive('\n').map(|line| {
        let spaces = line.bytes().take_while(|byte| *byte == b' ').count();
        &line[spaces.min(indent)..]
    });
    lines.collect()
}

/// More is a block of its own kind.
const INDENT_MAX: usize = 3;
const MARKS_MIN: usize = 3;
