//! The text of a recipe: it knows where each field stands, so that every complaint names its line.

use std::fmt;
use std::path::{Path, PathBuf};

use odeon_algorithms::model::ModelConfig;
use odeon_algorithms::tokenizer::Tokenizer;
use toml::de::{DeTable, DeValue};

use super::assign::Assigned;
use super::{PretrainRecipe, Recipe, check, fields};

/// A recipe as written.
#[derive(Clone, Debug)]
pub struct Source {
    path: PathBuf,
    pub(super) text: String,
    /// Pieces of the text that the file has not.
    pub(super) assigned: Vec<Assigned>,
    /// Of each line of the text the one of the file, from 1, that it was or stands behind.
    pub(super) lines: Vec<usize>,
}

/// A recipe that cannot run: where and why, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipeError {
    /// The file, or the [assignment](Source::with) to one of its fields.
    pub path: PathBuf,
    /// The line, from 1; 0 when the file cannot be read.
    pub line: usize,
    /// The error, and what was expected.
    pub what: String,
}

impl fmt::Display for RecipeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path.display(), self.what),
            line => write!(f, "{}:{line}: {}", self.path.display(), self.what),
        }
    }
}

impl std::error::Error for RecipeError {}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no text.
    pub fn read(path: &Path) -> Result<Self, RecipeError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::new(path, &text)),
            Err(error) => Err(RecipeError {
                path: path.to_owned(),
                line: 0,
                what: format!("cannot be read: {error}"),
            }),
        }
    }

    /// From text; `path` is for messages.
    #[must_use]
    pub fn new(path: &Path, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            assigned: vec![],
            lines: (1..=text.matches('\n').count() + 1).collect(),
        }
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The recipe, checked as far as this file and the task's own files tell.
    ///
    /// # Errors
    /// The text is no TOML, has a wrong field, or asks for something impossible.
    pub fn recipe(&self) -> Result<Recipe, RecipeError> {
        let syntax = |error: toml::de::Error| {
            let start = error.span().map_or(0, |span| span.start);
            self.fault(start, error.message())
        };
        let table = DeTable::parse(&self.text).map_err(syntax)?;
        fields::check(table.get_ref()).map_err(|(offset, what)| self.fault(offset, &what))?;
        let recipe: Recipe = toml::from_str(&self.text).map_err(syntax)?;
        if let Err(error) = recipe.run.device.parse::<odeon_gpu::Device>() {
            return Err(self.error("run", "device", &error.to_string()));
        }
        check::check(&recipe).map_err(|blame| self.blamed(&blame))?;
        Ok(recipe)
    }

    /// Returns true for a recipe of a pretraining run: it has a table `[pretrain]`.
    #[must_use]
    pub fn pretrains(&self) -> bool {
        let table = DeTable::parse(&self.text);
        table.is_ok_and(|table| {
            table
                .get_ref()
                .iter()
                .any(|(key, _)| key.get_ref() == "pretrain")
        })
    }

    /// The text as a value of this type, which is not checked yet.
    ///
    /// # Errors
    /// The text is no TOML, or has a wrong field.
    pub(crate) fn typed<T: serde::de::DeserializeOwned>(&self) -> Result<T, RecipeError> {
        toml::from_str(&self.text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            self.fault(start, error.message())
        })
    }

    /// The recipe of a pretraining run, checked as far as this file tells.
    ///
    /// # Errors
    /// The text is no TOML, has a wrong field, or asks for something impossible.
    pub fn pretrain_recipe(&self) -> Result<PretrainRecipe, RecipeError> {
        let recipe: PretrainRecipe = self.typed()?;
        let checked = recipe.check();
        checked.map_err(|fault| self.error(fault.table, fault.field, &fault.what))?;
        Ok(recipe)
    }

    /// Checks a recipe of this text against the model that it loads: its tokenizer, its width and
    /// the longest sequence that it was made for.
    ///
    /// # Errors
    /// The task and the model do not fit.
    pub fn fits(
        &self,
        recipe: &Recipe,
        tokenizer: &Tokenizer,
        hidden: usize,
        context: usize,
    ) -> Result<(), RecipeError> {
        check::fits(recipe, tokenizer, hidden, context).map_err(|blame| self.blamed(&blame))
    }

    /// Checks that ranks can share the model that a recipe of this text loads.
    ///
    /// # Errors
    /// They cannot.
    pub fn shared_out(&self, recipe: &Recipe, config: &ModelConfig) -> Result<(), RecipeError> {
        check::shared_out(recipe, config).map_err(|blame| self.blamed(&blame))
    }

    /// An error at a field's own line; at the line of its table when it has its default there. Of tables
    /// that come several times `source.1` is the second.
    #[must_use]
    pub fn error(&self, table: &str, field: &str, what: &str) -> RecipeError {
        self.fault(self.place(table, field).unwrap_or(0), what)
    }

    fn blamed(&self, blame: &check::Blame) -> RecipeError {
        let stands = |field: &&&str| self.sets(blame.table, field);
        let field = blame.fields.iter().find(stands).unwrap_or(&"");
        self.error(blame.table, field, &blame.what)
    }

    /// Returns true when the text sets a field, so that it has not its default.
    fn sets(&self, table: &str, field: &str) -> bool {
        self.place(table, field) != self.place(table, "")
    }

    /// The byte where a field stands, or else its table.
    fn place(&self, table: &str, field: &str) -> Option<usize> {
        let parsed = DeTable::parse(&self.text).ok()?;
        let mut values = parsed.get_ref();
        let mut place = None;
        let mut names = table.split('.');
        while let Some(name) = names.next() {
            let (key, value) = values.iter().find(|(key, _)| key.get_ref() == name)?;
            place = Some(key.span().start);
            values = match value.get_ref() {
                DeValue::Array(all) => {
                    let number = names.next().and_then(|number| number.parse::<usize>().ok());
                    let one = all.get(number.unwrap_or(0))?;
                    place = Some(one.span().start);
                    one.get_ref().as_table()?
                }
                value => value.as_table()?,
            };
        }
        let set = values.iter().find(|(key, _)| key.get_ref() == field);
        set.map(|(key, _)| key.span().start).or(place)
    }

    fn fault(&self, offset: usize, what: &str) -> RecipeError {
        let what = what.trim_end().replace('\n', ", ");
        let mut assigned = self.assigned.iter();
        if let Some(error) = assigned.find_map(|it| it.error(offset, &what)) {
            return error;
        }
        // What two fields contradict each other in is mended where one was given beside the file.
        if let Some(error) = self.assigned.iter().find_map(|it| it.named_in(&what)) {
            return error;
        }
        let before = self.text.get(..offset);
        let before = before.unwrap_or_else(|| self.text.trim_end());
        RecipeError {
            path: self.path.clone(),
            line: self.lines[before.matches('\n').count()],
            what,
        }
    }
}
