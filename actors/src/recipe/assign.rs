//! Fields of a recipe that are given beside its file, as `KEY=VALUE`: they stand in its text as if they had been
//! written there.

use std::ops::Range;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::source::{RecipeError, Source};

/// A piece of a recipe's text that no file has.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    /// As it was given.
    said: String,
    /// Where it stands.
    at: Range<usize>,
}

impl Assigned {
    /// A complaint about it, if it stands there.
    pub(super) fn error(&self, offset: usize, what: &str) -> Option<RecipeError> {
        self.at.contains(&offset).then(|| self.refused(what))
    }

    /// A complaint about another field that names this one, as in `parallel.pp = 8`.
    pub(super) fn named_in(&self, what: &str) -> Option<RecipeError> {
        let key = self.said.split('=').next()?.trim();
        let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
        let mut words = what.split(|c| !is_part(c));
        let is_named = words.any(|word| word.trim_end_matches('.') == key);
        is_named.then(|| self.refused(what))
    }

    fn refused(&self, what: &str) -> RecipeError {
        RecipeError {
            path: PathBuf::from(format!("--set {}", self.said)),
            line: 0,
            what: what.to_owned(),
        }
    }
}

/// The nearest place above a field that its text can be put into.
struct Container {
    /// The byte behind which it is put.
    at: usize,
    /// Text around it.
    around: (&'static str, &'static str),
    /// Number of names of the key that lead there.
    depth: usize,
}

/// The place of a field.
enum Place {
    /// The first byte of its key, and its value.
    Value(usize, Range<usize>),
    Absent(Container),
    /// Something stands in the way of so many names.
    Barred(usize, &'static str),
}

/// A name of a key.
struct Name {
    /// As it is written, perhaps in quotes.
    written: String,
    name: String,
}

impl Source {
    /// The same recipe with one field changed: `KEY=VALUE`, where the key is as in `model.layers` and, of the
    /// second source, `source.1.path`. The value is one of TOML; what is none is a text.
    ///
    /// # Errors
    /// There is no such place, or the assignment is none.
    pub fn with(mut self, assignment: &str) -> Result<Self, RecipeError> {
        let mut assigned = Assigned {
            said: assignment.to_owned(),
            at: 0..0,
        };
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(assigned.refused("expected KEY=VALUE, as in model.layers=4"));
        };
        let Some(names) = names_of(key) else {
            let what = format!("`{key}` names no field: expected names with dots between them");
            return Err(assigned.refused(&what));
        };
        let written = |names: &[Name]| -> String {
            let names: Vec<&str> = names.iter().map(|it| it.written.as_str()).collect();
            names.join(".")
        };
        let value = value_of(value.trim());
        // A text that is no TOML is complained about when it is read.
        let Ok(table) = DeTable::parse(self.text()) else {
            return Ok(self);
        };
        let (at, text, begin) = match place(self.text(), table.get_ref(), &names) {
            Place::Value(key, at) => (at, value, key),
            Place::Absent(container) => {
                let (before, behind) = container.around;
                let key = written(&names[container.depth..]);
                let text = format!("{before}{key} = {value}{behind}");
                let begin = container.at + before.len();
                (container.at..container.at, text, begin)
            }
            Place::Barred(depth, what) => {
                let what = format!("`{}` {what}", written(&names[..depth]));
                return Err(assigned.refused(&what));
            }
        };
        drop(table);
        assigned.at = begin..at.start + text.trim_end().len();
        self.edit(at, &text, assigned);
        Ok(self)
    }

    /// Replaces part of the text.
    fn edit(&mut self, at: Range<usize>, text: &str, assigned: Assigned) {
        let newlines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
        let first = newlines(&self.text[..at.start]);
        let removed = newlines(&self.text[at.clone()]);
        let line = self.lines[first];
        let added = std::iter::repeat_n(line, newlines(text));
        self.lines.splice(first + 1..first + 1 + removed, added);
        self.text.replace_range(at.clone(), text);
        // One that is assigned again, alone or with the table around it, is what was assigned last.
        let is_old = |it: &Assigned| {
            let is_inside = at.start <= it.at.start && it.at.end <= at.end;
            !at.is_empty() && (is_inside || it.at.start == assigned.at.start)
        };
        self.assigned.retain(|it| !is_old(it));
        for it in &mut self.assigned {
            let moved = |offset: usize| offset - at.len() + text.len();
            if at.end <= it.at.start {
                it.at = moved(it.at.start)..moved(it.at.end);
            } else if at.end < it.at.end {
                it.at.end = moved(it.at.end);
            }
        }
        // Before those around it, so that it is asked first.
        self.assigned.insert(0, assigned);
    }
}

/// The names of a key, which may be in quotes.
fn names_of(key: &str) -> Option<Vec<Name>> {
    let text = format!("{} = 0", key.trim());
    let parsed = DeTable::parse(&text).ok()?;
    let (mut table, mut names) = (parsed.get_ref(), vec![]);
    loop {
        let (name, value) = table.iter().next().filter(|_| table.len() == 1)?;
        names.push(Name {
            written: text[name.span()].to_owned(),
            name: name.get_ref().to_string(),
        });
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            DeValue::Integer(_) => return Some(names),
            _ => return None,
        }
    }
}

/// A value as TOML has it: what is none is a text.
fn value_of(value: &str) -> String {
    let one = format!("value = {value}");
    // Nothing stands behind it, as a comment would.
    let spans_all = |table: &Spanned<DeTable<'_>>| {
        let mut values = table.get_ref().values();
        values.next().is_some_and(|it| it.span().end == one.len()) && values.next().is_none()
    };
    let is_one = DeTable::parse(&one).is_ok_and(|table| spans_all(&table));
    match is_one && !value.contains('\n') {
        true => value.to_owned(),
        false => toml::Value::String(value.to_owned()).to_string(),
    }
}

/// Finds a field.
fn place(text: &str, root: &DeTable<'_>, names: &[Name]) -> Place {
    let mark = '\u{feff}';
    let mut container = Container {
        at: if text.starts_with(mark) {
            mark.len_utf8()
        } else {
            0
        },
        // Complaints about what is nowhere stand at the first byte.
        around: ("\n", "\n"),
        depth: 0,
    };
    let mut table = root;
    let mut depth = 0;
    loop {
        let name = names[depth].name.as_str();
        let found = table.iter().find(|(key, _)| key.get_ref() == name);
        let Some((key, mut value)) = found else {
            return Place::Absent(container);
        };
        depth += 1;
        // Of tables in a row the next name is a number.
        while let (DeValue::Array(all), Some(name)) = (value.get_ref(), names.get(depth)) {
            depth += 1;
            match name
                .name
                .parse::<usize>()
                .ok()
                .and_then(|number| all.get(number))
            {
                Some(one) => value = one,
                None => return Place::Barred(depth, "is none of them: they are counted from 0"),
            }
        }
        let span = value.span();
        if depth == names.len() {
            let one = match value.get_ref() {
                DeValue::Array(all) => all.first(),
                _ => Some(value),
            };
            let is_inline = |it: &Spanned<DeValue<'_>>| text[it.span()].starts_with('{');
            let is_table = |it: &Spanned<DeValue<'_>>| it.get_ref().is_table() && !is_inline(it);
            return match one.is_some_and(is_table) {
                true => Place::Barred(depth, "is a table: set its fields"),
                false => Place::Value(key.span().start.min(span.start), span),
            };
        }
        let DeValue::Table(inner) = value.get_ref() else {
            return Place::Barred(depth, "has no fields");
        };
        if let Some(around) = around(text, value) {
            let (at, around) = around;
            container = Container { at, around, depth };
        }
        table = inner;
    }
}

/// The place in a table that fields can be put into, and the text around them; none in one that is made of keys with dots, or
/// of tables below it.
fn around(
    text: &str,
    table: &Spanned<DeValue<'_>>,
) -> Option<(usize, (&'static str, &'static str))> {
    let span = table.span();
    let shown = &text[span.clone()];
    if shown.starts_with('[') {
        let line = text[span.end..].find('\n');
        let end = line.map_or(text.len(), |line| span.end + line);
        return Some((end, ("\n", "")));
    }
    let inner = table.get_ref().as_table();
    let is_empty = inner.is_some_and(DeTable::is_empty);
    let behind = if is_empty { " " } else { "," };
    shown
        .starts_with('{')
        .then_some((span.start + 1, (" ", behind)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = "name = \"a\"\n[run] # the run\nseed = 3\n\n[plan.micro]\ntokens = [\n  1,\n  2,\n]\nlast = 1\n[plan]\nstep = { tokens = 5 }\nx.y = 3\n[[source]]\nname = \"one\"\n[[source]]\nname = \"two\"\nempty = {}\n";

    fn with(assignments: &[&str]) -> Source {
        let source = Source::new(Path::new("a.toml"), TEXT);
        let all = assignments.iter();
        all.fold(source, |source, it| source.with(it).unwrap())
    }

    fn read(source: &Source, key: &str) -> toml::Value {
        let table: toml::Table = source.text().parse().unwrap();
        let mut value = toml::Value::Table(table);
        for name in key.split('.') {
            value = match name.parse::<usize>() {
                Ok(number) => value[number].clone(),
                Err(_) => value[name].clone(),
            };
        }
        value
    }

    /// SEMANTICS 133.
    #[test]
    fn any_field_is_set_wherever_it_stands_or_would_stand() {
        for (key, value, expected) in [
            ("name", "b", "\"b\""),
            ("run.seed", "4", "4"),
            ("run.out", "\"7\"", "\"7\""),
            ("run.deterministic", "true", "true"),
            ("plan.micro.tokens", "[3]", "[3]"),
            ("plan.micro.first", "1e-3", "0.001"),
            ("plan.step.tokens", "6", "6"),
            ("plan.step.samples", "7", "7"),
            ("plan.x.y", "4", "4"),
            ("plan.x.z", "5", "5"),
            ("plan.new.deep.er", "1", "1"),
            ("parallel.tp", "2", "2"),
            ("source.1.name", "three", "\"three\""),
            ("source.0.path", "a b", "\"a b\""),
            ("source.1.empty.one", "1", "1"),
            (
                "plan.micro.tokens",
                "[[0, 1.5], [1, 2.0]]",
                "[[0, 1.5], [1, 2.0]]",
            ),
            ("source.0.tables", "[{ a = 1 }]", "[{ a = 1 }]"),
            ("run.seed", "3#4", "\"3#4\""),
            ("plan.step.tokens", "6 # six", "\"6 # six\""),
            ("run.empty", "", "\"\""),
        ] {
            let source = with(&[&format!("{key}={value}")]);
            assert_eq!(
                read(&source, key).to_string(),
                expected,
                "{}",
                source.text()
            );
            let mut other: toml::Table = TEXT.parse().unwrap();
            let own: toml::Table = source.text().parse().unwrap();
            let same = own
                .keys()
                .filter(|name| other.remove(*name).is_some())
                .count();
            assert!(
                other.is_empty() && same >= 4,
                "nothing is lost: {}",
                source.text()
            );
        }
        let quoted = with(&["plan.mixture.\"my texts\".weight=1", "run.\"seed\"=9"]);
        let weight = read(&quoted, "plan.mixture.my texts.weight");
        assert_eq!(weight.to_string(), "1");
        assert_eq!(read(&quoted, "run.seed").to_string(), "9");
        let marked = Source::new(Path::new("a.toml"), "\u{feff}a = 1\n");
        let marked = marked.with("b.c=2").unwrap();
        assert_eq!(marked.text(), "\u{feff}\nb.c = 2\na = 1\n");
        let nested = with(&["run.pair={ a = 1, b = 2 }", "run.pair.b=3"]);
        assert_eq!(read(&nested, "run.pair.b").to_string(), "3");
        let said = |field| nested.error("run.pair", field, "no").to_string();
        assert_eq!(said("a"), "--set run.pair={ a = 1, b = 2 }: no");
        assert_eq!(said("b"), "--set run.pair.b=3: no");
        let whole = with(&["run.pair={ a = 1 }", "run.pair.b=3", "run.pair={ b = 4 }"]);
        let said = whole.error("run.pair", "b", "no").to_string();
        assert_eq!(said, "--set run.pair={ b = 4 }: no");
        let twice = with(&["run.seed=4", "parallel.tp=2", "run.seed=5", "parallel.tp=4"]);
        assert_eq!(read(&twice, "run.seed").to_string(), "5");
        assert_eq!(read(&twice, "parallel.tp").to_string(), "4");
    }

    /// SEMANTICS 133.
    #[test]
    fn complaints_name_the_assignment_or_the_line_of_the_file() {
        let source = with(&[
            "parallel.tp=2",
            "plan.micro.tokens=7",
            "run.seed = 4",
            "source.0.path=p",
        ]);
        let said = |table, field| source.error(table, field, "no").to_string();
        assert_eq!(said("parallel", "tp"), "--set parallel.tp=2: no");
        assert_eq!(
            said("plan.micro", "tokens"),
            "--set plan.micro.tokens=7: no"
        );
        assert_eq!(said("run", "seed"), "--set run.seed = 4: no");
        for (table, field, line) in [
            ("nowhere", "", 1),
            ("run", "", 2),
            ("plan.micro", "", 5),
            ("plan.micro", "last", 10),
            ("plan", "step", 12),
        ] {
            let expected = format!("a.toml:{line}: no");
            assert_eq!(
                said(table, field),
                expected,
                "{table}.{field}: {}",
                source.text()
            );
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused() {
        for (assignment, expected) in [
            ("seed", "expected KEY=VALUE, as in model.layers=4"),
            (
                "=3",
                "`` names no field: expected names with dots between them",
            ),
            ("run..seed=3", "`run..seed` names no field"),
            ("run seed=3", "`run seed` names no field"),
            ("run=3", "`run` is a table: set its fields"),
            ("source=3", "`source` is a table: set its fields"),
            (
                "source.2.name=x",
                "`source.2` is none of them: they are counted from 0",
            ),
            ("source.first.name=x", "`source.first` is none of them"),
            ("run.seed.more=1", "`run.seed` has no fields"),
        ] {
            let source = Source::new(Path::new("a.toml"), TEXT);
            let error = source.with(assignment).unwrap_err().to_string();
            let expected = format!("--set {assignment}: {expected}");
            assert!(error.starts_with(&expected), "{error}");
        }
        // One that is no TOML says so itself.
        let broken = Source::new(Path::new("a.toml"), "[run\n")
            .with("run.seed=3")
            .unwrap();
        let error = broken.pretrain_recipe().unwrap_err().to_string();
        assert!(error.starts_with("a.toml:1: "), "{error}");
    }
}
